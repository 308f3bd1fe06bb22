"""Loads of pipelined loops run ahead with any other value, in branches, and by several index tiles of arrays of any rank."""

import re
import warnings

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu
from tests.mma.ahead_kernels import (
    BRANCHES,
    FORMS,
    PAGED,
    blocks,
    blocks_product,
    both_filled,
    convolution,
    convolved,
    filled,
    filled_sum,
    paged,
    paged_products,
)
from tests.mma.test_staged_operands import TARGETS

E4M3, E8M0, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.bfloat16
DTYPES = np.float16, E8M0, np.int32, BF16, np.uint8, np.float32, np.int16, E4M3, np.float64, np.int8, np.uint64
OTHERS = {"f": (-np.inf, 1.0, np.nan, 0.0, -0.0), "i": (-1, 1, 7), "u": (3, 0, 255)}
ALL = list(TARGETS)


def numbers(rng, shape, dtype) -> np.ndarray:
    """Small numbers that every dtype has and whose sums are exact."""
    return 2.0 ** rng.integers(0, 3, shape) if np.dtype(dtype).kind not in "iu" else rng.integers(1, 5, shape)


def other_of(dtype, number: int):
    kind = np.dtype(dtype).kind if np.dtype(dtype).kind in "iu" else "f"
    if dtype in (E4M3, E8M0):
        return (1.0, 2.0, np.nan)[number % 3]
    return OTHERS[kind][number % len(OTHERS[kind])]


def check_filled(dtype, form: str, number: int, run, shape=None) -> None:
    rng = np.random.default_rng(number)
    shape = shape or ((32, 128), (27, 112), (30, 77), (3, 16), (31, 240))[number % 5]
    a, other, n = numbers(rng, shape, dtype).astype(dtype), other_of(dtype, number), int(rng.integers(0, 130))
    if form == "tile":
        other = 0
    want = filled_sum(a, n, other, form)
    out = np.zeros_like(want)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tile.TileWarning)
        run(filled, a, out, n, OTHER=other, FORM=form, STAGES=1 + number % 4, ROLES=number % 3 == 0)
    np.testing.assert_array_equal(out, want, err_msg=f"{np.dtype(dtype)} {form} {shape} {other} {n}")


@pytest.mark.parametrize("form", FORMS)
def test_any_other_value_stands_for_what_is_out_of_bounds_or_masked_off(form):
    """For every dtype, each in half of the forms; extents that TMA takes and others, any number of stages, with and without roles."""
    for number, dtype in list(enumerate(DTYPES))[FORMS.index(form) % 2::2]:
        if form == "tile" and dtype in (E8M0, E4M3):
            continue
        target = ALL[(number + FORMS.index(form)) % 4]
        target = "sm_90a" if (dtype, target) == (E4M3, "sm_80") else target

        def run(kernel, *arguments, **options):
            kernel.simulate(1, *arguments, target=target, seed=number, **options).raise_first()
        check_filled(dtype, form, number, run)


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("dtype", [np.float16, E8M0, np.uint8])
@pytest.mark.usefixtures("assembled_later")
def test_a_load_with_another_value_becomes_a_copy_whose_read_repairs_it_and_explain_tells_so(dtype, target):
    out = tile.ArraySpec((32, 32), "float32" if np.dtype(dtype).kind not in "iu" else "int64")
    made = filled.compile(tile.ArraySpec((27, 112), np.dtype(dtype).name), out, 40, OTHER=1, FORM="bounds", STAGES=3, ROLES=False, target=target)
    load, = made.loads
    assert {c.variant for c in made.copies} == {"ldgsts" if target == "sm_80" else "tma"} and "ld.global" not in made.ptx
    assert load.ahead and load.how == ("the copy fills in zeros or what the array holds there, and where the tile is read, about 24 instructions "
                                       "of each thread put in other= for what is out of bounds")
    assert f"  line {load.line}: {load.source}\n    runs ahead of the pipelined loop at line {load.loop}: {load.how}" in made.explain()


@pytest.mark.usefixtures("assembled_later")
def test_what_is_known_to_be_in_bounds_needs_no_repair():
    """The product reads such a tile where the copy has put it, whatever `other` is."""
    @tile.jit
    def kernel(A, B, C):
        acc = tile.zeros((64, 64))
        for k in tile.pipelined(range(4), stages=3):
            a = tile.load(A[tile.arange(64)[:, None], (k * 32 + tile.arange(32))[None, :]], other=1)
            acc = tile.dot(a, tile.load(B[0:32, 0:64], other=5), acc)
        tile.store(C[0:64, 0:64], acc)

    a, b, c = tile.ArraySpec((64, 128), "float16"), tile.ArraySpec((64, 64), "float16"), tile.ArraySpec((64, 64), "float32")
    made = kernel.compile(a, b, c, target="sm_90a")
    assert not made.loads and made.products[0].variant == "wgmma" and not re.search(r"[ \t](ld|st)\.shared\.v4", made.ptx)
    assert kernel.compile(tile.ArraySpec((63, 128), "float16"), b, c, target="sm_90a").loads[0].ahead


