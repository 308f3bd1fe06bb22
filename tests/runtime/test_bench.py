"""`tile.bench`: the order of what it times, its statistics, and what it counts."""

import json
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tilejit as tile
from tilejit.jit import launches_seen
from tilejit.runtime import launch
from tilejit.timing import Timing, quantile
from tilejit.work import Work, total_work, work_of

from tests.gpu import in_child, needs_gpu
from tests.runtime.fakes import FakeGpu


@pytest.fixture
def gpu(monkeypatch):
    return FakeGpu(monkeypatch)


def test_calls_are_timed_in_turns_in_graphs_each_after_a_flush_of_the_cache(gpu):
    result = tile.bench({"a": lambda stream: gpu.work(stream, "a", 0.5), "b": lambda stream: gpu.work(stream, "b", 1.0)}, rounds=3, warmup_ms=2)
    stream = gpu.log[-1][0]
    assert stream != 0 and gpu.log[:4] == [(0, "a"), (0, "a"), (0, "b"), (0, "b")], "compiled, and seen once more"
    in_turns = [(stream, what) for name in "ab" for what in ("flush", "event", name, "event")]
    assert gpu.log[-24:] == 3 * in_turns
    assert gpu.log[-30:-24] == [(stream, "a")] * 4 + [(stream, "b")] * 2, "2 ms of each before"
    a, b = result.timings
    assert (a.samples, b.samples, b.ratio) == ((0.5,) * 3, (1.0,) * 3, 2.0) and a.captured and a.calls == 1
    assert gpu.allocated == 2 * gpu.L2 and (result.rounds, result.warmup_ms, result.cache) == (3, 2, "flushed")


def test_nothing_that_was_made_is_left(gpu):
    tile.bench(lambda stream: gpu.work(stream, "a", 0.5), rounds=2)
    assert gpu.live == []

    def fails(stream):
        if len(gpu.log) > 40:
            raise RuntimeError("late")
        gpu.work(stream, "a", 0.5)
    with pytest.raises(RuntimeError, match="late"):
        tile.bench(fails, rounds=100, graph=False)
    assert gpu.live == []


def test_without_flush_about_a_millisecond_of_calls_is_one_graph(gpu):
    result = tile.bench(lambda stream: gpu.work(stream, "a", 0.25), rounds=2, flush=False, warmup_ms=0)
    assert [what for _, what in gpu.log[-12:]] == 2 * ["event", "a", "a", "a", "a", "event"]
    assert result["call"].samples == (0.25, 0.25) and result["call"].calls == 4 and result.cache == "warm"


def test_a_sequence_of_functions_is_called_in_turns_on_its_operands(gpu):
    rotated = [lambda stream, n=n: gpu.work(stream, f"operands {n}", 0.3) for n in range(2)]
    result = tile.bench({"a": rotated}, rounds=2, warmup_ms=0)
    assert [what for _, what in gpu.log[-12:]] == 2 * ["event", *2 * ["operands 0", "operands 1"], "event"]
    assert result["a"].calls == 4 and round(result["a"].median, 9) == 0.3 and result.cache == "rotated"
    tile.bench({"a": rotated}, rounds=2, warmup_ms=0, flush=True)
    assert [what for _, what in gpu.log[-8:]] == [x for n in range(2) for x in ("flush", "event", f"operands {n}", "event")]


def test_a_call_that_cannot_be_captured_is_launched_on_the_default_stream(gpu):
    """Also one that puts nothing on a stream; and all, if the caller wants no graphs."""
    result = tile.bench([lambda: gpu.work(0, "a", 0.5), lambda: None, lambda stream: gpu.work(stream, "c", 0.5)], rounds=2)
    assert [t.captured for t in result.timings] == [False, False, True]
    assert [s for s, what in gpu.log if what == "a"].count(0) == [what for _, what in gpu.log].count("a")
    assert not tile.bench(lambda stream: gpu.work(stream, "a", 0.5), graph=False, rounds=2)["call"].captured
    assert {s for s, what in gpu.log[-20:]} == {0}


