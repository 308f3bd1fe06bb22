"""Staggered consumers, which multiply the last stages of a CTA's last tile one after the other: on the simulator compared with NumPy, on
the GPU, when the model chooses them, and early launches that wait for the previous grid once they know their tile."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul.choice import TURN, Problem, choose, rank_configs
from tilejit.kernels.matmul.config import Config
from tilejit.kernels.matmul.model import WIDE

from tests.drawn import drawn
from tests.gpu import in_child, needs_gpu, needs_module, some
from tests.mma.products import BF16, E4M3, LAYOUTS, added, assert_close, planned, plus_one, product, with_layout
from tests.mma.test_matmul_gpu import checked

EXTENT = st.one_of(st.integers(1, 40), st.sampled_from((127, 128, 129, 200, 257, 520)))
PROCESSORS = 132


def staggered_config(bm, bn, alone, dtype=BF16, **options):
    """A configuration for operands of the dtype, with 2-byte results or, for integers and float32, 4-byte ones."""
    itemsize = np.dtype(dtype).itemsize
    config = Config.of(bm, bn, itemsize=itemsize, stored=4 if itemsize == 4 or dtype is np.int8 else 2, width=8 if bn % 16 else 16,
                       **{key: options.pop(key) for key in ("stages", "swapped") if key in options})
    return replace(config, alone=min(alone, config.stages), **options)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, slots=st.integers(0, 6), more=st.integers(-3, 3), dtype=st.sampled_from((BF16, np.float16, E4M3, np.int8)),
       bm=st.sampled_from((128, 192, 256)), bn=st.sampled_from((8, 32, 64, 128)), stages=st.integers(2, 4), alone=st.integers(1, 4), behind=st.booleans(),
       swapped=st.booleans(), a_is=LAYOUTS, b_is=LAYOUTS, batch=st.sampled_from(((), (), (3,))), seed=st.integers(0, 99))
@example(m=520, n=520, slots=5, more=1, dtype=BF16, bm=128, bn=64, stages=3, alone=3, behind=True, swapped=False, a_is="rows", b_is="columns", batch=(), seed=0)
@example(m=520, n=520, slots=3, more=0, dtype=BF16, bm=192, bn=64, stages=4, alone=4, behind=False, swapped=True, a_is="columns", b_is="rows", batch=(), seed=1)
@example(m=257, n=129, slots=1, more=0, dtype=np.int8, bm=256, bn=32, stages=2, alone=2, behind=True, swapped=False, a_is="rows", b_is="columns", batch=(3,), seed=2)
def test_any_product_with_staggered_last_stages_is_right(m, n, slots, more, dtype, bm, bn, stages, alone, behind, swapped, a_is, b_is, batch, seed):
    """With fewer k-steps than are staggered, as many and more, also none; several tiles per CTA, of which the last is staggered."""
    rng, k = np.random.default_rng(seed), max(slots * 128 // np.dtype(dtype).itemsize + more, 0)
    a, b = with_layout(drawn(rng, (*batch, m, k), dtype), a_is), with_layout(drawn(rng, (*batch, k, n), dtype), b_is)
    config = staggered_config(bm, bn, alone, dtype, stages=stages, swapped=swapped)
    config = replace(config, behind=behind)
    assert_close(product(a, b, config=config, fast_accum=True), a, b)


@pytest.mark.parametrize("bm,swapped", [(128, False), (192, True), (256, False)])
def test_staggering_changes_no_bit(bm, swapped):
    rng = np.random.default_rng(0)
    a, b = drawn(rng, (300, 520), BF16), drawn(rng, (520, 264), BF16)
    config = staggered_config(bm, 64, 3, swapped=swapped)
    assert (product(a, b, config=config).view(np.uint16) == product(a, b, config=replace(config, alone=0)).view(np.uint16)).all()


def test_staggering_works_with_epilogues_pairs_and_tf32():
    rng = np.random.default_rng(0)
    a, b, beside = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((300, 400), (400, 136), (300, 136)))
    out, sums = np.empty((300, 136), np.float16), a.astype(np.float32) @ b.astype(np.float32)
    assert (kernels.matmul(a, b, out, plus_one, config=staggered_config(128, 64, 3)) == sums + 1).all()
    assert (kernels.matmul(a, b, out, added, tiles=(beside,), config=staggered_config(128, 64, 3)) == sums + beside).all()
    assert (kernels.matmul(a, b, out, config=staggered_config(128, 64, 3, pair=True, order=("column", 1))) == sums).all()
    x, y = drawn(rng, (200, 300), np.float32), with_layout(drawn(rng, (300, 72), np.float32), "columns")
    assert_close(product(x, y, config=staggered_config(128, 64, 3, np.float32)), x, y)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_staggered_stages_do_not_exceed_the_ring_if_an_epilogue_reduces_it(stages):
    """`fitted` reduces the stages at a launch: a consumer would wait for slots that the consumers after it hold until their turn."""
    rng = np.random.default_rng(0)
    a, b, out = rng.integers(-2, 3, (300, 520)).astype(np.float16), rng.integers(-2, 3, (520, 136)).astype(np.float16), np.empty((300, 136), np.float16)
    launch = planned(a, b, out, None, (), staggered_config(128, 64, 5))
    launch = launch.with_plan(stages=stages)
    assert launch.plan.alone == 5
    launch.bound_kernel(*launch.arguments(a, b, out, None, None, ()))
    assert (out == a.astype(np.float32) @ b.astype(np.float32)).all()


def test_the_model_staggers_large_tiles_in_one_wave_and_no_others():
    assert choose(Problem(2048, 2048, 2048), PROCESSORS).alone == choose(Problem(2048, 2048, 2048), PROCESSORS).stages == 4
    for p in (Problem(2048, 2048, 2048), Problem(1024, 4096, 1024), Problem(2048, 2048, 256), Problem(777, 5120, 5120), Problem(4096, 4096, 4096),
              Problem(2048, 2048, 2048, epilogue=True), Problem(1024, 4096, 1024, itemsize=1, promoted=()), Problem(1024, 4096, 1024, itemsize=4, stored=4),
              Problem(1024, 4096, 1024, itemsize=1), Problem(1000, 3000, 1000, aligned=(16, 16)), Problem(64, 8192, 8192)):
        for config in rank_configs(p, PROCESSORS):
            q = p.swap_operands() if config.swapped else p
            once = config.splits == 1 and not config.stream and config.tiles(q.m, q.n) <= PROCESSORS and not q.waits
            large = config.bm > 64 and config.bm * config.bn >= WIDE and not config.pair and p.promoted is None and p.itemsize < 4
            assert config.alone == (min(config.stages, TURN) if once and large else 0), (p, config)


@pytest.mark.parametrize("options,dtype,words", [
    (dict(bm=64), np.float16, "tiles of 64 rows have one consumer, which has no other to take turns with: config.alone must be 0 with config.bm 64, not 2"),
    (dict(stages=2, alone=3), np.float16, "multiplies the last 3 slots while the others still hold them: config.alone must be at most config.stages, which is 2"),
    (dict(stages=1, alone=1), np.float16, "config.alone keeps a product in flight while the next slot is awaited: config.stages must be at least 2, not 1"),
    (dict(stream=True), np.float16, "config.alone must be 0 with config.stream True, not 2"),
    (dict(kept=True), np.float16, "config.alone must be 0 with config.kept True, not 2"),
    (dict(late=16), np.float16, "config.alone must be 0 with config.late 16, not 2"),
    (dict(splits=2), np.float16, "config.alone must be 0 with config.splits 2, not 2"),
    (dict(bk=128), E4M3, "threads add up the sums of one slot at a time, in all consumers side by side: config.alone must be 0, not 2"),
    (dict(bk=32), np.float32, "threads load an operand of one slot at a time, .* config.alone must be 0, not 2"),
    (dict(alone=-1), np.float16, "config.alone must be a number of slots, at least 0, not -1"),
    (dict(alone=True), np.float16, "config.alone must be a number of slots, at least 0, not True"),
])
def test_invalid_staggering_is_an_error_with_the_reason(options, dtype, words):
    fields = dict(bm=128, bn=64, bk=64, stages=3, width=16, alone=2) | options
    a, b = np.ones((200, 256), dtype), np.ones((64, 256), dtype).T
    with pytest.raises(LaunchError, match=words):
        product(np.asfortranarray(a) if dtype == np.float32 else a, b, config=Config(**fields))


# -- early launches --------------------------------------------------------------------------------------------------------

GLOBAL = re.compile(r"\b(ld|st|red|atom)\.(\w+\.)*global|cp\.async\.bulk\.(tensor|global|shared)")
JUMP = re.compile(r"(@\S+\s+)?bra(\.uni)?\s+(\S+);")


def accesses_before_waiting(ptx):
    """The lines that access global memory on some path from the kernel's start without `griddepcontrol.wait`."""
    lines = [line.strip() for line in ptx[ptx.index(".entry"):].splitlines()]
    labels = {line.rstrip(":"): at for at, line in enumerate(lines) if line.endswith(":")}
    seen, ways, found = set(), [0], []
    while ways:
        at = ways.pop()
        while at not in seen and at < len(lines) and "griddepcontrol.wait" not in lines[at]:
            seen.add(at)
            if GLOBAL.search(lines[at]):
                found.append(lines[at])
            jump = JUMP.match(lines[at])
            if jump is not None:
                ways.append(labels[jump[3]])
            if lines[at].startswith(("ret", "exit")) or jump is not None and jump[1] is None:
                break
            at += 1
    return found


