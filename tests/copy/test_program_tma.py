"""tma: its example program from the plan to the result; its needs; how inputs change the plan."""

import re

import numpy as np
import pytest
import tilejit as tile
from bytecheck import check_tensor_plan
from programs import boxed, boxed_out
from tilejit.errors import CompilationError, DispatchError
from tilejit.layout import TileLayout
from tilejit.plan import BufferSpec, plan_copy

RNG = np.random.default_rng(13)
TARGETS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"


def planned(shape, dtype="float16", *, layout=None, region=None, strides=None, buffer=None, store=False, **options):
    """The plan of a copy between an array's region and a buffer of its extents, checked byte by byte."""
    box = region or tuple(slice(0, n) for n in shape)
    array = BufferSpec(shape, dtype, "global", region=region, strides=strides)
    shared = BufferSpec(buffer or tuple(r.stop - r.start for r in box), dtype, "shared", layout=layout)
    dst, src = (array, shared) if store else (shared, array)
    plan = plan_copy(dst, src, variant="tma", **options).plan
    check_tensor_plan(plan, dst, src)
    return plan


def fields(plan):
    m = plan.tensor_map
    return m.global_dim, m.global_strides, m.box, m.swizzle


# -- the program -----------------------------------------------------------------------------------------------------------

def test_the_program_plans_a_map_of_three_dimensions_and_one_instruction():
    """8 x 256 float16 with a 128-byte swizzle: dimensions 64, 8, 4, strides 512 and 128, a box of all, swizzle 3, promotion 2."""
    plan = planned((8, 256), layout=tile.swizzled("float16", (8, 256), 128))
    m = plan.tensor_map
    assert fields(plan) == ((64, 8, 4), (512, 128), (64, 8, 4), 3)
    assert (m.rank, m.element_strides, m.interleave, m.l2_promotion, m.oob_fill, m.dtype) == (3, (1, 1, 1), 0, 2, 0, "float16")
    assert (plan.issues, plan.bytes_per_issue, plan.instructions) == ([((0, 0, 0), 0)], 4096, 1)


@pytest.mark.parametrize("target", TARGETS)
def test_the_program_is_one_instruction_on_every_target(target):
    """Destination, map and three coordinates, barrier; no CTA group qualifier unless requested; it assembles."""
    x = np.zeros((8, 256), np.float16)
    k = boxed.compile(x, x.copy(), target=target)
    (line,) = (line.strip() for line in k.ptx.splitlines() if "cp.async.bulk" in line)
    assert re.fullmatch(re.escape(LOAD.format(3)) + r" \[%r\d+\], \[%rd\d+, \{%r\d+, %r\d+, %r\d+\}\], \[%r\d+ \+ 4096\];", line)
    record = k.copies[0]
    assert (record.variant, record.instructions, record.bytes, record.exec_scope) == ("tma", 1, 4096, "thread")
    assert k.cubin


def test_the_program_returns_its_tile_on_the_simulator():
    """The copy comes before expect_tx: the barrier's pending bytes may be negative in between."""
    x = RNG.standard_normal((8, 256)).astype(np.float16)
    y = np.zeros_like(x)
    assert not boxed.simulate((1,), x, y).findings and (x == y).all()


def test_completion_of_tma_is_up_to_the_caller():
    """The copy emits neither an announcement nor a wait; without a wait the data is not there."""
    @tile.jit(num_warps=1)
    def unwaited(A, B):
        sA = tile.alloc((8, 256), A.dtype)
        bar = tile.mbarrier(count=1)
        with tile.elect():
            tile.copy_async(sA, A[0:8, 0:256], mbar=bar)
            bar.arrive_expect_tx(sA.nbytes)
        tile.sync()
        tile.copy(B[0:8, 0:256], sA)

    x = np.zeros((8, 256), np.float16)
    assert "missing-wait" in {f.kind for f in unwaited.simulate((1,), x, x.copy()).findings}


# -- needs -------------------------------------------------------------------------------------------------------------------

def test_tma_needs_sm_90_or_later():
    """Earlier targets have no tensor memory accelerator."""
    with pytest.raises(DispatchError, match="needs sm_90 or later"):
        planned((8, 256), target="sm_80")


