"""Orders of tiles, persistent loops, and numbers that a producer hands to consumers."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tests.gpu import in_child, needs_gpu
from tilejit.errors import CompilationError
from tilejit.schedule import ORDERS

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


def test_snake_begins_a_group_at_the_column_where_the_last_one_ended():
    order = sequence(6, 7, "snake", 2)
    ends = order[13], order[14]
    assert ends[0][1] == ends[1][1] == 6


@pytest.mark.parametrize("m, n", [(4, 4), (8, 8), (16, 16), (6, 10), (12, 20), (3, 8), (32, 2)])
def test_hilbert_steps_to_a_neighbour(m, n):
    steps = np.abs(np.diff(sequence(m, n, "hilbert"), axis=0)).sum(axis=1)
    assert (steps == 1).all()


def test_hilbert_in_odd_extents_steps_to_a_diagonal_neighbour_at_worst():
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


def test_an_order_may_be_the_kernel_s_own():
    out = np.zeros(6, np.int32)
    own_order[1,](out, 2, 3)
    assert out.tolist() == [102, 101, 100, 2, 1, 0]


def test_an_unknown_order_is_refused():
    with pytest.raises(CompilationError, match="order is 'row', 'column', 'grouped', 'snake', 'hilbert' or a helper"):
        counted[1,](np.zeros((2, 2), np.int32), 2, 2, ORDER="spiral", GROUP=1)


@pytest.mark.parametrize("stride", [0, -1])
def test_a_stride_that_reaches_no_further_tile_is_refused(stride):
    @tile.jit
    def strided(out):
        for m, n in tile.tile_order(2, 2, stride=stride):
            tile.atomic_add(out[m, n], 1)
    with pytest.raises(CompilationError, match=f"stride is at least 1, not {stride}"):
        strided[1,](np.zeros((2, 2), np.int32))


# -- tiles counted in memory, handed through a ring ----------------------------------------------------------------------

@tile.jit(num_warps=8)
def handed(counter, out, tiles):
    """A producer asks for tile numbers and hands them to a consumer warpgroup through a ring of two slots."""
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


def test_a_counter_hands_out_each_tile_once_and_wraps_by_itself():
    handed_case()


@pytest.mark.parametrize("target", TARGETS[1:])
def test_a_handed_tile_assembles(target):
    handed.compile(tile.ArraySpec((1,), "uint32"), tile.ArraySpec((50,), "int32"), 7, target=target)


def test_the_counter_is_one_uint32_of_global_memory():
    with pytest.raises(CompilationError, match="the counter is one uint32 element"):
        handed[1,](np.zeros(1, np.int32), np.zeros(5, np.int32), 5)


@pytest.mark.misread
@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=60)
def test_a_counter_hands_out_each_tile_once_on_the_gpu():
    handed_case(0)


@needs_gpu()
@in_child(timeout=120)
def test_schedules_on_the_gpu():
    for order in ORDERS:
        for m, n in ((0, 3), (1, 1), (5, 7), (16, 16), (13, 4)):
            out = tile.to_device(np.zeros((m, n), np.int32), 0)
            counted[3,](out, m, n, ORDER=order, GROUP=3)
            assert (out.numpy() == 1).all()
