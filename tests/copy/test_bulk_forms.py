"""Every form of bulk and dsmem copies: dtypes, runs, cache policies, multicasts and prefetches, on the simulator and on the GPU."""

from itertools import cycle, product

import numpy as np
import pytest
import tilejit as tile
from box_kernels import POLICIES
from receivers import SIZES, awaited, masks
from values import PACKED, UNIT, WHOLE, any_bits, argument

from tests.cases import Case, compiled, on_gpu, on_simulator
from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
CLUSTERED = ("sm_90a", "sm_100a", "sm_103a")


@tile.jit(num_warps=2)
def there_and_back(A, B, AT: tile.constexpr, TO: tile.constexpr, M: tile.constexpr, N: tile.constexpr, PITCH: tile.constexpr,
                   CACHE: tile.constexpr = None, TOKENS: tile.constexpr = False):
    """A part of an array through padded rows of shared memory to a part of another array."""
    s = tile.alloc((M, N), A.dtype, layout=tile.TileLayout(((M, PITCH, "m"), (N, 1, "m"))) if PITCH else None)
    source, target = A[AT[0]:AT[0] + M, AT[1]:AT[1] + N], B[TO[0]:TO[0] + M, TO[1]:TO[1] + N]
    if TOKENS:
        tile.copy_async(s, source, variant="bulk", cache=CACHE).wait()
        tile.copy_async(target, s, variant="bulk", cache=CACHE).wait()
    else:
        bar = tile.mbarrier()
        with tile.elect():
            bar.arrive_expect_tx(source.nbytes)
            tile.copy_async(s, source, mbar=bar, variant="bulk", cache=CACHE)
            bar.wait(phase=0)
            tile.copy_async(target, s, variant="bulk", cache=CACHE)
            tile.bulk_commit()
            tile.bulk_wait(0)


def case(dtype, shape, at, to, box, pitch=0, **options) -> Case:
    """Columns are in units of 16 bytes (48 for 6-bit elements)."""
    wide = lambda x: (x[0], x[1] * UNIT[dtype])
    (m, n), at, to = wide(box), wide(at), wide(to)
    x, y = any_bits(dtype, wide(shape), 1), any_bits(dtype, wide(shape), 2)
    want = y.copy()
    want[to[0]:to[0] + m, to[1]:to[1] + n] = x[at[0]:at[0] + m, at[1]:at[1] + n]
    a, b, want = map(argument, (x, y, want))
    made = dict(AT=at, TO=to, M=m, N=n, PITCH=pitch * UNIT[dtype], **options)
    return Case(f"{dtype} {shape} {box} from {at} to {to}, pitch {pitch}, {options}", there_and_back, (1,), (a, b), {0: a, 1: want}, made)


def every_run():
    """Contiguous whole rows, parts of rows, rows with gaps in shared memory; with barriers and with tokens; cache policies."""
    for dtype in (*WHOLE, *PACKED):
        yield case(dtype, (9, 6), (0, 0), (1, 0), (8, 6))
        yield case(dtype, (9, 6), (1, 2), (0, 1), (7, 3), TOKENS=True)
        if dtype not in PACKED:
            yield case(dtype, (9, 6), (2, 1), (1, 3), (5, 2), pitch=3)
    for cache, tokens in product(POLICIES, (False, True)):
        yield case("float32", (9, 6), (1, 2), (0, 1), (7, 3), CACHE=cache, TOKENS=tokens)
    for kib in (64, 200):
        yield case("uint8", (kib, 64), (0, 0), (0, 0), (kib, 64))


@tile.jit(num_warps=1)
def multicast_runs(A, B, sender, mask, AT: tile.constexpr, M: tile.constexpr, N: tile.constexpr, CACHE: tile.constexpr):
    """One CTA of each cluster loads part of an array for those of the mask, in runs; the others keep zeros."""
    s = tile.alloc((M, N), A.dtype)
    bar = awaited(s, mask)
    if tile.cta_rank() == sender:
        with tile.elect():
            tile.copy_async(s, A[AT[0]:AT[0] + M, AT[1]:AT[1] + N], mbar=bar, multicast=mask, variant="bulk", cache=CACHE)
    bar.wait(phase=0)
    tile.copy(B[tile.program_id(0), 0:M, 0:N], s)


def every_multicast():
    """Every cluster size."""
    for ranks, dtype in zip(SIZES, cycle(("bool", "float8_e5m2", "int16", "bfloat16", "uint32", "float64"))):
        unit = UNIT[dtype]
        a = any_bits(dtype, (7, 5 * unit), 3)
        one = a[1:6, unit:4 * unit]
        for sender, mask in masks(ranks):
            want = np.stack([one if mask >> r % ranks & 1 else np.zeros_like(one) for r in range(2 * ranks)])
            yield Case(f"{dtype}, {ranks} CTAs, mask {mask:b}", multicast_runs, (2 * ranks,), (a, np.ones_like(want), sender, mask), {1: want},
                       dict(AT=(1, unit), M=5, N=3 * unit, CACHE="evict_last" if ranks % 4 == 0 else None, cluster=(ranks, 1, 1)))


