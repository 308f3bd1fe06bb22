"""Helpers for ``emit`` rules: counted loops, and branches."""

from __future__ import annotations

from collections.abc import Callable

from ..dtypes import bool_, int32
from .component import Component
from .value import V


class Control(Component):
    """The part of the emitter for control flow inside a rule."""

    def emit_counted_loop(self, n: int, body: Callable[[V], None]) -> None:
        """Emit ``for i in range(n): body(i)`` for a constant `n` of at least 1; `body` emits one trip."""
        before, head, done = self.e.current, self.e.label("loop"), self.e.label("looped")
        self.e.branch(head)
        self.e.start(head)
        line = len(self.e.lines)
        self.e.lines.append("")
        self.e.count += 1
        index = V(self.e, f"%v{self.e.count}", int32)
        with self.e.region_of_code():
            body(index)
            following = self.e.ins(f"add i32 {index.text}, 1", int32)
            again, latch = self.e.ins(f"icmp ult i32 {following.text}, {n}", int32), self.e.current
            self.e.branch_if(again, head, done)
        self.e.lines[line] = (f"  {index.text} = phi i32 [ 0, %{before} ], [ {following.text}, "
                              f"%{latch} ]{self.e.debug.mark(self.e.loc)}")
        self.e.start(done)

    def emit_loop(self, start: int, stop, values: list[V], body: Callable[[V, list[V]], list[V]]) -> list[V]:
        """Emit ``for i in range(start, stop): values = body(i, values)``, not unrolled, and return the last values.
        `stop` is an int or a signed value."""
        head, inside, done = self.e.label("loop"), self.e.label("trip"), self.e.label("looped")
        self.e.branch(head)
        (index, carried), close = self.e.structure.phis(head, [self.e.const(start, int32), values])
        again = self.e.ins(f"icmp slt i32 {index.text}, {self.e.as_value(stop, int32).text}", bool_)
        self.e.branch_if(again, inside, done)
        with self.e.region_of_code():
            self.e.start(inside)
            after = body(index, carried)
            following, latch = index + 1, self.e.current
            self.e.stmt(f"br label %{head}{self.e.debug.not_unrolled()}")
        close([following, after], latch)
        self.e.start(done)
        return carried

    def emit_either(self, test: V, then: Callable[[], list[V]], orelse: Callable[[], list[V]]) -> list[V]:
        """Emit a branch, and return the values of the code that ran: of `then` where the test holds, or else of
        `orelse`."""
        ways, done = (self.e.label("then"), self.e.label("else")), self.e.label("either")
        self.e.branch_if(test, *ways)
        made, ends = [], []
        for label, code in zip(ways, (then, orelse)):
            self.e.start(label)
            with self.e.region_of_code():
                made.append(code())
            ends.append(self.e.current)
            self.e.branch(done)
        self.e.start(done)
        return [self.e.ins(f"phi {a.dtype.llvm} [ {a.text}, %{ends[0]} ], [ {b.text}, %{ends[1]} ]", a.dtype)
                for a, b in zip(*made)]

    def by_first_thread(self, then: Callable[[], None]) -> None:
        """Run `then` in the first thread of the scope, or if `first_thread` is None, in each thread that gets here.
        No barrier comes before."""
        first = self.e.first_thread()
        if first is None:
            then()
            return
        inside, done = self.e.label("one"), self.e.label("all")
        self.e.branch_if(first, inside, done)
        self.e.start(inside)
        with self.e.region_of_code():
            then()
        self.e.branch(done)
        self.e.start(done)
