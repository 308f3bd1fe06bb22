"""Kernels that share a run of the assembler are judged as if each had its own."""

from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile

from tests import every_kernel
from tests.assembled_together import AT_ONCE, Module, Queue, Waiting, put_off


@tile.jit
def doubled(x, y):
    tile.store(y[0:64], tile.load(x[0:64]) * 2)


@tile.jit
def through_shared(x, y):
    s = tile.alloc((64,), x.dtype)
    tile.store(s[0:64], tile.load(x[0:64]))
    tile.sync()
    tile.store(y[0:64], tile.sin(tile.load(s[0:64])))


@tile.jit
def of_nothing():
    tile.sync()


def waiting(kernel, target: str = "sm_90a", title: str = "") -> Waiting:
    x = np.zeros(64, np.float32)
    return Waiting(title or kernel.name, target, kernel.compile(*[x] * len(kernel.parameters), target=target).ptx)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_kernels_with_the_same_name_and_line_tables_of_several_files_share_a_run(target):
    queue = Queue()
    assert not [p for kernel in (doubled, through_shared, of_nothing, doubled) for p in queue.add(waiting(kernel, target))]
    assert sum(map(len, queue.waiting.values())) == 4 and not queue.finish() and not queue.waiting


def test_a_run_starts_when_enough_kernels_wait():
    queue, kernel = Queue(), waiting(doubled)
    for _ in range(AT_ONCE):
        assert not queue.add(kernel)
    assert not queue.waiting


def test_only_the_kernel_that_the_assembler_refuses_is_reported():
    queue, good = Queue(), waiting(doubled)
    bad = Waiting("broken", "sm_90a", good.ptx.replace("st.global", "st.nowhere"))
    late = Waiting("too new", "sm_90a", good.ptx.replace("\tret;", "\ttcgen05.wait::ld.sync.aligned;\n\tret;"))
    assert not [p for kernel in (good, bad, good, late) for p in queue.add(kernel)]
    first, second = queue.finish()
    assert first.startswith("broken: ToolchainError") and "st.nowhere" in first
    assert second.startswith("too new: ToolchainError") and "tcgen05" in second


def test_a_performance_advisory_of_the_assembler_is_an_error_of_its_kernel():
    queue, good = Queue(), waiting(doubled)
    slow = Waiting("slow", "sm_90a", good.ptx.replace("\tret;", "\tsetmaxnreg.inc.sync.aligned.u32 200;\n\tret;").replace(".maxntid 128, 1, 1\n", ""))
    assert not queue.add(good) and not queue.add(slow)
    problem, = queue.finish()
    assert problem.startswith("slow: SlowCodeError") and "setmaxnreg" in problem


def test_a_module_of_several_functions_is_assembled_alone():
    ptx = waiting(doubled).ptx
    several = ptx + ptx[ptx.index(".visible .entry"):ptx.rindex("\n}\n") + 3].replace("doubled", "again")
    assert Module.of(ptx) is not None and Module.of(several) is None
    queue = Queue()
    assert not queue.add(Waiting("several", "sm_90a", several)) and not queue.waiting
    assert "st.nowhere" in queue.add(Waiting("several", "sm_90a", several.replace("st.global", "st.nowhere")))[0]


@tile.jit
def of_many_registers(x, y):
    """Six tiles of 128 registers per thread, all of them live at once."""
    tiles = (tile.load(x[0:16384]), tile.load(x[16384:32768]), tile.load(x[32768:49152]))
    tile.sync()
    tile.store(y[0:16384], tiles[0] * tiles[1] + tiles[2])
    tile.store(y[16384:32768], tiles[1] * tiles[2] + tiles[0])


def test_only_the_kernel_that_exceeds_its_spills_is_reported():
    queue, good, x = Queue(), waiting(doubled), np.zeros(49152, np.float32)
    with pytest.warns(tile.TileWarning, match="registers spill"):
        made = of_many_registers.compile(x, x)
    allowed, over = (Waiting(title, "sm_90a", made.ptx, spills) for title, spills in (("allowed", made.spills), ("over", made.spills - 1)))
    assert not [p for kernel in (replace(good, spills=0), allowed, over) for p in queue.add(kernel)]
    problem, = queue.finish()
    assert problem == f"over: {made.spills} bytes of registers spill, and {made.spills - 1} may"


def test_what_a_test_compiles_is_assembled_after_it_ends(kernels, assembled_later):
    """Its records and texts are available, its counts are values that satisfy no assertion, and its `spills=` is recorded."""
    made = doubled.compile(np.zeros(64, np.int8), np.zeros(64, np.int8), spills=0)
    assert ".entry doubled(" in made.ptx and made.copies == () and made.cubin is None
    assert not made.registers <= 255 and made.spills != 0 and not made.warnings
    last = kernels.compiled[-1]
    assert last.ptx == made.ptx and last.spills == 0 and "test_what_a_test_compiles" in last.title


def test_what_a_test_compiles_without_the_assembler_is_judged_with_its_other_kernels(kernels, assembled_later, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(every_kernel, "all_cases", lambda: True)  # what other tests have assembled does not matter
        of_nothing.compile(num_warps=2, target="sm_120a")
    good, = kernels.compiled
    kernels.compiled[:] = [replace(good, ptx=good.ptx.replace("\tret;", "\treturn;"))]
    monkeypatch.undo()  # the assembler is restored, as after a test
    monkeypatch.setattr(every_kernel, "all_cases", lambda: True)
    monkeypatch.setattr(kernels, "queue", Queue())
    problem, = kernels.judge("this test") + kernels.finish()
    assert problem.startswith("tests/test_assembled_together.py::test_what") and "of_nothing for sm_120a: ToolchainError" in problem


def test_kernels_that_wait_for_the_assembler_are_compiled_again_if_used_after_the_test(monkeypatch):
    """Kernels are shared by tests, some of which only inspect texts."""
    @tile.jit
    def shared(x, y):
        tile.store(y[0:64], tile.load(x[0:64]) + 3)

    x = tile.ArraySpec((64,), "float32")
    with monkeypatch.context() as patched, put_off(patched):
        assert shared.compile(x, x).cubin is None
    made = shared.compile(x, x)
    assert made.cubin and made.spills == 0
