"""The simulator's loops that numba compiles, and NumPy in their place: the same results, bit for bit."""

import itertools
import subprocess
import sys
from collections import defaultdict

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.ops.order.network import steps
from tilejit.sim import (
    atomics,
    compile_loops,
    element_loops as loops,
    global_races,
    networks,
    shared_units as units,
    thread_products,
)
from tilejit.sim.memory import SharedMemory

INTEGERS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec", "sub")
FLOATS = ("add", "min", "max", "minimum", "maximum", "exch")
SPECIAL = (0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan, -np.nan, 3e38, 1e-45)


@pytest.fixture
def by_loops(monkeypatch):
    """Work of any size is done by the loops, as plain Python."""
    def interpreted(loop, seconds):
        return loop
    for module in (atomics, global_races, networks, thread_products):
        monkeypatch.setattr(module, "compiled", interpreted)


def assert_alike(kind, cells, index, values, compare):
    """Atomics by NumPy and by the loops give the same bytes of memory, old values, and whether they changed any."""
    found = []
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(atomics, "compiled", lambda loop, seconds: loop if seconds == 1.0 else None)
        for run in (lambda m: atomics._by_numpy(m, index, kind, values, compare, True),
                    lambda m: atomics._by_loops(m, index, kind, values, compare, 1.0)):
            memory = cells.copy()
            old, changed = run(memory)
            found.append((memory.tobytes(), old.tobytes(), changed))
    assert found[0] == found[1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_atomics_have_the_same_bits_by_loops_and_by_numpy(data):
    dtype = np.dtype(data.draw(st.sampled_from(
        ["int32", "uint32", "int64", "uint64", "float32", "float64", ml_dtypes.bfloat16, "float16"])))
    floats = dtype.kind not in "iu"
    kinds = INTEGERS if not floats else FLOATS if dtype.itemsize > 2 else ("min", "maximum")
    kind, count = data.draw(st.sampled_from(kinds)), data.draw(st.integers(1, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    def some(n):
        if floats:
            return rng.choice(np.array(SPECIAL), n).astype(dtype)
        info = np.iinfo(dtype)
        return rng.choice(np.array([info.min, info.max, 0, 1, 2, 3], dtype), n)
    with np.errstate(over="ignore"):
        cells, values, compare = some(4), some(count), some(count)
    assert_alike(kind, cells, rng.integers(0, 4, count), values, compare if kind == "cas" else None)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 2), st.integers(0, 99))
def test_networks_sort_alike_by_loops_and_by_numpy(bits, kept, operands, seed):
    rng, kept = np.random.default_rng(seed), min(bits, kept)
    values = [rng.integers(0, 9, (2, 3, 1 << bits)).astype(np.uint32) for _ in range(operands)]
    expected = networks.run_by_numpy(list(values), steps(bits, kept), kept)
    before = [v.copy() for v in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "compiled", lambda loop, seconds: loop)
        found = networks.run_network(list(values), steps(bits, kept), kept)
    for a, b in zip(expected, found):
        assert np.array_equal(a, b)
    for a, b in zip(before, values):
        assert np.array_equal(a, b)   # the operands stay


def test_products_of_threads_have_the_same_bits_by_a_loop_and_by_numpy():
    rng = np.random.default_rng(0)
    shapes = [(5, 7), (5, 4), (4, 7)]
    for batches, dtype in itertools.product(itertools.product((1, 3), repeat=3), ("float32", "float64")):
        acc, x, y = (rng.standard_normal((b, *shape)).astype(dtype) for b, shape in zip(batches, shapes))
        x[0, 1], y[0, 0, 0], y[0, 0, 1] = 0, np.inf, -np.nan
        expected = acc
        with np.errstate(all="ignore"):
            for k in range(4):
                expected = expected + x[:, :, k, None] * y[:, None, k, :]
        for by_loop in (True, False):
            with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
                patch.setattr(thread_products, "compiled", lambda loop, seconds: loop if by_loop else None)
                assert thread_products.add_products(acc, x, y).tobytes() == expected.tobytes()


def shadow_after(accesses, by_loops: bool):
    """The findings and the marks of a shadow of 6 cells after accesses (writes or not, cells, ids)."""
    shadow = global_races.GlobalShadow(0, 24, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(global_races, "compiled", lambda loop, seconds: loop if by_loops else None)
        found = [(shadow.write if writes else shadow.read)(global_races.Index(cells), ids, None, True)
                 for writes, cells, ids in accesses]
    marks = [np.zeros(6) if x is None else x for x in (shadow.writer, shadow.reader)]
    return found, [m.tolist() for m in marks]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1,
                                                 max_size=6)), min_size=1, max_size=5))
