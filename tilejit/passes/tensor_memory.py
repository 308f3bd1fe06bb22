"""Place tensor memory: buffers side by side in one allocation; those that the kernel deallocates itself have their own.

An allocation is a power of two of at least 32 columns, and the larger come first: the number may not grow from one
``tcgen05.alloc`` of a kernel to the next. PTX ISA, "tcgen05.alloc".
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import CompilationError
from ..ir.graph import Call, Graph, TensorPlace, Value, walk
from ..ops.tmem.alloc import COLUMNS, alloc_tmem, columns_of, dealloc_tmem


def place_tensor_memory(graph: Graph) -> Graph:
    """The graph with a place for every buffer in tensor memory. CompilationError with their table when they do not fit."""
    calls = [n for n in walk(graph.body) if isinstance(n, Call)]
    made = [c for c in calls if c.op is alloc_tmem]
    if not made:
        return graph
    freed = {c.args[0] for c in calls if c.op is dealloc_tmem}
    shared = [c for c in made if c.result not in freed]
    groups = [[c] for c in made if c.result in freed] + ([shared] if shared else [])
    groups.sort(key=lambda group: -_rounded(group))
    top, places = 0, {}
    for group in groups:
        leader, columns, inside = group[0].result, _rounded(group), 0
        for call in group:
            places[call.result] = TensorPlace(leader, inside, columns, top, call.attrs["cta_group"], leader in freed)
            inside += _columns(call)
        top += columns
    if top > COLUMNS:
        table = "\n".join(f"  {_columns(c):>4} columns  {c.result.name}: {c.result.type}  (line {c.loc.line})" for c in made)
        raise CompilationError(f"the kernel needs {top} columns of tensor memory, allocated in powers of two, and a CTA has {COLUMNS}:\n{table}",
                               graph.loc)
    return replace(graph, tensor_memory=places)


def _columns(call: Call) -> int:
    """Whole 32-byte units: what follows begins where every operation may."""
    return -(-columns_of(call.result.type.layout, call.attrs["dtype"]) // 8) * 8


def _rounded(group: list[Call]) -> int:
    return max(32, 1 << (sum(map(_columns, group)) - 1).bit_length())


def leaders(graph: Graph) -> list[tuple[Value, TensorPlace]]:
    """The first buffer of each allocation, in the order in which they are made."""
    return [(v, p) for v, p in graph.tensor_memory.items() if p.leader is v]


__all__ = ["leaders", "place_tensor_memory"]
