"""Random expressions, with the expected values from NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from fuzz_program import Node, rounding
from language_reference import (
    BITWISE,
    COMPARE,
    binary,
    bits,
    cast,
    computed_in,
    is_float,
    np_dtype,
    promoted,
    tile_name,
)

INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
STORED = INTS + FLOATS + ("bool", "float8_e4m3fn", "float8_e5m2")


class Expressions:
    """Draws expressions of tiles and scalars, over the existing variables and new arguments."""

    def __init__(self, seed: int):
        self.seed = seed
        self.r = random.Random(seed)
        self.extra = random.Random(~seed)      # for what came later: the seeds' other draws stay what they were
        self.rng = np.random.default_rng(seed)
        pick = self.r.choice
        self.rows, self.columns = pick((1, 2, 3, 4, 5, 8, 13, 16, 32)), pick((1, 2, 4, 7, 8, 16, 24, 31, 32, 64))
        self.ctas = pick((1, 1, 2, 3))
        self.args: dict[str, Any] = {}
        self.variables: dict[str, Node] = {}
        self.locked: set[str] = set()   # loop indices, which are never assigned
        self.count = 0
        self.depth = 0
        self.largest = 1                # maximum number of elements of a tile, with extents rounded up to powers of two
        self.limit = 4096               # maximum number of elements of the operand of a reduction or slice
        self.written: dict[str, np.ndarray] = {}  # outputs that statements write
        self.slack: dict[str, np.ndarray] = {}    # error bounds of those whose bits are not exact
        self.same_bits: set[str] = set()          # outputs whose bits depend on the order of operations, which the simulator reproduces
        self.draws: set[str] = set()              # what the kernel is known to use, by the names of `fuzz_variants`

    # -- small choices ----------------------------------------------------------------------------------------------------

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def note(self, shape: tuple) -> None:
        self.largest = max(self.largest, int(np.prod([1 << (n - 1).bit_length() for n in shape])))

    def shapes(self) -> list[tuple]:
        r, c = self.rows, self.columns
        return [(r, c), (r, c), (r, c), (c,), (r,), (r, 1), (1, c), (c, r)]

    def array(self, shape, dtype: str) -> np.ndarray:
        """Values of moderate magnitude, exact in the dtype, without NaN."""
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        if is_float(dtype):
            return (self.rng.integers(-32, 33, shape) / 8.0).astype(np_dtype(dtype))
        info = np.iinfo(dtype)
        small = self.rng.integers(max(int(info.min), -20), 21, shape).astype(dtype)
        wide = self.rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return np.where(self.rng.integers(0, 3, shape) == 0, wide, small)

    # -- expressions ---------------------------------------------------------------------------------------------------------

    def variable(self, accept: Callable[[Node], bool]) -> Node | None:
        found = [v for v in self.variables.values() if accept(v)]
        return self.r.choice(found) if found else None

    def leaf(self, shape: tuple | None) -> Node:
        """An existing variable that broadcasts to `shape`, or a new argument or constant that does."""
        for _ in range(3):
            if self.r.random() < 0.75:
                v = self.variable(lambda v: v.shape is None or (shape is not None and broadcasts(v.shape, shape)))
                if v is not None:
                    return v
        if shape is None:
            return self.constant("int32")
        if self.r.random() < 0.4 and shape[-1] > 1:
            n = shape[-1]
            return Node(f"tile.arange({n})", (n,), "int32", lambda env: (np.arange(n, dtype=np.int32), 0.0))
        return self.load(shape)

    def constant(self, dtype: str) -> Node:
        """A strongly typed scalar constant of `dtype`."""
        if is_float(dtype):
            value = self.r.choice((0.5, 1.0, 1.5, 2.0, 3.0, 0.25, -1.0, -0.75))
        elif dtype == "bool":
            value = self.r.choice((True, False))
        else:
            value = self.r.choice((0, 1, 2, 3, 5, 7, 100) if dtype.startswith("u") else (0, 1, 2, 3, -1, -2, 7, 100))
        return self.number(value, dtype)

    def number(self, value, dtype: str) -> Node:
        array = np.array(value).astype(np_dtype(dtype))
        return Node(f"tile.cast({value}, {tile_name(dtype)})", None, dtype, lambda env: (array, 0.0))

    def load(self, shape: tuple) -> Node:
        """A load of a region of a new argument."""
        text, dtype, inside = self.region(shape)
        other = self.constant(dtype)
        return Node(f"tile.load({text}, other={other.text})", shape, dtype, lambda env: (inside(env, other.run(env)[0]), 0.0))

    def region(self, shape: tuple):
        """(text, dtype, values) of a region of a new argument or of a window of it. Its position may depend on the CTA and be out of
        bounds; ``values(env, other)`` are its elements."""
        self.note(shape)
        dtype = self.r.choice(STORED)
        name = self.name("a")
        offsets = [self.r.choice((0, 0, 0, 1, -1, 2, -3)) for _ in shape]
        ragged = [self.r.choice((0, 0, 1, 3)) for _ in shape]
        full = [n + g for n, g in zip(shape, ragged)]
        full[0] *= self.ctas
        array = self.array(tuple(full), dtype)
        if self.r.random() < 0.3:
            array = np.asfortranarray(array)
        self.args[name] = array
        moved = self.r.random() < 0.6
        text, low, high = name, [0] * len(shape), list(array.shape)
        if self.r.random() < 0.15:
            low, sizes = [self.r.choice((0, 1, -1)) for _ in shape], [self.r.choice((n, max(1, n - 2), n + 5)) for n in array.shape]
            high = [min(n, b + e) for n, b, e in zip(array.shape, low, sizes)]
            written = lambda ns: ", ".join(f"zero + {n}" for n in ns) + ("," if len(shape) == 1 else "")
            text = f"tile.window({name}, ({written(low)}), ({written(sizes)}))"

        def values(env, other):
            starts = [b + o + (env["pid"] * shape[0] if moved and d == 0 else 0) for d, (b, o) in enumerate(zip(low, offsets))]
            out = np.full(shape, other, array.dtype)
            inner = [slice(max(0, b, s), max(0, b, min(n, s + e))) for b, s, e, n in zip(low, starts, shape, high)]
            if all(c.stop > c.start for c in inner):
                out[tuple(slice(c.start - s, c.stop - s) for c, s in zip(inner, starts))] = array[tuple(inner)]
            return out

        # a runtime start (n is 0) below 0 is out of bounds; a literal one would count from the end
        index = []
        for d, (o, n) in enumerate(zip(offsets, shape)):
            start = f"pid * {n} + {o}" if moved and d == 0 else f"zero + {o}"
            index.append(f"{start}:{start} + {n}")
        return f"{text}[{', '.join(index)}]", dtype, values

    def gather(self, shape: tuple) -> Node:
        """Elements of a new one-dimensional argument at computed indices, some of them out of bounds."""
        dtype = self.r.choice(STORED)
        name, size = self.name("a"), self.r.choice((5, 16, 37))
        array = self.args[name] = self.array((size,), dtype)
        index = self.full(self.integer(self.expression(shape, 1)), shape)
        kind = self.r.choice(INTS)
        shift, other = self.r.choice((0, 3) if kind.startswith("u") else (0, -2, 3)), self.constant(dtype)
        text = f"tile.load({name}[tile.cast({index.text} % {size}, tile.{kind}) + ({shift})], other={other.text})"

        def run(env):
            at = np.remainder(index.run(env)[0], np.array(size, index.run(env)[0].dtype)).astype(np.int64) + shift
            inside = (at >= 0) & (at < size)
            return np.where(inside, array[np.clip(at, 0, size - 1)], other.run(env)[0]), 0.0
        return Node(text, shape, dtype, run)

    def full(self, x: Node, shape: tuple) -> Node:
        """`x` broadcast to exactly `shape`."""
        self.note(shape)
        if x.shape == shape:
            return x
        return Node(f"tile.broadcast_to({x.text}, {shape})", shape, x.dtype,
                    lambda env: tuple(np.broadcast_to(a, shape) for a in x.run(env)), x.exact, x.product)

    def integer(self, x: Node) -> Node:
        """`x` as an integer that can be the operand of `%`: wide enough for the extents used here."""
        if x.dtype in INTS and bits(x.dtype) > 8:
            return x
        return self.to(x, "int32") if x.exact else self.constant("int32")

    def to(self, x: Node, dtype: str) -> Node:
        """A cast. Values that are not exact are only cast between floats."""
        if x.dtype == dtype:
            return x

        def run(env):
            value, slack = x.run(env)
            out = cast(value, dtype)
            if not np.any(slack):
                return out, 0.0
            return out, np.nan_to_num(np.where(np.asarray(slack) > 0, slack + 2 * rounding(dtype, out), 0.0), nan=np.inf, posinf=np.inf)
        exact = x.exact and not (x.product and is_float(dtype))
        return Node(f"tile.cast({x.text}, {tile_name(dtype)})", x.shape, dtype, run, exact, x.product and is_float(dtype))

    def expression(self, shape: tuple | None, depth: int) -> Node:
        """A random expression that broadcasts to `shape`."""
        if depth <= 0 or self.r.random() < 0.1:
            return self.leaf(shape)
        node = getattr(self, f"make_{self.r.choice(self.kinds(shape))}")(shape, depth - 1)
        return node if len(node.text) < 600 else self.leaf(shape)

    def kinds(self, shape: tuple | None) -> list[str]:
        """The kinds of expressions to choose from; repetitions weight them."""
        kinds = ["binary"] * 6 + ["unary", "cast", "where", "extreme", "function", "compare"]
        return kinds if shape is None else kinds + ["reduce", "slice", "shape", "gather", "scan"]

    def make_gather(self, shape, depth):
        return self.gather(shape)

    def make_cast(self, shape, depth):
        x = self.expression(shape, depth)
        return self.to(x, self.r.choice(FLOATS if is_float(x.dtype) and not x.exact else INTS + FLOATS))

    def numeric(self, x: Node) -> Node:
        return self.to(x, "int32") if x.dtype == "bool" else x

    def make_unary(self, shape, depth):
        x = self.numeric(self.expression(shape, depth))
        symbol = self.r.choice("-~" if not is_float(x.dtype) else "-")
        x = self.to(x, "float32") if x.dtype.startswith("float8") else x
        return Node(f"({symbol}{x.text})", x.shape, x.dtype, lambda env: _pair(np.negative if symbol == "-" else np.invert, x.run(env)),
                    x.exact, x.product)

    def make_binary(self, shape, depth):
        a, b = self.expression(shape, depth), self.expression(shape, depth)
        if self.r.random() < 0.25:
            b = self.constant(b.dtype)
        a, b = self.numeric(a), self.numeric(b)
        common = promoted(a.dtype, b.dtype)
        if is_float(common):
            return self.float_binary(self.r.choice("++-**/"), a, b, common)
        symbol = self.r.choice(("+", "-", "*", "//", "%", *BITWISE))
        if symbol in ("//", "%"):
            b = self.constant("int32") if b.dtype.startswith("u") else b
            b = Node(f"({b.text} | 1)", b.shape, b.dtype, lambda env, b=b: (b.run(env)[0] | np.array(1, b.run(env)[0].dtype), 0.0))
            common = promoted(a.dtype, b.dtype)
        return Node(f"({a.text} {symbol} {b.text})", joint(a.shape, b.shape), common, lambda env: (binary(symbol, a.run(env)[0], b.run(env)[0]), 0.0))

    def float_binary(self, symbol: str, a: Node, b: Node, common: str) -> Node:
        common = computed_in(common, symbol)
        if symbol == "/":  # by divisors away from 0
            if b.exact and not b.product and b.dtype in FLOATS:
                near = b
                b = Node(f"(tile.abs({near.text}) + 1)", near.shape, near.dtype,
                         lambda env: (binary("+", np.abs(near.run(env)[0]), np.ones((), np_dtype(near.dtype))), 0.0))
            else:
                b = self.number(2.5, common)
            common = computed_in(promoted(a.dtype, b.dtype), symbol)
        absorbs = symbol in "+-" and (a.product or b.product)

        def run(env):
            (x, dx), (y, dy) = a.run(env), b.run(env)
            x, y = cast(x, common), cast(y, common)
            with np.errstate(all="ignore"):
                out = binary(symbol, x, y)
                if not (np.any(dx) or np.any(dy) or absorbs):
                    return out, 0.0
                u, v = np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64))
                error = {"*": u * dy + v * dx + dx * dy, "/": (dx + np.abs(out.astype(np.float64)) * dy) / np.maximum(v - dy, 0.5)}.get(symbol, dx + dy)
                error = error + 2 * rounding(common, out)
                if absorbs:
                    error = error + 2 * rounding(common, x) + 2 * rounding(common, y)
                return out, np.where(np.isnan(error), np.inf, error * (1 + 1e-9))
        return Node(f"({a.text} {symbol} {b.text})", joint(a.shape, b.shape), common, run, a.exact and b.exact and not absorbs, symbol == "*")

    def make_compare(self, shape, depth):
        a, b = self.settled(self.expression(shape, depth)), self.settled(self.expression(shape, depth))
        symbol = self.r.choice(COMPARE)
        return Node(f"({a.text} {symbol} {b.text})", joint(a.shape, b.shape), "bool", lambda env: (binary(symbol, a.run(env)[0], b.run(env)[0]), 0.0))

    def settled(self, x: Node) -> Node:
        """`x` if it is exact, otherwise a constant."""
        return x if x.exact else self.constant("int32")

    def make_where(self, shape, depth):
        c = self.make_compare(shape, depth - 1)
        a, b = self.expression(shape, depth), self.expression(shape, depth)
        common = promoted(a.dtype, b.dtype)

        def run(env):
            (test, _), (x, dx), (y, dy) = c.run(env), self.to(a, common).run(env), self.to(b, common).run(env)
            return np.where(test, x, y), np.where(test, dx, dy) if np.any(dx) or np.any(dy) else 0.0
        return Node(f"tile.where({c.text}, {a.text}, {b.text})", joint(c.shape, joint(a.shape, b.shape)), common, run,
                    a.exact and b.exact, (a.product or b.product) and is_float(common))

    def make_extreme(self, shape, depth):
        a, b = self.numeric(self.expression(shape, depth)), self.numeric(self.expression(shape, depth))
        common = promoted(a.dtype, b.dtype)
        common = "float32" if common.startswith("float8") else common
        name = self.r.choice(("maximum", "minimum"))

        def run(env):
            (x, dx), (y, dy) = self.to(a, common).run(env), self.to(b, common).run(env)
            with np.errstate(all="ignore"):
                return getattr(np, name)(x, y), np.maximum(dx, dy)
        return Node(f"tile.{name}({a.text}, {b.text})", joint(a.shape, b.shape), common, run, a.exact and b.exact, a.product or b.product)

    def make_function(self, shape, depth):
        x = self.expression(shape, depth)
        if not is_float(x.dtype) or x.dtype.startswith("float8"):
            x = self.to(x, "float32")
        name = self.r.choice(("sqrt", "exp", "floor", "abs", "sin"))
        if name == "abs":
            return Node(f"tile.abs({x.text})", x.shape, x.dtype, lambda env: _pair(np.abs, x.run(env)), x.exact, x.product)
        if name == "floor" and x.exact or name == "sqrt" and x.exact and not x.product:
            inner = f"tile.abs({x.text})" if name == "sqrt" else x.text

            def run(env):
                v = x.run(env)[0]
                with np.errstate(all="ignore"):
                    wide = np.abs(v.astype(np.float64)) if name == "sqrt" else v.astype(np.float64)
                    single = getattr(np, name)(wide)
                    return cast(single.astype(np.float32) if bits(x.dtype) < 64 else single, x.dtype), 0.0
            return Node(f"tile.{name}({inner})", x.shape, x.dtype, run)
        name = name if name in ("exp", "sin") else "exp"

        def run_bounded(env):
            v, dv = x.run(env)
            with np.errstate(all="ignore"):
                inner = np.clip(v.astype(np.float64), -4.0, 4.0)
                out = getattr(np, name)(inner)
                out = np.where(np.isnan(v.astype(np.float64)), np.nan, out)
                rounded = cast(out.astype(np.float32) if bits(x.dtype) < 64 else out, x.dtype)
                slack = 60 * np.asarray(dv) + 12 * rounding(x.dtype, out) + 12 * (rounding("float32", out) if bits(x.dtype) < 64 else 0)
                return rounded, np.nan_to_num(slack, nan=np.inf, posinf=np.inf)
        return Node(f"tile.{name}(tile.clip({x.text}, -4.0, 4.0))", x.shape, x.dtype, run_bounded, False)

    def make_reduce(self, shape, depth):
        """A reduction of a tile that has one more dimension."""
        extra = self.r.choice((2, 3, 8, 17))
        at = self.r.randrange(len(shape) + 1)
        larger = shape[:at] + (extra,) + shape[at:]
        if len(larger) > 3 or int(np.prod(larger)) > self.limit:
            return self.leaf(shape)
        self.depth += 1
        x = self.full(self.expression(larger, min(depth, 1)), larger)
        name = self.r.choice(("sum", "max", "min", "any", "all", "argmax"))
        if name in ("any", "all", "argmax"):
            x = self.full(self.settled(x), larger)
        keep = self.r.random() < 0.2
        out_shape = shape[:at] + (1,) + shape[at:] if keep else shape
        if keep and not broadcasts(out_shape, shape):
            keep, out_shape = False, shape
        narrow = is_float(x.dtype) and bits(x.dtype) < 32
        dtype = {"any": "bool", "all": "bool", "argmax": "int32"}.get(name, x.dtype)
        if name == "sum" and not is_float(x.dtype) and bits(x.dtype) < 32:
            dtype = "uint32" if x.dtype.startswith("u") else "int32"

        def run(env):
            v, dv = x.run(env)
            with np.errstate(all="ignore"):
                if name in ("any", "all", "argmax", "max", "min"):
                    wide = v.astype(np.float64) if is_float(x.dtype) else v
                    out = getattr(np, name)(wide, axis=at, keepdims=keep)
                    out = out.astype(np_dtype(dtype))
                    return out, np.max(np.broadcast_to(dv, v.shape), axis=at, keepdims=keep) if np.any(dv) else 0.0
                if not is_float(x.dtype):
                    return v.sum(axis=at, keepdims=keep, dtype=np_dtype(dtype)), 0.0
                wide = v.astype(np.float64)
                out = cast(wide.sum(axis=at, keepdims=keep), dtype)
                size = np.abs(wide).sum(axis=at, keepdims=keep)
                error = np.broadcast_to(dv, v.shape).sum(axis=at, keepdims=keep) + extra * 2 * rounding("float32" if narrow else dtype, size)
                return out, np.nan_to_num(error + 2 * rounding(dtype, out), nan=np.inf, posinf=np.inf)
        exact = x.exact and not (name == "sum" and is_float(x.dtype))
        return Node(f"tile.{name}({x.text}, axis={at}{', keepdims=True' if keep else ''})", out_shape, dtype, run, exact,
                    name in ("max", "min") and x.product)

    def make_scan(self, shape, depth):
        x = self.numeric(self.full(self.expression(shape, depth), shape))
        x = x if not is_float(x.dtype) else self.full(self.to(self.settled(x), "int32"), shape)
        axis = self.r.randrange(len(shape))
        dtype = x.dtype if bits(x.dtype) >= 32 else "uint32" if x.dtype.startswith("u") else "int32"
        return Node(f"tile.cumsum({x.text}, axis={axis})", shape, dtype,
                    lambda env: (np.cumsum(x.run(env)[0], axis=axis, dtype=np_dtype(dtype)), 0.0))

    def make_slice(self, shape, depth):
        """A static slice of a larger tile."""
        cuts = [(self.r.choice((0, 1, 3)), self.r.choice((1, 1, 2))) for _ in shape]
        larger = tuple(s + (n - 1) * step + 1 + self.r.choice((0, 2)) for n, (s, step) in zip(shape, cuts))
        if int(np.prod(larger)) > self.limit:
            return self.leaf(shape)
        x = self.full(self.expression(larger, min(depth, 1)), larger)
        parts = tuple(slice(s, s + (n - 1) * step + 1, step) for n, (s, step) in zip(shape, cuts))
        text = ", ".join(f"{p.start}:{p.stop}:{p.step}" for p in parts)
        return Node(f"{x.text}[{text}]", shape, x.dtype, lambda env: tuple(np.broadcast_to(v, larger)[parts] for v in x.run(env)), x.exact, x.product)

    def make_shape(self, shape, depth):
        """A transpose, or a reshape of a tile with the same number of elements."""
        kind = self.r.choice(("T", "reshape"))
        before = shape[::-1] if kind == "T" else self.r.choice(((int(np.prod(shape)),), shape[::-1], (1, *shape)))
        x = self.full(self.expression(before, depth), before)
        change = (lambda v: np.broadcast_to(v, before).T) if kind == "T" else (lambda v: np.broadcast_to(v, before).reshape(shape))
        return Node(f"({x.text}).T" if kind == "T" else f"tile.reshape({x.text}, {shape})", shape, x.dtype,
                    lambda env: tuple(change(v) for v in x.run(env)), x.exact, x.product)


def _pair(function, pair):
    with np.errstate(all="ignore"):
        return function(pair[0]), pair[1]


def broadcasts(shape, target) -> bool:
    """Whether a tile of `shape` broadcasts to exactly `target`."""
    return len(shape) <= len(target) and all(a in (1, b) for a, b in zip(shape[::-1], target[::-1]))


def joint(a: tuple | None, b: tuple | None) -> tuple | None:
    if a is None or b is None:
        return b if a is None else a
    return np.broadcast_shapes(a, b)
