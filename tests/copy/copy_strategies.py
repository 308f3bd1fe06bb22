"""Random copies: arrays with arbitrary strides, shared layouts with padding and swizzles, regions of both."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st
from tilejit.layout import TileLayout, standard_layout
from tilejit.plan import BufferSpec

NBYTES = {"bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
          "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8}
DTYPES = tuple(NBYTES)


@st.composite
def copies(draw, *, rank: int = 4, elements: int = 1536, below_zero: bool = False):
    """(array, shared): specs of both sides of a copy of at most `elements` elements."""
    dtype = draw(st.sampled_from(DTYPES))
    unit = 16 // NBYTES[dtype]
    n = draw(st.integers(1, rank))
    extents, left = [], elements
    for d in reversed(range(n)):
        choices = [1, 2, 3, 4, 8] + ([unit, 2 * unit, 4 * unit, 5 * unit, unit - 1 or 1] if d == n - 1 else [])
        extents.insert(0, draw(st.sampled_from([c for c in choices if c <= left])))
        left //= extents[0]
    return draw(arrays(dtype, extents, unit, below_zero)), draw(buffers(dtype, extents, unit))


@st.composite
def arrays(draw, dtype: str, extents: list[int], unit: int, below_zero: bool):
    """An array that contains a region of these extents completely or almost."""
    shape, region = [], []
    for d, n in enumerate(extents):
        step = unit if d == len(extents) - 1 and draw(st.booleans()) else 1
        start = draw(st.sampled_from((0, 0, 0, 1, 2, 3))) * step
        size = max(1, start + n + draw(st.sampled_from((0, 0, 0, 1, 3, -1))) * step)
        if below_zero and draw(st.booleans()):
            start -= 2 * step
        shape.append(size)
        region.append(slice(start, start + n))
    order = draw(st.permutations(range(len(shape)))) if draw(st.integers(0, 3)) == 0 else range(len(shape))
    strides, step = [0] * len(shape), draw(st.sampled_from((1, 1, 1, 1, 2)))
    for d in reversed(list(order)):
        strides[d] = step
        step = step * shape[d]
        if draw(st.integers(0, 3)) == 0:
            step = -(-step // unit) * unit + draw(st.sampled_from((0, 0, unit, 1)))
    offset = draw(st.sampled_from((0, 0, 0, unit, 1)))
    return BufferSpec(tuple(shape), dtype, "global", region=tuple(region),
                      layout=TileLayout.strided(shape, strides) + offset)


@st.composite
def buffers(draw, dtype: str, extents: list[int], unit: int):
    """A shared buffer that contains a region of these extents."""
    shape, region = [], []
    whole = draw(st.booleans())
    for n in extents:
        size = n if whole else n * draw(st.sampled_from((1, 1, 2, 3)))
        start = 0 if whole else draw(st.sampled_from([s for s in (0, n, 1) if s + n <= size]))
        shape.append(size)
        region.append(slice(start, start + n))
    if draw(st.booleans()):
        stages = draw(st.integers(1, 3))
        shape.insert(0, stages)
        region.insert(0, slice(stages - 1, stages))
    kind = draw(st.sampled_from(("plain", "plain", "swizzled", "swizzled", "columns", "padded", "turned")))
    layout = TileLayout.row_major(shape)
    if kind == "swizzled":
        modes = [m for m in (32, 64, 128) if len(shape) > 1 and shape[-2] % 8 == 0 and shape[-1] * NBYTES[dtype] % m == 0]
        if modes:
            layout = standard_layout(8 * NBYTES[dtype], tuple(shape), draw(st.sampled_from(modes)))
    elif kind == "columns":
        layout = standard_layout(8 * NBYTES[dtype], tuple(shape), 0)
    elif kind == "padded":
        strides = [prod(shape[d + 1:]) for d in range(len(shape))]
        pad = draw(st.sampled_from((1, unit, 8 * unit)))
        layout = TileLayout.strided(shape, [s + pad * prod(shape[d + 1:-1]) if d < len(shape) - 1 else s for d, s in enumerate(strides)])
    elif kind == "turned":
        strides, step = [0] * len(shape), 1
        for d in draw(st.permutations(range(len(shape)))):
            strides[d] = step
            step *= shape[d]
        layout = TileLayout.strided(shape, strides)
    return BufferSpec(tuple(shape), dtype, "shared", layout=layout, region=tuple(region))


@st.composite
def swizzled_copies(draw):
    """(array, shared) where the shared buffer has a standard layout, and the region is aligned to its swizzle atoms or not."""
    dtype, mode = draw(st.sampled_from(("int8", "float16", "float32", "float64"))), draw(st.sampled_from((0, 32, 64, 128)))
    width = (mode or 16) // NBYTES[dtype]
    rows, columns = 8 * draw(st.integers(1, 3)), width * draw(st.integers(1, 4))
    stages = draw(st.integers(1, 3))
    first_row = draw(st.sampled_from([r for r in (0, 0, 4, 8) if r < rows]))
    taken = draw(st.sampled_from([r for r in (rows - first_row, 8, 4, 1) if r <= rows - first_row]))
    first_column = draw(st.sampled_from([c for c in (0, 0, width, width // 2) if c < columns]))
    wide = draw(st.sampled_from([c for c in (columns - first_column, width, width // 2) if 0 < c <= columns - first_column]))
    stage = draw(st.integers(0, stages - 1))
    shared = BufferSpec((stages, rows, columns), dtype, "shared", layout=standard_layout(8 * NBYTES[dtype], (stages, rows, columns), mode),
                        region=(slice(stage, stage + 1), slice(first_row, first_row + taken), slice(first_column, first_column + wide)))
    row, column = draw(st.integers(0, 9)), draw(st.sampled_from((0, 0, wide, width, 16 // NBYTES[dtype])))
    height, length = row + taken + draw(st.integers(-1, 4)), column + wide + draw(st.sampled_from((0, 0, width, 16 // NBYTES[dtype], -1)))
    pitch = -(-length * NBYTES[dtype] // 16) * 16 // NBYTES[dtype] + draw(st.sampled_from((0, 0, 64)))
    array = BufferSpec((3, max(height, 1), max(length, 1)), dtype, "global", strides=(pitch * (max(height, 1) + 1), pitch, 1),
                       region=(draw(st.integers(0, 2)), slice(row, row + taken), slice(column, column + wide)))
    return array, shared
