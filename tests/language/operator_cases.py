"""Cases of operators, casts and elementary functions for all dtypes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from language_cases import Case
from language_reference import (
    BITWISE,
    COMPARE,
    DTYPES,
    FLOAT8,
    FLOATS,
    INTS,
    binary,
    bits,
    cast,
    computed_in,
    exact_cast,
    is_float,
    np_dtype,
    pairs,
    promoted,
    special,
    symbols_for,
    tile_name,
)


def divisions_by_zero(dtype: str) -> Case:
    """Integer division by 0 gives 0 and the remainder `x`."""
    x = special(dtype, 13, 40)
    zero = np.zeros_like(x)
    source = ("def divisions(a, b, o0, o1):\n    x = tile.load(a[0:40])\n    y = tile.load(b[0:40])\n"
              "    tile.store(o0[0:40], x // y)\n    tile.store(o1[0:40], x % y)\n")
    return Case(f"{dtype} divided by 0", source, {"a": x, "b": zero}, {"o0": zero, "o1": x})


def _divisors(y: np.ndarray) -> np.ndarray:
    """Divisors without 0, for which NumPy defines no integer division."""
    return np.where(y == 0, np.ones_like(y), y) if not is_float(y.dtype.name) else y


def operators(a: str, b: str, style: str = "tile", seed: int = 0) -> Case:
    """Every operator on two tiles of dtypes `a` and `b`, or on two scalars that differ between threads."""
    count = 16
    x, y = pairs(special(a, seed, count), special(b, seed + 1, count))
    n = len(x)
    z = _divisors(y)
    lines, expected, how = [], {}, {}
    for i, symbol in enumerate(symbols_for(a, b)):
        out, right, values = f"o{i}", "y", y
        if symbol in ("//", "%") and not is_float(b):
            right, values = "z", z
        want = binary(symbol, x, values)
        lines += [f"r = x {symbol} {right}", f"tile.static_assert(r.dtype == {tile_name(want.dtype.name)})", f"tile.store({out}[PLACE], r)"]
        expected[out] = want
    place = "0:N" if style == "tile" else "t"
    head = [f"x = tile.load(a[{place}])", f"y = tile.load(b[{place}])", f"z = tile.load(c[{place}])"]
    if style == "scalar":
        head.insert(0, "t = tile.thread_id()")
    parameters = ", ".join(["a", "b", "c", *expected, "N: tile.constexpr"])
    body = "\n    ".join([*head, *lines]).replace("PLACE", place)
    options = {"N": n} if style == "tile" else {"N": n, "num_warps": n // 32}
    return Case(f"{a} with {b}, {style}s", f"def operators({parameters}):\n    {body}\n", {"a": x, "b": y, "c": z}, expected, how, options=options)


def all_operators() -> Iterator[Case]:
    for a in DTYPES:
        for b in DTYPES:
            yield operators(a, b)


def scalar_operators() -> Iterator[Case]:
    for i, a in enumerate(DTYPES):
        for b in {a, DTYPES[(i + 4) % len(DTYPES)], DTYPES[(i + 9) % len(DTYPES)]}:
            yield operators(a, b, "scalar")


# -- weak numbers ------------------------------------------------------------------------------------------------------------

def weak_dtype(dtype: str, number) -> str:
    """The promoted dtype of a dtype and a Python number: the dtype, unless the number's kind is higher."""
    if isinstance(number, float):
        return dtype if is_float(dtype) else "float32"
    return "int32" if dtype == "bool" and not isinstance(number, bool) else dtype


