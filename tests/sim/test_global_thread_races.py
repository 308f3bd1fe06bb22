"""Global memory shared by threads of a CTA and by CTAs of a cluster: races without a barrier, and none with one."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check, marks
from tilejit.sim import global_races

X = np.arange(1024, dtype=np.float32)
Y = np.zeros_like(X)


@tile.jit
def shifted_read(x, y, out):
    tile.store(y[0:512], tile.load(x[0:512]))
    tile.store(out[0:512], tile.load(y[1:513]))  # finds: race


@tile.jit
def shifted_read_after_sync(x, y, out):
    tile.store(y[0:512], tile.load(x[0:512]))
    tile.sync()
    tile.store(out[0:512], tile.load(y[1:513]))


def test_a_thread_that_reads_another_thread_s_write_needs_a_barrier():
    check(shifted_read, (1,), X, Y, Y)
    check(shifted_read_after_sync, (1,), X, Y, Y, result=2, expected=np.append(X[1:512], np.zeros(513, np.float32)))


@tile.jit
def rows_shifted_read(x, y, out):
    i = tile.program_id(0)
    tile.store(y[i, 0:256], tile.load(x[i, 0:256]))
    tile.store(out[i, 0:255], tile.load(y[i, 1:256]))  # finds: race


@tile.jit
def rows_shifted_read_after_sync(x, y, out):
    i = tile.program_id(0)
    tile.store(y[i, 0:256], tile.load(x[i, 0:256]))
    tile.sync()
    tile.store(out[i, 0:255], tile.load(y[i, 1:256]))


@tile.jit
def rows_read_as_they_were_written(x, y, out):
    i = tile.program_id(0)
    tile.store(y[i, 0:256], tile.load(x[i, 0:256]))
    tile.store(out[i, 0:256], tile.load(y[i, 0:256]))


def test_a_race_within_each_of_many_ctas_is_found():
    x = np.arange(300 * 256, dtype=np.float32).reshape(300, 256)
    y, out = np.zeros_like(x), np.zeros_like(x)
    check(rows_shifted_read, (300,), x, y, out, seeds=[0, 1])
    want = np.zeros_like(x)
    want[:, :255] = x[:, 1:]
    check(rows_shifted_read_after_sync, (300,), x, y, out, result=2, expected=want, seeds=[0, 1])
    check(rows_read_as_they_were_written, (300,), x, y, out, result=2, expected=x, seeds=[0, 1])


@tile.jit
def smoothed_in_place(x):
    v = tile.load(x[0:512]) + tile.load(x[1:513])
    tile.store(x[0:512], v)  # finds: race


@tile.jit
def smoothed_in_place_after_sync(x):
    v = tile.load(x[0:512]) + tile.load(x[1:513])
    tile.sync()
    tile.store(x[0:512], v)


def test_a_thread_that_overwrites_what_another_reads_needs_a_barrier():
    want = X.copy()
    want[:512] += X[1:513]
    check(smoothed_in_place, (1,), X)
    check(smoothed_in_place_after_sync, (1,), X, result=0, expected=want)


@tile.jit
def written_twice(x, y):
    tile.store(y[0:256], tile.load(x[0:256]))
    tile.store(y[1:257], tile.load(x[0:256]))  # finds: race


@tile.jit
def written_twice_with_a_barrier(x, y):
    tile.store(y[0:256], tile.load(x[0:256]))
    tile.sync()
    tile.store(y[1:257], tile.load(x[0:256]))


def test_two_threads_that_write_one_element_without_a_barrier_race():
    check(written_twice, (1,), X, Y)
    check(written_twice_with_a_barrier, (1,), X, Y, result=1, expected=np.concatenate([X[:1], X[:256], np.zeros(767, np.float32)]))


@tile.jit
def stored_whole(x, y):
    tile.store(y[0:64], tile.load(x[0:64]))  # finds: race


@tile.jit
def stored_equal(x, y):
    tile.store(y[0:64], tile.full((64,), 3.0))


def test_stores_of_different_values_to_aliased_elements_race():
    """The strides map several indices to the same element, as in a broadcast array; stores of equal values are allowed."""
    broadcast = lambda: np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (64,), (0,))
    windows = lambda: np.lib.stride_tricks.as_strided(np.zeros(40, np.float32), (8, 8), (16, 4)).T
    for y in (broadcast(), windows()):
        kernel, other = (stored_whole, stored_equal) if y.ndim == 1 else (stored_windows, stored_equal_windows)
        report = kernel.simulate((1,), X, y)
        assert {(f.kind, f.line) for f in report.findings} == marks(kernel)
        other.simulate((1,), X, y).raise_first()
        assert (y == 3).all()


@tile.jit
def stored_windows(x, y):
    tile.store(y[0:8, 0:8], tile.reshape(tile.load(x[0:64]), (8, 8)))  # finds: race


@tile.jit
def stored_equal_windows(x, y):
    tile.store(y[0:8, 0:8], tile.full((8, 8), 3.0))


@tile.jit
def in_loops(x, n):
    for i in range(n):
        v = tile.load(x[i:i + 128])
        tile.store(x[i + 1:i + 129], v)  # finds: race
        tile.sync()


@tile.jit
def in_loops_with_both_barriers(x, n):
    for i in range(n):
        v = tile.load(x[i:i + 128])
        tile.sync()
        tile.store(x[i + 1:i + 129], v)
        tile.sync()


def test_threads_that_write_what_the_same_iteration_reads_race():
    want = X.copy()
    for i in range(5):
        want[i + 1:i + 129] = want[i:i + 128].copy()
    check(in_loops, (1,), X, 5)
    check(in_loops_with_both_barriers, (1,), X, 5, result=0, expected=want)


@tile.jit
def scalar_for_all(x, y):
    tile.store(y[0], tile.load(x[3]))
    s = tile.load(y[0])  # finds: race
    tile.store(y[128:256], s + tile.load(x[0:128]))


@tile.jit
def scalar_for_all_after_sync(x, y):
    tile.store(y[0], tile.load(x[3]))
    tile.sync()
    s = tile.load(y[0])
    tile.store(y[128:256], s + tile.load(x[0:128]))


@tile.jit
def scalar_for_the_thread_that_stores_it(y, n):
    for i in range(n):
        tile.store(y[0], tile.load(y[0]) * 2 + i)


def test_a_scalar_stored_by_one_thread_may_be_read_by_others_after_a_barrier():
    check(scalar_for_all, (1,), X, Y)
    want = np.zeros_like(Y)
    want[0], want[128:256] = 3, 3 + X[:128]
    check(scalar_for_all_after_sync, (1,), X, Y, result=1, expected=want)
    check(scalar_for_the_thread_that_stores_it, (1,), np.ones(1, np.float32), 3, result=0, expected=[12])


@tile.jit
def normalised_in_place(x):
    v = tile.load(x[0:512])
    tile.store(x[0], tile.sum(v))
    tile.store(x[512:1024], tile.cumsum(v))


@tile.jit
def transposed_in_place(x):
    v = tile.load(x[0:32, 0:32])
    tile.store(x[0:32, 0:32], tile.transpose(v))  # finds: race


@tile.jit
def transposed_in_place_after_sync(x):
    v = tile.load(x[0:32, 0:32])
    tile.sync()
    tile.store(x[0:32, 0:32], tile.transpose(v))


def test_values_that_threads_exchange_were_read_before_the_exchange():
    """After a reduction or scan, the memory that its operand was loaded from may be overwritten; after a transpose of registers it may not."""
    check(normalised_in_place, (1,), X, result=0, expected=np.concatenate([[X[:512].sum()], X[1:512], np.cumsum(X[:512])]).astype(np.float32))
    x = X.reshape(32, 32)
    check(transposed_in_place, (1,), x)
    check(transposed_in_place_after_sync, (1,), x, result=0, expected=x.T)


@tile.jit(num_warps=8)
def between_warpgroups(x, y, out):
    with tile.warpgroup(0):
        tile.store(y[0:128], tile.load(x[0:128]))  # may find: race
    with tile.warpgroup(1):
        tile.store(out[0:128], tile.load(y[0:128]))  # may find: race


@tile.jit(num_warps=8)
def between_warpgroups_by_mbarrier(x, y, out):
    bar = tile.mbarrier()
    with tile.warpgroup(0):
        tile.store(y[0:128], tile.load(x[0:128]))
        bar.arrive()
    with tile.warpgroup(1):
        bar.wait(phase=0)
        tile.store(out[0:128], tile.load(y[0:128]))


def test_an_mbarrier_orders_global_memory_between_warpgroups():
    check(between_warpgroups, (1,), X, Y, Y)
    check(between_warpgroups_by_mbarrier, (1,), X, Y, Y, result=2, expected=np.append(X[:128], np.zeros(896, np.float32)))


@tile.jit
def counted_from_zero(y, out):
    tile.store(y[0:128], 0)
    tile.atomic_add(y[tile.arange(0, 128) // 2], 1)  # finds: race
    tile.sync()


@tile.jit
def counted_from_zero_after_sync(y, out):
    tile.store(y[0:128], 0)
    tile.sync()
    tile.atomic_add(y[tile.arange(0, 128) // 2], 1)
    tile.sync()


def test_atomics_on_another_thread_s_writes_need_a_barrier():
    check(counted_from_zero, (1,), np.ones(128, np.int32), np.zeros(1, np.int32))
    check(counted_from_zero_after_sync, (1,), np.ones(128, np.int32), np.zeros(1, np.int32), result=0, expected=np.repeat([2, 0], 64))


@tile.jit(cluster=(2, 1, 1))
def across_the_cluster(x, y, out):
    i = tile.program_id(0)
    r = tile.cta_rank()
    tile.store(y[i, 0:128], tile.load(x[i, 0:128]))
    tile.store(out[i, 0:128], tile.load(y[i + 1 - 2 * r, 0:128]))


@tile.jit(cluster=(2, 1, 1))
def across_the_cluster_after_its_barrier(x, y, out):
    i = tile.program_id(0)
    r = tile.cta_rank()
    tile.store(y[i, 0:128], tile.load(x[i, 0:128]))
    tile.cluster_sync()
    tile.store(out[i, 0:128], tile.load(y[i + 1 - 2 * r, 0:128]))


@tile.jit(cluster=(2, 1, 1))
def across_the_cluster_and_back(x):
    i = tile.program_id(0)
    r = tile.cta_rank()
    v = tile.load(x[i + 1 - 2 * r, 0:128])
    tile.cluster_sync()
    tile.store(x[i, 0:128], v)


@tile.jit(cluster=(2, 1, 1))
def one_row_for_both(x, y):
    i = tile.program_id(0)
    v = tile.load(x[i // 2, 0:128])
    tile.cluster_sync()
    if tile.cta_rank() == 1:
        tile.store(x[i // 2, 0:128], v + 1)


@tile.jit(cluster=(2, 1, 1))
def beyond_the_cluster(x, y, out):
    i = tile.program_id(0)
    tile.store(y[i, 0:128], tile.load(x[i, 0:128]))
    tile.cluster_sync()
    tile.store(out[i, 0:128], tile.load(y[7 - i, 0:128]))  # finds: race


def test_the_cluster_barrier_orders_global_memory_between_its_ctas_only():
    x = X.reshape(8, 128)
    y = np.zeros_like(x)
    swapped = x.reshape(4, 2, 128)[:, ::-1].reshape(8, 128)
    for seed in range(8):  # at the read, the write or both, depending on the order
        assert {f.kind for f in across_the_cluster.simulate((8,), x, y.copy(), y.copy(), seed=seed).findings} == {"race"}
    check(across_the_cluster_after_its_barrier, (8,), x, y, y, result=2, expected=swapped)
    check(across_the_cluster_and_back, (8,), x, result=0, expected=swapped)
    check(one_row_for_both, (8,), x[:4], y, result=0, expected=x[:4] + 1)
    check(beyond_the_cluster, (8,), x, y, y)


def test_a_race_between_threads_names_both_threads_and_both_lines():
    (finding,) = shifted_read.simulate((1,), X, Y.copy(), Y.copy()).findings
    assert finding.message.startswith("thread ") and "reads an element of y, written by thread" in finding.message
    assert finding.other is not None and finding.other.line == finding.line - 1 and len(finding.threads) == 2


@pytest.mark.parametrize("shape", [(4, 96), (3, 5, 40)])
def test_strided_views_race_like_other_views(shape):
    @tile.jit
    def rolled(x, y):
        tile.store(x[0, 0:32] if len(SHAPE) == 2 else x[0, 0, 0:32], tile.load(y[0:32]))
        tile.store(y[0:32], tile.load(x[0, 1:33] if len(SHAPE) == 2 else x[0, 0, 1:33]))

    SHAPE = shape
    x = np.zeros((*shape[:-1], 2 * shape[-1]), np.float32)[..., ::2]
    assert [f.kind for f in rolled.simulate((1,), x, X.copy()).findings] == ["race"]


@tile.jit(num_warps=2)
def read_by_two(x, y, WARP: tile.constexpr, SYNC: tile.constexpr):
    t = tile.thread_id()
    tile.store(y[t], tile.load(x[t % 32]))
    if SYNC:
        tile.sync()
    if t // 32 == WARP:
        tile.store(x[t % 32], 0)


@tile.jit(num_warps=2)
def written_by_two(x, y, WARP: tile.constexpr, SYNC: tile.constexpr):
    t = tile.thread_id()
    tile.store(x[t % 32], 7)
    if SYNC:
        tile.sync()
    if t // 32 == WARP:
        tile.store(y[t], tile.load(x[t % 32]))


@tile.jit(num_warps=2)
def one_element_for_all(x, y, WARP: tile.constexpr, SYNC: tile.constexpr):
    t = tile.thread_id()
    tile.store(y[t], tile.load(x[0]))
    if SYNC:
        tile.sync()
    if t == 63 * WARP:
        tile.store(x[0], 0)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("warp", [0, 1])
@pytest.mark.parametrize("kernel", [read_by_two, written_by_two, one_element_for_all])
def test_of_threads_that_access_one_element_at_once_each_needs_a_barrier_before_another_accesses_it(kernel, warp, loops, monkeypatch):
    """Whichever of them comes last; also where compiled loops mark the elements."""
    monkeypatch.setattr(global_races, "compiled", lambda loop, seconds: loop if loops else None)
    for seed in range(2):
        x, y = np.arange(32, dtype=np.int32), np.zeros(64, np.int32)
        assert {f.kind for f in kernel.simulate(1, x, y, warp, False, seed=seed).findings} == {"race"}
        assert not kernel.simulate(1, x, y, warp, True, seed=seed).findings
