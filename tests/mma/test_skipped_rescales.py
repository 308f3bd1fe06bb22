"""Threads skip the rescaling of results whose factors a kernel chooses to be 1; attention keeps a row's number until its maximum is far above it."""

from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from tilejit import kernels
from tilejit.kernels.attention.config import Config

from tests.emitted_code import run_emitted
from tests.gpu import in_child, needs_gpu
from tests.mma.attention_cases import BF16, check
from tests.mma.test_attention_call import TWO, alibi, compiled, count, loops, tried


@tile.jit(num_warps=1)
def rescaled(x, rises, y, limit, R: tile.constexpr, N: tile.constexpr, WHERE: tile.constexpr):
    """Rows of sums, multiplied by a power for each of the rises that is over a limit."""
    acc = tile.load(x[0:R, 0:N])
    for i in range(rises.shape[0]):
        rise = tile.max(tile.load(rises[i, 0:R, 0:N]), axis=1)
        by = tile.exp2(tile.where(rise <= limit, 0.0, -rise) if WHERE else -rise)
        acc = acc * by[:, None]
    tile.store(y[0:R, 0:N], acc)


def arguments(rows: int = 16, n: int = 64):
    rng = np.random.default_rng(0)
    rises = rng.integers(-3, 9, (6, rows)).astype(np.float32)
    rises[2] = 1                                        # no row is rescaled,
    rises[3] = np.where(np.arange(rows) == rows - 2, 7, 0)  # one is,
    rises[4, rows - 1] = np.nan                         # and one becomes NaN
    x = rng.standard_normal((rows, n)).astype(np.float32)
    x[0, 1], x[1, 2] = np.inf, -0.0
    taken = np.where(rises <= 4, 0, -rises).sum(0)
    return x, np.repeat(rises[:, :, None], n, axis=2), np.zeros_like(x), np.exp2(taken)[:, None] * x


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_rescaled_where_their_factor_is_not_one(seed):
    x, rises, y, want = arguments()
    rescaled.simulate(1, x, rises, y, 4.0, R=16, N=64, WHERE=True, seed=seed).raise_first()
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_emitted_rows_are_rescaled_where_their_factor_is_not_one(target):
    x, rises, y, want = arguments(4, 512)  # 16 elements of each row in a thread
    made = rescaled_fast.compile(x, rises, y, R=4, N=512, target=target)
    assert "\nthen" in made.llvm_ir
    run_emitted(made, [x, rises, y], threads=32)
    np.testing.assert_array_equal(y, want)


@tile.jit(num_warps=1)
def rescaled_fast(x, rises, y, R: tile.constexpr, N: tile.constexpr):
    """`rescaled` with a limit of 4, by the instruction alone."""
    acc = tile.load(x[0:R, 0:N])
    for i in range(rises.shape[0]):
        rise = tile.max(tile.load(rises[i, 0:R, 0:N]), axis=1)
        acc = acc * tile.exp2(tile.where(rise <= 4.0, 0.0, -rise), fast=True)[:, None]
    tile.store(y[0:R, 0:N], acc)


def branches(made) -> int:
    return made.graph.count("= rescale(")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_only_factors_that_are_chosen_to_be_one_get_a_branch(target):
    x, rises, y, _ = arguments(4, 512)
    chosen, plain = (rescaled.compile(x, rises, y, 4.0, R=4, N=512, WHERE=where, target=target) for where in (True, False))
    assert branches(chosen) == 1 and branches(plain) == 0 and chosen.spills == 0
    x, rises, y, _ = arguments()
    assert branches(rescaled.compile(x, rises, y, 4.0, R=16, N=64, WHERE=True, target=target)) == 0, "4 elements of a row in a thread"


def test_the_branch_is_around_the_products_alone():
    """A thread has 32 elements of two rows."""
    @tile.jit(num_warps=4)
    def weighted(q, k, v, o, limit):
        acc = tile.zeros((64, 64))
        for i in range(0, k.shape[0], 64):
            s = tile.dot(tile.load(q[0:64, 0:32]), tile.load(k[i:i + 64, 0:32]).T)
            rise = tile.max(s, axis=1)
            acc = acc * tile.exp2(tile.where(rise <= limit, 0.0, -rise))[:, None]
            acc = tile.dot(s.to(tile.float16), tile.load(v[i:i + 64, 0:64]), acc)
        tile.store(o[0:64, 0:64], acc)

    spec = tile.ArraySpec((64, 64), "float16")
    made = weighted.compile(spec, spec, spec, tile.ArraySpec((64, 64), "float32"), 4.0, target="sm_90a")
    assert branches(made) == 1 and made.llvm_ir.count("\nthen") == 1 and made.llvm_ir.count("fmul contract float") == 32


