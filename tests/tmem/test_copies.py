"""Copies from shared to tensor memory, in kernels: on the simulator, which decodes the descriptors, and through the assembler."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from faulty import check
from tilejit.layout import TileLayout

SHAPES = {"128x256b": ([(128, 1)], []), "4x256b": ([(4, 32)], []), "128x128b": ([(128, 1)], []), "64x128b.warpx2::02_13": ([(64, 1)], [(2, 64, "TLane")]),
          "64x128b.warpx2::01_23": ([(2, 64), (32, 1)], [(2, 32, "TLane")]), "32x128b.warpx4": ([(32, 1)], [(4, 32, "TLane")])}


def tensor_layout(shape, columns):
    lanes, replicas = SHAPES[shape]
    return TileLayout([(n, s, "TLane") for n, s in lanes] + [(columns, 1, "TCol")], replicas=replicas)


@tile.jit
def copied(x, y, R: tile.constexpr, C: tile.constexpr, SMEM: tile.constexpr, TMEM: tile.constexpr, FORM: tile.constexpr):
    s = tile.alloc((R, C), x.dtype, layout=SMEM)
    d = tile.alloc((R, C), x.dtype, scope="tmem", layout=TMEM)
    bar = tile.mbarrier()
    tile.copy(s, x[0:R, 0:C])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(d, s, shape=FORM[0], multicast=FORM[1])
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(y[0:R, 0:C], tile.load(d))


@pytest.mark.parametrize("mode", [0, 32, 64, 128])
@pytest.mark.parametrize("shape", ["128x256b", "128x128b", "32x128b.warpx4"])
def test_every_swizzle_is_read_as_the_descriptor_says(shape, mode):
    """Rows of all lanes, and of a quarter of them in each warp."""
    rows = 128 if shape.startswith("128") else 32
    x = np.random.default_rng(0).random((rows, 32), np.float32)
    y = np.zeros_like(x)
    options = dict(R=rows, C=32, SMEM=tile.swizzled("float32", (rows, 32), mode), TMEM=tensor_layout(shape, 32), FORM=(*shape.split(".", 1), None)[:2])
    copied.simulate(1, x, y, **options, target="sm_100a").raise_first()
    np.testing.assert_array_equal(x, y)
    for target in ("sm_100a", "sm_103a"):
        compiled = copied.compile(x, y, **options, target=target)
        assert f"tcgen05.cp.cta_group::1.{shape} " in compiled.ptx
        record = next(c for c in compiled.copies if c.variant == "tcgen05_cp")
        assert (record.src_scope, record.dst_scope, record.exec_scope, record.bytes) == ("shared", "tmem", "thread", rows * 128)


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("cta_group", [1, 2])
def test_every_shape_and_multicast_assembles(shape, cta_group):
    """All six forms, for one CTA and for pairs."""
    lanes_, _ = SHAPES[shape]
    rows = int(np.prod([n for n, _ in lanes_]))

    height, name = max(rows, 8), shape.split(".")[0]
    smem, tmem = tile.swizzled("bfloat16", (height, 16), 32), tensor_layout(shape, 16)

    @tile.jit
    def issue(x):
        s = tile.alloc((height, 16), "bfloat16", layout=smem)
        d = tile.alloc((rows, 16), "bfloat16", scope="tmem", layout=tmem, cta_group=cta_group)
        bar = tile.mbarrier()
        tile.store(s, 0.0)
        tile.fence_proxy_async()
        if cta_group == 2:
            tile.cluster_sync()
        else:
            tile.sync()
        if tile.cta_rank() == 0:
            with tile.elect():
                tile.copy_async(d, s[0:rows, :], shape=name)
                tile.tcgen05_commit(bar)
            bar.wait(phase=0)

    array = tile.ArraySpec((8,), "float16")
    for target in ("sm_100a", "sm_103a"):
        compiled = issue.compile(array, target=target, cluster=(cta_group, 1, 1))
        assert f"tcgen05.cp.cta_group::{cta_group}.{shape} " in compiled.ptx
        assert compiled.copies[0].plan.cta_group == cta_group
    issue.simulate(cta_group, np.zeros(8, "float16"), target="sm_100a", cluster=(cta_group, 1, 1)).raise_first()


def test_a_pair_of_ctas_copies_by_one_thread():
    """cta_group=2: each CTA's own shared memory goes to its own tensor memory; the commit reaches both."""
    @tile.jit(cluster=(2, 1, 1))
    def pair(x, y):
        s = tile.alloc((128, 16), x.dtype, layout=tile.swizzled(x.dtype, (128, 16), 64))
        d = tile.alloc((128, 16), x.dtype, scope="tmem", cta_group=2)
        bar = tile.mbarrier()
        r = tile.cta_rank()
        tile.copy(s, x[128 * r:128 * r + 128, 0:16])
        tile.fence_proxy_async()
        tile.cluster_sync()
        if r == 0:
            with tile.elect():
                tile.copy_async(d, s)
                tile.tcgen05_commit(bar, multicast=3)
        bar.wait(phase=0)
        tile.tcgen05_fence("after_thread_sync")
        tile.store(y[128 * r:128 * r + 128, 0:16], tile.load(d))

    x = np.random.default_rng(1).random((256, 16), np.float32)
    y = np.zeros_like(x)
    for seed in range(4):
        y[:] = 0
        pair.simulate(2, x, y, seed=seed, target="sm_100a").raise_first()
        np.testing.assert_array_equal(x, y)
    assert "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64" in pair.compile(x, y, target="sm_103a").ptx


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
def test_stages_and_columns_known_at_run_time(n):
    """The descriptor's address and the column move with the loop."""
    x = np.random.default_rng(2).integers(0, 256, (4, 32, 16)).astype(np.uint8)
    y = np.zeros_like(x)
    layout = TileLayout([(4, 512, "m"), (32, 16, "m"), (16, 1, "m")])
    stages.simulate(1, x, y, n, SMEM=layout, TMEM=tensor_layout("32x128b.warpx4", 64), target="sm_100a").raise_first()
    np.testing.assert_array_equal(y[:n], x[:n])
    assert not y[n:].any() and stages.compile(x, y, n, SMEM=layout, TMEM=tensor_layout("32x128b.warpx4", 64), target="sm_100a").cubin


