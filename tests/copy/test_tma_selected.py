"""im2col copies and copies of rows selected by index, by TMA: on the simulator, in PTX, as cubins."""

import numpy as np
import pytest
import tilejit as tile
import tma_kernels as kernels
from hypothesis import given, settings, strategies as st
from tilejit.errors import CompilationError, DispatchError

pytestmark = pytest.mark.usefixtures("assembled_later")


def tensor_lines(ptx: str) -> list[str]:
    return list(dict.fromkeys(line.strip().split(" [")[0] for line in ptx.splitlines() if ".tensor." in line))


# -- im2col --------------------------------------------------------------------------------------------------------------

@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(("w", "w128")), st.sampled_from((32, 64, 100)), st.sampled_from((0, 1, 2, 5)), st.sampled_from((1, 2)),
       st.sampled_from((0, 1, 2)),
       st.sampled_from((0, 3, 8, 17, 200)))
def test_a_halo_follows_the_pixels_of_a_copy_or_each_32_of_them(along, p, halo, stride, s, first):
    """At the end of a line the manual does not define the halo: there the simulator writes meaningless bytes."""
    p = 128 if along == "w128" else p
    x, y, want = kernels.with_halo_case(along, p, halo, stride, s, first)
    report = kernels.with_halo.simulate((len(y),), x, y, first, ALONG=along, P=p, HALO=halo, STRIDE=stride, S=s, target="sm_100a")
    open_ = np.isnan(want)
    assert not report.findings and (y[~open_] == want[~open_]).all(), report
    assert (y[open_].view(np.uint16) == 0xa5a5).all()


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("along, p, rows", [("w", 64, 66), ("w128", 128, 136)])
def test_a_halo_is_an_operand_and_its_bytes_are_counted(along, p, rows, target):
    x, y, _ = kernels.with_halo_case(along, p, 2, 1, 1, 0)
    k = kernels.with_halo.compile(x, y, 0, ALONG=along, P=p, HALO=2, STRIDE=1, S=1, target=target)
    mode = "im2col::w" if along == "w" else "im2col::w::128"
    assert f".{mode}.mbarrier" in k.ptx and f".L2.global.{mode}" in k.ptx
    (copy,) = [c for c in k.copies if c.op == "copy_async"]
    assert copy.bytes == rows * 128 and k.tensor_maps[0].pixels == p and copy.plan.bytes_per_issue == rows * 128


def test_unsupported_halos_and_positions_are_errors():
    x = np.zeros((4, 6, 200, 64), np.float16)

    @tile.jit(num_warps=1)
    def walked(X, ALONG: tile.constexpr, HALO: tile.constexpr, ROWS: tile.constexpr, FILTER: tile.constexpr):
        x = tile.im2col(X, (1, FILTER), along=ALONG, halo=HALO)
        s = tile.alloc((ROWS, 64), X.dtype, layout=tile.swizzled(X.dtype, (ROWS, 64), 128))
        bar = tile.mbarrier()
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, x[0:ROWS, 0, 0, 0, 0:64], mbar=bar)
        bar.wait(phase=0)

    for options, words in ((dict(ALONG="w128", HALO=2, ROWS=128, FILTER=3), "128 pixels along w128 with a halo of 2"),
                           (dict(ALONG="w", HALO=8, ROWS=8, FILTER=3), "8 pixels along w, of which 8 are the halo's"),
                           (dict(ALONG="w128", HALO=32, ROWS=256, FILTER=3), "halo is a constant of 0 to 31 with along='w128'"),
                           (dict(ALONG="w", HALO=512, ROWS=520, FILTER=3), "halo is a constant of 0 to 511"),
                           (dict(ALONG=None, HALO=1, ROWS=64, FILTER=3), "a halo is for along='w' or 'w128'"),
                           (dict(ALONG="w", HALO=0, ROWS=64, FILTER=33), "a filter that reaches 32 elements; along w at most 31")):
        with pytest.raises(CompilationError, match=words):
            walked.compile(x, target="sm_100a", **options)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("along, mode", [("w", "im2col::w"), ("w128", "im2col::w::128")])
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_the_pixels_of_im2col_w_mode_continue_in_the_next_image(along, mode, stride, target):
    """Without a halo: the line and the filter position are coordinates, and the position along w is an offset."""
    x, y, want = kernels.im2col_w_case(stride)
    options = dict(ALONG=along, P=128, C=64, STRIDE=stride, target=target)
    report = kernels.im2col_w.simulate((len(y),), x, y, **options)
    assert not report.findings and (y == want).all(), report
    k = kernels.im2col_w.compile(x, y, **options)
    assert tensor_lines(k.ptx) == [f"cp.async.bulk.prefetch.tensor.4d.L2.global.{mode}",
                                   f"cp.async.bulk.tensor.4d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"]
    m = k.tensor_maps[0]
    assert (m.wide, m.lower, m.upper, m.element_strides) == (int(along == "w128"), (-1,), (-1,), (1, stride, 1, 1))


