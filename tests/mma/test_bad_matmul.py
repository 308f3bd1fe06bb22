"""Invalid calls of `matmul` and `grouped_matmul` are errors that say what to pass instead, before anything is launched."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import tilejit as tile
from tilejit import kernels
from tilejit.errors import CompilationError, LaunchError
from tilejit.kernels.matmul.choice import Config
from tilejit.kernels.operands import lines, overlaps, possible_overlaps
from tilejit.runtime.arrays import ArrayView, describe

from tests.gpu import in_child, needs_gpu
from tests.mma.products import added, assert_close

A, B = np.ones((64, 96), np.float16), np.ones((96, 80), np.float16)


@tile.jit
def numbered(sums, number, row, column, factor=2.0):
    return sums * factor


@tile.jit
def scaled_by(sums, row, column, factor):
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
    (dict(scale_a="two"), "scale_a must be a number or an array of factors, not str"),
    (dict(scale_b=True), "scale_b must be a number or an array of factors, not bool"),
    (dict(config=dict(bm=64)), "config is a Config for sm_90a, not {'bm': 64}"),
    (dict(precision=["tf32"]), r"precision is None, or 'tf32' .* not \['tf32'\]"),
    (dict(fast_accum="yes"), "fast_accum is True or False, not 'yes'"),
])
def test_invalid_options_of_a_product_are_errors(options, words):
    with pytest.raises(LaunchError, match=words):
        kernels.matmul(A, B, **options)


class OnDevice:
    """One number that claims to be on a device."""

    shape = ()

    def __tilejit_view__(self):
        return ArrayView(256, (1,), (1,), "float32", 0)


WRONG = [("bias", r"arguments\[0\]: str is not an array"), (None, r"arguments\[0\]: NoneType is"), (2 ** 70, r"arguments\[0\] must be a number that int64 "
         "holds, not 1180591620717411303424"), (1e39, r"arguments\[0\] must be a number that float32 holds, not 1e\+39"),
         (np.ones(3, np.complex64), r"arguments\[0\]: the array's dtype complex64"), (OnDevice(), r"the operands are on host, and arguments\[0\] on 0")]


@pytest.mark.parametrize("x,words", WRONG)
def test_an_invalid_epilogue_argument_is_named_as_in_the_call(x, words):
    for _ in range(2):  # when planned, and with a cached plan
        with pytest.raises(LaunchError, match="^" + words):
            kernels.matmul(A, B, epilogue=scaled_by, arguments=(x,))
        with pytest.raises(LaunchError, match="^" + words):
            kernels.grouped_matmul([A], [B], None, numbered, (x,))
        with pytest.raises(LaunchError, match="^" + words):
            kernels.grouped_matmul(A, B[None], None, numbered, (x,), offs=np.array([64], np.int32))
    assert_close(kernels.matmul(A, B, epilogue=scaled_by, arguments=(2,)), 2 * A, B)


@pytest.mark.parametrize("x,words", [(1e39, "scale_a must be a number that float32 holds, not 1e\\+39"), (10 ** 40, "a number that float32 holds, not 1000"),
                                     (np.complex64(2), "scale_a: the array's dtype complex64"), (OnDevice(), "on host, and scale_a on 0")])
def test_an_invalid_scale_is_an_error(x, words):
    with pytest.raises(LaunchError, match=words):
        kernels.matmul(A, B, scale_a=x)


@pytest.mark.parametrize("kind", [int, float, np.int64, np.float16, np.uint8])
def test_integer_scales_are_converted_to_floats(kind):
    """Whatever their type: as int32 the product of these would overflow, and 2^70 would be 0."""
    assert_close(kernels.matmul(A, B, scale_a=kind(3)), 3 * A, B)
    if kind in (int, float):
        assert (kernels.matmul(A.astype(np.int8), B.astype(np.int8), scale_a=kind(65536), scale_b=kind(65536)) == np.float32(96 * 2.0 ** 32)).all()
        assert (kernels.matmul(A.astype(np.int8), B.astype(np.int8), scale_a=kind(2 ** 70)) == np.float32(96 * 2.0 ** 70)).all()


@pytest.mark.parametrize("call,name", [
    (lambda: kernels.matmul(None, B), "a"), (lambda: kernels.matmul(A, "b"), "b"), (lambda: kernels.matmul(A, B, [1]), "out"),
    (lambda: kernels.matmul(A, B, epilogue=added, tiles=(None,)), r"tiles\[0\]"),
    (lambda: kernels.tune(None, B), "a"), (lambda: kernels.tune(A, B, epilogue=added, tiles=(None,)), r"tiles\[0\]"),
    (lambda: kernels.grouped_matmul([A, None], [B, B]), r"a\[1\]"), (lambda: kernels.grouped_matmul([A], [B], [None]), r"out\[0\]"),
    (lambda: kernels.grouped_matmul(A, B[None], offs=[64]), "offs"), (lambda: kernels.grouped_matmul(A, B[None], "out", offs=A), "out"),
])
def test_an_argument_that_is_not_an_array_is_named_as_in_the_call(call, name):
    with pytest.raises(LaunchError, match=f"^{name}: (NoneType|str|list) is not an array"):
        call()


class Foreign:
    """An array of a library that the products know nothing of, with nothing but a protocol."""

    def __init__(self, x):
        self.__array_interface__ = x.__array_interface__
        self.x = x


class Derived(np.ndarray):
    pass


def test_arrays_of_another_library_are_refused_where_its_functions_would_be_needed_and_derived_ones_are_not():
    a = np.random.default_rng(0).integers(-3, 4, (2, 2, 64, 64)).astype(np.float16)
    words = "arrays of torch, CuPy, NumPy and tilejit, and Foreign is of none of them: pass numpy.asarray"
    for call in (lambda x: kernels.matmul(x(a[0, 0]), x(a[0, 1])), lambda x: kernels.grouped_matmul([x(a[0, 0])], [x(a[0, 1])])[0],
                 lambda x: kernels.matmul(x(a), x(a))[0, 0] if x is Foreign else kernels.matmul(a[0, 0], x(a[0, 1]))):
        with pytest.raises(LaunchError, match=words):
            call(Foreign)
        np.testing.assert_array_equal(call(lambda x: x.view(Derived)), a[0, 0].astype(np.float32) @ a[0, 1].astype(np.float32))


def test_a_read_only_result_is_an_error():
    """Also after an earlier call with a writable one. A result without elements is accepted."""
    out, wide = np.zeros((64, 80), np.float16), np.zeros((2, 1, 64, 80), np.float16)
    offs, none = np.array([64], np.int32), np.zeros((0, 80), np.float16)
    for writable in (True, False):
        for x in (out, wide, none):
            x.flags.writeable = writable
        for call in (lambda: kernels.matmul(A, B, out), lambda: kernels.matmul(np.broadcast_to(A, (2, 1, 64, 96)), B, wide),
                     lambda: kernels.grouped_matmul([A, A], [B, B], [np.zeros_like(out), out]), lambda: kernels.grouped_matmul(A, B[None], out, offs=offs),
                     lambda: kernels.tune(A, B, out)):
            if writable:
                call()
            else:
                with pytest.raises(LaunchError, match="out is read-only: pass a writable array"):
                    call()
        assert kernels.matmul(A[:0], B, none) is none


@pytest.mark.parametrize("options,words", [(dict(config=dict(bm=64)), "config is a Config"), (dict(precision=["tf32"]), "precision is None")])
def test_invalid_options_of_a_grouped_product_are_errors(options, words):
    for a, b, more in (([A], [B], {}), (A, B[None], dict(offs=np.array([64], np.int32)))):
        with pytest.raises(LaunchError, match=words):
            kernels.grouped_matmul(a, b, **options, **more)


@pytest.mark.parametrize("late", [-64, 129, 192, 1000])
@pytest.mark.parametrize("stream", [False, True])
def test_a_configuration_with_more_deferred_columns_than_a_tile_has_is_an_error(late, stream):
    a, b = np.ones((256, 4096), np.float16), np.ones((4096, 384), np.float16)
    config = replace(Config.of(128, 128, stages=2), behind=False, width=64, buffers=2, late=late, stream=stream)
    with pytest.raises(LaunchError, match=f"the configuration's late must be at least 0 and at most its bn of 128 columns, not {late}"):
        kernels.matmul(a, b, None, of_rows, config=config)


def test_an_epilogue_of_batched_matrices_takes_their_number_and_may_have_defaults():
    stacked = np.stack([A, 2 * A])
    with pytest.raises(LaunchError, match="called with the sums, the matrix's number, the row, the column and 1 of"):
        kernels.matmul(stacked, B, epilogue=added, tiles=(np.zeros((2, 64, 80), np.float16),))
    assert_close(kernels.matmul(stacked, B, epilogue=numbered), 2 * stacked, B)
    with pytest.raises(LaunchError, match="called with the sums, the product's number, the row, the column$"):
        kernels.grouped_matmul([A], [B], epilogue=of_rows)
    with pytest.raises(LaunchError, match="arguments is a tuple"):
        kernels.grouped_matmul([A], [B], epilogue=numbered, arguments=3.0)
    assert_close(kernels.grouped_matmul([A], [B], None, numbered, (3.0,))[0], 3 * A, B)


@pytest.mark.parametrize("epilogue", [of_rows, of_nothing])
def test_an_epilogue_that_returns_another_shape_is_an_error(epilogue):
    with pytest.raises(CompilationError, match="an epilogue must return a tile of the shape of its sums"):
        kernels.matmul(A, B, epilogue=epilogue)


def overlapping(home):
    """(a, b, out) with partly shared memory, and the expected error; none if only their address ranges intersect."""
    room = lambda rows, columns: home(np.zeros((rows, columns), np.float16))
    x, wide = room(256, 256), room(128, 512)
    yield x, room(256, 256), x, "out overlaps a"
    yield room(256, 256), x, x, "out overlaps b"
    yield x[0:128], room(256, 256), x[100:228], "out overlaps a"
    yield room(64, 256), x[100:228].T, x[120:184, 0:128], "out overlaps b"
    yield wide[:, 0:128], room(128, 256), wide[:, 128:384], None
    yield wide[0:64, 0:256], wide[64:128, 0:256].T, wide[0:64, 256:320], None
    yield x[0:128, 0:128], x[128:256, 0:128], x[0:128, 128:256], None


def check_overlaps(home, back):
    for a, b, out, words in overlapping(home):
        if words is None:
            assert kernels.matmul(a, b, out) is out and (back(out) == 0).all()
        else:
            for _ in range(2):  # when planned, and with a cached plan
                with pytest.raises(LaunchError, match=words + ", which is read while results are stored"):
                    kernels.matmul(a, b, out)


def test_a_result_that_overlaps_an_operand_is_an_error():
    """The check is per element: columns between those of an operand are allowed."""
    check_overlaps(np.asarray, lambda x: x)


def overlapping_lists(home):
    """(a, b, out) of lists whose matrices share memory in part, and the expected error; none if only their address ranges intersect."""
    room = lambda rows, columns: home(np.zeros((rows, columns), np.float16))
    x, wide, tall, b = room(256, 256), room(128, 512), room(512, 128), [room(64, 64), room(64, 64), room(64, 128)]
    rows = [room(m, 64) for m in (32, 100, 64)]
    fresh = [room(m, n) for m, n in ((32, 64), (100, 64), (64, 128))]
    yield rows, b, [*fresh[:2], wide[64:, 384:]], None
    yield [rows[0], x[0:100, 64:128], rows[2]], b, [fresh[0], x[99:199, 64:128], fresh[2]], r"out\[1\] overlaps a\[1\], which is read"
    yield [rows[0], x[0:100, 64:128], rows[2]], b, [x[68:100, 0:64], fresh[1], x[0:64, 128:256]], None  # columns on either side
    yield [rows[0], x[0:100, 64:128], rows[2]], b, [x[68:100, 8:72], *fresh[1:]], r"out\[0\] overlaps a\[1\], which is read"
    yield rows, [b[0], b[1], x[0:64, 0:128]], [x[32:64, 64:128], *fresh[1:]], r"out\[0\] overlaps b\[2\], which is read"
    yield rows, [b[0], x[0:64, 0:64].T, b[2]], [x[64:96, 0:64], *fresh[1:]], None
    yield rows, b, [x[0:32, 0:64], x[31:131, 0:64], fresh[2]], r"out\[[01]\] overlaps out\[[01]\]: each product"
    yield rows, b, [x[0:32, 0:64], x[0:100, 64:128], x[0:64, 128:256]], None
    yield rows, b, [tall[0:64, 0:32].T, tall[64:128, 0:100].T, tall[128:256, 0:64].T], None  # column-major, so that operands are swapped
    yield rows, [b[0], tall[0:64, 0:64], b[2]], [tall[0:64, 0:32].T, tall[64:128, 0:100].T, tall[128:256, 0:64].T], r"out\[0\] overlaps b\[1\],"
    yield rows, b, [tall[0:64, 0:32].T, tall[60:124, 0:100].T, tall[128:256, 0:64].T], r"out\[[01]\] overlaps out\[[01]\]:"
    # rows with different pitches
    yield [rows[0], x[0:200:2, 0:64], rows[2]], b, [x[1:65:2, 0:64], fresh[1], fresh[2]], None
    yield [rows[0], x[0:200:2, 0:64], rows[2]], b, [x[32:64, 0:64], fresh[1], fresh[2]], r"out\[0\] overlaps a\[1\],"
    yield [rows[0], x[0:200:2, 0:64], rows[2]], b, [x[32:64, 64:128], fresh[1], fresh[2]], None
    # matrices without elements overlap nothing, and one operand may be that of several products
    yield [x[0:0, 0:64], *rows[1:]], b, [x[8:8, 0:64], x[0:100, 0:64], fresh[2]], None
    yield [x[0:100, 0:0], rows[1]], [x[0:0, 0:64], b[1]], [x[0:100, 0:64], fresh[1]], None
    yield [rows[1], rows[1]], [b[1], b[1]], [x[0:100, 0:64], x[100:200, 0:64]], None


def check_list_overlaps(home, back):
    for a, b, out, words in overlapping_lists(home):
        if words is None:
            assert kernels.grouped_matmul(a, b, out) is out and all((back(z) == 0).all() for z in out)
        else:
            for _ in range(2):  # when planned, and with a cached plan
                with pytest.raises(LaunchError, match=words):
                    kernels.grouped_matmul(a, b, out)


def check_stack_overlaps(home, back):
    x, offs = home(np.zeros((256, 256), np.float16)), home(np.array([40, 100], np.int32))
    b, three, own = (home(np.zeros(shape, np.float16)) for shape in ((2, 64, 64), (3, 64, 64), (100, 64)))
    for a, some, out, ends, words in ((x[0:100, 0:64], b, x[0:100, 64:128], offs, None), (x[0:100, 0:64], b, x[99:199, 0:64], offs, "a"),
                                      (own, three[0:2], three[1:3].reshape(128, 64)[0:100], offs, "b")):
        if words is None:
            assert kernels.grouped_matmul(a, some, out, offs=ends) is out and (back(out) == 0).all()
        else:
            for _ in range(2):
                with pytest.raises(LaunchError, match=f"out overlaps {words}, which is read while results are stored"):
                    kernels.grouped_matmul(a, some, out, offs=ends)


def test_results_of_a_list_that_overlap_operands_or_each_other_are_errors():
    check_list_overlaps(np.asarray, lambda x: x)


def test_a_result_of_stacked_rows_that_overlaps_an_operand_or_the_offsets_is_an_error():
    stacked_rows = np.zeros((2, 128, 64), np.float16)
    check_stack_overlaps(np.asarray, lambda x: x)
    out = stacked_rows[0, 0:100]
    with pytest.raises(LaunchError, match="out overlaps offs,"):
        kernels.grouped_matmul(np.zeros((100, 64), np.float16), np.zeros((2, 64, 64), np.float16), out, offs=out[:1, :4].reshape(4).view(np.int32))


def test_the_overlap_check_reports_all_matrices_that_share_bytes():
    """Compared with NumPy, matrix by matrix: pairs that `meeting` omits share nothing, and pairs that share memory are included."""
    rng, room, kept, shared = np.random.default_rng(0), np.zeros(4000, np.float16), 0, 0
    for _ in range(300):
        views = []
        for _ in range(9):
            (m, n), pitch = rng.integers(1, 9, 2), int(rng.choice([16, 16, 16, 24, 1, 0]))
            step = int(rng.choice([1, 1, 2, 0]))
            v = np.lib.stride_tricks.as_strided(room[int(rng.integers(0, 1000)):], (m, n), (2 * pitch, 2 * step))
            v = v[::-1] if rng.random() < 0.2 else v
            views.append(v.T if rng.random() < 0.3 else v)
        described = [describe(v) for v in views]
        places = np.array([lines(v) for v in described]).T.reshape(4, 3, 3)
        found = set(possible_overlaps(places, np.array([v.pointer for v in described]).reshape(3, 3)))
        for result in range(3):
            for at in range(6 + result):
                meets = np.shares_memory(views[6 + result], views[at])
                assert (result, at) in found or not meets
                shared += meets
        kept += len(found)
    assert shared and kept < 3 * shared, (shared, kept)


def test_elements_of_a_result_that_share_an_address_are_found_for_any_strides():
    for m, n, down, across in product(range(1, 5), range(1, 5), range(-5, 6), range(-5, 6)):
        v = np.lib.stride_tricks.as_strided(np.zeros(64, np.float16)[32:], (m, n), (2 * down, 2 * across))
        places = {i * down + j * across for i in range(m) for j in range(n)}
        assert overlaps(describe(v)) == (len(places) < m * n), (m, n, down, across)


@tile.jit
def added_twice(sums, row, column, beside, more):
    return sums + beside + more


def in_place(home, back):
    for config in (None, Config.of(64, 64, splits=2), Config.of(64, 64, swapped=True)):
        sums = home(np.full((64, 80), 5, np.float16))
        kernels.matmul(home(A), home(B), sums, added, tiles=(sums,), config=config)
        assert (back(sums) == 101).all()
        sums, other = home(np.full((64, 80), 5, np.float16)), home(np.full((64, 80), 7, np.float16))
        kernels.matmul(home(A), home(B), sums, added_twice, tiles=(other, sums), config=config)  # threads load the second tile
        assert (back(sums) == 108).all()
    with pytest.raises(LaunchError, match=r"out overlaps tiles\[0\],"):
        kernels.matmul(home(A[:, 0:80]), home(B[0:80]), sums, added, tiles=(sums[::-1],))


def test_an_epilogue_tile_may_be_the_result_itself():
    """The product is then added to it. Not if it is the same memory with other strides."""
    in_place(np.asarray, lambda x: x)


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_overlapping_arrays_are_refused_or_right_on_the_gpu():
    check_overlaps(tile.to_device, lambda x: x.numpy())
    in_place(tile.to_device, lambda x: x.numpy())


@pytest.mark.misread_by_racecheck  # pieces of work are passed between threads through a ring
@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_overlapping_arrays_of_a_list_or_a_stack_are_refused_or_right_on_the_gpu():
    check_list_overlaps(tile.to_device, lambda x: x.numpy())
    check_stack_overlaps(tile.to_device, lambda x: x.numpy())
