"""Products of several groups of matrices on Hopper, in one persistent launch.

One warp of each CTA walks over the tiles of all groups, and hands each tile as a piece of work to the producer and
the consumers (in a pair of CTAs a piece is two tiles, one for each). When the group changes, this warp first edits
the CTA's next tensor maps to describe the group's matrices, while tiles of earlier pieces are still being
multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilejit as tile

from ..matmul.epilogue import Finishing, at_once, finish_sums, parts_sent_since, put, send, send_all
from ..matmul.hopper.mainloop import add_products, first_product, operand, product, slots, tma_precision
from ..matmul.hopper.overlap import parts_to_send

AHEAD = 2                  # pieces of work in progress at once: one is multiplied while operands of the next are loaded
# sets of tensor maps: stores of the two pieces before the oldest in progress may still use theirs
SETS = AHEAD + 2
CHUNK = 128                # groups that are searched at once
NONE = 2 ** 31 - 1
NUMBERS = 9                # numbers that describe a piece of work, see `walk`
# rows of the table; it has a column per group
A_AT, A_ROW, B_AT, B_ROW, C_AT, C_ROW, M, N, K, COLUMNS, END, NUMBER, TAKEN, FIELDS = range(14)


# -- which tile comes next ---------------------------------------------------------------------------------------------

@tile.jit
def stop(offs, g, rows):
    """Where the rows of the groups `g` end; 0 for the group before the first."""
    return tile.minimum(tile.maximum(tile.load(offs[g], mask=(g >= 0) & (g < offs.shape[0]), other=0), 0), rows)


@tile.jit
def pieces(rows, across, BM: tile.constexpr, PAIR: tile.constexpr):
    """The number of pieces of work in `rows` rows and `across` columns of tiles: one per tile,
    or one per two tiles with `PAIR`."""
    down = tile.cdiv(tile.maximum(rows, 0), BM)
    return down // 2 * across + down % 2 * tile.cdiv(across, 2) if PAIR else down * across


@tile.jit
def place(t, table, rows, across, BM: tile.constexpr, PAIR: tile.constexpr):
    """(the group of piece `t`, the group's first piece, the number of all pieces)."""
    g, first, total = 0, 0, 0
    for c in range(0, table.shape[-1], CHUNK):
        if len(table.shape) == 2:
            ends = tile.cast(tile.load(table[END, c:c + CHUNK], other=NONE), tile.int32)
        else:
            groups = c + tile.arange(CHUNK)
            each = tile.where(groups < table.shape[0], stop(table, groups, rows) - stop(table, groups - 1, rows), 0)
            ends = tile.cumsum(pieces(each, across, BM, PAIR)) + total
        over = ends <= t
        g = g + tile.sum(tile.where(over, 1, 0), axis=0)
        first = max(first, tile.max(tile.where(over, ends, 0), axis=0))
        total = tile.max(tile.where(ends < NONE, ends, 0), axis=0)
    return g, first, total


@tile.jit
def number(table, field: tile.constexpr, g):
    """An entry of the table that fits in 32 bits."""
    return tile.cast(tile.load(table[field, g]), tile.int32)


# -- maps --------------------------------------------------------------------------------------------------------------

@tile.jit
def map_of(X, maps, at, rows: tile.constexpr, columns: tile.constexpr, edit: tile.constexpr = "global",
           precision: tile.constexpr = None):
    """The tensor map in slot `at`, of a matrix like X, with boxes of `rows` by `columns`."""
    SPAN: tile.constexpr = min(columns * X.dtype.nbytes, 128)
    return tile.tensor_map(X[0:rows, 0:columns], swizzle=SPAN if SPAN > 16 else 0, precision=precision,
                           slot=maps[at, 0:128], edit=edit)


@tile.jit
def operand_map(X, maps, at, rows: tile.constexpr, k: tile.constexpr, K_FIRST: tile.constexpr, PAIR: tile.constexpr,
                edit: tile.constexpr = "global"):
    """The tensor map of an operand [rows, k], or [k, rows] (`K_FIRST`); with `PAIR` its boxes are halves."""
    BOX: tile.constexpr = (k, rows) if K_FIRST else (rows, k)
    return map_of(X, maps, at, BOX[0] // 2 if PAIR else BOX[0], BOX[1], edit, tma_precision(X))


@tile.jit
def edit(m, address, rows, columns, stride):
    """Change the address, extents and stride of a tensor map in shared memory."""
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
    """Publish edited maps to the CTA, and prefetch them to the cache that copies read descriptors from."""
    for i in tile.static_range(len(maps)):
        maps[i].publish("cta")
    with tile.elect():
        for x in tile.static_range(len(maps)):
            maps[x].fence_acquire("cta")
            maps[x].prefetch()


# -- the roles ---------------------------------------------------------------------------------------------------------

@tile.jit
def take_piece(table):
    """The next piece of a list that no CTA has taken; these follow the first piece of each CTA or pair."""
    return tile.cast(tile.atomic_add(table[TAKEN, 0], 1), tile.int32)


@tile.jit
def receive_piece(n, table, mail):
    """The `n`-th piece that the even CTA of a pair gets from `take_piece`, for both CTAs: it sends the number to the
    odd one through mailboxes in shared memory, each with an mbarrier for full and one for empty."""
    boxes, full, empty = mail
    at, phase, t = n % AHEAD, n // AHEAD % 2, 0
    tile.assume((at >= 0) & (at < AHEAD))
    if tile.cta_rank() == 0:
        t = take_piece(table)
        empty[at].wait(phase=phase ^ 1)
        with tile.elect():
            tile.store_async(boxes.peer(1)[at], t, mbar=full[at])
    else:
        with tile.elect():
            full[at].arrive_expect_tx(boxes.dtype.nbytes)
        full[at].wait(phase=phase)
        t = tile.load(boxes[at])
        tile.sync()
        with tile.elect():
            empty[at].peer(0).arrive()
    return t


@tile.jit
def next_piece(n, table, mail, PAIR: tile.constexpr):
    """The `n`-th piece of this CTA's or `PAIR`'s work: of a list the next that nobody has taken, of stacked rows a
    fixed one of each wave."""
    GROUP: tile.constexpr = 2 if PAIR else 1
    groups = tile.num_programs(0) // GROUP
    t = tile.program_id(0) // GROUP
    if len(table.shape) == 1:
        t = t + n * groups
    elif n > 0:
        t = groups + (receive_piece(n - 1, table, mail) if PAIR else take_piece(table))
    return t


@tile.jit
def tile_of(p, down, across, ORDER: tile.constexpr, PAIR: tile.constexpr):
    """(row, column) of this CTA's tile in piece `p` of a group, and whether the tiles of a `PAIR` lie one above the
    other and share columns of B. If the number of rows of tiles is odd, tiles in the last row are paired side by side
    and share rows of A."""
    if not PAIR:
        i, j = tile.tile_at(p, down, across, *ORDER)
        return i, j, False
    rank, above = tile.cta_rank(), down // 2 * across
    i, j = down - 1, 2 * (p - above) + rank
    if p < above:
        i, j = tile.tile_at(p, down // 2, across, *ORDER)
        i = 2 * i + rank
    return i, j, p < above


@tile.jit
def bind(A, B, C, maps, at, extents, addresses, strides, PLAN: tile.constexpr):
    """Edit the three maps from slot `at` on for a listed group's matrices: their `addresses`, and `strides` in
    elements between rows (or k)."""
    rows, columns, k, wide = extents
    c = map_of(C, maps, at + 2, 64, PLAN.width, "shared")
    a = operand_map(A, maps, at, PLAN.bm, PLAN.bk, PLAN.a_km, PLAN.pair, "shared")
    b = operand_map(B, maps, at + 1, PLAN.bn, PLAN.bk, PLAN.b_kn, PLAN.pair, "shared")
    with tile.elect():
        edit_operand(a, addresses[0], rows, k, strides[0], PLAN.a_km)
        edit_operand(b, addresses[1], columns, k, strides[1], PLAN.b_kn)
        edit(c, addresses[2], rows, wide, strides[2])
    hand_out((a, b, c))


@tile.jit
def walk(work, A, B, C, table, maps, own, mail, PLAN: tile.constexpr):
    """The warp that hands out this CTA's pieces of work, when the work ring has room for one,
    with the group's maps edited before."""
    LISTED: tile.constexpr = len(table.shape) == 2
    across = tile.cdiv(C.shape[1], PLAN.bn)
    t, n, total, last, held = -1, 0, 0, -1, 0
    while t < total:
        with work.produce() as piece:
            t, n = next_piece(n, table, mail, PLAN.pair), n + 1
            g, first, total = place(t, table, A.shape[0], across, PLAN.bm, PLAN.pair)
            if t < total:
                if LISTED:
                    # Without this each load has a bounds check, which makes it wait for the one before.
                    tile.assume((g >= 0) & (g < table.shape[1]) & (table.shape[0] == FIELDS))
                    rows, columns, k, start = number(table, M, g), number(table, N, g), number(table, K, g), 0
                    a_at, b_at, c_at = tile.load(table[A_AT, g]), tile.load(table[B_AT, g]), tile.load(table[C_AT, g])
                    a_row, b_row, c_row = (tile.load(table[A_ROW, g]), tile.load(table[B_ROW, g]),
                                           tile.load(table[C_ROW, g]))
                    wide = number(table, COLUMNS, g)
                else:
                    start = stop(table, g - 1, A.shape[0])
                    rows, columns, k = stop(table, g, A.shape[0]) - start, C.shape[1], A.shape[1]
                which, backwards = (number(table, NUMBER, g) if LISTED else g,
                                    t // (tile.num_programs(0) // (2 if PLAN.pair else 1)) % 2)
                if g != last:
                    last, held = g, 0 if held == SETS - 1 else held + 1
                    if LISTED:
                        bind(A, B, C, maps, own + held * 3, (rows, columns, k, wide), (a_at, b_at, c_at),
                             (a_row, b_row, c_row), PLAN)
                    elif PLAN.width:
                        c = map_of(C, maps, own + held * 3 + 2, 64, PLAN.width, "shared")
                        with tile.elect():
                            edit(c, C[start, 0], rows, columns, C.strides[0])
                        hand_out((c,))
                i, j, same = tile_of(t - first, tile.cdiv(rows, PLAN.bm), tile.cdiv(columns, PLAN.bn), PLAN.order,
                                     PLAN.pair)
                numbers = (tile.cdiv(k, PLAN.bk), i, j, held * 3, backwards, which, start, rows,
                           tile.cast(same, tile.int32))
                for f in tile.static_range(NUMBERS):
                    tile.store(piece.T[f], numbers[f])
            else:
                tile.store(piece.T[0:NUMBERS], tile.full((NUMBERS,), -1))


@tile.jit
def part(x, z, row, k, extents, K_FIRST: tile.constexpr, LISTED: tile.constexpr):
    """The region that a slot takes of an operand: of its edited map, or of an array."""
    if LISTED:
        return x[k:k + extents[0], row:row + extents[1]] if K_FIRST else x[row:row + extents[0], k:k + extents[1]]
    return operand(x, z, row, k, extents, K_FIRST)


@tile.jit
def bring(buffer, x, z, row, k, full, same, K_FIRST: tile.constexpr, LISTED: tile.constexpr, PAIR: tile.constexpr):
    """Load an operand's part of a slot. Each CTA of a `PAIR` loads its part in two halves, or, if both need the
    `same`, one half for both."""
    ROUNDED, FETCHED, HALF = None if LISTED else tma_precision(x), not LISTED, buffer.shape[0] // 2
    if not PAIR:
        tile.copy_async(buffer, part(x, z, row, k, buffer.shape, K_FIRST, LISTED), mbar=full, precision=ROUNDED,
                        prefetch_map=FETCHED)
    elif same:
        at = tile.cta_rank() * HALF
        half = part(x, z, row if K_FIRST else row + at, k + at if K_FIRST else k, (HALF, buffer.shape[1]), K_FIRST,
                    LISTED)
        tile.copy_async(buffer[at:at + HALF, :], half, mbar=full, precision=ROUNDED, prefetch_map=FETCHED,
                        multicast=0b11)
    else:
        for h in tile.static_range(2):
            own = part(x, z, row if K_FIRST else row + h * HALF, k + h * HALF if K_FIRST else k,
                       (HALF, buffer.shape[1]), K_FIRST, LISTED)
            tile.copy_async(buffer[h * HALF:h * HALF + HALF, :], own, mbar=full, precision=ROUNDED,
                            prefetch_map=FETCHED)


@tile.jit
def load(work, ring, A, B, maps, own, LISTED: tile.constexpr, PLAN: tile.constexpr):
    """The producer thread: loads the operands of each piece."""
    steps = 0
    while steps >= 0:
        with work.consume() as piece:
            steps = tile.load(piece.T[0])
            i, j, at = tile.load(piece.T[1]) * PLAN.bm, tile.load(piece.T[2]) * PLAN.bn, own + tile.load(piece.T[3])
            backwards, which, start, same = (tile.load(piece.T[4]), tile.load(piece.T[5]), tile.load(piece.T[6]),
                                             tile.load(piece.T[8]))
            a, b = A, B
            if LISTED:
                a = operand_map(A, maps, at, PLAN.bm, PLAN.bk, PLAN.a_km, PLAN.pair)
                b, start = operand_map(B, maps, at + 1, PLAN.bn, PLAN.bk, PLAN.b_kn, PLAN.pair), 0
            for s in range(steps):
                k = (steps - 1 - s if backwards > 0 else s) * PLAN.bk
                with ring.produce() as slot:
                    bring(slot.A, a, 0, start + i, k, slot.full, same == 0, PLAN.a_km, LISTED, PLAN.pair)
                    bring(slot.B, b, which, j, k, slot.full, same > 0, PLAN.b_kn, LISTED, PLAN.pair)


@dataclass(frozen=True)
class Started:
    """The group of a piece of work, the row of the result in which it starts, and how its sums become results."""

    group: Any
    start: Any
    how: Finishing
    tile_record = True


@tile.jit
def values_to_store(sums, row, column, finish):
    """The values to store for sums from a row and a column of their group on."""
    return finish_sums(sums, finish.group, finish.start + row, column, finish.how)


@tile.jit
def store(acc, stage, c, row, column, finish):
    """Finish the sums (`finish` as in `values_to_store`) and send them to the map `c` through the staging buffers:
    all at once if these hold all columns, else in turn."""
    BUFFERS, WIDTH = stage.shape[0], stage.shape[2]
    TOGETHER: tile.constexpr = acc.shape[1] == BUFFERS * WIDTH
    for p in tile.static_range(acc.shape[1] // WIDTH):
        at = column + p * WIDTH
        values = values_to_store(acc[:, p * WIDTH:p * WIDTH + WIDTH], row, at, finish)
        if TOGETHER:
            put(values, stage[p], p == 0)
        else:
            send(values, stage[p % BUFFERS], c[row:row + 64, at:at + WIDTH],
                 parts_sent_since(p, acc.shape[1] // WIDTH, BUFFERS), False)
    if TOGETHER:
        send_all(stage, c, None, row, column)


@tile.jit
def multiply(work, ring, stage, w, C, maps, own, extra, PLAN: tile.constexpr):
    """A consumer: its 64 rows of each piece."""
    steps = 0
    while steps >= 0:
        with work.consume() as piece:
            steps = tile.load(piece.T[0])
            if steps >= 0:
                row, column, rows = (tile.load(piece.T[1]) * PLAN.bm + w * 64, tile.load(piece.T[2]) * PLAN.bn,
                                     tile.load(piece.T[7]))
                tile.assume((row >= 0) & (column >= 0))
                if stage is not None:
                    c = map_of(C, maps, own + tile.load(piece.T[3]) + 2, 64, stage.shape[3])
                if row < rows:
                    acc = tile.zeros((64, PLAN.bn), PLAN.sums) if PLAN.behind else first_product(ring, w, PLAN)
                    acc = add_products(acc, ring, w, steps if PLAN.behind else steps - 1, PLAN)
                    start = tile.load(piece.T[6])
                    finish = Started(tile.load(piece.T[5]), start, Finishing(1.0, 1.0, extra, PLAN.epilogue))
                    if stage is None:
                        window = tile.window(C, (start, 0), (rows, None))
                        for first in tile.static_range(0, PLAN.bn, at_once(PLAN.bn, PLAN.epilogue)):
                            some = acc[:, first:min(first + at_once(PLAN.bn, PLAN.epilogue), PLAN.bn)]
                            at = column + first
                            tile.store(window[row:row + 64, at:at + some.shape[1]],
                                       values_to_store(some, row, at, finish))
                    else:
                        store(acc, stage[w], c, row, column, finish)
                # the group ends above these rows: release the slots, and leave the tensor cores to the other consumers
                else:
                    for s in range(steps):
                        with ring.consume():
                            pass
                    if stage is not None:
                        with tile.elect():
                            # releasing the piece frees older maps, so stores that use them must be done
                            tile.bulk_wait(0, read=True)
    if stage is not None:
        with tile.elect():
            tile.bulk_wait(0)


@tile.jit
def send_next(before, w, stage, C, maps, own, PLAN: tile.constexpr):
    """Consumer `w` sends the next part of the piece that it has `kept`, by the map of that piece's group;
    returns what is left."""
    parts, sent, (i, j, at), turn = before
    BUFFERS, WIDTH = stage.shape[0], stage.shape[2]
    tile.assume((sent >= 0) & (i >= 0) & (j >= 0) & (turn >= 0) & (turn < BUFFERS))
    c, row, column = map_of(C, maps, own + at + 2, 64, stage.shape[2]), i * PLAN.bm + w * 64, j * PLAN.bn + sent * WIDTH
    send(parts[0], stage[turn], c[row:row + 64, column:column + WIDTH], BUFFERS - 1, False)
    return (*parts[1:], parts[-1]), sent + 1, (i, j, at), turn + 1 if turn + 1 < BUFFERS else 0


@tile.jit
def multiply_kept(work, ring, stage, w, C, maps, own, PLAN: tile.constexpr):
    """A consumer that keeps results in registers until the first products of its next piece run, as in
    `persistent_kept`; if it has no products there, it sends them at once. So all stores of a piece are issued when
    the next piece is released, and TMA has read them when the piece after that is: by then their buffers have been
    used for the next piece's results, or there were none and the stores were awaited."""
    WIDTH: tile.constexpr = stage.shape[2]
    PARTS: tile.constexpr = PLAN.bn // WIDTH
    acc, steps = tile.zeros((64, PLAN.bn), PLAN.sums), 0
    before = (tile.zeros((64, WIDTH), C.dtype),) * PARTS, PARTS, (0, 0, 0), 0
    while steps >= 0:
        with work.consume() as piece:
            steps, place = tile.load(piece.T[0]), (tile.load(piece.T[1]), tile.load(piece.T[2]), tile.load(piece.T[3]))
            # the group ends above these rows: leave the tensor cores to the others
            above = place[0] * PLAN.bm + w * 64 >= tile.load(piece.T[7])
            for i in range(0 if above else steps):
                with ring.consume(behind=PLAN.behind) as slot:
                    acc = product(acc, slot, w, PLAN, i > 0)
                    if (before[1] < PARTS) & (i == 1 + w + before[1] * (PLAN.bm // 64)):
                        before = send_next(before, w, stage, C, maps, own, PLAN)
                    tile.mma_wait(1 if PLAN.behind else 0)
            tile.mma_wait(0)
            ring.release()
            for part in range(before[1], PARTS):
                before = send_next(before, w, stage, C, maps, own, PLAN)
            before = parts_to_send(tile.cast(acc, C.dtype), place, before[3], WIDTH)
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
def grouped(A, B, C, table, storage, maps, E0, E1, E2, E3, PLAN: tile.constexpr):
    """``C[g] = A[g] @ B[g]`` for each group. Of lists, A, B and C are the first group's matrices, and each column of
    `table` describes a group's. Of stacked rows, `table` is ``offs``, a group is the rows of A and C from where the
    group before it ends up to ``offs[g]``, and B holds the matrices of all groups.

    `PLAN` is a `GroupedConstants`. For a pair of CTAs a piece of work is two tiles,
    and they load for each other what both multiply."""
    ring = slots(A, B, PLAN)
    mail = None
    if PLAN.pair:
        mail = tile.alloc((AHEAD,), tile.int32), tile.mbarrier(n=AHEAD), tile.mbarrier(n=AHEAD)
    work = tile.ring(AHEAD, T=((NUMBERS,), tile.int32), consumers=1 + PLAN.bm // 64, filled="stores")
    stage = None
    if PLAN.width:
        staged = (PLAN.bm // 64, PLAN.buffers, 64, PLAN.width)
        stage = tile.alloc(staged, C.dtype,
                           layout=tile.swizzled(C.dtype, staged, min(PLAN.width * C.dtype.nbytes, 128)))
    own, extra = tile.program_id(0) * (3 * SETS), (E0, E1, E2, E3)[:PLAN.epilogue.extras]
    with tile.warpgroup(0, regs=PLAN.regs[0]):
        with tile.elect():
            load(work, ring, A, B, maps, own, len(table.shape) == 2, PLAN)
        with tile.warp(1):
            walk(work, A, B, C, table, maps, own, mail, PLAN)
    with tile.each_warpgroup(range(1, 1 + PLAN.bm // 64), regs=PLAN.regs[1]) as warpgroup:
        w = warpgroup - 1
        if PLAN.kept:
            multiply_kept(work, ring, stage[w], w, C, maps, own, PLAN)
        else:
            multiply(work, ring, stage, w, C, maps, own, extra, PLAN)
