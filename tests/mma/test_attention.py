"""Attention: the whole kernel, and the language features that it needs one by one (see DESIGN: structure, accumulators)."""

import itertools
import re

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import ToolchainError

from tests.gpu import in_child, needs_gpu
from tests.mma.attention import attention
from tests.runtime.fakes import FakeTuning

BF16 = ml_dtypes.bfloat16


def reference(q, k, v, scale, causal):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.einsum("hqd,hkd->hqk", q, k) * scale
    if causal:
        s = np.where(np.arange(k.shape[1]) <= np.arange(q.shape[1])[:, None], s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ v


def inputs(heads, rows, columns, d, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((heads, n, d)).astype(dtype) for n in (rows, columns, columns)]


def near(got, q, k, v, scale, causal, dtype):
    """Assert closeness: probabilities and the result round to `dtype` once each, and the values are of order 1."""
    want = reference(q, k, v, scale, causal)
    eps = float(ml_dtypes.finfo(dtype).eps)
    bound = eps * (np.abs(want) + np.abs(v).astype(np.float64).max())
    assert (np.abs(got.astype(np.float64) - want) <= bound).all()


def run(grid, heads, rows, columns, d, dtype, bn, nc, causal, stages, place=None, seed=0):
    q, k, v = inputs(heads, rows, columns, d, dtype, seed)
    o, counter = np.full((heads, rows, d), np.nan, dtype), np.zeros(1, np.uint32)
    constants = dict(BN=bn, D=d, NC=nc, CAUSAL=causal, STAGES=stages, num_warps=4 * (nc + 1))
    if place is None:
        attention.simulate(grid, q, k, v, o, counter, d ** -0.5, seed=seed, **constants).raise_first()
    else:
        there = [place(x) for x in (q, k, v, o, counter)]
        attention[grid,](*there, d ** -0.5, **constants)
        o, counter = there[3].numpy(), there[4].numpy()
    near(o, q, k, v, d ** -0.5, causal, dtype)
    assert counter[0] == 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows, columns", [(64, 64), (200, 200), (128, 33), (1, 130), (257, 384)])
def test_attention_is_exact_to_the_rounding_of_its_dtype(rows, columns, causal):
    """Roles with registers, rings with different lifetimes, products with register operands, row state, turns, tiles from a counter."""
    run(2, 2, rows, columns, 64, BF16, 64, 2, causal, 2, seed=rows)


@pytest.mark.parametrize("bn, nc, d, dtype, stages", [(128, 1, 64, np.float16, 1), (64, 3, 64, BF16, 2), (64, 2, 128, np.float16, 2)])
def test_compile_time_variants_of_attention_are_right(bn, nc, d, dtype, stages):
    run(3, 1, 200, 200, d, dtype, bn, nc, True, stages)


def compiled(d=128, bn=64, stages=2, spills=0):
    arrays = [tile.ArraySpec((4, 512, d), "bfloat16") for _ in range(4)]
    return attention.compile(*arrays, tile.ArraySpec((1,), "uint32"), 0.1, BN=bn, D=d, NC=2, CAUSAL=True, STAGES=stages, num_warps=12, spills=spills)


def test_a_block_of_keys_is_one_tensor_copy_whatever_its_swizzle_atoms():
    """Rows of 256 bytes are in two atoms of 128; the planner makes them a dimension of the map."""
    made = compiled()
    assert [(c.variant, c.instructions) for c in made.copies] == [("tma", 1)] * 4
    assert all(m.rank >= 4 for m in made.tensor_maps)


def test_the_emitted_steps_keep_the_order_of_the_source():
    """In the steady-state loop: take the turn, product with K, product with V, pass the turn on, wait for one, wait for all."""
    words = ("bar.sync", "wgmma.mma_async", "wgmma.commit_group", "bar.arrive", "wgmma.wait_group.sync.aligned 1", "wgmma.wait_group.sync.aligned 0")
    found = [next(w for w in words if w in line) for line in compiled().ptx.splitlines() if any(w in line for w in words)]
    steps = [w for w, _ in itertools.groupby(found)]
    steady = ["bar.sync", "wgmma.mma_async", "wgmma.commit_group", "wgmma.mma_async", "wgmma.commit_group", "bar.arrive",
              "wgmma.wait_group.sync.aligned 1", "wgmma.wait_group.sync.aligned 0"]
    assert sum(steps[i:i + len(steady)] == steady for i in range(len(steps))) == 2  # the masked loop and the unmasked one


def test_probabilities_become_a_product_operand_without_moving():
    """An accumulator converted in place is the register operand of the next product: packed in pairs, with no shuffle and no
    scratch memory."""
    graph, ptx = compiled().graph, compiled().ptx
    assert "convert_layout" not in graph
    assert "cvt.rn.bf16x2.f32" in ptx and "ex2.approx.ftz.f32" in ptx


def test_row_maxima_are_shuffled_only_within_quads():
    """A row of an accumulator is held by four lanes: shuffle distances 1 and 2."""
    @tile.jit
    def kernel(A, B, out):
        a = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128))
        b = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128))
        tile.copy(a, A[0:64, 0:64])
        tile.copy(b, B[0:64, 0:64])
        tile.fence_proxy_async()
        tile.sync()
        s = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
        tile.store(out[0:64], tile.max(s, axis=1))
    a, b = (np.random.default_rng(i).standard_normal((64, 64)).astype(BF16) for i in range(2))
    out = np.zeros(64, np.float32)
    kernel[1](a, b, out)
    np.testing.assert_allclose(out, (a.astype(np.float32) @ b.astype(np.float32).T).max(axis=1), rtol=1e-5)
    made = kernel.compile(a, b, out)
    shuffles = [line for line in made.ptx.splitlines() if "shfl.sync" in line]
    assert shuffles and all(line.split(",")[2].strip() in ("1", "2") for line in shuffles if "bfly" in line)
    assert made.shared_bytes == 2 * 8192


