"""tma: one thread has the tensor memory accelerator move a box of an array, global to shared or shared to global.

``cp.async.bulk.tensor`` reads a tensor map that the launch encodes (``cuTensorMapEncodeTiled``). A load completes by the
bytes of its boxes, clipped or not, on the call's barrier (with `multicast` on that of every CTA in the mask); a store or a
reduction by the thread's bulk group. PTX ISA, "Data Movement and Conversion Instructions: Tensor copy" and "Tensors".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...dispatch import Need, Variant
from ...dtypes import int32, stored
from ...types import Selected, Sym
from .options import L2_PROMOTION, Policy, is_policy, policy_of
from .reductions import TYPES, reduction
from .runs import one_thread
from .selected_plan import ROWS, selected_boxes, selected_view
from .site import SM90, CopySite
from .tma_plan import PADDED, PROMOTED, Boxes, TensorMap, runs_of, search
from .tma_view import View, multiple, view_of

LOAD, STORE = ("global", "shared"), ("shared", "global")
MAX_BYTES = (1 << 20) - 1   # what a phase of an mbarrier may have pending (PTX ISA, tx-count)
STORED_AS = {"bool": "uint8", "int8": "uint8", "uint8": "uint8", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8",
             "float8_e8m0fnu": "uint8", "float4_e2m1fn": "uint8", "float6_e2m3fn": "uint8", "float6_e3m2fn": "uint8",
             "int16": "uint16", "uint16": "uint16"}
TF32 = "tfloat32"           # the element type of a map that rounds float32
NAN_FILLED = ("float16", "bfloat16", "float32", "float64")
LOAD_MODES = {"tile": "", "im2col": ".im2col", "im2col::w": ".im2col::w", "im2col::w::128": ".im2col::w::128", "rows": ".tile::gather4"}
STORE_MODES = {"tile": ".tile", "im2col": ".im2col_no_offs", "rows": ".tile::scatter4"}
PAST = (1 << 31) - 1  # a row beyond every matrix's last
PAIRED = ("sm_100a", "sm_103a")  # targets whose copies know CTA pairs


@dataclass(frozen=True)
class Plan:
    """One instruction for each of `issues`: (coordinates innermost first, shared byte offset from the buffer's base).

    What a region's run-time starts add to coordinates is in `moving`: for each dimension of the map None, or (dimension
    of the buffer, factor, divisor); offsets then count from the region's start where that is known at run time.
    """

    tensor_map: TensorMap
    issues: list[tuple[tuple[int, ...], int]]
    bytes_per_issue: int
    store: bool
    moving: tuple[tuple[int, int, int] | None, ...] = ()
    policy: Policy | None = None
    reduce: str | None = None
    cta_group: int | None = None
    prefetch_map: bool = False
    mode: str = "tile"         # how the engine finds the elements: 'tile', 'im2col', 'im2col::w', 'im2col::w::128', or 'rows'
    each_thread: bool = False  # in a partial scope, where every thread that comes to the call makes its own copy
    outside: bool = False      # of an array without elements: every box lies beyond the map

    @property
    def instructions(self) -> int:
        return len(self.issues)

    @property
    def completion(self) -> str:
        """What tells that the copy is done: 'bulk' groups of the thread for a store, 'bytes' on a barrier for a load."""
        return "bulk" if self.store else "bytes"

    def coordinates(self, issue: tuple[int, ...], starts, divide=lambda a, n: a // n) -> list:
        """An instruction's coordinates: the constant part and what the starts of the array's region add."""
        if self.mode == "rows":
            column, first = issue
            at = [starts[0] + column, *starts[1 + first:1 + first + ROWS]]
        else:
            at = []
            for c, part in zip(issue, self.moving):
                if part is not None:
                    dim, factor, divisor = part
                    start = starts[dim] * factor
                    c = (start if divisor == 1 else divide(start, divisor)) + c
                at.append(c)
        return [self.tensor_map.global_dim[0], *at[1:]] if self.outside else at

    def offsets(self, starts) -> list:
        """A load's place in the filter, innermost first, where it loads patches; along w the halo and the place."""
        given = list(starts[self.tensor_map.rank:]) if self.mode.startswith("im2col") and not self.store else []
        return given[::-1] if self.mode == "im2col" else given


