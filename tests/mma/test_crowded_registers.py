"""Warpgroup products whose operand `a` would go from shared memory to registers, but does not fit next to the accumulator."""

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu, needs_module
from tests.mma.test_wgmma_code import groups

pytestmark = pytest.mark.usefixtures("assembled_later")


@tile.jit
def product(A, B, C, M: tile.constexpr, N: tile.constexpr, K: tile.constexpr):
    a, b = tile.alloc((M, K), A.dtype, layout=tile.auto), tile.alloc((K, N), B.dtype, layout=tile.auto)
    tile.copy(a, A[0:M, 0:K])
    tile.copy(b, B[0:K, 0:N])
    tile.sync()
    tile.store(C[0:M, 0:N], tile.dot(tile.load(a) * 2, b))


@tile.jit(num_warps=12)
def by_roles(A, B, C, REGS: tile.constexpr):
    """A producer that releases registers, and one scope of two consumers."""
    a, b = tile.alloc((256, 64), A.dtype, layout=tile.auto), tile.alloc((64, 128), B.dtype, layout=tile.auto)
    tile.copy(a, A[0:256, 0:64])
    tile.copy(b, B[0:64, 0:128])
    tile.fence_proxy_async()
    tile.sync()
    with tile.warpgroup(0, regs=24 if REGS else None):
        pass
    with tile.warpgroup(range(1, 3), regs=REGS):
        tile.store(C[0:256, 0:128], tile.dot(tile.load(a) * 2, b))


def operands(m, n, k):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-2, 3, (m, k)).astype(np.float16), rng.integers(-2, 3, (k, n)).astype(np.float16)
    return a, b, np.zeros((m, n), np.float32), 2 * a.astype(np.float64) @ b.astype(np.float64)


def check(kernel, m, n, k, crowded, **options):
    """Checks the simulator's result and assembles without advisories; returns whether `a` is read from shared memory."""
    a, b, c, expected = operands(m, n, k)
    kernel.simulate(1, a, b, c, **options).raise_first()
    np.testing.assert_array_equal(c, expected)
    products = [w for group in groups(kernel.compile(a, b, c, target="sm_90a", **options).ptx) for w in group]
    assert products and all((w.a is not None) == crowded for w in products)


SHAPES = [(128, 128, 192, 4, False), (128, 128, 208, 4, True), (128, 128, 256, 4, True),
          (384, 64, 128, 12, False), (384, 128, 32, 12, True), (512, 64, 64, 16, False), (512, 64, 96, 16, True)]


@pytest.mark.parametrize("m,n,k,warps,crowded", SHAPES)
def test_operand_a_is_read_from_shared_memory_if_registers_cannot_hold_it_next_to_the_accumulator(m, n, k, warps, crowded):
    """Otherwise the assembler would serialise the products, and the kernel would be refused."""
    check(product, m, n, k, crowded, M=m, N=n, K=k, num_warps=warps)


@pytest.mark.parametrize("regs", [None, 232])
def test_registers_requested_by_a_scope_are_taken_into_account(regs):
    """With 12 warps each thread starts with 168, too few for a 128-register accumulator and 32 words of a; with 232, a stays in
    registers."""
    check(by_roles, 256, 128, 64, regs is None, REGS=regs)


@needs_module("torch")
@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_products_with_operand_a_in_registers_or_without_room_for_it_are_right_on_the_gpu():
    import torch
    cases = [(product, (m, n, k), dict(M=m, N=n, K=k, num_warps=warps)) for m, n, k, warps, _ in SHAPES]
    for kernel, extents, options in (*cases, *((by_roles, (256, 128, 64), dict(REGS=regs)) for regs in (None, 232))):
        *arrays, expected = operands(*extents)
        a, b, c = (torch.from_numpy(x).cuda() for x in arrays)
        kernel[1](a, b, c, **options)
        np.testing.assert_array_equal(c.cpu().numpy(), expected, err_msg=str((extents, options)))
