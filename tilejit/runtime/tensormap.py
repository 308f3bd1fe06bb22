"""Checks every field of a tensor map before the driver sees it, which would only say INVALID_VALUE, and encodes the map.

The limits are those of the hardware. Dimensions are innermost first, as in `cuTensorMapEncodeTiled`."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_uint32, c_uint64, c_void_p

from ..errors import LaunchError
from .element_types import ELEMENT_TYPES, TENSOR_MAP_ONLY

NBYTES = 128          # bytes of a tensor map
ALIGNMENT = 64        # bytes to which a tensor map is aligned in memory
BOX_LIMIT = 233_472   # most bytes of a box: 228 KiB
SWIZZLE_SPAN = {1: 32, 2: 64, 3: 128, 4: 128, 5: 128, 6: 128}  # swizzle mode -> most bytes of a box's innermost dimension

_FLOATS = frozenset((6, 7, 8, 9, 10, 11, 12))


def tensor_map_type(dtype: str) -> tuple[int, int]:
    """The CUtensorMapDataType that moves `dtype`'s bits, and the bytes of an element."""
    if dtype in TENSOR_MAP_ONLY:
        return TENSOR_MAP_ONLY[dtype]
    element = ELEMENT_TYPES.get(dtype)
    if element is None or element.tensor_map is None:
        raise LaunchError(f"tensor map: dtype {dtype} is none that a tensor map moves")
    return element.tensor_map, element.nbytes


def _refuse(field: str, found, needed: str) -> None:
    raise LaunchError(f"tensor map: {field} is {found}; it must be {needed}")


PADDED = frozenset((14, 15))  # CUtensorMapDataTypes of which TMA pads 16 packed elements to 16 bytes


def _check_padded(address, dims, strides, box, swizzle, oob_fill, blackwell) -> None:
    """Further conditions of maps of 4-bit and 6-bit elements that TMA pads."""
    if not blackwell:
        _refuse("dtype", "one of 4 or 6 bits", "one of at least 8 bits before sm_100a")
    if address % 32:
        _refuse("the base address", hex(address), "a multiple of 32 bytes, for padded elements")
    if dims[0] % 128:
        _refuse("dims[0]", dims[0], "a multiple of 128 padded elements")
    for axis, stride in enumerate(strides):
        if stride % 32:
            _refuse(f"strides[{axis}]", f"{stride} bytes", "a multiple of 32 bytes, for padded elements")
    if box[0] != 128:
        _refuse("box[0]", box[0], "128 padded elements")
    if swizzle not in (0, 3, 4):
        _refuse("swizzle", swizzle, "0, 3 or 4 for padded elements")
    if oob_fill:
        _refuse("oob_fill", "NaN", "0 (zeros) for padded elements")


def _check_common(code, rank, address, dims, strides, element_strides, interleave, swizzle, l2_promotion, oob_fill,
                  blackwell) -> None:
    for field, values, count in (("dims", dims, rank), ("strides", strides, rank - 1), ("element_strides", element_strides, rank)):
        if len(values) != count:
            _refuse(field, f"a list of {len(values)}", f"a list of {count} for rank {rank}")
    if interleave not in (0, 1, 2):
        _refuse("interleave", interleave, "0 (none), 1 (16 bytes) or 2 (32 bytes)")
    if interleave and rank < 3:
        _refuse("rank", rank, "3 or more with an interleave")
    step = 32 if interleave == 2 else 16
    if address % step:
        _refuse("the base address", hex(address), f"a multiple of {step} bytes")
    for axis, extent in enumerate(dims):
        if not 1 <= extent <= 2 ** 32:
            _refuse(f"dims[{axis}]", extent, "1 to 2^32")
    for axis, stride in enumerate(strides):
        if stride % step or not 0 <= stride < 2 ** 40:
            _refuse(f"strides[{axis}]", f"{stride} bytes", f"a multiple of {step} bytes from 0 to 2^40 - 16")
    for axis, stride in enumerate(element_strides):
        if not 1 <= stride <= 8:
            _refuse(f"element_strides[{axis}]", stride, "1 to 8")
    if element_strides and element_strides[0] != 1:
        _refuse("element_strides[0]", element_strides[0], "1: the hardware does not stride the innermost dimension")
    modes = range(7) if blackwell else range(4)
    if swizzle not in modes:
        _refuse("swizzle", swizzle, "0 (none), 1 (32 bytes), 2 (64 bytes) or 3 (128 bytes)"
                + ("" if blackwell else "; 4 to 6 need sm_100a"))
    if l2_promotion not in (0, 1, 2, 3):
        _refuse("l2_promotion", l2_promotion, "0 (none), 1 (64 bytes), 2 (128 bytes) or 3 (256 bytes)")
    if oob_fill not in (0, 1):
        _refuse("oob_fill", oob_fill, "0 (zeros) or 1 (NaN)")
    if oob_fill and code not in _FLOATS:
        _refuse("oob_fill", "NaN", "0 (zeros) for integers")
    if interleave == 2 and swizzle not in (0, 1):
        _refuse("swizzle", swizzle, "0 or 1 with the 32-byte interleave")


