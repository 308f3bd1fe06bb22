"""LLVM IR to PTX to a cubin, for every target."""

import gc
import re
import subprocess
import sys
import textwrap

import pytest
import tilejit as tile
from tilejit.errors import ToolchainError
from tilejit.toolchain import assembler, disassembler, libdevice, llvm
from tilejit.toolchain.intrinsics import TARGETS

from tests.mma.pipelined_product import product

DOUBLE = """
define ptx_kernel void @twice(ptr addrspace(1) noalias %x, ptr addrspace(1) noalias %y, i32 %n) #0 {
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %first = mul i32 %block, 128
  %index = add i32 %first, %thread
  %inside = icmp slt i32 %index, %n
  br i1 %inside, label %work, label %done
work:
  %wide = sext i32 %index to i64
  %from = getelementptr float, ptr addrspace(1) %x, i64 %wide
  %to = getelementptr float, ptr addrspace(1) %y, i64 %wide
  %value = load float, ptr addrspace(1) %from
  %double = fmul float %value, 2.0
  store float %double, ptr addrspace(1) %to
  br label %done
done:
  ret void
}
attributes #0 = { convergent nounwind "nvvm.maxntid"="128,1,1" }
"""

LOCATED = """
define ptx_kernel void @k(ptr addrspace(1) %x) #0 !dbg !3 {
  %v = load float, ptr addrspace(1) %x, !dbg !6
  STATEMENT, !dbg !7
  store float %v, ptr addrspace(1) %x, !dbg !8
  ret void, !dbg !8
}
attributes #0 = { convergent nounwind }
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2}
!0 = distinct !DICompileUnit(language: DW_LANG_Python, file: !1, isOptimized: true, runtimeVersion: 0, emissionKind: DebugDirectivesOnly)
!1 = !DIFile(filename: "kernel.py", directory: "FOLDER")
!2 = !{i32 2, !"Debug Info Version", i32 3}
!3 = distinct !DISubprogram(name: "k", file: !1, line: 1, type: !4, scopeLine: 1, unit: !0)
!4 = !DISubroutineType(types: !5)
!5 = !{}
!6 = !DILocation(line: 2, column: 5, scope: !3)
!7 = !DILocation(line: 3, column: 5, scope: !3)
!8 = !DILocation(line: 4, column: 5, scope: !3)
"""


def kernel(body, declarations=""):
    return f"{declarations}\ndefine ptx_kernel void @k(ptr addrspace(1) %p) {{\n{body}\nret void\n}}\n"


@pytest.mark.all_cases
@pytest.mark.parametrize("passes", llvm.PASSES)
@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_becomes_a_cubin_for_every_target(target, passes):
    result = assembler.assemble(llvm.to_ptx(DOUBLE, target, passes=passes), target)
    assert result.cubin[:4] == b"\x7fELF"
    assert 4 <= result.registers <= 32
    assert (result.spill_bytes, result.stack_bytes, result.shared_bytes, result.barriers) == (0, 0, 0, 0)
    assert result.notes == ()


def test_the_ptx_names_the_target_and_version_8_8():
    ptx = llvm.to_ptx(DOUBLE, "sm_103a")
    assert ".version 8.8" in ptx and ".target sm_103a" in ptx and ".maxntid 128, 1, 1" in ptx


def test_the_light_pipeline_hoists_loop_invariants():
    loop = """
define ptx_kernel void @k(ptr addrspace(1) noalias %p, i32 %n, i32 %d) {
entry:
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %next, %head ]
  %invariant = udiv i32 %n, %d
  %where = sext i32 %i to i64
  %at = getelementptr i32, ptr addrspace(1) %p, i64 %where
  store i32 %invariant, ptr addrspace(1) %at
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %n
  br i1 %more, label %head, label %done
done:
  ret void
}
"""
    for passes in ("short", "light"):
        ptx = llvm.to_ptx(loop, "sm_90a", passes=passes)
        assert ptx.index("div.u32") < ptx.index("$L__BB0_1")
        assert ptx.count("st.global") == 1  # and the loop is not unrolled


def test_constant_trip_counts_are_not_unrolled_by_any_pipeline():
    loop = """
define ptx_kernel void @k(ptr addrspace(1) %p) {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %head ]
  %at = getelementptr i64, ptr addrspace(1) %p, i64 %i
  store volatile i64 %i, ptr addrspace(1) %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 4
  br i1 %more, label %head, label %done
done:
  ret void
}
"""
    for passes in llvm.PASSES:
        assert llvm.to_ptx(loop, "sm_90a", passes=passes).count("st.volatile") == 1


