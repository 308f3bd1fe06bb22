"""Matrix descriptors (of wgmma and tcgen05) for operands in shared memory, and the reasons why an operand has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import numpy as np

from ...dispatch import Miss
from ...errors import CompilationError
from ...layout import axis
from ...types import Region, layout_of
from ..moves.copy_async.tma.view import swizzle_mode
from .descriptor import K_BYTES, PLAIN, SIDEWAYS, Derived, derive_descriptor, offsets

SPANS = {0: 0, 1: 32, 2: 64, 3: 128}  # swizzle mode -> span in bytes
# With fewer columns, the bandwidth of shared memory limits products that read both operands there: 64 rows of A and 64
# columns of B, of 32 bytes along k each, take 32 cycles at 128 bytes a cycle, which is just as long as the tensor cores
# take to multiply them.
NARROW = 64


@dataclass(frozen=True)
class Along:
    """One dimension of a region: the byte offset of each element from the first one (`at`), and the byte offsets from
    the start of the buffer at which the region may start (`begins`; several if the start is known only at run
    time)."""

    at: list[int]
    begins: list[int]

    @property
    def common_divisor(self) -> int:
        return gcd(*self.begins)


def shared_matrix(t: Region, starts, k_first: bool, mn: int, align: int, divisor: Callable) -> Derived | Miss:
    """The descriptor of region `t` for instructions of `mn` rows (of A) or columns (of B), with the offset of each
    instruction's part; or the reason why there is none.

    The region is [k, mn] if `k_first`, else [mn, k]. `align` is the buffer's alignment in bytes; `divisor(start)` is
    a known divisor of a run-time start. PTX ISA, "Matrix descriptor": a matrix must start at a multiple of its
    swizzle's period, except that a step along k may start within a row of the atom.
    """
    itemsize, layout = t.dtype.nbytes, layout_of(t.buffer)
    mode = swizzle_mode(layout, itemsize)
    if mode is None:
        return Miss(f"the swizzle {layout.swizzle}")
    if layout.replicas or any(name != "m" for name in layout.axes):
        return Miss(f"the layout {layout}")
    dimensions = _byte_offsets(t, starts, divisor)
    if isinstance(dimensions, Miss):
        return dimensions
    first, second = (dimensions[d] for d in t.kept)
    rows, ks = (second, first) if k_first else (first, second)
    span = SPANS[mode]
    named = derive_descriptor(rows.at, ks.at, mn, itemsize, span)
    if isinstance(named, Miss):
        return miss_of_plain_layout(t, rows, span) if named is PLAIN else named
    within_row = span > 0 and named.descriptor.major == "k"
    begins = gcd(layout.offset.get(axis.m, 0) * itemsize,
                 *(x.common_divisor for x in dimensions if not (within_row and x is ks)))
    along_k = [begin + k for begin in ks.begins for k in named.ks]
    return _check_alignment(named, begins, along_k, span, align, within_row) or named


def _byte_offsets(t: Region, starts, divisor: Callable) -> list[Along] | Miss:
    """Each dimension of a region, or the reason why the offsets within one depend on its start."""
    try:
        dims = layout_of(t.buffer).without_swizzle().dims(t.buffer.shape)
    except CompilationError as error:  # its message is the reason
        return Miss(error.message)
    made = []
    for d, (start, extent, shards) in enumerate(zip(starts, t.extents, dims)):
        digits = [(n, stride * t.dtype.nbytes) for n, stride, _ in shards]
        along = _elements_along(digits, getattr(start, "value", start), extent, divisor)
        if along is None:
            first = f"{start} " if isinstance(start, int) else ""
            return Miss(f"elements {first}to +{extent} of dimension {d} cut across the layout's blocks")
        made.append(along)
    return made


def _check_alignment(named: Derived, begins: int, along_k: list[int], span: int, align: int,
                within_row: bool) -> Miss | None:
    """Why a matrix cannot begin where it does; None if it can. Its bytes begin at multiples of `begins`, and its parts
    along k at `along_k`; with `within_row`, these are within a row of the swizzle's atom."""
    period = 8 * span if span else 16
    if begins % period or align % period:
        what = f"it begins at a multiple of {begins}" if begins % period else f"the buffer is aligned to {align}"
        return Miss(f"{what} bytes, and {period} are needed")
    if within_row:
        fits = all(k % K_BYTES == 0 and k % period + K_BYTES <= span for k in along_k)
        where = f"neither at a multiple of {K_BYTES} bytes of a row of the swizzle nor"
    else:
        fits, where = not any(k % period for k in along_k), "not"
    if not fits or any(r % period for r in named.rows):
        return Miss(f"a part of it begins {where} at one of {period} bytes")
    return None


