"""Helpers for tests of products into tensor memory: operands in shared memory, accumulators in tensor memory."""

import ml_dtypes
import numpy as np
import tilejit as tile
from tilejit.layout import TileLayout, tmem_datapath
from tilejit.ops.mma.tcgen05_kinds import KINDS

BOTH = ("sm_100a", "sm_103a")


def accumulator(m, n, acc):
    layout, per = tmem_datapath("D" if m == 128 else "F", n), 32 // acc.bits
    return TileLayout([(e, s * per if a == "TCol" else s, a) for e, s, a in layout.shards])


def memory_dtype(name, kind):
    """The dtype of shared memory elements for an operand of PTX type `name` of a kind."""
    dtype = tile.ArraySpec((), VALUES[name].__name__).dtype
    return tile.padded(dtype) if dtype.packed and KINDS[kind].k != 64 else dtype


VALUES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m3": ml_dtypes.float6_e2m3fn, "e3m2": ml_dtypes.float6_e3m2fn,
          "e2m1": ml_dtypes.float4_e2m1fn}


def packed(shape, name, kind, seed):
    """Random elements: (bytes in memory, numeric values)."""
    rng = np.random.default_rng(seed)
    bits = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(name, 8)
    codes = rng.integers(0, 1 << bits, shape).astype(np.uint8)
    if bits == 8:
        codes = np.where(np.isfinite(codes.view(VALUES[name]).astype(np.float64)), codes, 0).astype(np.uint8)
    values = codes.view(VALUES[name]).astype(np.float64)
    if KINDS[kind].k == 64:
        return codes[:, 0::2] | codes[:, 1::2] << 4, values
    if bits == 8:
        return codes, values
    data = np.zeros((*shape[:1], shape[1] // 16, 16), np.uint8)
    for k in range(16):
        for bit in range(bits):
            at = k * bits + bit
            data[..., at // 8] |= (codes.reshape(*data.shape)[..., k] >> bit & 1) << at % 8
    return data.reshape(shape), values