def test_the_passes_over_one_function_produce_as_much_code_for_a_product_as_o1():
    """The compiler uses the former. The sizes of their PTX differ by at most 2 %."""
    square = tile.ArraySpec((4096, 4096), "bfloat16")
    made = product.compile(square, square, square, target="sm_90a")
    instructions = lambda ptx: len(re.findall(r"^\t(?!\.)[^/].*;$", ptx, re.MULTILINE))
    short, light = (instructions(llvm.to_ptx(made.llvm_ir, "sm_90a", passes=passes)) for passes in ("short", "light"))
    assert instructions(made.ptx) == short and abs(short - light) <= light / 50


@tile.jit
def scored(x, y, z):
    for i in range(0, x.shape[0], 16):
        scores = tile.dot(tile.load(x[i:i + 16, 0:64]), tile.load(y[0:32, 0:64]), trans_b=True)
        tile.store(z[i:i + 16], tile.max(scores, axis=1) / tile.sum(tile.exp(scores, fast=True), axis=1))


@pytest.mark.parametrize("passes", list(llvm.PASSES))
def test_the_optimised_module_of_one_target_gives_the_same_ptx_for_every_target(passes):
    """Tests reuse optimised modules between targets. (Except with libdevice, whose functions may depend on the target.)"""
    square = tile.ArraySpec((70, 64), "float16")
    for text in (DOUBLE, scored.compile(square, square, tile.ArraySpec((70,), "float32"), target="sm_80").llvm_ir):
        with llvm.optimize(text, "sm_80", passes, False) as module:
            for target in TARGETS:
                with module.clone() as clone:
                    assert llvm.emit_ptx(clone, target) == llvm.to_ptx(text, target, passes=passes)


def test_no_module_is_left_to_the_garbage_collector():
    """It might end a module after its context, which faults. An error keeps what its traceback names."""
    from llvmlite.binding.module import ModuleRef

    def open_modules():
        return [x for x in gc.get_objects() if type(x) is ModuleRef and not x.closed]  # of a dead proxy, isinstance fails
    before = open_modules()
    llvm.to_ptx(DOUBLE, "sm_90a")
    with pytest.raises(ToolchainError) as caught:
        llvm.to_ptx("define i32 @k(i32 %x) {\n  br label %l\nl:\n  %y = add i32 %z, 1\n  %z = add i32 %y, 1\n  ret i32 %y\n}\n", "sm_90a")
    assert "verifier" in str(caught.value)
    assert all(any(x is y for y in before) for x in open_modules())


def test_accesses_without_an_alignment_get_the_alignment_of_their_type():
    body = "%v = load <4 x float>, ptr addrspace(1) %p\n%w = fneg <4 x float> %v\nstore <4 x float> %w, ptr addrspace(1) %p\n"
    assert "st.global.v4.b32" in llvm.to_ptx(kernel(body), "sm_90a")
    body = "%v = load i64, ptr addrspace(1) %p\n%w = add i64 %v, 1\nstore i64 %w, ptr addrspace(1) %p\n"
    assert "st.global.b64" in llvm.to_ptx(kernel(body), "sm_90a")


def test_a_parse_error_shows_the_line_of_the_ir():
    with pytest.raises(ToolchainError) as caught:
        llvm.to_ptx(DOUBLE.replace("fmul float %value", "fmul floaty %value"), "sm_90a")
    message = str(caught.value)
    assert "line 14" in message and "fmul floaty %value, 2.0" in message and "^" in message


def test_a_module_that_the_verifier_refuses_is_an_error():
    with pytest.raises(ToolchainError, match="dominate|refused"):
        llvm.to_ptx(kernel("br label %b\na:\n%x = add i32 1, 2\nbr label %b\nb:\n%y = add i32 %x, 1"), "sm_90a")


def test_an_unknown_target_or_pipeline_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ToolchainError, match="sm_90a"):
        llvm.to_ptx(DOUBLE, "sm_70")
    with pytest.raises(ToolchainError, match="light"):
        llvm.to_ptx(DOUBLE, "sm_90a", passes="O7")


