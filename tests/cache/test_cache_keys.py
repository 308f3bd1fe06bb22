"""The cache key covers everything that determines a kernel's code, and nothing else."""

import os
import shutil

import pytest
import tilejit as tile
from cache_bench import SCALE, specs
from tilejit import manifest
from tilejit.toolchain import assembler, installed

COMPILED, KNOWN_CODE, HIT = "lower assemble", "lower", ""


def compile_scale(module, *arrays, **options):
    return module.scale.compile(*(arrays or specs()), **{"N": 128, **options})


def after(bench, text: str, *arrays, **options) -> str:
    """The stages that run for the kernel of `text` after SCALE was compiled."""
    compile_scale(bench.load(SCALE))
    assert bench.stages() == COMPILED
    compile_scale(bench.load(text), *arrays, **options)
    return bench.stages()


def test_the_same_kernel_hits(bench):
    assert after(bench, SCALE) == HIT


@pytest.mark.parametrize("old, new", [
    ("UNRELATED = 1", "RENAMED = 1"), ("UNRELATED = 1", "UNRELATED = 2"), ("return 1", "return 22"), ("def other", "def another"),
])
def test_changes_elsewhere_in_the_file_hit(bench, old, new):
    assert after(bench, SCALE.replace(old, new)) == HIT


@pytest.mark.parametrize("old, new", [
    ("0:N], helper", "0:N], 1 + helper"), ("v * FACTOR", "v + FACTOR"), ("FACTOR = 2.0", "FACTOR = 3.0"), ("FACTOR = 2.0", "FACTOR = 2"),
    ("@tile.jit\ndef scale", "@tile.jit(num_warps=8)\ndef scale"), ("def helper(v):", "def helper(v, w=1.0):"),
])
def test_changes_of_the_kernel_its_helpers_and_captured_values_miss(bench, old, new):
    assert old in SCALE and after(bench, SCALE.replace(old, new)) != HIT


def test_a_kernel_moved_to_another_line_is_compiled_again_with_its_new_line_numbers(bench):
    assert after(bench, "\n\n" + SCALE) == COMPILED


@pytest.mark.parametrize("arrays", [specs(rows=7), specs(256), specs(1024, 3)])
def test_other_sizes_with_the_same_facts_hit(bench, arrays):
    assert after(bench, SCALE, *arrays) == HIT


@pytest.mark.parametrize("arrays, options", [
    (specs(130), {}), (specs(dtype="float16"), {}), (specs(), {"N": 64}), (specs(), {"num_warps": 8}), (specs(), {"target": "sm_80"}),
    (specs(), {"spills": 0}), (specs(), {"fast_math": True}), (specs(), {"persistent": False}), (specs(), {"jitter": 0}),
])
def test_other_facts_dtypes_constants_options_and_targets_miss(bench, arrays, options):
    assert after(bench, SCALE, *arrays, **options) != HIT


def test_versions_of_one_signature_are_cached_side_by_side(bench):
    for columns in (512, 511, 512, 511):  # vectors of four, single elements
        compile_scale(bench.load(), *specs(columns), N=512)
    assert bench.stages() == f"{COMPILED} {COMPILED}"


def test_a_constant_that_does_not_change_the_graph_finds_the_same_code(bench):
    text = SCALE.replace("helper(tile", "tile.load(x[i, 0:N]) if FACTOR > 0 else helper(tile")
    compile_scale(bench.load(text))
    assert bench.stages() == COMPILED
    again = compile_scale(bench.load(text.replace("FACTOR = 2.0", "FACTOR = 5.0")))
    assert bench.stages() == KNOWN_CODE and "cache" in again.compile_time and "llvm" not in again.compile_time


def test_another_toolchain_version_misses(bench, monkeypatch):
    compile_scale(bench.load())
    monkeypatch.setattr(manifest, "tools", lambda: "llvmlite 0.0, nvidia-cuda-nvcc 0.0")
    compile_scale(bench.load())
    assert bench.stages() == f"{COMPILED} {COMPILED}"


def test_another_assembler_counts_as_another_toolchain(tmp_path, monkeypatch):
    usual = installed.tools()
    path = assembler.find().path
    if not path:
        pytest.skip("no ptxas here")
    copy = tmp_path / "ptxas"
    shutil.copy(path, copy)
    monkeypatch.setenv("TILEJIT_PTXAS", str(copy))
    other = installed.tools()
    os.utime(copy, (1e9, 1e9))
    assert len({usual, other, installed.tools()}) == 3


def test_another_version_of_the_package_misses(bench, monkeypatch):
    compile_scale(bench.load())
    monkeypatch.setattr(manifest, "package", lambda: "0.0.0")
    compile_scale(bench.load())
    assert bench.stages() == f"{COMPILED} {COMPILED}"


# -- captured values -----------------------------------------------------------------------------------------------------

def check_change(bench, text: str, old: str, new: str, **options) -> None:
    """The same text hits; it misses once `old` is replaced."""
    for source, stages in ((text, COMPILED), (text, HIT), (text.replace(old, new), None)):
        bench.load(source).kernel.compile(tile.ArraySpec((8,), "float32"), **options)
        ran = bench.stages()
        assert ran == stages if stages is not None else ran != HIT


