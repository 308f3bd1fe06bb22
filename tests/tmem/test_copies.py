"""Copies from shared to tensor memory in kernels: on the simulator, which decodes the descriptors, and through the assembler."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from faulty import check
from tilejit.layout import TileLayout


def quarters(columns):
    """32 rows in the lanes of each warp."""
    return TileLayout([(32, 1, "TLane"), (columns, 1, "TCol")], replicas=[(4, 32, "TLane")])


@tile.jit
def stages(x, y, n, SMEM: tile.constexpr, TMEM: tile.constexpr):
    s = tile.alloc((4, 32, 16), x.dtype, layout=SMEM)
    d = tile.alloc((32, 64), x.dtype, scope="tmem", layout=TMEM)
    bar = tile.mbarrier()
    for i in range(n):
        tile.copy(s[i], x[i, 0:32, 0:16])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        for i in range(n):
            tile.copy_async(d[:, 16 * i:16 * i + 16], s[i])
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    for i in range(n):
        tile.store(y[i, 0:32, 0:16], tile.load(d[:, 16 * i:16 * i + 16]))


@pytest.mark.parametrize("n", [0, 1, 4])
def test_copies_in_a_loop_with_runtime_stages_and_columns_are_right(n):
    """The descriptor's address and the tensor memory column change with the loop index."""
    x = np.random.default_rng(2).integers(0, 256, (4, 32, 16)).astype(np.uint8)
    y = np.zeros_like(x)
    layout = TileLayout([(4, 512, "m"), (32, 16, "m"), (16, 1, "m")])
    stages.simulate(1, x, y, n, SMEM=layout, TMEM=quarters(64), target="sm_100a").raise_first()
    np.testing.assert_array_equal(y[:n], x[:n])
    assert not y[n:].any() and stages.compile(x, y, n, SMEM=layout, TMEM=quarters(64), target="sm_100a").cubin


@tile.jit
def from_anywhere(x, y, at, SPAN: tile.constexpr, ROWS: tile.constexpr, COLUMNS: tile.constexpr, DOWN: tile.constexpr, RIGHT: tile.constexpr,
                  TMEM: tile.constexpr):
    s = tile.alloc((2, 136, SPAN), x.dtype, layout=tile.swizzled(x.dtype, (2, 136, SPAN), SPAN))
    d = tile.alloc((ROWS, COLUMNS), x.dtype, scope="tmem", layout=TMEM)
    bar = tile.mbarrier()
    tile.copy(s, x[0:2, 0:136, 0:SPAN])
    tile.fence_proxy_async()
    tile.sync()
    z, row, column = tile.load(at[0]), tile.load(at[1]) * DOWN, tile.load(at[2]) * RIGHT
    with tile.elect():
        tile.copy_async(d, s[z, row:row + ROWS, column:column + COLUMNS])
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    if ROWS > 4:
        tile.store(y[0:ROWS, 0:COLUMNS], tile.load(d))


ROWS_OF_FOUR = TileLayout([(4, 32, "TLane"), (32, 1, "TCol")])


@pytest.mark.parametrize("span", [32, 64, 128])
@pytest.mark.parametrize("form,rows,columns,down,layout", [("128x256b", 128, 32, 8, None), ("128x128b", 128, 16, 8, None),
                                                           ("32x128b", 32, 16, 8, quarters(16)), ("4x256b", 4, 32, 4, ROWS_OF_FOUR)])
