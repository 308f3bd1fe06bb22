"""Asynchronous stores and reductions to a peer's shared memory on the GPU, compared with NumPy."""

import numpy as np
import pytest
from tilejit.dtypes import dtype_of

from tests.gpu import in_child, needs_gpu

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


def _kernels():
    import sys
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parent))
    import remote_kernels
    return remote_kernels


def _values(rng, dtype: str, shape) -> np.ndarray:
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype_of(dtype).np)


@needs_gpu(*HOPPER)
@in_child(timeout=240)
@pytest.mark.parametrize("ranks", range(2, 9))
def test_every_cta_of_a_cluster_stores_registers_to_the_next_on_the_gpu(ranks):
    cases, rng = _kernels(), np.random.default_rng(ranks)
    for swizzle in (0, 64, 128):
        a = _values(rng, "float16", (32 * ranks, 16, 64))
        b = np.zeros_like(a)
        cases.pass_on(ranks, swizzle)[32 * ranks,](a, b, ROWS=16, COLUMNS=64, backend="cuda")
        assert (b == cases.row_of_next(a, ranks)).all(), swizzle


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_every_dtype_is_stored_to_a_peer_on_the_gpu():
    cases, rng = _kernels(), np.random.default_rng(1)
    for dtype in cases.STORED:
        for shape in ((8, 48), (24, 128)):
            a = _values(rng, dtype, (16, *shape))
            b = np.zeros_like(a)
            cases.pass_on(2)[16,](a, b, ROWS=shape[0], COLUMNS=shape[1], backend="cuda")
            assert (b.view("u1") == cases.row_of_next(a, 2).view("u1")).all(), (dtype, shape)


@needs_gpu(*HOPPER)
@in_child(timeout=240)
@pytest.mark.parametrize("ranks", range(2, 9))
def test_reductions_of_registers_into_a_peer_s_memory_are_right_on_the_gpu(ranks):
    cases, rng = _kernels(), np.random.default_rng(2)
    from reduced import combined
    for kind, dtypes in cases.TAKEN.items():
        for dtype in dtypes:
            a, start = _values(rng, dtype, (4 * ranks, 100)), _values(rng, dtype, 100)
            if kind in ("inc", "dec"):
                a[:] = 50
            c = np.zeros((4, 100), a.dtype)
            cases.gather_sums(ranks)[4 * ranks,](a, start, c, KIND=kind, N=100, backend="cuda")
            for cluster in range(4):
                assert (c[cluster] == combined(kind, a[ranks * cluster:ranks * (cluster + 1)], start)).all(), (kind, dtype)


@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_scalars_are_stored_to_every_peer_on_the_gpu():
    a = _values(np.random.default_rng(3), "float32", (16, 33))
    b = np.zeros((16, 4, 33), np.float32)
    _kernels().one_number_each[16,](a, b, backend="cuda")
    assert (b == a.reshape(4, 1, 4, 33).repeat(4, axis=1).reshape(16, 4, 33)).all()


@needs_gpu(*HOPPER)
@in_child(timeout=60)
def test_ptx_instructions_read_write_and_reduce_into_a_peer_s_shared_memory_on_the_gpu():
    import sys
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))
    from test_clusters import A, B, peers_by_instructions
    got, want = np.zeros_like(B), np.zeros_like(B)
    want[:4, 0:32], want[:4, 32:64] = A[:4, 0:32] + 1, A[:4, 0:32]
    peers_by_instructions[4,](A, got, SYNC=True, backend="cuda")
    np.testing.assert_array_equal(got, want)
