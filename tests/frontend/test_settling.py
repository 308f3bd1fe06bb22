"""How often the bodies of loops are walked until what they carry is settled, and that it does not depend on what was remembered."""

from collections import Counter
from random import Random

import pytest
import tilejit as tile
from graphs import body, built
from nests import nest

from tilejit.errors import CompilationError
from tilejit.frontend import Source, carried
from tilejit.ir.graph import For, While, walk


@pytest.fixture
def walks(monkeypatch) -> Counter:
    """How often the body of each loop is walked, by the name of its index."""
    counted, attempted = Counter(), carried._attempted

    def counting(w, *args):
        counted[w.g.loc.source_line.split()[1]] += 1
        return attempted(w, *args)

    monkeypatch.setattr(carried, "_attempted", counting)
    return counted


@pytest.fixture
def forgetting(monkeypatch):
    """Lets each search begin anew from now on."""
    class Forgetful(carried.Last):
        plans = property(lambda last: None, lambda last, found: None)
        left = property(lambda last: False, lambda last, found: None)

    return lambda: monkeypatch.setattr(carried, "Last", Forgetful)


def test_elements_that_change_and_elements_that_stay_are_found_in_one_walk(walks):
    def kernel(y, n, m):
        state = (n, 0, m)
        for i in range(n):
            state = (state[0] + tile.warp_id(), state[1] + 1, state[2])
        tile.store(y[state[2]], tile.cast(state[0] + state[1], tile.float32))

    assert "carry %state: int32@warp = %n, %state.1: int32@grid = 0\n" in body(kernel)
    assert walks == {"i": 2}


def test_a_loop_in_a_loop_is_walked_once_for_each_further_walk_of_that(walks):
    def kernel(y, n, m):
        state, moved = (0, 0, m), 0
        for i in range(n):
            for j in range(n):
                state = (state[0] + 1, state[1], state[2])
                for k in range(n):
                    state = (state[0], state[1] + tile.warp_id(), state[2])
            for late in range(state[1]):
                state = (state[0], state[1] + 1, state[2])
            moved = moved + 1
        tile.store(y[state[2]], tile.cast(state[0] + state[1] + moved, tile.float32))

    built(kernel)
    assert walks == {"i": 2, "j": 3, "k": 4, "late": 3}


def test_a_loop_that_is_left_early_is_known_as_such_in_further_walks(walks):
    def kernel(y, n):
        moved = 0
        for i in range(n):
            for j in range(n):
                if j + moved > 5:
                    break
                moved = moved + 1
        tile.store(y[0], tile.cast(moved, tile.float32))

    text = body(kernel)
    assert "while carry %moved.1" in text and "for %j" not in text
    assert walks == {"i": 2, "j": 4}  # once as a `for` that runs to its end


def test_elements_that_only_a_later_walk_of_the_loop_around_leaves_alone_stay_constants(walks):
    def kernel(y, n):
        changes, state = False, (n, 16)
        for i in range(n):
            for j in range(n):
                if changes:  # not in the first walk, in which the inner loop carries nothing
                    state = (state[0] + 1, state[1])
            state = (state[0] + 1, state[1])
            changes = n > 3
        tile.store(y[0:state[1]], tile.full((state[1],), state[0]))

    assert "for %j in range(0, %n, 1) carry %state.1: int32@grid = %state\n" in body(kernel)
    assert walks["i"] == 2


def test_what_an_inner_loop_was_found_to_carry_with_less_known_is_forgotten():
    def kernel(y, n):
        state = (n, n)
        for i in range(tile.program_id(0)):  # in the first walk, the elements differ between CTAs
            state = (state[0], state[1])
            for j in range(2):
                if state[0] == n:
                    break

    assert "while carry %index: int32@grid = 0, %break: bool@grid = False" in body(kernel)


def outcome(text: str) -> tuple[int, str]:
    """How many values the loops of a kernel carry, and why it cannot be compiled if so."""
    try:
        graph = built(Source.from_text(text, {"tile": tile})).graph
    except CompilationError as error:
        return 0, str(error)
    return sum(len(node.carried) for node in walk(graph.body) if isinstance(node, (For, While))), ""


@pytest.mark.parametrize("seeds", [range(n, n + 50) for n in range(0, 200, 50)], ids=str)
def test_what_loops_carry_does_not_depend_on_what_was_remembered(seeds, forgetting):
    texts = [nest(Random(seed)) for seed in seeds]
    remembered = [outcome(text) for text in texts]
    forgetting()
    assert remembered == [outcome(text) for text in texts]
