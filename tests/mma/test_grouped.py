"""Grouped products: on the simulator compared with float64, lists and stacked rows, and the generated code."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit import ArraySpec, kernels
from tilejit.errors import LaunchError
from tilejit.kernels.grouped import call as planning, kernel as grouped_hopper
from tilejit.kernels.grouped.call import _constants, _sequence
from tilejit.kernels.grouped.choice import REGISTERS, choose_grouped
from tilejit.kernels.matmul.choice import TILES as ALL_TILES
from tilejit.kernels.matmul.config import Config, divisor_in_width

from tests.chosen_cases import part
from tests.drawn import drawn
from tests.mma.products import BF16, E4M3, E5M2, assert_close, with_layout

LAYOUTS = st.sampled_from(("rows", "columns", "padded", "spaced", "reversed"))
EXTENT = st.one_of(st.integers(0, 40), st.sampled_from((63, 64, 65, 128, 130, 200)))
OPERANDS = ((BF16, BF16), (np.float16, np.float16), (np.float32, np.float32), (E4M3, E4M3), (E5M2, E4M3), (np.int8, np.int8))
GROUPS = st.lists(st.tuples(EXTENT, EXTENT, EXTENT), min_size=0, max_size=8)
TILES = st.sampled_from((None, (64, 32), (64, 128), (128, 64), (128, 128)))


def result_type(dtype):
    return np.int32 if np.dtype(dtype).kind in "iu" else BF16 if np.dtype(dtype).itemsize == 1 else dtype


def blank(shape, dtype):
    return np.full(shape, np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else np.nan, dtype)


def of_tile(shape, dtypes, **options):
    """The configuration with a tile, or the default choice."""
    return shape and replace(Config.of(*shape, itemsize=np.dtype(dtypes[0]).itemsize, stored=np.dtype(result_type(dtypes[0])).itemsize), **options)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups=GROUPS, dtypes=st.sampled_from(OPERANDS), shape=TILES, a_is=LAYOUTS, b_is=LAYOUTS, out_is=st.one_of(st.none(), LAYOUTS),
       mixed=st.booleans(), kept=st.booleans(), pair=st.booleans(), seed=st.integers(0, 1 << 16))
def test_a_list_of_any_products_is_right(groups, dtypes, shape, a_is, b_is, out_is, mixed, kept, pair, seed):
    """Extents from 0 on, every layout, separate operands or one for all, results allocated or given."""
    rng = np.random.default_rng(seed)
    layouts = ("rows", "columns", "padded", "spaced", "reversed")
    pick = lambda how: layouts[rng.integers(5)] if mixed else how
    a = [with_layout(drawn(rng, (m, k), dtypes[0]), pick(a_is)) for m, n, k in groups]
    b = [with_layout(drawn(rng, (k, n), dtypes[1]), pick(b_is)) for m, n, k in groups]
    out = None if out_is is None else [with_layout(blank((m, n), result_type(dtypes[0])), pick(out_is)) for m, n, k in groups]
    got = kernels.grouped_matmul(a, b, out, precision="tf32" if dtypes[0] == np.float32 else None,
                                 config=of_tile(shape, dtypes, kept=kept, pair=pair))
    assert out is None or got is out
    assert len(got) == len(groups)
    for x, y, z in zip(a, b, got):
        assert z.dtype == result_type(dtypes[0])
        assert_close(z, x, y)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sizes=st.lists(EXTENT, min_size=0, max_size=8), n=EXTENT, k=EXTENT, after=st.integers(0, 70), dtypes=st.sampled_from(OPERANDS), shape=TILES,
       a_is=LAYOUTS, b_is=LAYOUTS, out_is=st.one_of(st.none(), LAYOUTS), kept=st.booleans(), pair=st.booleans(), seed=st.integers(0, 1 << 16))
def test_stacked_rows_of_any_groups_are_right(sizes, n, k, after, dtypes, shape, a_is, b_is, out_is, kept, pair, seed):
    """Each group's rows are multiplied by its matrix; the rows after the last group are unchanged."""
    rng = np.random.default_rng(seed)
    total = sum(sizes) + after
    a = with_layout(drawn(rng, (total, k), dtypes[0]), a_is)
    b = with_layout(drawn(rng, (len(sizes), k, n), dtypes[1]), b_is)
    out = None if out_is is None else with_layout(blank((total, n), result_type(dtypes[0])), out_is)
    got = kernels.grouped_matmul(a, b, out, offs=np.cumsum(sizes).astype(np.int32), precision="tf32" if dtypes[0] == np.float32 else None,
                                 config=of_tile(shape, dtypes, kept=kept, pair=pair))
    assert got.shape == (total, n) and (out is None or got is out)
    start = 0
    for size, y in zip(sizes, b):
        assert_close(got[start:start + size], a[start:start + size], y)
        start += size
    assert out is None or got[start:].tobytes() == blank((after, n), got.dtype).tobytes()


