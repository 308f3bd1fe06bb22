"""From a conflict between two accesses to a finding: its kind, the line to blame and the message."""

from __future__ import annotations

import numpy as np

from .barriers import LastWait
from .shadow import ATOMIC, COPIED, FIRST_ATOMIC, MANY, NEVER, PENDING, SUMMED, Access, Conflict
from .vector_clocks import BEFORE, FENCED, ORDER
from .verdicts import late_words
from .world import AsyncOp, World


class Reporter:
    """Reports the conflicts of accesses that machine `m` makes to memory `space` of the CTA of cluster rank `rank`."""

    def __init__(self, m, world: World, rank: int, space: str, positions: np.ndarray | None = None):
        self.m, self.world, self.rank, self.space, self.positions = m, world, rank, space, positions
        self.clocks = world.clocks
        self.shadow = world.shadow(space, rank, m.sim.cells(space))
        self.async_ = False  # whether the access belongs to an asynchronous operation

    # -- ordinary accesses ---------------------------------------------------------------------------------------------

    def report_access(self, a: Access, c: Conflict, writing: bool) -> None:
        """Report the conflict `c` of a thread's read or write."""
        verb = "written" if writing else "read"
        if c.what == "uninitialized":
            self._say("uninitialized-read", a.line,
                      f"{self._bytes(c)} are read, and nothing has been written there yet", a, c)
        elif c.what == "reader" and c.other % self.clocks.width >= self.clocks.atoms:
            self._say("missing-wait", a.line, f"{self._bytes(c)} are written while the operation at line "
                                              f"{self._number(c.line)}, which reads them, has not been waited for", a,
                      c, c.line)
        elif c.what == "unordered":
            self._report_unordered(a, c, f"{self._thread(a, c.at)} {'writes' if writing else 'reads'}")
        elif c.what in ("writer", "reader"):
            self._race(a, c, writing)
        elif c.what == "busy":
            self._report_overwrite(a, c)
        else:
            op = self._operation(c)
            if op is not None and not writing:
                self._too_early(a, c, op)
            else:
                self._retract(a, c)
                self._say("missing-wait", a.line,
                          f"{self._bytes(c)} are {verb} while {self._name_operation(op, c)} has not been waited for", a,
                          c)
        self._settle(a)

    def _race(self, a: Access, c: Conflict, writing: bool) -> None:
        mine, theirs = self._loc(a.line), self._loc(c.line)
        me, them, reads = self._thread(a, c.at), self._other_thread(c), c.what == "reader"
        late, early = (a.line, me, writing), (c.line, them, not reads)
        if theirs is not None and mine is not None and mine.line < theirs.line:  # blame the line further down
            late, early = early, late
        (line, who, writes), (other, by, wrote) = late, early
        did = "written" if wrote else "read"
        if c.again and line != a.line:
            did = f"{did} in a later iteration of the loop"
        self._retract(a, c)
        self._say("race", line, f"{who} {'writes' if writes else 'reads'} {self._bytes(c)}, {did} by {by} "
                  f"at line {self._number(other) or '?'} without a barrier between the two", a, c, other)

    def depends_on_layout(self, a: Access, c: Conflict, writing: bool) -> None:
        """Report an access that is ordered after the earlier one `c` only because the chosen layouts give both
        to the same thread."""
        if not self.m.sim.program.places.is_own(c.cell * self.m.sim.program.granule):
            return
        does, did = "writes" if writing else "reads", "read" if c.what == "reader" else "written"
        self._say("layout-dependent", a.line,
                  f"{self._thread(a, c.at)} {does} {self._bytes(c)}, {did} at line {self._number(c.line)} without "
                  "a barrier between the two. It is the same thread, but only by the layouts that were chosen: with "
                  "another num_warps, dtype or target it may be another. Put tile.sync() between them", a, c, c.line)

    def _fence(self, c: Conflict) -> str:
        """The fence that is missing after the earlier access: fence_proxy_async() is restricted to the
        own CTA's memory."""
        mine = self.clocks.fence_plane(c.other, self.rank) == FENCED
        return "fence_proxy_async()" if mine else "ptx.fence.proxy.async_.shared_cluster()"

    def _report_unordered(self, a: Access, c: Conflict, what: str) -> None:
        """Report accesses to tensor memory that are synchronised, but without a tcgen05 fence before or after
        the synchronisation."""
        told = self.clocks.known[self.m.rank, self._atom(a, c.at), BEFORE, c.other] >= c.epoch
        if told:
            line, other, here = a.line, c.line, ""
            side = 'tcgen05_fence("after_thread_sync") between the wait and it'
        else:
            line, other, here = c.line, a.line, f"at line {self._number(a.line)} "
            side = f'tcgen05_fence("before_thread_sync") between line {self._number(c.line)} and the barrier'
        self._say("tmem", line, f"{here}{what} {self._bytes(c)}, which {self._other_thread(c)} accessed at line "
                                f"{self._number(c.line)}, without {side}", a, c, other)

    def _report_overwrite(self, a: Access, c: Conflict) -> None:
        op = self._reader(c)
        text = f"{self._bytes(c)} are written while {self._name_operation(op, c)} may still read them"
        if op is None or self._knows_issue(a, c.at, op):
            self._say("missing-wait", a.line, text, a, c, op.line if op else None)
        else:
            self._say("race", op.line,
                      f"{text}: nothing orders the copy after the write at line {self._number(a.line)}", a, c, a.line)

    def _too_early(self, a: Access, c: Conflict, op: AsyncOp) -> None:
        """Report a read of bytes that an operation will write, or has written without this thread knowing of it."""
        atom = self._atom(a, c.at)
        for rank, number, _ in op.targets:
            if rank != self.rank:
                continue
            barrier = self.world.barriers[rank, number]
            wait = barrier.waits.get((self.m.rank, atom))
            if self._announced_late(op, a, c, a.line):
                return
            if wait is None:
                break
            if wait.stale:
                self._passed_early(wait, op, a, c, a.line)
                return
            if self._report_miscount(barrier, op, rank, number, a, c):
                return
            column = self.clocks.column(self.m.rank, atom)
            passed = self.world.facts.get(("passed", self.m.rank, atom, rank, number), 0)
            if self.world.last_read(op, self.space, self.rank, c.cell, column) < passed:
                self._say("race", op.line,
                          f"{self._name_operation(op, c)} overwrites {self._bytes(c)} that {self._thread(a, c.at)} "
                          f"still reads at line {self._number(a.line)}: nothing orders the copy after the read", a, c,
                          a.line)
                return
        self._say("missing-wait", a.line,
                  f"{self._bytes(c)} are read before {self._name_operation(op, c)} has been waited for", a, c, op.line)

    def _announced_late(self, op: AsyncOp | None, a: Access, c: Conflict, line: int) -> bool:
        """Blame, and return, whether the bytes of `op` were announced after the last arrival of the phase before, for
        which some threads have waited. `line` is that of the fault."""
        found = self.m.sim.late_announcement(op) if op is not None else None
        if op is None or found is None:
            return False
        early, phase = found
        self._retract(a, c)
        self._say("barrier-phase", early, late_words(op, phase, self._loc(op.line)), a, c, line)
        return True

    def _report_miscount(self, barrier, op: AsyncOp, rank: int, number: int, a: Access, c: Conflict) -> bool:
        """Report, and return, whether fewer bytes were announced for the phase that was waited for than
        its copies bring."""
        phase = op.phases.get((rank, number), -1)
        current = phase == barrier.phase and barrier.issued > barrier.expected
        earlier = ("sent late", rank, number) in self.world.facts
        if barrier.expect_line < 0 or not (current or earlier):
            return False
        self._say("transaction-count", barrier.expect_line,
                  "fewer bytes are announced than the copies of this phase transfer: "
                  f"it completed before {self._name_operation(op, c)} had landed", a, c, op.line)
        return True

    # -- asynchronous accesses -----------------------------------------------------------------------------------------

    def report_operation(self, op: AsyncOp, a: Access, c: Conflict, writing: bool) -> None:
        """Report the conflict `c` that an asynchronous operation has when it is issued."""
        self.async_ = True
        verb = "writes" if writing else "reads"
        name = f"{op.what}"
        if c.what == "uninitialized":
            self._say("uninitialized-read", a.line,
                      f"{name} reads {self._bytes(c)}, and nothing has been written there yet", a, c)
        elif c.what == "unfenced" and c.thread in (COPIED, SUMMED):
            brought = self._operation(c)
            self._say("missing-proxy-fence", a.line,
                      f"{name} {verb} {self._bytes(c)} through the async proxy; "
                      f"{'cp.async' if brought is None else brought.what} at line {self._number(c.line)} wrote them, "
                      "and there is no fence_proxy_async() between the wait for that copy and this operation", a, c,
                      c.line)
        elif c.what == "unfenced":
            self._say("missing-proxy-fence", a.line,
                      f"{name} {verb} {self._bytes(c)} through the async proxy; {self._other_thread(c)} wrote them at "
                      f"line {self._number(c.line)} without {self._fence(c)} between its write and the barrier", a, c,
                      c.line)
        elif c.what == "overtaking":
            self._say("missing-proxy-fence", a.line,
                      f"{name} writes {self._bytes(c)} through the async proxy; {self._other_thread(c)} read them at "
                      f"line {self._number(c.line)} without {self._fence(c)} between its read and the barrier", a, c,
                      c.line)
            # without settling: the copy will be the last access anyway, and the reads tell whether it was waited for
            return
        elif c.what == "unordered":
            self._report_unordered(a, c, f"{name} {verb}")
        elif self._announced_late(self._operation_of_conflict(op, c), a, c, a.line):
            pass
        elif c.what in ("pending", "async"):
            other = self._operation(c)
            self._blame_wait(op, a, c, "missing-wait", f"{name} {verb} {self._bytes(c)} before "
                                                       f"{self._name_operation(other, c)} has been waited for")
        elif c.what == "busy":
            self._blame_wait(op, a, c, "missing-wait",
                             f"{name} overwrites {self._bytes(c)} while {self._name_operation(self._reader(c), c)} "
                             "may still read them")
        elif c.what == "reader" and c.other % self.clocks.width >= self.clocks.atoms:
            self._blame_wait(op, a, c, "missing-wait", f"{name} overwrites {self._bytes(c)} whose asynchronous reader "
                                                       f"at line {self._number(c.line)} has not been waited for")
        elif c.what == "reader" and writing and self.shadow.explains(a, c.line):
            self._read_too_early(op, a, c, name)
        else:
            past = "read" if c.what == "reader" else "written"
            self._retract(a, c)
            self._blame_wait(op, a, c, "race", f"{name} {verb} {self._bytes(c)}, {past} by {self._other_thread(c)} at "
                                               f"line {self._number(c.line)}, and nothing orders the two")
        self._settle(a)

    def _read_too_early(self, op: AsyncOp, a: Access, c: Conflict, name: str) -> None:
        """A thread read bytes before the operation that first writes them was even issued. Either its own wait
        returned at once, or it did not wait."""
        self.m.report.retract("uninitialized-read", self._number(c.line))
        reader = divmod(c.other, self.clocks.width)
        for rank, number, _ in op.targets:
            wait = self.world.barriers[rank, number].waits.get(reader) if rank == self.rank else None
            if wait is not None and wait.stale:
                self._passed_early(wait, op, a, c, c.line)
                return
        self._say("missing-wait", c.line,
                  f"{self._bytes(c)} are read before {name} at line {self._number(a.line)} has been waited for", a, c,
                  a.line)

    def _passed_early(self, wait: LastWait, op: AsyncOp, a: Access, c: Conflict, other: int) -> None:
        """Blame a stale wait for the fault at line `other`. The verdict on the first stale wait says itself that the
        wait returned at once."""
        early = ""
        if self.world.stale is None:
            early = "the wait returned at once, because a phase of that parity had already completed: "
        self._say("barrier-phase", wait.line, f"{early}phase {wait.phase} of the barrier, "
                                              f"which {self._name_operation(op, c)} completes, has not completed yet",
                  a, c, other)

    def _blame_wait(self, op: AsyncOp, a: Access, c: Conflict, kind: str, text: str) -> None:
        """Report `kind`, or, if the last wait of the issuing thread was stale, that wait."""
        wait = self.world.last_wait.get((op.rank, op.atom))
        if wait is not None and wait[1]:
            self._say("barrier-phase", wait[0], text, a, c, a.line)
        else:
            self._say(kind, a.line, text, a, c, c.line or None)

    # -- words ---------------------------------------------------------------------------------------------------------

    def _operation(self, c: Conflict) -> AsyncOp | None:
        """The operation that has written, or will write, the cell of the conflict."""
        if c.what == "pending":
            return self.world.ops.get(c.other - PENDING)
        for op in reversed(self.world.recent.get(c.other, ())):
            if any(space == self.space and rank == self.rank and c.cell in where for space, rank, where in op.writes):
                return op
        return None

    def _operation_of_conflict(self, op: AsyncOp, c: Conflict) -> AsyncOp | None:
        """The operation whose end the conflict is about: the one that writes the cell, or `op` itself."""
        if c.what in ("pending", "async"):
            return self._operation(c)
        return op if c.what == "reader" else None

    def _reader(self, c: Conflict) -> AsyncOp | None:
        for op in self.world.flight:
            if any(space == self.space and rank == self.rank and c.cell in where for space, rank, where in op.reads):
                return op
        return None

    def _knows_issue(self, a: Access, at: int, op: AsyncOp) -> bool:
        atom = self._atom(a, at)
        thread = self._thread_number(a, at)
        issued = op.thread in (MANY, thread) if op.threads is None else bool((op.threads == thread).any())
        if op.rank == self.m.rank and op.atom == atom and issued:
            return True
        return self.clocks.known[self.m.rank, atom, ORDER, self.clocks.column(op.rank, op.atom)] >= op.epoch

    def _name_operation(self, op: AsyncOp | None, c: Conflict) -> str:
        line = op.line if op is not None else c.line
        return f"{op.what if op is not None else 'the asynchronous copy'} at line {self._number(line)}"

    def _atom(self, a: Access, at: int) -> int:
        return int(np.broadcast_to(a.atoms, len(a.cells))[at])

    def _thread_number(self, a: Access, at: int) -> int:
        return int(np.broadcast_to(a.threads, len(a.cells))[at])

    def _thread(self, a: Access, at: int) -> str:
        thread = self._thread_number(a, at)
        if thread >= 0:
            return f"thread {thread}"
        start, stop = self.m.sim.atom_threads(self._atom(a, at))
        return f"one of the threads {start} to {stop - 1}"

    def _other_thread(self, c: Conflict) -> str:
        rank, column = divmod(c.other, self.clocks.width)
        place = f" of CTA rank {rank}" if rank != self.m.rank else ""
        if c.thread >= 0:
            return f"thread {c.thread}{place}"
        if column >= self.clocks.atoms:
            return f"an asynchronous copy{place}"
        if c.thread <= FIRST_ATOMIC:
            return f"an atomic of thread {FIRST_ATOMIC - c.thread}{place}"
        start, stop = self.m.sim.atom_threads(column)
        kind = "an atomic of one of" if c.thread == ATOMIC else "one of"
        return f"{kind} the threads {start} to {stop - 1}{place}" if stop - start > 1 else f"thread {start}{place}"

    def _bytes(self, c: Conflict) -> str:
        if self.space == "tmem":
            return f"bytes {4 * c.cell} to {4 * c.cell + 3} of tensor memory"
        program = self.m.sim.program
        return program.places.words(c.cell * program.granule, program.granule)

    def _loc(self, line: int):
        return self.m.sim.locs[line] if line >= 0 else None

    def _number(self, line: int) -> int:
        loc = self._loc(line)
        return loc.line if loc is not None else 0

    def _say(self, kind: str, line: int, message: str, a: Access, c: Conflict, other: int | None = None) -> None:
        granule = self.m.sim.program.granule if self.space == "shared" else 4
        other_thread = FIRST_ATOMIC - c.thread if c.thread <= FIRST_ATOMIC else c.thread
        if c.what not in ("writer", "reader", "unfenced", "overtaking"):
            other_thread = -1
        threads = tuple(t for t in (self._thread_number(a, c.at), other_thread) if t >= 0)
        ctas = self.m.ctas if self.positions is None else self.m.ctas[self.positions]
        protocol = (kind != "uninitialized-read" and c.what != "overtaking"
                    and (c.what not in ("writer", "reader") or self.async_))
        self.m.fault(self.world, kind, message, loc=self._loc(line), protocol=protocol, threads=threads, ctas=ctas,
                     bytes=(c.cell * granule, (c.cell + 1) * granule),
                     other=self._loc(other) if other is not None else None)

    def _retract(self, a: Access, c: Conflict) -> None:
        """Withdraw an uninitialized-read finding at the other line that this conflict explains: the bytes were not
        missing but read too early."""
        if c.what in ("reader", "writer", "pending", "async") and self.shadow.explains(a, c.line):
            self.m.report.retract("uninitialized-read", self._number(c.line))

    def _settle(self, a: Access) -> None:
        self.shadow.settle(np.asarray(a.cells)[(self.shadow.writer[a.index] != NEVER)
                                               | self.shadow.reductions.covered[a.index]])


__all__ = ["Reporter"]
