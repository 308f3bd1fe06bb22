"""Copies by all threads, asynchronous or not: the PTX of each option, and the simulator's results."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError
from tilejit.layout import standard_layout


@tile.jit
def ldgsts_staged(A, B, CACHE: tile.constexpr = None, PREFETCH: tile.constexpr = None):
    i = tile.program_id(0) * 128
    sA = tile.alloc((128, 32), A.dtype)
    tile.copy_async(sA, A[i:i + 128, 0:32], cache=CACHE, prefetch=PREFETCH)
    tile.cp_async_commit()
    tile.cp_async_wait(0)
    tile.sync()
    tile.copy(B[i:i + 128, 0:32], sA)


@pytest.mark.parametrize("options, text", [
    ({}, "cp.async.cg.shared.global ["), ({"CACHE": "ca"}, "cp.async.ca.shared.global ["),
    ({"PREFETCH": 128}, "cp.async.cg.shared.global.L2::128B ["),
    ({"CACHE": "evict_first"}, "cp.async.cg.shared.global.L2::cache_hint ["),
    ({"CACHE": "evict_last", "PREFETCH": 256}, "cp.async.cg.shared.global.L2::cache_hint.L2::256B [")])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_options_of_ldgsts_become_modifiers_of_cp_async(options, text, target):
    """Cache operator, cache policy and L2 prefetch, on every target."""
    k = ldgsts_staged.compile(tile.ArraySpec((512, 32), "float16"), tile.ArraySpec((512, 32), "float16"), target=target, **options)
    assert k.ptx.count(text) == 4 and k.cubin
    assert [c.variant for c in k.copies] == ["ldgsts", "vectorised"]


WITH_HINTS = """
def with_hints(A, B):
    s = tile.alloc((16, 64), A.dtype)
    bar = tile.mbarrier()
    tile.copy_async(s, A[0:16, 0:64], prefetch=128, l2_promotion=256, prefetch_map=True).wait()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0:16, 0:64], mbar=bar, prefetch=128, l2_promotion=256)
    bar.wait(phase=0)
    tile.copy(B[0:16, 0:64], s)
