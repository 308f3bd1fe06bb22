"""Overlaps a tile's epilogue with the products of the next tile, on Hopper.

So the tensor cores wait little between two tiles.

Either the whole tile is converted, kept in registers and sent part by part (`parts_to_send`); or, with an epilogue,
the first columns are finished at once, and the sums of the last columns are deferred and finished under the next
tile's products (`begun_over`)."""

from __future__ import annotations

import tilejit as tile

from ..epilogue import PIECE, bring, finish_first, finish_last, finish_piece, send_first, store_part
from .mainloop import corner, product


@tile.jit
def parts_to_send(values, place, turn, WIDTH: tile.constexpr):
    """The finished `values` of the tile at `place`, to be sent under the products of the next one: (parts of WIDTH
    columns, how many parts have been sent, the place, the staging buffer to use next)."""
    parts = ()
    for part in tile.static_range(values.shape[1] // WIDTH):
        parts = (*parts, values[:, part * WIDTH:part * WIDTH + WIDTH])
    return parts, 0, place, turn


@tile.jit
def none_kept(dtype, BN: tile.constexpr, WIDTH: tile.constexpr):
    """The same for no tile."""
    return (tile.zeros((64, WIDTH), dtype),) * (BN // WIDTH), BN // WIDTH, (0, 0), 0


@tile.jit
def send_next(before, w, stage, C, down, PLAN: tile.constexpr):
    """Consumer `w` sends the next part of the tile that it has `parts_to_send`; returns what is left."""
    parts, sent, place, turn = before
    z, row, column = corner(*place, w, down, len(C.shape) == 3, PLAN)
    tile.assume(sent >= 0)
    turn = store_part(parts[0], stage, turn, C, z, row, column + sent * stage.shape[2])
    return (*parts[1:], parts[-1]), sent + 1, place, turn


@tile.jit
def multiplied_over(acc, before, ring, w, steps, t, stage, C, grid, PLAN: tile.constexpr):
    """Consumer `w` multiplies the `steps` slots of tile number `t`, and meanwhile sends what it has kept of the tile
    `before`: (its sums, the tile's place, the staging buffer to use next). Consumers send their parts under products
    in turn, since sending a part takes longer than the products in flight."""
    place, PARTS = (0, 0), PLAN.bn // stage.shape[2]
    for i in range(steps):
        with ring.consume(behind=PLAN.behind) as slot:
            acc = product(acc, slot, w, PLAN, i > 0)
            if i == 0:
                place = tile.tile_at(t, grid.rows, grid.across, *PLAN.order)
            if (before[1] < PARTS) & (i == 1 + w + before[1] * (PLAN.bm // 64)):
                before = send_next(before, w, stage, C, grid.down, PLAN)
            ring.peek()
            tile.mma_wait(1 if PLAN.behind else 0)
    tile.mma_wait(0)
    ring.release()
    for part in range(before[1], PARTS):
        before = send_next(before, w, stage, C, grid.down, PLAN)
    return acc, place, before[3]


@tile.jit
def none_left_over(PLAN: tile.constexpr):
    """No deferred columns, in the form that `finish_but_last` returns."""
    return tile.zeros((64, PLAN.late), PLAN.deferred_dtype), False, (0, 0)


@tile.jit
def left_over(acc, PLAN: tile.constexpr):
    """The last columns of an accumulator, as they wait for the next tile."""
    return tile.cast(acc[:, acc.shape[1] - PLAN.late:acc.shape[1]], PLAN.deferred_dtype)


@tile.jit
def begun_over(before, ring, w, stage, C, down, how, PLAN: tile.constexpr):
    """A consumer's first slots, `under(LATE)` of them; its accumulator starts at zero. Under their products it sends
    the first columns of the tile before, then finishes and sends that tile's deferred columns, one piece per slot, if
    there are any."""
    last, there, place = before
    z, row, column = corner(*place, w, down, len(C.shape) == 3, PLAN)
    LATE: tile.constexpr = last.shape[1]
    with ring.consume() as slot:
        acc = product(None, slot, w, PLAN)
        if PLAN.bn > LATE:
            if there:
                send_first(PLAN.bn - LATE, stage, C, z, row, column)
        tile.mma_wait(0)
    for piece in tile.static_range(LATE // PIECE):
        with ring.consume() as slot:
            acc = product(acc, slot, w, PLAN)
            if there:
                finish_piece(last, piece, stage, C, z, row, column, how)
            tile.mma_wait(0)
    return acc


def count_slots_over(late: int) -> int:
    """The number of slots under whose products a consumer finishes `late` columns."""
    return late // PIECE + 1


def most_late(slots: int, width: int, late: int) -> int:
    """How many of `late` columns a consumer with `slots` slots can defer: it needs one slot for `begun_over`'s first,
    one in which it requests the epilogue's tiles, and one for the end."""
    return columns_of_whole_buffers(min(late, max(slots - 3, 0) * PIECE), width)


def columns_of_whole_buffers(columns: int, width: int) -> int:
    """The most of so many columns that fill staging buffers of `width` columns; 0 if a piece does not fit in one."""
    return columns // width * width if width >= PIECE else 0


@tile.jit
def multiplied_bringing(acc, ring, w, steps, when, stage, ready, C, how, at, PLAN: tile.constexpr):
    """A consumer: adds the products of `steps` slots to `acc`. Under the product of slot `when` it requests the
    epilogue's tiles that TMA loads."""
    z, row, column = at
    for i in range(steps):
        with ring.consume() as slot:
            acc = product(acc, slot, w, PLAN)
            if how.ahead:
                if i == when:
                    with tile.elect():
                        bring(stage, ready, z, row, column, how)
            ring.peek()
            tile.mma_wait(0)
    return acc


@tile.jit
def time_of(p, steps):
    """The number of slots, of a tile's `steps`, after which a CTA requests the epilogue's tiles. It differs between
    CTAs, since otherwise memory would have to deliver the tiles of all of them at once."""
    return steps * (p % 8 + 1) // 16


@tile.jit
def finish_but_last(acc, ring, w, stage, ready, phase, place, down, C, how, PLAN: tile.constexpr):
    """A consumer's last slot, after which all but the deferred last columns are finished, but not sent yet: (the
    deferred columns, the next phase). The slot is released only after that, so that the loads from shared memory for
    these columns are issued while its product runs."""
    z, row, column = corner(*place, w, down, len(C.shape) == 3, PLAN)
    with ring.consume(behind=True) as slot:
        acc = product(acc, slot, w, PLAN)
    if how.ahead:
        ready.wait(phase=phase)
        phase = phase ^ 1
    tile.mma_wait(0)
    if PLAN.late < PLAN.bn:
        finish_first(acc[:, 0:PLAN.bn - PLAN.late], stage, z, row, column, how)
    last = left_over(acc, PLAN)
    ring.release()
    return (last, True, place), phase


@tile.jit
def finish_left_over(before, w, stage, C, down, how, PLAN: tile.constexpr):
    """Finish and send all of a CTA's last tile that is not sent yet, since no products follow."""
    last, there, place = before
    if there:
        z, row, column = corner(*place, w, down, len(C.shape) == 3, PLAN)
        if last.shape[1] < PLAN.bn:
            send_first(PLAN.bn - last.shape[1], stage, C, z, row, column)
        finish_last(last, stage, C, z, row, column, how)
