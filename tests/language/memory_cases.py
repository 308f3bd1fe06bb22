"""Cases of loads and stores: bounds, masks, strides, gather and scatter, empty arrays, 64-bit arguments."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from language_cases import Case, Strided, View, host
from language_reference import np_dtype, special
from shape_cases import filled, region


def window(x: np.ndarray, starts, extents, other) -> np.ndarray:
    """The box of `x` at `starts`; `other` out of bounds."""
    out = np.full(extents, other, x.dtype)
    inner = [slice(max(0, s), min(n, s + e)) for s, e, n in zip(starts, extents, x.shape)]
    if all(c.stop > c.start for c in inner):
        out[tuple(slice(c.start - s, c.stop - s) for c, s in zip(inner, starts))] = x[tuple(inner)]
    return out


def put(y: np.ndarray, starts, values: np.ndarray, mask=None) -> None:
    """Store `values` to the box of `y` at `starts`; elements out of bounds or masked are dropped."""
    inner = [slice(max(0, s), min(n, s + e)) for s, e, n in zip(starts, values.shape, y.shape)]
    if all(c.stop > c.start for c in inner):
        cut = tuple(slice(c.start - s, c.stop - s) for c, s in zip(inner, starts))
        keep = np.ones(values.shape, bool) if mask is None else mask
        y[tuple(inner)] = np.where(keep[cut], values[cut], y[tuple(inner)])


LAYOUTS = ("row-major", "transposed", "every other", "reversed", "offset", "inner")


def laid_out(shape, dtype: str, layout: str, seed: int) -> np.ndarray | View:
    """An array of `shape` with the strides named by `layout`."""
    if layout == "row-major":
        return filled(shape, dtype, seed)
    if layout == "transposed":
        return View(filled(shape[::-1], dtype, seed), (Ellipsis,), True)
    if layout == "every other":
        return View(filled(tuple(2 * n for n in shape), dtype, seed), tuple(slice(1, None, 2) for _ in shape))
    if layout == "reversed":
        return View(filled(shape, dtype, seed), tuple(slice(None, None, -1) for _ in shape))
    if layout == "offset":
        return View(filled(tuple(n + 3 for n in shape), dtype, seed), tuple(slice(1, n + 1) for n in shape))
    return View(filled((*shape, 3), dtype, seed), (*(slice(None) for _ in shape), 1))


def boxes(shape, tile_shape, dtype: str, reading: str, writing: str, warps: int, halo: int, seed: int) -> Case:
    """A grid of boxes read from one array and written to another, both shifted by `halo` beyond the array, with `other` and
    a mask. Both are clipped element by element."""
    rank = len(shape)
    x, y = laid_out(shape, dtype, reading, seed), laid_out(shape, dtype, writing, seed + 1)
    grid = tuple(-(-(n + halo) // t) for n, t in zip(shape, tile_shape))
    other = {"bool": True}.get(dtype, 3)
    want = View(y.base.copy(), y.index, y.transposed) if isinstance(y, View) else y.copy()
    source_, target = host(x), host(want)
    for at in np.ndindex(grid):
        starts = tuple(i * t - halo for i, t in zip(at, tile_shape))
        values = window(source_, starts, tile_shape, np.array(other).astype(np_dtype(dtype)))
        put(target, starts, values, (np.arange(tile_shape[-1]) % 7 != 3) & np.ones(tile_shape, bool))
    index = ", ".join(f"p{d} * {t} - halo:(p{d} + 1) * {t} - halo" for d, t in enumerate(tile_shape))
    lines = [f"p{d} = tile.program_id({d})" for d in range(rank)]
    lines += [f"v = tile.load(x[{index}], other={other})", f"tile.store(y[{index}], v, mask=tile.arange({tile_shape[-1]}) % 7 != 3)"]
    source = "def boxes(x, y, halo):\n    " + "\n    ".join(lines) + "\n"
    name = f"boxes {list(tile_shape)} of {list(shape)} {dtype}, {reading} to {writing}, halo {halo}, {warps} warps"
    return Case(name, source, {"x": x, "halo": halo}, {"y": want.base if isinstance(want, View) else want}, grid=grid,
                options={"num_warps": warps}, start={"y": y})


def plain(shape, tile_shape, dtype: str, warps: int, cache: str = "") -> Case:
    """Boxes without masks or halos, where vectors may be used; ragged edges are clipped element by element."""
    x = filled(shape, dtype, 1)
    grid = tuple(-(-n // t) for n, t in zip(shape, tile_shape))
    index = ", ".join(f"p{d} * {t}:(p{d} + 1) * {t}" for d, t in enumerate(tile_shape))
    lines = [f"p{d} = tile.program_id({d})" for d in range(len(shape))]
    option = f", cache={cache!r}" if cache else ""
    store = option if cache != "ca" else ""
    lines += [f"tile.store(y[{index}], tile.load(x[{index}]{option}){store})"]
    source = "def plain(x, y):\n    " + "\n    ".join(lines) + "\n"
    return Case(f"plain {list(tile_shape)} of {list(shape)} {dtype}, {warps} warps{option}", source, {"x": x}, {"y": x.copy()}, grid=grid,
                options={"num_warps": warps})


def masks() -> Case:
    """Masks that are tiles, scalars and broadcast; `other` that is a tile or a scalar."""
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    m = np.arange(35).reshape(5, 7) % 3 == 0
    o = -x
    want = {
        "tile.load(x[0:5, 0:7], other=9, mask=k)": np.where(m, x, 9),
        "tile.load(x[0:5, 0:7], other=tile.load(o[0:5, 0:7]), mask=k)": np.where(m, x, o),
        "tile.load(x[0:5, 0:7], other=n, mask=n > 3)": x,
        "tile.load(x[0:5, 0:7], other=n, mask=n < 3)": np.full((5, 7), 5),
        "tile.load(x[0:5, 0:7], mask=tile.arange(7) < 4)": np.where(np.arange(7) < 4, x, 0),
        "tile.load(x[0:5, 0:7], mask=(tile.arange(5) < 2)[:, None])": np.where(np.arange(5)[:, None] < 2, x, 0),
        "tile.load(x[2:7, 3:10], other=-float('inf'))": window(x, (2, 3), (5, 7), -np.inf),
        "tile.load(x[n - 9:n - 4, n - 4:n + 3], other=float('nan'))": window(x, (-4, 1), (5, 7), np.nan),
    }
    lines, expected = [], {}
    for i, (text, value) in enumerate(want.items()):
        expected[f"y{i}"] = value.astype(np.float32)
        lines.append(f"tile.store(y{i}[0:5, 0:7], {text})")
    source = f"def masks(x, m, o, n, {', '.join(expected)}):\n    k = tile.load(m[0:5, 0:7])\n    " + "\n    ".join(lines) + "\n"
    return Case("masks", source, {"x": x, "m": m, "o": o, "n": 5}, expected)


def others() -> Iterator[Case]:
    """`other` that differs between CTAs, or between the threads that read the same element."""
    x = np.arange(10, 14, dtype=np.int32)
    at = lambda i, p: x[i] if i < 4 else p
    rows = [[at(i, p) for i in (*range(8), 7, 1, *range(8, 12), *range(2, 6), *range(p, p + 4))] for p in range(3)]
    source = ("def of_ctas(x, y):\n    p = tile.program_id(0)\n    tile.store(y[p, 0:8], tile.load(x[0:8], other=p))\n"
              "    tile.store(y[p, 8], tile.load(x[7], other=p))\n    tile.store(y[p, 9], tile.load(x[1], other=p))\n"
              "    tile.store(y[p, 10:14], tile.load(x[8:12], other=p))\n    tile.store(y[p, 14:18], tile.load(x[tile.arange(4) + 2], other=p))\n"
              "    tile.store(y[p, 18:22], tile.load(x[p:p + 4], other=p))\n")
    yield Case("others of CTAs", source, {"x": x}, {"y": np.array(rows, np.int32)}, grid=(3,))
    t = np.arange(64, dtype=np.int32)
    source = ("def of_threads(x, n, y):\n    t = tile.thread_id()\n    s = tile.alloc((1,), tile.int32)\n    tile.store(s[0], 3)\n    tile.sync()\n"
              "    tile.store(y[0, t], tile.load(x[n], other=t))\n    tile.store(y[1, t], tile.load(x[0], other=t, mask=n < 5))\n"
              "    tile.store(y[2, t], tile.load(x[t], other=t))\n    tile.store(y[3, t], tile.load(x[n], other=t, sem='relaxed'))\n"
              "    tile.store(y[4, t], tile.load(s[0], other=t, mask=t < n))\n")
    want = np.stack([t, t, np.r_[x, t[4:]], t, np.where(t < 5, 3, t)])
    yield Case("others of threads", source, {"x": x, "n": 5}, {"y": want}, options={"num_warps": 2})


def gathers(dtype: str = "float32", warps: int = 4) -> Case:
    """Index tiles at every position of an index, also out of bounds; scatters to distinct locations."""
    x = filled((11, 13), dtype, 2)
    rng = np.random.default_rng(7)
    i, j = rng.integers(-3, 14, 24).astype(np.int32), rng.integers(-3, 16, 24).astype(np.int64)
    inside = lambda a, n: (a >= 0) & (a < n)
    other = np.array(1).astype(np_dtype(dtype))
    pick = lambda r, c: np.where(inside(r, 11) & inside(c, 13), x[np.clip(r, 0, 10), np.clip(c, 0, 12)], other)
    want = {
        "tile.load(x[i, j], other=1)": pick(i, j),
        "tile.load(x[i[:, None], j[None, :]], other=1)": pick(i[:, None], j[None, :]),
        "tile.load(x[i, 2:7], other=1)": pick(i[:, None], np.arange(2, 7)[None, :]),
        "tile.load(x[1:9, j], other=1)": pick(np.arange(1, 9)[:, None], j[None, :]),
        "tile.load(x[n, j], other=1)": pick(np.full(24, 5), j),
        "tile.load(x[i, n], other=1)": pick(i, np.full(24, 5)),
        "tile.load(x[i, j], other=1, mask=i > j)": np.where(i > j, pick(i, j), other),
        "tile.load(x[i.reshape(4, 6), n - 3:n], other=1)": pick(i.reshape(4, 6)[..., None], np.arange(2, 5)),
    }
    order = np.random.default_rng(8).permutation(40).astype(np.int32)
    places = np.concatenate([order, [-1, 40, 1000]]).astype(np.int32)
    moved = filled((43,), dtype, 3)
    scattered = np.zeros(40, np_dtype(dtype))
    scattered[order] = moved[:40]
    rows = np.zeros((11, 5), np_dtype(dtype))
    rows[::-1] = x[:, 1:6]
    lines, expected = [], {}
    for k, (text, value) in enumerate(want.items()):
        expected[f"y{k}"] = np.ascontiguousarray(value)
        lines.append(f"tile.store(y{k}[{region(value.shape)}], {text})")
    expected |= {"s": scattered, "r": rows}
    lines += ["tile.store(s[tile.load(p[0:43])], tile.load(m[0:43]))", "tile.store(r[10 - tile.arange(11), 0:5], tile.load(x[0:11, 1:6]))"]
    source = (f"def gathers(x, a, b, p, m, n, {', '.join(expected)}):\n    i = tile.load(a[0:24])\n    j = tile.load(b[0:24])\n    "
              + "\n    ".join(lines) + "\n")
    return Case(f"gathers of {dtype}, {warps} warps", source, {"x": x, "a": i, "b": j, "p": places, "m": moved, "n": 5}, expected,
                options={"num_warps": warps})


def indices(dtype: str) -> Case:
    """Index tiles and scalars of any integer dtype, in global and shared memory; those of 32 bits and more address elements beyond
    the range of int32."""
    top = min(np.iinfo(dtype).max, 3 << 30)
    i = np.array([0, 5, top, 3], dtype)
    x = Strided(np.arange(7, dtype=np.float32), shape=(top + 1, 7), strides=(0, 1))
    source = ("def indices(x, a, y, z, c, w):\n"
              "    i = tile.load(a[0:4])\n    n = tile.load(a[2])\n    k = tile.load(a[1])\n"
              "    tile.store(y[0:4, 0:7], tile.load(x[i, 0:7], other=-1))\n"
              "    tile.store(z[0:3, 0:7], tile.load(x[n - 1:n + 2, 0:7], other=-1))\n"
              "    s = tile.alloc((8,), tile.int32)\n    tile.store(s, tile.zeros((8,), tile.int32))\n    tile.sync()\n"
              "    tile.atomic_add(s[i], 1, mask=i < 8)\n    tile.sync()\n"
              "    tile.store(c[0:8], tile.load(s))\n    tile.store(w[0:2], tile.load(s[k:k + 2]))\n")
    row = np.arange(7, dtype=np.float32)
    counts = np.array([1, 0, 0, 1, 0, 1, 0, 0], np.int32)
    return Case(f"indices of {dtype}", source, {"x": x, "a": i}, {"y": np.stack([row] * 4), "z": np.stack([row, row, row * 0 - 1]),
                "c": counts, "w": counts[5:7]})


def large() -> Case:
    """32-bit arithmetic of a block's number addresses elements beyond 2^31, by regions, boxes, points and windows."""
    n, block, p = 3_000_000_007, 1024, 2_929_687  # the last block has 519 elements
    source = ("def large(x, p, a, b, c, d, e, f):\n"
              "    p += tile.program_id(0)\n"
              "    i = p * 1024\n"
              "    at = i + tile.arange(1024)\n"
              "    tile.store(a[0:1024], tile.load(x[i:i + 1024], other=-1))\n"
              "    tile.store(b[0:1024], tile.load(x.tiles((1024,))[p], other=-1))\n"
              "    tile.store(c[0:1024], tile.load(x[at], other=-1))\n"
              "    tile.store(d[0:1024], tile.load(x[p * 1024:p * 1024 + 1024][at - i], other=-1))\n"
              "    tile.store(e[0:1024], tile.load(tile.window(x, i, 600)[0:1024], other=-1))\n"
              "    tile.store(f[0:4], tile.load(x[-(-i) + 515:i + 519]))\n")
    want = np.where(np.arange(1024) < n - p * block, 5, -1).astype(np.int8)
    x = Strided(np.array([5], np.int8), shape=(n,), strides=(0,))
    return Case("an array of more than 2^31 elements", source, {"x": x, "p": p}, {**{y: want for y in "abcde"}, "f": want[515:519]})


