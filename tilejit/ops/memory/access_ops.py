"""The ops of load and store, and the order of their variants; `moves.load_store` has the functions that users call."""

from __future__ import annotations

from ...ir.builder import Builder, type_as, type_of
from ...ir.graph import Operand, Value
from ...ir.op import op
from ...ir.op_traits import Reads, Registers, Traits, Writes
from ...types import Scalar, Tile, Uniformity
from . import ldmatrix, stmatrix
from .access import LOAD, STORE, AccessSite


@op("reads", attrs=("cache",), variants=(ldmatrix.VARIANT, LOAD), traits=Traits(access=True))
def load_(source: Reads, other: Registers, mask: Registers, cache):
    """The elements of a region or of points; `other` where they are out of bounds or `mask` is false."""


@load_.infer
def _(g, source, other, mask, cache):
    t = source.type
    if t.shape == ():
        return Scalar(t.dtype, _uniformity(g, source, other, mask))
    return Tile(t.dtype, t.shape)


def _uniformity(g: Builder, source: Value, other: Operand, mask: Operand) -> Uniformity:
    """The uniformity of a loaded scalar: that of its indices, mask and `other`, but at most the CTA.

    Several CTAs may load different values from the same address, because nothing orders their loads.
    """
    operands = [a for a in (*g.definitions[source].args[1:], other, mask) if a is not None]
    return min([type_as(a, Scalar).uniform for a in operands] + [Uniformity.CTA])


@op("writes", attrs=("cache", "each_thread"), variants=(stmatrix.VARIANT, STORE), traits=Traits(access=True))
def store_(target: Writes, value: Registers, mask: Registers, cache, each_thread):
    """Write `value` to a region or to points. Elements out of bounds, or where `mask` is false, are not written.

    A scalar is written by one thread of the scope; with `each_thread`,
    by each one (if the operands differ between threads).
    """


@store_.infer
def _(g, target, value, mask, cache, each_thread):
    return None


def differs_by_thread(g: Builder, place: Value, *operands: Operand) -> bool:
    """Whether each thread performs its own access: its scalars or indices differ between the threads of the scope, or
    the threads have diverged."""
    if g.scope.partial is not None:
        return True
    indices = g.definitions[place].args[1:]
    types = [type_of(a) for a in (*indices, *operands) if a is not None]
    return any(isinstance(t, Scalar) and t.uniform < g.scope.uniformity for t in types)


@load_.simulate
def _(m, call, source, other, mask):
    t = call.results[0].type
    owner = m.owners(t) if isinstance(t, Tile) else None
    if isinstance(t, Tile) and other.ndim == 2 and len(t.shape) != 1:
        other = other.reshape(-1, *(1,) * len(t.shape))
    return m.read(source.buffer, None, mask=mask, other=other, owner=owner, region=source,
                  tile=None if owner is None else t)


@store_.simulate
def _(m, call, target, value, mask):
    t = type_of(call.args[1])
    owner = m.owners(t) if isinstance(t, Tile) else None
    m.write(target.buffer, None, value, mask=mask, owner=owner, region=target)


@load_.emit
def _(e, call, source, other, mask):
    return call.choice.lowering.emit(e, call.choice.plan, call, source, other, mask)


@store_.emit
def _(e, call, target, value, mask):
    call.choice.lowering.emit(e, call.choice.plan, call, target, value, mask)


load_.site(AccessSite)
store_.site(AccessSite)
