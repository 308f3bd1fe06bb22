"""Chooses which of the kernels that tests lowered go through LLVM and ptxas: small ones that have all forms of instructions.

The first kernel with a new form is often a large one with many, and later ones have the same forms in less code. So
kernels wait, some dozens at a time, and of these a few are chosen that together have all the forms that are still to be
assembled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

AT_ONCE = 300  # kernels that wait at most, of 200 KB each


@dataclass(frozen=True)
class Candidate:
    """A kernel's LLVM IR with how it is compiled, its title in messages, and the keys of forms that it shows if it assembles."""

    title: str
    target: str
    llvm_ir: str
    passes: str
    libdevice: bool
    keys: frozenset[str]


@dataclass
class Cover:
    """Kernels that wait, and the keys of forms that none has shown yet."""

    candidates: list[Candidate] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    def add(self, candidate: Candidate, new: Iterable[str]) -> bool:
        """Let a kernel wait, some of whose forms may be new; returns whether as many wait as may."""
        self.missing.update(new)
        if not self.missing.isdisjoint(candidate.keys):
            self.candidates.append(candidate)
        return len(self.candidates) >= AT_ONCE

    def shown(self, keys: Iterable[str]) -> None:
        """Some forms have been assembled elsewhere."""
        self.missing.difference_update(keys)

    def choose(self) -> list[Candidate]:
        """Kernels with all missing forms, greedily, the one with the least code for each form first. Of those with the same
        code, for several targets, one follows the other. None wait after this."""
        left, self.candidates = self.candidates, []
        missing, self.missing = self.missing, set()
        chosen: list[Candidate] = []
        while missing:
            left = [candidate for candidate in left if not missing.isdisjoint(candidate.keys)]
            best = min(left, key=lambda candidate: len(candidate.llvm_ir) / len(missing & candidate.keys))
            missing -= best.keys
            chosen.append(best)
        return sorted(chosen, key=lambda candidate: candidate.llvm_ir)