# -- what the needs and the plan share ------------------------------------------------------------------------------------

def view(site: CopySite) -> View | str:
    return site.searched("view", lambda: (selected_view if isinstance(site.array, Selected) else view_of)(site))


def boxes(site: CopySite) -> Boxes | str:
    if isinstance(site.array, Selected):
        return site.searched("boxes", lambda: selected_boxes(site, view(site)))
    plain = not padding(site) and not any(site.options.get(o) for o in ("fill", "precision", "reduce"))  # the elements' type does not matter
    return site.searched("boxes", lambda: search(view(site), site.g.facts.ask, promote=plain))


def padding(site: CopySite) -> bool:
    """Whether packed elements are padded on the way to shared memory."""
    return site.src.dtype != site.dst.dtype


def inner(site: CopySite):
    """The dimension of the array that is contiguous in both memories; None when there is none."""
    v = view(site)
    runs = runs_of(v, 1)
    return v.dims[runs[0].dim] if runs else None


# -- needs ----------------------------------------------------------------------------------------------------------------

def _completion(s: CopySite) -> bool | str:
    if s.scopes == STORE:
        return s.mbar is None or "mbar= on a store"
    return s.mbar is not None or s.by_token or s.planning or "no mbar="


def _shared_layout(s: CopySite) -> bool | str:
    found = view(s)
    if isinstance(found, str):
        return found
    return found.mode is not None or f"the swizzle {s.shared.buffer.layout.swizzle}, which the engine does not have"


def _strides(s: CopySite) -> bool | str:
    if s.array.buffer.narrowed is not None:
        return "a window, whose bounds are not those of the array that a tensor map is of"
    for d, (size, stride) in enumerate(zip(s.array.buffer.shape, s.array.buffer.strides)):
        if isinstance(stride, int):
            if stride < 0 and size != 1:
                return f"the stride of dimension {d} is {stride}"
        elif not s.g.facts.ask("stride_at_least", stride.arg, stride.dim, 0):
            return f"the stride of dimension {d} is negative"
    empty(s)  # which the plan rests on
    return True


def empty(s: CopySite) -> bool:
    """Whether the array has no elements: then every box is out of bounds, of a map that has something."""
    some = lambda size: size > 0 if isinstance(size, int) else s.g.facts.ask("size_at_least", size.arg, size.dim, 1)
    return not all(some(size) for size in s.array.buffer.shape)


def _padding(s: CopySite) -> bool | str:
    if not padding(s):
        return True
    if s.scopes != LOAD or s.architecture() < 100:
        return "a store" if s.scopes != LOAD else s.target
    if view(s).mode not in (0, 3):
        return f"a swizzle of {16 << view(s).mode} bytes"
    return s.g.facts.ask("aligned", s.array.buffer.arg, 32) or "the array's address is not a multiple of 32 bytes"


def _extents(s: CopySite) -> bool | str:
    for size in s.array.buffer.shape:
        if isinstance(size, Sym) and size.bits == 64 and s.g.facts.ask("size_at_least", size.arg, size.dim, 1 << 31):
            return f"{size.name} is more"
    return True


def _base(s: CopySite) -> bool | str:
    return s.g.facts.ask("aligned", s.array.buffer.arg, 16) or "the array's address is not one"


def _coordinate(s: CopySite) -> bool | str:
    start = inner(s).start
    if padding(s):
        return start.multiple_of(PADDED) or f"it is not known to be a multiple of {PADDED} elements, which are padded on the way"
    return start.multiple_of(16 // s.itemsize) or (f"it is {start.value} elements of {s.itemsize} bytes" if start.value is not None
                                                   else f"it is known to be a multiple of {start.divisor} elements of {s.itemsize} bytes")


