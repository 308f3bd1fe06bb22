"""Instructions that some lanes of a warp execute together: whose masks are right, and whose are not."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check

X = np.arange(128, dtype=np.uint32) * 7 + 3
Y = np.zeros(128, np.uint32)


def kernel(body, num_warps=1):
    """A kernel of a thread's number `i`, its element `v` of x and a place `r` for its result."""
    lines = ["def masked(x, y):", "i = tile.thread_id()", "v = tile.load(x[i])", "r = tile.uint32(0)", *body,
             "tile.store(y[i], r)"]
    return tile.jit(source="\n    ".join(lines) + "\n", num_warps=num_warps)


# -- lanes that meet ---------------------------------------------------------------------------------------------------

@tile.jit(num_warps=2)
def eight_lanes_meet(x, y):
    i = tile.thread_id()
    s = tile.alloc((64,), tile.uint32)
    if i < 8:
        tile.store(s[i], tile.load(x[i]))
        tile.ptx.bar.warp.sync(0xff)
        tile.store(y[i], tile.load(s[7 - i]))


@tile.jit(num_warps=2)
def eight_lanes_do_not_meet(x, y):
    i = tile.thread_id()
    s = tile.alloc((64,), tile.uint32)
    if i < 8:
        tile.store(s[i], tile.load(x[i]))
        tile.store(y[i], tile.load(s[7 - i]))  # finds: race


@tile.jit(num_warps=2)
def the_other_lanes_read(x, y):
    i = tile.thread_id()
    s = tile.alloc((64,), tile.uint32)
    if i < 8:
        tile.store(s[i], tile.load(x[i]))
        tile.ptx.bar.warp.sync(0xff)
    if i >= 8:
        if i < 16:
            tile.store(y[i], tile.load(s[i - 8]))  # finds: race


@tile.jit(num_warps=4)
def warps_meet(x, y, MASK: tile.constexpr):
    i = tile.thread_id()
    s = tile.alloc((128,), tile.uint32)
    tile.store(s[i], tile.load(x[i]))
    tile.ptx.bar.warp.sync(MASK)
    tile.store(y[i], tile.load(s[i ^ 5]))


@tile.jit(num_warps=4)
def warps_read_from_another(x, y):
    i = tile.thread_id()
    s = tile.alloc((128,), tile.uint32)
    tile.store(s[i], tile.load(x[i]))
    tile.ptx.bar.warp.sync(-1)
    tile.store(y[i], tile.load(s[i ^ 37]))  # finds: race


@tile.jit(num_warps=2)
def halves_meet(x, y):
    i = tile.thread_id()
    s = tile.alloc((64,), tile.uint32)
    tile.store(s[i], tile.load(x[i]))
    half = tile.where(i % 32 < 16, tile.uint32(0xffff), tile.uint32(0xffff0000))
    tile.ptx.bar.warp.sync(half)
    tile.store(y[i], tile.load(s[i ^ 15]))


def test_lanes_of_a_branch_meet_at_a_barrier_of_their_own_mask():
    check(eight_lanes_meet, (1,), X, Y, result=1, expected=np.where(np.arange(128) < 8, X[7 - np.arange(128)], 0))


@pytest.mark.parametrize("faulty", [eight_lanes_do_not_meet, the_other_lanes_read, warps_read_from_another])
def test_a_barrier_of_lanes_orders_those_of_its_mask_and_no_others(faulty):
    check(faulty, (1,), X, Y)


def test_every_warp_of_a_scope_has_its_own_barrier_of_lanes():
    check(warps_meet, (1,), X, Y, MASK=-1, result=1, expected=X[np.arange(128) ^ 5])
    check(halves_meet, (1,), X[:64], Y[:64], result=1, expected=X[np.arange(64) ^ 15])


# -- masks that are right ----------------------------------------------------------------------------------------------

LANE = np.arange(32)
SUM = {n: X[:n].sum() for n in (8, 16, 32)}


