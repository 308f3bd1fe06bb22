"""Tiles of 256 rows, of which two consumers multiply 128 each: on the simulator compared with NumPy, on the GPU, the generated code, and
when the model chooses them."""

from dataclasses import replace
from itertools import product as product_of

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from tilejit import ArraySpec, kernels
from tilejit.errors import LaunchError, ToolchainError
from tilejit.kernels.matmul import config_rules
from tilejit.kernels.matmul.choice import HIGH, WIDEST, Problem, choose, rank_configs
from tilejit.kernels.matmul.config import Config, part

from tests.drawn import drawn
from tests.gpu import in_child, needs_gpu, some
from tests.mma.products import BF16, E4M3, LAYOUTS, added, assert_close, planned, plus_one, product, with_layout
from tests.mma.test_matmul_gpu import checked

EXTENT = st.one_of(st.integers(1, 40), st.sampled_from((127, 128, 129, 200, 257, 328, 520)))
PROCESSORS = 132


def high_config(bn, dtype=BF16, stages=8, swapped=False, **options):
    """A configuration for operands of the dtype, with 2-byte results or, for integers and float32, 4-byte ones."""
    stored = 4 if np.dtype(dtype) in (np.int8, np.float32) else 2
    return replace(Config.of(HIGH, bn, itemsize=np.dtype(dtype).itemsize, stored=stored, stages=stages, swapped=swapped, width=part(bn, 32, swapped)), **options)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, k=st.one_of(st.integers(0, 3), st.sampled_from((64, 65, 130, 200, 300))),
       dtype=st.sampled_from((BF16, np.float16, E4M3, np.int8)), bn=st.sampled_from((8, 64, 96, 128, 144, 192)), stages=st.integers(1, 4), behind=st.booleans(), swapped=st.booleans(), a_is=LAYOUTS, b_is=LAYOUTS,
       batch=st.sampled_from(((), (), (3,))), seed=st.integers(0, 99))
@example(m=520, n=520, k=300, dtype=BF16, bn=144, stages=3, behind=False, swapped=True, a_is="rows", b_is="columns", batch=(), seed=0)
@example(m=257, n=328, k=65, dtype=np.float16, bn=128, stages=2, behind=True, swapped=False, a_is="columns", b_is="rows", batch=(3,), seed=1)
def test_any_product_with_tiles_of_256_rows_is_right(m, n, k, dtype, bn, stages, behind, swapped, a_is, b_is, batch, seed):
    """One wave and several, swapped operands, last rows in either consumer's part, results that TMA cannot store."""
    rng = np.random.default_rng(seed)
    a, b = with_layout(drawn(rng, (*batch, m, k), dtype), a_is), with_layout(drawn(rng, (*batch, k, n), dtype), b_is)
    config = high_config(bn, dtype, stages=stages, behind=behind and stages > 1, swapped=swapped)
    assert_close(product(a, b, config=config, fast_accum=True), a, b)


@pytest.mark.parametrize("swapped", [False, True])
def test_epilogues_get_the_128_rows_of_a_consumer(swapped):
    rng = np.random.default_rng(0)
    a, b, beside = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((600, 200), (200, 264), (600, 264)))
    out, sums = np.empty((600, 264), np.float16), a.astype(np.float32) @ b.astype(np.float32)
    assert (kernels.matmul(a, b, out, plus_one, config=high_config(64, swapped=swapped)) == sums + 1).all()
    assert (kernels.matmul(a, b, out, added, tiles=(beside,), config=high_config(64, swapped=swapped)) == sums + beside).all()


def test_pairs_share_the_columns_of_tiles_of_256_rows():
    rng = np.random.default_rng(0)
    for m in (300, 700):
        a, b = drawn(rng, (m, 200), BF16), drawn(rng, (200, 264), BF16)
        assert_close(product(a, b, config=high_config(64, pair=True, order=("column", 1))), a, b)


@pytest.mark.parametrize("dtype,columns,words", [
    (np.float32, True, "column-major float32 is multiplied from registers, 64 rows per consumer: config.bm must be at most 192, not 256"),
    (E4M3, False, "where threads add up the sums of each slot, a consumer has 64 rows: the configuration's bm must be at most 192, not 256"),
])
def test_consumers_of_128_rows_have_no_registers_for_operands_or_for_accumulation_by_threads(dtype, columns, words):
    a, b = np.ones((300, 128), dtype), np.ones((64, 128), dtype).T
    with pytest.raises(LaunchError, match=words):
        product(np.asfortranarray(a) if columns else a, b, config=high_config(64, dtype))


