"""Adjusts a product's launch until the user's epilogue fits in registers and shared memory."""

from __future__ import annotations

from ...errors import SharedMemoryError, warn
from .constants import PersistentConstants
from .hopper.overlap import columns_of_whole_buffers

FEW = 64  # bytes of registers that an epilogue may spill without a warning: some addresses, once for each tile


def fit_registers(launch, given: tuple, target: str, simulated: bool = False, chosen: bool = False):
    """The launch, adjusted so that its epilogue fits. If values spill, fewer columns are deferred to the next tile
    (`late`); a TileWarning says so if there are still more values at once than registers. If the model has `chosen`
    the configuration, slots are dropped, down to two, until the epilogue's shared memory fits; otherwise the
    SharedMemoryError is raised. `given` are the kernel's arguments."""
    plan = launch.plan
    def try_again(**changed):
        return fit_registers(launch.with_plan(**changed), given, target, simulated, chosen)
    try:
        spilled = spills(launch.kernel, given, launch.constants, target, simulated)
    except SharedMemoryError:
        if not chosen or plan.stages <= 2:
            raise
        return try_again(stages=plan.stages - 1)
    if spilled > FEW and isinstance(plan, PersistentConstants) and plan.late:
        return try_again(late=columns_of_whole_buffers(plan.late // 2, plan.width))
    if spilled > FEW:
        warn(f"matmul: with this epilogue each thread spills {spilled} bytes of registers, "
             f"which are stored to memory and loaded again for every tile; a config with a bn below {plan.bn}, "
             "or an epilogue with fewer values at once, avoids it")
    return launch


def spills(kernel, given: tuple, constants: dict, target: str, simulated: bool) -> int:
    """The bytes of registers that a thread spills. The simulator has registers for all values, so for it the kernel
    is only lowered, and this is 0. Jitter, whose idle time takes registers, changes no plan."""
    if not simulated:
        return kernel.compile(*given, target=target, **{**constants, "jitter": None}).spills
    bound, options, _ = kernel.bind(given, constants)
    kernel.version(bound, options, target)
    return 0


__all__ = ["fit_registers"]
