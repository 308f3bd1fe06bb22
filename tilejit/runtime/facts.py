"""Facts about a call's arguments that a compiled kernel relies on, and the condition that each stands for.

A fact is a question that compilation asks about arguments, and that a launch then checks as a guard:
``["size_multiple", 0, 1, 64]``. The first number counts the call's runtime arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple, cast

from ..errors import LaunchError
from .element_types import element_type
from .launch_expressions import Expression, Leaf, Operation, as_function

INT32_LIMIT = 2 ** 31
LAST_STEP = 2 ** 20  # a loop over an array may overshoot its end by this much without an index beyond INT32_LIMIT


class ArrayKind(NamedTuple):
    """What a kernel is compiled for of an array argument."""

    dtype: str
    rank: int


class ScalarKind(NamedTuple):
    """What a kernel is compiled for of a number."""

    dtype: str


Kind = ArrayKind | ScalarKind
Fact = Sequence[Any]  # a word, the number of an argument, and what the word needs


# -- what each fact means --------------------------------------------------------------------------------------------

def condition(fact: Fact, kinds: Sequence[Kind]) -> Expression:
    """The expression that is true if `fact` holds for arguments of these kinds.

    A stride along an extent of at most 1 is never used, nor is any stride or the address of an array without elements,
    so every fact about them holds."""
    kind, i, *rest = fact
    match kind:
        case "aligned":
            held, rank = _is_multiple(Leaf("ptr", i), rest[0]), _array(kinds, i).rank
            return _or(held, _is_empty(i, range(rank))) if rank else held
        case "size_multiple":
            return _is_multiple(_size(i, rest[0]), rest[1])
        case "size_is":
            return _eq(_size(i, rest[0]), rest[1])
        case "size_at_least":
            return _at_most(rest[1], _size(i, rest[0]))
        case "size_within":
            return _at_most(_size(i, rest[0]), _size(*rest[1:]) if len(rest) > 2 else Leaf("scalar", rest[1]))
        case "stride_multiple":
            return _or(_is_multiple(_stride(i, rest[0]), rest[1]), _is_unused(i, rest[0], _array(kinds, i).rank))
        case "stride_is":
            return _or(_eq(_stride(i, rest[0]), rest[1]), _is_unused(i, rest[0], _array(kinds, i).rank))
        case "stride_at_least":
            return _or(_at_most(rest[1], _stride(i, rest[0])), _is_unused(i, rest[0], _array(kinds, i).rank))
        case "stride_ratio":
            inner = _stride(i, rest[1])
            whole = _eq(Operation("mod", (_stride(i, rest[0]), Operation("max", (inner, 1)))), 0)
            return _or(_and(_at_most(1, inner), whole), _is_unused(i, rest[0], _array(kinds, i).rank))
        case "fits32":
            return _fits32(i, _array(kinds, i))
        case "scalar_fits32":
            return _in_range(-INT32_LIMIT, Leaf("scalar", i), INT32_LIMIT - 1)
        case "scalar_multiple":
            return _and(_at_most(0, Leaf("scalar", i)), _is_multiple(Leaf("scalar", i), rest[0]))
        case "scalar_between":
            return _in_range(rest[0], Leaf("scalar", i), rest[1])
        case "scalar_positive":
            return Operation("positive", (Leaf("scalar", i),))
        case "no_overlap":
            low, high = _interval(i, _array(kinds, i))
            other_low, other_high = _interval(rest[0], _array(kinds, rest[0]))
            return _or(_at_most(high, other_low), _at_most(other_high, low))
    raise LaunchError(f"{fact!r} is not a fact")


def _array(kinds: Sequence[Kind], i: int) -> ArrayKind:
    return cast(ArrayKind, kinds[i])


def _size(i: int, d: int) -> Leaf:
    return Leaf("size", i, d)


def _stride(i: int, d: int) -> Leaf:
    return Leaf("stride", i, d)


def _eq(a: Expression, b: Expression) -> Operation:
    return Operation("eq", (a, b))


def _at_most(a: Expression, b: Expression) -> Operation:
    return Operation("le", (a, b))


def _or(a: Expression, b: Expression) -> Operation:
    return Operation("or", (a, b))


def _and(a: Expression, b: Expression) -> Operation:
    return Operation("and", (a, b))


def _in_range(low: int, x: Expression, high: int) -> Operation:
    return _and(_at_most(low, x), _at_most(x, high))


def _is_multiple(x: Expression, n: int) -> Operation:
    return Operation("eq", (Operation("mod", (x, n)), 0))


def _product(a: Expression, b: Expression) -> Operation:
    return Operation("mul", (a, b))


def _last_index(i: int, d: int) -> Operation:
    """The largest index of a dimension."""
    return Operation("sub", (_size(i, d), 1))


def _all(name: str, parts: Sequence[Expression]) -> Expression:
    return reduce(lambda a, b: Operation(name, (a, b)), parts)


def _is_empty(i: int, dims: Sequence[int]) -> Operation:
    """Whether one of these dimensions has extent 0."""
    return _eq(_all("min", [_size(i, d) for d in dims]), 0)


def _is_unused(i: int, d: int, rank: int) -> Operation:
    """Whether a stride is never used: its extent is at most 1, or the array has no elements."""
    few = _at_most(_size(i, d), 1)
    return _or(few, _is_empty(i, [k for k in range(rank) if k != d])) if rank > 1 else few


def _fits32(i: int, array: ArrayKind) -> Expression:
    """Every stride, and the array's span in bytes, is below 2^31, and so is every extent plus LAST_STEP."""
    parts: list[Expression] = []
    for d in range(array.rank):
        parts += [_at_most(_size(i, d), INT32_LIMIT - LAST_STEP), _at_most(_stride(i, d), INT32_LIMIT - 1),
                  _at_most(1 - INT32_LIMIT, _stride(i, d))]
    reaches = _reaches(i, array.rank)
    # each product is below 2^62 if the limits above hold: a sum of two fits in 64 bits, one of three may not
    if array.rank > 2:
        reaches = [Operation("min", (reach, 2 ** 40)) for reach in reaches]
    span = _at_most(_all("add", [1, *reaches]), (INT32_LIMIT - 1) // element_type(array.dtype).nbytes)
    for d in range(array.rank):
        span = _or(_eq(_size(i, d), 0), span)
    return _all("and", [*parts, span])


def _reaches(i: int, rank: int) -> list[Expression]:
    """The distance in elements between the lowest and the highest index along each dimension."""
    return [_product(Operation("abs", (_stride(i, d),)), _last_index(i, d)) for d in range(rank)]


def _interval(i: int, array: ArrayKind) -> tuple[Expression, Expression]:
    """The first address of an array's elements and the address after the last; equal if it has no elements."""
    nbytes, dims = element_type(array.dtype).nbytes, range(array.rank)
    below = [_product(Operation("min", (_stride(i, d), 0)), _last_index(i, d)) for d in dims]
    low = Operation("add", (Leaf("ptr", i), _product(_all("add", [0, *below]), nbytes)))
    elements = _all("add", [1, *_reaches(i, array.rank)])
    filled = _all("mul", [1, *(Operation("min", (_size(i, d), 1)) for d in dims)])
    return low, Operation("add", (low, _product(_product(elements, filled), nbytes)))


# -- asking -----------------------------------------------------------------------------------------------------------

def kind_of(argument: Any) -> Kind:
    """The kind of an array or a number."""
    if hasattr(argument, "strides"):
        dtype = argument.dtype
        return ArrayKind(getattr(dtype, "name", None) or str(dtype), len(argument.shape))
    if isinstance(argument, bool):
        return ScalarKind("bool")
    if isinstance(argument, int):
        return ScalarKind("int32" if -INT32_LIMIT <= argument < INT32_LIMIT else "int64")
    if isinstance(argument, float):
        return ScalarKind("float32")
    return ScalarKind(argument.dtype.name)


def evaluate_fact(fact: Fact, arguments: Sequence[Any], kinds: tuple[Kind, ...] | None = None) -> bool:
    """Whether `fact` holds for a call's runtime arguments: arrays with pointer, shape, strides (elements) and dtype,
    and numbers. `kinds` are their kinds, if already known. Compiling and launching share this one definition."""
    return bool(_question(tuple(fact), kinds or tuple(map(kind_of, arguments)))(arguments))


@lru_cache(maxsize=4096)
def _question(fact: tuple[Any, ...], kinds: tuple[Kind, ...]) -> Callable[[Sequence[Any]], int]:
    """A fact's condition as a function of the arguments. Each call of a kernel on the simulator
    asks about ten again."""
    return as_function(condition(fact, kinds))


def describe_fact(fact: Fact, names: Sequence[str] = ()) -> str:
    """The fact in words, with the arguments called by `names`."""
    kind, i, *rest = fact
    name = _name_parameters(i, names)
    match kind:
        case "aligned":
            return f"{name} starts at a multiple of {rest[0]} bytes"
        case "size_multiple":
            return f"{name}.shape[{rest[0]}] is a multiple of {rest[1]}"
        case "size_is":
            return f"{name}.shape[{rest[0]}] is {rest[1]}"
        case "size_at_least":
            return f"{name}.shape[{rest[0]}] is at least {rest[1]}"
        case "size_within":
            return (f"{name}.shape[{rest[0]}] is at most {_name_parameters(rest[1], names)}"
                    + "".join(f".shape[{d}]" for d in rest[2:]))
        case "stride_multiple":
            return f"{name}.strides[{rest[0]}] is a multiple of {rest[1]} elements"
        case "stride_is":
            return f"{name}.strides[{rest[0]}] is {rest[1]}"
        case "stride_at_least":
            return f"{name}.strides[{rest[0]}] is at least {rest[1]}"
        case "stride_ratio":
            return f"{name}.strides[{rest[0]}] is a multiple of {name}.strides[{rest[1]}]"
        case "fits32":
            return f"offsets in {name} fit in 32 bits"
        case "scalar_fits32":
            return f"{name} fits in 32 bits"
        case "scalar_multiple":
            return f"{name} is a multiple of {rest[0]}, and not negative"
        case "scalar_between":
            return f"{name} is {rest[0]}" + (f" to {rest[1]}" if rest[1] != rest[0] else "")
        case "scalar_positive":
            return f"{name} is positive, and neither subnormal nor infinite in float32"
        case "no_overlap":
            return f"{name} does not overlap {_name_parameters(rest[0], names)}"
    return repr(fact)


def _name_parameters(i: int, names: Sequence[str]) -> str:
    return names[i] if i < len(names) else f"argument {i}"
