"""Asynchronous copies in flight that access global memory.

Which cells they still access, when they are over, and who knows of that.

A copy that writes global memory is over once the thread that issued it has waited for its group;
``bulk_wait(read=True)`` waits for its sources only. One that reads global memory is over for those who have waited
for it. Its completion includes a proxy fence (PTX ISA, "Async proxy"). Every other change of the proxy needs
``fence.proxy.async``: after writes in the CTA whose copy engine accesses the memory, and after loads in the threads
that have loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..errors import Loc
from .global_threads import NOBODY, Accessor
from .vector_clocks import GLOBAL, ORDER

STORE, REDUCE, LOAD = range(3)

ONE = np.int16(1)  # of the dtype of `Side.pending`: NumPy adds another dtype's twenty times as slowly

# What each access conflicts with while it is in flight. Reductions and atomics need no order among each other, and
# relaxed loads see reductions as they see atomics.
CONFLICTS = {"read": (STORE, REDUCE), "write": (STORE, REDUCE, LOAD), "atomic": (STORE, LOAD), "atomic read": (STORE,),
             LOAD: (STORE, REDUCE), STORE: (STORE, REDUCE, LOAD), REDUCE: (STORE, LOAD)}


class Moment(NamedTuple):
    """When a copy was issued or known to be over: the epoch of a column of the cluster's clocks."""

    column: int
    epoch: int


@dataclass(eq=False)
class Deed:
    """An asynchronous access to global memory, the same one in several CTAs (by CTA + 1).
    Multicast copies may end several times."""

    what: str
    loc: Loc | None
    side: int
    issued: dict[int, Moment] = field(default_factory=dict)
    ended: dict[int, list[Moment]] = field(default_factory=dict)


class Touch(NamedTuple):
    """The cells of an allocation that an operation accesses, and the CTA + 1 of each."""

    flight: GlobalFlight
    number: int
    cells: np.ndarray
    ids: np.ndarray


@dataclass
class Late:
    """An access that is not ordered after the end of an asynchronous one.
    `known` says whether it is ordered after its issue."""

    deed: Deed
    cell: int
    thread: int
    ctas: tuple[int, int]
    known: bool


@dataclass
class Unfenced:
    """An access by a copy engine that no proxy fence orders after an earlier one: of a thread (or NOBODY) at line
    `line`, or a `deed`. `reads` says that the earlier one is a load."""

    cell: int
    ctas: tuple[int, int]
    thread: int = NOBODY
    line: int = -1
    deed: Deed | None = None
    reads: bool = False


class Side:
    """The last asynchronous access of a kind to each cell (0: none): the number of the deed, CTA + 1 and thread; and
    how many are pending."""

    def __init__(self, cells: int):
        self.number, self.cta = np.zeros(cells, np.int32), np.zeros(cells, np.int32)
        self.thread, self.pending = np.zeros(cells, np.int16), np.zeros(cells, np.int16)


class GlobalFlight:
    """The asynchronous accesses to one allocation."""

    def __init__(self, cells: int):
        self.cells = cells
        self.sides: dict[int, Side] = {}
        self.deeds: list[Deed] = []

    def begin(self, deed: Deed, cells: np.ndarray, ids: np.ndarray, threads: np.ndarray | int,
              moments: dict[int, Moment]) -> Touch:
        """Put an access in flight. Later accesses that follow a store also follow what was ordered before the store."""
        self.deeds.append(deed)
        number = len(self.deeds)
        if deed.side not in self.sides:
            self.sides[deed.side] = Side(self.cells)
        for side in self.sides.values() if deed.side == STORE else ():
            side.number[cells] = 0
        side = self.sides[deed.side]
        side.number[cells], side.cta[cells], side.thread[cells] = number, ids, threads
        np.add.at(side.pending, cells, ONE)
        deed.issued = moments
        return Touch(self, number, cells, ids)

    def end(self, touch: Touch, ctas: np.ndarray, column: int, epoch: int) -> None:
        """The access is over in `ctas` (CTA + 1), which is known to those who know `epoch` of `column`."""
        deed = self.deeds[touch.number - 1]
        mine = np.isin(touch.ids, ctas)
        fresh = [int(cta) for cta in np.unique(touch.ids[mine])]
        if any(cta not in deed.ended for cta in fresh):
            np.subtract.at(self.sides[deed.side].pending, touch.cells[mine], ONE)
        for cta in fresh:
            deed.ended.setdefault(cta, []).append(Moment(column, epoch))

    def forget(self, view) -> None:
        """An ordinary access has written cells: it is what later accesses are compared with."""
        for side in self.sides.values():
            if view(side.number).any():
                view.assign(side.number, 0)

    def last_store(self, cell: int) -> tuple[Loc | None, int] | None:
        """Where and by which CTA the store of a cell was issued that no later access of the cell has replaced."""
        store, reduction = self.sides.get(STORE), self.sides.get(REDUCE)
        if store is None or not store.number[cell] or reduction is not None and reduction.number[cell]:
            return None
        return self.deeds[store.number[cell] - 1].loc, int(store.cta[cell]) - 1

    # -- conflicts -----------------------------------------------------------------------------------------------------

    def conflict(self, view, who: Accessor, kind: str | int) -> Late | Unfenced | None:
        """The first conflict of an access of a kind (a key of CONFLICTS) by `who` with asynchronous accesses."""
        for name in CONFLICTS[kind]:
            side = self.sides.get(name)
            if side is None:
                continue
            number = view(side.number)
            if number.any():
                found = _Earlier(self, side, view, number, who).find_first(isinstance(kind, int) and name != LOAD)
                if found is not None:
                    view.assign(side.number, 0)  # so that it is reported once
                    return found
        return None


