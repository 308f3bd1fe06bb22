"""Completion tokens: the right wait for every path, in straight-line code, loops, branches and helpers."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError

pytestmark = pytest.mark.usefixtures("assembled_later")

RNG = np.random.default_rng(5)
PATHS = ("ldgsts", "tma", "bulk")


@tile.jit(num_warps=4)
def stage_any(A, B):
    sA = tile.alloc((128, 32), A.dtype, scope="shared")
    done = tile.copy_async(sA, A[0:128, 0:32])
    done.wait()
    tile.copy(B[0:128, 0:32], sA)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_one_source_stages_a_tile_on_every_target(target):
    """Whatever the path, the tile is there after the wait."""
    a = RNG.standard_normal((128, 32)).astype(np.float16)
    b = np.zeros_like(a)
    assert not stage_any.simulate((1,), a, b, target=target).findings and (a == b).all()
    stage_any.compile(a, b, target=target)


def test_a_token_of_ordinary_loads_and_stores_includes_their_barrier():
    """Odd bytes, which no asynchronous path supports."""
    a = RNG.integers(0, 255, (130, 33), np.uint8)
    b = np.zeros((128, 32), np.uint8)
    assert not stage_any.simulate((1,), a, b).findings and (a[:128, :32] == b).all()
    assert stage_any.compile(a, b).copies[0].variant == "vector"


@tile.jit
def both_ways(A, B, PATH: tile.constexpr):
    s = tile.alloc((128, 32), A.dtype)
    tile.copy_async(s, A[0:128, 0:32], variant=PATH).wait()
    v = tile.load(s)
    tile.sync()
    tile.store(s, v * 2)
    out = tile.copy_async(B[0:128, 0:32], s, variant=None if PATH == "ldgsts" else PATH)
    out.wait()
    tile.store(s, tile.zeros((128, 32), A.dtype))


@tile.jit
def multiplied(A, B, C):
    sA, sB = tile.alloc((64, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), B.dtype, layout=tile.auto)
    a, b = tile.copy_async(sA, A[0:64, 0:64]), tile.copy_async(sB, B[0:64, 0:64])
    a.wait()
    b.wait()
    acc = tile.mma_async(None, sA, sB)
    tile.mma_commit()
    tile.mma_wait(0)
    tile.store(C[0:64, 0:64], acc)


@tile.jit
def passed_on(A, B, C):
    s = tile.alloc((64, 64), A.dtype)
    tile.copy_async(s, A[0:64, 0:64]).wait()
    with tile.elect():
        tile.copy_async(C[0:64, 0:64], s, variant="tma")
        tile.bulk_commit()
        tile.bulk_wait(0)


@pytest.mark.parametrize("kernel", [multiplied, passed_on])
@pytest.mark.parametrize("columns,path", [(64, "ldgsts"), (61, "vector")])
@pytest.mark.filterwarnings("ignore::tilejit.TileWarning")
def test_waiting_for_a_copy_by_threads_includes_the_proxy_fence(kernel, columns, path):
    a, b = (RNG.integers(-2, 3, shape).astype(np.float16) for shape in ((64, columns), (columns, columns)))
    c = np.zeros((64, 64), np.float32 if kernel is multiplied else np.float16)
    kernel.simulate(1, a, b, c, target="sm_90a").raise_first()
    want = a @ b if kernel is multiplied else a
    assert kernel.compile(a, b, c, target="sm_90a").copies[0].variant == path and (c[:, :columns] == want).all()


def test_a_product_has_one_fence_and_barrier_per_token_and_there_is_no_fence_if_only_threads_read():
    @tile.jit
    def product(A, C):
        s = tile.alloc((64, 64), A.dtype, layout=tile.auto)
        tile.copy_async(s, A[0:64, 0:64]).wait()
        tile.store(C[0:64, 0:64], tile.dot(s, s))

    square = tile.ArraySpec((64, 64), "float16")
    graph = str(product.compile(square, square, target="sm_90a").graph)
    assert graph.count("fence_proxy_async()") == graph.count(" sync()") == 1
    array = tile.ArraySpec((128, 32), "float16")
    assert "fence_proxy_async" not in str(stage_any.compile(array, array, target="sm_90a").graph)


@pytest.mark.parametrize("path", PATHS)
def test_a_load_and_a_store_complete_by_their_tokens(path):
    """The compiler inserts the proxy fence and the barriers of both."""
    a = RNG.standard_normal((128, 32)).astype(np.float16)
    b = np.zeros_like(a)
    for seed in range(4):
        assert not both_ways.simulate((1,), a, b, PATH=path, seed=seed).findings
        assert (b == a * 2).all()
    ptx = both_ways.compile(a, b, PATH=path).ptx
    assert ("cp.async.wait_group 0;" in ptx) == (path == "ldgsts") and "cp.async.bulk.wait_group 0;" in ptx


@tile.jit
def reused(A, B):
    s = tile.alloc((128, 32), A.dtype)
    tile.store(s, tile.load(A[0:128, 0:32]))
    out = tile.copy_async(B[0:128, 0:32], s)
    out.wait(read=True)
    tile.store(s, tile.zeros((128, 32), A.dtype))


def test_a_wait_with_read_frees_only_the_source():
    """``.read`` in the PTX; then the source may be overwritten."""
    a = RNG.standard_normal((128, 32)).astype(np.float16)
    b = np.zeros_like(a)
    assert not reused.simulate((1,), a, b).findings and (a == b).all()
    assert "cp.async.bulk.wait_group.read 0;" in reused.compile(a, b).ptx


@tile.jit
def pipelined(A, B, PATH: tile.constexpr):
    s = tile.alloc((4, 128, 32), A.dtype)
    n = A.shape[0] // 128
    t0 = tile.copy_async(s[0], A[0:128, 0:32], variant=PATH)
    t1 = tile.copy_async(s[1], A[128:256, 0:32], variant=PATH)
    for k in range(n):
        t2 = tile.copy_async(s[(k + 2) % 4], A[(k + 2) * 128:(k + 3) * 128, 0:32], variant=PATH)
        t0.wait()
        tile.copy(B[k * 128:(k + 1) * 128, 0:32], s[k % 4])
        t0, t1 = t1, t2
    t0.wait()
    t1.wait()


@pytest.mark.parametrize("path", ["ldgsts", "tma"])
def test_tokens_can_be_carried_by_a_loop_that_stays_two_copies_ahead(path):
    """Two groups may stay pending; or four barriers are used in rotation, with the parity carried by the loop."""
    a = RNG.standard_normal((9 * 128, 32)).astype(np.float16)
    for seed in range(4):
        b = np.zeros_like(a)
        assert not pipelined.simulate((1,), a, b, PATH=path, seed=seed).findings
        assert (a == b).all()
    for target in ("sm_90a", "sm_100a", "sm_120a"):
        ptx = pipelined.compile(a, b, PATH=path, target=target).ptx
    if path == "ldgsts":
        assert [n for n in range(4) if f"cp.async.wait_group {n};" in ptx] == [0, 1, 2]
    else:
        assert ptx.count("mbarrier.init.shared::cta.b64") == 4


@tile.jit
def elected(A, B, PATH: tile.constexpr):
    s = tile.alloc((32, 32), A.dtype)
    for k in range(A.shape[0] // 32):
        tile.sync()
        with tile.elect():
            token = tile.copy_async(s, A[k * 32:(k + 1) * 32, 0:32], variant=PATH)
        token.wait()
        tile.copy(B[k * 32:(k + 1) * 32, 0:32], s)
        tile.fence_proxy_async()


@pytest.mark.parametrize("path", ["ldgsts", "tma"])
def test_the_cta_can_wait_for_a_token_of_one_thread(path):
    """The number of the copy is known outside the scope that issues it."""
    a = RNG.standard_normal((3 * 32, 32)).astype(np.float16)
    b = np.zeros_like(a)
    assert not elected.simulate((1,), a, b, PATH=path).findings and (a == b).all()
    elected.compile(a, b, PATH=path)


@tile.jit
def fetch(s, A, row, PATH: tile.constexpr):
    return tile.copy_async(s, A[row:row + 128, 0:32], variant=PATH)


@tile.jit
def in_branches(A, B, n, PATH: tile.constexpr):
    s = tile.alloc((128, 32), A.dtype)
    u = tile.alloc((128, 32), A.dtype)
    for k in range(4):
        if k < n:
            pair = (fetch(s, A, 0, PATH), fetch(u, A, k * 128, PATH))
        else:
            pair = (fetch(s, A, 128, PATH), fetch(u, A, 0, PATH))
        for i in tile.static_range(2):
            pair[i].wait()
        tile.store(B[k * 128:(k + 1) * 128, 0:32], tile.load(s) + tile.load(u))
        tile.sync()


@pytest.mark.parametrize("path", ["ldgsts", "tma"])
def test_tokens_can_leave_branches_helpers_and_tuples(path):
    """Both branches issue the same number of copies, or the wait allows for either number."""
    a = RNG.standard_normal((512, 32)).astype(np.float16)
    b = np.zeros_like(a)
    assert not in_branches.simulate((1,), a, b, 2, PATH=path).findings
    rows = a.reshape(4, 128, 32)
    assert (b.reshape(4, 128, 32) == np.stack([rows[0] + rows[0], rows[0] + rows[1], rows[1] + rows[0], rows[1] + rows[0]])).all()


def expect_error(kernel, words: str, *arrays, **meta):
    arrays = arrays or (np.zeros((1024, 32), np.float16),) * 2
    with pytest.raises(CompilationError, match=words):
        kernel.compile(*arrays, **meta)


@tile.jit
def mixed(A, B):
    s = tile.alloc((128, 32), A.dtype)
    done = tile.copy_async(s, A[0:128, 0:32])
    tile.cp_async_wait(0)
    done.wait()


@tile.jit
def far(A, B):
    s = tile.alloc((128, 32), A.dtype)
    first = tile.copy_async(s, A[0:128, 0:32], variant="tma")
    for k in range(A.shape[0] // 128):
        tile.copy_async(s, A[0:128, 0:32], variant="tma").wait()
    first.wait()


@tile.jit
def on_a_barrier(A, B):
    s = tile.alloc((128, 32), A.dtype)
    bar = tile.mbarrier()
    done = tile.copy_async(s, A[0:128, 0:32], mbar=bar)
    done.wait()


@tile.jit
def narrower(A, B):
    s = tile.alloc((128, 32), A.dtype)
    done = tile.copy_async(s, A[0:128, 0:32])
    with tile.warp(0):
        done.wait()


def test_invalid_uses_of_tokens_are_errors():
    """Manual group waits beside them, too many copies in between, mbar=, a wait in a narrower scope."""
    expect_error(mixed, "counts groups by hand, in a scope whose copies give tokens")
    expect_error(far, "the number of copies issued between this token's copy and its wait is not known")
    expect_error(on_a_barrier, "a copy with mbar= completes on that barrier")
    expect_error(narrower, "waited for in the scope that issued its copy, or in a wider one")


@tile.jit(num_warps=8)
def by_each_warpgroup(A, B, PATH: tile.constexpr):
    s = tile.alloc((2, 64, 32), A.dtype)
    with tile.each_warpgroup(range(2)) as g:
        with tile.elect():
            done = tile.copy_async(s[g], A[g * 64:g * 64 + 64, 0:32], variant=PATH)
        done.wait()
        tile.copy(B[g * 64:g * 64 + 64, 0:32], s[g])


@tile.jit(num_warps=12)
def ahead_in_each_warpgroup(A, B, n, PATH: tile.constexpr):
    s = tile.alloc((2, 2, 16, 64), A.dtype)
    for i in range(n):
        with tile.each_warpgroup(range(1, 3)) as w:
            g, at = w - 1, (2 * i + w - 1) * 48
            first = tile.copy_async(s[g, 0], A[at:at + 16, 0:64], variant=PATH)
            second = tile.copy_async(s[g, 1], A[at + 16:at + 32, 0:64], variant=PATH)
            first.wait()
            tile.store(B[at:at + 16, 0:64], tile.load(s[g, 0]))
            tile.sync()
            third = tile.copy_async(s[g, 0], A[at + 32:at + 48, 0:64], variant=PATH)
            second.wait()
            tile.store(B[at + 16:at + 32, 0:64], tile.load(s[g, 1]))
            third.wait()
            tile.store(B[at + 32:at + 48, 0:64], tile.load(s[g, 0]))
            tile.sync()


@pytest.mark.parametrize("path", ["ldgsts", "tma"])
def test_each_of_several_warpgroups_waits_for_its_own_copies(path):
    """Several ahead, in an outer loop; by groups, or by barriers of each warpgroup."""
    a = RNG.standard_normal((288, 64)).astype(np.float16)
    for seed in range(4):
        b = np.zeros_like(a)
        assert not ahead_in_each_warpgroup.simulate((1,), a, b, 3, PATH=path, seed=seed).findings and (a == b).all()
    for target in ("sm_90a", "sm_100a", "sm_120a"):
        made = ahead_in_each_warpgroup.compile(a, b, 3, PATH=path, target=target)
        assert {c.variant for c in made.copies if c.op == "copy_async"} == {path}


@tile.jit(num_warps=8)
def awaited_by_all(A, B, PATH: tile.constexpr):
    s = tile.alloc((2, 64, 32), A.dtype)
    with tile.each_warpgroup(range(2)) as g:
        done = tile.copy_async(s[g], A[g * 64:g * 64 + 64, 0:32], variant=PATH)
    done.wait()
    tile.copy(B[0:128, 0:32], s.reshape((128, 32)))


@tile.jit(num_warps=8)
def by_barriers_of_each_warpgroup(A, B):
    s, bars = tile.alloc((2, 64, 32), A.dtype), tile.mbarrier(n=2)
    with tile.each_warpgroup(range(2)) as g:
        with tile.elect():
            bars[g].arrive_expect_tx(s[g].nbytes)
            tile.copy_async(s[g], A[g * 64:g * 64 + 64, 0:32], mbar=bars[g])
        bars[g].wait(phase=0)
        tile.copy(B[g * 64:g * 64 + 64, 0:32], s[g])


@tile.jit
def in_another_warp(A, B):
    s = tile.alloc((128, 32), A.dtype)
    one, two = A.shape[1] // 32, A.shape[1] // 16
    with tile.warp(one):
        done = tile.copy_async(s, A[0:128, 0:32])
    with tile.warp(two):
        done.wait()


@tile.jit
def mixed_in_a_warp(A, B):
    s = tile.alloc((128, 32), A.dtype)
    w = A.shape[1] // 32
    with tile.warp(w):
        done = tile.copy_async(s, A[0:128, 0:32])
        tile.cp_async_wait(0)
        done.wait()


def test_tokens_of_a_scope_chosen_at_run_time_belong_to_its_threads():
    """Each thread counts its own groups. With barriers, a wait of a wider scope would not know which warpgroup's barrier to use."""
    a = RNG.standard_normal((128, 32)).astype(np.float16)
    b = np.zeros_like(a)
    for kernel, path in ((by_each_warpgroup, "ldgsts"), (by_each_warpgroup, "tma"), (awaited_by_all, "ldgsts")):
        b[:] = 0
        assert not kernel.simulate((1,), a, b, PATH=path).findings and (a == b).all()
    expect_error(awaited_by_all, r"which threads issue this copy is known at run time only.* as in bars = tile.mbarrier\(n=2\)", a, b, PATH="tma")
    b[:] = 0
    assert not by_barriers_of_each_warpgroup.simulate((1,), a, b, target="sm_90a").findings and (a == b).all()
    expect_error(in_another_warp, "waited for in the scope that issued its copy, or in a wider one")
    expect_error(mixed_in_a_warp, "counts groups by hand, in a scope whose copies give tokens")


