"""How a reduction or scan combines two partial results: by a known operation, or by a function of the kernel's author.

A partial result is a tuple with one entry for each tile that is reduced. `emit` works on the values of one thread,
`simulate` on arrays of any shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dtypes import DType, bool_, integer_range
from ...errors import CompilationError
from ...ir.builder import Builder, describe, type_as, type_of
from ...ir.builtin import apply
from ...ir.graph import Block, Call, Const, For, If, Operand, Scope, Value, While, operands, walk
from ...ir.op_rules import require_rule
from ...ir.printer import function_text
from ...types import Scalar, Uniformity
from ..language.promotion import convert
from ..tiles import elementwise as ew
from ..tiles.casts import cast
from ..tiles.extremes import extreme_of_arrays
from ..tiles.generate import constant


class Combine:
    """A combining operation. `identity` is a tuple of numbers that is its identity element, or None.

    `commutative` means that both orders of the operands give the same bits, so that two lanes that exchange their
    partial results get the same result. `in_order` means that the operands of a reduction must stay in the order of
    the elements.
    """

    name: str
    identity: tuple | None = None
    commutative: bool = False
    in_order: bool = False

    def emit(self, e, a: tuple, b: tuple) -> tuple:
        raise NotImplementedError

    def simulate(self, m, a: tuple, b: tuple) -> tuple:
        raise NotImplementedError


# -- known operations --------------------------------------------------------------------------------------------------

def identity_of(combine: Combine) -> tuple:
    """The identity element of an operation that is known to have one."""
    assert combine.identity is not None
    return combine.identity


def _extreme(dtype: DType, largest: bool):
    if dtype.kind == "bool":
        return largest
    if dtype.is_float:
        return float("inf") if largest else -float("inf")
    low, high = integer_range(dtype)
    return high if largest else low


# name -> op, identity for a dtype, the operation of the instruction that reduces a whole warp (redux). The identity of
# a float sum is -0.0: adding it changes no float, while adding +0.0 would turn -0.0 into +0.0.
KNOWN = {
    "sum":  (ew.add,     lambda d: -0.0 if d.is_float else 0,               "add"),
    "prod": (ew.mul,     lambda d: 1,                                       None),
    "max":  (ew.maximum, lambda d: _extreme(d, False),                      "max"),
    "min":  (ew.minimum, lambda d: _extreme(d, True),                       "min"),
    "and":  (ew.bit_and, lambda d: True if d.kind == "bool" else _ones(d),  "and"),
    "or":   (ew.bit_or,  lambda d: False if d.kind == "bool" else 0,        "or"),
    "xor":  (ew.bit_xor, lambda d: False if d.kind == "bool" else 0,        "xor"),
}

# Emitted without LLVM's flag `contract`. If a multiplication were fused into a sum,
# the order would not determine the result's bits.
_PLAIN = {("sum", "float"): "fadd", ("prod", "float"): "fmul"}


def _ones(dtype: DType) -> int:
    return -1 if dtype.kind == "int" else (1 << dtype.bits) - 1


class Known(Combine):
    """One of the operations of KNOWN on one tile of `dtype`."""

    identity: tuple

    def __init__(self, name: str, dtype: DType):
        self.name, self.dtype = name, dtype
        self.op, identity, self.word = KNOWN[name]
        self.identity = (identity(dtype),)
        # float64 has no max.NaN or min.NaN; of two NaNs, the code emitted instead picks one by their order.
        self.commutative = not (name in ("max", "min") and dtype.bits == 64 and dtype.is_float)

    def __repr__(self) -> str:
        return f"{self.name} of {self.dtype}"

    def emit(self, e, a, b):
        plain = _PLAIN.get((self.name, self.dtype.kind))
        if plain is not None:
            return (e.ins(f"{plain} {a[0].typed_text}, {b[0].text}", self.dtype),)
        return (self.op.rules.element(e, self.dtype, a[0], b[0]),)

    def simulate(self, m, a, b):
        return (_UFUNC[self.name](a[0], b[0]),)

    def of_warp(self, target: str) -> str | None:
        """The operation of the instruction that reduces a whole warp (redux), if the target has it for this dtype."""
        d, word = self.dtype, self.word
        if d.kind == "bool":
            return word if word in ("and", "or") else {"max": "or", "min": "and"}.get(word or "")
        if d.is_int:
            narrow = d.bits < 32 and word == "add"
            return word if d.bits <= 32 and not narrow else None
        if d.name == "float32" and word in ("max", "min") and target in ("sm_100a", "sm_103a"):
            return word
        return None


_UFUNC = {"sum": np.add, "prod": np.multiply, "max": extreme_of_arrays("max"), "min": extreme_of_arrays("min"),
          "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


# -- a function of the kernel's author ---------------------------------------------------------------------------------

class Traced(Combine):
    """A traced function of two tuples of scalars: a block of the graph and its parameters."""

    def __init__(self, params: tuple[Value, ...], body: Block, in_order: bool):
        self.params, self.body, self.in_order = params, body, in_order
        self.name = function_text(params, body) + ("" if in_order else " in any order")

    def __repr__(self) -> str:
        return self.name

    def emit(self, e, a, b):
        loc = e.loc
        for param, value in zip(self.params, (*a, *b)):
            e.values[param] = value
        e.block(self.body)
        e.loc = loc
        return tuple(e.operand(y) for y in self.body.yields)

    def simulate(self, m, a, b):
        run = _Run(m, dict(zip(self.params, (*a, *b))))
        shape = np.broadcast_shapes(*(x.shape for x in (*a, *b)))
        run.block(self.body, np.ones(shape, bool))
        return tuple(np.broadcast_to(run.value(y), shape).astype(type_of(y).dtype.np, copy=False)
                     for y in self.body.yields)


class Guarded(Combine):
    """A Combine without identity, on partial results that may be empty (of padding or of no element).

    An additional last entry, a bool, says whether the partial result is of at least one element.
    """

    def __init__(self, inner: Combine):
        self.inner = inner
        self.name = f"guarded {inner.name}"
        self.commutative = False

    def emit(self, e, a, b):
        *x, p = a
        *y, q = b
        both = e.all_of([p, q])
        if q.text == "false":
            either = p
        else:
            either = q if p.text == "false" else e.ins(f"or i1 {p.text}, {q.text}", bool_)
        if both is None:
            return (*self.inner.emit(e, tuple(x), tuple(y)), p)
        joined = self.inner.emit(e, tuple(x), tuple(y))
        return (*(e.select(both, j, e.select(p, u, v)) for j, u, v in zip(joined, x, y)), either)

    def simulate(self, m, a, b):
        *x, p = a
        *y, q = b
        joined = self.inner.simulate(m, tuple(x), tuple(y))
        return (*(np.where(p & q, j, np.where(p, u, v)) for j, u, v in zip(joined, x, y)), p | q)


def group_parts(x: Any, parts: tuple) -> Any:
    """`parts`, one for each tile of `x`, in the same container as `x`: a named tuple, a tuple,
    or a single part alone."""
    if not isinstance(x, tuple):
        return parts[0]
    return type(x)._make(parts) if hasattr(x, "_make") else parts


def trace(g: Builder, function: Any, x: Any, what: str, in_order: bool = True) -> Combine:
    """Trace `function` to a Combine. It takes two scalars, or two tuples of scalars with one entry
    for each tile of `x`.

    CompilationError if it does what a combining function may not do; `what` names the reduction in the message.
    """
    dtypes = tuple(item.type.dtype for item in (x if isinstance(x, tuple) else (x,)))
    def make(word):
        return tuple(Value(f"{word}{n}", Scalar(d, Uniformity.THREAD), g.loc) for n, d in enumerate(dtypes))
    a, b = make("a"), make("b")
    with g.block() as nodes:
        result = _invoke(g, function, (group_parts(x, a), group_parts(x, b)))
        result = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if len(result) != len(dtypes):
            raise g.error(f"the function that {what} combines by returns "
                          f"{len(result)} value{'s' if len(result) != 1 else ''}, "
                          f"and {len(dtypes)} {'are' if len(dtypes) != 1 else 'is'} needed")
        yields = tuple(_returned_value(g, r, d, what) for r, d in zip(result, dtypes))
    body = Block(tuple(nodes), yields)
    _check(g, body, {*a, *b}, what)
    return _known_operation(a, b, body, dtypes) or Traced((*a, *b), body, in_order)


def _invoke(g: Builder, function: Any, args: tuple):
    if g.invoke is not None:
        return g.invoke(function, args, {})
    return apply(g, function, args, {})


def _returned_value(g: Builder, x: Any, dtype: DType, what: str) -> Operand:
    t = type_of(x)
    if not isinstance(t, Scalar):
        raise g.error(f"the function that {what} combines by returns scalars, not {describe(x)}")
    if isinstance(x, Value) and t.dtype != dtype and not t.weak:
        raise g.error(f"the function that {what} combines by returns {t.dtype} for {dtype}; "
                      "cast what is reduced, or the result")
    return convert(g, x, dtype)


def _check(g: Builder, body: Block, params: set[Value], what: str) -> None:
    """Check that a function computes from its operands alone, since it runs on any thread."""
    made = set(params)
    for node in walk(body):
        match node:
            case Call(op=op):
                computes = (op.effect == "pure" and not op.collective and op.rules.element is not None
                            or op in (cast, ew.select, constant))
                if not computes:
                    raise CompilationError(f"the function that {what} combines by may only compute from its operands, "
                                           f"and tile.{op.name} does more", node.loc)
                made.update(node.results)
            case For(index=index, carried=carried):
                made.update((index, *(c.inner for c in carried), *(c.result for c in carried)))
            case While(carried=carried):
                made.update(v for c in carried for v in (c.inner, c.result))
            case If(results=results):
                made.update(results)
            case Scope():
                raise CompilationError(f"the function that {what} combines by may not open a scope", node.loc)
    for node in walk(body):
        for operand in operands(node):
            if isinstance(operand, Value) and operand not in made:
                raise g.error(f"the function that {what} combines by reads {operand.name}, "
                              "which is not one of its operands")


def _known_operation(a, b, body: Block, dtypes) -> Combine | None:
    """The known operation that a traced function consists of, or None."""
    if len(dtypes) != 1 or len(body.nodes) != 1 or not isinstance(body.nodes[0], Call):
        return None
    call = body.nodes[0]
    if body.yields != (call.results[0],) or {*call.args} != {*a, *b}:
        return None
    name = next((n for n, (op, _, _) in KNOWN.items() if op is call.op), None)
    return Known(name, dtypes[0]) if name is not None else None


@dataclass
class _Run:
    """Evaluates a block of scalar code on arrays. Both sides of a branch are run,
    and a loop until no element continues."""

    m: Any
    env: dict[Value, Any]

    def value(self, operand: Operand):
        if isinstance(operand, Const):
            return np.asarray(operand.value, operand.dtype.np)
        return None if operand is None else self.env[operand]

    def block(self, block: Block, active: np.ndarray) -> None:
        for node in block.nodes:
            match node:
                case Call():
                    compute = require_rule(node.op.rules.simulate)
                    self.env[node.result] = compute(self.m, node, *map(self.value, node.args))
                case If():
                    self._if(node, active)
                case For():
                    self._for(node, active)
                case While():
                    self._while(node, active)

    def _if(self, node: If, active: np.ndarray) -> None:
        test = self.value(node.test)
        self.block(node.then, active & test)
        then = [self.value(y) for y in node.then.yields]
        self.block(node.orelse, active & ~test)
        for result, x, y in zip(node.results, then, [self.value(y) for y in node.orelse.yields]):
            self.env[result] = np.where(test, x, y)

    def _carry(self, node: For | While, active: np.ndarray) -> None:
        new = [self.value(y) for y in node.body.yields]
        for carry, x in zip(node.carried, new):
            self.env[carry.inner] = np.where(active, x, self.env[carry.inner])

    def _for(self, node: For, active: np.ndarray) -> None:
        index, stop, step = (self.value(x) for x in (node.start, node.stop, node.step))
        for carry in node.carried:
            self.env[carry.inner] = self.value(carry.init)
        while True:
            active = active & (index < stop if step > 0 else index > stop)
            if not active.any():
                break
            self.env[node.index] = index
            self.block(node.body, active)
            self._carry(node, active)
            before, index = index, (index + step).astype(type_as(node.index, Scalar).dtype.np)
            active = active & ((index > before) == (step > 0))  # the loop ends when its index wraps
        for carry in node.carried:
            self.env[carry.result] = self.env[carry.inner]

    def _while(self, node: While, active: np.ndarray) -> None:
        for carry in node.carried:
            self.env[carry.inner] = self.value(carry.init)
        while True:
            self.block(node.test, active)
            active = active & self.value(node.test.yields[0])
            if not active.any():
                break
            self.block(node.body, active)
            self._carry(node, active)
        for carry in node.carried:
            self.env[carry.result] = self.env[carry.inner]