def test_quantiles_are_those_of_numpy_and_ratios_those_of_the_same_round(gpu):
    samples = tuple(np.random.default_rng(0).uniform(1, 2, 37))
    timing = Timing("x", samples, 1.0, 1, True, nbytes=3_000_000, flops=8_000_000_000)
    for got, part in ((timing.p20, 0.2), (timing.median, 0.5), (timing.p80, 0.8)):
        assert got == pytest.approx(np.quantile(samples, part))
    assert quantile((4.0,), 0.2) == 4.0
    assert (timing.gbs, timing.tflops) == pytest.approx((3 / timing.median, 8 / timing.median))
    slower = iter(range(1, 1000))  # the clock drifts: each call takes longer than the one before

    def drifting(stream, factor):
        gpu.work(stream, "x", factor * next(slower))
    result = tile.bench({"a": partial(drifting, factor=1), "b": partial(drifting, factor=2)}, rounds=21, graph=False, warmup_ms=0)
    assert result["b"].ratio == pytest.approx(2.0, rel=0.1)


def test_the_result_is_a_table_and_data_for_json(gpu):
    result = tile.bench({"mine": lambda stream: gpu.work(stream, "a", 0.5), "host": lambda: gpu.work(0, "b", 2.0)}, rounds=2, nbytes=10**9)
    assert str(result).splitlines() == [
        "call  median us      p20      p80  ratio  GB/s  TFLOP/s  timed as",
        "mine     500.00   500.00   500.00  1.000  2000        -  graph",
        "host    2000.00  2000.00  2000.00  4.000   500        -  launches",
        "Fake GPU; 2 rounds in turns after 25 ms each, L2 flushed before each"]
    data = json.loads(json.dumps(result.describe()))
    assert data["timings"][1] | {"samples": None} == {
        "name": "host", "median": 2.0, "p20": 2.0, "p80": 2.0, "ratio": 4.0, "gbs": 500.0, "tflops": None, "nbytes": 10**9, "flops": None,
        "calls": 1, "captured": False, "samples": None}


def test_bad_arguments_of_bench_are_errors(gpu):
    for calls in (3, [], {}, {"a": 3}, {"a": []}, [lambda: None, "x"]):
        with pytest.raises(tile.LaunchError, match="bench takes a function without arguments, or a list or dict of them"):
            tile.bench(calls)
    for rounds in (0, True, 2.5):
        with pytest.raises(tile.LaunchError, match="rounds is a number from 1"):
            tile.bench(lambda: None, rounds=rounds)
    for warmup in (-1, "x", float("inf"), float("nan")):
        with pytest.raises(tile.LaunchError, match="warmup_ms are milliseconds from 0"):
            tile.bench(lambda: None, warmup_ms=warmup)
    for call in (lambda x, stream, y=1: None, add_one):
        with pytest.raises(tile.LaunchError, match="bench calls functions without arguments, and f needs x: give it with its arguments, as in lambda"):
            tile.bench({"f": call})
    with pytest.raises(ZeroDivisionError):
        tile.bench(lambda: 1 / 0)
    assert gpu.live == []


def test_without_a_gpu_bench_says_so(monkeypatch):
    monkeypatch.setattr("tilejit.runtime.driver.available", lambda: False)
    with pytest.raises(tile.LaunchError, match=r"bench times calls on a GPU, and no CUDA driver or no GPU was found; on the simulator, "
                                               r"kernel.simulate\(grid, ...\).stats has counts instead"):
        tile.bench(lambda: None)