def contiguous_dimension(t: Region) -> int | None:
    """The dimension of region `t` along which its elements are contiguous in memory; None if there is none."""
    try:
        dims = layout_of(t.buffer).without_swizzle().dims(t.buffer.shape)
    except CompilationError:
        return None
    return next((i for i, d in enumerate(t.kept) if dims[d] and dims[d][-1][1:] == (1, "m")), None)


def report_miss(name: str, t: Region, found: Miss, columns: int) -> Miss:
    """The miss that a need reports for operand `name` of a product of `columns` columns, which has no descriptor for
    the reason `found`."""
    if found is SIDEWAYS:
        return miss_of_order(name, t, columns)
    return Miss(f"{name}: {found.words}", found.cure and f"{name} {found.cure}")


def miss_of_order(name: str, t: Region, columns: int) -> Miss:
    """The miss for operand `name`, which is contiguous along its rows but has to be along k.

    It has a cure only for products of at least `NARROW` columns,
    since narrower ones are no slower by other instructions.
    """
    size, hold = (f"{t.dtype.nbytes} byte{'s' if t.dtype.nbytes > 1 else ''}",
                  {"a": "[m, k], without trans_a", "b": "[n, k], with trans_b=True"})
    words = f"{name} of {t.dtype} is not contiguous along k, as elements of {size} must be; hold it as {hold[name]}"
    return Miss(words, words if columns >= NARROW else "")


def miss_of_parts(t: Region, part: int, columns: int) -> Miss:
    """The miss for region `t`, a `b` that is contiguous along its columns, of which each warpgroup would take `part`
    from inside a row of the swizzle on. Its cure is a narrower swizzle, unless the product is narrow."""
    span = next((n for n in (64, 32) if part * t.dtype.nbytes % n == 0), 0)
    words = f"the {part} columns of each warpgroup begin inside a row of its swizzle"
    cure = (f"has a swizzle inside whose rows the {part} columns of each warpgroup begin: "
            f"give its allocation layout=tile.auto, or tile.swizzled(dtype, shape, {span})")
    return Miss(words, cure if span and columns >= NARROW else "")


def miss_of_plain_layout(t: Region, along: Along, span: int) -> Miss:
    """The miss for region `t` whose layout is `PLAIN`, with the allocation, or the part of it,
    that would have a descriptor."""
    if (span and len(along.at) > 1 and along.at[1] - along.at[0] == t.dtype.nbytes
        and any(begin % span for begin in along.begins)):
        words = (f"begins inside the {span // t.dtype.nbytes} elements of a row of the swizzle and extends beyond "
                 f"them: begin it at a multiple of {span // t.dtype.nbytes}, or give its allocation a narrower swizzle")
        return Miss(f"it {words}", words)
    *_, rows, columns = t.buffer.shape
    width, lies = columns * t.dtype.nbytes, "is row-major without a swizzle in shared memory"
    if rows % 8 == 0 and width % 16 == 0:
        fitting = next((n for n in (128, 64, 32) if width % n == 0), 0)
        instead = f"{lies}; give its allocation layout=tile.auto"
        if not fitting:
            instead = (f"{lies}, and no swizzle fits {rows} rows of {width} bytes: allocate a multiple of 32 bytes, "
                       "or give its allocation layout=tile.swizzled(dtype, shape, 0), columns of 16 bytes, "
                       "which TMA takes longer to fill")
        return Miss(f"{PLAIN.words}, as layout=tile.auto or tile.swizzled(dtype, shape, "
                    f"{fitting}) of its allocation lays them", instead)
    fits = f"{rows} rows of {width} bytes are no multiple of 8 rows of 16 bytes; allocate a multiple of both"
    return Miss(f"{PLAIN.words}; {fits}", f"{lies}, and {fits}")


def _elements_along(digits: list[tuple[int, int]], start, extent: int, divisor: Callable) -> Along | None:
    """Elements [start, start + extent) of a dimension with the digits (extent, stride in bytes) `digits`; `start` may
    be a run-time value.

    None if the offsets within the region differ between possible starts, or if the region may leave the dimension.
    """
    at = np.array(offsets(digits))
    last = len(at) - extent
    possible = [start] if isinstance(start, int) else range(0, last + 1, divisor(start) or len(at))
    if last < 0 or not all(0 <= s <= last for s in possible):
        return None
    parts = [at[s:s + extent] - at[s] for s in possible]
    if any((part != parts[0]).any() for part in parts):
        return None
    return Along(parts[0].tolist(), [int(at[s]) for s in possible])
