"""Layout conversions: renamed registers, shuffles within warps, or moves through scratch memory."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.dtypes import float16, float32, int8
from tilejit.emit.tiles import Tiles
from tilejit.layout import blocked_layout, thread_table
from tilejit.layout.fragments import wgmma_a_registers, wgmma_accumulator
from tilejit.ops.tiles.layout_change import _map_lane, _pitch, register_moves
from tilejit.types import Tile

from tests.gpu import in_child, needs_gpu


def tiles(shape, threads, vec, order):
    layout, domain = blocked_layout(shape, threads, vec, order)
    return Tile(float32, shape, layout, domain)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([(32,), (64,), (8, 16), (16, 16), (4, 24), (33,), (2, 3, 8)]), st.sampled_from([32, 64]),
       st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.booleans())
def test_the_moves_of_a_conversion_give_every_thread_the_elements_of_the_target_layout(shape, threads, vec, other, turned):
    source = tiles(shape, threads, vec, None)
    target = tiles(shape, threads, other, tuple(range(len(shape))) if turned else None)
    moves = register_moves(source, target)
    if moves is None:
        return
    have = thread_table(source.layout, source.domain, threads)
    need = thread_table(target.layout, target.domain, threads)
    for thread in range(threads):
        for column, move in enumerate(moves):
            lane = _map_lane(thread % 32, move.base, move.lanes)
            got = np.unravel_index(have[thread - thread % 32 + lane, move.reg], source.domain)
            want = np.unravel_index(need[thread, column], target.domain)
            assert got == want or any(w >= n for w, n in zip(want, shape))


def test_a_conversion_within_warps_uses_shuffles_and_no_shared_memory():
    moves = register_moves(tiles((64,), 32, 1, None), tiles((64,), 32, 2, None))
    assert moves is None or any(not m.stays_in_lane for m in moves)
    moves = register_moves(tiles((8, 4), 32, 1, (1, 0)), tiles((8, 4), 32, 1, (0, 1)))
    assert [m.stays_in_lane for m in moves] == [False]


def test_a_conversion_across_warps_goes_through_scratch_memory():
    assert register_moves(tiles((8, 16), 128, 1, (1, 0)), tiles((8, 16), 128, 1, (0, 1))) is None


@tile.jit
def turned(x, y, out, M: tile.constexpr, N: tile.constexpr):
    """Adds a row-major and a column-major array: one of them changes its layout."""
    tile.store(out[0:M, 0:N], tile.load(x[0:M, 0:N]) + tile.load(y[0:M, 0:N]) + tile.sum(tile.load(y[0:M, 0:N]), axis=1)[:, None])


SHAPES = [(8, 4, 1), (16, 16, 1), (32, 8, 2), (24, 5, 1), (64, 64, 4)]


def case(m, n):
    rng = np.random.default_rng(m * n)
    x, y = rng.standard_normal((m, n)).astype(np.float32), rng.standard_normal((n, m)).astype(np.float32).T
    return x, y, x + y + y.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("m,n,warps", SHAPES)
def test_arrays_of_two_orders_can_be_added(m, n, warps):
    x, y, expected = case(m, n)
    out = np.empty_like(x)
    turned[(1,)](x, y, out, M=m, N=n, num_warps=warps)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@tile.jit(num_warps=1)
def reshaped(x, out, M: tile.constexpr, N: tile.constexpr):
    """A row sum is held by the lanes of its rows; a loaded vector has another layout, and both are added."""
    rows = tile.sum(tile.load(x[0:M, 0:N]), axis=1)
    tile.store(out[0:M], rows + tile.load(x[0:M, 0]))


@pytest.mark.parametrize("m, n", [(8, 4), (16, 8), (32, 32), (13, 7)])
def test_row_sums_and_a_loaded_vector_can_be_added(m, n):
    x = np.random.default_rng(m).standard_normal((m, n)).astype(np.float32)
    out = np.empty(m, np.float32)
    reshaped[(1,)](x, out, M=m, N=n)
    np.testing.assert_allclose(out, x.sum(axis=1) + x[:, 0], rtol=1e-5, atol=1e-5)


class Words(Tiles):
    """The emitter's knowledge of a tile's coordinates, without emitting code."""

    def __init__(self):
        super().__init__(SimpleNamespace(tables={}))


PLACED = {  # shapes, their layouts and domains, and the numbers of elements of 1 and 2 bytes per word
    "accumulator": ((64, 32), *wgmma_accumulator(64, 32, 1), 2, 2), "operand of 8 bits": ((64, 64), *wgmma_a_registers(64, 64, 8, 1), 4, 2),
    "operand of 16 bits": ((64, 32), *wgmma_a_registers(64, 32, 16, 1), 2, 2), "rows": ((64, 24), *blocked_layout((64, 24), 128, 8, None), 4, 2),
    "odd rows": ((64, 23), *blocked_layout((64, 23), 128, 8, None), 1, 1), "columns": ((64, 24), *blocked_layout((64, 24), 128, 4, (0, 1)), 1, 1),
    "few": ((5, 6), *blocked_layout((5, 6), 128, 2, None), 2, 2), "threes": ((16, 128), *blocked_layout((16, 128), 128, 3, None), 1, 1)}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("dtype", [int8, float16, float32])
@pytest.mark.parametrize("case", PLACED)
def test_a_word_that_goes_through_scratch_memory_holds_adjacent_elements_of_one_row(case, dtype, apart):
    """In every thread it starts at a multiple of its size, and is entirely in the tile or entirely padding; each register is in
    one word."""
    shape, layout, domain, *counts = PLACED[case]
    t, places = Tile(dtype, shape, layout, domain), Words()
    pitch = _pitch(t) if apart else None
    count = places._in_a_word(t, pitch)
    assert count == {1: counts[0], 2: counts[1], 4: 1}[dtype.nbytes] and (pitch or shape[-1]) % count == 0
    words = places._words(t, count)
    assert sorted(r for word in words for r in word) == list(range(places.registers(t)))
    table = np.stack(np.unravel_index(thread_table(layout, domain, 128), domain), axis=-1)
    for word in words:
        first, inside = table[:, word[0]], [(table[:, r] < shape).all(axis=-1) for r in word]
        assert (first[:, -1] % count == 0).all() and all((i == inside[0]).all() for i in inside)
        for n, r in enumerate(word):
            np.testing.assert_array_equal(table[:, r] - first, [[0] * (len(domain) - 1) + [n]] * 128)


@tile.jit(num_warps=4)
def narrowed(A, B, D, C):
    """Accumulator pairs become an 8-bit operand with groups of four: lanes of a quad exchange elements."""
    a, b, d = (tile.alloc((64, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), A.dtype, layout=tile.auto),
               tile.alloc((64, 64), A.dtype, layout=tile.auto))
    tile.copy(a, A[0:64, 0:64])
    tile.copy(b, B[0:64, 0:64])
    tile.copy(d, D[0:64, 0:64])
    tile.sync()
    p = tile.cast(tile.dot(a, b, trans_b=True), A.dtype)
    tile.store(C[0:64, 0:64], tile.dot(p, d, trans_b=True))


def narrow_case():
    rng = np.random.default_rng(0)
    a, b, d = (rng.integers(-1, 2, (64, 64)).astype(ml_dtypes.float8_e4m3fn) for _ in range(3))
    p = (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.float8_e4m3fn)
    return a, b, d, p.astype(np.float32) @ d.astype(np.float32).T


def test_narrow_elements_go_through_scratch_memory_in_words():
    """Two adjacent accumulator elements are stored at once, and four elements of the operand loaded."""
    a, b, d, expected = narrow_case()
    c = np.empty((64, 64), np.float32)
    narrowed[1,](a, b, d, c)
    np.testing.assert_array_equal(c, expected)
    made = narrowed.compile(a, b, d, c, target="sm_90a")
    assert "convert_layout" in made.graph and [p.variant for p in made.products] == ["wgmma"] * 2
    assert made.ptx.count("ld.shared.b32") == 8 and made.ptx.count("st.shared.b16") == 16 and "shared.b8" not in made.ptx


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_conversions_of_narrow_elements_are_right_on_the_gpu():
    a, b, d, expected = narrow_case()
    c = np.empty((64, 64), np.float32)
    narrowed[1,](a, b, d, c, backend="cuda")
    np.testing.assert_array_equal(c, expected)


@needs_gpu()
@in_child(timeout=120)
def test_layout_conversions_preserve_the_elements_on_the_gpu():
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
