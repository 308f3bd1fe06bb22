"""Products in flight where control flow joins: waits are inserted where the assembler would otherwise serialise all products."""

import re
import warnings

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import ToolchainError

from tests.gpu import in_child, needs_gpu, needs_module, some
from tests.mma.test_pinned_registers import Way

BEGIN = """def kernel(A, B, C, n, m):
    a, b = tile.alloc((64, 16), A.dtype, layout=tile.auto), tile.alloc((16, 8), B.dtype, layout=tile.auto)
    tile.copy(a, A[0:64, 0:16])
    tile.copy(b, B[0:16, 0:8])
    tile.fence_proxy_async()
    tile.sync()
    p, q, r = tile.zeros((64, 8)), tile.load(C[0:64, 0:8]), tile.zeros((64, 8))
"""
END = ["tile.mma_commit()", "tile.mma_wait(0)", "tile.store(C[0:64, 0:8], p + q * 2.0 + r * 4.0)"]
RNG = np.random.default_rng(0)
A, B, C = RNG.integers(-2, 3, (64, 16)).astype(np.float16), RNG.integers(-2, 3, (16, 8)).astype(np.float16), RNG.integers(-2, 3, (64, 8)).astype(np.float32)


class Meaning:
    """The meaning of the language's names used in these kernels, computed immediately in float64."""

    mma_commit = staticmethod(lambda: None)
    mma_wait = staticmethod(lambda n: None)
    mma_async = staticmethod(lambda acc, a, b: (0 if acc is None else acc) + a @ b)
    dot = staticmethod(lambda a, b, acc=None: (0 if acc is None else acc) + a @ b)
    zeros = staticmethod(np.zeros)


def expected_result(lines, n, m):
    """The expected result of a kernel's lines."""
    names = {"tile": Meaning, "a": A.astype(np.float64), "b": B.astype(np.float64), "p": np.zeros((64, 8)), "q": C.astype(np.float64),
             "r": np.zeros((64, 8)), "n": n, "m": m}
    exec("\n".join(lines), names)
    return names["p"] + names["q"] * 2 + names["r"] * 4


