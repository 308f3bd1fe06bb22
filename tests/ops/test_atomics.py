"""Atomics on global and shared memory: once per element, once per scope, and old values for all threads."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st

from tests.gpu import in_child, needs_gpu

KINDS = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def updater(kind: str):
    op = getattr(tile, f"atomic_{kind}")

    @tile.jit
    def kernel(x, y, N: tile.constexpr):
        op(y[0:N], tile.load(x[tile.program_id(0), 0:N]))
    return kernel


UPDATERS = {kind: updater(kind) for kind in KINDS}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.sampled_from(["int32", "uint32", "int64", "uint64"]), st.sampled_from([1, 3, 32, 100, 200]),
       st.sampled_from([1, 2, 3, 4]), st.integers(0, 99))
def test_every_cta_changes_every_element_once(kind, dtype, n, num_warps, seed):
    """Replicas of an element in other threads and padding do nothing, and elements out of bounds are dropped."""
    info = np.iinfo(dtype)
    x = np.random.default_rng(seed).integers(info.min, info.max, (5, n), dtype, endpoint=True)
    y = np.full(max(n - 1, 1), 77, dtype)
    want = KINDS[kind].reduce(np.concatenate([y[None], x[:, :len(y)]]), axis=0, dtype=dtype)
    UPDATERS[kind][(5,)](x, y, N=n, num_warps=num_warps)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_are_added_in_their_own_dtype(dtype):
    """Each addition rounds; sums of small integers stay exact."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x, y = np.random.default_rng(0).integers(-9, 9, (6, 50)).astype(dtype), np.zeros(50, dtype)
    UPDATERS["add"][(6,)](x, y, N=50)
    np.testing.assert_array_equal(y.astype(int), x.astype(int).sum(axis=0))


@pytest.mark.parametrize("kind", ["max", "min"])
def test_atomic_max_and_min_of_floats_propagate_nan(kind):
    """A NaN among the values or already in memory remains."""
    x = np.array([[1, -3, 0, 5], [2, np.nan, -1, 4]], np.float32)
    y = np.array([0, 0, 0, np.nan], np.float32)
    want = KINDS[kind].reduce(np.concatenate([y[None], x]), axis=0)
    UPDATERS[kind][(2,)](x, y, N=4)
    np.testing.assert_array_equal(y, want)


SPECIAL = {"float32": [0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x00000001, 0x80000001, 0x7f800000, 0xff800000, 0x7fc00000,
                       0xffc00000, 0x7f800001, 0xff812345, 0x7fffffff, 0xffffffff]}
SPECIAL["float64"] = [b >> 31 << 63 | (b & 0x7fffffff) << 32 | (b & 1) * 0xffffffff for b in SPECIAL["float32"]]


def extreme_by_integers(kind: str, old: int, value: int, bits: int) -> int:
    """The result in memory of the emitted instructions: one integer max or min, and an exchange if the old value was NaN."""
    top = (1 << bits - 1) - 1
    exponent = top & ~((1 << (23 if bits == 32 else 52)) - 1)
    signed = lambda x: x - (1 << bits) if x > top else x
    nan = lambda x: x & top > exponent
    sticky = top if kind == "max" else 2 * top + 1
    raw = sticky if nan(value) else value
    if raw <= top:
        new = (max if kind == "max" else min)(old, raw, key=signed)
    else:
        new = (min if kind == "max" else max)(old, raw)
    return sticky if nan(old) else new


@tile.jit
def extremes(x, y, old, KIND: tile.constexpr, N: tile.constexpr, OLD: tile.constexpr):
    v = tile.load(x[0:N])
    was = tile.atomic_max(y[0:N], v) if KIND == "max" else tile.atomic_min(y[0:N], v)
    if OLD:
        tile.store(old[0:N], was)


def all_pairs(dtype: str):
    """(values, memory): all pairs of special values."""
    bits = np.array(SPECIAL[dtype], f"u{np.dtype(dtype).itemsize}")
    return (a.reshape(-1).copy() for a in np.meshgrid(bits, bits))


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_atomic_max_and_min_of_floats_have_the_bits_of_the_emitted_instructions(kind, dtype, returned):
    """Zeros of both signs, subnormals, infinities, and NaNs with any payload, in memory and as values."""
    x, y = all_pairs(dtype)
    want = [extreme_by_integers(kind, int(b), int(a), 8 * x.itemsize) for a, b in zip(x, y)]
    before, old = y.copy(), np.zeros_like(y)
    extremes[1,](x.view(dtype), y.view(dtype), old.view(dtype), KIND=kind, N=len(x), OLD=returned)
    np.testing.assert_array_equal(y, np.array(want, y.dtype))
    np.testing.assert_array_equal(old, before if returned else 0 * old)


