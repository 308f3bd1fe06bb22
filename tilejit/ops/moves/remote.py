"""Asynchronous stores and reductions from registers to the shared memory of another CTA of the cluster.

``st.async`` stores 4, 8 or 16 bytes per thread, and ``red.async`` combines one element with the one in memory. Both
complete by bytes (complete-tx) on an mbarrier of the CTA that they write to. PTX ISA, "Data Movement and Conversion
Instructions: st.async" and "Parallel Synchronization and Communication Instructions: red.async".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import CompilationError
from ...ir.builder import Builder, as_value, describe, type_of
from ...ir.builtin import builtin
from ...ir.op import op
from ...ir.op_traits import Registers, Signals, Writes
from ...layout import blocked_layout
from ...types import BarrierRef, Buffer, Region, Scalar, Tile
from ..language.promotion import coerce, collective
from ..memory.access import Access, AccessPlan, plan_access
from ..memory.access_ops import differs_by_thread
from ..memory.packed import as_bytes, pack, shape_of
from ..memory.partition import shared_runs
from ..memory.regions import coordinates, whole_region
from .copy_async.one_thread import MAX_BYTES
from .copy_async.reductions import KINDS, TYPES


@op("writes", attrs=("kind", "each_thread"))
def remote_(place: Writes, value: Registers, mbar: Signals, kind, each_thread):
    """Start storing `value` to a region of a peer's shared memory, or combining it with the region by `kind`.

    Each element of a tile is written once. A scalar is written once for the scope; with `each_thread`, by each thread
    (if the operands differ between threads).
    """


@remote_.infer
def _(g, place, value, mbar, kind, each_thread):
    return None


@dataclass(frozen=True)
class Plan:
    """The access; for a reduction, the type in the instruction's name; and in `nbytes`,
    the bytes that the whole call transfers."""

    access: AccessPlan
    type: str | None
    nbytes: int

    completion = "bytes"


def _layout(assigner, call, types: tuple) -> tuple[tuple, tuple]:
    """The layout of the tile to store. A thread must hold runs of 4 contiguous bytes; if it does not,
    the tile is converted."""
    place, value, _ = call.args
    if not isinstance(type_of(value), Tile):
        return (None,) * len(call.args), ()
    t, held = place.type, types[1]
    least = 1 if call.attrs["kind"] is not None else max(1, 4 // t.dtype.nbytes)
    axes = [k for k, d in enumerate(t.kept)
            if t.shape[k] % least == 0 and shared_runs(t.buffer.layout, t.buffer.shape, d, least)]
    wanted = held or assigner.default(t.shape, t.dtype)
    if axes and not any(assigner.context.register_run(wanted, k) >= least for k in axes):
        vector, threads = least, assigner.scope.threads
        while (2 * vector * t.dtype.nbytes <= 16 and t.shape[axes[-1]] % (2 * vector) == 0
               and 2 * vector * threads <= value.type.size):
            vector *= 2
        order = (axes[-1], *(k for k in reversed(range(len(t.shape))) if k != axes[-1]))
        wanted = Tile(t.dtype, t.shape, *blocked_layout(t.shape, threads, vector, order))
    return (None, wanted, None), ()


remote_.rules.layout = _layout


def _plan(context, call) -> Plan:
    place, value, _ = call.args
    t, kind = place.type, call.attrs["kind"]
    access = plan_access(context, place, type_of(value), most=1 if kind is not None else None)
    if access.checked:
        raise CompilationError("a barrier counts the bytes stored to a peer, so the region must provably be inside "
                               f"the buffer: along dimension {access.checked[0]} of {list(t.buffer.shape)} it is not",
                               call.loc)
    if kind is not None:
        return Plan(access, TYPES["shared", kind][t.dtype.name], t.nbytes)
    if access.vector * t.dtype.nbytes < 4:
        plural = "s" if access.vector > 1 else ""
        raise CompilationError("st.async stores 4, 8 or 16 bytes a thread, "
                               f"and here a thread has {access.vector} neighbouring element{plural} of {t.dtype}: "
                               "store a tile whose rows are contiguous in the buffer, or 32-bit elements", call.loc)
    return Plan(access, None, t.nbytes)


remote_.rules.plan = _plan
remote_.rules.by_threads = lambda call: ()  # of another CTA, whose threads learn of it by the barrier


# -- emission ----------------------------------------------------------------------------------------------------------

@remote_.emit
def _(e, call, place, value, mbar):
    plan: Plan = call.choice.plan
    t, rank = type_of(call.args[1]), place.buffer.rank
    barrier = e.bulk.map_to_rank(mbar.address, mbar.offset, rank)
    # In the shared::cluster window, an address of the peer is at a constant distance from the same address of this CTA.
    away = e.bulk.map_to_rank(e.shared_base(), 0, rank) - e.shared_base()
    if isinstance(t, Scalar):
        access = Access(e, place, None, plan.access)
        base, offset = access.address(0)
        predicate = None if call.attrs["each_thread"] else e.first_thread()
        e.bulk.store_remote((base + away, offset), place.type.dtype, [value], barrier, predicate, call.attrs["kind"],
                            plan.type)
        return
    access = Access(e, place, t, plan.access)
    for run in plan.access.groups(t):
        base, offset = access.address(run[0])
        predicate = access.predicate(run[0], None, owned=True)
        e.bulk.store_remote((base + away, offset), place.type.dtype, [value[r] for r in run], barrier, predicate,
                            call.attrs["kind"], plan.type)


# -- simulation --------------------------------------------------------------------------------------------------------

@remote_.simulate
def _(m, call, place, value, mbar):
    t = type_of(call.args[1])
    coords, owner = coordinates(m, place), None
    if isinstance(t, Tile):
        owner = m.owners(t)
    elif not call.attrs["each_thread"]:
        coords, value = tuple(c[:, :1] for c in coords), np.asarray(value)[:, :1]
    m.remote.store(place.buffer, coords, value, mbar, owner=owner, kind=call.attrs["kind"])


# -- user functions ----------------------------------------------------------------------------------------------------

def _issue(g: Builder, what: str, place, value, mbar, kind: str | None) -> None:
    g.need(what, 90)
    place = whole_region(g, place) if isinstance(type_of(place), Buffer) and type_of(place).peer else place
    t = type_of(place)
    if not isinstance(t, Region) or not t.buffer.peer:
        raise g.error(f"{what} writes to a region of a peer's shared memory, as buf.peer(rank)[i, 0:N] names it, "
                      f"not {describe(place)}")
    if not isinstance(type_of(mbar), BarrierRef):
        raise g.error(f"mbar is one barrier, as tile.mbarrier() makes, not {describe(mbar)}")
    if type_of(mbar).peer:
        raise g.error("mbar must be the CTA's own barrier: the bytes complete on its instance in the CTA "
                      "that is written to")
    if t.nbytes > MAX_BYTES:
        raise g.error(f"{t.nbytes} bytes in one call, and a phase of a barrier counts at most {MAX_BYTES}")
    if t.shape != ():
        collective(g, f"{what} of a tile")
        g.require_uniform(f"this {what}", *g.definitions[place].args[1:])
    if t.dtype.padded:
        raise g.error(f"{what} does not reach padded elements, {t.dtype}: send them packed")
    if t.dtype.packed:
        value = pack(g, as_value(coerce(g, value, Tile(t.dtype, shape_of(t.dtype, t.shape)))))
        place = as_bytes(g, place)
        t = place.type
    value = coerce(g, value, Tile(t.dtype, t.shape) if t.shape != () else Scalar(t.dtype))
    each = t.shape == () and differs_by_thread(g, place, value)
    g.call(remote_, place, value, mbar, kind=kind, each_thread=each)


@builtin
def store_async(g: Builder, place, value, mbar):
    """Start storing a tile or scalar to a region of a peer's shared memory, ``buf.peer(rank)[...]`` (``st.async``).

    The bytes complete on the peer's instance of the barrier `mbar`, which must expect them; after waiting on it, the
    peer can read the values. A scalar is stored once for the scope, or by each thread if its place or value differs
    between threads. The adjacent elements that a thread holds must fill 4, 8 or 16 bytes.
    """
    _issue(g, "store_async", place, value, mbar, None)


@builtin
def reduce_async(g: Builder, place, value, kind, mbar):
    """Start combining a tile or scalar with a region of a peer's shared memory, element by element (``red.async``).

    `kind` is "add" (int32, uint32, int64, uint64), "min", "max" (int32, uint32), "and", "or", "xor" (int32, uint32),
    "inc" or "dec" (uint32). Each element is combined atomically, and the bytes complete on the peer's instance of the
    barrier `mbar`.
    """
    if kind not in KINDS:
        raise g.error(f"kind is one of {', '.join(KINDS)}, not {kind!r}")
    t = type_of(place)
    known = TYPES["shared", kind]
    if isinstance(t, (Region, Buffer)) and t.dtype.name not in known:
        raise g.error(f"reduce_async {kind!r} takes {', '.join(known)}, not {t.dtype}")
    _issue(g, "reduce_async", place, value, mbar, kind)


__all__ = ["reduce_async", "remote_", "store_async"]
