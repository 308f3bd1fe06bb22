"""Scale factors of a product's operands.

One factor for the result, or factors for blocks along k, in the form that each GPU's kernels take.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from ...errors import LaunchError
from ...runtime.arguments import plain_constant
from ...runtime.arrays import ArrayView
from ...runtime.element_types import fits_float32
from ..operands import describe_operand
from .blackwell.mainloop import ROWS, UNIT
from .hopper.mainloop import BLOCK

BLOCKS = UNIT // ROWS      # blocks along k that a unit of factors covers
FACTORS = "float8_e8m0fnu", "float8_e4m3fn"


class Scale(NamedTuple):
    """What a launch depends on in an array of scales: its layout, and whether its address is a multiple of 16 bytes."""

    shape: tuple[int, ...]
    dtype: str
    device: str | int
    contiguous: bool
    aligned: bool


def scale(name: str, s) -> Scale | None:
    """The properties of the array `s`; None for a number. LaunchError, with `name`, for anything else."""
    number = plain_constant(s)
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        if not fits_float32(number):
            raise LaunchError(f"{name} must be a number that float32 holds, not {s}")
        return None
    if s is None:
        return None
    if not hasattr(s, "shape") or isinstance(s, np.bool_):
        raise LaunchError(f"{name} must be a number or an array of factors, not {type(s).__name__}")
    v = describe_operand(name, s)
    if v.dtype not in ("float32", *FACTORS):
        raise LaunchError(f"{name} must be of float32, or of {' or '.join(FACTORS)} for blocks along k on Blackwell, "
                          f"not of {v.dtype}")
    return Scale(v.shape, v.dtype, v.device, v.is_contiguous, v.pointer % 16 == 0)


def of_blocks(scaled: tuple[Scale | None, ...], device: str | int) -> bool:
    """Whether there are factors for blocks. LaunchError if an array has neither those nor a single factor, or is not
    on the operands' device."""
    for name, s in zip(("scale_a", "scale_b"), scaled):
        if s and s.device != device:
            raise LaunchError(f"the operands are on {device}, and {name} on {s.device}")
    if any(s and (len(s.shape) > 1 and prod(s.shape) != 1 or s.dtype in FACTORS) for s in scaled):
        return True
    for name, s in zip(("scale_a", "scale_b"), scaled):
        if s and prod(s.shape) != 1:
            raise LaunchError(f"{name} must be a number, an array of one element, "
                              f"or a factor for each block in two dimensions, not of shape {s.shape}")
    return False


def one_factor(s):
    """A scale as the kernel takes it: a float, or a one-dimensional array of one element."""
    if isinstance(s, (int, float, np.generic)) or s is None:
        return 1.0 if s is None else float(s)
    return s if getattr(s, "ndim", 0) == 1 else s.reshape((1,))


def by_rows(x: ArrayView, y: ArrayView, scaled: tuple[Scale | None, ...]) -> tuple[bool, bool]:
    """For float32 factors of 128 along k, which threads multiply by (Hopper): for each operand whether it has one for
    each row, instead of one for 128 rows."""
    if len(x.shape) > 2 or len(y.shape) > 2 or not x.dtype.startswith("float8"):
        raise LaunchError(f"block scales are for two matrices of float8, and a is of {x.dtype} and shape {x.shape}")
    (m, k), n = x.shape, y.shape[1]
    def count_blocks(extent):
        return -(-extent // BLOCK)
    found = []
    for name, s, rows, words in (("scale_a", scaled[0], m, "[M or M/128, K/128]"),
                                 ("scale_b", scaled[1], n, "[K/128, N or N/128]")):
        order = 1 if name == "scale_a" else -1
        given, wanted = s.shape[::order] if s else (), ((rows, count_blocks(k)), (count_blocks(rows), count_blocks(k)))
        if s is None or given not in wanted:
            raise LaunchError(f"{name} must be {words}: of shape {wanted[0][::order]} or {wanted[1][::order]} here, "
                              f"not {given[::order]}")
        if s.dtype != "float32":
            raise LaunchError(f"{name} must be of float32 on sm_90a, not of {s.dtype}")
        found.append(given[0] == rows)
    return found[0], found[1]


def block_of(x: ArrayView, y: ArrayView, scaled: tuple[Scale | None, ...], k: int) -> int:
    """For factors that the tensor cores multiply by (Blackwell): the elements along k of a block; 0 if k is 0."""
    if len(x.shape) > 2 or len(y.shape) > 2 or x.dtype[:6] not in ("float8", "float4"):
        raise LaunchError("block scales are for two matrices of float8 or of float4, "
                          f"and a is of {x.dtype} and shape {x.shape}")
    four = x.dtype.startswith("float4")
    kinds = {"float8_e8m0fnu": 32} | ({"float8_e4m3fn": 16} if four else {})
    for name, s, rows, letter in (("scale_a", scaled[0], x.shape[0], "M"), ("scale_b", scaled[1], y.shape[1], "N")):
        words = " or ".join(f"{dtype} for blocks of {block}" for dtype, block in kinds.items())
        if s is None or s.dtype not in kinds:
            raise LaunchError(f"{name} for {x.dtype} must be of {words} on Blackwell, "
                              f"not {f'of {s.dtype}' if s else 'a number'}")
        block = kinds[s.dtype]
        shape = -(-rows // ROWS), -(-k // (block * BLOCKS))
        if prod(s.shape) != prod(shape) * UNIT or not s.contiguous:
            raise LaunchError(f"{name} must be contiguous units of {UNIT} bytes, each the factors of {ROWS} of "
                              f"{letter} and {BLOCKS} blocks of {block} along k: {shape[0]} x {shape[1]} of them here, "
                              f"{prod(shape) * UNIT} elements, not an array of shape {s.shape}"
                              + ("" if s.contiguous else " with gaps or in another order"))
        if not s.aligned:
            raise LaunchError(f"{name} must begin at a multiple of 16 bytes, and does not")
    of_a, of_b = (s.dtype if s is not None else "" for s in scaled)
    if of_a != of_b:
        raise LaunchError(f"scale_a and scale_b must be of one dtype, not of {of_a} and {of_b}")
    return block if k else 0


def in_units(s, rows: int):
    """The factors of `rows` rows as [units along the rows, units along k, UNIT]."""
    return s.reshape((-(-rows // ROWS), -1, UNIT))


__all__ = ["Scale", "block_of", "by_rows", "in_units", "of_blocks", "one_factor", "scale"]
