"""Regions of buffers, and the loads and stores that move them to and from register tiles."""

from __future__ import annotations

import numpy as np

from ..dtypes import held, int32
from ..ir.builder import Builder, describe, type_of
from ..ir.builtin import builtin
from ..ir.graph import Const, Operand, Value
from ..ir.op import op
from ..types import Buffer, Points, Region, Scalar, Sym, Tile, Uniformity
from . import creation, packed, shape as shapes
from .language import as_index, as_mask, binary, broadcast_shape, coerce, spread
from .reduce import collective
from .sizes import elements_value


# -- regions -----------------------------------------------------------------------------------------------------------

@op("pure", attrs=("extents", "kept"))
def region(buffer, *starts, extents, kept):
    """A box of `buffer`: one start per dimension, constant extents; dimensions not in `kept` are dropped."""


@region.infer
def _(g, buffer, *starts, extents, kept):
    return Region(type_of(buffer), extents, kept)


@region.simulate
def _(m, call, buffer, *starts):
    return m.make_region(call.result.type, buffer, starts)


@region.emit
def _(e, call, buffer, *starts):
    return e.make_region(call.result.type, buffer, starts)


@op("pure", attrs=("shape",))
def points(buffer, *indices, shape):
    """Elements of `buffer` named one by one: an index per dimension, of the shape of the result or a scalar."""


@points.infer
def _(g, buffer, *indices, shape):
    return Points(type_of(buffer), shape)


@points.simulate
def _(m, call, buffer, *indices):
    return m.make_points(call.result.type, buffer, indices)


@points.emit
def _(e, call, buffer, *indices):
    return e.make_points(call.result.type, buffer, indices)


def whole(g: Builder, x: Value) -> Value:
    """A buffer as the region of all of it; a region stays."""
    if isinstance(x.type, Region):
        return x
    if x.type.narrowed is not None:
        return index(g, x, (...,))
    shape = x.type.shape
    if any(isinstance(n, Sym) for n in shape):
        raise g.error(f"the extents of {describe(x)} are known at launch only: name a box, as in {x.name}[{', '.join('0:BLOCK' for _ in shape)}]")
    zero = Const(0, int32)
    return g.call(region, x, *(zero for _ in shape), extents=tuple(shape), kept=tuple(range(len(shape))))


def reached(g: Builder, what: str, x: Value) -> Value:
    """`x`, unless it is a box of a tensor map, which only copy_async moves."""
    if isinstance(x.type, Region) and x.type.buffer.map is not None:
        raise g.error(f"{what} does not go by a tensor map: move its boxes with tile.copy_async, or name the array itself")
    return x


def index(g: Builder, x: Value, items: tuple) -> Value:
    """``x[...]`` of a buffer or region: slices and integers give a region, integer tiles name points."""
    base, starts, extents, dims = _unpack(g, reached(g, "a further index", x))
    items = _expanded(g, x, items, len(dims))
    if any(isinstance(type_of(i), Tile) for i in items):
        return _points(g, x, base, starts, extents, dims, items)
    starts, kept, box = list(starts), [], list(extents)
    for item, d in zip(items, dims):
        start, extent, drop = _part(g, x, item, extents[d], base, d)
        starts[d] = _shifted(g, starts[d], start)
        box[d] = extent
        if not drop:
            kept.append(d)
    for d, extent in enumerate(box):
        if not isinstance(extent, int):  # a dimension that an earlier slice dropped always has extent 1
            box[d] = 1
    args = [g.operand(s, int32) for s in starts]
    for a in args:
        if isinstance(type_of(a), Scalar) and not type_of(a).dtype.is_int:
            raise g.error(f"an index is an integer, not {describe(a)}")
    return g.call(region, base, *args, extents=tuple(box), kept=tuple(kept))


