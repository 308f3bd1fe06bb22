"""Epilogues of the matrix products in `matmul.py`."""

from __future__ import annotations

import tilejit as tile


@tile.jit
def bias_gelu(acc, row, column, bias):
    """GELU (tanh approximation) of the sums plus a bias; the kernel passes the bias of the tile's columns."""
    v = acc + bias[None, :]
    return v * (0.5 + 0.5 * tile.tanh(v * (0.7978845608 + 0.0356774081 * v * v), fast=True))


@tile.jit
def bias_gelu_residual(acc, row, column, bias, residual):
    """The same, plus a residual; the kernel passes its tile."""
    return bias_gelu(acc, row, column, bias) + residual


@tile.jit
def bias_gelu_rounded_residual(acc, row, column, bias, residual):
    """The same, rounded to the residual's dtype before the residual is added, as a library with a function for each step would round."""
    return tile.cast(bias_gelu(acc, row, column, bias), residual.dtype) + residual


@tile.jit
def phi(v):
    """The normal distribution function Phi of 16-bit floats in 16-bit arithmetic, two elements per instruction: ``0.5 + v * p(v * v)``, clamped to
    [0, 1]. Its error times |v|, which is the error of GELU, is at most 1.2e-3 without rounding errors."""
    u = v * v
    p = tile.fma(tile.fma(tile.fma(tile.fma(1.02519989e-05, u, -0.000408172607), u, 0.00671386719), u, -0.0600585938), u, 0.39453125)
    return tile.minimum(tile.maximum(tile.fma(v, p, 0.5), 0.0), 1.0)


@tile.jit
def bias_gelu_narrow_residual(acc, row, column, bias, residual):
    """GELU (``v * Phi(v)``) of the biased sums, rounded to the residual's dtype first, plus the residual."""
    v = tile.cast(acc + bias[None, :], residual.dtype)
    return tile.fma(v, phi(v), residual)
