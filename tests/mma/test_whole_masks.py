"""Masks of products' results in pipelined loops are skipped in iterations in which they are true everywhere."""

import numpy as np
import pytest
import tilejit as tile

pytestmark = pytest.mark.usefixtures("assembled_later")


@tile.jit
def masked_sums(Q, K, SEEN, OUT, shift, MASK: tile.constexpr, STAGES: tile.constexpr = 2):
    """The sums of the rows of Q K^T, with 100 in place of the scores that a mask excludes."""
    m = tile.program_id(0) * 64
    q, total = tile.load(Q[m:m + 64, 0:32]), tile.zeros((64,))
    rows = m + tile.arange(64)
    for n in tile.pipelined(range(0, K.shape[0], 32), stages=STAGES):
        s = tile.dot(q, tile.load(K[n:n + 32, 0:32]).T)
        columns = (n + tile.arange(32))[None, :] + shift
        if MASK == ">=":
            seen = rows[:, None] >= columns
        elif MASK == ">":
            seen = rows[:, None] > columns
        elif MASK == "<=":
            seen = rows[:, None] <= columns
        elif MASK == "<":
            seen = columns < 64 - rows[:, None]
        elif MASK == "window":
            seen = (rows[:, None] >= columns) & (columns > rows[:, None] - 40)
        elif MASK == "loaded":
            seen = tile.load(SEEN[m:m + 64, n:n + 32]) > shift
        else:
            seen = (rows[:, None] ^ 1) >= columns
        total += tile.sum(tile.where(seen, s, 100.0), axis=1)
    tile.store(OUT[m:m + 64], total)


def arrays(keys=160):
    rng = np.random.default_rng(0)
    q, k = (rng.integers(-2, 3, (n, 32)).astype(np.float16) for n in (192, keys))
    return q, k, rng.integers(0, 2, (192, keys)).astype(np.int32), np.zeros(192, np.float32)


MASKS = {
    ">=": lambda r, c: r >= c, ">": lambda r, c: r > c, "<=": lambda r, c: r <= c, "<": lambda r, c: c < 64 - r,
    "window": lambda r, c: (r >= c) & (c > r - 40),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shift", [0, -63, 2 ** 31 - 96])
def test_a_mask_that_is_skipped_where_it_is_whole_excludes_the_same(mask, shift):
    """Also where columns + shift wraps in some iterations."""
    q, k, seen, out = arrays()
    masked_sums.simulate(3, q, k, seen, out, shift, MASK=mask, target="sm_90a").raise_first()
    rows, columns = np.arange(192, dtype=np.int32)[:, None], np.arange(160, dtype=np.int32)[None, :]
    with np.errstate(over="ignore"):
        kept = MASKS[mask](rows, columns + np.int32(shift))
    np.testing.assert_array_equal(out, np.where(kept, q.astype(np.float32) @ k.astype(np.float32).T, 100).sum(axis=1))


def test_explain_tells_which_masks_are_skipped():
    made = masked_sums.compile(*arrays(), 0, MASK="window", target="sm_90a")
    mask, = made.masks
    assert "tile.where" in mask.source and mask.loop < mask.line
    assert f"skipped in iterations of the pipelined loop at line {mask.loop} in which the mask is true everywhere" in made.explain()


@pytest.mark.parametrize("mask", ["loaded", "of other arithmetic"])
def test_masks_whose_extremes_are_unknown_stay(mask):
    assert masked_sums.compile(*arrays(), 0, MASK=mask, target="sm_90a").masks == ()
