"""Instruction forms called in kernels, on the simulator and on the GPU, compared with NumPy."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from tilejit import ptx
from tilejit.ops.ptx.meanings import meaning

from tests.cases import compiled, on_gpu, on_simulator
from tests.gpu import in_child, needs_gpu, some

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "copy"))

import ptx_copies  # noqa: E402
import ptx_lines  # noqa: E402
import ptx_memory  # noqa: E402
import ptx_sync  # noqa: E402
import ptx_wgmma  # noqa: E402

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
CLUSTERED = ("sm_90a", "sm_100a", "sm_103a")


def problems(lines, x, y, arrays, outputs) -> list[str]:
    found = [ptx_lines.wrong(line, arrays[outputs.index(line.gives)][n], x, y) for n, line in enumerate(lines)]
    return [text for text in found if text]


def test_computing_and_exchanging_forms_agree_with_numpy_on_the_simulator():
    found = []
    for dtype, lines in ptx_lines.by_dtype():
        kernel, arrays, outputs = ptx_lines.kernel_of(lines)
        x, y = ptx_lines.inputs(dtype)
        kernel[1,](x, y, *arrays)
        found += problems(lines, x, y, arrays, outputs)
    assert not found, "\n".join(found)


def test_computing_and_exchanging_forms_assemble():
    for dtype, lines in ptx_lines.by_dtype():
        kernel, arrays, _ = ptx_lines.kernel_of(lines)
        assert kernel.compile(*ptx_lines.inputs(dtype), *arrays).cubin


@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_computing_and_exchanging_forms_agree_with_numpy_on_the_gpu():
    found = []
    for dtype, lines in ptx_lines.by_dtype():
        kernel, arrays, outputs = ptx_lines.kernel_of(lines)
        x, y = ptx_lines.inputs(dtype)
        given = [tile.to_device(a) for a in (x, y, *arrays)]
        kernel[1,](*given)
        found += problems(lines, x, y, [a.numpy() for a in given[2:]], outputs)
    assert not found, "\n".join(found)


KINDS = ("ld", "st", "atom", "red", "async")


@pytest.mark.parametrize("kind", KINDS)
def test_memory_forms_agree_with_numpy_on_the_simulator(kind):
    """One in four of the forms that the simulator implements, from a random first one."""
    found = []
    for part in ptx_memory.batches([f for f in ptx_memory.forms_of(kind) if ptx_memory.is_simulated(f)][KINDS.index(kind)::4]):
        kernel, given, wants = ptx_memory.kernel_of(part)
        report = kernel.simulate((2,), *given.values())
        found += [str(report)] if report.findings else ptx_memory.problems(part, given, wants)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_forms_assemble(kind):
    """In every state space: arrays, shared memory, another CTA's shared memory."""
    for part in ptx_memory.batches(ptx_memory.forms_of(kind)[KINDS.index(kind)::9]):
        kernel, given, _ = ptx_memory.kernel_of(part)
        assert kernel.compile(*given.values()).cubin


@needs_gpu(*CLUSTERED)
@in_child(timeout=240)
@pytest.mark.parametrize("kind", KINDS)
def test_every_memory_form_agrees_with_numpy_on_the_gpu(kind):
    found, forms = [], some(ptx_memory.forms_of(kind))
    made = [(part, *ptx_memory.kernel_of(part)) for part in ptx_memory.batches(forms)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda m: m[1].compile(*m[2].values()), made))
    for part, kernel, given, wants in made:
        print(*(f.name for f in part), flush=True)
        arrays = {name: tile.to_device(x) for name, x in given.items()}
        kernel[2,](*arrays.values())
        found += ptx_memory.problems(part, {name: x.numpy() for name, x in arrays.items()}, wants)
    assert forms and not found, "\n".join(found)


def test_copies_written_in_ptx_instructions_are_right_on_the_simulator():
    on_simulator(ptx_copies.simulated())
    on_simulator(ptx_copies.im2col_w_cases(), "sm_100a")


