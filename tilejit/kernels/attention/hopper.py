"""Attention on Hopper: a producer, and consumers of 64 rows each.

The producer takes tiles of rows from a counter, longest first, and loads Q, and the blocks of K and V from last to
first, so blocks with masks come first and last. A consumer issues the scores of a block before the values of the block
before it, so its softmax runs under products; K is released before V. Two consumers issue their products in turn,
so that the softmax of one runs under the products of the other."""

from __future__ import annotations

import tilejit as tile

from .listed_blocks import block_at, line_of as line_of_blocks, numbers_of
from .pipelined import part, put_sums
from .scores import Place, Rules, factor_of, finish, mask_scores, softmax_step, span_of
from .tile_table import FIELDS, line_of

PARTS = 8   # columns that the sums of a row are kept apart in: a thread of an accumulator adds up its own


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
def blocks_of(place, group, rules, ROWS: tile.constexpr, PLAN: tile.constexpr):
    """What `span_of` returns, of listed blocks by their places in the list."""
    if PLAN.scores.listed:
        whole, some = numbers_of(group[1], line_of_blocks(group[1], place, PLAN.bm))
        return 0, whole + some, 0, whole
    return span_of(place.row, place, rules, ROWS, PLAN.bn, PLAN.scores)


@tile.jit
def column_of(i, ends, place, group, PLAN: tile.constexpr):
    """The first column of block `i`; with listed blocks, of the `i`-th of them. `ends`: one past the last whole block,
    and one past the last."""
    if PLAN.scores.listed:
        i = block_at(group[1], line_of_blocks(group[1], place, PLAN.bm), i, *ends)
    return i * PLAN.bn


@tile.jit
def load(rings, Q, K, V, counter, group, rules, tiles, PLAN: tile.constexpr):
    """The producer."""
    numbers, queries, keys, values = rings
    BM: tile.constexpr = PLAN.bm
    heads, above, size = tiles
    shared = Q.shape[-3] // K.shape[-3]  # heads of Q that have one head of K and V
    t = tile.next_tile(counter[0], heads * above)
    while t < heads * above:
        z, m = tile_of(t, heads, above, size)
        with numbers.produce() as slot:
            tile.store(slot.T[0], t)
            if PLAN.lengths:
                for field in tile.static_range(1, FIELDS):
                    tile.store(slot.T[field], tile.load(group[m, field]))
        if PLAN.lengths:
            place, row, start = line_of(group[m, 0:FIELDS], z)
        else:
            place, row, start = place_of(z, m * BM, Q, K), m * BM, 0
        with queries.produce() as slot:
            tile.copy_async(slot.Q, part(Q, place.batch, place.head, row, BM, PLAN.d), mbar=slot.full)
        first, stop, whole, whole_stop = blocks_of(place, group, rules, BM, PLAN)
        head = place.head // shared
        for i in range(stop - 1, first - 1, -1):
            at = column_of(i, (whole_stop, stop), place, group, PLAN)
            if PLAN.packed:
                at += start
            with keys.produce() as slot:
                tile.copy_async(slot.K, part(K, place.batch, head, at, PLAN.bn, PLAN.d), mbar=slot.full)
            with values.produce() as slot:
                tile.copy_async(slot.V, part(V, place.batch, head, at, PLAN.bn, PLAN.dv), mbar=slot.full)
        t = tile.next_tile(counter[0], heads * above)
    with numbers.produce() as slot:
        tile.store(slot.T[0], heads * above)
        for field in tile.static_range(1, FIELDS if PLAN.lengths else 1):
            tile.store(slot.T[field], 0)


@tile.jit
def scores_of(q, slot, baton, w, PLAN: tile.constexpr):
    """The scores of a tile's first block."""
    if PLAN.turns:
        baton.take(w)
    s = tile.mma_async(None, q, slot.K, trans_b=True)
    tile.mma_commit()
    if PLAN.turns:
        baton.pass_on(w)
    tile.mma_wait(0)
    return s


