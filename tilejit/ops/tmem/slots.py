"""Releases ring slots that tcgen05 products read, and marks those that they write full.

The commit of the products does both.

PTX ISA, "tcgen05.commit".
"""

from __future__ import annotations

from collections.abc import Iterator

from ...dtypes import int32
from ...ir.builder import Builder, type_of
from ...ir.graph import Block, Call, Const, For, If, Node, Operand, Scope, Value, While, blocks, number
from ..language.ids import cta_rank
from ..language.operators import binary
from .order import tcgen05_commit_

PAIR = 3  # multicast mask of both CTAs of a pair, relative to the rank of the even one


def reads_late(call: Call) -> bool:
    """Whether a call reads shared memory asynchronously, until a commit of its thread arrives (tcgen05
    products and copies)."""
    return call.op.traits.asynchronous and getattr(type_of(call.args[0]), "scope", None) == "tmem"


def products_of(g: Builder, nodes: list[Node], buffers) -> list[tuple[Call, tuple[str, ...]]]:
    """The tcgen05 products and copies in `nodes` that read a part of `buffers`,
    each with the kinds of the scopes around it."""
    return [(call, scopes) for call, scopes in _calls_that_take(g, nodes, buffers) if reads_late(call)]


def read_by_threads(g: Builder, nodes: list[Node], buffers) -> bool:
    """Whether any operation in `nodes` other than tcgen05 products and copies accesses a part of `buffers`."""
    return any(not reads_late(call) for call, _ in _calls_that_take(g, nodes, buffers))


def met_in(g: Builder, nodes: list[Node], buffers) -> bool:
    """Whether all warps of the scope have seen the slot full by the end of these nodes.

    That is so if they certainly used a part of `buffers`: in a product, which a warpgroup executes together, or by a
    read, after which they synchronise. Nodes that a branch, a loop or some threads of the scope may skip do not
    count.
    """
    return any(not (call.op.traits.copy and call.op.traits.asynchronous)
               for call, _ in _calls_that_take(g, nodes, buffers, _certain_blocks))


def _certain_blocks(node: Node) -> tuple[Block, ...]:
    """The blocks inside a node that all threads execute whenever they execute the node:
    bodies of loops known to iterate."""
    if isinstance(node, For):
        bounds = node.start, node.stop, node.step
        if not (all(isinstance(x, Const) for x in bounds) and range(*map(number, bounds))):
            return ()
    return () if isinstance(node, (If, While, Scope)) else blocks(node)


def _calls_that_take(g: Builder, nodes: list[Node], buffers, inside=blocks) -> Iterator[tuple[Call, tuple[str, ...]]]:
    """The calls other than views that take a part of `buffers`, each with the kinds of the scopes around it.

    `inside(node)` gives the nested blocks to search.
    """
    held = set(buffers)
    return ((call, scopes) for call, scopes in _calls(nodes, (), inside)
            if not call.op.traits.view and any(_buffer(g, a) in held for a in call.args))


def _calls(nodes, scopes: tuple[str, ...], inside) -> Iterator[tuple[Call, tuple[str, ...]]]:
    for node in nodes:
        if isinstance(node, Call):
            yield node, scopes
        for inner in inside(node):
            yield from _calls(inner.nodes, (*scopes, node.kind) if isinstance(node, Scope) else scopes, inside)


def _buffer(g: Builder, x: Operand) -> Operand:
    while isinstance(x, Value) and x in g.definitions and g.definitions[x].op.traits.view:
        x = g.definitions[x].args[0]
    return x


def release_by_commit(g: Builder, empty: Value, found: list, mask) -> None:
    """Emit a commit that arrives on `empty` when the products `found` are complete, in the thread that started them.

    CompilationError if they are not all started by one thread.
    """
    scopes = {scopes for _, scopes in found}
    if g.scope.threads == 1 and scopes == {()}:
        commit(g, empty, mask)
    elif g.scope.threads > 1 and scopes == {("elect",)}:
        with g.block() as nodes:
            commit(g, empty, mask)
        g.append(Scope("elect", None, 1, Block(tuple(nodes)), g.loc))
    else:
        raise g.error("tcgen05 products read this slot, and their commit releases it: "
                      "start them all in one thread (tile.elect(), in the scope that consumes the slot or around it)")


def commit(g: Builder, barrier: Value, mask) -> None:
    extra = () if mask is None else (g.operand(mask, int32),)
    g.call(tcgen05_commit_, barrier, *extra, cta_group=g.state.get("cta_group", 1))


def leader(g: Builder):
    """The rank of the even CTA of this CTA's pair; the constant 0 in a cluster of two."""
    cluster = g.launch.cluster or (1, 1, 1)
    return 0 if cluster[0] * cluster[1] * cluster[2] == 2 else binary(g, "&", g.call(cta_rank), ~1)


def pair_mask(g: Builder):
    """The multicast mask of both CTAs of this CTA's pair."""
    first = leader(g)
    return PAIR if first == 0 else binary(g, "<<", PAIR, first)


__all__ = ["commit", "leader", "met_in", "pair_mask", "products_of", "read_by_threads", "reads_late",
           "release_by_commit"]
