"""IR on which LLVM would abort the process is rejected before LLVM sees it."""

import re

import pytest
from tilejit.errors import ToolchainError
from tilejit.toolchain import intrinsics, llvm, screen
from tilejit.toolchain.intrinsics import TARGETS, architecture, expand, refusal, supports

from tests.chosen_cases import all_cases
from tests.gpu import run_child


def kernel(body):
    return f"define ptx_kernel void @k(ptr addrspace(1) %p) {{\n{body}\nret void\n}}\n"


def through(kind, operation):
    return kernel(f"%a = load {kind}, ptr addrspace(1) %p\n%b = {operation}\nstore {kind} %b, ptr addrspace(1) %p")


# Each of these makes LLVM abort.
FATAL = {
    "log2 of a float": (through("float", "call float @llvm.log2.f32(float %a)"), "llvm.log2.f32"),
    "an exact sine": (through("float", "call float @llvm.sin.f32(float %a)"), "afn"),
    "exp2 of a double": (through("double", "call double @llvm.exp2.f64(double %a)"), "f64"),
    "a power": (through("float", "call float @llvm.pow.f32(float %a, float %a)"), "llvm.pow.f32"),
    "a vector bswap": (through("<2 x i32>", "call <2 x i32> @llvm.bswap.v2i32(<2 x i32> %a)"), "vectors"),
    "an intrinsic of another target": (kernel("call void @llvm.amdgcn.s.barrier()"), "amdgcn"),
    "an NVVM intrinsic that is not listed": (kernel("call void @llvm.nvvm.tcgen05.fence.before.thread.sync()"), "tcgen05"),
    "fp128": (through("fp128", "fadd fp128 %a, %a"), "fp128"),
    "a 128-bit atomic": (through("i128", "atomicrmw add ptr addrspace(1) %p, i128 %a monotonic"), "64 bits"),
    "a wide vector atomic": (through("<4 x float>", "atomicrmw fadd ptr addrspace(1) %p, <4 x float> %a monotonic"), "4 x float"),
    "float to i128": (kernel("%a = load float, ptr addrspace(1) %p\n%b = fptosi float %a to i128\nstore i128 %b, ptr addrspace(1) %p"), "64 bits"),
    "i128 to float": (kernel("%a = load i128, ptr addrspace(1) %p\n%b = sitofp i128 %a to float\nstore float %b, ptr addrspace(1) %p"), "64 bits"),
    "an unknown scope": (kernel('fence syncscope("agent") acquire'), "agent"),
    "an unknown constraint": (kernel('call void asm sideeffect "x $0;", "z"(i32 1)'), "'z'"),
    "a memory constraint": (kernel('call void asm sideeffect "x $0;", "m"(i32 1)'), "'m'"),
    "an operand that is not there": (kernel('call void asm sideeffect "x $4;", "r"(i32 1)'), r"\$4"),
    "a bare dollar": (kernel('call void asm sideeffect "$x", ""()'), r"\$\$"),
    "a run-time operand where a literal belongs": (kernel('%a = load i32, ptr addrspace(1) %p\ncall void asm sideeffect "x $0;", "n"(i32 %a)'), "literal"),
    "a 32-bit operand for q": (kernel('call void asm sideeffect "x $0;", "q"(i32 1)'), "i128"),
}


@pytest.mark.parametrize("name", FATAL)
def test_ir_that_would_abort_the_process_is_refused_with_its_line(name):
    text, words = FATAL[name]
    with pytest.raises(ToolchainError, match=words) as caught:
        llvm.to_ptx(text, "sm_90a")
    assert re.search(r"line \d", str(caught.value))


def test_a_cluster_scope_needs_sm_90():
    text = kernel('fence syncscope("cluster") acquire')
    llvm.to_ptx(text, "sm_90a")
    with pytest.raises(ToolchainError, match="sm_90"):
        llvm.to_ptx(text, "sm_80")


def test_an_intrinsic_is_refused_on_architectures_that_lack_it():
    text = kernel("%r = call i32 @llvm.nvvm.read.ptx.sreg.cluster.ctarank()\nstore i32 %r, ptr addrspace(1) %p")
    llvm.to_ptx(text, "sm_90")
    with pytest.raises(ToolchainError, match="sm_90"):
        llvm.to_ptx(text, "sm_89")


@pytest.mark.parametrize("text", [
    kernel('; fp128, x86_fp80 and atomicrmw on i128 in a comment\ncall void asm sideeffect "// fp128 atomicrmw x86_fp80", ""()'),
    kernel('call void asm sideeffect "mov.b64 $$1, $0;", "r,~{memory}"(i32 1)'),
    through("i128", "add i128 %a, %a"),
    through("i32", "atomicrmw add ptr addrspace(1) %p, i32 %a syncscope(\"device\") monotonic"),
    through("<2 x half>", "atomicrmw fadd ptr addrspace(1) %p, <2 x half> %a monotonic"),
    through("float", "call afn float @llvm.sin.f32(float %a)"),
    through("float", "call contract afn float @llvm.tanh.f32(float %a)"),
    kernel('call void asm sideeffect "x $0;", "n"(i32 -3)'),
])
def test_valid_ir_is_accepted(text):
    llvm.to_ptx(text, "sm_90a")


