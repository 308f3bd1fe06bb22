"""The planner of tcgen05_cp: which shape moves a region of shared memory to tensor memory, and in how many copies.

Both layouts are cut into common digits. Those that make up one copy's rows and columns have to lie as the shape and the matrix
descriptor say; the others repeat the copy. PTX ISA, "tcgen05.cp".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from ..tmem.descriptor import SharedDescriptor
from ..tmem.fragments import digits_of
from .shapes import DECOMPRESSED, SHAPES, Shape
from .site import CopySite
from .tma_view import Multiple, shared_digits, swizzle_mode

ATOM = 8   # rows that a swizzle mixes
UNIT = 16  # bytes that it keeps together


@dataclass(frozen=True)
class Plan:
    """Copies of `shape`. `ldo` and `sdo` are the descriptor's fields, in units of 16 bytes, and `swizzle` its mode's number.
    `issues` are (tensor-memory address, byte in shared memory) of each copy, relative to where the two buffers begin; or to
    where the regions do, on a side that `moves`, known at run time only: (tensor, shared)."""

    shape: str
    multicast: str
    cta_group: int
    ldo: int
    sdo: int
    swizzle: int
    places: tuple[tuple[int, int], ...]
    moves: tuple[bool, bool]
    decompress: str | None = None

    completion = "commit"

    @property
    def issues(self) -> list[tuple[int, int]]:
        return list(self.places)

    @property
    def instructions(self) -> int:
        return len(self.places)

    @property
    def descriptor(self) -> SharedDescriptor:
        return SharedDescriptor(16 << self.swizzle if self.swizzle else 0, self.ldo * 16, self.sdo * 16)

    @property
    def form(self) -> Shape:
        return next(s for s in SHAPES if (s.name, s.multicast) == (self.shape, self.multicast))


@dataclass(frozen=True)
class Digit:
    """`extent` steps: `shared` bytes in shared memory, and `lane` lanes or `column` bytes in tensor memory."""

    extent: int
    shared: int
    lane: int
    column: int

    def cut(self, inner: int) -> tuple["Digit", "Digit"]:
        """The outer and the inner part, of `inner` steps."""
        return (Digit(self.extent // inner, self.shared * inner, self.lane * inner, self.column * inner),
                Digit(inner, self.shared, self.lane, self.column))


def common(site: CopySite) -> tuple[list[Digit], int | Multiple, dict] | str:
    """The digits of both sides, the byte of the shared buffer at which the region begins, before the swizzle, and where in tensor
    memory the other begins; a string says what is in the way."""
    shared, tensor = site.src, site.dst
    read = digits_of(tensor, site.dst_starts, site.g.divisor)
    if isinstance(read, str):
        return read
    starts = [s.value if hasattr(s, "value") else s for s in site.src_starts]
    found = shared_digits(shared.buffer.layout, shared.buffer.shape, starts, shared.extents, site.g.divisor)
    if isinstance(found, str):
        return found
    moved = [found[0][d] for d in site.dims(shared)]
    into = [part for part, n in zip(read[0], tensor.shape) if n != 1]
    digits = []
    for one, other in zip(moved, into):
        refined = _refined(one, other, site.itemsize)
        if refined is None:
            return "the two layouts are cut differently"
        digits += refined
    return digits, found[1] * site.itemsize, read[1]


def _refined(shared: list, tensor: list, nbytes: int) -> list[Digit] | None:
    """Digits that both lists (of (extent, stride) and (extent, stride, axis), outermost first) are made of."""
    shared, tensor, made = [list(d) for d in shared], [list(d) for d in tensor], []
    while shared and tensor:
        (n, step), (m, stride, along) = shared[-1], tensor[-1]
        inner = gcd(n, m)
        if inner == 1 and n != m:
            return None
        lane, column = (stride, 0) if along == "TLane" else (0, stride * nbytes)
        made.insert(0, Digit(inner, step * nbytes, lane, column))
        for side, digit in ((shared, [n // inner, step * inner]), (tensor, [m // inner, stride * inner, along])):
            side.pop()
            if digit[0] > 1:
                side.append(digit)
    return None if shared or tensor else made


def search(site: CopySite, cta_group: int) -> Plan | str:
    """The first shape that moves the regions; a string has each shape's reason."""
    found = common(site)
    if isinstance(found, str):
        return found
    asked, multicast = site.options.get("shape"), site.options.get("multicast")
    replicas = tuple(sorted((n, s) for n, s, along in site.dst.buffer.layout.replicas if n != 1))
    if any(along != "TLane" for _, _, along in site.dst.buffer.layout.replicas):
        return "replicas along columns"
    reasons = []
    for shape in SHAPES:
        if (asked and shape.name != asked) or (isinstance(multicast, str) and shape.multicast != multicast):
            continue
        made = fitted(shape, site, *found, replicas)
        if not isinstance(made, str):
            return Plan(shape.name, shape.multicast, cta_group, *made, DECOMPRESSED.get(site.src.dtype.padded))
        reasons.append(f"{shape.text}: {made}")
    return "; ".join(reasons) or f"{asked or 'no shape'} has {'no' if asked else 'the'} multicast {multicast!r}"


