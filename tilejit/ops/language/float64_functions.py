"""Functions that NumPy lacks, of float64 arrays, for the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def _map_elements(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of Python floats, applied to each element."""
    def run(x: np.ndarray) -> np.ndarray:
        flat = np.fromiter(map(function, np.ravel(x).tolist()), np.float64, np.size(x))
        return flat.reshape(np.shape(x))
    return run


erf, erfc = _map_elements(math.erf), _map_elements(math.erfc)


def exp10(x: np.ndarray) -> np.ndarray:
    """10 to the power of x."""
    return np.power(10.0, x)


def erfinv(x: np.ndarray) -> np.ndarray:
    """The inverse of erf: infinite at 1 and -1, NaN beyond.

    Starts from S. Winitzki's approximation ("A handy approximation for the error function and its inverse", 2008) and
    applies Halley's method, where |x| is large to erfc, so that nothing cancels.
    """
    size = np.abs(x)
    inside = size < 1
    target = np.where(inside, size, 0.0)
    above = 1.0 - target  # exact for target >= 1/2, and not used below
    logarithm = np.log1p(-target) + np.log1p(target)
    half = 2 / (math.pi * 0.147) + logarithm / 2
    y = np.sqrt(np.maximum(np.sqrt(half * half - logarithm / 0.147) - half, 0.0))
    y = np.where(target < 1e-4, target * (math.sqrt(math.pi) / 2), y)
    for _ in range(3):
        error = np.where(target < 0.5, erf(y) - target, above - erfc(y))
        step = error * np.exp(y * y) * (math.sqrt(math.pi) / 2)
        y = y - step / (1 + y * step)
    beyond = np.where(size == 1, np.inf, np.nan)
    return np.copysign(np.where(inside, y, beyond), x)


def _plain_tgamma(x: float) -> float:
    """math.gamma, with C's results where it raises an error."""
    if x == 0:
        return math.copysign(math.inf, x)
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf if x > 0 or math.floor(x) % 2 == 0 else -math.inf
    except ValueError:
        return math.nan


def _plain_lgamma(x: float) -> float:
    """math.lgamma, with C's results where it raises an error: at poles, and above 2.5e305."""
    try:
        return math.lgamma(x)
    except (OverflowError, ValueError):
        return math.inf


tgamma, _lgamma = _map_elements(_plain_tgamma), _map_elements(_plain_lgamma)

# 1 minus Euler's constant, and zeta(k) - 1 for k = 2, 3, ...
_LINEAR = 0.42278433509846713
_ZETA_LESS_1 = (0.6449340668482264, 0.2020569031595943, 0.08232323371113819, 0.03692775514336993,
                0.01734306198444914, 0.008349277381922827, 0.00407735619794434, 0.0020083928260822143,
                0.0009945751278180853, 0.0004941886041194645, 0.0002460865533080483, 0.00012271334757848915,
                6.124813505870483e-05, 3.058823630702049e-05, 1.528225940865187e-05, 7.637197637899763e-06,
                3.81729326499984e-06, 1.908212716553939e-06, 9.539620338727962e-07, 4.769329867878064e-07,
                2.38450502727733e-07, 1.1921992596531106e-07, 5.960818905125948e-08, 2.980350351465228e-08,
                1.4901554828365043e-08, 7.45071178983543e-09, 3.725334024788457e-09, 1.862659723513049e-09)


def lgamma(x: np.ndarray) -> np.ndarray:
    """The logarithm of the absolute value of the gamma function. From 1/2 to 5/2, where it has zeros and math.lgamma
    is only accurate absolutely, by the series of ``lgamma(2 + z)``."""
    result = _lgamma(x)
    for root in (1.0, 2.0):
        near = np.abs(x - root) <= 0.5
        z = np.where(near, x - root, 0.0)
        series = np.zeros_like(z)
        for k in range(len(_ZETA_LESS_1) + 1, 1, -1):
            series = series * -z + _ZETA_LESS_1[k - 2] / k
        series = z * (_LINEAR + z * series)
        result = np.where(near, series - np.log1p(z) if root == 1 else series, result)
    return result
