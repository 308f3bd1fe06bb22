"""sort, argsort and topk agree with NumPy on the simulator, and so does the emitted code, run without a GPU."""

import re
from functools import cache
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
import tilejit.ops.order.sort_keys as sort_keys_module
from hypothesis import given, settings, strategies as st
from tilejit.ops.order.network import choose_network, network_layouts, steps
from tilejit.ops.order.sort_keys import WRITTEN_OUT

from tests import emitted_code
from tests.emitted_code import run_emitted
from tests.gpu import in_child, needs_gpu

SOURCE = """
def k(x, values, places, top, at, AXIS: tile.constexpr, DESCENDING: tile.constexpr, K: tile.constexpr):
    v = tile.load(x[{whole}])
    tile.store(values[{whole}], tile.sort(v, AXIS, DESCENDING))
    tile.store(places[{whole}], tile.argsort(v, axis=AXIS, descending=DESCENDING))
    best, where = tile.topk(v, K, AXIS)
    tile.store(top[{kept}], best)
    tile.store(at[{kept}], where)
"""
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64",
          "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def elements(dtype: str, shape: tuple, seed: int) -> np.ndarray:
    """Elements of all bit patterns, every third one a small integer, so that some are equal; among floats NaNs and both zeros."""
    rng, kind = np.random.default_rng(seed), numpy_dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    x = rng.integers(0, 256, (*shape, kind.itemsize)).astype(np.uint8).view(kind)[..., 0]
    x.flat[::3] = rng.integers(0, 5, x.flat[::3].shape).astype(kind)
    if kind.kind not in "iu" and dtype != "float8_e8m0fnu":
        x.flat[1::7] = np.array(-0.0, kind)
        x.flat[2::11] = np.array(np.nan, kind)
    return x


def comparable(x: np.ndarray) -> np.ndarray:
    """In a dtype that NumPy sorts with NaN last."""
    with np.errstate(invalid="ignore"):  # signaling NaNs
        return x if x.dtype.kind in "iub" else x.astype(np.float64)


