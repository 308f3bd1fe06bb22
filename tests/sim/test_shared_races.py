"""Ordinary accesses to shared memory: barriers between threads, concurrent scopes, uninitialised bytes."""

import re

import numpy as np
import pytest
import tilejit as tile
from faulty import check

X = np.arange(256, dtype=np.float32)
Y = np.zeros_like(X)


@tile.jit
def unsynced_shift(x, y):
    s = tile.alloc((256,), x.dtype)
    tile.store(s, tile.load(x[0:256]))
    tile.store(y[0:255], tile.load(s[1:256]))  # finds: race


@tile.jit
def synced_shift(x, y):
    s = tile.alloc((256,), x.dtype)
    tile.store(s, tile.load(x[0:256]))
    tile.sync()
    tile.store(y[0:255], tile.load(s[1:256]))


def test_a_read_of_another_thread_s_write_needs_a_barrier():
    """Neighbouring elements belong to other threads."""
    check(unsynced_shift, (2,), X, Y)
    check(synced_shift, (1,), X, Y, result=1, expected=np.append(X[1:], 0))


@tile.jit
def loop_without_second_barrier(x, y):
    s = tile.alloc((256,), x.dtype)
    for i in range(3):
        tile.store(s, tile.load(x[0:256]) + i)
        tile.sync()
        tile.store(y[i, 0:255], tile.load(s[1:256]))  # finds: race


@tile.jit
def loop_with_second_barrier(x, y):
    s = tile.alloc((256,), x.dtype)
    for i in range(3):
        tile.store(s, tile.load(x[0:256]) + i)
        tile.sync()
        tile.store(y[i, 0:255], tile.load(s[1:256]))
        tile.sync()


def test_a_buffer_may_be_overwritten_only_after_a_second_barrier():
    """Write after read, across the iterations of a loop."""
    y = np.zeros((3, 256), np.float32)
    check(loop_without_second_barrier, (1,), X, y)
    check(loop_with_second_barrier, (1,), X, y)


def test_a_race_report_includes_the_line_of_the_other_access():
    """Here the access further down comes first, in the previous iteration."""
    finding, = loop_without_second_barrier.simulate((1,), X, np.zeros((3, 256), np.float32)).findings
    assert finding.line == finding.other.line + 2 and "tile.store(s," in finding.other.source_line
    assert re.search(rf"^thread \d+ reads bytes .* of shared memory \(s\[\d+\]\), written in a later iteration of the loop by thread \d+ "
                     rf"at line {finding.other.line} without a barrier between", finding.message)


@tile.jit
def two_warps(x, y):
    s = tile.alloc((32,), x.dtype)
    with tile.warp(0):
        tile.store(s, tile.load(x[0:32]))
    with tile.warp(1):
        tile.store(y[0:32], tile.load(s))  # finds: race


@tile.jit
def two_warps_synced(x, y):
    s = tile.alloc((32,), x.dtype)
    with tile.warp(0):
        tile.store(s, tile.load(x[0:32]))
    tile.sync()
    with tile.warp(1):
        tile.store(y[0:32], tile.load(s))


def test_sibling_scopes_are_not_ordered():
    """Leaving a scope does not synchronise, in whatever order the simulator runs them."""
    check(two_warps, (1,), X, Y)
    check(two_warps_synced, (1,), X, Y)


@tile.jit
def through_a_barrier(x, y):
    s = tile.alloc((32,), x.dtype)
    bar = tile.mbarrier()
    with tile.warp(0):
        tile.store(s, tile.load(x[0:32]))
        bar.arrive()
    with tile.warp(1):
        bar.wait(phase=0)
        tile.store(y[0:32], tile.load(s))


@tile.jit
def written_after_arrival(x, y):
    s = tile.alloc((32,), x.dtype)
    bar = tile.mbarrier()
    with tile.warp(0):
        bar.arrive()
        tile.store(s, tile.load(x[0:32]))
    with tile.warp(1):
        bar.wait(phase=0)
        tile.store(y[0:32], tile.load(s))  # finds: race


def test_an_mbarrier_orders_what_precedes_the_arrival():
    """Arrivals release, waits acquire; accesses after the arrival are not ordered."""
    check(through_a_barrier, (1,), X, Y)
    check(written_after_arrival, (1,), X, Y)


@tile.jit
def never_written(y):
    s = tile.alloc((32,), tile.float32)
    tile.store(y[0:32], tile.load(s))  # finds: uninitialized-read


