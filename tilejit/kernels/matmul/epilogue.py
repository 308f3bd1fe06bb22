"""The epilogue on Hopper: from a tile's sums to the stored result.

Scales, the user's function, and the way through staging buffers in shared memory.

Each consumer stores its rows by TMA, from staging buffers of some columns each. TMA may have loaded an array that the
epilogue takes to the same buffers before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilejit as tile

from .config_rules import HIGH
from .constants import Epilogue

PIECE = 16    # deferred columns that are finished at a time, under one slot's products of the next tile
# most columns that an epilogue gets at a time if threads store the tile:
# its loads are converted to the sums' layout in shared memory
AT_ONCE = 64


@dataclass(frozen=True)
class Finishing:
    """How a CTA's sums become results: the factors SA and SB, the epilogue's arguments and tiles (`extra`), and the
    epilogue. The rows of `mixed` sums are permuted as in `load_transposed`. `ahead` says which of the tiles TMA loads,
    `lines` holds the consumer's rows among these, else None."""

    SA: Any
    SB: Any
    extra: tuple
    epilogue: Epilogue
    mixed: bool = False
    ahead: tuple[bool, ...] = ()
    lines: tuple = ()
    tile_record = True


@tile.jit
def rows_of(BM: tile.constexpr):
    """The rows of each consumer in a tile of BM rows."""
    return 128 if BM == HIGH else 64


@tile.jit
def box(X, z, i, j, extents):
    """The region of X, or of its matrix `z` if it holds several, from row `i` and column `j` on."""
    if len(X.shape) == 3:
        return X[z, i:i + extents[0], j:j + extents[1]]
    return X[i:i + extents[0], j:j + extents[1]]


@tile.jit
def line(x, z, first, count: tile.constexpr, AXES: tile.constexpr):
    """`count` elements of x from `first` on along the last of its `AXES` (named as by `axes_of`), of matrix `z` if
    each has its own."""
    own = z if AXES[0] == "z" else 0
    if len(AXES) == 3:
        return x[own, 0, first:first + count]
    if len(AXES) == 2:
        return x[own, first:first + count]
    return x[first:first + count]


@tile.jit
def is_line(AXES: tile.constexpr):
    """Whether an epilogue's tile is the same for all rows of the result."""
    return "m" not in AXES


@tile.jit
def load_argument(x, z, m, n, shape, AXES: tile.constexpr, row=None):
    """What the user's function gets of an array x, for sums of `shape` from row `m` and column `n` on; an extent of 1
    in x stays 1. `row` holds the columns, in shared memory, if TMA has loaded them."""
    COLUMNS: tile.constexpr = shape[1] if AXES[-1] == "n" else 1
    if not is_line(AXES):
        return tile.load(box(x, z if AXES[0] == "z" else 0, m, n if AXES[-1] == "n" else 0, (shape[0], COLUMNS)))
    if row is None:
        row = line(x, z, n if AXES[-1] == "n" else 0, COLUMNS, AXES)
    found = tile.load(row)
    return found[None, :] if AXES[:-1] not in ("", "z") else found


@tile.jit
def in_order(sums):
    """Sums whose rows are permuted as in `load_transposed`, with the rows in order."""
    bits = tile.reshape(sums, (2, 2, 2, 2, 2, 2, sums.shape[1]))
    return tile.reshape(tile.transpose(bits, (0, 4, 1, 3, 5, 2, 6)), sums.shape)


@tile.jit
def factor(x, IS_ARRAY: tile.constexpr):
    """A scale: a number, or the only element of an array."""
    return tile.load(x[0]) if IS_ARRAY else x


