"""CTAs that run several programs in turn: kernels with roles for 8 or 12 warps, unless something in them tells CTAs from programs."""

from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit.compile import check_budgets
from tilejit.errors import CompilationError
from tilejit.ir.graph import Block, Graph, Launch
from tilejit.ops.language import programs
from tilejit.sim import launch

from tests.gpu import in_child, needs_gpu, needs_module

pytestmark = pytest.mark.usefixtures("assembled_later")

BF16 = ml_dtypes.bfloat16


@tile.jit
def weighted(Q, K, V, OUT, SEEN, CAUSAL: tile.constexpr, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr,
             STAGES: tile.constexpr, LAST_IS_LONGEST: tile.constexpr = False):
    """``OUT = (Q @ K.T) @ V`` of each head of each batch; SEEN gets the extents of the grid, as each program reads them."""
    i, head, batch = tile.program_id(0), tile.program_id(1), tile.program_id(2)
    m = i * BM if LAST_IS_LONGEST else (tile.num_programs(0) - 1 - i) * BM
    q = tile.load(Q[batch, head, m:m + BM, 0:D])
    acc = tile.zeros((BM, D))
    rows = m + tile.arange(0, BM)
    stop = min(m + BM, K.shape[2]) if CAUSAL else K.shape[2]
    for n in tile.pipelined(range(0, stop, BN), stages=STAGES, warp_specialize=True):
        s = tile.dot(q, tile.load(K[batch, head, n:n + BN, 0:D]).T)
        if CAUSAL:
            s = tile.where(rows[:, None] >= (n + tile.arange(0, BN))[None, :], s, 0.0)
        acc = tile.dot(s.to(tile.bfloat16), tile.load(V[batch, head, n:n + BN, 0:D]), acc)
    tile.store(OUT[batch, head, m:m + BM, 0:D], acc)
    tile.store(SEEN[batch, head, i], tile.num_programs(0) * 10000 + tile.num_programs(1) * 100 + tile.num_programs(2))