def test_a_read_of_bytes_that_nobody_wrote_is_found():
    """Shared memory is uninitialised at first."""
    check(never_written, (1,), Y)


@tile.jit
def counts_from_nothing(x, y):
    s = tile.alloc((8,), tile.int32)
    tile.atomic_add(s[tile.cast(tile.load(x[0:128]), tile.int32) % 8], 1)  # finds: uninitialized-read
    tile.sync()
    tile.store(y[0:8], tile.cast(tile.load(s), y.dtype))


@tile.jit
def counts_from_zero(x, y, HOW: tile.constexpr):
    s = tile.alloc((8,), tile.int32)
    if HOW == "stored":
        tile.store(s, 0)
    else:
        tile.atomic_exch(s[tile.arange(8)], 0)
    tile.sync()
    tile.atomic_add(s[tile.cast(tile.load(x[0:128]), tile.int32) % 8], 1)
    tile.sync()
    tile.store(y[0:8], tile.cast(tile.load(s), y.dtype))


@tile.jit
def counts_beside_the_zeros(x, y):
    s = tile.alloc((8,), tile.int32)
    with tile.warp(0):
        tile.store(s, 0)
    with tile.warp(1):
        tile.atomic_add(s[tile.cast(tile.load(x[0:32]), tile.int32) % 8], 1)  # finds: race


def test_an_atomic_add_needs_initialised_memory():
    """On the GPU, memory initially holds anything. An exchange does not read its old value."""
    check(counts_from_nothing, (1,), X, Y)
    check(counts_beside_the_zeros, (1,), X, Y)
    for how in ("stored", "exchanged"):
        check(counts_from_zero, (1,), X, Y, how, result=1, expected=np.append(np.bincount(X[:128].astype(int) % 8, minlength=8), Y[8:]))



@tile.jit
def overlapping_slices(x, y):
    s = tile.alloc((64,), x.dtype)
    with tile.warp(0):
        tile.store(s[0:33], tile.load(x[0:33]))
    with tile.warp(1):
        tile.store(s[32:64], tile.load(x[32:64]) + 1)  # finds: race
    tile.sync()
    tile.store(y[0:64], tile.load(s))


@tile.jit
def disjoint_slices(x, y):
    s = tile.alloc((64,), x.dtype)
    with tile.warp(0):
        tile.store(s[0:32], tile.load(x[0:32]))
    with tile.warp(1):
        tile.store(s[32:64], tile.load(x[32:64]) + 1)
    tile.sync()
    tile.store(y[0:64], tile.load(s))


def test_slices_that_overlap_by_one_element_race():
    """Races are found per element."""
    check(overlapping_slices, (1,), X, Y)
    check(disjoint_slices, (1,), X, Y)


@tile.jit
def bytes_side_by_side(x, y):
    s = tile.alloc((256,), tile.uint8)
    for i in range(2):
        tile.store(s[tile.thread_id() * 2 + i], tile.load(x[tile.thread_id() * 2 + i]))
        tile.store(y[tile.thread_id() * 2 + i], tile.load(s[tile.thread_id() * 2 + i]))


def test_accesses_to_neighbouring_bytes_do_not_race():
    """Races are tracked per byte."""
    x = np.arange(256, dtype=np.uint8)
    check(bytes_side_by_side, (1,), x, np.zeros_like(x), result=1, expected=x)


@tile.jit
def out_of_bounds(x, y, n):
    s = tile.alloc((64,), x.dtype)
    tile.store(s, tile.load(x[0:64]))
    tile.sync()
    tile.store(y[0:32], tile.load(s[n:n + 32]))  # finds: out-of-bounds


def test_accesses_outside_a_shared_buffer_are_found():
    """A region that exceeds its buffer would read the next one."""
    check(out_of_bounds, (1,), X, Y, 40)


@tile.jit
def one_thread_each(x, y):
    s = tile.alloc((128,), x.dtype)
    t = tile.thread_id()
    tile.store(s[t], tile.load(x[t]))
    tile.sync()
    tile.store(y[t], tile.load(s[127 - t]))


@tile.jit
def one_thread_each_unsynced(x, y):
    s = tile.alloc((128,), x.dtype)
    t = tile.thread_id()
    tile.store(s[t], tile.load(x[t]))
    tile.store(y[t], tile.load(s[127 - t]))  # finds: race


