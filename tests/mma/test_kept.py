"""Kept results, which stay in registers until the next tile's products run: on the simulator compared with NumPy, on the GPU,
and the code."""

from dataclasses import replace
from itertools import product as product_of

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, example, given, settings, strategies as st
from tilejit import ArraySpec, kernels
from tilejit.kernels.matmul.call import PLANS
from tilejit.kernels.matmul.choice import TILES, Config, Problem, choose
from tilejit.kernels.matmul.config import divisor_in_width
from tilejit.kernels.matmul.epilogue import parts_sent_since

from tests.chosen_cases import part
from tests.drawn import drawn
from tests.gpu import for_references, in_child, launches, needs_gpu, needs_module, some
from tests.mma.products import BF16, E4M3, LAYOUTS, assert_close, planned, plus_one, product, with_layout

EXTENT = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 130, 200, 328, 500)))
SHAPES = ((64, 32), (64, 64), (128, 64), (128, 160), (64, 192), (128, 224), (192, 128))


def kept(bm, bn, dtype=BF16, width=32, buffers=0, **options):
    config = Config.of(bm, bn, itemsize=np.dtype(dtype).itemsize, width=divisor_in_width(bn, width))
    return replace(config, kept=True, buffers=min(buffers, bn // config.width) or config.buffers, **options)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, k=st.one_of(st.integers(0, 3), EXTENT, st.just(1000)), dtype=st.sampled_from((BF16, np.float16, E4M3)),
       shape=st.sampled_from(SHAPES), buffers=st.integers(1, 4), width=st.sampled_from((16, 32, 64)), stages=st.integers(2, 4), behind=st.booleans(),
       stream=st.booleans(), swapped=st.booleans(), a_is=LAYOUTS, b_is=LAYOUTS, batch=st.sampled_from(((), (), (3,))), seed=st.integers(0, 99))
@example(m=500, n=500, k=500, dtype=np.float16, shape=(128, 224), buffers=3, width=32, stages=3, behind=True, stream=False, swapped=False, a_is="rows", b_is="rows", batch=(), seed=0)
@example(m=500, n=328, k=65, dtype=BF16, shape=(128, 160), buffers=2, width=32, stages=2, behind=False, stream=True, swapped=True, a_is="rows", b_is="columns", batch=(), seed=1)
def test_any_product_with_kept_results_is_right(m, n, k, dtype, shape, buffers, width, stages, behind, stream, swapped, a_is, b_is, batch, seed):
    """More parts than k-steps and fewer, numbers of parts that are multiples of the buffers and others, one tile per CTA and several, swapped
    operands, results that TMA cannot store. The simulator would find a part that overwrites what TMA still reads."""
    rng = np.random.default_rng(seed)
    n = n // 8 * 8 or n
    a, b = with_layout(drawn(rng, (*batch, m, k), dtype), a_is), with_layout(drawn(rng, (*batch, k, n), dtype), b_is)
    assert_close(product(a, b, config=kept(*shape, dtype, width, buffers, stages=stages, behind=behind, stream=stream, swapped=swapped), fast_accum=True), a, b)


@pytest.mark.parametrize("stream", [False, True])
def test_results_are_kept_if_there_are_enough_k_steps_and_registers(stream):
    """Not with an epilogue, 4-byte results, accumulation by threads, k = 0, or stores that TMA cannot do; all are right."""
    rng = np.random.default_rng(3)
    a, b = drawn(rng, (200, 136), np.float16), drawn(rng, (136, 264), np.float16)
    config = kept(64, 64, stream=stream)
    for out, epilogue, yes in ((np.empty((200, 264), np.float16), None, True), (np.empty((200, 264), np.float32), None, False),
                               (np.empty((200, 264), np.float16), plus_one, False), (np.empty((200, 265), np.float16)[:, :264], None, False)):
        assert planned(a, b, out, epilogue, (), config).plan.kept is yes
        got = kernels.matmul(a, b, out, epilogue, config=config)
        np.testing.assert_allclose(got.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64) + (epilogue is not None), atol=2e-2, rtol=2e-3)
    assert not planned(a[:, :0], b[:0], np.empty((200, 264), np.float16), None, (), config).plan.kept
    if not stream:
        x, y = (v.astype(E4M3) for v in (a, b))
        assert not planned(x, y, np.empty((200, 264), BF16), None, (), replace(config, bk=128)).plan.kept
        assert planned(x, y, np.empty((200, 264), BF16), None, (), replace(config, bk=128), fast_accum=True).plan.kept


@tile.jit
def told(out, PARTS: tile.constexpr, BUFFERS: tile.constexpr):
    for part in tile.static_range(PARTS):
        tile.store(out[part], parts_sent_since(part, PARTS, BUFFERS))


def test_parts_wait_for_the_last_part_that_used_their_buffer():
    """Tiles of several parts one after the other; each part is sent from the buffer given by its number."""
    for parts in range(1, 12):
        for buffers in range(1, min(parts, 4) + 1):
            stood, allowed = {}, np.full(parts, -1, np.int32)
            told[1, ](allowed, parts, buffers)
            for sent in range(5 * parts):
                part = sent % parts
                if part % buffers in stood:  # groups committed since
                    assert 0 <= allowed[part] <= sent - stood[part % buffers] - 1
                stood[part % buffers] = sent


