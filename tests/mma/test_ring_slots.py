"""One-dimensional slots next to two-dimensional ones: each is aligned for TMA writes, whatever its length and the number of stages."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.errors import DispatchError

from tests.mma.products import multiplying_on

TRIPS = 5


@tile.jit(num_warps=8)
def beside(X, V, Y, W, N: tile.constexpr, STAGES: tile.constexpr, TRIPS: tile.constexpr):
    """Boxes of X with pieces of V, some of which are partly out of bounds."""
    ring = tile.ring(STAGES, V=((N,), V.dtype), X=((8, 32), X.dtype))
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(TRIPS):
                with ring.produce() as slot:
                    tile.copy_async(slot.V, V[i * N:i * N + N], mbar=slot.full)
                    tile.copy_async(slot.X, X[i * 8:i * 8 + 8, 0:32], mbar=slot.full)
    with tile.warpgroup(1):
        for i in range(TRIPS):
            with ring.consume() as slot:
                tile.store(W[i, 0:N], tile.load(slot.V))
                tile.store(Y[i * 8:i * 8 + 8, 0:32], tile.load(slot.X))


def arrays(n: int, dtype: str, length: int):
    rng = np.random.default_rng(n)
    x, v = rng.standard_normal((8 * TRIPS, 32)).astype(np.float16), rng.integers(1, 100, length).astype(dtype)
    return x, v, np.zeros_like(x), np.zeros((TRIPS, n), dtype)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.sampled_from(("uint8", "float16", "float32", "float64")), st.integers(1, 24), st.integers(1, 5), st.booleans())
def test_slots_of_any_multiple_of_16_bytes_can_be_loaded_by_tma_with_clipping(dtype, sixteens, stages, ragged):
    n = 16 * sixteens // np.dtype(dtype).itemsize
    x, v, y, w = arrays(n, dtype, max(TRIPS * n - n // 2 * ragged, 1))
    with multiplying_on("sm_90a"):
        beside.simulate((1,), x, v, y, w, N=n, STAGES=stages, TRIPS=TRIPS).raise_first()
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(w, np.pad(v, (0, TRIPS * n - len(v))).reshape(TRIPS, n))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("n, dtype", [(48, "float32"), (100, "float32"), (4, "float32"), (24, "float16")])
def test_padded_slots_assemble(n, dtype, target):
    compiled = beside.compile(*arrays(n, dtype, TRIPS * n), N=n, STAGES=3, TRIPS=TRIPS, target=target)
    assert [c.variant for c in compiled.copies if c.dst_scope == "shared"] == ["tma", "tma"]


@pytest.mark.parametrize("n, dtype, nbytes", [(3, "float32", 12), (1, "float32", 4), (7, "float16", 14), (24, "uint8", 24)])
def test_a_size_that_is_not_a_multiple_of_16_bytes_is_an_error_at_the_line(n, dtype, nbytes):
    with pytest.raises(DispatchError, match=f"runs of a multiple of 16 bytes that are contiguous in both memories: runs of {nbytes} bytes") as refusal:
        beside.compile(*arrays(n, dtype, TRIPS * n), N=n, STAGES=2, TRIPS=TRIPS, target="sm_90a")
    assert "tile.copy_async(slot.V" in str(refusal.value)


def test_slots_written_only_by_threads_are_not_padded():
    """No copy writes them."""
    @tile.jit(num_warps=8)
    def handed(out, STAGES: tile.constexpr):
        ring = tile.ring(STAGES, T=((1,), tile.int32), filled="stores")
        with tile.warpgroup(0):
            with tile.elect():
                with ring.produce() as slot:
                    tile.store(slot.T[0], 1)
        with tile.warpgroup(1):
            with ring.consume() as slot:
                tile.store(out[0], tile.load(slot.T[0]))

    one, four = (handed.compile(np.zeros(1, np.int32), STAGES=stages, target="sm_90a").shared_bytes for stages in (1, 4))
    assert four - one < 128
