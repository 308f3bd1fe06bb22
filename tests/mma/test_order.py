"""The order of asynchronous products: what the compiler refuses, what the simulator finds, what pinned registers hold."""

import re

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError, DispatchError, SimulationError

BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(0)
A, B = (RNG.standard_normal((64, 64)).astype(BF16) for _ in range(2))
PRODUCT = A.astype(np.float32) @ B.astype(np.float32).T


@tile.jit
def filled(X):
    s = tile.alloc((64, 64), X.dtype, layout=tile.swizzled(X.dtype, (64, 64), 128))
    tile.copy(s, X[0:64, 0:64])
    return s


@tile.jit
def started(A, B):
    a, b = filled(A), filled(B)
    tile.fence_proxy_async()
    tile.sync()
    return a, b


def refused(kernel, match, error=CompilationError):
    with pytest.raises(error, match=match):
        kernel.simulate(1, A, B, np.zeros((64, 64), np.float32))


def test_a_result_is_read_after_its_wait():
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        acc = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        tile.store(C[0:64, 0:64], acc)
    refused(kernel, "read before it is complete; mma_wait\\(0\\)")


def test_a_group_is_committed_before_the_wait():
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        acc = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
    refused(kernel, "its group is still open")


def test_a_wait_that_leaves_the_group_pending_is_not_enough():
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        one = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        two = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        tile.mma_wait(1)
        tile.store(C[0:64, 0:64], one + two)
    refused(kernel, "read before it is complete; mma_wait\\(0\\)")


def test_a_kernel_cannot_end_before_its_products():
    """On any path: the assembler would insert a wait elsewhere, and report it without a line."""
    @tile.jit(num_warps=4)
    def kernel(A, B, C, n, SOMETIMES: tile.constexpr, ALWAYS: tile.constexpr):
        a, b = started(A, B)
        acc = tile.zeros((64, 64))
        for i in range(n):
            acc = tile.mma_async(acc, a, b, trans_b=True)
            tile.mma_commit()
            tile.mma_wait(1)
        if SOMETIMES:
            if n > 2:
                tile.mma_wait(0)
                tile.store(C[0:64, 0:64], acc)
        if ALWAYS:
            tile.mma_wait(0)
    c = np.zeros((64, 64), np.float32)
    for sometimes in (False, True):
        with pytest.raises(CompilationError, match="may still be in flight where the kernel ends: call tile.mma_wait\\(0\\)"):
            kernel.simulate(1, A, B, c, 3, SOMETIMES=sometimes, ALWAYS=False)
        kernel.simulate(1, A, B, c, 3, SOMETIMES=sometimes, ALWAYS=True).raise_first()
        kernel.compile(A, B, c, 3, SOMETIMES=sometimes, ALWAYS=True, target="sm_90a")
    np.testing.assert_allclose(c, 3 * PRODUCT, rtol=1e-5, atol=1e-4)


def test_a_product_may_be_pending_across_the_end_of_a_loop():
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        acc, total = tile.zeros((64, 64)), tile.zeros((64, 64))
        for i in range(3):
            total = total + acc
            acc = tile.mma_async(acc, a, b, trans_b=True)
            tile.mma_commit()
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc + total)
    refused(kernel, "read before it is complete")


def one_set(made) -> bool:
    return len(set(re.findall(r"\.reg \.f32 \s*(acc\d+)_", made.ptx))) == 1


def test_accumulators_in_flight_pass_through_branches_in_their_registers():
    """The branches exclude each other: neither copies what the other still reads, nor waits."""
    @tile.jit(num_warps=4)
    def kernel(A, B, C, n):
        a, b = started(A, B)
        acc = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        if n > 3:
            acc = tile.mma_async(acc, a, b, trans_b=True)
            tile.mma_commit()
        for i in range(n):
            if i % 2 == 0:
                acc = tile.mma_async(acc, a, b, trans_b=True)
            elif i == 3:
                for j in range(2):
                    if j == 1:
                        acc = tile.mma_async(acc, a, b, trans_b=True)
                        tile.mma_commit()
            else:
                kept = acc
                acc = tile.mma_async(kept, a, b, trans_b=True, negate=True)
            tile.mma_commit()
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
    c = np.zeros((64, 64), np.float32)
    for n, sums in ((0, 1), (1, 2), (2, 1), (4, 4), (6, 4)):
        kernel.simulate(1, A, B, c, n).raise_first()
        np.testing.assert_allclose(c, sums * PRODUCT, rtol=1e-5, atol=1e-4)
    made = kernel.compile(A, B, c, 4)
    assert one_set(made) and made.ptx.count("mov.f32") == 32 and made.spills == 0, "one copy: of the result, to be stored"


