"""Captures: values that a kernel reads from the code around it.

Which of them are allowed, and what a cache key records of them.

In memory, a value's *token* holds helpers, classes and functions as objects, which is exact and cheap to compare. The
on-disk cache has the token's text (`text_of`), in which their source represents them.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from ..dtypes import MAX_BITS, DType
from ..errors import CompilationError, TileError
from ..ir.builtin import Builtin
from ..ir.op import Op
from ..lazy import hashlib
from ..names import counterpart
from .plain import Function
from .source import MISSING, Source


@dataclass(frozen=True, slots=True)
class Capture:
    """A value that compiling read from a global or closure: ``path`` is the name,
    followed by the attributes read from it."""

    source: Source | Function
    path: tuple[str, ...]
    token: Any

    def meaning(self) -> Any:
        """The current value of the path; MISSING if it no longer exists."""
        try:
            value = self.source.resolve(self.path[0])
            for name in self.path[1:]:
                value = getattr(value, name)
        except (KeyError, AttributeError):
            return MISSING
        return value

    def current(self) -> Any:
        """The token of the current value of the path; None if it no longer exists."""
        value = self.meaning()
        return None if value is MISSING else token(check_number(value))

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def may_change(self) -> bool:
        """Whether the value may change within a process. Not if this package's own code reads it, or if it is an op,
        a builtin, a module or a dtype."""
        return (not str(self.source.globals.get("__name__")).startswith("tilejit.")
                and self.token[0] not in ("Op", "Builtin", "module", "DType"))


class Watch:
    """A captured value that each call checks: whether it has `find_changed_capture` since it was captured. If the
    token of the value is fixed, the usual check is one comparison of identity."""

    __slots__ = ("capture", "value")

    def __init__(self, capture: Capture):
        value = capture.meaning()
        known = value is not MISSING and _is_fixed(value) and token(value) == capture.token
        # `self`: identical to no value, so tokens are compared
        self.capture, self.value = capture, value if known else self

    def has_changed(self) -> bool:
        return self.capture.meaning() is not self.value and self.capture.current() != self.capture.token


def _is_fixed(x: Any) -> bool:
    """Whether the token of a value cannot change during the object's life."""
    if isinstance(x, tuple):
        return all(map(_is_fixed, x))
    plain = (x is None
             or isinstance(x, (bool, int, float, complex, str, DType, Op, Builtin, ModuleType, type, FunctionType)))
    return plain or source_of(x) is not None


def source_of(x: Any) -> Source | None:
    """The source of a helper under @tile.jit; None for anything else."""
    found = None if isinstance(x, type) else getattr(x, "source", None)
    return found if isinstance(found, Source) else None


def of_tilejit(x: Any) -> bool:
    """Whether a module, class, function or object is part of this package."""
    name = x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", None) or type(x).__module__
    return name == "tilejit" or str(name).startswith("tilejit.")


def check_number(x: Any) -> Any:
    """A NumPy number as Python's; anything else as it is."""
    if isinstance(x, ModuleType):  # reading attributes of a lazily loaded module would load it
        return x
    is_scalar = (hasattr(x, "item") and hasattr(x, "dtype") and getattr(x, "shape", None) == ()
                 and not hasattr(x, "__setitem__"))
    return x.item() if is_scalar else x


# -- tokens ------------------------------------------------------------------------------------------------------------

def token(x: Any) -> Any:
    """What a cache key records of a captured value: hashable, and equal for equal values.
    None if the value cannot be captured."""
    if isinstance(x, enum.Enum):
        return "member", type(x), x.name
    if isinstance(x, (bool, int, float, complex, str)) or x is None or x is Ellipsis:
        return (type(x).__name__, repr(x))
    if isinstance(x, (DType, Op, Builtin, ModuleType)):
        return (type(x).__name__, x.__name__ if isinstance(x, ModuleType) else x.name)
    if source_of(x) is not None:
        return ("helper", source_of(x))
    if isinstance(x, (tuple, list)):
        return _record(x, x)
    if isinstance(x, dict):
        return _record(x, (part for item in x.items() for part in item))
    if isinstance(x, (set, frozenset)):
        parts = frozenset(map(token, x))
        return None if None in parts else ("set", type(x), parts)
    if isinstance(x, FunctionType):
        return "object", Function(x)
    if isinstance(x, type):
        return "object", x
    if isinstance(x, BuiltinFunctionType):
        return (type(x).__name__, str(getattr(x, "__module__", "")), x.__qualname__)
    if is_frozen(type(x)):
        return _record(x, (getattr(x, f.name) for f in dataclasses.fields(x)))
    if of_tilejit(type(x)) or type(x).__module__ == "numpy" and type(x).__name__.startswith("dtype"):
        return (type(x).__qualname__, repr(x))
    if type(x).__module__.startswith("numpy.dtypes"):
        return ("dtype", str(x))
    return None


