"""What attention of float8 has beside that of 16 bits: factors of each head, and values in the order of an operand.

Hopper's tensor cores take operands of 8 bits contiguous along k only, which for the product of probabilities and values
are the keys. So the values are transposed before. A thread has columns 2t and 2t + 1 of each eight of a tile of scores,
and of an operand 4t to 4t + 3 of each sixteen: the keys are put into an order for which both are the same registers."""

from __future__ import annotations

import tilejit as tile

from .scores import Rules
from .tile_table import length_of

SHIFT = 8                # probabilities are multiplied by 2 ** SHIFT: float8 holds those from 2 ** -17 up to 1
LEAST = 2.0 ** -100      # of a product of factors: 0 times -inf is a NaN
KEYS, COLUMNS = 128, 64  # of a tile of values that a CTA of `turn_values` transposes
CHUNK = 128              # sequences that are searched at once


@tile.jit
def factor_at(X, batch, heads):
    """The factors of `heads` in X, which broadcasts to [batches, heads]; None is 1."""
    if X is None:
        return 1.0
    if len(X.shape) == 0:
        return tile.load(X[()])
    heads = tile.minimum(heads, X.shape[-1] - 1)
    if len(X.shape) == 1:
        return tile.load(X[heads])
    return tile.load(X[min(batch, X.shape[0] - 1), heads])


@tile.jit
def rules_of(rules, batch, heads, kv_head, SCORES: tile.constexpr):
    """The rules of a tile of float8, whose scale is (the scale of the call, the factor of all values, the factors of Q,
    of K, of V) in `rules`. `heads` are a number, or a tile [lines, 1], as the scale is then too."""
    scale, values, of_q, of_k, of_v = rules.scale
    scale = scale * (factor_at(of_q, batch, heads) * factor_at(of_k, batch, kv_head))
    if not SCORES.scaled:
        scale = tile.maximum(scale, LEAST)
    return Rules(scale, rules.left, rules.right, rules.cap, rules.extra, values * factor_at(of_v, batch, kv_head))


