"""Partial results of reductions and scans in scratch memory."""

from __future__ import annotations

from ...dtypes import DType


def behind_each_other(elements: int, dtypes: tuple[DType, ...]) -> tuple[int, ...]:
    """The byte offsets of consecutive arrays of `elements` elements, one for each dtype, at multiples of 16;
    and the end of the last."""
    offsets = [0]
    for dtype in dtypes:
        offsets.append(offsets[-1] + -(-elements * dtype.nbytes // 16) * 16)
    return tuple(offsets)


def load_run(e, address, offset: int, dtype: DType, count: int) -> list:
    """Load `count` consecutive elements from shared memory, in vectors of up to 16 bytes."""
    vector = 1
    while count % (2 * vector) == 0 and 2 * vector * dtype.nbytes <= 16:
        vector *= 2
    zero, values = e.const(0, dtype), []
    for at in range(0, count, vector):
        values += e.vector_load("shared", address, offset + at * dtype.nbytes, dtype, [zero] * vector, None, None)
    return values