@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("options", [
    dict(bm=128), dict(bm=64), dict(bm=256, alone=2), dict(bm=192, swapped=True, alone=3), dict(bm=128, kept=True), dict(bm=128, late=32, behind=False),
    dict(bm=128, pair=True, order=("column", 1)), dict(bm=64, splits=2), dict(bm=64, splits=3, clustered=False), dict(bm=64, splits=4, clustered=False, pair=True)],
    ids=lambda options: "-".join(f"{key}={value}" for key, value in options.items()))
def test_no_thread_accesses_global_memory_before_it_has_waited_for_the_previous_grid(options, epilogue):
    """Each role waits separately."""
    fields = {key: options[key] for key in ("splits", "clustered", "swapped") if key in options}
    config = replace(Config.of(bn=96, stages=3, **fields, bm=options["bm"]), dependent=True, **{k: v for k, v in options.items() if k not in fields})
    x, extra = np.zeros((512, 512), np.float16), (np.zeros((512, 512), np.float16),) if epilogue else ()
    launch = planned(x, x.T, x, added if epilogue else None, extra, config)
    ptx = launch.kernel.compile(*launch.arguments(x, x.T, x, None, None, extra), target="sm_90a", **launch.constants).ptx
    assert ptx.count("griddepcontrol.wait") == 2 and not accesses_before_waiting(ptx)
    assert accesses_before_waiting(ptx.replace("griddepcontrol.wait", "", 1)) and accesses_before_waiting("".join(ptx.rsplit("griddepcontrol.wait", 1)))


