"""Operands of `tile.dot` loaded from global memory are staged in shared memory, in the layout that the tensor cores take."""

import re

import numpy as np
import pytest
import tilejit as tile
from hypothesis import assume, given, settings, strategies as st

from tests.gpu import for_references, in_child, needs_gpu, needs_module
from tests.mma.products import BF16, E4M3

TARGETS = {"sm_80": "mma_sync", "sm_90a": "wgmma", "sm_100a": "tcgen05", "sm_120a": "mma_sync"}


@tile.jit
def product(A, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, TA: tile.constexpr, TB: tile.constexpr, SCALED: tile.constexpr = False):
    """The product as written without knowledge of shared memory."""
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN), tile.float32 if A.dtype.is_float else tile.int32)
    for k in range(0, A.shape[0 if TA else 1], BK):
        a = tile.load(A[k:k + BK, m:m + BM], other=0).T if TA else tile.load(A[m:m + BM, k:k + BK], other=0)
        b = tile.load(B[n:n + BN, k:k + BK], other=0) if TB else tile.load(B[k:k + BK, n:n + BN], other=0)
        acc = tile.dot(a * 2 if SCALED else a, b, acc, trans_b=TB)
    tile.store(C[m:m + BM, n:n + BN], acc)


def operands(m, n, k, dtype, ta, tb):
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((k, m) if ta else (m, k), (n, k) if tb else (k, n)))
    x, y = a.astype(np.float64), b.astype(np.float64)
    return a, b, np.zeros((m, n), np.int32 if dtype == np.int8 else np.float32), (x.T if ta else x) @ (y.T if tb else y)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(TARGETS)), st.sampled_from([np.float16, BF16, E4M3, np.int8]), st.integers(1, 150), st.integers(1, 150),
       st.integers(1, 150), st.sampled_from([32, 64, 128]), st.sampled_from([16, 64, 128]), st.sampled_from([16, 32, 64]), st.sampled_from([1, 2, 4, 8]),
       st.booleans(), st.booleans(), st.booleans())
def test_any_product_of_loaded_tiles_is_right(target, dtype, m, n, k, bm, bn, bk, warps, ta, tb, scaled):
    assume(bm * bn <= 4096 * warps and (dtype != E4M3 or target != "sm_80"))
    a, b, c, want = operands(m, n, k, dtype, ta, tb)
    grid = -(-m // bm), -(-n // bn)
    product.simulate(grid, a, b, c, BM=bm, BN=bn, BK=bk, TA=ta, TB=tb, SCALED=scaled, target=target, num_warps=warps).raise_first()
    np.testing.assert_array_equal(c, want * (1 + scaled))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tb", [False, True])
def test_loads_and_stores_are_16_bytes_wide_with_two_barriers_per_iteration(target, tb):
    spec = tile.ArraySpec((4096, 4096), "float16")
    made = product.compile(spec, spec, tile.ArraySpec((4096, 4096), "float32"), BM=64, BN=128, BK=64, TA=False, TB=tb, target=target)
    assert made.products[0].variant == TARGETS[target] and made.spills == 0
    loop = made.ptx[made.ptx.index("ld.global"):made.ptx.rindex("st.shared")]
    assert loop.count("ld.global.v4.b32") == loop.count("st.shared.v4.b32") + 1 == 12 and not re.search(r"(ld|st)\.(global|shared)\.b", loop)
    assert not re.search(r"ld\.shared\.b(8|16)", made.ptx) and made.shared_bytes < 64 * 64 * 2 + 128 * 64 * 2 + 256


@pytest.mark.parametrize("scaled", [False, True])
def test_a_product_in_an_ordinary_loop_stays_in_flight_while_the_next_operands_are_loaded(scaled):
    """Its wait is between these loads and their stores, and once after the loop."""
    spec = tile.ArraySpec((4096, 4096), "float16")
    made = product.compile(spec, spec, tile.ArraySpec((4096, 4096), "float32"), BM=64, BN=128, BK=64, TA=False, TB=True, SCALED=scaled, target="sm_90a")
    order = re.findall(r"wgmma.wait_group|wgmma.commit_group|ld.global|st.shared|bar.sync", made.ptx)
    steps = [name for n, name in enumerate(order) if n == 0 or name != order[n - 1]]
    assert steps == ["ld.global", "wgmma.wait_group", "bar.sync", "st.shared", "bar.sync", "wgmma.commit_group", "wgmma.wait_group"]
    assert made.spills == 0 and not made.warnings


@tile.jit
def attention(Q, K, V, O, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr):
    m = tile.program_id(0) * BM
    q, most, total, acc = tile.load(Q[m:m + BM, 0:D]), tile.full((BM,), -1e30, tile.float32), tile.zeros((BM,)), tile.zeros((BM, D))
    for n in range(0, K.shape[0], BN):
        s = tile.dot(q, tile.load(K[n:n + BN, 0:D]).T)
        new = tile.maximum(most, tile.max(s, axis=1))
        p, by = tile.exp(s - new[:, None]), tile.exp(most - new)
        total = total * by + tile.sum(p, axis=1)
        acc = tile.dot(p.to(Q.dtype), tile.load(V[n:n + BN, 0:D]), acc * by[:, None])
        most = new
    tile.store(O[m:m + BM, 0:D], (acc / total[:, None]).to(O.dtype))


@pytest.mark.parametrize("target", TARGETS)
def test_a_loop_invariant_operand_is_stored_once_and_a_product_s_result_stays_in_registers(target):
    rng = np.random.default_rng(0)
    q, k, v, o = (rng.standard_normal((128, 64)).astype(np.float16) for _ in range(4))
    attention.simulate(2, q, k, v, o, BM=64, BN=32, D=64, target=target).raise_first()
    weights = np.exp(q.astype(np.float64) @ k.astype(np.float64).T)
    np.testing.assert_allclose(o, weights / weights.sum(1, keepdims=True) @ v.astype(np.float64), atol=4e-3)
    made = attention.compile(q, k, v, o, BM=64, BN=32, D=64, target=target)
    assert [p.variant for p in made.products] == [TARGETS[target]] * 2 and made.spills == 0
    before, loop = str(made.graph).split("for %")
    stores = [len(re.findall(r"(?<!_)store\(%", part)) for part in (before, loop)]
    assert stores == [1, 3], "q before the loop; k, v and, behind it, the result"


@tile.jit
def several(X, Y, C, T: tile.constexpr):
    """One tile as both operands, from outside a loop and a branch, and as either operand; another one for each iteration."""
    x = tile.load(X[0:64, 0:64])
    y = tile.dot(x, x.T if T else x)
    for i in range(3):
        z = tile.load(Y[64 * i:64 * i + 64, 0:64])
        y = tile.dot(z, x, y)
        y = tile.dot(z.T, z, y)
        if i == 1:
            y = tile.dot(x.T, z, y)
    tile.store(C[0:64, 0:64], y)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float16, np.int8])