@needs_gpu()
@in_child(timeout=120)
def test_atomic_max_and_min_of_floats_have_the_same_bits_on_a_gpu():
    """Also if many CTAs access an element that is NaN."""
    for kind in ("max", "min"):
        for dtype in ("float32", "float64"):
            x, y = all_pairs(dtype)
            for returned in (False, True):
                here, there, old, olds = y.copy(), y.copy(), np.zeros_like(y), np.zeros_like(y)
                extremes[1,](x.view(dtype), here.view(dtype), old.view(dtype), KIND=kind, N=len(x), OLD=returned)
                extremes[1,](x.view(dtype), there.view(dtype), olds.view(dtype), KIND=kind, N=len(x), OLD=returned, backend="cuda")
                np.testing.assert_array_equal(there, here)
                np.testing.assert_array_equal(olds, old)
        rows = np.random.default_rng(0).standard_normal((200, 100)).astype(np.float32)
        rows[::7, ::3], rows[5::11, ::5] = np.nan, -0.0
        here, there = np.full(100, -np.nan, np.float32), np.full(100, -np.nan, np.float32)
        here[::2] = there[::2] = 0
        UPDATERS[kind][(200,)](rows, here, N=100)
        UPDATERS[kind][(200,)](rows, there, N=100, backend="cuda")
        np.testing.assert_array_equal(there.view(np.uint32), here.view(np.uint32))


@tile.jit
def histogram(x, bins, limit, B: tile.constexpr):
    i = tile.program_id(0)
    places = i * B + tile.arange(B)
    tile.atomic_add(bins[tile.load(x[i * B:(i + 1) * B])], 1, mask=places < limit)


@tile.jit
def histogram_in_shared(x, bins, B: tile.constexpr, N: tile.constexpr):
    i = tile.program_id(0)
    own = tile.alloc((N,), tile.int32)
    tile.store(own[0:N], 0)
    tile.sync()
    tile.atomic_add(own[tile.load(x[i * B:(i + 1) * B])], 1)
    tile.sync()
    tile.atomic_add(bins[0:N], tile.load(own[0:N]))


def test_atomics_on_gathered_points_count_a_histogram():
    """Several elements of a tile may address the same location; locations out of bounds and masked ones are not counted."""
    x = np.random.default_rng(0).integers(-2, 70, 1024).astype(np.int32)
    bins = np.zeros(64, np.int32)
    histogram[(8,)](x, bins, 1000, B=128)
    inside = x[:1000][(x[:1000] >= 0) & (x[:1000] < 64)]
    np.testing.assert_array_equal(bins, np.bincount(inside, minlength=64))
    bins[:] = 0
    histogram_in_shared[(8,)](x % 64, bins, B=128, N=64)
    np.testing.assert_array_equal(bins, np.bincount(x % 64, minlength=64))


