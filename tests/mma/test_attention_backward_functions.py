"""`score=` and `mask=` in the backward of attention, and blocks that a `block_mask` hides: on the simulator, compared with float64."""

import warnings
from functools import partial

import numpy as np
import pytest
import tilejit as tile
from tilejit import kernels
from tilejit.errors import CompilationError, LaunchError
from tilejit.kernels.attention.backward import call as backward
from tilejit.kernels.attention.block_mask import BackwardTables, BlockMask

from tests.mma.attention_cases import gradients, inputs
from tests.mma.test_attention_backward import SMALL, given, near, shaped, tried
from tests.mma.test_attention_call import alibi, count, loops, relative, same_document

IDS = (np.arange(400) // 90).astype(np.int32)
SLOPES = np.array([0.1, -0.02, 0.03, 0.2], np.float32)


@tile.jit
def steeper(s, batch, head, rows, columns, weights):
    """Every fifth column is hidden. For rows beyond the last, whose weight is 0, the scores are no numbers, and the derivative infinite."""
    s = tile.where(s > 0, s / tile.load(weights[rows]), 2.0 * tile.tanh(s / 2.0))
    return tile.where(columns % 5 == 0, -float("inf"), s)


@tile.jit
def branching(s, batch, head, rows, columns):
    """Other factors by branches behind a function, and powers of 0 and of 0.5."""
    s = 5.0 * tile.tanh(s / 5.0)
    power = tile.where(columns % 2 == 0, 0.0, 0.5) ** (1.0 + s * s)
    if head % 2 == 0:
        if batch == 0:
            return s * 0.5 + power
        return s * 2.0 + power
    return s + power


@tile.jit
def documents(batch, head, rows, columns, ids):
    """Of one document; no row sees the first 150 keys in head 1, and rows 130 to 200 nothing at all."""
    seen = tile.load(ids[rows]) == tile.load(ids[columns])
    return seen & ((head == 0) | (columns >= 150)) & ((rows < 130) | (rows >= 200))


@tile.jit
def not_every_third(batch, head, rows, columns, slopes):
    return columns % 3 > 0


def distances(heads, rows, keys):
    return SLOPES[:heads, None, None] * (np.arange(keys) - np.arange(rows)[:, None])


def by_alibi(shape):
    return dict(score=alibi, arguments=(SLOPES,), change=lambda s: s + distances(*(shape[n] for n in ("heads", "rows", "keys"))))


def by_weights(rows):
    weights = np.linspace(0.5, 2, rows).astype(np.float32)
    each = weights.astype(np.float64)[:, None]

    def change(s):
        return np.where(np.arange(s.shape[-1]) % 5 == 0, -np.inf, np.where(s > 0, s / each, 2 * np.tanh(s / 2)))
    return dict(score=steeper, arguments=(weights,), change=change,
                derivative=lambda s: np.where(s > 0, 1 / each, 1 - np.tanh(s / 2) ** 2))


def by_branches(keys):
    factor, base = np.array([[0.5, 1], [2, 1]])[:, :, None, None], np.where(np.arange(keys) % 2 == 0, 0, 0.5)

    def change(s):
        t = 5 * np.tanh(s / 5)
        return t * factor + base ** (1 + t * t)

    def derivative(s):
        t = 5 * np.tanh(s / 5)
        return (1 - (t / 5) ** 2) * (factor + base ** (1 + t * t) * np.log(0.5) * 2 * t)
    return dict(score=branching, change=change, derivative=derivative)


def of_table(rows, keys):
    """Scores by the distance of row and column, from a table."""
    table = np.random.default_rng(0).standard_normal((1, 2, 400)).astype(np.float32)
    apart = np.arange(rows)[:, None] - np.arange(keys)[None, :]
    return dict(score=relative, arguments=(table,), change=lambda s: s + table[:, :, apart + 200])


def of_documents(rows, keys):
    at, columns = np.arange(rows)[:, None], np.arange(keys)
    seen = (IDS[:rows, None] == IDS[:keys]) & ((at < 130) | (at >= 200))
    return np.stack([seen, seen & (columns >= 150)])


def called(shape, **options):
    tried(*inputs(**shape), **options)


def listed(shape, bounds, **options):
    """A call with the block mask of `documents`, whose tables the kernels take."""
    q, k, v = inputs(**shape)
    mask = kernels.block_mask(documents, q, k, arguments=(IDS,), by_batch=False, **bounds)
    assert mask.backward.by_keys.shape[:2] == mask.backward.by_rows.shape[:2] == (1, shape["heads"])
    tried(q, k, v, mask=mask, seen=of_documents(shape["rows"], shape["keys"]), **bounds, **options)
    assert list(backward.PLANS.values())[-1].listed


WIDE, NARROW = shaped(1, 1, 1, 150, 200, d=128), shaped(2, 2, 1, 70, 100, d=32)
SQUARE = shaped(1, 2, 1, 310, 310)
def packed_sequences():
    """Rows and columns count in each sequence, of which keys see those before them by a mask."""
    lengths, (q, k, v) = np.array([40, 0, 33], np.int32), inputs(None, 2, 1, 73, 73, 32)
    do, out, lse, dlse = np.ones_like(q), np.ones_like(q), np.zeros((2, 73), np.float32), np.zeros((2, 73), np.float32)
    want = []
    for start, n in ((0, 40), (40, 33)):
        here = slice(start, start + n)
        options = dict(change=lambda s, n=n: s + distances(2, n, n), seen=np.arange(n) % 3 > 0)
        for x, part in zip((do, out, lse, dlse), given(q[:, here], k[:, here], v[:, here], **options)):
            x[:, here] = part
        want.append((here, gradients(do[:, here], dlse[:, here], q[:, here], k[:, here], v[:, here], **options)))
    got = kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, lengths=lengths, mask=not_every_third, score=alibi,
                                     arguments=(SLOPES,), config=SMALL)
    for here, each in want:
        near([x[:, here] for x in got], each, v)


