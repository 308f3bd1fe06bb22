"""gather, flip, histogram and run-time indices of register tiles agree with NumPy, on the simulator and in the emitted code."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st

from tests.emitted_code import run_emitted
from tests.gpu import in_child, needs_gpu

SHAPES = st.lists(st.sampled_from([1, 2, 3, 8, 17, 32, 64]), min_size=1, max_size=3).filter(lambda s: np.prod(s) <= 4096)


def both_ways(kernel, inputs: list, shapes: list, dtype, warps: int = 4) -> list:
    """The outputs of the kernel on the simulator, which are those of the emitted code."""
    outs = [[np.full(shape, 7, dtype) for shape in shapes] for _ in range(2)]
    kernel.simulate(1, *inputs, *outs[0], num_warps=warps).raise_first()
    run_emitted(kernel.compile(*inputs, *outs[1], num_warps=warps, target="sm_90a"), [*inputs, *outs[1]], 32 * warps)
    for one, other in zip(*outs):
        np.testing.assert_array_equal(one, other)
    return outs[0]


def extents(shape) -> str:
    return ", ".join(f"0:{n}" for n in shape)


def taken(x: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray:
    """``take_along_axis``, with 0 out of bounds."""
    inside = (index >= 0) & (index < x.shape[axis])
    found = np.take_along_axis(x, np.clip(index.astype(np.int64), 0, x.shape[axis] - 1), axis)
    return np.where(np.broadcast_to(inside, found.shape), found, np.zeros((), x.dtype))


@settings(max_examples=20, deadline=None)
@given(SHAPES, st.data(), st.sampled_from(["int8", "float32", "bool", "float64"]), st.sampled_from(["int32", "int64", "uint8", "uint64"]),
       st.sampled_from([1, 2, 3, 8]), st.integers(0, 99))
def test_gathered_elements_are_those_of_take_along_axis(shape, data, dtype, places, warps, seed):
    """And 0 where the index is out of bounds, also below 0 and beyond 32 bits."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(1, min(40, 8192 * shape[axis] // int(np.prod(shape)))))
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    index = rng.integers(-3, x.shape[axis] + 3, [count if d == axis else n for d, n in enumerate(shape)]).astype(places)
    if places.endswith("64"):
        index.flat[::5] = 2**32
    if len(shape) > 1 and data.draw(st.booleans()):
        index = index[tuple(slice(None) if d == axis else slice(0, 1) for d in range(len(shape)))].copy()
    kernel = tile.jit(source=f"def k(x, i, y):\n    v = tile.gather(tile.load(x[{extents(shape)}]), tile.load(i[{extents(index.shape)}]), {axis})\n"
                             f"    tile.store(y[{extents([count if d == axis else n for d, n in enumerate(shape)])}], v)\n")
    want = taken(x, index, axis)
    (y,) = both_ways(kernel, [x, index], [want.shape], dtype, warps if want.size <= 1600 * warps else 8)  # 50 registers of a thread
    np.testing.assert_array_equal(y, want)


def test_a_table_is_read_at_places_of_any_shape():
    """As by ``numpy.take``; brackets do the same."""
    kernel = tile.jit(source="""
def k(table, codes, y, z):
    t, c = tile.load(table[0:16]), tile.load(codes[0:8, 0:32])
    tile.store(y[0:8, 0:32], tile.gather(t, c & 15, 0))
    tile.store(z[0:8, 0:32], t[c])
""")
    table, codes = np.arange(16, dtype=np.float32) ** 2, np.random.default_rng(0).integers(0, 20, (8, 32)).astype(np.uint8)
    y, z = both_ways(kernel, [table, codes], [codes.shape] * 2, np.float32)
    np.testing.assert_array_equal(y, table[codes & 15])
    np.testing.assert_array_equal(z, np.where(codes < 16, table[codes & 15], 0))


