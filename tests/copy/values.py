"""Elements of every dtype with random bits, as arguments of kernels, and compared bit by bit."""

import numpy as np
import tilejit as tile
from tilejit.dtypes import dtype_of

#: Elements of one byte, of two, four and eight.
WHOLE = ("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int16", "uint16", "float16", "bfloat16", "int32", "uint32",
         "float32", "int64", "uint64", "float64")
#: Elements of four and of six bits.
PACKED = ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
#: The number of elements in 16 bytes, or in 48 bytes where 16 do not hold a whole number.
UNIT = {"float4_e2m1fn": 32, "float6_e2m3fn": 64, "float6_e3m2fn": 64} | {name: 16 // dtype_of(name).nbytes for name in WHOLE}


def any_bits(dtype: str, shape, seed: int = 0) -> np.ndarray:
    """Elements with random bits, including NaN, infinities and subnormals; packed ones in a byte each."""
    kind, rng = dtype_of(dtype).np, np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    codes = {"float4_e2m1fn": 16, "float6_e2m3fn": 64, "float6_e3m2fn": 64}.get(dtype, 256)
    return rng.integers(0, codes, (*shape[:-1], shape[-1] * kind.itemsize)).astype(np.uint8).view(kind)


def argument(values: np.ndarray):
    """A copy of elements in the form that kernels take."""
    return tile.pack(values) if values.dtype.name in PACKED else values.copy()


def bits(x) -> np.ndarray:
    """The bytes of the elements of an argument."""
    return np.ascontiguousarray(x.unpack() if isinstance(x, tile.Packed) else x).view(np.uint8)


def same(x, y) -> bool:
    """Whether two arguments have the same elements, bit by bit."""
    return np.array_equal(bits(x), bits(y))