def test_bytes_and_operations_are_those_of_the_kernels_that_a_call_launches(gpu, monkeypatch):
    monkeypatch.setattr(launch, "device_of", lambda bound, call: 0)
    monkeypatch.setattr(launch, "on_device", lambda bound, device: (bound, {}))
    monkeypatch.setattr(launch, "run", lambda name, code, asked, bound, copies, device, grid, call: gpu.work(call["stream"], name, 1.0))
    monkeypatch.setattr("tilejit.runtime.driver.target", lambda device: "sm_90a")
    x = np.zeros(8, np.float32)

    def twice(stream):
        for _ in range(2):
            add_one[1](x, stream=stream, backend="cuda")
    result = tile.bench({"kernels": twice, "no kernels": lambda stream: gpu.work(stream, "other", 1.0)}, rounds=2, warmup_ms=0)
    assert [(t.nbytes, t.flops, t.captured) for t in result.timings] == [(128, None, True), (None, None, True)]
    given = tile.bench(twice, rounds=2, warmup_ms=0, nbytes=5, flops=7)["twice"]
    assert (given.nbytes, given.flops) == (5, 7)


def test_a_launch_on_the_simulator_is_not_timed(gpu):
    x = np.zeros(8, np.float32)
    for call in (lambda: add_one[1](x), lambda: tile.autotune([dict(num_warps=1)])(add_one)[1](x)):
        with pytest.raises(tile.LaunchError, match="bench times calls on the GPU, and this launch of add_one is for the simulator: pass device arrays"):
            tile.bench(call)
    assert gpu.live == [] and not x.any()
    add_one[1](x)
    assert x.all()


def test_torch_and_cupy_work_on_the_stream_that_is_timed(gpu, monkeypatch):
    """And afterwards on theirs again. Calls that cannot be captured work on the default stream."""
    current = {"torch": [5], "cupy": [6]}

    class Working:
        def __init__(self, library, stream):
            self.library, self.stream = library, stream

        def __enter__(self):
            current[self.library].append(self.stream)

        def __exit__(self, *error):
            current[self.library].pop()
    cuda = SimpleNamespace(is_available=lambda: True, current_device=lambda: 1, default_stream=lambda device: 0,
                           ExternalStream=lambda handle, device: handle, stream=partial(Working, "torch"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    streams = SimpleNamespace(Device=lambda device: nullcontext(), ExternalStream=lambda handle, device: Working("cupy", handle),
                              Stream=SimpleNamespace(null=Working("cupy", 0)))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=streams))
    result = tile.bench({"torch": lambda: gpu.work(current["torch"][-1], "a", 1.0), "cupy": lambda: gpu.work(current["cupy"][-1], "b", 1.0),
                         "refuses": lambda: gpu.work(0, "c", 1.0)}, rounds=2)
    assert [t.captured for t in result.timings] == [True, True, False]
    assert current == {"torch": [5], "cupy": [6]}


# -- what is counted -----------------------------------------------------------------------------------------------------

def counted(kernel, grid, *args, **constants) -> Work:
    kernel.compile(*args, **constants, target="sm_90a")
    bound, options, _ = kernel.bind(args, constants)
    return work_of(kernel, bound, options, grid, "sm_90a")


@tile.jit
def multiply(a, b, c, BM: tile.constexpr, BK: tile.constexpr):
    i, j = tile.program_id(0) * BM, tile.program_id(1) * BM
    acc = tile.zeros((BM, BM), tile.float32)
    for k in range(0, a.shape[1], BK):
        acc = tile.dot(tile.load(a[i:i + BM, k:k + BK]), tile.load(b[j:j + BM, k:k + BK]), acc, trans_b=True)
    tile.store(c[i:i + BM, j:j + BM], acc)


def test_bytes_are_those_of_the_arrays_and_operations_those_of_products_in_all_trips_and_ctas():
    a, b, c = (tile.ArraySpec(s, d) for s, d in (((96, 64), "float16"), ((64, 64), "float16"), ((96, 64), "float32")))
    assert counted(multiply, (3, 2, 1), a, b, c, BM=32, BK=16) == Work(2 * (96 + 64) * 64 + 4 * 96 * 64, 2 * 96 * 64 * 64)


