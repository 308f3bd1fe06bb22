"""Tile orders, persistent loops, and tile numbers that a producer passes to consumers."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.errors import CompilationError
from tilejit.kernels.matmul.hopper.mainloop import tile_rows
from tilejit.schedule import ORDERS

from tests.gpu import in_child, needs_gpu

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


@tile.jit
def counted(out, M, N, ORDER: tile.constexpr, GROUP: tile.constexpr):
    for m, n in tile.tile_order(M, N, order=ORDER, group=GROUP):
        tile.atomic_add(out[m, n], 1)


@tile.jit
def listed(out, M, N, ORDER: tile.constexpr, GROUP: tile.constexpr):
    i = 0
    for m, n in tile.tile_order(M, N, order=ORDER, group=GROUP):
        tile.store(out[i, 0], m)
        tile.store(out[i, 1], n)
        i += 1


def sequence(m, n, order, group=8):
    out = np.zeros((m * n, 2), np.int32)
    listed[1,](out, m, n, ORDER=order, GROUP=group)
    return out


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(ORDERS)), st.integers(0, 17), st.integers(0, 17), st.integers(1, 9), st.integers(1, 7))
def test_every_order_visits_every_tile_once(order, m, n, group, grid):
    out = np.zeros((m, n), np.int32)
    counted[grid,](out, m, n, ORDER=order, GROUP=group)
    assert (out == 1).all()


def test_grouped_goes_down_the_columns_of_a_group_of_rows():
    assert sequence(5, 2, "grouped", 2).tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [3, 0], [2, 1], [3, 1], [4, 0], [4, 1]]


def test_snake_begins_a_group_at_the_column_where_the_previous_group_ended():
    order = sequence(6, 7, "snake", 2)
    ends = order[13], order[14]
    assert ends[0][1] == ends[1][1] == 6


@pytest.mark.parametrize("m, n", [(4, 4), (8, 8), (16, 16), (6, 10), (12, 20), (3, 8), (32, 2)])
def test_hilbert_moves_to_an_adjacent_tile(m, n):
    steps = np.abs(np.diff(sequence(m, n, "hilbert"), axis=0)).sum(axis=1)
    assert (steps == 1).all()


def test_hilbert_with_odd_extents_moves_to_a_diagonal_neighbour_at_worst():
    for m, n in ((5, 7), (9, 13), (15, 15), (7, 4)):
        steps = np.abs(np.diff(sequence(m, n, "hilbert"), axis=0))
        assert steps.max() == 1


@tile.jit
def backwards(t, tiles_m, tiles_n, group):
    last = tiles_m * tiles_n - 1 - t
    return last // tiles_n, last % tiles_n


@tile.jit
def own_order(out, M, N):
    i = 0
    for m, n in tile.tile_order(M, N, order=backwards):
        tile.store(out[i], m * 100 + n)
        i += 1


def test_an_order_may_be_a_helper_of_the_kernel():
    out = np.zeros(6, np.int32)
    own_order[1,](out, 2, 3)
    assert out.tolist() == [102, 101, 100, 2, 1, 0]


@tile.jit
def of_one(t, tiles_m, tiles_n, group):
    return t


@tile.jit
def of_floats(t, tiles_m, tiles_n, group):
    return t, 0.5 * t


@tile.jit
def of_tiles(t, tiles_m, tiles_n, group):
    return tile.arange(4), t


NAMES = "'row', 'column', 'grouped', 'snake', 'hilbert' or a helper under @tile.jit"


@pytest.mark.parametrize("given,words", [
    (dict(order="spiral"), f"order is {NAMES}, not str 'spiral'"),
    (dict(order="Grouped"), f"order is {NAMES}, not str 'Grouped' (did you mean 'grouped'?)"),
    (dict(order=None), f"order is {NAMES}, not NoneType"),
    (dict(order=("grouped", 8)), f"order is {NAMES}, not tuple ('grouped', 8)"),
    (dict(order=lambda t, tiles_m, tiles_n, group: (t, 0)), f"order is {NAMES}, not function"),
    (dict(order=tile_rows), "an order takes (t, tiles_m, tiles_n, group), and tile_rows takes (M, BM, PAIR)"),
    (dict(order=of_one), "an order returns (m, n), two integers, not a scalar int32"),
    (dict(order=of_floats), "an order returns (m, n), two integers, not a tuple (a scalar int32, a scalar float32)"),
    (dict(order=of_tiles), "an order returns (m, n), two integers, not a tuple (a tile int32[4], a scalar int32)"),
    (dict(group=0), "group is a constant, 1 to 32768 rows of tiles, not the number 0"),
    (dict(group=1 << 31), "group is a constant, 1 to 32768 rows of tiles, not the number 2147483648"),
    (dict(group=2.0), "group is a constant, 1 to 32768 rows of tiles, not the number 2.0"),
    (dict(group=True), "group is a constant, 1 to 32768 rows of tiles, not the number True"),
    (dict(tiles_m=2.5), "tiles_m is an integer, not the number 2.5"),
    (dict(tiles_n=(2, 2)), "tiles_n is an integer, not tuple (2, 2)"),
    (dict(tiles_n=-1), "tiles_n is a number of tiles, at least 0, not -1"),
])
def test_invalid_grids_orders_and_groups_are_errors_at_the_call(given, words):
    """At the call of `tile_order` or `tile_at`, even if a loop's order is a helper that is called later."""
    given = dict(tiles_m=2, tiles_n=3, order="grouped", group=8) | given
    M, N, ORDER, GROUP = given.values()

    @tile.jit
    def in_a_loop(out):
        for m, n in tile.tile_order(M, N, ORDER, GROUP):
            tile.store(out[m, n], 1)

    @tile.jit
    def by_number(out):
        m, n = tile.tile_at(tile.program_id(0), M, N, ORDER, GROUP)
        tile.store(out[m, n], 1)

    for kernel, call in ((in_a_loop, "tile.tile_order("), (by_number, "tile.tile_at(")):
        with pytest.raises(CompilationError) as caught:
            kernel[1,](np.zeros((2, 3), np.int32))
        message, _, line, carets = str(caught.value).splitlines()
        assert message == words and line[carets.index("^"):].startswith(call)


