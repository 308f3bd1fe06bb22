"""What `autotune` tries, what it keeps of it, and where it is timed. The GPU is a fake one, but for the processes that hang and crash."""

import ctypes
import json
import os
import sys
import types

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import LaunchError, TileWarning
from tilejit.jit import Kernel
from tilejit.runtime import driver
from tilejit.runtime.arrays import ArrayView
from tilejit.tuning import measuring, workers
from tilejit.tuning.measuring import NotStarted, TookTooLong

from tests.gpu import needs_module
from tests.runtime.fake_child import CRASHES, FAULTS, HANGS, PROGRAM, FakeMemory
from tests.runtime.fakes import FakeDeviceArray, FakeTuning


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def gpu(monkeypatch):
    return FakeTuning(monkeypatch)


FACTOR = 2


@tile.jit
def scale(x, n, BLOCK: tile.constexpr, EXTRA: tile.constexpr = 5):
    i = tile.program_id(0) * BLOCK
    tile.store(x[i:i + BLOCK], tile.load(x[i:i + BLOCK]) * FACTOR)


def tuned(*warps, kernel=scale, **how):
    """The kernel with these numbers of warps, as another process would have it."""
    return tile.autotune(dict(BLOCK=32, num_warps=tile.choice(*warps)), **how)(kernel)


def grid(meta):
    return (tile.cdiv(meta["n"], meta["BLOCK"]),)


# -- the space -----------------------------------------------------------------------------------------------------------

def test_a_space_has_each_choice_in_each_way_that_the_constraints_allow():
    space = dict(BLOCK=tile.choice(64, 128), num_warps=tile.choice(1, 4, 8), pdl=True)
    assert [tuple(c.values()) for c in tile.autotune(space)(scale).configs] == [(b, w, True) for b in (64, 128) for w in (1, 4, 8)]

    def whole_warps(BLOCK, num_warps):
        return BLOCK >= 32 * num_warps
    found = tile.autotune(space, where=[whole_warps, lambda pdl, max_shared, num_warps: pdl and max_shared is None and num_warps > 1])(scale)
    assert [(c["BLOCK"], c["num_warps"]) for c in found.configs] == [(128, 4)]
    beside = tile.autotune([dict(BLOCK=tile.choice(64, 128)), dict(BLOCK=64), dict(BLOCK=256, num_warps=8)])(scale)
    assert [(c["BLOCK"], c["num_warps"]) for c in beside.configs] == [(64, 4), (128, 4), (256, 8)], "each once"
    assert tile.autotune(dict(BLOCK=8), where=lambda **all_of_it: all_of_it["num_warps"] == 4)(scale).configs == [dict(BLOCK=8)]


@pytest.mark.parametrize("make,words", [
    (lambda: tile.choice(), r"choice takes at least one value, as in tile.choice\(64, 128\)"),
    (lambda: tile.choice([64, 128]), r"takes its values one by one, as in tile.choice\(64, 128\): write tile.choice\(\*values\) for those of a list"),
    (lambda: tile.choice(range(3)), "those of a range"),
    (lambda: tile.choice(tile.choice(1)), r"choice takes values, and choice\(1\) is another choice"),
    (lambda: tile.autotune(dict(BLOCK=64, WARPS=tile.choice(1)))(scale), "constexpr parameters and launch options of scale, and 'WARPS' is none"),
    (lambda: tile.autotune(dict(BLOK=tile.choice(64)))(scale), "'BLOK' is none; BLOCK is similar|did you mean"),
    (lambda: tile.autotune(dict(BLOCK=tile.choice(*range(400)), num_warps=tile.choice(*range(400))))(scale), "a space of 160000 configurations is too large"),
    (lambda: tile.autotune(dict(BLOCK=tile.choice(8, 16)), where=lambda BLOCK: BLOCK > 16)(scale),
     r"where= leaves none of the 2 configurations of scale: constraint 1 \(line \d+\) turns down 2"),
    (lambda: tile.autotune(dict(BLOCK=8), where=lambda BLOK: True)(scale), "where= has a constraint on 'BLOK', which no configuration of scale sets"),
    (lambda: tile.autotune(dict(BLOCK=8), where=lambda n: True)(scale), "where= has a constraint on 'n', which each call gives: prune="),
    (lambda: tile.autotune(dict(BLOCK=8), where=3)(scale), "where is a constraint or a list of them, each a function of what configurations set"),
    (lambda: tile.autotune(dict(BLOCK=8), where=lambda BLOCK: BLOCK / 0)(scale), r"raised ZeroDivisionError: division by zero; it was called with BLOCK=8"),
    (lambda: tile.autotune(dict(BLOCK=8), accept=3), "accept is a function of tile.tuning.Resources"),
    (lambda: tile.autotune(dict(BLOCK=8), limit=0), "limit is a number of seconds above 0, or None, not 0"),
    (lambda: tile.autotune(dict(BLOCK=8), budget=True), "budget is a number of seconds above 0, or None, not True"),
    (lambda: tile.autotune(dict(BLOCK=8), workers="all"), "workers is a list of GPUs by number, a dask.distributed.Client, or the module ray, not 'all'"),
    (lambda: tile.autotune(dict(BLOCK=8), workers=[]), "workers is a list of GPUs"),
    (lambda: tile.autotune(dict(BLOCK=8), workers=[0, 1, 0]), r"workers names a GPU twice: \[0, 1, 0\]"),
    (lambda: tile.autotune(dict(BLOCK=8), workers=[0], limit=None), "limit=None times in this process, and workers= in others"),
])
def test_bad_spaces_and_settings_are_errors(make, words):
    with pytest.raises(LaunchError, match=words):
        make()