@tile.jit
def clear_beyond(slot, count, w, together, PLAN: tile.constexpr):
    """Zero all but the first `count` rows of V in a slot. They are another sequence's, whose probabilities are 0 here,
    and 0 times a NaN is one. All consumers call this `together`."""
    if w == 0:
        BN: tile.constexpr = PLAN.bn
        beyond = (tile.arange(BN) >= count)[:, None]
        tile.store(slot.V, tile.zeros((BN, PLAN.dv), slot.V.dtype), mask=beyond)
        tile.fence_proxy_async()
    together.sync()


@tile.jit
def whole_blocks(place, ends, group, rules, PLAN: tile.constexpr):
    """(The first block without masks, one past the last, the `ends` of `column_of`). The last block has masks, and
    so has the one before it where sequences may end within a block."""
    first, stop = ends
    _, _, whole, whole_stop = blocks_of(place, group, rules, 64, PLAN)
    parts = whole_stop, stop
    whole_stop = min(max(whole_stop, first), stop - 1)
    if PLAN.lengths:
        whole_stop = max(min(whole_stop, stop - 2), first)
    return min(max(whole, first), whole_stop), whole_stop, parts


@tile.jit
def attend(q, keys, values, barriers, w, place, ends, group, rules, dtype: tile.constexpr, PLAN: tile.constexpr):
    """The unscaled results of 64 rows, their maxima and sums. `ends`: of the CTA's tile, the first block and one past
    the last. `barriers`: the consumers' turns, and the barrier of all of them, for sequences that may end within a
    block."""
    baton, together = barriers
    BN: tile.constexpr = PLAN.bn
    SCORES: tile.constexpr = PLAN.scores
    HIDES: tile.constexpr = SCORES.has_bounds or SCORES.may_hide_all or SCORES.listed or PLAN.lengths
    factor = factor_of(rules, SCORES)
    first, stop = ends
    whole, whole_stop, parts = whole_blocks(place, ends, group, rules, PLAN)
    last = place.keys - (stop - 1) * BN  # keys of the last block
    with keys.consume() as slot:
        s = scores_of(q, slot, baton, w, PLAN)
    acc = tile.zeros((64, PLAN.dv))
    s = mask_scores(s, place, column_of(stop - 1, parts, place, group, PLAN), rules, True, SCORES)
    powers, most, total, by = softmax_step(s, tile.full((64,), -float("inf")), tile.zeros((64, PARTS)), factor, HIDES)
    p = tile.cast(powers, dtype)
    for phase in tile.static_range(3 if SCORES.left else 2):
        EDGE: tile.constexpr = phase != 1
        if phase == 0:
            begin, end = stop - 2, whole_stop - 1
        elif phase == 1:
            begin, end = whole_stop - 1, whole - 1
        else:
            begin, end = whole - 1, first - 1
        EMPTY: tile.constexpr = HIDES if EDGE else SCORES.may_hide_all
        for i in range(begin, end, -1):
            column = column_of(i, parts, place, group, PLAN)
            with keys.consume() as block_k:
                with values.consume() as block_v:
                    if PLAN.lengths and phase == 0:
                        if (i == stop - 2) & (last < BN):
                            clear_beyond(block_v, last, w, together, PLAN)
                    if PLAN.turns:
                        baton.take(w)
                    s = tile.mma_async(None, q, block_k.K, trans_b=True)
                    tile.mma_commit()
                    acc = tile.mma_async(acc, p, block_v.V)
                    tile.mma_commit()
                    if PLAN.turns:
                        baton.pass_on(w)
                    tile.mma_wait(1)
                    block_k.release()
                    s = mask_scores(s, place, column, rules, EDGE, SCORES)
                    powers, most, total, by = softmax_step(s, most, total, factor, EMPTY)
                    tile.mma_wait(0)
            p = tile.cast(powers, dtype)
            acc = acc * by[:, None]
    with values.consume() as slot:
        if PLAN.lengths:
            if (stop - 1 == first) & (last < BN):
                clear_beyond(slot, last, w, together, PLAN)
        acc = tile.mma_async(acc, p, slot.V)
        tile.mma_commit()
        tile.mma_wait(0)
    return acc, most, total


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
def multiply(rings, arrays, stage, w, group, rules, tiles, barriers, PLAN: tile.constexpr):
    """Consumer `w`."""
    numbers, queries, keys, values = rings
    Q, K, V, OUT, L, S = arrays
    heads, above, size = tiles
    t = 0
    while t < heads * above:
        with numbers.consume() as slot:
            t = tile.load(slot.T[0])
            if PLAN.lengths:
                place, row, _ = line_of(slot.T, tile_of(t, heads, above, size)[0])
        if t < heads * above:
            if not PLAN.lengths:
                z, m = tile_of(t, heads, above, size)
                place = place_of(z, m * PLAN.bm, Q, K)
            first, stop, _, _ = blocks_of(place, group, rules, PLAN.bm, PLAN)
            place = Place(place.batch, place.head, place.row + w * 64, place.rows, place.keys)
            # of a loaded number: a store's position must be known not to be negative
            tile.assume((place.batch >= 0) & (place.head >= 0) & (place.row >= 0))
            if PLAN.held:
                with queries.consume() as slot:
                    q = tile.load(slot.Q[w * 64:w * 64 + 64, :])
                acc, most, total = attend(q, keys, values, barriers, w, place, (first, stop), group, rules, V.dtype,
                                          PLAN)
            else:
                with queries.consume() as slot:
                    acc, most, total = attend(slot.Q[w * 64:w * 64 + 64, :], keys, values, barriers, w, place,
                                              (first, stop), group, rules, V.dtype, PLAN)
            by, lse = finish(most, total, factor_of(rules, PLAN.scores), S, place.head, PLAN.scores)
            acc, own = tile.cast(acc * by[:, None], OUT.dtype), stage[w] if PLAN.width else None
            if PLAN.packed:
                put_within(acc, lse, own, OUT, L, place, row + w * 64, PLAN)
            else:
                if PLAN.lse:
                    put_sums(lse, L, place.batch, place.head, place.row)
                put(acc, own, OUT, place, PLAN)
    if PLAN.width:
        with tile.elect():
            tile.bulk_wait(0)


