"""Forms as lines of PTX, and PTX modules with all forms, which test what an assembler accepts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .form import Form, literals, substitute
from .lookup import forms
from .operands import Operand

ISA = "8.8"                                    # the PTX version that LLVM emits here


def _operand_texts(form: Form) -> tuple[dict[str, list[str]], list[tuple[Operand, str]]]:
    """The text of each operand, and (operand, register) of each register;
    registers are numbered from 1 within their class."""
    values: dict[str, list[str]] = {}
    used: list[tuple[Operand, str]] = []
    counts: dict[str, int] = {}
    for operand in form.operands:
        if operand.values is not None:
            values[operand.name] = literals([operand.values.first_allowed] * (operand.count or 1))
            continue
        prefix = operand.register.prefix
        start = counts.get(prefix, 0) + 1
        counts[prefix] = start + operand.registers - 1
        values[operand.name] = [f"%{prefix}{start + i}" for i in range(operand.registers)]
        used += [(operand, register) for register in values[operand.name]]
    return values, used


def example(form: Form) -> str:
    """One line of PTX that uses the form: `mapa.shared::cluster.u32 %r1, %r2, %r3;`."""
    return substitute(form.template, form.operands, _operand_texts(form)[0])


def _entry(form: Form, name: str) -> str:
    """A kernel, on one line, that loads the form's inputs, executes the form, and stores its outputs."""
    values, used = _operand_texts(form)
    declared = [f".reg .{operand.register.declared} {register};" for operand, register in used]
    before, after, offset = [], [], 0
    for operand, register in used:
        kind = operand.register.declared
        if kind == "pred":
            before += [f"ld.global.b32 %t, [%base+{offset}]; setp.ne.b32 {register}, %t, 0;"] * (operand.role != "out")
            after += [f"selp.b32 %t, 1, 0, {register}; st.global.b32 [%base+{offset}], %t;"] * (operand.role != "in")
        else:
            before += [f"ld.global.{kind} {register}, [%base+{offset}];"] * (operand.role != "out")
            after += [f"st.global.{kind} [%base+{offset}], {register};"] * (operand.role != "in")
        offset += 16
    body = " ".join(declared + before + [substitute(form.template, form.operands, values)] + after)
    return (f".visible .entry {name}(.param .b64 p) .maxntid 128 {{ .reg .b64 %base; .reg .b32 %t; "
            f"ld.param.b64 %base, [p]; {body} ret; }} // {form.name}")


def probe_module(forms: Iterable[Form], target: str, isa: str = ISA) -> str:
    """A PTX module for `target` with one kernel per form, each on a line that ends with the form's name."""
    head = [f".version {isa}", f".target {target}", ".address_size 64"]
    return "\n".join(head + [_entry(form, f"probe_{i}") for i, form in enumerate(forms)]) + "\n"


def probe_ptx(target: str, isa: str = ISA) -> str:
    """The probe module of all forms of `target` that need exactly the PTX version `isa`."""
    return probe_module((form for form in forms(target) if form.isa == isa), target, isa)


def refused_forms(module: str, log: str) -> dict[str, str]:
    """The forms that an assembler rejects, with the first message about each, from its log for a probe module."""
    lines = module.splitlines()
    found: dict[str, str] = {}
    for message in log.splitlines():
        at_line = re.search(r", line (\d+); error\s*: (.*)", message)
        in_entry = re.search(r"error.*\bprobe_(\d+)\b", message)
        if at_line:
            found.setdefault(lines[int(at_line[1]) - 1].rpartition("// ")[2], at_line[2])
        elif in_entry:
            found.setdefault(lines[3 + int(in_entry[1])].rpartition("// ")[2], message)
    return found
