"""``tile.dot`` through tensor memory (sm_100a, sm_103a): values, what stays there across loops, and where it does not fit."""

from itertools import takewhile

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from test_dot import check, compiled
from tilejit.errors import CompilationError, DispatchError, SimulationError

from tests.mma.test_pipelined import attention, close

ACCUMULATOR = {"int8": "int32", "uint8": "int32"}
SIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([64, 128, 256]), st.integers(1, 8), st.integers(1, 5), st.sampled_from(sorted(SIZE)), st.booleans(), st.booleans(),
       st.sampled_from(["ab", "b"]), st.sampled_from([4, 8]), st.booleans(), st.booleans())
def test_products_of_any_supported_extents_types_and_majors_are_right(m, columns, steps, dtype, ta, tb, places, warps, half, twice):
    """Rows in one or several instructions, `a` in shared memory or registers, one warpgroup or two, with or without an accumulator."""
    k, n = 32 // SIZE[dtype] * steps, 16 * columns
    places, warps = "ab" if m == 256 or ta else places, 8 if m == 256 else warps  # limited by the threads' registers
    if dtype == "float32":
        ta, tb = False, True  # K-major
    if SIZE[dtype] == 1:
        ta, tb = ta and m != 256 and m % 128 == 0, tb or n % 128 != 0
    acc = "float16" if half and dtype in ("float16", "float8_e5m2") else ACCUMULATOR.get(dtype, "float32")
    check(m, n, k, dtype, None, ta, tb, places, acc=acc, warps=warps, twice=twice, target="sm_100a", precision="tf32" if dtype == "float32" else None,
          variant="tcgen05" if tb and not ta else None)


@pytest.mark.parametrize("warps,m,n,places,variant", [(12, 128, 96, "ab", "tcgen05"), (12, 384, 8, "ab", "tcgen05"), (12, 128, 64, "ab", None),
                                                      (12, 128, 48, "b", None), (20, 64, 40, "ab", None)])
def test_any_number_of_warpgroups_can_share_an_accumulator(warps, m, n, places, variant):
    """In tensor memory if its columns, or blocks of 128 rows, can be divided among them; otherwise warps multiply."""
    check(m, n, 64, tb=True, places=places, warps=warps, target="sm_100a", variant=variant)


def test_an_operand_from_registers_has_its_own_columns_next_to_the_accumulator():
    """Also if both have the same dtype and extents."""
    check(128, 32, 32, "float32", tb=True, places="b", target="sm_100a", precision="tf32", variant="tcgen05")


@pytest.mark.parametrize("dtype,k", [("bfloat16", 64), ("float16", 192), ("float8_e4m3fn", 128), ("int8", 256)])
@pytest.mark.parametrize("ta,tb", [(True, True), (False, False), (True, False)])
def test_operands_may_be_mn_major(dtype, k, ta, tb):
    """Either major, also for one-byte elements."""
    check(128, 128, k, dtype, ta=ta, tb=tb, acc=ACCUMULATOR.get(dtype, "float32"), target="sm_100a", variant="tcgen05")


# -- loops -----------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def summed(A, B, C, D, n, outer, FROM: tile.constexpr, HOW: tile.constexpr):
    """Products of slices of two matrices in shared memory, accumulated in several kinds of loops."""
    sA, sB = tile.alloc((128, 64), A.dtype, layout=tile.auto), tile.alloc((32, 64), B.dtype, layout=tile.auto)
    tile.copy(sA, A[0:128, 0:64])
    tile.copy(sB, B[0:32, 0:64])
    halves_a, halves_b = tile.alloc((2, 128, 32), A.dtype, layout=tile.auto), tile.alloc((2, 32, 32), B.dtype, layout=tile.auto)
    if HOW == "parts":
        for h in tile.static_range(2):
            tile.copy(halves_a[h], A[0:128, h * 32:h * 32 + 32])
            tile.copy(halves_b[h], B[0:32, h * 32:h * 32 + 32])
    tile.sync()
    start = tile.zeros((128, 32)) if FROM == "zero" else tile.load(D[0:128, 0:32])
    acc, other = start, start
    if HOW == "for":
        for i in range(n):
            acc = tile.dot(sA, sB, acc, trans_b=True)
    elif HOW == "backwards":
        for i in range(n, 0, -1):
            acc = tile.dot(sA, sB, acc, trans_b=True)
    elif HOW == "while":
        i = 0
        while i < n:
            acc = tile.dot(sA, sB, acc, trans_b=True)
            i += 1
    elif HOW == "parts":
        for i in range(n):
            acc = tile.dot(halves_a[0], halves_b[0], acc, trans_b=True)
            acc = tile.dot(halves_a[1], halves_b[1], acc, trans_b=True)
    elif HOW == "nested":
        for o in range(outer):
            for i in range(n):
                acc = tile.dot(sA, sB, acc, trans_b=True)
    elif HOW == "scaled":
        for i in range(n):
            acc = tile.dot(sA, sB, acc * 0.5, trans_b=True)
    elif HOW == "branch":
        for i in range(n):
            if i % 2 == 1:
                acc = tile.dot(sA, sB, acc, trans_b=True)
    elif HOW == "two":
        for i in range(n):
            acc = tile.dot(sA, sB, acc, trans_b=True)
            other = tile.dot(sA, sB, other, trans_b=True)
        acc = acc + 2 * other
    elif HOW == "read":
        for i in range(n):
            acc = tile.dot(sA, sB, acc, trans_b=True)
            other = other + acc
        acc = other
    tile.store(C[0:128, 0:32], acc)


