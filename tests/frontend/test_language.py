"""Expressions, calls and simple statements; Python syntax that kernels do not support, and what its errors suggest."""

import gc
import math

import numpy as np
import pytest
import tilejit as tile
from graphs import body, built, error, expect, marked
from tilejit.frontend import Source


def stored(expression: str, **constants) -> str:
    """The operand that a kernel with the statement ``store(expression)`` stores."""
    source = Source.from_text(f"def kernel(x, y, n{''.join(', ' + c for c in constants)}):\n    tile.store(y[0], {expression})\n", globals())
    return body(source, **constants).rsplit("store(%region, ", 1)[1].split(",")[0]


@pytest.mark.parametrize("expression, value", [
    ("7 // 2 + 2 ** 3 - -1", "12.0"),
    ("min(3, 1, 2) + max((4, 5)) + abs(-2)", "8.0"),
    ("len((1, 2, 3)) + sum((1, 2)) + int(2.7) + round(2.4)", "10.0"),
    ("pow(2, 3) + pow(3, 4, 5) + pow(2.0, -1)", "9.5"),
    ("divmod(-7, 2)[0] * 10 + divmod(-7, 2)[1] + sum(divmod(7.5, -2))", "-43.5"),
    ("(1, 2, 3)[1] + (1, 2, 3)[-1] + (1, 2, 3)[1:][0]", "7.0"),
    ("math.sqrt(16) + math.floor(2.5)", "6.0"),
    ("tile.cdiv(10, 4)", "3.0"),
    ("1.0 if 3 in (1, 2) or 'a' == 'a' else 2.0", "1.0"),
    ("1.0 if isinstance(3, int) and not isinstance(n, int) and n is not None else 2.0", "1.0"),
    ("len(tuple(range(3))) + len(range(2, 7))", "8.0"),
    ("x.shape[0]", "64.0"),
    ("len(x)", "64.0"),
    ("1.0 if x.dtype == tile.float32 else 2.0", "1.0"),
    ("1.0 if f'{2 + 3:03d}{1!r}' == '0051' else 2.0", "1.0"),
    ("sum((*(1, 2), *range(3, 5)))", "10.0"),
    ("(k := 3) + k", "6.0"),
    ("all((1, 2)) + any((0, 0))", "1.0"),
    ("1.0 if BLOCK % 8 == 0 else 2.0", "1.0"),
])
def test_constants_are_folded_as_in_python(expression, value):
    assert stored(expression, **({"BLOCK": 16} if "BLOCK" in expression else {})) == value


def test_operators_on_runtime_values_follow_the_language_s_rules():
    def kernel(y, n):
        tile.store(y[0], min(n, 3) + abs(-n) + max(1, n, 2))

    text = body(kernel)
    assert "minimum(%n, 3)" in text and "abs(" in text and text.count("maximum(") == 2


@pytest.mark.parametrize("call, operators", [
    ("pow(n, 2)", "n ** 2"), ("pow(2.0, n)", "2.0 ** n"), ("pow(v, v)", "v ** v"), ("pow(v, exp=3)", "v ** 3"), ("divmod(n, -3)", "(n // -3, n % -3)"),
    ("divmod(7, n)", "(7 // n, 7 % n)"), ("divmod(v, 1.5)", "(v // 1.5, v % 1.5)"), ("divmod(i, n)", "(i // n, i % n)")])
def test_pow_and_divmod_agree_with_the_operators(call, operators):
    """For scalars and tiles, with constants on either side."""
    def graph(text):
        return body(Source.from_text(f"def kernel(x, y, n):\n    v = tile.load(x[0:8])\n    i = tile.arange(8)\n    r = {text}\n"
                                     "    for part in r if isinstance(r, tuple) else (r,):\n        tile.store(y[0:8], part)\n", {"tile": tile}))

    assert graph(call) == graph(operators) and "store(" in graph(call)


