"""Kernels with explicit tensor maps: encoded at launch, and made and edited by the kernel."""

import numpy as np
import tilejit as tile
from values import PACKED, WHOLE, any_bits, argument, same  # noqa: F401


def aligned(shape, dtype=np.uint8) -> np.ndarray:
    """Zeros that begin at a multiple of 128 bytes, like device memory."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(n + 128, np.uint8)
    return raw[-raw.ctypes.data % 128:][:n].view(dtype).reshape(shape)


@tile.jit
def rebound(m, array, SCOPE, EDIT, SEED=True):
    """The CTA rebinds a map to an array, in the memory where it is edited, and releases it."""
    with tile.elect():
        if SEED:
            m.seed()
        m.rebind(array)
        if EDIT == "global":
            m.fence_release(SCOPE)
    if EDIT == "shared":
        m.publish(SCOPE)


@tile.jit
def rows_by(m, s, bar, row, SCOPE, phase=0):
    """8 rows of 64 elements by a map, through `s`; the thread that copies acquires the map, if a scope is given."""
    with tile.elect():
        if SCOPE:
            m.fence_acquire(SCOPE)
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, m[row:row + 8, 0:64], mbar=bar)
    bar.wait(phase=phase)
    return tile.load(s)


@tile.jit(num_warps=2)
def through(A, B, BM: tile.constexpr, BN: tile.constexpr, SWIZZLE: tile.constexpr, ROWS: tile.constexpr = 64):
    """Tiles of (BM, BN) in and out by maps encoded at launch, with boxes as large as possible."""
    layout = tile.swizzled(A.dtype, (BM, BN), SWIZZLE) if SWIZZLE else None
    s = tile.alloc((BM, BN), A.dtype, layout=layout)
    bar = tile.mbarrier()
    a, b = tile.tensor_map(A[0:BM, 0:BN], swizzle=SWIZZLE), tile.tensor_map(B[0:BM, 0:BN], swizzle=SWIZZLE)
    i, j = tile.program_id(0) * BM, tile.program_id(1) * BN
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, a[i:i + BM, j:j + BN], mbar=bar)
        bar.wait(phase=0)
        tile.copy_async(b[i:i + BM, j:j + BN], s)
        tile.bulk_commit()
        tile.bulk_wait(0)


#: Every dtype with every swizzle that it supports: 16 bytes do not hold a whole number of 6-bit elements.
EVERY = [(dtype, swizzle) for dtype in WHOLE + PACKED for swizzle in ((0,) if dtype in PACKED[1:] else (0, 32, 64, 128))]


def through_case(dtype: str):
    """(array, zeros, the tile's columns): ragged to the right and below; rows of 128 bytes or more."""
    a = any_bits(dtype, (40, 320 if dtype in PACKED else 160), 1)
    width = 256 if dtype == "float4_e2m1fn" else 128 if a.itemsize == 1 else 64
    return argument(a), argument(np.zeros_like(a)), width


@tile.jit(num_warps=1)
def rounded(A, slots, out, EDIT: tile.constexpr):
    """Rows of float32 rounded to TF32 by a map encoded at launch, or (`EDIT`) by one that the kernel makes and binds to them."""
    s, bar = tile.alloc((16, 32), A.dtype), tile.mbarrier()
    if EDIT:
        m = tile.tensor_map(A[0:16, 0:32], precision="tf32", slot=slots[0, 0:128], edit=EDIT)
        rebound(m, A, "cta", EDIT)
        tile.sync()
        m.fence_acquire("cta")
    else:
        m = tile.tensor_map(A[0:16, 0:32], precision="tf32")
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, m[0:16, 0:32], mbar=bar)
    bar.wait(phase=0)
    tile.store(out[0:16, 0:32], tile.load(s))


