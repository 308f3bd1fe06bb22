"""Compiles IR text by LLVM: to PTX for a target, and to machine code for this host.

This is the only file that imports llvmlite, and it does so only on first use.

The choice of passes before code generation, measured with this file's settings for sm_90a (milliseconds on two cores;
loop = SASS instructions of the main loop):

    kernel, IR size                    none                    light (O1)              O3
                                     passes+emit ptxas  loop  passes+emit ptxas  loop  passes+emit ptxas  loop
    softmax, 8 per thread, 15 KB         9    40    448         11    33    296         12    33    296
    softmax, 32 per thread, 49 KB       42    96   1669         27    66    999         32    66    999
    mma.sync loop, 36 KB                22    32    104         23    49     70 (x4)    25    47     70 (x4)
    wgmma, pinned accumulators, 137 KB  11   137    254         23   137    257         25   137    257

(x4: ptxas unrolled the loop four times; the figure is per iteration.) O1 hoists loop invariants and merges address
arithmetic, so that ptxas has less to read: it pays for itself wherever there is scalar code. Hand-picked lists of
instcombine, GVN, simplifycfg and loop rotation cost half as much, and left 440, 1183 and 72..105 instructions. For
kernels that are only tensor-core loops "none" is best. Loop unrolling is off in every pipeline: the emitter decides
about it.

"short" is the function simplification part of O1, without the module passes before and after it. It takes 26 ms
instead of O1's 42 for a product with a shared last wave (stream-K), and 77 ms instead of 121 if that has an epilogue
with deferred columns (LATE). Loops of kernels whose accumulators are pinned stay the same, within 0.4 % of the
instructions. Other kernels get up to a fifth more instructions: where divisions and remainders of the same numbers
occur together, or functions of libdevice, whose ``__nvvm_reflect`` O1's first passes resolve.
"""

from __future__ import annotations

import re
import struct
import sys
from functools import cache

from ..errors import ToolchainError
from . import executable, libdevice as _libdevice, screen
from .assembler_faults import avoid_faults
from .intrinsics import TARGETS
from .packages import package

PASSES = {"none": None, "short": 1, "light": 1, "O3": 3}

_TRIPLE = "nvptx64-nvidia-cuda"
_PTX_VERSION = "+ptx88"  # with PTX 8.6 and 8.7, LLVM ends the process for sm_103a


def version() -> str:
    """llvmlite's version for cache keys, from package metadata, without loading it."""
    found = package("llvmlite")
    return found.version if found else "unknown"


@cache
def _llvm():
    try:
        import llvmlite.binding as binding  # loading LLVM takes long, and whoever has none gets an error here
    except ImportError as error:
        raise ToolchainError(f"llvmlite is needed to compile kernels and could not be loaded: {error}") from None
    if binding.llvm_version_info[0] < 22:
        found = ".".join(map(str, binding.llvm_version_info))
        raise ToolchainError(f"llvmlite is built on LLVM {found}; LLVM 22 is needed (pip install 'llvmlite>=0.50')")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


@cache
def _machine(target: str):
    # Always opt=3: lower levels of code generation move wgmma accumulators between registers, which makes ptxas
    # serialise the instructions.
    machine = _llvm().Target.from_triple(_TRIPLE).create_target_machine(cpu=target, features=_PTX_VERSION, opt=3)
    return machine, str(machine.target_data)


@cache
def _host_machine():
    binding = _llvm()
    target = binding.Target.from_triple(binding.get_process_triple())
    # Launchers are code without loops that runs once per launch: opt=0 takes 5 ms to compile instead of opt=1's 15, and
    # 0.01 us more to run.
    return target.create_target_machine(opt=0, reloc="pic", codemodel="small")


def _parse(ir: str, context, triple: str, layout: str):
    # The data layout has to be in the text: loads and stores without an alignment get theirs while the text is parsed.
    # It goes to the text's own first line, so that line numbers stay the same.
    head = "" if "target datalayout" in ir else f'target datalayout = "{layout}" '
    if "target triple" not in ir:
        head += f'target triple = "{triple}" '
    try:
        return _llvm().parse_assembly(head + ir, context)
    except RuntimeError as error:
        raise ToolchainError(_parse_message(ir, str(error))) from None


