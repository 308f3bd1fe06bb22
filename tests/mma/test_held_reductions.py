"""A reduction between the waits for two products stays under the second: ptxas moves arithmetic behind waits, but not out of basic blocks."""

import numpy as np
import pytest
import tilejit as tile

TWO_PRODUCTS = """def kernel(A, B, C):
    a, b = tile.alloc((64, 16), A.dtype, layout=tile.auto), tile.alloc((16, 16), B.dtype, layout=tile.auto)
    tile.copy(a, A[0:64, 0:16])
    tile.copy(b, B[0:16, 0:16])
    tile.fence_proxy_async()
    tile.sync()
    p = tile.mma_async(None, a, b)
    tile.mma_commit()
    q = tile.mma_async(None, a, b)
    tile.mma_commit()
"""
TWICE = ["tile.mma_wait(1)", "m = tile.max(p, axis=1)[:, None]", "p = p - m", "n = tile.sum(p, axis=1)[:, None]", "tile.mma_wait(0)",
         "tile.store(C[0:64, 0:16], p + n + q)"]
AFTER = ["tile.mma_wait(0)", "m = tile.max(p, axis=1)[:, None]", "tile.store(C[0:64, 0:16], p - m + q)"]
COLUMNS = ["tile.mma_wait(1)", "p = p * 2.0", "tile.mma_wait(0)", "tile.store(C[0:64, 0:16], p + q)"]
WITHOUT = ["tile.mma_wait(1)", "m = tile.max(p, axis=1)[:, None]", "tile.store(C[0:64, 0:16], p - m)", "tile.mma_wait(0)"]


@pytest.mark.parametrize("lines, ends", [(TWICE, 1), (WITHOUT, 1), (AFTER, 0), (COLUMNS, 0)], ids=["twice", "stored", "after", "no_lanes"])
def test_a_basic_block_ends_behind_the_first_reduction_between_two_waits(lines, ends, assembled_later):
    kernel = tile.jit(source=TWO_PRODUCTS + "".join(f"    {line}\n" for line in lines), num_warps=4)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((64, 16), (16, 16)))
    c = np.zeros((64, 16), np.float32)
    made = kernel.compile(a, b, c, target="sm_90a")
    text = made.ptx
    assert text.count("nanosleep") == str(made.graph).count("basic_block_end") == ends
    if ends:
        first, second = (text.index(f"wgmma.wait_group.sync.aligned {n};") for n in (1, 0))
        assert first < text.index("nanosleep") < second and text[first:text.index("nanosleep")].count("shfl.sync.bfly") == 4
    kernel[1](a, b, c)
    s = a.astype(np.float32) @ b.astype(np.float32)
    less = s - s.max(1, keepdims=True)
    expected = {id(TWICE): less + less.sum(1, keepdims=True) + s, id(AFTER): less + s, id(COLUMNS): 3 * s, id(WITHOUT): less}[id(lines)]
    np.testing.assert_allclose(c, expected)
