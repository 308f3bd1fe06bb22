"""The walks of docs/contributing: pages that show how an op, a variant, an instruction or a pass is added.

A page shows two kinds of code, each in a ``py`` block that names its file. A file that the walk adds is shown whole, in pieces that
are copied from the tree: a piece is everything between ``<!-- source FILE -- FIRST WORDS -->`` and ``<!-- end -->``, and runs from the
line that begins with these words to the piece after it, or to the end of the file. What a walk adds to a file that exists is a
fragment of it, written on the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WALKS = ROOT / "docs" / "contributing"

_PIECE = re.compile(r"(<!-- source (\S+) -- (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_FRAGMENT = re.compile(r"^```py (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Walk:
    """What a page adds: whole files, and fragments of files that exist, by their paths."""

    files: dict[str, str]
    fragments: tuple[tuple[str, str], ...]

    @property
    def touched(self) -> list[str]:
        return list(dict.fromkeys([*self.files, *(path for path, _ in self.fragments)]))


def pieces_of(source: str, starts: list[str]) -> list[str]:
    """The text of a file cut at the lines that begin with `starts`, in this order; the first piece begins with the file."""
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


def read_walk(page: Path) -> Walk:
    text = page.read_text()
    files: dict[str, str] = {}
    for piece in _PIECE.finditer(text):
        (block,) = _FRAGMENT.finditer(piece[4])
        files[piece[2]] = files[piece[2]] + "\n\n" + block[2] if piece[2] in files else block[2]
    fragments = tuple((block[1], block[2].strip("\n")) for block in _FRAGMENT.finditer(_PIECE.sub("", text)))
    return Walk(files, fragments)
