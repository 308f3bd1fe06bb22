"""The tiles of sequences with lengths of their own, in a table, for the kernel that takes tiles from a counter."""

from __future__ import annotations

import tilejit as tile

from .scores import Place

CHUNK = 128  # sequences whose lengths are added up at once, and tiles that are written at once
FIELDS = 7   # columns of the table: 0 is free; the sequence, its rows and keys, where its keys begin in the array of
             # all; a tile's first row in the sequence, and in the array of all


@tile.jit
def length_of(lengths, i, most):
    """The lengths of sequences `i`, from 0 to `most`; 0 for sequences that do not exist."""
    found = tile.load(lengths[i], mask=i < lengths.shape[0], other=0)
    return tile.minimum(tile.maximum(tile.cast(found, tile.int32), 0), most)


@tile.jit
def lengths_from(lengths, c, before, most, PACKED: tile.constexpr):
    """(The lengths of CHUNK sequences from `c` on; the length of all up to the last of them, of which `before` are
    known). Packed sequences end where their array ends, after `most`."""
    n = length_of(lengths, c + tile.arange(CHUNK), most)
    if not PACKED:
        return n, before
    ends = tile.cumsum(tile.cast(n, tile.int64), axis=0) + before
    n = tile.minimum(n, tile.cast(tile.maximum(most - (ends - n), 0), tile.int32))
    return n, tile.max(ends, axis=0)


@tile.jit(num_warps=4)
def list_tiles(TABLE, ROWS, KEYS, rows, keys, group, BM: tile.constexpr, PACKED: tile.constexpr):
    """Fill TABLE [tiles + 1, FIELDS] with the tiles of BM rows of all sequences, those of the most keys last, and of a
    sequence in the order of its rows; CTA i writes those of sequence i. The last line has the number of tiles and the
    `group`. ROWS and KEYS are the lengths of packed sequences; without `PACKED` each has all `rows`."""
    own = tile.program_id(0)
    sequences = KEYS.shape[0]
    all_rows, all_keys = tile.cast(0, tile.int64), tile.cast(0, tile.int64)
    most = 0
    for c in range(0, sequences, CHUNK):
        i = c + tile.arange(CHUNK)
        k, all_keys = lengths_from(KEYS, c, all_keys, keys, PACKED)
        most += tile.sum(tile.where(i == own, k, 0), axis=0)
    all_keys = tile.cast(0, tile.int64)
    total, before, first, start, height = 0, 0, 0, 0, 0
    for c in range(0, sequences, CHUNK):
        i = c + tile.arange(CHUNK)
        k, all_keys = lengths_from(KEYS, c, all_keys, keys, PACKED)
        if PACKED:
            n, all_rows = lengths_from(ROWS, c, all_rows, rows, True)
            first += tile.sum(tile.where(i < own, n, 0), axis=0)
            start += tile.sum(tile.where(i < own, k, 0), axis=0)
        else:
            n = tile.where(i < sequences, rows, 0)
        tiles = tile.cdiv(n, BM)
        shorter = (k < most) | ((k == most) & (i < own))
        before += tile.sum(tile.where(shorter, tiles, 0), axis=0)
        height += tile.sum(tile.where(i == own, n, 0), axis=0)
        total += tile.sum(tiles, axis=0)
    same = own, height, most, start
    for c in range(0, tile.cdiv(height, BM), CHUNK):
        m = c + tile.arange(CHUNK)
        there = m * BM < height
        for field in tile.static_range(4):
            tile.store(TABLE[before + m, 1 + field], tile.full((CHUNK,), same[field], tile.int32), mask=there)
        tile.store(TABLE[before + m, 5], m * BM, mask=there)
        tile.store(TABLE[before + m, 6], m * BM + first, mask=there)
    if own == 0:
        tile.store(TABLE[TABLE.shape[0] - 1, 0], total)
        tile.store(TABLE[TABLE.shape[0] - 1, 1], group)


@tile.jit
def line_of(line, head):
    """(The place of a tile for `head`, its first row in the array of all sequences, where its keys begin), from its
    line of the table."""
    number, rows, keys, start = tile.load(line[1]), tile.load(line[2]), tile.load(line[3]), tile.load(line[4])
    row, at = tile.load(line[5]), tile.load(line[6])
    # of loaded numbers: a store's position must be known not to be negative
    tile.assume((number >= 0) & (rows >= 0) & (keys >= 0) & (start >= 0) & (row >= 0) & (at >= 0))
    return Place(number, head, row, rows, keys), at, start


__all__ = ["FIELDS", "length_of", "line_of", "list_tiles"]