def test_races_of_accesses_by_index_are_found_alike_by_loops_and_by_numpy(drawn):
    accesses = [(writes, np.array([c for c, _ in pairs]), np.array([i for _, i in pairs], np.int32))
                for writes, pairs in drawn]
    assert shadow_after(accesses, True) == shadow_after(accesses, False)


def stores_after(accesses, by_loops: bool):
    """What a memory of 6 elements, its marks and the findings are after stores by index (CTAs' reads, if there are no
    values), and whether two values met in an element."""
    shadow, memory, found = global_races.GlobalShadow(4, 32, 4), np.zeros(6, np.uint32), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(global_races, "compiled", lambda loop, seconds: loop if by_loops else None)
        for index, ids, values in accesses:
            view = global_races.Index(index + 1)
            if values is None:
                found.append(shadow.read(view, ids, None, True))
                continue
            done = shadow.store(memory, index, values, 1, ids)
            if not done:
                memory[index] = values
            clash = shadow.written_together(view, ids) if done & 2 else None
            found.append(clash if done else shadow.write(view, ids, None, True))
            met = (memory[index] != values).any()
            assert not met or not done or done & 4
    marks = [np.zeros(8) if x is None else x for x in (shadow.writer, shadow.reader)]
    return memory.tolist(), found, [m.tolist() for m in marks]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(0, 9)),
                                                 min_size=1, max_size=6)), min_size=1, max_size=4))
def test_stores_by_index_are_done_and_checked_alike_by_a_loop_and_by_numpy(drawn):
    accesses = [(np.array([c for c, _, _ in rows]), np.array([i for _, i, _ in rows], np.int32),
                 np.array([v for _, _, v in rows], np.uint32) if writes else None) for writes, rows in drawn]
    assert stores_after(accesses, True) == stores_after(accesses, False)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["uint8", "float16", "float32", "float64"]), st.sampled_from(["rows", "columns", "neither"]),
       st.booleans(), st.integers(0, 99))
