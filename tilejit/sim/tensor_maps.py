"""The fields of a tensor map: which values are legal, and what they mean for the bytes."""

from __future__ import annotations

import numpy as np

from ..dtypes import DTYPES
from .values import SimTensorMap

SWIZZLE_NONE, SWIZZLE_32, SWIZZLE_64, SWIZZLE_128 = range(4)

_ALIASES = {"float32_ftz": "float32", "float32.ftz": "float32", "tf32": "float32", "tfloat32": "float32",
            "tf32_ftz": "float32", "tf32.ftz": "float32"}

# Reductions that work on a tensor map (measured; the encoder and the assembler accept more,
# but the hardware faults on them).
_REDUCTIONS = {
    "uint32": ("add", "min", "max", "inc", "dec", "and", "or", "xor"),
    "int32": ("add", "min", "max", "and", "or", "xor"),
    "uint64": ("add", "min", "max", "and", "or", "xor"),
    "int64": ("min", "max"),
    "float16": ("add", "min", "max"),
    "bfloat16": ("add", "min", "max"),
    "float32": ("add",),
    "float64": ("add",),
}

_NAN = {2: 0x7ff7, 4: 0x7ff77ff7, 8: 0x7ff77ff77ff77ff7}


def elements_of(map_: SimTensorMap) -> np.dtype:
    """The NumPy dtype of the map's elements."""
    return DTYPES[_ALIASES.get(map_.dtype, map_.dtype)].np


def is_float(map_: SimTensorMap) -> bool:
    return DTYPES[_ALIASES.get(map_.dtype, map_.dtype)].is_float


def can_reduce(dtype: str, kind: str) -> bool:
    """Whether tensor reductions of that kind exist for the dtype."""
    return kind in _REDUCTIONS.get(_ALIASES.get(dtype, dtype), ())


def packed_bits(map_: SimTensorMap) -> int | None:
    """Bits per element, if elements are packed in the array and padded to bytes in shared memory;
    None for other dtypes."""
    name = DTYPES[_ALIASES.get(map_.dtype, map_.dtype)].padded
    return DTYPES[name].codes.bit_length() - 1 if name else None


def fill_value(map_: SimTensorMap) -> int:
    """The bits of an element that is loaded from out of bounds."""
    return _NAN[elements_of(map_).itemsize] if map_.oob_fill else 0


def swizzled_units(units: np.ndarray, mode: int) -> np.ndarray:
    """The 16-byte units of shared memory, by number, after a swizzle: the lowest `mode` bits XOR the bits three above
    (bits 4 and 7 of the address, and so on)."""
    return units ^ ((units >> 3) & ((1 << mode) - 1)) if mode else units


def _im2col_faults(map_: SimTensorMap, itemsize: int) -> list[str]:
    """Why ``cuTensorMapEncodeIm2col`` would reject the map."""
    walk, faults = map_.im2col, []
    if not 3 <= map_.rank <= 5:
        return [f"an im2col map has 3 to 5 dimensions, not {map_.rank}"]
    low, high = {3: (-32768, 32767), 4: (-128, 127), 5: (-16, 15)}[map_.rank]
    for name, corner in (("lower", walk.lower), ("upper", walk.upper)):
        if len(corner) != (map_.rank - 2 if walk.wide is None else 1) or any(not low <= c <= high for c in corner):
            faults.append(f"the {name} corner of a map of rank {map_.rank} has {map_.rank - 2} entries of {low} to "
                          f"{high}, not {corner}")
    if walk.wide is not None and not map_.swizzle:
        faults.append("a map for a walk along w must have a swizzle")
    if not 1 <= walk.pixels <= 1024:
        faults.append(f"an im2col copy has 1 to 1024 pixels, not {walk.pixels}")
    if not 1 <= walk.channels <= 256 or walk.channels * itemsize % 16:
        faults.append(f"an im2col copy has 1 to 256 channels of a multiple of 16 bytes, not {walk.channels}")
    return faults


