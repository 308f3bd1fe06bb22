"""Maps that kernels edit, in global and in shared memory: alternately, for a cluster and a grid, field by field."""

from itertools import product

import numpy as np
import tilejit as tile
from named_map_kernels import across_the_grid, rebound, rows_by
from reduced import combined

from tests.cases import Case, compiled, on_gpu, on_simulator
from tests.gpu import in_child, needs_gpu

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
CLUSTERED = ("sm_90a", "sm_100a", "sm_103a")
EDITS = ("global", "shared")
SCOPES = ("cta", "cluster", "gpu", "sys")


@tile.jit(num_warps=1)
def in_turn(A, B, slots, out, ROUNDS: tile.constexpr, SCOPE: tile.constexpr, EDIT: tile.constexpr):
    """One map, bound to two arrays alternately: each copy must use the latest edit, not a cached descriptor."""
    s = tile.alloc((8, 64), A.dtype)
    bar = tile.mbarrier()
    m = tile.tensor_map(A[0:8, 0:64], slot=slots[0, 0:128], edit=EDIT)
    with tile.elect():
        m.seed()
    for k in range(ROUNDS):
        if k % 2 == 0:
            rebound(m, A, SCOPE, EDIT, SEED=False)
        else:
            rebound(m, B, SCOPE, EDIT, SEED=False)
        tile.store(out[8 * k:8 * k + 8, 0:64], rows_by(m, s, bar, 8 * k, SCOPE, k))
        tile.fence_proxy_async()
        tile.sync()


@tile.jit(cluster=(2, 1, 1), num_warps=1)
def rebound_to_both(template, A, B, slots, KIND: tile.constexpr, EDIT: tile.constexpr):
    """A multicast with a map edited by rank 0, and a reduction on the way out with another map edited by rank 1."""
    rank = tile.cta_rank()
    s = tile.alloc((8, 64), A.dtype)
    bar = tile.mbarrier()
    a = tile.tensor_map(template[0:8, 0:64], slot=slots[0, 0:128], edit=EDIT)
    b = tile.tensor_map(template[0:8, 0:64], slot=slots[1, 0:128], edit=EDIT)
    if rank == 0:
        rebound(a, A, "cluster", EDIT)
    else:
        rebound(b, B, "cluster", EDIT)
    bar.arrive_expect_tx(s.nbytes)
    tile.cluster_sync()
    if rank == 0:
        with tile.elect():
            a.fence_acquire("cluster")
            tile.copy_async(s, a[8:16, 64:128], mbar=bar, multicast=3, cache="evict_first")
    bar.wait(phase=0)
    with tile.elect():
        b.fence_acquire("cluster")
        tile.copy_async(b[0:8, 0:64], s, reduce=KIND)
        tile.bulk_commit()
        tile.bulk_wait(0)


def numbers(shape, seed: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 99, shape).astype(dtype)


def by_turns():
    """Every fence scope: each is wide enough for one CTA."""
    for edit, scope in product(EDITS, SCOPES):
        a, b = numbers((8 * 101, 64), 1), numbers((8 * 101, 96), 2)
        want = np.where((np.arange(8 * 100) // 8 % 2 == 0)[:, None], a[:800], b[:800, :64])
        yield Case(f"{edit}, {scope}", in_turn, (1,), (a, b, np.zeros((1, 128), np.uint8), np.zeros((800, 64), np.float32)), {3: want},
                   dict(ROUNDS=100, SCOPE=scope, EDIT=edit))


def for_a_cluster():
    for edit, kind, dtype in (("global", "add", "float32"), ("shared", "add", "float32"), ("shared", "max", "int32"), ("global", "xor", "uint32")):
        a, b = numbers((16, 128), 3, dtype), numbers((7, 72), 4, dtype)
        want = b.copy()
        want[:, :64] = combined(kind, np.stack([a[8:15, 64:]] * 2), b[:, :64])
        yield Case(f"{edit}, {kind} of {dtype}", rebound_to_both, (2,), (np.zeros((8, 64), dtype), a, b, np.zeros((2, 128), np.uint8)), {2: want},
                   dict(KIND=kind, EDIT=edit))


def for_a_grid(ctas: int):
    for edit, scope in product(EDITS, ("gpu", "sys")):
        a = numbers((ctas * 8, 64), 5)
        yield Case(f"{edit}, {scope}", across_the_grid, (ctas,),
                   (np.zeros((8, 64), np.float32), a, np.zeros((1, 128), np.uint8), np.zeros(1, np.int32),
                                                                  np.zeros_like(a)), {4: a}, dict(SCOPE=scope, EDIT=edit))


def test_each_copy_uses_the_latest_edit_of_its_map():
    on_simulator(by_turns())


def test_maps_edited_by_different_ctas_of_a_cluster_multicast_and_reduce():
    on_simulator(for_a_cluster())


def test_a_flag_publishes_a_map_to_the_grid_wherever_it_was_edited():
    on_simulator(for_a_grid(4))
    made = [compiled(c).ptx for c in for_a_grid(4)]
    assert [("tensormap.cp_fenceproxy" in text, "fence.proxy.tensormap::generic.release" in text) for text in made] == [(False, True)] * 2 + [(True, False)] * 2


@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_each_copy_uses_the_latest_edit_of_its_map_on_the_gpu():
    on_gpu([*by_turns(), *for_a_grid(64)])


@needs_gpu(*CLUSTERED)
@in_child(timeout=120)
def test_maps_edited_by_different_ctas_of_a_cluster_multicast_and_reduce_on_the_gpu():
    on_gpu(for_a_cluster())
