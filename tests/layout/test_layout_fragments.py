"""Register tiles: blocked layouts, and tensor-core fragments against the formulas of the PTX ISA."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tilejit.errors import CompilationError
from tilejit.layout import (
    S,
    axis,
    blocked_layout,
    collapse,
    drop_dim,
    insert_dim,
    mma_fragment,
    owner_table,
    reg_count,
    tcgen05_registers,
    thread_table,
    tmem_datapath,
    wgmma_a_registers,
    wgmma_accumulator,
)

examples = settings(max_examples=60, deadline=None)

THREADS = [1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 384]
shapes = st.lists(st.sampled_from([1, 2, 3, 5, 7, 8, 16, 25, 32, 40]), min_size=0, max_size=3).map(tuple)


@st.composite
def blocked_tiles(draw):
    shape, threads = draw(shapes), draw(st.sampled_from(THREADS))
    order = draw(st.permutations(range(len(shape))))
    return shape, threads, draw(st.sampled_from([1, 2, 3, 4, 8])), order


# ---- blocked ----


@examples
@given(blocked_tiles())
def test_a_blocked_tile_holds_every_element_once_per_replica(tile):
    shape, threads, vec, order = tile
    layout, domain = blocked_layout(shape, threads, vec, order)
    table = thread_table(layout, domain, threads)
    copies = prod(extent for extent, _, _ in layout.replicas)
    assert all(n <= d for n, d in zip(shape, domain)) and len(shape) == len(domain)
    assert table.shape == (threads, reg_count(layout))
    assert (np.bincount(table.ravel(), minlength=prod(domain)) == copies).all()
    assert all(len(set(row)) == len(row) for row in table)


@examples
@given(blocked_tiles())
def test_the_owner_of_an_element_holds_it(tile):
    shape, threads, vec, order = tile
    layout, domain = blocked_layout(shape, threads, vec, order)
    thread, register = owner_table(layout, domain)
    assert (thread_table(layout, domain, threads)[thread, register] == np.arange(prod(domain))).all()


@examples
@given(blocked_tiles())
def test_threads_of_a_blocked_tile_hold_runs_along_the_fastest_dimension(tile):
    shape, threads, vec, order = tile
    if not shape:
        return
    layout, domain = blocked_layout(shape, threads, vec, order)
    run, fastest = min(vec, shape[order[0]]), order[0]
    table = thread_table(layout, domain, threads).reshape(threads, -1, run)
    assert (np.diff(table, axis=2) == prod(domain[fastest + 1:])).all()
    assert (table[:, :, 0] // prod(domain[fastest + 1:]) % domain[fastest] % run == 0).all()


@examples
@given(blocked_tiles())
def test_a_blocked_tile_is_padded_less_than_twofold_in_each_dimension(tile):
    shape, threads, vec, order = tile
    _, domain = blocked_layout(shape, threads, vec, order)
    pieces = [-(-n // min(vec, n)) if dim == order[0] else n for dim, n in enumerate(shape)]
    widths = [min(vec, n) if dim == order[0] else 1 for dim, n in enumerate(shape)]
    for padded, piece, width in zip(domain, pieces, widths):
        odd = max(threads // (threads & -threads), 1)
        assert padded < 2 * piece * width * odd


@pytest.mark.parametrize("shape, threads, vec, domain, registers", [
    ((128, 64), 128, 8, (128, 64), 64),
    ((1024,), 128, 4, (1024,), 8),
    ((781,), 128, 1, (896,), 7),          # 7 rounds of 128, not 8
    ((32, 25), 32, 1, (32, 32), 32),      # a warp per row, not a thread per row
    ((64, 100), 128, 4, (64, 128), 64),
    ((17,), 96, 2, (32,), 2),
    ((96,), 96, 1, (96,), 1),             # three warps side by side
    ((3,), 128, 8, (3,), 3),              # nothing to distribute: every thread holds the tile
    ((), 128, 1, (), 1),
])
def test_blocked_tiles_take_few_registers_and_little_padding(shape, threads, vec, domain, registers):
    layout, found = blocked_layout(shape, threads, vec)
    assert found == domain and reg_count(layout) == registers


def test_lanes_are_adjacent_before_warps_are():
    layout, _ = blocked_layout((4, 1024), 128, 4)
    assert layout.apply(0, 4, shape=(4, 1024)) == {"warpid": 0, "laneid": 1, "reg": 0}
    assert layout.apply(0, 128, shape=(4, 1024)) == {"warpid": 1, "laneid": 0, "reg": 0}
    assert layout.apply(0, 512, shape=(4, 1024)) == {"warpid": 0, "laneid": 0, "reg": 4}
    assert layout.apply(1, 0, shape=(4, 1024)) == {"warpid": 0, "laneid": 0, "reg": 8}


def test_a_column_major_order_transposes_the_distribution():
    across, _ = blocked_layout((64, 32), 128, 4)
    down, _ = blocked_layout((32, 64), 128, 4, order=(0, 1))
    for i, j in [(0, 0), (3, 5), (63, 31), (17, 8)]:
        assert across.apply(i, j, shape=(64, 32)) == down.apply(j, i, shape=(32, 64))


@pytest.mark.parametrize("wrong", [
    lambda: blocked_layout((8, 8), 48, 1), lambda: blocked_layout((8, 8), 3, 1), lambda: blocked_layout((8, 0), 32, 1),
    lambda: blocked_layout((8, 8), 32, 0), lambda: blocked_layout((8, 8), 32, 1, order=(0, 0)),
    lambda: thread_table(*blocked_layout((8, 8), 64, 1), 32), lambda: thread_table(*blocked_layout((8, 8), 32, 1), 64),
    lambda: owner_table(S[4, 6], (4, 6)), lambda: mma_fragment("m16n8k16", "e", (16, 16)),
    lambda: mma_fragment("m16n8k64", "a", (16, 64)), lambda: wgmma_accumulator(96, 64),
    lambda: wgmma_a_registers(64, 24, 16), lambda: wgmma_a_registers(64, 32, 4), lambda: tmem_datapath("B", 63),
    lambda: tmem_datapath("H", 64), lambda: tmem_datapath("D", 64, sub=1), lambda: tcgen05_registers("32x32b", 64, 8),
    lambda: drop_dim(*blocked_layout((8, 8), 32, 1), 0), lambda: collapse(*blocked_layout((8, 8), 32, 1), 2),
    lambda: insert_dim(*blocked_layout((8, 8), 32, 1), 4),
])
def test_wrong_fragments_are_compilation_errors(wrong):
    with pytest.raises(CompilationError):
        wrong()


# ---- collapse, drop, insert ----


def assert_collapsed(layout, domain, dim, threads):
    collapsed, reduced = collapse(layout, domain, dim)
    assert reduced == (*domain[:dim], 1, *domain[dim + 1:])
    table = thread_table(collapsed, reduced, threads)
    before = np.array(np.unravel_index(thread_table(layout, domain, threads), domain))
    before[dim] = 0
    held = np.ravel_multi_index(tuple(before), reduced)
    for thread in range(threads):
        assert set(held[thread]) == set(table[thread])
        assert len(set(table[thread])) == table.shape[1]


@examples
@given(blocked_tiles(), st.data())
def test_after_a_reduction_each_thread_holds_the_rows_of_which_it_held_elements(tile, data):
    shape, threads, vec, order = tile
    if not shape:
        return
    layout, domain = blocked_layout(shape, threads, vec, order)
    assert_collapsed(layout, domain, data.draw(st.integers(0, len(shape) - 1)), threads)


@pytest.mark.parametrize("dim", [0, 1])
def test_fragments_can_be_reduced_too(dim):
    assert_collapsed(*wgmma_accumulator(128, 64), dim, 128)
    assert_collapsed(*mma_fragment("m16n8k16", "c", (64, 32), (2, 2)), dim, 128)


def test_the_row_sums_of_an_accumulator_are_two_registers_replicated_over_each_quad():
    layout, domain = collapse(*wgmma_accumulator(64, 128), 1)
    assert domain == (64, 1) and reg_count(layout) == 2
    assert layout.replicas == ((4, 1, "laneid"),)


def test_dimensions_of_extent_1_can_be_added_and_removed():
    layout, domain = blocked_layout((8, 16), 32, 1)
    wider = insert_dim(layout, domain, 1)
    assert wider[1] == (8, 1, 16) and insert_dim(layout, domain, -1)[1] == (8, 16, 1)
    assert drop_dim(*wider, 1) == (layout, domain)


def test_equal_register_maps_are_equal_layouts():
    for layout, domain in (blocked_layout((64, 16), 64, 2), wgmma_accumulator(128, 64), mma_fragment("m8n8k4", "a", (16, 8))):
        assert layout.canonicalize() == layout


# ---- fragments, by the formulas of the PTX ISA ----
# Each function gives (row, column) of register i in the lane with this group (lane >> 2) and thread (lane % 4).

FORMULAS = {
    ("m16n8k16", "a"): lambda g, t, i: (g if 0 <= i < 2 or 4 <= i < 6 else g + 8,
                                        t * 2 + (i & 1) + (8 if i >= 4 else 0)),
    ("m16n8k16", "b"): lambda g, t, i: (t * 2 + (i & 1) + (8 if i >= 2 else 0), g),
    ("m16n8k16", "c"): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ("m16n8k8", "a"): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    ("m16n8k8", "b"): lambda g, t, i: (t if i == 0 else t + 4, g),
    ("m16n8k8", "c"): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ("m16n8k32", "a"): lambda g, t, i: (g if 0 <= i < 4 or 8 <= i < 12 else g + 8,
                                        t * 4 + (i & 3) + (16 if i >= 8 else 0)),
    ("m16n8k32", "b"): lambda g, t, i: (t * 4 + (i & 3) + (16 if i >= 4 else 0), g),
    ("m16n8k32", "c"): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ("m8n8k4", "a"): lambda g, t, i: (g, t),
    ("m8n8k4", "b"): lambda g, t, i: (t, g),
    ("m8n8k4", "c"): lambda g, t, i: (g, t * 2 + (i & 1)),
}
SIZES = {"m16n8k16": (16, 8, 16), "m16n8k8": (16, 8, 8), "m16n8k32": (16, 8, 32), "m8n8k4": (8, 8, 4)}


def tile_of(kind, operand):
    m, n, k = SIZES[kind]
    return {"a": (m, k), "b": (k, n), "c": (m, n)}[operand]


@pytest.mark.parametrize("kind, operand", FORMULAS)
def test_mma_fragments_match_the_ptx_isa(kind, operand):
    shape = tile_of(kind, operand)
    layout, domain = mma_fragment(kind, operand, shape)
    table = thread_table(layout, domain, 32)
    assert domain == shape and table.shape[1] == prod(shape) // 32
    for lane, i in np.ndindex(table.shape):
        row, column = FORMULAS[kind, operand](lane >> 2, lane % 4, i)
        assert table[lane, i] == row * shape[1] + column


@pytest.mark.parametrize("kind, operand", FORMULAS)
def test_mma_operands_of_several_warps_are_blocks_of_instruction_tiles(kind, operand):
    (height, width), (m, n) = tile_of(kind, operand), (2, 4)
    rows, columns = (m if operand in "ac" else 1), (n if operand in "bc" else 1)
    shape = (height * rows * 2, width * columns * 3)
    layout, domain = mma_fragment(kind, operand, shape, (m, n))
    table = thread_table(layout, domain, 32 * m * n)
    per_tile = height * width // 32
    assert domain == shape
    for thread, register in np.ndindex(table.shape):
        warp, lane = divmod(thread, 32)
        tile, i = divmod(register, per_tile)
        tile_row, tile_column = (tile % 2, tile // 2) if operand == "b" else (tile // 3, tile % 3)
        row, column = FORMULAS[kind, operand](lane >> 2, lane % 4, i)
        row += ((warp // n if rows > 1 else 0) * 2 + tile_row) * height
        column += ((warp % n if columns > 1 else 0) * 3 + tile_column) * width
        assert table[thread, register] == row * shape[1] + column


def test_mma_operands_are_padded_to_whole_instruction_tiles():
    assert mma_fragment("m16n8k16", "a", (40, 20), (2, 1))[1] == (64, 32)
    assert mma_fragment("m16n8k16", "D", (40, 20), (2, 1))[1] == (64, 24)


@pytest.mark.parametrize("warps", [(1, 1), (4, 1), (2, 2)])
def test_an_accumulator_fragment_is_the_a_fragment_of_the_next_product(warps):
    rows_only = (warps[0], 1)
    assert mma_fragment("m16n8k16", "c", (64, 64), rows_only) == mma_fragment("m16n8k16", "a", (64, 64), rows_only)
    assert wgmma_accumulator(128, 64) == wgmma_a_registers(128, 64, 16)


def test_wgmma_accumulators_match_the_ptx_isa():
    """d[i] of m64nNk16: row 16 * warp + group + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * thread + i % 2."""
    layout, domain = wgmma_accumulator(256, 40, warpgroups=2)
    table = thread_table(layout, domain, 256)
    for thread, register in np.ndindex(table.shape):
        lane, warp, warpgroup = thread % 32, thread // 32 % 4, thread // 128
        tile, i = divmod(register, 20)
        row = warpgroup * 128 + tile * 64 + 16 * warp + lane // 4 + 8 * (i // 2 % 2)
        assert table[thread, register] == row * 40 + 8 * (i // 4) + 2 * (lane % 4) + i % 2


@pytest.mark.parametrize("bits, kind", [(32, "m16n8k8"), (16, "m16n8k16"), (8, "m16n8k32")])
def test_wgmma_a_fragments_in_registers_match_mma_with_16_rows_per_warp(bits, kind):
    width = tile_of(kind, "a")[1]
    table = thread_table(*wgmma_a_registers(64, 2 * width, bits), 128)
    per_step = 16 * width // 32
    for thread, register in np.ndindex(table.shape):
        step, i = divmod(register, per_step)
        row, column = FORMULAS[kind, "a"](thread % 32 >> 2, thread % 4, i)
        assert table[thread, register] == (thread // 32 * 16 + row) * 2 * width + step * width + column


# ---- tensor memory ----

ATOMS = {  # (row of 16 or 32, 32-bit column) of register i of a lane, columns of one repetition
    "32x32b": (lambda lane, i: (lane, i), 1),
    "16x64b": (lambda lane, i: (lane // 4 + 8 * (lane % 2), 2 * i + lane // 2 % 2), 2),
    "16x128b": (lambda lane, i: (lane // 4 + 8 * (i % 2), 4 * (i // 2) + lane % 4), 4),
    "16x256b": (lambda lane, i: (lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2), 8),
}


@pytest.mark.parametrize("atom", ATOMS)
@pytest.mark.parametrize("bits", [32, 16])
def test_tensor_memory_loads_distribute_elements_as_in_the_ptx_isa(atom, bits):
    formula, width = ATOMS[atom]
    height, packed, columns = (32 if atom == "32x32b" else 16), 32 // bits, 4 * width * (32 // bits)
    for rows in {128, 4 * height}:
        table = thread_table(*tcgen05_registers(atom, rows, columns, bits), 128)
        per_issue = table.shape[1] // (rows // (4 * height))
        for thread, register in np.ndindex(table.shape):
            issue, i = divmod(register, per_issue)
            row, column = formula(thread % 32, i // packed)
            row += thread // 32 * (rows // 4) + issue * height
            assert table[thread, register] == row * columns + column * packed + i % packed


def test_tensor_memory_data_paths_map_rows_to_lanes():
    lanes = {name: tmem_datapath(name, 64) for name in "ABCDEFG"}
    for r, c in [(0, 0), (5, 3), (17, 40), (31, 63)]:
        assert lanes["D"].apply(r, c, shape=(128, 64)) == {"TLane": r, "TCol": c}
        assert lanes["F"].apply(r, c, shape=(64, 64)) == {"TLane": 32 * (r // 16) + r % 16, "TCol": c}
        assert lanes["B"].apply(r, c, shape=(64, 64)) == {"TLane": r + 64 * (c // 32), "TCol": c % 32}
        assert lanes["G"].apply(r, c, shape=(32, 64)) == {"TLane": r + 32 * (c // 16), "TCol": c % 16}
    assert tmem_datapath("F", 64, sub=1) == lanes["F"] + 16 @ axis.TLane
    assert lanes["A"] == lanes["D"] and lanes["C"] == lanes["F"] and lanes["E"] == lanes["B"]
