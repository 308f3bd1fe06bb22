"""What orders threads: scope barriers, named barriers, the cluster barrier, mbarriers and fences."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..names import allocation_name
from .barriers import TX_LIMIT, LastWait, MBarrier, NamedBarrier
from .clocks import BEFORE, ORDER, PASSED, READ, empty_clock
from .parts import MachineParts
from .shared_access import Place
from .values import SimBarrier
from .waits import BarrierWait, RowWait
from .world import World


class Synchronisation(MachineParts):
    """The part of the machine with barriers and fences."""

    burst: tuple[int, int]

    # -- barriers of a scope -------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """The barrier of the current scope. It never blocks, because the threads of a scope run in lock step."""
        self.sim.version += 1
        if self._divergent("sync()"):
            return
        for world, _ in self.worlds():
            world.clocks.sync(self.rank, self.atoms)
        return

    def sync_groups(self, group: np.ndarray) -> None:
        """A barrier of the threads with the same number in `group`, (B or 1, T); those with -1 take no part. The atoms
        are no larger than the groups: see `program.Program`."""
        self.sim.version += 1
        rows, which = np.unique(group, axis=0, return_inverse=True)
        for n, row in enumerate(rows):
            positions = None if len(rows) == 1 else np.flatnonzero(which.reshape(-1) == n)
            for world, _ in self.worlds(positions):
                for number in np.unique(row[row >= 0]):
                    world.clocks.sync(self.rank, np.unique(self.sim.atom_of[self.low + np.flatnonzero(row == number)]))

    def exchange(self) -> None:
        """The threads of the scope exchange values, as in a reduction:
        the reads that these were computed from are done."""
        for world, _ in self.worlds():
            world.clocks.exchange(self.rank, self.atoms)

    def _divergent(self, what: str) -> bool:
        """Report, and return, whether only some threads of the scope reach a collective operation."""
        active = self._active
        if active is None or active.all():
            return False
        idle = int(np.argmin(active.all(axis=0))) + self.low
        self.finding("divergent-collective", f"{what} is reached by only some of the {self.threads} threads of its "
                                             f"scope: thread {idle} does not reach it", threads=(idle,))
        return True

    def collective(self, what: str) -> None:
        """Check that all threads of the scope take part in a collective operation."""
        self._divergent(what)

    def named_sync(self, number: Any, threads: int, index: Any = 0) -> RowWait:
        """Arrive at a hardware barrier for `threads` threads, number `index` of those named `number`,
        and wait for all of them."""
        index = np.asarray(index).reshape(-1, 1)[:, :1]
        generations = self.named_arrive(number, threads, index)
        return RowWait(self, _named_ready, _named_words, _named_pass, (generations, index, number), self.loc)

    def named_arrive(self, number: Any, threads: int, index: Any = 0, count: int | None = None) -> np.ndarray:
        """Let `count` threads (by default those of the scope) arrive at a hardware barrier without waiting. Returns
        the generation that their arrival belongs to, (B, 1)."""
        self.sim.version += 1
        generations = np.zeros((self.batch, 1), np.int64)
        for positions, (i,) in self.cases(np.asarray(index).reshape(-1, 1)):
            for world, where in self.worlds(positions):
                key = "named", self.rank, number, i
                barrier = world.named.get(key)
                if barrier is None:
                    barrier = world.named[key] = NamedBarrier(threads, empty_clock(world.clocks),
                                                              empty_clock(world.clocks))
                generations[slice(None) if where is None else where] = barrier.generation + 1
                if barrier.arrived + (count or self.threads) > threads:
                    self.fault(world, "barrier-phase", f"{count or self.threads} threads arrive at a named barrier for "
                                                       f"{threads}, at which {barrier.arrived} have already arrived")
                clock = world.clocks.release(self.rank, self.atoms)
                if (clock[ORDER] < barrier.done[ORDER]).any():
                    self.sim.suspect(world, self.rank,
                                     self.line, "nothing orders this arrival at a named barrier after those that "
                                                "completed its previous use: it may count toward that use, "
                                                "and other threads then pass the barrier too early or wait for ever")
                barrier.arrive(count or self.threads, clock)
                barrier.line, barrier.baton = self.line, barrier.baton or count is not None
        return generations

    # -- the cluster's barrier -----------------------------------------------------------------------------------------

    def cluster_arrive(self, relaxed: bool = False) -> None:
        """Arrive at the cluster barrier. A `relaxed` arrival releases only what a fence came after."""
        self.sim.version += 1
        for world, _ in self.worlds():
            barrier = world.named.get(("cluster",))
            if barrier is None:
                total = self.sim.ranks * self.sim.program.threads
                barrier = world.named["cluster",] = NamedBarrier(total, empty_clock(world.clocks),
                                                                 empty_clock(world.clocks))
            arrived = [("cluster", self.rank, int(atom)) for atom in self.atoms]
            if any(key in world.facts for key in arrived):
                self.fault(world, "barrier-phase",
                           "the threads arrive at the cluster's barrier for the second time without a wait in between; "
                           "a kernel with a cluster also ends with a barrier of all its threads")
            world.facts.update(dict.fromkeys(arrived, barrier.generation + 1))
            barrier.arrive(self.threads, self._release_clock(world, self.atoms, relaxed)[0])

    def cluster_wait(self) -> RowWait:
        """Wait until all threads of the cluster have arrived."""
        return RowWait(self, _cluster_ready, _cluster_words, _cluster_pass, (), self.loc)

    def cluster_sync(self) -> RowWait:
        """Arrive at the cluster barrier and wait."""
        self.cluster_arrive()
        return self.cluster_wait()

    # -- registers -----------------------------------------------------------------------------------------------------

    def set_registers(self, count: int) -> RowWait:
        """``setmaxnreg``: let each thread of the scope's warpgroups have `count` registers, and wait until the CTA has
        that many left."""
        self.collective("setmaxnreg")
        return RowWait(self, _registers_free, _registers_words, _registers_pass, (np.full((1, 1), count),), self.loc)

    def hold_registers(self, count: int) -> None:
        """Record that each thread of the scope has `count` registers."""
        self.sim.version += 1
        for world, _ in self.worlds():
            world.facts.update({("registers", self.rank, w): count
                                for w in range(self.low // 128, -(-self.high // 128))})

    # -- fences --------------------------------------------------------------------------------------------------------

    def fence_proxy_async(self, space: str = "shared") -> None:
        """``fence.proxy.async``: order the threads' ordinary accesses so far to the CTA's shared memory, to the
        cluster's (`space` "cluster"), to global memory ("global") or to all of these ("all") before accesses through
        the async proxy after the next barrier."""
        if self.sim.contended:
            for world, _ in self.worlds():
                world.clocks.settle(self.rank, self.active_atoms)
        if space != "global":
            self._fence_shared(space != "shared")
        if space in ("global", "all") and self.sim.contended:
            global_clocks = self.sim.global_clocks
            near = self._near(self.ctas) if global_clocks is not None else {}
            for world, _ in self.worlds():
                world.clocks.fence_global(self.rank, self.active_atoms)
            if global_clocks is not None:
                for cta, cluster in near.items():
                    global_clocks.proxy_fence(cta, cluster[cta])

    def _fence_shared(self, peers: bool) -> None:
        if self._active is None or self._active.all():
            for world, _ in self.worlds():
                world.clocks.fence(self.rank, self.atoms, peers=peers)
            return
        for positions, threads, active in self._alike(Place(np.arange(self.low, self.high)[None], (), self._active)):
            for world, _ in self.worlds(positions):
                self._fence_some(world, threads[active], peers)

    def _fence_some(self, world: World, threads: np.ndarray, peers: bool) -> None:
        """A proxy fence in these threads, perhaps not in all of their atoms. An atom's accesses are ordered if each
        of their threads has had a fence since."""
        clocks, key = world.clocks, ("fenced", self.rank, peers)
        # each thread's epoch at its last such fence
        last = np.array(world.facts.get(key, np.zeros(self.sim.program.threads, np.int32)))
        atoms = self.sim.atom_of[threads]
        last[threads] = clocks.now[self.rank, atoms]
        world.facts[key] = last
        shadows = [shadow for (space, _), shadow in world.shadows.items() if space == "shared"]
        atoms = np.unique(atoms)
        own = [a for a in atoms if all(s.fenced_by(clocks, self.rank, a, last) for s in shadows)]
        clocks.fence(self.rank, atoms, np.array(own, int), peers)

    def fence_mbarrier_init(self) -> None:
        """Make initialised mbarriers visible to other CTAs and the async proxy. No effect:
        the simulator's are visible at once."""

    def griddepcontrol_wait(self) -> None:
        """Wait for the preceding grids. No effect: launches are simulated one after the other."""

    def griddepcontrol_launch_dependents(self) -> None:
        """Let the next grid start. No effect: launches are simulated one after the other."""

    # -- mbarriers -----------------------------------------------------------------------------------------------------

    def mbarrier(self, value: Any, n: int = 1, counts: Any = 1) -> SimBarrier:
        """The `n` barriers of an allocation, initialised and visible to the whole cluster. `counts` is one int,
        or n of them."""
        counts = [counts] * n if np.ndim(counts) == 0 else list(counts)
        first = self.sim.barrier_numbers.setdefault(value, self.sim.next_barrier)
        if first == self.sim.next_barrier:
            self.sim.next_barrier += n
            self.sim.barrier_values[first] = value
        for world, _ in self.worlds():
            for i, count in enumerate(counts):
                # The kernel's entry ends with a cluster barrier, so all barriers are initialised for the first
                # thread that uses one.
                for rank in range(self.sim.ranks):
                    if (rank, first + i) not in world.barriers:
                        self._init(world, rank, first + i, int(count))
        return SimBarrier(value.type, first)

    def _init(self, world: World, rank: int, number: int, count: int) -> None:
        if not 1 <= count < 1 << 20:
            self.finding("barrier-lifecycle", f"an mbarrier counts 1 to {(1 << 20) - 1} arrivals, not {count}")
            count = max(count, 1)
        old = world.barriers.get((rank, number))
        if old is not None and old.valid:
            self.finding("barrier-lifecycle",
                         "an mbarrier that is in use is initialised again: it has not been invalidated")
        world.barriers[rank, number] = MBarrier(count, count, empty_clock(world.clocks), empty_clock(world.clocks),
                                                self.line)

    def mbarrier_init(self, barrier: SimBarrier, count: np.ndarray) -> None:
        """Initialise a barrier, (B or 1, 1) arrivals. Other threads may use it once they have synchronised with this
        one."""
        atom = int(self.active_atoms[0])
        for world, rank, number, (n,) in self._each(barrier, count, used=False):
            self._init(world, rank, number, n)
            own = world.clocks.column(self.rank, atom)
            world.barriers[rank, number].born = own, int(world.clocks.now[self.rank, atom])

    def barrier_in_memory(self, slots: np.ndarray, peer: np.ndarray | None) -> SimBarrier:
        """The mbarrier at byte ``8 * slots``, (B or 1, 1), of shared memory."""
        table = self.sim.barrier_slots
        numbers = [table.setdefault(int(n), len(table)) for n in slots.flat]
        return SimBarrier(None, self.sim.program.made_barriers, np.array(numbers).reshape(-1, 1), peer)

    def phases(self, barrier: SimBarrier) -> tuple[np.ndarray, np.ndarray]:
        """The number of completed phases and of pending arrivals, (B, 1) each."""
        phase, pending = np.zeros((2, self.batch, 1), np.int64)
        for where, b in _barriers(self, barrier):
            if b is not None:
                at = slice(None) if where is None else where
                phase[at], pending[at] = b.phase, b.pending
        return phase, pending

    def mbarrier_inval(self, barrier: SimBarrier) -> None:
        """Invalidate a barrier."""
        for world, rank, number, _ in self._each(barrier):
            world.barriers[rank, number].valid = False

    def _each(self, barrier: SimBarrier, *values: Any, used: bool = True):
        """(world, rank, number, ints of `values`) for each barrier that the CTAs refer to; with `used`,
        only valid ones."""
        self.sim.version += 1
        for positions, (index, peer, *ints) in self.cases(barrier.index, barrier.peer, *values):
            rank = self.rank if peer is None else peer
            number = barrier.first + (index or 0)
            for world, _ in self.worlds(positions):
                if used and not self._usable(world, rank, number):
                    continue
                yield world, rank, number, ints

    def _usable(self, world: World, rank: int, number: int) -> bool:
        found = world.barriers.get((rank, number))
        if found is None or not found.valid:
            what = "before it was initialised" if found is None else "after it was invalidated"
            self.finding("barrier-lifecycle",
                         f"an mbarrier of {'another CTA' if rank != self.rank else 'the CTA'} is used {what}")
            return False
        if found.born is not None and self.checks:  # initialised in the kernel
            column, epoch = found.born
            late = [a for a in self.active_atoms if world.clocks.column(self.rank, int(a)) != column
                    and world.clocks.known[self.rank, a, ORDER, column] < epoch]
            if late:
                found.born = None
                place = self.sim.locs[found.line]
                self.finding("barrier-lifecycle", "an mbarrier may be used before it is initialised "
                                                  f"at line {place.line if place else '?'}: nothing orders the two. "
                                                  "Synchronise after the initialisation",
                             other=place)
        return True

    def arrive(self, barrier: SimBarrier, n: Any = 1, alone: bool = False) -> None:
        """Arrive for the scope with `n` arrivals (in a partial scope, `n` for each active thread). `alone` says that
        one thread arrives without a barrier of the scope before it."""
        n = np.asarray(n).reshape(-1, 1)
        if self._active is not None:
            n = n * self._active.sum(axis=1, keepdims=True)
        for world, rank, number, (count,) in self._each(barrier, n):
            if count:
                clock = world.clocks.release(self.rank, self.active_atoms, alone and self.threads > 32)
                self._follow(world, rank, number, clock)
                self._arrive(world, rank, number, count, clock)
        if not alone and self._active is None:
            self.exchange()

    def arrive_each(self, barrier: SimBarrier, n: np.ndarray, relaxed: bool = False, drop: bool = False,
                    completes: bool = True) -> None:
        """Arrive with each active thread, (B or 1, 1) times in all. A `relaxed` arrival releases only what a fence came
        after; with `drop`, the following phases expect as many fewer; without `completes`, these may not be the last
        arrivals of the phase."""
        for world, rank, number, (count,) in self._each(barrier, n):
            if not count:
                continue
            b = world.barriers[rank, number]
            clock, full = self._release_clock(world, self.active_atoms, relaxed)
            self._follow(world, rank, number, full)
            if not completes and count >= b.pending:
                self.fault(world, "barrier-phase", f"an arrival that may not complete the phase (noComplete) is its "
                                                   f"last: {b.pending} of {b.count} are missing")
            b.count -= count if drop else 0
            self._arrive(world, rank, number, count, clock)

    def _release_clock(self, world: World, atoms: np.ndarray, relaxed: bool) -> tuple[np.ndarray, np.ndarray]:
        """What an arrival of these atoms releases, and all that they know. A relaxed one releases what their last
        fences came after."""
        full = world.clocks.release(self.rank, atoms)
        if not relaxed:
            return full, full
        clock = np.maximum.reduce([empty_clock(world.clocks),
                                   *(world.facts[key] for a in atoms
                                     if (key := ("fence", self.rank, int(a))) in world.facts)])
        clock[PASSED] = full[PASSED]
        return clock, full

    def note_fence(self) -> None:
        """Record what a fence of each active thread comes after, for its relaxed arrivals."""
        for world, _ in self.worlds() if self.sim.program.relaxed else ():
            for atom in self.active_atoms:
                world.facts["fence", self.rank, int(atom)] = world.clocks.release(self.rank, np.array([atom]))

    def _follow(self, world: World, rank: int, number: int, clock: np.ndarray) -> None:
        """Record an arrival, and whether it is known to come after the end of the previous phase.

        Consecutive arrivals with no other effect between them count as simultaneous, with the epoch of the first. If
        the arriving thread knows of such an arrival by a thread that ended the phase, or that thread knows of one by
        this thread, then the two arrivals at this barrier may come in either order: neither thread knows more than
        the other.
        """
        b, atoms = (world.barriers[rank, number],
                    self.active_atoms if self._active is not None else self.active_atoms[:1])
        columns = [world.clocks.column(self.rank, int(atom)) for atom in atoms]
        deeds, epoch = self.burst
        if self.deeds - deeds > 1:
            epoch = int(clock[READ, columns].max())
        self.burst = self.deeds, epoch
        if b.early is None and not b.follows(clock, world.clocks.barrier_column(rank, number), columns, epoch):
            b.early = self.rank, self.line
        b.arrived.update((column, min(epoch, int(clock[READ, column]))) for column in columns)

    def _arrive(self, world: World, rank: int, number: int, count: int, clock: np.ndarray | None) -> None:
        b = world.barriers[rank, number]
        if count > b.pending - b.coming:
            self.fault(world, "barrier-phase", b.too_many(count))
            count = min(count, b.pending)
        b.pending -= count
        if clock is not None:
            np.maximum(b.clock, clock, out=b.clock)
            b.arrived_after(clock)
        self.sim.settle_phase(world, rank, number)

    def expect_tx(self, barrier: SimBarrier, nbytes: Any) -> None:
        """Announce bytes for the current phase."""
        for world, rank, number, (count,) in self._each(barrier, np.asarray(nbytes).reshape(-1, 1)):
            b = world.barriers[rank, number]
            b.tx += count
            b.expected += count
            b.expect_line = self.line
            atom = int(self.active_atoms[0])
            own, known = world.clocks.column(self.rank, atom), world.clocks.known[self.rank, atom]
            b.announce(known, world.clocks.barrier_column(rank, number), own, int(world.clocks.now[self.rank, atom]),
                       self.rank, self.line)
            self.within_limit(world, b)
            self.sim.settle_phase(world, rank, number)

    def complete_tx(self, barrier: SimBarrier, nbytes: Any) -> None:
        """Count bytes of the current phase as arrived."""
        for world, rank, number, (count,) in self._each(barrier, np.asarray(nbytes).reshape(-1, 1)):
            b = world.barriers[rank, number]
            b.tx -= count
            b.issued += count
            np.maximum(b.clock[PASSED], world.clocks.release(self.rank, self.active_atoms)[PASSED], out=b.clock[PASSED])
            self.within_limit(world, b)
            self.sim.settle_phase(world, rank, number)

    def within_limit(self, world: World, b: MBarrier) -> None:
        """Report a phase whose pending bytes may exceed the range of an mbarrier:
        announced and sent bytes may come in any order."""
        for nbytes, verb in ((b.expected, "announced"), (b.issued, "sent")):
            if nbytes > TX_LIMIT:
                self.fault(world, "transaction-count",
                           f"{nbytes} bytes are {verb} in one phase of an mbarrier, and it counts at most {TX_LIMIT}")

    def arrive_expect_tx(self, barrier: SimBarrier, nbytes: Any, n: Any = 1) -> None:
        """Announce bytes, then arrive."""
        self.expect_tx(barrier, nbytes)
        self.arrive(barrier, n)

    def test(self, barrier: SimBarrier, parity: Any) -> np.ndarray:
        """Whether the phase of that parity is over, (B, 1). Where it is, the scope acquires what the phase has
        released. If only this test can end the surrounding loop, it counts as a wait."""
        result, waited = np.zeros((self.batch, 1), bool), self.fiber.node in self.sim.program.spins
        for positions, (index, peer, phase) in self.cases(barrier.index, barrier.peer, parity):
            rank, number = self.rank if peer is None else peer, barrier.first + (index or 0)
            for world, where in self.worlds(positions):
                if self._usable(world, rank, number) and world.barriers[rank, number].passed(phase):
                    result[slice(None) if where is None else where] = True
                    self._learn(world, rank, number, waited)
        self.sim.asked |= not result.all()
        return result

    def wait(self, barrier: SimBarrier, parity: Any) -> RowWait:
        """Wait until the phase of that parity (any integer, mod 2) is over."""
        parity = np.broadcast_to(np.asarray(parity).reshape(-1, 1)[:, :1], (self.batch, 1))
        begun = np.zeros((self.batch, 1), np.int64)  # completed phases when the wait begins
        for where, b in _barriers(self, barrier):
            begun[slice(None) if where is None else where] = b.phase if b is not None else 0
        return BarrierWait(self, _phase_passed, _missing, _pass, (barrier, parity, begun), self.loc)

    def _learn(self, world: World, rank: int, number: int, waited: bool = True) -> None:
        b = world.barriers[rank, number]
        column = world.clocks.barrier_column(rank, number)
        b.done[ORDER, column] = b.done[PASSED, column] = b.phase
        if world.clocks.tensor:  # tcgen05.commit implies a fence::before_thread_sync
            b.done[BEFORE, column] = b.phase
        atoms = self.active_atoms
        for atom in atoms:
            atom = int(atom)
            if waited and b.phase > 1:
                self._judge_haste(world, b, column, atom)
            known = b.waits.get((self.rank, atom))
            stale = b.phase <= (known.phase if known is not None else 0)
            now = int(world.clocks.now[self.rank, atom])
            b.waits[self.rank, atom] = LastWait(self.line, stale, b.phase, now if waited else 0)
            world.last_wait[self.rank, atom] = self.line, stale and b.phase > 0
            if stale and b.phase > 0 and world.stale is None:
                world.stale = self.line
            world.facts["passed", self.rank, atom, rank, number] = now
        world.clocks.acquire(self.rank, atoms, b.done)
        for op in world.recent.get(column, ()):
            op.awaited = op.awaited or op.phases.get((rank, number), 0) < b.phase
            if op.touches and op.phases.get((rank, number), 0) < b.phase:
                self.sim.end_touches(op, column, op.phases.get((rank, number), 0) + 1)

    def _judge_haste(self, world: World, b: MBarrier, column: int, atom: int) -> None:
        """Suspect a wait for the last phase if its threads need not know that the phase before it was over. Had the
        wait begun earlier, it would have seen the parity of the phase before both and returned at once."""
        known = world.clocks.known[self.rank, atom, ORDER]
        if known[column] >= b.phase - 1 or (b.before is not None and (known >= b.before[ORDER]).all()):
            return
        start, stop = self.sim.atom_threads(atom)
        who = f"thread {start} waits" if stop - start == 1 else f"threads {start} to {stop - 1} wait"
        self.sim.suspect(world, self.rank,
                         self.line, f"nothing guarantees that phase {b.phase - 2} of the mbarrier has completed when "
                                    f"{who} for phase {b.phase - 1}: before that the wait returns at once, "
                                    "since the phase two earlier has the same parity. Wait for every phase, "
                                    f"or synchronise with a thread that has waited for phase {b.phase - 2}")


