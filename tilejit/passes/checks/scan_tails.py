"""Warns of scans over loads that may reach out of bounds at their end.

Does what the padding contributes reach a result that is kept?

A scan towards the end meets the elements beyond the array after all others, so they affect only results beyond the
array's end. Elementwise work and further scans preserve that, and a store to a region drops those elements.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ...ir.builder import Facts, Warning_, as_value, type_as, type_of
from ...ir.graph import Call, Const, Graph, Node, Operand, Value
from ...ops.memory.access_ops import store_
from ...ops.memory.atomics import atomic_
from ...ops.memory.ordered import ordered_store
from ...ops.reduce.ragged_warnings import Tail
from ...ops.reduce.reduce import reduce_
from ...ops.reduce.scan import scan_
from ...ops.tiles.arrange import broadcast, reshape_, transpose_
from ...types import Region, Sym, Tile
from ..analysis.context import Context
from ..analysis.uses import uses

STORES = (store_, ordered_store, atomic_)


def tail_warnings(graph: Graph, facts: Facts, tails: tuple[Tail, ...]) -> list[Warning_]:
    """The warnings of those scans whose tail is not known to be dropped."""
    if not tails:
        return []
    context, used = Context(graph, facts), uses(graph.body)
    def inside(tail: Tail) -> bool:
        return all(_begins_inside(context, start) for start, _ in tail.loads)
    with context.in_block(graph.body):
        return [tail.warning for tail in tails if not (inside(tail) and _is_dropped(context, tail, used))]


def _begins_inside(context: Context, start: Operand) -> bool:
    least, _ = context.bounds(start)
    return least is not None and least >= 0


def _is_dropped(context: Context, tail: Tail, uses: dict[Any, Any]) -> bool:
    """Whether every use of a scan ends in a store, and its tail lies beyond the end of the array stored to."""
    seen: set[tuple[Value, int]] = set()
    queue, stored = [(x, tail.axis) for x in tail.scanned], False
    while queue:
        found = queue.pop()
        if found in seen:
            continue
        seen.add(found)
        value, axis = found
        for node, same in uses.get(value, ()):
            if isinstance(node, Call) and node.op in STORES and _ends_as_loads(context, node.args[0], axis, tail):
                stored = True
            elif same:
                queue += [(x, axis) for x in same]
            else:
                after = _axis_after(node, value, axis)
                if after is None:
                    return False
                queue += [(x, after) for x in node.results if isinstance(x.type, Tile)]
    return stored


def _ends_as_loads(context: Context, place: Operand, axis: int, tail: Tail) -> bool:
    """Whether the array that a tile is stored to ends, along an axis, where the loaded arrays do or before, for the
    arguments at hand."""
    t = type_of(place)
    if not isinstance(t, Region) or t.scope != "global" or t.buffer.narrowed is not None:
        return False
    d = t.kept[axis]
    start = context.definition(place).args[1 + d]

    def size(n: int | Sym) -> int | None:
        known = context.extent_behind(n)
        if isinstance(known, Sym):
            known = context.facts.values[known.arg].shape[known.dim]
        return known if isinstance(known, int) else None

    def ends_first(n: int | Sym) -> bool:
        own, other = size(t.buffer.shape[d]), size(n)
        if own is None or other is None:  # an array that the kernel makes from an address
            return context.extent_behind(t.buffer.shape[d]) is context.extent_behind(n)
        return own <= other

    return all(_computed_alike(context, start, other) and ends_first(n) for other, n in tail.loads)


def _computed_alike(context: Context, one: Operand, other: Operand) -> bool:
    """Whether two integers are computed by the same operations from the same operands."""
    seen: set[tuple[Operand, Operand]] = set()
    left = [(one, other)]
    while left:
        pair = one, other = left.pop()
        if (pair in seen or one is other
            or isinstance(one, Const) and isinstance(other, Const) and one.value == other.value):
            continue
        seen.add(pair)
        a, b = context.definitions.get(one), context.definitions.get(other)
        if (a is None or b is None or a.op is not b.op or a.op.effect != "pure" or a.attrs != b.attrs
            or len(a.args) != len(b.args)):
            return False
        if a.results.index(as_value(one)) != b.results.index(as_value(other)):
            return False
        left += zip(a.args, b.args)
    return True


def _axis_after(node: Node, value: Value, axis: int) -> int | None:
    """The axis of a call's results that the tail is at the end of, given the operand's;
    None where it may be elsewhere."""
    if not isinstance(node, Call):
        return None
    op, attrs, shape = node.op, node.attrs, type_as(value, Tile).shape
    if op.traits.elementwise or op is broadcast:
        return axis
    if op is transpose_:
        moved: int = attrs["axes"].index(axis)
        return moved
    if op is reshape_:
        target = attrs["shape"]
        return next((d for d, n in enumerate(target) if n == shape[axis] and prod(target[:d]) == prod(shape[:axis])),
                    None)
    if op is reduce_ and axis not in attrs["axes"]:
        return axis if attrs["keepdims"] else axis - sum(a < axis for a in attrs["axes"])
    return axis if op is scan_ and (attrs["axis"] != axis or not attrs["reverse"]) else None


__all__ = ["tail_warnings"]
