"""Executes emitted product code for all threads in NumPy: the instructions of an emit rule, with their meaning in the PTX ISA.

The simulator works on the values of a product; here the registers and addresses of the emitted code itself are followed.
"""

import re

import numpy as np
from tilejit.emit.tiles import register_table
from tilejit.ir.graph import Const
from tilejit.layout import thread_table
from tilejit.ops.memory import ldmatrix, stmatrix
from tilejit.types import Tile

G, T = np.arange(32) // 4, np.arange(32) % 4  # groupID and threadID_in_group

# Row and column of element i of a fragment, for the 32 lanes (PTX ISA, "Matrix Fragments for mma.m16n8k16" and the others).
FRAGMENTS = {
    "m16n8k16": (lambda i: (G + 8 * (i % 4 > 1), 2 * T + i % 2 + 8 * (i > 3)), 8, lambda i: (2 * T + i % 2 + 8 * (i > 1), G), 4),
    "m16n8k8": (lambda i: (G + 8 * (i % 2), T + 4 * (i > 1)), 4, lambda i: (T + 4 * i, G), 2),
    "m16n8k32": (lambda i: (G + 8 * (i // 4 % 2), 4 * T + i % 4 + 16 * (i > 7)), 16, lambda i: (4 * T + i % 4 + 16 * (i > 3), G), 8),
    "m8n8k4": (lambda i: (G, T), 1, lambda i: (T, G), 1),
}


def result(kind, i):
    return (G, 2 * T + i) if kind == "m8n8k4" else (G + 8 * (i > 1), 2 * T + i % 2)


class Threads:
    """An emitter whose values are arrays over the threads, and whose packed words are lists of such arrays."""

    architecture = 120  # one that multiplies float8 natively

    def __init__(self, threads, memory=None):
        self.threads, self.memory = threads, memory
        self.tiles = self.mma = self.warp = self.control = self  # the components

    def lane_id(self):
        return np.arange(self.threads) % 32

    def thread_warp(self):
        return np.arange(self.threads) // 32

    def memoize_for_region(self, key, make):
        return make()

    def shared_base(self):
        return 0

    def const(self, value, dtype):
        return np.full(self.threads, value, np.float64)

    def registers(self, t):
        return len(register_table(t.layout, t.domain))

    def register_coordinates(self, t, r):
        return register_table(t.layout, t.domain)[r]

    def thread_coordinate(self, t, d):
        return np.unravel_index(thread_table(t.layout, t.domain, self.threads)[:, 0], t.domain)[d]

    def warp_coordinate(self, t, d):
        return self.thread_coordinate(t, d)[np.arange(self.threads) // 32 * 32]

    def in_bounds(self, i, n):
        return (i >= 0) & (i < n)

    def select(self, test, a, b):
        return np.where(test, a, b)

    def packed_words(self, values):
        return [tuple(values[i:i + self.per]) for i in range(0, len(values), self.per)]

    def unpacked_words(self, words, dtype):
        return [v for w in words for v in w]

    def asm(self, text, outputs=(), inputs=(), **_):
        if text.startswith("ldmatrix"):
            return self.ldmatrix(text, *inputs)
        if text.startswith("stmatrix"):
            return self.stmatrix(text, *inputs)
        kind = re.match(r"mma\.sync\.aligned\.(\w+)\.row\.col", text)[1]
        return self.multiply(kind, inputs, len(outputs))

    # -- instructions ----------------------------------------------------------------------------------------------------

    def ldmatrix(self, text, address):
        count, constant = int(re.search(r"\.x(\d)", text)[1]), int(re.search(r"\+ (\d+)\]", text)[1])
        at = (address + constant) // self.itemsize
        assert ((address + constant) % 16 == 0).all()
        lane, first, per = np.arange(32), np.arange(self.threads) // 32 * 32, 16 // self.itemsize
        words = []
        for j in range(count):
            starts = at[first[:, None] + 8 * j + np.arange(8)]                 # of the 8 rows, by thread
            rows = self.memory[starts[:, :, None] + np.arange(per)]            # (threads, 8, elements)
            l, n = np.tile(lane, self.threads // 32), np.arange(self.threads)
            if ".trans" in text:
                words.append(tuple(rows[n, 2 * (l % 4) + i, l // 4] for i in range(2)))
            else:
                words.append(tuple(rows[n, l // 4, l % 4 * (per // 4) + i] for i in range(per // 4)))
        return words

    def stmatrix(self, text, address, *words):
        """For 16-bit elements: lane l holds two elements of row l / 4 of each matrix (of column l / 4 with .trans), and provides the address of row
        l % 8 of matrix l / 8."""
        assert len(words) == int(re.search(r"\.x(\d)", text)[1])
        constant = int(re.search(r"\+ (\d+)\]", text)[1])
        at = np.broadcast_to(address + constant, (self.threads,)) // self.itemsize
        assert ((address + constant) % 16 == 0).all()
        thread = np.arange(self.threads)
        for j, word in enumerate(words):
            for i, v in enumerate(word):
                row, column = thread % 32 // 4, thread % 4 * 2 + i
                row, column = (column, row) if ".trans" in text else (row, column)
                self.memory[at[thread // 32 * 32 + 8 * j + row] + column] = v

    def multiply(self, kind, inputs, results):
        a_at, a_count, b_at, b_count = FRAGMENTS[kind]
        m, n, k = map(int, re.match(r"m(\d+)n(\d+)k(\d+)", kind).groups())
        flat = [v for w in inputs for v in (w if isinstance(w, tuple) else (w,))]
        a, b, c = flat[:a_count], flat[a_count:a_count + b_count], flat[a_count + b_count:]
        out = [np.zeros(self.threads) for _ in c]
        for warp in range(self.threads // 32):
            here = slice(32 * warp, 32 * warp + 32)
            x, y, z = np.full((m, k), np.nan), np.full((k, n), np.nan), np.full((m, n), np.nan)
            for matrix, at, values in ((x, a_at, a), (y, b_at, b), (z, lambda i: result(kind, i), c)):
                for i, v in enumerate(values):
                    matrix[at(i)] = v[here]
            z += x @ y
            for i in range(len(c)):
                out[i][here] = z[result(kind, i)]
        return [tuple(out[i:i + len(out) // results]) if len(out) > results else out[i] for i in range(0, len(out), len(out) // results)]


def registers_of(t: Tile, values, threads):
    """The registers of a tile, with garbage in the padding."""
    table = np.stack(np.unravel_index(thread_table(t.layout, t.domain, threads), t.domain))
    inside = np.all([c < n for c, n in zip(table, t.shape)], axis=0)
    clipped = [np.minimum(c, n - 1) for c, n in zip(table, t.shape)]
    return list(np.where(inside, np.asarray(values, np.float64)[tuple(clipped)], np.inf).T)


def load_matrices(call, region, values, threads):
    """A tile that ldmatrix loads from a buffer that contains `values`."""
    buffer, itemsize = region.result.type.buffer, call.result.type.dtype.nbytes
    memory = np.full(buffer.layout.span("m"), np.nan)
    memory[np.asarray(buffer.layout.offset_of(*np.indices(buffer.shape), shape=buffer.shape))] = values
    e = Threads(threads, memory)
    e.itemsize, e.per = itemsize, 4 // itemsize
    source = type("Region", (), {"type": region.result.type, "starts": [s.value for s in region.args[1:]],
                                 "buffer": type("Buffer", (), {"type": buffer, "offset": 0})})
    return ldmatrix.emit(e, call.choice.plan, call, source, None, None)


def store_matrices(call, region, values, threads, index):
    """The contents of a zeroed buffer after stmatrix has stored a tile of `values` to a region; `index` are the runtime starts."""
    buffer, t, index = region.result.type.buffer, call.args[1].type, iter(index)
    e = Threads(threads, np.zeros(buffer.layout.span("m")))
    e.itemsize, e.per = t.dtype.nbytes, 2
    starts = [s.value if isinstance(s, Const) else np.int64(next(index)) for s in region.args[1:]]
    target = type("Region", (), {"type": region.result.type, "starts": starts, "buffer": type("Buffer", (), {"type": buffer, "offset": 0})})
    stmatrix.emit(e, call.choice.plan, call, target, registers_of(t, values, threads), None)
    return e.memory[np.asarray(buffer.layout.offset_of(*np.indices(buffer.shape), shape=buffer.shape))]


def run_product(call, acc, a, b, threads):
    """The registers that a product's code leaves."""
    e = Threads(threads)
    e.per = max(1, 4 // call.args[1].type.dtype.nbytes)
    return call.op.rules.emit(e, call, acc, a, b)
