"""Addresses of arrays, for kernels that make arrays from them, and the host's arrays that the simulator knows by them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import LaunchError
from ..frames import hide_own_frames
from ..lazy import Lazy
from .arrays import Address, ArrayView, describe
from .device_array import to_device

if TYPE_CHECKING:
    import numpy
else:
    numpy = Lazy("numpy")

# Address of the first byte -> (a reference to what keeps the memory, the memory as one flat array without an owner).
_known: dict[int, tuple[weakref.ref[Any], ArrayView]] = {}


@hide_own_frames
def address_of(array: Any) -> int:
    """The address of the first element of an array of any library, for `tile.array` in a kernel.

    The simulator then knows the array for as long as it lives: a host array whose address has not been taken here, and
    which is no argument of the launch, counts as memory that the kernel may not touch. Nothing keeps the array alive.
    """
    view = describe(array)
    if view.device == "host" and view.size:
        _remember(array, view)
    return Address(view.pointer)


@hide_own_frames
def address_table(arrays: Iterable[Any]) -> Any:
    """The addresses of several arrays, by `address_of`, as an int64 array at their place: of NumPy for host arrays, on
    the device for device arrays. LaunchError if they are not in one place."""
    arrays = list(arrays)
    places = dict.fromkeys(describe(array).device for array in arrays)
    if len(places) > 1:
        raise LaunchError("the arrays of an address table must be in one place, and these are on "
                          + " and ".join("the host" if p == "host" else f"device {p}" for p in places))
    table = numpy.array([address_of(array) for array in arrays], numpy.int64)
    device = next(iter(places), "host")
    return table if device == "host" else to_device(table, int(device))


def known_arrays() -> list[tuple[str, numpy.ndarray]]:
    """The host arrays whose addresses have been taken, and that are still alive, each with its name in messages."""
    found = []
    for keeper, view in list(_known.values()):
        kept = keeper()
        if kept is not None:
            memory = view.numpy()
            memory.flags.writeable = not isinstance(kept, numpy.ndarray) or kept.flags.writeable
            found.append((f"the {view.dtype} array at {view.pointer:#x}", memory))
    return found


def _remember(array: Any, view: ArrayView) -> None:
    """Know the memory behind a host array: all of it, where the array is a part."""
    keeper, low, end = _keeper_of(array), *_extent(view)
    if not _takes_references(keeper):
        raise LaunchError(f"nothing tells how long the memory of a {type(array).__name__} lives: take the address of "
                          "an array (numpy.asarray), and keep that")
    if isinstance(array, numpy.ndarray):
        whole = array
        while isinstance(whole.base, numpy.ndarray):
            whole = whole.base
        first, stop = numpy.lib.array_utils.byte_bounds(whole)
        low, end = min(low, first), max(end, stop)
    low += (view.pointer - low) % view.nbytes_per_element
    count = (end - low) // view.nbytes_per_element
    flat = ArrayView(low, (count,), (1,), view.dtype, "host")
    _known[low] = weakref.ref(keeper, lambda dead: _forget(low, dead)), flat


def _keeper_of(array: Any) -> Any:
    """The object whose life is that of an array's memory."""
    while True:
        base = getattr(array, "base", None) if isinstance(array, numpy.ndarray) else getattr(array, "_base", None)
        if base is None or not _takes_references(base):
            return array
        array = base


def _takes_references(x: Any) -> bool:
    try:
        weakref.ref(x)
    except TypeError:
        return False
    return True


def _forget(low: int, dead: weakref.ref[Any]) -> None:
    if low in _known and _known[low][0] is dead:
        del _known[low]


def _extent(view: ArrayView) -> tuple[int, int]:
    """The addresses of the first byte of an array, and of the one after its last."""
    nbytes = view.nbytes_per_element
    reaches = [stride * (extent - 1) * nbytes for extent, stride in zip(view.shape, view.strides)]
    return (view.pointer + sum(min(reach, 0) for reach in reaches),
            view.pointer + sum(max(reach, 0) for reach in reaches) + nbytes)
