"""``tile.plan_copy``: selects and plans the lowering of a copy without a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from numbers import Integral
from typing import Any

from .config import checked_target
from .dispatch import Choice, choose, names
from .dtypes import count_units, dtype_of, int32
from .errors import CompilationError
from .frames import hide_own_frames
from .ir.builder import Facts
from .ir.graph import Const, Launch, number
from .layout import TileLayout
from .ops.memory.packed import in_memory
from .ops.memory.shared import check_in_memory
from .ops.moves.copy import copy_
from .ops.moves.copy_async import copy_async_
from .ops.moves.copy_async.options import HINTS, checked_options
from .ops.moves.copy_async.site import CopySite
from .ops.tmem.alloc import default_layout
from .ops.tmem.ldst import VARIANTS as MOVES, MoveSite
from .ops.tmem.ldst_plan import SHAPES
from .types import Buffer, Region, Tile

ADDRESS = 256  # the assumed alignment of an array's address, in bytes


@dataclass(frozen=True)
class BufferSpec:
    """A buffer and its region that is copied (`region`: a tuple of slices and indices; by default the whole buffer).

    `scope` is "global", "shared", "tmem", or "local" for a register tile. `layout` is the layout of a shared buffer
    (by default row-major) or of tensor memory. A global array has `strides` in elements (by default row-major), or a
    layout with one stride per dimension, whose offset is that of the first element. A region of an array may extend
    beyond its bounds.
    """

    shape: tuple[int, ...]
    dtype: Any
    scope: str
    layout: TileLayout | None = None
    strides: tuple[int, ...] | None = None
    region: tuple[slice | int, ...] | None = None

    def __post_init__(self) -> None:
        shape = self.shape if isinstance(self.shape, (tuple, list)) else (self.shape,)
        object.__setattr__(self, "shape", _whole_numbers("extents", shape))
        object.__setattr__(self, "dtype", dtype_of(self.dtype))
        if self.scope not in ("global", "shared", "tmem", "local"):
            raise CompilationError("a BufferSpec's scope is 'global', 'shared', 'tmem' or, for registers, 'local', "
                                   f"not {self.scope!r}")
        if self.strides is not None and (self.scope != "global" or self.layout is not None):
            raise CompilationError("strides are for a global buffer without a layout")
        if self.strides is not None:
            strides = self.strides if isinstance(self.strides, (tuple, list)) else (self.strides,)
            if len(strides) != len(self.shape):
                raise CompilationError(f"{len(self.shape)} extents and {len(strides)} strides do not go together")
            object.__setattr__(self, "strides", _whole_numbers("strides", strides))
        if self.layout is not None and not isinstance(self.layout, TileLayout):
            raise CompilationError(f"a layout is a tile.TileLayout, not {self.layout!r}")
        if any(n < 1 for n in self.shape):
            raise CompilationError(f"extents are at least 1, not {self.shape}")

    def buffer(self, arg: int) -> tuple[Buffer, int]:
        """The type of the buffer, as argument number `arg`, and the offset of its first element."""
        if self.scope != "global":
            layout = (self.layout
                      or (TileLayout.row_major(self.shape) if self.scope == "shared" else default_layout(self.shape)))
            if layout is None:
                raise CompilationError(f"tensor memory of shape {self.shape} needs a layout over "
                                       "axis.TLane and axis.TCol")
            if layout.size() != prod(self.shape):
                raise CompilationError(f"the layout {layout} has {layout.size()} elements, "
                                       f"the shape {self.shape} has {prod(self.shape)}")
            if self.scope == "shared":
                check_in_memory(layout)
            shape, layout = in_memory(self.dtype, self.shape, layout)
            return Buffer(self.dtype, shape, self.scope, layout), 0
        layout = self.layout or TileLayout.strided(self.shape, self.strides or _row_major(self.shape))
        shape, layout = in_memory(self.dtype, self.shape, layout)
        return Buffer(self.dtype, shape, "global", strides=_strides(layout, shape), arg=arg), layout.offset.get("m", 0)

    def box(self) -> tuple[tuple[Const, ...], tuple[int, ...], tuple[int, ...]]:
        """The region's starts, extents, and the dimensions that it keeps (those that are sliced
        rather than indexed)."""
        region = self.region if self.region is not None else (slice(None),) * len(self.shape)
        region = region if isinstance(region, tuple) else (region,)
        if len(region) != len(self.shape):
            raise CompilationError(f"a region has one slice for each of the {len(self.shape)} dimensions, "
                                   f"not {len(region)}")
        starts, extents, kept = [], [], []
        for d, (item, n) in enumerate(zip(region, self.shape)):
            if isinstance(item, slice):
                kept.append(d)
                if item.step not in (None, 1):
                    raise CompilationError("a region has step 1")
                start, stop = _whole_numbers("the ends of a slice",
                                             (item.start or 0, n if item.stop is None else item.stop))
            else:
                (start,) = _whole_numbers("indices", (item,))
                stop = start + 1
            if stop <= start:
                raise CompilationError(f"a slice's stop is above its start, not {start}:{stop}")
            if self.scope != "global" and not 0 <= start < stop <= n:
                raise CompilationError(f"a region of {self.scope} memory is inside of it, "
                                       f"and {start}:{stop} of dimension {d} leaves its {n} elements")
            extent = stop - start
            if d == len(self.shape) - 1:
                first, units = count_units(self.dtype, start), count_units(self.dtype, extent)
                if first is None or units is None:
                    raise CompilationError(f"a region of {self.dtype} covers multiples of {self.dtype.packing[0]} "
                                           f"elements, and {region[-1]} does not")
                start, extent = first, units
            starts.append(Const(start, int32))
            extents.append(extent)
        return tuple(starts), tuple(extents), tuple(kept)


BufferSpec.__init__ = hide_own_frames(BufferSpec.__init__)  # type: ignore[method-assign]


def _whole_numbers(what: str, values: Iterable[Any]) -> tuple[int, ...]:
    if any(isinstance(n, bool) or not isinstance(n, Integral) for n in values):
        raise CompilationError(f"{what} are whole numbers, not {tuple(values)}")
    return tuple(int(n) for n in values)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1:]) for d in range(len(shape)))


def _strides(layout: TileLayout, shape: Sequence[int]) -> tuple[int, ...]:
    """The stride of each dimension of an array's layout. CompilationError if a dimension does not have one stride."""
    grouped, at = layout.canonicalize().group(shape)
    strides = []
    for d in range(len(shape)):
        shards = TileLayout(grouped.shards[at[d]:at[d + 1]]).canonicalize().shards
        if len(shards) > 1 or layout.swizzle is not None or layout.replicas:
            raise CompilationError(f"an array has one stride for each dimension, and {layout} does not")
        strides.append(shards[0][1] if shards else 0)
    return tuple(strides)


