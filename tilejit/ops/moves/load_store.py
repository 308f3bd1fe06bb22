"""``load`` and ``store``: move regions and points of memory to and from register tiles."""

from __future__ import annotations

from ...dtypes import bool_
from ...ir.builder import Builder, as_value, describe, memory_type, type_of
from ...ir.builtin import builtin
from ...ir.graph import Value
from ...types import Buffer, Points, Region, Scalar, Tile
from ..language.promotion import as_mask, coerce, collective
from ..memory import ordered, packed
from ..memory.access_ops import differs_by_thread, load_, store_
from ..memory.regions import refuse_box, whole_region
from ..tmem.ldst import tcgen05_ld, tcgen05_st

CACHE = (None, "ca", "cg", "cs", "evict_first", "evict_last", "no_allocate")


def _memory(g: Builder, x, what: str) -> Value:
    x = whole_region(g, x) if isinstance(type_of(x), Buffer) else x
    t = type_of(x)
    if not isinstance(t, (Region, Points)):
        made = "; a list of numbers is no array: pass np.array(...)" if isinstance(x, tuple) else ""
        raise g.error(f"{what} takes a region of memory, as in x[i, 0:BLOCK], not {describe(x)}{made}")
    refuse_box(g, what, x)
    if t.scope not in ("global", "shared", "local"):
        raise g.error(f"{what} reaches global and shared memory; {t.scope} memory is moved with tile.copy")
    if t.buffer.peer:
        how = "a peer's is written"
        if what == "load":
            how = ("a peer's is read element by element with tile.ptx.ld.shared_cluster.b32(buf.peer(rank)[i]), "
                   "or the peer sends it")
        raise g.error(f"{what} reaches the CTA's own shared memory; {how} with tile.copy_async(buf.peer(rank), ..., "
                      "mbar=bar) from shared memory, and with tile.store_async(buf.peer(rank), value, "
                      "mbar=bar) from registers")
    return x


def _plain_move(g: Builder, name: str, x: Value, *options) -> None:
    """CompilationError for points and options, which loads and stores of tensor memory do not support."""
    if isinstance(type_of(x), Points):
        raise g.error(f"{name} moves regions of tensor memory, and this index names single elements")
    if any(o is not None for o in options):
        raise g.error(f"{name} of tensor memory moves all of the region: it has no other=, mask=, cache= or sem=")


def _checked_cache(g: Builder, name: str, place: Value, cache, kinds=CACHE):
    if cache not in kinds:
        raise g.error(f"cache is one of {', '.join(str(c) for c in kinds)}, not {cache!r}")
    if cache is not None and (scope := memory_type(place).scope) != "global":
        g.warn(f"cache={cache!r} applies to global memory only, and this {name} of {scope} memory ignores "
               "it: leave it out")
    return cache


@builtin
def load(g: Builder, source, other=None, mask=None, cache=None, sem=None, scope=None):
    """Load a region or points as a register tile (a scalar for a single element).

    Elements out of bounds, or where `mask` (broadcast to the shape) is false, are `other` (0 by default). `cache` is
    "ca", "cg", "cs", "evict_first", "evict_last" or "no_allocate" (PTX ISA, "Cache Operators"). With `sem` ("relaxed"
    or "acquire"), the load may read global memory that other CTAs write at the same time. Each element is then read
    once, and an acquire precedes all later accesses of the execution scope. `scope` ("gpu" by default) is the memory
    scope (PTX ISA, "Memory Consistency Model"). A load from tensor memory is ``tcgen05_ld``.
    """
    if getattr(type_of(source), "scope", None) == "tmem":
        _plain_move(g, "load", source, other, mask, cache, sem, scope)
        return tcgen05_ld.function(g, source)
    source = _memory(g, source, "load")
    t = source.type
    if t.dtype.packed:
        dtype = t.dtype.element
        packed.check_packed_access(g, "load", dtype, mask)
        return packed.unpack(g, load.function(g, packed.as_bytes(g, source), packed.fill_byte(g, dtype, other), None,
                                              cache, sem, scope), dtype)
    if t.shape != ():
        collective(g, "load of a tile")
        g.require_uniform("this load", *g.definitions[source].args[1:])
    shaped = Tile(t.dtype, t.shape) if t.shape != () else Scalar(t.dtype)
    explicit = other is not None
    if isinstance(other, Value) and getattr(other.type, "dtype", t.dtype) == bool_ != t.dtype:
        raise g.error(f"`other` is the value of elements out of bounds, here {t.dtype}, and not {describe(other)}; "
                      "pass a mask by its name, as in tile.load(x[...], mask=...)")
    value = coerce(g, other if explicit else 0, Scalar(t.dtype) if not isinstance(type_of(other), Tile) else shaped)
    mask = as_mask(g, mask, t.shape)
    if (isinstance(shaped, Tile) and isinstance(value, Value)
        and isinstance(value.type, Scalar) and value.type.uniform < g.scope.uniformity):
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

    Elements out of bounds, or where `mask` is false, are not written. With `sem` ("relaxed" or "release"), the store
    may write global memory that other CTAs read (with `sem`) at the same time; a release follows all earlier accesses
    of the execution scope. `scope` ("gpu" by default) is the memory scope. `cache` is as for `load`, without "ca". A
    store to tensor memory is ``tcgen05_st``.
    """
    if getattr(type_of(target), "scope", None) == "tmem":
        _plain_move(g, "store", target, mask, cache, sem, scope)
        tcgen05_st.function(g, target, value)
        return
    target = _memory(g, target, "store")
    t = target.type
    if t.dtype.packed:
        dtype = t.dtype.element
        packed.check_packed_access(g, "store", dtype, mask)
        value = packed.pack(g, as_value(coerce(g, value, Tile(dtype, packed.shape_of(t.dtype, t.shape)))))
        store.function(g, packed.as_bytes(g, target), value, None, cache, sem, scope)
        return
    if t.shape != ():
        collective(g, "store of a tile")
        g.require_uniform("this store", *g.definitions[target].args[1:])
    if t.scope == "global" and t.buffer.arg is not None:
        g.state.setdefault("written", set()).add(t.buffer.arg)
    value = coerce(g, value, Tile(t.dtype, t.shape) if t.shape != () else Scalar(t.dtype))
    mask = as_mask(g, mask, t.shape)
    cache = _checked_cache(g, "store", target, cache, (None, "cg", "cs", "evict_first", "evict_last", "no_allocate"))
    scope = ordered.checked_order(g, "store", target, sem, scope, cache)
    if sem is not None:
        ordered.store(g, target, value, mask, cache, sem, scope)
        return
    g.call(store_, target, value, mask, cache=cache,
           each_thread=t.shape == () and differs_by_thread(g, target, value, mask))
