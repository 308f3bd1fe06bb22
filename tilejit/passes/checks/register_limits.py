"""Rejects tiles that do not fit in registers, before the simulator or the assembler tries to run them.

Also warpgroups that together ask for more registers than the CTA has.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import CompilationError, Loc
from ...ir.graph import Block, Call, Const, For, Graph, If, Node, Scope, Value, While, blocks, number, walk
from ...ops.tiles.layout_change import convert_layout
from ...ops.tiles.slicing import slice_
from ...types import Tile

REGISTERS = 255  # 32-bit registers a thread may have (CUDA C++ Programming Guide, "Compute Capabilities")
WRITTEN_OUT = 8192  # the most elements of a tile in one thread: code is emitted for each


def check_registers(graph: Graph) -> Graph:
    """The graph unchanged. CompilationError names the first tile that is too large for the threads that hold it.

    A tile that is loaded, or carried by a loop or a branch, is in registers as a whole. One that is only computed
    need not be: each of its elements may be used as soon as it is computed.
    """
    for node, threads in _with_threads(graph.body, graph.launch.threads):
        whole = not isinstance(node, Call) or node.op.effect == "reads" or node.op in (convert_layout, slice_)
        for value in _values_in_registers(node):
            t = value.type
            if not isinstance(t, Tile) or t.layout is None:
                continue
            what = f"the tile {'' if isinstance(node, Call) else value.name + ', '}{t.dtype}{list(t.shape)}"
            count = t.layout.span("reg")
            words = -(-count * t.dtype.bits // 32)
            more = f"more warps (num_warps is {graph.launch.num_warps})"
            if threads < graph.launch.threads:
                more = (f"a wider scope (this one has {threads} thread{'s' if threads > 1 else ''} of the CTA's "
                        f"{graph.launch.threads})")
            advice = f"use a smaller tile, {more}, or shared memory and a loop"
            if whole and words > REGISTERS:
                raise CompilationError(f"{what} takes {words} registers of each thread, and a thread has "
                                       f"{REGISTERS}: {advice}", value.loc or node.loc)
            if count > WRITTEN_OUT:
                raise CompilationError(f"{what} has {count} elements per thread, and code is generated for "
                                       f"at most {WRITTEN_OUT}: {advice}", value.loc or node.loc)
    return graph


def check_warpgroup_registers(graph: Graph) -> Graph:
    """The graph unchanged. CompilationError where the warpgroups of a CTA ask for more registers together
    than it begins with.

    ``setmaxnreg.inc`` would wait forever for others to release enough (PTX ISA). Of a warpgroup with several scopes
    the smallest request counts.
    """
    asked = _register_requests(graph)
    if not asked:
        return graph
    begin, groups = graph.launch.registers, -(-graph.launch.num_warps // 4)
    kept = [min((count for count, _ in asked.get(w, ())), default=begin) for w in range(groups)]
    if sum(kept) > begin * groups:
        _, loc = max((request for requests in asked.values() for request in requests), key=lambda request: request[0])
        raise CompilationError(f"the warpgroups ask for {' + '.join(map(str, kept))} = {sum(kept)} registers per "
                               f"thread, and a CTA of {graph.launch.threads} threads begins with {groups} times "
                               f"{begin}: a warpgroup would wait for the missing ones for ever; lower regs=, "
                               "or have another warpgroup give more back, as with tile.warpgroup(0, regs=24)", loc)
    return graph


def _register_requests(graph: Graph) -> dict[int, list[tuple[int, Loc | None]]]:
    """(registers, location) of the requests of each warpgroup, by `regs` or ``tile.ptx.setmaxnreg``, where the
    warpgroup is known at compile time. An instruction counts unless it is in a branch or a loop, which may not run."""
    asked: dict[int, list[tuple[int, Loc | None]]] = {}
    loops = {node.index: node for node in walk(graph.body) if isinstance(node, For)}
    for block, groups in [(graph.body, range(-(-graph.launch.num_warps // 4))), *_warpgroups(graph.body, loops)]:
        for node in block.nodes:
            if isinstance(node, Call) and node.attrs.get("form", "").startswith("setmaxnreg."):
                for w in groups:
                    asked.setdefault(w, []).append((dict(node.attrs["imm"])["count"], node.loc))
    for node in walk(graph.body):
        if isinstance(node, Scope) and node.regs is not None:
            for w in _numbers(node, loops):
                asked.setdefault(w, []).append((node.regs, node.loc))
    return asked


def _warpgroups(body: Block, loops: dict[Value, For]) -> Iterator[tuple[Block, tuple[int, ...]]]:
    """The body of each scope of warpgroups, with their numbers."""
    for node in walk(body):
        if isinstance(node, Scope) and node.kind == "warpgroup":
            yield node.body, tuple(_numbers(node, loops))


def _numbers(scope: Scope, loops: dict[Value, For]) -> Iterator[int]:
    """The numbers of a scope's warpgroups, if they are known at compile time."""
    firsts = range(number(scope.first), number(scope.first) + 1) if isinstance(scope.first, Const) else range(0)
    if isinstance(scope.first, Value) and scope.first in loops:
        loop = loops[scope.first]
        known = all(isinstance(b, Const) for b in (loop.start, loop.stop, loop.step))
        firsts = range(number(loop.start), number(loop.stop), number(loop.step)) if known else range(0)
    for first in firsts:
        yield from range(first, first + scope.count)


def _with_threads(block: Block, threads: int) -> Iterator[tuple[Node, int]]:
    """Every node in `block`, nested ones included, with the number of threads of its scope."""
    for node in block.nodes:
        yield node, threads
        size = node.threads if isinstance(node, Scope) else threads
        for inner in blocks(node):
            yield from _with_threads(inner, size)


def _values_in_registers(node: Node) -> tuple[Value, ...]:
    """The values for which a node occupies registers: results, and what a loop carries."""
    match node:
        case Call(results=values) | If(results=values):
            return values
        case For(carried=carried) | While(carried=carried):
            return tuple(c.inner for c in carried)
    return ()
