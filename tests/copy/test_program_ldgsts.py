"""ldgsts: its example program from the plan to the result; its needs; how inputs change the plan."""

import numpy as np
import pytest
import tilejit as tile
from bytecheck import check_partition
from programs import staged
from tilejit.errors import CompilationError, DispatchError
from tilejit.layout import TileLayout
from tilejit.plan import BufferSpec, plan_copy

RNG = np.random.default_rng(11)
TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a")


def lines(ptx: str) -> list[str]:
    return [line.strip() for line in ptx.splitlines() if line.strip().startswith("cp.async")]


def planned(shape, dtype, *, region=None, strides=None, layout=None, scope="cta", threads=128, **options):
    """The choice for a region of an array into a shared buffer of its extents; if it is ldgsts, checked byte by byte."""
    array = BufferSpec(shape, dtype, "global", strides=strides, region=region)
    box = region or tuple(slice(0, n) for n in shape)
    shared = BufferSpec(tuple(r.stop - r.start for r in box), dtype, "shared", layout=layout)
    choice = plan_copy(shared, array, scope=scope, threads=threads, target="sm_80", **options)
    if choice.variant == "ldgsts":
        check_partition(choice.plan, shared, array)
    return choice


# -- the program -----------------------------------------------------------------------------------------------------------

def test_the_program_plans_4_copies_of_16_bytes_per_thread():
    """128 x 32 float16 with 128 threads: vectors of 8 elements, 4 per thread, bypassing L1."""
    plan = planned((128, 32), "float16").plan
    assert (plan.vec, plan.vec_bytes, plan.outer, plan.threads, plan.cache, plan.instructions) == (8, 16, 4, 128, "cg", 4)


@pytest.mark.parametrize("target", TARGETS)
def test_the_program_is_4_copies_then_a_commit_and_a_wait_on_every_target(target):
    """The instructions in order, with nothing blocking in between; it assembles."""
    x = np.zeros((128, 32), np.float16)
    k = staged.compile(x, x.copy(), target=target)
    text = lines(k.ptx)
    assert [line.split("[")[0] for line in text[:4]] == ["cp.async.cg.shared.global "] * 4
    assert all("], 16" in line for line in text[:4])
    assert text[4:] == ["cp.async.commit_group;", "cp.async.wait_group 0;"]
    record = k.copies[0]
    assert (record.variant, record.instructions, record.bytes, record.exec_scope) == ("ldgsts", 4, 8192, "cta")
    assert k.cubin


def test_the_program_returns_its_tile_on_the_simulator():
    """Every element, and no findings."""
    x = RNG.standard_normal((128, 32)).astype(np.float16)
    y = np.zeros_like(x)
    assert not staged.simulate((1,), x, y).findings and (x == y).all()


def test_completion_of_ldgsts_is_up_to_the_caller():
    """Without the wait the data is not there, and the simulator reports it."""
    @tile.jit
    def unwaited(A, B):
        sA = tile.alloc((128, 32), A.dtype)
        tile.copy_async(sA, A[0:128, 0:32])
        tile.cp_async_commit()
        tile.sync()
        tile.copy(B[0:128, 0:32], sA)

    x = RNG.standard_normal((128, 32)).astype(np.float16)
    assert "missing-wait" in {f.kind for f in unwaited.simulate((1,), x, np.zeros_like(x)).findings}


# -- needs -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("scope, threads, rounds", [("thread", 1, 512), ("warp", 32, 16), ("warpgroup", 128, 4), ("cta", 128, 4), ("cta", 256, 2)])
def test_ldgsts_accepts_thread_warp_warpgroup_and_cta_scope(scope, threads, rounds):
    """The same tile distributed over the threads of the scope: 512 vectors of 16 bytes."""
    choice = planned((128, 32), "float16", scope=scope, threads=threads)
    assert choice.variant == "ldgsts" and (choice.plan.threads, choice.plan.outer) == (threads, rounds)


def test_ldgsts_needs_all_threads_of_the_scope():
    """Under a condition that diverges in the CTA, the call is an error that names the divergent value."""
    @tile.jit
    def some(A):
        sA = tile.alloc((128, 32), A.dtype)
        if tile.thread_id() < 64:
            tile.copy_async(sA, A[0:128, 0:32], variant="ldgsts")
        tile.cp_async_commit()
        tile.cp_async_wait(0)

    with pytest.raises(DispatchError, match="needs all threads of the scope: the condition on .* differs between the threads of the cta"):
        some.compile(np.zeros((128, 32), np.float16))


@pytest.mark.parametrize("scopes", [("shared", "global"), ("shared", "shared"), ("global", "global")])
def test_ldgsts_only_copies_from_global_to_shared(scopes):
    """cp.async has no other direction; each other pair declines and is named."""
    src, dst = (BufferSpec((128, 32), "float16", scope) for scope in scopes)
    with pytest.raises(DispatchError, match=f"needs a global source and a shared destination: {scopes[0]} to {scopes[1]}"):
        plan_copy(dst, src, scope="cta", threads=128, variant="ldgsts")


@pytest.mark.parametrize("dst, message", [
    (BufferSpec((128, 32), "float32", "shared"), "a copy keeps the dtype"),
    (BufferSpec((128, 16), "float16", "shared"), "equal extents")])
