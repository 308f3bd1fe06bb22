"""``alloc``: shared or tensor memory of a constant shape."""

from __future__ import annotations

from ...ir.builder import Builder
from ...ir.builtin import builtin
from ..memory.shared import allocate_shared, checked_allocation
from ..tmem.alloc import allocate


@builtin
def alloc(g: Builder, shape, dtype, scope="shared", layout=None, align=None, cta_group=1):
    """Allocate memory of a constant `shape`, once per call site, for the whole kernel.

    In "shared" memory, ``layout=None`` is row-major. With ``layout=tile.auto``, the compiler chooses from the
    buffer's uses: a swizzled layout, as TMA, ldmatrix and the tensor cores take it, or row-major (`.explain()` says
    which, and why). The offset is a multiple of `align`, by default 128 bytes (1024 if the layout is swizzled).

    "tmem" is tensor memory (sm_100a, sm_103a). A layout is over ``axis.TLane`` (128 lanes) and ``axis.TCol`` (512
    columns of 32 bits, counted in elements); None puts row i in lane i. One warp allocates the memory at the kernel's
    start and deallocates it at its end, or at ``buffer.dealloc()``; with ``cta_group=2``, in both CTAs of a pair.
    """
    if scope == "tmem":
        shape, dtype, layout = checked_allocation(g, shape, dtype, layout)
        if align is not None:
            raise g.error("align is for shared memory")
        return allocate(g, shape, dtype, layout, cta_group)
    if scope != "shared":
        raise g.error(f"alloc knows the scopes 'shared' and 'tmem', not {scope!r}")
    if cta_group != 1:
        raise g.error("cta_group is for tensor memory")
    return allocate_shared(g, shape, dtype, layout, align)
