"""The gradients on Hopper: a producer, and two consumers of half of a block's keys each.

The producer takes blocks of keys from a counter, and loads K and V once, and then Q, dO and the numbers of each row
for the blocks of rows that see some of the keys. A consumer computes scores transposed, a line for each of its keys, so
that probabilities and their gradients are operands from registers. For dQ, consumers pass each other their gradients of
scores through shared memory, and each computes half of it, which TMA adds to memory."""

from __future__ import annotations

import tilejit as tile

from ..hopper import tile_of
from ..pipelined import part
from ..scores import Place, Rules
from .prepare import line_of
from .score_gradients import blocks_of, powers_of, row_of, rows_of


@tile.jit
def block_of(t, Q, K, tiles, group, PLAN: tile.constexpr):
    """(Batch, head of K, first key) of number `t`: a group of heads after the other, and in it all blocks of the first
    keys first, which have the most rows if rows see only columns to their left."""
    across, heads = tile.cdiv(K.shape[-2], PLAN.bn), K.shape[-3]
    z, n = tile_of(t, tiles // across, across, group)
    return z // heads, z % heads, (across - 1 - n) * PLAN.bn


@tile.jit
def load(rings, arrays, counter, group, rules, tiles, PLAN: tile.constexpr):
    """The producer."""
    numbers, blocks, queries, gradients = rings
    DO, Q, K, V, SUMS, DELTA, table = arrays
    BM: tile.constexpr = PLAN.bm
    shared = Q.shape[-3] // K.shape[-3]   # heads of Q that have one head of K and V
    t = tile.next_tile(counter[0], tiles)
    while t < tiles:
        with numbers.produce() as slot:
            tile.store(slot.T[0], t)
        batch, head, column = block_of(t, Q, K, tiles, group, PLAN)
        with blocks.produce() as slot:
            tile.copy_async(slot.K, part(K, batch, head, column, PLAN.bn, PLAN.d), mbar=slot.full)
            tile.copy_async(slot.V, part(V, batch, head, column, PLAN.bn, PLAN.dv), mbar=slot.full)
        for h in range(shared):
            place = Place(batch, head * shared + h, 0, Q.shape[-2], K.shape[-2])
            first, stop, _, whole_stop = blocks_of(column, place, table, rules, BM, PLAN.bn, PLAN.scores)
            for i in range(first, stop):
                m = row_of(i, (whole_stop, stop), column, place, table, BM, PLAN.scores)
                with queries.produce() as slot:
                    tile.copy_async(slot.Q, part(Q, batch, place.head, m, BM, PLAN.d), mbar=slot.full)
                with gradients.produce() as slot:
                    tile.copy_async(slot.DO, part(DO, batch, place.head, m, BM, PLAN.dv), mbar=slot.full)
                    tile.copy_async(slot.SUMS, line_of(SUMS, batch, place.head, m, BM), mbar=slot.full)
                    tile.copy_async(slot.DELTA, line_of(DELTA, batch, place.head, m, BM), mbar=slot.full)
        t = tile.next_tile(counter[0], tiles)
    with numbers.produce() as slot:
        tile.store(slot.T[0], tiles)


@tile.jit
def add(dq, stage, DQ, place, m, w, PLAN: tile.constexpr):
    """Add a consumer's gradients, of 64 columns of 64 rows of the block from `m` on, to DQ, where they are contiguous.
    They are in columns of 8 elements, so that threads store them to one address and constants after it, and to all
    banks."""
    tile.store(stage.view(shape=(8, 64, 8)), tile.transpose(tile.reshape(dq, (64, 8, 8)), (1, 0, 2)))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        n = m // 64 * (PLAN.d // 64) + w
        if len(DQ.shape) == 4:
            tile.copy_async(DQ[place.head, n, 0:16, 0:256], stage, reduce="add")
        else:
            tile.copy_async(DQ[place.batch, place.head, n, 0:16, 0:256], stage, reduce="add")
        tile.bulk_commit()


@tile.jit
def walk(state, blocks, rings, shared, DQ, place, column, span, w, rules, EDGE: tile.constexpr, PLAN: tile.constexpr):
    """Continue a consumer's sums with blocks of rows: the `span` has the first, one past the last, and the table of
    listed blocks. The `state` is dK, dV, and the number of the buffer that the next block's gradients of scores go
    to."""
    dk, dv, side = state
    begin, end, table = span
    queries, gradients = rings
    scores, stage, both = shared
    BM: tile.constexpr = PLAN.bm
    HALF: tile.constexpr = PLAN.d // 2
    # measured on an H200: 1 to 6 % up to 128 columns, nothing at 256; loses 2 % at 64 columns without bounds
    PEEKS: tile.constexpr = PLAN.d > 64 or PLAN.scores.right
    k, v = blocks.K[w * 64:w * 64 + 64, :], blocks.V[w * 64:w * 64 + 64, :]
    for i in range(begin, end):
        tile.assume((side >= 0) & (side < 2))
        m = row_of(i, (0 if EDGE else end, end), column, place, table, BM, PLAN.scores)
        with queries.consume() as block:
            s = tile.mma_async(None, k, block.Q, trans_b=True)
            tile.mma_commit()
            with gradients.consume() as lines:
                dp = tile.mma_async(None, v, lines.DO, trans_b=True)
                tile.mma_commit()
                tile.mma_wait(1)
                here = Place(place.batch, place.head, m, place.rows, place.keys)
                p, weights = powers_of(s, tile.load(lines.SUMS), here, column, rules, EDGE, PLAN.scores)
                dv = tile.mma_async(dv, tile.cast(p, lines.DO.dtype), lines.DO)
                tile.mma_commit()
                tile.mma_wait(1)
                ds = tile.cast(weights * (dp - tile.load(lines.DELTA)[None, :]), lines.DO.dtype)
                if PLAN.add:
                    tile.store(scores[side, w * 64:w * 64 + 64, :], ds)
                    tile.fence_proxy_async()
                    with tile.elect():
                        tile.bulk_wait(0, read=True)    # so `stage` may be written again
                    both.sync()
                    if BM == 64:
                        dq = tile.mma_async(None, scores[side], blocks.K[:, w * HALF:w * HALF + HALF], trans_a=True)
                    else:
                        dq = tile.mma_async(None, scores[side, :, w * 64:w * 64 + 64], blocks.K, trans_a=True)
                    tile.mma_commit()
                    side = 1 - side
                dk = tile.mma_async(dk, ds, block.Q)
                tile.mma_commit()
                if PEEKS:
                    queries.peek()
                tile.mma_wait(2 if PLAN.add else 1)     # until dV is done
            if PLAN.add:
                tile.mma_wait(1)
                add(dq, stage, DQ, place, m, w, PLAN)
            tile.mma_wait(0)
    return dk, dv, side


@tile.jit
def differentiate(blocks, rings, shared, group, DQ, place, column, side, w, rules, table, PLAN: tile.constexpr):
    """(dK unscaled, dV, the next side) of the 64 keys of a consumer, from all rows of the `group` of heads from
    `place.head` on, which share the keys."""
    BM: tile.constexpr = PLAN.bm
    SCORES: tile.constexpr = PLAN.scores
    state = tile.zeros((64, PLAN.d)), tile.zeros((64, PLAN.dv)), side
    own = column + w * 64
    for h in range(group):
        here = Place(place.batch, place.head + h, 0, place.rows, place.keys)
        first, stop, whole, whole_stop = blocks_of(column, here, table, rules, BM, PLAN.bn, SCORES)
        if not SCORES.listed:
            _, _, whole, whole_stop = rows_of(own, here, rules, BM, 64, SCORES)
            whole = stop if own + 64 > place.keys else min(max(whole, first), stop)
            whole_stop = min(max(whole_stop, whole), stop) if SCORES.cuts_rows else stop
        for phase in tile.static_range(1 if SCORES.listed else 0, 3 if SCORES.cuts_rows or SCORES.listed else 2):
            EDGE: tile.constexpr = phase != 1
            if phase == 0:
                span = first, whole, table
            elif phase == 1:
                span = whole, whole_stop, table
            else:
                span = whole_stop, stop, table
            state = walk(state, blocks, rings, shared, DQ, here, own, span, w, rules, EDGE, PLAN)
    return state


@tile.jit
def put(x, stage, OUT, place, PLAN: tile.constexpr):
    """Store the gradients of 64 keys by TMA, through a staging buffer."""
    WIDTH: tile.constexpr = stage.shape[1]
    for c in tile.static_range(x.shape[1] // WIDTH):
        with tile.elect():
            tile.bulk_wait(0, read=True)
        tile.sync()
        tile.store(stage, tile.cast(x[:, c * WIDTH:(c + 1) * WIDTH], OUT.dtype))
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(part(OUT, place.batch, place.head, place.row, 64, WIDTH, c * WIDTH), stage)
            tile.bulk_commit()


@tile.jit
def gradients_hopper(DO, Q, K, V, SUMS, DELTA, DQ, DK, DV, counter, group, scale, left, right, cap, E0, E1, E2, E3,
           PLAN: tile.constexpr):
    """DK and DV, and if `add` what they give to DQ, in float32, up to the scale, in the order of `sums_of`. SUMS and
    DELTA are those of `prepare`. `PLAN` is a `HopperBackwardConstants`. The blocks of a `group` of heads of K are taken
    together; with listed blocks, it comes with their table."""
    BM: tile.constexpr = PLAN.bm
    BN: tile.constexpr = PLAN.bn
    D: tile.constexpr = PLAN.d
    tiles = tile.cdiv(K.shape[-2], BN) * K.shape[-3] * (K.shape[0] if len(K.shape) == 4 else 1)
    rules = Rules(scale, left, right, cap, (E0, E1, E2, E3)[:PLAN.scores.extras])
    numbers = tile.ring(2, T=((1,), tile.int32), consumers=2, filled="stores")
    blocks = tile.ring(1, K=((BN, D), K.dtype), V=((BN, PLAN.dv), V.dtype), consumers=2)
    queries = tile.ring(PLAN.stages, Q=((BM, D), Q.dtype), consumers=2)
    gradients = tile.ring(PLAN.stages, DO=((BM, PLAN.dv), DO.dtype), SUMS=((BM,), tile.float32),
                          DELTA=((BM,), tile.float32), consumers=2)
    table = None
    if PLAN.scores.listed:
        group, table = group
    # of both consumers: gradients of scores, for this block of rows and for the block before
    SCORES: tile.constexpr = (2, BN, BM)
    scores, summed = None, None
    if PLAN.add:
        scores = tile.alloc(SCORES, Q.dtype, layout=tile.swizzled(Q.dtype, SCORES, 128))
        summed = tile.alloc((2, 16, 256), tile.float32)
    STAGED: tile.constexpr = (2, 64, 64)
    staged = tile.alloc(STAGED, DK.dtype, layout=tile.swizzled(DK.dtype, STAGED, 128))
    both = tile.named_barrier(256)
    with tile.warpgroup(0, regs=PLAN.regs[0]):
        with tile.elect():
            load((numbers, blocks, queries, gradients), (DO, Q, K, V, SUMS, DELTA, table), counter, group, rules, tiles,
                 PLAN)
    with tile.each_warpgroup(range(1, 3), regs=PLAN.regs[1]) as warpgroup:
        w = warpgroup - 1
        t, side = 0, 0
        while t < tiles:
            with numbers.consume() as slot:
                t = tile.load(slot.T[0])
            if t < tiles:
                batch, head, column = block_of(t, Q, K, tiles, group, PLAN)
                # of a loaded number: a store's position must be known not to be negative
                tile.assume((batch >= 0) & (head >= 0) & (column >= 0))
                shared = Q.shape[-3] // K.shape[-3]
                place = Place(batch, head * shared, 0, Q.shape[-2], K.shape[-2])
                with blocks.consume() as slot:
                    dk, dv, side = differentiate(slot, (queries, gradients),
                                                 (scores, summed[w] if PLAN.add else None, both), shared, DQ, place,
                                                 column, side, w, rules, table, PLAN)
                to = Place(batch, head, column + w * 64, Q.shape[-2], K.shape[-2])
                put(dv, staged[w], DV, to, PLAN)
                put(dk * scale, staged[w], DK, to, PLAN)
        with tile.elect():
            tile.bulk_wait(0)


__all__ = ["gradients_hopper"]