def expected(ab, d, n, outer, how):
    acc, other = d.astype(np.float64), d.astype(np.float64)
    if how in ("for", "backwards", "while", "parts"):
        return acc + n * ab
    if how == "nested":
        return acc + outer * n * ab
    if how == "branch":
        return acc + n // 2 * ab
    if how == "two":
        return 3 * (acc + n * ab)
    for _ in range(n):
        acc = (acc * 0.5 if how == "scaled" else acc) + ab
        other = other + acc
    return acc if how == "scaled" else other


HOWS = ("for", "backwards", "while", "parts", "nested", "scaled", "branch", "two", "read")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("begin", ["zero", "tile"])
def test_accumulation_in_loops_of_any_trip_count_is_right(how, begin):
    """0, 1 and more iterations, in every kind of loop, from zero or from a tile."""
    rng = np.random.default_rng(0)
    a, b, d = (rng.integers(-3, 4, s) for s in ((128, 64), (32, 64), (128, 32)))
    d = d * (begin == "tile")
    for n in (0, 1, 2, 5):
        c = np.full((128, 32), np.nan, np.float32)
        summed.simulate(1, a.astype(np.float16), b.astype(np.float16), c, d.astype(np.float32), n, 3, FROM=begin, HOW=how, seed=n, target="sm_100a").raise_first()
        np.testing.assert_array_equal(c, expected(a @ b.T, d, n, 3, how).astype(np.float32))


@pytest.mark.parametrize("how,begin,loads,stores", [("for", "zero", 1, 0), ("for", "tile", 1, 1), ("parts", "zero", 1, 0), ("while", "zero", 1, 1),
                                                    ("two", "zero", 2, 0), ("read", "zero", 1, 1), ("scaled", "zero", 1, 1)])
def test_accumulators_carried_by_a_loop_stay_in_tensor_memory(how, begin, loads, stores):
    """They are stored once before the loop, if at all, and loaded once after it."""
    specs = [tile.ArraySpec(s, t) for s, t in (((128, 64), "float16"), ((32, 64), "float16"), ((128, 32), "float32"), ((128, 32), "float32"))]
    made = summed.compile(*specs, 5, 3, FROM=begin, HOW=how, target="sm_103a")
    assert (made.graph.count("tmem_load("), made.graph.count("tmem_store(")) == (loads, stores)
    lines = made.graph.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(("  for ", "  do")))
    body = [*takewhile(lambda line: line.startswith("    "), lines[first + 1:])]
    assert any("tensor_mma(" in line for line in body) and any("tmem_load(" in line for line in body) == (how in ("read", "scaled"))
    assert {p.variant for p in made.products} == {"tcgen05"} and made.spills == 0


# -- pipelined loops ---------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def by_hand(A, B, C, STAGES: tile.constexpr, ROLES: tile.constexpr):
    """Products into tensor memory in a pipelined loop that does not wait for them."""
    sA, sB = tile.alloc((128, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), B.dtype, layout=tile.auto)
    acc = tile.alloc((128, 64), "float32", scope="tmem")
    done = tile.mbarrier()
    for k in tile.pipelined(range(0, A.shape[1], 64), stages=STAGES, warp_specialize=ROLES):
        tile.copy_async(sA, A[0:128, k:k + 64])
        tile.copy_async(sB, B[0:64, k:k + 64])
        with tile.elect():
            tile.mma_async(acc, sA, sB, trans_b=True, accumulate=k > 0)
    with tile.elect():
        tile.tcgen05_commit(done)
    done.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[0:128, 0:64], tile.load(acc))


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_products_written_by_hand_release_their_slots_by_commits(stages, roles):
    """Several rounds of the ring, in several orders of events."""
    for trips in sorted({1, stages, stages + 1, 2 * stages + 1}):
        rng = np.random.default_rng(trips)
        a, b = rng.standard_normal((128, 64 * trips)).astype(np.float16), rng.standard_normal((64, 64 * trips)).astype(np.float16)
        c = np.full((128, 64), np.nan, np.float32)
        by_hand.simulate(1, a, b, c, STAGES=stages, ROLES=roles, seed=trips, target="sm_100a").raise_first()
        close(c, a, b.T)


