"""mbarriers, copy groups, fences and cluster barriers. PTX ISA, "Parallel Synchronization and Communication"."""

from __future__ import annotations

import re

import numpy as np

from ...dtypes import bool_, int32
from ...ir.builder import Builder, describe, flag, type_as, type_of
from ...ir.builtin import builtin, method
from ...ir.graph import Call, Const, Value
from ...ir.op import op
from ...ir.op_traits import Registers, Signals, Traits
from ...types import Barrier, BarrierRef, Scalar, Uniformity
from ..language.operators import binary
from ..language.promotion import uniform_scalar

# -- mbarriers ---------------------------------------------------------------------------------------------------------

@op("syncs", attrs=("count", "n"), traits=Traits(allocates=True))
def mbarrier_init(count, n):
    """`n` mbarriers that expect `count` arrivals each, initialised and made visible at the kernel's start."""


@mbarrier_init.infer
def _(g, count, n):
    return Barrier(n, count)


@mbarrier_init.simulate
def _(m, call):
    return m.barriers.array(call.result, call.attrs["n"], call.attrs["count"])


@mbarrier_init.emit
def _(e, call):
    return e.barriers.array(call.result)


@builtin
def mbarrier(g: Builder, count=1, n=None):
    """An mbarrier that completes a phase after `count` arrivals (and all expected bytes); with `n`,
    an indexable array of them.

    All barriers lie in one block of shared memory. Thread 0 initialises them at the kernel's entry, and they are
    visible to the CTA (and the cluster) before anything else runs. An execution scope arrives once, not once per
    thread, and `count` counts these arrivals.
    """
    made = initialise_barriers(g, count, 1 if n is None else n)
    return made if n is not None else g.call(mbarrier_at, made, Const(0, int32), peer=False)