@tile.jit
def finish_sums(acc, z, m, n, how, there=None, AT: tile.constexpr = 0):
    """The values to store for sums from row `m` and column `n` on: scaled, and passed to the user's function with its
    arguments, then its tiles. Of the tiles that TMA has loaded, `there` is the one of the sums' shape, and
    `how.lines` holds rows for the whole tile, in which the sums begin at column `AT`."""
    extra, lines, EPILOGUE = how.extra, how.lines, how.epilogue
    COUNT: tile.constexpr = len(EPILOGUE.tiles)
    if how.mixed:
        acc = in_order(acc)
    if EPILOGUE.scaled:
        acc = tile.cast(acc, tile.float32) * (factor(how.SA, EPILOGUE.scaled[0]) * factor(how.SB, EPILOGUE.scaled[1]))
    if EPILOGUE.function is None:
        return acc
    if EPILOGUE.swapped:
        acc, m, n = tile.transpose(acc), n, m
    arguments = extra[:len(extra) - COUNT]
    for t in tile.static_range(COUNT):
        x, row = (extra[len(extra) - COUNT + t],
                  lines[t][AT:AT + acc.shape[1]] if lines and lines[t] is not None else None)
        if EPILOGUE.tiles[t][-2:] == "mn" and there is not None:
            arguments, there = (*arguments, there), None
        else:
            arguments = (*arguments, load_argument(x, z, m, n, acc.shape, EPILOGUE.tiles[t], row))
    if EPILOGUE.batched:
        made = EPILOGUE.function(acc, z, m, n, *arguments)
    else:
        made = EPILOGUE.function(acc, m, n, *arguments)
    tile.static_assert(made is not None and made.shape == acc.shape,
                       "an epilogue must return a tile of the shape of its sums")
    return tile.transpose(made) if EPILOGUE.swapped else made


@tile.jit
def at_once(COLUMNS: tile.constexpr, EPILOGUE: tile.constexpr):
    """The number of columns that are finished at a time if threads store the tile."""
    return COLUMNS if EPILOGUE.function is None else min(COLUMNS, AT_ONCE)


@tile.jit
def store_finished(sums, C, z, row, column, how):
    """Finish the sums from row `row` and column `column` on, and store them to C by threads."""
    WIDE: tile.constexpr = sums.shape[1]
    for first in tile.static_range(0, WIDE, at_once(WIDE, how.epilogue)):
        some = sums[:, first:min(first + at_once(WIDE, how.epilogue), WIDE)]
        tile.store(box(C, z, row, column + first, some.shape), finish_sums(some, z, row, column + first, how))