def test_divmod_of_tiles_rounds_down_as_numpy_does():
    @tile.jit
    def kernel(a, b, q, r, n, N: tile.constexpr):
        x, y = tile.load(a[0:N]), tile.load(b[0:N])
        whole, rest = divmod(x, y)
        tile.store(q[0, 0:N], whole)
        tile.store(r[0, 0:N], rest)
        whole, rest = divmod(x, n)
        tile.store(q[1, 0:N], whole)
        tile.store(r[1, 0:N], rest)

    for dtype in (np.int32, np.int64, np.float32):
        a, b = (np.array(v, dtype) for v in ([-7, -6, 7, 6, 0, 5, -1, 1], [2, -3, -2, 3, 5, 5, 7, -7]))
        q, r = np.zeros((2, 2, 8), dtype)
        kernel[1,](a, b, q, r, -3, N=8)
        want = np.divmod(a, b), np.divmod(a, dtype(-3))
        assert all((q[i] == want[i][0]).all() and (r[i] == want[i][1]).all() for i in (0, 1))
        assert all(kernel.compile(a, b, q, r, -3, N=8, target=t).cubin for t in ("sm_80", "sm_90a", "sm_100a", "sm_120a"))


def test_calling_a_dtype_casts():
    def kernel(y, n):
        a = tile.float16(n)
        b: tile.int64 = 3.7
        tile.store(y[0], a + tile.float32(tile.load(y[0:1])[0]) + b + float(n))

    text = body(kernel)
    assert "cast(%n, dtype=float16)" in text and "3.0" in text


def test_an_explicitly_cast_number_is_not_weak():
    def kernel(y, n):
        tile.store(y[0], tile.float16(1) + tile.float32(n))

    assert "cast(%n, dtype=float32) : float32@grid" in str(built(kernel).graph) and "add(1.0, %cast) : float32@grid" in body(kernel)


def test_tuples_pack_and_unpack():
    def kernel(y, n):
        a, (b, *c), d = 1.0, (2, 3, 4), n
        c, a = (*c, d), a + b
        tile.store(y[c[1]], a)

    assert "region(%y, 4," in body(kernel) and "store(%region, 3.0," in body(kernel)


def test_unpacking_checks_the_number_of_elements():
    def kernel(y):
        a, b = 1, 2, 3

    def scalar(y, n):
        a, b = n

    assert error(kernel).startswith("2 names for a tuple of 3")
    assert error(scalar).startswith("a scalar int32 cannot be unpacked; only tuples can")


def test_python_errors_on_constants_are_reported_with_a_location():
    def kernel(y):
        a = 1 // 0  # noqa: F841

    text = error(kernel)
    assert text.startswith("ZeroDivisionError: ") and marked(text) == "1 // 0"
    assert error(Source.from_text("def kernel(y):\n    a = (1, 2)[5]\n")).startswith("IndexError: tuple index out of range")
    assert error(Source.from_text("def kernel(y):\n    a = 2 ** 100000\n")).startswith(
        "2 ** 100000 is a number of about 100000 bits, and a constant has at most 8192")
    assert error(Source.from_text("def kernel(y):\n    a = len(1, 2)\n")).startswith("len(x): too many positional arguments")


# -- helpers ---------------------------------------------------------------------------------------------------------------

@tile.jit
def scaled(v, by=2, *, SHIFT: tile.constexpr = 0):
    """A helper with a default argument and a constant."""
    return v * by + SHIFT


@tile.jit
def first_over(x, n, limit):
    for i in range(n):
        v = tile.load(x[i])
        if v > limit:
            return v, i
    return 0.0, -1


@tile.jit
def endless(v):
    return around(v)


@tile.jit
def around(v):
    return endless(v)


@tile.jit
def sometimes(v):
    if v > 3:
        return v


@tile.jit
def misused(v):
    return v + tile.nothing


def plain(v):
    return v


def test_helpers_are_inlined():
    def kernel(y, n):
        tile.store(y[0], scaled(n, SHIFT=3) + scaled(1.0, 3))

    assert "mul(%n, 2)" in body(kernel)
    assert "3.0" in body(kernel)


@tile.jit
def total(v, *rest, by=1):
    for r in rest:
        v = v + r
    return v * by


@tile.jit
def handed_on(*all_of_them):
    tile.static_assert(len(all_of_them) == 4)
    return total(*all_of_them, by=3)


@tile.jit
def counted(v, *numbers: tile.constexpr):
    return v + len(numbers)


