"""Cases drawn by hypothesis: every dtype, 0 to 4 dimensions, any extents, strides and offsets, compared with NumPy.

A few kernels (one source for each kind and rank) run on arrays with any memory layout: dimensions in any order,
steps, gaps, reversed, an offset; inputs may be broadcast by strides of 0. For an output view, its whole base is
compared, so that writes outside the view are noticed. The simulator's test and the GPU's draw from `view_cases`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import tilejit as tile
from hypothesis import strategies as st
from language_cases import Case, Strided, host
from language_reference import COMPARE, DTYPES, FLOAT8, binary, cast, is_float, np_dtype, promoted, special
from memory_cases import put, window

TILES = {0: (), 1: (64,), 2: (8, 16), 3: (4, 4, 8), 4: (2, 4, 2, 8)}  # extents of one CTA's tile, by rank


@cache
def kernel_of(source: str):
    """The kernel of a source, one object for all cases that share it, so that its versions are reused."""
    from tilejit.frontend import Source
    from tilejit.jit import Kernel
    return Kernel(Source.from_text(source, {"tile": tile}), {})


# -- arrays --------------------------------------------------------------------------------------------------------------

def values(draw, count: int, dtype: str) -> np.ndarray:
    """`count` numbers, including the limits of the dtype."""
    seed = draw(st.integers(0, 1000))
    return np.random.default_rng(seed).permutation(np.resize(special(dtype, seed, 64), count))


def small(draw, count: int, dtype: str) -> np.ndarray:
    """Small integers, whose sums are exact in float32."""
    low = 0 if dtype == "bool" or dtype.startswith("uint") else -2
    return np.random.default_rng(draw(st.integers(0, 1000))).integers(low, 3, count).astype(np_dtype(dtype))


def laid_out(draw, shape: tuple, dtype: str, fill, broadcast: bool) -> Strided:
    """An array of `shape` at a random position in a flat one."""
    order = draw(st.permutations(range(len(shape))))
    steps = st.sampled_from((1, 1, 1, 2, 3, -1, -1, -2, *((0, 0) if broadcast else ())))
    strides, room, start = [0] * len(shape), 1, 0
    for d in order:
        step = draw(steps)
        strides[d] = step * room
        reach = strides[d] * max(shape[d] - 1, 0)
        start -= min(reach, 0)
        room = (abs(reach) + room if step else room) + draw(st.sampled_from((0, 0, 0, 1, 5, 8)))
    before = draw(st.sampled_from((0, 0, 1, 4, 16, 37)))
    return Strided(fill(draw, before + room + 3, dtype), shape=shape, strides=tuple(strides), offset=before + start)


def extents(draw, rank: int) -> tuple[int, ...]:
    """None, one, or a few more or fewer elements than whole tiles, along each dimension."""
    return tuple(draw(st.one_of(st.integers(1, 2 * t + 1), st.sampled_from((0, 1, t - 1, t, t + 1, 2 * t)))) for t in TILES[rank])


# -- sources -------------------------------------------------------------------------------------------------------------

def places(rank: int, shift: str = "", first: str = "") -> str:
    """The index of a CTA's tile, as source; `first` replaces that of the first dimension."""
    parts = [f"p{d} * {t}{shift}:(p{d} + 1) * {t}{shift}" for d, t in enumerate(TILES[rank])]
    if first:
        parts[0] = first
    return ", ".join(parts) or "()"


def kernel_text(rank: int, parameters: str, *lines: str) -> str:
    """A kernel with body `lines`; p0, p1, ... are the tile's indices. The fourth dimension shares a grid axis with the third."""
    head = [f"p{d} = tile.program_id({d})" for d in range(min(rank, 3))]
    if rank == 4:
        head += ["p3 = p2 % last", "p2 = p2 // last"]
        parameters += ", last"
    return f"def kernel({parameters}):\n    " + "\n    ".join((*head, *lines)) + "\n"


