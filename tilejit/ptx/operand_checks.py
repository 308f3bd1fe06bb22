"""Checks the operands given to a form; errors are worded for the author of the call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from ..errors import CompilationError, Loc
from .form import Form
from .operands import Operand

#: An operand to check: a Python number (a compile-time constant), or text that begins with the LLVM type of a value
#: ("i32", "ptr addrspace(1) %a"); for a vector, a sequence with one for each element.
Given = int | float | str | Sequence[int | float | str]

_LLVM_TYPE = re.compile(r"<[^>]*>|ptr addrspace\(\d+\)|[\w.]+")
_INTEGER_BITS = {"b16": 16, "b32": 32, "b64": 64, "b128": 128, "pred": 1}


def check(form: Form, operands: Mapping[str, Given], target: str | None = None, loc: Loc | None = None) -> None:
    """CompilationError unless `operands` (by name) are what `form` takes and `target` has the form."""
    if target is not None and not form.exists_on(target):
        raise CompilationError(f"{form.name} exists on {', '.join(form.targets)}, not on {target}", loc)
    takes = {operand.name: operand for operand in form.inputs}
    for name in operands:
        if name not in takes:
            near = get_close_matches(name, takes, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(takes) or 'none'}"
            raise CompilationError(f"{form.name} has no input operand {name!r}: {hint}", loc)
    for name, operand in takes.items():
        if name not in operands:
            raise CompilationError(f"{form.name}: operand {name} is missing; it needs {operand.needs}", loc)
        problem = _misfit(operand, operands[name])
        if problem:
            raise CompilationError(f"{form.name}: operand {name} needs {operand.needs}, not {problem}", loc)


def _misfit(operand: Operand, given: Given) -> str | None:
    """In words, what was given, if it does not fit the operand; None if it fits."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        return _misfit_element(operand, given) if operand.count is None else "a single value"
    if operand.count is None:
        return f"{len(given)} values"
    if len(given) != operand.count:
        return f"{len(given)} values"
    return next((problem for problem in (_misfit_element(operand, g) for g in given) if problem), None)


def _misfit_element(operand: Operand, given: int | float | str) -> str | None:
    if isinstance(given, str):
        llvm = _LLVM_TYPE.match(given)
        if operand.kind == "imm":
            return f"a value known only at run time ({given})"
        if llvm is None:
            return repr(given)
        return None if llvm[0] in operand.accepts else llvm[0]
    if operand.kind == "imm":
        return None if operand.values is not None and given in operand.values else repr(given)
    if operand.register.llvm in ("float", "double"):
        return None
    bits = _INTEGER_BITS[operand.register.declared]
    if not isinstance(given, int) or not -(1 << bits - 1) <= given < 1 << bits:
        return repr(given)
    return None
