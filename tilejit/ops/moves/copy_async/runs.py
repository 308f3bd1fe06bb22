"""Finds the longest runs of elements that are contiguous on both sides of a copy, each of which one bulk copy can move.

The region's dimensions are split into digits, (extent, stride) factors as in a mixed-radix number, fine enough for
the layouts of both sides. Starting from stride 1, digits whose steps on both sides continue the run extend it; the
others enumerate the runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from ....dispatch import result_of
from ....types import Region, layout_of, strides_of
from ...tmem.multiples import Multiple
from .site import CopySite, finds
from .tma.view import Number, multiple, number, shared_digits, times

UNIT = 16            # bytes of which the size and the addresses of a bulk copy are multiples (PTX ISA, cp.async.bulk)
MAX_RUNS = 256       # instructions that a call may expand to


@dataclass(frozen=True)
class Digit:
    """`extent` steps of `weight` elements along dimension `dim` of the region; `steps` are the strides in memory of
    (destination, source), in elements."""

    dim: int
    extent: int
    weight: int
    steps: tuple[Number, Number]


@dataclass(frozen=True)
class Runs:
    """A region as `count` runs of `elements` elements, which `loops` enumerate.

    `offsets` are where the regions of (destination, source) start in their buffers, in elements before the swizzle:
    an int, or a Multiple if only a divisor is known; for arrays 0.
    """

    elements: int
    loops: tuple[Digit, ...]
    offsets: tuple[int | Multiple, int | Multiple]

    @property
    def count(self) -> int:
        return prod(d.extent for d in self.loops)

    def places(self, rank: int) -> list[tuple[tuple[int, ...], tuple]]:
        """For each run its coordinates in the region, and the offsets of its start from the region's start in
        (destination, source), in elements (None if a stride is known only at launch)."""
        made = []
        for index in product(*(range(d.extent) for d in self.loops)):
            at = [0] * rank
            for i, d in zip(index, self.loops):
                at[d.dim] += i * d.weight
            made.append((tuple(at), tuple(_distance(index, self.loops, side) for side in (0, 1))))
        return made


def _distance(index, loops, side: int) -> int | None:
    steps = [d.steps[side] for d in loops]
    return sum(i * s for i, s in zip(index, steps)) if all(isinstance(s, int) for s in steps) else None


def runs_of(site: CopySite) -> Runs | str:
    """The longest common runs of a site (memoised), or a string that says why there are none."""
    return site.memoize("runs", lambda: _search(site))


def _search(site: CopySite) -> Runs | str:
    sides = []
    for region in (site.dst, site.src):
        found = _side(site, region)
        if isinstance(found, str):
            return found
        sides.append(found)
    digits: list[Digit] = []
    for dim, (one, other) in enumerate(zip(sides[0][0], sides[1][0])):
        cut = refine_digits(one, other)
        if cut is None:
            return f"the layouts divide dimension {dim} of the region at different places"
        weight = 1
        for extent, *steps in cut:
            digits.append(Digit(dim, extent, weight, tuple(steps)))
            weight *= extent
    run, ask = 1, site.g.facts.ask
    while True:
        longer = next((d for d in digits
                       if all(is_equal(s, run, ask) for s in sorted(d.steps, key=lambda s: not isinstance(s, int)))),
                      None)
        if longer is None:
            break
        digits.remove(longer)
        run *= longer.extent
    loops = sorted(digits, key=lambda d: (d.dim, -d.weight))
    return Runs(run, tuple(loops), (sides[0][1], sides[1][1]))


def _side(site: CopySite, region: Region) -> tuple[list, int | Multiple] | str:
    """(digits (extent, step) of each dimension with an extent other than 1, outermost first;
    the region's offset in its buffer)."""
    if region.scope == "global":
        along = strides_of(region.buffer)
        strides = [number(along[d]) for d in site.dims(region)]
        return [[(n, s)] for n, s in zip(site.shape, strides)], 0
    starts = [getattr(s, "value", s) for s in site.starts(region)]
    found = shared_digits(layout_of(region.buffer), region.buffer.shape, starts, region.extents, site.g.divisor)
    if isinstance(found, str):
        return found
    per_dim, offset = found
    return [per_dim[d] for d in site.dims(region)], offset


def refine_digits(one: list, other: list) -> list[tuple] | None:
    """The common refinement of two lists of digits of one dimension: digits (extent, step in `one`, step in
    `other`), innermost first.

    The arguments are (extent, step) digits, outermost first. None if their boundaries do not nest.
    """
    left, right, cut = list(one), list(other), []
    while left and right:
        (n, s), (m, t) = left.pop(), right.pop()
        k = min(n, m)
        if n % k or m % k:
            return None
        cut.append((k, s, t))
        if n > k:
            left.append((n // k, times(s, k)))
        if m > k:
            right.append((m // k, times(t, k)))
    return cut


def is_equal(a: Number, n: int, ask: Callable[..., bool]) -> bool:
    """Whether a step equals `n`. A step that is not known at compile time becomes a fact of the launch."""
    if isinstance(a, int):
        return a == n
    if a[0] == "mul":
        return n % a[2] == 0 and is_equal(a[1], n // a[2], ask)
    return a[0] == "stride" and ask("stride_is", a[1], a[2], n)


# -- needs that bulk copies share --------------------------------------------------------------------------------------

found = finds(runs_of)


def whole_units(s: CopySite) -> bool | str:
    nbytes = result_of(runs_of(s)).elements * s.itemsize
    return nbytes % UNIT == 0 or f"runs of {nbytes} bytes"


def has_few_runs(s: CopySite) -> bool | str:
    runs = result_of(runs_of(s))
    return runs.count <= MAX_RUNS or f"{runs.count} runs of {runs.elements * s.itemsize} bytes"


def has_aligned_runs(s: CopySite) -> bool | str:
    """Whether every run starts at a multiple of 16 bytes on both sides."""
    runs, itemsize = result_of(runs_of(s)), s.itemsize
    unit = UNIT // gcd(UNIT, itemsize)
    for side, (region, align) in enumerate(((s.dst, s.dst_align), (s.src, s.src_align))):
        what = ("destination", "source")[side]
        for d in runs.loops:
            if not multiple(d.steps[side], unit, s.g.facts.ask):
                known = isinstance(d.steps[side], int)
                apart = "not known to be a multiple of 16 bytes apart"
                if known:
                    apart = f"{d.steps[side] * itemsize} bytes apart"
                return f"runs of the {what} are {apart}"
        if region.scope == "global":
            reason = _array_aligned(s, region, unit)
            if reason is not None:
                return reason
        elif align % UNIT or runs.offsets[side] % unit:
            at = runs.offsets[side]
            return (f"the {what} begins at "
                    + (f"byte {at * itemsize}" if isinstance(at, int) else f"a multiple of {at.of * itemsize} bytes"))
    return True


def _array_aligned(s: CopySite, region: Region, unit: int) -> str | None:
    ask = s.g.facts.ask
    if not ask("aligned", region.buffer.arg, UNIT):
        return "the array's address is no multiple of 16 bytes"
    for d, (start, stride) in enumerate(zip(s.starts(region), strides_of(region.buffer))):
        divisor = getattr(start, "value", None)
        if divisor is None:
            divisor = s.g.asked_divisor(start, unit) if stride == 1 else s.g.divisor(start)
        if divisor and not multiple(times(number(stride), abs(int(divisor))), unit, ask):
            return f"the start along dimension {d} is not known to be a multiple of 16 bytes"
    return None


def in_bounds(s: CopySite) -> bool | str:
    """Whether the region is provably inside the array, since bulk copies do not clip."""
    if s.array.buffer.narrowed is not None:
        return "a window, whose bounds are not the array's"
    for d, (size, start, extent) in enumerate(zip(s.array.buffer.shape, s.starts(s.array), s.array.extents)):
        low, high = s.g.bounds(start)
        if low is None:
            return f"the start along dimension {d} is not known to be at least 0"
        if low < 0:
            return f"the start along dimension {d} is {low}"
        if high is None:
            return f"the start along dimension {d} has no known upper bound"
        if isinstance(size, int):
            inside = high + extent <= size
        else:
            inside = s.g.facts.ask("size_at_least", size.arg, size.dim, high + extent)
        if not inside:
            return f"elements up to {high + extent} of dimension {d}, which has {size}"
    return True


# -- emission ----------------------------------------------------------------------------------------------------------

class ArrayRegion:
    """Emits addresses in a region of an array. The address of its first element is computed once, in 64 bits.

    `bounds` are the dimensions to check.
    """

    def __init__(self, e, region, bounds: tuple[int, ...] = ()):
        self.e, self.region, self.bounds = e, region, bounds
        buffer = region.buffer
        self.nbytes = buffer.type.dtype.nbytes
        offset = e.sum64(e.mul64(start, stride) for start, stride in zip(region.starts, buffer.strides))
        self.first = e.offset_pointer(buffer.pointer, offset, self.nbytes)

    def place(self, at):
        """(address of an element, condition that it is in bounds or None). `at` are its coordinates in the region,
        along the dimensions with an extent other than 1."""
        e, region, own = self.e, self.region, iter(at)
        inner = [next(own) if n != 1 else 0 for n in region.type.extents]
        inside = e.all_of([e.inside(region.buffer, d, region.starts[d] + inner[d]) for d in self.bounds])
        moved = e.sum64(e.mul64(c,
                                s) for c, s in zip(inner, region.buffer.strides) if not (isinstance(c, int) and c == 0))
        return e.offset_pointer(self.first, moved, self.nbytes), inside
