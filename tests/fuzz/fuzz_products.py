"""Random products of small integers, whose sums are exact, and random pipelined loops."""

from __future__ import annotations

import numpy as np
from fuzz_expressions import STORED
from fuzz_program import Node, Statement
from fuzz_scopes import Scopes
from language_reference import bits, cast, is_float, np_dtype, tile_name

SUMS = {"float64": "float64", "int8": "int32", "uint8": "int32", "int32": "int32", "int64": "int64"}  # the other dtypes accumulate in float32


class Products(Scopes):
    """Draws products and pipelined loops."""

    def operand(self, rows: int, columns: int, dtype: str):
        """A matrix argument of small integers: (name, array)."""
        name = self.name("a")
        values = self.rng.integers(0 if dtype.startswith("u") else -2, 3, (rows, columns)).astype(np_dtype(dtype))
        self.args[name] = np.asfortranarray(values) if self.r.random() < 0.2 else values
        return name, self.args[name]

    def extents(self) -> tuple[int, int, int]:
        if self.r.random() < 0.4:
            return self.r.choice((64, 128)), self.r.choice((8, 16, 32, 64)), self.r.choice((16, 32, 64))
        pick = lambda: self.r.choice((1, 3, 8, 16, 17, 24, 32, 50))
        return pick(), pick(), pick()

    def matrix_operand(self, rows: int, columns: int, dtype: str, transposed: bool):
        """Statements that load an operand, the operand's expression, and its values [rows, columns]."""
        shape = (columns, rows) if transposed else (rows, columns)
        name, array = self.operand(*shape, dtype)
        region = f"{name}[0:{shape[0]}, 0:{shape[1]}]"
        value = array.T if transposed else array
        self.note(shape)
        if self.r.random() < 0.4:
            return [], f"tile.load({region})", value
        s = self.name("s")
        lines = [f"{s} = tile.alloc({shape}, {tile_name(dtype)}{self.layout(shape, dtype)})"]
        if self.tokens and self.counted and self.r.random() < 0.5:
            done = self.name("t")
            lines += [f"{done} = tile.copy_async({s}, {region})", f"{done}.wait()"]
        else:
            lines += [f"tile.copy({s}, {region})", "tile.sync()"]
        return lines, s, value

    def product(self) -> Statement:
        m, n, k = self.extents()
        dtype = self.r.choice(("float16", "float16", "bfloat16", "float32", "int8", "uint8", "float64", "float8_e4m3fn", "float8_e5m2", "int32"))
        self.draws |= {"fma"} if dtype == "int32" else {"mma_sync"} if dtype in ("float16", "bfloat16", "int8") and m < 64 else set()
        held = self.threads == 1024 or max(m * n, m * k, k * n) <= self.limit   # by the registers of a narrower scope
        if not held or not self.takes((m + n) * (k + 16) * bits(dtype) // 8):
            return self.assign()
        ta, tb = self.r.random() < 0.4, self.r.random() < 0.4
        first, a, x = self.matrix_operand(m, k, dtype, ta)
        second, b, y = self.matrix_operand(k, n, dtype, tb)
        sums = SUMS.get(dtype, "float32")
        self.note((m, n))
        acc, name, start = "", self.name("v"), 0
        if self.r.random() < 0.5:
            held, start = self.operand(m, n, "int32")
            acc = f", tile.cast(tile.load({held}[0:{m}, 0:{n}]), {tile_name(sums)})"
        elif dtype == "float16" and self.r.random() < 0.3:
            sums, acc = "float16", ", dtype=tile.float16"
        flags = (", trans_a=True" if ta else "") + (", trans_b=True" if tb else "")
        if dtype == "float32" and self.r.random() < 0.5:
            flags += ", precision='tf32'"
        want = (x.astype(np.float64) @ y.astype(np.float64) + start).astype(np_dtype(sums))
        self.variables[name] = Node(name, (m, n), sums, lambda env: env[name])

        def run(env):
            env[name] = want, 0.0
        return Statement([*first, *second, f"{name} = tile.dot({a}, {b}{acc}{flags})", "tile.sync()"], run)

    # -- pipelined loops -------------------------------------------------------------------------------------------------------

    def pipelined(self) -> Statement:
        """A pipelined loop of loads whose positions are arbitrary arithmetic of the index, with any number of stages and iterations."""
        start, step = self.r.choice((0, 0, 1, -2, 5)), self.r.choice((1, 1, 2, -1, -3))
        trips, stages = self.r.choice((0, 1, 2, 3, 4, 7)), self.r.choice((1, 2, 3, 4, 5))
        over = range(start, start + trips * step, step)
        i, name = self.name("i"), self.name("v")
        zero = self.r.choice(("", " + zero"))
        roles = ", warp_specialize=True" if self.roles else ""
        shape = rows, columns = self.r.choice((1, 4, 8, 16)), self.r.choice((4, 8, 16, 32, 64))
        self.note(shape)
        dtype = self.r.choice([d for d in STORED if columns * bits(d) // 8 % (16 if self.roles else 1) == 0])
        wide = "float64" if dtype == "float64" else "float32" if is_float(dtype) else "int64"
        head, body, shown = [f"{name} = tile.full({shape}, -100, {tile_name(wide)})"], [], []
        buffers = self.r.choice((1, 1, 2))
        if not self.takes(buffers * stages * (rows + 8) * (columns + 16) * bits(dtype) // 8):
            return self.assign()
        for _ in range(buffers):
            lines, first, values = self.staged(i, shape, dtype)
            head += first
            body += lines
            shown.append(values)
        s = [line.split(" = ")[0] for line in head[1:]]
        combine = "tile.maximum({}, {})" if is_float(dtype) else "{} * 3 + {}"
        for b in s:
            body.append(f"{name} = {combine.format(name, f'tile.cast(tile.load({b}), {tile_name(wide)})')}")
        out = None
        if self.r.random() < 0.4:
            out = self.output((self.ctas, 8, columns), dtype)
            body.append(f"tile.store({out}[pid, ({i} - ({start})) // ({step}) + zero, 0:{columns}], tile.load({s[0]}[{rows - 1}, 0:{columns}]))")
        loop = f"for {i} in tile.pipelined(range({start}{zero}, {over.stop if trips else start}{zero}, {step}), stages={stages}{roles}):"
        self.variables[name] = Node(name, shape, wide, lambda env: env[name])

        def run(env):
            acc = np.full(shape, -100, np_dtype(wide))
            for at in over:
                parts = [values(env, at) for values in shown]
                for part in parts:
                    acc = np.maximum(acc, cast(part, wide)) if is_float(dtype) else acc * np.int64(3) + cast(part, wide)
                if out is not None:
                    self.written[out][env["pid"], (at - start) // step] = parts[0][rows - 1]
            env[name] = acc, 0.0
        return Statement([*head, loop, *("    " + line for line in body)], run)

    def pipelined_product(self) -> Statement:
        """A product in a pipelined loop over blocks of k, which prefetches its operands."""
        m, n = self.r.choice((16, 32, 50, 64, 128)), self.r.choice((8, 16, 24, 32, 64))
        dtype = self.r.choice(("float16", "bfloat16", "int8", "float8_e4m3fn", "float32"))
        block, stages, trips = self.r.choice((16, 32, 64)), self.r.choice((1, 2, 3, 4)), self.r.choice((0, 1, 2, 3, 5))
        k = max(0, trips * block - self.r.choice((0, 0, 3, 8)))
        if not self.takes(stages * (m + n) * block * bits(dtype) // 8):
            return self.product()
        ta, tb = self.r.random() < 0.3, self.r.random() < 0.5
        self.note((m, n))
        (first, a), (second, b) = (self.operand(*(shape[::-1] if turned else shape), dtype) for shape, turned in (((m, max(k, 1)), ta), ((max(k, 1), n), tb)))
        i, name, s, t = self.name("i"), self.name("v"), self.name("s"), self.name("s")
        sums, roles = SUMS.get(dtype, "float32"), ", warp_specialize=True" if self.roles else ""
        shapes = [(block, m) if ta else (m, block), (n, block) if tb else (block, n)]
        lines = [f"{x} = tile.alloc({shape}, {tile_name(dtype)}, layout=tile.auto)" for x, shape in zip((s, t), shapes)]
        lines += [f"{name} = tile.zeros(({m}, {n}), {tile_name(sums)})",
                  f"for {i} in tile.pipelined(range(0, {k} + zero, {block}), stages={stages}{roles}):",
                  f"    tile.copy_async({s}, {first}[{f'{i}:{i} + {block}, 0:{m}' if ta else f'0:{m}, {i}:{i} + {block}'}])",
                  f"    tile.copy_async({t}, {second}[{f'0:{n}, {i}:{i} + {block}' if tb else f'{i}:{i} + {block}, 0:{n}'}])",
                  f"    {name} = tile.dot({s}, {t}, {name}{', trans_a=True' if ta else ''}{', trans_b=True' if tb else ''}"
                  f"{', precision=' + repr('tf32') if dtype == 'float32' else ''})"]
        x, y = (v.T if turned else v for v, turned in ((a, ta), (b, tb)))
        want = (x.astype(np.float64) @ y.astype(np.float64) * (k > 0)).astype(np_dtype(sums))
        if self.extra.random() < 0.3:
            more, want = self.change(name, want, is_float(sums))
            lines += more
        self.variables[name] = Node(name, (m, n), sums, lambda env: env[name])

        def run(env):
            env[name] = want, 0.0
        return Statement(lines, run)

    def change(self, name: str, value: np.ndarray, floats: bool) -> tuple[list[str], np.ndarray]:
        """A loop that changes a product, in all trips or in each other one; its body often stands several times in the
        code. And the value after it, which is exact."""
        i, trips, each = self.name("i"), self.extra.randint(0, 5), self.extra.choice((1, 1, 2))
        head = self.extra.choice((f"tile.range(0, {trips} + zero, 1, unroll={self.extra.choice((2, 3, 4))})",) * 3
                                 + (f"range({trips} + zero)", f"tile.static_range({trips})"))
        by, added = (-0.5, "") if floats else (3, f" + {i}")
        for n in range(0, trips, each):
            value = value * value.dtype.type(by) + value.dtype.type(0 if floats else n)
        change = f"{name} = {name} * {by}{added}"
        body = [f"    {change}"] if each == 1 else [f"    if {i} % 2 == zero:", f"        {change}"]
        return [f"for {i} in {head}:", *body], value

    def staged(self, i: str, shape: tuple, dtype: str):
        """A copy in the loop's body to a separate buffer: its statements, the buffer's declaration, and the values that
        iteration `at` loads."""
        rows, columns = shape
        s, at = self.name("s"), self.name("i")
        text, function = self.r.choice(((f"{i}", lambda n: n), (f"{i} * {rows}", lambda n: n * rows), (f"{i} % 3 + 1", lambda n: n % 3 + 1),
                                        (f"{i} * 2 if {i} % 2 == 0 else 3 - {i}", lambda n: n * 2 if n % 2 == 0 else 3 - n),
                                        ("branch", None), ("pid", None), ("loop", None)))
        lines = [f"{at} = {text}"]
        if text == "branch":
            lines, function = [f"{at} = {i} * 2", f"if {i} > 1:", f"    {at} = 5 - {i}"], lambda n: 5 - n if n > 1 else n * 2
        elif text == "pid":
            lines, function = [f"{at} = {i} + pid * 3"], None
        elif text == "loop":
            k = self.name("i")
            lines, function = [f"{at} = 0", f"for {k} in range({i} % 3 + zero):", f"    {at} = {at} + {k} + 1"], lambda n: sum(range(n % 3 + 1))
        widths = (columns, columns, columns + 16, 2 * columns, columns if self.roles else max(1, columns - 3))
        full = self.r.choice((3, rows, 4 * rows, 8 * rows + 1)), self.r.choice(widths)
        array_name = self.name("a")
        array = self.args[array_name] = self.array(full, dtype)
        left = self.r.choice((0, 0, full[1] - columns if full[1] > columns else 0, 16 if not self.roles else 0))
        lines.append(f"tile.copy_async({s}, {array_name}[{at}:{at} + {rows}, zero + {left}:zero + {left} + {columns}])")

        def values(env, n):
            top = n + int(env["pid"]) * 3 if function is None else function(n)
            out = np.zeros(shape, array.dtype)
            inner = [slice(max(0, b), max(0, min(size, b + e))) for b, e, size in zip((top, left), shape, array.shape)]
            if all(c.stop > c.start for c in inner):
                out[tuple(slice(c.start - b, c.stop - b) for c, b in zip(inner, (top, left)))] = array[tuple(inner)]
            return out
        return lines, [f"{s} = tile.alloc({shape}, {tile_name(dtype)}{self.layout(shape, dtype)})"], values
