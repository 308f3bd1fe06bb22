"""tma: one thread makes the tensor memory accelerator copy a box of an array, global to shared or shared to global.

``cp.async.bulk.tensor`` uses a tensor map that the launch encodes (``cuTensorMapEncodeTiled``). A load completes on
the call's barrier (with `multicast`, on that of every CTA in the mask) by the bytes of its whole boxes, even if they
are clipped; a store or reduction completes by a bulk group of the thread. PTX ISA, "Data Movement and Conversion
Instructions: Tensor copy" and "Tensors".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from operator import floordiv

import numpy as np

from .....dispatch import Need, Variant, result_of
from .....dtypes import count_units, int32
from .....types import Addressed, Selected, Sym, argument_number, layout_of, strides_of
from ..one_thread import (
    COMPLETION,
    COUNTED,
    GLOBAL_AND_SHARED,
    LOAD,
    MULTICAST,
    ONE_THREAD,
    POLICY,
    STORE,
    emit_issue,
    issuers,
    not_negative,
    of_thread,
    region_address,
    region_bytes,
)
from ..options import L2_PROMOTION, Policy, policy_of
from ..reductions import TYPES, reduction
from ..site import SM90, CopySite, finds
from .boxes import PROMOTED, Boxes, Im2col, Issued, TensorMap, runs_of, search
from .selected_boxes import ROWS, selected_boxes, selected_view
from .view import PADDED, Dim, View, multiple, view_of

STORED_AS = {"bool": "uint8", "int8": "uint8", "uint8": "uint8", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8",
             "float8_e8m0fnu": "uint8", "float4_e2m1fn": "uint8", "float6_e2m3fn": "uint8", "float6_e3m2fn": "uint8",
             "int16": "uint16", "uint16": "uint16"}
TF32 = "tfloat32"           # element type of a map whose loads round float32 to TF32
NAN_FILLED = ("float16", "bfloat16", "float32", "float64")
LOAD_MODES = {"tile": "", "im2col": ".im2col", "im2col::w": ".im2col::w", "im2col::w::128": ".im2col::w::128",
              "rows": ".tile::gather4"}
STORE_MODES = {"tile": ".tile", "im2col": ".im2col_no_offs", "rows": ".tile::scatter4"}
PAST = (1 << 31) - 1  # a row index beyond the last row of every matrix
PAIRED = ("sm_100a", "sm_103a")  # targets whose copies support CTA pairs (cta_group)


@dataclass(frozen=True)
class Plan:
    """One instruction for each of `issues`: (coordinates, innermost first; byte offset in the shared buffer).

    `moving` says what run-time starts of the array's region add to the coordinates: for each dimension of the map
    None, or (dimension of the array, factor, divisor). Byte offsets are relative to the shared region if its start is
    known only at run time.
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
    # how the engine addresses elements: 'tile', 'im2col', 'im2col::w', 'im2col::w::128', or 'rows'
    mode: str = "tile"
    each_thread: bool = False  # the scope is partial: every thread that reaches the call makes its own copy
    outside: bool = False      # the array has no elements: every box is placed beyond the map

    @property
    def instructions(self) -> int:
        return len(self.issues)

    @property
    def completion(self) -> str:
        """How the copy completes: a store by a 'bulk' group of the thread, a load by 'bytes' on a barrier."""
        return "bulk" if self.store else "bytes"

    def moves(self, starts, divide: Callable = floordiv) -> Iterator[tuple[list, int]]:
        """Yield (coordinates, byte offset from the start of the shared region) of each instruction, for the array's
        region at `starts`."""
        for issue, offset in self.issues:
            yield self.coordinates(issue, starts, divide), offset - self.issues[0][1]

    def coordinates(self, issue: tuple[int, ...], starts, divide: Callable = floordiv) -> list:
        """The coordinates of an instruction: its constant part plus what the starts of the array's region add."""
        if self.mode == "rows":
            column, first = issue
            at = [starts[0] + column, *starts[1 + first:1 + first + ROWS]]
        else:
            at = [c if part is None else _start(starts, *part, divide) + c for c, part in zip(issue, self.moving)]
        return [self.tensor_map.global_dim[0], *at[1:]] if self.outside else at

    def offsets(self, starts) -> list:
        """The im2col offsets of a load of patches: its offsets in the filter, innermost first,
        or for walks along w (halo, offset)."""
        given = list(starts[self.tensor_map.rank:]) if self.mode.startswith("im2col") and not self.store else []
        return given[::-1] if self.mode == "im2col" else given


