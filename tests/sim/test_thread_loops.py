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


def calls_on(dtype):
    """The calls on operands of a dtype, with the number of these."""
    def value(t):
        return Value("x", Scalar(t, 0))
    def call(op, made, count, **attrs):
        return Call(op, (value(dtype),) * count, attrs, (value(made),), None)
    for op in ONE:
        yield call(op, tile.bool_ if op is isnan else dtype, 1)
    for op in TWO:
        yield call(op, tile.bool_ if op in COMPARES else dtype, 2)
    for target in map(dtype_of, TYPES):
        yield call(cast, target, 1, dtype=target, exact=None)
        if "bool" not in (dtype.kind, target.kind) and dtype.bits == target.bits:
            yield call(bitcast, target, 1, dtype=target)


def pairs_of(dtype):
    """Pairs of operands, but not two NaNs: of these, NumPy's sums and products have either."""
    pairs = itertools.product(samples(dtype), repeat=2)
    return np.array([p for p in pairs if not (p[0] != p[0] and p[1] != p[1])], dtype.np).T.copy()


def by_rule(call, arrays):
    with np.errstate(all="ignore"):
        operands = [a.reshape(1, -1) for a in arrays[:len(call.args)]]
        return np.asarray(call.op.rules.simulate(SimpleNamespace(), call, *operands))[0]


@pytest.mark.parametrize("name", TYPES)
def test_the_lines_of_an_operation_have_the_bits_of_its_rule(name):
    dtype, covered = dtype_of(name), 0
    pairs = pairs_of(dtype)
    for call in calls_on(dtype):
        lines = lines_of(call, "r", ["x0", "x1"][:len(call.args)])
        if lines is None:
            continue
        covered += 1
        code, found = compile("\n".join(lines), "lines", "exec"), np.empty(pairs.shape[1], call.result.type.dtype.np)
        with np.errstate(all="ignore"):
            for i, (x0, x1) in enumerate(pairs.T):
                names = {**NAMES, "x0": x0, "x1": x1}
                exec(code, names)
                found[i] = names["r"]
        assert found.tobytes() == by_rule(call, pairs).tobytes(), (call.op, call.result.type)
    assert covered >= (19 if dtype.kind == "bool" else 34)


@pytest.mark.parametrize("name", ["uint64", "float32"])
def test_the_compiled_lines_have_the_bits_of_the_rules(name):
    pytest.importorskip("numba")
    pairs = pairs_of(dtype_of(name))
    calls = {f"o{k}": c for k, c in enumerate(calls_on(dtype_of(name))) if lines_of(c, "r", ["a", "b"]) is not None}
    found = {key: np.empty(pairs.shape[1], c.result.type.dtype.np) for key, c in calls.items()}
    text = [f"def loop(x, y, {', '.join(found)}):", "    for i in range(x.size):", "        a, b = x[i], y[i]"]
    for key, call in calls.items():
        lines = lines_of(call, f"r{key}", ["a", "b"][:len(call.args)])
        text += [f"        {line}" for line in [*lines, f"{key}[i] = r{key}"]]
    run = compile_loops._compile(compile_loops.function_of("\n".join(text), tuple(NAMES.items())))
    run(*pairs, *found.values())
    for key, call in calls.items():
        assert found[key].tobytes() == by_rule(call, pairs).tobytes(), (call.op, call.result.type)


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
