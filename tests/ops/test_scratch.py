"""The compiler's scratch memory: which operations share it, and when the barrier before its use can be omitted."""

import re
from itertools import product

import numpy as np
import pytest
import tilejit as tile
import tilejit.compile
from hypothesis import given, settings, strategies as st
from tilejit.errors import SharedMemoryError
from tilejit.ir.graph import Call, For, If
from tilejit.ops.memory.shared import sync
from tilejit.passes.placement.shared_memory import _scratch_bytes as bytes_of_scratch

from tests.emitted_code import run_emitted
from tests.gpu import in_child, needs_gpu, needs_module

X = tile.ArraySpec((4096,), "float32")


def barriers(ptx: str) -> int:
    return len(re.findall(r"bar\.sync 0", ptx))


@tile.jit
def normalised(x, y, N: tile.constexpr):
    v = tile.load(x[0:N], other=0)
    v = v - tile.mean(v)
    tile.store(y[0:N], v / tile.sqrt(tile.mean(v * v)))


def test_each_small_reduction_has_its_own_scratch_memory_and_one_barrier():
    """Nobody reads it before, so only the barrier between writing and reading is needed."""
    compiled = normalised.compile(X, X, N=1024, target="sm_90a")
    assert barriers(compiled.ptx) == 2 and str(compiled.graph).count(", unused") == 2


