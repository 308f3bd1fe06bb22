"""Vector accesses and boxes whose positions depend on extents and launch arguments: their divisibility becomes a guard."""

import numpy as np
import pytest
import tilejit as tile

pytestmark = pytest.mark.usefixtures("assembled_later")

STARTS = {"n": 1, "n + tile.program_id(0) * 256": 1, "n // 2": 2, "tile.program_id(0) * n": 1, "(n // 4 + k) * 1": 4, "3 * n - 8": 1}
VECTORS = {8: "ld.global.v4.b32", 4: "ld.global.v2.b32", 2: "ld.global.b32", 1: "ld.global.b16"}


def half(*shape):
    return tile.ArraySpec(shape, "float16")


def kernel_of(start, place="x[row, at:at + 1024]", loaded=""):
    return tile.jit(source=f"""
def kernel(x, y, other):
    row, n, k = tile.program_id(0), other.shape[0], 0
    for k in range(0, 64, 64):
        at = {start}
        tile.store(y[row, 0:1024], tile.load({place}{loaded}))
""")


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("start", STARTS)
def test_a_load_that_begins_at_an_extent_is_as_wide_as_the_extent_allows(start, vector):
    n = STARTS[start] * vector * 5
    ptx = kernel_of(start).compile(half(4, 4096), half(4, 1024), half(n)).ptx
    assert VECTORS[vector] in ptx and not any(wide in ptx for v, wide in VECTORS.items() if v > vector)


@pytest.mark.parametrize("vector", VECTORS)
def test_gathers_with_masks_compared_with_extents_are_as_wide_as_the_extents_allow(vector):
    columns = "tile.arange(1024)"
    ptx = kernel_of("n", f"x[row, at + {columns}]", f", mask=({columns} < x.shape[1] - at)").compile(half(4, 4096), half(4, 1024), half(vector)).ptx
    assert VECTORS[vector] in ptx and not any(wide in ptx for v, wide in VECTORS.items() if v > vector)


@pytest.mark.parametrize("vector", VECTORS)
def test_accesses_by_launch_arguments_are_as_wide_as_the_arguments_allow(vector):
    """For kernels that take sizes and row pitches as arguments."""
    @tile.jit
    def kernel(x, y, pitch, n, BLOCK: tile.constexpr):
        columns, row = tile.arange(BLOCK), tile.program_id(0)
        tile.store(y[row, 0:BLOCK], tile.load(x[row * pitch + columns], mask=columns < n))

    ptx = kernel.compile(half(4096), half(4, 1024), 5 * vector, vector, BLOCK=1024).ptx
    assert VECTORS[vector] in ptx and not any(wide in ptx for v, wide in VECTORS.items() if v > vector)
    x, y = np.arange(4096).astype(np.float16), np.empty((4, 1024), np.float16)
    for pitch, n in ((5 * vector, vector), (8, 3), (-8, 24), (0, 0), (7, 8), (64, 1024)):
        kernel[4,](x, y, pitch, n, BLOCK=1024)
        at = np.arange(4)[:, None] * pitch + np.arange(1024)
        assert (y == np.where((at >= 0) & (np.arange(1024) < n), x[at], 0)).all()


