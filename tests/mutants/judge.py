"""Runs mutants on the simulator: what the checks find, and whether the bytes are wrong without them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from tilejit.errors import CompilationError
from tilejit.ir.graph import Graph
from tilejit.passes.products.mma_hazards import check_mma_hazards
from tilejit.sim import simulate

from tests.mutants.mutate import Mutant, mutants
from tests.mutants.problem import Problem, right

FOUND_SEEDS = range(4)  # under one of which the checks must find a fault
FEW = 16                # seeds that show whether a fault that was found is wrong without checks too


@dataclass(frozen=True)
class Verdict:
    """`found` are the kinds of the findings; `wrong` is a seed under which, without the checks, the bytes are wrong or
    the kernel hangs."""

    problem: str
    mutant: str
    line: int
    found: tuple[str, ...]
    wrong: int | None

    @property
    def missed(self) -> bool:
        return self.wrong is not None and not self.found

    def __str__(self) -> str:
        return f"{self.problem}: line {self.line}, {self.mutant}"


def run(problem: Problem, graph: Graph, seed: int, checks: bool):
    """The findings of one run, and whether its results are right."""
    arguments = problem.make(1)
    expected = problem.expected([a.copy() if isinstance(a, np.ndarray) else a for a in arguments])
    bound, _ = problem.bound(arguments)
    report = simulate(graph, (problem.grid,), bound.host_arguments(), seed=seed, checks=checks)
    return report.findings, right(problem, expected, arguments)


def found(problem: Problem, graph: Graph, seeds=FOUND_SEEDS) -> set[str]:
    """The kinds of the findings of a graph under the first seed that has any, or "refused": the registers of products
    are the compiler's to check."""
    try:
        check_mma_hazards(graph, None)
    except CompilationError:
        return {"refused"}
    for seed in seeds:
        findings, _ = run(problem, graph, seed, True)
        if findings:
            return {finding.kind for finding in findings}
    return set()


def judge(problem: Problem, mutant: Mutant, seeds: range) -> Verdict:
    """Run one mutant with checks until there is a finding, and without checks until the bytes are wrong: under all
    `seeds` if nothing was found."""
    kinds = found(problem, mutant.graph)
    verdict = Verdict(problem.name, mutant.name, mutant.line, tuple(sorted(kinds)), None)
    for seed in seeds[:FEW] if kinds else seeds:
        findings, fine = run(problem, mutant.graph, seed, False)
        if findings or not fine:
            return replace(verdict, wrong=seed)
    return verdict


def all_mutants(problem: Problem) -> list[Mutant]:
    return list(mutants(problem.lowered().graph))
