"""Products and pipelined loops on the GPU: the same bounds as on the simulator, integers bit for bit."""

import ml_dtypes
import numpy as np
import tilejit as tile
from hypothesis import Phase, given, settings, strategies as st

from tests.drawn import numbers
from tests.gpu import in_child, needs_gpu, some
from tests.mma.pipelined_product import product
from tests.mma.test_dot import (
    BY_THREADS,
    EXTENTS,
    MIXED,
    TYPES,
    check,
    np_dtype,
    product as one_product,
    ragged_operands,
    ragged_then_loop,
)
from tests.mma.test_dot_layouts import sometimes_added, sometimes_reset, sometimes_scaled
from tests.mma.test_order import ahead
from tests.mma.test_pipelined import attention, close, split_k, tile_of_product, two_loops
from tests.mma.test_pipelined_places import by_table, shares


def both(kernel, grid, arrays, out, *rest, **options):
    """The values of `out`, the argument after `arrays`, on the GPU and on the simulator."""
    results = []
    for backend in ("cuda", "sim"):
        written = np.full_like(out, 0)
        kernel[grid](*arrays, written, *rest, backend=backend, **options)
        results.append(written)
    return results


@needs_gpu()
@in_child(timeout=240)
def test_products_of_warps_and_threads_are_right_on_the_gpu():
    """Each type by mma.sync with ldmatrix and with plain loads, ragged extents, operands in registers; float32 by threads."""
    cases = [("float16", "float32", None, 64, 64, 64, False, True, "ab", 128), ("float16", "float32", None, 64, 64, 64, True, False, "ab", 128),
             ("bfloat16", "float32", None, 50, 37, 21, False, False, "ab", None), ("float16", "float16", None, 48, 40, 72, False, True, "b", 0),
             ("float32", "float32", "tf32", 64, 32, 32, False, True, "ab", 128), ("float64", "float64", None, 40, 24, 20, False, False, "", None),
             ("int8", "int32", None, 64, 32, 64, False, True, "ab", 64), ("uint8", "int32", None, 33, 20, 50, True, False, "", None),
             ("float32", "float32", None, 33, 20, 50, False, False, "ab", None)]
    for dtype, acc, precision, m, n, k, ta, tb, places, swizzle in cases:
        a, b = numbers((k, m) if ta else (m, k), np_dtype(dtype), 1), numbers((n, k) if tb else (k, n), np_dtype(dtype), 2)
        variant = "fma" if dtype == "float32" and precision is None else "mma_sync"
        options = dict(a_shape=a.shape, b_shape=b.shape, TA=ta, TB=tb, PLACES=places, LAYOUT=tile.auto if swizzle else None, PRECISION=precision,
                       VARIANT=variant, TWICE=True)
        gpu, simulated = both(one_product, 1, (a, b), np.zeros((m, n), np_dtype(acc)), **options)
        if acc == "int32":
            np.testing.assert_array_equal(gpu, simulated)
            continue
        x, y = (v.astype(np.float64) for v in (a.T if ta else a, b.T if tb else b))
        unit = {"float32": 2.0 ** -23, "float16": 2.0 ** -10, "float64": 2.0 ** -52}[acc]
        bound = 2 * (np.abs(x) @ np.abs(y)) * (4 * k * unit + (2.0 ** -9 if precision else 0.0)) + (2.0 ** -23 * k if acc == "float16" else 0.0)
        for got in (gpu, simulated):
            assert (np.abs(got.astype(np.float64) - 2 * (x @ y)) <= bound).all(), (dtype, places, ta, tb)


