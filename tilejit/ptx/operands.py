"""An operand of an instruction form: its register class, its notation in the table, and the values that it accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class RegisterClass:
    """One class of PTX registers: its declaration, and the LLVM constraint and types that correspond to it."""

    prefix: str                  # %r in listings
    declared: str                # .reg .b32
    constraint: str              # LLVM's inline-asm constraint letter
    llvm: str                    # the LLVM type that results have
    accepts: tuple[str, ...]     # the LLVM types that inputs may have


#                                   prefix declared constraint llvm      accepts
REGISTER_CLASSES = {
    "b16":  RegisterClass("h",  "b16",  "h", "i16",    ("i16", "half", "bfloat")),
    "b32":  RegisterClass("r",  "b32",  "r", "i32",    ("i32", "<2 x half>", "<2 x bfloat>", "<2 x i16>", "<4 x i8>")),
    "b64":  RegisterClass("rd", "b64",  "l", "i64",    ("i64", "ptr", "ptr addrspace(1)", "ptr addrspace(4)")),
    "b128": RegisterClass("q",  "b128", "q", "i128",   ("i128",)),
    "f32":  RegisterClass("f",  "f32",  "f", "float",  ("float",)),
    "f64":  RegisterClass("fd", "f64",  "d", "double", ("double",)),
    "pred": RegisterClass("p",  "pred", "b", "i1",     ("i1",)),
}

# An operand's type in the instruction's text -> the class of the register that holds it.
# 8-bit values are held in 16-bit registers, packed ones in a register of their total width.
TYPE_CLASS = {
    "b8":   "b16",  "u8":    "b16", "s8":   "b16",
    "b16":  "b16",  "u16":   "b16", "s16":  "b16",  "f16":    "b16", "bf16":   "b16",
    "b32":  "b32",  "u32":   "b32", "s32":  "b32",  "f16x2":  "b32", "bf16x2": "b32", "tf32": "b32",
    "b64":  "b64",  "u64":   "b64", "s64":  "b64",  "f32x2":  "b64",
    "b128": "b128", "f32":   "f32", "f64":  "f64",  "pred":   "pred",
}

# The LLVM types of values for an operand of a floating-point type that is held as bits. Integer operands take only
# integers, and untyped (b) operands anything that fits the register.
TYPE_ACCEPTS = {
    "f16":    ("i16", "half"),
    "bf16":   ("i16", "bfloat"),
    "f16x2":  ("i32", "<2 x half>"),
    "bf16x2": ("i32", "<2 x bfloat>"),
    "f32x2":  ("i64", "<2 x float>"),
}

# The type of an address operand is the state space that it points to: space -> (class, in words).
# `shared` is the shared::cta window, `cluster` the shared::cluster one; both have 32-bit addresses.
SPACES = {
    "shared":  ("b32", "a 32-bit shared::cta address"),
    "cluster": ("b32", "a 32-bit shared::cluster address"),
    "tmem":    ("b32", "a 32-bit tensor-memory address"),
    "global":  ("b64", "a 64-bit global address"),
    "generic": ("b64", "a 64-bit generic address"),
    "map":     ("b64", "the 64-bit generic address of a tensor map"),
}


@dataclass(frozen=True, slots=True)
class Values:
    """The immediates that an operand accepts: a list of integers or a range. Examples show the first."""

    allowed: range | tuple[int, ...]

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and value in self.allowed

    @property
    def first_allowed(self) -> int:
        return self.allowed[0]

    def __str__(self) -> str:
        if isinstance(self.allowed, tuple):
            return " or ".join(map(str, self.allowed))
        step = f" in steps of {self.allowed.step}" if self.allowed.step > 1 else ""
        return f"an integer from {self.allowed.start} to {self.allowed.stop - 1}{step}"


@cache
def _values(text: str) -> Values:
    """Parse the immediates of ``imm(...)``: `0..4`, `24..256/8` (in steps of 8), `128` or `1,-1`."""
    span = re.fullmatch(r"(\d+)\.\.(\d+)(?:/(\d+))?", text)
    if span:
        return Values(range(int(span[1]), int(span[2]) + 1, int(span[3] or 1)))
    return Values(tuple(map(int, text.split(","))))


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a form.

    ``type`` is the PTX type of the register ("b32", "f16x2", "pred", …; for an address the width of its register;
    "imm" for an immediate), ``kind`` is "register", "address" or "imm", ``role`` is "in", "out" or "inout".
    ``count`` is None for a single value and the number of registers for a vector in braces.
    ``space`` is what an address points to, ``values`` are the immediates allowed.
    ``access`` says for an address whether the instruction only reads the memory there ("r") or writes it ("w"); ""
    if the row does not say it.
    """

    name: str
    type: str
    kind: str
    role: str
    count: int | None = None
    space: str | None = None
    values: Values | None = None
    access: str = ""

    @property
    def register(self) -> RegisterClass:
        return REGISTER_CLASSES[TYPE_CLASS[self.type]]

    @property
    def registers(self) -> int:
        """How many registers it occupies; an immediate occupies none."""
        if self.kind == "imm":
            return 0
        return 1 if self.count is None else self.count

    @property
    def llvm_type(self) -> str:
        """The LLVM type of one of its registers, or of a constant for an immediate."""
        return "i32" if self.kind == "imm" else self.register.llvm

    @property
    def accepts(self) -> tuple[str, ...]:
        """The LLVM types that it accepts."""
        if self.kind == "address" and self.register.llvm == "i32":
            return ("i32",)
        if self.kind == "register" and self.type[0] in "us":
            return (self.register.llvm,)
        return () if self.kind == "imm" else TYPE_ACCEPTS.get(self.type, self.register.accepts)

    @property
    def needs(self) -> str:
        """What it accepts, in words."""
        if self.kind == "imm":
            return f"an immediate: {self.values}"
        one = f"a .{self.type} value" if self.space is None else SPACES[self.space][1]
        one += f" ({', '.join(self.accepts)})"
        return one if self.count is None else f"{self.count} values, each {one}"