def test_accumulators_of_a_branch_that_are_also_read_after_it_keep_their_registers():
    @tile.jit(num_warps=4)
    def kernel(A, B, C, n):
        a, b = started(A, B)
        acc = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
        more = acc
        if n > 3:
            more = tile.mma_async(acc, a, b, trans_b=True)
            tile.mma_commit()
            tile.mma_wait(0)
        tile.store(C[0:64, 0:64], more - acc)
    c = np.zeros((64, 64), np.float32)
    for n in (3, 4):
        kernel.simulate(1, A, B, c, n).raise_first()
        np.testing.assert_allclose(c, (n - 3) * PRODUCT, rtol=1e-5, atol=1e-4)
    assert not one_set(kernel.compile(A, B, c, 4))


@pytest.mark.parametrize("other", ["acc = acc + 1.0", "pass"])
@pytest.mark.parametrize("first", [False, True])
def test_a_result_is_awaited_in_its_branch_if_the_other_branch_writes_its_registers(other, first):
    """The assembler would take the write for one to a product in flight. The inserted wait causes a warning."""
    ways = "acc = tile.mma_async(acc, a, b)"
    text = lambda wait: ['a = tile.alloc((64, 64), "float16", layout=tile.auto)', 'b = tile.alloc((64, 64), "float16", layout=tile.auto)',
                         "acc = tile.zeros((64, 64))", "if x.shape[0] > 3:", f"    {other if first else ways}", "    tile.mma_commit()", *wait,
                         "else:", f"    {ways if first else other}", "    tile.mma_commit()", *wait, "tile.mma_wait(0)", "tile.store(x[0:64, 0:64], acc)"]
    kernel = lambda wait: tile.jit(source="def k(x):\n" + "".join(f"    {line}\n" for line in text(wait)))
    with pytest.warns(tile.TileWarning, match="all products in flight are waited for where one path of this branch ends"):
        made = kernel([]).compile(tile.ArraySpec((64, 64), "float32"))
    assert "<source>:5:5" in made.warnings[0] and made.spills == 0
    by_hand = kernel(["    tile.mma_wait(0)"]).compile(tile.ArraySpec((64, 64), "float32"))
    assert by_hand.graph.count("mma_wait") == made.graph.count("mma_wait") == 3 and not by_hand.warnings and by_hand.spills == 0


COPIES = {
    "traded in a loop": ("""q = tile.mma_async(None, a, b)
for i in range(3):
    t = tile.mma_async(acc, a, b)
    tile.mma_commit()
    acc, q = q, t""", "the loop at line 7 passes it to its next iteration as acc", 6),
    "read a trip later": ("""old = tile.zeros((64, 64))
for i in range(3):
    old = acc
    acc = tile.mma_async(None, a, b)
    tile.mma_commit()
    tile.mma_wait(1)
    tile.store(x[0:64, 0:64], old)""", "the loop at line 7 passes it to its next iteration as acc", 9),
    "under two names": ("""q = tile.zeros((64, 64))
if x.shape[0] > 3:
    q = acc
tile.mma_wait(0)
tile.store(x[0:64, 0:64], acc + q)""", "the branch at line 7 passes it on as q", 4),
    "added to and read": ("""p = acc
acc = tile.mma_async(p, a, b)
tile.mma_commit()
tile.mma_wait(0)
tile.store(x[0:64, 0:64], acc + p)""", "this product adds to it", 7),
}


@pytest.mark.parametrize("name", COPIES)
def test_the_error_for_copying_a_pending_result_says_where_the_copy_comes_from(name):
    lines, where, line = COPIES[name]
    text = ['a = tile.alloc((64, 64), "float16", layout=tile.auto)', 'b = tile.alloc((64, 64), "float16", layout=tile.auto)',
            "acc = tile.mma_async(None, a, b)", "tile.mma_commit()", *lines.split("\n"), "tile.mma_commit()", "tile.mma_wait(0)"]
    kernel = tile.jit(source="def wrong(x):\n" + "".join(f"    {x}\n" for x in text))
    with pytest.raises(CompilationError, match=f"is copied before it is complete: {where}, in other registers, since its own are still needed") as caught:
        kernel.compile(tile.ArraySpec((64, 64), "float32"))
    assert caught.value.loc.line == line


