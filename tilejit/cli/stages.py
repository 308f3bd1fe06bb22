"""``tilejit inspect``: the text of a stage, SASS with the source lines beside it."""

from __future__ import annotations

import argparse
import linecache
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ..compiled import CompiledKernel
from ..errors import ToolchainError
from .kernels import Build
from .text import COLUMNS, print_json, shorten

STAGES = {"graph": "graph", "llvm": "llvm_ir", "ptx": "ptx"}  # SASS is made by the disassembler

_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(\S.*?)\s*;")
_LINE = re.compile(r'\s*//## File "([^"]*)", line (\d+)')
_LABEL = re.compile(r"(\.L\w+):")
_CODE = 50  # columns for an instruction


@dataclass(frozen=True)
class Instruction:
    """A SASS instruction with the source line that it belongs to, and the label in front of it."""

    address: str
    text: str
    file: str
    line: int
    label: str = ""

    @property
    def opcode(self) -> str:
        """The name without modifiers: "LDG" of "@P0 LDG.E.128 R4, ..."."""
        return re.sub(r"^@\S+\s+", "", self.text).split()[0].partition(".")[0]


def run(arguments: argparse.Namespace) -> int:
    """Print the stage's text."""
    compiled = Build(arguments.kernel, arguments.arg, arguments.const, arguments.option, arguments.target).compile()
    head = {"name": compiled.name, "target": compiled.target, "stage": arguments.stage}
    if arguments.stage != "sass":
        text = text_of(compiled, arguments.stage)
        if arguments.json:
            print_json({**head, "text": text})
        else:
            print(text.rstrip("\n"))
    elif arguments.json:
        print_json({**head, "instructions": list(map(asdict, instructions(compiled)))})
    else:
        print("\n".join(_beside_source(instructions(compiled))))
    return 0


def text_of(compiled: CompiledKernel, stage: str) -> str:
    """The text of a stage of `STAGES`."""
    text: str = getattr(compiled, STAGES[stage])
    return text


def instructions(compiled: CompiledKernel) -> list[Instruction]:
    """The SASS instructions. ToolchainError if only the driver can assemble, or there is no disassembler."""
    if compiled.cubin is None:
        raise ToolchainError("the driver assembles this kernel when it is loaded, so there is no SASS to show; "
                             "pip install nvidia-cuda-nvcc brings an assembler")
    found: list[Instruction] = []
    file, line, label = "", 0, ""
    for text in compiled.sass().splitlines():
        if place := _LINE.match(text):
            file, line = place[1], int(place[2])
        elif named := _LABEL.match(text):
            label = named[1]
        elif one := _INSTRUCTION.match(text):
            found.append(Instruction(one[1], one[2], file, line, label))
            label = ""
    while found and found[-1].text == "NOP":  # these fill the section after the last instruction
        found.pop()
    return found


def _beside_source(code: list[Instruction]) -> Iterator[str]:
    """Lines of code, each run of instructions of a source line with that line beside its first."""
    home, before = next((one.file for one in code if one.file), ""), ("", 0)
    for one in code:
        if one.label:
            yield f"{one.label}:"
        text = f"{one.address}  {one.text}"
        if one.line and (one.file, one.line) != before:
            before = one.file, one.line
            where = str(one.line) if one.file == home else f"{os.path.basename(one.file)}:{one.line}"
            text = f"{text:<{_CODE}}  {where:>4}  {linecache.getline(one.file, one.line).strip()}"
        yield shorten(text, max(COLUMNS, len(one.text) + 6)).rstrip()
