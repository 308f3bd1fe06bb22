"""``tile.dot`` among other operations: the layouts of values added, scaled, reduced and loaded follow its fragments."""

import numpy as np
import pytest
import tilejit as tile

from tests.drawn import numbers

pytestmark = pytest.mark.usefixtures("assembled_later")


def test_elementwise_operations_and_reductions_of_fragments_need_no_scratch_memory():
    """Rows of the accumulator are reduced within quads, and become the next product's operand by renaming registers."""
    @tile.jit
    def rows(A, B, C):
        sA, sB = tile.alloc((64, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), B.dtype, layout=tile.auto)
        tile.copy(sA, A[0:64, 0:64])
        tile.copy(sB, B[0:64, 0:64])
        tile.sync()
        s = tile.dot(sA, sB, trans_b=True)
        p = tile.exp(s - tile.max(s, axis=1)[:, None])
        tile.store(C[0:64, 0:64], tile.dot((p / tile.sum(p, axis=1)[:, None]).to(A.dtype), sB))

    a, b = numbers((64, 64), np.float16, 1) / 8, numbers((64, 64), np.float16, 2)
    for target in ("sm_80", "sm_90a"):
        c = np.zeros((64, 64), np.float32)
        rows.simulate(1, a, b, c, target=target).raise_first()
        s = a.astype(np.float64) @ b.T.astype(np.float64)
        p = np.exp(s - s.max(axis=1, keepdims=True))
        expected = p / p.sum(axis=1, keepdims=True) @ b.astype(np.float64)
        assert np.abs(c - expected).max() <= 2.0 ** -11 * np.abs(b.astype(np.float64)).max() * 2
        made = rows.compile(a, b, c, target=target)
        assert "convert_layout" not in made.graph and "st.shared" not in made.ptx.partition("mma")[2]


def test_the_accumulator_of_a_loop_is_converted_once():
    """An accumulator initialised with a sum of loaded values changes its layout before the loop."""
    @tile.jit
    def more(A, C, n):
        sA = tile.alloc((32, 32), A.dtype, layout=tile.auto)
        tile.copy(sA, A[0:32, 0:32])
        tile.sync()
        acc = tile.load(C[0:32, 0:32]) + tile.load(C[0:32, 0:32])
        for _ in range(n):
            acc = tile.dot(sA, sA, acc)
        tile.store(C[0:32, 0:32], acc)

    a, c = numbers((32, 32), np.float16, 1), numbers((32, 32), np.float32, 3)
    expected = 2 * c + 3 * (a.astype(np.float64) @ a.astype(np.float64))
    graph = more.compile(a, c, 3, target="sm_80").graph
    assert "convert_layout" in graph.partition("for ")[0] and "convert_layout" not in graph.partition("for ")[2].partition("->")[0]
    more.simulate(1, a, c, 3, target="sm_80").raise_first()
    assert np.abs(c - expected).max() < 1e-4


@tile.jit
def sometimes_reset(A, C, n):
    sA = tile.alloc((32, 32), A.dtype, layout=tile.auto)
    tile.copy(sA, A[0:32, 0:32])
    tile.sync()
    acc = tile.zeros((32, 32))
    for t in range(n):
        for k in range(2):
            if k < t:
                acc = tile.dot(sA, sA, acc)
        if t % 2 == 0:
            tile.store(C[t, 0:32, 0:32], acc)
            acc = tile.zeros((32, 32))


@tile.jit
def sometimes_scaled(A, C, n):
    sA = tile.alloc((32, 32), A.dtype, layout=tile.auto)
    tile.copy(sA, A[0:32, 0:32])
    tile.sync()
    for t in range(n):
        acc = tile.zeros((32, 32))
        for i in range(t):
            for k in range(2):
                if k > i:
                    acc = acc * 0.5
                else:
                    acc = tile.dot(sA, sA, acc)
        tile.store(C[t, 0:32, 0:32], acc)


@tile.jit
def sometimes_added(A, C, n):
    sA = tile.alloc((32, 32), A.dtype, layout=tile.auto)
    tile.copy(sA, A[0:32, 0:32])
    tile.sync()
    acc = tile.load(C[0, 0:32, 0:32]) + tile.load(C[0, 0:32, 0:32])
    for k in range(n):
        if k % 2 == 0:
            acc = tile.dot(sA, sA, acc)
    tile.store(C[1, 0:32, 0:32], acc)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("kernel", [sometimes_reset, sometimes_scaled, sometimes_added])
