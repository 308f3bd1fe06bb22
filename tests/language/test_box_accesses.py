"""Loads and stores whose index tiles and masks describe a box of an array become accesses of its regions."""

import re

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st

from tests.gpu import in_child, needs_gpu, needs_module


@tile.jit
def moved(X, Y, low, high, M, N, R: tile.constexpr, C: tile.constexpr, DR: tile.constexpr, DC: tile.constexpr, TURNED: tile.constexpr,
          MASK: tile.constexpr, OTHER: tile.constexpr, WRITTEN: tile.constexpr):
    i, j = tile.program_id(0), tile.program_id(1)
    rows, columns = i * R + DR + tile.arange(R), j * C + tile.arange(C) + DC
    r, c = (rows[None, :], columns[:, None]) if TURNED else (rows[:, None], columns[None, :])
    if MASK == "none":
        x = tile.load(X[r, c], other=OTHER)
    elif MASK == "bounds":
        x = tile.load(X[r, c], mask=(r < M) & (r >= 0) & (c < N) & (0 <= c), other=OTHER)
    elif MASK == "apart":
        inside = (columns < N) & (columns >= 0)
        x = tile.load(X[r, c], mask=inside[:, None] if TURNED else inside, other=OTHER)
    else:
        x = tile.load(X[r, c], mask=(c < high) & (c > low) & (r <= high), other=OTHER)
    at, to = i * R + tile.arange(R), j * C + tile.arange(C)
    r, c = (at[None, :], to[:, None]) if TURNED else (at[:, None], to[None, :])
    if WRITTEN == "bounds":
        tile.store(Y[r, c], x, mask=(r < Y.shape[0]) & (N - DC > to[:, None] if TURNED else N - DC > to[None, :]))
    elif WRITTEN == "part":
        tile.store(Y[r, c], x, mask=(r < high) & (low < c))
    else:
        tile.store(Y[r, c], x)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["sm_80", "sm_90a"]), st.sampled_from([np.float16, np.float32, np.int8, np.float64]), st.integers(0, 40), st.integers(0, 90),
       st.sampled_from([1, 2, 16]), st.sampled_from([1, 8, 32]), st.integers(-5, 5), st.integers(-9, 16), st.booleans(),
       st.sampled_from(["none", "bounds", "apart", "part"]), st.sampled_from([0, 3]), st.sampled_from(["none", "bounds", "part"]),
       st.integers(-2, 20), st.integers(-2, 40), st.sampled_from(["rows", "columns", "steps", "backwards"]))
def test_any_box_given_by_index_tiles_is_accessed_exactly(target, dtype, m, n, r, c, dr, dc, turned, mask, other, written, low, high, laid):
    """Before and after the array, row-major, column-major, strided, reversed and transposed arrays, many kinds of masks."""
    x = np.random.default_rng(m * 91 + n).integers(-9, 9, (m, n)).astype(dtype)
    x = {"rows": x, "columns": np.asfortranarray(x), "steps": np.repeat(x, 2, 1)[:, ::2], "backwards": x[::-1].copy()[::-1]}[laid]
    grid, y, want = make_arrays(x, r, c, dr, dc, mask, other, written, low, high)
    moved.simulate(grid, x, y, low, high, m, n, R=r, C=c, DR=dr, DC=dc, TURNED=turned, MASK=mask, OTHER=other, WRITTEN=written,
                   target=target).raise_first()
    np.testing.assert_array_equal(y, want)


