"""The site: what its build does not find. CI builds it, with warnings as errors (``.ci/run``)."""

from __future__ import annotations

import ast
from itertools import chain
from pathlib import Path
from posixpath import join, normpath

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "docs" / "site" / "conf.py"


def listed() -> list[str]:
    """The pages that the sidebar lists, by their paths from the root without their endings."""
    tables = {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(CONF.read_text()).body if isinstance(node, ast.Assign)
        for target in node.targets if isinstance(target, ast.Name) and target.id in ("NAVIGATION", "PARTS")
    }
    groups = chain((("docs", pages) for pages in tables["NAVIGATION"].values()),
                   ((str(Path(page).parent), pages) for page, pages in tables["PARTS"].items()))
    return [normpath(join(folder, page)) for folder, pages in groups for page in pages.split()]


def test_the_sidebar_lists_every_page_once():
    """All notebooks of tutorials/ by a pattern."""
    pages = listed()
    assert len(pages) == len(set(pages))
    files = {str(path.relative_to(ROOT).with_suffix("")) for path in (ROOT / "docs").rglob("*.md")}
    files |= {"CONTRIBUTING", "CHANGELOG", "tutorials/*"}
    assert set(pages) == files - {"docs/index"}


def test_the_site_is_built_by_the_same_command_wherever_it_is_named():
    command = "-m sphinx -W "
    for path in (CONF, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "run"):
        assert command in path.read_text() and "-c docs/site ." in path.read_text(), path.name
