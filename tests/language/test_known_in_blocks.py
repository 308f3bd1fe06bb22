"""Known bounds in branches and loops hold whenever the code runs: compared with Python running the same statements."""

from contextlib import suppress
from itertools import count, product
from types import SimpleNamespace

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.ir.builder import Facts
from tilejit.ir.graph import Call, Graph, blocks, walk
from tilejit.passes.analysis.context import Context
from tilejit.types import Tile

pytestmark = pytest.mark.usefixtures("assembled_later")

NAMES, TRIPS, EXTENTS = ("i", "j"), 5, (1, 4)


@st.composite
def sums(draw, names):
    text = draw(st.sampled_from(names))
    return draw(st.sampled_from((text, text, text, f"{text} + {draw(st.integers(1, 4))}", f"{text} - {draw(st.integers(1, 4))}", f"{text} * 8")))


@st.composite
def conditions(draw, names, depth=1):
    if depth and draw(st.booleans()):
        a, b = (draw(conditions(names, depth - 1)) for _ in range(2))
        return draw(st.sampled_from((f"({a} and {b})", f"({a} and {b})", f"({a} or {b})", f"(not {a})", f"({a} and tile.load(x[0]) == 0)",
                                     f"({a} or tile.load(x[0]) == 1)")))
    one, other = draw(sums(names)), draw(st.sampled_from(("0", "0", "size", "size", "size - 3", "n", "m", "i", "j")))
    return draw(st.sampled_from((*(f"({one} {sign} {other})" for sign in ("<", "<=", ">", ">=", "==", "!=")), f"({one} % 4 == 0)")))


@st.composite
def statements(draw, names=NAMES, depth=2, loop=False):
    """A few statements that change i and j, and store numbers computed from them."""
    lines = []
    for _ in range(draw(st.integers(1, 2))):
        inner = lambda names=names, loop=loop: ["    " + line for line in draw(statements(names, depth - 1, loop))]
        kind, index = draw(st.sampled_from(("change", *(("if", "else", "for", "while", "leave") if depth else ())))), f"k{depth}"
        if kind == "change":
            name, by = draw(st.sampled_from(NAMES)), draw(st.sampled_from(("1", "2", "8", "max(n, 0)", "m")))
            lines.append(draw(st.sampled_from((f"{name} += {by}", f"{name} -= {by}", f"{name} = {draw(sums((*names, 'n')))}"))))
        elif kind in ("if", "else"):
            lines += [f"if {draw(conditions(names))}:", *inner(), *(["else:", *inner()] if kind == "else" else [])]
        elif kind == "leave" and loop:
            lines += [f"if {draw(conditions(names))}:", f"    {draw(st.sampled_from(('break', 'continue')))}"]
        elif kind == "for":
            start, stop = draw(st.sampled_from((("0", "size"), ("size - 1", "-1"), ("n", "size - 2"), ("size", "m"), ("i", "j"), ("j", "0"))))
            step = draw(st.sampled_from((1, 2, 8, -1, -2, -8)))
            lines += [f"for {index} in range({start}, {stop}, {step}):", *inner((*names, index, index), True)]
        elif kind == "while":
            lines += [f"left{depth} = {TRIPS}", f"while {draw(conditions(names))} and left{depth} > 0:", f"    left{depth} -= 1", *inner(loop=True)]
        lines.append(f"tile.store(x[0], {draw(sums(names))})")
    return lines


def program(lines: list[str]) -> str:
    """The kernel; its stores are numbered by their position in `x`."""
    lines = ["size = x.shape[0]", "i, j = max(n, 0) * 8, size - 1", *lines]
    numbered = (line.replace("store(x[0]", f"store(x[{number}]") for number, line in enumerate(lines))
    return "def k(x, n, m):\n" + "".join(f"    {line}\n" for line in numbered)


def lowered(text: str) -> Graph:
    kernel = tile.jit(source=text)
    bound, options, _ = kernel._bind((np.zeros(64, np.int64), 1, 1), {})
    return kernel.version(bound, options, "sm_90a").lowered.graph


def known(graph: Graph) -> dict[int, tuple]:
    """For each stored number: (bounds, bounds if it may wrap, divisor, the EXTENTS from there on that are within `x`)."""
    context, found = Context(graph, Facts(lambda fact: False), wrapping=True), {}

    def block(body):
        with context.in_block(body):
            for node in body.nodes:
                if isinstance(node, Call) and node.op.name == "store":
                    place, value = context.definition(node.args[0]), node.args[1]
                    inside = [n for n in EXTENTS if context.fits(value, n, place.args[0].type.shape[0])]
                    found[place.args[1].value] = context.bounds(value), context.bounds(value, wrapping=True), context.divisor(value), inside
                for inner in blocks(node):
                    block(inner)
    block(graph.body)
    return found


