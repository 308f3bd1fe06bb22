"""Host arrays of elements smaller than a byte: packing, arrays of other libraries, and errors."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, strategies as st
from tilejit.dtypes import DTYPES, dtype_of
from tilejit.runtime import dlpack
from tilejit.runtime.arguments import ArraySpec
from tilejit.runtime.arrays import describe

TYPES = {name: getattr(ml_dtypes, name) for name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")}


@given(st.sampled_from(list(TYPES)), st.integers(0, 3), st.integers(0, 5), st.integers(0, 9), st.integers(0, 99))
def test_unpacking_restores_packed_elements(name, planes, rows, blocks, seed):
    """For any shape whose rows are whole bytes."""
    codes = np.random.default_rng(seed).integers(0, DTYPES[name].codes, (planes, rows, 4 * blocks)).astype(np.uint8)
    made = tile.pack(codes.view(TYPES[name]))
    assert made.shape == codes.shape and made.dtype.name == name
    np.testing.assert_array_equal(made.unpack().view(np.uint8), codes)


def test_the_first_element_is_in_the_lowest_bits():
    """Two 4-bit elements per byte, four 6-bit elements in three bytes, as in PTX's packed formats."""
    bits = lambda name, codes: tile.pack(np.array([codes], np.uint8).view(TYPES[name])).data.tolist()
    assert bits("float4_e2m1fn", [0x1, 0xA, 0xF, 0x0]) == [[0xA1, 0x0F]]
    word = 0b000001 | 0b100000 << 6 | 0b111111 << 12 | 0b010101 << 18
    assert bits("float6_e3m2fn", [0b000001, 0b100000, 0b111111, 0b010101]) == [[word & 255, word >> 8 & 255, word >> 16]]


def test_numbers_are_packed_with_the_rounding_of_a_cast():
    """To nearest even, saturating; NaN becomes the largest number."""
    made = tile.pack(np.array([[0.26, 2.5, -100, np.nan]], np.float32), "float4_e2m1fn")
    assert made.unpack().astype(np.float32).tolist() == [[0.5, 2, -6, 6]]
    assert describe(made).pointer % 32 == 0


def test_the_bytes_of_any_array_can_be_used_as_packed_elements():
    """Without a copy: a kernel's writes appear in the array."""
    @tile.jit
    def doubled(x):
        v = tile.cast(tile.load(x[0:4, 8:16]), tile.float32)
        tile.sync()
        tile.store(x[0:4, 8:16], v + v)

    data = np.full((4, 16), 0x21, np.uint8)  # 0.5 and 1
    doubled[1,](tile.Packed(data[:, 4:12], "float4_e2m1fn"))
    assert (data[:, 8:12] == 0x42).all() and (data[:, :8] == 0x21).all() and (data[:, 12:] == 0x21).all()


def test_arrays_that_are_not_packed_are_refused():
    """The error says what to pass instead."""
    refused = lambda words: pytest.raises(tile.LaunchError, match=words)
    kernel = tile.jit(source="def kernel(x):\n    pass")
    with refused(r"NumPy has a byte for each float4_e2m1fn.*pass tile.pack\(array\)"):
        kernel.compile(np.zeros((4, 4), ml_dtypes.float4_e2m1fn))
    with refused("array of bytes"):
        tile.Packed(np.zeros((4, 4), np.float32), "float4_e2m1fn")
    with refused("contiguous last dimension"):
        tile.Packed(np.zeros((4, 4), np.uint8)[:, ::2], "float4_e2m1fn")
    with refused("rows of 4 bytes are no whole number of float6_e2m3fn"):
        tile.Packed(np.zeros((4, 4), np.uint8), "float6_e2m3fn")
    with refused("not float16"):
        tile.Packed(np.zeros((4, 4), np.uint8), "float16")
    with refused("multiple of 2, and the shape is"):
        tile.pack(np.zeros((4, 3), ml_dtypes.float4_e2m1fn))
    with refused("give dtype="):
        tile.pack(np.zeros((4, 4), np.float32))
    with refused("multiples of 2 elements"):
        kernel.compile(ArraySpec((4, 7), "float4_e2m1fn"))
    with refused("multiples of 2 elements"):
        kernel.compile(ArraySpec((4, 8), "float4_e2m1fn", (9, 1)))


def test_kernels_see_elements_rather_than_bytes():
    """In shapes, strides, negative bounds, slices of regions, and the specs that the kernel was compiled for."""
    @tile.jit
    def told(x, y):
        tile.static_assert(x.dtype == tile.float4_e2m1fn)
        first = x.shape[1] - 64
        rest = x[0:8, first:first + 32]
        tile.static_assert(rest.shape == (8, 32) and rest.nbytes == 128)
        s = tile.alloc((8, 64), x.dtype)
        tile.static_assert(s.shape == (8, 64) and s.nbytes == 256 and s[2:4, 32:64].shape == (2, 32))
        tile.store(y[0], x.shape[1])
        tile.store(y[1], x.strides[0])
        tile.store(y[2:10], tile.cast(tile.sum(tile.cast(tile.load(rest[:, 8:24]), tile.float32), axis=1), tile.int32))

    x, y = np.random.default_rng(0).integers(-3, 4, (8, 200)).astype(ml_dtypes.float4_e2m1fn), np.zeros(10, np.int32)
    told[1,](tile.pack(x), y)
    assert y[:2].tolist() == [200, 200] and y[2:].tolist() == x[:, 136 + 8:136 + 24].astype(np.int32).sum(axis=1).tolist()
    assert told.compile(ArraySpec((8, 200), "float4_e2m1fn"), y).cubin


def test_dlpack_and_dtypes_of_pairs_are_understood():
    """torch's float4_e2m1fn_x2 has two elements in each byte that the shape counts; an array with a byte per element is not packed."""
    extents, steps = (ctypes.c_int64 * 1)(4), (ctypes.c_int64 * 1)(1)
    tensor = lambda code, bits, lanes: dlpack.DLTensor(0, 1, 0, 1, code, bits, lanes, extents, steps, 0)
    assert dlpack.dtype_name(tensor(17, 4, 2)) == "float4_e2m1fn" and dlpack.dtype_name(tensor(14, 8, 1)) == "float8_e8m0fnu"
    for wrong in ((17, 4, 1), (15, 6, 1), (16, 6, 4)):
        with pytest.raises(tile.LaunchError, match="lanes"):
            dlpack.dtype_name(tensor(*wrong))
    assert dtype_of("torch.float4_e2m1fn_x2") == tile.float4_e2m1fn and dtype_of("torch.float8_e8m0fnu") == tile.float8_e8m0fnu


def test_padded_dtypes_exist_for_elements_of_4_and_6_bits():
    assert [tile.padded(n).name for n in TYPES] == ["float4_e2m1fn_p64", "float6_e2m3fn_p32", "float6_e3m2fn_p32"]
    with pytest.raises(tile.CompilationError, match="elements of 4 and 6 bits are padded, and float16"):
        tile.padded("float16")
