"""Bulk copies and copies to a peer on the GPU, against NumPy."""

import numpy as np
import pytest
import tilejit as tile
from tests.gpu import in_child, needs_gpu

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


def _cases():
    import sys
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parent))
    import test_bulk_copies as cases
    return cases


@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_contiguous_bytes_go_there_and_back_on_the_gpu():
    cases, rng = _cases(), np.random.default_rng(0)
    for dtype in ("bool", "int8", "float16", "int32", "float64"):
        a = (rng.random(4096) * 100).astype(dtype)
        b = np.zeros_like(a)
        cases.through[1,](a, b, N=4096, VARIANT="bulk", backend="cuda")
        assert (a == b).all(), dtype


@needs_gpu(*HOPPER)
@in_child(timeout=120)
@pytest.mark.parametrize("mask", [0b0001, 0b0010, 0b1011, 0b1111])
def test_a_multicast_reaches_the_ranks_of_its_mask_on_the_gpu(mask):
    a, b = np.random.default_rng(1).standard_normal(1024).astype(np.float32), np.ones((4, 1024), np.float32)
    _cases().broadcast[4,](a, b, MASK=mask, backend="cuda")
    for rank in range(4):
        assert (b[rank] == (a if mask >> rank & 1 else 0)).all(), rank


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_reductions_combine_with_what_is_in_global_memory_on_the_gpu():
    cases, rng = _cases(), np.random.default_rng(2)
    for kind, dtypes in cases.GLOBAL.items():
        for dtype in dtypes:
            a = rng.integers(0, 50, (4, 64)).astype(tile.types.dtype_of(dtype).np)
            b = rng.integers(0, 50, 64).astype(a.dtype)
            if kind in ("inc", "dec"):
                a[:] = 20
            want = cases.combined(kind, a, b.copy())
            cases.reduced[4,](a, b, N=64, KIND=kind, backend="cuda")
            assert (b == want).all(), (kind, dtype)


@needs_gpu(*HOPPER)
@in_child(timeout=120)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_every_cta_of_a_cluster_hands_its_tile_to_the_next_on_the_gpu(ranks):
    a = np.random.default_rng(3).standard_normal((2 * ranks, 8, 64)).astype(np.float16)
    b = np.zeros_like(a)
    _cases().hand_on(ranks)[2 * ranks,](a, b, backend="cuda")
    want = a.reshape(2, ranks, 8, 64)[:, [(r - 1) % ranks for r in range(ranks)]].reshape(a.shape)
    assert (b == want).all()


@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_reductions_combine_with_what_is_in_a_peer_s_memory_on_the_gpu():
    cases, rng = _cases(), np.random.default_rng(4)
    for kind, dtype in (("add", "int32"), ("add", "uint32"), ("max", "int32"), ("min", "uint32"), ("xor", "uint32"), ("inc", "uint32")):
        a = rng.integers(0, 50, (2, 64)).astype(dtype)
        if kind == "inc":
            a[1] = a[0]
        b = rng.integers(0, 50, 64).astype(dtype)
        c = np.zeros_like(b)
        cases.summed[3,](a, b, c, KIND=kind, backend="cuda")
        assert (c == cases.combined(kind, a, b.copy())).all(), (kind, dtype)


@needs_gpu()
@in_child(timeout=120)
def test_a_prefetch_changes_nothing_on_the_gpu():
    a = np.arange(8 * 256, dtype=np.float32).reshape(8, 256)
    b = np.zeros_like(a)
    _cases().fetched[1,](a, b, N=256, backend="cuda")
    assert (b[:4] == a[:4]).all()