class Array:
    """Stands for `x` when Python runs the kernel's text, and records the stored values by the number of the store."""

    def __init__(self, size: int):
        self.shape, self.stored = (size,), {}

    def __getitem__(self, at: int):
        return self.stored.setdefault(at, [])


PYTHON = SimpleNamespace(store=list.append, load=lambda place: 0)


class Endless(Exception):
    """Raised after too many iterations: nested loops may multiply a bound by 8 again and again."""


def stored(text: str, size: int, n: int, m: int) -> dict[int, list[int]]:
    """The stored values, up to the point where a run has taken too long."""
    trips = count()

    def counted(*bounds: int):
        for i in range(*bounds):
            if next(trips) > 10_000:
                raise Endless
            yield i

    names, x = {"tile": PYTHON, "range": counted}, Array(size)
    exec(text, names)
    with suppress(Endless):
        names["k"](x, n, m)
    return x.stored


@settings(max_examples=150, deadline=None)
@given(statements())
def test_what_is_known_in_a_block_holds_whenever_it_runs(lines):
    text = program(lines)
    facts = known(lowered(text))
    for size, n, m in product((1, 3, 8, 17), (-2, 0, 1), (-8, -1, 0, 5)):
        values = stored(text, size, n, m)
        if any(not -1 << 31 <= value < 1 << 31 for of_one in values.values() for value in of_one):
            continue  # an index that wraps is an error in the kernel
        for at, ((low, high), (least, most), divisor, inside) in facts.items():
            for value in values.get(at, ()):
                assert (low is None or low <= value) and (high is None or value <= high), f"{text}{at}: {low} to {high}, and {value}"
                assert least <= value <= most and value % divisor == 0, f"{text}{at}: {least} to {most}, a multiple of {divisor}, and {value}"
                assert all(0 <= value <= size - extent for extent in inside), f"{text}{at}: {inside} in {size}, and {value}"



def has_bounds_checks(text: str) -> bool:
    """Whether the only load of the text has bounds checks."""
    body = text.replace("\n", "\n    ")
    kernel = tile.jit(source=f"def k(x, y, n):\n    tile.assume((x.shape[1] == 64) & (y.shape[1] == 64))\n    size = x.shape[0]\n    {body}\n")
    bound, options, _ = kernel._bind((np.zeros((64, 64), np.float32), np.zeros((8, 64), np.float32), 3), {})
    graph = kernel.version(bound, options, "sm_90a").lowered.graph
    load, = (c for c in walk(graph.body) if isinstance(c, Call) and c.op.name == "load" and isinstance(c.result.type, Tile))
    return bool(load.choice.plan.checked)


def loads(at: str, rows: int = 1) -> str:
    return f"tile.store(y[0:{rows}, 0:64], tile.load(x[{at}:{at} + {rows}, 0:64]), mask=n > 100)"


@pytest.mark.parametrize("text, expected", [
    (loads("n"), True),
    (f"if n >= 0 and n < size:\n    {loads('n')}", False),
    (f"if n >= 0:\n    if size > n:\n        {loads('n')}", False),
    (f"if n < 0 or n >= size:\n    return\n{loads('n')}", False),
    (f"if not (n >= 0 and n <= size - 1):\n    pass\nelse:\n    {loads('n')}", False),
    (f"if n >= 0 and n + 4 <= size:\n    {loads('n', 4)}", False),
    (f"if n >= 0 and n + 3 <= size:\n    {loads('n', 4)}", True),
    (f"if n >= 0 and tile.load(y[0, 0]) > 0 and n < size:\n    {loads('n')}", False),
    (f"if n < size:\n    pass\nif n >= 0:\n    {loads('n')}", True),  # not after its branch
    (f"if n >= 0 and n < size:\n    pass\nelse:\n    {loads('n')}", True),
    (f"for i in range(size):\n    {loads('i')}", False),
    (f"for i in range(size):\n    if tile.load(y[0, i]) > 3:\n        break\n    {loads('i')}", False),
    (f"for i in range(0, size, 8):\n    {loads('i', 8)}", True),
    (f"tile.assume(size % 8 == 0)\nfor i in range(0, size, 8):\n    {loads('i', 8)}", False),
    (f"tile.assume(n <= size)\nfor i in range(n):\n    {loads('i')}", False),
    (f"for i in range(size - 3):\n    {loads('i + 1', 3)}", False),
    (f"for i in range(size - 1, -1, -1):\n    {loads('i')}", False),
    (f"tile.assume(size % 8 == 0)\nfor i in range(size - 8, -1, -8):\n    {loads('i', 8)}", False),
    (f"for i in range(size - 8, -8, -8):\n    {loads('i', 8)}", True),
    (f"for i in range(size, -1, -1):\n    {loads('i')}", True),
    (f"i = 0\nwhile i < size:\n    {loads('i')}\n    i += 1", False),
    (f"i = 0\nwhile i < size:\n    i += 1\n    {loads('i')}", True),  # i has changed
    (f"i = 0\nwhile i < size and tile.load(y[0, i]) > 0:\n    {loads('i')}\n    i += 1", False),
    (f"i = 0\nwhile i < size:\n    {loads('i')}\n    if n > 0:\n        i += 2\n        continue\n    i += 1", False),
    (f"i = 0\nwhile i < size:\n    {loads('i')}\n    i += n", True),  # nothing is known about n
    (f"tile.assume(n > 0)\ni = 0\nwhile i < size:\n    {loads('i')}\n    i += n", False),
    (f"tile.assume(size % 8 == 0)\ni = 0\nwhile i < size:\n    {loads('i', 8)}\n    i += 8", False),
    (f"t = tile.program_id(0)\nwhile t < size:\n    {loads('t')}\n    t += tile.num_programs(0)", False),
    (f"i = size - 1\nwhile i >= 0:\n    {loads('i')}\n    i -= 1", False),
    (f"i = size\nwhile i >= 0:\n    {loads('i')}\n    i -= 1", True),
    (f"i = size - 3\nwhile i >= 0:\n    {loads('i', 3)}\n    i -= 1", False),
    (f"i = size - 3\nwhile i >= 0:\n    {loads('i', 4)}\n    i -= 1", True),
    (f"at = size\nfor i in range(n):\n    at -= 4\n    if at >= 0:\n        {loads('at', 4)}", False),
    (f"i = 0\nwhile i < size:\n    k = tile.cast(tile.load(y[0, i]), tile.int32)\n    if k >= 0:\n        {loads('i')}\n    i += k", True),  # not in every iteration
])
def test_bounds_implied_by_conditions_and_loops_are_not_checked_again(text, expected):
    assert has_bounds_checks(text) == expected