@pytest.mark.parametrize("function", ["expf", "erff", "sinf", "tanhf", "logf", "powf", "exp", "fmod"])
def test_libdevice_functions_are_inlined(function, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(libdevice, "_memory", {})
    kind = "double" if function in ("exp", "fmod") else "float"
    count = 2 if function in ("powf", "fmod") else 1
    declaration = f"declare {kind} @__nv_{function}({', '.join([kind] * count)})"
    body = (f"%x = load {kind}, ptr addrspace(1) %p\n"
            f"%y = call {kind} @__nv_{function}({', '.join([f'{kind} %x'] * count)})\n"
            f"store {kind} %y, ptr addrspace(1) %p")
    for passes in ("none", "short", "light"):
        ptx = llvm.to_ptx(kernel(body, declaration), "sm_90a", passes=passes, libdevice=True)
        assert "call" not in ptx and ".func" not in ptx and "reflect" not in ptx
    assembler.assemble(ptx, "sm_90a")
    assert list(tmp_path.rglob(f"*__nv_{function}"))


def test_libdevice_bitcode_damaged_on_disk_is_extracted_again(tmp_path, monkeypatch):
    from tilejit.toolchain import libdevice

    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    libdevice._memory.clear()
    text = kernel("%x = load float, ptr addrspace(1) %p\n%y = call float @__nv_cbrtf(float %x)\n"
                  "store float %y, ptr addrspace(1) %p", "declare float @__nv_cbrtf(float)")
    first = llvm.to_ptx(text, "sm_90a", libdevice=True)
    stored, = tmp_path.rglob("*__nv_cbrtf")
    stored.write_bytes(stored.read_bytes()[:-20])
    libdevice._memory.clear()
    assert llvm.to_ptx(text, "sm_90a", libdevice=True) == first


def test_a_missing_libdevice_function_is_named():
    text = kernel("call void @__nv_nothing()", "declare void @__nv_nothing()")
    with pytest.raises(ToolchainError, match="__nv_nothing"):
        llvm.to_ptx(text, "sm_90a", libdevice=True)
    with pytest.raises(ToolchainError, match="libdevice=True"):
        llvm.to_ptx(text, "sm_90a")


def source_lines(listing: str) -> list[tuple[str, int]]:
    """The (file, line) pairs in a listing."""
    return [(match[1], int(match[2])) for match in re.finditer(r'//## File "([^"]*)", line (\d+)', listing)]


def test_line_tables_of_the_cubin_refer_to_the_python_file():
    text = LOCATED.replace("FOLDER", "/home/me").replace("STATEMENT", "call void asm sideeffect \"bar.sync 0;\", \"\"()")
    cubin = assembler.assemble(llvm.to_ptx(text, "sm_90a"), "sm_90a").cubin
    listing = disassembler.sass(cubin)
    assert "LDG" in listing and "EXIT" in listing
    assert {("/home/me/kernel.py", line) for line in (2, 3, 4)} <= set(source_lines(listing))
    assert source_lines(disassembler.sass(cubin, lines=False)) == []


def test_an_error_of_the_assembler_shows_the_ptx_line_and_the_python_line(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("def k(x):\n    v = load(x)\n    tile.asm('bar.snyc 0;')\n    store(x, v)\n")
    text = LOCATED.replace("FOLDER", str(tmp_path)).replace("STATEMENT", "call void asm sideeffect \"bar.snyc 0;\", \"\"()")
    with pytest.raises(ToolchainError) as caught:
        assembler.assemble(llvm.to_ptx(text, "sm_90a"), "sm_90a")
    message = str(caught.value)
    assert "bar.snyc 0;" in message and "Unknown modifier" in message
    assert caught.value.loc.line == 3 and "tile.asm('bar.snyc 0;')" in message


def test_importing_the_toolchain_loads_neither_llvm_nor_a_driver():
    code = """
        import sys
        import tilejit
        from tilejit.toolchain import assembler, disassembler, executable, files, libdevice, llvm, screen
        assembler.fingerprint(); llvm.version()
        print([name for name in ("llvmlite", "cuda") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_compiling_does_not_load_the_masked_arrays_of_numpy():
    """They take 6 ms to import, a sixth of the first compile of a small kernel. Some of NumPy's functions import them."""
    program = """
        import sys
        import numpy  # before 2.0 it loads them itself
        before = set(sys.modules)
        import tilejit as tile
        from tilejit.demo import softmax, vector_add
        vector_add.compile(*[tile.ArraySpec((4096,), "float32")] * 3, BLOCK=1024)
        softmax.compile(*[tile.ArraySpec((64, 1000), "float32")] * 2, BLOCK=1024)
        print("numpy.ma" in set(sys.modules) - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
