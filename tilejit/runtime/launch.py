"""From a bound call to a launch on a device: which device, and device copies of host arrays."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ..errors import LaunchError
from ..lazy import Lazy
from . import driver
from .arguments import ArraySpec, Bound
from .arrays import describe
from .device_array import to_device
from .packed import Packed

if TYPE_CHECKING:
    import numpy
else:
    numpy = Lazy("numpy")


def device_of(bound: Bound, call: dict) -> int:
    """The device to launch on: that of the arrays, else the `device` option, else 0. LaunchError if they disagree."""
    if not driver.available():
        raise LaunchError("no CUDA driver or no GPU was found: pass host arrays (NumPy) to run on the simulator, "
                          "or install the NVIDIA driver")
    homes: set[Any] = ({v.view.device for v in bound.runtime if isinstance(v, ArraySpec) and v.view is not None}
                       - {"host"})
    asked = driver.ordinal(call.get("device"))
    if len(homes) > 1:
        raise LaunchError("the arrays of a launch must be on one device, "
                          f"and these are on {', '.join(map(str, sorted(homes)))}")
    if homes and asked is not None and asked not in homes:
        raise LaunchError(f"device={asked} is asked for, and the arrays are on device {homes.pop()}")
    device: int = homes.pop() if homes else asked or 0
    return device


def on_device(bound: Bound, device: int) -> tuple[Bound, dict[str, tuple]]:
    """The call with its host arrays copied to the device, and the copies as {name: (host array, device array)}. An
    array that is passed twice is copied once."""
    copies, values = {}, dict(bound.values)
    made: dict[tuple, Any] = {}  # the copies, by place
    for name in bound.names:
        value = values[name]
        if not isinstance(value, ArraySpec):
            continue
        if value.view is None:
            raise LaunchError(f"{name} is a spec without data: a launch needs arrays")
        if value.view.device == "host":
            host, place = value.view.numpy(), (value.pointer, value.shape, value.strides, value.dtype)
            there = made[place] = made[place] if place in made else to_device(host, device)
            values[name] = ArraySpec.of_view(describe(Packed(there, value.dtype) if value.dtype.packed else there))
            copies[name] = (host, there)
    return replace(bound, values=values), copies


def check_apart(copies: dict[str, tuple], written: set[str]) -> None:
    """LaunchError if two different host arrays share bytes and the kernel writes one of them: each has a copy of its
    own on the device, so a write to one would not appear in the other."""
    for (one, (a, there)), (other, (b, elsewhere)) in combinations(copies.items(), 2):
        if there is not elsewhere and not written.isdisjoint((one, other)) and _overlap(a, b):
            raise LaunchError(f"the host arrays {one} and {other} overlap, the kernel writes "
                              f"{one if one in written else other}, and each has a copy of its own on the GPU: "
                              "pass device arrays (tile.to_device of the whole, then its parts), "
                              "or copies that do not overlap")


def _overlap(a, b) -> bool:
    try:
        work: Any = 10_000  # NumPy's types name the special values only
        return numpy.shares_memory(a, b, max_work=work)
    except numpy.exceptions.TooHardError:
        return True


def run(name: str, code: Any, asked: Bound, bound: Bound, copies: dict[str, tuple], device: int, grid: tuple[int, ...],
        call: dict) -> Any:
    """Launch a kernel by its `code`, which has a `recipe` and `launcher(device)`, and copy back the host arrays that it
    writes; returns the launcher. `bound` is the call `asked` with `copies`, as `on_device` returns them."""
    asked.check_writable(code.recipe["written"])
    written = {bound.names[n] for n in code.recipe["written"]}
    check_apart(copies, written)
    if copies and code.recipe.get("by_address"):
        raise LaunchError(f"{name} makes arrays from addresses, and the host arrays {', '.join(copies)} would be "
                          "copied to the GPU, where addresses of the host mean nothing: pass device arrays "
                          "(tile.to_device), and addresses of device arrays")
    launcher = code.launcher(device)
    arguments = launch_arguments(bound)
    if not launcher(grid, call.get("stream"), arguments):
        raise LaunchError(f"{name}: the call does not fit what was compiled for it: "
                          f"{'; '.join(launcher.mismatch(arguments, bound.names))}")
    for array, (host, there) in copies.items():
        if array in written:
            host[...] = there.numpy()
    return launcher


def launch_arguments(bound: Bound) -> list:
    """The runtime arguments as the launcher takes them: the caller's array objects, and numbers."""
    return [v.view.owner if isinstance(v, ArraySpec) and v.view is not None else v for v in bound.runtime]
