"""Rotated loops: the first products of the next iteration run ahead, and threads work while the second products of this one run."""

import random
import re

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")

BF16 = ml_dtypes.bfloat16


@tile.jit
def attend(Q, K, V, BIAS, OUT, SUMS, start, stop, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr, STAGES: tile.constexpr,
           FORM: tile.constexpr, ROLES: tile.constexpr = True):
    """The weighted sums of V, and the sums of the weights 2^(s - most), of keys from `start` to `stop`. FORM has the ways in which it differs."""
    m = tile.program_id(0) * BM
    q = tile.load(Q[m:m + BM, 0:D])
    most, total, acc = tile.full((BM,), -1e30, tile.float32), tile.zeros((BM,)), tile.zeros((BM, D))
    rows = m + tile.arange(0, BM)
    for i in tile.pipelined(range(start, stop, BN), stages=STAGES, warp_specialize=ROLES):
        n = start + stop - BN - i if "turned" in FORM else i
        k = tile.load(K[n:n + BN, 0:D])
        s = tile.dot(q, k.T, tile.dot(q, tile.load(V[n:n + BN, 0:D]).T) if "split" in FORM else None) * 0.25
        if "bias" in FORM:
            s += tile.load(BIAS[m:m + BM, n:n + BN])
        if "causal" in FORM:
            s = tile.where(rows[:, None] >= (n + tile.arange(0, BN))[None, :], s, -float("inf"))
        if "branch" in FORM:
            if n + BN > stop:
                s = tile.where((n + tile.arange(0, BN))[None, :] < stop, s, -float("inf"))
        new = tile.maximum(most, tile.max(s, axis=1))
        p, by = tile.exp2(s - new[:, None]), tile.exp2(most - new)
        total, most = total * by + tile.sum(p, axis=1), new
        v = k if "shared" in FORM else tile.load(V[n:n + BN, 0:D])
        if "added" in FORM:
            acc = acc * by[:, None] + tile.dot(p.to(tile.bfloat16), v)
        else:
            acc = tile.dot(p.to(tile.bfloat16), v, acc * by[:, None])
    tile.store(OUT[m:m + BM, 0:D], acc)
    tile.store(SUMS[m:m + BM], total)


def arrays(rows, keys, d, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.integers(-4, 5, (n, d)).astype(BF16) for n in (rows, max(keys, 8), max(keys, 8)))
    bias = rng.integers(-3, 4, (rows, max(keys, 8))).astype(np.float32)
    return [q, k, v, bias, np.full((rows, d), np.nan, np.float32), np.full(rows, np.nan, np.float32)]


def check(made, start, stop, form):
    q, k, v, bias, out, sums = (x.astype(np.float64) for x in made)
    s = q @ (k + v if "split" in form else k).T * 0.25 + ("bias" in form) * bias
    at = np.arange(k.shape[0])
    s[:, (at < start) | (at >= stop)] = -np.inf
    if "causal" in form:
        s = np.where(np.arange(q.shape[0])[:, None] >= at, s, -np.inf)
    p = np.exp2(s - np.maximum(s.max(axis=1, keepdims=True), -1e30))
    np.testing.assert_allclose(sums, p.sum(axis=1), rtol=1e-5)
    want = p @ (k if "shared" in form else v)
    assert np.abs(out - want).max() <= 2.0 ** -8 * (p @ np.abs(k if "shared" in form else v)).max() + 1e-6


