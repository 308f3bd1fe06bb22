"""`tile.dot` with batch dimensions, broadcast as by NumPy's matmul."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError

from tests.gpu import in_child, needs_gpu

# name: (shape of a, shape of b, trans_a, trans_b, where the operands are, warps)
PRODUCTS = {
    "equal batches": ((2, 64, 32), (2, 32, 64), False, False, "shared", 4),
    "matrices of other extents": ((3, 50, 20), (3, 20, 30), False, False, "registers", 4),
    "small matrices": ((8, 16, 16), (8, 16, 16), False, False, "registers", 4),
    "one matrix for a batch": ((3, 32, 32), (32, 24), False, False, "registers", 2),
    "a batch for one matrix": ((16, 32), (3, 24, 32), False, True, "shared", 1),
    "two batch dimensions": ((2, 1, 32, 16), (3, 16, 24), False, False, "registers", 4),
    "transposed": ((2, 16, 64), (1, 64, 16), True, True, "registers", 4),
    "a batch of one": ((1, 16, 16), (1, 16, 16), False, False, "registers", 1),
    "columns of warpgroups": ((2, 64, 32), (2, 32, 64), False, False, "registers", 8),
}


@tile.jit
def product(A, B, C, D, SHAPES: tile.constexpr, TA: tile.constexpr, TB: tile.constexpr, PLACE: tile.constexpr, TRIPS: tile.constexpr = 1):
    """D = C + TRIPS * A @ B."""
    a_box, b_box, c_box = [tuple([slice(0, n) for n in shape]) for shape in SHAPES]
    a, b, acc = tile.load(A[a_box]), tile.load(B[b_box]), tile.load(C[c_box])
    if PLACE == "shared":
        sA, sB = tile.alloc(SHAPES[0], A.dtype, layout=tile.auto), tile.alloc(SHAPES[1], B.dtype, layout=tile.auto)
        tile.store(sA, a)
        tile.store(sB, b)
        tile.sync()
        a = sA
        b = sB
    for _ in range(TRIPS):
        acc = tile.dot(a, b, acc, trans_a=TA, trans_b=TB)
    tile.store(D[c_box], acc)


def of_case(name, trips=1):
    """(the arrays, the expected result, the options) of one of the `PRODUCTS`: small integers, whose sums are exact."""
    a_shape, b_shape, ta, tb, place, warps = PRODUCTS[name]
    rng = np.random.default_rng(len(name))
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in (a_shape, b_shape))
    x, y = (a.swapaxes(-1, -2) if ta else a), (b.swapaxes(-1, -2) if tb else b)
    sums = np.matmul(x.astype(np.float32), y.astype(np.float32))
    c = rng.integers(-8, 9, sums.shape).astype(np.float32)
    options = dict(SHAPES=(a.shape, b.shape, c.shape), TA=ta, TB=tb, PLACE=place, TRIPS=trips, num_warps=warps)
    return (a, b, c, np.zeros_like(c)), c + trips * sums, options


@pytest.mark.parametrize("name,target", [(name, ("sm_80", "sm_90a", "sm_100a")[n % 3]) for n, name in enumerate(PRODUCTS)])
def test_batch_dimensions_are_broadcast_as_by_matmul(name, target):
    arrays, want, options = of_case(name)
    product.simulate(1, *arrays, target=target, **options).raise_first()
    np.testing.assert_array_equal(arrays[-1], want)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target,variant", [("sm_80", "mma_sync"), ("sm_90a", "wgmma"), ("sm_100a", "tcgen05"), ("sm_120a", "mma_sync")])
def test_every_target_multiplies_each_matrix_on_its_path(target, variant):
    """In a loop too, whose accumulator is the batch of sums."""
    arrays, want, options = of_case("equal batches", trips=3)
    product.simulate(1, *arrays, target=target, **options).raise_first()
    np.testing.assert_array_equal(arrays[-1], want)
    made = product.compile(*arrays, target=target, spills=0, **options)
    assert {p.variant for p in made.products} == {variant} and made.products[0].result == "float32[64, 64]"


@pytest.mark.usefixtures("assembled_later")
def test_a_batch_of_loaded_matrices_is_staged_as_a_whole():
    """Between two barriers, instead of two for each matrix and operand."""
    arrays, _, options = of_case("small matrices")
    assert product.compile(*arrays, target="sm_90a", **options).ptx.count("bar.sync") == 2


@pytest.mark.parametrize("name", ["transposed", "narrow"])
def test_a_loop_hands_sums_of_several_matrices_on_without_serialising_their_products(name, monkeypatch):
    """With one instruction for each matrix, ptxas found no registers for copies of what the loop hands on (C7511)."""
    monkeypatch.setitem(PRODUCTS, "narrow", ((4, 64, 16), (4, 16, 16), False, False, "registers", 4))
    arrays, want, options = of_case(name, trips=2)
    assert {p.variant for p in product.compile(*arrays, target="sm_90a", spills=0, **options).products} == {"wgmma"}
    product.simulate(1, *arrays, target="sm_90a", **options).raise_first()
    np.testing.assert_array_equal(arrays[-1], want)


@needs_gpu()
@in_child()
def test_batched_products_are_right_on_the_gpu():
    for name in PRODUCTS:
        arrays, want, options = of_case(name, trips=2)
        product[1,](*arrays, backend="cuda", **options)
        assert (arrays[-1] == want).all(), name


@pytest.mark.parametrize("a,b,acc,words", [
    ((2, 16, 16), (3, 16, 16), None, r"their batch dimensions, \[2\] and \[3\], are neither equal nor 1"),
    ((2, 16, 16), (2, 8, 16), None, r"a is \[16, 16\] and b is \[8, 16\]: their k differ"),
    ((2, 16, 16), (2, 16, 16), (16, 16), r"the accumulator is a tile \[2, 16, 16\], not a tile float32\[16, 16\]"),
    ((16,), (16, 16), None, r"not of shape \[16\]; make the vector one row or one column, as in a\[None, :\] or a\[:, None\]"),
    ((0, 16, 16), (0, 16, 16), None, r"a product with the batch dimensions \[0\] has nothing to multiply"),
])
def test_shapes_that_do_not_match_are_an_error(a, b, acc, words):
    @tile.jit
    def wrong(x, A: tile.constexpr, B: tile.constexpr, ACC: tile.constexpr):
        tile.dot(tile.zeros(A, tile.float16), tile.zeros(B, tile.float16), None if ACC is None else tile.zeros(ACC))
    with pytest.raises(CompilationError, match=words):
        wrong.compile(tile.ArraySpec((1,), "float32"), A=a, B=b, ACC=acc, target="sm_90a")
