"""How often the bodies of loops are traced until the types of their carried values are stable. Caching does not change the result."""

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
    """How often the body of each loop is traced, by the name of its index."""
    counted, attempted = Counter(), carried._attempt_body

    def counting(w, *args):
        counted[w.g.loc.source_line.split()[1]] += 1
        return attempted(w, *args)

    monkeypatch.setattr(carried, "_attempt_body", counting)
    return counted


@pytest.fixture
def forgetting(monkeypatch):
    """Disable the reuse of results from earlier traces."""
    class Forgetful(carried.Last):
        plans = property(lambda last: None, lambda last, found: None)
        left = property(lambda last: False, lambda last, found: None)

    return lambda: monkeypatch.setattr(carried, "Last", Forgetful)


def test_changing_and_constant_tuple_elements_are_distinguished_in_one_trace(walks):
    def kernel(y, n, m):
        state = (n, 0, m)
        for i in range(n):
            state = (state[0] + tile.warp_id(), state[1] + 1, state[2])
        tile.store(y[state[2]], tile.cast(state[0] + state[1], tile.float32))

    assert "carry %state: int32@warp = %n, %state.1: int32@grid = 0\n" in body(kernel)
    assert walks == {"i": 2}


def test_an_inner_loop_is_traced_once_for_each_repeated_trace_of_the_outer_loop(walks):
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


def test_a_loop_with_an_early_exit_is_recognised_in_repeated_traces(walks):
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
    assert walks == {"i": 2, "j": 4}  # once as a `for` without an early exit


def test_elements_that_turn_out_constant_in_a_later_trace_of_the_outer_loop_stay_constants(walks):
    def kernel(y, n):
        changes, state = False, (n, 16)
        for i in range(n):
            for j in range(n):
                if changes:  # not in the first trace, in which the inner loop carries nothing
                    state = (state[0] + 1, state[1])
            state = (state[0] + 1, state[1])
            changes = n > 3
        tile.store(y[0:state[1]], tile.full((state[1],), state[0]))

    assert "for %j in range(0, %n, 1) carry %state.1: int32@grid = %state\n" in body(kernel)
    assert walks["i"] == 2


def test_the_result_for_an_inner_loop_is_discarded_if_less_was_known_when_it_was_found():
    def kernel(y, n):
        state = (n, n)
        for i in range(tile.program_id(0)):  # in the first trace, the elements differ between CTAs
            state = (state[0], state[1])
            for j in range(2):
                if state[0] == n:
                    break

    assert "while carry %index: int32@grid = 0, %break: bool@grid = False" in body(kernel)


def outcome(text: str) -> tuple[int, str]:
    """The numbers of values that the loops of a kernel carry, or the compilation error."""
    try:
        graph = built(Source.from_text(text, {"tile": tile})).graph
    except CompilationError as error:
        return 0, str(error)
    return sum(len(node.carried) for node in walk(graph.body) if isinstance(node, (For, While))), ""


@pytest.mark.parametrize("seeds", [range(n, n + 50) for n in range(0, 200, 50)], ids=str)
def test_the_values_that_loops_carry_do_not_depend_on_cached_results(seeds, forgetting):
    texts = [nest(Random(seed)) for seed in seeds]
    remembered = [outcome(text) for text in texts]
    forgetting()
    assert remembered == [outcome(text) for text in texts]