def test_tma_is_issued_by_one_thread():
    """A wider scope declines without a barrier, and the reason suggests what to write; with a barrier its first thread issues."""
    with pytest.raises(DispatchError, match=r"needs one thread.*use tile.elect\(\)"):
        planned((8, 256), scope="cta", threads=128)
    assert planned((8, 256), scope="cta", threads=128, mbar=True).instructions == 1


@pytest.mark.parametrize("src, dst", [("global", "global"), ("shared", "shared")])
def test_tma_copies_from_global_to_shared_or_back(src, dst):
    """Any other pair declines and is named."""
    with pytest.raises(DispatchError, match=f"one side in global and the other in shared memory: {src} to {dst}"):
        plan_copy(BufferSpec((8, 256), "float16", dst), BufferSpec((8, 256), "float16", src), variant="tma")


@pytest.mark.parametrize("shared, message", [
    (BufferSpec((8, 256), "float32", "shared"), "a copy keeps the dtype"), (BufferSpec((8, 128), "float16", "shared"), "equal extents")])
def test_both_sides_of_tma_must_have_the_same_dtype_and_extents(shared, message):
    """There is neither conversion nor truncation."""
    with pytest.raises(CompilationError, match=message):
        plan_copy(shared, BufferSpec((8, 256), "float16", "global"))


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_ranks_from_1_to_5_are_maps_of_that_rank(rank):
    """Dimensions that cannot be merged, since the array continues in each: one instruction."""
    shape = (6, 6, 6, 6, 64)[-rank:]
    region = tuple(slice(2, 4) for _ in shape[:-1]) + (slice(8, 40),)
    plan = planned(shape, region=region)
    assert plan.tensor_map.rank == rank and plan.instructions == 1


def test_dimensions_beyond_the_fifth_are_merged_or_decline():
    """Six dimensions of which two are covered completely become five; six that all continue decline, with the number."""
    region = (slice(1, 2), slice(0, 6), slice(1, 3), slice(1, 3), slice(1, 3), slice(8, 40))
    assert planned((3, 6, 6, 6, 6, 64), region=region).tensor_map.rank == 5
    with pytest.raises(DispatchError, match="6 dimensions, more than 5"):
        planned((6, 6, 6, 6, 6, 64), region=tuple(slice(1, 3) for _ in range(5)) + (slice(8, 40),))


def test_the_innermost_elements_must_be_contiguous_on_both_sides():
    """With a stride of 2 in the array, or column-major shared memory, they are not."""
    with pytest.raises(DispatchError, match="the same contiguous elements innermost in both memories"):
        planned((64, 64), strides=(128, 2))
    with pytest.raises(DispatchError, match="the same contiguous elements innermost in both memories"):
        planned((64, 64), layout=TileLayout(((64, 1, "m"), (64, 64, "m"))))
    assert planned((64, 64), strides=(1, 64), layout=TileLayout(((64, 1, "m"), (64, 64, "m")))).instructions == 1


@pytest.mark.parametrize("mode, width", [(32, 16), (64, 32), (128, 64)])
def test_the_innermost_box_fits_the_swizzle_atom(mode, width):
    """A row of 256 float16 is split into atoms of 32, 64 or 128 bytes."""
    plan = planned((8, 256), layout=tile.swizzled("float16", (8, 256), mode))
    assert plan.tensor_map.box[0] == width


# -- how inputs change the plan ------------------------------------------------------------------------------------------------

def test_the_direction_changes_the_instruction():
    """Loads complete on a barrier, stores by the thread's bulk groups; the map is the same."""
    x = RNG.standard_normal((8, 256)).astype(np.float16)
    y = np.zeros_like(x)
    k = boxed_out.compile(x, y)
    text = [line.strip() for line in k.ptx.splitlines() if "cp.async.bulk" in line]
    assert text[0].startswith(STORE.format(3) + " [%rd") and text[1:] == ["cp.async.bulk.commit_group;", "cp.async.bulk.wait_group 0;"]
    assert not boxed_out.simulate((1,), x, y).findings and (x == y).all()
    layout = tile.swizzled("float16", (8, 256), 128)
    load, store = (planned((8, 256), layout=layout, store=store) for store in (False, True))
    assert fields(load) == fields(store) and (load.completion, store.completion) == ("bytes", "bulk")


@pytest.mark.parametrize("mode, dims, strides",
                         [(0, (8, 8, 32), (512, 16)), (32, (16, 8, 16), (512, 32)), (64, (32, 8, 8), (512, 64)), (128, (64, 8, 4), (512, 128))])
