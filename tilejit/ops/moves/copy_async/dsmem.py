"""dsmem: one thread copies shared memory to the shared memory of another CTA of its cluster.

``mapa`` gives the addresses of the destination and of its barrier in the other CTA, and
``cp.async.bulk.shared::cluster`` copies each run of bytes that is contiguous on both sides. The copy completes by
bytes on the destination CTA's instance of the barrier: the hardware signals that one even if the barrier of another
CTA is named. Regions with the same swizzle, at the same position within its period, are copied by whole rows of the
swizzle atom. PTX ISA, "Data Movement and Conversion Instructions: mapa", "cp.async.bulk" and "cp.reduce.async.bulk".
"""

from __future__ import annotations

from dataclasses import dataclass

from ....dispatch import Need, Variant, result_of
from ....types import layout_of
from .one_thread import COUNTED, ONE_THREAD, emit_issue, issuers, region_address, region_bytes
from .reductions import TYPES, reduction
from .runs import Digit, found, has_aligned_runs, has_few_runs, runs_of, whole_units
from .site import SM90, CopySite


@dataclass(frozen=True)
class Plan:
    """`chunks` copies of `chunk_bytes` bytes each.

    `places` are their byte offsets from the first elements of the regions: (destination, source). `reduce` is the
    operator and type of a reduction.
    """

    chunk_bytes: int
    chunks: int
    places: tuple[tuple[int, int], ...]
    reduce: tuple[str, str] | None = None
    each_thread: bool = False

    completion = "bytes"

    @property
    def instructions(self) -> int:
        return self.chunks


def _own_barrier(s: CopySite) -> bool | str:
    if s.planning:
        return True
    if s.mbar is None:
        return "no mbar="
    return (not s.mbar.type.peer
            or "a peer's barrier: name the CTA's own, whose instance in the other CTA the copy finds")


def _keeps_place(d: Digit, period: int, block: int) -> bool:
    """Whether each step of a loop over runs starts at a row of the swizzle's atom, at the same position in the
    swizzle's period on both sides."""
    to, of = d.steps
    assert isinstance(to, int) and isinstance(of, int)  # both are in shared memory
    return (to - of) % period == 0 and to % block == 0


def _swizzles(s: CopySite) -> bool | str:
    """Whether both sides have the same swizzle, and each run consists of whole rows of its atom,
    at equal positions in its period."""
    swizzles = [layout_of(r.buffer).swizzle for r in (s.dst, s.src)]
    one, other = (None if w is None or not w.swizzle_len else w for w in swizzles)
    if one != other:
        return f"{other or 'none'} at the source and {one or 'none'} at the destination"
    if one is None:
        return True
    runs, block, period = result_of(runs_of(s)), one.block, one.period
    if runs.elements % block:
        return f"runs of {runs.elements} elements, and a row of {one} has {block}"
    for at in runs.offsets:
        if at % block:
            return f"a run that begins inside of a row of {block} elements"
    to, of = runs.offsets
    if isinstance(to, int) and isinstance(of, int):
        apart = to - of
    else:
        apart = 0 if to % period == of % period == 0 else 1
    if apart % period or not all(_keeps_place(d, period, block) for d in runs.loops):
        return f"regions at different places in its period of {period} elements"
    return True


NEEDS = (
    Need("shared memory on both sides", lambda s: s.scopes == ("shared", "shared") or f"{s.scopes[0]} to {s.scopes[1]}",
         gate=True),
    Need("the shared memory of a peer as the destination, as buf.peer(rank) names it, and the CTA's own as the source",
         lambda s: (s.dst.buffer.peer and not s.src.buffer.peer)
         or ("a peer's source" if s.src.buffer.peer else "no peer="), gate=True),
    SM90,
    ONE_THREAD,
    Need("mbar=, the CTA's own instance of the barrier that the destination waits on", _own_barrier),
    COUNTED,
    Need("layouts that divide the region at the same places", found, gate=True),
    Need("runs of a multiple of 16 bytes that are contiguous on both sides", whole_units, gate=True),
    Need("at most 256 such runs", has_few_runs, gate=True),
    Need("runs that begin at multiples of 16 bytes on both sides", has_aligned_runs),
    Need("the same swizzle on both sides, and runs of whole rows of its atoms at the same places in it", _swizzles),
    Need("no cache option, since the copy passes no cache",
         lambda s: s.options.get("cache") is None or f"cache={s.options['cache']!r}"),
    Need("no multicast=", lambda s: not s.options.get("multicast")),
    Need("a reduction that the hardware has", reduction),
)


def plan(site: CopySite) -> Plan:
    runs, nbytes = result_of(runs_of(site)), site.itemsize
    places = tuple((to * nbytes, of * nbytes) for _, (to, of) in runs.places(len(site.shape)))
    kind = site.options.get("reduce")
    reduce = (kind, TYPES["shared", kind][site.src.dtype.name]) if kind else None
    return Plan(runs.elements * nbytes, runs.count, places, reduce, site.partial is not None)


def emit(e, plan: Plan, call, dst, src, mbar):
    def issue():
        rank = dst.buffer.rank
        to, first = region_address(e, dst)
        source, begin = region_address(e, src)
        target = e.bulk.map_to_rank(to, first, rank)
        barrier = e.bulk.peer_barrier(mbar, rank).address
        for there, here in plan.places:
            e.bulk.to_peer((target, there), (source, begin + here), plan.chunk_bytes, barrier, reduce=plan.reduce)

    emit_issue(e, plan.each_thread, issue)


def simulate(m, plan: Plan, call, dst, src, mbar):
    for thread, positions in issuers(m, plan.each_thread):
        to, of = (region_bytes(m, r, thread, positions) for r in (dst, src))
        if to is None or of is None:
            continue
        for there, here in plan.places:
            m.bulk.copy(dst.buffer, to + there, src.buffer, of + here, plan.chunk_bytes, mbar,
                        kind=plan.reduce and plan.reduce[0], positions=positions)


VARIANT = Variant("dsmem", plan=plan, emit=emit, simulate=simulate, doc=__doc__, place="region", same_dtype=True,
                  takes=("multicast", "reduce"), needs=NEEDS)
