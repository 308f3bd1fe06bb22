"""Shadow memory, for race detection in shared and tensor memory.

For each cell: who last wrote it, who has read it since, and which operations in flight access it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np

from ..concurrency import cached_property
from .reductions import Reductions
from .vector_clocks import AFTER, FENCED, ORDER, PEERS, Clocks

# Values of `writer` besides the column of an atom or a barrier:
NEVER = -1          # the cell has not been written
SETTLED = -2        # written, and visible to everybody (or reported already)
PENDING = 1 << 24   # PENDING + n: operation n, in flight, will write it

# Values of `thread` besides a thread's number:
MANY = -2           # several threads of the atom
ATOMIC = -3         # atomic accesses, by several threads of the atom
ANYONE = -4         # an access by an unknown thread of the scope: it conflicts with no access from that scope
COPIED = -5         # cp.async or st.async that completed on a barrier: writes of the generic proxy, like a thread's own
REDUCED = -6        # an asynchronous reduction that has landed
SUMMED = -7         # the same by red.async, which also writes through the generic proxy
FIRST_ATOMIC = -16  # FIRST_ATOMIC - t: an atomic access by thread t


Cells = np.ndarray | range  # numbers of cells; asynchronous operations mostly access one contiguous run
# column -> for each cell the epoch, thread and line of its last read
Readers = dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]


def index_of(cells: Cells) -> np.ndarray | slice:
    """An index for NumPy: a slice for a range of cells, which reads and writes many times as fast as an index array."""
    if not isinstance(cells, range):
        return cells
    assert cells.step == 1 and cells.start >= 0, cells
    return slice(cells.start, cells.stop)


def by_atomic(threads):
    """Where values of `thread` stand for atomic accesses."""
    return (threads == ATOMIC) | (threads <= FIRST_ATOMIC)


def atomics_by(threads: np.ndarray) -> np.ndarray:
    """The values of `thread` for atomic accesses by these threads."""
    return np.where(np.asarray(threads) >= 0, FIRST_ATOMIC - np.asarray(threads), ATOMIC).astype(np.int16)


@dataclass
class Access:
    """Accesses to cells: the atom and the thread of each (arrays, or one value for all),
    and the number of their line."""

    cells: Cells
    atoms: np.ndarray
    threads: np.ndarray
    line: int
    scope: tuple[int, int] = (0, 0)  # for accesses by ANYONE: the first atom of the scope, and one past its last
    # operations in flight with which it cannot conflict, such as earlier ones of the same pipe
    after: tuple[int, ...] = ()
    reducing: bool = False           # a reduction: needs no order relative to other reductions
    pipe: int = 0                    # on tensor memory: the number of the operation's pipe (`AsyncOp.pipe_number`)
    lucky: Conflict | None = None  # an earlier access that is ordered only because the same thread made it

    lucky_read: Conflict | None = None  # the same of an earlier read, for a write

    @cached_property
    def index(self) -> np.ndarray | slice:
        return index_of(self.cells)


@dataclass
class Conflict:
    """Two accesses that nothing orders. `what` is 'uninitialized', 'pending', 'async', 'unfenced' (an earlier write),
    'overtaking' (an earlier read, also without a proxy fence), 'unordered' (on tensor memory), 'writer', 'reader' or
    'busy'. `at` is an index into the cells of the access. Of the earlier access, `other` is the column (or the
    operation in flight), and `thread`, `line` and (on tensor memory) `epoch` are given. `again` says that the line of
    the later access had accessed the cell before the earlier one too, in order, as in a loop."""

    what: str
    at: int
    cell: int
    other: int = 0
    thread: int = 0
    line: int = 0
    epoch: int = 0
    again: bool = False


class Shadow:
    """The shadow of one memory of the CTA of cluster rank `rank`. `epoch`, `thread` and `line` belong to the last
    `writer` of a cell."""

    def __init__(self, rank: int, cells: int, tensor: bool = False):
        self.rank = rank
        self.tensor = tensor  # whether accesses by different threads need tcgen05 fences between them
        # the pipe of the last asynchronous operation on the cell
        self.pipes = np.zeros(cells if tensor else 0, np.int32)
        self.writer = np.full(cells, NEVER, np.int32)
        self.epoch = np.zeros(cells, np.int32)
        self.thread = np.zeros(cells, np.int16)
        self.line = np.zeros(cells, np.int32)
        self.readers: Readers = {}  # reads by threads since the last write that is no atomic; also their atomics
        self.atomics = False        # whether there are atomics among them
        self.drained: Readers = {}  # reads by asynchronous operations that were waited for
        self.busy = np.zeros(cells, np.int16)      # how many operations in flight read the cell
        self.unset_line: dict[int, np.ndarray] = {}  # line -> cells that were read there before they were first written
        self.reductions = Reductions(cells)

    def copy(self) -> Shadow:
        new = copy.copy(self)
        for name in ("writer", "epoch", "thread", "line", "busy", "pipes"):
            setattr(new, name, getattr(self, name).copy())
        new.readers, new.drained = ({c: tuple(a.copy() for a in r) for c, r in some.items()}
                                    for some in (self.readers, self.drained))
        new.unset_line, new.reductions = dict(self.unset_line), self.reductions.copy()
        return new

    # -- what is known -------------------------------------------------------------------------------------------------

    def _known_epochs(self, clocks: Clocks, rank: int, a: Access, columns: np.ndarray, plane: int) -> np.ndarray:
        return clocks.known[rank, a.atoms, plane, columns]

    def _is_own(self, clocks: Clocks, rank: int, a: Access, columns: np.ndarray, threads: np.ndarray) -> np.ndarray:
        """Where an earlier access, (column, thread), was made by the accessing thread itself, or may have been:
        see ANYONE."""
        mine = columns == rank * clocks.width + a.atoms
        own = mine & (threads == a.threads) & (threads >= 0)
        own |= mine & (threads <= FIRST_ATOMIC) & (FIRST_ATOMIC - threads == a.threads)
        if np.any(a.threads == ANYONE):
            first, stop = (rank * clocks.width + s for s in a.scope)
            own |= (columns >= first) & (columns < stop)
        own |= mine & (threads == ANYONE)
        return own

    def _find_unordered_write(self, clocks: Clocks, rank: int, a: Access, plane: int, atomic: bool) -> Conflict | None:
        """The first cell whose last write is not known to happen before the access."""
        writer = self.writer[a.index]
        if self.reductions.made and not a.reducing:
            found = self._unordered_reduction(clocks, rank, a, plane)
            if found is not None:
                return found
            writer = np.where(self.reductions.covered[a.index], SETTLED, writer)
        if len(writer) and (writer == writer[0]).all():
            if writer[0] < PENDING and (writer[0] < 0 or self._long_known(clocks, rank, a, int(writer[0]), plane)):
                return None
            writer = writer[:1]  # the same for all cells
        ordinary = (writer >= 0) & (writer < PENDING)
        columns = np.where(ordinary, writer, 0)
        epochs = self.epoch[a.index]
        threads = self.thread[a.index]
        known = self._known_epochs(clocks, rank, a, columns, ORDER)
        late = ordinary & (epochs > known)
        if late.any():
            own = late & self._is_own(clocks, rank, a, columns, threads)
            late &= ~own
            self._note_luck(a, own & (threads == a.threads), columns, threads)
        if a.pipe:
            late &= ~self._pipe_is_ahead(clocks, a, columns)
        if atomic:
            late &= ~by_atomic(threads)
        pending = writer >= PENDING
        if a.after and pending.any():
            pending &= ~np.isin(writer - PENDING, a.after)
        for bad, what in ((pending, "pending"), (late, "")):
            if bad.any():
                at = int(np.argmax(bad))
                column = int(np.broadcast_to(writer, len(a.cells))[at])
                if not what:
                    what = "async" if column % clocks.width >= clocks.atoms else "writer"
                return self._conflict(what, a, at, column)
        if plane == FENCED:
            return self._find_unfenced(clocks, rank, a, ordinary, columns, epochs, threads)
        if not self.tensor:
            return None
        return self._find_unordered(clocks, rank, a, ordinary, columns, epochs, threads, self.line)

    def _note_luck(self, a: Access, own: np.ndarray, columns: np.ndarray, threads: np.ndarray) -> None:
        """Note the first cell whose last write, by the same thread, is ordered before this access by nothing else."""
        if own.any():
            at = int(np.argmax(own))
            a.lucky = self._conflict("writer", a, at, int(np.broadcast_to(columns, len(a.cells))[at]))

    def _unordered_reduction(self, clocks: Clocks, rank: int, a: Access, plane: int) -> Conflict | None:
        """The first reduction that is not known to happen before the access."""
        atoms = np.broadcast_to(a.atoms, len(a.cells))
        for r, at in self.reductions.reductions_of(a.cells):
            if r.operation is not None:
                return Conflict("pending", int(at[0]), int(a.cells[at[0]]), PENDING + r.operation, 0, r.line)
            planes = [(ORDER, "async")]
            if plane == FENCED and r.thread == SUMMED:
                planes.append((FENCED, "unfenced"))
            for p, what in planes:
                late = at[clocks.known[rank, atoms[at], p, r.column] < r.epoch]
                if len(late):
                    return Conflict(what, int(late[0]), int(a.cells[late[0]]), r.column, r.thread, r.line)
        return None

    def _long_known(self, clocks: Clocks, rank: int, a: Access, column: int, plane: int) -> bool:
        """Whether everything that a column wrote to these cells is known on every plane that matters. This is the
        usual case; with this shortcut a product through a ring of slots simulates in 7 % less time than if each cell
        were checked."""
        planes = [ORDER]
        if self.tensor:
            planes.append(AFTER)
        elif plane == FENCED and (column % clocks.width < clocks.atoms or (self.thread[a.index] == COPIED).any()):
            planes.append(clocks.fence_plane(column, self.rank))
        last = self.epoch[a.index].max()
        return all(last <= clocks.known[rank, a.atoms, p, column].min() for p in planes)

    def _pipe_is_ahead(self, clocks: Clocks, a: Access, columns: np.ndarray) -> np.ndarray:
        """Where the last asynchronous access was by an earlier operation of the same pipe,
        which is ordered in any case."""
        return (columns % clocks.width >= clocks.atoms) & (self.pipes[a.index] == a.pipe)

    def _find_unordered(self, clocks, rank, a, some, columns, epochs, threads, lines) -> Conflict | None:
        """The first of the cells `some` whose last access happens before this one,
        but without the required tcgen05 fences between."""
        bad = some & (epochs > self._known_epochs(clocks, rank, a, columns, AFTER))
        if bad.any():
            bad &= ~self._is_own(clocks, rank, a, columns, threads)
        if a.pipe:
            bad &= ~self._pipe_is_ahead(clocks, a, columns)
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        cell = int(a.cells[at])
        return Conflict("unordered", at, cell, int(np.broadcast_to(columns, len(a.cells))[at]), int(threads[at]),
                        int(lines[cell]), int(epochs[at]))

    def _find_unfenced(self, clocks, rank, a, ordinary, columns, epochs, threads) -> Conflict | None:
        generic = ordinary & ((columns % clocks.width < clocks.atoms) | (threads == COPIED))
        if not generic.any():
            return None
        visible = self._known_epochs(clocks, rank, a, columns, FENCED)
        if clocks.fenced_peers is not None:
            visible = np.where(columns // clocks.width == self.rank, visible,
                               self._known_epochs(clocks, rank, a, columns, PEERS))
        own = self._is_own(clocks, rank, a, columns, threads)
        visible = np.where(own, np.maximum(visible, clocks.fences_of(rank, self.rank)[a.atoms]), visible)
        bad = generic & (epochs > visible)
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        return self._conflict("unfenced", a, at, int(np.broadcast_to(columns, len(a.cells))[at]))

    def _conflict(self, what: str, a: Access, at: int, other: int) -> Conflict:
        cell = int(a.cells[at])
        return Conflict(what, at, cell, other, int(self.thread[cell]), int(self.line[cell]))

    # -- accesses ------------------------------------------------------------------------------------------------------

    def read(self, clocks: Clocks, rank: int, a: Access, plane: int = ORDER, keep: bool = True) -> Conflict | None:
        """Threads of CTA `rank` read cells; returns the first conflict. `plane` is FENCED for reads through the async
        proxy. With `keep`, the read is recorded."""
        found = self._find_unordered_write(clocks, rank, a, plane, atomic=False)
        if found is None and self.atomics:
            found = self._find_hidden_atomic(clocks, rank, a, plane)
        if found is None:
            found = self._find_unset(a)
        if keep:
            self._remember(clocks, rank, a)
        return found

    def _find_hidden_atomic(self, clocks: Clocks, rank: int, a: Access, plane: int) -> Conflict | None:
        """The first cell with an atomic that is not known to happen before this read, or (on plane FENCED) not known to
        be fenced, though the last one may be."""
        for column, (epoch, thread, line) in self.readers.items():
            threads = thread[a.index]
            epochs = np.where(by_atomic(threads), epoch[a.index], 0)
            if not epochs.any():
                continue
            own = self._is_own(clocks, rank, a, np.full(len(a.cells), column), threads)
            checks = [(ORDER, "writer", np.iinfo(np.int32).max)]
            if plane == FENCED:
                fences = clocks.fences_of(rank, self.rank)[a.atoms]
                checks.append((clocks.fence_plane(column, self.rank), "unfenced", fences))
            for known_on, what, of_own in checks:
                known = self._known_epochs(clocks, rank, a, np.asarray(column), known_on)
                late = epochs > np.where(own, np.maximum(known, of_own), known)
                if late.any():
                    at = int(np.argmax(late))
                    cell = int(a.cells[at])
                    return Conflict(what, at, cell, column, int(threads[at]), int(line[cell]))
        return None

    def _find_unset(self, a: Access) -> Conflict | None:
        """The first cell that has not been written yet; the reading line is noted in `unset_line`."""
        never = (self.writer[a.index] == NEVER) & ~self.reductions.covered[a.index]
        if not never.any():
            return None
        early, at = np.asarray(a.cells)[never], int(np.argmax(never))
        self.unset_line[a.line] = np.union1d(self.unset_line.get(a.line, early), early)
        return Conflict("uninitialized", at, int(a.cells[at]))

    def reads_of(self, readers: Readers, column: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The epochs, threads and lines of a column's reads in `readers`."""
        if column not in readers:
            n = len(self.writer)
            readers[column] = np.zeros(n, np.int32), np.zeros(n, np.int16), np.zeros(n, np.int32)
        return readers[column]

    def forget_reads(self, index: np.ndarray | slice, atomic: bool = False) -> None:
        """Forget the reads of cells that are being written: what comes after the write is ordered after them too.
        Atomics are not ordered with each other, so an `atomic` write leaves those of other atoms."""
        for epoch, thread, _ in (*self.readers.values(), *self.drained.values()):
            epoch[index] = np.where(by_atomic(thread[index]), epoch[index], 0) if atomic else 0

    def _remember(self, clocks: Clocks, rank: int, a: Access) -> None:
        if np.ndim(a.threads) == 0 and a.threads == ANYONE:  # each atom of the scope reads the cells, or may
            for atom in range(*a.scope):
                epoch, thread, line = self.reads_of(self.readers, clocks.column(rank, atom))
                epoch[a.index], thread[a.index], line[a.index] = clocks.now[rank, atom], ANYONE, a.line
            return
        atoms = np.broadcast_to(a.atoms, len(a.cells))
        threads = np.broadcast_to(a.threads, len(a.cells))
        for atom in np.unique(atoms):
            epoch, thread, line = self.reads_of(self.readers, clocks.column(rank, int(atom)))
            column = clocks.column(rank, int(atom))
            mine = atoms == atom
            cells, who = (a.index, threads) if mine.all() else (np.asarray(a.cells)[mine], threads[mine])
            open_ = epoch[cells] > clocks.known[rank, atom, ORDER, column]
            other = open_ & (thread[cells] != who)
            several = np.where(by_atomic(thread[cells]) & by_atomic(who), ATOMIC, MANY)
            found = np.where(other, several, who)
            thread[cells] = found
            repeated = thread[cells] != found  # several threads of this access read the cell
            if repeated.any():
                thread[np.asarray(a.cells)[mine][repeated]] = np.where(by_atomic(found), ATOMIC, MANY)[repeated]
            epoch[cells] = clocks.now[rank, atom]
            line[cells] = a.line

    def write(self, clocks: Clocks, rank: int, a: Access, plane: int = ORDER, atomic: bool = False,
              keep: bool = True, combines: bool = False) -> Conflict | None:
        """Threads write cells; returns the first conflict. With `keep`, they are recorded as the last writers.
        `combines` says that the write depends on the old contents, which must then have been written."""
        found = self._find_unordered_write(clocks, rank, a, plane, atomic)
        if found is None:
            found = self._read_before(clocks, rank, a, plane, atomic)
        if a.lucky is not None and any(epoch[a.lucky.cell] for epoch, _, _ in self.readers.values()):
            a.lucky = None  # the read after that write has been noted already
        a.lucky = a.lucky or a.lucky_read
        if found is None and self.busy[a.index].any():
            at = int(np.argmax(self.busy[a.index] > 0))
            found = Conflict("busy", at, int(a.cells[at]))
        if found is None and combines:
            found = self._find_unset(a)
        if keep:
            self.forget_reads(a.index, atomic)
            if atomic:  # also a read, which atomics of other atoms do not hide
                self.atomics = True
                self._remember(clocks, rank, replace(a, threads=atomics_by(a.threads)))
            self.reductions.end(a.index)
            atoms = np.broadcast_to(a.atoms, len(a.cells))
            self.writer[a.index] = rank * clocks.width + atoms
            self.epoch[a.index] = clocks.now[rank, atoms]
            threads = atomics_by(a.threads) if atomic else a.threads
            self.thread[a.index] = threads
            if np.ndim(threads) and not isinstance(a.index, slice):
                repeated = self.thread[a.index] != threads  # several threads write the cell at once, the same value
                if repeated.any():
                    self.thread[a.index[repeated]] = ATOMIC if atomic else MANY
            self.line[a.index] = a.line
        return found

    def _read_before(self, clocks: Clocks, rank: int, a: Access, plane: int, atomic: bool) -> Conflict | None:
        """The first cell of which an earlier read is not known to happen before this write, or else (on plane FENCED)
        of which a thread's earlier read is not known to be fenced: the async proxy may write before the thread has
        read."""
        overtaking = None
        tables = [(self.readers, True), (self.drained, False)]
        for readers, generic in [*tables, (self.reductions.readers, True)] if a.reducing else tables:
            for column, (epoch, thread, line) in readers.items():
                epochs = epoch[a.index]
                last = epochs.max(initial=0)
                if not last:  # no reads since the last write
                    continue
                if last > clocks.known[rank, a.atoms, ORDER, column].min():
                    found = self._find_unfinished_read(clocks, rank, a, column, epochs, thread[a.index], line, atomic)
                    if found is not None:
                        return found
                if self.tensor:
                    found = self._find_unordered(clocks, rank, a, epochs > 0, np.full(len(a.cells), column), epochs,
                                                 thread[a.index], line)
                    if found is not None:
                        return found
                elif (generic and plane == FENCED and overtaking is None
                      and last > clocks.known[rank, a.atoms, clocks.fence_plane(column, self.rank), column].min()):
                    overtaking = self._find_overtaken(clocks, rank, a, column, epochs, thread[a.index], line)
        return overtaking

    def _find_unfinished_read(self, clocks, rank, a, column, epochs, threads, line, atomic) -> Conflict | None:
        """The first cell whose last read by a column is not known to happen before the write."""
        late = epochs > self._known_epochs(clocks, rank, a, np.asarray(column), ORDER)
        own = late & self._is_own(clocks, rank, a, np.full(len(a.cells), column), threads)
        late &= ~own
        if (lucky := own & (threads == a.threads)).any():
            at = int(np.argmax(lucky))
            cell = int(a.cells[at])
            a.lucky_read = Conflict("reader", at, cell, column, int(threads[at]), int(line[cell]))
        if a.pipe:
            late &= ~self._pipe_is_ahead(clocks, a, np.full(len(a.cells), column))
        if atomic:
            late &= ~by_atomic(threads)
        if not late.any():
            return None
        at = int(np.argmax(late))
        cell = int(a.cells[at])
        again = (self.line[cell] == a.line
                 and self.writer[cell] == clocks.column(rank, int(np.broadcast_to(a.atoms, len(a.cells))[at])))
        return Conflict("reader", at, cell, column, int(threads[at]), int(line[cell]), again=bool(again))

    def _find_overtaken(self, clocks, rank, a, column, epochs, threads, line) -> Conflict | None:
        """The first cell whose last read by a column of threads has no proxy fence between it and this write
        of the async proxy."""
        own = self._is_own(clocks, rank, a, np.full(len(a.cells), column), threads)
        known = self._known_epochs(clocks, rank, a, np.asarray(column), clocks.fence_plane(column, self.rank))
        bad = epochs > np.where(own, np.maximum(known, clocks.fences_of(rank, self.rank)[a.atoms]), known)
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        cell = int(a.cells[at])
        return Conflict("overtaking", at, cell, column, int(threads[at]), int(line[cell]))

    def settle(self, cells: np.ndarray) -> None:
        """Mark cells as visible to everybody, after a fault there has been reported,
        so that it is not reported again."""
        self.writer[cells] = SETTLED
        self.forget_reads(cells)
        self.reductions.end(cells)

    def mark(self, operation: int, cells: Cells, line: int, reducing: bool) -> None:
        """An asynchronous operation that will write `cells` has been issued at `line`."""
        if reducing:
            self.reductions.begin(operation, np.asarray(cells), line, self.readers)
            return
        where = index_of(cells)
        self.reductions.end(where)
        self.writer[where], self.line[where] = PENDING + operation, line
        self.forget_reads(where)

    def explains(self, a: Access, line: int) -> bool:
        """Whether `line` read some of these cells before they were first written.
        A race with that read is the better explanation."""
        if line not in self.unset_line:
            return False
        wanted = np.zeros(len(self.writer), bool)
        wanted[a.index] = True
        return bool(wanted[self.unset_line[line]].any())
