"""Finds the tensor map and the boxes that copy a region with the fewest ``cp.async.bulk.tensor`` instructions.

A map has up to five dimensions with sizes and byte strides, the innermost contiguous. One instruction copies a box of
it, which is packed in shared memory, innermost dimension first. PTX ISA, "Tensors"; CUDA Driver API,
``cuTensorMapEncodeTiled``.

The dimensions of the region are split into digits, (extent, step) factors as in a mixed-radix number. Sorted by their
step in shared memory, they form a chain. A prefix of the chain that is packed like a box becomes the box; the other
digits enumerate the instructions. A digit in the box splits a dimension of the array into two of the map (rows of K
elements in swizzle atoms of 64: K/64 by 64). That is correct only if the dimension is a multiple of the split, which
becomes a fact asked of the launch. Where it does not hold, the dimension stays whole, so that a box at the ragged
edge of a row never reads from the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from math import gcd, prod
from typing import Any, NamedTuple, Protocol

from .view import PADDED, Dim, Number, View, divide, multiple

MAX_RANK, MAX_BOX, MAX_BOX_BYTES, MAX_ISSUES = 5, 256, 233_472, 256
SPAN = (0, 32, 64, 128)  # bytes of a swizzled row, by swizzle mode
MAX_STRIDE = 2**40 - 16  # largest stride of a tensor map, in bytes (CUDA driver API, cuTensorMapEncodeTiled)
PROMOTED = {2: "uint16", 4: "uint32", 8: "uint64"}  # element type of a map that joins several elements, by its bytes
SEARCHED = 64            # candidate boxes to consider at most; none of 100 000 random layouts had more than 32


@dataclass(frozen=True)
class Im2col:
    """The arguments of ``cuTensorMapEncodeIm2col`` that replace the box.

    `lower` and `upper` are the corners of the pixel box (w first, then h, ...), `channels` and `pixels` the extents
    of a copy. With `wide` (0 for ``.im2col::w``, 1 for ``.im2col::w::128``), the corners are those along w only, for
    ``cuTensorMapEncodeIm2colWide``.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int
    wide: int | None = None


@dataclass(frozen=True)
class TensorMap:
    """The arguments of ``cuTensorMapEncodeTiled``, innermost dimension first; with `im2col` (and an empty box), of
    ``cuTensorMapEncodeIm2col``.

    Sizes, and strides in bytes (of all dimensions but the innermost), are ints or expressions that the launch
    evaluates (`Number`). With `nowhere`, the array has no elements, and the map covers memory of the launcher
    instead.
    """

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
        def as_lists(n):
            return [as_lists(x) for x in n] if isinstance(n, tuple) else n
        walk = self.im2col
        if walk is None:
            moved: dict[str, Any] = {"box": list(self.box)}
        else:
            moved = {"lower": list(walk.lower), "upper": list(walk.upper), "channels": walk.channels,
                     "pixels": walk.pixels, **({} if walk.wide is None else {"wide": walk.wide})}
        return {"argument": self.argument, "base_offset": self.base_offset, "dtype": self.dtype, "rank": self.rank,
                "dims": as_lists(self.global_dim), "strides": as_lists(self.global_strides), **moved,
                "element_strides": list(self.element_strides), "interleave": self.interleave, "swizzle": self.swizzle,
                "l2_promotion": self.l2_promotion, "oob_fill": self.oob_fill, "origin": "host",
                **({"nowhere": True} if self.nowhere else {})}


class Run(NamedTuple):
    """Adjacent digits of one dimension that also continue each other in shared memory;
    `cuts` are the boundaries between them."""

    dim: int
    weight: int
    extent: int
    step: int
    cuts: tuple[int, ...]


class Group(NamedTuple):
    """A dimension of the box, or a loop over boxes: `box` steps of `weight` elements along `dim`, `step` bytes apart
    in shared memory."""

    dim: int
    weight: int
    box: int
    step: int


class Candidate(NamedTuple):
    """A possible box: its `groups`, innermost first, the `loops` that repeat it, and the number of its cuts that the
    search `made_up`, which are not boundaries of digits."""

    unit: int  # elements of the array per element of the map
    groups: tuple[Group, ...]
    loops: tuple[Group, ...]
    made_up: int

    @property
    def issues(self) -> int:
        return prod(g.box for g in self.loops)

    @property
    def cost(self) -> tuple:
        """The sort key: fewest instructions first. A made-up cut must save more than half of the instructions, since
        it requires more of the array than the copy itself does, and readers expect dimensions that are kept whole."""
        return self.issues * (2 if self.made_up else 1), self.made_up, self.unit, len(self.groups)


