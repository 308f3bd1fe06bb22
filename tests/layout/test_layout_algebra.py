"""Layouts by example: the short notation, queries, and errors."""

import pickle

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError, TileError
from tilejit.layout import Axis, R, S, Swizzle, TileLayout, axis, row_major, standard_layout, strided


def test_the_short_notation_stands_for_triples():
    assert S[(8, 64):(64, 1)] == TileLayout([(8, 64, "m"), (64, 1, "m")])
    assert S[4, 6] == S[(4, 6):(6, 1)] == row_major((4, 6)) == strided((4, 6), (6, 1))
    assert S[512:1] == TileLayout([(512, 1)])
    lanes = S[(4, 8):(1 @ axis.warpid, 4 @ axis.laneid)] + R[4 : 32 @ axis.TLane] + 5 @ axis.warpid + 7
    assert lanes == TileLayout([(4, 1, "warpid"), (8, 4, axis.laneid)], [(4, 32, "TLane")], {"warpid": 5, "m": 7})
    assert (Swizzle(3, 3, 3) @ S[512:1]).swizzle == Swizzle(3, 3, 3)


def test_a_layout_prints_as_it_is_written():
    assert repr(S[(8, 64):(64, 1)]) == "S[(8, 64):(64, 1)]"
    assert repr(S[4, 6]) == "S[(4, 6):(6, 1)]"
    assert repr(S[16 : 4 @ axis.laneid] + R[4 : 32 @ axis.TLane]) == "S[16 : 4 @ axis.laneid] + R[4 : 32 @ axis.TLane]"
    assert repr(Swizzle(3, 3, 3) @ (S[64:1] + 512)) == "Swizzle(3, 3, 3) @ (S[64:1] + 512)"


def test_axes_are_identified_by_their_names():
    assert axis.laneid == "laneid" and {axis.m: 1} == {"m": 1}
    assert isinstance(axis.reg, Axis) and repr(axis.reg) == "axis.reg"
    assert repr(4 @ axis.laneid) == "4 @ axis.laneid"
    assert S[8 : np.int64(4) @ axis.laneid] == S[8 : 4 @ axis.laneid]


def test_layouts_compare_by_value():
    layout = Swizzle(3, 2, 3) @ (S[(8, 32):(32, 1)] + R[2:1024] + 16)
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert len({layout, pickle.loads(pickle.dumps(layout)), S[8, 32]}) == 2
    assert TileLayout([(4, 1)], offset={"m": 0}) == S[4:1]
    with pytest.raises(AttributeError):
        layout.shards = ()


def test_an_offset_is_added_before_the_swizzle():
    swizzle = Swizzle(3, 3, 3)
    layout = swizzle @ (S[(8, 64):(64, 1)] + 64)
    assert layout.offset_of(3, 17, shape=(8, 64)) == swizzle.apply(64 + 3 * 64 + 17)
    assert layout.offset == {"m": 64}