def test_a_helper_may_take_star_args():
    """They arrive as a tuple, which another call can spread; keyword-only parameters follow."""
    def kernel(x, y, n):
        pair = (n, 2)
        tile.store(y[0], total(1.0))
        tile.store(y[1], handed_on(tile.load(x[0]), *pair, *(5,)))
        tile.store(y[2], counted(0.5, 1, 2))

    text = body(kernel)
    stores = [line.split("store(")[1].split(", ")[1] for line in text.splitlines() if " store(" in line or line.strip().startswith("store(")]
    assert stores[0] == "1.0" and stores[2] == "2.5" and text.count("add(") == 3 and "mul(" in text

    @tile.jit
    def sums(x, y, n):
        v = tile.load(x[0:8])
        tile.store(y[0:8], handed_on(v, v, *(n, 1)))

    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    sums[1,](x, y, 4)
    assert (y == (x + x + 4 + 1) * 3).all()


@pytest.mark.parametrize("call, words", [
    ("total()", "total(v, *rest, by=1): missing a required argument: 'v'"),
    ("total(1, rest=2)", "total(v, *rest, by=1): got an unexpected keyword argument 'rest'"),
    ("counted(1, 2, n)", "numbers of counted is a tile.constexpr, and a tuple (the number 2, a scalar int32) is known at run time only"),
    ("total(*n)", "only a tuple can be spread with *, not a scalar int32"),
    ("total(**(1,))", "** spreads a dict whose keys are names, not tuple (1,)"), ("pow(n, 2, 5)", "pow with a modulus is computed while compiling"),
    ("pow(n)", "pow(base, exp, mod=None): missing a required argument: 'exp'"), ("divmod(n)", "divmod(x, y, /): missing a required argument: 'y'"),
    ("divmod(1, 0)", "ZeroDivisionError"), ("divmod(y[0:8], 2)", "load it first"), ("pow(2, 20000)", "2 ** 20000 is a number of about 20000 bits"),
])
def test_calls_of_helpers_with_star_args_are_checked(call, words):
    assert words in error(Source.from_text(f"def kernel(x, y, n):\n    {call}\n", globals()))


def test_a_helper_may_return_from_within_loops():
    def kernel(x, y, n):
        v, i = first_over(x, n, 2.0)
        tile.store(y[i], v)

    text = body(kernel)
    assert "while carry %index: int32@cta = 0, %return: bool@cta = False, %result: float32@cta = 0.0" in text
    assert text.count("store(") == 1


def test_recursive_helpers_are_errors():
    def kernel(y):
        endless(1)

    text = error(kernel)
    assert text.startswith("endless calls itself without an end that is known while compiling; recursion is over constants")
    assert text.count("called from") == 2


def test_a_constexpr_parameter_needs_a_constant():
    def kernel(y, n):
        scaled(1.0, SHIFT=n)

    assert error(kernel).startswith("SHIFT of scaled is a tile.constexpr, and a scalar int32 is known at run time only")


def test_the_arguments_of_helper_calls_are_checked():
    def kernel(y, n):
        scaled(1.0, bye=n)

    assert error(kernel).startswith("scaled(v, by=2, *, SHIFT=0): got an unexpected keyword argument 'bye'")


def test_a_helper_returns_a_value_on_all_paths_or_on_none():
    def kernel(y, n):
        tile.store(y[0], sometimes(n))

    assert error(kernel).startswith("sometimes returns a value on one path and none on another")


def test_an_error_in_a_helper_shows_the_chain_of_calls():
    def kernel(y):
        tile.store(y[0], misused(1.0))

    text = error(kernel)
    assert "in misused\n    return v + tile.nothing\n               ^^^^^^^^^^^^\n  called from" in text
    assert "in kernel\n    tile.store(y[0], misused(1.0))\n                     ^^^^^^^^^^^^" in text


def test_functions_without_tile_jit_take_constants_only():
    def kernel(y, n):
        plain(n)

    assert error(kernel).startswith("plain is a plain Python function, which runs while compiling, and a scalar int32 is known at run time only; "
                                    "decorate it with @tile.jit to call it in a kernel")


def test_math_functions_take_only_constants():
    def kernel(y, n):
        math.sqrt(n)

    assert error(kernel).startswith("math.sqrt is computed while compiling, and a scalar int32 is known at run time only; use tile.sqrt")


def test_a_kernel_cannot_return_a_value():
    def kernel(y):
        return 1

    assert error(kernel).startswith("a kernel returns nothing; write to an array argument with tile.store")


