"""Timelines of simulations: who did what when, in steps."""

import json
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
import tilejit as tile
from tilejit.sim.timed import STEPS_IN_FLIGHT


@tile.jit(num_warps=4)
def staged(A, B):
    s = tile.alloc((8, 64), A.dtype)
    bar = tile.mbarrier(count=1)
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0:8, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.store(B[0:8, 0:64], tile.load(s))


@tile.jit(num_warps=8)
def ringed(A, B, N: tile.constexpr):
    ring = tile.ring(2, A=((8, 64), A.dtype))
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(N):
                with ring.produce() as slot:
                    tile.copy_async(slot.A, A[8 * i:8 * i + 8, 0:64], mbar=slot.full)
    with tile.warpgroup(1):
        for i in range(N):
            with ring.consume() as slot:
                tile.store(B[8 * i:8 * i + 8, 0:64], tile.load(slot.A) + 1)


def arrays(rows=8):
    return np.ones((rows, 64), np.float32), np.zeros((rows, 64), np.float32)


def test_a_wait_ends_when_the_copy_that_it_waits_for_has_ended():
    report = staged.simulate((1,), *arrays(), timeline=True)
    spans = report.timeline().spans
    (copy,) = [s for s in spans if s.kind == "async"]
    assert copy.track == "TMA" and copy.end - copy.start == STEPS_IN_FLIGHT and "copy_async" in copy.note
    (wait,) = [s for s in spans if s.kind == "wait"]
    assert wait.track == "warps 0-3" and wait.end == copy.end and "bar" in wait.note and wait.line == copy.line + 1
    after = min(s.start for s in spans if s.track == "warps 0-3" and s.start > wait.start)
    assert after == wait.end


def test_the_threads_of_a_scope_do_one_thing_at_a_time():
    for track in ("warps 4-7", "thread 0"):
        spans = [s for s in ringed.simulate((1,), *arrays(32), N=4, timeline=True).timeline().spans if s.track == track]
        assert spans and all(a.end <= b.start for a, b in pairwise(spans))


@pytest.mark.parametrize("seed", [0, 3])
def test_a_producer_waits_for_the_slots_that_its_consumer_frees(seed):
    timeline = ringed.simulate((1,), *arrays(64), N=8, seed=seed, timeline=True).timeline()
    loads = [s for s in timeline.spans if s.kind == "async"]
    assert len(loads) == 8 and any(a.start < b.start < a.end for a, b in pairwise(loads))     # two stages overlap
    waits = [s for s in timeline.spans if s.kind == "wait"]
    assert {s.track for s in waits} == {"warps 4-7", "thread 0"}
    assert any("ring.full" in s.note for s in waits if s.track == "warps 4-7")
    freed = [s.start for s in waits if s.track == "thread 0"]
    assert len(freed) >= 4                                                  # two slots, 8 loads
    track, line, _, time = timeline.waits()[0][1:]
    assert track == "warps 4-7" and time == sum(s.end - s.start for s in waits if (s.track, s.line) == (track, line))


@tile.jit(num_warps=2)
def grouped(A, B):
    s = tile.alloc((8, 64), A.dtype)
    tile.copy_async(s, A[0:8, 0:64])
    tile.cp_async_commit()
    tile.cp_async_wait(0)
    tile.sync()
    tile.store(B[0:8, 0:64], tile.load(s))


def test_a_wait_for_groups_ends_with_their_copies():
    spans = grouped.simulate((1,), *arrays(), timeline=True).timeline().spans
    copies = [s for s in spans if s.track == "cp.async"]
    (wait,) = [s for s in spans if s.kind == "wait"]
    assert copies and wait.name == "cp_async_wait" and wait.end == max(s.end for s in copies)


@tile.jit(num_warps=2)
def uneven(A, B):
    met = tile.named_barrier(64)
    with tile.warp(0):
        x = tile.load(A[0, 0:64])
        for _ in range(40):
            x = x + 1
        tile.store(B[0, 0:64], x)
        met.sync()
    with tile.warp(1):
        met.sync()
        tile.store(B[1, 0:64], tile.load(A[1, 0:64]))


