"""The mutants that the simulator does not find: `unfound.txt`, with a reason for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("unfound.txt")


@dataclass(frozen=True)
class Unfound:
    """A mutant without a finding. It is `wrong` if its bytes are, or if it hangs, without the checks or on a GPU."""

    problem: str
    mutant: str
    wrong: bool
    reason: str


def unfound() -> list[Unfound]:
    """What the list has. It consists of paragraphs: a reason, which begins with "wrong: " or "harmless: " and may take
    several lines, and a line for each mutant, which is indented."""
    found = []
    for paragraph in LIST.read_text().split("\n\n"):
        if paragraph.startswith("#"):
            continue
        lines = paragraph.splitlines()
        kind, reason = " ".join(line for line in lines if not line.startswith("    ")).split(": ", 1)
        for line in lines:
            if line.startswith("    "):
                problem, mutant = line.strip().split(": ", 1)
                found.append(Unfound(problem, mutant, {"wrong": True, "harmless": False}[kind], reason.rstrip(":")))
    return found


__all__ = ["Unfound", "unfound"]
