"""Dataclasses whose classes are made in a fifth of the time.

For each class, `dataclasses` generates the source of three to six methods and compiles them one by one. On every version of Python that takes
0.3 to 0.4 ms, for this package 75 ms of its import. Here only ``__init__`` is compiled. The other methods are shared, or closures over the names
of the fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields, is_dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:
    dataclass_transform = lambda **options: lambda function: function


class _Made:
    """The default in a signature for fields whose default a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()


@dataclass_transform(frozen_default=True)
def frozen(cls: type | None = None, /, *, eq: bool = True, slots: bool = False):
    """The class decorator ``dataclass(frozen=True, eq=eq, slots=slots)``. Methods that the class defines stay as they are."""
    return partial(_made, eq, slots, True) if cls is None else _made(eq, slots, True, cls)


@dataclass_transform()
def mutable(cls: type | None = None, /, *, eq: bool = True, slots: bool = False):
    """The class decorator ``dataclass(eq=eq, slots=slots)``. Methods that the class defines stay as they are."""
    return partial(_made, eq, slots, False) if cls is None else _made(eq, slots, False, cls)


def _made(eq: bool, slots: bool, frozen: bool, cls: type) -> type:
    own = {name for name, value in vars(cls).items() if value is not None}  # a class that defines __eq__ has a __hash__ that is None
    cls.__doc__ = cls.__doc__ or cls.__name__
    derived = any(map(is_dataclass, cls.__bases__))  # from a frozen class, which only a frozen one may be for `dataclass`
    made = dataclass(init=False, repr=False, eq=False, frozen=frozen and derived, slots=slots)(cls)
    methods = {"__init__": _init(made, frozen), "__repr__": _repr(made)}
    if eq:
        methods |= {"__eq__": _eq(_values(made, lambda f: f.compare)),
                    "__hash__": _hash(_values(made, lambda f: f.compare if f.hash is None else f.hash)) if frozen else None}
    if frozen:
        made.__dataclass_params__.frozen = True
        methods |= {"__setattr__": _refuse_to_assign, "__delattr__": _refuse_to_delete}
        methods |= {"__getstate__": _state, "__setstate__": _restore} if slots else {}
    for name in methods.keys() - own:
        setattr(made, name, methods[name])
    return made


def _init(cls: type, frozen: bool) -> Callable:
    names = {"__name__": cls.__module__, "assign": object.__setattr__, "MADE": _MADE}
    parameters, body = ["self"], ["pass"]
    for f in fields(cls):
        default, value = f"default_of_{f.name}", f.name
        if f.default is not MISSING:
            names[default] = f.default
        elif f.default_factory is not MISSING:
            names[default], value = f.default_factory, f"{default}() if {f.name} is MADE else {f.name}"
        parameters.append(f.name if default not in names else f"{f.name}={default if value == f.name else 'MADE'}")
        body.append(f"assign(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body), names)
    function = names["__init__"]
    function.__qualname__ = f"{cls.__qualname__}.__init__"
    function.__annotations__ = {f.name: f.type for f in fields(cls)} | {"return": None}
    return function


def _values(cls: type, chosen: Callable) -> Callable:
    """A function from an instance to a tuple of its fields."""
    names = [f.name for f in fields(cls) if chosen(f)]
    get = attrgetter(*names) if names else lambda self: ()
    return get if len(names) != 1 else lambda self: (get(self),)


def _repr(cls: type) -> Callable:
    shown = [(f"{f.name}=", attrgetter(f.name)) for f in fields(cls) if f.repr]

    def __repr__(self):
        return f"{type(self).__qualname__}({', '.join([name + repr(get(self)) for name, get in shown])})"
    return __repr__


def _eq(values: Callable) -> Callable:
    def __eq__(self, other):
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented
    return __eq__


def _hash(values: Callable) -> Callable:
    def __hash__(self):
        return hash(values(self))
    return __hash__


def _refuse_to_assign(self, name: str, value) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self) -> list:
    return [getattr(self, f.name) for f in fields(self)]


def _restore(self, state: list) -> None:
    for f, value in zip(fields(self), state):
        object.__setattr__(self, f.name, value)
