"""Products of views of shared memory: threads write through one view, tensor cores read through another."""

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")
A = np.random.default_rng(0).integers(-3, 4, (64, 64)).astype(np.float16)
X = A.astype(np.float64)


@tile.jit(num_warps=4)
def of_view(A, C, WRITTEN: tile.constexpr, READ: tile.constexpr):
    arena = tile.alloc((24576,), tile.uint8, align=1024)
    s = arena[8192:16384].view(A.dtype, (64, 64), tile.swizzled(A.dtype, (64, 64), 128))
    turned, rows = s.permute((1, 0)), s.reshape((2, 32, 64))
    if WRITTEN == "turned":
        tile.store(turned, tile.load(A[0:64, 0:64]).T)
    elif WRITTEN == "rows":
        for i in tile.static_range(2):
            tile.store(rows[i], tile.load(A[32 * i:32 * i + 32, 0:64]))
    else:
        tile.store(s, tile.load(A[0:64, 0:64]))
    tile.sync()
    x = turned if READ == "turned" else rows.reshape((64, 64)) if READ == "rows" else s
    tile.store(C[0:64, 0:64], tile.dot(x, x, trans_b=True))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("written", ["s", "turned", "rows"])
@pytest.mark.parametrize("read", ["s", "turned", "rows"])
def test_writes_through_one_view_are_fenced_before_a_product_of_another_view(written, read, target):
    c = np.full((64, 64), np.nan, np.float32)
    of_view.simulate(1, A, c, WRITTEN=written, READ=read, target=target).raise_first()
    x = X.T if read == "turned" else X
    np.testing.assert_array_equal(c, x @ x.T)
    made = of_view.compile(A, c, WRITTEN=written, READ=read, target=target)
    assert made.products[0].variant in ("wgmma", "tcgen05") and made.graph.count("fence_proxy_async") == 1


@needs_gpu("sm_90a")
@in_child()
def test_tensor_cores_read_through_one_view_what_threads_wrote_through_another_on_the_gpu():
    for written in ("s", "turned", "rows"):
        for read in ("s", "turned", "rows"):
            for _ in range(20):  # without the fence some would be right by chance
                c = np.full((64, 64), np.nan, np.float32)
                of_view[(1,)](A, c, WRITTEN=written, READ=read, backend="cuda")
                x = X.T if read == "turned" else X
                np.testing.assert_array_equal(c, x @ x.T)


@tile.jit(num_warps=4)
def beside(A, C, FIRST: tile.constexpr):
    arena = tile.alloc((32768,), tile.uint8, align=1024)
    s = arena[0:8192].view(A.dtype, (64, 64), tile.swizzled(A.dtype, (64, 64), 128))
    other = arena[FIRST:FIRST + 16384].view(C.dtype, (64, 64))
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0:64, 0:64], mbar=bar)
    bar.wait(phase=0)
    acc = tile.dot(s, s, trans_b=True)
    tile.sync()
    tile.store(other, acc)
    tile.sync()
    tile.store(C[0:64, 0:64], tile.load(other))


@pytest.mark.parametrize("first, fences", [(8192, 0), (7168, 1), (0, 1)])
def test_writes_next_to_an_operand_in_its_allocation_need_no_fence(first, fences):
    c = np.zeros((64, 64), np.float32)
    beside.simulate(1, A, c, FIRST=first).raise_first()
    np.testing.assert_array_equal(c, X @ X.T)
    assert beside.compile(A, c, FIRST=first, target="sm_90a").graph.count("fence_proxy_async") == fences


@tile.jit(num_warps=4)
def in_order(A, B, C):
    """B as [columns / 32, 4, 4, 2, k]: of each 32 columns, one thread of four then holds eight adjacent ones instead of every
    fourth pair."""
    a = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128))
    b = tile.alloc((64, 64), B.dtype, layout=tile.swizzled(B.dtype, (64, 64), 128))
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(a.nbytes + b.nbytes)
        tile.copy_async(a, A[0:64, 0:64], mbar=bar)
        tile.copy_async(b.reshape((2, 4, 4, 2, 64)), B[0:2, 0:4, 0:4, 0:2, 0:64], mbar=bar)
    bar.wait(phase=0)
    sums = tile.reshape(tile.transpose(tile.reshape(tile.dot(a, b, trans_b=True), (64, 2, 4, 4, 2)), (0, 1, 3, 2, 4)), (64, 64))
    tile.store(C[0:64, 0:64], tile.cast(sums, C.dtype))


def test_columns_loaded_by_tma_in_a_permuted_order_let_threads_store_results_as_vectors():
    b, c = A[::-1].copy(), np.full((64, 64), np.nan, np.float16)
    ordered = b.reshape(2, 4, 4, 2, 64).transpose(0, 2, 1, 3, 4)
    in_order.simulate(1, A, ordered, c, target="sm_90a").raise_first()
    np.testing.assert_array_equal(c, (X @ X[::-1].T).astype(np.float16))
    made = in_order.compile(A, ordered, c, target="sm_90a")
    assert made.products[0].variant == "wgmma" and made.ptx.count("st.global.v4.b32") == made.ptx.count("st.global") == 4
