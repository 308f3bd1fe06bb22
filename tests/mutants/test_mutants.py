"""The simulator finds faults that are put into right kernels. ``TILEJIT_MUTANTS=1`` runs all of them, not a sample."""

import os

import pytest

from tests.gpu import needs_gpu
from tests.mutants import on_gpu
from tests.mutants.judge import found, run
from tests.mutants.run import mutants_of, problems
from tests.mutants.unfound import unfound
from tests.sim.jitter_gpu import Outcome

EVERY = 1 if os.environ.get("TILEJIT_MUTANTS") else 12  # which mutants are run: one in so many
LISTED = {(u.problem, u.mutant) for u in unfound()}

pytestmark = pytest.mark.filterwarnings("ignore::tilejit.TileWarning")


@pytest.mark.parametrize("name", problems)
def test_kernels_without_a_change_are_right_and_have_no_finding(name):
    problem = problems[name]
    for seed in range(3):
        findings, right = run(problem, problem.lowered().graph, seed, True)
        assert right and not findings, f"seed {seed}: {findings}"


def test_there_are_at_least_400_mutants_with_names_of_their_own():
    names = [(name, m.name) for name in problems for m in mutants_of(name)]
    assert len(names) >= 400 and len(set(names)) == len(names)
    assert LISTED <= set(names), "in unfound.txt, and there is no such mutant"
    assert all(u.reason for u in unfound())


@pytest.mark.parametrize("name", problems)
def test_mutants_have_a_finding_or_a_reason_why_not(name):
    before = sum(len(mutants_of(other)) for other in list(problems)[:list(problems).index(name)])
    for number, mutant in enumerate(mutants_of(name), before):
        if number % EVERY == 0:
            named = found(problems[name], mutant.graph)
            listed = (name, mutant.name) in LISTED
            assert named or listed, f"line {mutant.line}, {mutant.name}: there is no finding, nor a line in unfound.txt"
            assert not (named and listed), f"{name}: {mutant.name} is found now: remove it from unfound.txt"


def test_a_mutant_compiles_with_jitter_and_does_not_take_the_right_kernel_s_place():
    problem, mutant = problems["turns"], mutants_of("turns")[0]
    arguments = problem.make(on_gpu.COPIES)
    right, faulty = (on_gpu.compiled(problem, name, arguments, None).ptx for name in (on_gpu.NONE, mutant.name))
    assert mutant.name == "remove sync #1" and right.count("bar.sync") == faulty.count("bar.sync") + 1
    assert "/* jitter" in on_gpu.compiled(problem, mutant.name, arguments, 1).ptx
    assert problem.kernel.compile(*arguments, **problem.constants).ptx == right


def test_children_compile_the_mutants_that_are_chosen():
    chosen = on_gpu.chosen("unfound", "turns")
    assert chosen == [("turns", on_gpu.NONE), ("turns", "remove sync #1")]
    outcomes = on_gpu.run_all(chosen, on_gpu.parsed(["--dry", "--seeds", "0"]))
    assert [(outcome.ran, outcome.error) for outcome in outcomes.values()] == [(1, ""), (1, "")]


def test_a_mutant_that_is_called_harmless_and_goes_wrong_on_the_gpu_is_reported():
    harmless, wrong = (next((u.problem, u.mutant) for u in unfound() if u.wrong == kind) for kind in (False, True))
    outcomes = {task: Outcome({3: "2/4"}, ran=4) for task in (harmless, wrong)}
    assert on_gpu.new(outcomes) == [harmless]
    assert f"not found {', '.join(harmless)}: 3 (2/4); 4 seeds ran" in on_gpu.table(outcomes)


@pytest.mark.unperturbed  # it sets the option itself
@pytest.mark.unsanitized
@needs_gpu("sm_90a")
def test_no_mutant_without_a_finding_goes_wrong_on_the_gpu_unless_the_list_says_so():
    options = on_gpu.parsed(["--seeds", "4", "--seconds", "1200"])
    outcomes = on_gpu.run_all(on_gpu.chosen("unfound", ""), options)
    shown = [task for task, outcome in outcomes.items() if task[1] == on_gpu.NONE and outcome.shown]
    assert not on_gpu.new(outcomes) and not shown, on_gpu.table(outcomes)
    assert all(outcome.ran and not outcome.error for outcome in outcomes.values()), on_gpu.table(outcomes)
