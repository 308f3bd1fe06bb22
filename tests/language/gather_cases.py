"""Kernels that gather, scatter and add rows of tables with any position in memory, and the results expected by NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import tilejit as tile
from hypothesis import strategies as st

ROWS = 40
DTYPES = ("int8", "bool", "float8_e4m3fn", "float16", "bfloat16", "int32", "float32", "float64", "int64")
ADDED = ("int32", "float32", "float16", "bfloat16")
# the text in the kernel, and the same as a function of row numbers i, columns j, a given mask, and n
MASKS = {"": lambda i, j, given, n: True, "(rows < 20)[:, None]": lambda i, j, given, n: i[:, None] < 20,
         "(cols < 4 * n)[None, :]": lambda i, j, given, n: j[None] < 4 * n, "(cols < n)[None, :]": lambda i, j, given, n: j[None] < n,
         "(rows >= 3)[:, None] & (tile.arange(C) < 8)[None, :]": lambda i, j, given, n: (i >= 3)[:, None] & (np.arange(len(j)) < 8),
         "tile.load(m[0:R, 0:C], cache='ca')": lambda i, j, given, n: given}
STARTS = {"8 * n": lambda n: 8 * n, "8 * n - 16": lambda n: 8 * n - 16, "0": lambda n: 0, "16": lambda n: 16, "4": lambda n: 4, "n": lambda n: n}
FORMS = ("rows, START:START + C", "rows[:, None], cols[None, :]")
# loads that are not of the table are marked by a cache operator
KERNEL = """
def k(w, index, m, y, n, R: tile.constexpr, C: tile.constexpr):
    rows = tile.load(index[0:R], cache="ca")
    cols = START + tile.arange(C)
    BODY
"""
BODIES = {"gather": "tile.store(y[0:R, 0:C], tile.load(w[PLACE], other=1, mask=MASK))",
          "ordered": "tile.store(y[0:R, 0:C], tile.load(w[PLACE], sem='relaxed', mask=MASK))",
          "scatter": "tile.store(w[PLACE], tile.load(y[0:R, 0:C]), mask=MASK)", "add": "tile.atomic_add(w[PLACE], tile.load(y[0:R, 0:C]), mask=MASK)",
          "shared": "s = tile.alloc((40, 64), y.dtype)\n    tile.store(s, tile.load(w[0:40, 0:64]))\n    tile.sync()\n"
                    "    inside = ((rows >= 0) & (rows < 40))[:, None] & ((cols >= 0) & (cols < 64))[None, :]\n"
                    "    tile.store(y[0:R, 0:C], tile.load(s[PLACE], mask=inside & (MASK)))"}


@dataclass
class Table:
    """An array of ROWS rows that begins `offset` elements into aligned memory, and whose rows (or columns, if `turned`) are
    `pitch` apart."""

    memory: np.ndarray = field(repr=False)
    columns: int
    offset: int
    pitch: int
    turned: bool

    def of(self, memory):
        """The corresponding view of a copy of the memory, on the host or on a GPU."""
        lines, n = (self.columns, ROWS) if self.turned else (ROWS, self.columns)
        made = memory[self.offset:self.offset + lines * self.pitch].reshape(lines, self.pitch)[:, :n]
        return made.T if self.turned else made


def table(rng, columns: int, dtype: np.dtype, offset: int, unit: int, turned: bool) -> Table:
    lines, n = (columns, ROWS) if turned else (ROWS, columns)
    pitch = -(-n // unit) * unit
    raw = np.zeros((offset + lines * pitch) * dtype.itemsize + 16, np.uint8)
    memory = raw[-raw.ctypes.data % 16:][:(offset + lines * pitch) * dtype.itemsize].view(dtype)
    memory[:] = rng.integers(0, 2 if dtype == bool else 16, len(memory)).astype(dtype)
    return Table(memory, columns, offset, pitch, turned)


@dataclass
class Case:
    """A call of a kernel, and the expected contents of the table or of the other array."""

    source: str
    table: Table
    arrays: tuple = field(repr=False)
    n: int
    constants: dict
    want: np.ndarray = field(repr=False)
    in_table: bool

    def found(self, on=lambda array: array) -> np.ndarray:
        """The kernel's results, for arrays that `on` moves to a backend."""
        w, arrays = self.table.of(on(self.table.memory)), [on(a) for a in self.arrays]
        tile.jit(source=self.source)[1](w, *arrays, self.n, **self.constants)
        written = w if self.in_table else arrays[-1]
        return written if isinstance(written, np.ndarray) else written.numpy()

    def check(self, on=lambda array: array) -> None:
        found, want = (np.ascontiguousarray(x).view(np.uint8) for x in (self.found(on), self.want))
        np.testing.assert_array_equal(found, want, err_msg=str(self))

    def compile(self, target: str):
        return tile.jit(source=self.source).compile(self.table.of(self.table.memory), *self.arrays, self.n, **self.constants, target=target)


