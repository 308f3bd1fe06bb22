"""The fast launch path: launchers of earlier calls, by the keywords of the call."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

from .concurrency import not_while_forking
from .dtypes import DType
from .errors import LaunchError
from .frontend.captures import Capture, Watch
from .runtime.arguments import Bound, constant_parts
from .runtime.groups import Group, spread


class Warm:
    """A kernel's launchers by the keywords of calls. A launcher checks by itself whether the other arguments fit."""

    def __init__(self) -> None:
        self.launchers: dict[tuple[Any, ...], list[Any]] = {}
        self.watched: list[Watch] = []  # captured values that may change
        self.changing = Lock()          # launchers and the watches of their captures are added together

    def launchers_of(self, form: tuple[Any, ...]) -> list[Any]:
        """The list of launchers for keywords of this form, created if necessary. It is always the same list object."""
        try:
            return self.launchers.setdefault(form, [])
        except TypeError:  # a keyword that is not hashable
            return []

    def find(self, form: tuple[Any, ...]) -> Sequence[Any]:
        """The launchers for keywords of this form; none if a captured value has changed."""
        try:
            return self.current(self.launchers.get(form, ()))
        except TypeError:
            return ()

    def current(self, launchers: Sequence[Any]) -> Sequence[Any]:
        """The given list of launchers; all launchers are removed first if a captured value has changed."""
        if launchers and self.watched and any(w.has_changed() for w in self.watched):
            self.clear()
        return launchers

    @not_while_forking
    def add(self, form: tuple[Any, ...], launcher: Any, captured: tuple[Capture, ...]) -> None:
        """Add a launcher for later calls of this form; its kernel captured the values `captured`."""
        with self.changing:
            known = {w.capture for w in self.watched}
            self.watched += [Watch(c) for c in captured if c.may_change and c not in known]
            launchers = self.launchers_of(form)
            if launcher not in launchers:
                launchers.insert(0, launcher)

    def remember(self, names: Sequence[str], launcher: Any, bound: Bound, given: tuple[Any, ...],
                 captured: tuple[Capture, ...]) -> None:
        """Send later calls of the form of `given`, (positional, keyword arguments) that were `bound` to the parameters
        `names`, straight to the launcher, which checks that they fit."""
        args, kwargs = given
        form = [bound.groups.get(n, None if n in bound.constants and bound.values[n] is None else n)
                for n in names[:len(args)]]
        left = [n for n in names[len(args):] if n not in bound.constants]
        if left or any(isinstance(part, str) and part in bound.constants for part in form):
            return
        if any(part is None or isinstance(part, Group) for part in form):
            launcher = spread(form, {n: bound.values[n] for n in bound.constants}, launcher)
        if not any(has_zero(v) for n, v in kwargs.items() if n in bound.constants):
            self.add(form_of(kwargs), launcher, captured)

    @not_while_forking
    def clear(self) -> None:
        """Remove all launchers; the lists are emptied, since callers may hold them."""
        with self.changing:
            for launchers in list(self.launchers.values()):  # `launchers_of` may add one meanwhile
                launchers.clear()
            self.watched.clear()


def form_of(kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The key of a call's keywords: names, values and types, since 1,
    1.0 and True are equal but different constants."""
    try:
        return tuple(kwargs.items()), tuple(map(_kind, kwargs.values()))
    except RecursionError:
        raise LaunchError("a keyword argument nests too deeply") from None


def _kind(value: Any) -> Any:
    kind = type(value)
    if kind in _SINGLE:
        return kind
    return kind, *map(_kind, constant_parts(value) or ())


_SINGLE = frozenset((int, bool, str, float, type(None), DType))  # types without parts, the most frequent ones


def has_zero(value: Any) -> bool:
    """Whether a constant contains a float 0: 0.0 and -0.0 are equal but different constants."""
    return any(map(has_zero, constant_parts(value) or ())) or isinstance(value, float) and value == 0


__all__ = ["Warm", "form_of", "has_zero"]
