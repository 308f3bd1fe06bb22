"""tcgen05_cp: one thread copies shared memory to tensor memory through a matrix descriptor.

The copy may be replicated to several warps' lanes.

The descriptor is encoded once, and its address field is advanced for each instruction. A copy completes at a
``tcgen05_commit``; products that the same thread issues later are ordered after it anyway. With ``cta_group=2``, each
CTA of the pair copies from its own shared memory to its own tensor memory. Padded 4- and 6-bit elements are expanded
to bytes. PTX ISA, "tcgen05.cp".
"""

from __future__ import annotations

from ....dispatch import Need, Variant
from ...tmem.alloc import allocation
from ...tmem.targets import TENSOR_MEMORY
from .options import HINTS, SELECTIVE
from .site import CopySite
from .tcgen05_cp_plan import Plan, search


def find_plan(s: CopySite) -> Plan | str:
    """The plan of the first shape that fits, or a string that says why none does; memoised on the site."""
    return s.memoize("tcgen05_cp", lambda: search(s, group(s)))


def group(s: CopySite) -> int:
    """The cta_group of the tensor memory's allocation; without a kernel (``tile.plan_copy``), that of the option."""
    if s.dst_buffer is None:
        return s.options.get("cta_group") or 1
    return allocation(s.g.definitions, s.dst_buffer).attrs["cta_group"]


def _group(s: CopySite) -> bool | str:
    asked = s.options.get("cta_group")
    return asked in (None, group(s)) or f"cta_group={asked} with tensor memory of {group(s)}"


def _has_plan(s: CopySite) -> bool | str:
    plan = find_plan(s)
    return plan if isinstance(plan, str) else True


NEEDS = (
    Need("shared memory as the source and tensor memory as the destination",
         lambda s: s.scopes == ("shared", "tmem") or f"{s.scopes[0]} to {s.scopes[1]}", gate=True),
    TENSOR_MEMORY,
    Need("the CTA's own shared memory", lambda s: not s.src.buffer.peer or "a peer's", gate=True),
    Need("one thread", lambda s: s.threads == 1 or f"{s.threads} threads of a {s.scope}: use tile.elect()", gate=True),
    Need("no mbar=, since it completes by tcgen05_commit or the call's token", lambda s: s.mbar is None or "mbar="),
    Need("no other options than shape=, multicast=, the allocation's cta_group= and hints",
         lambda s: next((f"{o}=" for o in s.options
                         if o not in ("shape", "multicast", "cta_group", "variant", "token", *HINTS)), True)),
    Need("the cta_group of the tensor memory", _group),
    Need("a multicast to warps",
         lambda s: not s.options.get("multicast") or isinstance(s.options["multicast"], str) or "a mask of CTAs"),
    Need("layouts that a shape and a matrix descriptor name", _has_plan, gate=True),
)


def emit(e, plan: Plan, call, dst, src, mbar):
    """Emit all copies in one asm statement, with offsets added to one descriptor and one tensor-memory address.

    Each of these two starts at the buffer, or at the region on a side where the plan `moves`.
    """
    address = e.mma.matrix_address(src) if plan.moves[1] else e.shared_base() + src.buffer.offset
    descriptor = e.mma.descriptor(address, plan.descriptor.bits)
    tensor = e.tmem.address(dst) if plan.moves[0] else dst.buffer.pointer + dst.buffer.offset
    form = (plan.shape + (f".{plan.multicast}" if plan.multicast else "")
            + (f".b8x16.{plan.decompress}" if plan.decompress else ""))
    lines = []
    for into, at in plan.places:
        lines.append(f"add.s64 d, $1, {at >> 4}; add.u32 t, $0, {into}; "
                     f"tcgen05.cp.cta_group::{plan.cta_group}.{form} [t], d;")
    e.asm(f"{{ .reg .b64 d; .reg .b32 t; {' '.join(lines)} }}", [], [tensor, descriptor])


def simulate(m, plan: Plan, call, dst, src, mbar):
    m.pair_operations.copy(plan, dst, src)


VARIANT = Variant("tcgen05_cp", plan=find_plan, emit=emit, simulate=simulate, doc=__doc__, place="region",
                  same_dtype=True, takes=SELECTIVE, needs=NEEDS)  # one of the needs excludes some options
