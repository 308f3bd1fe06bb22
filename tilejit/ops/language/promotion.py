"""Operands of the language's functions: promotion of dtypes, broadcasting, masks, indices, and what must be uniform."""

from __future__ import annotations

from functools import reduce

from ...dtypes import DType, bool_, float32, float64, int32, int64, integer_range, promote, uint64
from ...errors import LaunchError
from ...ir.builder import Builder, as_value, describe, element_type, number_type, source_text, type_as, type_of
from ...ir.graph import Call, Const, Operand, Value
from ...types import Buffer, Points, Region, Scalar, Sym, Tile, Type, Uniformity
from ..tiles import arrange, casts, elementwise as ew, generate


def static(x) -> bool:
    """Whether `x` is known at compile time: anything but a Value or a tuple that contains one."""
    if isinstance(x, tuple):
        return all(static(i) for i in x)
    return not isinstance(x, Value)


def number(g: Builder, x) -> Scalar | Tile:
    """The type of a scalar or tile operand. An error for anything else."""
    t = type_of(x)
    if isinstance(t, (Scalar, Tile)):
        return t
    if isinstance(t, (Region, Points, Buffer)):
        if isinstance(t, Buffer):
            where, offsets = "a buffer", "; offsets stand in its index, as in x[offsets]"
        else:
            where, offsets = "a region of memory", ""
        raise g.error(f"{describe(x)} is {where}, not a value: load it first, as in tile.load(x[i, 0:BLOCK]){offsets}")
    raise g.error(f"a number or a tile is needed here, not {describe(x)}")


def common_dtype(g: Builder, *xs) -> DType:
    """The dtype to which the operands promote.

    Python numbers and Python scalar arguments are weak: they adapt to the dtype of the other operand, unless their
    kind is higher (a float with integers gives float32) or they need 64 bits and the other's dtype has 32.
    """
    types = [number(g, x) for x in xs]
    if all(t.dtype == types[0].dtype for t in types):
        return types[0].dtype
    weak = [(x, t.dtype) for x, t in zip(xs, types) if isinstance(t, Scalar) and t.weak]
    strong = [t.dtype for t in types if isinstance(t, Tile) or not t.weak]
    result = reduce(promote, strong or [dtype for _, dtype in weak])
    for x, dtype in weak if strong else ():
        if dtype.is_float and not result.is_float:
            result = float32
        elif dtype.is_int and (result.kind == "bool"
                               or result.is_int and result.bits >= 32 and dtype.bits == 64 and not fits(x, result)):
            result = promote(result, dtype)
    return result


def fits(x, dtype: DType) -> bool:
    """Whether `x` is an integer known at compile time that is in the range of an integer dtype."""
    low, high = integer_range(dtype)
    return isinstance(x, int) and low <= x <= high


def convert(g: Builder, x, dtype: DType) -> Operand:
    """`x` as an operand of `dtype`: a Python number becomes a constant, a value is cast.
    A weak integer must fit in `dtype`."""
    if isinstance(x, (bool, int, float)):
        return Const(fit_constant(g, x, dtype), dtype)
    if isinstance(x, Const):
        return x if x.dtype == dtype else Const(casts.cast_number(x.value, x.dtype, dtype), dtype)
    t = type_of(x)
    if t.dtype == dtype:
        return x
    if isinstance(t, Scalar) and t.weak and t.dtype.is_int and dtype.is_int and promote(t.dtype, dtype) != dtype:
        return narrow_weak_integer(g, x, dtype)
    return g.call(casts.cast, x, dtype=dtype)


def narrow_weak_integer(g: Builder, x: Value, dtype: DType) -> Value:
    """Cast a weak run-time integer to a narrower dtype, that of the other operand. Its value must fit.

    For an argument, or an argument plus a constant, a guard of the launch ensures this (LaunchError if it does not
    fit). For other values only the simulator checks it.
    """
    low, high = integer_range(dtype)
    terms = g.linear(x)
    shift = terms.pop(None, 0)
    argument = next(iter(terms)) if list(terms.values()) == [1] else None
    if argument not in g.arguments:
        return g.call(casts.cast, x, dtype=dtype, exact=True)
    n = g.arguments[argument]
    if not g.facts.ask("scalar_between", n, low - shift, high - shift):
        given = f" = {g.facts.values[n]}" if n < len(g.facts.values) else ""
        sign = "+" if shift > 0 else "-"
        plus = f" {sign} {abs(shift)}" if shift else ""
        raise LaunchError(f"{argument.name}{plus} does not fit in {dtype} ({low} to {high}), "
                          f"to which it is converted here: {argument.name}{given}; "
                          f"to keep its low bits write tile.cast({source_text(x).strip('`')}, tile.{dtype})", g.loc)
    return g.call(casts.cast, x, dtype=dtype)


