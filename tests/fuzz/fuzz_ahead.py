"""Random pipelined loops of loads: with other values and masks, in branches, and by several index tiles of arrays of three dimensions."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
from fuzz_expressions import STORED
from fuzz_products import Products
from fuzz_program import Node, Statement
from language_reference import bits, cast, is_float, np_dtype, tile_name

PROBABILITY = 0.35   # of a program to end with such a loop

Values = Callable[[dict, int], np.ndarray]


class Ahead(Products):
    """Draws pipelined loops of loads, by random numbers of its own: what else a seed draws does not depend on them."""

    @contextmanager
    def own_numbers(self):
        outer = self.r, self.rng
        self.r, self.rng = random.Random(self.seed ^ 0x5EED), np.random.default_rng([self.seed, 1])
        try:
            yield
        finally:
            self.r, self.rng = outer

    def loads_ahead(self) -> list[Statement]:
        """A pipelined loop of loads, or none."""
        with self.own_numbers():
            return [self.loop_of_loads()] if self.r.random() < PROBABILITY else []

    def loop_of_loads(self) -> Statement:
        multiplied = self.r.random() < 0.3
        rows, columns = (self.r.choice((16, 32)), self.r.choice((16, 32, 64))) if multiplied else (self.r.choice((2, 4, 8, 16)), self.r.choice((8, 16, 32)))
        dtype = self.r.choice(("float16", "bfloat16")) if multiplied else self.r.choice([d for d in STORED if d != "bool"])
        wide = "float32" if multiplied or is_float(dtype) and dtype != "float64" else "float64" if dtype == "float64" else "int64"
        trips, stages, count = self.r.choice((0, 1, 2, 3, 5, 7)), self.r.choice((1, 2, 3, 4)), self.r.choice((1, 1, 2))
        self.note((rows, columns))
        if not self.takes(count * stages * rows * columns * bits(dtype) // 8 + 2048):
            return self.assign()
        v, i, width = self.name("v"), self.name("i"), 16
        table = self.name("a")
        self.args[table] = self.rng.integers(-1, 4, trips + 3).astype(np.int32)
        shape = (rows, width) if multiplied else (rows, columns)
        right = self.name("a")
        factor = self.args[right] = self.rng.integers(-2, 3, (columns, width)).astype(np_dtype(dtype if multiplied else "float16"))
        body: list[str] = []
        steps: list[tuple[Callable[[dict, int], bool], Values]] = []
        for _ in range(count):
            test, holds = self.condition(i, table)
            lines, text, values = self.load_ahead(i, (rows, columns), dtype, table, multiplied)
            if multiplied:
                add = f"{v} = tile.dot({text}, tile.load({right}[0:{columns}, 0:{width}]), {v})"
            elif is_float(dtype):
                add = f"{v} = tile.maximum({v}, tile.cast({text}, {tile_name(wide)}))"
            else:
                add = f"{v} = {v} * 3 + tile.cast({text}, {tile_name(wide)})"
            body += [*lines, add] if not test else [*lines, f"if {test}:", f"    {add}"]
            steps.append((holds, values))
        roles = ", warp_specialize=True" if self.roles else ""
        start = f"{v} = tile.full({shape}, {0 if multiplied else -100}, {tile_name(wide)})"
        lines = [start, f"for {i} in tile.pipelined(range(0, {trips} + zero), stages={stages}{roles}):", *("    " + line for line in body)]
        self.variables[v] = Node(v, shape, wide, lambda env: env[v])

        def run(env):
            acc = np.full(shape, 0 if multiplied else -100, np_dtype(wide))
            for n in range(trips):
                for holds, values in steps:
                    if not holds(env, n):
                        continue
                    x = values(env, n)
                    if multiplied:
                        acc = acc + x.astype(np.float32) @ factor.astype(np.float32)
                    else:
                        acc = np.maximum(acc, cast(x, wide)) if is_float(dtype) else acc * np.int64(3) + cast(x, wide)
            env[v] = acc, 0.0
        return Statement(lines, run)

    def condition(self, i: str, table: str):
        """A uniform condition that is known ahead, as text and as a function; "" for none."""
        numbers = self.args[table]
        return self.r.choice((("", lambda env, n: True), ("", lambda env, n: True), (f"{i} % 3 != 1", lambda env, n: n % 3 != 1),
                              (f"tile.load({table}[{i}]) >= 0", lambda env, n: numbers[n] >= 0),
                              (f"({i} + pid) % 2 == 0", lambda env, n: (n + int(env["pid"])) % 2 == 0)))

    def load_ahead(self, i: str, shape: tuple[int, int], dtype: str, table: str, small: bool) -> tuple[list[str], str, Values]:
        """A load of a loop: the lines before it, its expression, and the values that it gives in an iteration."""
        rows, columns = shape
        x, other = self.name("a"), self.other(dtype, small)
        numbers = self.args[table]
        down, across = f"tile.arange({rows})", f"tile.arange({columns})"
        r, c = np.arange(rows)[:, None], np.arange(columns)[None, :]
        wide = columns + self.r.choice((0, 0, 16, 5))
        left = self.r.choice((0, 0, 16, -3))
        if self.r.random() < 0.5:
            full: tuple[int, ...] = self.r.choice((rows, 3 * rows, 4 * rows + 1)), wide
            at, function = self.r.choice(((f"{i} * {rows}", lambda env, n: n * rows), (f"{i} % 3 - 1", lambda env, n: n % 3 - 1),
                                          (f"tile.load({table}[{i}]) * {rows}", lambda env, n: int(numbers[n]) * rows),
                                          (f"{i} + pid", lambda env, n: n + int(env["pid"]))))
            place = self.name("i")
            lines, indices = [f"{place} = {at}"], lambda env, n: (function(env, n) + r, left + c)
            text = f"{x}[{place}:{place} + {rows}, zero + {left}:zero + {left} + {columns}]"
        else:
            p, q = self.r.choice((2, 5)), self.r.choice((3, 8))
            full = p, q, wide
            place = self.name("v_")
            lines = [f"{place} = {i} * {rows} + {down}"]
            first, one = self.r.choice(((f"{place} // {q}", lambda env, n: (n * rows + r) // q),
                                        (f"({place} * 3) % {p + 2} - 1", lambda env, n: (n * rows + r) * 3 % (p + 2) - 1),
                                        (f"tile.load({table}[{place} % {len(numbers)}])", lambda env, n: numbers[(n * rows + r) % len(numbers)])))
            second, two = f"{place} % {q}", lambda env, n: (n * rows + r) % q
            indices = lambda env, n: (one(env, n), two(env, n), left + c)
            text = f"{x}[({first})[:, None], ({second})[:, None], (zero + {left} + {across})[None, :]]"
        array = self.args[x] = self.rng.integers(-2, 3, full).astype(np_dtype(dtype)) if small else self.array(full, dtype)
        mask, kept = self.r.choice((("", None), ("", None), (f"({down} < {max(1, rows - 1)})[:, None]", r < max(1, rows - 1)),
                                    (f"({across} < {columns - 3})[None, :]", c < columns - 3),
                                    (f"({down}[:, None] + {across}[None, :]) % 3 != 0", (r + c) % 3 != 0)))
        options = (f", mask={mask}" if mask else "") + (f", other={other[0]}" if other else "")

        def values(env, n):
            at = np.broadcast_arrays(*indices(env, n))
            inside = np.logical_and.reduce([(k >= 0) & (k < size) for k, size in zip(at, array.shape)])
            inside = inside if kept is None else inside & kept
            got = array[tuple(np.clip(k, 0, size - 1) for k, size in zip(at, array.shape))]
            return np.where(inside, got, np.array(other[1] if other else 0).astype(array.dtype))
        return lines, f"tile.load({text}{options})", values

    def other(self, dtype: str, small: bool):
        """What stands for elements out of bounds, as text and value; None for zero."""
        if small:
            return self.r.choice((None, ("1", 1), ("-2", -2)))
        if is_float(dtype):
            found = [None, ("1.5", 1.5), ("float('nan')", np.nan), ("-0.0", -0.0)]
            return self.r.choice(found if "e4m3" in dtype else [*found, ("-float('inf')", -np.inf)])
        return self.r.choice((None, ("7", 7), (str(np.iinfo(dtype).max), np.iinfo(dtype).max), (str(np.iinfo(dtype).min), np.iinfo(dtype).min)))