def run(rows, start, stop, form, launch=None, seed=0, **constants):
    """Check one launch against NumPy, by default on the simulator in the order of a seed. Returns whether the loop was rotated."""
    made = arrays(rows, stop, constants["D"])
    options = dict(constants, FORM=form, num_warps=constants["BM"] // 16)
    if launch is None:
        attend.simulate(rows // constants["BM"], *made, start, stop, seed=seed, target="sm_90a", **options).raise_first()
    else:
        launch(rows // constants["BM"], *made, start, stop, **options)
    check(made, start, stop, form)
    rotation, = attend.compile(*made, start, stop, target="sm_90a", **options).rotations
    return rotation.rotated


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_rotated_loops_of_no_one_and_more_trips_are_right(stages):
    for trips in (0, 1, 2, 5):
        assert run(64, 0, 16 * trips, (), BM=64, BN=16, D=32, STAGES=stages)


FORMS = ("causal", "bias", "added", "shared", "split", "turned", "branch")


def drawn(number):
    """The extents, form and constants of a kernel with a number."""
    r = random.Random(number)
    form = tuple(sorted({FORMS[number % len(FORMS)], *r.sample(FORMS, r.randint(0, 2))}))
    bm, bn, d = r.choice((64, 128, 192)), r.choice((16, 32)), r.choice((16, 32))
    start = bn * r.randint(0, 1)
    stop = start + bn * r.randint(1, 4) - (r.randrange(bn) if "branch" in form and not {"turned", "bias"} & {*form} else 0)
    return (2 * bm if r.random() < 0.3 else bm, start, stop, form), dict(BM=bm, BN=bn, D=d, STAGES=r.randint(2, 4))


@pytest.mark.parametrize("number", range(8))
def test_drawn_rotated_loops_are_right(number):
    extents, constants = drawn(number)
    assert run(*extents, seed=number, **constants)


@pytest.mark.misread_by_racecheck  # numbers of programs are passed between threads through slots
@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_drawn_rotated_loops_are_right_on_the_gpu():
    for number in range(24):
        extents, constants = drawn(number)
        for seed in (None, 1, 2):
            assert run(*extents, lambda rows, *made, **options: attend[(rows,)](*made, backend="cuda", jitter=seed, **options), **constants)


@tile.jit
def over_heads(Q, K, V, OUT, D: tile.constexpr):
    """One CTA goes over the heads, each backwards along the keys."""
    for h in range(Q.shape[0]):
        q = tile.load(Q[h, 0:64, 0:D])
        total, acc = tile.zeros((64,)), tile.zeros((64, D))
        for n in tile.pipelined(range(K.shape[1] - 16, -1, -16), stages=3, warp_specialize=True):
            p = tile.maximum(tile.dot(q, tile.load(K[h, n:n + 16, 0:D]).T), 0.0)
            total += tile.sum(p, axis=1)
            acc = tile.dot(p.to(tile.float16), tile.load(V[h, n:n + 16, 0:D]), acc)
        tile.store(OUT[h, 0:64, 0:D], acc + total[:, None])


@pytest.mark.parametrize("keys", [16, 80])
def test_a_rotated_loop_runs_again_and_backwards(keys):
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-2, 3, (5, n, 32)).astype(np.float16) for n in (64, keys, keys))
    out = np.full((5, 64, 32), np.nan, np.float32)
    over_heads.simulate(1, q, k, v, out, D=32, target="sm_90a").raise_first()
    assert over_heads.compile(q, k, v, out, D=32, target="sm_90a").rotations[0].rotated
    p = np.maximum(q.astype(np.float32) @ k.astype(np.float32).transpose(0, 2, 1), 0)
    np.testing.assert_array_equal(out, p @ v.astype(np.float32) + p.sum(axis=2, keepdims=True))


def test_the_next_first_product_starts_before_this_second_one_and_threads_work_while_it_runs():
    """And the slots of both are released apart."""
    made = attend.compile(*arrays(128, 256, 64), 0, 256, BM=128, BN=128, D=64, STAGES=2, FORM=(), num_warps=8, spills=0,
                          target="sm_90a")
    _, consumers = made.graph.split("warpgroup 0 x 2")
    loop = consumers[consumers.index(" for "):].split("->")[0]
    steps = re.findall(r"mma_async|mma_wait\(n=\d\)|mbarrier_wait|ring_release(?=\()|reduce(?=\()|cast(?=\(.*bfloat16)", loop)
    assert steps == ["mbarrier_wait", "mma_async", "mbarrier_wait", "mma_async", "mma_wait(n=1)", "ring_release", "reduce", "reduce",
                     "mma_wait(n=0)", "ring_release", "cast"]
    assert "rotated: the product at line" in made.explain()


def test_the_sums_of_a_loop_without_iterations_are_written_without_reading_their_registers():
    """Else they would stay live from one program of a CTA to its next."""
    made = attend.compile(*arrays(128, 256, 64), 0, 256, BM=128, BN=128, D=64, STAGES=2, FORM=(), num_warps=8, spills=0,
                          target="sm_90a")
    assert made.persistence[0].persistent and re.search(r"mov.f32 acc\d+_0, ", made.ptx) and "lop3.b32 acc" not in made.ptx


@tile.jit
def declined(Q, K, V, OUT, WHY: tile.constexpr, D: tile.constexpr = 64):
    q, acc = tile.load(Q[0:64, 0:D]), tile.zeros((64, D))
    last = tile.zeros((64, D))
    for n in tile.pipelined(range(0, K.shape[0], 64), stages=2, warp_specialize=True):
        k = tile.load(K[n:n + 64, 0:D])
        s = tile.dot((acc if WHY == "early" else q).to(tile.float16), k.T)
        if WHY == "stored":
            tile.store(OUT[0:64, 0:64], s)
        p = tile.maximum(s, 0.0).to(tile.float16)
        acc = tile.dot(p, tile.load(V[n:n + 64, 0:D]), acc)
        if WHY == "third":
            last = tile.dot(acc.to(tile.float16), k, last)
    tile.store(OUT[0:64, 0:D], acc + last)


@pytest.mark.parametrize("why,words", [
    ("early", "depends on what the product at line {} of the iteration before computes"),
    ("stored", "store at line {} would change its place among the products"),
    ("third", "two in a row can overlap"),
])
def test_explain_says_why_a_loop_is_not_rotated(why, words):
    arrays = [tile.ArraySpec((64, 64), "float16")] * 3
    made = declined.compile(*arrays, tile.ArraySpec((64, 64), "float32"), WHY=why, target="sm_90a")
    rotation, = made.rotations
    assert not rotation.rotated and re.search(words.replace("{}", r"\d+"), rotation.how), rotation
    assert f"not rotated: {rotation.how}" in made.explain()


@pytest.mark.parametrize("constants,words", [
    (dict(BM=64, BN=16, D=16, STAGES=1, FORM=("shared",)), "read the same buffer, which takes 2 stages"),
    (dict(BM=64, BN=16, D=16, STAGES=2, FORM=(), ROLES=False), "warp_specialize=True gives these to a producer"),
    (dict(BM=192, BN=128, D=128, STAGES=2, FORM=()), "of a thread's 160 registers"),
])
def test_a_loop_is_rotated_only_with_a_producer_and_enough_stages_and_registers(constants, words):
    made = arrays(constants["BM"], 128, constants["D"])
    rotation, = attend.compile(*made, 0, 128, **constants, num_warps=constants["BM"] // 16, target="sm_90a").rotations
    assert not rotation.rotated and words in rotation.how


def test_a_loop_with_one_product_is_not_in_question():
    @tile.jit
    def product(A, B, C):
        acc = tile.zeros((64, 64))
        for k in tile.pipelined(range(0, A.shape[1], 64), stages=2, warp_specialize=True):
            acc = tile.dot(tile.load(A[0:64, k:k + 64]), tile.load(B[k:k + 64, 0:64]), acc)
        tile.store(C[0:64, 0:64], acc)

    square = tile.ArraySpec((64, 64), "float16")
    assert product.compile(square, square, square, target="sm_90a").rotations == ()
