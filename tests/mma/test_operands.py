"""Operands that are not in a layout that wgmma reads from shared memory: loaded through registers, or copied first."""

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit import ArraySpec, kernels
from tilejit.kernels.matmul.choice import Config, Problem, choose
from tilejit.kernels.matmul.hopper.persistent import persistent
from tilejit.kernels.matmul.hopper.stream import stream
from tilejit.kernels.pack import copy_readable, packed
from tilejit.layout import thread_table
from tilejit.layout.fragments import wgmma_a_registers
from tilejit.runtime.arrays import ArrayView, describe

from tests.drawn import drawn
from tests.mma.products import assert_close, planned_views, product, with_layout

DTYPES = (np.float32, np.float16, np.int8, ml_dtypes.float8_e4m3fn)


def planned(a, b, dtype=np.float32, config=None):
    """The planned launch for two matrices of TF32 or another type."""
    return planned_views(describe(a), describe(b), None, config, "tf32" if dtype == np.float32 else None)


def matrix(rows, columns, how, dtype=np.float32):
    return with_layout(np.zeros((rows, columns), dtype), how)


@pytest.mark.parametrize("a_is,b_is,swapped,copies", [("rows", "columns", False, (False, False)), ("rows", "rows", True, (False, False)),
                                                      ("columns", "columns", False, (False, False)), ("columns", "rows", None, None)])
def test_one_float32_operand_can_be_read_without_a_copy(a_is, b_is, swapped, copies):
    """The operand that is not K-major goes through registers; if neither is, only one is copied."""
    launch = planned(matrix(1024, 2048, a_is), matrix(2048, 1536, b_is))
    if copies is None:
        assert sum(launch.copied) == 1 and launch.plan.a_km
    else:
        assert (launch.swapped, launch.copied) == (swapped, copies) and launch.plan.a_km == (a_is == "columns" or b_is == "rows")


def test_the_smaller_of_two_operands_is_copied():
    for m, n in ((8192, 256), (256, 8192)):
        launch = planned(matrix(m, 1024, "columns"), matrix(1024, n, "rows"))
        left, right = (n, m) if launch.swapped else (m, n)
        assert launch.copied[0] == (left < right) and launch.copied[1] == (right < left)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=st.sampled_from((1, 60, 132, 200)), n=st.sampled_from((4, 68, 128, 300)), steps=st.integers(0, 6), over=st.integers(-3, 3),
       bm=st.sampled_from((64, 128, 192)), bn=st.sampled_from((32, 64)), splits=st.sampled_from((1, 1, 2)), behind=st.booleans(),
       stages=st.integers(2, 4), width=st.sampled_from((8, 32, 64)), how=st.sampled_from(("swapped", "plain", "by columns")), seed=st.integers(0, 99))
def test_every_kernel_supports_float32_through_registers(m, n, steps, over, bm, bn, splits, behind, stages, width, how, seed):
    """Any number of k-steps with one register set and with two, whichever operand it is, row-major and column-major results."""
    rng, k = np.random.default_rng(seed), max(32 * steps + over, 0)
    swapped = how == "swapped"
    a, b = drawn(rng, (m, k), np.float32), drawn(rng, (k, n), np.float32)
    a, b = with_layout(a, "rows" if swapped else "columns"), with_layout(b, "rows" if swapped else "columns")
    config = replace(Config.of(bm, bn, 32, splits=splits, swapped=swapped, itemsize=4, stored=4, stages=stages), behind=behind,
                     width=min(width, bn), buffers=1)
    if how != "by columns":
        assert_close(product(a, b, config=config), a, b)
        return
    out = np.full((n, m), np.nan, np.float32).T
    assert_close(kernels.matmul(a, b, out, precision="tf32", config=config), a, b)


def test_an_epilogue_gets_rows_in_order():
    @tile.jit
    def numbered(acc, row, column, by_row, by_column, residual):
        at = tile.load(by_row[row:row + acc.shape[0]])[:, None] + tile.load(by_column[column:column + acc.shape[1]])[None, :]
        return acc + at + residual

    rng = np.random.default_rng(3)
    by_row, by_column, residual = (rng.integers(-99, 99, s).astype(np.float32) for s in ((200,), (136,), (200, 136)))
    for a_is, b_is in (("rows", "rows"), ("columns", "columns")):
        a, b = (with_layout(rng.integers(-3, 4, s).astype(np.float32), how) for s, how in (((200, 104), a_is), ((104, 136), b_is)))
        for shared in (False, True):
            config = replace(Config.of(128, 64, itemsize=4, stored=4, swapped=b_is == "rows", stages=2), stream=shared)
            got = product(a, b, epilogue=numbered, arguments=(by_row, by_column), tiles=(residual,), config=config)
            np.testing.assert_array_equal(got, a @ b + by_row[:, None] + by_column[None, :] + residual)


# -- code ------------------------------------------------------------------------------------------------------------------