@pytest.mark.parametrize("text", ["row = n\nif row >= 0:\n    STORE", "row = 0\nwhile row < n:\n    STORE\n    row += 8", "for row in range(n - 8, -1, -8):\n    STORE",
                                  "row = x.shape[0] - 8\nwhile row >= 0:\n    STORE\n    row -= 8"])
def test_a_store_uses_tma_if_conditions_imply_that_it_begins_inside_the_array(text):
    text = text.replace("STORE", "with tile.elect():\n        tile.copy_async(x[row:row + 8, 0:64], s)\n        tile.bulk_commit()\n        tile.bulk_wait(0)")
    body = ("s = tile.alloc((8, 64), x.dtype)\ntile.store(s, 1.0)\ntile.fence_proxy_async()\ntile.sync()\n" + text).replace("\n", "\n    ")
    kernel = tile.jit(source=f"def k(x, n):\n    {body}\n")
    assert [c.variant for c in kernel.compile(tile.ArraySpec((64, 64), "float16"), 16, target="sm_90a").copies] == ["tma"]


@pytest.mark.parametrize("text, wide", [
    ("for i in range(56, -1, -8):\n    LOAD", True), ("for i in range(n * 8, 0, -8):\n    LOAD", True), ("for i in range(n * 8, 0, -4):\n    LOAD", False),
    ("i = n * 8\nwhile i > 0:\n    LOAD\n    i -= 8", True), ("i = n * 8\nwhile i > 0:\n    LOAD\n    i -= n", False), ("i = 0\nfor k in range(n):\n    LOAD\n    i += 16", True),
    ("tile.assume(n % 8 == 0)\ni = 0\nwhile i < 64:\n    LOAD\n    i += n", True),
    ("i = 0\nwhile i < 64:\n    k = tile.cast(tile.load(x[i]), tile.int32)\n    if k % 8 == 0:\n        LOAD\n    i += k", False),  # only for this iteration
    ("i = n\nif n % 8 == 0:\n    LOAD", True), ("i = n\nif n % 8 != 0:\n    LOAD", False), ("i = n\nif n % 8:\n    return\nLOAD", True),
])
def test_loads_are_as_wide_as_loop_steps_and_conditions_allow(text, wide):
    text = text.replace("LOAD", "tile.store(y[0:1024], tile.load(x[i:i + 1024]))").replace("\n", "\n    ")
    kernel = tile.jit(source=f"def k(x, y, n):\n    {text}\n")
    array = tile.ArraySpec((4096,), "float16")
    assert ("ld.global.v4.b32" in kernel.compile(array, array, 9, target="sm_90a").ptx) == wide  # 8 would become a guard of the launch


def test_a_division_in_a_branch_is_unsigned_if_the_condition_implies_it():
    kernel = tile.jit(source="def k(out, m, n):\n    if m >= 0 and n > 0:\n        tile.store(out[0], m // n)\n")
    code = kernel.compile(tile.ArraySpec((8,), "int32"), 1, 1, target="sm_90a").llvm_ir
    assert "udiv i32" in code and "sdiv" not in code