def is_frozen(kind: type) -> bool:
    """Whether a class is a frozen dataclass."""
    params: Any = getattr(kind, "__dataclass_params__", None)
    return dataclasses.is_dataclass(kind) and bool(params.frozen)


def _record(x: Any, values: Iterable[Any]) -> tuple[Any, ...] | None:
    parts = tuple(map(token, values))
    return None if None in parts else ("record", type(x), parts)


def sources_in(token: Any, steps: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Source | Function]]:
    """(path, source) of every helper and plain function in a token; the path is a tuple of indices."""
    if isinstance(token, (Source, Function)):
        yield steps, token
    elif isinstance(token, tuple):
        for i, part in enumerate(token):
            yield from sources_in(part, (*steps, i))


def source_at(token: Any, steps: Iterable[int]) -> Source | Function | None:
    """The helper or plain function at a path of `sources_in` in a token; None if there is none."""
    for i in steps:
        if not isinstance(token, tuple) or i >= len(token):
            return None
        token = token[i]
    return token if isinstance(token, (Source, Function)) else None


def defaults_of(source: Source | Function) -> dict[str, Any]:
    """The tokens of a function's default values, by parameter; they come from the code around it too."""
    if isinstance(source, Function):
        return {name: token(check_number(x)) for name, x in source.defaults.items()}
    return {p.name: token(check_number(p.default)) for p in source.params if p.default is not MISSING}


# -- what outlives the process -----------------------------------------------------------------------------------------

class Unrecorded(Exception):
    """A value has no token or cannot be reached from the kernel, so the kernel is not cached on disk."""


def text_of(token: Any, located: bool = True) -> str:
    """A token as text that is the same in every process, and if not `located` in every folder. Unrecorded if the token
    is None."""
    if token is None:
        raise Unrecorded
    if isinstance(token, tuple):
        return f"({', '.join(text_of(part, located) for part in token)})"
    if isinstance(token, frozenset):
        return f"{{{', '.join(sorted(text_of(part, located) for part in token))}}}"
    if isinstance(token, Source):
        return identity(token, located)
    if isinstance(token, Function):
        function = token.function
        return f"{function.__module__}.{function.__qualname__} {_code_digest(function.__code__)}"
    if isinstance(token, type):
        return _class_text(token)
    return repr(token)


def identity(source: Source, located: bool = True) -> str:
    """A function's identity: its text, its defaults, and if `located` its location, which line tables and messages
    contain.

    The cells of a notebook have file names with the process id, which is left out.
    """
    file = re.sub(r"ipykernel_\d+", "ipykernel", source.file)
    place = f"{file}:{source.first_line} " if located else ""
    return f"{source.name} {source.fingerprint()} {place}{text_of(tuple(defaults_of(source).items()), located)}"


