"""Fences by all threads, and the access of one of them that publishes or learns: a barrier stands between the two."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check

X = np.arange(64, dtype=np.float32)
ARGS = X, np.zeros(64, np.float32), np.zeros(4, np.int32), np.zeros(64, np.float32)


@tile.jit
def raise_flag(flag, HOW: tile.constexpr):
    if HOW == "store":
        tile.store(flag[0], 1, sem="relaxed")
    elif HOW == "release":
        tile.store(flag[0], 1, sem="release")
    else:
        tile.atomic_add(flag[0], 1, sem=HOW)


@tile.jit(num_warps=2)
def published(x, part, flag, out, HOW: tile.constexpr, MEET: tile.constexpr):
    if tile.program_id(0) == 0:
        tile.store(part[0:64], tile.load(x[0:64]))
        if MEET == "before":
            tile.sync()
        tile.threadfence()
        if MEET == "after":
            tile.sync()
        with tile.elect():
            raise_flag(flag, HOW)
    else:
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        tile.store(out[0:64], tile.load(part[0:64]) + 1)


@tile.jit(num_warps=2)
def published_without_a_barrier(x, part, flag, out, HOW: tile.constexpr):
    if tile.program_id(0) == 0:
        tile.store(part[0:64], tile.load(x[0:64]))
        tile.threadfence()
        with tile.elect():
            raise_flag(flag, HOW)
    else:
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        tile.store(out[0:64], tile.load(part[0:64]) + 1)  # finds: race


@tile.jit(num_warps=2)
def published_by_the_cta(x, part, flag, out):
    if tile.program_id(0) == 0:
        tile.store(part[0:64], tile.load(x[0:64]))
        tile.threadfence()
        tile.store(flag[0], 1, sem="relaxed")
    else:
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        tile.store(out[0:64], tile.load(part[0:64]) + 1)  # finds: race


@tile.jit(num_warps=2)
def published_by_a_lane(x, part, flag, out, MEET: tile.constexpr):
    i = tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(part[i], tile.load(x[i]))
        tile.ptx.fence.acq_rel.gpu()
        if MEET:
            tile.sync()
        if i * 2 == 6:
            tile.ptx.st.relaxed.gpu.global_.b32(flag[0], 1)
    else:
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        tile.store(out[0:64], tile.load(part[0:64]) + 1)


@pytest.mark.parametrize("how", ["store", "release", "relaxed", "acq_rel"])
def test_one_thread_publishes_what_all_have_fenced_only_after_a_barrier(how):
    """Its access may come before the other threads' writes and fences."""
    check(published_without_a_barrier, (2,), *ARGS, HOW=how)
    for meet in ("before", "after"):
        check(published, (2,), *ARGS, HOW=how, MEET=meet, result=3, expected=X + 1, seeds=range(4))


def test_so_does_one_thread_that_acts_for_the_scope_or_in_a_branch():
    check(published_by_the_cta, (2,), *ARGS)
    for seed in range(4):
        for meet in (False, True):
            report = published_by_a_lane.simulate((2,), *(a.copy() for a in ARGS), MEET=meet, seed=seed)
            assert [f.kind for f in report.findings] == ([] if meet else ["race"])


@tile.jit(num_warps=2)
def learnt(x, part, flag, out, MEET: tile.constexpr):
    if tile.program_id(0) == 0:
        tile.store(part[0:64], tile.load(x[0:64]))
        tile.store(flag[0], 1, sem="release")
    else:
        with tile.elect():
            while tile.load(flag[0], sem="relaxed") == 0:
                pass
        if MEET == "before":
            tile.sync()
        tile.threadfence()
        if MEET == "after":
            tile.sync()
        tile.store(out[0:64], tile.load(part[0:64]) + 1)


@tile.jit(num_warps=2)
def learnt_without_a_barrier(x, part, flag, out):
    if tile.program_id(0) == 0:
        tile.store(part[0:64], tile.load(x[0:64]))
        tile.store(flag[0], 1, sem="release")
    else:
        with tile.elect():
            while tile.load(flag[0], sem="relaxed") == 0:
                pass
        tile.threadfence()
        tile.store(out[0:64], tile.load(part[0:64]) + 1)  # finds: race


def test_what_one_thread_has_read_all_acquire_by_their_fences_only_after_a_barrier():
    check(learnt_without_a_barrier, (2,), *ARGS)
    for meet in ("before", "after"):
        check(learnt, (2,), *ARGS, MEET=meet, result=3, expected=X + 1, seeds=range(4))


@tile.jit(num_warps=2)
def two_roles(x, part, flag, out, N: tile.constexpr):
    """A warp publishes each of its rows for itself, while the other one is still writing its own."""
    if tile.program_id(0) == 0:
        for w in tile.static_range(2):
            with tile.warp(w):
                for k in range(N):
                    tile.store(part[32 * w + 4 * k:32 * w + 4 * k + 4], tile.load(x[32 * w + 4 * k:32 * w + 4 * k + 4]))
                    tile.sync()
                    tile.threadfence()
                    with tile.elect():
                        tile.store(flag[w], k + 1, sem="relaxed")
    else:
        for w in tile.static_range(2):
            with tile.warp(w):
                while tile.load(flag[w], sem="acquire") < N:
                    pass
                tile.store(out[32 * w:32 * w + 32], tile.load(part[32 * w:32 * w + 32]) + 1)


def test_roles_that_publish_their_own_writes_by_fences_do_not_hold_each_other_up():
    check(two_roles, (2,), *ARGS, N=8, result=3, expected=X + 1, seeds=range(8))


@tile.jit(num_warps=2)
def published_in_a_later_round(x, part, flag, out):
    if tile.program_id(0) == 0:
        tile.store(part[0:64], tile.load(x[0:64]))
        with tile.elect():
            tile.threadfence()
            tile.store(flag[0], 1, sem="relaxed")
        tile.sync()
        tile.threadfence()
        tile.sync()
        with tile.elect():
            tile.store(flag[0], 2, sem="relaxed")
    else:
        while tile.load(flag[0], sem="acquire") != 2:
            pass
        tile.store(out[0:64], tile.load(part[0:64]) + 1)


def test_writes_that_came_too_late_for_one_flag_are_published_by_the_next():
    check(published_in_a_later_round, (2,), *ARGS, result=3, expected=X + 1, seeds=range(8))
