"""Epilogues of the benchmarked matrix product."""

from __future__ import annotations

import tilejit as tile


@tile.jit
def bias_gelu(acc, row, column, bias):
    """GELU (its tanh form) of the accumulator plus a bias, whose columns the kernel has loaded."""
    v = acc + bias[None, :]
    return v * (0.5 + 0.5 * tile.tanh(v * (0.7978845608 + 0.0356774081 * v * v), fast=True))


@tile.jit
def bias_gelu_residual(acc, row, column, bias, residual):
    """The same plus a residual, whose tile the kernel has loaded."""
    return bias_gelu(acc, row, column, bias) + residual


@tile.jit
def phi(v):
    """The normal distribution function Phi of 16-bit floats in their own arithmetic, two elements per instruction: ``0.5 + v * p(v * v)``, clamped
    to 0 and 1. Its error times |v|, which is the error of GELU, is at most 1.2e-3 before rounding."""
    u = v * v
    p = tile.fma(tile.fma(tile.fma(tile.fma(1.02519989e-05, u, -0.000408172607), u, 0.00671386719), u, -0.0600585938), u, 0.39453125)
    return tile.minimum(tile.maximum(tile.fma(v, p, 0.5), 0.0), 1.0)


@tile.jit
def narrow_bias_gelu_residual(acc, row, column, bias, residual):
    """The same, computed from the accumulator on in the residual's 16-bit dtype, in which deferred results need half of the registers."""
    v = tile.cast(acc, residual.dtype) + tile.cast(bias, residual.dtype)[None, :]
    return tile.fma(v, phi(v), residual)
