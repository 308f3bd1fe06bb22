"""Finds the tensor map and the boxes that move a region with the fewest ``cp.async.bulk.tensor`` instructions.

A map has up to five dimensions of sizes and byte strides, the innermost contiguous; one instruction moves a box of it,
packed in shared memory innermost dimension first. PTX ISA, "Tensors"; CUDA Driver API, ``cuTensorMapEncodeTiled``.

The digits of the region, sorted by their step in shared memory, are a chain. A prefix of it that lies in memory as a box
does becomes the box; every digit left over repeats the instruction. A digit in the box cuts its dimension in two there
(64-element swizzle atoms of a row of K elements: K/64 by 64), which is right only where the dimension is a multiple of
the cut: that is asked of the launch, and where it does not hold the dimension stays whole, so that a ragged edge never
reads its neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from math import gcd, prod

from .tma_view import Dim, Number, View, multiple, over

MAX_RANK, MAX_BOX, MAX_BOX_BYTES, MAX_ISSUES = 5, 256, 233_472, 256
SPAN = (0, 32, 64, 128)  # bytes of a swizzled row, by mode
MAX_STRIDE = 2**40 - 16  # bytes, that a tensor map can have (CUDA driver API, cuTensorMapEncodeTiled)
PADDED = 128  # elements of the innermost box, of 4 or 6 bits that the engine pads (CUDA Driver API, cuTensorMapEncodeTiled)
PROMOTED = {2: "uint16", 4: "uint32", 8: "uint64"}
SEARCHED = 64            # boxes that the search looks at, at most; of 100 000 random layouts none had more than 32


@dataclass(frozen=True)
class Im2col:
    """What ``cuTensorMapEncodeIm2col`` is given in place of a box: the corners of the filter's places (w, h, ... first),
    the channels and the pixels of a copy. With `wide` (0 for ``.im2col::w``, 1 for ``.im2col::w::128``) the corners along w
    alone, for ``cuTensorMapEncodeIm2colWide``."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int
    wide: int | None = None