def in_stable_order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """The indices that sort `x`. In descending order, NaN comes first, and equal elements stay in their order too."""
    x = comparable(x)
    if not descending:
        return np.argsort(x, axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


@cache
def kernel_for(shape: tuple, axis: int, k: int):
    kept = (k if d == axis % len(shape) else n for d, n in enumerate(shape))
    return tile.jit(source=SOURCE.format(whole=", ".join(f"0:{n}" for n in shape), kept=", ".join(f"0:{n}" for n in kept)))


def case(x: np.ndarray, axis: int, descending: bool, k: int) -> SimpleNamespace:
    """The kernel, its arguments, and what they are to be afterwards."""
    order, best = in_stable_order(x, axis, descending), np.take(in_stable_order(x, axis, True), range(k), axis)
    want = [np.take_along_axis(x, order, axis), order, np.take_along_axis(x, best, axis), best]
    arrays = [x, np.zeros_like(x), np.zeros(x.shape, np.int32), np.zeros(best.shape, x.dtype), np.zeros(best.shape, np.int32)]
    return SimpleNamespace(kernel=kernel_for(x.shape, axis, k), arrays=arrays, want=want,
                           constants={"AXIS": axis, "DESCENDING": descending, "K": k})


def check(c: SimpleNamespace) -> None:
    for got, want in zip(c.arrays[1:], c.want):
        np.testing.assert_array_equal(comparable(got), comparable(want))


SHAPES = st.lists(st.sampled_from([1, 2, 3, 5, 8, 16, 33, 100, 256]), min_size=1, max_size=3).filter(lambda s: np.prod(s) <= 1500)


@settings(max_examples=30, deadline=None)
@given(SHAPES, st.data(), st.sampled_from(DTYPES), st.booleans(), st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 99))
def test_sorted_tiles_and_their_places_are_those_of_numpy(shape, data, dtype, descending, warps, seed):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    c = case(elements(dtype, tuple(shape), seed), axis, descending, data.draw(st.integers(1, shape[axis])))
    warps = max(warps, -(-c.arrays[0].size // 256))
    c.kernel.simulate(1, *c.arrays, **c.constants, num_warps=warps).raise_first()
    check(c)


# Networks in one thread, in a warp, and across warps; written out and with loops; with blocks of k elements in a thread's
# registers, in several lanes, and in several warps.
EMITTED = [((16,), 0, 3, 1), ((64, 8), 1, 2, 2), ((64,), 0, 5, 1), ((100,), 0, 40, 4), ((2, 300), 1, 64, 8), ((512,), 0, 1, 8),
           ((512,), 0, 300, 16), ((1500,), 0, 4, 4), ((1024,), 0, 200, 2), ((3, 5, 7), 1, 2, 3)]


@pytest.mark.parametrize("dtype", ["int32", "float32", "uint64", "int8"])
@pytest.mark.parametrize("shape, axis, k, warps", EMITTED)
def test_the_emitted_code_sorts_as_numpy_does(shape, axis, k, warps, dtype):
    c = case(elements(dtype, shape, len(shape)), axis, dtype == "int32", k)
    compiled = c.kernel.compile(*c.arrays, **c.constants, num_warps=warps, target="sm_90a", spills=None)
    for seed in (0, 1):
        for out in c.arrays[1:]:
            out[...] = 0
        run_emitted(compiled, c.arrays, 32 * warps, seed)
        check(c)


ROW = tile.jit(source="def k(x, y, N: tile.constexpr):\n    tile.store(y[0:N], tile.sort(tile.load(x[0:N])))\n")
SCOPES = tile.jit(source="""
def k(x, y, z):
    for group in tile.static_range(2):
        with tile.warpgroup(group):
            tile.store(y[group, 0:512], tile.sort(tile.load(x[group, 0:512])))
    with tile.warp(3):
        tile.store(z[0:5], tile.topk(tile.load(x[1, 0:100]), 5)[1])
""")


SCOPED = """
def k(x, y, z):
    with tile.{scope}:
        v = tile.load(x[0:24])
        tile.store(y[0, 0:24], tile.sort(v))
        tile.store(y[1, 0:24], tile.argsort(v))
        tile.store(y[2, 0:24], tile.flip(v))
        tile.store(y[3, 0:24], tile.gather(v, tile.argsort(v), 0))
        tile.store(z[0:5], tile.topk(v, 5)[1])
        tile.store(z[5:14], tile.histogram(v, 9))
        tile.store(z[14], v[tile.load(x[3])])
"""


@pytest.mark.parametrize("scope", ["thread(3)", "elect()", "thread(range(8, 16))", "warp(1)", "warp(range(1, 3))", "warp(range(0, 7))",
                                   "warpgroup(1)"])
def test_tiles_of_every_scope_are_sorted_counted_and_gathered(scope):
    x = np.random.default_rng(0).integers(0, 20, 24).astype(np.int32)
    y, z = np.zeros((4, 24), np.int32), np.zeros(15, np.int32)
    tile.jit(source=SCOPED.format(scope=scope)).simulate(1, x, y, z, num_warps=8).raise_first()
    np.testing.assert_array_equal(y, [np.sort(x), np.argsort(x, kind="stable"), x[::-1], np.sort(x)])
    np.testing.assert_array_equal(z, [*np.argsort(-x, kind="stable")[:5], *np.bincount(x, minlength=9)[:9], x[x[3]]])


def test_threads_of_a_narrowed_scope_sort_among_themselves():
    x = np.random.default_rng(0).permutation(1024).reshape(2, 512).astype(np.int32)
    results = [(np.zeros_like(x), np.zeros(5, np.int32)) for _ in range(2)]
    SCOPES.simulate(1, x, *results[0], num_warps=8).raise_first()
    run_emitted(SCOPES.compile(x, *results[1], num_warps=8, target="sm_90a"), [x, *results[1]], 256)
    for y, z in results:
        np.testing.assert_array_equal(y, np.sort(x))
        np.testing.assert_array_equal(z, np.argsort(-x[1, :100])[:5])


@pytest.mark.parametrize("n, warps", [(256, 8), (2048, 4)])
def test_a_sort_without_its_barriers_is_wrong_where_warps_are_late(n, warps):
    """What runs the emitted code here does not hide a missing barrier."""
    x, y = np.random.default_rng(0).permutation(n).astype(np.int32), np.zeros(n, np.int32)
    compiled = ROW.compile(x, y, N=n, num_warps=warps, target="sm_90a")
    without = SimpleNamespace(recipe=compiled.recipe, llvm_ir=compiled.llvm_ir.replace('"bar.sync 0;"', '"bar.warp.sync -1;"'))
    assert without.llvm_ir != compiled.llvm_ir
    wrong = 0
    for seed in range(3):
        run_emitted(compiled, [x, y], 32 * warps, seed)
        np.testing.assert_array_equal(y, np.sort(x))
        run_emitted(without, [x, y], 32 * warps, seed)
        wrong += not np.array_equal(y, np.sort(x))
    assert wrong


IN_PARTS = """
def k(x, y, z, N: tile.constexpr):
    v = tile.load(x[0:N])
    tile.store(y[0:N], tile.sort(v))
    tile.store(z[0:N], tile.argsort(v))
"""


@pytest.mark.parametrize("n, warps, dtype", [(1024, 4, "float32"), (256, 8, "float64")])
def test_warps_exchange_elements_in_parts_where_these_take_much_shared_memory(monkeypatch, n, warps, dtype):
    """Written out and in loops; of one integer and of two."""
    monkeypatch.setattr(sort_keys_module, "EXCHANGED", 2048)
    x, y, z = elements(dtype, (n,), 0), np.zeros(n, dtype), np.zeros(n, np.int32)
    compiled = tile.jit(source=IN_PARTS).compile(x, y, z, N=n, num_warps=warps, target="sm_90a", spills=None)
    for seed in range(3):
        run_emitted(compiled, [x, y, z], 32 * warps, seed)
        np.testing.assert_array_equal(y, np.sort(x))
        np.testing.assert_array_equal(z, np.argsort(x, kind="stable"))


def test_32768_floats_are_sorted_where_a_cta_has_99_kib():
    spec = tile.ArraySpec((32768,), "float32")
    compiled = ROW.compile(spec, spec, N=32768, num_warps=32, target="sm_120a")
    assert compiled.shared_bytes <= 65536 and compiled.spills == 0


@pytest.mark.parametrize("n, warps", [(64, 4), (1024, 4), (2048, 8)])
def test_a_network_shuffles_and_stores_as_often_as_it_says(monkeypatch, n, warps):
    """Beside the changes of layout before and after it, which the loads and stores of vectors need."""
    counts = {"shuffles": 0, "stores": 0}
    shuffle, access = emitted_code.Warp.shuffle, emitted_code.Warp.access

    def counted_shuffle(self, *args):
        counts["shuffles"] += self.thread[0] == 0
        return shuffle(self, *args)

    def counted_access(self, kind, code, *args):
        counts["stores"] += self.thread[0] == 0 and "st.shared" in code
        return access(self, kind, code, *args)
    monkeypatch.setattr(emitted_code.Warp, "shuffle", counted_shuffle)
    monkeypatch.setattr(emitted_code.Warp, "access", counted_access)
    x, y = np.random.default_rng(0).permutation(n).astype(np.int32), np.zeros(n, np.int32)
    compiled = ROW.compile(x, y, N=n, num_warps=warps, target="sm_90a")
    run_emitted(compiled, [x, y], 32 * warps)
    network = choose_network((n,), 0, n, 32 * warps, 1)
    per = n // (32 * warps) or 1
    assert 0 <= counts["shuffles"] - network.shuffles <= 2 * per
    assert 0 <= counts["stores"] - network.through_shared <= 2 * per


def test_a_network_sorts_zeros_and_ones():
    """And so everything (Knuth, The Art of Computer Programming 3, 5.3.4, theorem Z). What is kept are the lowest ones."""
    for bits in range(4):
        x = np.arange(1 << (1 << bits))[:, None] >> np.arange(1 << bits) & 1
        for kept in range(bits + 1):
            assert sum(not s.halves for s in steps(bits, kept)) == kept * (kept + 1) // 2 + kept * (bits - kept)
            k = 1 << kept
            c = SimpleNamespace(kernel=kernel_for(x.shape, 1, k), arrays=[x.astype(np.int32)] + [
                np.zeros(shape, np.int32) for shape in (x.shape, x.shape, (len(x), k), (len(x), k))])
            c.kernel.simulate(1, *c.arrays, AXIS=1, DESCENDING=False, K=k, num_warps=8).raise_first()
            np.testing.assert_array_equal(c.arrays[1], np.sort(x))
            np.testing.assert_array_equal(c.arrays[3], -np.sort(-x)[:, :k])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=3), st.data(), st.sampled_from([1, 8, 32, 96, 128, 256]))
