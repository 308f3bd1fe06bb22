"""Chooses the tile of a grouped product on Hopper, by a model of the time of the CTA that takes longest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..matmul.config import Config, divisor_in_width
from ..matmul.config_rules import try_config
from ..matmul.model import MEMORY, TILES, overlap_cycles, tile_cycles

# bm -> registers of a thread of the first warpgroup and of a consumer. The first has more than the producer of
# `matmul`, for its warp that walks.
REGISTERS = {64: (None, None), 128: (88, 208), 192: (80, 144)}
PAIRED_FROM = 16  # slots of k of a tile from which pairs of CTAs are faster


def choose_grouped(extents: tuple[tuple[int, int, int], ...], itemsize: int, stored: int, processors: int,
                   epilogue: bool = False) -> Config:
    """The configuration in which groups of these (M, N, K), in order of falling K, are expected to take the least
    time: the longer of the time of a CTA that gets the first tile of every `processors`, and the time that memory
    needs, combined as by `both`."""
    best = None
    bytes_ = sum((m + n) * k * itemsize + m * n * stored for m, n, k in extents)
    for bm, bn in TILES:
        counts = np.array([-(-m // bm) * -(-n // bn) for m, n, _ in extents])
        kept = bool(stored == 2 and not epilogue and (bm, bn) != (192, 192) and counts.sum() > processors)
        config = try_config(Config.of, bm, bn, itemsize=itemsize, stored=stored, epilogue=epilogue,
                            least=4 if kept else 3,
                            width=divisor_in_width(bn, 128 // stored) if epilogue or kept else 0)
        # rows below 32 bytes have no swizzle, others not the widest
        if bn * min(itemsize, stored) < 32 or bn > 64 and bn % 64 or config is None:
            continue
        mean = [m / max(-(-m // bm), 1) + n / max(-(-n // bn), 1) for m, n, _ in extents]
        each = np.array([tile_cycles(k, itemsize, bm, bn, 1, rows,
                                     outside=bm + bn - rows) for rows, (*_, k) in zip(mean, extents)])
        longest = each[np.searchsorted(np.cumsum(counts), np.arange(0, counts.sum(), processors), side="right")].sum()
        cost = overlap_cycles(longest, bytes_ / (MEMORY * processors / 132))
        if best is None or cost < best[0]:
            best = cost, replace(config, regs=REGISTERS[bm], kept=kept)
    assert best is not None  # some tile is possible
    return replace(best[1], pair=True, order=("grouped", 4)) if pays(best[1], extents, processors) else best[1]


def pays(config: Config, extents: tuple[tuple[int, int, int], ...], processors: int) -> bool:
    """Whether pairs of CTAs are faster. With tiles of 16 slots of k they take 0.5 % less time, of 32 slots 2 to 7 %,
    of 112 slots 13 %, but of 8 slots 8 % more. A launch of a single round takes 2.5 us more, and pairs of tiles side
    by side, which share rows of A, gain nothing."""
    tiles = np.array([config.tiles(m, n) for m, n, _ in extents])
    above = np.array([-(-m // config.bm) // 2 * 2 * -(-n // config.bn) for m, n, _ in extents])
    slots = np.array([k for *_, k in extents]) / config.bk
    mostly, long = 2 * above.sum() >= tiles.sum(), (tiles * slots).sum() >= PAIRED_FROM * tiles.sum()
    return bool(config.bn % 16 == 0 and tiles.sum() > processors and mostly and long)


__all__ = ["REGISTERS", "choose_grouped", "pays"]
