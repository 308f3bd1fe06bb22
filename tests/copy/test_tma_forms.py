"""Other forms of TMA copies: multicast, prefetches, cache policies, CTA pairs; on the simulator, in PTX, as cubins."""

import numpy as np
import pytest
import tilejit as tile
import tma_kernels as kernels
from tilejit.errors import CompilationError, DispatchError

pytestmark = pytest.mark.usefixtures("assembled_later")

HOPPER = ("sm_90a", "sm_100a", "sm_120a")


def tensor_lines(ptx: str) -> list[str]:
    return [line.strip().split(" [")[0] for line in ptx.splitlines() if ".tensor." in line]


# -- multicast -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ranks, sender, masks",
                         [(1, 0, (1,)), (2, 1, (1, 2, 3)), (4, 1, (0b0001, 0b1011, 0b1101)), (16, 5, (1 << 15, 0xffff, 0x5a5a))])
def test_a_multicast_reaches_the_ctas_of_its_mask_and_no_other(ranks, sender, masks):
    """Runtime masks; a mask of one bit is a multicast too, with or without the sender's own rank."""
    a = kernels.numbers((32, 64), "float16")
    for mask in masks:
        b = np.ones((ranks, 32, 64), np.float16)
        report = kernels.multicast.simulate((ranks,), a, b, mask, R=ranks, SENDER=sender, cluster=(ranks, 1, 1))
        assert not report.findings, report
        for rank in range(ranks):
            assert (b[rank] == (a if mask >> rank & 1 else 0)).all()


def test_a_multicast_is_one_instruction_with_its_mask_and_policy():
    """Qualifiers in the ISA's order; the map is prefetched and the policy created at the kernel's entry."""
    a = kernels.numbers((32, 64), "float16")
    for target in ("sm_90a", "sm_100a"):
        k = kernels.multicast.compile(a, np.zeros((4, 32, 64), np.float16), 3, R=4, SENDER=0, cluster=(4, 1, 1), target=target)
        assert tensor_lines(k.ptx) == ["cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"]
        assert "prefetch.tensormap [" in k.ptx and "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64" in k.ptx


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_multicast_ring_advances_in_all_ctas_of_a_cluster_together(ranks):
    """Each CTA fills a part of every slot of all CTAs; nobody overwrites what another one still reads."""
    a = kernels.numbers((64, 640), "float16")
    for seed in range(3):
        b = np.zeros((2 * ranks, 64, 640), np.float16)
        report = kernels.multicast_ring.simulate((2 * ranks,), a, b, R=ranks, cluster=(ranks, 1, 1), seed=seed)
        assert not report.findings and (b == a).all(), report
    kernels.multicast_ring.compile(a, b, R=ranks, cluster=(ranks, 1, 1))


def test_a_ring_that_each_cta_releases_separately_is_found():
    """Without multicast=True a producer overwrites slots that the other CTA still reads."""
    @tile.jit(num_warps=5, cluster=(2, 1, 1))
    def alone(A, B):
        r = tile.ring(1, A=((64, 64), A.dtype))
        first = tile.cta_rank() * 32
        with tile.warp(4):
            for k in range(4):
                with r.produce() as slot:
                    tile.copy_async(slot.A[first:first + 32, 0:64], A[first:first + 32, k * 64:k * 64 + 64], mbar=slot.full, multicast=3)
        with tile.warpgroup(0):
            for k in range(4):
                with r.consume() as slot:
                    tile.store(B[tile.program_id(0), 0:64, k * 64:k * 64 + 64], tile.load(slot.A))

    a = kernels.numbers((64, 256), "float16")
    assert any(alone.simulate((2,), a, np.zeros((2, 64, 256), np.float16), seed=s).findings for s in range(4))


def announced(nbytes: int, mask: int, condition: bool = False):
    @tile.jit(num_warps=1, cluster=(2, 1, 1))
    def kernel(A):
        s = tile.alloc((32, 64), A.dtype)
        bar = tile.mbarrier()
        if condition:
            if tile.cta_rank() == 0:
                with tile.elect():
                    bar.arrive_expect_tx(nbytes)
                    tile.copy_async(s, A[0:32, 0:64], mbar=bar, multicast=mask)
        else:
            with tile.elect():
                bar.arrive_expect_tx(nbytes)
                tile.copy_async(s, A[0:32, 0:64], mbar=bar, multicast=mask)
    return kernel.compile(np.zeros((64, 64), np.float16))


def test_bytes_that_all_ctas_multicast_are_counted_once_for_each():
    """At compile time, if every CTA of the cluster sends to all: each receives the tile of each. Other cases are left to the simulator."""
    assert announced(2 * 4096, 3) and announced(4096, 1) and announced(4096, 3, condition=True)
    with pytest.raises(CompilationError, match="4096 bytes are announced, and the copies on this barrier transfer 8192"):
        announced(4096, 3)


def test_an_invalid_mask_or_barrier_is_refused():
    """Ranks beyond the cluster, barriers of a peer, multicasts with tokens, and multicast stores."""
    @tile.jit(num_warps=1, cluster=(2, 1, 1))
    def kernel(A, WHAT: tile.constexpr):
        s = tile.alloc((32, 64), A.dtype)
        bar = tile.mbarrier()
        with tile.elect():
            if WHAT == "mask":
                tile.copy_async(s, A[0:32, 0:64], mbar=bar, multicast=4)
            elif WHAT == "peer":
                tile.copy_async(s, A[0:32, 0:64], mbar=bar.peer(1))
            elif WHAT == "token":
                done = tile.copy_async(s, A[0:32, 0:64], multicast=3)
            else:
                tile.copy_async(A[0:32, 0:64], s, multicast=3)

    a = np.zeros((64, 64), np.float16)
    for what, words in (("mask", "names CTAs beyond the cluster's 2"), ("peer", "give the CTA's own barrier"),
                        ("token", "give mbar="), ("store", "multicast= on loads only")):
        with pytest.raises(CompilationError, match=words):
            kernel.compile(a, WHAT=what)


