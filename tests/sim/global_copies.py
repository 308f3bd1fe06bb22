"""What the tests of asynchronous copies to and from global memory share: data, the copies, and a check of faulty kernels and right ones."""

import numpy as np
import pytest
from faulty import marks

from tests.chosen_cases import all_cases, examples

SEEDS = range(examples(40))
FEW = range(6 if all_cases() else 4)

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
ZEROS = np.zeros_like(X)
FLAG = np.zeros(1, np.int32)

# Copies from shared to global memory: (variant, reduce).
STORES = [("tma", None), ("bulk", None), ("tma", "add"), ("bulk", "add")]
stores = pytest.mark.parametrize("how, reduce", STORES, ids=[f"{v} {r or 'store'}" for v, r in STORES])
LOADS = ["tma", "bulk"]


def check(kernel, grid, *args, faulty, fine, result, expected, seeds=FEW, words=(), **meta):
    """With the options `faulty`, the findings are those marked in the kernel's source, and say `words`; with `fine`, there are none, and
    argument number `result` holds `expected` afterwards."""
    for seed in seeds:
        arrays = [a.copy() for a in args]
        report = kernel.simulate(grid, *arrays, seed=seed, **faulty, **meta)
        assert {(f.kind, f.line) for f in report.findings} == marks(kernel), f"seed {seed}: {report}"
        for word in words:
            assert word in report.findings[0].message
        arrays = [a.copy() for a in args]
        report = kernel.simulate(grid, *arrays, seed=seed, **fine, **meta)
        assert not report.findings, f"seed {seed}: {report}"
        np.testing.assert_array_equal(arrays[result], expected, err_msg=f"seed {seed}")


def line_of(kernel, text: str) -> int:
    """The line of a kernel's source that contains a text."""
    return next(n for n, line in enumerate(kernel.source.lines, kernel.source.first_line) if text in line)
