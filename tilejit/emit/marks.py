"""Emits the marks of named ranges: records of a warp's time in a buffer that the launcher provides.

The module has a variable of 16 bytes, `PROFILE_VARIABLE`: the buffer's address (u64), the number of records for each
warp, and the number of CTAs that record (u32 each), all 0 if nothing is profiled. A record of 16 bytes is the time in
nanoseconds (u64), 1 + 2 * the number of the range + whether it ends (u32), and the multiprocessor (u32). Each warp
counts its records in shared memory behind the kernel's own.
"""

from __future__ import annotations

from ..dtypes import int32, int64
from ..ir.graph import range_names
from ..names import PROFILE_VARIABLE
from .component import Component

# $0 is the address of the CTA's counters, $1 that of the variable. Lane 0 records, or, where perhaps not all lanes are
# active, the lowest of them. A range begins when the record has its place, and ends before it looks for one, so that
# little of this is inside.
_RECORD = (
    "{{ .reg .pred p; .reg .b32 m, l, c, n, w, s, q, f; .reg .b64 t, b, a; "
    "{early}"
    "{lane} mov.u32 l, %laneid; setp.eq.u32 p, m, l; "
    "mov.u32 c, %ctaid.z; mov.u32 n, %nctaid.y; mov.u32 w, %ctaid.y; mad.lo.u32 c, c, n, w; "
    "mov.u32 n, %nctaid.x; mov.u32 w, %ctaid.x; mad.lo.u32 c, c, n, w; "
    "ld.global.v2.u32 {{f, n}}, [$1+8]; setp.lt.and.u32 p, c, n, p; "
    "mov.u32 w, %tid.x; shr.u32 w, w, 5; shl.b32 q, w, 2; add.u32 q, q, $0; mov.u32 s, 0; "
    "@p atom.shared.add.u32 s, [q], 1; setp.lt.and.u32 p, s, f, p; "
    "mad.lo.u32 c, c, {warps}, w; mul.wide.u32 a, c, f; cvt.u64.u32 b, s; add.u64 a, a, b; shl.b64 a, a, 4; "
    "ld.global.u64 b, [$1]; add.u64 a, a, b; mov.u32 q, %smid; "
    "{late}"
    "mov.b64 {{m, l}}, t; @p st.global.v4.u32 [a], {{m, l, {tag}, q}}; }}")
_LOWEST = "activemask.b32 m; brev.b32 m, m; clz.b32 m, m;"
_TIME = "mov.u64 t, %globaltimer; "


class Ranges(Component):
    """The part of the emitter that marks named ranges."""

    def initialise(self) -> None:
        """Set each warp's counter to 0, if the kernel has ranges."""
        if not range_names(self.e.graph):
            return
        self.e.globals.append(f"@{PROFILE_VARIABLE} = addrspace(1) externally_initialized global [2 x i64] "
                              "zeroinitializer, align 16")
        self.e.asm("{ .reg .pred p; .reg .b32 l, w; mov.u32 l, %laneid; setp.eq.u32 p, l, 0; mov.u32 w, %tid.x; "
                   "shr.u32 w, w, 5; shl.b32 w, w, 2; add.u32 w, w, $0; @p st.shared.u32 [w], 0; "
                   "bar.warp.sync 0xffffffff; }", [], [self._counters()], convergent=True)

    def mark(self, name: str, begins: bool) -> None:
        """Record the time of the beginning or the end of a range."""
        tag = 1 + 2 * range_names(self.e.graph).index(name) + (not begins)
        whole = self.e.threads >= 32 and not self.e.partial
        early, late = ("", _TIME) if begins else (_TIME, "")
        text = _RECORD.format(lane="mov.u32 m, 0;" if whole else _LOWEST, early=early, late=late, tag=tag,
                              warps=self.e.graph.launch.num_warps)
        variable = self.e.ins(f"ptrtoint ptr addrspace(1) @{PROFILE_VARIABLE} to i64", int64)
        self.e.asm(text, [], [self._counters(), variable], convergent=True)

    def _counters(self):
        base = self.e.shared_base()
        return self.e.ins(f"add i32 {base.text}, {-(-self.e.graph.shared_bytes // 4) * 4}", int32)