def _barriers(m, barrier: SimBarrier):
    """(positions, MBarrier or None) for each barrier that the CTAs refer to, without splitting worlds."""
    for positions, (index, peer) in m.cases(barrier.index, barrier.peer):
        rank, number = m.rank if peer is None else peer, barrier.first + (index or 0)
        for world, where in m.peek(positions):
            yield where, world.barriers.get((rank, number))


def _phase_passed(m, barrier: SimBarrier, parity: np.ndarray, begun: np.ndarray) -> np.ndarray:
    ready = np.ones(m.batch, bool)
    for where, b in _barriers(m, barrier):
        if b is not None and b.valid:
            at = slice(None) if where is None else where
            ready[at] = ((b.phase & 1) != (parity[at, 0] & 1)) | (b.phase > begun[at, 0])
    return ready


def _missing(m, barrier: SimBarrier, parity: np.ndarray, begun: np.ndarray) -> str:
    for _, b in _barriers(m, barrier):
        if b is not None and not b.passed(int(parity.flat[0])):
            index = int(barrier.index.flat[0]) if barrier.index is not None else 0
            if barrier.type is None:
                place = next(at for at, n in m.sim.barrier_slots.items() if n == index)
                return (f"waits for phase {b.phase} (parity {b.phase & 1}) of the mbarrier in "
                        f"{m.sim.program.places.words(8 * place, 8)}, which is missing {b.missing()}")
            made = m.sim.barrier_values[barrier.first]
            where = f" of CTA rank {int(barrier.peer.flat[0])}" if barrier.peer is not None else ""
            name, element = (f"mbarrier {index}", f"[{index}]") if made.type.n > 1 else ("the mbarrier", "")
            called = allocation_name(made.name, made.loc)
            called = f" ({called}{element})" if called else ""
            return (f"waits for phase {b.phase} (parity {b.phase & 1}) of {name}{where}, "
                    f"which is missing {b.missing()}{called}")
    return "waits for an mbarrier"


