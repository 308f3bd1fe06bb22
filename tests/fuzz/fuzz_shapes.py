"""Random expressions of more than two dimensions, with weak numbers, masks, user functions, and special values."""

from __future__ import annotations

import numpy as np
import tilejit as tile
from fuzz_expressions import FLOATS, INTS, Expressions
from fuzz_program import Node, Statement, rounding
from language_reference import binary, bits, cast, is_float, np_dtype, special


@tile.jit
def after(a, b):
    """The composition of ``x -> k * x + c`` of `a` with that of `b`: associative, not commutative, wrapping."""
    (k, c), (m, d) = a, b
    return k * m, c * m + d


@tile.jit
def nearer(a, b):
    """The pair (value, index) with the larger value; of equal values, the one with the lower index."""
    (x, i), (y, j) = a, b
    keep = (x > y) | ((x == y) & (i < j))
    return tile.where(keep, x, y), tile.where(keep, i, j)


HELPERS = {"after": after, "nearer": nearer}


class Shapes(Expressions):
    """Draws more kinds of expressions, and scalars that control loops."""

    def array(self, shape, dtype: str) -> np.ndarray:
        """Values of moderate magnitude, exact in the dtype; occasionally infinities, NaN, subnormals, or the largest value."""
        values = super().array(shape, dtype)
        if is_float(dtype) and self.r.random() < 0.12:
            values = np.where(self.rng.integers(0, 4, shape) == 0, self.rng.choice(special(dtype), shape), values)
        return values

    def kinds(self, shape: tuple | None) -> list[str]:
        found = super().kinds(shape) + ["weak", "test", "rounding"]
        if shape is not None:
            found += ["masked", "axes", "folded", "scanned", "paired", "indexed", "bits", "power"]
        return found

    def larger(self, shape: tuple, at: int, extra: int) -> tuple:
        return shape[:at] + (extra,) + shape[at:]

    def make_weak(self, shape, depth):
        """Arithmetic with a literal number."""
        x = self.numeric(self.expression(shape, depth))
        if is_float(x.dtype):
            number, text = self.r.choice(((2, "2"), (0.5, "0.5"), (-3, "(-3)")))
            dtype = "float32" if x.dtype.startswith("float8") else x.dtype
            other = Node(text, None, dtype, lambda env: (np.array(number).astype(np_dtype(dtype)), 0.0))
            return self.float_binary(self.r.choice("+-*"), *self.r.choice(((x, other), (other, x))), dtype)
        number = self.r.choice((2, 3, 100))
        symbol = self.r.choice(("+", "-", "*", "//", "%", "&", "|", "<<", ">>"))
        turned = self.r.random() < 0.3 and symbol not in ("//", "%")
        a, b = (str(number), x.text) if turned else (x.text, str(number))

        def run(env):
            pair = x.run(env)[0], np.array(number).astype(np_dtype(x.dtype))
            return binary(symbol, *(pair[::-1] if turned else pair)), 0.0
        return Node(f"({a} {symbol} {b})", x.shape, x.dtype, run)

    def make_test(self, shape, depth):
        x = self.settled(self.expression(shape, depth))
        x = x if x.dtype in FLOATS else self.to(x, "float32")
        name = self.r.choice(("isnan", "isinf", "isfinite"))
        return Node(f"tile.{name}({x.text})", x.shape, "bool", lambda env: (getattr(np, name)(x.run(env)[0].astype(np.float64)), 0.0))

    def make_rounding(self, shape, depth):
        x = self.settled(self.expression(shape, depth))
        x = x if x.dtype in FLOATS else self.to(x, "float32")
        name = self.r.choice(("ceil", "trunc", "round", "floor"))
        return Node(f"tile.{name}({x.text})", x.shape, x.dtype, lambda env: (cast(getattr(np, name)(x.run(env)[0].astype(np.float64)), x.dtype), 0.0))

    def make_power(self, shape, depth):
        x = self.expression(shape, depth)
        x = x if x.dtype in INTS else self.to(x, "int32") if x.exact else self.constant("int32")
        n = self.r.choice((0, 1, 2, 3, 5))

        def run(env):
            out = np.ones_like(x.run(env)[0])
            for _ in range(n):
                out = binary("*", out, x.run(env)[0])
            return out, 0.0
        return Node(f"({x.text} ** {n})", x.shape, x.dtype, run)

    def make_bits(self, shape, depth):
        """Integer bits reinterpreted as a float, or memory reinterpreted as integers."""
        dtype = self.r.choice(FLOATS)
        whole = f"int{bits(dtype)}"
        if self.r.random() < 0.5:
            x = self.load(shape)
            while x.dtype not in FLOATS:
                x = self.load(shape)
            kind = self.r.choice((f"int{bits(x.dtype)}", f"uint{bits(x.dtype)}"))
            return Node(f"tile.bitcast({x.text}, tile.{kind})", shape, kind, lambda env: (np.ascontiguousarray(x.run(env)[0]).view(kind), 0.0))
        x = self.expression(shape, depth)
        x = self.full(self.to(x, whole) if x.exact else self.constant(whole), shape)
        return Node(f"tile.bitcast({x.text}, tile.{dtype})", shape, dtype,
                    lambda env: (np.array(np.broadcast_to(x.run(env)[0], shape)).view(np_dtype(dtype)), 0.0))

    def make_masked(self, shape, depth):
        """A masked load."""
        text, dtype, inside = self.region(shape)
        test, other = self.full(self.make_compare(shape, depth - 1), shape), self.constant(dtype)
        return Node(f"tile.load({text}, mask={test.text}, other={other.text})", shape, dtype,
                    lambda env: (np.where(np.broadcast_to(test.run(env)[0], shape), inside(env, other.run(env)[0]), other.run(env)[0]), 0.0))

    def make_axes(self, shape, depth):
        """A transpose of three dimensions, then a reshape to the requested shape."""
        if len(shape) > 2:
            return self.leaf(shape)
        extents = self.r.choice([(shape[0], 1, *shape[1:]), (*shape, 1), *([(n // k, k, *shape[1:]) for n in shape[:1] for k in (2, 4) if n % k == 0])])
        extents = extents if len(extents) == 3 else (*extents, 1)
        order = self.r.sample(range(3), 3)
        before = tuple(extents[order.index(d)] for d in range(3))
        x = self.full(self.expression(before, min(depth, 1)), before)
        return Node(f"tile.reshape(tile.transpose({x.text}, {tuple(order)}), {shape})", shape, x.dtype,
                    lambda env: tuple(np.transpose(np.broadcast_to(v, before), order).reshape(shape) for v in x.run(env)), x.exact, x.product)

    def make_folded(self, shape, depth):
        """A reduction over two axes at once."""
        first, second = self.r.choice((2, 3, 5)), self.r.choice((2, 4))
        at, and_at = self.r.randrange(len(shape) + 1), self.r.randrange(len(shape) + 2)
        before = self.larger(self.larger(shape, at, first), and_at, second)
        axes = tuple(sorted((and_at, at if at < and_at else at + 1)))
        if len(shape) > 2 or int(np.prod(before)) > self.limit:
            return self.leaf(shape)
        x = self.full(self.numeric(self.settled(self.expression(before, min(depth, 1)))), before)
        name = self.r.choice(("max", "min", "sum", "prod") if not is_float(x.dtype) else ("max", "min"))
        dtype = x.dtype if name in ("max", "min") or bits(x.dtype) >= 32 else "uint32" if x.dtype.startswith("u") else "int32"
        keep = self.r.random() < 0.3
        text = f"tile.{name}({x.text}, axis={tuple(a - len(before) for a in axes) if self.r.random() < 0.3 else axes}{', keepdims=True' if keep else ''})"

        def run(env):
            v = np.broadcast_to(x.run(env)[0], before)
            with np.errstate(all="ignore"):
                wide = v.astype(np.float64) if is_float(x.dtype) else v.astype(np_dtype(dtype))
                return getattr(np, name)(wide, axis=axes).astype(np_dtype(dtype)), 0.0
        return Node(f"tile.reshape({text}, {shape})" if keep else text, shape, dtype, run)

    def make_scanned(self, shape, depth):
        """Cumulative products and compositions, from either end."""
        x = self.settled(self.expression(shape, depth))
        dtype = self.r.choice(("int32", "uint32", "int64"))
        x = self.full(self.to(x, dtype), shape)
        axis, reverse = self.r.randrange(len(shape)), self.r.random() < 0.4
        tail = f", axis={axis}, reverse={reverse})"
        kind = self.r.choice(("cumprod", "cumsum", "after"))
        text = f"tile.scan(({x.text} | 1, {x.text}), {axis}, after, reverse={reverse})[1]" if kind == "after" else f"tile.{kind}({x.text}{tail}"

        def run(env):
            v = np.moveaxis(np.array(np.broadcast_to(x.run(env)[0], shape)), axis, 0)
            v = v[::-1] if reverse else v
            with np.errstate(all="ignore"):
                if kind != "after":
                    out = getattr(np, kind)(v, axis=0, dtype=np_dtype(dtype))
                else:
                    out, c = np.empty_like(v), None
                    for n, row in enumerate(v):
                        c = row if c is None else (c * (row | 1) + row).astype(v.dtype)
                        out[n] = c
            return np.moveaxis(out[::-1] if reverse else out, 0, axis), 0.0
        return Node(text, shape, dtype, run)

    def make_paired(self, shape, depth):
        """The index of the largest element along an additional axis, by a user function or by argmax and argmin."""
        extra, at = self.r.choice((2, 3, 8, 17, 33)), self.r.randrange(len(shape) + 1)
        before = self.larger(shape, at, extra)
        if len(before) > 3 or int(np.prod(before)) > self.limit:
            return self.leaf(shape)
        x = self.full(self.numeric(self.settled(self.expression(before, min(depth, 1)))), before)
        name = self.r.choice(("argmax", "argmin", "nearer"))
        if name == "nearer":
            x = self.full(self.to(x, "int64"), before)
            places = f"tile.broadcast_to(tile.reshape(tile.arange({extra}), {tuple(extra if d == at else 1 for d in range(len(before)))}), {before})"
            text = f"tile.reduce(({x.text}, {places}), {at}, nearer)[1]"
        else:
            text = f"tile.{name}({x.text}, axis={at})"

        def run(env):
            v = np.broadcast_to(x.run(env)[0], before)
            v = v.astype(np.float64) if is_float(x.dtype) else v
            return getattr(np, "argmax" if name == "nearer" else name)(v, axis=at).astype(np.int32), 0.0
        return Node(text, shape, "int32", run)

    def make_indexed(self, shape, depth):
        """One index along a dimension, with dimensions inserted."""
        extra, at = self.r.choice((2, 3, 5)), self.r.randrange(len(shape) + 1)
        before = self.larger(shape, at, extra)
        if len(before) > 3 or int(np.prod(before)) > self.limit:
            return self.leaf(shape)
        x = self.full(self.expression(before, min(depth, 1)), before)
        n = self.r.randrange(extra)
        index = [str(n) if d == at else ":" for d in range(len(before))]
        picked = [n if d == at else slice(None) for d in range(len(before))]
        text = f"{x.text}[{', '.join(index)}]"
        if self.r.random() < 0.3:
            text = f"tile.reshape(tile.expand_dims({text}, {self.r.choice((0, -1))}), {shape})"
        return Node(text, shape, x.dtype, lambda env: tuple(np.broadcast_to(v, before)[tuple(picked)] for v in x.run(env)), x.exact, x.product)

    def sums(self) -> Statement:
        """Sums, means, products and cumulative sums of floats: NumPy adds in another order; the simulator uses the GPU's order."""
        shape = self.r.choice(((self.rows, self.columns), (self.columns, self.rows), (self.r.choice((3, 33, 100, 257)),), (2, self.rows, 5)))
        if self.threads < 1024 and int(np.prod(shape)) > self.limit:   # by the registers of a narrower scope
            return self.assign()
        dtype, name = self.r.choice(("float32", "float32", "float64", "float16", "bfloat16")), self.name("a")
        array = self.args[name] = (self.rng.standard_normal((self.ctas, *shape)) * 0.5 + 0.75).astype(np_dtype(dtype))
        self.note(shape)
        kind, axis = self.r.choice(("sum", "mean", "prod", "cumsum", "sum")), self.r.randrange(len(shape))
        axes = (axis,) if kind == "cumsum" or self.r.random() < 0.6 else tuple(range(len(shape)))
        reverse = kind == "cumsum" and self.r.random() < 0.5
        after = shape if kind == "cumsum" else tuple(n for d, n in enumerate(shape) if d not in axes)
        kept = dtype if kind != "cumsum" or bits(dtype) > 16 else "float32"
        out = f"w{self.count + 1}"
        self.count += 1
        self.written[out] = np.zeros((self.ctas, *after), np_dtype(kept))
        self.slack[out], length = np.zeros((self.ctas, *after)), int(np.prod([shape[a] for a in axes]))
        self.same_bits.add(out)
        how = f"axis={axes[0]}, reverse={reverse}" if kind == "cumsum" else f"axis={axes if len(axes) < len(shape) else None}"
        place = "".join(f", 0:{n}" for n in shape)
        text = f"tile.{kind}(tile.load({name}[pid{place}]), {how})"
        line = f"tile.store({out}[pid{''.join(f', 0:{n}' for n in after)}], {text if kept == dtype else f'tile.cast({text}, tile.{kept})'})"

        def run(env):
            v = array[env["pid"]].astype(np.float64)
            if kind == "cumsum":
                turned = np.flip(v, axes[0]) if reverse else v
                result, size = (np.cumsum(x, axis=axes[0]) for x in (turned, np.abs(turned)))
                result, size = (np.flip(x, axes[0]) if reverse else x for x in (result, size))
            else:
                result = getattr(np, kind)(v, axis=axes)
                size = np.abs(result) if kind == "prod" else np.abs(v).sum(axis=axes) / (length if kind == "mean" else 1)
            self.written[out][env["pid"]] = result.astype(np_dtype(kept))
            wide = "float64" if dtype == "float64" else "float32"
            self.slack[out][env["pid"]] = (length + 2) * rounding(wide, size) + 2 * rounding(dtype, result)
        return Statement([line], run)

    # -- scalars -------------------------------------------------------------------------------------------------------------

    def scalar(self) -> Statement:
        """A scalar that depends on memory or a tile, the same for all threads."""
        name = self.name("i")
        if self.r.random() < 0.4:
            data, dtype = self.name("a"), self.r.choice(("int8", "int32", "int64", "uint16"))
            array = self.args[data] = self.array((7,), dtype)
            x = Node(f"tile.load({data}[pid])", None, dtype, lambda env: (array[env["pid"]], 0.0))
        else:
            shape = self.r.choice(self.shapes())
            y = self.full(self.to(self.settled(self.expression(shape, 1)), "int32"), shape)
            kind = self.r.choice(("max", "sum", "min"))
            fold = {"max": np.max, "min": np.min, "sum": lambda v: v.sum(dtype=np.int32)}[kind]
            x = Node(f"tile.{kind}({y.text})", None, "int32", lambda env: (fold(np.broadcast_to(y.run(env)[0], shape)), 0.0))
        self.variables[name] = Node(name, None, x.dtype, lambda env: env[name])
        self.locked.add(name)

        def run(env):
            env[name] = np.asarray(x.run(env)[0]), 0.0
        return Statement([f"{name} = {x.text}"], run)

    def count_of(self, most: int) -> Node:
        """A scalar from 0 to `most`."""
        x = self.variable(lambda v: v.shape is None and v.dtype in INTS) or self.constant("int32")
        return Node(f"tile.cast(tile.cast({x.text}, tile.int64) % {most + 1}, tile.int32)", None, "int32",
                    lambda env: (np.int32(int(cast(np.asarray(x.run(env)[0]), "int64")) % (most + 1)), 0.0))