def _verify(module) -> None:
    """Run LLVM's verifier, always: it takes 0.3 to 1 ms, and a module that it rejects could end the process later."""
    try:
        module.verify()
    except RuntimeError as error:
        raise ToolchainError(f"LLVM's verifier refused the module: {str(error).strip()}") from None


def _parse_message(ir: str, message: str) -> str:
    """LLVM's message, with the IR line that it refers to and the line before."""
    place = re.search(r"<string>:(\d+):(\d+): error: (.*)", message)
    if place is None:
        return f"LLVM refused the IR text: {message.strip()}"
    line, column, reason = int(place[1]), int(place[2]), place[3]
    lines = ir.splitlines()
    shown = [f"  {number}: {lines[number - 1]}" for number in (line - 1, line) if 0 < number <= len(lines)]
    caret = " " * (len(f"  {line}: ") + column - 1) + "^"
    return "\n".join([f"LLVM refused the IR text at line {line}, column {column}: {reason}", *shown, caret])


def to_ptx(ir: str, target: str, *, passes: str = "light", libdevice: bool = False) -> str:
    """PTX for `target` from LLVM IR text.

    `passes` is one of `PASSES`. With `libdevice`, functions named ``__nv_*`` that the text declares are linked in.
    The text needs no triple and no data layout.

    Raises ToolchainError if the text does not parse or verify, or uses operations that LLVM's backend is not known to
    lower (it would end the process)."""
    if target not in TARGETS:
        raise ToolchainError(f"{target!r} is not a target; the targets are {', '.join(TARGETS)}")
    if passes not in PASSES:
        raise ToolchainError(f"passes={passes!r} is not one of {', '.join(map(repr, PASSES))}")
    screen.check(ir, target)
    with optimize(ir, target, passes, libdevice) as module:
        return emit_ptx(module, target)


def optimize(ir: str, target: str, passes: str, libdevice: bool):
    """The module of IR text after the passes. If it calls no functions of libdevice, the result is the same for every
    target.

    A module has to be closed, here and where it is used: the garbage collector might end it after its context, which
    faults. It finds both where an error's traceback keeps them, and in free-threaded Python elsewhere too."""
    functions = _libdevice.called_by(ir)
    if functions and not libdevice:
        raise ToolchainError(f"the IR text calls {functions[0]} but libdevice=True was not given")
    binding = _llvm()
    machine, layout = _machine(target)
    context = binding.create_context()  # a new one for each kernel, so that types and constants do not accumulate
    module = _parse(hide_rounded_halves(hide_bfloats(ir)), context, _TRIPLE, layout)
    try:
        if functions:
            _link(module, functions, layout, context)
        _verify(module)
        _optimize(module, machine, passes, bool(functions))
        if "bfloat" not in ir or "sitofp" not in ir:
            return module
        text = str(module)
        selected = selected_signs(text)
        if selected == text:
            return module
        mended = _parse(selected, context, _TRIPLE, layout)
    except BaseException:
        module.close()
        raise
    module.close()
    return mended


def emit_ptx(module, target: str) -> str:
    """PTX of a module, which cannot be used afterwards."""
    return avoid_faults(_machine(target)[0].emit_assembly(module))


_WIDENED_BFLOAT = re.compile(r"^([ \t]*)(%\S+) = fpext bfloat (%[^\s,]+) to (float|double)(.*)$", re.MULTILINE)


def hide_bfloats(ir: str) -> str:
    """IR text in which bfloat16 numbers become float32 by a shift of their bits, if it has float16 numbers too.

    InstCombine of LLVM 22 computes ``fptrunc(fmul(fpext a, fpext b))`` in float16 if neither factor has a longer
    significand, and rounds bfloat16 factors to float16 for it: 65536 * 0 becomes a NaN, and 2e-30 * 1e30 a 0. It does
    so with sums, differences and quotients as well. It knows nothing of shifted bits."""
    if "half" not in ir or "bfloat" not in ir:
        return ir
    return _WIDENED_BFLOAT.sub(_shift_bits, ir)