def make_arrays(x, r, c, dr, dc, mask, other, written, low, high):
    """The grid, an output array, and its initial contents."""
    m, n = x.shape
    grid = -(-max(m, 1) // r), -(-max(n, 1) // c)
    y = np.full((grid[0] * r - 1 or 1, grid[1] * c), 77, x.dtype)
    rows, columns = np.arange(y.shape[0])[:, None], np.arange(y.shape[1])[None, :]
    fr, fc = rows + dr, columns + dc
    inside = (fr >= 0) & (fr < m) & (fc >= 0) & (fc < n)
    if mask == "part":
        inside &= (fc < high) & (fc > low) & (fr <= high)
    value = np.where(inside, x[np.clip(fr, 0, m - 1), np.clip(fc, 0, n - 1)] if x.size else 0, other)
    kept = {"none": rows >= 0, "bounds": columns < n - dc, "part": (rows < high) & (low < columns)}[written]
    return grid, y, np.where(kept, value, y).astype(x.dtype)


@tile.jit
def softmax(X, Y, M, N, B: tile.constexpr):
    row, c = tile.program_id(0), tile.arange(B)
    x = tile.load(X[row, c], mask=c < N, other=-float("inf"))
    e = tile.exp(x - tile.max(x))
    tile.store(Y[row, c], e / tile.sum(e), mask=c < N)


def test_a_mask_implied_by_the_bounds_costs_nothing():
    """The same instructions as without it, and one binary for all arguments that are at least the extent."""
    @tile.jit
    def regions(X, Y, M, N, B: tile.constexpr):
        row = tile.program_id(0)
        x = tile.load(X[row, 0:B], other=-float("inf"))
        e = tile.exp(x - tile.max(x))
        tile.store(Y[row, 0:B], e / tile.sum(e))

    spec = tile.ArraySpec((64, 1000), "float32")
    made = [k.compile(spec, spec, 64, 1000, B=1024, target="sm_90a") for k in (softmax, regions)]
    opcodes = [re.findall(r"^\t(?:@!?%p\d+ )?([a-z][a-z0-9_.:]*)", x.ptx, re.M) for x in made]
    assert opcodes[0] == opcodes[1] and made[0].registers == made[1].registers
    assert made[0].ptx.count("ld.global.v4") == 2
    odd = softmax.compile(spec, spec, 64, 999, B=1024, target="sm_90a")
    x, y = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32), np.zeros((3, 1000), np.float32)
    softmax.simulate(3, x, y, 3, 999, B=1024, target="sm_90a").raise_first()
    e = np.exp(x[:, :999].astype(np.float64) - x[:, :999].max(1, keepdims=True))
    np.testing.assert_allclose(y[:, :999], e / e.sum(1, keepdims=True), rtol=1e-5)
    assert (y[:, 999] == 0).all() and odd.ptx != made[0].ptx


@pytest.mark.parametrize("n", [64, 40])
def test_a_mask_that_covers_less_than_the_array_is_kept(n):
    x, y = np.ones((2, 64), np.float32), np.zeros((2, 64), np.float32)
    softmax.simulate(2, x, y, 2, n, B=64).raise_first()
    np.testing.assert_allclose(y, np.where(np.arange(64) < n, 1 / n, 0)[None].repeat(2, 0), rtol=1e-6)


@needs_gpu("sm_90a")
@needs_module("torch")
@in_child(timeout=300)
def test_boxes_given_by_index_tiles_are_accessed_exactly_on_the_gpu():
    import torch
    rng = np.random.default_rng(0)
    for _ in range(300):
        m, n, r, c, dr, dc = (int(rng.integers(*span)) for span in ((1, 70), (1, 90), (0, 5), (0, 6), (-5, 6), (-9, 17)))
        other, low, high = (int(rng.integers(*span)) for span in ((0, 4), (-2, 20), (-2, 40)))
        r, c, turned = 1 << r, 1 << c, bool(rng.integers(2))
        mask, written = (str(rng.choice(names)) for names in (["none", "bounds", "apart", "part"], ["none", "bounds", "part"]))
        x = rng.integers(-9, 9, (m, n)).astype(rng.choice([np.float16, np.float32, np.int8]))
        grid, y, want = make_arrays(x, r, c, dr, dc, mask, other, written, low, high)
        there, back = torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()
        there = there.T.contiguous().T if rng.integers(2) else there
        moved[grid](there, back, low, high, m, n, R=r, C=c, DR=dr, DC=dc, TURNED=turned, MASK=mask, OTHER=other, WRITTEN=written)
        np.testing.assert_array_equal(back.cpu().numpy(), want, err_msg=str((m, n, r, c, dr, dc, turned, mask, other, written, low, high, x.dtype)))


