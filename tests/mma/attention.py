"""Attention forward, which exercises what such a kernel needs of the language: roles, rings with different lifetimes, products with
register operands, row state in accumulator fragments, masked blocks peeled off, turns, tiles handed out by a counter."""

import tilejit as tile

LOG2_E = 1.4426950408889634


@tile.jit
def softmax_step(s, row_max, row_sum, scale, first_row, first_column, columns, DTYPE: tile.constexpr, MASKED: tile.constexpr, CAUSAL: tile.constexpr):
    """Update the running maximum and sum with one block of scores; returns (probabilities, new maximum, new sum, factor for
    earlier results)."""
    if MASKED:
        at_row, at_column = first_row + tile.fragment_index(s, 0), first_column + tile.fragment_index(s, 1)
        seen = at_column < columns
        if CAUSAL:
            seen = seen & (at_column <= at_row)
        s = tile.where(seen, s, -float("inf"))
    largest = tile.maximum(row_max, tile.max(s, axis=1))
    factor = tile.exp2((row_max - largest) * scale)
    p = tile.exp2(s * scale - tile.expand_dims(largest * scale, 1))
    return tile.cast(p, DTYPE), largest, row_sum * factor + tile.sum(p, axis=1), factor


@tile.jit
def attention(Q, K, V, O, counter, scale, BN: tile.constexpr, D: tile.constexpr, NC: tile.constexpr, CAUSAL: tile.constexpr,
              STAGES: tile.constexpr):
    """``O[h] = softmax(Q[h] @ K[h].T * scale) @ V[h]`` of arrays [heads, rows, D]; NC consumer warpgroups of 64 rows each."""
    heads, rows, columns = Q.shape[0], Q.shape[1], K.shape[1]
    BM: tile.constexpr = 64 * NC
    above = tile.cdiv(rows, BM)
    tiles = heads * above
    numbers = tile.ring(2, T=((1,), tile.int32), consumers=NC, filled="stores")
    queries = tile.ring(1, Q=((BM, D), Q.dtype), consumers=NC)
    keys = tile.ring(STAGES, K=((BN, D), K.dtype), consumers=NC)
    values = tile.ring(STAGES, V=((BN, D), V.dtype), consumers=NC)
    baton = tile.turns(NC)
    stage = tile.alloc((NC, 64, D), O.dtype, layout=tile.swizzled(O.dtype, (NC, 64, D), 128))
    with tile.warpgroup(0, regs=24):
        with tile.elect():
            t = tile.next_tile(counter[0], tiles)
            while t < tiles:
                with numbers.produce() as slot:
                    tile.store(slot.T[0], t)
                h, m = t // above, above - 1 - t % above
                with queries.produce() as slot:
                    tile.copy_async(slot.Q, Q[h, m * BM:m * BM + BM, 0:D], mbar=slot.full)
                last = tile.cdiv(min(columns, (m + 1) * BM) if CAUSAL else columns, BN)
                for i in range(last - 1, -1, -1):
                    with keys.produce() as slot:
                        tile.copy_async(slot.K, K[h, i * BN:i * BN + BN, 0:D], mbar=slot.full)
                    with values.produce() as slot:
                        tile.copy_async(slot.V, V[h, i * BN:i * BN + BN, 0:D], mbar=slot.full)
                t = tile.next_tile(counter[0], tiles)
            with numbers.produce() as slot:
                tile.store(slot.T[0], tiles)
    with tile.each_warpgroup(range(1, 1 + NC), regs=160 if NC == 3 else 240) as g:
        w = g - 1
        c = scale * LOG2_E
        t = 0
        while t < tiles:
            with numbers.consume() as slot:
                t = tile.load(slot.T[0])
            if t < tiles:
                h, m = t // above, above - 1 - t % above
                tile.assume((h >= 0) & (m >= 0))  # a loaded number: a store's position must be known not to be negative
                row = m * BM + w * 64
                last = tile.cdiv(min(columns, (m + 1) * BM) if CAUSAL else columns, BN)
                whole = min(m * BM, columns) // BN if CAUSAL else columns // BN  # blocks without a mask
                with queries.consume() as slot:
                    q = tile.load(slot.Q[w * 64:w * 64 + 64, :])
                baton.take(w)
                with keys.consume() as slot:
                    s = tile.mma_async(None, q, slot.K, trans_b=True)
                    tile.mma_commit()
                    baton.pass_on(w)
                    tile.mma_wait(0)
                acc = tile.zeros((64, D))
                p, row_max, row_sum, factor = softmax_step(s, tile.full((64,), -1e30), tile.zeros((64,)), c, row, (last - 1) * BN, columns,
                                                            V.dtype, True, CAUSAL)
                for masked in tile.static_range(1, -1, -1):
                    start, stop = (last - 2, whole - 1) if masked else (min(whole, last - 1) - 1, -1)
                    for i in range(start, stop, -1):
                        with keys.consume() as block_k:
                            with values.consume() as block_v:
                                baton.take(w)
                                s = tile.mma_async(None, q, block_k.K, trans_b=True)
                                tile.mma_commit()
                                acc = tile.mma_async(acc, p, block_v.V)
                                tile.mma_commit()
                                baton.pass_on(w)
                                tile.mma_wait(1)
                                block_k.release()
                                p, row_max, row_sum, factor = softmax_step(s, row_max, row_sum, c, row, i * BN, columns, V.dtype,
                                                                             masked == 1, CAUSAL)
                                tile.mma_wait(0)
                        acc = acc * tile.expand_dims(factor, 1)
                with values.consume() as slot:
                    acc = tile.mma_async(acc, p, slot.V)
                    tile.mma_commit()
                    tile.mma_wait(0)
                with tile.elect():
                    tile.bulk_wait(0, read=True)
                tile.sync()
                tile.store(stage[w], acc / tile.expand_dims(row_sum, 1))
                tile.fence_proxy_async()
                tile.sync()
                with tile.elect():
                    tile.copy_async(O[h, row:row + 64, 0:D], stage[w])
                    tile.bulk_commit()
        with tile.elect():
            tile.bulk_wait(0)
