"""What operators of torch and JAX are told of a kernel; needs neither library."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import LaunchError
from tilejit.interop.results import checked_out, constants_of


@tile.jit
def scaled(x, y, factor):
    tile.store(y[0:4], tile.load(x[0:4]) * factor)


def test_results_are_made_like_arguments_or_by_functions_of_them():
    given = {"x": np.ones((4,), np.float32)}
    assert checked_out(scaled, None, np.zeros_like) == {}
    for out in ({"y": "x"}, {"y": lambda given: np.zeros(given["x"].shape, np.float32)}):
        (made,) = (make(given) for make in checked_out(scaled, out, np.zeros_like).values())
        assert (made.shape, made.dtype) == ((4,), np.float32)
        scaled.simulate(1, given["x"], made, 2.0).raise_first()
        assert (made == 2).all()


@pytest.mark.parametrize("out, says", [
    (["y"], "out is a dict of the arrays"), ({"y": 3}, "out is a dict of the arrays"), ({"z": "x"}, "scaled has no parameter 'z'"),
    ({"y": "xx"}, "scaled has no parameter 'xx'"), ({"y": "y"}, "makes y like y, which is a result itself")])
def test_wrong_results_are_errors_that_name_them(out, says):
    with pytest.raises(LaunchError, match=says):
        checked_out(scaled, out, np.zeros_like)


def test_constants_may_be_functions_of_the_arguments():
    assert constants_of({"BLOCK": lambda given: given["n"] * 2, "FAST": True}, {"n": 8}) == {"BLOCK": 16, "FAST": True}
