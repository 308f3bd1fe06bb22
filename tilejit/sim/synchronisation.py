"""What orders threads: the barriers of scopes, hardware barriers, the cluster's barrier, and fences."""

from __future__ import annotations

from typing import Any

import numpy as np

from .barriers import NamedBarrier
from .component import Component
from .shared_access import Place
from .vector_clocks import ORDER, empty_clock
from .waits import RowWait
from .world import World


class Synchronisation(Component):
    """The part of the machine with barriers and fences."""

    # -- barriers of a scope -------------------------------------------------------------------------------------------

    def scope(self) -> None:
        """The barrier of the current scope. It never blocks, because the threads of a scope run in lock step."""
        self.m.sim.version += 1
        if self._reports_divergence("sync()"):
            return
        for world, _ in self.m.worlds():
            world.clocks.sync(self.m.rank, self.m.atoms)
        return

    def groups(self, group: np.ndarray) -> None:
        """A barrier of the threads with the same number in `group`, (B or 1, T); those with -1 take no part. The atoms
        are no larger than the groups: see `program.Program`."""
        self.m.sim.version += 1
        rows, which = np.unique(group, axis=0, return_inverse=True)
        for n, row in enumerate(rows):
            positions = None if len(rows) == 1 else np.flatnonzero(which.reshape(-1) == n)
            for world, _ in self.m.worlds(positions):
                for number in np.unique(row[row >= 0]):
                    world.clocks.sync(self.m.rank,
                                      np.unique(self.m.sim.atom_of[self.m.low + np.flatnonzero(row == number)]))

    def exchange(self) -> None:
        """The threads of the scope exchange values, as in a reduction:
        the reads that these were computed from are done."""
        for world, _ in self.m.worlds():
            world.clocks.exchange(self.m.rank, self.m.atoms)

    def _reports_divergence(self, what: str) -> bool:
        """Report, and return, whether only some threads of the scope reach a collective operation."""
        active = self.m.active_mask
        if active is None or active.all():
            return False
        idle = int(np.argmin(active.all(axis=0))) + self.m.low
        self.m.finding("divergent-collective", f"{what} is reached by only some of the {self.m.threads} threads of its "
                                               f"scope: thread {idle} does not reach it", threads=(idle,))
        return True

    def collective(self, what: str) -> None:
        """Check that all threads of the scope take part in a collective operation."""
        self._reports_divergence(what)

    def named_barrier(self, number: Any, threads: int, index: Any = 0) -> RowWait:
        """Arrive at a hardware barrier for `threads` threads, number `index` of those named `number`,
        and wait for all of them."""
        index = np.asarray(index).reshape(-1, 1)[:, :1]
        generations = self.named_arrive(number, threads, index)
        return NamedWait(self.m, _named_ready, _named_words, _named_pass, (generations, index, number), self.m.loc)

    def named_arrive(self, number: Any, threads: int, index: Any = 0, count: int | None = None) -> np.ndarray:
        """Let `count` threads (by default the active ones of the scope) arrive at a hardware barrier without waiting.
        Returns the generation that their arrival belongs to, (B, 1)."""
        self.m.sim.version += 1
        arriving = count or int(self.m.active[0].sum())
        generations = np.zeros((self.m.batch, 1), np.int64)
        for positions, (i,) in self.m.cases(np.asarray(index).reshape(-1, 1)):
            for world, where in self.m.worlds(positions):
                key = "named", self.m.rank, number, i
                barrier = world.named.get(key)
                if barrier is None:
                    barrier = world.named[key] = NamedBarrier(threads, empty_clock(world.clocks),
                                                              empty_clock(world.clocks))
                generations[slice(None) if where is None else where] = barrier.generation + 1
                if barrier.arrived + arriving > threads:
                    self.m.fault(world, "barrier-phase",
                                 f"{arriving} threads arrive at a named barrier for "
                                 f"{threads}, at which {barrier.arrived} have already arrived")
                clock = world.clocks.release(self.m.rank, self.m.active_atoms)
                if (clock[ORDER] < barrier.done[ORDER]).any():
                    self.m.sim.suspect(world, self.m.rank, self.m.line,
                                       "nothing orders this arrival at a named barrier after those that completed its "
                                       "previous use: it may count toward that use, and other threads then pass the "
                                       "barrier too early or wait for ever")
                self.m.sim.note_arrival(world, key, barrier.generation + 1)
                barrier.arrive(arriving, clock)
                barrier.line, barrier.baton = self.m.line, barrier.baton or count is not None
        return generations

    # -- the cluster's barrier -----------------------------------------------------------------------------------------

    def cluster_arrive(self, relaxed: bool = False) -> None:
        """Arrive at the cluster barrier. A `relaxed` arrival releases only what a fence came after."""
        self.m.sim.version += 1
        for world, _ in self.m.worlds():
            barrier = world.named.get(("cluster",))
            if barrier is None:
                total = self.m.sim.ranks * self.m.sim.program.threads
                barrier = world.named["cluster",] = NamedBarrier(total, empty_clock(world.clocks),
                                                                 empty_clock(world.clocks))
            atoms = self.m.active_atoms
            arrived = [("cluster", self.m.rank, int(atom)) for atom in atoms]
            if any(key in world.facts for key in arrived):
                self.m.fault(world, "barrier-phase",
                             "the threads arrive at the cluster's barrier for the second time without a wait in "
                             "between; a kernel with a cluster also ends with a barrier of all its threads")
            world.facts.update(dict.fromkeys(arrived, barrier.generation + 1))
            self.m.sim.note_arrival(world, ("cluster",), barrier.generation + 1)
            threads = sum(stop - start for start, stop in map(self.m.sim.atom_threads, atoms))
            barrier.arrive(threads, self.m.barriers.release_clock(world, atoms, relaxed)[0])

    def cluster_wait(self) -> RowWait:
        """Wait until all threads of the cluster have arrived."""
        return ClusterWait(self.m, _cluster_ready, _cluster_words, _cluster_pass, (), self.m.loc)

    def cluster_sync(self) -> RowWait:
        """Arrive at the cluster barrier and wait."""
        self.cluster_arrive()
        return self.cluster_wait()

    # -- registers -----------------------------------------------------------------------------------------------------

    def set_registers(self, count: int) -> RowWait:
        """``setmaxnreg``: let each thread of the scope's warpgroups have `count` registers, and wait until the CTA has
        that many left."""
        self.collective("setmaxnreg")
        return RowWait(self.m, _registers_free, _registers_words, _registers_pass, (np.full((1, 1), count),),
                       self.m.loc)

    def hold_registers(self, count: int) -> None:
        """Record that each thread of the scope has `count` registers."""
        self.m.sim.version += 1
        for world, _ in self.m.worlds():
            world.facts.update({("registers", self.m.rank, w): count
                                for w in range(self.m.low // 128, -(-self.m.high // 128))})

    # -- fences --------------------------------------------------------------------------------------------------------

    def fence_proxy_async(self, space: str = "shared") -> None:
        """``fence.proxy.async``: order the threads' ordinary accesses so far to the CTA's shared memory, to the
        cluster's (`space` "cluster"), to global memory ("global") or to all of these ("all") before accesses through
        the async proxy after the next barrier."""
        if self.m.sim.contended:
            for world, _ in self.m.worlds():
                world.clocks.settle(self.m.rank, self.m.active_atoms)
        if space != "global":
            self._fence_shared(space != "shared")
        if space in ("global", "all") and self.m.sim.contended:
            for world, _ in self.m.worlds():
                world.clocks.fence_global(self.m.rank, self.m.active_atoms)
            if self.m.sim.global_clocks is not None:
                for group in self.m.ordered.groups(self.m.active_atoms):
                    self.m.sim.global_clocks.proxy_fence(group)

    def _fence_shared(self, peers: bool) -> None:
        if self.m.active_mask is None or self.m.active_mask.all():
            for world, _ in self.m.worlds():
                world.clocks.fence(self.m.rank, self.m.atoms, peers=peers)
            return
        place = Place(np.arange(self.m.low, self.m.high)[None], (), self.m.active_mask)
        for positions, threads, active in self.m.shared.group_alike(place):
            atoms = np.unique(self.m.sim.atom_of[threads[active]])
            for world, _ in self.m.worlds(positions):
                world.clocks.fence(self.m.rank, atoms, peers=peers)

    def fence_mbarrier_init(self) -> None:
        """``fence.mbarrier_init``: the mbarriers that the threads have initialised are visible to the async proxy, and
        after a relaxed arrival at the cluster's barrier to other CTAs."""
        for world, _ in self.m.worlds():
            columns = set(world.clocks.column(self.m.rank, self.m.active_atoms).tolist())
            for barrier in world.barriers.values():
                barrier.visible |= barrier.born is not None and barrier.born[0] in columns

    def griddepcontrol_wait(self) -> None:
        """Wait for the preceding grids. No effect: launches are simulated one after the other."""

    def griddepcontrol_launch_dependents(self) -> None:
        """Let the next grid start. No effect: launches are simulated one after the other."""


class NamedWait(RowWait):
    """A wait at a hardware barrier."""

    def events(self):
        generations, index, number = self.params
        for _, (generation, i) in self.m.cases(generations, index):
            for world, _ in self.m.peek():
                yield world, ("named", self.m.rank, number, i, generation)


class ClusterWait(RowWait):
    """A wait at the cluster's barrier."""

    def events(self):
        for world, _ in self.m.peek():
            for atom in self.m.active_atoms:
                yield world, ("cluster", world.facts.get(("cluster", self.m.rank, int(atom)), 0))


def _registers(m, world: World, count: int) -> list[int]:
    """The registers that a thread of each warpgroup has if those of the scope get `count`."""
    mine = range(m.low // 128, -(-m.high // 128))
    begin, groups = m.sim.graph.launch.registers, range(-(-m.sim.program.threads // 128))
    return [count if w in mine else world.facts.get(("registers", m.rank, w), begin) for w in groups]


def _registers_free(m, count: np.ndarray) -> np.ndarray:
    ready = np.zeros(m.batch, bool)
    for world, where in m.peek():
        held = _registers(m, world, int(count[0, 0]))
        ready[slice(None) if where is None else where] = sum(held) <= m.sim.graph.launch.registers * len(held)
    return ready


def _registers_words(m, count: np.ndarray) -> str:
    held = _registers(m, m.peek()[0][0], int(count[0, 0]))
    return (f"waits for registers: with these, the warpgroups would have {' + '.join(map(str, held))} = {sum(held)} "
            f"per thread, and the CTA begins with {len(held)} times {m.sim.graph.launch.registers}")


def _registers_pass(m, count: np.ndarray) -> None:
    m.sync.hold_registers(int(count[0, 0]))


def _named_barriers_of(m, index: np.ndarray, number: Any):
    """(positions, NamedBarrier) for each hardware barrier that the CTAs refer to, without splitting worlds."""
    for positions, (i,) in m.cases(index):
        for world, where in m.peek(positions):
            yield slice(None) if where is None else where, world.named["named", m.rank, number, i]


def _named_ready(m, generations: np.ndarray, index: np.ndarray, number: Any) -> np.ndarray:
    ready = np.zeros(m.batch, bool)
    for at, barrier in _named_barriers_of(m, index, number):
        ready[at] = barrier.generation >= generations[at, 0]
    return ready


def _named_words(m, generations: np.ndarray, index: np.ndarray, number: Any) -> str:
    _, barrier = next(_named_barriers_of(m, index, number))
    return f"waits at a named barrier, where {barrier.arrived} of {barrier.threads} threads have arrived"


def _named_pass(m, generations: np.ndarray, index: np.ndarray, number: Any) -> None:
    for positions, (i,) in m.cases(index):
        for world, _ in m.worlds(positions):
            world.clocks.acquire(m.rank, m.active_atoms, world.named["named", m.rank, number, i].done)


def _cluster_ready(m) -> np.ndarray:
    ready = np.zeros(m.batch, bool)
    for world, where in m.peek():
        wanted = [world.facts.get(("cluster", m.rank, int(atom))) for atom in m.active_atoms]
        ready[slice(None) if where is None else where] = (None not in wanted
                                                          and world.named["cluster",].generation >= max(wanted))
    return ready


def _cluster_words(m) -> str:
    world = m.peek()[0][0]
    if any(("cluster", m.rank, int(atom)) not in world.facts for atom in m.active_atoms):
        return "waits for the cluster's barrier, at which it has not arrived"
    barrier = world.named["cluster",]
    return f"waits for the cluster's barrier, where {barrier.arrived} of {barrier.threads} threads have arrived"


def _cluster_pass(m) -> None:
    for world, _ in m.worlds():
        for atom in m.active_atoms:
            del world.facts["cluster", m.rank, int(atom)]
        world.clocks.acquire(m.rank, m.active_atoms, world.named["cluster",].done)