def test_a_runtime_index_selects_a_row_or_an_element():
    kernel = tile.jit(source="""
def k(x, n, row, column, some):
    v, i = tile.load(x[0:8, 0:33]), tile.load(n[0])
    tile.store(row[0:33], v[i])
    tile.store(column[0:1, 0:4], v[None, 2:6, i + 7])
    tile.store(some[0], v[i, i - 1])
    tile.store(some[1], v[1][i])
    tile.store(some[2], v[i, 33 * i])
    tile.store(some[3], v[i - 6, 2])
    tile.store(some[4], v[..., i][i])
""")
    x = np.random.default_rng(0).integers(1, 99, (8, 33)).astype(np.int32)
    row, column, some = both_ways(kernel, [x, np.array([5], np.int32)], [(33,), (1, 4), (5,)], np.int32)
    np.testing.assert_array_equal(row, x[5])
    np.testing.assert_array_equal(column, x[None, 2:6, 12])
    np.testing.assert_array_equal(some, [x[5, 4], x[1, 5], 0, 0, x[5, 5]])


@pytest.mark.parametrize("warps", [1, 4])
def test_shared_memory_is_used_again_in_a_loop_only_when_all_warps_have_read_it(warps):
    kernel = tile.jit(source="""
def k(x, n, y):
    v, at = tile.load(x[0:8, 0:64]), tile.load(n[0:64])
    total = tile.zeros(64, tile.int32)
    for i in range(n.shape[0] // 4):
        total += v[i % 8] * (i + 1)
        total = tile.gather(tile.sort(total, descending=True), at, 0) & 0xfffff
    tile.store(y[0:64], total)
""")
    rng = np.random.default_rng(0)
    x, at, want = rng.integers(0, 50, (8, 64)).astype(np.int32), rng.permutation(64).astype(np.int32), np.zeros(64, np.int32)
    for i in range(16):
        want = np.sort(want + x[i % 8] * (i + 1))[::-1][at] & 0xfffff
    (y,) = both_ways(kernel, [x, at], [(64,)], np.int32, warps)
    np.testing.assert_array_equal(y, want)
    compiled = kernel.compile(x, at, y, num_warps=warps, target="sm_90a")
    for seed in range(1, 4):
        run_emitted(compiled, [x, at, y], 32 * warps, seed)
        np.testing.assert_array_equal(y, want)


@settings(max_examples=20, deadline=None)
@given(SHAPES, st.data(), st.sampled_from(["int8", "float32", "float16"]), st.sampled_from([1, 2, 3, 8]))
def test_flipped_tiles_and_slices_with_negative_steps_are_those_of_numpy(shape, data, dtype, warps):
    axes = data.draw(st.one_of(st.none(), st.sets(st.integers(0, len(shape) - 1), min_size=1).map(tuple)))
    cuts = tuple(slice(*data.draw(st.tuples(st.none() | st.integers(-70, 70), st.none() | st.integers(-70, 70), st.sampled_from([-3, -1, 1, 2]))))
                 for _ in shape)
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    want = [np.flip(x, axes), x[cuts]]
    shown = ", ".join(f"{'' if c.start is None else c.start}:{'' if c.stop is None else c.stop}:{c.step}" for c in cuts)
    kernel = tile.jit(source=f"def k(x, y, z):\n    v = tile.load(x[{extents(shape)}])\n    tile.store(y[{extents(shape)}], tile.flip(v, {axes}))\n"
                             + (f"    tile.store(z[{extents(want[1].shape)}], v[{shown}])\n" if want[1].size else ""))
    y, z = both_ways(kernel, [x], [want[0].shape, want[1].shape or (1,)], dtype, warps)
    np.testing.assert_array_equal(y, want[0])
    if want[1].size:
        np.testing.assert_array_equal(z, want[1])


def test_a_flip_within_a_warp_takes_no_shared_memory():
    kernel = tile.jit(source="def k(x, y):\n    tile.store(y[0:4, 0:64], tile.flip(tile.load(x[0:4, 0:64]), 1))\n")
    spec = tile.ArraySpec((4, 64), "float32")
    compiled = kernel.compile(spec, spec, target="sm_90a")
    assert compiled.shared_bytes == 0 and "shfl" in compiled.ptx


@settings(max_examples=20, deadline=None)
@given(SHAPES, st.sampled_from(["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64"]), st.sampled_from([1, 5, 32, 300]),
       st.sampled_from([1, 3, 8]), st.integers(0, 99))
