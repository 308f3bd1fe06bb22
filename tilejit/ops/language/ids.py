"""Program, thread, warp and cluster ids."""

from __future__ import annotations

import numpy as np

from ...dtypes import int32
from ...errors import CompilationError
from ...ir.builder import Builder, describe
from ...ir.builtin import builtin
from ...ir.op import op
from ...types import Scalar, Uniformity
from .operators import binary


def _axis(g: Builder, axis) -> int:
    if axis not in (0, 1, 2):
        raise g.error(f"a grid has axes 0, 1 and 2, not {axis if isinstance(axis, int) else describe(axis)}"
                      + g.declared_constant(axis))
    return axis


def _id(name: str, doc: str, uniform: Uniformity, simulate, emit, by_axis: bool = False, since: int = 80):
    """Declare an id, an int32 scalar; `by_axis` if there is one for each axis of the grid. `since` is the first
    target that has it."""
    if by_axis:
        def declaration(axis=0): ...
    else:
        def declaration(): ...  # type: ignore[misc]  # which of the two it is makes the signature of the op
    declaration.__name__, declaration.__doc__ = name, doc
    declared = op("pure", attrs=("axis",) if by_axis else ())(declaration)

    @declared.infer
    def _(g, **attrs):
        if by_axis:
            _axis(g, attrs["axis"])
        g.need(f"{name} (a special register of clusters)", since)
        return Scalar(int32, uniform)

    @declared.simulate
    def _(m, call):
        return np.asarray(simulate(m, **call.attrs), dtype=np.int32)

    @declared.emit
    def _(e, call):
        return e.as_value(emit(e, **call.attrs), int32)  # in a scope of one thread, emit may return a Python number

    return declared


_XYZ = "xyz"

program_id = _id("program_id", "The index of this CTA in the grid along `axis`.", Uniformity.CTA,
                 lambda m, axis: m.program_id(axis), lambda e, axis: e.sreg(f"ctaid.{_XYZ[axis]}"), by_axis=True)
num_programs = _id("num_programs", "The number of CTAs in the grid along `axis`.", Uniformity.GRID,
                   lambda m, axis: np.full((1, 1), m.grid[axis]), lambda e, axis: e.grid_extent(axis),
                   by_axis=True)
cluster_id = _id("cluster_id", "The index of this CTA's cluster in the grid along `axis`.", Uniformity.CLUSTER,
                 lambda m, axis: m.cluster_id(axis), lambda e, axis: e.sreg(f"clusterid.{_XYZ[axis]}"), by_axis=True,
                 since=90)
cta_rank = _id("cta_rank", "This CTA's rank in its cluster.", Uniformity.CTA,
               lambda m: m.cluster_rank, lambda e: e.sreg("cluster.ctarank"), since=90)
absolute_thread_id = _id("thread_id", "The thread's index in the CTA.", Uniformity.THREAD,
                         lambda m: m.thread_ids(), lambda e: e.absolute_thread())
relative_thread_id = _id("thread_id_in_scope", "The thread's index in its execution scope.", Uniformity.THREAD,
                         lambda m: m.thread_ids() - m.thread_ids()[:, :1], lambda e: e.thread_id())
warp_id = _id("warp_id", "The warp's index in the CTA.", Uniformity.WARP,
              lambda m: m.thread_ids() // 32, lambda e: e.warp_id())
warpgroup_id = _id("warpgroup_id", "The index of the thread's warpgroup (128 threads) in the CTA.",
                   Uniformity.WARPGROUP, lambda m: m.thread_ids() // 128, lambda e: e.warpgroup_id())
lane_id = _id("lane_id", "The thread's lane in its warp.", Uniformity.THREAD,
              lambda m: m.thread_ids() % 32, lambda e: e.lane_id())


def is_number_of_ctas(g, x) -> bool:
    """Whether a value is the result of ``num_programs``, and therefore at least 1."""
    call = g.definitions.get(x)
    return call is not None and call.op is num_programs


@builtin
def thread_id(g: Builder, scope=None):
    """The thread's id in the CTA, or in its "warpgroup" or "warp" or in the current execution scope ("scope"),
    as `scope` says."""
    if scope in (None, "cta"):
        return g.call(absolute_thread_id)
    if scope == "scope":
        return g.call(relative_thread_id)
    if scope == "warp":
        return g.call(lane_id)
    if scope == "warpgroup":
        return binary(g, "%", g.call(absolute_thread_id), 128)
    raise CompilationError(f"scope is 'cta', 'warpgroup', 'warp' or 'scope', not {scope!r}")


@builtin
def cluster_size(g: Builder):
    """The number of CTAs in a cluster, a constant."""
    x, y, z = g.launch.cluster or (1, 1, 1)
    return x * y * z
