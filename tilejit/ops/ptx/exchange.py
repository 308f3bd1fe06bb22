"""Exchanges of scalars among the lanes of a warp: shuffles, votes, matches and reductions.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync". The members are the lanes of the scope: all lanes of each
warp, or those of a scope of some lanes. The simulator takes the instructions' meanings, which report lanes that are
missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dtypes import bool_, float32, int32, uint32
from ...ir.builder import Builder, describe, element_type, source_text, type_as, type_of
from ...ir.builtin import builtin
from ...ir.graph import Const, Operand, Value
from ...ir.op import op
from ...ir.op_traits import Registers
from ...lazy import Lazy
from ...types import Scalar, Uniformity
from ..language.ids import lane_id
from ..language.operators import binary, compare
from ..language.pointwise import bitcast, cast, isnan, where
from ..language.promotion import as_condition
from .meanings import meaning

ptx = Lazy("tilejit.ptx")

LANES = 32
BITWISE = "and", "or", "xor"


# -- the operations ----------------------------------------------------------------------------------------------------

@op("syncs", attrs=("kind",))
def shuffle_(x: Registers, operand: Registers, kind):
    """The value of `x` in another lane, which `kind` computes from `operand`: "idx", "bfly", "up" or "down"."""


@shuffle_.infer
def _(g, x, operand, kind):
    t = type_of(x)
    same = kind == "idx" and type_of(operand).uniform >= Uniformity.WARP
    return Scalar(t.dtype, max(t.uniform, Uniformity.WARP) if same else t.uniform, t.weak)


@shuffle_.simulate
def _(m, call, x, operand):
    """The instruction's meaning, applied to the lanes' numbers, tells from which lane each takes its value."""
    kind, threads = call.attrs["kind"], m.thread_ids()
    given = {"a": (threads % LANES).astype(np.uint32), "b": operand, "c": _word(0 if kind == "up" else 31)}
    source = _run(m, f"shfl.sync.{kind}.b32", given).astype(np.int64)
    at = np.clip(threads // LANES * LANES + source - m.low, 0, m.threads - 1)
    batch = max(at.shape[0], x.shape[0])
    return np.take_along_axis(np.broadcast_to(x, (batch, m.threads)), np.broadcast_to(at, (batch, m.threads)), axis=1)


@shuffle_.emit
def _(e, call, x, operand):
    return e.warp.shuffle(call.attrs["kind"], x, operand)


@op("syncs", attrs=("kind",))
def vote(condition: Registers, *mask: Registers, kind):
    """Whether `condition` holds in "any" lane or in "all", or the mask of the lanes where it holds ("ballot"): among
    the lanes of `mask`, if there is one, else among those of the scope."""


@vote.infer
def _(g, condition, *mask, kind):
    held = type_of(condition).uniform
    uniform = min(held, type_of(mask[0]).uniform) if mask else max(held, Uniformity.WARP)
    return Scalar(uint32 if kind == "ballot" else bool_, uniform)


@vote.simulate
def _(m, call, condition, *mask):
    kind = call.attrs["kind"]
    form = "vote.sync.ballot.b32" if kind == "ballot" else f"vote.sync.{kind}.pred"
    return _run(m, form, {"p": condition}, *mask).astype(call.result.type.dtype.np)


@vote.emit
def _(e, call, condition, *mask):
    return e.warp.vote(call.attrs["kind"], condition, *mask)


@op("syncs")
def match_(x: Registers, *mask: Registers):
    """The mask of the lanes in which `x` has the same bits: among those of `mask`, if there is one, else of the
    scope."""


@match_.infer
def _(g, x, *mask):
    return Scalar(uint32, min(type_of(a).uniform for a in (x, *mask)))


@match_.simulate
def _(m, call, x, *mask):
    bits = x.view(f"u{x.dtype.itemsize}")
    name = "match.any.sync.b64" if x.dtype.itemsize == 8 else "match.any.sync.b32"
    return _run(m, name, {"a": bits}, *mask).astype(np.uint32)


@match_.emit
def _(e, call, x, *mask):
    return e.warp.match(x, *mask)


@op("syncs", attrs=("kind",))
def reduce_lanes(x: Registers, *mask: Registers, kind):
    """The "add", "min", "max", "and", "or" or "xor" of the 32-bit integer `x` of the lanes of `mask`, if there is one,
    else of the scope."""


@reduce_lanes.infer
def _(g, x, *mask, kind):
    t = type_of(x)
    uniform = min(t.uniform, type_of(mask[0]).uniform) if mask else max(t.uniform, Uniformity.WARP)
    return Scalar(t.dtype, uniform)


@reduce_lanes.simulate
def _(m, call, x, *mask):
    kind = call.attrs["kind"]
    if kind in BITWISE:
        return _run(m, f"redux.sync.{kind}.b32", {"a": x.view(np.uint32)}, *mask).view(x.dtype)
    return _run(m, f"redux.sync.{kind}.{'u32' if x.dtype.kind == 'u' else 's32'}", {"a": x}, *mask)


@reduce_lanes.emit
def _(e, call, x, *mask):
    return e.warp.redux(call.attrs["kind"], x, mask[0] if mask else e.warp.members())


def _word(n: int) -> np.ndarray:
    return np.full((1, 1), n, np.uint32)


def _run(m, name: str, operands: dict[str, np.ndarray], mask: np.ndarray | None = None) -> np.ndarray:
    """The result of the instruction form `name`, executed by the lanes of `mask`, by default those of the scope."""
    lanes = (1 << m.threads) - 1 << m.low % LANES if m.threads < LANES else (1 << LANES) - 1
    form = ptx.form(name)
    compute = meaning(form)
    assert compute is not None  # exchanges have one
    return compute(m, form, {**operands, "membermask": _word(lanes) if mask is None else mask.view(np.uint32)})


# -- what kernels call -------------------------------------------------------------------------------------------------

def _in_warps(g: Builder, what: str, instead: str = "") -> None:
    """CompilationError if some lanes of a warp of the scope may not reach the call; it ends by what to write `instead`.
    """
    if g.scope.threads == 1:
        raise g.error(f"{what} exchanges values among the lanes of a warp, and only one thread runs here")
    partial = g.scope.partial
    if partial is not None and type_as(partial, Scalar).uniform < Uniformity.WARP:
        raise g.error(f"{what} needs all lanes of the warp, and the condition {source_text(partial)} differs between "
                      f"them{instead}")


def _scalar(g: Builder, what: str, x: Any) -> None:
    """CompilationError unless `x` is a scalar that can be exchanged."""
    t = type_of(x)
    if not isinstance(t, Scalar) or t.dtype.bits < 8 and t.dtype != bool_:
        raise g.error(f"{what} takes a scalar, one in each thread, of 8 to 64 bits or a bool, not {describe(x)}")


def _lanes(g: Builder, name: str, n: Any, least: int | None = None) -> int | Value:
    """A number of lanes, which must be an integer: constant or in a register."""
    n = n.value if isinstance(n, Const) else n
    t = type_of(n)
    if not isinstance(t, Scalar) or not t.dtype.is_int:
        raise g.error(f"{name} is an integer, not {describe(n)}")
    if isinstance(n, int) and least is not None and n < least:
        raise g.error(f"{name} is at least {least}, not {n}")
    return n


def _call(g: Builder, kind: str, x: Value, n: int | Value) -> Value:
    return g.call(shuffle_, x, Const(n % LANES, int32) if isinstance(n, int) else cast.function(g, n, int32), kind=kind)


def _shuffle_within(g: Builder, kind: str, x: Any, n: int | Value) -> Any:
    """A shuffle in which a lane keeps its own value if the other lane is outside of the scope."""
    if not isinstance(x, Value):
        return x  # a constant, equal in all lanes
    if g.scope.threads < LANES:
        return _among_some_lanes(g, kind, x, n)
    if kind == "bfly":
        return _call(g, kind, x, n)
    if isinstance(n, int):
        return _call(g, kind, x, n) if n < LANES else x
    within = binary(g, "&", compare(g, ">=", n, 0), compare(g, "<", n, LANES))  # the instruction takes n modulo 32
    return where.function(g, within, _call(g, kind, x, n), x)


def _among_some_lanes(g: Builder, kind: str, x: Value, n: int | Value) -> Value:
    own = g.call(lane_id)
    source = binary(g, {"bfly": "^", "up": "-", "down": "+"}[kind], own, n)
    first = g.scope.first
    assert isinstance(first, int)  # lanes of a warp are named by constants
    first %= LANES
    within = binary(g, "&", compare(g, ">=", source, first), compare(g, "<", source, first + g.scope.threads))
    if kind != "bfly":
        within = binary(g, "&", within, compare(g, ">=", n, 0))
    return _call(g, "idx", x, where.function(g, within, source, own))


@builtin
def shuffle(g: Builder, x, lane):
    """The value that lane `lane` of the thread's warp has of the scalar `x`. `lane` is taken modulo 32, and may differ
    by thread.

    All lanes of the warp take part. In a scope of some lanes, `lane` is one of them. If all lanes read the same lane,
    the result is uniform in the warp. PTX ISA, "shfl.sync.idx".
    """
    _in_warps(g, "shuffle")
    _scalar(g, "shuffle", x)
    lane = _lanes(g, "lane", lane)
    return _call(g, "idx", x, lane) if isinstance(x, Value) else x


@builtin
def shuffle_xor(g: Builder, x, mask):
    """The value of `x` in the lane whose number is the thread's own one with the bits of `mask` flipped. The five
    lowest bits of `mask` count.

    All lanes of the warp take part. In a scope of some lanes, a thread whose other lane is outside keeps its own value.
    PTX ISA, "shfl.sync.bfly".
    """
    _in_warps(g, "shuffle_xor")
    _scalar(g, "shuffle_xor", x)
    return _shuffle_within(g, "bfly", x, _lanes(g, "mask", mask, 0))


@builtin
def shuffle_up(g: Builder, x, delta):
    """The value of `x` `delta` lanes below the thread's own: values move up. The first `delta` lanes keep their own.

    All lanes of the warp, or of a scope of some lanes, take part. PTX ISA, "shfl.sync.up".
    """
    _in_warps(g, "shuffle_up")
    _scalar(g, "shuffle_up", x)
    return _shuffle_within(g, "up", x, _lanes(g, "delta", delta, 0))


@builtin
def shuffle_down(g: Builder, x, delta):
    """The value of `x` `delta` lanes above the thread's own: values move down. The last `delta` lanes keep their own.

    All lanes of the warp, or of a scope of some lanes, take part. PTX ISA, "shfl.sync.down".
    """
    _in_warps(g, "shuffle_down")
    _scalar(g, "shuffle_down", x)
    return _shuffle_within(g, "down", x, _lanes(g, "delta", delta, 0))


def _members(g: Builder, what: str, mask: Any) -> tuple[Operand, ...]:
    """The operand for the lanes that take part, if the call names them: then also in a branch that only they take.
    CompilationError for a mask that is no integer of 32 bits, or without it where some lanes may not reach the call."""
    if mask is None:
        _in_warps(g, what, "; mask= names the lanes that take part, if these are not all")
        return ()
    if g.scope.threads == 1:
        _in_warps(g, what)
    mask = _lanes(g, "mask", mask)
    if isinstance(mask, int):
        if mask == 0 or not -1 <= mask < 1 << LANES:
            raise g.error(f"mask has a bit for each lane that takes part, up to 0xffffffff, not {mask:#x}")
        return (Const(mask % (1 << LANES), uint32),)
    return (cast.function(g, mask, uint32),)


def _vote(g: Builder, what: str, kind: str, condition: Any, mask: Any) -> Value:
    members = _members(g, what, mask)
    if not isinstance(type_of(condition), Scalar):
        raise g.error(f"{what} takes a condition, one scalar in each thread, not {describe(condition)}")
    return g.call(vote, as_condition(g, condition), *members, kind=kind)


@builtin
def ballot(g: Builder, condition, mask=None):
    """The lanes of the thread's warp in which `condition` holds, as the bits of a uint32.

    All lanes of the warp take part; or those whose bits are set in `mask`, the thread's own one among them, also in a
    branch that only they take. PTX ISA, "vote.sync.ballot".
    """
    return _vote(g, "ballot", "ballot", condition, mask)


@builtin
def warp_any(g: Builder, condition, mask=None):
    """Whether `condition` holds in some lane of the thread's warp, a bool that is uniform in it; or in some lane of
    `mask`, as in ``tile.ballot``. PTX ISA, "vote.sync.any"."""
    return _vote(g, "warp_any", "any", condition, mask)


@builtin
def warp_all(g: Builder, condition, mask=None):
    """Whether `condition` holds in all lanes of the thread's warp, a bool that is uniform in it; or in all lanes of
    `mask`, as in ``tile.ballot``. PTX ISA, "vote.sync.all"."""
    return _vote(g, "warp_all", "all", condition, mask)


@builtin
def match(g: Builder, x, mask=None):
    """The lanes of the thread's warp in which the scalar `x` has the same bits as in this thread, as the bits of a
    uint32; with `mask`, among those lanes, as in ``tile.ballot``.

    Bits, not numbers: 0.0 and -0.0 differ, and a NaN equals one with the same bits. PTX ISA, "match.any.sync".
    """
    members = _members(g, "match", mask)
    _scalar(g, "match", x)
    return g.call(match_, g.operand(x), *members)


@builtin
def warp_reduce(g: Builder, x, op, mask=None):
    """The scalars `x` of the lanes of the thread's warp, reduced by `op`: "add", "min", "max", "and", "or" or "xor";
    with `mask`, of those lanes, as in ``tile.ballot``.

    `x` is an integer of at most 32 bits or a bool; for "min" and "max" also a float of at most 32 bits, of which a NaN
    is propagated. Sums have 32 bits, and wrap. PTX ISA, "redux.sync".
    """
    if op not in ("add", "min", "max", *BITWISE):
        raise g.error(f'the op of warp_reduce is "add", "min", "max", "and", "or" or "xor", not {op!r}')
    members = _members(g, "warp_reduce", mask)
    _scalar(g, "warp_reduce", x)
    x = g.operand(x)
    dtype = element_type(x)
    if dtype.bits > 32 or dtype.is_float and op not in ("min", "max"):
        raise g.error(f"warp_reduce has no {op} of {dtype}: integers have at most 32 bits, and floats only min and "
                      "max; a tile has all of them, as in tile.sum(t)")
    if dtype.is_float:
        return cast.function(g, _float_of_order(g, g.call(reduce_lanes, _order(g, x, op), *members, kind=op)), dtype)
    wide = uint32 if dtype.kind == "uint" else int32
    found = g.call(reduce_lanes, cast.function(g, x, wide), *members, kind=op)
    return found if op == "add" else cast.function(g, found, dtype)


def _order(g: Builder, x: Operand, op: str) -> Any:
    """A float as an int32 of the same order, in which a NaN is the largest, or for "min" the smallest."""
    x = cast.function(g, x, float32)
    bits = bitcast.function(g, x, int32)
    extreme = (1 << 31) - 1 if op == "max" else -(1 << 31)
    return where.function(g, isnan.function(g, x), extreme, _flip_negative(g, bits))


def _flip_negative(g: Builder, bits: Any) -> Any:
    """The bits of a float32, of a negative one with all but the sign inverted; and back."""
    return binary(g, "^", bits, binary(g, "&", binary(g, ">>", bits, 31), (1 << 31) - 1))


def _float_of_order(g: Builder, order: Any) -> Any:
    """The float32 of `_order`."""
    return bitcast.function(g, _flip_negative(g, order), float32)
