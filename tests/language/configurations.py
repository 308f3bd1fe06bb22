"""Plain functions and constants that kernels of other modules use while compiling."""

import enum
from dataclasses import dataclass

LIMIT = 32
SIZES = {64: (4, 2), 128: (8, 3)}


class Activation(enum.Enum):
    NONE = "none"
    RELU = "relu"
    SQUARE = "square"


@dataclass(frozen=True)
class Plan:
    block: int
    warps: int = 4

    def halves(self) -> list[int]:
        return [self.block // 2] * 2


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def factorial(n: int) -> int:
    return 1 if n < 2 else n * factorial(n - 1)


def chosen(n: int) -> Plan:
    """The plan of the largest size that fits, within the limit."""
    best = 1
    try:
        for size, (warps, _) in sorted(SIZES.items()):
            if size <= n:
                best = warps
    finally:
        block = min(next_power_of_2(n), LIMIT)
    return Plan(block, best)