@tile.jit
def weighted(sums, group, row, column, weights, bias, factor):
    """With a weight for each row, and a bias for each column of each group."""
    w = tile.load(weights[group, row:row + sums.shape[0]]) if len(weights.shape) == 2 else tile.load(weights[row:row + sums.shape[0]])
    return tile.maximum(sums * w[:, None] + tile.load(bias[group, column:column + sums.shape[1]])[None, :], 0.0) * factor


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups=st.lists(st.tuples(EXTENT, EXTENT, EXTENT), min_size=1, max_size=5), dtype=st.sampled_from((np.float16, BF16, E4M3)),
       stored=st.sampled_from((None, np.float32)),
       shape=TILES, swapped=st.booleans(), by_columns=st.booleans(), pair=st.booleans(), seed=st.integers(0, 1 << 16))
def test_an_epilogue_of_a_list_gets_the_group_and_the_position_of_its_tile(groups, dtype, stored, shape, swapped, by_columns, pair, seed):
    """Also with swapped operands, which are chosen automatically if all results are column-major."""
    rng = np.random.default_rng(seed)
    a, b = [drawn(rng, (m, k), dtype) for m, n, k in groups], [drawn(rng, (k, n), dtype) for m, n, k in groups]
    weights, bias = drawn(rng, (len(groups), max(g[0] for g in groups)), np.float32), drawn(rng, (len(groups), max(g[1] for g in groups)), np.float32)
    out = [with_layout(blank((m, n), stored), "columns" if by_columns else "rows") for m, n, k in groups] if stored else None
    config = shape and replace(Config.of(*shape, itemsize=np.dtype(dtype).itemsize, stored=4 if stored else 2, epilogue=True), swapped=swapped,
                              pair=pair)
    for g, got in enumerate(kernels.grouped_matmul(a, b, out, weighted, (weights, bias, 0.5), config=config)):
        m, n, k = groups[g]
        x, y = a[g].astype(np.float64), b[g].astype(np.float64)
        exact = 0.5 * np.maximum(x @ y * weights[g, :m, None] + bias[g, :n], 0)
        places = {np.dtype(BF16): 8, np.dtype(np.float16): 11}.get(got.dtype, 24)
        size = abs(x) @ abs(y) * abs(weights[g, :m, None]) + abs(bias[g, :n])
        assert (abs(got - exact) <= exact * 2.0 ** -places + size * ((k + 4) * 2.0 ** -23 + (2.0 ** -12 if dtype is E4M3 else 0)) + 2.0 ** -24).all()


