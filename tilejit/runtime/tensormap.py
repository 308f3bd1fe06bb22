"""Checks and encodes tensor maps.

Every field is checked before the driver sees it, which would only say INVALID_VALUE.

The limits are those of the hardware. Dimensions are innermost first, as in `cuTensorMapEncodeTiled`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import LaunchError
from .element_types import ELEMENT_TYPES, TENSOR_MAP_ONLY

if TYPE_CHECKING:
    from .driver import EntryPoints

NBYTES = 128          # bytes of a tensor map
ALIGNMENT = 64        # bytes to which a tensor map is aligned in memory
BOX_LIMIT = 233_472   # most bytes of a box: 228 KiB
# swizzle mode -> most bytes of a box's innermost dimension
SWIZZLE_SPAN = {1: 32, 2: 64, 3: 128, 4: 128, 5: 128, 6: 128}

_FLOATS = frozenset((6, 7, 8, 9, 10, 11, 12))


def tensor_map_type(dtype: str) -> tuple[int, int]:
    """The CUtensorMapDataType that moves `dtype`'s bits, and the bytes of an element."""
    if dtype in TENSOR_MAP_ONLY:
        return TENSOR_MAP_ONLY[dtype]
    element = ELEMENT_TYPES.get(dtype)
    if element is None or element.tensor_map is None:
        raise LaunchError(f"tensor map: dtype {dtype} is none that a tensor map moves")
    return element.tensor_map, element.nbytes


def _refuse(field: str, found: object, needed: str) -> NoReturn:
    raise LaunchError(f"tensor map: {field} is {found}; it must be {needed}")


PADDED = frozenset((14, 15))  # CUtensorMapDataTypes of which TMA pads 16 packed elements to 16 bytes


@dataclass(frozen=True)
class TensorMap:
    """The fields of a tensor map, of `cuTensorMapEncodeTiled` if it has a `box`.

    `address` and `strides` (rank - 1 of them) are in bytes, the other lists in elements. A map without a box is
    im2col: `lower` and `upper` are the corners of the bounding box, with `channels` and `pixels` per column. With
    `wide` (0 along w, 1 along w by 128) it is of `cuTensorMapEncodeIm2colWide`, with corners of one element each.
    `blackwell`: it is for a device from sm_100a on."""

    dtype: str
    rank: int
    address: int
    dims: Sequence[int]
    strides: Sequence[int]
    element_strides: Sequence[int]
    box: Sequence[int] | None = None
    lower: Sequence[int] = ()
    upper: Sequence[int] = ()
    channels: int = 0
    pixels: int = 0
    wide: int | None = None
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0
    blackwell: bool = False

    @property
    def code(self) -> int:
        """The CUtensorMapDataType."""
        return tensor_map_type(self.dtype)[0]

    def check(self) -> None:
        """LaunchError, naming the field, for a map that the driver rejects or the hardware handles wrongly."""
        if self.box is None:
            _check_im2col(self)
        else:
            _check_tiled(self, self.box)

    def encode(self, points: EntryPoints, into: int) -> None:
        """Write the 128 bytes of the map to the address `into`, by the driver's functions.

        Raises LaunchError, which names the field if a check finds it, else gives the driver's code."""
        self.check()
        if self.box is not None:
            _encode_tiled(self, self.box, points.encode_tiled, into)
        elif self.wide is None:
            _encode_im2col(self, points.encode_im2col, into)
        else:
            _encode_im2col_wide(self, points.encode_im2col_wide, into)


def _check_padded(m: TensorMap, box: Sequence[int]) -> None:
    """Further conditions of maps of 4-bit and 6-bit elements that TMA pads."""
    if not m.blackwell:
        _refuse("dtype", "one of 4 or 6 bits", "one of at least 8 bits before sm_100a")
    if m.address % 32:
        _refuse("the base address", hex(m.address), "a multiple of 32 bytes, for padded elements")
    if m.dims[0] % 128:
        _refuse("dims[0]", m.dims[0], "a multiple of 128 padded elements")
    for axis, stride in enumerate(m.strides):
        if stride % 32:
            _refuse(f"strides[{axis}]", f"{stride} bytes", "a multiple of 32 bytes, for padded elements")
    if box[0] != 128:
        _refuse("box[0]", box[0], "128 padded elements")
    if m.swizzle not in (0, 3, 4):
        _refuse("swizzle", m.swizzle, "0, 3 or 4 for padded elements")
    if m.oob_fill:
        _refuse("oob_fill", "NaN", "0 (zeros) for padded elements")


