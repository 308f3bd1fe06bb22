"""Sparse matrices in CSR: products with a vector and with a matrix."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, exact, normal, port, uniform


def csr(rows: int, columns: int, share: float):
    """A sparse matrix: (starts of rows, columns, values, the dense matrix). Some rows are empty."""
    dense = np.where(uniform(rows, columns) < share, normal(rows, columns), 0)
    dense[rows // 2] = 0
    at = np.nonzero(dense)
    starts = np.cumsum([0, *(dense != 0).sum(1)]).astype(np.int32)
    return starts, at[1].astype(np.int32), dense[at].astype(np.float32), exact(dense)


# A CTA takes ROWS rows, a warp's width of each at a time, until the longest of them has ended.

@tile.jit
def csr_times_vector(starts, columns, values, x, y, ROWS: tile.constexpr, WIDTH: tile.constexpr):
    row = tile.program_id(0) * ROWS
    first, last = tile.load(starts[row:row + ROWS], other=0), tile.load(starts[row + 1:row + 1 + ROWS], other=0)
    total = tile.zeros((ROWS, WIDTH))
    for i in range(0, tile.max(last - first), WIDTH):
        at = first[:, None] + i + tile.arange(WIDTH)[None, :]
        inside = at < last[:, None]
        total += tile.load(values[at], mask=inside) * tile.load(x[tile.load(columns[at], mask=inside)], mask=inside)
    tile.store(y[row:row + ROWS], tile.sum(total, axis=1))


@port
def csr_spmv(on: Machine):
    starts, columns, values, dense = csr(45, 300, 0.1)
    x, y = normal(300), on.empty(45, "float32")
    csr_times_vector[6,](on(starts), on(columns), on(values), on(x), y, ROWS=8, WIDTH=16)
    on.check(y, dense @ x)


@tile.jit
def csr_times_matrix(starts, columns, values, b, c, NNZ: tile.constexpr, BN: tile.constexpr):
    row, n = tile.program_id(0), tile.program_id(1) * BN
    acc, stop = tile.zeros((BN,)), tile.load(starts[row + 1])
    for i in range(tile.load(starts[row]), stop, NNZ):
        at = i + tile.arange(NNZ)
        rows = tile.load(columns[at], mask=at < stop, other=-1)
        acc += tile.sum(tile.load(values[at], mask=at < stop)[:, None] * tile.load(b[rows, n:n + BN], other=0), axis=0)
    tile.store(c[row, n:n + BN], acc)


@port
def csr_spmm(on: Machine):
    starts, columns, values, dense = csr(20, 150, 0.2)
    b = normal(150, 50)
    c = on.empty((20, 50), "float32")
    csr_times_matrix[20, 2](on(starts), on(columns), on(values), on(b), c, NNZ=8, BN=32)
    on.check(c, dense @ b)
