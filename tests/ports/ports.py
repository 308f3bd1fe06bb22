"""Ports: kernels that run in production elsewhere, written anew in the language, and what runs them on either machine.

    @port
    def vector_add(on):
        x, y = normal(1000), normal(1000)
        out = on.empty(1000, "float32")
        add[4,](on(x), on(y), out, BLOCK=256)
        on.check(out, x + y)

`on` is the machine: `on(x)` gives a copy of an array there, and `on.check` compares what a kernel has written with what
NumPy computes. A file has the ports of one family, each below its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
import tilejit as tile

Shape = int | Sequence[int]
PORTS: dict[str, Callable[[Machine], None]] = {}

# How far apart the numbers of two orders of additions are, in parts of the largest one, after rounding to the dtype.
CLOSE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2, "float8_e4m3fn": 7e-2}


class Machine:
    """Where the kernels of a port run. `checked` counts its comparisons."""

    def __init__(self, place: Callable[[np.ndarray], Any], fetch: Callable[[Any], np.ndarray]):
        self.place, self.fetch, self.checked = place, fetch, 0

    def __call__(self, x: np.ndarray) -> Any:
        """A copy of the array on the machine."""
        return self.place(x)

    def empty(self, shape: Shape, dtype: Any) -> Any:
        """An array whose elements a kernel is to write: until then they are no result."""
        found = np.empty(shape, dtype)
        found.reshape(-1).view(np.uint8)[:] = 0xA5
        return self.place(found)

    def zeros(self, shape: Shape, dtype: Any) -> Any:
        return self.place(np.zeros(shape, dtype))

    def get(self, x: Any) -> np.ndarray:
        """A copy of the machine's array on the host."""
        return self.fetch(x)

    def check(self, x: Any, want: np.ndarray, close: float | None = None) -> None:
        """Compare an array, of the machine or fetched, with the expected one: integers exactly, floats within `close`,
        or what is usual for their dtype, of the largest one. Infinities and NaN are where they are expected."""
        self.checked += 1
        got, want = x if isinstance(x, np.ndarray) else self.fetch(x), np.asarray(want)
        assert got.shape == want.shape, f"{got.shape} instead of {want.shape}"
        if got.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want)
            return
        close = CLOSE[got.dtype.name] if close is None else close
        got, want = got.astype(np.float64), want.astype(np.float64)
        most = np.abs(want[np.isfinite(want)]).max(initial=0)
        np.testing.assert_allclose(got, want, rtol=close, atol=close * most)


def aligned(x: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 256 bytes, as device memory is."""
    raw = np.empty(x.nbytes + 256, np.uint8)
    found = raw[-raw.ctypes.data % 256:][:x.nbytes].view(x.dtype).reshape(x.shape)
    found[...] = x
    return found


SIMULATOR = Machine(aligned, np.array)
GPU = Machine(tile.to_device, lambda x: x.numpy())


def port(function: Callable[[Machine], None]) -> Callable[[Machine], None]:
    """Decorator: the function is a port, which the tests run by its name."""
    assert function.__name__ not in PORTS, function.__name__
    PORTS[function.__name__] = function
    return function


def run(name: str, on: Machine) -> None:
    """Run a port; its random numbers depend on its name alone."""
    seed(crc32(name.encode()))
    on.checked = 0
    PORTS[name](on)
    assert on.checked, f"{name} checks nothing"


# -- what the arrays hold ----------------------------------------------------------------------------------------------

_rng = np.random.default_rng(0)


def seed(n: int) -> None:
    global _rng
    _rng = np.random.default_rng(n)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return _rng.standard_normal(shape).astype(dtype)


def uniform(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return _rng.random(shape).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    return _rng.integers(low, high, shape).astype(dtype)


def permutation(n: int) -> np.ndarray:
    return _rng.permutation(n).astype(np.int32)


def exact(x: np.ndarray) -> np.ndarray:
    """The array in float64, in which references are computed."""
    return x.astype(np.float64)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


bfloat16, float8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
