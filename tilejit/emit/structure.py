"""Emits loops, branches and scopes as basic blocks, with a phi for each register of each carried value."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

from ..concurrency import cached_property
from ..dtypes import bool_, int16, int32, integer_range
from ..ir.builder import ExecScope, element_type, type_of
from ..ir.graph import Call, Const, For, If, Scope, Value, While, leaves_its_range, number, walk
from ..ops.mma import mma_async_
from ..types import Tile, Uniformity
from .accumulators import Pins
from .component import Component
from .place import has_lane_loops
from .value import V


class Structure(Component):
    """The part of the emitter that writes the control flow of graph nodes."""

    scope: ExecScope
    def _pack_phi_values(self, values: list) -> list:
        """Values in the form in which phis carry them: 8- and 16-bit elements packed into words, since unpacked ones
        would each occupy a 32-bit register."""
        return [self._words_of(v) if self._in_words(v) else v for v in values]

    def _unpack_phi_values(self, words: list, values: list) -> list:
        """The inverse of `_pack_phi_values`; `values` are the unpacked originals, of the same types."""
        return [self._elements_of(w, v) if self._in_words(v) else w for w, v in zip(words, values)]

    def _words_of(self, value: list[V]) -> list[V]:
        """The words of a packed value. In kernels where wgmma reads operands from registers they are the halves of
        words: a loop would move whole ones while products that read them are in flight, and ptxas serialises those
        (C7513). It keeps both halves in one register where they come from one."""
        words = self.e.to_units(value, value[0].dtype)
        if not self._multiplies_from_registers:
            return words
        return [half for w in words for half in self.e.unpack_word(w, "i16", 2, int16)]

    def _elements_of(self, words: list[V], value: list[V]) -> list[V]:
        dtype, per = value[0].dtype, len(value) // len(words)
        return [x for w in words for x in self.e.unpack_word(w, dtype.llvm, per, dtype)]

    def _in_words(self, value) -> bool:
        """Whether a carried value is packed: its elements are narrower than the words, and fill whole ones."""
        if not isinstance(value, list) or not value:
            return False
        dtype = value[0].dtype
        narrow = ("i8",) if self._multiplies_from_registers else ("i8", "i16", "half", "bfloat")
        return dtype.llvm in narrow and len(value) * dtype.bits % 32 == 0

    @cached_property
    def _multiplies_from_registers(self) -> bool:
        return any(isinstance(n, Call) and n.op is mma_async_ and isinstance(type_of(n.args[1]), Tile)
                   for n in walk(self.e.graph.body))

    def phis(self, label: str, inits: list):
        """Start block `label` with a phi for each register of each carried value.

        Returns the phis' values, and a function ``close(finals, latch)`` that writes the phis once the values at the
        end of block `latch` (the loop's back edge) are known. Pinned accumulators need no phi.
        """
        names: list[Any] = []
        places: list[tuple[int, list[V]]] = []
        before = self.e.current
        self.e.start(label)
        for init in inits:
            if isinstance(init, Pins):
                names.append(init)
                continue
            registers = init if isinstance(init, list) else [init]
            places.append((len(self.e.lines), registers))
            made = []
            for v in registers:
                self.e.count += 1
                made.append(V(self.e, f"%v{self.e.count}", v.dtype))
                self.e.lines.append("")
            names.append(made if isinstance(init, list) else made[0])

        def close(finals: list, latch: str) -> None:
            moving = [(n, f) for n, f in zip(names, finals) if not isinstance(n, Pins)]
            for (line, registers), (made, final) in zip(places, moving):
                made, final = (x if isinstance(x, list) else [x] for x in (made, final))
                for i, (name, first, last) in enumerate(zip(made, registers, final)):
                    phi = f"phi {name.dtype.llvm} [ {first.text}, %{before} ], [ {last.text}, %{latch} ]"
                    self.e.lines[line + i] = f"  {name.text} = {phi}{self.e.debug.mark(None)}"
        return names, close

    @contextmanager
    def partial_on(self, *conditions):
        """A context for code under `conditions`: it is divergent (`partial`) if one of them may differ between
        the scope's threads, and `divided` if it may between the lanes of a warp."""
        outer = self.e.partial, self.e.divided
        levels = [c.type.uniform for c in conditions if isinstance(c, Value)]
        self.e.partial |= any(level < self.e.scope.uniformity for level in levels)
        self.e.divided |= any(level < Uniformity.WARP for level in levels)
        try:
            yield
        finally:
            self.e.partial, self.e.divided = outer

    def emit_for(self, node: For) -> None:
        if self._over_scopes(node):
            return
        start, stop = self.e.operand(node.start), self.e.operand(node.stop)
        carried = self.e.mma.hand_over([c.init for c in node.carried], [c.inner for c in node.carried])
        with self.partial_on(node.start, node.stop, node.step):
            if node.unroll == 0:
                carried = self._emit_unrolled_loop(node, carried)
            elif not isinstance(node.step, Const):
                carried = self._emit_strided_loop(node, start, stop, carried)
            else:
                index, step = start, number(node.step)
                reach = node.unroll * step - (1 if step > 0 else -1)
                # Unrolled: trips of `unroll` bodies while the last of them is below the stop,
                # then a loop of one body for the remainder.
                if node.unroll > 1 and abs(reach) <= integer_range(start.dtype)[1]:
                    index, carried = self._loop(node, index, self._clamped_difference(stop, reach), carried,
                                                node.unroll)
                _, carried = self._loop(node, index, stop, carried, 1)
        for carry, value in zip(node.carried, carried):
            self.e.values[carry.result] = value

    def _clamped_difference(self, stop: V, reach: int) -> V:
        """``stop - reach``, clamped to the dtype's range: exactly the indices i below it have ``i + reach < stop``
        (for a negative reach, above and >)."""
        least, most = integer_range(stop.dtype)
        return self.e.ins(
            f"sub {stop.dtype.llvm} {self._at_least(stop, (least if reach > 0 else most) + reach, reach > 0).text}, "
            f"{reach}", stop.dtype)

    def _at_least(self, x: V, end: int, least: bool = True) -> V:
        """``max(x, end)``, or ``min(x, end)`` if not `least`."""
        t, name = x.dtype.llvm, ("u" if x.dtype.kind == "uint" else "s") + ("max" if least else "min")
        return self.e.ins(f"call {t} @llvm.{name}.{t}({t} {x.text}, {t} {end})", x.dtype)

    def _over_scopes(self, node: For) -> bool:
        """Emit ``for i in range(a, b)`` around nothing but the scope of warpgroup, warp or thread i as one branch, in
        which i is the thread's own id: different threads run the trips, so they run side by side. False, without
        effect, for any other loop."""
        (*before, scope), start, stop = node.body.nodes or (None,), node.start, node.stop
        if not (isinstance(scope, Scope) and scope.first is node.index and scope.count == 1 and not before
                and not node.carried and isinstance(start, Const) and isinstance(stop, Const)
                and isinstance(node.step, Const) and node.step.value == 1):
            return False
        ident = {"warpgroup": self.e.warpgroup_id, "warp": self.e.warp_id,
                 "thread": self.e.absolute_thread}[scope.kind]()
        inside, done = self.e.label("scopes"), self.e.label("after")
        self.e.values[node.index] = ident
        self.e.branch_if((ident - start.value).is_below(stop.value - start.value), inside, done)
        self.e.start(inside)
        with self.e.region_of_code():
            self._inside(scope, scope.first)
        self.e.loc = node.loc
        self.e.branch(done)
        self.e.start(done)
        return True

    def _emit_unrolled_loop(self, node: For, carried: list) -> list:
        """Emit every trip; the bounds are constants."""
        for i in range(number(node.start), number(node.stop), number(node.step)):
            carried = self._trip(node, self.e.const(i, element_type(node.index)), carried)
        return carried

    def _trip(self, node: For, index: V, carried: list) -> list:
        """Emit one copy of the body; returns the carried values after it."""
        self.e.values[node.index] = index
        for carry, value in zip(node.carried, carried):
            self.e.values[carry.inner] = value
        self.e.forget_pinned()  # the last copy has changed what it read from its tiles' registers
        self.e.block(node.body)
        self.e.loc = node.loc
        inner = [c.inner for c in node.carried]
        return self.e.mma.hand_over(node.body.yields, inner, inner)

    def _loop(self, node: For, start: V, stop: V, carried: list, copies: int) -> tuple[V, list]:
        """Emit a loop with `copies` bodies per trip; returns the index and the carried values after it.

        The index may overflow its dtype after the last trip and compare below the stop again. If it is never
        negative, the comparison is unsigned instead. Otherwise the test at the loop's end is ``index != end``, where
        `end` is the value that the index wraps to, and a separate test decides whether there is a first trip. ptxas
        unrolls loops of these forms as it does others, but not loops that test the distance to the stop before the
        increment.

        Loops with large steps are not to be unrolled: ptxas 13.0 unrolls by 4, and if four steps exceed the dtype's
        range, it compares wrapped values, so that the loop may not end.
        """
        head, body, done = self.e.label("for"), self.e.label("body"), self.e.label("done")
        dtype, step = element_type(node.index), number(node.step)

        def icmp(how: str, x: V, y: V) -> V:
            return self.e.ins(f"icmp {how} {dtype.llvm} {x.text}, {y.text}", bool_)
        below, end, first = f"{'s' if dtype.kind == 'int' else 'u'}{'lt' if step > 0 else 'gt'}", stop, []
        if copies == 1 and leaves_its_range(node.stop, step, dtype):
            if dtype.kind == "int" and step > 0 and isinstance(node.start, Const) and node.start.value >= 0:
                below, end = "ult", self._at_least(stop, 0)
            else:
                end, first = self._index_after_last_trip(start, stop, step), [icmp(below, start, stop)]
        packed = self._pack_phi_values(carried)
        self.e.branch(head)
        (index, *words), close = self.phis(head, [start, *first, *packed])
        more = words.pop(0) if first else icmp(below, index, end)
        inner = self._unpack_phi_values(words, carried)
        self.e.branch_if(more, body, done)
        with self.e.region_of_code():
            self.e.start(body)
            after, at = inner, index
            for _ in range(copies):
                after = self._trip(node, at, after)
                at = self.e.ins(f"add {dtype.llvm} {at.text}, {step}", dtype)
            again = [icmp("ne", at, end)] if first else []
            after, latch = self._pack_phi_values(after), self.e.current
            far = abs(step) * copies > integer_range(dtype)[1] // 8
            self.e.stmt(f"br label %{head}{self.e.debug.not_unrolled() if far else ''}")
        close([at, *again, *after], latch)
        self.e.start(done)
        return index, inner

    def _emit_strided_loop(self, node: For, start: V, stop: V, carried: list) -> list:
        """Emit a loop whose step is a run-time value above 0. There is another trip if ``stop - index > step``, which
        cannot overflow. Counting the trips would take a division, which would delay the first one."""
        head, body, done = self.e.label("for"), self.e.label("body"), self.e.label("done")
        dtype = element_type(node.index)
        def icmp(how, x, y):
            return self.e.ins(f"icmp {how} {dtype.llvm} {x.text}, {y.text}", bool_)
        step = self.e.operand(node.step)
        first = icmp("slt" if dtype.kind == "int" else "ult", start, stop)
        packed = self._pack_phi_values(carried)
        self.e.branch(head)
        (index, more, *words), close = self.phis(head, [start, first, *packed])
        inner = self._unpack_phi_values(words, carried)
        self.e.branch_if(more, body, done)
        with self.e.region_of_code():
            self.e.start(body)
            after = self._trip(node, index, inner)
            again = icmp("ugt", self.e.ins(f"sub {dtype.llvm} {stop.text}, {index.text}", dtype), step)
            following = self.e.ins(f"add {dtype.llvm} {index.text}, {step.text}", dtype)
            after, latch = self._pack_phi_values(after), self.e.current
            self.e.branch(head)
        close([following, again, *after], latch)
        self.e.start(done)
        return inner

    def _index_after_last_trip(self, start: V, stop: V, step: int) -> V:
        """The index after the last trip, of a loop with at least one trip; it wraps around in its dtype."""
        t, dtype, (low, high) = stop.dtype.llvm, stop.dtype, (start, stop) if step > 0 else (stop, start)
        distance = self.e.ins(f"sub {t} {high.text}, {low.text}", dtype)
        last = self.e.ins(f"sub {t} {distance.text}, 1", dtype)
        whole = self.e.ins(f"mul {t} {self.e.ins(f'udiv {t} {last.text}, {abs(step)}', dtype).text}, {step}", dtype)
        return self.e.ins(f"add {t} {self.e.ins(f'add {t} {start.text}, {step}', dtype).text}, {whole.text}", dtype)

    def emit_while(self, node: While) -> None:
        head, body, done = self.e.label("while"), self.e.label("body"), self.e.label("done")
        inits = self.e.mma.hand_over([c.init for c in node.carried], [c.inner for c in node.carried])
        packed = self._pack_phi_values(inits)
        self.e.branch(head)
        words, close = self.phis(head, packed)
        inner = self._unpack_phi_values(words, inits)
        for carry, value in zip(node.carried, inner):
            self.e.values[carry.inner] = value
        with self.e.region_of_code(), self.partial_on(node.test.yields[0]):
            self.e.block(node.test)
            self.e.loc = node.loc
            self.e.branch_if(self.e.operand(node.test.yields[0]), body, done)
            self.e.start(body)
            self.e.block(node.body)
            self.e.loc = node.loc
            names = [c.inner for c in node.carried]
            following = self._pack_phi_values(self.e.mma.hand_over(node.body.yields, names, names))
            latch = self.e.current
            self.e.branch(head)
        close(following, latch)
        self.e.start(done)
        for carry, value in zip(node.carried, inner):
            self.e.values[carry.result] = value

    def emit_if(self, node: If) -> None:
        then, orelse, done = self.e.label("then"), self.e.label("else"), self.e.label("endif")
        self.e.branch_if(self.e.operand(node.test), then, orelse)
        ends = []
        for label, block, other in ((then, node.then, node.orelse), (orelse, node.orelse, node.then)):
            with self.e.region_of_code(), self.partial_on(node.test):
                self.e.start(label)
                self.e.block(block)
                self.e.loc = node.loc
                values = self.e.mma.hand_over(block.yields, node.results, other.yields)
                ends.append((self._pack_phi_values(values), self.e.current))
                self.e.branch(done)
        self.e.start(done)
        (one, first), (two, second) = ends
        joined = [self._emit_phi(a, first, b, second) for a, b in zip(one, two)]
        for result, value in zip(node.results, self._unpack_phi_values(joined, values)):
            self.e.values[result] = value

    def _emit_phi(self, a, one: str, b, two: str):
        """The phi of `a` from block `one` and `b` from block `two`."""
        if isinstance(a, Pins):
            return a
        if isinstance(a, list):
            return [self._emit_phi(x, one, y, two) for x, y in zip(a, b)]
        return self.e.ins(f"phi {a.dtype.llvm} [ {a.text}, %{one} ], [ {b.text}, %{two} ]", a.dtype)

    def emit_scope(self, node: Scope) -> None:
        first = node.first.value if isinstance(node.first, Const) else node.first
        if node.kind == "elect":
            test = self._elect()
        else:
            test = self._is_within(node.kind, first, node.count, node.threads)
        inside, done = self.e.label("scope"), self.e.label("after")
        if test is not None:
            self.e.branch_if(test, inside, done)
            self.e.start(inside)
        with self.e.region_of_code():
            self._inside(node, first)
        if test is not None:
            self.e.loc = node.loc
            self.e.branch(done)
            self.e.start(done)

    def _inside(self, node: Scope, first) -> None:
        """Emit the body of a scope."""
        elected = node.kind == "elect"
        inner = ExecScope("thread" if elected else node.kind, node.threads, first if first is not None else 0,
                          elected=elected, parent=self.e.scope)
        outer, partial, lane_loops = self.e.scope, self.e.partial, self.e.lane_loops
        self.e.scope = inner
        self.e.partial = False
        self.e.lane_loops = has_lane_loops(node.body)
        if node.regs is not None:
            self.set_registers(node.regs)
        self.e.block(node.body)
        self.e.scope = outer
        self.e.partial = partial
        self.e.lane_loops = lane_loops

    def _is_within(self, kind: str, first, count: int, size: int) -> V | None:
        """Whether the thread is in the `count` warpgroups, warps or threads from `first`;
        None if that is the whole current scope."""
        if size == self.e.threads and kind != "thread" and not isinstance(first, Value):
            return None
        ident = {"warpgroup": self.e.warpgroup_id, "warp": self.e.warp_id, "thread": self.e.absolute_thread}[kind]()
        first = self.e.operand(first) if isinstance(first, Value) else first
        return (ident - first).is_below(count) if count > 1 else ident.equals(first)

    def _elect(self) -> V | None:
        """Whether this is the elected thread of the scope: in its first warp, the lane that ``elect.sync`` elects
        (lane 0 before sm_90)."""
        if self.e.architecture < 90:
            return self.e.as_value(self.e.thread_id(), int32).equals(0)
        lane = self.e.asm(f"{{ .reg .b32 r; elect.sync r|$0, {self.e.scope_lanes()}; }}", [bool_], convergent=True)[0]
        if self.e.threads <= 32:
            return lane
        return self.e.all_of([self.e.as_value(self.e.scope_warp(), int32).equals(0), lane])

    def set_registers(self, count: int) -> None:
        """``setmaxnreg``: raise or lower the thread's registers from the number at launch (PTX ISA;
        sm_90a and later)."""
        word = "inc" if count > self.e.graph.launch.registers else "dec"
        self.e.asm(f"setmaxnreg.{word}.sync.aligned.u32 {count};", convergent=True)
