"""Choose the lowering of every call that has several: a variant, by the variants' needs, or the plan of a memory access."""

from __future__ import annotations

from dataclasses import replace

from ...dispatch import Choice, choose
from ...errors import at
from ...ir.builder import Facts
from ...ir.graph import Block, Call, Graph, with_blocks
from ..analysis.context import Context


def choose_variants(graph: Graph, facts: Facts) -> Graph:
    """The graph with a `choice` on every call whose op has variants or a plan. CompilationError for a call that is not allowed where it stands."""
    context = Context(graph, facts, wrapping=True)
    return replace(graph, body=_block(context, graph.body))


def _block(context: Context, block: Block) -> Block:
    with context.in_block(block):
        return replace(block, nodes=tuple(_node(context, n) for n in block.nodes))


def _node(context: Context, node):
    if isinstance(node, Call):
        return _call(context, node)
    with context.in_scope_of(node):
        return with_blocks(node, lambda block: _block(context, block))


def _call(context: Context, call: Call) -> Call:
    """The call with its choice. One that an earlier pass has chosen keeps that variant's name, with the reasons and cures of the others."""
    made = _chosen(context, call)
    if call.choice is None:
        return made
    lowered, before = made.choice or call.choice, call.choice
    return replace(made, choice=replace(lowered, variant=before.variant, declined=before.declined, cures=before.cures))


def _chosen(context: Context, call: Call) -> Call:
    with at(call.loc):
        if "check" in call.op.rules:
            call.op.rules["check"](context, call)
        if call.op.variants:
            site = call.op.rules["site"](context, call)
            variants = call.op.rules["variants"](call) if "variants" in call.op.rules else call.op.variants
            only = (call.attrs.get("options") or {}).get("variant")
            return replace(call, choice=choose(call.op.rules.get("shown", call.op.name), variants, site, only=only, loc=call.loc))
        plan = call.op.rules["plan"](context, call) if "plan" in call.op.rules else None
        if plan is not None:
            declined = call.op.rules["declined"](context, call, plan) if "declined" in call.op.rules else ()
            return replace(call, choice=Choice(call.op.name, plan, declined))
    return call