@pytest.mark.parametrize("n", [64, 60])
def test_an_epilogue_of_stacked_rows_gets_the_row_in_the_stack(n):
    rng = np.random.default_rng(n)
    sizes, tokens, experts = [70, 0, 5, 64], drawn(rng, (150, 96), BF16), drawn(rng, (4, 96, n), BF16)
    weights, bias, offs = drawn(rng, (150,), np.float32), drawn(rng, (4, n), np.float32), np.cumsum(sizes).astype(np.int32)
    got = kernels.grouped_matmul(tokens, experts, np.full((150, n), np.nan, np.float32), weighted, (weights, bias, 2.0), offs=offs)
    for g, (start, stop) in enumerate(zip((0, *offs), offs)):
        exact = 2.0 * np.maximum(tokens[start:stop].astype(np.float64) @ experts[g].astype(np.float64) * weights[start:stop, None] + bias[g], 0)
        np.testing.assert_allclose(got[start:stop], exact, atol=2e-3)
    assert np.isnan(got[139:]).all()


@pytest.mark.parametrize("count", [1, 127, 129, 257])
def test_more_groups_than_are_searched_at_once_are_right(count):
    rng = np.random.default_rng(count)
    a, b = drawn(rng, (2 * count, 16), BF16), drawn(rng, (count, 16, 16), BF16)
    sizes = rng.integers(0, 3, count) * (rng.random(count) < 0.25)  # most have no rows
    sizes[125:132], sizes[254:] = 1, 2
    sizes[0] += 2 * count - sizes.sum() if sizes.sum() < 2 * count else 0
    offs = np.minimum(np.cumsum(sizes), 2 * count).astype(np.int32)
    starts = [0, *offs[:-1]]
    got = kernels.grouped_matmul(a, b, offs=offs)
    lists = [a[s:e] for s, e in zip(starts, offs)]
    for s, e, z, y in zip(starts, offs, kernels.grouped_matmul(lists, list(b)), b):
        assert_close(got[s:e], a[s:e], y)
        assert_close(z, a[s:e], y)


@pytest.mark.parametrize("offs", [[-4, 20, 20, 500], [200, 200, 200, 200], [0, 0, 0, 0], [-9, -3, 0, 100]])
def test_offsets_outside_the_rows_are_clamped(offs):
    rng = np.random.default_rng(5)
    a, b = drawn(rng, (100, 64), BF16), drawn(rng, (4, 64, 32), BF16)
    whole = np.full((164, 32), np.nan, BF16)
    kernels.grouped_matmul(a, b, whole[32:132], offs=np.array(offs, np.int32))
    stops = np.clip([0, *offs], 0, 100)
    for start, stop, y in zip(stops, stops[1:], b):
        assert_close(whole[32 + start:32 + stop], a[start:stop], y)
    left = whole.astype(np.float32)
    assert np.isnan(left[:32]).all() and np.isnan(left[32 + stops[-1]:]).all()


def test_memory_between_the_elements_of_a_result_is_unchanged():
    rng = np.random.default_rng(1)
    wide = [np.full((70, 96), np.nan, BF16), np.full((3, 40), np.nan, BF16)]
    outs = [wide[0][:, 8:80], wide[1][:, :13]]
    a, b = [drawn(rng, (70, 40), BF16), drawn(rng, (3, 8), BF16)], [drawn(rng, (40, 72), BF16), drawn(rng, (8, 13), BF16)]
    kernels.grouped_matmul(a, b, outs)
    for x, y, z, w in zip(a, b, outs, wide):
        assert_close(z, x, y)
        z[...] = np.nan
        assert np.isnan(w.astype(np.float32)).all()


def test_repeated_calls_give_the_same_bits():
    rng = np.random.default_rng(2)
    a, b = [drawn(rng, (m, 300), BF16) for m in (5, 200, 64)], [drawn(rng, (300, 80), BF16) for _ in range(3)]
    first, again = kernels.grouped_matmul(a, b), kernels.grouped_matmul(a, b)
    assert all(x.tobytes() == y.tobytes() for x, y in zip(first, again))


# -- kept results ------------------------------------------------------------------------------------------------------------------