def test_a_named_barrier_is_waited_for_until_the_last_warp_arrives():
    timeline = uneven.simulate((1,), *arrays(), timeline=True).timeline()
    (wait,) = [s for s in timeline.spans if s.kind == "wait"]
    assert wait.track == "warp 1" and wait.end - wait.start > 40
    assert wait.end == min(s.end for s in timeline.spans if s.track == "warp 0" and "sync" in s.name)


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def in_cluster(A, B):
    x = tile.load(A[tile.cta_rank(), 0:64])
    if tile.cta_rank() == 0:
        for _ in range(20):
            x = x + 1
    tile.cluster_sync()
    tile.store(B[tile.cta_rank(), 0:64], x)


def test_ctas_that_part_have_times_of_their_own_and_meet_at_the_clusters_barrier():
    report = in_cluster.simulate((2,), *arrays(), timeline=True)
    both = report.timeline([0, 1])
    assert {s.process for s in both.spans} == {"CTA 0", "CTA 1"}
    long, short = ([s for s in both.spans if s.process == f"CTA {n}"] for n in (0, 1))
    assert len(long) > len(short) + 15
    waits = [s for s in short if s.kind == "wait" and s.name == "cluster_wait"]
    assert len(waits) == 1 and waits[0].end - waits[0].start > 15


@tile.jit(num_warps=1)
def stuck(A, B):
    bar = tile.mbarrier(count=1)
    tile.store(B[0, 0:64], tile.load(A[0, 0:64]))
    bar.wait(phase=0)


def test_a_deadlock_shows_who_waits_for_ever():
    report = stuck.simulate((1,), *arrays(), timeline=True)
    assert [f.kind for f in report.findings] == ["deadlock"]
    last = report.timeline().spans[-1]
    assert last.kind == "wait" and "missing 1 of 1 arrival" in last.note and last.note.endswith("for ever")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_recording_changes_neither_results_nor_findings_nor_counts(seed):
    reports, results = [], []
    for timeline in (False, True):
        a, b = arrays(32)
        reports.append(ringed.simulate((1,), a, b, N=4, seed=seed, timeline=timeline))
        results.append(b)
    assert np.array_equal(*results) and str(reports[0]) == str(reports[1])
    assert reports[0].stats == reports[1].stats


def test_a_trace_has_what_perfetto_reads(tmp_path):
    timeline = ringed.simulate((3,), *arrays(32), N=4, timeline=True).timeline([0, 2])
    trace = json.loads(timeline.save(tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert sorted(processes.values()) == ["CTA 0", "CTA 2"]
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(timeline.spans)
    for e in complete:
        assert isinstance(e["name"], str) and e["dur"] > 0 and e["ts"] >= 0 and (e["pid"], e["tid"]) in named
    for key in named:  # viewers nest the events of a thread, so none may begin in another and end after it
        own = sorted((e["ts"], -e["dur"]) for e in complete if (e["pid"], e["tid"]) == key)
        assert all(a - d <= b for (a, d), (b, _) in pairwise(own))
    assert {"TMA", "TMA (2)", "warps 4-7", "thread 0"} <= set(named.values())


def test_a_picture_is_drawn_and_a_text_is_no_wider_than_asked_for(tmp_path):
    timeline = ringed.simulate((1,), *arrays(32), N=4, timeline=True).timeline()
    picture = timeline.save(tmp_path / "timeline.svg").read_text()
    root = ElementTree.fromstring(picture)
    assert picture == timeline._repr_svg_() and "hsl(" not in picture and root[0].get("fill") == "#ffffff"
    titles = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum("tensor load" in t for t in titles) == 4 and any("ring.full" in t for t in titles)
    rows = [line for line in timeline.text(width=80).splitlines() if line.endswith("|")]
    assert [row[:26].strip() for row in rows] == ["warps 0-7", "warps 4-7", "thread 0", "TMA", ""]
    assert all(len(line) <= 80 for line in timeline.text(width=80).splitlines())
    assert all(len(row) == 80 for row in rows) and "#" in rows[3] and "~" in rows[1]


def test_a_timeline_that_was_not_recorded_and_wrong_requests_are_explained(tmp_path):
    with pytest.raises(tile.LaunchError, match=r"simulate\(grid, \.\.\., timeline=True\)"):
        staged.simulate((1,), *arrays()).timeline()
    report = staged.simulate((2,), *arrays(), timeline=True)
    with pytest.raises(tile.LaunchError, match="linear number in the grid, 0 to 1 here, not 2"):
        report.timeline(2)
    with pytest.raises(tile.LaunchError, match=r"a trace \(\.json\) or as a picture \(\.svg\), not as 'trace\.txt'"):
        report.timeline().save(tmp_path / "trace.txt")
