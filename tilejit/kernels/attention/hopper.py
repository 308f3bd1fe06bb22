"""Attention on Hopper: a producer, and consumers of 64 rows each.

The producer takes tiles of rows from a counter, longest first, and loads Q, and the blocks of K and V from last to
first, so blocks with masks come first and last. A consumer issues the scores of a block before the values of the block
before it, so its softmax runs under products; K is released before V. Two consumers issue their products in turn,
so that the softmax of one runs under the products of the other."""

from __future__ import annotations

import tilejit as tile

from .float8 import SHIFT, rules_in, turned_part
from .hopper_blocks import (
    added_to_last,
    attend,
    blocks_of,
    clear_beyond,
    column_of,
    scores_after,
    scores_of,
    with_steps,
)
from .pipelined import part, put_sums
from .scores import (
    Place,
    Rules,
    factor_of,
    finish,
)
from .tile_table import FIELDS, line_of


@tile.jit
def tile_of(t, heads, above, size):
    """(Head, counted through all batches; tile in it) of number `t`: a group of `size` heads after the other, and in it
    all tiles of the last rows first, which are the longest if rows see only columns to their left."""
    group = t // (size * above)
    rest, inside = t - group * (size * above), min(heads - group * size, size)
    return group * size + rest % inside, above - 1 - rest // inside