@tile.jit
def causal(q, out, B: tile.constexpr):
    for t in range(tile.program_id(0), q.shape[0] // B, tile.num_programs(0)):
        tile_ = tile.load(q[t * B:(t + 1) * B, 0:16])
        acc = tile.zeros((B, B), tile.float32)
        for _ in range(t + 1):
            acc = tile.dot(tile_, tile_, acc, trans_b=True)
        if t > 1:
            acc = tile.dot(tile_, tile_, acc, trans_b=True)
        tile.store(out[t * B:(t + 1) * B, 0:B], acc)


def test_products_are_counted_in_loops_and_conditions_that_depend_on_the_cta_and_on_outer_loops():
    q, out = tile.ArraySpec((80, 16), "float16"), tile.ArraySpec((80, 16), "float32")
    assert counted(causal, (2, 1, 1), q, out, B=16).flops == (1 + 2 + 3 + 4 + 5 + 3) * 2 * 16 * 16 * 16


@tile.jit
def in_roles(x, y, steps, B: tile.constexpr):
    acc = tile.zeros((64, 64), tile.float32)
    left = 7
    for t in range(2):
        n = steps if t == 0 else left
        for _ in range(n):
            with tile.each_warpgroup(range(2)):
                tile.store(y[0:64, 0:64], tile.dot(tile.load(x[0:64, 0:16]), tile.load(x[0:64, 0:16]), trans_b=True))
        left = left - n


def test_products_are_counted_by_arguments_carried_values_and_each_warpgroup_s():
    x, y = tile.ArraySpec((64, 16), "float16"), tile.ArraySpec((64, 64), "float32")
    assert counted(in_roles, (3, 1, 1), x, y, 5, B=1, num_warps=8).flops == 3 * (5 + 2) * 2 * 2 * 64 * 64 * 16


@tile.jit
def by_data(n, x, y):
    acc = tile.zeros((16, 16), tile.float32)
    for _ in range(tile.load(n[0])):
        acc = tile.dot(tile.load(x[0:16, 0:16]), tile.load(x[0:16, 0:16]), acc)
    tile.store(y[0:16, 0:16], acc)


def test_products_under_loops_that_depend_on_data_are_unknown_and_repeated_elements_count_once():
    n, x, y = tile.ArraySpec((1,), "int32"), tile.ArraySpec((16, 16), "float16", (0, 1)), tile.ArraySpec((16, 16), "float32")
    assert counted(by_data, (1, 1, 1), n, x, y) == Work(4 + 2 * 16 + 4 * 256, None)


@tile.jit
def add_one(x, B: tile.constexpr = 8):
    i = tile.program_id(0) * B
    tile.store(x[i:i + B], tile.load(x[i:i + B]) + 1)


def test_an_array_that_is_read_and_written_counts_twice_and_calls_without_kernels_have_no_counts():
    work = counted(add_one, (1, 1, 1), tile.ArraySpec((8,), "float32"))
    assert work == Work(64, 0)
    bound, options, _ = add_one.bind((tile.ArraySpec((8,), "float32"),), {})
    once = (add_one, bound, options, (1, 1, 1), "sm_90a")
    assert total_work([]) == Work() and total_work([once, once]) == Work(128, None)
    assert launches_seen.get() is None


@pytest.mark.unsanitized
@pytest.mark.unperturbed
@needs_gpu()
@in_child(timeout=120)
def test_the_gpu_copies_at_a_plausible_speed_in_graphs():
    n = 1 << 26
    x = tile.to_device(np.zeros(n, np.float32), 0)
    grid = (n // 2048,)
    result = tile.bench({"graph": lambda stream: add_one[grid](x, B=2048, stream=stream), "launches": lambda: add_one[grid](x, B=2048)}, rounds=20)
    print(result)
    assert result["graph"].captured and not result["launches"].captured
    assert result["graph"].nbytes == 8 * n and 100 < result["graph"].gbs < 20_000
    assert 0.5 < result["launches"].ratio < 2 and len(np.unique(x.numpy())) == 1
