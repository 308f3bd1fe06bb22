"""Plans ``tcgen05.ld`` and ``tcgen05.st``: the instructions that move a region, and the layout of the register tile.

An instruction's shape maps each register of each thread to a lane and a column of tensor memory. The region's layout
maps elements to lanes and columns. Composing the two gives the thread and the register of each element. PTX ISA,
"Data Movement Shape".

In this module a *digit* is one (extent, stride, axis) factor of a dimension, as in a mixed-radix number: the
dimension's index is split into digits, and each adds digit * stride to the coordinate on its axis. A column is 32
bits wide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from ...errors import CompilationError
from ...layout import TileLayout, axis
from ...layout.shards import fuse, slice_dim
from ...types import Region, layout_of
from .multiples import Multiple

LANE, WARP, REG = axis.laneid, axis.warpid, axis.reg
SHAPES = ("32x32b", "16x256b", "16x128b", "16x64b", "16x32bx2")
# provisional stride, in registers, from lanes 0-15 of a warp to lanes 16-31; `_compact` closes the gap
UPPER = 1 << 20
MANY = 1 << 12        # extent of the repetition field, which is not bounded here

# The fields of a lane number (ROWS) and of a column number (COLUMNS), innermost first: (extent, axis, stride) says
# which lane of a warp, warp or register a step of the field goes to. The last field of a column counts repetitions (the
# .xN of the instruction).
ROWS = {
    "32x32b":   ((32, LANE, 1), (4, WARP, 1)),
    "16x64b":   ((8, LANE, 4), (2, LANE, 1), (2, REG, UPPER), (4, WARP, 1)),
    "16x128b":  ((8, LANE, 4), (2, REG, 1), (2, REG, UPPER), (4, WARP, 1)),
    "16x256b":  ((8, LANE, 4), (2, REG, 2), (2, REG, UPPER), (4, WARP, 1)),
    "16x32bx2": ((16, LANE, 1), (2, REG, UPPER), (4, WARP, 1)),
}
COLUMNS = {
    "32x32b":   ((MANY, REG, 1),),
    "16x64b":   ((2, LANE, 2), (MANY, REG, 1)),
    "16x128b":  ((4, LANE, 1), (MANY, REG, 2)),
    "16x256b":  ((2, REG, 1), (4, LANE, 1), (MANY, REG, 4)),
}
WORDS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}    # registers per repetition
WIDTH = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}    # columns per repetition
LARGEST = {"32x32b": 128, "16x64b": 128, "16x128b": 64, "16x256b": 32, "16x32bx2": 128}    # repetitions per instruction
# registers that ptxas needs besides the instruction's own (error C7602), even if `setmaxnreg` adds some
BESIDE = 18
HALF_LIMIT = 512      # the immediate of 16x32bx2, the columns between its halves, must be less


@dataclass(frozen=True)
class Issue:
    """One instruction: `repeat` repetitions, starting at `lane` and `column` relative to the start of the region and
    of the warp's quarter of the lanes, into or out of the registers from number `first` on."""

    lane: int
    column: int
    repeat: int
    first: int