def test_the_check_costs_less_than_a_tenth_of_parsing():
    import time

    text = kernel("\n".join(f"%v{i} = add i32 {i}, %v{i - 1}" if i else "%v0 = add i32 0, 0" for i in range(4000)))
    start = time.perf_counter()
    screen.check(text, "sm_90a")
    middle = time.perf_counter()
    llvm.to_ptx(text, "sm_90a", passes="none")
    assert middle - start < 0.5 * (time.perf_counter() - middle)


def test_architectures_are_ordered_including_their_letters():
    assert architecture("sm_103a") == (103, "a")
    assert supports("sm_90a", "90a") and supports("sm_120a", "90a") and not supports("sm_90", "90a")
    assert supports("sm_90", 90) and not supports("sm_89", 90)
    with pytest.raises(ToolchainError):
        architecture("gfx90a")


# -- every row of the tables, compiled for every target it allows ----------------------------------------------------

LLVM = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double"}


def spelled(kind):
    vector = re.fullmatch(r"v(\d+)(.*)", kind)
    return f"<{vector[1]} x {spelled(vector[2])}>" if vector else LLVM.get(kind, kind)


def function(name, result, operands, label):
    """A kernel that loads the operands, calls the intrinsic and stores the result; `!` marks an immediate operand."""
    lines, passed = [], []
    for index, kind in enumerate(operands):
        if kind.startswith("!"):
            passed.append(f"{kind[1:]} {'false' if kind == '!i1' else 24}")
        else:
            lines.append(f"%a{index} = load volatile {kind}, ptr %p")
            passed.append(f"{kind} %a{index}")
    call = f"call afn {result} @llvm.{name}" if name in intrinsics.APPROXIMATE_ONLY else f"call {result} @llvm.{name}"
    call += f"({', '.join(passed)})"
    lines.append(call if result == "void" else f"%r = {call}")
    if result.startswith("{"):
        first = result[1:].split(",")[0]
        lines += [f"%r0 = extractvalue {result} %r, 0", f"store volatile {first} %r0, ptr %p"]
    elif result != "void":
        lines.append(f"store volatile {result} %r, ptr %p")
    body = "\n".join(lines)
    return f'define ptx_kernel void @k{label}(ptr %p) #0 {{\n{body}\nret void\n}}\n'


def rows(target):
    """(name, result, operands) of every intrinsic that the tables allow for `target`."""
    for pattern, signature, least in intrinsics.NVVM:
        if supports(target, least):
            result, operands = re.fullmatch(r"(.*) \((.*)\)", signature).groups()
            kinds = re.findall(r"<[^>]*>|!?\w+", operands)
            for name in expand(pattern):
                yield f"nvvm.{name}", result, kinds
    for names, types, vectors in intrinsics.ELEMENTWISE:
        for name in names.split():
            for kind in types:
                for width in ("", *(f"v{n}" for n in (2, 3, 4, 8, 16))) if vectors else ("",):
                    whole = spelled(width + kind)
                    if "with.overflow" in name:
                        yield f"{name}.{kind}", f"{{{whole}, i1}}", [whole] * 2
                        continue
                    one = name in ("ctpop", "bitreverse", "bswap", "sqrt", "fabs", "floor", "ceil", "trunc", "rint",
                                   "nearbyint", "round", "roundeven", "exp2", "canonicalize")
                    operands = [whole] * (3 if name in ("fma", "fmuladd", "fshl", "fshr") else 1 if one else 2)
                    if name in ("abs", "ctlz", "cttz"):
                        operands = [whole, "!i1"]
                    yield f"{name}.{width}{kind}", whole, operands
    for name in intrinsics.APPROXIMATE_ONLY:
        yield name, spelled(name.split(".")[1]), [spelled(name.split(".")[1])]
    for names, results, sources in intrinsics.CONVERSIONS:
        for name in names.split():
            for result in results:
                for source in sources:
                    yield f"{name}.{result}.{source}", result, [spelled(source)]
    for name in ("add", "mul", "and", "or", "xor", "smax", "umin"):
        yield f"vector.reduce.{name}.v4i32", "i32", ["<4 x i32>"]
    for name in ("fmax", "fmin", "fmaximum", "fminimum"):
        yield f"vector.reduce.{name}.v4f32", "float", ["<4 x float>"]


def compile_all(target):
    """Compile the intrinsics allowed for `target`, in modules of 64 kernels, and print their number: in a run of some cases, those that no older
    target allows, and one in four."""
    older = set() if all_cases() else {row[0] for t in TARGETS[:TARGETS.index(target)] for row in rows(t)}
    known = [row for n, row in enumerate(rows(target)) if row[0] not in older or n % 4 == 0]
    for start in range(0, len(known), 64):
        text = "".join(function(*row, label) for label, row in enumerate(known[start: start + 64]))
        llvm.to_ptx(text + 'attributes #0 = { "nvvm.maxntid"="128,1,1" }\n', target, passes="none")
    print(len(known))


@pytest.mark.parametrize("target", TARGETS)
def test_every_intrinsic_that_the_tables_allow_can_be_compiled(target):
    assert int(run_child(compile_all, timeout=300, target=target)) > (1000 if all_cases() else 250)
    assert all(refusal(f"llvm.{name}", target) in ("", "afn") for name, _result, _operands in rows(target))