@tile.jit
def forgotten(A, B):
    s = tile.alloc((128, 32), A.dtype)
    done = tile.copy_async(s, A[0:128, 0:32])
    tile.copy(B[0:128, 0:32], s)  # finds: missing-wait
    done.wait()


def test_reading_before_the_wait_is_found():
    """The simulator treats a token's copy like any other."""
    a = np.ones((128, 32), np.float16)
    kinds = {f.kind for f in forgotten.simulate((1,), a, a.copy()).findings}
    assert kinds & {"missing-wait", "race"}


def test_a_call_whose_result_is_unused_is_committed_by_hand():
    """Without a token, the compiler inserts no commit."""
    @tile.jit
    def by_hand(A, B):
        s = tile.alloc((128, 32), A.dtype)
        tile.copy_async(s, A[0:128, 0:32])
        tile.cp_async_commit()
        tile.cp_async_wait(0)
        tile.sync()
        tile.copy(B[0:128, 0:32], s)

    a = RNG.standard_normal((128, 32)).astype(np.float16)
    b = np.zeros_like(a)
    assert not by_hand.simulate((1,), a, b).findings and (a == b).all()
    assert by_hand.compile(a, b).ptx.count("cp.async.commit_group") == 1


def test_a_helper_in_an_argument_does_not_make_the_result_used():
    """The statements of the helper do not use the copy's result."""
    @tile.jit
    def half(n):
        tile.assume(n >= 0)
        return n // 2

    @tile.jit
    def by_hand(A, B):
        s = tile.alloc((2, 128, 32), A.dtype)
        tile.copy_async(s[half(tile.program_id(0))], A[0:128, 0:32])
        tile.cp_async_commit()
        tile.cp_async_wait(0)
        tile.sync()
        tile.copy(B[0:128, 0:32], s[0])

    a = RNG.standard_normal((128, 32)).astype(np.float16)
    b = np.zeros_like(a)
    assert not by_hand.simulate((1,), a, b).findings and (a == b).all()


