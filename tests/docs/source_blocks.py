"""The walks of docs/contributing: pages that show how an op, a variant, an instruction or a pass is added.

A page shows two kinds of code, each in a block that names its file. A file that the walk adds is shown whole, in pieces
that are copied from the tree: a piece is everything between ``<!-- source FILE -- FIRST WORDS -->`` and
``<!-- end -->``, and runs from the line that begins with these words to the piece after it, or to the end of the file.
What a walk changes in a file that exists is written on the page: a ``py`` block is a fragment that it adds, a ``diff``
block has lines before (-) and after (+).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WALKS = ROOT / "docs" / "contributing"

_PIECE = re.compile(r"(<!-- source (\S+) -- (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_BLOCK = re.compile(r"^```(py|diff) (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Edit:
    """A change of one place in a file: the text before and after the walk."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Walk:
    """What a page adds: whole files by their paths, and edits of files that exist."""

    files: dict[str, str]
    edits: tuple[Edit, ...]

    @property
    def touched(self) -> list[str]:
        return list(dict.fromkeys([*self.files, *(edit.path for edit in self.edits)]))


def pieces_of(source: str, starts: list[str]) -> list[str]:
    """A file cut at the lines that begin with `starts`, in this order; the first piece begins with the file."""
    lines, cuts = source.splitlines(keepends=True), [0]
    for start in starts[1:]:
        cuts.append(next((n for n in range(cuts[-1] + 1, len(lines)) if lines[n].startswith(start)), len(lines)))
    return ["".join(lines[a:b]).strip("\n") + "\n" for a, b in zip(cuts, [*cuts[1:], len(lines)])]


def with_sources(text: str) -> str:
    """A page with its pieces copied from the tree."""
    starts: dict[str, list[str]] = {}
    for piece in _PIECE.finditer(text):
        starts.setdefault(piece[2], []).append(piece[3])
    left = {path: pieces_of((ROOT / path).read_text(), words) for path, words in starts.items()}
    return _PIECE.sub(lambda piece: f"{piece[1]}```py {piece[2]}\n{left[piece[2]].pop(0)}```\n{piece[5]}", text)


def edit_of(kind: str, path: str, text: str) -> Edit:
    if kind == "py":
        return Edit(path, "", text.strip("\n"))
    before, after = ("\n".join(line[1:] for line in text.splitlines() if line[0] in signs) for signs in (" -", " +"))
    return Edit(path, before, after)


def read_walk(page: Path) -> Walk:
    text = page.read_text()
    files: dict[str, str] = {}
    for piece in _PIECE.finditer(text):
        (block,) = _BLOCK.finditer(piece[4])
        files[piece[2]] = files[piece[2]] + "\n\n" + block[3] if piece[2] in files else block[3]
    return Walk(files, tuple(edit_of(*block.groups()) for block in _BLOCK.finditer(_PIECE.sub("", text))))
