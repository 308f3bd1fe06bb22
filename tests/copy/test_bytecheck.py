"""The byte check itself: it knows nothing of planners, and a plan that is wrong in any of its numbers does not pass."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import tilejit as tile
from bytecheck import Wrong, check_partition, check_runs, check_tensor_plan
from tilejit.layout import TileLayout
from tilejit.plan import BufferSpec, plan_copy

ARRAY = BufferSpec((130, 256), "float16", "global", region=(slice(66, 130), slice(64, 192)))
SHARED = BufferSpec((64, 128), "float16", "shared", layout=tile.swizzled("float16", (64, 128), 128))
PADDED = BufferSpec((16, 64), "float16", "shared", layout=TileLayout(((16, 72, "m"), (64, 1, "m"))))


def test_the_byte_check_imports_nothing_of_the_package():
    """It reads the layouts' and the plan's numbers, and does its own arithmetic."""
    tree = ast.parse((Path(__file__).parent / "bytecheck.py").read_text())
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names} | {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert imported == {"__future__", "itertools", "numpy"}


def changed(plan, **fields):
    return replace(plan, tensor_map=replace(plan.tensor_map, **fields))


TENSOR = {
    "a dimension that is too large": lambda p: changed(p, global_dim=(64, 131, 4)),
    "a dimension that is too small": lambda p: changed(p, global_dim=(64, 129, 4)),
    "a stride of another row": lambda p: changed(p, global_strides=(528, 128)),
    "a stride off 16 bytes": lambda p: changed(p, global_strides=(520, 128)),
    "a narrower box": lambda p: changed(p, box=(56, 64, 2)),
    "a box above 256": lambda p: changed(p, box=(64, 257, 2)),
    "another swizzle": lambda p: changed(p, swizzle=2),
    "no swizzle": lambda p: changed(p, swizzle=0),
    "another base": lambda p: changed(p, base_offset=16),
    "another element": lambda p: changed(p, dtype="float32"),
    "a fill of the dtype's that is none": lambda p: changed(p, dtype="uint16", oob_fill=1),
    "a neighbouring coordinate": lambda p: replace(p, issues=[((0, 65, 1), 0)]),
    "another place": lambda p: replace(p, issues=[((0, 66, 1), 1024)]),
    "a place off 128 bytes": lambda p: replace(p, issues=[((0, 66, 1), 16)]),
    "an issue twice": lambda p: replace(p, issues=p.issues * 2),
    "no issue": lambda p: replace(p, issues=[]),
    "a wrong number of bytes": lambda p: replace(p, bytes_per_issue=p.bytes_per_issue // 2),
}


@pytest.mark.parametrize("what", TENSOR)
@pytest.mark.parametrize("store", [False, True])
def test_a_tensor_plan_with_a_wrong_number_does_not_pass(what, store):
    """The right one does."""
    dst, src = (ARRAY, SHARED) if store else (SHARED, ARRAY)
    plan = plan_copy(dst, src, variant="tma").plan
    assert plan.issues == [((0, 66, 1), 0)] and plan.tensor_map.box == (64, 64, 2)
    check_tensor_plan(plan, dst, src)
    if what == "a dimension that is too small" or what == "a dimension that is too large":
        dst, src = _past_the_end(dst, src)
    with pytest.raises((Wrong, ValueError)):
        check_tensor_plan(TENSOR[what](plan), dst, src)


def _past_the_end(*sides):
    """The same copy, two rows further on, where the array's bounds matter."""
    return tuple(replace(s, region=(slice(68, 132), slice(64, 192))) if s.scope == "global" else s for s in sides)


PARTITION = {
    "narrower vectors": lambda p: replace(p, vec=4),
    "other widths": lambda p: replace(p, vec_bytes=8),
    "a round too few": lambda p: replace(p, outer=p.outer - 1),
    "other threads": lambda p: replace(p, threads=p.threads // 2),
    "no bounds checked": lambda p: replace(p, src_checked=()),
}


@pytest.mark.parametrize("what", PARTITION)
def test_a_partition_with_a_wrong_number_does_not_pass(what):
    """The right one does."""
    array = replace(ARRAY, region=(slice(68, 132), slice(64, 192)))
    plan = plan_copy(SHARED, array, scope="cta", threads=128, variant="ldgsts").plan
    check_partition(plan, SHARED, array)
    with pytest.raises((Wrong, IndexError)):
        check_partition(PARTITION[what](plan), SHARED, array)


RUNS = {
    "shorter runs": lambda p: replace(p, chunk_bytes=64),
    "longer runs": lambda p: replace(p, chunk_bytes=144),
    "a run too few": lambda p: replace(p, chunks=15, places=p.places[:15]),
    "a run twice": lambda p: replace(p, places=p.places[:15] + p.places[:1]),
    "another place": lambda p: replace(p, places=((p.places[0][0], 16), *p.places[1:])),
}


@pytest.mark.parametrize("what", RUNS)
def test_runs_with_a_wrong_number_do_not_pass(what):
    """The right ones do."""
    array = BufferSpec((16, 64), "float16", "global")
    plan = plan_copy(PADDED, array, variant="bulk").plan
    check_runs(plan, PADDED, array)
    with pytest.raises(Wrong):
        check_runs(RUNS[what](plan), PADDED, array)