def weak_operators(dtype: str) -> Case:
    """A tile with Python numbers, Python scalar arguments, and a loaded scalar, on both sides."""
    x = special(dtype, 3, 40)
    loaded = np.array([3], np_dtype(dtype))
    weak = {"3": 3, "2.5": 2.5, "n": 5, "f": 0.75}
    if dtype not in ("bool",) and not dtype.startswith("uint"):
        weak["(-2)"] = -2
    lines, expected = [], {}

    def emit(text: str, want: np.ndarray):
        out = f"o{len(expected)}"
        expected[out] = want
        lines.extend([f"r = {text}", f"tile.static_assert(r.dtype == {tile_name(want.dtype.name)})", f"tile.store({out}[0:N], r)"])

    for text, number in weak.items():
        common = weak_dtype(dtype, number)
        value = np.full(len(x), number, np.float64 if isinstance(number, float) else np.int32)
        for symbol in ("+", "*", "/", "//", "%", "<", "==", "-", "&", ">>"):
            if symbol in BITWISE and is_float(common):
                continue
            left, right = cast(x, common) if symbol not in COMPARE else x, cast(value, common)
            emit(f"x {symbol} {text}", binary(symbol, left, right, common))
            if symbol in ("-", "<", "/", "//", "%", ">>"):
                emit(f"{text} {symbol} {'z' if symbol in ('//', '%') and not is_float(common) else 'x'}",
                     binary(symbol, right, _divisors(left) if symbol in ("//", "%") else left, common))
    for symbol in ("+", "-", "*", "<"):
        emit(f"x {symbol} s", binary(symbol, x, np.full_like(x, loaded[0])))
    emit("x ** 2", power(x, 2))
    emit("x ** 3", power(x, 3))
    parameters = ", ".join(["a", "c", "l", "n", "f", *expected, "N: tile.constexpr"])
    head = ["x = tile.load(a[0:N])", "z = tile.load(c[0:N])", "s = tile.load(l[0])"]
    body = "\n    ".join([*head, *lines])
    return Case(f"{dtype} with numbers", f"def numbers({parameters}):\n    {body}\n", {"a": x, "c": _divisors(x), "l": loaded, "n": 5, "f": 0.75},
                expected, options={"N": len(x)})


def power(x: np.ndarray, n: int) -> np.ndarray:
    """A small integer power by repeated multiplication from the left, with each product rounded to the dtype."""
    result = x
    for _ in range(n - 1):
        result = binary("*", result, x)
    return result


def unary_operators(dtype: str) -> Case:
    """-, +, ~, not and abs of a tile."""
    x = special(dtype, 5, 40)
    arithmetic = cast(x, computed_in(dtype, "-"))
    plain = np_dtype("float32") if dtype in FLOAT8 else np_dtype(dtype)
    with np.errstate(all="ignore"):
        want = {"-x": (-arithmetic).astype(arithmetic.dtype), "+x": arithmetic, "not x": x == 0,
                "tile.abs(x)": x if dtype == "bool" else np.abs(x.astype(plain)).astype(plain)}
        if not is_float(dtype):
            want["~x"] = ~x
        else:
            want |= {f"tile.{test}(x)": getattr(np, test)(x.astype(np.float64)) for test in ("isnan", "isinf", "isfinite")}
    lines = []
    for i, (text, w) in enumerate(want.items()):
        lines += [f"r = {text}", f"tile.static_assert(r.dtype == {tile_name(w.dtype.name)})", f"tile.store(o{i}[0:N], r)"]
    expected = {f"o{i}": w for i, w in enumerate(want.values())}
    parameters = ", ".join(["a", *expected, "N: tile.constexpr"])
    body = "\n    ".join(["x = tile.load(a[0:N])", *lines])
    return Case(f"unary operators of {dtype}", f"def unary({parameters}):\n    {body}\n", {"a": x}, expected, options={"N": len(x)})


# -- casts -------------------------------------------------------------------------------------------------------------------

