"""Wrong programs and calls that users write, each with its whole message: `data/wrong_programs.txt`.

A case begins with ``=== kernel: title``, the body of a kernel over x, y, n, a, b and c, or ``=== program: title``, lines of a
script. Below ``---`` is what Python prints of the error. To write the messages anew, and then read what has changed:

    python -m tests.language.test_wrong_programs
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import tilejit as tile

DATA = Path(__file__).parent / "data" / "wrong_programs.txt"
PACKAGE = str(Path(tile.__file__).parent)
COLUMNS = 100


@dataclass(frozen=True)
class Case:
    """A wrong program of a kind ("kernel" or "program"), and what is printed of its error."""

    kind: str
    title: str
    text: str
    message: str

    @property
    def program(self) -> str:
        if self.kind == "program":
            return self.text
        body = "".join(f"    {line}\n" for line in self.text.splitlines())
        return f"@tile.jit\ndef kernel(x, y, n, a, b, c):\n{body}\nkernel[1](x, y, 4, a, b, c)\n"


def read() -> list[Case]:
    cases = []
    for block in DATA.read_text().split("=== ")[1:]:
        head, _, rest = block.partition("\n")
        kind, _, title = head.partition(": ")
        text, _, message = rest.partition("---\n")
        cases.append(Case(kind, title, text, message))
    return cases


def written(cases: list[Case]) -> str:
    return "".join(f"=== {c.kind}: {c.title}\n{c.text}---\n{c.message}" for c in cases)


CASES = read()


GOOD = """\
@tile.jit
def good(x, y, BLOCK: tile.constexpr = 64):
    tile.store(y[0:BLOCK], tile.load(x[0:BLOCK]))
"""


def names() -> dict[str, object]:
    """What the programs find."""
    matrix = np.ones((64, 64), np.float16)
    return {"np": np, "tile": tile, "x": np.arange(64, dtype=np.float32), "y": np.zeros(64, np.float32),
            "a": matrix, "b": matrix.copy(), "c": np.zeros((64, 64), np.float32),
            "q": np.ones((1, 2, 64, 64), np.float16), "__name__": "wrong"}


def run(text: str, file: str, found: dict[str, object]) -> None:
    """Run a program, which is a file of the current folder as a user's is."""
    Path(file).write_text(text)
    exec(compile(text, file, "exec", dont_inherit=True), found)


def failed(case: Case) -> Exception:
    """The error of a program."""
    found = names()
    run(GOOD, "good.py", found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run(case.program, "wrong.py", found)
        except Exception as error:
            return error
    raise AssertionError(f"nothing is wrong with: {case.title}")


def printed(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error))


@pytest.fixture
def folded(monkeypatch):
    """Messages as users see them."""
    monkeypatch.delenv("TILEJIT_COLUMNS", raising=False)


@pytest.mark.parametrize("case", CASES, ids=[c.title.replace(" ", "_") for c in CASES])
def test_a_wrong_program_gets_its_message_and_no_line_of_the_package(case, folded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = failed(case)
    assert printed(error) == case.message
    assert PACKAGE not in "".join(traceback.format_exception(error))
    assert all(len(line) <= COLUMNS for line in case.message.splitlines())


def test_there_are_many_wrong_programs_of_different_kinds():
    assert len(CASES) >= 60
    assert len({c.title for c in CASES}) == len({c.program for c in CASES}) == len({c.message for c in CASES}) == len(CASES)


def main() -> None:
    """Write the messages anew."""
    os.environ.pop("TILEJIT_COLUMNS", None)
    cases = []
    for case in CASES:
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            cases.append(replace(case, message=printed(failed(case))))
    DATA.write_text(written(cases))


if __name__ == "__main__":
    sys.exit(main())
