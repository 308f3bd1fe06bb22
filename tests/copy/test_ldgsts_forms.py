"""Every form of ldgsts: widths, edges, modifiers, scopes and completion mechanisms, on the simulator and on the GPU."""

from itertools import product
from math import gcd

import numpy as np
import pytest
import tilejit as tile
from values import any_bits

from tests.cases import Case, box_of, compiled, on_gpu, on_simulator, with_corner
from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")


@tile.jit
def brought(s, region, bar, DONE, CACHE, PREFETCH):
    """A copy by the threads of the scope, awaited by its token or group, or left to a barrier."""
    if DONE == "token":
        tile.copy_async(s, region, variant="ldgsts", cache=CACHE, prefetch=PREFETCH).wait()
    else:
        tile.copy_async(s, region, variant="ldgsts", cache=CACHE, prefetch=PREFETCH)
    if DONE == "noinc":
        bar.arrive_on_copies(noinc=True)
    elif DONE == "counted":
        bar.arrive_on_copies()
        bar.arrive()
    elif DONE == "group":
        tile.cp_async_commit()
        tile.cp_async_wait(0)


@tile.jit(num_warps=8)
def staged(A, B, row, column, UNIT: tile.constexpr, M: tile.constexpr, N: tile.constexpr, THREADS: tile.constexpr = 256,
           DONE: tile.constexpr = "group", CACHE: tile.constexpr = None, PREFETCH: tile.constexpr = None):
    """A box of `A` from a runtime position to the corner of `B`."""
    tile.assume(column % UNIT == 0)
    s = tile.alloc((M, N), A.dtype)
    bar = tile.mbarrier(count=THREADS if DONE == "noinc" else 1)
    region = A[row:row + M, column:column + N]
    if THREADS == 256:
        brought(s, region, bar, DONE, CACHE, PREFETCH)
    elif THREADS == 128:
        with tile.warpgroup(1):
            brought(s, region, bar, DONE, CACHE, PREFETCH)
    elif THREADS == 32:
        with tile.warp(5):
            brought(s, region, bar, DONE, CACHE, PREFETCH)
    else:
        with tile.thread(77):
            brought(s, region, bar, DONE, CACHE, PREFETCH)
    if DONE == "noinc" or DONE == "counted":
        bar.wait(phase=0)
    else:
        tile.sync()
    tile.copy(B[0:M, 0:N], s)


def case(dtype="float16", extents=(32, 64), shape=(40, 96), at=(0, 0), parts=None, **options) -> Case:
    """The box at a position of an array of which the kernel gets only `parts`."""
    whole, target = any_bits(dtype, (shape[0] + 3, shape[1] + 8), 1), any_bits(dtype, (25, extents[1] + 5), 2)
    part = parts or (slice(0, shape[0]), slice(0, shape[1]))
    want = target.copy()
    inside = (slice(2, 24), slice(1, extents[1] - 2))
    want[inside] = with_corner(target[inside], box_of(whole[part], at, extents))
    name = f"{dtype} {extents} at {at} of {part}, {options}"
    return Case(name, staged, (1,), (whole, target, *at), {0: whole, 1: want},
                dict(UNIT=gcd(at[1], 16), M=extents[0], N=extents[1], **options), {0: part, 1: inside})


def edges():
    """Odd rows and columns, starts before the array and past its end, and arrays with odd starts and ends."""
    for dtype, unit in (("float16", 2), ("float32", 1), ("int8", 4), ("float64", 1), ("bool", 4), ("bfloat16", 4), ("int64", 2), ("float8_e5m2", 8)):
        columns = 24 * unit
        for left in (0, unit):                               # offset of the array
            for right in (0, unit):                          # and how many of its last 24 units are missing
                part = (slice(1, 30), slice(left, left + 2 * columns - right))
                for at in ((0, 0), (-3, columns + unit), (13, -unit), (40, columns)):
                    yield case(dtype, (16, columns), (40, 3 * columns), at, part)


POLICIES = ("evict_first", "evict_last", "evict_normal", ("evict_first", 0.5), ("evict_last", 0.25, "evict_first"), ("evict_normal", 0.125),
            ("evict_unchanged", 0.5, "evict_first"))


def modifiers():
    """Cache operators, cache policies and L2 prefetch sizes, at every width."""
    for cache, prefetch in product((None, "ca", "cg", *POLICIES), (None, 64, 128, 256)):
        yield case(at=(8, 32), CACHE=cache, PREFETCH=prefetch)
    for pitch, cache, prefetch in product((100, 98), (None, "ca", *POLICIES[:4]), (None, 64, 128, 256)):
        yield case(shape=(40, pitch), at=(8, 32), parts=(slice(0, 40), slice(0, pitch - 8)), CACHE=cache, PREFETCH=prefetch)


