"""The derivative of a function of the kernel's author by a tile, element by element, in forward mode.

The function is walked once. Beside each value that depends on the tile stands its slope: a number known while compiling
as long as it is one, so that what is added costs nothing, else a tile.

`with_slope` finds what a function adds from one index to the next, if that is the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...dtypes import bool_, float32, float64, int32, int64
from ...errors import CompilationError
from ...ir.builder import Builder, as_value, number_type, type_as
from ...ir.builtin import builtin
from ...ir.graph import Block, Call, Const, For, If, Node, Operand, Scope, Value, While, operands, results, walk
from ...ir.op import OPS, Op
from ...types import Scalar, Tile
from ..tiles import casts, elementwise as ew
from ..tiles.arrange import broadcast
from ..tiles.generate import splat
from . import math as elementary
from .operators import binary, compare, unary
from .pointwise import where
from .promotion import coerce, convert, strong_cast

Slope = float | Value         # None stands beside it for 0
Slopes = Sequence[Slope | None]


class _Terms:
    """Arithmetic on slopes and values, in float32 or wider: numbers are folded, 0 is None."""

    def __init__(self, g: Builder):
        self.g = g

    def widen(self, x: Any) -> Any:
        """An operand as a number, or a value of at least 32 bits."""
        if isinstance(x, Const):
            return x.value
        narrow = isinstance(x, Value) and number_type(x).dtype.bits < 32
        return strong_cast(self.g, x, float32) if narrow else x

    def of(self, symbol: str, a: Any, b: Any) -> Any:
        """``a symbol b``."""
        a, b = self.widen(a), self.widen(b)
        if not isinstance(a, Value) and not isinstance(b, Value):
            if symbol == "/" and not b:
                return math.nan if not a else math.copysign(math.inf, a)
            return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[symbol]()
        return binary(self.g, symbol, a, b)

    def product(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return None
        for one, other in ((a, b), (b, a)):
            if not isinstance(one, Value) and one in (1.0, -1.0):
                return other if one == 1.0 else self.negative(other)
        return self.of("*", a, b)

    def negative(self, a: Any) -> Any:
        if a is None or not isinstance(a, Value):
            return None if a is None else -a
        return unary(self.g, "-", self.widen(a))

    def sum(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return self.of("+", a, b)

    def function(self, name: str, x: Any) -> Any:
        """An elementary function of a value."""
        return elementary.BUILTINS[name].function(self.g, self.widen(x))

    def select_slope(self, condition: Operand, a: Slope | None, b: Slope | None) -> Slope | None:
        """The first slope where the condition holds, else the second."""
        if a is b or not isinstance(a, Value) and not isinstance(b, Value) and a == b:
            return a
        return where.function(self.g, condition, 0.0 if a is None else a, 0.0 if b is None else b)


# -- the rules: (terms, the call, the slopes of its operands) -> the slope of its result -------------------------------

def _quotient(t: _Terms, call: Call, d: Slopes) -> Slope | None:
    x, y = d
    above = t.sum(x, t.negative(t.product(call.result, y)))
    return None if above is None else t.of("/", above, call.args[1])


def _fma(t: _Terms, call: Call, d: Slopes) -> Slope | None:
    x, y, _ = call.args
    return t.sum(t.sum(t.product(d[0], y), t.product(x, d[1])), d[2])


def _extreme(symbol: str) -> Callable[[_Terms, Call, Slopes], Slope | None]:
    """The slope of the operand that is the result; of both if they are equal, that of the first."""
    return lambda t, call, d: t.select_slope(compare(t.g, symbol, *call.args), d[0], d[1])


def _absolute(t: _Terms, call: Call, d: Slopes) -> Slope | None:
    x, = call.args
    falling = t.select_slope(compare(t.g, "<", x, 0), t.negative(d[0]), None)
    return t.select_slope(compare(t.g, ">", x, 0), d[0], falling)


def _power(t: _Terms, call: Call, d: Slopes) -> Slope | None:
    """By the exponent 0 where 0 is raised to one that is not negative, by the base 0 where the exponent is 0: there,
    the products are of 0 and an infinity."""
    x, y = map(t.widen, call.args)
    by_base = by_exponent = None
    if d[0] is not None:
        by_base = t.product(t.product(d[0], y), binary(t.g, "**", x, t.of("-", y, 1.0)))
        by_base = t.select_slope(compare(t.g, "==", call.args[1], 0.0), None, by_base)
    if d[1] is not None:
        by_exponent = t.product(t.product(call.result, t.function("log", x)), d[1])
        rising = t.select_slope(compare(t.g, ">=", call.args[1], 0.0), None, by_exponent)
        by_exponent = t.select_slope(compare(t.g, "==", call.args[0], 0.0), rising, by_exponent)
    return t.sum(by_base, by_exponent)


def _of_lengths(t: _Terms, call: Call, d: Slopes) -> Slope | None:
    x, y = call.args
    above = t.sum(t.product(x, d[0]), t.product(y, d[1]))
    return None if above is None else t.of("/", above, call.result)


def _angle(t: _Terms, call: Call, d: Slopes) -> Slope | None:
    y, x = call.args
    above = t.sum(t.product(x, d[0]), t.negative(t.product(y, d[1])))
    return None if above is None else t.of("/", above, t.sum(t.product(x, x), t.product(y, y)))


def _one_minus_square(t: _Terms, x: Any) -> Any:
    return t.of("-", 1.0, t.product(x, x))


def _one_plus_square(t: _Terms, x: Any) -> Any:
    return t.of("+", 1.0, t.product(x, x))


def _square_minus_one(t: _Terms, x: Any) -> Any:
    return t.of("-", t.product(x, x), 1.0)


# the derivative of each elementary function (terms, x, its value y); None is 0
_DERIVATIVES: dict[str, Callable[[_Terms, Any, Any], Any]] = {
    "exp": lambda t, x, y: y,
    "exp2": lambda t, x, y: t.of("*", y, math.log(2)),
    "exp10": lambda t, x, y: t.of("*", y, math.log(10)),
    "expm1": lambda t, x, y: t.of("+", y, 1.0),
    "log": lambda t, x, y: t.of("/", 1.0, x),
    "log2": lambda t, x, y: t.of("/", 1 / math.log(2), x),
    "log10": lambda t, x, y: t.of("/", 1 / math.log(10), x),
    "log1p": lambda t, x, y: t.of("/", 1.0, t.of("+", x, 1.0)),
    "sqrt": lambda t, x, y: t.of("/", 0.5, y),
    "rsqrt": lambda t, x, y: t.of("/", t.of("*", y, -0.5), x),
    "cbrt": lambda t, x, y: t.of("/", y, t.of("*", x, 3.0)),
    "sin": lambda t, x, y: t.function("cos", x),
    "cos": lambda t, x, y: t.negative(t.function("sin", x)),
    "tan": lambda t, x, y: _one_plus_square(t, y),
    "asin": lambda t, x, y: t.function("rsqrt", _one_minus_square(t, x)),
    "acos": lambda t, x, y: t.negative(t.function("rsqrt", _one_minus_square(t, x))),
    "atan": lambda t, x, y: t.of("/", 1.0, _one_plus_square(t, x)),
    "sinh": lambda t, x, y: t.function("cosh", x),
    "cosh": lambda t, x, y: t.function("sinh", x),
    "tanh": lambda t, x, y: _one_minus_square(t, y),
    "asinh": lambda t, x, y: t.function("rsqrt", _one_plus_square(t, x)),
    "acosh": lambda t, x, y: t.function("rsqrt", _square_minus_one(t, x)),
    "atanh": lambda t, x, y: t.of("/", 1.0, _one_minus_square(t, x)),
    "erf": lambda t, x, y: t.of("*", t.function("exp", t.negative(t.product(x, x))), 2 / math.sqrt(math.pi)),
    "erfc": lambda t, x, y: t.of("*", t.function("exp", t.negative(t.product(x, x))), -2 / math.sqrt(math.pi)),
    "erfinv": lambda t, x, y: t.of("*", t.function("exp", t.product(y, y)), math.sqrt(math.pi) / 2),
    "sigmoid": lambda t, x, y: t.product(y, t.of("-", 1.0, y)),
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), lambda t, x, y: None)}


def _elementary(derivative: Callable[[_Terms, Any, Any], Any]) -> Callable[[_Terms, Call, Slopes], Slope | None]:
    return lambda t, call, d: t.product(d[0], derivative(t, t.widen(call.args[0]), t.widen(call.result)))


RULES: dict[Op, Callable[[_Terms, Call, Slopes], Slope | None]] = {
    ew.add: lambda t, call, d: t.sum(d[0], d[1]),
    ew.sub: lambda t, call, d: t.sum(d[0], t.negative(d[1])),
    ew.mul: lambda t, call, d: t.sum(t.product(d[0], call.args[1]), t.product(call.args[0], d[1])),
    ew.neg: lambda t, call, d: t.negative(d[0]),
    ew.select: lambda t, call, d: t.select_slope(call.args[0], d[1], d[2]),
    ew.div: _quotient, ew.maximum: _extreme(">="), ew.minimum: _extreme("<="), ew.abs_: _absolute,
    casts.cast: lambda t, call, d: d[0],
    elementary.fma: _fma, elementary.power: _power,
    elementary.floor_divide: lambda t, call, d: None,
    elementary.FUNCTIONS["hypot"][0]: _of_lengths, elementary.FUNCTIONS["atan2"][0]: _angle,
    **{op: _elementary(rule) for name, rule in _DERIVATIVES.items() for op in elementary.FUNCTIONS[name] if op},
    **{OPS[f"{name}_of_sincos"]: _elementary(_DERIVATIVES[name]) for name in ("sin", "cos")}}


# -- the walk ----------------------------------------------------------------------------------------------------------

class _Tangents:
    """The slopes of the values that depend on a tile, and those values that have none, each with the node that makes
    it."""

    def __init__(self, g: Builder, name: str, x: Value):
        self.g, self.name, self.terms = g, name, _Terms(g)
        self.slopes: dict[Operand, Slope] = {x: 1.0}
        self.without: dict[Operand, Node] = {}

    def follow(self, nodes: list[Node], start: int) -> None:
        """Find the slopes of what nodes from `start` on compute, in the block that is open, whose nodes they are. A
        slope is computed right behind its value, since a branch may read it."""
        rest = nodes[start:]
        del nodes[start:]
        for node in rest:
            with self.g.at_location(None if isinstance(node, Scope) else node.loc):
                nodes.append(self._branches(node) if isinstance(node, If) else node)
                if isinstance(node, Call):
                    self._call(node)
                elif isinstance(node, (For, While)):
                    self._loop(node)

    def _call(self, call: Call) -> None:
        depends = [a for a in call.args if a in self.slopes or a in self.without]
        made = [r for r in call.results if isinstance(r.type, (Tile, Scalar)) and r.type.dtype != bool_]
        floats = [r for r in made if number_type(r).dtype.is_float]
        if not depends or call.op.traits.conversion and not floats:  # integers are steps
            return
        found = next((self.without[a] for a in depends if a in self.without), None)
        rule = RULES.get(call.op)
        if call.op.writes:  # to memory, from which anything may be loaded
            self.fail(call)
        elif found is not None or rule is None:
            self.without.update(dict.fromkeys(made, found or call))
        elif floats:
            slope = rule(self.terms, call, [self.slopes.get(a) for a in call.args])
            if slope is not None:
                self.slopes[call.result] = slope

    def fail(self, node: Node) -> None:
        """CompilationError for a node that has no derivative."""
        what = "a loop" if not isinstance(node, Call) else node.op.traits.shown or node.op.name
        raise CompilationError(f"{self.name} has no derivative by its first argument, since {what} here depends on it; "
                               "elementwise functions of the language have one, also in branches and in loops over "
                               "tile.static_range", None if isinstance(node, Scope) else node.loc)

    def _loop(self, node: For | While) -> None:
        """What a loop computes from the tile has no slope."""
        read = [*operands(node), *(x for block in _bodies(node) for inner in walk(block) for x in operands(inner))]
        read += [x for block in _bodies(node) for x in block.yields]
        if any(x in self.slopes or x in self.without for x in read):
            self.without.update(dict.fromkeys(results(node), node))

    def _branches(self, node: If) -> If:
        """An If whose branches also yield the slopes of what they yield."""
        branches = []
        for block in (node.then, node.orelse):
            with self.g.block() as nodes:
                nodes += block.nodes
                self.follow(nodes, 0)
            branches.append(nodes)
        more: list[Value] = []
        added: tuple[list[Operand], list[Operand]] = [], []
        for result, *ends in zip(node.results, node.then.yields, node.orelse.yields):
            without = [x for x in ends if x in self.without]
            slopes = [self.slopes.get(x) for x in ends]
            if without:
                self.without[result] = self.without[without[0]]
            elif all(not isinstance(s, Value) for s in slopes) and slopes[0] == slopes[1]:
                self.slopes.update({} if slopes[0] is None else {result: slopes[0]})
            elif isinstance(result.type, Tile) and result.type.dtype.is_float:
                kind = Tile(float32, result.type.shape)
                for nodes, slope, into in zip(branches, slopes, added):
                    with self.g.reopen(nodes):
                        into.append(coerce(self.g, 0.0 if slope is None else slope, kind))
                more.append(Value("slope", kind, node.loc))
                self.slopes[result] = more[-1]
        then, orelse = (Block(tuple(nodes), (*block.yields, *into))
                        for nodes, block, into in zip(branches, (node.then, node.orelse), added))
        return replace(node, then=then, orelse=orelse, results=(*node.results, *more))


def _bodies(node: For | While) -> tuple[Block, ...]:
    return (node.body,) if isinstance(node, For) else (node.test, node.body)


def _trace(g: Builder, make: Callable[[], Any]) -> tuple[Any, list[Node], int]:
    """(What `make` returns, the nodes of the open block, where in them those that it added begin). What the builder
    hoists goes to the front of the first block."""
    nodes, start, hoisted = g.blocks[-1], len(g.blocks[-1]), g.state.get("hoisted", 0)
    made = make()
    return made, nodes, start + (g.state.get("hoisted", 0) - hoisted if nodes is g.blocks[0] else 0)


@builtin
def with_derivative(g: Builder, function, x, *others):
    """``function(x, *others)``, and its derivative by the float tile `x`: a float32 tile, a number, or None where it is
    1. Each element of the result may depend only on the same element of `x`; where two operands of a maximum are equal,
    the derivative is that of the first, and that of roundings is 0. CompilationError, at the line, for what has no
    derivative."""
    y, nodes, start = _trace(g, lambda: g.invoke(function, (x, *others), {}))
    tangents = _Tangents(g, function.source.name, as_value(x))
    tangents.follow(nodes, start)
    if y in tangents.without:
        tangents.fail(tangents.without[y])
    slope: Any = tangents.slopes.get(y, 0.0)
    if isinstance(slope, Value):
        return y, convert(g, slope, float32)
    return y, None if slope == 1.0 else float(slope)


LINEAR = (ew.add, ew.sub, ew.neg, ew.mul, casts.cast)
WIDE = (int32, int64, float32, float64)  # of which sums of indices may be
SMALL, LIMIT = 1 << 23, 1 << 25  # the largest index; one more than the largest sum, which float32 rounds by 1
MOST = 64                        # calls of a function that is taken for linear: each is of a tile that may be made anew


@builtin
def with_slope(g: Builder, function, x, index, *others):
    """``function(x, *others)``, and by how much it rises from one `index` to the next, if it is `x` and a linear
    function of this tile of integers, which is one of the `others`: a number or a float32 scalar. Else None, also if
    that differs between elements."""
    y, nodes, start = _trace(g, lambda: g.invoke(function, (x, *others), {}))
    if not isinstance(y, Value):
        return y, None
    near: set[Operand] = {a for a in others if isinstance(a, Value) and isinstance(a.type, Tile)}
    by_x, by_index = _linear_slopes(g, nodes[start:], as_value(x), as_value(index), near)
    slope: Any = by_index.get(y, 0.0)
    if by_x.get(y) != 1.0 or slope == 0.0 or isinstance(slope, Value) and isinstance(slope.type, Tile):
        return y, None
    return y, convert(g, slope, float32) if isinstance(slope, Value) else slope


@builtin
def is_linear(g: Builder, function, x, index, *others):
    """Whether `with_slope` finds a slope. The function is only looked at, and adds nothing to the kernel."""
    (_, slope), nodes, start = _trace(g, lambda: with_slope.function(g, function, x, index, *others))
    del nodes[start:]
    return slope is not None


def _linear_slopes(g: Builder, nodes: Sequence[Node], x: Value, index: Value,
                   near: set[Operand]) -> tuple[dict[Operand, Any], dict[Operand, Any]]:
    """The slopes by `x` and by `index` of values that nodes compute of them; none if one of the nodes is not linear. To
    integers, only `near` ones and small numbers are added, so that no sum wraps. What else is added is the same along
    the axes of the index."""
    axes = [n for n, extent in enumerate(reversed(type_as(index, Tile).shape)) if extent > 1]
    terms, most = _Terms(g), dict.fromkeys((index, *near), SMALL)
    slopes: tuple[dict[Operand, Any], dict[Operand, Any]] = {x: 1.0}, {index: 1.0}
    spread: dict[Operand, Operand] = {}  # to larger shapes: of what
    for node in nodes:
        if not isinstance(node, Call) or len(nodes) > MOST:
            return {}, {}
        given = [spread.get(a, a) for a in node.args]
        depends = [a for a in given if any(a in each for each in slopes)]
        if node.op in (splat, broadcast):
            spread[node.result] = given[0]
            continue
        if not depends:
            continue
        others = [a for a in given if a not in depends]
        if any(_extent(a, n) > 1 for a in others for n in axes) or not _is_linear(
                replace(node, args=tuple(given)), others, most):
            return {}, {}
        numbers = tuple(terms.widen(a) if isinstance(a, Const) else a for a in given)
        for each in slopes:
            slope = RULES[node.op](terms, replace(node, args=numbers), [each.get(a) for a in given])
            if slope is not None:
                each[node.result] = slope
    return slopes


def _extent(x: Operand, n: int) -> int:
    """Of axis `n` of a tile, counted from the last; 1 of a number."""
    shape = x.type.shape if isinstance(x, Value) and isinstance(x.type, Tile) else ()
    return shape[-1 - n] if n < len(shape) else 1


def _is_linear(call: Call, others: list[Operand], most: dict[Operand, int]) -> bool:
    """Whether a call is linear in those operands that are not `others`. `most`: the largest size that integers may
    have, which gets that of the result."""
    if call.op not in LINEAR or call.op is ew.mul and not others:
        return False
    dtype = number_type(call.result).dtype
    if dtype not in WIDE:
        return False
    if dtype.is_int:
        most[call.result] = sum(abs(int(a.value)) if isinstance(a, Const) else most.get(a, LIMIT) for a in call.args)
        return call.op is not ew.mul and most[call.result] < LIMIT
    return True
