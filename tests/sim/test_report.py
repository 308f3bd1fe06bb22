"""The contents of a report: bytes, requests, sectors, bank conflicts; raising the first finding; several findings."""

import numpy as np
import pytest
import tilejit as tile

X = np.arange(1024, dtype=np.float32).reshape(32, 32)


@tile.jit(num_warps=1)
def transpose(x, y, LAYOUT: tile.constexpr):
    s = tile.alloc((32, 32), x.dtype, layout=LAYOUT)
    t = tile.thread_id()
    for k in range(32):
        tile.store(s[k, t], tile.load(x[k, t]))
    tile.sync()
    for k in range(32):
        tile.store(y[k, t], tile.load(s[t, k]))


def test_bank_conflicts_and_sectors_are_counted():
    """A column of 32 words is in one bank; padded rows spread it over all banks."""
    y = np.zeros_like(X)
    plain = transpose.simulate((1,), X, y, LAYOUT=None)
    assert (y == X.T).all() and not plain.findings
    assert plain.stats["bank conflicts"] == 32 * 31
    padded = transpose.simulate((1,), X, y, LAYOUT=tile.TileLayout([(32, 33, "m"), (32, 1, "m")]))
    assert (y == X.T).all() and padded.stats["bank conflicts"] == 0
    assert padded.stats["global requests"] == 64 and padded.stats["global sectors"] == 64 * 4
    assert padded.stats["bytes"]["global -> registers"] == 4096 == padded.stats["bytes"]["registers -> shared"]
    assert "bank conflicts: 992" in str(plain)


@tile.jit(num_warps=1)
def filled(x, LAYOUT: tile.constexpr):
    s = tile.alloc((32, 32), x.dtype, layout=LAYOUT)
    tile.copy(s, x[0:32, 0:32])


@pytest.mark.parametrize("layout, requests", [(None, 8), (tile.swizzled("float32", (32, 32), 128), 8), (tile.TileLayout([(32, 33, "m"), (32, 1, "m")]), 32)])
def test_the_requests_of_a_copy_are_its_vector_accesses(layout, requests):
    """4096 bytes by a warp: 8 requests of 16 bytes per thread without conflicts; 32 of 4 bytes if rows are not aligned to 16."""
    stats = filled.simulate((1,), X, LAYOUT=layout).stats
    assert (stats["shared requests"], stats["global requests"], stats["bank conflicts"]) == (requests, requests, 0)


@tile.jit
def through(x, y, R: tile.constexpr, C: tile.constexpr, LAYOUT: tile.constexpr, HOW: tile.constexpr):
    """A matrix through shared memory: stored and loaded as its transpose, or read in another order."""
    s = tile.alloc((R, C), x.dtype, layout=LAYOUT)
    if HOW == "turned":
        tile.store(s.permute((1, 0)), tile.load(x[0:C, 0:R]))
        tile.sync()
        tile.store(y[0:C, 0:R], tile.load(s.permute((1, 0))))
    else:
        tile.store(s, tile.load(x[0:R, 0:C]))
        tile.sync()
        rows, columns = (tile.arange(R) * 5 + 1) % R, (tile.arange(C) * 3 + 2) % C
        tile.store(y[0:R, 0:C], tile.load(s[rows[:, None], columns[None, :]]))


def padded(r: int, c: int, by: int) -> tile.TileLayout:
    return tile.TileLayout([(r, c + by, "m"), (c, 1, "m")])


@pytest.mark.parametrize("dtype, shape, layout, how, conflicts", [
    ("float32", (32, 32), tile.swizzled("float32", (32, 32), 128), "turned", 192), ("float64", (32, 16), tile.swizzled("float64", (32, 16), 128), "turned", 192),
    ("float32", (16, 64), tile.swizzled("float32", (16, 64), 128), "turned", 64), ("float32", (16, 64), tile.swizzled("float32", (16, 64), 128), "points", 96),
    ("float32", (32, 32), padded(32, 32, 1), "points", 0), ("float64", (32, 16), padded(32, 16, 1), "points", 0),
    ("float16", (32, 64), padded(32, 64, 1), "points", 96), ("int8", (32, 128), padded(32, 128, 1), "points", 352),
    ("float16", (32, 64), tile.swizzled("float16", (32, 64), 0), "points", 672), ("float32", (16, 64), padded(16, 64, 1), "points", 64)])