class InAnyOrder:
    """Launches the kernel on the simulator with the unspecified order of events drawn from a seed."""

    def __init__(self, seed):
        self.kernel, self.seed = grouped_hopper.grouped, seed

    def __getitem__(self, grid):
        def launch(*args, **constants):
            assert constants["PLAN"].kept
            assert not self.kernel.simulate(grid, *args, seed=self.seed, **constants).findings
        return launch


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(groups=st.lists(st.tuples(st.sampled_from((1, 30, 64, 65, 128, 129, 190, 200)), st.sampled_from((8, 24, 40, 64, 72, 130)),
                                 st.sampled_from((0, 1, 64, 70, 130, 300, 400))), min_size=2, max_size=7),
       shape=st.sampled_from((((128, 64), 16), ((128, 64), 32), ((64, 32), 16), ((128, 32), 16), ((128, 64), 64), ((192, 32), 16))),
       buffers=st.integers(1, 3), stages=st.integers(2, 4), behind=st.booleans(), ctas=st.integers(1, 4), pair=st.booleans(), stacked=st.booleans(),
       seed=st.integers(0, 1 << 16))
def test_kept_results_go_to_their_own_group_in_any_order_of_the_roles(monkeypatch, groups, shape, buffers, stages, behind, ctas, pair, stacked, seed):
    """Few CTAs and groups of few tiles, so that most pieces are of another group than the previous one; some have no rows for a consumer,
    and some fewer k-steps than results have parts. The simulator would find a map that is edited before a store has read it."""
    (bm, bn), width = shape
    rng, config = np.random.default_rng(seed), Config.of(bm, bn, bk=64, width=width)
    config = replace(config, kept=True, buffers=buffers, stages=stages, behind=behind, pair=pair)
    with monkeypatch.context() as patched:
        patched.setattr(planning, "_processors", lambda device: ctas)
        patched.setattr(planning, "PLANS", {})
        patched.setattr(grouped_hopper, "grouped", InAnyOrder(seed))
        if stacked:
            sizes, n, k = [m for m, _, _ in groups], groups[0][1] // 8 * 8, groups[0][2]
            a, b = drawn(rng, (sum(sizes) + 5, k), BF16), drawn(rng, (len(sizes), k, n), BF16)
            got = kernels.grouped_matmul(a, b, offs=np.cumsum(sizes).astype(np.int32), config=config)
            for size, stop, y in zip(sizes, np.cumsum(sizes), b):
                assert_close(got[stop - size:stop], a[stop - size:stop], y)
        else:
            a, b = [drawn(rng, (m, k), BF16) for m, n, k in groups], [drawn(rng, (k, n), BF16) for m, n, k in groups]
            for x, y, z in zip(a, b, kernels.grouped_matmul(a, b, config=config)):
                assert_close(z, x, y)


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("buffers", [2, 3, 8])
def test_maps_are_read_before_they_are_rebound_if_a_tile_has_fewer_parts_than_there_are_buffers(monkeypatch, buffers, pair):
    rng, config = np.random.default_rng(0), replace(Config.of(64, 64, width=64), kept=True, buffers=buffers, stages=3, pair=pair)
    monkeypatch.setattr(planning, "_processors", lambda device: 1)
    monkeypatch.setattr(planning, "PLANS", {})
    monkeypatch.setattr(grouped_hopper, "grouped", InAnyOrder(0))
    a, b = ([drawn(rng, (64, 64), BF16) for _ in range(12)] for _ in range(2))
    for x, y, z in zip(a, b, kernels.grouped_matmul(a, b, config=config)):
        assert_close(z, x, y)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("stored,epilogue,kept", [(np.float16, None, True), (np.float32, None, False), (np.float16, weighted, False)])
