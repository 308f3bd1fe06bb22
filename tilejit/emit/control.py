"""Helpers for ``emit`` rules: a counted loop, and a branch for one thread."""

from __future__ import annotations

from collections.abc import Callable

from ..dtypes import int32
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