# -- assertions ------------------------------------------------------------------------------------------------------------

def test_assert_is_checked_at_compile_time_or_becomes_a_device_assert():
    def runtime(y, n):
        assert n > 0, "n is positive"

    def constant(y, BLOCK: tile.constexpr):
        assert BLOCK % 16 == 0, "BLOCK is a multiple of 16"

    expect(runtime, """
        %gt = gt(%n, 0) : bool@grid
        assert(%gt, message='n is positive')
        """)
    built(constant, BLOCK=32)
    assert error(constant, BLOCK=8).startswith("assertion failed: BLOCK is a multiple of 16")


def test_the_message_of_an_assert_may_be_an_f_string_of_constants():
    def constant(y, BLOCK: tile.constexpr):
        assert BLOCK % 16 == 0, f"{BLOCK=} of {y.dtype} is no multiple of {16:>3}%"

    def runtime(y, n, BLOCK: tile.constexpr):
        assert n > 0, f"{(BLOCK, 'a')!r} {{n}}"

    def of_a_tile(y, BLOCK: tile.constexpr):
        tile.device_assert(tile.load(y[0:16]) > 0, f"y in blocks of {BLOCK}")

    built(constant, BLOCK=32)
    assert error(constant, BLOCK=8).startswith("assertion failed: BLOCK=8 of float32 is no multiple of  16%")
    assert "assert(%gt, message=\"(8, 'a') {n}\")" in body(runtime, BLOCK=8)
    assert "message='y in blocks of 8'" in body(of_a_tile, BLOCK=8)


def test_the_message_of_an_assert_shows_no_run_time_values():
    def number(y, n):
        assert n > 0, f"n is {n + 1}"

    def a_tile(y, BLOCK: tile.constexpr):
        assert BLOCK > 8, f"of {tile.load(y[0:4])}"

    def no_text(y, n):
        assert n > 0, 5

    assert error(number).startswith("an f-string shows what is known while compiling, and `n + 1`, a scalar int32, is not; "
                                    "print it with tile.device_print")
    assert "`tile.load(y[0:4])`, a tile float32[4], is not" in error(a_tile, BLOCK=8)
    assert error(no_text).startswith("the message of an assert is a string, not the number 5")


def test_the_message_of_an_assert_that_holds_is_not_evaluated():
    def kernel(y, n, BLOCK: tile.constexpr):
        assert BLOCK > 8, f"{n} {BLOCK // 0} {this_name_does_not_exist}"
        tile.store(y[0], 1.0)

    assert "assert" not in body(kernel, BLOCK=16)
    assert "is not; print it with" in error(kernel, BLOCK=8)


def test_static_assert_and_static_print_act_at_compile_time(capsys):
    def kernel(x, y, n, BLOCK: tile.constexpr):
        tile.static_print("block", BLOCK, (x, n))
        tile.static_assert(BLOCK > 8, "a large block")

    built(kernel, BLOCK=16)
    assert capsys.readouterr().out == "block 16 (global float32[64]:(1), int32*@grid)\n"
    assert error(kernel, BLOCK=8).startswith("static assertion failed: a large block")
    assert capsys.readouterr().out.startswith("block 8")


def test_static_assert_needs_a_constant():
    def kernel(y, n):
        tile.static_assert(n > 3)

    assert error(kernel).startswith("static_assert judges while compiling, and a scalar bool is known at run time only; use tile.device_assert")


