"""`if` statements: branches chosen at compile time, and If nodes.

The results of an If node are the names that differ between its branches.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dtypes import bool_
from ..ir.builder import as_value, describe, element_type, type_as, type_of
from ..ir.graph import Block, Call, Const, If, Node, Operand, Value
from ..ops.language import operators, promotion
from ..types import Scalar, Tile
from . import joins
from .joins import Clash, is_runtime
from .names import EXITS, ONWARD, RESULT, Entry, Undefined, is_cell, leaves_early
from .ranges import LoopRange, StaticRange
from .scopes import ScopeSpec, describe_scope, explain_absence, meant_by, misfit
from .scoping import run_scope
from .walker import Branch, Walker, expression, is_callable_of_the_language, runtime, second_location, statement

CHOSEN = "value of the expression"  # the name that holds an expression's value at the ends of its branches


def truth(w: Walker, x: Any) -> bool | Value:
    """`x` as a condition: a Python bool if it is known at compile time, else a bool scalar of the graph."""
    if isinstance(x, Const):
        x = x.value
    if not is_runtime(x):
        _refuse_as_condition(w, x)
        if isinstance(x, (tuple, list, dict)) and runtime(x) or joins.is_record(type(x)):
            kind = type(x).__name__ if isinstance(x, (list, dict)) else "tuple"
            raise w.error(f"a {kind} cannot be a condition; compare its elements")
        return bool(x)
    t = type_of(x)
    if isinstance(t, Tile):
        raise w.error(f"a condition is one scalar, not {describe(x)}; choose element by element with tile.where, "
                      "or reduce it with tile.any or tile.all")
    if not isinstance(t, Scalar):
        raise w.error(f"{describe(x)} cannot be a condition")
    return as_value(promotion.as_condition(w.g, x))


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
    """An `if` statement. Returns whether `rest`, the statements after it, was walked too, as part of a branch: that
    is done if a branch leaves the function or loop."""
    test = truth(w, evaluate_condition(w, node.test))
    if isinstance(test, bool):
        taken = node.body if test else node.orelse
        consumed = leaves_early(taken)
        w.statements(taken + rest if consumed else taken)
        return consumed
    scopes = _scopes_meant(w, node, test)
    for branch, spec in scopes:
        nobody = explain_absence(w.g, spec)
        with w.place(branch):
            if nobody is not None:
                w.g.warn(f"this condition never holds: {nobody}")
            else:
                run_scope(w, spec, branch.body)
    return False if scopes else _run_time_if(w, node, test, rest)


def _scopes_meant(w: Walker, node: ast.If, test: Value) -> list[tuple[ast.If, ScopeSpec]]:
    """The scopes to which ``if tile.warp_id() == a: ... elif tile.warp_id() == b: ...`` is equivalent, each with its
    If; [] for other conditions."""
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
        # walked only to be inspected: scopes need no condition
        w.collect(lambda: brought.append(evaluate_condition(w, node.test)))
        test = brought[0]


def _run_time_if(w: Walker, node: ast.If, test: Value, rest: list[ast.stmt]) -> bool:
    with w.partial_on(test):
        then = w.collect(lambda: w.statements(node.body))
        orelse = w.collect(lambda: w.statements(node.orelse + rest if then.gone else node.orelse))
        consumed = bool(then.gone)
        if orelse.gone and not then.gone:
            w.resume(then, lambda: w.statements(rest))
            consumed = True
    join_branches(w, test, then, orelse)
    return consumed


def append_if(w: Walker, test: Value, then_body: Callable[[], None], else_body: Callable[[], None]) -> None:
    """Append an If node whose branches are what the two functions walk."""
    with w.partial_on(test):
        then, orelse = w.collect(then_body), w.collect(else_body)
    join_branches(w, test, then, orelse)


# -- what the names hold afterwards ------------------------------------------------------------------------------------

def join_branches(w: Walker, test: Value, then: Branch, orelse: Branch) -> None:
    """Append the If node of two walked branches; names that differ between them become its results."""
    met: dict[Any, Met] = {}
    names = ([n for n, entry in then.env.items() if orelse.env.get(n) is not entry]
             + [n for n in orelse.env if n not in then.env])
    for name in names:
        found = _join_name(w, name, then, orelse, test)
        if isinstance(found.plan, Clash):
            w.put(name, Undefined(found.plan.why), _home(w, then.env.get(name), orelse.env.get(name)))
        else:
            met[name] = found
    then_yields, else_yields = _yields(w, then, met, 0), _yields(w, orelse, met, 1)
    results = []
    for name, found in met.items():
        values = [Value(graph_name(name), t, w.g.loc) for t in joins.types(found.plan)]
        results += values
        a, b = then.env.get(name), orelse.env.get(name)
        lacks = dict([pair for e in (a, b) if e is not None for pair in e.lacks] + list(found.lacks))
        came_out = all(e.came_out or isinstance(e.value, Undefined) for e in (a, b) if e is not None)
        w.put(name, joins.rebuild(found.plan, iter(values)), _home(w, a, b), tuple(lacks.items()), came_out)
    w.frame.gone = then.gone | orelse.gone if then.gone and orelse.gone else frozenset()
    w.g.append(If(test, Block(tuple(then.nodes), then_yields), Block(tuple(orelse.nodes), else_yields), tuple(results),
                  w.g.loc))


@dataclass(frozen=True)
class Met:
    """How the values of a name after two branches become one: the join, the two values, and each exit past which the
    name has no value, with the reason."""

    plan: joins.Join
    sides: tuple[Any, Any] = (None, None)
    lacks: tuple[tuple[str, str], ...] = ()


def _join_name(w: Walker, name: Any, then: Branch, orelse: Branch, test: Value) -> Met:
    a, b = then.env.get(name), orelse.env.get(name)
    if is_cell(name):
        initial = w.cells.initial[name[1]]
        a, b = a or Entry(initial, w.g.loc, w.home), b or Entry(initial, w.g.loc, w.home)
    lacking = _is_lacking(a), _is_lacking(b)
    if all(lacking):
        return Met(Clash(_why_lacking(a, b)))
    if any(lacking) and name == RESULT:
        return _one_sided(w, lacking[0], a, b, test, None)
    plan = Clash(_why_lacking(a, b)) if a is None or b is None or any(lacking) else _join_values(a, b)
    if not (is_cell(name) or name == RESULT or name in EXITS):
        found = _join_where_branches_leave(w, plan, (then, a), (orelse, b), test)
        if found is not None:
            return found
    if isinstance(plan, Clash) or a is None or b is None:
        return Met(plan)
    a.read = b.read = True
    return Met(_narrow_join(w, plan, test), (a.value, b.value))


def _join_values(a: Entry, b: Entry) -> joins.Join:
    """The join of two values that a name may have; a clash says where each is assigned."""
    plan = joins.join(a.value, b.value)
    if not isinstance(plan, Clash):
        return plan
    return Clash(f"{plan.why}, after a condition that is decided at run time" + second_location("on one path", a.loc)
                 + second_location("on the other", b.loc))


def _join_where_branches_leave(w: Walker, plan: joins.Join, then: tuple[Branch, Entry | None],
                               orelse: tuple[Branch, Entry | None], test: Value) -> Met | None:
    """How the values of a name in two branches become one if only that of one of them counts, since the other leaves;
    None if both count."""
    (_, a), (_, b) = then, orelse
    for first, (leaving, left), (staying, kept) in ((True, then, orelse), (False, orelse, then)):
        gone = leaving.gone
        if _matters_past_only(plan, gone, kept, staying.nodes):
            why = plan.why if isinstance(plan, Clash) else ""
            return _one_sided(w, first, a, b, test, staying.nodes, tuple((word, why) for word in sorted(gone)))
        if (isinstance(plan, Clash) and left is not None and not _is_lacking(left) and _is_lacking(kept)
                and ("break" in gone or isinstance(left.value_past(ONWARD), Undefined))):
            found = _one_sided(w, not first, a, b, test, leaving.nodes, _lacks_unless_left(plan, staying))
            return Met(plan) if isinstance(found.plan, Clash) else found
    return None


def _lacks_unless_left(plan: Clash, other: Branch) -> tuple[tuple[str, str], ...]:
    """Where a name has no value that only a branch that leaves assigns: where the other branch leads, onward and by
    the exits that it may take."""
    return tuple((word, plan.why) for word in (ONWARD, *(e for e in EXITS if other.env[e].value is not False)))


def _is_lacking(entry: Entry | None) -> bool:
    return entry is None or isinstance(entry.value, Undefined)


def _why_lacking(a: Entry | None, b: Entry | None) -> str:
    """Why a name that is not defined after both branches is undefined after them."""
    for entry in (a, b):
        if entry is not None and isinstance(entry.value, Undefined):
            return entry.value.why
    assigned = a or b
    return ("may be undefined: only one branch of a run-time condition assigns it; assign it before"
            + second_location("assigned", None if assigned is None else assigned.loc))


def _matters_past_only(plan: joins.Join, gone: frozenset[str], kept: Entry | None, nodes: list[Node]) -> bool:
    """Whether the code after two branches takes the value of the one that may get there, and what the other holds,
    which leaves by one of the exits `gone`, counts only where they lead to: if the two have no join, or nothing in
    the function follows the exit. The value that is `kept` is from a branch of these nodes."""
    if not gone or kept is None or _is_lacking(kept):
        return False
    alone = joins.plan_of_pending(kept.value, nodes)
    return not isinstance(alone, Clash) and (isinstance(plan, Clash) or gone == {"return"} and plan != alone)


def _one_sided(w: Walker, first: bool, a: Entry | None, b: Entry | None, test: Value, nodes: list[Node] | None,
               lacks: tuple[tuple[str, str], ...] = ()) -> Met:
    """The join of a name of which the first or the second value does not count: a filler may take its place. The
    other one is from a branch of these nodes, or (None) a function's result."""
    left, kept = (a, b) if first else (b, a)
    assert kept is not None  # the side that counts has the name
    plan = joins.plan_of_pending(kept.value, nodes)
    if isinstance(plan, Clash):
        return Met(plan)
    kept.read = True
    held = joins.filler(plan)
    if left is not None and not _is_lacking(left) and joins.widen(plan, left.value) == plan:
        left.read, held = True, left.value
    plan = _narrow_join(w, plan, test)
    return Met(plan, (held, kept.value) if first else (kept.value, held), lacks)


