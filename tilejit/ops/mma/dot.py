"""``dot``: a synchronous matrix product.

The path of each call (``wgmma`` of warpgroups, ``tcgen05.mma`` into tensor memory, ``mma.sync`` of warps, or
multiply-adds of single threads) follows from the location and types of the operands, the execution scope and the
target. passes/products/dots.py then expands the call to the operations of that path.
"""

from __future__ import annotations

from typing import Any

from ...dispatch import names
from ...dtypes import DType, dtype_of, float16, float32, float64, int32, int64
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...ir.graph import Value
from ...ir.op import op
from ...ir.op_traits import Reads, Registers, Traits
from ...types import Buffer, Region, Tile
from ..language.expect_variant import asked_variant
from ..language.promotion import collective, convert
from ..memory.packed import refuse_packed
from ..memory.regions import whole_region
from . import dot_tensor, thread, warp, wgmma
from .batch import batched_product
from .site import MmaSite, as_multiplied, checked_options, product_shape

ACCUMULATORS = (float32, float16, float64, int32, int64)
VARIANTS = (wgmma.DOT, dot_tensor.DOT, warp.DOT, thread.DOT)


@op("reads", attrs=("trans_a", "trans_b", "dtype", "precision", "options"), variants=VARIANTS, collective=True,
    traits=Traits(product=True))
def dot_(acc: Registers, a: Reads, b: Reads, scale_a: Registers = None, scale_b: Registers = None, *, trans_a, trans_b,
         dtype, precision, options):
    """``acc + a @ b``, or ``a @ b`` without `acc`.

    With `scale_a` and `scale_b`, [rows, blocks], it is a product of the `kind`, element `types` and size of a `block`
    in `options`. Elements of 4 and 6 bits are given as the bytes in which they are packed, or padded.
    """


@dot_.infer
def _(g, acc, a, b, *factors, trans_a, trans_b, dtype, precision, options):
    a, b = (Value(x.name, as_multiplied(x, options, n)) for n, x in enumerate((a, b)))
    m, n, k = product_shape(g, acc, a, b, trans_a, trans_b)
    if 0 in (m, n, k):
        raise g.error(f"a product of [{m}, {k}] by [{k}, {n}] has nothing to multiply")
    return Tile(dtype, (m, n))


@dot_.site
def _(g, call):
    return MmaSite.of_call(g, call)


# -- builtins ----------------------------------------------------------------------------------------------------------

@builtin
def dot(g: Builder, a, b, acc=None, trans_a=False, trans_b=False, dtype=None, precision=None, variant=None):
    """The matrix product ``a @ b``, plus the tile `acc` if it is given; a tile [m, n].

    `a` is [m, k] and `b` is [k, n], each a register tile or a matrix in shared memory. With ``trans_a=True``, `a` is
    given as [k, m]; with ``trans_b=True``, `b` is given as [n, k]. All extents of at least 1 are supported. Dimensions
    before these two are batch dimensions, which are broadcast as by NumPy's matmul: [b, m, k] by [b, k, n], or by [k,
    n], is [b, m, n], and so is `acc`. There is a product for each index of the batch, one after the other. Sums have
    the dtype of `acc`, or `dtype`: by default float32, float64 for float64 operands, and int32 for integers (int64 if
    they have 64 bits), which wraps around; float16 on request. float32 is multiplied exactly unless
    ``precision="tf32"`` rounds the operands to 10 bits of mantissa. Threads of the scope that have written operands
    to shared memory must have synchronised (``sync()``); the proxy fence before the tensor cores read them is part of
    the call. Register tiles computed from global memory may be staged in shared memory that the compiler allocates,
    with a barrier of the scope. `variant` names the path: "wgmma", "tcgen05", "mma_sync" or "fma".
    """
    return multiply(g, a, b, acc, trans_a, trans_b, dtype, precision, {"variant": variant})


def multiply(g: Builder, a, b, acc, trans_a, trans_b, dtype, precision, options: dict[str, Any]) -> Value:
    """`dot` with the `options` of its products."""
    collective(g, "dot")
    a, b = _operand(g, a, "a"), _operand(g, b, "b")
    dtype = _dtype(g, acc, a.type.dtype, b.type.dtype, dtype)
    checked_options(g, acc, a, b, dtype, precision, trans_a, trans_b)
    if len(a.type.shape) > 2 or len(b.type.shape) > 2:
        def of_matrices(x, y, sums):
            return multiply(g, x, y, sums, trans_a, trans_b, dtype, precision, options)
        return batched_product(g, of_matrices, a, b, acc, trans_a, trans_b)
    options = {**options, "variant": asked_variant(g, options["variant"], names(VARIANTS))}
    product: Value = g.call(dot_, acc, a, b, trans_a=trans_a, trans_b=trans_b, dtype=dtype, precision=precision,
                            options=options)
    return product


@builtin
def mma(g: Builder, acc, a, b, trans_a=False, trans_b=False, dtype=None, precision=None, variant=None):
    """`dot` with the accumulator as the first argument, as in `mma_async`: ``acc + a @ b``,
    complete when the call returns."""
    return dot.function(g, a, b, acc, trans_a, trans_b, dtype, precision, variant)


def _operand(g: Builder, x, name: str) -> Value:
    t = type_of(x)
    if isinstance(t, (Buffer, Region)) and t.scope == "shared" and not (t if isinstance(t, Buffer) else t.buffer).peer:
        x = whole_region(g, x)
        refuse_packed(g, "dot from shared memory", x.type.dtype)
    elif not isinstance(t, Tile):
        hint = "; load it, or copy it to shared memory" if isinstance(t, (Buffer, Region)) else ""
        raise g.error(f"{name} is a register tile or a matrix in shared memory, not {describe(x)}{hint}")
    if len(x.type.shape) < 2:
        raise g.error(f"{name} is a matrix, or a batch of them, and not of shape {list(x.type.shape)}; "
                      f"make the vector one row or one column, as in {name}[None, :] or {name}[:, None]")
    if x.type.dtype.packed:  # float16 holds elements of 4 and 6 bits exactly
        x = convert(g, x, float16)
    if x.type.dtype.kind == "bool":
        raise g.error(f"{name} holds bools; cast it to a number")
    if isinstance(x.type, Region):
        g.require_uniform("this dot", *g.definitions[x].args[1:])
    return x


def _dtype(g: Builder, acc, a: DType, b: DType, asked) -> DType:
    if a.is_float != b.is_float:
        raise g.error(f"a is {a} and b is {b}: cast the integers to a float")
    if asked is None and isinstance(type_of(acc), Tile):
        asked = acc.type.dtype
    if asked is None:
        if a.is_float:
            return float64 if float64 in (a, b) else float32
        return int64 if 64 in (a.bits, b.bits) else int32
    asked = dtype_of(asked)
    if asked not in ACCUMULATORS or asked.is_float != a.is_float:
        raise g.error(f"sums of {a} by {b} are {'float32, float16 or float64' if a.is_float else 'int32 or int64'}, "
                      f"not {asked}")
    return asked


__all__ = ["VARIANTS", "dot", "dot_", "float16", "mma", "multiply"]
