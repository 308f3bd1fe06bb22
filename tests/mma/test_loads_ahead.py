"""Tiles loaded in a pipelined loop are prefetched by asynchronous copies."""

import re
import warnings

import numpy as np
import pytest
import tilejit as tile
from hypothesis import assume, given, settings, strategies as st

from tests.gpu import for_references, in_child, needs_gpu, needs_module
from tests.mma import first_kernels
from tests.mma.first_kernels import attention, by_bytes, by_nibbles, by_words
from tests.mma.products import BF16, E4M3
from tests.mma.test_staged_operands import TARGETS, operands

COPIES = {"sm_80": "ldgsts", "sm_90a": "tma", "sm_100a": "tma", "sm_120a": "tma"}


@tile.jit
def product(A, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, TA: tile.constexpr, TB: tile.constexpr, STAGES: tile.constexpr = 3,
            ROLES: tile.constexpr = False, SCALED: tile.constexpr = False):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN), tile.float32 if A.dtype.is_float else tile.int32)
    for k in tile.pipelined(range(0, A.shape[0 if TA else 1], BK), stages=STAGES, warp_specialize=ROLES):
        a = tile.load(A[k:k + BK, m:m + BM]).T if TA else tile.load(A[m:m + BM, k:k + BK])
        b = tile.load(B[n:n + BN, k:k + BK], other=0) if TB else tile.load(B[k:k + BK, n:n + BN])
        acc = tile.dot(a, b * 2 if SCALED else b, acc, trans_b=TB)
    tile.store(C[m:m + BM, n:n + BN], acc)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(TARGETS)), st.sampled_from([np.float16, BF16, E4M3, np.int8]), st.integers(1, 150), st.integers(1, 150),
       st.integers(0, 150), st.sampled_from([32, 64, 128]), st.sampled_from([16, 64, 128]), st.sampled_from([16, 32, 64]),
       st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()), st.booleans())
