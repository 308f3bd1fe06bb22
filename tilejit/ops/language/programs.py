"""Programs of a persistent kernel, whose CTAs run several of them one after the other.

The launch starts as many CTAs as fit on the GPU, in one row. CTA i begins with program i, and takes further ones in
turn. What is a CTA's index in the grid otherwise is computed from the program's number; the extents of the grid are
parameters. See passes/pipelining/persistent_programs.py.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import int32
from ...ir.builder import type_of
from ...ir.op import op
from ...ir.op_traits import Reads, Registers, Signals, Writes
from ...types import Scalar, Uniformity

SLOTS = 256  # more than a GPU runs grids at once (128; CUDA C++ Programming Guide, "Compute Capabilities")

# The counters of a module are a lock (u32), how many launches count in a slot that is not their own (u32), and the
# slots (u64).
# In a slot are the number of the launch that counts in it (high word) and how often its CTAs have asked (low word); a
# free one is 0. A launch's own slot follows from its number. If another launch is still there, it counts in the next
# free one. CTAs agree on the slot under the lock, which is only held for as long as that takes. Each CTA asks until no
# program is left, so a launch asks as often as it has programs, and the last time frees its slot. A launch that starts
# a CTA for each program does not count. Two instances of one CUDA graph pass the same number, but they write the same
# arrays, so they do not run at the same time.
# $0: the result, $1: the module's counters, $2: the launch's number, $3: its programs, $4: its CTAs.
_TAKE = f"""{{ .reg .pred p; .reg .b32 l, h, n, i, d, r; .reg .b64 s, a, o, w;
mov.u32 r, $4;
setp.eq.u32 p, $3, $4;
@p bra done;
add.u64 s, $1, 8;
and.b32 n, $2, {SLOTS - 1};
mad.wide.u32 a, n, 8, s;
ld.relaxed.gpu.global.b64 o, [a];
mov.b64 {{l, h}}, o;
setp.eq.u32 p, h, $2;
@p bra ours;
lock:
atom.acquire.gpu.global.cas.b32 d, [$1], 0, 1;
setp.ne.u32 p, d, 0;
@p bra lock;
ld.relaxed.gpu.global.b32 d, [$1+4];
mov.u32 i, 0;
find:
ld.relaxed.gpu.global.b64 o, [a];
mov.b64 {{l, h}}, o;
setp.eq.u32 p, h, $2;
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
mov.b64 w, {{l, $2}};
st.relaxed.gpu.global.b64 [a], w;
setp.eq.u32 p, i, 0;
@p bra found;
atom.relaxed.gpu.global.add.u32 d, [$1+4], 1;
found:
st.release.gpu.global.b32 [$1], 0;
ours:
atom.relaxed.gpu.global.add.u64 o, [a], 1;
mov.b64 {{l, h}}, o;
add.u32 r, l, $4;
add.u32 n, l, 1;
setp.ne.u32 p, n, $3;
@p bra done;
st.relaxed.gpu.global.b64 [a], 0;
and.b32 n, $2, {SLOTS - 1};
mad.wide.u32 w, n, 8, s;
setp.eq.u64 p, a, w;
@p bra done;
atom.release.gpu.global.add.u32 d, [$1+4], -1;
done:
mov.u32 $0, r; }}""".replace("\n", " ")


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


@op("syncs")
def take_program(programs: Registers, turn: Registers):
    """The number of the next program that no CTA of the launch has taken; at least `programs`, the number of all, if
    none is left. Each CTA calls it until then. `turn` is how often the CTA has called it before."""


@take_program.infer
def _(g, programs, turn):
    return Scalar(int32, min(g.scope.uniformity, Uniformity.CTA))


@take_program.simulate
def _(m, call, programs, turn):
    asking = np.broadcast_to(m.active, (m.batch, 1))
    return m.sim.launched.take(asking)


@take_program.emit
def _(e, call, programs, turn):
    counters = e.counters("tilejit_programs", SLOTS + 1)
    return e.asm(_TAKE, [int32], [counters, e.launch_number(), programs, e.sreg("nctaid.x")])[0]


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
