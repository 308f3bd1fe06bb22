"""Timing of candidates in child processes, with real processes that hang, fault and crash on a fake GPU."""

import os
import pickle
import signal
import time
from functools import partial

import numpy as np
import pytest
from tilejit.errors import LaunchError
from tilejit.runtime import driver
from tilejit.runtime.arguments import ArraySpec
from tilejit.runtime.arrays import ArrayView
from tilejit.tuning import measuring
from tilejit.tuning.kept import time_here
from tilejit.tuning.measuring import (
    Array,
    Call,
    Candidate,
    Child,
    Contents,
    NotStarted,
    TookTooLong,
    merge_spans,
    span_of,
    time_share,
)

from tests.runtime.fake_child import CRASHES, FAULTS, HANGS, HANGS_LATER, PROGRAM, REFUSED, FakeMemory


@pytest.fixture
def call(monkeypatch):
    """A call with one array, [0.125, 0.25] and a gap, 8 bytes after a multiple of 512, on a fake GPU."""
    monkeypatch.setattr(measuring, "PROGRAM", PROGRAM)
    contents = Contents(((0, 12, 8),))
    contents.map[:12] = np.array([0.125, 7, 0.25], np.float32).tobytes()
    yield Call((Array(0, 0, (2,), (2,), "float32"), 3), contents)
    contents.close()


def candidate(warps: int) -> Candidate:
    return Candidate({"threads": 32 * warps}, b"", (1, 1, 1))


def test_a_candidate_that_hangs_faults_or_crashes_costs_one_process_and_the_others_are_timed(call):
    """Also one that hangs only after its first timings. Each is told once, in order."""
    warps, seen = [1, HANGS, 4, FAULTS, CRASHES, REFUSED, HANGS_LATER, 8], []
    times, failed = time_share({n: candidate(w) for n, w in enumerate(warps)}, call, 0, 0.5, None, lambda n, ms: seen.append(n))
    assert {n: round(t, 6) for n, t in times.items()} == {0: 0.25, 2: 1.0, 7: 2.0}
    assert {n: str(e) for n, e in failed.items()} == {
        1: "it had not ended after 0.5 s", 3: "a kernel failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)", 4: "the process that ran it was ended by SIGSEGV",
        5: "the launch failed: CUDA_ERROR_INVALID_VALUE (1); grid (1, 1, 1)", 6: "it had not ended after 0.5 s"}
    assert isinstance(failed[1], TookTooLong) and failed[1].limit == 0.5 and seen == list(range(8))
    assert isinstance(pickle.loads(pickle.dumps(failed[1])), TookTooLong)


def test_one_process_serves_candidates_until_one_is_lost(call):
    child = Child(call, 0, 5.0)
    child.start()
    try:
        first = child.process.pid
        assert child.burst(0, candidate(4), 1) == 1.0 and round(child.burst(0, candidate(4), 10), 6) == 1.0
        with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
            child.burst(1, candidate(REFUSED), 1)
        assert child.burst(2, candidate(1), 1) == 0.25 and child.process.pid == first
        with pytest.raises(LaunchError, match="ILLEGAL_ADDRESS"):
            child.burst(3, candidate(FAULTS), 1)
        assert child.burst(2, candidate(1), 1) == 0.25 and child.process.pid != first
        second = child.process.pid
    finally:
        child.end()
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


def test_a_child_that_cannot_start_says_why(call, monkeypatch):
    monkeypatch.setenv("FAKE_CHILD_STARTS", "no")
    with pytest.raises(NotStarted, match=r"could not start: the context of device 0 failed: CUDA_ERROR_OUT_OF_MEMORY"):
        time_share({0: candidate(1)}, call, 0, 5.0, None)
    monkeypatch.setattr(measuring, "PROGRAM", "import no_such_module; main")
    with pytest.raises(NotStarted, match=r"could not start: ended with code 1: ModuleNotFoundError: No module named 'no_such_module'"):
        time_share({0: candidate(1)}, call, 0, 5.0, None)
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(NotStarted, match="no process could be started to time candidates"):
        time_share({0: candidate(1)}, call, 0, 5.0, None)


def test_a_budget_times_at_least_one_candidate(call):
    times, failed = time_share({0: candidate(REFUSED), 1: candidate(1), 2: candidate(4)}, call, 0, 5.0, 0.0)
    assert list(times) == [1] and list(failed) == [0]


