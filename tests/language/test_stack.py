"""``tile.stack`` is NumPy's, and costs no instructions where the new dimension stays in a thread's registers."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=2), st.integers(1, 4), st.data(),
       st.sampled_from(("float32", "int8", "float16", "bool")), st.integers(1, 4))
def test_stacked_tiles_are_numpys(shape, count, data, dtype, warps):
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    rng = np.random.default_rng(0)
    x = rng.integers(0, 100, (count, *shape)).astype(dtype)
    region = ", ".join(f"0:{n}" for n in shape)
    parts = "".join(f"tile.load(x[{i}, {region}]), " for i in range(count))
    want = np.stack(list(x), axis)
    place = ", ".join(f"0:{n}" for n in want.shape)
    y = np.zeros_like(want)
    tile.jit(source=f"def k(x, y):\n    tile.store(y[{place}], tile.stack(({parts}), {axis}))\n").simulate(1, x, y, num_warps=warps).raise_first()
    np.testing.assert_array_equal(y, want)


def test_tiles_of_several_dtypes_are_promoted():
    @tile.jit
    def mixed(x, y, out):
        s = tile.stack((tile.load(x[0:32]), tile.load(y[0:32])))
        tile.static_assert(s.dtype == tile.float32 and s.shape == (2, 32))
        tile.store(out[0:2, 0:32], s)

    x, y, out = np.arange(32, dtype=np.int8), np.arange(32, dtype=np.float32) / 2, np.zeros((2, 32), np.float32)
    mixed[1](x, y, out)
    np.testing.assert_array_equal(out, np.stack((x, y)))


def test_nibbles_are_unpacked_without_selections():
    """The two halves of each byte, next to each other: vectors of stores, and no instruction that chooses or exchanges."""
    @tile.jit
    def unpack(q, out, N: tile.constexpr):
        v = tile.load(q[0:N])
        tile.store(out[0:2 * N], tile.stack((v & 15, v >> 4), 1).reshape((2 * N,)))

    q, out = np.random.default_rng(0).integers(0, 256, 1024).astype(np.uint8), np.zeros(2048, np.uint8)
    unpack[1](q, out, N=1024)
    np.testing.assert_array_equal(out, np.stack((q & 15, q >> 4), 1).ravel())
    ptx = unpack.compile(q, out, N=1024).ptx
    assert "selp" not in ptx and "shfl" not in ptx and "shared" not in ptx and "st.global.v" in ptx


@pytest.mark.parametrize("text, words", [("tile.stack(v)", "stack takes a tuple of tiles"), ("tile.stack(())", "stack takes a tuple of tiles"),
                                         ("tile.stack((v, v[0:16]))", "have one shape, not [32] and [16]"),
                                         ("tile.stack((v, v), 3)", "axis 3 is out of range"),
                                         ("tile.stack((v, 1))", "stack takes a tuple of tiles")])
def test_what_cannot_be_stacked_is_refused(text, words):
    with pytest.raises(tile.CompilationError) as caught:
        tile.jit(source=f"def k(x):\n    v = tile.load(x[0:32])\n    w = {text}\n").compile(tile.ArraySpec((32,), "float32"))
    assert words in str(caught.value)
