"""Lists, dicts, sets and lambdas of a kernel, which exist only while compiling.

Their displays, comprehensions and changes in place.

A container is a value. ``name[i] = x`` and ``name.append(x)`` bind the name to a changed copy, so that branches and
loops treat the name as any other; that this is seen nowhere else is checked.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from enum import EnumMeta
from typing import Any

from ..ir.builder import describe
from . import joins
from .assignment_targets import TARGETS, bind
from .branches import evaluate_condition, truth
from .expressions import by_python, evaluate_index, items, numbers
from .names import Frame, assigned_names, is_cell
from .ranges import UNROLLED_AT_MOST, LoopRange, StaticRange
from .walker import Walker, expression, runtime


@expression(ast.List, placed=False)
def list_(w: Walker, node: ast.List) -> list[Any]:
    return items(w, node.elts)


@expression(ast.Set)
def set_(w: Walker, node: ast.Set) -> set[Any]:
    return make_set(w, items(w, node.elts))


def make_set(w: Walker, elements: list[Any]) -> set[Any]:
    """A set of constants."""
    if runtime(elements):
        raise w.error("a set holds constants, and not all of these are; write a tuple")
    with by_python(w):
        return set(elements)


@expression(ast.Dict)
def dict_(w: Walker, node: ast.Dict) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values):
        if key is None:  # **other
            other = w.value(value)
            if not isinstance(other, dict):
                raise w.error(f"only a dict can be spread with **, not {describe(other)}", value)
            made.update(other)
        else:
            put_item(w, made, w.value(key), w.value(value))
    return made


def put_item(w: Walker, into: dict[Any, Any], key: Any, value: Any) -> None:
    """``into[key] = value``; the key must be a constant."""
    if runtime(key):
        raise w.error(f"a dict's keys are constants, and {describe(key)} is known at run time only"
                      + w.g.declared_constant(key))
    with by_python(w):
        into[key] = value


@expression(ast.ListComp, ast.GeneratorExp)
def list_comprehension(w: Walker, node: ast.ListComp | ast.GeneratorExp) -> Any:
    """A comprehension over what is known while compiling; its elements may be run-time values. A generator expression
    gives a tuple."""
    made: list[Any] = []
    _comprehend(w, node.generators, lambda: made.append(w.value(node.elt)))
    return made if isinstance(node, ast.ListComp) else tuple(made)


@expression(ast.SetComp)
def set_comprehension(w: Walker, node: ast.SetComp) -> set[Any]:
    made: list[Any] = []
    _comprehend(w, node.generators, lambda: made.append(w.value(node.elt)))
    return make_set(w, made)


@expression(ast.DictComp)
def dict_comprehension(w: Walker, node: ast.DictComp) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    _comprehend(w, node.generators, lambda: put_item(w, made, w.value(node.key), w.value(node.value)))
    return made


# -- comprehensions ----------------------------------------------------------------------------------------------------

def _comprehend(w: Walker, generators: list[ast.comprehension], element: Callable[[], None]) -> None:
    """Walk `element` for each combination of the generators' items. Their targets are names of their own."""
    if not generators:
        element()
        return
    first, rest = generators[0], generators[1:]
    over = sequence(w, w.value(first.iter), "a comprehension", first.iter)
    names = assigned_names([first.target])
    env = w.frame.env
    outer = {name: env[name] for name in names if name in env}
    for position, item in enumerate(over):
        bind(w, first.target, item, anew=True)
        w.copies.append(position)
        if all(_keeps(w, test) for test in first.ifs):
            _comprehend(w, rest, element)
        w.copies.pop()
    for name in names:
        env.pop(name, None)
    env.update(outer)


def _keeps(w: Walker, test: ast.expr) -> bool:
    with w.place(test):
        held = truth(w, evaluate_condition(w, test))
        if not isinstance(held, bool):
            raise w.error("the condition of a comprehension is decided while compiling, and this one is known at run "
                          "time only; choose with tile.where, or write a loop with an `if`")
    return held


def sequence(w: Walker, x: Any, what: str, node: ast.expr | None = None) -> tuple[Any, ...]:
    """The items of what can be iterated over while compiling; `what` names who does, for the error."""
    with w.place(node) if node is not None else nullcontext():
        if isinstance(x, (LoopRange, StaticRange)):
            x = numbers(w, x)
            if len(x) > UNROLLED_AT_MOST:
                raise w.error(f"{what} would take {len(x)} items one by one (at most {UNROLLED_AT_MOST})")
        if isinstance(x, (set, frozenset)):
            raise w.error(f"{what} would take the elements of a set in any order; write sorted(...)")
        if isinstance(x, (tuple, list, dict, str, range, EnumMeta)):
            return tuple(x)
        raise w.error(f"{what} takes tuples, lists, dicts and ranges that are known while compiling, "
                      f"not {describe(x)}")