def test_a_child_ends_with_its_parent(call, tmp_path):
    """Also while its candidate hangs."""
    pid = os.fork()
    if not pid:
        child = Child(call, 0, 100.0)
        child.start()
        (tmp_path / "pid").write_text(str(child.process.pid))
        child.connection.send((0, candidate(HANGS), 1))
        time.sleep(0.3)
        os._exit(0)
    os.waitpid(pid, 0)
    orphan = int((tmp_path / "pid").read_text())
    for _ in range(100):
        try:
            state = open(f"/proc/{orphan}/stat").read().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            state = "gone"
        if state in ("Z", "gone"):
            return
        time.sleep(0.05)
    os.kill(orphan, signal.SIGKILL)
    pytest.fail("the child lives on")


def test_in_this_process_what_launches_write_is_undone_and_one_that_fails_is_left_out(monkeypatch):
    gpu, memory, told = FakeMemory(monkeypatch), np.arange(8, dtype=np.float32), []

    def launch(stream, milliseconds):
        memory[:] += 1
        gpu.work(stream, "x", milliseconds)

    def refused(stream):
        raise LaunchError("no")
    launches = {0: partial(launch, milliseconds=2.0), 1: refused, 2: partial(launch, milliseconds=0.5)}
    times, failed = time_here(launches, [(memory.ctypes.data, 24)], 0, lambda n, first: told.append((n, first)) or True)
    assert times == {0: 2.0, 2: 0.5} and list(failed) == [1] and told == [(0, 2.0), (1, None), (2, 0.5)]
    assert memory[:6].tolist() == [0, 1, 2, 3, 4, 5] and memory[7] > 7 and all(made[0] == "event" for made in gpu.live)


# -- the arrays ----------------------------------------------------------------------------------------------------------

def spec(memory: np.ndarray, device=0) -> ArraySpec:
    """A NumPy array as if it was on a device."""
    strides = tuple(s // memory.itemsize for s in memory.strides)
    return ArraySpec.of_view(ArrayView(memory.ctypes.data, memory.shape, strides, memory.dtype.name, device, owner=memory))


class Arguments:
    def __init__(self, *runtime):
        self.runtime = list(runtime)


def test_arrays_that_share_memory_share_it_in_the_copy(monkeypatch):
    """Views, negative strides, gaps, empty arrays; each block is as aligned as its original."""
    FakeMemory(monkeypatch)
    base = np.arange(64, dtype=np.float32)
    views = base[3:20], base[40:8:-2], base[50:60].reshape(2, 5).T, base[5:5], np.arange(7, dtype=np.int8)
    call = Call.copy(Arguments(*map(spec, views), 2.5), 0)
    monkeypatch.setattr(driver, "context", lambda device: 1)
    server = measuring.Server(pickle.loads(pickle.dumps(call)), 0)
    assert len(call.contents.blocks) == 3 and server.arguments[-1] == 2.5
    seen = [a.__tilejit_view__() for a in server.arguments[:-1]]
    for view, original in zip(seen, views):
        if original.size:
            assert (view.pointer - original.ctypes.data) % measuring.ALIGNED == 0
            at = [sum(i * s for i, s in zip(index, view.strides)) for index in np.ndindex(view.shape)]
            kind = np.ctypeslib.as_ctypes_type(original.dtype)
            assert [kind.from_address(view.pointer + n * original.itemsize).value for n in at] == original.reshape(-1).tolist()
        assert view.shape == original.shape
    assert seen[1].pointer - seen[0].pointer == views[1].ctypes.data - views[0].ctypes.data
    call.contents.close()


def test_spans_of_arrays_are_joined_where_they_overlap_but_not_where_they_touch():
    assert merge_spans([(10, 20), (40, 40), (15, 30), (30, 31), (50, 60), (12, 13)]) == [(10, 30), (30, 31), (50, 60)]
    x = np.zeros((4, 6), np.float16)
    for view in (x, x[1:, ::2], x[::-1, 2:], x.T, x[:, :0], np.broadcast_to(x[0], (3, 6))):
        low, high = span_of(spec(view))
        if view.size:
            assert (low, high) == np.lib.array_utils.byte_bounds(view)
        else:
            assert low == high
