"""tma for selections instead of boxes: im2col patches, and rows that an index selects.

PTX ISA: ``.im2col``, ``.tile::gather4``, ``.tile::scatter4``.

Maps of patches are encoded by ``cuTensorMapEncodeIm2col``. PTX ISA, "Tensors", ``cp.async.bulk.tensor``.
"""

from __future__ import annotations

from .....dispatch import Need, Variant, result_of
from .....types import Patches, Region, RowsOfArray, Selected, Window
from ..one_thread import COMPLETION, COUNTED, GLOBAL_AND_SHARED, LOAD, MULTICAST, ONE_THREAD, POLICY, STORE
from ..site import SM90, CopySite, finds
from . import variant as tma
from .selected_boxes import ROWS, column_start, filter_fits, goes_along, stays_inside, walk


def _not_negative(s: CopySite) -> bool | str:
    """Whether the first image and the first channel of a store are at least 0; `stays_inside` checks its pixels."""
    for name, k in (("image", 0), ("channel", column_start(s.array))):
        low = s.g.bounds(s.starts(s.array)[k])[0]
        if low is None or low < 0:
            return f"the first {name} is " + (str(low) if low is not None else "not known to be at least 0")
    return True


def _column_not_negative(s: CopySite) -> bool | str:
    low = s.g.bounds(s.starts(s.array)[0])[0]
    return (low is not None and low >= 0
            or "the first column is " + (str(low) if low is not None else "not known to be at least 0"))


def _gathers(s: CopySite) -> bool | str:
    if s.scopes == STORE:
        return s.target in tma.PAIRED or s.target
    plain = not (s.options.get("multicast") or s.options.get("cta_group"))
    return s.architecture() >= 100 and (s.target in tma.PAIRED or plain) or s.target


def swizzled_along(s: CopySite) -> bool:
    """Whether the shared layout is swizzled if the copy walks along w, whose map requires a swizzle."""
    return _window(s.array).along is None or result_of(tma.view(s)).swizzle > 0


def _window(array: Region | Selected) -> Window:
    """The positions of the filter of patches."""
    assert isinstance(array, Patches) and array.window is not None
    return array.window


WALK = Need("a walk through all dimensions, or for loads on sm_100a and sm_103a along w, by 128 pixels along w128",
            goes_along, gate=True)
FILTER = Need("a filter that a tensor map can hold", filter_fits, gate=True)
def plan(site: CopySite) -> tma.Plan:
    found, patches = result_of(tma.boxes(site)), isinstance(site.array, Patches)
    extra, steps = walk(site, found.width) if patches else (None, (1, 1))
    nbytes = found.width * (site.array.extents[0] if patches else ROWS) * site.itemsize
    mode = "rows"
    if patches:
        mode = {None: "im2col", "w": "im2col::w", "w128": "im2col::w::128"}[_window(site.array).along]
    return tma.make_plan(site, tma.tensor_map(site, found, steps, extra), found, nbytes, mode)


PATCHES = Variant("tma", plan=plan, emit=tma.emit, simulate=tma.simulate, doc=__doc__, place="patches", takes=tma.TAKES,
                  needs=(
    GLOBAL_AND_SHARED,
    SM90,
    ONE_THREAD,
    COMPLETION,
    COUNTED,
    tma.SHARED_LAYOUT,
    tma.PADDING,
    WALK,
    Need("a swizzle for a walk along w", swizzled_along),
    FILTER,
    tma.CONTIGUOUS,
    tma.BOUNDS,
    tma.STRIDES,
    tma.EXTENTS,
    tma.BASE,
    tma.COORDINATE,
    Need("for a store, one place in the filter at which all pixels are inside",
         lambda s: s.scopes == LOAD or stays_inside(s), gate=True),
    Need("a first image and channel of a store that are provably at least 0",
         lambda s: s.scopes == LOAD or _not_negative(s)),
    tma.CLIPPED,
    tma.FILL,
    tma.ROUNDING,
    POLICY,
    MULTICAST,
    tma.REDUCTION,
    tma.PAIR,
    Need("pixels that one instruction takes, in rows that are packed or at the span of a swizzle",
         finds(tma.boxes), gate=True),
    tma.SHARED_ADDRESS,
))
TAKEN = Variant("tma", plan=plan, emit=tma.emit, simulate=tma.simulate, doc=__doc__, place="rows", takes=tma.TAKES,
                needs=(
    GLOBAL_AND_SHARED,
    SM90,
    ONE_THREAD,
    COMPLETION,
    COUNTED,
    tma.SHARED_LAYOUT,
    tma.PADDING,
    Need("rows of a matrix",
         lambda s: not isinstance(s.src, RowsOfArray) or f"rows of {len(s.src.buffer.shape)} dimensions", gate=True),
    Need("sm_100a or sm_103a; for plain loads also sm_120a", _gathers),
    tma.CONTIGUOUS,
    tma.BOUNDS,
    tma.STRIDES,
    tma.EXTENTS,
    tma.BASE,
    tma.COORDINATE,
    Need("a first column of a store that is provably at least 0",
         lambda s: s.scopes == LOAD or _column_not_negative(s)),
    tma.CLIPPED,
    tma.FILL,
    tma.ROUNDING,
    POLICY,
    MULTICAST,
    tma.REDUCTION,
    tma.PAIR,
    Need("no reduce=", lambda s: not s.options.get("reduce")),
    Need("rows in groups of four, packed or at the span of a swizzle", finds(tma.boxes), gate=True),
    tma.SHARED_ADDRESS,
))


__all__ = ["PATCHES", "TAKEN"]
