"""The table of all pairs of proxies is complete, and the tests that it names exist."""

import ast
from functools import cache
from pathlib import Path

import pytest
from proxy_pairs import CELLS, RULES, rule_of
from tilejit.sim.report import KINDS

TESTS = Path(__file__).resolve().parents[1]


@cache
def functions(module: str) -> set[str]:
    """The names of a test module's functions."""
    return {n.name for n in ast.walk(ast.parse((TESTS / f"{module}.py").read_text())) if isinstance(n, ast.FunctionDef)}


def test_every_cell_has_a_rule_and_every_rule_a_cell():
    assert len(CELLS) == 6 * 6 * 4
    assert not [cell for cell in CELLS if rule_of(*cell) is None]
    assert not [rule for rule in RULES if rule not in {rule_of(*cell) for cell in CELLS}]


@pytest.mark.parametrize("number", range(1, len(RULES) + 1))
def test_a_rule_names_tests_that_exist_and_findings_that_there_are(number):
    rule = RULES[number - 1]
    for name in (*rule.tests, *rule.chip):
        module, _, function = name.partition("::")
        assert function in functions(module), name
    kinds = [word for word in rule.finding.replace(",", " ").split() if word.startswith("`")]
    assert all(kind.strip("`") in KINDS for kind in kinds), rule.finding
    if rule.occurs and kinds:
        assert rule.tests, "a finding needs the test that shows it"
    assert bool(rule.finding) == rule.occurs, "say which finding names the fault, or that none does"
