"""The order of a reduction: the simulator's result is bit for bit that of threads that follow the plan."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tilejit.dispatch import Choice
from tilejit.dtypes import float32, int32
from tilejit.ir.graph import Call, Value
from tilejit.layout import blocked_layout, collapse, drop_dim, mma_fragment, thread_table, wgmma_accumulator
from tilejit.ops.reduce.combine import Known
from tilejit.ops.reduce.reduce import ReducePlan, plan_reduce, reduce_, reduced_shape
from tilejit.types import Scalar, Tile

EXTENTS = st.sampled_from([1, 2, 3, 5, 7, 8, 16, 33, 64, 100])


@st.composite
def tiles(draw):
    """A tile in a blocked layout or a tensor core fragment, its threads, and axes to reduce."""
    kind = draw(st.sampled_from(["blocked", "blocked", "wgmma", "mma"]))
    if kind == "blocked":
        shape = tuple(draw(st.lists(EXTENTS, min_size=1, max_size=3)))
        while np.prod(shape) > 8000:
            shape = shape[1:]
        threads = 32 * draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
        order = draw(st.permutations(range(len(shape))))
        layout, domain = blocked_layout(shape, threads, draw(st.sampled_from([1, 2, 4])), order)
    elif kind == "wgmma":
        shape, threads = (64, draw(st.sampled_from([8, 24, 64]))), 128
        layout, domain = wgmma_accumulator(*shape)
    else:
        shape, threads = draw(st.sampled_from([(32, 32), (30, 20), (16, 64)])), 128
        layout, domain = mma_fragment("m16n8k16", "c", shape, (2, 2))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True).map(sorted).map(tuple))
    return Tile(float32, shape, layout, domain), threads, axes


def planned(t: Tile, axes: tuple[int, ...], combine) -> Call:
    shape = reduced_shape(t.shape, axes, False)
    result = Value("r", Tile(t.dtype, shape) if shape else Scalar(t.dtype))
    choice = Choice("reduce", plan_reduce(t, axes, combine, "sm_90a"))
    return Call(reduce_, (Value("x", t),), {"axes": axes, "keepdims": False, "combine": combine}, (result,), None, choice)


def halves(function, items: list):
    """The tree of halves that the plan describes."""
    while len(items) > 1:
        low, step = len(items) // 2, len(items) - len(items) // 2
        items = [function(items[i], items[i + step]) for i in range(low)] + items[low:step]
    return items[0]


def replayed(x: np.ndarray, t: Tile, threads: int, plan: ReducePlan, function, identity) -> np.ndarray:
    """The reduction executed thread by thread: registers by the thread table, lanes by exclusive or, warps by their digits."""
    whole = np.full(t.domain, identity, x.dtype)
    whole[tuple(slice(n) for n in t.shape)] = x
    registers = whole.reshape(-1)[thread_table(t.layout, t.domain, threads)]
    parts = np.stack([halves(function, [registers[:, r] for r in group]) for group in plan.registers], axis=1)
    lane, warp = np.arange(threads) % 32, np.arange(threads) // 32
    for mask in plan.masks:
        parts = function(parts, parts[warp * 32 + (lane ^ mask)])
    first = warp - sum(warp // d.stride % d.extent * d.stride for d in plan.warps)
    sources = [first + sum(c * d.stride for c, d in zip(place, plan.warps))
               for place in itertools.product(*(range(d.extent) for d in plan.warps))]
    return halves(function, [parts[w * 32 + lane] for w in sources])


def in_threads(result: np.ndarray, t: Tile, axes: tuple[int, ...], threads: int) -> tuple[np.ndarray, np.ndarray]:
    """What each register of each thread should hold of the result, and whether it holds an element of it."""
    layout, domain = t.layout, t.domain
    for d in axes:
        layout, domain = collapse(layout, domain, d)
    for d in reversed(axes):
        layout, domain = drop_dim(layout, domain, d)
    shape = reduced_shape(t.shape, axes, False)
    whole, real = np.zeros(domain, result.dtype), np.zeros(domain, bool)
    whole[tuple(slice(n) for n in shape)], real[tuple(slice(n) for n in shape)] = result.reshape(shape), True
    table = thread_table(layout, domain, threads)
    return whole.reshape(-1)[table], real.reshape(-1)[table]


@settings(max_examples=150, deadline=None)
@given(tiles(), st.integers(0, 2**32))
def test_every_thread_gets_the_simulator_s_float32_sum_bit_for_bit(drawn, seed):
    """In any layout: the plan's order of additions determines the rounding, and all holders of an element agree on it."""
    t, threads, axes = drawn
    x = np.random.default_rng(seed).normal(size=t.shape).astype(np.float32)
    call = planned(t, axes, Known("sum", float32))
    got, = reduce_.rules.simulate(None, call, x[None])
    np.testing.assert_allclose(got.reshape(-1), x.astype(np.float64).sum(axis=axes).reshape(-1), atol=1e-3)
    want, real = in_threads(got, t, axes, threads)
    held = replayed(x, t, threads, call.choice.plan, np.add, np.float32(-0.0))
    np.testing.assert_array_equal(held[real].view(np.int32), want[real].view(np.int32))


@settings(max_examples=50, deadline=None)
@given(tiles(), st.sampled_from(["sum", "max", "xor"]), st.integers(0, 2**32))
def test_every_element_is_included_exactly_once(drawn, name, seed):
    """Shown with integers: padding and replicas do not count, and nothing is left out."""
    t, threads, axes = drawn
    t = Tile(int32, t.shape, t.layout, t.domain)
    x = np.random.default_rng(seed).integers(-2**31, 2**31, t.shape, np.int32)
    got, = reduce_.rules.simulate(None, planned(t, axes, Known(name, int32)), np.stack([x, ~x]))
    function = {"sum": np.add, "max": np.maximum, "xor": np.bitwise_xor}[name]
    for x, result in zip((x, ~x), got):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(result.reshape(-1), function.reduce(x, axis=axes, dtype=np.int32).reshape(-1))


def test_a_row_of_a_wgmma_accumulator_is_reduced_by_two_shuffles():
    """Its row is held by four lanes, so that attention needs no scratch memory and no barrier."""
    layout, domain = wgmma_accumulator(64, 128)
    plan = plan_reduce(Tile(float32, (64, 128), layout, domain), (1,), Known("max", float32), "sm_90a")
    assert plan.masks == (1, 2) and not plan.warps
    assert [len(group) for group in plan.registers] == [32, 32]


@pytest.mark.parametrize("name, dtype, target, word", [
    ("sum", int32, "sm_80", "add"), ("max", int32, "sm_80", "max"), ("sum", float32, "sm_100a", None),
    ("max", float32, "sm_90a", None), ("max", float32, "sm_100a", "max"), ("max", float32, "sm_120a", None)])
def test_a_reduction_over_a_whole_warp_uses_one_instruction_where_it_exists(name, dtype, target, word):
    """``redux.sync``: for 32-bit integers on every target, for max and min of float32 from sm_100a on (not sm_120a)."""
    layout, domain = blocked_layout((1024,), 128, 4)
    assert plan_reduce(Tile(dtype, (1024,), layout, domain), (0,), Known(name, dtype), target).of_warp == word
