"""Attention on Hopper: a producer, and consumers of 64 rows each.

The producer takes tiles of rows from a counter, longest first, and loads Q, and the blocks of K and V from last to
first, so blocks with masks come first and last. A consumer issues the scores of a block before the values of the block
before it, so its softmax runs under products; K is released before V. Two consumers issue their products in turn,
so that the softmax of one runs under the products of the other."""

from __future__ import annotations

import tilejit as tile

from .pipelined import part, put_sums
from .scores import Place, Rules, factor_of, fence, finish, hide, mask_scores, softmax_step, span_of

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
def put_queries(queries, n, Q, batch, head, row, PLAN: tile.constexpr):
    buffers, full, empty = queries
    SLOTS: tile.constexpr = PLAN.xt
    empty[n % SLOTS].wait(phase=(n // SLOTS + 1) % 2)
    full[n % SLOTS].arrive_expect_tx(PLAN.bm * PLAN.d * 2)
    tile.copy_async(buffers[n % SLOTS], part(Q, batch, head, row, PLAN.bm, PLAN.d), mbar=full[n % SLOTS])


@tile.jit
def load(rings, Q, K, V, counter, group, rules, tiles, PLAN: tile.constexpr):
    """The producer."""
    numbers, queries, keys, values = rings
    BM: tile.constexpr = PLAN.bm
    above = tile.cdiv(Q.shape[-2], BM)
    heads = tiles // above
    shared = Q.shape[-3] // K.shape[-3]  # heads of Q that have one head of K and V
    t = tile.next_tile(counter[0], tiles)
    n = 0
    while t < tiles:
        z, m = tile_of(t, heads, above, group)
        place = place_of(z, m * BM, Q, K)
        with numbers.produce() as slot:
            tile.store(slot.T[0], t)
            if PLAN.early:
                tile.store(slot.T[1], place.batch)
                tile.store(slot.T[2], place.head)
                tile.store(slot.T[3], m)
        first, stop, whole, whole_stop = span_of(m * BM, place, rules, BM, PLAN.bn, PLAN.scores)
        head = place.head // shared
        if PLAN.early:
            with keys.produce() as slot:
                tile.copy_async(slot.K, part(K, place.batch, head, (stop - 1) * PLAN.bn, PLAN.bn, PLAN.d), mbar=slot.full)
        if PLAN.xt and not PLAN.held:
            put_queries(queries, n, Q, place.batch, place.head, m * BM, PLAN)
            n += 1
        else:
            with queries.produce() as slot:
                tile.copy_async(slot.Q, part(Q, place.batch, place.head, m * BM, BM, PLAN.d), mbar=slot.full)
        if PLAN.early:
            for i in range(stop - 2, first - 1, -1):
                with keys.produce() as slot:
                    tile.copy_async(slot.K, part(K, place.batch, head, i * PLAN.bn, PLAN.bn, PLAN.d), mbar=slot.full)
                with values.produce() as slot:
                    tile.copy_async(slot.V, part(V, place.batch, head, (i + 1) * PLAN.bn, PLAN.bn, PLAN.dv), mbar=slot.full)
            with values.produce() as slot:
                tile.copy_async(slot.V, part(V, place.batch, head, first * PLAN.bn, PLAN.bn, PLAN.dv), mbar=slot.full)
        else:
            for i in range(stop - 1, first - 1, -1):
                with keys.produce() as slot:
                    tile.copy_async(slot.K, part(K, place.batch, head, i * PLAN.bn, PLAN.bn, PLAN.d), mbar=slot.full)
                with values.produce() as slot:
                    tile.copy_async(slot.V, part(V, place.batch, head, i * PLAN.bn, PLAN.bn, PLAN.dv), mbar=slot.full)
        t = tile.next_tile(counter[0], tiles)
    with numbers.produce() as slot:
        tile.store(slot.T[0], tiles)
        if PLAN.early:
            for i in tile.static_range(1, 4):
                tile.store(slot.T[i], 0)
    if PLAN.xt:
        with keys.produce() as slot:
            tile.copy_async(slot.K, part(K, 0, 0, 0, PLAN.bn, PLAN.d), mbar=slot.full)
        if not PLAN.held:
            put_queries(queries, n, Q, 0, 0, 0, PLAN)
        else:
            with queries.produce() as slot:
                tile.copy_async(slot.Q, part(Q, 0, 0, 0, BM, PLAN.d), mbar=slot.full)


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
def blocks(s, q, holder, keys, values, baton, w, place, ends, rules, dtype: tile.constexpr, PLAN: tile.constexpr):
    """From the scores of the last block on: the sums of values of all blocks but the first, its probabilities, and the
    maxima and sums."""
    BN: tile.constexpr = PLAN.bn
    SCORES: tile.constexpr = PLAN.scores
    HIDES: tile.constexpr = SCORES.has_bounds or SCORES.mask is not None
    factor = factor_of(rules, SCORES)
    first, stop = ends
    _, _, whole, whole_stop = span_of(place.row, place, rules, 64, BN, SCORES)
    cut = whole_stop < stop  # the last block has columns that no row sees
    whole_stop = min(max(whole_stop, first), stop - 1)
    whole = min(max(whole, first), whole_stop)
    acc = tile.zeros((64, PLAN.dv))
    if PLAN.skip and not SCORES.has_bounds:
        s = mask_scores(s, place, (stop - 1) * BN, rules, False, SCORES)
        if cut:
            s = hide(s, place, (stop - 1) * BN, rules, SCORES)
    else:
        s = mask_scores(s, place, (stop - 1) * BN, rules, True, SCORES)
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
        for i in range(begin, end, -1):
            with keys.consume() as block_k:
                with values.consume() as block_v:
                    if PLAN.turns:
                        baton.take(w)
                    s = tile.mma_async(None, q, block_k.K, trans_b=True)
                    tile.mma_commit()
                    if PLAN.late:
                        acc = acc * by[:, None]
                    acc = tile.mma_async(acc, p, block_v.V)
                    tile.mma_commit()
                    if PLAN.turns:
                        baton.pass_on(w)
                    tile.mma_wait(1)
                    block_k.release()
                    s = mask_scores(s, place, i * BN, rules, EDGE, SCORES)
                    powers, most, total, by = softmax_step(s, most, total, factor, EDGE and HIDES, PLAN.pin == 1)
                    if PLAN.pin == 2:
                        fence()
                    tile.mma_wait(0)
            p = tile.cast(powers, dtype)
            if not PLAN.late:
                acc = acc * by[:, None]
    if PLAN.late:
        acc = acc * by[:, None]
    if PLAN.early and not PLAN.held and not PLAN.xt:
        holder.release()
    return acc, p, most, total


@tile.jit
def attend(q, holder, keys, values, baton, w, place, ends, rules, dtype: tile.constexpr, PLAN: tile.constexpr):
    """The unscaled results of 64 rows, their maxima and sums. `ends`: of the CTA's tile, the first block and one past
    the last."""
    with keys.consume() as slot:
        s = scores_of(q, slot, baton, w, PLAN)
    acc, p, most, total = blocks(s, q, holder, keys, values, baton, w, place, ends, rules, dtype, PLAN)
    with values.consume() as slot:
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
def hopper(Q, K, V, OUT, L, S, counter, group, scale, left, right, cap, E0, E1, E2, E3, PLAN: tile.constexpr):
    """``OUT = softmax(Q @ K.T * scale) @ V`` of each head, and L, the logarithms of the sums. `PLAN` is a
    `HopperConstants`; S holds the sinks. The tiles of a `group` of heads are taken together."""
    BM: tile.constexpr = PLAN.bm
    NC: tile.constexpr = PLAN.consumers
    D: tile.constexpr = PLAN.d
    above = tile.cdiv(Q.shape[-2], BM)
    tiles = above * Q.shape[-3] * (Q.shape[0] if len(Q.shape) == 4 else 1)
    rules = Rules(scale, left, right, cap, (E0, E1, E2, E3)[:PLAN.scores.extras])
    numbers = tile.ring(2, T=((4,), tile.int32), consumers=NC, filled="stores")
    OWN: tile.constexpr = PLAN.xt and not PLAN.held
    if OWN:
        queries = tile.alloc((PLAN.xt, BM, D), Q.dtype, layout=tile.auto), tile.mbarrier(1, 2), tile.mbarrier(NC, 2)
    else:
        queries = tile.ring(1, Q=((BM, D), Q.dtype), consumers=NC)
    keys = tile.ring(PLAN.stages, K=((PLAN.bn, D), K.dtype), consumers=NC)
    values = tile.ring(PLAN.stages, V=((PLAN.bn, PLAN.dv), V.dtype), consumers=NC)
    baton = tile.turns(NC) if PLAN.turns else None
    SWIZZLE: tile.constexpr = min(PLAN.width * 2 & -PLAN.width * 2, 128)  # the largest that divides a row
    SHAPE: tile.constexpr = (NC, PLAN.buffers, 64, PLAN.width)
    stage = None
    if PLAN.width:
        stage = tile.alloc(SHAPE, OUT.dtype, layout=tile.swizzled(OUT.dtype, SHAPE, SWIZZLE))
    with tile.warpgroup(0, regs=PLAN.regs[0]):
        with tile.elect():
            load((numbers, queries, keys, values), Q, K, V, counter, group, rules, tiles, PLAN)
    with tile.each_warpgroup(range(1, 1 + NC), regs=PLAN.regs[1]) as warpgroup:
        w = warpgroup - 1
        if PLAN.xt:
            with numbers.consume() as slot:
                t, batch, head, m = (tile.load(slot.T[0]), tile.load(slot.T[1]), tile.load(slot.T[2]),
                                     tile.load(slot.T[3]))
            if PLAN.held:
                with queries.consume() as slot:
                    q = tile.load(slot.Q[w * 64:w * 64 + 64, :])
            else:
                n = 0
                queries[1][0].wait(phase=0)
            with keys.consume() as slot:
                s = scores_of(q if PLAN.held else queries[0][0, w * 64:w * 64 + 64, :], slot, baton, w, PLAN)
            while t < tiles:
                if not PLAN.held:
                    q = queries[0][n % PLAN.xt, w * 64:w * 64 + 64, :]
                place = Place(batch, head, m * BM, Q.shape[-2], K.shape[-2])
                first, stop, _, _ = span_of(m * BM, place, rules, BM, PLAN.bn, PLAN.scores)
                place = Place(batch, head, m * BM + w * 64, Q.shape[-2], K.shape[-2])
                tile.assume((place.batch >= 0) & (place.head >= 0) & (m >= 0))
                acc, p, most, total = blocks(s, q, None, keys, values, baton, w, place, (first, stop), rules, V.dtype, PLAN)
                if not PLAN.held:
                    queries[2][n % PLAN.xt].arrive()
                with numbers.consume() as slot:
                    t, batch, head, m = (tile.load(slot.T[0]), tile.load(slot.T[1]), tile.load(slot.T[2]),
                                         tile.load(slot.T[3]))
                if PLAN.held:
                    with queries.consume() as slot:
                        q = tile.load(slot.Q[w * 64:w * 64 + 64, :])
                else:
                    n += 1
                    if PLAN.xt > 1:
                        queries[1][n % PLAN.xt].wait(phase=n // PLAN.xt % 2)
                    q = queries[0][n % PLAN.xt, w * 64:w * 64 + 64, :]
                by, lse = finish(most, total, factor_of(rules, PLAN.scores), S, place.head, PLAN.scores)
                with keys.consume() as block_k:
                    with values.consume() as block_v:
                        if PLAN.turns:
                            baton.take(w)
                        acc = tile.mma_async(acc, p, block_v.V)
                        tile.mma_commit()
                        if not PLAN.held and PLAN.xt == 1:
                            queries[1][0].wait(phase=n % 2)
                        s = tile.mma_async(None, q, block_k.K, trans_b=True)
                        tile.mma_commit()
                        if PLAN.turns:
                            baton.pass_on(w)
                        tile.mma_wait(1)
                        block_v.release()
                        if PLAN.lse:
                            put_sums(lse, L, place.batch, place.head, place.row)
                        put(tile.cast(acc * by[:, None], OUT.dtype), stage[w] if PLAN.width else None, OUT, place, PLAN)
                        tile.mma_wait(0)
        else:
            t = 0
            while t < tiles:
                m, batch, head = 0, 0, 0
                with numbers.consume() as slot:
                    t = tile.load(slot.T[0])
                    if PLAN.early:
                        batch, head, m = tile.load(slot.T[1]), tile.load(slot.T[2]), tile.load(slot.T[3])
                if t < tiles:
                    if not PLAN.early:
                        z, m = tile_of(t, tiles // above, above, group)
                        tiled = place_of(z, m * BM, Q, K)
                        batch, head = tiled.batch, tiled.head
                    place = Place(batch, head, m * BM, Q.shape[-2], K.shape[-2])
                    first, stop, _, _ = span_of(m * BM, place, rules, BM, PLAN.bn, PLAN.scores)
                    place = Place(batch, head, m * BM + w * 64, Q.shape[-2], K.shape[-2])
                    # of a loaded number: a store's position must be known not to be negative
                    tile.assume((place.batch >= 0) & (place.head >= 0) & (m >= 0))
                    if PLAN.held:
                        with queries.consume() as slot:
                            q = tile.load(slot.Q[w * 64:w * 64 + 64, :])
                        acc, most, total = attend(q, None, keys, values, baton, w, place, (first, stop), rules, V.dtype, PLAN)
                    else:
                        with queries.consume() as slot:
                            acc, most, total = attend(slot.Q[w * 64:w * 64 + 64, :], slot, keys, values, baton, w,
                                                      place, (first, stop), rules, V.dtype, PLAN)
                    by, lse = finish(most, total, factor_of(rules, PLAN.scores), S, place.head, PLAN.scores)
                    if PLAN.lse:
                        put_sums(lse, L, place.batch, place.head, place.row)
                    put(tile.cast(acc * by[:, None], OUT.dtype), stage[w] if PLAN.width else None, OUT, place, PLAN)
        if PLAN.width:
            with tile.elect():
                tile.bulk_wait(0)


__all__ = ["hopper"]
