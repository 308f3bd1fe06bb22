"""The graph checker: each rule is shown by a graph that breaks it."""

import pytest
import tilejit.ops.tiles.elementwise as ew
from tilejit.dtypes import bool_, float32, int32
from tilejit.errors import Loc
from tilejit.ir.check import GraphError, check, values
from tilejit.ir.graph import Block, Call, Carry, Const, For, Graph, If, Launch, Scope, Value, While
from tilejit.ops.tiles.generate import splat
from tilejit.types import Scalar, Tile, Uniformity

LOC = Loc("kernel.py", 3)
INT = Scalar(int32, Uniformity.GRID)
BOOL = Scalar(bool_, Uniformity.GRID)
TILE = Tile(float32, (16,))
ZERO, ONE = Const(0, int32), Const(1, int32)


def graph(*nodes, params=(), yields=(), num_warps=4) -> Graph:
    return Graph("kernel", tuple(params), Block(tuple(nodes), tuple(yields)), Launch(num_warps), "sm_90a", LOC)


def add(result: Value, *operands) -> Call:
    return Call(ew.add, tuple(operands), {}, (result,), LOC)


def tile() -> tuple[Value, Call]:
    value = Value("t", TILE)
    return value, Call(splat, (Const(0.0, float32),), {"shape": (16,)}, (value,), LOC)


def refuses(words: str, *nodes, **options) -> None:
    with pytest.raises(GraphError, match=words):
        check(graph(*nodes, **options))


def test_a_well_formed_graph_passes():
    n, i, k = Value("n", INT), Value("i", INT), Value("k", INT)
    step, after, chosen = Value("step", INT), Value("after", INT), Value("chosen", INT)
    test = Value("test", BOOL)
    t, make = tile()
    check(graph(
        For(i, ZERO, n, ONE, (Carry(ZERO, k, after),), Block((add(step, k, i),), (step,)), LOC),
        Call(ew.lt, (after, n), {}, (test,), LOC),
        If(test, Block((), (after,)), Block((), (ONE,)), (chosen,), LOC),
        Scope("warp", ONE, 2, Block((make, add(Value("u", TILE), t, t))), LOC),
        Scope("elect", None, 1, Block(), LOC),
        params=(n,)))


def test_a_value_used_before_its_definition_is_an_error():
    a, b = Value("a", INT), Value("b", INT)
    refuses("is used before it is defined", add(b, a, ONE), add(a, ONE, ONE))


def test_a_value_defined_twice_is_an_error():
    a = Value("a", INT)
    refuses("is defined twice", add(a, ONE, ONE), add(a, ONE, ONE))


def test_a_value_of_a_block_used_outside_it_is_an_error():
    a, b = Value("a", INT), Value("b", INT)
    refuses("is used after the block that defines it has ended",
            If(Const(True, bool_), Block((add(a, ONE, ONE),)), Block(), (), LOC), add(b, a, ONE))


def test_a_value_inside_a_loop_used_after_it_is_an_error():
    k, after = Value("k", INT), Value("after", INT)
    loop = While(Block((), (Const(True, bool_),)), (Carry(ZERO, k, after),), Block((), (k,)), LOC)
    check(graph(loop, add(Value("b", INT), after, ONE)))
    refuses("is used after the block", loop, add(Value("b", INT), k, ONE))


def test_yields_that_do_not_match_the_results_are_an_error():
    result = Value("r", INT)
    refuses("a block yields 0 operands where 1 are needed", If(Const(True, bool_), Block(), Block((), (ONE,)), (result,), LOC))
    refuses("becomes a value of type int32@grid",
            If(Const(True, bool_), Block((), (Const(1.0, float32),)), Block((), (ONE,)), (result,), LOC))


def test_a_yield_less_uniform_than_its_result_is_an_error():
    thread = Value("p", Scalar(int32, Uniformity.THREAD))
    branch = lambda t: If(Const(True, bool_), Block((), (thread,)), Block((), (ONE,)), (Value("r", Scalar(int32, t)),), LOC)
    check(graph(branch(Uniformity.THREAD), params=(thread,)))
    refuses("becomes a value", branch(Uniformity.CTA), params=(thread,))


def test_a_loop_carried_value_that_changes_type_is_an_error():
    k = Value("k", INT)
    loop = lambda init, after: For(Value("i", INT), ZERO, ONE, ONE, (Carry(init, k, after),), Block((), (k,)), LOC)
    refuses("is float32@grid after the loop", loop(ZERO, Value("after", Scalar(float32, Uniformity.GRID))))
    refuses("becomes a value of type", loop(Const(0.0, float32), Value("after", INT)))


def test_a_condition_that_is_not_a_bool_is_an_error():
    refuses("a condition is a bool scalar", If(ONE, Block(), Block(), (), LOC))
    refuses("a condition is a bool scalar", While(Block((), (ONE,)), (), Block(), LOC))
    refuses("yields its condition alone", While(Block(), (), Block(), LOC))


def test_loop_bounds_of_another_dtype_than_the_index_are_an_error():
    refuses("a bound of a loop over int32", For(Value("i", INT), ZERO, Const(1.0, float32), ONE, (), Block(), LOC))
    refuses("the step of a loop is not 0", For(Value("i", INT), ZERO, ONE, ZERO, (), Block(), LOC))
    refuses("the index of a loop is an integer scalar", For(Value("i", TILE), ZERO, ONE, ONE, (), Block(), LOC))


def test_a_tile_used_outside_the_scope_that_made_it_is_an_error():
    t, make = tile()
    refuses("is used in another scope than made it", make, Scope("warp", ZERO, 1, Block((add(Value("u", TILE), t, t),)), LOC))


def test_a_scope_outside_the_cta_or_not_narrower_than_its_parent_is_an_error():
    refuses("warp 4 is outside the CTA", Scope("warp", Const(4, int32), 1, Block(), LOC))
    refuses("a scope of 128 threads stands in one of 32", Scope("warp", ZERO, 1, Block((Scope("warpgroup", ZERO, 1, Block(), LOC),)), LOC))
    refuses("elect is one thread and has no first", Scope("elect", ZERO, 1, Block(), LOC))
    refuses("a scope of warp has a first", Scope("warp", None, 1, Block(), LOC))
    refuses("no scope is a 'cluster'", Scope("cluster", ZERO, 1, Block(), LOC))
    refuses("a scope yields nothing", Scope("warp", ZERO, 1, Block((), (ONE,)), LOC))


def test_a_kernel_body_that_yields_is_an_error():
    refuses("the body of a kernel yields nothing", yields=(ONE,))


def test_an_error_has_its_source_location():
    refuses(r"\(Call at kernel.py:3:1\)", add(Value("b", INT), Value("a", INT), ONE))


def test_all_values_that_a_graph_defines_are_found():
    i, k, after = Value("i", INT), Value("k", INT), Value("after", INT)
    g = graph(For(i, ZERO, ONE, ONE, (Carry(ZERO, k, after),), Block((), (k,)), LOC))
    assert set(values(g)) == {i, k, after}