def not_negative(s: CopySite) -> bool | str:
    for d, start in enumerate(s.starts(s.array)):
        low = s.g.bounds(start)[0]
        if low is None or low < 0:
            return f"the start along dimension {d} is " + (str(low) if low is not None else "not known to be at least 0")
    return True


def _clipped(s: CopySite) -> bool | str:
    dim = inner(s)
    return dim.inside() or multiple(dim.size, 16 // s.itemsize, s.g.facts.ask) or "it is not, and the engine would write past the end of a row"


def _shared_address(s: CopySite) -> bool | str:
    v = view(s)
    period = 1 if v.mode == 0 else 128 << v.mode
    if s.shared_align % max(period, 128):
        return f"the buffer is aligned to {s.shared_align} bytes, and {max(period, 128)} are needed"
    if v.offset % 128 or v.offset_divisor % 128:
        if v.offset % 128:
            return f"the region begins at byte {v.offset}"
        return f"the region is known to begin at a multiple of {v.offset_divisor} bytes"
    found = boxes(s)
    offset = next((o for _, o in found.issues if o % 128), None) if not isinstance(found, str) else None
    return offset is None or f"a box would begin at byte {offset}"


def _fill(s: CopySite) -> bool | str:
    if s.options.get("fill") is None:
        return True
    if s.scopes == STORE:
        return "fill= on a store"
    return s.src.dtype.name in NAN_FILLED or f"fill='nan' on {s.src.dtype}"


def _rounded(s: CopySite) -> bool | str:
    if s.options.get("precision") is None:
        return True
    return s.scopes == LOAD and s.src.dtype.name == "float32" or f"precision='tf32' on {'a store' if s.scopes == STORE else s.src.dtype}"


def _reduced(s: CopySite) -> bool | str:
    if s.options.get("reduce") is not None and s.scopes == LOAD:
        return "reduce= on a load"
    return reduction(s, "tensor map")


def _paired(s: CopySite) -> bool | str:
    if s.options.get("cta_group") is None:
        return True
    return s.target in PAIRED and s.scopes == LOAD or ("cta_group= on a store" if s.scopes == STORE else s.target)


def _found(s: CopySite) -> bool | str:
    found = boxes(s)
    return found if isinstance(found, str) else True


# What a tensor map asks of an array and the region of it.
ARRAY_NEEDS = (
    Need("the same contiguous elements innermost in both memories", lambda s: inner(s) is not None, gate=True),
    Need("an array without negative strides", _strides),
    Need("extents below 2^31, which coordinates of 32 bits reach", _extents),
    Need("an array that starts at a multiple of 16 bytes", _base),
    Need("a start along the innermost dimension at a multiple of 16 bytes", _coordinate),
    Need("a tensor map with strides of 16 bytes, at most five dimensions and boxes of at most 256", _found, gate=True),
)
# What it asks of the threads, the bytes and the shared memory; of the call's options; and of the boxes.
PLACE_NEEDS = (
    Need("one side in global and the other in shared memory", lambda s: s.scopes in (LOAD, STORE) or f"{s.scopes[0]} to {s.scopes[1]}", gate=True),
    SM90,
    Need("one thread, or mbar= by which a wider scope elects its first", one_thread),
    Need("mbar= on a load, which completes by bytes, and none on a store, which completes by groups", _completion),
    Need("at least one element and at most 2^20 - 1 bytes, as a barrier counts",
         lambda s: 0 < s.nbytes <= MAX_BYTES or f"{s.nbytes} bytes", gate=True),
    Need("a shared layout of plain memory or a standard swizzle", _shared_layout, gate=True),
    Need("for elements that are padded on the way: a load, sm_100a or later, 32-byte alignment, and no swizzle or that of 128 bytes",
         _padding, gate=True),
)
OPTION_NEEDS = (
    Need("an innermost dimension of a multiple of 16 bytes for a store that may be clipped there", lambda s: s.scopes == LOAD or _clipped(s)),
    Need("zero as the fill of a ragged read, or NaN for a float type", _fill),
    Need("rounding to TF32 on loads of float32 only", _rounded),
    Need("an L2 policy as the cache option", is_policy),
    Need("multicast= on loads only", lambda s: not s.options.get("multicast") or s.scopes == LOAD),
    Need("a reduction that the hardware has, into global memory", _reduced),
    Need("cta_group= on loads only, for sm_100a or sm_103a", _paired),
)
SHARED_ADDRESS = Need("boxes that begin at multiples of 128 bytes in shared memory", _shared_address)
NEEDS = (*PLACE_NEEDS, *ARRAY_NEEDS[:-1],
         Need("starts of a store that are provably at least 0", lambda s: s.scopes == LOAD or not_negative(s)),
         *OPTION_NEEDS, ARRAY_NEEDS[-1], SHARED_ADDRESS)


# -- the plan -------------------------------------------------------------------------------------------------------------

def plan(site: CopySite) -> Plan:
    found = boxes(site)
    name = PROMOTED[found.unit * site.itemsize] if found.unit > 1 else site.dst.dtype.name if padding(site) else map_dtype(site)
    promotion = L2_PROMOTION[site.options.get("l2_promotion", 128)]
    tensor_map = TensorMap(
        argument=site.array.buffer.arg, base_offset=found.base_offset + site.base_offset * site.itemsize, dtype=name,
        global_dim=found.dims, global_strides=found.strides, box=found.box, element_strides=(1,) * len(found.box), interleave=0,
        swizzle=view(site).mode, l2_promotion=promotion, oob_fill=int(site.options.get("fill") == "nan"))
    nbytes = prod(found.box) * found.unit * site.itemsize
    nbytes = stored(site.src.dtype, nbytes) if padding(site) else nbytes
    return or_outside(site, made(site, tensor_map, list(found.issues), nbytes, found.moving))


def made(site: CopySite, tensor_map: TensorMap, issues: list, nbytes: int, moving: tuple, mode: str = "tile") -> Plan:
    """The plan with what the call's options say."""
    options = site.options
    return Plan(tensor_map, issues, nbytes, site.scopes == STORE, moving, policy_of(options), options.get("reduce"),
                options.get("cta_group"), options.get("prefetch_map", False), mode, site.partial is not None)


def or_outside(site: CopySite, plan: Plan) -> Plan:
    """The plan; of an array without elements, since no dimension of a map is 0, by a map of a few elements of the launcher's own,
    beyond which every box lies: libraries give such an array any address, or 0, and the engine wants one that is there. Its
    images are as large as the walk needs to have a pixel."""
    if not empty(site):
        return plan
    made, walk = plan.tensor_map, plan.tensor_map.im2col
    first, unit = (PADDED, 32) if padding(site) else (16, 16)
    dims = [first] + [1] * (made.rank - 1)
    for d, (low, high) in enumerate(zip(walk.lower, walk.upper) if walk else ()):
        dims[1 + d] = max(1, 1 + low - high)
    nothing = replace(made, base_offset=0, nowhere=True, global_dim=tuple(dims), global_strides=(unit,) * (made.rank - 1))
    return replace(plan, tensor_map=nothing, outside=True)


def map_dtype(site: CopySite) -> str:
    """The element type of the site's tensor map, where elements are not joined."""
    name, kind = site.src.dtype.name, site.options.get("reduce")
    if kind is not None:
        return TYPES["tensor map", kind][name]
    return TF32 if site.options.get("precision") else STORED_AS.get(name, name)


def emit(e, plan: Plan, call, dst, src, mbar, mask=None):
    array, shared = (dst, src) if plan.store else (src, dst)
    starts = list(shared.starts)
    moves = any(not isinstance(s, int) for s in starts)
    layout, nbytes = shared.buffer.type.layout.without_swizzle(), shared.buffer.type.dtype.nbytes
    origin = layout.offset_of(*starts, shape=shared.buffer.type.shape) * nbytes if moves else 0

    if plan.prefetch_map:
        e.prefetch_tensor_map(plan.tensor_map)

    def issue():
        address, base = (e.shared_base() + e.word(origin), shared.buffer.offset) if moves else (e.shared_base(), shared.buffer.offset)
        first, barrier = plan.issues[0][1], mbar
        if shared.buffer.rank is not None:  # a peer's memory, and its instance of the barrier
            address, base = e.mapped(address, base, shared.buffer.rank), 0
            barrier = e.peer_barrier(mbar, shared.buffer.rank)
        for coordinates, offset in plan.issues:
            at = plan.coordinates(coordinates, array.starts, e.exactly_divided)
            place = address, base + (offset - first if moves else offset)
            if plan.store:
                at = clamped(e, at) if plan.mode == "rows" else at
                e.tma_store(plan.tensor_map, at, place, mode=STORE_MODES[plan.mode], reduce=plan.reduce, policy=plan.policy)
            else:
                space = "shared::cta" if plan.mode == "rows" and e.target not in PAIRED else "shared::cluster"
                e.tma_load(plan.tensor_map, at, place, barrier, mode=LOAD_MODES[plan.mode], offsets=plan.offsets(array.starts), mask=mask,
                           cta_group=plan.cta_group, space=space, policy=plan.policy)

    if plan.each_thread:
        issue()
    else:
        e.by_first_thread(issue)


def simulate(m, plan: Plan, call, dst, src, mbar, mask=None):
    array, shared = (dst, src) if plan.store else (src, dst)
    layout, nbytes = shared.type.buffer.layout.without_swizzle(), shared.type.dtype.nbytes
    tensor_map = m.tensor_map(array.buffer, plan.tensor_map, plan.tensor_map.base_offset)
    first = plan.issues[0][1]
    for thread, positions in issuers(m, plan.each_thread):
        pick = lambda start: of_thread(start, thread, positions)
        starts = [pick(s) for s in array.starts]
        origin = layout.offset_of(*map(pick, shared.starts), shape=shared.type.buffer.shape) * nbytes
        for coordinates, offset in plan.issues:
            at = [np.asarray(c).reshape(-1, 1) for c in plan.coordinates(coordinates, starts)]
            place = origin + (offset - first)
            if plan.store:
                at = [np.where(c < 0, PAST, c) for c in at] if plan.mode == "rows" else at
                m.tma_store(tensor_map, at, shared.buffer, place, mode=plan.mode, kind=plan.reduce, positions=positions)
            else:
                ranks = None if mask is None else of_thread(np.asarray(mask), thread, positions)
                m.tma_load(tensor_map, at, shared.buffer, place, mbar, mode=plan.mode, offsets=plan.offsets(starts), multicast=ranks,
                           paired=plan.cta_group == 2, positions=positions)


def clamped(e, at: list) -> list:
    """Rows to store to, with those before the first one past the last one, where the engine drops them."""
    return [at[0], *(e.ins(f"call i32 @llvm.umin.i32({e.word(r).typed}, i32 {PAST})", int32) for r in at[1:])]


def issuers(m, each_thread: bool):
    """The threads of the scope that issue, each with the CTAs of the batch in which it does (None for all): the first
    thread, or every active one for itself."""
    if not each_thread:
        yield 0, None
        return
    for thread in np.flatnonzero(m.active.any(axis=0)):
        mine = np.broadcast_to(m.active[:, thread], (m.batch,))
        yield thread, None if mine.all() else np.flatnonzero(mine)


def of_thread(start: np.ndarray, thread: int, positions: np.ndarray | None) -> np.ndarray:
    """A thread's value of a scalar, (B or 1, 1); CTAs that do not issue get that of one that does."""
    column = start[:, thread if start.shape[1] > 1 else 0].astype(np.int64)[:, None]
    if positions is None or len(column) == 1:
        return column
    result = np.full_like(column, column[positions[0]])
    result[positions] = column[positions]
    return result


VARIANT = Variant("tma", plan=plan, emit=emit, simulate=simulate, doc=__doc__, needs=NEEDS)
