"""Element types as others name them: NumPy, DLPack, `__cuda_array_interface__`, tensor maps and kernel parameters."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ..dtypes import DTYPES
from ..errors import LaunchError
from ..lazy import Lazy

if TYPE_CHECKING:
    import ml_dtypes
    import numpy
else:
    ml_dtypes, numpy = Lazy("ml_dtypes"), Lazy("numpy")


@dataclass(frozen=True, slots=True)
class ElementType:
    """`dlpack` is (type code, bits); `tensor_map` the CUtensorMapDataType that moves its bits, or None; `pack` the
    `struct` format of a kernel parameter, or "" (the parameter is then written as raw bytes)."""

    name: str
    nbytes: int
    dlpack: tuple[int, int]
    tensor_map: int | None
    pack: str


#           name             bytes  DLPack    map   struct
_ROWS = (
    ("bool",                 1, (6, 8),       0,    "?"),
    ("int8",                 1, (0, 8),       0,    "b"),
    ("int16",                2, (0, 16),      1,    "h"),
    ("int32",                4, (0, 32),      3,    "i"),
    ("int64",                8, (0, 64),      5,    "q"),
    ("uint8",                1, (1, 8),       0,    "B"),
    ("uint16",               2, (1, 16),      1,    "H"),
    ("uint32",               4, (1, 32),      2,    "I"),
    ("uint64",               8, (1, 64),      4,    "Q"),
    ("float16",              2, (2, 16),      6,    "e"),
    ("float32",              4, (2, 32),      7,    "f"),
    ("float64",              8, (2, 64),      8,    "d"),
    ("bfloat16",             2, (4, 16),      9,    ""),
    ("float8_e3m4",          1, (7, 8),       0,    ""),
    ("float8_e4m3",          1, (8, 8),       0,    ""),
    ("float8_e4m3b11fnuz",   1, (9, 8),       0,    ""),
    ("float8_e4m3fn",        1, (10, 8),      0,    ""),
    ("float8_e4m3fnuz",      1, (11, 8),      0,    ""),
    ("float8_e5m2",          1, (12, 8),      0,    ""),
    ("float8_e5m2fnuz",      1, (13, 8),      0,    ""),
    ("float8_e8m0fnu",       1, (14, 8),      0,    ""),
    # Packed along the last dimension, whose extent counts bytes.
    ("float6_e2m3fn",        1, (15, 6),      0,    ""),
    ("float6_e3m2fn",        1, (16, 6),      0,    ""),
    ("float4_e2m1fn",        1, (17, 4),      0,    ""),
)

ELEMENT_TYPES = {row[0]: ElementType(*row) for row in _ROWS}
BY_DLPACK = {row[2]: row[0] for row in _ROWS}

# Types of tensor maps only, as (CUtensorMapDataType, bytes): loads with these round to TF32 or flush denormals.
TENSOR_MAP_ONLY = {"float32_ftz": (10, 4), "tfloat32": (11, 4), "tfloat32_ftz": (12, 4),
                   # Loads with these pad 16 packed elements to 16 bytes of shared memory, and sizes count elements.
                   # Elements that stay packed move as bytes.
                   "float4_e2m1fn_p64": (14, 1), "float6_e2m3fn_p32": (15, 1), "float6_e3m2fn_p32": (15, 1)}


FLOAT32_LIMIT = 2.0 ** 128 - 2.0 ** 103  # finite numbers from here on round to infinity


def fits_float32(x: float) -> bool:
    """Whether `x` can be rounded to float32 without overflow; infinities and NaN can."""
    return abs(x) < FLOAT32_LIMIT or x - x != 0


def integer_limits(dtype: str) -> tuple[int, int] | None:
    """The least and the largest number of an integer dtype; None for other dtypes."""
    bits = 8 * ELEMENT_TYPES[dtype].nbytes
    if dtype.startswith("uint"):
        return 0, 2 ** bits - 1
    return (-2 ** (bits - 1), 2 ** (bits - 1) - 1) if dtype.startswith("int") else None


def explain_unfit(name: str) -> str:
    """The text of an error: a kernel takes no elements of this type, and which types it takes."""
    advice = ""
    if "complex" in name:
        advice = "; pass real and imaginary parts, as x.view(numpy.float32) or torch.view_as_real(x)"
    return (f"{name} is not an element type that a kernel can take; there are "
            f"{', '.join(n for n, d in DTYPES.items() if not d.padded)}{advice}")


def element_type(name: str) -> ElementType:
    """The element type called `name`. LaunchError when there is none."""
    found = ELEMENT_TYPES.get(name)
    if found is None:
        raise LaunchError(explain_unfit(name))
    return found


@cache
def numpy_dtype(name: str):
    """The NumPy dtype (ml_dtypes' where NumPy has none) called `name`."""
    element_type(name)
    try:
        return numpy.dtype(name)
    except TypeError:
        return numpy.dtype(getattr(ml_dtypes, name))


def scalar_bytes(value, dtype: str) -> bytes:
    """`value` as the `dtype` bytes of a kernel parameter. LaunchError when it is out of range."""
    element = element_type(dtype)
    try:
        if element.pack:
            return struct.pack("<" + element.pack, value)
        return numpy_dtype(dtype).type(value).tobytes()
    except (struct.error, OverflowError) as error:
        raise LaunchError(f"{value!r} does not fit in {dtype}: {error}") from None
