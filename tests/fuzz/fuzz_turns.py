"""Random kernels whose CTAs run several programs: roles fill a multiprocessor, and nothing tells CTAs from programs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from fuzz_program import Program
from language_reference import np_dtype

PROBABILITY = 0.04   # of a seed to give such a kernel


class Turns:
    """Draws a kernel of one to three pipelined loops with roles, whose trip counts differ from program to program. Numbers are small integers, so
    that all sums are exact."""

    @classmethod
    def drawn_for(cls, seed: int) -> Turns | None:
        """The kernel of a seed, if it gives one of this kind, by random numbers of its own."""
        r = random.Random(seed ^ 0x7EA5)
        return cls(seed, r) if r.random() < PROBABILITY else None

    def __init__(self, seed: int, r: random.Random):
        self.seed, self.r, self.rng = seed, r, np.random.default_rng([seed, 2])
        self.ctas, self.dtype = r.choice((1, 3, 5, 8)), r.choice(("float16", "bfloat16"))
        self.rows, self.warps = r.choice(((64, 8), (128, 8), (128, 8), (192, 12)))
        self.depth, self.width, self.block = r.choice((32, 64)), r.choice((16, 32, 64)), r.choice((16, 32, 64))
        self.stages = r.choice((1, 2, 2, 3))
        self.args: dict[str, Any] = {}
        self.expected: dict[str, np.ndarray] = {}
        self.lines = ["pid, rep = tile.program_id(0), tile.program_id(1)"]

    def array(self, *shape: int) -> str:
        """An argument, whose elements are all over its bounds by at most a block."""
        name = f"a{len(self.args)}"
        self.args[name] = self.rng.integers(-2, 3, shape).astype(np_dtype(self.dtype))
        return name

    def program(self) -> Program:
        query = self.array(self.ctas * self.rows - self.r.choice((0, 0, 7)), self.depth)
        self.held = self.rows_of(query)
        if self.r.random() < 0.7:
            self.lines.append(f"q = tile.load({query}[pid * {self.rows}:pid * {self.rows} + {self.rows}, 0:{self.depth}])")
            kinds = [self.weigh, self.weigh, self.multiply, self.compare]
        else:
            kinds = [self.multiply, self.compare]
        for n in range(self.r.choice((1, 1, 2, 3))):
            self.r.choice(kinds)(f"v{n}")
        parameters = ", ".join([*self.args, *self.expected, "zero", "yes", "REPLICAS: tile.constexpr"])
        source = f"def fuzzed({parameters}):\n    " + "\n    ".join(self.lines) + "\n"
        slack = {name: np.zeros(array.shape) for name, array in self.expected.items()}
        return Program(self.seed, source, {**self.args, "zero": 0, "yes": True}, (self.ctas,), {"num_warps": self.warps}, self.expected, slack,
                       draws={"tma load"})

    def rows_of(self, name: str) -> np.ndarray:
        """The rows of an argument for each program, [CTAs, rows, columns]; rows beyond the last are 0."""
        array = self.args[name].astype(np.float32)
        padded = np.zeros((self.ctas * self.rows, array.shape[1]), np.float32)
        padded[:len(array)] = array
        return padded.reshape(self.ctas, self.rows, -1)

    def trips(self) -> tuple[str, list[int]]:
        """How many blocks a program's loop takes, as text and by program."""
        pids = range(self.ctas)
        kind = self.r.choice(("same", "index", "none", "table", "growing", "falling"))
        if kind == "table":
            counts = [self.r.randint(0, 4) for _ in pids]
            name = f"a{len(self.args)}"
            self.args[name] = np.array(counts, np.int32)
            return f"tile.load({name}[pid])", counts
        base = self.r.choice((0, 1, 3, 5))
        if kind == "index":
            return f"({base} + pid % 3)", [base + pid % 3 for pid in pids]
        if kind == "growing":
            return f"(pid // 2 + {base % 3})", [pid // 2 + base % 3 for pid in pids]
        if kind == "falling":
            return f"(4 - (pid + {base % 3}) // 2)", [max(4 - (pid + base % 3) // 2, 0) for pid in pids]
        return (f"({base} + zero)", [base] * self.ctas) if kind == "same" else ("(pid % 2 * 3)", [pid % 2 * 3 for pid in pids])

    def head(self) -> tuple[str, list[int], int]:
        """The line of a loop, each program's number of blocks, and how many there are at most."""
        text, counts = self.trips()
        line = (f"for i in tile.pipelined(range(0, {text} * {self.block}, {self.block}), stages={self.stages}, "
                "warp_specialize=True):")
        return line, counts, max(*counts, 1)

    def weigh(self, v: str) -> None:
        """Weights made of one product are the operand of another, as in attention."""
        line, counts, most = self.head()
        keys, values = self.array(most * self.block - self.r.choice((0, 3)), self.depth), self.array(most * self.block, self.width)
        least = self.r.choice((-3, 0, 4))
        self.lines += [f"{v}, {v}_sum = tile.zeros(({self.rows}, {self.width})), tile.zeros(({self.rows},))", line,
                       f"    s = tile.dot(q, tile.load({keys}[i:i + {self.block}, 0:{self.depth}]).T)",
                       f"    p = tile.where(s > {least}, 1.0, 0.0)", f"    {v}_sum = {v}_sum + tile.sum(p, axis=1)",
                       f"    {v} = tile.dot(p.to(q.dtype), tile.load({values}[i:i + {self.block}, 0:{self.width}]), {v})"]
        k, w = np.zeros((most * self.block, self.depth), np.float32), self.args[values].astype(np.float32)
        k[:len(self.args[keys])] = self.args[keys].astype(np.float32)
        weights = [(q @ k[:n * self.block].T > least).astype(np.float32) for q, n in zip(self.held, counts)]
        self.store(v, np.stack([p @ w[:p.shape[1]] for p in weights]))
        sums = np.stack([p.sum(1) for p in weights])
        self.expected[f"{v}_sums"] = sums
        self.lines.append(f"tile.store({v}_sums[rep, pid, 0:{self.rows}], {v}_sum)")

    def multiply(self, v: str) -> None:
        """A product of each program's own rows."""
        line, counts, most = self.head()
        left, right = self.array(self.ctas * self.rows, most * self.block), self.array(most * self.block, self.width)
        self.lines += [f"{v} = tile.zeros(({self.rows}, {self.width}))", line,
                       f"    x = tile.load({left}[pid * {self.rows}:pid * {self.rows} + {self.rows}, i:i + {self.block}])",
                       f"    {v} = tile.dot(x, tile.load({right}[i:i + {self.block}, 0:{self.width}]), {v})"]
        y = self.args[right].astype(np.float32)
        self.store(v, np.stack([x[:, :n * self.block] @ y[:n * self.block] for x, n in zip(self.rows_of(left), counts)]))

    def compare(self, v: str) -> None:
        """The largest of the blocks that threads load."""
        line, counts, most = self.head()
        blocks = self.array(most * self.block, self.width)
        self.lines += [f"{v} = tile.full(({self.block}, {self.width}), -9.0, tile.float32)", line,
                       f"    {v} = tile.maximum({v}, tile.load({blocks}[i:i + {self.block}, 0:{self.width}]).to(tile.float32))"]
        x = self.args[blocks].astype(np.float32).reshape(most, self.block, self.width)
        self.store(v, np.stack([np.max(x[:n], axis=0, initial=-9.0) for n in counts]))

    def store(self, v: str, want: np.ndarray) -> None:
        """Store a result in one of several ways, some of which take it through shared memory."""
        _, rows, columns = want.shape
        kind = self.r.choice(("plain", "turned", "columns", "scaled", "branch"))
        if kind == "columns":
            self.expected[f"{v}_columns"] = want.sum(1)
            self.lines.append(f"tile.store({v}_columns[rep, pid, 0:{columns}], tile.sum({v}, axis=0))")
        elif kind == "scaled":
            factors = self.array(columns)
            want = want * self.args[factors].astype(np.float32)
            self.lines.append(f"{v} = {v} * tile.load({factors}[0:{columns}]).to(tile.float32)[None, :]")
        elif kind == "branch":
            want = np.where((np.arange(self.ctas) % 2 == 1)[:, None, None], want * 2 + 1, want)
            self.lines += ["if pid % 2 == 1:", f"    {v} = {v} * 2.0 + 1.0"]
        if kind == "turned":
            self.expected[f"{v}_out"] = want.transpose(0, 2, 1).copy()
            self.lines.append(f"tile.store({v}_out[rep, pid, 0:{columns}, 0:{rows}], {v}.T)")
        else:
            self.expected[f"{v}_out"] = want
            self.lines.append(f"tile.store({v}_out[rep, pid, 0:{rows}, 0:{columns}], {v})")
