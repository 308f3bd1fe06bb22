"""Hidden variables of constructs: control flow carries them like named variables."""

import tilejit as tile
from graphs import body, error, expect, marked
from tilejit.ir.builtin import MEMBERS, builtin
from tilejit.ops.language import operators


class Counter:
    """A construct with a hidden cursor."""

    def __init__(self, number: int):
        self.key = ("count", number)


@builtin
def counter(g):
    """A new counter."""
    made = g.state.setdefault("counters", [])
    made.append(None)
    return Counter(len(made))


def _next(g, counter):
    held = g.cells.setdefault(counter.key, 0)
    g.cells[counter.key] = held + 1 if isinstance(held, int) else operators.binary(g, "+", held, 1)
    return held


MEMBERS[Counter, "next"] = (_next, True)


@tile.jit
def advance(c):
    c.next()


def test_a_cursor_is_carried_through_loops_branches_and_helpers():
    def kernel(y, n):
        c = counter()
        c.next()
        for i in range(n):
            if i > 3:
                advance(c)
        tile.store(y[c.next()], 1.0)

    expect(kernel, """
        for %i in range(0, %n, 1) carry %count: int32@grid = 1
          %gt = gt(%i, 3) : bool@grid
          if %gt
            %add = add(%count, 1) : int32@grid
            yield %add
          else
            yield %count
          -> %count.1: int32@grid
          yield %count.1
        -> %count.2
        %add.1 = add(%count.2, 1) : int32@grid
        %region = region(%y, %count.2, extents=(1,), kept=()) : region [] of global float32[64]:(1)
        store(%region, 1.0, none, each_thread=False)
        """)


def test_a_cursor_first_used_in_a_loop_is_initialised_before_it():
    def kernel(y, n):
        c = counter()
        for i in range(n):
            for j in range(n):
                tile.store(y[c.next()], 1.0)

    assert "carry %count: int32@grid = 0" in body(kernel)


def test_a_cursor_without_control_flow_is_a_constant():
    def kernel(y):
        c = counter()
        for i in tile.static_range(3):
            c.next()
        tile.store(y[c.next()], 1.0)

    assert "region(%y, 3," in body(kernel)


def test_a_cursor_advanced_in_a_scope_is_unknown_outside():
    def kernel(y, n):
        c = counter()
        with tile.warp(0):
            for i in range(n):
                c.next()
        c.next()

    assert error(kernel).startswith("a cursor of this construct is counted inside an execution scope, and registers cannot leave it")


def test_a_loop_around_a_scope_does_not_carry_counters_of_loops_inside_the_scope():
    def copies(x, y, n):
        s = tile.alloc((64,), tile.float32)
        for i in range(n):
            with tile.warp(0):
                for j in range(n):
                    tile.copy_async(s, x[0:64]).wait()

    def slots(x, y, n):
        ring = tile.ring(2, A=((64,), tile.float32), filled="stores")
        for i in range(n):
            with tile.warp(0):
                for j in range(n):
                    with ring.produce() as slot:
                        tile.store(slot.A[0], 1.0)

    for kernel, count in ((copies, "how many copies these threads have issued"), (slots, "the place of these threads in their ring")):
        text = error(kernel)
        assert text.startswith(f"{count} is counted inside an execution scope, and registers cannot leave it; write the loops around it inside the scope, "
                               "with what these threads do after it\ncounted here:\n")
        assert "for j in range(n):" in text and marked(text) == "for i in range(n):"
