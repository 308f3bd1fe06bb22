"""The rules of an op: functions that the compiler and the simulator call for it, each with its type and its caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar

if TYPE_CHECKING:  # the modules of these types import this one, or come after it
    from ..types import Tile
    from .builder import Builder
    from .graph import Call, Operand, Value
    from .op import Op

    Types = tuple[Tile | None, ...]
    Places = Iterable[Operand]  # operands that are places in memory; None stands for a place that is not known


@dataclass(slots=True, eq=False, repr=False)
class Rules:
    """What an op says about its calls; None where it says nothing.

    An op has `infer`; and `simulate` and `emit`, unless a pass replaces its calls before they run. Arguments of rules:
    `g` is a `Builder`, `m` a `machine_protocol.Machine` and `e` an `emitter_protocol.Emitter`; `context` is an
    `analysis.context.Context` and `assigner` a `layouts.layouts.Assigner` of `tilejit/passes`.
    """

    # -- the graph. `Builder.call` -------------------------------------------------------------------------------------
    #: ``infer(g, *operands, **attrs)`` checks a call and returns its results' types: one, a tuple, or None.
    infer: Callable[..., Any] | None = None
    #: ``linear(g, call)`` is an integer result as a linear combination {value: coefficient} of others, with the
    #: constant under None, or None where it is none. Those of its operands are known. `Builder.linear_form`.
    linear: Callable[[Builder, Call], Mapping[Any, int] | None] | None = None

    # -- choosing a lowering. passes/layouts/variants.py ---------------------------------------------------------------
    #: ``check(context, call)`` raises CompilationError for a call that is not allowed where it stands.
    check: Callable[[Any, Call], None] | None = None
    #: ``site(context, call)`` describes a call to the needs of the op's variants. Also passes that ask which variant a
    #: call will get.
    site: Callable[[Any, Call], Any] | None = None
    #: ``plan(context, call)`` is the plan (immutable data) of a call of an op without variants; None if there is
    #: nothing to choose.
    plan: Callable[[Any, Call], Any] | None = None

    # -- layouts of register tiles. passes/layouts/layouts.py ----------------------------------------------------------
    #: ``layout(assigner, call, types)`` returns the types that a call needs of its operands (None: as they are), and
    #: those of its results. Without it, all tiles have the layout of the first operand that is a tile.
    layout: Callable[[Any, Call, Types], tuple[Types, Types]] | None = None
    #: ``layout_backward(assigner, call, want)`` returns the operand types that give a result in the layout of `want`;
    #: None if no types do.
    layout_backward: Callable[[Any, Call, Any], Types | None] | None = None
    #: ``scratch(call)`` is the number of bytes of shared memory that a call needs while it runs.
    #: passes/placement/shared_memory.py.
    scratch: Callable[[Call], int] | None = None

    # -- what a call accesses ------------------------------------------------------------------------------------------
    #: ``written(call, mapped)`` are the places that a call may write, for ops whose signature cannot say it; `mapped`:
    #: some call of the kernel stores through a tensor map that the kernel names. `ir.graph.written_values`.
    written: Callable[[Call, bool], Iterable[Value]] | None = None
    #: ``stores_by_map(call)``: whether a call stores to global memory through a tensor map. `ir.graph.written_values`.
    stores_by_map: Callable[[Call], bool] | None = None
    #: ``by_threads(call)`` are the places in shared memory that threads access, through the generic proxy; without it,
    #: all operands of a call with an effect. ops/sync/proxies.py.
    by_threads: Callable[[Call], Places] | None = None
    #: ``by_engines(call)`` are the places that a call writes, and those that it reads, through the async proxy; without
    #: it, none. ops/sync/proxies.py.
    by_engines: Callable[[Call], tuple[Places, Places]] | None = None
    #: ``handed_over(call)`` are the buffers that a call hands to copies that overwrite them.
    #: passes/pipelining/proxy_fences.py.
    handed_over: Callable[[Call], Places] | None = None

    # -- running it ----------------------------------------------------------------------------------------------------
    #: ``simulate(m, call, *operands)`` returns the results' values, or a `Wait`. sim/fiber.py.
    simulate: Callable[Concatenate[Any, Call, ...], Any] | None = None
    #: ``emit(e, call, *operands)`` returns the results' values. `emit.emitter.Emitter.call`.
    emit: Callable[Concatenate[Any, Call, ...], Any] | None = None
    #: ``element(e, dtype, *values)`` is one element of an elementwise op's result, as an emitted value.
    #: ops/reduce/combine.py.
    element: Callable[..., Any] | None = None


Rule = TypeVar("Rule", bound=Callable[..., Any])


def require_rule(rule: Rule | None) -> Rule:
    """A rule that the op must have."""
    assert rule is not None, "an op lacks a rule that its declaration needs"
    return rule


class RuleDecorator:
    """A decorator that registers a function as an op's rule: ``@add.emit``. Its name on `Op` is the name of the
    rule."""

    def __set_name__(self, owner: type, name: str) -> None:
        if name not in Rules.__dataclass_fields__:
            raise AttributeError(f"an op has no rule {name!r}")
        self.name = name

    def __get__(self, op: Op, owner: type) -> Callable[[Rule], Rule]:
        def register(function: Rule) -> Rule:
            setattr(op.rules, self.name, function)
            return function
        return register
