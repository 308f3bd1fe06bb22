"""ldgsts: every thread of the scope issues ``cp.async`` of 16, 8 or 4 bytes, global to shared (SASS LDGSTS).

The region is cut into vectors along the global side's contiguous dimension; consecutive threads take consecutive
vectors, so that a warp reads whole lines. PTX ISA, "Data Movement and Conversion Instructions: cp.async".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dispatch import Need, Variant
from ...ir.graph import Const
from .site import CopySite


@dataclass(frozen=True)
class Plan:
    """`threads` threads issue `outer` copies of `vec_bytes` each; step f of thread t is vector ``f * threads + t``.

    `shape` are the extents in vectors, outermost first, the vectored dimension last (`order` names the region's
    dimensions in that order); `ragged` when the last step has fewer vectors than threads; `checked` are the global
    dimensions whose bounds are tested.
    """

    vec_bytes: int
    vec: int
    outer: int
    threads: int
    order: tuple[int, ...]
    shape: tuple[int, ...]
    ragged: bool
    checked: tuple[int, ...]
    cache: str

    def coordinates(self, vector) -> list:
        """Element coordinates of vector number `vector` in the region's own order of (non-unit) dimensions."""
        at = [0] * len(self.order)
        rest = vector
        for n, d in reversed(list(zip(self.shape, self.order))):
            at[d] = rest % n if d != self.order[0] else rest
            rest = rest // n
        if self.order:
            at[self.order[-1]] = at[self.order[-1]] * self.vec
        return at


def contiguous_dim(site: CopySite) -> int | None:
    """The position in `site.shape` of the global side's dimension of stride 1, or None."""
    dims = site.dims(site.src)
    for k in reversed(range(len(dims))):
        if site.src.buffer.strides[dims[k]] == 1:
            return k
    return None


def vector_elements(site: CopySite) -> int:
    """The most elements of a vector for which both sides are provably contiguous, aligned and jointly in bounds."""
    k = contiguous_dim(site)
    widths = [n // site.itemsize for n in (16, 8, 4) if n >= site.itemsize]
    for vec in widths:
        if vec == 1 or (k is not None and _fits(site, k, vec)):
            return vec
    return 0


def _fits(site: CopySite, k: int, vec: int) -> bool:
    g, src, dst = site.g, site.src, site.dst
    d, s = site.dims(src)[k], site.dims(dst)[k]
    if site.shape[k] % vec or g.divisor(site.src_starts[d]) % vec:
        return False
    if not (g.facts.ask("aligned", src.buffer.arg, vec * site.itemsize)
            and all(n % vec == 0 if isinstance(n, int) else g.facts.ask("stride_multiple", n.arg, n.dim, vec)
                    for i, n in enumerate(src.buffer.strides) if i != d)):
        return False
    if d in _checked(site):
        size = src.buffer.shape[d]
        if not (size % vec == 0 if isinstance(size, int) else g.facts.ask("size_multiple", size.arg, size.dim, vec)):
            return False
    from ..access import _shared_aligned
    return _shared_aligned(g, dst, site.dst_starts, s, vec)


def _checked(site: CopySite) -> tuple[int, ...]:
    src = site.src
    return tuple(d for d, (size, start) in enumerate(zip(src.buffer.shape, site.src_starts))
                 if not (isinstance(size, int) and isinstance(start, Const) and 0 <= start.value <= size - src.extents[d]))


def plan(site: CopySite) -> Plan:
    vec = vector_elements(site)
    k = contiguous_dim(site)
    order = tuple(i for i in range(len(site.shape)) if i != k) + ((k,) if k is not None else ())
    shape = tuple(site.shape[i] for i in order)
    if shape:
        shape = shape[:-1] + (shape[-1] // vec,)
    vectors = site.elements // vec
    return Plan(vec * site.itemsize, vec, -(-vectors // site.threads), site.threads, order, shape, vectors % site.threads != 0,
                _checked(site), "cg" if vec * site.itemsize == 16 and site.options.get("cache") in (None, "cg") else "ca")


def _places(plan: Plan, source, target, vector) -> tuple[list, list]:
    """Global and shared coordinates of a vector's first element, starts included."""
    at = plan.coordinates(vector)
    sides = []
    for region in (source, target):
        coordinates, k = list(region.starts), 0
        for d, n in enumerate(region.type.extents):
            if n != 1:
                coordinates[d] = coordinates[d] + at[k]
                k += 1
        sides.append(coordinates)
    return sides[0], sides[1]


def simulate(m, plan: Plan, call, dst, src, mbar):
    vector = np.arange(plan.outer)[None, None, :] * plan.threads + np.arange(plan.threads)[None, :, None]
    total = int(np.prod(plan.shape)) if plan.shape else 1
    active = vector < total
    starts = [s[:, :1].astype(np.int64)[:, :, None] for s in src.starts], [s[:, :1].astype(np.int64)[:, :, None] for s in dst.starts]
    at = plan.coordinates(np.minimum(vector, total - 1))
    where = []
    for region, start in ((src, starts[0]), (dst, starts[1])):
        coordinates, k = list(start), 0
        for d, n in enumerate(region.type.extents):
            if n != 1:
                coordinates[d] = coordinates[d] + at[k]
                k += 1
        where.append(coordinates)
    inside = active
    for d in plan.checked:
        size = m.resolve(src.type.buffer.shape[d])
        inside = inside & (where[0][d] >= 0) & (where[0][d] < size)
    nbytes = src.type.dtype.nbytes
    source = sum(c * m.resolve(s) for c, s in zip(where[0], src.type.buffer.strides)) * nbytes
    target = dst.type.buffer.layout.offset_of(*where[1], shape=dst.type.buffer.shape) * nbytes
    return m.cp_async(dst.buffer, target, src.buffer, source, plan.vec_bytes, valid=inside, active=active)


def emit(e, plan: Plan, call, dst, src, mbar):
    thread = e.thread_id()
    total = 1
    for n in plan.shape:
        total *= n
    for step in range(plan.outer):
        vector = thread + step * plan.threads
        source, target = _places(plan, src, dst, vector)
        pointer = e.offset_pointer(src.buffer.pointer, e.sum64(e.mul64(c, s) for c, s in zip(source, src.buffer.strides)), src.type.dtype.nbytes)
        address, offset = e.shared_address(dst.buffer, target)
        inside = e.all_of([e.in_bounds(source[d], src.buffer.sizes[d]) for d in plan.checked])
        active = e.in_bounds(vector, total) if plan.ragged and step == plan.outer - 1 else None
        e.cp_async(address, offset, pointer, plan.vec_bytes, plan.cache, inside, active)


VARIANT = Variant("ldgsts", plan=plan, emit=emit, simulate=simulate, doc=__doc__, needs=(
    Need("a global source and a shared destination", lambda s: s.scopes == ("global", "shared") or f"{s.scopes[0]} to {s.scopes[1]}", gate=True),
    Need("no mbar, since cp.async completes by groups", lambda s: s.mbar is None),
    Need("all threads of the scope", lambda s: not s.partial),
    Need("elements of at least one byte in copies of 4, 8 or 16 bytes that are provably aligned and in bounds together",
         lambda s: vector_elements(s) > 0 or f"elements of {s.itemsize} bytes, and no run of 4 bytes is provable"),
))
