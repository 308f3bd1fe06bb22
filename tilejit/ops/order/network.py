"""The bitonic sorting network of a tile's axis, and the layout in which a scope's threads run it.

Position p along the axis has ``bits`` bits. Its lowest ones number a thread's registers, the next ones lanes of a warp,
the highest ones warps. A comparator of the network joins two positions that differ in one bit, so that bit decides
what it costs: nothing but the comparison, a shuffle, or a store and a load of shared memory between barriers.

The network first sorts blocks of ``2**kept`` elements, in stages: stage k merges blocks of ``2**(k - 1)`` elements, by
comparators of the distances ``2**(k - 1)``, ..., 2, 1, upwards where bit k of the position is 0 and downwards where it
is 1. Of two neighbouring blocks, one upwards and one downwards, the lower elements at equal places are the lowest ones
of both. So each further stage halves the number of blocks, and merges those that are left. With ``kept == bits``, there
is no further stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ...layout import TileLayout, axis as axes

LANES = 32


@dataclass(frozen=True)
class Network:
    """How a tile is sorted along `axis`: its positions have `bits` bits, and the lowest ``2**kept`` elements are kept.

    `registers`, `lanes` and `warps` are the bits that number them, from the lowest on. `rows` is the number of rows of
    which a thread holds a part, and `threads` that of the threads that run it.
    """

    axis: int
    bits: int
    kept: int
    registers: int
    lanes: int
    warps: int
    rows: int
    threads: int

    @property
    def result_bits(self) -> int:
        """The bits that number a thread's registers of one row of the result."""
        return min(self.kept, self.registers)

    @property
    def shuffles(self) -> int:
        """How often a thread exchanges one element with another lane."""
        return self._exchanges(self.registers, self.registers + self.lanes)

    @property
    def through_shared(self) -> int:
        """How often a thread exchanges one element with another warp."""
        return self._exchanges(self.registers + self.lanes, self.bits)

    @property
    def work_among_threads(self) -> int:
        """How many comparisons of one element, also within the thread, the stages take that join several threads."""
        return sum(self.rows << self.result_bits for step in steps(self.bits, self.kept) if step.stage > self.registers)

    def _exchanges(self, low: int, high: int) -> int:
        return sum(self.rows << (self.registers if step.stage <= self.kept else self.result_bits)
                   for step in steps(self.bits, self.kept) if low <= step.bit < high)


@dataclass(frozen=True)
class Step:
    """The comparators of one distance, ``2**bit``, in a stage. With `halves`, both positions keep the lower element."""

    stage: int
    bit: int
    halves: bool = False


@lru_cache(maxsize=256)
def steps(bits: int, kept: int) -> tuple[Step, ...]:
    """The steps of a network, in order."""
    return tuple(_steps(bits, kept))


def _steps(bits: int, kept: int) -> Iterator[Step]:
    for stage in range(1, bits + 1):
        if stage > kept:
            yield Step(stage, stage - 1, halves=True)
        for bit in reversed(range(min(stage, kept))):
            yield Step(stage, bit)


def bits_for(extent: int) -> int:
    """The bits of a position along an axis of `extent` elements."""
    return (extent - 1).bit_length()