def test_indices_modulo_an_extent_are_contiguous_if_the_extent_allows():
    """A matrix product whose ragged edge wraps around to the first rows and columns, with masks only along k."""
    @tile.jit
    def kernel(a, b, c, M, N, K, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
        m, n = tile.program_id(0) * BM + tile.arange(BM), tile.program_id(1) * BN + tile.arange(BN)
        rows, columns, k, acc = m % M, n % N, tile.arange(BK), tile.zeros((BM, BN))
        for i in range(0, tile.cdiv(K, BK)):
            left = K - i * BK
            x = tile.load(a[rows[:, None], (i * BK + k)[None, :]], mask=k[None, :] < left)
            y = tile.load(b[(i * BK + k)[:, None], columns[None, :]], mask=k[:, None] < left)
            acc = tile.dot(x, y, acc)
        tile.store(c[m[:, None], n[None, :]], acc.to(c.dtype), mask=(m[:, None] < M) & (n[None, :] < N))

    rng = np.random.default_rng(0)
    for M, N, K in ((40, 72, 56), (33, 50, 27)):
        a, b, c = rng.integers(-3, 4, (M, K)).astype(np.float16), rng.integers(-3, 4, (K, N)).astype(np.float16), np.empty((M, N), np.float16)
        made = kernel.compile(a, b, c, M, N, K, BM=64, BN=64, BK=32, target="sm_90a")
        assert ("ld.global.b16" in made.ptx) == (M == 33)
        kernel[1, 2](a, b, c, M, N, K, BM=64, BN=64, BK=32)
        assert (c == a.astype(np.float64) @ b.astype(np.float64)).all()


def test_one_source_serves_extents_that_are_multiples_and_others():
    @tile.jit
    def gated(x, y, BLOCK: tile.constexpr):
        row, half = tile.program_id(0), x.shape[1] // 2
        columns = tile.arange(BLOCK)
        gate = tile.load(x[row, columns], mask=columns < half)
        tile.store(y[row, 0:BLOCK], gate * tile.load(x[row, half:half + BLOCK]))

    for columns in (64, 62, 56, 50, 66, 2, 0):
        x = np.random.default_rng(columns).integers(-9, 9, (3, columns)).astype(np.float16)
        y = np.empty((3, columns // 2), np.float16)
        gated[3,](x, y, BLOCK=64)
        assert (y == x[:, :columns // 2] * x[:, columns // 2:]).all()


def test_only_extents_that_affect_alignment_become_guards():
    @tile.jit
    def kernel(x, y, rows, columns, many):
        at, other = columns.shape[0] + 8 * many.shape[0], many.shape[0]
        tile.store(y[0, 0:1024], tile.load(x[rows.shape[0] + other, at:at + 1024]))

    spec = half(4, 4096), half(4, 1024), half(3), half(8), half(5)
    assert "ld.global.v4.b32" in kernel.compile(*spec).ptx
    (version,), = kernel.versions.values()
    asked = {fact[1]: fact[3] for fact in version.facts if fact[0] == "size_multiple"}
    assert asked[3] == 8 and 2 not in asked and 4 not in asked


@pytest.mark.parametrize("target,variant", [("sm_80", "ldgsts"), ("sm_90a", "tma")])
def test_an_asynchronous_copy_may_begin_at_an_extent(target, variant):
    @tile.jit
    def gate_and_up(X, W, Y, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
        m, n, N = tile.program_id(0) * BM, tile.program_id(1) * BN, Y.shape[1]
        sX, sG = tile.alloc((BM, BK), X.dtype, layout=tile.auto), tile.alloc((BK, BN), X.dtype, layout=tile.auto)
        sU = tile.alloc((BK, BN), X.dtype, layout=tile.auto)
        gate, up = tile.zeros((BM, BN)), tile.zeros((BM, BN))
        for k in tile.pipelined(range(0, X.shape[1], BK), stages=2):
            tile.copy_async(sX, X[m:m + BM, k:k + BK])
            tile.copy_async(sG, W[k:k + BK, n:n + BN])
            tile.copy_async(sU, W[k:k + BK, N + n:N + n + BN])
            gate, up = tile.dot(sX, sG, gate), tile.dot(sX, sU, up)
        tile.store(Y[m:m + BM, n:n + BN], gate * up)

    rng = np.random.default_rng(0)
    x, w = rng.integers(-3, 4, (50, 64)).astype(np.float16), rng.integers(-3, 4, (64, 80)).astype(np.float16)
    y, blocks = np.empty((50, 40), np.float32), dict(BM=64, BN=64, BK=32)
    made = gate_and_up.compile(x, w, y, **blocks, target=target)
    assert {copy.variant for copy in made.copies} == {variant}
    gate_and_up[1, 1](x, w, y, **blocks)
    both = x.astype(np.float64) @ w.astype(np.float64)
    assert (y == both[:, :40] * both[:, 40:]).all()


def test_a_bulk_copy_may_begin_at_an_extent_that_is_aligned():
    @tile.jit(num_warps=4)
    def kernel(x, y, other):
        s, bar, at = tile.alloc((256,), x.dtype), tile.mbarrier(), other.shape[0]
        tile.assume((at >= 0) & (at + 256 <= 4096))
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, x[at:at + 256], mbar=bar, variant="bulk")
        bar.wait(phase=0)
        tile.copy(y[0:256], s)

    x, y = np.arange(4096, dtype=np.float32), np.empty(256, np.float32)
    kernel[1,](x, y, np.empty(36, np.int8))
    assert (y == x[36:292]).all()
    with pytest.raises(tile.DispatchError, match="not known to be a multiple of 16 bytes"):
        kernel.compile(x, y, np.empty(34, np.int8), target="sm_90a")


def test_the_refusal_of_an_unaligned_start_suggests_an_assumption():
    @tile.jit
    def kernel(x, y, at):
        s, bar = tile.alloc((8, 64), x.dtype), tile.mbarrier()
        with tile.elect():
            tile.copy_async(s, x[0:8, at:at + 64], mbar=bar)

    with pytest.raises(tile.DispatchError, match=r"multiple of 1 elements of 2 bytes \(tile\.assume\(start % 8 == 0\) promises more\)"):
        kernel.compile(half(64, 64), half(64, 64), 9, target="sm_90a")


def versions_of(kernel, calls, **constants):
    """The number of compiled versions of a kernel after these calls."""
    for arguments in calls:
        bound, options, _ = kernel.bind(arguments, constants)
        kernel.version(bound, options, "sm_90a")
    return sum(map(len, kernel.versions.values()))


@tile.jit
def masked(x, y, n, BLOCK: tile.constexpr):
    for k in range(tile.program_id(0), tile.cdiv(n, BLOCK), tile.num_programs(0)):
        i = k * BLOCK + tile.arange(BLOCK)
        tile.store(y[i], tile.load(x[i], mask=i < n), mask=i < n)


@pytest.mark.parametrize("own", [True, False])
def test_mask_bounds_of_all_divisibilities_need_one_version_per_vector_length(own):
    masked.versions.clear()
    calls = [(half(n if own else 2048), half(n if own else 2048), n) for n in range(1, 1700, 7)]
    assert versions_of(masked, calls, BLOCK=1024) == len(VECTORS)


@pytest.mark.parametrize("block", [128, 256, 512, 1024, 2048])
def test_divisibility_is_not_queried_beyond_the_elements_of_a_thread(block):
    masked.versions.clear()
    calls = [(half(2048), half(2048), n) for n in range(1000, 1017)]
    assert versions_of(masked, calls, BLOCK=block) == min(len(VECTORS), (block // 128).bit_length())


def test_mask_bounds_are_not_queried_if_the_arrays_rule_vectors_out():
    masked.versions.clear()
    assert versions_of(masked, [(half(2047), half(2047), n) for n in range(1000, 1017)], BLOCK=1024) == 1


def test_arrays_are_not_queried_if_a_mask_may_differ_between_neighbours():
    @tile.jit
    def kernel(x, flags, y):
        i = tile.arange(1024)
        keep = tile.load(flags[i]) > 0
        tile.store(y[i], tile.load(x[i], mask=keep), mask=keep)

    assert versions_of(kernel, [(half(n), half(1024), half(m)) for n in range(1000, 1009) for m in range(1000, 1009)]) == 1


def test_a_mask_bound_is_not_queried_if_the_row_pitch_rules_vectors_out():
    """After the layout is chosen from loads and stores, their index tiles cause no further queries."""
    @tile.jit
    def kernel(x, y, pitch, n):
        row, columns = tile.program_id(0), tile.arange(1024)
        tile.store(y[row * pitch + columns], tile.load(x[row * pitch + columns], mask=columns < n), mask=columns < n)

    assert versions_of(kernel, [(half(8192), half(8192), 1025, n) for n in range(1000, 1017)]) == 1
    assert versions_of(kernel, [(half(8192), half(8192), pitch, n) for pitch in range(1024, 1033) for n in range(1000, 1009)]) == 10


@tile.jit
def strided(x, y, down, along, to_down, to_along, M: tile.constexpr, N: tile.constexpr):
    i, j = tile.program_id(0) * M + tile.arange(M)[:, None], tile.arange(N)[None, :]
    tile.store(y[i * to_down + j * to_along], tile.load(x[i * down + j * along]))


def test_a_stride_argument_equal_to_1_makes_elements_contiguous():
    """For kernels that take the strides of their arrays as arguments."""
    specs = half(65536), half(65536)
    for strides, nbytes in (((64, 1, 64, 1), 16), ((72, 1, 72, 1), 16), ((68, 1, 68, 1), 8), ((1, 64, 1, 64), 16), ((63, 1, 63, 1), 2),
                            ((128, 2, 128, 2), 2), ((64, -1, 64, -1), 2), ((0, 1, 64, 1), 16)):
        assert [a.vec_bytes for a in strided.compile(*specs, *strides, M=64, N=64).accesses] == [nbytes, nbytes], strides


def test_one_source_serves_strides_of_1_and_others():
    x = np.random.default_rng(0).integers(-99, 99, 8192).astype(np.int16)
    i, j = np.arange(32)[:, None], np.arange(64)[None, :]
    for down, along, to_down, to_along in ((64, 1, 64, 1), (64, 2, 64, 1), (1, 32, 64, 1), (64, 1, 1, 32), (65, 1, 67, 1), (3, 128, 2, 64),
                                           (0, 0, 64, 1)):
        y, want = np.zeros(8192, np.int16), np.zeros(8192, np.int16)
        strided[1,](x, y, down, along, to_down, to_along, M=32, N=64)
        want[i * to_down + j * to_along] = x[i * down + j * along]
        assert (y == want).all()


def test_a_product_with_strides_as_arguments_uses_vectors():
    @tile.jit
    def kernel(a, b, c, am, ak, bk, bn, cm, cn, M: tile.constexpr, N: tile.constexpr, K: tile.constexpr):
        m, n, k = tile.arange(M), tile.arange(N), tile.arange(K)
        x = tile.load(a[m[:, None] * am + k[None, :] * ak])
        y = tile.load(b[k[:, None] * bk + n[None, :] * bn])
        tile.store(c[m[:, None] * cm + n[None, :] * cn], tile.dot(x, y).to(c.dtype))

    rng = np.random.default_rng(0)
    a, b, c = rng.integers(-3, 4, 64 * 32).astype(np.float16), rng.integers(-3, 4, 32 * 64).astype(np.float16), np.zeros(64 * 64, np.float16)
    kernel[1,](a, b, c, 32, 1, 1, 32, 64, 1, M=64, N=64, K=32)
    assert (c.reshape(64, 64) == a.reshape(64, 32).astype(np.float64) @ b.reshape(64, 32).T).all()
    for strides in ((32, 1, 64, 1, 64, 1), (32, 1, 1, 32, 64, 1)):
        made = kernel.compile(a, b, c, *strides, M=64, N=64, K=32, target="sm_90a")
        assert [x.vec_bytes for x in made.accesses][:2] == [16, 16]


def test_an_index_multiplied_by_an_argument_has_two_versions():
    @tile.jit
    def kernel(x, y, stride):
        i = tile.arange(1024)
        tile.store(y[i], tile.load(x[i * stride]))

    assert versions_of(kernel, [(half(65536), half(1024), stride) for stride in range(-3, 40)]) == 2