@tile.jit(num_warps=2)
def prefetched_runs(A, B, row, M: tile.constexpr, N: tile.constexpr, CACHE: tile.constexpr):
    """Rows that are prefetched to L2 before they are read: as runs where they are known to be in bounds, otherwise line by line."""
    tile.prefetch(A[0:M, 0:N], cache=CACHE)
    tile.prefetch(A[row:row + M, 0:N])
    tile.copy(B[0:M, 0:N], A[row:row + M, 0:N])


def every_prefetch():
    for dtype, cache, row in product(("uint8", "bfloat16", "float32", "int64"), (None, "evict_first", ("evict_last", 0.5)), (0, 3, -2, 40)):
        columns = 512 // tile.dtypes.dtype_of(dtype).nbytes
        a = any_bits(dtype, (12, columns), 4)
        want = np.zeros((8, columns), a.dtype)
        low, high = max(row, 0), min(row + 8, 12)
        want[low - row:max(high, low) - row] = a[low:max(high, low)]
        yield Case(f"{dtype}, {cache}, row {row}", prefetched_runs, (1,), (a, np.ones_like(want), row), {0: a, 1: want}, dict(M=8, N=columns, CACHE=cache))


@tile.jit(num_warps=2)
def passed_to_peer(A, B, M: tile.constexpr, N: tile.constexpr, MODE: tile.constexpr, PITCH: tile.constexpr, STEP: tile.constexpr):
    """Every CTA of a cluster passes its rows to the one `STEP` after it."""
    mode = tile.swizzled(A.dtype, (M, N), MODE) if MODE else tile.TileLayout(((M, PITCH, "m"), (N, 1, "m")))
    mine, got = tile.alloc((M, N), A.dtype, layout=mode), tile.alloc((M, N), A.dtype, layout=mode)
    bar = tile.mbarrier()
    here, rank, size = tile.program_id(0), tile.cta_rank(), tile.cluster_size()
    tile.copy(mine, A[here, 0:M, 0:N])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(M * N * A.dtype.nbytes)
        tile.copy_async(got.peer((rank + STEP) % size), mine, mbar=bar, variant="dsmem")
    bar.wait(phase=0)
    tile.copy(B[here, 0:M, 0:N], got)


def every_handover():
    """Every dtype as one run, with gaps, and swizzled; every cluster size."""
    for n, (dtype, (mode, gap)) in enumerate(product(WHOLE, ((0, 0), (0, 1), (64, 0), (128, 0)))):
        unit, ranks = UNIT[dtype], 2 + n % 7
        a = any_bits(dtype, (2 * ranks, 8, 8 * unit), n)
        step = n % (ranks - 1) + 1
        want = np.roll(a.reshape(2, ranks, 8, 8 * unit), step, axis=1).reshape(a.shape)
        yield Case(f"{dtype}, swizzle {mode}, gap {gap}, {ranks} CTAs, {step} on", passed_to_peer, (2 * ranks,), (a, np.zeros_like(a)), {1: want},
                   dict(M=8, N=8 * unit, MODE=mode, PITCH=(8 + gap) * unit, STEP=step, cluster=(ranks, 1, 1)))


def test_runs_of_every_dtype_are_copied_in_and_out():
    """The rest of both arrays is unchanged."""
    cases = list(every_run())
    on_simulator(cases)
    assert {c.variant for k in map(compiled, cases) for c in k.copies} == {"bulk"}
    assert {c.plan.chunks for k in map(compiled, cases[:3]) for c in k.copies} == {1, 7, 5}


def test_a_multicast_of_runs_reaches_the_ctas_of_its_mask():
    cases = list(every_multicast())
    on_simulator(cases)
    assert all(".multicast::cluster" in compiled(c).ptx for c in cases[::7])


def test_rows_are_prefetched_to_l2_as_runs_and_line_by_line():
    cases = list(every_prefetch())
    on_simulator(cases)
    assert {tuple(c.variant for c in compiled(case).copies if c.op == "prefetch") for case in cases} == {("bulk", "lines")}


def test_a_cta_passes_rows_of_every_dtype_to_another_one():
    cases = list(every_handover())
    on_simulator(cases)
    assert {"dsmem"} == {c.variant for case in cases for c in compiled(case).copies if c.op == "copy_async"}


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_runs_of_every_dtype_are_copied_in_and_out_on_the_gpu():
    on_gpu([*every_run(), *every_prefetch()])


@needs_gpu(*CLUSTERED)
@in_child(timeout=240)
def test_multicasts_and_copies_of_runs_to_peers_are_right_on_the_gpu():
    on_gpu([*every_multicast(), *every_handover()])
