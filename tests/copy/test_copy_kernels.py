"""Copies by TMA: the PTX of each option, the maps encoded at launch, and the simulator's results."""

import re

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError, DispatchError
from tilejit.layout import standard_layout

ATOM = standard_layout(16, (8, 256), 128)
WIDE = standard_layout(16, (64, 128), 128)
STAGES = standard_layout(16, (3, 64, 64), 128)


@tile.jit
def stage_tma(A, B, CACHE: tile.constexpr = None, L2: tile.constexpr = None):
    sA = tile.alloc((8, 256), A.dtype, layout=ATOM)
    bar = tile.mbarrier(count=1)
    with tile.elect():
        bar.arrive_expect_tx(sA.nbytes)
        tile.copy_async(sA, A[0:8, 0:256], mbar=bar, cache=CACHE, l2_promotion=L2)
    bar.wait(phase=0)
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(B[0:8, 0:256], sA, cache=CACHE)
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit
def tiles_tma(A, B):
    i, j = tile.program_id(0) * 64, tile.program_id(1) * 128
    sA = tile.alloc((64, 128), A.dtype, layout=WIDE)
    bar = tile.mbarrier(count=1)
    with tile.elect():
        bar.arrive_expect_tx(sA.nbytes)
        tile.copy_async(sA, A[i:i + 64, j:j + 128], mbar=bar)
    bar.wait(phase=0)
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(B[i:i + 64, j:j + 128], sA)
        tile.bulk_commit()
        tile.bulk_wait(0)


def half(*shape):
    return tile.ArraySpec(shape, "float16")


def bulk_lines(ptx: str) -> list[str]:
    return [re.sub(r"%\w+", "%", line.strip()) for line in ptx.splitlines() if "cp.async.bulk.tensor" in line]


LOAD = "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
def test_a_swizzled_tile_is_one_load_and_one_store_on_every_target_from_hopper_on(target):
    """The 8 x 256 float16 tile with a 128-byte swizzle: one instruction each way, spelled as in the ISA; and it assembles."""
    k = stage_tma.compile(half(64, 512), half(64, 512), target=target)
    assert bulk_lines(k.ptx) == [f"{LOAD} [%], [%, {{%, %, %}}], [% + 4096];", f"{STORE} [%, {{%, %, %}}], [%];"]
    assert k.cubin
    assert [c.variant for c in k.copies] == ["tma", "tma"] and [c.instructions for c in k.copies] == [1, 1]
    assert [c.bytes for c in k.copies] == [4096, 4096]


def test_the_tile_of_the_demo_has_the_map_of_the_reference():
    """Dimensions 64, 8, 4 with strides 512 and 128, one box of them, swizzle 3, L2 promotion 2."""
    spec = tile.BufferSpec((8, 256), "float16", "shared", layout=ATOM)
    choice = tile.plan_copy(spec, tile.BufferSpec((8, 256), "float16", "global"), variant="tma")
    m = choice.plan.tensor_map
    assert (m.rank, m.global_dim, m.global_strides, m.box) == (3, (64, 8, 4), (512, 128), (64, 8, 4))
    assert (m.element_strides, m.interleave, m.swizzle, m.l2_promotion, m.oob_fill) == ((1, 1, 1), 0, 3, 2, 0)
    assert (m.dtype, m.base_offset) == ("float16", 0)
    assert choice.plan.issues == [((0, 0, 0), 0)]


def test_a_box_of_512_rows_takes_two_instructions():
    """512 x 64 float16, row-major: two boxes of 256 rows, inside a larger array or filling one."""
    spec = tile.BufferSpec((512, 64), "float16", "shared")
    for array in (tile.BufferSpec((512, 64), "float16", "global"),
                  tile.BufferSpec((4096, 640), "float16", "global", region=(slice(512, 1024), slice(64, 128)))):
        plan = tile.plan_copy(spec, array, variant="tma").plan
        assert plan.tensor_map.box == (64, 256)
        assert [offset for _, offset in plan.issues] == [0, 32768]


@pytest.mark.parametrize("policy, bits", [("evict_first", 0x12F0000000000000), ("evict_last", 0x14F0000000000000),
                                          ("evict_normal", 0x1000000000000000)])
def test_a_cache_policy_is_an_operand_of_loads_and_stores(policy, bits):
    """cache= becomes .L2::cache_hint with the 64-bit policy as the last operand."""
    k = stage_tma.compile(half(64, 512), half(64, 512), CACHE=policy)
    assert bulk_lines(k.ptx) == [f"{LOAD}.L2::cache_hint [%], [%, {{%, %, %}}], [% + 4096], %;",
                                 f"{STORE}.L2::cache_hint [%, {{%, %, %}}], [%], %;"]
    signed = bits - (1 << 64) if bits >= 1 << 63 else bits
    assert str(signed) in k.ptx


