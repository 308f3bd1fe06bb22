"""The vectors of register tiles are as wide as all accesses of a shape together want them."""

import re

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")


@tile.jit
def copy(x, y, N: tile.constexpr):
    tile.store(y[0:N], tile.load(x[0:N]))


@tile.jit
def every_second(x, y, N: tile.constexpr):
    tile.store(y[0:N], tile.load(x[tile.arange(N) * 2]))


@tile.jit
def halo(x, y, N: tile.constexpr):
    i = tile.program_id(0) * N
    tile.store(y[i:i + N], tile.load(x[i:i + N]) + tile.load(x[i + 1:i + 1 + N]) + tile.load(x[i + 3:i + 3 + N]))


@tile.jit
def widened(x, y, N: tile.constexpr):
    tile.store(y[0:N], tile.load(x[0:N]).to(y.dtype))


@tile.jit
def transposed(x, y, N: tile.constexpr):
    tile.store(y[0:N, 0:N], tile.load(x[0:N, 0:N]))


@tile.jit
def turned(x, y, N: tile.constexpr):
    tile.store(y[0:N, 0:N], tile.load(x[0:N, 0:N]).T)


@tile.jit
def crowded(x, y, N: tile.constexpr):
    held = tile.alloc((210 * 1024,), tile.uint8)
    tile.store(held[0], 1)
    tile.store(y[0:N, 0:N], tile.load(x[0:N, 0:N]).T)


@tile.jit
def gathered(x, index, y, N: tile.constexpr):
    tile.store(y[0:N], tile.load(x[tile.load(index[0:N])]))


