"""Copies by vector loads and stores through registers.

This is how the synchronous copy works, and copy_async where no other variant is possible.
"""

from __future__ import annotations

import numpy as np

from ...dispatch import Need
from ...dtypes import int8, int16, int32
from .partition import Partition, Side, make_partition

WIDTHS = (16, 8, 4, 2, 1)
IN_FLIGHT = 8     # vectors that a thread loads before it stores the first of them
UNROLLED = 32     # up to so many steps are unrolled; more become a loop


def partition(site) -> Partition:
    """The partition with the widest vectors that both sides allow. Single elements are always possible."""
    return site.memoize("copy", lambda: make_partition(site, [n for n in WIDTHS if n >= site.itemsize]))


def scalars(site) -> Partition:
    made = make_partition(site, [site.itemsize])
    assert made is not None
    return made


def simulate(m, plan: Partition, dst, src, fill=None):
    """Simulate the copy. Each element is read and written by the thread that moves it."""
    values = m.read(src.buffer, None, other=float("nan") if fill == "nan" else 0, owner=plan.owners(src.type.shape),
                    region=src)
    m.write(dst.buffer, None, values.reshape(values.shape[0], *dst.type.shape), owner=plan.owners(dst.type.shape),
            region=dst)


def emit(e, plan: Partition, dst, src, fill=None):
    """Emit groups of loads, each followed by the group's stores, so that several loads are in flight at once."""
    thread = e.thread_id() if plan.threads > 1 else 0
    source, target = Side(e, plan, src, plan.src_checked, thread), Side(e, plan, dst, plan.dst_checked, thread)
    unit, count = {16: (int32, 4), 8: (int32, 2), 4: (int32, 1), 2: (int16, 1), 1: (int8, 1)}[plan.vec_bytes]
    other = [e.const(fill_bits(src.type.dtype, unit.bits, fill), unit)] * count

    def move(firsts):
        stores = []
        for first, last in firsts:
            active = e.as_value(thread + first, int32).is_below(plan.vectors) if last and plan.ragged else None
            address, offset, inside = source.place(first)
            guard = e.all_of([t for t in (active, inside) if t is not None])
            values = e.vector_load(source.space, address, offset, unit, other, guard, None)
            address, offset, inside = target.place(first)
            stores.append((address, offset, values, e.all_of([t for t in (active, inside) if t is not None])))
        for address, offset, values, guard in stores:
            e.vector_store(target.space, address, offset, unit, values, guard, None)

    whole = plan.outer - 1 if plan.ragged else plan.outer  # steps in which every thread has a vector
    groups, rest = divmod(whole, IN_FLIGHT)
    if plan.outer <= UNROLLED:
        groups, rest = 0, whole
    if groups:
        stride = plan.threads * IN_FLIGHT
        e.control.emit_counted_loop(
            groups, lambda i: move([(i * stride + k * plan.threads, False) for k in range(IN_FLIGHT)]))
    steps = [(f * plan.threads, f >= whole) for f in range(whole - rest, plan.outer)]
    for n in range(0, len(steps), IN_FLIGHT):
        move(steps[n:n + IN_FLIGHT])


def fill_bits(dtype, bits: int, fill) -> int:
    """The value of out-of-bounds elements, repeated over `bits` bits: zeros, or the dtype's NaN."""
    if fill != "nan":
        return 0
    pattern = np.asarray(float("nan")).astype(dtype.np).tobytes() * 8
    return int.from_bytes(pattern[:bits // 8], "little", signed=True)


MOVABLE = Need("global or shared memory on both sides",
               lambda s: set(s.scopes) <= {"global", "shared"} or f"{s.scopes[0]} to {s.scopes[1]}", gate=True)
NOT_EMPTY = Need("at least one element", lambda s: s.elements > 0, gate=True)
ALL_THREADS = Need("all threads of the scope", lambda s: not s.partial or s.partial_reason)