# -- what is kept --------------------------------------------------------------------------------------------------------

def test_a_configuration_that_is_added_is_the_only_one_that_is_compiled_and_timed(gpu, monkeypatch):
    x = gpu.array((100,))
    first = tuned(4, 8)
    first[grid](x, 100)
    assert gpu.timed == [4, 8] and gpu.launched == [(4, (4, 1, 1))]
    first[grid](x, 100)
    assert gpu.timed == [4, 8]
    compiled, real = [], Kernel.compiled
    monkeypatch.setattr(Kernel, "compiled", lambda self, bound, options, target: compiled.append(options["num_warps"]) or real(self, bound, options, target))
    more = tuned(8, 4, 2)
    assert more.config(grid, x, 100)["num_warps"] == 2 and gpu.timed == [4, 8, 2] and compiled == [2]
    assert tuned(8, 4).config(grid, x, 100)["num_warps"] == 4 and gpu.timed == [4, 8, 2], "what is kept of 2 is no candidate here"
    named = tile.autotune([dict(BLOCK=32, num_warps=4), dict(BLOCK=32, num_warps=8, min_ctas=None, EXTRA=5), dict(BLOCK=64)])(scale)
    assert named.config(grid, x, 100)["BLOCK"] == 32 and gpu.timed == [4, 8, 2, 4], "however much of it a configuration sets itself"
    ((_, trials),) = more.tried.items()
    assert [(t.ms, t.known) for t in trials.values()] == [(8.0, True), (4.0, True), (2.0, False)]
    assert more.timings == {kind: {0: 8.0, 1: 4.0, 2: 2.0} for kind in more.chosen}


def test_a_result_counts_for_its_source_call_grid_options_gpu_and_captured_values(gpu, monkeypatch):
    x = gpu.array((100,))

    def timed_again(call, kernel=scale, **how):
        gpu.timed.clear()
        call(tuned(4, kernel=kernel, **how))
        return gpu.timed == [4]
    assert timed_again(lambda t: t.config(grid, x, 100)) and not timed_again(lambda t: t.config(grid, x, 100))
    assert timed_again(lambda t: t.config(grid, x, 99)) and timed_again(lambda t: t.config((7,), x, 100))
    assert not timed_again(lambda t: t.config(grid, gpu.array((100,), pointer=1 << 22), 100))
    assert timed_again(lambda t: t.config(grid, gpu.array((100,), pointer=(1 << 20) + 4), 100)), "vectors need aligned arrays"
    assert timed_again(lambda t: t.config(grid, gpu.array((101,)), 100)) and timed_again(lambda t: t.config(grid, gpu.array((100,), "float16"), 100))
    assert timed_again(lambda t: t.config(grid, x, 100, fast_math=True))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3)
    assert timed_again(lambda t: t.config(grid, x, 100)) and not timed_again(lambda t: t.config(grid, x, 100))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2)
    assert timed_again(lambda t: t.config(grid, x, 100)), "of a value, the last result is kept"
    edited = tile.jit(source=scale.source.text.replace("@tile.jit\n", "").replace("* FACTOR", "* FACTOR + 1"))
    assert timed_again(lambda t: t.config(grid, x, 100), kernel=edited)
    monkeypatch.setattr(driver, "name", lambda device=0: "Another GPU")
    assert timed_again(lambda t: t.config(grid, x, 100))


