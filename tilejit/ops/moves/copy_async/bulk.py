"""bulk: one thread copies contiguous bytes between global and shared memory, without a tensor map.

A region may be several runs, each contiguous in both memories.

``cp.async.bulk`` copies a multiple of 16 bytes between addresses that are multiples of 16, and does not clip. A load
completes by bytes on the call's barrier (with `multicast`, on the barrier of every CTA in the mask), a store or
reduction by a bulk group of the thread. PTX ISA, "Data Movement and Conversion Instructions: Bulk copy",
``cp.async.bulk`` and ``cp.reduce.async.bulk``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....dispatch import Need, Variant, result_of
from ....types import layout_of
from .one_thread import (
    COMPLETION,
    COUNTED,
    GLOBAL_AND_SHARED,
    MULTICAST,
    ONE_THREAD,
    POLICY,
    STORE,
    emit_issue,
    issuers,
    of_thread,
    region_address,
    region_bytes,
)
from .options import Policy, policy_of
from .reductions import TYPES, reduction
from .runs import ArrayRegion, found, has_aligned_runs, has_few_runs, in_bounds, runs_of, whole_units
from .site import SM90, CopySite


@dataclass(frozen=True)
class Plan:
    """`chunks` copies of `chunk_bytes` bytes each.

    `places` are their starts: (coordinates in the region, byte offset in shared memory from the region's first
    element). `reduce` is the operator and type of a reduction.
    """

    chunk_bytes: int
    chunks: int
    places: tuple[tuple[tuple[int, ...], int], ...]
    store: bool
    policy: Policy | None = None
    reduce: tuple[str, str] | None = None
    each_thread: bool = False

    @property
    def instructions(self) -> int:
        return self.chunks

    @property
    def completion(self) -> str:
        """How the copy completes: a store by a 'bulk' group of the thread, a load by 'bytes' on a barrier."""
        return "bulk" if self.store else "bytes"


def _is_own_memory(s: CopySite) -> bool | str:
    return not s.shared_side.buffer.peer or "the shared memory of a peer"


def has_no_swizzle(s: CopySite) -> bool | str:
    swizzle = layout_of(s.shared_side.buffer).swizzle
    return swizzle is None or not swizzle.swizzle_len or f"{swizzle}"


NEEDS = (
    GLOBAL_AND_SHARED,
    Need("the CTA's own shared memory", _is_own_memory),
    SM90,
    ONE_THREAD,
    COMPLETION,
    COUNTED,
    Need("a shared layout without a swizzle", has_no_swizzle),
    Need("layouts that divide the region at the same places", found, gate=True),
    Need("runs of a multiple of 16 bytes that are contiguous in both memories", whole_units, gate=True),
    Need("at most 256 such runs", has_few_runs, gate=True),
    Need("runs that begin at multiples of 16 bytes in both memories", has_aligned_runs),
    Need("a region that is provably inside the array, since nothing is clipped", in_bounds),
    POLICY,
    MULTICAST,
    Need("a reduction that the hardware has, into global memory",
         lambda s: s.options.get("reduce") is None or (reduction(s) if s.scopes == STORE else "reduce= on a load")),
)


def plan(site: CopySite) -> Plan:
    runs, nbytes, store = result_of(runs_of(site)), site.itemsize, site.scopes == STORE
    shared = 1 if store else 0
    places = tuple((at, steps[shared] * nbytes) for at, steps in runs.places(len(site.shape)))
    kind = site.options.get("reduce")
    reduce = (kind, TYPES["global", kind][site.src.dtype.name]) if kind else None
    return Plan(runs.elements * nbytes, runs.count, places, store, policy_of(site.options), reduce,
                site.partial is not None)


def emit(e, plan: Plan, call, dst, src, mbar, mask=None):
    array, shared = (dst, src) if plan.store else (src, dst)

    def issue():
        address, first = region_address(e, shared)
        side = ArrayRegion(e, array)
        for at, step in plan.places:
            pointer, _ = side.place(at)
            place = address, first + step
            if plan.store:
                e.bulk.store(pointer, place, plan.chunk_bytes, policy=plan.policy, reduce=plan.reduce)
            else:
                e.bulk.load(place, pointer, plan.chunk_bytes, mbar, mask=mask, policy=plan.policy)

    emit_issue(e, plan.each_thread, issue)


def simulate(m, plan: Plan, call, dst, src, mbar, mask=None):
    array, shared = (dst, src) if plan.store else (src, dst)
    for thread, positions in issuers(m, plan.each_thread):
        if (origin := region_bytes(m, shared, thread, positions)) is None:
            continue
        starts = [of_thread(s, thread, positions) for s in array.starts]
        for at, step in plan.places:
            own = iter(at)
            inner = [next(own) if n != 1 else 0 for n in array.type.extents]
            pointer = (sum((s + c) * k for s, c, k in zip(starts, inner, array.buffer.array_strides))
                       * array.type.dtype.nbytes)
            if plan.store:
                m.bulk.copy(dst.buffer, pointer, src.buffer, origin + step, plan.chunk_bytes,
                            kind=plan.reduce and plan.reduce[0], positions=positions)
            else:
                m.bulk.copy(dst.buffer, origin + step, src.buffer, pointer, plan.chunk_bytes, mbar,
                            multicast=None if mask is None else of_thread(np.asarray(mask), thread, positions),
                            positions=positions)


VARIANT = Variant("bulk", plan=plan, emit=emit, simulate=simulate, doc=__doc__, place="region", same_dtype=True,
                  takes=("multicast", "reduce"), needs=NEEDS)
