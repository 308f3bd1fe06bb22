"""tma through a tensor map that the kernel names: every instruction copies one box of that map.

The map has the dimensions of its array, innermost first, whatever the region is. The region is divided into boxes of
the map, which must be consecutive in shared memory, each as the engine writes it. PTX ISA, ``cp.async.bulk.tensor``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from .....dispatch import Need, Variant, result_of
from .....types import TensorMap, argument_number, strides_of
from ..one_thread import COMPLETION, COUNTED, GLOBAL_AND_SHARED, LOAD, MULTICAST, ONE_THREAD, POLICY
from ..reductions import TYPES
from ..site import SM90, CopySite, finds
from . import variant as tma
from .boxes import MAX_ISSUES, SPAN, Group, TensorMap as Fields, is_gapless
from .selected_boxes import walk_of
from .view import Dim, View, multiple, number, times, view_of


@dataclass(frozen=True)
class Boxes:
    """The boxes of a region: `issues` are (coordinates, byte offset in shared memory) of each,
    which include constant starts.

    `moving` has the run-time starts by dimension of the map, as in `tma.Plan`.
    """

    issues: tuple[tuple[tuple[int, ...], int], ...]
    moving: tuple[tuple[int, int, int] | None, ...]


def map_of(site: CopySite) -> TensorMap:
    map_ = site.array.buffer.map
    assert map_ is not None  # since variants of other places are not tried
    return map_


def template(map_: TensorMap) -> Fields:
    """The map that the launch encodes: its array unchanged, with the box, or the im2col parameters,
    that the kernel gave."""
    array, nbytes = map_.array, map_.dtype.nbytes
    box, steps, walk = map_.box[::-1], (1,) * len(map_.box), None
    if map_.window is not None:
        rows, width = map_.box
        box, (walk, steps) = (), walk_of(map_.window, len(array.shape), width, rows)
    return Fields(argument=argument_number(array), base_offset=0, dtype=map_.stored,
                  global_dim=tuple(number(n) for n in reversed(array.shape)),
                  global_strides=tuple(times(number(s), nbytes) for s in reversed(strides_of(array)[:-1])),
                  box=box, element_strides=steps, interleave=0, swizzle=map_.swizzle, l2_promotion=map_.l2_promotion,
                  oob_fill=map_.oob_fill, im2col=walk)


def view(site: CopySite) -> View | str:
    return site.memoize("map view", lambda: view_of(site, merge=False))


def boxes(site: CopySite) -> Boxes | str:
    return site.memoize("map boxes", lambda: _boxes(site))


def _boxes(site: CopySite) -> Boxes | str:
    v, map_ = result_of(view(site)), map_of(site)
    rank, issued = len(map_.box), prod(-(-n // b) for n, b in zip(site.array.extents, map_.box))
    ragged = next((d for d in range(rank) if site.array.extents[d] % map_.box[d]), None)
    if ragged is not None:
        return f"{site.array.extents[ragged]} elements of dimension {ragged} are no whole boxes of {map_.box[ragged]}"
    if issued > MAX_ISSUES:
        return f"the region takes {issued} instructions, more than {MAX_ISSUES}"
    groups: list[Group] = []
    loops: list[Group] = []
    for d in reversed(range(rank)):
        cut = _cut(v.dims[d], d, map_.box[d])
        if cut is None:
            groups = []
            break
        groups += [cut[0]] if map_.box[d] > 1 else []
        loops += cut[1]
    if (not groups or groups[0].dim != rank - 1 or groups[0].step != site.itemsize
        or not is_gapless(tuple(groups), SPAN[map_.swizzle])):
        return f"boxes of {list(map_.box)} do not have the layout in shared memory that the engine writes"
    return Boxes(_issues(v, tuple(loops), rank),
                 tuple(_runtime_coordinate(v.dims[d], d) for d in reversed(range(rank))))


def _cut(dim: Dim, d: int, box: int) -> tuple[Group, list[Group]] | None:
    """Split a dimension's digits into (its part of the box, loops over the boxes).

    None if the part of the box is not evenly spaced in shared memory,
    or the box ends inside a digit that it does not divide.
    """
    step, at, loops = dim.digits[-1].step if dim.digits else 0, 1, []
    for digit in reversed(dim.digits):
        taken = min(digit.extent, box // at)
        if digit.extent % taken or box // at % taken or (taken > 1 and digit.step != step * at):
            return None
        at *= taken
        if digit.extent > taken:
            loops.append(Group(d, digit.weight * taken, digit.extent // taken, digit.step * taken))
    return Group(d, 1, box, step), loops


def _issues(v: View, loops: tuple[Group, ...], rank: int) -> tuple:
    origin = [v.dims[d].start.value or 0 for d in reversed(range(rank))]
    made = [(tuple(origin), v.offset)]
    for loop in sorted(loops, key=lambda g: -g.step):
        at = rank - 1 - loop.dim
        made = [(c[:at] + (c[at] + j * loop.weight,) + c[at + 1:], offset + j * loop.step) for c, offset in made
                for j in range(loop.box)]
    return tuple(made)


def _runtime_coordinate(dim: Dim, d: int) -> tuple[int, int, int] | None:
    return None if dim.start.value is not None else (d, 1, 1)


# -- needs -------------------------------------------------------------------------------------------------------------

def _layout(s: CopySite) -> bool | str:
    found = view(s)
    if isinstance(found, str):
        return found
    mode = map_of(s).swizzle
    span = SPAN[found.mode] if found.mode is not None else "another kind"
    return found.mode == mode or f"the buffer's swizzle of {span} and the map's of {SPAN[mode]} bytes"


def _coordinate(s: CopySite) -> bool | str:
    start = result_of(view(s)).dims[-1].start
    return start.multiple_of(16 // s.itemsize or 1) or "it is not known to be one"


def _clips_safely(s: CopySite) -> bool | str:
    """Whether clipping at the end of a row is safe for a store. For a map that the kernel makes (`slot`),
    its rebind checks it."""
    inner = result_of(view(s)).dims[-1]
    if map_of(s).slot is not None or inner.inside():
        return True
    return (multiple(inner.size, 16 // s.itemsize or 1, s.g.facts.ask)
            or "it is not, and the engine would write past the end of a row")


def _can_fill(s: CopySite) -> bool | str:
    if s.options.get("fill") is None or s.scopes != LOAD:
        return tma.can_fill(s)
    return map_of(s).oob_fill == 1 or "fill='nan' by a map that fills with zeros: give it to tile.tensor_map"


def _can_round(s: CopySite) -> bool | str:
    if s.options.get("precision") is not None and map_of(s).stored != tma.TF32:
        return "precision='tf32' by a map that does not round: give it to tile.tensor_map"
    return s.scopes == LOAD or map_of(s).stored != tma.TF32


def _can_reduce(s: CopySite) -> bool | str:
    kind = s.options.get("reduce")
    if kind is None:
        return True
    if s.scopes == LOAD:
        return "reduce= on a load"
    known = TYPES["tensor map", kind]
    return (known.get(s.src.dtype.name) == map_of(s).stored
            or f"reduce={kind!r} of {s.src.dtype} by a map of {map_of(s).stored}")


def _can_pair(s: CopySite) -> bool | str:
    fits = tma.can_pair(s)
    if fits is not True or s.options.get("cta_group") != 2 or map_of(s).slot is None:
        return fits
    rank = len(map_of(s).box)
    return (
        "a map that the kernel makes: that of a pair of CTAs is the launch's, since both copy parts of one tile by "
        "it, and no instruction edits it for both at once; give tile.tensor_map no slot=. "
        f"tile.ptx.cp_async.bulk.tensor._{rank}d.shared_cluster.global_.mbarrier_complete_tx_bytes.cta_group_2 "
        "takes the map as it is, with nothing checked")


def plan(site: CopySite) -> tma.Plan:
    found, map_ = result_of(boxes(site)), map_of(site)
    made = tma.make_plan(site, template(map_), found, prod(map_.box) * site.itemsize)
    # at the kernel's entry, its own maps do not exist yet
    return replace(made, prefetch_map=made.prefetch_map and map_.slot is None)


def emit(e, plan: tma.Plan, call, dst, src, mbar, *mask):
    array = dst if plan.store else src
    tma.emit(e, replace(plan, tensor_map=array.buffer), call, dst, src, mbar, *mask)


def simulate(m, plan: tma.Plan, call, dst, src, mbar, mask=None):
    array = dst if plan.store else src
    tma.simulate_by(lambda positions: m.maps.open_map(array.buffer, positions), m, plan, dst, src, mbar, mask)


VARIANT = Variant("tma", plan=plan, emit=emit, simulate=simulate, doc=__doc__, place="map", takes=tma.TAKES, needs=(
    GLOBAL_AND_SHARED,
    SM90,
    ONE_THREAD,
    COMPLETION,
    COUNTED,
    tma.SHARED_LAYOUT,
    Need("a shared layout of plain memory or a standard swizzle, the map's own", _layout, gate=True),
    Need("whole boxes of the map, one after the other in shared memory", finds(boxes), gate=True),
    Need("a start along the innermost dimension at a multiple of 16 bytes", _coordinate),
    tma.STORE_STARTS,
    Need("an innermost dimension of a multiple of 16 bytes for a store that may be clipped there",
         lambda s: s.scopes == LOAD or _clips_safely(s)),
    Need("the map's own fill, if fill= is given", _can_fill),
    Need("a map that rounds to TF32 on loads only, and for precision=", _can_round),
    POLICY,
    MULTICAST,
    Need("a reduction that the hardware has, by a map of its type", _can_reduce),
    Need("cta_group= on loads only, for sm_100a or sm_103a, and of a pair by a map of the launch", _can_pair),
    tma.shared_address(view, boxes),
))
