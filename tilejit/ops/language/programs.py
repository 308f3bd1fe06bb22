"""Programs of a persistent kernel, whose CTAs run several of them one after the other.

The launch starts as many CTAs as fit on the GPU, in one row. CTA i begins with the program at place i of an order, by
default that of their numbers, and takes further ones in turn. What is a CTA's index in the grid otherwise is computed
from the program's number; the extents of the grid are parameters. See passes/pipelining/persistent_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dtypes import bool_, int32
from ...ir.builder import type_of
from ...ir.op import op
from ...ir.op_traits import Reads, Registers, Signals, Writes
from ...types import Scalar, Uniformity

SLOTS = 256  # more than a GPU runs grids at once (128; CUDA C++ Programming Guide, "Compute Capabilities")

# The counters of a module are a lock (u32), how many launches count in a slot that is not their own (u32), and the
# slots (u64).
# A launch is known by its %gridid: on an H200, replays of one graph have the same, but a grid that runs beside another
# one has its own, also if both are of one graph that is instantiated twice.
# In a slot are the number of the launch that counts in it (high word) and how often its CTAs have asked (low word); a
# free one is 0. A launch's own slot follows from its number. If another launch is still there, it counts in the next
# free one. CTAs agree on the slot under the lock, which the first one takes; the others find it in its slot while they
# wait. Each CTA asks until no program is left, so a launch asks as often as it has programs, and the last time frees
# its slot. A launch that starts a CTA for each program does not count.
# $0: the result, $1: the module's counters, $2: the launch's programs, $3: its CTAs.
_TAKE = f"""{{ .reg .pred p; .reg .b32 m, l, h, n, i, d, r; .reg .b64 s, a, o, w;
mov.u32 r, $3;
setp.eq.u32 p, $2, $3;
@p bra done;
mov.u64 o, %gridid;
mov.b64 {{m, h}}, o;
or.b32 m, m, 0x80000000;
add.u64 s, $1, 8;
and.b32 n, m, {SLOTS - 1};
mad.wide.u32 a, n, 8, s;
lock:
ld.relaxed.gpu.global.b64 o, [a];
mov.b64 {{l, h}}, o;
setp.eq.u32 p, h, m;
@p bra ours;
atom.acquire.gpu.global.cas.b32 d, [$1], 0, 1;
setp.ne.u32 p, d, 0;
@p bra lock;
ld.relaxed.gpu.global.b32 d, [$1+4];
mov.u32 i, 0;
find:
ld.relaxed.gpu.global.b64 o, [a];
mov.b64 {{l, h}}, o;
setp.eq.u32 p, h, m;
@p bra found;
setp.eq.u32 p, d, 0;
@p bra claim;
add.u32 n, n, 1;
and.b32 n, n, {SLOTS - 1};
mad.wide.u32 a, n, 8, s;
add.u32 i, i, 1;
setp.lt.u32 p, i, {SLOTS};
@p bra find;
claim:
mov.u32 i, 0;
probe:
ld.relaxed.gpu.global.b64 o, [a];
setp.eq.u64 p, o, 0;
@p bra free;
add.u32 n, n, 1;
and.b32 n, n, {SLOTS - 1};
mad.wide.u32 a, n, 8, s;
mov.u32 i, 1;
bra probe;
free:
mov.u32 l, 0;
mov.b64 w, {{l, m}};
st.relaxed.gpu.global.b64 [a], w;
setp.eq.u32 p, i, 0;
@p bra found;
atom.relaxed.gpu.global.add.u32 d, [$1+4], 1;
found:
st.release.gpu.global.b32 [$1], 0;
ours:
atom.relaxed.gpu.global.add.u64 o, [a], 1;
mov.b64 {{l, h}}, o;
add.u32 r, l, $3;
add.u32 n, l, 1;
setp.ne.u32 p, n, $2;
@p bra done;
st.relaxed.gpu.global.b64 [a], 0;
and.b32 n, m, {SLOTS - 1};
mad.wide.u32 w, n, 8, s;
setp.eq.u64 p, a, w;
@p bra done;
atom.release.gpu.global.add.u32 d, [$1+4], -1;
done:
mov.u32 $0, r; }}""".replace("\n", " ")

# So many programs for each CTA at least are taken together at the end of the order. In a model of causal attention of
# 1k to 16k rows on 132 CTAs, the last one then ends 0 to 6 % later than if all shared the time evenly; if one slice
# follows the other to the end, 0 to 20 %. Only these slices have all their keys and values read at the same time.
TOGETHER = 3


@dataclass(frozen=True)
class ProgramOrder:
    """The order in which CTAs take programs whose length changes with their index along `axis`: from the `last` index
    to the first, or from the first to the last. Programs with the same indices along slower axes form a slice. Slices
    are taken one after the other, but the last ones together, so that the longest programs of all of them come first.
    Where each program has a CTA of its own, the order is that of their numbers."""

    axis: int
    last: bool


def number_in_order(order: ProgramOrder, position: Any, extents: Sequence[Any], ctas: Any,
                    const: Callable[[int], Any], do: Callable[[str, Any, Any], Any],
                    select: Callable[[Any, Any, Any], Any]) -> Any:
    """The number of the program that `ctas` take at a `position` of the order, in a grid of these `extents`. `const`
    gives a number, `do` performs an instruction of LLVM on two, and `select` chooses one by a condition."""
    x, y, z = extents
    one, extent = const(1), extents[order.axis]
    faster = (one, x, do("mul", x, y))[order.axis]
    slices = (do("mul", y, z), z, one)[order.axis]
    size = do("mul", faster, extent)
    wanted = do("add", do("mul", ctas, const(TOGETHER)), do("sub", size, one))
    together = do("udiv", wanted, size)
    together = select(do("icmp ult", together, slices), together, slices)
    begin = do("sub", slices, together)  # where those begin that are taken together
    first = do("udiv", position, size)
    alone = do("icmp ult", first, begin)
    first, row = select(alone, first, begin), do("mul", select(alone, one, together), faster)
    before = do("mul", first, size)
    within = do("sub", position, before)
    index, rest = do("udiv", within, row), do("urem", within, row)
    if order.last:
        index = do("sub", do("sub", extent, one), index)
    index = do("add", do("mul", do("udiv", rest, faster), extent), index)
    number = do("add", do("add", before, do("mul", index, faster)), do("urem", rest, faster))
    return select(do("icmp ult", ctas, do("mul", size, slices)), number, position)


_NUMPY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "udiv": np.floor_divide, "urem": np.remainder,
          "icmp ult": np.less}


def simulated_number(order: ProgramOrder, position, programs: Sequence[int], ctas: int):
    """`number_in_order` of NumPy's integers."""
    return number_in_order(order, position, programs, ctas, int, lambda name, x, y: _NUMPY[name](x, y), np.where)