@tile.jit
def columns(sums, first: tile.constexpr, count: tile.constexpr):
    """`count` columns from `first` on, out of sums that are held as tiles side by side."""
    WIDE = sums[0].shape[1]
    return sums[first // WIDE][:, first % WIDE:first % WIDE + count]


@tile.jit
def staging_buffers(DTYPE: tile.constexpr, BM: tile.constexpr, BUFFERS: tile.constexpr, WIDTH: tile.constexpr,
                    ACROSS: tile.constexpr):
    """The staging buffers of all consumers of a tile of BM rows: BUFFERS for each, of its rows by WIDTH columns;
    column-major if the result is (`ACROSS`)."""
    ROWS: tile.constexpr = rows_of(BM)
    shape = (BM // ROWS, BUFFERS, WIDTH, ROWS) if ACROSS else (BM // ROWS, BUFFERS, ROWS, WIDTH)
    stage = tile.alloc(shape, DTYPE, layout=tile.swizzled(DTYPE, shape, min(shape[3] * DTYPE.nbytes, 128)))
    return stage.permute((0, 1, 3, 2)) if ACROSS else stage


@tile.jit
def is_staged(how):
    """Whether TMA loads one of the epilogue's tiles to the staging buffers.
    (Rows that it loads have buffers of their own.)"""
    found = False
    for t in tile.static_range(len(how.ahead)):
        found = found or how.ahead[t] and not is_line(how.epilogue.tiles[t])
    return found


@tile.jit
def rooms(extra, EPILOGUE: tile.constexpr, AHEAD: tile.constexpr, CONSUMERS: tile.constexpr, BN: tile.constexpr):
    """For each of the epilogue's tiles: a buffer for each consumer's row of BN columns if TMA loads it, else None."""
    made = ()
    for t in tile.static_range(len(AHEAD)):
        x = extra[len(extra) - len(AHEAD) + t]
        made = (*made, tile.alloc((CONSUMERS, BN), x.dtype) if AHEAD[t] and is_line(EPILOGUE.tiles[t]) else None)
    return made


@tile.jit
def room_of(rooms, w):
    """Consumer `w`'s part of `rooms`."""
    made = ()
    for t in tile.static_range(len(rooms)):
        made = (*made, None if rooms[t] is None else rooms[t][w])
    return made


@tile.jit
def put(values, buffer, FIRST: tile.constexpr):
    """Store a tile to its staging buffer. The FIRST of several waits until TMA has read what the buffers held."""
    if FIRST:
        with tile.elect():
            tile.bulk_wait(0, read=True)
        tile.sync()
    tile.store(buffer, values)


@tile.jit
def send_all(stage, X, z, row, column):
    """Start TMA stores of all of a consumer's staging buffers, whose columns are side by side, to X: an array, or a
    tensor map that the kernel has edited (then `z` is None)."""
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        for part in tile.static_range(stage.shape[0]):
            at = column + part * stage.shape[2]
            if z is None:
                target = X[row:row + stage.shape[1], at:at + stage.shape[2]]
            else:
                target = box(X, z, row, at, (stage.shape[1], stage.shape[2]))
            tile.copy_async(target, stage[part], variant="tma", prefetch_map=z is not None)
        tile.bulk_commit()


@tile.jit
def parts_sent_since(part: tile.constexpr, PARTS: tile.constexpr, BUFFERS: tile.constexpr):
    """The number of parts sent since the one that was last in the buffer of `part`; a tile has PARTS parts, which go
    through BUFFERS buffers in turn."""
    return BUFFERS - 1 if part >= BUFFERS else PARTS - 1 - (PARTS - 1 - part) // BUFFERS * BUFFERS


@tile.jit
def send(values, buffer, target, NEWER: tile.constexpr, PREFETCH: tile.constexpr = True):
    """Store a tile to `buffer`, and start its TMA store to `target`. It waits before until TMA has read the buffer's
    last contents, which means that at most the last NEWER groups are still being read; None says that the buffer is
    free."""
    if NEWER is not None:
        with tile.elect():
            tile.bulk_wait(NEWER, read=True)
    tile.sync()
    tile.store(buffer, values)
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(target, buffer, variant="tma", prefetch_map=PREFETCH)
        tile.bulk_commit()


@tile.jit
def bring(stage, ready, z, row, column, how):
    """One thread requests the epilogue's tiles that TMA loads: one of the result's shape to all parts of `stage`,
    once TMA has read the last tile from there, and rows to `how.lines`. All complete on `ready`."""
    extra, lines, AHEAD, TILES = how.extra, how.lines, how.ahead, how.epilogue.tiles
    WIDTH, NBYTES = stage.shape[2], stage.nbytes if is_staged(how) else 0
    for t in tile.static_range(len(AHEAD)):
        NBYTES = NBYTES if lines[t] is None else NBYTES + lines[t].nbytes
    tile.bulk_wait(0, read=True)
    ready.arrive_expect_tx(NBYTES)
    for t in tile.static_range(len(AHEAD)):
        if AHEAD[t] and lines[t] is None:
            x = extra[len(extra) - len(AHEAD) + t]
            for part in tile.static_range(stage.shape[0]):
                source = box(x, z if TILES[t][0] == "z" else 0, row, column + part * WIDTH, (stage.shape[1], WIDTH))
                tile.copy_async(stage[part], source, mbar=ready, variant="tma", prefetch_map=True)
    for t in tile.static_range(len(AHEAD)):
        if lines[t] is not None:
            x = extra[len(extra) - len(AHEAD) + t]
            tile.copy_async(lines[t], line(x, z, column, lines[t].shape[0], TILES[t]), mbar=ready, variant="tma",
                            prefetch_map=True)


@tile.jit
def finish(sums, buffer, z, row, column, AT: tile.constexpr, how, FIRST: tile.constexpr):
    """Finish some columns of a tile, without sending them yet: the tile begins at `column`, the columns at `AT`
    within it. They go to `buffer`, which holds the epilogue's tile for them if TMA has loaded it. The `FIRST` part of
    a tile waits until TMA has read the last tile."""
    there = tile.load(buffer) if is_staged(how) else None
    put(finish_sums(sums, z, row, column + AT, how, there, AT), buffer, FIRST and not how.ahead)


@tile.jit
def finish_first(sums, stage, z, row, column, how):
    """Finish the first columns of a tile, those of `sums`, to their buffers."""
    WIDTH: tile.constexpr = stage.shape[2]
    for part in tile.static_range(sums.shape[1] // WIDTH):
        finish(sums[:, part * WIDTH:part * WIDTH + WIDTH], stage[part], z, row, column, part * WIDTH, how, part == 0)


@tile.jit
def send_first(COLUMNS: tile.constexpr, stage, C, z, row, column):
    """Send the first COLUMNS columns of a tile to C."""
    send_all(stage[0:COLUMNS // stage.shape[2]], C, z, row, column)


@tile.jit
def send_buffer(part: tile.constexpr, stage, C, z, row, column):
    """Send one staging buffer of a tile to C."""
    send_all(stage[part:part + 1], C, z, row, column + part * stage.shape[2])


@tile.jit
def finish_piece(last, piece: tile.constexpr, stage, C, z, row, column, how):
    """Finish one piece of a tile's deferred columns, `last`, to its place in the last buffers,
    and send the buffer if that fills it."""
    WIDTH: tile.constexpr = stage.shape[2]
    AT: tile.constexpr = stage.shape[0] * WIDTH - last.shape[1] + piece * PIECE
    buffer = stage[AT // WIDTH, :, AT % WIDTH:AT % WIDTH + PIECE]
    finish(last[:, piece * PIECE:piece * PIECE + PIECE], buffer, z, row, column, AT, how, AT == 0)
    if (AT + PIECE) % WIDTH == 0:
        send_buffer(AT // WIDTH, stage, C, z, row, column)


@tile.jit
def finish_last(last, stage, C, z, row, column, how):
    """Finish and send the deferred columns of a CTA's last tile, which no products follow."""
    WIDTH: tile.constexpr = stage.shape[2]
    FIRST: tile.constexpr = stage.shape[0] - last.shape[1] // WIDTH
    for part in tile.static_range(last.shape[1] // WIDTH):
        finish(last[:, part * WIDTH:part * WIDTH + WIDTH], stage[FIRST + part], z, row, column, (FIRST + part) * WIDTH,
               how, FIRST + part == 0)
        send_buffer(FIRST + part, stage, C, z, row, column)


@tile.jit
def store_part(values, stage, turn, C, z, row, column):
    """Send a part of a tile's finished values to C through the staging buffer `turn`;
    returns the buffer to use next."""
    BUFFERS: tile.constexpr = stage.shape[0]
    tile.assume((turn >= 0) & (turn < BUFFERS))
    send(values, stage[turn], box(C, z, row, column, values.shape), BUFFERS - 1)
    return turn + 1 if turn + 1 < BUFFERS else 0


@tile.jit
def store(sums, stage, C, z, row, column, how):
    """Finish a tile and store it to C: part by part through the staging buffers, or by threads (`stage` is None)."""
    WIDE: tile.constexpr = sums[0].shape[1]
    if stage is None:
        for h in tile.static_range(len(sums)):
            store_finished(sums[h], C, z, row, column + h * WIDE, how)
    else:
        WIDTH: tile.constexpr = stage.shape[2]
        PARTS: tile.constexpr = WIDE * len(sums) // WIDTH
        for part in tile.static_range(PARTS):
            buffer, at = stage[part % stage.shape[0]], column + part * WIDTH
            there = tile.load(buffer) if is_staged(how) else None
            values = finish_sums(columns(sums, part * WIDTH, WIDTH), z, row, at, how, there, part * WIDTH)
            send(values, buffer, box(C, z, row, at, values.shape),
                 None if how.ahead else parts_sent_since(part, PARTS, stage.shape[0]))
