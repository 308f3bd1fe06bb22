"""Ordering of operations on tensor memory: fences, waits and commits.

``tcgen05.ld`` and ``.st`` complete at a ``tcgen05.wait`` of the same warp; ``.mma``, ``.cp`` and ``.shift`` complete
when a ``tcgen05.commit`` arrives on an mbarrier. Operations of two threads are ordered by a synchronisation of these
threads with a fence on either side of it. PTX ISA, "Memory Consistency Model for 5th generation of TensorCore
operations".
"""

from __future__ import annotations

from math import prod

from ...ir.builder import Builder, describe, type_as, type_of
from ...ir.builtin import builtin
from ...ir.graph import Value
from ...ir.op import op
from ...ir.op_traits import Registers, Signals, Traits
from ...types import BarrierRef
from ..language.promotion import uniform_scalar
from ..sync.masks import check_mask
from .targets import needs_tensor_memory

SIDES = ("before_thread_sync", "after_thread_sync")
MOVES = ("ld", "st")


@op("syncs", attrs=("side",))
def tcgen05_fence(side):
    """Order this thread's operations on tensor memory relative to those of threads that it synchronises with.

    ``"before_thread_sync"`` orders the operations before it, and belongs before the barrier or the arrival;
    ``"after_thread_sync"`` orders those after it, and belongs after the barrier or the wait. ``tcgen05_commit``
    includes the first. (PTX ISA, ``tcgen05.fence``.)
    """


@tcgen05_fence.infer
def _(g, side):
    needs_tensor_memory(g, "tcgen05_fence")
    if side not in SIDES:
        raise g.error(f"the side of a tcgen05_fence is {SIDES[0]!r} or {SIDES[1]!r}, not {describe(side)}")


@tcgen05_fence.simulate
def _(m, call):
    m.tmem.fence(call.attrs["side"])


@tcgen05_fence.emit
def _(e, call):
    e.tmem.fence(call.attrs["side"])


@op("syncs", attrs=("what",), collective=True, traits=Traits(waits=True))
def tcgen05_wait(what):
    """Wait until all loads from tensor memory ("ld"), or all stores to it ("st"),
    that these warps have issued are complete.

    (PTX ISA, ``tcgen05.wait``.)
    """


@tcgen05_wait.infer
def _(g, what):
    needs_tensor_memory(g, "tcgen05_wait")
    if what not in MOVES:
        raise g.error(f"tcgen05_wait waits for 'ld' or 'st', not {describe(what)}")
    if g.scope.partial is not None or g.scope.kind == "thread":
        raise g.error("tcgen05_wait needs whole warps")


@tcgen05_wait.simulate
def _(m, call):
    m.tmem.wait(call.attrs["what"])


@tcgen05_wait.emit
def _(e, call):
    e.asm(f"tcgen05.wait::{call.attrs['what']}.sync.aligned;", convergent=True)


@op("syncs", attrs=("cta_group",))
def tcgen05_commit_(bar: Signals, mask: Registers = None, cta_group=1):
    """Arrive on `bar` when all tcgen05 products and copies that the thread has issued so far are complete."""


@tcgen05_commit_.infer
def _(g, bar, mask=None, cta_group=1):
    return None


@tcgen05_commit_.simulate
def _(m, call, bar, mask=None):
    m.tmem.commit(bar, mask)


@tcgen05_commit_.emit
def _(e, call, bar, mask=None):
    group, several = call.attrs["cta_group"], ".multicast::cluster" if mask is not None else ""
    address = bar.address + bar.offset
    text = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{several}.b64 [$0]"
    e.asm(text + (", $1;" if several else ";"), [], [address, e.bulk.half_word(mask)] if several else [address])


@builtin
def tcgen05_commit(g: Builder, bar, multicast=None):
    """Arrive once on the mbarrier `bar` when all products into and copies to tensor memory that this thread has
    issued are complete.

    The single thread that issued them makes the call. It includes the fence before the arrival; a thread that waits
    on `bar` still needs ``tcgen05_fence("after_thread_sync")`` after its wait. `multicast` is a mask of ranks in the
    cluster: the barrier at the same offset in each of these CTAs gets the arrival. (PTX ISA, ``tcgen05.commit``.)
    """
    needs_tensor_memory(g, "tcgen05_commit")
    if not isinstance(type_of(bar), BarrierRef) or not isinstance(bar, Value):
        raise g.error(f"bar is one barrier, as tile.mbarrier() makes, not {describe(bar)}")
    if g.scope.threads != 1 and g.scope.partial is None:
        raise g.error("tcgen05_commit must be called by one thread, the one that started the operations, "
                      f"and {g.scope.threads} of a {g.scope.kind} call it here: use tile.elect()")
    if multicast is not None and type_as(bar, BarrierRef).peer:
        raise g.error("a multicast names the CTAs by its mask: give the CTA's own barrier")
    if isinstance(multicast, int):
        check_mask(multicast, prod(g.launch.cluster or (1,)))
    extra = () if multicast is None else (uniform_scalar(g, multicast, "a multicast mask"),)
    g.call(tcgen05_commit_, bar, *extra, cta_group=g.state.get("cta_group", 1))
