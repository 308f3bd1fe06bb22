"""The persistent copies of the benchmark: every element, and the instructions that they should use."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.gpu import in_child, needs_gpu

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from copy_kernels import by_vectors, through_ldgsts, through_tma  # noqa: E402

WAYS = {
    "tma": (through_tma, {"STAGES": 4, "AHEAD": 2}), "tma, no slot free": (through_tma, {"STAGES": 3, "AHEAD": 2, "KEPT": "evict_last"}),
    "tma, one ahead": (through_tma, {"STAGES": 3, "AHEAD": 1}), "ldgsts": (through_ldgsts, {"STAGES": 3}),
    "ldgsts, two stages": (through_ldgsts, {"STAGES": 2}),
}


def array(rows: int, columns: int = 64) -> np.ndarray:
    return np.random.default_rng(rows).integers(-(1 << 31), 1 << 31, (rows, columns), np.int32)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [1, 8, 70, 200])
def test_a_persistent_copy_keeps_every_element(way, rows):
    """Fewer tiles than CTAs, ragged last tiles, slots refilled again and again; no fault is found. In `through_ldgsts`, each thread reads
    without a barrier what it copied itself, which depends on the chosen layouts."""
    kernel, options = WAYS[way]
    x = array(rows)
    y = np.zeros_like(x)
    counter = np.zeros(1, np.uint32)
    for _ in range(2):  # the counter is 0 again for the next launch
        y[:] = 0
        found = kernel.simulate((3,), x, y, counter, ROWS=8, COLUMNS=64, **options).findings
        assert [f.kind for f in found] == ["layout-dependent"] * (kernel is through_ldgsts) and (x == y).all()
        assert counter[0] == 0


def test_the_persistent_copies_use_the_instructions_in_their_names():
    """One tensor copy each way per tile; 16 bytes per thread and instruction; a copy by vectors."""
    x = array(4096, 256)
    counter = np.zeros(1, np.uint32)
    k = through_tma.compile(x, x.copy(), counter, ROWS=32, COLUMNS=256, STAGES=6, AHEAD=3)
    assert {(c.variant, c.instructions) for c in k.copies} == {("tma", 1)} and k.spills == 0
    k = through_ldgsts.compile(x, x.copy(), counter, ROWS=16, COLUMNS=256, STAGES=3)
    assert [c.variant for c in k.copies] == ["ldgsts", "vectorised"] and {c.instructions for c in k.copies} == {8} and k.spills == 0
    assert k.ptx.count("cp.async.cg.shared.global") == 8
    assert [c.variant for c in by_vectors.compile(x, x.copy(), ROWS=16, COLUMNS=256).copies] == ["vectorised"]


@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=180)
def test_a_persistent_copy_keeps_every_element_on_the_gpu():
    """By every method, with sizes from one row to many tiles per CTA."""
    for kernel, options in WAYS.values():
        for rows in (1, 70, 5000, 100_003):
            x = array(rows, 256)
            y = np.zeros_like(x)
            kernel[132,](x, y, np.zeros(1, np.uint32), ROWS=16, COLUMNS=256, backend="cuda", **options)
            assert (x == y).all(), (options, rows)
