"""Loads and stores with memory ordering: ``ld`` and ``st`` with .relaxed, .acquire or .release.

CTAs synchronise by them, in a memory scope that the call names.

A scalar is read or written once, by the first thread of the execution scope, and each element of a tile by one
thread. Other threads that hold the element are given the value that this thread read, so that all agree. PTX ISA,
"ld", "st" and "Memory Consistency Model".
"""

from __future__ import annotations

from ...dispatch import Variant
from ...ir.builder import Builder, extents_of, memory_type, type_of
from ...ir.graph import Operand, Value
from ...ir.op import op
from ...ir.op_traits import Reads, Registers, Traits, Writes
from ...types import Scalar, Tile, Uniformity
from . import access
from .access import AccessSite
from .access_ops import differs_by_thread
from .atomics import SCOPES, AtomicPlan, replicated_scratch, used_values
from .regions import coordinates

LOADS, STORES = ("relaxed", "acquire"), ("relaxed", "release")


def checked_order(g: Builder, what: str, place: Value, sem, scope, cache) -> str | None:
    """The memory scope of an ordered access, checked with its other options; None for an ordinary access."""
    if sem is None:
        if scope is not None:
            raise g.error(f"scope= belongs to sem=: an ordinary {what} orders nothing")
        return None
    words, scope = LOADS if what == "load" else STORES, "gpu" if scope is None else scope
    if sem not in words:
        raise g.error(f"sem of a {what} is one of {', '.join(words)}, not {sem!r}")
    if scope not in SCOPES:
        raise g.error(f"scope is one of {', '.join(SCOPES)}, not {scope!r}")
    held = memory_type(place).scope
    if held != "global":
        raise g.error(f"sem= orders accesses to global memory; {held} memory is ordered by tile.sync() "
                      "and tile.mbarrier()")
    if cache in ("ca", "cg", "cs"):
        raise g.error(f"cache={cache!r} is an operator of ordinary accesses (PTX ISA, \"Cache Operators\"); "
                      "with sem= there are the eviction priorities")
    if scope == "cluster":
        g.need(f"a {what} with scope=\"cluster\"", 90)
    return scope


# -- operations --------------------------------------------------------------------------------------------------------

@op("reads", attrs=("cache", "sem", "scope", "each_thread"), traits=Traits(access=True, atomic=True, shown="load"))
def ordered_load(source: Reads, other: Registers, mask: Registers, cache, sem, scope, each_thread):
    """Load a region or points, reading each element once. Elements are `other` where they are out of bounds
    or `mask` is false."""


@ordered_load.infer
def _(g, source, other, mask, cache, sem, scope, each_thread):
    t = source.type
    if t.shape != ():
        return Tile(t.dtype, t.shape)
    return Scalar(t.dtype, Uniformity.THREAD if each_thread else min(g.scope.uniformity, Uniformity.CTA))


@op("writes", attrs=("cache", "sem", "scope", "each_thread"), traits=Traits(access=True, atomic=True, shown="store"))
def ordered_store(target: Writes, value: Registers, mask: Registers, cache, sem, scope, each_thread):
    """Write `value` to a region or to points. Elements out of bounds, or where `mask` is false, are not written."""


@ordered_store.infer
def _(g, target, value, mask, cache, sem, scope, each_thread):
    return None


def load(g: Builder, source: Value, other: Operand, mask: Operand, cache, sem: str, scope: str) -> Value:
    each = extents_of(source) == () and differs_by_thread(g, source, other, mask)
    return g.call(ordered_load, source, other, mask, cache=cache, sem=sem, scope=scope, each_thread=each, name="load")


def store(g: Builder, target: Value, value: Operand, mask: Operand, cache, sem: str, scope: str) -> None:
    each = extents_of(target) == () and differs_by_thread(g, target, value, mask)
    g.call(ordered_store, target, value, mask, cache=cache, sem=sem, scope=scope, each_thread=each)


# -- the plan ----------------------------------------------------------------------------------------------------------

def _plan_load(s: AccessSite) -> AtomicPlan:
    return AtomicPlan(access.plan(s), s.call.result in used_values(s.g))


def _wider_load(s: AccessSite, plan: AtomicPlan) -> tuple[tuple[str, str], ...]:
    return access.explain_width(s, plan.access)


ordered_load.site(AccessSite)
ordered_store.site(AccessSite)
ordered_load.variants = (Variant("ordered_load", needs=(), plan=_plan_load, wider=_wider_load, doc=__doc__),)
ordered_store.variants = (Variant("ordered_store", needs=(), plan=access.plan, wider=access.explain_width,
                                  doc=__doc__),)
ordered_load.rules.scratch = replicated_scratch


# -- simulation --------------------------------------------------------------------------------------------------------

def _operands(m, place, t: Tile | Scalar, each_thread: bool, *operands):
    """(coordinates, owners, operands) of the elements to access. A scalar is one element, or one for each thread."""
    coords = coordinates(m, place)
    if isinstance(t, Tile):
        rank = len(t.shape)
        return (coords, m.owners(t),
                [x.reshape(-1, *(1,) * rank) if x is not None and x.ndim == 2 != rank + 1 else x for x in operands])
    if each_thread:
        return tuple(c + 0 * m.thread_ids()[:, :m.threads] for c in coords), None, operands
    return tuple(c[:, :1] for c in coords), None, [None if x is None else x[:, :1] for x in operands]


@ordered_load.simulate
def _(m, call, source, other, mask):
    attrs = call.attrs
    coords, owner, (other, mask) = _operands(m, source, call.result.type, attrs["each_thread"], other, mask)
    return m.ordered.read(source.buffer, coords, other, mask, owner, attrs["sem"], attrs["scope"])


@ordered_store.simulate
def _(m, call, target, value, mask):
    attrs = call.attrs
    coords, owner, (value, mask) = _operands(m, target, type_of(call.args[1]), attrs["each_thread"], value, mask)
    m.ordered.write(target.buffer, coords, value, mask, owner, attrs["sem"], attrs["scope"])