def test_a_swizzled_two_dimensional_tile_has_a_map_of_three_dimensions(mode, dims, strides):
    """The rows are split at the atoms; the mode number is the descriptor's. Columns of 16 bytes are mode 0, and split likewise."""
    plan = planned((8, 256), layout=tile.swizzled("float16", (8, 256), mode))
    assert fields(plan) == (dims, strides, dims, (0, 32, 64, 128).index(mode)) and plan.instructions == 1


def test_a_tile_one_atom_wide_keeps_a_map_of_two_dimensions():
    """There is nothing to split."""
    plan = planned((1024, 1024), region=(slice(128, 256), slice(64, 128)), layout=tile.swizzled("float16", (128, 64), 128))
    assert fields(plan) == ((1024, 1024), (2048,), (64, 128), 3)


def test_a_longer_contiguous_chain_in_the_box_means_fewer_instructions():
    """Rows, then planes, then volumes without gaps in shared memory join the box; padding ends the chain."""
    shape = (8, 8, 8, 64)
    region = tuple(slice(0, 4) for _ in range(3)) + (slice(0, 32),)
    whole = planned(shape, region=region)
    assert (whole.tensor_map.box, whole.instructions) == ((32, 4, 4, 4), 1)
    planes = TileLayout(((4, 2048, "m"), (4, 128, "m"), (4, 32, "m"), (32, 1, "m")))
    assert planned(shape, region=region, layout=planes).tensor_map.box == (32, 4, 4, 1)
    assert planned(shape, region=region, layout=planes).instructions == 4


def test_adjacent_dimensions_that_the_box_covers_completely_are_merged():
    """(4, 8, 64) without gaps is a row of 2048 elements, and 32 rows of 64 where the rows continue in the next plane."""
    assert planned((4, 8, 64), region=(slice(1, 3), slice(0, 8), slice(0, 64))).tensor_map.rank < 3
    merged = planned((4, 8, 64), strides=(1024, 128, 1), region=(slice(0, 4), slice(0, 8), slice(0, 64)))
    assert merged.tensor_map.global_dim == (64, 32) and merged.tensor_map.box == (64, 32)


@pytest.mark.parametrize("dtype, element", [("int8", "uint16"), ("float16", "uint32"), ("float32", "uint64")])
def test_a_row_of_512_elements_is_one_box_of_elements_twice_as_wide(dtype, element):
    """A box extent is at most 256: two elements are treated as one."""
    plan = planned((512,), dtype)
    assert (plan.tensor_map.dtype, plan.tensor_map.box, plan.instructions) == (element, (256,), 1)


def test_elements_are_widened_up_to_8_bytes_and_then_the_box_is_split():
    """2048 bytes of int8 are 256 elements of 8; 512 of float64 cannot be widened, and are two boxes."""
    assert planned((2048,), "int8").tensor_map.dtype == "uint64"
    plan = planned((512,), "float64")
    assert (plan.tensor_map.dtype, plan.tensor_map.box, plan.instructions) == ("float64", (256,), 2)


def test_no_box_extent_is_above_256():
    """512 rows of 64 float16 into a row-major buffer: two boxes of 256 rows."""
    plan = planned((512, 64))
    assert plan.tensor_map.box == (64, 256) and plan.instructions == 2


@pytest.mark.parametrize("dtype, element, nbytes", [
    ("bool", "uint8", 1), ("int8", "uint8", 1), ("uint8", "uint8", 1), ("float8_e4m3fn", "uint8", 1), ("float8_e5m2", "uint8", 1),
    ("int16", "uint16", 2), ("uint16", "uint16", 2), ("float16", "float16", 2), ("bfloat16", "bfloat16", 2),
    ("int32", "int32", 4), ("uint32", "uint32", 4), ("float32", "float32", 4), ("int64", "int64", 8), ("uint64", "uint64", 8),
    ("float64", "float64", 8)])
def test_the_dtype_determines_the_map_s_element_type_and_the_bytes_of_its_box(dtype, element, nbytes):
    """Types that maps lack move as unsigned ones of their size; element strides are 1."""
    plan = planned((256, 256), dtype, region=(slice(8, 16), slice(16, 32)))
    m = plan.tensor_map
    assert (m.dtype, m.box, m.element_strides, m.global_strides) == (element, (16, 8), (1, 1), (256 * nbytes,))
    assert plan.bytes_per_issue == 16 * 8 * nbytes