def test_elements_are_read_by_units_as_one_by_one(dtype, along, sliced, seed):
    """Whether 16-byte units lie along the rows, the columns or neither of a matrix; with the bits of NaNs."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    memory = SharedMemory(3, 4096)
    memory.data[:] = rng.integers(0, 256, memory.data.shape)
    each = 16 // dtype.itemsize
    starts = rng.permutation(4096 // 16)[:12].reshape(4, 3) * 16
    at = (starts[..., None] + np.arange(each) * dtype.itemsize).reshape(4, -1)
    at = at.T if along == "columns" else at[:, ::-1].copy() if along == "neither" and each > 1 else at
    elements = units.Elements.at(at, dtype.itemsize)
    assert (elements.units is None) == (along == "neither" and each > 1)
    rows = slice(1, 3) if sliced else np.array([2, 0])
    found = elements.read(memory, rows, dtype)
    expected = memory.view(dtype)[rows][:, at.reshape(-1) // dtype.itemsize].reshape(2, *at.shape)
    assert np.array_equal(found, expected, equal_nan=True) and found.tobytes() == expected.tobytes()


@tile.jit
def ranks(keys, bins, place, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    tile.store(place[i:i + BLOCK], tile.atomic_add(bins[tile.load(keys[i:i + BLOCK])], 1))


@tile.jit
def scattered(x, at, out, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    tile.store(out[tile.load(at[i:i + BLOCK])], tile.load(x[i:i + BLOCK]))


def test_a_kernel_on_the_loops_has_the_results_and_findings_of_numpy(by_loops):
    rng = np.random.default_rng(0)
    keys, place, bins = rng.integers(0, 3, 256).astype(np.int32), np.empty(256, np.int32), np.zeros(3, np.int32)
    ranks[(2,)](keys, bins, place, BLOCK=128)
    assert [place[keys == k].tolist() for k in range(3)] == [list(range(n)) for n in np.bincount(keys)]
    x, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    at = rng.permutation(256).astype(np.int32)
    assert not scattered.simulate((2,), x, at, out, BLOCK=128).findings and np.array_equal(out[at], x)
    at[200] = at[3]
    assert {f.kind for f in scattered.simulate((2,), x, at, out, BLOCK=128).findings} == {"race"}


@tile.jit(num_warps=2)
def moved(x, a, b, SYNC: tile.constexpr):
    """Each CTA moves elements of one array by indices, twice."""
    i = tile.program_id(0) * 64
    for k in range(2):
        v = tile.load(x[tile.load(a[k, i:i + 64])])
        if SYNC:
            tile.sync()
        tile.store(x[tile.load(b[k, i:i + 64])], v + 1)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.sampled_from([1, 32, 64, 999]), st.booleans())
def test_races_of_threads_by_index_are_found_alike_by_loops_and_by_numpy(seed, near, sync):
    """Indices are permuted among so many neighbours; sometimes one of them is wrong."""
    rng, place = np.random.default_rng(seed), np.arange(128)
    def some():
        keys = place // near * 1000 + rng.permutation(128)
        order = np.argsort(keys).astype(np.int32)
        order[rng.integers(0, 128, seed % 2)] = rng.integers(0, 128)
        return order
    a, b = (np.stack([some(), some()]) for _ in range(2))
    found = []
    for by_loops in (True, False):
        x = np.arange(128, dtype=np.int32)
        ran = []
        def chosen(loop, seconds):
            ran.append(loop)
            return loop if by_loops else None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(global_races, "compiled", chosen)
            report = moved.simulate((2,), x, a, b, SYNC=sync)
        assert {loops.mark_thread_reads, loops.mark_thread_writes} <= set(ran)
        found.append((x.tolist(), [(str(f), f.count, f.threads, f.ctas) for f in report.findings]))
    assert found[0] == found[1]


def test_numba_compiles_a_loop_when_the_work_pays_for_it(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(compile_loops, "_spent", defaultdict(float))
    monkeypatch.setattr(compile_loops, "_made", {})
    monkeypatch.delenv("TILEJIT_NUMBA", raising=False)
    assert compile_loops.compiled(loops.exchange_keys, compile_loops.PAYS / 2) is None
    monkeypatch.setenv("TILEJIT_NUMBA", "0")
    assert compile_loops.compiled(loops.exchange_keys, compile_loops.PAYS) is None
    monkeypatch.delenv("TILEJIT_NUMBA")
    sort = compile_loops.compiled(loops.exchange_keys, compile_loops.PAYS)
    assert sort is not None and compile_loops.compiled(loops.exchange_keys, 0) is sort
    rows = np.random.default_rng(0).integers(0, 99, (2, 16)).astype(np.uint32)
    expected = np.sort(rows)
    sort(rows, *networks.step_tables(steps(4, 4), 4))
    assert np.array_equal(rows, expected)


def test_without_numba_numpy_does_the_work():
    code = ("import sys; sys.modules['numba'] = None\n"
            "from tilejit.sim import compile_loops, element_loops as loops\n"
            "print(compile_loops.compiled(loops.exchange_keys, 99))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "None", done.stderr
