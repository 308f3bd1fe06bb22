"""Rows selected by index on the GPU, copied by cp.async, compared with NumPy."""

import numpy as np
import pytest

from tests.gpu import in_child, needs_gpu


def _cases():
    import sys
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parent))
    import test_gathered_rows as cases
    return cases


@needs_gpu()
@in_child(timeout=180)
@pytest.mark.parametrize("n, c, columns, unit", [(64, 64, 80, 8), (20, 72, 80, 8), (33, 64, 70, 2), (130, 8, 80, 8), (5, 512, 512, 8)])
def test_threads_copy_the_rows_that_an_index_tile_selects_on_the_gpu(n, c, columns, unit):
    """Rows outside the matrix are zero, however far outside."""
    rng = np.random.default_rng(n)
    a, b = rng.integers(-8, 8, (40, columns)).astype(np.float16), np.ones((n, c), np.float16)
    rows = rng.integers(-2, 43, n).astype(np.int32)
    rows[:4] = -(1 << 31), (1 << 31) - 1, 0, 39
    for form in ("tile", "array", "shared"):
        b[:] = 1
        _cases().taken[1,](a, rows, b, 0, N=n, C=c, UNIT=unit, FORM=form, backend="cuda")
        want = np.zeros_like(b)
        inside = (rows >= 0) & (rows < 40)
        want[inside, :min(c, columns)] = a[rows[inside], :c]
        assert (b == want).all(), form


@needs_gpu()
@in_child(timeout=240)
@pytest.mark.parametrize("specialize", [False, True])
def test_a_mixture_of_experts_product_gathers_its_tokens_on_the_gpu(specialize):
    arrays, want = _cases().routed([300, 0, 5, 128], 500, 1000, 200)
    _cases().experts[4, 2, 4](*arrays, BM=128, BN=64, BK=64, STAGES=4, SPECIALIZE=specialize, backend="cuda")
    assert (arrays[-1] == want).all()
