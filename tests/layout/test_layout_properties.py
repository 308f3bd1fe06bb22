"""The algebra compared with its definition, over random layouts."""

from itertools import product
from math import prod

import numpy as np
from hypothesis import given, settings, strategies as st
from tilejit.errors import CompilationError
from tilejit.layout import R, S, Swizzle, TileLayout, axis

examples = settings(max_examples=60, deadline=None)

NAMESPACE = {"S": S, "R": R, "axis": axis, "Swizzle": Swizzle}
AXES = ("m", "laneid", "warpid", "reg", "TLane", "TCol")
extents_lists = st.lists(st.integers(1, 6), min_size=1, max_size=4)
swizzles = st.one_of(st.none(), st.builds(lambda m, b, gap, inner: Swizzle(m, b, b + gap, inner),
                                          st.integers(0, 4), st.integers(0, 3), st.integers(0, 2), st.booleans()))


@st.composite
def layouts(draw, axes=AXES):
    shards = [(e, draw(st.integers(0, 40)), draw(st.sampled_from(axes))) for e in draw(extents_lists)]
    replicas = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40), st.sampled_from(axes)), max_size=2))
    offset = draw(st.dictionaries(st.sampled_from(axes), st.integers(-20, 20), max_size=2))
    return TileLayout(shards, replicas, offset, draw(swizzles))


@st.composite
def permuted(draw, pad=False):
    """A layout that maps at most one element to each address: row-major extents in another order."""
    extents = draw(extents_lists)
    strides, reached = [0] * len(extents), 1
    for i in draw(st.permutations(range(len(extents)))):
        strides[i] = reached
        reached *= extents[i] + (draw(st.integers(0, 2)) if pad else 0)
    return TileLayout(list(zip(extents, strides)))


def factors(n: int) -> list[int]:
    return [d for d in range(2, n + 1) if n % d == 0 and all(d % q for q in range(2, d))]