class Issued(Protocol):
    """The instructions of a copy and the run-time part of their coordinates, as in `Boxes`."""

    @property
    def issues(self) -> tuple[tuple[tuple[int, ...], int], ...]: ...
    @property
    def moving(self) -> tuple[tuple[int, int, int] | None, ...]: ...


@dataclass(frozen=True)
class Boxes:
    """A map and its instructions: `issues` are (coordinates, byte offset in shared memory),
    which include constant starts.

    `moving` is the run-time part of the coordinates for each dimension of the map: None, or (dimension of the
    array, factor, divisor).
    """

    unit: int
    base_offset: int
    dims: tuple[Number, ...]
    strides: tuple[Number, ...]
    box: tuple[int, ...]
    issues: tuple[tuple[tuple[int, ...], int], ...]
    moving: tuple[tuple[int, int, int] | None, ...]
    width: int = 0  # columns per instruction, for patches and selected rows


def search(view: View, ask: Callable[..., bool], *, promote: bool) -> Boxes | str:
    """The boxes that take the fewest instructions, or a string that says why there are none.

    `ask` answers facts about the launch, which become guards of the kernel; they are asked only for the next best
    candidate. With `promote`, a map may join 2, 4 or 8 elements to a wider one.
    """
    units = [unit for unit in (1, 2, 4, 8) if unit == 1 or (promote and unit * view.itemsize <= 8)]
    found = islice(chain.from_iterable(candidates(view, unit) for unit in units), SEARCHED)
    reason = "no box of it is a multiple of 16 bytes and contiguous on both sides"
    for candidate in sorted(found, key=lambda c: c.cost):
        if candidate.issues > MAX_ISSUES:
            break
        made = realise(view, candidate, ask)
        if not isinstance(made, str):
            return made
        reason = made
    else:
        return strides_in_the_way(view, ask) or reason
    return f"its boxes would take {candidate.issues} instructions, more than {MAX_ISSUES}"


def strides_in_the_way(view: View, ask: Callable[..., bool]) -> str | None:
    """The failure that no choice of boxes could avoid, a stride that a tensor map cannot have;
    None if there is none."""
    for d, dim in enumerate(view.dims):
        if dim.stride != view.itemsize and dim.extent > 1 and not multiple(dim.stride, view.unit, ask):
            return f"the stride of dimension {d} is not known to be a multiple of {view.unit} bytes"
    return None


# -- boxes -------------------------------------------------------------------------------------------------------------