def _check_inner(field: str, inner: int, interleave: int, swizzle: int) -> None:
    if interleave == 0 and inner % 16:
        _refuse(field, f"{inner} bytes", "a multiple of 16 bytes")
    if interleave == 0 and swizzle and inner > SWIZZLE_SPAN[swizzle]:
        _refuse(field, f"{inner} bytes", f"at most the {SWIZZLE_SPAN[swizzle]} bytes that swizzle {swizzle} spans")


def check_tiled(*, dtype, rank, address, dims, strides, box, element_strides, interleave=0, swizzle=0, l2_promotion=0,
                oob_fill=0, blackwell=False) -> None:
    """LaunchError, naming the field, for maps that `cuTensorMapEncodeTiled` rejects or the hardware handles wrongly.

    `address` and `strides` (rank - 1 of them) are in bytes, the other lists in elements."""
    code, nbytes = tensor_map_type(dtype)
    if not 1 <= rank <= 5:
        _refuse("rank", rank, "1 to 5")
    _check_common(code, rank, address, dims, strides, element_strides, interleave, swizzle, l2_promotion, oob_fill, blackwell)
    if len(box) != rank:
        _refuse("box", f"a list of {len(box)}", f"a list of {rank} for rank {rank}")
    if code in PADDED:
        _check_padded(address, dims, strides, box, swizzle, oob_fill, blackwell)
    total = nbytes
    for axis, extent in enumerate(box):
        if not 1 <= extent <= 256:
            _refuse(f"box[{axis}]", extent, "1 to 256")
        total *= extent
    if total > BOX_LIMIT:
        _refuse("box", f"{total} bytes", f"at most {BOX_LIMIT} bytes")
    _check_inner("box[0]", box[0] * nbytes, interleave, swizzle)


def check_im2col(*, dtype, rank, address, dims, strides, lower, upper, channels, pixels, element_strides, interleave=0,
                 swizzle=0, l2_promotion=0, oob_fill=0, blackwell=False, wide=None) -> None:
    """Like `check_tiled`, for `cuTensorMapEncodeIm2col`: `lower` and `upper` corners of the bounding box, channels and
    pixels per column. With `wide` (0 along w, 1 along w by 128) it is for `cuTensorMapEncodeIm2colWide`, with corners of
    one element each."""
    code, nbytes = tensor_map_type(dtype)
    if code in PADDED:
        _refuse("dtype", dtype, "one of whole bytes for im2col")
    if not 3 <= rank <= 5:
        _refuse("rank", rank, "3 to 5 for im2col")
    _check_common(code, rank, address, dims, strides, element_strides, interleave, swizzle, l2_promotion, oob_fill, blackwell)
    limit = {3: 2 ** 15, 4: 2 ** 7, 5: 2 ** 4}[rank]
    corners = rank - 2 if wide is None else 1
    if wide is not None and not blackwell:
        _refuse("wide", wide, "absent: a walk along w needs sm_100a")
    if wide is not None and (not swizzle or interleave):
        _refuse("swizzle", swizzle, "1 to 3 for a walk along w, without an interleave")
    for field, corner in (("lower", lower), ("upper", upper)):
        if len(corner) != corners:
            _refuse(field, f"a list of {len(corner)}", f"a list of {corners} for rank {rank}")
        for axis, value in enumerate(corner):
            if not -limit <= value < limit:
                _refuse(f"{field}[{axis}]", value, f"{-limit} to {limit - 1} for rank {rank}")
    if not 1 <= channels <= 256:
        _refuse("channels", channels, "1 to 256")
    if not 1 <= pixels <= 1024:
        _refuse("pixels", pixels, "1 to 1024")
    _check_inner("channels", channels * nbytes, interleave, swizzle)


