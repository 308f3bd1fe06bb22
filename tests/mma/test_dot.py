"""``tile.dot``: every type, major, extent and path compared with NumPy on the simulator, with bounds from the arithmetic."""

import re

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.errors import CompilationError, DispatchError

from tests.drawn import numbers

FLOATS = {"float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3, "float32": 24, "float64": 53}


@tile.jit
def product(A, B, C, a_shape: tile.constexpr, b_shape: tile.constexpr, TA: tile.constexpr, TB: tile.constexpr, PLACES: tile.constexpr,
            LAYOUT: tile.constexpr, PRECISION: tile.constexpr, VARIANT: tile.constexpr, TWICE: tile.constexpr):
    if "a" in PLACES:
        a = tile.alloc(a_shape, A.dtype, layout=LAYOUT)
        tile.copy(a, A[0:a_shape[0], 0:a_shape[1]])
    else:
        a = tile.load(A[0:a_shape[0], 0:a_shape[1]], other=0)
    if "b" in PLACES:
        b = tile.alloc(b_shape, B.dtype, layout=LAYOUT)
        tile.copy(b, B[0:b_shape[0], 0:b_shape[1]])
    else:
        b = tile.load(B[0:b_shape[0], 0:b_shape[1]], other=0)
    tile.sync()
    acc = tile.dot(a, b, trans_a=TA, trans_b=TB, dtype=C.dtype, precision=PRECISION, variant=VARIANT)
    if TWICE:
        acc = tile.dot(a, b, acc, trans_a=TA, trans_b=TB, precision=PRECISION, variant=VARIANT)
    tile.store(C[0:acc.shape[0], 0:acc.shape[1]], acc)


def check(m, n, k, dtype="float16", other=None, ta=False, tb=False, places="ab", layout=tile.auto, acc="float32", precision=None, variant=None,
          twice=True, target="sm_80", warps=4, on_gpu=False):
    """Check one product (two accumulated ones with `twice`) within the roundings of its accumulation, on the simulator of a
    target or on the GPU."""
    a, b = numbers((k, m) if ta else (m, k), np_dtype(dtype), 1), numbers((n, k) if tb else (k, n), np_dtype(other or dtype), 2)
    c = np.zeros((m, n), np_dtype(acc))
    options = dict(a_shape=a.shape, b_shape=b.shape, TA=ta, TB=tb, PLACES=places, LAYOUT=layout, PRECISION=precision, VARIANT=variant, TWICE=twice)
    if on_gpu:
        product[1](a, b, c, num_warps=warps, backend="cuda", **options)
    else:
        product.simulate(1, a, b, c, num_warps=warps, target=target, **options).raise_first()
    x, y, times = a.T if ta else a, b.T if tb else b, 1 + twice
    if np.dtype(c.dtype).kind == "i":
        np.testing.assert_array_equal(c, (times * (x.astype(object) @ y.astype(object)) % 2 ** 32).astype(np.uint32).view(np.int32))
        return
    x, y = x.astype(np.float64), y.astype(np.float64)
    exact, size = times * (x @ y), times * (np.abs(x) @ np.abs(y))
    # 2k products, each exact or rounded once in the accumulator's type, and as many additions with partial sums of at most `size`.
    unit = {"float32": 2.0 ** -23, "float16": 2.0 ** -10, "float64": 2.0 ** -52}[acc]
    # Both operands are truncated to 10 mantissa bits; float8 accumulation keeps 13 bits below the largest term.
    rounded = 2.0 ** -9 if precision else 2.0 ** -12 if on_gpu and "float8" in dtype else 0.0
    least = 2.0 ** -24 * 2 * k if acc == "float16" else 0.0
    assert (np.abs(c.astype(np.float64) - exact) <= size * (2 * times * k * unit + rounded) + least).all()


def np_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


EXTENTS = st.integers(1, 40) | st.just(64)


FLOATS8, INTS8 = ("float8_e4m3fn", "float8_e5m2"), ("int8", "uint8")
# (a, b, accumulator, precision): every product that mma.sync has, and some by threads.
TYPES = [("float16", "float16", "float32", None), ("float16", "float16", "float16", None), ("bfloat16", "bfloat16", "float32", None),
         ("float32", "float32", "float32", "tf32"), ("float64", "float64", "float64", None),
         *((a, b, acc, None) for a in FLOATS8 for b in FLOATS8 for acc in ("float32", "float16")),
         *((a, b, "int32", None) for a in INTS8 for b in INTS8)]
MIXED = [("float16", "bfloat16", "float32", None), ("bfloat16", "float8_e4m3fn", "float32", None), ("float8_e5m2", "float16", "float16", None)]
BY_THREADS = [("float32", "float32", "float32", None), ("int32", "int32", "int32", None), ("float16", "float32", "float32", None)]


@settings(max_examples=100, deadline=None)
@given(EXTENTS, EXTENTS, EXTENTS, st.sampled_from(TYPES + MIXED + BY_THREADS), st.booleans(), st.booleans(), st.sampled_from(["ab", "a", "b", ""]),
       st.sampled_from([1, 2, 4, 6, 8]), st.sampled_from(["sm_80", "sm_90a", "sm_120a"]))
def test_products_of_any_extents_types_majors_and_memories_are_right(m, n, k, types, ta, tb, places, warps, target):
    """Operands in registers or shared memory, of either major, in any number of warps."""
    dtype, other, acc, precision = types
    warps = max(warps, 4) if 64 in (m, n, k) else warps  # limited by the threads' registers
    check(m, n, k, dtype, other, ta, tb, places, acc=acc, precision=precision, warps=warps, target=target)


@pytest.mark.parametrize("dtype,other,acc", [("float16", None, "float16"), ("float8_e4m3fn", "float8_e5m2", "float32"),
                                             ("float8_e5m2", None, "float16"),
                                             ("int8", "uint8", "int32"), ("uint8", "int8", "int32"), ("float16", "bfloat16", "float32")])
def test_products_of_mixed_types_and_their_accumulators_are_right(dtype, other, acc):
    """Mixed operands, float16 accumulators, integer accumulators that wrap."""
    check(48, 40, 72, dtype, other, acc=acc, target="sm_90a")


@pytest.mark.parametrize("ta,tb", [(False, True), (True, False)])
def test_dot_uses_wgmma_where_possible(ta, tb):
    """The same source on Hopper, by warpgroups; it inserts the fence for what the threads have stored."""
    check(128, 64, 64, "bfloat16", ta=ta, tb=tb, target="sm_90a", variant="wgmma", warps=8)
    check(64, 64, 64, "bfloat16", tb=tb, places="b", target="sm_90a", variant="wgmma")


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype,acc", [("float16", "float32"), ("int8", "int32")])
def test_a_matrix_may_have_one_column(dtype, acc, target):
    """wgmma does not support that: another path is used."""
    for ta, tb in ((False, False), (False, True), (True, False), (True, True)):
        check(128, 1, 32, dtype, ta=ta, tb=tb, acc=acc, target=target)


def test_float32_is_exact_unless_tf32_is_requested():
    """Accumulation by threads keeps every bit of the operands; tf32 uses tensor cores with 10 mantissa bits."""
    check(33, 20, 50, "float32", variant="fma")
    check(33, 20, 50, "float32", precision="tf32", variant="mma_sync")
    with pytest.raises(DispatchError, match="they would be rounded to 10 bits"):
        check(32, 32, 32, "float32", variant="mma_sync")


# -- which path, and why -------------------------------------------------------------------------------------------------

def compiled(target, dtype="bfloat16", acc="float32", shape=(64, 64, 64), **options):
    m, n, k = shape
    arrays = [tile.ArraySpec(s, t) for s, t in (((m, k), dtype), ((n, k), dtype), ((m, n), acc))]
    given = dict(a_shape=(m, k), b_shape=(n, k), TA=False, TB=True, PLACES="ab", LAYOUT=tile.auto, PRECISION=None, VARIANT=None, TWICE=False)
    return product.compile(*arrays, target=target, **{**given, **options})


@pytest.mark.all_cases
@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target,variant", [("sm_80", "mma_sync"), ("sm_90a", "wgmma"), ("sm_100a", "tcgen05"), ("sm_120a", "mma_sync")])
@pytest.mark.parametrize("dtype,acc", [("float16", "float16"), ("bfloat16", "float32"), ("int8", "int32")])
def test_every_target_assembles_its_path(target, variant, dtype, acc):
    """The chosen path is recorded, with the reasons against the others, and appears in the code."""
    made = compiled(target, dtype, acc, spills=0)
    record, = made.products
    assert record.variant == variant and record.source.startswith("acc = tile.dot(a, b, trans_a=TA") and record.line > 0
    assert dict(record.declined).keys() == {"wgmma", "tcgen05", "mma_sync", "fma"} - {variant} and record.instructions > 0
    assert {"wgmma": "wgmma.mma_async", "tcgen05": "tcgen05.mma", "mma_sync": "mma.sync"}[variant] in made.ptx
    assert f"{variant}, {record.instructions} instruction" in made.explain()


@pytest.mark.parametrize("dtype,acc,target", [("float64", "float64", "sm_80"), ("float8_e4m3fn", "float32", "sm_120a"),
                                              ("float8_e5m2", "float16", "sm_90a"),
                                              ("float32", "float32", "sm_80"), ("int32", "int32", "sm_90a")])
@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("shape", [(64, 32, 32), (33, 20, 17)])
def test_the_other_types_assemble(dtype, acc, target, shape):
    """float64, float8, and products by threads."""
    compiled(target, dtype, acc, shape, VARIANT=None, LAYOUT=None, spills=0)


@pytest.mark.all_cases
@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a"])
@pytest.mark.parametrize("dtype,other,acc,precision", TYPES)
def test_mma_sync_of_every_type_assembles_on_every_target(dtype, other, acc, precision, target):
    """The instruction for these types; K-major operands are loaded by ldmatrix, except float64, which it does not support."""
    arrays = [tile.ArraySpec(s, t) for s, t in (((64, 64), dtype), ((32, 64), other), ((64, 32), acc))]
    options = dict(a_shape=(64, 64), b_shape=(32, 64), TA=False, TB=True, PLACES="ab", LAYOUT=tile.auto, PRECISION=precision,
                   VARIANT="mma_sync", TWICE=False)
    from tilejit.ops.mma.warp import instruction
    made = product.compile(*arrays, target=target, spills=0, **options)
    widened = dtype in FLOATS8 and target in ("sm_80", "sm_86")  # exactly representable in float16
    as_float16 = dtype in FLOATS8 and target not in ("sm_89", "sm_120a")
    assert instruction(*(("float16", "float16") if as_float16 else (dtype, other)), acc) in made.ptx
    assert ("ldmatrix.sync" in made.ptx) == (dtype != "float64" and not widened)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90a"])
@pytest.mark.parametrize("a_dtype,b_dtype", [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")])
@pytest.mark.parametrize("places", ["ab", "b", ""])
def test_float8_products_are_the_same_on_targets_that_convert_to_float16(a_dtype, b_dtype, places, target):
    """Operands in shared memory or in registers, with extents that no instruction has."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, s).astype(np_dtype(t)) for s, t in (((50, 40), a_dtype), ((24, 40), b_dtype)))
    c = np.zeros((50, 24), np.float32)
    options = dict(a_shape=a.shape, b_shape=b.shape, TA=False, TB=True, PLACES=places, LAYOUT=None, PRECISION=None, VARIANT="mma_sync", TWICE=False,
                   target=target, spills=0)
    product.simulate(1, a, b, c, **options).raise_first()
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    product.compile(a, b, c, **options)


@pytest.mark.parametrize("target,fastest", [("sm_90a", "wgmma"), ("sm_100a", "tcgen05"), ("sm_80", None), ("sm_120a", None)])
def test_a_layout_that_prevents_the_fastest_path_causes_a_warning(target, fastest):
    """At its line, unless the kernel requests another path; not if register tiles, extents or the target are the reason."""
    found = compiled(target, LAYOUT=None).warnings
    assert len(found) == (fastest is not None)
    if fastest is not None:
        assert f"this dot uses mma_sync instead of {fastest}: a is row-major without a swizzle in shared memory; give its allocation " in found[0]
        assert "layout=tile.auto" in found[0] and "acc = tile.dot(a, b, trans_a=TA" in found[0]
    assert not compiled(target, LAYOUT=None, VARIANT="mma_sync").warnings
    for options in (dict(), dict(shape=(33, 64, 64)), dict(PLACES="a", LAYOUT=None, shape=(48, 64, 64))):
        assert not compiled(target, **options).warnings


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_there_is_no_warning_about_a_layout_if_changing_it_alone_would_not_help(target):
    """Exact float32 cannot use tensor cores, whatever its layout."""
    made = compiled(target, "float32", LAYOUT=None)
    assert made.products[0].variant == "fma" and made.warnings == ()


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_there_is_no_warning_about_an_automatic_layout_if_no_layout_would_help(target):
    """8 columns of 8 bits: no swizzle has rows of 8 bytes."""
    made = compiled(target, "int8", "int32", (64, 8, 64), b_shape=(64, 8), TB=False)
    assert made.products[0].variant == "mma_sync" and made.warnings == ()


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("dtype,precision", [("int8", None), ("uint8", None), ("float8_e4m3fn", None), ("float32", "tf32")])
def test_an_operand_with_the_wrong_major_for_the_fastest_path_causes_a_warning(dtype, precision):
    """With the remedy, which works. Not if another path is requested, if the product is narrow, or if the target lacks the path."""
    acc = "int32" if "int" in dtype else "float32"
    case = dict(dtype=dtype, acc=acc, PRECISION=precision)
    fastest = {"sm_90a": "wgmma", "sm_100a": "tcgen05"} if precision else {"sm_90a": "wgmma"}
    for target in ("sm_80", "sm_90a", "sm_100a", "sm_120a"):
        for ta, tb, words in ((False, False, "hold it as [n, k], with trans_b=True"), (True, True, "hold it as [m, k], without trans_a")):
            found = compiled(target, **case, TA=ta, TB=tb).warnings
            assert len(found) == (target in fastest)
            said = f"this dot uses mma_sync instead of {fastest.get(target)}: {'a' if ta else 'b'} of {dtype} is not contiguous along k"
            assert all(said in w and words in w for w in found)
            if target not in fastest:
                continue
            assert not compiled(target, **case, TA=ta, TB=tb, VARIANT="mma_sync").warnings
            assert not compiled(target, **case, TA=ta, TB=tb, shape=(64, 32, 64), b_shape=(32, 64) if tb else (64, 32)).warnings
        assert not compiled(target, **case, TA=False, TB=True).warnings


def test_a_cached_kernel_has_the_same_records_and_warnings(tmp_path, monkeypatch):
    """Its products, and the warning about a layout that prevents the fastest path."""
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    told = []
    for _ in range(2):
        product.versions.clear()
        told.append(compiled("sm_90a", LAYOUT=None))
    first, found = told
    assert "cache" not in first.compile_time and list(found.compile_time) == ["cache"]
    assert found.products == first.products and found.warnings == first.warnings and len(found.warnings) == 1


def test_a_path_can_be_requested():
    """By the call or by a block around it; if it is impossible, the error lists every reason."""
    with pytest.raises(DispatchError, match="needs the target sm_90a: sm_80"):
        compiled("sm_80", VARIANT="wgmma")

    @tile.jit
    def held(C):
        a = tile.zeros((16, 16), tile.float16)
        with tile.expect_variant("wgmma"):
            tile.store(C[0:16, 0:16], tile.dot(a, a))

    with pytest.raises(DispatchError, match="b in shared memory: in registers"):
        held.compile(tile.ArraySpec((16, 16), "float32"))


# -- wrong input ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("call,words", [
    ("tile.dot(a, tile.zeros((17, 16), tile.float16))", "their k differ"),
    ("tile.dot(a, a, tile.zeros((16, 8)))", r"the accumulator is \[16, 16\]"),
    ("tile.dot(a, a, tile.zeros((16, 16), tile.bfloat16))", "sums of float16 by float16 are"),
    ("tile.dot(a, a, dtype=tile.int32)", "sums of float16 by float16 are"),
    ("tile.dot(a, tile.zeros((16, 16), tile.int8))", "cast the integers to a float"),
    ("tile.dot(a, C)", "load it, or copy it to shared memory"),
    ("tile.dot(a, 2)", "a register tile or a matrix in shared memory"),
    ("tile.dot(a, tile.zeros((16,)))", r"b is a matrix, or a batch of them, and not of shape \[16\]"),
    ("tile.dot(a > 0, a)", "cast it to a number"),
    ("tile.dot(a, a, precision='half')", "precision is None or 'tf32'"),
    ("tile.dot(a, a, trans_a=1)", "trans_a is True or False"),
    ("tile.dot(a, a, variant='tensor')", "no variant 'tensor'"),
])
def test_wrong_operands_are_errors_at_the_line(call, words):
    """Before any path is chosen."""
    kernel = tile.jit(source=f"def wrong(C):\n    a = tile.zeros((16, 16), tile.float16)\n    tile.store(C[0:16, 0:16], {call})\n")
    with pytest.raises(CompilationError, match=words) as caught:
        kernel.compile(tile.ArraySpec((16, 16), "float32"))
    assert caught.value.loc.line == 3


def test_a_dot_in_divergent_code_is_an_error():
    """All threads of the scope must execute the product."""
    @tile.jit
    def partial(C):
        a = tile.zeros((16, 16), tile.float16)
        if tile.thread_id() < 7:
            tile.store(C[0:16, 0:16], tile.dot(a, a))

    with pytest.raises(CompilationError, match="dot needs all threads"):
        partial.compile(tile.ArraySpec((16, 16), "float32"))


def test_the_instructions_of_products_are_in_the_ptx_table():
    """Every pair of types: the mnemonic exists on its targets, and takes as many registers as the code passes."""
    from tilejit.dtypes import DTYPES
    from tilejit.ops.mma.warp import FLOATS8, instruction, results_of, words_of
    from tilejit.ptx import form
    for a in DTYPES.values():
        for b in DTYPES.values():
            for result in results_of(a.name, b.name):
                found = form(instruction(a.name, b.name, result))
                assert {"sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a"} - ({"sm_80"} if a.name in FLOATS8 else set()) <= set(found.targets)
                assert {o.name: o.count for o in found.operands} == words_of(a.bits, DTYPES[result].bits)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_one_warp_or_warpgroup_can_compute_a_product(target):
    """The current scope multiplies: a warp by mma_sync, a warpgroup by wgmma if the target has it."""
    @tile.jit(num_warps=8)
    def scopes(A, C, FENCE: tile.constexpr):
        sA = tile.alloc((64, 64), A.dtype, layout=tile.auto)
        tile.copy(sA, A[0:64, 0:64])
        if FENCE:  # wgmma reads what threads outside its scope have stored
            tile.fence_proxy_async()
        tile.sync()
        with tile.warp(2):
            tile.store(C[0, 0:24, 0:64], tile.dot(sA[0:24, :], sA))
        with tile.each_warpgroup(range(1, 2)):
            tile.store(C[1, 0:64, 0:64], tile.dot(sA, sA, trans_b=True))

    a, c = numbers((64, 64), np.float16, 1), np.zeros((2, 64, 64), np.float32)
    scopes.simulate(1, a, c, FENCE=target == "sm_90a", target=target).raise_first()
    x = a.astype(np.float64)
    assert np.abs(c[0, :24] - x[:24] @ x).max() < 1e-4 and np.abs(c[1] - x @ x.T).max() < 1e-4
    assert [p.variant for p in scopes.compile(a, c, FENCE=target == "sm_90a", target=target).products] == ["mma_sync", "wgmma" if target == "sm_90a" else "mma_sync"]


@tile.jit
def ragged_then_loop(A, B, C, D):
    """A product with k = 3: the zeros beyond it may be in the register in which a loop's index begins."""
    s = tile.alloc((32, 3), A.dtype)
    tile.copy(s, A[0:32, 0:3])
    tile.sync()
    r = tile.dot(s, tile.load(B[0:3, 0:24]), tile.load(C[0:32, 0:24]), variant="mma_sync")
    tile.sync()
    for i in range(8):
        tile.store(D[i], i)
    tile.store(C[0:32, 0:24], r)


def ragged_operands(a: str, b: str):
    return (numbers((32, 3), np_dtype(a), 1), numbers((3, 24), np_dtype(b), 2), np.ones((32, 24), np.float32), np.zeros(8, np.int32))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("a,b", [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn"), ("float8_e5m2", "float8_e5m2")])
def test_float8_padding_along_k_is_converted_as_zeros(a, b, target):
    """If mma.sync has no float8, operands are converted; ptxas can substitute other registers for the unused upper halves of words."""
    x, y, c, d = ragged_operands(a, b)
    want = x.astype(np.float32) @ y.astype(np.float32) + 1
    made = ragged_then_loop.compile(x, y, c, d, target=target)
    assert not re.search(r"UNPACK_B\S* R\d+, (?!RZ|R\d+ )", made.sass())
    assert ("m16n8k32" in made.ptx) == (target == "sm_120a")
    ragged_then_loop[1,](x, y, c, d)
    np.testing.assert_allclose(c, want, rtol=1e-6)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("dtype,other", [("float8_e4m3fn", "float16"), ("bfloat16", "float8_e5m2"), ("float16", "float8_e5m2"), ("bfloat16", "float16")])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_floats_of_two_dtypes_are_multiplied_in_a_dtype_that_holds_both(dtype, other, target):
    """From shared memory and from registers, by the instructions of that dtype."""
    for places in ("ab", "a", ""):
        check(33, 24, 50, dtype, other, places=places, target=target, variant="mma_sync")
    specs = [tile.ArraySpec((64, 64), name) for name in (dtype, other, "float32")]
    options = dict(a_shape=(64, 64), b_shape=(64, 64), TA=False, TB=True, PLACES="ab", LAYOUT=tile.auto, PRECISION=None, VARIANT=None, TWICE=False)
    made = product.compile(*specs, target=target, **options)
    kind = "tf32.tf32" if "float8" not in dtype + other else "bf16.bf16" if "bfloat16" in (dtype, other) else "f16.f16"
    assert made.products[0].variant == "mma_sync" and f".f32.{kind}.f32" in made.ptx


@tile.jit
def chained(A, B, C, TURNED: tile.constexpr):
    """``A @ B @ B``, or ``(A @ B).T @ B``, with the first product in registers."""
    a, b = tile.alloc((64, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), B.dtype, layout=tile.auto)
    tile.copy(a, A[0:64, 0:64])
    tile.copy(b, B[0:64, 0:64])
    tile.sync()
    first = tile.dot(a, b, variant="mma_sync").to(A.dtype)
    tile.store(C[0:64, 0:64], tile.dot(first, b, trans_a=TURNED, variant="mma_sync"))


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("warps", [2, 4])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_a_product_used_as_a_register_operand_is_computed_in_the_layout_that_the_next_needs(target, warps):
    """Each warp has whole rows of both, without shared memory in between; a transposed one goes through shared memory, and is loaded by
    ldmatrix."""
    a, b = (np.random.default_rng(n).integers(-2, 3, (64, 64)).astype(np.float16) for n in (1, 2))
    c, first = np.zeros((64, 64), np.float32), a.astype(float) @ b.astype(float)
    for turned in (False, True):
        made = chained.compile(a, b, c, TURNED=turned, target=target, num_warps=warps)
        assert made.ptx.count("bar.sync") == (3 if turned else 1) and "ld.shared" not in made.ptx
        chained.simulate(1, a, b, c, TURNED=turned, target=target, num_warps=warps).raise_first()
        np.testing.assert_array_equal(c, (first.T if turned else first) @ b)


def test_unsupported_numbers_of_columns_are_skipped_without_a_search_for_similar_names(monkeypatch):
    """Among a thousand forms that took 0.1 s each time."""
    monkeypatch.setattr("tilejit.ptx.lookup.get_close_matches", lambda *_: pytest.fail("a search"))
    check(64, 20, 32, target="sm_90a")
    options = dict(a_shape=(64, 32), b_shape=(32, 20), TA=False, TB=False, PLACES="ab", LAYOUT=tile.auto, PRECISION=None, VARIANT=None, TWICE=False)
    compiled = product.compile(*(tile.ArraySpec(shape, "float16") for shape in ((64, 32), (32, 20))), tile.ArraySpec((64, 20), "float32"), **options)
    assert any(name == "wgmma" and "there is no m64n20k16" in why for record in compiled.products for name, why in record.declined)


@tile.jit
def powers(x, y, TIMES: tile.constexpr):
    v = tile.load(x[0:8, 0:8])
    for _ in tile.static_range(TIMES):
        v = tile.dot(v, v)
    tile.store(y[0:8, 0:8], v)


def test_each_of_many_products_by_threads_has_its_own_base_of_addresses():
    """LLVM compares addresses of one base with each other, which takes seconds if they are thousands."""
    matrix = tile.ArraySpec((8, 8), "float32")
    for times, copies in ((4, 0), (5, 5)):
        assert powers.compile(matrix, matrix, TIMES=times).llvm_ir.count('asm sideeffect "mov.b32 $0, $1;"') == copies