def _check_common(m: TensorMap) -> None:
    _check_places(m)
    _check_modes(m)


def _check_places(m: TensorMap) -> None:
    """Check the address, the sizes and the strides."""
    for field, count in (("dims", m.rank), ("strides", m.rank - 1), ("element_strides", m.rank)):
        values = getattr(m, field)
        if len(values) != count:
            _refuse(field, f"a list of {len(values)}", f"a list of {count} for rank {m.rank}")
    if m.interleave not in (0, 1, 2):
        _refuse("interleave", m.interleave, "0 (none), 1 (16 bytes) or 2 (32 bytes)")
    if m.interleave and m.rank < 3:
        _refuse("rank", m.rank, "3 or more with an interleave")
    step = 32 if m.interleave == 2 else 16
    if m.address % step:
        _refuse("the base address", hex(m.address), f"a multiple of {step} bytes")
    for axis, extent in enumerate(m.dims):
        if not 1 <= extent <= 2 ** 32:
            _refuse(f"dims[{axis}]", extent, "1 to 2^32")
    for axis, stride in enumerate(m.strides):
        if stride % step or not 0 <= stride < 2 ** 40:
            _refuse(f"strides[{axis}]", f"{stride} bytes", f"a multiple of {step} bytes from 0 to 2^40 - 16")
    for axis, stride in enumerate(m.element_strides):
        if not 1 <= stride <= 8:
            _refuse(f"element_strides[{axis}]", stride, "1 to 8")
    if m.element_strides and m.element_strides[0] != 1:
        _refuse("element_strides[0]", m.element_strides[0], "1: the hardware does not stride the innermost dimension")


def _check_modes(m: TensorMap) -> None:
    """Check the swizzle, the promotion and the fill."""
    modes = range(7) if m.blackwell else range(4)
    if m.swizzle not in modes:
        _refuse("swizzle", m.swizzle, "0 (none), 1 (32 bytes), 2 (64 bytes) or 3 (128 bytes)"
                + ("" if m.blackwell else "; 4 to 6 need sm_100a"))
    if m.l2_promotion not in (0, 1, 2, 3):
        _refuse("l2_promotion", m.l2_promotion, "0 (none), 1 (64 bytes), 2 (128 bytes) or 3 (256 bytes)")
    if m.oob_fill not in (0, 1):
        _refuse("oob_fill", m.oob_fill, "0 (zeros) or 1 (NaN)")
    if m.oob_fill and m.code not in _FLOATS:
        _refuse("oob_fill", "NaN", "0 (zeros) for integers")
    if m.interleave == 2 and m.swizzle not in (0, 1):
        _refuse("swizzle", m.swizzle, "0 or 1 with the 32-byte interleave")


def _check_inner(m: TensorMap, field: str, inner: int) -> None:
    if m.interleave == 0 and inner % 16:
        _refuse(field, f"{inner} bytes", "a multiple of 16 bytes")
    if m.interleave == 0 and m.swizzle and inner > SWIZZLE_SPAN[m.swizzle]:
        _refuse(field, f"{inner} bytes", f"at most the {SWIZZLE_SPAN[m.swizzle]} bytes that swizzle {m.swizzle} spans")


def _check_tiled(m: TensorMap, box: Sequence[int]) -> None:
    code, nbytes = tensor_map_type(m.dtype)
    if not 1 <= m.rank <= 5:
        _refuse("rank", m.rank, "1 to 5")
    _check_common(m)
    if len(box) != m.rank:
        _refuse("box", f"a list of {len(box)}", f"a list of {m.rank} for rank {m.rank}")
    if code in PADDED:
        _check_padded(m, box)
    total = nbytes
    for axis, extent in enumerate(box):
        if not 1 <= extent <= 256:
            _refuse(f"box[{axis}]", extent, "1 to 256")
        total *= extent
    if total > BOX_LIMIT:
        _refuse("box", f"{total} bytes", f"at most {BOX_LIMIT} bytes")
    _check_inner(m, "box[0]", box[0] * nbytes)


