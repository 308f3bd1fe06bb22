"""Checks transaction counts: a barrier must expect the bytes that its copies bring.

Only where both are evident from the kernel.

They are where one block of the kernel, and nothing else, arms a barrier once with a constant and issues the copies on
it. Where control flow is uniform in a cluster, a multicast to all of it brings its bytes once from every CTA; and if
the CTAs send to peers by a permutation of their ranks, each receives what it sends. The simulator finds the other
mistakes of this kind. PTX ISA, "Tracking asynchronous operations by the mbarrier object".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ...errors import CompilationError, line_of
from ...ir.builder import type_as, type_of
from ...ir.graph import Block, Call, Const, Graph, Operand, Value, blocks, choice_of, operands, walk
from ...ops.memory.shared import peer_buffer
from ...ops.moves.copy_async import copy_async_
from ...ops.moves.remote import remote_
from ...ops.sync.barriers import arrive_expect_tx_op, mbarrier_at, mbarrier_wait, peek_op, test_op
from ...types import Barrier, BarrierRef, Points, Region, Selected
from ..analysis.clusters import cluster_uniform_blocks, value_at_rank

COPIES = (copy_async_, remote_)
BARRIER = 2  # the operand of a copy that is its barrier


@dataclass
class BarrierUses:
    """The uses of one block of barriers, by the barrier's index, and whether all of them are understood here."""

    arms: dict[object, list[tuple[Block, Call]]] = field(default_factory=dict)
    copies: dict[object, list[tuple[Block, Call]]] = field(default_factory=dict)
    indices: set[Any] = field(default_factory=set)
    understood: bool = True


def check_transaction_counts(graph: Graph) -> Graph:
    """The graph unchanged. CompilationError where a barrier expects other bytes than its copies bring."""
    uses: dict[Value, BarrierUses] = {}
    refs: dict[Value, tuple[Value, object]] = {}
    _collect(graph.body, uses, refs)
    ranks, alike = prod(graph.launch.cluster or (1,)), cluster_uniform_blocks(graph.body)
    made = {r: node for node in walk(graph.body) if isinstance(node, Call) for r in node.results}
    for barriers, found in uses.items():
        certain = all(isinstance(i, int) for i in found.indices) or len(found.indices) == 1
        if not found.understood or not certain or type_as(barriers, Barrier).count != 1:
            continue
        for index, arms in found.arms.items():
            _compare(arms, found.copies.get(index, []), lambda block, copy: _count(copy, ranks, block in alike, made))
    return graph


def _collect(block: Block, uses: dict[Any, Any], refs: dict[Any, Any]) -> None:
    for node in block.nodes:
        if isinstance(node, Call):
            _call(block, node, uses, refs)
        else:
            _give_up(operands(node), uses, refs)
        for inner in blocks(node):
            _collect(inner, uses, refs)
    _give_up(block.yields, uses, refs)


def _call(block: Block, call: Call, uses: dict[Any, Any], refs: dict[Any, Any]) -> None:
    if call.op is mbarrier_at and isinstance(type_of(call.args[0]), Barrier):
        made = uses.setdefault(call.args[0], BarrierUses())
        index = call.args[1].value if isinstance(call.args[1], Const) else call.args[1]
        made.indices.add(index)
        made.understood = made.understood and not call.attrs["peer"]
        refs[call.result] = call.args[0], index
        return
    if call.op in COPIES and call.args[BARRIER] in refs:
        barriers, index = refs[call.args[BARRIER]]
        uses[barriers].copies.setdefault(index, []).append((block, call))
    elif call.op is arrive_expect_tx_op and call.args[0] in refs:
        barriers, index = refs[call.args[0]]
        uses[barriers].arms.setdefault(index, []).append((block, call))
    elif call.op not in (mbarrier_wait, test_op, peek_op):
        _give_up(call.args, uses, refs)


def _give_up(values: Iterable[Operand], uses: dict[Any, Any], refs: dict[Any, Any]) -> None:
    """Note that the barriers among `values` have uses that are not analysed here."""
    for x in values:
        if isinstance(x, Value) and isinstance(x.type, (Barrier, BarrierRef)):
            barriers = refs[x][0] if x in refs else x
            uses.setdefault(barriers, BarrierUses()).understood = False


def _compare(arms: list[tuple[Block, Call]], copies: list[tuple[Block, Call]],
             count: Callable[[Block, Call], int | None]) -> None:
    """CompilationError where the one arming of a barrier announces other bytes than its copies bring; ``count(block,
    copy)`` as `_count`."""
    if len(arms) != 1:
        return
    (block, arm), announced = arms[0], arms[0][1].args[1]
    if isinstance(announced, Const) and announced.value > 0 and not copies:
        raise CompilationError(f"{announced.value} bytes are announced, and no copy completes on this barrier: its "
                               "phase would never complete; give the copies mbar= (for a ring's slot, mbar=slot.full)",
                               arm.loc)
    if not isinstance(announced, Const) or any(where is not block for where, _ in copies):
        return
    brought = 0
    for where, copy in copies:
        times = count(where, copy)
        if times is None:
            return
        t = type_of(copy.args[0] if copy.op is remote_ else copy.args[1])
        assert isinstance(t, (Region, Selected))
        brought += times * t.nbytes
    if brought != announced.value:
        lines = ", ".join(str(line) for line in sorted({line_of(copy.loc) for _, copy in copies}))
        raise CompilationError(f"{announced.value} bytes are announced, and the copies on this barrier transfer "
                               f"{brought} (line {lines}): its phase would never complete", arm.loc)


def _count(copy: Call, ranks: int, alike: bool, made: dict[Any, Any]) -> int | None:
    """How many times a copy's bytes arrive on the barrier of its own CTA; None where that is not known."""
    if getattr(choice_of(copy).plan, "completion", None) != "bytes":
        return None
    t = type_of(copy.args[0])
    assert isinstance(t, (Region, Points, Selected))
    if t.buffer.peer and not (alike and _permutes_ranks(copy.args[0], made, ranks)):
        return None
    if copy.op is remote_:
        return None if copy.attrs["each_thread"] else 1
    options = copy.attrs["options"]
    mask = options.get("multicast")
    if copy.attrs.get("partial") is not None or options.get("cta_group") == 2:
        return None
    if mask is None:
        return 1
    return ranks if alike and mask is not True and mask == (1 << ranks) - 1 else None


def _permutes_ranks(place: Operand, made: dict[Any, Any], ranks: int) -> bool:
    """Whether the CTAs of a cluster address different peers by this place: the peer's rank is a permutation of the
    CTA's own, such as a constant added modulo the cluster's size, or exclusive-or a constant."""
    while place in made and made[place].op is not peer_buffer:
        place = made[place].args[0]
    if place not in made or len(made[place].args) < 2:
        return False
    rank, cluster = made[place].args[1], range(ranks)
    reached = [value_at_rank(rank, made, own, ranks) for own in cluster]
    return None not in reached and sorted(r for r in reached if r is not None) == list(cluster)
