"""The meaning of facts, and that all their implementations agree."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tilejit.errors import LaunchError
from tilejit.runtime.arrays import ArrayView
from tilejit.runtime.facts import condition, describe_fact, evaluate_fact, kind_of
from tilejit.runtime.launch_expressions import evaluate, expression
from tilejit.runtime.writer import python_of

EXTENTS = st.one_of(st.integers(0, 5), st.sampled_from([2**31 - 1, 2**31, 2**32, 2**40]))
STRIDES = st.one_of(st.integers(-6, 6), st.sampled_from([2**31 - 1, 2**31, -2**31, 2**29, 2**40]))


@st.composite
def views(draw, extents=EXTENTS, strides=STRIDES, rank=None):
    rank = draw(st.integers(0, 3)) if rank is None else rank
    return ArrayView(draw(st.integers(0, 4096)) + 100_000, tuple(draw(extents) for _ in range(rank)),
                     tuple(draw(strides) for _ in range(rank)), draw(st.sampled_from(["uint8", "float16", "float32", "int64"])), 0)


small_views = views(st.integers(0, 4), st.integers(-5, 5))


def byte_addresses(view):
    """The byte addresses of every element."""
    places = {view.pointer}
    for extent, stride in zip(view.shape, view.strides):
        places = {place + i * stride * view.nbytes_per_element for place in places for i in range(extent)}
    return {place + byte for place in places for byte in range(view.nbytes_per_element)}


def facts_about(view, i=0):
    found = [("aligned", i, 16), ("aligned", i, 1), ("fits32", i)]
    for d in range(len(view.shape)):
        found += [("size_multiple", i, d, 2), ("size_is", i, d, 3), ("size_at_least", i, d, 2),
                  ("stride_multiple", i, d, 2), ("stride_is", i, d, 1)]
    return found


def as_python(fact, arguments):
    names = {}
    for i, argument in enumerate(arguments):
        if isinstance(argument, ArrayView):
            names[f"p{i}"] = argument.pointer
            names.update({f"n{i}_{d}": extent for d, extent in enumerate(argument.shape)})
            names.update({f"m{i}_{d}": stride for d, stride in enumerate(argument.strides)})
        else:
            names[f"x{i}"] = argument
    return bool(eval(python_of(condition(fact, [kind_of(argument) for argument in arguments])), names))


@given(views())
def test_facts_about_sizes_strides_and_alignment_agree_with_the_view(view):
    unused = 0 in view.shape
    assert evaluate_fact(("aligned", 0, 16), [view]) == (unused or view.pointer % 16 == 0)
    for d, (extent, stride) in enumerate(zip(view.shape, view.strides)):
        assert evaluate_fact(("size_multiple", 0, d, 4), [view]) == (extent % 4 == 0)
        assert evaluate_fact(("size_is", 0, d, 3), [view]) == (extent == 3)
        assert evaluate_fact(("size_at_least", 0, d, 3), [view]) == (extent >= 3)
        assert evaluate_fact(("stride_multiple", 0, d, 4), [view]) == (unused or extent <= 1 or stride % 4 == 0)
        assert evaluate_fact(("stride_is", 0, d, 1), [view]) == (unused or extent <= 1 or stride == 1)


@given(views())
def test_fits32_bounds_extents_strides_and_byte_offsets(view):
    span = 0 if 0 in view.shape else (1 + sum(
        abs(stride) * (extent - 1) for extent, stride in zip(view.shape, view.strides))) * view.nbytes_per_element
    expected = span < 2**31 and all(extent <= 2**31 - 2**20 for extent in view.shape) and all(abs(stride) < 2**31 for stride in view.strides)
    assert evaluate_fact(("fits32", 0), [view]) == expected


@settings(max_examples=300)
@given(small_views, small_views, st.integers(-40, 40))
def test_no_overlap_never_holds_for_arrays_that_share_a_byte(a, b, apart):
    b.pointer = a.pointer + apart
    bytes_a, bytes_b = byte_addresses(a), byte_addresses(b)
    answer = evaluate_fact(("no_overlap", 0, 1), [a, b])
    assert answer == evaluate_fact(("no_overlap", 1, 0), [b, a][::-1])
    if bytes_a & bytes_b:
        assert not answer
    elif bytes_a and bytes_b and (max(bytes_a) < min(bytes_b) or max(bytes_b) < min(bytes_a)):
        assert answer


@pytest.mark.parametrize("value, fits", [(0, True), (2**31 - 1, True), (2**31, False), (-2**31, True), (-2**31 - 1, False)])
def test_scalar_fits32_is_the_range_of_int32(value, fits):
    assert evaluate_fact(("scalar_fits32", 0), [value]) is fits


@given(views(), small_views, st.integers(-2**40, 2**40))
def test_the_generated_python_expression_agrees_with_evaluation(view, other, number):
    arguments = [view, other, number]
    for fact in [*facts_about(view), *facts_about(other, 1), ("no_overlap", 0, 1), ("scalar_fits32", 2), ("scalar_multiple", 2, 8)]:
        assert as_python(fact, arguments) == evaluate_fact(fact, arguments)


def test_facts_survive_json():
    view = ArrayView(64, (4, 8), (8, 1), "float32", 0)
    for fact in facts_about(view):
        assert evaluate_fact(json.loads(json.dumps(fact)), [view]) == evaluate_fact(fact, [view])


def test_objects_with_pointer_shape_strides_and_dtype_can_be_evaluated():
    spec = SimpleNamespace(pointer=32, shape=(4,), strides=(1,), dtype=SimpleNamespace(name="float32"))
    assert evaluate_fact(("aligned", 0, 32), [spec]) and evaluate_fact(("fits32", 0), [spec])


def test_expressions_are_evaluated_in_prefix_form():
    view = ArrayView(64, (12, 8), (8, 1), "float32", 0)
    assert evaluate(expression(["add", ["mul", ["stride", 0, 0], 4], ["floordiv", ["size", 0, 0], 5]]), [view]) == 34
    assert evaluate(7, []) == 7


@pytest.mark.parametrize("value, multiple", [(0, True), (8, True), (2**40, True), (12, False), (-8, False)])
def test_scalar_multiple_holds_only_for_nonnegative_numbers(value, multiple):
    assert evaluate_fact(("scalar_multiple", 0, 8), [value]) is multiple


@given(st.floats())
def test_scalar_positive_holds_for_positive_normal_numbers_of_float32(number):
    fact = "scalar_positive", 0
    with np.errstate(all="ignore"):
        narrow = np.float32(number)
    held = 2.0 ** -126 <= number <= float(np.finfo(np.float32).max)
    assert evaluate_fact(fact, [number]) == as_python(fact, [number]) == held
    assert not held or narrow > 0 and np.isfinite(narrow) and 1 / narrow > 0


@given(views(), views(), st.integers(-2, 20))
def test_size_within_compares_an_extent_with_a_number_or_another_extent(view, other, number):
    for d, extent in enumerate(view.shape):
        for e, most in enumerate(other.shape):
            fact = "size_within", 0, d, 1, e
            assert evaluate_fact(fact, [view, other]) == as_python(fact, [view, other]) == (extent <= most)
        assert evaluate_fact(("size_within", 0, d, 1), [view, number]) == as_python(("size_within", 0, d, 1), [view, number]) == (extent <= number)


def test_an_unknown_fact_is_an_error():
    with pytest.raises(LaunchError, match="lucky"):
        evaluate_fact(("lucky", 0), [3])


def test_every_fact_is_described_by_a_sentence():
    for fact in [("aligned", 0, 16), ("size_multiple", 0, 1, 64), ("size_is", 0, 0, 2), ("size_at_least", 0, 0, 2),
                 ("size_within", 0, 0, 1), ("size_within", 0, 0, 1, 1), ("stride_multiple", 0, 0, 8), ("stride_is", 0, 1, 1), ("fits32", 0), ("scalar_fits32", 0), ("scalar_multiple", 0, 8),
                 ("scalar_positive", 0), ("no_overlap", 0, 1)]:
        assert describe_fact(fact, ("A", "B")).startswith(("A", "offsets in A"))
    assert "argument 3" in describe_fact(("fits32", 3))
