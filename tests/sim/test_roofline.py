"""What simulations count, and the least time that a GPU needs for it."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.roofline import GPUS, Gpu


@tile.jit
def product(a, b, c, BLOCK: tile.constexpr):
    m, n = tile.program_id(0), tile.program_id(1)
    acc = tile.zeros((BLOCK, BLOCK), tile.float32)
    for k in tile.pipelined(range(tile.cdiv(a.shape[1], BLOCK)), stages=2):
        acc = tile.dot(tile.load(a.tiles((BLOCK, BLOCK))[m, k]), tile.load(b.tiles((BLOCK, BLOCK))[k, n]), acc)
    tile.store(c.tiles((BLOCK, BLOCK))[m, n], acc)


def operands(m, n, k, dtype="float16"):
    return np.ones((m, k), dtype), np.ones((k, n), dtype), np.empty((m, n), "float32")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_products_count_2mnk_operations_on_the_tensor_cores_of_every_target(target):
    counts = product.simulate((2, 1), *operands(128, 64, 192), BLOCK=64, target=target).counts
    assert counts.flops == {"tensor cores, float16": 2 * 128 * 64 * 192}
    assert counts.once == 2 * (128 * 192 + 192 * 64) + 4 * 128 * 64
    assert counts.by_space()["global"] >= counts.once and counts.ctas == 2


def test_products_by_threads_count_as_ordinary_arithmetic():
    counts = product.simulate((1, 1), *operands(16, 16, 32, "float32"), BLOCK=16).counts
    assert counts.flops == {"float32": 2 * 16 * 16 * 32}


@tile.jit(num_warps=1)
def mixed(x, y, WIDTH: tile.constexpr):
    shared = tile.alloc((WIDTH,), x.dtype)
    tile.store(shared, tile.load(x[0:WIDTH]))
    tile.sync()
    v = tile.load(shared)
    v = tile.fma(v, v, v)
    index = tile.arange(WIDTH) + 1
    tile.store(y[0:WIDTH], tile.where(index > 3, tile.exp(v), v - tile.sum(v)))


def test_other_arithmetic_counts_elements_of_float_tiles_and_shared_memory_what_threads_move():
    x = np.ones(64, "float32")
    counts = mixed.simulate((3,), x, np.empty_like(x), WIDTH=64).counts
    # a fused multiply-add, an exponential, a difference and a sum; neither integers nor selections
    assert counts.flops == {"float32": 3 * 64 * (2 + 1 + 1 + 1)}
    assert counts.by_space()["shared"] == 6 * 256
    assert counts.once == 512 and counts.by_space()["global"] == 3 * 512


def test_an_array_that_is_read_and_written_is_moved_twice():
    @tile.jit
    def double(x):
        tile.store(x[0:64], tile.load(x[0:64]) * 2)
    assert double.simulate((1,), np.ones(64, "float32")).counts.once == 512


def test_the_bound_is_the_resource_that_takes_longest():
    report = product.simulate((2, 1), *operands(128, 64, 192), BLOCK=64)
    gpu = Gpu("toy", 2, 1e9, {"tensor cores, float16": 1e12})
    roofline = report.roofline(gpu)
    assert roofline.bound == "memory" and roofline.seconds == report.counts.once / 1e9
    assert roofline.times["tensor cores, float16"] == 2 * 128 * 64 * 192 / 1e12
    assert roofline.intensity == 2 * 128 * 64 * 192 / report.counts.once
    wide = report.roofline(Gpu("wide", 4, 1e15, {"tensor cores, float16": 1e12}))    # two CTAs occupy half of it
    assert wide.bound == "tensor cores, float16" and wide.seconds == 2 * 128 * 64 * 192 / 5e11
    assert "2 CTAs occupy at most 2 of 4 multiprocessors" in str(wide)
    assert "no peak is known" in str(report.roofline(Gpu("bare", 1, 1e9, {})))


def test_the_gpus_have_the_peaks_of_their_data_sheets_and_others_are_refused():
    assert {name: gpu.bandwidth for name, gpu in GPUS.items()} == {"H100": 3.35e12, "H200": 4.8e12, "B200": 8e12}
    assert GPUS["B200"].flops["tensor cores, float16"] == 2250e12
    report = product.simulate((1, 1), *operands(16, 16, 16, "float32"), BLOCK=16)
    with pytest.raises(tile.LaunchError, match=r"no peaks are known of 'H20' \(did you mean 'H200'\?\)"):
        report.roofline("H20")


def test_a_launch_that_does_nothing_has_no_bound():
    @tile.jit
    def idle(x):
        pass
    roofline = idle.simulate((1,), np.ones(4, "float32")).roofline("H100")
    assert roofline.bound == "nothing" and roofline.seconds == 0 and roofline.intensity is None
