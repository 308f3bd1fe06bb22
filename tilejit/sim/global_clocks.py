"""What threads know of each other through atomics, ordered accesses and fences of global memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from .vector_clocks import ORDER, Clocks

NOTES = 1024   # how many acquisitions by parts of a cluster are kept apart
FENCES = 16    # how many fences of an atom are kept, and more only if others know some of them
CTA, CLUSTER, GRID = range(3)   # scopes


def level_of(scope: str) -> int:
    """The level of an access's or a fence's scope."""
    return {"cta": CTA, "cluster": CLUSTER}.get(scope, GRID)


class Group(NamedTuple):
    """Atoms of a CTA that act together: the clocks of its cluster, its rank there, and the numbers of both + 1."""

    clocks: Clocks
    rank: int
    cluster: int
    cta: int
    atoms: np.ndarray

    @property
    def columns(self) -> np.ndarray:
        return self.clocks.column(self.rank, self.atoms)

    @property
    def now(self) -> np.ndarray:
        return self.clocks.now[self.rank, self.atoms]


class Note(NamedTuple):
    """A clock that threads have acquired: those of the `columns` of their cluster's clocks, in these epochs. Those that
    know one of the epochs have met them since. `by_all`: all threads know it."""

    columns: np.ndarray
    epochs: np.ndarray
    clock: np.ndarray
    by_all: bool = False

    def is_known(self, clocks: Clocks, rank: int) -> np.ndarray:
        """Whether each atom of a CTA of the cluster knows the clock."""
        if self.by_all:
            return np.ones(clocks.atoms, bool)
        found = np.asarray((clocks.known[rank, :, ORDER][:, self.columns] >= self.epochs).any(axis=1))
        own = self.columns - clocks.column(rank, 0)
        found[own[(own >= 0) & (own < clocks.atoms)]] = True
        return found


Pending = dict[tuple, Note]  # by levels, columns and epochs


class Notes:
    """What the threads of a cluster, or of a CTA, have acquired."""

    def __init__(self) -> None:
        self._notes: dict[tuple, Note] = {}  # by columns and epochs
        self._last: dict[bytes, Note] = {}  # by columns
        # by the places and columns of polls that returned older versions: the number of the call, and what it acquires,
        # or what a fence may make it acquire, with the level
        self.passing: dict[tuple, tuple[int, list[tuple[int | None, Note]]]] = {}
        self._merged = 0  # how many notes there were after the last merge

    def __iter__(self) -> Iterator[Note]:
        yield from self._notes.values()
        for _, notes in self.passing.values():
            yield from (note for level, note in notes if level is None)

    def pass_on(self, key: tuple, call: int, pending: Pending) -> None:
        """A group accesses a place again, by its call number `call`. If it did nothing else since it read an older
        version there, it polls: it need not have seen that version, and what it acquired by it is forgotten."""
        before, notes = self.passing.pop(key, (call, []))
        for level, note in notes if call - before != 1 else ():
            if level is None:
                self._keep(note)
            else:
                wait_for_fence(pending, level, note)

    def add(self, group: Group, clock: np.ndarray, ranks: range) -> None:
        """Add what a group of a cluster with these ranks has acquired."""
        columns, epochs = group.columns, group.now
        last = self._last.get(columns.tobytes())
        if last is not None and (last.clock is clock or not (clock > last.clock).any()):
            return
        self._keep(Note(columns, epochs.copy(), clock))
        if len(self._notes) > 2 * self._merged + 4:
            self.merge(group.clocks, ranks)

    def _keep(self, note: Note) -> None:
        key = note.columns.tobytes(), note.epochs.tobytes()
        before = self._notes.get(key)
        if before is not None and before.clock is not note.clock:
            note = note._replace(clock=np.maximum(before.clock, note.clock))
        self._notes[key] = self._last[key[0]] = note

    def merge(self, clocks: Clocks, ranks: range) -> None:
        """Keep what all threads know once."""
        common = [key for key, n in self._notes.items() if all(n.is_known(clocks, rank).all() for rank in ranks)]
        if len(common) > 1 or common and common[0]:
            found = [self._notes.pop(key) for key in common]
            whole = found[0].clock if len(found) == 1 else np.maximum.reduce([n.clock for n in found])
            self._notes = {(): Note(found[0].columns, found[0].epochs, whole, by_all=True), **self._notes}
        for key in list(self._notes)[1:len(self._notes) - NOTES]:
            del self._notes[key]
            self._last.clear()
        self._merged = len(self._notes)


def wait_for_fence(pending: Pending, level: int, note: Note) -> None:
    """Record what a fence of a level, behind a relaxed read, makes threads acquire."""
    key = level, note.columns.tobytes(), note.epochs.tobytes()
    before = pending.get(key)
    if before is None or before.clock is not note.clock:
        pending[key] = note if before is None else note._replace(clock=np.maximum(before.clock, note.clock))


class Version(NamedTuple):
    """What an element held before its last write, and what had been released there."""

    value: np.generic
    released: dict[tuple, np.ndarray]


class LastWrite:
    """The last write to an element: the version before it, who has been given that, and who knows better: (cluster,
    column) and epoch of the writer, and of those that have read what it wrote."""

    def __init__(self, version: Version, writer: Group):
        self.version = version
        self.given: set[tuple[int, int]] = set()
        self.observers: dict[tuple[int, int], int] = {}
        self.observe(writer)

    def observe(self, group: Group) -> None:
        """A group has written, or read, what is there now."""
        for column, epoch in zip(group.columns.tolist(), group.now.tolist()):
            self.observers.setdefault((group.cluster, column), epoch)


class GlobalClocks:
    """What each atom of each cluster knows of the others', beyond what barriers tell it. A clock is a table: for each
    cluster + 1, what is known of each column of its own clocks (`vector_clocks`).

    A relaxed write releases what a fence before it covered, and what a relaxed read acquires takes effect at the next
    fence (PTX ISA, "Release and Acquire Patterns"). Two accesses synchronise if the scope of each includes the other.
    """

    def __init__(self, cluster_of: np.ndarray, columns: int):
        self.cluster_of = cluster_of
        self.shape = int(cluster_of.max(initial=0)) + 1, columns
        # place -> (level, CTA or cluster or 0) -> the clock released there
        self.released: dict[tuple, dict[tuple, np.ndarray]] = {}
        self.last_writes: dict[tuple, LastWrite] = {}
        self.forget_threads()

    def forget_threads(self) -> None:
        """Forget what threads know: those of the clusters so far have ended."""
        self.learnt: dict[int, Notes] = {}                     # cluster -> what its threads have acquired
        self.viewed: dict[int, Notes] = {}                     # CTA -> what its copy engines see, by proxy fences
        self.pending: dict[int, Pending] = {}                  # cluster -> what relaxed reads have returned
        # cluster -> column -> epochs, levels and clocks of the fences of an atom
        self.fences: dict[int, dict[int, list[tuple[int, int, np.ndarray]]]] = {}

    # -- what is known -------------------------------------------------------------------------------------------------

    def known_by(self, cta: int) -> Iterable[Note]:
        """What the threads of a CTA (+ 1) know."""
        return self.learnt.get(int(self.cluster_of[cta]), Notes())

    def views(self, cta: int) -> Iterable[Note]:
        """What the copy engines of a CTA (+ 1) see, for copies of threads that know the notes."""
        return self.viewed.get(cta, Notes())

    def find_unknown(self, notes: Callable[[int], Iterable[Note]], mine: np.ndarray, theirs: np.ndarray,
                     columns: np.ndarray, epochs: np.ndarray, has_met: Callable) -> np.ndarray:
        """Of accesses by the CTAs `theirs` (+ 1), (column, epoch), those that the CTAs `mine` (+ 1), which access the
        same cells now, do not know of by their `notes`. ``has_met(note, which)`` says of some of the accessors whether
        they know a note."""
        late, them = np.ones(len(mine), bool), self.cluster_of[theirs]
        grouped = np.argsort(mine, kind="stable")
        for cells in np.split(grouped, np.flatnonzero(np.diff(mine[grouped])) + 1):
            for note in notes(int(mine[cells[0]])) if len(cells) else ():
                told = cells[late[cells] & (note.clock[them[cells], columns[cells]] >= epochs[cells])]
                if len(told):
                    late[told] = ~has_met(note, told)
        return late

    def _knowledge(self, group: Group) -> np.ndarray:
        """What at least one atom of a group knows of other clusters, and through global memory of its own."""
        clock = np.zeros(self.shape, np.int32)
        for note in self.learnt.get(group.cluster, ()):
            if note.is_known(group.clocks, group.rank)[group.atoms].any():
                np.maximum(clock, note.clock, out=clock)
        return clock

    def _clock_to_release(self, group: Group) -> np.ndarray:
        """What a group knows, and what its threads have done."""
        clock, row = self._knowledge(group), group.clocks.known[group.rank, group.atoms, ORDER].max(axis=0)
        row[group.columns] = group.now
        np.maximum(clock[group.cluster], row, out=clock[group.cluster])
        return clock

    def _fenced_clock(self, group: Group, level: int) -> np.ndarray | None:
        """What fences of at least this level come after, that the group has made or met at a barrier since."""
        found = [clock for column, fences in self.fences.get(group.cluster, {}).items()
                 for epoch, wide, clock in fences if wide >= level and self._has_met(group, column, epoch)]
        return np.maximum.reduce(found) if found else None

    @staticmethod
    def _has_met(group: Group, column: int, epoch: int) -> bool:
        return column in group.columns or bool(
            (group.clocks.known[group.rank, group.atoms, ORDER, column] >= epoch).any())

    # -- what threads do -----------------------------------------------------------------------------------------------

    def _learn(self, group: Group, clock: np.ndarray) -> None:
        self.learnt.setdefault(group.cluster, Notes()).add(group, clock, range(group.clocks.ranks))

    def merge(self, group: Group) -> None:
        """Merge what all threads of a cluster know, behind a barrier."""
        if group.cluster in self.learnt:
            self.learnt[group.cluster].merge(group.clocks, range(group.clocks.ranks))

    def proxy_fence(self, group: Group) -> None:
        """A proxy fence of global memory: copy engines of the CTA now see what the group knows."""
        clock = self._knowledge(group)
        if clock.any():
            self.viewed.setdefault(group.cta, Notes()).add(group, clock, range(group.rank, group.rank + 1))

    def find_older(self, place: tuple, group: Group) -> Version | None:
        """What was at an element before its last write, if a group may still read that, and has not yet done so. It may
        unless it knows of the write, or of a read that has seen it (PTX ISA, "Coherence")."""
        last, key = self.last_writes.get(place), (group.cluster, int(group.columns[0]))
        if last is None or key in last.given:
            return None
        clusters, columns, epochs = np.array([(*who, epoch) for who, epoch in last.observers.items()]).T
        near = clusters == group.cluster
        known = group.clocks.known[group.rank, group.atoms, ORDER].max(axis=0)
        if np.isin(columns[near], group.columns).any() or (known[columns[near]] >= epochs[near]).any():
            return None
        if any((note.clock[clusters, columns] >= epochs).any()
               and note.is_known(group.clocks, group.rank)[group.atoms].any()
               for note in self.learnt.get(group.cluster, ())):
            return None
        last.given.add(key)
        return last.version

    def observe(self, place: tuple, group: Group) -> None:
        """A group has read what is at an element now."""
        if place in self.last_writes:
            self.last_writes[place].observe(group)

    def read(self, place: tuple, group: Group, acquires: bool, level: int, call: int,
             older: Version | None = None) -> None:
        """A group reads an element by an ordered load or an atomic, its call number `call`: what was there last, or an
        older version."""
        learnt, pending = self.learnt.setdefault(group.cluster, Notes()), self.pending.setdefault(group.cluster, {})
        key = place, group.cta, int(group.columns[0])
        learnt.pass_on(key, call, pending)
        for (wide, who), clock in (self.released.get(place, {}) if older is None else older.released).items():
            if wide > level or who != (group.cta, group.cluster, 0)[wide]:
                continue
            note = Note(group.columns, group.now.copy(), clock)
            if older is not None:
                learnt.passing.setdefault(key, (call, []))[1].append((None if acquires else wide, note))
            elif acquires:
                self._learn(group, clock)
            else:
                wait_for_fence(pending, wide, note)

    def write(self, place: tuple, groups: list[Group], releases: bool, level: int, modifies: bool,
              value: np.generic) -> None:
        """Groups write one element, which held `value`, in one instruction. An access that `modifies` what it has read
        continues the release sequence of the writes before it (PTX ISA, "Observation"); any other begins a new one, and
        which group's value stays is open."""
        before, last = self.released.get(place, {}), groups[-1]
        self.last_writes[place] = LastWrite(Version(value, before), last)
        after = dict(before) if modifies else {}
        for wide in range(level + 1):
            found = [self._clock_to_release(g) if releases else self._fenced_clock(g, wide) for g in groups]
            clocks = [np.zeros(self.shape, np.int32) if c is None else c for c in found]
            if all(c is None for c in found):
                continue
            key = wide, (groups[0].cta, groups[0].cluster, 0)[wide]
            clock = np.maximum.reduce(clocks) if modifies else np.minimum.reduce(clocks)
            after[key] = np.maximum(after[key], clock) if key in after else clock
        if after or place in self.released:
            self.released[place] = after

    def fence_in_order(self, group: Group, level: int) -> None:
        """``fence.sc``, by each thread of a group: each comes behind all before it of its scope (PTX ISA, "Fence-SC
        order"), as atomics of one element would."""
        place = ("fence.sc",)
        self.read(place, group, True, level, call=-1)
        for atom in group.atoms:
            self.write(place, [group._replace(atoms=np.array([atom]))], True, level, True, np.int32(0))

    def fence(self, group: Group, level: int) -> None:
        """``fence.acq_rel``, by each thread of a group: what a relaxed read has returned before, its threads and those
        that have met them since acquire."""
        learnt, pending = self.learnt.setdefault(group.cluster, Notes()), self.pending.setdefault(group.cluster, {})
        for key in [key for key in learnt.passing if key[1] == group.cta]:
            learnt.pass_on(key, -1, pending)
        for key, note in list(pending.items()):
            mine = group.atoms[note.is_known(group.clocks, group.rank)[group.atoms]]
            if key[0] <= level and len(mine):
                self._learn(group._replace(atoms=mine), note.clock)
                if np.isin(note.columns, group.columns).all():
                    del pending[key]
        for atom in group.atoms:
            one = group._replace(atoms=np.array([atom]))
            fences = self.fences.setdefault(group.cluster, {}).setdefault(int(one.columns[0]), [])
            fences.append((int(one.now[0]), level, self._clock_to_release(one)))
            if len(fences) > FENCES:
                self._drop_fence(one, fences)

    @staticmethod
    def _drop_fence(group: Group, fences: list[tuple[int, int, np.ndarray]]) -> None:
        """Drop a fence of an atom such that all other atoms of the cluster that know of it know of the next one."""
        own = group.rank * group.clocks.atoms + group.atoms
        known = np.delete(group.clocks.known[:, :, ORDER, int(group.columns[0])].reshape(-1), own)
        for n in range(len(fences) - 1):
            (epoch, wide, _), (later, wider, _) = fences[n:n + 2]
            if wider >= wide and not ((known >= epoch) & (known < later)).any():
                del fences[n]
                return
