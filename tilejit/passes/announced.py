"""Compare the bytes that a barrier is told to expect with those that its copies bring, where both are plain to see.

That is where one block of the kernel, and nothing else, arms a barrier once with a constant and issues the copies on it. Where
control flow is the same for all CTAs of a cluster, a multicast to the whole of it brings its bytes once from every CTA, and
what each CTA sends to another one than all others do brings each of them what it sends. The simulator finds the other
mistakes of this kind. PTX ISA, "Tracking asynchronous operations by the mbarrier object".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from ..errors import CompilationError
from ..ir.graph import Block, Call, Const, Graph, Value, blocks, operands, walk
from ..types import Barrier, BarrierRef
from .clusters import at_rank, blocks_alike

ARM, COPIES, HARMLESS = "mbarrier_arrive_expect_tx", {"copy_async": 2, "remote": 2}, ("mbarrier_wait", "mbarrier_test")  # the barrier's argument


@dataclass
class Uses:
    """What a kernel does with one block of barriers: the calls by index, and whether all of them are understood."""

    arms: dict[object, list[tuple[Block, Call]]] = field(default_factory=dict)
    copies: dict[object, list[tuple[Block, Call]]] = field(default_factory=dict)
    indices: set = field(default_factory=set)
    plain: bool = True


def check_announced(graph: Graph) -> Graph:
    """The graph itself. CompilationError where a barrier expects other bytes than its copies bring."""
    uses: dict[Value, Uses] = {}
    refs: dict[Value, tuple[Value, object]] = {}
    _collect(graph.body, uses, refs)
    ranks, alike = prod(graph.launch.cluster or (1,)), blocks_alike(graph.body)
    made = {r: node for node in walk(graph.body) if isinstance(node, Call) for r in node.results}
    for barriers, found in uses.items():
        certain = all(isinstance(i, int) for i in found.indices) or len(found.indices) == 1
        if not found.plain or not certain or barriers.type.count != 1:
            continue
        for index, arms in found.arms.items():
            _compare(arms, found.copies.get(index, []), lambda block, copy: _count(copy, ranks, block in alike, made))
    return graph


def _collect(block: Block, uses: dict, refs: dict) -> None:
    for node in block.nodes:
        if isinstance(node, Call):
            _call(block, node, uses, refs)
        else:
            _unclear(operands(node), uses, refs)
        for inner in blocks(node):
            _collect(inner, uses, refs)
    _unclear(block.yields, uses, refs)


def _call(block: Block, call: Call, uses: dict, refs: dict) -> None:
    name = call.op.name
    if name == "mbarrier_at" and isinstance(call.args[0].type, Barrier):
        made = uses.setdefault(call.args[0], Uses())
        index = call.args[1].value if isinstance(call.args[1], Const) else call.args[1]
        made.indices.add(index)
        made.plain = made.plain and not call.attrs["peer"]
        refs[call.result] = call.args[0], index
        return
    at = COPIES.get(name, len(call.args))
    if at < len(call.args) and call.args[at] in refs:
        barriers, index = refs[call.args[at]]
        uses[barriers].copies.setdefault(index, []).append((block, call))
    elif name == ARM and call.args[0] in refs:
        barriers, index = refs[call.args[0]]
        uses[barriers].arms.setdefault(index, []).append((block, call))
    elif name not in HARMLESS:
        _unclear(call.args, uses, refs)


def _unclear(values, uses: dict, refs: dict) -> None:
    """These barriers are used in ways that are not followed here."""
    for x in values:
        if isinstance(x, Value) and isinstance(x.type, (Barrier, BarrierRef)):
            barriers = refs[x][0] if x in refs else x
            uses.setdefault(barriers, Uses()).plain = False


def _compare(arms: list, copies: list, count) -> None:
    if len(arms) != 1:
        return
    (block, arm), announced = arms[0], arms[0][1].args[1]
    if isinstance(announced, Const) and announced.value > 0 and not copies:
        raise CompilationError(f"{announced.value} bytes are announced, and no copy completes on this barrier: its phase would never "
                               "complete; give the copies mbar= (for a ring's slot, mbar=slot.full)", arm.loc)
    if not isinstance(announced, Const) or any(where is not block for where, _ in copies):
        return
    counts = [count(where, copy) for where, copy in copies]
    if None in counts:
        return
    brought = sum(n * (copy.args[0] if copy.op.name == "remote" else copy.args[1]).type.nbytes for n, (_, copy) in zip(counts, copies))
    if brought != announced.value:
        lines = ", ".join(str(line) for line in sorted({copy.loc.line for _, copy in copies}))
        raise CompilationError(f"{announced.value} bytes are announced, and the copies on this barrier transfer {brought} (line {lines}): "
                               "its phase would never complete", arm.loc)


def _count(copy: Call, ranks: int, alike: bool, made: dict) -> int | None:
    """How often the copy brings the bytes of its region to the barrier of its own CTA; None where that is not followed."""
    if getattr(copy.choice.plan, "completion", None) != "bytes":
        return None
    if copy.args[0].type.buffer.peer and not (alike and _to_each_once(copy.args[0], made, ranks)):
        return None
    if copy.op.name == "remote":
        return None if copy.attrs["each_thread"] else 1
    options = copy.attrs["options"]
    mask = options.get("multicast")
    if copy.attrs.get("partial") is not None or options.get("cta_group") == 2:
        return None
    if mask is None:
        return 1
    return ranks if alike and mask is not True and mask == (1 << ranks) - 1 else None


def _to_each_once(place: Value, made: dict, ranks: int) -> bool:
    """Whether the CTAs of a cluster that write to this place of a peer each write to another one: the peer's rank is the own
    one plus a constant modulo the cluster, or exclusive-or a constant."""
    while place in made and made[place].op.name != "peer_buffer":
        place = made[place].args[0]
    if place not in made or len(made[place].args) < 2:
        return False
    rank, cluster = made[place].args[1], range(ranks)
    reached = [at_rank(rank, made, own, ranks) for own in cluster]
    return None not in reached and sorted(reached) == list(cluster)
