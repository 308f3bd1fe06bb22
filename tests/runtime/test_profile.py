"""`tile.profile`: the times of named ranges."""

import ctypes
import re
from itertools import pairwise

import numpy as np
import pytest
import tilejit as tile
from tilejit import profiling
from tilejit.jit import profiler
from tilejit.profiling import RECORD_TYPE, decode

from tests.gpu import in_child, needs_gpu

PIPELINE = """
def pipeline(A, B, N: tile.constexpr):
    ring = tile.ring(2, A=((8, 64), A.dtype))
    first = tile.program_id(0) * N
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(N):
                with ring.produce() as slot, tile.named_range("load"):
                    tile.copy_async(slot.A, A[8 * (first + i):8 * (first + i) + 8, 0:64], mbar=slot.full)
    with tile.warpgroup(1):
        with tile.named_range("all"):
            for i in range(N):
                with ring.consume() as slot:
                    with tile.named_range("store"):
                        tile.store(B[8 * (first + i):8 * (first + i) + 8, 0:64], tile.load(slot.A) + 1)
"""
pipeline = tile.jit(source=PIPELINE, num_warps=8)
copied = tile.ArraySpec((32, 64), "float32")


def arrays(rows=32):
    return np.ones((rows, 64), np.float32), np.zeros((rows, 64), np.float32)


def inside(outer, inner):
    return outer.start <= inner.start and inner.end <= outer.end


def test_the_simulator_gives_the_ranges_in_steps_and_they_nest():
    a, b = arrays(64)
    timeline = tile.profile(lambda: pipeline[(2,)](a, b, N=4))
    assert (b == 2).all() and timeline.unit == "steps"
    assert {name: len(times) for name, times in timeline.ranges().items()} == {"load": 8, "all": 2, "store": 8}
    assert {s.process for s in timeline.spans} == {"CTA 0", "CTA 1"}
    whole = {s.process: s for s in timeline.spans if s.name == "all"}
    for s in timeline.spans:
        assert s.end > s.start and s.line and s.track == ("thread 0" if s.name == "load" else "warps 4-7")
        assert s.name != "store" or inside(whole[s.process], s)
    assert [s.process for s in tile.profile(lambda: pipeline[(2,)](a, b, N=4), ctas=1).spans].count("CTA 1") == 0


def test_a_timeline_shows_ranges_in_rows_of_their_own():
    timeline = pipeline.simulate((1,), *arrays(), N=4, timeline=True).timeline()
    for row in timeline.rows():
        assert len({s.kind == "range" for s in row.spans}) == 1
        assert all(one.end <= other.start for one, other in pairwise(row.spans))
    assert timeline.ranges().keys() == {"load", "all", "store"}
    own = [s for s in timeline.spans if s.track == "warps 4-7" and s.kind != "range"]
    assert all("named_range" not in s.name and "mark" not in s.name for s in own)     # marks take no step


def test_launches_of_one_call_follow_each_other():
    timeline = tile.profile(lambda: [pipeline[(1,)](*arrays(), N=4) for _ in range(2)], warmup=0)
    first, second = ([s for s in timeline.spans if s.process.startswith(f"{n}. pipeline")] for n in (1, 2))
    assert len(first) == len(second) == 9 and max(s.end for s in first) <= min(s.start for s in second)


def test_a_launch_that_is_not_profiled_has_no_code_for_ranges():
    blocks = tile.jit(source=re.sub(r"tile\.named_range\(\"(\w+)\"\)", "nothing", PIPELINE).replace(
        ", nothing", "").replace("with nothing:", "if True:"), num_warps=8)
    strip = lambda ptx: [line for line in ptx.splitlines() if not line.strip().startswith((".loc", "//"))]
    plain, marked = (k.compile(copied, copied, N=4) for k in (blocks, pipeline))
    assert strip(plain.ptx) == strip(marked.ptx) and plain.shared_bytes == marked.shared_bytes
    assert "ranges" not in marked.recipe and "tilejit_profile" not in marked.ptx


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_103a", "sm_120a"])
def test_a_profiled_kernel_records_the_clock_for_every_target(target):
    plain, marked = (pipeline.compile(copied, copied, N=4, target=target, profile=on) for on in (False, True))
    assert marked.ptx.count("%globaltimer") == 6 and marked.recipe["ranges"] == ["load", "all", "store"]
    assert ".visible .global .align 16 .b8 tilejit_profile[16];" in marked.ptx
    assert marked.shared_bytes == plain.shared_bytes + 4 * 8 and marked.cubin      # a counter for each warp
    assert marked.ptx.count("activemask") == 2                                     # the marks of the elected thread
    tags = sorted(int(n) for n in re.findall(r"st.global.v4.u32 \[a\], \{m, l, (\d+), q\}", marked.ptx))
    assert tags == [1, 2, 3, 4, 5, 6]


