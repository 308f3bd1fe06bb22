"""Place shared memory: user buffers side by side, compiler scratch overlapping where its uses cannot meet."""

from __future__ import annotations

from dataclasses import replace

from ..errors import CompilationError
from ..ir.graph import Block, Call, For, Graph, If, Scope, Value, While, walk
from ..types import Barrier, Buffer

# Bytes of shared memory a CTA may have (CUDA C++ Programming Guide, "Compute Capabilities").
SHARED_LIMIT = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 103: 232448, 120: 101376}


def place_shared(graph: Graph) -> Graph:
    """The graph with a byte offset for every allocation, barrier and scratch. CompilationError with the table of
    buffers when they exceed the target's limit or the kernel's own `max_shared`."""
    offsets: dict[Value, int] = {}
    rows: list[tuple[str, int, object]] = []
    top = 0
    for node in walk(graph.body):
        for value in node.results if isinstance(node, Call) else ():
            if isinstance(value.type, Barrier) or (isinstance(value.type, Buffer) and node.op.name == "alloc_shared"):
                align = node.attrs.get("align") or 8
                nbytes = 8 * value.type.n if isinstance(value.type, Barrier) else value.type.nbytes
                top = -(-top // align) * align
                offsets[value] = top
                rows.append((f"{value.name}: {value.type}", nbytes, node.loc))
                top += nbytes
    base = -(-top // 128) * 128
    size = _scratch(graph.body, base, offsets)
    if size > base:
        rows.append(("scratch of the compiler", size - base, graph.loc))
    total = max(top, size)
    limit = SHARED_LIMIT[int("".join(c for c in graph.target if c.isdigit()))]
    own = graph.launch.max_shared
    if total > limit or (own is not None and total > own):
        what = f"{graph.target} allows {limit}" if total > limit else f"max_shared allows {own}"
        table = "\n".join(f"  {n:>8} bytes  {name}" + (f"  (line {loc.line})" if loc else "") for name, n, loc in rows)
        raise CompilationError(f"the kernel needs {total} bytes of shared memory, and {what}:\n{table}", graph.loc)
    return replace(graph, shared=offsets, shared_bytes=total)


def _scratch(block: Block, base: int, offsets: dict[Value, int], concurrent: bool = False) -> int:
    """Give each call that needs scratch a place, and return the end of the highest.

    Calls that follow each other in one scope share their scratch (each begins with a barrier of the scope). Scopes that
    may run at the same time have scratch of their own.
    """
    top = base
    floor = base
    for node in block.nodes:
        match node:
            case Call():
                nbytes = node.op.rules["scratch"](node) if "scratch" in node.op.rules else 0
                if nbytes:
                    offsets[node.results[0]] = floor
                    top = max(top, floor + -(-nbytes // 128) * 128)
            case For(body=body):
                top = max(top, _scratch(body, floor, offsets))
            case While(test=test, body=body):
                top = max(top, _scratch(test, floor, offsets), _scratch(body, floor, offsets))
            case If(then=then, orelse=orelse):
                top = max(top, _scratch(then, floor, offsets), _scratch(orelse, floor, offsets))
            case Scope(body=body):
                top = max(top, _scratch(body, top, offsets))
    return top
