"""What an op is: one declaration, whose signature and docstring are its manual page, with its rules beside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..concurrency import cached_property
from ..errors import CompilationError
from ..names import misspelt

if TYPE_CHECKING:
    from ..dispatch import Variant

F = TypeVar("F", bound=Callable[..., Any])

EFFECTS = ("pure", "reads", "writes", "syncs")

OPS: dict[str, Op] = {}


class Op:
    """An operation of the language, or one that only the compiler uses.

    ``effect``: 'pure' (may be removed, repeated, moved), 'reads' memory, 'writes' memory, or 'syncs'.
    ``infer(call: Inferring) -> Type | tuple[Type, ...] | None`` checks the operands and returns the results' types;
    ``simulate(m: Machine, call: Call, *args)`` and ``emit(e: Emitter, call: Call, *args)`` return the results' values.
    An op with ``variants`` is lowered by the first one whose needs hold; the rule ``site`` describes a call to them.
    """

    def __init__(self, function: Callable[..., Any], effect: str, attrs: tuple[str, ...],
                 variants: tuple[Variant, ...] = (), collective: bool = False):
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
        self.rules: dict[str, Any] = {}  # mostly functions
        self.place = function.__module__, function.__code__.co_firstlineno
        if self.name in OPS and OPS[self.name].place != self.place:  # the same place: an import that was interrupted is repeated
            raise ValueError(f"an op {self.name!r} exists already")
        OPS[self.name] = self

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise CompilationError(f"tile.{self.name} runs inside @tile.jit kernels, not in plain Python")

    def _rule(self, kind: str) -> Callable[[F], F]:
        def register(function: F) -> F:
            self.rules[kind] = function
            return function
        return register

    @property
    def infer(self) -> Callable[[F], F]:
        return self._rule("infer")

    @property
    def simulate(self) -> Callable[[F], F]:
        return self._rule("simulate")

    @property
    def emit(self) -> Callable[[F], F]:
        return self._rule("emit")

    @property
    def site(self) -> Callable[[F], F]:
        return self._rule("site")

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Split a call's arguments into operands, in the signature's order, and attributes. CompilationError if they do not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise CompilationError(f"tile.{self.name}{self.signature}: {error}{misspelt(kwargs, self.signature.parameters)}") from None
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


def op(effect: str, *, attrs: tuple[str, ...] = (), variants: tuple[Variant, ...] = (),
       collective: bool = False) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op by its signature and docstring. `attrs` are the parameters fixed at compile time."""
    return lambda function: Op(function, effect, attrs, variants, collective)


def variant_names() -> list[str]:
    """The names of all variants of all ops."""
    return sorted({v.name for o in OPS.values() for v in o.variants})