@pytest.mark.parametrize("bn,width,buffers", [(224, 32, 3), (160, 32, 2), (96, 32, 2), (48, 16, 2)])
@pytest.mark.parametrize("stream", [False, True])
def test_numbers_of_parts_that_are_not_multiples_of_the_buffers_overwrite_nothing(bn, width, buffers, stream):
    """The simulator would find a write to what TMA still reads; several tiles per CTA."""
    rng = np.random.default_rng(11)
    a, b = drawn(rng, (900, 72), np.float16), drawn(rng, (72, 2 * bn), np.float16)
    assert_close(product(a, b, config=replace(Config.of(128, bn, stages=3), width=width, buffers=buffers, stream=stream)), a, b)


@pytest.mark.parametrize("b_by_rows", [False, True])
def test_all_tiles_keep_their_results_in_registers_without_spilling(b_by_rows):
    """With as many stages as the model uses next to two buffers or more, and one loop of products. Half of the tiles with each
    major of B, and the largest with both."""
    big = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (8192, 8192), (16384, 2))
    spec, flags = ArraySpec((8192, 8192), "bfloat16"), ArraySpec((1024, 3), "int64")
    for bm, bn in dict.fromkeys((*part(TILES, 2, b_by_rows), (128, 256))):
        for shared in (False, True) if (bm, bn) == (128, 256) else (False,):
            config = replace(Config.of(bm, bn, width=divisor_in_width(bn, 64), least=4), kept=bn >= 16, stream=shared)
            launch = planned(big, big if b_by_rows else big.T, big, None, (), config)
            assert launch.plan.kept is (bn >= 16)
            room = (*launch.shares, ArraySpec(*launch.room), flags) if shared else ()
            compiled = launch.kernel.compile(spec, spec, spec, 1.0, 1.0, 0, 0, 0, 0, *room, target="sm_90a", **launch.constants)
            assert compiled.spills == 0 and compiled.ptx.count("wgmma.mma_async") == config.bk // 16


def test_the_model_keeps_results_if_a_cta_has_several_tiles():
    for extents in ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 4096), (8192, 8192, 512), (5120, 5120, 5120), (4097, 4095, 4100)):
        for itemsize in (1, 2):
            config = choose(Problem(*extents, itemsize=itemsize), 132)
            assert config.kept and config.buffers > 1 and config.stages == 4
    assert not choose(Problem(2048, 2048, 2048), 132).kept and not choose(Problem(4096, 4096, 4096, stored=4), 132).kept
    assert not choose(Problem(4096, 4096, 4096, epilogue=True, ahead=True), 132).kept


def test_kept_results_leave_room_for_a_fourth_stage_in_pairs_and_for_float32_too():
    for p in (Problem(4096, 4096, 4096, aligned=(16, 16)), Problem(8192, 8192, 8192, aligned=(16, 16)), Problem(4096, 4096, 4096, itemsize=4, stored=2)):
        config = choose(p, 132)
        assert config.kept and config.pair == any(p.odd_pitches) and (config.stages, config.width, config.buffers) == (4, 64, 2)


def test_tiles_of_several_waves_without_kept_results_have_buffers_for_all_columns_that_leave_three_stages():
    """Like those of one wave without staggering: only staggering makes another stage more valuable than the buffers."""
    config = choose(Problem(4096, 4096, 4096, stored=4), 132)
    assert not (config.kept or config.alone) and (config.stages, config.width, config.buffers) == (3, 32, 4)


# -- loop-carried tiles of narrow elements ---------------------------------------------------------------------------------------

@tile.jit
def turning(x, y, out, trips, dtype: tile.constexpr):
    """Tiles that swap in each iteration of a loop; some are changed in a branch, and in a while loop."""
    a, b = tile.load(x[0:32, 0:64]), tile.load(y[0:32, 0:64])
    for i in range(trips):
        if i % 3 == 1:
            a, b = tile.where(a == b, a, b), a
        else:
            a, b = b, a
    left = trips
    while left > 0:
        a, b = b, a
        left = left - 2
    tile.store(out[0, 0:32, 0:64], a)
    tile.store(out[1, 0:32, 0:64], b)


