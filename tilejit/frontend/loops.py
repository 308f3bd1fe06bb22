"""Loops: `for` and `while` as For and While nodes, and loops unrolled by the frontend."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import EnumMeta
from functools import reduce
from typing import Any

from ..dtypes import bool_, int32, promote
from ..errors import Loc
from ..ir.builder import describe, type_as, weak_dtype
from ..ir.graph import Block, For, Operand, Value, While, leaves_its_range
from ..ops.language import operators, promotion
from ..ops.sync.pipeline import pipeline_turn
from ..types import Scalar
from .assignment_targets import bind
from .branches import evaluate_condition, only_if, truth
from .carried import Ends, Trip, carries, settle
from .containers import sequence
from .names import Entry, Undefined, assigned_in, assigned_names
from .ranges import UNROLLED_AT_MOST, LoopRange, StaticRange, by_number_of_trips
from .scopes import EachScope, ScopeSpec
from .walker import Walker, second_location, statement

# The names under which a `for` that may be left early carries whether it has another trip, and its index.
MORE = "whether the loop has another trip"
INDEX = "index of the loop"


@statement(ast.For)
def for_(w: Walker, node: ast.For) -> None:
    """A `for` statement over a range, a static range or a compile-time tuple."""
    if node.orelse:
        raise w.error("`for ... else` is not supported; set a flag before `break` and test it after the loop",
                      node.orelse[0])
    over = w.value(node.iter)
    with own_exits(w):
        if isinstance(over, LoopRange):
            _device_for(w, node, over)
        elif isinstance(over, (StaticRange, tuple, list, dict, str, set, frozenset, EnumMeta)):
            items = list(over.numbers if isinstance(over, StaticRange) else sequence(w, over, "a loop", node.iter))
            if len(items) > UNROLLED_AT_MOST:
                raise w.error(f"this loop would be unrolled {len(items)} times (at most {UNROLLED_AT_MOST})", node.iter)
            _unroll(w, node, items)
        elif isinstance(over, (ScopeSpec, EachScope)):
            raise w.error(f"this opens a scope, which is not a loop; write `with {ast.unparse(node.iter)}:`, "
                          "and a loop around or inside it",
                          node.iter)
        else:
            raise w.error("a loop runs over range(...), tile.range(...), tile.static_range(...), a tuple, "
                          f"a list or a dict, not over {describe(over)}", node.iter)


@contextmanager
def own_exits(w: Walker) -> Iterator[None]:
    """A context for a loop: it has `break` and `continue` flags of its own;
    those of the enclosing loop are restored at the end."""
    outer = {name: w.frame.env[name] for name in ("break", "continue")}
    for name in outer:
        w.put(name, False)
    w.frame.loops.append(w.home)
    try:
        yield
    finally:
        w.frame.loops.pop()
        w.rejoin("break", "continue")
        w.frame.env.update(outer)


@contextmanager
def on_device(w: Walker) -> Iterator[None]:
    """A context for a loop that is not unrolled: ``g.state["loops"]`` counts how many there are around the code."""
    outer = w.g.state.get("loops", 0)
    w.g.state["loops"] = outer + 1
    try:
        yield
    finally:
        w.g.state["loops"] = outer


def _unroll(w: Walker, node: ast.For, items: list[Any], first: int = 0) -> None:
    """Walk the body once per item. The copies after a run-time `break` go into a branch on its flag."""
    for position, item in enumerate(items):
        left = w.exits_taken()
        if left is True:
            return
        if left:
            w.guard(left, lambda: _unroll(w, node, items[position:], first + position))
            return
        bind(w, node.target, item, anew=True)
        w.copies.append(first + position)
        w.statements(node.body)
        w.copies.pop()
        w.rejoin("continue")


# -- for on the device -------------------------------------------------------------------------------------------------

def _device_for(w: Walker, node: ast.For, over: LoopRange) -> None:
    known = all(isinstance(x, int) for x in (over.start, over.stop, over.step))
    if known and not range(over.start, over.stop, over.step):
        return  # no trip: as in Python, no name is assigned
    ends = Ends.AFTER_A_TRIP if known else Ends.ANYWHERE
    t = _index_type(over)
    start, stop, step = (w.coerce(x, t) for x in (over.start, over.stop, over.step))
    targets = assigned_names([node.target])
    names = [n for n in assigned_in(node) if n not in targets]
    index = Value(node.target.id if isinstance(node.target, ast.Name) else "i", t, w.loc(node.target))

    def walk() -> Trip:
        with w.g.block() as nodes, w.partial_on(start, stop, step):
            _trip(w, node, over, index)
        return Trip(nodes, t.uniform)

    with on_device(w):
        settled = settle(w, names, walk, control=t.uniform, stop_at_exits=True)
    if settled is None and over.pipeline is not None:
        raise w.error("a pipelined loop cannot be left early, since its copies run ahead; "
                      "leave out `break` and `return`, or shorten its range")
    if settled is None:
        _for_as_while(w, node, over, names, ends)
    else:
        carried, yields = carries(w, settled, ends)
        w.g.append(For(index, start, stop, step, carried, Block(tuple(settled.trip.nodes), yields), w.g.loc,
                       over.unroll, over.pipeline))
    for name in targets:
        w.put(name,
              Undefined("is the index of a loop that has ended" + second_location("the loop is", w.loc(node.target))))


def _index_type(over: LoopRange) -> Scalar:
    """The type of the index: the common dtype of the bounds and a run-time step (wider if a constant needs it), as
    uniform as the least uniform of them, weak if all are."""
    bounds = [type_as(x, Scalar) for x in (over.start, over.stop, *([] if isinstance(over.step, int) else [over.step]))]
    strong = [b.dtype for b in bounds if not b.weak]
    dtype = reduce(promote, strong or [b.dtype for b in bounds])
    for x in (over.start, over.stop, over.step):
        if isinstance(x, int) and weak_dtype(x).bits > dtype.bits:
            dtype = weak_dtype(x)
    if isinstance(over.step, int) and over.step < 0 and dtype.kind == "uint":
        dtype = promote(dtype, int32)
    return Scalar(dtype, min(b.uniform for b in bounds), not strong)


def _calls(loc: Loc | None) -> Iterator[Loc]:
    """A location and its chain of call sites, which identify a loop: each inlined call has loops of its own."""
    while loc is not None:
        yield loc
        loc = loc.call_site


def _trip(w: Walker, node: ast.For, over: LoopRange, index: Value) -> None:
    """Walk the body once, with the target bound to `index`, or to what the range makes of it."""
    with w.place(node.target):
        bind(w, node.target, index if over.item is None else over.item(w.g, index), anew=True)
    if over.pipeline is not None:
        turn = pipeline_turn(w.g, (*map(str, _calls(w.g.loc)), tuple(w.copies)), over.pipeline.stages)
        next(turn)
    w.statements(node.body)
    w.put("continue", False)
    if over.pipeline is not None:
        next(turn, None)


def _for_as_while(w: Walker, node: ast.For, over: LoopRange, names: list[str], ends: Ends) -> None:
    """Append a `for` that may be left early as a While node, which carries the index and the exit flags. If the index
    may overflow after the last trip, it also carries whether there is another trip."""
    if over.unroll != 1:
        w.g.warn("a loop that may be left early is not unrolled")
    if not isinstance(over.step, int):
        over = by_number_of_trips(w.g, over.start, over.stop, over.step, 1, over.item)
    t = _index_type(over)
    start, stop = w.coerce(over.start, t), w.coerce(over.stop, t)
    hidden, more = (f"{what} {len(w.frame.loops)}" for what in (INDEX, MORE))
    wraps, last = leaves_its_range(stop, over.step, t.dtype), stop

    def is_before(index: Any, end: Operand) -> Value:
        return operators.compare(w.g, "<" if over.step > 0 else ">", index, end)

    w.put(hidden, start)
    if wraps:
        last = promotion.short_of(w.g, stop, over.step)
        w.put(more, w.coerce(is_before(start, stop), Scalar(bool_)))

    def test() -> Operand:
        entry = w.frame.env[more if wraps else hidden]
        entry.read = True
        return entry.value if wraps else is_before(entry.value, stop)

    def body() -> None:
        index = w.frame.env[hidden].value
        _trip(w, node, over, index)
        if wraps:
            w.put(more, is_before(index, last))
        w.put(hidden, operators.binary(w.g, "+", index, over.step))

    _run_while(w, [*names, hidden, *([more] if wraps else [])], test, body, ends)
    for name in (hidden, more):
        w.frame.env.pop(name, None)


# -- while -------------------------------------------------------------------------------------------------------------

@statement(ast.While)
def while_(w: Walker, node: ast.While) -> None:
    """A `while` statement: a While node, or nothing if its condition is known to be false."""
    if node.orelse:
        raise w.error("`while ... else` is not supported; set a flag before `break` and test it after the loop",
                      node.orelse[0])
    for inner in ast.walk(node.test):
        if isinstance(inner, ast.NamedExpr):
            raise w.error("`:=` in the condition of a `while` is not supported; write `while True:` with a `break`",
                          inner)

    def test() -> Any:
        with w.place(node.test):
            return truth(w, evaluate_condition(w, node.test))

    def body() -> None:
        w.statements(node.body)
        w.put("continue", False)

    with own_exits(w):
        _run_while(w, list(assigned_in(node)), test, body)


def _run_while(w: Walker, names: list[str], test: Callable[[], Any], body: Callable[[], None],
               ends: Ends = Ends.ANYWHERE) -> None:
    """Append a While node. `test()` gives the condition: a bool if it is known at compile time, else a value. A loop
    whose condition is always true ends by its exits only."""
    condition: Any = None
    endless = False

    def tested_once_more() -> Any:
        nonlocal endless
        found = test()
        endless = found is True
        return found

    split: list[Value] = []  # the condition, once it has turned out to differ between threads

    def walk() -> Trip:
        nonlocal condition
        with w.g.block() as tested, w.partial_on(*split):
            condition = _unless_left(w, tested_once_more)
        with w.g.block() as nodes, w.partial_on(*split, condition):
            left = w.exits_taken()
            for name in () if left is True else left:  # where the body runs, the loop has not been left
                w.put(name, False)
            if condition is not False:
                body()
        uniform = type_as(condition, Scalar).uniform
        apart = uniform < w.g.scope.uniformity and not split
        if apart:
            split.append(condition)
        return Trip(nodes, uniform, tested, again=apart)

    with on_device(w):
        settled = settle(w, names, walk)
    if condition is False:
        return
    if condition is True:
        raise w.error("this loop never ends: its condition is always true, and nothing in it breaks or returns")
    assert settled is not None  # the search does not stop at exits
    carried, yields = carries(w, settled, Ends.BY_AN_EXIT if endless else ends)
    with w.g.reopen(settled.trip.test):
        tested = w.coerce(condition, Scalar(bool_))
    w.g.append(While(Block(tuple(settled.trip.test), (tested,)), carried, Block(tuple(settled.trip.nodes), yields),
                     w.g.loc))
    if endless and settled.after["break"].value is False:
        w.leave("return")


def _unless_left(w: Walker, test: Callable[[], Any]) -> Any:
    """A loop's condition, which is false once an exit has been taken."""
    left = w.exits_taken()
    if left is True or not left:
        return test()
    flags = [w.frame.env[name].value for name in left]
    taken = flags[0] if len(flags) == 1 else operators.combine_conditions(w.g, "or", *flags)
    stays = operators.unary(w.g, "not", taken)
    outer = w.frame.env
    w.frame.env = {**outer, **{name: Entry(False, w.g.loc, w.home) for name in left}}
    try:
        return only_if(w, "and", stays, test)
    finally:
        w.frame.env = outer