@tile.jit
def rules_in(rules, place, Q, K, SCORES: tile.constexpr):
    """The rules of a tile of one head."""
    if not SCORES.float8:
        return rules
    return rules_of(rules, place.batch, place.head, place.head // (Q.shape[-3] // K.shape[-3]), SCORES)


@tile.jit
def as_operand(powers, dtype: tile.constexpr):
    """Probabilities as an operand of the product with values; of 8 bits, in the order of `turn_values`."""
    p = tile.cast(powers, dtype)
    if dtype.nbytes == 1:
        ROWS: tile.constexpr = p.shape[0]
        BN: tile.constexpr = p.shape[1]
        p = tile.transpose(tile.reshape(p, (ROWS, BN // 16, 2, 4, 2)), (0, 1, 3, 2, 4))
        p = tile.reshape(p, (ROWS, BN))
    return p


@tile.jit
def add_values(p, v, acc):
    """``acc + p @ v`` on every target. Values of 8 bits are multiplied as float16, which holds them."""
    if v.dtype.nbytes == 1:
        return tile.dot(p.to(tile.float16), v.to(tile.float16), acc)
    return tile.dot(p.to(v.dtype), v, acc)


@tile.jit
def turned_part(VT, place, head, key, start, PLAN: tile.constexpr):
    """The values of a block of keys of a sequence, from `key` on, in what `turn_values` has made. `start`: the first
    key of the sequence in the array of all, if they are packed."""
    BN: tile.constexpr = PLAN.bn
    if PLAN.packed:
        key += turned_block(start, place.batch, BN) * BN
    if len(VT.shape) == 3:
        return VT[head, 0:PLAN.dv, key:key + BN]
    return VT[place.batch, head, 0:PLAN.dv, key:key + BN]


@tile.jit
def turned_block(start, sequence, BN: tile.constexpr):
    """The first block of a packed sequence among those of all, each of which begins with a block of its own."""
    return start // BN + sequence


@tile.jit
def owner(block, lengths, keys, BN: tile.constexpr):
    """Of packed sequences, that of a block: (its first key, its keys, the number of the block in it)."""
    number, first, before = -1, tile.cast(0, tile.int64), tile.cast(0, tile.int64)
    for c in range(0, lengths.shape[0], CHUNK):
        i = c + tile.arange(CHUNK)
        n = length_of(lengths, i, keys)
        ends = tile.cumsum(tile.cast(n, tile.int64), axis=0) + before
        starts = tile.minimum(ends - n, keys)
        own = (turned_block(starts, i, BN) <= block) & (i < lengths.shape[0])
        number += tile.sum(tile.where(own, 1, 0), axis=0)
        first = tile.maximum(first, tile.max(tile.where(own, starts, 0), axis=0))
        before = tile.max(ends, axis=0)
    start = tile.cast(first, tile.int32)
    count = tile.minimum(length_of(lengths, number, keys), keys - start)
    return start, count, block - turned_block(start, number, BN)


@tile.jit(num_warps=4)
def turn_values(V, VT, LENGTHS, DV: tile.constexpr, KEYS: tile.constexpr, COLUMNS: tile.constexpr,
                CUT: tile.constexpr = False, BN: tile.constexpr = 0):
    """VT [.., heads, columns, keys] = V [.., heads, keys, columns] with key ``8a + 2t + b`` of each sixteen at
    ``4t + 2a + b``, and zeros beyond the last, or with `CUT` beyond the LENGTHS of each batch. With `BN`, LENGTHS are
    those of packed sequences, and each begins with a block of so many keys in VT (`turned_block`).

    As `packed` of matrix products does: each thread writes 16 bytes of a row, and the rows of V are placed in shared
    memory in an order for which the swizzle puts those that neighbouring threads read in different banks."""
    UNIT: tile.constexpr = 16
    ACROSS: tile.constexpr = (DV + COLUMNS - 1) // COLUMNS
    t, head, batch = tile.program_id(0), tile.program_id(1), tile.program_id(2)
    key, column = t // ACROSS * KEYS, t % ACROSS * COLUMNS
    SHAPE: tile.constexpr = (KEYS, COLUMNS)
    stage = tile.alloc(SHAPE, V.dtype, layout=tile.swizzled(V.dtype, SHAPE, COLUMNS))
    by_unit = stage.reshape((UNIT, KEYS // UNIT, COLUMNS)).permute((1, 0, 2)).reshape(SHAPE)
    if BN:
        start, count, block = owner(key // BN, LENGTHS, V.shape[-2], BN)
        tile.assume((start >= 0) & (count >= 0) & (block >= 0))
        own = tile.window(V, (head, start, 0), (1, count, None))
        at = block * BN + key % BN
        tile.copy(by_unit, own[0, at:at + KEYS, column:column + COLUMNS])
    elif CUT:
        own = tile.window(V, (batch, head, 0, 0), (1, 1, length_of(LENGTHS, batch, V.shape[-2]), None))
        tile.copy(by_unit, own[0, 0, key:key + KEYS, column:column + COLUMNS])
    elif len(V.shape) == 3:
        tile.copy(by_unit, V[head, key:key + KEYS, column:column + COLUMNS])
    else:
        tile.copy(by_unit, V[batch, head, key:key + KEYS, column:column + COLUMNS])
    tile.sync()
    turned = stage.reshape((2, 4, 2, KEYS // UNIT, COLUMNS)).permute((3, 1, 0, 2, 4)).reshape(SHAPE)
    made = tile.load(turned.permute((1, 0)))
    if len(VT.shape) == 3:
        tile.store(VT[head, column:column + COLUMNS, key:key + KEYS], made)
    else:
        tile.store(VT[batch, head, column:column + COLUMNS, key:key + KEYS], made)
