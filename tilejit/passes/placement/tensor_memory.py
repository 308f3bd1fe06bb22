"""Places buffers in tensor memory.

They lie side by side in one allocation, except those that the kernel deallocates itself: each of these has its
own.

An allocation has a power of two of columns, at least 32. Larger ones are allocated first, since the number of columns
may not grow from one ``tcgen05.alloc`` of a kernel to the next. PTX ISA, "tcgen05.alloc".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...dtypes import DType
from ...errors import CompilationError, line_of
from ...ir.builder import type_as
from ...ir.graph import Call, Graph, TensorPlace, Value, walk
from ...layout import TileLayout
from ...ops.tmem.alloc import COLUMNS, alloc_tmem, columns_of, dealloc_tmem
from ...types import Buffer, layout_of


def place_tensor_memory(graph: Graph) -> Graph:
    """The graph with a place for every buffer in tensor memory.
    CompilationError with a table of them if they do not fit."""
    calls = [n for n in walk(graph.body) if isinstance(n, Call)]
    made = [c for c in calls if c.op is alloc_tmem]
    if not made:
        return graph
    freed = {c.args[0] for c in calls if c.op is dealloc_tmem}
    shared = [c for c in made if c.result not in freed]
    groups = [[c] for c in made if c.result in freed] + ([shared] if shared else [])
    groups.sort(key=lambda group: -_round_columns(group))
    top, places = 0, {}
    for group in groups:
        leader, columns, inside = group[0].result, _round_columns(group), 0
        for call in group:
            places[call.result] = TensorPlace(leader, inside, columns, top, call.attrs["cta_group"], leader in freed)
            inside += _columns(call)
        top += columns
    if top > COLUMNS:
        table = "\n".join(f"  {_columns(c):>4} columns  {c.result.name}: {c.result.type}  (line {line_of(c.loc)})"
                          for c in made)
        most = max(made, key=_columns)
        raise CompilationError(f"the kernel needs {top} columns of tensor memory, allocated in powers of two, "
                               f"and a CTA has {COLUMNS}:\n{table}", most.loc)
    return replace(graph, tensor_memory=places)


def _columns(call: Call) -> int:
    return _columns_of(layout_of(type_as(call.result, Buffer)), call.attrs["dtype"])


def _columns_of(layout: TileLayout, dtype: DType) -> int:
    """The columns of a buffer, rounded up to 32 bytes so that the next buffer starts where every operation may."""
    return -(-columns_of(layout, dtype) // 8) * 8


def _round_columns(group: list[Call]) -> int:
    return _power(sum(map(_columns, group)))


def _power(columns: int) -> int:
    return max(32, 1 << (columns - 1).bit_length())


def columns_needed(buffers: list[tuple[Any, ...]]) -> int:
    """The columns that buffers occupy; each is given as (dtype, layout, whether the kernel deallocates it)."""
    together = sum(_columns_of(layout, dtype) for dtype, layout, freed in buffers if not freed)
    return (sum(_power(_columns_of(layout, dtype)) for dtype, layout, freed in buffers if freed)
            + (_power(together) if together else 0))


def leaders(graph: Graph) -> list[tuple[Value, TensorPlace]]:
    """The first buffer of each allocation, in the order in which they are allocated."""
    return [(v, p) for v, p in graph.tensor_memory.items() if p.leader is v]


__all__ = ["columns_needed", "leaders", "place_tensor_memory"]
