"""Conversions among narrow formats, approximate functions, packed arithmetic and bit moves."""

from ..row import SM80, SM90, SM100, TMEM, Row

TITLE = "Conversions and arithmetic"

ROWS = (
    # To and from bf16, f16 and tf32. In a packed result the first source operand is the upper half.
    Row("cvt<.rn|.rz><|.relu>.f16x2.f32 {d}, {a}, {b};",             "=d:f16x2 a:f32 b:f32",   "pure", SM80),
    Row("cvt<.rn|.rz><|.relu>.bf16x2.f32 {d}, {a}, {b};",            "=d:bf16x2 a:f32 b:f32",  "pure", SM80),
    Row("cvt<.rn|.rz><|.relu>.f16.f32 {d}, {a};",                    "=d:f16 a:f32",           "pure", SM80),
    Row("cvt<.rn|.rz><|.relu>.bf16.f32 {d}, {a};",                   "=d:bf16 a:f32",          "pure", SM80),
    Row("cvt<.rn|.rz><|.relu>.satfinite.f16x2.f32 {d}, {a}, {b};",   "=d:f16x2 a:f32 b:f32",   "pure", SM80),
    Row("cvt<.rn|.rz><|.relu>.satfinite.bf16x2.f32 {d}, {a}, {b};",  "=d:bf16x2 a:f32 b:f32",  "pure", SM80),
    Row("cvt.f32.f16 {d}, {a};",                                     "=d:f32 a:f16",           "pure", SM80),
    Row("cvt.f32.bf16 {d}, {a};",                                    "=d:f32 a:bf16",          "pure", SM80),
    Row("cvt.rna<|.satfinite>.tf32.f32 {d}, {a};",                   "=d:tf32 a:f32",          "pure", SM80),
    Row("cvt<.rn|.rz><|.relu>.tf32.f32 {d}, {a};",                   "=d:tf32 a:f32",          "pure", SM90),
    Row("cvt<.rn|.rz><|.relu>.satfinite.tf32.f32 {d}, {a};",         "=d:tf32 a:f32",          "pure", SM100),
    Row("cvt.rs<|.relu><|.satfinite>.f16x2.f32 {d}, {a}, {b}, {random_bits};",
        "=d:f16x2 a:f32 b:f32 random_bits:b32",                                                "pure", TMEM),
    Row("cvt.rs<|.relu><|.satfinite>.bf16x2.f32 {d}, {a}, {b}, {random_bits};",
        "=d:bf16x2 a:f32 b:f32 random_bits:b32",                                               "pure", TMEM),

    # fp8.
    Row("cvt.rn.satfinite<|.relu><.e4m3x2|.e5m2x2>.f32 {d}, {a}, {b};",  "=d:b16 a:f32 b:f32",  "pure", SM90),
    Row("cvt.rn.satfinite<|.relu><.e4m3x2|.e5m2x2>.f16x2 {d}, {a};",     "=d:b16 a:f16x2",      "pure", SM90),
    Row("cvt.rn<|.relu>.f16x2<.e4m3x2|.e5m2x2> {d}, {a};",               "=d:f16x2 a:b16",      "pure", SM90),
    Row("cvt.rs<|.relu>.satfinite<.e4m3x4|.e5m2x4|.e3m2x4|.e2m3x4>.f32 {d}, {a}, {random_bits};",
        "=d:b32 a:f32*4 random_bits:b32",                                                       "pure", TMEM),

    # fp6 and fp4. The fp4 pair is an 8-bit register, here the low byte of a 16-bit one.
    Row("cvt.rn.satfinite<|.relu><.e2m3x2|.e3m2x2>.f32 {d}, {a}, {b};",
        "=d:b16 a:f32 b:f32",              "pure", SM100),
    Row("cvt.rn<|.relu>.f16x2<.e2m3x2|.e3m2x2> {d}, {a};",
        "=d:f16x2 a:b16",                  "pure", SM100),
    Row("{{ .reg .b8 t; cvt.rn.satfinite<r>.e2m1x2.f32 t, {a}, {b}; mov.b16 {d}, {{t, 0}}; }}",
        "=d:b16 a:f32 b:f32",              "pure", SM100, name="cvt.rn.satfinite<r=|.relu>.e2m1x2.f32"),
    Row("{{ .reg .b8 t, u; mov.b16 {{t, u}}, {a}; cvt.rn<r>.f16x2.e2m1x2 {d}, t; }}",
        "=d:f16x2 a:b16",                  "pure", SM100, name="cvt.rn<r=|.relu>.f16x2.e2m1x2"),
    Row("cvt.rs<|.relu>.satfinite.e2m1x4.f32 {d}, {a}, {random_bits};",
        "=d:b16 a:f32*4 random_bits:b32",  "pure", TMEM),

    # Scale factors: powers of two.
    Row("cvt<.rz|.rp><|.satfinite>.ue8m0x2.f32 {d}, {a}, {b};",  "=d:b16 a:f32 b:f32",  "pure", SM100),
    Row("cvt<.rz|.rp><|.satfinite>.ue8m0x2.bf16x2 {d}, {a};",    "=d:b16 a:bf16x2",     "pure", SM100),
    Row("cvt.rn.bf16x2.ue8m0x2 {d}, {a};",                       "=d:bf16x2 a:b16",     "pure", SM100),

    # Integers.
    Row("cvt<.rni|.rzi|.rmi|.rpi><|.ftz><t=.s32|.u32|.s64|.u64>.f32 {d}, {a};",  "=d:<t> a:f32",        "pure", SM80),
    Row("cvt<.rni|.rzi|.rmi|.rpi><|.ftz>.f32.f32 {d}, {a};",                     "=d:f32 a:f32",        "pure", SM80),
    Row("cvt.pack.sat<.u16|.s16>.s32 {d}, {a}, {b};",                            "=d:b32 a:s32 b:s32",  "pure", SM80),
    Row("cvt.pack.sat<.u8|.s8|.u4|.s4|.u2|.s2>.s32.b32 {d}, {a}, {b}, {c};",
        "=d:b32 a:s32 b:s32 c:b32",                                                                     "pure", SM80),

    # Approximate functions.
    Row("<op=ex2|lg2|sin|cos|rcp|rsqrt|sqrt>.approx<|.ftz>.f32 {d}, {a};",  "=d:f32 a:f32",        "pure", SM80),
    Row("tanh.approx.f32 {d}, {a};",                                        "=d:f32 a:f32",        "pure", SM80),
    Row("<op=ex2|tanh>.approx<t=.f16|.f16x2> {d}, {a};",                    "=d:<t> a:<t>",        "pure", SM80),
    Row("ex2.approx.ftz<t=.bf16|.bf16x2> {d}, {a};",                        "=d:<t> a:<t>",        "pure", SM90),
    Row("tanh.approx<t=.bf16|.bf16x2> {d}, {a};",                           "=d:<t> a:<t>",        "pure", SM90),
    Row("rcp.approx.ftz.f64 {d}, {a};",                                     "=d:f64 a:f64",        "pure", SM80),
    Row("rsqrt.approx<|.ftz>.f64 {d}, {a};",                                "=d:f64 a:f64",        "pure", SM80),
    Row("<op=rcp|sqrt><.rn|.rz|.rm|.rp><|.ftz>.f32 {d}, {a};",              "=d:f32 a:f32",        "pure", SM80),
    Row("<op=rcp|sqrt><.rn|.rz|.rm|.rp>.f64 {d}, {a};",                     "=d:f64 a:f64",        "pure", SM80),
    Row("div<.approx|.full><|.ftz>.f32 {d}, {a}, {b};",                     "=d:f32 a:f32 b:f32",  "pure", SM80),

    # Arithmetic that LLVM does not spell: rounding, fused relu, NaN-propagating, packed.
    Row("<op=add|sub|mul><.rn|.rz|.rm|.rp><|.ftz><|.sat>.f32 {d}, {a}, {b};",
        "=d:f32 a:f32 b:f32",                                                                          "pure", SM80),
    Row("fma<.rn|.rz|.rm|.rp><|.ftz><|.sat>.f32 {d}, {a}, {b}, {c};",     "=d:f32 a:f32 b:f32 c:f32",  "pure", SM80),
    Row("fma.rn<|.ftz><|.sat|.relu><t=.f16|.f16x2> {d}, {a}, {b}, {c};",  "=d:<t> a:<t> b:<t> c:<t>",  "pure", SM80),
    Row("fma.rn<|.relu><t=.bf16|.bf16x2> {d}, {a}, {b}, {c};",            "=d:<t> a:<t> b:<t> c:<t>",  "pure", SM80),
    Row("<op=add|sub|mul>.rn<t=.f16|.f16x2> {d}, {a}, {b};",              "=d:<t> a:<t> b:<t>",        "pure", SM80),
    Row("<op=add|sub|mul>.rn<t=.bf16|.bf16x2> {d}, {a}, {b};",            "=d:<t> a:<t> b:<t>",        "pure", SM90),
    Row("<op=add|sub|mul><.rn|.rz|.rm|.rp><|.ftz>.f32x2 {d}, {a}, {b};",  "=d:f32x2 a:f32x2 b:f32x2",  "pure", SM100),
    Row("fma<.rn|.rz|.rm|.rp><|.ftz>.f32x2 {d}, {a}, {b}, {c};",
        "=d:f32x2 a:f32x2 b:f32x2 c:f32x2",                                                            "pure", SM100),
    Row("<op=min|max><|.ftz><|.NaN><|.xorsign.abs>.f32 {d}, {a}, {b};",   "=d:f32 a:f32 b:f32",        "pure", SM80),
    Row("<op=min|max><|.ftz><|.NaN><|.abs>.f32<tag=#3> {d}, {a}, {b}, {c};",
        "=d:f32 a:f32 b:f32 c:f32",                                                                    "pure", SM100),
    Row("<op=min|max><|.ftz><|.NaN><|.xorsign.abs><t=.f16|.f16x2> {d}, {a}, {b};",
        "=d:<t> a:<t> b:<t>",                                                                          "pure", SM80),
    Row("<op=min|max><|.NaN><|.xorsign.abs><t=.bf16|.bf16x2> {d}, {a}, {b};",
        "=d:<t> a:<t> b:<t>",                                                                          "pure", SM80),
    Row("<op=min|max>.relu.s32 {d}, {a}, {b};",                           "=d:s32 a:s32 b:s32",        "pure", SM90),
    Row("<op=min|max><|.relu>.s16x2 {d}, {a}, {b};",                      "=d:b32 a:b32 b:b32",        "pure", SM90),
    Row("<op=min|max>.u16x2 {d}, {a}, {b};",                              "=d:b32 a:b32 b:b32",        "pure", SM90),
    Row("<op=abs|neg><t=.f16|.f16x2|.bf16|.bf16x2> {d}, {a};",            "=d:<t> a:<t>",              "pure", SM80),
    Row("dp4a<.u32|.s32><.u32|.s32> {d}, {a}, {b}, {c};",                 "=d:b32 a:b32 b:b32 c:b32",  "pure", SM80),
    Row("dp2a<.lo|.hi><.u32|.s32><.u32|.s32> {d}, {a}, {b}, {c};",        "=d:b32 a:b32 b:b32 c:b32",  "pure", SM80),

    # Bit moves.
    Row("prmt.b32<|.f4e|.b4e|.rc8|.ecl|.ecr|.rc16> {d}, {a}, {b}, {selector};",
        "=d:b32 a:b32 b:b32 selector:b32",                                                             "pure", SM80),
    Row("lop3.b32 {d}, {a}, {b}, {c}, {table};",
        "=d:b32 a:b32 b:b32 c:b32 table:imm(0..255)",                                                  "pure", SM80),
    Row("shf<.l|.r><.clamp|.wrap>.b32 {d}, {low}, {high}, {count};",
        "=d:b32 low:b32 high:b32 count:u32",                                                           "pure", SM80),
    Row("bfe<t=.u32|.s32|.u64|.s64> {d}, {a}, {position}, {length};",
        "=d:<t> a:<t> position:u32 length:u32",                                                        "pure", SM80),
    Row("bfi<t=.b32|.b64> {d}, {a}, {b}, {position}, {length};",
        "=d:<t> a:<t> b:<t> position:u32 length:u32",                                                  "pure", SM80),
    Row("bfind<|.shiftamt><t=.u32|.s32|.u64|.s64> {d}, {a};",  "=d:u32 a:<t>",                         "pure", SM80),
    Row("<op=popc|clz><t=.b32|.b64> {d}, {a};",                "=d:u32 a:<t>",                         "pure", SM80),
    Row("brev<t=.b32|.b64> {d}, {a};",                         "=d:<t> a:<t>",                         "pure", SM80),
    Row("mul.hi<t=.u32|.s32|.u64|.s64> {d}, {a}, {b};",        "=d:<t> a:<t> b:<t>",                   "pure", SM80),
    Row("fns.b32 {d}, {mask}, {base}, {offset};",              "=d:b32 mask:b32 base:b32 offset:s32",  "pure", SM80),
    Row("bmsk<.clamp|.wrap>.b32 {d}, {position}, {length};",   "=d:b32 position:u32 length:u32",       "pure", SM80),
    Row("mov.b64<tag=#pack> {d}, {a};",                        "=d:b64 a:b32*2",                       "pure", SM80),
    Row("mov.b64<tag=#unpack> {d}, {a};",                      "=d:b32*2 a:b64",                       "pure", SM80),
    Row("mov.b32<tag=#pack> {d}, {a};",                        "=d:b32 a:b16*2",                       "pure", SM80),
    Row("mov.b32<tag=#unpack> {d}, {a};",                      "=d:b16*2 a:b32",                       "pure", SM80),
    Row("mov.b128<tag=#pack> {d}, {a};",                       "=d:b128 a:b64*2",                      "pure", SM80),
    Row("mov.b128<tag=#unpack> {d}, {a};",                     "=d:b64*2 a:b128",                      "pure", SM80),
    Row("mov<t=.b16|.b32|.b64|.f32|.f64> {d}, {a};",           "=d:<t> a:<t>",                         "pure", SM80),
)
