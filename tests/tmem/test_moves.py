"""Tensor memory in the language: allocations, their lifetimes, and moves to and from registers."""

import re

import numpy as np
import pytest
import tilejit as tile
from faulty import check
from tilejit.layout import TileLayout, tmem_datapath
from tilejit.ops.tmem.ldst import WORDS

TARGETS = ("sm_100a", "sm_103a")
SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")


@tile.jit
def through(x, y, M: tile.constexpr, N: tile.constexpr, LAYOUT: tile.constexpr, TO: tile.constexpr, FROM: tile.constexpr, PACK: tile.constexpr):
    d = tile.alloc((M, N), x.dtype, scope="tmem", layout=LAYOUT)
    tile.tcgen05_st(d, tile.load(x[0:M, 0:N]), shape=TO, pack=PACK)
    tile.tcgen05_wait("st")
    tile.store(y[0:M, 0:N], tile.tcgen05_ld(d, shape=FROM, pack=PACK))


def alone(columns, rows=128):
    """16-bit elements with one column each, as the tensor cores leave them."""
    return TileLayout([(rows, 1, "TLane"), (columns, 2, "TCol")])


def moved(shape, dtype, layout=None, to=None, back=None, pack=None, warps=4, target="sm_100a", compile=False):
    """Move a tile to tensor memory and back on the simulator, and with `compile` through the assembler; returns the compiled kernel."""
    x = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    y = np.zeros_like(x)
    options = dict(M=shape[0], N=shape[1], LAYOUT=layout, TO=to, FROM=back, PACK=pack, num_warps=warps, target=target)
    through.simulate(1, x, y, **options).raise_first()
    np.testing.assert_array_equal(x, y)
    return through.compile(x, y, **options) if compile else None


@pytest.mark.parametrize("to", SHAPES)
@pytest.mark.parametrize("back", SHAPES)
def test_a_tile_stored_with_one_instruction_shape_can_be_loaded_with_another(to, back):
    """The register layouts of the shapes in the ISA agree with each other: each element is at the position that the layout says."""
    moved((128, 64), "float32", None, to, back)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_assembles_with_every_repetition(shape, target):
    """x1 to x128, as far as the shape allows, packed and unpacked."""
    largest = {"32x32b": 128, "16x64b": 256, "16x128b": 256, "16x256b": 256, "16x32bx2": 256}[shape]
    columns = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 2}[shape]
    rows, seen = (128, set()) if shape == "32x32b" else (64, set())
    layout = None if shape == "32x32b" else "F"
    while columns <= largest:
        compiled = moved((rows, columns), "float32", layout and tmem_datapath("F", columns), shape, shape, target=target, compile=True)
        text = next(line for line in compiled.ptx.splitlines() if "tcgen05.ld.sync" in line)
        seen.add(text.split(shape + ".")[1].split(".")[0])
        columns *= 2
    words = {"16x128b": 64, "16x256b": 32}.get(shape, 128)
    assert seen == {f"x{1 << k}" for k in range(words.bit_length())}


@pytest.mark.parametrize("shape,columns,warps", [*((s, c, 4) for s in SHAPES for c in (64, 104)), *((s, *c) for s in SHAPES[:4] for c in ((96, 8), (128, 16)))])
def test_emitted_moves_address_the_lanes_and_columns_of_their_plan(shape, columns, warps):
    """Each instruction has its own address and the registers of its shape and repetition; each warp starts at its quarter of the lanes."""
    made = moved((64, columns), "float32", tmem_datapath("F", columns), shape, shape, warps=warps, compile=True) if shape != "32x32b" else \
        moved((128, columns), "float32", None, shape, shape, warps=warps, compile=True)
    texts = [t for t in re.findall(r"// begin inline asm\s(.*?)// end inline asm", made.ptx, re.DOTALL) if f".sync.aligned.{shape}." in t]
    plans = [c.plan for c in made.copies if c.variant == "tcgen05_ldst"]
    assert len(texts) == len(plans) == 2 and re.search(r"shl\.b32\s+%r\d+, %r\d+, 21;", made.ptx)  # 32 lanes, in the upper half of an address
    for text, plan, way in zip(texts, plans, ("st", "ld")):
        places = dict(re.findall(r"add\.u32 (t\d+), %r\d+, (\d+);", text))
        found = re.findall(rf"tcgen05\.{way}\.sync\.aligned\.{shape}\.x(\d+)\.b32 ([^;]*);", text)
        assert len(found) == len(plan.issues) == len(places) and text.count(f"tcgen05.wait::{way}") == 1
        assert len(set(re.findall(r"%r\d+", " ".join(operands for _, operands in found)))) == plan.registers
        for (repeat, operands), issue in zip(found, plan.issues):
            words = re.findall(r"%r\d+", operands.split("{")[1].split("}")[0])
            assert int(repeat) == issue.repeat and len(words) == len(set(words)) == issue.repeat * WORDS[shape]
            assert int(places[re.search(r"\[(t\d+)\]", operands)[1]]) == issue.lane << 16 | issue.column