@pytest.mark.usefixtures("assembled_later")
def test_a_repair_that_takes_longer_than_the_load_is_not_made():
    """Its cost grows with the elements of each thread. The warning and explain() say what it is."""
    @tile.jit(num_warps=8)
    def kernel(A, out, N: tile.constexpr):
        acc = tile.zeros((N, 128))
        for i in tile.pipelined(range(0, A.shape[1], 128), stages=2):
            acc += tile.load(A[0:N, i:i + 128], other=1).to(tile.float32)
        tile.store(out[0:N, 0:128], acc)

    a, out = tile.ArraySpec((100, 1000), "float16"), tile.ArraySpec((128, 128), "float32")
    assert kernel.compile(a, out, N=64, target="sm_90a").loads[0].ahead
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = kernel.compile(a, out, N=224, target="sm_90a")
    why = "to put other= in when it is read takes about 336 instructions of each thread, which is longer than a load takes"
    assert not made.loads[0].ahead and not made.copies and why in str(caught[0].message)
    assert f".py:{made.loads[0].line}:" in str(caught[0].message)
    assert f"does not run ahead of the pipelined loop at line {made.loads[0].loop}" in made.explain() and why in made.explain()


@pytest.mark.parametrize("target", ALL)
def test_operands_of_products_may_have_other_values(target):
    rng = np.random.default_rng(0)
    for number, (m, n, k) in enumerate(((64, 64, 96), (50, 40, 80), (64, 56, 72))):
        a, b, c = rng.integers(-2, 3, (m, k)).astype(np.float16), rng.integers(-2, 3, (k, n)).astype(np.float16), np.zeros((64, 64), np.float32)
        wide = -(-k // 32) * 32
        x, y = np.full((64, wide), 1.0), np.full((wide, 64), 2.0)
        x[:m, :k], y[:k, :n] = a, b
        both_filled.simulate(1, a, b, c, STAGES=2 + number, ROLES=number == 1, target=target, seed=number).raise_first()
        np.testing.assert_array_equal(c, x @ y)
    made = both_filled.compile(a, b, c, STAGES=3, ROLES=False, target=target)
    assert made.products[0].variant == TARGETS[target] and len(made.loads) == 2 and all(load.ahead for load in made.loads) and not made.warnings


def check_blocks(form: str, number: int, run) -> None:
    rng = np.random.default_rng(number)
    a, b = rng.integers(-2, 3, (100, 160)).astype(np.float16), rng.integers(-2, 3, (160, 64)).astype(np.float16)
    table = rng.integers(-1, 5, (9, 0, 1, 2, 5)[number % 5]).astype(np.int32)
    if number % 7 == 3:
        table[:] = -1
    c = np.zeros((100, 64), np.float32)
    run(blocks, a, b, table, c, FORM=form, STAGES=1 + number % 4, ROLES=number % 2 == 1)
    np.testing.assert_array_equal(c, blocks_product(a, b, table, form), err_msg=f"{form} {number} {table}")


@pytest.mark.parametrize("form", BRANCHES)
@pytest.mark.parametrize("target", ALL)
def test_loads_in_branches_run_ahead_under_the_same_condition(form, target):
    """Also in an else, in nested branches and after `continue`; for tables of any length, and those that skip every block."""
    first = ALL.index(target)
    for number in (first, first + 9, first + 14):
        def run(kernel, *arguments, **options):
            kernel.simulate(2, *arguments, target=target, seed=number, **options).raise_first()
        check_blocks(form, number, run)


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.usefixtures("assembled_later")
def test_copies_in_branches_complete_on_the_barriers_of_the_stages_and_are_told(target, roles):
    """The bytes that a trip expects depend on the condition."""
    a, b, t, c = (tile.ArraySpec(shape, dtype) for shape, dtype in (((100, 160), "float16"), ((160, 64), "float16"), ((9,), "int32"), ((100, 64), "float32")))
    made = blocks.compile(a, b, t, c, FORM="continue", STAGES=3, ROLES=roles, target=target)
    assert {x.variant for x in made.copies} == {"ldgsts" if target == "sm_80" else "tma"} and not made.warnings
    assert [load.how for load in made.loads] == [f"under the condition of its branch at line {made.loads[0].line - 2}"] * 2
    assert made.products[0].variant == TARGETS[target]
    if target != "sm_80":
        assert re.search(r"yield 8192\n.*-> %bytes", made.graph) and "arrive_expect_tx(%mbarrier_at.1, %bytes" in made.graph


@pytest.mark.usefixtures("assembled_later")
def test_a_slot_that_threads_read_in_a_branch_is_fenced_before_tma_fills_it_again():
    a, b, t, c = (tile.ArraySpec(shape, dtype) for shape, dtype in (((100, 160), "float16"), ((160, 64), "float16"), ((9,), "int32"), ((100, 64), "float32")))
    made = blocks.compile(a, b, t, c, FORM="reduced", STAGES=3, ROLES=False, target="sm_90a")
    loop = made.graph[made.graph.rindex("for %i"):]
    assert loop.index("fence_proxy_async()") < loop.index("copy_async(")


def check_paged(form: str, number: int, run) -> None:
    rng = np.random.default_rng(number)
    n, rows, d = (45, 16, 5)[number % 3], 16, (32, 64)[number % 2]
    keys, table = rng.integers(-2, 3, (9, 2, 8, d)), rng.permutation(9)[:-(-n // 8)].astype(np.int32)
    keys = keys.astype((np.float16, BF16)[number % 2])
    if number % 4 == 1:  # heads outermost, as a view
        keys = np.ascontiguousarray(keys.swapaxes(0, 1)).swapaxes(0, 1)
    q, out = rng.integers(-2, 3, (16, d)).astype(keys.dtype), np.zeros((2, 16, rows), np.float32)
    table = np.concatenate([table, np.full(6, -1, np.int32)])[:max(len(table), 2 * -(-n // 16))]
    with_pages = np.concatenate([keys, np.zeros_like(keys[:1])])
    run(paged, q, keys, table, out, n, R=rows, D=d, FORM=form, STAGES=1 + number % 4, ROLES=number % 3 == 0)
    np.testing.assert_array_equal(out, paged_products(q, with_pages, table, n, rows, form), err_msg=f"{form} {number}")


@pytest.mark.parametrize("form", PAGED)
def test_rows_of_a_paged_cache_that_several_index_tiles_name_run_ahead(form):
    """Rows that a page number of -1, the mask, or the bounds exclude give zeros, or `other`."""
    for number, target in enumerate(ALL):
        def run(kernel, *arguments, **options):
            kernel.simulate(2, *arguments, target=target, seed=number, **options).raise_first()
        check_paged(form, number + PAGED.index(form), run)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.usefixtures("assembled_later")
def test_a_producer_gathers_rows_of_any_array_by_tma_where_that_has_the_mode(target):
    """As rows of a matrix, if they are evenly spaced; otherwise, and before Blackwell, all threads copy them by cp.async."""
    q, t, out = tile.ArraySpec((16, 64), "float16"), tile.ArraySpec((6,), "int32"), tile.ArraySpec((2, 16, 16), "float32")

    def copies(strides):
        keys = tile.ArraySpec((9, 2, 8, 64), "float16", strides)
        made = paged.compile(q, keys, t, out, 45, R=16, D=64, FORM="keys", STAGES=3, ROLES=True, target=target)
        return {c.variant for c in made.copies}, made.recipe["threads"], "gather4" in made.ptx
    by_threads = {"ldgsts"}, 128, False
    assert copies((1024, 512, 64, 1)) == (by_threads if target == "sm_90a" else ({"tma"}, 256, True))
    assert copies((1544, 768, 96, 1)) == by_threads


def check_convolved(number: int, run) -> None:
    rng = np.random.default_rng(number)
    channels = (16, 24, 40)[number % 3]
    x = rng.integers(-2, 3, (2, 5, 7, channels)).astype(np.float16)
    w = rng.integers(-2, 3, (3, 3, channels, 16)).astype(np.float16)
    y = np.zeros((70, 16), np.float32)
    run(convolved, x, w, y, S=1, BM=32, BC=16, STAGES=1 + number % 4)
    np.testing.assert_array_equal(y, convolution(x, w))


@pytest.mark.parametrize("target", ALL)
def test_an_implicit_convolution_gathers_its_pixels_ahead(target):
    def run(kernel, *arguments, **options):
        kernel.simulate(3, *arguments, target=target, **options).raise_first()
    check_convolved(ALL.index(target) + 1, run)
    x, w, y = tile.ArraySpec((2, 5, 7, 64), "float16"), tile.ArraySpec((3, 3, 64, 16), "float16"), tile.ArraySpec((70, 16), "float32")
    made = convolved.compile(x, w, y, S=1, BM=32, BC=32, STAGES=3, target=target)
    assert ("X", "ldgsts") in {(c.buffers[0], c.variant) for c in made.copies} and "ld.global" not in made.ptx and not made.warnings


@pytest.mark.usefixtures("assembled_later")
def test_runs_along_any_contiguous_dimension_are_gathered():
    """As columns of an array whose first dimension is the contiguous one."""
    @tile.jit
    def kernel(X, I, out):
        acc = tile.zeros((16, 32))
        for i in tile.pipelined(range(0, 64, 16), stages=2):
            rows = tile.load(I[i:i + 16])
            acc += tile.load(X[tile.arange(32)[None, :], rows[:, None] // 8, rows[:, None] % 8])
        tile.store(out[0:16, 0:32], acc)

    rng = np.random.default_rng(0)
    x, out = rng.integers(-9, 9, (8, 8, 32)).astype(np.float32).transpose(2, 0, 1), np.zeros((16, 32), np.float32)
    rows = rng.integers(0, 64, 64).astype(np.int32)
    kernel.simulate(1, x, rows, out).raise_first()
    np.testing.assert_array_equal(out, x[:, rows // 8, rows % 8].T.reshape(4, 16, 32).sum(0))
    assert {(c.variant, c.plan.vec_bytes) for c in kernel.compile(x, rows, out).copies} == {("ldgsts", 16)}


@pytest.mark.parametrize("target", ["sm_80", "sm_100a"])
def test_loads_from_an_address_run_ahead_with_other_values_in_branches_and_by_rows(target):
    @tile.jit
    def kernel(P, I, out, n):
        total = tile.zeros((8, 64))
        A = tile.array(tile.load(P[0]), tile.float32, (n, 4, 64), align=16)
        for i in tile.pipelined(range(3), stages=3):
            r = tile.load(I[i * 8:i * 8 + 8])
            total += tile.load(A[r[:, None] // 4, r[:, None] % 4, tile.arange(64)[None, :]], other=2)
            if i != 1:
                total += tile.load(A[i, 0:8, 0:64], other=-1)
        tile.store(out[0:8, 0:64], total)

    rng = np.random.default_rng(0)
    a, rows, out = rng.integers(-3, 4, (5, 4, 64)).astype(np.float32), rng.integers(-4, 24, (3, 8)).astype(np.int32), np.zeros((8, 64), np.float32)
    address = np.array([tile.address_of(a)], np.int64)
    kernel.simulate(1, address, rows.reshape(-1), out, 5, target=target).raise_first()
    want = sum(np.where(((r >= 0) & (r < 20))[:, None], a.reshape(20, 64)[np.clip(r, 0, 19)], 2) for r in rows)
    want += sum(np.concatenate([a[i], np.full((4, 64), -1)]) for i in (0, 2))
    np.testing.assert_array_equal(out, want)
    assert len(kernel.compile(address, rows.reshape(-1), out, 5, target=target).loads) == 2


WHY = {
    "rows that index tiles or a mask choose are copied from a whole array, and this is a window of one":
        ("y = tile.load(tile.window(A, (0, 0), (4, 64))[I[0] + tile.arange(4) % 3, 0:64])", False),
    "the kernel writes the memory that it reads: out overlaps A": ("y = tile.load(A[i:i + 4, 0:64])", True),
}


@pytest.mark.parametrize("words", WHY)
def test_further_causes_are_told(words):
    text, overlapping = WHY[words]
    kernel = tile.jit(source=f"""def kernel(A, I, out):
    total = tile.zeros((4, 64))
    for i in tile.pipelined(range(2), stages=2):
        {text.replace("I[0]", "tile.load(I[0])")}
        total += y
    tile.store(out[0:4, 0:64], total)
""")
    room = np.zeros((12, 64), np.float32)
    with pytest.warns(tile.TileWarning, match=re.escape(words)) as caught:
        kernel.compile(room[:8], np.zeros(1, np.int32), room[4:] if overlapping else np.zeros((4, 64), np.float32), target="sm_90a")
    assert "<source>:4:" in str(caught[0].message)


@needs_gpu()
@in_child(timeout=300)
def test_loads_with_other_values_in_branches_and_by_several_index_tiles_are_right_on_the_gpu():
    def launch(grid):
        def run(kernel, *arguments, **options):
            kernel[grid,](*arguments, backend="cuda", **options)
        return run

    for number in range(30):
        for form in FORMS:
            dtype = DTYPES[number % len(DTYPES)]
            if form != "tile" or dtype not in (E8M0, E4M3):
                check_filled(dtype, form, number, launch(1))
        for form in BRANCHES:
            check_blocks(form, number, launch(2))
        for form in PAGED:
            check_paged(form, number, launch(2))
        check_convolved(number, launch(3))
