"""The cost of finding a tensor map: the number of examined boxes is bounded, and so is the time per site."""

import sys
from pathlib import Path

import pytest
from copy_strategies import copies, swizzled_copies
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit.ops.moves.copy_async.tma import boxes
from tilejit.plan import plan_copy

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from planning import LIMIT, REFERENCE, WORST, attempt, fastest


@pytest.fixture
def looked_at(monkeypatch):
    """Counts of the boxes made and of the maps tried since the last plan."""
    counts = {"boxes": 0, "maps": 0}

    def counting(name, kind):
        made = getattr(boxes, name)

        def call(*args):
            counts[kind] += 1
            return made(*args)
        monkeypatch.setattr(boxes, name, call)

    counting("Candidate", "boxes")
    counting("realise", "maps")
    return counts


@pytest.mark.parametrize("plans", [WORST, REFERENCE], ids=["worst", "reference"])
def test_the_search_for_a_site_examines_no_more_boxes_than_the_bound(looked_at, plans):
    """In practice far fewer: no site comes near the bound, so it never prevents the best box."""
    for plan in plans.values():
        looked_at.update(boxes=0, maps=0)
        attempt(plan)
        assert looked_at["boxes"] <= boxes.SEARCHED // 2 and looked_at["maps"] <= looked_at["boxes"]


def test_the_search_for_random_sites_examines_no_more_boxes_than_the_bound(looked_at):
    """Random layouts, regions and directions."""
    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.one_of(copies(rank=6), swizzled_copies()), st.booleans())
    def holds(sides, store):
        dst, src = sides if store else sides[::-1]
        looked_at.update(boxes=0, maps=0)
        attempt(lambda: plan_copy(dst, src, variant="tma"))
        assert looked_at["boxes"] <= boxes.SEARCHED // 2

    holds()


def test_the_search_stops_at_the_bound(looked_at, monkeypatch):
    """However many boxes there are: the choice is made among those found so far."""
    monkeypatch.setattr(boxes, "SEARCHED", 5)
    choice = WORST["most boxes"]()
    assert looked_at["boxes"] == 5 and choice.variant == "tma"


@pytest.mark.parametrize("plans", [WORST, REFERENCE], ids=["worst", "reference"])
def test_planning_takes_less_than_two_milliseconds_per_site(plans):
    """CPU time on an idle core; `tests/bench/planning.py` prints it, and says how a slower core is told from a slower plan."""
    times = {name: fastest(plan) for name, plan in plans.items()}
    assert {name: seconds for name, seconds in times.items() if seconds > LIMIT} == {}
