"""Every form of tcgen05.cp: what it writes to each lane and column of tensor memory, by the ISA's tables; and its PTX."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.dtypes import dtype_of
from tilejit.layout import TileLayout

pytestmark = pytest.mark.usefixtures("assembled_later")

#: For each form: its rows, bytes per row, and the lanes that row r is written to (PTX ISA, "tcgen05.cp").
FORMS = {
    "128x256b": (128, 32, lambda r: [r]),
    "4x256b": (4, 32, lambda r: [32 * r]),
    "128x128b": (128, 16, lambda r: [r]),
    "64x128b.warpx2::02_13": (64, 16, lambda r: [r, r + 64]),
    "64x128b.warpx2::01_23": (64, 16, lambda r: [r % 32 + 64 * (r // 32), r % 32 + 64 * (r // 32) + 32]),
    "32x128b.warpx4": (32, 16, lambda r: [r, r + 32, r + 64, r + 96]),
}
#: The same as layouts: the digits of the rows, and the replicas.
DIGITS = {"128x256b": ([(128, 1)], []), "4x256b": ([(4, 32)], []), "128x128b": ([(128, 1)], []),
          "64x128b.warpx2::02_13": ([(64, 1)], [(2, 64, "TLane")]),
          "64x128b.warpx2::01_23": ([(2, 64), (32, 1)], [(2, 32, "TLane")]), "32x128b.warpx4": ([(32, 1)], [(4, 32, "TLane")])}
TARGETS = ("sm_100a", "sm_103a")
WIDE = 64  # words per lane


def tensor_layout(form, columns, lane=0):
    digits, replicas = DIGITS[form]
    made = TileLayout([(n, s, "TLane") for n, s in digits] + [(columns, 1, "TCol")], replicas=replicas)
    return made + lane @ tile.axis.TLane if lane else made


@tile.jit
def moved(board, target, source, y, FORM: tile.constexpr, GROUP: tile.constexpr):
    """One thread copies freshly written shared memory to part of `board`, which holds `y`; then all of `board` is stored to `y`."""
    rank = tile.cta_rank()
    bar = tile.mbarrier()
    tile.store(board, tile.load(y[128 * rank:128 * rank + 128, 0:WIDE]))
    tile.tcgen05_fence("before_thread_sync")
    tile.fence_proxy_async()
    tile.cluster_sync()
    tile.tcgen05_fence("after_thread_sync")
    if rank == 0:
        with tile.elect():
            tile.copy_async(target, source, shape=FORM[0], multicast=FORM[1])
            if GROUP == 2:
                tile.tcgen05_commit(bar, multicast=3)
            else:
                tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(y[128 * rank:128 * rank + 128, 0:WIDE], tile.load(board))


@tile.jit
def landed(x, y, H: tile.constexpr, W: tile.constexpr, SMEM: tile.constexpr, TMEM: tile.constexpr, FROM: tile.constexpr, TO: tile.constexpr,
           SIZE: tile.constexpr, FORM: tile.constexpr, GROUP: tile.constexpr):
    """Part of each CTA's tile, beginning at `FROM`, is copied to column `TO` of a view of tensor memory."""
    s = tile.alloc((H, W), x.dtype, layout=SMEM)
    board = tile.alloc((128, WIDE), y.dtype, scope="tmem", cta_group=GROUP)
    d = board.view(x.dtype, (SIZE[0], 4 * WIDE // x.dtype.nbytes), TMEM)
    tile.copy(s, x[H * tile.cta_rank():H * tile.cta_rank() + H, 0:W])
    moved(board, d[:, TO:TO + SIZE[1]], s[FROM[0]:FROM[0] + SIZE[0], FROM[1]:FROM[1] + SIZE[1]], y, FORM, GROUP)


def case(form: str, mode: int, dtype: str, group: int, seed: int):
    """(constants, x, y, expected y): a shared tile twice as high and wide as a single copy, and two copies side by side."""
    rng, nbytes = np.random.default_rng(seed), dtype_of(dtype).nbytes
    rows, width, lanes = FORMS[form]
    span = max(mode, width)
    high, wide = max(2 * rows, 8), 2 * span // nbytes
    start = rows if mode == 0 or rows % 8 == 0 or rows == 4 else 0
    first = span // nbytes if mode else 0
    size = min(span, 2 * width) // nbytes if mode else 2 * width // nbytes
    to, lane = 32 // nbytes, seed % 32 if form == "4x256b" else 0
    x = rng.integers(0, 256, (group * high, wide * nbytes)).astype(np.uint8).view(dtype_of(dtype).np)
    y = rng.integers(0, 1 << 32, (group * 128, WIDE), np.uint32)
    want = y.copy().view(np.uint8)
    for rank in range(group):
        part = x[rank * high + start:rank * high + start + rows, first:first + size].view(np.uint8)
        for r in range(rows):
            for at in lanes(r):
                want[128 * rank + at + lane, 32:32 + part.shape[1]] = part[r]
    constants = dict(H=high, W=wide, SMEM=tile.swizzled(dtype, (high, wide), mode), TMEM=tensor_layout(form, 4 * WIDE // nbytes, lane),
                     FROM=(start, first),
                     TO=to, SIZE=(rows, size), FORM=(*form.split(".", 1), None)[:2], GROUP=group)
    return constants, x, y, want.view(np.uint32)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("mode", [0, 32, 64, 128])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_tcgen05_cp_writes_its_rows_to_their_lanes_and_nothing_else(form, mode, group):
    """From every swizzle, from inside a tile to inside a column range; with cta_group::2, in both CTAs of the pair."""
    for seed, dtype in enumerate(("uint8", "bfloat16", "float32")):
        constants, x, y, want = case(form, mode, dtype, group, 10 * seed + 3)
        options = dict(constants, cluster=(group, 1, 1))
        landed.simulate(group, x, y, **options, seed=seed, target="sm_100a").raise_first()
        np.testing.assert_array_equal(y, want)
    for target in TARGETS:
        compiled = landed.compile(x, y, **options, target=target)
        assert f"tcgen05.cp.cta_group::{group}.{form} [" in compiled.ptx
        record = next(c for c in compiled.copies if c.variant == "tcgen05_cp")
        assert (record.src_scope, record.dst_scope, record.exec_scope) == ("shared", "tmem", "thread")
        assert record.plan.cta_group == group and record.bytes == np.prod(constants["SIZE"]) * x.itemsize


# -- elements of 4 and 6 bits ------------------------------------------------------------------------------------------------

@tile.jit
def widened(x, y, H: tile.constexpr, W: tile.constexpr, ROWS: tile.constexpr, SMEM: tile.constexpr, BYTES: tile.constexpr,
            TMEM: tile.constexpr, DTYPE: tile.constexpr,
            FORM: tile.constexpr, GROUP: tile.constexpr):
    """A tile of padded elements with the bytes `x` is copied to a view of tensor memory."""
    s = tile.alloc((H, W), DTYPE, layout=SMEM)
    board = tile.alloc((128, WIDE), y.dtype, scope="tmem", cta_group=GROUP)
    tile.copy(s.view(tile.uint8, layout=BYTES), x[H * tile.cta_rank():H * tile.cta_rank() + H, 0:W])
    moved(board, board.view(DTYPE, (ROWS, W), TMEM), s[0:ROWS, 0:W], y, FORM, GROUP)


def units(codes: np.ndarray, bits: int, rng) -> np.ndarray:
    """The bytes of padded elements: 16 packed elements from the lowest bit on, then arbitrary padding."""
    room = rng.integers(0, 256, codes.shape).astype(np.uint8).reshape(-1, 16)
    for unit, row in zip(room, codes.reshape(-1, 16)):
        number = sum(int(c) << bits * k for k, c in enumerate(row))
        unit[:2 * bits] = list(number.to_bytes(2 * bits, "little"))
    return room.reshape(codes.shape)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("name, shown, bits, low",
                         [("float4_e2m1fn", "b4x16_p64", 4, 2), ("float6_e2m3fn", "b6x16_p32", 6, 0), ("float6_e3m2fn", "b6x16_p32", 6, 0)])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_unpacks_each_padded_element_to_a_byte(form, name, shown, bits, low, group):
    """4-bit elements to the middle of the byte, 6-bit elements to its low end; every code, with zeros around it."""
    rows, width, lanes = FORMS[form]
    dtype, high, wide, rng = tile.padded(name), max(rows, 8), 128, np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (group * high, wide))
    x, y = units(codes, bits, rng), rng.integers(0, 1 << 32, (group * 128, WIDE), np.uint32)
    want = y.copy().view(np.uint8)
    for rank in range(group):
        for r in range(rows):
            for at in lanes(r):
                want[128 * rank + at, :wide] = codes[rank * high + r] << low
    options = dict(H=high, W=wide, ROWS=rows, SMEM=tile.swizzled(dtype, (high, wide), 128), BYTES=tile.swizzled("uint8", (high, wide), 128),
                   TMEM=tensor_layout(form, wide), DTYPE=dtype, FORM=(*form.split(".", 1), None)[:2], GROUP=group, cluster=(group, 1, 1))
    widened.simulate(group, x, y, **options, target="sm_100a").raise_first()
    np.testing.assert_array_equal(y.view(np.uint8), want)
    for target in TARGETS:
        compiled = widened.compile(x, y, **options, target=target)
        assert f"tcgen05.cp.cta_group::{group}.{form}.b8x16.{shown} [" in compiled.ptx
