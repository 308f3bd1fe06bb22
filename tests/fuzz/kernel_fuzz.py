"""Random valid kernels from a seed, with the expected results from NumPy: each piece of source is generated with the values it computes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from fuzz_clusters import Clusters
from fuzz_program import Node, Program, Statement
from fuzz_turns import Turns
from language_reference import is_float, np_dtype, tile_name


class Generator(Clusters):
    """Draws statements, and assembles them into a program."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.tokens = self.r.random() < 0.5    # whether copies are awaited by tokens or by groups
        self.counted = True                    # whether copies at this point may give tokens
        self.recounted = False                 # whether the scope is in a loop, which cannot carry what loops in the scope count
        self.scopes: set[str] = set()          # the scopes drawn so far: another one of the same threads would go on counting
        self.roles = self.r.random() < 0.3 and self.cluster == 1   # whether pipelined loops have a producer, which no cluster barrier may follow
        self.most_warps = self.r.choice((1, 2, 4, 8))
        self.fewest_warps = 1
        self.threads = 1024                    # threads of the scope; for the CTA, an upper bound
        self.meeting: list[tuple] = []         # buffers that collect the results of scopes: (buffer, variable, shape, dtype)

    # -- statements ------------------------------------------------------------------------------------------------------------

    def assign(self, depth: int = 3) -> Statement:
        """A new variable."""
        shape = self.r.choice(self.shapes())
        x = self.full(self.expression(shape, self.r.randint(1, depth)), shape)
        if x.dtype.startswith("float8") and self.r.random() < 0.5:
            x = self.to(x, "float32")
        return self.bind(self.name("v"), x)

    def bind(self, name: str, x: Node) -> Statement:
        def run(env):
            value, slack = x.run(env)
            env[name] = np.array(value), np.array(np.broadcast_to(np.asarray(slack, np.float64), np.shape(value)))
        self.variables[name] = Node(name, x.shape, x.dtype, lambda env: env[name], x.exact, x.product)
        return Statement([f"{name} = {x.text}"], run)

    def stage(self) -> Statement:
        """A tile that goes through shared memory: written, then read in another place, transposed, or gathered."""
        rows, columns = self.r.choice(((self.rows, self.columns), (self.columns, self.rows)))
        x = self.full(self.expression((rows, columns), 2), (rows, columns))
        s, name = self.name("s"), self.name("v")
        h, w = self.r.randint(1, rows), self.r.randint(1, columns)
        top, left = self.r.randint(0, rows - h), self.r.randint(0, columns - w)
        kind = self.r.choice(("box", "gather", "runtime"))
        if not self.takes(8 * rows * columns):
            return self.assign()
        lines = [f"{s} = tile.alloc(({rows}, {columns}), {tile_name(x.dtype)})", f"tile.store({s}[0:{rows}, 0:{columns}], {x.text})", "tile.sync()"]
        if kind == "gather":
            lines.append(f"{name} = tile.load({s}[({rows - 1} - tile.arange({rows}))[:, None], (tile.arange({columns}) * 3 % {columns})[None, :]])")
            pick = lambda v: v[::-1][:, np.arange(columns) * 3 % columns]
            shape = (rows, columns)
        else:
            zero = "zero + " if kind == "runtime" else ""
            lines.append(f"{name} = tile.load({s}[{zero}{top}:{zero}{top + h}, {zero}{left}:{zero}{left + w}])")
            pick = lambda v: v[top:top + h, left:left + w]
            shape = (h, w)
        lines.append("tile.sync()")

        def run(env):
            env[name] = tuple(np.array(pick(np.broadcast_to(v, (rows, columns)))) for v in x.run(env))
        self.variables[name] = Node(name, shape, x.dtype, lambda env: env[name], x.exact, False)
        return Statement(lines, run)

    def reassign(self) -> Statement:
        """Assign to an existing variable, keeping its type."""
        old = self.variable(lambda v: v.text not in self.locked and v.text.startswith("v"))
        if old is None:
            return self.assign()
        x = self.expression(old.shape, 2)
        if is_float(x.dtype) and not x.exact and not is_float(old.dtype):
            x = self.constant(old.dtype)
        if old.dtype.startswith("float8") and not x.exact:
            x = self.constant(old.dtype)
        x = self.full(self.to(x, old.dtype), old.shape)
        statement = self.bind(old.text, x)
        self.variables[old.text].exact = x.exact and old.exact
        self.variables[old.text].product = x.product or old.product
        return statement

    def soften(self) -> None:
        """Before a body that may run several times: mark floats as inexact, since a later iteration starts from inexact ones."""
        for v in self.variables.values():
            if is_float(v.dtype) and not v.dtype.startswith("float8"):
                v.exact, v.product = False, True

    def body(self, count: int) -> list[Statement]:
        """Statements of a branch or loop. Names that they define are undefined afterwards."""
        before = set(self.variables)
        self.depth += 1
        counted, self.counted = self.counted, self.counted and not self.recounted
        statements = [self.statement() for _ in range(count)] + [self.reassign()]
        self.counted = counted
        self.depth -= 1
        for name in set(self.variables) - before:
            del self.variables[name]
        return statements

    def loop(self) -> Statement:
        self.soften()
        index, trips = self.name("i"), self.r.choice((0, 1, 2, 3, 4))
        start, step = self.r.choice((0, 1, -2)), self.r.choice((1, 2))
        stop = start + trips * step - (1 if step == 2 and trips else 0)
        over = range(start, stop, step)
        head = self.r.choice((f"range({start}, {stop}, {step})", f"range({start} + zero, {stop} + zero, {step})",
                              f"range({start}, {stop} + zero, {step} + zero)",
                              f"tile.static_range({start}, {stop}, {step})",
                              f"tile.range({start}, {stop} + zero, {step}, unroll=2)"))
        if not over and "zero" not in head:
            head = f"range({start} + zero, {stop} + zero, {step})"
        self.variables[index] = Node(index, None, "int32", lambda env: env[index])
        self.locked.add(index)
        leave = self.r.random() < 0.3
        at = self.r.choice((start, start + step))
        word = self.r.choice(("break", "continue"))
        around, self.copies = self.copies, self.copies * (max(len(over), 1) if "static" in head else 1)
        inner = self.body(self.r.randint(0, 2))
        self.copies = around
        del self.variables[index]
        cut = self.r.randint(0, len(inner))
        # the index is used as a strong int32, which a static range's is not
        lines = [f"for {index}_ in {head}:", f"    {index} = tile.cast({index}_, tile.int32)"]
        for n, s in enumerate(inner):
            if leave and n == cut:
                lines += [f"    if {index} == {at} + zero:", f"        {word}"]
            lines += ["    " + line for line in s.lines]

        def run(env):
            for i in over:
                env[index] = np.array(i, np.int32), 0.0
                for n, s in enumerate(inner):
                    if leave and n == cut and i == at:
                        break
                    s.run(env)
                else:
                    continue
                if word == "break":
                    break
        return Statement(lines, run)

    def walk(self) -> Statement:
        """A loop with a runtime trip count that may be left early."""
        self.soften()
        k, count = self.name("i"), self.count_of(self.r.choice((1, 3, 4)))
        self.variables[k] = Node(k, None, "int32", lambda env: env[k])
        self.locked.add(k)
        inner = self.body(self.r.randint(0, 2))
        del self.variables[k]
        cut, word, at = self.r.randint(0, len(inner)), self.r.choice(("break", "continue", "pass")), self.r.choice((0, 1, 2))
        head = self.r.choice(([f"{k} = {count.text}", f"while {k} > 0:", f"    {k} = {k} - 1"],
                              [f"{k} = {count.text}", "while True:", f"    if {k} <= 0:", "        break", f"    {k} = {k} - 1"],
                              [f"for {k} in range({count.text} - 1, -1, -1):"]))
        lines = [*head, *("    " + line for s in inner[:cut] for line in s.lines), f"    if {k} == {at}:", f"        {word}",
                 *("    " + line for s in inner[cut:] for line in s.lines)]

        def run(env):
            for n in reversed(range(int(count.run(env)[0]))):
                env[k] = np.array(n, np.int32), 0.0
                for s in inner[:cut]:
                    s.run(env)
                if n == at and word == "break":
                    break
                if n == at and word == "continue":
                    continue
                for s in inner[cut:]:
                    s.run(env)
        return Statement(lines, run)

    def branch(self) -> Statement:
        """An `if` whose condition is uniform over the CTA."""
        steers = self.count_of(2)
        steered = f"{steers.text} == 1", lambda e: int(steers.run(e)[0]) == 1
        test = steered if self.r.random() < 0.4 else self.r.choice((
            ("pid % 2 == 0", lambda e: e["pid"] % 2 == 0), ("pid > 0", lambda e: e["pid"] > 0), ("zero == 0", lambda e: True),
            ("zero > pid", lambda e: False), ("yes", lambda e: True), ("not yes", lambda e: False),
            ("zero == 0 and pid < 2", lambda e: e["pid"] < 2)))
        self.soften()
        then = self.body(self.r.randint(0, 2))
        orelse = self.body(self.r.randint(0, 1)) if self.r.random() < 0.6 else []
        lines = [f"if {test[0]}:", *("    " + line for s in then for line in s.lines)]
        if orelse:
            lines += ["else:", *("    " + line for s in orelse for line in s.lines)]

        def run(env):
            for s in then if test[1](env) else orelse:
                s.run(env)
        return Statement(lines, run)

    def statement(self) -> Statement:
        kinds = [self.assign, self.assign, self.reassign, self.stage, self.shared, self.shared, self.store_out, self.atomic,
                 self.divergent, self.scalar, self.sums]
        if self.threads >= 32:
            kinds.append(self.product)
        if self.depth < 2:
            kinds += [self.loop, self.branch, self.walk]
            if self.threads == 1024:
                kinds += [self.scoped, self.pipelined, self.pipelined_product]
        return self.r.choice(kinds)()

    def asynchronous(self) -> Statement:
        """A statement that barriers of its own accompany, which stands outside of loops and narrower scopes."""
        kinds = [*[self.refilled] * 3, *[self.multiply] * 3, *[self.handed] * 5, *[self.stored_out] * 3, self.prefetched,
                 self.prefetched, self.patches, self.gathered, self.by_map,
                 self.by_wgmma, self.by_wgmma, self.packed, self.scheduled]
        return self.r.choice(kinds + [self.exchange] * (12 if self.cluster > 1 else 0))()

    # -- the program -----------------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        statements = [self.assign(1), self.assign(2)]
        later = [self.statement] * self.r.randint(1, 5) + [self.asynchronous] * self.r.randint(1, 3)
        self.r.shuffle(later)
        statements += [draw() for draw in later]
        statements += self.loads_ahead()
        envs = []
        for pid in range(self.ctas):
            env: dict[str, Any] = {"pid": pid}
            for s in statements:
                s.run(env)
            envs.append(env)
        expected, slack, stores = {}, {}, []
        for k, (name, v) in enumerate((n, v) for n, v in self.variables.items() if n.startswith("v")):
            out = f"o{k}"
            expected[out] = np.stack([np.asarray(env[name][0]).astype(np_dtype(v.dtype), copy=False) for env in envs])
            slack[out] = np.stack([np.broadcast_to(np.asarray(env[name][1], np.float64), v.shape) for env in envs])
            stores.append(f"tile.store({out}[pid, {', '.join(f'0:{n}' for n in v.shape)}], {name})")
        for name, array in self.written.items():
            expected[name], slack[name] = array, self.slack.get(name, np.zeros(array.shape))
        known = [f"tile.assume(pid < {self.ctas})", "tile.assume(rep < REPLICAS)"] if self.bounded else []
        lines = ["pid, rep = tile.program_id(0), tile.program_id(1)", *known, *(line for s in statements for line in s.lines), *stores]
        parameters = ", ".join([*self.args, *expected, *self.scratch, "zero", "yes", "REPLICAS: tile.constexpr"])
        replicated = re.compile(rf"\b({'|'.join([*expected, *self.scratch])})\[")
        lines = [replicated.sub(r"\1[rep, ", line) for line in lines]
        source = f"def fuzzed({parameters}):\n    " + "\n    ".join(lines) + "\n"
        # at most 128 registers per thread for the largest tile, with 64-bit elements
        warps = [w for w in (1, 2, 4, 8) if 2 * self.largest <= 128 * 32 * w and w >= self.fewest_warps] or [8]
        options = {"num_warps": self.r.choice(warps)} | ({"cluster": (self.cluster, 1, 1)} if self.cluster > 1 else {})
        return Program(self.seed, source, {**self.args, "zero": 0, "yes": True}, (self.ctas,), options, expected, slack,
                       self.same_bits, self.scratch, self.draws)


def generate(seed: int) -> Program:
    """The program of a seed, the same on every machine."""
    with np.errstate(all="ignore"):
        return (Turns.drawn_for(seed) or Generator(seed)).program()
