"""``copy``: the synchronous copy between global and shared memory, by loads and stores through registers."""

from __future__ import annotations

from ...dispatch import Need, Variant, names
from ...ir.builder import Builder
from ...ir.builtin import builtin
from ...ir.op import op
from ...ir.op_traits import Reads, Traits, Writes
from ..language.expect_variant import asked_variant
from ..language.promotion import collective
from ..memory import vectors
from .copy_async.copy_sides import checked_sides, moves_tile
from .copy_async.options import checked_options
from .copy_async.site import CopySite


@op("writes", attrs=("options",), traits=Traits(copy=True))
def copy_(dst: Writes, src: Reads, options):
    """Move the elements of the region `src` to the region `dst`; the threads of the scope share the work."""


@copy_.infer
def _(g, dst, src, options):
    return None


@copy_.site
def _(g, call):
    return CopySite.of_call(g, call)


@copy_.simulate
def _(m, call, dst, src):
    return call.choice.lowering.simulate(m, call.choice.plan, call, dst, src)


@copy_.emit
def _(e, call, dst, src):
    call.choice.lowering.emit(e, call.choice.plan, call, dst, src)


@builtin
def copy(g: Builder, dst, src, variant=None):
    """Copy the region `src` to the region `dst`. Each is in global or shared memory.

    The threads of the scope share the elements. The copy does not synchronise them: call ``sync()`` before other
    threads read what was written. Both sides must have the same dtype and, apart from extents of 1, the same extents.
    Elements that are out of bounds are read as 0, and not written. `variant` names the variant to use. If `dst` is
    tensor memory, `src` may be a register tile.
    """
    collective(g, "copy")
    if moves_tile(g, "copy", dst, src, wait=True, variant=variant):
        return
    dst, src = checked_sides(g, "copy", dst, src)
    if dst.type.buffer.peer or src.type.buffer.peer:
        raise g.error("copy reaches the CTA's own shared memory; a peer's is written with "
                      "tile.copy_async(buf.peer(rank), ..., mbar=bar)")
    known = names(copy_.variants)
    g.call(copy_, dst, src, options=checked_options({"variant": asked_variant(g, variant, known)}, known))


# -- variants ----------------------------------------------------------------------------------------------------------

def _simulate(m, plan, call, dst, src):
    vectors.simulate(m, plan, dst, src)


def _emit(e, plan, call, dst, src):
    vectors.emit(e, plan, dst, src)


VECTORISED = Variant("vectorised", plan=vectors.partition, emit=_emit, simulate=_simulate, doc=__doc__, needs=(
    vectors.MOVABLE,
    vectors.NOT_EMPTY,
    vectors.ALL_THREADS,
    Need("runs of two or more elements that are provably contiguous, aligned and in bounds together on both sides",
         lambda s: vectors.partition(s).vec > 1 or "single elements only"),
))
SCALAR = Variant("scalar", plan=vectors.scalars, emit=_emit, simulate=_simulate, doc=__doc__,
                 needs=(vectors.MOVABLE, vectors.NOT_EMPTY, vectors.ALL_THREADS))

copy_.variants = VARIANTS = (VECTORISED, SCALAR)

__all__ = ["VARIANTS", "copy", "copy_"]