def test_every_element_of_a_network_has_a_place(shape, data, threads):
    axis = data.draw(st.integers(0, len(shape) - 1))
    kept = data.draw(st.integers(1, shape[axis]))
    network = choose_network(tuple(shape), axis, kept, threads, 1)
    for (layout, domain), extent in zip(network_layouts(network, tuple(shape)), (shape[axis], kept)):
        assert layout.size() == np.prod(domain) and domain[axis] >= extent and domain[axis] == 1 << (domain[axis] - 1).bit_length()
        assert all(have >= n for d, (have, n) in enumerate(zip(domain, shape)) if d != axis)
        used = {str(name): layout.span(name) for name in layout.axes}
        assert used.get("laneid", 1) * used.get("warpid", 1) <= threads


def test_a_sort_of_4096_elements_is_a_short_program():
    """Loops at run time keep it short: written out, the network would be over 10000 instructions."""
    spec = tile.ArraySpec((4096,), "float32")
    compiled = ROW.compile(spec, spec, N=4096, target="sm_90a")
    assert compiled.spills == 0 and compiled.llvm_ir.count("\n") < 2500
    assert choose_network((4096,), 0, 4096, 128, 1).work_among_threads > WRITTEN_OUT


@pytest.mark.parametrize("call, other", [("tile.sort(v)", 'float("inf")'), ("tile.argsort(v, descending=True)", '-float("inf")'),
                                         ("tile.topk(v, 4)", '-float("inf")')])