def test_why_a_configuration_has_no_time_is_kept_too(gpu, monkeypatch):
    def milliseconds(warps):
        if warps == 2:
            raise TookTooLong("it had not ended after 10 s", 10.0)
        if warps == 8:
            raise NotStarted("no process")
        return 1.0
    gpu.milliseconds = milliseconds

    @tile.jit
    def wide(x, ROWS: tile.constexpr):
        buffer = tile.alloc((ROWS, 128), x.dtype)
        tile.copy(buffer, x[0:ROWS, 0:128])
        tile.sync()
        tile.copy(x[0:ROWS, 0:128], buffer)
    x = gpu.array((100,))
    assert tuned(2, 4, 8).config(grid, x, 100)["num_warps"] == 4 and gpu.timed == [2, 4, 8]
    again = tuned(2, 4, 8)
    again.config(grid, x, 100)
    assert gpu.timed == [2, 4, 8, 8], "that no process could be started says nothing of the candidate"
    assert list(again.rejected.values()) == [{0: "it had not ended after 10 s", 2: "no process"}]
    with pytest.raises(LaunchError, match="none of 1 configurations can be launched; the first: it had not ended after 10 s"):
        tuned(2, limit=5).config(grid, x, 100)
    assert gpu.timed == [2, 4, 8, 8]
    with pytest.raises(LaunchError):
        tuned(2, limit=60).config(grid, x, 100)
    assert gpu.timed == [2, 4, 8, 8, 2], "a longer limit is another chance"
    lowered = []
    real = Kernel._lower
    monkeypatch.setattr(Kernel, "_lower", lambda self, *call: lowered.append(1) or real(self, *call))
    for count in (2, 2):
        staged = tile.autotune(dict(ROWS=tile.choice(4096, 8)))(wide)
        assert staged.config(1, gpu.array((8, 128))) == dict(ROWS=8) and len(lowered) == count
        assert "shared memory" in next(iter(staged.rejected.values()))[0]


def test_results_are_saved_merged_and_read_on_another_machine(gpu, tmp_path, monkeypatch):
    x, files = gpu.array((100,)), [tmp_path / name for name in ("a.json", "b.json", "both.json")]
    machines = iter(range(10))

    def elsewhere():
        monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / str(next(machines))))
    for file, warps in zip(files, (4, 2)):
        elsewhere()
        one = tuned(warps, 8)
        one.config(grid, x, 100)
        assert tuned(warps).save_results(file) == 2, "those of the disk too"
    elsewhere()
    merged = tuned(2, 4, 8)
    assert merged.load_results(*files[:2]) == 4 and merged.save_results(files[2]) == 3
    elsewhere()
    gpu.timed.clear()
    reader = tuned(2, 4, 8)
    with pytest.raises(LaunchError, match="is not a file of tuning results"):
        reader.load_results(__file__)
    assert reader.load_results(files[2]) == 3 and reader.config(grid, x, 100)["num_warps"] == 2 and gpu.timed == []
    assert tuned(8, 2).config(grid, x, 100)["num_warps"] == 2 and gpu.timed == [], "by another process of that machine"
    monkeypatch.setenv("TILEJIT_NO_CACHE", "1")
    reader = tuned(4, 8)
    reader.load_results(files[2])
    assert reader.config(grid, x, 100)["num_warps"] == 4 and gpu.timed == []
    record = next(iter(json.loads(files[0].read_text())["results"].values()))
    assert record["kernel"] == "scale" and record["gpu"] == "Fake GPU" and record["call"] == "x: float32[100], n=100, EXTRA=5"
    assert record["config"]["BLOCK"] == "32" and record["ms"] == float(record["config"]["num_warps"]) and str(tmp_path) not in files[0].read_text()


