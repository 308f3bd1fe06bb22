"""Finds what a loop carries. The names come from the syntax; their types from walking the body until a fixed point.

A weak number takes the dtype of what the body assigns. A scalar is no more uniform than what the body assigns and the
condition that ends the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from ..errors import CompilationError
from ..ir.graph import Carry, Node, Operand, Value
from ..ops.structure.ring import cursors
from ..types import Tile, Uniformity
from . import joins
from .branches import graph_name
from .joins import Clash
from .names import ONWARD, RESULT, Entry, Undefined, is_cell, name_in_messages
from .scopes import describe_scope
from .state import Snapshot
from .walker import Walker, runtime, second_location

LEFT = ("return", "break")


class Ends(Enum):
    """Where a loop may end: before its first trip too, after a trip, or by a `break` or `return` only."""

    ANYWHERE, AFTER_A_TRIP, BY_AN_EXIT = range(3)


@dataclass
class Trip:
    """A loop's body, walked once: the nodes of its blocks, the uniformity of the condition that continues the loop,
    and whether the body must be walked again in any case."""

    nodes: list[Node]
    control: Uniformity
    test: list[Node] = field(default_factory=list)
    again: bool = False


@dataclass
class Last:
    """The result of a loop's last search: what it carries (None: unknown), whether it is left early, and the same for
    its inner loops. When an enclosing loop is walked again, less is known before this loop than last time, so its
    search starts from this result. If more is known, the enclosing loop discards it."""

    plans: dict[Any, joins.Join] | None = None
    left: bool = False
    inner: dict[Any, Last] = field(default_factory=dict)


@dataclass
class Attempt:
    """A loop's body, walked with a guess of what the loop carries: `plans`, in the values `inner`. It has the entries
    of names `before` the loop, at the start of the body (`headers`, of carried names) and `after` the body. Once the
    guess is confirmed, `lost` says why a name that the body changes has no value after the loop."""

    trip: Trip
    plans: dict[Any, joins.Join]
    inner: dict[Any, list[Value]]
    before: dict[Any, Entry]
    headers: dict[Any, Entry]
    after: dict[Any, Entry]
    lost: dict[Any, str] = field(default_factory=dict)

    @property
    def exits(self) -> bool:
        """Whether the body may leave the loop early by an exit whose flag is not carried yet."""
        return any(self.after[n].value is not False
                   for n in LEFT if n not in self.plans and self.before[n].value is False)

    def is_untouched(self, name: Any) -> bool:
        return not self.headers[name].read and self.after[name] is self.headers[name]

    def constants(self, pinned: set[Any]) -> set[Any]:
        """The guessed names that need not be carried: the body does not assign them, or assigns the constant that
        they have before the loop."""
        return {n for n, plan in self.plans.items()
                if n not in pinned and any(joins.types(plan)) and self._is_constant(n)}

    def _is_constant(self, name: Any) -> bool:
        header, end, held = self.headers[name], self.after[name], self.before[name].value
        if end is header:
            return True
        if isinstance(end.value_past("break", "continue"), Undefined):
            return False
        return not header.read and not any(map(joins.is_runtime, joins.leaves(held))) and joins.is_same(end.value, held)

    def demote_plans(self, pinned: set[Any], plans: dict[Any, joins.Join]) -> dict[Any, joins.Join]:
        """Smaller plans for those of `plans` that are tuples with elements that the body does not change:
        these are not carried."""
        found: dict[Any, joins.Join] = {}
        for name, plan in plans.items():
            if name not in pinned and isinstance(plan, joins.Group) and self.after[name] is not self.headers[name]:
                less = joins.demote(plan, self.headers[name].value, self.after[name].value, self.before[name].value)
                if less != plan:
                    found[name] = less
        return found


def settle(w: Walker, names: list[str], walk: Callable[[], Trip], *, control: Uniformity = Uniformity.GRID,
           stop_at_exits: bool = False) -> Attempt | None:
    """Walk a loop's body repeatedly until the types of what it carries no longer change, and return the last walk.
    Earlier walks are undone.

    `names` are those that the body assigns. `control` is the uniformity of the condition that continues the loop, as
    far as it is known before the walk. With `stop_at_exits`, the result is None as soon as the body turns out to
    leave the loop early.
    """
    last = w.loops.setdefault((w.g.loc, tuple(w.copies)), Last())
    if last.left and stop_at_exits:
        return None
    env, depth, snapshot = w.frame.env, len(w.copies), Snapshot.of(w)
    before = dict(env)
    expected = _add_ring_cursors(w, before, last.plans)
    plans = _cap_plans(_first_guess([*names, *expected], before, last.plans), control)
    pinned: set[Any] = set()
    failed: CompilationError | None = None

    def undo() -> None:
        w.frame.env = env
        del w.copies[depth:]
        snapshot.restore(w)

    def start_again() -> Attempt | None:
        undo()
        last.plans = None
        last.inner.clear()
        return settle(w, names, walk, control=control, stop_at_exits=stop_at_exits)

    while True:
        try:
            attempt = _attempt_body(w, last, plans, before, walk)
        except CompilationError as error:
            if last.plans is not None:
                return start_again()
            # A constant that keeps its first value may lead to an error that does not exist at run time. Walk again
            # with all names varying; if that fails too, the first error is raised.
            varied = plans | {n: joins.plan_of_varying(before[n].value) for n in plans.keys() - pinned}
            if failed is not None or varied == plans:
                raise failed or error  # noqa: B904 - both are the kernel's, and the first is told
            failed, plans = error, varied
            undo()
            continue
        for name in [n for n in expected if n in plans and attempt.is_untouched(n)]:
            expected.remove(name)
            del before[name], attempt.after[name], plans[name]
        if attempt.exits and stop_at_exits:
            undo()
            last.plans, last.left = None, True
            return None
        plans, lost, holds = _judge_attempt(w, names, last, attempt, pinned)
        if holds:
            for name in plans:
                before[name].read = True
            w.frame.env, last.plans = dict(before), plans
            return replace(attempt, plans=plans, lost=lost)
        if last.plans is not None and plans.keys() - attempt.plans.keys():
            return start_again()
        undo()


def _attempt_body(w: Walker, last: Last, plans: dict[Any, joins.Join], before: dict[Any, Entry],
                  walk: Callable[[], Trip]) -> Attempt:
    headers, inner = _headers(w, plans, before)
    w.frame.env, w.frame.gone = {**before, **headers}, frozenset()
    around, w.loops = w.loops, last.inner
    try:
        trip = walk()
    finally:
        w.loops, w.frame.gone = around, frozenset()
    return Attempt(trip, plans, inner, before, headers, w.frame.env)


def _judge_attempt(w: Walker, names: list[str], last: Last, attempt: Attempt,
            pinned: set[Any]) -> tuple[dict[Any, joins.Join], dict[Any, str], bool]:
    """Judge an attempt: the plans for the next one (or the final ones), why names are lost that cannot be carried,
    and whether the guess is confirmed. If not, names whose plans follow from what the body does to them are `pinned`:
    later attempts do not drop or demote them."""
    constants, demoted = attempt.constants(pinned), attempt.demote_plans(pinned, attempt.plans)
    regained = any(attempt.headers[n].read for n in constants)
    wider, lost = _widen_plans(w, attempt, constants)
    found = _cap_plans(_plan_uncarried(w, names, attempt), attempt.trip.control)
    carried = {n: plan for n, plan in attempt.plans.items() if n not in lost and n not in constants}
    if wider == carried and not (found or demoted or attempt.trip.again or regained):
        return wider, lost, True
    plans = {n: attempt.plans[n] for n in lost} | wider
    if regained or any(joins.regains_knowledge(attempt.plans[n], less) for n, less in demoted.items()):
        last.inner.clear()  # inner loops were walked with less known than the next time, and so was this body
    else:
        demoted = attempt.demote_plans(pinned, attempt.plans | wider)
    pinned.update(found, demoted)
    return plans | demoted | found, lost, False


def _cap_plans(plans: dict[Any, joins.Join], control: Uniformity) -> dict[Any, joins.Join]:
    return {name: joins.cap(plan, control) for name, plan in plans.items()}


def _add_ring_cursors(w: Walker, before: dict[Any, Entry], last: dict[Any, joins.Join] | None) -> list[tuple[str, Any]]:
    """Cells that the loop's body may create: the cursors of rings in this scope. They are added to `before`, so that
    those that the body moves are carried from the first walk on."""
    found = [("cell", key) for key, initial in cursors(w.g) if w.cells.initial.setdefault(key, initial) == initial]
    found = [name for name in found if name not in before and (last is None or name in last)]
    before.update({name: Entry(w.cells.initial[name[1]], w.g.loc, w.home) for name in found})
    return found


def _first_guess(names: list[Any], before: dict[Any, Entry],
                 last: dict[Any, joins.Join] | None) -> dict[Any, joins.Join]:
    """What to assume a loop carries on its first walk: the result of its last search, otherwise all assigned names
    and cells with run-time values. Constants keep their values until the body changes them."""
    cells = [n for n, entry in before.items() if is_cell(n) and runtime(entry.value)]
    asked = dict.fromkeys((*names, *cells) if last is None else (*filter(last.__contains__, names), *last))
    held = {n: before[n].value for n in asked if n in before and not isinstance(before[n].value, Undefined)}
    plans = {n: joins.plan_of_varying(x, constants=is_cell(n) and n not in cells) for n, x in held.items()}
    if last is not None:
        renewed = {n: joins.renew_join(last[n], x) for n, x in held.items()}
        plans |= {n: plan for n, plan in renewed.items() if not isinstance(plan, Clash)}
    return plans


def _headers(w: Walker, plans: dict[Any, joins.Join],
             before: dict[Any, Entry]) -> tuple[dict[Any, Entry], dict[Any, list[Value]]]:
    """Fresh graph values for what is carried, and the entries through which the body sees them."""
    headers: dict[Any, Entry] = {}
    inner: dict[Any, list[Value]] = {}
    for name, plan in plans.items():
        inner[name] = [Value(graph_name(name), t, w.g.loc) for t in joins.types(plan)]
        entry = before[name]
        headers[name] = Entry(joins.rebuild(plan, iter(inner[name])), entry.loc, entry.home, came_out=entry.came_out)
    return headers, inner


def _plan_uncarried(w: Walker, names: list[str], attempt: Attempt) -> dict[Any, joins.Join]:
    """Plans for what the body changed although it was not carried: constants, exit flags,
    the function's result and cells."""
    found: dict[Any, joins.Join] = {}
    before = attempt.before
    for name, entry in attempt.after.items():
        if name in attempt.plans or entry is before.get(name):
            continue
        if name == RESULT:
            plan = joins.plan_of_pending(entry.value)
            if not isinstance(entry.value, Undefined) and not isinstance(plan, Clash):
                before.setdefault(name, Entry(joins.filler(plan), w.g.loc, w.home))
                found[name] = plan
            continue
        if is_cell(name):
            before.setdefault(name, Entry(w.cells.initial[name[1]], w.g.loc, w.home))
        elif (name not in LEFT
              and (name not in names or name not in before or isinstance(before[name].value, Undefined))):
            continue
        if not joins.is_same(before[name].value, entry.value):
            found[name] = joins.plan_of_varying(before[name].value)
    return found


