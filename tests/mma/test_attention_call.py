"""`kernels.attention` on the simulator, compared with float64: every option, both kernels, every target; what it becomes."""

import importlib
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit import kernels
from tilejit.kernels.attention.config import Config
from tilejit.kernels.attention.hopper import hopper
from tilejit.kernels.attention.pipelined import pipelined
from tilejit.kernels.attention.problem import Request, check_attention
from tilejit.runtime.arrays import ArrayView, row_major

from tests.mma.attention_cases import BF16, check, inputs

model, planning = (importlib.import_module(f"tilejit.kernels.attention.{name}") for name in ("model", "planning"))
PIPELINED = Config(roles=False, bm=64, bn=64)


def tried(q, k, v, config=None, arguments=(), mask=None, score=None, **options):
    """Call `attention` and compare the result and the logarithms with the reference."""
    given = {name: x for name, x in options.items() if name not in ("seen", "change")}
    got, lse = kernels.attention(q, k, v, mask=mask, score=score, arguments=arguments, lse=True, config=config, **given)
    check(got, lse, q, k, v, **options)
    return got


CONFIGS = pytest.mark.parametrize("config", [None, PIPELINED], ids=["roles", "pipelined"])


@CONFIGS
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows, keys", [(200, 200), (257, 64), (1, 130), (70, 1), (40, 300)])
def test_any_numbers_of_rows_and_keys_are_right(rows, keys, causal, config):
    """More rows than keys: the first rows see no key, and are 0 with a logarithm of -inf."""
    tried(*inputs(1, 2, 2, rows, keys, seed=rows), config, causal=causal)


@pytest.mark.parametrize("rows, keys", [(0, 10), (10, 0), (0, 0)])
def test_no_rows_and_no_keys_are_right(rows, keys):
    q, k, v = inputs(2, 2, 1, rows, keys)
    tried(q, k, v, causal=True)
    tried(q, k, v, sinks=np.array([0.5, -1.0], np.float32))


@pytest.mark.parametrize("d, dv, dtype", [(64, 64, np.float16), (96, 96, BF16), (128, 128, BF16), (128, 128, np.float16), (192, 128, BF16), (192, 192, BF16),
                                          (256, 256, BF16), (80, 48, BF16), (16, 256, BF16)])
def test_every_number_of_columns_is_right(d, dv, dtype):
    tried(*inputs(1, 1, 1, 70, 150, d, dv, dtype), causal=True)


@pytest.mark.parametrize("d", [64, 96, 192, 256])
def test_every_number_of_columns_is_right_with_several_consumers(d):
    """The plans of large problems."""
    bn, held, width = {64: (128, False, 64), 96: (128, True, 96), 192: (96, False, 64), 256: (80, False, 0)}[d]
    tried(*inputs(1, 1, 1, 300, 150, d), Config(bm=192 if d == 64 else 128, bn=bn, held=held, width=width), causal=True)


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(window=(70, 20), softcap=3.0)], ids=lambda x: "-".join(x) or "full")
def test_results_stored_under_the_next_tile_s_product_are_right(options):
    """Each CTA has several tiles, and the last is followed by none."""
    tried(*inputs(3, 2, 1, 330, 250), Config(bm=192, held=False, ahead=True, width=64), **options)


TWO = Config(bm=128, bn=128, held=True, turns=False, width=128)  # two consumers at 128 columns