def _start(starts, dim: int, factor: int, divisor: int, divide: Callable):
    start = starts[dim] * factor
    return start if divisor == 1 else divide(start, divisor)


# -- what the needs and the plan share ---------------------------------------------------------------------------------

def view(site: CopySite) -> View | str:
    return site.memoize("view", lambda: (selected_view if isinstance(site.array, Selected) else view_of)(site))


def boxes(site: CopySite) -> Boxes | str:
    return site.memoize("boxes", lambda: _boxes(site))


def _boxes(site: CopySite) -> Boxes | str:
    if isinstance(site.array, Selected):
        return selected_boxes(site, result_of(view(site)))
    # these depend on the element type
    typed = pads_elements(site) or any(site.options.get(o) for o in ("fill", "precision", "reduce"))
    return search(result_of(view(site)), site.g.facts.ask, promote=not typed)


def pads_elements(site: CopySite) -> bool:
    """Whether packed 4- or 6-bit elements are padded on their way to shared memory."""
    return site.src.dtype != site.dst.dtype


def inner_dim(site: CopySite) -> Dim | None:
    """The dimension of the array that is contiguous in both memories; None if there is none."""
    v = result_of(view(site))
    runs = runs_of(v, 1)
    return v.dims[runs[0].dim] if runs else None


def _inner_dim_of(site: CopySite) -> Dim:
    """The contiguous dimension of a site that has one."""
    dim = inner_dim(site)
    assert dim is not None
    return dim


def is_empty(site: CopySite) -> bool:
    """Whether the array has no elements. No map can describe such an array;
    `_of_nothing` makes a substitute that no box touches."""
    def is_positive(size):
        return size > 0 if isinstance(size, int) else site.g.facts.ask("size_at_least", size.arg, size.dim, 1)
    return not all(is_positive(size) for size in site.array.buffer.shape)


# -- needs -------------------------------------------------------------------------------------------------------------

def _shared_layout(s: CopySite) -> bool | str:
    found = view(s)
    if isinstance(found, str):
        return found
    return (found.mode is not None
            or f"the swizzle {layout_of(s.shared_side.buffer).swizzle}, which the engine does not have")


def _can_pad(s: CopySite) -> bool | str:
    if not pads_elements(s):
        return True
    if s.scopes != LOAD:
        return "a store"
    if s.architecture() < 100:
        return s.target
    mode = result_of(view(s)).swizzle
    if mode not in (0, 3):
        return f"a swizzle of {16 << mode} bytes"
    return s.g.facts.ask("aligned", s.array.buffer.arg, 32) or "the array's address is not a multiple of 32 bytes"


def _has_map(s: CopySite) -> bool:
    """Whether the launch can encode a map of the array, with its bounds."""
    return s.array.buffer.narrowed is None and not isinstance(s.array.buffer.arg, Addressed)


def _bounds(s: CopySite) -> bool | str:
    if isinstance(s.array.buffer.arg, Addressed):
        return ("those of an array made from an address, which the launch does not know; the kernel may bind a map "
                "to it (tile.tensor_map(x, slot=...).rebind(array))")
    return s.array.buffer.narrowed is None or "those of a window, or of a mask that ends before the array"