def banks(addresses: np.ndarray, nbytes: int) -> int:
    """The passes of a warp's access to shared memory, with `nbytes` at each of 32 addresses."""
    together, most = 128 // nbytes, 0
    for part in addresses.reshape(-1, together):
        words = np.unique(part[:, None] // 4 + np.arange(nbytes // 4))
        most = max(most, np.bincount(words % 32).max())
    return most


@pytest.mark.parametrize("behind", [False, True])
def test_the_largest_tile_of_float32_through_registers_compiles_to_fast_code(behind):
    """No spills, no product waits for another's registers (the assembler's advisories would be errors), 8 bytes per load,
    results by TMA."""
    c = Config.of(128, 256, itemsize=4, stored=4, swapped=True, width=32)
    launch = planned(*[np.empty((8192, 8192), np.float32)] * 2, config=c)
    right, left, out = (ArraySpec((8192, 8192), "float32", s) for s in (None, None, (1, 8192)))
    compiled = persistent.compile(left, right, out, 1.0, 1.0, 0, 0, 0, 0, **launch.with_plan(behind=behind).constants)
    assert compiled.spills == 0 and compiled.registers <= 168 and {c.variant for c in compiled.copies} == {"tma"}
    instructions = len(re.findall(r"wgmma\.mma_async\.sync", compiled.ptx))
    assert instructions >= 4 and len(re.findall(r"ld\.shared\.v2\.b32", compiled.ptx)) == 2 * instructions  # four words of A for each
    assert "m64n256k8.f32.tf32.tf32" in compiled.ptx and "convert_layout" not in compiled.graph


def test_global_addresses_stay_in_registers_in_kernels_with_a_shared_last_wave():
    """Few addresses of large products through registers spill, and only those used when tiles change."""
    for how, b_is in (("rows", "rows"), ("columns", "columns")):
        x, y = (ArrayView(0, (8192, 8192), (8192, 1) if h == "rows" else (1, 8192), "float32", "host") for h in (how, b_is))
        launch = planned_views(x, y, None, choose(Problem(8192, 8192, 8192, 1, 4, 4), 132, how == "rows"), "tf32")
        a, b, out = (ArraySpec((8192, 8192), "float32", s) for s in (None, None, (1, 8192) if launch.swapped else None))
        room = ArraySpec((132, 2, 64 * 256), "float32"), ArraySpec((1024, 3), "int32")
        compiled = stream.compile(a, b, out, 1.0, 1.0, 0, 0, 0, 0, *launch.shares, *room, **launch.constants)
        assert launch.kernel is stream and launch.plan.a_km and compiled.spills <= 160


def test_operands_are_loaded_to_registers_without_bank_conflicts():
    """The lanes of a half warp read 8 bytes each from different banks, in the row order of `entering`."""
    buffer = tile.swizzled(tile.float32, (32, 128), 128)
    held = np.asarray(thread_table(*wgmma_a_registers(64, 32, 32), 128)).reshape(4, 32, -1)
    bit = lambda i: held // 32 >> i & 1
    row, k = 32 * bit(5) + 8 * bit(4) + bit(3) + 4 * bit(2) + 16 * bit(1) + 2 * bit(0), held % 32
    at = np.array([buffer.apply(i)["m"] for i in range(32 * 128)])[k * 128 + row] * 4
    assert (at[:, :, 1::2] == at[:, :, ::2] + 4).all()
    assert all(banks(at[w, :, r], 8) == 1 for w in range(4) for r in range(0, at.shape[2], 2))


# -- copies ----------------------------------------------------------------------------------------------------------------

@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.integers(1, 140), columns=st.integers(1, 270), batch=st.sampled_from(((), (2,))), dtype=st.sampled_from(DTYPES),
       how=st.sampled_from(("rows", "columns", "offset", "spaced", "reversed")), k_first=st.booleans())
def test_copied_operands_have_the_same_numbers(rows, columns, batch, dtype, how, k_first):
    x = np.arange(np.prod((*batch, rows, columns))).reshape((*batch, rows, columns)) % 17
    x = x.astype(dtype)
    if how == "offset":  # column-major, with an unaligned start
        wide = np.zeros((*batch, columns, rows + 3), dtype)
        wide[..., 1:rows + 1] = x.swapaxes(-1, -2)
        x = wide[..., 1:rows + 1].swapaxes(-1, -2)
    else:
        x = with_layout(x, how)
    np.testing.assert_array_equal(np.asarray(copy_readable(x, k_first)).astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_transposing_copy_moves_16_bytes_at_once_on_both_sides(dtype):
    square = ArraySpec((8192, 8192), dtype)
    compiled = packed.compile(square, square, ROWS=64, COLUMNS=128 // np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize, TURNED=True)
    assert set(re.findall(r"(?:ld|st)\.global\S*", compiled.ptx)) == {"ld.global.v4.b32", "st.global.v4.b32"}
