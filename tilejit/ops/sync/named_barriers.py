"""Named hardware barriers: rendezvous of some warps of the CTA, and warpgroups that take turns.

A CTA has 16 hardware barriers (PTX ISA, "barrier"). The compiler assigns their numbers,
also to the barriers of execution scopes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import MEMBERS, builtin
from ...ir.op import op
from ...ir.op_traits import Registers
from ...types import Scalar
from ..language.operators import binary
from ..language.promotion import collective, uniform_scalar


@dataclass(frozen=True)
class NamedBarriers:
    """`n` hardware barriers of `threads` threads each. `number` identifies the call that made them; it is not the
    hardware's number."""

    number: int
    threads: int
    n: int


@dataclass(frozen=True)
class NamedBarrier:
    """One of the barriers of a `NamedBarriers`."""

    barriers: NamedBarriers
    index: Any


@dataclass(frozen=True)
class Turns:
    """A baton that `members` groups of threads pass on in turn."""

    barriers: NamedBarriers
    members: int


def _declare_method(name: str, doc: str):
    def declaration(index: Registers, barriers): ...
    declaration.__name__, declaration.__doc__ = name, doc
    declared = op("syncs", attrs=("barriers",), collective=True)(declaration)

    @declared.infer
    def _(g, index, barriers):
        what = "a named barrier"
        collective(g, what)
        if g.scope.threads % 32:
            raise g.error(f"{what} counts whole warps, and this scope has {g.scope.threads} "
                          f"thread{'s' * (g.scope.threads > 1)}")
        if g.scope.threads > barriers.threads:
            raise g.error(f"{what} for {barriers.threads} threads cannot be used by a scope of {g.scope.threads}")

    return declared


named_sync = _declare_method("named_sync", "Every thread of the scope arrives at a hardware barrier and waits until "
                                           "the barrier has all its arrivals.")
named_arrive = _declare_method("named_arrive",
                               "Every thread of the scope arrives at a hardware barrier, without waiting.")


@named_sync.simulate
def _(m, call, index):
    m.sync.collective("a named barrier")
    barriers = call.attrs["barriers"]
    return m.sync.named_barrier(barriers.number, barriers.threads, index)


@named_arrive.simulate
def _(m, call, index):
    m.sync.collective("a named barrier")
    barriers = call.attrs["barriers"]
    m.sync.named_arrive(barriers.number, barriers.threads, index)


@named_sync.emit
def _(e, call, index):
    e.sync.named_barrier("sync", call.attrs["barriers"], index)


@named_arrive.emit
def _(e, call, index):
    e.sync.named_barrier("arrive", call.attrs["barriers"], index)


@op("syncs", attrs=("barriers",), collective=True)
def first_turn(barriers):
    """Give member 0 its first turn: at the kernel's start, the last threads of the CTA arrive at its barrier."""


@first_turn.infer
def _(g, barriers):
    return None


