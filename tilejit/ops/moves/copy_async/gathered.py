"""ldgsts for rows that indices select (``A.take(rows)``): every thread of the scope issues ``cp.async``.

Each copies 16, 8 or 4 bytes from rows whose indices it holds: one index for each row of a matrix, for arrays of more
dimensions several.

Rows and columns out of bounds are filled with zero: the source size is 0, so nothing is read. PTX ISA, "Data Movement
and Conversion Instructions: cp.async".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....dispatch import Need, Variant
from ....dtypes import int32
from ....layout import row_lanes
from ....types import Region, RowsOfArray, Selected, strides_of
from ...memory.partition import Side, region_fits, unbounded_dimensions
from . import ldgsts
from .options import policy_of
from .site import OWN_MEMORY, CopySite


@dataclass(frozen=True)
class Plan(ldgsts.Plan):
    """A partition in which `lanes` neighbouring threads share a row.

    In step ``f * across + j``, a thread copies vector ``j * lanes + thread % lanes`` of row ``f * (threads // lanes)
    + thread // lanes``. `shape` is (rows, vectors per row); a thread whose row or vector is beyond it copies nothing
    in that step.
    """

    lanes: int = 1

    carry_free = True

    @property
    def at_once(self) -> int:
        """Rows that the threads copy at the same time."""
        return self.threads // self.lanes

    @property
    def across(self) -> int:
        """Steps that a row takes."""
        return -(-self.shape[1] // self.lanes)

    def place(self, thread, step) -> tuple:
        """(row, vector within the row) of a thread's step."""
        return (step // self.across * self.at_once + thread // self.lanes,
                step % self.across * self.lanes + thread % self.lanes)

    def coordinates(self, thread, first: int) -> list:
        row, vector = self.place(thread, first // self.threads)
        at = row, vector * self.vec
        return [at[d] for d in self.order]

    def takes_part(self, thread, first):
        row, vector = self.place(thread, first // self.threads)
        return (row < self.shape[0]) & (vector < self.shape[1])


# -- what the need and the plan share ----------------------------------------------------------------------------------

def column_dimension(t: Region | Selected) -> int:
    """The dimension of the array along which the rows of a selection run."""
    return t.along if isinstance(t, RowsOfArray) else 1


def row_dimensions(t: Region | Selected) -> tuple[int, ...]:
    """The other dimensions of the array, whose indices name a row."""
    return tuple(d for d in range(len(t.buffer.shape)) if d != column_dimension(t))


def starts(site: CopySite) -> tuple:
    """The starts of the gathered region: of its row indices one as a stand-in for all, and its first column."""
    column, *indices = site.src_starts
    at = dict(zip(row_dimensions(site.src), indices)) | {column_dimension(site.src): column}
    return tuple(at[d] for d in sorted(at))


def one_row(t: Region | Selected) -> Region | Selected:
    """A row of an array as a region, as a stand-in for all; those of a matrix as they are."""
    if not isinstance(t, RowsOfArray):
        return t
    extents = tuple(t.extents[1] if d == t.along else 1 for d in range(len(t.buffer.shape)))
    return Region(t.buffer, extents, (t.along,))


def width(site: CopySite) -> int | None:
    """Bytes per instruction: the widest that both sides allow; None if there is none."""
    def search() -> int | None:
        for nbytes in ldgsts.WIDTHS:
            vec = nbytes // site.itemsize
            if (vec * site.itemsize == nbytes and vec and site.src.extents[1] % vec == 0
                and (vec == 1 or _runs(site, vec))):
                return nbytes
        return None
    return site.memoize("gathered", search)


def _runs(site: CopySite, vec: int) -> bool:
    """Whether, on both sides, vectors of `vec` elements along a row are contiguous, aligned,
    and in or out of bounds as a whole."""
    return (region_fits(site, one_row(site.src), starts(site), column_dimension(site.src), vec)
            and region_fits(site, site.dst, site.dst_starts, site.dims(site.dst)[-1], vec))


def _has_aligned_rows(site: CopySite) -> bool | str:
    if width(site) is not None:
        return True
    by_hand = "store a tile: tile.store(buffer, tile.load(A[rows, k:k + BLOCK]))"
    stride = strides_of(site.src.buffer)[column_dimension(site.src)]
    if not isinstance(stride, int) or stride != 1:
        return (f"columns that lie {stride} elements apart, of {site.itemsize} bytes each: "
                f"give an array whose rows are contiguous, or {by_hand}")
    return (f"elements of {site.itemsize} bytes, and no run of 4 bytes is provable: "
            "let the first column (tile.assume(k % 8 == 0) promises it), the number of columns and the row pitch of "
            f"the array be multiples of 4 bytes (pad the array), or {by_hand}")


def plan(site: CopySite) -> Plan:
    nbytes, (rows, columns) = width(site), site.src.extents
    assert nbytes is not None
    lanes, vectors = row_lanes(columns * site.itemsize, site.threads), columns * site.itemsize // nbytes
    at_once = site.threads // lanes
    order = tuple(d for d, n in enumerate(site.src.extents) if n != 1)
    column = column_dimension(site.src)
    bounds = tuple(d for d in unbounded_dimensions(one_row(site.src), starts(site)) if d == column)
    bounds = tuple(sorted((*row_dimensions(site.src), *bounds)))
    past_l1 = nbytes == 16 and site.options.get("cache") != "ca"
    return Plan(nbytes, nbytes // site.itemsize, -(-rows // at_once) * -(-vectors // lanes), site.threads, order,
                (rows, vectors), bool(rows % at_once or vectors % lanes), bounds, (), "cg" if past_l1 else "ca", lanes)


# -- simulation --------------------------------------------------------------------------------------------------------

def simulate(m, plan: Plan, call, dst, src, mbar):
    thread, first = np.arange(plan.threads)[None, :, None], np.arange(plan.outer)[None, None, :] * plan.threads
    active = plan.takes_part(thread, first)
    row, vector = (np.where(active, x, 0) for x in plan.place(thread, first // plan.threads))
    along = column_dimension(src.type)
    at_ = {d: numbers[:, row[0]] for d, numbers in row_indices(src).items()}
    at_[along] = src.starts[0][:, :1].astype(np.int64)[:, :, None] + vector * plan.vec
    inside = active
    for d in plan.src_checked:
        inside = inside & m.global_memory.inside(src.buffer, d, at_[d])
    nbytes = src.type.dtype.nbytes
    pointer = sum(at_[d] * s for d, s in enumerate(src.buffer.array_strides)) * nbytes
    at = (row, vector * plan.vec)
    target = ldgsts.coordinates(dst, [at[d] for d in plan.order])
    address = dst.type.buffer.layout.offset_of(*target, shape=dst.type.buffer.shape) * nbytes
    if m.shared.in_buffer(dst):
        m.engines.cp_async(dst.buffer, address, src.buffer, np.where(inside, pointer, 0), plan.vec_bytes, valid=inside,
                           active=active)


def row_indices(src) -> dict[int, np.ndarray]:
    """For each dimension whose indices name the rows, the indices [B or 1, rows] (B: CTAs of the batch)."""
    given, count, dimensions = src.starts[1:], src.type.extents[0], row_dimensions(src.type)
    if not isinstance(src.type, RowsOfArray):
        return {dimensions[0]: numbers(src)}
    return {d: np.broadcast_to(x if x.shape[1:] == (count,) else x[:, :1], (len(x), count)).astype(np.int64)
            for d, x in zip(dimensions, given)}


def numbers(src) -> np.ndarray:
    """The row indices [B or 1, rows] of a matrix (B: CTAs of the batch), given as one tile or as a scalar for each
    row."""
    given = src.starts[1:]
    if len(given) < src.type.extents[0]:
        return given[0].astype(np.int64)
    batch = max(len(x) for x in given)
    return np.concatenate([np.broadcast_to(x[:, :1], (batch, 1)) for x in given], axis=1).astype(np.int64)


# -- emission ----------------------------------------------------------------------------------------------------------

def emit(e, plan: Plan, call, dst, src, mbar):
    options, thread = call.attrs["options"], e.thread_id()
    source, target = Rows(e, plan, src, thread), Side(e, plan, dst, (), thread)
    for step in range(plan.outer):
        pointer, inside = source.place(step)
        address, offset, _ = target.place(step * plan.threads)
        e.cp_async(address, offset, pointer, plan.vec_bytes, plan.cache, inside, source.takes_part(step),
                   prefetch=options.get("prefetch"), policy=policy_of(options))


class Rows:
    """Emits the addresses and bounds checks of a thread's vectors.

    The part of an address that depends on the row is computed apart from that of the first column, so that it is
    invariant in a loop over the columns.
    """

    def __init__(self, e, plan: Plan, region, thread):
        self.e, self.plan, self.region, self.thread = e, plan, region, thread
        self.pointers: dict[int, tuple] = {}

    def place(self, step: int) -> tuple:
        """(address of the step's vector, condition that it is in bounds, or None if it always is)."""
        e, plan, buffer, along = self.e, self.plan, self.region.buffer, column_dimension(self.region.type)
        nbytes, stride = buffer.type.dtype.nbytes, buffer.strides[along]
        row, in_array = self.row(step // plan.across)
        column, moved = self.region.starts[0], self.plan.place(self.thread, step)[1] * plan.vec
        pointer = e.offset_pointer(e.offset_pointer(row, e.mul64(moved, stride), nbytes), e.mul64(column, stride),
                                   nbytes)
        tests = [in_array, e.inside(buffer, along, column + moved) if along in plan.src_checked else None]
        return pointer, e.all_of(tests)

    def row(self, f: int) -> tuple:
        """(address of the `f`-th row of the thread, condition that the array has such a row)."""
        e, buffer = self.e, self.region.buffer
        if f not in self.pointers:
            pointer, tests = buffer.pointer, []
            for d, number in self.indices(f).items():
                pointer = e.offset_pointer(pointer, e.mul64(number, buffer.strides[d]), buffer.type.dtype.nbytes)
                tests.append(e.inside(buffer, d, number))
            self.pointers[f] = pointer, e.all_of(tests)
        return self.pointers[f]

    def indices(self, f: int) -> dict:
        """For each dimension whose indices name the rows, that of the `f`-th row of the thread."""
        t = self.region.type
        if not isinstance(t, RowsOfArray):
            return {0: self.number(f)}
        return {d: x[f] if isinstance(x, list) else x for d, x in zip(row_dimensions(t), self.region.starts[1:])}

    def number(self, f: int):
        """The index of the `f`-th row of the thread in a matrix: register `f` of the index tile, or a selection among
        the scalars."""
        e, plan, given = self.e, self.plan, self.region.starts[1:]
        if isinstance(given[0], list):
            return given[0][f]
        first, *others = (e.as_value(x, int32) for x in given[f * plan.at_once:(f + 1) * plan.at_once])
        for n, other in enumerate(others, 1):
            mine = e.in_bounds(self.thread // plan.lanes - n, 1)
            first = e.select(mine, other, first)
        return first

    def takes_part(self, step: int):
        """The condition that the thread copies something in this step; None if every thread of the scope does."""
        e, plan = self.e, self.plan
        place, last = plan.place(self.thread, step), plan.place(plan.threads - 1, step)
        return e.all_of([e.in_bounds(at, n) for at, most, n in zip(place, last, plan.shape) if most >= n])


VARIANT = Variant("ldgsts", plan=plan, emit=emit, simulate=simulate, doc=__doc__, place="rows", same_dtype=True, needs=(
    OWN_MEMORY,
    Need("a global source and a shared destination",
         lambda s: s.scopes == ("global", "shared") or f"{s.scopes[0]} to {s.scopes[1]}; "
                                                       "rows are written by tile.store(A[rows, k:k + BLOCK], "
                                                       "tile.load(buffer))", gate=True),
    Need("no mbar, since cp.async completes by groups",
         lambda s: s.mbar is None or "leave it out and wait for the token, as in tile.copy_async(..).wait(), "
                                     "or let bar.arrive_on_copies() tell it"),
    Need("all threads of the scope", lambda s: not s.partial or s.partial_reason),
    Need("elements of at least one byte in copies of 4, 8 or 16 bytes that are provably aligned and in bounds together",
         _has_aligned_rows, gate=True),
    Need("zero as the fill", lambda s: s.options.get("fill") is None or "fill='nan', and a row may be out of bounds"),
    Need("16-byte copies for cache='cg'",
         lambda s: s.options.get("cache") != "cg" or width(s) == 16 or f"copies of {width(s)} bytes"),
))