def test_any_product_of_tiles_loaded_in_a_pipelined_loop_is_right(target, dtype, m, n, k, bm, bn, bk, warps, stages, flags, aligned):
    """Rows aligned to 16 bytes and others, any number of iterations."""
    ta, tb, roles, scaled = flags
    assume(bm * bn <= 4096 * warps and (dtype != E4M3 or target != "sm_80"))
    if aligned:
        m, n, k = (x + -x % 16 for x in (m, n, k))
    a, b, c, want = operands(m, n, max(k, 1), dtype, ta, tb)
    if k == 0:
        a, b, want = (a[:0] if ta else a[:, :0]), (b[:, :0] if tb else b[:0]), 0 * want
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tile.TileWarning)
        product.simulate((-(-m // bm), -(-n // bn)), a, b, c, BM=bm, BN=bn, BK=bk, TA=ta, TB=tb, STAGES=stages, ROLES=roles, SCALED=scaled,
                         target=target, num_warps=warps).raise_first()
    np.testing.assert_array_equal(c, want * (1 + scaled))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_such_a_product_compiles_to_the_code_of_explicit_copies(target, roles, tb):
    """No thread loads or stores an operand, and the tensor cores read the slots."""
    spec = tile.ArraySpec((4096, 4096), "float16")
    made = product.compile(spec, spec, tile.ArraySpec((4096, 4096), "float32"), BM=64, BN=128, BK=64, TA=False, TB=tb, ROLES=roles, target=target)
    assert {c.variant for c in made.copies} == {COPIES[target]} and made.products[0].variant == TARGETS[target]
    assert "ld.global" not in made.ptx and not re.search(r"[ \t](ld|st)\.shared\.v4", made.ptx) and not made.warnings
    assert 3 * (64 + 128) * 64 * 2 <= made.shared_bytes < 3 * (64 + 128) * 64 * 2 + 256
    assert made.recipe["threads"] == (256 if roles and target != "sm_80" else 128)


@pytest.mark.parametrize("roles", [False, True])
def test_a_product_stays_in_flight_while_the_next_is_issued(roles):
    spec = tile.ArraySpec((4096, 4096), "float16")
    made = product.compile(spec, spec, tile.ArraySpec((4096, 4096), "float32"), BM=128, BN=128, BK=64, TA=False, TB=True, ROLES=roles, num_warps=8,
                           target="sm_90a")
    assert re.findall(r"wgmma.wait_group.sync.aligned (\d)", made.ptx) == ["1", "0"] and made.spills == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
def test_attention_written_with_loads_prefetches_keys_and_values(target, roles):
    rng = np.random.default_rng(0)
    q, k, v, o = (rng.standard_normal((2, 128, 64)).astype(np.float16) for _ in range(4))
    options = dict(BM=64, BN=32, D=64, ROLES=roles, target=target)
    attention.simulate((2, 2), q, k, v, o, 0.25, **options).raise_first()
    weights = 2 ** (0.25 * q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2))
    np.testing.assert_allclose(o, weights / weights.sum(2, keepdims=True) @ v.astype(np.float64), atol=4e-3)
    made = attention.compile(q, k, v, o, 0.25, **options)
    assert {c.variant for c in made.copies} == {COPIES[target]} and [p.variant for p in made.products] == [TARGETS[target]] * 2


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
def test_weights_widened_in_registers_are_prefetched_and_multiplied_by_tensor_cores(target, roles):
    rng = np.random.default_rng(0)
    a, w, s = rng.integers(-3, 4, (70, 192)).astype(np.float16), rng.integers(0, 256, (80, 96)).astype(np.uint8), 2.0 ** rng.integers(-2, 3, (3, 80))
    c = np.zeros((70, 80), np.float32)
    b = np.stack((w & 15, w >> 4), -1).reshape(80, 192).astype(np.float64) - 8
    options = dict(BM=64, BN=64, BK=64, GROUP=64, ROLES=roles, target=target)
    by_nibbles.simulate(4, a, w, s.astype(np.float16), c, **options).raise_first()
    np.testing.assert_array_equal(c, a.astype(np.float64) @ (b * np.repeat(s.T, 64, 1)).T)
    made = by_nibbles.compile(a, w, s.astype(np.float16), c, **options)
    assert made.products[0].variant == TARGETS[target] and len({c.line for c in made.copies}) == 3 and made.spills == 0
    assert "cvt.rn.f16.u" not in made.ptx and not re.search(r"st\.shared\.b(8|16)", made.ptx)
    assert made.ptx.count("st.shared.v4") == 4, "of 16 bytes, which the products read"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages, roles", [(0, False), (3, False), (3, True)])
@pytest.mark.parametrize("down", [False, True])
def test_weights_of_which_a_word_holds_eight_meet_the_tensor_cores(target, stages, roles, down):
    rng = np.random.default_rng(0)
    a, b, s = rng.integers(-3, 4, (70, 192)).astype(np.float16), rng.integers(0, 16, (192, 80)), 2.0 ** rng.integers(-2, 3, (3, 80))
    c = np.zeros((70, 80), np.float32)
    options = dict(BM=64, BN=64, BK=64, DOWN=down, GROUP=64, STAGES=stages, ROLES=roles, target=target)
    arguments = a, in_words(b, down), s.astype(np.float16), c
    by_words.simulate(4, *arguments, **options).raise_first()
    np.testing.assert_array_equal(c, a.astype(np.float64) @ ((b - 8) * np.repeat(s, 64, 0)))
    made = by_words.compile(*arguments, **options)
    assert made.products[0].variant == TARGETS[target] and made.spills == 0
    assert made.products[0].declined[0][0] != "mma_sync" and "st.shared.v4" in made.ptx and not re.search(r"st\.shared\.b(8|16)", made.ptx)


def in_words(b, down):
    """Numbers of 4 bits in words of 32, eight of a column or of a row in one."""
    parts = b.reshape(-1, 8, b.shape[1]).swapaxes(1, 2) if down else b.reshape(b.shape[0], -1, 8)
    return (parts.astype(np.int64) << 4 * np.arange(8)).sum(2).astype(np.uint32).view(np.int32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [0, 2])
def test_byte_weights_with_a_scale_per_row_are_right(target, stages):
    rng = np.random.default_rng(0)
    a, w, s = rng.integers(-3, 4, (70, 192)).astype(np.float16), rng.integers(-128, 128, (80, 192)).astype(np.int8), 2.0 ** rng.integers(-2, 3, 80)
    c = np.zeros((70, 80), np.float32)
    by_bytes.simulate(4, a, w, s.astype(np.float32), c, BM=64, BN=64, BK=64, STAGES=stages, target=target).raise_first()
    np.testing.assert_array_equal(c, a.astype(np.float64) @ w.T.astype(np.float64) * s)


@tile.jit
def as_it_lies(A, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr):
    acc = tile.zeros((BM, BN), tile.float32 if A.dtype.is_float else tile.int32)
    for k in tile.pipelined(range(0, A.shape[1], BK), stages=STAGES) if STAGES else range(0, A.shape[1], BK):
        acc = tile.dot(tile.load(A[0:BM, k:k + BK]), tile.load(B[k:k + BK, 0:BN]), acc)
    tile.store(C[0:BM, 0:BN], acc)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float16, E4M3, np.int8])
