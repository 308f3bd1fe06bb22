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

from ...errors import CompilationError
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
    if not graph.persistence:
        return write_loops(context, found)
    record, = graph.persistence
    why = "" if record.persistent else record.how
    if not why and not found.warp_specialized:
        why = "its copies have no producer"
    if not why:
        try:
            return write_programs_in_turn(graph, facts)
        except PatternMismatch as mismatch:
            why = str(mismatch)
        except CompilationError as error:  # such as of a tile whose place the producer cannot compute ahead
            why = f"in a loop over programs, {error.message}"
    context, found = find_staged_loops(replace(graph, persistence=(persistence_record(why),)), facts)
    return write_loops(context, found)


def write_programs_in_turn(graph: Graph, facts: Facts) -> Graph:
    """The graph with its body in a loop over programs. PatternMismatch or CompilationError says why it cannot be."""
    context, found = find_staged_loops(loop_over_programs(graph, facts), facts)
    if not found.warp_specialized:
        raise PatternMismatch("in a loop over programs, its copies would have no producer")
    return write_loops(context, found)


def write_loops(context: Context, found: StagedLoopFinder) -> Graph:
    """The graph with its pipelined loops written out."""
    rotations = {loop: r for loop, staged in found.loops.items() if (r := Rotation(context, staged)).chained}
    if found.warp_specialized:
        made = specialize_warps(context, found, rotations)
    else:
        records = tuple(r.record(r.why_not(context.registers)) for r in rotations.values())
        writer = PipelineWriter(context, found.loops)
        body = writer.block(context.graph.body)
        made = replace(context.graph, rotations=records, body=writer.g.with_hoisted(body))
    missed = (w for loop, staged in found.loops.items()
              for w in missed_copy_warnings(context, loop, found.loops, staged.groups))
    return replace(made, warnings=(*made.warnings, *missed))


def find_staged_loops(graph: Graph, facts: Facts) -> tuple[Context, StagedLoopFinder]:
    context = Context(graph, facts)
    found = StagedLoopFinder(context)
    found.block(graph.body)
    found.check_uses()
    return context, found