def _padded_faults(map_: SimTensorMap, address) -> list[str]:
    """The additional requirements on a map of 4-bit or 6-bit elements, padded while loaded, that are not met."""
    faults = []
    if (address % 32 != 0).any() or any((np.asarray(s) % 32 != 0).any() for s in map_.global_strides):
        faults.append("a map of padded elements must begin at a multiple of 32 bytes, and so must its rows")
    if (np.asarray(map_.global_dim[0]) % 128 != 0).any() or map_.box[0] != 128:
        faults.append("a map of padded elements has rows of a multiple of 128 of them and a box of 128, "
                      f"not {map_.global_dim[0]} and {map_.box[0]}")
    if map_.swizzle not in (SWIZZLE_NONE, SWIZZLE_128) or map_.im2col is not None:
        faults.append("a map of padded elements must be a tiled one with the 128-byte swizzle or none")
    return faults


def _extent_faults(map_: SimTensorMap) -> list[str]:
    """What is wrong with the extents, strides and box of a map, each by itself."""
    faults = []
    for d, n in enumerate(map_.global_dim):
        if (np.asarray(n) < 1).any() or (np.asarray(n) > 1 << 32).any():
            faults.append(f"global_dim[{d}] is 1 to 2**32, not {n}")
    for d, s in enumerate(map_.global_strides):
        if (np.asarray(s) % 16 != 0).any() or (np.asarray(s) < 0).any() or (np.asarray(s) >= 1 << 40).any():
            faults.append(f"global_strides[{d}] is a multiple of 16 bytes below 2**40, not {s}")
    for d, b in enumerate(map_.box):
        if not 1 <= b <= 256:
            faults.append(f"box[{d}] is 1 to 256, not {b}")
    return faults


def describe_faults(map_: SimTensorMap) -> list[str]:
    """Why ``cuTensorMapEncodeTiled``, or the copy itself, would reject the map; each sentence names a field."""
    faults = []
    rank = map_.rank
    if not 1 <= rank <= 5:
        return [f"a tensor map has 1 to 5 dimensions, not {rank}"]
    element, itemsize = elements_of(map_), elements_of(map_).itemsize
    if map_.im2col is not None:
        faults += _im2col_faults(map_, itemsize)
    counts = {"global_strides": rank - 1, "box": rank, "element_strides": rank}
    for name, values, count in ((name, getattr(map_, name), count) for name, count in counts.items()):
        if len(values) != count:
            return [f"{name} has {len(values)} entries for a map of rank {rank}"]
    address = map_.memory.address + map_.memory.origin * map_.memory.itemsize + np.asarray(map_.base)
    if (address % 16 != 0).any():
        faults.append("the base address of a tensor map must be a multiple of 16 bytes, and is not")
    faults += _extent_faults(map_)
    inner = (map_.box[0] if map_.im2col is None else map_.im2col.channels) * itemsize
    if inner % 16:
        faults.append(f"the innermost box is a multiple of 16 bytes, not {inner}")
    if map_.swizzle not in (0, 1, 2, 3):
        faults.append(f"swizzle is 0 to 3, not {map_.swizzle}")
    elif map_.swizzle and inner > 16 << map_.swizzle:
        faults.append(f"the innermost box of {inner} bytes exceeds the {16 << map_.swizzle} bytes of its swizzle")
    if np.prod(map_.box) * itemsize > 233472:
        faults.append(f"the box of {int(np.prod(map_.box)) * itemsize} bytes exceeds 233472")
    for d, s in enumerate(map_.element_strides):
        if not 1 <= s <= 8:
            faults.append(f"element_strides[{d}] is 1 to 8, not {s}")
    if map_.element_strides[0] != 1:
        faults.append("element_strides[0] other than 1 does not stride the data and miscounts its bytes")
    if map_.oob_fill and not (is_float(map_) and itemsize > 1):
        faults.append(f"a NaN fill needs a float type of at least 16 bits, not {element}")
    if packed_bits(map_) is not None:
        faults += _padded_faults(map_, address)
    if map_.interleave:
        faults.append("the simulator knows no interleaved maps")
    return faults
