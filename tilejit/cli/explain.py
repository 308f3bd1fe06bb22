"""``tilejit explain``: how a kernel is lowered, and why."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from ..compiled import CompiledKernel
from .kernels import Build
from .text import print_json, wrap

NUMBERS = ("name", "target", "signature", "registers", "spills", "shared_bytes", "assembler", "warnings")
RECORDS = ("layouts", "copies", "accesses", "products", "loops", "tensor_maps")


def run(arguments: argparse.Namespace) -> int:
    """Print the compiled kernel's report."""
    compiled = Build(arguments.kernel, arguments.arg, arguments.const, arguments.option, arguments.target).compile()
    if arguments.json:
        print_json(describe(compiled))
    else:
        print(wrap(compiled.explain()))
    return 0


def describe(compiled: CompiledKernel) -> dict[str, Any]:
    """The report as data: resources, and the records of layouts, copies, accesses, products, loops and maps."""
    records = {name: [{f.name: getattr(record, f.name) for f in fields(record) if f.name != "plan"}
                      for record in getattr(compiled, name)] for name in RECORDS}
    return {**{name: getattr(compiled, name) for name in NUMBERS}, **records,
            "compile_time": {stage: round(seconds, 6) for stage, seconds in compiled.compile_time.items()}}
