"""mbarriers, copy groups, fences and cluster barriers in emitted code."""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import bool_, int32
from ..ir.builder import type_as
from ..ir.graph import Value
from ..types import Barrier
from .parts import EmitterParts
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


class BarrierMixin(EmitterParts):
    """The part of the emitter for mbarriers, asynchronous groups, fences and cluster barriers."""

    def barriers(self, value: Value) -> EBarriers:
        return EBarriers(type_as(value, Barrier).n, self.graph.shared[value])

    def barrier_at(self, block, at, rank=None) -> EBarrier:
        offset = int(at.text) if isinstance(at, V) and at.text.isdigit() else None
        if offset is not None:
            place = EBarrier(self.shared_base(), block.offset + 8 * offset)
        else:
            place = EBarrier(self.shared_base() + at * 8, block.offset)
        if rank is None:
            return place
        address = self.asm("mapa.shared::cluster.u32 $0, $1, $2;", [int32], [place.address + place.offset, rank],
                           pure=True)[0]
        return EBarrier(address, 0, remote=True)

    def init_barriers(self) -> None:
        """At the kernel's entry, one thread initialises all mbarriers, followed by a fence and a barrier of the CTA
        or cluster. It is a thread of the last warp, since thread 0 prefetches tensor maps at the same time."""
        made = [(v, o) for v, o in self.graph.shared.items() if hasattr(v.type, "count")]
        if not made:
            return
        hopper = self.architecture >= 90
        first, done = self.label("init"), self.label("ready")
        self.branch_if(self.absolute_thread().equals((self.graph.launch.threads - 1) // 32 * 32), first, done)
        self.start(first)
        for value, offset in made:
            for i in range(type_as(value, Barrier).n):
                self.asm(f"mbarrier.init.shared::cta.b64 [$0 + {offset + 8 * i}], {type_as(value, Barrier).count};", [],
                         [self.shared_base()])
        if hopper:
            self.asm("fence.mbarrier_init.release.cluster;")
        self.branch(done)
        self.start(done)
        if self.graph.launch.cluster:
            self.cluster_arrive()
            self.cluster_wait()
        else:
            self.cta_barrier()

    def _run_elected(self, then) -> None:
        """Run `then` in the first thread of the scope, after a barrier that orders the accesses of the
        whole scope before it."""
        if self.first_thread() is not None:
            self.sync()
        self.by_first_thread(then)

    def mbarrier_arrive(self, barrier: EBarrier, n: V) -> None:
        own = "shared::cta" if self.architecture >= 90 else "shared"
        space = "shared::cluster" if barrier.remote else own
        # Default semantics, since .release.cluster on a remote barrier costs a MEMBAR.ALL.GPU before each arrival.
        state = "_" if self.architecture >= 90 else "s"
        text = f"mbarrier.arrive.{space}.b64 {state}, [$0 + {barrier.offset}]"
        if self.architecture < 90:
            self._run_elected(lambda: [self.asm("{ .reg .b64 s; " + text + "; }", [], [barrier.address])
                                       for _ in range(int(n.text))])
        elif n.text == "1":
            self._run_elected(lambda: self.asm(text + ";", [], [barrier.address]))
        else:
            self._run_elected(lambda: self.asm(text + ", $1;", [], [barrier.address, n]))

    def mbarrier_expect_tx(self, barrier: EBarrier, nbytes: V) -> None:
        space = "shared::cluster" if barrier.remote else "shared::cta"
        self._run_elected(
            lambda: self.asm(f"mbarrier.expect_tx.relaxed.{'cluster' if barrier.remote else 'cta'}.{space}.b64 [$0 + "
                             f"{barrier.offset}], $1;", [], [barrier.address, nbytes]))

    def mbarrier_arrive_expect_tx(self, barrier: EBarrier, nbytes: V) -> None:
        space = "shared::cluster" if barrier.remote else "shared::cta"
        self._run_elected(lambda: self.asm(f"mbarrier.arrive.expect_tx.{space}.b64 _, [$0 + {barrier.offset}], $1;", [],
                                           [barrier.address, nbytes]))

    def mbarrier_wait(self, barrier: EBarrier, parity: V) -> None:
        """Spin on ``try_wait``, which suspends the thread in hardware (sm_90 and later), or on ``test_wait``."""
        word = "try_wait" if self.architecture >= 90 else "test_wait"
        self.asm(f"{{ .reg .pred p; W: mbarrier.{word}.parity.shared::cta.b64 p, [$0 + {barrier.offset}], "
                 f"$1; @!p bra W; }}", [],
                 [barrier.address, parity])

    def mbarrier_test(self, barrier: EBarrier, parity: V) -> V:
        return self.asm(f"mbarrier.test_wait.parity.shared::cta.b64 $0, [$1 + {barrier.offset}], $2;", [bool_],
                        [barrier.address, parity])[0]

    def arrive_on_copies(self, barrier: EBarrier, noinc: bool) -> None:
        self.asm(f"cp.async.mbarrier.arrive{'.noinc' if noinc else ''}.shared::cta.b64 [$0 + {barrier.offset}];", [],
                 [barrier.address])

    def cp_async_commit(self) -> None:
        self.asm("cp.async.commit_group;")

    def cp_async_wait(self, n: int) -> None:
        self.asm(f"cp.async.wait_group {n};")

    def bulk_commit(self) -> None:
        self.asm("cp.async.bulk.commit_group;")

    def bulk_wait(self, n: int, read: bool) -> None:
        self.asm(f"cp.async.bulk.wait_group{'.read' if read else ''} {n};")

    def fence_proxy_async(self, space: str) -> None:
        self.asm(f"fence.proxy.async{ {'shared': '.shared::cta', 'global': '.global', 'all': ''}[space]};")

    def fence_mbarrier_init(self) -> None:
        self.asm("fence.mbarrier_init.release.cluster;")

    def cluster_arrive(self) -> None:
        self.asm("barrier.cluster.arrive;", convergent=True)

    def cluster_wait(self) -> None:
        self.asm("barrier.cluster.wait;", convergent=True)

    def griddepcontrol_wait(self) -> None:
        self.asm("griddepcontrol.wait;")

    def griddepcontrol_launch_dependents(self) -> None:
        self.asm("griddepcontrol.launch_dependents;")
