"""Runs mutants on the simulator: what the checks find, and whether the bytes are wrong without them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.mutants.kernels import Problem
from tests.mutants.mutate import Mutant, mutants
from tilejit.ir.graph import Graph
from tilejit.sim import simulate

FOUND_SEEDS = range(4)  # under which the checks must find a fault
FEW = 16                # seeds that show whether a fault that was found is wrong without checks too


@dataclass(frozen=True)
class Verdict:
    """`found` are the kinds of the findings; `wrong` says under which seed the bytes are wrong, or the kernel hangs, without the checks."""

    problem: str
    mutant: str
    line: int
    found: tuple[str, ...]
    wrong: int | None


def lowered(problem: Problem) -> Graph:
    """The kernel's graph, as the simulator and the emitter get it, for sm_90a."""
    kernel, arguments = problem.kernel, problem.make()
    bound, options = kernel._bind_alone("a mutant is run on the simulator", tuple(arguments), dict(problem.constants))
    return kernel.version(bound, options, "sm_90a").lowered.graph


def run(problem: Problem, graph: Graph, seed: int, checks: bool):
    """The findings of one run, and whether its results are right."""
    kernel, arguments = problem.kernel, problem.make()
    expected = problem.expected([a.copy() if isinstance(a, np.ndarray) else a for a in arguments])
    bound, _ = kernel._bind_alone("a mutant is run on the simulator", tuple(arguments), dict(problem.constants))
    report = simulate(graph, problem.grid, bound.host_arguments(), seed=seed, checks=checks)
    right = all(close(arguments[n], want, problem.tolerance) for n, want in expected.items())
    return report.findings, right


def close(got: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    with np.errstate(invalid="ignore"):
        return bool((np.abs(got.astype(np.float64) - want) <= tolerance).all())


def judge(problem: Problem, mutant: Mutant, seeds: range) -> Verdict:
    """Run one mutant with checks under a few seeds, and without checks until the bytes are wrong: under all `seeds` if nothing was found."""
    found = {f.kind for seed in FOUND_SEEDS for f in run(problem, mutant.graph, seed, True)[0]}
    wrong = None
    for seed in seeds[:FEW] if found else seeds:
        findings, right = run(problem, mutant.graph, seed, False)
        if findings or not right:
            wrong = seed
            break
    return Verdict(problem.name, mutant.name, mutant.line, tuple(sorted(found)), wrong)


def all_mutants(problem: Problem) -> list[Mutant]:
    return list(mutants(lowered(problem)))
