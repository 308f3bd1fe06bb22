"""A plan covers its region exactly once, whatever the layouts, regions, dtypes and directions are."""

from collections import Counter

from hypothesis import HealthCheck, given, settings, strategies as st

from bytecheck import check_partition, check_tensor_plan
from copy_strategies import copies, swizzled_copies
from tilejit.errors import DispatchError
from tilejit.plan import plan_copy

THOROUGH = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
THREADS = (("thread", 1), ("warp", 32), ("cta", 96), ("cta", 128))


@THOROUGH
@given(copies(below_zero=True), st.sampled_from(THREADS))
def test_an_ldgsts_plan_covers_its_region_exactly_once(sides, scope):
    """Where ldgsts accepts, every element of the region is written once, from its place or as the fill."""
    array, shared = sides
    try:
        choice = plan_copy(shared, array, scope=scope[0], threads=scope[1], target="sm_80")
    except DispatchError:
        return
    check_partition(choice.plan, shared, array)


@THOROUGH
@given(copies(below_zero=True), st.sampled_from(THREADS), st.booleans())
def test_a_copy_plan_covers_its_region_exactly_once(sides, scope, store):
    """The synchronous copy takes every pair of global and shared regions, in both directions."""
    dst, src = sides if store else sides[::-1]
    check_partition(plan_copy(dst, src, op="copy", scope=scope[0], threads=scope[1]).plan, dst, src)


@THOROUGH
@given(copies(), copies(), st.sampled_from(THREADS))
def test_a_copy_between_arrays_or_between_buffers_covers_its_region_exactly_once(one, other, scope):
    """Both sides in the same memory: a region to itself elsewhere."""
    for side in one:
        plan = plan_copy(side, side, op="copy", scope=scope[0], threads=scope[1]).plan
        check_partition(plan, side, side)


accepted = Counter()


@settings(THOROUGH, max_examples=400)
@given(st.one_of(copies(), swizzled_copies()), st.booleans())
def test_a_tensor_plan_covers_its_region_exactly_once(sides, store):
    """Where tma accepts, the walk of the descriptor moves exactly the bytes of the layouts."""
    array, shared = sides
    dst, src = (array, shared) if store else (shared, array)
    try:
        choice = plan_copy(dst, src, variant="tma")
    except DispatchError:
        accepted["declined"] += 1
        return
    accepted["store" if store else "load"] += 1
    accepted["swizzled"] += choice.plan.tensor_map.swizzle > 0
    check_tensor_plan(choice.plan, dst, src)


@settings(THOROUGH, max_examples=200)
@given(copies(below_zero=True, rank=3))
def test_a_tensor_load_may_begin_before_the_array(sides):
    """Coordinates below zero are filled, exactly to the element."""
    array, shared = sides
    try:
        choice = plan_copy(shared, array, variant="tma")
    except DispatchError:
        return
    check_tensor_plan(choice.plan, shared, array)


def test_random_copies_are_often_accepted_by_the_tensor_engine():
    """The property above is not empty."""
    assert accepted["load"] > 20 and accepted["store"] > 20 and accepted["swizzled"] > 20, accepted