@first_turn.simulate
def _(m, call):
    barriers = call.attrs["barriers"]
    m.sync.named_arrive(barriers.number, barriers.threads, 0, count=barriers.threads // 2)


@first_turn.emit
def _(e, call):
    e.sync.first_turn(call.attrs["barriers"])


# -- user functions ----------------------------------------------------------------------------------------------------

def _make_named_barriers(g: Builder, threads, n) -> NamedBarriers:
    made = g.state.setdefault("named barriers", [])
    made.append(None)
    return NamedBarriers(len(made), threads, n)


def _whole_warps(g: Builder, threads) -> int:
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 32 or threads % 32:
        raise g.error(f"threads is a constant, a multiple of 32, not {describe(threads)}"
                      + g.declared_constant(threads))
    if threads > g.launch.threads:
        raise g.error(f"the CTA has {g.launch.threads} threads, fewer than the {threads} that are to meet")
    return threads


@builtin
def named_barrier(g: Builder, threads, n=None):
    """A hardware barrier of `threads` threads (whole warps); with `n`, an indexable array of them.

    ``b.sync()`` arrives and waits for the other threads; ``b.arrive()`` arrives and does not wait. Both count every
    thread of the current scope. What a producer does before it arrives is visible to a consumer after its sync. A CTA
    has 16 hardware barriers, one of which is used by the CTA's own barrier; the compiler assigns their numbers. (PTX
    ISA, "barrier".)
    """
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
        raise g.error(f"n is a constant of at least 1, not {describe(n)}" + g.declared_constant(n))
    barriers = _make_named_barriers(g, _whole_warps(g, threads), n or 1)
    return barriers if n is not None else NamedBarrier(barriers, 0)


def _index(g: Builder, barriers: NamedBarriers, i) -> NamedBarrier:
    """``barriers[i]``."""
    t = type_of(i)
    if not isinstance(t, Scalar) or not t.dtype.is_int:
        raise g.error(f"barriers are indexed by one integer, not {describe(i)}")
    if isinstance(i, int) and not -barriers.n <= i < barriers.n:
        raise g.error(f"barrier {i} of {barriers.n} does not exist")
    return NamedBarrier(barriers, i % barriers.n if isinstance(i, int) else i)


def _meet(g: Builder, op_, barrier: NamedBarrier) -> None:
    g.call(op_, uniform_scalar(g, barrier.index, "a barrier's index"), barriers=barrier.barriers)


def _sync(g: Builder, barrier: NamedBarrier) -> None:
    """Arrive with every thread of the scope, and wait until all threads of the barrier have arrived."""
    _meet(g, named_sync, barrier)


def _arrive(g: Builder, barrier: NamedBarrier) -> None:
    """Arrive with every thread of the scope, without waiting."""
    _meet(g, named_arrive, barrier)


@builtin
def turns(g: Builder, n, threads=128):
    """A baton that `n` groups of `threads` threads pass on, so that only one group at a time runs the code
    between take and pass_on.

    ``t.take(i)`` waits for the turn of member i, and ``t.pass_on(i)`` passes the turn to member ``(i + 1) % n``.
    Member 0 has the first turn. Each member must take and pass on in every round. (PTX ISA, "barrier".
    FlashAttention-3's "pingpong" schedule orders the softmax of one warpgroup and the products of the other in this
    way.)
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise g.error(f"the number of members is a constant of at least 1, not {describe(n)}" + g.declared_constant(n))
    if g.scope.kind != "cta" or g.scope.partial is not None or g.state.get("loops", 0):
        raise g.error("turns must be made once, at CTA scope and outside loops")
    _whole_warps(g, threads * n if isinstance(threads, int) else threads)
    barriers = _make_named_barriers(g, 2 * threads if n > 1 else threads, n)
    if n > 1:
        g.call(first_turn, barriers=barriers)
    return Turns(barriers, n)


def _member(g: Builder, baton: Turns, i, step: int):
    t = type_of(i)
    if not isinstance(t, Scalar) or not t.dtype.is_int:
        raise g.error(f"a member is an integer, not {describe(i)}")
    if isinstance(i, int) and not 0 <= i < baton.members:
        raise g.error(f"member {i} of {baton.members} does not exist")
    threads = baton.barriers.threads // 2
    if baton.members > 1 and g.scope.threads != threads:
        raise g.error(f"each member has {threads} threads, and this scope has {g.scope.threads}")
    if isinstance(i, int):
        return (i + step) % baton.members
    return binary(g, "%", binary(g, "+", i, step), baton.members) if step else i


def _take(g: Builder, baton: Turns, i) -> None:
    """Wait for the turn of member `i`, which is the current scope."""
    i = _member(g, baton, i, 0)
    if baton.members > 1:
        _meet(g, named_sync, NamedBarrier(baton.barriers, i))


def _pass_on(g: Builder, baton: Turns, i) -> None:
    """Pass the turn from member `i`, which is the current scope, to the next."""
    i = _member(g, baton, i, 1)
    if baton.members > 1:
        _meet(g, named_arrive, NamedBarrier(baton.barriers, i))


MEMBERS[NamedBarriers, "__getitem__"] = (_index, True)
MEMBERS[NamedBarrier, "sync"] = (_sync, True)
MEMBERS[NamedBarrier, "arrive"] = (_arrive, True)
MEMBERS[Turns, "take"] = (_take, True)
MEMBERS[Turns, "pass_on"] = (_pass_on, True)
