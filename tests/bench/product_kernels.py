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
def phi(v):
    """The normal distribution function Phi of 16-bit floats in their own arithmetic, two elements an instruction: ``0.5 + v * p(v * v)``, clamped to
    0 and 1. Its error times |v|, that of GELU, is at most 1.2e-3 before roundings."""
    u = v * v
    p = tile.fma(tile.fma(tile.fma(tile.fma(1.02519989e-05, u, -0.000408172607), u, 0.00671386719), u, -0.0600585938), u, 0.39453125)
    return tile.minimum(tile.maximum(tile.fma(v, p, 0.5), 0.0), 1.0)


@tile.jit
def narrow_bias_gelu_residual(acc, row, column, bias, residual):
    """The same in the residual's dtype from the sums on, which then wait for it in half of the registers."""
    v = tile.cast(acc, residual.dtype) + tile.cast(bias, residual.dtype)[None, :]
    return tile.fma(v, phi(v), residual)
