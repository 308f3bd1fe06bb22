"""Other forms of TMA copies on the GPU, compared with NumPy."""

import numpy as np
import pytest

from tests.gpu import in_child, needs_gpu, needs_module

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
CLUSTERED = ("sm_90a", "sm_100a", "sm_103a")


def _kernels():
    import sys
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parent))
    import tma_kernels
    return tma_kernels


@needs_gpu(*CLUSTERED)
@in_child(timeout=120)
@pytest.mark.parametrize("ranks, sender", [(2, 1), (3, 0), (8, 5), (16, 9)])
def test_a_multicast_reaches_the_ctas_of_its_mask_on_the_gpu(ranks, sender):
    kernels = _kernels()
    a = kernels.numbers((32, 64), "float16")
    for mask in (1, 2, 1 << (ranks - 1), (1 << ranks) - 1, 0x5a5a5a & ((1 << ranks) - 1)):
        b = np.ones((2 * ranks, 32, 64), np.float16)
        kernels.multicast[2 * ranks,](a, b, mask, R=ranks, SENDER=sender, cluster=(ranks, 1, 1), backend="cuda")
        for cta in range(2 * ranks):
            assert (b[cta] == (a if mask >> cta % ranks & 1 else 0)).all(), (mask, cta)


@needs_gpu(*CLUSTERED)
@in_child(timeout=120)
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_a_multicast_ring_advances_in_all_ctas_of_a_cluster_together_on_the_gpu(ranks):
    kernels = _kernels()
    a = kernels.numbers((64, 64 * 50), "float16")
    b = np.zeros((2 * ranks, *a.shape), np.float16)
    kernels.multicast_ring[2 * ranks,](a, b, R=ranks, cluster=(ranks, 1, 1), backend="cuda")
    assert (b == a).all()


@needs_gpu(*CLUSTERED)
@in_child(timeout=60)
def test_a_load_into_a_peer_s_memory_completes_on_its_barrier_on_the_gpu():
    kernels = _kernels()
    a = kernels.numbers((32, 64), "float16")
    b = np.zeros_like(a)
    kernels.to_a_peer[2,](a, b, backend="cuda")
    assert (b == a.reshape(2, 16, 64)[::-1].reshape(32, 64)).all()


@needs_gpu(*HOPPER)
@in_child(timeout=60)
def test_a_prefetch_to_l2_changes_no_data_on_the_gpu():
    kernels = _kernels()
    a = kernels.numbers((200, 1024), "float16")
    b = np.zeros((200, 256), np.float16)
    kernels.prefetched[4,](a, b, N=256, backend="cuda")
    assert (b == a[:, 64:320]).all()


@needs_gpu("sm_100a", "sm_103a")
@in_child(timeout=60)
def test_the_loads_of_a_cta_pair_complete_on_the_barrier_of_one_on_the_gpu():
    kernels = _kernels()
    a = kernels.numbers((128, 64), "float16")
    for group in (1, 2):
        b = np.zeros_like(a)
        kernels.paired[2,](a, b, GROUP=group, backend="cuda")
        assert (a == b).all(), group
    b = np.zeros((128, 64), np.float16)
    kernels.paired_multicast[4,](a[:32], b, backend="cuda")
    assert (b.reshape(4, 32, 64) == a[:32]).all()


@needs_gpu("sm_100a", "sm_103a")
@in_child(timeout=60)
def test_gather4_and_scatter4_select_rows_by_index_on_the_gpu():
    kernels = _kernels()
    for dtype, n, c, mode in (("float16", 16, 64, 128), ("float32", 8, 64, 0), ("uint8", 8, 256, 128)):
        x, i, y, want = kernels.gathered_and_scattered_case(dtype, n, c)
        kernels.gathered_and_scattered[2,](x, i, y, N=n, C=c, MODE=mode, backend="cuda")
        assert (y == want).all(), dtype


@needs_gpu("sm_100a", "sm_103a")
@in_child(timeout=60)
def test_the_pixels_of_im2col_w_mode_continue_in_the_next_image_on_the_gpu():
    kernels = _kernels()
    for along in ("w", "w128"):
        for stride in (1, 2):
            x, y, want = kernels.im2col_w_case(stride)
            kernels.im2col_w[len(y),](x, y, ALONG=along, P=128, C=64, STRIDE=stride, backend="cuda")
            assert (y == want).all(), (along, stride)


@needs_module("torch")
@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_loads_of_empty_arrays_give_the_fill_and_stores_are_dropped_on_the_gpu():
    """Whatever address a library gives to an array without elements: torch gives 0."""
    import sys
    from pathlib import Path

    import torch
    sys.path.insert(0, str(Path(__file__).parent))
    import empty_kernels as kernels
    some = torch.empty((3, 64), device="cuda")
    for shape in kernels.SHAPES:
        for A in (torch.empty(shape, device="cuda"), some[3:] if shape == (0, 64) else some[1:1, 1:1]):
            for fill, mode in ((0, 0), ("nan", 128)):
                B = torch.ones((24, 64), device="cuda")
                kernels.loaded[3,](A, B, 0, SHAPE=(8, 64), MODE=mode, FILL=fill)
                assert (B.isnan() if fill else B == 0).all(), (shape, fill)
            for kind in (None, "add"):
                kernels.stored[3,](A, B, SHAPE=(8, 64), KIND=kind)
    kernels.any_way[1,](torch.empty((0, 64), device="cuda"), B)
    assert (B[:16] == 0).all()
    B = torch.ones((2, 16, 64), device="cuda")
    kernels.to_both[2,](torch.empty((0, 64), device="cuda"), B)
    assert (B == 0).all()
    for shape in ((0, 5, 6, 64), (2, 0, 6, 64), (2, 5, 6, 0)):
        Y = torch.ones((128, 64), device="cuda", dtype=torch.float16)
        kernels.patch[1,](torch.empty(shape, device="cuda", dtype=torch.float16), Y, ALONG=None)
        assert (Y == 0).all(), shape
    torch.cuda.synchronize()