def _narrow_join(w: Walker, plan: joins.Join, test: Value) -> joins.Join:
    uniform = type_as(test, Scalar).uniform
    if uniform < w.g.scope.uniformity and any(isinstance(t, Tile) for t in joins.types(plan)):
        return Clash(f"is a register tile of {describe_scope(w.g.scope)}, and the condition on {test.name} that "
                     "changes it differs between its threads; choose element by element with tile.where")
    return joins.cap(plan, uniform)


def _yields(w: Walker, branch: Branch, met: dict[Any, Met], side: int) -> tuple[Operand, ...]:
    with w.g.reopen(branch.nodes):
        return tuple(o for found in met.values() for o in joins.flatten(found.plan, found.sides[side], w.coerce))


def _home(w: Walker, a: Entry | None, b: Entry | None) -> Any:
    homes = [e.home for e in (a, b) if e is not None]
    return homes[0] if all(h is homes[0] for h in homes) else w.home


def graph_name(name: Any) -> str:
    """The name in the graph of the value of a name or cell."""
    if is_cell(name):
        key = name[1]
        return str(key[0] if isinstance(key, tuple) else key)
    return {RESULT: "result", CHOSEN: "chosen"}.get(name) or str(name.partition(" ")[0])


# -- expressions -------------------------------------------------------------------------------------------------------

