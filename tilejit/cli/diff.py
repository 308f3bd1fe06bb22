"""``tilejit diff``: two builds compared, by their resources, their lowerings and the text of a stage."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable
from difflib import unified_diff
from typing import Any

from ..compiled import CompiledKernel
from ..errors import ToolchainError
from .kernels import Build
from .stages import instructions, text_of
from .text import print_json, shorten, table, wrap

_PTX = re.compile(r"\s*(?:@!?%\w+\s+)?([a-z][\w.]*)\s.*;|\s*(ret);")
_PLACES = re.compile(r"\s*\.(loc|file)\b|\s*\$L__tmp\d+:|\s*//")


def run(arguments: argparse.Namespace) -> int:
    """Print what differs."""
    first = Build(arguments.kernel, arguments.arg, arguments.const, arguments.option, arguments.target)
    second = Build(arguments.other or arguments.kernel, _replace(arguments.arg, arguments.to_arg),
                   _replace(arguments.const, arguments.to_const), _replace(arguments.option, arguments.to_option),
                   arguments.to_target or arguments.target)
    a, b = first.compile(), second.compile()
    titles = _title(a, first), _title(b, second)
    numbers, variants = _pair(_resources(a), _resources(b)), _pair(_variants(a), _variants(b))
    changes = list(unified_diff(_lines(a, arguments.stage), _lines(b, arguments.stage), "a", "b", lineterm="", n=2))
    if arguments.json:
        print_json({"a": titles[0], "b": titles[1], "resources": numbers, "variants": variants,
                    "stage": arguments.stage, "diff": changes})
        return 0
    print(wrap(f"a: {titles[0]}\nb: {titles[1]}") + "\n")
    print(table(("", "a", "b"), _rows(numbers, 0), "lrr"))
    if variants:
        print("\n" + table(("lowering", "a", "b"), _rows(variants, "-")))
    print(f"\n{arguments.stage}: " + (f"{sum(c[:1] in '+-' for c in changes[2:])} lines differ" if changes else "same"))
    for change in changes:
        print(change)
    return 0


def _title(compiled: CompiledKernel, build: Build) -> str:
    return f"{compiled.name} for {compiled.target}: {' '.join((*build.args, *build.consts, *build.options))}"


def _replace(words: list[str], others: list[str]) -> list[str]:
    """NAME=VALUE words, of which `others` replace those of the same name."""
    return list({word.partition("=")[0]: word for word in (*words, *others)}.values())


def _pair(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The values of both builds by name; None where a build has none."""
    return {name: (a.get(name), b.get(name)) for name in (*a, *(n for n in b if n not in a))}


def _rows(pairs: dict[str, tuple[Any, Any]], missing: Any) -> Iterable[tuple[Any, ...]]:
    """The rows of a table; those of opcodes, which are indented, only where the builds differ."""
    for name, pair in pairs.items():
        if pair[0] != pair[1] or not name.startswith(" "):
            yield shorten(name, 60), *(missing if value is None else value for value in pair)


def _resources(compiled: CompiledKernel) -> dict[str, int]:
    """Registers, bytes, and the numbers of instructions: of SASS, or of PTX without a disassembler."""
    try:
        kind, opcodes = "SASS", [one.opcode for one in instructions(compiled)]
    except ToolchainError:
        found = filter(None, map(_PTX.match, compiled.ptx.splitlines()))
        kind, opcodes = "PTX", [(m[1] or m[2]).partition(".")[0] for m in found]
    return {"registers": compiled.registers, "bytes spilled": compiled.spills,
            "bytes of shared memory": compiled.shared_bytes, "threads": compiled.recipe["threads"],
            f"{kind} instructions": len(opcodes),
            **{f"  {opcode}": n for opcode, n in sorted(Counter(opcodes).items())}}


def _variants(compiled: CompiledKernel) -> dict[str, str]:
    """The variant of each copy, access and product, by its line; those of one line and kind together."""
    found: dict[str, list[str]] = {}
    for copy in compiled.copies:
        found.setdefault(f"line {copy.line}: {copy.source}", []).append(copy.variant)
    for access in compiled.accesses:
        where = access.buffer or f"{access.scope} memory"
        found.setdefault(f"line {access.line}: {access.op}, {where}", []).append(
            f"{access.variant}, {access.instructions} of {access.vec_bytes} bytes")
    for product in compiled.products:
        found.setdefault(f"line {product.line}: {product.source}", []).append(product.variant)
    return {place: "; ".join(dict.fromkeys(kinds)) for place, kinds in found.items()}


def _lines(compiled: CompiledKernel, stage: str) -> list[str]:
    """A stage's lines, without the source places and addresses that would differ everywhere."""
    if stage == "sass":
        return [one.text for one in instructions(compiled)]
    return [line for line in text_of(compiled, stage).splitlines() if stage != "ptx" or not _PLACES.match(line)]