def small_arrays() -> Iterator[Case]:
    """Arrays without dimensions or without elements, and extents of 1."""
    source = ("def scalars(x, y, e, z):\n"
              "    tile.store(y[()], tile.load(x[()]) * 2)\n"
              "    tile.store(z[0:8], tile.load(e[0:8], other=7))\n"
              "    tile.store(e[0:8], tile.zeros((8,)))\n")
    yield Case("arrays of no dimension and of no element", source, {"x": np.array(21, np.float32)},
               {"y": np.array(42, np.float32), "z": np.full(8, 7, np.float32), "e": np.zeros(0, np.float32)})
    x = np.arange(12, dtype=np.int16).reshape(1, 12, 1)
    yield Case("extents of 1", "def ones(x, y):\n    tile.store(y[0, 0:12, 0:1], tile.load(x[0, 0:12, 0]).reshape(12, 1) + 1)\n",
               {"x": x}, {"y": x + np.int16(1)})
    empty = np.zeros((0, 5), np.int32)
    yield Case("no CTA at all", "def none(x, y):\n    tile.store(y[0, 0:5], tile.load(x[0, 0:5]))\n", {"x": empty},
               {"y": np.zeros((3, 5), np.int32)}, grid=(0,))


def wide_arguments() -> Iterator[Case]:
    """Python integers that need 64 bits are passed whole; those that fit are 32-bit."""
    source = ("def wide(x, n, y, z, w):\n"
              "    v = tile.load(x[0:4])\n"
              "    tile.store(y[0:4], v + n)\n"
              "    tile.store(z[0:4], v < n)\n"
              "    tile.store(w[0:1], n // 3)\n")
    x = np.array([0, -1, 2**40, 2**62], np.int64)
    for n in (2**40 + 5, -2**40, 2**31 - 1, 2**31, -2**31, 2**63 - 1, -2**63, 3):
        with np.errstate(over="ignore"):
            yield Case(f"the argument {n}", source, {"x": x, "n": n}, {"y": x + np.int64(n), "z": x < n, "w": np.array([n // 3], np.int64)})
    source = "def mixed(x, n, y):\n    r = tile.load(x[0:4]) + n\n    tile.static_assert(r.dtype == tile.int64)\n    tile.store(y[0:4], r)\n"
    x = np.array([0, -1, 7, 2**31 - 1], np.int32)
    yield Case("int32 with an argument that needs 64 bits", source, {"x": x, "n": 2**40}, {"y": x.astype(np.int64) + 2**40})


def flags() -> Iterator[Case]:
    """bool arguments are conditions and operands."""
    source = ("def flags(x, on, y):\n"
              "    v = tile.load(x[0:4])\n"
              "    if on:\n        v = v + 1\n"
              "    if not on and x.shape[0] > 2:\n        v = v - 1\n"
              "    tile.store(y[0:4], tile.where(on, v * 2, v) + on)\n")
    x = np.arange(4, dtype=np.float32)
    for on in (True, False):
        yield Case(f"the argument {on}", source, {"x": x, "on": on}, {"y": (x + 1) * 2 + 1 if on else x - 1})


def beyond_signed() -> Iterator[Case]:
    """uint64 indices, slice starts, and window offsets and extents beyond the range of int64 are past the end of the array, not
    before it."""
    source = ("def beyond(x, i, y):\n"
              "    a = tile.load(i[0])\n"
              "    tile.store(y[0, 0:8], tile.load(x[a:a + 8], other=-5))\n"
              "    tile.store(y[1, 0:8], tile.load(tile.window(x, a, 8)[0:8], other=-5))\n"
              "    tile.store(y[2, 0:8], tile.load(tile.window(x, 4, a)[0:8], other=-5))\n"
              "    tile.store(y[3, 0:8], tile.load(x[tile.load(i[0:8])], other=-5))\n"
              "    tile.store(y[4, a:a + 8], 1.0)\n"
              "    tile.store(y[5, tile.load(i[0:8])], 1.0)\n"
              "    tile.store(y[6, 0], tile.load(x[a], other=-5))\n"
              "    tile.store(y[a, 1], 1.0)\n")
    x = np.arange(20, dtype=np.float32)
    for a in (2**64 - 4, 2**63, 2**63 - 4, 2**62 + 3, 2**33, 7):
        i = np.array([a, 2**64 - 1, 7, 2**63, 2**64 - 7, 2**63 + 2, 5, 2**64 - 8], np.uint64)
        y = np.zeros((8, 8), np.float32)
        for r, starts, stop in ((0, a, 20), (1, a, min(a + 8, 20)), (2, 4, min(4 + a, 20))):
            y[r] = window(x[:stop], (starts,), (8,), -5)
        y[3] = [x[n] if n < 20 else -5 for n in map(int, i)]
        put(y[4], (a,), np.ones(8, np.float32))
        y[5, [n for n in map(int, i) if n < 8]] = 1
        y[6, 0] = x[a] if a < 20 else -5
        if a < 8:
            y[a, 1] = 1
        yield Case(f"the index {a} of uint64", source, {"x": x, "i": i}, {"y": y})


def memory_cases(few: bool = False) -> Iterator[Case]:
    """All cases of this file; `few` omits most of the shapes."""
    yield masks()
    yield from others()
    yield from small_arrays()
    if not few:  # too large to copy
        yield large()
    yield from wide_arguments()
    yield from flags()
    yield from beyond_signed()
    for dtype, warps in (("float32", 4), ("int8", 1), ("bool", 2), ("float64", 8), ("float8_e5m2", 4), ("bfloat16", 2)):
        yield gathers(dtype, warps)
    for dtype in ("int8", "uint8", "int16", "uint16", *(() if few else ("int32", "uint32", "int64", "uint64"))):
        yield indices(dtype)
    dtypes = ("float32", "int8", "float16", "uint64", "bool", "int16", "float8_e4m3fn", "float64", "bfloat16", "uint32", "float8_e5m2")
    shapes = (((37,), (16,)), ((129,), (128,)), ((13, 29), (8, 8)), ((16, 64), (16, 32)), ((5, 7), (16, 16)), ((31, 17), (3, 5)),
              ((5, 6, 7), (2, 4, 8)), ((1, 1), (4, 4)))
    n = 0
    for shape, tile_shape in shapes:
        for k, reading in enumerate(LAYOUTS):
            n += 1
            if few and n % 5:
                continue
            yield boxes(shape, tile_shape, dtypes[n % len(dtypes)], reading, LAYOUTS[(k + n) % len(LAYOUTS)], (1, 2, 4, 8)[n % 4],
                        (0, 3, 1)[n % 3], n)
    for n, dtype in enumerate(dtypes):
        for shape, tile_shape in (((1000,), (256,)), ((64, 96), (16, 64)), ((33, 40), (8, 32)), ((30, 52), (16, 16)))[n % 2::2]:
            yield plain(shape, tile_shape, dtype, (4, 1, 8, 2)[n % 4])
    for cache in ("ca", "cg", "cs", "evict_first", "evict_last", "no_allocate"):
        yield plain((64, 48), (16, 16), "float32", 4, cache)


__all__ = ["boxes", "gathers", "memory_cases", "plain", "special"]