@tile.jit(num_warps=2)
def rows_apart(x, y):
    with tile.named_range("outer"):
        v = tile.load(x[0:64])
        if tile.thread_id() < 40:
            with tile.named_range("some"):
                tile.store(y[tile.thread_id()], 1.0)
        with tile.warp(1), tile.named_range("warp"):
            tile.store(y[64:128], tile.load(x[64:128]))
        tile.store(y[128:192], v)


def test_ranges_stand_in_branches_of_some_threads_and_on_ampere():
    x, y = np.ones(192, np.float32), np.zeros(192, np.float32)
    timeline = tile.profile(lambda: rows_apart[(1,)](x, y))
    assert {name: len(times) for name, times in timeline.ranges().items()} == {"outer": 1, "some": 1, "warp": 1}
    assert rows_apart.compile(x, y, target="sm_80", profile=True).ptx.count("%globaltimer") == 6


def marks(*logs, room=8):
    """Records of one CTA: for each warp (time, tag) pairs."""
    found = np.zeros((1, len(logs), room), RECORD_TYPE)
    for warp, log in enumerate(logs):
        for n, (time, tag) in enumerate(log[:room]):
            found[0, warp, n] = time, tag, 17
    return found


def test_records_become_ranges_that_nest_or_overlap():
    spans, notes = decode(marks([(100, 1), (110, 3), (120, 4), (130, 3), (150, 4), (160, 2)],
                                [], [(105, 1), (108, 3), (109, 2), (140, 4)]), ["outer", "inner"])
    found = [(s.process, s.track, s.name, s.start, s.end) for s in spans]
    assert found == [("CTA 0 on SM 17", "warp 0", "inner", 110, 120), ("CTA 0 on SM 17", "warp 0", "inner", 130, 150),
                     ("CTA 0 on SM 17", "warp 0", "outer", 100, 160), ("CTA 0 on SM 17", "warp 2", "outer", 105, 109),
                     ("CTA 0 on SM 17", "warp 2", "inner", 108, 140)]
    assert not notes


def test_a_log_without_room_is_said():
    spans, notes = decode(marks([(10 * n, 1 + n % 2) for n in range(12)]), ["r"])
    assert len(spans) == 4 and "full in 1 warps" in notes[0] and "records=16" in notes[0]


def test_wrong_calls_of_profile_and_named_range_are_explained():
    with pytest.raises(tile.LaunchError, match="profile takes a function without arguments.*not int"):
        tile.profile(3)
    with pytest.raises(tile.LaunchError, match="records is a number from 2, not 0"):
        tile.profile(lambda: None, records=0)
    with pytest.raises(tile.LaunchError, match="launched no kernel that runs a"):
        tile.profile(lambda: None)
    with pytest.raises(tile.LaunchError, match="profile is True or False, not 1"):
        pipeline.compile(copied, copied, N=4, profile=1)

    @tile.jit
    def unnamed(x):
        with tile.named_range(""):
            pass

    @tile.jit
    def numbered(x):
        with tile.named_range(x.shape[0]):
            pass
    with pytest.raises(tile.CompilationError, match="such as \"load\", not an empty one"):
        unnamed.compile(copied)
    with pytest.raises(tile.CompilationError, match="the name of the range, a string such as \"load\", not"):
        numbered.compile(copied)


@needs_gpu()
@in_child(timeout=60)
def test_the_gpu_gives_the_ranges_of_each_warp_in_nanoseconds():
    x = tile.to_device(np.ones((256, 64), np.float32))
    y = tile.to_device(np.zeros((256, 64), np.float32))
    timeline = tile.profile(lambda: pipeline[(8,)](x, y, N=4))
    assert (y.numpy() == 2).all() and timeline.unit == "ns"
    assert {name: len(t) for name, t in timeline.ranges().items()} == {"load": 32, "all": 32, "store": 128}
    assert 0 < timeline.end - timeline.start < 1e7 and not timeline.notes
    assert {s.track for s in timeline.spans} == {"warp 0", "warp 4", "warp 5", "warp 6", "warp 7"}


