"""Describes an array of any library as kernels see it: pointer, shape, strides, element type and device.

Takes NumPy, torch, CuPy, numba, JAX and anything with ``__cuda_array_interface__`` or ``__dlpack__``; imports none of
them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES, bool_
from ..errors import LaunchError
from ..lazy import Lazy
from . import dlpack, driver
from .element_types import ELEMENT_TYPES, explain_unfit, numpy_dtype

if TYPE_CHECKING:
    import numpy
else:
    numpy = Lazy("numpy")

LEGACY_STREAM = 1  # CUDA's handle for its legacy default stream; 0 names it as well


class Address(int):
    """An address of memory, or its sum with a number. As an argument of a kernel it has 64 bits even if it is a small
    number, as in programs that are not loaded at random places."""

    def __add__(self, offset: int) -> Address:
        total = super().__add__(offset)
        return total if total is NotImplemented else Address(total)

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        """An address, or the distance from another address."""
        difference = super().__sub__(other)
        return difference if difference is NotImplemented or isinstance(other, Address) else Address(difference)


@dataclass(slots=True)
class ArrayView:
    """An array as a kernel sees it. `strides` are in elements; `device` is "host" or a CUDA ordinal.

    `owner` is the described array; it and `keep` keep the memory alive. `stream` is the CUDA stream on which the data
    is ready, if the array's protocol names one, else None."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str | int
    readonly: bool = False
    owner: object = field(default=None, repr=False)
    stream: int | None = None
    keep: object = field(default=None, repr=False)

    @property
    def nbytes_per_element(self) -> int:
        return ELEMENT_TYPES[self.dtype].nbytes

    @property
    def ordinal(self) -> int:
        """The CUDA ordinal of the device of an array that is on one."""
        assert isinstance(self.device, int), "the array is on the host"
        return self.device

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are row-major without gaps."""
        return self.size == 0 or all(
            extent == 1 or stride == step
            for extent, stride, step in zip(self.shape, self.strides, row_major(self.shape)))

    @property
    def transpose(self) -> ArrayView:
        """The view with its last two axes exchanged, without an owner."""
        def swap(t):
            return (*t[:-2], t[-1], t[-2])
        return ArrayView(self.pointer, swap(self.shape), swap(self.strides), self.dtype, self.device)

    def numpy(self) -> numpy.ndarray:
        """A NumPy array over the same memory. LaunchError when it is not on the host."""
        if isinstance(self.owner, numpy.ndarray):
            return self.owner
        if self.device != "host":
            raise LaunchError(f"the array is on device {self.device}; copy it to the host first")
        nbytes = self.nbytes_per_element
        if self.size:
            reaches = [stride * (extent - 1) * nbytes for extent, stride in zip(self.shape, self.strides)]
        else:
            reaches = []
        low = sum(min(reach, 0) for reach in reaches)
        span = sum(map(abs, reaches)) + nbytes if self.size else 0
        memory: Any = (ctypes.c_char * span).from_address(self.pointer + low) if span else b""
        if span:
            memory.keep = self
        array = numpy.ndarray(self.shape, numpy_dtype("uint8" if DTYPES[self.dtype].packed else self.dtype), memory,
                              -low, [s * nbytes for s in self.strides])
        if self.readonly:
            array.flags.writeable = False
        return array


def checked_shape(shape) -> tuple[int, ...]:
    """A shape, given as a sequence or as a single extent, as a tuple of ints. LaunchError for anything else."""
    try:
        extents = tuple(map(index, shape if isinstance(shape, (tuple, list)) else (shape,)))
    except TypeError:
        extents = (-1,)
    if any(n < 0 for n in extents):
        raise LaunchError(f"a shape is made of integers of at least 0, not {shape!r}")
    return extents


def row_major(shape) -> tuple[int, ...]:
    """Strides in elements of a row-major array."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def describe(obj) -> ArrayView:
    """The view of any array. LaunchError for an object that is no array, or one that kernels cannot take."""
    describer = DESCRIBERS.get(type(obj))
    if describer is not None:
        return describer(obj)
    describer = _describer(obj)
    view = describer(obj)
    if len(DESCRIBERS) < 256:
        DESCRIBERS[type(obj)] = describer
    return view


