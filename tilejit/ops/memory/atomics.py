"""Atomic read-modify-write of elements of global and shared memory.

PTX ISA, "atom", "red" and "Memory Consistency Model".

Each element of a tile is one atomic operation, even if several threads hold copies of it. A scalar is one operation
for its execution scope, and every thread gets the old value; but if the operands or a condition around the call
differ by thread, each thread performs its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...config import architecture
from ...dispatch import Variant
from ...dtypes import DType
from ...ir.builder import Builder, describe, memory_type, number_type, type_of
from ...ir.builtin import builtin
from ...ir.graph import Call, Value, blocks, choice_of, operands, walk
from ...ir.op import op
from ...ir.op_traits import Registers, Traits, Writes
from ...types import Buffer, Points, Region, Scalar, Tile, Uniformity, layout_of
from ..language.promotion import as_mask, coerce, collective
from . import access
from .access import AccessPlan, AccessSite
from .access_ops import differs_by_thread
from .regions import coordinates, refuse_box, whole_region
from .vector_proofs import widest_of

SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
SCOPES = ("cta", "cluster", "gpu", "sys")

_INTS = ("int32", "uint32", "int64", "uint64")

# kind -> dtypes that it supports
DTYPES = {
    "add":  (*_INTS, "float32", "float64", "float16", "bfloat16"),
    "max":  (*_INTS, "float32", "float64"),
    "min":  (*_INTS, "float32", "float64"),
    "and":  _INTS,
    "or":   _INTS,
    "xor":  _INTS,
    "exch": (*_INTS, "float32", "float64"),
    "cas":  _INTS,
    "inc":  ("uint32",),
    "dec":  ("uint32",),
}


@op("writes", attrs=("kind", "sem", "scope", "each_thread"), traits=Traits(access=True, atomic=True))
def atomic_(place: Writes, value: Registers, compare: Registers, mask: Registers, kind, sem, scope, each_thread):
    """Perform ``element = kind(element, value)`` atomically on each element of a region or of points;
    returns the old elements.

    Elements out of bounds, or where `mask` is false, are left alone, and 0 is returned for them.
    """


@atomic_.infer
def _(g: Builder, place, value, compare, mask, kind, sem, scope, each_thread):
    t = place.type
    if t.shape != ():
        collective(g, f"atomic_{kind} of a tile")
        g.require_uniform(f"this atomic_{kind}", *g.definitions[place].args[1:])
        return Tile(t.dtype, t.shape)
    return Scalar(t.dtype, Uniformity.THREAD if each_thread else min(g.scope.uniformity, Uniformity.CTA))


# -- the plan ----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class AtomicPlan:
    """The access, in vectors where the hardware adds vectors, and in `returns` whether anything
    reads the old values."""

    access: AccessPlan
    returns: bool


def _plan(s: AccessSite) -> AtomicPlan:
    return AtomicPlan(access.plan(s, most_at_once(s.g, s.call)), s.call.result in used_values(s.g))


def _explain_width(s: AccessSite, plan: AtomicPlan) -> tuple[tuple[str, str], ...]:
    return access.explain_width(s, plan.access, most_at_once(s.g, s.call))


def most_at_once(context, call: Call) -> int:
    """How many elements one instruction changes at most. ``red`` adds .v4.f32, .v4.f16x2 and .v4.bf16x2 from sm_90
    on, .f16x2 before."""
    t, attrs = memory_type(call.args[0]), call.attrs
    if (attrs["kind"] != "add" or attrs["sem"] != "relaxed" or t.scope != "global" or not t.dtype.is_float
        or t.dtype.bits == 64):
        return 1
    if call.result in used_values(context):
        return 1
    if architecture(context.target) >= 90:
        return widest_of(t.dtype)
    return 2 if t.dtype.name == "float16" else 1


def used_values(context) -> set:
    """All values that some node or yield of the graph reads. Cached on the context."""
    found = context.__dict__.get("used")
    if found is None:
        found = context.used = set()
        found.update(context.graph.body.yields)
        for node in walk(context.graph.body):
            found.update(o for o in operands(node) if isinstance(o, Value))
            for block in blocks(node):
                found.update(y for y in block.yields if isinstance(y, Value))
    return found


def _copies(t: Tile) -> set[str]:
    """The layout axes (laneid, warpid) along which threads hold copies of a tile's elements."""
    return {str(axis) for n, _, axis in layout_of(t).replicas if n > 1 and axis != "reg"}


def replicated_scratch(call: Call) -> int:
    """Bytes of shared scratch memory needed to hand old values from the threads that perform the
    atomics to other warps."""
    t = number_type(call.result)
    if not choice_of(call).plan.returns or call.attrs["each_thread"]:
        return 0
    if isinstance(t, Scalar):
        return 16
    return t.size * t.dtype.nbytes if "warpid" in _copies(t) else 0


atomic_.site(AccessSite)
atomic_.variants = (Variant("atomic", needs=(), plan=_plan, wider=_explain_width, doc=__doc__),)
atomic_.rules.scratch = replicated_scratch


# -- simulation --------------------------------------------------------------------------------------------------------

@atomic_.simulate
def _(m, call, place, value, compare, mask):
    t, attrs = call.result.type, call.attrs
    coords, owner = coordinates(m, place), None
    if isinstance(t, Tile):
        owner = m.owners(t)
    elif attrs["each_thread"]:
        coords = tuple(np.broadcast_to(c, (c.shape[0], m.threads)) for c in coords)
    else:
        coords = tuple(c[:, :1] for c in coords)
        value, compare, mask = map(_by_first_thread, (value, compare, mask))
    if t.dtype.is_float:
        kind = {"max": "maximum", "min": "minimum"}.get(attrs["kind"], attrs["kind"])
    else:
        kind = attrs["kind"]
    order = None if attrs["sem"] == "relaxed" else attrs["sem"]
    return m.ordered.atomic(place.buffer, coords, kind, value, compare, mask, owner=owner, order=order,
                            scope=attrs["scope"], need_old=call.choice.plan.returns)


