"""Gathers, scatters and scattered additions use the widest vectors that are contiguous in memory, and agree with NumPy."""

import re
from collections import Counter
from itertools import product

import numpy as np
import pytest
import tilejit as tile
from gather_cases import DTYPES, FORMS, cases, made
from hypothesis import HealthCheck, Phase, given, settings
from tilejit.ir.builder import type_of
from tilejit.ops.memory.access_ops import load_, store_
from tilejit.ops.memory.atomics import atomic_
from tilejit.ops.memory.ordered import ordered_load
from tilejit.ops.memory.regions import coordinates
from tilejit.types import Tile

from tests.gpu import needs_gpu, run_child

TARGETS = ("sm_80", "sm_90a", "sm_100a")


# -- elements ------------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module", autouse=True)
def vectors_checked():
    """The simulator moves single elements. This checks that the elements of each planned vector are contiguous."""
    kept = {op: op.rules.simulate for op in (load_, store_, atomic_, ordered_load)}

    def judging(rule):
        def simulate(m, call, place, *operands):
            moved = call.results[0].type if call.results else type_of(call.args[1])
            if isinstance(moved, Tile):
                judge(m, call, place, operands[-1])
            return rule(m, call, place, *operands)
        return simulate

    for op, rule in kept.items():
        op.rules.simulate = judging(rule)
    yield
    for op, rule in kept.items():
        op.rules.simulate = rule


def judge(m, call, place, mask):
    """Check that each vector of a call's plan is contiguous and aligned, and accessed completely or not at all."""
    plan, t, buffer = getattr(call.choice.plan, "access", call.choice.plan), place.type, place.buffer
    memory, nbytes = buffer.memory, t.dtype.nbytes
    at = np.broadcast_arrays(*(np.asarray(c, np.int64) for c in coordinates(m, place)))
    if t.scope == "global":
        address = memory.address + memory.origin * nbytes + buffer.base + sum(c * s for c, s in zip(at, buffer.strides)) * nbytes
        inside = np.logical_and.reduce([m.global_memory.inside(buffer, d, c) for d, c in enumerate(at)])
    else:
        address = t.buffer.layout.offset_of(*at, shape=t.buffer.shape) * nbytes
        inside = np.logical_and.reduce([(c >= 0) & (c < n) for c, n in zip(at, buffer.shape)])
    runs = lambda x: np.moveaxis(x, plan.axis + 1, -1).reshape(-1, plan.vector)
    inside = runs(inside if mask is None else inside & np.broadcast_to(mask, inside.shape))
    address = runs(address)[inside[:, 0]]
    assert (inside == inside[:, :1]).all(), call
    assert (np.diff(address) == nbytes).all() and not (address[:, 0] % (plan.vector * nbytes)).any(), call


@settings(max_examples=200, deadline=None)
@given(cases())
def test_gathered_and_scattered_elements_agree_with_numpy(case):
    """For every dtype; tables with offsets, pitches and odd extents; masks; and row numbers outside the table."""
    case.check()


def on_gpu(examples: int) -> None:
    ran = []

    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(cases())
    def agrees(case):
        case.check(tile.to_device)
        ran.append(case)

    agrees()
    ways = ("0", 0, ""), ("4", 0, "(rows < 20)[:, None]"), ("8 * n", 1, ""), ("8 * n", 0, "(cols < 4 * n)[None, :]"), ("n", 4, "")
    for dtype, form, kind in product(DTYPES, FORMS, ("gather", "scatter")):
        for start, offset, mask in ways:
            made(kind, dtype, r=40, start=start, offset=offset, mask=mask, form=form).check(tile.to_device)
    print(f"{len(ran)} examples agree on the GPU")


@needs_gpu()
def test_gathered_and_scattered_elements_agree_with_numpy_on_the_gpu():
    output = run_child(on_gpu, timeout=300, examples=200)
    assert "200 examples agree on the GPU" in output


# -- vectors -------------------------------------------------------------------------------------------------------------

