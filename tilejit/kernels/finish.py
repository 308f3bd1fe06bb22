"""What is done with the sums of a tile on Hopper: factors and the user's function, then through buffers in shared memory to the result.

A consumer stores its rows by TMA from buffers of some columns each. What the user's function takes beside the sums may come to
the same buffers before.
"""

from __future__ import annotations

import tilejit as tile

from .rules import HIGH

PIECE = 16    # columns that are finished at once under the products of another tile
AT_ONCE = 64  # columns that an epilogue gets at once of a tile that threads store: what it loads comes to the sums' layout through shared memory


@tile.jit
def rows_of(BM: tile.constexpr):
    """The rows of each consumer of a tile of BM rows."""
    return 128 if BM == HIGH else 64


@tile.jit
def box(X, z, i, j, extents):
    """The region of X (of matrix `z` of X, if it is several) from row `i` and column `j` on."""
    if len(X.shape) == 3:
        return X[z, i:i + extents[0], j:j + extents[1]]
    return X[i:i + extents[0], j:j + extents[1]]


@tile.jit
def line(x, z, first, count: tile.constexpr, AXES: tile.constexpr):
    """`count` elements of x from `first` on, along the last of its `AXES` (those of matrix `z`, if each has its own)."""
    own = z if AXES[0] == "z" else 0
    if len(AXES) == 3:
        return x[own, 0, first:first + count]
    if len(AXES) == 2:
        return x[own, first:first + count]
    return x[first:first + count]


@tile.jit
def is_line(AXES: tile.constexpr):
    """Whether one of the epilogue's tiles is of an array that all rows of a result have."""
    return "m" not in AXES


@tile.jit
def beside(x, z, m, n, shape, AXES: tile.constexpr, row=None):
    """What the user's function gets of an array x for sums of `shape` from row `m` and column `n` on, with 1 for the extents that x has so;
    `row` has the columns if they came ahead."""
    COLUMNS: tile.constexpr = shape[1] if AXES[-1] == "n" else 1
    if not is_line(AXES):
        return tile.load(box(x, z if AXES[0] == "z" else 0, m, n if AXES[-1] == "n" else 0, (shape[0], COLUMNS)))
    found = tile.load(line(x, z, n if AXES[-1] == "n" else 0, COLUMNS, AXES) if row is None else row)
    return found[None, :] if AXES[:-1] not in ("", "z") else found


@tile.jit
def in_order(sums):
    """Sums whose rows are as `entering` has them, in the order of the rows."""
    bits = tile.reshape(sums, (2, 2, 2, 2, 2, 2, sums.shape[1]))
    return tile.reshape(tile.transpose(bits, (0, 4, 1, 3, 5, 2, 6)), sums.shape)


@tile.jit
def factor(x, IS_ARRAY: tile.constexpr):
    """A scale: a number, or the one element of an array."""
    return tile.load(x[0]) if IS_ARRAY else x


@tile.jit
def finished(acc, z, m, n, SA, SB, extra, FINISH: tile.constexpr, MIXED: tile.constexpr = False, there=None, lines=(), AT: tile.constexpr = 0):
    """The sums from row `m` and column `n` on as they are stored: their rows in order if they are `MIXED`, scaled, then given to the
    user's function, with its arguments and the tiles of the arrays after them: of those that came ahead `there` is one of the sums' shape,
    and `lines` have rows for the tile, from whose column `AT` on the sums are."""
    SCALED, EPILOGUE, BATCHED, SWAPPED, TILES = FINISH
    COUNT: tile.constexpr = len(TILES)
    if MIXED:
        acc = in_order(acc)
    if SCALED:
        acc = tile.cast(acc, tile.float32) * (factor(SA, SCALED[0]) * factor(SB, SCALED[1]))
    if EPILOGUE is None:
        return acc
    if SWAPPED:
        acc, m, n = tile.transpose(acc), n, m
    arguments = extra[:len(extra) - COUNT]
    for t in tile.static_range(COUNT):
        x, row = extra[len(extra) - COUNT + t], lines[t][AT:AT + acc.shape[1]] if lines and lines[t] is not None else None
        if TILES[t][-2:] == "mn" and there is not None:
            arguments, there = (*arguments, there), None
        else:
            arguments = (*arguments, beside(x, z, m, n, acc.shape, TILES[t], row))
    made = EPILOGUE(acc, z, m, n, *arguments) if BATCHED else EPILOGUE(acc, m, n, *arguments)
    tile.static_assert(made is not None and made.shape == acc.shape, "an epilogue must return a tile of the shape of its sums")
    return tile.transpose(made) if SWAPPED else made


@tile.jit
def at_once(COLUMNS: tile.constexpr, FINISH: tile.constexpr):
    """How many of the columns of a tile that threads store are finished at once."""
    return COLUMNS if FINISH[1] is None else min(COLUMNS, AT_ONCE)


