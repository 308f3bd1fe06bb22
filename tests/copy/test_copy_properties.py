"""A plan covers its region exactly once, for any layouts, regions, dtypes and directions."""

from collections import Counter

from bytecheck import check_partition, check_tensor_plan
from copy_strategies import copies, swizzled_copies
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit.errors import DispatchError
from tilejit.ops.memory.partition import constant_steps
from tilejit.plan import plan_copy

THOROUGH = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
THREADS = (("thread", 1), ("warp", 32), ("cta", 96), ("cta", 128))


def test_an_ldgsts_plan_covers_its_region_exactly_once():
    """Wherever ldgsts accepts, which is often, every element of the region is written once, from its source or as the fill."""
    accepted = Counter()

    @THOROUGH
    @given(copies(below_zero=True), st.sampled_from(THREADS))
    def holds(sides, scope):
        array, shared = sides
        try:
            choice = plan_copy(shared, array, scope=scope[0], threads=scope[1], target="sm_80", variant="ldgsts")
        except DispatchError:
            return
        accepted[choice.plan.vec_bytes] += 1
        check_partition(choice.plan, shared, array)

    holds()
    assert sum(accepted.values()) > 50 and min(accepted[n] for n in (4, 8, 16)) > 4, accepted


@THOROUGH
@given(copies(below_zero=True), st.sampled_from(THREADS), st.booleans())
def test_a_copy_plan_covers_its_region_exactly_once(sides, scope, store):
    """The synchronous copy accepts every pair of global and shared regions, in both directions."""
    dst, src = sides if store else sides[::-1]
    check_partition(plan_copy(dst, src, op="copy", scope=scope[0], threads=scope[1]).plan, dst, src)


@THOROUGH
@given(copies(), copies(), st.sampled_from(THREADS))
def test_a_copy_between_arrays_or_between_buffers_covers_its_region_exactly_once(one, other, scope):
    """Both sides in the same memory: a region to another position."""
    for side in one:
        plan = plan_copy(side, side, op="copy", scope=scope[0], threads=scope[1]).plan
        check_partition(plan, side, side)


@THOROUGH
@given(copies(below_zero=True), st.sampled_from(THREADS), st.booleans())
def test_a_vector_plan_covers_its_region_exactly_once(sides, scope, store):
    """The fallback of copy_async accepts every pair of global and shared regions, in both directions."""
    dst, src = sides if store else sides[::-1]
    check_partition(plan_copy(dst, src, scope=scope[0], threads=scope[1], variant="vector").plan, dst, src)


def test_a_tensor_plan_covers_its_region_exactly_once():
    """Wherever tma accepts, which is often, executing the descriptor moves exactly the bytes of the layouts."""
    accepted = Counter()

    @settings(THOROUGH, max_examples=400)
    @given(st.one_of(copies(), swizzled_copies()), st.booleans())
    def holds(sides, store):
        array, shared = sides
        dst, src = (array, shared) if store else (shared, array)
        try:
            choice = plan_copy(dst, src, variant="tma")
        except DispatchError:
            return
        accepted["store" if store else "load"] += 1
        accepted["swizzled"] += choice.plan.tensor_map.swizzle > 0
        check_tensor_plan(choice.plan, dst, src)

    holds()
    assert accepted["load"] > 20 and accepted["store"] > 20 and accepted["swizzled"] > 20, accepted


@settings(THOROUGH, max_examples=200)
@given(copies(below_zero=True, rank=3))
def test_a_tensor_load_may_begin_before_the_array(sides):
    """Negative coordinates are filled, exactly to the element."""
    array, shared = sides
    try:
        choice = plan_copy(shared, array, variant="tma")
    except DispatchError:
        return
    check_tensor_plan(choice.plan, shared, array)


def test_constant_address_steps_agree_with_the_layout():
    """Emitted code adds one constant to every thread's shared address, which must agree with the layout, whatever its swizzle. Most plain
    layouts need one address per thread."""
    constant = Counter()

    @THOROUGH
    @given(st.one_of(copies(), swizzled_copies()), st.sampled_from(THREADS))
    def holds(sides, scope):
        array, shared = sides
        plan = plan_copy(shared, array, op="copy", scope=scope[0], threads=scope[1]).plan
        region = tuple(r if isinstance(r, slice) else slice(r, r + 1) for r in shared.region)
        starts, extents = tuple(r.start for r in region), tuple(r.stop - r.start for r in region)
        steps = constant_steps(plan, shared.layout, shared.shape, starts, extents)

        def offset(thread, first):
            own = iter(plan.coordinates(thread, first))
            at = [s + (next(own) if n != 1 else 0) for s, n in zip(starts, extents)]
            return int(shared.layout.offset_of(*at, shape=shared.shape))

        for step, moved in steps.items():
            for thread in range(plan.threads):
                if step * plan.threads + thread < plan.vectors:
                    assert offset(thread, step * plan.threads) == offset(thread, 0) + moved
                    whole = plan.coordinates(thread, step * plan.threads)
                    assert whole == [a + b for a, b in zip(plan.coordinates(thread, 0), plan.coordinates(0, step * plan.threads))]
        if plan.carry_free and shared.layout.swizzle is None and plan.outer <= 64 and plan.order == tuple(range(len(plan.order))):
            constant.update(("all" if len(steps) == plan.outer else "some",))

    holds()
    assert constant["all"] > 20, constant