def test_a_product_in_a_branch_of_a_loop_causes_no_layout_conversions_in_loops(kernel, target):
    """Its accumulator has the product's layout in all enclosing loops, whichever branch assigns it or uses it."""
    a, n = numbers((32, 32), np.float16, 1) / 8, 4
    c = np.stack([numbers((32, 32), np.float32, 3)] * n)
    x, want, acc = a.astype(np.float64) @ a.astype(np.float64), c.astype(np.float64), np.zeros((32, 32))
    if kernel is sometimes_added:
        want[1] = 2 * c[0] + 2 * x
    for t in range(n if kernel is not sometimes_added else 0):
        if kernel is sometimes_scaled:
            acc = np.zeros((32, 32))
            for i in range(t):
                for k in range(2):
                    acc = acc * 0.5 if k > i else acc + x
            want[t] = acc
        else:
            acc = acc + sum(k < t for k in range(2)) * x
            if t % 2 == 0:
                want[t], acc = acc, np.zeros((32, 32))
    compiled = kernel.compile(a, c, n, target=target, num_warps=4)
    assert "convert_layout" not in compiled.graph.partition("\n  for ")[2]
    kernel.simulate(1, a, c, n, target=target, num_warps=4).raise_first()
    assert np.abs(c - want).max() < 1e-4


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("start", ["gathered", "loaded", "computed"])
def test_row_state_carried_by_a_loop_with_products_has_their_layout(start, target):
    """Maxima initialised from memory, as with attention sinks: the loop converts no layout, whatever the initial one is."""
    @tile.jit
    def maxima(A, first, places, C, n):
        sA = tile.alloc((64, 64), A.dtype, layout=tile.auto)
        tile.copy(sA, A[0:64, 0:64])
        tile.sync()
        if start == "gathered":
            top = tile.load(first[tile.load(places[0:64])]) + 1
        elif start == "loaded":
            top = tile.load(first[0:64]) + 1
            tile.store(first[0:64], top)
        else:
            top = tile.sum(tile.load(A[0:64, 0:64]).to(tile.float32), axis=1)
        total = top * 2
        for _ in range(n):
            s = tile.dot(sA, sA, trans_b=True)
            larger = tile.maximum(top, tile.max(s, axis=1))
            total = total * (top / larger) + tile.sum(s - larger[:, None], axis=1)
            top = larger
        tile.store(C[0, 0:64], top)
        tile.store(C[1, 0:64], total)

    a, first = numbers((64, 64), np.float16, 1), numbers((64,), np.float32, 2) + 900
    places, c = np.random.default_rng(0).permutation(64).astype(np.int32), np.zeros((2, 64), np.float32)
    s = a.astype(np.float64) @ a.T.astype(np.float64)
    top = {"gathered": first[places] + 1.0, "loaded": first + 1.0, "computed": a.astype(np.float64).sum(axis=1)}[start]
    total = top * 2
    for _ in range(3):
        larger = np.maximum(top, s.max(axis=1))
        total, top = total * (top / larger) + (s - larger[:, None]).sum(axis=1), larger
    made = maxima.compile(a, first, places, c, 3, target=target)
    assert "convert_layout" not in made.graph.partition("\n  for ")[2].partition("-> ")[0]
    maxima.simulate(1, a, first, places, c, 3, target=target).raise_first()
    np.testing.assert_allclose(c, [top, total], rtol=1e-4)


@pytest.mark.parametrize("where", ["loop", "branch", "both", "twice"])
def test_an_operand_loaded_before_the_loop_or_branch_that_uses_it_is_loaded_in_its_layout(where):
    """Queries of attention: rows that stay in registers are loaded by ldmatrix and scaled, without going through memory."""
    @tile.jit
    def kept(A, B, C, n):
        a = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128))
        b = tile.alloc((64, 64), B.dtype, layout=tile.swizzled(B.dtype, (64, 64), 128))
        tile.copy(a, A[0:64, 0:64])
        tile.copy(b, B[0:64, 0:64])
        tile.fence_proxy_async()
        tile.sync()
        q, acc = tile.load(a) * 0.5, tile.zeros((64, 64))
        if where == "loop":
            for _ in range(n):
                acc = product(acc, q, b)
        elif where == "branch":
            if n > 2:
                acc = product(acc, q, b)
        else:
            for i in range(2 * n):
                if i % 2 == 1:
                    acc = product(acc, q, b)
        if where == "twice":
            acc = product(acc, q, b)
        tile.store(C[0:64, 0:64], acc)

    @tile.jit
    def product(acc, q, b):
        acc = tile.mma_async(acc, q, b)
        tile.mma_commit()
        tile.mma_wait(0)
        return acc

    a, b, c = numbers((64, 64), np.float16, 1), numbers((64, 64), np.float16, 2), np.zeros((64, 64), np.float32)
    kept.simulate(1, a, b, c, 3).raise_first()
    times = {"loop": 3, "branch": 1, "both": 3, "twice": 4}[where]
    assert np.abs(c - times * 0.5 * (a.astype(np.float64) @ b.astype(np.float64))).max() < 1e-2
    made = kept.compile(a, b, c, 3)
    assert "convert_layout" not in made.graph and made.ptx.count("ldmatrix") == 4 and made.shared_bytes == 2 * 8192


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("first", ["sum", "loaded"])
def test_a_tile_loaded_to_be_combined_with_a_product_is_loaded_in_its_layout(target, first):
    """A bias and a residual need no layout conversion, whichever operand comes first, through casts and reshapes; a load with an
    earlier use in another layout keeps that."""
    @tile.jit
    def finished(A, bias, R, C, LOADED_FIRST: tile.constexpr, USED: tile.constexpr):
        sA = tile.alloc((64, 64), A.dtype, layout=tile.auto)
        tile.copy(sA, A[0:64, 0:64])
        tile.sync()
        added, residual = tile.load(bias[0:64]), tile.load(R[0:64, 0:64])
        if USED:
            tile.store(R[0:64, 0:64], residual + 1)
        acc = tile.dot(sA, sA)
        acc = added[None, :] + acc if LOADED_FIRST else acc + added[None, :]
        tile.store(C[0:64, 0:64], tile.cast(residual, tile.float32) + acc if LOADED_FIRST else acc - (-residual))

    a, bias, r = numbers((64, 64), np.float16, 1), numbers((64,), np.float32, 2), numbers((64, 64), np.float16, 3)
    expected = a.astype(np.float64) @ a.astype(np.float64) + bias + r
    for used in (False, True):
        c = np.empty((64, 64), np.float32)
        constants = dict(LOADED_FIRST=first == "loaded", USED=used, target=target)
        assert ("convert_layout" in str(finished.compile(a, bias, r.copy(), c, **constants).graph)) == used
        finished.simulate(1, a, bias, r.copy(), c, **constants).raise_first()
        assert np.abs(c - expected).max() < 1e-4
