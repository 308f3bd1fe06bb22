"""`match` on what is known while compiling: the case is chosen by the frontend, and only its statements are walked."""

from __future__ import annotations

import ast
from typing import Any

from ..ir.builder import describe
from . import joins
from .branches import evaluate_condition, truth
from .expressions import by_python, compare_operands
from .names import leaves_early
from .walker import Walker, runtime, statement

Bindings = dict[str, Any]


@statement(ast.Match)
def match_(w: Walker, node: ast.Match, rest: list[ast.stmt]) -> bool:
    """A `match` statement. Returns whether `rest`, the statements after it, was walked too, as in `if_`."""
    subject = w.value(node.subject)
    for case in node.cases:
        bound: Bindings = {}
        if not _matches(w, case.pattern, subject, bound):
            continue
        for name, value in bound.items():
            w.assign(name, value)
        if case.guard is not None and not _holds(w, case.guard):
            continue
        consumed = leaves_early(case.body)
        w.statements(case.body + rest if consumed else case.body)
        return consumed
    return False


def _holds(w: Walker, guard: ast.expr) -> bool:
    with w.place(guard):
        held = truth(w, evaluate_condition(w, guard))
        if not isinstance(held, bool):
            raise w.error("a case is chosen while compiling, and its condition is known at run time only; "
                          "write if/elif/else")
    return held


def _matches(w: Walker, pattern: ast.pattern, subject: Any, bound: Bindings) -> bool:
    """Whether a pattern matches; `bound` gets the names that it binds."""
    match pattern:
        case ast.MatchValue(value=value):
            return _equals(w, "==", subject, w.value(value), pattern)
        case ast.MatchSingleton(value=value):
            return _equals(w, "is", subject, value, pattern)
        case ast.MatchAs(pattern=inner, name=name):
            if inner is not None and not _matches(w, inner, subject, bound):
                return False
            if name is not None:
                bound[name] = subject
            return True
        case ast.MatchOr(patterns=patterns):
            return any(_matches(w, one, subject, bound) for one in patterns)
        case ast.MatchSequence(patterns=patterns):
            return isinstance(subject, (tuple, list)) and _match_sequence(w, patterns, subject, bound)
        case ast.MatchMapping():
            return isinstance(subject, dict) and _match_mapping(w, pattern, subject, bound)
        case ast.MatchClass():
            return _match_class(w, pattern, subject, bound)
    raise w.error(f"{type(pattern).__name__} is not supported in a kernel")


def _equals(w: Walker, symbol: str, subject: Any, value: Any, pattern: ast.pattern) -> bool:
    if runtime(subject) and not (value is None or joins.fields_of(subject) is not None):
        place = ast.copy_location(ast.Constant(None), pattern)
        raise w.error(f"`match` decides while compiling, and {describe(subject)} is known at run time only; "
                      "write if/elif/else" + w.g.declared_constant(subject), place)
    return not runtime(subject) and bool(compare_operands(w, symbol, subject, value))


def _match_sequence(w: Walker, patterns: list[ast.pattern], subject: Any, bound: Bindings) -> bool:
    parts = tuple(subject)
    stars = [n for n, p in enumerate(patterns) if isinstance(p, ast.MatchStar)]
    if not stars:
        return len(parts) == len(patterns) and all(_matches(w, p, x, bound) for p, x in zip(patterns, parts))
    before, after = stars[0], len(patterns) - stars[0] - 1
    if len(parts) < before + after:
        return False
    end, star = len(parts) - after, patterns[before]
    if isinstance(star, ast.MatchStar) and star.name is not None:
        bound[star.name] = list(parts[before:end])
    pairs = [*zip(patterns[:before], parts[:before]), *zip(patterns[before + 1:], parts[end:])]
    return all(_matches(w, p, x, bound) for p, x in pairs)


def _match_mapping(w: Walker, pattern: ast.MatchMapping, subject: dict[Any, Any], bound: Bindings) -> bool:
    keys = [w.value(key) for key in pattern.keys]
    if not all(key in subject and _matches(w, p, subject[key], bound) for key, p in zip(keys, pattern.patterns)):
        return False
    if pattern.rest is not None:
        bound[pattern.rest] = {key: value for key, value in subject.items() if key not in keys}
    return True


def _match_class(w: Walker, pattern: ast.MatchClass, subject: Any, bound: Bindings) -> bool:
    kind = w.value(pattern.cls)
    if not isinstance(kind, type):
        raise w.error(f"a class is needed here, not {describe(kind)}", pattern.cls)
    if joins.is_runtime(subject) or not isinstance(subject, kind):
        return False
    if pattern.patterns and kind in (bool, int, float, str, tuple, list, dict):
        return len(pattern.patterns) == 1 and _matches(w, pattern.patterns[0], subject, bound)
    named = getattr(kind, "__match_args__", ())
    if len(pattern.patterns) > len(named):
        raise w.error(f"{kind.__name__} has {len(named)} parts by position, and the pattern {len(pattern.patterns)}",
                      pattern.cls)
    parts = [*zip(named, pattern.patterns), *zip(pattern.kwd_attrs, pattern.kwd_patterns)]
    with by_python(w):
        found = [(p, getattr(subject, name)) for name, p in parts if hasattr(subject, name)]
    return len(found) == len(parts) and all(_matches(w, p, x, bound) for p, x in found)
