"""Names: suggestions for those that do not exist, and what tells an instruction's without loading the instruction table."""

from __future__ import annotations


def nearest(name: str, names) -> str:
    """`` (did you mean 'x'?)`` for the closest of `names`, or nothing."""
    from difflib import get_close_matches
    close = get_close_matches(name, list(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class InstructionName:
    """A name under ``tile.ptx``, which a kernel may call; ``.form`` is the row's form that it means."""