# -- unsupported syntax ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("code, words", [
    ("a = {n: 2}", "a dict's keys are constants, and a scalar int32 is known at run time only"),
    ("a = {n, 2}", "a set holds constants, and not all of these are; write a tuple"),
    ("a = tuple(i for i in range(n))", "this range is known at run time only"),
    ("a = [i for i in range(3) if n > i]", "the condition of a comprehension is decided while compiling"),
    ("f = lambda v: v\n    f()", "this lambda needs an argument for 'v'"),
    ("def f(v): return v", "a function cannot be defined in a kernel; define the helper outside it, under @tile.jit"),
    ("class A: pass", "a class cannot be defined in a kernel"),
    ("try: pass\n    except ValueError: pass", "a kernel has no exceptions"),
    ("raise ValueError", "a kernel has no exceptions"),
    ("import os", "import modules outside the kernel"),
    ("global g", "a kernel cannot assign globals"),
    ("yield 1", "a kernel cannot yield"),
    ("del n", "names cannot be deleted in a kernel"),
    ("y[0] = 1.0", "memory is written with tile.store(x[...], value), not by assigning to x[...]"),
    ("y[0] += 1.0", "memory is written with tile.store(x[...], value), not by assigning to x[...]"),
    ("t = tile.load(x[0:8])\n    t[0] = 1.0", "a register tile cannot be changed in place; make another with tile.where"),
    ("y.shape = 3", "attributes cannot be assigned in a kernel"),
    ("t = (1, 2)\n    a = t[n]", "a tuple is indexed with compile-time numbers"),
    ("a = n in (1, 2)", "`in` looks in compile-time tuples and ranges"),
    ("a: tile.float32", "an annotation alone assigns nothing"),
    ("a: tile.constexpr = n", "a tile.constexpr is known while compiling"),
    ("match n:\n        case 1: pass", "`match` decides while compiling, and a scalar int32 is known at run time only; write if/elif/else"),
    ("a = f'{n}'", "an f-string shows what is known while compiling, and `n`, a scalar int32, is not"),
    ("a = tile.full(**{1: 2})", "** spreads a dict whose keys are names"),
    ("a = x + 1", "load it first"),
    ("tile.store(y[0])", "missing a required argument: 'value'"),
    ("a = n.nothing", "a scalar int32 has no attribute 'nothing'"),
    ("a = sum(tile.load(x[0:8]))", "the sum of a tile is tile.sum(x)"),
    ("a = max(tile.load(x[0:8]))", "the maximum of one tile is tile.max(x)"),
    ("with open('f'): pass", "open is not part of the language and cannot be called in a kernel"),
    ("tile.sync", "sync is not called here; write sync(...)"),
    ("tile.elect()", "an execution scope has no effect on its own; write `with tile.elect():`"),
    ("if tile.elect(): pass", "an execution scope cannot be a condition; write `with tile.elect():`"),
    ("if tile.thread_id == 0: pass", "thread_id is a function and cannot be compared; call it, as in thread_id()"),
    ("if tile.lane_id: pass", "lane_id is a function, which cannot be a condition; call it, as in lane_id()"),
    ("while range(3): pass", "a range cannot be a condition"),
    ("a = " + "-" * 900 + "n", "the code nests too deeply"),
])
def test_unsupported_syntax_is_an_error_with_a_suggestion(code, words):
    assert words in error(Source.from_text(f"def kernel(x, y, n):\n    {code}\n", {"tile": tile}))


def test_a_slice_can_be_assigned_to_a_name_and_returned_from_a_helper():
    @tile.jit
    def block(i, N: tile.constexpr):
        return slice(i * N, (i + 1) * N)

    @tile.jit
    def kernel(x, y):
        at = slice(tile.program_id(0) * 16, tile.program_id(0) * 16 + 16)
        tile.store(y[at], tile.load(x[block(tile.program_id(0), 16)])[slice(None)])

    x, y = np.arange(40, dtype=np.float32), np.zeros(40, np.float32)
    kernel[3,](x, y)
    assert (y == x).all()


def test_an_empty_slice_is_an_error():
    def kernel(x):
        tile.load(x[slice()])

    assert error(kernel).startswith("slice takes a stop, or a start and a stop, or a start, a stop and a step")


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_paused_while_a_kernel_compiles_and_restored_afterwards(enabled, monkeypatch):
    """Also if the kernel is refused."""
    from tilejit import compile
    @tile.jit
    def kernel(x, WIDE: tile.constexpr):
        tile.store(x[0:WIDE], tile.load(x[0:WIDE]) + tile.zeros((64,)))
    seen, build, before = [], compile.build, gc.isenabled()
    monkeypatch.setattr(compile, "build", lambda *args, **kwargs: (seen.append(gc.isenabled()), build(*args, **kwargs))[1])
    try:
        (gc.enable if enabled else gc.disable)()
        kernel.simulate(1, np.zeros(64, np.float32), WIDE=64)
        with pytest.raises(tile.CompilationError):
            kernel.simulate(1, np.zeros(64, np.float32), WIDE=3)
        assert seen == [False, False] and gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
