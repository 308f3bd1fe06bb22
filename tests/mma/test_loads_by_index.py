"""Tiles that a pipelined loop loads by index tiles and masks are prefetched as boxes of their array, or as rows of a matrix."""

import re
import warnings

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st

from tests.gpu import for_references, in_child, needs_gpu, needs_module
from tests.mma.first_kernels import by_indices, gathered, walking
from tests.mma.test_staged_operands import TARGETS

COPIES = {"sm_80": "ldgsts", "sm_90a": "tma", "sm_100a": "tma", "sm_120a": "tma"}


@tile.jit
def chosen(A, B, C, I, M, K, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, FORM: tile.constexpr, TA: tile.constexpr, TB: tile.constexpr,
           STAGES: tile.constexpr, ROLES: tile.constexpr, FROM: tile.constexpr = 0):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    i, rn, rk = m + tile.arange(BM), n + tile.arange(BN), tile.arange(BK)
    rows, inside, at = i, i >= 0, FROM + rk
    if FORM == "wrapped":
        rows = i % M
    if FORM == "gathered" or FORM == "masked":
        rows = tile.load(I[i], mask=i < M, other=-1)
        inside = rows < 40
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(FROM, K, BK), stages=STAGES, warp_specialize=ROLES):
        ks = at if FORM == "walking" else k + rk
        x, y = (ks[None, :], rows[:, None]) if TA else (rows[:, None], ks[None, :])
        if FORM == "masked":
            a = tile.load(A[ks[:, None], rows[None, :]], mask=inside[None, :]).T if TA else tile.load(A[x, y], mask=inside[:, None])
        elif FORM == "within" or FORM == "limited" or FORM == "walking":
            a = tile.load(A[x, y], mask=(i[:, None] < M) & (0 <= ks[None, :]) & (ks[None, :] < K))
        else:
            a = tile.load(A[x, y])
        if FORM == "slices":
            b = tile.load(B[rn, k:k + BK]).T if TB else tile.load(B[k:k + BK, n:n + BN], mask=(rk < K - k)[:, None])
        else:
            b = tile.load(B[rn[None, :], ks[:, None]], mask=ks[:, None] <= K - 1) if TB else tile.load(B[ks[:, None], rn], mask=rk[:, None] < K - k)
        acc = tile.dot(a, b, acc)
        at += BK
    tile.store(C[m:m + BM, n:n + BN], acc)


FORMS = ("plain", "within", "limited", "walking", "gathered", "masked", "wrapped", "slices")


def matrices(form, m, n, k, ta, tb, first=0):
    """Operands, the row indices, the arguments M and K, and the expected product of the columns of A from `first` on."""
    rng = np.random.default_rng(m + n + k)
    a, b = rng.integers(-3, 4, (m, k)).astype(np.float16), rng.integers(-3, 4, (k, n)).astype(np.float16)
    numbers = rng.integers(-2, m + 2, m).astype(np.int32)
    most, last = (max(m - 9, 1), max(k - 9, 1)) if form == "limited" else (m, k)
    left = a.astype(np.float64)
    if form in ("gathered", "masked"):
        left = np.where(((0 <= numbers) & (numbers < (m if form == "gathered" else min(m, 40))))[:, None], left[np.clip(numbers, 0, m - 1)], 0)
    left = np.where(np.arange(m)[:, None] < most, left, 0)
    want = left[:, first:last] @ b.astype(np.float64)[first:last]
    return (np.ascontiguousarray(a.T) if ta else a), (np.ascontiguousarray(b.T) if tb else b), numbers, most, last, want


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(TARGETS)), st.sampled_from(FORMS), st.integers(1, 150), st.integers(1, 100), st.integers(1, 150),
       st.sampled_from([32, 64]), st.sampled_from([16, 64]), st.sampled_from([16, 32]), st.integers(1, 4),
       st.tuples(st.booleans(), st.booleans(), st.booleans()), st.booleans(), st.sampled_from([0, 32]))