@pytest.mark.parametrize("turned", [False, True])
def test_tiles_used_by_several_products_are_right_in_each(target, dtype, turned):
    rng = np.random.default_rng(1)
    x, z = rng.integers(-2, 3, (64, 64)).astype(dtype), rng.integers(-2, 3, (3, 64, 64)).astype(dtype)
    c = np.zeros((64, 64), np.int32 if dtype == np.int8 else np.float32)
    several.simulate(1, x, z.reshape(192, 64), c, T=turned, target=target).raise_first()
    f, g = x.astype(np.float64), z.astype(np.float64)
    np.testing.assert_array_equal(c, f @ (f.T if turned else f) + sum(t @ f + t.T @ t for t in g) + f.T @ g[1])


@tile.jit
def linear_attention(Q, K, V, O, D: tile.constexpr, BN: tile.constexpr):
    """A state computed by products is the `b` of another product."""
    state = tile.zeros((D, D))
    for n in range(0, K.shape[0], BN):
        q, k, v = tile.load(Q[n:n + BN, 0:D]), tile.load(K[n:n + BN, 0:D]), tile.load(V[n:n + BN, 0:D])
        o = tile.dot(tile.dot(q, k.T).to(Q.dtype), v)
        o = tile.dot(q, state.to(Q.dtype), o)
        state = tile.dot(k.T, v, state)
        tile.store(O[n:n + BN, 0:D], o)


@tile.jit
def turned_products(Q, K, V, O, D: tile.constexpr, BM: tile.constexpr, BN: tile.constexpr):
    """A product's result is transposed and multiplied as `a`, as in the gradients of attention."""
    m = tile.program_id(0) * BM
    k, acc = tile.load(K[m:m + BM, 0:D]), tile.zeros((BM, D))
    for n in range(0, Q.shape[0], BN):
        p = tile.dot(tile.load(Q[n:n + BN, 0:D]), k.T) * 0.5
        acc = tile.dot(p.to(Q.dtype).T, tile.load(V[n:n + BN, 0:D]), acc)
    tile.store(O[m:m + BM, 0:D], acc)