def _strides(s: CopySite) -> bool | str:
    if not _has_map(s):
        return True  # the need `_bounds` has failed already
    for d, (size, stride) in enumerate(zip(s.array.buffer.shape, strides_of(s.array.buffer))):
        if isinstance(stride, int):
            if stride < 0 and size != 1:
                return f"the stride of dimension {d} is {stride}"
        elif not s.g.facts.ask("stride_at_least", stride.arg, stride.dim, 0):
            return f"the stride of dimension {d} is negative"
    is_empty(s)  # asked here, inside a need, since the plan depends on this fact
    return True


def _extents(s: CopySite) -> bool | str:
    for size in s.array.buffer.shape:
        if isinstance(size, Sym) and size.bits == 64 and s.g.facts.ask("size_at_least", size.arg, size.dim, 1 << 31):
            return f"{size.name} is more"
    return True


def _base(s: CopySite) -> bool | str:
    return s.g.facts.ask("aligned", s.array.buffer.arg, 16) or "the array's address is not one"


def _coordinate(s: CopySite) -> bool | str:
    start = _inner_dim_of(s).start
    if pads_elements(s):
        return (start.multiple_of(PADDED)
                or f"it is not known to be a multiple of {PADDED} elements, which are padded on the way")
    whole = 16 // s.itemsize
    if start.multiple_of(whole):
        return True
    if start.value is not None:
        return f"it is {start.value} elements of {s.itemsize} bytes"
    return (f"it is known to be a multiple of {start.divisor} elements of {s.itemsize} bytes (tile.assume(start % "
            f"{whole} == 0) promises more)")