def arrays(batches, heads, rows, keys, bm, d=64):
    rng = np.random.default_rng(rows)
    q, k, v = (rng.integers(-2, 3, (batches, heads, n, d)).astype(BF16) for n in (rows, keys, keys))
    return [q, k, v, np.full((batches, heads, rows, d), np.nan, np.float32),
            np.zeros((batches, heads, -(-rows // bm)), np.int32)]


def check(made, causal):
    """All sums are exact, so any order of additions gives the same."""
    q, k, v, out, seen = made
    s = q.astype(np.float32) @ k.astype(np.float32).swapaxes(2, 3)
    s = np.where(np.arange(s.shape[2])[:, None] >= np.arange(s.shape[3]), s, 0) if causal else s
    np.testing.assert_array_equal(out, s.astype(BF16).astype(np.float32) @ v.astype(np.float32))
    batches, heads, above = seen.shape
    np.testing.assert_array_equal(seen, above * 10000 + heads * 100 + batches)


@contextmanager
def resident(ctas, monkeypatch):
    """A simulated GPU on which so many CTAs run at a time."""
    with monkeypatch.context() as patched:
        patched.setattr(launch, "RESIDENT", ctas)
        yield


@pytest.mark.parametrize("ctas", [1, 3, None])
@pytest.mark.parametrize("shape,constants", [
    ((2, 2, 300, 300), dict(CAUSAL=True, BM=128, BN=64, STAGES=2, num_warps=8)),
    ((2, 4, 300, 300), dict(CAUSAL=True, LAST_IS_LONGEST=True, BM=128, BN=64, STAGES=2, num_warps=8)),
    ((1, 3, 150, 70), dict(CAUSAL=False, BM=128, BN=128, STAGES=3, num_warps=8)),  # the producer is programs ahead
    ((1, 2, 200, 130), dict(CAUSAL=True, BM=192, BN=64, STAGES=2, num_warps=12)),
])
def test_each_program_runs_once_on_any_number_of_ctas(shape, constants, ctas, monkeypatch):
    for seed in (0, 1):
        made = arrays(*shape, constants["BM"])
        grid = made[-1].shape[::-1]
        with resident(ctas, monkeypatch):
            weighted.simulate(grid, *made, D=64, seed=seed, target="sm_90a", **constants).raise_first()
        check(made, constants["CAUSAL"])


def test_programs_without_iterations_between_others_are_right(monkeypatch):
    """They load their rows of Q all the same."""
    made = arrays(1, 2, 300, 0, 128)
    with resident(2, monkeypatch):
        weighted.simulate((3, 2), *made, CAUSAL=False, BM=128, BN=64, D=64, STAGES=2, num_warps=8, target="sm_90a").raise_first()
    check(made, False)


@pytest.mark.parametrize("grid", [(1, 0), (0,), (2, 3, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_an_empty_grid_runs_nothing(grid, causal):
    made = arrays(1, 1, 128, 64, 128)
    constants = dict(CAUSAL=causal, BM=128, BN=64, D=64, STAGES=2, num_warps=8)
    weighted.simulate(grid, *made, target="sm_90a", **constants).raise_first()
    assert np.isnan(made[3]).all()


BOUNDS = {  # of the loop in each program: the program with the most iterations, if that is known
    "0, m + 128": "last", "m, 512": "first", "0, 512 - m": "first", "0, 512": None, "m, m + 128": None, "0, tile.program_id(1) * 64 + 64": "axis 1",
    "0, tile.load(SEEN[0, 0, tile.program_id(0)])": None, "0, min(tile.load(SEEN[0, 0, 0]), m + 128)": "last", "tile.maximum(m - 64, 0), m + 128": None,
    "0, m + 128 - 64 * tile.program_id(1)": "last", "0, (512 - m) * K.shape[2] // 512": "first", "0, m ^ 128": None,
}


def bounded(bounds):
    return tile.jit(source=f"""def bounded(Q, K, V, OUT, SEEN):
    m = tile.program_id(0) * 128
    q, acc = tile.load(Q[0, 0, m:m + 128, 0:64]), tile.zeros((128, 64))
    for n in tile.pipelined(range({bounds}, 64), stages=2, warp_specialize=True):
        acc = tile.dot(q, tile.load(K[0, 0, n:n + 64, 0:64]).T, acc)
    tile.store(OUT[tile.program_id(2), tile.program_id(1), m:m + 128, 0:64], acc)
""")


@pytest.fixture
def taken(monkeypatch):
    """The numbers of programs that simulated CTAs run, in the order in which they ask for them."""
    numbers, plain = [], programs.program_at.rules.simulate

    def recorded(m, call, program):
        found = [int(p) for p in np.ravel(program)]
        numbers.extend(p for p in found if p not in numbers)
        return plain(m, call, program)
    monkeypatch.setattr(programs.program_at.rules, "simulate", recorded)
    return numbers


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_programs_that_are_known_to_have_the_most_iterations_come_first(bounds, taken, monkeypatch):
    """With one CTA, of the last 3 programs at least along the slower axes; where nothing is known, in the grid's order."""
    kernel, (x, y, z) = bounded(bounds), (4, 3, 2)
    made = arrays(z, y, 512, 512, 128)
    made[4][:] = 512
    with resident(1, monkeypatch):
        kernel.simulate((x, y, z), *made, num_warps=8, target="sm_90a").raise_first()
    assert not np.isnan(made[3]).any()
    longest, slices = BOUNDS[bounds], [range(n, n + x) for n in range(0, x * y * z, x)]
    expected = {None: range(x * y * z), "first": range(x * y * z), "last": [n for s in slices for n in reversed(s)],
                "axis 1": [n for batch in (0, 3) for s in reversed(slices[batch:batch + 3]) for n in s]}[longest]
    assert taken == list(expected)
    how = compiled(kernel).persistence[0].how
    assert ("; programs go" in how) == (longest is not None)
    assert longest != "last" or how.endswith("from the last program_id(0) to the first, since the last have the most iterations")


def test_a_simulated_cta_of_its_own_runs_the_program_of_its_number(taken):
    made = arrays(1, 2, 512, 512, 128)
    weighted.simulate((4, 2), *made, CAUSAL=True, LAST_IS_LONGEST=True, BM=128, BN=64, D=64, STAGES=2, num_warps=8, target="sm_90a").raise_first()
    check(made, True)
    assert taken == list(range(8))


def test_programs_of_several_heads_are_taken_together_at_the_end(taken, monkeypatch):
    """6 at least for 2 CTAs, so those of the last two heads: the longest of both come first."""
    made = arrays(1, 4, 512, 512, 128)
    with resident(2, monkeypatch):
        weighted.simulate((4, 4), *made, CAUSAL=True, LAST_IS_LONGEST=True, BM=128, BN=64, D=64, STAGES=2, num_warps=8, target="sm_90a").raise_first()
    check(made, True)
    assert taken == [3, 2, 1, 0, 7, 6, 5, 4, 11, 15, 10, 14, 9, 13, 8, 12]


def compiled(kernel=weighted, warps=8, **options):
    array = tile.ArraySpec((2, 2, 512, 64), "bfloat16")
    out, seen = tile.ArraySpec((2, 2, 512, 64), "float32"), tile.ArraySpec((2, 2, 4), "int32")
    constants = dict(CAUSAL=True, BM=16 * warps, BN=64, D=64, STAGES=2) if kernel is weighted else {}
    return kernel.compile(array, array, array, out, seen, **constants, **{"num_warps": warps, "target": "sm_90a", "spills": 0} | options)


def test_the_launch_passes_the_extents_of_the_grid_and_explain_says_so():
    made = compiled()
    assert made.recipe["persistent"] and [p for p in made.recipe["params"] if p[0] == "grid"]
    assert made.persistence[0].persistent and "\n  persistent: one CTA on each multiprocessor" in made.explain()
    assert made.ptx.count("tilejit_programs[") == 1 and " persistent, sm_90a}" in made.graph


def test_q_comes_by_a_copy_of_the_producer():
    """The consumers load nothing from global memory, and their warpgroups do not meet."""
    made = compiled()
    assert not any(access.buffer == "Q" for access in made.accesses) and "sync()" not in made.graph
    assert len({copy.line for copy in made.copies}) == 3 and {copy.variant for copy in made.copies} == {"tma"}
    single = compiled(persistent=False)
    assert any(access.buffer == "Q" for access in single.accesses) and "sync()" in single.graph


@pytest.mark.parametrize("options,why", [
    (dict(persistent=False), "persistent=False"), (dict(min_ctas=1), "min_ctas="), (dict(cluster=2), "cluster="),
    (dict(pdl=True), "pdl="), (dict(max_registers=160, spills=None), "max_registers="),
])
def test_options_that_say_how_ctas_run_leave_one_program_to_each(options, why):
    made = compiled(**options)
    assert "persistent" not in made.recipe and not any(p[0] == "grid" for p in made.recipe["params"])
    assert made.persistence[0].how.startswith(why) and f"\n  not persistent: {why}" in made.explain()


@pytest.mark.parametrize("options", [dict(target="sm_100a"), dict(warps=4)])
def test_kernels_whose_ctas_share_a_multiprocessor_have_no_record(options):
    assert compiled(**options).persistence == ()


TOLD_APART = {
    "alloc_shared makes memory": ("room = tile.alloc((128,), tile.float32)", "tile.store(room[0:128], tile.sum(acc, axis=1))"),
    "mbarrier_init makes memory": ("bar = tile.mbarrier()", ""),
    "atomic may order": ("", "tile.atomic_add(SEEN[0, 0, 0], 1)"),
    "load may order": ("", "tile.store(SEEN[0, 0, 0], tile.load(SEEN[0, 0, 1], sem='relaxed', scope='gpu'))"),
    "assert may order": ("tile.device_assert(tile.program_id(0) < 4)", ""),
    "mov.u32.smid may depend": ("", "tile.store(SEEN[0, 0, 0], tile.ptx.mov.u32.smid())"),
    "the pipelined loop at line 6 is inside": ("", ""),
}


def told_apart(before, after, nested):
    loop = "    for n in tile.pipelined(range(0, 512, 64), stages=2, warp_specialize=True):"
    body = "        acc = tile.dot(q, tile.load(K[0, 0, n:n + 64, 0:64]).T, acc)"
    lines = ["def told_apart(Q, K, V, OUT, SEEN):", "    m = tile.program_id(0) * 128", f"    {before}" if before else "    pass",
             "    q, acc = tile.load(Q[0, 0, m:m + 128, 0:64]), tile.zeros((128, 64))",
             *(["    for i in range(tile.program_id(1)):"] if nested else ["    pass"]),
             *(["    " + loop, "    " + body] if nested else [loop, body]),
             f"    {after}" if after else "    pass", "    tile.store(OUT[0, 0, m:m + 128, 0:64], acc)"]
    return tile.jit(source="\n".join(lines) + "\n")


@pytest.mark.parametrize("why", TOLD_APART)
def test_what_tells_ctas_from_programs_leaves_one_program_to_each(why):
    before, after = TOLD_APART[why]
    made = compiled(told_apart(before, after, nested="inside" in why))
    assert "persistent" not in made.recipe and made.persistence[0].how.startswith(why)


def test_a_tile_whose_place_the_producer_cannot_compute_ahead_leaves_one_program_to_each():
    """It stands where the kernel itself writes; as the others load it, the kernel compiles with one program to each CTA."""
    made = compiled(tile.jit(source="""def kernel(Q, K, V, OUT, SEEN):
    m = tile.load(SEEN[0, 0, tile.program_id(0)])
    tile.assume(m >= 0)
    q, acc = tile.load(Q[0, 0, m:m + 128, 0:64]), tile.zeros((128, 64))
    for n in tile.pipelined(range(0, 512, 64), stages=2, warp_specialize=True):
        acc = tile.dot(q, tile.load(K[0, 0, n:n + 64, 0:64]).T, acc)
    tile.store(SEEN[0, 0, tile.program_id(0)], m + 1)
    tile.store(OUT[0, 0, m:m + 128, 0:64], acc)
"""))
    assert "persistent" not in made.recipe and made.persistence[0].how.startswith("in a loop over programs, the producer, which runs ahead")


def test_the_kernel_without_what_tells_them_apart_is_persistent():
    assert compiled(told_apart("", "", False)).recipe["persistent"]


def test_a_kernel_that_spills_learns_of_the_registers_that_programs_in_turn_take():
    graph = Graph("k", (), Block(), Launch(spills=0), "sm_90a", None, persistent=True)
    with pytest.raises(CompilationError, match="spills 8 bytes .*or persistent=False, which takes a few registers less"):
        check_budgets(graph, 168, 8)


@pytest.mark.misread_by_racecheck  # numbers of programs are passed between threads through slots
@needs_gpu("sm_90a")
@needs_module("torch")
@in_child(timeout=90)
def test_programs_run_once_on_the_gpu_in_launches_at_the_same_time_and_in_a_graph():
    import torch
    made = arrays(4, 20, 1000, 1000, 128)
    q, k, v = (torch.from_numpy(x.astype(np.float32)).cuda().bfloat16() for x in made[:3])
    constants = dict(CAUSAL=True, BM=128, BN=64, D=64, STAGES=2, num_warps=8)
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = [[torch.from_numpy(x).cuda() for x in made[3:]] for _ in streams]

    def checked():
        torch.cuda.synchronize()
        for out, seen in results:
            check([*made[:3], out.cpu().numpy(), seen.cpu().numpy()], True)
            out.fill_(float("nan"))
            seen.zero_()
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    for n in range(30):
        for stream, result in zip(streams, results):
            with torch.cuda.stream(stream):
                weighted[8, 20, 4](q, k, v, *result, **constants, LAST_IS_LONGEST=n % 2 == 1)
    checked()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for result in results:
            weighted[8, 20, 4](q, k, v, *result, **constants)
    for _ in range(3):
        graph.replay()
    checked()
    beside = torch.cuda.CUDAGraph()  # its launches are branches, which run at the same time
    with torch.cuda.graph(beside):
        first = torch.cuda.current_stream()
        for stream, result in zip(streams, results):
            stream.wait_stream(first)
            with torch.cuda.stream(stream):
                weighted[8, 20, 4](q, k, v, *result, **constants)
        for stream in streams:
            first.wait_stream(stream)
    for _ in range(30):
        beside.replay()
    checked()
    for n in range(8 * 20):  # few programs: a CTA for each
        weighted[8, 1, 1](q[:1, n % 20:n % 20 + 1], k[:1, n % 20:n % 20 + 1], v[:1, n % 20:n % 20 + 1],
                          results[0][0][:1, n % 20:n % 20 + 1], results[0][1][:1, n % 20:n % 20 + 1], **constants)
    torch.cuda.synchronize()
    out, seen = (x.cpu().numpy()[:1] for x in results[0])
    assert (seen == 80101).all()
    check([*(x[:1] for x in made[:3]), out, np.full_like(seen, 82001)], True)