# type -> the function that describes its arrays, filled by `describe`. Array types are few and live long,
# so nothing is evicted.
DESCRIBERS: dict[type, Callable[[Any], ArrayView]] = {}


def array_keys(arrays) -> tuple[tuple, list[int]]:
    """(a key of all that a launch for such arrays depends on, their addresses). The key has a tuple for each array,
    with its shape, strides, dtype, device, address modulo 16, and whether it may be written. The fourth element is
    the device, "host" or -1 on the host. For torch's tensors this does not make views of them, which would take four
    times as long."""
    torch = sys.modules.get("torch")
    if torch is not None and set(map(type, arrays)) <= {torch.Tensor, torch.nn.Parameter}:
        try:
            pointers = [x.data_ptr() for x in arrays]
            return tuple([(x.shape, x.stride(), x.dtype, x.get_device(), x.is_neg(),
                           p & 15) for x, p in zip(arrays, pointers)]), pointers
        except RuntimeError:  # a tensor without strides or an address: `describe` raises the error
            pass
    views = list(map(describe, arrays))
    return (tuple([(v.shape, v.strides, v.dtype, v.device, v.pointer & 15, v.readonly) for v in views]),
            [v.pointer for v in views])


def _describer(obj):
    kind = type(obj)
    if hasattr(kind, "__tilejit_view__"):
        found = kind.__tilejit_view__
    elif "torch" in sys.modules and issubclass(kind, sys.modules["torch"].Tensor):
        found = _describe_torch
    elif "numpy" in sys.modules and issubclass(kind, sys.modules["numpy"].ndarray):
        if hasattr(kind, "filled"):
            raise LaunchError(f"the {kind.__name__} is masked; kernels take plain arrays: pass its .data, "
                              "and its .mask as another array")
        found = _describe_numpy
    else:
        found = _describe_by_protocol
    return found


# -- NumPy -----------------------------------------------------------------------------------------------------------

_numpy_names: dict = {}  # NumPy dtype -> name of the element type


def numpy_name(dtype) -> str:
    """The name of the element type of a NumPy dtype. LaunchError for dtypes that kernels do not take."""
    name = _numpy_names.get(dtype)
    if name is None:
        name = dtype.name
        if name not in ELEMENT_TYPES:
            raise LaunchError(f"the array's dtype {explain_unfit(str(dtype))}")
        if DTYPES.get(name, bool_).packed:
            raise LaunchError(f"NumPy has a byte for each {name}, and memory of GPUs has {DTYPES[name].packing[0]} in "
                              f"{DTYPES[name].packing[1]}: pass tile.pack(array)")
        if not dtype.isnative:
            raise LaunchError(f"the array's dtype {dtype.str} has the other byte order; use array.astype({name!r})")
        _numpy_names[dtype] = name
    return name


def _describe_numpy(array) -> ArrayView:
    interface = array.__array_interface__
    name = numpy_name(array.dtype)
    pointer, readonly = interface["data"]
    strides = _element_strides(array.shape, array.strides, array.itemsize)
    return ArrayView(pointer, array.shape, strides, name, "host", readonly, array)


