"""Pipelined loops whose copy positions depend on branches and loops in their bodies."""

import tilejit as tile


@tile.jit
def rows_in_computed_order(A, out, n, turn, ROLES: tile.constexpr, STAGES: tile.constexpr = 3):
    """Rows of A in an order computed in the loop, which `expected_order` reproduces; each has half the weight of the next."""
    s = tile.alloc((64,), A.dtype)
    total = tile.zeros((64,))
    for i in tile.pipelined(range(n), stages=STAGES, warp_specialize=ROLES):
        row = n - 1 - i if turn % 2 == 1 else i
        if i % 3 == 0:  # used by the copy and by the rest of the body
            row = row // 2
            total += 1.0
        far = 0
        while far * far < row:
            far = far + 1
        for _ in range(turn):
            far = far // 2 + 1
        tile.copy_async(s, A[row + far, 0:64])
        total = total * 0.5 + tile.load(s)
    tile.store(out[0:64], total)


def expected_order(n, turn):
    """The row of each iteration, and whether it adds 1."""
    for i in range(n):
        row = n - 1 - i if turn % 2 else i
        row = row // 2 if i % 3 == 0 else row
        far = next(f for f in range(n + 2) if f * f >= row)
        for _ in range(turn):
            far = far // 2 + 1
        yield row + far, i % 3 == 0


@tile.jit(num_warps=4)
def boxes(A, out, n, turn, ROLES: tile.constexpr):
    """Boxes of a matrix along one row of boxes, from the left or from the right. A bulk copy of each needs the alignment of its start."""
    s = tile.alloc((16, 64), A.dtype, layout=tile.auto)
    total = tile.zeros((16, 64))
    last = (n - 1) * 64
    for j in tile.pipelined(range(0, n * 64, 64), stages=2, warp_specialize=ROLES):
        k = last - j if turn else j
        tile.copy_async(s, A[0:16, k:k + 64])
        total = total * 0.5 + tile.load(s)
    tile.store(out[0:16, 0:64], total)
