"""Which proxy a call accesses shared memory by.

Threads use the generic proxy, copy engines and tensor cores the async proxy.

The proxies are not ordered with each other. A load that a thread has issued may still read after a barrier or an
arrival, while a copy engine that the barrier has set free writes: on an H200, sums over slots that TMA refilled were
wrong in up to 16 of 16 launches. ``fence.proxy.async`` in each thread that has accessed the memory, before the barrier
or arrival, waits until the accesses are over. Reads by wgmma, tcgen05 and copy engines are in the async proxy
themselves, and their waits complete them. ``cp.async``, ``st.async`` and ``red.async`` are in the generic proxy. PTX
ISA, "Memory Consistency Model: Proxies" and "Async proxy".

An op says by its rule `by_threads` which operands of a call threads access, and by `by_engines` which ones the async
proxy writes, and which ones it reads.
"""

from __future__ import annotations

from ...ir.builder import describe, type_of
from ...ir.graph import Call, Operand, Value
from ...ir.op import op
from ...ir.op_traits import Writes
from ...types import MEMORY_TYPES, Buffer

ON_BARRIERS = frozenset({"bytes", "commit"})    # completion mechanisms of copies that arrive on mbarriers
ON_ENGINES = frozenset({"bulk", *ON_BARRIERS})  # those of copies that go through the async proxy
ANYWHERE = None                                 # stands for a place in shared memory that is not known


def accessed_by_threads(call: Call) -> tuple[Operand, ...]:
    """The places in shared memory that the scope's threads access at a call, through the generic proxy. A
    copy that has not been chosen counts as theirs."""
    if call.op.rules.by_threads is not None:
        return _shared_places(call.op.rules.by_threads(call))
    return () if call.op.effect == "pure" else _shared_places(a for a in call.args if a is not None)


def accessed_by_engines(call: Call) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The places in shared memory, of the CTA or of others, that a call writes and that it reads through the async
    proxy. A copy that has not been chosen counts as one by an engine."""
    written, read = call.op.rules.by_engines(call) if call.op.rules.by_engines is not None else ((), ())
    return _shared_places(written), _shared_places(read)


def allocation_of(definitions: dict[Value, Call], place: Operand) -> Value | None:
    """The allocation that a place in shared memory is part of, through whichever views; `ANYWHERE` where that is not
    known."""
    while place in definitions and definitions[place].op.effect == "pure":
        place = definitions[place].args[0]
    return place if isinstance(type_of(place), Buffer) and place in definitions else ANYWHERE


def _shared_places(places) -> tuple[Operand, ...]:
    def in_shared(t):
        return isinstance(t, MEMORY_TYPES) and getattr(t, "scope", None) == "shared"
    return tuple(p for p in places if p is ANYWHERE or in_shared(type_of(p)))


@op("syncs", attrs=("filled",), collective=True)
def hand_over(*buffers: Writes, filled):
    """The scope's threads have accessed the buffers, and the next barrier or arrival hands these to copies that
    overwrite them; or, if the threads have `filled` them, to what reads them.

    A proxy fence stands here in the kernel if that goes through the async proxy, and threads may have accessed the
    buffers since their last fence (passes/pipelining/proxy_fences.py).
    """


@hand_over.infer
def _(g, *buffers, filled):
    for buffer in buffers:
        if not isinstance(type_of(buffer), Buffer):
            raise g.error(f"a buffer is needed, not {describe(buffer)}")


hand_over.rules.by_threads = lambda call: ()
hand_over.rules.handed_over = lambda call: call.args