def test_bank_conflicts_agree_with_the_hardware_counters(dtype, shape, layout, how, conflicts):
    """The numbers are ncu's l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld and _st on an H200."""
    x = np.arange(np.prod(shape)).reshape(shape[::-1] if how == "turned" else shape).astype(dtype)
    report = through.simulate((1,), x, np.zeros_like(x), R=shape[0], C=shape[1], LAYOUT=layout, HOW=how)
    assert not report.findings and report.stats["bank conflicts"] == conflicts


@tile.jit(num_warps=1)
def boxes(x, y):
    s = tile.alloc((16, 32), x.dtype, layout=tile.swizzled(x.dtype, (16, 32), 128))
    tile.store(s, tile.load(x[0:16, 0:32]))
    tile.sync()
    for i in range(2):
        row, column = 3 * i, 12 - 12 * i
        tile.store(y[i, 0:4, 0:8], tile.load(s[row:row + 4, column:column + 8]))


def test_boxes_that_start_in_the_same_bank_are_counted_by_their_own_rows():
    """Both start at the fourth 16 bytes of a row: from row 0 no two pieces of the box share banks, from row 3 some do."""
    y = np.zeros((2, 4, 8), np.float32)
    report = boxes.simulate((1,), X, y)
    assert (y[0] == X[:4, 12:20]).all() and (y[1] == X[3:7, :8]).all()
    assert not report.findings and report.stats["bank conflicts"] == 1


@tile.jit(num_warps=1)
def columns(x, y):
    s = tile.alloc((1024,), x.dtype)
    tile.store(s, tile.load(x[0:1024]))
    tile.sync()
    for i in range(2):
        tile.store(y[i, 0:32], tile.load(s[tile.arange(32) * (1 + 31 * i)]))


def test_runtime_indices_are_counted_again_in_every_iteration():
    """A row of 32 words has no conflicts, a column of them 31, and both start at word 0."""
    y = np.zeros((2, 32), np.float32)
    report = columns.simulate((1,), X.reshape(-1), y)
    assert (y == [X[0], X[:, 0]]).all() and not report.findings and report.stats["bank conflicts"] == 31


@tile.jit(num_warps=2)
def masked(x, HOW: tile.constexpr):
    s = tile.alloc((64,), x.dtype)
    n = tile.arange(64)
    for i in range(2):
        if HOW == "threads":
            if tile.thread_id() < 32 * (i + 1):
                tile.store(s[tile.thread_id()], tile.load(x[tile.thread_id()]))
        elif HOW == "points":
            tile.store(s[(n + 1) % 64], tile.load(x[n]), mask=n < 32 * (i + 1))
        else:
            tile.store(s, tile.load(x[0:64]), mask=n < 32 * (i + 1))
        tile.sync()


@pytest.mark.parametrize("how", ["region", "points", "threads"])
def test_a_warp_whose_elements_are_all_masked_makes_no_request(how):
    """One of the two warps has elements in the first iteration, both have some in the second."""
    report = masked.simulate((1,), X.reshape(-1), HOW=how)
    assert not report.findings and report.stats["shared requests"] == 1 + 2


@tile.jit(num_warps=2)
def repeated(x, y):
    s = tile.alloc((32,), x.dtype)
    tile.store(s, tile.load(x[0:32]))
    tile.sync()
    tile.store(y[0:32], tile.load(s))


def test_a_tile_replicated_over_two_warps_is_stored_by_one_and_loaded_by_both():
    y = np.zeros(32, np.float32)
    report = repeated.simulate((1,), X[0], y)
    assert (y == X[0]).all() and not report.findings
    assert report.stats["shared requests"] == 1 + 2 and report.stats["global requests"] == 2 + 1


# -- matrices ------------------------------------------------------------------------------------------------------------------

@tile.jit
def multiplied(x, y, z, LAYOUT: tile.constexpr, TB: tile.constexpr):
    """64 x 64 by ldmatrix; shared memory is filled by cp.async, which is not counted."""
    s, t = tile.alloc((64, 64), x.dtype, layout=LAYOUT), tile.alloc((64, 64), x.dtype, layout=LAYOUT)
    tile.copy_async(s, x[0:64, 0:64], variant="ldgsts")
    tile.copy_async(t, y[0:64, 0:64], variant="ldgsts")
    tile.cp_async_commit()
    tile.cp_async_wait(0)
    tile.sync()
    tile.store(z[0:64, 0:64], tile.dot(s, t, trans_b=TB, variant="mma_sync"))


def matrices(m: int = 64, n: int = 64, k: int = 64, warps: tuple[int, int] = (2, 2)) -> int:
    """The number of 8 x 8 matrices of both operands that the warps load: each its own rows of A and columns of B."""
    return (m * k * warps[1] + k * n * warps[0]) // 64