def test_of_two_results_the_newer_counts(gpu, tmp_path):
    x, one = gpu.array((100,)), tuned(2, 4)
    one.config(grid, x, 100)
    one.save_results(tmp_path / "old.json")
    data = json.loads((tmp_path / "old.json").read_text())
    for record in data["results"].values():
        record |= {"when": record["when"] + 1, "ms": 10.0 - record["ms"]}
    (tmp_path / "new.json").write_text(json.dumps(data))
    for order in (("old.json", "new.json"), ("new.json", "old.json")):
        one.load_results(*(tmp_path / name for name in order))
        assert one.config(grid, x, 100)["num_warps"] == 4


def test_files_without_usable_results_are_errors(gpu, tmp_path, monkeypatch):
    one, file = tuned(4), tmp_path / "results.json"
    assert one.save_results(file) == 0
    with pytest.raises(LaunchError, match="results.json has no results for scale here: it is empty"):
        one.load_results(file)
    one.config(grid, gpu.array((100,)), 100)
    one.save_results(file)
    renamed = tile.jit(source=scale.source.text.replace("@tile.jit\n", "").replace("def scale", "def other"))
    edited = tile.jit(source=scale.source.text.replace("@tile.jit\n", "").replace("FACTOR", "FACTOR + 0"))
    for kernel, words in ((renamed, "they are of the kernel scale"), (edited, "the source of scale was another")):
        with pytest.raises(LaunchError, match=words):
            tuned(4, kernel=kernel).load_results(file)
    monkeypatch.setattr("tilejit.tuning.trials.tools", lambda: "llvmlite 9, x 9, x 9")
    with pytest.raises(LaunchError, match="the tools was .*, and is llvmlite 9, x 9, x 9 here"):
        one.load_results(file)
    data = json.loads(file.read_text())
    del next(iter(data["results"].values()))["ms"]
    file.write_text(json.dumps(data))
    for path, words in ((file, "has a result that is damaged"), (tmp_path / "none.json", "none.json cannot be read: No such file")):
        with pytest.raises(LaunchError, match=words):
            one.load_results(path)
    with pytest.raises(LaunchError, match="cannot be written: No such file or directory"):
        one.save_results(tmp_path / "no" / "folder.json")


# -- what is timed -------------------------------------------------------------------------------------------------------

def test_accept_turns_down_by_resources_before_anything_runs_and_also_what_is_known(gpu):
    seen = []

    def small(trial):
        seen.append((trial.threads, trial.active_ctas, trial.registers > 0, trial.spills, trial.shared_bytes))
        return trial.threads <= 128
    x = gpu.array((100,))
    one = tuned(8, 4, accept=small)
    assert one.config(grid, x, 100)["num_warps"] == 4 and gpu.timed == [4]
    assert set(seen) == {(256, 2, True, 0, 0), (128, 2, True, 0, 0)}
    ((reasons),) = one.rejected.values()
    assert list(reasons) == [0] and reasons[0].startswith("accept= turns it down: ") and reasons[0].endswith("2 CTAs on a multiprocessor")
    assert tuned(8, 4).config(grid, x, 100)["num_warps"] == 4 and gpu.timed == [4, 8]
    gpu.milliseconds = lambda warps: 1.0
    assert tuned(2, 4, accept=lambda t: t.threads > 64).config(grid, x, 100)["num_warps"] == 4 and gpu.timed == [4, 8]
    with pytest.raises(LaunchError, match="none of 1 configurations can be launched; the first: accept= turns it down"):
        tuned(8, accept=small).config(grid, x, 100)
    with pytest.raises(LaunchError, match="accept= raised AttributeError: .*; it was called with Resources"):
        tuned(1, accept=lambda trial: trial.regs).config(grid, x, 100)


def test_what_does_not_fit_the_device_is_not_timed(gpu, monkeypatch):
    def active_ctas(function, threads, shared, device):
        if threads == 64:
            raise LaunchError("the kernel needs 300000 bytes of shared memory")
        return int(threads != 256)
    monkeypatch.setattr(driver, "active_ctas", active_ctas)
    one = tuned(2, 4, 8)
    assert one.config(grid, gpu.array((100,)), 100)["num_warps"] == 4 and gpu.timed == [4]
    ((reasons),) = one.rejected.values()
    assert reasons[0] == "the kernel needs 300000 bytes of shared memory" and reasons[2].startswith("not one CTA fits on a multiprocessor")


