"""Rejects LLVM IR text on which the NVPTX backend would end the process, before LLVM sees it.

The text is searched for a few words with str.find (1 ms for 100 KB), and only lines that contain one are examined. Each
instruction is on one line."""

from __future__ import annotations

import re
from functools import lru_cache

from ..errors import ToolchainError
from .intrinsics import architecture, refusal

_INTRINSIC = re.compile(r"@(llvm\.[\w.$-]+)")
_APPROXIMATE = re.compile(r"\bcall\s+[a-z ]*\b(?:afn|fast)\b|^\s*declare\b")
_TYPES = re.compile(r"\b(?:fp128|x86_fp80|x86_amx|ppc_fp128|vscale)\b")
_SCOPE = re.compile(r'syncscope\s*\(\s*"([^"]*)"\s*\)')
_ATOMIC = re.compile(r"\b(?:atomicrmw|cmpxchg|load atomic|store atomic)\b")
_INTEGER = re.compile(r"\bi(\d+)\b")
_WIDE = re.compile(r"\b(?:sitofp|uitofp|fptosi|fptoui)\b.*\bi(?:128|256)\b|\bi(?:128|256)\b.* to "
                   r"(?:half|bfloat|float|double)\b")
_ASM = re.compile(r' asm (?:(?:sideeffect|alignstack|inteldialect|unwind) )*"([^"]*)"\s*,\s*"([^"]*)"')
_CONSTRAINT = re.compile(r"(?:=&?)?(?:[rhlfdbqni]|\d+)")
_PLACEHOLDER = re.compile(r"\$(?:(\$)|(\d+)|\{(\d+)(?::\w+)?\})?")
_NOISE = re.compile(r'"[^"\n]*"|;[^\n]*')

_SCOPES = {"": 80, "block": 80, "device": 80, "singlethread": 80, "cluster": 90}


def check(ir: str, target: str) -> None:
    """Raise ToolchainError, which shows the line, if LLVM might end the process when it compiles this
    text for `target`."""
    for name in set(_INTRINSIC.findall(ir)):
        reason = refusal(name, target)
        if reason == "afn":
            exact = f"{name} lowers only as an approximation: put the flag afn on the call, or use libdevice"
            _refuse_where(ir, target, f"@{name}(",
                          lambda line: "" if _APPROXIMATE.search(line) else exact)
        elif reason:
            _refuse_where(ir, target, f"@{name}", lambda line: f"{name} {reason}")
    for word in ("fp128", "x86_", "vscale"):
        if word in ir:
            _refuse_where(ir, target, word, _type_reason)
    for word in ("atomicrmw", "cmpxchg", " atomic "):
        if word in ir:
            _refuse_where(ir, target, word, _atomic_reason)
    if "syncscope" in ir:
        _refuse_where(ir, target, "syncscope", lambda line: _scope_reason(line, target), strings=True)
    if "i128" in ir or "i256" in ir:
        wide = "conversions between floats and integers wider than 64 bits do not lower"
        for width in ("i128", "i256"):
            _refuse_where(ir, target, width, lambda line: wide if _WIDE.search(line) else "")
    for match in _ASM.finditer(ir):
        reason = _assembly_reason(match[1], match[2]) or _operand_reason(ir, match)
        if reason:
            _refuse(ir, target, match.start(), reason)


def _refuse_where(ir: str, target: str, word: str, reason_of, strings: bool = False) -> None:
    """Call `reason_of` for every line of code that contains `word`, and raise an error if it gives a reason. Strings
    and comments do not count as code, unless `strings`."""
    at = ir.find(word)
    while at >= 0:
        stop = ir.find("\n", at)
        stop = len(ir) if stop < 0 else stop
        line = ir[ir.rfind("\n", 0, at) + 1: stop]
        code = line if strings else _NOISE.sub('""', line)
        if word in code:
            reason = reason_of(code)
            if reason:
                _refuse(ir, target, at, reason)
        at = ir.find(word, stop)