PITCHED = tile.TileLayout([(64, 72, "m"), (64, 1, "m")])  # rows 144 bytes apart: 16 more than all banks


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout, extra", [
    (tile.swizzled("float16", (64, 64), 128), 0), (tile.swizzled("float16", (64, 64), 64), 0), (tile.swizzled("float16", (64, 64), 32), 0), (PITCHED, 0),
    (tile.swizzled("float16", (64, 64), 0), 0), (None, 7), (tile.TileLayout([(64, 80, "m"), (64, 1, "m")]), 1), (tile.TileLayout([(64, 96, "m"), (64, 1, "m")]), 3)])
def test_ldmatrix_takes_one_pass_per_matrix_unless_its_eight_rows_share_banks(layout, extra, transposed):
    """Rows of 16 bytes: 128 bytes apart they are all in the same 4 banks, 160 in two groups of four, 192 in four of two."""
    x, y, z = (np.random.default_rng(i).standard_normal((64, 64)).astype(np.float16) for i in range(3))
    report = multiplied.simulate(1, x, y, z, LAYOUT=layout, TB=transposed)
    assert not report.findings
    k = multiplied.compile(x, y, z, LAYOUT=layout, TB=transposed, target="sm_90a")
    assert ".x4" in k.ptx and "ldmatrix" in k.ptx and "ld.shared" not in k.ptx
    assert report.stats["bank conflicts"] == extra * matrices()
    assert report.stats["shared requests"] == matrices() / 4


@tile.jit
def stored(x, z, LAYOUT: tile.constexpr):
    """A result of wgmma, stored by stmatrix."""
    s, out = tile.alloc((64, 64), x.dtype, layout=tile.swizzled(x.dtype, (64, 64), 128)), tile.alloc((64, 64), z.dtype, layout=LAYOUT)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, x[0:64, 0:64], mbar=bar)
    bar.wait(phase=0)
    acc = tile.mma_async(None, s, s, trans_b=True)
    tile.mma_commit()
    tile.mma_wait(0)
    tile.store(out, acc)
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(z[0:64, 0:64], out, variant="tma")
        tile.bulk_commit()
        tile.bulk_wait(0)


@pytest.mark.parametrize("layout, extra", [(tile.swizzled("float16", (64, 64), 128), 0), (tile.swizzled("float16", (64, 64), 64), 0), (None, 7)])
def test_stmatrix_takes_one_pass_per_matrix_unless_its_eight_rows_share_banks(layout, extra):
    """64 x 64 halves are 64 matrices, by 16 instructions."""
    x, z = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16), np.zeros((64, 64), np.float16)
    report = stored.simulate(1, x, z, LAYOUT=layout)
    assert not report.findings and "stmatrix" in stored.compile(x, z, LAYOUT=layout, target="sm_90a").ptx
    assert (report.stats["shared requests"], report.stats["bank conflicts"]) == (16, 64 * extra)


@tile.jit
def two_faults(x, y):
    s = tile.alloc((128,), x.dtype)
    tile.store(y[0, 0:16], tile.load(s[0:16]))
    tile.sync()
    tile.store(s, tile.load(x[0, 0:128]))
    tile.store(y[1, 0:127], tile.load(s[1:128]))


def test_independent_faults_are_all_reported():
    """One finding per kind and line, with its location."""
    report = two_faults.simulate((3,), X, X.copy())
    assert {f.kind for f in report.findings} >= {"uninitialized-read", "race"}
    with pytest.raises(tile.SimulationError) as error:
        report.raise_first()
    assert error.value.finding is report.findings[0]
    assert "tile.load(s[0:16])" in str(error.value) and "test_report.py" in str(error.value)


@tile.jit
def promises(x, y, n):
    tile.assume(n % 16 == 0)
    tile.store(y[0, 0], tile.load(x[0, 0]))


def test_an_assumption_that_does_not_hold_is_a_finding():
    """The compiler trusts tile.assume, the simulator checks it."""
    assert not promises.simulate((1,), X, X.copy(), 32).findings
    assert [f.kind for f in promises.simulate((1,), X, X.copy(), 33).findings] == ["assertion"]


def test_without_checks_the_result_is_the_same():
    """checks=False disables shadow memory and clocks, not the simulation of bytes."""
    y = np.zeros_like(X)
    assert not transpose.simulate((1,), X, y, LAYOUT=None, checks=False).findings
    assert (y == X.T).all()