def test_barriers_and_fences_written_in_ptx_instructions_are_right_on_the_simulator():
    """On mbarriers in the kernel's own memory too: states, dropped and relaxed arrivals, bytes."""
    on_simulator(ptx_sync.simulated())


def test_copies_and_synchronisation_written_in_ptx_instructions_assemble(assembled_later):
    """Every form of cp.async, bulk and tensor copies, mbarrier, barrier, fence and tensormap.replace; some of wgmma."""
    assert all(compiled(case, "sm_100a").ptx for case in ptx_copies.im2col_w_cases())
    assert all(compiled(case).ptx for case in (*ptx_copies.every_copy(), *ptx_sync.every_meeting(), *ptx_wgmma.every_product(130)))


def test_every_hopper_form_of_copies_maps_barriers_and_fences_is_covered_by_a_case():
    """Except `multimem`, which needs the memory of several GPUs."""
    text = "".join(c.kernel.source.text for c in (*ptx_copies.every_copy(), *ptx_sync.every_meeting()))
    called = set(re.findall(r"tile\.ptx\.([\w.]+)\(", text))
    family = re.compile(r"(cp|tensormap|fence|membar|mbarrier|barrier|bar|prefetch|prefetchu|applypriority|discard|createpolicy|ldmatrix|stmatrix|mapa)\.")
    assert [f.name for f in ptx.forms() if f.exists_on("sm_90a") and family.match(f.name) and ptx.python_name(f) not in called] == []


def test_every_form_of_copies_and_of_tensor_maps_is_implemented_by_the_simulator():
    """Including Blackwell's."""
    family = re.compile(r"(cp|tensormap|st\.async|red\.async|fence\.proxy\.tensormap.*)\.")
    assert [f.name for f in ptx.forms() if family.match(f.name) and meaning(f) is None] == []


@needs_gpu("sm_90a")
@in_child(timeout=120)
@pytest.mark.parametrize("which", [pytest.param("cp.async", marks=pytest.mark.misread_by_synccheck), "other"])
def test_copies_written_in_ptx_instructions_are_right_on_the_gpu(which):
    on_gpu([case for case in ptx_copies.every_copy() if (case.name == "cp.async") == (which == "cp.async")])


@needs_gpu("sm_90a")
@in_child(timeout=40)
@pytest.mark.parametrize("which", [pytest.param(0, marks=pytest.mark.misread_by_synccheck), *range(1, 6)])
def test_barriers_matrices_and_addresses_written_in_ptx_instructions_are_right_on_the_gpu(which):
    on_gpu([list(ptx_sync.every_meeting())[which]])


@needs_gpu("sm_90a")
@in_child(timeout=120)
@pytest.mark.parametrize("first", [0, 3, 6])
def test_warpgroup_products_written_in_ptx_instructions_are_right_on_the_gpu(first):
    on_gpu(ptx_wgmma.every_product(9, first))


@tile.jit(num_warps=4)
def following(x, y):
    """Starts before the previous kernel has ended, and waits for its writes."""
    i = tile.program_id(0) * 128 + tile.thread_id()
    tile.ptx.griddepcontrol.wait()
    tile.store(y[i], tile.load(x[i]) + 1)
    tile.ptx.griddepcontrol.launch_dependents()


def chain(x, y, times: int):
    for _ in range(times):
        following[len(x) // 128,](x, y, pdl=True)
        x, y = y, x
    return x


def test_kernels_that_start_early_wait_for_the_previous_kernel():
    x = np.arange(256, dtype=np.int32)
    assert not following.compile(x, x, pdl=True).warnings
    assert (chain(x.copy(), np.zeros_like(x), 3) == x + 3).all()


@needs_gpu(*HOPPER)
@in_child(timeout=60)
def test_kernels_that_start_early_wait_for_the_previous_kernel_on_the_gpu():
    x = np.arange(1 << 18, dtype=np.int32)
    assert (chain(tile.to_device(x), tile.to_device(np.zeros_like(x)), 200).numpy() == x + 200).all()
