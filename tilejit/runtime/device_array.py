"""Arrays in GPU memory, for programs without torch or CuPy.

`to_device`, `empty`, slicing, and back by `.numpy()`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES, bool_, count_units
from ..errors import LaunchError
from ..frames import hide_own_frames
from ..lazy import Lazy
from . import dlpack, driver
from .arrays import LEGACY_STREAM, ArrayView, checked_shape, describe, numpy_name, row_major
from .element_types import element_type, numpy_dtype
from .packed import Packed

if TYPE_CHECKING:
    import numpy
else:
    numpy = Lazy("numpy")


class Memory:
    """Device memory, freed when nothing refers to it any more."""

    __slots__ = ("address", "nbytes", "device", "__weakref__")

    def __init__(self, nbytes: int, device: int):
        self.address = driver.allocate(nbytes, device) if nbytes else 0
        self.nbytes = nbytes
        self.device = device
        if nbytes:
            weakref.finalize(self, driver.free, self.address, device).atexit = False


class DeviceArray:
    """An array on a CUDA device. Slicing gives views; `strides` are in elements, `pointer` is a device address."""

    __slots__ = ("pointer", "shape", "strides", "dtype", "device", "_memory", "__weakref__")

    def __init__(self, pointer: int, shape: Sequence[int], strides: Sequence[int], dtype: Any, device: int,
                 memory: Any):
        self.pointer = pointer
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.dtype = dtype  # NumPy's
        self.device = device
        self._memory = memory

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype.name}, device={self.device})"

    def __tilejit_view__(self) -> ArrayView:
        return ArrayView(self.pointer, self.shape, self.strides, numpy_name(self.dtype), self.device, False, self)

    def __getitem__(self, index: Any) -> DeviceArray:
        """A view of part of the array: ints, slices and Ellipsis."""
        index = index if isinstance(index, tuple) else (index,)
        if any(part is Ellipsis for part in index):
            at = next(i for i, part in enumerate(index) if part is Ellipsis)
            index = index[:at] + (slice(None),) * (self.ndim - len(index) + 1) + index[at + 1:]
        if len(index) > self.ndim:
            raise IndexError(f"{len(index)} indices for an array of {self.ndim} dimensions")
        offset, shape, strides = 0, [], []
        for axis, (extent, stride) in enumerate(zip(self.shape, self.strides)):
            part = index[axis] if axis < len(index) else slice(None)
            if isinstance(part, slice):
                start, stop, step = part.indices(extent)
                count = len(range(start, stop, step))
                offset += start * stride if count else 0
                shape.append(count)
                strides.append(stride * step)
                continue
            position = part.__index__()
            if not -extent <= position < extent:
                raise IndexError(f"index {position} is out of bounds for axis {axis} with extent {extent}")
            offset += position % extent * stride
        return DeviceArray(self.pointer + offset * self.dtype.itemsize, shape, strides, self.dtype, self.device,
                           self._memory)

    @property
    def T(self) -> DeviceArray:
        """The view with its axes reversed."""
        return self.transpose()

    @hide_own_frames
    def transpose(self, *axes: Any) -> DeviceArray:
        """The view with its axes in another order, reversed by default."""
        order = tuple(axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or range(self.ndim)[::-1])
        if sorted(order) != list(range(self.ndim)):
            raise LaunchError(f"an order of the axes of {self.ndim} dimensions is not {order}")
        def pick(of):
            return tuple(of[axis] for axis in order)
        return DeviceArray(self.pointer, pick(self.shape), pick(self.strides), self.dtype, self.device, self._memory)

    @hide_own_frames
    def reshape(self, *shape: Any) -> DeviceArray:
        """A view of a row-major array with other extents; one of them may be -1."""
        shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if not describe(self).is_contiguous:
            raise LaunchError("only a row-major array without gaps can be reshaped")
        if shape.count(-1) > 1 or any(n < -1 for n in shape):
            raise LaunchError(f"one extent of a shape may be -1, and the others are at least 0, not {shape}")
        if -1 in shape:
            rest = math.prod(n for n in shape if n != -1)
            shape = tuple(self.size // max(rest, 1) if n == -1 else n for n in shape)
        if math.prod(shape) != self.size:
            raise LaunchError(f"an array of {self.size} elements has no shape {shape}")
        return DeviceArray(self.pointer, shape, row_major(shape), self.dtype, self.device, self._memory)

    @hide_own_frames
    def numpy(self) -> numpy.ndarray[Any, Any]:
        """A copy on the host, after the work issued so far has finished."""
        if self.size == 0:
            return numpy.empty(self.shape, self.dtype)
        nbytes = self.dtype.itemsize
        reaches = [stride * (extent - 1) for extent, stride in zip(self.shape, self.strides)]
        low = sum(min(reach, 0) for reach in reaches)
        flat = numpy.empty(sum(map(abs, reaches)) + 1, self.dtype)
        driver.synchronize(self.device)
        driver.copy_to_host(flat.ctypes.data, self.pointer + low * nbytes, flat.nbytes, self.device)
        steps = [stride * nbytes for stride in self.strides]
        return numpy.ndarray(self.shape, self.dtype, flat, -low * nbytes, steps).copy()

    def __reduce__(self):
        """Copying and pickling go by way of the host, as a NumPy array."""
        return to_device, (self.numpy(), self.device)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a DeviceArray is copied to the host by its .numpy()")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind not in "biuf":
            raise AttributeError(f"__cuda_array_interface__ has no name for {self.dtype.name}; use DLPack")
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False), "version": 3,
                "strides": tuple(stride * self.dtype.itemsize for stride in self.strides), "stream": 1}

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """A DLPack capsule over the same memory."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError("a DeviceArray is exported on its own device only")
        if copy:
            raise BufferError("a DeviceArray is exported without a copy only")
        if stream not in (None, -1, 1):
            driver.wait_stream(stream, 0, self.device)
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        return dlpack.make_capsule(self, self.pointer, self.shape, self.strides, self.dtype.name,
                                   self.__dlpack_device__(), versioned)


