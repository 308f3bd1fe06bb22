"""Bulk copies and copies to a peer on the GPU, compared with NumPy."""

import numpy as np
import pytest

from tests.gpu import in_child, needs_gpu

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


def _kernels(name="bulk_kernels"):
    import importlib
    import sys
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parent))
    return importlib.import_module(name)


@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_contiguous_bytes_are_copied_in_and_out_on_the_gpu():
    kernels = _kernels()
    for dtype in kernels.WHOLE:
        a = kernels.any_bits(dtype, (4096,))
        b = np.zeros_like(a)
        kernels.through[1,](a, b, N=4096, VARIANT="bulk", backend="cuda")
        assert a.tobytes() == b.tobytes(), dtype


@needs_gpu(*HOPPER)
@in_child(timeout=120)
@pytest.mark.parametrize("mask", [0b0001, 0b0010, 0b1011, 0b1111])
def test_a_multicast_reaches_the_ranks_of_its_mask_on_the_gpu(mask):
    a, b = np.random.default_rng(1).standard_normal(1024).astype(np.float32), np.ones((4, 1024), np.float32)
    _kernels().broadcast[4,](a, b, MASK=mask, backend="cuda")
    for rank in range(4):
        assert (b[rank] == (a if mask >> rank & 1 else 0)).all(), rank


@needs_gpu(*HOPPER)
@in_child(timeout=240)
@pytest.mark.parametrize("place", ["global", "shared"])
def test_every_reduction_combines_with_the_destination_on_the_gpu(place):
    kernels = _kernels()
    for where, kind, dtype, _ in kernels.REDUCTIONS:
        if where != place:
            continue
        a, b, want = kernels.reduction_case(kind, dtype, 4 if place == "global" else 2)
        if place == "global":
            got = b
            kernels.reduced[4,](a, b, N=64, KIND=kind, backend="cuda")
        else:
            got = np.zeros_like(b)
            kernels.summed[3,](a, b, got, KIND=kind, backend="cuda")
        assert (got == want).all(), (kind, dtype)


@needs_gpu(*HOPPER)
@in_child(timeout=120)
@pytest.mark.parametrize("ranks", range(2, 9))
def test_every_cta_of_a_cluster_passes_its_tile_to_the_next_on_the_gpu(ranks):
    a = np.random.default_rng(3).standard_normal((2 * ranks, 8, 64)).astype(np.float16)
    b = np.zeros_like(a)
    _kernels().hand_on(ranks)[2 * ranks,](a, b, backend="cuda")
    want = a.reshape(2, ranks, 8, 64)[:, [(r - 1) % ranks for r in range(ranks)]].reshape(a.shape)
    assert (b == want).all()


@needs_gpu()
@in_child(timeout=120)
def test_a_prefetch_changes_no_data_on_the_gpu():
    a = np.arange(8 * 256, dtype=np.float32).reshape(8, 256)
    b = np.zeros_like(a)
    _kernels().fetched[1,](a, b, N=256, backend="cuda")
    assert (b[:4] == a[:4]).all()


@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_a_runtime_size_moves_exactly_its_bytes_on_the_gpu():
    sizes = _kernels("bulk_size_kernels")
    for n in (0, 16, 48, 240, 256):
        for kernel, grid, more in ((sizes.loaded, 1, (n,)), (sizes.to_peer, 2, (n,)), (sizes.stored, 1, ())):
            b = np.ones(64, np.float32)
            kernel[grid,](sizes.A, b, n, *more, backend="cuda")
            assert (b == sizes.over_ones(n)).all(), (kernel, n)


@needs_gpu(*HOPPER)
@in_child(timeout=120)
@pytest.mark.parametrize("early", [False, True])
def test_copies_of_one_phase_may_transfer_as_many_bytes_as_a_barrier_counts_on_the_gpu(early):
    sizes = _kernels("bulk_size_kernels")
    for alone in (0, sizes.LIMIT % 16):
        b = np.zeros(sizes.WORDS, np.uint32)
        sizes.counted[2,](b, N=sizes.COPIES, MORE=sizes.REST, ALONE=alone, EARLY=early, backend="cuda")
        assert (b == sizes.totals(sizes.COPIES, sizes.REST)).all(), alone