def test_llvm_is_told_that_parameters_are_not_undefined():
    """Otherwise it searches for a proof at each use: one thread's 512 copies took 6 s to compile."""
    @tile.jit
    def scaled(A, x, n):
        tile.store(A[n, 0:64], tile.load(A[0, 0:64]) * x)

    head = next(line for line in scaled.compile(tile.ArraySpec((100, 64), "float32", (72, 1)), 1.5, 3).llvm_ir.splitlines() if "ptx_kernel" in line)
    parameters = head.partition("(")[2].partition(")")[0].split(", ")
    assert len(parameters) >= 4 and all(" noundef %" in p for p in parameters), head


def test_a_map_is_a_parameter_used_in_place():
    """128 bytes by value, aligned to 64, in parameter space, without a copy in local memory; equal maps are one parameter."""
    k = stage_tma.compile(half(64, 512), half(64, 512))
    assert 'byval([128 x i8]) align 64 "nvvm.grid_constant"' in k.llvm_ir
    assert k.ptx.count(".param .align 64 .b8") == 2 and ".local" not in k.ptx

    @tile.jit
    def twice(A):
        sA = tile.alloc((2, 8, 256), A.dtype, layout=standard_layout(16, (2, 8, 256), 128))
        bar = tile.mbarrier(count=1)
        with tile.elect():
            bar.arrive_expect_tx(sA.nbytes)
            tile.copy_async(sA[0], A[0:8, 0:256], mbar=bar)
            tile.copy_async(sA[1], A[8:16, 0:256], mbar=bar)
        bar.wait(phase=0)

    k = twice.compile(half(64, 512))
    assert len(k.tensor_maps) == 1 and len(bulk_lines(k.ptx)) == 2


def test_a_compiled_kernel_lists_the_fields_of_its_maps():
    """Every field as the encoder takes it, for the arrays that the kernel was compiled for."""
    k = stage_tma.compile(half(64, 512), half(64, 256))
    a, b = k.tensor_maps
    assert (a.argument, a.base_offset, a.dtype, a.rank, a.origin) == ("A", 0, "float16", 3, "host")
    assert (a.global_dim, a.global_strides, a.box) == ((64, 64, 8), (1024, 128), (64, 8, 4))
    assert (a.element_strides, a.interleave, a.swizzle, a.l2_promotion, a.oob_fill) == ((1, 1, 1), 0, 3, 2, 0)
    assert (b.argument, b.global_dim, b.global_strides) == ("B", (64, 64, 4), (512, 128))
    assert "tensor map of A: dimensions [64, 64, 8] of float16, box [64, 8, 4]" in k.explain()


def test_a_ragged_row_is_not_split_into_swizzle_atoms():
    """K = 328 is not a multiple of the 64-element atom: the dimension stays whole, and the load takes two instructions."""
    even, ragged = (tiles_tma.compile(half(200, k), half(200, k)) for k in (320, 328))
    assert [c.instructions for c in even.copies] == [1, 1] and [c.instructions for c in ragged.copies] == [2, 2]


@pytest.mark.parametrize("shape", [(128, 256), (200, 320), (200, 328), (1, 8), (70, 136)])
def test_a_tile_copied_by_tma_keeps_every_element(shape):
    """Loads fill and stores clip exactly at ragged edges, in both dimensions."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    y = np.zeros((shape[0] + 2, shape[1] + 8), np.float16)
    inner = y[1:-1, :shape[1]]
    report = tiles_tma.simulate((-(-shape[0] // 64), -(-shape[1] // 128)), x, inner)
    assert not report.findings
    assert (inner == x).all() and not y[0].any() and not y[-1].any() and not y[:, shape[1]:].any()


@tile.jit
def scale_factors(A, B):
    i = tile.program_id(0) * 2
    sA = tile.alloc((2, 128, 4), A.dtype)
    bar = tile.mbarrier(count=1)
    with tile.elect():
        bar.arrive_expect_tx(sA.nbytes)
        tile.copy_async(sA, A[i:i + 2, 0:128, 0:4], mbar=bar)
    bar.wait(phase=0)
    tile.copy(B[i:i + 2, 0:128, 0:4], sA)


def test_rows_of_four_bytes_are_merged_if_the_array_has_no_gaps():
    """The row's size and pitch become guards; another array needs another compilation."""
    x = np.random.default_rng(7).integers(0, 255, (7, 128, 4), np.uint8)
    y = np.zeros_like(x)
    report = scale_factors.simulate((4,), x, y)
    assert not report.findings and (x == y).all()
    k = scale_factors.compile(x, y)
    guards = [tuple(fact) for fact, held in k.recipe["guards"] if held]
    assert ("size_is", 0, 2, 4) in guards and ("stride_is", 0, 1, 4) in guards
    assert k.copies[0].variant == "tma" and k.copies[0].instructions == 1
    with pytest.raises(DispatchError):
        scale_factors.compile(np.zeros((7, 128, 5), np.uint8)[:, :, :4], y)