def test_a_budget_leaves_out_what_it_has_no_time_for_until_it_is_larger(gpu, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tilejit.tuning.tuned.monotonic", lambda: now[0])
    real = gpu.time_share

    def time_share(candidates, call, device, limit, seconds, tell):
        return real(dict(list(candidates.items())[:1 if seconds < 5 else None]), call, device, limit, seconds, tell)
    monkeypatch.setattr("tilejit.tuning.workers.time_share", time_share)
    x = gpu.array((100,))
    one = tuned(1, 2, 4, 8, budget=4)
    one.config(grid, x, 100)
    assert len(gpu.timed) == 1 and len(one.rejected) == 1 and gpu.shares[0][1:3] == (10.0, 4.0)
    assert set(next(iter(one.rejected.values())).values()) == {"the budget of 4 s was used up"}
    assert gpu.timed != [1], "of a space, a sample and not the first"
    tuned(1, 2, 4, 8, budget=4).config(grid, x, 100)
    assert len(gpu.timed) == 1, "the same budget is not spent again"
    tuned(1, 2, 4, 8, budget=8).config(grid, x, 100)
    assert sorted(gpu.timed) == [1, 2, 4, 8]
    listed = tile.autotune([dict(BLOCK=32, num_warps=w) for w in (8, 4, 2, 1)], budget=4)(scale)
    gpu.timed.clear()
    listed.config(grid, x, 99)
    assert gpu.timed == [8]


def test_compiling_takes_half_of_the_budget_at_most(gpu, monkeypatch):
    now, real = [0.0], Kernel.compiled

    def compiled(self, *call):
        now[0] += 3.0
        return real(self, *call)
    monkeypatch.setattr("tilejit.tuning.tuned.monotonic", lambda: now[0])
    monkeypatch.setattr(Kernel, "compiled", compiled)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    one = tile.autotune([dict(BLOCK=32, num_warps=w) for w in (1, 2, 4, 8)], budget=10)(scale)
    one.config(grid, gpu.array((100,)), 100)
    assert gpu.timed == [1, 2] and gpu.shares[0][2] == 4.0


def test_nothing_is_tuned_for_an_empty_grid(gpu):
    tuned(4, 8)[grid](gpu.array((0,)), 0)
    assert gpu.timed == gpu.launched == []


def host_memory_as_array():
    """An array of 8 elements of 0.25, 8 bytes after a multiple of 16, as if it was on a device."""
    memory = np.full(12, 0.25, np.float32)
    made = FakeDeviceArray(ArrayView(memory.ctypes.data + (8 - memory.ctypes.data) % 16, (8,), (1,), "float32", 0))
    made.memory = memory
    return made


# -- where it is timed ---------------------------------------------------------------------------------------------------

def test_hangs_faults_and_crashes_cost_a_candidate_each(monkeypatch):
    """Through real child processes; the fastest of the others is launched, and the arrays are those of before."""
    gpu, launched, x = FakeMemory(monkeypatch), [], host_memory_as_array()
    scale.versions.clear()  # with the launchers of other tests
    scale.warm.clear()
    monkeypatch.setattr(measuring, "PROGRAM", PROGRAM)
    for function, result in (("target", "sm_90a"), ("active_ctas", 2), ("version", 13000)):
        monkeypatch.setattr(driver, function, lambda *args, result=result: result)

    def load(recipe, image, device, **options):
        def launch(grid, stream, args):
            launched.append(recipe["threads"] // 32)
            return True
        launch.function = 1
        return launch
    monkeypatch.setattr("tilejit.runtime.launcher.load", load)
    one = tuned(HANGS, 8, FAULTS, 4, CRASHES, limit=0.5)
    one[grid](x, 8)
    (times,), (reasons,) = one.timings.values(), one.rejected.values()
    assert {i: round(t, 6) for i, t in times.items()} == {1: 2.0, 3: 1.0} and launched == [4]
    assert list(reasons.values()) == ["it had not ended after 0.5 s", "a kernel failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)", "the process that ran it was ended by SIGSEGV"]
    assert (x.memory == 0.25).all() and gpu.live == []


def test_where_no_child_can_time_this_process_does_and_warns(gpu, monkeypatch):
    timed = []

    def time_here(launches, written, device, proceed):
        timed.extend(launches)
        assert written == [(1 << 20, 400)] and len(gpu.launched) == 0
        for launch in launches.values():
            launch(7)
        gpu.launched.clear()
        return {n: 9.0 - n for n in launches}, {}
    monkeypatch.setattr("tilejit.tuning.kept.time_here", time_here)
    x = gpu.array((100,))
    assert tuned(4, 8, limit=None).config(grid, x, 100)["num_warps"] == 8 and timed == [0, 1] and gpu.timed == []

    def starts_no(*share):
        raise NotStarted("the process that times candidates could not start: no")
    monkeypatch.setattr("tilejit.tuning.workers.time_share", starts_no)
    with pytest.warns(TileWarning, match="scale is tuned in this process, where a candidate that hangs or faults ends more than itself: the process that"):
        tuned(2, 4).config(grid, x, 100)
    monkeypatch.setattr(driver, "free_memory", lambda device: 1000)
    with pytest.warns(TileWarning, match="the GPU has no memory left for a copy of its arrays"):
        tuned(1, 4).config(grid, x, 100)


def test_several_gpus_of_a_host_share_the_candidates(gpu, monkeypatch):
    one = tuned(1, 2, 4, 8, 16, workers=[0, 2])
    assert one.config(grid, gpu.array((100,)), 100)["num_warps"] == 1
    assert sorted(gpu.timed) == [1, 2, 4, 8, 16] and sorted(device for device, *_ in gpu.shares) == [0, 2]
    monkeypatch.setattr(driver, "name", lambda device=0: f"GPU {device}")
    with pytest.raises(LaunchError, match="workers are GPUs of one kind, and device 2 is GPU 2, not GPU 0"):
        tuned(1, workers=[0, 2]).config(grid, gpu.array((100,)), 100)


def test_a_worker_that_cannot_start_costs_its_share_and_all_of_them_are_an_error(gpu, monkeypatch):
    real, broken = gpu.time_share, {2}

    def time_share(candidates, call, device, *rest):
        if device in broken:
            raise NotStarted(f"no process on {device}")
        return real(candidates, call, device, *rest)
    monkeypatch.setattr("tilejit.tuning.workers.time_share", time_share)
    one, x = tuned(8, 4, workers=[0, 2]), gpu.array((100,))
    assert one.config(grid, x, 100)["num_warps"] == 8 and list(one.rejected.values()) == [{1: "no process on 2"}]
    broken.add(0)
    with pytest.raises(NotStarted, match="no process on 0"):
        tuned(1, workers=[0, 2]).config(grid, x, 100)


def test_machines_of_a_ray_cluster_share_the_candidates(gpu):
    """By the few functions of ray that are used."""
    asked = []

    def remote(**resources):
        asked.append(resources)
        return lambda function: types.SimpleNamespace(remote=lambda share, call, *rest: function(share, call[0], *rest))
    ray = types.SimpleNamespace(remote=remote, put=lambda x: [x], get=lambda x: x, cancel=print, cluster_resources=lambda: {"GPU": 2.0})
    assert tuned(8, 4, 2, workers=ray).config(grid, gpu.array((100,)), 100)["num_warps"] == 2
    assert asked == [{"num_gpus": 1}] and gpu.timed == [8, 2, 4]
    ray.cluster_resources = dict
    with pytest.raises(LaunchError, match="the Ray cluster has no GPU"):
        tuned(1, workers=ray).config(grid, gpu.array((100,)), 100)


def test_a_worker_with_another_gpu_times_nothing(gpu):
    with pytest.raises(NotStarted, match="the worker has Fake GPU, and the call is for Real GPU"):
        workers.time_as_worker({}, None, "Real GPU", 1.0, None)


# -- what is said --------------------------------------------------------------------------------------------------------

def test_the_report_is_a_table_and_in_notebooks_a_picture(gpu):
    one, x = tuned(8, 4, 2, accept=lambda t: t.threads != 64), gpu.array((100,))
    assert str(one.report()) == "scale: no call has been tuned in this process"
    assert one.report()._repr_html_() == "<p>scale: no call has been tuned in this process</p>"
    one.config(grid, x, 100)
    head, names, *rows = str(one.report()).splitlines()
    assert head == "scale(x: float32[100], n=100, EXTRA=5) on Fake GPU"
    assert names.split() == ["configuration", "us", "ratio", "registers", "spills", "shared", "CTAs/SM"]
    assert [row.split("  ")[0] for row in rows] == ["BLOCK=32, num_warps=4", "BLOCK=32, num_warps=8", "BLOCK=32, num_warps=2"]
    assert "4000.00  1.000" in rows[0] and "8000.00  2.000" in rows[1] and rows[0].endswith(" " + 12 * "#") and rows[1].endswith(" " + 24 * "#")
    assert "accept= turns it down" in rows[2]
    (call,) = one.report().calls
    assert [t.ms for t in call.with_times] == [4.0, 8.0]
    html = one.report()._repr_html_()
    assert html.count("<rect") == 2 and html.count("<tr>") == 4 and "8000.00 us" in html and "hsl" not in html and "currentColor" in html


def test_the_log_has_a_line_for_each_candidate(gpu, monkeypatch, capsys):
    monkeypatch.setenv("TILEJIT_LOG", "1")
    x = gpu.array((100,))
    tuned(8).config(grid, x, 100)
    capsys.readouterr()
    tuned(8, 4).config(grid, x, 100)
    lines = [line for line in capsys.readouterr().err.splitlines() if "compiled" not in line]
    assert lines == ["tilejit: scale: 1 of 2 configurations are known", "tilejit: timing 1 configurations of scale",
                     "tilejit: scale(BLOCK=32, num_warps=4): 4000.00 us", "tilejit: scale: the fastest of 2 is BLOCK=32, num_warps=4, 4000.00 us"]


def test_progress_is_a_bar_of_tqdm_where_that_is_installed(gpu, monkeypatch):
    bars = []

    class Bar:
        def __init__(self, **how):
            self.how, self.count, self.open = how, 0, True
            bars.append(self)

        def update(self):
            self.count += 1

        def close(self):
            self.open = False
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(auto=sys.modules["tqdm.auto"]))
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    tuned(8, 4).config(grid, gpu.array((100,)), 100)
    assert [(b.count, b.open, b.how["total"], b.how["disable"]) for b in bars] == [(2, False, 2, None)]
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    tuned(2).config(grid, gpu.array((100,)), 100)
    assert len(bars) == 1


# -- a cluster -----------------------------------------------------------------------------------------------------------

def fake_worker(number: int) -> None:
    """Make a worker's process one with a fake GPU and fake children."""
    measuring.PROGRAM = PROGRAM
    driver.available, driver.name = lambda: True, lambda device=0: "Fake GPU"


@needs_module("distributed")
def test_two_workers_of_a_dask_cluster_share_the_candidates(monkeypatch, capsys):
    """Real workers, real children: one candidate hangs, one crashes."""
    from dask.distributed import Client, LocalCluster
    FakeTuning(monkeypatch)
    monkeypatch.setattr("tilejit.tuning.workers.time_share", measuring.time_share)
    x = host_memory_as_array()
    monkeypatch.setattr(driver, "copy_to_host", lambda to, source, nbytes, device: ctypes.memmove(to, source, nbytes))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster, Client(cluster) as client:
        client.run(fake_worker, 0)
        one = tuned(8, HANGS, 4, CRASHES, 16, limit=0.5, workers=client)
        assert one.config(grid, x, 8)["num_warps"] == 4
        (times,), (reasons,) = one.timings.values(), one.rejected.values()
        assert {i: round(t, 6) for i, t in times.items()} == {0: 2.0, 2: 1.0, 4: 4.0}
        assert reasons == {1: "it had not ended after 0.5 s", 3: "the process that ran it was ended by SIGSEGV"}
        monkeypatch.setattr(driver, "name", lambda device=0: "Other GPU")
        with pytest.raises(NotStarted, match="the worker has Fake GPU, and the call is for Other GPU"):
            tuned(4, workers=client).config(grid, x, 8)