@given(rows=st.integers(1, 450), keys=st.integers(1, 450), bm=st.sampled_from((128, 192)), bn=st.sampled_from((16, 32, 48, 64, 112)),
       stages=st.integers(1, 3), held=st.booleans(), ahead=st.booleans(), turns=st.booleans(), right=st.integers(0, 200), left=st.sampled_from((None, 0, 90)),
       seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_consumers_leave_out_blocks_that_a_bound_hides_from_their_rows(rows, keys, bm, bn, stages, held, ahead, turns, right, left, seed):
    """Small blocks of few columns, any numbers of rows and keys, with and without turns, of one slot and more."""
    config = Config(bm=bm, bn=bn, stages=stages, held=held, ahead=ahead, turns=turns)
    tried(*inputs(1, 2, 1, rows, keys, 16, seed=seed), config, window=(left, right))


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("batch, heads, kv_heads", [(None, 4, 1), (2, 4, 2), (3, 1, 1)])
def test_heads_share_keys_and_the_result_has_the_order_of_the_queries(batch, heads, kv_heads, by_rows):
    q, k, v = inputs(batch, heads, kv_heads, 70, 100, by_rows=by_rows)
    for config in (None, PIPELINED):
        got = tried(q, k, v, config)
        # the strides of an axis of one element say nothing
        several = [axis for axis, n in enumerate(q.shape) if n > 1]
        assert sorted(several, key=lambda axis: got.strides[axis]) == sorted(several, key=lambda axis: q.strides[axis])


@CONFIGS
@pytest.mark.parametrize("window, causal", [((30, 10), False), ((None, 0), False), ((0, 0), False), ((100, None), True)])
def test_a_window_bounds_what_a_row_sees(window, causal, config):
    q, k, v = inputs(1, 1, 1, 200, 300)
    tried(q, k, v, config, window=window, causal=causal)
    tried(k, q, q, config, window=window, causal=causal)


def test_a_huge_scale_leaves_rows_right_that_see_nothing_of_their_first_block():
    tried(*inputs(1, 1, 1, 100, 300), replace(TWO, width=64), window=(40, 0), scale=2.0**29)


@pytest.mark.parametrize("guesses", [False, True])
def test_rows_whose_scores_are_all_very_low_weigh_them_alike(guesses):
    """A number instead of -inf does not hide: rows that see such scores only have the mean of the values."""
    q, k, v = inputs(1, 1, 1, 100, 300)
    config = replace(TWO, width=64, held=not guesses, guesses=guesses)
    low = (np.arange(100) < 7)[:, None]
    tried(q, k, v, config, score=very_low, arguments=(7,), change=lambda s: np.where(low, np.float32(-1e35), s))


@CONFIGS
@pytest.mark.parametrize("options", [dict(softcap=1.5, scale=1.0), dict(scale=-0.3), dict(scale=0)], ids=str)
def test_scale_and_softcap_are_right(options, config):
    """Also a scale of 0 or below, whose largest score is not that of the largest product."""
    tried(*inputs(1, 2, 1, 100, 150), config, causal=True, **options)


@tile.jit
def alibi(s, batch, head, rows, columns, slopes):
    return s + tile.load(slopes[head]) * tile.cast(columns - rows, tile.float32)


@tile.jit
def relative(s, batch, head, rows, columns, table):
    return s + tile.load(table[batch, head, rows - columns + 200])


@tile.jit
def very_low(s, batch, head, rows, columns, n):
    return tile.where(rows < n, -1.0e35, s)


@tile.jit
def same_document(batch, head, rows, columns, ids):
    return tile.load(ids[rows]) == tile.load(ids[columns])


@tile.jit
def every_third(batch, head, rows, columns):
    return (columns + head) % 3 == 0


@tile.jit
def tilting(s, batch, head, rows, columns, slopes):
    """Linear in the columns, and not in the rows."""
    return tile.load(slopes[head]) * tile.cast(columns - 3, tile.float32) + s - tile.cast(rows % 5, tile.float32)


@tile.jit
def by_quarters(s, batch, head, rows, columns, slopes):
    return s - 0.25 * tile.cast(columns - rows, tile.float32)


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(window=(90, 33)), dict(scale=3.0), dict(scale=-0.2), dict(softcap=2.0),
                                     dict(sinks=np.array([0.5, -1, 0, 2], np.float32))], ids=lambda x: "-".join(x) or "full")
@pytest.mark.parametrize("d, config", [(64, None), (64, Config(bm=192, held=False, ahead=True, width=64)), (128, None), (128, Config(held=True)), (256, None)],
                         ids=["64", "ahead", "128", "held", "256"])
@pytest.mark.parametrize("function, change", [(alibi, lambda s, m, i, j: s + m * (j - i)), (tilting, lambda s, m, i, j: m * (j - 3) + s - i % 5),
                                              (by_quarters, lambda s, m, i, j: s - 0.25 * (j - i))], ids=["alibi", "tilting", "quarters"])
def test_what_functions_add_in_steps_is_right(function, change, d, config, options):
    """The accumulators begin with it, where only a scale above 0 comes between. Maxima rise slowly, fast, and fall."""
    q, k, v = inputs(1, 4, 2, 100, 450, d)
    slopes, i, j = np.array([0.01, -0.2, 2.5, -7], np.float32), np.arange(100)[:, None], np.arange(450)
    tried(q, k, v, config, score=function, arguments=(slopes,), change=lambda s: change(s, slopes[:, None, None].astype(float), i, j), **options)


