"""Views of tensor memory: the same columns with another dtype, shape or layout."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check
from tilejit.layout import TileLayout, tmem_datapath

TARGETS = ("sm_100a", "sm_103a")


@tile.jit
def reread(x, y, DTYPE: tile.constexpr, SHAPE: tile.constexpr, LAYOUT: tile.constexpr):
    board = tile.alloc((128, 32), x.dtype, scope="tmem")
    tile.store(board, tile.load(x[0:128, 0:32]))
    tile.store(y[0:SHAPE[0], 0:SHAPE[1]], tile.load(board.view(DTYPE, SHAPE, LAYOUT)))


@pytest.mark.parametrize("dtype, per", [("uint8", 4), ("int8", 4), ("float16", 2), ("bfloat16", 2), ("int32", 1), ("float32", 1)])
def test_a_view_has_the_same_bytes_in_each_lane(dtype, per):
    """All of them, or those of fewer columns."""
    x = np.random.default_rng(0).integers(0, 1 << 32, (128, 32), np.uint32)
    np_dtype = tile.dtypes.dtype_of(dtype).np
    for columns in (32 * per, 8 * per):
        y = np.zeros((128, columns), np_dtype)
        options = dict(DTYPE=dtype, SHAPE=(128, columns), LAYOUT=None)
        reread.simulate(1, x, y, **options, target="sm_100a").raise_first()
        assert y.tobytes() == x.view(np_dtype)[:, :columns].tobytes()
        for target in TARGETS:
            assert reread.compile(x, y, **options, target=target).cubin


def test_a_view_may_use_other_lanes():
    """Or other columns: 64 rows in the lanes of an accumulator with 64 rows."""
    x = np.random.default_rng(1).random((128, 32), np.float32)
    for shape, layout, lanes in (((64, 16), tmem_datapath("F", 16), np.arange(64) // 16 * 32 + np.arange(64) % 16),
                                 ((128, 8), TileLayout([(128, 1, "TLane"), (8, 1, "TCol")]) + 24 @ tile.axis.TCol, np.arange(128))):
        y = np.zeros(shape, np.float32)
        reread.simulate(1, x, y, DTYPE="float32", SHAPE=shape, LAYOUT=layout, target="sm_100a").raise_first()
        first = 24 if shape[1] == 8 else 0
        np.testing.assert_array_equal(y, x[lanes, first:first + shape[1]])


@tile.jit(cluster=(2, 1, 1))
def by_views(A, B, C, GROUP: tile.constexpr):
    """A product of a view of one buffer into a view of another."""
    sA = tile.alloc((128, 32), A.dtype, layout=tile.swizzled(A.dtype, (128, 32), 64))
    sB = tile.alloc((32, 32), B.dtype, layout=tile.swizzled(B.dtype, (32, 32), 64))
    words, sums = tile.alloc((128, 16), "uint32", scope="tmem", cta_group=GROUP), tile.alloc((128, 64), "int32", scope="tmem", cta_group=GROUP)
    a, acc = words.view(A.dtype, (128, 32)), sums.view("float32", (128, 32 * GROUP))
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    tile.copy(sA, A[128 * rank:128 * rank + 128, 0:32])
    tile.copy(sB, B[32 * rank:32 * rank + 32, 0:32])
    tile.fence_proxy_async()
    tile.cluster_sync()
    if GROUP == 1 or rank == 0:
        with tile.elect():
            tile.copy_async(a, sA)
            tile.mma_async(acc, a, sB, trans_b=True, accumulate=False)
            if GROUP == 2:
                tile.tcgen05_commit(bar, multicast=3)
            else:
                tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[128 * rank:128 * rank + 128, 0:32 * GROUP], tile.load(acc))


@pytest.mark.parametrize("group", [1, 2])
def test_copies_and_products_accept_views_by_one_cta_and_by_a_pair(group):
    rng = np.random.default_rng(2)
    A, B = rng.integers(-8, 8, (256, 32)).astype(np.float16), rng.integers(-8, 8, (64, 32)).astype(np.float16)
    C = np.zeros((256, 32 * group), np.float32)
    by_views.simulate(2, A, B, C, GROUP=group, target="sm_100a").raise_first()
    both = A.astype(np.float64) @ B.astype(np.float64).T
    want = both if group == 2 else np.vstack([both[:128, :32], both[128:, 32:]])
    np.testing.assert_array_equal(C, want)
    for target in TARGETS:
        compiled = by_views.compile(A, B, C, GROUP=group, target=target)
        assert f"tcgen05.mma.cta_group::{group}." in compiled.ptx and f"tcgen05.cp.cta_group::{group}." in compiled.ptx


@tile.jit
def after_the_end(y):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")
    v = d.view("float32")
    tile.store(v, tile.zeros((128, 16)))
    d.dealloc()
    tile.store(y[0:128, 0:16], tile.load(v))  # finds: tmem


@tile.jit
def unwaited(y):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")
    tile.copy_async(d, tile.zeros((128, 16)))
    tile.store(y[0:128, 0:16], tile.cast(tile.load(d.view("int32")), "float32"))  # finds: missing-wait
    tile.tcgen05_wait("st")


def test_lifetime_and_synchronisation_errors_through_a_view_are_found():
    """Use after dealloc, and access to data in flight."""
    for kernel in (after_the_end, unwaited):
        check(kernel, (1,), np.zeros((128, 16), np.float32), target="sm_100a")


@pytest.mark.parametrize("line, words", [
    ("d.view('float32', (128, 17))", "the view takes 17 columns, and .* has 16"),
    ("d.view('float16', (128, 34))", "the view takes 17 columns"),
    ("d.view('float64', (128, 8))", "tensor memory holds elements of 8, 16 and 32 bits"),
    ("d.view('float32', (4, 32, 16))", "is not \\[rows, columns\\] of at most 128 rows: give a layout"),
    ("d.view('float32', (128, 16), tile.S[(128, 16):(16, 1)])", "a layout of tensor memory is over axis.TLane and axis.TCol"),
    ("d[0:128, 0:8].view('float32')", "a view of tensor memory must be of a whole buffer"),
    ("d.view('int32').dealloc()", "must be deallocated by the buffer that was allocated, and this is a view of it"),
    ("d.reshape((64, 32))", "reshape is for the CTA's own shared memory"),
])
def test_invalid_views_are_errors_at_their_line(line, words):
    source = f'def kernel(x):\n    d = tile.alloc((128, 16), "float32", scope="tmem")\n    {line}\n'
    with pytest.raises(tile.CompilationError, match=words):
        tile.jit(source=source).compile(tile.ArraySpec((8,), "float32"), target="sm_100a")
