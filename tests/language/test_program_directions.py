"""Where the number of a loop's iterations is said to grow or fall with a program's index in the grid, it does."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import tilejit as tile
from hypothesis import assume, given, settings, strategies as st
from tilejit.ir.builder import Facts
from tilejit.ir.graph import For, walk
from tilejit.passes.analysis.context import Context
from tilejit.passes.analysis.program_directions import ProgramDirections
from tilejit.passes.analysis.writing import Writer

pytestmark = pytest.mark.usefixtures("assembled_later")

IDS = range(6), range(3)  # along x and y
NUMBERS = (-3, 0, 2, 70)  # of the argument `n`
SIZE = 65
LEAVES = ("i", "j", "i * 128", "programs - 1 - i", "n", "size", "programs", "0", "3", "64", "-5")
STEPS = ("1", "64", "-3", "max(n, 1)", "programs")


@st.composite
def expressions(draw, depth=3):
    """An integer expression of the program's indices `i` and `j`, the number of `programs`, an argument, an extent and constants."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(LEAVES))
    a, b = (draw(expressions(depth=depth - 1)) for _ in range(2))
    by, shift = draw(st.sampled_from((1, 2, 3, 16, 64))), draw(st.integers(0, 3))
    return draw(st.sampled_from((
        f"({a} + {b})", f"({a} - {b})", f"({a} * {by})", f"({a} * -{by})", f"({a} * {b})", f"({a} * max({b}, 0))", f"(max({a}, 0) * max({b}, 0))",
        f"({a} // {by})", f"({a} // max({b}, 1))", f"({a} // max(n, 1))", f"tile.cdiv({a}, {by})", f"(-{a})", f"({a} >> {shift})", f"({a} << {shift})",
        f"({a} >> max(n, 0))", f"min({a}, {b})", f"max({a}, {b})", f"(max({a}, {b}) - {a})", f"({a} % {by})", f"({a} ^ {b})",
        f"({a} if n > 1 else {b})", f"({a} if i > 3 else {b})", f"tile.where(j < 1, {a}, {b})", f"tile.where(i < 3, {a}, {b})",
        f"tile.cast(tile.cast(i, tile.int64) * 3 + {b}, tile.int32)")))


def kernel(loops):
    """A kernel with these loops, each (start, stop, step)."""
    text = "".join(f"    for x in range({start}, {stop}, {step}):\n        tile.store(out[0], x)\n" for start, stop, step in loops)
    return tile.jit(source="def k(out, n):\n    i, j, programs = tile.program_id(0), tile.program_id(1), tile.num_programs(0)\n"
                           f"    size = out.shape[0]\n{text}")


def directions(loops):
    """Of the number of iterations of all loops, along x and y; None if the compiler knows of one that it has none."""
    made = kernel(loops)
    bound, options, _ = made.bind((np.zeros(SIZE, np.int64), 1), {})
    graph = made.version(bound, options, "sm_90a").lowered.graph
    context = Context(graph, Facts(lambda fact: False))
    found = [node for node in walk(graph.body) if isinstance(node, For)]
    if len(found) < len(loops):
        return None
    return [ProgramDirections(Writer.of(context), context, axis).of_iterations(found) for axis in (0, 1)]


PYTHON = {"tile": SimpleNamespace(cdiv=lambda a, b: -(-a // b), cast=lambda x, dtype: x, int32=None, int64=None, where=lambda condition, a, b: a if condition else b)}


def counts(loop, n):
    """The number of iterations of each program, with exact integers: (x, y)."""
    numbers = [[PYTHON | dict(i=i, j=j, n=n, size=SIZE, programs=len(IDS[0])) for j in IDS[1]] for i in IDS[0]]
    return [[len(range(*(eval(part, known) for part in loop))) for known in row] for row in numbers]


def holds(direction, numbers):
    return (direction is None or direction == 1 and all(a <= b for a, b in pairwise(numbers))
            or direction == -1 and all(a >= b for a, b in pairwise(numbers)) or direction == 0 and len(set(numbers)) == 1)


@settings(max_examples=600, deadline=None)
@given(expressions(), expressions(), st.sampled_from(STEPS))
def test_iterations_grow_and_fall_as_it_is_said(start, stop, step):
    found = directions([(start, stop, step)])
    assume(found is not None)
    along_x, along_y = found
    for n in NUMBERS:
        made = counts((start, stop, step), n)
        assert all(holds(along_x, column) for column in zip(*made)), f"range({start}, {stop}, {step}) along x with n = {n}"
        assert all(holds(along_y, row) for row in made), f"range({start}, {stop}, {step}) along y with n = {n}"


KNOWN = {  # a loop: its directions along x and y
    ("0", "i * 128 + 128", "64"): (1, 0), ("0", "min(i * 128 + 128, size)", "64"): (1, 0), ("0", "(programs - 1 - i) * 128", "64"): (-1, 0),
    ("i * 64", "n", "1"): (-1, 0), ("i * 64", "i * 64 + 64", "1"): (0, 0), ("n", "n + j * 2 - i", "1"): (-1, 1), ("0", "i * max(n, 0)", "1"): (1, 0),
    ("0", "i * n", "1"): (None, 0), ("0", "max(size, 0) * (i - 9)", "1"): (1, 0), ("0", "(i * 128 + 5) // 64", "1"): (1, 0), ("0", "tile.cdiv(i, 3)", "1"): (1, 0),
    ("0", "tile.cdiv(i, programs)", "1"): (1, 0), ("0", "size // max(i, 1)", "1"): (None, 0), ("0", "i >> n", "1"): (1, 0), ("0", "n << i", "1"): (None, 0),
    ("0", "i % 3", "1"): (None, 0), ("0", "i if n > 1 else 3 * i", "1"): (1, 0), ("0", "i if i > 3 else 3 * i", "1"): (None, 0), ("0", "size", "i + 1"): (None, 0),
    ("i", "-5", "-3"): (1, 0), ("0", "tile.where(j < 1, i, 2 * i)", "1"): (1, None), ("0", "tile.cast(i * i, tile.int64) - n", "programs"): (1, 0),
    ("max(i * 128 - 64, 0)", "i * 128 + 128", "64"): (None, 0), ("0", "-(i * 3) * min(n, -1)", "1"): (1, 0), ("0", "tile.cast(i * 1.5, tile.int32)", "1"): (None, 0),
}


@pytest.mark.parametrize("loop", KNOWN, ids=", ".join)
def test_what_is_known_of_iterations(loop):
    assert tuple(directions([loop])) == KNOWN[loop]


def test_of_loops_that_follow_each_other_where_one_ends_and_the_next_begins_does_not_matter():
    ahead, diagonal = ("0", "i * 128", "64"), ("i * 128", "i * 128 + 128", "64")
    assert directions([ahead, diagonal]) == [1, 0]
    assert directions([("0", "j * 64", "64"), ("j * 64", "size", "64")]) == [0, 0]
    assert directions([("0", "i * 128", "64"), ("i * 128", "size", "32")]) == [None, 0]
    assert directions([("0", "i", "1"), ("0", "j", "1")]) == [1, 1]
