"""``layout=tile.auto``: the compiler chooses a shared buffer's layout by its uses, and explains the choice."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.errors import CompilationError


def chosen(kernel, *args, **options):
    """The names of the layouts that the compiler has chosen."""
    return [b.chosen for b in kernel.compile(*args, **options).layouts]


def halves(shape=(64, 64)):
    return np.random.default_rng(0).integers(-8, 8, shape).astype("float16")


@tile.jit(num_warps=4)
def product(A, B, C):
    sA, sB = tile.alloc((64, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), B.dtype, layout=tile.auto)
    tile.copy_async(sA, A[0:64, 0:64]).wait()
    tile.copy_async(sB, B[0:64, 0:64]).wait()
    tile.store(C[0:64, 0:64], tile.dot(sA, sB))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_operands_of_products_get_the_widest_swizzle_that_they_allow(target):
    a, b, c = halves(), halves(), np.zeros((64, 64), "float32")
    product.simulate((1,), a, b, c, target=target).raise_first()
    assert (c == a.astype("float32") @ b.astype("float32")).all()
    compiled = product.compile(a, b, c, target=target)
    assert [x.chosen for x in compiled.layouts] == ["a swizzle of 128 bytes"] * 2
    assert "Swizzle(3, 3, 3)" in compiled.layouts[0].layout
    assert "[64, 64] in shared memory: a swizzle of 128 bytes\n      not a swizzle of 64 bytes: a swizzle of 128 bytes comes first" in compiled.explain()


@tile.jit(num_warps=1)
def by_bulk(A, B):
    s = tile.alloc((16, 64), A.dtype, layout=tile.auto)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0:16, 0:64], mbar=bar, variant="bulk")
    bar.wait(phase=0)
    tile.store(B[0:16, 0:64], tile.load(s) + 1)


def test_a_copy_that_allows_no_swizzle_keeps_the_rows_plain():
    """Although register tiles use the buffer; .explain() names the copy and its need."""
    a, b = halves((16, 64)), np.zeros((16, 64), "float16")
    by_bulk.simulate((1,), a, b).raise_first()
    assert (b == a + 1).all()
    (record,) = by_bulk.compile(a, b).layouts
    assert record.chosen == "row-major" and record.layout == "S[(16, 64):(64, 1)]"
    name, why = record.declined[0]
    assert name == "a swizzle of 128 bytes" and why == "line 45: bulk needs a shared layout without a swizzle: Swizzle(3, 3, 3)"
    assert "align=128)" in by_bulk.compile(a, b).graph


@tile.jit(num_warps=1)
def in_parts(A, B, C, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
    """A product whose operands are loaded in parts of rows and columns."""
    s = tile.alloc((64, 64), A.dtype, layout=tile.auto)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        for i in tile.static_range(0, 64, ROWS):
            for j in tile.static_range(0, 64, COLUMNS):
                tile.copy_async(s[i:i + ROWS, j:j + COLUMNS], A[i:i + ROWS, j:j + COLUMNS], mbar=bar)
    bar.wait(phase=0)
    tile.store(C[0:64, 0:64], tile.dot(s, tile.load(B[0:64, 0:64]), variant="mma_sync"))


@pytest.mark.parametrize("rows, columns, want",
                         [(64, 64, "a swizzle of 128 bytes"), (8, 64, "a swizzle of 128 bytes"), (64, 32, "a swizzle of 64 bytes"),
                                                 (8, 16, "a swizzle of 32 bytes"), (2, 64, "a swizzle of 128 bytes")])
def test_a_swizzle_is_as_wide_as_the_parts_that_copies_load(rows, columns, want):
    """TMA's boxes begin at multiples of 128 bytes, and their rows are as long as the swizzle's span."""
    a, b, c = halves(), halves(), np.zeros((64, 64), "float32")
    options = dict(ROWS=rows, COLUMNS=columns)
    in_parts.simulate((1,), a, b, c, **options).raise_first()
    assert (c == a.astype("float32") @ b.astype("float32")).all()
    assert chosen(in_parts, a, b, c, **options) == [want]


@tile.jit(num_warps=4)
def staged(A, B):
    s = tile.alloc((16, 256), A.dtype, layout=tile.auto)
    tile.copy_async(s, A[0:16, 0:256], variant="tma").wait()
    tile.copy_async(B[0:16, 0:256], s, variant="tma").wait()


def test_a_buffer_used_only_by_copies_gets_the_layout_with_the_fewest_copy_instructions():
    """Rows of 1000 elements are not whole atoms: four boxes each way with a swizzle, one without."""
    a, b = halves((16, 1000)), np.zeros((16, 1000), "float16")
    staged.simulate((1,), a, b).raise_first()
    assert (b[:, :256] == a[:, :256]).all()
    (record,) = staged.compile(a, b).layouts
    assert record.chosen == "row-major" and record.declined[0] == ("a swizzle of 128 bytes", "8 instructions a thread for its copies, 2 by row-major")


def test_layouts_that_were_only_considered_cause_no_guards():
    """Facts queried for layouts that were not chosen are not facts of the kernel."""
    @tile.jit(num_warps=4)
    def of_its_own(A, B):
        s = tile.alloc((16, 256), A.dtype, layout=tile.auto)
        tile.copy_async(s, A[0:16, 0:256], variant="tma").wait()
        tile.copy_async(B[0:16, 0:256], s, variant="tma").wait()

    @tile.jit(num_warps=4)
    def plain(A, B):
        s = tile.alloc((16, 256), A.dtype)
        tile.copy_async(s, A[0:16, 0:256], variant="tma").wait()
        tile.copy_async(B[0:16, 0:256], s, variant="tma").wait()

    a = halves((16, 1000))
    assert of_its_own.compile(a, a).recipe["guards"] == plain.compile(a, a).recipe["guards"]


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def handed_over(A, B):
    mine, theirs = tile.alloc((16, 64), A.dtype, layout=tile.auto), tile.alloc((16, 64), A.dtype, layout=tile.auto)
    bar = tile.mbarrier()
    if tile.cta_rank() == 0:
        tile.store(mine, tile.load(A[0:16, 0:64]))
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(theirs.peer(1), mine, mbar=bar)
    else:
        with tile.elect():
            bar.arrive_expect_tx(theirs.nbytes)
        bar.wait(phase=0)
        tile.copy(B[0:16, 0:64], theirs)


def test_a_copy_to_a_peer_gets_the_same_layout_on_both_sides():
    """One buffer is written from registers, the other only by that copy."""
    a, b = halves((16, 64)), np.zeros((16, 64), "float16")
    handed_over.simulate((2,), a, b).raise_first()
    assert (b == a).all() and len(set(chosen(handed_over, a, b))) == 1


def test_rings_and_pipelined_loops_choose_layouts_by_uses_too():
    @tile.jit(num_warps=5)
    def ring(A, B):
        r = tile.ring(2, A=((16, 64), A.dtype))
        with tile.warp(4):
            for k in range(A.shape[0] // 16):
                with r.produce() as slot:
                    with tile.elect():
                        for j in tile.static_range(2):
                            tile.copy_async(slot.A[0:16, j * 32:j * 32 + 32], A[k * 16:k * 16 + 16, j * 32:j * 32 + 32], mbar=slot.full)
        with tile.warpgroup(0):
            for k in range(A.shape[0] // 16):
                with r.consume() as slot:
                    tile.store(B[k * 16:k * 16 + 16, 0:64], tile.load(slot.A))

    @tile.jit
    def loop(A, B, C):
        sA = tile.alloc((64, 32), A.dtype, layout=tile.auto)
        acc = tile.zeros((64, 64))
        for k in tile.pipelined(range(0, A.shape[1], 32), stages=3):
            tile.copy_async(sA, A[0:64, k:k + 32])
            acc = tile.dot(sA, tile.load(B[k:k + 32, 0:64]), acc)
        tile.store(C[0:64, 0:64], acc)

    a, b = halves((64, 64)), np.zeros((64, 64), "float16")
    ring.simulate((1,), a, b).raise_first()
    assert (a == b).all() and chosen(ring, a, b) == ["a swizzle of 64 bytes"]
    a, b, c = halves((64, 96)), halves((96, 64)), np.zeros((64, 64), "float32")
    loop.simulate((1,), a, b, c).raise_first()
    assert (c == a.astype("float32") @ b.astype("float32")).all()
    assert chosen(loop, a, b, c) == ["a swizzle of 128 bytes", "a swizzle of 64 bytes"], "of what is loaded, in a buffer of the compiler's own, too"


APART = "row-major, each slot at a multiple of 128 bytes"


@pytest.mark.parametrize("rows, columns, want", [(3, 16, APART), (4, 16, "row-major"), (12, 8, APART), (12, 24, APART), (16, 8, "row-major")])
def test_ring_slots_are_padded_apart_if_tma_could_not_address_adjacent_ones(rows, columns, want):
    @tile.jit(num_warps=5)
    def ring(A, B, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
        r = tile.ring(2, A=((ROWS, COLUMNS), A.dtype))
        with tile.warp(4), tile.elect():
            for k in range(A.shape[0] // ROWS):
                with r.produce() as slot:
                    tile.copy_async(slot.A, A[k * ROWS:k * ROWS + ROWS, 0:COLUMNS], mbar=slot.full)
        with tile.warpgroup(0):
            for k in range(A.shape[0] // ROWS):
                with r.consume() as slot:
                    tile.store(B[k * ROWS:k * ROWS + ROWS, 0:COLUMNS], tile.load(slot.A))

    a, b = halves((5 * rows, columns)), np.zeros((5 * rows, columns), "float16")
    ring.simulate((1,), a, b, ROWS=rows, COLUMNS=columns).raise_first()
    assert (a == b).all() and chosen(ring, a, b, ROWS=rows, COLUMNS=columns) == [want]
    copy, = (c for c in ring.compile(a, b, ROWS=rows, COLUMNS=columns, target="sm_90a").copies if c.dst_scope == "shared")
    assert (copy.variant, copy.instructions) == ("tma", 1)  # and no row by a separate bulk copy


NARROW = {
    "in": """
