"""What is done to the sums of the timed matrix product."""

from __future__ import annotations

import tilejit as tile


SCALE = 0.0356774081 ** (1 / 3)  # of what GELU is of, so that its cube has no factor: an instruction less for each element


@tile.jit
def bias_gelu(acc, row, column, bias):
    """GELU (its tanh form) of the sums and a bias, whose columns the kernel has brought: v (1 + tanh(0.7978845608 v + 0.0356774081 v^3)) / 2."""
    v = acc * SCALE + (bias * SCALE)[None, :]
    return v * (0.5 / SCALE + 0.5 / SCALE * tile.tanh(v * (0.7978845608 / SCALE + v * v), fast=True))


@tile.jit
def bias_gelu_residual(acc, row, column, bias, residual):
    """The same, and a residual, whose tile the kernel has brought."""
    return bias_gelu(acc, row, column, bias) + residual


@tile.jit
def bias_gelu_rounded_residual(acc, row, column, bias, residual):
    """The same, rounded to the residual's dtype before that is added, as a library's function for each step rounds."""
    return tile.cast(bias_gelu(acc, row, column, bias), residual.dtype) + residual
