"""The blocks of scores that a mask and the bounds leave, listed for each block of rows.

A line of the table is of a block of rows: how many blocks of columns are whole, how many have to be masked, and the
numbers of the former from the front on, of the latter from the end on."""

from __future__ import annotations

import tilejit as tile

from .scores import Place, Rules, mask_scores

HEAD = 2   # columns of the table before the numbers of blocks


@tile.jit
def list_blocks(TABLE, rows, keys, left, right, E0, E1, E2, E3, SCORES: tile.constexpr, BM: tile.constexpr,
                BN: tile.constexpr):
    """Fill a line of TABLE [batches, heads, blocks of rows, HEAD + blocks of columns]: a CTA has one of a head of a
    batch."""
    rules = Rules(1.0, left, right, 0.0, (E0, E1, E2, E3)[:SCORES.extras])
    batch, head, m = tile.program_id(2), tile.program_id(1), tile.program_id(0)
    place = Place(batch, head, m * BM, rows, keys)
    exist = (place.row + tile.arange(BM) < rows)[:, None]
    blocks = tile.cdiv(keys, BN)
    whole, some = 0, 0
    for i in range(blocks):
        s = mask_scores(tile.zeros((BM, BN)), place, i * BN, rules, True, SCORES)
        seen = tile.where(s == 0.0, 1, 0)
        if tile.min(tile.min(tile.where(exist, seen, 1), axis=1), axis=0) == 1:
            tile.store(TABLE[batch, head, m, HEAD + whole], i)
            whole += 1
        elif tile.max(tile.max(tile.where(exist, seen, 0), axis=1), axis=0) == 1:
            some += 1
            tile.store(TABLE[batch, head, m, HEAD + blocks - some], i)
    if whole + some == 0:  # a kernel takes at least one
        some += 1
        tile.store(TABLE[batch, head, m, HEAD + blocks - 1], 0)
    tile.store(TABLE[batch, head, m, 0], whole)
    tile.store(TABLE[batch, head, m, 1], some)


@tile.jit
def line_of(TABLE, place, BM: tile.constexpr):
    """Of a tile, (the batch, the head, the block of rows) in the table, which may be one for all batches, or heads."""
    return min(place.batch, TABLE.shape[0] - 1), min(place.head, TABLE.shape[1] - 1), place.row // BM


@tile.jit
def numbers_of(TABLE, line):
    """(How many blocks of a tile are whole, how many have to be masked)."""
    batch, head, m = line
    return tile.load(TABLE[batch, head, m, 0]), tile.load(TABLE[batch, head, m, 1])


@tile.jit
def block_at(TABLE, line, i, whole, total):
    """The number of the `i`-th listed block of a tile, of `total` blocks of which the first are `whole`."""
    batch, head, m = line
    return tile.load(TABLE[batch, head, m, HEAD + i if i < whole else TABLE.shape[3] - total + i])


__all__ = ["HEAD", "block_at", "line_of", "list_blocks", "numbers_of"]
