"""Stores of 16-bit results of a product: lanes exchange words, so that each stores 16 contiguous bytes of a row instead of four."""

import re

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.dtypes import float16, float32
from tilejit.layout import exchange_registers, thread_table
from tilejit.layout.fragments import wgmma_accumulator
from tilejit.ops.tiles.layout_change import _exchange, register_exchange
from tilejit.types import Tile

from tests.gpu import for_references, in_child, needs_gpu, needs_module

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


class Warps:
    """An emitter whose values are arrays over the threads: words of one or two elements."""

    def __init__(self, threads: int):
        self.threads, self.warp = threads, self  # the component for warps

    def asm(self, text, outputs, inputs):
        assert text == "mov.u32 $0, %laneid;"
        return [Lanes(np.arange(self.threads) % 32)]

    def to_units(self, x, dtype):
        per = 4 // dtype.nbytes
        return [np.stack(x[n:n + per], -1) for n in range(0, len(x), per)]

    def from_units(self, words, dtype, n):
        return [w[..., i] for w in words for i in range(4 // dtype.nbytes)]

    def select(self, test, a, b):
        return np.where(test[:, None], a, b)

    def shuffle(self, kind, value, by):
        return value[np.arange(self.threads) ^ by]


class Lanes(np.ndarray):
    def __new__(cls, values):
        return np.asarray(values).view(cls)

    def equals(self, n):
        return np.asarray(self == n)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([float16, float32]), st.sampled_from([64, 128, 192]), st.integers(1, 32))
def test_an_exchange_gives_every_thread_the_elements_of_the_longer_run(dtype, m, eighths):
    layout, domain = wgmma_accumulator(m, 8 * eighths)
    source, threads = Tile(dtype, (m, 8 * eighths), layout, domain), 128
    longer = exchange_registers(layout, domain, 1)
    assert (longer is None) == (eighths % 4 != 0)
    if longer is None:
        return
    target = Tile(dtype, source.shape, longer, domain)
    by = register_exchange(source, target)
    have, need = (thread_table(t.layout, t.domain, threads) for t in (source, target))
    assert (np.diff(np.sort(need, 1).reshape(threads, -1, 8)) == 1).all() and (by.bits, by.lane) == (2, 0)
    np.testing.assert_array_equal(np.stack(_exchange(Warps(threads), list(have.T), dtype, by), 1), need)


@tile.jit
def halves(A, B, C, BM: tile.constexpr, BN: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN))
    for k in range(0, A.shape[1], 32):
        acc = tile.dot(tile.load(A[m:m + BM, k:k + 32]), tile.load(B[n:n + BN, k:k + 32]).T, acc)
    tile.store(C[m:m + BM, n:n + BN], acc)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_of_16_bits_are_stored_in_16_byte_pieces_without_shared_memory(target, dtype):
    square = tile.ArraySpec((1024, 1024), "float16")
    made = halves.compile(square, square, tile.ArraySpec((1024, 1024), dtype), BM=64, BN=64, target=target)
    stores = re.findall(r"st\.global\.(\S+)", made.ptx)
    assert set(stores) == {"v4.b32"} and made.spills == 0
    if target != "sm_100a":  # there, a thread has whole rows
        assert made.ptx.count("shfl.sync.bfly") == 16 and len(stores) == 4


@pytest.mark.parametrize("n, dtype", [(1024, "float32"), (1023, "float16"), (1026, "float16")])
def test_results_of_32_bits_and_rows_that_do_not_allow_16_byte_stores_are_stored_unchanged(n, dtype):
    """Eight bytes from each of four lanes fill a sector."""
    wide = tile.ArraySpec((1024, 1024), "float16")
    made = halves.compile(wide, wide, tile.ArraySpec((1024, n), dtype), BM=64, BN=64, target="sm_90a")
    assert "shfl.sync.bfly" not in made.ptx and "v4.b32" not in re.findall(r"st\.global\.(\S+)", made.ptx)


@needs_module("torch")
@needs_gpu()
@in_child(timeout=240)
def test_results_stored_in_16_bits_are_right_on_the_gpu():
    import torch
    a, b = (torch.randint(-3, 4, (300, 96), device="cuda").half() for _ in range(2))
    x, y = (v.to(for_references()).double() for v in (a, b))
    want = x @ y.T
    for dtype in (torch.float16, torch.float32):
        for columns in (300, 296, 1):
            for bm, bn, warps in ((64, 32, 4), (64, 96, 4), (128, 256, 8), (64, 64, 1), (32, 128, 2), (64, 40, 4)):
                c = torch.full((300, columns), -1, device="cuda", dtype=dtype)
                halves[-(-300 // bm), -(-columns // bn)](a, b, c, BM=bm, BN=bn, num_warps=warps)
                assert (c.to(want.device).double() == want[:, :columns]).all(), (dtype, columns, bm, bn, warps)
