"""Finding rows and forms by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache

from ..errors import CompilationError
from .form import Form
from .row import Row, expand, forms_of
from .table import SECTIONS


def key(name: str) -> str:
    """A normal form that is the same for all spellings of a name, PTX's and Python's: its words,
    joined by underscores."""
    return re.sub(r"[.:_]+", "_", name).strip("_")


def rows() -> tuple[Row, ...]:
    """Every row of the table."""
    return tuple(row for _, section in SECTIONS for row in section)


def forms(target: str | None = None) -> tuple[Form, ...]:
    """Every form, or those that `target` has."""
    return tuple(form for row in rows() for form in expand(row) if target is None or target in form.targets)


@cache
def _rows_by_head() -> dict[str, tuple[Row, ...]]:
    """The rows by the first word of their forms' names, so that a look-up expands few rows."""
    found: dict[str, list[Row]] = {}
    for row in rows():
        for head in row.heads:
            found.setdefault(head, []).append(row)
    return {head: tuple(listed) for head, listed in found.items()}


@cache
def _forms_by_key(head: str) -> dict[str, Form]:
    return {key(form.name): form for row in _rows_by_head().get(head, ()) for form in expand(row)}


@cache
def find_form(name: str) -> Form | None:
    """The form of that name, in PTX's spelling or Python's; None if there is none. A row may have a thousand forms;
    only those with the same beginning are built."""
    wanted = key(name)
    for row in _rows_by_head().get(wanted.partition("_")[0], ()):
        for made in forms_of(row, lambda beginning: wanted.startswith(key(beginning))):
            if key(made.name) == wanted:
                return made
    return None


def form(name: str) -> Form:
    """The form of that name, in PTX's spelling or Python's. CompilationError, with similar names, if there is none."""
    there = find_form(name)
    if there is not None:
        return there
    wanted = key(name)
    known = _forms_by_key(wanted.partition("_")[0])
    near = [k for k in known if k.startswith(wanted)][:3] or get_close_matches(wanted, known, 3)
    hint = f"; near it are {', '.join(known[k].name for k in near)}" if near else ""
    raise CompilationError(f"no PTX instruction form is called {name!r}{hint}")


def forms_that_start_with(name: str) -> Iterator[Form]:
    """The forms whose names start with these words."""
    start = key(name)
    return (f for k, f in _forms_by_key(start.partition("_")[0]).items() if k == start or k.startswith(start + "_"))


def is_prefix(name: str) -> bool:
    """Whether some form's name starts with these words."""
    return next(forms_that_start_with(name), None) is not None