def _simulate_number(m, order: ProgramOrder, position) -> np.ndarray:
    launched = m.sim.launched
    return simulated_number(order, position.astype(np.int64), launched.programs, launched.ctas[0]).astype(np.int32)


def _emit_number(e, order: ProgramOrder, position):
    def do(name, x, y):
        return e.ins(f"{name} i32 {x.text}, {y.text}", bool_ if name == "icmp ult" else int32)
    extents = [e.grid_extent(axis) for axis in range(3)]
    return number_in_order(order, position, extents, e.sreg("nctaid.x"), lambda n: e.const(n, int32), do, e.select)


@op("pure", attrs=("order",))
def program_in_order(position, order):
    """The number of the program at a position of the order in which CTAs take them; positions count from 0."""


@program_in_order.infer
def _(g, position, order):
    return type_of(position)


@program_in_order.simulate
def _(m, call, position):
    return _simulate_number(m, call.attrs["order"], position)


@program_in_order.emit
def _(e, call, position):
    return _emit_number(e, call.attrs["order"], position)


@op("pure", attrs=("axis",))
def program_at(program, axis):
    """The index along `axis` of a program in the launch's grid; programs are numbered along x first."""


@program_at.infer
def _(g, program, axis):
    return Scalar(int32, min(type_of(program).uniform, Uniformity.CTA))


@program_at.simulate
def _(m, call, program):
    x, y, _ = m.grid
    return [program % x, program // x % y, program // (x * y)][call.attrs["axis"]].astype(np.int32)


@program_at.emit
def _(e, call, program):
    x, y = e.grid_extent(0), e.grid_extent(1)
    if call.attrs["axis"] == 0:
        return e.ins(f"urem i32 {program.text}, {x.text}", int32)
    above = e.ins(f"udiv i32 {program.text}, {x.text}", int32)
    return e.ins(f"{'urem' if call.attrs['axis'] == 1 else 'udiv'} i32 {above.text}, {y.text}", int32)


@op("syncs", attrs=("order",))
def take_program(programs: Registers, turn: Registers, order):
    """The number of the next program that no CTA of the launch has taken; at least `programs`, the number of all, if
    none is left. Each CTA calls it until then. `turn` is how often the CTA has called it before. Programs are taken in
    their `order`, by default that of their numbers."""


@take_program.infer
def _(g, programs, turn, order):
    return Scalar(int32, min(g.scope.uniformity, Uniformity.CTA))


@take_program.simulate
def _(m, call, programs, turn):
    asking = np.broadcast_to(m.active, (m.batch, 1))
    position, order = m.sim.launched.take(asking), call.attrs["order"]
    if order is None:
        return position
    return np.where(position < programs, _simulate_number(m, order, position), position)


@take_program.emit
def _(e, call, programs, turn):
    counters, order = e.counters("tilejit_programs", SLOTS + 1), call.attrs["order"]
    position = e.asm(_TAKE, [int32], [counters, programs, e.sreg("nctaid.x")])[0]
    if order is None:
        return position
    left = e.ins(f"icmp slt i32 {position.text}, {programs.text}", bool_)
    return e.select(left, _emit_number(e, order, position), position)


@op("pure")
def same_in_warps(x):
    """`x`, the same in all threads, so that the assembler knows it to be the same in the lanes of a warp."""


@same_in_warps.infer
def _(g, x):
    return type_of(x)


@same_in_warps.simulate
def _(m, call, x):
    return x


@same_in_warps.emit
def _(e, call, x):
    return e.asm("shfl.sync.idx.b32 $0, $1, 0, 31, -1;", [int32], [x], convergent=True)[0]


@op("syncs")
def load_for_program(target: Writes, source: Reads, full: Signals, empty: Signals, phase: Registers):
    """The producer's load of a tile for a program: a wait for the slot to be empty, and the copy that fills it. The
    division into roles (passes/pipelining/warp_specialization.py) writes it out."""


@load_for_program.infer
def _(g, target, source, full, empty, phase):
    return None
