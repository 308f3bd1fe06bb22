"""`kernels.block_mask`: the blocks that a mask hides are not computed, and whole ones not masked, on the simulator, compared with float64."""

import numpy as np
import pytest
import tilejit as tile
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.attention.config import Config
from tilejit.kernels.attention.constants import HopperConstants, Scores
from tilejit.kernels.attention.hopper import hopper

from tests.mma.attention_cases import check, inputs
from tests.mma.test_attention_call import count, loops, same_document, usual


@tile.jit
def documents(batch, head, rows, columns, ids, slopes):
    """Of one document; some rows, which depend on the batch and the head, see nothing."""
    return (tile.load(ids[rows]) == tile.load(ids[columns])) & (rows // 150 != 1 + head + batch)


@tile.jit
def alibi(s, batch, head, rows, columns, ids, slopes):
    return s + tile.load(slopes[head]) * tile.cast(columns - rows, tile.float32)


IDS, SLOPES = (np.arange(700) // 270).astype(np.int32), np.array([0.1, -0.02], np.float32)


def seen_of(rows, keys, batch):
    """[batches, 2 heads, rows, keys]: what `documents` leaves."""
    hidden = np.arange(batch)[:, None, None, None] + np.arange(2)[:, None, None] + 1
    return (IDS[:rows, None] == IDS[:keys]) & (np.arange(rows)[:, None] // 150 != hidden)


def bounded(rows, keys, causal=False, window=None):
    apart = np.arange(keys) - (np.arange(rows)[:, None] + keys - rows)
    left, right = window or (None, None)
    return (~causal | (apart <= 0)) & ((left is None) | (-apart <= (left or 0))) & ((right is None) | (apart <= (right or 0)))


@pytest.mark.parametrize("rows, keys, options", [(500, 400, dict(causal=True)), (300, 500, dict(window=(200, 30))), (130, 256, {})])
def test_the_blocks_of_each_block_of_rows_are_listed(rows, keys, options):
    """Those of which all is seen from the front on, those of which some is from the end on; at least one block is listed."""
    q, k, _ = inputs(2, 2, 1, rows, keys, 128)
    made = kernels.block_mask(documents, q, k, arguments=(IDS, SLOPES), **options)
    bm, bn = made.block
    seen = seen_of(rows, keys, 2) & bounded(rows, keys, **options)
    above, blocks = -(-rows // bm), -(-keys // bn)
    assert made.table.shape == (2, 2, above, 2 + blocks)
    for place in np.ndindex(2, 2, above):
        whole, some, *numbers = made.table[place].tolist()
        each = [seen[place[0], place[1], place[2] * bm:(place[2] + 1) * bm, i * bn:(i + 1) * bn] for i in range(blocks)]
        assert numbers[:whole] == [i for i, x in enumerate(each) if x.all() and x.shape[1] == bn]
        want = [i for i, x in enumerate(each) if x.any() and not (x.all() and x.shape[1] == bn)]
        assert sorted(numbers[blocks - some:]) == (want if whole or want else [0])


@pytest.mark.parametrize("batch, d, options, more", [
    (2, 64, dict(causal=True), {}), (2, 128, dict(window=(200, 30)), dict(sinks=np.array([1.0, -2.0], np.float32))), (1, 256, {}, {}),
    (None, 64, dict(causal=True), dict(score=alibi)), (1, 128, {}, dict(config=Config(held=False, guesses=True)))])
def test_attention_by_listed_blocks_is_right(batch, d, options, more):
    q, k, v = inputs(batch, 2, 1, 430, 400, d)
    mask = kernels.block_mask(documents, q, k, arguments=(IDS, SLOPES), **options)
    got, lse = kernels.attention(q, k, v, mask=mask, lse=True, **more)
    seen = seen_of(430, 400, batch or 1)
    if "score" in more:
        apart = np.arange(430)[:, None] - np.arange(400)
        more = dict(change=lambda s: s - SLOPES[:, None, None] * apart)
    more.pop("config", None)
    check(got, lse, q, k, v, seen=seen if batch else seen[0], **options, **more)


def test_hidden_blocks_are_not_read():
    """Keys and values of the first document are NaN; blocks of the second begin where it does."""
    q, k, v = (x.copy() for x in inputs(1, 2, 2, 512, 512))
    ids = (np.arange(512) // 256).astype(np.int32)
    k[:, :, :256], v[:, :, :256] = np.nan, np.nan
    mask = kernels.block_mask(same_document, q, k, arguments=(ids,), by_batch=False, by_head=False)
    assert mask.table.shape[:2] == (1, 1)
    got = kernels.attention(q, k, v, mask=mask)
    check(got[:, :, 256:], None, q[:, :, 256:], k[:, :, 256:], v[:, :, 256:])


@pytest.mark.parametrize("rows, options", [(70, dict(config=Config(roles=False, bm=64, bn=32))), (70, dict(lengths=np.array([130, 60], np.int32))), (1, {})])
def test_other_kernels_take_a_block_mask_as_the_function_that_it_is(rows, options):
    q, k, v = inputs(2, 2, 1, rows, 130)
    arguments = IDS, SLOPES
    mask = kernels.block_mask(documents, q, k, arguments=arguments, causal=True)
    got = kernels.attention(q, k, v, mask=mask, **options)
    want = kernels.attention(q, k, v, mask=documents, arguments=arguments, causal=True, **options)
    assert np.array_equal(got.astype(np.float32), want.astype(np.float32))


def test_on_other_targets_a_block_mask_has_no_table(monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", "sm_80")
    q, k, v = inputs(1, 2, 1, 70, 100)
    mask = kernels.block_mask(documents, q, k, arguments=(IDS, SLOPES), causal=True)
    assert mask.table is None
    check(kernels.attention(q, k, v, mask=mask), None, q, k, v, seen=seen_of(70, 100, 1), causal=True)


def test_whole_blocks_are_not_masked():
    """The hot loop loads nothing that the mask needs, and selects no scores."""
    plan = HopperConstants(bm=128, bn=128, d=128, dv=128, stages=2, consumers=2, regs=(40, 232), held=False, turns=True, width=128, buffers=1,
                           scores=Scores(right=True, mask=same_document, extras=1, listed=True))
    x = tile.ArraySpec((4, 16, 4096, 128), "bfloat16")
    table, ids = tile.ArraySpec((1, 1, 32, 34), "int32"), tile.ArraySpec((4096,), "int32")
    made = hopper.compile(x, x, x, x, 0, 0, tile.ArraySpec((1,), "uint32"), (16, table), 0.1, 0, 0, 0.0, ids, 0, 0, 0, PLAN=plan, num_warps=12,
                          spills=1 << 20, target="sm_90a")
    body = min(loops(made), key=len)
    assert usual(body) <= 420 and all(count(body, name) == 0 for name in ("STL", "LDL", "LDG")) and count(body, "FSEL") == 4


Q, K = np.ones((2, 4, 130, 64), np.float16), np.ones((2, 2, 200, 64), np.float16)
MADE = dict(arguments=(IDS,), causal=True)


@pytest.mark.parametrize("q, k, options, words", [
    (Q[:, :, :100], K, {}, "the block mask is for 130 rows of q and 200 of k, not for 100 and 200"),
    (Q, K[:, :, 1:], {}, "not for 130 and 199"),
    (Q[:1], K[:1], {}, "the block mask is for 2 batches, and q has 1"),
    (Q[:, :2], K, {}, "the block mask is for 4 heads, and q has 2"),
    (Q, K, dict(window=(3, 0)), "causal and window are those of the block mask: pass them to kernels.block_mask"),
    (Q, K, dict(arguments=(IDS[1:],)), "the arguments are those of the block mask: pass them to kernels.block_mask"),
    (Q, K, dict(config=Config(bm=64)), "the mask's blocks have 128 rows and 128 columns: config.bm and config.bn must be these, not 64 and 128"),
])
def test_a_call_that_does_not_fit_a_block_mask_is_refused(q, k, options, words):
    mask = kernels.block_mask(same_document, Q, K, **MADE)
    with pytest.raises(LaunchError, match=words):
        kernels.attention(q, k, k, mask=mask, **options)


def test_bad_block_masks_are_refused():
    with pytest.raises(LaunchError, match="mask is a function under @tile.jit, not ndarray"):
        kernels.block_mask(np.ones((130, 200), bool), Q, K)
    with pytest.raises(LaunchError, match="and 0 of the arguments|the columns$"):
        kernels.block_mask(same_document, Q, K)
    with pytest.raises(LaunchError, match="q, k and v must all be"):
        kernels.block_mask(same_document, Q.astype(np.float32), K, arguments=(IDS,))
