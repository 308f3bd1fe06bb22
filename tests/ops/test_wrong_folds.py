"""What LLVM and the assembler fold wrongly is emitted so that they cannot (see `toolchain.llvm` and `toolchain.assembler_faults`): low bits of
products, arithmetic between bfloat16 and float16, and halves of words that are known late."""

import re
import struct

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit.toolchain.assembler_faults import wide_products
from tilejit.toolchain.llvm import hide_bfloats, to_ptx

from tests.gpu import in_child, needs_gpu

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


# -- products ------------------------------------------------------------------------------------------------------------------

@tile.jit
def low_bits(x, y, o):
    """The assembler may know that these factors are odd, or end in a one and zeros; LLVM loses it at the shuffles of `prod`."""
    a, b = tile.load(x[0:16, 0:64]), tile.load(y[0:16, 0:64])
    odd, other = a | 1, (b << 2) | 2
    tile.store(o[0, 0:16, 0:64], (odd * (b | 1)) & 1)
    tile.store(o[1, 0:16, 0:64], (odd * (b | 1)) | 1)
    tile.store(o[2, 0:16, 0:64], (((a << 2) | 2) * other) & 4)
    tile.store(o[3, 0:16, 0:64], (odd * (b | 1) + (a << 1)) | 1)
    tile.store(o[4, 0:16, 0:64], tile.where(a > b, odd * odd, 6) & 7)
    places = tile.broadcast_to(tile.arange(8) * 2 + 1, (16, 5, 4, 8))
    powers = tile.prod(places, axis=(1, 2))
    tile.store(o[5, 0:16, 0:8], powers // (powers | 1))
    tile.store(o[6, 0:16, 0:8], powers & 1)


def numbers():
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-2**31, 2**31, (16, 64)).astype(np.int32) for _ in range(2))
    return x, y, np.zeros((7, 16, 64), np.int32)


def low_bits_expected(x, y):
    odd, o = x | 1, np.zeros((7, 16, 64), np.int32)
    with np.errstate(over="ignore"):
        o[0], o[1], o[2] = (odd * (y | 1)) & 1, odd * (y | 1), (((x << 2) | 2) * ((y << 2) | 2)) & 4
        o[3], o[4] = (odd * (y | 1) + (x << 1)) | 1, np.where(x > y, odd * odd, 6) & 7
    o[5, :, :8] = o[6, :, :8] = 1
    return o


def test_low_bits_of_products_are_numpy_s():
    x, y, o = numbers()
    low_bits[1,](x, y, o)
    np.testing.assert_array_equal(o, low_bits_expected(x, y))


@pytest.mark.parametrize("target", TARGETS)
def test_no_low_product_of_two_registers_reaches_the_assembler(target):
    ptx = low_bits.compile(*numbers(), target=target).ptx
    assert not re.search(r"m(ul|ad)\.lo\.[su]32\s+%\w+, %\w+, %\w+", ptx) and "mul.wide.s32 tilejit_wide" in ptx


def test_the_machine_code_keeps_the_ors_behind_products():
    """ptxas 13.5 makes additions of them, which are wrong."""
    odd = tile.jit(source="def k(x, o):\n    a = tile.load(x[0:64]) | 1\n    tile.store(o[0:64], (a * a * tile.load(x[64:128])) | 1)\n")
    x = np.zeros(128, np.int32)
    found = [odd.compile(x, x, target=target).sass() for target in TARGETS]
    assert all(len(re.findall(r"LOP3\.LUT R\d+, R\d+(?:\.reuse)?, 0x1, RZ, 0xfc", text)) >= 2 for text in found)


@pytest.mark.parametrize("line, wide", [
    ("\tmul.lo.s32 \t%r1, %r2, %r3;", "\t{ .reg .b64 tilejit_wide; mul.wide.s32 tilejit_wide, %r2, %r3; cvt.u32.u64 %r1, tilejit_wide; }"),
    ("\t@%p1 mad.lo.u32 \t%r4, %r5, %r6, -7;",
     "\t{ .reg .b64 tilejit_wide; .reg .b32 tilejit_low; @%p1 mul.wide.u32 tilejit_wide, %r5, %r6; "
     "@%p1 cvt.u32.u64 tilejit_low, tilejit_wide; @%p1 add.s32 %r4, tilejit_low, -7; }"),
    ("\tmul.wide.u16 \t%r1, %rs2, %rs3;",
     "\t{ .reg .b64 tilejit_wide; .reg .b32 tilejit_x, tilejit_y; cvt.u32.u16 tilejit_x, %rs2; cvt.u32.u16 tilejit_y, %rs3; "
     "mul.wide.u32 tilejit_wide, tilejit_x, tilejit_y; cvt.u32.u64 %r1, tilejit_wide; }"),
    ("\tmad.lo.u16 \t%rs1, %rs2, %rs3, %rs4;",
     "\t{ .reg .b64 tilejit_wide; .reg .b32 tilejit_x, tilejit_y; .reg .b16 tilejit_low; cvt.u32.u16 tilejit_x, %rs2; "
     "cvt.u32.u16 tilejit_y, %rs3; mul.wide.u32 tilejit_wide, tilejit_x, tilejit_y; cvt.u16.u64 tilejit_low, tilejit_wide; "
     "add.s16 %rs1, tilejit_low, %rs4; }"),
    ("{ madc.lo.cc.u32 x,y,$_z,w; @!p mul.lo.u32 y,x,x; }",
     "{ { .reg .b64 tilejit_wide; .reg .b32 tilejit_low; mul.wide.u32 tilejit_wide, y, $_z; cvt.u32.u64 tilejit_low, tilejit_wide; "
     "addc.cc.s32 x, tilejit_low, w; } "
     "{ .reg .b64 tilejit_wide; @!p mul.wide.u32 tilejit_wide, x, x; @!p cvt.u32.u64 y, tilejit_wide; } }"),
    ("@ ! p mul.lo.s32 x ,y,\tz ;",
     "{ .reg .b64 tilejit_wide; @ ! p mul.wide.s32 tilejit_wide, y, z; @ ! p cvt.u32.u64 x, tilejit_wide; }")])
