"""What a loop carries: the names are read off the syntax, their types are found by walking the body until they hold.

A weak number takes the dtype of what the body assigns; a scalar becomes as uniform as the body, and the condition that
ends the loop, leave it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import CompilationError
from ..ir.graph import Carry, Node, Operand, Value
from ..ops.ring import cursors
from ..types import Uniformity
from . import joins
from .branches import graph_name
from .joins import Clash
from .names import RESULT, Entry, Undefined
from .state import Snapshot
from .walker import Walker, is_cell, runtime, where

LEFT = ("return", "break")
HIDDEN = (*LEFT, RESULT)


@dataclass
class Trip:
    """A loop's body, walked once: its blocks, the uniformity of what decides whether the loop goes on, and whether the
    body must be walked again."""

    nodes: list[Node]
    control: Uniformity
    test: list[Node] = field(default_factory=list)
    again: bool = False


@dataclass
class Settled:
    """A loop whose carried types hold. `after` is what the names are at the body's end, `lost` says why a name that the
    body changes has no value after the loop; `exits` that the body leaves the loop early."""

    trip: Trip
    plans: dict[Any, joins.Join]
    inner: dict[Any, list[Value]]
    before: dict[Any, Entry]
    after: dict[Any, Entry]
    lost: dict[Any, str]
    exits: bool = False


def settle(w: Walker, names: list[str], walk: Callable[[], Trip], *, control: Uniformity = Uniformity.GRID, stop_at_exits: bool = False) -> Settled:
    """Walk a loop's body until the types of what it carries no longer change; the last walk is the one that stays.

    `control` is the uniformity of what decides whether the loop goes on, as far as it is known before. With `stop_at_exits` the
    search ends as soon as the body turns out to leave the loop early.
    """
    before = dict(w.frame.env)
    pinned: set[Any] = set()
    key, depth = (w.g.loc, tuple(w.copies), stop_at_exits), len(w.copies)
    expected = _expected(w, before)
    plans = {n: joins.cap(p, control) for n, p in _first_guess([*names, *expected], before, w.carried.get(key, {})).items()}
    failed: CompilationError | None = None
    while True:
        snapshot = Snapshot.of(w)
        headers, inner = _headers(w, plans, before)
        w.frame.env = {**before, **headers}
        try:
            trip = walk()
        except CompilationError as error:
            # With its first value for good, a constant may do what it never does at run time; then all of them vary.
            varied = {n: joins.varying(before[n].value) for n in plans.keys() - pinned}
            if failed is not None or all(plans[n] == p for n, p in varied.items()):
                raise failed or error
            failed, plans, w.frame.env = error, {**plans, **varied}, dict(before)
            del w.copies[depth:]
            snapshot.restore(w)
            continue
        after, w.frame.env = w.frame.env, dict(before)
        exits = any(after[n].value is not False for n in LEFT if n not in plans and before[n].value is False)
        for name in [n for n in expected if n in plans and not headers[n].read and after[n] is headers[n]]:
            expected.remove(name)
            del before[name], after[name], plans[name]
        if exits and stop_at_exits:
            snapshot.restore(w)
            return Settled(trip, plans, inner, before, after, {}, exits=True)
        still = _demoted(plans, headers, before, after, pinned)
        constant = _constant(plans, headers, before, after, pinned)
        wider, lost = _widened(w, {n: p for n, p in plans.items() if n not in constant}, headers, after, trip.control)
        found = {n: joins.cap(p, trip.control) for n, p in _uncarried(w, names, plans, before, after).items()}
        stable = {n: p for n, p in plans.items() if n not in lost and n not in constant}
        if wider == stable and not found and not still and not trip.again and not any(headers[n].read for n in constant):
            for name in wider:
                before[name].read = True
            w.frame.env, w.carried[key] = dict(before), wider
            return Settled(trip, wider, inner, before, after, lost)
        snapshot.restore(w)
        if still or constant:
            w.carried.clear()  # loops inside were walked with less known than will be
        pinned |= found.keys() | still.keys()
        plans = {**{n: plans[n] for n in lost}, **wider, **still, **found}


def _expected(w: Walker, before: dict) -> list[tuple]:
    """Cells that the loop's body will perhaps make: the cursors of rings in this scope. They are known from now on, so that those of them
    that it moves are carried from the first walk on."""
    found = [("cell", key) for key, initial in cursors(w.g) if w.g.cells.initial.setdefault(key, initial) == initial]
    found = [name for name in found if name not in before]
    before.update({name: Entry(w.g.cells.initial[name[1]], w.g.loc, w.home) for name in found})
    return found


def _first_guess(names: list[str], before: dict, last: dict) -> dict[Any, joins.Join]:
    """What a loop carries, for its first walk: what it was last found to, if it was walked before as part of a loop
    around it; else its run-time names and cells. Constants stay what they are until the body changes them."""
    plans = {}
    cells = [n for n, entry in before.items() if is_cell(n) and runtime(entry.value)]
    for name in dict.fromkeys((*names, *last, *cells)):
        if name not in before or isinstance(before[name].value, Undefined):
            continue
        guess = joins.widen(last[name], before[name].value) if name in last else None
        fits = guess is not None and not isinstance(guess, Clash)
        plans[name] = guess if fits else joins.varying(before[name].value, constants=is_cell(name) and name not in cells)
    return plans


def _headers(w: Walker, plans: dict, before: dict) -> tuple[dict[Any, Entry], dict[Any, list[Value]]]:
    """Fresh values for what is carried, as the body sees them."""
    headers, inner = {}, {}
    for name, plan in plans.items():
        inner[name] = [Value(graph_name(name), t, w.g.loc) for t in joins.types(plan)]
        entry = before[name]
        headers[name] = Entry(joins.rebuild(plan, iter(inner[name])), entry.loc, entry.home)
    return headers, inner


def _constant(plans: dict, headers: dict, before: dict, after: dict, pinned: set) -> set[Any]:
    """The names that the body leaves as they are: it does not get to assign them, or assigns the constant they hold."""
    found = set()
    for name in plans.keys() - pinned:
        if not any(joins.types(plans[name])):
            continue
        header, end = headers[name], after[name]
        held = before[name].value
        again = not header.read and not any(joins.is_runtime(x) for x in joins.leaves(held)) and joins.same(end.value, held)
        if end is header or again:
            found.add(name)
    return found


def _demoted(plans: dict, headers: dict, before: dict, after: dict, pinned: set) -> dict[Any, joins.Join]:
    """The tuples some of whose elements the body hands on as they are: those stay what they are before the loop."""
    found = {}
    for name, plan in plans.items():
        if name not in pinned and isinstance(plan, joins.Group) and after[name] is not headers[name]:
            less = joins.demote(plan, headers[name].value, after[name].value, before[name].value)
            if less != plan:
                found[name] = less
    return found


def _uncarried(w: Walker, names: list[str], plans: dict, before: dict, after: dict) -> dict[Any, joins.Join]:
    """What the body changed although it was not carried: exits and cells, whose changes only the walk shows."""
    found: dict[Any, joins.Join] = {}
    for name, entry in after.items():
        if name in plans or entry is before.get(name):
            continue
        if is_cell(name):
            before.setdefault(name, Entry(w.g.cells.initial[name[1]], w.g.loc, w.home))
        elif name == RESULT:
            plan = joins.pending(entry.value)
            if isinstance(entry.value, Undefined) or isinstance(plan, Clash):
                continue
            before.setdefault(name, Entry(joins.filler(plan), w.g.loc, w.home))
            found[name] = plan
            continue
        elif name not in HIDDEN and (name not in names or name not in before or isinstance(before[name].value, Undefined)):
            continue
        if not joins.same(before[name].value, entry.value):
            found[name] = joins.varying(before[name].value)
    return found


def _widened(w: Walker, plans: dict, headers: dict, after: dict, control: Uniformity) -> tuple[dict, dict[Any, str]]:
    """The plans made to hold what the body brings, and why names that need not be carried cannot be."""
    wider, lost = {}, {}
    for name, plan in plans.items():
        header, end = headers[name], after[name]
        joint = joins.widen(plan, end.value)
        if not isinstance(joint, Clash):
            wider[name] = joins.cap(joint, control)
            continue
        both = where("before the loop", header.loc) + where("in the loop", end.loc)
        if isinstance(end.value, Undefined):
            both = ""
        if header.read:
            raise w.error(f"{graph_name(name)} {joint.why}; a name keeps its type in a loop{both}\nthe loop is here:")
        lost[name] = f"{joint.why}, so it holds nothing after the loop{both}"
    return wider, lost


def carries(w: Walker, s: Settled) -> tuple[tuple[Carry, ...], tuple[Operand, ...]]:
    """The loop's carries and its body's yields; lets the names hold what they do after the loop."""
    carried, yields = [], []
    for name, plan in s.plans.items():
        inits = list(joins.flatten(plan, s.before[name].value, w.coerce))
        with w.g.reopened(s.trip.nodes):
            yields += joins.flatten(plan, s.after[name].value, w.coerce)
        results = [Value(graph_name(name), t, w.g.loc) for t in joins.types(plan)]
        carried += [Carry(i, v, r) for i, v, r in zip(inits, s.inner[name], results)]
        w.put(name, joins.rebuild(plan, iter(results)), s.before[name].home)
    for name, entry in s.after.items():
        if name in s.lost:
            w.put(name, Undefined(s.lost[name]))
        elif name not in s.before or (isinstance(s.before[name].value, Undefined) and entry is not s.before[name]):
            w.put(name, _unsure(entry))
    return tuple(carried), tuple(yields)


def _unsure(entry: Entry) -> Undefined:
    """Why a name that only a loop's body assigns holds nothing after the loop."""
    if isinstance(entry.value, Undefined):
        return entry.value
    return Undefined("may be undefined: only the loop's body assigns it, and the loop may run zero times; "
                     "assign it before the loop" + where("assigned", entry.loc))
