"""ldgsts: every thread of the scope issues ``cp.async`` of 16, 8 or 4 bytes, global to shared (SASS LDGSTS).

``.cg``, which bypasses L1, exists only for 16 bytes. Elements out of bounds are filled with zero: the source size is
0, so nothing is read. PTX ISA, "Data Movement and Conversion Instructions: cp.async".
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ....dispatch import Need, Variant
from ...memory.partition import Partition, Side, make_partition
from .options import policy_of
from .site import OWN_MEMORY, CopySite

WIDTHS = (16, 8, 4)


@dataclass(frozen=True)
class Plan(Partition):
    """A partition of which each vector is one ``cp.async`` with the cache operator `cache`."""

    cache: str = "ca"

    completion = "group"


def partition(site: CopySite) -> Partition | None:
    """Vectors of 16 bytes where cache="cg" asks for them and they fit, even if threads idle; otherwise what
    `make_partition` prefers."""
    widest = WIDTHS[:1] if site.options.get("cache") == "cg" else ()
    return site.memoize("ldgsts", lambda: make_partition(site, widest) or make_partition(site, WIDTHS, even=True))


def _partition(site: CopySite) -> Partition:
    """The partition of a site, which must have one."""
    made = partition(site)
    assert made is not None
    return made


def plan(site: CopySite) -> Plan:
    made = _partition(site)
    past_l1 = made.vec_bytes == 16 and site.options.get("cache") != "ca"
    return Plan(**{f.name: getattr(made, f.name) for f in fields(Partition)}, cache="cg" if past_l1 else "ca")


def simulate(m, plan: Plan, call, dst, src, mbar):
    vector = np.arange(plan.threads)[None, :, None] + np.arange(plan.outer)[None, None, :] * plan.threads
    active = vector < plan.vectors
    vector = np.minimum(vector, plan.vectors - 1)
    at = plan.coordinates(vector % plan.threads, vector // plan.threads * plan.threads)
    source, target = (coordinates(region, at) for region in (src, dst))
    inside = active
    for d in plan.src_checked:
        inside = inside & m.global_memory.inside(src.buffer, d, source[d])
    nbytes = src.type.dtype.nbytes
    pointer = sum(c * s for c, s in zip(source, src.buffer.array_strides)) * nbytes
    address = dst.type.buffer.layout.offset_of(*target, shape=dst.type.buffer.shape) * nbytes
    if m.shared.in_buffer(dst):
        m.engines.cp_async(dst.buffer, address, src.buffer, pointer, plan.vec_bytes, valid=inside, active=active)


def coordinates(region, at: list) -> list:
    """The buffer coordinates [B or 1, threads, steps] of vectors at `at`, coordinates of a simulated region (B:
    CTAs of the batch)."""
    own = iter(at)
    starts = [s[:, :1].astype(np.int64)[:, :, None] for s in region.starts]
    return [start + next(own) if n != 1 else start for start, n in zip(starts, region.type.extents)]


def emit(e, plan: Plan, call, dst, src, mbar):
    options = call.attrs["options"]
    thread = e.thread_id()
    source, target = Side(e, plan, src, plan.src_checked, thread), Side(e, plan, dst, (), thread)
    for step in range(plan.outer):
        first = step * plan.threads
        pointer, _, inside = source.place(first)
        address, offset, _ = target.place(first)
        active = e.in_bounds(thread + first, plan.vectors) if plan.ragged and step == plan.outer - 1 else None
        e.cp_async(address, offset, pointer, plan.vec_bytes, plan.cache, inside, active,
                   prefetch=options.get("prefetch"), policy=policy_of(options))


VARIANT = Variant("ldgsts", plan=plan, emit=emit, simulate=simulate, doc=__doc__, place="region", same_dtype=True,
                  needs=(
    OWN_MEMORY,
    Need("a global source and a shared destination",
         lambda s: s.scopes == ("global", "shared") or f"{s.scopes[0]} to {s.scopes[1]}", gate=True),
    Need("no mbar, since cp.async completes by groups", lambda s: s.mbar is None),
    Need("all threads of the scope", lambda s: not s.partial or s.partial_reason),
    Need("elements of at least one byte in copies of 4, 8 or 16 bytes that are provably aligned and in bounds together",
         lambda s: partition(s) is not None or f"elements of {s.itemsize} bytes, and no run of 4 bytes is provable",
         gate=True),
    Need("zero as the fill", lambda s: s.options.get("fill") is None or not _partition(s).src_checked
         or "fill='nan', and the region may leave the array"),
    Need("16-byte copies for cache='cg'", lambda s: s.options.get("cache") != "cg" or _partition(s).vec_bytes == 16
         or f"copies of {_partition(s).vec_bytes} bytes"),
))