@tile.jit
def tickets(counter, seen, N: tile.constexpr):
    old = tile.atomic_add(counter[0], 1)
    if old < N:
        tile.store(seen[old], old + 1)
    tile.store(seen[N + old * 4 + tile.thread_id() // 32], old)
    with tile.warp(1):
        mine = tile.atomic_add(counter[1], 1)
        tile.store(seen[N + 40 + mine], mine + 1)
    if tile.thread_id() < 5:
        tile.atomic_add(counter[2], 1)
    each = tile.atomic_add(counter[3 + tile.thread_id() // 64], 1)
    tile.atomic_max(counter[5], each)


def test_a_scalar_atomic_is_performed_once_per_scope_and_all_its_threads_get_the_old_value():
    """The CTA takes one ticket and may branch on it; a warp takes its own; threads under a condition each perform their own."""
    counter, seen = np.zeros(6, np.int32), np.zeros(60, np.int32)
    tickets[(3,)](counter, seen, N=4)
    assert counter.tolist() == [3, 3, 15, 192, 192, 191]
    assert seen[:4].tolist() == [1, 2, 3, 0]
    assert seen[4:16].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert seen[44:47].tolist() == [1, 2, 3]


@tile.jit
def exchanges(y, old, N: tile.constexpr):
    v = tile.arange(N)
    tile.store(old[0, 0:N], tile.atomic_exch(y[0:N], v * 10))
    tile.store(old[1, 0:N], tile.atomic_cas(y[0:N], 30, -1))
    tile.store(old[2, 0:N], tile.atomic_xor(y[0:N], 1, mask=v % 2 == 0))
    tile.store(old[3, 0], tile.atomic_cas(y[0], 1, 5))


@pytest.mark.parametrize("n", [4, 100])
def test_every_thread_gets_the_old_values(n):
    """Also if a small tile is replicated over threads; 0 where the mask is false."""
    y, old = np.full(n, 7, np.int32), np.zeros((4, n), np.int32)
    exchanges[(1,)](y, old, N=n)
    v = np.arange(n)
    assert (old[0] == 7).all() and (old[1] == v * 10).all()
    after = np.where(v == 3, -1, v * 10)
    np.testing.assert_array_equal(old[2], np.where(v % 2 == 0, after, 0))
    assert old[3, 0] == 1 and y[0] == 5 and y[2] == 21 and y[3] == -1


@tile.jit
def last_block(x, part, counter, y, N: tile.constexpr):
    i = tile.program_id(0)
    tile.store(part[i], tile.sum(tile.load(x[i, 0:N], other=0)))
    n = tile.atomic_add(counter[0], 1, sem="acq_rel")
    if n == tile.num_programs(0) - 1:
        tile.store(y[0], tile.sum(tile.load(part[0:8], other=0)))


def test_a_release_and_an_acquire_order_the_accesses_of_two_ctas():
    """The last CTA adds up what the others wrote; the simulator finds no race."""
    x = np.random.default_rng(0).random((8, 100)).astype(np.float32)
    part, counter, y = np.zeros(8, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)
    report = last_block.simulate((8,), x, part, counter, y, N=100)
    assert not report.findings
    np.testing.assert_allclose(y, x.sum(), rtol=1e-5)


def _refused(body: str, dtype: str = "int32", target: str = "sm_90a") -> str:
    kernel = tile.jit(source=f"def k(y):\n    {body}\n")
    kernel.source.globals["tile"] = tile
    with pytest.raises(tile.CompilationError) as error:
        kernel.compile(tile.ArraySpec((8,), dtype), target=target)
    return str(error.value)


def test_atomics_that_the_hardware_lacks_are_errors_that_suggest_alternatives():
    """Narrow integers, compare-and-swap of floats, unknown semantics and scopes, a value instead of a memory location."""
    assert "int32 array" in _refused("tile.atomic_add(y[0:4], 1)", "int8")
    assert "atomic_max takes" in _refused("tile.atomic_max(y[0], 1)", "float16")
    assert "as integers" in _refused("tile.atomic_cas(y[0], 0, 1)", "float32")
    assert "sem is one of" in _refused("tile.atomic_add(y[0], 1, sem='seq_cst')")
    assert "scope is one of" in _refused("tile.atomic_add(y[0], 1, scope='block')")
    assert "needs sm_90" in _refused("tile.atomic_add(y[0], 1, scope='cluster')", target="sm_80")
    assert "takes a place in memory" in _refused("tile.atomic_add(tile.load(y[0]), 1)")
    assert "takes a scalar mask" in _refused("tile.atomic_add(y[0], 1, mask=tile.arange(4) < 2)")
    assert "differs between them" in _refused("if tile.thread_id() < 3:\n        tile.atomic_add(y[0:4], 1)")


@pytest.mark.parametrize("target, dtype, text", [
    ("sm_80", "float32", "red.relaxed.gpu.global.add.f32"), ("sm_80", "float16", "red.relaxed.gpu.global.add.noftz.f16x2"),
    ("sm_80", "bfloat16", "cas.b16"), ("sm_90a", "float32", "red.relaxed.gpu.global.add.v4.f32"),
    ("sm_90a", "bfloat16", "red.relaxed.gpu.global.add.noftz.v4.bf16x2"), ("sm_120a", "float16", "add.noftz.v4.f16x2")])
def test_atomic_adds_with_unused_old_values_become_vector_reductions(target, dtype, text):
    """One 16-byte ``red`` from sm_90 on; before, pairs of float16, single floats, and a loop for bfloat16."""
    x = tile.ArraySpec((4, 1024), dtype)
    assert text in UPDATERS["add"].compile(x, tile.ArraySpec((1024,), dtype), N=1024, target=target).ptx