@pytest.mark.parametrize("stages", [0, 3])
def test_transposed_arrays_are_copied_without_transposing_them(target, dtype, stages):
    """Like the weights of torch's linear layers, ``w.T``: in either kind of loop by vectors or by TMA, for the fastest product
    that accepts them."""
    if (dtype, target) == (E4M3, "sm_80"):
        return
    rng = np.random.default_rng(0)
    a, at, b, w = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((64, 128), (128, 64), (128, 128), (128, 128)))
    for x, y in ((a, w.T), (at.T, b), (at.T, w.T)):
        c, options = np.zeros((64, 128), np.int32 if dtype == np.int8 else np.float32), dict(BM=64, BN=128, BK=64, STAGES=stages, target=target)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tile.TileWarning)
            as_it_lies.simulate(1, x, y, c, **options).raise_first()
            made = as_it_lies.compile(x, y, c, **options)
        np.testing.assert_array_equal(c, x.astype(np.float64) @ y.astype(np.float64))
        assert {v.variant for v in made.copies} == ({COPIES[target]} if stages else set())
        if dtype == np.float16 or x is a:
            assert made.products[0].variant == TARGETS[target] and not re.search(r"(ld|st)\.(global|shared)\.b(8|16)", made.ptx)


@tile.jit
def summed(X, Y, N, B: tile.constexpr, STAGES: tile.constexpr, ROLES: tile.constexpr):
    """Without products: prefetched rows are added and scaled."""
    row, total = tile.program_id(0), tile.zeros((B,))
    for k in tile.pipelined(range(0, N, B), stages=STAGES, warp_specialize=ROLES):
        x = tile.load(X[row, k:k + B])
        total += x * 2
    tile.store(Y[row, 0:B], total)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages, roles, n", [(1, False, 1000), (2, True, 0), (3, False, 996), (4, True, 1024), (4, False, 256)])
def test_tiles_that_no_product_uses_are_prefetched_too(target, stages, roles, n):
    x, y = np.random.default_rng(0).integers(-9, 9, (3, 1024)).astype(np.float32), np.full((3, 256), np.nan, np.float32)
    x[:, n:] = 0
    summed.simulate(3, x, y, n, B=256, STAGES=stages, ROLES=roles, target=target).raise_first()
    np.testing.assert_array_equal(y, 2 * x.reshape(3, 4, 256).sum(1))
    made = summed.compile(x, y, n, B=256, STAGES=stages, ROLES=roles, target=target)
    assert len(made.copies) >= 1 and "ld.global" not in made.ptx


