"""The known bounds and divisors of integers hold for every thread."""

import re

import numpy as np
import pytest
import tilejit as tile
from hypothesis import assume, given, settings, strategies as st
from tilejit.ir.builder import Facts
from tilejit.ir.graph import Call, walk
from tilejit.passes.analysis.context import Context

pytestmark = pytest.mark.usefixtures("assembled_later")

THREADS = 128
LEAVES = ("t", "t * 6", "t * 16", "n", "n * 12", "0", "3", "48", "200")
WRAPPING = (*LEAVES, "t * 100000007", "n * 1103515245", "n + 2147483647", "-2147483648", "tile.program_id(0)", "tile.num_programs(0)", "out.shape[0]",
            "tile.program_id(0) * 1103515245 + 12345", "tile.num_programs(0) * -2147483647", "out.shape[0] * 33554432")
DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")


@st.composite
def expressions(draw, depth=3, leaves=LEAVES):
    """An integer expression of the thread's number `t`, an integer argument `n` and constants."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(leaves))
    a, b = (draw(expressions(depth=depth - 1, leaves=leaves)) for _ in range(2))
    dtype, constant = draw(st.sampled_from(DTYPES)), draw(st.sampled_from((1, 2, 6, 10, 16, 100)))
    return draw(st.sampled_from((
        f"({a}) + ({b})", f"({a}) - ({b})", f"({a}) * {constant}", f"({a}) // {constant}", f"({a}) % {constant}", f"({a}) & {constant}",
        f"({a}) // tile.maximum({b}, 0)", f"({a}) % tile.maximum({b}, 0)", f"tile.maximum({a}, 0) // tile.maximum({b}, 0)",
        f"tile.maximum({a}, -3) % tile.minimum(tile.maximum({b}, 0), 9)",
        *((f"({a}) * ({b})", f"({a}) // ({b})", f"({a}) % ({b})") if leaves is WRAPPING else ()),
        f"({a}) | ({b})", f"({a}) ^ ({b})", f"({a}) >> 2", f"({a}) << 3", f"-({a})", f"tile.minimum({a}, {b})", f"tile.maximum({a}, {b})",
        f"tile.where({a} > {b}, {a}, {b})", f"tile.cast({a}, tile.{dtype})", f"tile.cast(({a}) * {constant}.5, tile.{dtype})",
        f"tile.cast(tile.cast({a}, tile.{dtype}) + {min(constant, 100)}, tile.int32)", f"tile.cast({a} > {b}, tile.int32)")))


def known_and_computed(text: str, n: int, wrapping: bool = False):
    """The known (bounds, divisor) of an expression, and its values per thread; None if the simulator reports an error."""
    kernel = tile.jit(source=f"def k(out, n):\n    t = tile.thread_id()\n    x = {text}\n    tile.store(out[t], tile.cast(x, tile.int64))\n")
    out = np.zeros(THREADS, np.int64)
    try:
        if kernel.simulate(1, out, n).findings:
            return None
    except (tile.CompilationError, tile.LaunchError) as error:
        assert "does not fit" in str(error) or "ZeroDivisionError" in str(error), error
        return None
    bound, options, _ = kernel._bind((out, n), {})
    graph = kernel.version(bound, options, "sm_90a").lowered.graph
    stored = next(c for c in walk(graph.body) if isinstance(c, Call) and c.op.name == "store").args[1]
    context = Context(graph, Facts(lambda fact: False), wrapping=True)
    return context.bounds(stored, wrapping), context.divisor(stored), out


@settings(max_examples=150, deadline=None)
@given(expressions(), st.integers(-50, 300))
def test_bounds_and_divisors_hold_in_every_thread(text, n):
    found = known_and_computed(text, n)
    assume(found is not None)
    (low, high), divisor, values = found
    assert low is None or low <= values.min(), f"{text}: at least {low}, and {values.min()}"
    assert high is None or values.max() <= high, f"{text}: at most {high}, and {values.max()}"
    assert not (values % divisor).any(), f"{text}: a multiple of {divisor}, and {values[values % divisor != 0][0]}"


@settings(max_examples=150, deadline=None)
@given(expressions(leaves=WRAPPING), st.integers(-(1 << 31), (1 << 31) - 1))
def test_bounds_of_integers_that_may_wrap_hold_in_every_thread(text, n):
    found = known_and_computed(text, n, wrapping=True)
    assume(found is not None)
    (low, high), _, values = found
    assert low <= values.min() and values.max() <= high, f"{text}: {low} to {high}, and {values.min()} to {values.max()}"


NATURAL = ("tile.program_id(0) // tile.num_programs(0)", "t % max(n, 1)", "tile.program_id(0) // 48", "max(n, 0) % max(out.shape[0], 1)",
           "t // 4 % max(min(n, 16), 1)")
POSITIVE = ("n // tile.num_programs(0)", "n % max(n, 1)", "(t - 1) // max(n, 1)", "tile.program_id(0) * 1103515245 % tile.num_programs(0)",
            "(max(n, 0) + 1) // max(n, 1)", "t // min(n, -1)", "n // min(n, -2)")
UNKNOWN = ("t // n", "t % max(n, 0)", "n // out.shape[0]", "t % (max(n, 1) * 3)")
WRAPPING_DIVISIONS = ("n // min(n, -1)", "n % (max(n, 1) * 3)")


@pytest.mark.parametrize("text", (*NATURAL, *POSITIVE, *UNKNOWN, *WRAPPING_DIVISIONS))
def test_a_division_is_as_short_as_its_operands_allow(text):
    """Unsigned if neither operand can be negative; handling of division by 0 only if the divisor can be 0, and of the least integer divided
    by -1 only if that can occur. A sum or product that may wrap can be any number."""
    kernel = tile.jit(source=f"def k(out, n):\n    t = tile.thread_id()\n    x = {text}\n    tile.store(out[t], x)\n")
    code = kernel.compile(tile.ArraySpec((THREADS,), "int32"), 1, target="sm_90a").llvm_ir
    assert ("udiv i32" in code or "urem i32" in code) == (text in NATURAL)
    assert ("sdiv i32" in code or "srem i32" in code) == (text not in NATURAL)
    assert ("icmp eq i32" in code) == (text in UNKNOWN)
    assert bool(re.search("icmp ult i32 .*, 2", code)) == (text in WRAPPING_DIVISIONS)


def test_assumptions_about_both_operands_make_a_division_unsigned():
    kernel = tile.jit(source="def k(out, m, n):\n    tile.assume((m >= 0) & (n > 0))\n    tile.store(out[tile.thread_id()], m // n)\n")
    code = kernel.compile(tile.ArraySpec((THREADS,), "int32"), 1, 1, target="sm_90a").llvm_ir
    assert "udiv i32" in code and "icmp eq i32" not in code


@pytest.mark.parametrize("text, known", [("max(t - 3, 0) // max(n, 0)", (0, 124)), ("max(n, 0) // t", (0, None)), ("(t - 3) % max(n, 0)", (-3, None)),
                                         ("t % max(n, 0)", (0, None)), ("(t - 3) % min(max(n, 0), 9)", (-3, 124)), ("t % max(n, 1)", (0, None)),
                                         ("t // n", (None, None))])
def test_bounds_of_a_division_include_the_result_for_a_divisor_of_0(text, known):
    """A number divided by 0 gives 0, and itself as the remainder."""
    for n in (0, 5):
        (low, high), divisor, values = known_and_computed(text, n)
        assert (low, high) == known
        assert (low is None or low <= values.min()) and (high is None or values.max() <= high) and not (values % divisor).any()


def test_an_index_computed_with_floats_has_no_divisor_from_their_integer_factors():
    (_, _), divisor, values = known_and_computed("tile.cast(t * 4.5, tile.int32)", 0)
    assert divisor == 1 and values[3] == 13


def test_an_index_that_may_wrap_in_a_narrow_dtype_can_be_any_number_of_it():
    bounds, _, values = known_and_computed("tile.cast(tile.cast(t, tile.uint8) - 10, tile.int32)", 0)
    assert bounds == (0, 255) and values.max() == 255


@pytest.mark.parametrize("text", ["t * 6364136223846793005 % 1024", "(t + 7) * 2654435761 * 2654435761 % 4096", "t * -6364136223846793005",
                                  "(t + 1) * 1000003 * 1000003 % 64", "t * 100000000 >> 28", "tile.minimum(t * 100000000 >> 28, 7)",
                                  "(t + 5) * 6364136223846793005 >> 60", "(t - 50) * 100000000", "(t * 3) << 28"])
def test_a_product_that_surely_wraps_keeps_only_power_of_two_divisors(text):
    """Hashes multiply by large odd numbers; an index computed from one has no known divisor."""
    (low, high), divisor, values = known_and_computed(text, 0)
    assert (low is None or low <= values.min()) and (high is None or values.max() <= high) and not (values % divisor).any()


def test_a_loaded_byte_has_the_bounds_of_a_byte():
    bounds, *_ = known_and_computed("tile.cast(tile.cast(tile.load(out[t]), tile.uint8), tile.int32)", 0)
    assert bounds == (0, 255)


@pytest.mark.parametrize("text, multiple", [("t * 64 // 2", 32), ("t * 64 >> 1", 32), ("(t * 48 + 96) // 12", 4), ("t * 64 // 3", 1),
                                            ("t & ~15", 16), ("t * 6 & ~1", 2)])
def test_quotients_and_remainders_of_multiples_are_known_multiples(text, multiple):
    (_, _), divisor, values = known_and_computed(text, 0)
    assert divisor == multiple and not (values % multiple).any()


SQUARE = tile.ArraySpec((64, 64), "float32")


def stores(index: str):
    return tile.jit(source=f"def k(x):\n    n = x.shape[0]\n    tile.store(x[0, {index}], 0)\n").compile(SQUARE)


@pytest.mark.parametrize("loop", ["for i in range(6):", "while i < 6:"])
@pytest.mark.parametrize("begin,trip,divisor", [
    ("0, 0", "a + 16, b", 16), ("64, 0", "a - 24, b", 8), ("0, 0", "a + n * 16, b", 16), ("48, 32", "b, a", 16), ("0, 8", "b, a + 12", 4),
    ("16, 0", "a * 3, b", 16), ("12, 0", "a + n * 6, b", 6), ("0, 0", "a + a + 1, b", 1), ("0, 48", "b, b + 1", 1), ("40, 8", "tile.maximum(a, 8) + (24 if i % 2 == 0 else b), b", 8),
    ("0, 0", "inner(a) + 6, b", 2), ("n, 0", "a + 16, b", 1),
    ("48, 96", "b, a + 144", 48), ("96, 144", "inner(b) - 8, a", 2)])
def test_a_carried_value_is_a_multiple_of_what_divides_its_start_and_every_change(loop, begin, trip, divisor):
    kernel = tile.jit(source=f"def k(out, n):\n    a, b = {begin}\n    i = 0\n    {loop}\n        tile.store(out[i], a)\n        a, b = {trip}\n"
                             f"        {'i = i + 1' if 'while' in loop else 'pass'}\n    tile.store(out[6], a)\n")
    kernel.source.globals.update(tile=tile, inner=four_more)
    out = np.zeros(7, np.int32)
    kernel.simulate(1, out, 5).raise_first()
    bound, options, _ = kernel._bind((out, 5), {})
    graph = kernel.version(bound, options, "sm_90a").lowered.graph
    inside, after = (c.args[1] for c in walk(graph.body) if isinstance(c, Call) and c.op.name == "store")
    known = [Context(graph, Facts(lambda fact: False)).divisor(x) for x in (inside, after)]
    assert known == [divisor, divisor] and not (out % divisor).any()


@tile.jit
def four_more(a):
    for j in range(4):
        a = a + 2
    return a


def test_an_expression_written_twice_in_a_slice_is_recognised_as_equal():
    for start in ("tile.program_id(0) * 16", "tile.program_id(0) // 2 * 16", "n % 48", "tile.minimum(n, tile.program_id(1))", "x.shape[1] - 16"):
        stores(f"{start}:{start} + 16")
        stores(f"({start}) + 4:8 + ({start})")


@settings(max_examples=60, deadline=None)
@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9), st.integers(1, 4), st.booleans(), st.sampled_from(["n", "n * 3", "n - p", "tile.int64(n) + p"]))
def test_quotients_by_a_constant_differ_by_a_constant_where_their_numerators_do_by_a_multiple(first, second, by, extent, shift, number):
    """``x[c // 8:(c + 32) // 8]`` has 4 elements, wherever c is: the quotient of what is left, rounded down, is the same in both."""
    by = 1 << by % 4 if shift else by
    start, stop = (f"({number} + {k * by + second}) {f'>> {by.bit_length() - 1}' if shift else f'// {by}'}" for k in (first, first + extent))
    kernel = tile.jit(source=f"def k(x, n):\n    p = tile.program_id(0)\n    tile.store(x[{start}:{stop}], 1.0)\n")
    x = np.zeros(40, np.float32)
    kernel.simulate(1, x, 50).raise_first()
    low = (eval(number, {"n": 50, "p": 0, "tile": type("", (), {"int64": int})}) + first * by + second) // by
    np.testing.assert_array_equal(x, [low <= i < low + extent for i in range(40)])


def test_expressions_that_may_differ_are_not_taken_as_equal():
    load = "tile.cast(tile.load(x[0, 0]), tile.int32)"
    for start, stop in (("tile.program_id(0)", "tile.program_id(1)"), (load, load), ("n // 2", "n // 3"), ("n // 2", "x.shape[1] // 2"),
                        ("n // 16", "(n + 8) // 16"), ("n >> 2", "n // 8 * 2"), ("n // tile.program_id(0)", "(n + 16) // tile.program_id(0)")):
        with pytest.raises(tile.CompilationError, match="the extent of a slice"):
            stores(f"{start}:{stop} + 16")


def test_ids_have_the_bounds_of_the_launch():
    """In LLVM's range notation, whose exclusive stop may be the least int32."""
    kernel = tile.jit(source="def k(out):\n    tile.store(out[tile.thread_id()], tile.program_id(1) * tile.num_programs(0))\n")
    code = kernel.compile(tile.ArraySpec((256,), "int32"), num_warps=8, target="sm_90a").llvm_ir
    for known, register in (("0, 256", "tid.x"), ("0, 65535", "ctaid.y"), ("1, -2147483648", "nctaid.x")):
        assert f"call range(i32 {known}) i32 @llvm.nvvm.read.ptx.sreg.{register}()" in code