def test_products_may_stay_in_flight_across_iterations():
    """One group stays pending from iteration to iteration; the accumulator is read after the loop."""
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        acc = tile.zeros((64, 64))
        for i in range(3):
            acc = tile.mma_async(acc, a, b, trans_b=True)
            tile.mma_commit()
            tile.mma_wait(1)
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
    c = np.zeros((64, 64), np.float32)
    kernel.simulate(1, A, B, c).raise_first()
    np.testing.assert_allclose(c, 3 * PRODUCT, rtol=1e-5, atol=1e-4)
    compiled = kernel.compile(A, B, c)
    assert compiled.ptx.count(".reg .f32 \tacc") + compiled.ptx.count(".reg .f32 acc") == 1


@tile.jit(num_warps=4)
def ahead(A, B, C, n):
    a, b = started(A, B)
    total = tile.zeros((64, 64))
    s = tile.mma_async(None, a, b, trans_b=True)
    tile.mma_commit()
    for i in range(n):
        tile.mma_wait(0)
        total = total + s * (i + 1)
        s = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
    tile.mma_wait(0)
    tile.store(C[0:64, 0:64], total + s)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_a_product_pending_at_the_start_of_a_loop_is_awaited_in_its_iterations(n):
    """The next product is in flight across the end of each iteration; one register set, and no copy of a pending result."""
    c = np.zeros((64, 64), np.float32)
    ahead.simulate(1, A, B, c, n).raise_first()
    np.testing.assert_allclose(c, (n * (n + 1) // 2 + 1) * PRODUCT, rtol=1e-5, atol=1e-3)
    compiled = ahead.compile(A, B, c, n)
    assert compiled.spills == 0 and compiled.ptx.count(".reg .f32 acc") == 1


def test_two_products_that_alternate_across_the_iterations_of_a_loop_are_refused():
    """If both are pending at once, the end of an iteration would have to copy a pending one."""
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        total, s = tile.zeros((64, 64)), tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        for i in range(3):
            t = tile.mma_async(None, a, b, trans_b=True)
            tile.mma_commit()
            tile.mma_wait(1)
            total = total + s
            s = t
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], total + s)
    refused(kernel, "is copied before it is complete: the loop at line [0-9]+ passes it to its next iteration as s")


@pytest.mark.parametrize("dtype,sums", [(BF16, tile.float32), (np.float16, tile.float16)])
def test_an_accumulator_may_be_scaled_in_each_iteration(dtype, sums):
    """The values computed by threads between products go back to the same registers."""
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        acc = tile.zeros((64, 64), sums)
        for i in range(4):
            acc = tile.mma_async(acc * 0.5, a, b, trans_b=True)
            tile.mma_commit()
            tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
    a, b, c = A.astype(dtype), B.astype(dtype), np.zeros((64, 64), sums.np)
    kernel.simulate(1, a, b, c).raise_first()
    near = dict(rtol=1e-5, atol=1e-4) if sums == tile.float32 else dict(rtol=2e-3, atol=0.1)
    np.testing.assert_allclose(c.astype(np.float32), 1.875 * PRODUCT, **near)
    compiled = kernel.compile(a, b, c)
    assert compiled.spills == 0 and compiled.ptx.count(f".reg .{'f32' if sums == tile.float32 else 'b32'} acc") == 1


def test_an_accumulator_that_is_still_needed_is_copied():
    """If the accumulator operand is used after the product, the result has its own registers."""
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        one = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
        two = tile.mma_async(one, a, b, trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], one * 10.0 + two)
    c = np.zeros((64, 64), np.float32)
    kernel.simulate(1, A, B, c).raise_first()
    np.testing.assert_allclose(c, 12 * PRODUCT, rtol=1e-5, atol=1e-3)
    assert kernel.compile(A, B, c).ptx.count(".reg .f32 acc") == 2


