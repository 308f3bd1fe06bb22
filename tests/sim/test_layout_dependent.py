"""Races that only the chosen layouts prevent: a warning where they hold, a race where they do not."""

import re
import warnings

import numpy as np
import pytest
import tilejit as tile
from faulty import check

X = np.arange(1024, dtype=np.float32)


@tile.jit
def handed_on(x, y, SYNC: tile.constexpr, N: tile.constexpr):
    s = tile.alloc((N,), x.dtype)
    tile.store(s, tile.load(x[0:N]))
    if SYNC:
        tile.sync()
    tile.store(y[0:N], tile.load(s) + 1)  # loads


def line_of(kernel, mark: str) -> int:
    return next(n for n, text in enumerate(kernel.source.lines, kernel.source.first_line) if text.rstrip().endswith(f"# {mark}"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_a_load_of_what_each_thread_stored_itself_depends_on_the_layouts(num_warps, dtype):
    x = (X % 100).astype(dtype)
    for seed in range(4):
        finding, = handed_on.simulate((1,), x, np.zeros_like(x), False, 1024, num_warps=num_warps, seed=seed).findings
        line = line_of(handed_on, "loads")
        assert (finding.kind, finding.line, finding.other.line) == ("layout-dependent", line, line - 3)
        assert re.match(r"thread 0 reads bytes 0 to \d of shared memory \(s\[0\]\), written at line \d+ without a barrier "
                        r"between the two\. It is the same thread", finding.message)
    assert not handed_on.simulate((1,), x, np.zeros_like(x), True, 1024, num_warps=num_warps).findings


def test_a_plain_launch_warns_of_it_and_gives_the_result():
    y = np.zeros_like(X)
    with pytest.warns(tile.TileWarning, match="layout-dependent at line") as caught:
        handed_on[1,](X, y, False, 1024)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(y, X + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handed_on[1,](X, y, True, 1024)


def test_verify_passes_with_the_warning():
    with pytest.warns(tile.TileWarning, match="layout-dependent"):
        result = tile.verify(handed_on, (1,), X, np.zeros_like(X), False, 1024, reference=lambda x, y, *_: x + 1)
    assert result.passed


def test_a_tile_that_several_warps_hold_is_read_by_each_of_them():
    """32 elements and four warps: three of them read what the first one stored, which is a race."""
    for seed in range(4):
        found = handed_on.simulate((1,), X, np.zeros_like(X), False, 32, num_warps=4, seed=seed).findings
        assert [(f.kind, f.line) for f in found] == [("race", line_of(handed_on, "loads"))]
    assert not handed_on.simulate((1,), X, np.zeros_like(X), True, 32, num_warps=4).findings
    found = handed_on.simulate((1,), X, np.zeros_like(X), False, 32, num_warps=1).findings
    assert [f.kind for f in found] == ["layout-dependent"]


@tile.jit
def updated_in_place(x, y, SYNC: tile.constexpr):
    s = tile.alloc((1024,), x.dtype)
    tile.store(s, tile.load(x[0:1024]))
    tile.sync()
    for i in range(3):
        v = tile.load(s)  # loads
        if SYNC:
            tile.sync()
        tile.store(s, v * 2)
        if SYNC:
            tile.sync()
    tile.sync()
    tile.store(y[0:1024], tile.load(s))


def test_a_load_of_what_the_previous_iteration_stored_depends_on_the_layouts():
    """The store after the load does not: its value depends on the load, and another layout would bring a barrier with it."""
    for seed in range(4):
        found = updated_in_place.simulate((1,), X, np.zeros_like(X), False, seed=seed).findings
        assert [(f.kind, f.line) for f in found] == [("layout-dependent", line_of(updated_in_place, "loads"))]
    check(updated_in_place, (1,), X, np.zeros_like(X), True, result=1, expected=X * 8)


@tile.jit
def overwritten(x, y, WHAT: tile.constexpr, SYNC: tile.constexpr):
    s, n = tile.alloc((1024,), tile.float32), tile.zeros((1024,), tile.float32)
    tile.store(s, tile.load(x[0:1024]))
    tile.sync()
    v = tile.load(s)  # loads
    if SYNC:
        tile.sync()
    if WHAT == "unrelated":
        tile.store(s, tile.load(y[0:1024]))  # stores
    elif WHAT == "zero":
        tile.store(s, n)  # stores
    elif WHAT == "derived":
        for i in range(3):
            n = n * 2 + v
        tile.store(s, tile.where(n > 3, n, 0.0))
    elif WHAT == "decided":
        if tile.sum(v) > 0:
            tile.store(s, n)
    tile.sync()
    tile.store(y[0:1024], tile.load(s) + v)


@pytest.mark.parametrize("what", ["unrelated", "zero"])
def test_a_store_over_what_each_thread_has_loaded_itself_depends_on_the_layouts(what):
    for seed in range(4):
        finding, = overwritten.simulate((1,), X, np.ones_like(X), what, False, seed=seed).findings
        loads = line_of(overwritten, "loads")
        assert finding.kind == "layout-dependent" and finding.line > loads and finding.other.line == loads
        assert re.match(r"thread 0 writes bytes 0 to 3 of shared memory \(s\[0\]\), read at line \d+ without a barrier", finding.message)
        y = np.ones_like(X)
        assert not overwritten.simulate((1,), X, y, what, True, seed=seed).findings
        np.testing.assert_array_equal(y, X + (what == "unrelated"))


@pytest.mark.parametrize("what", ["derived", "decided"])
def test_a_store_that_depends_on_the_load_before_it_does_not(what):
    for seed in range(4):
        assert not overwritten.simulate((1,), X, np.ones_like(X), what, False, seed=seed).findings


@tile.jit
def refilled_in_a_loop(x, y, SYNC: tile.constexpr):
    s, total = tile.alloc((1024,), tile.float32), tile.zeros((1024,), tile.float32)
    for i in range(3):
        tile.store(s, tile.load(x[0:1024]) + i)  # stores
        tile.sync()
        total += tile.load(s)
        if SYNC:
            tile.sync()
    tile.store(y[0:1024], total)


def test_the_next_iteration_s_store_over_what_was_loaded_depends_on_the_layouts():
    for seed in range(4):
        found = refilled_in_a_loop.simulate((1,), X, np.zeros_like(X), False, seed=seed).findings
        assert [(f.kind, f.line) for f in found] == [("layout-dependent", line_of(refilled_in_a_loop, "stores"))]
    check(refilled_in_a_loop, (1,), X, np.zeros_like(X), True, result=1, expected=X * 3 + 3)


@tile.jit
def by_index(x, y, HOW: tile.constexpr):
    """The kernel itself says which thread accesses what."""
    s, i = tile.alloc((128,), x.dtype), tile.thread_id()
    if HOW == "an element each":
        tile.store(s[i], tile.load(x[i]))
        tile.store(y[i], tile.load(s[i]) + 1)
    elif HOW == "one thread":
        with tile.thread(5):
            tile.store(s[0:8], tile.load(x[0:8]))
            tile.store(y[0:8], tile.load(s[0:8]) + 1)
    elif HOW == "ptx":
        tile.ptx.st.shared.b32(s[i], tile.load(x[i]))
        tile.store(y[i], tile.ptx.ld.shared.b32(s[i]) + 1)


@pytest.mark.parametrize("how", ["an element each", "one thread", "ptx"])
def test_accesses_whose_threads_the_kernel_chooses_depend_on_no_layout(how):
    n = 8 if how == "one thread" else 128
    x = X.astype(np.int32)
    check(by_index, (1,), x, np.zeros_like(x), how, result=1, expected=np.where(np.arange(1024) < n, x + 1, 0))


@tile.jit
def by_an_index_tile(x, y):
    s, i = tile.alloc((128,), x.dtype), tile.arange(128)
    tile.store(s[i], tile.load(x[i]))
    tile.store(y[i], tile.load(s[i]))  # finds: layout-dependent


@tile.jit
def by_one_and_the_other(x, y):
    s, i = tile.alloc((128,), x.dtype), tile.thread_id()
    tile.store(s[i], tile.load(x[i]))
    tile.store(y[0:128], tile.load(s))  # finds: layout-dependent


@tile.jit
def zeroed_first(x, y):
    s = tile.alloc((1024,), x.dtype)
    tile.store(s, 0)
    tile.store(s, tile.load(x[0:1024]))  # finds: layout-dependent
    tile.sync()
    tile.store(y[0:1024], tile.load(s))


def test_index_tiles_and_tiles_beside_scalars_are_placed_by_the_compiler():
    for kernel in (by_an_index_tile, by_one_and_the_other, zeroed_first):
        check(kernel, (1,), X, np.zeros_like(X), seeds=range(4))


@tile.jit
def by_the_compiler(x, y, N: tile.constexpr):
    """Reductions, scans, changes of layout and staged operands use memory of the compiler's own."""
    v = tile.load(x[0:N, 0:N])
    w = tile.cumsum(tile.transpose(v) + tile.sum(v, axis=1)[:, None], axis=0)
    tile.store(y[0:N, 0:N], tile.dot(tile.cast(w % 8, "float16"), tile.cast(v % 8, "float16")))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_the_compiler_s_own_memory_gives_no_warning(target):
    x = (X % 16).reshape(32, 32)
    for n in (16, 32):
        assert not by_the_compiler.simulate((1,), x, np.zeros_like(x), n, target=target).findings
