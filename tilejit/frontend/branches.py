"""Conditions: a branch that is chosen at compile time, or an If node whose results are the names that differ between its branches."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ..dtypes import bool_
from ..ir.builder import describe, type_of
from ..ir.graph import Block, Call, If, Operand, Value
from ..ops import language
from ..types import Scalar, Tile
from . import joins
from .joins import Clash, is_runtime
from .names import RESULT, Entry, Undefined, is_cell, leaves_early
from .ranges import LoopRange, StaticRange
from .scopes import ScopeSpec, absent, describe_scope, meant_by, misfit
from .scoping import run_scope
from .walker import Branch, Walker, expression, is_callable_of_the_language, runtime, statement, where

CHOSEN = "value of the expression"  # the name that holds an expression's value at the ends of its branches


def truth(w: Walker, x: Any) -> bool | Value:
    """`x` as a condition: a Python bool if it is known at compile time, else a bool scalar of the graph."""
    if isinstance(x, joins.Const):
        x = x.value
    if not is_runtime(x):
        _refuse_as_condition(w, x)
        if isinstance(x, tuple) and runtime(x) or joins.is_record(type(x)):
            raise w.error("a tuple cannot be a condition; compare its elements")
        return bool(x)
    t = type_of(x)
    if isinstance(t, Tile):
        raise w.error(f"a condition is one scalar, not {describe(x)}; choose element by element with tile.where, "
                      "or reduce it with tile.any or tile.all")
    if not isinstance(t, Scalar):
        raise w.error(f"{describe(x)} cannot be a condition")
    return language.as_condition(w.g, x)


def _refuse_as_condition(w: Walker, x: Any) -> None:
    """CompilationError for objects of the language that Python would always take for true."""
    if isinstance(x, ScopeSpec):
        raise w.error(f"an execution scope cannot be a condition; write `with tile.{x}:`")
    if is_callable_of_the_language(x):
        raise w.error(f"{x.name} is a function, which cannot be a condition; call it, as in {x.name}()")
    if isinstance(x, (LoopRange, StaticRange)):
        raise w.error("a range cannot be a condition; a loop over it is written `for i in range(...)`")


# -- if ----------------------------------------------------------------------------------------------------------------

@statement(ast.If)
def if_(w: Walker, node: ast.If, rest: list[ast.stmt]) -> bool:
    """An `if` statement. Returns whether `rest`, the statements after it, was walked too, as part of a branch: that is done if a branch leaves the
    function or loop."""
    test = truth(w, judged(w, node.test))
    if isinstance(test, bool):
        taken = node.body if test else node.orelse
        consumed = leaves_early(taken)
        w.statements(taken + rest if consumed else taken)
        return consumed
    scopes = _scopes_meant(w, node, test)
    for branch, spec in scopes:
        nobody = absent(w.g, spec)
        with w.place(branch):
            if nobody is not None:
                w.g.warn(f"this condition never holds: {nobody}")
            else:
                run_scope(w, spec, branch.body)
    return False if scopes else _run_time_if(w, node, test, rest)


def _scopes_meant(w: Walker, node: ast.If, test: Value) -> list[tuple[ast.If, ScopeSpec]]:
    """The scopes to which ``if tile.warp_id() == a: ... elif tile.warp_id() == b: ...`` is equivalent, each with its If; [] for other
    conditions."""
    found: list[tuple[ast.If, ScopeSpec]] = []
    while True:
        spec = meant_by(w.g, test)
        if spec is None or leaves_early(node.body) or misfit(w.g, spec) is not None:
            return []
        found.append((node, spec))
        firsts = [s.first for _, s in found]
        if len(found) > 1 and (len({s.kind for _, s in found}) > 1 or len(set(firsts)) < len(firsts)
                               or not all(isinstance(f, int) for f in firsts)):
            return []
        if not node.orelse:
            return found
        if len(node.orelse) > 1 or not isinstance(node.orelse[0], ast.If):
            return []
        node = node.orelse[0]
        brought: list[Any] = []
        w.collect(lambda: brought.append(judged(w, node.test)))  # walked only to be inspected: scopes need no condition
        test = brought[0]


def _run_time_if(w: Walker, node: ast.If, test: Value, rest: list[ast.stmt]) -> bool:
    with w.partial_on(test):
        then = w.collect(lambda: w.statements(node.body))
        orelse = w.collect(lambda: w.statements(node.orelse + rest if then.dead else node.orelse))
        consumed = then.dead
        if orelse.dead and not then.dead:
            w.resume(then, lambda: w.statements(rest))
            consumed = True
    join_branches(w, test, then, orelse)
    return consumed


def either(w: Walker, test: Operand, then_body: Callable[[], None], else_body: Callable[[], None]) -> None:
    """Append an If node whose branches are what the two functions walk."""
    with w.partial_on(test):
        then, orelse = w.collect(then_body), w.collect(else_body)
    join_branches(w, test, then, orelse)


# -- what the names hold afterwards --------------------------------------------------------------------------------------

def join_branches(w: Walker, test: Value, then: Branch, orelse: Branch) -> None:
    """Append the If node of two walked branches; names that differ between them become its results."""
    plans: dict[Any, joins.Join] = {}
    sides: dict[Any, tuple[Any, Any]] = {}
    names = [n for n, entry in then.env.items() if orelse.env.get(n) is not entry] + [n for n in orelse.env if n not in then.env]
    for name in names:
        a, b = then.env.get(name), orelse.env.get(name)
        plan, x, y = _join_name(w, name, a, b, test)
        if isinstance(plan, Clash):
            w.put(name, Undefined(plan.why), _home(w, a, b))
        else:
            plans[name], sides[name] = plan, (x, y)
    then_yields = _yields(w, then, plans, {n: s[0] for n, s in sides.items()})
    else_yields = _yields(w, orelse, plans, {n: s[1] for n, s in sides.items()})
    results = []
    for name, plan in plans.items():
        values = [Value(graph_name(name), t, w.g.loc) for t in joins.types(plan)]
        results += values
        w.put(name, joins.rebuild(plan, iter(values)), _home(w, then.env.get(name), orelse.env.get(name)))
    w.g.append(If(test, Block(tuple(then.nodes), then_yields), Block(tuple(orelse.nodes), else_yields), tuple(results), w.g.loc))


def _join_name(w: Walker, name: Any, a: Entry | None, b: Entry | None, test: Value) -> tuple[joins.Join, Any, Any]:
    """How the values that a name has after two branches become one: the join, and the two values."""
    lacks = [e is None or isinstance(e.value, Undefined) for e in (a, b)]
    if is_cell(name):
        initial = w.g.cells.initial[name[1]]
        a, b = a or Entry(initial, w.g.loc, w.home), b or Entry(initial, w.g.loc, w.home)
    elif any(lacks) and not all(lacks) and name == RESULT:
        return _one_sided(w, a, b, lacks[0], test)
    elif any(lacks):
        return Clash(_why_lacking(a, b)), None, None
    a.read = b.read = True
    plan = joins.join(a.value, b.value)
    if isinstance(plan, Clash):
        seen = where("on one path", a.loc) + where("on the other", b.loc)
        return Clash(f"{plan.why}, after a condition that is decided at run time{seen}"), None, None
    return _bounded(w, plan, test), a.value, b.value


def _why_lacking(a: Entry | None, b: Entry | None) -> str:
    """Why a name that is not defined after both branches is undefined after them."""
    for entry in (a, b):
        if entry is not None and isinstance(entry.value, Undefined):
            return entry.value.why
    return "may be undefined: only one branch of a run-time condition assigns it; assign it before" + where("assigned", (a or b).loc)


def _one_sided(w: Walker, a: Entry | None, b: Entry | None, first_lacks: bool, test: Value):
    """The join of a function's result that only one branch has returned so far. The other's value is a filler, which a later return
    replaces."""
    value = (b if first_lacks else a).value
    plan = joins.pending(value)
    if isinstance(plan, Clash):
        return Clash(plan.why), None, None
    filler = joins.filler(plan)
    return (_bounded(w, plan, test), filler, value) if first_lacks else (_bounded(w, plan, test), value, filler)


def _bounded(w: Walker, plan: joins.Join, test: Value) -> joins.Join:
    uniform = type_of(test).uniform
    if uniform < w.g.scope.uniformity and any(isinstance(t, Tile) for t in joins.types(plan)):
        return Clash(f"is a register tile of {describe_scope(w.g.scope)}, and the condition on {test.name} that changes it differs "
                     "between its threads; choose element by element with tile.where")
    return joins.cap(plan, uniform)


def _yields(w: Walker, branch: Branch, plans: dict, values: dict) -> tuple[Operand, ...]:
    with w.g.reopened(branch.nodes):
        return tuple(o for name, plan in plans.items() for o in joins.flatten(plan, values[name], w.coerce))


def _home(w: Walker, a: Entry | None, b: Entry | None):
    homes = [e.home for e in (a, b) if e is not None]
    return homes[0] if all(h is homes[0] for h in homes) else w.home


def graph_name(name: Any) -> str:
    """The name in the graph of the value of a name or cell."""
    if is_cell(name):
        key = name[1]
        return str(key[0] if isinstance(key, tuple) else key)
    return {RESULT: "result", CHOSEN: "chosen"}.get(name, name.partition(" ")[0])


# -- expressions ---------------------------------------------------------------------------------------------------------

@expression(ast.IfExp)
def conditional(w: Walker, node: ast.IfExp) -> Any:
    """``a if test else b``: a branch chosen at compile time, or an If node that evaluates one of the two."""
    test = truth(w, judged(w, node.test))
    if isinstance(test, bool):
        return w.value(node.body if test else node.orelse)
    return choose(w, test, lambda: w.value(node.body), lambda: w.value(node.orelse))


def choose(w: Walker, test: Value, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
    """The value of ``then()`` or ``orelse()``, by an If node on `test`."""
    either(w, test, lambda: w.put(CHOSEN, then()), lambda: w.put(CHOSEN, orelse()))
    entry = w.frame.env.pop(CHOSEN)
    if isinstance(entry.value, Undefined):
        raise w.error(f"the expression {entry.value.why}")
    return entry.value


@expression(ast.BoolOp)
def bool_op(w: Walker, node: ast.BoolOp) -> Any:
    """``and``, ``or``: the operand that decides, as in Python. After a compile-time operand that decides, the rest is not walked."""
    return _decided(w, node, w.value, True)


def judged(w: Walker, node: ast.expr) -> Any:
    """The value of an expression that is used only as a condition, so that ``and`` and ``or`` may give a bool."""
    if not isinstance(node, ast.BoolOp):
        return w.value(node)
    with w.place(node):
        return _decided(w, node, lambda operand: judged(w, operand), False)


def _decided(w: Walker, node: ast.BoolOp, value: Callable[[ast.expr], Any], numbers: bool) -> Any:
    word = "and" if isinstance(node.op, ast.And) else "or"
    result = value(node.values[0])
    for operand in node.values[1:]:
        if not is_runtime(result):
            decided = bool(result) == (word == "or")
            if decided:
                return result
            result = value(operand)
            continue
        result = only_if(w, word, result, lambda: value(operand), numbers)
    return result


def only_if(w: Walker, word: str, left: Operand, right: Callable[[], Any], numbers: bool = False) -> Any:
    """``left and right()`` or ``left or right()`` with a run-time `left`. What `right` walks goes into a branch, unless it
    is pure. With `numbers`, the result of two numbers is the operand that decides, in their common dtype; otherwise it is
    a bool."""
    value, left = left, _side(w, word, left)
    if isinstance(left, bool):
        return (value if numbers else left) if left == (word == "or") else right()
    with w.partial_on(left):
        branch = w.collect(lambda: w.put(CHOSEN, right()))
    entry = branch.env.pop(CHOSEN)
    _refuse_tile(w, word, entry.value)
    numbers = numbers and joins.is_number(entry.value) and all(type_of(x).dtype != bool_ for x in (value, entry.value))
    dtype = language.common_dtype(w.g, value, entry.value) if numbers else bool_

    def alike(x: Any) -> Any:
        return x if type_of(x).dtype == dtype else language.converted(w.g, x, dtype)

    changed = any(w.frame.env.get(n) is not e for n, e in branch.env.items())
    if not changed and all(isinstance(n, Call) and n.op.effect == "pure" for n in branch.nodes):
        w.g.blocks[-1].extend(branch.nodes)
        if numbers:
            ways = (lambda: alike(entry.value)), (lambda: alike(value))
            return choose(w, left, *ways if word == "and" else reversed(ways))
        condition = _side(w, word, entry.value)
        if isinstance(condition, bool):
            return left if condition == (word == "and") else condition
        return language.logical(w.g, word, left, condition)
    with w.partial_on(left):
        w.resume(branch, lambda: w.put(CHOSEN, alike(entry.value) if numbers else language.as_condition(w.g, entry.value)))
        decided = w.collect(lambda: w.put(CHOSEN, alike(value) if numbers else word == "or"))
    then, orelse = (branch, decided) if word == "and" else (decided, branch)
    join_branches(w, left, then, orelse)
    return w.frame.env.pop(CHOSEN).value


def _side(w: Walker, word: str, x: Any) -> bool | Value:
    _refuse_tile(w, word, x)
    return truth(w, x)


def _refuse_tile(w: Walker, word: str, x: Any) -> None:
    if isinstance(type_of(x), Tile):
        raise w.error(f"`{word}` takes scalars; for tiles write a {'&' if word == 'and' else '|'} b")