def _region_shape(region: Region) -> tuple[int, ...]:
    return tuple(n for n in region.extents if n != 1)


def _match_extents(to: tuple[Any, ...], of: tuple[Any, ...]) -> tuple[Any, ...]:
    """Both sides of a copy with equal extents: the shared region is reshaped to those of the array's, as by
    ``buf.reshape`` in a kernel.

    CompilationError unless the two have the same elements in the same order.
    """
    at = 0 if to[0].scope == "shared" else 1
    region, starts = (to, of)[at]
    refusal = CompilationError("a copy's sides have equal extents (other than 1), "
                               f"and {list(of[0].shape)} is not {list(to[0].shape)}")
    wanted, dims = (list(_region_shape((of, to)[at][0])),
                    list(zip(region.buffer.shape, (s.value for s in starts), region.extents)))
    made: list[tuple[int, int, int]] = []  # (size, start, extent) of the reshaped dimensions
    while dims:
        n, start, extent = dims.pop(0)
        if extent == 1:
            made.append((n, start, 1))
            continue
        parts = [wanted.pop(0)] if wanted else []
        while wanted and prod(parts) < extent:
            parts.append(wanted.pop(0))
        while dims and extent < prod(parts):  # inner dimensions that are taken in full join the outer one
            m, begin, inner = dims.pop(0)
            if begin != 0 or inner != m:
                raise refusal
            n, start, extent = n * m, start * m, extent * m
        block = prod(parts[1:])
        if prod(parts) != extent or n % block or start % block:
            raise refusal
        made += [(n // block, start // block, parts[0]), *((m, 0, m) for m in parts[1:])]
    if wanted:
        raise refusal
    shape, begin, extents = zip(*made)
    buffer = Buffer(region.dtype, shape, region.scope, region.buffer.layout)
    matched = Region(buffer, extents, tuple(range(len(shape)))), tuple(Const(b, int32) for b in begin)
    return (matched, of) if at == 0 else (to, matched)


class _Numbers:
    """Stands in for the context of a pass (facts, divisors, bounds), where all numbers are constants."""

    def __init__(self, offsets: dict[int, int]):
        self.facts = Facts(lambda fact: self._answer(fact, offsets))

    @staticmethod
    def _answer(fact: tuple[Any, ...], offsets: dict[int, int]) -> bool:
        kind, arg, *rest = fact
        if kind == "aligned":
            return bool(ADDRESS % rest[0] == 0 and offsets.get(arg, 0) % rest[0] == 0)
        if kind == "no_overlap":
            return True
        raise ValueError(f"no number answers {fact}")

    @staticmethod
    def divisor(operand: Const) -> int:
        return abs(number(operand)) or 1 << 62

    def asked_divisor(self, operand: Const, wanted: int) -> int:
        return self.divisor(operand)

    @staticmethod
    def bounds(operand: Const) -> tuple[int, int]:
        return number(operand), number(operand)


OPS = {"copy": copy_, "copy_async": copy_async_}
THREADS = {"thread": 1, "warp": 32, "warpgroup": 128}


@hide_own_frames
def plan_copy(dst: BufferSpec, src: BufferSpec, *, op: str = "copy_async", scope: str = "thread", threads: int = 1,
              target: str = "sm_90a",
              **options: Any) -> Choice:
    """How a copy from `src` to `dst` would be lowered: `.variant`, its `.plan`, and `.declined`,
    the reasons against other variants.

    `scope` is the execution scope ("thread", "warp", "warpgroup" or "cta") and `threads` its number of threads
    (needed for a CTA and for several warpgroups). `options` are those of copy_async; `mbar` may be omitted or True,
    and `peer` (a rank) says that `dst` is ``buf.peer(rank)``. ``op="copy"`` has only the option `variant`. Between
    registers ("local") and tensor memory, the options are `shape` and `pack` of ``tcgen05_ld`` and ``tcgen05_st``.
    DispatchError with all reasons if no variant accepts the copy.
    """
    _check_request(op, dst, src, scope, threads)
    checked_target(target)
    if op == "copy" and set(options) - {"variant"}:
        raise CompilationError(f"copy has no option {min(set(options) - {'variant'})!r}: only copy_async has it")
    wide = threads if scope == "cta" or (scope == "warpgroup" and threads > 128) else THREADS[scope]
    if "local" in (dst.scope, src.scope):
        return _plan_move(op, dst, src, scope, wide, target, options)
    sides, offsets = [], {}
    for arg, spec in enumerate((dst, src)):
        buffer, offset = spec.buffer(arg)
        starts, extents, kept = spec.box()
        sides.append((Region(buffer, extents, kept), starts))
        offsets[arg] = offset * spec.dtype.nbytes
    (to, to_starts), (of, of_starts) = sides
    if to.dtype != of.dtype and to.dtype.padded != of.dtype.name:
        raise CompilationError(f"a copy keeps the dtype, and {of.dtype} is not {to.dtype}")
    if _region_shape(to) != _region_shape(of) and to.dtype == of.dtype:
        (to, to_starts), (of, of_starts) = _match_extents((to, to_starts), (of, of_starts))
    mbar = options.pop("mbar", None)
    if options.pop("peer", None) is not None:
        if to.scope != "shared":
            raise CompilationError(f"a peer's memory is shared memory, and the destination is {to.scope} memory")
        to = replace(to, buffer=replace(to.buffer, peer=True))
    _check_multicast(options.get("multicast"), to)
    primitive = OPS[op]
    known = names(primitive.variants)
    align = [1024 if r.buffer.layout is not None and r.buffer.layout.swizzle is not None else 128 for r in (to, of)]
    array = 1 if of.scope == "global" else 0
    site = CopySite(to, of, to_starts, of_starts, scope, wide, None, mbar, target, checked_options(options, known),
                    _Numbers(offsets), planning=True, base_offset=offsets[array] // of.dtype.nbytes, dst_align=align[0],
                    src_align=align[1])
    return choose(op, primitive.variants, site, only=site.options.get("variant"))


def _check_request(op: str, dst: BufferSpec, src: BufferSpec, scope: str, threads: int) -> None:
    """CompilationError for arguments of `plan_copy` that name no copy."""
    if op not in OPS:
        raise CompilationError(f"plan_copy knows {', '.join(OPS)}, not {op!r}")
    if scope not in (*THREADS, "cta"):
        raise CompilationError(f"scope is thread, warp, warpgroup or cta, not {scope!r}")
    if isinstance(threads, bool) or not isinstance(threads, Integral) or not 1 <= int(threads) <= 1024:
        raise CompilationError(f"threads is a number from 1 to 1024, not {threads!r}")
    for what, spec in (("dst", dst), ("src", src)):
        if not isinstance(spec, BufferSpec):
            raise CompilationError(f"{what} is a tile.BufferSpec, not {spec!r}")


def _check_multicast(multicast: Any, to: Region) -> None:
    """CompilationError for a `multicast` that no copy to a region has."""
    if not isinstance(multicast, (str, Integral, type(None))):
        raise CompilationError(f"multicast is a mask of the cluster's ranks, 1 to 65535, not {multicast!r}")
    if isinstance(multicast, str) and to.scope != "tmem":
        raise CompilationError(f"multicast={multicast!r} is for copies to tensor memory; "
                               "for the CTAs of a cluster give a mask of their ranks")


def _plan_move(op: str, dst: BufferSpec, src: BufferSpec, scope: str, threads: int, target: str,
               options: dict[str, Any]) -> Choice:
    """`plan_copy` between registers and tensor memory. The options are `shape` and `pack` (and `variant`), besides
    hints, which no move uses; the plan has the layout of the registers."""
    tensor, registers = (src, dst) if dst.scope == "local" else (dst, src)
    if tensor.scope != "tmem":
        raise CompilationError(f"registers are planned with tensor memory, and the other side is {tensor.scope} memory")
    starts, extents, kept = tensor.box()
    region = Region(tensor.buffer(0)[0], extents, kept)
    if _region_shape(region) != tuple(n for n in registers.shape if n != 1) or tensor.dtype != registers.dtype:
        raise CompilationError(f"a copy keeps dtype and extents, and {registers.dtype}{list(registers.shape)} is not "
                               f"{tensor.dtype}{list(region.shape)}")
    only = options.pop("variant", None)
    shape, pack = options.pop("shape", None), options.pop("pack", None)
    checked_options({hint: options.pop(hint) for hint in HINTS if hint in options}, ())
    if options or shape not in (None, *SHAPES):
        raise CompilationError(f"a move of tensor memory has the options shape ({', '.join(SHAPES)}) and pack, "
                               f"not {options or shape!r}")
    site = MoveSite(region, starts, Tile(tensor.dtype, region.shape), scope, threads, 0,
                    Launch(-(-threads // 32)).registers, target, shape, pack, dst.scope == "local", _Numbers({}))
    return choose(op, MOVES, site, only=only)


__all__ = ["BufferSpec", "plan_copy"]
