"""Plans tcgen05_cp: the shape that copies a region of shared memory to tensor memory, and its instructions.

Both layouts are split into common digits, (extent, strides) factors as in a mixed-radix number. The digits that form
the rows and columns of one instruction must match the shape and the matrix descriptor; the others enumerate the
instructions. PTX ISA, "tcgen05.cp".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from ....layout import axis
from ....types import layout_of
from ...tmem.descriptor import SharedDescriptor
from ...tmem.ldst_plan import digits_of
from ...tmem.multiples import Multiple
from .shapes import DECOMPRESSED, SHAPES, Shape
from .site import CopySite
from .tma.view import shared_digits, swizzle_mode

ATOM = 8   # rows of a swizzle atom
UNIT = 16  # bytes that a swizzle keeps together
# offsets in bytes must be less: they have 14 bits, in units of 16 (PTX ISA, "Shared memory descriptor")
FARTHEST = 1 << 18


@dataclass(frozen=True)
class Plan:
    """Instructions of one shape.

    `ldo` and `sdo` are the leading and stride dimension offsets of the descriptor, in units of 16 bytes, and
    `swizzle` is its mode (0 none, 1, 2, 3 for 32, 64, 128 bytes). `places` (also `issues`) are (tensor-memory
    address, byte in shared memory) of each instruction, relative to the two buffers. On a side that `moves` (tensor,
    shared), whose start is known only at run time, they are relative to the region.
    """

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
    """`extent` steps, each of `shared` bytes in shared memory, and of `lane` lanes or `column` bytes along the
    columns of tensor memory."""

    extent: int
    shared: int
    lane: int
    column: int

    def cut(self, inner: int) -> tuple[Digit, Digit]:
        """Split the digit into (outer, inner), where the inner one has `inner` steps."""
        return (Digit(self.extent // inner, self.shared * inner, self.lane * inner, self.column * inner),
                Digit(inner, self.shared, self.lane, self.column))


def common_digits(site: CopySite) -> tuple[list[Digit], int | Multiple, dict] | str:
    """(common digits of both sides, start of the shared region in bytes before the swizzle, start of the other region
    in tensor memory by axis), or a string that says why there are none."""
    shared, tensor = site.src, site.dst
    read = digits_of(tensor, site.dst_starts, site.g.divisor)
    if isinstance(read, str):
        return read
    starts = [s.value if hasattr(s, "value") else s for s in site.src_starts]
    found = shared_digits(layout_of(shared.buffer), shared.buffer.shape, starts, shared.extents, site.g.divisor)
    if isinstance(found, str):
        return found
    moved = [found[0][d] for d in site.dims(shared)]
    into = [part for part, n in zip(read[0], tensor.shape) if n != 1]
    digits = []
    for one, other in zip(moved, into):
        refined = _refine_dimension(one, other, site.itemsize)
        if refined is None:
            return "the two layouts divide the region at different places"
        digits += refined
    return digits, found[1] * site.itemsize, read[1]


def _refine_dimension(shared: list, tensor: list, nbytes: int) -> list[Digit] | None:
    """The common refinement of one dimension's digits in shared memory, (extent, stride), and in tensor memory,
    (extent, stride, axis).

    All are outermost first. None if their boundaries do not nest.
    """
    shared, tensor = [list(d) for d in shared], [list(d) for d in tensor]
    made: list[Digit] = []
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
    """The plan of the first shape that copies the region, or a string with the reason of each shape."""
    found = common_digits(site)
    if isinstance(found, str):
        return found
    asked, multicast = site.options.get("shape"), site.options.get("multicast")
    held = layout_of(site.dst.buffer).replicas
    replicas = tuple(sorted((n, s) for n, s, along in held if n != 1))
    if any(along != "TLane" for _, _, along in held):
        return "replicas along columns"
    reasons = []
    for shape in SHAPES:
        if (asked and shape.name != asked) or (isinstance(multicast, str) and shape.multicast != multicast):
            continue
        made = fit_shape(shape, site, *found, replicas)
        if not isinstance(made, str):
            return Plan(shape.name, shape.multicast, cta_group, *made, DECOMPRESSED.get(site.src.dtype.padded))
        reasons.append(f"{shape.text}: {made}")
    return "; ".join(reasons) or f"{asked or 'no shape'} has {'no' if asked else 'the'} multicast {multicast!r}"


def fit_shape(shape: Shape, site: CopySite, digits: list[Digit], begin, offset: dict,
              replicas) -> tuple[int, int, int, tuple[tuple[Any, Any], ...], tuple[bool, bool]] | str:
    """(ldo, sdo, swizzle, places, moves) of a plan with this shape,
    or a string that says why the shape does not fit."""
    if replicas != tuple(sorted(shape.replica)):
        shown = " + ".join(f"R[{n} : {s} @ axis.TLane]" for n, s in replicas) or "none"
        wanted = " + ".join(f"R[{n} : {s} @ axis.TLane]" for n, s in shape.replica) or "none"
        return f"the replica is {shown}, not {wanted}"
    parts = _part_digits(shape, digits)
    if isinstance(parts, str):
        return parts
    rows, columns, rest = parts
    layout = layout_of(site.src.buffer)
    mode = swizzle_mode(layout, site.itemsize)
    if mode is None:
        return f"the swizzle {layout.swizzle} is not one that the descriptor has"
    stride, leading = _between_groups(shape, rows, mode), _between_units(shape, columns, mode)
    refused = _refused_beginning(shape, offset, mode, site)
    if isinstance(stride, str):
        return stride
    if isinstance(leading, str):
        return leading
    if refused is not None:
            return refused
    column = offset.get("TCol", 0)
    moves = not isinstance(column, int), not isinstance(begin, int)
    places: list[tuple[int, int]] = []
    atom =ATOM * UNIT << mode if mode else UNIT
    for first in _beginnings(site, atom) if moves[1] else [begin]:
        placed = _place_instructions(shape, rest, first, mode)
        if isinstance(placed, str):
            return placed
        places = placed
    base = 0 if moves[0] else offset.get("TLane", 0) << 16 | column * site.itemsize // 4
    return (leading // UNIT, stride // UNIT, mode, tuple((into + base, at - moves[1] * first) for into, at in places),
            moves)


def _part_digits(shape: Shape, digits: list[Digit]) -> tuple[list[Digit], list[Digit], list[Digit]] | str:
    """Divide the digits into (rows of one instruction, columns of one instruction, the rest)."""
    rows: list[Digit] = []
    columns: list[Digit] = []
    rest: list[Digit] = []
    for digit in digits:
        room, whole = _room(shape, digit)
        if digit.extent > room > 0:
            if digit.extent % room:
                return whole
            outer, digit = digit.cut(room)
            rest.append(outer)
        if not room:
            rest.append(digit)
        elif digit.lane:
            rows.append(digit)
        else:
            columns.append(digit)
    if prod(d.extent for d in rows) != shape.rows:
        return f"{prod(d.extent for d in rows)} rows have the layout of its {shape.rows}"
    inner = min((d.column for d in columns), default=shape.width)
    if prod(d.extent for d in columns) * inner != shape.width:
        return (f"{prod(d.extent for d in columns) * inner} bytes are contiguous in the columns, "
                f"and it moves {shape.width}")
    return rows, columns, rest


def _room(shape: Shape, digit: Digit) -> tuple[int, str]:
    """(the number of steps of a digit that fit in one instruction, 0 if none; the reason to give if they do not
    divide its extent)."""
    if digit.lane:
        room = next((n * s // digit.lane for n, s in shape.lanes if s <= digit.lane < n * s), 0)
        return room, f"{digit.extent} rows cross its {shape.rows}"
    room = shape.width // digit.column if digit.column < shape.width else 0
    return room, f"{digit.extent * digit.column} bytes along the columns are no multiple of its {shape.width}"


def _bytes_at(digits: list[Digit], side: str) -> dict[int, int]:
    """{lane or byte of the columns: byte in shared memory that is copied there}; `side` is "lane" or "column"."""
    found = {0: 0}
    for d in digits:
        found = {at + i * getattr(d, side): byte + i * d.shared for at, byte in found.items() for i in range(d.extent)}
    return found


def _between_groups(shape: Shape, rows: list[Digit], mode: int) -> int | str:
    """The descriptor's stride dimension offset: the bytes from 8 rows to the next 8.
    A string says why there is none."""
    by_lane = _bytes_at(rows, "lane")
    at = [by_lane[shape.lane(r)] for r in range(shape.rows) if shape.lane(r) in by_lane]
    if len(at) < shape.rows:
        return "its rows go to other lanes"
    pitch = at[1] - at[0]
    if pitch != UNIT << mode:
        return f"rows are {pitch} bytes apart, and {UNIT << mode} in this swizzle"
    stride = at[ATOM] - at[0] if shape.rows > ATOM else 0
    if any(a != at[0] + r % ATOM * pitch + r // ATOM * stride for r, a in enumerate(at)):
        return "its rows are not in groups of 8 at a constant distance"
    multiple = ATOM * pitch if mode else UNIT
    if stride % multiple or not 0 <= stride < FARTHEST:
        return (f"groups of 8 rows are {stride} bytes apart, and the descriptor needs a multiple of "
                f"{multiple} below 2^18")
    return stride


def _between_units(shape: Shape, columns: list[Digit], mode: int) -> int | str:
    """The descriptor's leading dimension offset: the bytes from the first 16 of a row to the second 16,
    or 0 for rows of 16 bytes.

    A string says why there is none.
    """
    by_column = _bytes_at(columns, "column")
    step = min((d.column for d in columns), default=UNIT)
    units = [by_column[u * UNIT] for u in range(shape.width // UNIT) if u * UNIT in by_column]
    if len(units) < shape.width // UNIT or any(by_column.get(u * UNIT + b) != start + b for u, start in enumerate(units)
                            for b in range(0, UNIT, step)):
        return "16 bytes of the columns are not contiguous in shared memory"
    if len(units) == 1:
        return 0
    leading = units[1] - units[0]
    if mode and leading != UNIT:
        return f"its two units of 16 bytes are {leading} apart in a swizzle, and must be adjacent"
    if leading % UNIT or not 0 <= leading < FARTHEST:
        return f"its two units of 16 bytes are {leading} apart, and the descriptor needs a multiple of 16 below 2^18"
    return leading


def _refused_beginning(shape: Shape, offset: dict, mode: int, site: CopySite) -> str | None:
    """Why instructions cannot start where the regions do, or None."""
    lane, column = offset.get("TLane", 0), offset.get("TCol", 0)
    if not isinstance(lane, int):
        return "the lane in which it begins is known at run time only"
    if (column if isinstance(column, int) else column.of) * site.itemsize % UNIT:
        return (f"it begins at byte {column * site.itemsize if isinstance(column, int) else '?'} of the columns, "
                "and copies begin at multiples of 16")
    if lane and shape.rows != 4:
        return f"it begins in lane {lane}, and copies of {shape.name} begin in lane 0"
    atom = ATOM * UNIT << mode if mode else UNIT
    if site.src_align % atom:
        return f"the buffer is aligned to {site.src_align} bytes, and {atom} are needed"
    return None


def _beginnings(site: CopySite, atom: int) -> list[int]:
    """The offsets modulo `atom` bytes at which a region with run-time starts may begin: the starts are multiples of
    their known divisors, and the region lies in its buffer."""
    buffer, layout = site.src.buffer, layout_of(site.src.buffer)
    found = {layout.offset.get(axis.m, 0) * site.itemsize % atom}
    grouped, at = layout.group(buffer.shape)
    for d, (start, extent) in enumerate(zip(site.src_starts, site.src.extents)):
        known = getattr(start, "value", start)
        if isinstance(known, int):
            starts = np.array([known])
        else:
            starts = np.arange(0, buffer.shape[d] - extent + 1, site.g.divisor(start))
        own = np.zeros_like(starts)
        for size, stride, _ in reversed(grouped.shards[at[d]:at[d + 1]]):
            own, starts = own + starts % size * stride * site.itemsize, starts // size
        found = {(first + n) % atom for first in found for n in set((own % atom).tolist())}
    return sorted(found)


def _place_instructions(shape: Shape, rest: list[Digit], first: int, mode: int) -> list[tuple[int, int]] | str:
    """(address in tensor memory, byte in shared memory) of each instruction,
    for a region that starts at byte `first` of shared memory.

    A string says why an instruction could not start at such a byte.
    """
    places = [(0, 0, first)]
    # `reversed`, since equal digits are reversed too
    for d in reversed(sorted(rest, key=lambda d: (not d.lane, -d.lane, -d.column))):  # noqa: C413
        places = [(lane + i * d.lane, column + i * d.column, at + i * d.shared) for lane, column, at in places
                  for i in range(d.extent)]
    pitch = UNIT << mode
    for _, column, at in places:
        inside = not mode or (at % pitch + shape.width <= pitch and at // pitch % ATOM + min(shape.rows, ATOM) <= ATOM)
        if (at % UNIT or not inside) and mode:
            return f"a copy would begin at byte {at % (ATOM * pitch)} of the {ATOM * pitch} that its swizzle mixes"
        if at % UNIT:
            return f"a copy would begin at byte {at}"
        if column % UNIT:
            return "a copy would begin inside 16 bytes of the columns"
    return [(lane << 16 | column // 4, at) for lane, column, at in places]