# -- lambdas -----------------------------------------------------------------------------------------------------------

@expression(ast.Lambda)
def lambda_(w: Walker, node: ast.Lambda) -> Lambda:
    return Lambda(w, node, w.frame, tuple(w.value(default) for default in node.args.defaults))


@dataclass(frozen=True, eq=False)
class Lambda:
    """A lambda of a kernel. Its body is walked at each call, and sees the names of the function around it as they are
    then. Python's functions on constants may call it too."""

    walker: Walker
    node: ast.Lambda
    frame: Frame
    defaults: tuple[Any, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        w, caller = self.walker, self.walker.frame
        given = self._bound(args, kwargs)
        cells = caller.cells()
        around = {name: entry for name, entry in self.frame.env.items() if not is_cell(name)}
        w.frame = replace(self.frame, env={**around, **cells}, call_site=caller.call_site)
        try:
            for name, value in given.items():
                w.put(name, value)
            result = w.value(self.node.body)
            caller.env.update(w.frame.cells())
            return result
        finally:
            w.frame = caller

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        w, taken = self.walker, self.node.args
        if taken.kwonlyargs or taken.kwarg or taken.posonlyargs:
            raise w.error("a lambda of a kernel has plain parameters; define a helper under @tile.jit", self.node)
        names = [a.arg for a in taken.args]
        held = dict(zip(names[len(names) - len(self.defaults):], self.defaults))
        if taken.vararg is not None:
            held[taken.vararg.arg] = args[len(names):]
        elif len(args) > len(names):
            raise w.error(f"this lambda takes {len(names)} arguments, and {len(args)} are given")
        held.update(zip(names, args))
        held.update(kwargs)
        for name in kwargs:
            if name not in names or name in names[:len(args)]:
                raise w.error(f"this lambda has no parameter {name!r} left to be given by keyword")
        lacking = [name for name in names if name not in held]
        if lacking:
            raise w.error(f"this lambda needs an argument for {lacking[0]!r}")
        return held


# -- changes in place --------------------------------------------------------------------------------------------------

def change(w: Walker, target: ast.expr, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``target.method(...)`` for a method that changes a list, dict or set: binds its name to a changed copy."""
    held = w.value(target)
    made = copy(held)
    if isinstance(made, (dict, set)) and runtime(tuple(args[:1])) and method not in ("update",):
        raise w.error(f"the keys of a dict and the elements of a set are constants, and {describe(args[0])} is known "
                      "at run time only" + w.g.declared_constant(args[0]))
    if method in ("sort", "remove") and runtime((held, *args)):
        raise w.error(f"{method} compares the elements while compiling, and some are known at run time only")
    with by_python(w):
        result = getattr(made, method)(*args, **kwargs)
    rebind(w, target, held, made)
    return result


def set_item(w: Walker, target: ast.Subscript, value: Any) -> None:
    """``xs[i] = value`` of a list or a dict."""
    held, index = w.value(target.value), evaluate_index(w, target.slice)
    made = copy(held)
    if isinstance(made, dict):
        put_item(w, made, index, value)
    else:
        if runtime(index) or isinstance(index, slice) and runtime((index.start, index.stop, index.step)):
            raise w.error("a list is indexed with compile-time numbers; loop with tile.static_range, or keep the "
                          "elements in a buffer" + w.g.declared_constant(index))
        with by_python(w):
            made[index] = list(sequence(w, value, "a slice")) if isinstance(index, slice) else value
    rebind(w, target.value, held, made)


TARGETS[ast.Subscript] = set_item


def rebind(w: Walker, target: ast.expr, held: Any, made: Any) -> None:
    """Put `made` in the place of the container `held`, which `target` names."""
    root = target
    while isinstance(root, ast.Subscript):
        root = root.value
    if not isinstance(root, ast.Name) or root.id not in w.frame.env:
        raise w.error(f"only a container that a name of this function holds can be changed; copy it first, as in "
                      f"{'d = dict(...)' if isinstance(held, dict) else 'xs = list(...)'}", target)
    places = [name for frame in w.frame.chain() for name, entry in frame.env.items()
              for part in _within(entry.value) if part is held]
    if len(places) > 1:
        others = [name for name in dict.fromkeys(map(str, places)) if name != root.id] or [root.id]
        raise w.error(f"this {type(held).__name__} is also held by {', '.join(others)}, and a change would show there; "
                      f"copy it first, as in {root.id} = {type(held).__name__}({root.id})", target)
    bind(w, target, made)


def _within(x: Any) -> Iterator[Any]:
    """`x` and all that it holds, at any depth."""
    yield x
    for part in joins.fields_of(x) or ():
        yield from _within(part)
