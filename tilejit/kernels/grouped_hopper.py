"""Products of several groups of matrices on Hopper, in one persistent launch.

One warp of each CTA walks over the tiles of all groups and hands each tile, as a piece of work, to the producer and the
consumers. Where the group changes, it first binds the CTA's next tensor maps to the group's matrices, while the tiles ahead
are still being multiplied.
"""

from __future__ import annotations

import tilejit as tile

from .finish import finished, newer, put, send, send_all
from .mainloop import begun, multiplied, operand, product, rounded, slots
from .overlap import kept

AHEAD = 2                  # pieces of work that are under way at once: one is multiplied, the next one's operands already come
SETS = AHEAD + 2           # of maps: stores of the two pieces before the first one not released may still go by theirs
CHUNK = 128                # groups that are searched at once
NONE = 2 ** 31 - 1
A_AT, A_ROW, B_AT, B_ROW, C_AT, C_ROW, M, N, K, COLUMNS, END, NUMBER, TAKEN, FIELDS = range(14)  # rows of the table; a column is a group


# -- which tile comes next -------------------------------------------------------------------------------------------------

@tile.jit
def stop(offs, g, rows):
    """Where the rows of the groups `g` end; 0 for the group before the first."""
    return tile.minimum(tile.maximum(tile.load(offs[g], mask=(g >= 0) & (g < offs.shape[0]), other=0), 0), rows)


@tile.jit
def place(t, table, rows, across, BM: tile.constexpr):
    """The group of tile `t`, the group's first tile, and the number of all tiles."""
    g, first, total = 0, 0, 0
    for c in range(0, table.shape[-1], CHUNK):
        if len(table.shape) == 2:
            ends = tile.cast(tile.load(table[END, c:c + CHUNK], other=NONE), tile.int32)
        else:
            groups = c + tile.arange(CHUNK)
            each = tile.where(groups < table.shape[0], stop(table, groups, rows) - stop(table, groups - 1, rows), 0)
            ends = tile.cumsum(tile.cdiv(tile.maximum(each, 0), BM) * across) + total
        over = ends <= t
        g = g + tile.sum(tile.where(over, 1, 0), axis=0)
        first = max(first, tile.max(tile.where(over, ends, 0), axis=0))
        total = tile.max(tile.where(ends < NONE, ends, 0), axis=0)
    return g, first, total


@tile.jit
def number(table, field: tile.constexpr, g):
    """An entry of the table that fits 32 bits."""
    return tile.cast(tile.load(table[field, g]), tile.int32)


# -- maps ------------------------------------------------------------------------------------------------------------------

@tile.jit
def map_of(X, maps, at, rows: tile.constexpr, columns: tile.constexpr, edit: tile.constexpr = "global", precision: tile.constexpr = None):
    """The map in slot `at`, of a matrix like X that goes in boxes of these rows and columns."""
    return tile.tensor_map(X[0:rows, 0:columns], swizzle=min(columns * X.dtype.nbytes, 128), precision=precision, slot=maps[at, 0:128], edit=edit)


@tile.jit
def operand_map(X, maps, at, rows: tile.constexpr, k: tile.constexpr, K_FIRST: tile.constexpr, edit: tile.constexpr = "global"):
    """The map of an operand given as [rows, k], or as [k, rows] (`K_FIRST`)."""
    return map_of(X, maps, at, k, rows, edit, rounded(X)) if K_FIRST else map_of(X, maps, at, rows, k, edit, rounded(X))


@tile.jit
def edit(m, address, rows, columns, stride):
    """Give a map in shared memory another matrix."""
    m.seed()
    m.rebind(address, shape=(rows, columns), strides=(stride, 1))


@tile.jit
def edit_operand(m, address, rows, k, stride, K_FIRST: tile.constexpr):
    if K_FIRST:
        edit(m, address, k, rows, stride)
    else:
        edit(m, address, rows, k, stride)


@tile.jit
def hand_out(maps):
    """Edited maps, for who comes after this warp in this CTA, are fetched to where copies look for them."""
    for i in tile.static_range(len(maps)):
        maps[i].publish("cta")
    with tile.elect():
        for x in tile.static_range(len(maps)):
            maps[x].fence_acquire("cta")
            maps[x].prefetch()


