"""Named hardware barriers, turns, fragment indices, wrapping counters, dependent launches."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError, SimulationError

from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")
X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)


@tile.jit(num_warps=12)
def pipeline(X, Y, ROUNDS: tile.constexpr):
    """Warpgroup 0 writes a buffer for warpgroups 1 and 2 in turn, with a full and an empty barrier for each."""
    buffer = tile.alloc((2, 128), X.dtype)
    full, empty = tile.named_barrier(256, n=2), tile.named_barrier(256, n=2)
    with tile.warpgroup(0):
        for i in range(ROUNDS):
            for w in range(2):
                if i > 0:
                    empty[w].sync()
                tile.store(buffer[w], tile.load(X[2 * i + w, 0:128]))
                full[w].arrive()
    with tile.each_warpgroup(range(1, 3)) as g:
        w = g - 1
        for i in range(ROUNDS):
            full[w].sync()
            tile.store(Y[2 * i + w, 0:128], tile.load(buffer[w]) + 1)
            if i < ROUNDS - 1:
                empty[w].arrive()


@pytest.mark.parametrize("seed", range(4))
def test_named_barriers_order_writers_and_readers(seed):
    y = np.zeros_like(X)
    pipeline.simulate(1, X, y, ROUNDS=4, seed=seed).raise_first()
    np.testing.assert_array_equal(y, X + 1)


def test_a_missing_arrival_is_a_deadlock_at_its_line():
    @tile.jit(num_warps=8)
    def kernel(Y):
        b = tile.named_barrier(256)
        with tile.warpgroup(0):
            b.sync()
    with pytest.raises(SimulationError, match="128 of 256 threads have arrived"):
        kernel[1](np.zeros(4, np.float32))


def test_reading_without_the_barrier_is_a_race():
    @tile.jit(num_warps=8)
    def kernel(X, Y):
        buffer = tile.alloc((128,), X.dtype)
        with tile.warpgroup(0):
            tile.store(buffer, tile.load(X[0, 0:128]))
        with tile.warpgroup(1):
            tile.store(Y[0, 0:128], tile.load(buffer))
    found = [kernel.simulate(1, X, np.zeros_like(X), seed=s).findings for s in range(3)]
    assert any(f.kind in ("race", "uninitialized-read") for fs in found for f in fs)


# -- turns -----------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=16)
def serial(C, log, ROUNDS: tile.constexpr, N: tile.constexpr):
    """Each member in its turn appends its number to a list, without atomics."""
    at = tile.alloc((1,), tile.int32)
    tile.store(at[0], 0)
    tile.sync()
    baton = tile.turns(N)
    with tile.each_warpgroup(range(0, N)) as w:
        for i in range(ROUNDS):
            baton.take(w)
            with tile.elect():
                n = tile.load(at[0])
                tile.store(log[n], w)
                tile.store(at[0], n + 1)
            tile.sync()
            baton.pass_on(w)


@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_members_take_turns_in_order(members):
    log = np.full(5 * members, -1, np.int32)
    for seed in range(3):
        serial.simulate(1, X, log, ROUNDS=5, N=members, seed=seed).raise_first()
        assert log.tolist() == list(range(members)) * 5


def test_a_member_that_never_passes_on_is_a_deadlock():
    @tile.jit(num_warps=8)
    def kernel(Y):
        baton = tile.turns(2)
        with tile.each_warpgroup(range(0, 2)) as w:
            baton.take(w)
    with pytest.raises(SimulationError, match="named barrier"):
        kernel[1](np.zeros(4, np.float32))


def test_invalid_uses_of_named_barriers_are_errors():
    def refused(match, body, **options):
        with pytest.raises(CompilationError, match=match):
            tile.jit(body, **options).compile(X, target="sm_90a")

    def odd(X):
        tile.named_barrier(48)
    refused("a multiple of 32", odd)

    def many(X):
        tile.named_barrier(256)
    refused("the CTA has 128 threads, fewer than the 256 that are to meet", many)

    def thread(X):
        b = tile.named_barrier(64)
        with tile.thread(3):
            b.sync()
    refused("counts whole warps", thread)

    def wide(X):
        b = tile.named_barrier(64)
        b.sync()
    refused("for 64 threads cannot be used by a scope of 128", wide)

    def outside(X):
        b = tile.named_barrier(64, n=2)
        with tile.warp(1):
            b[2].sync()
    refused("barrier 2 of 2 does not exist", outside)

    def member(X):
        baton = tile.turns(2, threads=64)
        with tile.warp(0):
            baton.take(0)
    refused("each member has 64 threads, and this scope has 32", member)

    def partial(X):
        b = tile.named_barrier(64)
        with tile.warp(0):
            if tile.lane_id() < 5:
                b.sync()
    refused("needs all threads of the warp", partial)

    def exhausted(X):
        b = tile.named_barrier(128, n=16)
        b[0].sync()
    refused("a CTA has 16 hardware barriers", exhausted)


@pytest.mark.misread_by_racecheck
@needs_gpu()
@in_child(timeout=60)
def test_named_barriers_and_turns_work_on_the_gpu():
    x = tile.to_device(np.arange(1024 * 128, dtype=np.float32).reshape(1024, 128), 0)
    y = tile.to_device(np.zeros((1024, 128), np.float32), 0)
    pipeline[1,](x, y, ROUNDS=512)
    np.testing.assert_array_equal(y.numpy(), x.numpy() + 1)
    for members in (1, 2, 3, 4):
        log = tile.to_device(np.full(200 * members, -1, np.int32), 0)
        serial[1,](x, log, ROUNDS=200, N=members)
        assert log.numpy().tolist() == list(range(members)) * 200


# -- indices of fragments, counters, dependent launches ----------------------------------------------------------------------

@tile.jit
def causal(X, Y):
    t = tile.load(X[0:32, 0:64])
    rows, columns = tile.fragment_index(t, 0), tile.fragment_index(t, -1)
    tile.store(Y[0:32, 0:64], tile.where(columns <= rows, t, -1.0))


def test_fragment_indices_mask_a_tile_without_moving_data():
    x, y = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32), np.zeros((32, 64), np.float32)
    causal[1](x, y)
    np.testing.assert_array_equal(y, np.where(np.arange(64) <= np.arange(32)[:, None], x, -1))
    compiled = causal.compile(x, y)
    assert "convert_layout" not in compiled.graph and compiled.shared_bytes == 0


def test_a_fragment_index_along_a_missing_axis_is_refused():
    @tile.jit
    def kernel(X):
        tile.fragment_index(tile.load(X[0:8, 0:8]), 2)
    with pytest.raises(CompilationError, match="axis 2 of a tile of 2 dimensions"):
        kernel.compile(X)


@tile.jit
def wrapped(C, old, LIMIT: tile.constexpr, DOWN: tile.constexpr):
    for i in range(10):
        was = tile.atomic_dec(C[0], LIMIT) if DOWN else tile.atomic_inc(C[0], LIMIT)
        tile.store(old[i], was)


def wrapping(start, limit, down):
    c, seen = start, []
    for _ in range(10):
        seen.append(c)
        c = (limit if c == 0 or c > limit else c - 1) if down else (0 if c >= limit else c + 1)
    return seen, c


def wrapped_cases(device=None):
    place = (lambda a: tile.to_device(a, device)) if device is not None else (lambda a: a)
    back = (lambda a: a.numpy()) if device is not None else (lambda a: a)
    for start, limit, down in ((0, 3, False), (9, 3, False), (0, 3, True), (9, 3, True), (2, 0, False)):
        c, old = place(np.array([start], np.uint32)), place(np.zeros(10, np.uint32))
        wrapped[1,](c, old, LIMIT=limit, DOWN=down)
        assert (back(old).tolist(), back(c)[0]) == wrapping(start, limit, down)


def test_inc_and_dec_wrap_at_their_limit():
    wrapped_cases()


@tile.jit(pdl=True)
def relayed(X, Y):
    tile.griddepcontrol_wait()
    p = tile.program_id(0)
    v = tile.load(X[p, 0:1024])
    tile.griddepcontrol_launch_dependents()
    tile.store(Y[p, 0:1024], v + 1)


def test_a_dependent_launch_waits_for_the_previous_grid():
    x, y = np.zeros((3, 1024), np.float32), np.zeros((3, 1024), np.float32)
    relayed[3,](x, y)
    assert (y == 1).all()
    ptx = relayed.compile(x, y).ptx
    assert ptx.index("griddepcontrol.wait") < ptx.index("ld.global") < ptx.index("griddepcontrol.launch_dependents")


def test_a_kernel_launched_with_pdl_that_never_waits_causes_a_warning():
    compiled = wrapped.compile(np.zeros(1, np.uint32), np.zeros(10, np.uint32), LIMIT=3, DOWN=False, pdl=True)
    assert any("griddepcontrol_wait" in w for w in compiled.warnings)
    assert not relayed.compile(X, X).warnings


def test_dependent_launches_need_hopper():
    with pytest.raises(CompilationError, match="sm_90 or later"):
        relayed.compile(X, X, target="sm_80")


@needs_gpu()
@in_child(timeout=60)
def test_wrapping_counters_and_dependent_launches_work_on_the_gpu():
    wrapped_cases(0)
    a, b = (tile.to_device(np.zeros((2000, 1024), np.float32), 0) for _ in range(2))
    for _ in range(50):
        relayed[2000,](a, b)
        relayed[2000,](b, a)
    assert (a.numpy() == 100).all()


@tile.jit(cluster=2, num_warps=8)
def crowded(out):
    tile.cluster_sync()
    tile.store(out[tile.program_id(0)], 1)


def test_ctas_of_a_cluster_synchronise():
    out = np.zeros(8, np.int32)
    crowded[8,](out)
    assert (out == 1).all()


@pytest.mark.unsanitized
@needs_gpu()
@in_child(timeout=60)
def test_the_driver_reports_how_many_ctas_and_clusters_fit():
    out = tile.to_device(np.zeros(8, np.int32), 0)
    compiled = crowded.compile(out)
    assert compiled.active_ctas() == 8
    assert compiled.active_clusters() >= 8
