"""Converts a tile to another register layout.

Registers are renamed where threads already hold what they need; otherwise data moves by shuffles in warps, or
through scratch memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...dtypes import int32
from ...ir.builder import type_of
from ...ir.op import op
from ...ir.op_traits import Traits
from ...layout import thread_table
from ...types import Tile, domain_of, layout_of


@op("pure", collective=True, traits=Traits(in_parts=True))
def convert_layout(x):
    """The same tile in another layout (that of the result's type)."""


@convert_layout.infer
def _(g, x):
    return type_of(x)


@convert_layout.simulate
def _(m, call, x):
    return x


IDENTITY = (1, 2, 4, 8, 16)
# limit on the (source register, target register) pairs searched for shuffles; larger tiles go through scratch memory
SEARCHED = 1024


@dataclass(frozen=True)
class Move:
    """Where a register of the target comes from: register `reg` of another lane, which is an affine function over
    GF(2) of the own lane.

    That lane is `base` XORed with ``lanes[b]`` for each bit b that is set in the own lane.
    """

    reg: int
    base: int = 0
    lanes: tuple[int, ...] = IDENTITY

    @property
    def stays_in_lane(self) -> bool:
        return self.base == 0 and self.lanes == IDENTITY


@lru_cache(maxsize=512)
def register_moves(source: Tile, target: Tile, flipped: tuple[int, ...] = ()) -> tuple[Move, ...] | None:
    """The `Move` for each register of the target, by which it comes from a register of a lane in the same warp; the
    target is in reverse along the dimensions `flipped`.

    None if an element must cross warps, if a register has no such move, or if shuffles would cost more than scratch
    memory. A shuffle costs about as much as a store or load of shared memory, and the two barriers of scratch memory
    as much as 16.
    """
    threads = max(_threads(source), _threads(target))
    lanes = min(threads, 32)
    have, need = (_flatten_indices(thread_table(layout_of(t), domain_of(t), threads), t, axes).reshape(threads // lanes,
                                                                                                       lanes, -1)
                  for t, axes in ((source, ()), (target, flipped)))
    moves = []
    for column in range(need.shape[2]):
        wanted = need[:, :, column:column + 1]
        same = np.all((have == wanted) | (wanted < 0), axis=(0, 1))
        if same.any():
            move: Move | None = Move(int(np.argmax(same)))
        else:
            move = _move_across_lanes(have, wanted[:, :, 0], need.shape[2])
        if move is None:
            return None
        moves.append(move)
    words = max(1, source.dtype.nbytes // 4)
    if words * sum(not m.stays_in_lane for m in moves) > words * (have.shape[2] + need.shape[2]) + 16:
        return None
    return tuple(moves)


@dataclass(frozen=True)
class Exchange:
    """A transposition between lanes and registers of a warp: `bits` bits of the lane id, from bit `lane` on, swap
    places with as many bits of the register number, which count runs of `run` registers. Afterwards, register n of
    the target is register ``order[n]``.
    """

    bits: int
    lane: int
    run: int
    order: tuple[int, ...]


@lru_cache(maxsize=512)
def register_exchange(source: Tile, target: Tile) -> Exchange | None:
    """The exchange of whole 32-bit words within a warp that converts one layout to the other; None if there is none."""
    threads, per = max(_threads(source), _threads(target)), max(1, 4 // source.dtype.nbytes)
    if threads % 32 or source.dtype.bits not in (16, 32):
        return None
    have, need = (_flatten_indices(thread_table(layout_of(t), domain_of(t), threads), t).reshape(threads // 32, 32, -1)
                  for t in (source, target))
    columns, lanes = have.shape[2], np.arange(32)[:, None]
    if need.shape != have.shape or have.min() < 0:
        return None
    regs = np.arange(columns)
    for bits, run in ((b, r) for b in (1, 2, 3) for r in range(per, columns, per) if columns % (r << b) == 0):
        digit = regs // run % (1 << bits)
        for lane in range(6 - bits):
            mine = lanes >> lane & (1 << bits) - 1
            made = have[0, lanes + (digit - mine << lane), regs + (mine - digit) * run]
            if set(made[1]) != set(need[0, 1]):
                continue
            where = {element: r for r, element in enumerate(made[1])}
            order = [where[element] for element in need[0, 1]]
            made = have[:, lanes + (digit - mine << lane), regs + (mine - digit) * run]
            if np.array_equal(made[:, :, order], need):
                return Exchange(bits, lane, run, tuple(order))
    return None


def _exchange(e, x: list, dtype, by: Exchange) -> list:
    """Emit an exchange, bit by bit: of two words, each lane keeps the one that its lane bit selects, and swaps the
    other by a butterfly shuffle."""
    words = e.to_units(x, dtype)
    # read again: one read at the kernel's start would occupy a register through loops
    lane = e.asm("mov.u32 $0, %laneid;", [int32], [])[0]
    for bit in range(by.bits):
        apart = by.run * len(words) // len(x) << bit
        upper = ((lane >> by.lane + bit) & 1).equals(1)
        for low in (n for n in range(len(words)) if not n // apart % 2):
            a, b = words[low], words[low + apart]
            got = e.warp.shuffle("bfly", e.select(upper, a, b), 1 << by.lane + bit)
            words[low], words[low + apart] = e.select(upper, got, a), e.select(upper, b, got)
    held = e.from_units(words, dtype, len(x))
    return [held[n] for n in by.order]


def _move_across_lanes(have, wanted, columns: int) -> Move | None:
    """A source register from which every lane can fetch what it needs, as a `Move`; None if there is none."""
    if have.shape[2] * columns > SEARCHED or have.shape[1] < 32:
        return None
    for reg in range(have.shape[2]):
        # [lane, from lane]
        offers = ((have[:, None, :, reg] == wanted[:, :, None]) | (wanted[:, :, None] < 0)).all(axis=0)
        base = int(offers[0].argmax())
        lanes = tuple(int(offers[1 << b].argmax()) ^ base for b in range(5))
        if all(offers[lane, _map_lane(lane, base, lanes)] for lane in range(32)):
            return Move(reg, base, lanes)
    return None


def _map_lane(lane: int, base: int, lanes: tuple[int, ...]) -> int:
    for b, to in enumerate(lanes):
        base ^= to if lane >> b & 1 else 0
    return base


def _threads(t: Tile) -> int:
    """How many threads hold a tile: a multiple of 32, or some lanes of one warp."""
    layout = layout_of(t)
    lanes, warps = (1 + sum((x - 1) * s for x, s, a in (*layout.shards, *layout.replicas) if a == axis)
                    for axis in ("laneid", "warpid"))
    return 32 * warps if warps > 1 else lanes


def _flatten_indices(table, t: Tile, flipped: tuple[int, ...] = ()):
    """Row-major indices over the domain as row-major indices over the shape, in reverse along the dimensions `flipped`;
    -1 for padding."""
    at = np.unravel_index(table, domain_of(t))
    inside = np.ones(table.shape, bool)
    flat = np.zeros(table.shape, np.int64)
    for d, (c, extent) in enumerate(zip(at, t.shape)):
        inside &= c < extent
        flat = flat * extent + (extent - 1 - c if d in flipped else c)
    return np.where(inside, flat, -1)


def _lane(e, move: Move):
    """Emit the lane that a move fetches from."""
    kept = sum(1 << b for b, to in enumerate(move.lanes) if to == 1 << b)
    lane = (e.lane_id() & kept) ^ move.base
    for b, to in enumerate(move.lanes):
        if to and to != 1 << b:
            lane = lane ^ ((e.lane_id() >> b) & 1) * to
    return lane


def _from_lane(e, value, move):
    """A register's value in the lane that a move names."""
    return e.warp.shuffle("idx", value, e.memoize_for_region(("lane", move.base, move.lanes), lambda: _lane(e, move)))


def emit_moves(e, x: list, moves: tuple[Move, ...]) -> list:
    """Emit the moves of a tile's registers."""
    return [x[m.reg] if m.stays_in_lane else _from_lane(e, x[m.reg], m) for m in moves]


@convert_layout.emit
def _(e, call, x):
    source, target = type_of(call.args[0]), call.result.type
    moves = register_moves(source, target)
    if moves is not None:
        return emit_moves(e, x, moves)
    exchange = register_exchange(source, target)
    if exchange is not None:
        return _exchange(e, x, source.dtype, exchange)
    return e.tiles.move_through_scratch(call, x, source, target, source.shape, pitch=_pitch(source))


def _pitch(t: Tile) -> int:
    """The pitch of rows in scratch memory, in elements: an odd number of words, so that the elements of a column are
    in different banks."""
    word = max(1, 4 // t.dtype.nbytes)
    return (-(-t.shape[-1] // word) | 1) * word


def _scratch(call) -> int:
    source, target = type_of(call.args[0]), call.results[0].type
    if register_moves(source, target) is not None or register_exchange(source, target) is not None:
        return 0
    return source.size // source.shape[-1] * _pitch(source) * source.dtype.nbytes


convert_layout.rules.scratch = _scratch