def checked(lines):
    """Assembles the kernel without serialisation, and returns the lines of the warnings about inserted waits; its sums are right on the simulator,
    and in their registers wherever they are read."""
    kernel = tile.jit(source=BEGIN + "".join(f"    {line}\n" for line in (*lines, *END)), num_warps=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n, m in ((0, 0), (1, 3), (3, 0), (3, 1), (4, 3)):
            c = C.copy()
            kernel.simulate(1, A, B, c, n, m).raise_first()
            np.testing.assert_array_equal(c, expected_result(lines, n, m))
        bound, options, _ = kernel.bind((A, B, C, 3, 1), {})
        for seed in range(10):
            Way(kernel.version(bound, options, "sm_90a").lowered.graph, seed)
        made = kernel.compile(A, B, C, 3, 1, target="sm_90a")
    assert made.spills == 0
    return made, [int(w.split("<source>:")[1].split(":")[0]) - 7 for w in made.warnings if "all products in flight are waited for" in w]


PRODUCT = "{0} = tile.mma_async({0}, a, b)", "tile.mma_commit()"


def product(name, indent=0):
    return [" " * indent + line.format(name) for line in PRODUCT]


AWAITED = {
    "the other way of a branch writes it": (["if n > 2:", *product("q", 4), "else:", "    q = q * 0.5"], [1]),
    "the other way of a branch hands on what was there": (["if n > 2:", *product("q", 4)], [1]),
    "behind a loop that may have no trip": (["if n > 2:", "    for i in range(m):", *product("r", 8), "else:", *product("r", 4)], [1]),
    "awaited in one way and scaled in a loop": ([*product("q"), "if n > 2:", "    tile.mma_wait(0)", "    for i in range(m):", "        q = q * 0.5"], [3]),
    "awaited and scaled in a loop's trips": ([*product("q"), "for i in range(m):", "    tile.mma_wait(0)", "    q = q * 0.5"], [3]),
    "awaited and begun anew in an inner loop": (["for i in range(m):", "    for j in range(n):", "        tile.mma_wait(0)", "        q = tile.zeros((64, 8))",
                                                 *product("q", 4)], [2]),
    "awaited and traded in a while loop": ([*product("q"), "w = 0", "while w < m:", "    tile.mma_wait(0)", "    p, q = q, p", "    w += 1"], [4]),
    "in flight where another begins in a loop": (["p = tile.mma_async(None, a, b)", "tile.mma_commit()", "for i in range(n):", "    tile.mma_wait(0)",
                                                  "    q = q + p", "    p = tile.mma_async(None, a, b)", "    tile.mma_commit()", *product("r", 4), "    tile.mma_wait(1)"], [3]),
    "written over before it is there": ([*product("r"), "for i in range(m):", "    r = tile.zeros((64, 8))"], [3]),
    "read a trip later, by the number of groups": ([*product("r"), "for i in range(m):", *product("p", 4), "    tile.mma_wait(1)", "    q = q + r",
                                                    *product("r", 4), "    tile.mma_wait(0)"], []),
    "read a trip later, with others in flight": ([*product("r"), "for i in range(m):", *product("p", 4), "    tile.mma_wait(1)", "    q = q + r",
                                                  *product("r", 4)], [6]),
}


@pytest.mark.parametrize("name", AWAITED)
def test_products_are_awaited_where_control_flow_joins(name):
    """With a warning at the branch, the loop or the statement; the simulator executes the inserted waits too."""
    lines, waits = AWAITED[name]
    assert checked(lines)[1] == waits


WANTED = {
    "traded in a loop": ["for i in range(m):", "    p = tile.dot(a, b, r)", "    p, q, r = q, r, p"],
    "kept under another name": ["w = 0", "while w < m:", "    p = r", "    r = tile.dot(a, b, p)", "    w += 1"],
    "traded and added": ["r = tile.dot(a, b, q)", "w = 0", "while w < m:", "    q = tile.dot(a, b, p)", "    p, q, r = q, r, p", "    r = r + q * 0.5", "    w += 1"],
    "traded before": ["for i in range(n):", "    p, q = q, p", "    q = tile.dot(a, b, p)", "    r = tile.dot(a, b, None)"],
}


@pytest.mark.parametrize("name", WANTED)
def test_accumulators_that_are_needed_after_a_product_in_a_loop_are_copied(name):
    """By an instruction that the assembler cannot optimise away: otherwise it found too few registers for the products."""
    made, waits = checked(WANTED[name])
    assert not waits and re.search(r"prmt\.b32 acc(\d)_0, acc(?!\1)\d_0, 0, 0x3210;", made.ptx)


UNTOUCHED = {
    "one group in flight over the trips": (["for i in range(m):", *product("r", 4), "    tile.mma_wait(1)"]),
    "two accumulators in turn": (["for i in range(m):", *product("r", 4), "    tile.mma_wait(1)", *product("p", 4), "    tile.mma_wait(1)"]),
    "two accumulators in turn, begun anew": (["for i in range(m):", "    r = tile.mma_async(None, a, b)", "    tile.mma_commit()", "    tile.mma_wait(1)",
                                              "    p = tile.mma_async(tile.zeros((64, 8)), a, b)", "    tile.mma_commit()", "    tile.mma_wait(1)"]),
    "read in the trip that started it": (["for i in range(m):", *product("r", 4), *product("p", 4), "    tile.mma_wait(1)", "    q = q + r", "    tile.mma_wait(0)"]),
    "the next one started before a trip ends": ([*product("p"), "for i in range(m):", "    tile.mma_wait(0)", "    q = q + p", *product("p", 4)]),
    "added to in a branch": (["r = tile.mma_async(None, a, b)", "tile.mma_commit()", "if n > 2:", *product("r", 4)]),
    "two loops one after the other": (["for i in range(m):", *product("r", 4), "    tile.mma_wait(1)", "for i in range(n):", *product("r", 4), "    tile.mma_wait(1)"]),
    "tile after tile": (["for t in range(m):", "    r = tile.zeros((64, 8))", "    for i in range(n):", *product("r", 8), "        tile.mma_wait(1)", "    tile.mma_wait(0)",
                         "    q = q + r"]),
    "read behind a loop by the number of groups": (["for i in range(m):", *product("r", 4), *product("p"), "tile.mma_wait(1)", "q = q + r"]),
}


RENEWED = {
    "a product in a branch, then a loop": ["if n > 2:", *product("p", 4), "    tile.mma_wait(0)", "for i in range(m):", *product("p", 4), "    tile.mma_wait(1)"],
    "a dot in a branch, then a loop": ["if n > 2:", "    q = tile.dot(a, b, q)", "for i in range(m):", *product("q", 4), "    tile.mma_wait(1)"],
    "scaled in a loop, then another loop": ["for i in range(m):", "    p = tile.dot(a, b, p) * 0.5", "for i in range(n):", *product("p", 4), "    tile.mma_wait(1)"],
    "a loop in a branch, then a loop": ["if n > 2:", "    for j in range(n):", "        p = tile.dot(a, b, p)", "w = 0", "while w < m:", *product("p", 4), "    w += 1"],
    "both in a loop": ["for t in range(m):", "    for i in range(2):", "        p = tile.dot(a, b, p * 0.5) * 0.5", "    for i in range(n):", *product("p", 8),
                       "        tile.mma_wait(1)", "    tile.mma_wait(0)"],
}


@pytest.mark.parametrize("name", RENEWED)
def test_accumulators_from_products_or_threads_are_rewritten_before_a_loop_with_products_in_flight(name):
    """In their own registers, and without a wait: there is no warning."""
    made, waits = checked(RENEWED[name])
    accumulators = re.findall(r"\.reg \.f32 (acc\d+)_", made.ptx)
    assert not waits and len(accumulators) == 1 and all(f"prmt.b32 {accumulators[0]}_{i}, {accumulators[0]}_{i}, 0, 0x3210;" in made.ptx for i in range(4))


@pytest.mark.parametrize("name", UNTOUCHED)
def test_products_stay_in_flight_where_the_assembler_can_follow_them(name):
    """The only waits are those of the kernel."""
    lines = UNTOUCHED[name]
    made, waits = checked(lines)
    assert not waits and "renewed" not in made.graph and made.graph.count("mma_wait") == sum("mma_wait" in line for line in (*lines, *END))


def test_products_that_the_assembler_serialises_anyway_are_reported_at_the_wait_with_a_remedy():
    """At the kernel's wait that ends the serialised sequence; the remedy here is a wait after the inner loop, in the outer one."""
    lines = ["for i in range(m):", "    q = tile.zeros((64, 8))", "    for j in range(n):", *product("q", 8), "        tile.mma_wait(1)", *product("r")]
    with pytest.raises(ToolchainError, match=r"C7515.*\ncall tile\.mma_wait\(0\) before anything but a product accesses the sums") as caught:
        checked(lines)
    told = re.search(r"line \d+", str(caught.value))  # ptxas 13.0 names none
    assert (caught.value.loc.line == 7 + len(lines) + 2) if told else caught.value.loc is None
    assert not checked([*lines[:-2], "    tile.mma_wait(0)", *lines[-2:]])[1]


@needs_module("torch")
@needs_gpu("sm_90a")
@in_child(timeout=240)
def test_accumulators_are_right_on_the_gpu_however_control_flow_joins():
    import torch
    cases = {**AWAITED, **{name: (lines, []) for lines_of in (WANTED, UNTOUCHED, RENEWED) for name, lines in lines_of.items()}}
    for name in some(list(cases)):
        lines = cases[name][0]
        kernel = tile.jit(source=BEGIN + "".join(f"    {line}\n" for line in (*lines, *END)), num_warps=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for n, m in ((0, 0), (1, 3), (3, 0), (3, 1), (4, 3)):
                a, b, c = (torch.from_numpy(x.copy()).cuda() for x in (A, B, C))
                kernel[1](a, b, c, n, m)
                np.testing.assert_array_equal(c.cpu().numpy(), expected_result(lines, n, m), err_msg=name)