def test_im2col_w_mode_needs_targets_and_maps_that_support_it():
    """Blackwell; 128 pixels in w128 mode; a swizzle."""
    x, y, _ = kernels.im2col_w_case(1)
    for options, words in ((dict(ALONG="w", P=128, target="sm_90a"), "along w128: sm_90a"), (dict(ALONG="w128", P=64, target="sm_100a"), "64 pixels along w128"),
                           (dict(ALONG="h", P=64, target="sm_100a"), "along is None, 'w' or 'w128', not 'h'")):
        with pytest.raises(CompilationError, match=words):
            kernels.im2col_w.compile(x, y, C=64, STRIDE=1, **options)

    @tile.jit(num_warps=1)
    def plain(X):
        s = tile.alloc((32, 64), X.dtype)
        bar = tile.mbarrier()
        with tile.elect():
            tile.copy_async(s, tile.im2col(X, (3, 3), along="w")[0:32, 0, 0, 0, 0:64], mbar=bar)

    with pytest.raises(DispatchError, match="a swizzle for a walk along w"):
        plain.compile(x, target="sm_100a")


def compiled(what, shape=(2, 8, 8, 64), filter=(3, 3), stride=1, padding=0):
    @tile.jit(num_warps=1)
    def kernel(X, n):
        x = tile.im2col(X, filter, stride=stride, padding=padding)
        s = tile.alloc((32, 64), X.dtype)
        bar = tile.mbarrier()
        with tile.elect():
            if what == "load":
                tile.copy_async(s, x[0:32, 0, 0, 0:64], mbar=bar)
            elif what == "variant":
                tile.copy_async(s, x[0:32, 0, 0, 0:64], mbar=bar, variant="ldgsts")
            elif what == "column":
                tile.copy_async(s, x[0:32, 0, 0, n:n + 64], mbar=bar)
            elif what == "indices":
                tile.copy_async(s, x[0:32, 0, 0:64], mbar=bar)
            elif what == "place":
                tile.copy_async(s, x[0:32, 3, 0, 0:64], mbar=bar)
            elif what == "copy":
                tile.copy(s, x[0:32, 0, 0, 0:64])
            elif what == "value":
                tile.load(x[0:32, 0, 0, 0:64])
    return kernel.compile(np.zeros(shape, np.float16), 3)


@pytest.mark.parametrize("what, options, words", [
    ("load", {"filter": (300, 3)}, "a corner 299 elements beyond the last element; in 4 dimensions it takes -128 to 127"),
    ("load", {"filter": (300, 3), "padding": (150, 0)}, "a corner 150 elements before"), ("load", {"stride": 9}, "a step of 9"),
    ("load", {"filter": (260, 3), "padding": ((0, 250), 0)}, "a filter that reaches 259 elements; in 4 dimensions at most 255"),
    ("load", {"shape": (2, 8, 8, 60)}, "the stride of dimension 2 is not known to be a multiple of 16 bytes"),
    ("variant", {}, "has no variant 'ldgsts'"), ("column", {}, "known to be a multiple of 1 elements"),
    ("indices", {}, r"by pixels, 2 places in the filter, and channels, as in x\[m:m \+ BLOCK, r, s, c:c \+ BLOCK\]"),
    ("place", {}, "place 3 of a filter's 3 does not exist"),
    ("copy", {}, "copy moves regions of memory"), ("value", {}, "load takes a region of memory"),
    ("load", {"filter": (3,)}, "filter is a constant"), ("load", {"stride": 0}, "stride is a constant of at least 1"),
    ("load", {"shape": (8, 64)}, "an array of 3 to 5 dimensions"), ("load", {"padding": -1}, "padding is a constant of at least 0"),
])
def test_invalid_im2col_copies_are_refused_with_the_reason(what, options, words):
    """Corners, offsets and strides that a map cannot hold; indices that do not fit; operations on registers."""
    with pytest.raises(CompilationError, match=words):
        compiled(what, **options)


