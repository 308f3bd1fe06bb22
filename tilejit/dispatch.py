"""How a call's lowering is chosen: the first variant whose needs all hold.

Needs are named conditions. They are tested against a site (the facts of one call), and the choice records why each
other variant was declined. Testing a need has no side effects, and no lowering is tried by catching its errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from .errors import DispatchError, Loc

T = TypeVar("T")


@dataclass(frozen=True)
class Miss:
    """Why a need does not hold, in `words`. `cure` tells the kernel's author what to change so that it holds; "" if no
    change would."""

    words: str
    cure: str = ""


class Site:
    """The facts of one call, against which the needs of its variants are tested. `str(site)` describes the call in
    errors.

    `selective` are the options that only some variants of the op take; `options` has those that the call gives.
    """

    selective: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The kind of memory that the call reaches, where the op's variants depend on it."""
        return ""

    def one_dtype(self) -> bool | str:
        """Whether both sides of a copy have one dtype; a string says which they have."""
        return True

    def memoize(self, key: str, search: Callable[[], Any]) -> Any:
        """The memoised result of `search()`, which a variant's needs and its plan share."""
        memo = self.__dict__.setdefault("_searched", {})
        if key not in memo:
            memo[key] = search()
        return memo[key]

    def without_recording(self) -> AbstractContextManager[Any]:
        """A context in which the facts of the launch that needs ask for do not become guards."""
        return nullcontext()


@dataclass(frozen=True)
class Need:
    """A named condition of a variant. `words` is a noun phrase for it, as in "needs <words>".

    `test(site)` returns True (or None) if the condition holds; otherwise False, or what was found instead: a string,
    or a `Miss` with a cure. If a `gate` does not hold, the needs after it are not tested, since they rely on it.
    """

    words: str
    test: Callable[[Any], bool | str | Miss | None]
    gate: bool = False

    def failure(self, site: Any) -> Miss | None:
        found = self.test(site)
        if found is True or found is None:
            return None
        if isinstance(found, Miss):
            return Miss(f"needs {self.words}: {found.words}" if found.words else f"needs {self.words}", found.cure)
        return Miss(f"needs {self.words}: {found}" if found else f"needs {self.words}")


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to lower an operation.

    `plan(site)` returns immutable data and cannot fail if all needs hold; `emit(e, plan, call, *args)` and
    `simulate(m, plan, call, *args)` both work from it. Without these two, the op's own rules emit and simulate it, or,
    without a plan, a pass writes the call out as calls of other operations. A search that may fail runs in a need, and
    is cached on the site.

    More needs follow from the fields (`conditions`): of the options that only some variants have (`Site.selective`),
    the variant `takes` these; with `same_dtype`, it copies bytes unchanged. It is a candidate only at sites of its
    `place`; "" stands for all. Variants of one name are forms of one lowering, among which a call cannot choose.
    `wider(site, plan)` gives (form, reason) for each form with more bytes per instruction that the plan does not have.
    """

    name: str
    needs: tuple[Need, ...]
    plan: Callable[[Any], Any] | None = None
    emit: Callable[..., Any] | None = None
    simulate: Callable[..., Any] | None = None
    doc: str | None = ""
    takes: tuple[str, ...] = ()
    place: str = ""
    same_dtype: bool = False
    wider: Callable[[Any, Any], tuple[tuple[str, str], ...]] | None = None

    def make_plan(self, site: Site) -> Any:
        """The plan for a site at which all needs hold; None if a pass writes the call out."""
        return self.plan(site) if self.plan is not None else None


@dataclass(frozen=True)
class Choice:
    """The variant chosen for a call, its plan, and (variant, reason) for each candidate of another name or wider form.

    `cures` has (variant, cure) for earlier variants whose failed needs all have a cure.
    """

    variant: str
    plan: Any
    declined: tuple[tuple[str, str], ...] = ()
    cures: tuple[tuple[str, str], ...] = ()
    lowering: Variant | None = field(default=None, repr=False, compare=False)


ONE_DTYPE = Need("one dtype on both sides", lambda s: s.one_dtype(), gate=True)


def _no_option(option: str) -> Need:
    return Need(f"no {option}=", lambda s: not s.options.get(option))


@cache
def conditions(variant: Variant, sites: type[Site]) -> tuple[Need, ...]:
    """All needs of a variant at sites of a class, in the order in which they are tested."""
    untaken = (option for option in sites.selective if option not in variant.takes)
    return (*(ONE_DTYPE,) * variant.same_dtype, *variant.needs, *map(_no_option, untaken))


def variants_at(variants: tuple[Variant, ...], site: Site) -> tuple[Variant, ...]:
    """The variants that apply at the site's place."""
    return _variants_of_place(variants, site.place)


@cache
def _variants_of_place(variants: tuple[Variant, ...], place: str) -> tuple[Variant, ...]:
    return tuple(v for v in variants if v.place in ("", place))


def result_of(search: T | str) -> T:
    """The result of a search that a need has already seen succeed: not a string that says why it failed."""
    assert not isinstance(search, str), search
    return search


def names(variants: Iterable[Variant]) -> tuple[str, ...]:
    """The names of `variants`, in order, each once."""
    return tuple(dict.fromkeys(v.name for v in variants))


def reasons(variant: Variant, site: Site) -> list[Miss]:
    """All needs of `variant` that do not hold at `site`, up to the first failed gate."""
    failed = []
    for need in conditions(variant, type(site)):  # type: ignore[arg-type]  # a class is hashable
        miss = need.failure(site)
        if miss is not None:
            failed.append(miss)
            if need.gate:
                break
    return failed


def choose(op_name: str, variants: tuple[Variant, ...], site: Site, *, only: str | None = None,
           loc: Loc | None = None) -> Choice:
    """Choose the first of `variants` that applies at the site's place and whose needs all hold.

    DispatchError with all reasons if there is none.

    `only` names the variant that the call or an `expect_variant` block asks for.
    """
    variants = variants_at(variants, site)
    if only is not None and only not in names(variants):
        raise DispatchError(f"{op_name} has no variant {only!r}; its variants are {', '.join(names(variants))}", loc)
    declined: list[tuple[str, str]] = []
    cures: list[tuple[str, str]] = []
    chosen: Variant | None = None
    for variant in variants:
        if chosen is not None and variant.name == chosen.name:
            continue
        asked = only in (None, variant.name) and chosen is None
        if asked:
            failed = reasons(variant, site)
        else:  # only explains why the variant is not chosen: the facts that it asks for must not become guards
            with site.without_recording():
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
        raise _no_variant_error(op_name, site, only, declined, loc)
    plan = chosen.make_plan(site)
    told = tuple([d for d in declined if d[0] != chosen.name])
    if chosen.wider is not None:
        told += chosen.wider(site, plan)
    return Choice(chosen.name, plan, told, tuple(cures), chosen)


def _no_variant_error(op_name: str, site: Site, only: str | None, declined: list[tuple[str, str]],
                      loc: Loc | None) -> DispatchError:
    """The error for a call that no variant takes; with `only`, its message gives the reasons of that variant alone."""
    header, shown = f"no lowering of {op_name} accepts this call", declined
    if only is not None:
        header, shown = f"{op_name} cannot be lowered as {only!r} here", [d for d in declined if d[0] == only]
    lines = [f"  {name}: {reason}" for name, reason in shown]
    return DispatchError("\n".join([header, f"  {site}", *lines]), loc, tuple(declined))