def casts(source: str, style: str = "tile", targets=DTYPES) -> Case:
    """Casts from a dtype to every other, at the limits of both."""
    x = np.concatenate([special(source, 7, 60), *(back(source, t) for t in DTYPES)])
    x = np.resize(x, -(-len(x) // 32) * 32) if style == "scalar" else x
    lines, expected = [], {}
    place = "0:N" if style == "tile" else "t"
    for i, target in enumerate(targets):
        expected[f"o{i}"] = exact_cast(x, target)
        lines.append(f"tile.store(o{i}[{place}], tile.cast(x, {tile_name(target)}))")
    head = ["t = tile.thread_id()"] if style == "scalar" else []
    parameters = ", ".join(["a", *expected, "N: tile.constexpr"])
    body = "\n    ".join([*head, f"x = tile.load(a[{place}])", *lines])
    options = {"N": len(x)} if style == "tile" else {"N": len(x), "num_warps": len(x) // 32}
    return Case(f"casts of {source}, {style}s", f"def casts({parameters}):\n    {body}\n", {"a": x}, expected, options=options)


def bitcasts(source: str) -> Case:
    """Bitcasts from a dtype to every other of the same size, of a tile and of a per-thread scalar."""
    x = special(source, 11, 64)[:64]
    targets = [d for d in DTYPES if d != "bool" and np_dtype(d).itemsize == x.dtype.itemsize]
    lines, expected = [], {}
    for i, target in enumerate(targets):
        expected |= {f"o{i}": x.view(np_dtype(target)), f"p{i}": x.view(np_dtype(target))}
        lines += [f"tile.store(o{i}[0:64], tile.bitcast(x, {tile_name(target)}))", f"tile.store(p{i}[t], tile.bitcast(y, {tile_name(target)}))"]
    body = "\n    ".join(["t = tile.thread_id()", "x = tile.load(a[0:64])", "y = tile.load(a[t])", *lines])
    return Case(f"bitcasts of {source}", f"def bitcasts(a, {', '.join(expected)}):\n    {body}\n", {"a": x}, expected, options={"num_warps": 2})


def back(source: str, target: str) -> np.ndarray:
    """The limits of `target`, and the midpoints of its numbers, in dtype `source`."""
    edges = special(target, 9, 20)
    if is_float(target) and is_float(source) and bits(source) > bits(target):
        wide = edges.astype(np.float64)
        with np.errstate(all="ignore"):
            halves = (wide + np.nextafter(edges, np.array(np.inf, edges.dtype)).astype(np.float64)) / 2 if target in ("float16", "float32") else wide * 1.0625
            near = np.concatenate([halves, np.nextafter(halves, 0), np.nextafter(halves, np.inf)])
            return np.concatenate([wide, near]).astype(np_dtype(source))
    return cast(edges, source)


# -- elementary functions ------------------------------------------------------------------------------------------------------

def _erf(x):
    import math
    return np.array([math.erf(v) for v in x])


# function -> (float64 reference, documented ulp in float32, range of arguments)
FUNCTIONS = {
    "exp": (np.exp, 2, (-90, 90)), "exp2": (np.exp2, 2.5, (-130, 130)), "expm1": (np.expm1, 2, (-20, 80)),
    "log": (np.log, 1, (1e-30, 1e30)), "log2": (np.log2, 2, (1e-30, 1e30)), "log10": (np.log10, 2, (1e-30, 1e30)),
    "log1p": (np.log1p, 2, (-0.99, 1e10)), "sqrt": (np.sqrt, 0.5, (0, 1e30)), "rsqrt": (lambda x: 1 / np.sqrt(x), 2, (1e-30, 1e30)),
    "sin": (np.sin, 2, (-100, 100)), "cos": (np.cos, 2, (-100, 100)), "tan": (np.tan, 4, (-100, 100)),
    "asin": (np.arcsin, 2, (-1, 1)), "acos": (np.arccos, 2, (-1, 1)), "atan": (np.arctan, 2, (-1e5, 1e5)),
    "sinh": (np.sinh, 3, (-80, 80)), "cosh": (np.cosh, 2, (-80, 80)), "tanh": (np.tanh, 2, (-10, 10)),
    "erf": (_erf, 2, (-4, 4)), "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 4, (-80, 80)),
    "floor": (np.floor, 0, (-1e6, 1e6)), "ceil": (np.ceil, 0, (-1e6, 1e6)), "trunc": (np.trunc, 0, (-1e6, 1e6)),
    "round": (np.rint, 0, (-1e6, 1e6)),
}
FLOAT64_ULP = 4  # of libdevice, plus the error of NumPy's own function


def arguments_of(name: str, dtype: str, seed: int = 0, count: int = 500) -> np.ndarray:
    """Arguments in a function's domain, dense near 0, with the special values."""
    low, high = FUNCTIONS[name][2]
    rng = np.random.default_rng([len(name), seed])
    if low > 0:
        x = 10.0 ** rng.uniform(np.log10(low), np.log10(high), count)
        if dtype == "float16":
            x = 10.0 ** rng.uniform(-4, 4, count)
    else:
        x = np.concatenate([rng.uniform(low, high, count // 2), rng.normal(size=count - count // 2) * min(1.0, high)])
        x = np.clip(x, low, high)
    x = np.concatenate([x, [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 2.5, np.inf, -np.inf, np.nan]])
    with np.errstate(all="ignore"):
        return x.astype(np_dtype(dtype))


def function_case(dtype: str, names=tuple(FUNCTIONS), rows: int = 1) -> Case:
    """Elementary functions of a tile, compared with float64 within their documented ulp; 16-bit floats round once, so that they
    are within slightly more than 1/2 ulp of theirs. Each of the `rows` CTAs has its own arguments."""
    args, lines, expected, how = {}, [], {}, {}
    for i, name in enumerate(names):
        x = np.stack([arguments_of(name, dtype, seed) for seed in range(rows)])
        args[f"a{i}"] = x
        exact, ulp, _ = FUNCTIONS[name]
        with np.errstate(all="ignore"):
            want = exact(x.astype(np.float64).ravel()).reshape(x.shape)
        lines.append(f"tile.store(o{i}[p, 0:N], tile.{name}(tile.load(a{i}[p, 0:N])))")
        expected[f"o{i}"] = want
        how[f"o{i}"] = (0.5 if ulp <= 0.5 else FLOAT64_ULP) if dtype == "float64" else max(ulp, 0.5) if dtype == "float32" else 0.501
    parameters = ", ".join([*args, *expected, "N: tile.constexpr"])
    source = f"def functions({parameters}):\n    p = tile.program_id(0)\n    " + "\n    ".join(lines) + "\n"
    case = Case(f"functions of {dtype}", source, args, expected, how, grid=(rows,), options={"N": x.shape[1]})
    case.start = {o: np.zeros(x.shape, np_dtype(dtype)) for o in expected}
    return case


# fast form -> (range of arguments, allowed error as a function of the result and the argument)
FAST = {
    "exp": ((-80, 80), lambda r, x: (2.5 + 1.25 * np.abs(x)) * ulp(r)),
    "exp2": ((-120, 120), lambda r, x: 2.5 * ulp(r)),
    "log": ((1e-3, 1e3), lambda r, x: np.where((x >= 0.5) & (x <= 2), 2.0**-21, 3 * ulp(r))),
    "log2": ((1e-3, 1e3), lambda r, x: np.where((x >= 0.5) & (x <= 2), 2.0**-22, 2.0**-22 * np.abs(r))),
    "log10": ((1e-3, 1e3), lambda r, x: np.where((x >= 0.5) & (x <= 2), 2.0**-22, 3 * ulp(r))),
    "sqrt": ((1e-20, 1e20), lambda r, x: ulp(r)),
    "rsqrt": ((1e-20, 1e20), lambda r, x: 2 * ulp(r)),
    "sin": ((-np.pi, np.pi), lambda r, x: 2.0**-20.5),
    "cos": ((-np.pi, np.pi), lambda r, x: 2.0**-20.5),
    "tanh": ((-10, 10), lambda r, x: 2.0**-11 * np.abs(r)),
    "sigmoid": ((-20, 20), lambda r, x: 2.0**-11),
}


def ulp(values: np.ndarray) -> np.ndarray:
    """A unit in the last place of float32."""
    return 2.0 ** (np.floor(np.log2(np.maximum(np.abs(values), 2.0**-126))) - 23)


def fast_functions_differ() -> list[str]:
    """Run the fast forms on the GPU; returns those with a larger error than documented."""
    import tilejit as tile
    from tilejit.frontend import Source
    found = []
    for name, ((low, high), allowed) in FAST.items():
        rng = np.random.default_rng(3)
        x = (10.0 ** rng.uniform(np.log10(low), np.log10(high), (64, 512)) if low > 0 else rng.uniform(low, high, (64, 512))).astype(np.float32)
        source = (f"def fast(x, y):\n    p = tile.program_id(0)\n    tile.store(y[p, 0:512], tile.{name}(tile.load(x[p, 0:512]), fast=True))\n")
        there, result = tile.to_device(x), tile.empty(x.shape)
        tile.Kernel(Source.from_text(source, {"tile": tile}), {})[64](there, result)
        exact = FUNCTIONS[name][0](x.astype(np.float64))
        over = np.abs(result.numpy().astype(np.float64) - exact) / allowed(exact, x.astype(np.float64))
        if not over.max() <= 1:
            at = np.unravel_index(int(np.argmax(np.nan_to_num(over, nan=np.inf))), over.shape)
            found.append(f"fast {name}({x[at]!r}) is {result.numpy()[at]!r}, not {exact[at]!r}: {over[at]:.2f} times the error that is stated")
    return found


# -- selection -----------------------------------------------------------------------------------------------------------------

def larger(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """NumPy's maximum, with 0.0 larger than -0.0."""
    zeros = (x == 0) & (y == 0)
    return np.where(zeros, np.where(np.signbit(x.astype(np.float64)), y, x), np.maximum(x, y))


def smaller(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return -larger(-x, -y)


def selections(a: str, b: str) -> Case:
    """where, minimum, maximum and clip of two dtypes."""
    x, y = pairs(special(a, 11, 20), special(b, 12, 20))
    common = promoted(a, b)
    wide = "float32" if common in FLOAT8 else common
    c = np.resize(np.array([True, False, False, True, True]), len(x))
    u, v = cast(x, wide), cast(y, wide)
    with np.errstate(all="ignore"):
        low, high = (smaller, larger) if is_float(wide) else (np.minimum, np.maximum) if wide != "bool" else (np.logical_and, np.logical_or)
        want = {"tile.where(c, x, y)": np.where(c, cast(x, common), cast(y, common)), "tile.minimum(x, y)": low(u, v),
                "tile.maximum(x, y)": high(u, v)}
        want |= {"tile.clip(x, y, None)": high(u, v), "tile.clip(x, None, high=y)": low(u, v), "tile.clip(x, y, x)": low(high(u, v), u)}
    lines, expected = [], {}
    for i, (text, w) in enumerate(want.items()):
        lines += [f"r = {text}", f"tile.static_assert(r.dtype == {tile_name(w.dtype.name)})", f"tile.store(o{i}[0:N], r)"]
        expected[f"o{i}"] = w
    parameters = ", ".join(["a", "b", "m", *expected, "N: tile.constexpr"])
    body = "\n    ".join(["x = tile.load(a[0:N])", "y = tile.load(b[0:N])", "c = tile.load(m[0:N])", *lines])
    return Case(f"where, minimum and maximum of {a} and {b}", f"def selections({parameters}):\n    {body}\n", {"a": x, "b": y, "m": c}, expected,
                options={"N": len(x)})


def fused(dtype: str) -> Case:
    """fma rounds once."""
    from fractions import Fraction

    from language_reference import rounded
    rng = np.random.default_rng(4)
    x, y = (rng.normal(size=300).astype(np_dtype(dtype)) for _ in range(2))
    with np.errstate(all="ignore"):
        z = (-x.astype(np.float64) * y.astype(np.float64) * (1 + rng.choice([0, 1e-3, 1e-7, 1], 300))).astype(np_dtype(dtype))
    exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(x, y, z)]
    want = np.array([rounded(v, dtype) if dtype != "float64" else float(v) for v in exact]).astype(np_dtype(dtype))
    source = ("def fused(a, b, c, o, N: tile.constexpr):\n"
              "    tile.store(o[0:N], tile.fma(tile.load(a[0:N]), tile.load(b[0:N]), tile.load(c[0:N])))\n")
    return Case(f"fma of {dtype}", source, {"a": x, "b": y, "c": z}, {"o": want}, {"o": "value"}, options={"N": 300})


def elementwise_cases() -> Iterator[Case]:
    """All cases of this file."""
    yield from all_operators()
    yield from scalar_operators()
    for dtype in DTYPES:
        yield weak_operators(dtype)
        yield unary_operators(dtype)
        yield casts(dtype)
        yield casts(dtype, "scalar")
        if dtype != "bool":
            yield bitcasts(dtype)
        yield selections(dtype, dtype)
    for dtype in INTS:
        yield divisions_by_zero(dtype)
    for a, b in (("int8", "uint16"), ("int64", "uint64"), ("float16", "bfloat16"), ("bool", "float32"), ("float8_e4m3fn", "float16")):
        yield selections(a, b)
    for dtype in FLOATS:
        yield function_case(dtype)
        yield fused(dtype)


__all__ = ["FUNCTIONS", "INTS", "all_operators", "bitcasts", "casts", "divisions_by_zero", "elementwise_cases", "fused", "function_case", "operators",
           "scalar_operators", "selections", "unary_operators", "weak_operators"]
