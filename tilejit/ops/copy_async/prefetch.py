"""``prefetch``: a region of an array is brought into L2, by the copy engine where it is contiguous, else line by line."""

from __future__ import annotations

from dataclasses import dataclass

from ...dispatch import Need, Variant
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...ir.op import op
from ...types import Buffer, Region
from ..memory import whole
from ..partition import checked, driving_order
from .options import POLICIES, checked_options
from .runs import UNIT, ArrayRegion, aligned, few, found, in_bounds, runs_of, whole_units
from .site import CopySite

LINE = 128  # bytes


@op("reads", attrs=("options", "partial"))
def prefetch_(src, options=None, partial=None):
    """Bring the region `src` of an array into L2. Nothing waits for it."""


@prefetch_.infer
def _(g, src, options=None, partial=None):
    return None


@prefetch_.site
def _(g, call):
    made = g.definition(call.args[0])
    src = call.args[0].type
    return CopySite(src, src, made.args[1:], made.args[1:], g.scope.kind, g.scope.threads, call.attrs.get("partial"), None, g.target,
                    call.attrs.get("options") or {}, g)


@prefetch_.simulate
def _(m, call, src):
    return None


@prefetch_.emit
def _(e, call, src):
    call.choice.lowering.emit(e, call.choice.plan, call, src)


@builtin
def prefetch(g: Builder, region, cache=None):
    """Bring a region of an array into L2 (PTX ISA, ``cp.async.bulk.prefetch.L2`` and ``prefetch.global.L2``).

    The scope makes it once; nothing waits for it, and nothing is brought that is out of bounds. `cache` is an L2 policy,
    "evict_first", "evict_last" or "evict_normal", for the engine.
    """
    if not isinstance(type_of(region), (Buffer, Region)) or type_of(region).scope != "global":
        raise g.error(f"prefetch brings a region of an array into L2, not {describe(region)}")
    partial = g.scope.partial.name if g.scope.partial is not None else None
    g.call(prefetch_, whole(g, region), options=checked_options({"cache": cache}, ()), partial=partial)


# -- variants ------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Runs:
    """`chunks` prefetches of `chunk_bytes` bytes, at `places` in the region."""

    chunk_bytes: int
    chunks: int
    places: tuple[tuple[int, ...], ...]
    policy: int | None
    each_thread: bool

    @property
    def instructions(self) -> int:
        return self.chunks


def _plan_runs(site: CopySite) -> Runs:
    runs = runs_of(site)
    places = tuple(at for at, _ in runs.places(len(site.shape)))
    return Runs(runs.elements * site.itemsize, runs.count, places, POLICIES.get(site.options.get("cache")), site.partial is not None)


def _emit_runs(e, plan: Runs, call, src):
    def issue():
        side = ArrayRegion(e, src)
        for at in plan.places:
            e.bulk_prefetch(side.place(at)[0], plan.chunk_bytes, policy=plan.policy)

    issue() if plan.each_thread else e.by_first_thread(issue)


@dataclass(frozen=True)
class Lines:
    """A prefetch for each `step` elements along dimension `order[-1]` of the region; the scope's threads share them."""

    step: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    threads: int
    bounds: tuple[int, ...]

    @property
    def lines(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def instructions(self) -> int:
        return -(-self.lines // self.threads)


def _plan_lines(site: CopySite) -> Lines:
    order = driving_order(site)
    shape = [site.shape[k] for k in order]
    step = 1
    if order:
        stride = site.src.buffer.strides[site.dims(site.src)[order[-1]]]
        step = max(LINE // site.itemsize, 1) if isinstance(stride, int) and stride == 1 else 1
        shape[-1] = -(-shape[-1] // step)
    return Lines(step, tuple(shape), order, 1 if site.partial is not None else site.threads, checked(site.src, site.src_starts))


def _emit_lines(e, plan: Lines, call, src):
    """The line of each `step` elements begins where the first of them lies; what is out of bounds is skipped."""
    side = ArrayRegion(e, src, plan.bounds)
    thread = e.thread_id() if plan.threads > 1 else 0
    for first in range(0, plan.lines, plan.threads):
        line, at = thread + first, [0] * len(plan.order)
        last = first + plan.threads > plan.lines
        active = e.in_bounds(line, plan.lines) if last and not isinstance(line, int) else None
        for n, d in zip(reversed(plan.shape), reversed(plan.order)):
            at[d], line = line % n, line // n
        if plan.order:
            at[plan.order[-1]] = at[plan.order[-1]] * plan.step
        pointer, inside = side.place(at)
        e.prefetch_line(pointer, e.all_of([t for t in (active, inside) if t is not None]))


RUNS = Variant("bulk", plan=_plan_runs, emit=_emit_runs, simulate=None, doc=__doc__, needs=(
    Need("sm_90 or later", lambda s: s.architecture() >= 90 or s.target, gate=True),
    Need("at least one element", lambda s: s.elements > 0, gate=True),
    Need("contiguous runs", found, gate=True),
    Need(f"runs of a multiple of {UNIT} bytes", whole_units, gate=True),
    Need("at most 256 of them", few, gate=True),
    Need("runs that begin at multiples of 16 bytes", aligned),
    Need("a region that is provably inside the array", in_bounds),
))
LINES = Variant("lines", plan=_plan_lines, emit=_emit_lines, simulate=None, doc=__doc__, needs=(
    Need("at least one element", lambda s: s.elements > 0),
    Need("no cache option", lambda s: s.options.get("cache") is None or f"cache={s.options['cache']!r}"),
))
prefetch_.variants = (RUNS, LINES)
