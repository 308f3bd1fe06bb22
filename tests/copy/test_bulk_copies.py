"""Bulk copies and copies to a peer: plans compared with references and byte by byte, kernels on the simulator, PTX, cubins."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from bulk_kernels import broadcast, fetched, hand_on, through
from bytecheck import check_runs
from copy_strategies import copies, swizzled_copies
from hypothesis import HealthCheck, given, settings
from tilejit.errors import CompilationError, DispatchError, TileError
from tilejit.layout import Swizzle, TileLayout
from tilejit.plan import BufferSpec, plan_copy
from values import WHOLE, any_bits

pytestmark = pytest.mark.usefixtures("assembled_later")

CASES = {c["id"]: c for c in json.loads((Path(__file__).parent / "data" / "dsmem_cases.json").read_text())}
TARGETS = ("sm_90a", "sm_100a", "sm_120a")
RNG = np.random.default_rng(3)


def lines(ptx: str, word: str = "bulk") -> list[str]:
    return [line.strip() for line in ptx.splitlines() if word in line and "group" not in line.replace(".bulk_group", "")]


# -- plans ---------------------------------------------------------------------------------------------------------------

def spec(case: dict, side: dict, scope: str = "shared") -> BufferSpec:
    swizzle = Swizzle(*side["swizzle"]) if side["swizzle"] else None
    layout = TileLayout([tuple(s) for s in side["shards"]], swizzle=swizzle)
    return BufferSpec(tuple(side["shape"]), case["dtype"], scope, layout=layout,
                      region=tuple(slice(s, s + n) for s, n in zip(side["start"], side["extent"])))


@pytest.mark.parametrize("name", CASES)
def test_a_copy_to_a_peer_is_planned_like_the_reference_or_declines_like_it(name):
    """The bytes per chunk and the number of chunks. If the reference declines, so does the plan, with a reason."""
    case = CASES[name]
    dst, src = spec(case, case["dst"]), spec(case, case["src"], case["scope"])
    make = lambda: plan_copy(dst, src, variant="dsmem", peer=case["peer"])
    if case["expected"] is None:
        with pytest.raises(DispatchError) as failure:
            make()
        assert case["reason"] in str(failure.value)
        return
    plan = make().plan
    assert [plan.chunk_bytes, plan.chunks] == case["expected"] and plan.instructions == plan.chunks
    check_runs(plan, dst, src)


def planned(variant: str, dst: BufferSpec, src: BufferSpec, **options):
    try:
        return plan_copy(dst, src, variant=variant, **options).plan
    except TileError:
        return None


THOROUGH = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def test_a_bulk_plan_covers_its_region_exactly_once():
    """Random arrays, shared layouts, regions, dtypes, both directions: exactly the bytes of the two layouts, or declined."""
    accepted = Counter()

    @THOROUGH
    @given(copies())
    def holds(sides):
        array, shared = sides
        for dst, src in ((shared, array), (array, shared)):
            plan = planned("bulk", dst, src)
            if plan is not None:
                accepted[src.scope] += 1
                check_runs(plan, dst, src)

    holds()
    assert min(accepted["global"], accepted["shared"]) > 10, accepted


def test_a_plan_to_a_peer_covers_its_region_exactly_once():
    """Regions of padded, permuted and swizzled buffers with the same dtype and extents: exactly the bytes of the two layouts,
    or declined."""
    accepted = Counter()

    @THOROUGH
    @given(swizzled_copies(), swizzled_copies(), copies())
    def holds(one, other, plain):
        src, dst, any_layout = one[1], other[1], plain[1]
        rows = BufferSpec(tuple(r.stop - r.start for r in any_layout.region), any_layout.dtype, "shared")
        pairs = [(src, src), (rows, any_layout), (any_layout, rows), (any_layout, any_layout)]
        if src.dtype == dst.dtype and [r.stop - r.start for r in src.region] == [r.stop - r.start for r in dst.region]:
            pairs.append((dst, src))
        for to, of in pairs:
            plan = planned("dsmem", to, of, peer=1)
            if plan is not None:
                accepted["plain" if to.layout is None or to.layout.swizzle is None else "swizzled"] += 1
                check_runs(plan, to, of)

    holds()
    assert min(accepted["plain"], accepted["swizzled"]) > 10, accepted


def test_padded_rows_are_one_run_each():
    """No tensor map can express this, since a box would not start at a multiple of 128 bytes."""
    array = BufferSpec((16, 64), "float16", "global")
    shared = BufferSpec((16, 64), "float16", "shared", layout=TileLayout([(16, 72, "m"), (64, 1, "m")]))
    for dst, src in ((shared, array), (array, shared)):
        choice = plan_copy(dst, src)
        variant = {"global": "ldgsts", "shared": "bulk"}[src.scope]
        assert choice.variant == variant
        plan = plan_copy(dst, src, variant="bulk").plan
        assert (plan.chunks, plan.chunk_bytes) == (16, 128)


@pytest.mark.parametrize("dst, src, reason", [
    (((64,), "float16", None), ((64,), slice(0, 72)), "elements up to 72 of dimension 0"),
    (((64,), "float16", None), ((68,), slice(4, 68)), "not known to be a multiple of 16 bytes"),
    (((4,), "float16", None), ((64,), slice(0, 4)), "runs of 8 bytes"),
    (((64, 64), "float16", tile.swizzled("float16", (64, 64), 128)), ((64, 64), None), "a shared layout without a swizzle"),
])
def test_copies_that_bulk_cannot_do_are_declined_with_a_reason(dst, src, reason):
    """Bounds, alignment, sizes, swizzles."""
    shape, dtype, layout = dst
    region = None if src[1] is None else (src[1],)
    extent = shape if region is None else (region[0].stop - region[0].start,)
    shared = BufferSpec(extent, dtype, "shared", layout=layout)
    with pytest.raises(DispatchError, match=reason):
        plan_copy(shared, BufferSpec(src[0], dtype, "global", region=region), variant="bulk")


# -- kernels -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", WHOLE)
def test_contiguous_bytes_are_copied_in_and_out(dtype):
    """For every dtype, bits unchanged; one instruction each way."""
    a = any_bits(dtype, (4096,))
    b = np.zeros_like(a)
    assert not through.simulate((1,), a, b, N=4096, VARIANT="bulk").findings and a.tobytes() == b.tobytes()
    k = through.compile(a, b, N=4096, VARIANT="bulk")
    assert [(c.variant, c.instructions, c.plan.chunk_bytes) for c in k.copies] == [("bulk", 1, a.nbytes)] * 2
    text = lines(k.ptx)
    assert text[0].startswith("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [")
    assert text[1].startswith("cp.async.bulk.global.shared::cta.bulk_group [")


@pytest.mark.parametrize("target", TARGETS)
def test_bulk_copies_assemble_for_every_target_that_has_them(target):
    """They decline before sm_90."""
    a = np.zeros(4096, np.float16)
    through.compile(a, a.copy(), N=4096, VARIANT="bulk", target=target)
    with pytest.raises(CompilationError, match="sm_90 or later"):
        through.compile(a, a.copy(), N=4096, VARIANT="bulk", target="sm_80")


def test_that_the_array_is_long_enough_is_a_guard_of_the_launch():
    """A shorter array causes another compilation, which declines."""
    with pytest.raises(DispatchError, match="elements up to 4096 of dimension 0"):
        through.compile(np.zeros(4088, np.float16), np.zeros(4096, np.float16), N=4096, VARIANT="bulk")


@pytest.mark.parametrize("mask", [0b0001, 0b0010, 0b1011, 0b1111])
def test_a_multicast_reaches_the_ranks_of_its_mask_and_their_barriers(mask):
    """A mask of one bit is a multicast too, whichever CTA issues it."""
    a, b = RNG.standard_normal(1024).astype(np.float32), np.ones((4, 1024), np.float32)
    assert not broadcast.simulate((4,), a, b, MASK=mask).findings
    for rank in range(4):
        assert (b[rank] == (a if mask >> rank & 1 else 0)).all()
    (line,) = lines(broadcast.compile(a, b, MASK=mask).ptx, "multicast")
    assert line.startswith("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [")


# -- to a peer -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ranks", range(2, 9))
def test_every_cta_of_a_cluster_passes_its_tile_to_the_next(ranks):
    """Swizzled tiles. The bytes may arrive at the peer's barrier before its CTA has announced them."""
    a = RNG.standard_normal((2 * ranks, 8, 64)).astype(np.float16)
    b = np.zeros_like(a)
    ring = hand_on(ranks)
    for seed in range(2):
        b[:] = 0
        report = ring.simulate((2 * ranks,), a, b, seed=seed)
        assert not report.findings, report
        want = a.reshape(2, ranks, 8, 64)[:, [(r - 1) % ranks for r in range(ranks)]].reshape(a.shape)
        assert (b == want).all()
    for target in TARGETS:
        k = ring.compile(a, b, target=target)
        copy = next(c for c in k.copies if c.op == "copy_async")
        assert (copy.variant, copy.instructions, copy.plan.chunk_bytes) == ("dsmem", 1, 1024)
        assert len(lines(k.ptx, "mapa.shared::cluster.u32")) == 2
        assert lines(k.ptx)[0].startswith("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [")