# -- on the GPU --------------------------------------------------------------------------------------------------------------

@needs_module("torch")
@needs_gpu("sm_90a")
@in_child(timeout=240)
def test_staggered_last_stages_are_right_on_the_gpu():
    tiles = ((128, 128, 6), (128, 256, 4), (192, 128, 4), (256, 128, 4), (128, 200, 4), (128, 64, 8))
    for (bm, bn, alone), swapped in some([(tile, swapped) for tile in tiles for swapped in (False, True)], least=4):
        for m, n, k in ((1024, 1024, 2048), (777, 1000, 520), (2048, 2048, 64), (300, 5000, 1000)):
            config = Config.of(bm, bn, swapped=swapped)
            checked(m, n, k, b_columns=not swapped, config=replace(config, alone=min(alone, config.stages)))  # rows of B only have 16 k columns
    for dtype in ("float16", "float8_e4m3fn", "int8"):
        options = dict(fast_accum=True) if dtype.startswith("float8") else {}
        checked(1024, 2048, 1024, dtype, b_columns=True, **options)
    checked(1024, 2048, 1024, "float32", b_columns=True, config=replace(Config.of(128, 128, itemsize=4, stored=4), alone=3))


@needs_module("torch")
@needs_gpu("sm_90a")
@in_child(timeout=240)
def test_products_that_use_each_other_s_results_wait_for_the_previous_grid():
    """Each launch multiplies what the previous one has stored, and overwrites what the one before that has read, while grids overlap: the bits
    are those of launches without early start."""
    import torch
    for rows, width, config in ((512, 512, Config.of(64, 64)), (1024, 1024, Config.of(128, 128)), (2048, 1024, Config.of(128, 256)),
                                (256, 1024, Config.of(64, 64, splits=2)), (256, 1024, Config.of(64, 128, splits=3, clustered=False))):
        torch.manual_seed(rows)
        start, turn = torch.randn(rows, width, device="cuda").bfloat16(), (torch.randn(width, width, device="cuda") / width ** 0.5).bfloat16()
        results = []
        for early in (False, True):
            x, y = start.clone(), torch.empty_like(start)
            for _ in range(40):
                kernels.matmul(x, turn, y, config=replace(config, dependent=early))
                x, y = y, x
            results.append(x)
        assert torch.equal(*results) and results[0].isfinite().all()
