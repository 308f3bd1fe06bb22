"""What an op is: one declaration, whose signature and docstring are its manual page, with its rules beside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..concurrency import cached_property
from ..errors import CompilationError
from ..names import suggest_keyword
from .op_rules import RuleDecorator, Rules
from .op_traits import NO_TRAITS, Traits, roles_of

if TYPE_CHECKING:
    pass

F = TypeVar("F", bound=Callable[..., Any])

EFFECTS = ("pure", "reads", "writes", "syncs")

OPS: dict[str, Op] = {}


class Op:
    """An operation of the language, or one that only the compiler uses.

    ``effect``: 'pure' (may be removed, repeated, moved), 'reads' memory, 'writes' memory, or 'syncs'. The signature
    says what each operand of an op with an effect is (`op_traits.Role`), and `traits` what else passes may know.
    `rules` has the op's functions (`op_rules.Rules`). A decorator registers each of them, as in ``@add.emit``.
    An op with ``variants`` is lowered by the first one whose needs hold; the rule ``site`` describes a call to them.
    """

    def __init__(self, function: Callable[..., Any], effect: str, attrs: tuple[str, ...],
                 variants: tuple[Any, ...] = (), collective: bool = False, traits: Traits = NO_TRAITS):
        if effect not in EFFECTS:
            raise ValueError(f"effect is one of {EFFECTS}, not {effect!r}")
        self.name = function.__name__.rstrip("_")
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.effect = effect
        self.attrs = attrs
        self.variants = variants
        self.collective = collective
        self.traits = traits
        self.roles = roles_of(function, attrs, effect != "pure")
        self.writes = self.roles.writes
        self.rules = Rules()
        self.place = function.__module__, function.__code__.co_firstlineno
        # the same place is allowed: an interrupted import is repeated
        if self.name in OPS and OPS[self.name].place != self.place:
            raise ValueError(f"an op {self.name!r} exists already")
        OPS[self.name] = self

    # Decorators that register rules; `op_rules.Rules` says what each is.
    infer = RuleDecorator()
    linear = RuleDecorator()
    check = RuleDecorator()
    site = RuleDecorator()
    plan = RuleDecorator()
    layout = RuleDecorator()
    layout_backward = RuleDecorator()
    scratch = RuleDecorator()
    written = RuleDecorator()
    stores_by_map = RuleDecorator()
    by_threads = RuleDecorator()
    by_engines = RuleDecorator()
    handed_over = RuleDecorator()
    simulate = RuleDecorator()
    emit = RuleDecorator()
    element = RuleDecorator()

    @cached_property
    def signature(self) -> inspect.Signature:
        """The declaration's signature, without the roles of operands."""
        signature = inspect.signature(self.__wrapped__)
        return signature.replace(parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()])

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise CompilationError(f"tile.{self.name} runs inside @tile.jit kernels, not in plain Python")

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Split a call's arguments into operands, in the signature's order, and attributes.
        CompilationError if they do not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise CompilationError(f"tile.{self.name}{self.signature}: "
                                   f"{error}{suggest_keyword(kwargs, self.signature.parameters)}") from None
        bound.apply_defaults()
        operands: list[Any] = []
        attrs: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if name in self.attrs:
                attrs[name] = value
            elif self.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                operands += value
            else:
                operands.append(value)
        return tuple(operands), attrs


def op(effect: str, *, attrs: tuple[str, ...] = (), variants: tuple[Any, ...] = (), collective: bool = False,
       traits: Traits = NO_TRAITS) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op by its signature and docstring. `attrs` are the parameters fixed at compile time, the others its
    operands."""
    return lambda function: Op(function, effect, attrs, variants, collective, traits)


def variant_names() -> list[str]:
    """The names of all variants that a call, or the block around it, may ask for: those of ops with `options`."""
    return sorted({v.name for o in OPS.values() if "options" in o.attrs for v in o.variants})
