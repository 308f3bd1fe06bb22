"""The cases that a run takes of parametrized tests."""

import os
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.chosen_cases import FEWEST, all_cases, chosen, combined, examples, part

ROOT = Path(__file__).resolve().parent.parent
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=5).map(tuple)


@settings(deadline=None)
@given(sizes=SIZES)
def test_every_element_occurs_and_of_three_lists_or_more_every_two_elements_meet(sizes):
    rows = list(product(*map(range, sizes)))
    taken = [rows[n] for n in chosen(rows)]
    assert len(set(taken)) == len(taken)
    for c, size in enumerate(sizes):
        assert {row[c] for row in taken} == set(range(size))
    if sum(size > 1 for size in sizes) > 2:
        for a, b in combinations(range(len(sizes)), 2):
            assert {(row[a], row[b]) for row in taken} == set(product(range(sizes[a]), range(sizes[b])))


@settings(deadline=None)
@given(m=st.integers(2, 12), n=st.integers(2, 12))
def test_of_two_lists_the_shorter_one_s_elements_occur_equally_often(m, n):
    rows = list(product(range(m), range(n)))
    taken = [rows[k] for k in chosen(rows)]
    if m * n <= 4:
        assert taken == rows
        return
    assert len(taken) == max(m, n)
    counts = [sum(row[n < m] == value for row in taken) for value in range(min(m, n))]
    assert max(counts) - min(counts) <= 1


def test_of_one_list_all_are_taken():
    assert chosen([(n, "same") for n in range(100)]) == list(range(100))


def test_lists_that_are_not_a_product_keep_each_pair_that_they_have():
    rows = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0), (2, 0, 0)]
    assert chosen(rows) == list(range(5))


@pytest.mark.parametrize("setting, every", [(None, False), ("", False), ("0", False), ("1", True)])
def test_all_cases_are_taken_if_asked_for(monkeypatch, setting, every):
    monkeypatch.delenv("TILEJIT_FREEZE", raising=False)
    monkeypatch.delenv("TILEJIT_ALL_CASES", raising=False)
    if setting is not None:
        monkeypatch.setenv("TILEJIT_ALL_CASES", setting)
    assert all_cases() is every
    assert examples(600) == (600 if every else 150) and examples(FEWEST) == FEWEST and examples(5) == 5
    assert part(range(7), 3, 4) == (list(range(7)) if every else [1, 4])
    assert len(combined(range(3), range(3), range(3))) == (27 if every else 10)


def test_a_run_that_updates_the_record_of_digests_takes_all_cases(monkeypatch):
    monkeypatch.delenv("TILEJIT_ALL_CASES", raising=False)
    monkeypatch.setenv("TILEJIT_FREEZE", "update")
    assert all_cases()
    monkeypatch.setenv("TILEJIT_ALL_CASES", "0")
    assert not all_cases()


CONFTEST = """
from tests import chosen_cases

def pytest_collection_modifyitems(items):
    chosen_cases.fewer_examples(items)
    gone = chosen_cases.left_out(items)
    items[:] = [item for item in items if item not in gone]
"""

FILE = """
import pytest
from hypothesis import given, settings, strategies as st

@pytest.mark.parametrize("x", range(2))
@pytest.mark.parametrize("y", range(2))
@pytest.mark.parametrize("a, b", [(0, 0), (1, 1)])
def test_some(x, y, a, b): pass

@pytest.mark.all_cases
@pytest.mark.parametrize("x", range(5))
@pytest.mark.parametrize("y", range(5))
def test_all(x, y): pass

met = []

@settings(max_examples=120, database=None)
@given(st.integers())
def test_drawn(n): met.append(n)

def test_count(): assert len(met) == 30
"""


def test_a_run_takes_some_cases_of_a_test_all_of_a_marked_one_and_a_part_of_the_examples(tmp_path, monkeypatch):
    monkeypatch.delenv("TILEJIT_ALL_CASES", raising=False)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert f"{4 + 25 + 1 + 1} passed" in done.stdout, done.stdout
