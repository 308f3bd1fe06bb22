"""vector: ordinary loads and stores, complete when the call returns.

This is the fallback for copies that no asynchronous path can make.

The result is correct but slower than the kernel's author intended, so the compiler warns.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ....dispatch import Need, Variant
from ...memory import vectors
from ...memory.partition import Partition
from .site import OWN_MEMORY, CopySite


@dataclass(frozen=True)
class Plan(Partition):
    """A partition whose vectors are copied through registers; elements read out of bounds are `fill`."""

    fill: str | None = None

    completion = "issue"
    warning = ("this copy_async is made of ordinary loads and stores, since no asynchronous path accepts it; "
               "the kernel's .copies and .explain() say why, and tile.copy does the same without a warning")


def plan(site: CopySite) -> Plan:
    made = vectors.partition(site)
    return Plan(**{f.name: getattr(made, f.name) for f in fields(Partition)}, fill=site.options.get("fill"))


def emit(e, plan: Plan, call, dst, src, mbar):
    vectors.emit(e, plan, dst, src, plan.fill)


def simulate(m, plan: Plan, call, dst, src, mbar):
    vectors.simulate(m, plan, dst, src, plan.fill)


VARIANT = Variant("vector", plan=plan, emit=emit, simulate=simulate, doc=__doc__, place="region", same_dtype=True,
                  needs=(
    OWN_MEMORY,
    vectors.MOVABLE,
    vectors.NOT_EMPTY,
    vectors.ALL_THREADS,
    Need("no mbar=, since ordinary stores complete on no barrier", lambda s: s.mbar is None),
    Need("zero as the fill, or NaN for a float type",
         lambda s: s.options.get("fill") is None or s.src.dtype.is_float and not s.src.dtype.packed
         or f"fill='nan' on {s.src.dtype}"),
    Need("no cache policy", lambda s: s.options.get("cache") is None or f"cache={s.options['cache']!r}"),
))
