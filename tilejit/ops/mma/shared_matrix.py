"""An operand in shared memory as the matrix descriptors of wgmma and tcgen05 name it."""

from __future__ import annotations

from collections.abc import Callable

from ...types import Region
from ..copy_async.tma_view import shared_digits, swizzle_mode
from .descriptor import Derived, derived

SPANS = {0: 0, 1: 32, 2: 64, 3: 128}  # mode of a swizzle -> its bytes


def shared_matrix(t: Region, starts, k_first: bool, mn: int, align: int, divisor: Callable) -> Derived | str:
    """The descriptor of region `t` for instructions of `mn` rows (of A) or columns (of B), and where each of them starts; a
    string says why none names it.

    `k_first`: the region is [k, mn], else [mn, k]. `align` is the buffer's alignment in bytes, `divisor` what is known to
    divide a start. PTX ISA, "Matrix descriptor": a matrix begins at a whole period of its swizzle, and steps along k may
    begin inside of a row of the atom.
    """
    itemsize, layout = t.dtype.nbytes, t.buffer.layout
    mode = swizzle_mode(layout, itemsize)
    if mode is None:
        return f"the swizzle {layout.swizzle}"
    known = [x.value if hasattr(x, "value") else x for x in starts]
    found = shared_digits(layout, t.buffer.shape, known, t.extents, divisor)
    if isinstance(found, str):
        return found
    digits, offset = found
    first, second = ([(n, stride * itemsize) for n, stride in digits[d]] for d in t.kept)
    rows, ks = (second, first) if k_first else (first, second)
    span = SPANS[mode]
    made = derived(rows, ks, mn, itemsize, span)
    if isinstance(made, str):
        return made
    period = 8 * span if span else 16
    begins = offset * itemsize if isinstance(offset, int) else offset.of * itemsize
    if begins % period or align % period:
        what = f"it begins at a multiple of {begins}" if begins % period else f"the buffer is aligned to {align}"
        return f"{what} bytes, and {period} are needed"
    within = span if made.descriptor.major == "k" and span else 0
    if any(r % period for r in made.rows) or any(k % period >= max(within, 1) for k in made.ks):
        return f"a part of it begins inside the {period} bytes of the swizzle's period"
    return made