def _pass(m, barrier: SimBarrier, parity: np.ndarray, begun: np.ndarray) -> None:
    for positions, (index, peer, old) in m.cases(barrier.index, barrier.peer, begun):
        rank, number = m.rank if peer is None else peer, barrier.first + (index or 0)
        for world, _ in m.worlds(positions):
            if not m._usable(world, rank, number):
                continue
            b = world.barriers[rank, number]
            if b.phase > old + 1 and (old & 1) == (int(parity.flat[0]) & 1):
                m.fault(world, "barrier-phase", f"phases {old} and {old + 1} of the mbarrier both completed before "
                                                "this wait saw the first: its threads may wait for ever")
            m._learn(world, rank, number)


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
    m.hold_registers(int(count[0, 0]))


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
            world.clocks.acquire(m.rank, m.atoms, world.named["named", m.rank, number, i].done)


def _cluster_ready(m) -> np.ndarray:
    ready = np.zeros(m.batch, bool)
    for world, where in m.peek():
        wanted = [world.facts.get(("cluster", m.rank, int(atom))) for atom in m.atoms]
        ready[slice(None) if where is None else where] = (None not in wanted
                                                          and world.named["cluster",].generation >= max(wanted))
    return ready


def _cluster_words(m) -> str:
    world = m.peek()[0][0]
    if any(("cluster", m.rank, int(atom)) not in world.facts for atom in m.atoms):
        return "waits for the cluster's barrier, at which it has not arrived"
    barrier = world.named["cluster",]
    return f"waits for the cluster's barrier, where {barrier.arrived} of {barrier.threads} threads have arrived"


def _cluster_pass(m) -> None:
    for world, _ in m.worlds():
        for atom in m.atoms:
            del world.facts["cluster", m.rank, int(atom)]
        world.clocks.acquire(m.rank, m.atoms, world.named["cluster",].done)