def _widen_plans(w: Walker, attempt: Attempt, constants: set[Any]) -> tuple[dict[Any, joins.Join], dict[Any, str]]:
    """The plans, widened to hold the values at the body's end, and why names are lost that cannot be carried.
    CompilationError if such a name is read in the loop."""
    wider: dict[Any, joins.Join] = {}
    lost: dict[Any, str] = {}
    for name, plan in attempt.plans.items():
        if name in constants:
            continue
        header, end = attempt.headers[name], attempt.after[name]
        following = end.value_past("continue", ONWARD)
        joint = _refuse_varying_trips(w, joins.widen(plan, following), attempt.trip.control)
        if not isinstance(joint, Clash):
            wider[name] = joins.cap(joint, attempt.trip.control)
            continue
        nothing = isinstance(following, Undefined)  # its reason already has a location
        both = ""
        if not nothing:
            both = second_location("before the loop", header.loc) + second_location("in the loop", end.loc)
        if header.read:
            kept = "" if nothing else "; a name keeps its type in a loop"
            raise w.error(f"{name_in_messages(name)} {joint.why}{kept}{both}\nthe loop is here:")
        lost[name] = joint.why if nothing else f"{joint.why}, so it holds nothing after the loop{both}"
    return wider, lost


def carries(w: Walker, settled: Attempt, ends: Ends) -> tuple[tuple[Carry, ...], tuple[Operand, ...]]:
    """The loop's carries and its body's yields. Also binds the names to their values after the loop."""
    carried: list[Carry] = []
    yields: list[Operand] = []
    before, after = settled.before, settled.after

    def carry(name: Any, plan: joins.Join, initial: Any, inner: list[Value]) -> Any:
        """Carry a name; gives its value after the loop."""
        results = [Value(graph_name(name), t, w.g.loc) for t in joins.types(plan)]
        carried.extend(map(Carry, joins.flatten(plan, initial, w.coerce), inner, results))
        with w.g.reopen(settled.trip.nodes):
            yields.extend(joins.flatten(plan, after[name].value, w.coerce))
        return joins.rebuild(plan, iter(results))

    for name, plan in settled.plans.items():
        value, end = carry(name, plan, before[name].value, settled.inner[name]), after[name].value_past("break")
        came_out = before[name].came_out and after[name].came_out
        w.put(name, end if isinstance(end, Undefined) else value,
              after[name].home if before[name].came_out else before[name].home, _returns(after[name]), came_out)
    for name, entry in after.items():
        if name in settled.lost:
            w.put(name, Undefined(settled.lost[name]))
        elif name not in before or (isinstance(before[name].value, Undefined) and entry is not before[name]):
            plan = _plan_after(w, entry, ends, settled.trip.control, None if name == RESULT else settled.trip.nodes)
            if isinstance(plan, Clash):
                w.put(name, Undefined(plan.why))
            else:
                inner = [Value(graph_name(name), t, w.g.loc) for t in joins.types(plan)]
                w.put(name, carry(name, plan, joins.filler(plan), inner), None, _returns(entry), entry.came_out)
    return tuple(carried), tuple(yields)