# -- encoding --------------------------------------------------------------------------------------------------------

TILED = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
                          c_int, c_int, c_int, c_int)
_WIDE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_void_p, c_int, c_int, c_uint32, c_uint32, c_void_p,
                         c_int, c_int, c_int, c_int, c_int)
_IM2COL = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
                           c_uint32, c_uint32, c_void_p, c_int, c_int, c_int, c_int)


def _list(kind, values):
    return (kind * max(len(values), 1))(*values)


def encode_tiled(function: int, into: int, *, dtype, rank, address, dims, strides, box, element_strides, interleave=0,
                 swizzle=0, l2_promotion=0, oob_fill=0, blackwell=False) -> None:
    """Write the 128 bytes of a tiled map to the address `into`, by the driver's function at the address `function`.

    Raises LaunchError, which names the field if a check finds it, else gives the driver's code."""
    check_tiled(dtype=dtype, rank=rank, address=address, dims=dims, strides=strides, box=box, element_strides=element_strides,
                interleave=interleave, swizzle=swizzle, l2_promotion=l2_promotion, oob_fill=oob_fill, blackwell=blackwell)
    code = TILED(function)(into, tensor_map_type(dtype)[0], rank, address, _list(c_uint64, dims), _list(c_uint64, strides),
                            _list(c_uint32, box), _list(c_uint32, element_strides), interleave, swizzle, l2_promotion, oob_fill)
    if code:
        raise LaunchError(f"tensor map: the driver refused (CUDA error {code}) dtype={dtype}, address={address:#x}, dims={dims}, "
                          f"strides={strides}, box={box}, element_strides={element_strides}, interleave={interleave}, "
                          f"swizzle={swizzle}, l2_promotion={l2_promotion}, oob_fill={oob_fill}")


def encode_im2col(function: int, into: int, *, dtype, rank, address, dims, strides, lower, upper, channels, pixels,
                  element_strides, interleave=0, swizzle=0, l2_promotion=0, oob_fill=0, blackwell=False) -> None:
    """Like `encode_tiled`, for an im2col map."""
    check_im2col(dtype=dtype, rank=rank, address=address, dims=dims, strides=strides, lower=lower, upper=upper,
                 channels=channels, pixels=pixels, element_strides=element_strides, interleave=interleave, swizzle=swizzle,
                 l2_promotion=l2_promotion, oob_fill=oob_fill, blackwell=blackwell)
    code = _IM2COL(function)(into, tensor_map_type(dtype)[0], rank, address, _list(c_uint64, dims), _list(c_uint64, strides),
                             _list(c_int, lower), _list(c_int, upper), channels, pixels, _list(c_uint32, element_strides),
                             interleave, swizzle, l2_promotion, oob_fill)
    if code:
        raise LaunchError(f"tensor map: the driver refused (CUDA error {code}) the im2col map dims={dims}, strides={strides}, "
                          f"lower={lower}, upper={upper}, channels={channels}, pixels={pixels}")


def encode_im2col_wide(function: int, into: int, *, dtype, rank, address, dims, strides, lower, upper, channels, pixels,
                       element_strides, wide, interleave=0, swizzle=0, l2_promotion=0, oob_fill=0, blackwell=False) -> None:
    """Like `encode_im2col`, for a walk along w: `lower` and `upper` have one element each."""
    check_im2col(dtype=dtype, rank=rank, address=address, dims=dims, strides=strides, lower=lower, upper=upper,
                 channels=channels, pixels=pixels, element_strides=element_strides, interleave=interleave, swizzle=swizzle,
                 l2_promotion=l2_promotion, oob_fill=oob_fill, blackwell=blackwell, wide=wide)
    if not function:
        raise LaunchError("tensor map: the driver cannot encode a walk along w; one of CUDA 12.8 or later can")
    code = _WIDE(function)(into, tensor_map_type(dtype)[0], rank, address, _list(c_uint64, dims), _list(c_uint64, strides),
                           lower[0], upper[0], channels, pixels, _list(c_uint32, element_strides), interleave, wide, swizzle,
                           l2_promotion, oob_fill)
    if code:
        raise LaunchError(f"tensor map: the driver refused (CUDA error {code}) the walk along w dims={dims}, strides={strides}, "
                          f"lower={lower}, upper={upper}, channels={channels}, pixels={pixels}")
