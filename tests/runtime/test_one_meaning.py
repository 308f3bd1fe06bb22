"""A launch means what its recipe says: followed step by step, by the generated Python function, and in machine code."""

import sys
from contextlib import contextmanager
from math import prod

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit.errors import LaunchError
from tilejit.runtime.arrays import ArrayView
from tilejit.runtime.element_types import FLOAT32_LIMIT, integer_limits
from tilejit.runtime.facts import evaluate_fact
from tilejit.runtime.launch_expressions import evaluate, expression, leaves, python_text
from tilejit.runtime.recipe import Recipe

from tests.runtime.fakes import FakeDriver, make_recipe, make_torch
from tests.runtime.test_facts import facts_about

ARRAYS = ("float64", "float32", "float16", "bfloat16", "int32", "int64", "uint8", "float8_e4m3fn")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
EXTENTS, STRIDES = st.sampled_from([0, 1, 2, 3, 8, 64, 1000]), st.sampled_from([-7, 0, 1, 2, 8, 64, 1000])
WIDE = st.sampled_from([2 ** 31 - 1, 2 ** 31, -2 ** 31, -2 ** 31 - 1, 2 ** 40])
FLOATS = st.one_of(st.floats(-1e30, 1e30), st.sampled_from([float("inf"), -0.0, FLOAT32_LIMIT * (1 - 2 ** -53)]))


@contextmanager
def fake_torch():
    known, sys.modules["torch"] = sys.modules.get("torch"), make_torch()
    try:
        yield sys.modules["torch"]
    finally:
        del sys.modules["torch"]
        if known is not None:
            sys.modules["torch"] = known


@st.composite
def arguments(draw, torch):
    """Kinds of arguments as a recipe has them, with values. The first is an array."""
    kinds, values = [], []
    for n in range(draw(st.integers(2, 4))):
        if n == 0 or n > 1 and draw(st.booleans()):
            rank = draw(st.integers(0 if n else 1, 3))
            extents, strides = (st.one_of(x, WIDE) if draw(st.integers(0, 9)) == 0 else x for x in (EXTENTS, STRIDES))
            dtype = draw(st.sampled_from(ARRAYS))
            kinds.append(["array", dtype, rank])
            values.append(torch.Tensor(16 * draw(st.integers(1, 2 ** 16)), [abs(draw(extents)) for _ in range(rank)],
                                       [draw(strides) for _ in range(rank)], getattr(torch, dtype)))
            continue
        dtype = draw(st.sampled_from((*INTEGERS, "float32", "float64", "bool")))
        limits = integer_limits(dtype)
        number = st.booleans() if dtype == "bool" else FLOATS if limits is None else st.one_of(
            st.integers(*limits), st.sampled_from(limits))
        kinds.append(["scalar", dtype])
        values.append(min(draw(number), 2 ** 63 - 1) if limits else draw(number))
    return kinds, values


def leaves_of(kinds):
    """The numbers of which map fields are made; 64-bit scalars would overflow in machine code,
    as would the products of others."""
    found = []
    for i, kind in enumerate(kinds):
        if kind[0] == "array":
            found += [["ptr", i], *([name, i, d] for name in ("size", "stride") for d in range(kind[2]))]
        elif kind[1] in ("int8", "uint8", "int16", "uint16"):
            found.append(["scalar", i])
    return found


def formulas(found):
    """Expressions of at most two operations on top of each other; divisors are constants."""
    small, divisor = st.integers(-20, 20), st.integers(-9, 9).filter(bool)
    simple = st.one_of(small, st.sampled_from(found))
    for _ in range(2):
        pair = [st.tuples(st.sampled_from(("add", "sub", "mul", "min", "max")), simple, simple),
                st.tuples(st.sampled_from(("floordiv", "mod")), simple, divisor), st.tuples(st.just("abs"), simple)]
        simple = st.one_of(simple, *pair)
    return simple


def between(low, x, high):
    return ["max", low, ["min", x, high]]


@st.composite
def maps(draw, kinds):
    """A tensor map that the driver would accept, whatever the arguments are."""
    rank, formula = draw(st.integers(1, 5)), formulas(leaves_of(kinds))
    return {"argument": 0, "base_offset": ["mul", 16, draw(formula)], "dtype": "float32", "rank": rank,
            "dims": [between(1, draw(formula), 2 ** 32) for _ in range(rank)],
            "strides": [["mul", 16, between(0, draw(formula), 2 ** 30)] for _ in range(rank - 1)],
            "box": [32, 2, 1, 3, 1][:rank], "element_strides": [1, 2, 1, 1, 4][:rank], "interleave": 0,
            "swizzle": draw(st.sampled_from((0, 3))), "l2_promotion": draw(st.integers(0, 3)),
            "oob_fill": draw(st.integers(0, 1)), "origin": "host"}


