"""The matrix product of tilejit.kernels on Blackwell: its own configurations and code (common tests are in test_matmul.py)."""

from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit import ArraySpec, kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul.blackwell.config import TILES, BlackwellConfig, choose
from tilejit.kernels.matmul.blackwell.mainloop import NUM_WARPS
from tilejit.kernels.matmul.blackwell.persistent import persistent
from tilejit.kernels.matmul.blackwell.split import split
from tilejit.kernels.matmul.choice import Config, Problem
from tilejit.kernels.matmul.config import SHARED
from tilejit.kernels.matmul.constants import BlackwellPersistentConstants, BlackwellSplitConstants

from tests.drawn import drawn
from tests.mma.products import BF16, E4M3, EXTENT, LAYOUTS, OPERANDS, assert_close, multiplying_on, product, with_layout

SLOW = [HealthCheck.too_slow]


@pytest.fixture(autouse=True, scope="module")
def blackwell():
    """Multiply NumPy arrays as on Blackwell."""
    with multiplying_on("sm_100a"):
        yield


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(m=EXTENT, n=EXTENT, steps=st.integers(0, 7), over=st.integers(-3, 3), tile_=st.sampled_from(TILES), stages=st.integers(2, 4),
       swapped=st.booleans(),
       splits=st.sampled_from((1, 1, 2, 4, 8)),
       dtypes=st.sampled_from(OPERANDS), width=st.sampled_from((8, 16, 32, 64)), out=st.sampled_from((None, np.float32)), a_is=LAYOUTS, b_is=LAYOUTS,
       seed=st.integers(0, 99))
