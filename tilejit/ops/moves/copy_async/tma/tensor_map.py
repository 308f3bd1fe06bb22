"""``tensor_map``: explicit tensor maps of arrays. The launch encodes them, or the kernel edits them in a slot.

The edits, and the fences between edits and copies, are in `map_edits`. PTX ISA, "Tensors".
"""

from __future__ import annotations

from .....dtypes import int32, uint8
from .....errors import CompilationError
from .....ir.builder import Builder, as_value, buffer_type, describe, type_as, type_of
from .....ir.builtin import attribute, builtin
from .....ir.graph import Call, Const, Value
from .....ir.op import op
from .....ir.op_traits import Traits, Writes
from .....layout import TileLayout
from .....types import Addressed, Buffer, Patches, Region, Scalar, Selected, Sym, TensorMap, strides_of
from ....memory.packed import bytes_along, refuse_packed, shape_of
from ....memory.shared import alloc_shared
from ..options import L2_PROMOTION
from .boxes import MAX_BOX, MAX_BOX_BYTES, MAX_RANK, SPAN
from .selected_boxes import MAX_PIXELS, window_fits
from .selections import ImageMatrix, Taken
from .variant import NAN_FILLED, PAIRED, STORED_AS, TF32

BYTES = 128                                    # size of a map, and size and alignment of a slot
REPLACING = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")  # targets that have tensormap.replace
MODES = {0: 0, 32: 1, 64: 2, 128: 3}           # bytes of a swizzled row -> mode


# -- creation ----------------------------------------------------------------------------------------------------------

@op("pure", attrs=("map",), traits=Traits(accesses=2))
def tensor_map_(array, slot: Writes, shared, map):
    """A tensor map of `array`. It is a parameter of the kernel or, with `slot`, 128 bytes in that region, edited
    there or in `shared`."""


@tensor_map_.infer
def _(g, array, slot, shared, map):
    return map


@tensor_map_.simulate
def _(m, call, array, slot, shared):
    return m.maps.named_map(call.result.type, array, slot, shared)


@tensor_map_.emit
def _(e, call, array, slot, shared):
    return e.maps.named_map(call.result.type, slot, shared)