def test_any_product_of_tiles_given_by_indices_is_right(target, form, m, n, k, bm, bn, bk, stages, flags, aligned, start):
    """Boxes, rows by loaded indices that may be out of bounds, masks implied by the bounds or not, indices that the loop advances."""
    ta, tb, roles = flags
    if aligned:
        m, n, k = (x + -x % 16 for x in (m, n, k))
    a, b, numbers, most, last, want = matrices(form, m, n, k, ta, tb, start)
    c = np.zeros((m, n), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tile.TileWarning)
        chosen.simulate((-(-m // bm), -(-n // bn)), a, b, c, numbers, most, last, BM=bm, BN=bn, BK=bk, FORM=form, TA=ta, TB=tb, STAGES=stages,
                        ROLES=roles, FROM=start, target=target).raise_first()
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("kernel", [by_indices, walking])
def test_a_product_by_index_tiles_and_masks_compiles_like_one_of_boxes(kernel, target, roles):
    """If the mask bounds are the extents; or, for rows that wrap around, if they are multiples of the tile."""
    a, b, c = tile.ArraySpec((4096, 2048), "float16"), tile.ArraySpec((1024, 2048), "float16"), tile.ArraySpec((4096, 1024), "float32")
    made = kernel.compile(a, b, c, 4096, 1024, 2048, BM=64, BN=128, BK=64, ROLES=roles, target=target)
    assert {x.variant for x in made.copies} == {COPIES[target]} and made.products[0].variant == TARGETS[target]
    assert "ld.global" not in made.ptx and not re.search(r"[ \t](ld|st)\.shared\.v4", made.ptx) and not made.warnings and made.spills == 0
    if target == "sm_90a":
        assert not any(c.declined and "gather4" in str(c) for c in made.copies) and made.ptx.count("tensor.2d") >= 2


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_wrap_around_inside_a_tile_are_copied_one_by_one(target):
    a, b, _, _, _, want = matrices("plain", 100, 72, 96, False, True)
    c = np.zeros((100, 72), np.float32)
    options = dict(BM=64, BN=64, BK=32, target=target)
    walking.simulate(4, a, b, c, 100, 72, 96, **options).raise_first()
    np.testing.assert_array_equal(c, want)
    made = walking.compile(a, b, c, 100, 72, 96, **options)
    assert {x.variant for x in made.copies} == {"tma" if target in ("sm_100a", "sm_120a") else "ldgsts"} and not made.warnings


@tile.jit
def by_extents(A, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    i, j, acc = tile.program_id(0) * BM + tile.arange(BM), tile.program_id(1) * BN + tile.arange(BN), tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, A.shape[1], BK), stages=2):
        ks = k + tile.arange(BK)
        a = tile.load(A[i[:, None], ks[None, :]], mask=(i[:, None] < C.shape[0]) & (ks[None, :] < A.shape[1]))
        b = tile.load(B[ks[:, None], j[None, :]], mask=(ks[:, None] < A.shape[1]) & (j[None, :] < C.shape[1]))
        acc = tile.dot(a, b, acc)
    tile.store(C[i[:, None], j[None, :]], acc)


@pytest.mark.parametrize("target", TARGETS)
def test_masks_by_other_arrays_extents_cost_nothing_if_these_are_at_least_the_array_s(target):
    """If they are smaller, another binary applies the masks."""
    for m, n, k, rows, columns, deep in ((100, 72, 96, 100, 72, 96), (100, 72, 96, 120, 80, 112), (80, 64, 96, 80, 64, 48), (90, 70, 40, 100, 72, 96)):
        a, b, _, _, _, _ = matrices("plain", rows, columns, deep, False, False)
        a, c = np.ascontiguousarray(a[:, :k]), np.zeros((m, n), np.float32)
        options = dict(BM=64, BN=64, BK=32, target=target)
        by_extents.simulate((2, 2), a, b, c, **options).raise_first()
        inner = min(k, deep)
        np.testing.assert_array_equal(c, a[:m, :inner].astype(np.float64) @ b[:inner, :n].astype(np.float64))
        ahead = {x.variant for x in by_extents.compile(a, b, c, **options).copies}
        assert ahead == ({COPIES[target]} if (m, n, k) == (rows, columns, deep) or inner < k else {"ldgsts"})


@pytest.mark.parametrize("last", [96, 80, 76, 74, 77])
def test_a_mask_that_ends_before_the_array_is_applied_exactly(last):
    """One binary for extents that the masks do not reduce, others for those that they do, with runs as long as these allow."""
    a, b, _, _, _, _ = matrices("plain", 100, 72, 96, False, True)
    c = np.zeros((100, 72), np.float32)
    options = dict(BM=64, BN=64, BK=32, target="sm_90a")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        by_indices.simulate(4, a, b, c, 100, 72, last, **options).raise_first()
        made = by_indices.compile(a, b, c, 100, 72, last, **options)
    np.testing.assert_array_equal(c, a[:, :last].astype(np.float64) @ b[:, :last].T.astype(np.float64))
    # with 77, whole rows are copied, and the mask is applied where they are read
    ahead = {96: {("tma", None)}, 80: {("ldgsts", 16)}, 76: {("ldgsts", 8)}, 74: {("ldgsts", 4)}, 77: {("tma", None)}}[last]
    assert {(x.variant, getattr(x.plan, "vec_bytes", None)) for x in made.copies} == ahead and not caught
    assert all("put in other= for what is masked off" in load.how for load in made.loads) and bool(made.loads) == (last == 77)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("last", [-4, 0, 3, 40, 64])
def test_a_constant_mask_may_leave_nothing(target, last):
    """Like one that ends before the first element."""
    @tile.jit
    def kernel(A, B, C, LAST: tile.constexpr):
        r, acc = tile.arange(64), tile.zeros((64, 64))
        for k in tile.pipelined(range(0, 64, 32), stages=2):
            a = tile.load(A[r[:, None], (k + tile.arange(32))[None, :]], mask=r[:, None] + 1 < LAST)
            acc = tile.dot(a, tile.load(B[k:k + 32, 0:64]), acc)
        tile.store(C[0:64, 0:64], acc)

    a, b, _, _, _, _ = matrices("plain", 64, 64, 64, False, False)
    c = np.zeros((64, 64), np.float32)
    kernel.simulate(1, a, b, c, LAST=last, target=target).raise_first()
    np.testing.assert_array_equal(c, np.where((np.arange(64) + 1 < last)[:, None], a, 0).astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("form, why", [
    ("acc_rows", "the loop changes"),
    ("flat", "an index tile names elements along several axes"),
    ("spread", "only as rows of an array, contiguous in each row"),
])
def test_accesses_that_are_neither_boxes_nor_rows_are_loaded_in_their_iteration(form, why):
    a, b, _, _, _, want = matrices("plain", 64, 64, 64, False, False)
    c = np.zeros((64, 64), np.float32)
    with pytest.warns(tile.TileWarning, match=re.escape(why)):
        odd.simulate(1, a, a.reshape(-1), b, c, FORM=form, target="sm_90a").raise_first()
    columns, left = np.arange(64)[None, :], a.astype(np.float64)
    if form == "acc_rows":
        left = np.concatenate((left[:, :32], np.vstack((left[2:, 32:], np.zeros((2, 32))))), 1)
    elif form == "spread":
        left = np.where(2 * columns < 64, left[:, 2 * columns[0] % 64], 0)
    np.testing.assert_array_equal(c, left @ b.astype(np.float64))


@pytest.mark.parametrize("form", ["causal", "filled"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_mask_that_keeps_parts_of_rows_and_any_other_value_are_put_in_where_the_tile_is_read(form, target):
    """What cannot be out of bounds needs no other value: 64 by 64 elements are whole blocks of the range."""
    a, b, _, _, _, _ = matrices("plain", 64, 64, 64, False, False)
    c = np.zeros((64, 64), np.float32)
    odd.simulate(1, a, a.reshape(-1), b, c, FORM=form, target=target).raise_first()
    left = np.where(np.arange(64)[None, :] <= np.arange(64)[:, None], a, 0) if form == "causal" else a
    np.testing.assert_array_equal(c, left.astype(np.float64) @ b.astype(np.float64))
    made = odd.compile(a, a.reshape(-1), b, c, FORM=form, target=target)
    assert {x.variant for x in made.copies} == {COPIES[target]} and not made.warnings


@tile.jit
def odd(A, F, B, C, FORM: tile.constexpr):
    r, rk, acc = tile.arange(64), tile.arange(32), tile.zeros((64, 64))
    for k in tile.pipelined(range(0, 64, 32), stages=2):
        if FORM == "acc_rows":
            a = tile.load(A[r[:, None], (k + rk)[None, :]])
            r = r + tile.max(tile.where(rk == 0, 2, 0))
        elif FORM == "causal":
            a = tile.load(A[r[:, None], (k + rk)[None, :]], mask=(k + rk)[None, :] <= r[:, None])
        elif FORM == "flat":
            a = tile.load(F[r[:, None] * 64 + (k + rk)[None, :]])
        elif FORM == "spread":
            a = tile.load(A[r[:, None], 2 * (k + rk)[None, :]])
        else:
            a = tile.load(A[r[:, None], (k + rk)[None, :]], other=1)
        acc = tile.dot(a, tile.load(B[k:k + 32, 0:64]), acc)
    tile.store(C[0:64, 0:64], acc)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [0, 3])
def test_rows_by_loaded_indices_are_prefetched_as_rows_of_a_matrix(target, stages):
    """Indices out of bounds give zeros; 16 bytes per instruction, or by TMA where it gathers rows."""
    a, b, numbers, _, _, want = matrices("gathered", 100, 72, 96, False, True)
    c, options = np.zeros((100, 72), np.float32), dict(BM=64, BN=64, BK=32, STAGES=stages, target=target)
    gathered.simulate(4, a, numbers, b, c, **options).raise_first()
    np.testing.assert_array_equal(c, want)
    made = gathered.compile(a, numbers, b, c, **options)
    engine = target in ("sm_100a", "sm_120a")
    assert {x.variant for x in made.copies} == (set() if not stages else {"tma"} if engine else {"ldgsts", COPIES[target]}) and not made.warnings
    assert made.products[0].variant == TARGETS[target]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_product_stays_in_flight_next_to_copies_that_complete_by_groups(stages):
    a, r, c = tile.ArraySpec((4096, 4096), "float16"), tile.ArraySpec((4096,), "int32"), tile.ArraySpec((4096, 4096), "float32")
    made = gathered.compile(a, r, a, c, BM=128, BN=128, BK=64, STAGES=stages, num_warps=8, target="sm_90a")
    assert re.findall(r"wgmma.wait_group.sync.aligned (\d)", made.ptx) == ["1", "0"] and made.spills == 0
    assert re.findall(r"cp.async.wait_group (\d)", made.ptx) == [str(stages - 2)]


@needs_gpu("sm_90a")
@needs_module("torch")
@in_child(timeout=300)
def test_products_of_tiles_given_by_indices_are_right_on_the_gpu():
    import torch
    warnings.simplefilter("ignore")
    for form in FORMS:
        for m, n, k, bm, bn, bk in ((130, 96, 144, 64, 64, 32), (77, 100, 150, 32, 64, 16), (256, 128, 256, 64, 128, 64)):
            for ta, tb, roles, start in ((False, True, False, 0), (False, False, True, 32), (True, True, True, 0), (True, False, False, 32)):
                a, b, numbers, most, last, want = matrices(form, m, n, k, ta, tb, start)
                x, y, i = (torch.from_numpy(v).cuda() for v in (a, b, numbers))
                c = torch.zeros(m, n, device="cuda")
                chosen[-(-m // bm), -(-n // bn)](x, y, c, i, most, last, BM=bm, BN=bn, BK=bk, FORM=form, TA=ta, TB=tb, STAGES=3, ROLES=roles,
                                                 FROM=start)
                np.testing.assert_array_equal(c.cpu().numpy(), want, err_msg=str((form, m, n, k, ta, tb, roles, start)))
    a, b = torch.randint(-3, 4, (300, 256), device="cuda").half(), torch.randint(-3, 4, (200, 256), device="cuda").half()
    x, y = (v.to(for_references()).double() for v in (a, b))
    for kernel in (by_indices, walking):
        for last in (256, 240, 251):
            for stages, roles in ((0, False), (2, False), (3, True)):
                c = torch.zeros(300, 200, device="cuda")
                kernel[12](a, b, c, 300, 200, last, BM=64, BN=128, BK=64, STAGES=stages, ROLES=roles)
                assert (c.to(x.device).double() == x[:, :last] @ y[:, :last].T).all(), (kernel, last, stages, roles)
    rows = torch.randint(-2, 302, (300,), device="cuda", dtype=torch.int32)
    held = torch.where(((rows >= 0) & (rows < 300))[:, None], a[rows.clamp(0, 299).long()], 0).to(x.device).double()
    for stages, roles in ((0, False), (2, False), (3, True)):
        c = torch.zeros(300, 200, device="cuda")
        gathered[12](a, rows, b, c, BM=64, BN=128, BK=64, STAGES=stages, ROLES=roles)
        assert (c.to(x.device).double() == held @ y.T).all(), (stages, roles)