with tile.elect():
    bar.arrive_expect_tx(s.nbytes)
    tile.copy_async(s, A[0:R, 0:C], mbar=bar)
bar.wait(phase=0)
tile.copy(B[0:R, 0:C], s)
""", "out": """
tile.copy(s, A[0:R, 0:C])
tile.fence_proxy_async()
tile.sync()
with tile.elect():
    tile.copy_async(B[0:R, 0:C], s)
    tile.bulk_commit()
    tile.bulk_wait(0)
""", "ahead": """
for i in tile.pipelined(range(3), stages=2):
    tile.copy_async(s, A[i * R:i * R + R, 0:C])
    tile.store(B[i * R:i * R + R, 0:C], tile.load(s))
"""}


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("way", NARROW)
@pytest.mark.parametrize("rows", [8, 12])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8"])
def test_rows_of_16_bytes_are_row_major_so_that_one_tma_instruction_copies_them(dtype, rows, way):
    body = ("s, bar = tile.alloc((R, C), A.dtype, layout=tile.auto), tile.mbarrier()" + NARROW[way]).replace("\n", "\n    ")
    kernel = tile.jit(source=f"def k(A, B, R: tile.constexpr, C: tile.constexpr):\n    {body}\n")
    t = np.dtype(getattr(ml_dtypes, dtype, dtype))
    columns, trips = 16 // t.itemsize, 3 if way == "ahead" else 1
    a = np.random.default_rng(0).integers(1, 100, (rows * trips, columns)).astype(t)
    b, constants = np.zeros_like(a), dict(R=rows, C=columns)
    kernel.simulate((1,), a, b, target="sm_90a", **constants).raise_first()
    taken = {(c.variant, c.instructions) for c in kernel.compile(a, b, target="sm_90a", **constants).copies if c.op == "copy_async"}
    assert (a == b).all() and taken == {("tma", 1)} and chosen(kernel, a, b, **constants) == ["row-major"]


@tile.jit(num_warps=2)
def through(A, B, ROWS: tile.constexpr, COLUMNS: tile.constexpr, PART: tile.constexpr, PATH: tile.constexpr, BACK: tile.constexpr,
            LAYOUT: tile.constexpr):
    """Parts of rows in by a given path, and everything out: from registers, transposed, or by a copy."""
    s = tile.alloc((ROWS, COLUMNS), A.dtype, layout=LAYOUT)
    for i in tile.static_range(0, ROWS, PART):
        tile.copy_async(s[i:i + PART, 0:COLUMNS], A[i:i + PART, 0:COLUMNS], variant=PATH).wait()
    if BACK == "load":
        tile.store(B[0:ROWS, 0:COLUMNS], tile.load(s))
    elif BACK == "columns":
        for j in range(COLUMNS):
            tile.store(B[0:ROWS, j], tile.load(s[0:ROWS, j]))
    else:
        tile.copy(B[0:ROWS, 0:COLUMNS], s)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from((8, 16, 24)), st.sampled_from((32, 64, 128, 160)), st.sampled_from((2, 4, 8)),
       st.sampled_from((None, "tma", "bulk", "ldgsts", "vector")),
       st.sampled_from(("load", "columns", "copy")), st.sampled_from(("float16", "float32", "int8")))
@pytest.mark.usefixtures("assembled_later")
def test_the_contents_of_a_buffer_do_not_depend_on_its_layout(rows, columns, part, path, back, dtype):
    """Whatever is chosen, every path of a plain buffer remains possible, and the kernel is right."""
    a = np.random.default_rng(rows).integers(-50, 50, (rows, columns)).astype(dtype)
    b = np.zeros_like(a)
    options = dict(ROWS=rows, COLUMNS=columns, PART=part, PATH=path, BACK=back)
    try:
        through.compile(a, b, LAYOUT=None, **options)
    except CompilationError:
        return
    report = through.simulate((1,), a, b, LAYOUT=tile.auto, **options)
    assert not report.findings and (a == b).all(), report


def test_a_view_of_a_buffer_with_an_automatic_layout_is_an_error():
    @tile.jit
    def viewed(A, WHAT: tile.constexpr):
        s = tile.alloc((16, 64), A.dtype, layout=tile.auto)
        if WHAT == "view":
            s.view(tile.uint8)
        elif WHAT == "reshape":
            s.reshape((64, 16))
        elif WHAT == "permute":
            s.permute((1, 0))
        else:
            s[0:8, 0:64].view(tile.uint8)

    for what in ("view", "reshape", "permute", "part"):
        with pytest.raises(CompilationError, match="needs the buffer's layout, which tile.auto chooses later by the buffer's uses: give a layout"):
            viewed.compile(halves(), WHAT=what)


def test_a_requested_alignment_is_kept():
    @tile.jit(num_warps=1)
    def aligned(A, B):
        s = tile.alloc((16, 64), A.dtype, layout=tile.auto, align=2048)
        tile.copy(s, A[0:16, 0:64])
        tile.sync()
        tile.copy(B[0:16, 0:64], s)

    assert "align=2048)" in aligned.compile(halves(), halves()).graph


def test_the_cache_keeps_the_explanations_of_layouts(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TILEJIT_NO_CACHE", raising=False)
    source = ("import tilejit as tile\ndef k(A, B):\n    s = tile.alloc((16, 64), A.dtype, layout=tile.auto)\n    tile.copy(s, A[0:16, 0:64])\n"
              "    tile.sync()\n    tile.store(B[0:16, 0:64], tile.load(s))\n")
    text = source.split("\n", 1)[1]
    found = []
    for _ in range(2):
        kernel = tile.jit(source=text)
        kernel.source.globals["tile"] = tile
        found.append(kernel.compile(halves(), halves()))
    assert "cache" in found[1].compile_time and found[0].layouts == found[1].layouts and found[0].layouts
