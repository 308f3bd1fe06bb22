"""What is known about neighbouring elements of an integer tile holds for all of them."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import assume, given, settings, strategies as st
from tilejit.ir.builder import Facts
from tilejit.ir.graph import Call, walk
from tilejit.passes.analysis.context import Context

pytestmark = pytest.mark.usefixtures("assembled_later")

R, C = 16, 32
LEAVES = ("i", "j", "j", "j + 8", "j - 16", "flat", "turned", "loaded", "row", "n", "n * 8", "x.shape[1]", "3", "64")
DTYPES = ("int8", "uint8", "int16", "uint32", "int32", "int64", "float32")
KERNEL = f"""
def k(x, out, n):
    i, j = tile.arange({R})[:, None], tile.arange({C})[None, :]
    flat, turned = tile.arange({R * C}).reshape(({R}, {C})), tile.arange({R * C}).reshape(({C}, {R})).T
    loaded, row = tile.load(x[0:{R}, 0:{C}]), tile.load(x[0:{R}, 3])[:, None]
    TEXT
    tile.store(out[0:{R}, 0:{C}], tile.broadcast_to(tile.cast(v, tile.int64), ({R}, {C})))
"""


@st.composite
def expressions(draw, depth=3):
    """An expression of an integer tile or scalar, of indices, loaded values, an integer argument and constants."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(LEAVES))
    a, b = (draw(expressions(depth=depth - 1)) for _ in range(2))
    constant, dtype = draw(st.sampled_from((1, 2, 3, 4, 8, 16, 31, 32))), draw(st.sampled_from(DTYPES))
    return draw(st.sampled_from((
        f"({a}) + ({b})", f"({a}) - ({b})", f"({a}) * {constant}", f"{constant} * ({a})", f"({a}) // {constant}", f"({a}) % {constant}",
        f"({a}) & {constant}", f"({a}) | {constant}", f"({a}) ^ {constant}", f"({a}) >> 2", f"({a}) << 2", f"-({a})", f"tile.minimum({a}, {b})",
        f"({a}) // ({b})", f"({a}) % ({b})",
        f"tile.where({a} < {b}, {a}, {b})", f"tile.cast({a}, tile.{dtype})", f"tile.cast(tile.cast({a}, tile.{dtype}) + {constant}, tile.int32)",
        *(f"tile.cast({a} {sign} {b}, tile.int32)" for sign in ("<", "<=", ">", ">=", "==")))))


LOOPS = ("v = {a}", "v = tile.broadcast_to({a}, (16, 32))\n    for _ in range(n % 3):\n        v = tile.cast(v + ({b}), v.dtype)",
         "v = tile.broadcast_to(tile.cast({a}, tile.int32), (16, 32))\n    if n > 100:\n"
         "        v = tile.broadcast_to(tile.cast({b}, tile.int32), (16, 32))")


def known_and_computed(text: str, n: int):
    """The context of a kernel's graph, the tile that it stores, and the tile's values; None if the simulator reports an error."""
    kernel = tile.jit(source=KERNEL.replace("TEXT", text))
    x, out = np.random.default_rng(0).integers(-100, 100, (R, C)).astype(np.int32), np.zeros((R, C), np.int64)
    try:
        if kernel.simulate(1, x, out, n).findings:
            return None
    except tile.TileError as error:
        assert "does not fit" in str(error) or "shift" in str(error) or "float" in str(error), error
        return None
    bound, options, _ = kernel._bind((x, out, n), {})
    graph = kernel.version(bound, options, "sm_90a").lowered.graph
    return Context(graph, Facts(lambda fact: False)), next(c for c in walk(graph.body) if isinstance(c, Call) and c.op.name == "store").args[1], out


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(LOOPS), expressions(), expressions(), st.integers(-50, 300))
def test_known_steps_between_neighbours_hold_in_every_element(form, a, b, n):
    found = known_and_computed(form.format(a=a, b=b), n)
    assume(found is not None)
    context, stored, out = found
    check(out, lambda axis, count: context.ramp(stored, axis, count))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(LOOPS), expressions(), expressions(), st.sampled_from((0, 8, 16, 24, 120, 304)))
def test_known_steps_between_neighbours_hold_under_the_guards_of_the_launch(form, a, b, n):
    """The arguments are multiples of 8, like the array's columns."""
    found = known_and_computed(form.format(a=a, b=b), n)
    assume(found is not None)
    context, stored, out = found
    numbers = context._arguments_behind(stored)
    check(out, lambda axis, count: context._assuming_multiples(numbers, 8, lambda: context.ramp(stored, axis, count)))


def check(out, claimed):
    for axis, values in ((-1, out), (-2, out.T)):
        for count in (1, 2, 4, 8, 16, values.shape[-1]):
            ramp = claimed(axis, count)
            if ramp is not None:
                step, divisor = ramp
                runs = values.reshape(values.shape[0], -1, count)
                assert (np.diff(runs) == step).all(), (axis, count, ramp)
                assert (runs[..., 0] == 0).all() if divisor >= 1 << 62 else (runs[..., 0] % divisor == 0).all(), (axis, count, ramp)


@pytest.mark.parametrize("text, want", [
    ("v = row * 32 + j", (1, 8)), ("v = row + n * 8", (0, 1)), ("v = flat % 32", (1, 8)), ("v = flat // 16 * 4", (0, 4)),
    ("v = tile.cast(j < n * 8, tile.int32)", (0, 1)), ("v = tile.cast((j < n * 8) & (row > 5), tile.int32)", (0, 1)), ("v = (j - 16) % 32", (1, 8)),
    ("v = tile.cast(j, tile.uint8) + tile.uint8(248)", (1, 8)), ("v = turned", None), ("v = loaded", None),
    ("v = tile.cast(j < n, tile.int32)", None), ("v = j % (x.shape[1] * 8)", (1, 8)), ("v = j // (8 * x.shape[0])", (0, 1)), ("v = j % (n * 8)", None),
    ("v = j\n    for _ in range(n):\n        v += 64", (1, 8)), ("v = j\n    for _ in range(n):\n        v += 4", (1, 4)),
    ("v = j\n    for _ in range(n):\n        v = v * 2", None)])
def test_index_and_mask_arithmetic_is_analysed(text, want):
    context, stored, _ = known_and_computed(text, 2)
    found = context.ramp(stored, -1, 8)
    assert found == want if want is None or want[1] == 1 else (found[0], found[1] % want[1]) == (want[0], 0)


def test_very_long_chains_of_arithmetic_are_not_analysed():
    """And do not exhaust Python's stack."""
    context, stored, _ = known_and_computed("v = j\n    for _ in tile.static_range(90):\n        v = v + loaded - loaded", 2)
    assert context.ramp(stored, -1, 8) is None
