"""Helpers for ``emit`` rules: a counted loop, a branch for one thread, and exact division."""

from __future__ import annotations

from collections.abc import Callable

from ..dtypes import bool_, int32
from .parts import EmitterParts
from .value import V


class ControlMixin(EmitterParts):
    """The part of the emitter for control flow inside a rule."""

    def counted(self, n: int, body: Callable[[V], None]) -> None:
        """Emit ``for i in range(n): body(i)`` for a constant `n` of at least 1; `body` emits one trip."""
        before, head, done = self.current, self.label("loop"), self.label("looped")
        self.branch(head)
        self.start(head)
        line = len(self.lines)
        self.lines.append("")
        self.count += 1
        index = V(self, f"%v{self.count}", int32)
        with self.region_of_code():
            body(index)
            following = self.ins(f"add i32 {index.text}, 1", int32)
            again, latch = self.ins(f"icmp ult i32 {following.text}, {n}", int32), self.current
            self.branch_if(again, head, done)
        self.lines[line] = (f"  {index.text} = phi i32 [ 0, %{before} ], [ {following.text}, "
                            f"%{latch} ]{self.debug.mark(self.loc)}")
        self.start(done)

    def looped(self, start: int, stop, values: list[V], body: Callable[[V, list[V]], list[V]]) -> list[V]:
        """Emit ``for i in range(start, stop): values = body(i, values)``, not unrolled, and return the last values.
        `stop` is an int or a signed value."""
        head, inside, done = self.label("loop"), self.label("trip"), self.label("looped")
        self.branch(head)
        (index, carried), close = self._phis(head, [self.const(start, int32), values])
        self.branch_if(self.ins(f"icmp slt i32 {index.text}, {self.as_value(stop, int32).text}", bool_), inside, done)
        with self.region_of_code():
            self.start(inside)
            after = body(index, carried)
            following, latch = index + 1, self.current
            self.stmt(f"br label %{head}{self.debug.not_unrolled()}")
        close([following, after], latch)
        self.start(done)
        return carried

    def by_first_thread(self, then: Callable[[], None]) -> None:
        """Run `then` in the first thread of the scope, or if `first_thread` is None, in each thread that gets here.
        No barrier comes before."""
        first = self.first_thread()
        if first is None:
            then()
            return
        inside, done = self.label("one"), self.label("all")
        self.branch_if(first, inside, done)
        self.start(inside)
        with self.region_of_code():
            then()
        self.branch(done)
        self.start(done)

    def exactly_divided(self, a, n: int):
        """``a / n`` of a multiple of `n`, which may be negative (a copy may begin before the array)."""
        if isinstance(a, int):
            return a // n
        return self.ins(f"sdiv exact {a.typed}, {n}", a.dtype)

    def word(self, x) -> V:
        """An integer as a 32-bit value."""
        if isinstance(x, int):
            return self.const(x, int32)
        return self.ins(f"trunc i64 {x.text} to i32", int32) if x.dtype.bits == 64 else x
