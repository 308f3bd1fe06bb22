"""The source of a kernel or helper.

Its text, parsed once with positions in the file, its parameters, and the values of its free names.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from ..concurrency import cached_property, not_while_forking
from ..errors import CompilationError, Loc
from ..lazy import hashlib

if TYPE_CHECKING:
    constexpr = Any  # a compile-time value may be of any type
else:
    class constexpr:
        """Annotation of a parameter that is a compile-time value: ``def kernel(x, BLOCK: tile.constexpr)``."""

        def __init__(self, *args, **kwargs):
            raise CompilationError("tile.constexpr annotates a parameter, as in `BLOCK: tile.constexpr`; "
                                   "it is not called")

if TYPE_CHECKING:
    Array = Any
else:
    class Array:
        """Annotation of a parameter that is an array, or of a field of one: ``bias: tile.Array | None``. It is for type
        checkers and readers; kernels compile the same without it."""

        def __init__(self, *args, **kwargs):
            raise CompilationError("tile.Array annotates a parameter, as in `bias: tile.Array | None`; "
                                   "it is not called")

MISSING = inspect.Parameter.empty

_parsing = threading.Lock()


Placed = ast.stmt | ast.expr | ast.arg  # nodes that have a place in the text
Span = tuple[str, int, int, int, int, str, str]


@not_while_forking
def parse(text: str) -> ast.Module:
    """``ast.parse`` under a lock: in CPython 3.11, parsers in two threads share a counter and fail."""
    with _parsing:
        return ast.parse(text)


@not_while_forking
def parsed_expression(text: str) -> ast.Expression:
    """`parse` of an expression."""
    with _parsing:
        return ast.parse(text, mode="eval")


@dataclass(frozen=True)
class Param:
    """A parameter: its kind (of `inspect.Parameter`), whether it is annotated ``tile.constexpr``, its default, and
    the value of its annotation."""

    name: str
    kind: Any
    constexpr: bool = False
    default: Any = MISSING
    annotation: Any = None


class Source:
    """The source of one function.

    ``tree`` is its ``ast.FunctionDef``, whose positions are those in the file. ``locals`` are the function's local
    names as Python defines them: its parameters and every name that it assigns.
    """

    def __init__(self, name: str, text: str, file: str, first_line: int, namespace: Mapping[str, Any],
                 cells: Mapping[str, CellType], code: CodeType, defaults: Mapping[str, Any] | None = None,
                 tree: ast.FunctionDef | None = None):
        self.name = name
        self.text = text
        self.file = file
        self.first_line = first_line
        self.globals = namespace
        self.cells = cells
        self.locals = frozenset((*code.co_varnames, *code.co_cellvars))
        self.lines = text.splitlines()
        self._spans: dict[Placed, Span] = {}
        self._taken: dict[tuple[int, tuple[str, ...]], tuple[int | tuple[int, ...] | None, ...]] = {}
        self.tree = self._parse() if tree is None else tree
        self._defaults = defaults

    def __repr__(self) -> str:
        return f"<source of {self.name} at {self.file}:{self.tree.lineno}>"

    # -- where the text comes from -----------------------------------------------------------------------------------

    @classmethod
    def of(cls, function: FunctionType) -> Source:
        """The source of a Python function, from its file or from the notebook cell that defined it."""
        if isinstance(function, (staticmethod, classmethod)):
            raise CompilationError("a kernel is a plain function; write @tile.jit outside the class")
        if not isinstance(function, FunctionType):
            what = f"the class {function.__name__}" if isinstance(function, type) else type(function).__name__
            raise CompilationError(f"@tile.jit compiles a Python function, not {what}")
        code = function.__code__
        *_, around, _ = ("<locals>", *function.__qualname__.split("."))
        if around != "<locals>" and code.co_varnames[:code.co_argcount][:1] in (("self",), ("cls",)):
            raise CompilationError(
                f"{code.co_filename}:{code.co_firstlineno}: {function.__name__} is a method of {around}, and a kernel "
                f"is a plain function: write it outside the class, let a method launch it, and pass what it needs of "
                f"{code.co_varnames[0]} as arguments")
        if code.co_name == "<lambda>":
            raise CompilationError(f"{code.co_filename}:{code.co_firstlineno}: "
                                   "a lambda cannot be a kernel; write a def")
        if _is_edited(code.co_filename) and not _stands(code):
            raise CompilationError(f"{code.co_filename}:{code.co_firstlineno}: the text of {function.__name__} has "
                                   "changed since it was imported; reload its module")
        try:
            lines, first_line = inspect.getsourcelines(function)
            if code.co_filename == "<string>" and f"def {function.__name__}" not in "".join(lines):
                # Python 3.13 keeps the text of `python -c` under this file name, which code from exec has too
                raise OSError
        except (OSError, TypeError, SyntaxError, IndentationError):
            raise CompilationError(
                f"the source of {function.__name__} cannot be read ({code.co_filename} holds no text that Python kept: "
                "it was made by exec, or typed at a prompt); give the text itself: "
                "tile.jit(source=\"def kernel(...): ...\")") from None
        signature = inspect.signature(function, follow_wrapped=False)
        defaults = {p.name: p.default for p in signature.parameters.values() if p.default is not MISSING}
        cells = dict(zip(code.co_freevars, function.__closure__ or ()))
        return cls(function.__name__, "".join(lines), code.co_filename, first_line, function.__globals__, cells, code,
                   defaults)

    @classmethod
    def from_text(cls, text: str, namespace: Mapping[str, Any] | None = None, file: str = "<source>") -> Source:
        """The source of the only function that `text` defines; its free names are looked up in `namespace`."""
        if not isinstance(text, str):
            raise CompilationError(f"the source of a kernel is its text, not {type(text).__name__}")
        try:
            tree = parse(text)
            # finds errors that the parser does not, such as two parameters of one name
            module = compile(text, file, "exec", dont_inherit=True)
        except SyntaxError as error:
            line = (error.text or "").rstrip("\n")
            place = Loc(file, error.lineno or 1, max(0, (error.offset or 1) - 1), source_line=line)
            raise CompilationError(f"the text is not Python: {error.msg}", place) from None
        except ValueError as error:  # a null character, or a lone surrogate
            raise CompilationError(f"the text is not Python: {error}") from None
        except RecursionError:
            raise CompilationError("the text nests too deeply for Python's parser") from None
        functions = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        if len(functions) != 1:
            raise CompilationError(f"the text must define one function, and defines {len(functions)}")
        node = functions[0]
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        piece = "\n".join(text.splitlines()[first - 1:node.end_lineno]) + "\n"
        function = node if isinstance(node, ast.FunctionDef) else None
        code = next(code for code in _codes(module) if code.co_name == node.name)
        return cls(node.name, piece, file, first, {} if namespace is None else namespace, {}, code, tree=function)

    def _parse(self) -> ast.FunctionDef:
        # An indented function is parsed as the body of an `if`, so that columns stay the file's.
        indented = self.text[:1] in " \t"
        try:
            module = parse("if True:\n" + self.text if indented else self.text)
        except SyntaxError as error:
            raise CompilationError(f"{self.file}:{self.first_line}: the source of {self.name} cannot be parsed on its "
                                   f"own ({error.msg}); put its def on lines of its own") from None
        ast.increment_lineno(module, self.first_line - 1 - indented)
        body = module.body
        if indented and isinstance(body[0], ast.If):
            body = body[0].body
        for node in body:
            if isinstance(node, ast.AsyncFunctionDef):
                raise CompilationError("a kernel cannot be `async def`; write def", self.loc(node))
            if isinstance(node, ast.FunctionDef) and node.name == self.name:
                return node
        raise CompilationError(f"{self.file}:{self.first_line}: the file holds no `def {self.name}` there; "
                               "it has changed since it was imported")

    # -- places ------------------------------------------------------------------------------------------------------

    def line(self, number: int) -> str:
        """A line of the function by its number in the file; empty outside the function."""
        index = number - self.first_line
        return self.lines[index] if 0 <= index < len(self.lines) else ""

    def loc(self, node: Placed, call_site: Loc | None = None) -> Loc:
        """The source location of a node of the tree, inlined at `call_site`."""
        span = self._spans.get(node)
        if span is None:
            span = self._spans[node] = self._span(node)
        return Loc(*span, call_site)

    def _span(self, node: Placed) -> Span:
        """The fields of a node's `Loc` that do not depend on the call site."""
        line = self.line(node.lineno)
        end_line = node.end_lineno or node.lineno
        last = line if end_line == node.lineno else self.line(end_line)
        return (self.file, node.lineno, _characters(line, node.col_offset), end_line,
                _characters(last, node.end_col_offset or 0), self.name, line)

    def fingerprint(self) -> str:
        """A digest of the function's text."""
        return hashlib.sha256(self.text.encode(errors="surrogatepass")).hexdigest()

    # -- names -------------------------------------------------------------------------------------------------------

    def resolve(self, name: str) -> Any:
        """The current value of a free name of the function: of the closure, a global or a Python builtin.
        KeyError if there is none."""
        if name in self.cells:
            try:
                return self.cells[name].cell_contents
            except ValueError:
                raise KeyError(name) from None
        if name in self.globals:
            return self.globals[name]
        return getattr(builtins, name) if hasattr(builtins, name) else self._raise_missing(name)

    @staticmethod
    def _raise_missing(name: str) -> NoReturn:
        raise KeyError(name)

    def known_names(self) -> list[str]:
        """All names of the closure and the globals, for suggestions."""
        return [*self.cells, *self.globals]

    # -- parameters --------------------------------------------------------------------------------------------------

    @cached_property
    def params(self) -> tuple[Param, ...]:
        """The parameters, in order; ``*args`` is one parameter, whose value is a tuple.
        CompilationError for ``**kwargs``."""
        a = self.tree.args
        if a.kwarg is not None:
            raise CompilationError(f"parameters that are given by keyword are named one by one, and `**{a.kwarg.arg}` "
                                   "is not supported: name them, with defaults where they may be left out, "
                                   "or take a named tuple or a frozen dataclass", self.loc(a.kwarg))
        kinds = inspect.Parameter
        plain = [(p, kinds.POSITIONAL_ONLY) for p in a.posonlyargs] + [(p, kinds.POSITIONAL_OR_KEYWORD) for p in a.args]
        defaults = [None] * (len(plain) - len(a.defaults)) + list(a.defaults) + list(a.kw_defaults)
        named = plain + [(p, kinds.KEYWORD_ONLY) for p in a.kwonlyargs]
        params = [self._param(p, kind, default) for (p, kind), default in zip(named, defaults)]
        if a.vararg is not None:
            params.insert(len(plain), replace(self._param(a.vararg, kinds.VAR_POSITIONAL, None), default=()))
        return tuple(params)

    @cached_property
    def rest(self) -> Param | None:
        """The parameter ``*args``; None if there is none."""
        return next((p for p in self.params if p.kind is inspect.Parameter.VAR_POSITIONAL), None)

    def _param(self, node: ast.arg, kind: Any, default: ast.expr | None) -> Param:
        annotation = None if node.annotation is None else self._evaluate(node.annotation)
        value = MISSING
        if default is not None:
            if self._defaults is not None:
                value = self._defaults[node.arg]
            else:
                value = eval(compile(ast.Expression(default), self.file, "eval"), dict(self.globals))
        return Param(node.arg, kind, annotation is constexpr, value, annotation)

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.Signature([inspect.Parameter(p.name, p.kind, default=MISSING if p is self.rest else p.default)
                                  for p in self.params])

    def argument_indices(self, positional: int, keywords: tuple[str, ...]) -> tuple[int | tuple[int, ...] | None, ...]:
        """How a call binds its arguments: for each parameter the index of its argument (counting first the
        `positional` ones, then `keywords`), a tuple of indices for ``*args``, None for its default. TypeError if the
        arguments do not fit."""
        call = positional, keywords
        if call not in self._taken:
            bound = self.signature.bind(*range(positional),
                                        **{name: n for n, name in enumerate(keywords, positional)}).arguments
            self._taken[call] = tuple(bound.get(p.name) for p in self.params)
        return self._taken[call]

    def _evaluate(self, node: ast.expr) -> Any:
        """The value of an annotation that is a dotted name, perhaps inside a string; None for any other."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return self._evaluate(parsed_expression(node.value).body)
            except SyntaxError:
                return None
        if isinstance(node, ast.Attribute):
            return getattr(self._evaluate(node.value), node.attr, None)
        if isinstance(node, ast.Name):
            try:
                return self.resolve(node.id)
            except KeyError:
                return None
        return None


_LOADED = time.time()


def _is_edited(file: str) -> bool:
    """Whether a file was written since this package was loaded."""
    try:
        return os.stat(file).st_mtime > _LOADED
    except OSError:
        return False


def _stands(code: CodeType) -> bool:
    """Whether a function's file, as it is now, still compiles to its code object.
    Also True if the file cannot be compiled."""
    linecache.checkcache(code.co_filename)
    try:
        module = compile("".join(linecache.getlines(code.co_filename)), code.co_filename, "exec", dont_inherit=True)
    except SyntaxError:
        return True
    return any(c == code for c in _codes(module))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code objects of the functions that `code` defines, at any depth."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _characters(line: str, offset: int) -> int:
    """A column in characters, from one of the parser, which counts bytes of UTF-8."""
    return offset if line.isascii() else len(line.encode()[:offset].decode(errors="ignore"))
