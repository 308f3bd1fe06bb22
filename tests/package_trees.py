"""The syntax trees of the package's files, parsed once for all tests that look at them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent / "tilejit"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree, in the order of `ast.walk`."""
    return tuple(ast.walk(tree_of(path)))


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of the package's files, by path."""
    return {path.relative_to(ROOT).as_posix(): tree_of(path) for path in sorted(ROOT.rglob("*.py"))}