@hide_own_frames
def empty(shape: Any, dtype: Any = "float32", device: int | Any = 0) -> DeviceArray | Any:
    """A new row-major array on the device, given by its number or as a ``cuda.core.Device``, with undefined contents.
    Elements of less than a byte are packed."""
    shape, device = checked_shape(shape), driver.ordinal(device)
    named: Any = getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
    name: str = dtype if isinstance(dtype, str) else named
    packed = DTYPES.get(name, bool_).packed
    if packed and not (shape and count_units(DTYPES[name], shape[-1]) is not None):
        raise LaunchError(f"rows of {name} are multiples of {DTYPES[name].packing[0]} elements, "
                          f"and the shape is {shape}")
    if packed:
        return Packed(empty((*shape[:-1], count_units(DTYPES[name], shape[-1])), "uint8", device), name)
    nbytes = element_type(name).nbytes * math.prod(shape)
    memory = Memory(nbytes, device)
    return DeviceArray(memory.address, shape, row_major(shape), numpy_dtype(name), device, memory)


@hide_own_frames
def to_device(array: Any, device: int | Any = 0) -> DeviceArray | Packed:
    """A copy of a host array (NumPy, torch on the CPU, anything with DLPack, nested lists, or packed elements) on the
    device, given by its number or as a ``cuda.core.Device``."""
    device = driver.ordinal(device)
    if isinstance(array, Packed):
        return array.over(to_device(array.data, device))
    if isinstance(array, (list, tuple, int, float, bool)):
        array = numpy.asarray(array)
        array = array.astype("float32") if array.dtype == numpy.float64 else array
    view = describe(array)
    if view.device != "host":
        if view.device == device and isinstance(array, DeviceArray):
            return array
        raise LaunchError(f"the array is on device {view.device} already")
    host = numpy.ascontiguousarray(view.numpy()).reshape(view.shape)
    result = empty(view.shape, view.dtype, device)
    assert isinstance(result, DeviceArray)  # a view's dtype is not packed
    if host.nbytes:
        driver.copy_to_device(result.pointer, host.ctypes.data, host.nbytes, device)
        # The copy from pageable memory may not have reached the device yet,
        # and non-blocking streams do not wait for it.
        driver.synchronize(device, LEGACY_STREAM)
    return result
