"""Chooses which cases of parametrized tests a run has, so that a run of all tests takes minutes.

If several decorators ``parametrize`` a test, it has a case for each combination of their lists. A run takes

- of three lists or more, cases in which every two elements of two lists meet: faults depend on one element or on two that meet, hardly
  ever on three;
- of two lists, cases in which every element meets two of the other list, different ones in turn;
- of one list, all.

``TILEJIT_ALL_CASES=1`` takes all cases, and as many examples of property tests as they name; other runs draw a part of them. Tests that
need a GPU and those marked ``all_cases`` have all cases in every run.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import Any

from hypothesis import settings

FEWEST = 12  # examples that a property test draws at least, if it may draw so many
PART = 3     # it draws one in so many of those that it draws in a run of every case


def all_cases() -> bool:
    """Also if the run updates the record of digests, or writes texts to compare."""
    return os.environ.get("TILEJIT_ALL_CASES", "") not in ("", "0") or os.environ.get("TILEJIT_FREEZE", "check") not in ("", "check")


def covering(rows: Sequence[Sequence[Hashable]], strength: int = 2) -> list[int]:
    """The indices of rows in which every combination of `strength` columns' values, that any row has, occurs: greedily, the row with
    most new combinations first."""
    def combined(row: Sequence[Hashable]) -> set[Hashable]:
        return {(columns, *(row[c] for c in columns)) for columns in combinations(range(len(row)), strength)}

    left, missing = {n: combined(row) for n, row in enumerate(rows)}, set().union(*map(combined, rows))
    taken = []
    while missing:
        best = max(left, key=lambda n: len(left[n] & missing))
        missing -= left.pop(best)
        taken.append(best)
    return sorted(taken)


def meeting(rows: Sequence[Sequence[Hashable]], others: int = 2) -> list[int]:
    """The indices of rows in which every element of either column meets `others` different ones of the other column, or all that it
    has: greedily, the row whose elements have met fewest first."""
    met: dict[tuple[int, Hashable], set[Hashable]] = {(c, row[c]): set() for row in rows for c in (0, 1)}
    full = {key: min(others, len({row[1 - key[0]] for row in rows if row[key[0]] == key[1]})) for key in met}
    taken: list[int] = []

    def wanted(n: int) -> tuple[int, int]:
        lack = [full[c, rows[n][c]] - len(met[c, rows[n][c]]) for c in (0, 1)]
        return sum(amount > 0 for amount in lack), sum(lack)

    while any(len(met[key]) < full[key] for key in met):
        best = max((n for n in range(len(rows)) if n not in taken), key=wanted)
        for c in (0, 1):
            met[c, rows[best][c]].add(rows[best][1 - c])
        taken.append(best)
    return sorted(taken)


def chosen(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """The indices of the cases that a run takes, of all cases of a test."""
    varying = [c for c in range(len(rows[0])) if len({row[c] for row in rows}) > 1]
    if len(varying) < 2:
        return list(range(len(rows)))
    columns = [tuple(row[c] for c in varying) for row in rows]
    return covering(columns) if len(varying) > 2 else meeting(columns)


def places(case: Any) -> tuple[tuple[int, ...], ...]:
    """Which element a case has of the list of each decorator ``parametrize``, by identity."""
    decorators = [[name.strip() for name in names.split(",")] if isinstance(names := mark.args[0], str) else list(names)
                  for mark in case.iter_markers("parametrize")]
    return tuple(tuple(id(case.callspec.params[name]) for name in names) for names in decorators)


def fewer_examples(items: Iterable[Any]) -> None:
    """Property tests draw a part of their examples. Hypothesis reads a test's settings when it runs, from this attribute."""
    for test in {item.function for item in items if getattr(getattr(item, "function", None), "is_hypothesis_test", False)}:
        named = test._hypothesis_internal_use_settings
        test._hypothesis_internal_use_settings = settings(named, max_examples=examples(named.max_examples))


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