def test_the_start_of_a_loop_over_tiles_must_be_an_existing_tile():
    @tile.jit
    def from_before(out):
        for m, n in tile.tile_order(2, 2, first=-1):
            tile.atomic_add(out[m, n], 1)
    with pytest.raises(CompilationError, match="first is at least 0, not -1"):
        from_before[1,](np.zeros((2, 2), np.int32))


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_a_tile_number_must_be_an_integer(order):
    @tile.jit
    def by_half(out):
        m, n = tile.tile_at(1.5, 2, 2, order)
        tile.store(out[m, n], 1)
    with pytest.raises(CompilationError, match="t is an integer, not the number 1.5"):
        by_half[1,](np.zeros((2, 2), np.int32))


@pytest.mark.parametrize("stride", [0, -1])
def test_a_stride_that_reaches_no_second_tile_is_refused(stride):
    @tile.jit
    def strided(out):
        for m, n in tile.tile_order(2, 2, stride=stride):
            tile.atomic_add(out[m, n], 1)
    with pytest.raises(CompilationError, match=f"stride is at least 1, not {stride}"):
        strided[1,](np.zeros((2, 2), np.int32))


@tile.jit
def shared_out(out, M, N, FIRST, STRIDE, ORDER: tile.constexpr):
    for m, n in tile.tile_order(M, N, order=ORDER, first=FIRST, stride=STRIDE):
        tile.atomic_add(out[m, n], 1)


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("first, stride, words", [
    (9, -1, "stride of tile_order is at least 1"), (5, -1, "stride of tile_order is at least 1"), (0, 0, "stride of tile_order is at least 1"),
    (0, -2**31, "stride of tile_order is at least 1"), (-3, 1, "first of tile_order is at least 0"), (-3, 2, "first of tile_order is at least 0")])
def test_a_first_tile_before_all_or_a_stride_that_reaches_none_is_found_at_run_time(order, first, stride, words):
    out = np.zeros((2, 3), np.int32)
    finding, = shared_out.simulate(1, out, 2, 3, first, stride, order).findings
    assert (finding.kind, finding.message) == ("assertion", words)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint8])
@pytest.mark.parametrize("first, stride", [(0, 1), (1, 2), (4, 3), (5, 100), (6, 1), (100, 1)])
def test_a_first_tile_and_a_stride_of_run_time_visit_every_such_tile_once(dtype, first, stride):
    out = np.zeros((2, 3), np.int32)
    shared_out[1,](out, 2, 3, dtype(first), dtype(stride), ORDER="row")
    want = np.zeros(6, np.int32)
    want[first::stride] = 1
    assert (out.reshape(-1) == want).all()


# -- tiles from a counter, passed through a ring -------------------------------------------------------------------------

@tile.jit(num_warps=8)
def handed(counter, out, tiles):
    """A producer fetches tile numbers from a counter and passes them to a consumer warpgroup through a ring of two slots."""
    numbers = tile.ring(2, T=((1,), tile.int32), filled="stores")
    with tile.warpgroup(0):
        with tile.elect():
            t = 0
            while t < tiles:
                t = tile.next_tile(counter[0], tiles)
                with numbers.produce() as slot:
                    tile.store(slot.T[0], t)
    with tile.warpgroup(1):
        t = 0
        while t < tiles:
            with numbers.consume() as slot:
                t = tile.load(slot.T[0])
            if t < tiles:
                with tile.elect():
                    tile.atomic_add(out[t], 1)


def handed_case(device=None):
    place = (lambda a: tile.to_device(a, device)) if device is not None else (lambda a: a)
    counter, out = place(np.zeros(1, np.uint32)), place(np.zeros(50, np.int32))
    for round_, tiles in enumerate((50, 0, 1, 7)):
        handed[6,](counter, out, tiles)
        got = out.numpy() if device is not None else out
        number = counter.numpy() if device is not None else counter
        assert number[0] == 0, "the counter begins again by itself"
        want = [1 + (i < 1) * (round_ >= 2) + (i < 7) * (round_ >= 3) for i in range(50)]
        assert got.tolist() == want


def test_a_counter_hands_out_each_tile_once_and_wraps_around():
    handed_case()


@pytest.mark.parametrize("target", TARGETS[1:])
def test_a_kernel_with_handed_out_tiles_assembles(target):
    handed.compile(tile.ArraySpec((1,), "uint32"), tile.ArraySpec((50,), "int32"), 7, target=target)


def test_the_counter_must_be_one_uint32_in_global_memory():
    with pytest.raises(CompilationError, match="the counter is one uint32 element"):
        handed[1,](np.zeros(1, np.int32), np.zeros(5, np.int32), 5)


@pytest.mark.misread_by_racecheck
@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=60)
def test_a_counter_hands_out_each_tile_once_on_the_gpu():
    handed_case(0)


@needs_gpu()
@in_child(timeout=120)
def test_schedules_work_on_the_gpu():
    for order in ORDERS:
        for m, n in ((0, 3), (1, 1), (5, 7), (16, 16), (13, 4)):
            out = tile.to_device(np.zeros((m, n), np.int32), 0)
            counted[3,](out, m, n, ORDER=order, GROUP=3)
            assert (out.numpy() == 1).all()
