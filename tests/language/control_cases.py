"""Cases of control flow: functions that Python runs unchanged, inlined in kernels whose threads or CTAs diverge."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from textwrap import dedent, indent

import numpy as np
import tilejit as tile
from language_cases import Case

FUNCTIONS = {
    "if, elif and else": """
        if a < 0:
            r = -a
        elif a == 0:
            r = b
        elif a < 3 and b < 3:
            r = a + b
        else:
            r = a * b
        return r""",
    "early return": """
        if a > 3:
            return 1
        if b > 3:
            if a > b - 4:
                return 2
            a = a + 10
        return a""",
    "for with a run-time bound": """
        r = 0
        for i in range(a):
            r += i * b
        return r""",
    "for by a run-time step": """
        r = 0
        for i in range(a, b + 9, a * a + 1):
            r = r * 7 % 1009 + i
        for i in range(b, 3 * a, 2 * (a - b) + 1):
            r = r * 5 % 1013 + i
        return r""",
    "for from, to, by": """
        r = 1
        for i in range(a, b + 7, 3):
            r = r * 3 % 1001 + i
        for i in range(b, a, -2):
            r = r * 5 % 1001 - i
        return r""",
    "break and continue": """
        r = 0
        for i in range(10):
            if i == a:
                continue
            if i > b + 4:
                break
            r = r * 2 + i
        return r""",
    "break out of two loops": """
        found = -1
        for i in range(6):
            for j in range(6):
                if i * j == a + 4:
                    found = 10 * i + j
                    break
            if found >= 0:
                break
        return found""",
    "return out of a loop": """
        for i in range(8):
            for j in range(i):
                if i + j == a + b:
                    return 100 * i + j
            if i == 7:
                return -7
        return -1""",
    "while": """
        n = 0
        while a > 0 and n < 20:
            a = a - b
            n += 1
        return n * 100 + a""",
    "while True": """
        n = 0
        while True:
            n += 1
            if n * n > a + b * b:
                break
            if n == 3:
                continue
            n += a % 2
        return n""",
    "collatz": """
        x, n = abs(a) + 1, 0
        while x != 1:
            x = x // 2 if x % 2 == 0 else 3 * x + 1
            n += 1
        return n""",
    "no trip at all": """
        r = 5
        for i in range(0):
            r = 6
        for i in range(a, a):
            r = 7
        while r < 0:
            r = 8
        for i in range(3, 3 - abs(b)):
            r = 9
        return r""",
    "and, or, not": """
        r = 0
        if a > 0 and b > 0 or a == b:
            r += 1
        if not (a > 0 or b > 0):
            r += 2
        if 0 < a < b <= 4:
            r += 4
        r += 8 if a and b else 16
        return r""",
    "a conditional expression": "return (a if a > b else b) * (3 if a % 2 else 5 if b % 2 else 7)",
    "names that change their meaning": """
        x, y = a, b
        for i in range(5):
            x, y = y, x + y
            if x > 20:
                x, y = x - 20, y
        (p, q), s = (x, y), x - y
        return p * 3 + q * 5 + s""",
    "a carried flag": """
        done = False
        n = 0
        while not done:
            n += 1
            done = n * 3 > a + 6
            if n > b + 5:
                done = True
        return n""",
    "division and remainder": """
        d = b if b else 3
        r = a // d * 100 + a % d
        for i in range(1, 4):
            r = r * 7 + (a - i) // (i + 1) + (b + i) % (-i - 1)
        return r""",
    "bits": "return ((a & 3) << 2 | (b ^ 5)) + (a >> 1) + ~b",
    "assignment inside an expression": """
        r = (k := a + 1) * 2
        if (m := k * b) > 4:
            r += m
        return r + k""",
    "static loops": """
        r = 0
        for i in static_range(4):
            if i == a:
                continue
            for j in (1, 5):
                if i * j > b + 8:
                    break
                r += i * j + 1
        return r""",
}


def python(text: str, name: str):
    """The function as run by Python."""
    namespace = {"static_range": range}
    exec(f"def f(a, b):\n{indent(dedent(text).strip(), '    ')}\n", namespace)
    return namespace["f"]


def helper(text: str):
    """The function as an inlined helper."""
    from tilejit.frontend import Source
    from tilejit.jit import Kernel
    return Kernel(Source.from_text(f"def f(a, b):\n{indent(dedent(text).strip(), '    ')}\n", {"static_range": tile.static_range}), {})


POINTS = np.array(list(itertools.product(range(-3, 6), range(-2, 5))) + [(9, 9)], np.int32)  # 64 of them


def control(name: str, level: str) -> Case:
    """A function of FUNCTIONS with 64 arguments: different per thread, different per CTA, or uniform launch arguments."""
    text = FUNCTIONS[name]
    want = np.array([python(text, name)(int(a), int(b)) for a, b in POINTS], np.int32)
    if level == "threads":
        source = ("def control(x, y):\n    t = tile.thread_id()\n"
                  "    tile.store(y[t], f(tile.load(x[t, 0]), tile.load(x[t, 1])))\n")
        grid, options = (1,), {"num_warps": 2}
    elif level == "CTAs":
        source = ("def control(x, y):\n    t = tile.program_id(0)\n"
                  "    tile.store(y[t], f(tile.load(x[t, 0]), tile.load(x[t, 1])))\n")
        grid, options = (64,), {"num_warps": 1}
    else:  # tiles of equal elements, changed under uniform conditions
        source = ("def control(x, y):\n    t = tile.program_id(0)\n"
                  "    r = f(tile.load(x[t, 0]), tile.load(x[t, 1]))\n"
                  "    v = tile.full((8, 8), 1) * tile.load(x[t, 0])\n"
                  "    n = 0\n"
                  "    while n < abs(r) % 7:\n"
                  "        if n % 2 == 0:\n"
                  "            v = v + n\n"
                  "        else:\n"
                  "            v = v * 2 - tile.arange(8) * 0\n"
                  "        n += 1\n"
                  "    tile.store(y[t, 0:8, 0:8], v)\n")
        grid, options = (64,), {"num_warps": 2}
        tiles = []
        for (a, _), r in zip(POINTS.tolist(), want.tolist()):
            for n in range(abs(r) % 7):
                a = a + n if n % 2 == 0 else a * 2
            tiles.append(np.full((8, 8), a, np.int32))
        want = np.array(tiles)
    return Case(f"{name}, by {level}", source, {"x": POINTS}, {"y": want}, grid=grid, options=options, namespace={"f": helper(text)})


@tile.jit
def both(x, low: tile.constexpr, high=7):
    return tile.minimum(x, low), tile.maximum(x, high)


@tile.jit
def twice(f: tile.constexpr, x):
    return f(f(x))


@tile.jit
def halved(x):
    return x * 0.5


@tile.jit
def total(xs):
    s = xs[0]
    for x in xs[1:]:
        s = s + x
    return s


def helpers() -> Case:
    """Helpers with several results, defaults, constants, functions as arguments, tuples of tiles."""
    x = np.linspace(-20, 20, 48).astype(np.float32)
    source = ("def helpers(x, y, z, w):\n"
              "    v = tile.load(x[0:48])\n"
              "    low, high = both(v, 3)\n"
              "    tile.store(y[0, 0:48], low)\n"
              "    tile.store(y[1, 0:48], both(v, low=-1, high=9)[1] + high)\n"
              "    tile.store(z[0:48], twice(halved, v))\n"
              "    tile.store(w[0:48], total((v, low, high)))\n")
    y = np.array([np.minimum(x, 3), np.maximum(x, 9) + np.maximum(x, 7)], np.float32)
    want = {"y": y, "z": x * np.float32(0.25), "w": x + np.minimum(x, 3) + np.maximum(x, 7)}
    return Case("helpers", source, {"x": x}, want, namespace={"both": both, "twice": twice, "halved": halved, "total": total})


def loops_of_tiles() -> Iterator[Case]:
    """Tiles carried by loops that are unrolled by hand, by the compiler, partly, or not at all."""
    x = np.random.default_rng(1).integers(-9, 9, (12, 40)).astype(np.int32)
    total_ = np.zeros(40, np.int32)
    for k in range(12):
        total_ = total_ * 3 + x[k]
    for loop in ("range(n)", "range(12)", "tile.range(n, unroll=4)", "tile.range(12, unroll=5)", "tile.static_range(12)", "tile.range(0, n, 1, unroll=3)"):
        source = (f"def loops(x, y, n):\n    s = tile.zeros((40,), tile.int32)\n    for k in {loop}:\n"
                  "        s = s * 3 + tile.load(x[k, 0:40])\n    tile.store(y[0:40], s)\n")
        yield Case(f"a tile around {loop}", source, {"x": x, "n": 12}, {"y": total_})
    source = ("def loops(x, y, n, m):\n    a = tile.zeros((8, 5), tile.int32)\n    b = tile.full((8, 5), 1)\n"
              "    for i in range(n):\n        for j in range(m, 8, 2):\n            a, b = b, a + tile.load(x[i, j * 5:j * 5 + 5])\n"
              "        if i == 2:\n            continue\n        b = b - i\n    tile.store(y[0:8, 0:5], a * 100 + b)\n")
    for n, m in ((0, 0), (4, 0), (6, 3), (3, 9)):
        a, b = np.zeros((8, 5), np.int32), np.full((8, 5), 1, np.int32)
        for i in range(n):
            for j in range(m, 8, 2):
                a, b = b, a + x[i, j * 5:j * 5 + 5]
            if i != 2:
                b = b - i
        yield Case(f"two tiles that change places, {n} by {m}", source, {"x": x, "n": n, "m": m}, {"y": a * 100 + b})


def wide_loops() -> Iterator[Case]:
    """Loops whose bounds need 64 bits."""
    source = ("def wide(y, start, stop, step: tile.constexpr):\n    n = 0\n    s = start * 0\n    for i in range(start, stop, step):\n"
              "        n += 1\n        s += i\n    tile.store(y[0], n)\n    tile.store(y[1], s)\n")
    for start, stop, step in ((2**40, 2**40 + 10, 3), (-2**35, -2**35 - 7, -2), (2**33, 5, 7), (0, 2**32, 2**30)):
        over = range(start, stop, step)
        yield Case(f"a loop over {over}", source, {"start": start, "stop": stop}, {"y": np.array([len(over), sum(over)], np.int64)},
                   options={"step": step})
        yield Case(f"a loop over {over} by a run-time step", source.replace(": tile.constexpr", ""), {"start": start, "stop": stop, "step": step},
                   {"y": np.array([len(over), sum(over)], np.int64)})


def constant_wide_loops() -> Iterator[Case]:
    """Loops whose bounds are 64-bit constants, with a runtime 32-bit step."""
    for over, leave in ((range(0, 2**40, 2**31 - 1), ""), (range(0, -2**40, -2**31), ""), (range(2**40, 2**40 + 9, 4), "        if n > 100:\n            break\n")):
        source = (f"def wide(y, step):\n    n = 0\n    s = step * 0 + 0 * {2**40}\n    for i in range({over.start}, {over.stop}, step):\n{leave}"
                  "        n += 1\n        s += i\n    tile.store(y[0], n)\n    tile.store(y[1], s)\n")
        yield Case(f"a loop over {over} of constants by a run-time step", source, {"step": over.step}, {"y": np.array([len(over), sum(over)], np.int64)})


def unsigned_loops() -> Iterator[Case]:
    """Loops with unsigned bounds, also beyond the largest signed integer."""
    for dtype, half in ((np.uint32, 2**31), (np.uint64, 2**63)):
        for head, over in (("range(a, b)", range(half - 4, half + 7)), ("range(a, b, 3)", range(half - 4, half + 7, 3)),
                           ("tile.range(a, b, 2, unroll=4)", range(half - 4, half + 15, 2)), ("tile.range(a, b, unroll=8)", range(0, 3)),
                           ("range(a, b)", range(half, half - 1))):
            source = (f"def unsigned(x, y):\n    a = tile.load(x[0])\n    b = tile.load(x[1])\n    n = 0\n    s = a - a\n    for i in {head}:\n"
                      "        n += 1\n        s += i - a\n    tile.store(y[0], n)\n    tile.store(y[1], s)\n")
            yield Case(f"a loop over {over} of {dtype.__name__} by {head}", source, {"x": np.array([over.start, over.stop], dtype)},
                       {"y": np.array([len(over), sum(i - over.start for i in over)], dtype)})


ENDINGS = {
    "range": ("range(a, b, {})", ""),
    "unrolled": ("tile.range(a, b, {}, unroll=4)", ""),
    "left early": ("range(a, b, {})", "        if n > 100:\n            break\n"),
    "from a constant": ("range({start}, b, {})", ""),
    "from a constant, left early": ("range({start}, b, {})", "        if n > 100:\n            break\n"),
}


FALLING = {
    "range": ("range(a, b, {step})", ""),
    "unrolled": ("tile.range(a, b, {step}, unroll=3)", ""),
    "left early": ("range(a, b, {step})", "        if n == 5:\n            break\n"),
    "by a step of run time": ("range(a, b, s)", ""),
    "to a constant": ("range(a, {stop}, {step})", ""),
}


def falling_loops(name: str) -> Iterator[Case]:
    """Loops that count down in uint64, from beyond the largest signed integer and across it; the index is the int64 with the same bits."""
    form, leave = FALLING[name]
    half = 2**63
    overs = [range(half + 5, half - 6, -1), range(2**64 - 1, 2**64 - 10, -3), range(2**64 - 1, half, -2**61), range(half, half - 2, -2),
             range(half + 9, half + 9, -1), range(3, half + 7, -1), range(5, 0, -1), range(9, 2, -4), range(half + 3, 0, -2**61)]
    if name == "to a constant":
        overs = [range(half + 3, 0, -2**61), range(half + 3, -1, -2**61), range(9, -1, -4), range(9, 0, -3), range(0, 5, -1), range(0, -1, -1)]
    for over in overs:
        source = (f"def falling(x, w, y):\n    a, b, s, n = tile.load(x[0]), tile.load(x[1]), tile.load(w[0]), 0\n"
                  f"    for i in {form.format(stop=over.stop, step=over.step)}:\n{leave}        tile.store(y[n], i.to(tile.uint64))\n        n += 1\n"
                  "    tile.store(y[16], tile.cast(n, tile.uint64))\n")
        numbers = list(over)[:5 if leave else 16]
        y = np.array([*numbers, *[0] * (16 - len(numbers)), len(numbers)], np.uint64)
        yield Case(f"a loop over {over} of uint64, {name}", source, {"x": np.array([over.start, max(over.stop, 0)], np.uint64), "w": np.array([over.step])},
                   {"y": y})


def loops_at_the_ends(name: str) -> Iterator[Case]:
    """Loops whose index would leave the range of its dtype after the last step: the trip count is Python's."""
    form, leave = ENDINGS[name]
    signed = (np.int32, 2**31 - 1), (np.int64, 2**63 - 1)
    for dtype, most in signed if "constant" in name else (*signed, (np.uint32, 2**32 - 1)):  # a constant and an unsigned number have 64 bits
        least = 0 if dtype is np.uint32 else -most - 1
        overs = [range(most - 10, most, 4), range(most - 8, most, 4), range(most - 700, most, 64), range(least, least + 2, 7),
                 range(least, least + 9, 4), range(0, most, most // 2), range(5, 3, 4), range(0, 10, 3)]
        overs += [range(~n.start, ~n.stop, -n.step) for n in overs] + [range(least, most, most // 2), range(most, least, least // 2)] if least else []
        for over in overs:
            head = form.format(over.step, start=over.start)
            source = (f"def at_the_end(x, y):\n    a = tile.load(x[0])\n    b = tile.load(x[1])\n    n = 0\n    s = a - a\n    for i in {head}:\n"
                      f"{leave}        n += 1\n        s = s * 5 + (i - a)\n    tile.store(y[0], n)\n    tile.store(y[1], s)\n")
            s = 0
            for i in over:
                s = s * 5 + (i - over.start)
            y = np.array([len(over), s % 2**(8 * np.dtype(dtype).itemsize)], np.uint64).astype(dtype)
            yield Case(f"a loop over {over} of {dtype.__name__}, {name}", source, {"x": np.array([over.start, over.stop], dtype)}, {"y": y})


APART = {
    "a branch": (["if t % 3 == 1:", "    r += tile.load(x[0]) + n"], lambda t, x: int(x[0]) + 1 if t % 3 == 1 else 0),
    "an else": (["if t < 40:", "    r += 1", "else:", "    r += tile.load(x[n])"], lambda t, x: 1 if t < 40 else int(x[1])),
    "a for": (["for i in range(t % 5):", "    r += tile.load(x[2]) + i"], lambda t, x: sum(int(x[2]) + i for i in range(t % 5))),
    "a while": (["k = t % 4", "while k > tile.load(x[1]) - 5:", "    r += tile.load(x[n + 1])", "    k -= 1"],
                lambda t, x: int(x[2]) * max(0, t % 4 - int(x[1]) + 5)),
    "what a break leaves": (["for i in range(6):", "    if i == t % 7:", "        break", "    r += tile.load(x[i % 2 + n - 1])"],
                            lambda t, x: sum(int(x[i % 2]) for i in range(min(6, t % 7)))),
}


def loads_apart(name: str) -> Case:
    """A uniform element, loaded by the threads that remain in a divergent condition or loop."""
    lines, want = APART[name]
    x = np.array([7, 5, 3], np.int32)
    source = ("def apart(x, n, y):\n    t = tile.thread_id()\n    r = 0\n" + "".join(f"    {line}\n" for line in lines) + "    tile.sync()\n"
              "    tile.store(y[t], r)\n")
    y = np.array([want(t, x) for t in range(96)], np.int32)
    return Case(f"a load in {name}", source, {"x": x, "n": 1}, {"y": y}, options={"num_warps": 3})


def absent_scopes() -> Iterator[Case]:
    """Scopes of a warp and a warpgroup given by launch arguments, in CTAs that have or lack them."""
    for scope, warps in (("warp", 1), ("warpgroup", 4)):
        for head in (f"with tile.{scope}(n):", f"if tile.{scope}_id() == n:"):
            source = f"def named(n, y):\n    {head}\n        tile.store(y[tile.thread_id()], 1)\n"
            for n in (0, 1, 3, -1):
                yield Case(f"{head} of {n} in {warps} warps", source, {"n": n}, {"y": np.full(32 * warps, int(n == 0), np.int32)},
                           options={"num_warps": warps})


def control_cases() -> Iterator[Case]:
    """All cases of this file."""
    for name in FUNCTIONS:
        for level in ("threads", "CTAs", "tiles"):
            yield control(name, level)
    yield helpers()
    yield from map(loads_apart, APART)
    yield from loops_of_tiles()
    yield from wide_loops()
    yield from constant_wide_loops()
    yield from unsigned_loops()
    for name in FALLING:
        yield from falling_loops(name)
    for name in ENDINGS:
        yield from loops_at_the_ends(name)
    yield from absent_scopes()