@tile.jit
def several_uses(A, C, STAGES: tile.constexpr):
    """A tile as both operands, transposed or not, and in other operations."""
    acc, most = tile.zeros((64, 64)), tile.full((64,), -1e30, tile.float32)
    for k in tile.pipelined(range(0, A.shape[1], 64), stages=STAGES):
        a = tile.load(A[0:64, k:k + 64])
        acc = tile.dot(a, a.T, tile.dot(a.T, a, acc))
        most = tile.maximum(most, tile.max(a.to(tile.float32), axis=1))
    tile.store(C[0:64, 0:64], acc + most[:, None])


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_may_be_used_by_products_and_by_other_operations(target):
    a, c = np.random.default_rng(0).integers(-3, 4, (64, 192)).astype(np.float16), np.zeros((64, 64), np.float32)
    several_uses.simulate(1, a, c, STAGES=2, target=target).raise_first()
    parts = a.astype(np.float64).reshape(64, 3, 64).swapaxes(0, 1)
    np.testing.assert_array_equal(c, sum(p @ p.T + p.T @ p for p in parts) + a.astype(np.float64).max(1)[:, None])


LOOP = "    for i in tile.pipelined(range(4), stages=2):"
KEPT = [
    (["        y = tile.load(A[i, 0:64], cache='cs')"], 5, "the copy that would bring its tile cannot apply cache=: leave it out"),
    (["        y = tile.load(A[i, tile.arange(0, 64) ^ 0])"], 5, "elements that index tiles or a mask choose can be copied only as rows of an array, contiguous"),
    (["        y = tile.load(flat[tile.arange(0, 8)[:, None] * 8 + i * 64 + tile.arange(0, 8)[None, :]]).reshape((64,))"], 5,
     "an index tile names elements along several axes; give one for each dimension"),
    (["        y = tile.load(A[at, 0:64])", "        at = at * 3 % 4"], 5, "its place depends on at, which the loop changes"),
    (["        y = tile.load(out[i, 0:64])"], 5, "the kernel writes the memory that it reads: store at line 7 writes out"),
    (["        at = tile.load(flag[0], sem='acquire')", "        y = tile.load(A[i, 0:64])"], 6,
     "the loop waits for other threads' writes, by ordered_load at line 5"),
    (["        tile.atomic_add(flag[0], 0, sem='acquire')", "        y = tile.load(A[i, 0:64])"], 6,
     "the loop waits for other threads' writes, by atomic at line 5"),
    (["        at = tile.atomic_add(flag[0], 0)", "        y = tile.load(A[i, 0:64]) * at"], 6, "the loop waits for other threads' writes, by atomic at line 5"),
    (["        y = tile.load(odd[i, 0:64])"], 5, "ldgsts needs elements of at least one byte in copies of 4, 8 or 16 bytes"),
    (["        if total[0] == total[0]:", "            y = tile.load(A[i, 0:64])", "        else:", "            y = total"], 6,
     "the condition of its branch at line 5 depends on total, which the loop changes"),
    (["        if tile.load(out[4, 0]) > -99:", "            y = tile.load(A[i, 0:64])", "        else:", "            y = total", "        tile.sync()"], 6,
     "it depends on this load at line 5: the kernel writes the memory that it reads: store at line 11 writes out"),
    (["        y = total * 0", "        for j in range(1):", "            y += tile.load(A[i + j, 0:64])"], 7,
     "it is in the inner loop at line 6, and only loads of the pipelined loop's own body and of its branches run ahead"),
    (["        with tile.warp(0):", "            tile.store(out[i, 0:64], tile.load(A[i, 0:64]))", "        y = total * 0"], 6,
     "it is in the narrower scope at line 5, and the whole scope of the loop makes the copies: load outside of the scope"),
    (["        s = tile.alloc((64,), A.dtype)", "        tile.copy_async(s, A[i, 0:64]).wait()", "        y = tile.load(four[i, 0:64]) * 0 + tile.load(s)",
      "        tile.sync()"], 7, "its copy would complete by groups of cp.async, which copy_async at line 6 counts too"),
    (["        y = tile.load(A[i, 0:64], mask=total > -1e9, other=tile.arange(0, 64) * 1.0)"], 5,
     "with one stage nothing runs ahead that would make up for a repair of what its copy cannot fill in"),
    (["        y = tile.load(A[i, 0:64])"], 5, "its 2 slots take 512 bytes of shared memory, of which"),
]


