"""The byte checker itself: it is independent of the planners, and rejects a plan with any wrong number."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from bytecheck import NOWHERE, Wrong, check_partition, check_patches, check_rows, check_runs, check_tensor_plan
from selected_kernels import gather, load_patch, scatter, store_patch
from tilejit.layout import TileLayout
from tilejit.plan import BufferSpec, plan_copy

ARRAY = BufferSpec((130, 256), "float16", "global", region=(slice(66, 130), slice(64, 192)))
SHARED = BufferSpec((64, 128), "float16", "shared", layout=tile.swizzled("float16", (64, 128), 128))
PADDED = BufferSpec((16, 64), "float16", "shared", layout=TileLayout(((16, 72, "m"), (64, 1, "m"))))


@pytest.fixture(autouse=True)
def plans_as_they_are_made(monkeypatch):
    """Plans from the planner; those of cached kernels are plain data, in which `replace` changes nothing."""
    monkeypatch.setenv("TILEJIT_NO_CACHE", "1")


def test_the_byte_checker_imports_nothing_of_the_package():
    """It reads the numbers of layouts and plans, and does its own arithmetic."""
    tree = ast.parse((Path(__file__).parent / "bytecheck.py").read_text())
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
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
def test_a_tensor_plan_with_a_wrong_number_is_rejected(what, store):
    """The correct plan is accepted."""
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
def test_a_partition_with_a_wrong_number_is_rejected(what):
    """The correct plan is accepted."""
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
def test_runs_with_a_wrong_number_are_rejected(what):
    """The correct ones are accepted."""
    array = BufferSpec((16, 64), "float16", "global")
    plan = plan_copy(PADDED, array, variant="bulk").plan
    check_runs(plan, PADDED, array)
    with pytest.raises(Wrong):
        check_runs(RUNS[what](plan), PADDED, array)


# A 3 x 3 filter with a padding of 1 over images (2, 5, 6, 64), from pixel 32 on, at filter position (2, 0): 16 pixels, channels 0 to 64.
IMAGES, FILTER = np.zeros((2, 5, 6, 64), np.float16), ((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), None)
BLOCK = dict(F=FILTER, P=16, C=64, U=8, LAYOUT=tile.swizzled("float16", (2, 16, 64), 64), STAGE=1)
TO = BufferSpec((2, 16, 64), "float16", "shared", layout=BLOCK["LAYOUT"], region=(1, slice(0, 16), slice(0, 64)))


def patches(store: bool):
    """(plan, map, the bytes of the images, the first pixel, the filter position); for a store the middle one, which is inside."""
    block = np.zeros((16, 64), np.float16)
    if store:
        compiled = store_patch.compile(IMAGES, block, 32, 0, PLACE=(1, 1), **BLOCK)
    else:
        compiled = load_patch.compile(IMAGES, block, 32, 0, 0, 2, 0, 0, 0, **BLOCK)
    at = np.full((16, 64), NOWHERE)
    for r in range(16):
        image, y, x = np.unravel_index(32 + r, (2, 5, 6))
        y, x = (y, x) if store else (y + 1, x - 1)
        if 0 <= y < 5 and 0 <= x < 6:
            at[r] = 128 * (6 * (5 * image + y) + x) + 2 * np.arange(64)
    (copy,) = [c for c in compiled.copies if c.op == "copy_async"]
    return copy.plan, compiled.tensor_maps[0], at, (1, 0 - 1, 2 - 1, 0), (() if store else (2, 0))


PATCHES = {
    "another lower corner": lambda p, m: (p, replace(m, lower=(m.lower[0] + 1, m.lower[1]))),
    "another upper corner": lambda p, m: (p, replace(m, upper=(m.upper[0] - 1, m.upper[1]))),
    "a corner that no map has": lambda p, m: (p, replace(m, lower=(-129, m.lower[1]))),
    "other steps": lambda p, m: (p, replace(m, element_strides=(1, 2, 1, 1))),
    "fewer pixels": lambda p, m: (p, replace(m, pixels=8)),
    "fewer channels": lambda p, m: (p, replace(m, channels=16)),
    "channels that are no 16 bytes": lambda p, m: (p, replace(m, channels=12)),
    "another swizzle": lambda p, m: (p, replace(m, swizzle=3)),
    "other extents": lambda p, m: (p, replace(m, global_dim=(64, 5, 6, 2))),
    "images too few": lambda p, m: (p, replace(m, global_dim=(64, 6, 5, 1))),
    "another stride": lambda p, m: (p, replace(m, global_strides=(128, 640, 3840))),
    "another element": lambda p, m: (p, replace(m, dtype="uint8")),
    "another base": lambda p, m: (replace(p), replace(m, base_offset=16)),
    "a neighbouring channel": lambda p, m: (replace(p, issues=[((c[0] + 8, *c[1:]), at) for c, at in p.issues]), m),
    "a neighbouring pixel": lambda p, m: (replace(p, issues=[((c[0], c[1] + 1, *c[2:]), at) for c, at in p.issues]), m),
    "the other stage": lambda p, m: (replace(p, issues=[(c, at - 2048) for c, at in p.issues]), m),
    "an issue too few": lambda p, m: (replace(p, issues=p.issues[:1]), m),
    "an issue twice": lambda p, m: (replace(p, issues=p.issues + p.issues[:1]), m),
    "a start that does not move": lambda p, m: (replace(p, moving=(*p.moving[:3], None)), m),
    "a wrong number of bytes": lambda p, m: (replace(p, bytes_per_issue=p.bytes_per_issue + 16), m),
}


@pytest.mark.parametrize("what", PATCHES)
@pytest.mark.parametrize("store", [False, True])
def test_an_im2col_plan_with_a_wrong_number_is_rejected(what, store):
    """The correct plan is accepted."""
    plan, m, *rest = patches(store)
    assert plan.instructions == 2
    check_patches(plan, m, TO, *rest)
    with pytest.raises((Wrong, IndexError)):
        check_patches(*PATCHES[what](plan, m), TO, *rest)


ROWS = {
    "a wider box": lambda p, m: (p, replace(m, box=(64, 1))),
    "a higher box": lambda p, m: (p, replace(m, box=(32, 4))),
    "another height": lambda p, m: (p, replace(m, global_dim=(80, 39))),
    "another width": lambda p, m: (p, replace(m, global_dim=(64, 40))),
    "another stride": lambda p, m: (p, replace(m, global_strides=(128,))),
    "another swizzle": lambda p, m: (p, replace(m, swizzle=1)),
    "a neighbouring column": lambda p, m: (replace(p, issues=[((c + 8, r), at) for (c, r), at in p.issues]), m),
    "other rows": lambda p, m: (replace(p, issues=[((c, (r + 4) % 16), at) for (c, r), at in p.issues]), m),
    "the other stage": lambda p, m: (replace(p, issues=[(c, at - 2048) for c, at in p.issues]), m),
    "an issue too few": lambda p, m: (replace(p, issues=p.issues[1:]), m),
    "an issue twice": lambda p, m: (replace(p, issues=p.issues + p.issues[:1]), m),
    "a wrong number of bytes": lambda p, m: (replace(p, bytes_per_issue=p.bytes_per_issue // 4), m),
}


@pytest.mark.parametrize("what", ROWS)
@pytest.mark.parametrize("store", [False, True])
def test_a_plan_of_selected_rows_with_a_wrong_number_is_rejected(what, store):
    """The correct plan is accepted."""
    x, rows = np.zeros((40, 80), np.float16), np.array([*range(39, 27, -1), -1, 40, 3, 0], np.int32)
    options = {name: BLOCK[name] for name in ("C", "U", "LAYOUT", "STAGE")}
    compiled = (scatter if store else gather).compile(x, rows, np.zeros((16, 64), np.float16), 2, N=16, **options, target="sm_100a")
    at = np.array([160 * r + 32 + 2 * np.arange(64) if 0 <= r < 40 else np.full(64, NOWHERE) for r in rows])
    (copy,) = [c for c in compiled.copies if c.op == "copy_async"]
    rest, m = (at, 16, rows.tolist()), compiled.tensor_maps[0]
    assert copy.plan.instructions == 8
    check_rows(copy.plan, m, TO, *rest)
    with pytest.raises((Wrong, IndexError)):
        check_rows(*ROWS[what](copy.plan, m), TO, *rest)
