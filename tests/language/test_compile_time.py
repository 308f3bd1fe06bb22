"""What a kernel computes while compiling: plain functions, lists, dicts, comprehensions, lambdas, recursion, `match`."""

from __future__ import annotations

import functools  # noqa: F401 - the expressions name these
import itertools  # noqa: F401
import math  # noqa: F401
import operator  # noqa: F401

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st

from tests.language import configurations
from tests.language.configurations import Activation, Plan, factorial, next_power_of_2  # noqa: F401

N = 40
WEIGHTS = [1, 2, 3]
NAMED = {"scale": 2.0, "shift": (1.0, -1.0)}


def run(kernel, *args, **constants):
    y = np.zeros(N, np.float32)
    kernel[1](y, *args, **constants)
    return y


def value_of(code: str, **names):
    """What an expression of constants is in a kernel."""
    seen = []
    source = f"def kernel(y):\n    keep(({code}))\n"
    kernel = tile.jit(source=source)
    kernel.source.globals.update(globals() | names, keep=lambda x: seen.append(x))
    kernel[1](np.zeros(1, np.float32))
    return seen[0]


# -- plain functions ---------------------------------------------------------------------------------------------------

@tile.jit
def planned(y, SIZE: tile.constexpr):
    plan = configurations.chosen(SIZE)
    tile.store(y[0:plan.block], tile.full((plan.block,), plan.warps + factorial(4), y.dtype))


def test_plain_functions_of_other_modules_run_while_compiling():
    y = run(planned, SIZE=100)
    assert (y[:32] == 4 + 24).all() and not y[32:].any()


def test_what_a_plain_function_reads_is_part_of_the_kernel(monkeypatch):
    run(planned, SIZE=100)
    captured = {c.name for v in planned.versions.values() for version in v for c in version.captured}
    assert {"LIMIT", "SIZES", "next_power_of_2", "Plan", "factorial", "configurations.chosen"} <= captured
    monkeypatch.setattr(configurations, "LIMIT", 16)
    assert np.count_nonzero(run(planned, SIZE=100)) == 16
    monkeypatch.setitem(configurations.SIZES, 64, (6, 2))
    assert run(planned, SIZE=100)[0] == 6 + 24
    monkeypatch.setattr(configurations, "next_power_of_2", lambda n: 8)
    assert np.count_nonzero(run(planned, SIZE=100)) == 8
    monkeypatch.undo()
    assert run(planned, SIZE=100)[0] == 4 + 24