def instructions(ptx: str, word: str) -> Counter:
    """The number of global loads, stores or reductions for each size in bytes, without the loads of row numbers and masks."""
    found = re.findall(rf"\b{word}\.(?:relaxed\.gpu\.)?global(?!\.ca)[.\w:]*?(?:\.v(\d))?\.[a-z]+(\d+)(x2)?\b", ptx)
    return Counter(int(n or 1) * int(bits) * (2 if two else 1) // 8 for n, bits, two in found)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_accessed_with_16_byte_vectors(dtype, form, target):
    for kind, word in (("gather", "ld"), ("scatter", "st")):
        case = made(kind, dtype, form=form)
        assert instructions(case.compile(target).ptx, word) == {16: case.arrays[-1].nbytes // 16 // 32}


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("kind, word", [("gather", "ld"), ("ordered", "ld"), ("scatter", "st")])
@pytest.mark.parametrize("how, nbytes", [
    (dict(offset=1), 2), (dict(offset=2), 4), (dict(offset=4), 8), (dict(offset=8), 16),        # offset of the table
    (dict(unit=1, columns=67), 2), (dict(unit=1, columns=68), 8), (dict(turned=True), 2),       # row pitch
    (dict(columns=67), 2), (dict(columns=68), 8), (dict(columns=80), 16),                       # number of columns
    (dict(start="n"), 2), (dict(start="4"), 8), (dict(start="8 * n"), 16),                      # first column of a vector
    (dict(c=60), 8), (dict(c=63), 2),
    (dict(mask="(rows < 20)[:, None]"), 16), (dict(mask="(cols < 4 * n)[None, :]"), 8), (dict(mask="(cols < n)[None, :]"), 2),
    (dict(mask="tile.load(m[0:R, 0:C], cache='ca')"), 2), (dict(mask="(rows >= 3)[:, None] & (tile.arange(C) < 8)[None, :]"), 16)])
def test_vectors_are_as_wide_as_the_table_the_columns_and_the_mask_allow(how, nbytes, kind, word):
    for form in FORMS:
        assert set(instructions(made(kind, "float16", form=form, **how).compile("sm_90a").ptx, word)) == {nbytes}


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_additions_to_rows_use_vectors(dtype):
    """On Hopper and later, if the old elements are unused."""
    added = lambda target, mask="": set(instructions(made("add", dtype, mask=mask).compile(target).ptx, "red"))
    for target in ("sm_90a", "sm_100a"):
        assert added(target) == added(target, "(rows < 20)[:, None]") == {16}
        assert added(target, "(cols < n)[None, :]") == {np.dtype(made("add", dtype).want.dtype).itemsize}
    assert added("sm_80") == ({4} if dtype != "bfloat16" else set())


@tile.jit(num_warps=1)
def columns(w, index, y, R: tile.constexpr, C: tile.constexpr):
    tile.store(y[0:C, 0:R], tile.load(w[0:C, tile.load(index[0:R], cache="ca")]))


@tile.jit(num_warps=1)
def flat(w, index, y, R: tile.constexpr, C: tile.constexpr):
    at = tile.load(index[0:R], cache="ca")[:, None] * C + tile.arange(C)[None, :]
    tile.store(y[0:R, 0:C], tile.load(w[at]))


@tile.jit(num_warps=1)
def paged(w, index, y, R: tile.constexpr, C: tile.constexpr):
    """Rows in pages of 4 rows each."""
    t = tile.arange(R)
    pages = tile.load(index[t // 4], cache="ca")
    tile.store(y[0:R, 0:C], tile.load(w[pages[:, None], (t % 4)[:, None], 1, tile.arange(C)[None, :]]))


@tile.jit(num_warps=1)
def marching(w, index, y, R: tile.constexpr, C: tile.constexpr):
    """A pointer advanced in a loop, as in kernels of other languages."""
    rows, cols, total = tile.load(index[0:R], cache="ca"), tile.arange(C), tile.zeros((R, C), y.dtype)
    for _ in range(0, w.shape[1], C):
        total += tile.load(w[rows[:, None], cols[None, :]], mask=(rows < w.shape[0])[:, None])
        cols += C
    tile.store(y[0:R, 0:C], total)


def test_vectors_are_found_through_index_arithmetic():
    rng, (r, c) = np.random.default_rng(0), (32, 64)
    x, index = rng.integers(0, 99, (40, 2 * c)).astype(np.float32), rng.integers(0, 40, r).astype(np.int32)
    y, pages = np.zeros((r, c), np.float32), rng.integers(0, 99, (40, 4, 3, c)).astype(np.float32)
    first = np.ascontiguousarray(x[:, :c])
    for kernel, w, out, want in ((columns, first.T, y.T, first[index].T), (flat, first.reshape(-1), y, first[index]),
                                 (paged, pages, y, pages[index[:8]][:, :, 1].reshape(r, c)), (marching, x, y, first[index] + x[index, c:])):
        y[:] = 0
        kernel.simulate(1, w, index, out, R=r, C=c).raise_first()
        np.testing.assert_array_equal(out, want)
        assert instructions(kernel.compile(w, index, out, R=r, C=c).ptx, "ld")[16] == r * c // 4 // 32, kernel
        assert instructions(kernel.compile(w, index, out, R=r, C=c).ptx, "st") == {16: r * c // 4 // 32}


@tile.jit(num_warps=4)
def in_parts(w, index, y, scale, R: tile.constexpr, C: tile.constexpr):
    rows, factors = tile.load(index[0:R]), tile.load(scale[0:R]) * 2
    for k in range(0, w.shape[1], C):
        tile.store(y[0:R, k:k + C], tile.load(w[rows, k:k + C]) * factors[:, None])


def test_row_numbers_used_in_a_loop_are_loaded_in_its_layout_before_it():
    """The row numbers and other data of a row are loaded in the layout in which the loop uses them."""
    rng = np.random.default_rng(0)
    w, scale = rng.integers(0, 9, (40, 256)).astype(np.float32), rng.integers(0, 9, 16).astype(np.float32)
    y, index = np.ones((16, 256), np.float32), rng.integers(-3, 43, 16).astype(np.int32)
    inside = (index >= 0) & (index < 40)
    in_parts.simulate(1, w, index, y, scale, R=16, C=64).raise_first()
    np.testing.assert_array_equal(y, np.where(inside[:, None], w[np.where(inside, index, 0)], 0) * scale[:, None] * 2)
    assert "convert_layout" not in in_parts.compile(w, index, y, scale, R=16, C=64).graph


@pytest.mark.parametrize("r, c", [(0, 64), (8, 0), (0, 0)])
def test_tiles_without_elements_are_refused(r, c):
    for kind in ("gather", "scatter", "shared"):
        with pytest.raises(tile.CompilationError, match="extents of at least 1"):
            made(kind, "float32", r=r, c=c).compile("sm_90a")


def test_a_table_with_other_alignment_gets_its_own_version():
    """The facts that vectors depend on are checked for each call's arguments."""
    kernel = tile.jit(source=made("gather", "float16").source)
    for n, how in enumerate((dict(), dict(offset=1), dict(columns=67), dict(unit=1, columns=67), dict(offset=8))):
        case = made("gather", "float16", **how)
        kernel[1](case.table.of(case.table.memory), *case.arrays, case.n, **case.constants)
        np.testing.assert_array_equal(case.arrays[-1], case.want)
    assert 2 <= sum(map(len, kernel.versions.values())) <= 4