@dataclass(frozen=True)
class Plan:
    """The instructions (`issues`) of each warp, and the `layout` and `domain` of the register tile.

    A register holds `elements` elements; if `packed`, they are 16-bit elements from two columns (``.pack::16b``).
    `half` is the number of columns between the halves of 16x32bx2, `across` the number of columns from one
    warpgroup's part to the next one's. With `quarters`, the warps of the scope access different quarters of the
    lanes.
    """

    shape: str
    packed: bool
    elements: int
    bits: int
    half: int
    across: int
    quarters: bool
    registers: int
    issues: tuple[Issue, ...]
    layout: TileLayout
    domain: tuple[int, ...]

    @property
    def instructions(self) -> int:
        return len(self.issues)

    def for_threads_of(self, registers: int) -> Plan:
        """Split the instructions so that ptxas accepts them in a CTA whose threads start with
        `registers` registers each."""
        issues = []
        for issue in self.issues:
            repeat = issue.repeat
            while repeat > 1 and repeat * WORDS[self.shape] + BESIDE > registers:
                repeat //= 2
            issues += [Issue(issue.lane, issue.column + _columns(self.shape, self.packed, n), repeat,
                             issue.first + n * WORDS[self.shape])
                       for n in range(0, issue.repeat, repeat)]
        return replace(self, issues=tuple(issues))

    def hardware(self, threads: int, first: int):
        """The lane, and the byte within the lane, of each element that each thread holds: two arrays [threads,
        registers * elements].

        Both are relative to the region's first element; `first` is the scope's first thread. The simulator uses them.
        """
        thread = np.arange(threads)[:, None]
        t, warp = thread % 32, (first + thread) // 32
        lanes, places = [], []
        for issue in self.issues:
            i = np.arange(issue.repeat * WORDS[self.shape])[None]
            row, column = _lane_and_column(self.shape, t, i, self.half // (2 if self.packed else 1))
            lane = issue.lane + row + (warp % 4 * 32 if self.quarters else 0)
            column = (2 if self.packed else 1) * column + issue.column + (warp - first // 32) // 4 * self.across
            for element in range(self.elements):
                places.append((4 * column + element * (4 if self.packed else self.bits // 8),
                               issue.first * self.elements + i * self.elements + element))
                lanes.append(lane)
        shape = threads, self.registers * self.elements
        out = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for lane, (place, register) in zip(lanes, places):
            at = thread, np.broadcast_to(register, (threads, register.shape[1]))
            out[0][at] = np.broadcast_to(lane, at[1].shape)
            out[1][at] = np.broadcast_to(place, at[1].shape)
        return out


def _lane_and_column(shape: str, t, i, half: int):
    """The lane and column of register `i` of thread `t` of a warp (PTX ISA, figures of "Data Movement Shape").
    Runs on arrays."""
    if shape == "32x32b":
        return t + 0 * i, i + 0 * t
    if shape == "16x64b":
        return t % 2 * 8 + t // 4 + 0 * i, i * 2 + t // 2 % 2
    if shape == "16x128b":
        return i % 2 * 8 + t // 4, i // 2 * 4 + t % 4
    if shape == "16x256b":
        return i // 2 % 2 * 8 + t // 4, i // 4 * 8 + t % 4 * 2 + i % 2
    return t % 16 + 0 * i, i + t // 16 * half


# -- a region's digits -------------------------------------------------------------------------------------------------

def digits_of(t: Region, starts: tuple, divisor) -> tuple[list, dict] | str:
    """(digits of each kept dimension, outermost first; offset of the region by axis),
    or a string that says why there are none.

    Strides and offsets along TCol count elements. An offset is an int, or a `Multiple` if it is known only at run time.
    """
    layout = layout_of(t.buffer)
    try:
        grouped, at = layout.group(t.buffer.shape)
    except CompilationError as error:
        return error.message
    offset = dict(layout.offset)
    digits = []
    for d, (start, extent) in enumerate(zip(starts, t.extents)):
        start = start.value if hasattr(start, "value") else start
        start = start if isinstance(start, int) else Multiple(divisor(start))
        if isinstance(start, int) and not 0 <= start <= t.buffer.shape[d] - extent:
            return f"elements {start} to {start + extent - 1} of dimension {d}, which has {t.buffer.shape[d]}"
        sliced = slice_dim(grouped.shards[at[d]:at[d + 1]], start, extent, lambda shard, n: shard.of % n == 0)
        if sliced is None:
            return (f"elements {'' if isinstance(start, Multiple) else start} to +{extent} of dimension {d} cut across "
                    "the layout's blocks")
        for along, value in sliced[1].items():
            offset[along] = offset[along] + value if along in offset else value
        if d in t.kept:
            digits.append([s for s in sliced[0] if s[0] != 1])
    return digits, offset


# -- from digits to registers ------------------------------------------------------------------------------------------

def map_digit(extent: int, stride: int, fields) -> list[tuple] | None:
    """Map one digit of lanes or columns to digits (extent, stride, axis) over threads and registers, outermost first.

    `fields` is an entry of `ROWS` or `COLUMNS`. None if the digit straddles a field boundary unevenly.
    """
    found: list[tuple] = []
    weight = 1
    for n, along, step in fields:
        if extent == 1:
            break
        if stride < weight * n:
            if stride % weight or (n != MANY and weight * n % stride):
                return None
            take = extent if n == MANY else min(extent, weight * n // stride)
            if extent % take or along is None:
                return None
            found.insert(0, (take, stride // weight * step, along))
            extent, stride = extent // take, stride * take
        weight *= n
    return found if extent == 1 else None


@lru_cache(maxsize=1024)
def plan_moves(digits: tuple, replicas: tuple, lane: int, bits: int, threads: int, shape: str, packed: bool,
               one: bool = False) -> Plan | str:
    """The plan for a region with these digits and an instruction shape; a string says why the shape does not move it.

    The region's first element is in lane `lane`, at the start of a column. `replicas` are those of the layout. With
    `one` (loads), a single warp may read the replica in its own lanes.
    """
    dense = any(along == "TCol" and stride == 1 for part in digits for _, stride, along in part) and bits < 32
    if packed and (bits != 16 or dense):
        return "pack= moves elements of 16 bits that have a column each"
    elements = 2 if packed else 1
    if dense and not packed:
        elements = 32 // bits
    copies = _copies(replicas, shape)
    if isinstance(copies, str):
        return copies
    own = bool(copies) and threads == 32  # a single warp, which reads the replica in its own lanes
    if own and not (one and _covers([(n, s) for n, s, _ in copies], 4)):
        return "one warp writes one of its replicas, and reads it where each warp has one"
    copies = [] if own else copies
    words = _words(digits, copies, threads, elements)
    if isinstance(words, str):
        return words
    half = words // (2 if _rows(digits) == 128 else 1)
    made = _threads_of(digits, _fields(bits, elements, half, shape, packed, dense), shape)
    if isinstance(made, str):
        return made
    return _complete(made, tuple(copies), own or threads >= 128, lane, bits, elements, threads, shape, packed, half)


def _copies(replicas: tuple, shape: str) -> list[tuple] | str:
    """The replicas of a layout as digits over warps; a string if they are not one for each warp."""
    copies = []
    for n, stride, along in replicas:
        made = map_digit(n, stride, ROWS[shape]) if along == "TLane" else None
        if made is None or any(a != WARP for _, _, a in made):
            return f"the replica {n} : {stride} @ axis.{along} is not one for each warp"
        copies += made
    return copies


def _words(digits: tuple, copies: list, threads: int, elements: int) -> int | str:
    """The number of registers that each thread needs for the region; a string if the elements do not divide evenly."""
    size = prod(n for part in digits for n, _, _ in part) * prod(n for n, _, _ in copies)
    if size % threads:
        return f"{size} elements do not divide evenly among {threads} threads"
    if size // threads % elements:
        return f"{size // threads} elements for each thread do not fill whole registers"
    return size // threads // elements


def _rows(digits: tuple) -> int:
    return prod(n for part in digits for n, _, along in part if along == "TLane")


def _fields(bits: int, elements: int, half: int, shape: str, packed: bool, dense: bool) -> dict[str, tuple]:
    """The fields of TCol and TLane coordinates for `map_digit`, with a first field for the elements within a column.

    Unlike in `ROWS` and `COLUMNS`, strides on `reg` count elements.
    """
    if packed:
        inner: tuple[tuple, ...] = ((2, None, 0), (2, REG, 1))
    elif dense:
        inner = ((32 // bits, REG, 1),)
    else:
        inner = ((32 // bits, None, 0),)
    columns = COLUMNS[shape] if shape != "16x32bx2" else ((half, REG, 1), (2, LANE, 16))
    def in_elements(fields):
        return tuple((n, a, s * elements if a == REG else s) for n, a, s in fields)
    return {"TCol": inner + in_elements(columns), "TLane": in_elements(ROWS[shape])}


def _threads_of(digits: tuple, fields: dict[str, tuple], shape: str) -> list[list[tuple]] | str:
    """The digits of each dimension mapped to threads and registers;
    a string names a digit that the shape cannot move."""
    made = []
    for part in digits:
        found = [(stride, along, map_digit(extent, stride, fields[along])) for extent, stride, along in part]
        crossing = next(((stride, along) for stride, along, digit in found if digit is None), None)
        if crossing is not None:
            return f"a step of {crossing[0]} along {crossing[1]} crosses what {shape} moves"
        made.append([d for *_, digit in found for d in digit or ()])
    return made


def _complete(made: list, copies: tuple, quarters: bool, lane: int, bits: int, elements: int, threads: int, shape: str,
              packed: bool, half: int) -> Plan | str:
    """Complete the plan: divide the columns among warpgroups, check that all threads are covered,
    and form the instructions."""
    across, spread = 0, 2 if packed else 1
    if threads % 128 == 0 and threads > 128:
        made, each = _split(made, threads // 128, elements)
        if not each or each % WORDS[shape]:
            return f"its columns do not divide among {threads // 128} warpgroups"
        across = each // WORDS[shape] * WIDTH[shape] * spread
    flat = [d for dim in made for d in dim]
    refused = _refused_threads((*flat, *copies), shape, max(threads // 32, 1))
    if refused is not None:
        return refused
    words = sorted((s // elements, n) for n, s, a in flat if a == REG and s >= elements)
    if len({s for s, _ in words}) != len(words):
        return "two dimensions go to the same registers"
    issues = _issues(words, shape, packed)
    if isinstance(issues, str):
        return issues
    distance = half * spread if shape == "16x32bx2" else 0
    refused = _refused_place(shape, lane, issues, distance)
    if refused is not None:
        return refused
    compact, registers = _compact(words, elements)
    layout = _layout_of(made, copies, compact)
    domain = tuple(prod(n for n, _, _ in dim) for dim in made)
    return Plan(shape, packed, elements, bits, distance, across, quarters, registers, issues, layout, domain)


def _layout_of(made: list, copies: tuple, compact: dict[int, int]) -> TileLayout:
    """The layout over threads and registers of these digits, with the registers renumbered by `compact`."""
    shards: list[tuple] = []
    for dim in made:
        digits = [(n, compact.get(s, s) if a == REG else s, a) for n, s, a in dim]
        shards += fuse(tuple(digits) or ((1, 1, REG),))
    return TileLayout(shards, copies)


def _refused_threads(digits: tuple, shape: str, warps: int) -> str | None:
    """Why the digits do not give the region to all lanes of the warps, each part once; None if they do."""
    lanes, groups = ([(n, s) for n, s, a in digits if a == along] for along in (LANE, WARP))
    if _covers(lanes, 32) and _covers(groups, warps):
        return None
    return (f"{shape} gives it to {prod(n for n, _ in lanes)} lanes of {prod(n for n, _ in groups)} warps, "
            f"and there are 32 of {warps}")


def _compact(words: list, elements: int) -> tuple[dict[int, int], int]:
    """Renumber registers without gaps: ({old stride: new stride}, in elements; the number of registers)."""
    compact, position = {}, 1
    for s, n in words:
        compact[s * elements] = position * elements
        position *= n
    return compact, position


def _refused_place(shape: str, lane: int, issues: tuple[Issue, ...], distance: int) -> str | None:
    """Why the instructions cannot start in `lane`, or their halves (16x32bx2) be `distance` columns apart;
    None if they can."""
    rows = 32 if shape == "32x32b" else 16
    within = max((i.lane for i in issues), default=0) + rows
    if lane % rows or lane % 32 + within > 32:
        return (f"{shape} begins in a lane that is a multiple of {rows} and stays in 32 lanes, "
                f"and it begins in lane {lane}")
    if distance >= HALF_LIMIT:
        return f"the halves of 16x32bx2 are {distance} columns apart, and at most {HALF_LIMIT - 1} can be said"
    return None


def _covers(digits: list, count: int) -> bool:
    """Whether digits (extent, stride) enumerate 0 to `count` - 1, each value once."""
    weight = 1
    for n, s in sorted(digits, key=lambda d: d[1]):
        if s != weight:
            return False
        weight *= n
    return weight == count


def _split(made: list, groups: int, elements: int) -> tuple[list, int]:
    """Divide the outermost digit of columns among warpgroups: (digits, registers per warpgroup along it), or 0
    registers if none divides."""
    steps = [(s, d, i) for d, dim in enumerate(made)
             for i, (n, s, a) in enumerate(dim) if a == REG and s // elements < UPPER and n % groups == 0]
    if not steps:
        return made, 0
    s, d, i = max(steps)
    n = made[d][i][0]
    made = [list(dim) for dim in made]
    made[d][i:i + 1] = [(groups, 4, WARP)] + ([(n // groups, s, REG)] if n > groups else [])
    return made, s * (n // groups) // elements


def _issues(words: list, shape: str, packed: bool) -> tuple[Issue, ...] | str:
    """The instructions for registers at these digits (stride, extent), innermost first: each takes the longest run of
    consecutive repetitions whose count is a power of two."""
    at = [0]
    for s, n in words:
        at = [k * s + a for k in range(n) for a in at]
    per, found, r = WORDS[shape], [], 0
    while r < len(at):
        if (at[r] % UPPER % per or any(at[r + k] != at[r] + k for k in range(per) if r + k < len(at))
            or r + per > len(at)):
            return f"it is not a whole number of repetitions of {shape}"
        run = 1
        while (run * 2 <= LARGEST[shape] and r + run * 2 * per <= len(at)
               and at[r + run * 2 * per - 1] == at[r] + run * 2 * per - 1):
            run *= 2
        found.append(Issue(16 * (at[r] // UPPER), _columns(shape, packed, at[r] % UPPER // per), run, r))
        r += run * per
    return tuple(found)


def _columns(shape: str, packed: bool, repetitions: int) -> int:
    return repetitions * WIDTH[shape] * (2 if packed else 1)


__all__ = ["Issue", "Plan", "SHAPES", "digits_of", "plan_moves", "map_digit"]
