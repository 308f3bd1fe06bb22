"""Loops that threads leave at different trips: by a function for each thread as by NumPy, in results and reports."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import tilejit as tile
from tilejit.dtypes import dtype_of
from tilejit.ir.graph import Call, Value
from tilejit.ops.language.math import FUNCTIONS, isnan
from tilejit.ops.tiles import elementwise as ops
from tilejit.ops.tiles.casts import bitcast, cast
from tilejit.ops.tiles.division import floordiv, mod
from tilejit.sim import compile_loops, thread_loops
from tilejit.sim.thread_arithmetic import NAMES, TYPES, lines_of
from tilejit.types import Scalar

FLOATS = (0.0, -0.0, 1.0, -1.5, 2.5, 3e38, -3e9, 1e-45, np.inf, -np.inf, np.nan, -np.nan)
COMPARES = (ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge)
ONE = (ops.neg, ops.abs_, ops.bit_not, isnan, *(FUNCTIONS[n][0] for n in ("sqrt", "floor", "ceil", "trunc", "round")))
TWO = (ops.add, ops.sub, ops.mul, ops.div, ops.maximum, ops.minimum, ops.bit_and, ops.bit_or, ops.bit_xor, ops.shl,
       ops.shr, floordiv, mod, *COMPARES)


def samples(dtype):
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return np.array(FLOATS, np.float64).astype(dtype.np)
    info = np.iinfo(dtype.np)
    small = [-1, -7, -33] if dtype.kind == "int" else []
    return np.array([info.min, info.max, 0, 1, 2, 3, 7, 31, 64, *small], dtype.np)


def by_lines(lines, made, args):
    names = {**NAMES, **{f"x{i}": x for i, x in enumerate(args)}}
    exec("\n".join(lines), names)
    return made.np.type(names["r"])


def assert_bits(call, made, *arrays):
    lines = lines_of(call, "r", [f"x{i}" for i in range(len(arrays))])
    if lines is None:
        return False
    with np.errstate(all="ignore"):
        expected = np.asarray(call.op.rules.simulate(SimpleNamespace(), call, *(a.reshape(1, -1) for a in arrays)))[0]
        found = np.array([by_lines(lines, made, args) for args in zip(*arrays)])
    assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes(), (call.op, made)
    return True


@pytest.mark.parametrize("name", TYPES)
def test_the_lines_of_an_operation_have_the_bits_of_its_rule(name):
    dtype = dtype_of(name)
    def value(t):
        return Value("x", Scalar(t, 0))
    def call(op, made, *types, **attrs):
        return Call(op, tuple(map(value, types)), attrs, (value(made),), None)
    x = samples(dtype)
    # of two NaNs, NumPy's sums and products have either
    pairs = np.array([p for p in itertools.product(x, x) if not (p[0] != p[0] and p[1] != p[1])], dtype.np).T.copy()
    covered = 0
    for op in ONE:
        made = tile.bool_ if op is isnan else dtype
        covered += assert_bits(call(op, made, dtype), made, x)
    for op in TWO:
        made = tile.bool_ if op in COMPARES else dtype
        covered += assert_bits(call(op, made, dtype, dtype), made, *pairs)
    for other in TYPES:
        target = dtype_of(other)
        covered += assert_bits(call(cast, target, dtype, dtype=target, exact=None), target, x)
        if "bool" not in (dtype.kind, target.kind) and dtype.bits == target.bits:
            covered += assert_bits(call(bitcast, target, dtype, dtype=target), target, x)
    assert covered >= (19 if dtype.kind == "bool" else 28)


# -- kernels -----------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def collatz(x, out):
    i = tile.program_id(0) * 32 + tile.thread_id()
    n = tile.load(x[i])
    steps = 0
    while n != 1:
        n = tile.where(n % 2 == 0, n // 2, 3 * n + 1)
        steps += 1
    tile.store(out[i], steps)


@tile.jit(num_warps=1)
def escapes(x, out):
    """Trips with branches, and values that swap."""
    i = tile.program_id(0) * 32 + tile.thread_id()
    c = tile.load(x[i]).to(tile.float32) / 40
    a = c * 0
    b = a
    k = 0
    while (k < 30) & (a * a + b * b < 4.0):
        a, b = b, a * b + c
        if k % 3 == 0:
            if a > b:
                a = a - c
            k += 1
        else:
            k += 2
    tile.store(out[i], k + (1000 * a).to(tile.int32))


@tile.jit(num_warps=1)
def counts_down(x, out):
    """Counting loops in a counting loop, down and up, whose bounds differ among threads."""
    i = tile.program_id(0) * 32 + tile.thread_id()
    n = tile.load(x[i]) % 9
    found = i * 0
    for j in range(n, -3, -2):
        found = found * 3 + j
        for k in range(j, 5):
            found = found ^ (k << 3)
    tile.store(out[i], found)


@tile.jit(num_warps=1)
def goes_round(x, out):
    """Some threads leave; the others come back to a state that they have had."""
    i = tile.program_id(0) * 32 + tile.thread_id()
    n = tile.load(x[i])
    while n % 7 != 6:
        n = (n + 14) % 1001
    tile.store(out[i], n)


@tile.jit(num_warps=1)
def overflows(x, out):
    """An index that reaches the end of its dtype, and numbers that wrap."""
    i = tile.program_id(0) * 32 + tile.thread_id()
    top = 2147483647
    n = i * 0
    for k in range(top - tile.load(x[i]) % 5, top, 2):
        n = n * 3 + k
    tile.store(out[i], n)


KERNELS = [collatz, escapes, counts_down, goes_round, overflows]


def reports(kernel, monkeypatch, way, **options):
    """The array and the report of a kernel whose loops run by functions, or by NumPy (`way` None)."""
    monkeypatch.setattr(thread_loops, "compiled", lambda loop, seconds: way and way(loop))
    x = np.random.default_rng(0).integers(1, 60, 96).astype(np.int32)
    out = np.zeros_like(x)
    report = kernel.simulate((3,), x, out, **options)
    return out.tolist(), [str(f) for f in report.findings], report.stats


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_loop_by_a_function_has_the_results_and_the_report_of_numpy(kernel, seed, monkeypatch):
    ran = []
    def plainly(loop):
        ran.append(loop)
        return loop
    expected = reports(kernel, monkeypatch, None, seed=seed)
    found = reports(kernel, monkeypatch, plainly, seed=seed)
    assert ran and found[:2] == expected[:2]
    assert bool(found[1]) == (kernel is goes_round)  # the deadlock
    if not found[1]:
        assert found[2] == expected[2]


def test_a_limit_of_steps_holds_for_loops_by_a_function(monkeypatch):
    expected = reports(collatz, monkeypatch, None, max_steps=150)
    assert reports(collatz, monkeypatch, lambda loop: loop, max_steps=150)[1] == expected[1] != []


def test_the_compiled_functions_have_the_results_of_numpy(monkeypatch, tmp_path):
    pytest.importorskip("numba")
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    for kernel in (escapes, counts_down):
        expected = reports(kernel, monkeypatch, None)
        assert reports(kernel, monkeypatch, compile_loops._compile) == expected
