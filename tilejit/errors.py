"""Source locations, and the exceptions that are raised for a user's mistakes.

    TileError
    ├── CompilationError        the kernel's source cannot be compiled as written
    │   ├── DispatchError       no lowering of a tile primitive accepts this call
    │   └── SharedMemoryError   more shared memory than the target, or `max_shared`, allows
    ├── LaunchError             a launch's arguments, grid or device do not fit the kernel
    ├── SimulationError         the simulator found a fault in the kernel
    ├── VerificationError       a kernel's results differ from its reference
    ├── CacheError              the on-disk cache cannot be used as configured
    └── ToolchainError          LLVM, the assembler or the driver rejected its input
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
import warnings
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any


@dataclass(frozen=True, slots=True)
class Loc:
    """A range of source text, and the chain of helper calls through which it was inlined.

    ``line`` and ``end_line`` count from 1, ``column`` and ``end_column`` from 0, in characters.
    ``call_site`` is where the enclosing helper was called, or None in the kernel itself.
    """

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    function: str = ""
    source_line: str = ""
    call_site: Loc | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"

    def render(self) -> str:
        """The location, the source line with carets, and the chain of helper calls."""
        parts = [f"  {self}" + (f", in {self.function}" if self.function else "")]
        if self.source_line.strip():
            parts += _underline(self)
        caller = self.call_site
        while caller is not None:
            parts.append(f"  called from {caller}" + (f", in {caller.function}" if caller.function else ""))
            if caller.source_line.strip():
                parts += _underline(caller)
            caller = caller.call_site
        return "\n".join(parts)


def line_of(loc: Loc | None) -> int:
    """The line of a location, for a message; 0 if it is unknown."""
    return 0 if loc is None else loc.line


def print_text(text: str) -> None:
    """Print a line to standard output. What its encoding lacks, such as a lone surrogate, is printed as an escape."""
    try:
        print(text)
    except UnicodeEncodeError:
        print(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace").decode(sys.stdout.encoding or "utf-8"))


def _columns(text: str) -> int:
    """Width of `text` in terminal columns: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(c) in "WF" for c in text)


def _underline(loc: Loc) -> list[str]:
    text = loc.source_line.rstrip("\n")
    shown = text.lstrip()
    indent = len(text) - len(shown)
    start = max(loc.column, indent)
    stop = loc.end_column if loc.end_line in (0, loc.line) and loc.end_column > start else len(text)
    before, marked = text[indent:start], text[start:stop]
    return [f"    {shown}", "    " + " " * _columns(before) + "^" * max(1, _columns(marked))]


def read_columns(text: str) -> int:
    """The setting `columns`."""
    return int(text) if text.strip().isdecimal() else 100


def fold_lines(text: str, first: str = "", columns: int | None = None) -> str:
    """`text` with lines of more than `columns`, by default those of the setting, folded at blanks, and continued two
    columns further in. `first` is what stands before it. Words that are too long, such as paths, stay whole."""
    if columns is None:
        columns = read_columns(os.environ.get("TILEJIT_COLUMNS", ""))
    if not columns:
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        before = "" if lines else first
        lines += [line] if len(before) + len(line) <= columns else _fold_line(line, len(before), columns)
    return "\n".join(lines)


def _fold_line(line: str, before: int, columns: int) -> list[str]:
    """The parts of one line, which stands `before` columns from the left."""
    indent = len(line) - len(line.lstrip(" "))
    words = re.split(r" (?!\d)|(?<!\d,) ", line[indent:])  # a shape stays in one line
    parts = [" " * indent + words[0]]
    for word in words[1:]:
        used = len(parts[-1]) + (before if len(parts) == 1 else 0)
        if used + 1 + len(word) <= columns:
            parts[-1] += " " + word
        else:
            parts.append(" " * (indent + 2) + word)
    return parts


class TileError(Exception):
    """Base class of all errors for a user's mistakes. `message` says what is wrong, in one line or more, and `loc` is
    the location in the kernel's source, if it is known. The text has both, and once the error has left the package,
    its lines have at most 100 columns."""

    folded = False  # whether long lines of the message are folded

    captured: tuple[Any, ...] | None = None  # what compiling had read from the code around the kernel, if that failed

    def __init__(self, message: str, loc: Loc | None = None):
        super().__init__(message)
        self.message = message
        self.loc = loc

    def __str__(self) -> str:
        text = self.message
        if self.folded:
            text = fold_lines(text, f"{type(self).__module__}.{type(self).__qualname__}: ")
        return text if self.loc is None else f"{text}\n{self.loc.render()}"


class CompilationError(TileError):
    """The kernel's source cannot be compiled as written."""


class DispatchError(CompilationError):
    """No lowering of a tile primitive accepts this call; ``declined`` lists (variant, reason)."""

    def __init__(self, message: str, loc: Loc | None = None, declined: tuple[tuple[str, str], ...] = ()):
        super().__init__(message, loc)
        self.declined = tuple(declined)


class SharedMemoryError(CompilationError):
    """The kernel needs more shared memory than the target, or its own `max_shared`, allows."""


class LaunchError(TileError):
    """A launch's arguments, grid or device do not fit the kernel."""


class SimulationError(TileError):
    """The simulator found a fault in the kernel; ``finding`` is the first one, and ``findings`` has all."""

    def __init__(self, message: str, loc: Loc | None = None, finding: Any = None, findings: tuple[Any, ...] = ()):
        super().__init__(message, loc)
        self.finding, self.findings = finding, findings


class VerificationError(TileError):
    """A kernel's results differ from its reference; ``difference`` is the first one."""

    def __init__(self, message: str, loc: Loc | None = None, difference: Any = None):
        super().__init__(message, loc)
        self.difference = difference


class CacheError(TileError):
    """The on-disk cache cannot be used as configured."""


class ToolchainError(TileError):
    """LLVM, the assembler or the driver rejected its input."""


class SlowCodeError(ToolchainError):
    """The assembler dropped what the kernel's speed depends on."""


class TileWarning(UserWarning):
    """A warning about a kernel that compiles; the module ``warnings`` filters it like any other."""


_PACKAGE = os.path.dirname(__file__) + os.sep


def warn(text: str) -> None:
    """Issue a TileWarning at the line outside this package that made the call."""
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, TileWarning, stacklevel=level)


class at:
    """A context that sets the location of any TileError raised inside that has none yet."""

    __slots__ = ("loc",)

    def __init__(self, loc: Loc | None):
        self.loc = loc

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if isinstance(error, TileError) and error.loc is None:
            error.loc = self.loc
