"""Multicasts that are awaited by completion tokens."""

import multicast_token_kernels as kernels
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.errors import CompilationError


@settings(max_examples=24, deadline=None, derandomize=True)
@given(st.sampled_from((1, 2, 3, 4, 7)), st.integers(0, 5), st.sampled_from(("float16", "float32", "uint8")), st.integers(0, 3), st.integers(0, 2))
def test_every_cta_of_a_cluster_waits_for_what_all_of_them_load(ranks, tiles, dtype, seed, warps):
    """Loops of any length, tokens carried one copy ahead, any order of the CTAs."""
    a, b = kernels.together_case(tiles, ranks, dtype, seed)
    options = dict(R=ranks, PATH="tma", cluster=(ranks, 1, 1), num_warps=1 << warps)
    report = kernels.loaded_for_all.simulate((2 * ranks,), a, b, seed=seed, **options)
    assert not report.findings and (b == a).all(), report


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ctas_synchronise_before_the_copy_and_announce_the_bytes_of_all(ranks):
    a, b = kernels.together_case(3, ranks)
    compiled = kernels.loaded_for_all.compile(a, b, R=ranks, PATH="tma", cluster=(ranks, 1, 1))
    assert "multicast::cluster" in compiled.ptx and compiled.cubin
    assert compiled.ptx.count("barrier.cluster.arrive") == compiled.ptx.count("barrier.cluster.wait") == 2 + 2  # at the start, at the end
    graph = str(compiled.graph)
    assert graph.count("mbarrier_arrive_expect_tx") == 2 and graph.count(f", {16 * ranks * 128})\n") >= 2


def test_a_mask_computed_from_the_rank_reaches_the_rows_of_a_cluster():
    a = np.random.default_rng(1).integers(0, 99, (3, 2, 32, 64)).astype("float16")
    b = np.zeros((3, 8, 32, 64), "float16")
    report = kernels.loaded_for_rows.simulate((8,), a, b)
    assert not report.findings, report
    assert all((b[:, c] == a[:, c % 4 // 2]).all() for c in range(8))


@pytest.mark.parametrize("mask", range(16))
def test_ctas_outside_the_mask_receive_nothing_and_continue(mask):
    a = np.random.default_rng(2).integers(1, 99, (64, 64)).astype("float16")
    b = np.ones((4, 64, 64), "float16")
    report = kernels.loaded_for_mask.simulate((4,), a, b, mask)
    assert not report.findings, report
    for rank in range(4):
        assert (b[rank] == (a if mask >> rank & 1 else 0)).all()


@pytest.mark.parametrize("seed", range(4))
def test_memory_that_one_cta_still_reads_is_not_overwritten_by_another(seed):
    a = np.random.default_rng(3).integers(0, 9, (7, 16, 64)).astype("float32")
    b = np.zeros((4, 16, 64), "float32")
    report = kernels.in_turns.simulate((4,), a, b, 7, seed=seed)
    assert not report.findings and (b == a.sum(0)).all(), report


# -- errors ----------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1, cluster=(2, 1, 1))
def by_one(A, B):
    s = tile.alloc((16, 64), A.dtype)
    if tile.cta_rank() == 0:
        tile.copy_async(s, A[0:16, 0:64], multicast=3).wait()
    tile.copy(B[0:16, 0:64], s)


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def as_often_as_it_likes(A, B):
    s = tile.alloc((16, 64), A.dtype)
    for k in range(tile.program_id(0)):
        tile.copy_async(s, A[0:16, 0:64], multicast=3).wait()
    tile.copy(B[0:16, 0:64], s)


@tile.jit(num_warps=4, cluster=(2, 1, 1))
def narrower(A, B):
    s = tile.alloc((16, 64), A.dtype)
    with tile.warp(0):
        done = tile.copy_async(s, A[0:16, 0:64], multicast=3)
    done.wait()
    tile.copy(B[0:16, 0:64], s)


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def of_its_own(A, B, C):
    s = tile.alloc((16, 64), A.dtype)
    tile.copy_async(s, A[0:16, 0:64], multicast=tile.load(C[tile.program_id(0)])).wait()
    tile.copy(B[0:16, 0:64], s)


@tile.jit(num_warps=1, cluster=(16, 1, 1))
def too_much(A, B):
    s = tile.alloc((512, 128), A.dtype)
    tile.copy_async(s, A[0:512, 0:128], multicast=65535).wait()
    tile.copy(B[0:512, 0:128], s)


@pytest.mark.parametrize("kernel, words", [
    (by_one, "must be made by every CTA of the cluster, and a condition or a loop bound around this one may differ between CTAs: give mbar="),
    (as_often_as_it_likes, "a loop bound around this one may differ between CTAs"),
    (narrower, "this is one warp of them: make the call in the CTA's scope, or give mbar="),
    (of_its_own, "how many CTAs send bytes to each one is not known, since this mask differs between CTAs"),
    (too_much, "16 CTAs that send 131072 bytes each exceed the 1048575 bytes that a barrier counts"),
])
def test_a_multicast_that_not_all_ctas_execute_alike_is_an_error(kernel, words):
    arrays = [np.zeros((512, 128), "float16"), np.zeros((512, 128), "float16")]
    if kernel is of_its_own:
        arrays.append(np.array([1, 3], "int32"))
    with pytest.raises(CompilationError, match=words.replace("(", r"\(")):
        kernel.compile(*arrays)
