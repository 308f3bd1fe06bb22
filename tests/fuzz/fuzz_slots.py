"""Random slots of shared memory that threads read and asynchronous copies refill: one buffer, full and empty barriers, rings, tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from fuzz_ahead import Ahead
from fuzz_products import SUMS
from fuzz_program import Statement
from language_reference import bits, cast, is_float, np_dtype, tile_name

COPIED = ("int8", "uint8", "int16", "int32", "uint32", "uint64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
MULTIPLIED = ("float16", "bfloat16", "float16", "bfloat16", "float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2", "float32")

# Warps of the scopes that consume, for each number of warps of the CTA; warp 0 produces.
CONSUMERS = {2: (((1, 2),),), 4: (((1, 2),), ((1, 3),), ((1, 2), (2, 4)), ((1, 2), (2, 3), (3, 4))), 8: (((4, 8),), ((1, 5),), ((1, 3), (4, 8)))}


@dataclass
class Slot:
    """The shape, dtype and layout of a slot. `mode` is that of `tile.swizzled`, "rows" (row-major), "padded" or "auto"."""

    rows: int
    columns: int
    dtype: str
    mode: int | str

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * bits(self.dtype) // 8

    def layout(self, stages: int = 1) -> str:
        """The layout of a buffer of `stages` slots, one below the other; "" for the default."""
        if self.mode == "rows":
            return ""
        if self.mode == "auto":
            return "tile.auto"
        rows = stages * self.rows
        if self.mode == "padded":
            pitch = self.columns + 16 * 8 // bits(self.dtype)
            return f"tile.TileLayout((({rows}, {pitch}, 'm'), ({self.columns}, 1, 'm')))"
        return f"tile.swizzled({tile_name(self.dtype)}, ({rows}, {self.columns}), {self.mode})"

    def alloc(self, name: str, stages: int = 1) -> str:
        layout = self.layout(stages)
        return f"{name} = tile.alloc(({stages * self.rows}, {self.columns}), {tile_name(self.dtype)}{f', layout={layout}' if layout else ''})"


@dataclass
class Reading:
    """How a scope reads a slot: statements that accumulate what they read in a variable, and what they compute."""

    first: str                                # the variable's statement before the loop
    lines: list[str]
    shape: tuple
    wide: str                                 # the accumulator's dtype
    step: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def total(self, blocks) -> np.ndarray:
        acc = np.zeros(self.shape, np_dtype(self.wide))
        with np.errstate(all="ignore"):
            for block in blocks:
                acc = self.step(acc, block)
        return acc


def wide_of(dtype: str) -> str:
    """The dtype in which elements are added up exactly, or wrap."""
    if is_float(dtype):
        return "float64" if dtype == "float64" else "float32"
    return "int64" if bits(dtype) == 64 else "int32"


def added(acc: np.ndarray, x: np.ndarray, wide: str) -> np.ndarray:
    """One step of the accumulation: a sum of floats, which is exact here, or a polynomial of integers, which wraps."""
    x = cast(x, wide)
    return acc + x if is_float(wide) else acc * np.array(3, acc.dtype) + x


class Slots(Ahead):
    """Draws statements in which threads read slots of shared memory again and again."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.room = self.r.choice((24, 48, 96)) << 10   # bytes of shared memory left for slots
        self.left -= self.room
        self.bounded = False    # whether copies must be provably inside their arrays: the kernel promises the bounds of its program ids
        self.sole = True        # whether the slot that is drawn has one reader

    def small(self, shape, dtype: str) -> np.ndarray:
        """Elements whose sums and products are exact: integers of any size, small whole numbers as floats."""
        if is_float(dtype):
            return self.rng.integers(-4, 5, shape).astype(np_dtype(dtype))
        return self.rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)

    def whole(self, shape, dtype: str) -> np.ndarray:
        """Whole numbers from -2 to 2, or 0 to 2."""
        return self.rng.integers(0 if dtype.startswith("u") else -2, 3, shape).astype(np_dtype(dtype))

    # -- slots and what fills them -----------------------------------------------------------------------------------------

    def slot(self, fill: str, most: int, dtypes=COPIED, auto: bool = False, most_bytes: int = 32768) -> Slot:
        """A slot that the copy `fill` can fill, of at most `most` elements."""
        dtype = self.r.choice(dtypes)
        size = bits(dtype) // 8
        columns = self.r.choice([n for n in (16, 32, 64, 64, 128, 256) if 16 <= n * size <= 512])
        shapes = [n for n in (8, 16, 32, 64, 64, 128, 256) if n * columns <= most and n * columns * size <= min(most_bytes, self.room)]
        rows = self.r.choice(shapes or [8])
        swizzles = [m for m in (0, 32, 64, 128) if columns * size % max(m, 16) == 0]
        modes: list[int | str] = ["rows", "padded"] if fill == "bulk" else ["rows", *swizzles]
        self.room -= rows * columns * size
        return Slot(rows, columns, dtype, self.r.choice([*modes, "auto"] if auto and fill != "bulk" else modes))

    def blocks(self, slot: Slot, trips: int, fill: str, numbers=None):
        """(name, region of a trip as text, its values) of an argument that has `trips` blocks for each CTA, some of them ragged."""
        name, (rows, columns), size = self.name("a"), slot.shape, bits(slot.dtype) // 8
        wide = columns + self.r.choice((0, 0, 16 * 4 // size, 64))
        left = self.r.choice((0, 0, 16 // size)) if wide > columns else 0
        cut = self.r.choice((0, 0, 3)) if fill != "bulk" else 0
        array = self.args[name] = (numbers or self.small)((self.ctas, trips * rows - cut, wide), slot.dtype)
        zero = self.r.choice(("", "zero + ")) if fill != "bulk" else ""

        def values(pid: int, trip: int) -> np.ndarray:
            out = np.zeros(slot.shape, array.dtype)
            part = array[pid, trip * rows:(trip + 1) * rows, left:left + columns]
            out[:len(part)] = part
            return out
        if fill == "bulk":
            self.bounded = True
        text = lambda i: f"{name}[pid, {zero}{i} * {rows}:{zero}{i} * {rows} + {rows}, {left}:{left + columns}]"
        return name, text, values

    # -- readers -----------------------------------------------------------------------------------------------------------

    def reading(self, v: str, slot: Slot, place: Callable[[str, str], str], first_row: str, most: int) -> Reading:
        """A way to read a slot by threads into `v`. ``place(rows, columns)`` is an index into its buffer as text, `first_row` the
        slot's first row there. `most` is the maximum number of elements of a register tile."""
        (rows, columns), dtype = slot.shape, slot.dtype
        kinds = ["pieces", "pieces", "columns"] + ["points"] * (rows * columns <= most) + ["whole"] * (rows * columns <= most)
        kinds += ["atomic"] * 3 * (self.sole and dtype in ("int32", "uint32", "uint64") and rows * columns <= most)
        kinds += ["dot"] * 12 * (dtype in MULTIPLIED and columns <= 128 and rows * 16 <= most)
        return getattr(self, f"read_slot_by_{self.r.choice(kinds)}")(v, slot, place, first_row, most)

    def accumulating(self, v: str, slot: Slot, texts: list[str], shape: tuple, pick) -> Reading:
        wide = wide_of(slot.dtype)
        combine = "{v} + {x}" if is_float(wide) else "{v} * 3 + {x}"
        lines = [f"{v} = {combine.format(v=v, x=f'tile.cast({text}, {tile_name(wide)})')}" for text in texts]

        def step(acc, block):
            for part in pick(block):
                acc = added(acc, part, wide)
            return acc
        return Reading(f"{v} = tile.zeros({shape}, {tile_name(wide)})", lines, shape, wide, step)

    def read_slot_by_whole(self, v, slot, place, first, most):
        rows, columns = slot.shape
        return self.accumulating(v, slot, [f"tile.load({place(f'{first}:{first} + {rows}', f'0:{columns}')})"], slot.shape, lambda b: [b])

    def read_slot_by_pieces(self, v, slot, place, first, most):
        """In bands of rows, in a random order."""
        rows, columns = slot.shape
        high = max([n for n in (1, 2, 4, 8, 16, 32, 64) if n * columns <= most and rows // n <= 16 and n <= rows] or [max(1, most // columns)])
        high = self.r.choice([n for n in (high, high // 2) if n >= max(1, rows // 16)] or [high])
        tops = list(range(0, rows - high + 1, high))
        self.r.shuffle(tops)
        texts = [f"tile.load({place(f'{first} + {t}:{first} + {t + high}', f'0:{columns}')})" for t in tops]
        return self.accumulating(v, slot, texts, (high, columns), lambda b: [b[t:t + high] for t in tops])

    def read_slot_by_columns(self, v, slot, place, first, most):
        """Single columns: each thread another row, so the banks conflict."""
        rows, columns = slot.shape
        at = self.r.sample(range(columns), min(4, columns))
        texts = [f"tile.load({place(f'{first}:{first} + {rows}', f'{c}')})" for c in at]
        return self.accumulating(v, slot, texts, (rows,), lambda b: [b[:, c] for c in at])

    def read_slot_by_points(self, v, slot, place, first, most):
        """All elements, at permuted places."""
        (down, p), (across, q) = (self.permutation(n) for n in slot.shape)
        text = f"tile.load({place(f'({first} + {down})[:, None]', f'{across}[None, :]')})"
        return self.accumulating(v, slot, [text], slot.shape, lambda b: [b[p[:, None], q[None, :]]])

    def read_slot_by_atomic(self, v, slot, place, first, most):
        """By atomic operations, which also change the slot before its refill."""
        (down, p), (across, q) = (self.permutation(n) for n in slot.shape)
        one = f"tile.full({slot.shape}, 1, {tile_name(slot.dtype)})"
        kind = self.r.choice(("add", "max", "exch"))
        text = f"tile.atomic_{kind}({place(f'({first} + {down})[:, None]', f'{across}[None, :]')}, {one})"
        return self.accumulating(v, slot, [text], slot.shape, lambda b: [b[p[:, None], q[None, :]]])

    def read_slot_by_dot(self, v, slot, place, first, most):
        """As the left operand of a product, by ldmatrix where the layout allows it."""
        rows, columns = slot.shape
        n, wide = self.r.choice((8, 16, 16)), SUMS.get(slot.dtype, "float32")
        if rows == n == 16 and columns >= 64 and slot.dtype in ("float16", "bfloat16") and slot.mode in (32, 64, 128):
            self.draws |= {"ldmatrix", "mma_sync"}   # smaller ones are read by plain loads if there are many warps
        name = self.name("a")
        right = self.args[name] = self.whole((columns, n), slot.dtype)
        tf32 = ", precision='tf32'" if slot.dtype == "float32" and self.r.random() < 0.5 else ""
        text = (f"{v} = tile.dot({place(f'{first}:{first} + {rows}', f'0:{columns}')}, tile.load({name}[0:{columns}, 0:{n}]), "
                f"{v}{tf32})")
        product = lambda acc, b: acc + (b.astype(np.float64) @ right.astype(np.float64)).astype(np.int64).astype(acc.dtype)
        return Reading(f"{v} = tile.zeros(({rows}, {n}), {tile_name(wide)})", [text], (rows, n), wide, product)

    def shown(self, v: str, reading: Reading) -> tuple[list[str], Callable]:
        """Statements that store the accumulator to a new output, and the effect."""
        out = self.output((self.ctas, *reading.shape), reading.wide)

        def run(env, blocks):
            self.written[out][env["pid"]] = reading.total(blocks)
        return [f"tile.store({out}[pid, {', '.join(f'0:{n}' for n in reading.shape)}], {v})"], run

    def operand_slot(self) -> Slot:
        """A slot that products read by ldmatrix: rows for which tensor cores of a warp, not of a warpgroup, are used."""
        columns = self.r.choice((32, 64, 64, 128))
        rows, dtype = self.r.choice((16, 16, 32)), self.r.choice(("float16", "bfloat16"))
        return Slot(rows, columns, dtype, self.r.choice((32, 64, 128) if columns > 32 else (32, 64)))

    def multiply(self) -> Statement:
        return self.refilled("operand")

    # -- one buffer ---------------------------------------------------------------------------------------------------------

    def refilled(self, fill: str | None = None) -> Statement:
        """One buffer: a copy fills it, all threads read it, a barrier, and the next copy fills it again."""
        fill = fill or self.r.choice(("tma", "tma", "bulk", "ldgsts", "token", "vector"))
        most = 2048 * self.most_warps
        multiplied = fill == "operand" or self.r.random() < 0.2
        slot = self.slot(fill, 4 * most, MULTIPLIED if multiplied else COPIED, auto=not multiplied, most_bytes=65536)
        if fill == "operand":
            fill, slot = "tma", self.operand_slot()
        s, v, i, bar = self.name("s"), self.name("u"), self.name("i"), self.name("b")
        trips = self.r.choice((2, 3, 5, 8))
        array, region, values = self.blocks(slot, trips, fill, self.whole if slot.dtype in MULTIPLIED else None)
        rows, columns = slot.shape
        place = lambda down, across: f"{s}[{down}, {across}]"
        if slot.mode == "auto":
            tops, whole = range(0, rows, max(8, rows // 8)), rows * columns <= most
            texts = [f"tile.load({s})"] if whole else [f"tile.load({s}[{t}:{t + 8}, 0:{columns}])" for t in tops]
            read = self.accumulating(v, slot, texts, slot.shape if whole else (8, columns), lambda b: [b] if whole else [b[t:t + 8] for t in tops])
        else:
            read = (self.read_slot_by_dot if multiplied and slot.rows in (16, 32) else self.reading)(v, slot, place, "0", most)
        self.note(read.shape)
        head = [slot.alloc(s), read.first]
        done = self.name("t")
        if fill in ("tma", "bulk"):
            head.append(f"{bar} = tile.mbarrier(count=1)")
            lines = ["with tile.elect():", f"    {bar}.arrive_expect_tx({slot.nbytes})",
                     f"    tile.copy_async({s}, {region(i)}, mbar={bar}, variant='{fill}')", f"{bar}.wait(phase={i})"]
        elif fill == "token" and self.tokens:
            lines = [f"{done} = tile.copy_async({s}, {region(i)})", f"{done}.wait()"]
        elif fill == "vector":
            lines = [f"tile.copy_async({s}, {region(i)}, variant='vector')", "tile.sync()"]
        else:
            lines = [f"tile.copy_async({s}, {region(i)}, variant='ldgsts')", "tile.cp_async_commit()", "tile.cp_async_wait(0)", "tile.sync()"]
            if self.tokens:
                lines = [f"tile.copy({s}, {region(i)})", "tile.sync()"]
            if not self.tokens:
                self.draws.add("ldgsts")
        if fill in ("tma", "bulk", "vector"):
            self.draws.add(fill if fill == "vector" else f"{fill} load")
        fence = ["tile.fence_proxy_async()"] if fill in ("tma", "bulk") else []
        store, effect = self.shown(v, read)
        zero = self.r.choice(("", " + zero")) if fill != "bulk" else ""
        loop = [f"for {i} in range(0, {trips}{zero}):", *("    " + line for line in [*lines, *read.lines, *fence, "tile.sync()"])]

        def run(env):
            effect(env, [values(env["pid"], t) for t in range(trips)])
        return Statement([*head, *loop, *store], run)

    # -- roles --------------------------------------------------------------------------------------------------------------

    def consumers(self) -> tuple[tuple[int, int], ...]:
        """Ranges of warps that consume; warp 0 produces."""
        warps = self.r.choice([w for w in CONSUMERS if w <= self.most_warps])
        ranges = self.r.choice(CONSUMERS[warps])
        self.fewest_warps = max(self.fewest_warps, ranges[-1][1])
        return ranges

    def handed(self) -> Statement:
        """A warp fills slots that other warps read, with full and empty barriers by hand or in a ring."""
        if self.most_warps < 2:
            return self.refilled()
        ranges = self.consumers()
        ring = self.r.random() < 0.45
        fill = self.r.choice(("tma", "tma", "bulk", "stores") if ring else ("tma", "tma", "bulk", "ldgsts", "ldgsts", "stores"))
        fewest = min(b - a for a, b in ranges)
        most = 1024 * fewest
        stages, trips = self.r.choice((1, 2, 2, 3)), self.r.choice((1, 2, 3, 5, 9))
        self.sole = len(ranges) == 1
        multiplied = fill == "tma" and self.r.random() < 0.5   # whether the slots are operands of products
        slot = self.slot(fill, 2 * most if fill != "stores" else 1024, MULTIPLIED if multiplied else COPIED, auto=ring,
                         most_bytes=min(32768, self.room // stages))
        self.room -= (stages - 1) * slot.nbytes
        array, region, values = self.blocks(slot, trips, fill, self.whole if slot.dtype in MULTIPLIED else None)
        if fill != "stores":
            self.draws |= {"ldgsts", "ldgsts on an mbarrier"} if fill == "ldgsts" else {f"{fill} load"}
        parts = self.by_ring if ring else self.by_hand
        head, produce, consume = parts(slot, stages, trips, fill, len(ranges), region)
        lines, effects = [*head, "with tile.warp(0):", *("    " + line for line in produce)], []
        for a, b in ranges:
            body, effect = consume(1024 * (b - a))
            lines += [f"with tile.warp({a if b == a + 1 else f'range({a}, {b})'}):", *("    " + line for line in body)]
            effects.append(effect)
        lines.append("tile.sync()")
        self.sole = True

        def run(env):
            for effect in effects:
                effect(env, [values(env["pid"], t) for t in range(trips)])
        return Statement(lines, run)

    def by_hand(self, slot: Slot, stages: int, trips: int, fill: str, consumers: int, region):
        """Slots of one buffer, with a full and an empty barrier each."""
        s, full, empty, i = self.name("s"), self.name("b"), self.name("b"), self.name("i")
        rows, columns = slot.shape
        noinc = self.r.random() < 0.5
        count = 32 if fill == "ldgsts" and noinc else 1
        head = [slot.alloc(s, stages), f"{full}, {empty} = tile.mbarrier(count={count}, n={stages}), tile.mbarrier(count={consumers}, n={stages})"]
        at = f"{i} % {stages}"
        here = f"{s}[{at} * {rows}:{at} * {rows} + {rows}, 0:{columns}]"
        produce = [f"for {i} in range({trips}):", f"    {empty}[{at}].wait(phase={i} // {stages} + 1)"]
        if fill in ("tma", "bulk"):
            produce += [f"    {full}[{at}].arrive_expect_tx({slot.nbytes})",
                        f"    tile.copy_async({here}, {region(i)}, mbar={full}[{at}], variant='{fill}')"]
            produce = ["with tile.elect():", *("    " + line for line in produce)]
        elif fill == "ldgsts":
            produce += [f"    tile.copy_async({here}, {region(i)}, variant='ldgsts')", f"    {full}[{at}].arrive_on_copies(noinc={noinc})",
                        *([] if noinc else [f"    {full}[{at}].arrive()"])]
        else:
            produce += [f"    tile.store({here}, tile.load({region(i)}))", f"    {full}[{at}].arrive()"]

        def consume(most: int):
            v = self.name("u")
            read = self.reading(v, slot, lambda down, across: f"{s}[{down}, {across}]", f"({at} * {rows})", most)
            store, effect = self.shown(v, read)
            fence = ["    tile.fence_proxy_async()"] if fill in ("tma", "bulk") else []
            return [read.first, f"for {i} in range({trips}):", f"    {full}[{at}].wait(phase={i} // {stages})",
                    *("    " + line for line in read.lines), *fence, f"    {empty}[{at}].arrive()", *store], effect
        return head, produce, consume

    def looks(self, ring: str, i: str, stages: int) -> tuple[list[str], list[str], list[str]]:
        """Whether the next slot of a ring is full already: lines at the begin of the block that holds a slot, behind what reads it, and
        behind the block."""
        if self.r.random() < 0.4:
            return [], [], []
        self.draws.add("peek")
        when = self.r.choice(("", "", f"if {i} % 3 == 1: "))
        lines: tuple[list[str], list[str], list[str]] = [], [], []
        for place in [2] if stages == 1 else self.r.sample(range(3), self.r.choice((1, 1, 2))):
            lines[place].append(f"{' ' * (4 if place == 2 else 8)}{when}{ring}.peek()")
        return lines

    def by_ring(self, slot: Slot, stages: int, trips: int, fill: str, consumers: int, region):
        """The slots of a `tile.ring`."""
        ring, i, x = self.name("r"), self.name("i"), self.name("x")
        packed = f"tile.TileLayout((({slot.rows}, {slot.columns}, 'm'), ({slot.columns}, 1, 'm')))"
        stores = ", filled='stores'" if fill == "stores" else ""
        head = [f"{ring} = tile.ring({stages}, A=({slot.shape}, {tile_name(slot.dtype)}, {slot.layout() or packed}), consumers={consumers}{stores})"]
        if fill == "stores":
            produce = [f"for {i} in range({trips}):", f"    with {ring}.produce() as {x}:", f"        tile.store({x}.A, tile.load({region(i)}))"]
        else:
            produce = ["with tile.elect():", f"    for {i} in range({trips}):", f"        with {ring}.produce() as {x}:",
                       f"            tile.copy_async({x}.A, {region(i)}, mbar={x}.full, variant='{fill}')"]

        def consume(most: int):
            v = self.name("u")
            way = self.read_slot_by_pieces if slot.mode == "auto" else self.reading
            read = way(v, slot, lambda down, across: f"{x}.A[{down}, {across}]", "0", most)
            store, effect = self.shown(v, read)
            early = self.r.random() < 0.3
            first, within, behind = self.looks(ring, i, stages)
            return [read.first, f"for {i} in range({trips}):", f"    with {ring}.consume() as {x}:", *first,
                    *("        " + line for line in read.lines), *([f"        {x}.release()"] if early else []), *within, *behind, *store], effect
        return head, produce, consume