HEAD = "import dataclasses, enum, typing\nimport tilejit as tile\n"
KERNEL = "\n@tile.jit\ndef kernel(y):\n    tile.store(y[0], tile.float32(VALUE))\n"


def test_changes_of_a_closure_miss(bench):
    text = HEAD + "def make(n):\n    @tile.jit\n    def kernel(y):\n        tile.store(y[0], tile.float32(n))\n    return kernel\nkernel = make(3)\n"
    check_change(bench, text, "make(3)", "make(4)")


def test_changes_of_the_closure_of_a_helper_with_unchanged_text_miss(bench):
    text = HEAD + ("def make(n):\n    @tile.jit\n    def h(v):\n        return v * n\n    return h\nh = make(3.0)\n"
                   "\n@tile.jit\ndef kernel(y):\n    tile.store(y[0], h(tile.load(y[0])))\n")
    check_change(bench, text, "make(3.0)", "make(4.0)")


def test_changes_of_a_helper_in_a_tuple_and_its_captured_values_miss(bench):
    text = HEAD + ("K = 5.0\n@tile.jit\ndef h(v):\n    return v * K\nHELPERS = (1, h)\n"
                   "\n@tile.jit\ndef kernel(y):\n    tile.store(y[0], HELPERS[1](tile.load(y[0])))\n")
    check_change(bench, text, "K = 5.0", "K = 6.0")


def test_changes_of_a_helper_passed_as_a_constant_and_its_captured_values_miss(bench):
    text = HEAD + ("K = 5.0\n@tile.jit\ndef h(v):\n    return v * K\n"
                   "\n@tile.jit\ndef kernel(y, f: tile.constexpr = h):\n    tile.store(y[0], f(tile.load(y[0])))\n")
    check_change(bench, text, "K = 5.0", "K = 6.0")


def test_changes_of_a_helper_s_default_argument_miss(bench):
    text = HEAD + ("K = 5.0\n@tile.jit\ndef h(v, k=K):\n    return v * k\n"
                   "\n@tile.jit\ndef kernel(y):\n    tile.store(y[0], h(tile.load(y[0])))\n")
    check_change(bench, text, "K = 5.0", "K = 6.0")


def test_changes_of_a_property_read_by_a_helper_miss(bench):
    text = HEAD + ("@dataclasses.dataclass(frozen=True)\nclass Config:\n    n: int\n    @property\n    def twice(self):\n        return self.n * 2\n"
                   "CONFIG = Config(3)\n@tile.jit\ndef h(c):\n    return c.twice\n"
                   "\n@tile.jit\ndef kernel(y):\n    tile.store(y[0], tile.float32(h(CONFIG)))\n")
    check_change(bench, text, "self.n * 2", "self.n * 3")


def test_changes_of_an_enumeration_member_miss(bench):
    check_change(bench, HEAD + "class Mode(enum.IntEnum):\n    A = 1\n    B = 2\nVALUE = Mode.B\n" + KERNEL, "B = 2", "B = 3")


def test_a_module_under_a_local_name_is_refused(bench, monkeypatch):
    import sys
    import types
    monkeypatch.setitem(sys.modules, "knobs_of_the_test", types.ModuleType("knobs_of_the_test"))
    sys.modules["knobs_of_the_test"].N = 3
    text = HEAD + "import knobs_of_the_test\n\n@tile.jit\ndef kernel(y):\n    k = knobs_of_the_test\n    tile.store(y[0], tile.float32(k.N))\n"
    with pytest.raises(tile.CompilationError, match="write knobs_of_the_test.N"):
        bench.load(text).kernel.compile(tile.ArraySpec((8,), "float32"))


def test_the_sign_of_a_captured_zero_is_part_of_the_key(bench):
    text = HEAD + "\n@tile.jit\ndef kernel(y, C: tile.constexpr):\n    tile.store(y[0], 1.0 / C if C else tile.float32(C))\n"
    kernel = bench.load(text).kernel
    array = tile.ArraySpec((8,), "float32")
    assert kernel.compile(array, C=0.0).llvm_ir != kernel.compile(array, C=-0.0).llvm_ir


def test_a_helper_replaced_in_memory_by_one_with_the_same_text_is_compiled_again(bench):
    text = HEAD + ("def make(n):\n    @tile.jit\n    def h(v):\n        return v * n\n    return h\nh = make(3.0)\n"
                   "\n@tile.jit\ndef kernel(y):\n    tile.store(y[0], h(tile.load(y[0])))\n")
    module = bench.load(text)
    array = tile.ArraySpec((8,), "float32")
    before = module.kernel.compile(array)
    module.h = module.make(4.0)
    assert module.kernel.compile(array).graph != before.graph


def test_a_notebook_cell_hits_in_the_next_kernel_process(bench, monkeypatch):
    """The file names of cells contain the process number, and no such files exist."""
    from tilejit.frontend import Source
    from tilejit.frontend.captures import identity
    text = "def kernel(y):\n    pass\n"
    one, other, cell = (Source.from_text(text, {}, file) for file in ("/tmp/ipykernel_1/2.py", "/tmp/ipykernel_9/2.py", "/tmp/ipykernel_1/3.py"))
    assert identity(one) == identity(other) != identity(cell)
