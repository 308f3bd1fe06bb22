"""Copies of 4- and 6-bit elements: packed elements move as bytes, and TMA can pad them."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from bytecheck import check_partition, check_runs, check_tensor_plan
from copy_strategies import copies
from hypothesis import assume, given, settings, strategies as st
from selected_kernels import four_rows
from tilejit.errors import TileError
from tilejit.layout import TileLayout
from tilejit.plan import BufferSpec, plan_copy
from values import PACKED, any_bits as codes, same

pytestmark = pytest.mark.usefixtures("assembled_later")

STEP = {"float4_e2m1fn": 2, "float6_e2m3fn": 4, "float6_e3m2fn": 4}


# -- plans ---------------------------------------------------------------------------------------------------------------------

def halves(spec: BufferSpec) -> BufferSpec | None:
    """The spec of bytes with two elements in each; None if its last dimension does not have stride 1."""
    doubled = lambda s: slice(2 * s.start, 2 * s.stop)
    layout = spec.layout or TileLayout.row_major(spec.shape)
    grouped, at = layout.group(spec.shape)
    inner = next((i for i in reversed(range(at[-2], at[-1])) if grouped.shards[i][0] != 1), None)
    if inner is None or grouped.shards[inner][1] != 1 or layout.swizzle is not None:
        return None
    shards = [(2 * n, 1, a) if i == inner else (n, 2 * s, a) for i, (n, s, a) in enumerate(grouped.shards)]
    made = TileLayout(shards, offset={name: 2 * n for name, n in layout.offset.items()})
    return BufferSpec((*spec.shape[:-1], 2 * spec.shape[-1]), "float4_e2m1fn", spec.scope, layout=made,
                      region=(*spec.region[:-1], doubled(spec.region[-1])))


def outcome(dst, src, variant, **how):
    try:
        return plan_copy(dst, src, variant=variant, **how).plan
    except TileError:
        return None


@settings(max_examples=300, deadline=None)
@given(copies(), st.booleans(), st.sampled_from(["ldgsts", "tma", "bulk", "vector"]))
def test_a_packed_copy_is_planned_like_the_copy_of_its_bytes(sides, store, variant):
    """Random arrays and buffers: the same plan for packed elements and for bytes, or none for either."""
    plain = [BufferSpec(s.shape, "uint8", s.scope, layout=s.layout, region=s.region) for s in sides]
    packed = [halves(s) for s in plain]
    assume(None not in packed)
    if store:
        plain, packed = plain[::-1], packed[::-1]
    how = dict(scope="cta", threads=128) if variant in ("ldgsts", "vector") else {}
    wanted, made = outcome(plain[1], plain[0], variant, **how), outcome(packed[1], packed[0], variant, **how)
    assert made == wanted
    if made is not None:
        check = {"tma": check_tensor_plan, "bulk": check_runs}.get(variant, check_partition)
        check(made, plain[1], plain[0])


@pytest.mark.parametrize("mode", [32, 64, 128])
def test_a_swizzled_layout_of_packed_elements_is_that_of_their_bytes(mode):
    """tile.swizzled counts elements: 256 of them are 128 bytes."""
    array = BufferSpec((64, 1024), "float4_e2m1fn", "global", region=(slice(0, 64), slice(256, 512)))
    shared = BufferSpec((64, 256), "float4_e2m1fn", "shared", layout=tile.swizzled("float4_e2m1fn", (64, 256), mode))
    plan = plan_copy(shared, array, variant="tma").plan
    check_tensor_plan(plan, shared, array)
    as_bytes = BufferSpec((64, 128), "uint8", "shared", layout=tile.swizzled("uint8", (64, 128), mode))
    assert plan == plan_copy(as_bytes, BufferSpec((64, 512), "uint8", "global", region=(slice(0, 64), slice(128, 256))), variant="tma").plan


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
def test_packed_pairs_move_as_bytes_on_every_target(target):
    """Elements that stay packed need no 4-bit type in the map."""
    made = plan_copy(BufferSpec((64, 256), "float4_e2m1fn", "shared"), BufferSpec((64, 256), "float4_e2m1fn", "global"), variant="tma", target=target).plan
    assert (made.tensor_map.dtype, made.bytes_per_issue * made.instructions) == ("uint8", 64 * 128)


@pytest.mark.parametrize("region,words", [((slice(0, 4), slice(1, 9)), "multiples of 2"), ((slice(0, 4), slice(0, 7)), "multiples of 2"),
                                          ((slice(0, 4), 3), "multiples of 2")])
def test_a_region_that_begins_or_ends_inside_a_byte_has_no_plan(region, words):
    with pytest.raises(TileError, match=words):
        plan_copy(BufferSpec((4, 8), "float4_e2m1fn", "shared"), BufferSpec((4, 64), "float4_e2m1fn", "global", region=region))


# -- kernels -------------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def staged(x, y, row, column, ROWS: tile.constexpr, COLUMNS: tile.constexpr, STEP: tile.constexpr, VARIANT: tile.constexpr):
    """The box at (row, STEP * column): in by a given path, out by the default path."""
    s = tile.alloc((ROWS, COLUMNS), x.dtype)
    done = tile.copy_async(s, x[row:row + ROWS, STEP * column:STEP * column + COLUMNS], variant=VARIANT)
    done.wait()
    tile.copy(y[0:ROWS, 0:COLUMNS], s)


@pytest.mark.filterwarnings("ignore:.*ordinary loads and stores")
@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PACKED), st.integers(1, 70), st.integers(1, 12), st.integers(0, 9), st.integers(0, 5),
       st.sampled_from(["ldgsts", "tma", "vector", None]), st.integers(0, 99))
def test_a_box_of_packed_elements_is_copied_exactly_with_zeros_outside(name, height, blocks, row, column, variant, seed):
    """Ragged rows and columns, runtime starts, every path."""
    step = 128 if variant == "tma" else 32
    width, first = step * blocks, step * column
    x, y = tile.pack(codes(name, (height, width), seed)), tile.pack(codes(name, (16, 256), seed + 1))
    staged.simulate(1, x, y, row, column, ROWS=16, COLUMNS=256, STEP=step, VARIANT=variant).raise_first()
    wanted = np.zeros((16, 256), np.uint8)
    there = x.unpack().view(np.uint8)[row:row + 16, first:first + 256]
    wanted[:there.shape[0], :there.shape[1]] = there
    np.testing.assert_array_equal(y.unpack().view(np.uint8), wanted)


@tile.jit(num_warps=1)
def by_bulk(x, y, i):
    s = tile.alloc((4, 256), x.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, x.tiles((4, 256))[0, 0], mbar=bar, variant="bulk")
    bar.wait(phase=0)
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:4, 0:256], s, variant="bulk")
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def to_a_peer(x, y):
    s, got = tile.alloc((8, 128), x.dtype), tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    tile.copy(s, x[8 * rank:8 * rank + 8, 0:128])
    tile.fence_proxy_async()
    with tile.elect():
        bar.arrive_expect_tx(got.nbytes)
    tile.cluster_sync()
    with tile.elect():
        tile.copy_async(got.peer(1 - rank), s, mbar=bar)
    bar.wait(phase=0)
    tile.copy(y[8 * rank:8 * rank + 8, 0:128], got)


@pytest.mark.parametrize("name", PACKED)
def test_contiguous_packed_rows_can_be_copied_by_bulk_and_to_a_peer(name):
    """Runs of bytes, both ways and between CTAs; and they assemble."""
    x, y = tile.pack(codes(name, (4, 256))), tile.pack(codes(name, (4, 256), 1))
    spec = [tile.ArraySpec((4, 256), name)] * 2
    by_bulk.simulate(1, x, y, 0).raise_first()
    assert same(x, y) and [c.variant for c in by_bulk.compile(x, y, 0).copies] == ["bulk", "bulk"]
    x, y = tile.pack(codes(name, (16, 128))), tile.pack(codes(name, (16, 128), 1))
    to_a_peer.simulate(2, x, y).raise_first()
    np.testing.assert_array_equal(y.unpack().view(np.uint8), np.roll(x.unpack().view(np.uint8), 8, axis=0))
    assert "dsmem" in [c.variant for c in to_a_peer.compile(x, y).copies]
    for target in ("sm_100a", "sm_120a"):
        by_bulk.compile(*spec, 0, target=target), to_a_peer.compile(*spec, target=target)


@tile.jit(num_warps=1)
def by_a_named_map(x, y, column):
    m = tile.tensor_map(x[0:8, 0:128])
    s = tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, m[8:16, 128 * column:128 * column + 128], mbar=bar)
    bar.wait(phase=0)
    tile.copy(y[0:8, 0:128], s)


def test_gathered_rows_and_boxes_of_explicit_maps_count_elements():
    """Their columns count elements too."""
    x, y = tile.pack(codes("float4_e2m1fn", (16, 256))), tile.pack(codes("float4_e2m1fn", (8, 128), 1))
    four_rows.simulate(1, x, y, 128, 128, target="sm_100a").raise_first()
    plain = x.unpack().view(np.uint8)
    np.testing.assert_array_equal(y.unpack().view(np.uint8)[:4], plain[[5, 9, 2, 7], 128:256])
    by_a_named_map.simulate(1, x, y, 1).raise_first()
    np.testing.assert_array_equal(y.unpack().view(np.uint8), plain[8:16, 128:256])


# -- padding by TMA --------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def padded_box(x, y, row, column, ROWS: tile.constexpr, COLUMNS: tile.constexpr, DTYPE: tile.constexpr, LAYOUT: tile.constexpr,
               BYTES: tile.constexpr):
    """The box at (row, 128 * column), in its shared memory format."""
    s = tile.alloc((ROWS, COLUMNS), DTYPE, layout=LAYOUT)
    bar = tile.mbarrier()
    with tile.elect():
        box = x[row:row + ROWS, 128 * column:128 * column + COLUMNS]
        bar.arrive_expect_tx(box.nbytes)
        tile.copy_async(s, box, mbar=bar)
    bar.wait(phase=0)
    tile.copy(y[0:ROWS, 0:COLUMNS], s.view(tile.uint8, layout=BYTES))


def as_padded(values):
    """Packed elements in the low bytes of each 16 bytes; the bytes that are left unchanged are -1."""
    bits = 4 if values.dtype == ml_dtypes.float4_e2m1fn else 6
    data = tile.pack(values).data.reshape(*values.shape[:-1], -1, 2 * bits)
    room = np.full((*data.shape[:-1], 16), -1, np.int16)
    room[..., :2 * bits] = data
    return room.reshape(values.shape)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PACKED), st.integers(1, 40), st.integers(1, 4), st.integers(0, 9), st.integers(0, 3), st.sampled_from([None, 128]),
       st.integers(1, 2), st.integers(0, 99))
def test_sixteen_packed_elements_are_padded_to_16_bytes_of_shared_memory(name, height, blocks, row, column, mode, wide, seed):
    """Ragged heights and widths, runtime positions, both layouts; the barrier counts the bytes without padding."""
    shape, dtype = (16, 128 * wide), tile.padded(name)
    values = codes(name, (height, 128 * blocks), seed)
    options = dict(ROWS=16, COLUMNS=shape[1], DTYPE=dtype, LAYOUT=tile.swizzled(dtype, shape, mode) if mode else None,
                   BYTES=tile.swizzled("uint8", shape, mode) if mode else None)
    y = np.zeros(shape, np.uint8)
    padded_box.simulate(1, tile.pack(values), y, row, column, **options, target="sm_100a").raise_first()
    inside = np.zeros(shape, np.uint8).view(values.dtype)
    there = values[row:row + 16, 128 * column:128 * column + shape[1]]
    inside[:there.shape[0], :there.shape[1]] = there
    wanted = as_padded(inside)
    np.testing.assert_array_equal(np.where(wanted < 0, wanted, y), wanted)


@tile.jit
def through_padded(x, raw, y, column, DTYPE: tile.constexpr, LAYOUT: tile.constexpr, BYTES: tile.constexpr):
    """Elements through a padded buffer: its bytes, which were 255 before, and 32 columns of it from a run-time one on."""
    s = tile.alloc((16, 128), DTYPE, layout=LAYOUT)
    tile.store(s.view(tile.uint8, layout=BYTES), tile.full((16, 128), 255, tile.uint8))
    tile.sync()
    tile.store(s, tile.load(x[0:16, 0:128]))
    tile.sync()
    tile.copy(raw[0:16, 0:128], s.view(tile.uint8, layout=BYTES))
    tile.store(y[0:16, 0:32], tile.load(s[0:16, 16 * column:16 * column + 32]))


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("mode", [None, 0, 128])
def test_threads_store_and_load_padded_elements_and_leave_the_padding(name, mode):
    """In plain rows, columns of 16 bytes and a swizzle; the bytes are those that TMA writes."""
    dtype, values = tile.padded(name), codes(name, (16, 128))
    layouts = [None, None] if mode is None else [tile.swizzled(d, (16, 128), mode) for d in (dtype, "uint8")]
    raw, y = np.zeros((16, 128), np.uint8), tile.pack(codes(name, (16, 32), 1))
    options = dict(DTYPE=dtype, LAYOUT=layouts[0], BYTES=layouts[1])
    through_padded.simulate(1, tile.pack(values), raw, y, 3, **options, target="sm_80").raise_first()
    wanted = as_padded(values)
    np.testing.assert_array_equal(raw, np.where(wanted < 0, 255, wanted))
    np.testing.assert_array_equal(y.unpack().view(np.uint8), values.view(np.uint8)[:, 48:80])


@tile.jit
def read_behind_tma(x, y):
    s = tile.alloc((16, 128), tile.padded(x.dtype), layout=tile.auto)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(x[0:16, 0:128].nbytes)
        tile.copy_async(s, x[0:16, 0:128], mbar=bar)
    bar.wait(phase=0)
    tile.store(y[0:16, 0:128], tile.load(s))


@tile.jit
def summed_slots(x, y):
    s = tile.alloc((16, 128), x.dtype, layout=tile.auto)
    total = tile.zeros((16, 128), tile.float32)
    for i in tile.pipelined(range(3), stages=2):
        tile.copy_async(s, x[0:16, 128 * i:128 * i + 128])
        total += tile.load(s).to(tile.float32)
    tile.store(y[0:16, 0:128], total)


@pytest.mark.parametrize("name", PACKED)
def test_threads_read_what_tma_has_padded_and_what_a_pipelined_loop_stages(name):
    values = codes(name, (16, 384))
    made = tile.pack(np.zeros((16, 128), values.dtype))
    read_behind_tma.simulate(1, tile.pack(values), made, target="sm_100a").raise_first()
    np.testing.assert_array_equal(made.unpack().view(np.uint8), values.view(np.uint8)[:, :128])
    y = np.zeros((16, 128), np.float32)
    summed_slots.simulate(1, tile.pack(values), y, target="sm_90a").raise_first()
    np.testing.assert_array_equal(y, values.astype(np.float32).reshape(16, 3, 128).sum(axis=1))


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a", "sm_120a"])
def test_a_map_that_pads_counts_elements_and_needs_rows_of_128(name, target):
    """Sizes and boxes are in elements, strides in bytes of the packed rows."""
    dtype, bits = tile.padded(name), 4 if "4" in name[:6] else 6
    options = dict(ROWS=64, COLUMNS=256, DTYPE=dtype, LAYOUT=tile.swizzled(dtype, (64, 256), 128), BYTES=tile.swizzled("uint8", (64, 256), 128))
    k = padded_box.compile(tile.ArraySpec((200, 1024), name), tile.ArraySpec((64, 256), "uint8"), 0, 0, **options, target=target)
    (m,) = k.tensor_maps
    assert (m.dtype, m.box, m.swizzle, k.copies[0].instructions) == (dtype.name, (128, 64, 2), 3, 1)
    assert (m.global_dim, m.global_strides) == ((128, 200, 8), (128 * bits, 16 * bits))


def test_padding_that_tma_does_not_support_is_refused_with_the_reason():
    """Targets before sm_100a, rows that are not multiples of 128, other swizzles, stores, other paths."""
    wide = BufferSpec((64, 256), tile.padded("float4_e2m1fn"), "shared", layout=tile.swizzled(tile.padded("float4_e2m1fn"), (64, 256), 128))
    array = BufferSpec((64, 256), "float4_e2m1fn", "global")

    def refused(words, dst=wide, src=array, target="sm_100a", **how):
        with pytest.raises(TileError, match=words):
            plan_copy(dst, src, target=target, **how)

    refused("sm_100a or later.*sm_90a", target="sm_90a")
    refused("which only tma pads", variant="bulk")
    one = BufferSpec((64, 128), tile.padded("float4_e2m1fn"), "shared")
    refused("padded elements need boxes with rows of 128, and an innermost dimension that is a multiple of that", dst=one,
            src=BufferSpec((64, 320), "float4_e2m1fn", "global", region=(slice(0, 64), slice(0, 128))))
    refused("known to be a multiple of 128", src=BufferSpec((64, 512), "float4_e2m1fn", "global", region=(slice(0, 64), slice(64, 320))))
    narrow = BufferSpec((64, 256), wide.dtype, "shared", layout=tile.swizzled(wide.dtype, (64, 256), 64))
    refused("a swizzle of 64 bytes", dst=narrow)
    refused("multiple of 32 bytes", src=BufferSpec((64, 256), "float4_e2m1fn", "global", strides=(256 + 32, 1)))
    refused("keeps the dtype", dst=array, src=wide)
    refused("keeps the dtype", src=BufferSpec((64, 256), "float6_e2m3fn", "global"))


# -- errors ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("line,words", [
    ("tile.copy(s, x[0:8, 1:65])", "covers whole bytes, multiples of 2 elements, and this one is 64 elements from 1 on"),
    ("tile.copy(s, x[0:8, n:n + 64])", "begin at whole bytes, multiples of 2 elements, and this start is not known to be at one"),
    ("tile.copy(s[0:8, 0:3], x[0:8, 0:3])", "covers whole bytes"),
    ("tile.load(x[0, 3])", "one element of float4_e2m1fn bytes is no whole byte"),
    ("tile.load(x[tile.arange(8)[:, None], tile.arange(64)[None]])", "indexing the last dimension with a tile"),
    ("tile.load(x[0:8, 0:64], mask=tile.arange(64) > 3)", "has no mask="),
    ("tile.window(x, (0, 2), (8, 64))", "a window works on elements of whole bytes"),
    ("tile.atomic_add(x[0:8, 0:64], 1)", "takes"),
    ("tile.dot(s, s)", "dot from shared memory works on elements of whole bytes"),
    ("tile.copy(p, x[0:8, 0:64])", "a copy keeps the dtype"),
    ("tile.load(p[tile.arange(8), 0:64])", "rows of float4_e2m1fn_p64 that a tile chooses are no region: name a box"),
    ("tile.load(p, mask=tile.arange(64) > 3)", "load of float4_e2m1fn has no mask="),
    ("tile.load(p[0:8, 0:24])", "covers blocks of 16 elements, and this one is 24 elements from 0 on"),
    ("tile.store_async(p.peer(0), tile.load(p), mbar=tile.mbarrier())", "store_async does not reach padded elements"),
    ("tile.alloc((8, 7), x.dtype)", "rows of float4_e2m1fn are whole bytes"),
    ('tile.alloc((8, 8), x.dtype, layout=tile.S[(8, 8):(1, 8)])', "2 elements of float4_e2m1fn share a byte"),
    ("s.permute((1, 0))", "permute of the last dimension"),
    ("tile.copy_async(s, x[0:8, 0:64], fill='nan')", "fill"),
    ("tile.im2col(x, (3,))", "im2col")])
def test_operations_that_packed_elements_lack_are_errors_at_their_line(line, words):
    source = ("def kernel(x, n):\n    s = tile.alloc((8, 64), x.dtype)\n    p = tile.alloc((8, 64), tile.padded(x.dtype))\n    " + line)
    with pytest.raises(TileError, match=words):
        tile.jit(source=source).compile(tile.ArraySpec((64, 256), "float4_e2m1fn"), 3)


def test_a_start_assumed_to_be_even_is_accepted():
    """tile.assume provides what the arithmetic does not prove."""
    source = ("def kernel(x, y, n):\n    tile.assume(n % 2 == 0)\n    tile.store(y[0:8, 0:64], tile.cast(tile.load(x[0:8, n:n + 64]), tile.float32))")
    x, y = codes("float4_e2m1fn", (8, 256)), np.zeros((8, 64), np.float32)
    tile.jit(source=source).simulate(1, tile.pack(x), y, 6).raise_first()
    np.testing.assert_array_equal(y, x[:, 6:70].astype(np.float32))
