"""``prefetch``: brings a region of an array into L2.

The copy engine does it, by runs of bytes or boxes of a tensor map, or else the threads, line by line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ....dispatch import Need, Variant, names, result_of
from ....dtypes import int32
from ....ir.builder import Builder, describe, type_of
from ....ir.builtin import builtin
from ....ir.graph import Const
from ....ir.op import op
from ....ir.op_traits import Reads, Traits
from ....layout import Swizzle, TileLayout, axis
from ....types import Buffer, Patches, Region, Selected, strides_of
from ...language.expect_variant import asked_variant
from ...memory.partition import driving_order, unbounded_dimensions
from ...memory.regions import refuse_box, whole_region
from .one_thread import POLICY, emit_issue, issuers, not_negative, of_thread
from .options import Policy, checked_options, policy_of
from .runs import UNIT, ArrayRegion, found, has_aligned_runs, has_few_runs, in_bounds, runs_of, whole_units
from .site import SM90, CopySite
from .tma import selected_variant as selected, variant as tma
from .tma.boxes import MAX_BOX, largest_divisor

LINE = 128  # bytes
MODES = tma.LOAD_MODES | {"tile": ".tile"}


@op("reads", attrs=("options", "partial"), traits=Traits(copy=True))
def prefetch_(src: Reads, options=None, partial=None):
    """Prefetch the region `src` of an array into L2. There is no completion to wait for."""


@prefetch_.infer
def _(g, src, options=None, partial=None):
    return None


@prefetch_.site
def _(g, call):
    made = g.definition(call.args[0])
    src = call.args[0].type
    return CopySite(src, src, made.args[1:], made.args[1:], g.scope.kind, g.scope.threads, call.attrs.get("partial"),
                    None, g.target, call.attrs.get("options") or {}, g)


@prefetch_.simulate
def _(m, call, src):
    if call.choice.lowering.simulate is not None:
        call.choice.lowering.simulate(m, call.choice.plan, call, src)


@prefetch_.emit
def _(e, call, src):
    call.choice.lowering.emit(e, call.choice.plan, call, src)


@builtin
def prefetch(g: Builder, region, cache=None):
    """Prefetch a region of an array, or patches or selected rows of one, into L2 (PTX ISA,
    ``cp.async.bulk.prefetch.L2``, ``cp.async.bulk.prefetch.tensor`` and ``prefetch.global.L2``).

    The scope prefetches the region once, without its parts out of bounds; there is no completion to wait for. `cache`
    is an L2 policy as in `copy_async`, which only prefetches by the copy engine accept.
    """
    if not isinstance(type_of(region), (Buffer, Region, Selected)) or type_of(region).scope != "global":
        raise g.error(f"prefetch takes a region of an array in global memory, not {describe(region)}")
    partial = g.scope.partial.name if g.scope.partial is not None else None
    if not isinstance(type_of(region), Selected):
        region = refuse_box(g, "prefetch", whole_region(g, region))
    if partial is None:
        g.require_uniform("this prefetch", *g.definitions[region].args[1:])
    known = names(prefetch_.variants)
    options = checked_options({"cache": cache, "variant": asked_variant(g, None, known)}, known)
    g.call(prefetch_, region, options=options, partial=partial)


# -- variants ----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Runs:
    """`chunks` prefetches of `chunk_bytes` bytes each; `places` are the coordinates of their starts in the region."""

    chunk_bytes: int
    chunks: int
    places: tuple[tuple[int, ...], ...]
    policy: Policy | None
    each_thread: bool

    @property
    def instructions(self) -> int:
        return self.chunks


def _plan_runs(site: CopySite) -> Runs:
    runs = result_of(runs_of(site))
    places = tuple(at for at, _ in runs.places(len(site.shape)))
    return Runs(runs.elements * site.itemsize, runs.count, places, policy_of(site.options), site.partial is not None)


def _emit_runs(e, plan: Runs, call, src):
    def issue():
        side = ArrayRegion(e, src)
        for at in plan.places:
            e.bulk.prefetch(side.place(at)[0], plan.chunk_bytes, policy=plan.policy)

    emit_issue(e, plan.each_thread, issue)


def engine_site(site: CopySite) -> CopySite:
    """The site for the planner of tensor copies: a load to an imaginary packed buffer with the dimensions in
    the array's order."""
    def make_site() -> CopySite:
        extents = site.src.extents
        if isinstance(site.src, Selected):
            along = isinstance(site.src, Patches) and site.src.window.along
            layout = in_columns(*extents, site.src.dtype, along)
        else:
            layout = gapless_layout(site)
        buffer = Buffer(site.src.dtype, extents, "shared", layout)
        return replace(site, dst=Region(buffer, extents, tuple(range(len(extents)))),
                       dst_starts=tuple(Const(0, int32) for _ in extents))
    return site.memoize("engine", make_site)


