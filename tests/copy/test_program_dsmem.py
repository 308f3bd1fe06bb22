"""dsmem: its example program from the plan to the result; its needs; how inputs change the plan."""

import numpy as np
import pytest
import tilejit as tile
from bytecheck import check_runs
from programs import handed_over
from tilejit.errors import CompilationError, DispatchError
from tilejit.layout import TileLayout
from tilejit.plan import BufferSpec, plan_copy

RNG = np.random.default_rng(12)
TARGETS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes ["


def planned(shape, dtype="float16", *, source=None, destination=None, region=None, **options):
    """The plan of a copy to a peer between buffers of these layouts, checked byte by byte."""
    src, dst = (BufferSpec(shape, dtype, "shared", layout=layout, region=region) for layout in (source, destination))
    plan = plan_copy(dst, src, variant="dsmem", **{"peer": 1, **options}).plan
    check_runs(plan, dst, src)
    return plan


def rows(n, columns, pitch):
    return TileLayout(((n, pitch, "m"), (columns, 1, "m")))


# -- the program -----------------------------------------------------------------------------------------------------------

def test_the_program_plans_one_chunk_of_16384_bytes():
    """128 x 64 float16, contiguous on both sides."""
    plan = planned((128, 64))
    assert (plan.chunk_bytes, plan.chunks, plan.instructions, plan.places) == (16384, 1, 1, ((0, 0),))


@pytest.mark.parametrize("target", TARGETS)
def test_the_program_maps_both_addresses_and_issues_one_copy_on_every_target(target):
    """mapa of the destination and of the barrier, then one bulk copy with an immediate size on the mapped addresses; it assembles."""
    x = np.zeros((128, 64), np.float16)
    k = handed_over.compile(x, x.copy(), target=target)
    text = [line.strip() for line in k.ptx.splitlines()]
    (copy,) = (line for line in text if line.startswith("cp.async.bulk."))
    mapped = [line.split()[1].rstrip(",") for line in text if line.startswith("mapa.shared::cluster.u32")]
    assert len(mapped) == 2
    assert copy.startswith(f"{COPY}{mapped[0]}], [") and copy.endswith(f"], 16384, [{mapped[1]}];")
    record = k.copies[1]
    assert (record.variant, record.instructions, record.bytes, record.exec_scope) == ("dsmem", 1, 16384, "thread")
    assert k.cubin


def test_the_program_returns_its_tile_on_the_simulator():
    """CTA 1 writes what CTA 0 read, with no findings."""
    x = RNG.standard_normal((128, 64)).astype(np.float16)
    y = np.zeros_like(x)
    assert not handed_over.simulate((2,), x, y).findings and (x == y).all()


def test_the_destination_arms_the_barrier_and_the_copy_emits_no_wait():
    """If the destination does not announce the bytes, there is a finding: the phase ends without them."""
    @tile.jit(num_warps=1, cluster=(2, 1, 1))
    def unarmed(A, B):
        mine, theirs = tile.alloc((16, 64), A.dtype), tile.alloc((16, 64), A.dtype)
        bar = tile.mbarrier(count=1)
        if tile.cta_rank() == 0:
            tile.copy(mine, A[0:16, 0:64])
            tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                tile.copy_async(theirs.peer(1), mine, mbar=bar)
        else:
            with tile.elect():
                bar.arrive()
            bar.wait(phase=0)
            tile.copy(B[0:16, 0:64], theirs)

    x = np.zeros((16, 64), np.float16)
    assert unarmed.simulate((2,), x, x.copy()).findings


# -- needs -------------------------------------------------------------------------------------------------------------------

def test_dsmem_needs_sm_90_or_later():
    """Earlier targets have no clusters."""
    with pytest.raises(DispatchError, match="needs sm_90 or later"):
        planned((128, 64), target="sm_80")


def test_dsmem_is_issued_by_one_thread():
    """A wider scope declines without a barrier, and the reason suggests what to write; with a barrier its first thread issues."""
    with pytest.raises(DispatchError, match=r"needs one thread.*use tile.elect\(\)"):
        planned((128, 64), scope="cta", threads=128)
    assert planned((128, 64), scope="cta", threads=128, mbar=True).chunks == 1


def test_both_sides_of_dsmem_must_be_shared_memory():
    """A tile of an array must be staged in the CTA's own memory first."""
    src, dst = BufferSpec((128, 64), "float16", "global"), BufferSpec((128, 64), "float16", "shared")
    with pytest.raises(DispatchError, match="needs shared memory on both sides: global to shared"):
        plan_copy(dst, src, variant="dsmem", peer=1)


@pytest.mark.parametrize("to, of", [(0, 8), (8, 0), (0, 4), (4, 0), (4, 12)])
def test_swizzled_rows_are_copied_by_dsmem_exactly_between_equal_places_of_the_period(to, of):
    """Of 8 rows: a swizzle exchanges the 16-byte units of a row by the row's number in it."""
    swizzled = tile.swizzled("float16", (16, 64), 128)
    kernel = tile.jit(source="\n    ".join((
        "def k(x, LAYOUT: tile.constexpr):", *(f"{v} = tile.alloc((16, 64), 'float16', layout=LAYOUT)" for v in "ab"),
        "bar = tile.mbarrier(1)", "tile.store(a, tile.zeros((16, 64), tile.float16))", "tile.cluster_sync()",
        f"tile.copy_async(b.peer(1)[{to}:{to + 4}], a[{of}:{of + 4}], mbar=bar, variant='dsmem')")))
    array = tile.ArraySpec((64,), "float32")
    if (to - of) % 8 == 0:
        assert COPY in kernel.compile(array, LAYOUT=swizzled, target="sm_90a", cluster=2).ptx
    else:
        with pytest.raises(CompilationError, match="regions at different places in its period of 512 elements"):
            kernel.compile(array, LAYOUT=swizzled, target="sm_90a", cluster=2)


def test_the_destination_of_dsmem_must_be_a_peer_s():
    """Without a rank there is no other CTA to copy to."""
    with pytest.raises(DispatchError, match="the shared memory of a peer as the destination.*no peer="):
        planned((128, 64), peer=None)


@pytest.mark.parametrize("dst, message", [
    (BufferSpec((128, 64), "float32", "shared"), "a copy keeps the dtype"), (BufferSpec((64, 64), "float16", "shared"), "equal extents")])
def test_both_sides_of_dsmem_must_have_the_same_dtype_and_extents(dst, message):
    """As for every variant."""
    with pytest.raises(CompilationError, match=message):
        plan_copy(dst, BufferSpec((128, 64), "float16", "shared"), peer=1)


@pytest.mark.parametrize("columns, dtype, nbytes", [(4, "float16", 8), (12, "float16", 24), (12, "int8", 12), (6, "float32", 24)])
def test_runs_below_16_bytes_or_not_multiples_of_16_decline(columns, dtype, nbytes):
    """Rows of that many bytes with gaps between them: cp.async.bulk cannot move them."""
    gaps = rows(16, columns, 64)
    with pytest.raises(DispatchError, match=f"runs of a multiple of 16 bytes.*runs of {nbytes} bytes"):
        planned((16, columns), dtype, source=gaps, destination=gaps)


def test_dsmem_needs_a_barrier_and_a_cluster():
    """Without mbar= the destination would not be notified; without a cluster there is no peer."""
    def kernel(cluster, barrier: bool):
        @tile.jit(num_warps=1, cluster=cluster)
        def to_a_peer(A, BARRIER: tile.constexpr):
            s, t = tile.alloc((16, 64), A.dtype), tile.alloc((16, 64), A.dtype)
            bar = tile.mbarrier(count=1)
            with tile.elect():
                if BARRIER:
                    tile.copy_async(t.peer(1), s, mbar=bar)
                else:
                    tile.copy_async(t.peer(1), s)

        return to_a_peer.compile(np.zeros((16, 64), np.float16), BARRIER=barrier)

    assert kernel((2, 1, 1), True).copies[0].variant == "dsmem"
    with pytest.raises(DispatchError, match="needs mbar=, the CTA's own instance of the barrier"):
        kernel((2, 1, 1), False)
    with pytest.raises(CompilationError, match="cluster"):
        kernel((1, 1, 1), True)


# -- how inputs change the plan ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("source, destination, chunks", [(72, 72, 16), (64, 72, 16), (72, 64, 16), (64, 64, 1)])
def test_gaps_between_rows_or_different_outer_strides_give_one_copy_per_row(source, destination, chunks):
    """Matching rows without gaps are one copy; otherwise one per outer coordinate."""
    plan = planned((16, 64), source=rows(16, 64, source), destination=rows(16, 64, destination))
    assert (plan.chunks, plan.chunk_bytes) == (chunks, 16 * 128 // chunks)
    assert plan.places == tuple((i * destination * 2, i * source * 2) for i in range(chunks))


def test_a_sub_region_is_one_copy_per_contiguous_run():
    """Half the columns of 16 rows; and whole rows, which are one run."""
    assert planned((32, 64), region=(slice(8, 24), slice(32, 64))).chunks == 16
    assert planned((32, 64), region=(slice(8, 24), slice(0, 64))).chunks == 1


@pytest.mark.parametrize("dtype, nbytes", [("int8", 64), ("float16", 128), ("float32", 256), ("float64", 512)])
def test_the_dtype_determines_the_bytes_of_a_chunk(dtype, nbytes):
    """Rows of 64 elements with a gap after each."""
    gaps = rows(16, 64, 80)
    plan = planned((16, 64), dtype, source=gaps, destination=gaps)
    assert (plan.chunk_bytes, plan.chunks) == (nbytes, 16)


def test_smaller_runs_mean_more_chunks():
    """The same 4096 bytes in rows of 256, 64 and 16."""
    for n in (16, 64, 256):
        gaps = rows(n, 2048 // n, 4096 // n)
        assert planned((n, 2048 // n), source=gaps, destination=gaps).chunks == n


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_the_rank_selects_the_cta_that_receives_the_data(rank):
    """In a cluster of 4, from every sender."""
    @tile.jit(num_warps=1, cluster=(4, 1, 1))
    def send(A, B, RANK: tile.constexpr):
        mine, theirs = tile.alloc((16, 64), A.dtype), tile.alloc((16, 64), A.dtype)
        bar = tile.mbarrier(count=1)
        me = tile.cta_rank()
        if me == RANK:
            with tile.elect():
                bar.arrive_expect_tx(theirs.nbytes)
        if me == (RANK + 1) % 4:
            tile.copy(mine, A[0:16, 0:64])
            tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                tile.copy_async(theirs.peer(RANK), mine, mbar=bar)
        if me == RANK:
            bar.wait(phase=0)
            tile.copy(B[0:16, 0:64], theirs)

    x = RNG.standard_normal((16, 64)).astype(np.float16)
    y = np.zeros_like(x)
    assert not send.simulate((4,), x, y, RANK=rank).findings and (x == y).all()


def test_a_row_major_source_and_a_column_major_destination_decline():
    """No run longer than an element is contiguous on both sides."""
    with pytest.raises(DispatchError, match="runs of a multiple of 16 bytes that are contiguous on both sides: runs of 2 bytes"):
        planned((64, 64), destination=TileLayout(((64, 1, "m"), (64, 64, "m"))))


def test_equal_swizzles_are_copied_unchanged_and_different_ones_decline():
    """Bytes are copied in address order, so both sides must be permuted alike."""
    swizzled = tile.swizzled("float16", (64, 64), 128)
    assert planned((64, 64), source=swizzled, destination=swizzled).chunks == 1
    for source, destination in ((swizzled, None), (None, swizzled), (swizzled, tile.swizzled("float16", (64, 64), 64))):
        with pytest.raises(DispatchError, match="the same swizzle on both sides|layouts that divide the region at the same places"):
            planned((64, 64), source=source, destination=destination)