def test_a_store_that_would_be_clipped_inside_16_bytes_declines():
    """Rows of 325 elements: TMA writes whole 16-byte units, so ordinary stores are used."""
    x = np.zeros((200, 328), np.float16)[:, :325]
    k = tiles_tma.compile(half(200, 328), x)
    assert [c.variant for c in k.copies] == ["tma", "vector"]
    assert "an innermost dimension of a multiple of 16 bytes" in dict(k.copies[1].declined)["tma"]


def test_a_store_needs_starts_that_are_provably_not_negative():
    """A store at a negative coordinate faults; the reason names the dimension."""
    @tile.jit
    def back(B, n):
        sA = tile.alloc((8, 64), B.dtype)
        with tile.elect():
            tile.copy_async(B[n:n + 8, 0:64], sA, variant="tma")

    with pytest.raises(DispatchError, match="the start along dimension 0 is not known to be at least 0"):
        back.compile(half(64, 64), 3)


def test_an_innermost_start_must_be_provably_a_multiple_of_16_bytes():
    """A runtime column is provably a multiple of 8 float16 by its arithmetic, or the call declines."""
    def kernel(step):
        @tile.jit
        def column(A, n, STEP: tile.constexpr):
            sA = tile.alloc((8, 64), A.dtype)
            bar = tile.mbarrier(count=1)
            with tile.elect():
                bar.arrive_expect_tx(sA.nbytes)
                tile.copy_async(sA, A[0:8, n * STEP:n * STEP + 64], mbar=bar)
            bar.wait(phase=0)
        return column.compile(half(64, 512), 3, STEP=step)

    assert kernel(8).copies[0].variant == "tma"
    with pytest.raises(DispatchError, match="known to be a multiple of 4 elements of 2 bytes"):
        kernel(4)