@st.composite
def shapes_of(draw, size: int):
    shape = []
    while size > 1:
        entry = 1
        for _ in range(draw(st.integers(1, 3))):
            entry *= draw(st.sampled_from(factors(size // entry))) if size // entry > 1 else 1
        shape.append(entry)
        size //= entry
    shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


def by_definition(layout: TileLayout, index: int) -> dict:
    """L(x) of the first replica, straight from the definition."""
    at = {str(name): value for name, value in layout.offset.items()}
    for k, (extent, stride, along) in enumerate(layout.shards):
        digit = index // prod(layout.extents[k + 1:]) % extent
        at[str(along)] = at.get(str(along), 0) + digit * stride
    if layout.swizzle and "m" in at:
        m, (M, B, S_) = at["m"], (layout.swizzle.per_element, layout.swizzle.swizzle_len, layout.swizzle.atom_len)
        x, low = m >> M, m & ((1 << M) - 1)
        x ^= (x & ((1 << B) - 1) << S_) >> S_ if layout.swizzle.inner else (x & ((1 << B) - 1)) << S_
        at["m"] = x << M | low
    return at


def image(layout: TileLayout, index: int) -> set:
    """All positions of an element, replicas included, without the swizzle."""
    plain = by_definition(layout.without_swizzle(), index)
    places = set()
    for steps in product(*(range(extent) for extent, _, _ in layout.replicas)):
        at = dict(plain)
        for step, (_, stride, along) in zip(steps, layout.replicas):
            at[str(along)] = at.get(str(along), 0) + step * stride
        places.add(tuple(sorted((name, value) for name, value in at.items() if value)))
    return places


def offsets_of(layout: TileLayout) -> np.ndarray:
    """The memory offset of every element."""
    return np.broadcast_to(layout.offset_of(np.arange(layout.size())), (layout.size(),))


def same_values(found: dict, expected: dict) -> bool:
    return all(found.get(name, 0) == expected.get(name, 0) for name in {*found, *expected})


@examples
@given(layouts(), st.data())
def test_apply_matches_the_definition_for_indices_of_every_shape(layout, data):
    shape = data.draw(shapes_of(layout.size()))
    for index in range(layout.size()):
        expected = by_definition(layout, index)
        assert same_values(layout.apply(index), expected)
        coord = [int(c) for c in np.unravel_index(index, shape)]
        assert same_values(layout.apply(*coord, shape=shape), expected)


@examples
@given(layouts(), st.data())
def test_apply_gives_the_same_for_arrays_as_for_ints(layout, data):
    shape = data.draw(shapes_of(layout.size()))
    arrays = layout.apply(*np.indices(shape), shape=shape)
    for index, coord in enumerate(np.ndindex(*shape)):
        single = layout.apply(*coord, shape=shape)
        assert all(np.broadcast_to(arrays[name], shape)[coord] == value for name, value in single.items())


class Emitted:
    """A value that supports only the arithmetic of emitted code."""

    def __init__(self, value, log):
        self.value, self.log = value, log

    def __bool__(self):
        raise AssertionError("emitted values have no truth")

    __eq__ = __lt__ = __gt__ = __index__ = __bool__
    __hash__ = None


for _name in ("add", "sub", "mul", "floordiv", "mod", "xor", "and", "or", "lshift", "rshift"):
    def _operate(self, other, _method=f"__{_name}__"):
        self.log.append(_method)
        value = other.value if isinstance(other, Emitted) else other
        return Emitted(getattr(self.value, _method)(value), self.log)
    setattr(Emitted, f"__{_name}__", _operate)


@examples
@given(layouts(), st.data())
def test_index_arithmetic_runs_unchanged_on_emitted_values(layout, data):
    shape = data.draw(shapes_of(layout.size()))
    index, log = data.draw(st.integers(0, layout.size() - 1)), []
    coord = [int(c) for c in np.unravel_index(index, shape)]
    emitted = layout.apply(*(Emitted(c, log) for c in coord), shape=shape)
    plain = {name: value.value if isinstance(value, Emitted) else value for name, value in emitted.items()}
    assert same_values(plain, by_definition(layout, index))


@examples
@given(permuted(pad=True))
def test_coordinates_given_per_shard_need_no_division(layout):
    log = []
    layout.offset_of(*(Emitted(0, log) for _ in layout.extents), shape=layout.extents)
    assert not {"__floordiv__", "__mod__", "__rshift__", "__and__"} & set(log)


@examples
@given(layouts())
def test_the_printed_form_evaluates_to_the_layout(layout):
    assert eval(repr(layout), NAMESPACE) == layout
    assert hash(eval(repr(layout), NAMESPACE)) == hash(layout)


@examples
@given(layouts())
def test_canonicalize_preserves_the_map_and_is_idempotent(layout):
    canonical = layout.canonicalize()
    assert canonical.canonicalize() == canonical
    assert len(canonical.shards) <= len(layout.shards)
    assert all(image(canonical, x) == image(layout, x) for x in range(layout.size()))


@examples
@given(permuted(pad=True), st.data())
def test_group_preserves_the_map_and_splits_shards_at_the_shape(layout, data):
    shape = data.draw(st.sampled_from([layout.extents, (layout.size(),), layout.canonicalize().extents]))
    finer = tuple(f for n in shape for f in data.draw(shapes_of(n)))
    for target in (shape, finer):
        try:
            grouped, separators = layout.group(target)
        except CompilationError:
            assert target == finer
            continue
        assert len(separators) == len(target) + 1 and separators[-1] == len(grouped.shards)
        assert [prod(grouped.extents[a:b]) for a, b in zip(separators, separators[1:])] == list(target)
        assert all(same_values(by_definition(grouped, x), by_definition(layout, x)) for x in range(layout.size()))


@examples
@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3), st.data())
def test_group_many_splits_power_of_two_shapes_consistently(extents, data):
    layout = TileLayout.row_major(extents)
    shapes = [data.draw(shapes_of(layout.size())) for _ in range(3)]
    grouped, many = layout.group_many(shapes)
    for shape, separators in zip(shapes, many):
        assert [prod(grouped.extents[a:b]) for a, b in zip(separators, separators[1:])] == list(shape)
    assert all(same_values(by_definition(grouped, x), by_definition(layout, x)) for x in range(layout.size()))


@examples
@given(st.one_of(permuted(pad=True), layouts()), st.data())
def test_a_slice_is_the_layout_of_its_region(layout, data):
    shape = data.draw(st.sampled_from([layout.extents, layout.canonicalize().extents, (layout.size(),)]))
    region = []
    for n in shape:
        start = data.draw(st.integers(0, n - 1))
        region.append((start, data.draw(st.integers(1, n - start))))
    cut = layout.slice(shape, region)
    if cut is None:
        assert shape == (layout.size(),) and len(layout.shards) > 1
        return
    within = tuple(extent for _, extent in region)
    for coord in np.ndindex(*within):
        there = [start + int(c) for (start, _), c in zip(region, coord)]
        expected = by_definition(layout, int(np.ravel_multi_index(there, shape)))
        assert same_values(cut.apply(*map(int, coord), shape=within), expected)


@examples
@given(st.lists(st.integers(1, 6), min_size=2, max_size=3), st.data())
def test_a_region_is_refused_only_if_no_combination_of_shards_can_express_it(extents, data):
    layout = TileLayout([(e, 100**i) for i, e in enumerate(extents)])
    start = data.draw(st.integers(0, layout.size() - 1))
    extent = data.draw(st.integers(1, layout.size() - start))
    if layout.slice((layout.size(),), ((start, extent),)) is None:
        inner = extents[-1]
        assert start // inner != (start + extent - 1) // inner           # it crosses a shard boundary
        assert start % inner or extent % inner or len(extents) > 2       # and does not consist of whole inner runs


@examples
@given(layouts(), st.data())
def test_permute_reorders_the_coordinates(layout, data):
    order = data.draw(st.permutations(range(len(layout.shards))))
    moved = layout.permute(order)
    for coord in np.ndindex(*layout.extents):
        assert same_values(moved.apply(*(coord[i] for i in order), shape=moved.extents),
                           layout.apply(*coord, shape=layout.extents))


@examples
@given(permuted(), permuted())
def test_tiling_repeats_the_inner_tile_at_the_positions_of_the_outer_one(inner, outer):
    rank = max(len(inner.extents), len(outer.extents))
    inner_shape = (1,) * (rank - len(inner.extents)) + inner.extents
    outer_shape = (1,) * (rank - len(outer.extents)) + outer.extents
    tiled = inner.tile(outer, outer_shape, inner_shape)
    shape = tuple(o * i for o, i in zip(outer_shape, inner_shape))
    coords = np.indices(shape)
    low = 0 * coords[0] + inner.offset_of(*(c % n for c, n in zip(coords, inner_shape)), shape=inner_shape)
    high = outer.offset_of(*(c // n for c, n in zip(coords, inner_shape)), shape=outer_shape)
    assert (tiled.offset_of(*coords, shape=shape) == low + high * inner.span()).all()
    summed = inner.direct_sum(outer, outer_shape, inner_shape)
    assert (summed.offset_of(*coords, shape=shape) == low + high).all()


@examples
@given(permuted())
def test_the_inverse_maps_every_position_back_to_its_element(layout):
    inverse = layout.inverse()
    index = np.arange(layout.size())
    assert (inverse.offset_of(layout.offset_of(index)) == index).all()
    assert (layout.offset_of(inverse.offset_of(index)) == index).all()
    assert inverse.compose(layout).is_trivial and layout.compose(inverse).is_trivial


@examples
@given(permuted(pad=True), permuted(pad=True), st.integers(0, 9))
def test_composition_is_one_layout_after_the_other_or_an_error(outer, inner, start):
    inner = inner + start
    try:
        composed = outer.compose(inner)
    except CompilationError:
        return
    for index in range(inner.size()):
        assert composed.offset_of(index) == outer.offset_of(inner.offset_of(index))


@examples
@given(permuted(pad=True), st.sampled_from([1, 2, 4, 8]))
def test_pack_undoes_unpack(layout, n):
    parts = layout.unpack(n)
    index = np.arange(parts.size())
    assert (offsets_of(parts) == layout.offset_of(index // n) * n + index % n).all()
    assert parts.pack(n).canonicalize() == layout.canonicalize()
    swizzled = parts.with_swizzle(Swizzle(4, 2, 3))
    assert (swizzled.pack(n).offset_of(index // n) == offsets_of(swizzled) // n).all()


@examples
@given(permuted(pad=True), st.integers(0, 32), swizzles)
def test_a_contiguous_run_is_contiguous_from_every_start(layout, start, swizzle):
    layout = (layout + start).with_swizzle(swizzle)
    run = layout.contiguous_run()
    rows = offsets_of(layout).reshape(-1, run)
    assert (rows == rows[:, :1] + np.arange(run)).all()
    if swizzle is None and run < layout.size():
        larger = next(n for n in range(run + 1, layout.size() + 1) if layout.size() % n == 0)
        rows = offsets_of(layout).reshape(-1, larger)
        assert not (rows == rows[:, :1] + np.arange(larger)).all()


@examples
@given(st.one_of(permuted(), permuted(pad=True)), st.integers(0, 64), swizzles)
def test_a_compact_layout_fills_its_range_of_memory(layout, start, swizzle):
    layout = (layout + start).with_swizzle(swizzle)
    offsets = np.sort(offsets_of(layout))
    assert offsets[-1] < layout.span()
    if layout.is_compact:
        assert (offsets == np.arange(start, start + layout.size())).all()
    elif swizzle is None:
        assert not (offsets == np.arange(start, start + layout.size())).all()