def scopes():
    """By every scope, awaited in every way, with and without a ragged edge, at every width."""
    for threads, done, (pitch, extents) in product((256, 128, 32, 1), ("group", "token", "noinc", "counted"),
                                              ((96, (8, 64)), (96, (5, 32)), (98, (9, 32)))):
        yield case(extents=extents, shape=(12, pitch), at=(7, 32), parts=(slice(0, 12), slice(0, pitch - 2)), THREADS=threads, DONE=done)


@tile.jit
def in_phases(A, B, TRIPS: tile.constexpr, NOINC: tile.constexpr):
    """Two slots, filled by one warpgroup and read by another, with barriers that pass through many phases."""
    s = tile.alloc((2, 32, 64), A.dtype)
    full = tile.mbarrier(count=128 if NOINC else 1, n=2)
    empty = tile.mbarrier(count=1, n=2)
    with tile.warpgroup(0):
        for k in range(TRIPS):
            empty[k % 2].wait(phase=k // 2 + 1)
            tile.copy_async(s[k % 2], A[32 * k:32 * k + 32, 0:64])
            full[k % 2].arrive_on_copies(noinc=NOINC)
            if not NOINC:
                full[k % 2].arrive()
    with tile.warpgroup(1):
        for k in range(TRIPS):
            full[k % 2].wait(phase=k // 2)
            tile.copy(B[32 * k:32 * k + 32, 0:64], s[k % 2])
            empty[k % 2].arrive()


def phases():
    for dtype, noinc, trips in (("float16", True, 1), ("float16", False, 1), ("float16", True, 37), ("float16", False, 37), ("int8", True, 0)):
        a, b = any_bits(dtype, (32 * 36 + 9, 64), 3), any_bits(dtype, (32 * 36 + 9, 64), 4)
        rows = min(32 * trips, len(a))
        want = np.concatenate([a[:rows], b[rows:]])
        yield Case(f"{trips} trips of {dtype}, noinc={noinc}", in_phases, (1,), (a, b), {0: a, 1: want}, dict(TRIPS=trips, NOINC=noinc, num_warps=8))


def test_a_box_is_copied_exactly_for_every_width_and_every_end_of_the_array():
    """Zeros outside; nothing beside the destination is written. Covers every width."""
    cases = list(edges())
    on_simulator(cases)
    assert {plan_of(c).vec_bytes for c in cases[::4]} == {16, 8, 4}


def plan_of(c: Case):
    return next(copy.plan for copy in compiled(c).copies if copy.op == "copy_async")


def test_modifiers_do_not_change_the_data():
    """Cache operators, policies and prefetch sizes are hints; each appears in the PTX."""
    cases = list(modifiers())
    on_simulator(cases)
    ptx = "".join(compiled(c).ptx for c in cases[::9])
    assert all(f"L2::{n}B" in ptx for n in (64, 128, 256)) and "L2::cache_hint" in ptx and "createpolicy.fractional" in ptx
    assert {plan_of(c).vec_bytes for c in cases[::13]} == {16, 8, 4}


def test_copies_that_bypass_l1_use_16_bytes_even_if_threads_idle():
    """Others keep all threads busy with narrower copies, which cannot bypass L1."""
    source, target = (tile.BufferSpec((8, 64), "float16", scope) for scope in ("global", "shared"))
    widths = {cache: tile.plan_copy(target, source, scope="cta", threads=128, cache=cache).plan.vec_bytes for cache in (None, "ca", "cg")}
    assert widths == {None: 8, "ca": 8, "cg": 16}
    on_simulator([case("float16", (8, 64), (8, 64), (0, 0), CACHE="cg")])


def test_every_scope_can_copy_and_every_completion_mechanism_makes_the_bytes_visible():
    """One warpgroup, warp or thread of eight warps; groups, tokens, and both kinds of arrival on a barrier."""
    on_simulator(scopes())


def test_a_barrier_that_copies_arrive_on_passes_through_its_phases():
    on_simulator(phases())


@needs_gpu()
@in_child(timeout=240)
def test_a_box_is_copied_exactly_for_every_width_and_every_end_of_the_array_on_the_gpu():
    on_gpu(edges())


@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=240)
def test_modifiers_scopes_and_completion_mechanisms_of_ldgsts_are_right_on_the_gpu():
    on_gpu([*modifiers(), *scopes(), *phases()])
