"""Machine code of reductions, scans and atomics: every target assembles them, and the code has the expected instructions."""

import re

import numpy as np
import pytest
import tilejit as tile

from tests.emitted_code import run_emitted
from tests.gpu import in_child, needs_gpu

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


@tile.jit
def welford(a, b):
    n, mean, m2 = a
    k, other, o2 = b
    total, delta = n + k, other - mean
    return total, mean + delta * (k / total), m2 + o2 + delta * delta * n * (k / total)


@tile.jit
def later(a, b):
    if b != 0:
        return b
    return a


@tile.jit
def everything(x, n, y, m, N: tile.constexpr, M: tile.constexpr):
    v = tile.load(x[0:N, 0:M], other=0)
    tile.store(y[0, 0:N], tile.sum(v, axis=1))
    tile.store(y[1, 0:M], tile.max(v, axis=0))
    tile.store(y[2, 0], tile.mean(v))
    count, mean, m2 = tile.reduce((tile.ones((N, M)), tile.cast(v, tile.float32), tile.zeros((N, M))), (0, 1), welford)
    tile.store(y[2, 1], m2 / count + mean)
    k = tile.load(n[0:N, 0:M], other=0)
    tile.store(m[0, 0:N], tile.argmax(v, axis=1))
    tile.store(m[1, 0], tile.argmin(k))
    tile.store(m[2, 0:M], tile.sum(k, axis=0))
    tile.store(m[3, 0], tile.where(tile.any(k > 5), 1, 0) + tile.where(tile.all(k < 7), 1, 0))
    tile.store(y[4:4 + N, 0:M], tile.cumsum(v, axis=1))
    tile.store(m[4:4 + N, 0:M], tile.scan(k, 0, later, reverse=True))


@tile.jit
def atomics(x, f, i, N: tile.constexpr):
    v = tile.load(x[tile.program_id(0), 0:N], other=0)
    tile.atomic_add(f[0, 0:N], v)
    tile.atomic_max(i[0], tile.max(tile.cast(v, tile.int32)))
    place = tile.argmax(v, axis=0)
    old = tile.atomic_add(i[1 + place], 1, sem="acq_rel")
    if old == 3:
        tile.atomic_exch(i[0], 0, sem="release", scope="sys")
    own = tile.alloc((64,), tile.int32)
    tile.store(own[0:64], 0)
    tile.sync()
    before = tile.atomic_or(own[tile.arange(N) % 64], tile.arange(N))
    tile.atomic_cas(i[tile.arange(N) + 8], before, 9, sem="acquire")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype, n, m, num_warps", [("float32", 37, 48, 4), ("bfloat16", 16, 100, 3)])
def test_every_target_assembles_reductions_and_scans(target, dtype, n, m, num_warps):
    """Padded shapes, an odd number of warps, user functions, several results."""
    a, k = tile.ArraySpec((n, m), dtype), tile.ArraySpec((n, m), "int32")
    y, i = tile.ArraySpec((64, 128), dtype), tile.ArraySpec((64, 128), "int32")
    compiled = everything.compile(a, k, y, i, N=n, M=m, target=target, num_warps=num_warps)
    assert compiled.cubin and not compiled.spills
    if target in ("sm_80", "sm_90a"):
        assert "redux.sync" in compiled.ptx


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_target_assembles_atomics(target, dtype):
    """Tiles, points, scalars with sem=, and shared memory."""
    a, f, i = tile.ArraySpec((8, 256), dtype), tile.ArraySpec((1, 256), dtype), tile.ArraySpec((512,), "int32")
    assert atomics.compile(a, f, i, N=256, target=target).cubin


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_atomic_max_and_min_of_floats_by_integer_atomics_assemble(dtype):
    """``atom.max.s32`` and ``.min.u32`` on the bits; 64 bits for float64."""
    @tile.jit
    def kernel(x, y, N: tile.constexpr):
        v = tile.load(x[0:N])
        old = tile.atomic_max(y[0:N], v)
        tile.atomic_min(y[N:2 * N], old)

    ptx = kernel.compile(tile.ArraySpec((64,), dtype), tile.ArraySpec((128,), dtype), N=64, target="sm_80").ptx
    bits = dtype[-2:]
    assert f"max.s{bits}" in ptx and f"min.u{bits}" in ptx and f"min.s{bits}" in ptx and f"max.u{bits}" in ptx


