"""The configurations of the attention kernels: blocks of scores, slots, and how results are stored."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import LaunchError

SHARED = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90a": 227 << 10, "sm_100a": 227 << 10,
          "sm_103a": 227 << 10, "sm_120a": 99 << 10}  # bytes of shared memory that a CTA may have
PARTS = 1 << 14                                       # floats of a line's parts that a CTA holds to put them together
BARRIERS = 1024                                       # bytes that are kept free for barriers


@dataclass(frozen=True)
class Config:
    """The shape of the kernel.

    - `roles`: the kernel for Hopper, whose consumers have 64 of the `bm` rows each; otherwise the kernel for every
      target, with `warps`
    - `bm`, `bn`: rows and columns of a block of scores; `stages`: slots for blocks of K and of V
    - `held`: rows of Q stay in registers while a tile's blocks are walked; `ahead`: if they do not, the next tile's
      first product is issued before a tile's results are stored; `turns`: consumers issue products in turn
    - `guesses`: the powers of a block are taken with the rows' old numbers, and again if their sums are too large;
      registers then hold the powers of two blocks
    - `width`, `buffers`: columns of the result in a staging buffer of a consumer, and the number of these buffers; with
      0 columns threads store the result
    - `splits`: CTAs that share the keys of a tile of few rows, or of a sequence"""

    roles: bool = True
    bm: int = 128
    bn: int = 128
    stages: int = 2
    warps: int = 4
    held: bool = True
    ahead: bool = False
    turns: bool = True
    guesses: bool = False
    width: int = 0
    buffers: int = 1
    splits: int = 1

    @property
    def consumers(self) -> int:
        return self.bm // 64

    @property
    def num_warps(self) -> int:
        return 4 * (1 + self.consumers) if self.roles else self.warps

    def nbytes(self, d: int, dv: int, itemsize: int = 2) -> int:
        """The bytes of shared memory for Q, the slots of K and V, and the staging buffers."""
        staged = self.consumers * 64 * self.width * self.buffers if self.roles else 0
        tiles = 2 if self.roles and self.ahead else 1
        return (self.bm * d * tiles + self.stages * self.bn * (d + dv)) * itemsize + staged * 2


def check_kind(config) -> None:
    """LaunchError if this is no configuration, or has fields of other types."""
    if not isinstance(config, Config):
        raise LaunchError(f"config is a tilejit.kernels.attention.config.Config, not {config!r}")
    for name in ("bm", "bn", "stages", "warps", "buffers", "splits", "width"):
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < (name != "width"):
            raise LaunchError(f"config.{name} is a number of at least {int(name != 'width')}, not {value!r}")
    for name in ("roles", "held", "ahead", "turns", "guesses"):
        if not isinstance(getattr(config, name), bool):
            raise LaunchError(f"config.{name} is True or False, not {getattr(config, name)!r}")


def check_config(config: Config, target: str, d: int, dv: int, itemsize: int = 2) -> None:
    """LaunchError for a configuration that the kernels do not take."""
    if config.roles and target != "sm_90a":
        raise LaunchError(f"the kernel with roles is for sm_90a, and the target is {target}: "
                          "config.roles must be False")
    if config.roles and (config.bm not in (64, 128, 192) or config.bn % 16 or config.bn > 256):
        raise LaunchError("a consumer has 64 rows and up to 256 columns: config.bm must be 64, 128 or 192, and "
                          f"config.bn a multiple of 16 up to 256, not {config.bm} and {config.bn}")
    if config.roles and itemsize == 1 and (config.bn % 32 or d % 32):
        raise LaunchError("the kernel with roles takes rows and blocks of multiples of 32 elements of float8, and "
                          f"there are {d} and {config.bn}: lower config.bn, or config.roles must be False")
    if not config.roles and (config.bm % 16 or config.bn % 16):
        raise LaunchError("products have multiples of 16 rows and columns: config.bm and config.bn must be some, not "
                          f"{config.bm} and {config.bn}")
    if config.guesses and (not config.roles or itemsize == 1):
        raise LaunchError("config.guesses is for the kernel with roles, of 16 bits")
    if config.roles and config.width and (dv % config.width or config.width % 32):
        raise LaunchError(f"staging buffers share out the {dv} columns of the result evenly: config.width must be a "
                          f"multiple of 32 that divides them, not {config.width}")
    if (needed := config.nbytes(d, dv, itemsize)) > SHARED[target] - BARRIERS:
        raise LaunchError(f"Q, {config.stages} slots of K and V and the staging buffers take {needed} bytes of shared "
                          f"memory, and {target} has {SHARED[target] - BARRIERS}: lower config.bn or config.stages")


__all__ = ["BARRIERS", "Config", "PARTS", "SHARED", "check_config", "check_kind"]
