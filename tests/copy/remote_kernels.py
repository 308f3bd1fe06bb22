"""Kernels that store and reduce register values to the shared memory of a peer."""

import numpy as np
import tilejit as tile


def pass_on(ranks: int, swizzle: int = 0):
    """Every CTA stores its row of tiles from registers to the next rank of the cluster."""
    @tile.jit(cluster=(ranks, 1, 1))
    def ring(A, B, ROWS: tile.constexpr, COLUMNS: tile.constexpr, SWIZZLE: tile.constexpr = swizzle):
        here = tile.program_id(0)
        rank, size = tile.cta_rank(), tile.cluster_size()
        layout = tile.swizzled(A.dtype, (ROWS, COLUMNS), SWIZZLE) if SWIZZLE else None
        got = tile.alloc((ROWS, COLUMNS), A.dtype, layout=layout)
        bar = tile.mbarrier()
        bar.arrive_expect_tx(got.nbytes)
        tile.store_async(got.peer((rank + 1) % size), tile.load(A[here, 0:ROWS, 0:COLUMNS]), mbar=bar)
        bar.wait(phase=0)
        tile.store(B[here, 0:ROWS, 0:COLUMNS], tile.load(got))
    return ring


def gather_sums(ranks: int, num_warps: int = 2):
    """The CTAs of a cluster reduce their tiles into the memory of rank 0."""
    @tile.jit(cluster=(ranks, 1, 1), num_warps=num_warps)
    def gather(A, B, C, KIND: tile.constexpr, N: tile.constexpr):
        here, rank = tile.program_id(0), tile.cta_rank()
        total = tile.alloc((N,), A.dtype)
        bar = tile.mbarrier()
        tile.store(total, tile.load(B[0:N]))
        if rank == 0:
            bar.arrive_expect_tx(total.nbytes * tile.cluster_size())
        tile.cluster_sync()
        tile.reduce_async(total.peer(0), tile.load(A[here, 0:N]), KIND, mbar=bar)
        if rank == 0:
            bar.wait(phase=0)
            tile.store(C[here // tile.cluster_size(), 0:N], tile.load(total))
    return gather


@tile.jit(cluster=(4, 1, 1), num_warps=1)
def one_number_each(A, B):
    """A scalar for the scope, and one from each thread, to part of a peer's buffer."""
    here, rank = tile.program_id(0), tile.cta_rank()
    got = tile.alloc((4, 40), tile.float32)
    bar = tile.mbarrier()
    bar.arrive_expect_tx(4 * 4 * 33)
    lane = tile.thread_id()
    for other in range(4):
        tile.store_async(got.peer(other)[rank, 0], tile.load(A[here, 0]), mbar=bar)
        tile.store_async(got.peer(other)[rank, 8 + lane], tile.load(A[here, 1 + lane]), mbar=bar)
    bar.wait(phase=0)
    for r in range(4):
        tile.store(B[here, r, 0], tile.load(got[r, 0]))
        tile.store(B[here, r, 1:33], tile.load(got[r, 8:40]))


def row_of_next(a: np.ndarray, ranks: int) -> np.ndarray:
    """The expected result of `pass_on`."""
    return a.reshape(-1, ranks, *a.shape[1:])[:, [(r - 1) % ranks for r in range(ranks)]].reshape(a.shape)


#: Reductions and the dtypes that they support.
TAKEN = {"add": ("int32", "uint32", "int64", "uint64"), "min": ("int32", "uint32"), "max": ("int32", "uint32"), "inc": ("uint32",),
         "dec": ("uint32",), "and": ("int32", "uint32"), "or": ("int32", "uint32"), "xor": ("int32", "uint32")}
STORED = ("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32",
          "int64", "uint64", "float64")
