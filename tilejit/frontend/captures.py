"""Values that a kernel takes from the code around it: which are allowed, and what a cache key records of them."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ..errors import CompilationError
from ..ir.builtin import Builtin
from ..ir.op import Op
from ..types import DType
from .source import Source


@dataclass(frozen=True, slots=True)
class Capture:
    """A global or closure value that was read while compiling: ``path`` is the name and the attributes after it."""

    source: Source
    path: tuple[str, ...]
    token: Any

    def current(self) -> Any:
        """The token of what the path means now; None when it means nothing any more."""
        try:
            value = self.source.resolve(self.path[0])
            for name in self.path[1:]:
                value = getattr(value, name)
        except (KeyError, AttributeError):
            return None
        return token(_python_number(value))


def source_of(x: Any) -> Source | None:
    """The source of a helper under @tile.jit; None for anything else."""
    found = None if isinstance(x, type) else getattr(x, "source", None)
    return found if isinstance(found, Source) else None


def of_tilejit(x: Any) -> bool:
    """Whether a module, class, function or object is part of this package."""
    name = x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", None) or type(x).__module__
    return name == "tilejit" or str(name).startswith("tilejit.")


def _python_number(x: Any) -> Any:
    """A NumPy number as Python's; anything else as it is."""
    is_scalar = hasattr(x, "item") and hasattr(x, "dtype") and getattr(x, "shape", None) == () and not hasattr(x, "__setitem__")
    return x.item() if is_scalar else x


def token(x: Any) -> Any:
    """What the cache key records of a captured value: hashable and equal for equal values. None if it cannot be captured."""
    if isinstance(x, (bool, int, float, complex, str)) or x is None or x is Ellipsis:
        return (type(x).__name__, repr(x))
    if isinstance(x, (DType, Op, Builtin)) or (isinstance(x, ModuleType)):
        return (type(x).__name__, x.__name__ if isinstance(x, ModuleType) else x.name)
    if source_of(x) is not None:
        return ("helper", source_of(x).fingerprint())
    if isinstance(x, tuple):
        parts = tuple(token(i) for i in x)
        return None if None in parts else (type(x).__qualname__, parts)
    if isinstance(x, (type, FunctionType, BuiltinFunctionType, enum.Enum)):
        return (type(x).__name__, str(getattr(x, "__module__", "")), getattr(x, "__qualname__", str(x)))
    if dataclasses.is_dataclass(x) and x.__dataclass_params__.frozen:
        parts = tuple(token(getattr(x, f.name)) for f in dataclasses.fields(x))
        return None if None in parts else (type(x).__qualname__, parts)
    if of_tilejit(type(x)) or type(x).__module__ == "numpy" and type(x).__name__.startswith("dtype"):
        return (type(x).__qualname__, repr(x))
    if type(x).__module__.startswith("numpy.dtypes"):
        return ("dtype", str(x))
    return None


def checked(name: str, x: Any) -> Any:
    """`x` as a kernel may use it: a NumPy number becomes a Python one. CompilationError for what may change unseen."""
    x = _python_number(x)
    if token(x) is not None:
        return x
    if hasattr(x, "__array_interface__") or hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__"):
        raise CompilationError(f"{name} is an array of the code around the kernel; pass it as an argument of the kernel")
    if isinstance(x, (list, set, dict, bytearray)):
        advice = "make it a tuple, or " if isinstance(x, list) else ""
        raise CompilationError(f"{name} is a {type(x).__name__}, which could change without the kernel noticing; "
                               f"{advice}pass what the kernel needs of it as a tile.constexpr argument")
    raise CompilationError(f"{name} is a {type(x).__name__}, which a kernel cannot read from the code around it; "
                           "pass it as a tile.constexpr argument")
