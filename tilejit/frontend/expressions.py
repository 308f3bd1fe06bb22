"""Rules of expressions: Python's own operators on compile-time objects, the language's on everything else."""

from __future__ import annotations

import ast
import operator as python
import sys
from collections.abc import Callable
from types import MethodType, ModuleType, TracebackType
from typing import Any

from ..dtypes import MAX_BITS, DType, named_dtype, shown_integer
from ..ir.builder import describe
from ..ir.builtin import MEMBERS, BoundMethod, apply, member
from ..ir.graph import Const, Value
from ..names import ELSEWHERE, suggest_nearest
from ..ops.language import operators
from ..ops.structure import subscripts
from ..types import Scalar
from . import joins
from .assignment_targets import bind
from .branches import evaluate_condition
from .captures import of_tilejit, source_of
from .joins import is_runtime
from .ranges import LoopRange, StaticRange
from .source import MISSING
from .walker import Walker, expression, is_callable_of_the_language, runtime

SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
           ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.MatMult: "@",
           ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not",
           ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
           ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}

BINARY: dict[str, Callable[[Any, Any], Any]] = {"+": python.add, "-": python.sub, "*": python.mul, "/": python.truediv,
                                                "//": python.floordiv, "%": python.mod,
          "**": python.pow, "<<": python.lshift, ">>": python.rshift, "&": python.and_, "|": python.or_,
                                                "^": python.xor, "@": python.matmul}
UNARY: dict[str, Callable[[Any], Any]] = {"-": python.neg, "+": python.pos, "~": python.invert, "not": python.not_}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {"==": python.eq, "!=": python.ne, "<": python.lt, "<=": python.le,
                                                 ">": python.gt, ">=": python.ge,
           "is": python.is_, "is not": python.is_not, "in": lambda a, b: a in b, "not in": lambda a, b: a not in b}


class by_python:
    """A context in which exceptions of Python's operators and functions become errors at the
    kernel's source location."""

    __slots__ = ("walker",)

    def __init__(self, w: Walker):
        self.walker = w

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if isinstance(error, (ArithmeticError, TypeError, ValueError, LookupError, AttributeError, MemoryError)):
            raise self.walker.error(f"{type(error).__name__}: {error}") from None


def fold(w: Walker, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a Python function on compile-time objects (constant folding)."""
    with by_python(w):
        result = function(*(x.value if isinstance(x, Const) else x for x in args), **kwargs)
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        raise w.error(f"this number has more than {MAX_BITS} bits")
    return result


# -- names and constants ---------------------------------------------------------------------------------------------

@expression(ast.Constant, placed=False)
def constant(w: Walker, node: ast.Constant) -> Any:
    return node.value


@expression(ast.Name, placed=False)
def name(w: Walker, node: ast.Name) -> Any:
    return w.lookup(node)


@expression(ast.Tuple, placed=False)
def tuple_(w: Walker, node: ast.Tuple) -> tuple[Any, ...]:
    return tuple(items(w, node.elts))


def items(w: Walker, nodes: list[ast.expr]) -> list[Any]:
    """The elements of a tuple, or the positional arguments of a call, with starred ones unpacked."""
    found: list[Any] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            parts = w.value(node.value)
            if isinstance(parts, (LoopRange, StaticRange)):
                with w.place(node):
                    parts = tuple(numbers(w, parts))
            spread = joins.fields_of(parts)
            if isinstance(parts, dict):
                spread = tuple(parts)
            if spread is None:
                raise w.error(f"only a tuple can be spread with *, not {describe(parts)}", node)
            found += spread
        else:
            found.append(w.value(node))
    return found


def numbers(w: Walker, over: LoopRange | StaticRange) -> range:
    """A range with constant bounds as Python's `range`."""
    if isinstance(over, StaticRange):
        return over.numbers
    if not all(isinstance(x, int) for x in (over.start, over.stop, over.step)):
        raise w.error("this range is known at run time only")
    return range(over.start, over.stop, over.step)


@expression(ast.NamedExpr)
def named_value(w: Walker, node: ast.NamedExpr) -> Any:
    value = w.value(node.value)
    bind(w, node.target, value)
    return value


@expression(ast.JoinedStr)
def f_string(w: Walker, node: ast.JoinedStr) -> str:
    """An f-string of compile-time values."""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else w.value(part) for part in node.values)


@expression(ast.FormattedValue)
def format_string(w: Walker, node: ast.FormattedValue) -> str:
    value = w.value(node.value)
    if runtime(value):
        raise w.error(f"an f-string shows what is known while compiling, and `{ast.unparse(node.value)}`, "
                      f"{describe(value)}, is not; print it with tile.device_print")
    value = value.value if isinstance(value, Const) else value
    conversions: dict[int, Callable[[Any], str]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}
    if node.conversion in conversions:
        value = conversions[node.conversion](value)
    text: str = fold(w, format, value, "" if node.format_spec is None else w.value(node.format_spec))
    return text


# -- operators ---------------------------------------------------------------------------------------------------------