class _Earlier:
    """The asynchronous accesses to some cells that `who` now accesses."""

    def __init__(self, flight: GlobalFlight, side: Side, view, number: np.ndarray, who: Accessor):
        self.view, self.who, self.shape = view, who, number.shape
        self.where = np.nonzero(number)
        def pick(array):
            return np.broadcast_to(array, self.shape)[self.where]
        self.cta, self.me, self.thread = pick(view(side.cta)), pick(who.ids), pick(view(side.thread))
        self.near = pick(who.is_near(view(side.cta)))
        pairs, self.of = np.unique(pick(number).astype(np.int64) << 32 | self.cta, return_inverse=True)
        self.deeds = [flight.deeds[(pair >> 32) - 1] for pair in pairs.tolist()]
        self.ctas = [pair & 0xFFFFFFFF for pair in pairs.tolist()]
        ended = np.array([cta in d.ended for d, cta in zip(self.deeds, self.ctas)])
        self.pending = (pick(view(side.pending)) > 0) | ~ended[self.of]
        if who.kind:
            self.own = np.zeros(len(self.cta), bool)
        else:
            self.own = self.near & (self.cta == self.me) & (self.thread == pick(who.threads))

    def find_first(self, engines: bool) -> Late | Unfenced | None:
        """The first cell whose earlier access is not over for `who`; or else, for `engines`, that a proxy fence
        should stand before."""
        late = self.pending.copy()
        over = ~self.pending
        if over.any():
            late |= self._find_unknown(over & ~self.near)
            late |= self._unordered_cells(over & self.near & ~(self.own & self._ended_by_issuer()))
        if late.any():
            at = int(np.argmax(late))
            return Late(self._deed_at(at), self._cell(at), self._thread(at), self._ctas(at),
                        bool(self.own[at]) or self._follows_issue(at))
        return self._find_unfenced(over & (self.cta != self.me)) if engines else None

    def _find_unfenced(self, some: np.ndarray) -> Unfenced | None:
        clocks = self.who.m.sim.global_clocks
        bad = self._find_unknown(some & ~self.near, notes=None if clocks is None else clocks.views)
        bad |= ~self._knows(some & self.near, GLOBAL, self._ends()) & some & self.near
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        return Unfenced(self._cell(at), self._ctas(at), deed=self._deed_at(at))

    def _ended_by_issuer(self) -> np.ndarray:
        """Where the issuing thread itself waited, for a group, and not whoever waits for a barrier."""
        return self._moments(self._ends(), 0, 0) == self._moments(self._issues(), 0, 0)

    def _ends(self) -> list[list[Moment]]:
        return [d.ended.get(cta, []) for d, cta in zip(self.deeds, self.ctas)]

    def _issues(self) -> list[list[Moment]]:
        return [[d.issued[cta]] for d, cta in zip(self.deeds, self.ctas)]

    def _moments(self, moments: list[list[Moment]], j: int, what: int) -> np.ndarray:
        """Part `what` of the moment number `j` of each cell, or of the last one."""
        return np.array([m[min(j, len(m) - 1)][what] if m else 0 for m in moments])[self.of]

    def _knows(self, some: np.ndarray, plane: int, moments: list[list[Moment]]) -> np.ndarray:
        """Of the cells `some`, accessed from this cluster, those for which `who` knows one of the moments."""
        known = np.zeros(len(some), bool)
        if some.any() and plane < self.who.planes:
            cells = tuple(w[some] for w in self.where)
            for j in range(max(map(len, moments))):
                columns, epochs = (self._moments(moments, j, n)[some] for n in (0, 1))
                known[some] |= self.who.is_ordered(cells, self.shape, plane, columns, epochs)
        return known

    def _unordered_cells(self, some: np.ndarray) -> np.ndarray:
        """Of the cells `some`, those whose end `who` does not know of."""
        if self.who.kind == NOBODY or not some.any():
            return np.zeros(len(some), bool)
        return self._find_unknown(some & ~self._knows(some, ORDER, self._ends()))

    def _find_unknown(self, some: np.ndarray, moments: Callable | None = None,
                      notes: Callable | None = None) -> np.ndarray:
        """Of the cells `some`, those for which `who` knows, by `notes` of the grid's clocks (by default by all that its
        threads know), none of the moments (by default ends)."""
        result = some.copy()
        if some.any() and self.who.m.sim.global_clocks is not None:
            found = (moments or self._ends)()
            cells = tuple(w[some] for w in self.where)
            for j in range(max(map(len, found))):
                columns, epochs = (self._moments(found, j, n)[some] for n in (0, 1))
                result[some] &= self.who.find_unheard(cells, self.shape, self.cta[some], columns, epochs, notes)
        return result

    def _follows_issue(self, at: int) -> bool:
        """Whether the access to a cell is ordered after the issue of the earlier one."""
        some = np.arange(len(self.cta)) == at
        if not self.near[at]:
            return not self._find_unknown(some, self._issues)[at]
        return self.who.kind == NOBODY or bool(self._knows(some, ORDER, self._issues())[at])

    def _deed_at(self, at: int) -> Deed:
        return self.deeds[self.of[at]]

    def _cell(self, at: int) -> int:
        return self.view.cell(tuple(w[at] for w in self.where))

    def _thread(self, at: int) -> int:
        return int(np.broadcast_to(self.who.threads, self.shape)[tuple(w[at] for w in self.where)])

    def _ctas(self, at: int) -> tuple[int, int]:
        return int(self.me[at]) - 1, int(self.cta[at]) - 1
