"""Accumulators that are overwritten before anything has read them: the product stays in the code, and so do the writes."""

import re

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

HEAD = """def kernel(a, b, x, out, beside, n, zero):
    sa = tile.alloc((64, 64), tile.float16, layout=tile.auto)
    sb = tile.alloc((64, 64), tile.float16, layout=tile.auto)
    acc = tile.zeros((64, 64), tile.float32)
    for k in tile.pipelined(range(0, n, 64), stages=3):
        tile.copy_async(sa, a[k:k + 64, 0:64])
        tile.copy_async(sb, b[k:k + 64, 0:64])
        acc = tile.dot(sa, sb, acc, trans_a=True)
"""
TAIL = """    sx = tile.alloc((64, 16), tile.float16, layout=tile.auto)
    tile.copy(sx, x[0:64, 0:16])
    tile.sync()
    tile.store(beside[0:64, 0:16], tile.dot(tile.load(x[0:64, 0:64]), sx, tile.full((64, 16), 1, tile.float32)))
    tile.store(out[0:64, 0:64], acc)
"""
WAYS = {"a loop of one trip": ("for i in range(1):", "tile.full((64, 64), -2, tile.float32)"),
        "a loop of some trips": ("for i in range(1 + zero):", "tile.full((64, 64), -2, tile.float32)"),
        "a while loop": ("while zero < 1:\n        zero = zero + 1", "tile.full((64, 64), -2, tile.float32)")}
BRANCH = "if zero == 0:", "tile.full((64, 64), -2, tile.float32)"
WRITES = re.compile(r"(mov\.f32|lop3\.b32) acc0_\d+, %\w+")


def kernel(head, value):
    return tile.jit(source=f"{HEAD}    {head}\n        acc = {value}\n{TAIL}", num_warps=4)


def arguments(n=64):
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-2, 3, (192, 64)).astype(np.float16) for _ in range(2))
    x = rng.integers(-2, 3, (64, 64)).astype(np.float16)
    return a, b, x, np.zeros((64, 64), np.float32), np.zeros((64, 16), np.float32), n, 0


@pytest.mark.parametrize("way", WAYS)
def test_what_overwrites_an_unread_accumulator_names_its_registers_as_sources(way):
    code = kernel(*WAYS[way]).compile(*arguments(), target="sm_90a")
    assert WRITES.findall(code.ptx).count("lop3.b32") == 32
    assert "lop3.b32 acc0_31, " in code.ptx and ", acc0_31, acc0_31, 0xf0;" in code.ptx
    products = re.findall(r"HGMMA\.64x(\d+)x16", code.sass())
    assert products.count("64") == 4 and products.count("8") == 0


@pytest.mark.parametrize("way", WAYS)
def test_what_overwrites_an_accumulator_that_it_has_read_is_a_plain_move(way):
    """The accumulator's registers are free between the last read and the write."""
    code = kernel(WAYS[way][0], "acc * 0.5 + 1.0").compile(*arguments(), target="sm_90a")
    assert set(WRITES.findall(code.ptx)) == {"mov.f32"}


def test_a_branch_that_overwrites_an_accumulator_needs_plain_moves_only():
    """The other branch passes it on, so the product stays as it is."""
    code = kernel(*BRANCH).compile(*arguments(), target="sm_90a")
    assert set(WRITES.findall(code.ptx)) == {"mov.f32"}
    products = re.findall(r"HGMMA\.64x(\d+)x16", code.sass())
    assert products.count("64") == 4 and products.count("8") == 0


@needs_gpu("sm_90a")
@in_child(timeout=100)
def test_an_unread_accumulator_is_overwritten_on_the_gpu():
    for way in (*WAYS.values(), BRANCH):
        for n in (0, 64, 192):
            a, b, x, out, beside, *rest = arguments(n)
            kernel(*way)[(1,)](a, b, x, out, beside, *rest, backend="cuda")
            want = 1 + x.astype(np.float32) @ x[:, :16].astype(np.float32)
            assert (out == -2).all() and (beside == want).all(), (way, n)