# -- bytes announced by hand -----------------------------------------------------------------------------------------------

@tile.jit
def announced(A, B, NBYTES: tile.constexpr, LOOP: tile.constexpr):
    s = tile.alloc((2, 64, 32), A.dtype)
    bar = tile.mbarrier(n=2)
    for k in tile.static_range(2):
        with tile.elect():
            bar[k].arrive_expect_tx(NBYTES)
            if LOOP:
                for i in range(2):
                    tile.copy_async(s[k, i * 32:(i + 1) * 32, 0:32], A[i * 32:(i + 1) * 32, 0:32], mbar=bar[k])
            else:
                tile.copy_async(s[k, 0:32, 0:32], A[0:32, 0:32], mbar=bar[k])
                tile.copy_async(s[k, 32:64, 0:32], A[32:64, 0:32], mbar=bar[k])
        bar[k].wait(phase=0)
    tile.copy(B[0:64, 0:32], s[1])


def test_announcing_other_bytes_than_the_copies_transfer_is_a_compile_error():
    """Within one block; loops are left to the simulator."""
    a = RNG.standard_normal((64, 32)).astype(np.float16)
    b = np.zeros_like(a)
    for loop in (False, True):
        assert not announced.simulate((1,), a, b, NBYTES=4096, LOOP=loop).findings and (a == b).all()
    expect_error(announced, "2048 bytes are announced, and the copies on this barrier transfer 4096", a, b, NBYTES=2048, LOOP=False)
    assert {f.kind for f in announced.simulate((1,), a, b, NBYTES=2048, LOOP=True).findings} == {"transaction-count"}