CONFIGS = {64: Config(bm=192, held=False, ahead=True, width=64), 128: TWO, 256: Config(bm=128, bn=80, held=False)}
GUESSING = {64: Config(bm=192, bn=96, held=False, ahead=True, width=64, guesses=True), 128: Config(held=False, width=128, guesses=True),
            256: Config(bn=80, held=False, guesses=True)}


@pytest.mark.parametrize("step", [0.5, 3.0, 9.0, -3.0, -9.0])
@pytest.mark.parametrize("d, causal", [(64, False), (128, False), (128, True), (256, False)])
@pytest.mark.parametrize("configs", [CONFIGS, GUESSING], ids=["late", "guesses"])
def test_attention_is_right_however_maxima_rise(d, causal, step, configs):
    """The exponents of a block's scores are `step` above those of the next block, in the order of the kernel."""
    config = configs[d]
    rng = np.random.default_rng(int(step * 2) + d)
    rows, keys = 200, config.bn * 5 + 7
    q, k = (0.1 * rng.standard_normal((1, 1, n, d)) for n in (rows, keys))
    q[..., 0], k[..., 0] = 1, -step * np.log(2) * (np.arange(keys) // config.bn) * d ** 0.5
    v = rng.standard_normal((1, 1, keys, d))
    tried(*(x.astype(BF16) for x in (q, k, v)), config, causal=causal)


@tile.jit
def leaning(s, batch, head, rows, columns, slopes):
    """Scores that rise or fall from block to block. No row sees the last columns, which come first, and some see none."""
    s = s + tile.load(slopes[head]) * (columns - rows).to(tile.float32)
    return tile.where((columns < 300) & (rows % 7 != 3), s, -float("inf"))


@tile.jit
def seldom(batch, head, rows, columns):
    return (columns < 300) & (rows % 7 != 3)


@pytest.mark.parametrize("d, config", [(64, Config(held=False, width=64)), (128, replace(TWO, held=False, turns=True)), (256, CONFIGS[256])])
def test_maxima_may_be_late_where_functions_hide_whole_blocks(d, config):
    rng = np.random.default_rng(d)
    q, k, v = (rng.standard_normal((1, 4, n, d)).astype(BF16) for n in (200, 555, 555))
    slopes = np.array([0.02, -0.02, 0.1, -0.1], np.float32)
    distances = np.arange(555) - np.arange(200)[:, None]
    seen = (np.arange(555) < 300) & (np.arange(200)[:, None] % 7 != 3)
    tried(q, k, v, config, score=leaning, arguments=(slopes,), seen=seen, change=lambda s: s + slopes[:, None, None].astype(float) * distances)
    tried(q, k, v, config, mask=seldom, seen=seen)


@pytest.mark.parametrize("d, most", [(64, 410), (128, 446)])
def test_the_products_of_alibi_begin_with_what_it_adds(d, most):
    """A multiply-add for each score, and a few instructions for a thread's first columns."""
    body = max(loops(compiled(d, score=alibi, extras=1)), key=len)
    assert count(body, "STL") == count(body, "LDL") == 0
    taken = body[:next(i for i, text in enumerate(body) if text.startswith("BRA"))]
    assert count(taken, "FFMA") <= 64 + 68 and count(taken, "FADD") <= 64 + 4 and count(taken, "FMUL") <= 8 and len(taken) <= most


@pytest.mark.parametrize("rise", [12.0, 12.9, 13.1, 15.0, 40.0, 200.0])
@pytest.mark.parametrize("dtype", [BF16, np.float16])
def test_a_guess_is_dropped_if_a_single_row_rises_too_far(rise, dtype):
    """One key of a late block, which one row sees far above all others."""
    rng = np.random.default_rng(2)
    q, k, v = (0.1 * rng.standard_normal((1, 1, n, 128)) for n in (150, 500, 500))
    q[..., 0], q[0, 0, 77, 0], k[..., 0], k[0, 0, 33, 0] = 0, 1, 0, rise * np.log(2) * 128 ** 0.5
    tried(*(x.astype(dtype) for x in (q, k, v)), GUESSING[128])


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("options", [dict(causal=True), dict(window=(90, 20)), dict(softcap=3.0), dict(scale=-0.3), dict(sinks=True), {}],
                         ids=lambda options: "-".join(options) or "plain")
def test_guesses_are_right_with_every_option(d, options):
    rng = np.random.default_rng(d)
    q, k, v = (rng.standard_normal((2, 2, n, d)).astype(BF16) for n in (150, 333, 333))
    if "sinks" in options:
        options = dict(sinks=rng.standard_normal(2).astype(np.float32))
    tried(q, k, v, GUESSING[d], **options)


def test_guesses_are_for_the_kernel_with_roles_and_16_bits():
    q = np.ones((1, 1, 64, 64), BF16)
    with pytest.raises(tile.LaunchError, match="config.guesses is for the kernel with roles, of 16 bits"):
        kernels.attention(q, q, q, config=Config(roles=False, bm=64, bn=64, guesses=True))


@pytest.mark.parametrize("d, most", [(64, 285), (128, 376), (256, 321)])
def test_a_guess_takes_its_powers_under_the_product_of_the_values_without_spills_in_the_loop(d, most):
    """So many instructions run for a block whose guess is right: those before the branch to the next block. Among them are the waits for its
    slots, which are skipped where the block before has seen them full, and the tests of the next ones."""
    made = compiled(d, config=GUESSING[d])
    body = next(body for body in loops(made) if count(body, "FMNMX") and count(body, "FSEL") <= 4)
    wait = next(i for i, text in enumerate(body) if "WARPGROUP.DEPBAR.LE gsb0, 0x0" in text)
    usual = next(i for i, text in enumerate(body) if text.startswith("BRA"))
    assert count(body[:wait], "MUFU.EX2") >= GUESSING[d].bn // 2 and usual <= most
    assert count(body, "STL") + count(body, "LDL") <= 4


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_scores_in_a_late_block_are_taken_over(special):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, n, 128)).astype(BF16) for n in (130, 700, 700))
    q[..., 0], k[..., 0] = 1, 0
    k[0, 0, 200, 0] = special
    for config in (replace(TWO, turns=True), GUESSING[128]):
        with np.errstate(invalid="ignore"):
            got, lse = kernels.attention(q, k, v, lse=True, config=config)
            check(got[:, :, :64], None, q[:, :, :64], k, v)


