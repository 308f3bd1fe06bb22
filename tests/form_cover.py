"""Chooses which of the kernels that tests lowered go through LLVM and ptxas: small ones that have all forms of instructions.

The first kernel with a new form is often a large one with many, and later ones have the same forms in less code. So
kernels wait to the end of the run. As more come, only those stay that would be chosen then: a few that together have
all the forms that are still to be assembled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

AT_ONCE = 200  # kernels, of 200 KB each, that join those that stay before some leave


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
    most: int = AT_ONCE  # candidates before some leave

    def add(self, candidate: Candidate, new: Iterable[str]) -> None:
        """Let a kernel wait, some of whose forms may be new."""
        self.missing.update(new)
        keys = candidate.keys & self.missing  # of forms that are new later, it has none
        if keys:
            self.candidates.append(replace(candidate, keys=keys))
        if len(self.candidates) >= self.most:
            self.candidates = self._fewest()
            self.most = len(self.candidates) + AT_ONCE

    def shown(self, keys: Iterable[str]) -> None:
        """Some forms have been assembled elsewhere."""
        self.missing.difference_update(keys)

    def choose(self) -> list[Candidate]:
        """Kernels with all missing forms. Of those with the same code, for several targets, one follows the other. None wait
        after this."""
        fewest, chosen = self._fewest(), []
        count = Counter(key for candidate in fewest for key in candidate.keys & self.missing)
        for candidate in sorted(fewest, key=lambda candidate: -len(candidate.llvm_ir)):
            keys = candidate.keys & self.missing
            if all(count[key] > 1 for key in keys):  # the others have its forms
                count.subtract(keys)
            else:
                chosen.append(candidate)
        self.candidates, self.missing = [], set()
        return sorted(chosen, key=lambda candidate: candidate.llvm_ir)

    def _fewest(self) -> list[Candidate]:
        """Kernels with all missing forms, greedily, the one with the least code for each form first."""
        left, missing, chosen = self.candidates, set(self.missing), []
        while missing:
            left = [candidate for candidate in left if not missing.isdisjoint(candidate.keys)]
            best = min(left, key=lambda candidate: len(candidate.llvm_ir) / len(missing & candidate.keys))
            missing -= best.keys
            chosen.append(best)
        return chosen
