"""What `matmul` and `grouped_matmul` cannot do as asked is an error that says what to give instead, before anything is launched."""

import numpy as np
import pytest
import tilejit as tile
from tests.gpu import in_child, needs_gpu
from tests.mma.products import close
from tilejit import kernels
from tilejit.errors import CompilationError, LaunchError
from tilejit.kernels.plan import Config

A, B = np.ones((64, 96), np.float16), np.ones((96, 80), np.float16)


@tile.jit
def added(sums, row, column, beside):
    return sums + beside


@tile.jit
def numbered(sums, number, row, column, factor=2.0):
    return sums * factor


@tile.jit
def of_rows(sums, row, column):
    return tile.sum(sums, axis=1)


@tile.jit
def of_nothing(sums, row, column):
    tile.static_assert(True)


@pytest.mark.parametrize("options,words", [
    (dict(epilogue=added), r"the epilogue added has the parameters \(sums, row, column, beside\), and it is called with the sums, the row, the column$"),
    (dict(epilogue=added, arguments=(1, 2)), "the row, the column and 2 of the arguments and tiles"),
    (dict(epilogue=added, arguments=3), r"arguments is a tuple, as in arguments=\(bias,\), not int"),
    (dict(epilogue=added, arguments=np.ones(80, np.float32)), "arguments is a tuple.* not ndarray"),
    (dict(epilogue=added, tiles=np.ones((64, 80), np.float16)), "tiles is a tuple.* not ndarray"),
    (dict(arguments=0), "arguments is a tuple"),
    (dict(scale_a="two"), "scale_a is a number or an array of factors, not str"),
    (dict(scale_b=True), "scale_b is a number or an array of factors, not bool"),
])
def test_options_that_no_product_takes(options, words):
    with pytest.raises(LaunchError, match=words):
        kernels.matmul(A, B, **options)


def test_an_epilogue_of_several_matrices_takes_their_number_and_may_have_defaults():
    stacked = np.stack([A, 2 * A])
    with pytest.raises(LaunchError, match="called with the sums, the matrix's number, the row, the column and 1 of"):
        kernels.matmul(stacked, B, epilogue=added, tiles=(np.zeros((2, 64, 80), np.float16),))
    close(kernels.matmul(stacked, B, epilogue=numbered), 2 * stacked, B)
    with pytest.raises(LaunchError, match="called with the sums, the product's number, the row, the column$"):
        kernels.grouped_matmul([A], [B], epilogue=of_rows)
    with pytest.raises(LaunchError, match="arguments is a tuple"):
        kernels.grouped_matmul([A], [B], epilogue=numbered, arguments=3.0)
    close(kernels.grouped_matmul([A], [B], None, numbered, (3.0,))[0], 3 * A, B)


@pytest.mark.parametrize("epilogue", [of_rows, of_nothing])
def test_an_epilogue_that_returns_no_tile_of_its_sums_shape(epilogue):
    with pytest.raises(CompilationError, match="an epilogue returns a tile of the shape of its sums"):
        kernels.matmul(A, B, epilogue=epilogue)


def overlapping(home):
    """(a, b, out) whose memory is shared in part, and what is said of it; where only their ranges meet nothing is wrong."""
    room = lambda rows, columns: home(np.zeros((rows, columns), np.float16))
    x, wide = room(256, 256), room(128, 512)
    yield x, room(256, 256), x, "out lies where a does"
    yield room(256, 256), x, x, "out lies where b does"
    yield x[0:128], room(256, 256), x[100:228], "out lies where a does"
    yield room(64, 256), x[100:228].T, x[120:184, 0:128], "out lies where b does"
    yield wide[:, 0:128], room(128, 256), wide[:, 128:384], None
    yield wide[0:64, 0:256], wide[64:128, 0:256].T, wide[0:64, 256:320], None
    yield x[0:128, 0:128], x[128:256, 0:128], x[0:128, 128:256], None


def judged(home, back):
    for a, b, out, words in overlapping(home):
        if words is None:
            assert kernels.matmul(a, b, out) is out and (back(out) == 0).all()
        else:
            for _ in range(2):  # planned, and from the plan
                with pytest.raises(LaunchError, match=words + ", which is read while results are stored"):
                    kernels.matmul(a, b, out)


def test_a_result_that_lies_where_an_operand_does():
    """Element for element: columns between those of an operand are free."""
    judged(np.asarray, lambda x: x)


def in_place(home, back):
    for config in (None, Config.of(64, 64, splits=2), Config.of(64, 64, swapped=True)):
        sums = home(np.full((64, 80), 5, np.float16))
        kernels.matmul(home(A), home(B), sums, added, tiles=(sums,), config=config)
        assert (back(sums) == 101).all()
    with pytest.raises(LaunchError, match=r"out lies where tiles\[0\] does"):
        kernels.matmul(home(A[:, 0:80]), home(B[0:80]), sums, added, tiles=(sums[::-1],))


def test_a_tile_may_be_the_result_itself():
    """To which the product is added; not if it lies there in another order."""
    in_place(np.asarray, lambda x: x)


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_what_lies_in_one_place_on_the_gpu():
    judged(tile.to_device, lambda x: x.numpy())
    in_place(tile.to_device, lambda x: x.numpy())