@pytest.mark.parametrize("body, expected", [
    (["if i < 16:", "    r = tile.ptx.redux.sync.add.u32(v, 0xffff)"], np.where(LANE < 16, SUM[16], 0)),
    (["r = tile.ptx.redux.sync.add.u32(v, tile.where(i < 16, tile.uint32(0xffff), tile.uint32(0xffff0000)))"],
     np.where(LANE < 16, SUM[16], SUM[32] - SUM[16])),
    (["if i < 8:", "    r = tile.ptx.shfl.sync.bfly.b32(v, 3, 0x1f, 0xff)"], np.where(LANE < 8, X[LANE ^ 3], 0)),
    (["if i < 8:", "    r = tile.ptx.shfl.sync.down.b32(v, 4, 0x1807, 0xff)"],
     np.where(LANE < 4, X[LANE + 4], np.where(LANE < 8, X[LANE], 0))),
    (["if i % 2 == 0:", "    r = tile.ptx.vote.sync.ballot.b32(i < 8, 0x55555555)"], np.where(LANE % 2 == 0, 0x55, 0)),
    (["if i >= 24:", "    r = tile.ptx.match.any.sync.b32(i // 4, 0xff000000)"],
     np.where(LANE < 24, 0, np.where(LANE < 28, 0x0f000000, 0xf0000000))),
    (["if i < 4:", "    r = tile.ptx.match.all.sync.b32(i // 4, 0xf)"], np.where(LANE < 4, 15, 0)),
    (["if i < 4:", "    r = tile.ptx.match.all.sync.b32(i // 2, 0xf)"], 0 * LANE),
    (["if i >= 5:", "    r = tile.ptx.elect.sync(0xffffffe0)[0]"], np.where(LANE >= 5, 5, 0)),
    (["if i * 2 == 6:", "    r = tile.ptx.redux.sync.max.u32(v, 8)"], np.where(LANE == 3, X[3], 0)),
])
def test_lanes_that_name_themselves_and_each_other_get_the_isa_manual_s_results(body, expected):
    check(kernel(body), (1,), X[:32], Y[:32], result=1, expected=expected.astype(np.uint32), seeds=range(3))


@tile.jit(num_warps=2)
def alone(x, y):
    with tile.thread(37):
        tile.ptx.bar.warp.sync(32)
        tile.store(y[37], tile.ptx.redux.sync.max.u32(tile.load(x[37]), 32)
                   + tile.ptx.shfl.sync.idx.b32(tile.uint32(1), 5, 0x1f, 32))


def test_one_thread_is_a_group_of_one_lane():
    check(alone, (1,), X, Y, result=1, expected=np.where(np.arange(128) == 37, X + 1, 0))


# -- masks that are wrong ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("body, threads, words", [
    (["if i < 8:", "    r = tile.ptx.shfl.sync.bfly.b32(v, 1, 0x1f, -1)"], range(8, 16),
     "names lanes 8 to 31: threads 8 to 31 do not"),
    (["if i != 9:", "    r = tile.ptx.vote.sync.ballot.b32(v > 9, -1)"], [9], "names lane 9: thread 9 does not"),
    (["if i < 8:", "    r = tile.ptx.match.any.sync.b32(v, 0x1ff)"], [8], "names lane 8: thread 8 does not"),
    (["if i < 8:", "    tile.ptx.bar.warp.sync(0xfff)"], range(8, 12), "names lanes 8 to 11"),
    (["if i < 8:", "    r = tile.ptx.redux.sync.add.u32(v, 0x1ff)"], [8], "names lane 8"),
    (["with tile.warp(0), tile.elect():", "    tile.ptx.bar.warp.sync(3)"], [1], "names lane 1: thread 1 does not"),
    (["r = tile.ptx.redux.sync.max.u32(v, 0xffff)"], [16], "does not name its own lane, 16"),
    (["r = tile.ptx.shfl.sync.idx.b32(v, 0, 0x1f, 0x7fffffff)"], [31], "does not name its own lane, 31"),
    (["tile.ptx.bar.warp.sync(tile.where(i < 3, tile.uint32(0xffffffff), tile.uint32(0xfffffff8)))"], range(3, 11),
     "which it names, with 0xfffffff8"),
    (["if i < 8:", "    r = tile.ptx.shfl.sync.down.b32(v, 4, 0x1f, 0xff)"], range(4, 8),
     "reads from lane 8 by shfl.sync.down.b32, which its membermask"),
    (["if i < 8:", "    r = tile.ptx.shfl.sync.idx.b32(v, 20, 0x1f, 0xff)"], range(8), "reads from lane 20"),
])
def test_a_mask_that_names_absent_lanes_or_not_its_own_is_found_with_the_lanes(body, threads, words):
    report = check(kernel([*body[:-1], body[-1] + "  # finds: divergent-collective"]), (1,), X[:32], Y[:32],
                   seeds=range(3))
    (finding,) = report.findings
    assert words in finding.message and list(finding.threads) == list(threads), finding


def test_a_warp_beyond_the_first_is_named_by_its_threads():
    body = ["if i >= 64:", "    if i < 72:",
            "        r = tile.ptx.vote.sync.ballot.b32(v > 9, 0x1ff)  # finds: divergent-collective"]
    (finding,) = check(kernel(body, num_warps=4), (1,), X, Y).findings
    words = "thread 64 executes vote.sync.ballot.b32 with the membermask 0x1ff, which names lane 8"
    assert finding.threads == (72,) and words in finding.message


@pytest.mark.parametrize("body", [
    ["if i < 16:", "    r = tile.ptx.redux.sync.add.u32(v, 0xffff)"],
    ["if i < 8:", "    tile.ptx.bar.warp.sync(0xff)"],
    ["if i < 8:", "    r = tile.ptx.elect.sync(0xff)[0]"],
])
def test_instructions_with_a_member_mask_compile_where_threads_diverge(body):
    made = kernel(body).compile(X, Y)
    assert body[1].split("tile.ptx.")[1].split("(")[0] in made.ptx