def fitted(shape: Shape, site: CopySite, digits: list[Digit], begin, offset: dict, replicas) -> tuple | str:
    """(ldo, sdo, swizzle, issues) of the copies of one shape; a string says why they do not make up the region."""
    if replicas != tuple(sorted(shape.replica)):
        shown = " + ".join(f"R[{n} : {s} @ axis.TLane]" for n, s in replicas) or "none"
        wanted = " + ".join(f"R[{n} : {s} @ axis.TLane]" for n, s in shape.replica) or "none"
        return f"the replica is {shown}, not {wanted}"
    parts = _parted(shape, digits)
    if isinstance(parts, str):
        return parts
    rows, columns, middles = parts
    mode = swizzle_mode(site.src.buffer.layout, site.itemsize)
    if mode is None:
        return f"the swizzle {site.src.buffer.layout.swizzle} is none of the descriptor's"
    steps = _steps(shape, rows, columns, mode)
    if isinstance(steps, str):
        return steps
    leading, stride = steps
    return _placed(shape, middles, begin, offset, mode, leading, stride, site)


def _parted(shape: Shape, digits: list[Digit]) -> tuple | str:
    """The digits that are a copy's rows, those that are its columns, and the rest."""
    rows, columns, middles = [], [], []
    for digit in digits:
        if digit.lane:
            inside = next(((n, s) for n, s in shape.lanes if s <= digit.lane < n * s), None)
            if inside is None:
                middles.append(digit)
                continue
            room = inside[0] * inside[1] // digit.lane
            if digit.extent > room:
                if digit.extent % room:
                    return f"{digit.extent} rows cross its {shape.rows}"
                outer, digit = digit.cut(room)
                middles.append(outer)
            rows.append(digit)
        elif digit.column < shape.width:
            room = shape.width // digit.column
            if digit.extent > room:
                if digit.extent % room:
                    return f"{digit.extent * digit.column} bytes along the columns are no multiple of its {shape.width}"
                outer, digit = digit.cut(room)
                middles.append(outer)
            columns.append(digit)
        else:
            middles.append(digit)
    if prod(d.extent for d in rows) != shape.rows:
        return f"{prod(d.extent for d in rows)} rows lie as its {shape.rows} do"
    inner = min((d.column for d in columns), default=shape.width)
    if prod(d.extent for d in columns) * inner != shape.width:
        return f"{prod(d.extent for d in columns) * inner} bytes lie side by side in the columns, and it moves {shape.width}"
    return rows, columns, middles


