"""The table compared with a catalogue of instructions, each with the targets on which an assembler accepted it."""

import re
from pathlib import Path

import pytest
from tilejit import ptx

REGISTER_CLASS = {"r": "b32", "ia": "b32", "rd": "b64", "h": "b16", "q": "b128", "p": "pred", "f": "f32", "acc": "f32", "fd": "f64"}
TOKEN = re.compile(r"%[a-z]+\d+|\{\w+\}|[\w.]+|[^\s\w]")


def catalogue():
    """Pairs (instruction text, its targets)."""
    targets = ()
    for line in (Path(__file__).parent / "data" / "catalogue.txt").read_text().splitlines():
        if line.startswith("["):
            targets = tuple(line.strip("[]").split())
        elif line and not line.startswith("#"):
            yield line, targets


def tokens(text):
    """The operands of an instruction, token by token; register ranges are expanded."""
    def written_out(match):
        return ", ".join(f"%{match[1]}{i}" for i in range(int(match[2]), int(match[3]) + 1))
    return TOKEN.findall(re.sub(r"%([a-z]+)(\d+) \.\. %[a-z]+(\d+)", written_out, text))


def form_tokens(form):
    """The operands of a form's template, token by token; registers and immediates become Operand objects."""
    found = []
    for token in tokens(form.template.partition(" ")[2].rstrip(";")):
        name = token.strip("{}")
        if not token.startswith("{"):
            found.append(token)
            continue
        operand = form.operand(name)
        elements = [operand] * (operand.count or 1)
        listed = [part for element in elements for part in (element, ",")][:-1]
        found += listed if operand.count is None else ["{", *listed, "}"]
    return found


def fits(written, operand):
    """Whether a register or number of the catalogue matches the token of a form at this position."""
    if isinstance(operand, str):
        return written == operand
    if written.startswith("%"):
        return operand.kind != "imm" and REGISTER_CLASS[re.sub(r"[%\d]", "", written)] == operand.register.declared
    if operand.kind == "imm":
        return re.fullmatch(r"\d+", written) and int(written) in operand.values
    return operand.role == "in" and re.fullmatch(r"0x[0-9a-f]+|[\d.]+", written)


def same(text, form):
    mnemonic, _, operands = text.rstrip(";").partition(" ")
    written, expected = tokens(operands), form_tokens(form)
    return mnemonic == form.mnemonic and len(written) == len(expected) and all(map(fits, written, expected))


@pytest.fixture(scope="module")
def by_mnemonic():
    found = {}
    for form in ptx.forms():
        found.setdefault(form.mnemonic, []).append(form)
    return found


def test_every_instruction_of_the_catalogue_is_a_form_with_the_same_targets(by_mnemonic):
    missing, other = [], []
    for text, targets in catalogue():
        matching = [form for form in by_mnemonic.get(text.rstrip(";").partition(" ")[0], ()) if same(text, form)]
        if not matching:
            missing.append(text)
        elif all(form.targets != targets for form in matching):
            other.append((text, targets, [form.targets for form in matching]))
    assert missing == []
    assert other == []


def test_the_catalogue_is_complete():
    assert sum(1 for _ in catalogue()) == 571
