"""Execution scopes: the builtins that open them, and how they nest.

Some conditions on thread ids are equivalent to a scope; they are recognised here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dtypes import int32, keeps
from ..ir.builder import Builder, ExecScope, describe, element_type, source_text, type_of
from ..ir.builtin import builtin
from ..ir.graph import UNIT, Call, Const, Operand, Value
from ..ops.language.ids import absolute_thread_id, warp_id, warpgroup_id
from ..ops.tiles.casts import cast
from ..ops.tiles.elementwise import eq
from ..types import Scalar
from .ranges import LoopRange

WIDTH = {"elect": 0, "thread": 0, "warp": 1, "warpgroup": 2, "cta": 3}


@dataclass(frozen=True)
class ScopeSpec:
    """The operand of ``with`` that opens a scope: `count` units of `kind` from `first` on, as one collective."""

    kind: str
    first: Any = None
    count: int = 1
    regs: int | None = None
    each: bool = False  # whether it is the scope inside the loop of `each_warpgroup` or `each_warp`

    @property
    def threads(self) -> int:
        return self.count * UNIT[self.kind]

    def __str__(self) -> str:
        if self.kind == "elect":
            return "elect()"
        if isinstance(self.first, Value):
            return f"{self.kind}({self.first.name})"
        return f"{self.kind}({self.first if self.count == 1 else f'range({self.first}, {self.first + self.count})'})"


@dataclass(frozen=True)
class EachScope:
    """The operand of ``with`` that opens one scope for each of `count` units of `kind` from `first` on."""

    kind: str
    first: int
    count: int
    regs: int | None = None


# -- the names of the language -----------------------------------------------------------------------------------------

@builtin
def warpgroup(g: Builder, i: Any, regs: Any = None) -> ScopeSpec:
    """The scope of warpgroup `i` of the CTA (128 threads each), or of ``range(first, stop)`` of them as one collective.

    `regs` is how many registers a thread may keep from here on (``setmaxnreg``).
    """
    if regs is not None and (not isinstance(regs, int) or regs % 8 or not 24 <= regs <= 256):
        raise g.error(f"regs is a multiple of 8 from 24 to 256, not {regs if isinstance(regs, int) else describe(regs)}"
                      + g.declared_constant(regs))
    if regs is not None:
        g.need("setmaxnreg", 90)
    return _spec(g, "warpgroup", i, regs)


@builtin
def each_warpgroup(g: Builder, over: Any, regs: Any = None) -> EachScope:
    """A separate scope for each warpgroup of ``range(first, stop)``; they run the same code, side by side.

    ``with tile.each_warpgroup(range(1, 3)) as i:`` gives the warpgroup's id; `regs` is as in `warpgroup`.
    """
    return _scope_of_range(g, warpgroup.function(g, over, regs), over)


@builtin
def warp(g: Builder, i: Any) -> ScopeSpec:
    """The scope of warp `i` of the CTA (32 threads each), or of ``range(first, stop)`` of them as one collective."""
    return _spec(g, "warp", i)


@builtin
def each_warp(g: Builder, over: Any) -> EachScope:
    """A separate scope for each warp of ``range(first, stop)``; they run the same code, side by side.

    ``with tile.each_warp(range(0, 4)) as i:`` gives the warp's id.
    """
    return _scope_of_range(g, _spec(g, "warp", over), over)


@builtin
def thread(g: Builder, i: Any) -> ScopeSpec:
    """The scope of thread `i` of the CTA, or of ``range(first, stop)`` of them."""
    return _spec(g, "thread", i)


@builtin
def elect(g: Builder) -> ScopeSpec:
    """The scope of one thread of the enclosing scope, always the same one (in warp 0 of it, by ``elect.sync``)."""
    return ScopeSpec("elect")


def _scope_of_range(g: Builder, spec: ScopeSpec, over: Any) -> EachScope:
    if not isinstance(over, LoopRange):
        name = f"each_{spec.kind}"
        raise g.error(f"{name} takes a range, as in {name}(range(1, 3)), not {describe(over)}")
    return EachScope(spec.kind, spec.first, spec.count, spec.regs)


def _spec(g: Builder, kind: str, i: Any, regs: int | None = None) -> ScopeSpec:
    if isinstance(i, LoopRange):
        if i.item is not None or i.unroll != 1 or i.pipeline is not None:
            raise g.error(f"{kind}(range(first, stop)) names {kind}s by a plain range with constant bounds, "
                          f"and this is a loop; write `with tile.{kind}(..):` around the loop, or in it")
        if not isinstance(i.start, int) or not isinstance(i.stop, int) or i.step != 1 or i.stop <= i.start:
            raise g.error(f"{kind}(range(first, stop)) takes constant bounds, first below stop, and step 1"
                          + g.declared_constant((i.start, i.stop, i.step)))
        if kind == "thread" and (i.start % 32 or i.stop % 32) and i.start // 32 != (i.stop - 1) // 32:
            raise g.error(f"threads {i.start} to {i.stop - 1} are parts of several warps, "
                          "and a scope of threads must be whole warps, or lanes of one; "
                          f"to select single threads write if tile.thread_id() < {i.stop}")
        return ScopeSpec(kind, i.start, i.stop - i.start, regs)
    i = i.value if isinstance(i, Const) else i
    t = type_of(i)
    if not isinstance(t, Scalar) or not t.dtype.is_int:
        raise g.error(f"{kind} takes an integer or a range, not {describe(i)}")
    if t.uniform < g.scope.uniformity:
        raise g.error(f"{kind}({i.name}): which {kind} it is must be the same for all threads of the {g.scope.kind}, "
                      f"and {source_text(i)} differs between them")
    return ScopeSpec(kind, i, 1, regs)


# -- nesting -----------------------------------------------------------------------------------------------------------

def open_scope(g: Builder, spec: ScopeSpec) -> ExecScope:
    """The execution scope that `spec` opens inside the current one. CompilationError if it does not fit there."""
    problem = misfit(g, spec) or explain_absence(g, spec)
    if problem is not None:
        raise g.error(problem)
    if spec.kind == "elect":
        return ExecScope("thread", 1, elected=True)
    return ExecScope(spec.kind, spec.threads, spec.first, around=2 if spec.each else 1)


def misfit(g: Builder, spec: ScopeSpec) -> str | None:
    """Why `spec` cannot open a scope inside the current one; None if it can."""
    outer = g.scope
    if outer.partial is not None and (spec.threads > 1 or spec.kind == "elect"):
        return (f"{spec} needs all threads of {describe_scope(outer)}, "
                f"and the condition {source_text(outer.partial)} differs between them")
    if outer.threads == 1 and spec.kind == "elect":
        return "elect() chooses one of several threads, and only one thread runs here"
    if outer.kind != "cta" and (WIDTH[spec.kind] > WIDTH[outer.kind] or spec.threads >= outer.threads):
        return f"{spec} is not narrower than the scope of {describe_scope(outer)} that it stands in"
    return None


def explain_absence(g: Builder, spec: ScopeSpec) -> str | None:
    """Why `spec` is not contained in the current scope, as far as constants tell; None if it may be."""
    if spec.kind == "elect":
        return None
    unit, kind, outer = UNIT[spec.kind], spec.kind, g.scope
    exist = g.launch.threads // unit
    if exist == 0:
        return f"a warpgroup has 4 warps, and the kernel runs with num_warps={g.launch.num_warps}"
    if not isinstance(spec.first, int):
        return None
    if not 0 <= spec.first <= exist - spec.count:
        wrong = spec.first if spec.first < 0 else spec.first + spec.count - 1
        there = f"{kind}s 0 to {exist - 1}" if exist > 1 else f"{kind} 0 only"
        return f"{kind} {wrong} does not exist: with num_warps={g.launch.num_warps} the CTA has {there}"
    if outer.kind != "cta" and isinstance(outer.first, int) and not outer.elected:
        start = outer.first * UNIT[outer.kind]
        low, high = start // unit, (start + outer.threads) // unit
        if not low <= spec.first <= high - spec.count:
            return (f"{spec} is outside the scope of {describe_scope(outer)}: ids are absolute in the CTA, "
                    f"and that scope holds {kind}s {low} to {high - 1}")
    return None


def describe_scope(scope: ExecScope) -> str:
    """A scope in words, for error messages."""
    if scope.kind == "cta":
        return "the CTA"
    if scope.elected:
        return "an elected thread"
    count = scope.threads // UNIT[scope.kind]
    if isinstance(scope.first, Value):
        return f"{scope.kind} {scope.first.name}"
    assert scope.first is not None  # it is not elected
    if count == 1:
        return f"{scope.kind} {scope.first}"
    return f"{scope.kind}s {scope.first} to {scope.first + count - 1}"


def first_operand(spec: ScopeSpec) -> Operand:
    """The operand `first` of the Scope node for `spec`."""
    if spec.kind == "elect":
        return None
    return Const(spec.first, int32) if isinstance(spec.first, int) else spec.first


# -- conditions that mean a scope --------------------------------------------------------------------------------------

_IDS = {absolute_thread_id: "thread", warp_id: "warp", warpgroup_id: "warpgroup"}


def meant_by(g: Builder, test: Any) -> ScopeSpec | None:
    """The scope to which a condition is equivalent: ``tile.warp_id() == c`` (or thread or warpgroup id) with a
    uniform `c`. None for other conditions."""
    call = g.definitions.get(test) if isinstance(test, Value) else None
    if call is None or call.op is not eq or not element_type(call.args[0]).is_int:
        return None
    for one, other in (call.args, call.args[::-1]):
        defined = _definition(g, one)
        kind = _IDS.get(defined.op) if defined is not None else None
        if defined is not None and kind is not None and not any(defined.attrs.values()):
            if isinstance(other, Const):
                return ScopeSpec(kind, other.value)
            if isinstance(other, Value) and isinstance(other.type, Scalar) and other.type.uniform >= g.scope.uniformity:
                return ScopeSpec(kind, other)
    return None


def _definition(g: Builder, x: Operand) -> Call | None:
    """The call that defines `x`, looking through casts that preserve the integer."""
    call = g.definitions.get(x) if isinstance(x, Value) else None
    while call is not None and call.op is cast and keeps(element_type(call.args[0]), call.attrs["dtype"]):
        call = g.definitions.get(call.args[0])
    return call
