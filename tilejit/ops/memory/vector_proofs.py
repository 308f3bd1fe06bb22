"""How many elements of a region or of points one load or store instruction can move, and why not more."""

from __future__ import annotations

from collections.abc import Iterator

from ...dtypes import DType
from ...ir.graph import Operand, Value
from ...layout import register_table
from ...types import Addressed, Points, Region, Scalar, Tile, domain_of, layout_of, strides_of
from .partition import shared_runs


def widest_of(dtype: DType) -> int:
    """The number of elements in the longest vector (16 bytes)."""
    return max(1, 16 // dtype.nbytes)


def widest_vector(g, source: Value, axis: int, most: int, mask: Operand = None) -> int:
    """The largest number n, `most` halved as often as needed, such that each aligned run of n elements along `axis`
    provably is one access."""
    while most > 1 and next(_obstacles(g, source, axis, most, mask), None) is not None:
        most //= 2
    return most


def _place_type(source: Value) -> Region | Points:
    """The type of the place that a load, a store or an atomic operation accesses."""
    t = source.type
    assert isinstance(t, (Region, Points))
    return t


def explain_narrowness(g, source: Value, tile: Tile | Scalar, mask: Operand, vector: int,
                       most: int | None = None) -> tuple[tuple[str, str], ...]:
    """Why an access moves only `vector` elements per instruction, if a thread holds enough elements for more.

    Returns (bytes of the longer vector, its needs that do not hold, along the dimension with the fewest of them),
    or nothing.
    """
    t = _place_type(source)
    registers = len(register_table(layout_of(tile), domain_of(tile))) if isinstance(tile, Tile) else 1
    wanted = min(most or widest_of(t.dtype), 1 << registers.bit_length() - 1)
    if vector >= wanted:
        return ()
    with g.facts.without_recording():
        missed = {axis: list(_obstacles(g, source, axis, wanted, mask)) for axis in range(len(t.shape))}
        def is_adjacent(a):
            return (d := _moving_dimension(g, source, a, wanted)) is not None and _is_contiguous(t, d)
        axis = min(missed, key=lambda a: (t.shape[a] == 1, not is_adjacent(a), len(missed[a]), -a))
    held = (f"needs {wanted} contiguous elements in each thread: the tile's layout, which suits its other uses too, "
            f"has {g.register_run(tile, axis)}")
    return (f"{wanted * t.dtype.nbytes} bytes", "; ".join(missed[axis] or [held])),


# -- needs -------------------------------------------------------------------------------------------------------------

def _obstacles(g, source: Value, axis: int, vector: int, mask: Operand) -> Iterator[str]:
    """In words, the needs that do not hold of one access to each aligned run of `vector` elements along an axis."""
    t = _place_type(source)
    if t.shape[axis] % vector:
        yield f"needs an extent along dimension {axis} of the tile that is a multiple of {vector}: {t.shape[axis]}"
        return
    def mask_divisor(m):
        # 0 if the mask is constant in each run, otherwise 1
        return _divisor_of_first(g.ramp(m, axis - len(t.shape), vector), 0)
    differs = (f"needs a mask that is the same for {vector} neighbours, "
               f"as one up to a multiple of {vector} (elements beyond an array need none)")
    may_be_alike = mask is None or g.may_divide(mask, vector, mask_divisor)
    if not may_be_alike:
        yield differs
    d = _dimension_along(g, source, axis, vector)
    if d is None:
        yield _explain_gaps(g, source, axis, vector)
    else:
        yield from _explain_misalignment(g, t, d, vector)
    if d is not None and not shares_bounds(g, source, d, vector):
        if t.buffer.narrowed is not None and t.buffer.narrowed[d]:
            found = "the window's are not known to be"
        else:
            found = f"{t.buffer.shape[d]} is not"
        known = ", or a region that is known to be inside" * isinstance(t, Region)
        yield f"needs bounds that are multiples of {vector}{known}: {found}"
    # Facts about the launch's scalars are asked last. Scalars change more often than arrays,
    # and each answer compiles another version.
    if mask is not None and may_be_alike and g.asked_divisor(mask, vector, mask_divisor) != 0:
        yield differs


def _divisor_of_first(ramp: tuple[int, int] | None, step: int) -> int:
    """A divisor of the first element of each run of `ramp`, if it has the `step` asked for; 1 otherwise. With step 0,
    constant runs give 0."""
    if ramp is None or ramp[0] != step:
        return 1
    return ramp[1] if step else 0


def _dimension_along(g, source: Value, axis: int, vector: int) -> int | None:
    """The dimension of the buffer along which each vector's elements are adjacent and start at a multiple of `vector`.

    The other indices are the same for all elements of a vector. None if this does not provably hold.
    """
    t, indices = _place_type(source), g.definition(source).args[1:]
    d, divisor_of_first = t.kept[axis] if isinstance(t, Region) else None, g.divisor
    if d is None:
        def divisor_of_first(i, step=1):
            return _divisor_of_first(g.ramp(i, axis - len(t.shape), vector), step)
        moving = [k for k, i in enumerate(indices) if g.asked_divisor(i, vector, lambda i: divisor_of_first(i, 0)) != 0]
        if len(moving) != 1:
            return None
        d, = moving
    if not _is_contiguous(t, d) or g.asked_divisor(indices[d], vector, divisor_of_first) % vector:
        return None
    return d


def _explain_misalignment(g, t: Region | Points, d: int, vector: int) -> Iterator[str]:
    """In words, why aligned runs of `vector` elements along `d` are not contiguous or not aligned to
    their size in memory."""
    nbytes = vector * t.dtype.nbytes
    if t.buffer.scope != "global":
        if not shared_runs(t.buffer.layout, t.buffer.shape, d, vector):
            yield f"needs contiguous pieces of {nbytes} bytes along dimension {d}: the buffer's layout has none"
        return
    if not g.facts.ask("aligned", t.buffer.arg, nbytes):
        found = "does not"
        if isinstance(t.buffer.arg, Addressed):
            found = f"is known to start at a multiple of {t.buffer.arg.align} (align= promises more)"
        yield f"needs an array that starts at a multiple of {nbytes} bytes: {g.name_of(t.buffer.arg)} {found}"
    for k, s in enumerate(strides_of(t.buffer)):
        if (k != d
            and not (s % vector == 0 if isinstance(s, int) else g.facts.ask("stride_multiple", s.arg, s.dim, vector))):
            yield f"needs strides that are multiples of {vector}: {s} is not (pad the rows)"


def shares_bounds(g, source: Value, d: int, vector: int) -> bool:
    """Whether every vector along `d` is either wholly in bounds or wholly out of bounds."""
    t, (_, *indices) = _place_type(source), g.definition(source).args
    size = t.buffer.shape[d]
    if isinstance(t, Region) and is_inside(g, t, indices, d):
        return True
    if t.buffer.narrowed is not None and t.buffer.narrowed[d] % vector:
        return False
    if isinstance(size, int):
        return size % vector == 0
    return g.facts.ask("size_multiple", size.arg, size.dim, vector)


def is_inside(g, t: Region, starts, d: int) -> bool:
    """Whether the region is provably inside the buffer along `d`."""
    if t.buffer.narrowed is not None and t.buffer.narrowed[d]:
        return False
    return g.fits(starts[d], t.extents[d], t.buffer.shape[d])


# -- in words ----------------------------------------------------------------------------------------------------------

def _explain_gaps(g, source: Value, axis: int, vector: int) -> str:
    """In words, why the elements along an axis are not runs of adjacent elements that start at
    multiples of `vector`."""
    t, d = _place_type(source), _moving_dimension(g, source, axis, vector)
    if d is None:
        return (f"needs one index that increases by 1 along dimension {axis} of the tile while the others stay the "
                "same: not known of these")
    if not _is_contiguous(t, d):
        return f"needs contiguous neighbours in memory: the stride {strides_of(t.buffer)[d]} is not 1"
    first = "start" if isinstance(t, Region) else "first index"
    return (f"needs a {first} that is a multiple of {vector}: not known along dimension {d} "
            f"(tile.assume({first.split()[0]} % {vector} == 0) promises it)")


def _moving_dimension(g, source: Value, axis: int, vector: int) -> int | None:
    """The dimension of the buffer whose index goes up by 1 along an axis of the tile, if only that index
    changes; otherwise None."""
    t, (_, *indices) = _place_type(source), g.definition(source).args
    if isinstance(t, Region):
        return t.kept[axis]
    ramps = [g.ramp(i, axis - len(t.shape), vector) for i in indices]
    moving = [d for d, ramp in enumerate(ramps) if ramp is None or ramp[0] != 0]
    ramp = ramps[moving[0]] if len(moving) == 1 else None
    return moving[0] if ramp is not None and ramp[0] == 1 else None


def _is_contiguous(t: Region | Points, d: int) -> bool:
    return t.buffer.scope != "global" or strides_of(t.buffer)[d] == 1