def _unpack(g: Builder, x: Value) -> tuple[Value, tuple, tuple, tuple[int, ...]]:
    """The buffer behind `x`, one start and one extent (int or Sym) per dimension of it, and the dimensions kept."""
    if isinstance(x.type, Region):
        call = g.definitions[x]
        return call.args[0], call.args[1:], x.type.extents, x.type.kept
    if x.type.narrowed is not None:
        from .window import parts
        origins, extents, *_ = parts(g, x)
        return x, origins, extents, tuple(range(len(origins)))
    rank = len(x.type.shape)
    return x, (0,) * rank, x.type.shape, tuple(range(rank))


def _expanded(g: Builder, x: Value, items: tuple, rank: int) -> tuple:
    if any(i is None for i in items):
        raise g.error("a buffer has no new dimensions: index the loaded tile with None instead")
    dots = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(items) - len(dots) > rank:
        raise g.error(f"{len(items) - len(dots)} indices for {describe(x)}, which has {rank} dimension{'s' if rank != 1 else ''}")
    at = dots[0] if dots else len(items)
    return items[:at] + (slice(None),) * (rank - len(items) + len(dots)) + items[at + 1:]


def _part(g: Builder, x: Value, item, size: int | Sym, base: Value, d: int) -> tuple:
    """The index of dimension `d` of the buffer `base` as (start, extent, dropped); in bytes where elements share them."""
    dtype = base.type.dtype
    if dtype.packed and d == len(base.type.shape) - 1:
        start, extent, dropped = _elements_part(g, x, item, held(dtype, size) if isinstance(size, int) else size, base, d)
        return *packed.bytes_along(g, item, start, extent, dropped, dtype), dropped
    return _elements_part(g, x, item, size, base, d)


def _elements_part(g: Builder, x: Value, item, size: int | Sym, base: Value, d: int) -> tuple:
    if not isinstance(item, slice):
        t = type_of(item)
        if not isinstance(t, Scalar) or not t.dtype.is_int:
            raise g.error(f"a buffer is indexed with integers, slices and integer tiles, not {describe(item)}")
        return as_index(g, _from_end(g, item, size, base, d), base.type.shape[d]), 1, True
    if item.step not in (None, 1):
        raise g.error("a region of memory has step 1; index with an integer tile, as in x[tile.arange(N) * 2]")
    for bound in (item.start, item.stop):
        t = type_of(bound)
        if bound is not None and not (isinstance(t, Scalar) and t.dtype.is_int):
            hint = "; // divides integers" if isinstance(t, Scalar) and t.dtype.is_float else ""
            raise g.error(f"the bounds of a slice are integers, not {describe(bound)}{hint}")
    start = 0 if item.start is None else _from_end(g, item.start, size, base, d)
    if item.stop is None and isinstance(item.start, int) and item.start < 0:
        return as_index(g, start, base.type.shape[d]), -item.start, False
    stop = size if item.stop is None else _from_end(g, item.stop, size, base, d)
    if isinstance(stop, Sym) or item.stop is None and not isinstance(stop, int):
        rank = len(base.type.shape)
        each = f": {x.name} has {rank} dimensions, and this is number {d}" if rank > 1 else ""
        raise g.error(f"the extent of this slice is known at launch only; write a constant one, as in {x.name}[0:BLOCK, ...]{each}")
    extent = g.difference(stop, start)
    if extent is None:
        raise g.error("the extent of a slice (stop - start) must be a constant: write it as x[i * BLOCK:(i + 1) * BLOCK] or x[start:start + BLOCK]"
                      + g.declared_constant(item.start, item.stop))
    if extent < 0:
        raise g.error(f"the slice's stop is {-extent} below its start")
    return as_index(g, start, base.type.shape[d]), extent, False


def _from_end(g: Builder, bound, size: int | Sym, base: Value, d: int):
    """A literal negative constant counts from the end."""
    if isinstance(bound, int) and bound < 0:
        return size + bound if isinstance(size, int) else binary(g, "+", elements_value(g, base, size, d) if isinstance(size, Sym) else size, bound)
    return bound


def _shifted(g: Builder, start, by):
    """``start + by``, without an op where one is 0."""
    start = start.value if isinstance(start, Const) else start
    if isinstance(by, int) and by == 0:
        return start
    if isinstance(start, int) and (start == 0 or isinstance(by, int)):
        return by if start == 0 else start + by
    return binary(g, "+", start, by)


