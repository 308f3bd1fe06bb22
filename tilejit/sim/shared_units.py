"""Moves elements of the CTAs' memories by units of 16 bytes, where they form such units.

NumPy moves a unit in the time of an element: a tile of 8192 float16 elements takes 3 us instead of 60.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .memory import PerCta

UNIT = 16
_UNITS = np.dtype(np.complex128)  # NumPy's widest type that it copies whole; its bits stay as they are


def units_at(addresses: np.ndarray, itemsize: int) -> np.ndarray | None:
    """The numbers of the aligned 16-byte units that the elements at byte `addresses` form in this order; None where
    they form none."""
    each = UNIT // itemsize
    if addresses.size == 0 or addresses.size % each:
        return None
    parts = addresses.reshape(-1, each)
    if (parts[:, 0] % UNIT).any() or (parts != parts[:, :1] + np.arange(each) * itemsize).any():
        return None
    return parts[:, 0] // UNIT


@dataclass(frozen=True)
class Elements:
    """The elements of a matrix (rows, columns) at byte addresses of each CTA's memory, to be read again and again."""

    addresses: np.ndarray
    itemsize: int
    units: np.ndarray | None  # numbers of the units, in the order of the elements
    across: bool              # ... of the transposed matrix

    @staticmethod
    def at(addresses: np.ndarray, itemsize: int) -> Elements:
        """Those at `addresses` (rows, columns), by units along the columns or the rows if there are any."""
        units = units_at(addresses, itemsize)
        if units is not None:
            return Elements(addresses, itemsize, units, False)
        return Elements(addresses, itemsize, units_at(addresses.T, itemsize), True)

    def read(self, memory: PerCta, rows: slice | np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The elements in the memory of the CTAs at `rows`, (CTAs, rows, columns)."""
        if self.units is None:
            return _take(memory.view(dtype), rows, self.addresses.reshape(-1) // self.itemsize).reshape(
                -1, *self.addresses.shape)
        found = read_units(memory, rows, self.units).view(dtype)
        if self.across:
            return found.reshape(-1, *self.addresses.T.shape).swapaxes(1, 2)
        return found.reshape(-1, *self.addresses.shape)


def read_units(memory: PerCta, rows: slice | np.ndarray, units: np.ndarray) -> np.ndarray:
    """Units of the memory of the CTAs at `rows`, (CTAs, 16-byte units)."""
    return _take(memory.view(_UNITS), rows, units)


def write_units(memory: PerCta, rows: slice | np.ndarray, units: np.ndarray, values: np.ndarray) -> None:
    """Write elements (CTAs or 1, n) that form `units`, in their order."""
    pieces = np.ascontiguousarray(values).view(_UNITS)
    data = memory.view(_UNITS)
    if isinstance(rows, slice):
        data[rows][:, units] = pieces
    else:
        data[rows[:, None], units] = pieces


def _take(data: np.ndarray, rows: slice | np.ndarray, index: np.ndarray) -> np.ndarray:
    if isinstance(rows, slice):
        return np.take(data[rows], index, axis=1)
    return data[rows[:, None], index]
