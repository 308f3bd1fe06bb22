"""Names of the language that are not single ops: functions over the builder, and methods and attributes of values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import CompilationError, at
from ..frames import hide_own_frames
from ..names import find_counterpart, suggest_keyword
from ..types import Barrier, BarrierRef, Buffer, Points, Region, Scalar, Tile
from .builder import Builder, describe, type_of
from .op import Op

if TYPE_CHECKING:
    from ..types import Type

F = TypeVar("F", bound=Callable[..., Any])

class Builtin:
    """A function of the language that expands to calls of ops: ``expand(g, *args, **kwargs)``, with the builder first.

    `plain`, if set, is what it does when called outside of kernels.
    """

    plain: Callable[..., Any] | None = None

    def __init__(self, function: Callable[..., Any]):
        self.name = function.__name__.rstrip("_")
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.function = function
        signature = inspect.signature(function)
        self.signature = self.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __repr__(self) -> str:
        return f"<builtin {self.name}>"

    @hide_own_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.plain is not None:
            return self.plain(*args, **kwargs)
        raise CompilationError(f"tile.{self.name} runs inside @tile.jit kernels, not in plain Python")


builtin = Builtin

# {(class of a value's type, name): (function over (g, value, ...), whether it is called with arguments)}
MEMBERS: dict[tuple[type, str], tuple[Callable[..., Any], bool]] = {}


def method(*types: type, name: str | None = None) -> Callable[[F], F]:
    """Register a function over ``(g, value, ...)`` as a method of values of these types."""
    def register(function: F) -> F:
        for t in types:
            MEMBERS[t, name or function.__name__] = (function, True)
        return function
    return register


def attribute(*types: type, name: str | None = None) -> Callable[[F], F]:
    """Register a function over ``(g, value)`` as an attribute of values of these types."""
    def register(function: F) -> F:
        for t in types:
            MEMBERS[t, name or function.__name__] = (function, False)
        return function
    return register


class BoundMethod:
    """``value.name`` inside a kernel, before it is called."""

    def __init__(self, function: Callable[..., Any], value: Any, name: str):
        self.function, self.value, self.name = function, value, name


def member(g: Builder, value: Any, name: str) -> Any:
    """``value.name``: an attribute's value, or a BoundMethod. CompilationError with a list of the names
    if there is none."""
    t = type_of(value)
    kind = type(value if t is None else t)
    found = MEMBERS.get((kind, name))
    if found is None:
        names = sorted(n for k, n in MEMBERS if k is kind)
        those = f"; it has {', '.join(names)}" if names else ""
        raise g.error(f"{describe(value)} has no attribute {name!r}{those}{_suggest_attribute(t, name)}")
    function, called = found
    return BoundMethod(function, value, name) if called else function(g, value)


def _suggest_attribute(t: Type | None, name: str) -> str:
    """What to write instead, if a related value has the attribute: the whole buffer, a loaded tile,
    one barrier of several."""
    if isinstance(t, Region) and t.scope != "global" and (Buffer, name) in MEMBERS:
        return f"; the whole buffer has it: write {name} before the slice"
    if isinstance(t, (Region, Points, Buffer)) and (Tile, name) in MEMBERS:
        return "; load it first, as in tile.load(x[i, 0:BLOCK])"
    if isinstance(t, Barrier) and (BarrierRef, name) in MEMBERS:
        return "; index one of them first, as in full[i]"
    if isinstance(t, (Tile, Scalar, Buffer)) and find_counterpart(name):
        return f"; write {find_counterpart(name)}"
    return ""


def apply(g: Builder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an op, a builtin or a bound method at the builder's current location. Lists are taken as tuples."""
    args, kwargs = tuple(_as_tuple(x) for x in args), {name: _as_tuple(x) for name, x in kwargs.items()}
    with at(g.loc):
        if isinstance(function, Op):
            operands, attrs = function.bind(args, kwargs)
            return g.call(function, *(g.operand(x) for x in operands), **attrs)
        if isinstance(function, BoundMethod):
            return _check_call("." + function.name, function.function, (g, function.value), args, kwargs)
        return _check_call("tile." + function.name, function.function, (g,), args, kwargs)


def _as_tuple(x: Any) -> Any:
    """A list, also one in it, as a tuple; anything else unchanged."""
    return tuple(_as_tuple(part) for part in x) if type(x) is list else x


signature_of = lru_cache(maxsize=None)(inspect.signature)  # unbounded: only this package's functions are asked for


def _check_call(name: str, function: Callable[..., Any], own: tuple[Any, ...], args: tuple[Any, ...],
                kwargs: dict[str, Any]) -> Any:
    """Call a function with its `own` first arguments, which the kernel does not write, and those that it does.
    CompilationError, which shows what may be written, if they do not fit."""
    args = (*own, *args)
    misfit = _misfit(function, len(args), tuple(kwargs))
    if misfit is not None:
        signature = signature_of(function)
        shown = [p.replace(annotation=p.empty) for p in signature.parameters.values()][len(own):]
        raise CompilationError(f"{name}{signature.replace(parameters=shown, return_annotation=signature.empty)}: "
                               f"{misfit}{suggest_keyword(kwargs, signature.parameters)}")
    return function(*args, **kwargs)


@cache
def _misfit(function: Callable[..., Any], positional: int, keywords: tuple[str, ...]) -> str | None:
    """Why a function cannot be called with so many positional arguments and these keywords; None if it can."""
    try:
        signature_of(function).bind(*[None] * positional, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return None