@tile.jit
def reshaped(x, y, N: tile.constexpr, M: tile.constexpr):
    tile.store(y[0:M // 2, 0:2 * N], tile.reshape(tile.load(x[0:N, 0:M]), (M // 2, 2 * N)))


@tile.jit
def shifted(x, y, N: tile.constexpr, M: tile.constexpr):
    tile.store(y[0:N - 3, 0:M - 5], tile.load(x[0:N, 0:M])[3:, 5:])


@tile.jit
def flipped(x, y, N: tile.constexpr, M: tile.constexpr):
    tile.store(y[0:N, 0:M], tile.flip(tile.load(x[0:N, 0:M]), 0))


def moved(kernel, x):
    n, m = x.shape
    return {reshaped: lambda: x.reshape(m // 2, 2 * n), shifted: lambda: x[3:, 5:], flipped: lambda: x[::-1]}[kernel]()


@pytest.mark.parametrize("kernel", [reshaped, shifted, flipped])
def test_a_tile_moves_in_parts_where_scratch_memory_for_all_of_it_does_not_fit(kernel):
    x = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
    y = np.zeros_like(moved(kernel, x))
    spec = tile.ArraySpec(x.shape, "float32"), tile.ArraySpec(y.shape, "float32")
    whole, parts = (kernel.compile(*spec, N=64, M=48, num_warps=2, target="sm_90a", max_shared=n) for n in (12288, 8192))
    assert whole.shared_bytes == 12288 and parts.shared_bytes == 8192
    assert "scratch in parts of 8192 bytes" in str(parts.graph) and "in parts" not in str(whole.graph)
    assert barriers(parts.ptx) == barriers(whole.ptx) + 2
    for seed in range(4):  # the order of the warps between barriers
        y[...] = -1
        run_emitted(parts, [x, y], threads=64, seed=seed)
        assert np.array_equal(y, moved(kernel, x))
    with pytest.raises(SharedMemoryError, match="8192 bytes  scratch of the compiler"):
        kernel.compile(*spec, N=64, M=48, num_warps=2, target="sm_90a", max_shared=4096)


@needs_gpu()
@needs_module("torch")
@in_child(timeout=120)
def test_parts_of_a_tile_are_put_together_on_the_gpu():
    import torch
    for kernel, dtype in product((reshaped, shifted, flipped), (torch.float32, torch.bfloat16, torch.float64)):
        x = torch.arange(160 * 96).reshape(160, 96).to(dtype) % 251
        want = torch.from_numpy(np.ascontiguousarray(moved(kernel, x.double().numpy())))
        got = torch.zeros(want.shape, dtype=dtype, device="cuda")
        kernel[1,](x.cuda(), got, N=160, M=96, num_warps=4, max_shared=8192 if dtype != torch.bfloat16 else 16384)
        assert torch.equal(got.double().cpu(), want)


@tile.jit
def looped(x, y, N: tile.constexpr, PAIRS: tile.constexpr):
    total = 0.0
    for i in range(tile.num_programs(0)):
        v = tile.load(x[i * N:(i + 1) * N], other=0)
        total += tile.sum(v)
        if PAIRS:
            total *= tile.max(v)
    tile.store(y[tile.program_id(0)], total)


def test_a_reduction_in_a_loop_needs_a_barrier_before_it_unless_the_loop_has_another():
    """Warps that still read the previous iteration's partial results must not see the next iteration's."""
    alone, paired = (looped.compile(X, X, N=1024, PAIRS=p, target="sm_90a") for p in (False, True))
    assert barriers(alone.ptx) == 2 and "unused" not in str(alone.graph)
    assert barriers(paired.ptx) == 2 and str(paired.graph).count(", unused") == 2


@tile.jit
def conditional(x, y, N: tile.constexpr):
    total = 0.0
    for i in range(tile.num_programs(0)):
        v = tile.load(x[i * N:(i + 1) * N], other=0)
        total += tile.sum(v)
        if total > 100.0:
            total -= tile.max(v)
    tile.store(y[tile.program_id(0)], total)


def test_a_barrier_that_not_every_iteration_executes_does_not_count():
    """The sum needs a barrier before it; the maximum does not, since each iteration executes the sum's."""
    compiled = conditional.compile(X, X, N=1024, target="sm_90a")
    assert barriers(compiled.ptx) == 3


@tile.jit(num_warps=8)
def groups(x, y):
    for g in range(2):
        with tile.warpgroup(g):
            tile.store(y[g], tile.sum(tile.load(x[g * 256:(g + 1) * 256], other=0)))
    tile.sync()
    v = tile.load(x[0:512], other=0)
    tile.store(y[0:512], tile.cumsum(v))


def places(compiled) -> dict[str, tuple[int, int]]:
    """{name: (offset, bytes between the instances of the scope)}, from the graph."""
    found = re.findall(r"^shared %(\S+) at (\d+)(?: \+ %\S+ \* (\d+))?", str(compiled.graph), re.M)
    return {name: (int(offset), int(step or 0)) for name, offset, step in found}


def test_concurrent_scopes_have_separate_scratch_memory():
    """Two warpgroups that reduce at the same time, each at a runtime offset; the CTA's own scratch is separate."""
    compiled = groups.compile(X, X, target="sm_90a")
    found = places(compiled)
    (inner, step), (outer, _) = found["sum"], found["cumsum"]
    assert step >= 16 and inner >= outer + 32 and compiled.shared_bytes >= inner + 2 * step
    x, y = np.random.default_rng(0).random(512).astype(np.float32), np.zeros(512, np.float32)
    groups[(1,)](x, y)
    np.testing.assert_allclose(y, np.cumsum(x), rtol=1e-5)


@tile.jit
def one_after_the_other(x, y, N: tile.constexpr, COUNT: tile.constexpr, SYNC: tile.constexpr = False):
    for i in range(tile.num_programs(0)) if COUNT < 0 else tile.static_range(1):
        v = tile.load(x[i * N:(i + 1) * N], other=0)
        for _ in tile.static_range(abs(COUNT)):
            v = v / tile.sum(v)
            if SYNC:
                tile.sync()
        tile.store(y[0:N], v)


@pytest.mark.parametrize("count, sync, of_each", [
    (7, False, "0101010"),      # another reduction is between
    (3, True, "000"),
    (-1, False, "0"), (-2, False, "01"), (-3, False, "012"), (-4, False, "0101"), (-5, False, "01012"), (-3, True, "000"),  # in a loop
])
def test_a_small_reduction_takes_the_place_of_one_from_which_barriers_part_it(count, sync, of_each):
    """Three in a loop need three places: nothing is between the last one's reads and the first one's writes of the next trip."""
    compiled = one_after_the_other.compile(X, X, N=1024, COUNT=count, SYNC=sync, target="sm_90a")
    found = [offset for _, (offset, _) in sorted(places(compiled).items())]    # sum, sum.1, ...
    assert "".join(str(sorted(set(found)).index(offset)) for offset in found) == of_each
    assert barriers(compiled.ptx) == (1 + sync) * abs(count) + (count == -1), "none is added but before a reduction that is alone in its loop"


@tile.jit
def turned(x, y):
    v = tile.load(x[0:64, 0:64], other=0)
    total = tile.sum(v)
    tile.store(y[0:64, 0:64], tile.transpose(v)[0:64, 0:64] + tile.reshape(tile.reshape(v, 32, 128), 64, 64)[::1] * total)


def test_small_scratch_buffers_are_shared_if_shared_memory_is_scarce():
    """`max_shared` can forbid separate scratch memory for each call."""
    a = tile.ArraySpec((64, 64), "float32")
    generous = turned.compile(a, a, target="sm_90a")
    tight = turned.compile(a, a, target="sm_90a", max_shared=generous.shared_bytes - 64)
    assert tight.shared_bytes < generous.shared_bytes


@tile.jit(num_warps=4)
def one_or_the_other(x, y, n, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
    if n > 0 if ROWS and COLUMNS else ROWS > 0:
        a = tile.load(x[0:128, 0:96])
        tile.store(y[0:128, 0:96], a / tile.sum(a, axis=0)[None, :])
    else:
        a = tile.load(x[0:96, 0:128])
        tile.store(y[0:96, 0:128], a / tile.sum(a, axis=0)[None, :])


def test_exclusive_branches_share_registers_and_scratch_memory():
    """Together they need what the larger of them needs, though each holds a tile of 96 registers."""
    x = np.ones((128, 128), np.float32)
    one, other, both = (one_or_the_other.compile(x, x, 1, ROWS=rows, COLUMNS=columns, target="sm_90a") for rows, columns in ((1, 0), (0, 1), (1, 1)))
    assert min(one.registers, other.registers) > 96 and both.registers <= max(one.registers, other.registers) + 16
    assert both.shared_bytes == max(one.shared_bytes, other.shared_bytes) > 0


# -- any nest of loops and branches ------------------------------------------------------------------------------------------

STATEMENTS = ["v = v / tile.sum(v)", "w = tile.cumsum(v)", "s = tile.max(v * w)", "v = v.reshape((32, 16)).T.reshape((512,))", "tile.sync()"]


def indented(lines: list) -> list:
    return ["    " + line for line in lines]


def nests(depth: int = 3):
    """Lines of statements, some of them in loops and branches."""
    one = st.sampled_from(STATEMENTS).map(lambda line: [line])
    if depth:
        inner = nests(depth - 1).map(indented)
        one = one | one | inner.map(lambda lines: [f"for i{depth} in range(n):", *lines]) | inner.map(lambda lines: ["if n > 1:", *lines])
    return st.lists(one, min_size=1, max_size=5).map(lambda parts: [line for part in parts for line in part])


def paths(block) -> list:
    """The barriers and uses of scratch along ways through a block: loops run no, one or two trips, branches either way."""
    found = [[]]
    for node in block.nodes:
        ways = [[]]
        if isinstance(node, Call) and (node.op is sync or bytes_of_scratch(node)):
            ways = [[node]]
        elif isinstance(node, For):
            once = paths(node.body)[:10]
            ways += once + [a + b for a in once for b in once]
        elif isinstance(node, If):
            ways = paths(node.then) + paths(node.orelse)
        found = [path + way for path in found for way in ways][:200]
    return found


@settings(max_examples=30, deadline=None)
@given(nests())
def test_no_scratch_is_written_that_others_may_still_read(lines):
    """On no way through a kernel: a call that begins without a barrier has none of the bytes of the call before it."""
    class Placed(Exception):
        """Ends the compilation with the graph."""

    def placed(graph, place=tilejit.compile.place_shared):
        raise Placed(place(graph))

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Placed) as ended:
        patch.setattr(tilejit.compile, "place_shared", placed)
        body = "\n".join(indented(["v = tile.load(x[0:512])", "w, s = v, 0.0", *lines, "tile.store(y[0:512], v + w + s)"]))
        tile.jit(source=f"def k(x, y, n):\n{body}\n").compile(X, X, 3)
    graph, = ended.value.args
    part = lambda call: range(graph.shared[call.result], graph.shared[call.result] + bytes_of_scratch(call))
    for path in paths(graph.body):
        for before, call in zip(path, path[1:]):
            if sync not in (before.op, call.op) and call.result in graph.scratch_unused:
                a, b = part(before), part(call)
                assert a.stop <= b.start or b.stop <= a.start, (before, call)
