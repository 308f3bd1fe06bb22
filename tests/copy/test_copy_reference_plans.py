"""Plans compared with reference plans: legal for the hardware, the right bytes, and no more instructions."""

from math import prod

import numpy as np
import pytest
import tilejit as tile
from bytecheck import check_partition, check_tensor_plan
from copy_cases import cases, planned, specs
from selected_kernels import four_rows
from tilejit.errors import DispatchError, TileError
from tilejit.plan import plan_copy

TMA = {c["id"]: c for c in cases("tma")}
LDGSTS = {c["id"]: c for c in cases("ldgsts")}

# Cases that the hardware refuses, whatever a reference says: shared addresses not aligned to 128 bytes, arrays not aligned to 16.
REFUSED = {
    "base-offset-unaligned": "an array that starts at a multiple of 16 bytes",
    "shared-offset-unaligned": "begins at byte 8",
    "shared-offset-64B-with-sw3": "begins at byte 64",
    "shared-gap": "a box would begin at byte 144",
    "shared-gap-explicit": "a box would begin at byte 144",
    "1d-int8-8": "no box of it is a multiple of 16 bytes",
    "2d-global-row-stride-unaligned": "not known to be a multiple of 16 bytes",
    "test_tma/g2s-transpose-partial-offset": "the same contiguous elements innermost",
    "test_tma/s2g-oob-nan": "fill= on a store",
    "test_tma/reject-s2g-nan-on-non-float": "fill= on a store",
    "test_tma/reject-unknown-oob": 'fill is 0 or "nan"',
    "g2s-reduce-rejected": "a reduction that the hardware has, into global memory: reduce= on a load",
    "mask-too-big": "a mask of the cluster's ranks, 1 to 65535",
    "cta-group-2-sm90": "cta_group= on loads only, for sm_100a or sm_103a: sm_90a",
    "cta-group-3": "cta_group is 1 or 2, not 3",
}


@pytest.mark.parametrize("name", [n for n in TMA if n not in REFUSED])
def test_a_tensor_plan_moves_the_bytes_of_the_layouts_with_no_more_instructions_than_the_reference(name):
    """Every reference case that the hardware supports is planned, byte for byte, with at most the reference's cost."""
    case = TMA[name]
    dst, src, plan = planned(case)
    choice = plan()
    assert choice.variant == "tma"
    check_tensor_plan(choice.plan, dst, src)
    assert case["issues"] is None or len(choice.plan.issues) <= case["issues"]
    assert choice.plan.instructions == len(choice.plan.issues)


@pytest.mark.parametrize("name", REFUSED)
def test_cases_that_the_hardware_refuses_are_declined_with_the_reason(name):
    """A plan that would fault, or be refused by the driver, is declined."""
    with pytest.raises(TileError) as failure:
        planned(TMA[name])[2]()
    assert REFUSED[name] in str(failure.value)


@pytest.mark.parametrize("name", LDGSTS)
def test_an_ldgsts_plan_moves_the_bytes_of_the_layouts_with_no_more_instructions_than_the_reference(name):
    """If the reference has a plan, ours has no more instructions; if not, ours is correct or declines."""
    case = LDGSTS[name]
    array, shared = specs(case)
    plan = lambda: plan_copy(shared, array, scope=case["scope"], threads=case["threads"], target="sm_80", variant="ldgsts").plan
    if case["expected"] is None:
        try:
            made = plan()
        except TileError as error:
            assert "provably aligned" in str(error)
            return
    else:
        made = plan()
        vec_bytes, outer, cache = case["expected"]
        assert (made.vec_bytes, made.outer, made.cache) == (vec_bytes, outer, cache)
    assert made.instructions == made.outer
    assert made.threads == {"thread": 1, "warp": 32, "cta": case["threads"]}[case["scope"]]
    check_partition(made, shared, array)


# -- sizes, strides and starts known only at launch -----------------------------------------------------------------------------

@tile.jit
def launched(A, B, ROW: tile.constexpr, COLUMN: tile.constexpr, LAYOUT: tile.constexpr, row, column):
    """The tile at (ROW * row, COLUMN * column) is copied to B."""
    s = tile.alloc(LAYOUT[0], A.dtype, layout=LAYOUT[1])
    bar = tile.mbarrier(count=1)
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[ROW * row:ROW * row + s.shape[0], COLUMN * column:COLUMN * column + s.shape[1]], mbar=bar)
    bar.wait(phase=0)
    tile.copy(B[0:s.shape[0], 0:s.shape[1]], s)


