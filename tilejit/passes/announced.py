"""Compare the bytes that a barrier is told to expect with those that its copies bring, where both are plain to see.

That is where one block of the kernel, and nothing else, arms a barrier once with a constant and issues the copies on it. The
simulator finds the other mistakes of this kind. PTX ISA, "Tracking asynchronous operations by the mbarrier object".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import CompilationError
from ..ir.graph import Block, Call, Const, Graph, Value, blocks, operands
from ..types import Barrier, BarrierRef

ARM, COPY, HARMLESS = "mbarrier_arrive_expect_tx", "copy_async", ("mbarrier_wait", "mbarrier_test")


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
    for barriers, found in uses.items():
        certain = all(isinstance(i, int) for i in found.indices) or len(found.indices) == 1
        if not found.plain or not certain or barriers.type.count != 1:
            continue
        for index, arms in found.arms.items():
            _compare(arms, found.copies.get(index, []))
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
    if name == COPY and len(call.args) > 2 and call.args[2] in refs:
        barriers, index = refs[call.args[2]]
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


def _compare(arms: list, copies: list) -> None:
    if len(arms) != 1 or not copies:
        return
    (block, arm), announced = arms[0], arms[0][1].args[1]
    if not isinstance(announced, Const) or any(where is not block or not _counts(copy) for where, copy in copies):
        return
    brought = sum(copy.args[1].type.nbytes for _, copy in copies)
    if brought != announced.value:
        lines = ", ".join(str(line) for line in sorted({copy.loc.line for _, copy in copies}))
        raise CompilationError(f"{announced.value} bytes are announced, and the copies on this barrier bring {brought} (line {lines}): "
                               "its phase would never end", arm.loc)


def _counts(copy: Call) -> bool:
    """Whether the copy brings the bytes of its region, once, to the barrier of its own CTA."""
    return (getattr(copy.choice.plan, "completion", None) == "bytes" and not copy.args[0].type.buffer.peer
            and copy.attrs.get("partial") is None and not copy.attrs["options"].get("multicast"))
