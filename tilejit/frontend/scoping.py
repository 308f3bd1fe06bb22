"""The statement `with`: execution scopes and the language's context managers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from ..dtypes import int32
from ..ir.builder import describe, type_as
from ..ir.graph import Block, Const, For, Scope, Value, results, walk
from ..ops.moves.copy_async.tokens import Token
from ..types import Scalar, Uniformity
from . import joins
from .assignment_targets import bind
from .names import Undefined, is_cell
from .scopes import EachScope, ScopeSpec, explain_absence, first_operand, open_scope
from .walker import Branch, Home, Walker, second_location, statement


@statement(ast.With)
def with_(w: Walker, node: ast.With) -> None:
    """``with`` over one or more context managers, nested from left to right."""
    _enter(w, node.items, node.body)


def _enter(w: Walker, items: list[ast.withitem], body: list[ast.stmt]) -> None:
    if not items:
        w.statements(body)
        return
    item, rest = items[0], items[1:]
    manager = w.value(item.context_expr)
    if isinstance(manager, ScopeSpec):
        if item.optional_vars is not None:
            raise w.error("an execution scope has no value; leave out the `as`", item.optional_vars)
        with w.place(item.context_expr):
            run_scope(w, manager, body, rest)
    elif isinstance(manager, EachScope):
        with w.place(item.context_expr):
            run_each(w, manager, item.optional_vars, body, rest)
    elif hasattr(manager, "tile_enter"):
        with w.place(item.context_expr):
            value = manager.tile_enter(w.g)
        if item.optional_vars is not None:
            bind(w, item.optional_vars, value, anew=True)
        w.g.entered.append(manager)
        try:
            _enter(w, rest, body)
        finally:
            w.g.entered.pop()
        with w.place(item.context_expr):
            manager.tile_exit(w.g)
        if getattr(manager, "tile_expires", None) and isinstance(item.optional_vars, ast.Name):
            w.put(item.optional_vars.id,
                  Undefined(manager.tile_expires + second_location("taken", w.loc(item.optional_vars))))
    else:
        raise w.error("`with` takes an execution scope (tile.elect(), tile.thread(i), tile.warp(i), tile.warpgroup(i)) "
                      f"or a construct of the language, not {describe(manager)}", item.context_expr)


def run_each(w: Walker, each: EachScope, target: ast.expr | None, body: list[ast.stmt],
             items: list[ast.withitem]) -> None:
    """Append a For node around one Scope node, for `each_warpgroup` or `each_warp`. Its trips are run by different
    threads, so they run side by side."""
    problem = explain_absence(w.g, ScopeSpec(each.kind, each.first, each.count))
    if problem is not None:
        raise w.g.error(problem)
    index, loc = Value(each.kind, Scalar(int32, Uniformity[each.kind.upper()]), w.g.loc), w.g.loc
    named = None if target is None else lambda: bind(w, target, index, anew=True)
    with w.g.block() as nodes:
        run_scope(w, ScopeSpec(each.kind, index, 1, each.regs, each=True), body, items, named)
    start, stop, step = (Const(n, int32) for n in (each.first, each.first + each.count, 1))
    w.g.append(For(index, start, stop, step, (), Block(tuple(nodes)), loc))


def run_scope(w: Walker, spec: ScopeSpec, body: list[ast.stmt], items: Sequence[ast.withitem] = (),
              before: Callable[[], None] | None = None) -> None:
    """Append the Scope node of `body`; `before` is called inside it first. Names assigned in it that hold registers
    are undefined after it."""
    scope, loc = open_scope(w.g, spec), w.g.loc
    first = first_operand(spec)
    if isinstance(first, Value):
        first = w.coerce(first, Scalar(int32, type_as(first, Scalar).uniform))
    outer, w.home = w.home, Home(loc)

    def inside() -> None:
        if before is not None:
            before()
        _enter(w, list(items), body)

    try:
        with w.g.in_scope(scope):
            branch = w.collect(inside)
    finally:
        w.home = outer
    w.g.append(Scope(spec.kind, first, spec.count, Block(tuple(branch.nodes)), loc, spec.regs))
    _leave(w, branch)


ASSIGNED = "was assigned inside an execution scope, and registers cannot leave it; pass it through a buffer"
COUNTED = ("is counted inside an execution scope, and registers cannot leave it; "
           "write the loops around it inside the scope, with what these threads do after it")


def _leave(w: Walker, branch: Branch) -> None:
    """Bind the names that a scope assigned for the code after it: buffers, barriers and tokens keep their values,
    others become `Undefined`."""
    made: set[Value] | None = None
    for name, entry in branch.env.items():
        if w.frame.env.get(name) is entry:
            continue
        if made is None:
            made = {r for node in walk(Block(tuple(branch.nodes))) for r in results(node)}
        stays = isinstance(entry.value, Undefined) or not _comes_out(name, entry.value, made)
        value: Any = entry.value
        if stays and not isinstance(value, Undefined):
            value = Undefined((COUNTED if is_cell(name) else ASSIGNED)
                              + second_location("counted" if is_cell(name) else "assigned", entry.loc))
        w.frame.env[name] = type(entry)(value, entry.loc, w.home, came_out=True)


def _comes_out(name: Any, value: Any, made: set[Value]) -> bool:
    if ((is_cell(name) or isinstance(value, Token))
        and not any(joins.is_runtime(leaf) and leaf in made for leaf in joins.leaves(value))):
        return True
    return not any(joins.is_number(leaf) or isinstance(leaf, Value) and leaf in made for leaf in joins.leaves(value))
