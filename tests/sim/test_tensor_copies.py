"""The tensor memory accelerator field by field: boxes, swizzles, bounds, fills, clipping, refusals, reductions."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from engine_ops import test_tma_load as tma_load, test_tma_store as tma_store
from faulty import check
from tilejit.layout import standard_layout

ONE = np.zeros(1, np.int32)


@tile.jit(num_warps=1)
def load(A, B, x, y, ROWS: tile.constexpr, COLUMNS: tile.constexpr, LAYOUT: tile.constexpr, SWIZZLE: tile.constexpr, FILL: tile.constexpr):
    s = tile.alloc((ROWS, COLUMNS), A.dtype, layout=LAYOUT)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tma_load(s, A, bar, x, y, box=(COLUMNS, ROWS), swizzle=SWIZZLE, oob_fill=FILL)
    bar.wait(phase=0)
    tile.store(B[0:ROWS, 0:COLUMNS], tile.load(s))


def expected(A, x, y, rows, columns, fill):
    out = np.full((rows, columns), fill, A.dtype)
    for i in range(rows):
        for j in range(columns):
            if 0 <= y + i < A.shape[0] and 0 <= x + j < A.shape[1]:
                out[i, j] = A[y + i, x + j]
    return out


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("at", [(0, 0), (8, 3), (-16, -5), (56, 60), (1000, 0)])
def test_a_swizzled_box_is_read_back_through_the_standard_layout(mode, at):
    """TMA's XOR of address bits is the same as the layout's swizzle; elements out of bounds are zero."""
    A = np.random.default_rng(0).integers(0, 100, (64, 64)).astype(np.float16)
    columns = 8 << mode
    layout = standard_layout(16, (32, columns), (0, 32, 64, 128)[mode])
    B = np.zeros((32, columns), np.float16)
    check(load, (1,), A, B, *at, ROWS=32, COLUMNS=columns, LAYOUT=layout, SWIZZLE=mode, FILL=0,
          result=1, expected=expected(A, *at, 32, columns, 0), seeds=[0, 1])


def test_a_box_beyond_the_edge_is_filled_with_the_hardware_s_nan():
    """0x7ff7 for 16-bit floats, not the canonical NaN."""
    A = np.ones((8, 8), np.float16)
    B = np.zeros((8, 16), np.float16)
    load.simulate((1,), A, B, 0, 4, ROWS=8, COLUMNS=16, LAYOUT=None, SWIZZLE=0, FILL=1)
    bits = B.view(np.uint16)
    assert (bits[:4, :8] == 0x3c00).all() and (bits[4:] == 0x7ff7).all() and (bits[:, 8:] == 0x7ff7).all()


@tile.jit(num_warps=1)
def strided(A, B):
    s = tile.alloc((8, 16), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(8 * 16 * 4)
        tma_load(s, A, bar, 4, 1, box=(16, 16), element_strides=(1, 2))
    bar.wait(phase=0)
    tile.store(B[0:8, 0:16], tile.load(s))


def test_element_strides_load_every_second_row():
    """A box of 16 rows at stride 2 loads 8."""
    A = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    check(strided, (1,), A, np.zeros((8, 16), np.float32), result=1, expected=A[1:17:2, 4:20], seeds=[0])


@tile.jit(num_warps=1)
def store(A, B, x, y):
    s = tile.alloc((8, 16), A.dtype)
    tile.store(s, tile.load(A[0:8, 0:16]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tma_store(B, s, x, y, box=(16, 8))
        tile.bulk_commit()
        tile.bulk_wait(0)


def test_stores_are_clipped_to_the_map():
    """Rows and whole 16-byte granules beyond the edge are dropped."""
    A = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
    want = np.zeros((12, 24), np.float32)
    want[6:12, 12:24] = A[:6, :12]
    check(store, (1,), A, np.zeros((12, 24), np.float32), 12, 6, result=1, expected=want)


def test_a_store_clips_its_innermost_dimension_in_steps_of_16_bytes():
    """A row of 13 bytes writes 16: its neighbour is overwritten, and the report says so."""
    A = np.arange(8 * 16, dtype=np.uint8).reshape(8, 16) + 1
    whole = np.zeros((8, 32), np.uint8)
    report = store.simulate((1,), A, whole[:, :13], 0, 0)
    assert [f.kind for f in report.findings] == ["out-of-bounds"]
    assert (whole[:, :13] == A[:, :13]).all() and not whole[:, 16:].any()


@pytest.mark.parametrize("at, kind", [((0, -1), "descriptor"), ((-4, 0), "descriptor"), ((2, 0), "misaligned")])
def test_invalid_coordinates_of_a_store_are_found(at, kind):
    """Negative starts, and starts that are not multiples of 16 bytes, fault in hardware."""
    A = np.ones((8, 16), np.float32)
    assert {f.kind for f in store.simulate((1,), A, np.zeros((12, 24), np.float32), *at).findings} == {kind}


@tile.jit(num_warps=1)
def odd_coordinate(A):
    s = tile.alloc((8, 16), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        tma_load(s, A, bar, 3, 0, box=(16, 8))  # finds: misaligned


@tile.jit(num_warps=1)
def odd_shared_address(A):
    s = tile.alloc((8, 32), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        tma_load(s, A, bar, 0, 0, box=(16, 8), offset=64)  # finds: misaligned


@tile.jit(num_warps=1)
def box_too_wide(A):
    s = tile.alloc((8, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        tma_load(s, A, bar, 0, 0, box=(64, 8), swizzle=3)  # finds: descriptor


@tile.jit(num_warps=1)
def box_of_12_bytes(A):
    s = tile.alloc((8, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        tma_load(s, A, bar, 0, 0, box=(3, 8))  # finds: descriptor


def test_what_the_encoder_and_the_copy_refuse_is_found():
    """Every refusal names its field."""
    A = np.zeros((64, 64), np.float32)
    check(odd_coordinate, (1,), A)
    check(odd_shared_address, (1,), A)
    assert "128 bytes of its swizzle" in check(box_too_wide, (1,), A).findings[0].message
    assert "multiple of 16 bytes, not 12" in check(box_of_12_bytes, (1,), A).findings[0].message
    odd = np.zeros((64, 63), np.float32)
    assert "global_strides[0]" in odd_coordinate.simulate((1,), odd).findings[0].message


@tile.jit(num_warps=1)
def reduce_to(A, B, KIND: tile.constexpr):
    s = tile.alloc((8, 16), A.dtype)
    tile.store(s, tile.load(A[0:8, 0:16]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tma_store(B, s, 0, 0, box=(16, 8), reduce=KIND)
        tile.bulk_commit()
        tile.bulk_wait(0)


@pytest.mark.parametrize("kind, dtype", [("add", np.float32), ("max", np.int32), ("xor", np.uint32), ("min", np.float16), ("inc", np.uint32)])
def test_tensor_reductions_combine_with_the_destination(kind, dtype):
    """Element by element."""
    rng = np.random.default_rng(0)
    A, B = (rng.integers(0, 50, (8, 16)).astype(dtype) for _ in range(2))
    want = {"add": B + A, "max": np.maximum(A, B), "xor": B ^ A if kind == "xor" else None, "min": np.minimum(A, B),
            "inc": np.where(B >= A, 0, B + 1)}[kind]
    check(reduce_to, (1,), A, B, KIND=kind, result=1, expected=want, seeds=[0, 1])


def test_reductions_that_the_hardware_lacks_are_found():
    """min of float32 assembles, but faults."""
    A = np.ones((8, 16), np.float32)
    assert [f.kind for f in reduce_to.simulate((1,), A, A.copy(), KIND="min").findings] == ["descriptor"]


def test_boxes_of_bfloat16_are_copied_as_bits():
    A = np.arange(32 * 64).reshape(32, 64).astype(ml_dtypes.bfloat16)
    B = np.zeros((32, 64), ml_dtypes.bfloat16)
    load.simulate((1,), A, B, 0, 0, ROWS=32, COLUMNS=64, LAYOUT=standard_layout(16, (32, 64), 128), SWIZZLE=3, FILL=0)
    assert (A == B).all()


# -- clusters ----------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1, cluster=(2, 1, 1))
def multicast(A, B):
    s = tile.alloc((8, 16), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(8 * 16 * 4)
        if tile.cta_rank() == 0:
            tma_load(s, A, bar, 0, 0, box=(16, 8), multicast=3)
    bar.wait(phase=0)
    p = tile.program_id(0)
    tile.store(B[p * 8:(p + 1) * 8, 0:16], tile.load(s))


def test_a_multicast_load_reaches_every_cta_of_its_mask():
    """Each destination's own barrier receives the bytes."""
    A = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
    check(multicast, (4,), A, np.zeros((32, 16), np.float32), result=1, expected=np.tile(A, (4, 1)))


@tile.jit
def row_of_any_stride(A, B):
    s = tile.alloc((8, 64), A.dtype, layout=tile.swizzled(A.dtype, (8, 64), 128))
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0:8, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.copy(B[0:8, 0:64], s)


def test_the_stride_of_a_dimension_of_extent_one_is_arbitrary():
    """The map has a multiple of 16 bytes in its place."""
    data = np.arange(256, dtype=np.float16)
    for stride in (65, -3, 1, 2**42 + 1, 64):
        row = np.lib.stride_tricks.as_strided(data, (1, 64), (2 * stride, 2))
        out = np.zeros((8, 64), np.float16)
        row_of_any_stride[1](row, out)
        np.testing.assert_array_equal(out, np.pad(data[None, :64], ((0, 7), (0, 0))))
        assert all(0 <= s < 2**40 and s % 16 == 0 for m in row_of_any_stride.compile(row, out).tensor_maps for s in m.global_strides)
