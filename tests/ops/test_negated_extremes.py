"""Maxima and minima of negated integers: the assembler must not drop a negation (see `toolchain.assembler_faults.kept_negations`)."""

import re

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@tile.jit
def extremes(x, y, z, o, at):
    a, b, c = tile.load(x[0:64, 0:33]), tile.load(y[0:64, 0:33]), tile.load(z[0:64, 0:33])
    tile.store(o[0, 0:64, 0:33], tile.maximum(tile.maximum(a, -b), c))
    tile.store(o[1, 0:64, 0:33], tile.minimum(tile.minimum(-a, -b), -c))
    tile.store(o[2, 0:64, 0:33], tile.maximum(tile.maximum(a * -1, b // -1), 0 - c))
    tile.store(o[3, 0:64, 0], tile.max(-a, axis=1))
    tile.store(o[4, 0:64, 0], tile.min(0 - b, axis=1))
    tile.store(at[0, 0:64], tile.argmax(-c, axis=1))
    tile.store(at[1, 0:64], tile.argmin(a // -1, axis=1))


def expected(x, y, z):
    a, b, c = x, y, z
    with np.errstate(all="ignore"):
        o = np.zeros((5, 64, 33), x.dtype)
        o[0] = np.maximum(np.maximum(a, -b), c)
        o[1] = np.minimum(np.minimum(-a, -b), -c)
        o[2] = np.maximum(np.maximum(-a, -b), -c)
        o[3, :, 0], o[4, :, 0] = (-a).max(axis=1), (-b).min(axis=1)
        return o, np.stack([(-c).argmax(axis=1), (-a).argmin(axis=1)]).astype(np.int32)


def arguments(dtype):
    rng, limits = np.random.default_rng(5), np.iinfo(dtype)
    wide = [rng.integers(max(limits.min + 1, -2**31), min(limits.max, 2**31), (64, 33)).astype(dtype) for _ in range(3)]
    return [*wide, np.zeros((5, 64, 33), dtype), np.zeros((2, 64), np.int32)]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d[0] == "i"])
def test_extremes_of_negated_integers_are_numpy_s(dtype):
    given = arguments(dtype)
    extremes[(1,)](*given)
    for got, want in zip(given[3:], expected(*given[:3])):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d[0] == "i"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_no_negation_beside_signed_extremes_reaches_the_assembler(dtype, target):
    ptx = extremes.compile(*arguments(dtype), target=target).ptx
    assert not re.search(r"\bneg\.s(16|32)\b", ptx) and (dtype == "int64" or re.search(r"\b(max|min)\.s(16|32)", ptx))


def test_negations_without_extremes_stay():
    ptx = tile.jit(source="def k(x):\n    tile.store(x[0:32], -tile.load(x[0:32]))\n").compile(np.zeros(32, np.int32), target="sm_90a").ptx
    assert re.search(r"\bneg\.s32\b", ptx)


@needs_gpu()
@in_child(timeout=120)
def test_extremes_of_negated_integers_are_numpy_s_on_the_gpu():
    for dtype in (d for d in DTYPES if d[0] == "i"):
        for warps in (1, 4):
            given = arguments(dtype)
            there = [tile.to_device(x) for x in given]
            extremes[(1,)](*there, num_warps=warps)
            for got, want in zip(there[3:], expected(*given[:3])):
                np.testing.assert_array_equal(got.numpy(), want, err_msg=dtype)
