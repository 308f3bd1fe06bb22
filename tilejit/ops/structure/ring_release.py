"""Release of a ring's slot: arrivals at its empty barrier, ordered after the scope's reads of the slot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ir.builder import describe, type_of
from ...ir.op import op
from ...ir.op_traits import Registers, Signals, Writes
from ...types import BarrierRef


def arrivals(threads: int, by_warp: bool = False) -> int:
    """How often a scope arrives: once per warpgroup, or per warp, and at least once."""
    return max(threads // (32 if by_warp else 128), 1)


@op("syncs", attrs=("ranks", "met", "by_warp"), collective=True)
def ring_release(barrier: Signals, held: Registers, *buffers: Writes, ranks, met, by_warp=False):
    """Arrive at the barrier, once per warpgroup, after the scope's reads of the buffers.
    Nothing is done where `held` is 0.

    If `ranks` is more than 1, the arrival is at the barrier of each of the first `ranks` CTAs of the cluster.

    Once one thread of a warpgroup has waited for its products, they are complete for the whole warpgroup. Ordinary
    reads by other threads, however, are complete only after a barrier of the scope. A barrier is also needed if the
    scope's warps have not synchronised in the slot (`met`): a warp that has not passed the wait yet might miss the
    phase, and see a later one instead.

    `by_warp`: each warp arrives for itself, without a barrier of the scope. So warps drift apart, and while a proxy
    fence holds one, others multiply.
    """


@ring_release.infer
def _(g, barrier, held, *buffers, ranks, met, by_warp=False):
    if not isinstance(type_of(barrier), BarrierRef):
        raise g.error(f"one barrier is needed, not {describe(barrier)}")


ring_release.rules.by_threads = lambda call: ()
ring_release.rules.handed_over = lambda call: call.args[2:]


@dataclass(frozen=True)
class Release:
    """The plan of a release (passes/pipelining/proxy_fences.py): whether a barrier of the scope precedes it. That is so
    if threads access the buffers anywhere in the kernel, or the warps have not met."""

    after_barrier: bool


@ring_release.simulate
def _(m, call, barrier, held, *buffers):
    if call.attrs.get("by_warp"):
        m.barriers.arrive_each(barrier, np.full((1, 1), arrivals(m.threads, True)))
        return
    if call.choice.plan.after_barrier:
        m.sync.scope()
    ranks, times = call.attrs["ranks"], arrivals(m.threads) * (1 if held is None else np.asarray(held).reshape(-1, 1))
    for rank in range(ranks):
        m.barriers.arrive(barrier if ranks == 1 else barrier.of_peer(np.full((1, 1), rank)), times, alone=True)


@ring_release.emit
def _(e, call, barrier, held, *buffers):
    if call.attrs.get("by_warp"):
        e.asm("bar.warp.sync 0xffffffff;", convergent=True)
        first = (e.absolute_thread() & 31).equals(0)
        e.asm(f"@$1 mbarrier.arrive.shared::cta.b64 _, [$0 + {barrier.offset}];", [], [barrier.address, first])
        return
    if call.choice.plan.after_barrier:
        e.sync.scope()
    held = None if held is None else held.equals(1)
    if call.attrs["ranks"] > 1:
        _release_everywhere(e, barrier.address + barrier.offset, call.attrs["ranks"], held)
        return
    first = (e.absolute_thread() & 127).equals(0) if e.threads >= 128 else e.first_thread()
    condition = e.all_of([c for c in (first, held) if c is not None])
    text = f"mbarrier.arrive.shared::cta.b64 _, [$0 + {barrier.offset}];"
    if condition is None:
        e.asm(text, [], [barrier.address])
    else:
        e.asm("@$1 " + text, [], [barrier.address, condition])


def _release_everywhere(e, address, ranks: int, held) -> None:
    """Have thread r of each warpgroup arrive at the barrier of CTA r."""
    arrive = "{{ .reg .b32 a; {0}mapa.shared::cluster.u32 a, $0, $1; {0}mbarrier.arrive.shared::cluster.b64 _, [a]; }}"
    if e.threads < ranks:
        threads: Iterable[Any] = range(ranks)
    else:
        threads = [e.absolute_thread() & 127 if e.threads >= 128 else e.thread_id()]
    for rank in threads:
        among = None if isinstance(rank, int) else rank.is_below(ranks)
        condition = e.all_of([c for c in (among, held) if c is not None])
        operands = [address, e.word(rank)] + ([condition] if condition is not None else [])
        e.asm(arrive.format("@$2 " if condition is not None else ""), [], operands)