@tile.jit
def part(m, row, k, extents, K_FIRST: tile.constexpr):
    """What a slot takes of an operand by its map."""
    return m[k:k + extents[0], row:row + extents[1]] if K_FIRST else m[row:row + extents[0], k:k + extents[1]]


# -- the roles -------------------------------------------------------------------------------------------------------------

@tile.jit
def following(t, table):
    """The tile after `t` for this CTA: of a list the next that no CTA has taken, else every so-and-so-many-th."""
    if t < 0:
        t = tile.program_id(0)
    elif len(table.shape) == 2:
        t = tile.num_programs(0) + tile.cast(tile.atomic_add(table[TAKEN, 0], 1), tile.int32)
    else:
        t = t + tile.num_programs(0)
    return t


@tile.jit
def walk(work, A, B, C, table, maps, own, SHAPE: tile.constexpr, ORDER: tile.constexpr, WIDTH: tile.constexpr):
    """A warp: every piece of this CTA's work, with the group's maps bound before. A tile is taken when there is room for it."""
    BM, BN, BK, A_KM, B_KN = SHAPE
    LISTED: tile.constexpr = len(table.shape) == 2
    across = tile.cdiv(C.shape[1], BN)
    t, total, last, held = -1, 0, -1, 0
    while t < total:
        with work.produce() as piece:
            t = following(t, table)
            g, first, total = place(t, table, A.shape[0], across, BM)
            if t < total:
                if LISTED:
                    tile.assume((g >= 0) & (g < table.shape[1]) & (table.shape[0] == FIELDS))  # else each load waits for the one before: its bounds
                    rows, columns, k, start = number(table, M, g), number(table, N, g), number(table, K, g), 0
                    a_at, b_at, c_at = tile.load(table[A_AT, g]), tile.load(table[B_AT, g]), tile.load(table[C_AT, g])
                    a_row, b_row, c_row = tile.load(table[A_ROW, g]), tile.load(table[B_ROW, g]), tile.load(table[C_ROW, g])
                    wide = number(table, COLUMNS, g)
                else:
                    start = stop(table, g - 1, A.shape[0])
                    rows, columns, k = stop(table, g, A.shape[0]) - start, C.shape[1], A.shape[1]
                which, backwards = number(table, NUMBER, g) if LISTED else g, t // tile.num_programs(0) % 2
                if g != last:
                    last, held = g, 0 if held == SETS - 1 else held + 1
                    at = own + held * 3
                    c = map_of(C, maps, at + 2, 64, WIDTH, "shared") if WIDTH else None
                    if LISTED:
                        a, b = operand_map(A, maps, at, BM, BK, A_KM, "shared"), operand_map(B, maps, at + 1, BN, BK, B_KN, "shared")
                        with tile.elect():
                            edit_operand(a, a_at, rows, k, a_row, A_KM)
                            edit_operand(b, b_at, columns, k, b_row, B_KN)
                            edit(c, c_at, rows, wide, c_row)
                        hand_out((a, b, c))
                    elif WIDTH:
                        with tile.elect():
                            edit(c, C[start, 0], rows, columns, C.strides[0])
                        hand_out((c,))
                i, j = tile.tile_at(t - first, tile.cdiv(rows, BM), tile.cdiv(columns, BN), *ORDER)
                numbers = (tile.cdiv(k, BK), i, j, held * 3, backwards, which, start, rows)
                for f in tile.static_range(8):
                    tile.store(piece.T[f], numbers[f])
            else:
                tile.store(piece.T[0:8], tile.full((8,), -1))


@tile.jit
def load(work, ring, A, B, maps, own, LISTED: tile.constexpr, SHAPE: tile.constexpr):
    """A thread: the operands of each piece."""
    BM, BN, BK, A_KM, B_KN = SHAPE
    steps = 0
    while steps >= 0:
        with work.consume() as piece:
            steps = tile.load(piece.T[0])
            i, j, at = tile.load(piece.T[1]) * BM, tile.load(piece.T[2]) * BN, own + tile.load(piece.T[3])
            if LISTED:
                a, b = operand_map(A, maps, at, BM, BK, A_KM), operand_map(B, maps, at + 1, BN, BK, B_KN)
            backwards, ROUNDED = tile.load(piece.T[4]), rounded(A)
            for s in range(steps):
                k = (steps - 1 - s if backwards > 0 else s) * BK
                with ring.produce() as slot:
                    if LISTED:
                        tile.copy_async(slot.A, part(a, i, k, slot.A.shape, A_KM), mbar=slot.full)
                        tile.copy_async(slot.B, part(b, j, k, slot.B.shape, B_KN), mbar=slot.full)
                    else:
                        tile.copy_async(slot.A, operand(A, 0, tile.load(piece.T[6]) + i, k, slot.A.shape, False), mbar=slot.full, precision=ROUNDED,
                                        prefetch_map=True)
                        tile.copy_async(slot.B, operand(B, tile.load(piece.T[5]), j, k, slot.B.shape, B_KN), mbar=slot.full, precision=ROUNDED,
                                        prefetch_map=True)