@tile.jit
def store_finished(sums, C, z, row, column, how):
    """The sums from row `row` and column `column` on, finished, to C by stores."""
    SA, SB, extra, FINISH, MIXED = how
    WIDE: tile.constexpr = sums.shape[1]
    for first in tile.static_range(0, WIDE, at_once(WIDE, FINISH)):
        some = sums[:, first:min(first + at_once(WIDE, FINISH), WIDE)]
        tile.store(box(C, z, row, column + first, some.shape), finished(some, z, row, column + first, SA, SB, extra, FINISH, MIXED))


@tile.jit
def columns(sums, first: tile.constexpr, count: tile.constexpr):
    """`count` columns from `first` on, of sums in tiles side by side."""
    WIDE = sums[0].shape[1]
    return sums[first // WIDE][:, first % WIDE:first % WIDE + count]


@tile.jit
def staging(DTYPE: tile.constexpr, BM: tile.constexpr, BUFFERS: tile.constexpr, WIDTH: tile.constexpr, ACROSS: tile.constexpr):
    """BUFFERS buffers of a consumer's rows and WIDTH columns for the results of each consumer of BM rows; columns lie in one piece if those of
    the result do (`ACROSS`)."""
    ROWS: tile.constexpr = rows_of(BM)
    shape = (BM // ROWS, BUFFERS, WIDTH, ROWS) if ACROSS else (BM // ROWS, BUFFERS, ROWS, WIDTH)
    stage = tile.alloc(shape, DTYPE, layout=tile.swizzled(DTYPE, shape, min(shape[3] * DTYPE.nbytes, 128)))
    return stage.permute((0, 1, 3, 2)) if ACROSS else stage


@tile.jit
def is_staged(FINISH: tile.constexpr, AHEAD: tile.constexpr):
    """Whether one of the epilogue's tiles comes to the buffers of the results; rows that come ahead have room of their own."""
    found = False
    for t in tile.static_range(len(AHEAD)):
        found = found or AHEAD[t] and not is_line(FINISH[4][t])
    return found


@tile.jit
def rooms(extra, FINISH: tile.constexpr, AHEAD: tile.constexpr, CONSUMERS: tile.constexpr, BN: tile.constexpr):
    """For each of the epilogue's tiles the room for each consumer's BN columns of a row that comes ahead, else None."""
    made = ()
    for t in tile.static_range(len(AHEAD)):
        x = extra[len(extra) - len(AHEAD) + t]
        made = (*made, tile.alloc((CONSUMERS, BN), x.dtype) if AHEAD[t] and is_line(FINISH[4][t]) else None)
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
    """A tile to its buffer, which TMA has read: of several the first waits for that."""
    if FIRST:
        with tile.elect():
            tile.bulk_wait(0, read=True)
        tile.sync()
    tile.store(buffer, values)


@tile.jit
def send_all(stage, X, z, row, column):
    """All buffers of a consumer, columns side by side, to X at once: an array, or (`z` None) a map that the kernel has made."""
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        for part in tile.static_range(stage.shape[0]):
            at = column + part * stage.shape[2]
            target = X[row:row + stage.shape[1], at:at + stage.shape[2]] if z is None else box(X, z, row, at, (stage.shape[1], stage.shape[2]))
            tile.copy_async(target, stage[part], variant="tma", prefetch_map=z is not None)
        tile.bulk_commit()


@tile.jit
def newer(part: tile.constexpr, PARTS: tile.constexpr, BUFFERS: tile.constexpr):
    """How many parts have been sent since the last that stood in the buffer of a tile's `part`, one of PARTS in BUFFERS buffers in turn."""
    return BUFFERS - 1 if part >= BUFFERS else PARTS - 1 - (PARTS - 1 - part) // BUFFERS * BUFFERS


@tile.jit
def send(values, buffer, target, NEWER: tile.constexpr, PREFETCH: tile.constexpr = True):
    """A tile goes to `target` by TMA from `buffer`, once what it held is read, the last but NEWER that was sent; without NEWER (None) it is free."""
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
def bring(stage, lines, ready, extra, z, row, column, FINISH: tile.constexpr, AHEAD: tile.constexpr):
    """One thread brings what comes ahead of the epilogue's tiles: of one of the results' shape its rows, as wide as the tile, to the parts of
    `stage`, from which TMA has read the last tile; of rows, to `lines`."""
    WIDTH, NBYTES = stage.shape[2], stage.nbytes if is_staged(FINISH, AHEAD) else 0
    for t in tile.static_range(len(AHEAD)):
        NBYTES = NBYTES if lines[t] is None else NBYTES + lines[t].nbytes
    tile.bulk_wait(0, read=True)
    ready.arrive_expect_tx(NBYTES)
    for t in tile.static_range(len(AHEAD)):
        if AHEAD[t] and lines[t] is None:
            x = extra[len(extra) - len(AHEAD) + t]
            for part in tile.static_range(stage.shape[0]):
                source = box(x, z if FINISH[4][t][0] == "z" else 0, row, column + part * WIDTH, (stage.shape[1], WIDTH))
                tile.copy_async(stage[part], source, mbar=ready, variant="tma", prefetch_map=True)
    for t in tile.static_range(len(AHEAD)):
        if lines[t] is not None:
            x = extra[len(extra) - len(AHEAD) + t]
            tile.copy_async(lines[t], line(x, z, column, lines[t].shape[0], FINISH[4][t]), mbar=ready, variant="tma", prefetch_map=True)


@tile.jit
def finish(sums, buffer, z, row, column, AT: tile.constexpr, how, FIRST: tile.constexpr):
    """Some columns of a tile that begins at `column`, those from `AT` of it on, finished, to their buffer, where the tile beside them stands if
    it came ahead; not sent yet. The `FIRST` of a tile waits until TMA has read what is there. `how` is what `finished` takes after the
    place, what comes ahead, and where rows do."""
    SA, SB, extra, FINISH, MIXED, AHEAD, lines = how
    there = tile.load(buffer) if is_staged(FINISH, AHEAD) else None
    put(finished(sums, z, row, column + AT, SA, SB, extra, FINISH, MIXED, there, lines, AT), buffer, FIRST and not AHEAD)


@tile.jit
def finish_first(sums, stage, z, row, column, how):
    """The first columns of a tile, those of `sums`, to their buffers."""
    WIDTH: tile.constexpr = stage.shape[2]
    for part in tile.static_range(sums.shape[1] // WIDTH):
        finish(sums[:, part * WIDTH:part * WIDTH + WIDTH], stage[part], z, row, column, part * WIDTH, how, part == 0)


@tile.jit
def send_first(COLUMNS: tile.constexpr, stage, C, z, row, column):
    """The first columns of a tile to C."""
    send_all(stage[0:COLUMNS // stage.shape[2]], C, z, row, column)


@tile.jit
def finish_piece(last, piece: tile.constexpr, stage, z, row, column, how):
    """A piece of the `last` columns of a tile to its place in the last buffers."""
    WIDTH: tile.constexpr = stage.shape[2]
    AT: tile.constexpr = stage.shape[0] * WIDTH - last.shape[1] + piece * PIECE
    buffer = stage[AT // WIDTH, :, AT % WIDTH:AT % WIDTH + PIECE]
    finish(last[:, piece * PIECE:piece * PIECE + PIECE], buffer, z, row, column, AT, how, False)


@tile.jit
def send_last(last, stage, C, z, row, column):
    """The `last` columns of a tile to C."""
    FIRST: tile.constexpr = stage.shape[0] - last.shape[1] // stage.shape[2]
    send_all(stage[FIRST:stage.shape[0]], C, z, row, column + FIRST * stage.shape[2])


@tile.jit
def finish_last(last, stage, C, z, row, column, how):
    """The `last` columns of a CTA's last tile, which no products follow."""
    WIDTH: tile.constexpr = stage.shape[2]
    FIRST: tile.constexpr = stage.shape[0] - last.shape[1] // WIDTH
    for part in tile.static_range(last.shape[1] // WIDTH):
        finish(last[:, part * WIDTH:part * WIDTH + WIDTH], stage[FIRST + part], z, row, column, (FIRST + part) * WIDTH, how, False)
    send_last(last, stage, C, z, row, column)


@tile.jit
def store_part(values, stage, turn, C, z, row, column):
    """A part of the finished values of a tile to C by a buffer of `stage`; the turn of the next."""
    BUFFERS: tile.constexpr = stage.shape[0]
    tile.assume((turn >= 0) & (turn < BUFFERS))
    send(values, stage[turn], box(C, z, row, column, values.shape), BUFFERS - 1)
    return turn + 1 if turn + 1 < BUFFERS else 0


@tile.jit
def store(sums, stage, C, z, row, column, how):
    """A tile, finished, to C: by its buffers part by part, or (`stage` None) by stores."""
    SA, SB, extra, FINISH, MIXED, AHEAD, lines = how
    WIDE: tile.constexpr = sums[0].shape[1]
    if stage is None:
        for h in tile.static_range(len(sums)):
            store_finished(sums[h], C, z, row, column + h * WIDE, (SA, SB, extra, FINISH, MIXED))
    else:
        WIDTH: tile.constexpr = stage.shape[2]
        PARTS: tile.constexpr = WIDE * len(sums) // WIDTH
        for part in tile.static_range(PARTS):
            buffer, at = stage[part % stage.shape[0]], column + part * WIDTH
            there = tile.load(buffer) if is_staged(FINISH, AHEAD) else None
            values = finished(columns(sums, part * WIDTH, WIDTH), z, row, at, SA, SB, extra, FINISH, MIXED, there, lines, part * WIDTH)
            send(values, buffer, box(C, z, row, at, values.shape), None if AHEAD else newer(part, PARTS, stage.shape[0]))