def _class_text(kind: type) -> str:
    """A class as its name and, for a user's class, a digest of the bodies of its own and its bases."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__.partition(".")[0] in _SETTLED or kind.__module__ == "builtins":
        return name
    parts = []
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in _SETTLED:
            parts += [f"{base.__qualname__}.{n}={_member_text(v)}"
                      for n, v in vars(base).items() if n not in _NOT_ITS_BODY]
    return f"{name} {hashlib.sha256(' '.join(parts).encode(errors='surrogatepass')).hexdigest()[:16]}"


_SETTLED = frozenset(sys.stdlib_module_names) - {"__main__"} | {"tilejit", "numpy"}  # change only with their versions
_NOT_ITS_BODY = frozenset(("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__",
                           "__static_attributes__",
                           "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"))


def _member_text(x: Any) -> str:
    if isinstance(x, (staticmethod, classmethod)):
        x = x.__func__
    if isinstance(x, property):
        return "property" + " ".join(_member_text(f) for f in (x.fget, x.fset, x.fdel) if f is not None)
    if isinstance(x, FunctionType):
        return _code_digest(x.__code__) + text_of(token(x.__defaults__))
    if isinstance(x, dict):
        return " ".join(f"{k}:{_member_text(v)}" for k, v in x.items())
    if isinstance(x, type):
        return f"{x.__module__}.{x.__qualname__}"
    if isinstance(x, enum.Enum):
        return f"{x.name} {text_of(token(x.value))}"
    known = token(x)
    return type(x).__qualname__ if known is None else text_of(known)


def _code_digest(code: CodeType) -> str:
    def text(x: Any) -> str:
        if isinstance(x, CodeType):
            return _code_digest(x)
        if isinstance(x, tuple):
            return f"({', '.join(map(text, x))})"
        return repr(sorted(map(repr, x))) if isinstance(x, frozenset) else repr(x)
    return hashlib.sha256(code.co_code + text((code.co_consts, code.co_names,
                                               code.co_varnames)).encode(errors="surrogatepass")).hexdigest()[:16]


# -- captures as data --------------------------------------------------------------------------------------------------

@contextmanager
def attached_captures(captured: Callable[[], tuple[Capture, ...]]) -> Iterator[None]:
    """A context whose errors get the values that were captured so far, on which they may depend."""
    try:
        yield
    except TileError as error:
        error.captured = captured()
        raise


def record_captures(captured: tuple[Capture, ...], source: Source, constants: dict[str, Any],
                    located: bool = True) -> dict[str, Any]:
    """Captures as plain data, which `find_changed_capture` compares with the values in another process.

    `sources` says how each function that reads a value is reached from the kernel: through a compile-time argument, a
    default value or a capture. Unrecorded if one cannot be reached.
    """
    places: dict[Source | Function, int] = {source: 0}
    ways: list[list[Any]] = []

    def reach(kind: str, owner: int, name: str | list[str], token: Any) -> None:
        for steps, found in sources_in(token):
            if found not in places:
                places[found] = len(places)
                ways.append([kind, owner, name, list(steps)])
                for parameter, default in defaults_of(found).items():
                    reach("default", places[found], parameter, default)

    for name, value in constants.items():
        reach("argument", 0, name, token(value))
    values = []
    for capture in captured:
        if capture.source not in places:
            raise Unrecorded
        owner = places[capture.source]
        values.append([owner, list(capture.path), text_of(capture.token, located)])
        reach("capture", owner, list(capture.path), capture.token)
    return {"sources": ways, "values": values}


def find_changed_capture(record: dict[str, Any], source: Source, constants: dict[str, Any],
                         located: bool = True) -> tuple[tuple[Capture, ...], str]:
    """The recorded captures with their current values, and the name of the first that has changed ("" if none has)."""
    sources: list[Source | Function] = [source]
    for kind, owner, name, steps in record["sources"]:
        if kind == "argument":
            held = token(constants[name]) if name in constants else None
        elif kind == "default":
            held = defaults_of(sources[owner]).get(name)
        else:
            held = Capture(sources[owner], tuple(name), None).current()
        found = source_at(held, steps)
        if found is None:
            return (), name if isinstance(name, str) else ".".join(name)
        sources.append(found)
    captured = []
    for owner, path, text in record["values"]:
        capture = Capture(sources[owner], tuple(path), None)
        held = capture.current()
        if held is None or text_of(held, located) != text:
            return (), capture.name
        captured.append(Capture(capture.source, capture.path, held))
    return tuple(captured), ""


# -- what may be captured ----------------------------------------------------------------------------------------------

def check_capture(name: str, x: Any) -> Any:
    """`x` as a kernel may use it: a NumPy scalar becomes a Python number. CompilationError for a value whose changes
    would go unnoticed."""
    x = check_number(x)
    if isinstance(x, int) and x.bit_length() > MAX_BITS:
        raise CompilationError(f"{name} has {x.bit_length()} bits, and a constant has at most {MAX_BITS}")
    if token(x) is not None:
        return x
    if hasattr(x, "__array_interface__") or hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__"):
        raise CompilationError(f"{name} is an array of the code around the kernel; "
                               "pass it as an argument of the kernel")
    if isinstance(x, (list, set, dict)):
        raise CompilationError(f"{name} is a {type(x).__name__}, and not all that it holds is a constant; make it part "
                               "of the kernel's arguments, or hold numbers, strings, dtypes, functions and groups of "
                               "those")
    raise CompilationError(f"{name} is "
                           + (counterpart(x) or f"a {type(x).__name__}, which a kernel cannot read from the code "
                                                "around it; pass it as a tile.constexpr argument"))
