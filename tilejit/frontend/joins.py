"""Joins of two values where control flow meets: which types agree, and how tuples are joined element by element."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..dtypes import DType, promote
from ..ir.builder import describe, number_type, type_of
from ..ir.graph import Block, Const, Node, Operand, Value, results, walk
from ..types import Addressed, Scalar, Tile, Uniformity
from .names import Undefined


@dataclass(frozen=True)
class Leaf:
    """The join of two numbers: a run-time value of this type."""

    type: Scalar | Tile


@dataclass(frozen=True, eq=False)
class Keep:
    """The join of two equal objects: the object."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keep) and is_same(self.value, other.value)


@dataclass(frozen=True)
class Group:
    """The join of two tuples or records of type `kind`, part by part. `make` builds the object from its parts."""

    kind: type | Keys
    parts: tuple[Join, ...]


@dataclass(frozen=True)
class Clash:
    """There is no join; `why` continues a sentence that begins with the name."""

    why: str


Join = Leaf | Keep | Group | Clash


def is_runtime(x: Any) -> bool:
    """Whether `x` is an operand of the graph rather than a compile-time object."""
    return isinstance(x, (Value, Const))


def is_number(x: Any) -> bool:
    """Whether control flow can choose `x` at run time: a number, a scalar or a register tile."""
    return isinstance(x, (bool, int, float)) or isinstance(type_of(x), (Scalar, Tile))


def fields_of(x: Any) -> tuple[Any, ...] | None:
    """The parts of a tuple, a list, a dict (its values), a named tuple, a dataclass or a slice; None for any other
    object."""
    if isinstance(x, (tuple, list)):
        return tuple(x)
    if isinstance(x, dict):
        return tuple(x.values())
    if isinstance(x, slice):
        return x.start, x.stop, x.step
    if is_record(type(x)):
        return tuple(getattr(x, f.name) for f in dataclasses.fields(x))
    return None


def parts_of(x: Any) -> tuple[Any, ...]:
    """The parts of an object that has some."""
    parts = fields_of(x)
    assert parts is not None, f"{describe(x)} has no parts"
    return parts


def is_record(kind: type) -> bool:
    """Whether `kind` is a dataclass or named tuple, whose instances a kernel does not change: any of a user,
    of this package those with ``tile_record = True``."""
    if (not isinstance(kind, type)
        or (kind.__module__.partition(".")[0] == "tilejit" and not getattr(kind, "tile_record", False))):
        return False
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


@dataclass(frozen=True)
class Keys:
    """What dicts of one form have in common: their keys, in order."""

    keys: tuple[Any, ...]


def kind_of(x: Any) -> type | Keys:
    """What objects of one form have in common: the class, or the keys of a dict. Lists of the same class may still
    have different lengths."""
    return Keys(tuple(x)) if isinstance(x, dict) else type(x)


def make(kind: type | Keys, parts: tuple[Any, ...]) -> Any:
    if isinstance(kind, Keys):
        return dict(zip(kind.keys, parts))
    return kind(parts) if kind in (tuple, list) else kind(*parts)


def assemble(kind: type, fields: tuple[str, ...], parts: tuple[Any, ...]) -> Any:
    """An argument of a kernel from its parts: of the class `kind`, without its code. A list becomes a tuple."""
    if not fields and kind in (tuple, list):
        return parts
    if issubclass(kind, tuple):
        return tuple.__new__(kind, parts)
    made = object.__new__(kind)
    for field, part in zip(fields, parts):
        object.__setattr__(made, field, part)
    return made


def leaves(x: Any) -> Iterator[Any]:
    """The objects without parts in `x`, at any depth; `x` itself if it has none."""
    parts = fields_of(x)
    if parts is None:
        yield x
        return
    for part in parts:
        yield from leaves(part)


def is_same(x: Any, y: Any) -> bool:
    """Whether two objects are interchangeable for the kernel: identical, or equal compile-time values of one type."""
    if x is y:
        return True
    if kind_of(x) != kind_of(y) or isinstance(x, Value):
        return False
    if isinstance(x, float):
        return repr(x) == repr(y)
    parts = fields_of(x)
    if parts is not None:
        others = parts_of(y)
        return len(parts) == len(others) and all(map(is_same, parts, others))
    try:
        return (x == y) is True
    except Exception:  # noqa: BLE001 - a foreign __eq__ may do anything; not equal is the safe answer
        return False


# -- types -----------------------------------------------------------------------------------------------------------