def hidden_blocks():
    """All that the first document has is NaN; blocks of the second begin where it does. With the mask as a function, its
    NaN would spread, or be no number times 0."""
    q, k, v = (x.copy() for x in inputs(1, 1, 1, 256, 256, 32))
    ids = (np.arange(256) // 128).astype(np.int32)
    second = slice(128, 256)
    do, out, lse, dlse = given(q, k, v, seen=ids[:, None] == ids)
    want = gradients(do, dlse, q, k, v, seen=ids[:, None] == ids)
    for x in (q, k, v, do, out):
        x[:, :, :128] = np.nan
    mask = kernels.block_mask(same_document, q, k, arguments=(ids,), by_batch=False, by_head=False)
    got = kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, mask=mask, deterministic=True)
    near([x[:, :, second] for x in got], [x[:, :, second] for x in want], v)


def lists_of_blocks():
    """Those of which all is seen from the front on, those of which some is, or that end beyond the last row, from the end on."""
    rows, keys, left, right = 310, 400, 250, 20
    q, k, _ = inputs(1, 2, 1, rows, keys, 128)
    made = kernels.block_mask(documents, q, k, arguments=(IDS,), window=(left, right))
    (bm, bn), table = made.backward.block, made.backward.by_keys
    apart = np.arange(keys) - (np.arange(rows)[:, None] + keys - rows)
    seen = of_documents(rows, keys) & (apart <= right) & (-apart <= left)
    blocks = -(-rows // bm)
    assert table.shape == (1, 2, -(-keys // bn), 2 + blocks)
    for place in np.ndindex(2, table.shape[2]):
        whole, some, *numbers = table[0][place].tolist()
        each = [seen[place[0], i * bm:(i + 1) * bm, place[1] * bn:(place[1] + 1) * bn] for i in range(blocks)]
        full = [i for i, x in enumerate(each) if x.all() and x.shape == (bm, bn)]
        assert numbers[:whole] == full
        assert sorted(numbers[blocks - some:]) == [i for i, x in enumerate(each) if x.any() and i not in full]


def no_lists():
    """The backward of such a block mask takes the function."""
    q, k, v = inputs(1, 2, 1, 200, 200)
    mask = kernels.block_mask(documents, q, k, arguments=(IDS,), by_batch=False, backward=False)
    assert mask.backward is None
    tried(q, k, v, mask=mask, seen=of_documents(200, 200))
    assert not list(backward.PLANS.values())[-1].listed


CASES = {  # the kernels of the first are assembled for every target
    "alibi_queries": ("sm_80", partial(called, NARROW, config=SMALL, deterministic=True, causal=True, **by_alibi(NARROW))),
    "no_numbers": ("sm_80", partial(called, NARROW, config=SMALL, **by_weights(70))),
    "branches": ("sm_80", partial(called, NARROW, config=SMALL, **by_branches(100))),
    "packed": ("sm_80", packed_sequences),
    "hidden_blocks": ("sm_80", hidden_blocks),
    "alibi_roles": ("sm_90a", partial(called, shaped(1, 4, 2, 150, 200), causal=True, **by_alibi(shaped(1, 4, 2, 150, 200)))),
    "no_numbers_roles": ("sm_90a", partial(called, WIDE, window=(70, 20), softcap=3.0, scale=-0.5, **by_weights(150))),
    "scratch": ("sm_90a", partial(called, shaped(1, 2, 1, 70, 100), **of_table(70, 100))),
    "listed_wide": ("sm_90a", partial(listed, {**SQUARE, "d": 128}, dict(window=(100, 40)), sinks=np.array([0.5, -1], np.float32))),
    "listed_queries": ("sm_90a", partial(listed, SQUARE, dict(causal=True), deterministic=True)),
    "lists_of_blocks": ("sm_90a", lists_of_blocks),
    "no_lists": ("sm_90a", no_lists),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_through_functions_are_those_of_float64(name, monkeypatch):
    """And the lists of blocks those of the mask."""
    target, case = CASES[name]
    monkeypatch.setenv("TILEJIT_TARGET", target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case()


@tile.jit
def normalized(s, batch, head, rows, columns):
    return s - tile.max(s, axis=1)[:, None]


def test_a_score_without_a_derivative_is_refused_with_its_line():
    q, k, v = inputs(1, 1, 1, 20, 20)
    do, out, lse, _ = given(q, k, v)
    with pytest.raises(CompilationError, match="normalized has no derivative by its first argument, since reduce here") as raised:
        kernels.attention_backward(do, q, k, v, out, lse, score=normalized, config=SMALL)
    assert "tile.max(s, axis=1)" in str(raised.value)


@pytest.mark.parametrize("lead, words", [((1, 3), "the block mask is for 3 heads, and q has 2"), ((2, 2), "the block mask is for 2 batches, and q has 1")])
def test_lists_of_other_batches_or_heads_are_refused(lead, words):
    q, k, v = inputs(1, 2, 1, 20, 20)
    table = np.zeros((*lead, 1, 3), np.int32)
    mask = BlockMask(same_document, (IDS,), False, (None, None), None, 20, 20, (64, 128), BackwardTables(table, table, (64, 128)))
    with pytest.raises(LaunchError, match=words):
        kernels.attention_backward(q, q, k, v, q, np.zeros((1, 2, 20), np.float32), mask=mask)


# -- what calls become ------------------------------------------------------------------------------------------------------

def test_whole_listed_blocks_on_hopper_evaluate_no_mask():
    """The loop over them loads the number of a block, and nothing that the mask needs; no tile changes its layout."""
    from tilejit.kernels.attention.backward.constants import HopperBackwardConstants
    from tilejit.kernels.attention.backward.gradients_hopper import gradients_hopper
    from tilejit.kernels.attention.backward.planning import REGISTERS
    from tilejit.kernels.attention.constants import Scores
    d, bm, rows, most = 128, 64, 4096, 420
    plan = HopperBackwardConstants(bm=bm, bn=128, d=d, dv=d, stages=2, regs=REGISTERS,
                                   scores=Scores(right=True, mask=same_document, extras=1, listed=(bm, 128)))
    x, lines = tile.ArraySpec((1, 32, rows, d), "bfloat16"), tile.ArraySpec((1, 32, rows), "float32")
    summed = tile.ArraySpec((1, 32, rows * d // 4096, 16, 256), "float32")
    group = 4, tile.ArraySpec((1, 1, rows // 128, 2 + rows // bm), "int32")
    made = gradients_hopper.compile(x, x, x, x, lines, lines, summed, x, x, tile.ArraySpec((1,), "uint32"), group, 0.1, 0, 0, 0.0,
                                    tile.ArraySpec((rows,), "int32"), 0, 0, 0, PLAN=plan, num_warps=12, spills=1 << 20, target="sm_90a")
    body = min(loops(made), key=len)
    assert len(body) <= most and count(body, "FSEL") == count(body, "STL") == 0 and count(body, "LDG") == 1
    assert "convert_layout" not in str(made.graph)
