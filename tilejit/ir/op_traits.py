"""What the declaration of an op says about it: its traits, and what each operand is to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import CO_VARARGS
from typing import Annotated, Any


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Traits:
    """What passes may know about an op without knowing which op it is: ``@op("pure", traits=Traits(view=True))``."""

    # -- what its results are
    elementwise: bool = False   # each element of the result is computed from those at the same place in the operands
    conversion: bool = False    # the result is the operand in another dtype
    view: bool = False          # the result is a part of the buffer that is the first operand, or all of it
    allocates: bool = False     # the result is memory, or barriers, that the CTA has from the kernel's start on
    product: bool = False       # the result is a matrix product: the operands are the accumulator and both matrices
    multiply_adds: bool = False  # of a product: by the threads' own arithmetic, not by the tensor cores

    # -- how it accesses memory
    access: bool = False        # threads move elements between the first operand and their registers (`AccessPlan`)
    copy: bool = False          # elements move from memory to memory; `.copies` of the compiled kernel has a record
    asynchronous: bool = False  # the call only issues it: it is complete after a wait
    atomic: bool = False        # other threads see each element of the access as a whole, and may wait for it
    instruction: bool = False   # one instruction of the PTX table, the one that the attribute `form` names
    waits: bool = False         # a thread stays at the call until others, or operations that it has issued, are done
    simulated: bool = False     # it runs on the simulator only: code for a GPU is refused
    accesses: int = 1           # how often a call accesses each of its buffers, at least

    # -- layouts of register tiles (passes/layouts)
    anchor: bool = False        # the hardware determines the layout of the result, and computations keep it
    free: bool = False          # the result is computed again in each layout that a use needs, if the operands can be.
                                # So are those of elementwise ops
    in_parts: bool = False      # a tile that moves through scratch memory may do so in parts
    lazy: bool = False          # the result is always computed at its use, in the layout that the use needs

    shown: str = ""             # its name in messages and records, if kernels call it by another


NO_TRAITS = Traits()


class Role(Enum):
    """What an operand is to an op that does more than compute."""

    WRITES = "memory that a call may write"
    READS = "memory that a call only reads"
    REGISTERS = "a scalar or a tile"
    SIGNALS = "an mbarrier"


# Annotations of the operands in an op's declaration: ``def store_(target: Writes, value: Registers, ...)``.
Writes = Annotated[Any, Role.WRITES]
Reads = Annotated[Any, Role.READS]
Registers = Annotated[Any, Role.REGISTERS]
Signals = Annotated[Any, Role.SIGNALS]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Roles:
    """The roles of an op's operands, in order: one for each named operand, and one for all that ``*rest`` takes."""

    named: tuple[Role | None, ...]
    rest: Role | None

    @property
    def writes(self) -> bool:
        """Whether some operand may be written."""
        return Role.WRITES in self.named or self.rest is Role.WRITES

    def written_operands(self, operands: Sequence[Any]) -> list[Any]:
        """The operands of a call that it may write."""
        roles = (*self.named, *[self.rest] * (len(operands) - len(self.named)))
        return [x for x, role in zip(operands, roles) if role is Role.WRITES]


def roles_of(declaration: Callable[..., Any], attrs: tuple[str, ...], needed: bool) -> Roles:
    """The roles that a declaration gives its operands.

    ValueError for an annotation that is no role; with `needed`, also for an operand without one.
    """
    code = declaration.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    named = [name for name in code.co_varnames[:code.co_argcount] if name not in attrs]
    rest = _role(declaration, code.co_varnames[count], needed) if code.co_flags & CO_VARARGS else None
    return Roles(tuple(_role(declaration, name, needed) for name in named), rest)


def _role(declaration: Callable[..., Any], operand: str, needed: bool) -> Role | None:
    annotation = declaration.__annotations__.get(operand)
    if isinstance(annotation, str):  # under ``from __future__ import annotations``
        annotation = declaration.__globals__.get(annotation, annotation)
    found = getattr(annotation, "__metadata__", (None,))[0]
    if not isinstance(found, Role) and (annotation is not None or needed):
        raise ValueError(f"the operand {operand!r} of the op {declaration.__name__} is Writes, Reads, Registers or "
                         f"Signals, not {annotation!r}")
    return found
