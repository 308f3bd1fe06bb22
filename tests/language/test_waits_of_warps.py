"""The lanes of a warp leave the wait at an mbarrier together."""

import re

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu, needs_module

SLOTS = 4


@tile.jit(num_warps=8)
def follow(places, out, N):
    """One thread fills slots at places that memory names, and a warpgroup empties them. ptxas has the addresses of their barriers in
    ordinary registers, where try_wait has an answer for each lane."""
    full, free = tile.mbarrier(n=SLOTS), tile.mbarrier(n=SLOTS)
    mail = tile.alloc((SLOTS,), tile.int32)
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(N):
                at = tile.load(places[i % SLOTS])
                free[at].wait(phase=i // SLOTS % 2 ^ 1)
                tile.store(mail[at], i)
                full[at].arrive()
    with tile.warpgroup(1):
        total = 0
        for i in range(N):
            at = tile.load(places[i % SLOTS])
            full[at].wait(phase=i // SLOTS % 2)
            total += tile.load(mail[at])
            free[at].arrive()
        tile.store(out[tile.program_id(0), tile.thread_id(scope="scope")], total)


PLACES = np.array([2, 0, 3, 1], np.int32)


@tile.jit(num_warps=8)
def scopes(out):
    bar = tile.mbarrier(count=1)
    with tile.elect():
        bar.arrive()
    bar.wait(phase=0)
    with tile.warpgroup(1):
        bar.wait(phase=0)
    with tile.warp(2):
        bar.wait(phase=0)
    with tile.thread(range(36, 40)):
        bar.wait(phase=0)
    with tile.thread(70):
        bar.wait(phase=0)
    if tile.warp_id() >= 4:
        bar.wait(phase=0)
    for _ in range(tile.warp_id()):
        bar.wait(phase=0)
    if tile.thread_id() < 77:
        bar.wait(phase=0)
    tile.store(out[tile.thread_id()], 1)


@pytest.mark.parametrize("target, word", [("sm_80", "test_wait"), ("sm_90a", "try_wait"), ("sm_100a", "try_wait"), ("sm_120a", "try_wait")])
def test_the_lanes_of_the_scope_vote_on_a_wait_and_single_threads_wait_for_themselves(target, word):
    text = scopes.compile(tile.ArraySpec((256,), "int32"), target=target).ptx
    loops = re.findall(rf"W: mbarrier\.{word}\.parity\.[^;]*;\s*(vote\.sync\.all\.pred p, p, (\S+);)? ?@!p bra W;", text)
    assert [mask for _, mask in loops] == ["-1", "-1", "-1", str(0xf0), "", "-1", "-1", ""]


@pytest.mark.parametrize("phase", [0.5, 1.0])
def test_a_phase_that_is_a_float_is_refused(phase):
    @tile.jit
    def wait(n, PHASE: tile.constexpr):
        tile.mbarrier().wait(PHASE if PHASE < 1 else n * 1.0)
    with pytest.raises(tile.CompilationError, match="a phase is an integer, not "):
        wait.compile(3, PHASE=phase)


@pytest.mark.parametrize("seed", range(3))
def test_the_simulator_runs_them(seed):
    sums, ones = np.zeros((2, 128), np.int32), np.zeros(256, np.int32)
    assert not follow.simulate((2,), PLACES, sums, 40, seed=seed).findings and (sums == 780).all()
    assert not scopes.simulate((1,), ones, seed=seed).findings and (ones == 1).all()


@pytest.mark.misread_by_racecheck  # numbers are passed between threads through slots
@needs_gpu("sm_90a")
@needs_module("torch")
@in_child(timeout=60)
def test_warps_that_wait_where_memory_says_stay_whole_on_the_gpu():
    import torch
    trips, ctas = 60_000, 528
    out = torch.zeros(ctas, 128, dtype=torch.int32, device="cuda")
    follow[ctas,](torch.from_numpy(PLACES).cuda(), out, trips)
    assert (out == trips * (trips - 1) // 2).all()
