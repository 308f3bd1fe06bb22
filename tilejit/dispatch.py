"""Choosing a lowering: variants with named needs are tested against a site (the facts of a call), and the choice keeps the reasons.
Testing has no side effects, and no lowering is tried by catching its errors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from .errors import DispatchError, Loc


@dataclass(frozen=True)
class Miss:
    """Why a need does not hold, in `words`. `cure` tells the kernel's author what to change so that it holds; "" if there is no such
    change."""

    words: str
    cure: str = ""


@dataclass(frozen=True)
class Need:
    """A named condition of a variant. `words` is a noun phrase for it, as in "needs <words>".

    `test(site)` returns True (or None) if the condition holds; otherwise False, or what was found instead: a string, or a `Miss` with a
    cure. If a `gate` does not hold, the needs after it are not tested, since they rely on it.
    """

    words: str
    test: Callable[[Any], bool | str | Miss | None]
    gate: bool = False

    def failure(self, site: Any) -> Miss | None:
        found = self.test(site)
        if found is True or found is None:
            return None
        found = found if isinstance(found, Miss) else Miss(found if isinstance(found, str) else "")
        return Miss(f"needs {self.words}" + (f": {found.words}" if found.words else ""), found.cure)


@dataclass(frozen=True)
class Variant:
    """One way to lower an operation.

    `plan(site)` returns immutable data and cannot fail if all needs hold; `emit(e, plan, call, *args)` and
    `simulate(m, plan, call, *args)` both work from it. A search that may fail runs in a need, and is cached on the site.
    """

    name: str
    needs: tuple[Need, ...]
    plan: Callable[[Any], Any]
    emit: Callable[..., Any]
    simulate: Callable[..., Any]
    doc: str = ""


@dataclass(frozen=True)
class Choice:
    """The variant chosen for a call, its plan, and (variant, reason) for each other one. `cures` has (variant, cure) for earlier variants
    whose failed needs all have a cure."""

    variant: str
    plan: Any
    declined: tuple[tuple[str, str], ...] = ()
    cures: tuple[tuple[str, str], ...] = ()
    lowering: Variant | None = field(default=None, repr=False, compare=False)


def reasons(variant: Variant, site: Any) -> list[Miss]:
    """All needs of `variant` that do not hold at `site`, up to the first failed gate."""
    failed = []
    for need in variant.needs:
        miss = need.failure(site)
        if miss is not None:
            failed.append(miss)
            if need.gate:
                break
    return failed


def choose(op_name: str, variants: tuple[Variant, ...], site: Any, *, only: str | None = None, loc: Loc | None = None) -> Choice:
    """The first of `variants` whose needs all hold. DispatchError with all reasons if there is none.

    `only` names the variant that the call or an `expect_variant` block asks for.
    """
    names = [v.name for v in variants]
    if only is not None and only not in names:
        raise DispatchError(f"{op_name} has no variant {only!r}; its variants are {', '.join(names)}", loc)
    declined: list[tuple[str, str]] = []
    cures: list[tuple[str, str]] = []
    chosen: Variant | None = None
    for variant in variants:
        # Facts of the launch that are asked for only to explain why a variant was not chosen must not become guards.
        asked = only in (None, variant.name) and chosen is None
        context: AbstractContextManager[Any] = nullcontext() if asked else getattr(site, "unrecorded", nullcontext)()
        with context:
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
