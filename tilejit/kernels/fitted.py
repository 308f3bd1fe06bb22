"""A product's launch so that what the user's epilogue needs has room: values in registers, and shared memory beside the slots of k."""

from __future__ import annotations

from dataclasses import replace

from ..errors import SharedMemoryError, warn
from .overlap import whole

FEW = 64  # bytes of registers that an epilogue may make spill without a word: some addresses, once for each tile


def fitted(launch, given: tuple, target: str, simulated: bool = False, chosen: bool = False):
    """The launch with its epilogue's values in registers: with fewer columns that are left over for the next tile if these would spill. A
    TileWarning says so where there are still more values at once than registers. Of a configuration that the model has `chosen` there are as
    many slots as the epilogue's shared memory leaves, two at least. `given` are the kernel's arguments."""
    kernel, constants = launch.kernel, launch.constants
    again = lambda **changed: fitted(replace(launch, constants=constants | changed), given, target, simulated, chosen)
    try:
        spilled = spills(kernel, given, constants, target, simulated)
    except SharedMemoryError:
        if not chosen or constants["STAGES"] <= 2:
            raise
        return again(STAGES=constants["STAGES"] - 1)
    if spilled > FEW and (late := constants.get("LATE")):
        return again(LATE=whole(late // 2, constants["WIDTH"]))
    if spilled > FEW:
        warn(f"matmul: with this epilogue each thread spills {spilled} bytes of registers, which are stored to memory and loaded again for every "
             f"tile; a config with a bn below {constants['BN']}, or an epilogue with fewer values at once, avoids it")
    return launch


def spills(kernel, given: tuple, constants: dict, target: str, simulated: bool) -> int:
    """How many bytes of registers a thread spills. For the simulator, which has registers for all values, the kernel is only lowered."""
    if not simulated:
        return kernel.compile(*given, target=target, **constants).spills
    bound, options, _ = kernel._bind(given, constants)
    kernel.version(bound, options, target)
    return 0


__all__ = ["fitted"]
