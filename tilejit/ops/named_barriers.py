"""Hardware barriers of the CTA that a kernel names: rendezvous of some warps, and turns that warpgroups take.

PTX ISA, "barrier": a CTA has 16 of them; the compiler assigns the numbers, those of scopes' own barriers among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.builder import Builder, describe, type_of
from ..ir.builtin import MEMBERS, builtin
from ..ir.op import op
from ..types import Scalar
from .language import binary, uniform_scalar
from .reduce import collective


@dataclass(frozen=True)
class NamedBarriers:
    """`n` hardware barriers of `threads` threads each; `number` tells those of one call from another's."""

    number: int
    threads: int
    n: int


@dataclass(frozen=True)
class NamedBarrier:
    """One of them."""

    barriers: NamedBarriers
    index: Any


@dataclass(frozen=True)
class Turns:
    """A baton that `members` groups of threads hand round."""

    barriers: NamedBarriers
    members: int


def _declared(name: str, doc: str):
    def declaration(index, barriers): ...
    declaration.__name__, declaration.__doc__ = name, doc
    declared = op("syncs", attrs=("barriers",), collective=True)(declaration)

    @declared.infer
    def _(g, index, barriers):
        what = "a named barrier"
        collective(g, what)
        if g.scope.threads % 32:
            raise g.error(f"{what} counts whole warps, and this scope has {g.scope.threads} thread{'s' * (g.scope.threads > 1)}")
        if g.scope.threads > barriers.threads:
            raise g.error(f"{what} for {barriers.threads} threads cannot be used by a scope of {g.scope.threads}")

    return declared


named_sync = _declared("named_sync", "Every thread of the scope arrives at a hardware barrier and waits until all its threads have.")
named_arrive = _declared("named_arrive", "Every thread of the scope arrives at a hardware barrier, and goes on.")


@named_sync.simulate
def _(m, call, index):
    m.collective("a named barrier")
    barriers = call.attrs["barriers"]
    return m.named_sync(barriers.number, barriers.threads, index)


@named_arrive.simulate
def _(m, call, index):
    m.collective("a named barrier")
    barriers = call.attrs["barriers"]
    m.named_arrive(barriers.number, barriers.threads, index)


@named_sync.emit
def _(e, call, index):
    e.named_barrier("sync", call.attrs["barriers"], index)


@named_arrive.emit
def _(e, call, index):
    e.named_barrier("arrive", call.attrs["barriers"], index)


@op("syncs", attrs=("barriers",), collective=True)
def first_turn(barriers):
    """The arrival that gives member 0 its first turn, made at the kernel's start by the last threads of the CTA."""


@first_turn.infer
def _(g, barriers):
    return None


@first_turn.simulate
def _(m, call):
    barriers = call.attrs["barriers"]
    m.named_arrive(barriers.number, barriers.threads, 0, count=barriers.threads // 2)


@first_turn.emit
def _(e, call):
    e.first_turn(call.attrs["barriers"])


# -- the language's names --------------------------------------------------------------------------------------------------

def _made(g: Builder, threads, n) -> NamedBarriers:
    made = g.state.setdefault("named barriers", [])
    made.append(None)
    return NamedBarriers(len(made), threads, n)


def _whole_warps(g: Builder, threads) -> int:
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 32 or threads % 32:
        raise g.error(f"threads is a constant, a multiple of 32, not {describe(threads)}")
    if threads > g.launch.threads:
        raise g.error(f"the CTA has {g.launch.threads} threads, fewer than the {threads} that are to meet")
    return threads


@builtin
def named_barrier(g: Builder, threads, n=None):
    """A hardware barrier at which `threads` threads (whole warps) meet, or `n` of them, indexable.

    ``b.sync()`` arrives and waits for the others, ``b.arrive()`` arrives and goes on: a producer that arrives and a
    consumer that syncs are ordered by it. Both count every thread of the current scope. A CTA has 16 hardware barriers,
    one of them its own; the compiler assigns their numbers. (PTX ISA, "barrier".)
    """
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
        raise g.error(f"n is a constant of at least 1, not {describe(n)}")
    barriers = _made(g, _whole_warps(g, threads), n or 1)
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
    """Arrive with every thread of the scope, and wait until all the barrier's threads have."""
    _meet(g, named_sync, barrier)


def _arrive(g: Builder, barrier: NamedBarrier) -> None:
    """Arrive with every thread of the scope, and go on."""
    _meet(g, named_arrive, barrier)


@builtin
def turns(g: Builder, n, threads=128):
    """A baton that `n` groups of `threads` threads hand round, so that a part of their code runs in one group at a time.

    ``t.take(i)`` waits until it is member i's turn, ``t.pass_on(i)`` hands the turn on to member ``(i + 1) % n``. Member 0
    has the first turn; each member takes and passes on in every round. (PTX ISA, "barrier"; FlashAttention-3's "pingpong"
    schedule orders the softmax of one warpgroup against the products of the other this way.)
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise g.error(f"the number of members is a constant of at least 1, not {describe(n)}")
    if g.scope.kind != "cta" or g.scope.partial is not None or g.state.get("loops", 0):
        raise g.error("turns must be made once, at CTA scope and outside loops")
    _whole_warps(g, threads * n if isinstance(threads, int) else threads)
    barriers = _made(g, 2 * threads if n > 1 else threads, n)
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
    """Wait until it is member `i`'s turn; the current scope is that member."""
    i = _member(g, baton, i, 0)
    if baton.members > 1:
        _meet(g, named_sync, NamedBarrier(baton.barriers, i))


def _pass_on(g: Builder, baton: Turns, i) -> None:
    """Hand the turn of member `i`, which is the current scope, on to the next."""
    i = _member(g, baton, i, 1)
    if baton.members > 1:
        _meet(g, named_arrive, NamedBarrier(baton.barriers, i))


MEMBERS[NamedBarriers, "__getitem__"] = (_index, True)
MEMBERS[NamedBarrier, "sync"] = (_sync, True)
MEMBERS[NamedBarrier, "arrive"] = (_arrive, True)
MEMBERS[Turns, "take"] = (_take, True)
MEMBERS[Turns, "pass_on"] = (_pass_on, True)