def _element_strides(shape, strides, itemsize: int) -> tuple[int, ...]:
    """Strides in elements from strides in bytes (None: row-major)."""
    if strides is None:
        return row_major(shape)
    for axis, (extent, stride) in enumerate(zip(shape, strides)):
        if stride % itemsize:
            if extent <= 1:  # this stride is never used
                return _element_strides(shape, [0 if n <= 1 else s for n, s in zip(shape, strides)], itemsize)
            raise LaunchError(f"the stride of axis {axis} is {stride} bytes, not a multiple of the {itemsize} bytes of "
                              "an element (a field of a structured array?); pass a copy of the array")
    return tuple(stride // itemsize for stride in strides)


# -- torch -----------------------------------------------------------------------------------------------------------

# dtypes of which a tensor may be a lazily negated view: the imaginary part of a conjugated complex tensor, which begins
# at an odd element. Launches call is_neg() only for tensors that begin at one, since calling it for every tensor takes
# 30 ns.
MAY_BE_NEGATED = ("float16", "float32", "float64")

_torch_names: dict = {}  # torch dtype -> name of the element type


def _torch_name(dtype) -> str:
    name = _torch_names.get(dtype)
    if name is None:
        # float4_e2m1fn_x2: shapes count bytes, of two elements each
        name = str(dtype).removeprefix("torch.").removesuffix("_x2")
        if name not in ELEMENT_TYPES:
            raise LaunchError(explain_unfit(str(dtype)))
        _torch_names[dtype] = name
    return name


def _describe_torch(tensor) -> ArrayView:
    name = _torch_name(tensor.dtype)
    ordinal = tensor.get_device() if tensor.is_cuda else -1
    if ordinal < 0 and tensor.device.type != "cpu":
        raise LaunchError(f"the tensor lives on {tensor.device}; kernels run on NVIDIA GPUs, "
                          "or on host arrays in the simulator")
    try:
        pointer, strides = tensor.data_ptr(), tensor.stride()
    except RuntimeError as error:
        raise LaunchError(f"the tensor has no memory to point at ({type(tensor).__name__}, "
                          f"{tensor.layout}): {error}") from None
    if not pointer and tensor.numel():
        raise LaunchError(f"the tensor has no memory ({type(tensor).__name__}): where torch traces or compiles, "
                          "a launch belongs in a function under torch.compiler.disable, "
                          "or in one of torch.library.custom_op")
    if tensor.is_neg():
        raise LaunchError("the tensor is a lazily negated view; use tensor.resolve_neg()")
    return ArrayView(pointer, tuple(tensor.shape), tuple(strides), name, "host" if ordinal < 0 else ordinal, False,
                     tensor)


# -- protocols -------------------------------------------------------------------------------------------------------

def _describe_by_protocol(obj) -> ArrayView:
    try:
        interface = getattr(obj, "__cuda_array_interface__", None)
    except Exception as error:  # some libraries raise for dtypes that this interface cannot name, but DLPack can
        if not hasattr(obj, "__dlpack__"):
            raise LaunchError(f"{type(obj).__name__}.__cuda_array_interface__ failed: {error}") from None
        interface = None
    if isinstance(interface, dict):
        view = _from_cuda_interface(obj, interface)
        if view is not None:
            return view
    if hasattr(obj, "__dlpack__"):
        return _from_dlpack(obj)
    if hasattr(obj, "__array_interface__") or hasattr(obj, "__array__"):
        array = numpy.asarray(obj)
        view = _describe_numpy(array)
        # An object that converts to new memory each time gives copies: nobody would see what a kernel writes there.
        view.readonly |= view.size > 0 and view.pointer != numpy.asarray(obj).__array_interface__["data"][0]
        return view
    raise LaunchError(f"{type(obj).__name__} is not an array: it has neither __cuda_array_interface__ nor __dlpack__, "
                      "and is no NumPy array; wrap it with numpy.asarray or tile.to_device")


def _from_cuda_interface(obj, interface: dict) -> ArrayView | None:
    """The view by ``__cuda_array_interface__``; None if that cannot name the element type and the
    object has DLPack too."""
    if interface.get("mask") is not None:
        raise LaunchError(f"the {type(obj).__name__} is masked; kernels take plain arrays")
    name = _interface_dtype(obj, interface["typestr"])
    if name is None:
        if hasattr(obj, "__dlpack__"):
            return None
        raise LaunchError(f"typestr {interface['typestr']!r} of {type(obj).__name__} is not an element type that "
                          "a kernel can take")
    pointer, readonly = interface["data"]
    shape = tuple(interface["shape"])
    stream = interface.get("stream")
    if stream == 0:
        raise LaunchError("stream 0 is ambiguous in __cuda_array_interface__: 1 is the legacy default stream, 2 the "
                          "per-thread one")
    strides = _element_strides(shape, interface.get("strides"), ELEMENT_TYPES[name].nbytes)
    pointer = _check_alignment(int(pointer or 0), ELEMENT_TYPES[name].nbytes)
    return ArrayView(pointer, shape, strides, name, _pointer_device(obj, pointer), bool(readonly) or _is_immutable(obj),
                     obj, stream)


def _check_alignment(pointer: int, nbytes: int) -> int:
    """The device address `pointer`. LaunchError if it is not a multiple of the `nbytes` bytes of an element,
    as loads and stores need."""
    if pointer % nbytes:
        raise LaunchError(f"the array's address {pointer:#x} is no multiple of the {nbytes} bytes of an element; "
                          "pass a copy of the array")
    return pointer


def _is_immutable(obj) -> bool:
    """Whether it is one of JAX's arrays, which never change, whatever the protocols say about being writable."""
    return type(obj).__module__.partition(".")[0] in ("jax", "jaxlib")


def _interface_dtype(obj, typestr: str) -> str | None:
    """The element type of a typestr. Types that NumPy does not have are spelled V1 and V2; the object's own dtype then
    names them. None if it is unknown."""
    if typestr[:1] == ">":
        raise LaunchError(f"typestr {typestr!r} of {type(obj).__name__} has the other byte order")
    kind, size = typestr[1:2], typestr[2:]
    if kind in "iufb":
        name = "bool" if kind == "b" else {"i": "int", "u": "uint", "f": "float"}[kind] + str(8 * int(size))
    else:
        dtype = getattr(obj, "dtype", None)
        name = getattr(dtype, "name", None) or str(dtype)
    return name if name in ELEMENT_TYPES and ELEMENT_TYPES[name].nbytes == int(size) else None


def _pointer_device(obj, pointer: int) -> int:
    """The ordinal of the device of an array, which ``__cuda_array_interface__`` does not contain."""
    device = getattr(obj, "device", None)
    for attribute in ("id", "index", "ordinal"):
        ordinal = getattr(device, attribute, None)
        if isinstance(ordinal, int):
            return ordinal
    if isinstance(device, int):
        return device
    if hasattr(obj, "__dlpack_device__"):
        return int(obj.__dlpack_device__()[1])
    return driver.device_of_pointer(pointer)


def _from_dlpack(obj) -> ArrayView:
    device_type, device_id = obj.__dlpack_device__() if hasattr(obj, "__dlpack_device__") else (dlpack.CPU, 0)
    device = dlpack.device_of(int(device_type), device_id)
    options = {} if device == "host" else {"stream": LEGACY_STREAM}
    try:
        try:
            capsule = obj.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # a producer from before DLPack 1.0
            capsule = obj.__dlpack__(**options)
    except LaunchError:
        raise
    except Exception as error:
        raise LaunchError(f"{type(obj).__name__}.__dlpack__ failed: {error}") from None
    tensor, readonly = dlpack.read_capsule(capsule)
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.ndim and tensor.strides else row_major(shape)
    pointer, name = (tensor.data or 0) + tensor.byte_offset, dlpack.dtype_name(tensor)
    return ArrayView(pointer if device == "host" else _check_alignment(pointer, ELEMENT_TYPES[name].nbytes), shape,
                     strides, name, device,
                     readonly or _is_immutable(obj), obj, None if device == "host" else LEGACY_STREAM, capsule)