def weak_dtype_fits(weak: DType, dtype: DType) -> bool:
    """Whether a weak number of dtype `weak` may become a `dtype`: an integer any number, a float only a float,
    a bool only a bool."""
    if weak.kind == "bool" or dtype.kind == "bool":
        return weak.kind == dtype.kind
    return weak.is_int or dtype.is_float


def join_types(a: Scalar | Tile, b: Scalar | Tile) -> Scalar | Tile | None:
    """The type that holds either of two numbers; a weak scalar takes the other's dtype and shape.
    None if there is none."""
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        uniform, weak = min(a.uniform, b.uniform), a.weak and b.weak
        if a.dtype == b.dtype:
            return Scalar(a.dtype, uniform, weak)
        if weak and "bool" not in (a.dtype.kind, b.dtype.kind):
            return Scalar(promote(a.dtype, b.dtype), uniform, True)
        if a.weak and not b.weak and weak_dtype_fits(a.dtype, b.dtype):
            return Scalar(b.dtype, uniform)
        if b.weak and not a.weak and weak_dtype_fits(b.dtype, a.dtype):
            return Scalar(a.dtype, uniform)
        return None
    if isinstance(a, Tile) and isinstance(b, Tile):
        return a if a == b else None
    scalar, tile = (a, b) if isinstance(a, Scalar) else (b, a)
    assert isinstance(scalar, Scalar)
    return tile if scalar.weak and weak_dtype_fits(scalar.dtype, tile.dtype) else None


def join(x: Any, y: Any) -> Join:
    """The join of `x` and `y`, the values from two branches."""
    if is_same(x, y):
        return Keep(x)
    for one in (x, y):
        if isinstance(one, Undefined):
            return Clash(one.why)
    if is_number(x) and is_number(y):
        joint = join_types(number_type(x), number_type(y))
        return Leaf(joint) if joint is not None else Clash(f"is {describe(x)} or {describe(y)}")
    return _join_parts(x, y, join)


def plan_of_varying(x: Any, constants: bool = True) -> Join:
    """The plan for a loop that may change `x`: run-time numbers in it are carried, and constants too if `constants`."""
    if is_number(x) and (constants or is_runtime(x)):
        return Leaf(number_type(x))
    parts = fields_of(x)
    return Keep(x) if parts is None else Group(kind_of(x), tuple(plan_of_varying(p, constants) for p in parts))


def widen(plan: Join, y: Any) -> Join:
    """`plan`, widened to hold also `y`, the value at the end of the loop's body."""
    if isinstance(y, Undefined):
        return Clash(y.why)
    match plan:
        case Leaf(type=t) if is_number(y):
            joint = join_types(t, number_type(y))
            if joint is not None:
                return Leaf(joint)
            return Clash(f"is {_of_type(t)}, and the loop makes it {describe(y)}")
        case Keep(value=x) if is_same(x, y):
            return plan
        case Keep(value=x) if is_number(x) and is_number(y):
            joint = join_types(number_type(x), number_type(y))
            if joint is not None:
                return Leaf(joint)
            return Clash(f"is {describe(x)}, and the loop makes it {describe(y)}")
        case Keep(value=x):
            return Clash(f"is {describe(x)}, and a loop that runs on the device cannot change it to {describe(y)}"
                         + _suggest_addresses(x, y))
        case Group(kind=kind, parts=parts):
            others = fields_of(y)
            if kind_of(y) == kind and others is not None and len(others) == len(parts):
                return _group_joins(kind, tuple(map(widen, parts, others)))
            return Clash(f"is a tuple of {len(parts)}, and the loop makes it {describe(y)}")
    assert isinstance(plan, Leaf)
    return Clash(f"is {_of_type(plan.type)}, and the loop makes it {describe(y)}")
def demote(plan: Join, header: Any, end: Any, original: Any) -> Join:
    """`plan` without carrying the numbers that a loop's body does not change (`end` is `header`):
    they keep their `original`s."""
    if isinstance(plan, Leaf):
        return Keep(original) if end is header else plan
    parts = fields_of(end)
    if not isinstance(plan, Group) or kind_of(end) != plan.kind or parts is None or len(parts) != len(plan.parts):
        return plan
    return Group(plan.kind, tuple(map(demote, plan.parts, parts_of(header), parts, parts_of(original))))


def regains_knowledge(plan: Join, less: Join) -> bool:
    """Whether more is known of the numbers that `less` (`plan` after `demote`) no longer carries: they are constants,
    or of other types."""
    if isinstance(plan, Group) and isinstance(less, Group):
        return any(map(regains_knowledge, plan.parts, less.parts))
    return plan != less and isinstance(less, Keep) and plan_of_varying(less.value, constants=False) != plan


