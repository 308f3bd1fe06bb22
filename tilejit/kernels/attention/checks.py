"""Checks the options of `attention` and of its backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import LaunchError
from ...runtime.arguments import plain_constant
from ..operands import NOTHING, check_number
from .problem import MOST


def checked_lengths(lengths: Any, block_table: Any, rank: int) -> tuple:
    """The lengths of rows and of keys, and the pages; None for those that do not matter."""
    rows, keys = lengths if isinstance(lengths, (tuple, list)) and len(lengths) == 2 else (None, lengths)
    if isinstance(keys, (tuple, list)) or (rows is None) != (keys is None) and isinstance(lengths, (tuple, list)):
        raise LaunchError("lengths is an array, or a pair of arrays: the rows of each sequence in q, and in k and v")
    return keys if rows is None and rank == 3 else rows, keys, block_table


def checked_scale(scale: Any, shape: tuple[int, ...]) -> float:
    """The scale, by default that of rows of `shape`."""
    if scale is None:
        return float(shape[-1]) ** -0.5 if shape and shape[-1] else 1.0
    return _number("scale", scale)


def checked_factor(name: str, factor: Any) -> tuple[float, Any]:
    """(The factor if it is a number, and else 1; the array of factors, or None)."""
    if not isinstance(plain_constant(factor), (int, float)):
        return 1.0, factor
    value = _number(name, factor)
    if not value > 0:
        raise LaunchError(f"{name} must be positive, not {factor}")
    return value, None


def checked_softcap(softcap: Any) -> float:
    """The bound of the scores, or 0 for none."""
    if softcap is None:
        return 0.0
    bound = _number("softcap", softcap)
    if not bound > 0:
        raise LaunchError(f"softcap bounds the scores: it must be positive, not {softcap}; None is no bound")
    return bound


def _number(name: str, x: Any) -> float:
    try:
        value = float(x)
    except (TypeError, ValueError):
        raise LaunchError(f"{name} is a number, not {x!r}") from None
    if value != value or value in (float("inf"), -float("inf")):
        raise LaunchError(f"{name} must be finite, not {x}")
    check_number(name, value)
    return value


def checked_window(window: Any) -> tuple[int | None, int | None]:
    """(left, right), each None or at most `MOST`."""
    if window is None:
        return None, None
    pair = tuple(window) if isinstance(window, (tuple, list)) else ()
    if len(pair) != 2 or not all(n is None or isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in pair):
        raise LaunchError("window is (keys to the left of a row's position, keys to its right), each at least 0, or "
                          f"None for no bound, not {window!r}")
    left, right = (None if n is None else min(n, MOST) for n in pair)
    return left, right


def check_number_of(arguments: Sequence[Any], mask: Any, score: Any) -> None:
    """LaunchError for arguments without a function that takes them, and for too many."""
    if mask is None and score is None and arguments:
        raise LaunchError("arguments are passed to mask and score, and none of these is given")
    if len(arguments) > len(NOTHING):
        raise LaunchError(f"mask and score take up to {len(NOTHING)} arguments, not {len(arguments)}; pass more values "
                          "in one array")


__all__ = ["check_number_of", "checked_factor", "checked_lengths", "checked_scale", "checked_softcap", "checked_window"]