def _check_im2col(m: TensorMap) -> None:
    code, nbytes = tensor_map_type(m.dtype)
    if code in PADDED:
        _refuse("dtype", m.dtype, "one of whole bytes for im2col")
    if not 3 <= m.rank <= 5:
        _refuse("rank", m.rank, "3 to 5 for im2col")
    _check_common(m)
    limit = {3: 2 ** 15, 4: 2 ** 7, 5: 2 ** 4}[m.rank]
    corners = m.rank - 2 if m.wide is None else 1
    if m.wide is not None and not m.blackwell:
        _refuse("wide", m.wide, "absent: a walk along w needs sm_100a")
    if m.wide is not None and (not m.swizzle or m.interleave):
        _refuse("swizzle", m.swizzle, "1 to 3 for a walk along w, without an interleave")
    for field, corner in (("lower", m.lower), ("upper", m.upper)):
        if len(corner) != corners:
            _refuse(field, f"a list of {len(corner)}", f"a list of {corners} for rank {m.rank}")
        for axis, value in enumerate(corner):
            if not -limit <= value < limit:
                _refuse(f"{field}[{axis}]", value, f"{-limit} to {limit - 1} for rank {m.rank}")
    if not 1 <= m.channels <= 256:
        _refuse("channels", m.channels, "1 to 256")
    if not 1 <= m.pixels <= 1024:
        _refuse("pixels", m.pixels, "1 to 1024")
    _check_inner(m, "channels", m.channels * nbytes)


# -- encoding --------------------------------------------------------------------------------------------------------

TILED = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
                          c_int, c_int, c_int, c_int)
_WIDE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_void_p, c_int, c_int, c_uint32,
                         c_uint32, c_void_p, c_int, c_int, c_int, c_int, c_int)
_IM2COL = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
                           c_uint32, c_uint32, c_void_p, c_int, c_int, c_int, c_int)


def _list(kind: Any, values: Sequence[int]) -> Any:
    """A C array."""
    return (kind * max(len(values), 1))(*values)


def _encode_tiled(m: TensorMap, box: Sequence[int], function: int, into: int) -> None:
    code = TILED(function)(into, m.code, m.rank, m.address, _list(c_uint64, m.dims), _list(c_uint64, m.strides),
                           _list(c_uint32, box), _list(c_uint32, m.element_strides), m.interleave, m.swizzle,
                           m.l2_promotion, m.oob_fill)
    if code:
        raise LaunchError(f"tensor map: the driver refused (CUDA error {code}) dtype={m.dtype}, "
                          f"address={m.address:#x}, dims={m.dims}, strides={m.strides}, box={box}, "
                          f"element_strides={m.element_strides}, interleave={m.interleave}, swizzle={m.swizzle}, "
                          f"l2_promotion={m.l2_promotion}, oob_fill={m.oob_fill}")


def _encode_im2col(m: TensorMap, function: int, into: int) -> None:
    code = _IM2COL(function)(into, m.code, m.rank, m.address, _list(c_uint64, m.dims), _list(c_uint64, m.strides),
                             _list(c_int, m.lower), _list(c_int, m.upper), m.channels, m.pixels,
                             _list(c_uint32, m.element_strides), m.interleave, m.swizzle, m.l2_promotion, m.oob_fill)
    if code:
        raise LaunchError(f"tensor map: the driver refused (CUDA error {code}) the im2col map dims={m.dims}, "
                          f"strides={m.strides}, lower={m.lower}, upper={m.upper}, channels={m.channels}, "
                          f"pixels={m.pixels}")


def _encode_im2col_wide(m: TensorMap, function: int, into: int) -> None:
    if not function:
        raise LaunchError("tensor map: the driver cannot encode a walk along w; one of CUDA 12.8 or later can")
    code = _WIDE(function)(into, m.code, m.rank, m.address, _list(c_uint64, m.dims), _list(c_uint64, m.strides),
                           m.lower[0], m.upper[0], m.channels, m.pixels, _list(c_uint32, m.element_strides),
                           m.interleave, m.wide, m.swizzle, m.l2_promotion, m.oob_fill)
    if code:
        raise LaunchError(f"tensor map: the driver refused (CUDA error {code}) the walk along w dims={m.dims}, "
                          f"strides={m.strides}, lower={m.lower}, upper={m.upper}, channels={m.channels}, "
                          f"pixels={m.pixels}")
