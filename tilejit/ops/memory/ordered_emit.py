"""Emits ordered loads and stores.

Barriers extend one thread's acquire or release to its whole scope.
"""

from __future__ import annotations

from ...ir.builder import type_of
from ...types import Scalar
from .access import Access
from .atomics_emit import once_for_scope, through_scratch, to_copies
from .ordered import ordered_load, ordered_store


@ordered_load.emit
def _(e, call, source, other, mask):
    plan, t, attrs = call.choice.plan, call.result.type, call.attrs
    order = f".{attrs['sem']}.{attrs['scope']}"

    def read(access, reg, fill, predicate):
        return e.vector_load("global", *access.address(reg), source.type.dtype, fill, predicate, attrs["cache"], order)

    if isinstance(t, Scalar):
        access = Access(e, source, None, plan.access)
        return once_for_scope(e, call, access.predicate(0, mask), lambda p: read(access, 0, [other], p)[0])
    access, result = Access(e, source, t, plan.access), [None] * e.tiles.registers(t)
    for run in plan.access.groups(t):
        fill = [other[r] if isinstance(other, list) else other for r in run]
        for r, v in zip(run, read(access, run[0], fill,
                                  access.predicate(run[0], mask and mask[run[0]], owned=plan.returns))):
            result[r] = v
    result = to_copies(e, call, t, result) if plan.returns else result
    if attrs["sem"] == "acquire" and not (plan.returns and through_scratch(t)):
        e.sync.scope()
    return result


@ordered_store.emit
def _(e, call, target, value, mask):
    plan, t, attrs = call.choice.plan, type_of(call.args[1]), call.attrs
    order = f".{attrs['sem']}.{attrs['scope']}"
    if attrs["sem"] == "release" and not attrs["each_thread"]:
        e.sync.scope()

    def write(access, reg, values, predicate):
        e.vector_store("global", *access.address(reg), target.type.dtype, values, predicate, attrs["cache"], order)

    if isinstance(t, Scalar):
        access, first = Access(e, target, None, plan), None if attrs["each_thread"] else e.first_thread()
        write(access, 0, [value], e.all_of([p for p in (access.predicate(0, mask), first) if p is not None]))
        return
    access = Access(e, target, t, plan)
    for run in plan.groups(t):
        write(access, run[0], [value[r] for r in run], access.predicate(run[0], mask and mask[run[0]], owned=True))
