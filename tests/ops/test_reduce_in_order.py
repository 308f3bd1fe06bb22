"""Reductions and scans by functions that are associative but do not commute keep the order of the elements."""

from typing import NamedTuple

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.dtypes import int32
from tilejit.ir.graph import Call
from tilejit.layout import thread_table
from tilejit.ops.reduce.combine import Combine
from tilejit.ops.reduce.reduce import reduce_
from tilejit.ops.reduce.reduce_in_order import InOrder, scratch_in_order
from tilejit.types import Tile

from tests.gpu import in_child, needs_gpu
from tests.ops.test_reduce_plan import in_threads, planned, tiles


@tile.jit
def after(f, g):
    """The map ``x -> g(f(x))`` of two maps ``x -> a * x + b`` modulo 2**32, each given as (a, b)."""
    return f[0] * g[0], f[1] * g[0] + g[1]


@tile.jit
def after_narrow(f, g):
    return tile.int8(f[0] * g[0]), tile.int8(f[1] * g[0] + g[1])


@tile.jit
def after_or_none(f, g):
    """The same with a branch: a map with a = 0 counts as no map."""
    if f[0] == 0:
        return g[0], g[1]
    if g[0] == 0:
        return f[0], f[1]
    return f[0] * g[0], f[1] * g[0] + g[1]


class Map(NamedTuple):
    """The map ``x -> a * x + b``."""

    a: object
    b: object


@tile.jit
def composed(f, g):
    return Map(f.a * g.a, f.b * g.a + g.b)


@tile.jit
def last_not_zero(f, g):
    return tile.where(g == 0, f, g)


def reducer(combine, rank: int, commutative: bool = False):
    if rank == 1:
        @tile.jit
        def kernel(A, B, out, AXIS: tile.constexpr, S: tile.constexpr):
            a, b = tile.reduce((tile.load(A[0:S[0]]), tile.load(B[0:S[0]])), AXIS, combine, commutative=commutative)
            tile.store(out[0], a)
            tile.store(out[1], b)
    else:
        @tile.jit
        def kernel(A, B, out, AXIS: tile.constexpr, S: tile.constexpr):
            x = tile.load(A[0:S[0], 0:S[1], 0:S[2]]), tile.load(B[0:S[0], 0:S[1], 0:S[2]])
            a, b = tile.reduce(x, AXIS, combine, keepdims=True)
            R = tuple(a.shape)
            tile.store(out[0, 0:R[0], 0:R[1], 0:R[2]], a)
            tile.store(out[1, 0:R[0], 0:R[1], 0:R[2]], b)
    return kernel