def rounded_case():
    """(float32 with all exponents, ties and special values; the expected values with 10 mantissa bits, rounded to nearest even; zeros)."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, (12, 32), dtype=np.uint32)
    bits[1] = bits[1] & np.uint32(0xffffe000) | np.uint32(0x1000)                         # ties
    bits[0, :6] = 0, 0x80000000, 0x7f800000, 0xff800000, 0x7f7fffff, 0x00000fff           # zeros, infinities, the largest number, a subnormal
    a = bits.view(np.float32)
    bits[np.isnan(a)] = 0x3f801fff
    nearest = bits + np.uint32(0xfff) + (bits >> np.uint32(13) & np.uint32(1)) & np.uint32(0xffffe000)
    return a, np.where(np.isinf(a), a, nearest.view(np.float32)), np.ones((16, 32), np.float32)


@tile.jit(num_warps=1)
def grouped(template, storage, table, slots, out, BM: tile.constexpr, BN: tile.constexpr, EDIT: tile.constexpr, STORE: tile.constexpr = False):
    """One CTA for each array of `table` (start in storage, rows, columns): copies it to its plane of `out`, or from there."""
    me = tile.program_id(0)
    s = tile.alloc((BM, BN), template.dtype, layout=tile.swizzled(template.dtype, (BM, BN), 128))
    bar = tile.mbarrier()
    m = tile.tensor_map(template[0:BM, 0:BN], swizzle=128, slot=slots[me, 0:128], edit=EDIT)
    start, rows, columns = tile.load(table[me, 0]), tile.load(table[me, 1]), tile.load(table[me, 2])
    if STORE:
        tile.assume(columns % (16 // template.dtype.nbytes) == 0)  # a store clips rows in steps of 16 bytes
    with tile.elect():
        m.seed()
        m.rebind(storage[start], shape=(rows, columns))
        if EDIT == "global":
            m.fence_release("cta")
    if EDIT == "shared":
        m.publish("cta")
    tile.sync()
    m.fence_acquire("cta")
    turn = 0
    for i in range(0, tile.cdiv(rows, BM)):
        for j in range(0, tile.cdiv(columns, BN)):
            if STORE:
                tile.store(s, tile.load(out[me, i * BM:i * BM + BM, j * BN:j * BN + BN]))
                tile.fence_proxy_async()
                tile.sync()
                with tile.elect():
                    tile.copy_async(m[i * BM:i * BM + BM, j * BN:j * BN + BN], s)
                    tile.bulk_commit()
                    tile.bulk_wait(0)
            else:
                with tile.elect():
                    bar.arrive_expect_tx(s.nbytes)
                    tile.copy_async(s, m[i * BM:i * BM + BM, j * BN:j * BN + BN], mbar=bar)
                bar.wait(phase=turn)
                turn = turn ^ 1
                tile.store(out[me, i * BM:i * BM + BM, j * BN:j * BN + BN], tile.load(s))
                tile.fence_proxy_async()
            tile.sync()


def group(dtype, shapes, seed: int = 0):
    """Arrays of these shapes one after the other in one allocation: (storage, table, the arrays)."""
    rng, at, parts = np.random.default_rng(seed), 0, []
    step = 16 // np.dtype(dtype).itemsize
    table = np.zeros((len(shapes), 3), np.int32)
    for k, (rows, columns) in enumerate(shapes):
        table[k] = at, rows, columns
        parts.append(rng.integers(0, 100, (rows, columns)).astype(dtype))
        at += -(-rows * columns // step) * step
    storage = aligned(at, dtype)
    for (start, rows, columns), part in zip(table, parts):
        storage[start:start + rows * columns] = part.ravel()
    return storage, table, parts


@tile.jit(num_warps=1)
def of_arrays(A, B, C, slots, out, BM: tile.constexpr, BN: tile.constexpr):
    """One map, bound to one argument after the other."""
    s = tile.alloc((BM, BN), A.dtype)
    bar = tile.mbarrier()
    m = tile.tensor_map(A[0:BM, 0:BN], slot=slots[0, 0:128])
    with tile.elect():
        m.seed()
    turn = 0
    arrays = (A, B, C)
    for k in tile.static_range(3):
        with tile.elect():
            m.rebind(arrays[k])
            m.fence_release("cta")
            m.fence_acquire("cta")
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, m[0:BM, 0:BN], mbar=bar)
        bar.wait(phase=turn)
        turn = turn ^ 1
        tile.store(out[k, 0:BM, 0:BN], tile.load(s))
        tile.fence_proxy_async()
        tile.sync()


@tile.jit(num_warps=1)
def of_addresses(template, addresses, shapes, slots, out, first, second, N: tile.constexpr):
    """Arrays identified by addresses that the host has stored; `first` and `second` are the arrays."""
    me = tile.program_id(0)
    s = tile.alloc((8, N), template.dtype)
    m = tile.tensor_map(template[0:8, 0:N], slot=slots[me, 0:128])
    bar = tile.mbarrier()
    with tile.elect():
        m.seed()
        m.rebind(tile.load(addresses[me]), shape=(tile.load(shapes[me, 0]), tile.load(shapes[me, 1])), strides=(tile.load(shapes[me, 2]), 1))
        tile.fence_proxy_tensormap("release", m, "cta")
        tile.fence_proxy_tensormap("acquire", m, "cta")
        m.prefetch()
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, m[0:8, 0:N], mbar=bar)
    bar.wait(phase=0)
    tile.store(out[me, 0:8, 0:N], tile.load(s))


def of_rank(rank: int, edit: str):
    """A map of the given rank, rebound from a smaller array to a larger one."""
    lines = ["def kernel(small, large, slots, out):", "    s = tile.alloc((4, 32), small.dtype)", "    bar = tile.mbarrier()",
             f"    m = tile.tensor_map(small[{', '.join(['0:1'] * (rank - 2) + ['0:4'] * (rank > 1) + ['0:32'])}], slot=slots[0, 0:128], "
             f"edit={edit!r})",
             "    with tile.elect():", "        m.seed()", "        m.rebind(large)"]
    lines += ["        m.fence_release('cta')"] if edit == "global" else []
    lines += ["    m.publish('cta')"] if edit == "shared" else ["    tile.sync()"]
    at = ", ".join(["1:2"] * (rank - 2) + ["0:4"] * (rank > 1) + ["32:64"])
    lines += ["    m.fence_acquire('cta')", "    with tile.elect():", f"        bar.arrive_expect_tx({512 if rank > 1 else 128})",
              f"        tile.copy_async(s{'' if rank > 1 else '[0, 0:32]'}, m[{at}], mbar=bar)", "    bar.wait(phase=0)",
              "    tile.store(out[0:4, 0:32], tile.load(s))" if rank > 1 else "    tile.store(out[0, 0:32], tile.load(s[0, 0:32]))"]
    return tile.jit(source="\n".join(lines) + "\n", num_warps=1)


@tile.jit(cluster=(4, 1, 1), num_warps=1)
def in_a_cluster(template, A, slots, out, RELEASE: tile.constexpr, ACQUIRE: tile.constexpr, EDIT: tile.constexpr):
    """Rank 0 edits one map, and all CTAs of the cluster copy with it."""
    rank, cluster = tile.cta_rank(), tile.cluster_id(0)
    s = tile.alloc((8, 64), template.dtype)
    bar = tile.mbarrier()
    m = tile.tensor_map(template[0:8, 0:64], slot=slots[cluster, 0:128], edit=EDIT)
    if rank == 0:
        rebound(m, A, RELEASE, EDIT)
    tile.cluster_sync()
    tile.store(out[cluster, rank * 8:rank * 8 + 8, 0:64], rows_by(m, s, bar, rank * 8, ACQUIRE))


@tile.jit(num_warps=1)
def across_the_grid(template, A, slots, flag, out, SCOPE: tile.constexpr, EDIT: tile.constexpr = "global"):
    """CTA 0 edits the map and sets a flag; the others wait for it."""
    me = tile.program_id(0)
    s = tile.alloc((8, 64), template.dtype)
    bar = tile.mbarrier()
    m = tile.tensor_map(template[0:8, 0:64], slot=slots[0, 0:128], edit=EDIT)
    if me == 0:
        rebound(m, A, SCOPE, EDIT)
    with tile.elect():
        if me == 0:
            tile.atomic_exch(flag[0], 1, sem="release")
        else:
            while tile.atomic_add(flag[0], 0, sem="acquire") == 0:
                pass
    tile.store(out[me * 8:me * 8 + 8, 0:64], rows_by(m, s, bar, me * 8, SCOPE))


@tile.jit(cluster=(2, 1, 1), num_warps=1)
def to_both(A, B):
    """A multicast with an explicit map, and a reduction on the way out with another one."""
    rank = tile.cta_rank()
    s = tile.alloc((8, 64), A.dtype)
    bar = tile.mbarrier()
    a, b = tile.tensor_map(A[0:8, 0:64]), tile.tensor_map(B[0:8, 0:64])
    bar.arrive_expect_tx(s.nbytes)
    tile.cluster_sync()
    if rank == 0:
        with tile.elect():
            tile.copy_async(s, a[0:8, 64:128], mbar=bar, multicast=3, cache="evict_first")
    bar.wait(phase=0)
    with tile.elect():
        tile.copy_async(b[0:8, 0:64], s, reduce="add")
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit(num_warps=2)
def by_token(A, slots, out):
    """A copy with a map made by the kernel, whose token the CTA waits for."""
    s = tile.alloc((8, 64), A.dtype)
    m = tile.tensor_map(A[0:8, 0:64], slot=slots[0, 0:128])
    m.seed()
    m.rebind(A)
    m.fence_release("cta")
    tile.sync()
    m.fence_acquire("cta")
    for i in range(3):
        done = tile.copy_async(s, m[8 * i:8 * i + 8, 0:64])
        done.wait()
        tile.store(out[8 * i:8 * i + 8, 0:64], tile.load(s))
        tile.sync()


def of_boxes(rank: int, box: tuple[int, ...], extents: tuple[int, ...], swizzle: int):
    """A region of several boxes, in and out, from runtime starts."""
    part = lambda prefix, sizes: ", ".join(f"{prefix}{d}:{prefix}{d} + {n}" if prefix else f"0:{n}" for d, n in enumerate(sizes))
    names = ", ".join(f"i{d}" for d in range(rank))
    shape = f"({', '.join(map(str, extents))},)"
    layout = f"tile.swizzled(A.dtype, {shape}, {swizzle})" if swizzle else "None"
    return tile.jit(num_warps=1, source="\n".join([
        f"def kernel(A, B, {names}):", f"    s = tile.alloc({shape}, A.dtype, layout={layout})", "    bar = tile.mbarrier()",
        f"    a, b = tile.tensor_map(A[{part('', box)}], swizzle={swizzle}), tile.tensor_map(B[{part('', box)}], swizzle={swizzle})",
        *(f"    tile.assume(i{d} >= 0)" for d in range(rank)), f"    tile.assume(i{rank - 1} % 16 == 0)",
        "    with tile.elect():", "        bar.arrive_expect_tx(s.nbytes)", f"        tile.copy_async(s, a[{part('i', extents)}], mbar=bar)",
        "        bar.wait(phase=0)", f"        tile.copy_async(b[{part('i', extents)}], s)", "        tile.bulk_commit()", "        tile.bulk_wait(0)"]) + "\n")


@tile.jit(num_warps=1)
def made(template, A, slots, RELEASE: tile.constexpr, EDIT: tile.constexpr):
    """Makes a map for the following kernel."""
    rebound(tile.tensor_map(template[0:8, 0:64], slot=slots[0, 0:128], edit=EDIT), A, RELEASE, EDIT)


@tile.jit(num_warps=1)
def used(template, A, slots, out, ACQUIRE: tile.constexpr):
    """Copies with the map that an earlier kernel has made."""
    me = tile.program_id(0)
    s = tile.alloc((8, 64), template.dtype)
    bar = tile.mbarrier()
    m = tile.tensor_map(template[0:8, 0:64], slot=slots[0, 0:128])
    tile.store(out[me * 8:me * 8 + 8, 0:64], rows_by(m, s, bar, me * 8, ACQUIRE))


@tile.jit(num_warps=1)
def by_instructions(A, slots, out, EDIT: tile.constexpr):
    """A map of A's first 12 rows and 40 columns with boxes of 8 x 16, a 64-byte swizzle and NaN fill, which is edited, fenced and used by raw
    instructions. Loads the box at row 8, column 32."""
    s = tile.alloc((8, 16), A.dtype, layout=tile.swizzled(A.dtype, (8, 16), 64))
    bar = tile.mbarrier()
    m = tile.tensor_map(A[0:8, 0:32], slot=slots[0, 0:128], edit=EDIT)
    with tile.elect():
        m.seed()
        if EDIT == "shared":
            tile.ptx.tensormap.replace.tile.global_dim.shared_cta.b1024.b32(m, 0, 40)
            tile.ptx.tensormap.replace.tile.global_dim.shared_cta.b1024.b32(m, 1, 12)
            tile.ptx.tensormap.replace.tile.box_dim.shared_cta.b1024.b32(m, 0, 16)
            tile.ptx.tensormap.replace.tile.swizzle_mode.shared_cta.b1024.b32(m, 2)
            tile.ptx.tensormap.replace.tile.fill_mode.shared_cta.b1024.b32(m, 1)
        else:
            tile.ptx.tensormap.replace.tile.global_dim.global_.b1024.b32(m, 0, 40)
            tile.ptx.tensormap.replace.tile.global_dim.global_.b1024.b32(m, 1, 12)
            tile.ptx.tensormap.replace.tile.box_dim.global_.b1024.b32(m, 0, 16)
            tile.ptx.tensormap.replace.tile.swizzle_mode.global_.b1024.b32(m, 2)
            tile.ptx.tensormap.replace.tile.fill_mode.global_.b1024.b32(m, 1)
            tile.ptx.fence.proxy.tensormap_generic.release.cta()
    tile.sync()
    if EDIT == "shared":
        tile.ptx.tensormap.cp_fenceproxy.global_.shared_cta.tensormap_generic.release.cta.sync.aligned(m, m, 128)
        tile.sync()
    with tile.elect():
        tile.ptx.fence.proxy.tensormap_generic.acquire.cta(m, 128)
        bar.arrive_expect_tx(s.nbytes)
        tile.ptx.cp_async.bulk.tensor._2d.shared_cluster.global_.mbarrier_complete_tx_bytes(s, m, (32, 8), bar)
    bar.wait(phase=0)
    tile.store(out[0:8, 0:16], tile.load(s))


def expected_of_instructions(a: np.ndarray) -> np.ndarray:
    """The box that `by_instructions` loads from an array of more than 12 rows and 40 columns."""
    want = np.full((8, 16), np.nan, a.dtype)
    want[:4, :8] = a[8:12, 32:40]
    return want
