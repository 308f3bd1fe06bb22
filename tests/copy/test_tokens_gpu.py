"""Completion tokens on the GPU, compared with NumPy."""

import numpy as np
import pytest

from tests.cases import on_gpu
from tests.gpu import in_child, needs_gpu


def _cases():
    import sys
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parent))
    import test_tokens as cases
    return cases


@needs_gpu()
@in_child(timeout=120)
def test_one_source_stages_a_tile_on_the_gpu():
    a = np.random.default_rng(0).standard_normal((128, 32)).astype(np.float16)
    b = np.zeros_like(a)
    _cases().stage_any[1,](a, b, backend="cuda")
    assert (a == b).all()


@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=180)
@pytest.mark.parametrize("path", ["ldgsts", "tma"])
def test_tokens_in_loops_branches_and_scopes_are_right_on_the_gpu(path):
    cases, rng = _cases(), np.random.default_rng(1)
    a = rng.standard_normal((64 * 128, 32)).astype(np.float16)
    for kernel in (cases.pipelined, cases.elected):
        b = np.zeros_like(a)
        kernel[1,](a, b, PATH=path, backend="cuda")
        assert (a == b).all(), kernel
    a, b = a[:512].copy(), np.zeros((512, 32), np.float16)
    cases.in_branches[1,](a, b, 2, PATH=path, backend="cuda")
    rows = a.reshape(4, 128, 32)
    assert (b.reshape(4, 128, 32) == np.stack([rows[0] + rows[0], rows[0] + rows[1], rows[1] + rows[0], rows[1] + rows[0]])).all()


@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=180)
@pytest.mark.parametrize("path", ["ldgsts", "tma", "bulk"])
def test_loads_and_stores_complete_by_their_tokens_on_the_gpu(path):
    cases = _cases()
    a = np.random.default_rng(2).standard_normal((128, 32)).astype(np.float16)
    b = np.zeros_like(a)
    cases.both_ways[1,](a, b, PATH=path, backend="cuda")
    assert (b == a * 2).all()
    cases.reused[1,](a, b, backend="cuda")
    assert (b == a).all()


@needs_gpu("sm_90a", "sm_100a", "sm_103a")
@in_child(timeout=180)
def test_multicasts_complete_by_their_tokens_on_the_gpu():
    import sys
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parent))
    import multicast_token_kernels as kernels
    on_gpu(kernels.every_together())
    a, b = np.random.default_rng(1).integers(0, 99, (3, 2, 32, 64)).astype("float16"), np.zeros((3, 64, 32, 64), "float16")
    kernels.loaded_for_rows[64,](a, b, backend="cuda")
    assert all((b[:, c] == a[:, c % 4 // 2]).all() for c in range(64))
    a = np.random.default_rng(2).integers(1, 99, (64, 64)).astype("float16")
    for mask in range(16):
        b = np.ones((4, 64, 64), "float16")
        kernels.loaded_for_mask[4,](a, b, mask, backend="cuda")
        assert all((b[r] == (a if mask >> r & 1 else 0)).all() for r in range(4)), mask
    a, b = np.random.default_rng(3).integers(0, 9, (500, 16, 64)).astype("float32"), np.zeros((128, 16, 64), "float32")
    kernels.in_turns[128,](a, b, 500, backend="cuda")
    assert (b == a.sum(0)).all()


@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=120)
def test_each_of_several_warpgroups_waits_for_its_own_copies_on_the_gpu():
    cases = _cases()
    a = np.random.default_rng(3).standard_normal((4800, 64)).astype(np.float16)
    for path in ("ldgsts", "tma"):
        for _ in range(5):
            b = np.zeros_like(a)
            cases.ahead_in_each_warpgroup[1,](a, b, 50, PATH=path, backend="cuda")
            assert (a == b).all(), path
