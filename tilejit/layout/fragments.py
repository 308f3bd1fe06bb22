"""Register tiles: which thread holds which element in which register.

A register layout maps a logical index, row-major over a *domain*, to the axes ``reg``, ``laneid`` and
``warpid`` (the warp within the scope that owns the tile). The domain is the tile's shape, rounded up
where the threads do not divide it; elements outside the shape are held but never used. Registers count
elements of any width. The functions that make or change a register layout return (layout, domain).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from ..errors import CompilationError
from ..frames import hide_own_frames
from ..lazy import Lazy
from .algebra import TileLayout
from .axes import Axis, as_whole_number, axis
from .shards import Shard, Shards

if TYPE_CHECKING:
    import numpy
    from numpy import int64
    from numpy.typing import NDArray
else:
    numpy = Lazy("numpy")

REG, LANE, WARP = axis.reg, axis.laneid, axis.warpid
LANES = 32  # threads of a warp

# Minimum number of adjacent lanes along the fastest dimension, if it is long enough: with 4-byte
# vectors they fill a 32-byte sector, with 16-byte vectors a 128-byte line.
NEIGHBOURS = 8


# ---- blocked ------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _make_blocked_layout(shape: tuple[int, ...], threads: int, vec: int, order: tuple[int, ...],
             within_warp: tuple[int, ...] = ()) -> tuple[TileLayout, tuple[int, ...]]:
    vectors = [1] * len(shape)
    if order:
        vectors[order[0]] = min(vec, shape[order[0]])
    pieces = [-(-extent // vector) for extent, vector in zip(shape, vectors)]
    limits = [min(_power_above(pieces[dim]), LANES if dim in within_warp else threads) for dim in order]
    spread = dict(zip(order, _spread([pieces[dim] for dim in order], limits, threads)))
    lanes_left, lane, warp, register = min(threads, LANES), 1, 1, 1
    dims: list[Shards] = [()] * len(shape)
    for dim in order:
        count, vector = spread[dim], vectors[dim]
        lanes = min(lanes_left, count & -count)
        warps, rounds = count // lanes, -(-pieces[dim] // count)
        dims[dim] = ((rounds, register * vector, REG), (warps, warp, WARP), (lanes, lane, LANE), (vector, 1, REG))
        lanes_left, lane, warp, register = lanes_left // lanes, lane * lanes, warp * warps, register * vector * rounds
    replicas = ((max(threads // LANES, 1) // warp, warp, WARP), (min(threads, LANES) // lane, lane, LANE))
    domain = tuple(prod(s[0] for s in dim) for dim in dims)
    return _layout(dims, replicas).made_for_tile(domain), domain


def blocked_layout(shape: Iterable[Any], threads: int, vec: int, order: Iterable[int] | None = None,
            within_warp: Iterable[int] = ()) -> tuple[TileLayout, tuple[int, ...]]:
    """A tile distributed over `threads` threads: (layout, domain).

    Each thread holds runs of `vec` elements along the fastest dimension. Lanes, then warps, are adjacent
    along it and then along the other dimensions; the rest is further registers, with the runs innermost.
    `order` lists the dimensions, fastest first (by default, the last is fastest). Threads are divided among
    the dimensions such that each holds as few registers as possible; ties favour faster dimensions. Threads
    that are left over hold copies (replicas). Along the dimensions in `within_warp`, all elements are held by
    one warp (if that costs no registers), so that a reduction along them needs no shared memory.
    """
    shape = tuple(as_whole_number(extent) for extent in shape)
    order = tuple(reversed(range(len(shape)))) if order is None else tuple(order)
    if any(not isinstance(extent, int) or extent < 1 for extent in shape):
        raise CompilationError(f"a register tile has extents of at least 1, found shape {shape}")
    if sorted(order) != list(range(len(shape))):
        raise CompilationError(f"order= lists the {len(shape)} dimensions once each, fastest first, found {order}")
    if vec < 1:
        raise CompilationError(f"vec= counts elements, at least 1, found {vec}")
    _check_threads(threads)
    free = _make_blocked_layout(shape, threads, vec, order)
    if not within_warp:
        return free
    held = _make_blocked_layout(shape, threads, vec, order, tuple(sorted(within_warp)))
    return held if reg_count(held[0]) <= reg_count(free[0]) else free


def _check_threads(threads: int) -> None:
    if threads < 1 or (threads % LANES if threads > LANES else threads & (threads - 1)):
        raise CompilationError(
            f"a register tile belongs to whole warps, or to 1, 2, 4, 8 or 16 lanes, found {threads} threads")


def _spread(pieces: list[int], limits: list[int], threads: int) -> tuple[int, ...]:
    """How many threads to place along each dimension, fastest first, at most `limits`.

    They are powers of two, except that an odd factor of the number of warps may go to one dimension as a whole.
    """
    power = threads & -threads
    odd = threads // power
    floor = min(NEIGHBOURS, power, _power_above(pieces[0])) if pieces else 1
    best: tuple[tuple[Any, ...], tuple[int, ...]] | None = None
    for split in _splits(power, limits):
        if split and split[0] < floor:
            continue
        for odd_dim in (range(-1, len(split)) if odd > 1 else (-1,)):
            counts = tuple(n * odd if dim == odd_dim else n for dim, n in enumerate(split))
            if odd_dim >= 0 and split[odd_dim] >= pieces[odd_dim]:
                continue
            registers = prod(-(-n // count) for n, count in zip(pieces, counts))
            cost = (registers, prod(counts), tuple(-count for count in counts))
            if best is None or cost < best[0]:
                best = cost, counts
    assert best is not None  # one thread along each dimension is always a split
    return best[1]


def _splits(power: int, limits: list[int]) -> Iterator[tuple[int, ...]]:
    """All tuples of powers of two, each within its limit, whose product is at most `power`."""
    if not limits:
        yield ()
        return
    count = 1
    while count <= min(power, limits[0]):
        for rest in _splits(power // count, limits[1:]):
            yield (count, *rest)
        count *= 2


def _power_above(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _layout(dims: Iterable[Iterable[Shard]], replicas: Iterable[Shard] = ()) -> TileLayout:
    """The shards of all dimensions as one layout, in canonical form: equal maps give equal register layouts."""
    return TileLayout([s for dim in dims for s in dim if s[0] != 1], replicas).canonicalize()


def row_lanes(nbytes: int, threads: int) -> int:
    """How many adjacent threads share a row of `nbytes` bytes if each moves 16 bytes at a time: a power of two within
    a warp. It is the largest one that leaves the fewest threads idle, and at least two, which fill a 32-byte
    sector."""
    vectors = max(nbytes // 16, 1)
    most = min(vectors, threads, LANES)
    return min((n for n in (1, 2, 4, 8, 16, 32) if min(2, most) <= n <= most), key=lambda n: (-(-vectors // n) * n, -n))


def row_numbers(rows: int, threads: int, lanes: int) -> tuple[TileLayout, tuple[int, ...]]:
    """A register tile with one element per row, held by all threads that share the row, `lanes` of them: (layout,
    domain). Consecutive rows go to consecutive groups of threads; register f is a thread's row number f."""
    groups, warps = min(threads, LANES) // lanes, max(threads // LANES, 1)
    dim = ((-(-rows // (warps * groups)), 1, REG), (warps, 1, WARP), (groups, lanes, LANE))
    return _layout([dim], ((lanes, 1, LANE),)), (prod(s[0] for s in dim),)


# ---- changing one -------------------------------------------------------------------------------


def collapse(layout: TileLayout, domain: Iterable[int], dim: int) -> tuple[TileLayout, tuple[int, ...]]:
    """The layout of a tile reduced to extent 1 along `dim`: (layout, domain).

    What each thread held along `dim` becomes one register, and all threads along it hold the result.
    """
    dims, domain, dim = _dims(layout, domain, dim)
    replicas = layout.replicas + tuple(s for s in dims[dim] if s[2] != REG)
    dims[dim] = ()
    dense, reached = {0: 0}, 1
    for stride, extent in sorted((s[1], s[0]) for part in dims for s in part if s[2] == REG and s[1]):
        dense[stride] = reached
        reached *= extent
    dims = [[(e, dense[stride], REG) if along == REG else (e, stride, along) for e, stride, along in part]
            for part in dims]
    return _layout(dims, replicas), (*domain[:dim], 1, *domain[dim + 1:])


@lru_cache(maxsize=1024)
def register_slice(layout: TileLayout, domain: tuple[int, ...], starts: tuple[int, ...], shape: tuple[int, ...],
                   ) -> tuple[TileLayout, tuple[int, ...], tuple[int, ...]] | None:
    """The part of a tile from `starts` on, of extents `shape`: (layout, domain, the source register of each of its
    registers). None if a slice is not made of whole registers, so that threads would have to exchange elements."""
    dims: list[list[Shard]] = []
    offset = 0
    for shards, extent, start, kept in zip(layout.dims(domain), domain, starts, shape):
        part = [s for s in shards if s[0] != 1]
        if kept != extent:
            outer, stride, along = part[0] if part else (1, 0, LANE)
            weight = extent // outer
            if along != REG or start % weight or kept % weight:
                return None
            part = [(kept // weight, stride, REG), *part[1:]]
            offset += start // weight * stride
        dims.append(part)
    held = sorted((stride, n) for part in dims for n, stride, along in part if along == REG and n > 1)
    dense: dict[int, int] = {}
    reached, moves = 1, [offset]
    for stride, n in held:
        dense[stride] = reached
        reached *= n
        moves = [m + i * stride for i in range(n) for m in moves]
    dims = [[(n, dense.get(stride, stride), along) if along == REG else (n, stride, along) for n, stride, along in part]
            for part in dims]
    return _layout(dims, layout.replicas), tuple(shape), tuple(moves)


def drop_dim(layout: TileLayout, domain: Iterable[int], dim: int) -> tuple[TileLayout, tuple[int, ...]]:
    """The same tile without dimension `dim`, which must have extent 1: (layout, domain)."""
    _, domain, dim = _dims(layout, domain, dim)
    if domain[dim] != 1:
        raise CompilationError(f"dimension {dim} of domain {domain} has extent {domain[dim]}: only 1 can be dropped")
    return layout, (*domain[:dim], *domain[dim + 1:])


def insert_dim(layout: TileLayout, domain: Iterable[int], dim: int) -> tuple[TileLayout, tuple[int, ...]]:
    """The same tile with a new dimension of extent 1 at position `dim`: (layout, domain)."""
    domain = tuple(domain)
    if not -len(domain) - 1 <= dim <= len(domain):
        raise CompilationError(f"no dimension {dim} can be inserted into domain {domain}")
    dim = dim + len(domain) + 1 if dim < 0 else dim
    return layout, (*domain[:dim], 1, *domain[dim:])


def exchange_registers(layout: TileLayout, domain: Iterable[int], dim: int) -> TileLayout | None:
    """The layout after adjacent lanes along `dim` exchange registers such that each thread holds a longer run; None
    if the layout does not allow it. In 16-bit fragments, for example, a thread holds two of every eight columns;
    afterwards, all columns of every fourth group of eight."""
    dims, domain, dim = _dims(layout, domain, dim)
    part = [s for s in dims[dim] if s[0] != 1]
    at = next((n for n, s in enumerate(part)
               if str(s[2]) == LANE and n and all(str(t[2]) == REG for t in (part[n - 1], *part[n + 1:]))), None)
    if at is None or part[at - 1][0] % part[at][0] or part[at][0] & part[at][0] - 1:
        return None
    (above, stride, _), (lanes, between, _) = part[at - 1:at + 1]
    outer = [(above // lanes, stride * lanes, REG)]
    dims[dim] = [*part[:at - 1], *outer, (lanes, between, LANE), (lanes, stride, REG), *part[at + 1:]]
    return _layout(dims, layout.replicas)


def _dims(layout: TileLayout, domain: Iterable[int], dim: int) -> tuple[list[Iterable[Shard]], tuple[int, ...], int]:
    domain = tuple(domain)
    if not -len(domain) <= dim < len(domain):
        raise CompilationError(f"domain {domain} has no dimension {dim}")
    return list(layout.dims(domain)), domain, dim % len(domain)


def reg_count(layout: TileLayout) -> int:
    """The number of registers per thread, in elements."""
    return prod(extent for extent, stride, along in layout.shards if along == REG and stride)


# ---- tensor-core fragments ----------------------------------------------------------------------

# (shards of the rows, shards of the columns) of one warp instruction's fragment, outermost first; lane = 4 * group +
# thread in group. PTX ISA, "Matrix Fragments for mma.<shape>" (9.7.14.5); registers are numbered as in
# the manual. m16n8k8 is the tf32 shape, m8n8k4 the f64 shape.
_C16: tuple[Shards, Shards] = (((2, 2, REG), (8, 4, LANE)),               ((4, 1, LANE), (2, 1, REG)))
_MMA: dict[str, dict[str, tuple[Shards, Shards]]] = {
    "m16n8k16": {"a": (((2, 2, REG), (8, 4, LANE)),              ((2, 4, REG), (4, 1, LANE), (2, 1, REG))),
                 "b": (((2, 2, REG), (4, 1, LANE), (2, 1, REG)), ((8, 4, LANE),)),
                 "c": _C16},
    "m16n8k8":  {"a": (((2, 1, REG), (8, 4, LANE)),              ((2, 2, REG), (4, 1, LANE))),
                 "b": (((2, 1, REG), (4, 1, LANE)),              ((8, 4, LANE),)),
                 "c": _C16},
    "m16n8k32": {"a": (((2, 4, REG), (8, 4, LANE)),              ((2, 8, REG), (4, 1, LANE), (4, 1, REG))),
                 "b": (((2, 4, REG), (4, 1, LANE), (4, 1, REG)), ((8, 4, LANE),)),
                 "c": _C16},
    "m8n8k4":   {"a": (((8, 4, LANE),),                          ((4, 1, LANE),)),
                 "b": (((4, 1, LANE),),                          ((8, 4, LANE),)),
                 "c": (((8, 4, LANE),),                          ((4, 1, LANE), (2, 1, REG)))},
}

# The same for one tcgen05.ld/st atom, with columns of 32 bits. PTX ISA, "Data Movement Shape" (9.7.16.2.3).
_TCGEN05: dict[str, tuple[Shards, Shards]] = {
    "32x32b":  (((32, 1, LANE),),              ()),
    "16x64b":  (((2, 1, LANE), (8, 4, LANE)),  ((2, 2, LANE),)),
    "16x128b": (((2, 1, REG), (8, 4, LANE)),   ((4, 1, LANE),)),
    "16x256b": (((2, 2, REG), (8, 4, LANE)),   ((4, 1, LANE), (2, 1, REG))),
}


def mma_fragment(kind: str, operand: str, shape: Iterable[int],
                 warps: Iterable[int] = (1, 1)) -> tuple[TileLayout, tuple[int, int]]:
    """An operand of warp-level ``mma.sync``: (layout, domain).

    `kind` is m16n8k16 (16-bit), m16n8k8 (tf32), m16n8k32 (8-bit) or m8n8k4 (f64). `operand` is "a" of `shape`
    (M, K), "b" of (K, N), or "c" or "d" of (M, N), rounded up to whole instructions. Of the `warps` (m, n), each
    owns a contiguous block of C, as warp m * warps[1] + n; A is replicated over n, B over m. Registers are ordered
    by instruction, with k fastest in A and B, and n fastest in C. A 16-bit C of m16n8k16 thus has the layout of
    the A operand of a following product.
    """
    operand = "c" if operand in ("d", "D") else operand.lower()
    if kind not in _MMA or operand not in _MMA[kind]:
        raise CompilationError(f"mma fragments are a, b, c or d of {', '.join(_MMA)}, found {operand!r} of {kind!r}")
    shape, warps = tuple(shape), tuple(warps)
    if len(shape) != 2 or len(warps) != 2 or min(shape + warps) < 1:
        raise CompilationError(f"an mma operand has two extents and two counts of warps, found {shape} and {warps}")
    tile = _MMA[kind][operand]
    owners = (warps[0] if operand in "ac" else 1, warps[1] if operand in "bc" else 1)
    counts = [-(-extent // (_count(part) * owner)) for extent, part, owner in zip(shape, tile, owners)]
    registers = _count(tile[0], REG) * _count(tile[1], REG)
    steps = (registers, registers * counts[0]) if operand == "b" else (registers * counts[1], registers)
    dims = [((owner, stride, WARP), (count, step, REG), *part)
            for owner, stride, count, step, part in zip(owners, (warps[1], 1), counts, steps, tile)]
    over_m, over_n = (warps[0] // owners[0], warps[1], WARP), (warps[1] // owners[1], 1, WARP)
    replicas: Shards = {"a": (over_n,), "b": (over_m,), "c": ()}[operand]
    rows, columns = (_count(dim) for dim in dims)
    return _layout(dims, replicas).made_for_tile((rows, columns)), (rows, columns)


def wgmma_accumulator(m: int, n: int, warpgroups: int = 1, across: int = 1) -> tuple[TileLayout, tuple[int, int]]:
    """The accumulator D of ``wgmma`` for an (m, n) tile: (layout, domain).

    Each warp of a warpgroup holds 16 of 64 rows, as for mma.m16n8k16. `across` of the warpgroups divide the columns,
    the others the rows: warpgroup ``i * across + j`` owns block (i, j). PTX ISA, "Register Fragments for
    wgmma.mma_async.m64nNk16" (9.7.15.5.1).
    """
    rows, columns = _wgmma(m, n, _C16, warpgroups, across, across)
    return _layout((rows, columns)).made_for_tile((m, n)), (m, n)


def wgmma_a_registers(m: int, k: int, bits: int, warpgroups: int = 1,
                      across: int = 1) -> tuple[TileLayout, tuple[int, int]]:
    """The A operand of ``wgmma`` in registers, with elements of `bits` (8, 16 or 32) bits: (layout, domain).

    The `across` warpgroups that divide the columns of the product hold copies of their rows. PTX ISA, "Register
    Fragments for wgmma.mma_async" (9.7.15.5.1): m64nNk32, k16 and k8.
    """
    kind = {32: "m16n8k8", 16: "m16n8k16", 8: "m16n8k32"}.get(bits)
    if kind is None:
        raise CompilationError(f"wgmma takes A from registers in elements of 8, 16 or 32 bits, found {bits}")
    rows, columns = _wgmma(m, k, _MMA[kind]["a"], warpgroups, across, 1)
    return _layout((rows, columns), ((across, 4, WARP),)).made_for_tile((m, k)), (m, k)


def _wgmma(rows: int, columns: int, tile: tuple[Shards, Shards], warpgroups: int, across: int,
           owners: int) -> tuple[Shards, Shards]:
    """The shards of the rows and of the columns of a fragment whose columns `owners` of the `across` warpgroups
    divide."""
    width, down = _count(tile[1]) * owners, warpgroups // max(across, 1)
    if down < 1 or across < 1 or warpgroups % across or min(rows, columns) < 1 or rows % (64 * down) or columns % width:
        raise CompilationError(f"a wgmma fragment over {warpgroups} warpgroup(s) has a multiple of {64 * down} "
                               f"rows and of {width} columns, found ({rows}, {columns})")
    registers = _count(tile[0], REG) * _count(tile[1], REG)
    steps, tiles = columns // width, rows // (64 * down)
    return (((down, 4 * across, WARP), (tiles, registers * steps, REG), (4, 1, WARP), *tile[0]),
            ((owners, 4, WARP), (steps, registers, REG), *tile[1]))


def tcgen05_registers(atom: str, rows: int, columns: int, bits: int = 32) -> tuple[TileLayout, tuple[int, int]]:
    """The registers of a warpgroup's four warps after ``tcgen05.ld`` of a (rows, columns) tile: (layout, domain).

    `atom` is 32x32b (128 rows), or 16x64b, 16x128b or 16x256b (64 rows, or 128 in two instructions). `columns`
    counts elements of `bits` bits, packed in 32-bit registers. PTX ISA, "Data Movement Shape" (9.7.16.2.3).
    """
    if atom not in _TCGEN05:
        raise CompilationError(f"tcgen05.ld has the shapes {', '.join(_TCGEN05)}, found {atom!r}")
    tile, packed = _TCGEN05[atom], 32 // bits if bits in (8, 16, 32) else 0
    height, width = _count(tile[0]), _count(tile[1]) * packed
    if not packed or rows not in (128, 4 * height) or columns < 1 or columns % width:
        raise CompilationError(f"tcgen05.ld {atom} of elements of 8, 16 or 32 bits takes {4 * height} or 128 rows and "
                               f"whole repetitions, found ({rows}, {columns}) of {bits} bits")
    registers, steps = _count(tile[0], REG) * _count(tile[1], REG), columns // width
    wide = [tuple((e, s * packed if along == REG else s, along) for e, s, along in part) for part in tile]
    dims = (((4, 1, WARP), (rows // (4 * height), registers * steps * packed, REG), *wide[0]),
            ((steps, registers * packed, REG), *wide[1], (packed, 1, REG)))
    return _layout(dims).made_for_tile((rows, columns)), (rows, columns)


@hide_own_frames
def tmem_datapath(datapath: str, columns: int, sub: int = 0) -> TileLayout:
    """Where ``tcgen05.mma`` keeps an accumulator in tensor memory, by the letter of the data path.

    As seen by one CTA: A (M=256 over two CTAs) and D (M=128) have 128 rows. F (M=64) and C (M=128 over two CTAs,
    sparse) have 64 rows, 16 per warp, from lane 16 * `sub` on. E (M=64, .ws) and B (M=128 over two CTAs) have 64
    rows, with the second half of the columns in the lanes after the first half. G (M=32, .ws) has 32 rows, with the
    quarters of the columns placed likewise. PTX ISA, "Data Path Layout Organization" (9.7.16.10.5).
    """
    if datapath not in tuple("ABCDEFG"):
        raise CompilationError(f"the datapaths of tensor memory are 'A' to 'G', found {datapath!r}")
    lane, column, columns = axis.TLane, axis.TCol, as_whole_number(columns)
    folds = {"B": 2, "E": 2, "G": 4}.get(datapath, 1)
    subs = (0, 1) if datapath in "CF" else (0,)
    if columns < 1 or columns % folds or sub not in subs:
        raise CompilationError(
            f"the datapath {datapath!r} has {f'a multiple of {folds} columns' if folds > 1 else 'one column or more'} "
            f"and sub {' or '.join(map(str, subs))}, found {columns} and {sub!r}")
    if datapath in "AD":
        return TileLayout([(128, 1, lane), (columns, 1, column)])
    if datapath in "CF":
        placed = TileLayout([(4, 32, lane), (16, 1, lane), (columns, 1, column)], offset={lane: 16 * sub})
        return placed.made_for_tile((64, columns))
    rows = 128 // folds
    placed = TileLayout([(rows, 1, lane), (folds, rows, lane), (columns // folds, 1, column)])
    return placed.made_for_tile((rows, columns))


def _count(part: Iterable[Shard], along: Axis | None = None) -> int:
    return prod(s[0] for s in part if along in (None, s[2]))


# ---- tables -------------------------------------------------------------------------------------


def thread_table(layout: TileLayout, domain: Iterable[int], threads: int) -> NDArray[int64]:
    """Which elements each thread holds: an int array [threads, registers] of flat indices into the domain.

    It is read-only. Threads that hold replicas have the same indices.
    """
    return _thread_table(layout, tuple(domain), threads)


@lru_cache(maxsize=128)
def _thread_table(layout: TileLayout, domain: tuple[int, ...], threads: int) -> NDArray[int64]:
    _check_threads(threads)
    thread, register = _owner_table(layout, domain)
    table = numpy.full((threads, reg_count(layout)), -1, dtype=numpy.int64)
    if layout.span(LANE) > min(threads, LANES) or layout.span(WARP) > max(threads // LANES, 1):
        raise CompilationError(f"{layout} needs {layout.span(WARP)} warps of {layout.span(LANE)} lanes, "
                               f"its scope has {threads} threads")
    for steps in product(*(range(extent) for extent, _, _ in layout.replicas)):
        away = sum(i * s[1] * (LANES if s[2] == WARP else 1) for i, s in zip(steps, layout.replicas))
        table[thread + away, register] = numpy.arange(len(thread))
    if (table < 0).any():
        raise CompilationError(f"{layout} leaves some of {threads} threads without elements")
    table.setflags(write=False)
    return table


def owner_table(layout: TileLayout, domain: Iterable[int]) -> tuple[NDArray[int64], NDArray[int64]]:
    """Who holds each element of the flat domain (its first replica): two read-only int arrays (thread, register)."""
    return _owner_table(layout, tuple(domain))


@lru_cache(maxsize=128)
def _owner_table(layout: TileLayout, domain: tuple[int, ...]) -> tuple[NDArray[int64], NDArray[int64]]:
    size = prod(domain)
    if size != layout.size() or any(along not in (REG, LANE, WARP) for along in layout.axes):
        raise CompilationError(f"{layout} is not a register layout of domain {domain}")
    held = layout.apply(numpy.arange(size), shape=(size,))
    thread = held.get(WARP, 0) * LANES + held.get(LANE, 0)
    threads, registers = (numpy.broadcast_to(numpy.asarray(values, dtype=numpy.int64), (size,))
                          for values in (thread, held.get(REG, 0)))
    for array in (threads, registers):
        array.setflags(write=False)
    return threads, registers
