"""Products of loops that stay on their way while the next trip begins."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..ir.builder import type_of
from ..ir.graph import Block, Call, For, Node, operands, walk, with_blocks
from ..ops.shared import sync
from ..types import Tile
from .program_slices import without_dead_code

PRODUCT = ["mma_async", "mma_commit", "mma_wait"]
STAGE_OPERANDS = ["sync", "store", "fence_proxy_async", "sync"]  # what brings operands from registers to the product: several stores count as one


def deferrable_wait(loop: For, apart: Collection[Node] = ()) -> Call | None:
    """The wait for the loop's product, if that may stay on its way while the next trip begins: its result is only handed on to that, no trip
    writes registers that it reads, and nothing comes after the wait. The nodes `apart` are not counted."""
    rest = without_dead_code(replace(loop.body, nodes=tuple(n for n in loop.body.nodes if n not in apart)))
    others = [n for n in rest.nodes if not (isinstance(n, Call) and n.op.effect == "pure")]
    product = next((n for n in others if isinstance(n, Call) and n.op.name == "mma_async"), None)
    if product is None or _significant_names(others) not in (PRODUCT, STAGE_OPERANDS + PRODUCT):
        return None
    inner = next((c.inner for c, y in zip(loop.carried, loop.body.yields) if y is product.result), None)
    changed = [c.inner for c in loop.carried] + [r for n in loop.body.nodes if isinstance(n, Call) for r in n.results]
    if inner is None or product.args[0] is not inner or isinstance(type_of(product.args[1]), Tile) and product.args[1] in changed:
        return None
    used = [n for n in walk(loop.body) if inner in operands(n) or product.result in operands(n)]
    handed = [y for y in loop.body.yields if y is inner or y is product.result]
    return others[-1] if used == [product] and len(handed) == 1 else None


def _significant_names(nodes: list[Node]) -> list[str]:
    """The names of calls, without the loads before all others, and of several stores one."""
    names = [n.op.name if isinstance(n, Call) else "" for n in nodes]
    first = next((n for n, name in enumerate(names) if name != "load"), 0)
    return [name for n, name in enumerate(names) if n >= first and not name == names[n - 1] == "store"]


def with_deferred_wait(nodes: list[Node], wait: Call) -> list[Node]:
    """The nodes of a trip whose product stays on its way until that of the next one is; or, where an operand is brought to it from registers, until
    that of the next one is there, and takes its place."""
    meets = next((n for n, node in enumerate(nodes) if isinstance(node, Call) and node.op is sync), None)
    if meets is None:
        return [replace(n, attrs={"n": 1}) if isinstance(n, Call) and n.op is wait.op else n for n in nodes]
    rest = [n for n in nodes if not (isinstance(n, Call) and n.op is wait.op)]
    return [*rest[:meets], replace(wait, results=()), *rest[meets:]]


def defer_waits(block: Block) -> Block:
    """The products of ordinary loops that `dot` has made so, under which the loads of the next trip come."""
    nodes = []
    for node in block.nodes:
        node = with_blocks(node, defer_waits)
        nodes.append(node)
        late = deferrable_wait(node) if isinstance(node, For) and node.pipeline is None and node.unroll == 1 else None
        if late is not None and any(isinstance(n, Call) and n.op is sync and n.loc == late.loc for n in node.body.nodes):
            body = replace(node.body, nodes=tuple(with_deferred_wait(list(node.body.nodes), late)))
            nodes[-1:] = replace(node, body=body), replace(late, results=())
    return replace(block, nodes=tuple(nodes))


__all__ = ["defer_waits", "deferrable_wait", "with_deferred_wait"]
