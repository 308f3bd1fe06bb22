"""Chooses which cases of parametrized tests a run has, so that a run of all tests takes minutes.

If several decorators ``parametrize`` a test, it has a case for each combination of their lists. A run takes

- of three lists or more, cases in which every two elements of two lists meet: faults depend on one element or on two
  that meet, hardly ever on three;
- of two lists, cases in which every element occurs, with those of the other list in turn;
- of one list, and of at most four cases, all.

``TILEJIT_ALL_CASES=1`` takes all cases, and as many examples of property tests as they name; other runs draw a part of
them. Runs that make digests or texts to compare with take all cases, too, unless it is ``0``. Tests that need a GPU and
those marked ``all_cases`` have all cases in every run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations, product
from typing import Any

from hypothesis import settings

FEWEST = 6  # examples that a property test draws at least, if it may draw so many
PART = 4     # it draws one in so many of those that it draws in a run of every case


def all_cases() -> bool:
    """Whether this run takes all cases: if it is told to, or, if it is told nothing, makes digests or texts to compare with."""
    asked = os.environ.get("TILEJIT_ALL_CASES", "")
    return asked != "0" if asked else os.environ.get("TILEJIT_FREEZE", "check") not in ("", "check")


def covering(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """The indices of rows in which every two values of two columns that any row has occur: greedily, the row with most
    new pairs first."""
    def pairs(row: Sequence[Hashable]) -> set[Hashable]:
        return {(a, row[a], b, row[b]) for a, b in combinations(range(len(row)), 2)}

    left = {n: pairs(row) for n, row in enumerate(rows)}
    missing = set().union(*left.values())
    taken = []
    while missing:
        best = max(left, key=lambda n: len(left[n] & missing))
        missing -= left.pop(best)
        taken.append(best)
    return sorted(taken)


def occurring(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """The indices of rows in which every value of every column occurs, none much more often than others: greedily, the
    row with most new values first, and of these the one whose values have occurred least."""
    count: Counter[tuple[int, Hashable]] = Counter()
    missing = {(c, value) for row in rows for c, value in enumerate(row)}
    taken: list[int] = []
    while missing:
        best = min(range(len(rows)), key=lambda n: (-len(missing.intersection(enumerate(rows[n]))),
                                                    sum(count[at] for at in enumerate(rows[n]))))
        missing.difference_update(enumerate(rows[best]))
        count.update(enumerate(rows[best]))
        taken.append(best)
    return sorted(taken)


def chosen(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """The indices of the cases that a run takes, of all cases of a test."""
    varying = [c for c in range(len(rows[0])) if len({row[c] for row in rows}) > 1]
    if len(varying) < 2 or len(rows) <= 4:
        return list(range(len(rows)))
    columns = [tuple(row[c] for c in varying) for row in rows]
    return covering(columns) if len(varying) > 2 else occurring(columns)


def combined(*lists: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The combinations of lists' elements that a run takes, for tests that go through them in a loop."""
    rows = list(product(*lists))
    return rows if all_cases() else [rows[n] for n in chosen(rows)]


def part(elements: Iterable[Any], of: int = PART, turn: int = 0) -> list[Any]:
    """One in `of` of the elements, others for another `turn`; all of them in a run of all cases."""
    return list(elements) if all_cases() else list(elements)[turn % of::of]


def places(case: Any) -> tuple[tuple[int, ...], ...]:
    """Which element a case has of the list of each decorator ``parametrize``, by identity."""
    decorators = [[name.strip() for name in names.split(",")] if isinstance(names := mark.args[0], str) else list(names)
                  for mark in case.iter_markers("parametrize")]
    return tuple(tuple(id(case.callspec.params[name]) for name in names) for names in decorators)


def fewer_examples(items: Iterable[Any]) -> None:
    """Property tests draw a part of their examples, the same in every run unless it takes all cases. Hypothesis reads this attribute when a
    test runs."""
    tests = {getattr(item, "function", None) for item in items}
    for test in (test for test in tests if getattr(test, "is_hypothesis_test", False)):
        named = test._hypothesis_internal_use_settings
        drawn_anew = all_cases()
        test._hypothesis_internal_use_settings = settings(named, max_examples=examples(named.max_examples), derandomize=not drawn_anew,
                                                          **({} if drawn_anew else {"database": None}))


def examples(named: int) -> int:
    """How many examples a run draws of those that a property test names."""
    return named if all_cases() else max(named // PART, min(named, FEWEST))


def left_out(items: Iterable[Any]) -> set[Any]:
    """The collected cases that a run leaves out."""
    tests: dict[tuple[str, str], list[Any]] = {}
    for item in items:
        if hasattr(item, "callspec") and not any(map(item.get_closest_marker, ("gpu", "all_cases"))):
            tests.setdefault((item.parent.nodeid, item.originalname), []).append(item)
    gone: set[Any] = set()
    for cases in tests.values():
        gone.update({*cases} - {cases[n] for n in chosen([places(case) for case in cases])})
    return gone
