"""``copy_async``: asynchronous copies. Each call is lowered by the first variant whose needs hold for it."""

from __future__ import annotations

from math import prod

from ....dispatch import names
from ....dtypes import int32
from ....ir.builder import Builder, describe, memory_type, type_of
from ....ir.builtin import builtin
from ....ir.graph import Call, Operand, Value
from ....ir.op import op
from ....ir.op_traits import Reads, Registers, Signals, Traits, Writes
from ....types import BarrierRef, Rows
from ...language.expect_variant import asked_variant
from ...language.promotion import uniform_scalar
from ...sync.masks import check_mask
from ...sync.pipeline import pipeline_slot
from ...sync.proxies import ON_ENGINES
from . import bulk, dsmem, gathered, ldgsts, tcgen05_cp, vector
from .copy_sides import checked_sides, moves_tile
from .options import checked_options
from .site import CopySite
from .tma import named_map, selected_variant as selected, variant as tma
from .tma.selections import by_threads
from .tokens import NoToken, Token, next_token

VARIANTS = (
    ldgsts.VARIANT, tma.VARIANT, bulk.VARIANT, dsmem.VARIANT, tcgen05_cp.VARIANT, vector.VARIANT,
    selected.TAKEN, gathered.VARIANT,  # for rows that an index selects
    selected.PATCHES,
    named_map.VARIANT,
)


@op("writes", attrs=("options", "partial"), variants=VARIANTS, traits=Traits(copy=True, asynchronous=True))
def copy_async_(dst: Writes, src: Reads, mbar: Signals, mask: Registers = None, count: Registers = None, options=None,
                partial=None):
    """Start copying the region `src` to the region `dst`.

    `mask` is the multicast mask of ranks; `count` is the number of a copy with a token, and its last operand.
    `partial` names the condition on which the threads of the scope diverge: each thread that reaches the call then
    makes a copy of its own.
    """


@copy_async_.infer
def _(g, dst, src, mbar, mask=None, count=None, options=None, partial=None):
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


def _accessed_by_threads(call):
    return () if call.choice and call.choice.plan.completion in ON_ENGINES else call.args[:2]


def _accessed_by_engines(call):
    if call.choice and call.choice.plan.completion not in ON_ENGINES:
        return (), ()
    return call.args[:1], call.args[1:2]


# A copy that has not been chosen may take either way.
copy_async_.rules.by_threads = _accessed_by_threads
copy_async_.rules.by_engines = _accessed_by_engines


@builtin
def copy_async(g: Builder, dst, src, mbar=None, variant=None, cache=None, fill=0, prefetch=None, l2_promotion=None,
               multicast=None, reduce=None, precision=None, cta_group=None, prefetch_map=False, shape=None):
    """Start an asynchronous copy of the region `src` to the region `dst`.
    The compiler chooses the hardware path for each call.

    Both sides have the same dtype and, apart from extents of 1, the same shape. Elements read out of bounds are
    `fill` (0 or "nan"); writes out of bounds are dropped. ``A.take(rows)[:, c:c + 64]`` as `src` gathers rows of a
    matrix into shared memory.

    If the result is used, it is a completion token: ``done.wait()`` waits for the copy, whichever path it took;
    ``done.wait(read=True)`` waits only until the source of a store may be overwritten. Otherwise the kernel waits
    explicitly: for a copy with `mbar`, on that barrier, which counts its bytes; without `mbar`, for its group
    (``cp_async_commit``, ``bulk_commit``); for a copy to tensor memory, on the barrier of a ``tcgen05_commit``.

    `variant` names the path. `cache` is the operator of ``cp.async``, "ca" or "cg", or an L2 policy: "evict_first",
    "evict_last", "evict_normal"; ("evict_last", 0.5) applies it to half of the lines, and ("evict_last", 0.5,
    "evict_first") gives the others a second policy. `prefetch` (64, 128 or 256) is the number of bytes around its own
    that a ``cp.async`` may prefetch into L2, `l2_promotion` (0, 64, 128 or 256; 128 by default) the same for a tensor
    map; ``prefetch_map=True`` prefetches the map at the kernel's entry. ``precision="tf32"`` rounds float32 to TF32
    on a load. `reduce` ("add", "min", "max", "inc", "dec", "and", "or", "xor") combines the elements with those of
    the destination.

    `multicast` is a mask of ranks in the cluster: a load writes the same offset in the shared memory of each of these
    CTAs, and completes on the barrier of each; if its token is used, every CTA of the cluster must make the call. A
    copy to ``buf.peer(rank)`` completes on that CTA's instance of `mbar`. `cta_group` (1 or 2; sm_100a, sm_103a) is
    that of the products which read the copy: with 2, the bytes complete in the CTA of the pair that `mbar` names
    (``bar.peer(rank)``).

    Copies from shared to tensor memory use ``tcgen05.cp``; `shape` ("128x256b", "4x256b", "128x128b", "64x128b",
    "32x128b") and `multicast` ("warpx2::02_13", "warpx2::01_23", "warpx4") can select its form, and it expands padded
    4- and 6-bit elements to bytes. A register tile as `src` is stored to tensor memory by ``tcgen05_st``, and is
    complete after ``tcgen05_wait("st")``.
    """
    options = {"cache": cache, "fill": fill, "prefetch": prefetch, "l2_promotion": l2_promotion, "multicast": multicast,
               "reduce": reduce, "precision": precision, "cta_group": cta_group, "prefetch_map": prefetch_map,
               "shape": shape}
    if moves_tile(g, "copy_async", dst, src, False, variant, mbar, **options):
        return None
    dst, src = checked_sides(g, "copy_async", dst, src)
    if mbar is not None and not isinstance(type_of(mbar), BarrierRef):
        raise g.error(f"mbar is one barrier, as tile.mbarrier() makes, not {describe(mbar)}")
    return _start_copy(g, dst, src, mbar, {"variant": asked_variant(g, variant, names(VARIANTS)), **options})