def test_products_of_all_forms_are_widened(line, wide):
    assert wide_products(f"a;\n{line}\nb;\n") == f"a;\n{wide}\nb;\n"


def test_products_that_the_assembler_knows_rightly_stay():
    for right in ("\tmul.lo.s32 \t%r1, %r2, 12;", "\tmul.lo.s64 \t%rd1, %rd2, %rd3;", "\tmul.lo.s16 \t%rs1, %rs2, %rs3;",
                  "\tmul.wide.s16 \t%r1, %rs2, %rs3;", "\tmul.wide.u32 \t%rd1, %r2, %r3;", "\tmad.lo.s32 \t%r1, %r2, %r3, %r4 // a; b\n;"):
        assert wide_products(right) == right


@tile.jit
def short_products(x, o):
    a = tile.load(x[0:256])
    odd, other = (a & 5) | 1, (a >> 3 & 30) | 1
    tile.store(o[0, 0:256], tile.cast(odd, tile.uint32) * tile.cast(other, tile.uint32) & 3)
    tile.store(o[1, 0:256], tile.cast(odd * other, tile.uint32) & 3)
    tile.store(o[2, 0:256], tile.cast(tile.cast(a, tile.uint8) | 1, tile.uint32) * tile.cast(other, tile.uint32) | 1)


def short_products_expected(x):
    a = x.astype(np.uint32)
    odd, other = (a & 5) | 1, (a >> 3 & 30) | 1
    return np.stack([odd * other & 3, odd * other & 3, ((a & 255) | 1) * other | 1])


SHORT = np.arange(256, dtype=np.uint16) * 257


def test_low_bits_of_short_products_are_numpy_s():
    o = np.zeros((3, 256), np.uint32)
    short_products[1,](SHORT, o)
    np.testing.assert_array_equal(o, short_products_expected(SHORT))
    for target in TARGETS:
        assert not re.search(r"m(ul|ad)\.(lo|wide)\.u16\s+%\w+, %\w+, %", short_products.compile(SHORT, o, target=target).ptx)


def test_widened_products_hide_no_register_of_inline_ptx():
    """An addend of a user's own, of whatever name."""
    kernel = tile.jit(source="def k(x, o):\n    v = tile.load(x[0:128])\n"
                             "    tile.store(o[0:128], tile.asm('{\\n.reg .b32 low;\\nmov.b32 low, 5;\\n'\n"
                             "                                  'mad.lo.s32 $0, $1, $1, low;\\n}', tile.int32, v))\n")
    x = np.zeros(128, np.int32)
    ptx = kernel.compile(x, x, target="sm_90a").ptx
    assert re.search(r"add\.s32 %r\d+, tilejit_low, low;", ptx)


@needs_gpu()
@in_child()
def test_low_bits_of_products_are_numpy_s_on_the_gpu():
    x, y, o = numbers()
    got = tile.to_device(o)
    low_bits[1,](*map(tile.to_device, (x, y)), got)
    np.testing.assert_array_equal(got.numpy(), low_bits_expected(x, y))
    got = tile.to_device(np.zeros((3, 256), np.uint32))
    short_products[1,](tile.to_device(SHORT), got)
    np.testing.assert_array_equal(got.numpy(), short_products_expected(SHORT))


# -- bfloat16 beside float16 -----------------------------------------------------------------------------------------------

WAYS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide}


def kernel_of(way: str, wide: str):
    return tile.jit(source=f"def k(x, y, o):\n    x, y = (tile.cast(tile.load(z[0:N]), tile.{wide}) for z in (x, y))\n"
                           f"    tile.store(o[0:N], tile.cast(x {way} y, tile.float16))\n".replace("0:N", "0:33"))


def pairs(first: str, second: str):
    """Numbers beyond the range of float16, on either side, where a product or quotient is not."""
    dtypes = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
    x = np.array([65536, 1e30, 2e-30, 1e-38, -70000, 3, 0.1, 131072, 1e5, -1e-9, 0] * 3, np.float32)
    y = np.repeat(np.array([0, 0.5, 6e-8], np.float32), 11)
    if second == "bfloat16":
        y = np.where(x == 0, 1, 1 / np.where(x == 0, 1, x) * (1 + y)).astype(np.float32)
    return x.astype(dtypes[first]), y.astype(dtypes[second])


