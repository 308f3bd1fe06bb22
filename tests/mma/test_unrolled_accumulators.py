"""Loops whose bodies stand several times in the code, around accumulators: each copy reads what the one before it has left."""

import re

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu


@tile.jit
def operands(A, B):
    a, b = tile.alloc((64, 32), A.dtype, layout=tile.auto), tile.alloc((32, 16), B.dtype, layout=tile.auto)
    tile.copy(a, A[0:64, 0:32])
    tile.copy(b, B[0:32, 0:16])
    tile.sync()
    return a, b


@tile.jit
def halved(A, B, C, n, UNROLL: tile.constexpr):
    """The product changes in a loop without products."""
    a, b = operands(A, B)
    acc = tile.dot(a, b)
    for i in tile.range(0, n, 1, unroll=UNROLL):
        acc = acc * 0.5 + i
    tile.store(C[0:64, 0:16], acc)


@tile.jit
def summed(A, B, C, n, UNROLL: tile.constexpr):
    """In each trip a product is read by two others, one of which goes on."""
    a, b = operands(A, B)
    acc, total = tile.zeros((64, 16)), tile.zeros((64, 16))
    for i in tile.range(0, n, 1, unroll=UNROLL):
        product = tile.dot(a, b, acc)
        total = total + product * i
        acc = product * 0.5
    tile.store(C[0:64, 0:16], total + acc)


def expected(kernel, a, b, n):
    product = a.astype(np.float64) @ b.astype(np.float64)
    acc, total = (product, 0.0) if kernel is halved else (0.0, 0.0)
    for i in range(n):
        if kernel is halved:
            acc = acc * 0.5 + i
        else:
            acc = acc + product
            total, acc = total + acc * i, acc * 0.5
    return total + acc + np.zeros((64, 16))


RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((64, 32)).astype(np.float16), RNG.standard_normal((32, 16)).astype(np.float16)
C = np.zeros((64, 16), np.float32)


@pytest.mark.parametrize("unroll", [1, 2, 3, 4])
@pytest.mark.parametrize("kernel", [halved, summed], ids=["halved", "summed"])
def test_unrolled_loops_change_accumulators_as_often_as_others(kernel, unroll):
    for n in (0, 1, 2, 3, 7):
        c = C.copy()
        kernel[1,](A, B, c, n, UNROLL=unroll)
        np.testing.assert_allclose(c, expected(kernel, A, B, n), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("unroll", [2, 3, 4])
@pytest.mark.parametrize("kernel", [halved, summed], ids=["halved", "summed"])
def test_each_copy_of_a_body_reads_the_accumulator_after_the_last_one_has_written_it(kernel, unroll):
    """In the unrolled loop and the one for the remainder."""
    made = kernel.compile(A, B, C, 5, UNROLL=unroll, target="sm_90a", num_warps=4)
    assert {p.variant for p in made.products} == {"wgmma"}
    moves = re.findall(r"mov\.f32 (%\w+|acc0_0), (?:%\w+|acc0_0);", "\n".join(re.findall(r"mov\.f32 [^;]*\bacc0_0\b[^;]*;", made.ptx)))
    order = "".join("w" if to == "acc0_0" else "r" for to in moves)
    assert "ww" not in order and order.count("r") == unroll + 2  # of the copies, the remainder, and the store


@needs_gpu("sm_90a")
@in_child(timeout=200)
def test_unrolled_loops_change_accumulators_as_often_as_others_on_the_gpu():
    for kernel in (halved, summed):
        for unroll in (1, 2, 3, 4):
            for n in (0, 1, 2, 3, 7):
                c = tile.to_device(C)
                kernel[1,](tile.to_device(A), tile.to_device(B), c, n, UNROLL=unroll, num_warps=4)
                np.testing.assert_allclose(c.numpy(), expected(kernel, A, B, n), rtol=1e-3, atol=1e-3, err_msg=f"{unroll} {n}")
