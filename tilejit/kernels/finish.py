"""What is done with the sums of a tile on Hopper: factors and the user's function, then through buffers in shared memory to the result.

A consumer stores its 64 rows by TMA from buffers of some columns each. What the user's function takes beside the sums may come to
the same buffers before.
"""

from __future__ import annotations

import tilejit as tile

PIECE = 16  # columns that are finished at once under the products of another tile


@tile.jit
def box(X, z, i, j, extents):
    """The region of X (of matrix `z` of X, if it is several) from row `i` and column `j` on."""
    if len(X.shape) == 3:
        return X[z, i:i + extents[0], j:j + extents[1]]
    return X[i:i + extents[0], j:j + extents[1]]


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
def finished(acc, z, m, n, SA, SB, extra, FINISH: tile.constexpr, MIXED: tile.constexpr = False, staged=None):
    """The sums from row `m` and column `n` on as they are stored: their rows in order if they are `MIXED`, scaled, then given to the
    user's function, with its arguments and the tiles of the arrays after them, of which `staged` may be the first."""
    SCALED, EPILOGUE, BATCHED, SWAPPED, TILES = FINISH
    if MIXED:
        acc = in_order(acc)
    if SCALED:
        acc = tile.cast(acc, tile.float32) * (factor(SA, SCALED[0]) * factor(SB, SCALED[1]))
    if EPILOGUE is None:
        return acc
    if SWAPPED:
        acc, m, n = tile.transpose(acc), n, m
    arguments = extra[:len(extra) - TILES]
    for t in tile.static_range(TILES):
        beside = extra[len(extra) - TILES + t]
        arguments = (*arguments, staged if t == 0 and staged is not None else tile.load(box(beside, z, m, n, acc.shape)))
    made = EPILOGUE(acc, z, m, n, *arguments) if BATCHED else EPILOGUE(acc, m, n, *arguments)
    tile.static_assert(made is not None and made.shape == acc.shape, "an epilogue returns a tile of the shape of its sums")
    return tile.transpose(made) if SWAPPED else made


@tile.jit
def columns(sums, first: tile.constexpr, count: tile.constexpr):
    """`count` columns from `first` on, of sums in tiles side by side."""
    WIDE = sums[0].shape[1]
    return sums[first // WIDE][:, first % WIDE:first % WIDE + count]


@tile.jit
def staging(DTYPE: tile.constexpr, CONSUMERS: tile.constexpr, BUFFERS: tile.constexpr, WIDTH: tile.constexpr, ACROSS: tile.constexpr):
    """BUFFERS buffers of 64 rows and WIDTH columns for each consumer's results; columns lie in one piece if those of the result do (`ACROSS`)."""
    shape = (CONSUMERS, BUFFERS, WIDTH, 64) if ACROSS else (CONSUMERS, BUFFERS, 64, WIDTH)
    stage = tile.alloc(shape, DTYPE, layout=tile.swizzled(DTYPE, shape, min(shape[3] * DTYPE.nbytes, 128)))
    return stage.permute((0, 1, 3, 2)) if ACROSS else stage


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
            target = X[row:row + 64, at:at + stage.shape[2]] if z is None else box(X, z, row, at, (64, stage.shape[2]))
            tile.copy_async(target, stage[part], variant="tma", prefetch_map=z is not None)
        tile.bulk_commit()


@tile.jit
def send(values, buffer, target, BUFFERS: tile.constexpr, PREFETCH: tile.constexpr = True):
    """A tile goes to `target` by TMA from `buffer`, one of BUFFERS in turn, once what it held is read; with no BUFFERS it is free."""
    if BUFFERS:
        with tile.elect():
            tile.bulk_wait(BUFFERS - 1, read=True)
    tile.sync()
    tile.store(buffer, values)
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(target, buffer, variant="tma", prefetch_map=PREFETCH)
        tile.bulk_commit()


@tile.jit
def bring(stage, ready, X, z, row, column, WIDTH: tile.constexpr):
    """One thread brings its rows of X, as wide as the tile, to the parts of `stage`, from which TMA has read the last tile."""
    tile.bulk_wait(0, read=True)
    ready.arrive_expect_tx(stage.nbytes)
    for part in tile.static_range(stage.shape[0]):
        tile.copy_async(stage[part], box(X, z, row, column + part * WIDTH, (64, WIDTH)), mbar=ready, variant="tma", prefetch_map=True)


@tile.jit
def finish(sums, buffer, z, row, column, how, FIRST: tile.constexpr):
    """Some columns of a tile, finished, to their buffer, where the tile beside them stands if it came ahead; not sent yet. The `FIRST` of
    a tile waits until TMA has read what is there. `how` is what `finished` takes after the place, and whether a tile comes ahead."""
    SA, SB, extra, FINISH, MIXED, AHEAD = how
    beside = tile.load(buffer) if AHEAD else None
    put(finished(sums, z, row, column, SA, SB, extra, FINISH, MIXED, beside), buffer, FIRST and not AHEAD)


@tile.jit
def finish_first(sums, stage, z, row, column, how):
    """The first columns of a tile, those of `sums`, to their buffers."""
    WIDTH: tile.constexpr = stage.shape[2]
    for part in tile.static_range(sums.shape[1] // WIDTH):
        finish(sums[:, part * WIDTH:part * WIDTH + WIDTH], stage[part], z, row, column + part * WIDTH, how, part == 0)


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
    finish(last[:, piece * PIECE:piece * PIECE + PIECE], buffer, z, row, column + AT, how, False)


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
        at = column + (FIRST + part) * WIDTH
        finish(last[:, part * WIDTH:part * WIDTH + WIDTH], stage[FIRST + part], z, row, at, how, False)
    send_last(last, stage, C, z, row, column)


@tile.jit
def store(sums, stage, C, z, row, column, how, TURNS: tile.constexpr):
    """A tile, finished, to C: by its buffers part by part, which wait for each other as `send` says of TURNS, or (`stage` None) by stores."""
    SA, SB, extra, FINISH, MIXED, AHEAD = how
    WIDE: tile.constexpr = sums[0].shape[1]
    if stage is None:
        for h in tile.static_range(len(sums)):
            at = column + h * WIDE
            tile.store(box(C, z, row, at, sums[h].shape), finished(sums[h], z, row, at, SA, SB, extra, FINISH, MIXED))
    else:
        WIDTH: tile.constexpr = stage.shape[2]
        for part in tile.static_range(WIDE * len(sums) // WIDTH):
            buffer, at = stage[part % stage.shape[0]], column + part * WIDTH
            beside = tile.load(buffer) if AHEAD else None
            values = finished(columns(sums, part * WIDTH, WIDTH), z, row, at, SA, SB, extra, FINISH, MIXED, beside)
            send(values, buffer, box(C, z, row, at, (64, WIDTH)), TURNS)
