"""Choosing a lowering: a site, variants with named needs, and a choice that keeps the reasons. Pure: no run-and-catch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from .errors import DispatchError, Loc


@dataclass(frozen=True)
class Need:
    """A named condition: `words` is a noun phrase that decides, explains and reports.

    `test(site)` returns True when it holds, False when it does not, or a string that says what was found instead.
    The needs after a `gate` take it for granted.
    """

    words: str
    test: Callable[[Any], bool | str]
    gate: bool = False

    def failure(self, site) -> str | None:
        found = self.test(site)
        if found is True or found is None:
            return None
        return f"needs {self.words}" + (f": {found}" if isinstance(found, str) else "")


@dataclass(frozen=True)
class Variant:
    """One way to lower an operation.

    `plan(site)` returns frozen data and cannot fail once every need holds; `emit(e, plan, call, *args)` and
    `simulate(m, plan, call, *args)` both consume it. A search that can fail runs inside a need, cached on the site.
    """

    name: str
    needs: tuple[Need, ...]
    plan: Callable
    emit: Callable
    simulate: Callable
    doc: str = ""


@dataclass(frozen=True)
class Choice:
    """The variant chosen for a call, its plan, and why each variant tried before or after it declined."""

    variant: str
    plan: Any
    declined: tuple[tuple[str, str], ...] = ()
    lowering: Variant | None = field(default=None, repr=False, compare=False)


def reasons(variant: Variant, site) -> list[str]:
    """Every need of `variant` that does not hold at `site`. A failed gate ends the list: what follows rests on it."""
    failed = []
    for need in variant.needs:
        words = need.failure(site)
        if words is not None:
            failed.append(words)
            if need.gate:
                break
    return failed


def choose(op_name: str, variants: tuple[Variant, ...], site, *, only: str | None = None, loc: Loc | None = None) -> Choice:
    """The first variant of the tuple whose needs all hold. DispatchError with every reason when there is none.

    `only` names the variant that the call or an `expect_variant` block asked for.
    """
    names = [v.name for v in variants]
    if only is not None and only not in names:
        raise DispatchError(f"{op_name} has no variant {only!r}; its variants are {', '.join(names)}", loc)
    declined, chosen = [], None
    for variant in variants:
        # Facts of the launch that only explain what was not chosen are no part of the choice.
        asked = only in (None, variant.name) and chosen is None
        with nullcontext() if asked else getattr(site, "unrecorded", nullcontext)():
            failed = reasons(variant, site)
        if failed:
            declined.append((variant.name, "; ".join(failed)))
        elif only is not None and variant.name != only:
            declined.append((variant.name, f"the call asks for {only}"))
        elif chosen is not None:
            declined.append((variant.name, f"{chosen.name} comes first"))
        else:
            chosen = variant
    if chosen is None:
        header = f"no lowering of {op_name} accepts this call" if only is None else f"{op_name} cannot be lowered as {only!r} here"
        shown = declined if only is None else [d for d in declined if d[0] == only]
        lines = [f"  {name}: {reason}" for name, reason in shown]
        raise DispatchError("\n".join([header, f"  {site}", *lines]), loc, tuple(declined))
    return Choice(chosen.name, chosen.plan(site), tuple(declined), chosen)
