"""Every dtype, operator and access compiles without register spills. (That they assemble for every target is checked
after each test; see `tests/every_kernel.py`.)"""

import re
import runpy
import time
from concurrent.futures import ThreadPoolExecutor
from resource import RUSAGE_SELF, getrusage

import control_cases
import memory_cases
import numpy as np
import operator_cases
import pytest
import shape_cases
import tilejit as tile
from language_reference import DTYPES, FLOAT8, FLOATS, INTS
from tilejit.compile import in_one_piece
from tilejit.names import entry_name

from tests.chosen_cases import part


def sample():
    """Cases that together use each dtype with each operator, cast, function, shape change and access."""
    for i, dtype in enumerate(DTYPES):
        yield operator_cases.operators(dtype, dtype)
        yield operator_cases.operators(dtype, DTYPES[(i + 7) % len(DTYPES)], "scalar")
        yield operator_cases.casts(dtype, ("tile", "scalar")[i % 2])
        yield operator_cases.selections(dtype, dtype)
    for dtype in INTS[::3]:
        yield operator_cases.divisions_by_zero(dtype)
    for i, dtype in enumerate(FLOATS):
        yield operator_cases.function_case(dtype)
        yield operator_cases.fused(dtype)
    yield from list(shape_cases.shape_cases())[::5]
    yield from list(memory_cases.memory_cases(few=True))[::3]
    yield from list(control_cases.control_cases())[::7]


def test_registers_are_not_spilled():
    def spills(case) -> int:
        return case.compile("sm_90a").spills

    chosen = part(sample(), 2)
    with ThreadPoolExecutor(2) as pool:
        spilled = {case.name: count for case, count in zip(chosen, pool.map(spills, chosen)) if count}
    assert not spilled


@pytest.mark.parametrize("dtype", FLOAT8)
def test_casts_to_float8_are_arithmetic_before_sm_89_and_one_instruction_from_it_on(dtype):
    for target in ("sm_80", "sm_86", "sm_89", "sm_90a"):
        made = operator_cases.casts("float32", "tile", [dtype]).compile(target)
        assert ("cvt.rn.satfinite.e" in made.ptx) == (target in ("sm_89", "sm_90a"))


def test_the_upper_of_two_packed_bfloat16_is_cast_to_float32_by_one_instruction():
    """The loaded word with its lower half cleared."""
    @tile.jit
    def widened(x, y):
        tile.store(y[0:256], tile.load(x[0:256]))

    ptx = widened.compile(tile.ArraySpec((256,), "bfloat16"), tile.ArraySpec((256,), "float32"), target="sm_90a").ptx
    assert len(re.findall(r"and\.b32\s+%r\d+, %r\d+, -65536", ptx)) == 1 and "shr" not in ptx.partition("ld.global")[2]


@pytest.mark.parametrize("scope", ["elect()", "thread(3)", "warp(1)", "warpgroup(0)"])
def test_the_thread_id_in_a_scope_can_be_used_in_arithmetic(scope):
    """Also in a scope of one thread, where it is 0."""
    kernel = tile.jit(source=f"""
def kernel(y):
    with tile.{scope}:
        t = tile.thread_id(scope="scope")
        if t < 1:
            tile.store(y[t], t + 5)
""")
    y = np.zeros(2, np.int32)
    kernel[1,](y)
    assert y.tolist() == [5, 0]
    kernel.compile(y, target="sm_90a")


@pytest.mark.parametrize("step, place", [("v = v + v + {}", "x[v:v + 4]"), ("v = v * v + v", "x[v:v + 4]"), ("v = v * 3 + {}", "x[v:v + 4]"),
                                         ("v = v + v + {}", "x[v + tile.arange(4)]"), ("v = v + v + {}", "tile.window(x, v * 0, v)[0:4]")])
def test_an_index_that_uses_its_own_earlier_value_many_times_is_analysed_once(step, place):
    """Each step uses the previous value twice; without caching, thirty of them would take minutes."""
    lines = "".join(f"    {step.format(n)}\n" for n in range(30))
    kernel = tile.jit(source=f"def steps(x, v):\n{lines}    tile.store({place}, 1.0)\n")
    begin = time.perf_counter()
    kernel.compile(tile.ArraySpec((64,), "float32"), 1, target="sm_90a")
    assert time.perf_counter() - begin < 20


def test_code_nested_too_deeply_for_a_pass_is_refused():
    lines = "    v = v * v + v\n" * 3000
    kernel = tile.jit(source=f"def deep(x):\n    v = tile.arange(4) * 1.0\n{lines}    tile.store(x[0:4], v)\n")
    with pytest.raises(tile.CompilationError, match="the code nests too deeply to be compiled"):
        kernel.compile(tile.ArraySpec((64,), "float32"), target="sm_90a")


@pytest.mark.parametrize("name", ["_", "smem", "text0", "vprintf", "__nv_expf", "WARP_SZ", "gr\u00f6\u00dfe", "\u540d", "\u03ba", "entry", "add"])
def test_a_kernel_may_have_any_valid_python_name(name):
    """Also names that PTX does not allow, and those of other symbols in its module: shared memory, strings, functions."""
    kernel = tile.jit(source=f"""def {name}(x):
    s = tile.alloc((128,), x.dtype)
    tile.store(s, tile.exp(tile.load(x[0:128])))
    tile.sync()
    with tile.thread(0):
        tile.device_print("x", tile.load(s[0]))
    tile.store(x[0:128], tile.load(s))
""")
    compiled = kernel.compile(tile.ArraySpec((128,), "float32"))
    assert compiled.name == name and re.findall(r"\.entry (\w+)\(", compiled.ptx) == [entry_name(name)] and entry_name(name).isascii()
    assert (entry_name(name) == name) is (name in ("entry", "add"))


def test_a_source_file_may_have_any_name(tmp_path):
    folder = tmp_path / "it's \"a\" f\u00f6lder\\{0} $x %d"
    folder.mkdir()
    (folder / "named.py").write_text("import tilejit as tile\n@tile.jit\ndef kernel(x):\n    tile.store(x[0:32], 1.0)\n")
    assert runpy.run_path(str(folder / "named.py"))["kernel"].compile(tile.ArraySpec((32,), "float32")).cubin


def test_the_python_frames_of_the_compiler_s_recursion_fit_in_one_chunk_of_memory():
    """Otherwise CPython allocates and frees a chunk from the system for each of these calls."""
    def nest(depth: int) -> int:
        return depth and nest(depth - 1)

    @in_one_piece
    def pages() -> int:
        before = getrusage(RUSAGE_SELF).ru_minflt
        for depth in range(0, 400, 2):
            for _ in range(20):
                nest(depth)
        return getrusage(RUSAGE_SELF).ru_minflt - before

    assert pages() < 500