class HostMemory:
    """The driver's memory functions, on host memory."""

    def __init__(self, monkeypatch):
        self.live = {}
        for name in ("allocate", "free", "fill", "copy_to_device", "copy_to_host"):
            monkeypatch.setattr(f"tilejit.runtime.driver.{name}", getattr(self, name))
        monkeypatch.setattr("tilejit.runtime.driver.synchronize", lambda device: None)

    def allocate(self, nbytes, device=0):
        block = np.full(nbytes, 0xAB, np.uint8)
        self.live[block.ctypes.data] = block
        return block.ctypes.data

    def free(self, address, device=0):
        del self.live[address]

    def fill(self, address, value, nbytes, device=0):
        ctypes.memset(address, value, nbytes)

    def copy_to_device(self, to, source, nbytes, device=0):
        ctypes.memmove(to, source, nbytes)

    copy_to_host = copy_to_device


class FakeKernel:
    """A compiled kernel of two warps with the range "r", whose launch fills the buffer that the variable names."""

    recipe = {"ranges": ["r"], "threads": 64}

    def __init__(self):
        self.variable = np.zeros(2, np.uint64)
        self.profile = self.variable.ctypes.data

    def launcher(self, device):
        return self

    def run(self):
        buffer, sizes = int(self.variable[0]), self.variable[1:].view(np.uint32)
        records, ctas = map(int, sizes)
        log = np.frombuffer((ctypes.c_char * (ctas * 2 * records * 16)).from_address(buffer), RECORD_TYPE)
        log = log.reshape(ctas, 2, records)
        assert not log["tag"].any()
        for cta in range(ctas):
            log[cta, 1, :2] = [(5000 + 10 * cta, 1, cta + 7), (5064 + 10 * cta, 2, cta + 7)]
        return "launched"


def test_a_launch_gets_a_buffer_for_its_marks_and_gives_it_back(monkeypatch):
    memory, kernel = HostMemory(monkeypatch), FakeKernel()
    with profiling._context(records=4, ctas=3) as seen:
        assert seen.launch("k", kernel, 0, (5, 2, 1), kernel.run) == "launched"
    timeline = seen.timeline()
    assert [(s.process, s.track, s.name, s.start, s.end) for s in timeline.spans] == [
        (f"CTA {n} on SM {n + 7}", "warp 1", "r", 10 * n, 10 * n + 64) for n in range(3)]
    assert not memory.live and not kernel.variable.any()


def test_a_launch_that_fails_leaves_no_buffer_behind(monkeypatch):
    memory, kernel = HostMemory(monkeypatch), FakeKernel()
    with pytest.raises(tile.LaunchError, match="no"), profiling._context(records=4, ctas=None) as seen:
        seen.launch("k", kernel, 0, (1, 1, 1), lambda: (_ for _ in ()).throw(tile.LaunchError("no")))
    assert not memory.live and not kernel.variable.any() and profiler.get() is None


@tile.jit(num_warps=1)
def left_early(x, y, N: tile.constexpr):
    for i in range(N):
        with tile.named_range("trip"):
            if i == 2:
                break
            tile.store(y[i, 0:32], tile.load(x[i, 0:32]))
    with tile.named_range("rest"):
        if tile.program_id(0) == 1:
            return
        with tile.named_range("last"):
            tile.store(y[N, 0:32], tile.load(x[N, 0:32]))


def test_a_range_ends_where_a_loop_or_the_kernel_is_left():
    x, y = np.ones((6, 32), np.float32), np.zeros((6, 32), np.float32)
    report = left_early.simulate((2,), x, y, N=5, checks=False, timeline=True)      # both CTAs store the same
    for cta, names in ((0, ["trip", "trip", "trip", "rest", "last"]), (1, ["trip", "trip", "trip", "rest"])):
        assert [s.name for s in report.timeline(cta).spans if s.kind == "range"] == names
    assert y[:, 0].tolist() == [1, 1, 0, 0, 0, 1]
