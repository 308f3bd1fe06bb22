"""Suggestions for names that do not exist."""

from __future__ import annotations

from difflib import get_close_matches


def nearest(name: str, names) -> str:
    """`` (did you mean 'x'?)`` for the closest of `names`, or nothing."""
    close = get_close_matches(name, list(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