def _clips_safely(s: CopySite) -> bool | str:
    if s.scopes == LOAD:
        return True
    dim = _inner_dim_of(s)
    return (dim.inside() or multiple(dim.size, 16 // s.itemsize, s.g.facts.ask)
            or "it is not, and the engine would write past the end of a row")


def can_fill(s: CopySite) -> bool | str:
    if s.options.get("fill") is None:
        return True
    if s.scopes == STORE:
        return "fill= on a store"
    return s.src.dtype.name in NAN_FILLED or f"fill='nan' on {s.src.dtype}"


def _can_round(s: CopySite) -> bool | str:
    if s.options.get("precision") is None:
        return True
    if s.scopes == STORE:
        return "precision='tf32' on a store"
    return s.src.dtype.name == "float32" or f"precision='tf32' on {s.src.dtype}"


def _can_reduce(s: CopySite) -> bool | str:
    if s.options.get("reduce") is not None and s.scopes == LOAD:
        return "reduce= on a load"
    return reduction(s, "tensor map")


def can_pair(s: CopySite) -> bool | str:
    if s.options.get("cta_group") is None:
        return True
    if s.scopes == STORE:
        return "cta_group= on a store"
    return s.target in PAIRED or s.target


def shared_address(view: Callable, boxes: Callable) -> Need:
    """The need that every box starts at an aligned address in shared memory; `view` and `boxes` are the site's
    planner functions."""
    def test(s: CopySite) -> bool | str:
        v, aligned = view(s), 128 << view(s).mode
        if s.shared_align % aligned:
            return f"the buffer is aligned to {s.shared_align} bytes, and {aligned} are needed"
        if v.offset % 128:
            return f"the region begins at byte {v.offset}"
        if v.offset_divisor % 128:
            return f"the region is known to begin at a multiple of {v.offset_divisor} bytes"
        offset = next((o for _, o in boxes(s).issues if o % 128), None)
        return offset is None or f"a box would begin at byte {offset}"
    return Need("boxes that begin at multiples of 128 bytes in shared memory", test)


TAKES = ("multicast", "reduce", "precision", "cta_group")
SHARED_LAYOUT = Need("a shared layout of plain memory or a standard swizzle", _shared_layout, gate=True)
PADDING = Need("for elements that are padded on the way: a load, sm_100a or later, 32-byte alignment, and no swizzle "
               "or that of 128 bytes", _can_pad, gate=True)
CONTIGUOUS = Need("the same contiguous elements innermost in both memories", lambda s: inner_dim(s) is not None,
                  gate=True)
BOUNDS = Need("the bounds of the array, which its tensor map has", _bounds)
STRIDES = Need("an array without negative strides", _strides)
EXTENTS = Need("extents below 2^31, which coordinates of 32 bits reach", _extents)
BASE = Need("an array that starts at a multiple of 16 bytes", _base)
COORDINATE = Need("a start along the innermost dimension at a multiple of 16 bytes", _coordinate)
STORE_STARTS = Need("starts of a store that are provably at least 0", lambda s: s.scopes == LOAD or not_negative(s))
CLIPPED = Need("an innermost dimension of a multiple of 16 bytes for a store that may be clipped there", _clips_safely)
FILL = Need("zero as the fill of a ragged read, or NaN for a float type", can_fill)
ROUNDING = Need("rounding to TF32 on loads of float32 only", _can_round)
REDUCTION = Need("a reduction that the hardware has, into global memory", _can_reduce)
PAIR = Need("cta_group= on loads only, for sm_100a or sm_103a", can_pair)
BOXES = Need("a tensor map with strides of 16 bytes, at most five dimensions and boxes of at most 256",
             finds(boxes), gate=True)
SHARED_ADDRESS = shared_address(view, boxes)


# -- the plan ----------------------------------------------------------------------------------------------------------

def plan(site: CopySite) -> Plan:
    found = result_of(boxes(site))
    nbytes = prod(found.box) * found.unit * site.itemsize
    moved = count_units(site.src.dtype, nbytes) if pads_elements(site) else nbytes
    assert moved is not None  # boxes have whole groups of packed elements
    return make_plan(site, tensor_map(site, found, (1,) * len(found.box)), found, moved)


def tensor_map(site: CopySite, found: Boxes, steps: tuple[int, ...], walk: Im2col | None = None) -> TensorMap:
    """The tensor map that the launch encodes for the boxes of a site; `steps` are its element strides."""
    promotion = L2_PROMOTION[site.options.get("l2_promotion", 128)]
    made = TensorMap(
        argument=argument_number(site.array.buffer), base_offset=found.base_offset + site.base_offset * site.itemsize,
        dtype=_dtype(site, found.unit), global_dim=found.dims, global_strides=found.strides, box=found.box,
        element_strides=steps, interleave=0, swizzle=result_of(view(site)).swizzle,
        l2_promotion=promotion, oob_fill=int(site.options.get("fill") == "nan"), im2col=walk)
    return _of_nothing(made, pads_elements(site)) if is_empty(site) else made


def _dtype(site: CopySite, unit: int) -> str:
    """The element type of the site's tensor map; one element of the map is `unit` elements of the array."""
    name, kind = site.src.dtype.name, site.options.get("reduce")
    if unit > 1:
        return PROMOTED[unit * site.itemsize]
    if pads_elements(site):
        return site.dst.dtype.name
    if kind is not None:
        return TYPES["tensor map", kind][name]
    return TF32 if site.options.get("precision") else STORED_AS.get(name, name)


def _of_nothing(made: TensorMap, padded: bool) -> TensorMap:
    """The map of an array without elements: a few elements of memory that the launcher owns,
    beyond which every box is placed.

    No dimension of a map can be 0, and the engine needs a valid address, while libraries give such arrays any
    address, or 0. Images are made just large enough for the walk to have one pixel.
    """
    first, unit = (PADDED, 32) if padded else (16, 16)
    dims = [first] + [1] * (made.rank - 1)
    for d, (low, high) in enumerate(zip(made.im2col.lower, made.im2col.upper) if made.im2col else ()):
        dims[1 + d] = max(1, 1 + low - high)
    return replace(made, base_offset=0, nowhere=True, global_dim=tuple(dims), global_strides=(unit,) * (made.rank - 1))


def make_plan(site: CopySite, tensor_map: TensorMap, found: Issued, nbytes: int, mode: str = "tile") -> Plan:
    """Assemble the plan from a map, its boxes and the options of the call."""
    options = site.options
    return Plan(tensor_map, list(found.issues), nbytes, site.scopes == STORE, found.moving, policy_of(options),
                options.get("reduce"), options.get("cta_group"), options.get("prefetch_map", False), mode,
                site.partial is not None, tensor_map.nowhere)


def emit(e, plan: Plan, call, dst, src, mbar, mask=None):
    array, shared = (dst, src) if plan.store else (src, dst)
    if plan.prefetch_map:
        e.tma.prefetch_map(plan.tensor_map)

    def issue():
        (address, base), barrier = region_address(e, shared), mbar
        if shared.buffer.rank is not None:  # a peer's memory, and its instance of the barrier
            address, base = e.bulk.map_to_rank(address, base, shared.buffer.rank), 0
            barrier = e.bulk.peer_barrier(mbar, shared.buffer.rank)
        for at, step in plan.moves(array.starts, e.exactly_divided):
            place = address, base + step
            if plan.store:
                at = _rows_inside(e, at) if plan.mode == "rows" else at
                e.tma.store(plan.tensor_map, at, place, mode=STORE_MODES[plan.mode], reduce=plan.reduce,
                            policy=plan.policy)
            else:
                space = "shared::cta" if plan.mode == "rows" and e.target not in PAIRED else "shared::cluster"
                e.tma.load(plan.tensor_map, at, place, barrier, mode=LOAD_MODES[plan.mode],
                           offsets=plan.offsets(array.starts), mask=mask, cta_group=plan.cta_group, space=space,
                           policy=plan.policy)

    emit_issue(e, plan.each_thread, issue)


def _rows_inside(e, at: list) -> list:
    """Coordinates with negative row indices replaced by `PAST` (as unsigned numbers they are larger), so that the
    engine drops the rows."""
    return [at[0], *(e.ins(f"call i32 @llvm.umin.i32({e.word(r).typed_text}, i32 {PAST})", int32) for r in at[1:])]


def simulate(m, plan: Plan, call, dst, src, mbar, mask=None):
    described = m.tensor_map((dst if plan.store else src).buffer, plan.tensor_map, plan.tensor_map.base_offset)
    simulate_by(lambda positions: nullcontext([(described, positions)]), m, plan, dst, src, mbar, mask)


def simulate_by(reading: Callable[..., AbstractContextManager], m, plan: Plan, dst, src, mbar, mask):
    """Simulate the copy. `reading(positions)` is a context that gives the maps to use, each with the CTAs of the
    batch that use it."""
    array, shared = (dst, src) if plan.store else (src, dst)
    for thread, positions in issuers(m, plan.each_thread):
        starts = [of_thread(s, thread, positions) for s in array.starts]
        if (origin := region_bytes(m, shared, thread, positions)) is None:
            continue
        with reading(positions) as maps:
            for described, where in maps:
                for at, step in plan.moves(starts):
                    if plan.store:
                        at = [np.where(np.asarray(c) < 0, PAST, c) for c in at] if plan.mode == "rows" else at
                        m.tma.store(described, at, shared.buffer, origin + step, mode=plan.mode, kind=plan.reduce,
                                    positions=where)
                    else:
                        ranks = None if mask is None else of_thread(np.asarray(mask), thread, where)
                        m.tma.load(described, at, shared.buffer, origin + step, mbar, mode=plan.mode,
                                   offsets=plan.offsets(starts), multicast=ranks, paired=plan.cta_group == 2,
                                   positions=where)


VARIANT = Variant("tma", plan=plan, emit=emit, simulate=simulate, doc=__doc__, place="region", takes=TAKES, needs=(
    GLOBAL_AND_SHARED,
    SM90,
    ONE_THREAD,
    COMPLETION,
    COUNTED,
    SHARED_LAYOUT,
    PADDING,
    CONTIGUOUS,
    BOUNDS,
    STRIDES,
    EXTENTS,
    BASE,
    COORDINATE,
    STORE_STARTS,
    CLIPPED,
    FILL,
    ROUNDING,
    POLICY,
    MULTICAST,
    REDUCTION,
    PAIR,
    BOXES,
    SHARED_ADDRESS,
))
