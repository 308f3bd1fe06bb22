"""Plain Python functions that a kernel calls with constants: they run while compiling, in Python.

What such a function reads from the code around it becomes part of the kernel, as what the kernel itself reads does. It
is found in the function's bytecode: names of globals and closures, with the attributes that follow them."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..lazy import Lazy

sysconfig = Lazy("sysconfig")
NAMES = "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"
ATTRIBUTES = "LOAD_ATTR", "LOAD_METHOD"


@dataclass(frozen=True)
class Function:
    """A plain function, as what reads values from the code around it."""

    function: FunctionType

    @property
    def name(self) -> str:
        return self.function.__qualname__

    @property
    def file(self) -> str:
        return self.function.__code__.co_filename

    @property
    def defaults(self) -> dict[str, Any]:
        """The default values of its parameters."""
        return {p.name: p.default for p in inspect.signature(self.function).parameters.values()
                if p.default is not p.empty}

    @property
    def globals(self) -> dict[str, Any]:
        return self.function.__globals__

    def resolve(self, name: str) -> Any:
        """The current value of a free name. KeyError if it has none."""
        code = self.function.__code__
        if name in code.co_freevars:
            cell = (self.function.__closure__ or ())[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                raise KeyError(name) from None
        if name in self.globals:
            return self.globals[name]
        builtins = self.globals["__builtins__"]
        return (builtins if isinstance(builtins, dict) else vars(builtins))[name]


def is_installed(function: FunctionType) -> bool:
    """Whether a function belongs to Python's library or to an installed package, which change only with their
    version."""
    file = function.__code__.co_filename
    return file.startswith("<frozen") or any(map(file.startswith, _installed_folders()))


@cache
def _installed_folders() -> tuple[str, ...]:
    return tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


def free_paths(function: FunctionType) -> Iterator[tuple[str, ...]]:
    """The names that a function reads from the code around it, each with the attributes that it reads of modules: the
    longest path that leads through modules only, and one attribute more."""
    source = Function(function)
    for path in dict.fromkeys(_read(function.__code__)):
        try:
            value = source.resolve(path[0])
        except KeyError:
            continue  # the function raises NameError if it gets there
        kept = 1
        while isinstance(value, ModuleType) and kept < len(path) and hasattr(value, path[kept]):
            value = getattr(value, path[kept])
            kept += 1
        yield path[:kept]


def _read(code: CodeType) -> Iterator[tuple[str, ...]]:
    """The names with attributes that code reads, also in the functions that it defines."""
    path: tuple[str, ...] = ()
    own = {*code.co_varnames, *code.co_cellvars}
    for step in dis.get_instructions(code):
        if step.opname in ATTRIBUTES and path:
            path = (*path, str(step.argval))
            continue
        if path:
            yield path
        path = (step.argval,) if step.opname in NAMES and step.argval not in own else ()
    if path:
        yield path
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from (read for read in _read(constant) if read[0] not in own)