@tile.jit
def changed(sums, row, column, finish):
    """Sums from a row and a column of their group on as they are stored: `finish` holds the group, the row of its first in the result,
    the arguments of the user's function, the function."""
    group, start, extra, FINISH = finish
    return finished(sums, group, start + row, column, 1.0, 1.0, extra, FINISH)


@tile.jit
def store(acc, stage, c, row, column, finish):
    """Sums go to the map `c` by way of the buffers `stage`, at once where those hold all of them, else in turn; `finish` says what is done to
    them before."""
    BUFFERS, WIDTH = stage.shape[0], stage.shape[2]
    TOGETHER: tile.constexpr = BUFFERS * WIDTH == acc.shape[1]
    for p in tile.static_range(acc.shape[1] // WIDTH):
        at = column + p * WIDTH
        values = changed(acc[:, p * WIDTH:p * WIDTH + WIDTH], row, at, finish)
        if TOGETHER:
            put(values, stage[p], p == 0)
        else:
            send(values, stage[p % BUFFERS], c[row:row + 64, at:at + WIDTH], newer(p, acc.shape[1] // WIDTH, BUFFERS), False)
    if TOGETHER:
        send_all(stage, c, None, row, column)


@tile.jit
def multiply(work, ring, stage, w, C, maps, own, extra, SHAPE: tile.constexpr, SUMS: tile.constexpr, BEHIND: tile.constexpr, FINISH: tile.constexpr):
    """A consumer: its 64 rows of each piece."""
    BM, BN, BK, A_KM, B_KN = SHAPE
    steps = 0
    while steps >= 0:
        with work.consume() as piece:
            steps = tile.load(piece.T[0])
            if steps >= 0:
                row, column, rows = tile.load(piece.T[1]) * BM + w * 64, tile.load(piece.T[2]) * BN, tile.load(piece.T[7])
                tile.assume((row >= 0) & (column >= 0))
                if stage is not None:
                    c = map_of(C, maps, own + tile.load(piece.T[3]) + 2, 64, stage.shape[3])
                if row < rows:
                    acc = tile.zeros((64, BN), SUMS) if BEHIND else begun(ring, w, A_KM, B_KN)
                    acc = multiplied(acc, ring, w, steps if BEHIND else steps - 1, BEHIND, A_KM, B_KN)
                    start = tile.load(piece.T[6])
                    finish = tile.load(piece.T[5]), start, extra, FINISH
                    if stage is None:
                        window = tile.window(C, (start, 0), (rows, None))
                        tile.store(window[row:row + 64, column:column + BN], changed(acc, row, column, finish))
                    else:
                        store(acc, stage[w], c, row, column, finish)
                else:   # the group ends above: the tensor cores are for the other consumers
                    for s in range(steps):
                        with ring.consume():
                            pass
                    if stage is not None:
                        with tile.elect():
                            tile.bulk_wait(0, read=True)   # with the piece's release its maps are free, and the stores before it done
    if stage is not None:
        with tile.elect():
            tile.bulk_wait(0)


@tile.jit
def send_next(before, w, stage, C, maps, own, BM: tile.constexpr, BN: tile.constexpr):
    """Consumer `w` sends the next part of what it has kept of a piece (`kept`), by the map of that piece's group; what is left."""
    parts, sent, (i, j, at), turn = before
    BUFFERS, WIDTH = stage.shape[0], stage.shape[2]
    tile.assume((sent >= 0) & (i >= 0) & (j >= 0) & (turn >= 0) & (turn < BUFFERS))
    c, row, column = map_of(C, maps, own + at + 2, 64, stage.shape[2]), i * BM + w * 64, j * BN + sent * WIDTH
    send(parts[0], stage[turn], c[row:row + 64, column:column + WIDTH], BUFFERS - 1, False)
    return (*parts[1:], parts[-1]), sent + 1, (i, j, at), turn + 1 if turn + 1 < BUFFERS else 0


@tile.jit
def multiply_kept(work, ring, stage, w, C, maps, own, SHAPE: tile.constexpr, SUMS: tile.constexpr, BEHIND: tile.constexpr):
    """A consumer whose results stay in registers until the first products of its next piece run, as in `persistent_kept`; where it has none there
    they are sent at once. So all are under way when that piece is released, and read when the piece after it is: by then their buffers
    have had its own results, or there were none and they were awaited."""
    BM, BN, BK, A_KM, B_KN = SHAPE
    WIDTH: tile.constexpr = stage.shape[2]
    PARTS: tile.constexpr = BN // WIDTH
    acc, steps = tile.zeros((64, BN), SUMS), 0
    before = (tile.zeros((64, WIDTH), C.dtype),) * PARTS, PARTS, (0, 0, 0), 0
    while steps >= 0:
        with work.consume() as piece:
            steps, place = tile.load(piece.T[0]), (tile.load(piece.T[1]), tile.load(piece.T[2]), tile.load(piece.T[3]))
            above = place[0] * BM + w * 64 >= tile.load(piece.T[7])   # the group ends there: the tensor cores are for the other consumers
            for i in range(0 if above else steps):
                with ring.consume(behind=BEHIND) as slot:
                    acc = product(acc, slot, w, A_KM, B_KN, i > 0)
                    if (before[1] < PARTS) & (i == 1 + w + before[1] * (BM // 64)):
                        before = send_next(before, w, stage, C, maps, own, BM, BN)
                    tile.mma_wait(1 if BEHIND else 0)
            tile.mma_wait(0)
            ring.release()
            for part in range(before[1], PARTS):
                before = send_next(before, w, stage, C, maps, own, BM, BN)
            before = kept(tile.cast(acc, C.dtype), place, before[3], WIDTH)
            if above:
                before = before[0], PARTS, place, before[3]
                for s in range(steps):
                    with ring.consume():
                        pass
                with tile.elect():
                    tile.bulk_wait(0, read=True)
    with tile.elect():
        tile.bulk_wait(0)


@tile.jit
def grouped(A, B, C, table, storage, maps, E0, E1, E2, E3, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr,
            ORDER: tile.constexpr, BEHIND: tile.constexpr, REGS: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr,
            WIDTH: tile.constexpr, BUFFERS: tile.constexpr, FINISH: tile.constexpr, EXTRAS: tile.constexpr, KEPT: tile.constexpr = False):
    """``C[g] = A[g] @ B[g]`` for each group: of a list, where A, B and C are like the groups' matrices and a column of `table` says
    where those are; or (`table` None) of the rows of A and C, from where the group before stops to ``offs[g]``, and the matrices
    of B. Results go by TMA from BUFFERS buffers of WIDTH columns in turn, or (0) by stores; with `KEPT` under the next piece's products."""
    ring = slots(STAGES, A, B, BM, BN, BK, A_KM, B_KN)
    work = tile.ring(AHEAD, T=((8,), tile.int32), consumers=1 + BM // 64, filled="stores")
    stage = None
    if WIDTH:
        staged = (BM // 64, BUFFERS, 64, WIDTH)
        stage = tile.alloc(staged, C.dtype, layout=tile.swizzled(C.dtype, staged, min(WIDTH * C.dtype.nbytes, 128)))
    own, shape, extra = tile.program_id(0) * (3 * SETS), (BM, BN, BK, A_KM, B_KN), (E0, E1, E2, E3)[:EXTRAS]
    with tile.warpgroup(0, regs=REGS[0]):
        with tile.elect():
            load(work, ring, A, B, maps, own, len(table.shape) == 2, shape)
        with tile.warp(1):
            walk(work, A, B, C, table, maps, own, shape, ORDER, WIDTH)
    with tile.each_warpgroup(range(1, 1 + BM // 64), regs=REGS[1]) as warpgroup:
        w = warpgroup - 1
        if KEPT:
            multiply_kept(work, ring, stage[w], w, C, maps, own, shape, SUMS, BEHIND)
        else:
            multiply(work, ring, stage, w, C, maps, own, extra, shape, SUMS, BEHIND, FINISH)
