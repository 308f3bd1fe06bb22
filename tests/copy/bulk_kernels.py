"""Kernels of bulk copies and of copies to a peer, and their results as expected by NumPy, for the simulator and the GPU."""

import numpy as np
import tilejit as tile
from receivers import awaited
from reduced import combined
from tilejit.dtypes import dtype_of
from values import WHOLE, any_bits  # noqa: F401

# -- copies in and out ---------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def through(A, B, N: tile.constexpr, VARIANT: tile.constexpr):
    s = tile.alloc((N,), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0:N], mbar=bar, variant=VARIANT)
        bar.wait(phase=0)
        tile.copy_async(B[0:N], s, variant=VARIANT)
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit(cluster=(4, 1, 1), num_warps=1)
def broadcast(A, B, MASK: tile.constexpr):
    s = tile.alloc((1024,), A.dtype)
    bar = awaited(s, MASK)
    rank = tile.cta_rank()
    if rank == 1:
        with tile.elect():
            tile.copy_async(s, A[0:1024], mbar=bar, multicast=MASK, variant="bulk", cache="evict_last")
    bar.wait(phase=0)
    tile.copy(B[rank, 0:1024], s)


def hand_on(ranks: int):
    """Every CTA passes its row to the next rank of the cluster."""
    @tile.jit(cluster=(ranks, 1, 1))
    def ring(A, B):
        here = tile.program_id(0)
        rank, size = tile.cta_rank(), tile.cluster_size()
        mine = tile.alloc((8, 64), A.dtype, layout=tile.swizzled(A.dtype, (8, 64), 128))
        got = tile.alloc((8, 64), A.dtype, layout=tile.swizzled(A.dtype, (8, 64), 128))
        bar = tile.mbarrier()
        tile.copy(mine, A[here, 0:8, 0:64])
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            bar.arrive_expect_tx(got.nbytes)
            tile.copy_async(got.peer((rank + 1) % size), mine, mbar=bar)
        bar.wait(phase=0)
        tile.copy(B[here, 0:8, 0:64], got)
    return ring


@tile.jit
def fetched(A, B, N: tile.constexpr):
    tile.prefetch(A[0:4, 0:N])
    p = tile.program_id(0)
    tile.prefetch(A[p - 1:p + 3, 0:N])
    tile.store(B[0:4, 0:N], tile.load(A[0:4, 0:N]))


# -- reductions ----------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def reduced(A, B, N: tile.constexpr, KIND: tile.constexpr):
    """Every CTA reduces its row into the same region of global memory."""
    s = tile.alloc((N,), A.dtype)
    tile.store(s, tile.load(A[tile.program_id(0), 0:N]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(B[0:N], s, reduce=KIND, variant="bulk")
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit(cluster=(3, 1, 1), num_warps=1)
def summed(A, B, C, KIND: tile.constexpr):
    """The other CTAs of a cluster reduce their rows into the memory of rank 0."""
    mine = tile.alloc((64,), A.dtype)
    total = tile.alloc((64,), A.dtype)
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    tile.store(mine, tile.load(A[tile.maximum(rank - 1, 0), 0:64]))
    tile.store(total, tile.load(B[0:64]))
    tile.fence_proxy_async()
    tile.cluster_sync()
    with tile.elect():
        if rank == 0:
            bar.arrive_expect_tx(2 * mine.nbytes)
        else:
            tile.copy_async(total.peer(0), mine, mbar=bar, reduce=KIND)
    if rank == 0:
        bar.wait(phase=0)
        tile.copy(C[0:64], total)


#: For each destination and operator: the types of the instruction, and the dtypes that use each (PTX ISA, "cp.reduce.async.bulk").
#: Signed 64-bit additions use the unsigned type.
_ADD = {"s32": ("int32",), "u32": ("uint32",), "u64": ("uint64", "int64")}
_FLOATS = {"f16": ("float16",), "bf16": ("bfloat16",)}
_BITS = {"b32": ("int32", "uint32"), "b64": ("int64", "uint64")}
_ORDER = {"s32": ("int32",), "u32": ("uint32",)}
_COUNT = {"u32": ("uint32",)}
TYPES = {
    "global": {"add": {**_ADD, "f32": ("float32",), "f64": ("float64",), "noftz.f16": ("float16",), "noftz.bf16": ("bfloat16",)},
               **dict.fromkeys(("min", "max"), {**_ORDER, "s64": ("int64",), "u64": ("uint64",), **_FLOATS}),
               **dict.fromkeys(("inc", "dec"), _COUNT), **dict.fromkeys(("and", "or", "xor"), _BITS)},
    "shared": {"add": _ADD, **dict.fromkeys(("min", "max"), _ORDER), **dict.fromkeys(("inc", "dec"), _COUNT),
               **dict.fromkeys(("and", "or", "xor"), {"b32": _BITS["b32"]})},
}
#: (destination, operator, dtype, the instruction's type).
REDUCTIONS = [(place, kind, dtype, spelled) for place, kinds in TYPES.items() for kind, types in kinds.items()
              for spelled, dtypes in types.items() for dtype in dtypes]


def reduction_case(kind: str, dtype: str, rows: int):
    """(operands, initial value, expected result): integers of any bits, small floats, whose sums are exact."""
    rng, np_dtype = np.random.default_rng(7), dtype_of(dtype).np
    if kind in ("inc", "dec"):
        a = np.full((rows, 64), 20, np_dtype)  # otherwise the result depends on the order of the operands
        b = rng.integers(0, 24, 64).astype(np_dtype)
    elif np_dtype.kind in "iu":
        a, b = (any_bits(dtype, shape, seed) for seed, shape in enumerate(((rows, 64), (64,))))
    else:
        a, b = (rng.integers(-20, 20, shape).astype(np_dtype) for shape in ((rows, 64), 64))
    with np.errstate(over="ignore"):
        return a, b, combined(kind, a, b.copy())
