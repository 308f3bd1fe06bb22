"""mbarriers in emitted code."""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import bool_, int32
from ..ir.builder import type_as
from ..ir.graph import Value
from ..types import Barrier
from .component import Component
from .value import V


@dataclass
class EBarriers:
    """An array of `n` mbarriers at a byte offset in shared memory."""

    n: int
    offset: int


@dataclass
class EBarrier:
    """The address of one mbarrier: a register plus a constant. A `remote` one is a shared::cluster address."""

    address: V
    offset: int = 0
    remote: bool = False


class Barriers(Component):
    """The part of the emitter for mbarriers."""

    def array(self, value: Value) -> EBarriers:
        return EBarriers(type_as(value, Barrier).n, self.e.graph.shared[value])

    def at(self, block, at, rank=None) -> EBarrier:
        offset = int(at.text) if isinstance(at, V) and at.text.isdigit() else None
        if offset is not None:
            place = EBarrier(self.e.shared_base(), block.offset + 8 * offset)
        else:
            place = EBarrier(self.e.shared_base() + at * 8, block.offset)
        if rank is None:
            return place
        address = self.e.asm("mapa.shared::cluster.u32 $0, $1, $2;", [int32], [place.address + place.offset, rank],
                             pure=True)[0]
        return EBarrier(address, 0, remote=True)

    def initialise(self) -> None:
        """At the kernel's entry, one thread initialises all mbarriers, followed by a fence and a barrier of the CTA
        or cluster. It is a thread of the last warp, since thread 0 prefetches tensor maps at the same time."""
        made = [(v, o) for v, o in self.e.graph.shared.items() if hasattr(v.type, "count")]
        if not made:
            return
        hopper = self.e.architecture >= 90
        first, done = self.e.label("init"), self.e.label("ready")
        self.e.branch_if(self.e.absolute_thread().equals((self.e.graph.launch.threads - 1) // 32 * 32), first, done)
        self.e.start(first)
        for value, offset in made:
            for i in range(type_as(value, Barrier).n):
                self.e.asm(f"mbarrier.init.shared::cta.b64 [$0 + {offset + 8 * i}], {type_as(value, Barrier).count};",
                           [], [self.e.shared_base()])
        if hopper:
            self.e.asm("fence.mbarrier_init.release.cluster;")
        self.e.branch(done)
        self.e.start(done)
        if self.e.graph.launch.cluster:
            self.e.sync.cluster_arrive()
            self.e.sync.cluster_wait()
        else:
            self.e.sync.cta()

    def _run_elected(self, then) -> None:
        """Run `then` in the first thread of the scope, after a barrier that orders the accesses of the
        whole scope before it."""
        if self.e.first_thread() is not None:
            self.e.sync.scope()
        self.e.control.by_first_thread(then)

    def arrive(self, barrier: EBarrier, n: V) -> None:
        own = "shared::cta" if self.e.architecture >= 90 else "shared"
        space = "shared::cluster" if barrier.remote else own
        # Default semantics, since .release.cluster on a remote barrier costs a MEMBAR.ALL.GPU before each arrival.
        state = "_" if self.e.architecture >= 90 else "s"
        text = f"mbarrier.arrive.{space}.b64 {state}, [$0 + {barrier.offset}]"
        if self.e.architecture < 90:
            self._run_elected(lambda: [self.e.asm("{ .reg .b64 s; " + text + "; }", [], [barrier.address])
                                       for _ in range(int(n.text))])
        elif n.text == "1":
            self._run_elected(lambda: self.e.asm(text + ";", [], [barrier.address]))
        else:
            self._run_elected(lambda: self.e.asm(text + ", $1;", [], [barrier.address, n]))

    def expect_tx(self, barrier: EBarrier, nbytes: V) -> None:
        space = "shared::cluster" if barrier.remote else "shared::cta"
        self._run_elected(
            lambda: self.e.asm(f"mbarrier.expect_tx.relaxed.{'cluster' if barrier.remote else 'cta'}.{space}.b64 [$0 + "
                               f"{barrier.offset}], $1;", [], [barrier.address, nbytes]))

    def arrive_expect_tx(self, barrier: EBarrier, nbytes: V) -> None:
        space = "shared::cluster" if barrier.remote else "shared::cta"
        self._run_elected(lambda: self.e.asm(f"mbarrier.arrive.expect_tx.{space}.b64 _, [$0 + {barrier.offset}], $1;",
                                             [], [barrier.address, nbytes]))

    def wait(self, barrier: EBarrier, parity: V, seen: V | None = None) -> None:
        """Spin on ``try_wait``, which suspends the thread in hardware (sm_90 and later), or on ``test_wait``. A warp
        that has `seen` the end of the phase goes on.

        The lanes of a warp leave together, by a vote, since nothing else gathers them before the scope's next barrier.
        Without it, core dumps of an H200 show kernels that hang with the first lane of a warp one trip ahead, and the
        others at a wait whose phase is over: the first one had arrived for its warp. ptxas had the barrier's address in
        an ordinary register there, not in a uniform one, for which it takes the answers of all lanes to be the same.
        (So they were in 7e7 tries of a warp that was together, with either address, none of which ran into its time
        limit. What parts the lanes is not known.)
        """
        word = "try_wait" if self.e.architecture >= 90 else "test_wait"
        vote = self._vote()
        skip, end = ("@$2 bra D; ", "D: ") if seen is not None else ("", "")
        self.e.asm(f"{{ .reg .pred p; {skip}W: mbarrier.{word}.parity.shared::cta.b64 p, [$0 + {barrier.offset}], $1;"
                   f"{vote} @!p bra W; {end}}}", [], [barrier.address, parity, *([seen] if seen is not None else ())],
                   convergent=bool(vote))

    def _vote(self) -> str:
        """A vote of the lanes of the scope in each warp on the predicate p; empty where lanes wait by themselves."""
        alone = self.e.threads == 1 or (self.e.divided if self.e.threads >= 32 else self.e.partial)
        return "" if alone else f" vote.sync.all.pred p, p, {self.e.scope_lanes()};"

    def peek(self, barrier: EBarrier, parity: V) -> V:
        """``test_wait`` and a vote. Tested early, a wait is skipped: 4 to 5 % of the time of float8 products."""
        vote = self._vote()
        return self.e.asm(f"{{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [$1 + {barrier.offset}], $2;"
                          f"{vote} mov.pred $0, p; }}", [bool_], [barrier.address, parity], convergent=bool(vote))[0]

    def test(self, barrier: EBarrier, parity: V) -> V:
        return self.e.asm(f"mbarrier.test_wait.parity.shared::cta.b64 $0, [$1 + {barrier.offset}], $2;", [bool_],
                          [barrier.address, parity])[0]

    def arrive_on_copies(self, barrier: EBarrier, noinc: bool) -> None:
        self.e.asm(f"cp.async.mbarrier.arrive{'.noinc' if noinc else ''}.shared::cta.b64 [$0 + {barrier.offset}];", [],
                   [barrier.address])
