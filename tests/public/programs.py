"""The examples of the README, the docs and the tutorials, as Python files for type checkers: one for each block."""

from __future__ import annotations

import ast
import json
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code: its page, the line above it (or its cell), and whether it is an example of an error."""

    page: str
    at: int
    code: str
    wrong: bool = False

    @property
    def module(self) -> str:
        return f"page_{re.sub(r'[^A-Za-z0-9]', '_', self.page)}_{self.at:04}"


def blocks_of_page(path: Path) -> list[Block]:
    """The Python blocks of a page."""
    text, name = path.read_text(), "_".join(path.relative_to(ROOT).with_suffix("").parts)
    return [
        Block(name, text.count("\n", 0, found.start()) + 1, found[2], "raises" in found[1])
        for found in BLOCK.finditer(text)
    ]


def blocks_of_notebook(path: Path) -> list[Block]:
    """The code cells of a notebook. Those with the tag ``wrong`` show what is refused."""
    cells = json.loads(path.read_text())["cells"]
    return [
        Block(path.stem, n, "".join(cell["source"]) + "\n", "wrong" in cell["metadata"].get("tags", ()))
        for n, cell in enumerate(cells)
        if cell["cell_type"] == "code"
    ]


def pages() -> Iterator[list[Block]]:
    """The blocks of each page: the README, the docs and the tutorials."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield blocks_of_page(path)
    for path in sorted((ROOT / "tutorials").glob("*.ipynb")):
        yield blocks_of_notebook(path)


def bound_and_used(code: str) -> tuple[set[str], set[str]]:
    """The module's names that a block defines, and those that it reads."""
    top = symtable.symtable(code, "block", "exec")
    tables = [top]
    for table in tables:
        tables += table.get_children()
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    return bound, {
        s.get_name()
        for table in tables
        for s in table.get_symbols()
        if s.is_referenced() and (table is top or s.is_global())
    }


def any_parameters(code: str) -> str:
    """The code with ``: Any`` for bare parameters of functions that are no kernels: checkers guess from a default."""
    lines = code.splitlines(keepends=True)
    functions = [
        node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef) and not node.decorator_list
    ]
    bare = [
        a
        for f in functions
        for a in (*f.args.args, *f.args.kwonlyargs, f.args.vararg, f.args.kwarg)
        if a is not None and a.annotation is None
    ]
    for a in sorted(bare, key=lambda a: (a.end_lineno, a.end_col_offset), reverse=True):
        line = lines[a.end_lineno - 1].encode()
        lines[a.end_lineno - 1] = (line[: a.end_col_offset] + b": Any" + line[a.end_col_offset :]).decode()
    return "".join(lines)


def programs() -> dict[str, tuple[Block, str]]:
    """{module: (its block, its text)}.

    The first line imports what earlier blocks of the page define, and the code stands at the lines of its page.
    """
    texts = {}
    for page in pages():
        home: dict[str, str] = {}
        for block in page:
            own, used = bound_and_used(block.code)
            first = (
                "".join(f"from {home[name]} import {name}; " for name in sorted((used - own) & set(home)))
                + "from typing import Any"
            )
            texts[block.module] = block, first + "\n" * block.at + any_parameters(block.code)
            home |= dict.fromkeys(own, block.module)
    return texts
