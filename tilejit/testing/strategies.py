"""Strategies for hypothesis: extents at the edges of blocks, dtypes, arrays of any strides, special values, layouts.

hypothesis comes with ``pip install 'tilejit[testing]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..dtypes import DTYPES, DType, dtype_of, float8_e8m0fnu
from ..errors import LaunchError
from ..frames import hide_own_frames
from ..layout import TileLayout, standard_layout
from ..lazy import Lazy

ml_dtypes = Lazy("ml_dtypes")

KINDS = ("bool", "int", "uint", "float")
MOST = 4096  # elements of an array, by default


def _checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape. LaunchError if it is none."""
    made = tuple(shape) if isinstance(shape, (tuple, list)) else None
    if made is None or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in made):
        raise LaunchError(f"a shape is a tuple of integers of at least 0, not {shape!r}")
    return tuple(int(n) for n in made)


@hide_own_frames
def extents(block: int = 32, *, max_size: int | None = None, empty: bool = False) -> st.SearchStrategy[int]:
    """Extents at which a kernel that takes `block` elements at a time may fail: 1, multiples of `block`, and one
    or a few more or less; up to `max_size`, by default three blocks and one. Shrinks to 1, or to 0 if `empty` allows
    it."""
    if isinstance(block, bool) or not isinstance(block, (int, np.integer)) or block < 1:
        raise LaunchError(f"block is a number of elements, of at least 1, not {block!r}")
    most = 3 * block + 1 if max_size is None else max_size
    edges = sorted({n for k in range(1, most // block + 1) for n in (k * block - 1, k * block, k * block + 1)
                    if 1 <= n <= most})
    least = 0 if empty else 1
    anywhere = st.integers(least, most)
    return st.one_of(anywhere, st.sampled_from(edges)) if edges else anywhere


@hide_own_frames
def shapes(dims: int | tuple[int, int] = (1, 3), *, block: int | Sequence[int] = 32, max_elements: int = MOST,
           empty: bool = False) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of `dims` dimensions, or of a number from a range (least, most), and of at most `max_elements`. Each
    extent is one of `extents`; `block` may have a number for each dimension."""
    ranks = (dims, dims) if isinstance(dims, int) else tuple(dims)
    if len(ranks) != 2 or not 0 <= ranks[0] <= ranks[1]:
        raise LaunchError(f"dims is a number of dimensions, or the least and the most, not {dims!r}")
    if not isinstance(block, int) and ranks != (len(block), len(block)):
        raise LaunchError(f"block has one number, or one for each dimension, of which there are {dims}, not {block!r}")
    return _shapes(ranks, block, max_elements, empty)


@st.composite
def _shapes(draw: st.DrawFn, ranks: tuple[int, int], block: int | Sequence[int], max_elements: int,
            empty: bool) -> tuple[int, ...]:
    rank = draw(st.integers(*ranks))
    blocks = (block,) * rank if isinstance(block, int) else tuple(block)
    shape: list[int] = []
    for one in reversed(blocks):
        left = max(1, max_elements // max(1, prod(shape)))
        shape.insert(0, draw(extents(one, max_size=min(left, 3 * one + 1), empty=empty)))
    return tuple(shape)


@hide_own_frames
def dtypes(*kinds: str, bits: tuple[int, int] = (8, 64)) -> st.SearchStrategy[DType]:
    """Element types of some `kinds` ("bool", "int", "uint", "float"; by default all), of a number of bits in a range.
    Shrinks to float32, or to the first of a kind."""
    for kind in kinds:
        if kind not in KINDS:
            raise LaunchError(f"the kinds of dtypes are {', '.join(KINDS)}, not {kind!r}")
    found = [d for d in DTYPES.values()
             if d.kind in (kinds or KINDS) and not d.packed and not d.padded and bits[0] <= d.bits <= bits[1]]
    if not found:
        raise LaunchError(f"no dtype of kind {' or '.join(kinds)} has {bits[0]} to {bits[1]} bits")
    return st.sampled_from(sorted(found, key=lambda d: (d.name != "float32", KINDS.index(d.kind), d.bits)))


@hide_own_frames
def special_values(dtype: Any, *, finite: bool = False) -> np.ndarray:
    """The values of a dtype at which arithmetic is special: zeros of both signs, one, the largest and the smallest,
    subnormal ones, infinities and NaN as far as it has them; of integers 0, 1, -1, the largest and the smallest.
    With `finite`, neither infinities nor NaN. Returns an array of one dimension."""
    kind = dtype_of(dtype)
    if kind.kind == "bool":
        return np.array([False, True])
    if not kind.is_float:
        info = np.iinfo(kind.np)
        values = [0, 1, *((-1,) if info.min else ()), int(info.max), int(info.min)]
        return np.array(list(dict.fromkeys(values)), kind.np)
    f = ml_dtypes.finfo(kind.np)
    with np.errstate(all="ignore"):
        ones = [1.0, float(f.eps), float(f.max), float(f.smallest_normal), float(f.smallest_subnormal)]
        signed = ones if kind == float8_e8m0fnu else [0.0, -0.0, *ones, *(-x for x in ones)]
        made = np.array([*signed, *(() if finite else (np.inf, -np.inf, np.nan))], np.float64).astype(kind.np)
        return made[np.isfinite(made.astype(np.float64))] if finite else made


@hide_own_frames
def elements(dtype: Any, *, finite: bool = False) -> st.SearchStrategy[Any]:
    """Numbers of a dtype, as NumPy scalars: special ones, and any bits. With `finite`, neither infinities nor NaN."""
    return _elements(dtype_of(dtype), finite)


@st.composite
def _elements(draw: st.DrawFn, kind: DType, finite: bool) -> Any:
    special = special_values(kind, finite=finite)
    if draw(st.booleans()):
        return special[draw(st.integers(0, len(special) - 1))]
    if kind.kind == "bool":
        return np.bool_(draw(st.booleans()))
    pattern = draw(st.integers(0, 2 ** kind.bits - 1))
    value = np.array(pattern, f"uint{kind.bits}").view(kind.np)[()]
    return special[0] if finite and kind.is_float and not np.isfinite(float(value)) else value


@hide_own_frames
def strides(shape: Sequence[int], *, negative: bool = True,
            unit: bool = False) -> st.SearchStrategy[tuple[int, ...]]:
    """Strides, in elements, of an array of a shape whose elements are apart from each other: row-major, in another
    order of the dimensions, with gaps between rows or elements, and backwards if `negative`. With `unit`, the last
    dimension is contiguous. Shrinks to row-major."""
    return _strides(_checked_shape(shape), negative, unit)


@st.composite
def _strides(draw: st.DrawFn, shape: tuple[int, ...], negative: bool, unit: bool) -> tuple[int, ...]:
    rank = len(shape)
    order: Sequence[int] = range(rank)
    if not unit and draw(st.integers(0, 2)) == 2:
        order = draw(st.permutations(order))
    found, step = [0] * rank, 1 if unit else draw(st.sampled_from((1, 1, 1, 2, 3)))
    for d in reversed(list(order)):
        found[d] = step
        step = step * max(1, shape[d]) + draw(st.sampled_from((0, 0, 0, 1, 5, 8)))
    if negative and rank and not unit and draw(st.integers(0, 3)) == 3:
        at = draw(st.integers(0, rank - 1))
        found[at] = -found[at]
    return tuple(found)


@hide_own_frames
def arrays(dtype: Any, shape: Any, *, strides: Any = None, special: bool | Sequence[float] = True,
           finite: bool = False, offset: bool = True) -> st.SearchStrategy[np.ndarray]:
    """NumPy arrays of a dtype and a shape (or strategies of them).

    The elements are normal numbers of magnitude 1, or integers from the whole range; some are `special_values`, or
    those of the sequence `special`; with `finite`, neither infinities nor NaN. `strides` are a strategy of strides in
    elements, by default `strategies.strides`, or () for row-major. With `offset`, an array may begin anywhere in its
    memory, at a multiple of its element. Shrinks to a row-major array without special values.
    """
    if not isinstance(dtype, st.SearchStrategy):
        dtype = st.just(dtype_of(dtype))
    if not isinstance(shape, st.SearchStrategy):
        shape = st.just(_checked_shape(shape))
    return _arrays(dtype, shape, strides, special, finite, offset)


@st.composite
def _arrays(draw: st.DrawFn, dtypes: st.SearchStrategy[Any], shapes: st.SearchStrategy[Any], strides: Any,
            special: bool | Sequence[float], finite: bool, offset: bool) -> np.ndarray:
    kind, extent = dtype_of(draw(dtypes)), _checked_shape(draw(shapes))
    made = _numbers(kind, extent, draw(st.integers(0, 2 ** 32 - 1)))
    if made.size and special is not False:
        values = special_values(kind, finite=finite) if special is True else np.array(list(special)).astype(kind.np)
        for at in draw(st.lists(st.integers(0, made.size - 1), max_size=8)):
            made.flat[at] = values[draw(st.integers(0, len(values) - 1))]
    if strides is None:
        chosen: tuple[int, ...] = draw(_strides(extent, True, False))
    elif isinstance(strides, st.SearchStrategy):
        chosen = tuple(draw(strides))
    else:
        chosen = tuple(strides) or _row_major(extent)
    return _copy_to_strides(made, chosen, draw(st.integers(0, 3)) if offset else 0)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1:]) for d in range(len(shape)))


def _numbers(dtype: DType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random elements of a dtype."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.is_float:
        info = np.iinfo(dtype.np)
        return rng.integers(info.min, info.max, shape, dtype.np, endpoint=True)
    drawn = rng.standard_normal(shape)
    return (np.abs(drawn) if dtype == float8_e8m0fnu else drawn).astype(dtype.np)


def _copy_to_strides(values: np.ndarray, strides: Sequence[int], offset: int) -> np.ndarray:
    """A copy of an array with these strides, `offset` elements from the beginning of its memory."""
    spans = [s * (n - 1) for n, s in zip(values.shape, strides)] if values.size else []
    low, high = sum(min(s, 0) for s in spans), sum(max(s, 0) for s in spans)
    memory = np.zeros((offset + high - low + 1) * values.itemsize, np.uint8)
    made: np.ndarray = np.ndarray(values.shape, values.dtype, memory, (offset - low) * values.itemsize,
                                  [s * values.itemsize for s in strides])
    made[...] = values
    return made


@hide_own_frames
def layouts(dtype: Any, shape: Sequence[int]) -> st.SearchStrategy[TileLayout]:
    """Layouts of shared memory for ``tile.alloc(shape, dtype, layout=...)``: row-major, in another order of the
    dimensions, with padded rows, in columns of 16 bytes, and swizzled in spans of 32, 64 and 128 bytes where the shape
    allows it. Shrinks to row-major."""
    kind, extent = dtype_of(dtype), _checked_shape(shape)
    if 0 in (extent or (0,)) or kind.packed:
        raise LaunchError(f"a buffer has extents of at least 1 and elements of whole bytes, not {extent} of {kind}")
    return _layouts(kind, extent)


@st.composite
def _layouts(draw: st.DrawFn, kind: DType, extent: tuple[int, ...]) -> TileLayout:
    columns = extent[-1] * kind.nbytes
    down = len(extent) > 1 and extent[-2] % 8 == 0
    spans = [span for span in (16, 32, 64, 128) if down and columns % span == 0]
    form = draw(st.sampled_from(("rows", "turned", "padded", *(("standard",) if spans else ()))))
    if form == "standard":
        span = draw(st.sampled_from(spans))
        return standard_layout(kind.bits, extent, 0 if span == 16 else span)
    steps, step = [0] * len(extent), 1
    order = draw(st.permutations(range(len(extent)))) if form == "turned" else range(len(extent))
    for d in reversed(list(order)):
        steps[d] = step
        step *= extent[d]
        if form == "padded" and d == len(extent) - 1:
            step += draw(st.sampled_from((1, max(1, 16 // kind.nbytes))))
    return TileLayout.strided(extent, steps)


__all__ = ["arrays", "dtypes", "elements", "extents", "layouts", "shapes", "special_values", "strides"]