def test_results_are_kept_if_registers_allow(monkeypatch, listed, stored, epilogue, kept):
    """With an epilogue or 4-byte results they are not; all are right."""
    rng, seen, real = np.random.default_rng(3), [], planning._constants
    monkeypatch.setattr(planning, "PLANS", {})
    monkeypatch.setattr(planning, "_constants", lambda *args, **more: seen.append(real(*args, **more)) or seen[-1])
    a, b, offs = drawn(rng, (150, 136), np.float16), drawn(rng, (2, 136, 72), np.float16), np.array([70, 150], np.int32)
    arguments = (np.ones((2, 150), np.float32), np.zeros((2, 72), np.float32), 1.0) if epilogue else ()
    out, config = np.empty((150, 72), stored), replace(Config.of(128, 64, width=32, stored=np.dtype(stored).itemsize), kept=True)
    if listed:
        kernels.grouped_matmul([a[:70], a[70:]], list(b), [out[:70], out[70:]], epilogue, arguments, config=config)
    else:
        kernels.grouped_matmul(a, b, out, epilogue, arguments, offs=offs, config=config)
    exact = np.concatenate([a[:70].astype(np.float64) @ b[0].astype(np.float64), a[70:].astype(np.float64) @ b[1].astype(np.float64)])
    np.testing.assert_allclose(out.astype(np.float64), np.maximum(exact, 0) if epilogue else exact, atol=2e-2, rtol=2e-3)
    assert [c["PLAN"].kept for c in seen] == [kept]


# -- code and choice -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("bm", [64, 128])
def test_tiles_of_8_columns_of_a_row_major_b_have_rows_of_16_bytes_and_no_swizzle(bm):
    rng = np.random.default_rng(2)
    a, b = drawn(rng, (130, 200), np.float16), drawn(rng, (200, 40), np.float16)
    config = replace(Config.of(bm, 8, stored=4), regs=REGISTERS[bm])
    made, = kernels.grouped_matmul([a], [b], [np.empty((130, 40), np.float32)], config=config)
    assert_close(made, a, b)
    matrix = ArraySpec((2048, 2048), "float16")
    constants = _constants(config, (False, True), tile.float32, config.width)
    assert grouped_hopper.grouped.compile(matrix, matrix, ArraySpec((2048, 2048), "float32"), ArraySpec((grouped_hopper.FIELDS, 64), "int64"), 0,
                                          ArraySpec((1584, 128), "uint8"), 0, 0, 0, 0, target="sm_90a", **constants).spills == 0


def compiled(config, listed, b_by_rows=False, **options):
    matrix = ArraySpec((8192, 8192), "bfloat16")
    constants = _constants(replace(config, regs=REGISTERS[config.bm]), (False, b_by_rows), tile.float32, config.width)
    return grouped_hopper.grouped.compile(matrix, matrix if listed else ArraySpec((64, 2048, 2048), "bfloat16"), matrix,
                                          ArraySpec((grouped_hopper.FIELDS, 64), "int64") if listed else ArraySpec((64,), "int32"), 0,
                                          ArraySpec((1584, 128), "uint8"), 0, 0, 0, 0, target="sm_90a", **constants | options)


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("shape", [(128, 256), (192, 192), (64, 256)])
def test_the_largest_tiles_compile_to_fast_code(shape, listed, pair):
    """Nothing spills, and copies use TMA; for lists, one CTA of a pair sends the other the number of the piece."""
    made = compiled(replace(Config.of(*shape), pair=pair), listed)
    assert made.spills == 0 and {x.variant for x in made.copies} == {"tma"}
    assert made.ptx.count("multicast::cluster") == 2 * pair and made.ptx.count("st.async") == (pair and listed)
    assert made.ptx.count("tensormap.cp_fenceproxy") == (3 if listed else 1)
    assert made.ptx.count("fence.proxy.tensormap::generic.acquire.cta") == (3 if listed else 1)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("shape", [t for t in ALL_TILES if t[1] in (16, 32) or t[1] % 64 == 0 and t != (192, 192)])