def test_both_sides_of_ldgsts_must_have_the_same_dtype_and_extents(dst, message):
    """There is neither conversion nor truncation."""
    with pytest.raises(CompilationError, match=message):
        plan_copy(dst, BufferSpec((128, 32), "float16", "global"), scope="cta", threads=128)


def test_extents_of_1_are_ignored():
    """For example, a stage of a ring can receive a row block of a batch."""
    array = BufferSpec((4, 256, 32), "float16", "global", region=(2, slice(128, 256), slice(0, 32)))
    shared = BufferSpec((3, 1, 128, 32), "float16", "shared", region=(slice(1, 2), slice(0, 1), slice(0, 128), slice(0, 32)))
    choice = plan_copy(shared, array, scope="cta", threads=128)
    assert (choice.variant, choice.plan.outer) == ("ldgsts", 4)
    check_partition(choice.plan, shared, array)


@pytest.mark.parametrize("rows, threads, rounds", [(120, 128, 4), (100, 96, 5), (3, 128, 1), (1, 64, 1), (128, 96, 6)])
def test_if_the_threads_do_not_divide_the_elements_some_threads_skip_the_last_vector(rows, threads, rounds):
    """The region need not be a multiple of the threads; each byte is copied once."""
    choice = planned((rows, 32), "float16", threads=threads)
    assert choice.variant == "ldgsts" and choice.plan.ragged
    assert (choice.plan.vec_bytes, choice.plan.outer, choice.plan.vectors) == (16, rounds, rows * 4)


def test_ldgsts_precedes_the_bulk_paths_for_a_load_without_a_barrier():
    """tma and bulk could copy one thread's aligned tile too, and their records say that ldgsts came first; with mbar= they are used."""
    choice = planned((128, 32), "float16", scope="thread", threads=1)
    assert choice.variant == "ldgsts"
    shared, array = BufferSpec((128, 32), "float16", "shared"), BufferSpec((128, 32), "float16", "global")
    declined = dict(plan_copy(shared, array, target="sm_90a").declined)
    assert declined["tma"] == declined["bulk"] == "ldgsts comes first"
    assert plan_copy(shared, array, target="sm_90a", mbar=True).variant == "tma"


# -- how inputs change the plan ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype, vec, outer",
                         [("float16", 8, 4), ("float32", 4, 8), ("int8", 16, 2), ("float64", 2, 16), ("bool", 16, 2), ("bfloat16", 8, 4)])
def test_an_aligned_tile_is_copied_16_bytes_at_a_time_whatever_its_dtype(dtype, vec, outer):
    """`vec` is 16 bytes of elements, `outer` the rest of the 4096 elements over 128 threads."""
    plan = planned((128, 32), dtype).plan
    assert (plan.vec, plan.vec_bytes, plan.outer, plan.cache) == (vec, 16, outer, "cg")


@pytest.mark.parametrize("how", ["pitch", "start"])
@pytest.mark.parametrize("nbytes, pitch, start, outer", [(8, 1004, 4, 8), (4, 1002, 2, 16)])
def test_a_tile_of_narrower_alignment_is_copied_8_or_4_bytes_at_a_time(how, nbytes, pitch, start, outer):
    """The width is halved and the rounds double, down to 4 bytes; narrow copies go through L1."""
    shape, first = ((256, pitch), 0) if how == "pitch" else ((256, 1024), start)
    plan = planned(shape, "float16", region=(slice(0, 128), slice(first, first + 32))).plan
    assert (plan.vec_bytes, plan.outer, plan.cache) == (nbytes, outer, "ca")


@pytest.mark.parametrize("case", [
    dict(shape=(256, 1001), dtype="float16", region=(slice(0, 128), slice(0, 32))),
    dict(shape=(256, 1024), dtype="float16", region=(slice(0, 128), slice(1, 33))),
    dict(shape=(128, 32), dtype="float16", strides=(64, 2)),
    dict(shape=(128, 33), dtype="int8", region=(slice(0, 128), slice(0, 33)), layout=TileLayout(((128, 34, "m"), (33, 1, "m"))))])
def test_a_tile_without_provable_4_byte_alignment_is_declined(case):
    """Odd pitches, odd starts, strided elements: no width is left."""
    with pytest.raises(DispatchError, match="provably aligned and in bounds together"):
        planned(case.pop("shape"), case.pop("dtype"), variant="ldgsts", **case)


def test_the_width_is_at_most_16_bytes_however_long_the_rows_are():
    """cp.async has nothing wider."""
    assert planned((16, 4096), "float64").plan.vec_bytes == 16


@pytest.mark.parametrize("layout", [None, tile.swizzled("float16", (128, 64), 128), TileLayout(((128, 72, "m"), (64, 1, "m"))),
                                    TileLayout(((128, 68, "m"), (64, 1, "m")))])
def test_the_shared_layout_matters_only_within_16_byte_pieces(layout):
    """Swizzles and padding in units of 16 bytes keep the width; a pitch of 136 bytes halves it."""
    plan = planned((128, 64), "float16", layout=layout).plan
    assert plan.vec_bytes == (8 if layout is not None and layout.shards[0][1] == 68 else 16)