def chained():
    """(kernel, grid, constants, operands, expected result), of integers and halves that stay exact."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-1, 2, (192, 64)).astype(np.float16) for _ in range(3))
    f, g, h = (x.astype(np.float64) for x in (q, k, v))
    blocks = [slice(n, n + 64) for n in range(0, 192, 64)]
    state, parts = np.zeros((64, 64)), []
    for b in blocks:
        parts.append(f[b] @ g[b].T @ h[b] + f[b] @ state)
        state = state + g[b].T @ h[b]
    yield linear_attention, 1, dict(D=64, BN=64), (q, k, v), np.concatenate(parts)
    yield turned_products, 3, dict(D=64, BM=64, BN=64), (q, k, v), (g @ f.T * 0.5) @ h


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_s_result_used_as_b_or_transposed_as_a_goes_through_shared_memory(target):
    """Not element by element."""
    for kernel, grid, constants, arrays, want in chained():
        o = np.zeros((192, 64), np.float32)
        kernel.simulate(grid, *arrays, o, **constants, target=target).raise_first()
        np.testing.assert_array_equal(o, want)
        made = kernel.compile(*arrays, o, **constants, target=target)
        assert {p.variant for p in made.products} == {TARGETS[target]} and made.spills == 0
        assert not re.search(r"(ld|st)\.shared\.b(8|16)", made.ptx)


@tile.jit
def from_shared(A, B, C):
    """In the way that weights of few bits are widened."""
    s, b = tile.alloc((64, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), B.dtype, layout=tile.auto)
    tile.copy(s, A[0:64, 0:64])
    tile.copy(b, B[0:64, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    tile.store(C[0:64, 0:64], tile.dot(tile.load(s).to(B.dtype), b))


def test_an_operand_loaded_from_shared_memory_is_not_stored_there_again():
    made = from_shared.compile(tile.ArraySpec((64, 64), "int8"), tile.ArraySpec((64, 64), "float16"), tile.ArraySpec((64, 64), "float32"), target="sm_90a")
    assert made.products[0].variant == "wgmma" and made.shared_bytes == 64 * 64 * 3 and "st.shared.b" not in made.ptx


def test_without_shared_memory_left_operands_stay_in_registers():
    spec = tile.ArraySpec((4096, 4096), "float16")
    options = dict(BM=64, BN=64, BK=64, TA=False, TB=True)
    made = product.compile(spec, spec, tile.ArraySpec((4096, 4096), "float32"), **options, target="sm_90a", max_shared=16384)
    assert made.products[0].variant == "mma_sync" and "b in shared memory: in registers" in dict(made.products[0].declined)["wgmma"]
    a, b, c, want = operands(70, 66, 100, np.float16, False, True)
    product.simulate((2, 2), a, b, c, **options, target="sm_90a", max_shared=16384).raise_first()
    np.testing.assert_array_equal(c, want)


@tile.jit
def inverse(A, O, N: tile.constexpr, STEPS: tile.constexpr):
    """``(I - A)^-1`` of a strictly lower triangular A, as ``(I + A)(I + A^2)(I + A^4)...``"""
    i, power = tile.arange(N), tile.load(A[0:N, 0:N])
    total = tile.where(i[:, None] == i[None, :], 1.0, 0.0) + power
    for _ in tile.static_range(STEPS):
        power = tile.dot(power, power)
        total = tile.dot(total, power, total)
    tile.store(O[0:N, 0:N], total)


@pytest.mark.parametrize("target", TARGETS)
def test_products_of_float32_one_after_the_other_take_their_operands_from_the_same_shared_memory(target):
    """Each took some of its own: five of 64 x 64 did not fit. An operand that is on both sides is stored once."""
    a, o = np.tril(np.random.default_rng(0).integers(-1, 2, (32, 32)), -1).astype(np.float32), np.zeros((32, 32), np.float32)
    made = {}
    for steps in (2, 3):
        made[steps] = inverse.compile(a, o, N=32, STEPS=steps, target=target)
    if target == "sm_80":  # the simulator runs the same products for each
        inverse.simulate(1, a, o, N=32, STEPS=5, target=target).raise_first()
        np.testing.assert_array_equal(o @ (np.eye(32) - a), np.eye(32))
    assert {p.variant for p in made[3].products} == {"fma"} and made[2].shared_bytes == made[3].shared_bytes <= 5 * a.nbytes
    assert made[3].ptx.count("bar.sync") - made[2].ptx.count("bar.sync") == 4, "two for the operands of each product"


@needs_module("torch")
@needs_gpu("sm_90a")
@in_child(timeout=240)
def test_products_of_loaded_tiles_are_right_on_the_gpu():
    import torch
    for dtype in (np.float16, np.int8):
        for ta in (False, True):
            for tb in (False, True):
                for m, n, k, bm, bn, bk, warps in ((300, 200, 150, 64, 64, 32, 4), (130, 258, 520, 128, 128, 64, 8), (64, 72, 40, 32, 128, 16, 2)):
                    *arrays, want = operands(m, n, k, dtype, ta, tb)
                    a, b, c = (torch.from_numpy(x).cuda() for x in arrays)
                    product[-(-m // bm), -(-n // bn)](a, b, c, BM=bm, BN=bn, BK=bk, TA=ta, TB=tb, num_warps=warps)
                    np.testing.assert_array_equal(c.cpu().numpy(), want, err_msg=str((dtype, ta, tb, m, n, k)))
    for kernel, grid, constants, arrays, want in chained():
        o = torch.zeros(192, 64, device="cuda")
        kernel[grid](*(torch.from_numpy(x).cuda() for x in arrays), o, **constants)
        np.testing.assert_array_equal(o.cpu().numpy(), want)
    q, k, v = (torch.randn(512, 64, device="cuda").half() for _ in range(3))
    o = torch.empty_like(q)
    attention[4](q, k, v, o, BM=128, BN=64, D=64)
    q, k, v, o = (x.to(for_references()).double() for x in (q, k, v, o))
    assert (o - torch.softmax(q @ k.T, 1) @ v).abs().max().item() < 4e-3
