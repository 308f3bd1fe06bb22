"""``tile.stack`` agrees with NumPy, and costs no instructions if the new dimension stays in a thread's registers."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=2), st.integers(1, 4), st.data(),
       st.sampled_from(("float32", "int8", "float16", "bool")), st.integers(1, 4))
def test_stacked_tiles_agree_with_numpy(shape, count, data, dtype, warps):
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


def test_nibbles_are_unpacked_without_selects():
    """The two halves of each byte become adjacent: vector stores, and no select or shuffle instruction."""
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
def test_invalid_operands_of_stack_are_refused(text, words):
    with pytest.raises(tile.CompilationError) as caught:
        tile.jit(source=f"def k(x):\n    v = tile.load(x[0:32])\n    w = {text}\n").compile(tile.ArraySpec((32,), "float32"))
    assert words in str(caught.value)


INTERLEAVED = {"pairs by a reshape": "pairs = v.reshape((R, HALF, 2))\n    a, b = pairs[:, :, 0], pairs[:, :, 1]",
               "every second column": "a, b = v[:, 0::2], v[:, 1::2]"}


@pytest.mark.parametrize("how", INTERLEAVED)
@pytest.mark.parametrize("rows", [3, 5, 8])
def test_adjacent_elements_are_split_and_joined_in_registers_also_with_padded_rows(how, rows):
    """A rotary embedding with interleaved pairs: no shared memory, and vector loads and stores."""
    kernel = tile.jit(source=f"""
def rotary(x, cos, sin, out, R: tile.constexpr, HALF: tile.constexpr):
    c, s = tile.load(cos[0:HALF])[None, :], tile.load(sin[0:HALF])[None, :]
    v = tile.load(x[0:R, 0:2 * HALF])
    {INTERLEAVED[how]}
    tile.store(out[0:R, 0:2 * HALF], tile.stack((a * c - b * s, b * c + a * s), 2).reshape((R, 2 * HALF)))
""")
    rng = np.random.default_rng(0)
    x, cos, sin = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((rows, 128), (64,), (64,)))
    out = np.empty_like(x)
    kernel[1](x, cos, sin, out, R=rows, HALF=64)
    a, b = x[:, 0::2], x[:, 1::2]
    np.testing.assert_array_equal(out, np.stack((a * cos - b * sin, b * cos + a * sin), 2).reshape(rows, 128))
    ptx = kernel.compile(x, cos, sin, out, R=rows, HALF=64).ptx
    assert "shared" not in ptx and "shfl" not in ptx and "selp" not in ptx
    assert "ld.global.v" in ptx and "st.global.v" in ptx and "st.global.b32" not in ptx


SIDES = {"a, k in pairs": ("(N, K // 2)", "Q[0:N, k // 2:k // 2 + BK // 2]", 2, "(N, BK)", "tile.dot(w, a.T, acc)", "acc.T"),
         "b, k in pairs": ("(K // 2, N)", "Q[k // 2:k // 2 + BK // 2, 0:N]", 1, "(BK, N)", "tile.dot(a, w, acc)", "acc"),
         "b, columns in pairs": ("(K, N // 2)", "Q[k:k + BK, 0:N // 2]", 2, "(BK, N)", "tile.dot(a, w, acc)", "acc")}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("side", SIDES)
def test_nibbles_become_a_product_operand_in_registers(side, target):
    """4-bit weights, two per byte, times float16: a thread unpacks what it loads, and stores it once in 16-byte vectors."""
    shape, place, axis, whole, product, sums = SIDES[side]
    kernel = tile.jit(source=f"""
def w4a16(A, Q, C, BK: tile.constexpr, N: tile.constexpr):
    acc = tile.zeros({"(N, 64)" if side[0] == "a" else "(64, N)"})
    for k in range(0, A.shape[1], BK):
        a, q = tile.load(A[0:64, k:k + BK]), tile.load({place})
        w = (tile.stack((q & 15, q >> 4), {axis}).reshape({whole}).to(A.dtype) - 8) * 0.5
        acc = {product}
    tile.store(C[0:64, 0:N], {sums})
""")
    rng = np.random.default_rng(0)
    M, N, K = 64, 64, 128
    a, q, c = rng.integers(-3, 4, (M, K)).astype(np.float16), rng.integers(0, 256, eval(shape)).astype(np.uint8), np.empty((M, N), np.float32)
    w = np.stack((q & 15, q >> 4), axis)
    w = w.reshape(N, K).T if side[0] == "a" else w.reshape(K, N)
    kernel[1](a, q, c, BK=64, N=N)
    np.testing.assert_array_equal(c, a.astype(np.float64) @ ((w.astype(np.float64) - 8) / 2))
    made = kernel.compile(a, q, c, BK=64, N=N, target=target)
    assert "convert_layout" not in str(made.graph).split("for %k", 1)[1].split("yield")[0]
    assert not any(f"{way}.shared.b{bits} " in made.ptx for way in ("ld", "st") for bits in (8, 16)) and "st.shared.v4" in made.ptx
