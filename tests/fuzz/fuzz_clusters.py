"""Random exchanges between the CTAs of a cluster: multicasts, copies and reductions into a peer's shared memory, st.async and red.async."""

from __future__ import annotations

import numpy as np
from fuzz_engines import Engines
from fuzz_program import Statement
from fuzz_slots import Slot
from language_reference import bits, tile_name


class Clusters(Engines):
    """Draws statements of kernels with clusters, whose CTAs all execute them."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.cluster = self.r.choice((1, 2, 2, 4))
        if self.cluster > 1:
            self.ctas = 4 if self.cluster == 4 else self.r.choice((2, 4))

    def exchange(self) -> Statement:
        if self.cluster == 1:
            return self.refilled()
        return self.r.choice((self.shared_by_token, self.shared_by_ring, self.shared_by_one, self.shared_by_one, self.passed_on, self.passed_on,
                              self.added_up, self.added_up, self.sent, self.loaded_for_peer))()

    def every(self, out: str, values: np.ndarray):
        """The effect of receiving the values of the cluster in each of its CTAs."""
        def run(env):
            self.written[out][env["pid"]] = values[env["pid"] // self.cluster]
        return run

    def shared_source(self, fill: str):
        """A slot that each CTA of a cluster loads a part of, and an argument with its blocks: (slot, trips, argument, values, output)."""
        slot = self.slot(fill, 1024 * self.most_warps, most_bytes=16384)
        slot.rows = max(slot.rows, 8 * self.cluster)
        self.note(slot.shape)
        trips, name = self.r.choice((1, 2, 4)), self.name("a")
        values = self.args[name] = self.small((self.ctas // self.cluster, trips * slot.rows, slot.columns), slot.dtype)
        out = self.output((self.ctas, trips * slot.rows, slot.columns), slot.dtype)
        if fill == "bulk":
            self.bounded = True
        return slot, trips, name, values, out

    def copy_of_part(self, slot: Slot, s: str, name: str, i: str, extra: str) -> str:
        """The copy of this CTA's part of block `i` to all CTAs."""
        high = slot.rows // self.cluster
        return (f"tile.copy_async({s}[tile.cta_rank() * {high}:tile.cta_rank() * {high} + {high}, 0:{slot.columns}], "
                f"{name}[pid // {self.cluster}, {i} * {slot.rows} + tile.cta_rank() * {high}:{i} * {slot.rows} + tile.cta_rank() * {high} + {high}, "
                f"0:{slot.columns}]{extra}, multicast={(1 << self.cluster) - 1})")

    def shown_block(self, slot: Slot, out: str, s: str, i: str) -> str:
        return f"tile.store({out}[pid, {i} * {slot.rows}:{i} * {slot.rows} + {slot.rows}, 0:{slot.columns}], tile.load({s}))"

    def shared_by_token(self) -> Statement:
        """Each CTA multicasts its part, and waits for all by the token."""
        slot, trips, name, values, out = self.shared_source(self.r.choice(("tma", "tma", "bulk")))
        s, i, done = self.name("s"), self.name("i"), self.name("t")
        lines = [slot.alloc(s), f"for {i} in range({trips}):", f"    {done} = {self.copy_of_part(slot, s, name, i, '')}", f"    {done}.wait()",
                 "    " + self.shown_block(slot, out, s, i)]
        return Statement(lines, self.every(out, values))

    def shared_by_ring(self) -> Statement:
        """A ring with multicast: a warp of each CTA loads its part for all."""
        if self.most_warps < 2:
            return self.shared_by_token()
        ((a, b), *rest) = self.consumers()
        slot, trips, name, values, out = self.shared_source("tma")
        ring, i, x = self.name("r"), self.name("i"), self.name("x")
        stages = self.r.choice((1, 2))
        packed = f"tile.TileLayout((({slot.rows}, {slot.columns}, 'm'), ({slot.columns}, 1, 'm')))"
        copy = self.copy_of_part(slot, f"{x}.A", name, i, f", mbar={x}.full")
        lines = [f"{ring} = tile.ring({stages}, A=({slot.shape}, {tile_name(slot.dtype)}, {slot.layout() or packed}), multicast=True)",
                 "with tile.warp(0):", "    with tile.elect():", f"        for {i} in range({trips}):", f"            with {ring}.produce() as {x}:",
                 f"                {copy}", f"with tile.warp(range({a}, {b})):", f"    for {i} in range({trips}):",
                 f"        with {ring}.consume() as {x}:", "            " + self.shown_block(slot, out, f"{x}.A", i),
                 *(["    " + line for part in self.looks(ring, i, stages) for line in part]), "tile.sync()"]
        return Statement(lines, self.every(out, values))

    def shared_by_one(self) -> Statement:
        """The first CTA loads for all, each of which arms its own barrier; the cluster's barrier hands the buffers back."""
        fill = self.r.choice(("tma", "bulk"))
        self.draws.add(f"{fill} multicast")
        slot, trips, name, values, out = self.shared_source(fill)
        s, i, bar = self.name("s"), self.name("i"), self.name("b")
        region = f"{name}[pid // {self.cluster}, {i} * {slot.rows}:{i} * {slot.rows} + {slot.rows}, 0:{slot.columns}]"
        lines = [slot.alloc(s), f"{bar} = tile.mbarrier()", f"for {i} in range({trips}):", "    with tile.elect():",
                 f"        {bar}.arrive_expect_tx({slot.nbytes})", "    tile.cluster_sync()",
                 "    if tile.cta_rank() == 0:", "        with tile.elect():",
                 f"            tile.copy_async({s}, {region}, mbar={bar}, variant='{fill}', multicast={(1 << self.cluster) - 1})",
                 f"    {bar}.wait(phase={i})", "    " + self.shown_block(slot, out, s, i), "    tile.fence_proxy_async()", "    tile.cluster_sync()"]
        return Statement(lines, self.every(out, values))

    def loaded_for_peer(self) -> Statement:
        """Each CTA loads a block into the memory of the next one of the cluster."""
        slot = self.slot("tma", 1024 * self.most_warps)
        self.note(slot.shape)
        s, i, bar, name = self.name("s"), self.name("i"), self.name("b"), self.name("a")
        trips, (rows, columns) = self.r.choice((1, 2, 4)), slot.shape
        values = self.args[name] = self.small((self.ctas, trips * rows, columns), slot.dtype)
        out = self.output((self.ctas, trips * rows, columns), slot.dtype)
        lines = [slot.alloc(s), f"{bar} = tile.mbarrier()", f"for {i} in range({trips}):", "    with tile.elect():",
                 f"        {bar}.arrive_expect_tx({slot.nbytes})", "    tile.cluster_sync()", "    with tile.elect():",
                 f"        tile.copy_async({s}.peer((tile.cta_rank() + 1) % {self.cluster}), "
                 f"{name}[pid, {i} * {rows}:{i} * {rows} + {rows}, 0:{columns}], "
                 f"mbar={bar})", f"    {bar}.wait(phase={i})", "    " + self.shown_block(slot, out, s, i), "    tile.fence_proxy_async()",
                 "    tile.cluster_sync()"]
        return Statement(lines, self.from_peer(out, values))

    def from_peer(self, out: str, values: np.ndarray):
        """The effect of receiving the values of the CTA with the previous rank."""
        def run(env):
            pid, n = env["pid"], self.cluster
            self.written[out][pid] = values[pid - pid % n + (pid % n - 1) % n]
        return run

    def passed_on(self) -> Statement:
        """Each CTA copies a buffer that its threads wrote to the next one of the cluster."""
        self.draws.add("dsmem copy")
        slot = self.slot("bulk", 1024 * self.most_warps, most_bytes=16384)
        slot.mode = self.r.choice(("rows", "padded", *(m for m in (32, 64, 128) if slot.columns * bits(slot.dtype) // 8 % m == 0)))
        self.note(slot.shape)
        mine, theirs, i, bar, name = self.name("s"), self.name("s"), self.name("i"), self.name("b"), self.name("a")
        trips, (rows, columns) = self.r.choice((1, 2, 4)), slot.shape
        values = self.args[name] = self.small((self.ctas, trips * rows, columns), slot.dtype)
        out = self.output((self.ctas, trips * rows, columns), slot.dtype)
        lines = [slot.alloc(mine), slot.alloc(theirs), f"{bar} = tile.mbarrier()", f"for {i} in range({trips}):", "    with tile.elect():",
                 f"        {bar}.arrive_expect_tx({slot.nbytes})",
                 f"    tile.store({mine}, tile.load({name}[pid, {i} * {rows}:{i} * {rows} + {rows}, 0:{columns}]))",
                 "    tile.fence_proxy_async()", "    tile.cluster_sync()", "    with tile.elect():",
                 f"        tile.copy_async({theirs}.peer((tile.cta_rank() + 1) % {self.cluster}), {mine}, mbar={bar})", f"    {bar}.wait(phase={i})",
                 "    " + self.shown_block(slot, out, theirs, i), "    tile.fence_proxy_async()", "    tile.cluster_sync()"]
        return Statement(lines, self.from_peer(out, values))

    def added_up(self) -> Statement:
        """Each CTA adds its values to a buffer of the first one, by a bulk reduction or by red.async."""
        engine = self.r.random() < 0.5
        self.draws.add("dsmem reduce" if engine else "red.async")
        dtype = self.r.choice(("int32", "uint32", "uint64"))
        n = self.r.choice((64, 128, 256))
        mine, total, bar, name = self.name("s"), self.name("s"), self.name("b"), self.name("a")
        values = self.args[name] = self.small((self.ctas, n), dtype)
        out, size = self.output((self.ctas // self.cluster, n), dtype), bits(dtype) // 8
        self.note((n,))
        send = [f"tile.reduce_async({total}.peer(0), tile.load({name}[pid, 0:{n}]), 'add', mbar={bar})"]
        if engine:
            send = ["with tile.elect():", f"    tile.copy_async({total}.peer(0), {mine}, mbar={bar}, reduce='add')"]
        lines = [f"{mine} = tile.alloc(({n},), {tile_name(dtype)})", f"{total} = tile.alloc(({n},), {tile_name(dtype)})", f"{bar} = tile.mbarrier()",
                 f"tile.store({total}, tile.full(({n},), 0, {tile_name(dtype)}))", f"tile.store({mine}, tile.load({name}[pid, 0:{n}]))",
                 "tile.fence_proxy_async()", "if tile.cta_rank() == 0:", "    with tile.elect():",
                 f"        {bar}.arrive_expect_tx({self.cluster * n * size})", "tile.cluster_sync()", *send, "if tile.cta_rank() == 0:",
                 f"    {bar}.wait(phase=0)", f"    tile.store({out}[pid // {self.cluster}, 0:{n}], tile.load({total}))", "tile.cluster_sync()"]

        def run(env):
            first = env["pid"] // self.cluster
            self.written[out][first] = values[first * self.cluster:(first + 1) * self.cluster].sum(axis=0, dtype=values.dtype)
        return Statement(lines, run)

    def sent(self) -> Statement:
        """Each CTA stores registers to the memory of the next one of the cluster, by st.async."""
        self.draws.add("st.async")
        dtype, rows, columns = self.r.choice(("int32", "float32", "uint64", "float16")), self.r.choice((4, 8, 16)), self.r.choice((32, 64))
        got, i, bar, name = self.name("s"), self.name("i"), self.name("b"), self.name("a")
        trips = self.r.choice((1, 2, 4))
        values = self.args[name] = self.small((self.ctas, trips * rows, columns), dtype)
        out = self.output((self.ctas, trips * rows, columns), dtype)
        slot = Slot(rows, columns, dtype, "rows")
        self.note(slot.shape)
        lines = [slot.alloc(got), f"{bar} = tile.mbarrier()", f"for {i} in range({trips}):", "    with tile.elect():",
                 f"        {bar}.arrive_expect_tx({slot.nbytes})", "    tile.cluster_sync()",
                 f"    tile.store_async({got}.peer((tile.cta_rank() + 1) % {self.cluster}), "
                 f"tile.load({name}[pid, {i} * {rows}:{i} * {rows} + {rows}, 0:{columns}]), mbar={bar})", f"    {bar}.wait(phase={i})",
                 "    " + self.shown_block(slot, out, got, i), "    tile.cluster_sync()"]
        return Statement(lines, self.from_peer(out, values))
