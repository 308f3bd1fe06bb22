"""Products with batch dimensions: a product of matrices for each index, whose results are stacked."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...ir.builder import Builder, describe, element_type, extents_of, type_of
from ...ir.graph import Operand, Value
from ...lazy import Lazy
from ...types import Tile
from ..memory import regions
from ..tiles import slicing
from ..tiles.arrange import reshape_
from .site import product_shape

stacking = Lazy("tilejit.ops.language.stack")  # only products with batch dimensions load it


def batched_product(g: Builder, multiply: Callable[[Value, Value, Operand | None], Any], a: Value, b: Value, acc: Any,
                    trans_a: bool, trans_b: bool) -> Value:
    """``acc + a @ b`` for operands of which one has more than two dimensions: all but the last two are broadcast, as by
    NumPy's matmul, and ``multiply(a, b, acc)`` makes the product of each pair of matrices.

    A matrix that several indices share is one value, so that it is staged once.
    """
    batch = _batch_of(g, a, b)
    m, n, _ = matrix_shapes(g, a, b, trans_a, trans_b)
    if acc is not None and (not isinstance(type_of(acc), Tile) or acc.type.shape != (*batch, m, n)):
        raise g.error(f"a is {list(extents_of(a))} and b is {list(extents_of(b))}, so the accumulator is a tile "
                      f"{[*batch, m, n]}, not {describe(acc)}")
    if 0 in batch:
        raise g.error(f"a product with the batch dimensions {list(batch)} has nothing to multiply")
    matrices: dict[tuple[Any, ...], Value] = {}
    parts = [multiply(_matrix(g, matrices, a, at), _matrix(g, matrices, b, at),
                      None if acc is None else _matrix(g, matrices, acc, at))
             for at in product(*map(range, batch))]
    stacked: Value = g.call(stacking.stack_, *parts, axis=0)
    return stacked if len(batch) == 1 else g.call(reshape_, stacked, shape=(*batch, m, n))


def matrix_shapes(g: Builder, a: Value, b: Value, trans_a: bool, trans_b: bool) -> tuple[int, int, int]:
    """(m, n, k) of the products of each matrix of a batch. CompilationError if the operands' k differ."""
    one, other = (Value(x.name, Tile(element_type(x), extents_of(x)[-2:])) for x in (a, b))
    return product_shape(g, None, one, other, trans_a, trans_b)


def _batch_of(g: Builder, a: Value, b: Value) -> tuple[int, ...]:
    """The batch dimensions of a product. CompilationError if those of the operands do not match."""
    x, y = extents_of(a)[:-2], extents_of(b)[:-2]
    try:
        return np.broadcast_shapes(x, y)
    except ValueError:
        raise g.error(f"a is {list(extents_of(a))} and b is {list(extents_of(b))}: their batch dimensions, {list(x)} "
                      f"and {list(y)}, are neither equal nor 1") from None


def _matrix(g: Builder, made: dict[tuple[Any, ...], Value], x: Value, at: tuple[int, ...]) -> Value:
    """The matrix of `x` at an index of the batch."""
    shape = extents_of(x)
    batch = shape[:-2]
    if not batch:
        return x
    own = tuple(0 if n == 1 else i for i, n in zip(at[len(at) - len(batch):], batch))
    if (x, own) not in made:
        if isinstance(x.type, Tile) and prod(batch) == 1:
            made[x, own] = g.call(reshape_, x, shape=shape[-2:])
        else:
            made[x, own] = (slicing if isinstance(x.type, Tile) else regions).index(g, x, own)
    return made[x, own]


__all__ = ["batched_product", "matrix_shapes"]