def test_a_sort_of_a_load_beyond_an_array_is_warned_of(call, other):
    source = "def k(x):\n    v = tile.load(x[0:64]{})\n    w = " + call + "\n"
    spec = tile.ArraySpec((60,), "float32")
    (warning,) = tile.jit(source=source.format("")).compile(spec).warnings
    assert re.search(r"(sort|topk) over a load that may read out of bounds", warning) and f"other={other})" in warning
    assert not tile.jit(source=source.format(f", other={other}")).compile(spec).warnings


@pytest.mark.parametrize("text, words", [
    ("tile.sort(3)", "sort takes a tile, not the number 3"), ("tile.sort(x)", "sort takes a tile, not a global buffer"),
    ("tile.sort(v, 1)", "axis 1 is out of range for a tile of 1 dimension"), ("tile.argsort(v, n)", "declare the parameter as n: tile.constexpr"),
    ("tile.sort(v, descending=n > 1)", "descending is True or False, known at compile time"),
    ("tile.topk(v, 65)", "topk takes 1 to 64 of 64 elements, not 65"), ("tile.topk(v, 0)", "topk takes 1 to 64 of 64 elements, not 0"),
    ("tile.topk(v, 2.0)", "k is a constant integer, not the number 2.0"), ("tile.topk(v, n)", "declare the parameter as n: tile.constexpr"),
    ("tile.topk(tile.zeros((2, 0)), 1)", "along an axis without elements has no value")])
def test_invalid_operands_of_a_sort_are_refused(text, words):
    with pytest.raises(tile.CompilationError) as caught:
        tile.jit(source=f"def k(x, n):\n    v = tile.load(x[0:64])\n    w = {text}\n").compile(tile.ArraySpec((64,), "float32"), 3)
    assert words in str(caught.value)


def test_a_sort_under_a_condition_that_differs_between_threads_is_refused():
    kernel = tile.jit(source="def k(x):\n    v = tile.load(x[0:64])\n    if tile.thread_id() > 3:\n        w = tile.sort(v)\n")
    with pytest.raises(tile.CompilationError, match="differs between them"):
        kernel.compile(tile.ArraySpec((64,), "float32"))


def test_methods_and_tiles_without_elements_sort_too():
    @tile.jit
    def kernel(x, y):
        v = tile.load(x[0:32])
        tile.store(y[0:32], v.sort(descending=True) + v[v.size - 1:].sort() + v.argsort())
        empty = tile.zeros((0, 4))
        best, places = tile.topk(empty, 2)
        tile.static_assert(tile.sort(empty).shape == (0, 4) and tile.argsort(empty, 0).dtype == tile.int32)
        tile.static_assert(best.shape == places.shape == (0, 2) and best.dtype == tile.float32)

    x, y = np.random.default_rng(0).permutation(32).astype(np.float32), np.zeros(32, np.float32)
    kernel[1](x, y)
    np.testing.assert_array_equal(y, -np.sort(-x) + x[-1] + np.argsort(x))


def test_packed_floats_are_sorted_by_their_numbers():
    for name in ("float4_e2m1fn", "float6_e3m2fn"):
        kernel = tile.jit(source=f"""
def k(x, y, z):
    v = tile.cast(tile.load(x[0:64]), tile.{name})
    tile.store(y[0:64], tile.cast(tile.sort(v), tile.float32))
    tile.store(z[0:64], tile.argsort(v))
""")
        x = np.random.default_rng(0).integers(-4, 5, 64).astype(np.float32)
        y, z = np.zeros(64, np.float32), np.zeros(64, np.int32)
        kernel[1](x, y, z)
        np.testing.assert_array_equal(y, np.sort(x))
        np.testing.assert_array_equal(z, np.argsort(x, kind="stable"))


@needs_gpu()
@in_child(timeout=120)
def test_sorts_on_a_gpu_agree_with_numpy():
    for dtype in ("float32", "float64", "int8", "bool"):
        for shape, axis, k, warps in [*EMITTED, ((4096,), 0, 4096, 4), ((4, 4096), 1, 50, 8)]:
            c = case(elements(dtype, shape, 1), axis, dtype == "int8", k)
            c.kernel[1](*c.arrays, **c.constants, num_warps=warps, spills=None, backend="cuda")
            check(c)