def test_a_load_into_a_peer_s_memory_completes_on_the_peer_s_barrier():
    """Both addresses are mapped to the other CTA."""
    a = kernels.numbers((32, 64), "float16")
    b = np.zeros_like(a)
    report = kernels.to_a_peer.simulate((2,), a, b)
    assert not report.findings and (b == a.reshape(2, 16, 64)[::-1].reshape(32, 64)).all()
    k = kernels.to_a_peer.compile(a, b)
    assert k.copies[0].variant == "tma" and k.ptx.count("mapa.shared::cluster") == 2


# -- prefetching, policies ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("transposed", [False, True])
def test_a_strided_region_is_prefetched_to_l2_box_by_box(transposed):
    """By a tensor map, if it would be many runs of bytes, whichever dimension is contiguous."""
    a = kernels.numbers((200, 1024), "float16")
    a = np.asfortranarray(a) if transposed else a
    b = np.zeros((200, 256), np.float16)
    report = kernels.prefetched.simulate((4,), a, b, N=256)
    assert not report.findings and (b == a[:, 64:320]).all()
    k = kernels.prefetched.compile(a, b, N=256)
    assert (k.copies[0].variant, k.copies[0].instructions) == ("tma", 1)
    assert tensor_lines(k.ptx) == ["cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint"]


@pytest.mark.parametrize("cache, text", [
    ("evict_normal", None), (("evict_first", 1), None), (("evict_first", 0.25), "L2::evict_first.L2::evict_unchanged"),
    (("evict_last", 0.5, "evict_first"), "L2::evict_last.L2::evict_first")])
@pytest.mark.parametrize("variant", ["ldgsts", "bulk", "tma"])
def test_an_l2_policy_may_apply_to_a_fraction_of_the_lines(cache, text, variant):
    """A constant if it applies to all of them; otherwise created once at the entry. On every path."""
    @tile.jit(num_warps=1)
    def kernel(A, B):
        s = tile.alloc((1024,), A.dtype)
        bar = tile.mbarrier()
        if variant == "ldgsts":
            tile.copy_async(s, A[0:1024], cache=cache, variant="ldgsts")
            tile.cp_async_commit()
            tile.cp_async_wait(0)
            tile.sync()
        else:
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, A[0:1024], mbar=bar, cache=cache, variant=variant)
            bar.wait(phase=0)
        tile.copy(B[0:1024], s)

    a, b = kernels.numbers(1024, "float32"), np.zeros(1024, np.float32)
    assert not kernel.simulate((1,), a, b).findings and (a == b).all()
    k = kernel.compile(a, b)
    made = [line.split()[0] for line in k.ptx.splitlines() if "createpolicy" in line]
    assert made == ([f"createpolicy.fractional.{text}.b64"] if text else []) and "L2::cache_hint" in k.ptx


@pytest.mark.parametrize("cache", [("evict_last",), ("evict_last", 0), ("evict_last", 1.5), ("always", 0.5), ("evict_last", 0.5, "evict_last"), ("evict_last", True)])
def test_the_arguments_of_a_fractional_policy_are_checked(cache):
    """The primary policy, the fraction and the policy of the rest."""
    @tile.jit
    def kernel(A):
        tile.prefetch(A[0:1024], cache=cache)

    with pytest.raises(CompilationError, match="a share of a cache policy is"):
        kernel.compile(np.zeros(1024, np.float32))


# -- CTA pairs -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_the_loads_of_a_cta_pair_complete_on_the_barrier_of_one(group, target):
    """.cta_group::2: both halves on the leader's barrier; ::1: on each CTA's own."""
    a = kernels.numbers((128, 64), "float16")
    b = np.zeros_like(a)
    report = kernels.paired.simulate((2,), a, b, GROUP=group, target=target)
    assert not report.findings and (a == b).all(), report
    k = kernels.paired.compile(a, b, GROUP=group, target=target)
    assert tensor_lines(k.ptx) == [f"cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::{group}"]


def test_a_multicast_to_pairs_completes_on_the_selected_cta_of_each():
    """The parity of the barrier's CTA selects which CTA of each pair counts the bytes of both."""
    a = kernels.numbers((32, 64), "float16")
    b = np.zeros((128, 64), np.float16)
    report = kernels.paired_multicast.simulate((4,), a, b, target="sm_100a")
    assert not report.findings and (b.reshape(4, 32, 64) == a).all(), report
    kernels.paired_multicast.compile(a, b, target="sm_100a")


def test_cta_groups_need_targets_and_clusters_that_support_them():
    """sm_90a and sm_120a decline; a pair needs an even cluster size."""
    a = kernels.numbers((128, 64), "float16")
    for target in ("sm_90a", "sm_120a"):
        with pytest.raises(DispatchError, match="cta_group= on loads only, for sm_100a or sm_103a"):
            kernels.paired.compile(a, a.copy(), GROUP=1, target=target)
    with pytest.raises(CompilationError, match="cta_group=2 is for pairs of CTAs"):
        kernels.paired.compile(a, a.copy(), GROUP=2, target="sm_100a", cluster=(3, 1, 1))