def _points(g: Builder, x, base, starts, extents, dims, items) -> Value:
    """Advanced indexing: index tiles broadcast together and stand where the first of them stood; slices follow NumPy."""
    tiles = [i for i in items if isinstance(type_of(i), Tile)]
    for t in tiles:
        if not t.type.dtype.is_int:
            raise g.error(f"an index tile holds integers, not {t.type.dtype}")
    joint = broadcast_shape(g, *(t.type for t in tiles))
    first = next(n for n, i in enumerate(items) if isinstance(type_of(i), Tile))
    parts = [None if isinstance(type_of(i), Tile) else _part(g, x, i, extents[d], base, d) for i, d in zip(items, dims)]
    if base.type.dtype.packed and any(p is None and d == len(base.type.shape) - 1 for p, d in zip(parts, dims)):
        packed.refused(g, "indexing the last dimension with a tile", base.type.dtype)
    before = [n for n, p in enumerate(parts) if p and not p[2] and n < first]
    after = [n for n, p in enumerate(parts) if p and not p[2] and n > first]
    shape = tuple(parts[n][1] for n in before) + joint + tuple(parts[n][1] for n in after)
    place = {n: k for k, n in enumerate(before)} | {n: len(before) + len(joint) + k for k, n in enumerate(after)}
    indices = [g.operand(s, int32) for s in starts]
    for n, (item, d) in enumerate(zip(items, dims)):
        if parts[n] is None:
            tile = spread(g, as_index(g, item, base.type.shape[d]), joint)
            value = g.call(shapes.reshape_, tile, shape=(1,) * len(before) + joint + (1,) * len(after)) if before or after else tile
        elif parts[n][2]:
            value = parts[n][0]
        else:
            start, extent, _ = parts[n]
            ramp = g.call(creation.iota, start=0, stop=extent, axis=0)
            ramp = g.call(shapes.reshape_, ramp, shape=tuple(extent if k == place[n] else 1 for k in range(len(shape))))
            value = binary(g, "+", ramp, start) if not (isinstance(start, int) and start == 0) else ramp
        value = _shifted(g, starts[d], value)
        indices[d] = spread(g, value, shape) if isinstance(type_of(value), Tile) else g.operand(value, int32)
    return g.call(points, base, *indices, shape=shape)


# -- load and store ------------------------------------------------------------------------------------------------------

@op("reads", attrs=("cache",))
def load_(source, other, mask, cache):
    """The elements of a region or of points; `other` where they are out of bounds or `mask` is false."""


@load_.infer
def _(g, source, other, mask, cache):
    t = source.type
    if t.shape == ():
        return Scalar(t.dtype, _uniformity(g, source, other, mask))
    return Tile(t.dtype, t.shape)


def _uniformity(g: Builder, source: Value, other: Operand, mask: Operand) -> Uniformity:
    """A loaded scalar is as uniform as its indices and what stands for it. Beyond one CTA nothing orders the loads, so it is at
    most that."""
    operands = [a for a in (*g.definitions[source].args[1:], other, mask) if a is not None]
    return min([type_of(a).uniform for a in operands] + [Uniformity.CTA])


@op("writes", attrs=("cache", "each_thread"))
def store_(target, value, mask, cache, each_thread):
    """Write `value` to a region or to points; elements out of bounds, or where `mask` is false, are dropped.

    A scalar is written by one thread of the scope, or by `each_thread` where the operands differ between threads.
    """


@store_.infer
def _(g, target, value, mask, cache, each_thread):
    return None


def differs_by_thread(g: Builder, place: Value, *operands: Operand) -> bool:
    """Whether each thread acts for itself: scalars, or the place they go to, differ between the threads of the scope, or
    only some of the threads are here."""
    if g.scope.partial is not None:
        return True
    indices = g.definitions[place].args[1:]
    types = [type_of(a) for a in (*indices, *operands) if a is not None]
    return any(isinstance(t, Scalar) and t.uniform < g.scope.uniformity for t in types)