@expression(ast.BinOp, placed=False)
def bin_op(w: Walker, node: ast.BinOp) -> Any:
    """A binary operation. A chain such as ``a + b + c`` nests to the left, one level for each operator; it is walked
    in a loop, since a sum of thousands of terms would exceed Python's recursion limit."""
    chain = [node]
    while isinstance(chain[-1].left, ast.BinOp):
        chain.append(chain[-1].left)
    result = w.value(chain[-1].left)
    for link in reversed(chain):
        with w.place(link):
            result = operator(w, SYMBOLS[type(link.op)], result, w.value(link.right))
    return result


def operator(w: Walker, symbol: str, a: Any, b: Any) -> Any:
    """The result of the binary operator `symbol`."""
    if is_runtime(a) or is_runtime(b):
        return operators.binary(w.g, symbol, a, b)
    if symbol in ("**", "<<") and isinstance(a, int) and isinstance(b, int) and b > 0:
        bits = a.bit_length() + b if symbol == "<<" else (a.bit_length() - 1) * b
        if bits > 2 * MAX_BITS:
            raise w.error(f"{shown_integer(a)} {symbol} {shown_integer(b)} is a number of about {bits} bits, "
                          f"and a constant has at most {MAX_BITS}")
    return fold(w, BINARY[symbol], a, b)


@expression(ast.UnaryOp)
def unary_op(w: Walker, node: ast.UnaryOp) -> Any:
    symbol = SYMBOLS[type(node.op)]
    x = evaluate_condition(w, node.operand) if symbol == "not" else w.value(node.operand)
    return operators.unary(w.g, symbol, x) if is_runtime(x) else fold(w, UNARY[symbol], x)


@expression(ast.Compare)
def compare(w: Walker, node: ast.Compare) -> Any:
    """A comparison, or a chain of comparisons that must all hold; each operand is evaluated once."""
    left, result = w.value(node.left), True
    for op, operand in zip(node.ops, node.comparators):
        right = w.value(operand)
        held = compare_operands(w, SYMBOLS[type(op)], left, right)
        if result is True:
            result = held
        elif held is not True:
            result = _conjunction(w, result, held)
        if result is False:
            return False
        left = right
    return result


def _conjunction(w: Walker, a: Any, b: Any) -> Any:
    return b if b is False else operators.binary(w.g, "&", a, b)


def compare_operands(w: Walker, symbol: str, a: Any, b: Any) -> Any:
    for one in (a, b):
        if is_callable_of_the_language(one) and symbol not in ("is", "is not"):
            raise w.error(f"{one.name} is a function and cannot be compared; call it, as in {one.name}()")
    if symbol in ("is", "is not"):
        if any(is_runtime(x) and joins.is_number(y) for x, y in ((a, b), (b, a))):
            raise w.error(f"`{symbol}` compares compile-time objects; write == for values")
        return COMPARE[symbol](a, b)
    if symbol in ("in", "not in"):
        if isinstance(b, (LoopRange, StaticRange)):
            b = numbers(w, b)
        if runtime(a) or runtime(b):
            raise w.error(f"`{symbol}` looks in compile-time tuples and ranges; compare run-time values with < and ==")
    elif is_runtime(a) or is_runtime(b):
        return operators.compare(w.g, symbol, a, b)
    elif runtime(a) or runtime(b):
        raise w.error("tuples that hold run-time values cannot be compared; compare their elements")
    if isinstance(a, DType) or isinstance(b, DType):
        a, b = _as_dtype(a), _as_dtype(b)
    return fold(w, COMPARE[symbol], a, b)


def _as_dtype(x: Any) -> Any:
    """`x` for a comparison with a dtype: the dtype that it names, element by element in a tuple;
    `x` itself if it names none."""
    return tuple(map(_as_dtype, x)) if isinstance(x, tuple) else named_dtype(x) or x


DESCRIBES = "shape", "dtype", "ndim", "size"  # attributes of a tile that may be read in any scope


# -- attributes and indices --------------------------------------------------------------------------------------------

@expression(ast.Attribute)
def attribute(w: Walker, node: ast.Attribute) -> Any:
    """``x.name``: a member that the language defines for values and its own objects,
    Python's attribute for everything else."""
    x = describe_value(w, node.value) if node.attr in DESCRIBES else w.value(node.value)
    _refuse_none(w, node, x)
    if is_runtime(x) or (Scalar if isinstance(x, (bool, int, float)) else type(x), node.attr) in MEMBERS:
        return member(w.g, x, node.attr)
    with by_python(w):  # a property runs Python code
        value = getattr(x, node.attr, MISSING)
    if value is MISSING:
        if of_tilejit(x) and node.attr in ELSEWHERE:
            raise w.error(f"{_callee_name(x)} has no attribute {node.attr!r}; write {ELSEWHERE[node.attr]}")
        known = _public_attributes(x)
        there = (suggest_nearest(node.attr, known)
                 or (f"; it has {', '.join(sorted(known))}" if hasattr(x, "tile_names") else ""))
        raise w.error(f"{_callee_name(x)} has no attribute {node.attr!r}{there}{getattr(x, 'tile_hint', '')}")
    path = _path(w, node)
    if path is None and isinstance(x, ModuleType) and not of_tilejit(x) and x.__name__ not in sys.stdlib_module_names:
        raise w.error(f"{x.__name__} has a local name here, and what is read from it could change without the kernel "
                      f"noticing; write {x.__name__}.{node.attr}")
    if path is None or of_tilejit(x) or isinstance(value, MethodType) and value.__self__ is x:
        return value  # the object has been captured, and its class with it
    return w.capture(path, value)


