"""The vectors of register tiles are as wide as all accesses of a shape together want them."""

import re

import numpy as np
import pytest
import tilejit as tile


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
    """A transposition: one side has one sector an element in any case."""
    x, y = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    assert widths(transposed, x, y.T, N=64) in ([("ld", 4), ("st", 16)], [("ld", 16), ("st", 4)])


def test_a_gather_by_unknown_indices_leaves_the_others_their_vectors():
    x, index, y = np.zeros(4096, np.float32), np.zeros(4096, np.int32), np.zeros(4096, np.float32)
    assert widths(gathered, x, index, y, N=4096) == [("ld", 4), ("ld", 16), ("st", 16)]


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