CACHE = (None, "ca", "cg", "cs", "evict_first", "evict_last", "no_allocate")


def _memory(g: Builder, x, what: str) -> Value:
    x = whole(g, x) if isinstance(type_of(x), Buffer) else x
    t = type_of(x)
    if not isinstance(t, (Region, Points)):
        raise g.error(f"{what} takes a region of memory, as in x[i, 0:BLOCK], not {describe(x)}")
    reached(g, what, x)
    if t.scope not in ("global", "shared", "local"):
        raise g.error(f"{what} reaches global and shared memory; {t.scope} memory is moved with tile.copy")
    if t.buffer.peer:
        how = ("a peer's is read element by element with tile.ptx.ld.shared_cluster.b32(buf.peer(rank)[i]), or the peer sends it"
               if what == "load" else "a peer's is written")
        raise g.error(f"{what} reaches the CTA's own shared memory; {how} with tile.copy_async(buf.peer(rank), ..., mbar=bar) "
                      "from shared memory, and with tile.store_async(buf.peer(rank), value, mbar=bar) from registers")
    return x


def _plain_move(g: Builder, name: str, x: Value, *options) -> None:
    """CompilationError for what a move of tensor memory does not have."""
    if isinstance(type_of(x), Points):
        raise g.error(f"{name} moves regions of tensor memory, and this names elements one by one")
    if any(o is not None for o in options):
        raise g.error(f"{name} of tensor memory moves all of the region: it has no other=, mask=, cache= or sem=")


def _checked_cache(g: Builder, name: str, place: Value, cache, kinds=CACHE):
    if cache not in kinds:
        raise g.error(f"cache is one of {', '.join(str(c) for c in kinds)}, not {cache!r}")
    if cache is not None and place.type.scope != "global":
        g.warn(f"cache={cache!r} is of accesses to global memory, and this {name} of {place.type.scope} memory goes without: leave it out")
    return cache


@builtin
def load(g: Builder, source, other=None, mask=None, cache=None, sem=None, scope=None):
    """The elements of a region or of points as a register tile (a scalar for a single element).

    Elements out of bounds, or where `mask` (broadcast to the shape) is false, are `other` (0 by default).
    `cache`: "ca", "cg", "cs", "evict_first", "evict_last", "no_allocate" (PTX ISA, "Cache Operators"). `sem`, "relaxed" or
    "acquire", reads global memory that other CTAs may be writing: each element once, an acquire before all later accesses of
    the scope; `scope` ("gpu" by default) says with whom (PTX ISA, "Memory Consistency Model"). From tensor memory it is
    ``tcgen05_ld``.
    """
    from . import ordered
    if getattr(type_of(source), "scope", None) == "tmem":
        from .tmem.ldst import tcgen05_ld
        _plain_move(g, "load", source, other, mask, cache, sem, scope)
        return tcgen05_ld.function(g, source)
    source = _memory(g, source, "load")
    t = source.type
    if t.dtype.packed:
        packed.checked(g, "load", t.dtype, mask)
        return packed.unpacked(g, load.function(g, packed.as_bytes(g, source), packed.fill_byte(g, t.dtype, other), None, cache, sem, scope), t.dtype)
    if t.shape != ():
        collective(g, "load of a tile")
        g.shared("this load", *g.definitions[source].args[1:])
    shaped = Tile(t.dtype, t.shape) if t.shape != () else Scalar(t.dtype)
    explicit = other is not None
    value = coerce(g, other if explicit else 0, Scalar(t.dtype) if not isinstance(type_of(other), Tile) else shaped)
    mask = as_mask(g, mask, t.shape)
    if isinstance(shaped, Tile) and isinstance(type_of(value), Scalar) and isinstance(value, Value) and type_of(value).uniform < g.scope.uniformity:
        raise g.error("`other` is a number, a uniform scalar or a tile")
    cache = _checked_cache(g, "load", source, cache)
    scope = ordered.checked_order(g, "load", source, sem, scope, cache)
    if sem is None:
        result = g.call(load_, source, value, mask, cache=cache)
    else:
        result = ordered.load(g, source, value, mask, cache, sem, scope)
    if not explicit and isinstance(shaped, Tile):
        g.state.setdefault("implicit_other", set()).add(result)
    return result