def initialise_barriers(g: Builder, count, n, name: str = "mbarrier") -> Value:
    """Create `n` mbarriers, hoisted to the kernel's start. `name` is their name in the graph."""
    for what, value in (("count", count), ("n", n)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise g.error(f"{what} is a constant, not {describe(value)}" + g.declared_constant(value))
        if not 1 <= value < 1 << 20:
            raise g.error(f"{what} is 1 to {(1 << 20) - 1}, not {value}")
    if g.scope.kind != "cta" or g.scope.partial is not None or g.state.get("loops", 0):
        raise g.error("a barrier must be made once, at CTA scope and outside loops; make n= of them and index")
    value = Value(name, Barrier(n, count), g.loc)
    g.hoist(Call(mbarrier_init, (), {"count": count, "n": n}, (value,), g.loc))
    return value


@op("pure", attrs=("peer",))
def mbarrier_at(barriers, at, peer, rank=None):
    """The mbarrier with index `at`: this CTA's, or with `peer` the one at the same address in CTA
    `rank` of the cluster."""


@mbarrier_at.infer
def _(g, barriers, at, rank=None, *, peer):
    if peer:
        g.need("another CTA's shared memory (mapa)", 90)
    return BarrierRef(type_of(barriers) if isinstance(type_of(barriers), Barrier) else type_of(barriers).barrier, peer)


@mbarrier_at.simulate
def _(m, call, barriers, at, rank=None):
    return m.barriers.at(barriers, at, rank)


@mbarrier_at.emit
def _(e, call, barriers, at, rank=None):
    return e.barriers.at(barriers, at, rank)


def index(g: Builder, value: Value, items: tuple) -> Value:
    """``barriers[i]``."""
    if len(items) != 1:
        raise g.error("barriers are indexed by one number")
    n = type_as(value, Barrier).n
    if isinstance(items[0], int) and not -n <= items[0] < n:
        raise g.error(f"barrier {items[0]} of {n} does not exist")
    at = items[0] % n if isinstance(items[0], int) else items[0]
    return g.call(mbarrier_at, value, uniform_scalar(g, at, "a barrier's index"), peer=False)


def _need_one(g: Builder, barrier: Value, name: str) -> None:
    """CompilationError unless `barrier` is one mbarrier, and this CTA's if it is waited on or tested."""
    if not isinstance(type_of(barrier), BarrierRef):
        raise g.error(f"one barrier is needed, not {describe(barrier)}; index them first")
    if type_as(barrier, BarrierRef).peer and name in ("wait", "test", "peek"):
        raise g.error("a barrier can only be waited on in the CTA that holds it; arrive at a peer's, "
                      "wait at your own")


def _act(name: str, doc: str, machine, emitter):
    """Declare an operation on one barrier and one number (of bytes or arrivals, or a phase). Its rules call one method
    of the machine and one of the emitter."""
    def declaration(barrier: Signals, number: Registers): ...
    declaration.__name__, declaration.__doc__ = f"mbarrier_{name}", doc
    declared = op("syncs")(declaration)
    results = {"test": Uniformity.THREAD, "peek": Uniformity.WARP}  # in the scope: narrower ones vote for themselves

    @declared.infer
    def _(g, barrier, number):
        if name.endswith("expect_tx"):
            g.need(f"mbarrier.{name}".replace("arrive_", "arrive."), 90)
        _need_one(g, barrier, name)
        return Scalar(bool_, results[name]) if name in results else None

    @declared.simulate
    def _(m, call, barrier, number):
        return machine(m)(barrier, number)

    @declared.emit
    def _(e, call, barrier, number):
        return emitter(e)(barrier, number)

    return declared


arrive_op = _act("arrive", "Arrive `number` times: one elected thread arrives for the whole scope, after the accesses "
                           "of all its threads.",
                 lambda m: m.barriers.arrive, lambda e: e.barriers.arrive)
expect_tx_op = _act("expect_tx", "Add `number` to the bytes that the current phase waits for.",
                    lambda m: m.barriers.announce, lambda e: e.barriers.expect_tx)
arrive_expect_tx_op = _act("arrive_expect_tx",
                           "Add `number` to the bytes that the current phase waits for, and arrive once.",
                           lambda m: m.barriers.arrive_expect_tx, lambda e: e.barriers.arrive_expect_tx)
test_op = _act("test", "Whether the phase with parity `number` has completed.",
               lambda m: m.barriers.test, lambda e: e.barriers.test)
peek_op = _act("peek", "Whether all lanes of the warp have seen that the phase with parity `number` has completed.",
               lambda m: m.barriers.peek, lambda e: e.barriers.peek)


@op("syncs", traits=Traits(waits=True))
def mbarrier_wait(barrier: Signals, number: Registers, seen: Registers = None):
    """Block every thread of the scope until the phase with parity `number` has completed, unless it was `seen` to."""


@mbarrier_wait.infer
def _(g, barrier, number, seen=None):
    _need_one(g, barrier, "wait")


@mbarrier_wait.simulate
def _(m, call, barrier, number, seen=None):
    if seen is not None and np.all(seen):
        return None
    return m.barriers.wait(barrier, number)


@mbarrier_wait.emit
def _(e, call, barrier, number, seen=None):
    e.barriers.wait(barrier, number, seen)


@method(BarrierRef)
def arrive(g, barrier, n=1):
    """Arrive `n` times at the barrier, once for the whole scope: one elected thread arrives,
    after the accesses of all its threads."""
    if isinstance(n, int) and not 1 <= n < 1 << 20:
        raise g.error(f"a scope arrives 1 to {(1 << 20) - 1} times, not {n}")
    g.call(arrive_op, barrier, uniform_scalar(g, n, "n"))


@method(BarrierRef)
def expect_tx(g, barrier, nbytes):
    """Add `nbytes` to the bytes that the current phase waits for."""
    g.call(expect_tx_op, barrier, _number(g, nbytes, "nbytes"))


@method(BarrierRef)
def arrive_expect_tx(g, barrier, nbytes):
    """Add `nbytes` to the bytes that the current phase waits for, and arrive once."""
    g.call(arrive_expect_tx_op, barrier, _number(g, nbytes, "nbytes"))


@method(BarrierRef)
def wait(g, barrier, phase):
    """Every thread of the scope waits until the phase with parity `phase` (mod 2) has completed.

    A new barrier is in phase 0, so ``wait(phase=1)`` returns at once. All warps of the scope must have passed the
    wait before the barrier completes its next phase: a warp that lags behind would wait for the one after that, which
    has the same parity.
    """
    wait_unless_seen(g, barrier, phase)


def wait_unless_seen(g: Builder, barrier, phase, seen=False) -> None:
    """`wait`, by those warps for which `seen`, the result of `peek`, is not true."""
    if seen is False:
        g.call(mbarrier_wait, barrier, _parity(g, phase))
    else:
        g.call(mbarrier_wait, barrier, _parity(g, phase), seen)


def peek(g: Builder, barrier, phase) -> Value:
    """Whether the phase with parity `phase` has completed, the same for all lanes of a warp, which meet here."""
    return g.call(peek_op, barrier, _parity(g, phase))


@method(BarrierRef)
def test(g, barrier, phase):
    """Whether the phase with parity `phase` (mod 2) has completed. Each thread tests for itself."""
    return g.call(test_op, barrier, _parity(g, phase))


@method(BarrierRef)
def peer(g, barrier, rank):
    """The barrier at the same address in CTA `rank` of the cluster."""
    call = g.definitions[barrier]
    return g.call(mbarrier_at, call.args[0], call.args[1], uniform_scalar(g, rank, "a rank"), peer=True)


@op("syncs", attrs=("noinc",))
def arrive_on_copies_(barrier: Signals, noinc):
    """Each thread arrives at the barrier once the ``cp.async`` copies that it has issued so far have landed."""


@arrive_on_copies_.infer
def _(g, barrier, noinc):
    if barrier.type.peer:
        raise g.error("cp.async arrives at a barrier of its own CTA, not at a peer's")
    if not isinstance(noinc, bool):
        raise g.error(f"noinc is True or False, known at compile time, not {describe(noinc)}")


@arrive_on_copies_.simulate
def _(m, call, barrier):
    m.engines.cp_async_arrive(barrier, call.attrs["noinc"])


@arrive_on_copies_.emit
def _(e, call, barrier):
    e.barriers.arrive_on_copies(barrier, call.attrs["noinc"])


@method(BarrierRef)
def arrive_on_copies(g, barrier, noinc=False):
    """Have each thread of the scope arrive once the ``cp.async`` copies that it has issued so far have landed.
    Does not block.

    An alternative to groups. Without `noinc`, each thread first adds one pending arrival to the phase, so that the
    barrier's `count` need not include it; with `noinc`, `count` includes one arrival of each thread. (PTX ISA,
    ``cp.async.mbarrier.arrive``.)
    """
    g.call(arrive_on_copies_, barrier, noinc=noinc)


def _number(g: Builder, n, what: str):
    if isinstance(n, int) and not 0 <= n < 1 << 20:
        raise g.error(f"{what} is 0 to {(1 << 20) - 1} in one phase (PTX ISA, tx-count), not {n}")
    return uniform_scalar(g, n, what)


def _parity(g: Builder, phase):
    if isinstance(phase, int):
        return Const(phase % 2, int32)
    kind = type_of(phase)
    if isinstance(kind, Scalar) and kind.dtype.is_float:
        raise g.error(f"a phase is an integer, not {describe(phase)}")
    return uniform_scalar(g, binary(g, "&", phase, 1), "a phase")


# -- groups, fences, barriers without operands -------------------------------------------------------------------------

def _declare_call(name: str, doc: str, machine, emitter, attrs: tuple[str, ...] = (), check=None, waits: bool = False):
    """Declare an operation without operands. Its rules call one method of the machine and one of the emitter."""
    parameters = ", ".join(attrs)
    scope: dict = {}
    exec(f"def {name}({parameters}): ...", scope)
    declaration = scope[name]
    declaration.__doc__ = doc
    declared = op("syncs", attrs=attrs, traits=Traits(waits=waits))(declaration)

    @declared.infer
    def _(g, **values):
        if check:
            check(g, **values)

    @declared.simulate
    def _(m, call):
        return machine(m)(**call.attrs)

    @declared.emit
    def _(e, call):
        emitter(e)(**call.attrs)

    return declared


def _group(g, n, read=False):
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise g.error(f"the number of groups that may stay pending is a constant of at least 0, not {describe(n)}"
                      + g.declared_constant(n))


def _hopper(instruction: str):
    return lambda g, **_: g.need(instruction, 90)


cp_async_commit = _declare_call(
    "cp_async_commit",
    "Commit the ``cp.async`` copies that each thread has issued since its last commit as a group.",
    lambda m: m.engines.cp_async_commit, lambda e: e.sync.cp_async_commit)
cp_async_wait = _declare_call(
    "cp_async_wait", "Wait until at most `n` of the thread's ``cp.async`` groups are pending.",
    lambda m: m.engines.cp_async_wait, lambda e: e.sync.cp_async_wait, ("n",), _group, waits=True)
bulk_commit = _declare_call(
    "bulk_commit", "Commit the bulk stores that each thread has issued since its last commit as a group.",
    lambda m: m.engines.bulk_commit, lambda e: e.sync.bulk_commit, check=_hopper("cp.async.bulk.commit_group"))
fence_mbarrier_init = _declare_call(
    "fence_mbarrier_init", "Make the initialisation of mbarriers visible to the async proxy and the cluster.",
    lambda m: m.sync.fence_mbarrier_init, lambda e: e.sync.fence_mbarrier_init, check=_hopper("fence.mbarrier_init"))
griddepcontrol_wait = _declare_call(
    "griddepcontrol_wait",
    """Wait until the grids that this one depends on have ended and their writes are visible.
    (PTX ISA, ``griddepcontrol``.)

    With the launch option ``pdl=True``, a kernel may start before the previous kernel of its stream has ended. Only
    after this wait may it read what that kernel writes, or write what that kernel reads. Without ``pdl=True`` it
    returns at once.
    """,
    lambda m: m.sync.griddepcontrol_wait, lambda e: e.sync.griddepcontrol_wait, check=_hopper("griddepcontrol"),
    waits=True)
griddepcontrol_launch_dependents = _declare_call(
    "griddepcontrol_launch_dependents",
    "Let the dependent grid start once every CTA of this grid has called this or ended. (PTX ISA, ``griddepcontrol``.)",
    lambda m: m.sync.griddepcontrol_launch_dependents, lambda e: e.sync.griddepcontrol_launch_dependents,
    check=_hopper("griddepcontrol"))
cluster_arrive = _declare_call("cluster_arrive", "Arrive at the cluster's barrier without waiting.",
                               lambda m: m.sync.cluster_arrive, lambda e: e.sync.cluster_arrive,
                               check=_hopper("barrier.cluster.arrive"))
cluster_wait = _declare_call("cluster_wait", "Wait until every thread of the cluster has arrived at its barrier.",
                             lambda m: m.sync.cluster_wait, lambda e: e.sync.cluster_wait,
                             check=_hopper("barrier.cluster.wait"), waits=True)


@op("syncs", attrs=("n", "read"), traits=Traits(waits=True))
def bulk_wait(n, read=False):
    """Wait until at most `n` of the thread's bulk store groups are pending; with `read`,
    only until their sources may be reused."""


@bulk_wait.infer
def _(g, n, read):
    _group(g, n)
    flag(g, "read", read)
    g.need("cp.async.bulk.wait_group", 90)


@bulk_wait.simulate
def _(m, call):
    return m.engines.bulk_wait(call.attrs["n"], call.attrs["read"])


@bulk_wait.emit
def _(e, call):
    e.sync.bulk_wait(call.attrs["n"], call.attrs["read"])


@builtin
def cluster_sync(g: Builder):
    """Barrier of all threads of the cluster: arrive, and wait until every thread has."""
    g.call(cluster_arrive)
    g.call(cluster_wait)


def waits_for_grids(call: Call) -> bool:
    """Whether a call is ``griddepcontrol_wait``, or the same instruction by ``tile.ptx``."""
    return call.op is griddepcontrol_wait or call.attrs.get("form") == "griddepcontrol.wait"


def awaits_copies(call: Call) -> bool:
    """Whether a call waits for ``cp.async`` copies or has them arrive at a barrier;
    also by ``tile.ptx`` or inline PTX."""
    text = call.attrs.get("form") or call.attrs.get("text") or ""
    return (call.op in (cp_async_wait, arrive_on_copies_) or "cp.async.wait" in text
            or "cp.async.mbarrier.arrive" in text)


FENCED_SPACES = ("shared", "global", "all")


@op("syncs", attrs=("space",))
def fence_proxy_async(space=None):
    """Order each thread's ordinary accesses before later accesses of the async proxy (TMA, bulk copies, wgmma).

    Writes before the async proxy reads or overwrites them; and reads before TMA or a bulk copy overwrites what they
    read, which a barrier alone does not order. It stands in every thread that has made such accesses, before the
    barrier or arrival that hands the memory over.

    `space` is the memory that is accessed: "shared" (the default), "global", or "all" for both. Before a copy of what
    other CTAs have written to global memory, it stands in the CTA of the copy, after the threads have synchronised.
    (PTX ISA, ``fence.proxy.async``.)
    """


@fence_proxy_async.infer
def _(g, space=None):
    if space not in (None, *FENCED_SPACES):
        raise g.error(f"space is {', '.join(map(repr, FENCED_SPACES[:-1]))} or {FENCED_SPACES[-1]!r}, "
                      f"not {describe(space)}")
    g.need("fence.proxy.async", 90)


@fence_proxy_async.simulate
def _(m, call):
    m.sync.fence_proxy_async(call.attrs.get("space") or "shared")


@fence_proxy_async.emit
def _(e, call):
    e.sync.fence_proxy_async(call.attrs.get("space") or "shared")


def fences_proxies(call: Call) -> bool:
    """Whether a call is ``fence_proxy_async`` or the same for shared memory by ``tile.ptx`` or inline PTX."""
    text = call.attrs.get("form") or call.attrs.get("text") or ""
    return ((call.op is fence_proxy_async and call.attrs.get("space") != "global")
            or re.search(r"fence\.proxy\.async(\.shared|;|$)", text) is not None)


FENCE_SCOPES = ("cta", "cluster", "gpu", "sys")


@op("syncs", attrs=("scope",))
def threadfence(scope="gpu"):
    """Order each thread's memory accesses before the fence with those after it, as seen by the threads of `scope`
    (PTX ISA, ``fence.acq_rel``)."""


@threadfence.infer
def _(g, scope):
    if scope not in FENCE_SCOPES:
        raise g.error(f"a fence's scope is one of {', '.join(FENCE_SCOPES)}, not {scope!r}")
    if scope == "cluster":
        g.need("fence.acq_rel.cluster", 90)


@threadfence.simulate
def _(m, call):
    return m.ordered.threadfence(call.attrs["scope"])


@threadfence.emit
def _(e, call):
    e.asm(f"fence.acq_rel.{call.attrs['scope']};")