def grid_of(shape, more: int = 0) -> tuple[tuple, dict]:
    """The grid that covers `shape`, with `more` CTAs along each axis that are out of bounds; and the argument of rank 4."""
    counts = [-(-n // t) + more for n, t in zip(shape, TILES[len(shape)])]
    if len(shape) < 4:
        return tuple(counts) or (1,), {}
    return (counts[0], counts[1], counts[2] * counts[3]), {"last": counts[3]}


def tiles_of(grid: tuple, last: dict, rank: int):
    """The tile indices of each CTA."""
    for at in np.ndindex(grid):
        yield at[:rank] if rank < 4 else (*at[:2], at[2] // last["last"], at[2] % last["last"])


# -- kinds of kernels ----------------------------------------------------------------------------------------------------

def written(y: Strided) -> tuple[Strided, np.ndarray]:
    """A copy of an output to compute the expected result in, and the view of it that the kernel gets."""
    want = Strided(y.base.copy(), shape=y.shape, strides=y.strides, offset=y.offset)
    return want, host(want)


def case(draw, kind: str, rank: int, source: str, args: dict, y: Strided, want: Strided, grid, constants=(), how="bits") -> Case:
    grid, last = grid
    layouts = ", ".join(f"{n} {a.shape} by {a.strides} at {a.offset}" for n, a in {**args, "y": y}.items() if isinstance(a, Strided))
    return Case(f"{kind} in {rank} dimensions, {y.base.dtype.name}: {layouts}", source, {**args, **last}, {"y": want.base},
                {"y": how}, grid, {"num_warps": draw(st.sampled_from((1, 2, 4))), **dict(constants)}, {"y": y}, warm=kernel_of(source))


def elementwise(draw) -> Case:
    """An operator on two arrays, each of which may be broadcast."""
    rank, a = draw(st.integers(0, 4)), draw(st.sampled_from(DTYPES))
    b = draw(st.sampled_from((a, a, *DTYPES)))
    symbol = draw(st.sampled_from(("+", "-", "*", "<", "==")))
    shape = extents(draw, rank)
    x, z = laid_out(draw, shape, a, values, True), laid_out(draw, shape, b, values, True)
    result = binary(symbol, host(x), host(z)) if rank else binary(symbol, host(x)[None], host(z)[None])[0]
    y = laid_out(draw, shape, "bool" if symbol in COMPARE else result.dtype.name, values, False)
    want, part = written(y)
    part[...] = result
    at = places(rank)
    source = kernel_text(rank, "x, z, y", f"tile.store(y[{at}], tile.load(x[{at}]) {symbol} tile.load(z[{at}]))")
    return case(draw, f"{a} {symbol} {promoted(a, b)}", rank, source, {"x": x, "z": z}, y, want, grid_of(shape))


COPIES = {"load and store": ("tile.store(y[{to}], tile.load(x[{at}], other=OTHER))",),
          "through shared memory": ("s = tile.alloc({shape}, x.dtype)", "tile.copy(s, x[{at}])", "tile.sync()", "tile.copy(y[{to}], s)"),
          "asynchronous": ("s = tile.alloc({shape}, x.dtype)", "tile.copy_async(s, x[{at}]).wait()", "tile.copy(y[{to}], s)")}


def copied(draw) -> Case:
    """Tiles that begin before the array and end after it, filled and clipped element by element."""
    way = draw(st.sampled_from(sorted(COPIES)))
    rank, dtype = draw(st.integers(0 if way == "load and store" else 1, 4)), draw(st.sampled_from(DTYPES))
    shape, halo = extents(draw, rank), draw(st.sampled_from((0, 0, 1, 4)))
    x, y = laid_out(draw, shape, dtype, values, True), laid_out(draw, shape, dtype, values, False)
    want, part = written(y)
    grid = grid_of(shape, draw(st.integers(0, 1)))
    other = 1 if way == "load and store" else 0
    for numbers in tiles_of(*grid, rank):
        starts = tuple(n * t - halo for n, t in zip(numbers, TILES[rank]))
        put(part, tuple(s + halo for s in starts), window(host(x), starts, TILES[rank], np.array(other).astype(np_dtype(dtype))))
    lines = [line.format(to=places(rank), at=places(rank, " - halo" if rank else ""), shape=TILES[rank]) for line in COPIES[way]]
    source = kernel_text(rank, "x, y, halo, OTHER: tile.constexpr", *lines)
    return case(draw, f"{way}, halo {halo}", rank, source, {"x": x, "halo": halo}, y, want, grid, {"OTHER": other})


def reduced(draw) -> Case:
    """The sum, maximum or minimum of each tile along one axis."""
    rank, dtype = draw(st.integers(1, 4)), draw(st.sampled_from(DTYPES))
    axis, name = draw(st.integers(0, rank - 1)), draw(st.sampled_from(("sum", "max", "min")))
    shape, tiles = extents(draw, rank), TILES[rank]
    x = laid_out(draw, shape, dtype, small, True)
    grid = grid_of(shape)
    filler = 0 if name == "sum" else 1 if name == "max" else 0 if dtype == "bool" or dtype.startswith("uint") else -1
    padded = window(host(x), (0,) * rank, tuple(-(-n // t) * t for n, t in zip(shape, tiles)), np.array(filler).astype(np_dtype(dtype)))
    counts = tuple(n // t for n, t in zip(padded.shape, tiles))
    blocks = padded.reshape(*padded.shape[:axis], counts[axis], tiles[axis], *padded.shape[axis + 1:])
    result = _reduced(blocks, axis + 1, name, dtype)
    inner = tuple(n if d != axis else counts[d] for d, n in enumerate(shape))
    y = laid_out(draw, inner, result.dtype.name, values, False)
    want, part = written(y)
    part[...] = result[tuple(slice(n) for n in inner)]
    at = places(rank)
    to = ", ".join(f"p{d}:p{d} + 1" if d == axis else text for d, text in enumerate(at.split(", ")))
    source = kernel_text(rank, "x, y, OTHER: tile.constexpr", f"v = tile.load(x[{at}], other=OTHER)",
                         f"tile.store(y[{to}], tile.{name}(v, axis={axis}, keepdims=True))")
    return case(draw, f"{name} along {axis}", rank, source, {"x": x}, y, want, grid, {"OTHER": filler}, how="value")


def _reduced(blocks: np.ndarray, axis: int, name: str, dtype: str) -> np.ndarray:
    """Integer sums are at least 32-bit; float sums round once to their dtype."""
    if name != "sum":
        return (blocks.astype(np.int32).max(axis) if name == "max" else blocks.astype(np.int32).min(axis)).astype(np_dtype(dtype))
    if is_float(dtype):
        total = blocks.astype(np.float64 if dtype == "float64" else np.float32).sum(axis)
        return total if dtype in ("float32", "float64") else cast(total, dtype)
    wide = dtype if dtype.endswith(("32", "64")) else "uint32" if dtype.startswith("uint") else "int32"
    return blocks.astype(wide).sum(axis, dtype=wide)


def gathered(draw) -> Case:
    """Rows by an array of indices, also out of bounds: those read `other`. The last dimensions are boxes."""
    rank, dtype = draw(st.integers(1, 4)), draw(st.sampled_from(DTYPES))
    shape, tiles, wide = extents(draw, rank), TILES[rank], draw(st.sampled_from(("int32", "int64")))
    count = draw(st.integers(0, 2 * tiles[0] + 1))
    x = laid_out(draw, shape, dtype, values, True)
    i = laid_out(draw, (count,), wide, lambda draw, n,
                 d: np.random.default_rng(draw(st.integers(0, 1000))).integers(-2, shape[0] + 2, n).astype(d), True)
    y = laid_out(draw, (count, *shape[1:]), dtype, values, False)
    want, part = written(y)
    inside = (host(i) >= 0) & (host(i) < shape[0])
    part[~inside] = np.array(1).astype(np_dtype(dtype))
    part[inside] = host(x)[host(i)[inside]]
    source = kernel_text(rank, "x, i, y", f"at = tile.load(i[{places(rank).split(', ')[0]}], other=-1)",
                         f"tile.store(y[{places(rank)}], tile.load(x[{places(rank, first='at')}], other=1))")
    return case(draw, f"gather by {wide}", rank, source, {"x": x, "i": i}, y, want, grid_of((count, *shape[1:])))


KINDS = (elementwise, copied, reduced, gathered)


@st.composite
def view_cases(draw, kinds=KINDS) -> Case:
    return draw(st.sampled_from(kinds))(draw)


__all__ = ["FLOAT8", "KINDS", "view_cases"]
