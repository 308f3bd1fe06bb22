"""Loops that never end, on the simulator: it says where they are."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check

X = np.zeros(4, np.int32)


@tile.jit(num_warps=1)
def goes_round(x):
    i = 0
    while i >= 0:  # finds: deadlock
        i = (i + 7) % 1000
    tile.store(x[0], i)


@tile.jit(num_warps=1)
def goes_round_once(x):
    i = 0
    while i != 993:
        i = (i + 7) % 1000
    tile.store(x[0], i)


@tile.jit(num_warps=1)
def stores_for_ever(x):
    i = 0
    while i >= 0:  # finds: deadlock
        tile.store(x[1], i)
        i = (i + 1) % 1000


@tile.jit(num_warps=1)
def counts_in_memory(x, n):
    while tile.atomic_add(x[0], 1) < n:
        pass


@tile.jit(num_warps=1)
def inner_loops(x):
    k = 0
    while k < 10:
        for i in range(100):
            while i >= 0:  # finds: deadlock
                tile.store(x[1], i)
        k += 1


def test_a_loop_whose_state_comes_back_without_any_effect_is_found_at_once():
    check(goes_round, (2,), X)
    check(goes_round_once, (1,), X, result=0, expected=np.array([993, 0, 0, 0], np.int32))


@pytest.mark.parametrize("kernel", [stores_for_ever, inner_loops])
def test_a_limit_of_steps_stops_the_simulation_and_names_the_innermost_loop(kernel):
    (finding,) = check(kernel, (1,), X, max_steps=3000).findings
    assert "after 3000 operations (max_steps)" in finding.message


def test_a_kernel_that_ends_within_the_limit_is_not_affected_by_it():
    assert not counts_in_memory.simulate((1,), X.copy(), 50, max_steps=5000).findings
    x = X.copy()
    with pytest.raises(tile.SimulationError, match="deadlock: the kernel is not over after 40 operations"):
        counts_in_memory[1,](x, 50, max_steps=40)
    counts_in_memory[1,](x, 50, max_steps=5000)
    assert x[0] == 51
    for wrong in (0, -1, True, 2.5):
        with pytest.raises(tile.LaunchError, match="max_steps is a number of operations, at least 1"):
            counts_in_memory.simulate((1,), X.copy(), 50, max_steps=wrong)


def test_a_loop_that_runs_for_long_is_named_by_a_warning(monkeypatch):
    monkeypatch.setattr("tilejit.sim.chunk.NOTICE", 0.02)
    with pytest.warns(tile.TileWarning, match="the simulator has been in the loop at line .* max_steps= stops") as told:
        stores_for_ever.simulate((1,), X.copy(), max_steps=40000)
    assert len(told) == 1 and "while i >= 0" in str(told[0].message)
