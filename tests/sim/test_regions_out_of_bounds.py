"""Engines access a region of shared or tensor memory from its first byte: regions that exceed their buffer are found, in any dimension."""

import numpy as np
import pytest
import tilejit as tile

from tests.mma.products import multiplying_on

MATRICES = """
s, own = tile.alloc((128, 64), A.dtype, layout=tile.swizzled(A.dtype, (128, 64), 128)), tile.alloc((64, 64), A.dtype, layout=tile.auto)
tile.copy(s, A[0:128, 0:64])
tile.copy(own, A[0:64, 0:64])
tile.sync()
"""
SHARED = """
s, bar = tile.alloc((2, 64, 64), A.dtype), tile.mbarrier()
"""
TENSOR = """
own, bar = tile.alloc((128, 64), A.dtype, layout=tile.auto), tile.mbarrier()
acc, more = tile.alloc((128, 64), "float32", scope="tmem"), tile.alloc((128, 64), "float32", scope="tmem")
tile.copy(own, A[0:128, 0:64])
tile.fence_proxy_async()
tile.sync()
"""


def messages(before: str, text: str, target: str = "sm_90a") -> list[str]:
    """The texts of the out-of-bounds findings, all at the lines of `text`, in a kernel in which n is 2."""
    lines = [*before.strip().splitlines(), *text.strip().splitlines()]
    kernel = tile.jit(source="def kernel(A, C, n):\n" + "".join(f"    {line}\n" for line in lines))
    with multiplying_on(target):
        report = kernel.simulate((1,), np.ones((128, 64), np.float16), np.ones((128, 64), np.float32), 2)
    outside = [f for f in report.findings if f.kind == "out-of-bounds"]
    assert all(f.line > 1 + len(before.strip().splitlines()) for f in outside)
    return [f.message for f in outside]


@pytest.mark.parametrize("operands, element, shape", [
    ("s[n * 64:n * 64 + 64, :], own", [128, 0], [128, 64]),  # the memory beyond holds another buffer,
    ("own, s[n * 64:n * 64 + 64, :]", [128, 0], [128, 64]),
    ("tile.load(own), s[n * 64 - 32:n * 64 + 32, :]", [128, 0], [128, 64]),
    ("own[:, n * 32:n * 32 + 16], s[0:64, 0:16]", [0, 64], [64, 64]),  # or, along k, rows of the same one,
    ("s[(1 - n) * 64:(1 - n) * 64 + 64, :], own", [-64, 0], [128, 64]),  # or nothing
])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_an_operand_of_a_product_that_exceeds_its_buffer_is_found(operands, element, shape, target):
    assert messages(MATRICES, f"tile.store(C[0:64, 0:64], tile.dot({operands}, trans_b=True))", target) == [
        f"element {element} is outside of the shared buffer of shape {shape}"]


@pytest.mark.parametrize("text", ["""
with tile.elect():
    bar.arrive_expect_tx(4096)
    tile.copy_async(s[0, n * 32:n * 32 + 32], A[0:32, 0:64], mbar=bar, variant="tma")
""", """
with tile.elect():
    bar.arrive_expect_tx(64)
    tile.copy_async(s[0, n * 32, 0:32], A[0, 0:32], mbar=bar, variant="bulk")
""", """
with tile.elect():
    tile.copy_async(A[0:32, 0:64], s[0, n * 32:n * 32 + 32], variant="tma")
    tile.bulk_commit()
    tile.bulk_wait(0)
""",
    'tile.copy_async(s[0, n * 32:n * 32 + 32], A[0:32, 0:64], variant="ldgsts").wait()',
    'tile.copy_async(s[0, n * 32:n * 32 + 32], A.take(tile.arange(32))[..., 0:64], variant="ldgsts").wait()',
])
def test_a_copy_that_exceeds_its_slice_of_a_buffer_is_found(text):
    """Although the bytes belong to the same buffer."""
    assert messages(SHARED, text) == ["element [0, 64, 0] is outside of the shared buffer of shape [2, 64, 64]"]


@pytest.mark.parametrize("text", [
    "tile.store(C[0:128, 0:32], tile.load(acc[:, n * 32:n * 32 + 32]))",
    "tile.store(acc[:, n * 32:n * 32 + 32], tile.zeros((128, 32)))",
    """
with tile.elect():
    tile.mma_async(acc[:, n * 32:n * 32 + 32], own, own[0:32, :], trans_b=True, accumulate=False)
    tile.tcgen05_commit(bar)
bar.wait(phase=0)
"""])
def test_a_slice_of_tensor_memory_that_exceeds_its_buffer_is_found(text):
    """The columns beyond belong to another buffer."""
    assert messages(TENSOR, text, "sm_100a") == ["element [0, 64] is outside of the tmem buffer of shape [128, 64]"]
