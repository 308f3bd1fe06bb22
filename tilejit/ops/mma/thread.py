"""Products without tensor cores: each thread computes its own elements of the result from operands in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from ...dispatch import Variant
from ...dtypes import int32
from ...ir.builder import extents_of, type_as
from ...ir.graph import Call, walk
from ...ir.op import op
from ...ir.op_traits import Reads, Registers, Traits
from ...types import Tile, domain_of, layout_of
from ..memory.regions import coordinates
from ..tiles.casts import cast_array

FEW = 4            # products of a kernel whose addresses begin at one base
WRITTEN_OUT = 128  # multiplications per thread to unroll at most; more become a loop over k, which is as fast on Hopper


@op("reads", attrs=("trans_a", "trans_b", "dtype"), collective=True,
    traits=Traits(product=True, anchor=True, multiply_adds=True))
def thread_product(acc: Registers, a: Reads, b: Reads, trans_a, trans_b, dtype):
    """``acc + a @ b`` of matrices in shared memory, by multiply-adds of each thread."""


@thread_product.infer
def _(g, acc, a, b, *, trans_a, trans_b, dtype):
    return Tile(dtype, (a.type.shape[1 if trans_a else 0], b.type.shape[0 if trans_b else 1]))


def _layout(assigner, call, types):
    made = assigner.default(call.result.type.shape, call.result.type.dtype)
    return (made, None, None), (made,)


@dataclass(frozen=True)
class Plan:
    """The number of multiplications that each thread executes."""

    instructions: int


thread_product.rules.plan = lambda g, call: Plan(layout_of(type_as(call.result, Tile)).span("reg")
                                                 * extents_of(call.args[1])[0 if call.attrs["trans_a"] else 1])
thread_product.rules.layout = _layout


@thread_product.simulate
def _(m, call, acc, a, b):
    m.sync.collective("dot")
    t = call.result.type
    x, y = (cast_array(m.read(side.buffer, coordinates(m, side), region=side), arg.type.dtype,
                       t.dtype) for side, arg in zip((a, b), call.args[1:]))
    x, y = (x.swapaxes(1, 2) if call.attrs["trans_a"] else x), (y.swapaxes(1, 2) if call.attrs["trans_b"] else y)
    return m.add_products(acc, x, y)


@thread_product.emit
def _(e, call, acc, a, b):
    """For each k, load the thread's elements of that column of a and that row of b,
    then multiply and add for each sum."""
    t = call.result.type
    thread = [e.tiles.thread_coordinate(t, d) for d in (0, 1)]
    at = [e.tiles.register_coordinates(t, r) for r in range(e.tiles.registers(t))]
    acc = list(acc)
    k_extent = call.args[1].type.shape[0 if call.attrs["trans_a"] else 1]
    base = _own_base(e)
    for k in range(k_extent):
        rows = {i: _element(e, a, call.attrs["trans_a"], thread[0] + i, k, t, 0, base)
                for i in dict.fromkeys(c[0] for c in at)}
        columns = {j: _element(e, b, not call.attrs["trans_b"], thread[1] + j, k, t, 1, base)
                   for j in dict.fromkeys(c[1] for c in at)}
        for r, (i, j) in enumerate(at):
            acc[r] = _multiply_add(e, rows[i], columns[j], acc[r])
    return acc


def _own_base(e):
    """In kernels with many products, a copy of the base of shared memory for the addresses of one.

    LLVM's straight-line strength reduction compares each address with all others of the same base: the code of 8
    products of 32 x 32 x 32 took it 9 s, and with a base for each product 0.5 s. It cannot look into the copy.
    """
    if sum(isinstance(node, Call) and node.op is thread_product for node in walk(e.graph.body)) <= FEW:
        return None
    return e.ins(f'call i32 asm sideeffect "mov.b32 $0, $1;", "=r,r"({e.shared_base().typed_text})', int32)


def _element(e, region, k_first: bool, i, k: int, t: Tile, dim: int, base):
    """Emit element (i, k) of an operand, cast to the result's dtype; 0 beyond the tile's extent."""
    source = region.type.dtype
    places = (k, i) if k_first else (i, k)
    full = list(region.starts)
    for d, c in zip(region.type.kept, places):
        full[d] = full[d] + c
    address, offset = e.shared_address(region.buffer, full, base)
    inside = e.in_bounds(i, t.shape[dim]) if domain_of(t)[dim] > t.shape[dim] else None
    loaded, = e.vector_load("shared", address, offset, source, [e.const(0, source)], inside, None)
    return e.cast(loaded, t.dtype)


def _multiply_add(e, x, y, acc):
    llvm = acc.dtype.llvm
    if acc.dtype.is_float:
        e.declare(f"declare {llvm} @llvm.fma.{e.suffix(acc.dtype)}({llvm}, {llvm}, {llvm})")
        return e.ins(f"call {llvm} @llvm.fma.{e.suffix(acc.dtype)}({x.typed_text}, {y.typed_text}, {acc.typed_text})",
                     acc.dtype)
    return e.ins(f"add {llvm} {e.ins(f'mul {llvm} {x.text}, {y.text}', acc.dtype).text}, {acc.text}", acc.dtype)


DOT = Variant("fma", needs=(), doc=__doc__)

__all__ = ["DOT", "WRITTEN_OUT", "thread_product"]