def _returns(entry: Entry) -> tuple[tuple[str, str], ...]:
    """What a name lacks after a loop: the loop's own exits have led there."""
    return tuple(pair for pair in entry.lacks if pair[0] == "return")


def _plan_after(w: Walker, entry: Entry, ends: Ends, control: Uniformity, nodes: list[Node] | None) -> joins.Join:
    """What a name holds after the loop if only the loop's body, of these nodes, assigns it: the value of the last
    trip, if there certainly was one. `nodes` is None for a function's result."""
    exits = ("break",) if ends is Ends.BY_AN_EXIT else ("break", "continue", ONWARD)
    value = entry.value_past(*exits)
    if isinstance(value, Undefined):
        return Clash(value.why)
    if ends is Ends.ANYWHERE:
        return Clash("may be undefined: only the loop's body assigns it, and the loop may run zero times; "
                     "assign it before the loop" + second_location("assigned", entry.loc))
    return joins.cap(_refuse_varying_trips(w, joins.plan_of_pending(value, nodes), control), control)


def _refuse_varying_trips(w: Walker, plan: joins.Join, control: Uniformity) -> joins.Join:
    """`plan` for what a loop changes: not a register tile if its threads do not all run the same trips."""
    if control < w.g.scope.uniformity and any(isinstance(t, Tile) for t in joins.types(plan)):
        return Clash(f"is a register tile of {describe_scope(w.g.scope)}, and the loop that changes it does not run "
                     "the same trips in all its threads; choose element by element with tile.where")
    return plan
