"""Rows selected by index, copied by cp.async where TMA has no gather mode: on the simulator, and as cubins."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from ml_dtypes import bfloat16, float8_e4m3fn
from tilejit.errors import CompilationError, DispatchError
from tilejit.layout import row_lanes, row_numbers, thread_table
from tilejit.ops.moves.copy_async.gathered import Plan

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


@tile.jit
def brought(s, rows, k, C):
    tile.copy_async(s, rows[..., k:k + C])
    tile.cp_async_commit()
    tile.cp_async_wait(0)


@tile.jit(num_warps=8)
def taken(A, I, B, k, N: tile.constexpr, C: tile.constexpr, UNIT: tile.constexpr = 8, FORM: tile.constexpr = "tile", SWIZZLE: tile.constexpr = None,
          SCOPE: tile.constexpr = "cta"):
    """The rows `I` of `A` from column `k` on, to `B`, by one scope."""
    tile.assume(k % UNIT == 0)
    s = tile.alloc((N, C), A.dtype, layout=tile.swizzled(A.dtype, (N, C), SWIZZLE) if SWIZZLE else None)
    numbers = tile.alloc((N,), I.dtype)
    tile.copy(numbers, I[0:N])
    tile.sync()
    if FORM == "shared":
        named = numbers
    elif FORM == "array":
        named = I[0:N]
    elif FORM == "scalars":
        named = (3, tile.load(I[1]), 0, 999)
    else:
        named = None
    if SCOPE == "cta":
        brought(s, A.take(tile.load(I[0:N]) if named is None else named), k, C)
    elif SCOPE == "warpgroup":
        with tile.warpgroup(1):
            brought(s, A.take(tile.load(I[0:N]) if named is None else named), k, C)
    elif SCOPE == "warp":
        with tile.warp(5):
            brought(s, A.take(tile.load(I[0:N]) if named is None else named), k, C)
    else:
        with tile.thread(77):
            brought(s, A.take(tile.load(I[0:N]) if named is None else named), k, C)
    tile.sync()
    tile.copy(B[0:N, 0:C], s)


def check(target, dtype=np.float16, n=20, c=64, shape=(40, 80), k=0, index=np.int32, vec_bytes=16, num_warps=8, parts=slice(None), **options):
    """Check that the rows agree with NumPy, zero where the array has none, and that the copy is cp.async with this many bytes.
    Returns its record."""
    rng = np.random.default_rng(n * c)
    A = rng.integers(-8, 8, shape).astype(dtype)[:, parts]
    I = rng.integers(-2 if np.dtype(index).kind == "i" else 0, shape[0] + 3, n).astype(index)
    B = np.ones((n, c), dtype)
    rows = [3, int(I[1]), 0, 999] if options.get("FORM") == "scalars" else I.astype(np.int64)
    padded = np.zeros((shape[0] + 1, A.shape[1] + c), dtype)
    padded[:-1, :A.shape[1]] = A
    want = padded[[r if 0 <= r < shape[0] else -1 for r in rows], k:k + c]
    options |= dict(N=n, C=c, target=target, num_warps=num_warps)
    taken.simulate((1,), A, I, B, k, **options).raise_first()
    assert (B.view(np.uint8) == want.view(np.uint8)).all()
    compiled = taken.compile(A, I, B, k, **options)
    (copy,) = [c for c in compiled.copies if c.op == "copy_async"]
    assert (copy.variant, copy.plan.vec_bytes) == ("ldgsts", vec_bytes) and compiled.cubin
    assert f"cp.async.{'cg' if vec_bytes == 16 else 'ca'}.shared.global" in compiled.ptx and not compiled.warnings
    return copy


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("options", [dict(n=64), dict(n=8, k=24), dict(n=5, SCOPE="warp"), dict(n=40, SCOPE="warpgroup"), dict(n=3, c=16, SCOPE="thread"),
                                     dict(n=4, FORM="scalars"), dict(n=1)], ids=str)
def test_threads_copy_the_rows_that_an_index_tile_selects(target, options):
    check(target, **options)


@pytest.mark.parametrize("options", [
    dict(FORM="array"), dict(FORM="shared"), dict(FORM="array", index=np.int64), dict(FORM="shared", index=np.int8), dict(index=np.uint8), dict(index=np.uint32),
    dict(index=np.int16)], ids=str)
def test_row_indices_may_be_integers_of_any_memory_and_width(options):
    check("sm_90a", **options)


@tile.jit(num_warps=1)
def far(A, I, J, B, FORM: tile.constexpr, ENGINE: tile.constexpr):
    s, bar = tile.alloc((4, 32), A.dtype), tile.mbarrier()
    rows = A.take(tile.load(I[0:4]) if FORM == "tile" else (tile.load(I[0]), tile.load(I[1]), J, 2))
    if ENGINE:  # TMA's gather exists on some targets only
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, rows[:, 0:32], mbar=bar)
        bar.wait(phase=0)
    else:
        brought(s, rows, 0, 32)
        tile.sync()
    tile.copy(B[0:4, 0:32], s)


@pytest.mark.parametrize("target,engine", [("sm_90a", False), ("sm_100a", False), ("sm_100a", True)])
@pytest.mark.parametrize("form", ["tile", "scalars"])
def test_an_index_beyond_32_bits_selects_no_row(target, engine, form):
    """Not the row given by its low bits."""
    A, I, B = np.arange(160, dtype=np.float32).reshape(5, 32), np.array([2 ** 32 + 3, 1, -2 ** 40, 2]), np.ones((4, 32), np.float32)
    far.simulate((1,), A, I, -2 ** 40, B, FORM=form, ENGINE=engine, target=target).raise_first()
    np.testing.assert_array_equal(B, [A[0] * 0, A[1], A[0] * 0, A[2]])
    (copy,) = [c for c in far.compile(A, I, -2 ** 40, B, FORM=form, ENGINE=engine, target=target).copies if c.op == "copy_async"]
    assert copy.variant == ("tma" if engine else "ldgsts")


@tile.jit(num_warps=1)
def told_outside(A, I, B):
    s, bar = tile.alloc((4, 32), A.dtype), tile.mbarrier()
    rows = A.take(tile.load(I[0:4]))
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, rows[:, 0:32], mbar=bar)
    bar.wait(phase=0)
    tile.copy(B[0:4, 0:32], s)


def test_rows_selected_by_a_tile_of_an_outer_scope_need_tma():
    """It takes row indices from registers of any thread; cp.async needs a tile of the copying scope."""
    A, I, B = np.arange(160, dtype=np.float32).reshape(5, 32), np.array([4, 0, 9, 2]), np.ones((4, 32), np.float32)
    told_outside.simulate((1,), A, I, B, target="sm_100a").raise_first()
    np.testing.assert_array_equal(B, [A[4], A[0], A[0] * 0, A[2]])
    with pytest.raises(CompilationError, match="needs sm_100 or later; on sm_90a threads copy them, by a tile of their own scope"):
        told_outside.compile(A, I, B, target="sm_90a")


@pytest.mark.parametrize("options", [
    dict(k=4, UNIT=4, vec_bytes=8), dict(k=6, UNIT=2, vec_bytes=4), dict(shape=(40, 70), vec_bytes=4), dict(c=20, vec_bytes=8),
    dict(dtype=np.float32, k=3, UNIT=1, vec_bytes=4), dict(dtype=np.float32, parts=slice(None, None, 2), c=32, vec_bytes=4),
    dict(dtype=np.float32, c=1, vec_bytes=4), dict(dtype=np.float32, n=1, c=1, vec_bytes=4), dict(dtype=bfloat16, c=512, shape=(9, 512)),
    dict(dtype=float8_e4m3fn, c=48, UNIT=16), dict(dtype=np.float64, c=33, vec_bytes=8), dict(n=33, c=72, num_warps=6), dict(n=130, c=8)], ids=str)
def test_instructions_are_as_wide_as_both_sides_allow(options):
    """For any divisors of the columns, the row pitch and the first column; row lengths that are not powers of two; any number
    of rows and warps."""
    check("sm_80", **options)


@pytest.mark.parametrize("mode", [32, 64, 128])
def test_rows_can_be_gathered_to_swizzled_memory(mode):
    check("sm_90a", n=24, c=64, SWIZZLE=mode)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 140), st.integers(1, 40), st.sampled_from((1, 2, 8, 16, 32, 64, 96, 128, 160, 256)), st.sampled_from((1, 2, 4)))
def test_every_vector_of_every_row_is_moved_once(rows, vectors, threads, vec):
    """By a thread whose registers hold that row's index."""
    lanes = row_lanes(vectors * 16, threads)
    at_once = threads // lanes
    steps = -(-rows // at_once) * -(-vectors // lanes)
    plan = Plan(16, vec, steps, threads, (0, 1), (rows, vectors), True, (0,), (), "cg", lanes)
    moved = np.zeros((rows, vectors), int)
    layout, domain = row_numbers(rows, threads, lanes)
    numbers = thread_table(layout, domain, threads)
    for step in range(steps):
        for thread in range(threads):
            if plan.takes_part(thread, step * threads):
                row, vector = plan.place(thread, step)
                moved[row, vector] += 1
                assert numbers[thread, step // plan.across] == row and plan.coordinates(thread, step * threads) == [row, vector * vec]
    assert (moved == 1).all() and numbers.shape[1] == -(-rows // at_once)


@pytest.mark.parametrize("columns, instructions", [(64, 8), (96, 12), (16, 2), (512, 64)])
def test_no_thread_issues_more_than_its_share(columns, instructions):
    """128 rows of this many 2-byte elements, 16 bytes per instruction of each of 128 threads."""
    assert check("sm_90a", n=128, c=columns, shape=(9, 512), num_warps=4).instructions == instructions


@pytest.mark.parametrize("target", TARGETS)
def test_row_indices_of_cp_async_are_not_broadcast_to_all_threads(target):
    """On Blackwell TMA takes each row index as a scalar; other copies of the same rows do not."""
    @tile.jit
    def both(A, I, B):
        s = tile.alloc((64, 64), A.dtype)
        rows = A.take(tile.load(I[0:64]))
        for k in range(0, A.shape[1], 64):
            brought(s, rows, k, 64)
            tile.sync()
            tile.copy(B[0:64, k:k + 64], s)
            tile.sync()

    A, I = np.random.default_rng(0).integers(-9, 9, (40, 128)).astype(np.float16), np.arange(-10, 54, dtype=np.int32)
    B = np.ones((64, 128), np.float16)
    both.simulate((1,), A, I, B, target=target).raise_first()
    assert (B == np.concatenate([np.zeros((10, 128)), A, np.zeros((14, 128))])).all()
    compiled = both.compile(A, I, B, target=target)
    assert "item_of" not in compiled.graph and "slice" not in compiled.graph and compiled.ptx.count("bar.sync") == 2


@tile.jit
def experts(X, tokens, starts, W, Y, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr, SPECIALIZE: tile.constexpr = False):
    """Y[i] = X[tokens[i]] @ W[e] for the i of each expert e, from starts[e] to starts[e + 1]."""
    e, n = tile.program_id(0), tile.program_id(2) * BN
    first, stop = tile.load(starts[e]), tile.load(starts[e + 1])
    sX, sW = tile.alloc((BM, BK), X.dtype, layout=tile.auto), tile.alloc((BK, BN), W.dtype, layout=tile.auto)
    for m in range(first + tile.program_id(1) * BM, stop, tile.num_programs(1) * BM):
        at = m + tile.arange(BM)
        rows = X.take(tile.load(tokens[at], mask=at < stop, other=-1))
        acc = tile.zeros((BM, BN))
        for k in tile.pipelined(range(0, X.shape[1], BK), stages=STAGES, warp_specialize=SPECIALIZE):
            tile.copy_async(sX, rows[..., k:k + BK])
            tile.copy_async(sW, W[e, k:k + BK, n:n + BN])
            acc = tile.dot(sX, sW, acc)
        tile.store(Y[m:m + BM, n:n + BN], acc, mask=at[:, None] < stop)


def routed(counts, tokens, k, n):
    """Tokens, their assignment to several experts, and the experts' matrices; an empty result, and the exact one."""
    rng = np.random.default_rng(0)
    starts = np.cumsum([0, *counts]).astype(np.int32)
    chosen = rng.integers(0, tokens, starts[-1]).astype(np.int32)
    x, w = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((tokens, k), (len(counts), k, n)))
    want = [x[chosen[a:b]].astype(np.float32) @ w[e].astype(np.float32) for e, (a, b) in enumerate(zip(starts, starts[1:]))]
    return (x, chosen, starts, w, np.full((starts[-1], n), np.nan, np.float32)), np.concatenate(want)


@pytest.mark.parametrize("target, variants", [("sm_80", {"ldgsts"}), ("sm_90a", {"ldgsts", "tma"}), ("sm_100a", {"tma"}), ("sm_120a", {"tma"})])
@pytest.mark.parametrize("stages, specialize", [(1, False), (3, False), (3, True)])
def test_a_mixture_of_experts_product_gathers_its_tokens_in_a_pipelined_loop(target, variants, stages, specialize):
    """Token counts that are not multiples of the tile, an expert without tokens, K that is not a multiple of BK."""
    arrays, want = routed([70, 0, 5, 64], 50, 88, 40)
    options = dict(BM=64, BN=32, BK=32, STAGES=stages, SPECIALIZE=specialize, target=target)
    experts.simulate((4, 2 if stages == 3 else 1, 2), *arrays, **options).raise_first()
    assert (arrays[-1] == want).all()
    compiled = experts.compile(*arrays, **options)
    assert {c.variant for c in compiled.copies} == variants and compiled.cubin and not compiled.spills


@pytest.mark.parametrize("loaded, changes", [("I[0:64]", 0), ("I[tile.arange(64) ^ 1]", 1)])
def test_row_indices_used_in_a_loop_are_converted_once_to_the_layout_of_the_copies(loaded, changes):
    """A load is made in that layout; another tile is converted before the loop, even if the copies are in branches."""
    @tile.jit
    def product(X, I, W, Y):
        sX, sW = tile.alloc((64, 64), X.dtype, layout=tile.auto), tile.alloc((64, 64), X.dtype, layout=tile.auto)
        rows = tile.load(I[0:64]) if loaded == "I[0:64]" else tile.load(I[tile.arange(64) ^ 1])
        acc = tile.zeros((64, 64))
        for k in tile.pipelined(range(0, X.shape[1], 64), stages=3):
            tile.copy_async(sX, X.take(rows)[..., k:k + 64])
            tile.copy_async(sW, W[k:k + 64, 0:64])
            acc = tile.dot(sX, sW, acc)
        tile.store(Y[0:64, 0:64], acc)

    x, i = np.zeros((64, 128), np.float16), np.zeros(64, np.int32)
    compiled = product.compile(x, i, np.zeros((128, 64), np.float16), x.astype(np.float32), target="sm_90a")
    before, _, after = compiled.graph.partition("rows(")
    assert before.count("convert_layout") == changes and "convert_layout" not in after
    assert "ldgsts" in compiled.explain()


def test_the_simulator_finds_rows_that_are_read_before_they_arrive():
    @tile.jit
    def hasty(A, I, B):
        s = tile.alloc((8, 64), A.dtype)
        tile.copy_async(s, A.take(I[0:8])[:, 0:64])
        tile.sync()
        tile.copy(B[0:8, 0:64], s)

    A, I = np.zeros((40, 64), np.float16), np.arange(8, dtype=np.int32)
    assert {f.kind for f in hasty.simulate((1,), A, I, A.copy(), target="sm_90a").findings} & {"missing-wait", "race", "uninitialized-read"}


def test_a_token_waits_for_gathered_rows():
    @tile.jit
    def waits(A, I, B):
        s = tile.alloc((8, 64), A.dtype)
        tile.copy_async(s, A.take(I[0:8])[:, 0:64]).wait()
        tile.copy(B[0:8, 0:64], s)

    A, I, B = np.arange(2560, dtype=np.int32).reshape(40, 64).astype(np.float16), np.array([9, 40, 2, -1, 39, 0, 0, 7], np.int32), np.ones((8, 64), np.float16)
    for target, variant in (("sm_80", "ldgsts"), ("sm_90a", "ldgsts"), ("sm_100a", "tma")):
        waits.simulate((1,), A, I, B, target=target).raise_first()
        assert (B == np.where(((I >= 0) & (I < 40))[:, None], A[I % 40], 0)).all()
        assert [c.variant for c in waits.compile(A, I, B, target=target).copies if c.op == "copy_async"] == [variant]


def refused(line, A=np.zeros((100, 64), np.float16), I=np.zeros(64, np.int32)):
    kernel = tile.jit(source="def kernel(A, I, k):\n    s = tile.alloc((64, 32), A.dtype)\n    bar = tile.mbarrier()\n    " + line)
    with pytest.raises(CompilationError) as caught:
        kernel.compile(A, I, 3, target="sm_90a")
    assert line.strip().splitlines()[-1].strip() in str(caught.value)  # its line
    return caught


@pytest.mark.parametrize("rows, index", [("tile.load(I[0:64]) * 1.0", np.int32), ("I[0:64]", np.float32), ("I[0:64, 0:2]", np.int32), ("I[0:64, 0]", bool), ("I[0:64]", np.uint16),
                                         ("4", np.int32)])
def test_row_indices_that_are_not_integers_are_refused(rows, index):
    shape = (64, 64) if "," in rows else (64,)
    caught = refused(f"tile.copy_async(s, A.take({rows})[:, 0:32])", I=np.zeros(shape, index))
    assert "rows are named by a tile of integers, by a one-dimensional region of signed integers" in str(caught.value)


@pytest.mark.parametrize("line, words", [
    ("tile.copy_async(s, A[tile.load(I[0:64]), 0:32])", "rows of a matrix are named by A.take(rows)[:, k:k + BLOCK]"),
    ("tile.copy_async(s, A.take(I[0:64]))", "name the columns too, as in A.take(rows)[:, k:k + BLOCK]"),
    ("tile.copy_async(s, A.take(I[0:64])[0:64, 0:32])", "the columns of taken rows are a slice"),
    ("tile.copy_async(s, A.take(I[0:64])[:, :])", "columns are taken by a slice start:stop, not by one without a stop"),
    ("tile.copy_async(s, A.take(I[0:64])[:, 0:64:2])", "columns are taken by a slice start:stop, not by one with a step"),
    ("tile.copy(s, A.take(I[0:64])[:, 0:32])", "load and store a tile, as in tile.store(buffer, tile.load(A[rows, k:k + BLOCK]))"),
    ("tile.copy_async(s, tile.window(A, (0, 0), (5, 64)).take(I[0:64])[:, 0:32])", "this is a window: pass the array"),
    ("tile.copy_async(s, A.take(I[0:32])[:, 0:32])", "[32, 32] is not [64, 32]"),
])
def test_a_source_that_is_not_a_matrix_is_an_error_that_suggests_what_to_write(line, words):
    assert words in str(refused(line).value)


@pytest.mark.parametrize("line, array, words", [
    ("tile.copy_async(s, A.take(I[0:64])[:, 0:32])", np.zeros((64, 100), np.float16).T, "columns that lie A.strides[1] elements apart, of 2 bytes each: give an "
     "array whose rows are contiguous, or store a tile: tile.store(buffer, tile.load(A[rows, k:k + BLOCK]))"),
    ("tile.copy_async(s, A.take(I[0:64])[:, 0:32])", np.zeros((100, 63), np.float16), "no run of 4 bytes is provable: let the first column"),
    ("tile.copy_async(s, A.take(I[0:64])[:, k:k + 32])", None, "(tile.assume(k % 8 == 0) promises it)"),
    ("tile.copy_async(s, A.take(I[0:64])[:, 0:32], mbar=bar)", None, "leave it out and wait for the token"),
    ("tile.copy_async(s, A.take(I[0:64])[:, 0:32], fill='nan')", None, "fill='nan', and a row may be out of bounds"),
    ("tile.copy_async(s, A.take(I[0:64])[:, 0:32], cache='evict_first', variant='tma')", None, "sm_100a or sm_103a"),
    ("tile.copy_async(A.take(I[0:64])[:, 0:32], s)", None, "rows are written by tile.store(A[rows, k:k + BLOCK], tile.load(buffer))"),
    ("if tile.thread_id() < 20:\n        tile.copy_async(s, A.take((3,) * 64)[:, 0:32])", None, "differs between the threads of the cta"),
])
def test_options_that_cp_async_lacks_for_rows_are_refused_with_a_remedy(line, array, words):
    caught = refused(line, *(() if array is None else (array,)))
    assert isinstance(caught.value, DispatchError) and words in str(caught.value)
