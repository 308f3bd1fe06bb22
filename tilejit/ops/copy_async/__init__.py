"""``copy_async``: one call, lowered per site by the first variant that accepts it."""

from __future__ import annotations

from dataclasses import replace

from ...dispatch import Need, Variant, choose
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...ir.op import op
from ...types import BarrierRef, int32
from ..language import uniform_scalar
from ..sides import asked_variant, checked_sides, moves_tile
from . import bulk, dsmem, ldgsts, tma, vector
from .options import checked_options
from .site import CopySite
from .tokens import NoToken, Token, next_token



def without(variant: Variant, *options: str) -> Variant:
    """`variant`, for the CTA's own memory only, declining calls with one of these options."""
    own = Need("the CTA's own shared memory", lambda s: not (s.dst.buffer.peer or s.src.buffer.peer) or "the shared memory of a peer", gate=True)
    return replace(variant, needs=(own, *variant.needs, *(Need(f"no {o}=", lambda s, o=o: not s.options.get(o)) for o in options)))


VARIANTS = (without(ldgsts.VARIANT, "multicast", "reduce"), without(tma.VARIANT, "multicast", "reduce"), bulk.VARIANT, dsmem.VARIANT,
            without(vector.VARIANT, "multicast", "reduce"))


@op("writes", attrs=("options", "partial"))
def copy_async_(dst, src, mbar, mask=None, options=None, partial=None):
    """Start moving the elements of the region `src` to the region `dst`.

    `mask` holds the ranks that a multicast reaches. `partial` names the value by which the threads of the scope part, where each that comes here makes a copy of its own.
    """


@copy_async_.infer
def _(g, dst, src, mbar, mask=None, options=None, partial=None):
    return None


@copy_async_.site
def _(g, call):
    return CopySite.of_call(g, call)


@copy_async_.simulate
def _(m, call, dst, src, mbar, *mask):
    return call.choice.lowering.simulate(m, call.choice.plan, call, dst, src, mbar, *mask)


@copy_async_.emit
def _(e, call, dst, src, mbar, *mask):
    call.choice.lowering.emit(e, call.choice.plan, call, dst, src, mbar, *mask)


copy_async_.variants = VARIANTS


@builtin
def copy_async(g: Builder, dst, src, mbar=None, variant=None, cache=None, fill=0, prefetch=None, l2_promotion=None,
               multicast=None, reduce=None):
    """Start an asynchronous copy of the region `src` to the region `dst`; the path is chosen for this call.

    Both sides have one dtype and equal extents other than 1. `mbar` is the barrier that completes by bytes; without it
    completion is by group. Reads out of bounds give `fill` (0 or "nan"), writes out of bounds are dropped. `variant`
    names the path. `cache`: "ca" or "cg" of ``cp.async``, or an L2 policy "evict_first", "evict_last", "evict_normal".
    `prefetch` (64, 128 or 256) is how many bytes of L2 a ``cp.async`` may fetch around its own; `l2_promotion` (0, 64, 128
    or 256; 128 by default) the same for a tensor map. `multicast` is a mask of the cluster's ranks: a load goes to the same
    place of each of those CTAs, and completes on the barrier of each. `reduce` ("add", "min", "max", "inc", "dec", "and",
    "or", "xor") combines with what is there. Where the result is used it is a completion token: ``done.wait()`` waits for the
    copy, whatever its path is (``done.wait(read=True)`` until a store's source may be written again). A register tile as `src` goes to tensor memory by ``tcgen05_st``, and is there
    after ``tcgen05_wait("st")``. To ``buf.peer(rank)`` the bytes complete on that CTA's instance of `mbar`.
    """
    if moves_tile(g, "copy_async", dst, src, False, variant, mbar, cache, fill or None, prefetch, l2_promotion, multicast, reduce):
        return None
    dst, src = checked_sides(g, "copy_async", dst, src)
    if mbar is not None and not isinstance(type_of(mbar), BarrierRef):
        raise g.error(f"mbar is one barrier, as tile.mbarrier() makes, not {describe(mbar)}")
    names = tuple(v.name for v in VARIANTS)
    options = {"variant": asked_variant(g, variant, names), "cache": cache, "fill": fill, "prefetch": prefetch, "l2_promotion": l2_promotion,
               "multicast": multicast, "reduce": reduce}
    partial = g.scope.partial.name if g.scope.partial is not None else None
    extra, options = () if multicast is None else (uniform_scalar(g, multicast, "a multicast mask"),), checked_options(options, names)
    token = None if g.discarded else NoToken() if mbar is not None else next_token(g)
    if isinstance(token, Token):
        if extra:
            raise g.error("a multicast completes on the barrier of every CTA that it reaches: give mbar=")
        extra, options = (g.operand(token.count, int32),), {**options, "token": token.pool}
    g.call(copy_async_, dst, src, mbar, *extra, options=options, partial=partial)
    return token


__all__ = ["choose", "copy_async", "copy_async_", "VARIANTS", "CopySite"]
