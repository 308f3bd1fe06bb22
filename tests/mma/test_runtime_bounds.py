"""Pipelined loops whose bounds are known at run time, alone, one after another, nested and in branches, and perhaps without a single trip.

The products of sm_90a stay in flight from trip to trip. ptxas serialises them where a path around the loop joins the one through it before the
wait.
"""

import re

import numpy as np
import pytest
import tilejit as tile

from tests.chosen_cases import all_cases
from tests.gpu import in_child, needs_gpu, needs_module, some

pytestmark = pytest.mark.filterwarnings("ignore::tilejit.TileWarning")
BK = 32
RNG = np.random.default_rng(0)
A, B = RNG.integers(-2, 3, (64, 256)).astype(np.float16), RNG.integers(-2, 3, (256, 32)).astype(np.float16)
TARGETS = ("sm_80", "sm_100a", "sm_103a", "sm_120a")


def loop(over: str, name: str = "p", before: str = "", after: str = "") -> str:
    product = f"{name} = tile.dot(tile.load(A[0:64, i:i + 32]), tile.load(B[i:i + 32, 0:32]), {name})"
    return f"for i in LOOP({over}):\n" + "".join(f"    {line}\n" for line in [*before.splitlines(), product, *after.splitlines()])


def inside(head: str, *bodies: str) -> str:
    return head + "\n" + "".join(f"    {line}\n" for body in bodies for line in body.splitlines())


R, S = "n, m, 32", "0, n, 32"
DOT = "p = tile.dot(tile.load(A[0:64, 0:32]), tile.load(B[0:32, 0:32]), p)\n"
FORMS = {
    "alone": loop(R),
    "to the array's end": loop("n, A.shape[1], 32"),
    "backwards": loop("m, n, -32"),
    "in steps": loop("n, m, 64"),
    "two on one accumulator": loop(R) + loop(S),
    "three on one accumulator": loop(R) + loop(S) + loop("m, A.shape[1], 32"),
    "scaled between": loop(R) + "p = p * 2\n" + loop(S),
    "two accumulators": loop(R) + loop(S, "q"),
    "two accumulators in one loop": loop(R, after="q = tile.dot(tile.load(A[0:64, i:i + 32]), tile.load(B[i:i + 32, 0:32]), q)"),
    "traded between": loop(R) + "p, q = q, p\n" + loop(S),
    "a constant start first": loop("0, m, 32") + loop(R),
    "in a loop": inside("for t in range(3):", loop("t * 32, m, 32")),
    "in a loop, anew": inside("for t in range(3):", "p = tile.zeros((64, 32))\n", loop("t * 32, m, 32"), "q = q + p\n"),
    "two in a loop": inside("for t in range(3):", loop("t * 32, m, 32"), loop("0, t * 32, 32")),
    "in a while loop": "w = n\n" + inside("while w < 96:", loop("w, m, 32"), "w += 32\n"),
    "in a loop that is left": inside("for t in range(3):", loop("t * 32, m, 32"), "if t * 32 == n:\n    break\n"),
    "in a branch": inside("if m > 64:", loop(R)),
    "in both ways of a branch": inside("if m > 64:", loop(R)) + inside("else:", loop(S)),
    "after a branch": inside("if m > 64:", "p = p + 1\n") + loop(R),
    "after a product": DOT + loop(R),
    "after a product in a branch": inside("if m > 64:", DOT) + loop(R),
    "after a loop in a branch": inside("if m > 64:", loop(S)) + loop(R),
    "before a product": loop(R) + DOT,
    "before a product in a branch": loop(R) + inside("if m > 64:", DOT),
    "scaled in each trip": loop(R, after="p = p + 1"),
    "scaled before each product": loop(R, before="p = p - 1"),
    "scaled in some trips": loop(R, after="if i > n:\n    p = p + 1"),
    "around a product in a loop": inside("for i in LOOP(n, m, 32):", "a, b = tile.load(A[0:64, i:i + 32]), tile.load(B[i:i + 32, 0:32])\n"
                                         "for j in range(2):\n    p = tile.dot(a, b, p)\n"),
}
BOUNDS = ((0, 256), (64, 64), (64, 96), (96, 32), (32, 192))


def kernel(form: str, stages: int, roles: bool = False):
    over = rf"tile.pipelined(range(\1), stages={stages}, warp_specialize={roles})"
    lines = re.sub(r"LOOP\((.*)\)", over, FORMS[form]).splitlines()
    return tile.jit(source="def kernel(A, B, C, n, m):\n    p, q = tile.zeros((64, 32)), tile.zeros((64, 32))\n"
                           + "".join(f"    {line}\n" for line in lines) + "    tile.store(C[0:64, 0:32], p + q * 4)\n", num_warps=4)


class Meaning:
    """The language's names in `FORMS`, with NumPy's meaning."""

    load = staticmethod(lambda x: x.astype(np.float64))
    dot = staticmethod(lambda a, b, acc: acc + a @ b)
    zeros = staticmethod(np.zeros)


def expected(form: str, n: int, m: int) -> np.ndarray:
    names = {"tile": Meaning, "A": A, "B": B, "n": n, "m": m, "LOOP": range, "p": np.zeros((64, 32)), "q": np.zeros((64, 32))}
    exec(FORMS[form], names)
    return names["p"] + names["q"] * 4


@pytest.mark.parametrize("form", FORMS)
def test_loops_with_bounds_of_run_time_assemble_and_are_right_at_every_number_of_stages(form, monkeypatch):
    """Each kernel is assembled for every target, where a note of serialised products is an error; with roles, too."""
    turn = list(FORMS).index(form)
    for n, (first, last) in enumerate(BOUNDS):
        if not all_cases() and (n + turn) % 5 > 2:  # three of the bounds in turn
            continue
        monkeypatch.setenv("TILEJIT_TARGET", TARGETS[(turn + n) % 4] if n == turn % 5 else "sm_90a")
        c = np.zeros((64, 32), np.float32)
        kernel(form, 1 + (turn + n) % 5, roles=n == 4).simulate(1, A, B, c, first, last, seed=n).raise_first()
        np.testing.assert_array_equal(c, expected(form, first, last))


@needs_module("torch")
@needs_gpu("sm_90a")
@in_child(timeout=240)
def test_loops_with_bounds_of_run_time_are_right_on_the_gpu():
    import torch
    for form in some(list(FORMS)):
        for stages in (1, 2, 3):
            made = kernel(form, stages)
            for first, last in BOUNDS:
                a, b, c = (torch.from_numpy(x.copy()).cuda() for x in (A, B, np.zeros((64, 32), np.float32)))
                made[1](a, b, c, first, last)
                np.testing.assert_array_equal(c.cpu().numpy(), expected(form, first, last), err_msg=f"{form}, {stages} stages")