@pytest.mark.parametrize("config", [replace(TWO, turns=True), GUESSING[128]], ids=["late", "guesses"])
@pytest.mark.parametrize("first", [384, 256, 130, 0])
def test_blocks_of_scores_of_minus_infinity_that_come_first_are_hidden(config, first):
    """The kernel begins with the last keys. With `first` 0 rows see no key."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 1, n, 128)).astype(BF16) for n in (130, 512, 512))
    q[..., 0], k[0, 0, first:, 0] = 1, -np.inf
    if first:
        tried(q, k, v, config)
    else:
        assert not np.asarray(kernels.attention(q, k, v, config=config), np.float32).any()


@tile.jit
def lowered(s, batch, head, rows, columns, value, last):
    """Scores from a column on are a value, of row 3 all."""
    return tile.where((columns > last) | (rows == 3), value, s)


@pytest.mark.parametrize("value", [-np.inf, -1e9, -1e30])
@pytest.mark.parametrize("d, config", [(64, CONFIGS[64]), (128, GUESSING[128]), (128, replace(GUESSING[128], guesses=False))], ids=["three", "guesses", "late"])
def test_scores_that_a_function_lowers_weigh_nothing_beside_others_and_the_same_among_each_other(value, d, config):
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((1, 1, n, d)).astype(BF16) for n in (70, 450, 450))
    got = kernels.attention(q, k, v, score=lowered, arguments=(float(value), 200), config=config)
    check(got[:, :, 4:], None, q[:, :, 4:], k[:, :, :201], v[:, :, :201])
    want = 0 if value == -np.inf else v.astype(np.float32).mean(axis=2)[0, 0]
    assert np.abs(got[0, 0, 3].astype(np.float32) - want).max() < 2e-3


@pytest.mark.misread_by_racecheck  # tiles are passed between threads through a ring
@needs_gpu("sm_90a")
@in_child(timeout=200)
def test_a_gpu_rescales_rows_and_attends_however_maxima_rise():
    for where in (True, False):
        x, rises, y, want = arguments(4, 512)
        rescaled[1,](x, rises, y, 4.0 if where else 100.0, R=4, N=512, WHERE=where, backend="cuda")
        np.testing.assert_array_equal(y, want if where else np.exp2(-rises[:, :, 0].sum(0))[:, None] * x)
    rng = np.random.default_rng(0)
    for d, rows in ((64, 1000), (128, 1000), (256, 500)):
        for step in (0.5, 3.0, 9.0, -3.0, -9.0):
            for causal in (False, True):
                q, k, v = (0.1 * rng.standard_normal((1, 4, rows, d)) for _ in range(3))
                q[..., 0], k[..., 0] = 1, -step * np.log(2) * (np.arange(rows) // 128) * d ** 0.5
                made = [x.astype(BF16) for x in (q, k, v)]
                for config in (None, GUESSING[d]):
                    got, lse = kernels.attention(*map(tile.to_device, made), causal=causal, lse=True, config=config)
                    check(got.numpy(), lse.numpy(), *made, causal=causal)