def compiled(config, by_rows=False):
    big = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (5120, 5120), (10240, 2))
    spec, turned = ArraySpec((5120, 5120), "bfloat16"), ArraySpec((5120, 5120), "bfloat16", (1, 5120))
    launch = planned(big, big if by_rows else big.T, big, None, (), config)
    return launch.kernel.compile(spec, spec, turned if config.swapped else spec, 1.0, 1.0, 0, 0, 0, 0, target="sm_90a", **launch.constants)


@pytest.mark.parametrize("bn,swapped,by_rows", [*product_of((96, 136, 168, 184, 192), (True,), (False,)), *product_of((96, 144, 160, 192), (True,), (True,)),
                                                *product_of((128, 160, 192), (False,), (False, True))])
def test_the_tiles_that_the_model_chooses_do_not_spill(bn, swapped, by_rows):
    """B of both majors, and the widest results."""
    made = compiled(Config.of(HIGH, bn, swapped=swapped, width=part(bn, 48 if swapped else 32, swapped)), by_rows)
    assert made.spills == 0 and made.ptx.count(f"wgmma.mma_async.sync.aligned.m64n{bn}k16") % 8 == 0


@pytest.mark.parametrize("registers,most", [((40, 232), 200), ((40, 200), 168), ((None, None), 136)])
def test_a_consumer_s_registers_hold_exactly_the_tile_widths_that_are_accepted(registers, most, monkeypatch):
    """The rule agrees with the assembler."""
    widest = lambda bn: replace(Config.of(HIGH, bn, width=8), regs=registers)
    assert compiled(widest(most)).spills == 0
    with pytest.raises(LaunchError, match=f"with config.bm=256 config.bn must be at most {most}; 256 columns fit with 128 rows or fewer"):
        compiled(widest(most + 8))
    monkeypatch.setattr(config_rules, "BESIDE", (0, 0))
    with pytest.raises(ToolchainError, match="serialized"):
        compiled(widest(most + 8))


def test_the_model_chooses_them_for_plain_16_bit_products_of_one_wave():
    assert all(choose(Problem(*extents, across=(False, True)), PROCESSORS).bm == HIGH for extents in ((1300, 4096, 4096), (1500, 4096, 14336), (640, 8192, 8192)))
    found = [(c, c.tiles(*((4096, m) if c.swapped else (m, 4096)))) for m in range(100, 3000, 100) for c in rank_configs(Problem(m, 4096, 4096), PROCESSORS)]
    assert {c.splits for c, _ in found if c.bm == HIGH} == {1} and max(tiles for c, tiles in found if c.bm == HIGH) <= PROCESSORS
    assert max(c.bn for c, _ in found if c.bm == HIGH) <= WIDEST[HIGH]
    for other in (dict(itemsize=1), dict(stored=4), dict(epilogue=True), dict(promoted=(), itemsize=1)):
        assert not any(c.bm == HIGH for c in rank_configs(Problem(1300, 4096, 4096, **other), PROCESSORS))


@needs_gpu("sm_90a")
@in_child(timeout=300)
def test_products_with_tiles_of_256_rows_are_right_on_the_gpu():
    extents = (1, 9, 64), (300, 200, 200), (513, 264, 1000), (1300, 4096, 4096), (257, 5000, 72)
    for (m, n, k), a_columns, b_columns, (bn, swapped) in some(product_of(extents, (False, True), (False, True), ((128, False), (160, True), (192, True))),
                                                          least=8):
        checked(m, n, k, a_columns=a_columns, b_columns=b_columns, config=high_config(bn, swapped=swapped), pad=3 if m == 513 else 0)
    for dtype, held, bn in (("float16", BF16, 128), ("float8_e4m3fn", E4M3, 128), ("int8", np.int8, 64), ("float32", np.float32, 64)):
        options = dict(fast_accum=True) if dtype.startswith("float8") else {}
        checked(777, 520, 256, dtype=dtype, config=high_config(bn, held), **options)
