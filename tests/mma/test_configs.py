"""An invalid configuration is an error that names the field, before anything is compiled; a valid one computes the product."""

import random
from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from tilejit import kernels
from tilejit.errors import CompilationError, LaunchError, ToolchainError
from tilejit.kernels.matmul import config_rules
from tilejit.kernels.matmul.blackwell.config import BlackwellConfig, rank_configs as ranked_blackwell
from tilejit.kernels.matmul.choice import Config, Problem, rank_configs
from tilejit.kernels.matmul.config_rules import check_blackwell, check_fields, check_hopper, check_registers
from tilejit.kernels.matmul.register_fit import FEW
from tilejit.runtime.arrays import describe

from tests.mma.products import assert_close, planned_views

A, B = np.ones((64, 96), np.float16), np.ones((96, 80), np.float16)
HOPPER, BLACKWELL = Config(64, 64, 64, 3, regs=(None, None), width=32), BlackwellConfig(64, 64, 3, width=32)

OF_EITHER = [
    (dict(bn=100), "config.bn must be 8 to 256 columns in steps of 8, not 100"),
    (dict(bn=0), "config.bn must be 8 to 256 .* not 0"),
    (dict(bn=264), "config.bn must be 8 to 256 .* not 264"),
    (dict(bn=64.0), "config.bn must be 8 to 256 .* not 64.0"),
    (dict(bn=72, width=8), "B is row-major: .* config.bn must be 8 or a multiple of 16 columns, not 72"),
    (dict(bk=0), "config.bk must be a number of elements, at least 1, not 0"),
    (dict(bk=40), "32 bytes of k at a time: config.bk must be a multiple of 16 elements, not 40"),
    (dict(stages=0), "config.stages must be a number of slots, at least 1, not 0"),
    (dict(splits=0), "config.splits must be a number of CTAs, at least 1, not 0"),
    (dict(splits=-2), "config.splits must be a number of CTAs, at least 1, not -2"),
    (dict(splits=2.0), "config.splits must be .* not 2.0"),
    (dict(bn=256, width=64, splits=32), "form a cluster: config.splits must be at most 16, not 32"),
    (dict(width=0), "config.width must be 8 to 256 columns in steps of 8, not 0"),
    (dict(width=-32), "config.width must be .* not -32"),
    (dict(width=128), "config.width .* must be a divisor of config.bn, which is 64, not 128"),
    (dict(bn=48, width=24), "32, 64 or a multiple of 128 bytes of a row: config.width must be 16, 32 or a multiple of 64 columns, not 24"),
    (dict(order="grouped"), r"config.order must be 'row', .* a helper under @tile.jit, with the rows of a group, .* not 'grouped'"),
    (dict(order=("grouped",)), "config.order must be"),
    (dict(order=("grouped", 0)), "config.order must be"),
    (dict(order=("diagonal", 4)), r"config.order must be .* not \('diagonal', 4\)"),
    (dict(swapped=2), "config.swapped must be True or False, not 2"),
    (dict(pair=1), "config.pair must be True or False, not 1"),
]
OF_HOPPER = [
    (dict(bm=100), "config.bm must be 64, 128, 192 or 256 rows, not 100"),
    (dict(bm=320), "config.bm must be .* not 320"),
    (dict(bm=0), "config.bm must be .* not 0"),
    (dict(stages=1, behind=True), "config.behind keeps a product in flight .* config.stages must be at least 2, not 1"),
    (dict(stages=1, late=32), "config.late keeps a product in flight .* config.stages must be at least 2, not 1"),
    (dict(splits=2, stream=True), "config.stream shares leftover tiles .* config.splits must be 1 with config.stream, not 2"),
    (dict(splits=2, pair=True), "config.pair with config.splits needs config.clustered=False"),
    (dict(splits=3), "each of 3 CTAs stores a multiple of 8 columns of a tile: the configuration's bn must be a multiple of 24, not 64"),
    (dict(bm=256, splits=2), "consumers of tiles of 256 rows .* config.splits must be 1 with config.bm 256, not 2"),
    (dict(bm=256, stream=True), "config.stream must be False with config.bm 256, not True"),
    (dict(bm=256, kept=True), "config.kept must be False with config.bm 256, not True"),
    (dict(bm=256, late=32), "config.late must be 0 with config.bm 256, not 32"),
    (dict(buffers=0), "config.buffers must be a number of buffers, at least 1, not 0"),
    (dict(late=0.5), "config.late must be a number of columns, not 0.5"),
    (dict(bm=192, bn=208, width=16), "512 threads with 128 registers each compute a tile of 192 rows, too few for the sums of 208 columns: with "
                                     "config.bm=192 config.bn must be at most 200; 256 columns fit with 128 rows or fewer"),
    (dict(bm=128, bn=256, width=128, stages=4, buffers=2), "slots take 196608 bytes of shared memory, and config.buffers=2 buffers of "
                                                           "config.width=128 columns of the result take 65536; together they may take at most "
                                                           "232448"),
    (dict(splits=2, bk=256, stages=4), "slots take 262144 bytes of shared memory, and the sums that config.splits=2 CTAs of a cluster send each other "
                                       "take 8192; together they may take at most 232448"),
    (dict(splits=2, clustered=False, bk=256, stages=4), "config.bk=256 and config.stages=4: slots take 262144 bytes of shared memory; they may take "
                                                        "at most 232448"),
    (dict(bm=192, regs=(40, 232)), "a producer's threads 40 registers and those of 3 consumers 232 each, and a CTA of config.bm=192 rows begins with "
                                   "4 times 128: with 40 a consumer's may have at most 152"),
    (dict(regs=None), r"config.regs must be a pair of numbers, multiples of 8 from 24 to 256, or None, as in \(40, 232\), not None"),
    (dict(regs=(40,)), "config.regs must be"),
    (dict(regs=(40, 232, 1)), "config.regs must be"),
    (dict(regs=(41, 232)), "config.regs must be"),
    (dict(regs=(40, 264)), "config.regs must be"),
]
OF_BLACKWELL = [
    (dict(bn=24, width=8, pair=True), "of a pair of CTAs cannot .* that many columns: config.bn is 24 columns, and there are 16 to 256 in steps of 16"),
    (dict(bn=48, width=16, pair=True), "B is row-major: .* config.bn must be 16 or a multiple of 32 columns, not 48"),
    (dict(splits=3), "config.splits must be a divisor of config.bn, which is 64, not 3"),
    (dict(splits=2, pair=True), "config.splits must be 1 with config.pair, not 2"),
    (dict(bn=256, stages=4, width=128), "config.bk=64 and config.stages=4: slots take 196608 bytes of shared memory, and buffers of "
                                        "config.width=128 columns of the result take 65536; together they may take at most 232448. BlackwellConfig.of chooses"),
    (dict(splits=2, bn=128, stages=4), "slots take 131072 bytes of shared memory, and the sums that config.splits=2 CTAs of a cluster send each other "
                                       "take 131072; together they may take at most 232448"),
    (dict(pair=True, bk=256, stages=3), "slots take 245760 bytes of shared memory, and buffers of config.width=.* together they may take at most 232448"),
]


