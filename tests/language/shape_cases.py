"""Cases of broadcasting, reshape, transpose and slices of tiles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from language_cases import Case
from language_reference import binary, np_dtype, special

SHAPES = ((1,), (2,), (37,), (128,), (1000,), (1, 1), (3, 5), (16, 32), (7, 64), (64, 7), (13, 1), (1, 29), (2, 3, 5), (4, 1, 16), (3, 8, 2, 5))


def region(shape) -> str:
    """The index of a whole array of `shape`, as source."""
    return ", ".join(f"0:{n}" for n in shape)


def filled(shape, dtype: str, seed: int = 0) -> np.ndarray:
    size = int(np.prod(shape))
    return np.random.default_rng(seed).permutation(np.resize(special(dtype, seed, 64), size)).reshape(shape)


def slices(rng, shape) -> tuple[str, tuple]:
    """A random static index of a tile: (source text, Python index)."""
    parts, texts = [], []
    for n in shape:
        kind = rng.integers(0, 5)
        if kind == 0:
            start, stop, step = sorted(rng.integers(0, n + 1, 2).tolist()) + [int(rng.integers(1, 4))]
            parts.append(slice(start, stop, step))
            texts.append(f"{start}:{stop}:{step}")
        elif kind == 1 and n > 1:
            at = int(rng.integers(-n, n))
            parts.append(at)
            texts.append(str(at))
        elif kind == 2:
            cut = int(rng.integers(1, n + 1))
            parts.append(slice(-cut, None))
            texts.append(f"-{cut}:")
        elif kind == 3:
            parts.extend((None, slice(None)))
            texts.extend(("None", ":"))
        else:
            parts.append(slice(None, None, 2))
            texts.append("::2")
    if all(isinstance(p, int) for p in parts):
        parts.append(None)
        texts.append("None")
    return ", ".join(texts), tuple(parts)


def shapes(shape, dtype: str = "int32", warps: int = 4, seed: int = 0) -> Case:
    """Shape operations on one tile of `shape`."""
    rng = np.random.default_rng([seed, len(shape), *shape])
    x = filled(shape, dtype, seed)
    want: dict[str, np.ndarray] = {"x.T": x.T, "x.reshape(-1)": x.reshape(-1), "x[None]": x[None], "x[..., None]": x[..., None]}
    for axes in list(itertools.permutations(range(len(shape))))[1:4]:
        want[f"tile.transpose(x, {axes})"] = x.transpose(axes)
    flat = tuple(int(n) for n in rng.permutation(np.array(shape)))
    want[f"tile.reshape(x, {flat})"] = x.reshape(flat)
    want[f"x.T.reshape({x.size}).reshape({flat})"] = x.T.reshape(-1).reshape(flat)
    axis = int(rng.integers(0, len(shape) + 1))
    want[f"tile.expand_dims(x, {axis})"] = np.expand_dims(x, axis)
    want[f"tile.stack((x, x.T.reshape(-1).reshape({shape})), {axis})"] = np.stack((x, x.T.reshape(shape)), axis)
    want[f"tile.broadcast_to(x, {(2, *shape)})"] = np.broadcast_to(x, (2, *shape))
    for _ in range(4):
        text, index = slices(rng, shape)
        cut = x[index]
        if cut.size:
            want[f"x[{text}]"] = cut
            want[f"(x[{text}]).T"] = cut.T
    for _ in range(3):
        narrow = tuple(int(n) if rng.integers(0, 2) else 1 for n in shape)[int(rng.integers(0, len(shape))):]
        y = filled(narrow, dtype, seed + 1)
        want[f"x * tile.load(b{len(want)}[{region(narrow)}])"] = (x, y)
    args, expected, lines = {"a": x}, {}, []
    for i, (text, value) in enumerate(want.items()):
        if isinstance(value, tuple):
            name = text.split("load(")[1].split("[")[0]
            args[name] = value[1]
            value = binary("*", *np.broadcast_arrays(*value))
        expected[f"o{i}"] = np.ascontiguousarray(value).reshape(value.shape)
        lines.append(f"tile.store(o{i}[{region(value.shape)}], {text})")
    source = f"def shapes({', '.join([*args, *expected])}):\n    x = tile.load(a[{region(shape)}])\n    " + "\n    ".join(lines) + "\n"
    return Case(f"shapes of {list(shape)} {dtype}, {warps} warps", source, args, expected, options={"num_warps": warps})


def made(shape, warps: int = 4) -> Case:
    """Tiles created by arange, full etc., alone and combined."""
    size = int(np.prod(shape))
    count = shape[-1]
    ramp = np.broadcast_to(np.arange(3, 3 + count, dtype=np.int32), shape)
    want = {
        f"tile.arange({count})": np.arange(count, dtype=np.int32),
        f"tile.full({shape}, 2.5)": np.full(shape, 2.5, np.float32),
        f"tile.full({shape}, n)": np.full(shape, 7, np.int32),
        f"tile.zeros({shape}, tile.uint8)": np.zeros(shape, np.uint8),
        f"tile.ones({shape}, tile.bfloat16)": np.ones(shape, np_dtype("bfloat16")),
        f"tile.full({shape}, True)": np.ones(shape, bool),
        f"tile.full({shape}, -1, tile.int64)": np.full(shape, -1, np.int64),
        f"tile.broadcast_to(tile.arange(3, {3 + count}), {shape})": ramp,
        f"tile.arange({size}).reshape({shape}) * 2 + n": np.arange(size, dtype=np.int32).reshape(shape) * 2 + 7,
        f"tile.where(tile.arange({count}) % 2 == 0, tile.full({shape}, 1.0), 0.0)": np.broadcast_to(np.where(np.arange(count) % 2 == 0, 1, 0), shape).astype(np.float32),
    }
    expected, lines = {}, []
    for i, (text, value) in enumerate(want.items()):
        expected[f"o{i}"] = np.ascontiguousarray(value)
        lines.append(f"tile.store(o{i}[{region(value.shape)}], {text})")
    source = f"def made({', '.join(['n', *expected])}):\n    " + "\n    ".join(lines) + "\n"
    return Case(f"tiles made of shape {list(shape)}, {warps} warps", source, {"n": 7}, expected, options={"num_warps": warps})


def shape_cases() -> Iterator[Case]:
    """All cases of this file."""
    dtypes = ("int32", "uint8", "float64", "bfloat16", "bool", "int16", "float8_e5m2")
    for i, shape in enumerate(SHAPES):
        dtype = dtypes[i % len(dtypes)]
        yield shapes(shape, "int8" if dtype == "bool" and len(shape) > 2 else dtype, (4, 1, 2, 8)[i % 4], seed=i)
        yield made(shape, (2, 4, 1, 8)[i % 4])
