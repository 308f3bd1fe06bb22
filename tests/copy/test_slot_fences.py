"""Slots that threads read and copies through the async proxy refill: pipelined loops and rings contain the proxy
fence, where it is needed only."""

import re

import numpy as np
import pytest
import tilejit as tile
from tilejit import ArraySpec

pytestmark = pytest.mark.usefixtures("assembled_later")
BLOCKS, ROWS = 7, 16
A = np.repeat(np.arange(1, BLOCKS + 1), ROWS * 64).reshape(-1, 64).astype(np.float16)  # block i holds the number i + 1
WANT = BLOCKS * (BLOCKS + 1) / 2
SPECS = ArraySpec((1024, 64), "float16"), ArraySpec((16, 64), "float32")


def steps(compiled, *names: str) -> list[str]:
    """The operations of these names in the lowered graph, in its order; `fence` is the proxy fence."""
    found = re.findall(r"^ +(?:%\S.* = )?(\w+)\(", compiled.graph, re.MULTILINE)
    return [{"fence_proxy_async": "fence"}.get(name, name) for name in found if name in (*names, "fence_proxy_async")]


def fences(compiled) -> int:
    assert compiled.graph.count("fence_proxy_async()") == compiled.ptx.count("fence.proxy.async.shared::cta;")
    return compiled.graph.count("fence_proxy_async()")


def check(kernel, *options, grid=1, a=A, want=WANT, **more):
    """The kernel adds up the blocks, without findings."""
    for seed in range(3):
        out = np.zeros((ROWS, 64), np.float32)
        report = kernel.simulate(grid, a, out, *options, seed=seed, **more)
        assert not report.findings and (out == want).all(), report


# -- ways to read a slot -----------------------------------------------------------------------------------------------

@tile.jit
def helped(s):
    return tile.load(s[0:8]), tile.load(s[8:16])


@tile.jit
def read(s, total, HOW: tile.constexpr):
    """`total` with the numbers of `s` added, which threads read in this way."""
    if HOW == "load":
        total = total + tile.load(s).to(tile.float32)
    elif HOW == "view":
        total = total + tile.load(s.view(shape=(16, 64))).to(tile.float32)
    elif HOW == "points":
        total = total + tile.load(s[tile.arange(16)[:, None], tile.arange(64)[None, :]]).to(tile.float32)
    elif HOW == "helper":
        top, bottom = helped(s)
        total = total + (tile.sum(top.to(tile.float32)) + tile.sum(bottom.to(tile.float32))) / 1024
    elif HOW == "mma_sync":
        total = tile.dot(tile.full((16, 16), 0.0625, tile.float16), s, total, variant="mma_sync")  # means of 16 equal rows
    elif HOW == "nested":
        for j in range(2):
            if j == 1:
                total = total + tile.load(s).to(tile.float32)
    return total


HOW = ["load", "view", "points", "helper", "mma_sync", "nested"]


