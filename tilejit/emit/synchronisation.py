"""Emits synchronisation: barriers of scopes, hardware and cluster barriers, fences, groups of copies."""

from __future__ import annotations

from ..concurrency import cached_property
from ..dtypes import bool_
from ..errors import CompilationError
from ..ir.graph import Call, Const, walk
from ..ops.ptx.calls import HARDWARE_BARRIERS
from .component import Component
from .value import V


class Synchronisation(Component):
    """The part of the emitter for barriers, groups of copies and fences."""

    def scope(self) -> None:
        """Synchronise the threads of the current scope."""
        scope = self.e.scope
        if self.e.threads == 1:
            return
        if scope.kind == "cta":
            self.cta()
        elif self.e.threads <= 32:
            self.e.asm(f"bar.warp.sync {self.e.scope_lanes()};", convergent=True)
        else:
            self._bar("barrier.sync" if self.e.lane_loops else "bar.sync", self._scope_barrier(), self.e.threads)

    def cta(self) -> None:
        """The barrier of all threads of the CTA.

        ``bar.sync`` is ``barrier.sync.aligned``: ptxas may take each warp as converged there. It does so even after a
        loop or wait of one lane. Such a loop contains YIELD, which lets the other lanes pass BSYNC without that lane,
        and the WARPSYNC that would gather them is left out if the code between contains, say, a sine. The warp then
        arrives twice, and the kernel hangs. Scopes with such a loop use the form that is not aligned.
        """
        self.e.asm("barrier.sync 0;" if self.e.kernel_lane_loops else "bar.sync 0;", convergent=True)

    def vote(self, word: str, condition: V) -> V:
        """Whether a condition holds in all threads of the current scope of several warps ('and'), or in any ('or'), by
        its barrier. PTX ISA, "barrier.red". ptxas takes the result for another one in each thread, and a branch by it
        would put what loops count in uniform registers into ordinary ones; so each warp votes on it."""
        cta = self.e.scope.kind == "cta"
        apart = self.e.kernel_lane_loops if cta else self.e.lane_loops  # see `cta`
        name = f"{'barrier' if apart else 'bar'}.red.{word}.pred"
        ident = 0 if cta else self._scope_barrier()
        if isinstance(ident, int):
            text, inputs = f"{name} $0, {ident}, {self.e.threads}, $1;", [condition]
        else:
            text, inputs = f"{name} $0, $2, {self.e.threads}, $1;", [condition, ident]
        return self.e.warp.redux(word, self.e.asm(text, [bool_], inputs, convergent=True)[0])

    def named_barrier(self, what: str, barriers, index) -> None:
        """``bar.sync`` or ``bar.arrive`` (`what`) on number `index` of the kernel's named barriers."""
        base = self._reserve(barriers, barriers.n)
        index = int(index.text) if isinstance(index, V) and index.text.isdigit() else index
        self._bar(f"bar.{what}", index + base, barriers.threads)

    def first_turn(self, barriers) -> None:
        """Arrive on barrier 0 of a `turns` object, so that its first member may begin. The arriving threads are the
        last ones of the CTA, as many as one member has."""
        base, member = self._reserve(barriers, barriers.n), barriers.threads // 2
        last = self.e.ins(f"icmp uge {self.e.absolute_thread().typed_text}, {self.e.graph.launch.threads - member}",
                          bool_)
        self.e.asm(f"@$0 bar.arrive {base}, {barriers.threads};", [], [last], convergent=True)

    def _bar(self, what: str, ident, threads: int) -> None:
        if isinstance(ident, int):
            text, inputs = f"{what} {ident}, {threads};", []
        else:
            text, inputs = f"{what} $0, {threads};", [ident]
        self.e.asm(text, [], inputs, convergent=True)

    def _scope_barrier(self):
        """The id of the hardware barrier of the current scope, a group of warps.
        Each set of warps that synchronises has its own."""
        scope = self.e.scope
        first = scope.first.value if isinstance(scope.first, Const) else scope.first
        if isinstance(first, int):
            return self._reserve((scope.kind, first, scope.threads), 1)
        return self.e.operand(first) + self._reserve((scope.kind, "any", scope.threads),
                                                     self.e.graph.launch.threads // scope.threads)

    @cached_property
    def _named_by_number(self) -> set[int]:
        """The ids of the hardware barriers that the kernel uses directly, by ``bar`` and ``barrier`` instructions."""
        calls = (n for n in walk(self.e.graph.body) if isinstance(n, Call) and n.op.traits.instruction)
        barriers = (c.args[0] for c in calls if c.attrs["form"].startswith(("bar.", "barrier.")) and c.args)
        return {int(number.value) for number in barriers if isinstance(number, Const)}

    def _reserve(self, key, n: int) -> int:
        """The id of the first of `n` consecutive hardware barriers that are reserved for `key`.
        Barrier 0 is the CTA's."""
        if key not in self.e.barrier_ids:
            first = max((start + count for start, count in self.e.barrier_ids.values()), default=1)
            while self._named_by_number & set(range(first, first + n)):
                first += 1
            if first + n > HARDWARE_BARRIERS:
                raise CompilationError(f"a CTA has {HARDWARE_BARRIERS} hardware barriers, and this kernel needs "
                                       f"{first + n} or more: one for the CTA, one for each group of warps that "
                                       "synchronises, and those of named_barrier and turns", self.e.loc)
            self.e.barrier_ids[key] = first, n
        return self.e.barrier_ids[key][0]

    def cp_async_commit(self) -> None:
        self.e.asm("cp.async.commit_group;")

    def cp_async_wait(self, n: int) -> None:
        self.e.asm(f"cp.async.wait_group {n};")

    def bulk_commit(self) -> None:
        self.e.asm("cp.async.bulk.commit_group;")

    def bulk_wait(self, n: int, read: bool) -> None:
        self.e.asm(f"cp.async.bulk.wait_group{'.read' if read else ''} {n};")

    def fence_proxy_async(self, space: str) -> None:
        self.e.asm(f"fence.proxy.async{ {'shared': '.shared::cta', 'global': '.global', 'all': ''}[space]};")

    def fence_mbarrier_init(self) -> None:
        self.e.asm("fence.mbarrier_init.release.cluster;")

    def cluster_arrive(self) -> None:
        self.e.asm("barrier.cluster.arrive;", convergent=True)

    def cluster_wait(self) -> None:
        self.e.asm("barrier.cluster.wait;", convergent=True)

    def griddepcontrol_wait(self) -> None:
        self.e.asm("griddepcontrol.wait;")

    def griddepcontrol_launch_dependents(self) -> None:
        self.e.asm("griddepcontrol.launch_dependents;")