@tile.jit(num_warps=4)
def beside(A, B, X, C, D, n, ROLES: tile.constexpr):
    """A pipelined loop whose products read memory that it does not stage."""
    sA, sB = tile.alloc((128, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), B.dtype, layout=tile.auto)
    row, acc, done = tile.alloc((64,), X.dtype), tile.alloc((128, 64), "float32", scope="tmem"), tile.mbarrier()
    tile.copy(sA, A[0:128, 0:64])
    tile.copy(sB, B[0:64, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    total = tile.zeros((64,))
    for i in tile.pipelined(range(n), stages=3, warp_specialize=ROLES):
        tile.copy_async(row, X[i, 0:64])
        with tile.elect():
            tile.mma_async(acc, sA, sB, trans_b=True, accumulate=i > 0)
        total = total + tile.load(row)
    with tile.elect():
        tile.tcgen05_commit(done)
    done.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[0:128, 0:64], tile.load(acc))
    tile.store(D[0:64], total)


@pytest.mark.parametrize("roles", [False, True])
def test_slots_that_threads_read_are_released_by_threads(roles):
    """Products of other memory in the loop do not change that."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (128, 64)).astype(np.float16), rng.integers(-3, 4, (64, 64)).astype(np.float16)
    x, c, d = rng.integers(-9, 9, (7, 64)).astype(np.float32), np.zeros((128, 64), np.float32), np.zeros(64, np.float32)
    for seed in range(3):
        beside.simulate(1, a, b, x, c, d, 7, ROLES=roles, seed=seed, target="sm_100a").raise_first()
        np.testing.assert_array_equal(c, 7 * (a.astype(np.float32) @ b.astype(np.float32).T))
        np.testing.assert_array_equal(d, x.sum(axis=0))


@tile.jit(num_warps=4)
def read_too(A, C, D, STAGES: tile.constexpr, ROLES: tile.constexpr):
    """Threads read the slots that products read too."""
    s, acc, done = tile.alloc((128, 64), A.dtype, layout=tile.auto), tile.alloc((128, 64), "float32", scope="tmem"), tile.mbarrier()
    total = tile.zeros((128, 64))
    for k in tile.pipelined(range(0, A.shape[1], 64), stages=STAGES, warp_specialize=ROLES):
        tile.copy_async(s, A[0:128, k:k + 64])
        with tile.elect():
            tile.mma_async(acc, s, s[0:64, :], trans_b=True, accumulate=k > 0)
        total = total + tile.load(s)
    with tile.elect():
        tile.tcgen05_commit(done)
    done.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[0:128, 0:64], tile.load(acc))
    tile.store(D[0:128, 0:64], total)


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_slots_that_threads_and_products_read_are_released_by_both(stages, roles):
    """A slot is empty when its products have completed and the threads have read it."""
    a = np.random.default_rng(0).integers(-3, 4, (128, 64 * 7)).astype(np.float16)
    for seed in range(4):
        c, d = np.zeros((128, 64), np.float32), np.zeros((128, 64), np.float32)
        read_too.simulate(1, a, c, d, STAGES=stages, ROLES=roles, seed=seed, target="sm_100a").raise_first()
        np.testing.assert_array_equal(c, a.astype(np.float32) @ a[:64].astype(np.float32).T)
        np.testing.assert_array_equal(d, a.astype(np.float32).reshape(128, 7, 64).sum(axis=1))


def test_reading_an_accumulator_before_waiting_for_the_last_commit_is_found():
    """Products of a pipelined loop are still in flight when it ends."""
    @tile.jit(num_warps=4)
    def early(A, C):
        s = tile.alloc((128, 64), A.dtype, layout=tile.auto)
        acc = tile.alloc((128, 64), "float32", scope="tmem")
        for k in tile.pipelined(range(0, A.shape[1], 64), stages=2):
            tile.copy_async(s, A[0:128, k:k + 64])
            with tile.elect():
                tile.mma_async(acc, s, s[0:64, :], trans_b=True, accumulate=k > 0)
        tile.store(C[0:128, 0:64], tile.load(acc))
    with pytest.raises(SimulationError, match="tensor memory"):
        early.simulate(1, np.ones((128, 256), np.float16), np.zeros((128, 64), np.float32), target="sm_100a").raise_first()


@tile.jit(num_warps=4)
def several_tiles(A, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr, ROLES: tile.constexpr):
    sA, sB = tile.alloc((BM, BK), A.dtype, layout=tile.auto), tile.alloc((BK, BN), B.dtype, layout=tile.auto)
    for m, n in tile.tile_order(tile.cdiv(A.shape[0], BM), tile.cdiv(B.shape[1], BN)):
        acc = tile.zeros((BM, BN))
        for k in tile.pipelined(range(0, A.shape[1], BK), stages=STAGES, warp_specialize=ROLES):
            tile.copy_async(sA, A[m * BM:m * BM + BM, k:k + BK])
            tile.copy_async(sB, B[k:k + BK, n * BN:n * BN + BN])
            acc = tile.dot(sA, sB, acc)
        tile.store(C[m * BM:m * BM + BM, n * BN:n * BN + BN], tile.maximum(acc, 0))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 25), st.sampled_from([64, 128]), st.sampled_from([32, 64]),
       st.integers(1, 4), st.booleans(),
       st.sampled_from([4, 8]), st.integers(0, 99))
def test_persistent_products_of_any_extents_are_right(m, n, k, bm, bk, stages, roles, warps, seed):
    """Rings and barriers continue from tile to tile, and the loop of a tile may have no iteration."""
    n, k = 8 * n, 8 * k
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, max(k, 1))).astype(np.float16), rng.standard_normal((max(k, 1), n)).astype(np.float16)
    if not k:
        a, b = a[:, :0], b[:0]
    c = np.full((m, n), np.nan, np.float32)
    several_tiles.simulate(2, a, b, c, BM=bm, BN=64, BK=bk, STAGES=stages, ROLES=roles, num_warps=warps, seed=seed, target="sm_100a").raise_first()
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) * 2 * max(k, 1) * 2.0 ** -23 + 2.0 ** -25
    assert (np.abs(c - np.maximum(exact, 0)) <= bound).all()


@pytest.mark.parametrize("roles", [False, True])
def test_a_pipelined_loop_of_products_waits_for_none_of_them(roles):
    """Each iteration commits to its slot; one commit and one wait come after the loop, where the accumulator is loaded."""
    spec = tile.ArraySpec((4096, 4096), "bfloat16")
    made = several_tiles.compile(spec, spec, tile.ArraySpec((4096, 4096), "float32"), BM=128, BN=256, BK=64, STAGES=4, ROLES=roles, num_warps=8,
                                 target="sm_100a")
    assert made.ptx.count("tcgen05.commit") == 2 and made.graph.count("tmem_load(") == 1 and "tmem_store(" not in made.graph
    assert "ring_release" not in made.graph and made.spills == 0
    assert [p.variant for p in made.products] == ["tcgen05"] and {c.variant for c in made.copies} == {"tma"}


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("bm,d", [(128, 64), (128, 128), (64, 32)])
def test_attention_multiplies_from_tensor_memory(bm, d, roles):
    """The second product's `a` is a register tile: it goes to tensor memory without a layout conversion, and so does the
    rescaled accumulator."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, d)).astype(np.float16) for n in (150, 200, 200))
    out = np.zeros((150, d), np.float32)
    constants = dict(BM=bm, BN=64, D=d, STAGES=2, ROLES=roles, target="sm_100a")
    attention.simulate((3,), q, k, v, out, 0.125, **constants).raise_first()
    s = q.astype(np.float64) @ k.T.astype(np.float64) * 0.125
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    assert (np.abs(out - p @ v.astype(np.float64)) <= p @ np.abs(v.astype(np.float64)) * 2.0 ** -10).all()
    made = attention.compile(q, k, v, out, 0.125, **constants)
    assert {x.variant for x in made.products} == {"tcgen05"} and "convert_layout" not in made.graph
    assert [x.a.split(" in ")[1] for x in made.products] == ["shared memory", "tensor memory"]


# -- scopes, and what does not fit -----------------------------------------------------------------------------------------

@tile.jit(num_warps=8)
def side_by_side(A, B, C):
    sA, sB = tile.alloc((2, 128, 32), A.dtype, layout=tile.auto), tile.alloc((32, 32), B.dtype, layout=tile.auto)
    tile.copy(sA, A[0:2, 0:128, 0:32])
    tile.copy(sB, B[0:32, 0:32])
    tile.fence_proxy_async()
    tile.sync()
    for g in tile.static_range(2):
        with tile.warpgroup(g):
            acc = tile.zeros((128, 32))
            for i in range(g + 1):
                acc = tile.dot(sA[g], sB, acc)
            tile.store(C[g, 0:128, 0:32], acc)


@pytest.mark.parametrize("seed", range(4))
def test_warpgroups_multiply_concurrently(seed):
    """Each has its own tensor memory and barrier."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-3, 4, (2, 128, 32)).astype(np.float16), rng.integers(-3, 4, (32, 32)).astype(np.float16)
    c = np.zeros((2, 128, 32), np.float32)
    side_by_side.simulate(1, a, b, c, seed=seed, target="sm_100a").raise_first()
    np.testing.assert_array_equal(c, (a.astype(np.float32) @ b.astype(np.float32)) * np.array([1, 2])[:, None, None])
    assert [p.variant for p in side_by_side.compile(a, b, c, target="sm_100a").products] == ["tcgen05"] * 2


@pytest.mark.parametrize("options,words", [
    (dict(shape=(32, 32, 32)), "64 rows or a multiple of 128: 32 rows"),
    (dict(shape=(64, 264, 32)), "264 columns"),
    (dict(shape=(64, 32, 24)), "a multiple of 32 bytes along k: 48 bytes"),
    (dict(shape=(64, 16, 32), PLACES="a"), "b in shared memory: in registers"),
    (dict(num_warps=2), "whole warpgroups as the scope"),
    (dict(num_warps=12), "the sums, 64 by 64 of float32, cannot be divided among 3 warpgroups"),
    (dict(shape=(64, 48, 32), PLACES="b", max_shared=20000, num_warps=12), "a, 64 by 32 of bfloat16, cannot be divided among 3 warpgroups"),
    (dict(dtype="float32"), "they would be rounded to 10 bits"),
    (dict(dtype="int32", acc="int32"), "int32 by int32"),
    (dict(target="sm_120a"), "tensor memory: sm_100a or sm_103a"),
    (dict(target="sm_103a", dtype="int8", acc="int32"), "kind::i8 on sm_103a"),
    (dict(LAYOUT=None), "a: "),
])
def test_a_product_that_does_not_fit_in_tensor_memory_records_the_reason(options, words):
    """Also in the error of a call that requests the path."""
    options = {"target": "sm_100a", **options}
    made = compiled(**options)
    record, = made.products
    assert record.variant in ("mma_sync", "fma") and words in dict(record.declined)["tcgen05"]
    with pytest.raises(DispatchError) as caught:
        compiled(**options, VARIANT="tcgen05")
    assert words in str(caught.value)


def test_products_without_room_in_tensor_memory_are_left_to_the_warps():
    """Columns of the kernel's own buffers and of earlier products count; those of accumulators that are back in registers are reused."""
    @tile.jit(num_warps=4)
    def kernel(A, C, OWN: tile.constexpr):
        s = tile.alloc((128, 64), A.dtype, layout=tile.auto)
        tile.copy(s, A[0:128, 0:64])
        tile.sync()
        if OWN:
            mine = tile.alloc((128, OWN), "float32", scope="tmem")
            tile.store(mine, tile.zeros((128, OWN)))
        one = tile.dot(s, s[0:64, :], trans_b=True)
        other = tile.dot(s, s[0:64, :], one, trans_b=True)
        tile.store(C[0:128, 0:64], one + other)
    specs = tile.ArraySpec((128, 64), "float16"), tile.ArraySpec((128, 64), "float32")
    assert [p.variant for p in kernel.compile(*specs, OWN=0, target="sm_100a").products] == ["tcgen05", "tcgen05"]
    assert "at 0 of 64 columns" in kernel.compile(*specs, OWN=0, target="sm_100a").graph
    crowded = kernel.compile(*specs, OWN=480, target="sm_100a").products
    assert [p.variant for p in crowded] == ["mma_sync", "mma_sync"]
    assert "enough free tensor memory: 1024 columns" in dict(crowded[0].declined)["tcgen05"]


def test_the_products_of_a_slot_must_be_issued_by_one_elected_thread():
    """The compiler could not identify another thread as the one that commits."""
    @tile.jit(num_warps=4)
    def kernel(A):
        s = tile.alloc((128, 64), A.dtype, layout=tile.auto)
        acc = tile.alloc((128, 128), "float32", scope="tmem")
        for k in tile.pipelined(range(0, A.shape[1], 64), stages=2):
            tile.copy_async(s, A[0:128, k:k + 64])
            with tile.thread(5):
                tile.mma_async(acc, s, s, trans_b=True)
    with pytest.raises(CompilationError, match="start them in one thread"):
        kernel.compile(tile.ArraySpec((128, 640), "float16"), target="sm_100a")