# -- names -------------------------------------------------------------------------------------------------------------

def _by_first_thread(x):
    """An operand (B or 1, ...) of a scalar atomic, as the first thread has it; None stays None."""
    if x is None:
        return None
    return np.asarray(x).reshape(-1, np.shape(x)[-1] if np.ndim(x) else 1)[:, :1]


def _place(g: Builder, x, what: str) -> Value:
    t = type_of(x)
    if isinstance(t, Buffer):
        return _place(g, whole_region(g, x), what)
    if not isinstance(t, (Region, Points)):
        raise g.error(f"{what} takes a place in memory, as in x[i] or x[i, 0:BLOCK], not {describe(x)}")
    refuse_box(g, what, x)
    if t.scope not in ("global", "shared"):
        raise g.error(f"{what} reaches global and shared memory, not {t.scope}")
    if t.buffer.peer:
        raise g.error(f"{what} reaches the CTA's own shared memory; on a peer's there are "
                      "tile.reduce_async(buf.peer(rank), value, kind, "
                      "mbar=bar) and tile.ptx.atom.shared_cluster.add.u32(buf.peer(rank)[i], value)")
    return x


def _check_atomic(g: Builder, kind: str, dtype: DType, sem, scope) -> None:
    what = f"atomic_{kind}"
    if dtype.name not in DTYPES[kind]:
        other = "use a view of the same memory as integers"
        if dtype.bits < 32:
            other = "cast to a wider type, or keep the counts in an int32 array"
        raise g.error(f"{what} takes {', '.join(DTYPES[kind])}, not {dtype}: "
                      f"the hardware has no such operation; {other}")
    if sem not in SEMANTICS:
        raise g.error(f"sem is one of {', '.join(SEMANTICS)}, not {sem!r}")
    if scope not in SCOPES:
        raise g.error(f"scope is one of {', '.join(SCOPES)}, not {scope!r}")
    if scope == "cluster":
        g.need("an atomic with scope=\"cluster\" (atom.cluster)", 90)


def _atomic(g: Builder, kind: str, place, value, compare, mask, sem, scope) -> Value:
    place = _place(g, place, f"atomic_{kind}")
    t = place.type
    _check_atomic(g, kind, t.dtype, sem, scope)
    if t.scope == "global" and t.buffer.arg is not None:
        g.state.setdefault("written", set()).add(t.buffer.arg)
    shaped = Tile(t.dtype, t.shape) if t.shape != () else Scalar(t.dtype)
    value = coerce(g, value, shaped)
    compare = None if compare is None else coerce(g, compare, shaped)
    mask = as_mask(g, mask, t.shape)
    each = t.shape == () and differs_by_thread(g, place, value, compare, mask)
    return g.call(atomic_, place, value, compare, mask, kind=kind, sem=sem, scope=scope, each_thread=each,
                  name=f"atomic_{kind}")


_DOC = """Atomically {does}; returns the old value of each element.

    `place` is an element, a region or points of global or shared memory. `value` is cast to its dtype and broadcast to
    its shape. Elements that are out of bounds, or where `mask` is false, are left alone, and 0 is returned for them.

    Each element of a tile is one atomic operation. A scalar is one operation for the whole execution scope, unless the
    operands or a condition around the call differ by thread: then each thread performs its own.

    `sem` is "relaxed", "acquire", "release" or "acq_rel", and `scope` is "cta", "cluster", "gpu" or "sys" (PTX ISA,
    "Memory Consistency Model"). The release of a scalar operation follows the earlier accesses of all threads of the
    execution scope; its acquire precedes their later ones.

    dtypes: {dtypes}.{more}
    """


def _declare_atomic(kind: str, does: str, more: str = ""):
    def call(g: Builder, place, value, mask=None, sem="relaxed", scope="gpu"):
        return _atomic(g, kind, place, value, None, mask, sem, scope)
    call.__name__ = f"atomic_{kind}"
    call.__doc__ = _DOC.format(does=does, dtypes=", ".join(DTYPES[kind]), more=more)
    return builtin(call)


def atomic_cas(g: Builder, place, compare, value, mask=None, sem="relaxed", scope="gpu"):
    return _atomic(g, "cas", place, value, compare, mask, sem, scope)


atomic_cas.__doc__ = _DOC.format(does="write `value` to each element that equals `compare`",
                                 dtypes=", ".join(DTYPES["cas"]), more="")

_NAN = " If either operand is NaN, the result is the NaN with all bits set{but}. -0.0 is less than 0.0."
BUILTINS = {f.__name__: f for f in (
    _declare_atomic("add", "add `value` to each element", " The order of float additions, "
                                                          "and therefore their rounding, is unspecified."),
    _declare_atomic("max", "replace each element by the larger of itself and "
                           "`value`", _NAN.format(but=" except the sign")),
    _declare_atomic("min", "replace each element by the smaller of itself and `value`", _NAN.format(but="")),
    _declare_atomic("and", "replace each element by ``element & value``"),
    _declare_atomic("or", "replace each element by ``element | value``"),
    _declare_atomic("xor", "replace each element by ``element ^ value``"),
    _declare_atomic("exch", "write `value` to each element"),
    _declare_atomic("inc", "increment each element, or reset it to 0 where it is at least `value`"),
    _declare_atomic("dec", "decrement each element, or reset it to `value` where it is 0 or above `value`"),
    builtin(atomic_cas),
)}