def test_every_configuration_gives_the_product(m, n, steps, over, tile_, stages, swapped, splits, dtypes, width, out, a_is, b_is, seed):
    """0, 1, stages - 1, stages, stages + 1 k-steps, tiles larger and smaller than the matrices, one
    CTA or two, any split of k (including parts without a k-step)."""
    rng = np.random.default_rng(seed)
    size = np.dtype(dtypes[0]).itemsize
    k = max(128 // size * steps + over, 0)
    a, b = with_layout(drawn(rng, (m, k), dtypes[0]), a_is), with_layout(drawn(rng, (k, n), dtypes[1]), b_is)
    out = None if np.dtype(dtypes[0]).kind in "iu" else out
    stored = np.dtype(out).itemsize if out else {1: 2, 2: 2, 4: 4}[size] if np.dtype(dtypes[0]).kind not in "iu" else 4
    splits = 1 if tile_[1] or tile_[0] // splits < 8 or tile_[0] == 256 else splits
    config = BlackwellConfig.of(*tile_, swapped, size, stored, stages, splits=splits)
    assert_close(product(a, b, out, config=replace(config, width=min(width, config.width))), a, b)


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_events_gives_the_product(pair, seed):
    """More tiles than CTAs: both accumulators are reused while earlier tiles are stored."""
    rng = np.random.default_rng(seed)
    a, b, c = drawn(rng, (400, 200), BF16), drawn(rng, (300, 200), BF16), np.full((400, 300), np.nan, np.float32)
    config = BlackwellConfig.of(64, pair, stored=4, stages=2)
    persistent.simulate(2, a, b, c, 1.0, 1.0, 0, 0, 0, 0, **constants(config), seed=seed, target="sm_103a").raise_first()
    assert_close(c, a, b.T)


def constants(c: BlackwellConfig, a_km=False, b_kn=False, by_tma=True) -> dict:
    plan = BlackwellPersistentConstants(bn=c.bn, bk=c.bk, stages=c.stages, order=c.order, pair=c.pair, a_km=a_km, b_kn=b_kn, sums=tile.float32,
                                        width=c.width, by_tma=by_tma, buffers=2, places=2)
    return dict(PLAN=plan, num_warps=NUM_WARPS, cluster=2 if c.pair else None)


# -- code and choice ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn"])
def test_the_largest_tile_assembles_without_spills(target, pair, dtype):
    """One product per 32 bytes of k, a commit per slot and per tile, TMA both ways."""
    size = {"bfloat16": 2, "float32": 4, "float8_e4m3fn": 1}[dtype]
    stored = "bfloat16" if size == 1 else dtype
    c = BlackwellConfig.of(256, pair, itemsize=size, stored=max(size, 2))
    specs = [ArraySpec((8192, 8192), dtype), ArraySpec((8192, 8192), dtype), ArraySpec((8192, 8192), stored)]
    compiled = persistent.compile(*specs, 1.0, 1.0, 0, 0, 0, 0, **constants(c), target=target)
    assert compiled.spills == 0 and compiled.registers <= 168
    assert {x.variant for x in compiled.copies} == {"tma", "tcgen05_ldst"}
    assert compiled.ptx.count("tcgen05.mma.cta_group") == 4 and compiled.ptx.count("tcgen05.commit") == 2


def test_the_chosen_tile_depends_on_the_waves():
    """Large matrices get the largest tile, in pairs, which read half as much of B; with few rows, operands are swapped."""
    assert (choose(Problem(8192, 8192, 8192), 148).bn, choose(Problem(8192, 8192, 8192), 148).pair) == (256, True)
    assert choose(Problem(16, 8192, 8192), 148).swapped
    small = choose(Problem(512, 512, 512), 148)
    assert not small.pair and small.bn <= 64
    assert choose(Problem(64, 64, 65536), 148).splits == 8


def test_every_choice_fits_in_shared_memory():
    for itemsize in (1, 2, 4):
        for m, n, k in ((1, 1, 1), (7, 5000, 100000), (300, 300, 300), (4096, 4096, 4096), (100000, 40, 70)):
            c = choose(Problem(m, n, k, 1, itemsize, 4), 148)
            ring = c.stages * (128 + c.bn // (2 if c.pair else 1)) * c.bk * itemsize
            aside = 2 * 128 * (c.width if c.splits == 1 else c.bn) * 4
            assert c.stages >= 2 and ring + aside <= SHARED and c.width * 4 <= 128


def test_wrong_targets_and_configurations_are_errors(monkeypatch):
    """Targets without a kernel, integers where tensor cores have none, another target's configuration."""
    a, i = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.int8)
    with pytest.raises(LaunchError, match="config is a BlackwellConfig for sm_100a"):
        kernels.matmul(a, a, config=Config())
    monkeypatch.setenv("TILEJIT_TARGET", "sm_103a")
    with pytest.raises(LaunchError, match="sm_103a multiply no integers"):
        kernels.matmul(i, i)
    monkeypatch.setenv("TILEJIT_TARGET", "sm_80")
    with pytest.raises(LaunchError, match="the target is sm_80"):
        kernels.matmul(a, a)
    monkeypatch.setenv("TILEJIT_TARGET", "sm_90a")
    with pytest.raises(LaunchError, match="config is a Config for sm_90a"):
        kernels.matmul(a, a, config=BlackwellConfig())


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_a_split_of_k_assembles_without_spills(target):
    """Partial sums go from CTA to CTA by bulk copies, and one commit covers all products."""
    c = BlackwellConfig.of(64, splits=4)
    spec = ArraySpec((64, 65536), "bfloat16")
    plan = BlackwellSplitConstants(bn=c.bn, bk=c.bk, stages=c.stages, splits=c.splits, a_km=False, b_kn=False, sums=tile.float32)
    compiled = split.compile(spec, spec, ArraySpec((64, 64), "bfloat16"), 1.0, 1.0, 0, 0, 0, 0, PLAN=plan, num_warps=NUM_WARPS, cluster=c.splits, target=target)
    assert compiled.spills == 0 and {x.variant for x in compiled.copies} == {"tma", "dsmem", "tcgen05_ldst"}
    assert compiled.ptx.count("tcgen05.commit") == 2


@tile.jit
def scaled_residual(acc, row, column, factor, residual, other):
    return acc * factor + residual - tile.cast(other, tile.float32)


@pytest.mark.parametrize("config", [None, BlackwellConfig.of(32, False, True, stored=4, epilogue=True),
                                    BlackwellConfig.of(64, stored=4, epilogue=True, splits=2)])
def test_prefetched_epilogue_tiles_work_and_block_scales_are_hopper_s(config):
    """Arrays of the result's shape reach the epilogue; float32 scales for blocks of 128 only exist on Hopper, and the error says so."""
    rng = np.random.default_rng(5)
    a, b = drawn(rng, (150, 200), E4M3), with_layout(drawn(rng, (200, 72), E4M3), "columns")
    residual, other = drawn(rng, (150, 72), np.float32), drawn(rng, (150, 72), np.float16)
    got = product(a, b, np.float32, epilogue=scaled_residual, arguments=(0.5,), tiles=(residual, other), config=config)
    want = 0.5 * (a.astype(np.float64) @ b.astype(np.float64)) + residual - other
    np.testing.assert_allclose(got, want, atol=1e-3, rtol=1e-5)
    with pytest.raises(LaunchError, match="on Blackwell, not of float32"):
        kernels.matmul(a, b, scale_a=np.ones((150, 2), np.float32), scale_b=np.ones((2, 72), np.float32))