@tile.jit
def looped(A, out, STAGES: tile.constexpr, ROLES: tile.constexpr, HOW: tile.constexpr):
    s = tile.alloc((16, 64), A.dtype)
    total = tile.zeros((16, 64))
    for i in tile.pipelined(range(0, A.shape[0] // 16), stages=STAGES, warp_specialize=ROLES):
        tile.copy_async(s, A[i * 16:i * 16 + 16, 0:64])
        total = read(s, total, HOW)
    tile.store(out[0:16, 0:64], total)


@tile.jit(num_warps=8)
def by_ring(A, out, STAGES: tile.constexpr, HOW: tile.constexpr, WHEN: tile.constexpr = "end"):
    ring = tile.ring(STAGES, A=((16, 64), A.dtype, tile.TileLayout(((16, 64, "m"), (64, 1, "m")))))
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(A.shape[0] // 16):
                with ring.produce() as slot:
                    tile.copy_async(slot.A, A[i * 16:i * 16 + 16, 0:64], mbar=slot.full)
    with tile.warpgroup(1):
        total = tile.zeros((16, 64))
        for i in range(A.shape[0] // 16):
            with ring.consume(behind=WHEN == "behind") as slot:
                total = read(slot.A, total, HOW)
                if WHEN == "early":
                    slot.release()
        if WHEN == "behind":
            ring.release()
        tile.store(out[0:16, 0:64], total)


@pytest.mark.parametrize("how", [h for h in HOW if h != "view"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_role_that_reads_slots_executes_the_fence_between_its_reads_and_the_release(stages, how):
    check(looped, STAGES=stages, ROLES=True, HOW=how)
    made = looped.compile(*SPECS, STAGES=stages, ROLES=True, HOW=how, target="sm_90a")
    assert steps(made, "load", "ring_release")[-3:] == ["load", "fence", "ring_release"]
    assert fences(made) == 1


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
def test_each_warp_of_a_role_that_reads_slots_releases_them_for_itself(warps):
    """It does not meet the others after its fence, so these multiply while it waits there."""
    check(looped, STAGES=2, ROLES=True, HOW="mma_sync", num_warps=warps)
    made = looped.compile(*SPECS, STAGES=2, ROLES=True, HOW="mma_sync", num_warps=warps, target="sm_90a")
    assert f"mbarrier[2] of {warps}" in str(made.graph)
    lines = [line.strip() for line in made.ptx.splitlines()]
    fence = next(n for n, line in enumerate(lines) if line.startswith("fence.proxy.async"))
    arrival = next(n for n, line in enumerate(lines) if n > fence and "mbarrier.arrive" in line)
    assert any(line.startswith("bar.warp.sync") for line in lines[fence:arrival])
    assert not any(line.startswith(("bar.sync", "barrier.sync")) for line in lines[fence:arrival])


@pytest.mark.parametrize("how", [h for h in HOW if h != "view"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_without_roles_every_thread_executes_the_fence_before_the_barrier_that_precedes_the_refill(stages, how):
    """In each trip, for the reads of the trip before. The first barrier, before the loop, follows no reads."""
    check(looped, STAGES=stages, ROLES=False, HOW=how)
    made = looped.compile(*SPECS, STAGES=stages, ROLES=False, HOW=how, target="sm_90a")
    found = steps(made, "sync", "mbarrier_arrive_expect_tx")
    assert found.index("fence") == found.index("sync", 1) - 1 and fences(made) == 1
    assert found[found.index("fence"):][:3] == ["fence", "sync", "mbarrier_arrive_expect_tx"]


@pytest.mark.parametrize("when", ["end", "early", "behind"])
@pytest.mark.parametrize("how", HOW)
def test_a_consumer_of_a_ring_executes_the_fence_between_its_reads_and_the_release(how, when):
    check(by_ring, STAGES=2, HOW=how, WHEN=when)
    made = by_ring.compile(*SPECS, STAGES=2, HOW=how, WHEN=when, target="sm_90a")
    last = ["fence", "ring_release", "ring_release"] if when == "behind" else ["load", "fence", "ring_release"]
    assert steps(made, "load", "ring_release")[-3:] == last
    assert fences(made) == 1


def test_the_fence_stands_between_the_loads_and_the_arrival_in_the_code():
    """The instructions that read the slot, the fence, the barrier of the threads that arrive together (a warp of the
    role), the arrival at the empty barrier."""
    for made in (looped.compile(*SPECS, STAGES=2, ROLES=True, HOW="load", target="sm_90a"),
                 by_ring.compile(*SPECS, STAGES=2, HOW="load", target="sm_90a")):
        words = re.findall(r"ld\.shared|fence\.proxy\.async|bar(?:\.warp|rier)?\.sync|mbarrier\.arrive\.shared", made.ptx)
        at = words.index("fence.proxy.async")
        assert words[at - 1] == "ld.shared" and words[at + 1].endswith(".sync") and words[at + 2] == "mbarrier.arrive.shared"
        assert "ld.shared" not in words[at:]


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
def test_every_target_with_an_async_proxy_has_the_fence_and_sm_80_has_none(target):
    assert fences(looped.compile(*SPECS, STAGES=2, ROLES=False, HOW="load", target=target)) == 1
    assert fences(looped.compile(*SPECS, STAGES=2, ROLES=True, HOW="load", target="sm_80")) == 0


# -- the rest of the kernel --------------------------------------------------------------------------------------------

@tile.jit
def again(A, out, STAGES: tile.constexpr, REPEAT: tile.constexpr):
    """The loop runs REPEAT times; or a second loop fills the same slots (REPEAT 0)."""
    s = tile.alloc((16, 64), A.dtype)
    total = tile.zeros((16, 64))
    for turn in range(max(REPEAT, 1)):
        for i in tile.pipelined(range(0, A.shape[0] // 16), stages=STAGES):
            tile.copy_async(s, A[i * 16:i * 16 + 16, 0:64])
            total += tile.load(s).to(tile.float32)
    if not REPEAT:
        for i in tile.pipelined(range(0, A.shape[0] // 16), stages=STAGES):
            tile.copy_async(s, A[i * 16:i * 16 + 16, 0:64])
            total += tile.load(s).to(tile.float32)
    tile.store(out[0:16, 0:64], total)


@pytest.mark.parametrize("repeat", [0, 2])
@pytest.mark.parametrize("stages", [2, 3])
def test_a_loop_whose_slots_have_been_read_before_has_the_fence_before_its_first_refill_too(stages, repeat):
    """By an earlier run of it, in a loop around it, or by another loop that fills the same slots."""
    check(again, STAGES=stages, REPEAT=repeat, want=2 * WANT)
    found = steps(again.compile(*SPECS, STAGES=stages, REPEAT=repeat, target="sm_90a"), "sync")
    assert found == (["fence", "sync"] * 2 if repeat else ["sync", *["fence", "sync"] * 3])


def test_a_single_run_of_a_loop_has_no_fence_before_its_first_refill():
    for made in (again.compile(*SPECS, STAGES=2, REPEAT=1, target="sm_90a"),
                 looped.compile(*SPECS, STAGES=2, ROLES=False, HOW="load", target="sm_90a")):
        assert steps(made, "sync") == ["sync", "fence", "sync"]


@tile.jit
def in_scopes(A, out, ROLES: tile.constexpr):
    """Each warp reads its rows in a scope of its own; the fence is executed by all of them."""
    s = tile.alloc((16, 64), A.dtype)
    sums = tile.alloc((16, 64), tile.float32)
    tile.store(sums, 0)
    tile.sync()
    for i in tile.pipelined(range(0, A.shape[0] // 16), stages=2, warp_specialize=ROLES):
        tile.copy_async(s, A[i * 16:i * 16 + 16, 0:64])
        for w in tile.static_range(4):
            with tile.warp(w):
                part = sums[4 * w:4 * w + 4]
                total = tile.load(part) + tile.load(s[4 * w:4 * w + 4]).to(tile.float32)
                tile.sync()
                tile.store(part, total)
                tile.sync()
    tile.sync()
    tile.store(out[0:16, 0:64], tile.load(sums))


@pytest.mark.parametrize("roles", [False, True])
def test_threads_that_read_in_narrower_scopes_execute_the_fence_of_the_scope_around(roles):
    check(in_scopes, ROLES=roles)
    made = in_scopes.compile(*SPECS, ROLES=roles, target="sm_90a")
    assert fences(made) == 1
    lines = made.graph.splitlines()
    at, = (n for n, line in enumerate(lines) if "fence_proxy_async" in line)
    given_back = next(line for line in lines[at:] if ("ring_release(" if roles else "sync()") in line)
    assert len(lines[at]) - len(lines[at].lstrip()) == len(given_back) - len(given_back.lstrip())


@tile.jit
def fenced_by_hand(A, out, ROLES: tile.constexpr, LATE: tile.constexpr):
    s = tile.alloc((16, 64), A.dtype)
    total = tile.zeros((16, 64))
    for i in tile.pipelined(range(0, A.shape[0] // 16), stages=2, warp_specialize=ROLES):
        tile.copy_async(s, A[i * 16:i * 16 + 16, 0:64])
        total += tile.load(s).to(tile.float32)
        tile.fence_proxy_async()
        if LATE:
            total += tile.load(s).to(tile.float32)
    tile.store(out[0:16, 0:64], total)


@pytest.mark.parametrize("roles", [False, True])
def test_a_fence_of_the_kernel_s_own_counts_if_no_read_follows_it(roles):
    for late in (False, True):
        check(fenced_by_hand, ROLES=roles, LATE=late, want=WANT * (1 + late))
        assert fences(fenced_by_hand.compile(*SPECS, ROLES=roles, LATE=late, target="sm_90a")) == 1 + late


@tile.jit
def ways_of_copying(A, B, out):
    """Copies of the first loop are by cp.async: rows of B do not begin at multiples of 16 bytes. The second refills
    the slots by TMA."""
    s = tile.alloc((16, 64), A.dtype)
    total = tile.zeros((16, 64))
    for i in tile.pipelined(range(0, A.shape[0] // 16), stages=2):
        tile.copy_async(s, B[i * 16:i * 16 + 16, 0:64])
        total += tile.load(s).to(tile.float32)
    for i in tile.pipelined(range(0, A.shape[0] // 16), stages=2):
        tile.copy_async(s, A[i * 16:i * 16 + 16, 0:64])
        total += tile.load(s).to(tile.float32)
    tile.store(out[0:16, 0:64], total)


def test_only_refills_through_the_async_proxy_need_the_fence():
    """The loop whose slots cp.async fills has none; the next one has it before its first refill."""
    B = np.zeros((len(A), 66), np.float16)
    B[:, :64] = A
    for seed in range(3):
        out = np.zeros((ROWS, 64), np.float32)
        report = ways_of_copying.simulate(1, A, B, out, seed=seed)
        assert not report.findings and (out == 2 * WANT).all()
    made = ways_of_copying.compile(A, B, out, target="sm_90a")
    assert list(dict.fromkeys(c.variant for c in made.copies if c.op == "copy_async")) == ["ldgsts", "tma"]
    assert steps(made, "sync") == ["sync", "sync", "fence", "sync", "fence", "sync"]
    uneven = ArraySpec((1024, 66), "float16")
    alone = looped.compile(uneven, SPECS[1], STAGES=3, ROLES=False, HOW="load", target="sm_90a")
    assert {c.variant for c in alone.copies if c.op == "copy_async"} == {"ldgsts"} and fences(alone) == 0


# -- products ----------------------------------------------------------------------------------------------------------

@tile.jit
def multiplied(A, B, C, ROLES: tile.constexpr, FROM: tile.constexpr):
    sA, sB = tile.alloc((64, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), B.dtype, layout=tile.auto)
    acc = tile.zeros((64, 64))
    for k in tile.pipelined(range(0, A.shape[1], 64), stages=3, warp_specialize=ROLES):
        tile.copy_async(sA, A[0:64, k:k + 64])
        tile.copy_async(sB, B[0:64, k:k + 64])
        if FROM == "registers":
            acc = tile.dot(tile.load(sA) * 2, sB, acc, trans_b=True, variant="wgmma")
        elif FROM == "memory":
            acc = tile.dot(sA, sB, acc, trans_b=True, variant="wgmma")
        else:
            acc = tile.dot(sA, sB, acc, trans_b=True, variant="mma_sync")
    tile.store(C[0:64, 0:64], acc)


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("operands, count", [("memory", 0), ("registers", 1), ("by mma.sync", 1)])
def test_slots_that_only_tensor_cores_read_need_no_fence_and_operands_in_registers_do(operands, count, roles):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (64, 320)).astype(np.float16) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    for seed in range(2):
        multiplied.simulate(1, a, b, c, ROLES=roles, FROM=operands, seed=seed).raise_first()
        assert (c == a.astype(np.float32) @ b.T.astype(np.float32) * (2 if operands == "registers" else 1)).all()
    made = multiplied.compile(a, b, c, ROLES=roles, FROM=operands, target="sm_90a")
    assert fences(made) == count and {p.variant for p in made.products} == {"mma_sync" if "sync" in operands else "wgmma"}


@tile.jit(num_warps=5)
def through(A, out):
    """TMA brings the blocks and takes them away."""
    ring = tile.ring(2, A=((16, 64), A.dtype))
    with tile.warp(4):
        with tile.elect():
            for i in range(A.shape[0] // 16):
                with ring.produce() as slot:
                    tile.copy_async(slot.A, A[i * 16:i * 16 + 16, 0:64], mbar=slot.full)
    with tile.warp(0):
        with tile.elect():
            for i in range(A.shape[0] // 16):
                with ring.consume() as slot:
                    tile.copy_async(out[i * 16:i * 16 + 16, 0:64], slot.A)
                    tile.bulk_commit()
                    tile.bulk_wait(0, read=True)
            tile.bulk_wait(0)


def test_slots_that_only_copy_engines_read_need_no_fence():
    out = np.zeros_like(A)
    through.simulate(1, A, out).raise_first()
    assert (out == A).all()
    for target in ("sm_90a", "sm_100a", "sm_120a"):
        assert fences(through.compile(SPECS[0], SPECS[0], target=target)) == 0


def test_slots_that_tcgen05_reads_need_no_fence():
    spec = ArraySpec((128, 512), "float16")
    for roles in (False, True):
        made = by_tensor_memory.compile(spec, spec, ArraySpec((128, 128), "float32"), ROLES=roles, target="sm_100a")
        assert {p.variant for p in made.products} == {"tcgen05"} and fences(made) == 0


@tile.jit
def by_tensor_memory(A, B, C, ROLES: tile.constexpr):
    sA, sB = tile.alloc((128, 64), A.dtype, layout=tile.auto), tile.alloc((128, 64), B.dtype, layout=tile.auto)
    acc = tile.zeros((128, 128))
    for k in tile.pipelined(range(0, A.shape[1], 64), stages=3, warp_specialize=ROLES):
        tile.copy_async(sA, A[0:128, k:k + 64])
        tile.copy_async(sB, B[0:128, k:k + 64])
        acc = tile.dot(sA, sB, acc, trans_b=True)
    tile.store(C[0:128, 0:128], acc)


@tile.jit(num_warps=12)
def two_consumers(A, B, C, out):
    """One warpgroup multiplies what it finds in the slots, another adds it up."""
    ring = tile.ring(3, A=((64, 64), A.dtype), B=((64, 64), B.dtype), consumers=2)
    with tile.warpgroup(0):
        with tile.elect():
            for k in range(0, A.shape[1], 64):
                with ring.produce() as slot:
                    tile.copy_async(slot.A, A[0:64, k:k + 64], mbar=slot.full)
                    tile.copy_async(slot.B, B[0:64, k:k + 64], mbar=slot.full)
    with tile.warpgroup(1):
        acc = tile.zeros((64, 64))
        for k in range(0, A.shape[1], 64):
            with ring.consume() as slot:
                acc = tile.mma_async(acc, slot.A, slot.B, trans_b=True)
                tile.mma_commit()
                tile.mma_wait(0)
        tile.store(C[0:64, 0:64], acc)
    with tile.warpgroup(2):
        total = tile.zeros((64, 64))
        for k in range(0, A.shape[1], 64):
            with ring.consume() as slot:
                total += tile.load(slot.A).to(tile.float32)
        tile.store(out[0:64, 0:64], total)


def test_of_two_consumers_only_the_one_that_reads_by_loads_executes_the_fence():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (64, 320)).astype(np.float16) for _ in range(2))
    for seed in range(3):
        c, out = np.zeros((2, 64, 64), np.float32)
        two_consumers.simulate(1, a, b, c, out, seed=seed).raise_first()
        assert (c == a.astype(np.float32) @ b.T.astype(np.float32)).all()
        assert (out == a.reshape(64, 5, 64).sum(1, np.float32)).all()
    made = two_consumers.compile(a, b, c, out, target="sm_90a")
    assert steps(made, "mma_async", "ring_release", "load") == ["mma_async", "ring_release", "load", "fence", "ring_release"]


# -- rings -------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=5, cluster=(2, 1, 1))
def shared_by_a_cluster(A, out):
    """Each CTA loads half of every slot for both."""
    ring = tile.ring(2, A=((16, 64), A.dtype), multicast=True)
    half = tile.cta_rank() * 8
    with tile.warp(4):
        for i in range(A.shape[0] // 16):
            with ring.produce() as slot:
                row = i * 16 + half
                tile.copy_async(slot.A[half:half + 8], A[row:row + 8, 0:64], mbar=slot.full, multicast=3)
    with tile.warpgroup(0):
        total = tile.zeros((16, 64))
        for i in range(A.shape[0] // 16):
            with ring.consume() as slot:
                total += tile.load(slot.A).to(tile.float32)
        if tile.cta_rank() == 0:
            tile.store(out[0:16, 0:64], total)


def test_a_slot_that_several_ctas_fill_is_fenced_before_it_is_released_to_all_of_them():
    check(shared_by_a_cluster, grid=2)
    made = shared_by_a_cluster.compile(*SPECS, target="sm_90a")
    assert steps(made, "ring_release") == ["fence", "ring_release"]
    words = re.findall(r"ld\.shared|fence\.proxy\.async|mbarrier\.arrive\.shared::cluster", made.ptx)
    assert words.index("fence.proxy.async") > max(n for n, w in enumerate(words) if w == "ld.shared")
    assert "mbarrier.arrive.shared::cluster" in words[words.index("fence.proxy.async"):]


@tile.jit(num_warps=8)
def passed_on(A, out, HOW: tile.constexpr):
    """Threads fill the slots; threads read them, or TMA stores them."""
    ring = tile.ring(2, T=((16, 64), tile.float32), filled="stores")
    with tile.warpgroup(0):
        total = tile.zeros((16, 64))
        for i in range(A.shape[0] // 16):
            total += tile.load(A[i * 16:i * 16 + 16, 0:64]).to(tile.float32)
            with ring.produce() as slot:
                tile.store(slot.T, total)
    with tile.warpgroup(1):
        for i in range(A.shape[0] // 16):
            with ring.consume() as slot:
                if HOW == "load":
                    tile.store(out[0:16, 0:64], tile.load(slot.T))
                else:
                    with tile.elect():
                        tile.copy_async(out[0:16, 0:64], slot.T)
                        tile.bulk_commit()
                        tile.bulk_wait(0)


@pytest.mark.parametrize("how, found", [("load", []), ("tma", ["fence"])])
def test_slots_that_threads_fill_need_the_fence_only_for_what_reads_them_through_the_async_proxy(how, found):
    """By the producer, between its stores and its arrival."""
    check(passed_on, HOW=how)
    made = passed_on.compile(*SPECS, HOW=how, target="sm_90a")
    assert steps(made) == found
    if found:
        assert steps(made, "mbarrier_arrive", "ring_release") == ["fence", "mbarrier_arrive", "ring_release"]


def same(at):
    return at.astype(np.uint32)


@tile.jit(num_warps=8)
def by_instructions(A, out, HOW: tile.constexpr):
    ring = tile.ring(2, A=((16, 64), A.dtype, tile.TileLayout(((16, 64, "m"), (64, 1, "m")))))
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(A.shape[0] // 16):
                with ring.produce() as slot:
                    tile.copy_async(slot.A, A[i * 16:i * 16 + 16, 0:64], mbar=slot.full)
    with tile.warpgroup(1):
        t = tile.thread_id() % 64
        for i in range(A.shape[0] // 16):
            with ring.consume() as slot:
                if HOW == "atom":
                    tile.store(out[0, t], tile.atomic_add(slot.A[0, t], 0))
                elif HOW == "ldmatrix":
                    word, = tile.ptx.ldmatrix.sync.aligned.m8n8.x1.shared.b16(slot.A[t % 8, 0])
                    tile.store(out[0, t], word.to(tile.float32))
                elif HOW == "asm":  # at an address that the compiler does not follow
                    word = tile.asm("ld.shared.u32 $0, [$1];", tile.uint32, i * 4, simulate=same)
                    tile.store(out[0, t], word.to(tile.float32))
                else:               # reads nothing
                    word = tile.asm("mov.b32 $0, $1;", tile.uint32, i * 4, simulate=same)
                    tile.store(out[0, t], word.to(tile.float32))


@pytest.mark.parametrize("how, op", [("atom", "atomic"), ("ldmatrix", "ptx_reads"), ("asm", "asm")])
def test_atomics_named_instructions_and_inline_ptx_count_as_reads(how, op):
    """Inline PTX that reads shared memory may read any slot."""
    made = by_instructions.compile(ArraySpec((1024, 64), "float32"), SPECS[1], HOW=how, target="sm_90a")
    assert steps(made, op, "ring_release") == [op, "fence", "ring_release"]


def test_inline_ptx_that_accesses_no_shared_memory_needs_no_fence():
    made = by_instructions.compile(*SPECS, HOW="none", target="sm_90a")
    assert steps(made, "asm", "ring_release") == ["asm", "ring_release"]


@tile.jit
def scaled_products(A, S, B, N: tile.constexpr, LATE: tile.constexpr):
    r = tile.ring(2, A=((64, 128), tile.float8_e4m3fn), S=((64,), tile.float32))
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(N):
                with r.produce() as slot:
                    tile.copy_async(slot.A, A[0:64, i * 128:i * 128 + 128], mbar=slot.full)
                    tile.copy_async(slot.S, S[i, 0:64], mbar=slot.full)
    with tile.warpgroup(1):
        sums = tile.zeros((64, 64))
        for i in range(N):
            with r.consume() as slot:
                part = tile.mma_async(None, slot.A, slot.A, trans_b=True)
                tile.mma_commit()
                a = tile.load(slot.S)
                tile.mma_wait(0)
                if LATE:
                    a = tile.load(slot.S)
                slot.release()
                sums = sums + part * a[:, None]
        tile.store(B[0:64, 0:64], sums)


@pytest.mark.parametrize("late", [False, True])
def test_a_fence_stands_before_the_wait_for_products_that_no_read_follows(late):
    """There it waits for the loads while the products run."""
    specs = tile.ArraySpec((64, 1024), "float8_e4m3fn"), tile.ArraySpec((8, 64), "float32"), tile.ArraySpec((64, 64), "float32")
    made = scaled_products.compile(*specs, N=8, LATE=late, num_warps=8, target="sm_90a")
    named = [name for line in str(made.graph).splitlines() for name in ("fence_proxy_async", "mma_wait", "ring_release") if f" {name}(" in line]
    assert named == ["mma_wait", "fence_proxy_async", "ring_release"] if late else named == ["fence_proxy_async", "mma_wait", "ring_release"]