def _shift_bits(widening: re.Match[str]) -> str:
    space, result, x, wide, rest = widening.groups()
    step = f"%of.{result[1:]}"  # a number, as LLVM writes them, begins no name
    narrow = f"{step}.f" if wide == "double" else result
    steps = [f"{step}.i = bitcast bfloat {x} to i16", f"{step}.z = zext i16 {step}.i to i32",
             f"{step}.s = shl i32 {step}.z, 16", f"{narrow} = bitcast i32 {step}.s to float"]
    steps += [f"{result} = fpext float {narrow} to double"] if wide == "double" else []
    return "\n".join(f"{space}{step}{rest}" for step in steps)


_RESULT = re.compile(r"^[ \t]*(%\S+) = (.*)$", re.MULTILINE)
_ROUNDING = re.compile(r"(?:[su]itofp|fptrunc)\b.* to half\b|phi half\b|select\b.*\bhalf\b")
# results that hold no half of which LLVM knows how it was made
_FORGETS = re.compile(r"fpext\b|[fi]cmp\b|fpto[su]i\b|(?:tail )?call\b.*\basm\b")
_OPERAND = re.compile(r"%[\w.$-]+")
_WIDENED_HALF = re.compile(r"^([ \t]*)(%\S+) = fpext half (%[^\s,]+) to (float|double)(.*)$", re.MULTILINE)


def hide_rounded_halves(ir: str) -> str:
    """IR text in which numbers that were rounded to float16, and what is computed from such, become float32 by an
    instruction that LLVM does not know, if it converts integers of 32 or more bits.

    InstCombine of LLVM 22 drops the rounding of an integer whose known zeros leave it no more bits than the
    significand has, also where the number is beyond float16's range: of a number of 8 bits, ``x << 15`` becomes
    65536.0 instead of infinity. It does so where it has dropped operations in between too: ``abs`` of numbers that are
    not negative, ``x * 1.0``, ``maximum(x, x)`` and bits that become a half again."""
    if "half" not in ir or "itofp i32" not in ir and "itofp i64" not in ir:
        return ir
    rounded: set[str] = set()
    for result, operation in _RESULT.findall(ir):
        passed_on = not rounded.isdisjoint(_OPERAND.findall(operation)) and not _FORGETS.match(operation)
        if passed_on or _ROUNDING.match(operation):
            rounded.add(result)
    return _WIDENED_HALF.sub(lambda widening: _convert(widening) if widening[3] in rounded else widening[0], ir)


def _convert(widening: re.Match[str]) -> str:
    space, result, x, wide, rest = widening.groups()
    bits = f"%of.{result[1:]}"  # a number, as LLVM writes them, begins no name
    kind, constraint = ("f64", "d") if wide == "double" else ("f32", "f")
    return (f"{space}{bits} = bitcast half {x} to i16{rest}\n"
            f'{space}{result} = call {wide} asm "cvt.{kind}.f16 $0, $1;", "={constraint},h"(i16 {bits}){rest}')


_SIGN_TO_BFLOAT = re.compile(r"\bsitofp i1 (\S+) to bfloat\b")
_SIGNS_TO_BFLOATS = re.compile(r"\bsitofp <(\d+) x i1> (\S+) to <\d+ x bfloat>")


def selected_signs(ir: str) -> str:
    """Optimized IR text that makes -1.0 or 0.0 of a signed truth value in bfloat16 by a select.

    The passes shorten ``float(-int(p))`` to ``sitofp i1``, which is -1.0 where `p` holds. For bfloat16 from sm_90 on,
    the backend of LLVM 22 emits ``selp.b32 1, 0`` and ``cvt.rn.bf16.s32`` for it, unless `p` is a comparison: 1.0, a
    wrong number on the H200. It emits -1 for all other types.
    """
    ir = _SIGN_TO_BFLOAT.sub(r"select i1 \1, bfloat 0xRBF80, bfloat 0xR0000", ir)
    return _SIGNS_TO_BFLOATS.sub(
        r"select <\1 x i1> \2, <\1 x bfloat> splat (bfloat 0xRBF80), <\1 x bfloat> zeroinitializer", ir)


