"""Layout changes: registers renamed, shuffled inside warps, or moved through scratch memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilejit as tile
from tilejit.dtypes import float32
from tilejit.layout import blocked, thread_table
from tilejit.ops.layout_change import _mapped, register_moves
from tilejit.types import Tile
from tests.gpu import in_child, needs_gpu


def tiles(shape, threads, vec, order):
    layout, domain = blocked(shape, threads, vec, order)
    return Tile(float32, shape, layout, domain)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([(32,), (64,), (8, 16), (16, 16), (4, 24), (33,), (2, 3, 8)]), st.sampled_from([32, 64]),
       st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.booleans())
def test_moves_bring_every_thread_the_elements_of_the_target(shape, threads, vec, other, turned):
    source = tiles(shape, threads, vec, None)
    target = tiles(shape, threads, other, tuple(range(len(shape))) if turned else None)
    moves = register_moves(source, target)
    if moves is None:
        return
    have = thread_table(source.layout, source.domain, threads)
    need = thread_table(target.layout, target.domain, threads)
    for thread in range(threads):
        for column, move in enumerate(moves):
            lane = _mapped(thread % 32, move.base, move.lanes)
            got = np.unravel_index(have[thread - thread % 32 + lane, move.reg], source.domain)
            want = np.unravel_index(need[thread, column], target.domain)
            assert got == want or any(w >= n for w, n in zip(want, shape))


def test_a_change_inside_a_warp_takes_shuffles_and_no_shared_memory():
    moves = register_moves(tiles((64,), 32, 1, None), tiles((64,), 32, 2, None))
    assert moves is None or any(not m.local for m in moves)
    moves = register_moves(tiles((8, 4), 32, 1, (1, 0)), tiles((8, 4), 32, 1, (0, 1)))
    assert [m.local for m in moves] == [False]


def test_a_change_across_warps_goes_through_scratch():
    assert register_moves(tiles((8, 16), 128, 1, (1, 0)), tiles((8, 16), 128, 1, (0, 1))) is None


@tile.jit
def turned(x, y, out, M: tile.constexpr, N: tile.constexpr):
    """A row-major and a column-major array meet: one of them changes its layout."""
    tile.store(out[0:M, 0:N], tile.load(x[0:M, 0:N]) + tile.load(y[0:M, 0:N]) + tile.sum(tile.load(y[0:M, 0:N]), axis=1)[:, None])


SHAPES = [(8, 4, 1), (16, 16, 1), (32, 8, 2), (24, 5, 1), (64, 64, 4)]


def case(m, n):
    rng = np.random.default_rng(m * n)
    x, y = rng.standard_normal((m, n)).astype(np.float32), rng.standard_normal((n, m)).astype(np.float32).T
    return x, y, x + y + y.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("m,n,warps", SHAPES)
def test_arrays_of_two_orders_meet(m, n, warps):
    x, y, expected = case(m, n)
    out = np.empty_like(x)
    turned[(1,)](x, y, out, M=m, N=n, num_warps=warps)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@tile.jit(num_warps=1)
def reshaped(x, out, M: tile.constexpr, N: tile.constexpr):
    """A sum along rows is held by the lanes of its rows; loading a vector gives another layout, and both are added."""
    rows = tile.sum(tile.load(x[0:M, 0:N]), axis=1)
    tile.store(out[0:M], rows + tile.load(x[0:M, 0]))


@pytest.mark.parametrize("m, n", [(8, 4), (16, 8), (32, 32), (13, 7)])
def test_sums_of_rows_meet_a_loaded_vector(m, n):
    x = np.random.default_rng(m).standard_normal((m, n)).astype(np.float32)
    out = np.empty(m, np.float32)
    reshaped[(1,)](x, out, M=m, N=n)
    np.testing.assert_allclose(out, x.sum(axis=1) + x[:, 0], rtol=1e-5, atol=1e-5)


@needs_gpu()
@in_child(timeout=120)
def test_changed_layouts_hold_the_same_elements_on_the_gpu():
    for m, n, warps in SHAPES:
        x, y, expected = case(m, n)
        out = np.empty_like(x)
        turned[(1,)](x, y, out, M=m, N=n, num_warps=warps, backend="cuda")
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    for m, n in ((8, 4), (16, 8), (32, 32), (13, 7)):
        x = np.random.default_rng(m).standard_normal((m, n)).astype(np.float32)
        out = np.empty(m, np.float32)
        reshaped[(1,)](x, out, M=m, N=n, backend="cuda")
        np.testing.assert_allclose(out, x.sum(axis=1) + x[:, 0], rtol=1e-5, atol=1e-5)
