"""``copy``: the synchronous copy between global and shared memory, through registers."""

from __future__ import annotations

from ..dispatch import Need, Variant
from ..ir.builder import Builder
from ..ir.builtin import builtin
from ..ir.op import op
from ..types import int8, int16, int32
from .copy_async.options import checked_options
from .copy_async.site import CopySite
from .partition import Partition, Side, make_partition
from .sides import checked_sides

WIDTHS = (16, 8, 4, 2, 1)
IN_FLIGHT = 8     # vectors that a thread loads before it stores the first of them
UNROLLED = 32     # steps written out; more of them become a loop


@op("writes", attrs=("options",))
def copy_(dst, src, options):
    """Move the elements of the region `src` to the region `dst`; the threads of the scope share the work."""


@copy_.infer
def _(g, dst, src, options):
    return None


@copy_.site
def _(g, call):
    return CopySite.of_call(g, call)


@copy_.simulate
def _(m, call, dst, src):
    return call.choice.lowering.simulate(m, call.choice.plan, call, dst, src)


@copy_.emit
def _(e, call, dst, src):
    call.choice.lowering.emit(e, call.choice.plan, call, dst, src)


@builtin
def copy(g: Builder, dst, src, variant=None):
    """Copy the region `src` to the region `dst`, between any two of global and shared memory.

    The threads of the scope share the elements; nothing is waited for, and nothing synchronises the threads (``sync()``
    does, where others read what was written). Both sides have one dtype and equal extents other than 1. Reads out of
    bounds give 0, writes out of bounds are dropped, to the element. `variant` names the path.
    """
    dst, src = checked_sides(g, "copy", dst, src)
    names = tuple(v.name for v in copy_.variants)
    g.call(copy_, dst, src, options=checked_options({"variant": variant or g.expected_variant}, names))


# -- vectors through registers -----------------------------------------------------------------------------------------

def partition(site: CopySite) -> Partition:
    """The widest vectors that are right on both sides; single elements always are."""
    return site.searched("copy", lambda: make_partition(site, [n for n in WIDTHS if n >= site.itemsize]))


def scalars(site: CopySite) -> Partition:
    return make_partition(site, [site.itemsize])


def simulate(m, plan: Partition, call, dst, src, fill=0):
    """Every element is read and written by the thread that moves it."""
    values = m.read(src.buffer, None, other=fill, owner=plan.owners(src.type.shape), region=src)
    m.write(dst.buffer, None, values.reshape(values.shape[0], *dst.type.shape), owner=plan.owners(dst.type.shape), region=dst)


def emit(e, plan: Partition, call, dst, src, fill=None):
    """Groups of loads, each followed by its stores, so that several loads are on their way at once."""
    thread = e.thread_id() if plan.threads > 1 else 0
    source, target = Side(e, src, plan.src_checked), Side(e, dst, plan.dst_checked)
    unit, count = {16: (int32, 4), 8: (int32, 2), 4: (int32, 1), 2: (int16, 1), 1: (int8, 1)}[plan.vec_bytes]
    other = [e.const(fill_bits(src.type.dtype, unit.bits, fill), unit)] * count

    def move(firsts):
        stores = []
        for first, last in firsts:
            at = plan.coordinates(thread, first)
            active = e.as_value(thread + first, int32).below(plan.vectors) if last and plan.ragged else None
            address, offset, inside = source.place(at)
            guard = e.all_of([t for t in (active, inside) if t is not None])
            values = e.vector_load(source.space, address, offset, unit, other, guard, None)
            address, offset, inside = target.place(at)
            stores.append((address, offset, values, e.all_of([t for t in (active, inside) if t is not None])))
        for address, offset, values, guard in stores:
            e.vector_store(target.space, address, offset, unit, values, guard, None)

    whole = plan.outer - 1 if plan.ragged else plan.outer  # steps in which every thread has a vector
    groups, rest = divmod(whole, IN_FLIGHT)
    if plan.outer <= UNROLLED:
        groups, rest = 0, whole
    if groups:
        stride = plan.threads * IN_FLIGHT
        e.counted(groups, lambda i: move([(i * stride + k * plan.threads, False) for k in range(IN_FLIGHT)]))
    steps = [(f * plan.threads, f >= whole) for f in range(whole - rest, plan.outer)]
    for n in range(0, len(steps), IN_FLIGHT):
        move(steps[n:n + IN_FLIGHT])


def fill_bits(dtype, bits: int, fill) -> int:
    """The fill of a ragged read, repeated over `bits`: zeros, or the dtype's NaN."""
    if fill != "nan":
        return 0
    import numpy as np
    pattern = np.asarray(float("nan")).astype(dtype.np).tobytes() * 8
    return int.from_bytes(pattern[:bits // 8], "little", signed=True)


MOVABLE = ("global", "shared")

_NEEDS = (
    Need("global or shared memory on both sides", lambda s: set(s.scopes) <= set(MOVABLE) or f"{s.scopes[0]} to {s.scopes[1]}", gate=True),
    Need("at least one element", lambda s: s.elements > 0, gate=True),
)

VECTORISED = Variant("vectorised", plan=partition, emit=emit, simulate=simulate, doc=__doc__, needs=_NEEDS + (
    Need("runs of two or more elements that are provably contiguous, aligned and in bounds together on both sides",
         lambda s: partition(s).vec > 1 or "single elements only"),
))
SCALAR = Variant("scalar", plan=scalars, emit=emit, simulate=simulate, doc=__doc__, needs=_NEEDS)

copy_.variants = VARIANTS = (VECTORISED, SCALAR)

__all__ = ["VARIANTS", "copy", "copy_"]