@tile.jit
def hopper(Q, K, V, OUT, L, S, counter, group, scale, left, right, cap, E0, E1, E2, E3, PLAN: tile.constexpr):
    """``OUT = softmax(Q @ K.T * scale) @ V`` of each head, and L, the logarithms of the sums. `PLAN` is a
    `HopperConstants`; S holds the sinks. The tiles of a `group` of heads are taken together; for sequences with lengths
    of their own, it is the table of their tiles; with listed blocks, it is the group and the table of a `BlockMask`."""
    BM: tile.constexpr = PLAN.bm
    NC: tile.constexpr = PLAN.consumers
    D: tile.constexpr = PLAN.d
    heads, above, size = tiles_of(Q, group, PLAN)
    rules = Rules(scale, left, right, cap, (E0, E1, E2, E3)[:PLAN.scores.extras])
    numbers = tile.ring(2, T=((FIELDS if PLAN.lengths else 1,), tile.int32), consumers=NC, filled="stores")
    queries = tile.ring(1, Q=((BM, D), Q.dtype), consumers=NC)
    keys = tile.ring(PLAN.stages, K=((PLAN.bn, D), K.dtype), consumers=NC)
    values = tile.ring(PLAN.stages, V=((PLAN.bn, PLAN.dv), V.dtype), consumers=NC)
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
        multiply((numbers, queries, keys, values), (Q, K, V, OUT, L, S), stage, warpgroup - 1, group, rules,
                 (heads, above, size), (baton, together), PLAN)


__all__ = ["hopper"]
