"""Products of loops that stay in flight while the next trip begins: their waits are deferred by one trip."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...ir.builder import type_of
from ...ir.graph import Block, Call, For, Node, operands, walk, with_blocks
from ...ir.op import Op
from ...ops.memory.access_ops import load_, store_
from ...ops.memory.shared import sync
from ...ops.mma import mma_async_, mma_commit, mma_wait
from ...ops.sync.barriers import fence_proxy_async
from ...types import Tile
from ..analysis.program_slices import without_dead_code

PRODUCT = [mma_async_, mma_commit, mma_wait]
# how operands in registers are staged; several stores count as one
STAGE_OPERANDS = [sync, store_, fence_proxy_async, sync]


def deferrable_wait(loop: For, apart: Collection[Node] = ()) -> Call | None:
    """The wait for a loop's product if it can be deferred to the next trip, else None.

    It can if the loop only hands the result on to its next trip, no trip writes registers that the product reads, and
    nothing follows the wait. The nodes in `apart` are left out of account.
    """
    rest = without_dead_code(replace(loop.body, nodes=tuple(n for n in loop.body.nodes if n not in apart)))
    others = [n for n in rest.nodes if not (isinstance(n, Call) and n.op.effect == "pure")]
    product = next((n for n in others if isinstance(n, Call) and n.op is mma_async_), None)
    if product is None or _significant_ops(others) not in (PRODUCT, STAGE_OPERANDS + PRODUCT):
        return None
    if _writes_operand_registers(loop, product) or not _only_hands_on(loop, product):
        return None
    wait = others[-1]
    assert isinstance(wait, Call)
    return wait


def _writes_operand_registers(loop: For, product: Call) -> bool:
    """Whether the first factor of a loop's product is in registers that each trip writes."""
    factor = product.args[1]
    changed = [c.inner for c in loop.carried] + [r for n in loop.body.nodes if isinstance(n, Call) for r in n.results]
    return isinstance(type_of(factor), Tile) and factor in changed


def _only_hands_on(loop: For, product: Call) -> bool:
    """Whether a loop's product adds to the result of the trip before, which nothing else in the loop uses."""
    inner = next((c.inner for c, y in zip(loop.carried, loop.body.yields) if y is product.result), None)
    if inner is None or product.args[0] is not inner:
        return False
    used = [n for n in walk(loop.body) if inner in operands(n) or product.result in operands(n)]
    handed = [y for y in loop.body.yields if y is inner or y is product.result]
    return used == [product] and len(handed) == 1


def _significant_ops(nodes: list[Node]) -> list[Op | None]:
    """The ops of the calls, without leading loads; a run of stores counts as one."""
    ops = [n.op if isinstance(n, Call) else None for n in nodes]
    first = next((n for n, op in enumerate(ops) if op is not load_), 0)
    return [op for n, op in enumerate(ops) if n >= first and not (op is store_ and ops[n - 1] is store_)]


def with_deferred_wait(nodes: list[Node], wait: Call) -> list[Node]:
    """The nodes of a trip that leaves its product in flight.

    It waits until all products but the newest are done. Where it stages operands from registers through shared
    memory, it instead waits, before it overwrites them, for the product of the trip before.
    """
    meets = next((n for n, node in enumerate(nodes) if isinstance(node, Call) and node.op is sync), None)
    if meets is None:
        return [replace(n, attrs={"n": 1}) if isinstance(n, Call) and n.op is wait.op else n for n in nodes]
    rest = [n for n in nodes if not (isinstance(n, Call) and n.op is wait.op)]
    return [*rest[:meets], replace(wait, results=()), *rest[meets:]]


def defer_waits(block: Block) -> Block:
    """A block in which loops that are not pipelined leave their products in flight under the next trip's loads, if
    `dot` has written them so that they can."""
    nodes: list[Node] = []
    for old in block.nodes:
        node = with_blocks(old, defer_waits)
        nodes.append(node)
        if not (isinstance(node, For) and node.pipeline is None and node.unroll == 1):
            continue
        deferred = deferrable_wait(node)
        if (deferred is not None
            and any(isinstance(n, Call) and n.op is sync and n.loc == deferred.loc for n in node.body.nodes)):
            body = replace(node.body, nodes=tuple(with_deferred_wait(list(node.body.nodes), deferred)))
            nodes[-1:] = replace(node, body=body), replace(deferred, results=())
    return replace(block, nodes=tuple(nodes))


__all__ = ["defer_waits", "deferrable_wait", "with_deferred_wait"]