def _start_copy(g: Builder, dst: Value, src: Value, mbar, options: dict) -> Token | NoToken | None:
    """Add a copy between checked sides to the graph. Returns its token, or None if nothing uses the result."""
    extra: tuple[Operand, ...] = ()  # the operands `mask` and `count`
    multicast = options["multicast"]
    if isinstance(multicast, str):
        if memory_type(dst).scope != "tmem":
            raise g.error(f"multicast={multicast!r} is for copies to tensor memory; "
                          "for the CTAs of a cluster give a mask of their ranks")
    elif multicast is not None:
        extra = (uniform_scalar(g, multicast, "a multicast mask"),)
    options = checked_options(options, names(VARIANTS))
    token = _token_of_copy(g, mbar)
    if isinstance(token, Token):
        if extra and g.scope.kind != "cta":
            raise g.error("a multicast whose token is waited for must be made by every CTA of the cluster, "
                          f"whose threads synchronise before it, and this is one {g.scope.kind} of them: "
                          "make the call in the CTA's scope, or give mbar=, which each receiving CTA arms itself")
        extra, options = (*extra, g.operand(token.count, int32)), {**options, "token": token.pool}
    _check_cluster(g, mbar, options)
    if isinstance(src.type, Rows) and (options.get("variant") == "ldgsts" or not _by_engine(g, mbar, token)):
        src = by_threads(g, src)
    partial = g.scope.partial.name if g.scope.partial is not None else None
    g.call(copy_async_, dst, src, mbar, *extra, options=options, partial=partial)
    return token


def _token_of_copy(g: Builder, mbar) -> Token | NoToken | None:
    """The token of a copy; None if its result is discarded."""
    if g.discarded:
        return None
    return next_token(g) if mbar is None else NoToken()


def _by_engine(g: Builder, mbar, token) -> bool:
    """Whether TMA may gather the rows: one thread makes the call, or the copy completes on a barrier (`mbar`, a
    token, or the body of a pipelined loop)."""
    ahead = any(isinstance(n, Call) and n.op is pipeline_slot for n in g.blocks[-1])
    return mbar is not None or token is not None or ahead or g.scope.threads == 1 or g.scope.partial is not None


def _check_cluster(g: Builder, mbar, options: dict) -> None:
    """Raise CompilationError if the cluster does not allow the multicast mask or cta_group, or if the bytes cannot
    complete on the barrier."""
    ranks, mask, paired = prod(g.launch.cluster or (1,)), options.get("multicast"), options.get("cta_group") == 2
    if isinstance(mask, int) and mask is not True:
        check_mask(mask, ranks)
    if paired and ranks % 2:
        raise g.error(f"cta_group=2 is for pairs of CTAs, and the cluster has {ranks}: "
                      "give cluster=(2, 1, 1) to @tile.jit or at the launch")
    if mbar is not None and type_of(mbar).peer and not paired:
        raise g.error("the bytes complete in the CTA that receives them, on its instance of the barrier: "
                      "give the CTA's own barrier as mbar=")


__all__ = ["copy_async", "copy_async_", "VARIANTS", "CopySite"]
