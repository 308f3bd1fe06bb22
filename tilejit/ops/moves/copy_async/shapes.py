"""The shapes of ``tcgen05.cp``: the rows that one instruction copies, and the lanes they go to.

PTX ISA, "tcgen05.cp".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """`rows` rows of `width` bytes each.

    `lanes` maps rows to lanes by (extent, lane stride) digits, outermost first; `replica` (extent, lane stride) are
    the further lanes that get a copy of each row.
    """

    name: str
    multicast: str
    rows: int
    width: int
    lanes: tuple[tuple[int, int], ...]
    replica: tuple[tuple[int, int], ...] = ()

    @property
    def text(self) -> str:
        return self.name + (f".{self.multicast}" if self.multicast else "")

    def lane(self, row: int) -> int:
        lane = 0
        for extent, stride in reversed(self.lanes):
            lane, row = lane + row % extent * stride, row // extent
        return lane


# The widest first, which is the order in which they are tried.
SHAPES = (
    Shape("128x256b", "", 128, 32, ((128, 1),)),
    Shape("4x256b", "", 4, 32, ((4, 32),)),
    Shape("128x128b", "", 128, 16, ((128, 1),)),
    Shape("64x128b", "warpx2::02_13", 64, 16, ((64, 1),), ((2, 64),)),
    Shape("64x128b", "warpx2::01_23", 64, 16, ((2, 64), (32, 1)), ((2, 32),)),
    Shape("32x128b", "warpx4", 32, 16, ((32, 1),), ((4, 32),)),
)
NAMES = tuple(dict.fromkeys(s.name for s in SHAPES))
MULTICASTS = tuple(s.multicast for s in SHAPES if s.multicast)
DECOMPRESSED = {"float4_e2m1fn": "b4x16_p64", "float6_e2m3fn": "b6x16_p32", "float6_e3m2fn": "b6x16_p32"}