def turned(home, dtype, trips):
    rng = np.random.default_rng(trips)
    x, y = (rng.integers(0, 2, (32, 64)).astype(dtype) for _ in range(2))
    a, b = x, y
    for i in range(trips):
        a, b = (np.where(a == b, a, b), a) if i % 3 == 1 else (b, a)
    for _ in range(max(-(-trips // 2), 0)):
        a, b = b, a
    out = home(np.zeros((2, 32, 64), dtype))
    turning[1, ](home(x), home(y), out, trips, x.dtype.name)
    np.testing.assert_array_equal(np.asarray(out if out.__class__ is np.ndarray else out.numpy()), np.stack([a, b]))


NARROW = (np.float16, BF16, np.int8, np.uint8, np.int16, np.uint16, np.bool_, np.float32)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("trips", [0, 1, 2, 5, 8])
def test_loop_carried_tiles_of_narrow_elements_can_be_swapped(dtype, trips):
    turned(lambda x: x, dtype, trips)


@needs_gpu()
@in_child(timeout=100)
def test_loop_carried_tiles_of_narrow_elements_can_be_swapped_on_the_gpu():
    for dtype in NARROW:
        for trips in (0, 1, 2, 5, 8):
            turned(tile.to_device, dtype, trips)


@pytest.mark.parametrize("dtype,each", [("bfloat16", 2), ("int8", 4), ("float32", 1)])
def test_loop_carried_narrow_elements_stay_packed_in_words(dtype, each):
    """16 elements of each of two tiles for each of 128 threads."""
    spec = ArraySpec((32, 64), dtype)
    ir = turning.compile(spec, spec, ArraySpec((2, 32, 64), dtype), 5, dtype, target="sm_90a").llvm_ir
    carried = [line for line in ir.splitlines() if " = phi " in line]
    word = "float" if dtype == "float32" else "i32"
    assert sum(f"phi {word} " in line for line in carried) >= 2 * 2 * 16 // each
    assert not any(f"phi {narrow} " in line for line in carried for narrow in ("bfloat", "half", "i8", "i16"))


@tile.jit
def exchanged(x, y, out, trips):
    a, b = tile.load(x[0:32, 0:64]), tile.load(y[0:32, 0:64])
    for i in range(trips):
        a, b = b, a
    tile.store(out[0:32, 0:64], a)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn"])
def test_words_that_go_from_loads_through_loops_to_stores_are_not_unpacked(dtype):
    spec = ArraySpec((32, 64), dtype)
    ir = exchanged.compile(spec, spec, spec, 5, target="sm_90a").llvm_ir
    assert " = phi i32 " in ir and not any(word in ir for word in ("extractelement", "insertelement", "bitcast"))


# -- on the GPU --------------------------------------------------------------------------------------------------------------------

@needs_module("torch")
@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_kept_results_are_right_on_the_gpu():
    """The tiles that the model chooses and others, both majors, ragged, few k-steps and many, with and without a shared last wave: bit for bit
    the results of the same tiles without kept results."""
    import torch
    rng = np.random.default_rng(5)
    shapes = ((128, 256), False), ((128, 256), True), ((128, 224), False), ((192, 128), False), ((128, 160), False), ((64, 64), False)
    extents = (2600, 2312, 1096), (5000, 2568, 200), (2304, 2560, 16), (3000, 4104, 2312)
    for ((bm, bn), shared), dtype, (m, n, k) in some(product_of(shapes, (torch.bfloat16, torch.float16, torch.float8_e4m3fn), extents), least=6):
        a, b = torch.randn(m, k, device="cuda").to(dtype), torch.randn(n, k, device="cuda").to(dtype).t()
        b = b.contiguous() if dtype.itemsize == 2 and rng.integers(2) else b
        config = replace(Config.of(bm, bn, itemsize=dtype.itemsize, width=divisor_in_width(bn, 64), least=4), kept=True, stream=shared)
        out = [torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16 if dtype.itemsize == 1 else dtype) for _ in range(2)]
        for o, c in zip(out, (config, replace(config, kept=False))):
            kernels.matmul(a, b, o, fast_accum=True, config=c)
        assert torch.equal(*out), (dtype, bm, bn, shared, m, n, k)


@needs_module("torch")
@needs_gpu("sm_90a")
@in_child(timeout=100)
def test_two_thousand_launches_with_kept_results_are_right():
    """One or several tiles per CTA, few k-steps and many, with and without a shared last wave; small integers, so that all is exact."""
    import torch
    rng = np.random.default_rng(1)
    a, b = (torch.randint(-2, 3, shape, device="cuda").to(torch.bfloat16) for shape in ((5376, 1600), (1600, 5376)))
    out, wrong = torch.empty((5376, 5376), device="cuda", dtype=torch.bfloat16), torch.zeros((), device="cuda")
    config = choose(Problem(4096, 4096, 4096, across=(False, True)), 132)
    assert config.kept and (config.bm, config.bn) == (128, 256)
    extents = [tuple(int(8 * np.ceil(x)) for x in (*rng.uniform(160, 672, 2), rng.uniform(1, 200))) for _ in range(20)]
    x, y = (v.to(for_references()).float() for v in (a, b))
    exact = {(m, n, k): (x[:m, :k] @ y[:k, :n]).to("cuda", torch.bfloat16) for m, n, k in extents}  # below 2**13: exact in float32 and in TF32
    for i in launches(2000):
        m, n, k = e = extents[rng.integers(len(extents))]
        got = kernels.matmul(a[:m, :k], b[:k, :n], out[:m, :n], config=replace(config, stream=i % 2 == 1))
        wrong += (got != exact[e]).sum()
        got.fill_(float("nan"))
    assert wrong.item() == 0 and all(launch.plan.kept for launch in PLANS.values())
