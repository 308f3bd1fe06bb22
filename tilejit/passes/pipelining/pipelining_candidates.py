"""Loops that are not pipelined but could be: everything that their products load could be copied ahead.
`.explain()` tells of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...dtypes import int32
from ...errors import CompilationError, line_of
from ...ir.builder import Facts
from ...ir.graph import Block, Call, Const, For, Graph, Node, Pipeline, walk, with_blocks
from ...ops.mma.dot import dot_
from ...ops.moves.copy_async import copy_async_
from ...ops.sync.pipeline import pipeline_slot
from ...records import LoopRecord
from ..analysis.context import Context, loads_behind
from ..analysis.staging import StagedLoopFinder
from .loads_ahead import is_load, send_loads_ahead

STAGES = 3, 2  # stage counts to try, largest first: shared memory may be too small


def candidate_loops(graph: Graph) -> list[For]:
    """The innermost loops that both load and multiply, and are not inside a pipelined loop."""
    loops = [n for n in walk(graph.body) if isinstance(n, For)]
    ahead = {n for loop in loops if loop.pipeline for n in (loop, *walk(loop.body))}
    found = [n for n in loops
             if n in ahead or n.unroll == 1 and any(map(is_load, n.body.nodes)) and any(map(_is_dot, walk(n.body)))]
    return [loop for loop in found if loop not in ahead and not any(n in found for n in walk(loop.body))]


def _is_dot(node: Node) -> bool:
    return isinstance(node, Call) and node.op is dot_


def loop_records(graph: Graph, facts: Facts) -> tuple[LoopRecord, ...]:
    """A record for each candidate loop whose products' loads would all be copied ahead if it were pipelined.

    Found by pipelining the loops for trial. The facts that this asks do not become guards of the kernel.
    """
    context = Context(graph, facts)
    found: dict[For, LoopRecord] = {}
    def loads_of_products(loop: For) -> set[Call]:
        products = [p for p in walk(loop.body) if isinstance(p, Call) and _is_dot(p)]
        return {c for p in products for x in p.args[1:3] for c in loads_behind(context, x) or ()}
    loads = {loop: [n for n in walk(loop.body) if isinstance(n, Call) and is_load(n) and n in made]
             for loop in candidate_loops(graph) if (made := loads_of_products(loop))}
    for stages in STAGES:
        left = {loop: ahead for loop, ahead in loads.items() if ahead and loop not in found}
        with facts.without_recording():
            copied = _loads_that_become_copies(graph, facts, left, stages)
        found |= {loop: LoopRecord(line_of(loop.loc), loop.loc.source_line.strip() if loop.loc else "",
                                   tuple(sorted({line_of(c.loc) for c in ahead})), stages)
                  for loop, ahead in left.items() if all(c.loc in copied for c in ahead)}
    return tuple(found[loop] for loop in loads if loop in found)


def _loads_that_become_copies(graph: Graph, facts: Facts, loops: dict[For, list[Call]], stages: int) -> set[Any]:
    """The locations of the loads that become copies if `loops` are pipelined; empty if the compiler would refuse
    that."""
    try:
        made = send_loads_ahead(replace(graph, body=_pipeline_loops(graph.body, loops, stages)), facts)
        StagedLoopFinder(Context(made, facts)).block(made.body)
    except CompilationError:
        return set()
    return {n.loc for n in walk(made.body) if isinstance(n, Call) and n.op is copy_async_}


def _pipeline_loops(block: Block, loops: dict[For, list[Call]], stages: int) -> Block:
    """The block with `loops` marked as pipelined."""
    return replace(block, nodes=tuple(_node(n, loops, stages) for n in block.nodes))


def _node(node: Node, loops: dict[For, list[Call]], stages: int) -> Node:
    if isinstance(node, For) and node in loops:
        slot = Call(pipeline_slot, (Const(0, int32), Const(0, int32)), {"stages": stages}, (), node.loc)
        return replace(node, body=replace(node.body, nodes=(slot, *node.body.nodes)), pipeline=Pipeline(stages))
    return with_blocks(node, lambda block: _pipeline_loops(block, loops, stages))


__all__ = ["candidate_loops", "loop_records"]