def test_a_reducing_store_is_another_instruction_with_the_same_map():
    """reduce= on a store; loads do not support it."""
    layout = tile.swizzled("float32", (128, 32), 128)
    store, sum_ = (planned((128, 32), "float32", layout=layout, store=True, **options) for options in ({}, {"reduce": "add"}))
    assert fields(store) == fields(sum_) and sum_.instructions == 1
    with pytest.raises(DispatchError, match="reduce= on a load"):
        planned((128, 32), "float32", layout=layout, reduce="add")


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def optioned(A, CACHE: tile.constexpr = None, MASK: tile.constexpr = None, GROUP: tile.constexpr = None, MAP: tile.constexpr = False,
             STORE: tile.constexpr = False, REDUCE: tile.constexpr = None, zero=0):
    s = tile.alloc((16, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        if STORE:
            tile.copy_async(A[0:16, 0:64], s, cache=CACHE, reduce=REDUCE)
        else:
            bar.arrive_expect_tx(s.nbytes + zero)
            tile.copy_async(s, A[0:16, 0:64], mbar=bar, cache=CACHE, multicast=MASK, cta_group=GROUP, prefetch_map=MAP)


@pytest.mark.parametrize("target, options, text", [
    ("sm_90a", {}, LOAD), ("sm_100a", {}, LOAD), ("sm_90a", {"MAP": True}, LOAD),
    ("sm_90a", {"CACHE": "evict_first"}, LOAD + ".L2::cache_hint"),
    ("sm_90a", {"MASK": 3}, LOAD + ".multicast::cluster"), ("sm_90a", {"MASK": 2}, LOAD + ".multicast::cluster"),
    ("sm_90a", {"MASK": 3, "CACHE": "evict_last"}, LOAD + ".multicast::cluster.L2::cache_hint"),
    ("sm_100a", {"GROUP": 1}, LOAD + ".cta_group::1"), ("sm_103a", {"GROUP": 2}, LOAD + ".cta_group::2"),
    ("sm_100a", {"GROUP": 2, "MASK": 3}, LOAD + ".multicast::cluster.cta_group::2"),
    ("sm_100a", {"GROUP": 1, "MASK": 3, "CACHE": "evict_first"}, LOAD + ".multicast::cluster.cta_group::1.L2::cache_hint"),
    ("sm_90a", {"STORE": True}, STORE), ("sm_100a", {"STORE": True, "CACHE": "evict_first"}, STORE + ".L2::cache_hint"),
    ("sm_90a", {"STORE": True, "REDUCE": "add"}, "cp.reduce.async.bulk.tensor.{}d.global.shared::cta.add.tile.bulk_group")])
def test_each_option_is_spelled_as_in_the_manual_and_assembles(target, options, text):
    """Qualifiers have one order, whichever are present; a mask of one bit is a multicast; no CTA group unless requested."""
    k = optioned.compile(tile.ArraySpec((64, 512), "float32"), zero=0, target=target, **options)
    (line,) = (line.strip() for line in k.ptx.splitlines() if re.match(r"\s*cp\.(reduce\.)?async\.bulk\.tensor", line))
    assert line.split(" ")[0] == text.format(2)
    assert ("prefetch.tensormap" in k.ptx) == ("MAP" in options) and k.cubin


@pytest.mark.parametrize("case, reason", [
    (dict(shape=(64, 64), region=(slice(0, 64), slice(4, 36))), "a start along the innermost dimension at a multiple of 16 bytes"),
    (dict(shape=(64, 60), region=(slice(0, 64), slice(0, 56))), "not known to be a multiple of 16 bytes"),
    (dict(shape=(64, 4), strides=(64, 1)), "no box of it is a multiple of 16 bytes"),
    (dict(shape=(64, 64), layout=TileLayout(((64, 68, "m"), (64, 1, "m")))), "boxes that begin at multiples of 128 bytes")])
def test_a_copy_without_a_legal_descriptor_declines_with_the_reason(case, reason):
    """Starts, pitches, rows and addresses that TMA does not support; the search finds nothing."""
    with pytest.raises(DispatchError, match=reason):
        planned(case.pop("shape"), **case)
