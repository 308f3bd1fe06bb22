"""What is done to the sums of the timed matrix product."""

from __future__ import annotations

import tilejit as tile


@tile.jit
def bias_gelu(acc, row, column, bias):
    """GELU (its tanh form) of the sums and a bias, whose columns the kernel has brought."""
    v = acc + bias[None, :]
    return v * (0.5 + 0.5 * tile.tanh(v * (0.7978845608 + 0.0356774081 * v * v), fast=True))


@tile.jit
def bias_gelu_residual(acc, row, column, bias, residual):
    """The same, and a residual, whose tile the kernel has brought."""
    return bias_gelu(acc, row, column, bias) + residual


@tile.jit
def bias_gelu_rounded_residual(acc, row, column, bias, residual):
    """The same, rounded to the residual's dtype before that is added, as a library's function for each step rounds."""
    return tile.cast(bias_gelu(acc, row, column, bias), residual.dtype) + residual


@tile.jit
def bias_gelu_narrow_residual(acc, row, column, bias, residual):
    """The same in the residual's dtype from the sums on: half of the instructions are for two elements."""
    v = tile.cast(acc, residual.dtype) + tile.cast(bias, residual.dtype)[None, :]
    return v * (0.5 + 0.5 * tile.tanh(v * (0.7978845608 + 0.0356774081 * v * v), fast=True)) + residual