@tile.jit
def computed(X, Y, s, f, B: tile.constexpr, WHICH: tile.constexpr):
    i = tile.arange(B)
    if WHICH == "bytes":        # 200 + 100 is 44 in a byte
        at = (tile.full((B,), 200, tile.uint8) + s.to(tile.uint8)).to(tile.int32) + i
    elif WHICH == "floats":
        at = (tile.full((B,), 2.5, tile.float32) * f).to(tile.int32) + i
    elif WHICH == "whole":
        at = (s * B + i) // B * B + i
    elif WHICH == "chosen":
        at = tile.where(tile.full((B,), s, tile.int32) > 3, 8, 16) + i
    else:
        at = tile.minimum(s + i, 40)
    tile.store(Y[i], tile.load(X[at], other=-1))


@pytest.mark.parametrize("which, places", [("bytes", 44), ("floats", 7), ("whole", 1600), ("chosen", 8), ("capped", None)])
def test_the_start_of_a_box_is_computed_with_the_arithmetic_of_its_indices(which, places):
    """In their dtype, which may wrap, or truncate fractions."""
    x, y = np.arange(1700, dtype=np.int32), np.zeros(16, np.int32)
    computed.simulate(1, x, y, 100, 3.0, B=16, WHICH=which).raise_first()
    np.testing.assert_array_equal(y, np.minimum(100 + np.arange(16), 40) if places is None else places + np.arange(16))


@tile.jit
def moving_on(X, Y, N, B: tile.constexpr, STEP: tile.constexpr, BY: tile.constexpr, DOWN: tile.constexpr):
    i, at, back = tile.arange(B), tile.arange(B) + 3, 0
    for n in range(N - 1, -1, -STEP) if DOWN else range(5, N, STEP):
        for _ in range(2):
            at += BY
        tile.store(Y[back + i], tile.load(X[at]))
        back = back + 2 * B


@pytest.mark.parametrize("step, by, down", [(1, 1, False), (4, 2, False), (3, 1, False), (2, -2, True), (5, 0, False)])
def test_indices_that_a_loop_advances_by_a_multiple_of_its_step_are_boxes(step, by, down):
    """By different amounts, up or down, from any start; unchanged if two loops advance them."""
    x, y = np.arange(200, dtype=np.int32), np.full(800, -1, np.int32)
    moving_on.simulate(1, x, y, 40, B=8, STEP=step, BY=by, DOWN=down).raise_first()
    want, at, back = np.full(800, -1), 3, 0
    for _ in range(39, -1, -step) if down else range(5, 40, step):
        at += 2 * by
        places = at + np.arange(8)
        want[back:back + 8] = np.where((places >= 0) & (places < 200), x[places % 200], 0)
        back += 16
    np.testing.assert_array_equal(y, want)


@tile.jit
def doubled(X, Y, s, TIMES: tile.constexpr, MOVED: tile.constexpr):
    b, c, at, i = tile.full((64,), s, tile.int32), tile.full((64,), s, tile.int32), tile.arange(64), tile.arange(64)
    kept = i < 60
    for _ in tile.static_range(TIMES):
        b, c, kept = b + b, c + c, kept & kept
    for _ in range(2):
        tile.store(Y[at + b], tile.load(X[at + b], mask=kept & (at + c < X.shape[0])), mask=kept)
        at += 64 * (MOVED + 1)
    for _ in tile.static_range(MOVED):
        i = i + 64
        tile.store(Y[i], tile.load(X[i], mask=i < X.shape[0]))


@pytest.mark.parametrize("times, moved", [(60, 0), (0, 300)])
def test_long_chains_of_index_arithmetic_are_analysed_once(times, moved):
    """Values used twice in each of 60 steps have 2 ** 60 paths; and chains may be longer than the limit of the analysis."""
    x, y = np.arange(64 * (2 * moved + 2) - 9, dtype=np.float32) + 1, np.zeros(64 * (2 * moved + 2), np.float32)
    doubled.simulate(1, x, y, 0, TIMES=times, MOVED=moved).raise_first()
    want = np.zeros_like(y)
    want[:64 * (moved + 1)] = x[:64 * (moved + 1)] if moved else 0
    for first in (0, 64 * (moved + 1)):
        want[first:first + 60] = np.append(x, np.zeros(9))[first:first + 60]
    want[60:64] = 0
    np.testing.assert_array_equal(y, want)
