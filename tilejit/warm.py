"""Launchers of earlier calls, for calls like them: these take no second look at their keywords and at what the kernel read around it."""

from __future__ import annotations

from threading import Lock
from typing import Any

from .dtypes import DType
from .frontend.captures import Capture, Watch
from .runtime.arguments import parts_of


class Warm:
    """The launchers that a kernel's calls came to, by the calls' keywords. A launcher checks itself that the other arguments fit."""

    def __init__(self):
        self.launchers: dict[tuple, list] = {}
        self.watched: list[Watch] = []  # captured values that could change
        self.changing = Lock()          # for threads: no launcher without the watch over what it captured

    def of(self, form: tuple) -> list:
        """The list of launchers of calls with keywords of this form, which is the same one from now on."""
        try:
            return self.launchers.setdefault(form, [])
        except TypeError:  # a keyword that is not hashable
            return []

    def find(self, form: tuple):
        """The launchers of calls with keywords of this form, while what their kernels captured has not changed."""
        try:
            return self.current(self.launchers.get(form, ()))
        except TypeError:
            return ()

    def current(self, launchers):
        """These launchers, while what their kernels captured has not changed."""
        if launchers and self.watched and any(w.changed() for w in self.watched):
            self.clear()
        return launchers

    def add(self, form: tuple, launcher, captured: tuple[Capture, ...]) -> None:
        """Let later calls of this form go to a launcher, whose kernel read `captured`."""
        with self.changing:
            known = {w.capture for w in self.watched}
            self.watched += [Watch(c) for c in captured if c.may_change and c not in known]
            launchers = self.of(form)
            if launcher not in launchers:
                launchers.insert(0, launcher)

    def clear(self) -> None:
        """Forget all launchers, also where their lists are at hand."""
        with self.changing:
            for launchers in list(self.launchers.values()):  # `of` may add one meanwhile
                launchers.clear()
            self.watched.clear()


def form_of(kwargs: dict) -> tuple:
    """What keywords are remembered by: 1, 1.0 and True are equal, and different constants."""
    return tuple(kwargs.items()), tuple(map(_kind, kwargs.values()))


def _kind(value: Any):
    kind = type(value)
    if kind in _SINGLE:
        return kind
    return kind, *map(_kind, parts_of(value) or ())


_SINGLE = frozenset((int, bool, str, float, type(None), DType))  # what constants mostly are


def has_zero(value: Any) -> bool:
    """Whether a float 0 stands in a constant: 0.0 and -0.0 are equal, and different constants."""
    return any(map(has_zero, parts_of(value) or ())) or isinstance(value, float) and value == 0


__all__ = ["Warm", "form_of", "has_zero"]