@tile.jit
def stages_tma(A, B):
    sA = tile.alloc((3, 64, 64), A.dtype, layout=STAGES)
    bars = tile.mbarrier(count=1, n=3)
    for i in range(6):
        s = i % 3
        with tile.elect():
            bars[s].arrive_expect_tx(sA[0].nbytes)
            tile.copy_async(sA[s], A[i * 64:i * 64 + 64, 0:64], mbar=bars[s])
        bars[s].wait(phase=i // 3)
        tile.copy(B[i * 64:i * 64 + 64, 0:64], sA[s])
        tile.fence_proxy_async()
        tile.sync()


def test_a_runtime_stage_is_part_of_the_copy_s_address():
    """The shared buffer's stage and the array's row both change with the loop."""
    x = np.random.default_rng(1).standard_normal((370, 64)).astype(np.float16)
    y = np.zeros_like(x)
    report = stages_tma.simulate((1,), x, y)
    assert not report.findings and (x == y).all()
    k = stages_tma.compile(x, y)
    assert [c.variant for c in k.copies] == ["tma", "vectorised"] and k.cubin


def test_a_wider_scope_with_a_barrier_elects_its_first_thread():
    """At CTA scope a call with mbar= issues once; a store, without mbar=, declines."""
    @tile.jit
    def whole(A):
        sA = tile.alloc((8, 64), A.dtype)
        bar = tile.mbarrier(count=1)
        bar.arrive_expect_tx(sA.nbytes)
        tile.copy_async(sA, A[0:8, 0:64], mbar=bar)
        bar.wait(phase=0)

    k = whole.compile(half(64, 64))
    assert k.copies[0].variant == "tma" and k.copies[0].exec_scope == "cta" and len(bulk_lines(k.ptx)) == 1
    report = whole.simulate((1,), np.zeros((64, 64), np.float16))
    assert not report.findings

    @tile.jit
    def store(A):
        sA = tile.alloc((8, 64), A.dtype)
        tile.copy_async(A[0:8, 0:64], sA, variant="tma")

    with pytest.raises(DispatchError, match=r"use tile.elect\(\), or give mbar="):
        store.compile(half(64, 64))


def test_options_are_checked_at_the_call():
    """An invalid option is an error at the call that lists the valid values."""
    with pytest.raises(CompilationError, match='cache is "ca", "cg", "evict_first"'):
        stage_tma.compile(half(64, 512), half(64, 512), CACHE="evict")
    with pytest.raises(CompilationError, match="l2_promotion is 0, 64, 128 or 256 bytes, not 100"):
        stage_tma.compile(half(64, 512), half(64, 512), L2=100)
    k = stage_tma.compile(half(64, 512), half(64, 512), L2=256)
    assert k.copies[0].plan.tensor_map.l2_promotion == 3


def test_a_ragged_read_may_be_filled_with_nan():
    """fill="nan" by the map of a tensor load, or by ordinary loads; ldgsts, which fills zeros, declines."""
    @tile.jit
    def filled(A, B, VARIANT: tile.constexpr):
        sA = tile.alloc((8, 64), A.dtype)
        bar = tile.mbarrier(count=1)
        with tile.elect():
            bar.arrive_expect_tx(sA.nbytes)
            tile.copy_async(sA, A[4:12, 0:64], mbar=bar, fill="nan")
        bar.wait(phase=0)
        tile.copy(B[0:8, 0:64], sA)

    @tile.jit
    def plainly(A, B):
        sA = tile.alloc((8, 64), A.dtype)
        tile.copy_async(sA, A[4:12, 0:64], fill=float("nan"))
        tile.sync()
        tile.copy(B[0:8, 0:64], sA)

    for kernel, variant, extra in ((filled, "tma", {"VARIANT": 0}), (plainly, "vector", {})):
        x, y = np.ones((6, 64), np.float32), np.zeros((8, 64), np.float32)
        report = kernel.simulate((1,), x, y, **extra)
        assert not report.findings
        assert (y[:2] == 1).all() and np.isnan(y[2:]).all()
        k = kernel.compile(x, y, **extra)
        assert k.copies[0].variant == variant and k.cubin
    assert "zero as the fill" in dict(k.copies[0].declined)["ldgsts"]


def test_divergent_threads_may_each_issue_a_tensor_copy():
    """Four threads load a row each. A synchronous copy, which all threads share, is an error that names the condition."""
    @tile.jit
    def rows(A, B):
        sA = tile.alloc((4, 64), A.dtype)
        bar = tile.mbarrier(count=1)
        t = tile.thread_id()
        with tile.elect():
            bar.arrive_expect_tx(sA.nbytes)
        if t < 4:
            tile.copy_async(sA[t:t + 1], A[t:t + 1, 0:64], mbar=bar)
        bar.wait(phase=0)
        tile.copy(B[0:4, 0:64], sA)

    x, y = np.random.default_rng(8).standard_normal((4, 64)).astype(np.float32), np.zeros((4, 64), np.float32)
    report = rows.simulate((1,), x, y)
    assert not report.findings and (x == y).all()

    @tile.jit
    def shared_by_some(A):
        sA = tile.alloc((4, 64), A.dtype)
        if tile.thread_id() < 4:
            tile.copy(sA, A[0:4, 0:64])

    with pytest.raises(CompilationError, match="copy needs all threads of the cta"):
        shared_by_some.compile(half(4, 64))


def test_expect_variant_applies_to_the_operations_that_have_the_variant():
    """expect_variant("tma") applies to copy_async; a synchronous copy in the same block is unaffected."""
    @tile.jit
    def held(A, B):
        sA = tile.alloc((8, 64), A.dtype)
        bar = tile.mbarrier(count=1)
        with tile.expect_variant("tma"):
            with tile.elect():
                bar.arrive_expect_tx(sA.nbytes)
                tile.copy_async(sA, A[0:8, 0:64], mbar=bar)
            bar.wait(phase=0)
            tile.copy(B[0:8, 0:64], sA)

    assert [c.variant for c in held.compile(half(8, 64), half(8, 64)).copies] == ["tma", "vectorised"]
    with pytest.raises(DispatchError, match="cannot be lowered as 'tma' here"):
        held.compile(half(8, 68), half(8, 64))


def test_expect_variant_applies_to_prefetches_and_not_to_calls_with_another_variant():
    @tile.jit
    def ahead(A, NAME: tile.constexpr):
        with tile.expect_variant(NAME):
            tile.prefetch(A[0:8, 0:64])

    for name in ("lines", "tma"):
        assert f"'{name}'" in str(ahead.compile(half(8, 64), NAME=name).graph)
    with pytest.raises(DispatchError, match="prefetch cannot be lowered as 'tma' here"):
        ahead.compile(half(8, 68), NAME="tma")

    @tile.jit
    def two(A, NAME: tile.constexpr):
        sA = tile.alloc((8, 64), A.dtype)
        with tile.expect_variant("ldgsts"):
            tile.copy_async(sA, A[0:8, 0:64], variant=NAME)

    two.compile(half(8, 64), NAME="ldgsts")
    with pytest.raises(CompilationError, match="the call asks for 'tma', and the expect_variant block around it for 'ldgsts': remove one of them"):
        two.compile(half(8, 64), NAME="tma")
