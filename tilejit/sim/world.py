"""Worlds: the synchronisation state shared by clusters that behave alike, and how it is split when they diverge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .barriers import MBarrier, NamedBarrier
from .shadow import PENDING, Cells, Shadow, index_of
from .values import take
from .vector_clocks import Clocks


@dataclass(eq=False)
class AsyncOp:
    """An asynchronous operation in flight, the same one in every cluster of its world.

    `reads` and `writes` are [(space, rank, cells)]. `collect(rows, params)` reads the sources for the CTAs `rows` and
    returns further params; `land(rows, params)` writes the destinations. `targets` are the mbarriers on which the
    operation completes, [(rank, number, bytes)]. It lands when a thread waits for it; otherwise at the scheduler's
    tick `due`, or earlier if everything else is waiting (the operation with the smallest `due` first).
    """

    number: int
    what: str
    rank: int
    atom: int
    thread: int
    line: int
    reads: list[tuple[str, int, Cells]]
    writes: list[tuple[str, int, Cells]]
    land: Callable[[np.ndarray, dict], None]
    params: dict[str, Any]
    targets: list[tuple[int, int, int]]
    due: float
    # per entry of `writes`: column -> epoch of its last read
    read_before: list[dict[int, np.ndarray]] = field(default_factory=list)
    collect: Callable[[np.ndarray, dict], dict] | None = None  # None once it has run
    clock: np.ndarray | None = None    # what the issuing atom knew at the issue
    epoch: int = 0                     # the issuing atom's epoch
    threads: np.ndarray | None = None  # for operations that several threads issue together: the thread of each cell
    then: Callable[[AsyncOp], None] | None = None  # called after it has landed
    world: World = field(init=False, repr=False)
    generic: bool = False              # it completes on barriers, but writes through the generic proxy
    reducing: bool = False             # a reduction: may overlap with other reductions of the same bytes
    queued: bool = False               # it completes in a group: nobody learns of its end without waiting for the group
    pipe: str | None = None            # operations of a thread in the same pipe execute in issue order
    pipe_number: int = 0               # identifies the thread's pipe in the shadow of tensor memory; 0: none
    touches: tuple = ()                # its accesses to global memory (`global_flight.Touch`)
    heard: set[int] = field(default_factory=set)  # columns of the clocks by which their end is known
    covers: tuple[int, ...] = ()       # for a commit: the numbers of the operations that it signals
    moved: bool = False                # its bytes have been written
    over: bool = False
    awaited: bool = False
    phases: dict[tuple[int, int], int] = field(default_factory=dict)  # barrier -> its phase at the issue

    def clock_at_issue(self) -> np.ndarray:
        """What the issuing atom knew at the issue."""
        assert self.clock is not None
        return self.clock

    def copy(self) -> AsyncOp:
        new = object.__new__(AsyncOp)
        new.__dict__.update(self.__dict__)
        new.params, new.phases, new.heard = dict(self.params), dict(self.phases), set(self.heard)
        return new


@dataclass
class Queue:
    """A thread's groups of asynchronous operations: `open` holds the uncommitted operations, `groups` the committed
    groups, oldest first."""

    open: list[AsyncOp] = field(default_factory=list)
    groups: list[list[AsyncOp]] = field(default_factory=list)


class World:
    """The clocks, shadows, barriers and operations in flight shared by the clusters `clusters` (sorted
    numbers in the chunk)."""

    def __init__(self, clusters: np.ndarray, clocks: Clocks):
        self.clusters = clusters
        self.clocks = clocks
        self.shadows: dict[tuple[str, int], Shadow] = {}
        self.barriers: dict[tuple[int, int], MBarrier] = {}
        self.named: dict[tuple, NamedBarrier] = {}
        self.queues: dict[tuple, Queue] = {}       # (kind, rank, thread) -> groups
        self.ops: dict[int, AsyncOp] = {}          # operations in flight by number, as shadows refer to them
        self.flight: list[AsyncOp] = []            # operations that have not landed
        # barrier column -> the last operations that completed on that barrier
        self.recent: dict[int, list[AsyncOp]] = {}
        self.last_wait: dict[tuple[int, int], tuple[int, bool]] = {}  # (rank, atom) -> line, whether the wait was stale
        # whatever else the parts of the machine remember, such as freed tensor memory
        self.facts: dict[Any, Any] = {}
        # line of the first stale wait: it returned at once, for a phase already waited for
        self.stale: int | None = None
        # a fault with copies or barriers was reported: barrier faults may follow from it
        self.shaken = False
        self.blamed: dict[int, str] = {}           # line -> the kind of fault with copies or barriers reported there
        # a fault has put barriers out of step: later faults are its consequences
        self.derailed = False

    def shadow(self, space: str, rank: int, cells: int) -> Shadow:
        """The shadow of memory `space` in the CTA of cluster rank `rank`; created on first use, with `cells` cells."""
        key = space, rank
        if key not in self.shadows:
            self.shadows[key] = Shadow(rank, cells, tensor=space == "tmem" and self.clocks.tensor)
        return self.shadows[key]

    def queue(self, kind: str, rank: int, thread: Any) -> Queue:
        return self.queues.setdefault((kind, rank, thread), Queue())

    def split(self, mine: np.ndarray) -> World:
        """Move the clusters selected by the mask `mine` to a new world, which is returned."""
        new = World(self.clusters[mine], self.clocks.copy())
        new.shadows = {k: s.copy() for k, s in self.shadows.items()}
        new.barriers = {k: b.copy() for k, b in self.barriers.items()}
        new.named = {k: b.copy() for k, b in self.named.items()}
        new.last_wait, new.facts = dict(self.last_wait), dict(self.facts)
        new.stale, new.shaken, new.derailed = self.stale, self.shaken, self.derailed
        new.blamed = dict(self.blamed)
        twins: dict[int, AsyncOp] = {}

        def twin(op: AsyncOp) -> AsyncOp:
            if op.number not in twins:
                other = op.copy()
                other.world = new
                if len(self.clusters) > 1:
                    other.params = {k: take(v, mine) for k, v in op.params.items()}
                    op.params = {k: take(v, ~mine) for k, v in op.params.items()}
                twins[op.number] = other
            return twins[op.number]

        new.ops = {number: twin(op) for number, op in self.ops.items()}
        new.flight = [twin(op) for op in self.flight]
        new.recent = {column: [twin(op) for op in ops] for column, ops in self.recent.items()}
        new.queues = {k: Queue([twin(o) for o in q.open], [[twin(o) for o in g] for g in q.groups])
                      for k, q in self.queues.items()}
        self.clusters = self.clusters[~mine]
        return new

    # -- operations in flight ------------------------------------------------------------------------------------------

    def launch(self, op: AsyncOp, cells: Callable[[str], int]) -> None:
        """Put an operation in flight: mark the cells that it will write and those that it reads. `cells(space)` is
        the size of a shadow."""
        op.world = self
        self.ops[op.number] = op
        self.flight.append(op)
        for rank, number, nbytes in op.targets:
            barrier = self.barriers.get((rank, number))
            if barrier is not None:
                barrier.issued += nbytes
                op.phases[rank, number] = barrier.phase
        for space, rank, where in op.writes:
            shadow = self.shadow(space, rank, cells(space))
            read = {column: epoch[index_of(where)].copy() for column, (epoch, _, _) in shadow.readers.items()}
            op.read_before.append(read)
            shadow.mark(op.number, where, op.line, op.reducing)
        for space, rank, where in op.reads:
            self.shadow(space, rank, cells(space)).busy[index_of(where)] += 1
        for space, rank, where in (*op.reads, *op.writes):
            shadow = self.shadow(space, rank, cells(space))
            if shadow.tensor:
                shadow.pipes[index_of(where)] = op.pipe_number

    def retag(self, op: AsyncOp, cells: Callable[[str], int], column_of: Callable[[int], tuple[int, int, int]]) -> None:
        """Tag the cells of an operation that has landed, written and read, with (column, epoch, thread) =
        ``column_of(rank)``."""
        for space, rank, where in op.writes:
            shadow = self.shadow(space, rank, cells(space))
            column, epoch, thread = column_of(rank)
            if op.reducing:
                shadow.reductions.mark_landed(op.number, column, epoch, thread)
                continue
            own = shadow.writer[index_of(where)] == PENDING + op.number
            mine = index_of(where) if own.all() else np.asarray(where)[own]
            shadow.writer[mine], shadow.epoch[mine] = column, epoch
            shadow.thread[mine] = thread if op.threads is None else op.threads[own]
        self.finish_reads(op, cells, column_of)

    def finish_reads(self, op: AsyncOp, cells: Callable[[str], int], column_of) -> None:
        """Record that the operation has read its sources: they are no longer busy, and are tagged as in `retag`."""
        for space, rank, source in op.reads:
            shadow, where = self.shadow(space, rank, cells(space)), index_of(source)
            shadow.busy[where] -= 1
            column, epoch, thread = column_of(rank)
            epochs, threads, lines = shadow.reads_of(shadow.drained, column)
            epochs[where], lines[where] = epoch, op.line
            threads[where] = thread if op.threads is None else op.threads
        op.reads = []

    @staticmethod
    def last_read(op: AsyncOp, space: str, rank: int, cell: int, column: int) -> int:
        """The epoch in which a column had last read a cell when `op`, which writes that cell, was issued;
        0 if it had not."""
        for (s, r, where), epochs in zip(op.writes, op.read_before):
            if (s, r) == (space, rank) and column in epochs:
                at = np.flatnonzero(np.asarray(where) == cell)
                if len(at):
                    return int(epochs[column][at[0]])
        return 0
