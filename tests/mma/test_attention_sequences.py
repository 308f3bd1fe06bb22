"""`kernels.attention` of sequences with lengths, in pages, and of few rows, on the simulator, compared with float64 one by one."""

import warnings

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.attention.config import Config
from tilejit.kernels.attention.constants import HopperConstants, Scores, SequenceConstants
from tilejit.kernels.attention.hopper import hopper
from tilejit.kernels.attention.model import box_rows, choose_sequences
from tilejit.kernels.attention.planning import plan_launch
from tilejit.kernels.attention.problem import Request, check_attention
from tilejit.kernels.attention.sequences import combine, sequences
from tilejit.kernels.attention.tile_table import FIELDS, list_tiles
from tilejit.runtime.arrays import ArrayView, row_major

from tests.mma.attention_cases import BF16, check, inputs
from tests.mma.test_attention_call import alibi, count, loops, tried, usual


@pytest.fixture(autouse=True)
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", tile.TileWarning)
        yield


SINKS = np.array([1.0, -2.0, 3.0, 0.5], np.float32)


@pytest.mark.parametrize("batch, heads, kv_heads, rows, keys, options", [
    (1, 4, 1, 1, 300, {}), (2, 4, 2, 3, 600, dict(causal=True)), (None, 4, 4, 1, 700, dict(window=(100, 0))), (1, 4, 2, 7, 5, dict(causal=True)),
    (1, 4, 1, 16, 100, dict(sinks=SINKS, causal=True))])
def test_heads_that_share_keys_share_a_tile_of_few_rows(batch, heads, kv_heads, rows, keys, options):
    tried(*inputs(batch, heads, kv_heads, rows, keys), **options)


@pytest.mark.parametrize("splits", [1, 3, 7])
def test_parts_of_the_keys_are_put_together(splits):
    """More splits than blocks, too; sinks count once; rows that see no key in any part are 0."""
    config = Config(roles=False, bm=16, bn=32, splits=splits)
    tried(*inputs(1, 4, 2, 2, 130), config, sinks=SINKS, causal=True)
    tried(*inputs(1, 4, 4, 40, 30), config, causal=True)


ROLES, WITHOUT = Config(bm=192, bn=64, held=False, width=64), Config(roles=False, bm=64, bn=64)
GUESSES = Config(held=False, guesses=True, width=64)


@tile.jit
def by_sequence(batch, head, rows, columns):
    return (columns + rows + batch) % 3 != head


@pytest.mark.parametrize("rows, keys, config", [
    ([70, 0, 130, 1], [70, 5, 200, 0], None), ([70, 0, 230, 1], [70, 5, 200, 0], ROLES), ([70, 0, 130, 1], [70, 5, 200, 0], WITHOUT),
    ([1], [300], None), ([0, 0], [3, 4], ROLES), ([0, 0], [3, 4], WITHOUT),
    ([70, 0, 230, 1], [70, 5, 200, 0], GUESSES), ([40] * 150, [10] * 150, None), ([20] * 150, [10] * 150, None),
    ([300, 0, 90, 200, 1], [300, 5, 200, 500, 0], ROLES)])
def test_packed_sequences_are_right_one_by_one(rows, keys, config):
    """No rows, no keys, more sequences than are searched at once, few rows and many; with and without a bound on the right. Rows
    beyond the last sequence are left alone."""
    q, k, v = inputs(None, 2, 1, sum(rows) + 5, 1)[0], *inputs(None, 2, 1, 1, sum(keys) + 3)[1:]
    k, v = k.copy(), v.copy()
    k[:, sum(keys):], v[:, sum(keys):] = np.nan, np.nan
    out = np.full(q.shape, 7, BF16)
    options = dict(causal=len(rows) < 5, window=(40, None))
    _, lse = kernels.attention(q, k, v, lengths=(np.array(rows, np.int32), np.array(keys, np.int64)), out=out, lse=True, config=config, **options)
    first, start = 0, 0
    for n, m in zip(rows, keys):
        check(out[:, first:first + n], lse[:, first:first + n], q[:, first:first + n], k[:, start:start + m], v[:, start:start + m], **options)
        first, start = first + n, start + m
    assert (out[:, first:] == 7).all()


