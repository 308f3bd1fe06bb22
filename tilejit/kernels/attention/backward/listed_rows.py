"""The blocks of scores that a mask and the bounds leave, listed for each block of keys.

A line of the table is of a block of keys: how many blocks of rows are whole, how many have to be masked, and the
numbers of the former from the front on, of the latter from the end on, as in `listed_blocks`. A block that ends beyond
the last row, or the last key, has to be masked."""

from __future__ import annotations

import tilejit as tile

from ..listed_blocks import HEAD
from ..scores import Place, Rules, mask_scores


@tile.jit
def list_rows(TABLE, rows, keys, left, right, E0, E1, E2, E3, SCORES: tile.constexpr, BM: tile.constexpr,
              BN: tile.constexpr):
    """Fill a line of TABLE [batches, heads, blocks of keys, HEAD + blocks of rows]: a CTA has one of a head of a
    batch."""
    rules = Rules(1.0, left, right, 0.0, (E0, E1, E2, E3)[:SCORES.extras])
    batch, head, n = tile.program_id(2), tile.program_id(1), tile.program_id(0)
    blocks = tile.cdiv(rows, BM)
    whole, some = 0, 0
    for i in range(blocks):
        place = Place(batch, head, i * BM, rows, keys)
        s = mask_scores(tile.zeros((BM, BN)), place, n * BN, rules, True, SCORES)
        exist = (place.row + tile.arange(BM) < rows)[:, None]
        seen = tile.where(exist & (s == 0.0), 1, 0)
        if tile.min(tile.min(seen, axis=1), axis=0) == 1:
            tile.store(TABLE[batch, head, n, HEAD + whole], i)
            whole += 1
        elif tile.max(tile.max(seen, axis=1), axis=0) == 1:
            some += 1
            tile.store(TABLE[batch, head, n, HEAD + blocks - some], i)
    tile.store(TABLE[batch, head, n, 0], whole)
    tile.store(TABLE[batch, head, n, 1], some)


__all__ = ["list_rows"]