def composition(a: np.ndarray, b: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The reduction in row-major order, one element after another, with kept dimensions."""
    kept = [d for d in range(a.ndim) if d not in axes]
    a, b = (np.transpose(x, (*axes, *kept)).reshape(-1, *(x.shape[d] for d in kept)) for x in (a, b))
    first, second = np.ones(a.shape[1:], a.dtype), np.zeros(a.shape[1:], a.dtype)
    with np.errstate(over="ignore"):
        for x, y in zip(a, b):
            first, second = first * x, second * x + y
    return np.stack([first, second])


def maps(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Odd factors, so that nothing is lost."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype) | np.array(1, dtype), rng.integers(info.min, info.max, shape, dtype)


CASES = [((1,), 0, 1), ((33,), 0, 1), ((100,), 0, 4), ((1000,), 0, 4), ((4096,), 0, 3), ((4096,), None, 8),
         ((1, 40, 8), 1, 1), ((1, 40, 8), 1, 2), ((1, 40, 8), 1, 8), ((1, 64, 128), 1, 4), ((1, 64, 128), 2, 4), ((1, 37, 48), (1, 2), 4),
         ((1, 130, 24), 1, 2), ((5, 33, 16), (0, 2), 8), ((5, 33, 16), (0, 1), 3), ((16, 8, 32), None, 6)]


def check_order(dtype: str, backend: str | None = None) -> None:
    kernels = {rank: reducer(after_narrow if dtype == "int8" else after, rank) for rank in (1, 3)}
    for shape, axis, num_warps in CASES:
        a, b = maps(shape, dtype, num_warps)
        axes = tuple(range(a.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        want = composition(a, b, axes)
        out = np.zeros((2, *(1 if d in axes else n for d, n in enumerate(shape))), dtype)
        out = out.reshape(2) if len(shape) == 1 else out
        kernels[len(shape)][1,](a, b, out, AXIS=axis, S=shape, num_warps=num_warps, backend=backend)
        np.testing.assert_array_equal(out.reshape(want.shape), want, err_msg=f"{shape} along {axis}, {num_warps} warps")


@pytest.mark.parametrize("dtype", ["int32", "uint64", "int8"])
def test_elements_are_combined_in_row_major_order(dtype):
    check_order(dtype)


def test_a_commutative_function_may_be_freed_of_the_order():
    """The butterfly then goes over the lanes in the order of their bits, and the registers are joined by halves before it."""
    a, b = maps((1024,), "int32", 0)
    b[:], out = 0, np.zeros(2, np.int32)
    reducer(after, 1, True)[1,](a, b, out, AXIS=0, S=a.shape)
    assert out.tolist() == [np.multiply.reduce(a, dtype=np.int32), 0]
    spec = tile.ArraySpec((1024,), "int32")
    shuffles = [reducer(after, 1, free).compile(spec, spec, spec, AXIS=0, S=(1024,)).ptx.count("shfl.sync.bfly") for free in (True, False)]
    assert shuffles == [10, 20]  # of two values: once a thread, and once for each of the two blocks of 512 elements


@pytest.mark.parametrize("num_warps", [1, 4])
def test_order_is_kept_past_padding_by_named_tuples_branches_and_known_choices(num_warps):
    @tile.jit
    def kernel(A, B, out, N: tile.constexpr):
        a, b = tile.load(A[0:N]), tile.load(B[0:N])
        whole = tile.reduce(Map(a, b), 0, composed)
        tile.store(out[0], whole.a)
        tile.store(out[1], whole.b)
        found = tile.reduce((tile.where(a % 3 == 0, a, 0), b), 0, after_or_none)
        tile.store(out[2], found[0])
        tile.store(out[3], found[1])
        tile.store(out[4], tile.reduce(tile.where(b % 5 == 0, b, 0), 0, last_not_zero))

    a, b = maps((531,), "int32", 7)
    out = np.zeros(5, np.int32)
    kernel[1,](a, b, out, N=531, num_warps=num_warps)
    chosen = a % 3 == 0
    want = [*composition(a, b, (0,)), *composition(a[chosen], b[chosen], (0,)), b[b % 5 == 0][-1]]
    assert out.tolist() == want


def test_the_accumulator_of_a_product_is_reduced_in_order():
    @tile.jit
    def kernel(A, out, AXIS: tile.constexpr):
        a = tile.load(A[0:64, 0:64])
        v = tile.cast(tile.dot(a, a), tile.int32)
        x, y = tile.reduce((v * 2 + 1, v), AXIS, after)
        tile.store(out[0, 0:64], x)
        tile.store(out[1, 0:64], y)

    a = np.random.default_rng(0).integers(-2, 3, (64, 64)).astype(np.float16)
    v = (a.astype(int) @ a.astype(int)).astype(np.int32)
    for axis in (0, 1):
        out = np.zeros((2, 64), np.int32)
        kernel[1,](a, out, AXIS=axis)
        np.testing.assert_array_equal(out, composition(v * 2 + 1, v, (axis,)))


def test_a_reverse_scan_starts_at_the_end():
    @tile.jit
    def kernel(A, B, out, REVERSE: tile.constexpr):
        a, b = tile.scan((tile.load(A[0:300]), tile.load(B[0:300])), 0, after, reverse=REVERSE)
        tile.store(out[0, 0:300], a)
        tile.store(out[1, 0:300], b)

    a, b = maps((300,), "int32", 3)
    for reverse in (False, True):
        out = np.zeros((2, 300), np.int32)
        kernel[1,](a, b, out, REVERSE=reverse)
        way = slice(None, None, -1) if reverse else slice(None)
        want = np.stack([composition(a[way][:n], b[way][:n], (0,)) for n in range(1, 301)], 1)
        np.testing.assert_array_equal(out[:, way], want)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_ordered_reductions_assemble_and_exchange_in_bounded_scratch(target):
    spec = tile.ArraySpec((1, 128, 64), "int32")
    compiled = reducer(after, 3).compile(spec, spec, tile.ArraySpec((2, 1, 1, 64), "int32"), AXIS=1, S=(1, 128, 64), target=target, num_warps=8)
    assert compiled.cubin and compiled.shared_bytes <= 16384 + 1024


# -- thread by thread --------------------------------------------------------------------------------------------------

class Held:
    """A value of every thread, as an array over the threads."""

    def __init__(self, array, dtype=int32):
        self.array, self.dtype = np.asarray(array), dtype

    def __mul__(self, n):
        return Held(self.array * n, self.dtype)

    def __add__(self, other):
        return Held(self.array + (other.array if isinstance(other, Held) else other), self.dtype)

    __rmul__, __radd__ = __mul__, __add__


class Affine(Combine):
    """Composition of the maps ``x -> a * x + b`` modulo 2**32."""

    name, identity, in_order = "affine", (1, 0), True

    def simulate(self, m, a, b):
        with np.errstate(over="ignore"):
            return a[0] * b[0], a[1] * b[0] + b[1]

    def emit(self, e, a, b):
        return tuple(map(Held, self.simulate(None, [v.array for v in a], [v.array for v in b])))


class Threads:
    """What a reduction asks of an emitter, executed at once for all threads."""

    def __init__(self, threads: int, nbytes: int):
        self.lane, self.warps, self.memory = np.arange(threads) % 32, np.arange(threads) // 32, np.full(nbytes, -1)
        self.warp = self.sync = self.control = self.tiles = self  # the components

    def memoize_for_region(self, key, make):
        return make()

    def lane_id(self):
        return self.lane

    def digit(self, axis, extent, stride):
        return Held((self.lane if axis == "laneid" else self.warps) // stride % extent)

    def as_test(self, digit):
        return digit.array == 0

    def all_of(self, tests):
        return np.logical_and.reduce([np.ones(self.lane.shape, bool), *tests])

    def shuffle(self, kind, value, by):
        return Held(value.array[self.warps * 32 + (self.lane ^ by if kind == "bfly" else by)])

    def begin_scratch(self, call):
        self.memory[:] = -1

    def scope(self):
        pass

    def scratch_address(self, call, offset):
        return np.broadcast_to(offset.array if isinstance(offset, Held) else offset, self.lane.shape), 0

    def vector_store(self, space, address, offset, dtype, values, writes, cache):
        at = (address + offset)[writes]
        assert len(set(at)) == len(at), "two threads write one place"
        self.memory[at] = values[0].array[writes]

    def vector_load(self, space, address, offset, dtype, values, mask, cache):
        return [Held(self.memory[address + offset + n * dtype.nbytes].astype(np.int32)) for n in range(len(values))]

    def const(self, value, dtype):
        return value


@settings(max_examples=150, deadline=None)
@given(tiles(), st.integers(0, 2**32))
def test_every_thread_combines_in_order_in_any_layout(drawn, seed):
    t, threads, axes = drawn
    t = Tile(int32, t.shape, t.layout, t.domain)
    xs = maps(t.shape, "int32", seed)
    call = planned(t, axes, Affine())
    results = reduce_.rules.simulate(None, Call(reduce_, call.args * 2, call.attrs, call.results * 2, None, call.choice), *(x[None] for x in xs))
    np.testing.assert_array_equal(np.stack([r.reshape(-1) for r in results]), composition(*xs, axes).reshape(2, -1))
    steps, table = call.choice.plan.in_order, thread_table(t.layout, t.domain, threads)
    whole = [np.full(t.domain, identity, np.int32) for identity in Affine.identity]
    for x, padded in zip(xs, whole):
        padded[tuple(slice(n) for n in t.shape)] = x
    items = list(zip(*([Held(column) for column in padded.reshape(-1)[table].T] for padded in whole)))
    threads_run = Threads(threads, scratch_in_order(steps, (int32, int32)))
    totals = InOrder(threads_run, None, t, Affine(), items).run(steps)
    for k, result in enumerate(results):
        want, real = in_threads(result, t, axes, threads)
        for j, group in enumerate(call.choice.plan.registers):
            (block,) = totals.keys() & set(group)
            np.testing.assert_array_equal(totals[block][k].array[real[:, j]], want[real[:, j], j])


@needs_gpu()
@in_child(timeout=300)
def test_a_gpu_keeps_the_order_of_the_elements():
    for dtype in ("int32", "uint64", "int8"):
        check_order(dtype, "cuda")