def test_an_im2col_multicast_loads_patches_to_every_cta():
    """Load modes and multicast can be combined."""
    @tile.jit(num_warps=1, cluster=(2, 1, 1))
    def kernel(X, Y):
        x = tile.im2col(X, (3, 3), padding=1)
        s = tile.alloc((64, 32), X.dtype, layout=tile.swizzled(X.dtype, (64, 32), 64))
        bar = tile.mbarrier()
        rank = tile.cta_rank()
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s[rank * 32:rank * 32 + 32], x[rank * 32:rank * 32 + 32, 2, 1, 0:32], mbar=bar, multicast=3)
        bar.wait(phase=0)
        tile.copy(Y[rank, 0:64, 0:32], s)

    x = kernels.numbers((2, 5, 6, 32), "float16")
    want = np.zeros((64, 32), np.float16)
    want[:60] = kernels.reference_patches(x, (3, 3), 1, 1, 1)[7]
    y = np.ones((2, 64, 32), np.float16)
    for seed in range(3):
        report = kernel.simulate((2,), x, y, seed=seed)
        assert not report.findings and (y == want).all(), report
    assert "global.im2col.mbarrier::complete_tx::bytes.multicast::cluster" in kernel.compile(x, y).ptx


# -- rows ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype, n, c, mode", [("float16", 16, 64, 128), ("float32", 8, 64, 0), ("uint8", 8, 256, 128), ("bfloat16", 8, 128, 128)])
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_gather4_and_scatter4_select_rows_by_index(dtype, n, c, mode, target):
    """Any order; rows outside the matrix give zeros or are dropped, on either side of it."""
    x, i, y, want = kernels.gathered_and_scattered_case(dtype, n, c)
    options = dict(N=n, C=c, MODE=mode, target=target)
    report = kernels.gathered_and_scattered.simulate((2,), x, i, y, **options)
    assert not report.findings and (y == want).all(), report
    k = kernels.gathered_and_scattered.compile(x, i, y, **options)
    assert tensor_lines(k.ptx) == ["cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4",
                                   "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes",
                                   "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"]


@tile.jit(num_warps=1)
def four(X, Y, a, b):
    s = tile.alloc((4, 64), X.dtype)
    bar = tile.mbarrier()
    bar.arrive_expect_tx(s.nbytes)
    tile.copy_async(s, X.take((a, b, a + b, 1))[:, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.copy(Y[0:4, 0:64], s)


def test_gather4_accepts_scalar_row_indices_and_loads_to_the_own_cta_on_sm_120a():
    """There gather4 is a copy to shared::cta, and scatter4 does not exist."""
    x, y = kernels.numbers((16, 64), "float16"), np.zeros((4, 64), np.float16)
    assert not four.simulate((1,), x, y, 3, 7, target="sm_120a").findings and (y == x[[3, 7, 10, 1]]).all()
    k = four.compile(x, y, 3, 7, target="sm_120a")
    assert tensor_lines(k.ptx) == ["cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"]
    with pytest.raises(DispatchError, match="sm_100a or sm_103a; for plain loads also sm_120a: sm_90a"):
        four.compile(x, y, 3, 7)
    with pytest.raises(DispatchError, match="sm_100a or sm_103a"):
        a, i, b, _ = kernels.gathered_and_scattered_case("float16", 8, 64)
        kernels.gathered_and_scattered.compile(a, i, b, N=8, C=64, MODE=0, target="sm_120a")


def taking(what):
    @tile.jit(num_warps=1)
    def kernel(X, I):
        s = tile.alloc((6, 64), X.dtype)
        bar = tile.mbarrier()
        with tile.elect():
            rows = tile.load(I[0:6])
            if what == "six":
                tile.copy_async(s, X.take(rows)[:, 0:64], mbar=bar)
            elif what == "slice":
                tile.copy_async(s, X.take(rows)[0:6, 0:64], mbar=bar)
            elif what == "floats":
                tile.copy_async(s, X.take(rows * 1.0)[:, 0:64], mbar=bar)
            else:
                tile.copy_async(s, X.take(4)[:, 0:64], mbar=bar)
    return kernel.compile(np.zeros((40, 64), np.float16), np.zeros(8, np.int32), target="sm_100a")


@pytest.mark.parametrize("what, words", [("six", "6 rows that follow each other in shared memory, and 4 go together"),
                                         ("slice", "the columns of taken rows are a slice"), ("floats", "a tile of integers"),
                                         ("one", "a tile of integers")])
def test_invalid_row_selections_are_refused_with_the_reason(what, words):
    """Rows must come by four, indices must be integers, and columns a slice."""
    with pytest.raises(CompilationError, match=words):
        taking(what)
