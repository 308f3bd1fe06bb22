"""Arguments that group others: tuples, lists, named tuples and dataclasses of arrays, numbers and constants, nested.

A group is taken apart when a call is bound: each part is an argument of its own, named as a kernel would write it
(``weights[0]``, ``layer.bias``), and the `Group` says how they belong together."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

from ..frontend.source import constexpr

ARRAYS = "__tilejit_view__", "__dlpack__", "__cuda_array_interface__", "__array_interface__"  # what only arrays have


@dataclass(frozen=True)
class Group:
    """How parts form one argument: the class of the object, the fields that hold the parts (none in tuples and
    lists), and for each part its name or, if it is a group itself, its Group."""

    kind: type
    fields: tuple[str, ...]
    parts: tuple[Group | str, ...]

    def names(self) -> Iterator[str]:
        """The names of all arguments in it, in order."""
        for part in self.parts:
            if isinstance(part, Group):
                yield from part.names()
            else:
                yield part

    @property
    def form(self) -> tuple[Any, ...]:
        """What versions of a kernel are looked up by; the kinds of the parts are recorded one by one."""
        return self.kind, self.fields, tuple(part.form if isinstance(part, Group) else None for part in self.parts)


class Tool(Protocol):
    """What `rebuild` calls for each part: `(name, value)`."""

    def __call__(self, name: str, value: Any, /) -> Any: ...


def parts_of(value: Any) -> tuple[tuple[str, ...], tuple[Any, ...]] | None:
    """The fields and the parts of an object that groups arguments (no fields for a tuple or a list); None for any
    other object."""
    if isinstance(value, type) or any(hasattr(type(value), name) for name in ARRAYS):
        return None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(value._fields), tuple(value)
    if type(value) in (tuple, list):
        return (), tuple(value)
    if is_dataclass(value):
        names = tuple(f.name for f in fields(value))
        return names, tuple(getattr(value, name) for name in names)
    return None


def constant_fields(kind: type) -> frozenset[str]:
    """The fields of a named tuple or dataclass that are annotated tile.constexpr."""
    annotations: Mapping[str, Any] = getattr(kind, "__annotations__", {})
    if is_dataclass(kind):
        annotations = {f.name: f.type for f in fields(kind)}
    if any(isinstance(a, str) for a in annotations.values()):
        names = vars(sys.modules.get(kind.__module__, typing))
        annotations = {field: _evaluate(a, names) for field, a in annotations.items()}
    return frozenset(field for field, a in annotations.items() if a is constexpr)


def _evaluate(annotation: Any, names: Mapping[str, Any]) -> Any:
    """The value of an annotation that may be a dotted name in a string; None for any other string."""
    if not isinstance(annotation, str):
        return annotation
    first, *rest = annotation.split(".")
    found = names.get(first)
    for name in rest:
        found = getattr(found, name, None)
    return found


def name_of_part(name: str, field: str | int) -> str:
    """How a kernel writes a part of the argument `name`."""
    return f"{name}.{field}" if isinstance(field, str) else f"{name}[{field}]"


def rebuild(group: Group, value: Any, tool: Tool) -> Any:
    """A copy of `value`, an object of this form, in which `tool(name, part)` replaces each part."""
    found = parts_of(value)
    assert found is not None  # a group is made of an object that has parts
    parts = tuple(rebuild(part, held, tool) if isinstance(part, Group) else tool(part, held)
                  for part, held in zip(group.parts, found[1]))
    if group.kind in (tuple, list):
        return group.kind(parts)
    if issubclass(group.kind, tuple):
        return tuple.__new__(group.kind, parts)
    made = copy(value)
    for field, part in zip(group.fields, parts):
        object.__setattr__(made, field, part)  # also of a frozen one, and without the user's code
    return made


# -- launches ----------------------------------------------------------------------------------------------------------

def spread(form: list[Group | str | None], constants: Mapping[str, Any],
           launcher: Callable[[Any, Any, tuple[Any, ...]], bool]) -> Callable[[Any, Any, tuple[Any, ...]], bool]:
    """A function as `launcher`, which takes the run-time arguments one by one, for calls whose positional arguments
    have this form: the name of an argument, None for one that is None, or a Group. It returns False, without a
    launch, for a call of another form or with other constants in its groups."""
    code = _Spreading(constants)
    names = [code.read(f"a{n}", part) for n, part in enumerate(form)]
    text = ["def launch(grid, stream, args):",
            f"    if len(args) != {len(form)}: return False",
            f"    {', '.join(f'a{n}' for n in range(len(form)))}, = args",
            *("    " + line for line in code.lines),
            f"    return launcher(grid, stream, ({''.join(f'{x}, ' for part in names for x in part)}))"]
    namespace = {**code.known, "launcher": launcher}
    exec(compile("\n".join(text), "<arguments in groups>", "exec"), namespace)
    made: Callable[[Any, Any, tuple[Any, ...]], bool] = namespace["launch"]
    return made


class _Spreading:
    """The text that takes a call's arguments apart, and the objects that it names."""

    def __init__(self, constants: Mapping[str, Any]):
        self.constants = constants
        self.lines: list[str] = []
        self.known: dict[str, Any] = {}

    def keep(self, x: Any) -> str:
        """A name for an object."""
        name = f"k{len(self.known)}"
        self.known[name] = x
        return name

    def read(self, x: str, part: Group | str | None) -> list[str]:
        """Add the checks of what the name `x` stands for; returns the names of the run-time arguments in it."""
        if part is None:
            self.lines.append(f"if {x} is not None: return False")
            return []
        if isinstance(part, str):
            if part not in self.constants:
                return [x]
            value = self.keep(self.constants[part])
            equal = f" and ({x}.__class__ is not {value}.__class__ or {x} != {value})"
            plain = type(self.constants[part]) in (int, str)
            self.lines.append(f"if {x} is not {value}{equal if plain else ''}: return False")
            return []
        self.lines.append(f"if {x}.__class__ is not {self.keep(part.kind)}: return False")
        inner = [f"{x}_{n}" for n in range(len(part.parts))]
        if part.fields and not issubclass(part.kind, tuple):
            self.lines += [f"{name} = {x}.{field}" for name, field in zip(inner, part.fields)]
        else:
            if not part.fields:
                self.lines.append(f"if len({x}) != {len(inner)}: return False")
            if inner:
                self.lines.append(f"{', '.join(inner)}, = {x}")
        return [name for one, held in zip(inner, part.parts) for name in self.read(one, held)]


__all__ = ["Group", "constant_fields", "name_of_part", "parts_of", "rebuild", "spread"]