def test_a_histogram_counts_the_integers_below_the_number_of_bins(shape, dtype, bins, warps, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    if dtype[0] == "i":
        x.flat[::4] = -1
    if dtype.endswith("64"):
        x.flat[::3] += np.array(2**32, dtype)
    kernel = tile.jit(source=f"""
def k(x, y):
    total = tile.zeros({bins}, tile.int32)
    for _ in range(2):
        total += tile.histogram(tile.load(x[{extents(shape)}]), {bins})
    tile.store(y[0:{bins}], total)
""")
    (y,) = both_ways(kernel, [x], [(bins,)], np.int32, warps)
    np.testing.assert_array_equal(y, 2 * np.bincount([v for v in x.ravel().tolist() if 0 <= v < bins], minlength=bins))


def test_a_histogram_of_a_load_beyond_an_array_is_warned_of():
    kernel = tile.jit(source="def k(x, y):\n    tile.store(y[0:8], tile.histogram(tile.load(x[0:64]), 8))\n")
    (warning,) = kernel.compile(tile.ArraySpec((60,), "int32"), tile.ArraySpec((8,), "int32")).warnings
    assert "histogram over a load that may read out of bounds of x" in warning and "other=-1" in warning


@pytest.mark.parametrize("text, words", [
    ("tile.gather(v, 3, 0)", "the index of a gather is an integer tile, not the number 3"),
    ("tile.gather(v, w, 0)", "the index of a gather is an integer tile, not a tile float32"),
    ("tile.gather(v, c[:, 0], 0)", "as many dimensions as the tile: 2, not 1"), ("tile.gather(v, c, 2)", "axis 2 is out of range"),
    ("tile.gather(v, c[0:3], 1)", "do not broadcast"), ("tile.flip(v, (0, 0))", "an axis is named twice"), ("tile.flip(v, n)", "an axis is a constant integer"),
    ("v[c]", "an integer tile indexes a register tile of one dimension"), ("v[0:n]", "slices of register tiles are constants"),
    ("v[::0]", "a slice's step is not 0"), ("v[1.5]", "indexed with constant slices and with integers, not the number 1.5"),
    ("v[n, n, n]", "3 indices for a tile of 2 dimensions"), ("v[tile.thread_id()]", "differs between"),
    ("tile.histogram(v, 4)", "histogram counts integers"), ("tile.histogram(c, 0)", "bins is a constant integer above 0, not the number 0"),
    ("tile.histogram(c, n)", "declare the parameter as n: tile.constexpr"), ("tile.histogram(5, 4)", "histogram takes a tile")])
def test_invalid_operands_are_refused(text, words):
    with pytest.raises(tile.CompilationError) as caught:
        tile.jit(source=f"def k(x, i, n):\n    v = tile.load(x[0:8, 0:16])\n    w, c = v[0], tile.load(i[0:8, 0:16])\n    r = {text}\n").compile(
            tile.ArraySpec((8, 16), "float32"), tile.ArraySpec((8, 16), "int32"), 3)
    assert words in str(caught.value)


@needs_gpu()
@in_child(timeout=60)
def test_gathers_flips_and_histograms_on_a_gpu_agree_with_numpy():
    kernel = tile.jit(source="""
def k(x, i, y, z, h):
    v, c = tile.load(x[0:8, 0:33]), tile.load(i[0:8, 0:33])
    tile.store(y[0:8, 0:33], tile.gather(v, c, 1))
    tile.store(z[0:8, 0:33], tile.flip(v))
    tile.store(h[0:30], tile.histogram(c, 30))
""")
    rng = np.random.default_rng(0)
    x, i = rng.standard_normal((8, 33)).astype(np.float32), rng.integers(-3, 36, (8, 33)).astype(np.int32)
    y, z, h = np.zeros_like(x), np.zeros_like(x), np.zeros(30, np.int32)
    kernel[1](x, i, y, z, h, backend="cuda")
    np.testing.assert_array_equal(y, taken(x, i, 1))
    np.testing.assert_array_equal(z, np.flip(x))
    np.testing.assert_array_equal(h, np.bincount(i[(i >= 0) & (i < 30)], minlength=30))