def _refuse_none(w: Walker, node: ast.Attribute | ast.Subscript, x: Any) -> None:
    """CompilationError if the value `x` of which a part is read is None, as an argument may be."""
    if x is None:
        name = ast.unparse(node.value)
        raise w.error(f"{name} is None in this call; read it under `if {name} is not None:`", node.value)


def _public_attributes(x: Any) -> list[str]:
    """The attributes of an object that a kernel may read: those that it lists, or its public names, without the
    modules that a module imports."""
    members = [name for kind, name in MEMBERS if kind is type(x)]
    if isinstance(x, ModuleType):
        own = vars(x)
        return [*members, *(n for n in dir(x) if not n.startswith("_") and not isinstance(own.get(n), ModuleType))]
    listed = getattr(x, "tile_names", None)
    return [*members, *((n for n in dir(x) if not n.startswith("_")) if listed is None else listed)]


def describe_value(w: Walker, node: ast.expr) -> Any:
    """The value of an expression of which only the shape, dtype or length is read: a name, or an element of a tuple
    that a name leads to, may belong to an enclosing execution scope."""
    if isinstance(node, ast.Name):
        return w.lookup(node, enters=False)
    if isinstance(node, ast.Subscript) and (around := _named_tuple(w, node.value)) is not None:
        return _element(w, around, evaluate_index(w, node.slice))
    return w.value(node)


def _named_tuple(w: Walker, node: ast.expr) -> tuple[Any, ...] | None:
    """The tuple that a name, or indices after it, lead to; None for any other expression."""
    x = None
    if isinstance(node, ast.Name):
        x = w.lookup(node, enters=False)
    elif isinstance(node, ast.Subscript) and (around := _named_tuple(w, node.value)) is not None:
        x = _element(w, around, evaluate_index(w, node.slice))
    return x if isinstance(x, tuple) else None


def _callee_name(x: Any) -> str:
    name = getattr(x, "__name__", None)
    if name == "tilejit":
        return "tile"
    return name if isinstance(name, str) else describe(x)


def _path(w: Walker, node: ast.expr) -> tuple[str, ...] | None:
    """The dotted name of an expression that starts at a global or a closure's name; None for any other expression."""
    if isinstance(node, ast.Name):
        return None if node.id in w.frame.source.locals or node.id in w.frame.env else (node.id,)
    if isinstance(node, ast.Attribute):
        base = _path(w, node.value)
        return None if base is None else (*base, node.attr)
    return None


@expression(ast.Subscript)
def subscript(w: Walker, node: ast.Subscript) -> Any:
    """``x[index]``: regions and points of memory, parts of tiles, or elements of tuples."""
    x = w.value(node.value)
    _refuse_none(w, node, x)
    if source_of(x) is not None:
        name = x.source.name
        raise w.error(f"{name}[...] launches {name}, and a kernel cannot launch another one; {name}(...) runs it here, "
                      "as a part of this kernel", node.value)
    index = evaluate_index(w, node.slice)
    if isinstance(x, Value):
        return subscripts.getitem(w.g, x, index if isinstance(index, tuple) else (index,))
    if (type(x), "__getitem__") in MEMBERS:
        return apply(w.g, BoundMethod(MEMBERS[type(x), "__getitem__"][0], x, "[]"), (index,), {})
    if hasattr(x, "tile_getitem"):
        return x.tile_getitem(w.g, index)
    if isinstance(x, (LoopRange, StaticRange)):
        x = numbers(w, x)
    return _element(w, x, index)


def _element(w: Walker, x: Any, index: Any) -> Any:
    """``x[index]`` of a tuple or another compile-time object."""
    if not hasattr(type(x), "__getitem__"):
        raise w.error(f"{describe(x)} cannot be indexed")
    if runtime(index) or isinstance(index, slice) and any(map(is_runtime, (index.start, index.stop, index.step))):
        held = type(x).__name__ if isinstance(x, (tuple, list, dict)) else ""
        raise w.error(f"{f'a {held}' if held else describe(x)} is indexed with compile-time numbers; "
                      f"loop with tile.static_range, or choose with tile.where" + w.g.declared_constant(index))
    return fold(w, python.getitem, x, index)


def evaluate_index(w: Walker, node: ast.expr) -> Any:
    """The value of what stands between the brackets of ``x[...]``."""
    if isinstance(node, ast.Slice):
        return slice(*(None if n is None else w.value(n) for n in (node.lower, node.upper, node.step)))
    if isinstance(node, ast.Tuple):
        return tuple(i for n in node.elts
                     for i in (items(w, [n]) if isinstance(n, ast.Starred) else [evaluate_index(w, n)]))
    return w.value(node)
