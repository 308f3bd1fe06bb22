"""Random copies by the engines that leave shared memory, gather, follow tensor maps or bring data to L2, products by hand, and schedules."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import tilejit as tile
from fuzz_program import Statement
from fuzz_slots import COPIED, Slots
from language_reference import bits, is_float, np_dtype, tile_name

REDUCED = {"add": ("int32", "uint32", "uint64", "float32", "float16", "bfloat16"),
           "min": ("int32", "uint32", "int64", "uint64", "float16", "bfloat16"),
           "max": ("int32", "uint32", "int64", "uint64", "float16", "bfloat16"),
           "and": ("int32", "uint64"), "or": ("uint32", "int64"), "xor": ("int32", "uint64")}


def combined(kind: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """`old` after an elementwise reduction with `new`."""
    if is_float(str(old.dtype)) and kind != "add":
        return np.maximum(old, new) if kind == "max" else np.minimum(old, new)
    with np.errstate(all="ignore"):
        return {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                "xor": np.bitwise_xor}[kind](old, new)


class Engines(Slots):
    """Draws statements whose copies are by the copy engine, and products and schedules written by hand."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.scratch: dict[str, tuple] = {}   # shapes of arrays of bytes or counters that each copy of the grid has for itself

    # -- from shared memory --------------------------------------------------------------------------------------------------

    def stored_out(self) -> Statement:
        """A buffer that threads write and the engine stores to an output or combines with one, several times."""
        engine = self.r.choice(("tma", "bulk"))
        kind = self.r.choice((*[None] * 5, "add", "min", "max", "and", "xor"))
        slot = self.slot(engine, 1024 * self.most_warps, REDUCED[kind] if kind else COPIED)
        self.note(slot.shape)
        self.bounded = True
        s, i = self.name("s"), self.name("i")
        (rows, columns), trips = slot.shape, self.r.choice((1, 2, 4))
        a = self.name("a")
        values = self.args[a] = self.small((self.ctas, trips * rows, columns), slot.dtype)
        text = f"tile.load({a}[pid, {i} * {rows}:{i} * {rows} + {rows}, 0:{columns}])"
        every = kind is not None and self.r.random() < 0.6      # whether all CTAs combine into one place
        out = self.output((trips * rows, columns) if every else (self.ctas, trips * rows, columns), slot.dtype)
        place = f"{out}[{'' if every else 'pid, '}{i} * {rows}:{i} * {rows} + {rows}, 0:{columns}]"
        reduce = f", reduce='{kind}'" if kind else ""
        full = self.r.choice(("", ", read=True"))
        lines = [slot.alloc(s), f"for {i} in range({trips}):", f"    tile.store({s}, {text})", "    tile.fence_proxy_async()", "    tile.sync()",
                 "    with tile.elect():", f"        tile.copy_async({place}, {s}, variant='{engine}'{reduce})", "        tile.bulk_commit()",
                 f"        tile.bulk_wait(0{full})", "    tile.sync()", "with tile.elect():", "    tile.bulk_wait(0)"]
        self.draws.add(f"{engine} {'reduce' if kind else 'store'}")
        if self.tokens:
            done = self.name("t")
            lines = [slot.alloc(s), f"for {i} in range({trips}):", f"    tile.store({s}, {text})", "    tile.sync()",
                     f"    {done} = tile.copy_async({place}, {s}, variant='{engine}'{reduce})", f"    {done}.wait()"]

        def run(env):
            target = self.written[out] if every else self.written[out][env["pid"]]
            target[...] = combined(kind, target, values[env["pid"]]) if kind else values[env["pid"]]
        return Statement(lines, run)

    # -- to L2, of patches, of rows -----------------------------------------------------------------------------------------

    def prefetched(self) -> Statement:
        """A region that is brought to L2 by runs, boxes or lines, then loaded."""
        dtype, rows = self.r.choice(COPIED), self.r.choice((4, 8, 16))
        size = bits(dtype) // 8
        columns, wide, way = self.r.choice(((128 // size, 128 // size, "bulk"), (64 // size, 128 // size, "tma"), (33, 35, "line")))
        self.draws.add(f"{way} prefetch")
        name, v, out = self.name("a"), self.name("u"), self.output((self.ctas, rows, columns), dtype)
        array = self.args[name] = self.small((self.ctas, rows, wide), dtype)
        self.note((rows, columns))
        self.bounded = True
        region = f"{name}[pid, 0:{rows}, 0:{columns}]"
        ahead = [f"tile.prefetch({region})"] if self.r.random() < 0.5 else ["with tile.elect():", f"    tile.prefetch({region})"]

        def run(env):
            self.written[out][env["pid"]] = array[env["pid"], :, :columns]
        return Statement([*ahead, f"{v} = tile.load({region})", f"tile.store({out}[pid, 0:{rows}, 0:{columns}], {v})"], run)

    def patches(self) -> Statement:
        """Rows of the matrix that a convolution multiplies, at each position of the filter, through one buffer."""
        dtype = self.r.choice(("float16", "bfloat16", "int8", "float32"))
        size = bits(dtype) // 8
        channels = self.r.choice([n for n in (16, 32, 64) if 32 <= n * size <= 128])
        self.draws.add("tma im2col")
        n, high, wide, R = self.ctas, self.r.choice((5, 6, 9)), self.r.choice((5, 7, 8)), self.r.choice((1, 3))
        stride, dilation = self.r.choice(((1, 1), (1, 1), (2, 1), (1, 2)))
        pad = R // 2 * dilation
        name = self.name("a")
        array = self.args[name] = self.small((n, high, wide, channels), dtype)
        padded = np.pad(array, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        down, across = ((e + 2 * pad - (R - 1) * dilation - 1) // stride + 1 for e in (high, wide))
        pixels = min(self.r.choice((16, 32)), max(8, down * across // 8 * 8))
        mode = self.r.choice([m for m in (0, 32, 64, 128) if m in (0, channels * size)])
        s, bar, x, v, i = self.name("s"), self.name("b"), self.name("x"), self.name("u"), self.name("i")
        wide_dtype = "float32" if is_float(dtype) else "int32"
        layout = f", layout=tile.swizzled({tile_name(dtype)}, ({pixels}, {channels}), {mode})" if mode else ""
        out = self.output((n, R * R, pixels, channels), dtype)
        self.note((pixels, channels))
        lines = [f"{x} = tile.im2col({name}, ({R}, {R}), stride={stride}, padding={pad}, dilation={dilation})",
                 f"{s} = tile.alloc(({pixels}, {channels}), {tile_name(dtype)}{layout})", f"{bar} = tile.mbarrier()", f"for {i} in range({R * R}):",
                 "    with tile.elect():", f"        {bar}.arrive_expect_tx({pixels * channels * size})",
                 f"        tile.copy_async({s}, {x}[pid * {down * across}:pid * {down * across} + {pixels}, {i} // {R}, {i} % {R}, 0:{channels}], "
                 f"mbar={bar})",
                 f"    {bar}.wait(phase={i})", f"    tile.store({out}[pid, {i}, 0:{pixels}, 0:{channels}], tile.load({s}))",
                 "    tile.fence_proxy_async()", "    tile.sync()"]

        def run(env):
            images = padded[env["pid"]:]
            for k in range(R * R):
                top, left = k // R * dilation, k % R * dilation
                walk = images[:, top:top + (down - 1) * stride + 1:stride, left:left + (across - 1) * stride + 1:stride].reshape(-1, channels)
                rows = np.zeros((pixels, channels), array.dtype)
                rows[:len(walk)] = walk[:pixels]
                self.written[out][env["pid"], k] = rows
        return Statement(lines, run)

    def gathered(self) -> Statement:
        """Rows that an index selects, copied to shared memory by cp.async or loaded; some name no row."""
        dtype = self.r.choice([d for d in COPIED])
        columns, rows, height = self.r.choice((16, 32, 64)), self.r.choice((8, 16, 32, 64)), self.r.choice((7, 40))
        name, index, s, v, out = self.name("a"), self.name("a"), self.name("s"), self.name("u"), self.output((self.ctas, rows, columns), dtype)
        array = self.args[name] = self.small((height, columns + self.r.choice((0, 16))), dtype)
        which = self.args[index] = self.rng.integers(-1, height + 1, (self.ctas, rows)).astype(self.r.choice(("int32", "int64", "int16")))
        self.note((rows, columns))
        picked = self.name("x")
        copy = f"tile.copy_async({s}, {name}.take({picked})[..., 0:{columns}])"
        wait = [copy, "tile.cp_async_commit()", "tile.cp_async_wait(0)", "tile.sync()"]
        if self.tokens:
            wait = [f"{self.name('t')} = {copy}", f"t{self.count}.wait()"]
        slot_layout = self.layout((rows, columns), dtype, plain=True)
        lines = [f"{picked} = tile.load({index}[pid, 0:{rows}])", f"{s} = tile.alloc(({rows}, {columns}), {tile_name(dtype)}{slot_layout})", *wait,
                 f"{v} = tile.load({s})", f"tile.store({out}[pid, 0:{rows}, 0:{columns}], {v})", "tile.sync()"]
        if "TileLayout" in slot_layout:  # rows of which threads may not find 4 bytes together
            lines = [f"{picked} = tile.load({index}[pid, 0:{rows}])", f"{v} = tile.load({name}[{picked}, 0:{columns}])",
                     f"tile.store({out}[pid, 0:{rows}, 0:{columns}], {v})"]
        else:
            self.draws.add("ldgsts rows")

        def run(env):
            at = which[env["pid"]].astype(np.int64)
            inside = (at >= 0) & (at < height)
            self.written[out][env["pid"]] = np.where(inside[:, None], array[np.where(inside, at, 0), :columns], np.zeros((), array.dtype))
        return Statement(lines, run)

    # -- tensor maps by name -------------------------------------------------------------------------------------------------

    def by_map(self) -> Statement:
        """Boxes by a named tensor map, of the launch or made by the kernel for the matrix of its CTA, among others behind each other."""
        slot = self.slot("tma", 1024 * self.most_warps)
        rows, columns = slot.shape
        self.note(slot.shape)
        device = self.r.random() < 0.7
        self.draws |= {"tma named map"} | ({"map made by the kernel"} if device else set())
        swizzle = slot.mode if slot.mode in (32, 64, 128) else 0
        if slot.mode == 0:
            slot.mode = "rows"
        elements = 256 if not swizzle else swizzle * 8 // bits(slot.dtype)
        while columns > elements and not swizzle or columns * bits(slot.dtype) // 8 % 16:
            slot.columns = columns = columns // 2
        a, m, s, bar, v, i = self.name("a"), self.name("m"), self.name("s"), self.name("b"), self.name("u"), self.name("i")
        trips = self.r.choice((1, 2, 3))
        high, wide = trips * rows - self.r.choice((0, 3)), columns + self.r.choice((0, 16 * 8 // bits(slot.dtype)))
        out = self.output((self.ctas, trips * rows, columns), slot.dtype)
        store = f"    tile.store({out}[pid, {i} * {rows}:{i} * {rows} + {rows}, 0:{columns}], tile.load({s}))"
        copy = ["    with tile.elect():", f"        {bar}.arrive_expect_tx({slot.nbytes})",
                f"        tile.copy_async({s}, {m}[{i} * {rows}:{i} * {rows} + {rows}, 0:{columns}], mbar={bar})", f"    {bar}.wait(phase={i})"]
        if not device:
            array = self.args[a] = self.small((high, wide), slot.dtype)
            make, found = [f"{m} = tile.tensor_map({a}[0:{rows}, 0:{columns}], swizzle={swizzle})"], lambda pid: array
        else:
            make, found = self.made_map(slot, m, swizzle, high, wide)
        lines = [slot.alloc(s), f"{bar} = tile.mbarrier()", *make, f"for {i} in range({trips}):", *copy, store,
                 "    tile.fence_proxy_async()", "    tile.sync()"]

        def run(env):
            block = np.zeros((trips * rows, columns), np_dtype(slot.dtype))
            block[:high] = found(env["pid"])[:, :columns]
            self.written[out][env["pid"]] = block
        return Statement(lines, run)

    def made_map(self, slot, m: str, swizzle: int, high: int, wide: int):
        """Statements that make the map `m` in a slot of global memory and bind it to one of several matrices, and these."""
        template, storage, slots = self.name("a"), self.name("a"), self.name("m")
        step = -(-high * wide // 256) * 256
        self.args[template] = np.zeros((slot.rows, slot.columns), np_dtype(slot.dtype))
        array = self.args[storage] = self.small((self.ctas * step,), slot.dtype)
        self.scratch[slots] = ((self.ctas, 128), "uint8")
        edit = self.r.choice(("global", "shared"))
        make = [f"{m} = tile.tensor_map({template}[0:{slot.rows}, 0:{slot.columns}], swizzle={swizzle}, slot={slots}[pid, 0:128], edit='{edit}')",
                "with tile.elect():", f"    {m}.seed()", f"    {m}.rebind({storage}[pid * {step}], shape=({high} + zero, {wide} + zero))",
                *([f"    {m}.fence_release('cta')"] if edit == "global" else []), *([f"{m}.publish('cta')"] if edit == "shared" else []),
                "tile.sync()", f"{m}.fence_acquire('cta')"]
        return make, lambda pid: array[pid * step:pid * step + high * wide].reshape(high, wide)

    # -- products by hand ----------------------------------------------------------------------------------------------------

    def by_wgmma(self) -> Statement:
        """`mma_async` by one warpgroup, with its left operand in shared memory or registers, over blocks of k in one pair of buffers."""
        if self.most_warps < 4 or self.room < 12 << 10:
            return self.product()
        self.fewest_warps = max(self.fewest_warps, 4)
        group = self.r.choice((0, 1)) if self.most_warps == 8 else 0
        self.fewest_warps = max(self.fewest_warps, 4 * group + 4)
        dtype = self.r.choice(("float16", "bfloat16", "int8", "float8_e4m3fn"))
        size, n, trips = bits(dtype) // 8, self.r.choice((8, 16, 32, 64)), self.r.choice((1, 2, 3))
        block = self.r.choice((32, 64)) if size == 2 else 64
        registers, turned = self.r.random() < 0.5, size == 1 or self.r.random() < 0.5
        shapes = (64, block), (n, block) if turned else (block, n)
        self.room -= sum(h * w * size for h, w in shapes)
        self.draws.add(f"wgmma a in {'registers' if registers else 'shared memory'}")
        names, arrays, modes = [self.name("a"), self.name("a")], [], []
        for h, w in shapes:
            modes.append(self.r.choice([m for m in (32, 64, 128) if w * size % m == 0] or [0]))
        a = self.whole((self.ctas, 64, trips * block), dtype)
        b = self.whole((self.ctas, n, trips * block) if turned else (self.ctas, trips * block, n), dtype)
        self.args[names[0]], self.args[names[1]] = a, b
        s, t, bar, acc, i, x = self.name("s"), self.name("s"), self.name("b"), self.name("u"), self.name("i"), self.name("x")
        wide = "int32" if dtype == "int8" else "float32"
        out = self.output((self.ctas, 64, n), wide)
        at = f"{i} * {block}:{i} * {block} + {block}"
        lines = [f"{z} = tile.alloc({shape}, {tile_name(dtype)}, layout=tile.swizzled({tile_name(dtype)}, {shape}, {mode}))"
                 for z, shape, mode in zip((s, t), shapes, modes)]
        lines += [f"{bar} = tile.mbarrier()", f"with tile.warpgroup({group}):", f"    {acc} = tile.zeros((64, {n}), {tile_name(wide)})",
                  f"    for {i} in range({trips}):", "        with tile.elect():",
                  f"            {bar}.arrive_expect_tx({sum(h * w * size for h, w in shapes)})",
                  f"            tile.copy_async({s}, {names[0]}[pid, 0:64, {at}], mbar={bar})",
                  f"            tile.copy_async({t}, {names[1]}[pid, {f'0:{n}, {at}' if turned else f'{at}, 0:{n}'}], mbar={bar})",
                  f"        {bar}.wait(phase={i})", *([f"        {x} = tile.load({s})"] if registers else []),
                  f"        {acc} = tile.mma_async({acc}, {x if registers else s}, {t}{', trans_b=True' if turned else ''})",
                  "        tile.mma_commit()", "        tile.mma_wait(0)", *(["        tile.fence_proxy_async()"] if registers else []),
                  "        tile.sync()", f"    tile.store({out}[pid, 0:64, 0:{n}], {acc})"]

        def run(env):
            x, y = (v[env["pid"]].astype(np.float64) for v in (a, b))
            self.written[out][env["pid"]] = x @ (y.T if turned else y)
        return Statement(lines, run)

    # -- packed elements, schedules ------------------------------------------------------------------------------------------

    def packed(self) -> Statement:
        """Elements of 4 or 6 bits, loaded or copied by TMA, as floats."""
        dtype = self.r.choice(("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"))
        rows, columns = self.r.choice((8, 16)), self.r.choice((64, 128))
        name, out = self.name("a"), self.output((self.ctas, rows, columns), "float32")
        values = self.rng.integers(-2, 3, (self.ctas, rows, columns)).astype(getattr(ml_dtypes, dtype))
        self.args[name] = tile.pack(values)
        self.note((rows, columns))
        region, s, bar = f"{name}[pid, 0:{rows}, 0:{columns}]", self.name("s"), self.name("b")
        x = f"tile.load({region})"
        lines = []
        if self.r.random() < 0.6:
            nbytes = rows * columns * (4 if "4" in dtype[:6] else 6) // 8
            lines = [f"{s} = tile.alloc(({rows}, {columns}), {tile_name(dtype)})", f"{bar} = tile.mbarrier()", "with tile.elect():",
                     f"    {bar}.arrive_expect_tx({nbytes})", f"    tile.copy_async({s}, {region}, mbar={bar})", f"{bar}.wait(phase=0)"]
            x = f"tile.load({s})"

        def run(env):
            self.written[out][env["pid"]] = values[env["pid"]].astype(np.float32)
        return Statement([*lines, f"tile.store({out}[pid, 0:{rows}, 0:{columns}], tile.cast({x}, tile.float32))"], run)

    def scheduled(self) -> Statement:
        """The tiles of several problems, in an order or one by one from a counter, through one buffer that TMA refills."""
        problems, m, n = self.r.choice((1, 2, 3)), self.r.choice((2, 3)), self.r.choice((2, 3))
        slot = self.slot("tma", 1024 * self.most_warps, most_bytes=8192)
        rows, columns = slot.shape
        self.note(slot.shape)
        a, s, bar, v, g, p, q = (self.name(x) for x in ("a", "s", "b", "u", "i", "i", "i"))
        array = self.args[a] = self.small((problems, m * rows, n * columns), slot.dtype)
        out = self.output(array.shape, slot.dtype)
        at = f"{g}, {p} * {rows}:{p} * {rows} + {rows}, {q} * {columns}:{q} * {columns} + {columns}"
        turn = self.name("i")
        body = ["with tile.elect():", f"    {bar}.arrive_expect_tx({slot.nbytes})", f"    tile.copy_async({s}, {a}[{at}], mbar={bar})",
                f"{bar}.wait(phase={turn})", f"{turn} = {turn} + 1", f"tile.store({out}[{at}], tile.load({s}))",
                "tile.fence_proxy_async()", "tile.sync()"]
        order = self.r.choice(("row", "column", "grouped", "snake", "hilbert"))
        head = [slot.alloc(s), f"{bar} = tile.mbarrier()", f"{turn} = 0"]
        if self.r.random() < 0.7:
            lines = [f"for {g} in range({problems}):", f"    for {p}, {q} in tile.tile_order({m}, {n}, order='{order}', group=2):",
                     *("        " + line for line in body)]
        else:
            counter, number = self.name("m"), self.name("i")
            self.scratch[counter] = ((1,), "uint32")
            told = self.name("s")
            head += [f"{told} = tile.alloc((1,), tile.int32)"]
            total = problems * m * n
            lines = [f"{number} = 0", f"while {number} < {total}:", "    with tile.elect():",
                     f"        tile.store({told}[0], tile.cast(tile.next_tile({counter}[0], {total}), tile.int32))", "    tile.sync()",
                     f"    {number} = tile.load({told}[0])", "    tile.sync()", f"    if {number} < {total}:",
                     f"        {g}, {p}, {q} = {number} // {m * n}, {number} // {n} % {m}, {number} % {n}", *("        " + line for line in body)]

        def run(env):
            self.written[out][...] = array
        return Statement([*head, *lines, "tile.sync()"], run)
