"""The vector width of a register tile's layout is chosen for all accesses of tiles of that shape together."""

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
    """The memory instructions used: "ld" or "st", and the bytes per thread."""
    found = re.findall(r"\b(ld|st)\.global[.\w:]*?(?:\.v(\d))?\.b(\d+)", kernel.compile(*arrays, **constants).ptx)
    return sorted({(word, int(n or 1) * int(bits) // 8) for word, n, bits in found})


def sectors(kernel, *arrays, **constants) -> int:
    report = kernel.simulate((1,), *arrays, **constants)
    assert not report.findings
    return report.stats["global sectors"]


def test_contiguous_accesses_use_vectors_of_16_bytes():
    x = np.zeros(4096, np.float32)
    assert widths(copy, x, x.copy(), N=4096) == [("ld", 16), ("st", 16)]
    assert sectors(copy, x, x.copy(), N=4096) == 2 * 4096 * 4 // 32


def test_a_strided_load_and_a_contiguous_store_use_single_elements():
    """Every second element: 64 bytes per warp and request are 8 sectors; they would be 32 if lanes were four elements apart."""
    x, y = np.arange(8192, dtype=np.float32), np.zeros(4096, np.float32)
    assert widths(copy, x[::2], y, N=4096) == widths(every_second, x, y, N=4096) == [("ld", 4), ("st", 4)]
    for kernel, source in ((copy, x[::2]), (every_second, x)):
        assert sectors(kernel, source, y, N=4096) == 4096 * 8 // 32 + 4096 * 4 // 32
        np.testing.assert_array_equal(y, x[::2])
        y[:] = 0


def test_loads_that_cannot_be_vectors_count_in_the_choice_too():
    """Two of four accesses are not 16-byte aligned: with single elements, the fewest sectors are accessed."""
    x, y = np.zeros(8192 + 4, np.float32), np.zeros(8192, np.float32)
    assert widths(halo, x, y, N=4096) == [("ld", 4), ("st", 4)]
    assert sectors(halo, x, y, N=4096) <= 4 * 4096 * 4 // 32 + 2 * 4096 // 32


@pytest.mark.parametrize("narrow, wide, want", [("float16", "float32", 4), ("int8", "float32", 4), ("int8", "float16", 8)])
def test_a_cast_to_a_wider_dtype_leaves_no_gaps_between_lanes_on_the_wider_side(narrow, wide, want):
    """16-byte vectors on the narrow side would leave gaps between the lanes on the wide side."""
    x, y = np.zeros(8192, narrow), np.zeros(8192, wide)
    assert widths(widened, x, y, N=8192) == [("ld", want * x.itemsize), ("st", want * y.itemsize)]
    assert sectors(widened, x, y, N=8192) == (x.nbytes + y.nbytes) // 32


def test_a_large_stride_does_not_affect_the_vectors_of_other_accesses():
    """A small transpose: one side needs a sector for a few elements in any layout, and converting the layout would cost more."""
    x, y = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)
    assert widths(transposed, x, y.T, N=32) in ([("ld", 4), ("st", 16)], [("ld", 16), ("st", 4)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("n", [64, 128])
def test_a_transpose_converts_the_layout_and_accesses_every_sector_once(dtype, n):
    """16-byte vectors on both sides, for arrays of different order and for transposed tiles."""
    x, y = np.arange(n * n).reshape(n, n).astype(dtype), np.zeros((n, n), dtype)
    for kernel, place, want in ((transposed, y.T, x.T), (turned, y, x.T)):
        y[:] = 0
        assert {width for _, width in widths(kernel, x, place, N=n)} == {16}
        assert sectors(kernel, x, place, N=n) == 2 * x.nbytes // 32
        np.testing.assert_array_equal(y, want)


def test_without_enough_shared_memory_a_store_keeps_its_layout():
    """An optional layout conversion never makes a kernel fail."""
    x, y = np.zeros((128, 128), np.float32), np.zeros((128, 128), np.float32)
    compiled = crowded.compile(x, y, N=128, target="sm_90a")
    assert "convert_layout" not in compiled.graph and "convert_layout" in turned.compile(x, y, N=128, target="sm_90a").graph


@needs_gpu()
@in_child(timeout=60)
def test_stores_with_converted_layouts_are_right_on_the_gpu():
    for dtype in ("float32", "float16", "int8", "float64"):
        for n in (64, 128) if dtype != "float64" else (64,):
            x, y = np.arange(n * n).reshape(n, n).astype(dtype), np.zeros((n, n), dtype)
            turned[1](x, y, N=n, backend="cuda")
            np.testing.assert_array_equal(y, x.T)


def test_a_gather_with_unknown_indices_does_not_affect_the_vectors_of_other_accesses():
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


def test_a_mask_that_splits_vectors_keeps_lanes_contiguous():
    x, y = np.arange(4096, dtype=np.float32), np.zeros(4096, np.float32)
    assert widths(masked, x, y, 1001, N=4096) == [("ld", 4), ("st", 4)]
    assert sectors(masked, x, y, 1001, N=4096) <= 2 * 4096 * 4 // 32
    np.testing.assert_array_equal(y, np.where(x < 1001, x, 0))


def test_a_mask_that_is_equal_for_neighbours_allows_vectors():
    x, y = np.ones((64, 64), np.float16), np.zeros((64, 64), np.float16)
    assert widths(masked_rows, x, y, 5, N=64) == [("ld", 16), ("st", 16)]
    masked_rows.simulate(1, x, y, 5, N=64).raise_first()
    assert (y[:5] == 1).all() and not y[5:].any()


def test_atomics_without_vectors_keep_lanes_contiguous():
    """The L2 cache processes the elements of a sector together: four times as many integers as with lanes four elements apart."""
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


def test_accesses_in_a_loop_weigh_more_than_those_after_it():
    """If each ran once, both would use single elements."""
    x, y = np.zeros((8, 4096), np.float32), np.zeros(8192, np.float32)
    assert widths(in_a_loop, x, y[::2], N=4096) == [("ld", 8), ("st", 4)]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_accumulators_do_not_narrow_the_loads_of_operands_of_the_same_shape(target):
    """float16 loads use 16 bytes, next to float32 accumulators of the same shape that are stored and added to memory in their
    own layout."""
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