def test_a_swizzled_region_may_begin_at_any_runtime_multiple_of_16_bytes_in_its_rows(form, rows, columns, down, layout, span):
    """And at any multiple of eight rows, or four in a form of four rows: no copy crosses the rows of a swizzle atom."""
    x = np.random.default_rng(span).integers(0, 256, (2, 136, span)).astype(np.uint8)
    options = dict(SPAN=span, ROWS=rows, COLUMNS=columns, DOWN=down, RIGHT=16, TMEM=layout, target="sm_100a")
    made = from_anywhere.compile(x, x[0], np.zeros(3, np.int32), **options)
    plan = next(c.plan for c in made.copies if c.variant == "tcgen05_cp")
    assert (plan.shape, plan.moves) == (form, (False, True))
    for z, row, column in ((0, 0, 0), (1, 1, (span - columns) // 16), (0, 1, (span - columns) // 32)):
        y = np.zeros((rows, columns), np.uint8)
        from_anywhere.simulate(1, x, y, np.array([z, row, column], np.int32), **options).raise_first()
        row, column = row * down, column * 16
        assert rows == 4 or (y == x[z, row:row + rows, column:column + columns]).all()


@pytest.mark.parametrize("rows,columns,down,right,layout,where", [
    (128, 32, 4, 16, None, "512 of the 1024"), (128, 32, 8, 8, None, "would begin at byte 8 of the 1024"), (4, 32, 2, 16, ROWS_OF_FOUR, "of the 1024"),
])
def test_a_region_with_a_start_that_the_descriptor_cannot_express_is_refused(rows, columns, down, right, layout, where):
    x = np.zeros((2, 136, 128), np.uint8)
    with pytest.raises(tile.CompilationError, match=where):
        from_anywhere.compile(x, x[0], np.zeros(3, np.int32), SPAN=128, ROWS=rows, COLUMNS=columns, DOWN=down, RIGHT=right, TMEM=layout, target="sm_100a")


@pytest.mark.parametrize("name,form", [("float4_e2m1fn", "b4x16_p64"), ("float6_e2m3fn", "b6x16_p32"), ("float6_e3m2fn", "b6x16_p32")])
def test_padded_elements_are_unpacked_to_bytes_that_a_product_reads(name, form):
    """16 elements and padding in each 16 bytes of shared memory; one element per byte of tensor memory, as operand A of a product."""
    dtype = tile.padded(name)

    @tile.jit
    def widened(x, b, c, DTYPE: tile.constexpr, BYTES: tile.constexpr):
        s = tile.alloc((128, 128), DTYPE, layout=tile.swizzled(DTYPE, (128, 128), 128))
        sB = tile.alloc((32, 128), b.dtype, layout=tile.swizzled(b.dtype, (32, 128), 128))
        d = tile.alloc((128, 128), DTYPE, scope="tmem")
        acc = tile.alloc((128, 32), "float32", scope="tmem")
        loaded, bar = tile.mbarrier(), tile.mbarrier()
        tile.copy(sB, b[0:32, 0:128])
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            loaded.arrive_expect_tx(BYTES)
            tile.copy_async(s, x[0:128, 0:128], mbar=loaded)
        loaded.wait(phase=0)
        with tile.elect():
            tile.copy_async(d, s)
            tile.mma_async(acc, d, sB, trans_b=True, accumulate=False)
            tile.tcgen05_commit(bar)
        bar.wait(phase=0)
        tile.tcgen05_fence("after_thread_sync")
        tile.store(c[0:128, 0:32], tile.load(acc))

    rng = np.random.default_rng(3)
    kind = getattr(ml_dtypes, name)
    values = rng.integers(0, 16 if "4" in name[:6] else 64, (128, 128)).astype(np.uint8).view(kind)
    b, c = rng.standard_normal((32, 128)).astype(ml_dtypes.float8_e4m3fn), np.zeros((128, 32), np.float32)
    x = tile.pack(values)
    options = dict(DTYPE=dtype, BYTES=x.data.size)
    widened.simulate(1, x, b, c, **options, target="sm_100a").raise_first()
    np.testing.assert_allclose(c, values.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-5, atol=1e-3)
    compiled = widened.compile(x, b, c, **options, target="sm_103a")
    assert f"128x256b.b8x16.{form} " in compiled.ptx and ".kind::f8f6f4" in compiled.ptx
    assert [m.dtype for m in compiled.tensor_maps] == [dtype.name]


# -- findings --------------------------------------------------------------------------------------------------------------

X, Y = np.zeros((128, 8), np.float32), np.zeros((128, 8), np.float32)
ROWS = tile.swizzled("float32", (128, 8), 32)


@tile.jit
def uncommitted(x, y):
    s = tile.alloc((128, 8), x.dtype, layout=ROWS)
    d = tile.alloc((128, 8), x.dtype, scope="tmem")
    bar = tile.mbarrier()
    tile.copy(s, x[0:128, 0:8])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(d, s)
        tile.tcgen05_commit(bar)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(y[0:128, 0:8], tile.load(d))  # finds: missing-wait
    bar.wait(phase=0)


@tile.jit
def unfenced_source(x, y):
    s = tile.alloc((128, 8), x.dtype, layout=ROWS)
    d = tile.alloc((128, 8), x.dtype, scope="tmem")
    bar = tile.mbarrier()
    tile.copy(s, x[0:128, 0:8])
    tile.sync()
    with tile.elect():
        tile.copy_async(d, s)  # finds: missing-proxy-fence
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)


@tile.jit
def unfenced_wait(x, y):
    s = tile.alloc((128, 8), x.dtype, layout=ROWS)
    d = tile.alloc((128, 8), x.dtype, scope="tmem")
    bar = tile.mbarrier()
    tile.copy(s, x[0:128, 0:8])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(d, s)
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.store(y[0:128, 0:8], tile.load(d))  # finds: tmem


@tile.jit
def source_overwritten(x, y):
    s = tile.alloc((128, 8), x.dtype, layout=ROWS)
    d = tile.alloc((128, 8), x.dtype, scope="tmem")
    bar = tile.mbarrier()
    tile.copy(s, x[0:128, 0:8])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(d, s)
        tile.tcgen05_commit(bar)
    tile.sync()
    tile.store(s, tile.zeros((128, 8)))  # finds: missing-wait
    bar.wait(phase=0)


def test_missing_synchronisation_around_a_copy_is_found():
    """The commit, the proxy fence for the source, the fence after the wait, and reuse of the source."""
    for kernel in (uncommitted, unfenced_source, unfenced_wait, source_overwritten):
        check(kernel, (1,), X, Y, target="sm_100a")


def test_wrong_copies_are_errors_at_their_line():
    """Scopes, options and replication."""
    def refused(words, line, layout=None, scope="with tile.elect():\n    "):
        layout = "" if layout is None else f", layout={layout}"
        source = (f'def kernel(x):\n    s = tile.alloc((128, 16), "float32", layout=tile.swizzled("float32", (128, 16), 64))\n'
                  f'    d = tile.alloc((128, 16), "float32", scope="tmem"{layout})\n    b = tile.mbarrier()\n    '
                  + (scope + line).replace("\n", "\n    "))
        with pytest.raises(tile.CompilationError, match=words):
            tile.jit(source=source).compile(X, target="sm_100a")

    refused("needs one thread: 128 threads of a cta", "tile.copy_async(d, s)", scope="")
    refused("completes by tcgen05_commit or the call's token: mbar=", "tile.copy_async(d, s, mbar=b)")
    refused("the shape is one of|shape is", 'tile.copy_async(d, s, shape="1x1b")')
    refused("128x256b has no multicast 'warpx4'", 'tile.copy_async(d, s, shape="128x256b", multicast="warpx4")')
    refused("the replica is none, not", 'tile.copy_async(d[0:32], s[0:32], shape="32x128b")')
    refused("is for copies to tensor memory", 'tile.copy_async(s, x[0:128, 0:16], mbar=b, multicast="warpx4")')
    refused("cta_group=2 with tensor memory of 1|pairs of CTAs", "tile.copy_async(d, s, cta_group=2)")
    refused("no reduce=|reduce=", 'tile.copy_async(d, s, reduce="add")')


def test_each_warp_reads_its_own_replica():
    """The tile is replicated over the lane quarters of the four warps."""
    @tile.jit
    def replicated(x, y, TMEM: tile.constexpr):
        s = tile.alloc((32, 4), x.dtype, layout=tile.swizzled(x.dtype, (32, 4), 0))
        d = tile.alloc((32, 4), x.dtype, scope="tmem", layout=TMEM)
        bar = tile.mbarrier()
        tile.copy(s, x[0:32, 0:4])
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(d, s)
            tile.tcgen05_commit(bar)
        bar.wait(phase=0)
        tile.tcgen05_fence("after_thread_sync")
        with tile.warp(2):
            tile.store(y[2, 0:32, 0:4], tile.load(d))
        tile.store(d, tile.load(d) + 1)
        with tile.warp(3):
            tile.store(y[3, 0:32, 0:4], tile.load(d))

    x = np.random.default_rng(4).random((32, 4), np.float32)
    y = np.zeros((4, 32, 4), np.float32)
    replicated.simulate(1, x, y, TMEM=quarters(4), target="sm_100a").raise_first()
    np.testing.assert_array_equal(y[2], x)
    np.testing.assert_array_equal(y[3], x + 1)
    assert replicated.compile(x, y, TMEM=quarters(4), target="sm_100a").cubin


@tile.jit
def by_tokens(x, y, n, SMEM: tile.constexpr):
    s = tile.alloc((4, 128, 8), x.dtype, layout=SMEM)
    d = tile.alloc((128, 32), x.dtype, scope="tmem")
    for i in range(n):
        tile.copy(s[i], x[i, 0:128, 0:8])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        first = tile.copy_async(d[:, 0:8], s[0])
    first.wait()
    tile.store(y[0, 0:128, 0:8], tile.load(d[:, 0:8]))
    for i in range(1, n):
        with tile.elect():
            done = tile.copy_async(d[:, 8 * i:8 * i + 8], s[i])
        done.wait()
        tile.store(y[i, 0:128, 0:8], tile.load(d[:, 8 * i:8 * i + 8]))


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("seed", [0, 3])
def test_waiting_for_a_token_commits_and_waits_for_the_copy(n, seed):
    """All waiting threads see the bytes: the token uses a barrier of the compiler, and a fence after it."""
    x = np.random.default_rng(5).random((4, 128, 8), np.float32)
    y = np.zeros_like(x)
    layout = tile.swizzled("float32", (4, 128, 8), 32)
    by_tokens.simulate(1, x, y, n, seed=seed, SMEM=layout, target="sm_100a").raise_first()
    np.testing.assert_array_equal(y[:n], x[:n])
    ptx = by_tokens.compile(x, y, n, SMEM=layout, target="sm_103a").ptx
    assert ptx.count("tcgen05.commit.cta_group::1") == 2
