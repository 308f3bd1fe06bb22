"""Views of shared memory: the same bytes with another dtype, shape, order or layout."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.errors import CompilationError, SimulationError

from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")
X = np.random.default_rng(0).integers(-100, 100, (8, 64)).astype(np.float32)


@tile.jit
def bits(X, Y):
    s = tile.alloc((8, 64), X.dtype)
    tile.copy(s, X[0:8, 0:64])
    tile.sync()
    tile.copy(Y[0:8, 0:64], s.view(tile.int32))


@tile.jit
def halves(X, Y):
    s = tile.alloc((8, 64), X.dtype)
    tile.copy(s, X[0:8, 0:64])
    tile.sync()
    tile.copy(Y[0:8, 0:128], s.view(tile.uint16))


@tile.jit
def permuted(X, Y):
    s = tile.alloc((8, 64), X.dtype, layout=tile.swizzled(X.dtype, (8, 64), 128))
    tile.copy(s, X[0:8, 0:64])
    tile.sync()
    tile.copy(Y[0:64, 0:8], s.permute((1, 0)))


@tile.jit
def reshaped(X, Y):
    s = tile.alloc((8, 64), X.dtype, layout=tile.swizzled(X.dtype, (8, 64), 128))
    tile.copy(s, X[0:8, 0:64])
    tile.sync()
    tile.copy(Y[0:16, 0:32], s.reshape((2, 4, 64)).reshape((16, 32)))


@tile.jit(num_warps=8)
def slots(X, Y):
    """A ring's slots, each viewed as columns of 16 bytes, at a runtime slot index."""
    ring = tile.ring(2, rows=((4, 64), X.dtype, tile.TileLayout(((4, 64, "m"), (64, 1, "m")))))
    with tile.warpgroup(1):
        with tile.elect():
            for i in range(X.shape[0] // 4):
                with ring.produce() as slot:
                    tile.copy_async(slot.rows, X[i * 4:i * 4 + 4, 0:64], mbar=slot.full)
    with tile.warpgroup(0):
        for i in range(X.shape[0] // 4):
            with ring.consume() as slot:
                columns = slot.rows.view(tile.int32, (64, 4), tile.TileLayout(((64, 4, "m"), (4, 1, "m"))))
                tile.store(Y[i, 0:64, 0:4], tile.load(columns))


@tile.jit
def arena(X, Y):
    """One allocation: its first half receives rows by TMA, its second half holds results, then both are read through one view."""
    memory = tile.alloc((4096,), tile.uint8, align=1024)
    rows = memory[0:2048].view(X.dtype, (8, 64), tile.swizzled(X.dtype, (8, 64), 128))
    sums = memory[2048:4096].view(X.dtype, (8, 64))
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(rows.nbytes)
        tile.copy_async(rows, X[0:8, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.store(sums, tile.load(rows) + 1)
    tile.sync()
    both = memory.view(X.dtype, (16, 64))
    tile.copy(Y[0:8, 0:64], both[8:16, :])


CASES = {bits: lambda x: x.view(np.int32), halves: lambda x: x.view(np.uint16), permuted: lambda x: x.T, reshaped: lambda x: x.reshape(16, 32),
         arena: lambda x: x + 1, slots: lambda x: x.view(np.int32).reshape(2, 64, 4)}


@pytest.mark.parametrize("kernel", CASES, ids=lambda k: k.name)
def test_a_view_shows_the_same_bytes(kernel):
    want = np.ascontiguousarray(CASES[kernel](X))
    got = np.zeros_like(want)
    kernel.simulate(1, X, got).raise_first()
    np.testing.assert_array_equal(got, want)


def test_a_shape_or_an_order_may_be_a_tuple_or_separate_arguments_as_in_numpy():
    """For buffers and tiles; one extent may be -1."""
    @tile.jit
    def taken(X, Y):
        s = tile.alloc((8, 64), X.dtype)
        tile.copy(s, X[0:8, 0:64])
        tile.sync()
        assert s.reshape(32, 16).shape == s.reshape((32, -1)).shape == s.reshape(-1, 16).shape == s.reshape(shape=(32, 16)).shape == (32, 16)
        assert s.reshape(512).shape == s.reshape(-1).shape == (512,) and s.permute(1, 0).shape == s.permute((1, 0)).shape == (64, 8)
        t = tile.load(s.reshape(2, 4, 64).permute(2, 0, 1))
        assert t.transpose(0, 2, 1).shape == t.transpose((0, 2, 1)).shape == (64, 4, 2) and t.transpose().shape == (4, 2, 64)
        tile.store(Y[0:64, 0:8], t.reshape(64, 8))

    got = np.zeros((64, 8), np.float32)
    taken.simulate(1, X, got).raise_first()
    np.testing.assert_array_equal(got, X.T)


def test_a_view_allocates_no_memory():
    compiled = arena.compile(X, X)
    assert compiled.shared_bytes <= 4096 + 128
    assert [c.variant for c in compiled.copies if c.op == "copy_async"] == ["tma"]


@settings(max_examples=20, deadline=None)
@given(st.permutations(["ready", "rows", "line", "ring", "last"]))
def test_shared_memory_is_allocated_without_holes_in_any_order_of_allocations(order):
    """Barriers, swizzled rows of 128 bytes, a few elements, a ring: the largest alignments come first."""
    made = {"ready": "tile.mbarrier(n=3)", "rows": "tile.alloc((64, 64), tile.float16, layout=tile.swizzled(tile.float16, (64, 64), 128))",
            "line": "tile.alloc((12,), tile.float32)", "ring": "tile.ring(2, A=((64, 64), tile.float16), consumers=1)", "last": "tile.mbarrier()"}
    kernel = tile.jit(source="def kernel(x):\n" + "".join(f"    {name} = {made[name]}\n" for name in order)
                      + "    tile.store(rows, 1.0)\n    tile.store(line, 1.0)\n    ready[0].arrive()\n    last.arrive()\n"
                      "    with ring.produce() as slot:\n        tile.copy_async(slot.A, x[0:64, 0:64], mbar=slot.full)\n")
    needed = 3 * 8 + 64 * 64 * 2 + 12 * 4 + 2 * (64 * 64 * 2 + 2 * 8) + 8
    assert needed <= kernel.compile(tile.ArraySpec((64, 64), tile.float16), target="sm_90a").shared_bytes <= needed + 127


def test_reading_through_another_view_needs_a_barrier():
    @tile.jit(num_warps=2)
    def racing(X, Y):
        s = tile.alloc((8, 64), X.dtype)
        with tile.warp(0):
            tile.store(s, tile.load(X[0:8, 0:64]))
        with tile.warp(1):
            tile.copy(Y[0:8, 0:64], s.view(tile.int32))
    with pytest.raises(SimulationError):
        racing[1](X, np.zeros((8, 64), np.int32))


def test_invalid_views_are_errors():
    def refused(match, body):
        with pytest.raises(CompilationError, match=match):
            tile.jit(body).compile(X)

    def larger(X):
        tile.alloc((64,), X.dtype).view(shape=(65,))
    refused("the view takes 260 bytes, and .* has 256", larger)

    def odd(X):
        tile.alloc((3,), tile.uint8, align=128).view(tile.uint16)
    refused("no whole number of uint16", odd)

    def unaligned(X):
        tile.alloc((1024,), tile.uint8)[64:192].view(tile.float32)
    refused("multiple of 128 bytes, and this one at byte 64", unaligned)

    def swizzled(X):
        tile.alloc((4096,), tile.uint8)[0:2048].view(X.dtype, (8, 64), tile.swizzled(X.dtype, (8, 64), 128))
    refused("give align=1024", swizzled)

    def running(X):
        tile.alloc((4, 256), tile.float32)[tile.program_id(0), 0:128].view(tile.int32)
    refused("known at compile time", running)

    def between(X):
        tile.alloc((4, 24), tile.float32)[tile.program_id(0)].view(tile.int32)
    refused("the buffer's parts are 96 apart", between)

    def scattered(X):
        tile.alloc((4, 256), tile.float32)[:, 0:128].view(tile.int32)
    refused("not contiguous: take the whole of every dimension but the first", scattered)

    def outside(X):
        X[0:8, 0:64].view(tile.int32)
    refused("the CTA's own shared memory", outside)

    def reshaped(X):
        tile.load(X.reshape((64, 8))[0:8, 0:8])
    refused("not a global buffer .*; arrays are reshaped, permuted and viewed by their library, before the launch", reshaped)

    def order(X):
        tile.alloc((4, 256), tile.float32).permute((0, 0))
    refused("no order of 2 dimensions", order)

    def fewer(X):
        tile.alloc((4, 256), tile.float32).permute(0)
    refused(r"tuple \(0,\) is no order of 2 dimensions", fewer)

    def no_extent(X):
        tile.alloc((4, 256), tile.float32).reshape(3, -1)
    refused(r"a buffer of 1024 elements has no shape \[3, 341\]", no_extent)

    def two_extents(X):
        tile.alloc((4, 256), tile.float32).reshape(-1, -1)
    refused(r"one extent of a shape may be -1, and the others are at least 0, not \[-1, -1\]", two_extents)

    def negative(X):
        tile.zeros((4, 256)).reshape((-4, -256))
    refused(r"one extent of a shape may be -1, .* not \[-4, -256\]", negative)

    def elements(X):
        tile.alloc((4, 256), tile.float32).reshape((5, 256))
    refused("a buffer of 1024 elements has no shape", elements)


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_views_work_on_the_gpu():
    for kernel, meaning in CASES.items():
        want = np.ascontiguousarray(meaning(X))
        got = tile.to_device(np.zeros_like(want), 0)
        kernel[1,](tile.to_device(X, 0), got)
        np.testing.assert_array_equal(got.numpy(), want)