@tile.jit(num_warps=4)
def partial_rows(A, B, sums, tops, N: tile.constexpr, WIDE: tile.constexpr):
    """Per-thread row state: the parts of a row held by other threads are added after the loop."""
    a = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128))
    b = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128))
    tile.copy(a, A[0:64, 0:64])
    tile.copy(b, B[0:64, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    total, top = tile.zeros((64, 8)), tile.full((64, 8), -1e30)
    for i in range(N):
        s = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
        parts = tile.sum(tile.reshape(s, (64, 8 // WIDE, WIDE, 8)), axis=1)
        total = total + tile.sum(parts, axis=1)
        top = tile.maximum(top, tile.max(tile.reshape(s, (64, 8, 8)), axis=1))
    tile.store(sums[0:64], tile.sum(total, axis=1))
    tile.store(tops[0:64], tile.max(top, axis=1))


@pytest.mark.parametrize("wide", [1, 2, 8])
def test_row_state_may_stay_per_thread_until_the_end(wide):
    """Each thread sums its own columns, in a given number of partial sums; lanes exchange nothing inside the loop."""
    a, b = (np.random.default_rng(i).standard_normal((64, 64)).astype(BF16) for i in range(2))
    sums, tops = np.zeros(64, np.float32), np.zeros(64, np.float32)
    partial_rows.simulate(1, a, b, sums, tops, N=3, WIDE=wide).raise_first()
    s = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(sums, 3 * s.sum(axis=1), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(tops, s.max(axis=1), rtol=1e-5)
    made = partial_rows.compile(a, b, sums, tops, N=3, WIDE=wide)
    loop, after = made.ptx.split("bra", 1)
    assert "wgmma.mma_async" in loop and "shfl" not in loop and "shfl" in after and "convert_layout" not in made.graph


def test_queries_are_loaded_to_registers_by_ldmatrix_and_a_product_from_zero_reads_no_accumulator():
    """The left operand is loaded once per tile, and kept over the loop; scale-d of the first product is false."""
    ptx = compiled().ptx
    assert "ldmatrix.sync" in ptx.partition("wgmma.mma_async")[0]
    first = [line for line in ptx.split(";") if "wgmma.mma_async" in line]
    assert any(", z, 1, 1" in line for line in first) and any(", o, 1, 1" in line for line in first)


@tile.jit(num_warps=4)
def epilogue_behind(A, B, C, N: tile.constexpr):
    """Tile t is stored while the product of tile t + 1 runs: the loop's first and last steps are peeled off."""
    a = tile.alloc((N, 64, 64), A.dtype, layout=tile.swizzled(A.dtype, (N, 64, 64), 128))
    b = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128))
    tile.copy(a, A[0:N, 0:64, 0:64])
    tile.copy(b, B[0:64, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    done = tile.mma_async(None, a[0], b)
    tile.mma_commit()
    tile.mma_wait(0)
    for t in range(1, N):
        following = tile.mma_async(None, a[t], b)
        tile.mma_commit()
        tile.store(C[t - 1, 0:64, 0:64], done)
        tile.mma_wait(0)
        done = following
    tile.store(C[N - 1, 0:64, 0:64], done)


def epilogue_case(place=lambda x: x, back=lambda x: x):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (3, 64, 64)).astype(BF16), rng.integers(-4, 5, (64, 64)).astype(BF16)
    there = [place(x) for x in (a, b, np.full((3, 64, 64), np.nan, np.float32))]
    epilogue_behind[1,](*there, N=3)
    np.testing.assert_array_equal(back(there[2]), a.astype(np.float32) @ b.astype(np.float32))


def test_an_epilogue_runs_under_the_next_tile_s_product():
    epilogue_case()


def test_a_warp_vote_skips_rescaling():
    """If no row's maximum grew, the warp does not touch the accumulator."""
    @tile.jit(num_warps=1)
    def kernel(X, Y):
        x, old = tile.load(X[0:32]), tile.load(Y[0:32])
        if tile.any(x > old):
            tile.store(Y[0:32], tile.maximum(x, old))
    for x in (np.zeros(32, np.float32), np.arange(32, dtype=np.float32)):
        y = np.full(32, 10, np.float32)
        kernel[1](x, y)
        np.testing.assert_array_equal(y, np.maximum(x, 10))
    assert "vote.sync.any" in kernel.compile(x, y).ptx


def test_a_loaded_number_that_controls_a_loop_is_known_to_be_uniform():
    """It passes through a shuffle, so that descriptors stay in uniform registers."""
    @tile.jit
    def kernel(N, Y):
        total = 0
        for i in range(tile.load(N[0])):
            total += i
        tile.store(Y[0], total)
    n, y = np.array([5], np.int32), np.zeros(1, np.int32)
    kernel[1](n, y)
    assert y[0] == 10
    assert "shfl.sync.idx" in kernel.compile(n, y).ptx


def test_a_fast_reciprocal_is_one_instruction():
    @tile.jit(fast_math=True)
    def kernel(X, Y):
        tile.store(Y[0:128], 1 / tile.load(X[0:128]))
    ptx = kernel.compile(np.ones(128, np.float32), np.ones(128, np.float32)).ptx
    assert len(re.findall(r"rcp\.approx\.ftz\.f32\s", ptx)) == 1 and not re.search(r"\bdiv\.|\bfma\.", ptx)


def test_a_view_of_swizzle_atoms_is_one_copy_and_an_operand_of_either_major():
    """[D/64][rows][64] of one buffer: filled by one tensor copy, and read both K-major and MN-major."""
    @tile.jit(num_warps=4)
    def kernel(X, C, Ct):
        s = tile.alloc((2, 64, 64), X.dtype, layout=tile.swizzled(X.dtype, (2, 64, 64), 128))
        x = tile.alloc((64, 64), X.dtype, layout=tile.swizzled(X.dtype, (64, 64), 128))
        done, bar = tile.copy_async(x, X[0:64, 0:64]), tile.mbarrier()
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s.permute((1, 0, 2)).reshape((64, 128)), X[0:64, 0:128], mbar=bar)
        bar.wait(phase=0)
        done.wait()
        tile.fence_proxy_async()
        tile.sync()
        acc, turned = tile.zeros((64, 64)), tile.zeros((64, 64))
        for i in tile.static_range(2):
            acc = tile.mma_async(acc, x, s[i], trans_b=True)
            turned = tile.mma_async(turned, x, s[i])
        tile.mma_commit()
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
        tile.store(Ct[0:64, 0:64], turned)

    x = np.random.default_rng(1).integers(-4, 5, (64, 128)).astype(BF16)
    c, turned = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    kernel.simulate(1, x, c, turned).raise_first()
    w, halves = x.astype(np.float32), (x[:, :64].astype(np.float32), x[:, 64:].astype(np.float32))
    np.testing.assert_array_equal(c, sum(w[:, :64] @ h.T for h in halves))
    np.testing.assert_array_equal(turned, sum(w[:, :64] @ h for h in halves))


def test_a_variant_with_too_few_registers_is_refused():
    """The accumulator and Q take 128 registers each: the assembler would serialise the products."""
    with pytest.raises(ToolchainError, match="serialized"):
        compiled(d=256, stages=1)


def test_autotune_skips_variants_that_serialise_products_or_spill(monkeypatch):
    """Advisories of the assembler count like errors."""
    common = dict(NC=2, CAUSAL=True, num_warps=12, spills=0)
    configs = [dict(common, BN=64, D=256, STAGES=1), dict(common, BN=64, D=128, STAGES=2), dict(common, BN=192, D=128, STAGES=1)]
    tuned, fake = tile.autotune(configs)(attention), FakeTuning(monkeypatch)
    arrays = [fake.array((4, 512, 256), "bfloat16") for _ in range(4)]
    assert tuned.config(1, *arrays, fake.array((1,), "uint32"), 0.1) is tuned.configs[1]
    (reasons,) = tuned.rejected.values()
    assert list(reasons) == [0, 2] and "serialized" in reasons[0] and re.search("serialized|spills|registers", reasons[2])


@needs_gpu("sm_90a")
@in_child(timeout=180)
def test_attention_is_right_on_the_gpu():
    place = lambda x: tile.to_device(x, 0)
    for rows, causal in ((64, False), (1000, False), (1000, True), (2048, True), (65, True)):
        run(132, 4, rows, rows, 64, BF16, 64, 2, causal, 2, place, seed=rows)
    run(132, 3, 700, 512, 64, BF16, 128, 1, False, 1, place)
    for _ in range(20):
        run(132, 16, 512, 512, 128, np.float16, 64, 2, True, 2, place)
    epilogue_case(place, lambda x: x.numpy())
