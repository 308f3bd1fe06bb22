"""Refuse tiles that no thread can hold, before the simulator or the assembler tries to."""

from __future__ import annotations

from ..errors import CompilationError
from ..ir.graph import Call, For, Graph, If, Node, Value, While, walk
from ..types import Tile

REGISTERS = 255  # 32-bit registers a thread may have (CUDA C++ Programming Guide, "Compute Capabilities")
WRITTEN_OUT = 8192  # elements a thread may have of any tile: the code of each is written out


def check_registers(graph: Graph) -> Graph:
    """The graph as it is. CompilationError names the first tile that is too large for the threads that hold it.

    A tile that is loaded, or carried by a loop or a branch, is in registers as a whole. One that is only computed need not
    be: each element may go on to its use alone.
    """
    for node in walk(graph.body):
        whole = not isinstance(node, Call) or node.op.effect == "reads" or node.op.name in ("convert_layout", "slice")
        for value in _made(node):
            t = value.type
            if not isinstance(t, Tile) or t.layout is None:
                continue
            what = f"the tile {'' if isinstance(node, Call) else value.name + ', '}{t.dtype}{list(t.shape)}"
            count = t.layout.span("reg")
            words = -(-count * t.dtype.bits // 32)
            advice = f"use a smaller tile, more warps (num_warps is {graph.launch.num_warps}), or shared memory and a loop"
            if whole and words > REGISTERS:
                raise CompilationError(f"{what} takes {words} registers of each thread, and a thread has "
                                       f"{REGISTERS}: {advice}", value.loc or node.loc)
            if count > WRITTEN_OUT:
                raise CompilationError(f"{what} has {count} elements for each thread, and at most "
                                       f"{WRITTEN_OUT} are written out: {advice}", value.loc or node.loc)
    return graph


def _made(node: Node) -> tuple[Value, ...]:
    match node:
        case Call(results=values) | If(results=values):
            return values
        case For(carried=carried) | While(carried=carried):
            return tuple(c.inner for c in carried)
    return ()