@tile.jit
def low_first_rows(s, batch, head, rows, columns, slopes):
    return s + tile.load(slopes[head]) * tile.cast(columns - rows, tile.float32) + tile.where(rows < 7, -1.0e35, 0.0)


@tile.jit
def beyond(s, batch, head, rows, columns, n):
    return s + 1e-8 * tile.cast(columns + n, tile.float32)


@tile.jit
def in_sixteens(s, batch, head, rows, columns):
    parts = tile.reshape(s, (s.shape[0], s.shape[1] // 16, 16))
    return tile.reshape(parts, s.shape) + 0.1 * tile.cast(columns - rows, tile.float32)


def test_what_functions_add_in_steps_may_be_very_low_and_wrap():
    q, k, v = inputs(1, 2, 1, 100, 300)
    slopes, i, j = np.array([0.01, -0.2], np.float32), np.arange(100)[:, None], np.arange(300)
    change = lambda s: s + slopes[:, None, None].astype(float) * (j - i)
    config = Config(bm=128, bn=128, held=False, width=64)
    for scale in (None, 50.0):
        tried(q, k, v, config, score=low_first_rows, arguments=(slopes,), scale=scale, change=lambda s: np.where(i < 7, -1e35, change(s)))
    for scale in (1e-45, 1e-36, 1e-20, 2.0 ** 26):
        tried(q, k, v, config, score=alibi, arguments=(slopes,), scale=scale, change=change)
    n = 2 ** 31 - 200
    tried(q, k, v, config, score=beyond, arguments=(n,), change=lambda s: s + 1e-8 * (j + n).astype(np.int32))
    tried(q, k, v, config, score=in_sixteens, change=lambda s: s + 0.1 * (j - i))


@CONFIGS
def test_scores_go_through_the_users_function(config):
    q, k, v = inputs(2, 2, 1, 100, 150)
    slopes, table = np.array([0.1, -0.4], np.float32), np.random.default_rng(0).standard_normal((2, 2, 400)).astype(np.float32)
    apart = np.arange(100)[:, None] - np.arange(150)[None, :]
    tried(q, k, v, config, score=alibi, arguments=(slopes,), causal=True, change=lambda s: s - slopes[:, None, None] * apart)
    few = config or Config(bm=64, bn=64)  # LLVM takes 13 s for the addresses of 128 x 128 elements, and 1 s for these
    tried(q, k, v, few, score=relative, arguments=(table,), change=lambda s: s + table[:, :, apart + 200])


@CONFIGS
def test_a_mask_is_the_users_function(config):
    """Documents that no row of others sees; and a mask that depends on the head."""
    q, k, v = inputs(1, 2, 2, 200, 200)
    ids = (np.arange(200) // 70).astype(np.int32)
    tried(q, k, v, config, mask=same_document, arguments=(ids,), causal=True, seen=ids[:, None] == ids[None, :])
    tried(q, k, v, config, mask=every_third, seen=(np.arange(200) + np.arange(2)[:, None, None]) % 3 == 0)


@tile.jit
def first_columns(batch, head, rows, columns, most):
    return columns < most


@tile.jit
def only_first_columns(s, batch, head, rows, columns, most):
    return tile.where(columns < most, s, -float("inf"))


@CONFIGS
def test_a_row_may_see_nothing_of_many_blocks(config):
    """By a mask, or by scores of minus infinity."""
    q, k, v = inputs(1, 2, 1, 100, 300)
    seen = (np.arange(300) < 50)[None, :]
    tried(q, k, v, config, mask=first_columns, arguments=(50,), seen=seen)
    tried(q, k, v, config, score=only_first_columns, arguments=(50,), seen=seen)


@CONFIGS
def test_sinks_count_in_the_sums(config):
    """Also in rows that see no key, whose logarithm is then the sink."""
    q, k, v = inputs(1, 3, 1, 150, 70)
    tried(q, k, v, config, causal=True, sinks=np.array([0.5, 90.0, -np.inf], np.float32))


@CONFIGS
def test_nan_and_infinity_spread_as_in_the_reference(config):
    """In a row of Q, a seen key or a seen value; not from keys that the mask hides."""
    q, k, v = (x.copy() for x in inputs(1, 1, 1, 70, 130))
    q[0, 0, 3, 5], q[0, 0, 4, 0] = np.nan, np.inf
    tried(q, k, v, config)
    q, k, v = (x.copy() for x in inputs(1, 1, 1, 130, 130))
    k[0, 0, 100, 1], k[0, 0, 110, 0] = np.nan, -np.inf
    tried(q, k, v, config, causal=True)
    q, k, v = (x.copy() for x in inputs(1, 1, 1, 70, 130))
    v[0, 0, 3, 5], v[0, 0, 4, 0] = np.nan, -np.inf
    tried(q, k, v, config)


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_every_target_has_a_kernel(target, d, monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", target)
    tried(*inputs(1, 2, 1, 70, 100, d), causal=True, window=(40, None))


@pytest.mark.parametrize("pad", [8, 2, 1])
def test_rows_at_any_distance_are_right_without_warnings(pad):
    """TMA takes multiples of 16 bytes, cp.async of 4."""
    q, k, v = (x[..., pad - 1 if pad < 8 else 0:][..., :64] for x in inputs(1, 2, 2, 70, 100, 64 + pad))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tried(q, k, v, causal=True)


def test_views_are_right():
    """Broadcast heads, reversed rows, columns that are not contiguous; a result given as a view."""
    q, k, v = inputs(2, 2, 2, 70, 100)
    tried(q, np.broadcast_to(k[:1], k.shape), v)
    tried(q[:, :, ::-1], k, v, causal=True)
    tried(np.asfortranarray(q), k, v)
    for out in (np.full((2, 70, 2, 64), 7, BF16).swapaxes(1, 2), np.full((2, 2, 70, 130), 7, BF16)[..., 1:65]):
        assert kernels.attention(q, k, v, out=out) is out
        check(out, None, q, k, v)


# -- what calls become ------------------------------------------------------------------------------------------------------

def problem_of(shape, **options):
    """The problem of arrays of one shape."""
    view = ArrayView(0, shape, row_major(shape), "bfloat16", "host")
    values = dict(causal=False, window=(None, None), positive=True, softcap=False, mask=None, score=None, extras=0, lse=False) | options
    return check_attention(Request(view, view, view, None, None, **values))


@pytest.mark.parametrize("d, rows, options, skips", [(256, 4096, dict(causal=True), True), (64, 4096, dict(window=(None, 5)), True), (128, 4096, dict(causal=True), False),
                                                     (256, 4096, dict(), False), (256, 4096, dict(window=(5, None)), False), (256, 64, dict(causal=True), False)])
def test_blocks_are_left_out_if_a_bound_hides_some_from_a_consumer(d, rows, options, skips):
    problem = problem_of((1, 32, rows, d), **options)
    assert model.skips_blocks(problem, model.choose(problem, "sm_90a", True, True, 132)) == skips


def test_heads_are_taken_together_as_cache_and_processors_want_it():
    assert [model.heads_at_once(problem_of((1, 32, rows, 256), causal=True)) for rows in (1024, 4096, 16384, 65536)] == [16, 4, 4, 4]
    assert model.heads_at_once(problem_of((1, 2, 16384, 256), causal=True)) == 2
    assert model.heads_at_once(problem_of((1, 32, 16384, 256))) == 1


def compiled(d=128, rows=4096, target="sm_90a", config=None, **options):
    """The kernel of a call with large arrays."""
    shape = (1, 32, rows, d)
    problem = problem_of(shape, **options)
    config = config or model.choose(problem, target, True, True, 132)
    plan = planning.constants(problem, config, True, True)
    x = tile.ArraySpec(shape, "bfloat16")
    sums = tile.ArraySpec(shape[:-1], "float32") if problem.request.lse else 0
    extra = (tile.ArraySpec((rows,), "int32" if problem.scores.mask else "float32"), 0, 0, 0) if problem.scores.extras else (0,) * 4
    counter = (tile.ArraySpec((1,), "uint32"), 16) if config.roles else ()
    return (hopper if config.roles else pipelined).compile(x, x, x, x, sums, 0, *counter, 0.1, 0, 0, 0.0, *extra, PLAN=plan, num_warps=config.num_warps,
                                                           spills=1 << 20, target=target)


def loops(made, product="HGMMA"):
    """The instructions of each loop with products (QGMMA of float8): from the target of a backward branch to the branch. The waits that
    stand behind all other code branch back without a condition."""
    code, labels = [], {}
    for line in made.sass().splitlines():
        if found := re.match(r"\s*(\.L_x_\w+):", line):
            labels[found[1]] = len(code)
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            code.append(found[1].strip())
    back = [(i - labels[name[1]], labels[name[1]], i) for i, text in enumerate(code)
            if (name := re.match(r"@\S+ BRA.*?(\.L_x_\w+)", text)) and labels[name[1]] < i]
    kept = []
    for _, first, last in sorted(back):
        if all(last < a or b < first for a, b in kept) and count(code[first:last], product):
            kept.append((first, last))
    return [code[first:last + 1] for first, last in kept]


def count(body, name):
    """How many instructions of a loop have a name; predicates come before it."""
    return sum(re.sub(r"^@\S+ ", "", text).startswith(name) for text in body)


def usual(body):
    """How many instructions of a loop run if threads skip the rescaling: the most multiplications behind a branch."""
    ends = [i for i, text in enumerate(body) if re.match(r"@\S+ BRA", text)]
    skipped = (next((n for n, text in enumerate(body[i + 1:]) if not text.startswith("FMUL")), 0) for i in ends)
    return len(body) - max(skipped, default=0)


@pytest.mark.parametrize("d, most, moved", [(64, 407, 68), (128, 393, 68), (256, 310, 36)])
def test_the_loop_over_whole_blocks_on_hopper_has_no_instruction_too_many(d, most, moved):
    """One multiplication and one power for each score, none for a mask, no spill in the loops, shuffles for the maxima only, and descriptors in uniform
    registers. The maxima are found under the product of the values, not behind it. A row's number and exponent are two selections.
    With three consumers, 12 instructions test whether the next slots are full."""
    made = compiled(d, config=TWO if d == 128 else None)
    for body in (bodies := loops(made)):
        assert count(body, "STL") == count(body, "LDL") == count(body, "R2UR") == 0 and count(body, "SHFL") == 4
        first, last = (next(i for i, text in enumerate(body) if f"WARPGROUP.DEPBAR.LE gsb0, 0x{n}" in text) for n in (1, 0))
        assert count(body[first:last], "FMNMX") >= moved - 6
    body = min(bodies, key=len)
    assert usual(body) <= most and count(body, "FFMA") <= moved and count(body, "FSEL") == 4
    assert len(bodies) == 2 and made.spills <= 256  # of addresses, once in a tile


@pytest.mark.parametrize("d, options", [(64, dict(causal=True, window=(1000, None), lse=True)), (128, dict(softcap=True, causal=True)),
                                        (128, dict(score=alibi, extras=1)), (64, dict(score=alibi, extras=1)), (64, dict(mask=same_document, extras=1))],
                         ids=lambda x: "-".join(x) if isinstance(x, dict) else x)
def test_no_loop_over_blocks_on_hopper_spills(d, options):
    made = compiled(d, **options)
    assert (bodies := loops(made)) and all(count(body, "STL") == count(body, "LDL") == 0 for body in bodies)


def test_sums_in_chains_leave_no_rescaling_behind_the_powers():
    """ptxas then computes its factor first. The results are right."""
    assert model.chains_sums(problem_of((1, 2, 300, 128))) and not model.chains_sums(problem_of((1, 2, 300, 128), causal=True))
    tried(*inputs(1, 2, 1, 200, 300, 128), replace(TWO, warps=8))
    body = min(loops(compiled(128, config=TWO)), key=len)
    last = max(i for i, text in enumerate(body) if "MUFU.EX2" in text)
    assert usual(body) <= 393 and count(body, "FMUL") >= 64 and count(body[last:], "FMUL") <= 8


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("target", ["sm_80", "sm_100a"])
def test_kernels_of_other_targets_do_not_spill(target, d):
    made = compiled(d, target=target, causal=True)
    assert "%sum.1 = convert_layout" not in str(made.graph)  # the sums of a block are added in the layout that they have
    assert made.spills == 0 and {p.variant for p in made.products} == {"mma_sync" if target == "sm_80" else "tcgen05"}


def test_probabilities_become_an_operand_without_moving():
    made = compiled(128, causal=True)
    assert "convert_layout" not in str(made.graph) and {c.variant for c in made.copies} == {"tma"}
