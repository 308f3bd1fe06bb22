"""How far a kernel's sums may be from the exact ones: bounds from dtype and length, and a comparison that uses them."""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType, dtype_of, float8_e8m0fnu, float32
from ..errors import LaunchError, TileError
from ..frames import hide_own_frames
from ..lazy import Lazy
from .verification import as_numpy

ml_dtypes = Lazy("ml_dtypes")

# The errors of a sum's roundings mostly cancel: with a probability of 1 - 2 exp(-CHANCE**2 / 2) they stay below
# CHANCE sqrt(n) units of rounding instead of n (Higham and Mary, "A New Approach to Probabilistic Rounding Error
# Analysis", 2019, theorem 2.4). It is missed once in 30 million sums.
CHANCE = 6
TF32 = 2.0 ** -10  # the relative error of a number that is cut to the 10 bits of tf32's fraction


class Tolerance(NamedTuple):
    """What a float may differ by: ``rtol * |expected| + atol``. ``**tolerance_of(...)._asdict()`` gives both to
    `verify` or ``numpy.testing.assert_allclose``."""

    rtol: float
    atol: float


def _epsilon(dtype: DType) -> float:
    """The distance from 1 to the next number of a dtype."""
    return float(ml_dtypes.finfo(dtype.np).eps)


@hide_own_frames
def tolerance_of(dtype: Any, length: int = 1, *, accumulated: Any = None, operands: Any = None,
              magnitude: float | None = None) -> Tolerance:
    """The tolerance of a sum of `length` terms, or products of two numbers, whose result is of `dtype`.

    The sum is `accumulated` in another dtype, by default in float32, or in `dtype` if that is wider; in any order.
    `operands` is the dtype to which the numbers are rounded before they are multiplied, or "tf32"; by default none.
    `magnitude` is the sum of the terms' magnitudes, by default `length`, which is that of terms of magnitude 1.

    `rtol` is the dtype's epsilon, for the last rounding. `atol` is the bound on the roundings before it. With u, half
    the epsilon of `accumulated`, that is ``min(length, 6 * sqrt(length)) * u * magnitude``: the first holds always, the
    second but once in 30 million sums (Higham and Mary, 2019). Integers and bools have no tolerance, and neither have
    powers of two (float8_e8m0fnu). Raises LaunchError.
    """
    kind = dtype_of(dtype)
    if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 1:
        raise LaunchError(f"length is the number of terms, of at least 1, not {length!r}")
    if magnitude is not None and not magnitude >= 0:
        raise LaunchError(f"magnitude is the sum of the terms' magnitudes, of at least 0, not {magnitude!r}")
    if not kind.is_float or kind == float8_e8m0fnu:
        return Tolerance(0.0, 0.0)
    if accumulated is None:
        sums = kind if kind.bits > 32 else float32
    else:
        sums = dtype_of(accumulated)
    if not sums.is_float:
        raise LaunchError(f"floats are accumulated in a float dtype, not in {sums}")
    size = float(length) if magnitude is None else float(magnitude)
    atol = min(length, CHANCE * sqrt(length)) * _epsilon(sums) / 2 * size
    if operands is not None:  # each of the two factors is rounded
        atol += (2 * TF32 if operands == "tf32" else _epsilon(dtype_of(operands))) * size
    return Tolerance(_epsilon(kind), atol + float(ml_dtypes.finfo(kind.np).smallest_subnormal))


@partial(hide_own_frames, errors=(TileError, AssertionError))
def assert_close(got: Any, expected: Any, length: int = 1, *, accumulated: Any = None, operands: Any = None,
                 magnitude: Any = None) -> None:
    """Assert that an array has the `expected` elements, in a wider dtype or the same, within `tolerance_of` its
    dtype and of sums of `length` terms.

    `magnitude` may be an array too, the sum of the terms' magnitudes of each element: ``abs(a) @ abs(b)`` for
    ``a @ b``. By default it is that of terms of the magnitude of 1, or of the largest result if that is more. NaN
    equals NaN, and infinities equal themselves. Arrays are those of NumPy, or of another library on the host. Raises
    AssertionError with the first element that differs, and LaunchError for shapes that do.
    """
    x, wide = as_numpy(got), as_numpy(expected)
    if x.shape != wide.shape:
        raise LaunchError(f"the result has the shape {x.shape}, and the expected one {wide.shape}")
    if dtype_of(x.dtype).is_float:
        y = wide.astype(np.float64)
        if magnitude is None:
            magnitude = max(length, float(np.abs(y[np.isfinite(y)]).max(initial=0.0)))
        unit = tolerance_of(x.dtype, length, accumulated=accumulated, operands=operands, magnitude=1.0)
        least = tolerance_of(x.dtype, length, accumulated=accumulated, operands=operands, magnitude=0.0).atol
        atol = (unit.atol - least) * as_numpy(magnitude).astype(np.float64) + least
        wrong, allowed = _far(x.astype(np.float64), y, unit.rtol, atol)
    else:
        wrong, allowed = x != wide, np.zeros(x.shape)
    if wrong.any():
        first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        index = [int(i) for i in first]
        raise AssertionError(f"element {index} is {x[first]}, and {wide[first]} is expected within "
                             f"{allowed[first]:.2g} ({int(wrong.sum())} of {wrong.size} elements differ)")


def _far(x: np.ndarray, y: np.ndarray, rtol: float, atol: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which elements differ by more than is allowed, and what is allowed of each."""
    with np.errstate(invalid="ignore"):
        allowed = np.where(np.isfinite(y), rtol * np.abs(y) + atol, 0.0)
        near = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= allowed)
    return ~near, allowed