"""


def test_hints_that_the_chosen_path_does_not_support_are_reported(tmp_path, monkeypatch):
    """Each path uses its own; the others are in the record and in .explain(), also for a kernel from the cache."""
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    spec = tile.ArraySpec((64, 64), "float16")
    for cached in (False, True):
        k = tile.jit(source=WITH_HINTS).compile(spec, spec, target="sm_90a")
        assert (list(k.compile_time) == ["cache"]) == cached
        assert [(c.variant, c.unused) for c in k.copies[:2]] == [("ldgsts", (("l2_promotion", "tma"), ("prefetch_map", "tma"))), ("tma", (("prefetch", "ldgsts"),))]
        told = [line.strip() for line in k.explain().splitlines() if "without" in line]
        assert told == ["without l2_promotion=, which only tma takes", "without prefetch_map=, which only tma takes", "without prefetch=, which only ldgsts takes"]
        assert not k.warnings


def test_a_cache_operator_on_shared_memory_causes_a_warning():
    @tile.jit
    def cached(A, B):
        s = tile.alloc((128,), A.dtype)
        tile.store(s, tile.load(A[0:128], cache="cg"), cache="cs")
        tile.sync()
        for i in range(2):
            tile.store(B[0:128], tile.load(s, cache="evict_first"), cache="cs")

    spec = tile.ArraySpec((128,), "float32")
    with pytest.warns(tile.TileWarning):
        told = cached.compile(spec, spec).warnings
    assert [w.partition(",")[0] for w in told] == ["cache='cs' applies to global memory only", "cache='evict_first' applies to global memory only"]


@pytest.mark.parametrize("rows", [512, 300, 1])
def test_ldgsts_fills_out_of_bounds_elements_and_the_copy_back_drops_them(rows):
    """Ragged rows, compared with NumPy."""
    x = np.random.default_rng(2).standard_normal((rows, 32)).astype(np.float16)
    y = np.zeros_like(x)
    report = ldgsts_staged.simulate((4,), x, y)
    assert not report.findings and (x == y).all()


@tile.jit
def there_and_back(A, B, M: tile.constexpr, N: tile.constexpr):
    i, j = tile.program_id(0) * M - 3, tile.program_id(1) * N
    sA = tile.alloc((M, N), A.dtype)
    tile.copy(sA, A[i:i + M, j:j + N])
    tile.sync()
    tile.copy(B[i:i + M, j:j + N], sA)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint8", "bool", "float64", "int64"])
@pytest.mark.parametrize("shape", [(77, 64), (64, 33), (16, 160)])
def test_a_synchronous_copy_keeps_every_element_whatever_its_alignment(dtype, shape):
    """Vectors where alignment is provable, otherwise single elements; starts before the array and past its end."""
    x = (np.random.default_rng(3).random(shape) * 200).astype(dtype)
    y = np.zeros_like(x)
    report = there_and_back.simulate((7, 3), x, y, M=16, N=64)
    assert not report.findings and (x == y).all()


def test_a_synchronous_copy_issues_vectors_of_16_bytes():
    """A 128 x 64 float16 tile by 128 threads: eight vectors each, with eight loads before their stores."""
    k = there_and_back.compile(tile.ArraySpec((512, 64), "float16"), tile.ArraySpec((512, 64), "float16"), M=128, N=64)
    assert [(c.variant, c.plan.vec_bytes, c.instructions) for c in k.copies] == [("vectorised", 16, 8)] * 2
    lines = [line.split()[0] for line in k.ptx.splitlines()
             if "ld.global.v4" in line or "st.shared.v4" in line or "@%p" in line and "ld.global" in line]
    assert len(lines) == 16


def test_a_copy_of_many_steps_becomes_a_loop():
    """One thread that moves 64 x 64 elements does not become thousands of instructions."""
    @tile.jit
    def alone(A, B):
        with tile.thread(0):
            sA = tile.alloc((64, 64), A.dtype)
            tile.copy(sA, A[0:64, 0:64])
            tile.copy(B[0:64, 0:64], sA)

    x = np.random.default_rng(4).standard_normal((64, 65)).astype(np.float32)[:, 1:]
    y = np.zeros((64, 65), np.float32)[:, 1:]
    report = alone.simulate((1,), x, y)
    assert not report.findings and (x == y).all()
    k = alone.compile(x, y)
    assert [c.variant for c in k.copies] == ["scalar", "scalar"] and [c.instructions for c in k.copies] == [4096, 4096]
    assert k.ptx.count("ld.global") == 8 and k.cubin


def test_a_copy_may_be_between_two_arrays_or_two_buffers():
    """Global to global, shared to shared, and a transpose of extents of one."""
    @tile.jit
    def around(A, B):
        sA = tile.alloc((32, 64), A.dtype)
        sB = tile.alloc((1, 32, 64), A.dtype, layout=standard_layout(16, (1, 32, 64), 128))
        tile.copy(sA, A[0:32, 0:64])
        tile.sync()
        tile.copy(sB, sA)
        tile.sync()
        tile.copy(B[0, 0:32, 0:64], sB[0])
        tile.copy(B[1, 0:32, 0:64], A[0:32, 0:64])

    x = np.random.default_rng(5).standard_normal((30, 61)).astype(np.float16)
    y = np.ones((2, 30, 61), np.float16)
    report = around.simulate((1,), x, y)
    assert not report.findings and (y == x).all()
    assert all(c.variant in ("vectorised", "scalar") for c in around.compile(x, y).copies)


def test_copies_that_no_asynchronous_path_supports_use_loads_and_stores_with_a_warning():
    """Single bytes at odd addresses: correct, complete at once, and with a warning."""
    @tile.jit
    def odd(A, B):
        sA = tile.alloc((16, 33), A.dtype)
        tile.copy_async(sA, A[1:17, 1:34], fill=0)
        tile.sync()
        tile.copy(B[0:16, 0:33], sA)

    x = np.random.default_rng(6).integers(0, 255, (16, 40), np.uint8)
    y = np.zeros((16, 33), np.uint8)
    report = odd.simulate((1,), x, y)
    assert not report.findings and (y[:15] == x[1:16, 1:34]).all() and not y[15].any()
    k = odd.compile(x, y)
    assert k.copies[0].variant == "vector" and [v for v, _ in k.copies[0].declined] == ["ldgsts", "tma", "bulk", "dsmem", "tcgen05_cp"]
    assert any("ordinary loads and stores" in w and "copy_async" in w for w in k.warnings)


def test_facts_that_only_explain_declined_variants_are_no_guards():
    """An ldgsts kernel is not specialised for what a tensor map would have needed."""
    k = ldgsts_staged.compile(tile.ArraySpec((512, 32), "float16"), tile.ArraySpec((512, 32), "float16"))
    kinds = {fact[0] for fact, _ in k.recipe["guards"]}
    assert "stride_at_least" not in kinds and "size_at_least" not in kinds


def test_the_regions_of_a_shared_copy_must_be_the_same_for_all_its_threads():
    """A start that differs between the threads is an error that names it."""
    @tile.jit
    def torn(A):
        sA = tile.alloc((4, 64), A.dtype)
        row = tile.thread_id() % 4
        tile.copy(sA[row], A[row, 0:64])

    with pytest.raises(CompilationError, match="share this copy, and `tile.thread_id\\(\\) % 4` differs between them"):
        torn.compile(tile.ArraySpec((4, 64), "float16"))
