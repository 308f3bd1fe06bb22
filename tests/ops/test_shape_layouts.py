"""The element positions of reshaped, transposed and broadcast tiles: in the same registers as before."""

from types import SimpleNamespace

import numpy as np
from hypothesis import assume, given, settings, strategies as st
from tilejit.dtypes import float32
from tilejit.ir.graph import Value
from tilejit.layout import blocked_layout, collapse, register_table, thread_table
from tilejit.ops.language.stack import _stack_layout
from tilejit.ops.tiles.arrange import _keeps_registers, _permute_tile, reshape_domain
from tilejit.ops.tiles.slicing import _register_slice
from tilejit.types import Tile

EXTENTS = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 33, 64])


@st.composite
def tiles(draw):
    shape = tuple(draw(st.lists(EXTENTS, min_size=1, max_size=3)))
    assume(np.prod(shape) <= 4096)
    threads = 32 * draw(st.sampled_from([1, 2, 3, 4, 8]))
    layout, domain = blocked_layout(shape, threads, draw(st.sampled_from([1, 2, 4])), draw(st.permutations(range(len(shape)))))
    return Tile(float32, shape, layout, domain), threads


def held(t: Tile, threads: int, numbers: np.ndarray) -> np.ndarray:
    """The element that each register of each thread holds, for an array of the tile's shape; -1 for padding."""
    whole = np.full(t.domain, -1)
    whole[tuple(slice(n) for n in t.shape)] = numbers
    return whole.reshape(-1)[thread_table(t.layout, t.domain, threads)]


def numbered(shape) -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape)


@st.composite
def reshapes(draw):
    t, threads = draw(tiles())
    shape = [n for n in t.shape if n != 1]
    if draw(st.booleans()):
        shape = [int(np.prod(shape))] if draw(st.booleans()) else [f for n in shape for f in ((n // 4, 4) if n % 4 == 0 else (n,))]
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return t, threads, tuple(shape) or (1,)


@settings(max_examples=200, deadline=None)
@given(reshapes())
def test_a_reshape_that_keeps_registers_keeps_every_element_in_place(drawn):
    """The domain found by `reshaped` names the same elements in row-major order; adding or removing dimensions of 1 always has one."""
    t, threads, shape = drawn
    domain = reshape_domain(t.layout, t.domain, t.shape, shape)
    if domain is None:
        assert t.domain != t.shape or [n for n in t.shape if n != 1] != [n for n in shape if n != 1]
        return
    made = Tile(t.dtype, shape, t.layout, domain)
    np.testing.assert_array_equal(held(made, threads, numbered(shape)), held(t, threads, numbered(t.shape)))


def test_a_reshape_into_another_layout_does_not_keep_the_registers():
    """Even where both have the same domain: threads then exchange elements through shared memory."""
    by_rows, by_columns = (Tile(float32, (16, 64), *blocked_layout((16, 64), 128, 1, order)) for order in ((0, 1), (1, 0)))
    assert by_rows.domain == by_columns.domain and by_rows.layout != by_columns.layout
    assert _keeps_registers(by_rows, by_rows) and not _keeps_registers(by_rows, by_columns)
    assert not np.array_equal(held(by_rows, 128, numbered((16, 64))), held(by_columns, 128, numbered((16, 64))))


@settings(max_examples=100, deadline=None)
@given(tiles(), st.randoms())
def test_a_transpose_renames_dimensions_and_moves_nothing_between_threads(drawn, random):
    """Each thread holds the same elements, in as many registers."""
    t, threads = drawn
    axes = list(range(len(t.shape)))
    random.shuffle(axes)
    made = _permute_tile(t, tuple(axes), tuple(t.shape[a] for a in axes), t.dtype)
    before, after = held(t, threads, numbered(t.shape)), held(made, threads, numbered(t.shape).transpose(axes))
    np.testing.assert_array_equal(np.sort(before, axis=1), np.sort(after, axis=1))


@settings(max_examples=100, deadline=None)
@given(tiles(), st.data())
def test_the_operand_layout_that_a_broadcast_requests_has_each_element_where_it_is_needed(drawn, data):
    """Every thread that holds elements along a repeated dimension holds the one that is repeated."""
    t, threads = drawn
    dim = data.draw(st.integers(0, len(t.shape) - 1))
    layout, domain = collapse(t.layout, t.domain, dim)
    small = Tile(t.dtype, tuple(1 if d == dim else n for d, n in enumerate(t.shape)), layout, domain)
    numbers = numbered(small.shape)
    need, have = held(t, threads, np.broadcast_to(numbers, t.shape)), held(small, threads, numbers)
    for wanted, owned in zip(need, have):
        assert set(wanted[wanted >= 0]) <= set(owned)


@settings(max_examples=200, deadline=None)
@given(tiles(), st.data())
def test_a_slice_in_registers_selects_exactly_its_elements_with_any_step(drawn, data):
    t, threads = drawn
    cuts = lambda n: [slice(0, n, 1), *(slice(at, n, step) for step in (2, 4) for at in range(min(step, n))), slice(0, -(-n // 2), 1), slice(n // 2, n, 1)]
    cut = [data.draw(st.sampled_from(cuts(n))) for n in t.shape]
    numbers = numbered(t.shape)
    wanted = numbers[tuple(cut)]
    call = SimpleNamespace(attrs={"starts": tuple(c.start for c in cut), "shape": wanted.shape, "steps": tuple(c.step for c in cut)})
    found = _register_slice(call, t)
    if found is None:
        assert any(c.step > 1 or len(range(c.start, c.stop)) < n for c, n in zip(cut, t.shape))
        return
    layout, domain, registers = found
    have, made = held(t, threads, numbers)[:, list(registers)], held(Tile(t.dtype, wanted.shape, layout, domain), threads, wanted)
    assert set(made[made >= 0]) == set(wanted.reshape(-1))
    np.testing.assert_array_equal(made[made >= 0], have[made >= 0])


@settings(max_examples=100, deadline=None)
@given(tiles(), st.integers(1, 4), st.data())
def test_tiles_are_stacked_within_the_threads_that_hold_them(drawn, count, data):
    """A thread's registers of the result are those that it has of the operands, at their index along the new dimension."""
    t, threads = drawn
    axis = data.draw(st.integers(0, len(t.shape)))
    shape = (*t.shape[:axis], count, *t.shape[axis:])
    call = SimpleNamespace(args=[Value("t", t, None)] * count, result=Value("s", Tile(t.dtype, shape), None), attrs={"axis": axis})
    _, (made,) = _stack_layout(None, call, (t,) * count)
    parts = [held(t, threads, numbered(t.shape) + n * t.size) for n in range(count)]
    of = {at: r for r, at in enumerate(register_table(t.layout, t.domain))}
    want = [parts[at[axis]][:, of[at[:axis] + at[axis + 1:]]] for at in register_table(made.layout, made.domain)]
    np.testing.assert_array_equal(held(made, threads, np.stack([numbered(t.shape) + n * t.size for n in range(count)], axis)), np.stack(want, axis=1))
