"""Helpers for ``emit`` rules: a counted loop, and a branch for one thread."""

from __future__ import annotations

from collections.abc import Callable

from ..dtypes import int32
from .component import Component
from .value import V


class Control(Component):
    """The part of the emitter for control flow inside a rule."""

    def counted(self, n: int, body: Callable[[V], None]) -> None:
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
