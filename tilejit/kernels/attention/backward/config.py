"""The configurations of the kernels of the backward."""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import LaunchError
from ..config import BARRIERS, SHARED


@dataclass(frozen=True)
class BackwardConfig:
    """The shape of the kernels.

    - `roles`: the kernel for Hopper, in which each of two consumers has half of the `bn` keys; otherwise the kernel for
      every target, with `warps`
    - `bm`, `bn`: rows and keys of a block of scores; `stages`: slots for blocks of rows
    - `keys`: keys of a block where dQ is computed by itself, whose tiles have `bm` rows"""

    roles: bool = False
    bm: int = 64
    bn: int = 64
    stages: int = 2
    warps: int = 4
    keys: int = 64


def check_config(config: object, target: str) -> None:
    """LaunchError for what is no configuration, or one that the kernels do not take."""
    if not isinstance(config, BackwardConfig):
        raise LaunchError("config is a tilejit.kernels.attention.backward.config.BackwardConfig, "
                          f"not {config!r}")
    for name in ("bm", "bn", "stages", "warps", "keys"):
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise LaunchError(f"config.{name} is a number of at least 1, not {value!r}")
    if config.roles and target != "sm_90a":
        raise LaunchError(f"the kernel with roles is for sm_90a, and the target is {target}: "
                          "config.roles must be False")
    if config.roles and (config.bm not in (64, 128) or config.bn != 128):
        raise LaunchError("a consumer has 64 keys, and 64 or 128 rows: config.bn must be 128 and config.bm 64 or 128, "
                          f"not {config.bn} and {config.bm}")
    if config.bm % 16 or config.bn % 16 or config.keys % 16:
        raise LaunchError("products have multiples of 16 rows and columns: config.bm, config.bn and config.keys must "
                          f"be some, not {config.bm}, {config.bn} and {config.keys}")


__all__ = ["BARRIERS", "BackwardConfig", "SHARED", "check_config"]