def _steps(shape: Shape, rows: list[Digit], columns: list[Digit], mode: int) -> tuple[int, int] | str:
    """The descriptor's two byte offsets for rows and columns that lie like this in shared memory."""
    by_lane = {sum(i * d.lane for i, d in zip(at, rows)): sum(i * d.shared for i, d in zip(at, rows))
               for at in product(*(range(d.extent) for d in rows))}
    at = [by_lane.get(shape.lane(r)) for r in range(shape.rows)]
    if None in at:
        return "its rows go to other lanes"
    pitch = at[1] - at[0]
    if pitch != UNIT << mode:
        return f"rows are {pitch} bytes apart, and {UNIT << mode} in this swizzle"
    stride = at[ATOM] - at[0] if shape.rows > ATOM else 0
    if any(a != at[0] + r % ATOM * pitch + r // ATOM * stride for r, a in enumerate(at)):
        return "its rows are not in groups of 8 at one distance"
    if stride % UNIT or not 0 <= stride < 1 << 18 or (mode and stride % (ATOM * pitch)):
        return f"groups of 8 rows are {stride} bytes apart, and the descriptor needs a multiple of {ATOM * pitch if mode else UNIT} below 2^18"
    by_column = {sum(i * d.column for i, d in zip(at, columns)): sum(i * d.shared for i, d in zip(at, columns))
                 for at in product(*(range(d.extent) for d in columns))}
    unit = min((d.column for d in columns), default=UNIT)
    units = [by_column.get(u * UNIT) for u in range(shape.width // UNIT)]
    if None in units or any(by_column.get(u * UNIT + b) != start + b for u, start in enumerate(units) for b in range(0, UNIT, unit)):
        return "16 bytes of the columns are not side by side in shared memory"
    leading = 0
    if len(units) == 2:
        leading = units[1] - units[0]
        if mode and leading != UNIT:
            return f"its two units of 16 bytes are {leading} apart in a swizzle, and lie side by side"
        if leading % UNIT or not 0 <= leading < 1 << 18:
            return f"its two units of 16 bytes are {leading} apart, and the descriptor needs a multiple of 16 below 2^18"
    return leading, stride


def _placed(shape: Shape, middles: list[Digit], begin, offset: dict, mode: int, leading: int, stride: int, site: CopySite) -> tuple | str:
    """The plan's numbers, once every copy is known to begin where it may."""
    lane, column = offset.get("TLane", 0), offset.get("TCol", 0)
    if not isinstance(lane, int):
        return "the lane in which it begins is known at run time only"
    if (column if isinstance(column, int) else column.of) * site.itemsize % UNIT:
        return f"it begins at byte {column * site.itemsize if isinstance(column, int) else '?'} of the columns, and copies begin at multiples of 16"
    if lane - lane % 32 and shape.rows != 4 or shape.rows != 4 and lane:
        return f"it begins in lane {lane}, and copies of {shape.name} begin in lane 0"
    pitch = UNIT << mode
    atom = ATOM * pitch if mode else UNIT
    if site.src_align % atom:
        return f"the buffer is aligned to {site.src_align} bytes, and {atom} are needed"
    if not isinstance(begin, int) and begin.of % atom:
        return f"it begins at a multiple of {begin.of} bytes of shared memory, and {atom} are needed"
    middles = sorted(middles, key=lambda d: (not d.lane, -d.lane, -d.column))
    first = begin if isinstance(begin, int) else 0
    issues = []
    for index in product(*(range(d.extent) for d in reversed(middles))):
        index = index[::-1]
        at = first + sum(i * d.shared for i, d in zip(index, middles))
        inside = not mode or (at % pitch + shape.width <= pitch and at % atom // pitch + min(shape.rows, ATOM) <= ATOM)
        if at % UNIT or not inside:
            inside = f"byte {at % atom} of the {atom} that its swizzle mixes" if mode else f"byte {at}"
            return f"a copy would begin at {inside}"
        into = sum(i * d.lane for i, d in zip(index, middles)) << 16 | sum(i * d.column for i, d in zip(index, middles)) // 4
        if sum(i * d.column for i, d in zip(index, middles)) % UNIT:
            return "a copy would begin inside 16 bytes of the columns"
        issues.append((into, at))
    moves = not isinstance(column, int), not isinstance(begin, int)
    base = 0 if moves[0] else lane << 16 | column * site.itemsize // 4
    return leading // UNIT, stride // UNIT, mode, tuple((into + base, at) for into, at in issues), moves


__all__ = ["Plan", "search"]