@pytest.mark.parametrize("body, line, words", KEPT)
def test_loads_that_cannot_be_prefetched_stay_in_their_iteration_with_a_warning_that_says_why(body, line, words):
    """At the line of the load, with the cause: the line of what it waits for, depends on or collides with."""
    stages = 1 if "one stage" in words else 2
    full = ["    room = tile.alloc((56 * 1024,), A.dtype)", "    tile.store(room[0:64], total)"] if "slots" in words else []
    source = "\n".join(["def k(A, odd, four, flat, out, flag, n):", "    total = tile.zeros((64,))", "    at = 1",
                        LOOP.replace("stages=2", f"stages={stages}"), *body, "        total += y", "    tile.store(out[4, 0:64], total)", *full])
    rng = np.random.default_rng(0)
    a, odd, out = (rng.integers(-9, 9, (5, columns)).astype(dtype) for columns, dtype in ((64, np.float32), (65, np.float16), (64, np.float32)))
    flag, own, four, flat = np.ones(1, np.int32), out.copy(), np.ascontiguousarray(a[:, ::-1]), a.reshape(-1)
    four = np.pad(four, ((0, 0), (0, 1)))[:, :64]  # rows of 260 bytes, which only cp.async takes
    kernel = tile.jit(source=source)
    with pytest.warns(tile.TileWarning, match=re.escape(words)) as caught:
        kernel.simulate(1, a, odd[:, :64], four, flat, out, flag, 40).raise_first()
    assert any(words in str(w.message) and f"<source>:{line}:" in str(w.message) for w in caught)
    if "narrower" in words:
        return
    at = [1, 3, 1, 3] if "at * 3" in "".join(body) else range(4)
    rows = (odd[:, :64] if "odd[" in body[0] else own if "out[i" in body[0] else a)[list(at)].astype(np.float32)
    np.testing.assert_array_equal(out[4], rows.sum(0))


