"""Random memory traffic: shared buffers of any layout with varied writes and reads, scatters, atomics, and outputs with ragged edges."""

from __future__ import annotations

from math import gcd

import numpy as np
from fuzz_expressions import INTS
from fuzz_program import Node, Statement
from fuzz_shapes import Shapes
from language_reference import bits, cast, is_float, np_dtype, tile_name

ATOMICS = {"add": ("int32", "uint32", "int64", "uint64", "float32", "float64", "float16"),
           "max": ("int32", "uint32", "int64", "uint64", "float32", "float64"),
           "and": ("int32", "uint32", "int64", "uint64"), "inc": ("uint32",), "dec": ("uint32",), "exch": ("int32", "uint64", "float32"),
           "cas": ("int32", "uint32", "int64", "uint64")}
ATOMICS |= {"min": ATOMICS["max"], "or": ATOMICS["and"], "xor": ATOMICS["and"]}


SHARED = 232448        # bytes of shared memory that a CTA of sm_90 may have
SCRATCH = 48 << 10     # of them, for what the compiler needs besides the buffers and operands drawn


class Memory(Shapes):
    """Draws statements that move tiles through shared memory and to separate outputs."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.left = SHARED - SCRATCH   # bytes of shared memory that later statements may take
        self.copies = 1                # how often the statement drawn now stands in the kernel, as unrolled loops repeat it

    def takes(self, nbytes: int) -> bool:
        """Whether a statement with `nbytes` of shared memory of its own fits; if so, they are taken."""
        fits = nbytes * self.copies <= self.left
        self.left -= nbytes * self.copies * fits
        return fits

    def output(self, shape: tuple, dtype: str) -> str:
        """A new output, initially zero, that all CTAs write."""
        name = self.name("w")
        self.written[name] = np.zeros(shape, np_dtype(dtype))
        return name

    def layout(self, shape: tuple, dtype: str, plain: bool = False) -> str:
        """The layout argument of `tile.alloc` for a matrix; `plain` for one that supports views."""
        (r, c), size = shape, bits(dtype) // 8
        pad = self.r.choice((0, 1, 3, 16 // size))
        found = ["", f", layout=tile.TileLayout((({r}, {c + pad}, 'm'), ({c}, 1, 'm')))",
                 f", layout=tile.TileLayout((({r}, 1, 'm'), ({c}, {r + pad}, 'm')))"]
        found += [f", layout=tile.swizzled({tile_name(dtype)}, {shape}, {mode})" for mode in (0, 32, 64, 128)
                  if not mode or r % 8 == 0 and c * size % mode == 0 for _ in range(2)]
        return self.r.choice(found if plain else [*found, ", layout=tile.auto"])

    def permutation(self, n: int) -> tuple[str, np.ndarray]:
        """An index tile [n] that is a permutation of 0 to n - 1."""
        a, b = self.r.choice([k for k in (1, 3, 5, 7, n - 1) if k > 0 and gcd(k, n) == 1] or [1]), self.r.randrange(n)
        return f"((tile.arange({n}) * {a} + {b}) % {n})", (np.arange(n) * a + b) % n

    def matrix(self) -> tuple[int, int]:
        larger = self.r.choice((8, 16, 24)), self.r.choice((16, 32, 64, 128))
        if self.r.random() < 0.5 or larger[0] * larger[1] > self.limit:
            return self.r.choice(((self.rows, self.columns), (self.columns, self.rows)))
        return larger

    # -- shared buffers --------------------------------------------------------------------------------------------------------

    def shared(self) -> Statement:
        """A matrix in shared memory, filled in one random way and read in another."""
        shape = rows, columns = self.matrix()
        if not self.takes(8 * (rows * columns + (rows + 8) * (columns + 16))):
            return self.assign()
        s, name = self.name("s"), self.name("v")
        fill = self.r.choice((self.fill_store, self.fill_copy, self.fill_rows, self.fill_scatter))
        lines, dtype, contents = fill(s, shape)
        read = self.r.choice((self.read_box, self.read_box, self.read_points, self.read_through, self.read_permuted, self.read_viewed,
                              self.read_rows, self.write_out))
        if read == self.read_viewed and fill in (self.fill_store, self.fill_scatter) and is_float(dtype):
            read = self.read_box  # the bits of a computed NaN are unspecified
        plain = read in (self.read_permuted, self.read_viewed)
        if read == self.read_viewed:
            layout = ""
        else:
            layout = self.layout(shape, dtype, plain)
        head = f"{s} = tile.alloc(({rows}, {columns}), {tile_name(dtype)}{layout})"
        more, shape_read, dtype_read, pick = read(s, name, shape, dtype)

        def run(env):
            value = np.broadcast_to(contents(env)[0], shape).astype(np_dtype(dtype), copy=False)
            if (got := pick(value, env)) is not None:
                env[name] = np.array(got), 0.0
        if shape_read is not None:
            self.variables[name] = Node(name, shape_read, dtype_read, lambda env: env[name])
        return Statement([head, *lines, *more, "tile.sync()"], run)

    def settled_tile(self, shape: tuple, depth: int = 2) -> Node:
        """A tile whose bits are exact."""
        self.note(shape)
        x = self.expression(shape, depth)
        return self.full(x if x.exact else self.load(shape), shape)

    def fill_store(self, s, shape):
        x = self.settled_tile(shape)
        return [f"tile.store({s}, {x.text})", "tile.sync()"], x.dtype, x.run

    def fill_copy(self, s, shape):
        """Fill by an asynchronous copy from global memory, and wait for it."""
        text, dtype, inside = self.region(shape)
        kind = self.r.choice(("copy", "async"))
        if kind == "copy" or self.tokens and not self.counted:
            lines = [f"tile.copy({s}, {text})", "tile.sync()"]
        elif self.tokens:
            done = self.name("t")
            lines = [f"{done} = tile.copy_async({s}, {text})", f"{done}.wait()"]
        else:
            lines = [f"tile.copy_async({s}, {text})", "tile.cp_async_commit()", "tile.cp_async_wait(0)", "tile.sync()"]
        return lines, dtype, lambda env: (inside(env, 0), 0.0)

    def fill_rows(self, s, shape):
        """Fill row by row or column by column, in a loop."""
        along = self.r.randrange(2)
        i, n = self.name("i"), shape[along]
        head = self.r.choice((f"range({n})", f"range({n - 1}, -1, -1)", f"range(zero, {n} + zero)", f"tile.range({n}, unroll=3)"))
        place = f"{s}[{i}, 0:{shape[1]}]" if along == 0 else f"{s}[0:{shape[0]}, {i}]"
        index = f"[{i}:{i} + 1, 0:{shape[1]}]" if along == 0 else f"[0:{shape[0]}, {i}:{i} + 1]"
        text, dtype, inside = self.region(shape)
        lines = [f"for {i} in {head}:", f"    tile.store({place}, tile.reshape(tile.load({text}{index}), ({shape[1 - along]},)))", "tile.sync()"]
        return lines, dtype, lambda env: (inside(env, 0), 0.0)

    def fill_scatter(self, s, shape):
        x = self.settled_tile(shape)
        (rows, p), (columns, q) = (self.permutation(n) for n in shape)

        def run(env):
            out = np.empty(shape, np_dtype(x.dtype))
            out[p[:, None], q[None, :]] = np.broadcast_to(x.run(env)[0], shape)
            return out, 0.0
        return [f"tile.store({s}[{rows}[:, None], {columns}[None, :]], {x.text})", "tile.sync()"], x.dtype, run

    def box(self, shape) -> tuple[str, tuple, tuple]:
        rows, columns = shape
        h, w = self.r.randint(1, rows), self.r.choice((columns, self.r.randint(1, columns)))
        top, left = self.r.randint(0, rows - h), self.r.randint(0, columns - w)
        zero = self.r.choice(("", "zero + "))
        return f"{zero}{top}:{zero}{top + h}, {zero}{left}:{zero}{left + w}", (slice(top, top + h), slice(left, left + w)), (h, w)

    def read_box(self, s, name, shape, dtype):
        text, at, got = self.box(shape)
        return [f"{name} = tile.load({s}[{text}])"], got, dtype, lambda v, env: v[at]

    def read_points(self, s, name, shape, dtype):
        (rows, p), (columns, q) = (self.permutation(n) for n in shape)
        if self.r.random() < 0.5:
            return [f"{name} = tile.load({s}[{rows}, 0:{shape[1]}])"], shape, dtype, lambda v, env: v[p]
        return [f"{name} = tile.load({s}[{rows}[:, None], {columns}[None, :]])"], shape, dtype, lambda v, env: v[p[:, None], q[None, :]]

    def read_through(self, s, name, shape, dtype):
        """Read through part of a second buffer with another layout."""
        other = self.name("s")
        text, at, (h, w) = self.box(shape)
        larger = (h + self.r.choice((0, 1, 8)), w + self.r.choice((0, 2, 16)))
        top, left = self.r.randint(0, larger[0] - h), self.r.randint(0, larger[1] - w)
        inner = f"{other}[{top}:{top + h}, {left}:{left + w}]"
        self.note(larger)
        lines = [f"{other} = tile.alloc({larger}, {tile_name(dtype)}{self.layout(larger, dtype)})", f"tile.copy({inner}, {s}[{text}])", "tile.sync()",
                 f"{name} = tile.load({inner})"]
        return lines, (h, w), dtype, lambda v, env: v[at]

    def read_permuted(self, s, name, shape, dtype):
        text, at, got = self.box(shape[::-1])
        return [f"{name} = tile.load({s}.permute((1, 0))[{text}])"], got, dtype, lambda v, env: v.T[at]

    def read_viewed(self, s, name, shape, dtype):
        """Read the bytes with another shape, or as integers."""
        rows, columns = shape
        if self.r.random() < 0.5 or dtype == "bool":
            text, at, got = self.box((columns, rows))
            return [f"{name} = tile.load({s}.reshape(({columns}, {rows}))[{text}])"], got, dtype, lambda v, env: v.reshape(columns, rows)[at]
        row = columns * bits(dtype) // 8
        kind = self.r.choice([k for k in INTS if row % (bits(k) // 8) == 0])
        n = row // (bits(kind) // 8)
        self.note((rows, n))
        return ([f"{name} = tile.load({s}.view({tile_name(kind)}, ({rows}, {n})))"], (rows, n), kind,
                lambda v, env: np.ascontiguousarray(v).view(np.uint8).reshape(rows, row).view(kind))

    def read_rows(self, s, name, shape, dtype):
        """Sums of rows, or the sum of all elements in a loop."""
        i = self.name("i")
        wide = "float32" if is_float(dtype) and bits(dtype) < 64 else "float64" if is_float(dtype) else "int64"
        if is_float(dtype):  # the maximum instead: its bits do not depend on the order
            lines = [f"{name} = tile.full(({shape[1]},), -1000.0, {tile_name(wide)})", f"for {i} in range({shape[0]}):",
                     f"    {name} = tile.maximum({name}, tile.cast(tile.load({s}[{i}, 0:{shape[1]}]), {tile_name(wide)}))"]
            return lines, (shape[1],), wide, lambda v, env: np.maximum(-1000.0, cast(v, wide)).max(axis=0).astype(wide)
        lines = [f"{name} = tile.zeros(({shape[1]},), tile.int64)", f"for {i} in range({shape[0]}):",
                 f"    {name} += tile.cast(tile.load({s}[{i}, 0:{shape[1]}]), tile.int64)"]
        return lines, (shape[1],), wide, lambda v, env: cast(v, wide).sum(axis=0, dtype=np.int64)

    def write_out(self, s, name, shape, dtype):
        """Copy to an output that is slightly smaller or larger."""
        text, at, (h, w) = self.box(shape)
        full = (max(1, h + self.r.choice((0, 0, -1, 2))), max(1, w + self.r.choice((0, 0, -1, 2, 16 - w % 16))))
        top, left = self.r.choice((0, 0, 1, -1)), self.r.choice((0, 0, 1, -2, 4))
        out = self.output((self.ctas, *full), dtype)
        place = f"{out}[pid, zero + {top}:zero + {top} + {h}, zero + {left}:zero + {left} + {w}]"
        if self.r.random() < 0.5 and self.tokens and self.counted:
            done = self.name("t")
            lines = [f"{done} = tile.copy_async({place}, {s}[{text}])", f"{done}.wait()"]
        else:
            lines = [f"tile.copy({place}, {s}[{text}])"]

        def pick(v, env):
            put(self.written[out][env["pid"]], (top, left), v[at])
        return lines, None, dtype, pick

    # -- outputs and atomics ---------------------------------------------------------------------------------------------------

    def store_out(self) -> Statement:
        """Store to an output with another extent, with or without a mask, or scattered."""
        shape = self.r.choice(self.shapes())
        x = self.settled_tile(shape)
        kind = self.r.choice(("edge", "mask", "scatter"))
        if kind == "scatter":
            out = self.output((self.ctas, *shape), x.dtype)
            index, p = self.permutation(shape[0])
            rest = "".join(f", 0:{n}" for n in shape[1:])

            def run(env):
                self.written[out][env["pid"]][p] = np.broadcast_to(x.run(env)[0], shape)
            return Statement([f"tile.store({out}[pid, {index}{rest}], {x.text})"], run)
        full = tuple(max(1, n + self.r.choice((0, -1, 3))) for n in shape)
        starts = tuple(self.r.choice((0, 0, 1, -1, -3)) for _ in shape)
        out = self.output((self.ctas, *full), x.dtype)
        place = ", ".join(f"zero + {s}:zero + {s} + {n}" for s, n in zip(starts, shape))
        mask = self.full(self.make_compare(shape, 1), shape) if kind == "mask" else None

        def run(env):
            keep = None if mask is None else np.broadcast_to(mask.run(env)[0], shape)
            put(self.written[out][env["pid"]], starts, np.broadcast_to(x.run(env)[0], shape), keep)
        return Statement([f"tile.store({out}[pid, {place}], {x.text}{f', mask={mask.text}' if mask else ''})"], run)

    def atomic(self) -> Statement:
        """An atomic operation on points of a shared buffer or of an output that all CTAs modify, with a deterministic result."""
        kind = self.r.choice(list(ATOMICS))
        dtype = self.r.choice(ATOMICS[kind])
        alone = kind in ("exch", "cas") or self.r.random() < 0.3
        near = alone or dtype == "float16" or self.r.random() < 0.5
        shape = (self.r.choice((self.rows, self.columns)),) if alone or dtype == "float16" else self.r.choice(self.shapes())
        size = shape[0] if alone else self.r.choice((3, 16, 37))
        if alone:
            index, places = self.permutation(size)
            at = lambda env: places
        else:
            x = self.full(self.integer(self.expression(shape, 1)), shape)
            index = f"tile.cast({x.text} % {size}, tile.int32)"
            at = lambda env: np.remainder(x.run(env)[0], np.array(size, x.run(env)[0].dtype)).astype(np.int64)
        value = self.settled_tile(shape, 1)
        value = self.to(self.to(value, "int32") if value.dtype not in INTS else value, "int8")
        few = Node(f"(({value.text}) & 7)", shape, "int8", lambda env: (value.run(env)[0] & np.int8(7), 0.0))
        operand = few if kind not in ("inc", "dec") else Node("tile.cast(5, tile.uint32)", None, "uint32", lambda env: (np.uint32(5), 0.0))
        operand = self.full(self.to(operand, dtype), shape)
        mask = self.full(self.make_compare(shape, 0), shape) if self.r.random() < 0.3 else None
        extra = f", mask={mask.text}" if mask else ""
        order = self.r.choice(("", "", ", scope='sys'")) if not near else self.r.choice(("", ", scope='cta'"))
        name, s = self.name("v"), self.name("s")
        if near:
            place, lines = s, [f"{s} = tile.alloc(({size},), {tile_name(dtype)})",
                               f"tile.store({s}, tile.cast(tile.arange({size}) % 4, {tile_name(dtype)}))", "tile.sync()"]
        else:
            place, lines = self.output((size,), dtype), []
        arguments = f"tile.cast(2, {tile_name(dtype)}), {operand.text}" if kind == "cas" else operand.text
        keep_old = alone and near and not mask
        lines.append(f"{f'{name} = ' if keep_old else ''}tile.atomic_{kind}({place}[{index}], {arguments}{extra}{order})")
        if near:
            lines += ["tile.sync()", *([] if keep_old else [f"{name} = tile.load({s})"]), "tile.sync()"]
            after = self.output((self.ctas, size), dtype)
            lines += [f"tile.store({after}[pid, 0:{size}], tile.load({s}))", "tile.sync()"]

        def run(env):
            memory = cast(np.arange(size, dtype=np.int32) % 4, dtype) if near else self.written[place]
            memory = np.array(memory) if near else memory
            where = np.broadcast_to(at(env), shape).reshape(-1)
            values = np.broadcast_to(operand.run(env)[0], shape).reshape(-1)
            keep = np.ones(shape, bool) if mask is None else np.broadcast_to(mask.run(env)[0], shape)
            before = np.array(memory[where]).reshape(shape)
            for w, v in zip(where[keep.reshape(-1)], values[keep.reshape(-1)]):
                memory[w] = changed(kind, memory[w], v)
            if near:
                self.written[after][env["pid"]] = memory
                env[name] = (before if keep_old else memory.copy()), 0.0
        if near:
            self.variables[name] = Node(name, shape if keep_old else (size,), dtype, lambda env: env[name])
        return Statement(lines, run)


def changed(kind: str, old, value):
    """The value of an element after an atomic operation."""
    with np.errstate(all="ignore"):
        return {"add": lambda: old + value, "max": lambda: max(old, value), "min": lambda: min(old, value), "and": lambda: old & value,
                "or": lambda: old | value, "xor": lambda: old ^ value, "exch": lambda: value, "cas": lambda: value if old == 2 else old,
                "inc": lambda: old + np.uint32(1) if old < value else np.uint32(0),
                "dec": lambda: value if old == 0 or old > value else old - np.uint32(1)}[kind]()


def put(array: np.ndarray, starts: tuple, values: np.ndarray, keep: np.ndarray | None = None) -> None:
    """Write the elements that are in bounds."""
    inner = [slice(max(0, s), max(0, min(n, s + e))) for s, e, n in zip(starts, values.shape, array.shape)]
    if not all(c.stop > c.start for c in inner):
        return
    own = tuple(slice(c.start - s, c.stop - s) for c, s in zip(inner, starts))
    part = array[tuple(inner)]
    part[...] = values[own] if keep is None else np.where(keep[own], values[own], part)
