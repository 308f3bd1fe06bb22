"""`tile.dot_scaled`: products of the microscaling formats and of nvfp4, by elements dequantised exactly."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError

from tests.gpu import in_child, needs_gpu

# name: (dtypes of a and b, of the factors, elements of a block, (m, n, k), trans_a, trans_b, where the operands are, layout of the factors)
E8M0, E4M3, E2M1 = "float8_e8m0fnu", "float8_e4m3fn", "float4_e2m1fn"
PRODUCTS = {
    "mxfp8": (E4M3, E4M3, E8M0, 32, (64, 32, 64), False, True, "registers", "plain"),
    "mxfp8 of both kinds, by columns": ("float8_e5m2", E4M3, E8M0, 32, (16, 64, 32), True, False, "registers", "plain"),
    "mxfp8 in shared memory": (E4M3, "float8_e5m2", E8M0, 32, (64, 32, 64), False, True, "shared", "plain"),
    "mxfp6": ("float6_e2m3fn", "float6_e3m2fn", E8M0, 32, (32, 16, 32), False, True, "registers", "plain"),
    "mxfp4": (E2M1, E2M1, E8M0, 32, (64, 32, 64), False, True, "registers", "plain"),
    "mxfp4 in shared memory": (E2M1, E2M1, E8M0, 32, (64, 32, 64), False, True, "shared", "plain"),
    "nvfp4": (E2M1, E2M1, E4M3, 16, (64, 32, 32), False, True, "registers", "plain"),
    "blocks of 16 by powers of two": (E2M1, E2M1, E8M0, 16, (16, 16, 32), False, True, "registers", "plain"),
    "mxfp4 by mxfp8": (E2M1, E4M3, E8M0, 32, (16, 16, 64), False, True, "registers", "plain"),
    "ragged extents": (E4M3, E4M3, E8M0, 32, (50, 20, 44), False, False, "registers", "plain"),
    "units of factors": (E4M3, E4M3, E8M0, 32, (40, 24, 96), False, True, "registers", "blocked"),
    "several units of factors": (E2M1, E2M1, E4M3, 16, (130, 16, 80), False, True, "registers", "blocked"),
}


# of extents that sm_100a has instructions with scale factors for
WITH_FACTORS = {
    "mxfp8": (E4M3, "float8_e5m2", E8M0, 32, (128, 48, 128), False, True, "registers", "plain"),
    "mxfp8, two instructions down and a part of a unit along k": (E4M3, E4M3, E8M0, 32, (256, 48, 160), False, True, "registers", "plain"),
    "mxfp8 by columns": (E4M3, E4M3, E8M0, 32, (128, 32, 64), True, False, "registers", "plain"),
    "mxfp8 in shared memory": (E4M3, E4M3, E8M0, 32, (128, 64, 128), False, True, "swizzled", "plain"),
    "units of factors": (E4M3, E4M3, E8M0, 32, (128, 64, 160), False, True, "registers", "blocked"),
    "mxfp4": (E2M1, E2M1, E8M0, 32, (128, 32, 192), False, True, "registers", "plain"),
    "mxfp4 in shared memory": (E2M1, E2M1, E8M0, 32, (128, 32, 256), False, True, "swizzled", "plain"),
    "nvfp4": (E2M1, E2M1, E4M3, 16, (128, 32, 128), False, True, "registers", "plain"),
    "nvfp4 by columns": (E2M1, E2M1, E4M3, 16, (128, 64, 64), True, False, "registers", "plain"),
    "blocks of 16 by powers of two": (E2M1, E2M1, E8M0, 16, (128, 32, 64), False, True, "registers", "plain"),
}


@tile.jit
def product(A, SA, B, SB, C, D, SHAPE: tile.constexpr, BLOCK: tile.constexpr, TA: tile.constexpr, TB: tile.constexpr, PLACE: tile.constexpr,
            LAYOUT: tile.constexpr):
    """D = C + (A * SA) @ (B * SB)."""
    m, n, k = SHAPE
    blocks = tile.cdiv(k, BLOCK)
    a = tile.load(A[0:k, 0:m] if TA else A[0:m, 0:k])
    b = tile.load(B[0:n, 0:k] if TB else B[0:k, 0:n])
    if LAYOUT == "plain":
        sa, sb = tile.load(SA[0:m, 0:blocks]), tile.load(SB[0:n, 0:blocks])
    else:
        along = tile.cdiv(blocks, 4)
        sa, sb = tile.load(SA[0:tile.cdiv(m, 128), 0:along, 0:512]), tile.load(SB[0:tile.cdiv(n, 128), 0:along, 0:512])
    if PLACE != "registers":
        if PLACE == "shared":
            a_, b_ = tile.alloc(a.shape, A.dtype), tile.alloc(b.shape, B.dtype)
        else:
            a_, b_ = tile.alloc(a.shape, A.dtype, layout=tile.auto), tile.alloc(b.shape, B.dtype, layout=tile.auto)
        sa_, sb_ = tile.alloc(sa.shape, SA.dtype), tile.alloc(sb.shape, SB.dtype)
        tile.store(a_, a)
        tile.store(b_, b)
        tile.store(sa_, sa)
        tile.store(sb_, sb)
        tile.sync()
        d = tile.dot_scaled(a_, sa_, b_, sb_, tile.load(C[0:m, 0:n]), trans_a=TA, trans_b=TB, block=BLOCK)
    else:
        d = tile.dot_scaled(a, sa, b, sb, tile.load(C[0:m, 0:n]), trans_a=TA, trans_b=TB, block=BLOCK, scale_layout=LAYOUT)
    tile.store(D[0:m, 0:n], d)


def in_units(factors):
    """Factors [rows, blocks] as units [units along the rows, along k, 512], one byte at a time."""
    rows, blocks = factors.shape
    units = np.zeros((-(-rows // 128), -(-blocks // 4), 512), factors.dtype)
    for r, j in np.ndindex(rows, blocks):
        units[r // 128, j // 4, r % 32 * 16 + r % 128 // 32 * 4 + j % 4] = factors[r, j]
    return units


def drawn(rows, k, dtype, factor_dtype, block, rng, signed=True):
    """(elements [rows, k], factors [rows, blocks], their products in float64)."""
    elements = rng.standard_normal((rows, k)).astype(np.float32).astype(getattr(ml_dtypes, dtype))
    shape = rows, -(-k // block)
    factors = 2.0 ** rng.integers(-9, 10, shape) if factor_dtype == E8M0 else rng.uniform(-8 if signed else 0.1, 8, shape)
    factors = factors.astype(np.float32).astype(getattr(ml_dtypes, factor_dtype))
    return elements, factors, elements.astype(np.float64) * np.repeat(factors.astype(np.float64), block, 1)[:, :k]


def packed(x):
    """An array as kernels take it: elements of fewer than 8 bits side by side."""
    x = np.ascontiguousarray(x)
    return x if x.dtype.name.startswith("float8") else tile.pack(x)


def of_case(name, cases=PRODUCTS):
    """(the arrays, the exact result, the sum of magnitudes that bounds its roundings, the options) of one of the `cases`."""
    a_dtype, b_dtype, factors, block, (m, n, k), ta, tb, place, layout = cases[name]
    rng = np.random.default_rng(len(name))
    a, sa, x = drawn(m, k, a_dtype, factors, block, rng, signed=cases is PRODUCTS)
    b, sb, y = drawn(n, k, b_dtype, factors, block, rng, signed=cases is PRODUCTS)
    c = rng.standard_normal((m, n)).astype(np.float32)
    if layout == "blocked":
        sa, sb = in_units(sa), in_units(sb)
    options = dict(SHAPE=(m, n, k), BLOCK=block, TA=ta, TB=tb, PLACE=place, LAYOUT=layout, num_warps=8 if m > 128 else 4)
    arrays = packed(a.T if ta else a), sa, packed(b if tb else b.T), sb, c, np.zeros_like(c)
    return arrays, c + x @ y.T, np.abs(c) + np.abs(x) @ np.abs(y).T, options


def assert_exact_but_for_sums(got, want, size, k):
    """The elements times their factors are exact; what is left are the roundings of float32 sums of k products."""
    assert (np.abs(got - want) <= size * 2 * k * 2.0 ** -23).all()


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("name,target", [(name, ("sm_80", "sm_90a", "sm_100a", "sm_120a")[n % 4]) for n, name in enumerate(PRODUCTS)])
def test_every_format_is_multiplied_by_its_factors_exactly(name, target):
    arrays, want, size, options = of_case(name)
    product.simulate(1, *arrays, target=target, **options).raise_first()
    assert_exact_but_for_sums(arrays[-1], want, size, options["SHAPE"][2])


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target,variant", [("sm_80", "mma_sync"), ("sm_90a", "wgmma"), ("sm_100a", "tcgen05"), ("sm_120a", "mma_sync")])
def test_dequantised_operands_take_the_fastest_path_of_each_target(target, variant):
    """Elements meet their factors in the threads that load them: nothing moves between threads but the operands that are staged."""
    arrays, *_, options = of_case("mxfp4")
    made = product.compile(*arrays, target=target, spills=0, **options)
    assert [p.variant for p in made.products] == [variant] and "convert_layout" not in made.graph


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("name,target", [(name, ("sm_100a", "sm_103a")[n % 2]) for n, name in enumerate(WITH_FACTORS)])
def test_the_tensor_cores_of_blackwell_multiply_by_the_factors(name, target):
    """What is left out of units of 128 rows and 4 blocks, and any number of units."""
    arrays, want, size, options = of_case(name, WITH_FACTORS)
    made = product.compile(*arrays, target=target, **options)
    assert [p.variant for p in made.products] == ["tcgen05"] and ".block_scale." in made.ptx and ".kind::f16" not in made.ptx
    product.simulate(1, *arrays, target=target, **options).raise_first()
    assert_exact_but_for_sums(arrays[-1], want, size, options["SHAPE"][2])


@pytest.mark.usefixtures("assembled_later")
def test_operands_in_layouts_of_no_descriptor_are_dequantised_with_the_reason():
    name = "mxfp4 in shared memory"
    arrays, want, size, options = of_case(name, {name: (*WITH_FACTORS[name][:4], (128, 32, 128), False, True, "shared", "plain")})
    made = product.compile(*arrays, target="sm_100a", **options)
    assert ".kind::f16" in made.ptx and ".block_scale." not in made.ptx
    assert "not tcgen05 with scale factors: needs an A in tensor memory in the accumulator's lanes, or in a layout that" in made.explain()
    product.simulate(1, *arrays, target="sm_100a", **options).raise_first()
    assert_exact_but_for_sums(arrays[-1], want, size, options["SHAPE"][2])


@tile.jit
def in_a_loop(A, SA, B, SB, C, BK: tile.constexpr, K: tile.constexpr):
    acc = tile.zeros((128, 32), tile.float32)
    for k in tile.pipelined(range(0, K, BK), stages=2):
        j = k // 32
        acc = tile.dot_scaled(tile.load(A[0:128, k:k + BK]), tile.load(SA[0:128, j:j + BK // 32]), tile.load(B[0:32, k:k + BK]),
                              tile.load(SB[0:32, j:j + BK // 32]), acc, trans_b=True)
    tile.store(C[0:128, 0:32], acc)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("dtype", [E4M3, E2M1])
def test_operands_with_factors_run_ahead_to_where_the_tensor_cores_read_them(dtype):
    """By TMA; the sums stay in tensor memory over the loop."""
    rng = np.random.default_rng(0)
    (a, sa, x), (b, sb, y) = (drawn(rows, 256, dtype, E8M0, 32, rng) for rows in (128, 32))
    arrays = packed(a), sa, packed(b), sb, np.zeros((128, 32), np.float32)
    made = in_a_loop.compile(*arrays, BK=128, K=256, target="sm_100a")
    assert made.ptx.count("tcgen05.ld") == 1 and ".block_scale." in made.ptx
    assert {c.variant for c in made.copies} == {"ldgsts", "tcgen05_cp", "tma"}
    assert {c.bytes for c in made.copies if c.variant != "tma"} == {128, 512}  # the factors
    in_a_loop.simulate(1, *arrays, BK=128, K=256, target="sm_100a").raise_first()
    assert_exact_but_for_sums(arrays[-1], x @ y.T, np.abs(x) @ np.abs(y).T, 256)


@needs_gpu()
@in_child()
def test_scaled_products_are_right_on_the_gpu():
    for name in PRODUCTS:
        arrays, want, size, options = of_case(name)
        product[1,](*arrays, backend="cuda", **options)
        assert_exact_but_for_sums(arrays[-1], want, size, options["SHAPE"][2])


@tile.jit
def weights_only(X, W, SW, Y):
    """A product of activations of 16 bits by weights of mxfp4, in a loop."""
    acc = tile.zeros((64, 32))
    for k in range(0, 128, 64):
        acc = tile.dot_scaled(tile.load(X[0:64, k:k + 64]), None, tile.load(W[0:32, k:k + 64]), tile.load(SW[0:32, k // 32:k // 32 + 2]), acc,
                              trans_b=True)
    tile.store(Y[0:64, 0:32], acc)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_an_operand_without_factors_may_have_16_bits(target):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 128)).astype(np.float32).astype(ml_dtypes.bfloat16)
    w, factors, y = drawn(32, 128, E2M1, E8M0, 32, rng)
    out = np.zeros((64, 32), np.float32)
    weights_only.simulate(1, x, packed(w), factors, out, target=target).raise_first()
    assert_exact_but_for_sums(out, x.astype(np.float64) @ y.T, np.abs(x.astype(np.float64)) @ np.abs(y).T, 128)


@pytest.mark.parametrize("call,words", [
    ("tile.dot_scaled(a, s, a, s)", r"a is \[64, 32\] and b is \[64, 32\]: their k differ"),
    ("tile.dot_scaled(a, s.T, b, s)", r"scale_a is \[64, 1\], a factor for each 32 elements along k of each row of a, not \[1, 64\]"),
    ("tile.dot_scaled(a, s, b, s[0:32])", r"scale_b is \[64, 1\], a factor for each 32 elements along k of each column of b"),
    ("tile.dot_scaled(a, s.to(tile.float8_e4m3fn), b, s)", "the factors of float8_e4m3fn are float8_e8m0fnu, and scale_a is float8_e4m3fn"),
    ("tile.dot_scaled(a, s.to(tile.float32), b, s)", "and scale_a is float32"),
    ("tile.dot_scaled(a.to(tile.float16), s, b, s)", "a with factors has floats of 4, 6 or 8 bits, not float16"),
    ("tile.dot_scaled(a.to(tile.int8), None, b, s)", "a holds floats of 4 to 8 bits, or of 16 bits without factors, not int8"),
    ("tile.dot_scaled(a, s, b, s, block=8)", "a factor is for a block of 16 or 32 elements, not the number 8"),
    ("tile.dot_scaled(a, s, b, s, scale_layout='blocked')", r"scale_a in the blocked layout has 1 by 1 units of 512 factors, not \[64, 1\]"),
    ("tile.dot_scaled(a, s, b, s, scale_layout='rows')", "scale_layout is 'plain' or 'blocked', not 'rows'"),
    ("tile.dot_scaled(x[0:64, 0:32], s, b, s)", "a is a register tile or lies in shared memory, not .*; load it, or copy it to shared memory"),
])
def test_operands_and_factors_of_no_format_are_an_error(call, words):
    kernel = tile.jit(source=f"""def wrong(x):
    a, b = tile.zeros((64, 32), tile.float8_e4m3fn), tile.zeros((32, 64), tile.float8_e4m3fn)
    s = tile.full((64, 1), 1, tile.float8_e8m0fnu)
    {call}
""")
    with pytest.raises(CompilationError, match=words) as caught:
        kernel.compile(tile.ArraySpec((512, 512), "float8_e4m3fn"), target="sm_90a")
    assert caught.value.loc.line == 4
