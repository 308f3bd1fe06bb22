"""Random im2col copies and copies of rows selected by index, with the bytes that they move, for the simulator and the GPU."""

from types import SimpleNamespace

import numpy as np
import tilejit as tile
from bytecheck import NOWHERE
from named_map_kernels import aligned
from tma_kernels import reference_patches
from values import UNIT, any_bits

DTYPES = ("uint8", "float8_e8m0fnu", "int16", "bfloat16", "float32", "int64", "float64")


def random_box(rng, heights, modes=(None, 0, 32, 64, 128)) -> tuple:
    """(dtype, rows, columns, layout of two stages): row-major, in columns of 16 bytes, or swizzled."""
    dtype, mode, n = rng.choice(DTYPES), rng.choice(modes), rng.choice(heights)
    wide = rng.randint(1, 3) * ((mode or 16) * UNIT[dtype] // 16)
    return dtype, n, wide, None if mode is None else tile.swizzled(dtype, (2, n, wide), mode)


def random_filter(rng, rank: int, store: bool, padded: int = 2) -> tuple:
    """(filter, stride, padding, dilation) and a filter position; for stores, one that is inside the images everywhere."""
    filter = tuple(rng.randint(1, 3) for _ in range(rank))
    stride, dilation = (tuple(rng.randint(1, n) for _ in range(rank)) for n in (3, 2))
    place = tuple(rng.randrange(n) for n in filter)
    most = [(o * d, (n - 1 - o) * d) if store else (padded, padded) for o, n, d in zip(place, filter, dilation)]
    return (filter, stride, tuple(tuple(rng.randint(0, min(2, m)) for m in both) for both in most), dilation), place


def some_memory(rng, outer, box, least: int = -2) -> tuple[np.ndarray, np.ndarray]:
    """Memory, and an array in it with these outer extents: its rows are about as long as a box, possibly with gaps, and possibly not
    a multiple of 16 bytes."""
    unit = UNIT[box[0]]
    channels = max(box[2] + rng.randint(least, 3) * unit, unit)
    shape = (*outer, channels + rng.choice((0, unit)))
    room = aligned(shape, any_bits(box[0], (1,)).dtype)
    room[:] = any_bits(box[0], shape, rng.randrange(100))
    return room, room[..., :channels - (rng.randrange(unit) if rng.random() < .25 else 0)]


def some_images(rng, window, box, more=range(12), least: int = -2) -> tuple[np.ndarray, np.ndarray]:
    """Memory, and images in it that are large enough for the filter."""
    filter, _, padding, dilation = window
    extents = [max((n - 1) * d + 1 - before - after, 1) + rng.choice(more) for n, d, (before, after) in zip(filter, dilation, padding)]
    return some_memory(rng, (rng.randint(1, 3), *extents), box, least)


def addresses(x: np.ndarray) -> np.ndarray:
    """The byte offset of each element of an array from its first."""
    return sum(i * s for i, s in zip(np.indices(x.shape), x.strides))


def block(found: np.ndarray, first: int, column: int, rows: int, columns: int) -> np.ndarray:
    """A block of a matrix of addresses, NOWHERE outside."""
    out = np.full((rows, columns), NOWHERE)
    part = found[first:first + rows, column:column + columns]
    out[:part.shape[0], :part.shape[1]] = part
    return out


def elements(room: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The elements at these bytes of the memory, zeros for NOWHERE."""
    out, inside = np.zeros((*at.shape, room.itemsize), np.uint8), at != NOWHERE
    out[inside] = room.reshape(-1).view(np.uint8)[at[inside][:, None] + np.arange(room.itemsize)]
    return out.reshape(at.shape[0], -1).view(room.dtype)


def written(room: np.ndarray, at: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The memory after the elements of `y` were stored to these bytes, except those for NOWHERE."""
    out, inside = room.copy(), at != NOWHERE
    out.reshape(-1).view(np.uint8)[at[inside][:, None] + np.arange(room.itemsize)] = y[inside].reshape(-1, 1).view(np.uint8)
    return out


def corners(x: np.ndarray, window, first: int, column: int) -> tuple:
    """The first pixel's image, the filter's first corner there, and the first channel."""
    at, left = [], first
    for n, s, (before, _) in reversed(list(zip(counts(x, window), window[1], window[2]))):
        at.insert(0, left % n * s - before)
        left //= n
    return (left, *at, column)


def counts(x: np.ndarray, window) -> list[int]:
    """The result's extents."""
    return [(n + before + after - (f - 1) * d - 1) // s + 1 for n, f, s, (before, after), d in zip(x.shape[1:-1], *window)]


def covered_bytes(x: np.ndarray, window, place) -> np.ndarray:
    """The bytes that a filter position covers, [image, ..., channel] by the result's extents; NOWHERE outside."""
    at = reference_patches(addresses(x) + 1, *window)[int(np.ravel_multi_index(place, window[0]))] - 1
    return np.where(at < 0, NOWHERE, at).reshape(x.shape[0], *counts(x, window), x.shape[-1])


def patches_anywhere(rng, store: bool) -> tuple:
    """The common part of im2col loads and stores; in a third of the cases, all pixels of a copy are inside the images."""
    inside, rank, stage = rng.random() < .33, rng.randint(1, 3), rng.randrange(2)
    first, channel = (0, 0) if inside else (rng.choice((0, 1, 7, 30)), rng.choice((0, 0, 1, 3)))
    box = random_box(rng, (8, 16) if inside else (8, 16, 24, 40, 72))
    window, place = random_filter(rng, rank, store, 0 if inside else 2)
    room, x = some_images(rng, window, box, range(50, 60) if inside and rank == 1 else range(6, 12) if inside else range(8), 1 if inside else -2)
    return rank, first, channel, stage, box, window, place, room, x


def load_case(rng) -> SimpleNamespace:
    """An im2col load: the arguments and constants of `load_patch`, the memory, the bytes `at` that go to `y`, and the starting
    point of the plan."""
    rank, first, channel, stage, box, window, place, room, x = patches_anywhere(rng, False)
    (dtype, p, c, layout), column = box, channel * UNIT[box[0]]
    y, options = np.zeros((p, c), x.dtype), dict(F=(*window, None), P=p, C=c, U=UNIT[dtype], LAYOUT=layout, STAGE=stage)
    at = block(covered_bytes(x, window, place).reshape(-1, x.shape[-1]), first, column, p, c)
    return SimpleNamespace(arguments=(x, y, first, 0, 0, *place, *(0,) * (3 - rank), channel), options=options, room=room, y=y, at=at, box=box,
                           stage=stage, rank=rank, starts=corners(x, window, first, column), offsets=[o * d for o, d in zip(place, window[3])])


def load_along_w_case(rng) -> SimpleNamespace:
    """The same in W mode, or in W mode with 128 pixels (`wide`)."""
    rank, wide, first, channel, stage = rng.randint(1, 3), rng.random() < .5, rng.randrange(10), rng.randrange(2), rng.randrange(2)
    dtype, p, c, layout = box = random_box(rng, (128,) if wide else range(8, 136, 8), (32, 64, 128))
    window, place = random_filter(rng, rank, False)
    (room, x), column = some_images(rng, window, box, range(41)), channel * UNIT[dtype]
    line = [rng.randrange(n) for n in counts(x, window)[:-1]]
    y = np.zeros((p, c), x.dtype)
    options = dict(F=(*window, "w128" if wide else "w"), P=p, C=c, U=UNIT[dtype], LAYOUT=layout, STAGE=stage, target="sm_100a")
    at = block(covered_bytes(x, window, place)[(slice(None), *line)].reshape(-1, x.shape[-1]), first, column, p, c)
    image, w, _ = corners(x[(slice(None), *(0,) * len(line))], [part[-1:] for part in window], first, column)
    others = [k * s - before + o * d for k, s, (before, _), o, d in zip(line, window[1], window[2], place, window[3])]
    return SimpleNamespace(arguments=(x, y, first, *line, *(0,) * (2 - len(line)), *place, *(0,) * (3 - rank), channel), options=options, room=room,
                           y=y, at=at, box=box, stage=stage, rank=rank, wide=wide, starts=(image, *others, w, column),
                           offsets=[place[-1] * window[3][-1]])


def store_case(rng) -> SimpleNamespace:
    """A store to the pixels that a filter position covers, where all are inside: the arguments of `store_patch`, and the bytes
    `at` that get `y`."""
    rank, first, channel, stage, box, window, place, room, x = patches_anywhere(rng, True)
    (dtype, p, c, layout), column = box, channel * UNIT[box[0]]
    y = any_bits(dtype, (p, c), 3)
    options = dict(PLACE=place, F=(*window, None), P=p, C=c, U=UNIT[dtype], LAYOUT=layout, STAGE=stage)
    at = block(covered_bytes(x, window, place).reshape(-1, x.shape[-1]), first, column, p, c)
    return SimpleNamespace(arguments=(x, y, first, channel), options=options, room=room, y=y, at=at, box=box, stage=stage, rank=rank,
                           starts=corners(x, window, first, column), offsets=())


def rows_case(rng) -> SimpleNamespace:
    """A `gather` or a `scatter` (`store`) of rows in any order; rows that are read may repeat."""
    box, store, near, stage = random_box(rng, range(8, 56, 8)), rng.random() < .5, rng.random() < .5, rng.randrange(2)
    dtype, n, c, layout = box
    height = rng.randint(1, 60) + (n if store else 0)
    room, x = some_memory(rng, (height,), box, 1 if near else -2)
    y, column = any_bits(dtype, (n, c), 5), 0 if near else rng.choice((0, 1) if store else (-1, 0, 1))
    numbers = range(height) if near else range(-5, height + 5)
    rows = np.array(rng.sample(numbers, n) if store else rng.choices(numbers, k=n), np.int32)
    options = dict(C=c, N=n, U=UNIT[dtype], LAYOUT=layout, STAGE=stage, target="sm_100a")
    whole = np.full((height + 16, 8 * c + x.shape[1]), NOWHERE)
    whole[8:height + 8, 4 * c:4 * c + x.shape[1]] = addresses(x)
    at = whole[rows + 8, 4 * c + column * UNIT[dtype]:][:, :c]
    return SimpleNamespace(arguments=(x, rows, y, column), options=options, room=room, y=y, at=at, box=box, stage=stage, store=store,
                           column=column * UNIT[dtype], rows=rows.tolist())
