"""Which Pythons CI runs the tests on."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[1] / ".ci" / "pythons.py"))
FOUND = {"a": 9, "b": 10, "c": 11, "d": None, "e": 13, "f": 13, "g": 12}


@pytest.mark.parametrize("programs, own, expected", [
    ("abcdefg", 11, "be"), ("abcdefg", 10, "e"), ("abcdefg", 13, "b"), ("c", 11, ""), ("c", 12, "c"), ("ad", 11, ""), ("", 11, "")])
def test_the_oldest_and_the_newest_supported_python_are_chosen_but_for_the_one_in_use(monkeypatch, programs, own, expected):
    monkeypatch.setitem(SCRIPT["chosen"].__globals__, "minor_of", FOUND.get)
    assert SCRIPT["chosen"](list(programs), own, 10) == list(expected)


def test_a_python_is_known_by_running_it():
    assert SCRIPT["minor_of"](sys.executable) == sys.version_info[1]
    assert SCRIPT["minor_of"]("/bin/false") is SCRIPT["minor_of"]("/no/python") is None
    assert SCRIPT["oldest_supported"]() == 10


@pytest.mark.parametrize("programs, expected", [("a", sys.executable), ("d", sys.executable), ("b", "b"), ("ag", "g"), ("", sys.executable)])
def test_all_tests_run_on_the_distribution_s_python_if_it_is_supported(monkeypatch, programs, expected):
    monkeypatch.setitem(SCRIPT["first"].__globals__, "minor_of", FOUND.get)
    assert SCRIPT["first"](list(programs), 10) == expected