def test_the_cache_on_disk_knows_what_plain_functions_read(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    spec = np.zeros(N, np.float32)

    def key():
        planned.versions.clear()
        return planned.compile(spec, SIZE=100)

    first, again = key(), key()
    assert "cache" in again.compile_time and again.key == first.key
    monkeypatch.setattr(configurations, "LIMIT", 16)
    changed = key()
    assert changed.key != first.key and "assemble" in changed.compile_time
    monkeypatch.undo()
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    assert key().key == first.key
    planned.versions.clear()


def test_methods_of_constants_and_functions_of_python_s_library_are_called():
    plan = Plan(64)
    assert value_of("plan.halves()", plan=plan) == [32, 32]
    assert value_of("functools.reduce(operator.mul, WEIGHTS)") == 6
    assert value_of("list(itertools.product((1, 2), 'ab'))") == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert value_of("math.gcd(12, 18) + next_power_of_2(33)") == 70


# -- lists, dicts, sets ------------------------------------------------------------------------------------------------

EXPRESSIONS = [
    "[1, 2, *WEIGHTS]", "{**NAMED, 'more': 3}", "{1, 2, 3}", "[i * i for i in range(5) if i % 2]", "[(i, j) for i in range(3) for j in range(i)]",
    "{k: len(str(v)) for k, v in NAMED.items()}", "{i % 3 for i in range(10)}", "tuple(i for i in (3, 1, 2))", "sum(i for i in range(5))",
    "max([3, 1, 2])", "min(NAMED)", "sorted([3, 1, 2], reverse=True)", "sorted(WEIGHTS, key=lambda v: -v)", "max('ab', 'c', key=len)",
    "list(map(lambda a, b: a + b, (1, 2), (3, 4)))", "list(filter(lambda v: v > 1, WEIGHTS))", "[1, 2] + [3]", "[0] * 3", "[1, 2, 3][1:]",
    "NAMED['scale'], NAMED.get('none', 7)", "list(NAMED), list(NAMED.values())", "2 in WEIGHTS, 'scale' in NAMED, 5 not in {1, 2}",
    "[m.name for m in Activation]", "Activation('relu') is Activation.RELU", "Activation.RELU.value + Activation['NONE'].name",
    "f'{WEIGHTS[0]:>4}|{3.14159:.2f}|{Activation.RELU.name!r}|{\"x\":{4}}'", "dict(a=1, **{'b': 2})", "dict([(1, 2), (3, 4)])", "len(WEIGHTS), len(NAMED)",
    "getattr(Activation.RELU, 'value')", "hasattr(WEIGHTS, 'append')", "[list(p) for p in zip(WEIGHTS, 'abc')]", "[[0] * 2 for _ in range(2)]",
    "(lambda a, b=2, *c: (a, b, c))(1)", "(lambda f: f(f, 5))(lambda f, n: 1 if n < 2 else n * f(f, n - 1))", "any([0, 1]), all([]), bool([])",
    "isinstance(WEIGHTS, list), type(3) is int", "list(reversed(WEIGHTS)), list(enumerate('ab'))", "'-'.join(str(i) for i in WEIGHTS)",
    "WEIGHTS.index(2), WEIGHTS.count(3)", "{1, 2} | {3}, {1, 2} & {2}", "ord('a'), chr(98), hex(255)", "[x for x in 'abc'][-1]",
]


@pytest.mark.parametrize("code", EXPRESSIONS)
def test_an_expression_of_constants_is_what_python_makes_it(code):
    want = eval(code, globals())
    got = value_of(code)
    assert got == want and type(got) is type(want)


VALUES = st.recursive(st.integers(-9, 9), lambda v: st.lists(v, max_size=3) | st.dictionaries(st.integers(0, 3), v, max_size=3), max_leaves=6)
CHANGES = ["xs.append({v})", "xs[0] = {v}", "xs[-1] = {v}", "xs += [{v}]", "xs.insert(1, {v})", "xs.extend([{v}, {v}])", "xs.pop()", "xs.reverse()",
           "xs[0:2] = [{v}]", "d[{k}] = {v}", "d.update({{{k}: {v}}})", "d.setdefault({k}, {v})", "d.pop({k}, None)", "d[9] = len(d)", "xs.clear()",
           "d[{k}] = xs.pop() if xs else 0", "xs[0], d[{k}] = {v}, {v}"]


@settings(deadline=None, max_examples=60)
@given(st.lists(VALUES, min_size=1, max_size=3), st.lists(st.tuples(st.sampled_from(CHANGES), VALUES, st.integers(0, 3)), max_size=6))
def test_changes_in_place_give_what_they_give_in_python(first, steps):
    lines = [f"xs = {first!r}", "d = {}", *(change.format(v=v, k=k) for change, v, k in steps), "keep((xs, d))"]
    names: dict = {}
    try:
        exec("\n".join(lines[:-1]), names)
    except (IndexError, KeyError):
        names = {}
    seen: list = []
    kernel = tile.jit(source="def kernel(y):\n    " + "\n    ".join(lines) + "\n")
    kernel.source.globals.update(keep=lambda x: seen.append(x))
    if not names:
        with pytest.raises(tile.CompilationError, match="IndexError|KeyError"):
            kernel[1](np.zeros(1, np.float32))
        return
    kernel[1](np.zeros(1, np.float32))
    assert seen == [(names["xs"], names["d"])]


@tile.jit
def accumulators(x, y, COUNT: tile.constexpr):
    sums = [tile.zeros((N,), y.dtype) for _ in range(COUNT)]
    by_name = {"last": tile.zeros((N,), y.dtype)}
    for step in range(3):
        for i in tile.static_range(COUNT):
            sums[i] += tile.load(x[0:N]) * (i + 1)
        if step > 0:
            by_name["last"] = sums[-1]
    total = by_name["last"]
    for part in sums:
        total += part
    tile.store(y[0:N], total)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_lists_and_dicts_hold_tiles_and_loops_on_the_device_carry_them(dtype):
    x, y = np.arange(N).astype(dtype), np.zeros(N, dtype)
    accumulators[1](x, y, COUNT=3)
    assert np.array_equal(y, (x * (3 * (1 + 2 + 3) + 9)).astype(dtype))


@tile.jit
def by_lists(x, y):
    v = tile.load(tile.window(x, [1, 0], [3, None])[0:3, 0:4])
    planes = tile.stack([v * i for i in range(2)])
    low, high = tile.reduce([planes, planes], [1, 2], smaller_and_larger)
    seen = tile.transpose(planes, [2, 0, 1]).reshape([4, 6]) + tile.full([4, 6], 1.0)
    tile.store(y[0:4], tile.sum(tile.expand_dims(seen, [0, 3]), axis=[0, 2, 3]) + tile.zeros([4]))
    tile.store(y[4:6], low)
    tile.store(y[6:8], high)


@tile.jit
def smaller_and_larger(a, b):
    return [tile.minimum(a[0], b[0]), tile.maximum(a[1], b[1])]


def test_a_list_of_extents_axes_or_tiles_is_as_good_as_a_tuple():
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    y, rows = np.zeros(8, np.float32), x[1:]
    by_lists[1](x, y)
    np.testing.assert_array_equal(y, [*(rows.sum(0) + 6), 0, rows.min(), 0, rows.max()])


def test_a_captured_list_or_dict_is_read_anew_when_it_changes(monkeypatch):
    @tile.jit
    def kernel(y):
        v = tile.zeros((N,), y.dtype)
        for w in WEIGHTS:
            v = v + w
        tile.store(y[0:N], v * NAMED["scale"] + NAMED["shift"][0])

    assert (run(kernel) == 13).all()
    monkeypatch.setitem(NAMED, "scale", 3.0)
    assert (run(kernel) == 19).all()
    WEIGHTS.append(4)
    try:
        assert (run(kernel) == 31).all()
    finally:
        WEIGHTS.pop()


def test_the_names_of_a_comprehension_and_of_a_lambda_are_their_own():
    @tile.jit
    def kernel(y):
        i, w = 5, 7
        squares = [i * i for i in range(4)]
        shifted = (lambda w: w + i)(1)
        i = 6
        later = (lambda: i)()
        tile.store(y[0], i + w + sum(squares) + shifted + later)

    assert run(kernel)[0] == 6 + 7 + 14 + 6 + 6


def test_lambdas_take_run_time_values_and_are_passed_to_helpers_and_reductions():
    @tile.jit
    def applied(f, v):
        return f(v)

    @tile.jit
    def kernel(y, n):
        scale = n + 1
        v = applied(lambda v: v * scale, tile.arange(N).to(y.dtype))
        tile.store(y[0:N], v + tile.reduce(v, 0, lambda a, b: a + b))

    assert np.array_equal(run(kernel, 2), np.arange(N) * 3 + 3 * sum(range(N)))


# -- recursion and match -----------------------------------------------------------------------------------------------

@tile.jit
def power(x, n: tile.constexpr):
    if n == 0:
        return x * 0 + 1
    half = power(x * x, n // 2)
    return half * x if n % 2 else half


@pytest.mark.parametrize("n", [0, 1, 2, 13])
def test_helpers_recur_over_constants(n):
    @tile.jit
    def kernel(y, P: tile.constexpr):
        tile.store(y[0:N], power(tile.full((N,), 2.0, y.dtype), P))

    assert (run(kernel, P=n) == 2.0 ** n).all()


@tile.jit
def matched(y, WHAT: tile.constexpr):
    v = tile.full((N,), 2.0, y.dtype)
    match WHAT:
        case Activation.RELU:
            v = v + 1
        case (first, second, *rest) if first > second:
            v = v * first + second + len(rest)
        case {"scale": factor, **others}:
            v = v * factor + len(others)
        case "neg" | "minus" as word:
            v = -v - len(word)
        case None:
            pass
        case Plan(block, warps=4):
            v = v + block
        case bool(flag):
            v = v * 10 + flag
        case int(n):
            v = v * n
        case [] | ():
            v = v + 100
        case _:
            tile.store(y[0:N], v * 0 - 1)
            return
    tile.store(y[0:N], v)


@pytest.mark.parametrize("what, want", [(Activation.RELU, 3), ((3, 2, 1, 0), 10), ("neg", -5), ("minus", -7), (None, 2), (Plan(8), 10), (Plan(8, 2), -1),
                                        (True, 21), (7, 14), ((), 102), ((1, 2), -1), (Activation.NONE, -1), (1.5, -1)])
def test_match_chooses_a_case_while_compiling(what, want):
    assert (run(matched, WHAT=what) == want).all()


def test_match_takes_shapes_lists_and_dicts_of_run_time_values_apart():
    @tile.jit
    def kernel(y, x):
        match x.shape:
            case (n,):
                match {"v": n, "kind": "one"}:
                    case {"kind": "one", "v": v}:
                        tile.store(y[0], v)
            case (m, n):
                tile.store(y[0], m * 100 + n)

    assert run(kernel, np.zeros(7, np.float32))[0] == 7
    assert run(kernel, np.zeros((3, 5), np.float32))[0] == 305


# -- what is refused ---------------------------------------------------------------------------------------------------

def fails(n):
    raise ValueError(f"no plan for {n}")


def asks(n):
    return tile.program_id(n)


def grows(xs):
    xs.append(1)
    return xs


def makes_array():
    return np.zeros(3)


REFUSED = {  # code: the message, and the text that its carets mark
    "factorial(tile.program_id(0))": ("factorial is a plain Python function, which runs while compiling, and a scalar int32 is known at run time only; "
                                      "decorate it with @tile.jit to call it in a kernel", "factorial(tile.program_id(0))"),
    "factorial(n)": ("declare the parameter as n: tile.constexpr", "factorial(n)"),
    "fails(3)": ("fails raised ValueError: no plan for 3 (", "fails(3)"),
    "factorial()": ("TypeError: missing a required argument: 'n'", "factorial()"),
    "factorial(100000)": ("factorial calls itself too deeply", "factorial(100000)"),
    "asks(0)": ("to use the kernel's own functions in it, decorate it with @tile.jit", "asks(0)"),
    "grows([1])": ("grows changes its arguments, which the kernel would not see; let it return what it makes", "grows([1])"),
    "makes_array()": ("makes_array returns an array; pass it as an argument of the kernel", "makes_array()"),
    "[i for i in range(n)]": ("this range is known at run time only", "range(n)"),
    "[i for i in {1, 2}]": ("a comprehension would take the elements of a set in any order; write sorted(...)", "{1, 2}"),
    "[i for i in y]": ("a comprehension takes tuples, lists, dicts and ranges that are known while compiling, not a global buffer", "y"),
    "[i for i in range(2) if n > i]": ("the condition of a comprehension is decided while compiling", "n > i"),
    "[i for i in range(5000)]": ("a comprehension would take 5000 items one by one (at most 4096)", "range(5000)"),
    "sorted([n, 1])": ("sorted compares while compiling, and some of these are known at run time only", "sorted([n, 1])"),
    "[1, 2][n]": ("a list is indexed with compile-time numbers", "[1, 2][n]"),
    "{1: 2}[n]": ("a dict is indexed with compile-time numbers", "{1: 2}[n]"),
    "{n: 1}": ("a dict's keys are constants, and a scalar int32 is known at run time only", "{n: 1}"),
    "{n}": ("a set holds constants, and not all of these are; write a tuple", "{n}"),
    "[1][4]": ("IndexError: list index out of range", "[1][4]"),
    "(lambda v: v)()": ("this lambda needs an argument for 'v'", "(lambda v: v)()"),
    "(lambda *, v: v)(v=1)": ("a lambda of a kernel has plain parameters", "lambda *, v: v"),
    "f'{n}'": ("an f-string shows what is known while compiling, and `n`, a scalar int32, is not; print it with tile.device_print", None),
    "open('f')": ("open is not part of the language and cannot be called in a kernel", "open('f')"),
}
STATEMENTS = {
    "xs = [1]\n    ys = xs\n    xs.append(2)": ("this list is also held by ys, and a change would show there; copy it first, as in xs = list(xs)", "xs"),
    "xs = [[0]] * 2\n    xs[0][0] = 1": ("this list is also held by xs", "xs[0]"),
    "WEIGHTS.append(4)": ("only a container that a name of this function holds can be changed; copy it first", "WEIGHTS"),
    "NAMED['scale'] = 4": ("only a container that a name of this function holds can be changed; copy it first", "NAMED"),
    "xs = [1]\n    if n > 0:\n        xs.append(2)\n    z = len(xs)": ("xs is list [1, 2] or list [1], which only a compile-time condition can choose", "xs"),
    "xs = [1]\n    xs[n] = 2": ("a list is indexed with compile-time numbers; loop with tile.static_range, or keep the elements in a buffer", "xs[n] = 2"),
    "match n:\n        case 3: pass": ("`match` decides while compiling, and a scalar int32 is known at run time only; write if/elif/else", "3"),
    "match 3:\n        case int() if n > 0: pass": ("a case is chosen while compiling, and its condition is known at run time only", "n > 0"),
}


@pytest.mark.parametrize("code, message, marked", [*((f"v = {c}", *w) for c, w in REFUSED.items()), *((c, *w) for c, w in STATEMENTS.items())])
def test_what_is_refused_says_so_at_the_caret(code, message, marked):
    kernel = tile.jit(source=f"def kernel(y, n):\n    {code}\n")
    kernel.source.globals.update(globals())
    with pytest.raises(tile.CompilationError) as caught:
        kernel[1](np.zeros(1, np.float32), 3)
    assert message in str(caught.value)
    loc = caught.value.loc
    if marked is not None:
        assert loc.source_line[loc.column:loc.end_column] == marked


def test_endless_recursion_is_an_error_that_names_the_helper():
    @tile.jit
    def same(n):
        return same(n)

    @tile.jit
    def growing(n: tile.constexpr):
        return growing(n + 1)

    @tile.jit
    def kernel(y, WHICH: tile.constexpr):
        same(1) if WHICH else growing(1)

    with pytest.raises(tile.CompilationError, match="same calls itself without an end that is known while compiling"):
        run(kernel, WHICH=True)
    with pytest.raises(tile.CompilationError, match="growing calls itself more than 64 times") as caught:
        run(kernel, WHICH=False)
    assert str(caught.value).count("called from") <= 1
