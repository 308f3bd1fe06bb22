"""One concrete instruction form, and what the emitter derives from it: asm text, constraints, attributes."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import CompilationError
from .operands import Operand

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")

#: What is written for an operand in place of an LLVM register: a number or PTX text ("_", "acc7"); for a vector, a
#: sequence with one for each element.
Bound = int | float | str | Sequence[int | float | str]


@dataclass(frozen=True, slots=True)
class Attributes:
    """How LLVM must treat the asm: ``sideeffect`` keeps it, and its order; ``memory`` says that it clobbers memory."""

    sideeffect: bool
    convergent: bool
    memory: bool

    @property
    def call_site(self) -> str:
        """The attributes at the end of the call in LLVM IR."""
        words = (["nounwind"] + ["convergent"] * self.convergent
                 + ["memory(none)"] * (not (self.sideeffect or self.memory)))
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Form:
    """One instruction form.

    ``name`` is unique; ``mnemonic`` is the part of the text before the operands; ``template`` is the whole text, with
    `{x}` for the operand x; ``effect`` is one of `EFFECTS`; ``isa`` is the PTX version that it needs.
    """

    name: str
    mnemonic: str
    template: str
    operands: tuple[Operand, ...]
    effect: str
    targets: tuple[str, ...]
    isa: str = "8.8"

    def __str__(self) -> str:
        return self.name

    def operand(self, name: str) -> Operand:
        for operand in self.operands:
            if operand.name == name:
                return operand
        raise CompilationError(f"{self.name} has no operand {name!r}: it has "
                               f"{', '.join(o.name for o in self.operands) or 'none'}")

    def exists_on(self, target: str) -> bool:
        """Whether `target` has the form; sm_86 and sm_89 have the forms of sm_80."""
        return ("sm_80" if target in ("sm_86", "sm_89") else target) in self.targets

    @property
    def results(self) -> tuple[Operand, ...]:
        """The operands that it writes to registers, in the order of LLVM's results."""
        return tuple(o for o in self.operands if o.role != "in")

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that it reads, in the order of the row: registers (also those that it writes too),
        addresses and immediates."""
        return tuple(o for o in self.operands if o.role != "out")

    @property
    def is_convergent(self) -> bool:
        """Whether threads execute it together, so that LLVM must not make its execution depend on
        further conditions."""
        words = set(re.split(r"\.|::", self.mnemonic))
        return bool(words & {"sync", "aligned", "bar", "barrier"}) or self.effect in ("warp", "syncs")

    @property
    def attributes(self) -> Attributes:
        return Attributes(self.effect != "pure", self.is_convergent, self.effect in ("reads", "writes", "syncs"))

    def asm_text(self, imm: Mapping[str, Bound] | None = None, offsets: Mapping[str, int] | None = None,
                 guard: bool = False) -> str:
        """The text for LLVM's inline asm, with `$0`, `$1`, … for its operands.

        `imm` gives the operands that are written into the text: all immediates, and registers for which a number, `_`
        or a named register is written. `offsets` adds bytes to address operands. With `guard`, the last input is a
        predicate under which the instruction is executed.
        """
        slots = self._slots(imm, guard)
        numbers: dict[str, list[str]] = {}
        count = 0
        for operand in slots.results + slots.inputs:
            numbers[operand.name] = [f"${count + i}" for i in range(operand.registers)]
            count += operand.registers
        for name, value in (imm or {}).items():
            numbers[name] = [text.replace("$", "$$") for text in literals(value)]
        for name, offset in (offsets or {}).items():
            if self.operand(name).kind != "address":
                raise CompilationError(f"{self.name}: operand {name} is not an address, so it takes no offset")
            if offset:
                numbers[name] = [f"{number} + {offset}" for number in numbers[name]]
        text = substitute(self.template.replace("$", "$$"), self.operands, numbers)
        return f"@{numbers[GUARD.name][0]} {text}" if guard else text

    def constraints(self, imm: Mapping[str, Bound] | None = None, guard: bool = False) -> str:
        """LLVM's constraint string for the operands that are not in `imm`."""
        slots = self._slots(imm, guard)
        first: dict[str, int] = {}
        count = 0
        for operand in slots.results:
            first[operand.name] = count
            count += operand.registers
        parts = ["=" + o.register.constraint for o in slots.results for _ in range(o.registers)]
        parts += [o.register.constraint for o in slots.inputs for _ in range(o.registers)]
        parts += [str(first[o.name] + i) for o in slots.tied for i in range(o.registers)]
        return ",".join(parts + ["~{memory}"] * self.attributes.memory)

    def arguments(self, imm: Mapping[str, Bound] | None = None, guard: bool = False) -> tuple[Operand, ...]:
        """The operands whose registers are arguments of the asm call, in order. With `guard`, the results come last:
        their values in case the predicate is false."""
        slots = self._slots(imm, guard)
        return slots.inputs + slots.tied

    def result_type(self, imm: Mapping[str, Bound] | None = None) -> str:
        """The LLVM type of the asm call."""
        types = [o.register.llvm for o in self._slots(imm, False).results for _ in range(o.registers)]
        if len(types) > 1:
            return "{ " + ", ".join(types) + " }"
        return types[0] if types else "void"

    def _slots(self, imm: Mapping[str, Bound] | None, guard: bool) -> _Slots:
        bound = imm or {}
        for name, value in bound.items():
            given, operand = len(literals(value)), self.operand(name)
            if given != (operand.count or 1):
                raise CompilationError(f"{self.name}: operand {name} needs {operand.needs}, not {given} values")
        free = [o for o in self.operands if o.name not in bound]
        for operand in free:
            if operand.kind == "imm":
                raise CompilationError(f"{self.name}: operand {operand.name} needs {operand.needs}, and was given none")
        if guard and self.template.startswith("{{"):
            raise CompilationError(f"{self.name} is several instructions: it takes no guard")
        results = tuple(o for o in free if o.role != "in")
        inputs = tuple(o for o in free if o.role == "in") + (GUARD,) * guard
        return _Slots(results, inputs, tuple(o for o in results if guard or o.role == "inout"))


#: The predicate under which a guarded form is executed.
GUARD = Operand("guard", "pred", "register", "in")


@dataclass(frozen=True, slots=True)
class _Slots:
    """The asm's operands as LLVM numbers them: results, then inputs. A register that is read and written is a result,
    and once more one of the tied inputs at the end."""

    results: tuple[Operand, ...]
    inputs: tuple[Operand, ...]
    tied: tuple[Operand, ...]


def literals(value: Bound) -> list[str]:
    """A bound value in PTX's spelling, one text for each of its elements."""
    return [_literal(v) for v in (value if isinstance(value, Sequence) and not isinstance(value, str) else [value])]


def _literal(value: int | float | str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value) if "e" not in repr(value) else "0d" + struct.pack(">d", value).hex().upper()
    return str(int(value))


def substitute(template: str, operands: tuple[Operand, ...], values: Mapping[str, list[str]]) -> str:
    """A template with its operands filled in; vectors, also of one element, are written in braces."""
    vectors = {o.name for o in operands if o.count is not None}

    def fill_in(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][:1]
        text = ", ".join(values[match[1]])
        return "{" + text + "}" if match[1] in vectors else text
    return _PLACEHOLDER.sub(fill_in, template)
