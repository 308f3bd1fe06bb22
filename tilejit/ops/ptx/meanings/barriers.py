"""Simulates PTX barriers, fences and register requests.

PTX ISA, "mbarrier", "barrier", "barrier.cluster", "fence", "setmaxnreg".

An mbarrier is one of ``tile.mbarrier()``, or 8 bytes of shared memory that the kernel initialises.
"""

from __future__ import annotations

import numpy as np

from ....errors import SimulationError
from ..calls import HARDWARE_BARRIERS
from . import means
from .memory import place_of

_SEM, _SPACE = r"(\.(release|relaxed)\.(cta|cluster))?", r"\.shared::(cta|cluster)\.b64"
# In the state that an arrival returns: the bit with its phase's parity.
# The other bits count the arrivals that it lacked.
_PARITY = 63


# -- mbarriers ---------------------------------------------------------------------------------------------------------

def barrier_of(m, form, x):
    """The mbarrier that the operand ``bar`` addresses, the same one for all threads of the scope."""
    bar = x["bar"]
    if hasattr(bar, "first"):
        return bar
    if not hasattr(bar, "buffer") or bar.buffer.memory.scope != "shared":
        raise SimulationError(f"the simulator runs {form.name} on a barrier of tile.mbarrier() or a place in shared "
                              "memory, not on a number as address", m.loc)
    buffer, offset = place_of(m, form, bar)
    offset = offset + np.asarray(buffer.base).reshape(-1, 1)
    if (offset != offset[:, :1]).any():
        raise SimulationError(f"the simulator runs {form.name} on one barrier at a time, and the threads of this scope "
                              f"name several", m.loc)
    if (offset % 8).any():
        m.finding("misaligned", f"an mbarrier starts at a multiple of 8 bytes, and this one at byte "
                                f"{int(offset.flat[0])} of shared memory")
    return m.barriers.in_memory(offset[:, :1] // 8, buffer.peer)


def _total(m, n) -> np.ndarray:
    """The sum of `n` over the active threads, (B or 1, 1)."""
    n = np.broadcast_to(np.asarray(n, np.int64), (max(np.shape(n)[0] if np.ndim(n) else 1, m.active.shape[0]),
                                                  m.threads))
    return (n * m.active).sum(axis=1, keepdims=True)


@means(r"mbarrier\.init\.shared::cta\.b64")
def initialise(m, form, x):
    if (m.active.sum(axis=1) > 1).any():
        m.finding("barrier-lifecycle", f"{m.threads} threads initialise the same mbarrier: one thread does, as in with "
                                       f"tile.elect():")
    m.barriers.init(barrier_of(m, form, x), x["count"][:, :1].astype(np.int64))


@means(r"mbarrier\.inval\.shared::cta\.b64")
def invalidate(m, form, x):
    m.barriers.invalidate(barrier_of(m, form, x))


@means(rf"mbarrier\.arrive(_drop)?(\.noComplete|(\.expect_tx)?{_SEM}){_SPACE}(\.count)?")
def arrive(m, form, x):
    """Each thread arrives, one after the other. The state names the phase, and how many arrivals it lacked before."""
    barrier, words = barrier_of(m, form, x), form.name.split(".")
    n = np.asarray(x.get("count", np.ones((1, 1)))).astype(np.int64)
    if "expect_tx" in words:
        m.barriers.expect_tx(barrier, _total(m, x["tx_count"]))
    state = _state(m, barrier, n) if form.results else None
    m.barriers.arrive_each(barrier, _total(m, n), relaxed="relaxed" in words, drop=words[1] == "arrive_drop",
                           completes="noComplete" not in words)
    return state


def _state(m, barrier, n: np.ndarray) -> np.ndarray:
    phase, pending = m.barriers.phases(barrier)
    each = np.broadcast_to(n, (m.batch, m.threads)) * m.active
    left = np.maximum(pending - (np.cumsum(each, axis=1) - each), 0)
    return (phase.astype(np.uint64) & np.uint64(1)) << np.uint64(_PARITY) | left.astype(np.uint64)


@means(r"mbarrier\.pending_count\.b64")
def pending_count(m, form, x):
    return x["state"] & np.uint64((1 << 20) - 1)


@means(rf"mbarrier\.(expect_tx|complete_tx)\.relaxed\.(cta|cluster){_SPACE}")
def count_bytes(m, form, x):
    count = m.barriers.expect_tx if "expect_tx" in form.name else m.barriers.complete_tx
    count(barrier_of(m, form, x), _total(m, x["tx_count"]))


@means(r"mbarrier\.(test_wait|try_wait)(\.parity)?(\.acquire\.(cta|cluster))?\.shared::cta\.b64(\.hint)?")
def test_phase(m, form, x):
    """test_wait and try_wait. try_wait may return before the phase completes; the simulated one never blocks."""
    parity = x["parity"] if "parity" in x else x["state"] >> np.uint64(_PARITY)
    barrier, active = barrier_of(m, form, x), np.broadcast_to(m.active, (m.batch, m.threads))
    parities = np.broadcast_to(parity, active.shape).astype(np.int64) & 1
    first = np.take_along_axis(parities, active.argmax(axis=1)[:, None], axis=1)
    if (parities == first)[active].all():
        return m.barriers.test(barrier, first)
    result = np.zeros(active.shape, bool)
    for each in np.unique(parities[active]).tolist():  # threads that ask for different phases
        with m.only(parities == each):
            result |= m.barriers.test(barrier, np.full((1, 1), each)) & (parities == each)
    return result


# -- barriers of the CTA -----------------------------------------------------------------------------------------------

def _threads(m, x) -> int:
    """How many threads meet at a barrier: by default, those of the CTA."""
    return int(np.asarray(x["threads"]).flat[0]) if "threads" in x else m.sim.program.threads


def _number(m, form, x) -> np.ndarray:
    """Which of the CTA's barriers the operand ``id`` names, (B or 1, 1): the same one for all threads of the scope."""
    number = np.atleast_2d(np.asarray(x["id"]).astype(np.int32)).astype(np.int64)
    if (number != number[:, :1]).any():
        raise SimulationError(f"the simulator runs {form.name} on one barrier at a time, and the threads of this scope "
                              f"name several", m.loc)
    beyond = number[(number < 0) | (number >= HARDWARE_BARRIERS)]
    if beyond.size:
        m.finding("barrier-lifecycle", f"{form.name}: a CTA has the barriers 0 to {HARDWARE_BARRIERS - 1}, not "
                                       f"{int(beyond[0])}, at which the kernel faults")
    return number[:, :1]


def _of_whole_warps(m, form) -> None:
    """Report threads that come to a barrier without the others of their warp: it counts warps."""
    active = m.active
    if m.threads % 32 or (active.reshape(-1, 32).all(axis=1) != active.reshape(-1, 32).any(axis=1)).any():
        m.sync.collective(form.name)


@means(r"bar(rier)?\.sync(\.aligned)?(\.threads)?")
def barrier_of_the_cta(m, form, x):
    """If the scope has all the threads that meet, this is its ``sync()``; otherwise they meet at the barrier's
    number."""
    _of_whole_warps(m, form)
    number, threads = _number(m, form, x), _threads(m, x)
    whole = m.threads == threads and m.active.all()
    return m.sync.scope() if whole else m.sync.named_barrier("ptx", threads, number)


@means(r"bar(rier)?\.arrive(\.aligned)?")
def arrive_at_the_barrier(m, form, x):
    _of_whole_warps(m, form)
    m.sync.named_arrive("ptx", _threads(m, x), _number(m, form, x))


@means(r"bar(rier)?\.red\.(popc|and|or)(\.aligned)?\.(u32|pred)(\.threads)?")
def reduce_at_the_barrier(m, form, x):
    if m.threads != _threads(m, x):
        raise SimulationError(f"the simulator runs {form.name} in a scope of all the threads that meet there", m.loc)
    m.sync.collective(form.name)
    _number(m, form, x)
    m.sync.scope()
    p = np.broadcast_to(x["p"], (x["p"].shape[0], m.threads)).astype(bool)
    kind = form.name.split(".")[2]
    return {"popc": p.sum, "and": p.all, "or": p.any}[kind](axis=1, keepdims=True)


# -- the cluster's barrier ---------------------------------------------------------------------------------------------

@means(r"barrier\.cluster\.(arrive(\.release|\.relaxed)?|wait(\.acquire)?)(\.aligned)?")
def barrier_of_the_cluster(m, form, x):
    if ".arrive" in form.name:
        return m.sync.cluster_arrive(relaxed=".relaxed" in form.name)
    return m.sync.cluster_wait()


# -- fences ------------------------------------------------------------------------------------------------------------

@means(r"fence(\.(acq_rel|sc|acquire|release))?\.(cta|cluster|gpu|sys)|membar\.(cta|gl|sys)")
def fence(m, form, x):
    """Fences that only acquire or only release count as doing both."""
    scope = form.name.split(".")[-1]
    m.ordered.threadfence({"gl": "gpu"}.get(scope, scope), in_order=form.name.startswith(("fence.sc", "membar")))


@means(r"fence\.proxy\.async(\.(shared::cta|shared::cluster|global))?|fence\.proxy\.alias")
def proxy_fence(m, form, x):
    if not form.name.endswith(".alias"):
        spaces = {"fence.proxy.async.shared::cta": "shared", "fence.proxy.async.shared::cluster": "cluster",
                  "fence.proxy.async.global": "global"}
        m.sync.fence_proxy_async(spaces.get(form.name, "all"))


@means(r"fence\.mbarrier_init\.release\.cluster")
def init_fence(m, form, x):
    m.sync.fence_mbarrier_init()


@means(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32")
def set_registers(m, form, x):
    return m.sync.set_registers(x["count"])


__all__ = ["barrier_of"]