def test_scalar_accesses_of_each_thread_race_like_tiles():
    check(one_thread_each, (1,), X, Y, result=1, expected=np.append(X[:128][::-1], np.zeros(128)))
    check(one_thread_each_unsynced, (1,), X, Y)


LAYOUTS = [None, tile.swizzled("float16", (16, 64), 128), tile.swizzled("float16", (16, 64), 32), tile.swizzled("float16", (16, 64), 0),
           tile.TileLayout([(16, 72, "m"), (64, 1, "m")])]


@tile.jit(num_warps=1)
def one_not_written(out, LAYOUT: tile.constexpr, I: tile.constexpr, J: tile.constexpr):
    before, halves = tile.alloc((3,), "float32"), tile.alloc((2, 16, 64), "float16")
    wide = tile.alloc((16, 64), "float16",
                      layout=LAYOUT)
    for i in range(16):
        for j in range(2):
            t = tile.thread_id() + j * 32
            if i != I or t != J:
                tile.store(wide[i, t], 1.0)
                tile.store(halves[1, i, t], 1.0)
    tile.sync()
    tile.store(out[0:16, 0:64], tile.load(wide))
    tile.store(out[0:16, 0:64], tile.load(halves[1]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("i,j", [(0, 0), (5, 9), (15, 63)])
def test_a_finding_names_the_element_of_the_allocation_whatever_its_layout(layout, i, j):
    """Swizzled, column-major, padded; by the variable's name, also if the statement spans several lines."""
    found = one_not_written.simulate((1,), np.zeros((16, 64), np.float16), LAYOUT=layout, I=i, J=j).findings
    assert [f.kind for f in found] == ["uninitialized-read"] * 2
    for finding, element in zip(found, (f"wide[{i}, {j}]", f"halves[1, {i}, {j}]")):
        assert f"of shared memory ({element}) are read" in finding.message


@tile.jit(num_warps=1)
def named_beside_others(out):
    before = tile.alloc((3,), "float32"); s = tile.alloc((4,), "float32")
    tile.store(out[0], tile.load(s[1]))


def test_a_finding_names_the_buffer_made_by_one_of_several_statements_of_a_line():
    assert "of shared memory (s[1]) are read" in named_beside_others.simulate((1,), np.zeros(1, np.float32)).findings[0].message


@tile.jit(num_warps=1)
def slots(x, y):
    r = tile.ring(2, A=((32,), "float32"), B=((32,), "float32"), filled="stores")
    for i in range(2):
        with r.produce() as slot:
            tile.store(slot.A, tile.load(x[0:32]))
        with r.consume() as slot:
            tile.store(y[0:32], tile.load(slot.B))


def test_a_finding_names_the_buffer_of_a_ring_and_its_slot():
    finding, = slots.simulate((1,), X, Y).findings
    assert "of shared memory (r.B[0] in slot 0) are read" in finding.message


@tile.jit(num_warps=1)
def a_buffer_called_alloc(x, y):
    r = tile.ring(2, alloc=((2, 16), "float32"), filled="stores")
    with r.produce() as slot:
        tile.store(slot.alloc[0, 0:16], tile.load(x[0:16]))
    with r.consume() as slot:
        tile.store(y[0:16], tile.load(slot.alloc[1, 0:16]))


def test_a_ring_s_buffer_may_be_called_alloc():
    finding, = a_buffer_called_alloc.simulate((1,), X, Y).findings
    assert "of shared memory (r.alloc[1, 0] in slot 0) are read" in finding.message


@tile.jit(num_warps=2)
def written_by_two(y, WARP: tile.constexpr, SYNC: tile.constexpr):
    s = tile.alloc((32,), tile.int32)
    t = tile.thread_id()
    tile.store(s[t % 32], 7)
    if SYNC:
        tile.sync()
    if t // 32 == WARP:
        tile.store(y[t], tile.load(s[t % 32]))


@pytest.mark.parametrize("warp", [0, 1])
def test_of_threads_that_write_one_element_at_once_each_needs_a_barrier_before_it_reads(warp):
    """Whichever of them comes last."""
    for seed in range(2):
        y = np.zeros(64, np.int32)
        assert [f.kind for f in written_by_two.simulate(1, y, warp, False, seed=seed).findings] == ["race"]
        assert not written_by_two.simulate(1, y, warp, True, seed=seed).findings