def test_a_128_byte_swizzle_of_16_bit_elements_is_the_textbook_formula():
    layout = standard_layout(16, (8, 64), 128)
    i, k = np.mgrid[:8, :64]
    assert (layout.offset_of(i, k, shape=(8, 64)) == 64 * i + 8 * ((k // 8) ^ i) + k % 8).all()


def test_mode_0_is_row_major_if_a_row_is_not_a_multiple_of_16_bytes():
    assert standard_layout(16, (8, 12), 0) == S[8, 12] and standard_layout(16, (8, 12), 0).is_trivial
    assert not standard_layout(16, (8, 16), 0).is_trivial


@pytest.mark.parametrize("arguments", [
    (16, (8, 60), 128), (16, (12, 64), 128), (16, (64,), 64), (16, (8, 64), 48), (12, (8, 64), 0), (16, (), 0)])
def test_shapes_that_a_swizzle_mode_cannot_tile_are_refused_with_what_it_needs(arguments):
    with pytest.raises(CompilationError, match="needs|mode is"):
        standard_layout(*arguments)


@pytest.mark.parametrize("wrong", [
    lambda: S[(8, 64):(64,)],
    lambda: S[8:],
    lambda: S[0:1],
    lambda: S[2.5:1],
    lambda: TileLayout([(4, 1, "lane")]),
    lambda: TileLayout([4]),
    lambda: TileLayout(4),
    lambda: TileLayout([(4, 1)], replicas=2),
    lambda: tile.swizzled("float16", 64, 128),
    lambda: TileLayout([(4, 1)], offset=3),
    lambda: TileLayout([(4, 1)], swizzle=(3, 3, 3)),
    lambda: Swizzle(3, 3, 2),
    lambda: Swizzle(-1, 3, 3),
    lambda: S[4, 6].apply(1, 2, 3),
    lambda: S[4, 6].apply(1, 2, shape=(4, 5)),
    lambda: S[4, 6].slice((4, 6), ((0, 2),)),
    lambda: S[4, 6].slice((4, 6), ((0, 0), (0, 6))),
    lambda: S[4, 6].permute((0, 0)),
    lambda: S[4, 6].tile_to((9, 6), (4, 6)),
    lambda: S[(4, 6):(8, 1)].pack(4),
    lambda: S[4:2].inverse(),
    lambda: (S[4:1] + 3).inverse(),
    lambda: S[(4, 8):(1 @ axis.reg, 1 @ axis.laneid)].inverse(["reg"]),
    lambda: S[4, 6].compose(S[8:4]),
    lambda: S[(4, 6):(8, 1)].compose(S[(2, 2):(1, 5)]),
    lambda: S[4, 6].compose(S[4 : 1 @ axis.laneid]),
    lambda: S[4, 6].longest_chain(S[24:1]),
    lambda: S[4, 6].group((-4, -6)),
    lambda: S[4, 6].tile_to((8, 6), (0, 6)),
    lambda: S[4, 6].pack(0),
    lambda: strided((4, 6), (Symbol("ld"), 1)).inverse(),
    lambda: strided((4, 6), (1,)),
])
def test_wrong_input_is_a_tile_error_that_says_what_was_found(wrong):
    with pytest.raises(TileError) as error:
        wrong()
    assert len(str(error.value)) > 20


def test_an_unknown_axis_is_an_error_that_suggests_the_nearest_name():
    with pytest.raises(CompilationError, match="did you mean 'laneid'"):
        TileLayout([(4, 1, "lane_id")])


def test_contiguity_depends_on_the_order_and_compactness_on_the_addresses():
    assert S[4, 6].is_contiguous and S[4, 6].is_trivial and S[4, 6].is_compact
    assert (S[4, 6] + 3).is_contiguous and not (S[4, 6] + 3).is_trivial
    assert not S[(4, 6):(1, 4)].is_contiguous and S[(4, 6):(1, 4)].is_compact
    assert not S[(4, 6):(8, 1)].is_compact and not S[(4, 6):(0, 1)].is_compact
    assert standard_layout(16, (16, 128), 128).is_compact and not standard_layout(16, (16, 128), 128).is_contiguous
    assert not S[8 : 1 @ axis.laneid].is_contiguous and not (S[4:1] + R[2:4]).is_compact


def test_a_contiguous_run_ends_at_a_swizzle_chunk():
    assert S[8, 64].contiguous_run() == 512
    assert S[(8, 64):(72, 1)].contiguous_run() == 64
    assert S[(8, 64):(1, 8)].contiguous_run() == 1
    assert standard_layout(16, (16, 128), 128).contiguous_run() == 8
    assert (standard_layout(16, (8, 64), 128) + 4).contiguous_run() == 4


def test_the_longest_chain_is_a_run_of_memory_without_gaps():
    assert S[(8, 4, 64):(64, 512, 1)].longest_chain() == (2, 0, 1)
    assert S[(8, 1, 64):(72, 5, 1)].longest_chain() == (2,)
    assert S[(8, 4, 64):(64, 512, 1)].longest_chain(S[(8, 4, 64):(64, 520, 1)]) == (2, 0)
    assert S[(8, 64):(1, 8)].longest_chain(S[8, 64]) == ()
    assert S[8:2].longest_chain() == ()


def test_composition_addresses_a_tile_in_another_order():
    shared = standard_layout(16, (16, 64), 128)
    by_columns = S[(64, 16):(1, 64)]  # the logical index of element (column, row)
    composed = shared.compose(by_columns)
    column, row = np.mgrid[:64, :16]
    assert (composed.offset_of(column, row, shape=(64, 16)) == shared.offset_of(row, column, shape=(16, 64))).all()


class Symbol:
    """A runtime extent or start, like the compiler's."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name

    def __mul__(self, other):
        return Symbol(f"({self!r}*{other!r})")

    def __add__(self, other):
        return Symbol(f"({self!r}+{other!r})")

    def __floordiv__(self, other):
        return Symbol(f"({self!r}//{other!r})")

    def __mod__(self, other):
        return Symbol(f"({self!r}%{other!r})")

    def __rmul__(self, other):
        return Symbol(f"({other!r}*{self!r})")


def test_global_layouts_may_have_symbolic_extents_strides_and_starts():
    rows, pitch, start = Symbol("M"), Symbol("ld"), Symbol("start")
    array = strided((rows, 64), (pitch, 1))
    assert repr(array.offset_of(Symbol("i"), 3, shape=(rows, 64))) == "((i*ld)+3)"
    tile = array.slice((rows, 64), ((start, 128), (16, 32)))
    assert tile.extents == (128, 32) and repr(tile.offset["m"]) == "((start*ld)+16)"


def test_a_symbolic_start_splits_over_several_shards_only_if_its_divisor_is_known():
    atoms = S[(8, 4, 64):(64, 512, 1)]
    start = Symbol("start")
    region = ((0, 8), (start, 64))
    assert atoms.slice((8, 256), region) is None
    cut = atoms.slice((8, 256), region, divides=lambda value, n: value is start and 64 % n == 0)
    assert cut.extents == (8, 1, 64) and repr(cut.offset["m"]) == "((start//64)*512)"


def test_a_region_may_exceed_the_array_only_at_its_outermost_shard():
    assert S[100, 64].slice((100, 64), ((64, 128), (0, 64))) == S[128, 64] + 4096
    assert S[100, 64].slice((100, 64), ((-1, 4), (0, 64))) == S[4, 64] + -64
