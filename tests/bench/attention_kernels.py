"""Functions that change scores and hide keys, for the benchmark of attention."""

import tilejit as tile


@tile.jit
def alibi(s, batch, head, rows, columns, slopes):
    return s + tile.load(slopes[head]) * (columns - rows).to(tile.float32)


@tile.jit
def same_document(batch, head, rows, columns, ids):
    return tile.load(ids[rows]) == tile.load(ids[columns])
