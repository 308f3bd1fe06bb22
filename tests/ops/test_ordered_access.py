"""Loads and stores with sem=: CTAs that wait for each other's flags, on the simulator and on a GPU."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

sys.path.append(str(Path(__file__).parent.parent / "sim"))
from faulty import SEEDS, check  # noqa: E402


@tile.jit
def handed_over(x, part, flag, y, N: tile.constexpr):
    if tile.program_id(0) % 2 == 0:
        p = tile.program_id(0) // 2
        tile.store(part[p, 0:N], tile.load(x[p, 0:N]) * 2)
        tile.store(flag[p], 1, sem="release")
    else:
        p = tile.program_id(0) // 2
        while tile.load(flag[p], sem="acquire") == 0:
            pass
        tile.store(y[p, 0:N], tile.load(part[p, 0:N]) + 1)


@tile.jit
def handed_over_fenced(x, part, flag, y, N: tile.constexpr):
    p = tile.program_id(0) // 2
    if tile.program_id(0) % 2 == 0:
        tile.store(part[p, 0:N], tile.load(x[p, 0:N]) * 2)
        tile.sync()
        tile.threadfence()
        tile.store(flag[p], 1, sem="relaxed")
    else:
        while tile.load(flag[p], sem="relaxed") == 0:
            pass
        tile.threadfence()
        tile.sync()
        tile.store(y[p, 0:N], tile.load(part[p, 0:N]) + 1)


@tile.jit
def handed_over_relaxed(x, part, flag, y, N: tile.constexpr):
    p = tile.program_id(0) // 2
    if tile.program_id(0) % 2 == 0:
        tile.store(part[p, 0:N], tile.load(x[p, 0:N]) * 2)
        tile.store(flag[p], 1, sem="relaxed")
    else:
        while tile.load(flag[p], sem="acquire") == 0:
            pass
        tile.store(y[p, 0:N], tile.load(part[p, 0:N]) + 1)  # finds: race


@tile.jit
def handed_over_in_the_cta(x, part, flag, y, N: tile.constexpr):
    p = tile.program_id(0) // 2
    if tile.program_id(0) % 2 == 0:
        tile.store(part[p, 0:N], tile.load(x[p, 0:N]) * 2)
        tile.store(flag[p], 1, sem="release", scope="cta")
    else:
        while tile.load(flag[p], sem="acquire", scope="cta") == 0:  # finds: race
            pass
        tile.store(y[p, 0:N], tile.load(part[p, 0:N]) + 1)  # finds: race


@tile.jit
def plain_flag(x, part, flag, y, N: tile.constexpr):
    p = tile.program_id(0) // 2
    if tile.program_id(0) % 2 == 0:
        tile.store(part[p, 0:N], tile.load(x[p, 0:N]) * 2)
        tile.store(flag[p], 1)  # races
    else:
        while tile.load(flag[p], sem="acquire") == 0:  # races
            pass
        tile.store(y[p, 0:N], 1)


def arrays(n: int = 300, pairs: int = 5):
    x = np.random.default_rng(0).integers(-9, 9, (pairs, n)).astype(np.float32)
    return x, np.zeros_like(x), np.zeros(pairs, np.int32), np.zeros_like(x)


def test_a_consumer_sees_what_its_producer_wrote_before_the_flag():
    """A release and an acquire of the flag, or relaxed accesses between fences, order the other accesses of the two CTAs."""
    x, part, flag, y = arrays()
    check(handed_over, (10,), x, part, flag, y, result=3, expected=x * 2 + 1, N=300)
    check(handed_over_fenced, (10,), x, part, flag, y, result=3, expected=x * 2 + 1, N=300)


def test_accesses_that_a_flag_does_not_order_are_a_race():
    """A store without release, a scope that does not include the other CTA, an ordinary store of the flag."""
    x, part, flag, y = arrays()
    check(handed_over_relaxed, (10,), x, part, flag, y, N=300)
    check(handed_over_in_the_cta, (10,), x, part, flag, y, N=300)
    for seed in SEEDS:  # with an earlier poll, a later one, or both
        report = plain_flag.simulate((2,), x.copy(), part.copy(), flag.copy(), y.copy(), N=300, seed=seed)
        assert report.findings and all(f.kind == "race" and f.loc.source_line.endswith("# races") for f in report.findings)


@tile.jit(cluster=2)
def within_the_cluster(part, flag, y, SHIFT: tile.constexpr):
    i = tile.program_id(0)
    tile.store(part[i], i * 10)
    tile.store(flag[i], 1, sem="release", scope="cluster")
    other = (i ^ 1) if SHIFT == 0 else (i + 2) % 4
    while tile.load(flag[other], sem="acquire", scope="cluster") == 0:
        pass
    tile.store(y[i], tile.load(part[other]))


def test_cluster_scope_includes_only_the_ctas_of_the_cluster():
    """CTAs 0 and 1 are ordered, CTAs 0 and 2 are not."""
    for shift, wrong in ((0, 0), (2, 2)):  # the flag and what it guards
        y = np.zeros(4, np.int32)
        report = within_the_cluster.simulate((4,), np.zeros(4, np.int32), np.zeros(4, np.int32), y, SHIFT=shift)
        assert len(report.findings) == wrong, report
        assert all(f.kind == "race" for f in report.findings)
    assert y.tolist() == [20, 30, 0, 10]


@tile.jit
def in_turn(flag, y):
    i = tile.program_id(0)
    while tile.load(flag[0], sem="acquire") != i:
        pass
    tile.store(y[0], tile.load(y[0]) * 2 + i)
    tile.store(flag[0], i + 1, sem="release")


def test_ctas_can_take_turns_by_a_number_that_has_each_value_only_once():
    """Every thread of a CTA gets the number that one of them reads: none misses its turn."""
    want = 0.0
    for i in range(20):
        want = want * 2 + i
    check(in_turn, (20,), np.zeros(1, np.int32), np.zeros(1, np.float32), result=1, expected=[want], seeds=range(3))


@tile.jit
def warps_in_turn(flag, y, ROUNDS: tile.constexpr):
    with tile.warp(1):
        for r in range(ROUNDS):
            while tile.load(flag[0], sem="acquire") != 2 * r + 1:
                pass
            with tile.elect():
                tile.store(y[1 + r], tile.load(y[0]))
            tile.store(flag[0], 2 * r + 2, sem="release")
    with tile.warp(0):
        with tile.elect():
            for r in range(ROUNDS):
                while tile.load(flag[0], sem="acquire") != 2 * r:
                    pass
                tile.store(y[0], r * 10)
                tile.store(flag[0], 2 * r + 1, sem="release")


def test_scopes_of_one_cta_can_hand_over_through_global_memory():
    """A warp and an elected thread take turns."""
    y = np.zeros(5, np.int32)
    warps_in_turn[1,](np.zeros(1, np.int32), y, ROUNDS=4)
    assert y.tolist() == [30, 0, 10, 20, 30]


@tile.jit
def all_flags(x, flags, y, N: tile.constexpr, CTAS: tile.constexpr):
    i = tile.program_id(0)
    tile.store(x[i, 0:N], tile.full((N,), i + 1))
    tile.store(flags[i, 0:N], 1, sem="release")
    while tile.min(tile.load(flags[0:CTAS, 0:N], sem="acquire")) == 0:
        pass
    total = tile.zeros((N,), tile.int32)
    for k in range(CTAS):
        total += tile.load(x[k, 0:N])
    tile.store(y[i, 0:N], total)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float16", "float32"])
@pytest.mark.parametrize("n", [1, 5, 64, 200])
def test_a_tile_of_flags_orders_element_by_element(n, dtype):
    """A grid barrier: tiles with replicas in other threads, padding and vectors, of any dtype."""
    x, y, flags = np.zeros((3, n), np.int32), np.zeros((3, n), np.int32), np.zeros((3, n), dtype)
    report = all_flags.simulate((3,), x, flags, y, N=n, CTAS=3)
    assert not report.findings, report
    assert (y == 6).all() and (flags == 1).all()


@tile.jit
def each_for_itself(x, y, n):
    t = tile.thread_id()
    if t % 2 == 0:
        tile.store(y[t], tile.load(x[t], other=-1, mask=t != 4, sem="relaxed") + 1, sem="release")
    tile.store(y[128 + t], tile.load(x[t - 1], other=-5, sem="acquire"), mask=t < n, sem="relaxed")
    at = tile.arange(8) * 2 - 2
    tile.store(y[256 + tile.arange(8)], tile.load(x[at], other=7, mask=at < 6, sem="relaxed"))
    tile.store(y[264], tile.load(x[1000], other=3, sem="relaxed"), sem="relaxed")
    tile.store(y[9000], 1, sem="release")


def test_threads_act_separately_if_operands_differ_and_bounds_and_masks_apply():
    x, y = np.arange(128, dtype=np.int32), np.zeros(300, np.int32)
    each_for_itself[1,](x, y, 100)
    t = np.arange(128)
    np.testing.assert_array_equal(y[:128], np.where(t % 2, 0, np.where(t == 4, -1, x) + 1))
    np.testing.assert_array_equal(y[128:256], np.where(t < 100, np.where(t == 0, -5, t - 1), 0))
    assert y[256:264].tolist() == [7, 0, 2, 4, 7, 7, 7, 7] and y[264] == 3 and not y[265:].any()


@tile.jit
def spins_for_ever(flag, y):
    while tile.load(flag[0], sem="acquire") == 0:  # finds: deadlock
        pass
    tile.store(y[0], 1.0)


def test_waiting_for_a_flag_that_nobody_sets_is_a_deadlock():
    check(spins_for_ever, (2,), np.zeros(1, np.int32), np.zeros(1, np.float32))


def test_the_instructions_have_the_requested_order_and_scope():
    """One thread reads and broadcasts to the others; a vector is one instruction; eviction priorities are kept."""
    spec = tile.ArraySpec((4, 64), "int32")
    ptx = all_flags.compile(spec, spec, spec, N=64, CTAS=4).ptx
    assert "ld.acquire.gpu.global" in ptx and "st.release.gpu.global" in ptx
    x = tile.ArraySpec((4, 64), "float32")
    ptx = handed_over.compile(x, x, tile.ArraySpec((4,), "int32"), x, N=64).ptx
    assert ptx.count("ld.acquire.gpu.global.b32") == 1 and ptx.count("st.release.gpu.global.b32") == 1

    @tile.jit
    def forms(a, b):
        v = tile.load(a[0:512], sem="relaxed", scope="sys", cache="no_allocate")
        tile.store(b[0:512], v, sem="relaxed", scope="cluster", cache="evict_first")

    spec = tile.ArraySpec((512,), "float32")
    ptx = forms.compile(spec, spec).ptx
    assert "ld.relaxed.sys.global.L1::no_allocate.v4.b32" in ptx and "st.relaxed.cluster.global.L1::evict_first.v4.b32" in ptx


def accesses(lines: list[str]) -> list[str]:
    """The loads and stores of global memory and the barriers of a kernel of these lines, in the order of its PTX."""
    kernel = tile.jit(source="def k(x, y, flag):\n" + "".join(f"    {line}\n" for line in lines))
    spec = tile.ArraySpec((128,), "int32")
    return re.findall(r"\bbar\.sync|(?:ld|st)[.\w]*\.global", kernel.compile(spec, spec, spec).ptx)


@pytest.mark.parametrize("sem, barrier", [("release", ["bar.sync"]), ("relaxed", [])])
def test_a_store_with_release_waits_for_the_stores_of_all_threads_and_a_relaxed_one_does_not(sem, barrier):
    stores = ["tile.store(y[0:128], 1)", f"tile.store(flag[0], 1, sem='{sem}')"]
    assert accesses(stores) == ["st.global", *barrier, f"st.{sem}.gpu.global"]
    of_tile = ["tile.store(y[0:128], 1)", f"tile.store(flag[0:128], 1, sem='{sem}')"]
    assert accesses(of_tile) == ["st.global", *barrier, f"st.{sem}.gpu.global"]


def test_a_store_with_release_by_each_thread_for_itself_has_no_barrier():
    stores = ["t = tile.thread_id()", "tile.store(y[t], 1)", "if t < 3:", "    tile.store(flag[t], 1, sem='release')"]
    assert accesses(stores) == ["st.global", "st.release.gpu.global"]


@pytest.mark.parametrize("sem, barrier", [("acquire", ["bar.sync"]), ("relaxed", [])])
def test_the_loads_of_all_threads_wait_for_a_load_with_acquire_and_not_for_a_relaxed_one(sem, barrier):
    loads = [f"f = tile.load(flag[0:128], sem='{sem}')", "tile.store(y[0:128], f + tile.load(x[0:128]))"]
    assert accesses(loads) == [f"ld.{sem}.gpu.global", *barrier, "ld.global", "st.global"]


@pytest.mark.parametrize("body, said", [
    ("tile.load(x[0], sem='release')", "sem of a load is one of relaxed, acquire, not 'release'"),
    ("tile.store(x[0], 1, sem='acq_rel')", "sem of a store is one of relaxed, release, not 'acq_rel'"),
    ("tile.load(x[0], sem='acquire', scope='block')", "scope is one of cta, cluster, gpu, sys, not 'block'"),
    ("tile.load(x[0], scope='gpu')", "scope= belongs to sem="),
    ("tile.load(x[0], sem='acquire', cache='cg')", "with sem= there are the eviction priorities"),
    ("tile.load(tile.alloc((4,), x.dtype)[0], sem='acquire')", "sem= orders accesses to global memory"),
    ("if tile.thread_id() < 3:\n        tile.load(x[0:4], sem='relaxed')", "differs between them"),
])
def test_an_unsupported_order_is_an_error_that_lists_the_supported_ones(body, said):
    kernel = tile.jit(source=f"def k(x):\n    {body}\n")
    kernel.source.globals["tile"] = tile
    with pytest.raises(tile.CompilationError) as error:
        kernel.compile(tile.ArraySpec((8,), "int32"))
    assert said in str(error.value)


def test_cluster_scope_needs_a_target_with_clusters():
    kernel = tile.jit(source="def k(x):\n    tile.store(x[0], 1, sem='release', scope='cluster')\n")
    kernel.source.globals["tile"] = tile
    with pytest.raises(tile.CompilationError, match="sm_90"):
        kernel.compile(tile.ArraySpec((8,), "int32"), target="sm_80")


@needs_gpu()
@in_child(timeout=120)
def test_ctas_hand_over_by_flags_on_a_gpu():
    """Producers and consumers, turns, a grid barrier, threads that act separately."""
    for kernel in (handed_over, handed_over_fenced):
        x, part, flag, y = arrays()
        kernel[(10,)](x, part, flag, y, N=300, backend="cuda")
        np.testing.assert_array_equal(y, x * 2 + 1)
    flag, y = np.zeros(1, np.int32), np.zeros(1, np.float32)
    in_turn[(20,)](flag, y, backend="cuda")
    want = 0.0
    for i in range(20):
        want = want * 2 + i
    assert y[0] == want and flag[0] == 20
    for dtype in ("int8", "int32", "int64", "float16", "float32"):
        for n in (1, 5, 64, 200):
            x, y, flags = np.zeros((3, n), np.int32), np.zeros((3, n), np.int32), np.zeros((3, n), dtype)
            all_flags[(3,)](x, flags, y, N=n, CTAS=3, backend="cuda")
            assert (y == 6).all() and (flags == 1).all()
    y = np.zeros(5, np.int32)
    warps_in_turn[1,](np.zeros(1, np.int32), y, ROUNDS=4, backend="cuda")
    assert y.tolist() == [30, 0, 10, 20, 30]
    x, y, want = np.arange(128, dtype=np.int32), np.zeros(300, np.int32), np.zeros(300, np.int32)
    each_for_itself[1,](x, want, 100)
    each_for_itself[1,](x, y, 100, backend="cuda")
    np.testing.assert_array_equal(y, want)


@tile.jit(num_warps=2)
def by_instructions(x, part, flag, out, HOW: tile.constexpr):
    t = tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(part[t], tile.load(x[t]))
        tile.sync()
        if t == 0:
            if HOW == "fences":
                tile.threadfence()
                tile.ptx.red.relaxed.gpu.global_.add.u32(flag[0], 1)
            elif HOW == "relaxed":
                tile.ptx.fence.acq_rel.gpu()
                tile.ptx.st.relaxed.gpu.global_.b32(flag[0], 1)
            else:
                tile.ptx.st.release.gpu.global_.b32(flag[0], 1)
    else:
        if t == 0:
            if HOW == "fences":
                while tile.ptx.atom.relaxed.gpu.global_.add.u32(flag[0], 0) == 0:
                    pass
                tile.threadfence()
            elif HOW == "relaxed":
                while tile.ptx.ld.relaxed.gpu.global_.b32(flag[0]) == 0:
                    pass
                tile.ptx.fence.acq_rel.gpu()
            else:
                while tile.ptx.ld.acquire.gpu.global_.b32(flag[0]) == 0:
                    pass
        if HOW != "unmet":
            tile.sync()
        tile.store(out[t], tile.load(part[63 - t]))


@pytest.mark.parametrize("how", ["fences", "relaxed", "released", "unmet"])
def test_ptx_loads_and_stores_with_an_order_synchronise_like_the_language_s(how):
    """One thread waits for its CTA; without a barrier afterwards, the others have not acquired."""
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    for seed in range(3):
        report = by_instructions.simulate((2,), x, np.zeros_like(x), np.zeros(1, np.uint32), out, HOW=how, seed=seed)
        assert [f.kind for f in report.findings] == (["race"] if how == "unmet" else []), str(report)
        assert how == "unmet" or (out == x[::-1]).all()


@tile.jit(num_warps=1)
def wide_and_narrow(x, out):
    t = tile.thread_id()
    a, b = tile.ptx.ld.acquire.gpu.global_.v2.b32(x[t, 0])
    tile.ptx.st.release.sys.global_.v2.b32(out[t, 0], (b, a))
    tile.ptx.st.relaxed.cluster.global_.b32(out[t, 2], tile.ptx.ld.relaxed.cta.global_.b32(x[t, 2]))


def test_every_thread_loads_and_stores_its_own_elements_with_an_order():
    x, out = np.arange(128, dtype=np.int32).reshape(32, 4), np.zeros((32, 4), np.int32)
    wide_and_narrow[1,](x, out)
    assert (out[:, :3] == x[:, [1, 0, 2]]).all()
    with pytest.raises(tile.SimulationError, match="out-of-bounds"):
        wide_and_narrow[1,](x[:31], out)