@builtin
def store(g: Builder, target, value, mask=None, cache=None, sem=None, scope=None):
    """Write a tile or scalar to a region or to points, cast to its dtype and broadcast to its shape.

    Elements out of bounds, or where `mask` is false, are dropped. `sem`, "relaxed" or "release", writes global memory that
    other CTAs may be reading with `sem`, a release after all earlier accesses of the scope; `scope` ("gpu" by default) says
    for whom. To tensor memory it is ``tcgen05_st``.
    """
    from . import ordered
    if getattr(type_of(target), "scope", None) == "tmem":
        from .tmem.ldst import tcgen05_st
        _plain_move(g, "store", target, mask, cache, sem, scope)
        tcgen05_st.function(g, target, value)
        return
    target = _memory(g, target, "store")
    t = target.type
    if t.dtype.packed:
        packed.checked(g, "store", t.dtype, mask)
        value = packed.packed(g, coerce(g, value, Tile(t.dtype, packed.shape_of(t.dtype, t.shape))))
        return store.function(g, packed.as_bytes(g, target), value, None, cache, sem, scope)
    if t.shape != ():
        collective(g, "store of a tile")
        g.shared("this store", *g.definitions[target].args[1:])
    if t.scope == "global" and t.buffer.arg is not None:
        g.state.setdefault("written", set()).add(t.buffer.arg)
    value = coerce(g, value, Tile(t.dtype, t.shape) if t.shape != () else Scalar(t.dtype))
    mask = as_mask(g, mask, t.shape)
    cache = _checked_cache(g, "store", target, cache, (None, "cg", "cs", "evict_first", "evict_last", "no_allocate"))
    scope = ordered.checked_order(g, "store", target, sem, scope, cache)
    if sem is not None:
        ordered.store(g, target, value, mask, cache, sem, scope)
        return
    g.call(store_, target, value, mask, cache=cache, each_thread=t.shape == () and differs_by_thread(g, target, value, mask))


# -- simulation: by coordinates, with the thread that owns each element -----------------------------------------------

def coordinates(m, source) -> tuple[np.ndarray, ...]:
    """One array of coordinates per dimension of the buffer behind a simulated region or points."""
    t = source.type
    if isinstance(t, Points):
        rank = max(len(t.shape), 1)
        return tuple(i if i.ndim == rank + 1 else i.reshape(*i.shape[:1], *(1,) * rank) if t.shape else i for i in source.indices)
    arrays = []
    for d, start in enumerate(source.starts):
        if not t.kept:
            arrays.append(start)
            continue
        axis = t.kept.index(d) if d in t.kept else None
        ramp = np.arange(t.extents[d], dtype=np.int64) if axis is not None else np.zeros(1, np.int64)
        ramp = ramp.reshape(1, *(t.extents[d] if k == axis else 1 for k in range(len(t.kept))))
        arrays.append(start.astype(np.int64)[:, :1].reshape(-1, *(1,) * len(t.kept)) + ramp)
    return tuple(arrays)


@load_.simulate
def _(m, call, source, other, mask):
    t = call.results[0].type
    owner = m.owners(t) if isinstance(t, Tile) else None
    if isinstance(t, Tile) and other.ndim == 2 and len(t.shape) != 1:
        other = other.reshape(-1, *(1,) * len(t.shape))
    return m.read(source.buffer, coordinates(m, source), mask=mask, other=other, owner=owner, region=source)


@store_.simulate
def _(m, call, target, value, mask):
    t = type_of(call.args[1])
    owner = m.owners(t) if isinstance(t, Tile) else None
    m.write(target.buffer, coordinates(m, target), value, mask=mask, owner=owner, region=target)
