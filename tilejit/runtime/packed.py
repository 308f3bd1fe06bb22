"""Arrays of elements of less than a byte, on the host or a device: an array of bytes together with an element type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..dtypes import count_elements, dtype_of
from ..errors import LaunchError
from ..frames import hide_own_frames
from ..lazy import Lazy
from .arrays import ArrayView, describe

if TYPE_CHECKING:
    import numpy
else:
    numpy = Lazy("numpy")

casts = Lazy("tilejit.ops.tiles.casts")  # part of the language

ALIGNED = 256  # bytes, the alignment of device memory; TMA can pad packed elements only in arrays aligned to 32 bytes


class Packed:
    """An array of float4_e2m1fn (two in a byte, the first in its low half), float6_e2m3fn or float6_e3m2fn (four in
    three bytes, from the low bits on), over an array of bytes of any library, on the host or a device:
    ``Packed(bytes, "float4_e2m1fn")``.

    `data` is the array of bytes, uint8 or int8, whose last dimension is contiguous; `shape` counts elements. Kernels
    take it as an argument. ``tile.pack(values)`` makes one from a NumPy array of ml_dtypes' elements, and
    ``.unpack()`` does the reverse."""

    __slots__ = ("data", "dtype", "_transposed", "__weakref__")

    @hide_own_frames
    def __init__(self, data: Any, dtype: Any):
        self.data, self.dtype, self._transposed = data, dtype_of(dtype), False
        if not self.dtype.packed or self.dtype.padded:
            raise LaunchError(f"packed elements are float4_e2m1fn, float6_e2m3fn or float6_e3m2fn, not {self.dtype}")
        view = describe(data)
        if view.dtype not in ("uint8", "int8", self.dtype.name):
            raise LaunchError(f"packed elements need an array of bytes (uint8), not of {view.dtype}")
        if not view.shape or view.shape[-1] > 1 and view.strides[-1] != 1:
            raise LaunchError("packed elements need a contiguous last dimension, "
                              f"and this array has shape {view.shape} and strides {view.strides}")
        per = self.dtype.packing[1]
        if view.shape[-1] % per:
            raise LaunchError(f"rows of {view.shape[-1]} bytes are no whole number of {self.dtype}: "
                              f"{self.dtype.packing[0]} of them have {per} bytes")

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents in elements."""
        shape = describe(self.data).shape
        shape = (*shape[:-1], count_elements(self.dtype, shape[-1]))
        return shape[::-1] if self._transposed else shape

    def over(self, data: Any) -> Packed:
        """The same view over other bytes, such as a copy of these."""
        other = Packed(data, self.dtype)
        other._transposed = self._transposed
        return other

    @property
    def T(self) -> Packed:
        """The transpose of a matrix, whose elements are packed along the first axis: [K, N] from [N, K], as
        `kernels.matmul` takes its second operand. Other kernels do not take it."""
        if self.ndim != 2:
            raise LaunchError(f"a matrix has a transpose, and this array has shape {self.shape}")
        other = self.over(self.data)
        other._transposed = not self._transposed
        return other

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Packed(shape={self.shape}, dtype={self.dtype.name})"

    def __tilejit_view__(self) -> ArrayView:
        view = describe(self.data)
        order = -1 if self._transposed else 1
        return ArrayView(view.pointer, view.shape[::order], view.strides[::order], self.dtype.name, view.device,
                         view.readonly, self, view.stream, view.keep)

    def unpack(self) -> numpy.ndarray[Any, Any]:
        """The elements as a new NumPy array of ml_dtypes' dtype, one in a byte. LaunchError if the bytes are on a
        device and of another library."""
        data = self.data.numpy() if hasattr(type(self.data), "__tilejit_view__") else describe(self.data).numpy()
        data = numpy.ascontiguousarray(data).view(numpy.uint8)
        elements, per = self.dtype.packing
        bits = numpy.unpackbits(data, axis=-1, bitorder="little")
        bits = bits.reshape(*data.shape[:-1], count_elements(self.dtype, data.shape[-1]), 8 * per // elements)
        found = numpy.packbits(bits, axis=-1, bitorder="little")[..., 0].view(self.dtype.np)
        return found.T if self._transposed else found


@hide_own_frames
def pack(values: Any, dtype: Any = None) -> Packed:
    """A new ``Packed`` with a NumPy array's elements.

    `values` are ml_dtypes' elements (one in a byte) of `dtype`, or numbers, which are cast to it as by `tile.cast`. The
    last extent is a multiple of 2, or of 4 for float6."""
    values = numpy.asarray(values)
    target = dtype_of(values.dtype if dtype is None else dtype)
    if not target.packed or target.padded:
        raise LaunchError("packed elements are float4_e2m1fn, float6_e2m3fn or float6_e3m2fn, "
                          f"not {target}: give dtype=")
    if values.dtype != target.np:
        values = casts.cast_array(values, dtype_of(values.dtype), target)
    elements, per = target.packing
    if values.ndim == 0 or values.shape[-1] % elements:
        raise LaunchError(f"the last extent of packed {target} is a multiple of {elements}, "
                          f"and the shape is {values.shape}")
    bits = numpy.unpackbits(numpy.ascontiguousarray(values).view(numpy.uint8)[..., None], axis=-1, bitorder="little",
                            count=8 * per // elements)
    bits = bits.reshape(*values.shape[:-1], values.shape[-1] * 8 * per // elements)
    data = numpy.packbits(bits, axis=-1, bitorder="little")
    room = numpy.empty(data.size + ALIGNED, numpy.uint8)
    start = -room.ctypes.data % ALIGNED
    aligned = room[start:start + data.size].reshape(data.shape)
    aligned[...] = data
    return Packed(aligned, target)