def made(kind: str, dtype: str, r: int = 32, c: int = 64, start: str = "0", mask: str = "", form: str = FORMS[0], n: int = 3, offset: int = 0,
         unit: int = 16, turned: bool = False, columns: int = 64, seed: int = 0, warps: int = 1) -> Case:
    """Rows and columns for a table that has fewer than are addressed; its rows are padded to a multiple of `unit` elements."""
    rng, kept = np.random.default_rng(seed), np.dtype(getattr(ml_dtypes, dtype, dtype))
    w = table(rng, columns, kept, offset, unit, turned)
    y = rng.integers(0, 2 if dtype == "bool" else 16, (r, c)).astype(kept)
    index = rng.permutation(np.arange(-20, 60))[:r] if kind in ("scatter", "shared") else rng.integers(-3, ROWS + 4, r)
    index, given = index.astype(rng.choice(["int32", "int64"])), rng.integers(0, 2, (r, c)).astype(bool)
    cols, seen = STARTS[start](n) + np.arange(c), np.zeros((ROWS, max(columns, 64)), kept)
    seen[:, :columns] = w.of(w.memory)
    held = 64 if kind == "shared" else columns
    inside = ((index >= 0) & (index < ROWS))[:, None] & ((cols >= 0) & (cols < held))[None]
    taken = np.broadcast_to(inside & MASKS[mask](index, cols, given, n), (r, c))
    at = np.broadcast_arrays(index.astype(np.int64)[:, None], cols[None])
    chosen = tuple(x[taken] for x in at)
    if kind in ("scatter", "add"):
        want = seen[:, :columns].copy()
        if kind == "scatter":
            want[chosen] = y[taken]
        else:
            np.add.at(want, chosen, y[taken])
    else:
        want = np.full((r, c), kind == "gather").astype(kept)
        want[taken] = seen[chosen]
    body = BODIES[kind].replace("PLACE", form).replace(", mask=MASK", f", mask={mask}" if mask else "").replace("MASK", mask or "True")
    source = KERNEL.replace("BODY", body).replace("START", start)
    return Case(source, w, (index, given, y), n, dict(R=r, C=c, num_warps=warps), want, kind in ("scatter", "add"))


@st.composite
def cases(draw) -> Case:
    one = lambda *values: draw(st.sampled_from(values))
    kind, warps = one(*BODIES), one(1, 1, 4)
    return made(kind, one(*(ADDED if kind == "add" else DTYPES)), one(40, 33, 16, 5, 1), one(64, 64, 32, 16, 60, 63, 8, 1), one(*STARTS), one(*MASKS),
                one(*FORMS), draw(st.integers(0, 9)), one(0, 0, 0, 1, 4), one(16, 16, 4, 1), draw(st.booleans()), one(64, 67, 68, 56),
                draw(st.integers(0, 99)), warps)
