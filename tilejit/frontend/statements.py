"""Simple statements: assignments, `assert`, `return`, `break`, `continue`."""

from __future__ import annotations

import ast

from ..dtypes import named_dtype
from ..ir.builder import describe, type_of
from ..ops.language.pointwise import device_assert
from ..types import Tile
from .assignment_targets import bind, refuse_target
from .branches import evaluate_condition, truth
from .calls import call
from .captures import source_of
from .expressions import SYMBOLS, operator
from .names import RESULT
from .scopes import ScopeSpec
from .source import constexpr
from .walker import Walker, is_callable_of_the_language, runtime, second_location, statement


@statement(ast.Pass)
def pass_(w: Walker, node: ast.Pass) -> None:
    pass


@statement(ast.Expr)
def expr(w: Walker, node: ast.Expr) -> None:
    """An expression for its effect. Docstrings and other constants do nothing."""
    if isinstance(node.value, ast.Constant):
        return
    w.discarded = node.value
    value = w.expression(node.value)
    if is_callable_of_the_language(value) or source_of(value) is not None:
        raise w.error(f"{value.name} is not called here; write {value.name}(...)")
    if isinstance(value, ScopeSpec):
        raise w.error(f"an execution scope has no effect on its own; write `with tile.{value}:`")


# -- assignments -------------------------------------------------------------------------------------------------------

@statement(ast.Assign)
def assign(w: Walker, node: ast.Assign) -> None:
    value = w.value(node.value)
    for target in node.targets:
        with w.place(target if len(node.targets) > 1 else node):
            bind(w, target, value)


@statement(ast.AugAssign)
def aug_assign(w: Walker, node: ast.AugAssign) -> None:
    """``name += value`` binds the name, or the element of a list or dict, to a new value; tiles are not changed in
    place."""
    place: ast.expr
    match node.target:
        case ast.Name(id=name):
            place = ast.Name(name, ast.Load())
        case ast.Subscript(value=container, slice=index) if isinstance(w.value(container), (list, dict)):
            place = ast.Subscript(container, index, ast.Load())
        case _:
            refuse_target(w, node.target)
    held = w.value(ast.copy_location(place, node.target))
    bind(w, node.target, operator(w, SYMBOLS[type(node.op)], held, w.value(node.value)))


@statement(ast.AnnAssign)
def ann_assign(w: Walker, node: ast.AnnAssign) -> None:
    """``name: tile.float32 = value`` casts; ``name: tile.constexpr = value`` requires a compile-time value."""
    if node.value is None:
        raise w.error("an annotation alone assigns nothing; give the name a value, as in `x: tile.float32 = 0`")
    value = w.value(node.value)
    kind = None if isinstance(node.annotation, ast.Constant) else w.value(node.annotation)
    if kind is constexpr:
        if runtime(value):
            raise w.error("a tile.constexpr is known while compiling, "
                          f"and {describe(value)} is not" + w.g.declared_constant(value), node.value)
    elif kind is not None and (dtype := named_dtype(kind)) is not None:
        value = call(w, dtype, (value,), {})
    bind(w, node.target, value)


# -- assert ------------------------------------------------------------------------------------------------------------

@statement(ast.Assert)
def assert_(w: Walker, node: ast.Assert) -> None:
    """``assert``: checked at compile time if the condition is known then, else a `device_assert`. As in Python, the
    message of one that is known to hold is not evaluated."""
    held = evaluate_condition(w, node.test)
    test = held if isinstance(type_of(held), Tile) else truth(w, held)
    if test is True:
        return
    message = _message(w, node.msg)
    if test is False:
        raise w.error("assertion failed" + (f": {message}" if message else ""))
    call(w, device_assert, (test, message), {})


def _message(w: Walker, node: ast.expr | None) -> str:
    if node is None:
        return ""
    message = w.value(node)
    if not isinstance(message, str):
        raise w.error(f"the message of an assert is a string, not {describe(message)}", node)
    return message


# -- leaving -----------------------------------------------------------------------------------------------------------

@statement(ast.Break, ast.Continue)
def leave_loop(w: Walker, node: ast.Break | ast.Continue) -> None:
    word = "break" if isinstance(node, ast.Break) else "continue"
    if w.frame.loops[-1] is not w.home:
        raise w.error(f"`{word}` would leave the execution scope that it stands in, and only its threads would; "
                      "put the loop inside the scope" + second_location("the scope is opened", w.home.loc))
    w.leave(word)


@statement(ast.Return)
def return_(w: Walker, node: ast.Return) -> None:
    if w.frame.home is not w.home:
        raise w.error("`return` would leave the execution scope that it stands in, and only its threads would; "
                      "guard the rest of the scope with `if`" + second_location("the scope is opened", w.home.loc))
    value = None if node.value is None else w.value(node.value)
    if w.frame.caller is None and value is not None:
        raise w.error("a kernel returns nothing; write to an array argument with tile.store", node.value)
    w.put(RESULT, value)
    w.leave("return")
