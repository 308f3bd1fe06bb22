"""Choosing a lowering: a site, variants with named needs, and a choice that keeps the reasons. Pure: no run-and-catch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from .errors import DispatchError, Loc


@dataclass(frozen=True)
class Miss:
    """Why a need does not hold, in `words`. `cure` is for the author of a kernel that takes another path for it: what lies otherwise
    than the need has it, and what to write instead; empty where that cannot be said."""

    words: str
    cure: str = ""


@dataclass(frozen=True)
class Need:
    """A named condition: `words` is a noun phrase that decides, explains and reports.

    `test(site)` returns True when it holds, False when it does not, or what was found instead: a string, or a `Miss` that has a cure.
    The needs after a `gate` take it for granted.
    """

    words: str
    test: Callable[[Any], bool | str | Miss]
    gate: bool = False

    def failure(self, site) -> Miss | None:
        found = self.test(site)
        if found is True or found is None:
            return None
        found = found if isinstance(found, Miss) else Miss(found if isinstance(found, str) else "")
        return Miss(f"needs {self.words}" + (f": {found.words}" if found.words else ""), found.cure)


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
    """The variant chosen for a call, its plan, and why each variant tried before or after it declined. `cures` are of those before it
    that would have taken the call but for what has a cure."""

    variant: str
    plan: Any
    declined: tuple[tuple[str, str], ...] = ()
    cures: tuple[tuple[str, str], ...] = ()
    lowering: Variant | None = field(default=None, repr=False, compare=False)


def reasons(variant: Variant, site) -> list[Miss]:
    """Every need of `variant` that does not hold at `site`. A failed gate ends the list: what follows rests on it."""
    failed = []
    for need in variant.needs:
        miss = need.failure(site)
        if miss is not None:
            failed.append(miss)
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
    declined, cures, chosen = [], [], None
    for variant in variants:
        # Facts of the launch that only explain what was not chosen are no part of the choice.
        asked = only in (None, variant.name) and chosen is None
        with nullcontext() if asked else getattr(site, "unrecorded", nullcontext)():
            failed = reasons(variant, site)
        if failed:
            declined.append((variant.name, "; ".join(miss.words for miss in failed)))
            if asked and all(miss.cure for miss in failed):
                cures.append((variant.name, "; ".join(miss.cure for miss in failed)))
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
    return Choice(chosen.name, chosen.plan(site), tuple(declined), tuple(cures), chosen)