def launch(array, layout, row=0, column=0, ROW=128, COLUMN=128):
    """The compiled kernel, after the simulator has moved the tile of `array` at (ROW * row, COLUMN * column)."""
    shape = layout[0]
    out = np.ones(shape, array.dtype)
    given = {"ROW": ROW, "COLUMN": COLUMN, "LAYOUT": layout, "row": row, "column": column}
    assert not launched.simulate((1,), array, out, **given).findings
    wanted = np.zeros(shape, array.dtype)
    there = array[ROW * row:ROW * row + shape[0], COLUMN * column:COLUMN * column + shape[1]]
    wanted[:there.shape[0], :there.shape[1]] = there
    assert (out == wanted).all()
    return launched.compile(array, out, **given)


def numbers(*shape):
    return np.random.default_rng(prod(shape)).standard_normal(shape).astype(np.float16)


ATOM_COLUMN, TWO_ATOMS = ((128, 64), tile.swizzled("float16", (128, 64), 128)), ((128, 128), tile.swizzled("float16", (128, 128), 128))


@pytest.mark.parametrize("rows", [256, 200, 131])
def test_a_row_count_known_only_at_launch_is_a_dimension_of_the_map(rows):
    """One instruction with a box of 128 x 64, clipped at the array's end."""
    k = launch(numbers(rows, 1024), ATOM_COLUMN, row=1)
    (m,) = k.tensor_maps
    assert (m.global_dim, m.global_strides, m.box, k.copies[0].instructions) == ((1024, rows), (2048,), (64, 128), 1)


@pytest.mark.parametrize("pitch", [1024, 1032, 4096])
def test_a_runtime_row_pitch_is_guarded_to_be_a_multiple_of_16_bytes(pitch):
    """All such pitches share one compilation, with one instruction."""
    k = launch(numbers(256, pitch)[:, :1024], ((128, 64), None))
    assert k.copies[0].instructions == 1 and k.tensor_maps[0].global_strides == (2 * pitch,)
    assert ("stride_multiple", 0, 0, 8) in {tuple(fact) for fact, held in k.recipe["guards"] if held}


def test_a_row_pitch_that_is_not_a_multiple_of_16_bytes_declines():
    """The reason names the dimension."""
    with pytest.raises(DispatchError, match="the stride of dimension 0 is not known to be a multiple of 16 bytes"):
        launch(numbers(256, 1028)[:, :1024], ((128, 64), None))


@pytest.mark.parametrize("column", [0, 3, 7])
def test_a_start_that_is_provably_a_multiple_of_the_atom_gives_one_instruction(column):
    """K step `column` of 128 elements: the map splits the rows at 64, and the start is divided there."""
    k = launch(numbers(1024, 1024), TWO_ATOMS, column=column)
    (m,) = k.tensor_maps
    assert (m.global_dim, m.global_strides, m.box, k.copies[0].instructions) == ((64, 1024, 16), (2048, 128), (64, 128, 2), 1)


def test_a_start_known_to_be_a_multiple_of_16_bytes_keeps_the_rows_whole_with_an_instruction_per_atom():
    """Multiples of 8 elements: exact for every start."""
    for column in (0, 5, 120):
        k = launch(numbers(1024, 1024), TWO_ATOMS, column=column, COLUMN=8)
        assert k.copies[0].instructions == 2 and k.tensor_maps[0].box == (64, 128)


def test_a_start_of_which_nothing_is_known_declines():
    """An innermost coordinate must be a multiple of 16 bytes."""
    with pytest.raises(DispatchError, match="a start along the innermost dimension at a multiple of 16 bytes"):
        launch(numbers(1024, 1024), TWO_ATOMS, column=5, COLUMN=1)


# -- rows selected by index --------------------------------------------------------------------------------------------------------

def test_four_rows_of_a_matrix_are_one_instruction_with_a_box_of_one_row():
    """1024 x 64 float16: the map is of the matrix, the box is 64 x 1, and 512 bytes arrive; before sm_100a it declines."""
    x, y = numbers(1024, 64), np.zeros((4, 64), np.float16)
    assert not four_rows.simulate((1,), x, y, 0, 64, target="sm_100a").findings and (y == x[[5, 9, 2, 7]]).all()
    k = four_rows.compile(x, y, 0, 64, target="sm_100a")
    (m,) = k.tensor_maps
    assert (m.global_dim, m.global_strides, m.box, m.swizzle, k.copies[0].instructions, k.copies[0].bytes) == ((64, 1024), (128,), (64, 1), 0, 1, 512)
    with pytest.raises(DispatchError, match="sm_100a or sm_103a; for plain loads also sm_120a: sm_90a"):
        four_rows.compile(x, y, 0, 64, target="sm_90a")
