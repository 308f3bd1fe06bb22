"""The lowered graphs of a handful of kernels, as text. A change here changes the code of every similar kernel.

To accept a change: run ``TILEJIT_UPDATE_GOLDEN=1 python -m pytest tests/golden`` and review the diff.
"""

import os
from pathlib import Path

import pytest
import tilejit as tile
from tilejit.demo import softmax, staged_copy, staged_tma, vector_add

DATA = Path(__file__).parent / "data"


@tile.jit(num_warps=8)
def column_sums(x, out, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
    total = tile.zeros((COLUMNS,), tile.float32)
    for i in range(tile.cdiv(x.shape[0], ROWS)):
        block = tile.load(x[i * ROWS:(i + 1) * ROWS, 0:COLUMNS], other=0)
        total += tile.sum(block, axis=0)
    tile.store(out[0:COLUMNS], total)


@tile.jit
def lookup(table, index, out, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    at = tile.load(index[i:i + BLOCK], other=0)
    tile.store(out[i:i + BLOCK], tile.load(table[at]))


def _array(*shape, dtype="float32"):
    return tile.ArraySpec(shape, dtype)


KERNELS = {
    "vector_add": (vector_add, [_array(1 << 20)] * 3, {"BLOCK": 1024}),
    "softmax": (softmax, [_array(1024, 1000)] * 2, {"BLOCK": 1024}),
    "softmax_unaligned": (softmax, [_array(1000, 781)] * 2, {"BLOCK": 1024}),
    "staged_copy": (staged_copy, [_array(4096, 256, dtype="float16")] * 2, {"ROWS": 128, "COLUMNS": 256}),
    "staged_tma": (staged_tma, [_array(4096, 256, dtype="float16")] * 2, {"ROWS": 64, "COLUMNS": 256}),
    "column_sums": (column_sums, [_array(1000, 96, dtype="bfloat16"), _array(96)], {"ROWS": 64, "COLUMNS": 96}),
    "lookup": (lookup, [_array(5000), _array(3000, dtype="int64"), _array(3000)], {"BLOCK": 512}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_lowers_to_its_golden_graph(name):
    kernel, arrays, constants = KERNELS[name]
    found = kernel.compile(*arrays, target="sm_90a", **constants).graph
    file = DATA / f"{name}.txt"
    if os.environ.get("TILEJIT_UPDATE_GOLDEN"):
        file.write_text(found)
    assert found == file.read_text()


@pytest.mark.all_cases
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_assemble_for_every_target_that_has_their_instructions(name, target):
    if name == "staged_tma" and target == "sm_80":
        pytest.skip("the TMA engine came with sm_90")
    kernel, arrays, constants = KERNELS[name]
    compiled = kernel.compile(*arrays, target=target, **constants)
    assert compiled.cubin and compiled.spills == 0 and f".target {target}" in compiled.ptx