def renew_join(plan: Join, x: Any) -> Join:
    """`plan` for another value `x` before the loop: objects that are kept are now those in `x`."""
    parts = fields_of(x)
    match plan:
        case Keep() if parts is None:
            return Keep(x)
        case Group(kind=kind, parts=plans) if kind_of(x) == kind and parts is not None and len(parts) == len(plans):
            return _group_joins(kind, tuple(map(renew_join, plans, parts)))
        case Leaf():
            return widen(plan, x)
    return Clash(f"is {describe(x)} now")


def cap(plan: Join, uniform: Uniformity) -> Join:
    """`plan` with its scalars no more uniform than `uniform`, that of the condition that chooses between the values."""
    match plan:
        case Leaf(type=Scalar() as t):
            return Leaf(replace(t, uniform=min(t.uniform, uniform)))
        case Group(kind=kind, parts=parts):
            return Group(kind, tuple(cap(p, uniform) for p in parts))
    return plan


def _of_type(t: Scalar | Tile) -> str:
    return describe(Value("", t))


def _join_parts(x: Any, y: Any, rule: Callable[[Any, Any], Join]) -> Join:
    parts, others = fields_of(x), fields_of(y)
    if parts is None or others is None or kind_of(x) != kind_of(y) or len(parts) != len(others):
        return Clash(f"is {describe(x)} or {describe(y)}, which only a compile-time condition can choose"
                     + _suggest_addresses(x, y))
    return _group_joins(kind_of(x), tuple(map(rule, parts, others)))


def _suggest_addresses(*arrays: Any) -> str:
    """What to write instead of a choice between arrays that the kernel makes from addresses; "" for other objects."""
    if not all(isinstance(getattr(type_of(x), "arg", None), Addressed) for x in arrays):
        return ""
    return "; their addresses are numbers: choose these, as in tile.array(p if first else q, ...)"


def _group_joins(kind: type | Keys, parts: tuple[Join, ...]) -> Join:
    clash = next((p for p in parts if isinstance(p, Clash)), None)
    if clash is None:
        return Group(kind, parts)
    return Clash(f"is a tuple whose element {parts.index(clash)} {clash.why}")


# -- operands ----------------------------------------------------------------------------------------------------------

def types(plan: Join) -> Iterator[Scalar | Tile]:
    """The types of the run-time values in `plan`, in order."""
    match plan:
        case Leaf(type=t):
            yield t
        case Group(parts=parts):
            for part in parts:
                yield from types(part)


def flatten(plan: Join, x: Any, coerce: Callable[[Any, Scalar | Tile], Operand]) -> Iterator[Operand]:
    """The operands of `x` where `plan` has run-time values, in the order of `types`."""
    match plan:
        case Leaf(type=t):
            yield coerce(x, t)
        case Group(parts=parts):
            for part, field in zip(parts, parts_of(x)):
                yield from flatten(part, field, coerce)


def rebuild(plan: Join, values: Iterator[Value]) -> Any:
    """The object that `plan` describes, with `values` as its run-time values; the inverse of `flatten`."""
    match plan:
        case Leaf():
            return next(values)
        case Group(kind=kind, parts=parts):
            return make(kind, tuple(rebuild(p, values) for p in parts))
        case Keep(value=value):
            return value
    raise AssertionError(plan)


def plan_of_pending(x: Any, nodes: Iterable[Node] | None = None) -> Join:
    """The join of `x`, which a branch or trip of these nodes gives, with what a path gives that does not count.
    Buffers stay themselves, since they are made ahead of everything; places in them are made where they stand.
    Without `nodes`, `x` is a function's result, and the other path has not returned yet: it may return another
    buffer."""
    parts = fields_of(x)
    if parts is not None:
        return _group_joins(kind_of(x), tuple(plan_of_pending(part, nodes) for part in parts))
    if isinstance(type_of(x), (Scalar, Tile)) and is_runtime(x):
        return Leaf(type_of(x))
    if is_runtime(x) and nodes is None:
        return Clash(f"is {describe(x)}, returned under a run-time condition; return it at the function's end")
    if nodes is not None and is_runtime(x) and any(x in results(node) for node in walk(Block(tuple(nodes)))):
        return Clash(f"is {describe(x)}, made under a run-time condition or in a loop; make it where it is used")
    return Keep(x)


def filler(plan: Join) -> Any:
    """A placeholder of the form of `plan`, which is never read."""
    match plan:
        case Leaf(type=t):
            return False if t.dtype.kind == "bool" else 0
        case Group(kind=kind, parts=parts):
            return make(kind, tuple(map(filler, parts)))
        case Keep(value=value):
            return value
    raise AssertionError(plan)