@dataclass(frozen=True)
class TensorMap:
    """What ``cuTensorMapEncodeTiled`` is given, innermost dimension first, or with `im2col` (and an empty box) what
    ``cuTensorMapEncodeIm2col`` is. Sizes and strides (bytes, one fewer) are ints or
    numbers known at launch, as data. With `nowhere` the argument has no elements, and the map is of memory of the launcher's."""

    argument: int | None
    base_offset: int
    dtype: str
    global_dim: tuple[Number, ...]
    global_strides: tuple[Number, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2_promotion: int
    oob_fill: int
    im2col: Im2col | None = None
    nowhere: bool = False

    @property
    def rank(self) -> int:
        return len(self.global_dim)

    def recipe(self) -> dict:
        """The map as plain data, for a launcher."""
        plain = lambda n: [plain(x) for x in n] if isinstance(n, tuple) else n
        walk = self.im2col
        moved = {"box": list(self.box)} if walk is None else {
            "lower": list(walk.lower), "upper": list(walk.upper), "channels": walk.channels, "pixels": walk.pixels,
            **({} if walk.wide is None else {"wide": walk.wide})}
        return {"argument": self.argument, "base_offset": self.base_offset, "dtype": self.dtype, "rank": self.rank,
                "dims": plain(self.global_dim), "strides": plain(self.global_strides), **moved,
                "element_strides": list(self.element_strides), "interleave": self.interleave, "swizzle": self.swizzle,
                "l2_promotion": self.l2_promotion, "oob_fill": self.oob_fill, "origin": "host", **({"nowhere": True} if self.nowhere else {})}


@dataclass(frozen=True)
class Run:
    """Digits that follow each other in one dimension and in shared memory; `cuts` are where they meet."""

    dim: int
    weight: int
    extent: int
    step: int
    cuts: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """A dimension of the box: `box` steps of `weight` elements along `dim`."""

    dim: int
    weight: int
    box: int
    step: int


@dataclass(frozen=True)
class Candidate:
    """A box: its groups innermost first, the digits that repeat it, and how many of its cuts are no digits' ends."""

    unit: int  # elements of the array in one of the map
    groups: tuple[Group, ...]
    loops: tuple[Group, ...]
    made_up: int

    @property
    def issues(self) -> int:
        return prod(g.box for g in self.loops)

    @property
    def cost(self) -> tuple:
        """Fewest instructions; but a cut of the search's own has to save more than half of them, since it asks for more
        of the array than the copy does, and dimensions kept whole are what a reader expects."""
        return self.issues * (2 if self.made_up else 1), self.made_up, self.unit, len(self.groups)


@dataclass(frozen=True)
class Boxes:
    """The plan's geometry. `issues` are (coordinates, shared byte offset) with constant starts included; `moving` gives
    for each dimension of the map its run-time part: None or (dimension of the buffer, factor, divisor)."""

    unit: int
    base_offset: int
    dims: tuple[Number, ...]
    strides: tuple[Number, ...]
    box: tuple[int, ...]
    issues: tuple[tuple[tuple[int, ...], int], ...]
    moving: tuple[tuple[int, int, int] | None, ...]
    width: int = 0  # columns of an instruction, of patches and rows


def search(view: View, ask: Callable[..., bool], *, promote: bool) -> Boxes | str:
    """The boxes that take the fewest instructions; a string says what is in the way of every one of them.

    `ask` answers facts of the launch; facts are asked only of boxes that are about to be chosen.
    """
    units = [unit for unit in (1, 2, 4, 8) if unit == 1 or (promote and unit * view.itemsize <= 8)]
    found = islice(chain.from_iterable(candidates(view, unit) for unit in units), SEARCHED)
    reason = "no box of it is a multiple of 16 bytes and contiguous on both sides"
    for candidate in sorted(found, key=lambda c: c.cost):
        if candidate.issues > MAX_ISSUES:
            break
        made = realised(view, candidate, ask)
        if not isinstance(made, str):
            return made
        reason = made
    else:
        return strides_in_the_way(view, ask) or reason
    return f"its boxes would take {candidate.issues} instructions, more than {MAX_ISSUES}"


def strides_in_the_way(view: View, ask: Callable[..., bool]) -> str | None:
    """What no choice of boxes could change: a stride that a tensor map cannot have."""
    for d, dim in enumerate(view.dims):
        if dim.stride != view.itemsize and dim.extent > 1 and not multiple(dim.stride, view.unit, ask):
            return f"the stride of dimension {d} is not known to be a multiple of {view.unit} bytes"
    return None


# -- boxes --------------------------------------------------------------------------------------------------------------

def runs_of(view: View, unit: int) -> list[Run] | None:
    """The chain: runs of digits by their step in shared memory. None where elements cannot be joined by `unit`."""
    runs = []
    for d, dim in enumerate(view.dims):
        for digit in reversed(dim.digits):
            last = runs[-1] if runs else None
            if last and last.dim == d and digit.weight == last.weight * last.extent and digit.step == last.step * last.extent:
                runs[-1] = Run(d, last.weight, last.extent * digit.extent, last.step, last.cuts + (last.extent,))
            else:
                runs.append(Run(d, digit.weight, digit.extent, digit.step, ()))
    runs.sort(key=lambda r: r.step)
    if not runs or runs[0].step != view.itemsize or runs[0].weight != 1 or view.dims[runs[0].dim].stride != view.itemsize:
        return None
    first = runs[0]
    if first.extent % unit:
        return None
    cuts = tuple(c // unit for c in first.cuts if c % unit == 0)
    runs[0] = Run(first.dim, unit, first.extent // unit, first.step * unit, cuts)
    return runs


def candidates(view: View, unit: int) -> Iterator[Candidate]:
    """Boxes made of prefixes of the chain. Only arithmetic: nothing is asked of the launch."""
    runs = runs_of(view, unit)
    if runs is None:
        return
    span = PADDED if view.padded else SPAN[view.mode]

    def extend(i: int, groups: tuple[Group, ...], made_up: int) -> Iterator[Candidate]:
        if groups:
            yield Candidate(unit, groups, tuple(Group(r.dim, r.weight, r.extent, r.step) for r in runs[i:]), made_up)
        if i == len(runs):
            return
        run = runs[i]
        for parts, own in cuttings(run, span if i == 0 else 0):
            new = groups + tuple(parts)
            if not packed(new, span):
                continue
            done = prod(g.box for g in parts)
            if done == run.extent:
                yield from extend(i + 1, new, made_up + own)
            else:
                rest = Group(run.dim, run.weight * done, run.extent // done, run.step * done)
                loops = (rest, *(Group(r.dim, r.weight, r.extent, r.step) for r in runs[i + 1:]))
                yield Candidate(unit, new, loops, made_up + own)

    yield from extend(0, (), 0)


def packed(groups: tuple[Group, ...], span: int) -> bool:
    """Whether the groups lie in shared memory as the box does: without gaps, and with rows pitched at the swizzle's span.

    The inner box is whole 16-byte units, and no wider than the span; a box is at most 228 KB.
    """
    inner = groups[0].box * groups[0].step
    if inner % 16 or (span and inner > span):
        return False
    pitch = max(inner, span)
    for group in groups[1:]:
        if group.step != pitch:
            return False
        pitch *= group.box
    return len(groups) <= MAX_RANK and inner * prod(g.box for g in groups[1:]) <= MAX_BOX_BYTES


def cuttings(run: Run, span: int) -> Iterator[tuple[list[Group], int]]:
    """Ways to put a run, or an inner part of it, into dimensions of at most 256: the groups, and how many cuts are new.

    `span` is the widest that the first group may be in bytes (0: any).
    """
    seen = set()
    first = min(MAX_BOX, span // run.step if span else MAX_BOX)
    edges = [*run.cuts, run.extent]
    for sizes in ([run.extent], _at_edges(edges, first), _divided(run.extent, first)):
        for n in range(len(sizes), 0, -1):
            part = tuple(sizes[:n])
            if part in seen or part[0] > first or max(part) > MAX_BOX or min(part) <= 1:
                continue
            seen.add(part)
            groups, weight, step = [], run.weight, run.step
            for box in part:
                groups.append(Group(run.dim, weight, box, step))
                weight, step = weight * box, step * box
            # A cut where digits meet is the copy's own, and so is one at the end of a swizzled row.
            at, new = 1, 0
            for box in part[:-1]:
                at *= box
                new += not (at in run.cuts or (span and at * run.step == span))
            yield groups, new


def _at_edges(edges: list[int], first: int) -> list[int]:
    """Group sizes that end at `edges` (ascending, each dividing the next), as large as they may be; where even the next
    edge is too far, the last group is as much of the way as divides it."""
    sizes, at = [], 1
    while at < edges[-1]:
        limit = MAX_BOX if sizes else first
        fitting = [e for e in edges if at < e <= at * limit]
        if not fitting:
            return [*sizes, largest(next(e for e in edges if e > at) // at, limit)]
        sizes.append(fitting[-1] // at)
        at = fitting[-1]
    return sizes


def _divided(extent: int, first: int) -> list[int]:
    """The extent as factors of at most 256, the largest divisors first; what has none is left over."""
    sizes = []
    while extent > 1:
        sizes.append(largest(extent, MAX_BOX if sizes else first))
        if sizes[-1] <= 1:
            return sizes[:-1]
        extent //= sizes[-1]
    return sizes


def largest(extent: int, limit: int) -> int:
    """The largest divisor of `extent` that is at most `limit`."""
    for n in range(min(extent, limit), 0, -1):
        if extent % n == 0:
            return n
    return 0


# -- from a box to a map --------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Piece:
    """A dimension of the map: a run of weights of a dimension of the array."""

    dim: int
    weight: int
    size: Number
    stride: Number
    box: int
    outermost: bool


def realised(view: View, candidate: Candidate, ask) -> Boxes | str:
    """The map of a candidate box, if its cuts and strides are right for this launch."""
    inner = candidate.groups[0].dim
    pieces: dict[tuple[int, int], Piece] = {}
    for d, dim in enumerate(view.dims):
        base = candidate.unit if d == inner else 1
        boxes = {g.weight: g.box for g in candidate.groups if g.dim == d}
        weights = sorted({base, *boxes})
        if not cut_fits(dim, weights[-1], ask):
            plural = "s" if candidate.issues != 1 else ""
            return (f"a box of {candidate.issues} instruction{plural} needs dimension {d} and its start in multiples of "
                    f"{weights[-1]} elements")
        for i, w in enumerate(weights):
            last = i + 1 == len(weights)
            pieces[d, w] = Piece(d, w, over(dim.size, w) if last else weights[i + 1] // w, dim.steps(w), boxes.get(w, 1), last)
    order = [pieces.pop((g.dim, g.weight)) for g in candidate.groups] + [p for _, p in sorted(pieces.items(), reverse=True)]
    base_offset = 0
    for piece in list(order[1:]):
        dim = view.dims[piece.dim]
        fixed = piece.outermost and piece.weight == 1 and dim.extent == 1 and dim.inside() and isinstance(dim.stride, int)
        foldable = fixed and dim.start.value * dim.stride % view.unit == 0
        if foldable and (len(order) > MAX_RANK or dim.stride % view.unit):
            base_offset += dim.start.value * dim.stride
            order.remove(piece)
    if len(order) > MAX_RANK:
        return f"the tensor map would have {len(order)} dimensions, more than {MAX_RANK}"
    for piece in order[1:]:
        if not multiple(piece.stride, view.unit, ask):
            return f"the stride of dimension {piece.dim} is not known to be a multiple of {view.unit} bytes"
    if view.padded and (order[0].box != PADDED or not multiple(order[0].size, PADDED, ask)):
        return f"padded elements need boxes with rows of {PADDED}, and an innermost dimension that is a multiple of that"
    return Boxes(candidate.unit, base_offset, tuple(p.size for p in order), tuple(encodable(p.stride) for p in order[1:]),
                 tuple(p.box for p in order), issues(view, candidate, order), tuple(moving(view, p) for p in order))


def encodable(stride: Number) -> Number:
    """A stride as the map has it: that of a dimension of one element may be anything, and the encoder wants a multiple of 16."""
    return stride if isinstance(stride, int) else ("mul", ("floordiv", ("min", ("max", stride, 0), MAX_STRIDE), 16), 16)


def cut_fits(dim: Dim, weight: int, ask) -> bool:
    """Whether a dimension may be cut into runs of `weight` elements: it is a multiple of them, or the region is known to
    lie in its whole runs; and the region begins at one."""
    if weight == 1:
        return True
    if not dim.start.multiple_of(weight):
        return False
    if isinstance(dim.size, int) and dim.inside(dim.size // weight * weight):
        return True
    return multiple(dim.size, weight, ask)


def moving(view: View, piece: Piece) -> tuple[int, int, int] | None:
    start = view.dims[piece.dim].start
    if start.value is not None or not piece.outermost:
        return None
    common = gcd(start.factor, piece.weight * start.over)
    return start.dim, start.factor // common, piece.weight * start.over // common


def issues(view: View, candidate: Candidate, order: list[Piece]) -> tuple:
    """Coordinates and shared offset of each instruction, in the order of the shared offsets."""
    origin = []
    for piece in order:
        start = view.dims[piece.dim].start.value
        origin.append(start // piece.weight if piece.outermost and start is not None else 0)
    made = [(tuple(origin), view.offset)]
    for loop in sorted(candidate.loops, key=lambda g: -g.step):
        mine = [p for p in order if p.dim == loop.dim and p.weight <= loop.weight]
        at = order.index(max(mine, key=lambda p: p.weight))
        each = loop.weight // order[at].weight
        made = [(c[:at] + (c[at] + j * each,) + c[at + 1:], offset + j * loop.step) for c, offset in made for j in range(loop.box)]
    return tuple(made)