@tile.jit(num_warps=4)
def stage_after_a_loop(A, B, n, zero):
    with tile.warp(0):
        for i in range(zero, n):
            first = tile.alloc((4, 8), tile.int32)
            tile.copy_async(first, A[i * 4:i * 4 + 4, 0:8]).wait()
            tile.copy(B[i * 4:i * 4 + 4, 0:8], first)
            tile.sync()
        for i in tile.static_range(2):
            last = tile.alloc((4, 8), tile.int32)
            done = tile.copy_async(last, A[(n + i) * 4:(n + i) * 4 + 4, 0:8])
            done.wait()
            tile.copy(B[(n + i) * 4:(n + i) * 4 + 4, 0:8], last)
            tile.sync()


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_scope_counts_its_copies_on_after_a_loop_of_its_own(n, target):
    a = RNG.integers(0, 1000, ((n + 2) * 4, 8)).astype(np.int32)
    b = np.zeros_like(a)
    assert not stage_after_a_loop.simulate((1,), a, b, n, 0, target=target).findings and (a == b).all()
    stage_after_a_loop.compile(a, b, n, 0, target=target)


def test_threads_around_a_scope_do_not_know_what_it_counts_after_a_loop():
    @tile.jit(num_warps=4)
    def waits_outside(A, n):
        s = tile.alloc((4, 8), tile.int32)
        with tile.warp(0):
            for i in range(n):
                tile.copy_async(s, A[0:4, 0:8]).wait()
            done = tile.copy_async(s, A[0:4, 0:8])
        done.wait()

    with pytest.raises(CompilationError, match="counted inside an execution scope|assigned inside an execution scope"):
        waits_outside.simulate((1,), np.zeros((4, 8), np.int32), 2)
