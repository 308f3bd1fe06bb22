"""Where the elements of reshaped, transposed and broadcast tiles are: in the registers where they were."""

import numpy as np
from hypothesis import assume, given, settings, strategies as st
from tilejit.dtypes import float32
from tilejit.layout import blocked, collapse, thread_table
from tilejit.ops.shape import _permuted, reshaped
from tilejit.types import Tile

EXTENTS = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 33, 64])


@st.composite
def tiles(draw):
    shape = tuple(draw(st.lists(EXTENTS, min_size=1, max_size=3)))
    assume(np.prod(shape) <= 4096)
    threads = 32 * draw(st.sampled_from([1, 2, 3, 4, 8]))
    layout, domain = blocked(shape, threads, draw(st.sampled_from([1, 2, 4])), draw(st.permutations(range(len(shape)))))
    return Tile(float32, shape, layout, domain), threads


def held(t: Tile, threads: int, numbers: np.ndarray) -> np.ndarray:
    """What each register of each thread holds of an array of the tile's shape; -1 for padding."""
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
def test_a_reshape_that_keeps_its_registers_keeps_every_element_in_place(drawn):
    """The domain that `reshaped` finds names the same elements in row-major order; dimensions of 1 always have one."""
    t, threads, shape = drawn
    domain = reshaped(t.layout, t.domain, t.shape, shape)
    if domain is None:
        assert t.domain != t.shape or [n for n in t.shape if n != 1] != [n for n in shape if n != 1]
        return
    made = Tile(t.dtype, shape, t.layout, domain)
    np.testing.assert_array_equal(held(made, threads, numbered(shape)), held(t, threads, numbered(t.shape)))


@settings(max_examples=100, deadline=None)
@given(tiles(), st.randoms())
def test_a_transpose_renames_dimensions_and_moves_nothing_between_threads(drawn, random):
    """Each thread holds the same elements, in as many registers."""
    t, threads = drawn
    axes = list(range(len(t.shape)))
    random.shuffle(axes)
    made = _permuted(t, tuple(axes), tuple(t.shape[a] for a in axes), t.dtype)
    before, after = held(t, threads, numbered(t.shape)), held(made, threads, numbered(t.shape).transpose(axes))
    np.testing.assert_array_equal(np.sort(before, axis=1), np.sort(after, axis=1))


@settings(max_examples=100, deadline=None)
@given(tiles(), st.data())
def test_the_layout_that_a_broadcast_asks_for_has_each_element_where_it_is_needed(drawn, data):
    """Every thread that holds elements along a repeated dimension holds the one that is repeated."""
    t, threads = drawn
    dim = data.draw(st.integers(0, len(t.shape) - 1))
    layout, domain = collapse(t.layout, t.domain, dim)
    small = Tile(t.dtype, tuple(1 if d == dim else n for d, n in enumerate(t.shape)), layout, domain)
    numbers = numbered(small.shape)
    need, have = held(t, threads, np.broadcast_to(numbers, t.shape)), held(small, threads, numbers)
    for wanted, owned in zip(need, have):
        assert set(wanted[wanted >= 0]) <= set(owned)
