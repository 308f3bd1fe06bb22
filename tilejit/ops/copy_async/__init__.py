"""``copy_async``: one call, lowered per site by the first variant that accepts it."""

from __future__ import annotations

from ...dispatch import choose
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...ir.op import op
from ...types import BarrierRef, Buffer, Region
from ..memory import whole
from . import ldgsts
from .site import CopySite

VARIANTS = (ldgsts.VARIANT,)


@op("writes", attrs=("options",))
def copy_async_(dst, src, mbar, options):
    """Start moving the elements of the region `src` to the region `dst`."""


@copy_async_.infer
def _(g, dst, src, mbar, options):
    return None


@copy_async_.site
def _(g, call):
    return CopySite.of_call(g, call)


@copy_async_.simulate
def _(m, call, dst, src, mbar):
    return call.choice.lowering.simulate(m, call.choice.plan, call, dst, src, mbar)


@copy_async_.emit
def _(e, call, dst, src, mbar):
    call.choice.lowering.emit(e, call.choice.plan, call, dst, src, mbar)


copy_async_.variants = VARIANTS

OPTIONS = ("variant", "cache", "fill", "prefetch")


@builtin
def copy_async(g: Builder, dst, src, mbar=None, variant=None, cache=None, fill=0, prefetch=None):
    """Start an asynchronous copy of the region `src` to the region `dst`; the path is chosen for this call.

    Both sides have one dtype and equal extents other than 1. `mbar` is the barrier that completes by bytes; without it
    completion is by group. `variant` names the path. Reads out of bounds give `fill`, writes out of bounds are dropped.
    """
    dst, src = (_side(g, x) for x in (dst, src))
    if mbar is not None and not isinstance(type_of(mbar), BarrierRef):
        raise g.error(f"mbar is one barrier, as tile.mbarrier() makes, not {describe(mbar)}")
    if dst.type.dtype != src.type.dtype:
        raise g.error(f"a copy keeps the dtype, and {src.type.dtype} is not {dst.type.dtype}: load, cast and store instead")
    sides = [tuple(n for n in x.type.extents if n != 1) for x in (dst, src)]
    if sides[0] != sides[1]:
        raise g.error(f"a copy's sides have equal extents (other than 1), and {list(src.type.shape)} is not {list(dst.type.shape)}")
    options = {"variant": variant or g.expected_variant, "cache": cache, "fill": fill, "prefetch": prefetch}
    if dst.type.scope == "global":
        g.state.setdefault("written", set()).add(dst.type.buffer.arg)
    g.call(copy_async_, dst, src, mbar, options={k: v for k, v in options.items() if v not in (None, 0)})


def _side(g: Builder, x):
    if not isinstance(type_of(x), (Buffer, Region)):
        raise g.error(f"copy_async moves regions of memory, not {describe(x)}")
    return whole(g, x)


__all__ = ["choose", "copy_async", "copy_async_", "VARIANTS", "CopySite"]
