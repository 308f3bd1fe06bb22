"""mbarriers: arrivals, announced bytes, and waits for a phase."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..names import allocation_name
from .barriers import TX_LIMIT, LastWait, MBarrier
from .component import Component
from .values import SimBarrier
from .vector_clocks import BEFORE, ORDER, PASSED, READ, empty_clock
from .waits import BarrierWait, RowWait
from .world import World


class MBarriers(Component):
    """The part of the machine for mbarriers."""

    def array(self, value: Any, n: int = 1, counts: Any = 1) -> SimBarrier:
        """The `n` barriers of an allocation, initialised and visible to the whole cluster. `counts` is one int,
        or n of them."""
        counts = [counts] * n if np.ndim(counts) == 0 else list(counts)
        first = self.m.sim.barrier_numbers.setdefault(value, self.m.sim.next_barrier)
        if first == self.m.sim.next_barrier:
            self.m.sim.next_barrier += n
            self.m.sim.barrier_values[first] = value
        for world, _ in self.m.worlds():
            for i, count in enumerate(counts):
                # The kernel's entry ends with a cluster barrier, so all barriers are initialised for the first
                # thread that uses one.
                for rank in range(self.m.sim.ranks):
                    if (rank, first + i) not in world.barriers:
                        self._init(world, rank, first + i, int(count))
        return SimBarrier(value.type, first)

    def _init(self, world: World, rank: int, number: int, count: int) -> None:
        if not 1 <= count < 1 << 20:
            self.m.finding("barrier-lifecycle", f"an mbarrier counts 1 to {(1 << 20) - 1} arrivals, not {count}")
            count = max(count, 1)
        old = world.barriers.get((rank, number))
        if old is not None and old.valid:
            self.m.finding("barrier-lifecycle",
                           "an mbarrier that is in use is initialised again: it has not been invalidated")
        world.barriers[rank, number] = MBarrier(count, count, empty_clock(world.clocks), empty_clock(world.clocks),
                                                self.m.line)

    def init(self, barrier: SimBarrier, count: np.ndarray) -> None:
        """Initialise a barrier, (B or 1, 1) arrivals. Other threads may use it once they have synchronised with this
        one."""
        atom = int(self.m.active_atoms[0])
        for world, rank, number, (n,) in self.each_barrier(barrier, count, used=False):
            self._init(world, rank, number, n)
            own = world.clocks.column(self.m.rank, atom)
            world.barriers[rank, number].born = own, int(world.clocks.now[self.m.rank, atom])

    def in_memory(self, slots: np.ndarray, peer: np.ndarray | None) -> SimBarrier:
        """The mbarrier at byte ``8 * slots``, (B or 1, 1), of shared memory."""
        table = self.m.sim.barrier_slots
        numbers = [table.setdefault(int(n), len(table)) for n in slots.flat]
        return SimBarrier(None, self.m.sim.program.made_barriers, np.array(numbers).reshape(-1, 1), peer)

    def at(self, barrier: SimBarrier, index: Any, rank: Any = None) -> SimBarrier:
        """One of several barriers, by its index; of this CTA, or of the cluster's CTA `rank`."""
        index = np.asarray(index)[:, :1].astype(np.int64)
        n = self.m.sim.barrier_values[barrier.first].type.n
        if ((index < 0) | (index >= n)).any():
            self.m.finding("out-of-bounds", f"barrier {int(index.flat[0])} of {n} does not exist")
            index = np.clip(index, 0, n - 1)
        barrier = barrier.select(index)
        if rank is None:
            return barrier
        rank = np.asarray(rank)[:, :1].astype(np.int64)
        if ((rank < 0) | (rank >= self.m.cluster_size)).any():
            self.m.finding("out-of-bounds",
                           f"rank {int(rank.flat[0])} does not exist in a cluster of {self.m.cluster_size}")
            rank = np.clip(rank, 0, self.m.cluster_size - 1)
        return barrier.of_peer(rank)

    def phases(self, barrier: SimBarrier) -> tuple[np.ndarray, np.ndarray]:
        """The number of completed phases and of pending arrivals, (B, 1) each."""
        phase, pending = np.zeros((2, self.m.batch, 1), np.int64)
        for where, b in _barriers(self.m, barrier):
            if b is not None:
                at = slice(None) if where is None else where
                phase[at], pending[at] = b.phase, b.pending
        return phase, pending

    def invalidate(self, barrier: SimBarrier) -> None:
        """Invalidate a barrier."""
        for world, rank, number, _ in self.each_barrier(barrier):
            world.barriers[rank, number].valid = False

    def each_barrier(self, barrier: SimBarrier, *values: Any, used: bool = True):
        """(world, rank, number, ints of `values`) for each barrier that the CTAs refer to; with `used`,
        only valid ones."""
        self.m.sim.version += 1
        for positions, (index, peer, *ints) in self.m.cases(barrier.index, barrier.peer, *values):
            rank = self.m.rank if peer is None else peer
            number = barrier.first + (index or 0)
            for world, _ in self.m.worlds(positions):
                if used and not self.is_usable(world, rank, number):
                    continue
                yield world, rank, number, ints

    def is_usable(self, world: World, rank: int, number: int) -> bool:
        found = world.barriers.get((rank, number))
        if found is None or not found.valid:
            what = "before it was initialised" if found is None else "after it was invalidated"
            self.m.finding("barrier-lifecycle",
                           f"an mbarrier of {'another CTA' if rank != self.m.rank else 'the CTA'} is used {what}")
            return False
        if found.born is not None and self.m.checks:  # initialised in the kernel
            column, epoch = found.born
            plane = PASSED if found.visible else ORDER  # the fence has published it to those that run after its thread
            late = [a for a in self.m.active_atoms if world.clocks.column(self.m.rank, int(a)) != column
                    and world.clocks.known[self.m.rank, a, plane, column] < epoch]
            if late:
                found.born = None
                place = self.m.sim.locs[found.line]
                self.m.finding("barrier-lifecycle", "an mbarrier may be used before it is initialised "
                                                    f"at line {place.line if place else '?'}: nothing orders the two. "
                                                    "Synchronise after the initialisation",
                               other=place)
        return True

    def check_visible(self, world: World, rank: int, number: int) -> None:
        """Report an mbarrier on which a copy through the async proxy completes although no fence made its
        initialisation visible there."""
        found = world.barriers[rank, number]
        if found.born is None or found.visible:
            return
        (column, epoch), clocks = found.born, world.clocks
        atom = int(self.m.active_atoms[0])
        own = clocks.column(self.m.rank, atom) == column
        if max(clocks.known[self.m.rank, atom, clocks.fence_plane(column, rank), column],
               own * clocks.fences_of(self.m.rank, rank)[atom]) < epoch:
            found.born = None
            place = self.m.sim.locs[found.line]
            self.m.finding("missing-proxy-fence",
                           "the copy completes on an mbarrier through the async proxy, and no fence_mbarrier_init() "
                           f"follows its initialisation at line {place.line if place else '?'}", other=place)

    def arrive(self, barrier: SimBarrier, n: Any = 1, alone: bool = False) -> None:
        """Arrive for the scope with `n` arrivals (in a partial scope, `n` for each active thread). `alone` says that
        one thread arrives without a barrier of the scope before it."""
        for world, rank, number, (count,) in self.each_barrier(barrier, self._of_all_active(n)):
            if count:
                clock = world.clocks.release(self.m.rank, self.m.active_atoms, alone and self.m.threads > 32)
                self.follow(world, rank, number, clock)
                self._arrive(world, rank, number, count, clock)
        if not alone and self.m.active_mask is None:
            self.m.sync.exchange()

    def _of_all_active(self, n: Any) -> np.ndarray:
        """The sum of `n` over the active threads of a partial scope; else `n`, of the one thread that acts for its
        scope, (B or 1, 1)."""
        n = np.atleast_2d(n)
        return n[:, :1] if self.m.active_mask is None else (n * self.m.active_mask).sum(axis=1, keepdims=True)

    def arrive_each(self, barrier: SimBarrier, n: np.ndarray, relaxed: bool = False, drop: bool = False,
                    completes: bool = True) -> None:
        """Arrive with each active thread, (B or 1, 1) times in all. A `relaxed` arrival releases only what a fence came
        after; with `drop`, the following phases expect as many fewer; without `completes`, these may not be the last
        arrivals of the phase."""
        for world, rank, number, (count,) in self.each_barrier(barrier, n):
            if not count:
                continue
            b = world.barriers[rank, number]
            clock, full = self.release_clock(world, self.m.active_atoms, relaxed)
            self.follow(world, rank, number, full)
            if not completes and count >= b.pending:
                self.m.fault(world, "barrier-phase", f"an arrival that may not complete the phase (noComplete) is its "
                                                     f"last: {b.pending} of {b.count} are missing")
            b.count -= count if drop else 0
            self._arrive(world, rank, number, count, clock)

    def release_clock(self, world: World, atoms: np.ndarray, relaxed: bool) -> tuple[np.ndarray, np.ndarray]:
        """What an arrival of these atoms releases, and all that they know. A relaxed one releases what their last
        fences came after."""
        full = world.clocks.release(self.m.rank, atoms)
        if not relaxed:
            return full, full
        clock = np.maximum.reduce([empty_clock(world.clocks),
                                   *(world.facts[key] for a in atoms
                                     if (key := ("fence", self.m.rank, int(a))) in world.facts)])
        clock[PASSED] = full[PASSED]
        return clock, full

    def note_fence(self) -> None:
        """Record what a fence of each active thread comes after, for its relaxed arrivals."""
        for world, _ in self.m.worlds() if self.m.sim.program.relaxed else ():
            for atom in self.m.active_atoms:
                world.facts["fence", self.m.rank, int(atom)] = world.clocks.release(self.m.rank, np.array([atom]))

    def follow(self, world: World, rank: int, number: int, clock: np.ndarray) -> None:
        """Record an arrival, and whether it is known to come after the end of the previous phase.

        Consecutive arrivals with no other effect between them count as simultaneous, with the epoch of the first. If
        the arriving thread knows of such an arrival by a thread that ended the phase, or that thread knows of one by
        this thread, then the two arrivals at this barrier may come in either order: neither thread knows more than
        the other.
        """
        b, atoms = (world.barriers[rank, number],
                    self.m.active_atoms if self.m.active_mask is not None else self.m.active_atoms[:1])
        columns = [world.clocks.column(self.m.rank, int(atom)) for atom in atoms]
        deeds, epoch = self.m.burst
        if self.m.deeds - deeds > 1:
            epoch = int(clock[READ, columns].max())
        self.m.burst = self.m.deeds, epoch
        if b.early is None and not b.follows(clock, world.clocks.barrier_column(rank, number), columns, epoch):
            b.early = self.m.rank, self.m.line
        b.arrived.update((column, min(epoch, int(clock[READ, column]))) for column in columns)

    def _arrive(self, world: World, rank: int, number: int, count: int, clock: np.ndarray | None) -> None:
        b = world.barriers[rank, number]
        if count > b.pending - b.coming:
            self.m.fault(world, "barrier-phase", b.too_many(count))
            count = min(count, b.pending)
        b.pending -= count
        if clock is not None:
            np.maximum(b.clock, clock, out=b.clock)
            b.arrived_after(clock)
        self.m.sim.settle_phase(world, rank, number)

    def expect_tx(self, barrier: SimBarrier, nbytes: Any) -> None:
        """Announce bytes for the current phase."""
        for world, rank, number, (count,) in self.each_barrier(barrier, np.asarray(nbytes).reshape(-1, 1)):
            b = world.barriers[rank, number]
            b.tx += count
            b.expected += count
            b.expect_line = self.m.line
            atom = int(self.m.active_atoms[0])
            own, known = world.clocks.column(self.m.rank, atom), world.clocks.known[self.m.rank, atom]
            b.announce(known, world.clocks.barrier_column(rank, number), own, int(world.clocks.now[self.m.rank, atom]),
                       self.m.rank, self.m.line)
            self.within_limit(world, b)
            self.m.sim.settle_phase(world, rank, number)

    def complete_tx(self, barrier: SimBarrier, nbytes: Any) -> None:
        """Count bytes of the current phase as arrived."""
        for world, rank, number, (count,) in self.each_barrier(barrier, np.asarray(nbytes).reshape(-1, 1)):
            b = world.barriers[rank, number]
            b.tx -= count
            b.issued += count
            np.maximum(b.clock[PASSED], world.clocks.release(self.m.rank, self.m.active_atoms)[PASSED],
                       out=b.clock[PASSED])
            self.within_limit(world, b)
            self.m.sim.settle_phase(world, rank, number)

    def within_limit(self, world: World, b: MBarrier) -> None:
        """Report a phase whose pending bytes may exceed the range of an mbarrier:
        announced and sent bytes may come in any order."""
        for nbytes, verb in ((b.expected, "announced"), (b.issued, "sent")):
            if nbytes > TX_LIMIT:
                self.m.fault(world, "transaction-count",
                             f"{nbytes} bytes are {verb} in one phase of an mbarrier, and it counts at most {TX_LIMIT}")

    def arrive_expect_tx(self, barrier: SimBarrier, nbytes: Any, n: Any = 1) -> None:
        """Announce bytes, then arrive."""
        self.announce(barrier, nbytes)
        self.arrive(barrier, n)

    def announce(self, barrier: SimBarrier, nbytes: Any) -> None:
        """Announce bytes for the scope: in a partial scope, `nbytes` for each active thread."""
        self.expect_tx(barrier, self._of_all_active(nbytes))

    def peek(self, barrier: SimBarrier, parity: Any) -> np.ndarray:
        """A test that counts as the wait that it may replace."""
        return self._test(barrier, parity, waited=True)

    def test(self, barrier: SimBarrier, parity: Any) -> np.ndarray:
        """Whether the phase of that parity is over, (B, 1). Where it is, the scope acquires what the phase has
        released. If only this test can end the surrounding loop, it counts as a wait."""
        return self._test(barrier, parity, waited=self.m.fiber.node in self.m.sim.program.spins)

    def _test(self, barrier: SimBarrier, parity: Any, waited: bool) -> np.ndarray:
        seen = self.m.sim.program.is_read(self.m.fiber.node)
        result = np.zeros((self.m.batch, 1), bool)
        for positions, (index, peer, phase) in self.m.cases(barrier.index, barrier.peer, parity):
            rank, number = self.m.rank if peer is None else peer, barrier.first + (index or 0)
            for world, where in self.m.worlds(positions):
                if self.is_usable(world, rank, number) and world.barriers[rank, number].has_passed(phase):
                    result[slice(None) if where is None else where] = True
                    if seen:  # else nothing makes the thread wait for the phase
                        self.learn(world, rank, number, waited)
        self.m.sim.asked |= not result.all()
        return result

    def wait(self, barrier: SimBarrier, parity: Any) -> RowWait:
        """Wait until the phase of that parity (any integer, mod 2) is over."""
        parity = np.broadcast_to(np.asarray(parity).reshape(-1, 1)[:, :1], (self.m.batch, 1))
        begun = np.zeros((self.m.batch, 1), np.int64)  # completed phases when the wait begins
        for where, b in _barriers(self.m, barrier):
            begun[slice(None) if where is None else where] = b.phase if b is not None else 0
        return BarrierWait(self.m, _phase_passed, _describe_missing, _pass, (barrier, parity, begun), self.m.loc)

    def learn(self, world: World, rank: int, number: int, waited: bool = True) -> None:
        b = world.barriers[rank, number]
        column = world.clocks.barrier_column(rank, number)
        b.done[ORDER, column] = b.done[PASSED, column] = b.phase
        if world.clocks.tensor:  # tcgen05.commit implies a fence::before_thread_sync
            b.done[BEFORE, column] = b.phase
        atoms = self.m.active_atoms
        for atom in atoms:
            atom = int(atom)
            if waited and b.phase > 1:
                self._judge_haste(world, b, column, atom)
            known = b.waits.get((self.m.rank, atom))
            stale = b.phase <= (known.phase if known is not None else 0)
            now = int(world.clocks.now[self.m.rank, atom])
            b.waits[self.m.rank, atom] = LastWait(self.m.line, stale, b.phase, now if waited else 0)
            world.last_wait[self.m.rank, atom] = self.m.line, stale and b.phase > 0
            if stale and b.phase > 0 and world.stale is None:
                world.stale = self.m.line
            world.facts["passed", self.m.rank, atom, rank, number] = now
        world.clocks.acquire(self.m.rank, atoms, b.done)
        for op in world.recent.get(column, ()):
            op.awaited = op.awaited or op.phases.get((rank, number), 0) < b.phase
            if op.touches and op.phases.get((rank, number), 0) < b.phase:
                self.m.sim.end_touches(op, column, op.phases.get((rank, number), 0) + 1)

    def _judge_haste(self, world: World, b: MBarrier, column: int, atom: int) -> None:
        """Suspect a wait for the last phase if its threads need not know that the phase before it was over. Had the
        wait begun earlier, it would have seen the parity of the phase before both and returned at once."""
        known = world.clocks.known[self.m.rank, atom, ORDER]
        if known[column] >= b.phase - 1 or (b.before is not None and (known >= b.before[ORDER]).all()):
            return
        start, stop = self.m.sim.atom_threads(atom)
        who = f"thread {start} waits" if stop - start == 1 else f"threads {start} to {stop - 1} wait"
        self.m.sim.suspect(world, self.m.rank,
                           self.m.line,
                           f"nothing guarantees that phase {b.phase - 2} of the mbarrier has completed when "
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


def _describe_missing(m, barrier: SimBarrier, parity: np.ndarray, begun: np.ndarray) -> str:
    for _, b in _barriers(m, barrier):
        if b is not None and not b.has_passed(int(parity.flat[0])):
            index = int(barrier.index.flat[0]) if barrier.index is not None else 0
            if barrier.type is None:
                place = next(at for at, n in m.sim.barrier_slots.items() if n == index)
                return (f"waits for phase {b.phase} (parity {b.phase & 1}) of the mbarrier in "
                        f"{m.sim.program.places.words(8 * place, 8)}, which is missing {b.describe_pending()}")
            made = m.sim.barrier_values[barrier.first]
            where = f" of CTA rank {int(barrier.peer.flat[0])}" if barrier.peer is not None else ""
            name, element = (f"mbarrier {index}", f"[{index}]") if made.type.n > 1 else ("the mbarrier", "")
            called = allocation_name(made.name, made.loc)
            called = f" ({called}{element})" if called else ""
            return (f"waits for phase {b.phase} (parity {b.phase & 1}) of {name}{where}, "
                    f"which is missing {b.describe_pending()}{called}")
    return "waits for an mbarrier"


def _pass(m, barrier: SimBarrier, parity: np.ndarray, begun: np.ndarray) -> None:
    for positions, (index, peer, old) in m.cases(barrier.index, barrier.peer, begun):
        rank, number = m.rank if peer is None else peer, barrier.first + (index or 0)
        for world, _ in m.worlds(positions):
            if not m.barriers.is_usable(world, rank, number):
                continue
            b = world.barriers[rank, number]
            if b.phase > old + 1 and (old & 1) == (int(parity.flat[0]) & 1):
                m.fault(world, "barrier-phase", f"phases {old} and {old + 1} of the mbarrier both completed before "
                                                "this wait saw the first: its threads may wait for ever")
            m.barriers.learn(world, rank, number)