_TOKEN = re.compile(r"(?P<role>[=+]?)(?P<name>\w+):(?P<type>imm\([^)]*\)|\.?(?:v\d+\.)?\w+)(?:/(?P<access>[rw]))?"
                    r"(?:\*(?P<count>[\w.*/+-]+|))?(?:\?(?P<present>!?[\w:]+))?")
_ROLES = {"": "in", "=": "out", "+": "inout"}


@cache
def parse_operand(token: str) -> tuple[Operand, str | None]:
    """Parse one token of a row's operand column, with its slots filled in: the operand, and the word on which its
    presence depends."""
    match = _TOKEN.fullmatch(token)
    assert match, f"not an operand: {token!r}"
    role, name, kind, access, count, present = match.group("role", "name", "type", "access", "count", "present")
    total = None if count is None else _evaluate(count)
    if kind.startswith("imm("):
        return Operand(name, "imm", "imm", _ROLES[role], total, None, _values(kind[4:-1])), present
    if kind in SPACES:
        return Operand(name, SPACES[kind][0], "address", _ROLES[role], total, kind, None, access or ""), present
    vector, _, element = kind.lstrip(".").rpartition(".")
    if vector:
        total = int(vector[1:])
    assert element in TYPE_CLASS, f"unknown type in operand {token!r}"
    return Operand(name, element, "register", _ROLES[role], total), present


def _evaluate(expression: str) -> int | None:
    """The value of a count such as `128/4`, `3d-2` or `x8*2`, from left to right; each term counts as the number in
    it. None (a scalar) if the first term has no number."""
    numbers = [term if term in tuple("*/+-") else re.sub(r"\D", "", term) for term in re.split(r"([*/+-])", expression)]
    if not numbers[0]:                                     # an empty slot: a scalar
        return None
    value = int(numbers[0])
    for sign, number in zip(numbers[1::2], numbers[2::2]):
        value = {"*": value * int(number), "/": value // int(number), "+": value + int(number),
                 "-": value - int(number)}[sign]
    return value