@given(lengths=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=4), bm=st.sampled_from((128, 192)),
       bn=st.sampled_from((16, 32, 48, 64)), stages=st.integers(1, 3), held=st.booleans(), ahead=st.booleans(), turns=st.booleans(),
       right=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_consumers_leave_out_hidden_blocks_of_sequences_and_clear_their_ends_together(lengths, bm, bn, stages, held, ahead, turns, right):
    """NaN stands behind the last sequence."""
    rows, keys = zip(*lengths)
    config = Config(bm=bm, bn=bn, stages=stages, held=held, ahead=ahead, turns=turns)
    q, k, v = inputs(None, 1, 1, sum(rows) + 1, 1, 32)[0], *(x.copy() for x in inputs(None, 1, 1, 1, sum(keys) + 2, 32)[1:])
    k[:, sum(keys):], v[:, sum(keys):] = np.nan, np.nan
    out = np.full(q.shape, 7, BF16)
    kernels.attention(q, k, v, lengths=(np.array(rows, np.int32), np.array(keys, np.int32)), out=out, window=(None, right), config=config)
    first, start = 0, 0
    for n, m in zip(rows, keys):
        check(out[:, first:first + n], None, q[:, first:first + n], k[:, start:start + m], v[:, start:start + m], window=(None, right))
        first, start = first + n, start + m


@pytest.mark.parametrize("config", [None, WITHOUT])
def test_a_packed_sequence_sees_nothing_of_its_neighbours(config):
    """One of NaN and infinities stands between two others; a mask gets the number of the sequence."""
    q, k, v = (x.copy() for x in inputs(None, 2, 2, 300, 300))
    k[:, 100:150], v[:, 100:150] = np.nan, np.inf
    got = kernels.attention(q, k, v, lengths=np.array([100, 50, 150], np.int32), mask=by_sequence, sinks=SINKS[:2], config=config)
    for i, (first, stop) in enumerate([(0, 100), (100, 150), (150, 300)]):
        n, own = np.arange(stop - first), np.s_[:, first:stop]
        if i != 1:
            check(got[own], None, q[own], k[own], v[own], seen=(n + n[:, None] + i) % 3 != np.arange(2)[:, None, None], sinks=SINKS[:2])


@pytest.mark.parametrize("rows, keys, packed", [([5, 70, 0, 128, 300], [200, 3, 400, 70, 200], True), ([40] * 130, [2, 1] * 65, True),
                                                ([200, -3, 999], [10, 10, 999], True), ([100] * 3, [30, 500, -1], False)])
def test_the_tiles_of_sequences_are_listed_with_the_longest_last(rows, keys, packed):
    """Packed sequences end where their array ends, whatever their lengths say."""
    most, bm, listed, first, start = (350 if packed else 100, 500), 64, [], 0, 0
    for i, (n, m) in enumerate(zip(rows, keys)):
        n, m = min(max(n, 0), most[0] - first), min(max(m, 0), most[1] - start)
        listed.append((m, i, [(i, n, m, start, at, first + at) for at in range(0, n, bm)]))
        first, start = (first + n, start + m) if packed else (0, 0)
    want = [line for _, _, lines in sorted(listed) for line in lines]
    table = np.full((len(want) + 4, FIELDS), -1, np.int32)
    list_tiles[len(rows)](table, np.array(rows, np.int32) if packed else 0, np.array(keys, np.int64), *most, 7, BM=bm, PACKED=packed)
    assert table[:len(want), 1:].tolist() == [list(line) for line in want] and table[-1, :2].tolist() == [len(want), 7]


def test_one_array_of_lengths_is_that_of_rows_and_keys():
    q, k, v = inputs(None, 2, 2, 150, 150)
    got = kernels.attention(q, k, v, lengths=np.array([100, 50], np.int32), score=alibi, arguments=(SINKS,))
    apart = np.arange(50)[:, None] - np.arange(50)
    check(got[:, 100:], None, q[:, 100:], k[:, 100:], v[:, 100:], change=lambda s: s - SINKS[:2, None, None] * apart)


@pytest.mark.parametrize("rows, options", [(2, dict(causal=True)), (100, dict(causal=True)), (100, dict(window=(30, 30)))])
def test_keys_behind_a_batchs_length_are_not_used(rows, options):
    """They hold NaN. A length beyond the array is that of the array, one below 0 is 0."""
    q, k, v = (x.copy() for x in inputs(4, 4, 2, rows, 200))
    lengths = [0, 130, 200, 64]
    for i, n in enumerate(lengths):
        k[i, :, n:], v[i, :, n:] = np.nan, np.nan
    got, lse = kernels.attention(q, k, v, lse=True, lengths=np.array([-3, 130, 1000, 64], np.int32), **options)
    for i, n in enumerate(lengths):
        check(got[i], lse[i], q[i], k[i, :, :n], v[i, :, :n], **options)


