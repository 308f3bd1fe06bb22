"""`tile.dot_scaled`: products of the microscaling formats and of nvfp4, by elements dequantised exactly."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError

from tests.gpu import in_child, needs_gpu

# name: (dtypes of a and b, of the factors, elements of a block, (m, n, k), trans_a, trans_b, where the operands are, layout of the factors)
E8M0, E4M3, E2M1, E2M3, E3M2 = "float8_e8m0fnu", "float8_e4m3fn", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"
PRODUCTS = {
    "mxfp8": (E4M3, E4M3, E8M0, 32, (64, 32, 64), False, True, "registers", "plain"),
    "mxfp8 of both kinds, by columns": ("float8_e5m2", E4M3, E8M0, 32, (16, 64, 32), True, False, "registers", "plain"),
    "mxfp8 in shared memory": (E4M3, "float8_e5m2", E8M0, 32, (64, 32, 64), False, True, "shared", "plain"),
    "mxfp6": (E2M3, E3M2, E8M0, 32, (32, 16, 32), False, True, "registers", "plain"),
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
    "mxfp6": (E2M3, E3M2, E8M0, 32, (128, 48, 96), False, True, "registers", "plain"),
    "mxfp8 by mxfp4": ("float8_e5m2", E2M1, E8M0, 32, (128, 16, 128), False, True, "registers", "plain"),
    "mxfp4 by mxfp6, two instructions down, in units": (E2M1, E3M2, E8M0, 32, (256, 48, 160), False, True, "registers", "blocked"),
    "mxfp4 by mxfp8, by columns": (E2M1, E4M3, E8M0, 32, (128, 32, 32), True, False, "registers", "plain"),
    "mxfp6 by mxfp8 in shared memory": (E3M2, E4M3, E8M0, 32, (128, 32, 64), False, True, "swizzled", "plain"),
    "mxfp6 by mxfp4 in plain shared memory": (E2M3, E2M1, E8M0, 32, (128, 16, 64), False, True, "shared", "plain"),
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
    assert (".kind::mxf4" in made.ptx) == (WITH_FACTORS[name][:2] == (E2M1, E2M1))
    product.simulate(1, *arrays, target=target, **options).raise_first()
    assert_exact_but_for_sums(arrays[-1], want, size, options["SHAPE"][2])


@pytest.mark.usefixtures("assembled_later")
def test_what_arrays_of_any_extents_lack_counts_as_zeros():
    """100 rows, 20 columns and 76 elements along k, in a product of 128 by 32 by 96."""
    rng, (m, n, k) = np.random.default_rng(1), (100, 20, 76)
    (a, sa, x), (b, sb, y) = drawn(m, k, E2M3, E8M0, 32, rng), drawn(n, k, E2M1, E8M0, 32, rng)
    arrays = packed(a), sa, packed(b), sb, rng.standard_normal((m, n)).astype(np.float32), np.zeros((m, n), np.float32)
    options = dict(SHAPE=(128, 32, 96), BLOCK=32, TA=False, TB=True, PLACE="registers", LAYOUT="plain")
    assert ".kind::mxf8f6f4.block_scale." in product.compile(*arrays, target="sm_100a", **options).ptx
    product.simulate(1, *arrays, target="sm_100a", **options).raise_first()
    assert_exact_but_for_sums(arrays[-1], arrays[-2] + x @ y.T, np.abs(arrays[-2]) + np.abs(x) @ np.abs(y).T, k)


@tile.jit
def of_padded(A, SA, B, SB, C, LAYOUT: tile.constexpr):
    """A product of matrices that threads have stored padded."""
    a, b = tile.alloc((128, 64), tile.padded(A.dtype), layout=LAYOUT), tile.alloc((32, 64), tile.padded(B.dtype), layout=LAYOUT)
    tile.store(a, tile.load(A[0:128, 0:64]))
    tile.store(b, tile.load(B[0:32, 0:64]))
    tile.sync()
    tile.store(C[0:128, 0:32], tile.dot_scaled(a, tile.load(SA[0:128, 0:2]), b, tile.load(SB[0:32, 0:2]), trans_b=True))


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target,layout,instruction", [
    ("sm_100a", tile.auto, ".kind::mxf8f6f4.block_scale."), ("sm_103a", None, ".kind::f16 "), ("sm_90a", None, "wgmma.mma_async")])
def test_matrices_may_lie_padded_in_shared_memory(target, layout, instruction):
    """They are read as they are, or dequantised if no descriptor names their layout, and on other targets."""
    rng = np.random.default_rng(2)
    (a, sa, x), (b, sb, y) = drawn(128, 64, E3M2, E8M0, 32, rng), drawn(32, 64, E2M1, E8M0, 32, rng)
    arrays = packed(a), sa, packed(b), sb, np.zeros((128, 32), np.float32)
    made = of_padded.compile(*arrays, LAYOUT=layout, target=target)
    assert instruction in made.ptx and (".block_scale." in instruction) == ("not tcgen05" not in made.explain())
    of_padded.simulate(1, *arrays, LAYOUT=layout, target=target).raise_first()
    assert_exact_but_for_sums(arrays[-1], x @ y.T, np.abs(x) @ np.abs(y).T, 64)


@tile.jit
def of_half_stored(A, SA, B, SB, C):
    a, b = tile.alloc((128, 64), tile.padded(A.dtype), layout=tile.auto), tile.alloc((32, 64), tile.padded(B.dtype), layout=tile.auto)
    tile.store(a, tile.load(A[0:128, 0:64]))
    tile.store(b[0:16, 0:64], tile.load(B[0:16, 0:64]))
    tile.sync()
    tile.store(C[0:128, 0:32], tile.dot_scaled(a, tile.load(SA[0:128, 0:2]), b, tile.load(SB[0:32, 0:2]), trans_b=True))


@pytest.mark.usefixtures("assembled_later")
def test_elements_that_nothing_has_stored_are_found_and_padding_is_not():
    """The twin that stores both matrices, and never their padding, is `of_padded`, without a finding."""
    arrays, *_ = of_loop(E3M2, E2M1, 64)
    for seed in range(3):
        (found,) = of_half_stored.simulate(1, *arrays, target="sm_100a", seed=seed).findings
        assert found.kind == "uninitialized-read" and "tile.dot_scaled" in found.loc.source_line


WHY_NONE = {  # (extents, call): the need that explain names
    ((64, 16, 32), "dot_scaled(a, sa, b, sb)"): "needs a multiple of 128 rows: 64",
    ((128, 24, 32), "dot_scaled(a, sa, b, sb)"): "needs 16 to 256 columns in steps of 16: 24",
    ((128, 16, 48), "dot_scaled(a, sa, b, sb)"): "needs a multiple of 32 elements along k: 48",
    ((128, 16, 32), "dot_scaled(a, sa, b, None)"): "needs scale factors of both operands",
    ((128, 16, 32), "dot_scaled(a.to(tile.float4_e2m1fn), tile.full((128, 2), 1, tile.float8_e4m3fn), b, sb)"):
        "needs factors of one dtype: float8_e4m3fn and float8_e8m0fnu",
    ((128, 16, 16), "dot_scaled(a, sa, b, sb, block=16)"): "needs factors that kind::mxf8f6f4 has: float8_e8m0fnu for blocks of 16",
    ((1, 128, 16, 32), "dot_scaled(a, sa, b, sb)[0]"): "needs matrices: operands with batch dimensions",
}


@pytest.mark.usefixtures("assembled_later")
def test_explain_says_why_no_instruction_takes_the_factors():
    lines = []
    for (*batch, m, n, k), call in WHY_NONE:
        lines += [f"a, b = tile.zeros({(*batch, m, k)}, tile.float8_e4m3fn), tile.zeros({(*batch, k, n)}, tile.float6_e2m3fn)",
                  f"sa, sb = (tile.full(({str(batch)[1:-1]}{',' * len(batch)} x, {-(-k // 32)}), 1, tile.float8_e8m0fnu) for x in ({m}, {n}))",
                  f"tile.store(out[0:{m}, 0:{n}], tile.{call})"]
    made = tile.jit(source="def multiplied(out):\n    " + "\n    ".join(lines) + "\n").compile(tile.ArraySpec((128, 32), "float32"), target="sm_100a")
    told = [line.partition("not tcgen05 with scale factors: ")[2] for line in made.explain().splitlines()]
    assert [words for words in told if words] == list(WHY_NONE.values()) and ".block_scale." not in made.ptx


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


def of_loop(a_dtype, b_dtype, k):
    """(arrays, the exact result, the sum of magnitudes that bounds its roundings) of a product of 128 rows and 32 columns."""
    rng = np.random.default_rng(0)
    (a, sa, x), (b, sb, y) = (drawn(rows, k, dtype, E8M0, 32, rng) for rows, dtype in ((128, a_dtype), (32, b_dtype)))
    return (packed(a), sa, packed(b), sb, np.zeros((128, 32), np.float32)), x @ y.T, np.abs(x) @ np.abs(y).T


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("a_dtype,b_dtype,maps", [
    (E4M3, E4M3, ["uint8", "uint8"]), (E2M1, E2M1, ["uint8", "uint8"]), (E2M3, E2M1, ["float6_e2m3fn_p32", "float4_e2m1fn_p64"])])
def test_operands_with_factors_run_ahead_to_where_the_tensor_cores_read_them(a_dtype, b_dtype, maps):
    """By TMA, which pads elements on their way that are read padded; the sums stay in tensor memory over the loop."""
    arrays, want, size = of_loop(a_dtype, b_dtype, 256)
    made = in_a_loop.compile(*arrays, BK=128, K=256, target="sm_100a")
    assert [m.dtype for m in made.tensor_maps] == maps
    assert made.ptx.count("tcgen05.ld") == 1 and ".block_scale." in made.ptx
    assert {c.variant for c in made.copies} == {"ldgsts", "tcgen05_cp", "tma"}
    assert {c.bytes for c in made.copies if c.variant != "tma"} == {128, 512}  # the factors
    in_a_loop.simulate(1, *arrays, BK=128, K=256, target="sm_100a").raise_first()
    assert_exact_but_for_sums(arrays[-1], want, size, 256)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("step,words", [
    (64, "it pads rows of 128 elements, and these have 64"),
    (128, "the stride of dimension 0 is not known to be a multiple of 32 bytes")])
def test_what_tma_cannot_pad_runs_ahead_packed_and_is_padded_in_each_trip(step, words):
    arrays, want, size = of_loop(E3M2, E4M3, 192)
    made = in_a_loop.compile(*arrays, BK=step, K=192, target="sm_103a")
    assert {m.dtype for m in made.tensor_maps} == {"uint8"} and ".kind::mxf8f6f4.block_scale." in made.ptx
    assert words in made.explain()
    in_a_loop.simulate(1, *arrays, BK=step, K=192, target="sm_103a").raise_first()
    assert_exact_but_for_sums(arrays[-1], want, size, 192)


@tile.jit
def of_both_kinds(A, SA, B, SB, C, D, E):
    """A times mxfp4, which is read packed, and A times mxfp8, for which it is padded."""
    packed, padded = tile.zeros((128, 16)), tile.zeros((128, 16))
    for k in tile.pipelined(range(0, 256, 128), stages=2):
        a, sa, sb = (tile.load(x[0:n, k // s:k // s + 128 // s]) for x, n, s in ((A, 128, 1), (SA, 128, 32), (SB, 16, 32)))
        packed = tile.dot_scaled(a, sa, tile.load(B[0:16, k:k + 128]), sb, packed, trans_b=True)
        padded = tile.dot_scaled(a, sa, tile.load(C[0:16, k:k + 128]), sb, padded, trans_b=True)
    tile.store(D[0:128, 0:16], packed)
    tile.store(E[0:128, 0:16], padded)


@pytest.mark.usefixtures("assembled_later")
def test_one_operand_may_be_read_packed_by_one_product_and_padded_by_another():
    rng = np.random.default_rng(3)
    (a, sa, x), (b, sb, y) = drawn(128, 256, E2M1, E8M0, 32, rng), drawn(16, 256, E2M1, E8M0, 32, rng)
    wide = b.astype(np.float32).astype(getattr(ml_dtypes, E4M3))
    outs = [np.zeros((128, 16), np.float32) for _ in range(2)]
    made = of_both_kinds.compile(packed(a), sa, packed(b), sb, wide, *outs, target="sm_100a")
    assert ".kind::mxf4.block_scale." in made.ptx and ".kind::mxf8f6f4.block_scale." in made.ptx
    of_both_kinds.simulate(1, packed(a), sa, packed(b), sb, wide, *outs, target="sm_100a").raise_first()
    for out in outs:
        assert_exact_but_for_sums(out, x @ y.T, np.abs(x) @ np.abs(y).T, 256)


@tile.jit
def of_slots(A, SA, B, SB, C, DTYPES: tile.constexpr, K: tile.constexpr):
    """A loop whose own copies bring both matrices."""
    a, b = tile.alloc((128, 128), DTYPES[0], layout=tile.auto), tile.alloc((32, 128), DTYPES[1], layout=tile.auto)
    acc = tile.zeros((128, 32))
    for k in tile.pipelined(range(0, K, 128), stages=2):
        tile.copy_async(a, A[0:128, k:k + 128])
        tile.copy_async(b, B[0:32, k:k + 128])
        j = k // 32
        acc = tile.dot_scaled(a, tile.load(SA[0:128, j:j + 4]), b, tile.load(SB[0:32, j:j + 4]), acc, trans_b=True)
    tile.store(C[0:128, 0:32], acc)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target,b_dtype,padded", [("sm_100a", E2M3, True), ("sm_103a", E2M3, False), ("sm_90a", E2M1, False)])
def test_the_kernel_s_own_copies_may_bring_operands_packed_or_padded(target, b_dtype, padded):
    arrays, want, size = of_loop(E2M1, b_dtype, 256)
    dtypes = tuple(tile.padded(d) if padded else d for d in (E2M1, b_dtype))
    made = of_slots.compile(*arrays, DTYPES=dtypes, K=256, target=target)
    assert (".block_scale." in made.ptx) == (target != "sm_90a") and "tma" in {c.variant for c in made.copies}
    of_slots.simulate(1, *arrays, DTYPES=dtypes, K=256, target=target).raise_first()
    assert_exact_but_for_sums(arrays[-1], want, size, 256)


@needs_gpu("sm_100a", "sm_103a")
@in_child()
def test_products_with_factors_are_right_on_blackwell():
    for name in WITH_FACTORS:
        arrays, want, size, options = of_case(name, WITH_FACTORS)
        product[1,](*arrays, backend="cuda", **options)
        assert_exact_but_for_sums(arrays[-1], want, size, options["SHAPE"][2])
    for dtypes in ((E2M3, E2M1), (E4M3, E3M2)):
        arrays, want, size = of_loop(*dtypes, 256)
        in_a_loop[1,](*arrays, BK=128, K=256, backend="cuda")
        assert_exact_but_for_sums(arrays[-1], want, size, 256)


@needs_gpu()
@in_child()
def test_scaled_products_are_right_on_the_gpu():
    for name in PRODUCTS:
        arrays, want, size, options = of_case(name)
        product[1,](*arrays, backend="cuda", **options)
        assert_exact_but_for_sums(arrays[-1], want, size, options["SHAPE"][2])
    arrays, want, size = of_loop(E3M2, E2M1, 64)
    of_padded[1,](*arrays, LAYOUT=tile.auto, backend="cuda")
    assert_exact_but_for_sums(arrays[-1], want, size, 64)
    arrays, want, size = of_loop(E2M1, E2M3, 256)
    of_slots[1,](*arrays, DTYPES=(E2M1, E2M3), K=256, backend="cuda")
    assert_exact_but_for_sums(arrays[-1], want, size, 256)


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