def result(way, x, y, wide):
    with np.errstate(all="ignore"):
        return WAYS[way](x.astype(wide), y.astype(wide)).astype(np.float16)


CASES = [(way, first, second, wide) for way in WAYS for first, second in (("bfloat16", "float16"), ("bfloat16", "bfloat16"))
         for wide in ("float32", "float64")]


@pytest.mark.parametrize("way, first, second, wide", CASES)
def test_bfloat16_is_not_rounded_to_float16_before_it_is_used(way, first, second, wide):
    x, y = pairs(first, second)
    o, kernel = np.zeros(33, np.float16), kernel_of(way, wide)
    kernel[1,](x, y, o)
    np.testing.assert_array_equal(o, result(way, x, y, wide))
    name = {"+": "add", "-": "sub", "*": "mul", "/": "div"}[way]
    for target in TARGETS:
        ptx = kernel.compile(x, y, o, target=target).ptx
        assert re.search(rf"\b{name}\S*\.f{wide[5:]}\b", ptx) and not re.search(r"\b(add|sub|mul|div|fma)(\.rn)?(\.ftz)?\.f16", ptx)


def test_only_modules_with_both_types_hide_bfloats():
    widened = "  %a = fpext bfloat %b to float, !dbg !1\n"
    assert hide_bfloats(widened) == widened
    both = hide_bfloats(widened + "  %c = fpext bfloat %d to double\n  %h = fpext half %e to float\n")
    assert both.count("fpext bfloat") == 0 and "  %a = bitcast i32 %of.a.s to float, !dbg !1\n" in both
    assert "  %c = fpext float %of.c.f to double\n" in both and "%h = fpext half %e to float" in both


@pytest.mark.parametrize("wide", ["float", "double"])
def test_numbered_bfloats_are_hidden_too(wide):
    """As LLVM names values without names, in text that replaces the emitter's."""
    ptx = to_ptx(f"""define ptx_kernel void @k(ptr addrspace(1) %0) {{
  %2 = load bfloat, ptr addrspace(1) %0
  %3 = fpext bfloat %2 to {wide}
  %4 = fmul {wide} %3, %3
  %5 = fptrunc {wide} %4 to half
  store half %5, ptr addrspace(1) %0
  ret void
}}""", "sm_90a")
    assert re.search(rf"mul(\.rn)?\.f{32 if wide == 'float' else 64}", ptx)


@needs_gpu()
@in_child()
def test_bfloat16_beside_float16_is_numpy_s_on_the_gpu():
    for way, first, second, wide in CASES:
        x, y = pairs(first, second)
        o = tile.to_device(np.zeros(33, np.float16))
        kernel_of(way, wide)[1,](*map(tile.to_device, (x, y)), o)
        np.testing.assert_array_equal(o.numpy(), result(way, x, y, wide), err_msg=f"{first} {way} {second} in {wide}")


# -- floats of 8 bits that are known late ----------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def masked(x, o):
    """Loads of which LLVM and the assembler know that their masks are false."""
    never = tile.broadcast_to(tile.cast(100, tile.int32) != tile.cast(100, tile.int32), (4, 128))
    for k, other in enumerate((-0.75, 3.0)):
        v = tile.load(x[0:4, 0:128], mask=never, other=tile.cast(other, x.dtype))
        tile.store(o[k, 0:4, 0:128], tile.cast(v, tile.float32))


FLOATS = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_masked_loads_put_in_place_of_narrow_floats_becomes_float32(dtype):
    x, o = np.ones((4, 128), dtype), np.zeros((2, 4, 128), np.float32)
    masked[1,](x, o)
    np.testing.assert_array_equal(o, np.broadcast_to(np.array([-0.75, 3], np.float32)[:, None, None], o.shape))


@pytest.mark.parametrize("target", ["sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_the_machine_code_has_both_halves_of_the_numbers_of_masked_loads(target):
    """-0.75 is B4, 3 is 44 in float8_e4m3fn."""
    code = masked.compile(np.ones((4, 128), FLOATS[0]), np.zeros((2, 4, 128), np.float32), target=target).sass()
    given = [struct.unpack("I", struct.pack("f", float(x)))[0] & 0xFFFF for x in re.findall(r"UNPACK_B R\d+, (-?[\d.e+-]+) ;", code)]
    assert set(given) == {0xB4B4, 0x4444}


@needs_gpu("sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child()
def test_what_masked_loads_put_in_place_of_narrow_floats_is_numpy_s_on_the_gpu():
    for dtype in FLOATS:
        o = tile.to_device(np.zeros((2, 4, 128), np.float32))
        masked[1,](tile.to_device(np.ones((4, 128), dtype)), o)
        np.testing.assert_array_equal(o.numpy(), np.broadcast_to(np.array([-0.75, 3], np.float32)[:, None, None], o.shape))