@st.composite
def recipes(draw, kinds):
    choices = [["map", n] for n in range(draw(st.integers(0, 2)))]
    made = [draw(maps(kinds)) for _ in choices]
    for i, kind in enumerate(kinds):
        if kind[0] == "scalar":
            choices.append(["scalar", i, kind[1]])
            continue
        choices += [["ptr", i], *([name, i, d, width] for name in ("size", "stride") for d in range(kind[2])
                                  for width in ("i32", "i64"))]
    cluster = draw(st.sampled_from((None, [2, 1, 1], [1, 2, 2])))
    persistent = {}
    if cluster is None and draw(st.booleans()):
        persistent["persistent"] = True
        choices += [["grid", 0], ["grid", 1], ["grid", 2]]
    return make_recipe(arguments=kinds, params=draw(st.permutations(choices)), maps=made, cluster=cluster,
                       pdl=draw(st.booleans())) | persistent


def launched(driver, function, *call):
    """What a launch function returned, or that it raised; the launches and the maps that it made."""
    driver.launches.clear()
    driver.encoded.clear()
    try:
        result = function(*call)
    except LaunchError:
        result = LaunchError
    return result, list(driver.launches), list(driver.encoded)


def compare(driver, launcher, grid, stream, values):
    """Launch in both ways, and compare with the recipe followed step by step."""
    call, holds = (grid, stream, tuple(values)), launcher.mismatch(values) == []
    native, native_launches, native_maps = launched(driver, launcher._native, *call)
    python, python_launches, python_maps = launched(driver, launcher._python, *call)
    try:
        wanted = launcher.recipe.check_grid(*grid)
    except LaunchError:
        wanted = None
    if not holds or not wanted:
        refused = (False, False) if not holds else (False, LaunchError)
        assert (native, python) == (refused if not holds or wanted is None else (True, True))
        assert not native_launches and not python_launches
    elif python is LaunchError:  # a number does not fit in its parameter
        assert native is False
        with pytest.raises(Exception, match="format requires"):
            launcher.parameters(values, grid)
    else:
        assert native is True and python is True and native_launches == python_launches and len(native_launches) == 1
        driver.encoded.clear()
        made, parameters = native_launches[0], launcher.parameters(values, grid)
        assert native_maps == python_maps == driver.encoded and made.params == parameters
        started = (min(prod(grid), launcher.link.multiprocessors), 1, 1) if launcher.recipe.persistent else grid
        assert (made.grid, made.block, made.shared) == (started, (launcher.recipe.threads, 1, 1),
                                                        launcher.recipe.shared)
        assert made.stream == (5 if stream is None else stream)


def view_of(value, kind):
    return ArrayView(value._pointer, value.shape, value._strides, kind[1], 0) if kind[0] == "array" else value


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_python_and_machine_code_write_the_bytes_that_the_recipe_gives(data):
    """At a first call, and at a second one with arrays at other addresses or a scalar that its dtype does not hold."""
    with fake_torch() as torch:
        kinds, values = data.draw(arguments(torch))
        views = [view_of(value, kind) for value, kind in zip(values, kinds)]
        facts = [fact for i, view in enumerate(views) if kinds[i][0] == "array"
                 for fact in (*facts_about(view, i), ("aligned", i, 32))]
        guards = [[list(fact), evaluate_fact(fact, views)]
                  for fact in data.draw(st.lists(st.sampled_from(facts), max_size=6))]
        if guards and data.draw(st.integers(0, 3)) == 0:
            data.draw(st.sampled_from(guards))[1] ^= True
        driver = FakeDriver()
        launcher = driver.launcher(data.draw(recipes(kinds)) | {"guards": guards})
        assert launcher.prepare()
        grid, stream = (data.draw(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 4))),
                        data.draw(st.sampled_from((None, 3))))
        compare(driver, launcher, grid, stream, values)
        for value, kind in zip(values, kinds):
            if kind[0] == "array":
                value._pointer += data.draw(st.sampled_from((0, 16)))
        wrong = [i for i, kind in enumerate(kinds) if kind[0] == "scalar"]
        if data.draw(st.integers(0, 3)):
            i = data.draw(st.sampled_from(wrong))
            limits = integer_limits(kinds[i][1])
            values[i] = data.draw(st.sampled_from((limits[0] - 1, limits[1] + 1, 0.5) if limits else (1, None)))
        compare(driver, launcher, (4, 4, 4), stream, values)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_evaluation_and_python_text_of_an_expression_give_one_number(data):
    view = ArrayView(data.draw(st.integers(0, 2 ** 40)), (data.draw(EXTENTS),), (data.draw(STRIDES),), "float32", 0)
    x = expression(data.draw(formulas([["ptr", 0], ["size", 0, 0], ["stride", 0, 0], ["scalar", 1]])))
    number = data.draw(st.integers(-99, 99))
    named = {"ptr": view.pointer, "size": view.shape[0], "stride": view.strides[0], "scalar": number}
    text = python_text(x, lambda leaf: repr(named[leaf.kind]))
    assert evaluate(x, [view, number]) == eval(text)
    assert {leaf.kind for leaf in leaves(x)} <= set(named)


def test_an_operation_that_does_not_exist_is_refused_when_the_recipe_is_read():
    dims = {"argument": 0, "base_offset": 0, "dtype": "float32", "rank": 1, "dims": [["power", ["size", 0, 0], 2]],
            "strides": [], "box": [32], "element_strides": [1], "interleave": 0, "swizzle": 0, "l2_promotion": 0,
            "oob_fill": 0}
    with pytest.raises(LaunchError, match="'power' is not an operation"):
        Recipe.of(make_recipe(maps=[dims]))
