"""Writes out pipelined loops: buffers become rings of slots, and copies run ahead.

They run ahead by as many trips as there are slots, less one.

Without warp specialization every thread copies and computes. Trip i waits until its slot is full, then meets at a
barrier, which also says that all threads have read the slot of trip i - 1, then issues the copies of trip i + stages
- 1 into that slot. Copies complete by bytes on the slots' mbarriers where they can (TMA and bulk copies), else by
groups of cp.async. With warp specialization (passes/pipelining/warp_specialization.py) only mbarriers are waited for.
PTX ISA, "Asynchronous copy completion mechanisms".
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.builder import Facts
from ...ir.graph import For, Graph, walk
from ..analysis.access_patterns import PatternMismatch
from ..analysis.context import Context
from ..analysis.staging import StagedLoopFinder, missed_copy_warnings
from .persistent_programs import loop_over_programs, persistence_record
from .pipeline_writer import PipelineWriter
from .rotations import Rotation
from .warp_specialization import specialize_warps


def write_pipelines(graph: Graph, facts: Facts) -> Graph:
    """The graph with its pipelined loops written out. CompilationError says what in a loop cannot run ahead."""
    if not any(isinstance(n, For) and n.pipeline for n in walk(graph.body)):
        return graph
    context, found = find_staged_loops(graph, facts)
    specialized = found.warp_specialized
    if graph.persistence:
        graph, context, found = with_programs_in_turn(graph, facts, context, found, specialized)
    rotations = {loop: r for loop, staged in found.loops.items() if (r := Rotation(context, staged)).chained}
    if specialized:
        made = specialize_warps(context, found, rotations)
    else:
        graph = replace(graph, rotations=tuple(r.record(r.why_not(context.registers)) for r in rotations.values()))
        writer = PipelineWriter(context, found.loops)
        body = writer.block(graph.body)
        made = replace(graph, body=writer.g.with_hoisted(body))
    missed = (w for loop, staged in found.loops.items()
              for w in missed_copy_warnings(context, loop, found.loops, staged.groups))
    return replace(made, warnings=(*made.warnings, *missed))


def find_staged_loops(graph: Graph, facts: Facts) -> tuple[Context, StagedLoopFinder]:
    context = Context(graph, facts)
    found = StagedLoopFinder(context)
    found.block(graph.body)
    found.check_uses()
    return context, found


def with_programs_in_turn(graph: Graph, facts: Facts, context: Context, found: StagedLoopFinder,
                          specialized: bool) -> tuple[Graph, Context, StagedLoopFinder]:
    """The graph with a loop over programs, if it may have one, or with a record that says why not."""
    record, = graph.persistence
    why = "" if record.persistent else record.how
    if not why and not specialized:
        why = "its copies have no producer"
    if not why:
        try:
            looped = loop_over_programs(graph, facts)
            inside = find_staged_loops(looped, facts)
        except PatternMismatch as mismatch:
            why = str(mismatch)
        else:
            if inside[1].warp_specialized:
                return looped, *inside
            why = "in a loop over programs, its copies would have no producer"
    return replace(graph, persistence=(persistence_record(why),)), context, found