def paged(page, by_rows, lengths, kv_heads=2, d=64, seed=0):
    """Pages of k and v, in any order, with NaN behind the lengths; the table; and k and v of each sequence."""
    rng = np.random.default_rng(seed)
    width = -(-max(lengths) // page) + 1
    table = rng.permutation(len(lengths) * width + 3)[:len(lengths) * width].reshape(-1, width).astype(np.int32)
    pages, whole = [], []
    for _ in range(2):
        x = np.full((table.max() + 2, kv_heads, page, d), np.nan, BF16)
        each = [rng.standard_normal((kv_heads, n, d)).astype(BF16) for n in lengths]
        for i, n in enumerate(lengths):
            for at in range(0, n, page):
                x[table[i, at // page], :, :min(page, n - at)] = each[i][:, at:at + page]
        pages.append(np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) if by_rows else x)
        whole.append(each)
    return pages, table, whole


@pytest.mark.parametrize("page, by_rows, rows, splits", [(16, True, 1, None), (64, False, 3, None), (256, True, 100, None), (48, True, 1, 3), (64, True, 1, 2), (128, False, 2, 3),
                                                         (8, True, 1, 2), (8, False, 5, None), (4, True, 2, None), (1, True, 1, None)])
def test_keys_in_pages_are_right(page, by_rows, rows, splits):
    """Pages of any number of keys, both orders of heads and rows, few rows and many."""
    lengths = [0, 100, 333]
    (k, v), table, whole = paged(page, by_rows, lengths)
    q = inputs(3, 4, 2, rows, 1, seed=1)[0]
    config = None if splits is None else Config(roles=False, bm=16, bn=32, splits=splits)
    got, lse = kernels.attention(q, k, v, causal=True, lengths=np.array(lengths, np.int32), block_table=table, lse=True, config=config)
    for i in range(3):
        check(got[i], lse[i], q[i], whole[0][i], whole[1][i], causal=True)


@pytest.mark.parametrize("target, heads, kv_heads, rows, d, dv, options", [
    ("sm_90a", 4, 2, 5, 64, 32, dict(causal=True)), ("sm_90a", 20, 1, 1, 576, 512, {}), ("sm_90a", 2, 1, 70, 320, 288, dict(causal=True)),
    ("sm_80", 2, 1, 9, 272, 272, {})])
def test_values_may_be_the_first_columns_of_the_keys(target, heads, kv_heads, rows, d, dv, options, monkeypatch):
    """As in latent attention. Both are read once."""
    monkeypatch.setenv("TILEJIT_TARGET", target)
    q, k = inputs(1, heads, kv_heads, rows, 90, d)[:2]
    tried(q, k, k[..., :dv], **options)
    apart = k[..., :dv].copy()
    again = kernels.attention(q, k, apart, **options)  # with the plan of another kernel
    assert np.abs(again.astype(np.float32) - kernels.attention(q, k, k[..., :dv], **options).astype(np.float32)).max() < 0.05


def test_latent_keys_may_be_in_pages_and_in_packed_sequences():
    rng = np.random.default_rng(0)
    pages, table = rng.standard_normal((7, 1, 16, 144)).astype(BF16), np.array([[5, 1, 3], [0, 6, 2]], np.int32)
    q, lengths = rng.standard_normal((2, 6, 1, 144)).astype(BF16), np.array([40, 17], np.int32)
    got = kernels.attention(q, pages, pages[..., :128], lengths=lengths, block_table=table)
    for i, n in enumerate(lengths):
        k = pages[table[i]].transpose(1, 0, 2, 3).reshape(1, 48, 144)[:, :n]
        check(got[i], None, q[i], k, k[..., :128])
    q, k = rng.standard_normal((2, 57, 144)).astype(BF16), rng.standard_normal((1, 57, 144)).astype(BF16)
    got = kernels.attention(q, k, k[..., :128], lengths=lengths, causal=True)
    check(got[:, 40:], None, q[:, 40:], k[:, 40:], k[:, 40:, :128], causal=True)


def test_a_tile_has_some_of_many_heads_that_share_keys():
    """All 72 do not fit in one, and 12 heads of 5 rows do."""
    tried(*inputs(1, 144, 2, 1, 60))
    tried(*inputs(1, 24, 1, 5, 60), causal=True)


@pytest.mark.parametrize("dv, splits", [(256, 64), (512, 32)])
def test_as_many_parts_as_a_large_gpu_shares_are_put_together_without_spills(dv, splits):
    """One tile and many keys, on 132 multiprocessors: on the simulator's four the model never divides so far."""
    arrays = [ArrayView(16 * n, shape, row_major(shape), "bfloat16", 0)
              for n, shape in enumerate([(1, 16, 1, dv), (1, 1, 1 << 17, dv), (1, 1, 1 << 17, dv), (1, 16, 1, dv)])]
    request = Request(*arrays, None, causal=False, window=(None, None), positive=True, softcap=False, mask=None, score=None, extras=0, lse=False)
    assert choose_sequences(check_attention(request), "sm_90a", True, 132).splits == splits
    plan = SequenceConstants(bm=16, bn=32, d=dv, dv=dv, stages=2, heads=16, kv_heads=1, shared=16, splits=splits)
    spec = lambda *shape, dtype="float32": tile.ArraySpec(shape, dtype)
    made = combine.compile(spec(splits, 16, dv), spec(splits, 16), 0, spec(1, 16, 1, dv, dtype="bfloat16"), 0, PLAN=plan, target="sm_90a")
    assert made.spills == 0 and not made.warnings


def request_of(keys, batch=1, page=0, d=128, lengths=False, device: int | str = 0, unit=16):
    """One row of each of 32 heads, 8 to one of K and V. `unit`: the alignment of K and V."""
    pages = ArrayView(64, (batch, keys // page), (keys // page, 1), "int32", device) if page else None
    lengths = ArrayView(128, (batch,), (1,), "int32", device) if page or lengths else None
    kept = (batch * keys // page, 4, page, d) if page else (batch, 4, keys, d)
    arrays = [ArrayView(unit * n, shape, row_major(shape), "bfloat16", device) for n, shape in enumerate([(batch, 32, 1, d), kept, kept, (batch, 32, 1, d)])]
    return Request(*arrays, None, causal=False, window=(None, None), positive=True, softcap=False, mask=None, score=None, extras=0, lse=False,
                   pages=pages, key_lengths=lengths)


def decoded(*given, by_tma=True, **more):
    """(Warps, slots, CTAs that share a sequence's keys)."""
    config = choose_sequences(check_attention(request_of(*given, **more)), "sm_90a", by_tma, 132)
    return config.warps, config.stages, config.splits


def test_ctas_that_load_by_tma_have_two_warps_and_as_many_slots_as_few_turns_take():
    assert decoded(1 << 17) == decoded(1 << 17, page=64) == decoded(1 << 17, page=256) == (2, 2, 64)
    assert decoded(1 << 17, page=16) == (2, 3, 64)                                  # small pages
    assert decoded(8192, 16) == (2, 2, 4) and decoded(1024, 64) == (2, 2, 1)
    assert {decoded(8192, batch, page) for batch in (72, 99) for page in (0, 16, 64)} == {(2, 2, 1)}    # 396 CTAs at once
    assert {decoded(8192, batch, page) for batch in (100, 128) for page in (0, 16, 64)} == {(2, 3, 1)}  # 264 in two turns
    assert decoded(1 << 17, page=48) == decoded(1 << 17, by_tma=False) == decoded(1 << 17, d=64) == (4, 3, 64)
    assert decoded(1 << 17, lengths=True) == (4, 3, 64)                             # bounded by lengths, they come by cp.async


def test_pages_come_in_boxes_where_pages_and_blocks_divide_each_other():
    def box(page, config=None, unit=16):
        return plan_launch(request_of(3072, page=page, device="host", unit=unit), config, "sm_90a").constants["PLAN"].box
    assert {page: box(page) for page in (4, 8, 16, 48, 64, 96, 256)} == {4: 0, 8: 8, 16: 16, 48: 0, 64: 64, 96: 0, 256: 64}
    assert box(64, Config(roles=False, bm=16, bn=32)) == 32 and box(64, Config(roles=False, bm=16, bn=32, stages=1)) == box(64, unit=8) == 0


@pytest.mark.parametrize("page, keys", [(0, 1500), (16, 1100), (64, 1100), (256, 2300)])
def test_two_warps_and_two_slots_are_right(page, keys):
    config = Config(roles=False, bm=16, bn=64, warps=2, stages=2, splits=1 if page else 2)
    if not page:
        tried(*inputs(2, 8, 2, 1, keys, 128), config)
        return
    lengths = [keys, 3, 0, keys - 65]
    (k, v), table, whole = paged(page, True, lengths, d=128)
    q = inputs(4, 8, 2, 1, 1, 128)[0]
    got = kernels.attention(q, k, v, lengths=np.array(lengths, np.int32), block_table=table, config=config)
    for i in range(4):
        check(got[i], None, q[i], whole[0][i], whole[1][i])


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("target, bm, stages", [("sm_80", 32, 2), ("sm_100a", 32, 2), ("sm_90a", 64, 3), ("sm_90a", 16, 3)])
def test_wide_rows_do_not_spill(target, bm, stages, page):
    plan = SequenceConstants(bm=bm, bn=32, d=576, dv=512, stages=stages, heads=128, kv_heads=1, shared=bm, lengths=True, page=page, rows_first=True,
                             box=box_rows(page, 32), splits=4, inner=True, pieces=max(bm // 32, 1))
    spec = lambda *shape, dtype="bfloat16": tile.ArraySpec(shape, dtype)
    made = sequences.compile(spec(8, 128, 1, 576), spec(1 << 20, 576), spec(1 << 20, 576), spec(4, 1024, 512, dtype="float32"),
                             spec(4, 1024, dtype="float32"), 0, 0, spec(8, dtype="int32"), spec(8, 4096, dtype="int32"), 0.1, 0, 0, 0.0, 0, 0, 0, 0,
                             PLAN=plan, num_warps=8, target=target)
    assert made.spills == 0 and not made.warnings
    assert {x.variant for x in made.products} == ({"wgmma"} if bm == 64 else {"mma_sync"})


@pytest.mark.parametrize("target, variant", [("sm_90a", "wgmma"), ("sm_100a", "tcgen05")])
@pytest.mark.parametrize("page", [16, 64, 256])
def test_products_of_many_rows_read_blocks_of_pages_in_place(page, target, variant):
    spec = lambda *shape, dtype="bfloat16": tile.ArraySpec(shape, dtype)
    plan = SequenceConstants(bm=128, bn=64, d=128, dv=128, stages=2, heads=4, kv_heads=4, lengths=True, page=page, rows_first=True,
                             box=box_rows(page, 64), scores=Scores(right=True))
    q, k, n = spec(8, 4, 300, 128), spec(1 << 20, 4 * 128), spec(8, dtype="int32")
    made = sequences.compile(q, k, k, spec(8, 4, 300, 128), 0, 0, 0, n, spec(8, 4096, dtype="int32"), 0.1, 0, 0, 0.0, 0, 0, 0, 0, PLAN=plan,
                             num_warps=8, target=target)
    assert not made.spills and {x.variant for x in made.products} == {variant}


@pytest.mark.parametrize("target", ["sm_80", "sm_100a"])
def test_sequences_run_on_every_target(target, monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", target)
    tried(*inputs(1, 4, 1, 1, 300), causal=True)
    (k, v), table, whole = paged(16, True, [130], d=128)
    q = inputs(1, 4, 2, 70, 1, 128)[0]
    check(kernels.attention(q, k, v, lengths=np.array([130], np.int32), block_table=table)[0], None, q[0], whole[0][0], whole[1][0])


@pytest.mark.parametrize("kind", ["even", "padded", "packed", "pages of 16", "pages of 48", "pages of 64"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_blocks_are_loaded_ahead_without_spills(target, kind):
    few, paged = kind != "packed", kind.startswith("pages")
    page = int(kind[-2:]) if paged else 0
    plan = SequenceConstants(bm=16 if few else 64, bn=64, d=128, dv=128, stages=3 if few else 2, heads=32, kv_heads=4, shared=8 if few else 1,
                             lengths=kind != "even", packed=not few, page=page, box=box_rows(page, 64), rows_first=True, splits=4 if few else 1)
    spec = lambda *shape, dtype="bfloat16": tile.ArraySpec(shape, dtype)
    q, k = (spec(8, 32, 1, 128), spec(8, 4, 65536, 128)) if few else (spec(32, 5000, 128), spec(4, 5000, 128))
    k = spec(1 << 20, 4 * 128) if paged else k
    parts = (spec(4, 256, 128, dtype="float32"), spec(4, 256, dtype="float32")) if few else (q, 0)
    n = spec(8, dtype="int32")
    made = sequences.compile(q, k, k, *parts, 0, 0 if few else n, 0 if kind == "even" else n, spec(8, 4096, dtype="int32") if paged else 0,
                             0.1, 0, 0, 0.0, 0, 0, 0, 0, PLAN=plan, num_warps=4, target=target)
    assert made.spills == 0 and not made.warnings
    whole, cut = ("tma" if target == "sm_90a" else "ldgsts"), "ldgsts"  # threads load blocks in which sequences may end
    assert {c.variant for c in made.copies} == {"even": {whole}, "pages of 16": {whole, cut}, "pages of 64": {whole, cut}}.get(kind, {cut})


def test_the_loop_over_whole_blocks_of_packed_sequences_is_that_of_a_batch():
    """All that ends with a sequence is in the other loop, and all blocks come by TMA."""
    plan = HopperConstants(bm=128, bn=128, d=128, dv=128, stages=2, consumers=2, regs=(40, 232), held=True, turns=True, width=128, buffers=1,
                           scores=Scores(right=True), lengths=True, packed=True)
    x = tile.ArraySpec((16, 5000, 128), "bfloat16")
    made = hopper.compile(x, x, x, x, 0, 0, tile.ArraySpec((1,), "uint32"), tile.ArraySpec((100, FIELDS), "int32"), 0.1, 0, 0, 0.0, 0, 0, 0, 0,
                          PLAN=plan, num_warps=12, spills=1 << 20, target="sm_90a")
    body = min(loops(made), key=len)
    assert usual(body) <= 400 and count(body, "STL") == count(body, "LDL") == 0 and {c.variant for c in made.copies} == {"tma"}


Q, K, N = np.ones((2, 4, 1, 64), BF16), np.ones((2, 2, 100, 64), BF16), np.array([3, 4], np.int32)
TABLE = np.zeros((2, 3), np.int32)


@pytest.mark.parametrize("q, k, options, words", [
    (Q, K, dict(lengths=N[:1]), "lengths has the keys of each of the 2 batches, not of 1"),
    (Q, K, dict(lengths=N.astype(np.float32)), "lengths is an array of int32 or int64 with 1 dimension, on host, and it is float32"),
    (Q, K, dict(lengths=(N, N)), "lengths of q are for packed sequences"),
    (Q[0], K[0], dict(lengths=(N, N[:1])), "as many as lengths of k"),
    (Q, K, dict(lengths=[3, 4, 5]), "lengths is an array, or a pair of arrays"),
    (Q, K, dict(block_table=TABLE), "block_table says which pages a sequence has: lengths must say how many keys"),
    (Q, K, dict(block_table=TABLE[:1], lengths=N), r"block_table is \[batch, pages of a sequence\]"),
    (Q, K, dict(block_table=N, lengths=N), "block_table is an array of int32 or int64 with 2 dimensions"),
    (Q, K[:, :, ::2], dict(block_table=TABLE, lengths=N), r"pages are contiguous in the order \[pages, kv_heads, rows, D\] or"),
    (Q, K, dict(lengths=N, block_table=TABLE, config=Config()), "config.roles must be False"),
    (np.ones((1, 2, 1, 288), BF16), np.ones((1, 1, 5, 288), BF16), dict(config=Config()), "rows of over 256 columns need a kernel without roles"),
    (np.ones((1, 2, 1, 592), BF16), np.ones((1, 1, 5, 592), BF16), {}, "rows of q and k have a multiple of 16 elements, from 16 to 576, and not 592"),
    (Q, K, dict(config=Config(roles=False, bm=16, bn=32, splits=512)), "config.splits must be at most 256 for 64 columns, not 512"),
    (Q[0], K[0], dict(lengths=(N, N), config=Config(roles=False, splits=2)), "packed sequences are not split: config.splits must be 1, not 2"),
])
def test_bad_lengths_and_pages_are_refused(q, k, options, words):
    with pytest.raises(LaunchError, match=words):
        kernels.attention(q, k, k, **options)
