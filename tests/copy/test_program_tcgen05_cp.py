"""tcgen05_cp: its example program from the plan to the result; its needs; how inputs change the plan."""

import re

import numpy as np
import pytest
import tilejit as tile
from programs import REPEATED, R, S, axis, repeated
from test_tensor_copy_plans import moved_bytes, wanted_bytes
from tilejit.errors import CompilationError, DispatchError
from tilejit.layout import TileLayout
from tilejit.plan import BufferSpec, plan_copy

NBYTES = {"uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4, "uint32": 4}


def quarter(columns):
    """32 rows, one per lane, replicated to the lanes of each warp."""
    return S[(32, columns) : (1 @ axis.TLane, 1 @ axis.TCol)] + R[4 : 32 @ axis.TLane]


def planned(size, dtype="uint8", *, layout=None, to=None, region=None, target="sm_100a", **options):
    """The plan of a copy between a buffer and tensor memory of its extents, checked byte by byte."""
    extents = tuple(r.stop - r.start for r in region) if region else size
    layout = layout if layout is not None else TileLayout.row_major(size)
    shared = BufferSpec(size, dtype, "shared", layout=layout, region=region or tuple(slice(0, n) for n in size))
    tmem = BufferSpec(extents, dtype, "tmem", layout=to if to is not None else quarter(extents[1]), region=tuple(slice(0, n) for n in extents))
    plan = plan_copy(tmem, shared, target=target, variant="tcgen05_cp", **options).plan
    assert moved_bytes(plan) == wanted_bytes(tmem, shared, NBYTES[dtype])
    return plan


# -- the program -----------------------------------------------------------------------------------------------------------

def test_the_program_plans_one_copy_of_32_rows_of_128_bits_to_all_warps():
    """32 x 16 uint8: sdo 8 (8 rows of 16 bytes), no swizzle, one instruction; no second column, so ldo is unused."""
    plan = planned((32, 16))
    assert (plan.shape, plan.multicast, plan.ldo, plan.sdo, plan.swizzle, plan.issues) == ("32x128b", "warpx4", 0, 8, 0, [(0, 0)])
    assert plan.instructions == 1


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_the_program_is_one_copy_and_a_commit_on_the_targets_that_have_tensor_memory(target):
    """A tensor memory address and a descriptor; the caller's commit completes it; it assembles."""
    x = np.zeros((32, 16), np.uint8)
    k = repeated.compile(x, x.copy(), target=target)
    assert k.ptx.count("tcgen05.cp.") == 1 and "tcgen05.cp.cta_group::1.32x128b.warpx4 [" in k.ptx
    assert "tcgen05.commit.cta_group::1.mbarrier::arrive::one" in k.ptx
    record = next(c for c in k.copies if c.op == "copy_async")
    assert (record.variant, record.instructions, record.bytes, record.exec_scope) == ("tcgen05_cp", 1, 512, "thread")
    assert k.cubin


def test_the_program_returns_its_tile_on_the_simulator():
    """The lanes of a warp hold the tile."""
    x = np.random.default_rng(14).integers(0, 256, (32, 16)).astype(np.uint8)
    y = np.zeros_like(x)
    assert not repeated.simulate((1,), x, y, target="sm_100a").findings and (x == y).all()


# -- needs -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_tcgen05_cp_needs_a_target_with_tensor_memory(target):
    """sm_120a has none."""
    with pytest.raises(DispatchError, match="tensor memory: sm_100a or sm_103a"):
        planned((32, 16), target=target)


def test_tcgen05_cp_is_issued_by_one_thread():
    """A wider scope declines."""
    with pytest.raises(DispatchError, match="needs one thread"):
        planned((32, 16), scope="warpgroup", threads=128)


@pytest.mark.parametrize("src, dst", [("global", "tmem"), ("tmem", "shared")])
def test_tcgen05_cp_only_copies_from_shared_to_tensor_memory(src, dst):
    """Not from an array, and not back."""
    specs = {s: BufferSpec((32, 16), "uint8", s, layout=quarter(16) if s == "tmem" else None) for s in (src, dst)}
    with pytest.raises((DispatchError, CompilationError), match="tensor memory"):
        plan_copy(specs[dst], specs[src], target="sm_100a", variant="tcgen05_cp")


@pytest.mark.parametrize("replica", [None, R[2 : 32 @ axis.TLane], R[3 : 32 @ axis.TLane], R[4 : 16 @ axis.TLane]])
def test_a_form_of_32_rows_needs_a_layout_replicated_to_every_warp(replica):
    """Exactly four times, 32 lanes apart."""
    lanes = S[(32, 16) : (1 @ axis.TLane, 1 @ axis.TCol)]
    assert planned((32, 16), to=lanes + R[4 : 32 @ axis.TLane]).multicast == "warpx4"
    with pytest.raises(DispatchError, match="layouts that a shape and a matrix descriptor name"):
        planned((32, 16), to=lanes if replica is None else lanes + replica)


def test_both_sides_of_tcgen05_cp_must_have_the_same_dtype():
    """As for every variant."""
    with pytest.raises(CompilationError, match="a copy keeps the dtype"):
        plan_copy(BufferSpec((32, 16), "int8", "tmem", layout=quarter(16)), BufferSpec((32, 16), "uint8", "shared"), target="sm_100a")


# -- how inputs change the plan ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype, columns", [("uint8", 16), ("bfloat16", 8), ("uint32", 4), ("float32", 4)])
def test_the_dtype_determines_how_many_elements_128_bits_hold(dtype, columns):
    """16 of 8 bits, 8 of 16, 4 of 32: one copy each, and two for twice the columns."""
    assert planned((32, columns), dtype).issues == [(0, 0)]
    double = planned((32, 2 * columns), dtype, layout=tile.swizzled(dtype, (32, 2 * columns), 32))
    assert (double.instructions, double.swizzle) == (2, 1)


@pytest.mark.parametrize("mode, swizzle", [(32, 1), (64, 2), (128, 3)])
def test_the_swizzle_of_the_shared_layout_is_encoded_in_the_descriptor(mode, swizzle):
    """Rows of 32, 64 and 128 bytes are modes 1, 2, 3, and groups of 8 of them are sdo apart."""
    columns = mode // 2
    plan = planned((32, columns), "bfloat16", layout=tile.swizzled("bfloat16", (32, columns), mode))
    assert (plan.swizzle, plan.sdo, plan.instructions) == (swizzle, 8 * mode // 16, mode // 16)


def test_more_tiles_are_more_copies_each_at_its_column_and_byte():
    """Four tiles of 128 bits: four 32-bit columns and 16 bytes further on each."""
    plan = planned((32, 64), layout=tile.swizzled("uint8", (32, 64), 64))
    assert plan.issues == [(0, 0), (4, 16), (8, 32), (12, 48)]


@pytest.mark.parametrize("columns, at", [
    (S[(2, 2, 16) : (32 @ axis.TCol, 16 @ axis.TCol, 1 @ axis.TCol)], (0, 4, 8, 12)),
    (S[(2, 2, 16) : (16 @ axis.TCol, 32 @ axis.TCol, 1 @ axis.TCol)], (0, 8, 4, 12)),
    (S[(4, 16) : (32 @ axis.TCol, 1 @ axis.TCol)], (0, 8, 16, 24))])
def test_the_copies_follow_the_order_of_the_columns_in_tensor_memory(columns, at):
    """Tiles in order, permuted, and with gaps; the shared memory address advances by 16 bytes."""
    to = TileLayout(((32, 1, "TLane"), *columns.shards), replicas=quarter(16).replicas)
    assert planned((32, 64), layout=tile.swizzled("uint8", (32, 64), 64), to=to).issues == [(a, 16 * i) for i, a in enumerate(at)]


FOUR = quarter(64)


@tile.jit
def tiles(A, B, GROUP: tile.constexpr):
    """Four tiles of 128 bits, by each CTA separately or for the pair that it leads."""
    s = tile.alloc((32, 64), A.dtype, layout=tile.swizzled(A.dtype, (32, 64), 64))
    tmem = tile.alloc((32, 64), A.dtype, scope="tmem", layout=FOUR, cta_group=GROUP)
    bar = tile.mbarrier(count=1)
    tile.copy(s, A[0:32, 0:64])
    tile.fence_proxy_async()
    tile.cluster_sync()
    if tile.cta_rank() % GROUP == 0:
        with tile.elect():
            tile.copy_async(tmem, s, cta_group=GROUP)
            tile.tcgen05_commit(bar, multicast=3 if GROUP == 2 else None)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(B[tile.program_id(0), 0:32, 0:64], tile.load(tmem))


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("group", [1, 2])
def test_the_cta_group_is_in_the_instruction_and_one_descriptor_serves_all_copies(group, target):
    """Each copy adds 16 bytes (1 in the descriptor's units) to the descriptor of the first."""
    x, y = np.random.default_rng(3).integers(0, 256, (32, 64)).astype(np.uint8), np.zeros((2, 32, 64), np.uint8)
    k = tiles.compile(x, y, GROUP=group, cluster=(2, 1, 1), target=target)
    steps = re.findall(r"add\.s64 d, (%rd\d+), (\d+); add\.u32 t, %r\d+, (\d+); (tcgen05\.cp\.\S+) \[t\], d;", k.ptx)
    assert [step[1:] for step in steps] == [(str(i), str(4 * i), f"tcgen05.cp.cta_group::{group}.32x128b.warpx4") for i in range(4)]
    assert k.ptx.count("tcgen05.cp.") == 4 and len({step[0] for step in steps}) == 1 and k.cubin
    assert not tiles.simulate((2,), x, y, GROUP=group, cluster=(2, 1, 1), target=target).findings and (y == x).all()


def test_unswizzled_rows_that_are_not_16_byte_columns_have_no_descriptor():
    """A pitch of 64 bytes without the swizzle of that width; 16-byte columns have one."""
    with pytest.raises(DispatchError, match="layouts that a shape and a matrix descriptor name"):
        planned((32, 64))
    assert planned((32, 64), layout=tile.swizzled("uint8", (32, 64), 0)).instructions == 4


@pytest.mark.parametrize("rows, to, form", [
    (128, S[(128, 32) : (1 @ axis.TLane, 1 @ axis.TCol)], "128x256b"),
    (4, S[(4, 32) : (32 @ axis.TLane, 1 @ axis.TCol)], "4x256b"),
    (64, S[(64, 32) : (1 @ axis.TLane, 1 @ axis.TCol)] + R[2 : 64 @ axis.TLane], "64x128b.warpx2::02_13"),
    (64, S[(2, 32, 32) : (64 @ axis.TLane, 1 @ axis.TLane, 1 @ axis.TCol)] + R[2 : 32 @ axis.TLane], "64x128b.warpx2::01_23"),
    (32, REPEATED, "32x128b.warpx4")])
def test_the_layout_of_tensor_memory_determines_the_form(rows, to, form):
    """All lanes, one lane of each warp, halves, quarters."""
    columns = 16 if form.endswith("warpx4") else 32
    plan = planned((rows, columns), layout=tile.swizzled("uint8", (rows, columns), 32) if columns == 32 and rows % 8 == 0 else
                   tile.S[(4, 2, 16):(16, 128, 1)] if rows == 4 else None, to=to)
    assert plan.shape + (f".{plan.multicast}" if plan.multicast else "") == form


def test_a_form_can_be_requested_by_name():
    """128 rows by 128 bits instead of 256."""
    lanes = S[(128, 32) : (1 @ axis.TLane, 1 @ axis.TCol)]
    layout = tile.swizzled("uint8", (128, 32), 32)
    assert planned((128, 32), layout=layout, to=lanes).instructions == 1
    assert planned((128, 32), layout=layout, to=lanes, shape="128x128b").instructions == 2