def strong_cast(g: Builder, x, dtype: DType) -> Operand:
    """`x` cast to `dtype` with a strong result, which no longer adapts to other operands, even if `x` is weak."""
    t = number(g, x)
    if isinstance(x, (bool, int, float)):
        if isinstance(x, bool):
            source = bool_
        elif isinstance(x, float):
            source = float64
        else:
            source = int64 if x < 2**63 else uint64
        return Const(casts.cast_number(x, source, dtype), dtype)
    if not isinstance(x, Value) or isinstance(t, Tile) or not t.weak:
        return convert(g, x, dtype)
    strong = Value("cast", Scalar(dtype, t.uniform), g.loc)
    g.append(Call(casts.cast, (x,), {"dtype": dtype}, (strong,), g.loc))
    return strong


def fit_constant(g: Builder, x, dtype: DType):
    """A Python number as a constant of `dtype`. CompilationError if it does not fit,
    or is a float and `dtype` is not."""
    if dtype.kind == "bool":
        return bool(x)
    if dtype.is_float:
        return float(x) if dtype.bits > 8 else casts.cast_number(x, float64, dtype)
    if isinstance(x, float):
        raise g.error(f"{x!r} is not an integer, and {dtype} is needed here")
    if not fits(x, dtype):
        low, high = integer_range(dtype)
        raise g.error(f"{x} does not fit in {dtype} ({low} to {high})")
    return int(x)


def broadcast_shape(g: Builder, *types: Type) -> tuple[int, ...] | None:
    """The shape to which scalars and tiles broadcast by NumPy's rules; None if all are scalars."""
    tiles = [t.shape for t in types if isinstance(t, Tile)]
    if not tiles:
        return None
    rank = max(map(len, tiles))
    result = [1] * rank
    for shape in tiles:
        for d, extent in enumerate(shape, rank - len(shape)):
            if extent != 1 and result[d] not in (1, extent):
                raise g.error(f"shapes {' and '.join(str(list(s)) for s in tiles)} do not broadcast: "
                              f"dimension {d} is {result[d]} and {extent}")
            result[d] = max(result[d], extent) if extent else 0
    return tuple(result)


def as_index(g: Builder, x, size: int | Sym | None = None):
    """An index along a dimension of `size`, in the dtype of address arithmetic: int32,
    or int64 where 32 bits may not suffice.

    In an array of 2^31 bytes or more (whose sizes have 64 bits), the sums and products that an int32 index is
    computed from are recomputed in 64 bits, so that they do not wrap. A uint64 is limited to BEYOND, which is out of
    bounds of every dimension, and converted to int64. What is not an integer value is returned as it is.
    """
    dtype = getattr(type_of(x), "dtype", None)
    if isinstance(x, int) or dtype is None or not dtype.is_int:
        return x
    if dtype == uint64 and size is not None:
        return g.call(casts.cast, g.call(ew.minimum, *match_operands(g, x, BEYOND)), dtype=int64)
    if isinstance(size, Sym) and size.bits == 64:
        return _counted_in_64(g, x, {})
    if dtype in (int32, int64):
        return x
    return convert(g, x, int32 if dtype.bits < 32 else int64)


# An index that is out of bounds of every array, also after a tile's offsets are added to it. As a power of two, it is a
# multiple of most divisors that are asked about, so that taking the minimum with it keeps the divisibility of an index.
BEYOND = 1 << 62
_INDEX_ARITHMETIC = (ew.add, ew.sub, ew.mul, ew.neg, generate.splat, arrange.reshape_, arrange.broadcast)


def _counted_in_64(g: Builder, x: Operand, made: dict) -> Operand:
    """An int32 operand recomputed in int64, together with the index arithmetic that computes it.
    `made` caches what is recomputed."""
    call = g.definitions.get(x) if isinstance(x, Value) and element_type(x) == int32 else None
    if call is None or call.op not in _INDEX_ARITHMETIC:
        return convert(g, x, int64)
    if x not in made:
        made[x] = g.call(call.op, *(_counted_in_64(g, a, made) for a in call.args), **call.attrs)
    return made[x]


def spread(g: Builder, x: Operand, shape: tuple[int, ...] | None) -> Operand:
    """`x` broadcast to `shape`. With None, `x` is a scalar and stays one."""
    if shape is None:
        return x
    t = number_type(x)
    if isinstance(t, Tile) and t.shape == shape:
        return x
    if isinstance(t, Scalar):
        return g.call(generate.splat, x, shape=shape)
    if len(t.shape) < len(shape):
        x = g.call(arrange.reshape_, x, shape=(1,) * (len(shape) - len(t.shape)) + t.shape)
    return x if type_as(x, Tile).shape == shape else g.call(arrange.broadcast, x, shape=shape)