@tile.jit(cluster=(2, 1, 1), num_warps=1)
def unarmed(A, B):
    mine = tile.alloc((64,), A.dtype)
    got = tile.alloc((64,), A.dtype)
    bar = tile.mbarrier()
    tile.store(mine, tile.load(A[0:64]))
    tile.fence_proxy_async()
    tile.sync()
    if tile.cta_rank() == 0:
        with tile.elect():
            bar.arrive_expect_tx(got.nbytes)   # the sender's own barrier, although the bytes arrive at the receiver's
            tile.copy_async(got.peer(1), mine, mbar=bar)
    else:
        bar.wait(phase=0)
        tile.copy(B[0:64], got)


def test_arming_the_sender_s_barrier_is_found():
    """The bytes complete on the destination's barrier, which nobody has armed: its phase never ends."""
    a = np.ones(64, np.float32)
    kinds = {f.kind for f in unarmed.simulate((2,), a, a.copy()).findings}
    assert kinds & {"deadlock", "transaction-count", "barrier-phase"}


@tile.jit(cluster=(2, 1, 1), num_warps=1)
def unfenced(A, B):
    mine = tile.alloc((64,), A.dtype)
    got = tile.alloc((64,), A.dtype)
    bar = tile.mbarrier()
    tile.store(mine, tile.load(A[0:64]))
    tile.sync()
    if tile.cta_rank() == 0:
        with tile.elect():
            tile.copy_async(got.peer(1), mine, mbar=bar)
    else:
        with tile.elect():
            bar.arrive_expect_tx(got.nbytes)
        bar.wait(phase=0)
        tile.copy(B[0:64], got)


