"""Kernels that the command line names, compiled for the arguments that it describes.

A kernel is FILE:KERNEL, or MODULE:KERNEL. ``--arg`` gives a parameter's array or number, ``--const`` a constant's
value, ``--option`` a launch option."""

from __future__ import annotations

import ast
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter
from types import ModuleType
from typing import Any

from ..compiled import CompiledKernel
from ..dtypes import DTYPES
from ..errors import CompilationError, TileError
from ..jit import Kernel
from ..names import suggest_nearest
from ..runtime.arguments import ArraySpec
from ..tuning import Tuned

_ARRAY = re.compile(r"(\w+)\[([^\]]*)\](?::\(?([^()]*)\)?)?")
_NUMBERS = {"inf": float("inf"), "-inf": -float("inf"), "nan": float("nan")}


@dataclass(frozen=True)
class Build:
    """A kernel and what to compile it for, as the command line's words."""

    kernel: str
    args: Sequence[str] = ()
    consts: Sequence[str] = ()
    options: Sequence[str] = ()
    target: str | None = None

    def compile(self) -> CompiledKernel:
        """The compiled kernel. CompilationError, LaunchError or ToolchainError if it cannot be made.

        What the file and the kernel print goes to stderr, and their warnings are those of the compiled kernel."""
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel = find_kernel(self.kernel)
            values = self._values(kernel)
            leading: list[Any] = []
            for name in kernel.names:
                if name not in values:
                    break
                leading.append(values.pop(name))
            return kernel.compile(*leading, target=self.target, **values, **_parse(self.options, "--option", constant))

    def _values(self, kernel: Kernel) -> dict[str, Any]:
        """The specs and constants by parameter. CompilationError if one lacks or is given by the wrong option."""
        specs, constants = _parse(self.args, "--arg", argument), _parse(self.consts, "--const", constant)
        for p in kernel.parameters:
            if p.constexpr and p.name in specs:
                raise CompilationError(f"{p.name} is a constant of {kernel.name}: give it by --const {p.name}=VALUE")
            if not p.constexpr and p.name in constants:
                raise CompilationError(f"{p.name} is no constant of {kernel.name}: give it by --arg {p.name}=VALUE, "
                                       f"or --arg {p.name}=DTYPE[SHAPE]")
        lacking = [p for p in kernel.parameters
                   if p.default is Parameter.empty and p.name not in specs and p.name not in constants]
        if lacking:
            words = (f"--const {p.name}=VALUE" if p.constexpr else f"--arg {p.name}=DTYPE[SHAPE]" for p in lacking)
            raise CompilationError(f"{kernel.name} lacks {', '.join(p.name for p in lacking)}: give {' '.join(words)}, "
                                   "as in --arg x=float32[1024,1000] --arg n=1000 --const BLOCK=128")
        return {**specs, **constants}


def find_kernel(text: str) -> Kernel:
    """The kernel of FILE:KERNEL or MODULE:KERNEL; the only one, if no name is given. CompilationError otherwise."""
    place, _, name = text.partition(":")
    module = load_module(place)
    found: Any = module
    names = [n for n, value in vars(module).items() if isinstance(value, (Kernel, Tuned))]
    if not name:
        if len(names) != 1:
            raise CompilationError(f"{place} has {len(names) or 'no'} kernels; name one, as in "
                                   f"{place}:{names[0] if names else 'KERNEL'}{_list(names)}")
        name = names[0]
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Tuned):
        found = found.kernel
    if not isinstance(found, Kernel):
        what = "no kernel" if found is None else "no kernel, but other code,"
        raise CompilationError(f"{place} has {what} named {name}{suggest_nearest(name, names)}{_list(names)}")
    return found


def _list(names: list[str]) -> str:
    return f"; its kernels are {', '.join(names)}" if names else ""


def load_module(place: str) -> ModuleType:
    """The module in a file, or of a name. CompilationError if it cannot be executed."""
    is_file = place.endswith(".py") or os.sep in place
    if is_file and not os.path.isfile(place):
        raise CompilationError(f"there is no file {place}")
    try:
        return _execute(os.path.abspath(place)) if is_file else import_module(place)
    except TileError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [f for f in frames if not f.filename.startswith("<frozen")][-1]
        where = f" ({inside.filename}:{inside.lineno})" if inside.filename != __file__ else ""
        text = " ".join(str(error).split())
        raise CompilationError(f"{place} cannot be loaded: {type(error).__name__}: {text}{where}") from None


def _execute(path: str) -> ModuleType:
    name = os.path.basename(path).removesuffix(".py")
    if name in sys.modules:
        name = f"_{name}_of_the_command_line"
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # there are such for every path of a .py file
    module = sys.modules[name] = module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))
    spec.loader.exec_module(module)
    return module


# -- the words of options ----------------------------------------------------------------------------------------------

def _parse(words: Sequence[str], option: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    """NAME=VALUE words as a dict."""
    values = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise CompilationError(f"{option} takes NAME=VALUE, not {word!r}")
        try:
            values[name] = parse(text.strip())
        except TileError as error:
            raise CompilationError(f"{option} {word}: {error.message}") from None
    return values


def argument(text: str) -> Any:
    """An argument: DTYPE[SHAPE], DTYPE[SHAPE]:STRIDES, or a Python number, True, False or None."""
    array = _ARRAY.fullmatch(text)
    if array is not None:
        dtype, shape, strides = array.groups()
        return ArraySpec(_integers(shape), dtype, None if strides is None else _integers(strides))
    value = _NUMBERS.get(text, _literal(text))
    if value is not None and not isinstance(value, (bool, int, float)) or value is None and text != "None":
        raise CompilationError("an argument is an array, as in float32[1024,1000], with strides in elements "
                               "float32[1024,1000]:1024,1, or a number")
    return value


def constant(text: str) -> Any:
    """A constant: a Python literal, or a dtype's name; anything else is text."""
    if text in DTYPES:
        return DTYPES[text]
    value = _literal(text)
    return text if value is None and text != "None" else value


def _literal(text: str) -> Any:
    """The value of a Python literal; None if it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise CompilationError(f"extents and strides are integers, not {text!r}") from None
