"""A ring's slots and the products of tensor memory: slots that products read are given back by their commit, and slots of
accumulators are full when it arrives.

PTX ISA, "tcgen05.commit".
"""

from __future__ import annotations

from collections.abc import Iterator

from ...dtypes import int32
from ...ir.builder import Builder
from ...ir.graph import Block, Call, Const, For, If, Node, Operand, Scope, Value, While, blocks
from ..ids import cta_rank
from ..language import binary
from .order import tcgen05_commit_

VIEWS = ("region", "points", "buffer_view")
PAIR = 3  # the mask of a pair's CTAs, from the rank of its even one on


def reads_late(call: Call) -> bool:
    """Whether a call reads shared memory until a commit of its thread arrives."""
    return call.op.name == "tensor_mma" or call.op.name == "copy_async" and call.args[0].type.scope == "tmem"


def products_of(g: Builder, nodes: list[Node], buffers) -> list[tuple[Call, tuple[str, ...]]]:
    """The products into tensor memory and the copies there that read a part of `buffers`, each with the scopes around it."""
    return [(call, scopes) for call, scopes in _taking(g, nodes, buffers) if reads_late(call)]


def read_by_threads(g: Builder, nodes: list[Node], buffers) -> bool:
    """Whether threads themselves touch a part of `buffers`."""
    return any(not reads_late(call) for call, _ in _taking(g, nodes, buffers))


def met_in(g: Builder, nodes: list[Node], buffers) -> bool:
    """Whether all warps of the scope have seen the slot full where these nodes are over: they have multiplied from a part of `buffers`, which a
    warpgroup does together, or have read it, after which they meet. What a branch, a loop or threads of the scope may leave out does not count."""
    return any(call.op.name != "copy_async" for call, _ in _taking(g, nodes, buffers, _surely))


def _surely(node: Node) -> tuple[Block, ...]:
    """The blocks inside a node that all its threads run whenever it does."""
    if isinstance(node, For) and not (all(isinstance(x, Const) for x in (node.start, node.stop, node.step))
                                      and range(node.start.value, node.stop.value, node.step.value)):
        return ()
    return () if isinstance(node, (If, While, Scope)) else blocks(node)


def _taking(g: Builder, nodes: list[Node], buffers, inside=blocks) -> Iterator[tuple[Call, tuple[str, ...]]]:
    """The calls, views aside, that take a part of `buffers`, each with the scopes around it, also those in what is `inside` of nodes."""
    held = set(buffers)
    return ((call, scopes) for call, scopes in _calls(nodes, (), inside)
            if call.op.name not in VIEWS and any(_buffer(g, a) in held for a in call.args))


def _calls(nodes, scopes: tuple[str, ...], inside) -> Iterator[tuple[Call, tuple[str, ...]]]:
    for node in nodes:
        if isinstance(node, Call):
            yield node, scopes
        for inner in inside(node):
            yield from _calls(inner.nodes, (*scopes, node.kind) if isinstance(node, Scope) else scopes, inside)


def _buffer(g: Builder, x: Operand) -> Operand:
    while isinstance(x, Value) and x in g.definitions and g.definitions[x].op.name in VIEWS:
        x = g.definitions[x].args[0]
    return x


def release_by_commit(g: Builder, empty: Value, found: list, mask) -> None:
    """Arrive at `empty` when the products are done: by a commit of the thread that started them."""
    scopes = {scopes for _, scopes in found}
    if g.scope.threads == 1 and scopes == {()}:
        commit(g, empty, mask)
    elif g.scope.threads > 1 and scopes == {("elect",)}:
        with g.block() as nodes:
            commit(g, empty, mask)
        g.append(Scope("elect", None, 1, Block(tuple(nodes)), g.loc))
    else:
        raise g.error("tcgen05 products read this slot, and their commit releases it: start them all in one thread (tile.elect(), in the scope that "
                      "consumes the slot or around it)")


def commit(g: Builder, barrier: Value, mask) -> None:
    extra = () if mask is None else (g.operand(mask, int32),)
    g.call(tcgen05_commit_, barrier, *extra, cta_group=g.state.get("cta_group", 1))


def leader(g: Builder):
    """The rank of the even CTA of this one's pair."""
    cluster = g.launch.cluster or (1, 1, 1)
    return 0 if cluster[0] * cluster[1] * cluster[2] == 2 else binary(g, "&", g.call(cta_rank), ~1)


def pair_mask(g: Builder):
    """The mask of both CTAs of this one's pair."""
    first = leader(g)
    return PAIR if first == 0 else binary(g, "<<", PAIR, first)


__all__ = ["commit", "leader", "met_in", "pair_mask", "products_of", "read_by_threads", "reads_late", "release_by_commit"]
