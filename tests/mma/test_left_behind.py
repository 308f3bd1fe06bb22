"""Copies and loops nested in the body of a pipelined loop: which are prefetched, and the warnings for those that are not."""

import warnings

import numpy as np
import pytest
import tilejit as tile

from tests.mma.test_pipelined import TARGETS

pytestmark = pytest.mark.usefixtures("assembled_later")
SOURCE = """
def rates(A, B, out, n, ROLES: tile.constexpr):
    s, t = tile.alloc((64,), A.dtype), tile.alloc((64,), A.dtype)
    total = tile.zeros((64,))
    for i in tile.pipelined(range(n), stages=3, warp_specialize=ROLES):
        tile.copy_async(s, A[i, 0:64])
        {}
        total += tile.load(s)
    tile.store(out[0:64], total)
"""
READ = "total += tile.load(t)"
BRANCH = ("if i % 2 == 0:", "    tile.copy_async(t, B[i, 0:64])", READ)
LOOP = ("for j in range(2):", "    tile.copy_async(t, B[i, 0:64])", "    tile.sync()", f"    {READ}")
SCOPE = ("with tile.warp(0):", "    tile.copy_async(t, B[i, 0:64])", "tile.sync()", READ)
WAITED = ("if i % 2 == 0:", "    tile.copy_async(t, B[i, 0:64]).wait()", READ, "tile.sync()")
BY_HAND = ("if i % 2 == 0:", "    tile.copy_async(t, B[i, 0:64])", "tile.cp_async_commit()", "tile.cp_async_wait(0)", "tile.sync()", READ, "tile.sync()")
RAW = tuple(line.replace("cp_async_commit()", "ptx.cp.async_.commit_group()").replace("cp_async_wait(0)", "ptx.cp.async_.wait_group(0)") for line in BY_HAND)
CHOSEN = ("tile.copy_async(t, B[tile.where(i % 2 == 0, i, i - 1), 0:64])", READ)
NOT_READ = ("if i == 0:", "    tile.copy_async(t, B[i, 0:64])")


def kernel(lines):
    return tile.jit(source=SOURCE.format("\n        ".join(lines)))


def warnings_of(lines, roles, target):
    specs = tile.ArraySpec((8, 64), "float32"), tile.ArraySpec((8, 64), "float32"), tile.ArraySpec((64,), "float32"), 8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kernel(lines).compile(*specs, ROLES=roles, target=target).warnings


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lines,where,cure", [(BRANCH, "a branch", "copy in every iteration, from a place that the condition chooses (tile.where)"),
                                              (LOOP, "a loop", "copy before the inner loop what all its iterations read, or make that loop a pipelined one"),
                                              (SCOPE, "a narrower scope", "copy outside of the scope")])
def test_a_copy_whose_data_the_loop_reads_and_that_is_not_prefetched_causes_a_warning(lines, where, cure, target, roles):
    """At its line. Waiting for it there is a remedy if the loop's own copies do not complete by groups."""
    found, = warnings_of(lines, roles, target)
    assert f"this copy_async is in {where} inside the pipelined loop at line 5, and only copies directly in that loop's body run ahead: {cure}" in found
    assert ("wait for it here" in found) == (target != "sm_80") and "<source>:8:13" in found


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lines", [WAITED, BY_HAND, RAW, CHOSEN, NOT_READ])
def test_an_awaited_copy_or_one_whose_data_nobody_reads_causes_no_warning(lines, target, roles):
    """For a copy in a branch the warning's remedy is a wait; on sm_80 other copies cannot be awaited in the loop."""
    if target == "sm_80" and lines in (WAITED, BY_HAND, RAW):
        return
    assert not warnings_of(lines, roles, target)
    if lines is not NOT_READ:
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-9, 9, (8, 64)).astype(np.float32) for _ in range(2))
        out = np.zeros(64, np.float32)
        kernel(lines).simulate(1, a, b, out, 8, ROLES=roles, target=target).raise_first()
        np.testing.assert_array_equal(out, a.sum(axis=0) + 2 * b[::2].sum(axis=0))


@tile.jit
def nested(A, B, out, n, m, ROLES: tile.constexpr):
    s, t = tile.alloc((64,), A.dtype), tile.alloc((64,), B.dtype)
    total = tile.zeros((64,))
    for i in tile.pipelined(range(n), stages=2, warp_specialize=ROLES):
        tile.copy_async(s, A[i, 0:64])
        for j in tile.pipelined(range(m), stages=3, warp_specialize=ROLES):
            tile.copy_async(t, B[i + j, 0:64])
            total += tile.load(t)
        total += tile.load(s)
    tile.store(out[0:64], total)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
def test_a_pipelined_loop_nested_in_another_is_prefetched_too(roles, target):
    """Both without roles: the producer only issues copies, and would omit the nested loop."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, (8, 64)).astype(np.float32) for _ in range(2))
    for n, m in ((0, 2), (1, 0), (3, 1), (4, 5)):
        out = np.zeros(64, np.float32)
        nested.simulate(1, a, b, out, n, m, ROLES=roles, target=target).raise_first()
        np.testing.assert_array_equal(out, sum((a[i] + b[i:i + m].sum(axis=0) for i in range(n)), np.zeros(64)))
    made = nested.compile(a, b, out, 4, 5, ROLES=roles, target=target)
    assert made.recipe["threads"] == 128 and not made.warnings