def test_a_copy_to_a_peer_of_bytes_written_without_a_proxy_fence_is_found():
    """Bulk copies read shared memory through the async proxy."""
    a = np.ones(64, np.float32)
    findings = unfenced.simulate((2,), a, a.copy()).findings
    assert [f.kind for f in findings] == ["missing-proxy-fence"] and "copy_async(got.peer(1)" in findings[0].loc.source_line


def test_a_peer_s_memory_needs_a_cluster_and_cannot_be_loaded():
    """The errors suggest what to write."""
    @tile.jit
    def alone(A):
        s = tile.alloc((64,), A.dtype)
        tile.copy_async(s.peer(1), s)

    @tile.jit(cluster=(2, 1, 1))
    def read(A):
        s = tile.alloc((64,), A.dtype)
        tile.store(A[0:64], tile.load(s.peer(1)))

    a = np.zeros(64, np.float32)
    with pytest.raises(CompilationError, match="rank 1 does not exist in a cluster of 1"):
        alone.compile(a)
    with pytest.raises(CompilationError, match=r"load reaches the CTA's own shared memory; a peer's is read .* tile.ptx.ld.shared_cluster"):
        read.compile(a)


# -- prefetch ------------------------------------------------------------------------------------------------------------

def test_a_prefetch_is_a_bulk_instruction_or_one_per_line():
    """Depending on what is known of the region, and on the target."""
    a = np.ones((8, 256), np.float32)
    k = fetched.compile(a, a.copy(), N=256)
    assert [(c.variant, c.instructions) for c in k.copies] == [("bulk", 1), ("lines", 1)]
    assert "cp.async.bulk.prefetch.L2.global [" in k.ptx and "prefetch.global.L2 [" in k.ptx
    assert [c.variant for c in fetched.compile(a, a.copy(), N=256, target="sm_80").copies] == ["lines", "lines"]
    assert not fetched.simulate((1,), a, np.zeros_like(a), N=256).findings
