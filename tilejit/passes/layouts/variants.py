"""Choose the lowering of every call whose op has variants, by their needs, and make the plans of other ops."""

from __future__ import annotations

from dataclasses import replace

from ...dispatch import Choice, choose
from ...errors import at
from ...ir.builder import Facts
from ...ir.graph import Block, Call, Graph, Node, with_blocks
from ...ir.op_rules import require_rule
from ..analysis.context import Context


def choose_variants(graph: Graph, facts: Facts) -> Graph:
    """The graph with a `choice` on every call whose op has variants or a plan. CompilationError for a call that is
    not allowed where it stands."""
    context = Context(graph, facts, wrapping=True)
    return replace(graph, body=_block(context, graph.body))


def _block(context: Context, block: Block) -> Block:
    with context.in_block(block):
        return replace(block, nodes=tuple(_node(context, n) for n in block.nodes))


def _node(context: Context, node: Node) -> Node:
    if isinstance(node, Call):
        return _choose_variant(context, node)
    with context.in_scope_of(node):
        return with_blocks(node, lambda block: _block(context, block))


def _choose_variant(context: Context, call: Call) -> Call:
    with at(call.loc):
        if call.op.rules.check is not None:
            call.op.rules.check(context, call)
        if call.op.variants:
            site = require_rule(call.op.rules.site)(context, call)
            only = (call.attrs.get("options") or {}).get("variant")
            shown = call.op.traits.shown or call.op.name
            return replace(call, choice=choose(shown, call.op.variants, site, only=only, loc=call.loc))
        plan = call.op.rules.plan(context, call) if call.op.rules.plan is not None else None
        if plan is not None:
            return replace(call, choice=Choice(call.op.name, plan))
    return call