def test_successive_products_share_registers():
    """If the first result is dead before the second begins; otherwise each has its own."""
    def kernel(used_up: bool):
        @tile.jit(num_warps=4)
        def kernel(A, B, C):
            a, b = started(A, B)
            one = tile.mma_async(None, a, b, trans_b=True)
            tile.mma_commit()
            tile.mma_wait(0)
            if used_up:
                total = one * 3.0
            two = tile.mma_async(None, a, b, trans_b=True)
            tile.mma_commit()
            tile.mma_wait(0)
            if not used_up:
                total = one * 3.0
            tile.store(C[0:64, 0:64], total + two)
        return kernel
    for used_up in (True, False):
        c = np.zeros((64, 64), np.float32)
        kernel(used_up).simulate(1, A, B, c).raise_first()
        np.testing.assert_allclose(c, 4 * PRODUCT, rtol=1e-5, atol=1e-3)
        assert kernel(used_up).compile(A, B, c).ptx.count(".reg .f32 acc") == (1 if used_up else 2)


def test_operand_a_may_be_in_registers():
    """An accumulator converted in place, without a layout conversion."""
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        acc = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
        again = tile.mma_async(None, tile.cast(acc, tile.bfloat16), b)
        tile.mma_commit()
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], again)
    c = np.zeros((64, 64), np.float32)
    kernel.simulate(1, A, B, c).raise_first()
    np.testing.assert_allclose(c, PRODUCT.astype(BF16).astype(np.float32) @ B.astype(np.float32), rtol=1e-4, atol=1e-2)
    compiled = kernel.compile(A, B, c)
    assert "convert_layout" not in compiled.graph and compiled.spills == 0


def test_register_operands_of_a_loop_are_converted_before_it():
    """So that a product that reads them may be pending across iterations, and no iteration converts a layout."""
    @tile.jit(num_warps=4)
    def kernel(A, B, C, n):
        a, b = started(A, B)
        held = tile.load(a)
        acc = tile.zeros((64, 64))
        for i in range(n):
            acc = tile.mma_async(acc, held, b, trans_b=True)
            tile.mma_commit()
            tile.mma_wait(1)
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
    c = np.zeros((64, 64), np.float32)
    kernel.simulate(1, A, B, c, 3).raise_first()
    np.testing.assert_allclose(c, 3 * PRODUCT, rtol=1e-5, atol=1e-4)
    graph = kernel.compile(A, B, c, 3).graph
    assert "convert_layout" not in graph[graph.index("  for "):]


def test_registers_that_a_product_reads_cannot_be_written():
    """The left operand of the next iteration would be computed into registers that this iteration's product still reads."""
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        acc = tile.zeros((64, 64))
        for i in range(3):
            left = tile.cast(tile.full((64, 64), 1.0) * i, tile.bfloat16)
            acc = tile.mma_async(acc, left, b)
            tile.mma_commit()
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
    refused(kernel, "may still read")


def test_operands_in_memory_may_be_written_after_the_wait():
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        acc = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        tile.copy(a, B[0:64, 0:64])
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
    report = kernel.simulate(1, A, B, np.zeros((64, 64), np.float32))
    assert [f.kind for f in report.findings] == ["missing-wait"]


def test_generic_writes_need_the_proxy_fence():
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = filled(A), filled(B)
        tile.sync()
        acc = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
    with pytest.raises(SimulationError, match="proxy"):
        kernel[1](A, B, np.zeros((64, 64), np.float32))


def test_operands_that_no_descriptor_expresses_are_refused():
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = tile.alloc((64, 64), A.dtype), filled(B)
        acc = tile.mma_async(None, a, b, trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
    refused(kernel, "a layout that a matrix descriptor names: a: its elements are neither", DispatchError)


def test_shapes_and_targets_without_wgmma_are_refused():
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        acc = tile.mma_async(None, a[0:64, 0:64], b[0:60, 0:64], trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
        tile.store(C[0:64, 0:60], acc)
    refused(kernel, "there is no m64n60k16 of bfloat16", DispatchError)
    with pytest.raises(DispatchError, match="sm_90a"):
        kernel.compile(A, B, np.zeros((64, 64), np.float32), target="sm_100a")


def test_operands_that_do_not_match_are_refused():
    @tile.jit(num_warps=4)
    def kernel(A, B, C):
        a, b = started(A, B)
        acc = tile.mma_async(None, a[0:64, 0:32], b, trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
    refused(kernel, "their k differ")
