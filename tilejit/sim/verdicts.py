"""Faults found at the end of a run: deadlocks, missing bytes, copies that outlive the kernel.

It also decides which of several faults is the cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Loc
from ..ir.graph import For, While
from .barriers import MBarrier
from .parts import ChunkParts
from .report import Finding
from .vector_clocks import ORDER, PASSED
from .waits import BarrierWait, ChildWait
from .world import AsyncOp, World

if TYPE_CHECKING:
    from .fiber import Fiber


class Verdicts(ChunkParts):
    """The part of a chunk that judges faults."""

    def verdict(self, world: World, kind: str, loc: Loc | None, protocol: bool) -> tuple[str, Loc | None, str] | None:
        """What to report for a fault of synchronisation: (kind, location, words before the message), or None for a
        mere consequence of an earlier fault. `protocol` says that barriers or asynchronous copies are involved: such
        a fault after a stale wait (one that returned at once, for a phase already waited for) is blamed on that
        wait."""
        if world.derailed:
            return None
        if protocol and world.stale is not None and not world.shaken:
            world.derailed = True
            return ("barrier-phase", self.locs[world.stale],
                    ("the wait returned at once, because a phase of that parity had already completed; after that, "))
        if world.shaken and kind in ("barrier-phase", "transaction-count", "deadlock"):
            return None
        line = loc.line if loc is not None else 0
        if protocol and world.blamed.setdefault(line, kind) != kind:
            return None
        world.shaken = world.shaken or protocol
        world.derailed = kind in ("barrier-phase", "transaction-count")
        return kind, loc, ""

    def _fault(self, world: World, rank: int, kind: str, loc: Loc | None, message: str, threads: tuple = (),
               protocol: bool = True) -> None:
        verdict = self.verdict(world, kind, loc, protocol)
        if verdict is not None:
            kind, loc, note = verdict
            rows = rank * self.clusters + world.clusters
            self.report.add(Finding(kind, loc.line if loc else 0, note + message, loc, threads,
                                    tuple(int(c) for c in self.ctas[rows[:8]])))

    def _deadlock(self) -> None:
        """Report which threads wait for what. If bytes were announced that no copy brings, the finding is a
        transaction-count; if a wait is for a phase that will not complete because it missed the previous one, it is a
        barrier-phase."""
        self.stuck = True
        stuck = [f for f in self.fibers if f.wait is not None and not isinstance(f.wait, ChildWait)] or self.fibers
        if self._report_overtaken(stuck) or self._miscounts(stuck):
            return
        lines: list[str] = []
        first: tuple[Loc | None, Fiber] | None = None
        for f in stuck:
            loc: Loc | None = getattr(f.wait, "loc", None) or getattr(f.node, "loc", None)
            threads = f"thread {f.low} " if f.threads == 1 else f"threads {f.low} to {f.high - 1} "
            ctas = ", ".join(str(c) for c in self.ctas[f.rows[:3]]) + (", ..." if f.batch > 3 else "")
            words = f.wait.describe() if f.wait is not None else "waits"
            line = loc.line if loc else "?"
            place = "at its end" if f.left else f"line {line}"
            lines.append(f"{place}: {threads}of CTA {ctas}: {words}")
            if (first is None or first[1].left
                or (loc is not None and first[0] is not None and loc.line < first[0].line and not f.left)):
                first = loc, f
        assert first is not None  # something is stuck
        loc, fiber = first
        world = self.worlds[self.world_of[fiber.rows[0] % self.clusters]]
        message = "no thread can make progress:\n" + "\n".join(f"  {line}" for line in dict.fromkeys(lines))
        self._fault(world, fiber.rank, "deadlock", loc, message, tuple(range(fiber.low, fiber.high))[:8])

    def report_endless_loop(self, fiber: Fiber) -> None:
        """Report a loop that never ends."""
        self.stuck = True
        node = next((f.node for f in reversed(fiber.frames) if isinstance(f.node, While)), fiber.node)
        assert node is not None  # it has run
        world = self.worlds[self.world_of[fiber.rows[0] % self.clusters]]
        self._fault(world, fiber.rank, "deadlock", node.loc,
                    "the loop runs for ever: no other thread acts on what it does, and nothing ends it",
                    tuple(range(fiber.low, fiber.high))[:8])

    def beyond_steps(self, fiber: Fiber, limit: int) -> None:
        """Report that the simulation has executed as many nodes as it may, and the loop where it is."""
        self.stuck = True
        node = next((f.node for f in reversed(fiber.frames) if isinstance(f.node, (For, While))), fiber.node)
        world = self.worlds[self.world_of[fiber.rows[0] % self.clusters]]
        what = "in this loop" if isinstance(node, (For, While)) else "here"
        self._fault(world, fiber.rank, "deadlock", getattr(node, "loc", None),
                    f"the kernel is not over after {limit} operations (max_steps) and is {what}",
                    tuple(range(fiber.low, fiber.high))[:8], protocol=False)

    def _miscounts(self, stuck: list[Fiber]) -> bool:
        """Report barriers that have all arrivals and wait for bytes that nothing will bring;
        returns whether there are any.

        Excluded is a phase for which no bytes were sent at all, after one with bytes, while other barriers lack
        arrivals: its copies may be stuck behind a wait for these. That is a deadlock, whose message covers both.
        """
        held = any(b.pending for *_, b in _awaited_barriers(stuck))
        found = False
        for world in self.worlds:
            for (rank, _), b in world.barriers.items():
                if (b.tx and b.expect_line >= 0 and b.pending == 0
                    and not (held and b.phase and b.brought and not b.issued)):
                    found = True
                    self._fault(world, rank, "transaction-count", self.locs[b.expect_line],
                                f"phase {b.phase} of the mbarrier never completes: {b.expected} bytes are announced, "
                                f"and its copies transfer {b.issued}")
        return found

    def _report_overtaken(self, stuck: list[Fiber]) -> bool:
        """Report threads that missed the previous phase of a barrier, did not learn of its end in another way, and
        now wait for a phase that has neither arrivals nor bytes. Returns whether there are any."""
        for f, world, rank, number, b in _awaited_barriers(stuck):
            atom = int(f.m.atoms[0])
            seen, clocks = b.waits.get((f.rank, atom)), world.clocks
            told = clocks.known[f.rank, atom, ORDER, clocks.barrier_column(rank, number)] >= b.phase
            if b.phase > (seen.phase if seen else 0) and not told and b.pending == b.count and b.tx == 0:
                self._fault(world, f.rank, "barrier-phase", f.wait.loc,
                            f"the wait is for phase {b.phase} (parity {b.phase & 1}) of the mbarrier, which nothing "
                            f"completes; phase {b.phase - 1} (parity {b.phase - 1 & 1}) has already completed")
                return True
        return False

    def note_laggards(self, world: World, barrier: MBarrier) -> None:
        """Called when a phase of the barrier ends: warps that waited for the previous phase must have left that wait
        in every possible schedule. All lanes of a warp have left it if one has."""
        waits = [(rank, self.atom_threads(atom), wait,
                  wait.epoch <= barrier.clock[PASSED, world.clocks.column(rank, atom)])
                 for (rank, atom), wait in barrier.waits.items() if wait.phase == barrier.phase]
        past = {(rank, warp) for rank, threads, _, known in waits if known for warp in _warps(*threads)}
        for rank, threads, wait, _ in waits:
            behind = [warp for warp in _warps(*threads) if (rank, warp) not in past]
            if behind:
                names = f"warp {behind[0]} is" if len(behind) == 1 else f"warps {behind[0]} to {behind[-1]} are"
                self.suspect(world, rank, wait.line,
                             f"nothing guarantees that {names} past this wait when the next phase completes: "
                             "a slow warp would then wait for the same parity again, and may wait for ever. "
                             "Synchronise the warps, as by tile.sync(), before anything completes the next phase")

    def suspect(self, world: World, rank: int, line: int, message: str) -> None:
        """Note that threads might arrive at a barrier, or wait there, in another order and then miss a phase. It is
        reported at the end of the simulation, and only if there is no other finding, which might be its cause."""
        world.facts.setdefault("suspect", (rank, line, message))

    def _close_suspects(self) -> None:
        for world in self.worlds:
            for b in world.barriers.values():
                if b.early is not None and any(wait.epoch for wait in b.waits.values()):
                    self.suspect(world, *b.early, "nothing orders this arrival at an mbarrier after the completion "
                                                  "of the previous phase: it may count toward that phase in place of "
                                                  "another arrival, and complete it too early. Wait for the previous "
                                                  "phase first, or synchronise with a thread that has waited for it")
            if "suspect" in world.facts and not self.report.findings:
                rank, line, message = world.facts["suspect"]
                self._fault(world, rank, "barrier-phase", self.locs[line], message, protocol=False)

    def late_announcement(self, op: AsyncOp) -> tuple[int, int] | None:
        """The line of an ``expect_tx`` for the phase of the operation's barrier that came after the last arrival of the
        phase before, and the number of its phase. Only if threads have waited for the phase before, and the phase is
        not over."""
        for rank, number, _ in op.targets:
            b = op.world.barriers[rank, number]
            phase = op.phases.get((rank, number), b.phase)
            late = [a.line for a in b.announced if a.late]
            if late and phase == b.phase and any(wait.phase == phase for wait in b.waits.values()):
                return late[-1], phase
        return None

    def _close_named_barriers(self) -> None:
        """Report arrivals at named barriers that the end of the kernel leaves over. A baton is always with some
        member."""
        for world in self.worlds:
            batons = {key[:3] for key, barrier in world.named.items() if barrier.baton}
            for key, barrier in world.named.items():
                if key[0] != "named" or not barrier.arrived or key[:3] in batons:
                    continue
                self._fault(world, key[1], "barrier-phase", self.locs[barrier.line],
                            f"{barrier.arrived} of the {barrier.threads} threads of a named barrier have arrived when "
                            "the kernel ends, and the others do not come: some threads arrive more often than others")

    def _report_unawaited(self, op: AsyncOp) -> None:
        early = self.late_announcement(op)
        if early is not None:
            self._fault(op.world, op.rank, "barrier-phase", self.locs[early[0]],
                        late_words(op, early[1], self.locs[op.line]))
            return
        self._fault(op.world, op.rank, "missing-wait", self.locs[op.line],
                    f"the kernel ends while {op.what} may still be in flight: nothing waits for it")


def late_words(op: AsyncOp, phase: int, loc: Loc | None) -> str:
    """The fault of an ``expect_tx`` for the bytes of `op`, issued at `loc`, that comes after the last arrival of the
    phase before `phase`."""
    return (f"this expect_tx comes after the last arrival of phase {phase - 1} of the mbarrier, which was then "
            f"complete: its bytes count toward phase {phase}, and a wait for phase {phase - 1} does not wait for "
            f"{op.what} at line {loc.line if loc else '?'}. Announce bytes before the arrival, as by arrive_expect_tx")


def _awaited_barriers(fibers: list[Fiber]):
    """(fiber, world, rank, number, MBarrier) for each barrier that one of the fibers waits for."""
    for fiber in fibers:
        for which in fiber.wait.barriers() if isinstance(fiber.wait, BarrierWait) else ():
            yield fiber, *which


def _warps(low: int, high: int) -> range:
    """The numbers of the warps of threads `low` to `high` - 1."""
    return range(low // 32, (high - 1) // 32 + 1)