@pytest.mark.parametrize("name,form", [("float4_e2m1fn", "b4x16_p64"), ("float6_e2m3fn", "b6x16_p32"), ("float6_e3m2fn", "b6x16_p32")])
def test_padded_elements_become_bytes_that_a_product_reads(name, form):
    """Sixteen of them and padding in each 16 bytes of shared memory; one in each byte of tensor memory, as A of a product."""
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


# -- what is found ---------------------------------------------------------------------------------------------------------

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


def test_the_order_around_a_copy_is_checked():
    """Its commit, the proxy fence of its source, the fence after its wait, and the life of its source."""
    for kernel in (uncommitted, unfenced_source, unfenced_wait, source_overwritten):
        check(kernel, (1,), X, Y, target="sm_100a")


def test_wrong_copies_are_errors_at_their_line():
    """Scope, options and replicas."""
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
    refused("is of copies to tensor memory", 'tile.copy_async(s, x[0:128, 0:16], mbar=b, multicast="warpx4")')
    refused("cta_group=2 with tensor memory of 1|pairs of CTAs", "tile.copy_async(d, s, cta_group=2)")
    refused("no reduce=|reduce=", 'tile.copy_async(d, s, reduce="add")')


def test_a_warp_reads_its_own_replica():
    """A quarter of the lanes holds what every other one does; all warps together hold the tile four times over."""
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
    replicated.simulate(1, x, y, TMEM=tensor_layout("32x128b.warpx4", 4), target="sm_100a").raise_first()
    np.testing.assert_array_equal(y[2], x)
    np.testing.assert_array_equal(y[3], x + 1)
    assert replicated.compile(x, y, TMEM=tensor_layout("32x128b.warpx4", 4), target="sm_100a").cubin


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
def test_a_token_is_a_commit_and_the_wait_for_it(n, seed):
    """Whoever waits for the token sees the bytes: a barrier of the compiler's, and the fence after it."""
    x = np.random.default_rng(5).random((4, 128, 8), np.float32)
    y = np.zeros_like(x)
    layout = tile.swizzled("float32", (4, 128, 8), 32)
    by_tokens.simulate(1, x, y, n, seed=seed, SMEM=layout, target="sm_100a").raise_first()
    np.testing.assert_array_equal(y[:n], x[:n])
    ptx = by_tokens.compile(x, y, n, SMEM=layout, target="sm_103a").ptx
    assert ptx.count("tcgen05.commit.cta_group::1") == 2