def test_tiles_keep_their_results_in_registers_without_spilling(shape, listed):
    """With as many stages as the model uses next to the buffers, and one loop of products. Either major of B, alone and in pairs, half
    of these from lists and half from one array; in turn, unless all cases are run."""
    config = replace(Config.of(*shape, width=divisor_in_width(shape[1], 64), least=4), kept=True)
    forms = [(b_by_rows, pair) for b_by_rows, pair in product((False, True), repeat=2) if (b_by_rows != pair) == listed]
    for b_by_rows, pair in part(forms, 2, (shape[0] + shape[1]) // 64):
        made = compiled(replace(config, pair=pair), listed, b_by_rows, spills=0)
        assert made.ptx.count("wgmma.mma_async") == config.bk // 16


@pytest.mark.parametrize("extents,shape", [(((16, 2048, 2048),) * 64, (64, 256)), (((4096, 4096, 4096),) * 8, (128, 256))])
def test_the_chosen_tile_depends_on_the_groups(extents, shape):
    """Few rows get low tiles, many the largest."""
    c = choose_grouped(extents, 2, 2, 132)
    assert (c.bm, c.bn) == shape


def test_results_are_kept_if_ctas_have_several_tiles():
    """A fourth stage then uses the memory of the buffers for a whole tile."""
    many = choose_grouped(((4096, 4096, 4096),) * 8, 2, 2, 132)
    assert many.kept and (many.stages, many.width, many.buffers) == (4, 64, 2)
    assert not choose_grouped(((128, 256, 4096),) * 8, 2, 2, 132).kept
    assert not choose_grouped(((4096, 4096, 4096),) * 8, 2, 4, 132).kept
    assert not choose_grouped(((4096, 4096, 4096),) * 8, 2, 2, 132, epilogue=True).kept


@pytest.mark.parametrize("extents,pair", [
    (((4096, 4096, 4096),) * 8, True), (((700, 2048, 1024), (64, 2048, 1024)) * 32, True),
    (((700, 2048, 512),) * 64, False),      # eight k-steps per tile
    (((256, 1024, 4096),) * 8, False),      # one wave
    (((128, 2048, 4096),) * 64, False),     # no tile has another one above it
])
def test_pairs_are_chosen_if_tiles_are_long_and_have_neighbours(extents, pair):
    assert choose_grouped(extents, 2, 2, 132).pair == pair


@pytest.mark.parametrize("extents,stored", [(((256, 64, 64),) * 5, 2), (((256, 64, 1024),) * 5, 2), (((40, 64, 64),), 2), (((256, 64, 64),) * 5, 4)])
def test_the_choice_is_a_configuration_that_can_be_passed(extents, stored):
    config = choose_grouped(extents, 2, stored, 4)
    a, b = [drawn(np.random.default_rng(0), (m, k), np.float16) for m, _, k in extents], [np.eye(k, n, dtype=np.float16) for _, n, k in extents]
    out = [np.empty((m, n), np.float16 if stored == 2 else np.float32) for m, n, _ in extents]
    for x, z in zip(a, kernels.grouped_matmul(a, b, out, config=config)):
        np.testing.assert_array_equal(z, x[:, :64])


def test_the_pieces_of_pairs_are_two_tiles():
    """One above the other; in a last row of tiles side by side, possibly a single one at the end."""
    config = replace(Config.of(128, 64), pair=True)
    for m, n, count in ((256, 640, 10), (128, 640, 5), (128, 600, 5), (1, 320, 3), (700, 320, 15), (600, 320, 13), (0, 320, 0)):
        assert planning.pieces(config, m, n) == count
    assert planning.pieces(Config.of(128, 64), 700, 320) == 30


def test_groups_with_few_rows_are_interleaved_with_others():
    """Those with the largest K and the most rows come first; groups with few rows are distributed evenly among them by their duration."""
    shapes = [(m, 1024, k) for k in (512, 4096) for m in (16, 4096, 100, 2048, 64, 1024, 128, 512)] + [(0, 1024, 64), (64, 0, 64)]
    order = [shapes[g] for g in _sequence(shapes)]
    assert sorted(order) == sorted(s for s in shapes if 0 not in s)
    many, few = [s for s in order if s[0] > 128], [s for s in order if s[0] <= 128]
    for some in (many, few):
        assert some == sorted(some, key=lambda s: (-s[2], -s[0]))
    work = lambda some: sum(max(m, 128) * n * k for m, n, k in some)
    halves = [work([s for s in order[:order.index((512, 1024, 4096))] if s in some]) / work(some) for some in (many, few)]
    assert abs(halves[0] - halves[1]) < 0.2


def test_invalid_groups_are_errors(monkeypatch):
    zeros = lambda *shape, dtype=np.float16: np.zeros(shape, dtype)
    a, b = [zeros(8, 16), zeros(4, 32)], [zeros(16, 8), zeros(32, 8)]
    offs = np.array([4, 8], np.int32)
    for match, call in {
        "one matrix for each product, not of 2 and 1": lambda: kernels.grouped_matmul(a, b[:1]),
        "not of 2, 2 and 1": lambda: kernels.grouped_matmul(a, b, [zeros(8, 8)]),
        "a must be a list of matrices unless offs= is given": lambda: kernels.grouped_matmul(a[0], b),
        "product 1: .*inner extents differ": lambda: kernels.grouped_matmul(a, [b[0], b[0]]),
        "product 0: a is a matrix": lambda: kernels.grouped_matmul([zeros(2, 8, 16), a[1]], b),
        "product 1: out must be of shape": lambda: kernels.grouped_matmul(a, b, [zeros(8, 8), zeros(8, 8)]),
        "must have the same dtypes on one device": lambda: kernels.grouped_matmul([a[0], a[1].astype(BF16)], [b[0], b[1].astype(BF16)]),
        "the tensor cores take": lambda: kernels.grouped_matmul([zeros(4, 4, dtype=np.float64)], [zeros(4, 4, dtype=np.float64)]),
        r"a is \[rows, K\] and b is \[G, K, N\]": lambda: kernels.grouped_matmul(zeros(8, 16), zeros(16, 8), offs=offs),
        "offs is an array of 2 int32": lambda: kernels.grouped_matmul(zeros(8, 16), zeros(2, 16, 8), offs=offs.astype(np.int64)),
        "one for each matrix of b, not": lambda: kernels.grouped_matmul(zeros(8, 16), zeros(3, 16, 8), offs=offs),
        "takes no config.splits and no config.stream": lambda: kernels.grouped_matmul(a, b, config=Config.of(64, 64, splits=2)),
        "does not swap its operands": lambda: kernels.grouped_matmul(zeros(8, 16), zeros(2, 16, 8), offs=offs,
                                                                     config=replace(Config.of(64, 64), swapped=True)),
        "an epilogue is a function": lambda: kernels.grouped_matmul(a, b, None, abs),
        "none is given": lambda: kernels.grouped_matmul(a, b, None, None, (1,)),
        "multiples of 16, not 24 and 64": lambda: kernels.grouped_matmul(a, b, config=replace(Config.of(64, 24), pair=True, width=24)),
        "at least 32 bytes": lambda: kernels.grouped_matmul(a, b, config=Config.of(64, 8)),
        "out must be of shape": lambda: kernels.grouped_matmul(zeros(8, 16), zeros(2, 16, 8), zeros(8, 9), offs=offs),
    }.items():
        with pytest.raises(LaunchError, match=match):
            call()
    monkeypatch.setenv("TILEJIT_TARGET", "sm_100a")
    with pytest.raises(LaunchError, match="has a kernel for sm_90a, and the target is sm_100a"):
        kernels.grouped_matmul([zeros(5, 6)], [zeros(6, 7)])