def runs_of(view: View, unit: int) -> list[Run] | None:
    """The chain: runs of digits, sorted by their step in shared memory, the first in units of `unit` elements.

    None if its first run is not contiguous in both memories or not a multiple of `unit`.
    """
    runs: list[Run] = []
    for d, dim in enumerate(view.dims):
        for digit in reversed(dim.digits):
            last = runs[-1] if runs else None
            if (last and last.dim == d and digit.weight == last.weight * last.extent
                and digit.step == last.step * last.extent):
                runs[-1] = Run(d, last.weight, last.extent * digit.extent, last.step, last.cuts + (last.extent,))
            else:
                runs.append(Run(d, digit.weight, digit.extent, digit.step, ()))
    runs.sort(key=lambda r: r.step)
    if (not runs or runs[0].step != view.itemsize or runs[0].weight != 1
        or view.dims[runs[0].dim].stride != view.itemsize):
        return None
    first = runs[0]
    if first.extent % unit:
        return None
    cuts = tuple(c // unit for c in first.cuts if c % unit == 0)
    runs[0] = Run(first.dim, unit, first.extent // unit, first.step * unit, cuts)
    return runs


def candidates(view: View, unit: int) -> Iterator[Candidate]:
    """Yield the boxes that prefixes of the chain form. No facts are asked of the launch."""
    runs = runs_of(view, unit)
    if runs is None:
        return
    span = PADDED if view.padded else SPAN[view.swizzle]

    def extend(i: int, groups: tuple[Group, ...], made_up: int) -> Iterator[Candidate]:
        if groups:
            yield Candidate(unit, groups, tuple(Group(r.dim, r.weight, r.extent, r.step) for r in runs[i:]), made_up)
        if i == len(runs):
            return
        run = runs[i]
        for parts, own in cuttings(run, span if i == 0 else 0):
            new = groups + tuple(parts)
            if not is_gapless(new, span):
                continue
            done = prod(g.box for g in parts)
            if done == run.extent:
                yield from extend(i + 1, new, made_up + own)
            else:
                rest = Group(run.dim, run.weight * done, run.extent // done, run.step * done)
                loops = (rest, *(Group(r.dim, r.weight, r.extent, r.step) for r in runs[i + 1:]))
                yield Candidate(unit, new, loops, made_up + own)

    yield from extend(0, (), 0)


def is_gapless(groups: tuple[Group, ...], span: int) -> bool:
    """Whether the groups are laid out in shared memory like a box: without gaps,
    and with the swizzle's span as the pitch of rows.

    The innermost group must be a multiple of 16 bytes and no wider than the span, and the box at most 228 KB.
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
    """Yield the ways to divide a run, or an inner part of it, into box dimensions of at most 256: (groups,
    number of made-up cuts).

    `span` limits the bytes of the first group (0: no limit).
    """
    seen = set()
    first = min(MAX_BOX, span // run.step if span else MAX_BOX)
    edges = [*run.cuts, run.extent]
    for sizes in ([run.extent], _at_edges(edges, first), _divide_extent(run.extent, first)):
        for n in range(len(sizes), 0, -1):
            part = tuple(sizes[:n])
            if part in seen or part[0] > first or max(part) > MAX_BOX or min(part) <= 1:
                continue
            seen.add(part)
            groups, weight, step = [], run.weight, run.step
            for box in part:
                groups.append(Group(run.dim, weight, box, step))
                weight, step = weight * box, step * box
            # Cuts at boundaries of digits, and at the end of a swizzled row, are not made up.
            at, new = 1, 0
            for box in part[:-1]:
                at *= box
                new += not (at in run.cuts or (span and at * run.step == span))
            yield groups, new


def _at_edges(edges: list[int], first: int) -> list[int]:
    """Group sizes that end at `edges` (ascending, each dividing the next), each as large as possible.

    If even the next edge is too far for one group, the last size is the largest divisor of the way to it.
    """
    sizes: list[int] = []
    at = 1
    while at < edges[-1]:
        limit = MAX_BOX if sizes else first
        fitting = [e for e in edges if at < e <= at * limit]
        if not fitting:
            return [*sizes, largest_divisor(next(e for e in edges if e > at) // at, limit)]
        sizes.append(fitting[-1] // at)
        at = fitting[-1]
    return sizes


def _divide_extent(extent: int, first: int) -> list[int]:
    """Factors of the extent of at most 256 (the first at most `first`), each the largest possible; a rest without
    such factors is dropped."""
    sizes: list[int] = []
    while extent > 1:
        sizes.append(largest_divisor(extent, MAX_BOX if sizes else first))
        if sizes[-1] <= 1:
            return sizes[:-1]
        extent //= sizes[-1]
    return sizes


def largest_divisor(extent: int, limit: int) -> int:
    """The largest divisor of `extent` that is at most `limit`; 0 if there is none."""
    for n in range(min(extent, limit), 0, -1):
        if extent % n == 0:
            return n
    return 0


# -- from a box to a map -----------------------------------------------------------------------------------------------

class Piece(NamedTuple):
    """A dimension of the map: one part of the dimension `dim` of the array, in steps of `weight` elements."""

    dim: int
    weight: int
    size: Number
    stride: Number
    box: int
    outermost: bool


def realise(view: View, candidate: Candidate, ask) -> Boxes | str:
    """The map and the instructions of a candidate, or a string that says why its cuts or strides do not
    suit this launch."""
    pieces: dict[tuple[int, int], Piece] = {}
    for d, dim in enumerate(view.dims):
        cut = _cut(d, dim, candidate)
        weight = cut[-1].weight
        if not cut_fits(dim, weight, ask):
            plural = "s" if candidate.issues != 1 else ""
            return (f"a box of {candidate.issues} instruction{plural} needs dimension {d} and its start in multiples "
                    f"of {weight} elements")
        pieces |= {(d, piece.weight): piece for piece in cut}
    order = ([pieces.pop((g.dim, g.weight)) for g in candidate.groups]
             + [p for _, p in sorted(pieces.items(), reverse=True)])
    base_offset = _fold_fixed(view, order)
    if len(order) > MAX_RANK:
        return f"the tensor map would have {len(order)} dimensions, more than {MAX_RANK}"
    for piece in order[1:]:
        if not multiple(piece.stride, view.unit, ask):
            return f"the stride of dimension {piece.dim} is not known to be a multiple of {view.unit} bytes"
    if view.padded and (order[0].box != PADDED or not multiple(order[0].size, PADDED, ask)):
        return (f"padded elements need boxes with rows of {PADDED}, and an innermost dimension that is a "
                "multiple of that")
    return Boxes(candidate.unit, base_offset, tuple(p.size for p in order),
                 tuple(encodable_stride(p.stride) for p in order[1:]),
                 tuple(p.box for p in order), issues(view, candidate, order),
                 tuple(runtime_coordinate(view, p) for p in order))


def _cut(d: int, dim: Dim, candidate: Candidate) -> list[Piece]:
    """The pieces of dimension `d` of the view, from the innermost to the outermost, that the candidate's box needs."""
    base = candidate.unit if d == candidate.groups[0].dim else 1
    boxes = {g.weight: g.box for g in candidate.groups if g.dim == d}
    weights = sorted({base, *boxes})
    inner = [Piece(d, w, following // w, dim.steps(w), boxes.get(w, 1), False) for w, following in pairwise(weights)]
    last = weights[-1]
    return [*inner, Piece(d, last, divide(dim.size, last), dim.steps(last), boxes.get(last, 1), True)]


def _fold_fixed(view: View, order: list[Piece]) -> int:
    """Take from `order` the dimensions of which the box holds one fixed element, where the map has too many or cannot
    encode their stride; the bytes by which their elements move the map's base."""
    base_offset = 0
    for piece in order[1:]:
        dim = view.dims[piece.dim]
        fixed = piece.outermost and piece.weight == 1 and dim.extent == 1 and dim.inside()
        if not fixed or not isinstance(dim.stride, int) or dim.start.value is None:
            continue
        offset = dim.start.value * dim.stride
        if offset % view.unit == 0 and (len(order) > MAX_RANK or dim.stride % view.unit):
            base_offset += offset
            order.remove(piece)
    return base_offset


def encodable_stride(stride: Number) -> Number:
    """A run-time stride made acceptable to the encoder: rounded down to a multiple of 16 and clamped.

    That only changes the stride of a dimension of one element, which can be arbitrary and does not matter.
    """
    if isinstance(stride, int):
        return stride
    return ("mul", ("floordiv", ("min", ("max", stride, 0), MAX_STRIDE), 16), 16)


def cut_fits(dim: Dim, weight: int, ask) -> bool:
    """Whether a dimension may be split into blocks of `weight` elements.

    The region must start at a block, and either the dimension is a multiple of a block or the region is known to
    lie in whole blocks.
    """
    if weight == 1:
        return True
    if not dim.start.multiple_of(weight):
        return False
    if isinstance(dim.size, int) and dim.inside(dim.size // weight * weight):
        return True
    return multiple(dim.size, weight, ask)


def runtime_coordinate(view: View, piece: Piece) -> tuple[int, int, int] | None:
    """The run-time part of the coordinate along a dimension of the map (see `Boxes`); None if the start is constant."""
    start = view.dims[piece.dim].start
    if start.value is not None or not piece.outermost:
        return None
    common = gcd(start.factor, piece.weight * start.over)
    return start.dim, start.factor // common, piece.weight * start.over // common


def issues(view: View, candidate: Candidate, order: list[Piece]) -> tuple:
    """(coordinates, byte offset in shared memory) of each instruction, ordered by the offset."""
    origin = []
    for piece in order:
        start = view.dims[piece.dim].start.value
        origin.append(start // piece.weight if piece.outermost and start is not None else 0)
    made = [(tuple(origin), view.offset)]
    for loop in sorted(candidate.loops, key=lambda g: -g.step):
        mine = [p for p in order if p.dim == loop.dim and p.weight <= loop.weight]
        at = order.index(max(mine, key=lambda p: p.weight))
        each = loop.weight // order[at].weight
        made = [(c[:at] + (c[at] + j * each,) + c[at + 1:], offset + j * loop.step) for c, offset in made
                for j in range(loop.box)]
    return tuple(made)