def match_operands(g: Builder, *xs, dtype: DType | None = None) -> list[Operand]:
    """The operands converted to `dtype`, or by default to the one they promote to, and broadcast to one shape."""
    dtype = dtype or common_dtype(g, *xs)
    shape = broadcast_shape(g, *(number(g, x) for x in xs))
    return [spread(g, convert(g, x, dtype), shape) for x in xs]


def float_operand(g: Builder, x) -> Value:
    """`x` as a float value: integers, bools and float8 become float32, and a Python number becomes a `constant`."""
    t = number(g, x)
    if t.dtype.is_float and t.dtype.bits == 8:
        return as_value(convert(g, x, float32))
    if t.dtype.is_float and isinstance(x, Value):
        return x
    x = convert(g, x, t.dtype if t.dtype.is_float else float32)
    return x if isinstance(x, Value) else g.call(generate.constant, x)


def coerce(g: Builder, x, type_: Type) -> Operand:
    """`x` cast and broadcast to exactly `type_`, a scalar or tile type.
    CompilationError if it does not broadcast to it."""
    t = number(g, x)
    if isinstance(type_, Tile):
        shape = broadcast_shape(g, t, type_)
        if shape != type_.shape:
            raise g.error(f"{describe(x)} does not broadcast to {list(type_.shape)}")
        return spread(g, convert(g, x, type_.dtype), type_.shape)
    assert isinstance(type_, Scalar)
    if isinstance(t, Tile):
        raise g.error(f"a scalar {type_.dtype} is needed here, not {describe(x)}")
    return convert(g, x, type_.dtype)


NUMBERS = "int", "uint", "float"  # kinds of dtypes whose elements are no truth values


def as_mask(g: Builder, mask, shape: tuple[int, ...]) -> Operand:
    """`mask` as a bool tile of `shape`, or a bool scalar if that is (). None stays None."""
    if mask is None:
        return None
    if shape == () and isinstance(type_of(mask), Tile):
        raise g.error("a single element takes a scalar mask, not a tile")
    t = type_of(mask)
    if isinstance(t, Tile) and t.dtype.kind in NUMBERS and t.dtype.bits > 8:  # bytes are how arrays hold masks
        g.warn(f"the mask is a tile of {t.dtype}, of which every element but 0 counts as true; write a comparison, as "
               "in i < n")
    return coerce(g, as_condition(g, mask), Tile(bool_, shape) if shape != () else Scalar(bool_))


def as_condition(g: Builder, x) -> Operand:
    """`x` as a bool scalar or tile: whether numbers are not 0."""
    t = number(g, x)
    return convert(g, x, bool_) if t.dtype != bool_ else g.operand(x)


def uniform_scalar(g: Builder, x, what: str, dtype: DType = int32) -> Operand:
    """`x` as a scalar operand of `dtype`. CompilationError unless it is uniform over the current execution scope."""
    t = number(g, x)
    if isinstance(t, Tile):
        raise g.error(f"{what} is a scalar, not {describe(x)}")
    if (t.uniform < g.scope.uniformity
        or (g.scope.partial is not None and t.uniform == Uniformity.THREAD and g.scope.kind != "thread")):
        name = x.name if isinstance(x, Value) else repr(x)
        raise g.error(f"{what} must be the same for all threads of the {g.scope.kind}, "
                      f"and {name} differs by {t.uniform.name.lower()}")
    return convert(g, x, dtype)


def short_of(g: Builder, stop: Operand, reach: int) -> Operand:
    """``stop - reach``, saturated to the range of the dtype. For an index i below it, ``i + reach`` is below `stop`."""
    dtype = element_type(stop)
    least, most = integer_range(dtype)
    nearest = least if reach > 0 else most
    if abs(reach) > most - least:
        return Const(nearest, dtype)
    if isinstance(stop, Const):
        return Const((max if reach > 0 else min)(stop.value, nearest + reach) - reach, dtype)
    within = g.call(ew.maximum if reach > 0 else ew.minimum, stop, Const(nearest + reach, dtype))
    return g.call(ew.sub, within, Const((reach - least) % (most - least + 1) + least, dtype))


def collective(g: Builder, what: str) -> None:
    """CompilationError if the threads have diverged, because `what` needs all threads of the scope."""
    if g.scope.partial is not None:
        raise g.error(f"{what} needs all threads of the {g.scope.kind}, "
                      f"and the condition {source_text(g.scope.partial)} differs between them")
