"""The forms of the instructions in a kernel's LLVM IR, by which a run recognizes kernels that need not be assembled.

A form is a line of IR, or a statement of inline assembly, without the names of values and without numbers that may be
any: LLVM and ptxas accept or reject it wherever it stands. What depends on the whole kernel is a form too: its launch
bounds, and, since ptxas serializes wgmma instructions if accumulators are used between them, the order of these.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

_DEBUG = re.compile(r", ![\w.]+ !\d+")
# Values, and numbers that are not in names, types, lengths of vectors, alignments, address spaces or the names of attributes. It begins with a set
# of characters, between which the search skips: in two thirds of the time of one that looks behind at each character.
_OPERAND = re.compile(r"[-%\d](?:(?<=%)[\w.]+|(?<![\w.$#%@].)(?<!align .)(?<!addrspace\(.)(?:(?<=-)\d|(?<=\d))[\w.+]*(?! x )\b)")
_ASSEMBLY = re.compile(r'asm (?:sideeffect |convergent )*"((?:[^"\\]|\\.)*)", "([^"]*)"')
_INDEX = re.compile(r"\$(\d+)")
# Offsets of addresses and descriptors, instruction descriptors (numbers of seven digits or more), the numbers of accumulators and of descriptors
# in registers with names, the groups of copies that a wait leaves.
_ANY = re.compile(r" \+ -?\d+(?=\])|(?<=, )\d{7,}\b|(?<=[a-z])\d*_\d+\b|(?<=_)<\d+>|(?<=[ ,][xyo])\d+\b|(?<=_group )\d+\b|(?<=_group\.read )\d+\b")
_DESCRIPTOR = re.compile(r"(add\.s64 )[a-z]\d*(, \$\d+, )\d+")
_WGMMA = re.compile(r"wgmma\.(fence|mma|commit|wait)[._]\S*( \d+(?=;))?")
_ACCUMULATORS = re.compile(r"\bacc\d+_\d+\b|(?:=?f,){4}")
_AGGREGATE = re.compile(r"((?:extract|insert)value) \{.*")


@lru_cache(maxsize=2)
def forms(llvm_ir: str) -> frozenset[str]:
    """The forms of a module with one kernel."""
    lines = _DEBUG.sub("", llvm_ir.partition("\n!")[0]).splitlines()
    assembly = {text for line in lines if " asm " in line and (text := _ASSEMBLY.search(line))}
    made = {form for text in {(m[1], m[2]) for m in assembly} for form in statements(*text)}
    kept = [line for line in lines if line.startswith("attributes ")]
    rest = _OPERAND.sub("%", "\n".join(line for line in lines if " asm " not in line and not line.startswith("attributes ")))
    made.update(kept, map(_short, set(rest.splitlines())))
    if "wgmma." in llvm_ir:
        made.add(order(lines))
    return frozenset(made)


def statements(text: str, constraints: str) -> set[str]:
    """The forms of a text of inline assembly: its statements, with the kinds of registers in place of the operands."""
    kinds: list[str] = []
    for constraint in constraints.split(","):
        kind = constraint.lstrip("=&+")
        kinds.append(kinds[int(kind)] if kind.isdigit() else kind)
    text = _ANY.sub("", _DESCRIPTOR.sub(r"\1\2", text))
    text = _INDEX.sub(lambda index: f"<{kinds[int(index[1])]}>", text)
    return {statement.strip(" {}\n\t\\") for statement in text.split(";")}


def _short(line: str) -> str:
    """A form without what varies in length: a kernel's parameters, the sources of a phi, the type of a structure, the name of a label."""
    line = line.strip()
    if line.startswith("define"):
        return "define"
    if line.startswith("% = phi"):
        return line.partition("[")[0]
    return "label" if line.endswith(":") else _AGGREGATE.sub(r"\1", line)


def order(lines: list[str]) -> str:
    """A digest of the order of wgmma instructions, and of accesses to accumulators, branches and labels while they are in flight.
    Of equal ones in a row it has one."""
    found, in_flight = [""], False
    for line in lines:
        if " asm " in line:
            kinds = ["".join(kind) for kind in _WGMMA.findall(line)]
            in_flight = kinds[-1] != "wait 0" if kinds else in_flight
            kinds = kinds or ["accumulators"] * (in_flight and _ACCUMULATORS.search(line) is not None)
        else:
            kinds = ["branch"] * (in_flight and (line.endswith(":") or line.lstrip().startswith("br ")))
        found += [kind for kind in dict.fromkeys(kinds) if kind != found[-1]]
    return f"order {blake2b(' '.join(found).encode(), digest_size=16).hexdigest()}"