def _refuse(ir: str, target: str, at: int, reason: str) -> None:
    number = ir.count("\n", 0, at) + 1
    raise ToolchainError(f"LLVM cannot compile line {number} for {target}: {reason}\n"
                         f"  {number}: {ir.splitlines()[number - 1].strip()[:400]}")


def _type_reason(line: str) -> str:
    found = _TYPES.search(line)
    return f"the type {found[0]} does not lower" if found else ""


def _scope_reason(line: str, target: str) -> str:
    for name in _SCOPE.findall(line):
        least = _SCOPES.get(name)
        if least is None:
            return f'syncscope("{name}") is unknown; there are ' + ", ".join(f'"{known}"' for known in _SCOPES)
        if architecture(target)[0] < least:
            return f'syncscope("{name}") needs sm_{least}'
    return ""


def _atomic_reason(line: str) -> str:
    if not _ATOMIC.search(line):
        return ""
    widths = [int(width) for width in _INTEGER.findall(line)]
    if any(width not in (1, 8, 16, 32, 64) for width in widths):
        return "atomics lower on 8, 16, 32 and 64 bits"
    vector = re.search(r"<(\d+) x (\w+)>", line)
    if vector and vector[0] not in ("<2 x half>", "<2 x bfloat>", "<2 x float>"):
        return f"atomics do not lower on {vector[0]}"
    return ""


@lru_cache(maxsize=4096)
def _assembly_reason(text: str, constraints: str) -> str:
    """Why LLVM would end the process on this inline assembly; "" if it would not."""
    operands = 0
    for piece in constraints.split(","):
        if piece and not piece.startswith("~{"):
            if not _CONSTRAINT.fullmatch(piece):
                return (f"unknown constraint {piece!r} of inline assembly; NVPTX has r, h, l, f, d, b, q, n, outputs "
                        "with = before the letter, and the number of the output that an input is tied to")
            operands += 1
    for match in _PLACEHOLDER.finditer(text):
        dollar, plain, braced = match.groups()
        if dollar:
            continue
        number = plain or braced
        if number is None:
            return "a $ in inline assembly is written $$"
        if int(number) >= operands:
            return f"the assembly names ${number}, but has {operands} operands"
    return ""


def _operand_reason(ir: str, match) -> str:
    """Checks operands of the constraints that LLVM asserts on: n and i need a literal, q an i128."""
    constraints = match[2].split(",")
    if not any(piece.lstrip("=&") in ("n", "i", "q") for piece in constraints):
        return ""
    if "=q" in constraints or "=&q" in constraints:
        start = ir.rfind("call ", 0, match.start())
        if start < 0 or "i128" not in ir[start: match.start()]:
            return "an output with constraint q is an i128"
    stop = ir.find("\n", match.end())
    operands = _arguments(ir[match.end(): stop if stop >= 0 else len(ir)])
    inputs = [piece for piece in constraints if piece and piece[0] not in "=~"]
    for piece, operand in zip(inputs, operands):
        if piece in ("n", "i") and not re.fullmatch(r"i\d+ (?:-?\d+|true|false)", operand):
            return f"an operand with constraint {piece} is a literal integer, not {operand}"
        if piece == "q" and not operand.startswith("i128 "):
            return f"an operand with constraint q is an i128, not {operand}"
    return ""


def _arguments(text: str) -> list[str]:
    """Splits a call's arguments: ``"(i32 1, {i32, i32} %x) #0"`` gives ["i32 1", "{i32, i32} %x"]."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in "([{<":
            depth += 1
            start = at + 1 if depth == 1 else start
        elif letter in ")]}>":
            depth -= 1
            if depth == 0:
                found.append(text[start:at].strip())
                break
        elif letter == "," and depth == 1:
            found.append(text[start:at].strip())
            start = at + 1
    return [piece for piece in found if piece]