def _optimize(module, machine, passes: str, linked: bool) -> None:
    binding, level = _llvm(), PASSES[passes]
    if level is None and not linked:
        return
    options = binding.create_pipeline_tuning_options(speed_level=level or 1)
    options.loop_unrolling = False
    options.loop_interleaving = False
    options.loop_vectorization = False
    builder = binding.create_pass_builder(machine, options)
    if linked:
        manager = binding.create_new_module_pass_manager()
        manager.add_always_inliner_pass()
        manager.add_global_dead_code_eliminate_pass()
        manager.run(module, builder)
    if passes == "short":
        manager = builder.getFunctionPassManager()
        for function in module.functions:
            if not function.is_declaration:
                manager.run(function, builder)
    elif level is not None:
        builder.getModulePassManager().run(module, builder)


def _link(module, functions: list[str], layout: str, context) -> None:
    """Link each libdevice function in with internal linkage, so that it is inlined or dropped."""
    binding = _llvm()
    for name in functions:
        with binding.parse_bitcode(_libdevice.function_bitcode(name, _cut, version()), context) as part:
            part.triple = _TRIPLE
            part.data_layout = layout
            module.link_in(part)
        module.get_function(name).linkage = "internal"


def _cut(library: bytes, name: str) -> bytes:
    """Bitcode of the libdevice function `name` with its callees, which are internal."""
    binding = _llvm()
    machine, layout = _machine("sm_90a")
    with binding.parse_bitcode(library, binding.create_context()) as module:
        module.triple = _TRIPLE
        module.data_layout = layout
        names = {function.name for function in module.functions if not function.is_declaration}
        if name not in names:
            raise ToolchainError(f"libdevice has no function {name}")
        for function in module.functions:
            if not function.is_declaration and function.name != name:
                function.linkage = "internal"
        for variable in module.global_variables:
            if not variable.is_declaration:
                variable.linkage = "internal"
        builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))
        manager = binding.create_new_module_pass_manager()
        manager.add_always_inliner_pass()
        manager.add_global_dead_code_eliminate_pass()
        manager.run(module, builder)
        return module.as_bitcode()


def machine_code(ir: str, name: str) -> bytes:
    """Position-independent machine code of the function `name` for this host.

    The text may define this function only, and refer to nothing by name: no globals, no calls except through
    pointers, no floating-point constants. Raises ToolchainError if the code would need relocation."""
    binding = _llvm()
    machine = _host_machine()
    with _parse(ir, binding.create_context(), binding.get_process_triple(), str(machine.target_data)) as module:
        _verify(module)
        return _text_section(machine.emit_object(module), name)


def _text_section(elf: bytes, name: str) -> bytes:
    """The bytes of the function `name` from a relocatable 64-bit ELF file: its .text section, which must not need
    relocation."""
    if elf[:5] != b"\x7fELF\x02" or sys.byteorder != "little":
        raise ToolchainError("native code is made for little-endian 64-bit ELF hosts only")
    table, = struct.unpack_from("<Q", elf, 40)
    size, count, names_at = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + size * i) for i in range(count)]

    def title(section) -> bytes:
        start = sections[names_at][4] + section[0]
        return elf[start: elf.index(b"\0", start)]

    for section in sections:
        relocates_text = section[1] in (4, 9) and title(sections[section[7]]).startswith(b".text")
        if relocates_text and section[5]:
            raise ToolchainError(f"the machine code of {name} needs relocation")
    text = next(section for section in sections if title(section) == b".text")
    return elf[text[4]: text[4] + text[5]]


def compile_native(ir: str, name: str) -> int:
    """The address of the function `name`, compiled for this host; `machine_code` says what the text may contain."""
    return executable.load(machine_code(ir, name))
