"""`TileLayout`: a map from a logical index to coordinates on named axes, with its algebra and its short form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import EllipsisType
from typing import Any, ClassVar

from ..concurrency import cached_property
from ..errors import CompilationError
from ..frames import hide_own_frames
from ..lazy import Lazy
from . import composition, shards as _shards, units
from .axes import (
    AXES,
    Axis,
    OnAxis,
    Replicas,
    as_axis,
    as_shards,
    as_whole_number,
    axis,
    format_shards,
    row_major_strides,
    shards_of,
)
from .indexing import IndexPlan, add, evaluate, index_plan
from .swizzle import Swizzle

drawing = Lazy("tilejit.layout.draw")  # loads NumPy


@dataclass(frozen=True, init=False, repr=False)
class TileLayout:
    """Where each element of a tile is: ``L(x) = swizzle({ D(x) + r + offset : r in replicas })``.

    The logical index x (row-major) is split into digits by the `shards`, which are (extent, stride, axis)
    triples, outermost first; D(x) adds each digit times its stride to the shard's axis. `replicas`, also
    (extent, stride, axis), give further places of the same element. `offset` is {axis: value}. The `swizzle`
    permutes the coordinate on axis ``m``, after the offset has been added. On the axes ``m`` and ``reg``,
    strides and offsets count elements. Extents and strides are ints; for global memory they may be symbols.

    The short form is ``S[(8, 64):(64, 1)]`` (``S[8, 64]`` is row-major), ``S[(4, 8):(1 @ axis.warpid, 4 @
    axis.laneid)]``, ``+ R[4 : 32 @ axis.TLane]``, ``+ 5 @ axis.warpid``, ``Swizzle(3, 3, 3) @ ...``; `repr`
    returns it.
    """

    shards: _shards.Shards
    replicas: _shards.Shards
    offsets: tuple[tuple[Axis, Any], ...]  # the offset's items, in the order of AXES
    swizzle: Swizzle | None

    # the shape of the tile, and the bits of an element, that the layout was made for: a picture's defaults, which take
    # no part in comparisons
    made_for: ClassVar[tuple[tuple[int, ...], int | None] | None] = None

    __array_ufunc__ = None  # so that `n + layout` with a NumPy integer calls __radd__

    def __init__(self, shards: Iterable[Any], replicas: Iterable[Any] = (), offset: Mapping[Any, Any] | None = None,
                 swizzle: Swizzle | None = None):
        if swizzle is not None and not isinstance(swizzle, Swizzle):
            raise CompilationError(f"swizzle= takes a Swizzle(per_element, swizzle_len, atom_len), found {swizzle!r}")
        if offset is not None and not isinstance(offset, dict):
            raise CompilationError(f"offset= takes a dict of {{axis: value}}, found {offset!r}")
        offset = {as_axis(name): as_whole_number(value) for name, value in (offset or {}).items()}
        named = ((name, offset[name]) for name in AXES if name in offset)
        kept = tuple((name, value) for name, value in named if not (isinstance(value, int) and value == 0))
        object.__setattr__(self, "shards", as_shards(shards))
        object.__setattr__(self, "replicas", as_shards(replicas))
        object.__setattr__(self, "offsets", kept)
        object.__setattr__(self, "swizzle", swizzle)

    @staticmethod
    def row_major(shape: Iterable[Any]) -> TileLayout:
        """Memory with the last dimension innermost and no gaps."""
        return TileLayout.strided(shape, row_major_strides(tuple(shape)))

    @staticmethod
    def strided(shape: Iterable[Any], strides: Iterable[Any]) -> TileLayout:
        """Memory with one stride per dimension, in elements."""
        shape, strides = tuple(shape), tuple(strides)
        if len(shape) != len(strides):
            raise CompilationError(f"{len(shape)} extents {shape} need as many strides, found {strides}")
        return TileLayout([(extent, stride, axis.m) for extent, stride in zip(shape, strides)])

    # ---- what it is ----

    @property
    def offset(self) -> dict[Axis, Any]:
        """The offset as {axis: value}, without zeros."""
        return dict(self.offsets)

    @property
    def extents(self) -> tuple[Any, ...]:
        """The extents of the shards."""
        return tuple(extent for extent, _, _ in self.shards)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that the layout uses, from the CTA inwards, memory last."""
        used = {s[2] for s in self.shards + self.replicas} | {name for name, _ in self.offsets}
        return tuple(name for name in AXES if name in used)

    def size(self, axis: str | None = None) -> Any:
        """The number of logical elements, or, with an axis, the product of the extents of the shards on it."""
        wanted = None if axis is None else as_axis(axis)
        return prod(extent for extent, _, along in self.shards if wanted in (None, along))

    def span(self, axis: str = axis.m) -> Any:
        """The largest coordinate on an axis plus 1, including replicas and offset.

        In swizzled memory it is rounded up to whole blocks of the swizzle (see `Swizzle.block`).
        """
        wanted = as_axis(axis)
        last = self.offset.get(wanted, 0)
        for extent, stride, along in self.shards + self.replicas:
            if along == wanted and not (isinstance(stride, int) and stride < 0):
                last = last + (extent - 1) * stride
        if self.swizzle and wanted == "m":
            return (last // self.swizzle.block + 1) * self.swizzle.block
        return last + 1

    @property
    def is_trivial(self) -> bool:
        """Whether the memory offset of each element is its logical index."""
        return self.is_contiguous and not self.offsets

    @property
    def is_contiguous(self) -> bool:
        """Whether consecutive elements are at consecutive memory offsets, from any first offset on."""
        if self.replicas or self.swizzle or any(name != "m" for name in self.axes):
            return False
        fused = _shards.fuse(self.shards)
        return not fused or _shards.is_same(fused[0][0], 1) or len(fused) == 1 and _shards.is_same(fused[0][1], 1)

    @property
    def is_compact(self) -> bool:
        """Whether the elements fill a gap-free range of memory in any order, each offset once. They may be swizzled."""
        ordinary = [i for i, (extent, _, _) in enumerate(self.shards) if not _shards.is_same(extent, 1)]
        if self.replicas or sorted(self.longest_chain()) != ordinary or any(name != "m" for name in self.axes):
            return False
        block = self.swizzle.block if self.swizzle else 1
        return self.size() % block == 0 and _shards.known_multiple(self.offset.get(axis.m, 0), block)

    # ---- the map ----

    def apply(self, *coord: Any, shape: Iterable[Any] | None = None) -> dict[Axis, Any]:
        """The coordinates of an element (its first replica) on every axis, as {axis: value}.

        `coord` is a coordinate in `shape`; without `shape`, it is one logical index, or one entry per shard.
        Entries must be in range. They may be ints, NumPy arrays or anything with + * // % ^ & << >>. On an
        axis with constant coordinates, the value is an int.
        """
        plan = self._plan(len(coord), shape)
        values = dict.fromkeys(self.axes, 0)
        values.update(evaluate(plan, tuple(coord)))
        for name, value in self.offsets:
            values[name] = add(values[name], value)
        if self.swizzle and axis.m in values:
            values[axis.m] = self.swizzle.apply(values[axis.m])
        return values

    def offset_of(self, *coord: Any, shape: Iterable[Any] | None = None) -> Any:
        """The memory offset of an element, in elements, after the swizzle."""
        return self.apply(*coord, shape=shape).get(axis.m, 0)

    def is_linear(self, shape: Sequence[Any]) -> bool:
        """Whether the memory offset is a sum of the coordinates in `shape`, each times a constant stride."""
        _, terms = self._plan(len(shape), shape)
        return self.swizzle is None and all(divisor == 1 and modulus is None for _, divisor, modulus, _, _ in terms)

    def _plan(self, entries: int, shape: Iterable[Any] | None) -> IndexPlan:
        if shape is None:
            shape = (self.size(),) if entries == 1 else self.extents
        shape = tuple(as_whole_number(n) for n in shape)
        if entries != len(shape):
            raise CompilationError(f"{entries} coordinates for the {len(shape)} dimensions {shape} of {self}")
        self._check_shape(shape)
        return index_plan(self.shards, shape)

    def _check_shape(self, shape: tuple[Any, ...]) -> None:
        if any(isinstance(n, int) and n < 1 for n in shape):
            raise CompilationError(f"the extents of a shape are at least 1, found {shape}")
        if all(isinstance(n, int) for n in shape + self.extents) and prod(shape) != self.size():
            raise CompilationError(f"shape {shape} has {prod(shape)} elements, {self} has {self.size()}")

    def inverse(self, axes: Iterable[str] | None = None) -> TileLayout:
        """The layout that maps coordinates back to the logical index, on axis ``m``.

        Its own logical index is row-major over `axes` (by default, all that this layout uses, in the order of the
        property `axes`). It exists if the layout fills a box of coordinates without gaps, offset or swizzle;
        coordinates of replicas map to the same element.
        """
        return composition.inverse(self, self.axes if axes is None else tuple(as_axis(name) for name in axes))

    def compose(self, other: TileLayout) -> TileLayout:
        """The layout x -> self(other(x)), where `other` maps to logical indices of this layout on axis ``m``.

        Raises CompilationError unless the result is exact: the steps of `other` must be whole digits of this
        layout, without carries.
        """
        return composition.compose(self, other)

    # ---- other layouts from it ----

    def _replace(self, shards: Iterable[Any] | None = None, replicas: Iterable[Any] | None = None,
                 offset: Mapping[Any, Any] | None = None, swizzle: Swizzle | None | EllipsisType = ...) -> TileLayout:
        return TileLayout(self.shards if shards is None else shards,
                          self.replicas if replicas is None else replicas,
                          self.offset if offset is None else offset,
                          self.swizzle if swizzle is ... else swizzle)

    def with_swizzle(self, swizzle: Swizzle | None) -> TileLayout:
        """The same layout with another swizzle, or without one (None)."""
        return self._replace(swizzle=swizzle)

    def without_swizzle(self) -> TileLayout:
        """The same layout without its swizzle."""
        return self._replace(swizzle=None)

    def without_offset(self) -> TileLayout:
        """The same layout with offset 0 on every axis."""
        return self._replace(offset={})

    def __add__(self, other: Any) -> TileLayout:
        """Add replicas, an offset ``n @ axis``, or a number as an offset in memory.
        Offsets apply before the swizzle."""
        if isinstance(other, Replicas):
            return self._replace(replicas=self.replicas + other.shards)
        if isinstance(other, (TileLayout, Swizzle)):
            return NotImplemented
        along, value = (other.axis, other.value) if isinstance(other, OnAxis) else (axis.m, as_whole_number(other))
        return self._replace(offset={**self.offset, along: add(self.offset.get(along, 0), value)})

    __radd__ = __add__

    def canonicalize(self) -> TileLayout:
        """The same map in its shortest form: without unit shards, adjacent shards merged, replicas sorted."""
        replicas = [s for s in self.replicas if not _shards.is_same(s[0], 1)]
        if all(isinstance(stride, int) for _, stride, _ in replicas):
            replicas.sort(key=lambda s: (AXES.index(s[2]), -s[1], s[0]))
        shards = _shards.fuse(self.shards)
        if len(shards) == 1 and _shards.is_same(shards[0][0], 1):
            shards = ((1, 1, shards[0][2]),)
        return self._replace(shards=shards, replicas=_shards.fuse(tuple(replicas)))

    def group(self, shape: Iterable[Any]) -> tuple[TileLayout, tuple[int, ...]]:
        """Split shards such that each dimension of `shape` is a run of whole shards: (layout, separators).

        Dimension i consists of the shards ``separators[i]`` to ``separators[i + 1] - 1``.
        """
        shape = tuple(as_whole_number(n) for n in shape)
        self._check_shape(shape)
        grouped = _shards.group(self.shards, shape)
        if grouped is None:
            raise CompilationError(f"{self} cannot be grouped by {shape}: a cut does not divide a shard")
        return self._replace(shards=grouped[0]), grouped[1]

    def group_many(self, shapes: Iterable[Iterable[Any]]) -> tuple[TileLayout, list[tuple[int, ...]]]:
        """Group by the coarsest common refinement of several shapes: (layout, separators for each shape)."""
        wanted = tuple(tuple(as_whole_number(n) for n in shape) for shape in shapes)
        for shape in wanted:
            self._check_shape(shape)
        common = _shards.refine(wanted)
        if common is None:
            listed = ", ".join(map(str, wanted))
            raise CompilationError(f"{listed} have no common refinement: their boundaries do not divide one another")
        layout, _ = self.group(common)
        return layout, [_shards.separators_of(layout.extents, shape) for shape in wanted]

    def dims(self, shape: Iterable[Any]) -> tuple[_shards.Shards, ...]:
        """The shards of each dimension of `shape`."""
        layout, at = self.group(shape)
        return tuple(layout.shards[low:high] for low, high in zip(at, at[1:]))

    def slice(self, shape: Iterable[Any], region: Iterable[Any],
              divides: _shards.Divides | None = None) -> TileLayout | None:
        """The layout of a region, given as (start, extent) per dimension of `shape`; None if the region has no layout.

        A start may be symbolic; `divides(start, n)` then says whether it is known to be a multiple of n. Bounds
        are not checked: a region may extend beyond the outermost shard of a dimension.
        """
        shape, region = tuple(shape), tuple(region)
        if len(region) != len(shape) or any(not isinstance(r, (tuple, list)) or len(r) != 2 for r in region):
            raise CompilationError(f"a region of shape {shape} is a (start, extent) per dimension, found {region}")
        shards: list[_shards.Shard] = []
        offset = self.offset
        for dim, (start, extent) in zip(self.dims(shape), region):
            start, extent = as_whole_number(start), as_whole_number(extent)
            if not isinstance(extent, int) or extent < 1:
                raise CompilationError(f"the extents of a region are positive ints, found {extent!r} in {region}")
            cut = _shards.slice_dim(dim, start, extent, divides)
            if cut is None:
                return None
            shards += cut[0]
            for along, value in cut[1].items():
                offset[along] = add(offset.get(along, 0), value)
        return self._replace(shards=shards, offset=offset)

    def permute(self, dims: Iterable[int], shape: Iterable[Any] | None = None) -> TileLayout:
        """Reorder the dimensions of `shape` (by default, one per shard): dimension i of the result is `dims[i]`."""
        layout, separators = self.group(self.extents if shape is None else shape)
        return layout.permute_groups(separators, dims)

    def permute_groups(self, separators: Sequence[int], order: Iterable[int]) -> TileLayout:
        """Reorder the groups of shards between `separators`: group i of the result is `order[i]`."""
        order = tuple(order)
        if sorted(order) != list(range(len(separators) - 1)):
            raise CompilationError(f"{order} is not an order of {len(separators) - 1} dimensions")
        return self._replace(shards=[s for i in order for s in self.shards[separators[i]:separators[i + 1]]])

    def tile(self, outer: TileLayout, outer_shape: Iterable[Any], inner_shape: Iterable[Any]) -> TileLayout:
        """Repeat this tile according to `outer`, whose strides count whole tiles.

        The result has shape `outer_shape` times `inner_shape`.
        """
        shards, replicas = [[(extent, stride * self.span(along), along) for extent, stride, along in part]
                            for part in (outer.shards, outer.replicas)]
        offset = {along: value * self.span(along) for along, value in outer.offset.items()}
        return self.direct_sum(TileLayout(shards, replicas, offset, outer.swizzle), outer_shape, inner_shape)

    def tile_to(self, to: Iterable[Any], current: Iterable[Any]) -> TileLayout:
        """Repeat this tile of shape `current` in row-major order until it fills shape `to`."""
        to, current = tuple(to), tuple(current)
        if len(to) != len(current) or any(c < 1 or n % c for n, c in zip(to, current)):
            raise CompilationError(f"tiles of shape {current} do not fill shape {to}")
        outer = tuple(n // c for n, c in zip(to, current))
        return self.tile(TileLayout.row_major(outer), outer, current)

    def direct_sum(self, outer: TileLayout, outer_shape: Iterable[Any], inner_shape: Iterable[Any]) -> TileLayout:
        """For each dimension, the shards of `outer` followed by those of this layout, with unchanged strides."""
        if outer.swizzle:
            raise CompilationError(f"the outer layout of a tiling is plain, found {outer}")
        outer_dims, inner_dims = outer.dims(outer_shape), self.dims(inner_shape)
        if len(outer_dims) != len(inner_dims):
            raise CompilationError(f"shapes {tuple(outer_shape)} and {tuple(inner_shape)} differ in rank")
        offset = self.offset
        for along, value in outer.offsets:
            offset[along] = add(offset.get(along, 0), value)
        shards = [s for pair in zip(outer_dims, inner_dims) for dim in pair for s in dim]
        return self._replace(shards, outer.replicas + self.replicas, offset).canonicalize()

    def broadcast(self, n: int, pos: int) -> TileLayout:
        """Insert a shard of extent `n` and stride 0 at position `pos`."""
        return self._replace(shards=(*self.shards[:pos], (n, 0, axis.m), *self.shards[pos:]))

    def pack(self, n: int, along: str = axis.m) -> TileLayout:
        """The layout of groups of `n` elements adjacent on an axis; strides on that axis then count groups."""
        return units.pack(self, n, as_axis(along))

    def unpack(self, n: int, along: str = axis.m) -> TileLayout:
        """The layout of the `n` parts of each element, adjacent on an axis; strides on that axis then count parts."""
        return units.unpack(self, n, as_axis(along))

    # ---- runs ----

    def contiguous_run(self, divides: _shards.Divides | None = None) -> int:
        """The length of aligned runs of elements that are at consecutive memory offsets.

        With length n, these are the elements [k*n, (k+1)*n) for every k. A swizzle limits n to elements that it keeps
        together. `divides(value, n)` says whether a symbolic stride or offset is known to be a multiple of n.
        """
        fused = _shards.fuse(self.shards)
        run, stride, along = fused[-1] if fused else (1, 1, axis.m)
        if along != "m" or not _shards.is_same(stride, 1) or not isinstance(run, int):
            return 1
        if self.swizzle and self.swizzle.swizzle_len:
            starts = [s[1] for s in fused[:-1] + self.replicas if s[2] == "m"] + [self.offset.get(axis.m, 0)]
            run = max(n for n in (1 << bit for bit in range(self.swizzle.per_element + 1))
                      if run % n == 0 and all(_shards.known_multiple(start, n, divides) for start in starts))
        return run

    def longest_chain(self, other: TileLayout | None = None) -> tuple[int, ...]:
        """The positions of the shards that step through memory without gaps, innermost first.

        The first has stride 1, and each other one the product of the extents before it. Unit extents and the
        swizzle are ignored. With `other`, a layout of equal extents, the longest chain common to both.
        """
        chain = _shards.chain(self.shards)
        if other is None:
            return chain
        if self.extents != other.extents:
            raise CompilationError(f"a common chain needs equal extents, found {self.extents} and {other.extents}")
        common = []
        for mine, theirs in zip(chain, _shards.chain(other.shards)):
            if mine != theirs:
                break
            common.append(mine)
        return tuple(common)

    # ---- for people ----

    def made_for_tile(self, shape: Iterable[Any], bits: int | None = None) -> TileLayout:
        """The same layout, which draws itself for a tile of `shape` with elements of `bits` bits."""
        new = self._replace()
        object.__setattr__(new, "made_for", (tuple(shape), bits))
        return new

    @hide_own_frames
    def draw(self, shape: Iterable[Any] | None = None, bits: int | None = None) -> str:
        """An SVG picture of the tile's elements, with the place of each; see `tilejit.layout.draw.draw`."""
        picture: str = drawing.draw(self, shape, bits)
        return picture

    @hide_own_frames
    def draw_banks(self, shape: Iterable[Any] | None = None, bits: int | None = None) -> str:
        """An SVG picture of the banks of shared memory, with the elements in each; see
        `tilejit.layout.draw.draw_banks`."""
        picture: str = drawing.draw_banks(self, shape, bits)
        return picture

    def _repr_svg_(self) -> str:
        return self.draw()

    def __repr__(self) -> str:
        parts = [f"S[{format_shards(self.shards)}]"]
        parts += [repr(Replicas(self.replicas))] if self.replicas else []
        parts += [repr(OnAxis(value, name)) for name, value in self.offsets]
        text = " + ".join(parts)
        if self.swizzle is None:
            return text
        return f"{self.swizzle!r} @ {text}" if len(parts) == 1 else f"{self.swizzle!r} @ ({text})"


class ShardForm:
    """``S[extents:strides]``, or ``S[extents]`` for row-major memory."""

    @hide_own_frames
    def __getitem__(self, key: Any) -> TileLayout:
        return TileLayout(shards_of(key))


S = ShardForm()
row_major = TileLayout.row_major
strided = TileLayout.strided
