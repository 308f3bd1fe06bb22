"""Plans of copies from shared to tensor memory: compared with reference plans, and byte by byte according to the ISA."""

import numpy as np
import pytest
from copy_cases import cases
from hypothesis import given, settings, strategies as st
from tilejit.errors import TileError
from tilejit.layout import Swizzle, TileLayout, axis, standard_layout
from tilejit.plan import BufferSpec, plan_copy

CASES = {c["name"]: c for c in cases("tcgen05_cp")}
KIND = {"128x256b": (128, 32, [(128, 1)], []), "4x256b": (4, 32, [(4, 32)], []), "128x128b": (128, 16, [(128, 1)], []),
        "64x128b.warpx2::02_13": (64, 16, [(64, 1)], [0, 64]), "64x128b.warpx2::01_23": (64, 16, [(2, 64), (32, 1)], [0, 32]),
        "32x128b.warpx4": (32, 16, [(32, 1)], [0, 32, 64, 96])}


def spec(side, dtype, scope):
    swizzle = Swizzle(*side["swizzle"]) if side["swizzle"] else None
    layout = TileLayout([tuple(s) for s in side["shards"]], replicas=[tuple(r) for r in side["replicas"]], swizzle=swizzle)
    return BufferSpec(tuple(side["shape"]), dtype, scope, layout=layout, region=tuple(slice(a, b) for a, b in side["region"]))


def planned(case):
    to, of = spec(case["tmem"], case["dtype"], "tmem"), spec(case["shared"], case["dtype"], "shared")
    return to, of, plan_copy(to, of, target="sm_100a", **case["options"]).plan


def lane_of(digits, row):
    lane = 0
    for n, stride in reversed(digits):
        lane, row = lane + row % n * stride, row // n
    return lane


def moved_bytes(plan):
    """{byte of tensor memory: byte of the shared buffer} of a plan, from the ISA's tables alone."""
    rows, width, digits, replicas = KIND[plan.shape + (f".{plan.multicast}" if plan.multicast else "")]
    pitch, moved = 16 << plan.swizzle, {}
    for into, begin in plan.issues:
        for row in range(rows):
            for byte in range(width):
                across = byte // 16 * (16 if plan.swizzle else 16 * plan.ldo)
                at = begin + row % 8 * pitch + row // 8 * 16 * plan.sdo + across + byte % 16
                at ^= at >> 3 & (pitch - 16)
                for shift in replicas or [0]:
                    place = ((into >> 16) + lane_of(digits, row) + shift) * 2048 + (into & 0xFFFF) * 4 + byte
                    assert place not in moved, "a byte is written twice"
                    moved[place] = at
    return moved


def wanted_bytes(to, of, nbytes):
    """The same from the two layouts."""
    extents = [s.stop - s.start for s in to.region]
    index = np.indices(extents).reshape(len(extents), -1)
    source_index = np.indices([s.stop - s.start for s in of.region]).reshape(len(of.region), -1)
    into = to.layout.apply(*(i + s.start for i, s in zip(index, to.region)), shape=to.shape)
    at = np.broadcast_to(of.layout.offset_of(*(i + s.start for i, s in zip(source_index, of.region)), shape=of.shape), index.shape[1:]) * nbytes
    lanes, columns = (np.broadcast_to(into.get(a, 0), at.shape) for a in (axis.TLane, axis.TCol))
    shifts = [0]
    for n, stride, _ in to.layout.replicas:
        shifts = [s + k * stride for k in range(n) for s in shifts]
    return {int((lane + shift) * 2048 + column * nbytes + b): int(a + b) for lane, column,
            a in zip(lanes, columns, at) for shift in shifts for b in range(nbytes)}


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["expected"]])
def test_a_plan_moves_the_bytes_of_the_layouts_with_no_more_copies_than_the_reference(name):
    """Shape, descriptor fields and swizzle are the reference's; every byte is where the two layouts say."""
    case = CASES[name]
    to, of, plan = planned(case)
    expected = case["expected"]
    assert (plan.shape, plan.multicast, plan.sdo, plan.swizzle) == tuple(expected[k] for k in ("shape", "multicast", "sdo", "swizzle"))
    assert plan.ldo == expected["ldo"]
    assert len(plan.issues) <= expected["issues"]
    assert set(plan.issues[:64]) == {tuple(i) for i in expected["issue_list"]}
    assert moved_bytes(plan) == wanted_bytes(to, of, np.dtype(to.dtype.np).itemsize)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if not c["expected"]])
def test_copies_that_no_descriptor_expresses_are_declined_with_every_tried_shape(name):
    """The reasons are in the error."""
    with pytest.raises(TileError, match="tcgen05_cp"):
        planned(CASES[name])


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(sorted(KIND)), st.sampled_from(["uint8", "bfloat16", "float32"]), st.integers(0, 3), st.integers(1, 3),
       st.booleans(), st.data())
def test_a_plan_covers_its_region_once(kind, dtype, mode, tiles, wide, data):
    """Random standard layouts and regions of either buffer: legal and exactly the bytes of the layouts, or declined."""
    nbytes = {"uint8": 1, "bfloat16": 2, "float32": 4}[dtype]
    rows, width, digits, replicas = KIND[kind]
    unit = width // nbytes
    columns = max(16 << mode, 16) // nbytes * data.draw(st.integers(1, 3)) * (2 if mode == 0 else 1)
    high = rows * (2 if wide and rows <= 64 else 1)
    high = -(-high // 8) * 8
    layout = standard_layout(8 * nbytes, (high, columns), (16 << mode) if mode else 0)
    taken = min(tiles * unit, columns)
    taken -= taken % unit
    if not taken:
        return
    start = data.draw(st.integers(0, (columns - taken) // (16 // nbytes))) * (16 // nbytes)
    first = data.draw(st.sampled_from([0, high - rows]))
    lead = data.draw(st.integers(0, 2)) * (16 // nbytes)
    to_layout = TileLayout([(n, s, "TLane") for n, s in digits] + [(taken + lead, 1, "TCol")],
                           replicas=[(len(replicas), replicas[1], "TLane")] if replicas else ())
    to = BufferSpec((rows, taken + lead), dtype, "tmem", layout=to_layout, region=(slice(0, rows), slice(lead, lead + taken)))
    of = BufferSpec((high, columns), dtype, "shared", layout=layout, region=(slice(first, first + rows), slice(start, start + taken)))
    try:
        plan = plan_copy(to, of, target="sm_100a").plan
    except TileError as error:
        span = 16 << mode
        crosses = start * nbytes // span != (start * nbytes + taken * nbytes - 1) // span
        cut = crosses and (start * nbytes % span or taken * nbytes % span)  # no layout of such a region has digits
        assert first % 8 or start * nbytes % width or cut, error
        return
    assert moved_bytes(plan) == wanted_bytes(to, of, nbytes)
    assert len(plan.issues) <= max(1, taken * nbytes // 16) * (rows // 4 if plan.shape == "4x256b" else 1)
