"""The simulator's products run in one thread of NumPy's BLAS."""

import numpy as np
import pytest
import tilejit as tile
from threadpoolctl import ThreadpoolController, threadpool_limits
from tilejit.sim.blas import one_blas_thread


def threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


@pytest.fixture
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        if threads() != {2}:
            pytest.skip("this BLAS has one thread only")
        yield


@tile.jit
def product(A, B, C):
    tile.store(C[0:32, 0:32], tile.dot(tile.load(A[0:32, 0:32]), tile.load(B[0:32, 0:32])))


def test_a_simulation_limits_blas_to_one_thread_and_restores_it(two_threads, monkeypatch):
    seen, real = [], np.matmul
    monkeypatch.setattr(np, "matmul", lambda *a, **k: seen.append(threads()) or real(*a, **k))
    a, c = np.eye(32, dtype=np.float16), np.zeros((32, 32), np.float32)
    product[(1,)](a, a, c)
    assert (c == a).all() and seen and all(s == {1} for s in seen) and threads() == {2}


def test_the_limit_is_lifted_after_an_error(two_threads):
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        1 / 0
    assert threads() == {2}