def widths(kernel, *arrays, **constants) -> list[tuple[str, int]]:
    """The kinds of memory instruction: "ld" or "st", and the bytes that a thread moves by it."""
    found = re.findall(r"\b(ld|st)\.global[.\w:]*?(?:\.v(\d))?\.b(\d+)", kernel.compile(*arrays, **constants).ptx)
    return sorted({(word, int(n or 1) * int(bits) // 8) for word, n, bits in found})


def sectors(kernel, *arrays, **constants) -> int:
    report = kernel.simulate((1,), *arrays, **constants)
    assert not report.findings
    return report.stats["global sectors"]


def test_contiguous_accesses_take_vectors_of_16_bytes():
    x = np.zeros(4096, np.float32)
    assert widths(copy, x, x.copy(), N=4096) == [("ld", 16), ("st", 16)]
    assert sectors(copy, x, x.copy(), N=4096) == 2 * 4096 * 4 // 32


def test_a_strided_load_beside_a_contiguous_store_takes_single_elements():
    """Every second element: 64 bytes a warp and request are 8 sectors, and would be 32 if lanes stood four elements apart."""
    x, y = np.arange(8192, dtype=np.float32), np.zeros(4096, np.float32)
    assert widths(copy, x[::2], y, N=4096) == widths(every_second, x, y, N=4096) == [("ld", 4), ("st", 4)]
    for kernel, source in ((copy, x[::2]), (every_second, x)):
        assert sectors(kernel, source, y, N=4096) == 4096 * 8 // 32 + 4096 * 4 // 32
        np.testing.assert_array_equal(y, x[::2])
        y[:] = 0


def test_loads_that_no_vector_fits_decide_with_the_others():
    """Of four accesses two stand apart from multiples of 16 bytes: single elements touch the fewest sectors."""
    x, y = np.zeros(8192 + 4, np.float32), np.zeros(8192, np.float32)
    assert widths(halo, x, y, N=4096) == [("ld", 4), ("st", 4)]
    assert sectors(halo, x, y, N=4096) <= 4 * 4096 * 4 // 32 + 2 * 4096 // 32


@pytest.mark.parametrize("narrow, wide, want", [("float16", "float32", 4), ("int8", "float32", 4), ("int8", "float16", 8)])
def test_a_cast_to_a_wider_dtype_leaves_no_gaps_in_the_wider_one(narrow, wide, want):
    """Vectors of 16 bytes on the narrow side would part the lanes on the wide one."""
    x, y = np.zeros(8192, narrow), np.zeros(8192, wide)
    assert widths(widened, x, y, N=8192) == [("ld", want * x.itemsize), ("st", want * y.itemsize)]
    assert sectors(widened, x, y, N=8192) == (x.nbytes + y.nbytes) // 32


def test_a_stride_that_is_far_in_any_layout_leaves_the_others_their_vectors():
    """A small transposition: one side has a sector for a few elements in any case, and a change of layout would cost more."""
    x, y = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)
    assert widths(transposed, x, y.T, N=32) in ([("ld", 4), ("st", 16)], [("ld", 16), ("st", 4)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("n", [64, 128])
def test_a_transposition_changes_the_layout_and_touches_every_sector_once(dtype, n):
    """Vectors of 16 bytes on either side, by arrays that lie otherwise and by tiles that are transposed."""
    x, y = np.arange(n * n).reshape(n, n).astype(dtype), np.zeros((n, n), dtype)
    for kernel, place, want in ((transposed, y.T, x.T), (turned, y, x.T)):
        y[:] = 0
        assert {width for _, width in widths(kernel, x, place, N=n)} == {16}
        assert sectors(kernel, x, place, N=n) == 2 * x.nbytes // 32
        np.testing.assert_array_equal(y, want)


def test_shared_memory_that_is_used_up_leaves_a_store_as_it_is():
    """A change of layout that could be done without refuses no kernel."""
    x, y = np.zeros((128, 128), np.float32), np.zeros((128, 128), np.float32)
    compiled = crowded.compile(x, y, N=128, target="sm_90a")
    assert "convert_layout" not in compiled.graph and "convert_layout" in turned.compile(x, y, N=128, target="sm_90a").graph


@needs_gpu()
@in_child(timeout=60)
def test_changed_stores_are_right_on_the_gpu():
    for dtype in ("float32", "float16", "int8", "float64"):
        for n in (64, 128) if dtype != "float64" else (64,):
            x, y = np.arange(n * n).reshape(n, n).astype(dtype), np.zeros((n, n), dtype)
            turned[1](x, y, N=n, backend="cuda")
            np.testing.assert_array_equal(y, x.T)


def test_a_gather_by_unknown_indices_leaves_the_others_their_vectors():
    x, index, y = np.zeros(4096, np.float32), np.zeros(4096, np.int32), np.zeros(4096, np.float32)
    assert widths(gathered, x, index, y, N=4096) == [("ld", 4), ("ld", 16), ("st", 16)]


@tile.jit
def masked(x, y, n, N: tile.constexpr):
    below = tile.arange(N) < n
    tile.store(y[0:N], tile.load(x[0:N], mask=below), mask=below)


@tile.jit
def masked_rows(x, y, n, N: tile.constexpr):
    below = (tile.arange(N) < n)[:, None]
    tile.store(y[0:N, 0:N], tile.load(x[0:N, 0:N], mask=below), mask=below)


@tile.jit
def counted(x, y, N: tile.constexpr):
    tile.atomic_add(y[0:N], tile.load(x[0:N]))


def test_a_mask_that_parts_vectors_leaves_lanes_side_by_side():
    x, y = np.arange(4096, dtype=np.float32), np.zeros(4096, np.float32)
    assert widths(masked, x, y, 1001, N=4096) == [("ld", 4), ("st", 4)]
    assert sectors(masked, x, y, 1001, N=4096) <= 2 * 4096 * 4 // 32
    np.testing.assert_array_equal(y, np.where(x < 1001, x, 0))


def test_a_mask_that_is_the_same_for_neighbours_leaves_them_a_vector():
    x, y = np.ones((64, 64), np.float16), np.zeros((64, 64), np.float16)
    assert widths(masked_rows, x, y, 5, N=64) == [("ld", 16), ("st", 16)]
    masked_rows.simulate(1, x, y, 5, N=64).raise_first()
    assert (y[:5] == 1).all() and not y[5:].any()


def test_atomics_without_vectors_leave_lanes_side_by_side():
    """The L2 cache takes the elements of a sector together: four times as many of integers where lanes stand four elements apart."""
    x, y = np.ones(4096, np.int32), np.zeros(4096, np.int32)
    compiled = counted.compile(x, y, N=4096, target="sm_90a")
    assert "S[(32, 4, 32) : (1 @ axis.reg, 1 @ axis.warpid, 1 @ axis.laneid)]" in compiled.graph
    assert widths(counted, x.astype(np.float32), y.astype(np.float32), N=4096, target="sm_90a") == [("ld", 16)]


@tile.jit
def in_a_loop(x, y, N: tile.constexpr):
    acc = tile.zeros((N,))
    for i in range(x.shape[0]):
        acc += tile.load(x[i, 0:N])
    tile.store(y[0:N], acc)


def test_what_is_read_in_a_loop_weighs_more_than_what_is_written_after_it():
    """Read and written once each, the two would be single elements."""
    x, y = np.zeros((8, 4096), np.float32), np.zeros(8192, np.float32)
    assert widths(in_a_loop, x, y[::2], N=4096) == [("ld", 8), ("st", 4)]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_results_of_tensor_cores_do_not_narrow_the_loads_of_operands_of_their_shape(target):
    """Loads of float16 go by 16 bytes, beside sums of float32 in the same extents that are stored and added to memory as they are made."""
    @tile.jit
    def backward(Q, K, dO, dQ, dK, dV):
        k, dk, dv = tile.load(K[0:64, 0:64]), tile.zeros((64, 64)), tile.zeros((64, 64))
        for m in range(0, Q.shape[0], 64):
            q, do = tile.load(Q[m:m + 64, 0:64]), tile.load(dO[m:m + 64, 0:64])
            p = tile.dot(q, k.T).to(q.dtype)
            dv, dk = tile.dot(p.T, do, dv), tile.dot(p.T, q, dk)
            tile.atomic_add(dQ[m:m + 64, 0:64], tile.dot(p, k))
        tile.store(dK[0:64, 0:64], dk)
        tile.store(dV[0:64, 0:64], dv)

    half, single = tile.ArraySpec((64, 64), "float16"), tile.ArraySpec((64, 64), "float32")
    ptx = backward.compile(half, half, half, single, single, single, target=target).ptx
    assert "ld.global.v4.b32" in ptx and "ld.global.v2.b32" not in ptx


@pytest.mark.parametrize("nest", ["loop", "loop of loops", "branch"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_sums_that_a_loop_or_a_branch_hands_on_do_not_narrow_what_has_their_shape(target, nest):
    @tile.jit
    def beside(A, B, C, X, Y, n, NEST: tile.constexpr):
        acc = tile.zeros((64, 64))
        if NEST == "branch":
            if n > 1:
                acc = tile.dot(tile.load(A[0:64, 0:32]), tile.load(B[0:32, 0:64]))
        else:
            for _ in range(n if NEST == "loop of loops" else 1):
                for k in range(0, A.shape[1], 32):
                    acc = tile.dot(tile.load(A[0:64, k:k + 32]), tile.load(B[k:k + 32, 0:64]), acc)
        tile.store(C[0:64, 0:64], acc)
        tile.store(Y[0:64, 0:64], tile.load(X[0:64, 0:64]))

    half, single = tile.ArraySpec((64, 64), "float16"), tile.ArraySpec((64, 64), "float32")
    made = beside.compile(half, half, single, half, half, 2, NEST=nest, target=target)
    assert {x.vec_bytes for x in made.accesses if x.buffer in ("X", "Y")} == {16}
