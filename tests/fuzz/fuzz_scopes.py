"""Random code in narrower scopes: warps, groups of warps, single threads, and scalar programs that diverge by thread."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from fuzz_memory import Memory, changed
from fuzz_program import Node, Statement
from language_reference import np_dtype, tile_name

SCALARS = ("int32", "uint32", "int64", "int16", "uint8")


class Scopes(Memory):
    """Draws statements of narrower scopes than the CTA."""

    def scoped(self) -> Statement:
        """Sibling scopes with their own variables, whose results are combined in shared memory."""
        kind = self.r.choice(("warp", "warps", "thread", "elect", "warpgroup", "threads"))
        parts = {"warp": (1, 2, 3), "warps": (1, 2), "thread": (1, 2), "elect": (1,), "warpgroup": (1, 2), "threads": (1,)}[kind]
        lines, runs = [], []
        for k in range(self.r.choice(parts)):
            head, threads, last = {"warp": (f"with tile.warp({k}):", 32, k + 1), "warps": (f"with tile.warp(range({2 * k}, {2 * k + 2})):", 64, 2 * k + 2),
                                   "thread": (f"with tile.thread({37 * k}):", 1, k * 37 // 32 + 1), "elect": ("with tile.elect():", 1, 1),
                                   "warpgroup": (f"with tile.warpgroup({k}):", 128, 4 * k + 4),
                                   "threads": ("with tile.thread(range(0, 32)):", 32, 1)}[kind]
            if self.most_warps < last:
                break
            self.fewest_warps = max(self.fewest_warps, last)
            inner, run = self.part(threads, head)
            lines += [head, *("    " + line for line in inner)]
            runs.append(run)
        if not runs:
            return self.assign()
        meets = [self.met(s, name, shape, dtype) for s, name, shape, dtype in self.meeting[-len(runs):]]
        heads = [h for h, _ in meets]
        lines = heads + lines + ["tile.sync()", *(line for _, tail in meets for line in tail), "tile.sync()"]

        def run_all(env):
            for run in runs:
                run(env)
        return Statement(lines, run_all)

    def met(self, s, name, shape, dtype):
        self.variables[name] = Node(name, shape, dtype, lambda env: env[name])
        return f"{s} = tile.alloc({shape}, {tile_name(dtype)})", [f"{name} = tile.load({s})"]

    def part(self, threads: int, head: str):
        """The statements of a scope with this number of threads, and a result in shared memory."""
        outer, limits, rows, columns, around = dict(self.variables), self.limit, self.rows, self.columns, self.threads
        self.threads = threads
        self.variables = {n: v for n, v in outer.items() if v.shape is None and n.startswith("i")}  # loop indices of the enclosing scope
        self.limit = min(self.limit, 32 * threads if threads > 1 else 8)
        self.rows, self.columns = self.r.choice((1, 2, 4, 5) if threads > 1 else (1, 2)), self.r.choice((8, 16, 31, 32) if threads > 1 else (1, 3, 4))
        counting = self.counted, self.recounted
        self.counted, self.recounted = head not in self.scopes, bool(self.variables)
        self.scopes.add(head)
        self.depth += 1
        before, largest = len(self.meeting), self.largest
        statements = [self.assign(1), *(self.r.choice((self.assign, self.reassign, self.stage, self.loop if self.depth < 3 else self.assign))()
                                        for _ in range(self.r.choice((0, 1, 2))))]
        self.depth -= 1
        self.counted, self.recounted = counting
        del self.meeting[before:]
        self.largest = largest
        found = [v for n, v in self.variables.items() if n.startswith("v") and v.exact]
        x = self.r.choice(found) if found else self.full(self.constant("int32"), (4,))
        self.variables, self.limit, self.rows, self.columns, self.threads = outer, limits, rows, columns, around
        s, name = self.name("s"), self.name("v")
        self.meeting.append((s, name, x.shape, x.dtype))
        lines = [line for st in statements for line in st.lines] + [f"tile.store({s}, {x.text})"]

        def run(env):
            inner = {n: v for n, v in env.items() if not n.startswith("v")}
            for st in statements:
                st.run(inner)
            env[name] = np.array(np.broadcast_to(x.run(inner)[0], x.shape)), 0.0
        return lines, run

    # -- scalar programs ---------------------------------------------------------------------------------------------------------

    def divergent(self) -> Statement:
        """A scalar program that diverges by thread. NumPy runs the same text once for each thread."""
        n = self.r.choice((1, 7, 31, 32)) if self.threads >= 32 else 1
        dtype = self.r.choice(SCALARS)
        s, h, name = self.name("s"), self.name("s"), self.name("v")
        data = self.name("a")
        self.args[data] = self.array((23,), dtype)
        program = Scalars(self.r, dtype, data, s, h, self.prefix())
        inner = program.block(self.r.randint(2, 5), 0)
        t = program.thread
        counts = self.output((self.ctas, 8), "int32")
        body = [f"{t} = tile.thread_id(scope='scope')", f"if {t} < {n}:", *("    " + line for line in [*program.first, *inner, *program.last])]
        lines = [f"{s} = tile.alloc((32,), {tile_name(dtype)})", f"tile.store({s}, tile.full((32,), 0, {tile_name(dtype)}))",
                 f"{h} = tile.alloc((8,), tile.int32)", f"tile.store({h}, tile.full((8,), 0, tile.int32))", "tile.sync()", *body, "tile.sync()",
                 f"{name} = tile.load({s})", f"tile.store({counts}[pid, 0:8], tile.load({h}))", "tile.sync()"]
        code = compile(textwrap.dedent("\n".join(body)), f"<scalars of seed {self.seed}>", "exec")

        def run(env):
            memory, counters = np.zeros(32, np_dtype(dtype)), np.zeros(8, np.int32)
            outer = {k: v[0][()] for k, v in env.items() if k.startswith("i")}
            with np.errstate(all="ignore"):
                for thread in range(n):
                    exec(code, {"tile": Shim(thread), s: Place(memory), h: Place(counters), data: Place(self.args[data]), "pid": np.int32(env["pid"]),
                                "zero": np.int32(0), **outer})
            env[name] = memory, 0.0
            self.written[counts][env["pid"]] = counters
        self.variables[name] = Node(name, (32,), dtype, lambda env: env[name])
        return Statement(lines, run)

    def prefix(self) -> str:
        self.count += 1
        return f"x{self.count}_"


class Scalars:
    """Draws a scalar program. Every assignment casts, so that Python's and NumPy's numbers wrap alike."""

    def __init__(self, r, dtype: str, data: str, s: str, h: str, prefix: str):
        self.r, self.dtype, self.data, self.s, self.h, self.prefix = r, dtype, data, s, h, prefix
        self.thread = f"{prefix}t"
        self.names = [f"{prefix}{k}" for k in "abc"]
        self.first = [f"{n} = {self.cast(self.value(0, [self.thread]))}" for n in self.names]
        self.last = [f"tile.store({s}[{self.thread}], {self.r.choice(self.names)})"]
        self.count = 0

    def cast(self, text: str) -> str:
        return f"tile.cast({text}, {tile_name(self.dtype)})"

    def value(self, depth: int, names) -> str:
        r = self.r
        if depth <= 0:
            return r.choice((r.choice(names), r.choice(names), str(r.choice((0, 1, 2, 3, 7, 11)))))
        a, b = self.value(depth - 1, names), self.value(depth - 1, names)
        wide = lambda x: f"tile.cast({x}, tile.int64)"
        return r.choice((f"({wide(a)} + {wide(b)})", f"({wide(a)} * {wide(b)})", f"({wide(a)} - {wide(b)})", f"({wide(a)} % {r.choice((2, 3, 5, 7))})",
                         f"({wide(a)} // {r.choice((2, 3, -2))})", f"({wide(a)} ^ {wide(b)})", f"({wide(a)} & {wide(b)})", f"({wide(a)} >> {r.choice((1, 3))})",
                         f"tile.load({self.data}[{self.place(names, 23)}])", f"tile.minimum({wide(a)}, {wide(b)})", f"tile.maximum({wide(a)}, {wide(b)})",
                         f"({wide(a)} if {self.test(names)} else {wide(b)})", f"tile.where({self.test(names)}, {wide(a)}, {wide(b)})"))

    def place(self, names, n: int) -> str:
        return f"tile.cast(tile.cast({self.r.choice(names)}, tile.int64) % {n}, tile.int32)"

    def test(self, names) -> str:
        r = self.r
        x = f"tile.cast({r.choice(names)}, tile.int64)"
        simple = f"({x} % {r.choice((2, 3))} == {r.choice((0, 1))})", f"({x} > {r.choice((0, 5, 20))})"
        return r.choice((*simple, f"({simple[0]} and {simple[1]})", f"({simple[0]} or not {simple[1]})"))

    def block(self, count: int, depth: int, looped: bool = False) -> list[str]:
        kinds = ["assign"] * 4 + ["store", "count"] + (["if", "if", "for", "while"] if depth < 3 else []) + (["leave"] if looped else [])
        lines = []
        for _ in range(count):
            lines += getattr(self, f"make_{self.r.choice(kinds)}")(depth, looped)
        return lines

    def make_assign(self, depth, looped):
        return [f"{self.r.choice(self.names)} = {self.cast(self.value(self.r.randint(1, 2), [*self.names, self.thread]))}"]

    def make_store(self, depth, looped):
        return [f"tile.store({self.s}[{self.thread}], {self.cast(self.value(1, self.names))})"]

    def make_count(self, depth, looped):
        return [f"tile.atomic_add({self.h}[{self.place([*self.names, self.thread], 8)}], {self.r.choice((1, 3))})"]

    def make_if(self, depth, looped):
        lines = [f"if {self.test([*self.names, self.thread])}:", *indented(self.block(self.r.randint(1, 2), depth + 1, looped))]
        if self.r.random() < 0.5:
            lines += ["else:", *indented(self.block(1, depth + 1, looped))]
        return lines

    def make_for(self, depth, looped):
        self.count += 1
        i = f"{self.prefix}i{self.count}"
        bounds = self.r.choice((self.place([*self.names, self.thread], 4), f"0, {self.place(self.names, 5)}, 2",
                                f"{self.place(self.names, 4)}, -1, -1", "2", "0"))
        changed_by = f"{self.r.choice(self.names)} = {self.cast(f'tile.cast({i}, tile.int64) + {self.r.choice(self.names)}')}"
        return [f"for {i} in range({bounds}):", *indented([changed_by, *self.block(self.r.randint(1, 2), depth + 1, True)])]

    def make_while(self, depth, looped):
        self.count += 1
        k = f"{self.prefix}k{self.count}"
        return [f"{k} = {self.place([*self.names, self.thread], 5)}", f"while {k} > 0:", f"    {k} = {k} - 1",
                *indented(self.block(self.r.randint(1, 2), depth + 1, True))]

    def make_leave(self, depth, looped):
        return [f"if {self.test([*self.names, self.thread])}:", f"    {self.r.choice(('break', 'continue'))}"]


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


class Place:
    """An array whose items are memory locations, for `Shim`."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __getitem__(self, at):
        return self.array, int(at)


class Shim:
    """The functions of `tile` that a scalar program calls, as executed by one thread."""

    minimum, maximum = staticmethod(min), staticmethod(max)

    def __init__(self, thread: int):
        self.thread = thread

    def __getattr__(self, name: str) -> Any:
        return np_dtype(name)

    def thread_id(self, scope):
        return np.int32(self.thread)

    def cast(self, x, dtype):
        return np.asarray(x).astype(dtype)[()]

    def load(self, place):
        return place[0][place[1]]

    def store(self, place, value) -> None:
        place[0][place[1]] = value

    def atomic_add(self, place, value) -> None:
        place[0][place[1]] = changed("add", place[0][place[1]], place[0].dtype.type(value))

    def where(self, test, a, b):
        return a if test else b