@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=240)
def test_products_of_any_extents_types_majors_and_memories_are_right_on_the_gpu():
    """As on the simulator; integers are exact on both, and therefore bit-identical."""
    @settings(max_examples=len(some(range(40))), deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(EXTENTS, EXTENTS, EXTENTS, st.sampled_from(TYPES + MIXED + BY_THREADS), st.booleans(), st.booleans(),
           st.sampled_from(["ab", "a", "b", ""]), st.sampled_from([4, 6, 8]))
    def each(m, n, k, types, ta, tb, places, warps):
        check(m, n, k, *types[:2], ta, tb, places, acc=types[2], precision=types[3], warps=warps, on_gpu=True)
    each()


@needs_gpu()
@in_child(timeout=240)
def test_pipelined_loops_are_right_on_the_gpu():
    """0 to stages + 1 iterations and a ragged one, with and without roles; loops that read by ordinary loads."""
    for roles in (False, True):
        for k in (0, 32, 64, 96, 128, 136):
            a, b = numbers((64, max(k, 8)), np.float16, 1), numbers((32, max(k, 8)), np.float16, 2)
            c = np.full((64, 32), np.nan, np.float32)
            tile_of_product[1, 1](a, b, c, k, BM=64, BN=32, BK=32, STAGES=3, ROLES=roles, TB=True, backend="cuda")
            close(c, a[:, :k], b.T[:k])
        x = numbers((8, 64), np.float32, 3)
        gpu, simulated = both(two_loops, 1, (x,), np.zeros(64, np.float32), 8, ROLES=roles)
        np.testing.assert_allclose(gpu, simulated, rtol=1e-6, atol=1e-6)


@needs_gpu()
@in_child(timeout=240)
def test_pipelined_loops_with_runtime_steps_orders_and_tables_are_right_on_the_gpu():
    a, blocks = numbers((15, 64), np.float32, 1), numbers((5, 64, 64), np.float16, 2)
    table = np.array([3, -1, 4, 0, 0, 2, -5, 1, 3], np.int32)
    for roles in (False, True):
        for step in (1, -2, 7, 40):
            gpu, simulated = both(shares, 4, (a,), np.zeros((4, 64), np.float32), step, ORDER="grouped", ROLES=roles)
            np.testing.assert_allclose(gpu, simulated, rtol=1e-6, atol=1e-6)
        gpu, simulated = both(by_table, 1, (blocks, table), np.zeros((8, 64, 64), np.float16), 8, STAGES=3, ROLES=roles)
        np.testing.assert_array_equal(gpu, simulated)


@needs_gpu()
@in_child(timeout=240)
def test_products_in_branches_of_loops_are_right_on_the_gpu():
    a = numbers((32, 32), np.float16, 1) / 8
    for kernel in (sometimes_reset, sometimes_scaled, sometimes_added):
        gpu, simulated = both(kernel, 1, (a,), np.zeros((4, 32, 32), np.float32), 4, num_warps=4)
        np.testing.assert_allclose(gpu, simulated, rtol=1e-5, atol=1e-4)


@needs_gpu()
@in_child(timeout=240)
def test_the_short_form_is_right_on_the_gpu():
    """The persistent kernel, ragged and aligned, many times: the same bits each time."""
    for m, n, k in ((1000, 520, 712), (1024, 1024, 1024), (130, 101, 71)):
        a, b = numbers((m, k), ml_dtypes.bfloat16, 1), numbers((n, k), ml_dtypes.bfloat16, 2)
        first = None
        for _ in range(20):
            c = np.full((m, n), np.nan, ml_dtypes.bfloat16)
            product[20,](a, b, c, BM=128, BN=128, BK=64, backend="cuda")
            first = c if first is None else first
            np.testing.assert_array_equal(c.view(np.uint16), first.view(np.uint16))
        close(first, a, b.T)


@needs_gpu()
@in_child(timeout=240)
def test_attention_in_the_short_form_is_right_on_the_gpu():
    """Row state in the fragments, a ragged number of keys."""
    q, k, v = (numbers((n, 64), np.float16, n) for n in (300, 500, 500))
    s = q.astype(np.float64) @ k.T.astype(np.float64) * 0.125
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    for roles in (False, True):
        out = np.zeros((300, 64), np.float32)
        attention[5,](q, k, v, out, 0.125, BM=64, BN=64, D=64, STAGES=2, ROLES=roles, backend="cuda")
        assert (np.abs(out - p @ v.astype(np.float64)) <= p @ np.abs(v.astype(np.float64)) * 2.0 ** -9).all()


@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=120)
def test_pipelined_loops_in_clusters_are_right_on_the_gpu():
    """Both CTAs of a cluster, with and without roles, many times: the same bits each time."""
    for k in (0, 40, 200, 640):
        a, b = numbers((64, max(k, 1)), np.float16, 1)[:, :k], numbers((128, max(k, 1)), np.float16, 2)[:, :k]
        for roles in (False, True):
            first = None
            for _ in range(20):
                c = np.full((64, 128), np.nan, np.float32)
                split_k[4,](a, b, c, BK=64, ROLES=roles, backend="cuda")
                first = c if first is None else first
                np.testing.assert_array_equal(c, first)
            close(first, a, b.T)


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_a_product_in_flight_across_loop_iterations_is_right_on_the_gpu():
    """No iteration, one, many; the same bits each time."""
    a, b = numbers((64, 64), ml_dtypes.bfloat16, 1), numbers((64, 64), ml_dtypes.bfloat16, 2)
    for n in (0, 1, 2, 7):
        first = None
        for _ in range(20):
            c = np.full((64, 64), np.nan, np.float32)
            ahead[1,](a, b, c, n, backend="cuda")
            first = c if first is None else first
            np.testing.assert_array_equal(c, first)
        want = (n * (n + 1) // 2 + 1) * (a.astype(np.float64) @ b.astype(np.float64).T)
        assert (np.abs(first - want) <= 1e-5 * (n + 1) ** 2 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T)).all()


@needs_gpu("sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=60)
def test_float8_with_a_ragged_k_is_right_on_the_gpu():
    """Padding along k adds nothing, whatever else the kernel contains."""
    for a, b in (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn"), ("float8_e5m2", "float8_e5m2")):
        x, y, c, d = ragged_operands(a, b)
        want = x.astype(np.float32) @ y.astype(np.float32) + 1
        ragged_then_loop[1,](x, y, c, d, backend="cuda")
        np.testing.assert_allclose(c, want, rtol=1e-3)