def gapless_layout(site: CopySite) -> TileLayout:
    """A gapless layout of the region's elements in the order of the array's memory."""
    extents, step = site.src.extents, 1
    strides = [0] * len(extents)
    for k in reversed(driving_order(site)):
        d = site.dims(site.src)[k]
        strides[d], step = step, step * extents[d]
    return TileLayout.strided(extents, strides)


def in_columns(rows: int, columns: int, dtype, swizzled: bool) -> TileLayout:
    """A layout by blocks of columns, each at most as wide as a box. `swizzled` (for maps of walks along w) gives it
    the widest swizzle that fits the columns."""
    mode = next((m for m in (3, 2, 1) if columns * dtype.bits % (128 << m) == 0), 0) if swizzled else 0
    width = (16 << mode) // dtype.nbytes if mode else largest_divisor(columns, MAX_BOX)
    swizzle = Swizzle((16 // dtype.nbytes).bit_length() - 1, mode, 3) if mode else None
    return TileLayout([(rows, width, axis.m), (columns // width, rows * width, axis.m), (width, 1, axis.m)],
                      swizzle=swizzle)


def _one_run(site: CopySite) -> bool | str:
    return runs_of(site).count == 1 or isinstance(tma.boxes(engine_site(site)), str) or f"{runs_of(site).count} runs"


def _plan_boxes(site: CopySite) -> tma.Plan:
    return (selected.plan if isinstance(site.src, Selected) else tma.plan)(engine_site(site))


def _emit_boxes(e, plan: tma.Plan, call, src):
    def issue():
        for coordinates, _ in plan.issues:
            e.tma.prefetch(plan.tensor_map, plan.coordinates(coordinates, src.starts, e.exactly_divided),
                           mode=MODES[plan.mode], offsets=plan.offsets(src.starts), policy=plan.policy)

    emit_issue(e, plan.each_thread, issue)


def _simulate_boxes(m, plan: tma.Plan, call, src):
    tensor_map = m.tensor_map(src.buffer, plan.tensor_map, plan.tensor_map.base_offset)
    for thread, positions in issuers(m, plan.each_thread):
        starts = [of_thread(s, thread, positions) for s in src.starts]
        for coordinates, _ in plan.issues:
            m.tma.prefetch(tensor_map, plan.coordinates(coordinates, starts), plan.mode, plan.offsets(starts))


@dataclass(frozen=True)
class Lines:
    """One prefetch for every `step` elements along the region's dimension `order[-1]`,
    divided among the threads of the scope.

    `shape` is the number of prefetches along each dimension, in `order`;
    `bounds` are the dimensions with a bounds check.
    """

    step: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    threads: int
    bounds: tuple[int, ...]

    @property
    def lines(self) -> int:
        return prod(self.shape)

    @property
    def instructions(self) -> int:
        return -(-self.lines // self.threads)


def _plan_lines(site: CopySite) -> Lines:
    order = driving_order(site)
    shape = [site.shape[k] for k in order]
    step = 1
    if order:
        stride = strides_of(site.src.buffer)[site.dims(site.src)[order[-1]]]
        step = max(LINE // site.itemsize, 1) if isinstance(stride, int) and stride == 1 else 1
        shape[-1] = -(-shape[-1] // step)
    return Lines(step, tuple(shape), order, 1 if site.partial is not None else site.threads,
                 unbounded_dimensions(site.src, site.src_starts))


def _emit_lines(e, plan: Lines, call, src):
    """Prefetch the line that holds the first of each `step` elements, if that element is in bounds."""
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
        e.bulk.prefetch_line(pointer, e.all_of([t for t in (active, inside) if t is not None]))


def _of_the_copy(need: Need) -> Need:
    """A need of copies by tensor maps, as a need of the prefetch: tested for the copy to an imaginary buffer."""
    return Need(need.words, lambda s: need.test(engine_site(s)), need.gate)


BULK_ENGINE = Need(SM90.words, SM90.test, gate=True)
NOT_EMPTY = Need("at least one element", lambda s: s.elements > 0, gate=True)

RUNS = Variant("bulk", plan=_plan_runs, emit=_emit_runs, doc=__doc__, place="region", needs=(
    BULK_ENGINE,
    NOT_EMPTY,
    Need("contiguous runs", found, gate=True),
    Need(f"runs of a multiple of {UNIT} bytes", whole_units, gate=True),
    Need("at most 256 such runs", has_few_runs, gate=True),
    Need("a single run, where a tensor map can describe several", _one_run),
    Need("runs that begin at multiples of 16 bytes", has_aligned_runs),
    Need("a region that is provably inside the array", in_bounds),
    POLICY,
))
BOXES = Variant("tma", place="region", plan=_plan_boxes, emit=_emit_boxes, simulate=_simulate_boxes, doc=__doc__,
                needs=(
    BULK_ENGINE,
    NOT_EMPTY,
    _of_the_copy(tma.CONTIGUOUS),
    _of_the_copy(tma.BOUNDS),
    _of_the_copy(tma.STRIDES),
    _of_the_copy(tma.EXTENTS),
    _of_the_copy(tma.BASE),
    _of_the_copy(tma.COORDINATE),
    _of_the_copy(tma.BOXES),
    Need("starts that are provably at least 0", not_negative),
    POLICY,
))
LINES = Variant("lines", plan=_plan_lines, emit=_emit_lines, doc=__doc__, place="region", needs=(
    Need("at least one element", lambda s: s.elements > 0),
    Need("no cache option", lambda s: s.options.get("cache") is None or f"cache={s.options['cache']!r}"),
))
PATCHES = Variant("tma", place="patches", plan=_plan_boxes, emit=_emit_boxes, simulate=_simulate_boxes, doc=__doc__,
                needs=(
    BULK_ENGINE,
    NOT_EMPTY,
    _of_the_copy(selected.WALK),
    Need("columns of at least 32 bytes for a walk along w", lambda s: selected.swizzled_along(engine_site(s))),
    selected.FILTER,
    _of_the_copy(tma.CONTIGUOUS),
    _of_the_copy(tma.BOUNDS),
    _of_the_copy(tma.STRIDES),
    _of_the_copy(tma.EXTENTS),
    _of_the_copy(tma.BASE),
    _of_the_copy(tma.COORDINATE),
    _of_the_copy(tma.BOXES),
    POLICY,
))
ROWS = Variant("tma", place="rows", plan=_plan_boxes, emit=_emit_boxes, simulate=_simulate_boxes, doc=__doc__, needs=(
    BULK_ENGINE,
    NOT_EMPTY,
    Need("sm_100a or sm_103a for rows", lambda s: s.target in tma.PAIRED or s.target, gate=True),
    _of_the_copy(tma.CONTIGUOUS),
    _of_the_copy(tma.BOUNDS),
    _of_the_copy(tma.STRIDES),
    _of_the_copy(tma.EXTENTS),
    _of_the_copy(tma.BASE),
    _of_the_copy(tma.COORDINATE),
    _of_the_copy(tma.BOXES),
    POLICY,
))
prefetch_.variants = (RUNS, BOXES, LINES, PATCHES, ROWS)