@lru_cache(maxsize=256)
def choose_network(shape: tuple[int, ...], axis: int, kept: int, threads: int, words: int) -> Network:
    """The network for a tile of `shape`, elements of `words` 32-bit words, and `kept` results, in a scope of `threads`
    threads: that of the least estimated time."""
    bits, lanes = bits_for(shape[axis]), min(threads, LANES)
    most = min(bits, bits_for(lanes) + _power_of(threads // lanes))
    networks = []
    for spread in range(most + 1):
        in_lanes = min(spread, bits_for(lanes))
        rows = 1
        for regs, _, _ in _spread_rows(shape, axis, threads, in_lanes, spread - in_lanes):
            rows *= regs
        networks.append(Network(axis, bits, min(bits, bits_for(kept)), bits - spread, in_lanes, spread - in_lanes, rows,
                                threads))
    return min(networks, key=lambda network: _estimate(network, words))


def _estimate(network: Network, words: int) -> float:
    """The estimated cycles of a thread: instructions times the warps that share a scheduler, and latencies.

    A shuffle takes about 25 cycles, an exchange through shared memory with its barriers about 100. Beyond 128
    registers, each access is one of local memory.
    """
    total, elements = 0.0, network.rows << network.registers
    busy = max(1, network.threads // 128)
    for step in steps(network.bits, network.kept):
        held = elements if step.stage <= network.kept else network.rows << network.result_bits
        instructions = 2 * words * held * busy
        if step.bit >= network.registers + network.lanes:
            total += 100 + 2.5 * instructions
        elif step.bit >= network.registers:
            total += 25 + 2 * instructions
        else:
            total += 5 + instructions
    return total * (8 if elements * words > 128 else 1)


def _power_of(n: int) -> int:
    """The exponent of the largest power of two that divides `n`."""
    return (n & -n).bit_length() - 1


def _spread_rows(shape: tuple[int, ...], axis: int, threads: int, lanes: int, warps: int) -> list[tuple[int, int, int]]:
    """For each dimension but `axis`, last to first, into how many registers, warps and lanes it is divided; `lanes` and
    `warps` bits of the threads' numbers are taken."""
    free_lanes = min(threads, LANES) >> lanes
    free_warps = 1 << _power_of(max(1, threads // LANES)) - warps
    found = []
    for extent in (n for d, n in reversed(tuple(enumerate(shape))) if d != axis):
        in_lanes = min(free_lanes, 1 << bits_for(extent))
        left = -(-extent // in_lanes)
        in_warps = min(free_warps, 1 << bits_for(left))
        found.append((-(-left // in_warps), in_warps, in_lanes))
        free_lanes, free_warps = free_lanes // in_lanes, free_warps // in_warps
    return found


@lru_cache(maxsize=256)
def network_layouts(network: Network, shape: tuple[int, ...]) -> tuple[tuple[TileLayout, tuple[int, ...]], ...]:
    """(layout, domain) of the tile that is sorted, and of the result, in which threads may hold copies."""
    spread = iter(_spread_rows(shape, network.axis, network.threads, network.lanes, network.warps))
    lane, warp = 1 << network.lanes, 1 << network.warps
    reg, dims, domain = 1, {}, {}
    for d in reversed(range(len(shape))):
        if d == network.axis:
            continue
        regs, in_warps, in_lanes = next(spread)
        dims[d] = [(regs, reg, axes.reg), (in_warps, warp, axes.warpid), (in_lanes, lane, axes.laneid)]
        domain[d] = regs * in_warps * in_lanes
        reg, lane, warp = reg * regs, lane * in_lanes, warp * in_warps
    copies = [(min(network.threads, LANES) // lane, lane, axes.laneid),
              (max(1, network.threads // LANES) // warp, warp, axes.warpid)]
    return tuple(_with_axis(network, kept, dims, domain, copies) for kept in (network.bits, network.kept))


def _with_axis(network: Network, kept: int, dims: dict, domain: dict, copies: list) -> tuple:
    """(layout, domain) with the axis, of which ``2**kept`` positions are left; threads of the others hold copies."""
    registers = min(kept, network.registers)
    lanes = max(0, min(kept - network.registers, network.lanes))
    warps = max(0, kept - network.registers - network.lanes)
    own = [(1 << warps, 1, axes.warpid), (1 << lanes, 1, axes.laneid), (1 << registers, 1, axes.reg)]
    rank, scale = len(dims) + 1, {axes.reg: 1 << registers}
    others = {d: [(n, stride * scale.get(along, 1), along) for n, stride, along in parts] for d, parts in dims.items()}
    shards = [shard for d in range(rank) for shard in others.get(d, own)]
    copies = copies + [(1 << network.lanes - lanes, 1 << lanes, axes.laneid),
                       (1 << network.warps - warps, 1 << warps, axes.warpid)]
    layout = TileLayout(shards, [copy for copy in copies if copy[0] > 1]).canonicalize()
    return layout, tuple(1 << kept if d == network.axis else domain[d] for d in range(rank))