@pytest.mark.parametrize("fields,words", OF_EITHER + OF_HOPPER)
def test_configurations_without_a_hopper_kernel_are_errors(fields, words):
    with pytest.raises(LaunchError, match=words):
        kernels.matmul(A, B, config=replace(HOPPER, **fields))


@pytest.mark.parametrize("fields,words", OF_EITHER + OF_BLACKWELL)
def test_configurations_without_a_blackwell_kernel_are_errors(fields, words, monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", "sm_100a")
    with pytest.raises(LaunchError, match=words):
        kernels.matmul(A, B, config=replace(BLACKWELL, **fields))


@pytest.mark.parametrize("bn,operands,words", [
    (40, lambda x: x.astype(np.int8), "8, 16, 24, 32 and multiples of 16 columns of integers: config.bn must be one of these, not 40"),
    (24, lambda x: np.asfortranarray(x), "A is column-major, and has changed places with B: .* 8 or a multiple of 16 columns, not 24"),
])
def test_tile_widths_that_some_operands_cannot_have_are_errors(bn, operands, words):
    config = Config(64, bn, 128, 3, regs=(None, None), width=8, swapped=bn == 24)
    with pytest.raises(LaunchError, match=words):
        kernels.matmul(operands(A), B.astype(operands(A).dtype), config=config)
    assert_close(kernels.matmul(np.ascontiguousarray(A), np.asfortranarray(B), config=config), A, B)


@pytest.mark.parametrize("sizes,words", [(dict(itemsize=0), "an operand's element: 1, 2 or 4, not 0"), (dict(itemsize=3), "1, 2 or 4, not 3"),
                                         (dict(stored=0), "a result's element: 1, 2, 4 or 8, not 0"), (dict(stored="2"), "1, 2, 4 or 8, not '2'")])
def test_configurations_for_element_sizes_that_do_not_exist_are_errors(sizes, words):
    with pytest.raises(LaunchError, match=words):
        Config.of(64, 64, **sizes)


@pytest.mark.parametrize("sizes,words", [(dict(itemsize=0), "an operand's element: 1, 2 or 4, or 0.5 of float4, not 0"),
                                         (dict(itemsize=3), "or 0.5 of float4, not 3"), (dict(stored=0), "a result's element: 1, 2, 4 or 8, not 0"),
                                         (dict(pair="yes"), "config.pair must be True or False, not 'yes'"),
                                         (dict(block=8), "16 or 32, or 0 without factors, not 8")])
def test_blackwell_configurations_for_unsupported_elements_are_errors(sizes, words):
    with pytest.raises(LaunchError, match=words):
        BlackwellConfig.of(64, **sizes)


@pytest.mark.parametrize("bn,fits", [(208, "16"), (48, "16"), (96, "16, 32")])
def test_a_store_width_that_tma_cannot_store_is_an_error_that_lists_the_valid_ones(bn, fits):
    """For column-major results with swapped operands; otherwise any divisor of the tile's columns from 32 on is valid."""
    a, b = np.ones((64, 128), np.float16), np.ones((128, 64), np.float16)
    with pytest.raises(LaunchError, match=f"not {bn // 2}; divisors of config.bn = {bn} among these are {fits}$"):
        kernels.matmul(a, b, np.zeros((64, 64), np.float16, order="F"), config=Config.of(64, bn, swapped=True, width=bn // 2))
    assert_close(kernels.matmul(a, b, np.zeros((64, 64), np.float16, order="F"), config=Config.of(64, bn, swapped=True, width=16)), a, b)


@tile.jit
def plus(sums, row, column, x):
    return sums + x


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("bm,bn,swapped", [(128, 200, True), (64, 104, True), (64, 24, True), (192, 200, False)])
def test_every_tile_supports_row_major_and_column_major_results_and_an_epilogue(bm, bn, swapped, order, dtype):
    """Threads store the result if no divisor of the tile's columns has the bytes of a TMA store, as here with 2-byte elements."""
    size = np.dtype(dtype).itemsize
    config = Config.of(bm, bn, swapped=swapped, stored=size, width=8 if size == 4 else 0)
    rng = np.random.default_rng(0)
    few = lambda *shape: rng.integers(-2, 3, shape).astype(np.float16)
    a, b, x = few(208, 96), np.asfortranarray(few(96, 240)), few(208, 240)
    want = a.astype(np.float32) @ b.astype(np.float32)
    for options, result in ((dict(), want), (dict(epilogue=plus, tiles=(x,)), want + x)):
        got = kernels.matmul(a, b, np.full((208, 240), np.nan, dtype, order=order), config=config, **options)
        np.testing.assert_array_equal(got, result)


def compile_three(dtype, by_columns, bn):
    """Compile a kernel in which three consumers multiply tiles of this many columns; at most a few registers may spill."""
    n, size, out = 4096, np.dtype(dtype).itemsize, np.int32 if dtype == np.int8 else dtype
    big = lambda t, turned: np.lib.stride_tricks.as_strided(np.zeros(16, t), (n, n), (n * np.dtype(t).itemsize, np.dtype(t).itemsize)[::-1 if turned else 1])
    a, b, c = big(dtype, by_columns), big(dtype, True), big(out, False)
    config = Config.of(192, bn, itemsize=size, stored=c.itemsize)
    launch = planned_views(*map(describe, (a, b, c)), config, "tf32" if dtype == np.float32 else None)
    spec = lambda x: tile.ArraySpec(x.shape, x.dtype.name)
    launch.kernel.compile(spec(a), spec(b), spec(c), 1.0, 1.0, 0, 0, 0, 0, target="sm_90a", **launch.constants | dict(spills=FEW))


@pytest.mark.parametrize("dtype,by_columns,most", [(np.float16, False, 200), (np.float16, True, 200), (np.int8, False, 192), (np.float32, False, 200),
                                                   (np.float32, True, 192)])
def test_registers_hold_exactly_the_tile_widths_that_are_accepted(dtype, by_columns, most, monkeypatch):
    """The rule agrees with the assembler."""
    compile_three(dtype, by_columns, most)
    with pytest.raises(LaunchError, match=f"with config.bm=192 config.bn must be at most {most if dtype != np.int8 else 200}; 256 columns fit"):
        compile_three(dtype, by_columns, most + 16)
    monkeypatch.setattr(config_rules, "BESIDE", (0, 0))
    with pytest.raises(ToolchainError, match="Insufficient registers"):
        compile_three(dtype, by_columns, most + 16)


def test_numpy_numbers_are_accepted_like_python_s():
    config = replace(HOPPER, bn=np.int64(64), stages=np.int32(3), late=np.int64(0), order=("grouped", np.int64(4)), swapped=np.False_, kept=np.True_)
    assert_close(kernels.matmul(A, B, config=config), A, B)
    assert_close(kernels.grouped_matmul([A], [B], config=config)[0], A, B)


@pytest.mark.parametrize("make,words", [
    (lambda: Config.of(100, 64), "config.bm must be 64, 128, 192 or 256 rows, not 100"),
    (lambda: Config.of(64, 0), "config.bn must be 8 to 256"),
    (lambda: Config.of(64, 64, -64), "config.bk must be a number of elements, at least 1, not -64"),
    (lambda: Config.of(64, 64, splits=0), "config.splits must be a number of CTAs, at least 1, not 0"),
    (lambda: Config.of(64, 64, splits=0, clustered=False), "config.splits must be"),
    (lambda: Config.of(64, 64, width=-1), "config.width must be"),
    (lambda: Config.of(64, 64, stages=0), "config.stages must be"),
    (lambda: BlackwellConfig.of(100), "config.bn must be 8 to 256"),
    (lambda: BlackwellConfig.of(64, splits=0), "config.splits must be"),
    (lambda: Config.of(256, 256, 512), "a slot takes 524288 bytes of shared memory, and the results' buffers, or the sums .* leave 165888: use a smaller"),
    (lambda: Config.of(256, 256, splits=8), "a slot takes 65536 bytes of shared memory, .* leave 2048"),
    (lambda: BlackwellConfig.of(192, splits=8), "a slot takes 40960 bytes of shared memory, .* leave 34816"),
    (lambda: BlackwellConfig.of(256, splits=8), "a slot takes 49152 bytes of shared memory, .* leave 0: .* or fewer splits"),
])
def test_configurations_that_cannot_be_constructed_are_errors(make, words):
    with pytest.raises(LaunchError, match=words):
        make()


def test_a_configuration_can_be_printed_whatever_its_fields_are():
    """Including NumPy numbers, and invalid values."""
    assert str(replace(HOPPER, swapped=np.True_, pair=np.bool_(False), splits="2")) == "64x64x64/3 k/2 swapped"
    assert str(replace(BLACKWELL, swapped=np.True_, pair=np.True_, splits=None)) == "256x64x64/3 by pairs k/None swapped"
    assert str(Config.of(64, 64, splits=2, clustered=False)) == "64x64x64/14 k/2 in memory"


@pytest.mark.parametrize("fields,words", [
    (dict(splits=0), "config.splits must be a number of CTAs, at least 1, not 0"),
    (dict(bm=192, bn=208, width=16), "with config.bm=192 config.bn must be at most 200"),
    (dict(bn=100), "config.bn must be 8 to 256"),
    (dict(bn=72, width=24), "B is row-major: .* config.bn must be 8 or a multiple of 16 columns, not 72"),
    (dict(width=48), "config.width .* must be a divisor of config.bn, which is 64, not 48"),
    (dict(bk=40), "config.bk must be a multiple of 16 elements, not 40"),
    (dict(pair=True, bk=40), "multiples of 16, not 64 and 40"),
    (dict(order="snake"), "config.order must be"),
    (dict(bm=256), "the consumers of grouped_matmul have 64 rows each: config.bm must be at most 192, not 256"),
    (dict(late=32), "config.late is for matmul alone: it must be 0 with grouped_matmul, not 32"),
    (dict(bm=128, alone=1), "config.alone is for matmul alone: it must be 0 with grouped_matmul, not 1"),
    (dict(passing=True), "config.passing is for matmul alone: it must be False with grouped_matmul, not True"),
    (dict(dependent=np.True_), "config.dependent is for matmul alone: it must be False with grouped_matmul, not True"),
])
def test_configurations_without_a_grouped_kernel_are_errors(fields, words):
    config = replace(HOPPER, **fields)
    with pytest.raises(LaunchError, match=words):
        kernels.grouped_matmul([A], [B], config=config)
    with pytest.raises(LaunchError, match=words):
        kernels.grouped_matmul(A, np.stack([B]), offs=np.array([64], np.int32), config=config)
    with pytest.raises(LaunchError, match="config is a Config, not BlackwellConfig"):
        kernels.grouped_matmul([A], [B], config=BLACKWELL)


def drawn(rng: random.Random, base, **fields):
    return replace(base, **{name: rng.choice(values) for name, values in fields.items()})


@pytest.mark.parametrize("target,base,fields", [
    ("sm_90a", HOPPER, dict(bm=(64, 128, 192, 256), buffers=(1, 2, 3), kept=(False, True), late=(0, 0, 8, 16, 20), stream=(False, False, True),
                            behind=(False, True), clustered=(False, True))),
    ("sm_100a", BLACKWELL, {}),
])
def test_every_configuration_is_refused_with_a_named_field_or_computes_the_product(target, base, fields, monkeypatch):
    """Only exceeding shared memory or registers is found later, by the compiler."""
    monkeypatch.setenv("TILEJIT_TARGET", target)
    rng, values = random.Random(0), np.random.default_rng(0)
    a, b = values.integers(-2, 3, (200, 160)).astype(np.float16), values.integers(-2, 3, (160, 88)).astype(np.float16)
    taken = 0
    for _ in range(90):
        config = drawn(rng, base, bn=(8, 16, 24, 32, 48, 64, 72, 80), bk=(16, 40, 64, 96), stages=(1, 2, 3), splits=(1, 1, 1, 2, 3, 4),
                       width=(8, 8, 12, 16, 16, 24, 32, 64), pair=(False, False, True), swapped=(False, True),
                       order=(("grouped", 2), ("row", 1), ("hilbert", 3)), **fields)
        x, y = (np.asfortranarray(v) if rng.random() < 0.5 else v for v in (a, b))
        out = np.empty((200, 88), rng.choice((np.float16, np.float32)))
        try:
            kernels.matmul(x, y, out, config=config)
        except LaunchError as error:
            assert "config" in str(error), config
            continue
        except CompilationError as error:
            assert "of shared memory" in str(error) or "registers" in str(error), config
            continue
        assert (out == a.astype(np.float32) @ b.astype(np.float32)).all(), config
        taken += 1
    assert taken >= 5


@pytest.mark.parametrize("target, of", [("sm_90a", lambda bn, **o: Config.of(64, bn, **o)), ("sm_100a", BlackwellConfig.of)])
@pytest.mark.parametrize("splits", [3, 5, 6, 7, 11, 16])
def test_a_cluster_of_any_number_of_ctas_up_to_16_shares_a_tile(target, of, splits, monkeypatch):
    """Also where some of them have no part of k."""
    monkeypatch.setenv("TILEJIT_TARGET", target)
    config, rng = of(8 * splits, splits=splits, stages=2), np.random.default_rng(0)
    for k in (8, 64 * splits + 72):
        a, b = rng.integers(-4, 5, (70, k)).astype(np.float16), rng.integers(-4, 5, (8 * splits + 8, k)).astype(np.float16).T
        got = kernels.matmul(a, b, config=config)
        assert (got == a.astype(np.float32) @ b.astype(np.float32)).all()
    launch = planned_views(*map(describe, (a, b, got)), config, target=target)
    assert launch.kernel.compile(*launch.operands(a, b, got), 1.0, 1.0, 0, 0, 0, 0, *launch.shares, target=target, **launch.constants).spills == 0


def test_the_model_chooses_only_valid_configurations():
    """Also if a tile's columns are all that a matrix has, and may be contiguous."""
    hopper, blackwell = set(), set()  # with whether B's columns are contiguous
    for n in range(1, 129, 5):
        for across in ((False, False), (True, False), (False, True), (True, True)):
            for problem in (Problem(n, 3000, 2000, across=across), Problem(3000, n, 2000, across=across)):
                hopper.update((config, across[0 if config.swapped else 1]) for config in rank_configs(problem, 132))
                blackwell.update((config, across[0 if config.swapped else 1]) for config in ranked_blackwell(problem, 148))
    for config, by_columns in hopper:
        check_fields(**vars(config))
        check_hopper(config, 2, False, by_columns, None)
        check_registers(config, config.bn)
    for config, by_columns in blackwell:
        check_fields(**vars(config))
        check_blackwell(config, 2, False, by_columns, None)
    for rows in (24, 72):
        a, b = np.asfortranarray(np.ones((rows, 200), np.float16)), np.ones((200, 304), np.float16)
        assert_close(kernels.matmul(a, b), a, b)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_model_chooses_store_widths_that_tma_supports_for_column_major_results(dtype):
    """Also for tiles as wide as the result, and for tiles that fill one wave."""
    stored = np.dtype(dtype).itemsize
    for m, n in ((24, 1280), (72, 1280), (200, 1280), (1024, 1280), (1280, 300)):
        for config in rank_configs(Problem(m, n, 2000, stored=stored), 132, True):
            check_hopper(config, 2, False, False, stored if config.width * stored >= 32 else None)
    for m, n in ((24, 600), (200, 72), (208, 600)):
        a, b, out = np.ones((m, 40), np.float16), np.ones((40, n), np.float16), np.zeros((m, n), dtype, order="F")
        assert_close(kernels.matmul(a, b, out), a, b)