@expression(ast.IfExp)
def if_expression(w: Walker, node: ast.IfExp) -> Any:
    """``a if test else b``: a branch chosen at compile time, or an If node that evaluates one of the two."""
    test = truth(w, evaluate_condition(w, node.test))
    if isinstance(test, bool):
        return w.value(node.body if test else node.orelse)
    return choose(w, test, lambda: w.value(node.body), lambda: w.value(node.orelse))


def choose(w: Walker, test: Value, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
    """The value of ``then()`` or ``orelse()``, by an If node on `test`."""
    append_if(w, test, lambda: w.put(CHOSEN, then()), lambda: w.put(CHOSEN, orelse()))
    entry = w.frame.env.pop(CHOSEN)
    if isinstance(entry.value, Undefined):
        raise w.error(f"the expression {entry.value.why}")
    return entry.value


@expression(ast.BoolOp)
def bool_op(w: Walker, node: ast.BoolOp) -> Any:
    """``and``, ``or``: the operand that decides, as in Python. After a compile-time operand that decides,
    the rest is not walked."""
    return _constant_condition(w, node, w.value, True)


def evaluate_condition(w: Walker, node: ast.expr) -> Any:
    """The value of an expression that is used only as a condition, so that ``and`` and ``or`` may give a bool."""
    if not isinstance(node, ast.BoolOp):
        return w.value(node)
    with w.place(node):
        return _constant_condition(w, node, lambda operand: evaluate_condition(w, operand), False)


def _constant_condition(w: Walker, node: ast.BoolOp, value: Callable[[ast.expr], Any], numbers: bool) -> Any:
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
    """``left and right()`` or ``left or right()`` with a run-time `left`. What `right` walks goes into a branch,
    unless it is pure. With `numbers`, the result of two numbers is the operand that decides, in their common dtype;
    otherwise it is a bool."""
    value, test = left, _side(w, word, left)
    if isinstance(test, bool) and test != (word == "or"):
        return right()
    if isinstance(test, bool):
        return value if numbers else test
    with w.partial_on(test):
        branch = w.collect(lambda: w.put(CHOSEN, right()))
    entry = branch.env.pop(CHOSEN)
    _refuse_tile(w, word, entry.value)
    numbers = numbers and joins.is_number(entry.value) and all(element_type(x) != bool_ for x in (value, entry.value))
    dtype = promotion.common_dtype(w.g, value, entry.value) if numbers else bool_

    def convert(x: Any) -> Any:
        return x if element_type(x) == dtype else promotion.convert(w.g, x, dtype)

    changed = any(w.frame.env.get(n) is not e for n, e in branch.env.items())
    if not changed and all(isinstance(n, Call) and n.op.effect == "pure" for n in branch.nodes):
        w.g.blocks[-1].extend(branch.nodes)
        if numbers:
            ways = (lambda: convert(entry.value)), (lambda: convert(value))
            return choose(w, test, *ways if word == "and" else reversed(ways))
        condition = _side(w, word, entry.value)
        if isinstance(condition, bool):
            return test if condition == (word == "and") else condition
        return operators.combine_conditions(w.g, word, test, condition)
    with w.partial_on(test):
        w.resume(branch,
                 lambda: w.put(CHOSEN, convert(entry.value) if numbers else promotion.as_condition(w.g, entry.value)))
        decided = w.collect(lambda: w.put(CHOSEN, convert(value) if numbers else word == "or"))
    then, orelse = (branch, decided) if word == "and" else (decided, branch)
    join_branches(w, test, then, orelse)
    return w.frame.env.pop(CHOSEN).value


def _side(w: Walker, word: str, x: Any) -> bool | Value:
    _refuse_tile(w, word, x)
    return truth(w, x)


def _refuse_tile(w: Walker, word: str, x: Any) -> None:
    if isinstance(type_of(x), Tile):
        raise w.error(f"`{word}` takes scalars; for tiles write a {'&' if word == 'and' else '|'} b")
