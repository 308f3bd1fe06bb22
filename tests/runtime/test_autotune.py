"""Autotuned kernels: which configuration a call gets, and that tuning has no side effects."""

import json
import os
import tempfile
from functools import partial

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError, LaunchError
from tilejit.runtime import driver
from tilejit.timing import time_launches
from tilejit.tuning.kept import Kept

from tests.gpu import in_child, needs_gpu
from tests.runtime.fakes import FakeGpu


@tile.autotune([dict(BLOCK=64, num_warps=1), dict(BLOCK=1024, num_warps=4), dict(BLOCK=4096, num_warps=8)], key=("x", "n"))
@tile.jit
def accumulate(x, out, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    tile.store(out[i:i + BLOCK], tile.load(out[i:i + BLOCK]) + tile.load(x[i:i + BLOCK]))


def grid(meta):
    return (tile.cdiv(meta["n"], meta["BLOCK"]),)


def test_the_simulator_uses_the_first_configuration():
    x, out = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    accumulate[grid](x, out, 1000)
    np.testing.assert_array_equal(out, x + 1)
    assert accumulate.config(grid, x, out, 1000) == dict(BLOCK=64, num_warps=1)


def test_a_tuned_kernel_is_simulated_with_its_first_configuration_and_compiled_with_all():
    x, out = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    report = accumulate.simulate(grid, x, out, 1000, seed=3)
    assert not report.findings and report.stats["bytes"] and (out == x + 1).all()
    made = accumulate.compile(x, out, 1000, target="sm_80")
    assert [(m.target, m.recipe["threads"]) for m in made] == [("sm_80", 32), ("sm_80", 128), ("sm_80", 256)]


@tile.jit
def through_shared(x, ROWS: tile.constexpr):
    buffer = tile.alloc((ROWS, 128), x.dtype)
    tile.copy(buffer, x[0:ROWS, 0:128])
    tile.sync()
    tile.copy(x[0:ROWS, 0:128], buffer)


def test_a_tuned_kernel_is_simulated_with_the_first_configuration_that_compiles_for_the_target():
    staged = tile.autotune([dict(ROWS=400), dict(ROWS=8)])(through_shared)
    x = np.ones((8, 128), np.float32)
    for target in ("sm_90a", "sm_80", None):
        assert not staged.simulate((1,), x, target=target).findings
    staged[1](x)
    assert list(staged.chosen.values()) == [dict(ROWS=400), dict(ROWS=8)]  # for sm_90a, which is also the default, and for sm_80


def test_a_tuned_kernel_is_verified_with_one_of_its_configurations():
    x, out = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    with pytest.raises(LaunchError, match="verify takes a kernel under @tile.jit, not Tuned; of a tuned one pass .kernel, with one of .configs"):
        tile.verify(accumulate, grid, x, out, 1000, reference=lambda x, out, n: x + out)
    tile.verify(accumulate.kernel, grid, x, out, 1000, **accumulate.configs[1], reference=lambda x, out, n: x + out).raise_first()


def test_a_configuration_that_does_not_compile_is_skipped():
    staged = tile.autotune([dict(ROWS=4096), dict(ROWS=8)])(through_shared)
    x = np.ones((8, 128), np.float32)
    staged[1](x)
    assert list(staged.chosen.values()) == [dict(ROWS=8)]
    assert "shared memory" in next(iter(staged.rejected.values()))[0]


def test_if_no_configuration_compiles_the_first_error_is_raised():
    staged = tile.autotune([dict(ROWS=4096), dict(ROWS=8192)])(through_shared)
    with pytest.raises(CompilationError, match="shared memory"):
        staged[1](np.ones((8, 128), np.float32))


def test_prune_removes_configurations():
    seen = []

    def prune(configs, arguments):
        seen.append(arguments["n"])
        return [c for c in configs if c["BLOCK"] == 32]

    @tile.autotune([dict(BLOCK=16), dict(BLOCK=32)], prune=prune)
    @tile.jit
    def fill(out, n, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK
        tile.store(out[i:i + BLOCK], tile.full((BLOCK,), BLOCK))
    out = np.zeros(64, np.int32)
    fill[grid](out, 64)
    assert (out == 32).all() and seen == [64]


def test_options_that_a_configuration_omits_are_the_kernel_s():
    @tile.autotune([dict(BLOCK=8), dict(BLOCK=16, num_warps=8, SCALE=3), dict(BLOCK=32, spills=0)])
    @tile.jit(num_warps=2)
    def scaled(x, BLOCK: tile.constexpr, SCALE: tile.constexpr = 2):
        tile.store(x[0:BLOCK], tile.load(x[0:BLOCK]) * SCALE)

    rest = dict(num_warps=2, SCALE=2, spills=None)
    assert scaled.configs == [rest | dict(BLOCK=8), rest | dict(BLOCK=16, num_warps=8, SCALE=3), rest | dict(BLOCK=32, spills=0)]
    x = np.ones(32, np.float32)
    scaled[1](x)
    assert (x[:8] == 2).all() and (x[8:] == 1).all()
    assert [m.recipe["threads"] for m in scaled.compile(x)] == [64, 256, 64]


def test_invalid_arguments_of_autotune_are_errors():
    @tile.jit
    def kernel(x, n, BLOCK: tile.constexpr):
        pass
    for configs, key, match in (([], None, "at least one"), ([dict(BLOCK=1), dict(num_warps=2)], None, "does not set 'BLOCK', which others set"),
                                ([dict(n=1)], None, "'n' is none"), ([dict(BLOCK=1)], ("m",), "'m' is none"), ([dict(BLOCK=1)], "nx", "'nx' is none"),
                                (None, None, "a list of configurations")):
        with pytest.raises(LaunchError, match=match):
            tile.autotune(configs, key)(kernel)
    with pytest.raises(LaunchError, match=r"launched with a grid, as in kernel\[\(number_of_ctas,\)\]"):
        tile.autotune([dict(BLOCK=1)], "n")(kernel)(np.zeros(1), 1)
    with pytest.raises(LaunchError, match="decorates a kernel"):
        tile.autotune([dict(BLOCK=1)])(lambda x: x)
    tile.autotune([dict(BLOCK=1)])(kernel)[1](np.zeros(3, np.float32), 3)
    with pytest.raises(LaunchError, match="the configurations set it"):
        tile.autotune([dict(BLOCK=1)])(kernel)[1](np.zeros(3), 3, BLOCK=2)
    with pytest.raises(LaunchError, match="'BLOCK' is given, and the configurations set it"):
        tile.autotune([dict(BLOCK=1)])(kernel).compile(np.zeros(3), 3, BLOCK=2)
    with pytest.raises(LaunchError, match="prune is a function of the configurations and the arguments, not int"):
        tile.autotune([dict(BLOCK=1)], prune=3)
    with pytest.raises(LaunchError, match="kernel: prune= returns a list of the configurations worth timing, not NoneType"):
        tile.autotune([dict(BLOCK=1)], prune=lambda configs, arguments: None)(kernel)[1](np.zeros(3), 3)


def test_running_out_of_memory_for_copies_of_arrays_leaks_none(monkeypatch):
    held = []

    def allocate(nbytes, device):
        if held:
            raise LaunchError(f"allocating {nbytes} bytes failed")
        held.append(4096)
        return 4096

    monkeypatch.setattr(driver, "synchronize", lambda device: None)
    monkeypatch.setattr(driver, "allocate", allocate)
    monkeypatch.setattr(driver, "copy_on_device", lambda *call: None)
    monkeypatch.setattr(driver, "free", lambda address, device: held.remove(address))
    with Kept([(1024, 64)], 0):
        assert held == [4096]
    assert held == []
    with pytest.raises(LaunchError, match="allocating 128 bytes failed"):
        with Kept([(1024, 64), (2048, 128)], 0):
            pytest.fail("nothing is kept")
    assert held == []


def test_host_preparation_of_a_launch_is_not_counted_as_kernel_time(monkeypatch):
    """The launcher's machine code is generated at the second launch, which takes milliseconds. Failures are reported."""
    gpu, calls = FakeGpu(monkeypatch), {}

    def launch(number, milliseconds, prepares):
        calls[number] = calls.get(number, 0) + 1
        gpu.work(0, str(number), milliseconds + (prepares if calls[number] == 2 else 0))

    def refused():
        raise LaunchError("no")

    times, failed = time_launches({0: partial(launch, 0, 0.5, 20.0), 1: partial(launch, 1, 0.6, 0.0), 2: refused, 3: partial(launch, 3, 2.0, 0.0)}, 0, 0)
    assert {i: round(t, 6) for i, t in times.items()} == {0: 0.5, 1: 0.6, 3: 2.0} and list(failed) == [2]
    assert calls[0] > calls[3] == 7, "one that is much slower runs no rounds"


@pytest.mark.unperturbed
@needs_gpu()
@in_child(timeout=120)
def test_the_gpu_uses_the_fastest_configuration_and_leaves_arrays_unchanged():
    os.environ["TILEJIT_CACHE_DIR"] = tempfile.mkdtemp()
    n = 1 << 24
    host = np.arange(n, dtype=np.float32) % 1000
    x, out = tile.to_device(host, 0), tile.to_device(np.ones(n, np.float32), 0)
    accumulate[grid](x, out, n)
    np.testing.assert_array_equal(out.numpy(), host + 1)
    (kind, times), = accumulate.timings.items()
    assert len(times) == 3
    assert accumulate.chosen[kind] == accumulate.configs[min(times, key=times.get)]
    accumulate[grid](x, out, n)
    np.testing.assert_array_equal(out.numpy(), 2 * host + 1)
    print(json.dumps(times))


@tile.jit
def misbehaving(x, DO: tile.constexpr):
    if DO == "hang":
        nobody_arrives = tile.mbarrier(1)
        nobody_arrives.wait(0)
    if DO == "fault":
        tile.asm("{ .reg .b64 a; mov.b64 a, 64; st.global.b32 [a], $1; mov.u32 $0, 0; }", tile.int32, 1)
    tile.store(x[0:64], tile.load(x[0:64]) + 1)


@pytest.mark.parametrize("do, instruction", [("hang", "mbarrier.try_wait"), ("fault", "st.global.b32 [a]"), ("work", "st.global")])
def test_kernels_that_hang_and_fault_compile(do, instruction):
    assert instruction in misbehaving.compile(tile.ArraySpec((64,), "float32"), DO=do, target="sm_90a").ptx


@pytest.mark.unsanitized
@needs_gpu()
@in_child(timeout=120)
def test_candidates_that_hang_or_fault_on_the_gpu_are_left_out_and_the_arrays_are_those_of_the_launch():
    os.environ["TILEJIT_CACHE_DIR"] = tempfile.mkdtemp()
    x = tile.to_device(np.arange(64, dtype=np.float32), 0)
    tuned = tile.autotune(dict(DO=tile.choice("hang", "fault", "work")), limit=2)(misbehaving)
    tuned[1](x)
    np.testing.assert_array_equal(x.numpy(), np.arange(64) + 1)
    (reasons,) = tuned.rejected.values()
    assert reasons[0] == "it had not ended after 2 s" and "CUDA_ERROR" in reasons[1] and list(tuned.chosen.values()) == [dict(DO="work")]


@pytest.mark.unperturbed
@needs_gpu()
@in_child(timeout=120)
def test_the_choice_is_cached_on_disk():
    os.environ["TILEJIT_CACHE_DIR"] = tempfile.mkdtemp()
    again = tile.autotune(accumulate.configs, accumulate.key)(accumulate.kernel)
    x, out = (tile.to_device(np.ones(1 << 20, np.float32), 0) for _ in range(2))
    accumulate[grid](x, out, 1 << 20)
    again[grid](x, out, 1 << 20)
    assert again.timings == accumulate.timings and again.chosen == accumulate.chosen
    assert all(trial.known for trials in again.tried.values() for trial in trials.values())
    assert (out.numpy() == 3).all()