@tile.jit
def place_of(z, row, Q, K):
    """The place of rows from `row` on of head `z`, counted through all batches."""
    heads = Q.shape[-3]
    return Place(z // heads, z % heads, row, Q.shape[-2], K.shape[-2])


@tile.jit
def tiles_of(Q, group, PLAN: tile.constexpr):
    """(The heads that have tiles, counted through all batches; the tiles of each; how many heads are taken together).
    With lengths all batches have their tiles in one table, which is passed as the `group`."""
    if PLAN.lengths:
        last = group.shape[0] - 1
        return Q.shape[-3], tile.load(group[last, 0]), tile.load(group[last, 1])
    heads = Q.shape[-3] * (Q.shape[0] if len(Q.shape) == 4 else 1)
    return heads, tile.cdiv(Q.shape[-2], PLAN.bm), group[0] if PLAN.scores.listed else group


@tile.jit
def tile_at(t, tiles, Q, K, group, PLAN: tile.constexpr):
    """(The place of tile `t`, its first row in the array of all, and its sequence's first key). `tiles` is what
    `tiles_of` returns."""
    heads, above, size = tiles
    z, m = tile_of(t, heads, above, size)
    if PLAN.lengths:
        return line_of(group[m, 0:FIELDS], z)
    return place_of(z, m * PLAN.bm, Q, K), m * PLAN.bm, 0


@tile.jit
def hand_over(T, t, place, row):
    """Store the number of a tile, its place, and its first row in the array of all."""
    fields = t, place.batch, place.head, place.row, row, place.rows, place.keys
    for i in tile.static_range(T.shape[0]):
        tile.store(T[i], fields[i])


@tile.jit
def next_tile(numbers, Q, K, PLAN: tile.constexpr):
    """What `hand_over` has stored of the next tile."""
    with numbers.consume() as slot:
        t, batch, head, first = tile.load(slot.T[0]), tile.load(slot.T[1]), tile.load(slot.T[2]), tile.load(slot.T[3])
        row, rows, keys = first, Q.shape[-2], K.shape[-2]
        if PLAN.lengths:
            row, rows, keys = tile.load(slot.T[4]), tile.load(slot.T[5]), tile.load(slot.T[6])
        return t, Place(batch, head, first, rows, keys), row


@tile.jit
def load_queries(queries, n, Q, place, row, PLAN: tile.constexpr):
    """Load the rows of Q of the producer's tile `n`."""
    rows = part(Q, place.batch, place.head, row, PLAN.bm, PLAN.d)
    if PLAN.ahead:
        buffers, full, empty = queries
        empty[n % 2].wait(phase=(n // 2 + 1) % 2)
        full[n % 2].arrive_expect_tx(buffers.nbytes // 2)
        tile.copy_async(buffers[n % 2], rows, mbar=full[n % 2])
    else:
        with queries.produce() as slot:
            tile.copy_async(slot.Q, rows, mbar=slot.full)


@tile.jit
def load(rings, Q, K, V, counter, group, rules, tiles, PLAN: tile.constexpr):
    """The producer. V is what `turn_values` has made of values of float8, or the values."""
    numbers, queries, keys, values = rings
    BM: tile.constexpr = PLAN.bm
    heads, above, size = tiles
    shared = Q.shape[-3] // K.shape[-3]  # heads of Q that have one head of K and V
    n = 0  # tiles before this one
    t = tile.next_tile(counter[0], heads * above)
    while t < heads * above:
        place, row, start = tile_at(t, tiles, Q, K, group, PLAN)
        with numbers.produce() as slot:
            hand_over(slot.T, t, place, row)
        first, stop, whole, whole_stop = blocks_of(place, group, rules, BM, PLAN)
        head = place.head // shared
        for i in range(stop - 1, first - 1, -1):
            column = column_of(i, (whole_stop, stop), place, group, PLAN)
            at = column + start if PLAN.packed else column
            with keys.produce() as slot:
                tile.copy_async(slot.K, part(K, place.batch, head, at, PLAN.bn, PLAN.d), mbar=slot.full)
            if i == stop - 1:  # behind the keys, whose slot is free earlier
                load_queries(queries, n, Q, place, row, PLAN)
            with values.produce() as slot:
                if PLAN.scores.float8:
                    tile.copy_async(slot.V, turned_part(V, place, head, column, start, PLAN), mbar=slot.full)
                else:
                    tile.copy_async(slot.V, part(V, place.batch, head, at, PLAN.bn, PLAN.dv), mbar=slot.full)
        n += 1
        t = tile.next_tile(counter[0], heads * above)
    nowhere = Place(0, 0, 0, 0, 0)
    with numbers.produce() as slot:
        hand_over(slot.T, heads * above, nowhere, 0)
    if PLAN.ahead:  # products that nothing uses, so that every tile has a next one
        with keys.produce() as slot:
            tile.copy_async(slot.K, part(K, 0, 0, 0, PLAN.bn, PLAN.d), mbar=slot.full)
        load_queries(queries, n, Q, nowhere, 0, PLAN)


@tile.jit
def clear_only_block(slot, place, ends, w, together, PLAN: tile.constexpr):
    """`clear_beyond` of the only block of a tile, if it is cut."""
    first, stop = ends
    last = place.keys - (stop - 1) * PLAN.bn
    if (stop - 1 == first) & (last < PLAN.bn):
        clear_beyond(slot, last, w, together, PLAN)


@tile.jit
def put(acc, stage, OUT, place, PLAN: tile.constexpr):
    """Store the finished results of 64 rows: by TMA through staging buffers, or by threads."""
    if PLAN.width == 0:
        tile.store(part(OUT, place.batch, place.head, place.row, 64, PLAN.dv), acc)
    else:
        for c in tile.static_range(PLAN.dv // PLAN.width):
            with tile.elect():
                tile.bulk_wait(PLAN.buffers - 1, read=True)
            tile.sync()
            tile.store(stage[c % PLAN.buffers], acc[:, c * PLAN.width:(c + 1) * PLAN.width])
            tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                tile.copy_async(part(OUT, place.batch, place.head, place.row, 64, PLAN.width, c * PLAN.width),
                                stage[c % PLAN.buffers])
                tile.bulk_commit()


@tile.jit
def put_within(acc, lse, stage, OUT, L, place, row, PLAN: tile.constexpr):
    """Store the finished results of 64 rows of a packed sequence, from row `row` of all sequences on. The last rows are
    stored by threads, since TMA does not know where the sequence ends."""
    if PLAN.width and place.row + 64 <= place.rows:
        put(acc, stage, OUT, Place(0, place.head, row, 0, 0), PLAN)
    elif place.row < place.rows:
        own = tile.window(OUT, (place.head, row, 0), (1, place.rows - place.row, None))
        tile.store(own[0, 0:64, 0:PLAN.dv], acc)
    if PLAN.lse and place.row < place.rows:
        tile.store(tile.window(L, (place.head, row), (1, place.rows - place.row))[0, 0:64], lse)


@tile.jit
def store_results(acc, most, total, rules, S, stage, OUT, L, place, row, PLAN: tile.constexpr):
    """Scale and store the results of 64 rows, which begin at `row` of the array of all, and the logarithms of their
    sums."""
    POWERS: tile.constexpr = SHIFT if PLAN.scores.float8 else 0
    factor = factor_of(rules, scores_after(rules, PLAN.scores))
    by, lse = finish(most, total, factor, S, place.head, PLAN.scores, None, POWERS)
    if PLAN.scores.float8:
        by = by * (rules.values * 2.0 ** -SHIFT)
    acc = tile.cast(acc * by[:, None], OUT.dtype)
    if PLAN.packed:
        put_within(acc, lse, stage, OUT, L, place, row, PLAN)
    else:
        if PLAN.lse:
            put_sums(lse, L, place.batch, place.head, place.row)
        put(acc, stage, OUT, place, PLAN)


@tile.jit
def rows_of(place, row, w):
    """Of a tile from a ring, consumer w's place and its first row in the array of all."""
    # of loaded numbers: a store's position must be known not to be negative
    tile.assume((place.batch >= 0) & (place.head >= 0) & (place.row >= 0) & (row >= 0))
    tile.assume((place.rows >= 0) & (place.keys >= 0))
    return Place(place.batch, place.head, place.row + w * 64, place.rows, place.keys), row + w * 64


@tile.jit
def blocks_hidden(place, row, w, rules, PLAN: tile.constexpr):
    """How many blocks of a tile, from the last on, a bound hides from all rows of consumer `w`, which leaves them out:
    none of a tile at a sequence's end, which all consumers clear together. With results stored under the next tile's
    product, no more than the producer loads before values are released."""
    if not PLAN.skips:
        return 0
    first, stop, _, _ = blocks_of(place, None, rules, PLAN.bm, PLAN)
    own, _ = rows_of(place, row, w)
    _, own_stop, _, _ = blocks_of(own, None, rules, 64, PLAN)
    hidden = max(min(stop - own_stop, stop - first - 1), 0)
    if PLAN.lengths and not PLAN.scores.float8:
        hidden = 0 if place.keys < stop * PLAN.bn else hidden
    return min(hidden, PLAN.stages - 1) if PLAN.ahead else hidden


@tile.jit
def skip(ring, blocks):
    """Release so many blocks of a ring."""
    for _ in range(blocks):
        with ring.consume():
            pass


@tile.jit
def skip_turn(baton, w, PLAN: tile.constexpr):
    """Pass on a turn of consumer `w`: all consumers take one for each block of a tile."""
    if PLAN.turns:
        baton.take(w)
        baton.pass_on(w)


@tile.jit
def multiply(rings, arrays, stage, w, group, rules, tiles, barriers, PLAN: tile.constexpr):
    """Consumer `w`: one tile after the other."""
    numbers, queries, keys, values = rings
    Q, K, V, OUT, L, S = arrays
    baton, together = barriers
    t = 0
    while t < tiles:
        t, place, row = next_tile(numbers, Q, K, PLAN)
        if t < tiles:
            first, stop, _, _ = blocks_of(place, group, rules, PLAN.bm, PLAN)
            hidden = blocks_hidden(place, row, w, rules, PLAN)
            stop -= hidden
            for _ in range(hidden):  # block by block: the next keys may need the others to have had their turn
                skip(keys, 1)
                skip_turn(baton, w, PLAN)
                skip(values, 1)
            place, row = rows_of(place, row, w)
            own_rules = with_steps(rules_in(rules, place, Q, K, PLAN.scores), place, PLAN)
            begin = added_to_last(place, stop, group, own_rules, PLAN)
            if PLAN.held:
                with queries.consume() as slot:
                    q = tile.load(slot.Q[w * 64:w * 64 + 64, :])
                with keys.consume() as slot:
                    s = scores_of(q, slot, baton, w, begin, PLAN)
                acc, p, most, total = attend(s, q, keys, values, barriers, w, place, (first, stop), group,
                                             own_rules, V.dtype, PLAN)
            else:
                with queries.consume() as own:
                    q = own.Q[w * 64:w * 64 + 64, :]
                    with keys.consume() as slot:
                        s = scores_of(q, slot, baton, w, begin, PLAN)
                    acc, p, most, total = attend(s, q, keys, values, barriers, w, place, (first, stop), group,
                                                 own_rules, V.dtype, PLAN)
            with values.consume() as slot:
                if PLAN.lengths and not PLAN.scores.float8:
                    clear_only_block(slot, place, (first, stop), w, together, PLAN)
                acc = tile.mma_async(acc, p, slot.V, trans_b=PLAN.scores.float8)
                tile.mma_commit()
                tile.mma_wait(0)
            store_results(acc, most, total, own_rules, S, stage, OUT, L, place, row, PLAN)


@tile.jit
def multiply_ahead(rings, arrays, stage, w, group, rules, tiles, barriers, PLAN: tile.constexpr):
    """Consumer `w`: the scores of the next tile's last block follow the values of a tile's first one, and the results
    are stored under their product."""
    numbers, (buffers, full, empty), keys, values = rings
    Q, K, V, OUT, L, S = arrays
    baton, together = barriers
    n = 0  # tiles before this one
    t, place, row = next_tile(numbers, Q, K, PLAN)
    hidden = blocks_hidden(place, row, w, rules, PLAN) if t < tiles else 0
    full[0].wait(phase=0)
    skip(keys, hidden)
    with keys.consume() as slot:
        s = scores_of(buffers[0, w * 64:w * 64 + 64, :], slot, baton, w, None, PLAN)
    while t < tiles:
        first, stop, _, _ = blocks_of(place, group, rules, PLAN.bm, PLAN)
        stop -= hidden
        for _ in range(hidden):
            skip_turn(baton, w, PLAN)
            skip(values, 1)
        here, here_row = rows_of(place, row, w)
        own_rules = rules_in(rules, here, Q, K, PLAN.scores)
        acc, p, most, total = attend(s, buffers[n % 2, w * 64:w * 64 + 64, :], keys, values, barriers, w, here,
                                     (first, stop), group, own_rules, V.dtype, PLAN)
        empty[n % 2].arrive()
        n += 1
        t, place, row = next_tile(numbers, Q, K, PLAN)
        hidden = blocks_hidden(place, row, w, rules, PLAN) if t < tiles else 0  # the last product has one block
        full[n % 2].wait(phase=n // 2 % 2)
        skip(keys, hidden)
        with keys.consume() as block_k:
            with values.consume() as block_v:
                if PLAN.lengths and not PLAN.scores.float8:
                    clear_only_block(block_v, here, (first, stop), w, together, PLAN)
                if PLAN.turns:
                    baton.take(w)
                acc = tile.mma_async(acc, p, block_v.V, trans_b=PLAN.scores.float8)
                tile.mma_commit()
                s = tile.mma_async(None, buffers[n % 2, w * 64:w * 64 + 64, :], block_k.K, trans_b=True)
                tile.mma_commit()
                if PLAN.turns:
                    baton.pass_on(w)
                tile.mma_wait(1)
                block_v.release()
                store_results(acc, most, total, own_rules, S, stage, OUT, L, here, here_row, PLAN)
                tile.mma_wait(0)


@tile.jit
def hopper(Q, K, V, OUT, L, S, counter, group, scale, left, right, cap, E0, E1, E2, E3, PLAN: tile.constexpr):
    """``OUT = softmax(Q @ K.T * scale) @ V`` of each head, and L, the logarithms of the sums. `PLAN` is a
    `HopperConstants`; S holds the sinks. The tiles of a `group` of heads are taken together; for sequences with lengths
    of their own, it is the table of their tiles; with listed blocks, it is the group and the table of a
    `BlockMask`."""
    BM: tile.constexpr = PLAN.bm
    NC: tile.constexpr = PLAN.consumers
    D: tile.constexpr = PLAN.d
    heads, above, size = tiles_of(Q, group, PLAN)
    rules = Rules(scale, left, right, cap, (E0, E1, E2, E3)[:PLAN.scores.extras])
    numbers = tile.ring(2, T=((PLAN.fields,), tile.int32), consumers=NC, filled="stores")
    if PLAN.ahead:  # no ring, since a tile's product is issued before the last one's rows are released
        queries = tile.alloc((2, BM, D), Q.dtype, layout=tile.auto), tile.mbarrier(1, 2), tile.mbarrier(NC, 2)
    else:
        queries = tile.ring(1, Q=((BM, D), Q.dtype), consumers=NC)
    keys = tile.ring(PLAN.stages, K=((PLAN.bn, D), K.dtype), consumers=NC)
    VALUES: tile.constexpr = (PLAN.dv, PLAN.bn) if PLAN.scores.float8 else (PLAN.bn, PLAN.dv)
    values = tile.ring(PLAN.stages, V=(VALUES, V.dtype), consumers=NC)
    baton = tile.turns(NC) if PLAN.turns else None
    together = tile.named_barrier(NC * 128) if PLAN.lengths else None
    SWIZZLE: tile.constexpr = min(PLAN.width * 2 & -PLAN.width * 2, 128)  # the largest that divides a row
    SHAPE: tile.constexpr = (NC, PLAN.buffers, 64, PLAN.width)
    stage = None
    if PLAN.width:
        stage = tile.alloc(SHAPE, OUT.dtype, layout=tile.swizzled(OUT.dtype, SHAPE, SWIZZLE))
    with tile.warpgroup(0, regs=PLAN.regs[0]):
        with tile.elect():
            load((numbers, queries, keys, values), Q, K, V, counter, group, rules, (heads, above, size), PLAN)
    with tile.each_warpgroup(range(1, 1 + NC), regs=PLAN.regs[1]) as warpgroup:
        w = warpgroup - 1
        rings, arrays = (numbers, queries, keys, values), (Q, K, V, OUT, L, S)
        run: tile.constexpr = multiply_ahead if PLAN.ahead else multiply
        run(rings, arrays, stage[w] if PLAN.width else None, w, group, rules, heads * above, (baton, together), PLAN)
        if PLAN.width:
            with tile.elect():
                tile.bulk_wait(0)


__all__ = ["hopper"]
