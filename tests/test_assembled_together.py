"""Kernels that share a run of the assembler are judged as if each had its own."""

import numpy as np
import pytest
import tilejit as tile

from tests.assembled_together import AT_ONCE, Module, Queue, Waiting


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
def test_kernels_of_one_name_and_with_lines_of_several_files_share_a_run(target):
    queue = Queue()
    assert not [p for kernel in (doubled, through_shared, of_nothing, doubled) for p in queue.add(waiting(kernel, target))]
    assert sum(map(len, queue.waiting.values())) == 4 and not queue.finish() and not queue.waiting


def test_a_run_begins_when_enough_kernels_wait():
    queue, kernel = Queue(), waiting(doubled)
    for _ in range(AT_ONCE):
        assert not queue.add(kernel)
    assert not queue.waiting


def test_the_kernel_that_is_refused_is_named_and_no_other():
    queue, good = Queue(), waiting(doubled)
    bad = Waiting("broken", "sm_90a", good.ptx.replace("st.global", "st.nowhere"))
    late = Waiting("too new", "sm_90a", good.ptx.replace("\tret;", "\ttcgen05.wait::ld.sync.aligned;\n\tret;"))
    assert not [p for kernel in (good, bad, good, late) for p in queue.add(kernel)]
    first, second = queue.finish()
    assert first.startswith("broken: ToolchainError") and "st.nowhere" in first
    assert second.startswith("too new: ToolchainError") and "tcgen05" in second


def test_advice_that_means_slow_code_is_an_error_of_its_kernel():
    queue, good = Queue(), waiting(doubled)
    slow = Waiting("slow", "sm_90a", good.ptx.replace("\tret;", "\tsetmaxnreg.inc.sync.aligned.u32 200;\n\tret;").replace(".maxntid 128, 1, 1\n", ""))
    assert not queue.add(good) and not queue.add(slow)
    problem, = queue.finish()
    assert problem.startswith("slow: ToolchainError") and "setmaxnreg" in problem


def test_a_module_of_several_functions_is_assembled_alone():
    ptx = waiting(doubled).ptx
    several = ptx + ptx[ptx.index(".visible .entry"):ptx.rindex("\n}\n") + 3].replace("doubled", "again")
    assert Module.of(ptx) is not None and Module.of(several) is None
    queue = Queue()
    assert not queue.add(Waiting("several", "sm_90a", several)) and not queue.waiting
    assert "st.nowhere" in queue.add(Waiting("several", "sm_90a", several.replace("st.global", "st.nowhere")))[0]