@tile.jit
def squares(x, y, N: tile.constexpr):
    v = tile.load(x[0:N], other=0)
    tile.store(y[0], tile.sum(v * v))


def test_additions_of_a_sum_are_never_contracted_with_a_preceding_product():
    """An ``fma`` for the product and the first addition would round once instead of twice."""
    a = tile.ArraySpec((1024,), "float32")
    ptx = squares.compile(a, a, N=1024, target="sm_90a").ptx
    assert "fma" not in ptx and len(re.findall(r"add\.rn\.f32", ptx)) == 7 + 5 + 2 + 1 and len(re.findall(r"shfl\.sync\.bfly", ptx)) == 5


def test_a_sum_within_a_warp_uses_no_shared_memory():
    """Rows held by one warp are reduced with shuffles only."""
    @tile.jit
    def rows(x, y):
        tile.store(y[0:16], tile.sum(tile.load(x[0:16, 0:256]), axis=1))

    compiled = rows.compile(tile.ArraySpec((16, 256), "float32"), tile.ArraySpec((16,), "float32"), target="sm_90a")
    assert compiled.shared_bytes == 0 and "bar.sync" not in compiled.ptx


@tile.jit(num_warps=8)
def votes(x, y, N: tile.constexpr, GROUPS: tile.constexpr):
    """Of all threads, and of groups of warps, whose barrier is known at run time only."""
    for i in range(2):
        v = tile.load(x[i, 0:N], other=1)
        tile.store(y[i, 0], tile.all(v > 0).to(tile.int32))
        tile.store(y[i, 1], tile.any(v > 5).to(tile.int32))
        tile.store(y[i, 2:3], tile.all(v < 9, axis=0, keepdims=True).to(tile.int32))
    if GROUPS:
        with tile.each_warpgroup(range(2)) as group:
            tile.store(y[group, 3], tile.all(tile.load(x[group, 0:N], other=7) > 0).to(tile.int32))


def rows_for_votes():
    for low, at, value in ((1, 700, 0), (1, 12, 9), (3, 0, 3), (0, 500, 6)):
        x = np.full((2, 900), low, np.int32)
        x[0, at] = value
        yield x, np.stack([(x > 0).all(1), (x > 5).any(1), (x < 9).all(1), (x > 0).all(1)], axis=1).astype(np.int32)


@pytest.mark.parametrize("target", TARGETS)
def test_bools_of_a_scope_are_reduced_by_its_barrier(target):
    for x, want in rows_for_votes():
        y = np.zeros((2, 4), np.int32)
        made = votes.compile(x, y, N=1000, GROUPS=True, target=target)
        votes.simulate(1, x, y, N=1000, GROUPS=True, target=target).raise_first()
        np.testing.assert_array_equal(y, want)
    assert made.ptx.count("bar.red.and.pred") == 3 and made.ptx.count("bar.red.or.pred") == 1 and "bar.sync" not in made.ptx
    assert made.shared_bytes == 0


def test_emitted_votes_are_numpy_s():
    for seed, (x, want) in enumerate(rows_for_votes()):
        y = np.zeros((2, 4), np.int32)
        run_emitted(votes.compile(x, y, N=1000, GROUPS=False, target="sm_90a"), [x, y], threads=256, seed=seed)  # it knows numbered barriers
        np.testing.assert_array_equal(y[:, :3], want[:, :3])


@needs_gpu()
@in_child()
def test_a_gpu_reduces_bools_of_a_scope_by_its_barrier():
    for x, want in rows_for_votes():
        y = tile.to_device(np.zeros((2, 4), np.int32))
        votes[1,](tile.to_device(x), y, N=1000, GROUPS=True)
        np.testing.assert_array_equal(y.numpy(), want)