def test_rows_of_an_array_of_more_dimensions_run_ahead():
    @tile.jit
    def k(X, out):
        i, total = tile.arange(32), tile.zeros((32, 64))
        for c in tile.pipelined(range(0, 256, 64), stages=2):
            total += tile.load(X[(i // 8)[:, None], (i % 8)[:, None], (c + tile.arange(64))[None, :]])
        tile.store(out[0:32, 0:64], total)

    x, out = np.random.default_rng(0).integers(-9, 9, (4, 8, 256)).astype(np.float32), np.zeros((32, 64), np.float32)
    k.simulate(1, x, out).raise_first()
    np.testing.assert_array_equal(out, x.reshape(32, 4, 64).sum(1))
    assert {c.variant for c in k.compile(x, out).copies} == {"ldgsts"}


@tile.jit
def backward(Q, K, G, DQ, DK, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr, ROLES: tile.constexpr = False):
    """The gradients of ``sum(G * (Q @ K^T) @ K)`` by the first product's operands alone; those of Q are summed up in memory."""
    n = tile.program_id(0) * BN
    k, dk = tile.load(K[n:n + BN, 0:D]), tile.zeros((BN, D))
    for m in tile.pipelined(range(0, Q.shape[0], BM), stages=2, warp_specialize=ROLES):
        q, g = tile.load(Q[m:m + BM, 0:D]), tile.load(G[m:m + BM, 0:D])
        ds = tile.dot(k, g.T).to(Q.dtype)
        dk = tile.dot(ds, q, dk)
        tile.atomic_add(DQ[m:m + BM, 0:D], tile.dot(ds.T, k))
    tile.store(DK[n:n + BN, 0:D], dk)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
def test_sums_in_memory_whose_old_values_nothing_uses_let_loads_come_ahead(target, roles):
    """As the gradients of attention are added up: such a sum says nothing of what others have written."""
    q, k, g = (np.random.default_rng(i).integers(-2, 3, (rows, 64)).astype(np.float16) for i, rows in enumerate((192, 128, 192)))
    dq, dk, options = np.zeros((192, 64), np.float32), np.zeros((128, 64), np.float32), dict(BM=64, BN=64, D=64, ROLES=roles, target=target)
    backward.simulate(2, q, k, g, dq, dk, **options).raise_first()
    ds = g.astype(np.float64) @ k.astype(np.float64).T
    np.testing.assert_array_equal(dk, ds.T @ q)
    np.testing.assert_array_equal(dq, ds @ k)
    made = backward.compile(q, k, g, dq, dk, **options)
    assert {c.variant for c in made.copies} == {COPIES[target]} and [p.variant for p in made.products] == [TARGETS[target]] * 3


def test_loads_are_prefetched_as_far_as_shared_memory_allows_and_a_warning_says_what_is_missing():
    spec = tile.ArraySpec((4096, 4096), "float16")
    with pytest.warns(tile.TileWarning, match="its 4 slots take 65536 bytes of shared memory, of which 52352 are left"):
        made = product.compile(spec, spec, tile.ArraySpec((4096, 4096), "float32"), BM=128, BN=128, BK=64, TA=False, TB=True, STAGES=4, num_warps=8,
                               target="sm_90a", max_shared=52352 + 65536 + 16384)
    assert {c.variant for c in made.copies} == {"tma"} and made.products[0].variant == "wgmma" and "ld.global.v4" in made.ptx


def test_with_roles_loads_without_tma_or_bulk_copies_are_left_to_the_consumers():
    """A column of scales next to tiles that TMA copies."""
    @tile.jit
    def scaled(A, B, S, C):
        acc = tile.zeros((64, 64))
        for k in tile.pipelined(range(0, A.shape[1], 64), stages=3, warp_specialize=True):
            part = tile.dot(tile.load(A[0:64, k:k + 64]), tile.load(B[0:64, k:k + 64]).T)
            acc += part * tile.load(S[0:64, k // 64])[:, None]
        tile.store(C[0:64, 0:64], acc)

    rng = np.random.default_rng(0)
    a, b, s = (rng.integers(-3, 4, (64, n)).astype(t) for n, t in ((256, np.float16), (256, np.float16), (4, np.float32)))
    c = np.zeros((64, 64), np.float32)
    scaled.simulate(1, a, b, s, c, target="sm_90a").raise_first()
    parts = [(p.astype(np.float64) for p in (a[:, k:k + 64], b[:, k:k + 64])) for k in range(0, 256, 64)]
    np.testing.assert_array_equal(c, sum((x @ y.T) * s[:, n:n + 1] for n, (x, y) in enumerate(parts)))
    made = scaled.compile(a, b, s, c, target="sm_90a")
    assert made.recipe["threads"] == 256 and len(made.copies) == 2 and "ld.global" in made.ptx and not made.warnings


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages, roles", [(0, False), (3, False), (3, True)])
def test_a_constant_may_select_whether_a_loop_is_pipelined(target, stages, roles):
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(-3, 4, (200, 96)).astype(np.float16), rng.integers(-3, 4, (136, 96)).astype(np.float16), np.zeros((200, 136), np.float16)
    options = dict(BM=64, BN=64, BK=32, STAGES=stages, ROLES=roles, target=target)
    first_kernels.product.simulate(4 * 3, a, b, c, **options).raise_first()
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.T.astype(np.float64))
    assert ("ld.global" in first_kernels.product.compile(a, b, c, **options).ptx) == (stages == 0)


@needs_module("torch")
@pytest.mark.misread_by_racecheck  # numbers of programs are passed between threads through slots
@needs_gpu("sm_90a")
@in_child(timeout=300)
def test_products_of_prefetched_tiles_are_right_on_the_gpu():
    import torch
    warnings.simplefilter("ignore")

    def exact(x):
        return x.to(for_references()).double()
    for dtype in (np.float16, np.int8):
        for ta, tb, roles in ((False, True, False), (False, True, True), (True, False, False), (False, False, True)):
            for m, n, k, bm, bn, bk, warps in ((300, 200, 150, 64, 64, 32, 4), (130, 256, 1024, 128, 128, 64, 8), (64, 80, 48, 32, 128, 16, 2)):
                for stages in (1, 2, 3, 4):
                    *arrays, want = operands(m, n, k, dtype, ta, tb)
                    a, b, c = (torch.from_numpy(x).cuda() for x in arrays)
                    product[-(-m // bm), -(-n // bn)](a, b, c, BM=bm, BN=bn, BK=bk, TA=ta, TB=tb, STAGES=stages, ROLES=roles, num_warps=warps)
                    np.testing.assert_array_equal(c.cpu().numpy(), want, err_msg=str((dtype, ta, tb, roles, m, n, k, stages)))
    for dtype in (torch.float16, torch.int8):
        a, at, b, w = (torch.randint(-3, 4, shape, device="cuda").to(dtype) for shape in ((64, 128), (128, 64), (128, 128), (128, 128)))
        for x, y in ((a, w.T), (at.T, b), (at.T, w.T)):
            for stages in (0, 3):
                c = torch.zeros(64, 128, device="cuda", dtype=torch.int32 if dtype == torch.int8 else torch.float32)
                as_it_lies[1](x, y, c, BM=64, BN=128, BK=64, STAGES=stages)
                assert (exact(c) == exact(x) @ exact(y)).all(), (dtype, x.stride(), y.stride(), stages)
    q, k, v = (torch.randn(3, 512, 64, device="cuda").half() for _ in range(3))
    weights = 2 ** (0.25 * exact(q) @ exact(k).mT)
    want = weights / weights.sum(2, keepdim=True) @ exact(v)
    for roles in (False, True):
        o = torch.empty_like(q)
        attention[4, 3](q, k, v, o, 0.25, BM=128, BN=64, D=64, ROLES=roles)
        assert (exact(o) - want).abs().max().item() < 4e-3
        a, w = torch.randint(-3, 4, (300, 512), device="cuda").half(), torch.randint(0, 256, (200, 256), device="cuda", dtype=torch.uint8)
        s, c = 2.0 ** torch.randint(-2, 3, (8, 200), device="cuda"), torch.zeros(300, 200, device="cuda")
        by_nibbles[6](a, w, s.half(), c, BM=128, BN=128, BK=64, GROUP=64, ROLES=roles, num_warps=8)
        b = exact(torch.stack((w & 15, w >> 4), -1)).reshape(200, 512) - 8
        assert (exact(c) == exact(a) @ (b * exact(s).T.repeat_interleave(64, 1)).T).all()
        x, y, g = (torch.randint(-2, 3, (rows, 64), device="cuda").half() for rows in (640, 256, 640))
        dx, dy = torch.zeros(640, 64, device="cuda"), torch.zeros(256, 64, device="cuda")
        backward[4](x, y, g, dx, dy, BM=64, BN=64, D=64, ROLES=roles)
        ds = exact(g) @ exact(y).T
        assert (exact(dy) == ds.T @ exact(x)).all() and (exact(dx) == ds @ exact(y)).all(), roles
        b = np.random.default_rng(0).integers(0, 16, (512, 200))
        for down in (False, True):
            by_words[6](a, torch.from_numpy(in_words(b, down)).cuda(), s.half(), c, BM=128, BN=128, BK=64, DOWN=down, GROUP=64, ROLES=roles, num_warps=8)
            weights = exact(torch.from_numpy(b - 8.0)) * exact(s).repeat_interleave(64, 0)
            assert (exact(c) == exact(a) @ weights).all(), (roles, down)