@pytest.mark.parametrize("shape", SHAPES)
def test_elements_of_16_bits_with_one_column_each_are_packed_in_registers(shape):
    """pack::16b and unpack::16b put two of them in a register; without, each has its own."""
    for pack in (True, False):
        compiled = moved((128, 32), "float16", alone(32), shape, shape, pack, compile=True)
        assert ("pack::16b" in compiled.ptx) == pack
    moved((128, 32), "float16", alone(32), shape, None)


@pytest.mark.parametrize("datapath,rows", [("A", 128), ("B", 64), ("C", 64), ("D", 128), ("E", 64), ("F", 64), ("G", 32)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_every_data_path_layout_of_the_tensor_cores_can_be_moved(datapath, rows, dtype):
    """Each accumulator layout of a product, by the first instruction shape that can move it."""
    moved((rows, 64), dtype, tmem_datapath(datapath, 64), compile=True)
    if datapath in "CF":
        moved((rows, 64), dtype, tmem_datapath(datapath, 64, 1))


@pytest.mark.parametrize("columns", [1, 3, 8, 24, 40, 96, 100, 127])
def test_column_counts_that_are_not_powers_of_two_take_several_instructions(columns):
    """As few as possible: one for each set bit of the count."""
    compiled = moved((128, columns), "float32", compile=True)
    record = compiled.copies[0]
    assert (record.variant, record.dst_scope, record.src_scope) == ("tcgen05_ldst", "tmem", "local")
    assert record.instructions == bin(columns).count("1") and record.bytes == 128 * columns * 4


@pytest.mark.parametrize("warps, regs, options, repeat", [
    (12, None, {}, 128), (13, None, {}, 64), (16, 192, {}, 64), (24, None, {}, 32), (32, 88, {}, 32), (4, None, dict(max_registers=96), 64),
    (4, None, dict(min_ctas=4), 64), (8, None, dict(min_ctas=3), 32)])
def test_an_instruction_uses_no_more_registers_than_the_assembler_allows_a_thread(warps, regs, options, repeat):
    """If a kernel's threads start with fewer than 146 registers, ptxas refuses x128 (C7602) whatever the role's `regs`; the
    move is split."""
    least = None if regs is None else 24

    @tile.jit(num_warps=warps, spills=8192, **options)
    def kernel(x, y):
        d = tile.alloc((128, 128), x.dtype, scope="tmem")
        with tile.warpgroup(0, regs=regs):
            tile.store(d, tile.load(x[0:128, 0:128]))
            tile.store(y[0:128, 0:128], tile.load(d))
        if warps > 4:
            with tile.warpgroup(1, regs=least):
                tile.store(y[128, 0:128], tile.load(x[0, 0:128]))

    x, y = np.random.default_rng(0).random((128, 128), np.float32), np.zeros((129, 128), np.float32)
    kernel.simulate(1, x, y, target="sm_100a").raise_first()
    np.testing.assert_array_equal(y[:128], x)
    moves = [c for c in kernel.compile(x, y, target="sm_100a").copies if c.variant == "tcgen05_ldst"]
    assert [[(i.column, i.repeat) for i in m.plan.issues] for m in moves] == [[(n, repeat) for n in range(0, 128, repeat)]] * 2


@pytest.mark.parametrize("warps", [4, 8, 12, 16])
@pytest.mark.parametrize("shape", ["32x32b", "16x64b", "16x128b", "16x256b"])
def test_several_warpgroups_divide_the_columns_between_them(warps, shape):
    """Each warpgroup can access all lanes."""
    moved((128, 96 if warps == 12 else 128), "float32", None, shape, shape, warps=warps, compile=shape == "32x32b")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float32", "int32", "uint16"])
def test_packed_elements_of_8_to_32_bits_can_be_moved(dtype):
    moved((128, 64), dtype, compile=True)


@tile.jit
def parts(x, y, n, W: tile.constexpr):
    d = tile.alloc((128, 128), x.dtype, scope="tmem")
    tile.store(d[0:128, 32:64], tile.load(x[0:128, 0:32]))
    for i in range(n):
        tile.store(d[:, 64 + 16 * i:80 + 16 * i], tile.load(x[0:128, 16 * i:16 * i + 16]))
    v = tile.load(d[:, 32:64])
    for i in range(n):
        tile.store(y[0:128, 16 * i:16 * i + 16], tile.load(d[:, 64 + 16 * i:80 + 16 * i]) + 1)
    tile.tcgen05_fence("before_thread_sync")
    tile.sync()
    tile.tcgen05_fence("after_thread_sync")
    with tile.warp(W):
        own = tile.load(d[32 * (W % 4):32 * (W % 4) + 32, 32:48])
        tile.store(y[32 * (W % 4):32 * (W % 4) + 32, 32:48], own)
    tile.store(y[0:128, 64:96], v)


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("warp", [0, 3, 6])
def test_regions_may_begin_at_runtime_columns_and_a_warp_moves_its_own_lanes(n, warp):
    """A warp can access the 32 lanes given by its index modulo 4."""
    x = np.random.default_rng(1).random((128, 32), np.float32)
    y = np.zeros((128, 96), np.float32)
    warps = 8 if warp > 3 else 4
    parts.simulate(1, x, y, n, W=warp, target="sm_100a", num_warps=warps).raise_first()
    np.testing.assert_array_equal(y[:, 64:], x)
    np.testing.assert_array_equal(y[:, :16 * n], x[:, :16 * n] + 1)
    lanes = slice(32 * (warp % 4), 32 * (warp % 4) + 32)
    np.testing.assert_array_equal(y[lanes, 32:48], x[lanes, :16])
    assert parts.compile(x, y, n, W=warp, target="sm_103a", num_warps=warps).cubin


@tile.jit
def copied(x, y):
    d, e = tile.alloc((128, 16), x.dtype, scope="tmem"), tile.alloc((128, 16), x.dtype, scope="tmem")
    v = tile.load(x[0:128, 0:16])
    tile.copy(e, v)
    tile.copy_async(d, v)
    tile.tcgen05_wait("st")
    a = tile.tcgen05_ld(d, wait=False)
    b = tile.tcgen05_ld(e, wait=False)
    tile.tcgen05_wait("ld")
    tile.store(y[0:128, 0:16], a + b)


def test_several_moves_may_be_in_flight_until_one_wait():
    """copy_async of a tile, and loads with wait=False."""
    x, y = np.random.default_rng(2).random((128, 16), np.float32), np.zeros((128, 16), np.float32)
    copied.simulate(1, x, y, target="sm_100a").raise_first()
    np.testing.assert_array_equal(y, x + x)
    compiled = copied.compile(x, y, target="sm_100a")
    assert [c.variant for c in compiled.copies] == ["tcgen05_ldst"] * 4
    assert compiled.ptx.count("tcgen05.wait::ld") == 1 and compiled.ptx.count("tcgen05.alloc") == 1


# -- findings --------------------------------------------------------------------------------------------------------------

Y = np.zeros((128, 16), np.float32)


@tile.jit
def unwaited(y):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")
    tile.tcgen05_st(d, tile.zeros((128, 16)), wait=False)
    tile.store(y[0:128, 0:16], tile.load(d))  # finds: missing-wait
    tile.tcgen05_wait("st")


@tile.jit
def overwritten(y):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")
    tile.store(d, tile.zeros((128, 16)))
    v = tile.tcgen05_ld(d, wait=False)
    tile.store(d, tile.ones((128, 16)))  # finds: missing-wait
    tile.tcgen05_wait("ld")
    tile.store(y[0:128, 0:16], v)


@tile.jit
def never_written(y):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")
    tile.store(y[0:128, 0:16], tile.load(d))  # finds: uninitialized-read


@tile.jit
def between_warpgroups(y, BEFORE: tile.constexpr, AFTER: tile.constexpr):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")
    with tile.warpgroup(0):
        tile.store(d, tile.ones((128, 16)))
    if BEFORE:
        tile.tcgen05_fence("before_thread_sync")
    tile.sync()
    if AFTER:
        tile.tcgen05_fence("after_thread_sync")
    with tile.warpgroup(1):
        tile.store(y[0:128, 0:16], tile.load(d))


@tile.jit
def read_and_then_written(y, BEFORE: tile.constexpr, AFTER: tile.constexpr):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")
    with tile.warpgroup(0):
        tile.store(d, tile.ones((128, 16)))
        tile.store(y[0:128, 0:16], tile.load(d))
    if BEFORE:
        tile.tcgen05_fence("before_thread_sync")
    tile.sync()
    if AFTER:
        tile.tcgen05_fence("after_thread_sync")
    with tile.warpgroup(1):
        tile.store(d, tile.zeros((128, 16)))


@tile.jit
def freed_and_used(y):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")
    tile.store(d, tile.ones((128, 16)))
    d.dealloc()
    tile.store(y[0:128, 0:16], tile.load(d))  # finds: tmem


@tile.jit
def freed_twice(y, n):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")
    if n > 0:
        d.dealloc()
    d.dealloc()  # finds: tmem


@tile.jit
def leaked(y, n):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")  # finds: tmem
    if n > 3:
        d.dealloc()


@tile.jit
def freed_under_way(y):
    d = tile.alloc((128, 16), y.dtype, scope="tmem")
    tile.tcgen05_st(d, tile.ones((128, 16)), wait=False)
    d.dealloc()  # finds: missing-wait
    tile.tcgen05_wait("st")


def test_missing_waits_for_moves_are_found():
    """A read before wait::st, a write before wait::ld, and a read of uninitialised memory."""
    check(unwaited, (1,), Y, target="sm_100a")
    check(overwritten, (1,), Y, target="sm_100a")
    check(never_written, (1,), Y, target="sm_100a")


@pytest.mark.parametrize("kernel", [between_warpgroups, read_and_then_written])
def test_threads_that_synchronise_their_tensor_memory_accesses_need_both_fences(kernel):
    """tcgen05.fence::before_thread_sync in the threads that come first, and ::after_thread_sync in those that follow."""
    for before, after in ((False, True), (True, False), (False, False)):
        report = kernel.simulate(1, Y.copy(), BEFORE=before, AFTER=after, num_warps=8, target="sm_100a")
        assert [f.kind for f in report.findings] == ["tmem"]
        assert f'tcgen05_fence("{"after" if before else "before"}_thread_sync")' in report.findings[0].message
    kernel.simulate(1, Y.copy(), BEFORE=True, AFTER=True, num_warps=8, target="sm_100a").raise_first()


def test_wrong_use_of_an_allocation_s_lifetime_is_found():
    """Use after dealloc, a second dealloc, a dealloc on only some paths, and one while a move is in flight."""
    check(freed_and_used, (1,), Y, target="sm_100a")
    check(freed_twice, (1,), Y, 1, target="sm_100a")
    check(leaked, (1,), Y, 1, target="sm_100a")
    check(freed_under_way, (1,), Y, target="sm_100a")
    leaked.simulate(1, Y.copy(), 4, target="sm_100a").raise_first()


@pytest.mark.parametrize("target", TARGETS)
def test_a_buffer_that_the_kernel_deallocates_has_its_own_allocation(target):
    """The others share one allocation: a power of two of columns, at least 32, with the largest buffer first."""
    @tile.jit
    def several(y):
        a = tile.alloc((128, 40), "float32", scope="tmem")
        b = tile.alloc((128, 16), "float16", scope="tmem")
        c = tile.alloc((128, 200), "float32", scope="tmem")
        tile.store(a, 1.0)
        tile.store(b, 1.0)
        tile.store(c, 2.0)
        tile.store(y[0:128, 0:8], tile.load(c[:, 8:16]))
        c.dealloc()
        tile.store(y[0:128, 8:16], tile.load(a[:, 0:8]))

    y = Y.copy()
    several.simulate(1, y, target=target).raise_first()
    np.testing.assert_array_equal(y, np.repeat([[2.0, 1.0]], 128, 0).repeat(8, 1))
    ptx = several.compile(y, target=target).ptx
    allocations = [line.rsplit(", ", 1)[1] for line in ptx.splitlines() if "tcgen05.alloc" in line]
    assert allocations == ["256;", "64;"] and ptx.count("tcgen05.dealloc") == 2 and ptx.count("relinquish") == 1


# -- errors ----------------------------------------------------------------------------------------------------------------

def refused(words, source, target="sm_100a", **options):
    kernel = tile.jit(source="def kernel(y):\n" + "\n".join("    " + line for line in source.splitlines()))
    with pytest.raises(tile.CompilationError, match=words):
        kernel.compile(Y, target=target, **options)


def test_wrong_tensor_memory_code_is_an_error_at_its_line():
    """Targets, layouts, sizes, scopes and lifetimes."""
    alloc = 'd = tile.alloc((128, 16), "float32", scope="tmem")\n'
    refused("needs sm_100a or sm_103a, and the target is sm_90a", alloc, target="sm_90a")
    refused("at most 128 rows", 'd = tile.alloc((256, 16), "float32", scope="tmem")')
    refused("128 lanes and 512 columns", 'd = tile.alloc((128, 513), "float32", scope="tmem")')
    refused("8, 16 and 32 bits", 'd = tile.alloc((128, 16), "float64", scope="tmem")')
    refused("over axis.TLane and axis.TCol", 'd = tile.alloc((128, 16), "float32", scope="tmem", layout=tile.S[128, 16])')
    refused("two elements at one place", 'd = tile.alloc((128, 16), "float32", scope="tmem", layout=tile.S[(128, 16):(1 @ '
                                         'tile.axis.TLane, 0 @ tile.axis.TCol)])')
    refused("needs 1024 columns of tensor memory", 'd = tile.alloc((128, 300), "float32", scope="tmem")\ne = tile.alloc((128, 300), '
                                                   '"float32", scope="tmem")')
    refused("pairs of CTAs", 'd = tile.alloc((128, 16), "float32", scope="tmem", cta_group=2)')
    refused("one cta_group", alloc + 'e = tile.alloc((128, 16), "float32", scope="tmem", cta_group=2)', cluster=(2, 1, 1))
    refused("deallocated before", alloc + "d.dealloc()\nd.dealloc()")
    refused("outside loops", alloc + "for i in range(3):\n    d.dealloc()")
    refused("begins in lane 0", alloc + "with tile.warp(1):\n    v = tile.load(d[0:32, 0:8])")
    refused("warp 1 reaches lanes 32 to 63", alloc + "with tile.warp(1):\n    v = tile.load(d[64:96, 0:8])")
    refused("whole warpgroups as the scope, or one warp", alloc + "with tile.warp(range(0, 2)):\n    v = tile.load(d[0:64, 0:8])")
    refused("whole warpgroups as the scope", alloc + "with tile.elect():\n    v = tile.load(d[0:32, 0:1])")
    refused("16x256b", alloc + 'v = tile.tcgen05_ld(d[:, 0:4], shape="16x256b")')
    refused("the shape is one of", alloc + 'v = tile.tcgen05_ld(d, shape="8x8b")')
    refused("used before tcgen05_wait", alloc + 'tile.store(d, 0.0)\nv = tile.tcgen05_ld(d, wait=False)\ntile.store(y[0:128, 0:16], v)')
    refused("has no other=, mask=", alloc + "v = tile.load(d, other=1.0)")
    refused("waits for 'ld' or 'st'", alloc + 'tile.tcgen05_wait("both")')
    refused("tcgen05_commit must be called by one thread", alloc + "b = tile.mbarrier()\ntile.tcgen05_commit(b)")
    commit = alloc + "b = tile.mbarrier()\nwith tile.elect():\n    tile.tcgen05_commit(b, multicast="
    refused("mask of the cluster's ranks, 1 to 65535, not 0", commit + "0)", cluster=2)
    refused("mask of the cluster's ranks, 1 to 65535, not 65536", commit + "1 << 16)", cluster=2)
    refused("the multicast mask 0b11 names CTAs beyond the cluster's 1: give cluster=", commit + "3)")


def test_unsupported_tensor_memory_layouts_are_errors_that_list_the_supported_ones():
    """In kernels and outside of them."""
    for words, wrong in (("the datapaths of tensor memory are 'A' to 'G', found 'Z'", ("Z", 64)),
                         ("the datapath 'D' has one column or more and sub 0, found 0 and 0", ("D", 0)),
                         ("the datapath 'G' has a multiple of 4 columns and sub 0, found 6 and 0", ("G", 6)),
                         ("the datapath 'D' has one column or more and sub 0, found 64 and 1", ("D", 64, 1)),
                         ("the datapath 'F' has one column or more and sub 0 or 1, found 64 and 2", ("F", 64, 2)),
                         ("a layout is made of integers, found 'x'", ("D", "x"))):
        with pytest.raises(tile.CompilationError, match=words):
            tile.tmem_datapath(*wrong)
        refused(words, f"d = tile.tmem_datapath{wrong}")
    for words, wrong in (("a layout is made of integers, found 'a'", ("a", 4)), ("a layout is made of integers, found 128.0", (128.0, 4)),
                         ("1, 2, 3 or a multiple of 4 blocks, not 128 and 6", (128, 6))):
        with pytest.raises(tile.CompilationError, match=words):
            tile.scale_layout(*wrong)


def test_a_move_can_be_planned_without_a_kernel():
    """plan_copy between tensor memory and registers returns the instructions and the register layout, or every reason against it."""
    tensor = tile.BufferSpec((128, 64), "float32", "tmem", region=(slice(0, 128), slice(16, 64)))
    registers = tile.BufferSpec((128, 48), "float32", "local")
    choice = tile.plan_copy(registers, tensor, scope="warpgroup", target="sm_100a")
    assert choice.variant == "tcgen05_ldst" and [(i.column, i.repeat) for i in choice.plan.issues] == [(0, 32), (32, 16)]
    assert choice.plan.layout.size() == 128 * 48
    choice = tile.plan_copy(tensor, registers, scope="warpgroup", target="sm_100a", shape="16x256b")
    assert choice.plan.shape == "16x256b" and {i.lane for i in choice.plan.issues} == {0, 16}
    with pytest.raises(tile.DispatchError, match="whole warpgroups as the scope"):
        tile.plan_copy(registers, tensor, scope="thread", target="sm_100a")
    with pytest.raises(tile.DispatchError, match="sm_100a or sm_103a: sm_90a"):
        tile.plan_copy(registers, tensor, scope="warpgroup")
    with pytest.raises(tile.CompilationError, match="not float32"):
        tile.plan_copy(tile.BufferSpec((128, 32), "float32", "local"), tensor, scope="warpgroup", target="sm_100a")


@pytest.mark.parametrize("target", TARGETS)
def test_a_cta_pair_deallocates_after_a_cluster_barrier(target):
    """With cta_group=2 the cluster barrier precedes dealloc, both at the kernel's end and at an explicit dealloc."""
    @tile.jit(cluster=(2, 1, 1))
    def kernel(y):
        a = tile.alloc((128, 16), "float32", scope="tmem", cta_group=2)
        b = tile.alloc((128, 16), "float32", scope="tmem", cta_group=2)
        tile.store(a, 1.0)
        tile.store(b, 2.0)
        tile.store(y[0:128, 0:16], tile.load(a) + tile.load(b))
        a.dealloc()

    y = Y.copy()
    kernel.simulate(2, y, target=target)
    text = kernel.compile(y, target=target).ptx
    words = [w for line in text.splitlines() for w in ("barrier.cluster.wait", "tcgen05.dealloc.cta_group::2", "before_thread_sync") if w in line]
    assert words[-6:] == ["before_thread_sync", "barrier.cluster.wait", "tcgen05.dealloc.cta_group::2"] * 2


def test_expect_variant_applies_to_tensor_memory_moves_in_its_block():
    @tile.jit
    def held(y):
        d = tile.alloc((128, 16), y.dtype, scope="tmem")
        with tile.expect_variant("tcgen05_ldst"):
            tile.store(d, tile.zeros((128, 16)))
        with tile.expect_variant("tcgen05_ldst"):
            tile.store(y[0:128, 0:16], tile.load(d))

    held.compile(tile.ArraySpec((128, 16), "float32"), target="sm_100a")