def _plan(context, call: Call) -> None:
    """Check that a slot provably begins at a multiple of 128 bytes."""
    slot = call.args[1]
    if slot is None:
        return
    array, starts = buffer_type(slot), context.definition(slot).args[1:]
    nbytes, strides = array.dtype.nbytes, strides_of(array)
    for d, start in enumerate(starts):
        stride = strides[d] * nbytes if isinstance(strides[d], int) else None
        whole_slots = stride is not None and context.divisor(start) * stride % BYTES == 0
        if not whole_slots and stride is None:
            s = strides[d]
            whole_slots = context.facts.ask("stride_multiple", s.arg, s.dim, BYTES // nbytes)
        if not whole_slots:
            raise CompilationError(f"a slot of a tensor map is aligned to {BYTES} bytes, "
                                   f"and dimension {d} of this one is not known to step in multiples of them: "
                                   f"use an array of {BYTES}-byte rows, as in slots[i, 0:{BYTES}] of uint8", call.loc)
    if not context.facts.ask("aligned", array.arg, BYTES):
        raise CompilationError(f"a slot of a tensor map is aligned to {BYTES} bytes, and its array's address is not",
                               call.loc)
    return


tensor_map_.rules.plan = _plan


@builtin
def tensor_map(g: Builder, region, swizzle=0, fill=0, l2_promotion=128, precision=None, slot=None, edit="global"):
    """A tensor map of the array that `region` belongs to. ``tile.copy_async`` copies its boxes, ``m[i:i + N,
    j:j + M]``.

    `region` must begin at 0 in every dimension; its extents give the map's box. They are divided into boxes of at
    most 256 elements in each dimension, with rows of at most `swizzle` bytes (0, 32, 64 or 128: the swizzle of the
    shared buffers that are copied to and from). `fill` (0 or "nan") is what reads out of bounds give, and
    `l2_promotion` (0, 64, 128 or 256) the bytes that L2 fetches. With ``precision="tf32"``, loads round float32 to
    TF32.

    If `region` is patches, as in ``tile.tensor_map(tile.im2col(x, (3, 3))[0:64, 0, 0, 0:32])``, the result is the
    im2col map for copies of as many pixels and channels, by the instructions
    ``tile.ptx.cp_async.bulk.tensor...im2col``. It has no slot.

    Without a `slot`, the launch encodes the map, and it cannot be changed. A slot is 128 bytes of global memory, as
    in ``slots[i, 0:128]``, in which the kernel edits the map (sm_90a and later). ``.seed()`` copies the map that the
    launch encodes, and ``.rebind(...)`` binds it to another array. ``.fence_release(scope)`` and
    ``.fence_acquire(scope)`` must come between the edits and the copies, of this kernel or of a later one. With
    ``edit="shared"``, the map is edited in shared memory, and ``.publish(scope)`` copies it to the slot and releases
    it.

    ``m.dtype`` and ``m.box`` are its element type and box. ``tile.ptx.tensormap...``
    takes `m` as the address of its 128 bytes.
    """
    g.need("a tensor map", 90)
    buffer = getattr(type_of(region), "buffer", None)
    if isinstance(getattr(buffer, "arg", None), Addressed):
        raise g.error("the launch encodes a tensor map, of an array that it is given, and this one is made from an "
                      "address: make a map with slot= of an array argument of its dtype, and bind it, by "
                      "m.rebind(array)")
    if edit not in ("global", "shared"):
        raise g.error(f"edit is 'global' or 'shared', not {edit!r}")
    if slot is None and edit == "shared":
        raise g.error("a tensor map that is edited in shared memory is published to global memory, "
                      "where copies read it: give slot=")
    if slot is None and isinstance(region, ImageMatrix):
        raise g.error("a tensor map of patches needs the pixels and channels of its copies: index the matrix, "
                      "as in x[0:64, 0, 0, 0:32]")
    if slot is None and isinstance(type_of(region), Patches):
        return g.call(tensor_map_, g.definitions[region].args[0], None, None,
                      map=_map_of_patches(g, region, swizzle, fill, l2_promotion, precision))
    array = _checked_whole_array(g, region)
    map_ = _checked_map(g, region.type, swizzle, fill, l2_promotion, precision)
    if slot is None:
        return g.call(tensor_map_, array, None, None, map=map_)
    refuse_packed(g, "a tensor map that the kernel edits", region.type.dtype)
    if g.target not in REPLACING:
        raise g.error("a tensor map that the kernel edits needs tensormap.replace, "
                      f"which exists on {', '.join(REPLACING)} and in no form on {g.target}")
    slot = _checked_slot(g, slot)
    map_ = TensorMap(map_.array, map_.box, map_.swizzle, map_.oob_fill, map_.l2_promotion, map_.stored, edit)
    return g.call(tensor_map_, array, slot, _allocate_map(g) if edit == "shared" else None, map=map_)


def _checked_whole_array(g: Builder, region) -> Value:
    """The array of a region that gives a tensor map's box. CompilationError unless the region begins at 0 in each
    dimension of a whole array."""
    host_born(g, region, "a named tensor map describes boxes of an array")
    if (not isinstance(type_of(region), Region) or type_of(region).scope != "global"
        or type_of(region).buffer.map is not None):
        raise g.error("a tensor map is made from a region of an array that begins at 0, as in A[0:64, 0:64], "
                      f"not {describe(region)}")
    array, *starts = g.definitions[region].args
    if type_as(array, Buffer).narrowed is not None:
        raise g.error("a tensor map has the bounds of a whole array, and this is a window: name the array")
    if any(not isinstance(s, Const) or s.value for s in starts):
        raise g.error("a tensor map covers a whole array: its region gives the box, "
                      "and must begin at 0 in every dimension")
    return as_value(array)


def _allocate_map(g: Builder) -> Value:
    """Shared memory in which the kernel edits a map, allocated at its entry."""
    layout = TileLayout.row_major((BYTES,))
    shared = Value("map", Buffer(uint8, (BYTES,), "shared", layout), g.loc)
    g.hoist(Call(alloc_shared, (), dict(dtype=uint8, shape=(BYTES,), layout=layout, align=BYTES),
                 (shared,), g.loc))
    return shared


def host_born(g: Builder, x, what: str) -> None:
    """CompilationError for patches and for rows by their indices, whose maps the launch makes for each copy."""
    if isinstance(x, ImageMatrix) or isinstance(type_of(x), Patches):
        raise g.error(f"{what}, and these are patches: an im2col map is the launch's, since the corners, "
                      "pixels and channels that make it one have no tensormap.replace, raw or other, on any target. "
                      "Index the matrix in copy_async, which has such a map made for the copy")
    if isinstance(x, Taken) or isinstance(type_of(x), Selected):
        raw = ""
        if g.target != "sm_90a":
            raw = (". tile.ptx.cp_async.bulk.tensor._2d.shared_cta.global_.tile_gather4.mbarrier_complete_tx_bytes "
                   "takes a map of the array with boxes of one row, with nothing checked")
        raise g.error(f"{what}, and these are rows one by one: copy_async has their map made where it is given the "
                      f"rows, with boxes of one row{raw}")


def _checked_map(g: Builder, t: Region, swizzle, fill, l2_promotion, precision) -> TensorMap:
    """The descriptor of a region's array. CompilationError if an option or a fact about the array does not fit."""
    fields = _checked_array(g, t.buffer, swizzle, fill, l2_promotion, precision)
    span = SPAN[MODES[swizzle]] // t.dtype.nbytes if swizzle else MAX_BOX
    box = tuple(_largest_divisor(n, min(MAX_BOX, span) if d == len(t.extents) - 1 else MAX_BOX)
                for d, n in enumerate(t.extents))
    size = t.dtype.nbytes
    for n in box:
        size *= n
    if box[-1] * t.dtype.nbytes % 16:
        raise g.error("rows of a tensor map's box are a multiple of 16 bytes, "
                      f"and {box[-1]} elements of {t.dtype} are not")
    if size > MAX_BOX_BYTES:
        raise g.error(f"a tensor map's box is at most {MAX_BOX_BYTES} bytes, not {size}")
    return TensorMap(t.buffer, box, *fields)


def _map_of_patches(g: Builder, region: Value, swizzle, fill, l2_promotion, precision) -> TensorMap:
    """The descriptor of patches. CompilationError if an option or a fact about the array does not fit."""
    t, at = type_as(region, Patches), g.definitions[region].args[1:]
    window, rank, (rows, channels) = t.window, len(t.buffer.shape), t.extents
    assert window is not None  # patches have one
    fields = _checked_array(g, t.buffer, swizzle, fill, l2_promotion, precision)
    offsets = (0,) * (rank - 2) if window.along is None else (window.halo, 0)
    if [getattr(x, "value", None) for x in at] != [0, *window.lower, 0, *offsets]:
        raise g.error("a tensor map covers whole images: its patches give the pixels and channels of a copy, "
                      "and must begin at pixel 0, place 0 of the filter and channel 0")
    if window.along is not None and g.target not in PAIRED:
        raise g.error(f"a walk along w needs {' or '.join(PAIRED)}, and this is {g.target}")
    if window.along is not None and not swizzle:
        raise g.error("a tensor map for a walk along w has a swizzle: give swizzle=")
    fits = window_fits(window, rank)
    if fits is not True:
        raise g.error(f"a tensor map does not hold this filter: {fits}")
    if not 1 <= window.pixels(rows) <= MAX_PIXELS:
        raise g.error(f"an im2col copy has 1 to {MAX_PIXELS} pixels, along w128 it has 128, and these are {rows}")
    nbytes, limit = channels * t.dtype.nbytes, SPAN[MODES[swizzle]] or MAX_BOX * t.dtype.nbytes
    if nbytes % 16 or nbytes > limit:
        raise g.error(f"the channels of an im2col copy are a multiple of 16 bytes, at most {limit} here, "
                      f"and {channels} of {t.dtype} are {nbytes}")
    return TensorMap(t.buffer, (rows, channels), *fields, window=window)


def _checked_array(g: Builder, array: Buffer, swizzle, fill, l2_promotion, precision) -> tuple[int, int, int, str]:
    """A descriptor's swizzle, fill, promotion and element type. CompilationError if an option or a fact about the
    array does not fit."""
    dtype, ask = array.dtype, g.facts.ask
    if swizzle not in MODES or isinstance(swizzle, bool):
        raise g.error(f"swizzle is 0, 32, 64 or 128 bytes, not {swizzle!r}")
    if l2_promotion not in L2_PROMOTION or isinstance(l2_promotion, bool):
        raise g.error(f"l2_promotion is 0, 64, 128 or 256 bytes, not {l2_promotion!r}")
    nan = fill == "nan" or isinstance(fill, float) and fill != fill
    if not nan and (isinstance(fill, (bool, str)) or fill != 0) or nan and dtype.name not in NAN_FILLED:
        raise g.error(f"fill is 0, or \"nan\" for {', '.join(NAN_FILLED)}, not {fill!r} for {dtype}")
    if precision not in (None, "tf32") or precision and dtype.name != "float32":
        raise g.error(f'precision is "tf32", of a map of float32, or None, not {precision!r} for {dtype}')
    if not 1 <= len(array.shape) <= MAX_RANK:
        raise g.error(f"a tensor map has 1 to {MAX_RANK} dimensions, not {len(array.shape)}")
    if not ask("aligned", array.arg, 16):
        raise g.error("a tensor map's array starts at a multiple of 16 bytes, and this one does not")
    for d, (size, stride) in enumerate(zip(array.shape, strides_of(array))):
        least = size >= 1 if isinstance(size, int) else ask("size_at_least", size.arg, size.dim, 1)
        if not least:
            raise g.error(f"a tensor map's array has elements, and dimension {d} of this one is empty")
        fits = stride == 1 if d == len(array.shape) - 1 else in_steps(stride, dtype.nbytes, ask)
        if not fits:
            needed = "1"
            if d != len(array.shape) - 1:
                needed = f"a multiple of {16 // dtype.nbytes or 1} elements (16 bytes) and not negative"
            raise g.error(f"the stride of dimension {d} of a tensor map's array is {needed}, and this one's is not")
    return (MODES[swizzle], int(nan), L2_PROMOTION[l2_promotion],
            TF32 if precision else STORED_AS.get(dtype.name, dtype.name))


def in_steps(stride: int | Sym, nbytes: int, ask) -> bool:
    if isinstance(stride, int):
        return stride >= 0 and stride * nbytes % 16 == 0
    return (ask("stride_at_least", stride.arg, stride.dim, 0)
            and ask("stride_multiple", stride.arg, stride.dim, max(1, 16 // nbytes)))


def _largest_divisor(extent: int, limit: int) -> int:
    """The largest divisor of an extent that is at most `limit`."""
    return next(n for n in range(min(extent, limit), 0, -1) if extent % n == 0)


def _checked_slot(g: Builder, slot) -> Value:
    t = type_of(slot)
    if not isinstance(t, Region) or t.scope != "global" or t.buffer.map is not None:
        raise g.error(f"a slot is {BYTES} bytes of global memory, as in slots[i, 0:{BYTES}] of uint8, "
                      f"not {describe(slot)}")
    if t.nbytes != BYTES or any(n != 1 for n in t.extents[:-1]) or strides_of(t.buffer)[-1] != 1:
        raise g.error(f"a slot is {BYTES} bytes of global memory without gaps, and this region has {t.nbytes} bytes, "
                      f"{list(t.extents)} of {t.dtype}")
    return slot


# -- regions of a map --------------------------------------------------------------------------------------------------

@op("pure", attrs=("extents", "kept"))
def map_region(map, *starts, extents, kept):
    """A box of the array that a map describes. Copies to and from it use the map."""


@map_region.infer
def _(g, map, *starts, extents, kept):
    t: TensorMap = type_of(map)
    array = t.array
    return Region(Buffer(array.dtype, array.shape, "global", strides=array.strides, arg=array.arg, map=t), extents,
                  kept)


@map_region.simulate
def _(m, call, map_, *starts):
    return m.make_region(call.result.type, map_, starts)


@map_region.emit
def _(e, call, map_, *starts):
    return e.make_region(call.result.type, map_, starts)


def index(g: Builder, m: Value, items: tuple) -> Value:
    """``m[i:i + N, j]``: a box of the map's array, which only ``tile.copy_async`` can read or write."""
    t = type_as(m, TensorMap)
    rank = len(t.array.shape)
    if t.window is not None:
        raise g.error("an im2col map is for the instructions tile.ptx.cp_async.bulk.tensor...im2col: "
                      "index the matrix of the images in copy_async, which has such a map made for the copy")
    if len(items) != rank:
        raise g.error(f"a tensor map is indexed in each of its {rank} dimensions, and {len(items)} were given")
    starts, extents, kept = [], [], []
    for d, item in enumerate(items):
        start = item.start if isinstance(item, slice) else item
        if isinstance(item, slice):
            if item.step not in (None, 1) or item.stop is None:
                raise g.error("a box of a tensor map is written m[start:start + N], with a constant N")
            start = 0 if start is None else start
            extent = g.difference(item.stop, start)
            if extent is None or extent < 1:
                raise g.error("the extent of a slice (stop - start) is a constant of at least 1: "
                              "write it as m[i:i + N, 0:M]")
            kept.append(d)
        else:
            extent = 1
        if not isinstance(at := type_of(start), Scalar) or not at.dtype.is_int:
            raise g.error(f"an index is an integer, not {describe(start)}")
        if d == rank - 1 and t.dtype.packed:
            start, extent = bytes_along(g, item, start, extent, not isinstance(item, slice), t.dtype)
        starts.append(g.operand(start, int32))
        extents.append(extent)
    return g.call(map_region, m, *starts, extents=tuple(extents), kept=tuple(kept))


@attribute(TensorMap, name="dtype")
def _dtype(g, m: Value):
    """The element type."""
    return type_as(m, TensorMap).dtype


@attribute(TensorMap, name="box")
def _box(g, m: Value):
    """The extents of the region that the map was made of, in elements."""
    t = type_as(m, TensorMap)
    return shape_of(t.dtype, t.box)


__all__ = ["index", "tensor_map"]
