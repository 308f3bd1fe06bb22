"""Plans against reference plans: legal for the hardware, the right bytes, and no more instructions."""

import time

import pytest

from bytecheck import check_partition, check_tensor_plan
from copy_cases import cases, specs
from tilejit.errors import TileError
from tilejit.plan import plan_copy

TMA = {c["id"]: c for c in cases("tma")}
LDGSTS = {c["id"]: c for c in cases("ldgsts")}

# What the hardware refuses, whatever a reference says: shared addresses off 128 bytes, an array off 16.
REFUSED = {
    "base-offset-unaligned": "an array that starts at a multiple of 16 bytes",
    "shared-offset-unaligned": "begins at byte 8",
    "shared-offset-64B-with-sw3": "begins at byte 64",
    "shared-gap": "a box would begin at byte 144",
    "shared-gap-explicit": "a box would begin at byte 144",
    "1d-int8-8": "no box of it is a multiple of 16 bytes",
    "2d-global-row-stride-unaligned": "not known to be a multiple of 16 bytes",
    "test_tma/g2s-transpose-partial-offset": "the same contiguous elements innermost",
    "test_tma/s2g-oob-nan": "fill= on a store",
    "test_tma/reject-s2g-nan-on-non-float": "fill= on a store",
    "test_tma/reject-unknown-oob": 'fill is 0 or "nan"',
}


def planned(case):
    array, shared = specs(case)
    dst, src = (shared, array) if case["direction"] == "g2s" else (array, shared)
    fill = {"zero": 0, None: 0}.get(case["fill"], case["fill"])
    return dst, src, lambda: plan_copy(dst, src, target=case["target"], variant="tma", fill=fill)


@pytest.mark.parametrize("name", [n for n in TMA if n not in REFUSED])
def test_a_tensor_plan_moves_the_bytes_of_the_layouts_with_no_more_instructions_than_the_reference(name):
    """Every reference case that the hardware takes is planned, byte for byte, at the reference's cost or below."""
    case = TMA[name]
    dst, src, plan = planned(case)
    choice = plan()
    assert choice.variant == "tma"
    check_tensor_plan(choice.plan, dst, src)
    assert case["issues"] is None or len(choice.plan.issues) <= case["issues"]
    assert choice.plan.instructions == len(choice.plan.issues)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_hardware_refuses_is_declined_with_the_reason(name):
    """A plan that would fault or be refused by the driver is declined in words."""
    with pytest.raises(TileError) as failure:
        planned(TMA[name])[2]()
    assert REFUSED[name] in str(failure.value)


@pytest.mark.parametrize("name", LDGSTS)
def test_an_ldgsts_plan_moves_the_bytes_of_the_layouts_with_no_more_instructions_than_the_reference(name):
    """Where the reference has a plan ours is no longer; where it has none, ours is right or declines."""
    case = LDGSTS[name]
    array, shared = specs(case)
    plan = lambda: plan_copy(shared, array, scope=case["scope"], threads=case["threads"], target="sm_80", variant="ldgsts").plan
    if case["expected"] is None:
        try:
            made = plan()
        except TileError as error:
            assert "provably aligned" in str(error)
            return
    else:
        made = plan()
        vec_bytes, outer, cache = case["expected"]
        assert (made.vec_bytes, made.outer, made.cache) == (vec_bytes, outer, cache)
    assert made.instructions == made.outer
    assert made.threads == {"thread": 1, "warp": 32, "cta": case["threads"]}[case["scope"]]
    check_partition(made, shared, array)


def test_planning_takes_less_than_two_milliseconds_a_site():
    """Every reference case is planned twice; the faster time counts."""
    slow = {}
    for name, case in TMA.items():
        if name in REFUSED:
            continue
        plan, best = planned(case)[2], 1.0
        for _ in range(3):
            start = time.perf_counter()
            plan()
            best = min(best, time.perf_counter() - start)
        if best > 0.002:
            slow[name] = best
    assert not slow
