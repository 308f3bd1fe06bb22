"""Words that the assembler learns to be constant after it has chosen instructions: these then have the right numbers. ptxas 13.0 and 13.5 are wrong
about upper halves of pairs of narrow floats, which are rewritten (`toolchain.assembler_faults.shifted_halves`)."""

import re
import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from tilejit.toolchain.assembler_faults import shifted_halves

from tests.toolchain.disassembled import disassembled

WORDS = 0xB4B5B6B7, 0xC4C5C6C7
# What makes Y and Z of X, a constant, and T, a number that was loaded. a, b and c are registers of 16 bits, u of 32, d and e of 64, p a predicate.
OPERATIONS = (
    "mov.b32 {a, b}, X; cvt.f32.f16 Y, a; cvt.f32.f16 Z, b;",
    "mov.b32 {a, b}, X; cvt.f32.bf16 Y, a; cvt.f32.bf16 Z, b;",
    "mov.b32 {a, b}, X; cvt.rn.f32.s16 Y, a; cvt.rn.f32.u16 Z, b;",
    "mov.b32 {a, b}, X; cvt.rzi.s32.f16 Y, a; cvt.rzi.s32.f16 Z, b;",
    "mov.b32 {a, b}, X; ex2.approx.f16 a, a; tanh.approx.bf16 b, b; mov.b32 Y, {a, b}; mov.b32 Z, X;",
    "mov.b32 {a, b}, X; cvt.f64.f16 d, b; cvt.rn.f32.f64 Z, d; mov.b32 Y, X;",
    "mov.b32 {a, b}, X; mul.wide.s16 Y, a, 3; mul.wide.s16 Z, b, 5;",
    "mov.b32 {a, b}, X; cvt.u16.u32 c, T; mul.wide.s16 Y, a, c; mul.wide.u16 Z, b, c;",
    "mov.b32 {a, b}, X; mad.wide.s16 Y, a, a, T; mad.wide.u16 Z, b, b, T;",
    "mov.b32 {a, b}, X; cvt.u16.u32 c, T; add.f16 a, a, c; mul.f16 b, b, c; cvt.u32.u16 Y, a; cvt.u32.u16 Z, b;",
    "mov.b32 {a, b}, X; cvt.u16.u32 c, T; fma.rn.bf16 a, a, c, c; fma.rn.bf16 b, c, b, c; cvt.u32.u16 Y, a; cvt.u32.u16 Z, b;",
    "mov.b32 {a, b}, X; cvt.u16.u32 c, T; setp.lt.f16 p, a, c; selp.b32 Y, 1, 2, p; setp.lt.f16 p, b, c; selp.b32 Z, 1, 2, p;",
    "mov.b32 {a, b}, X; cvt.u16.u32 c, T; setp.lt.s16 p, a, c; selp.b32 Y, 1, 2, p; setp.lt.s16 p, b, c; selp.b32 Z, 1, 2, p;",
    "mov.b32 {a, b}, X; cvt.u16.u32 c, T; min.s16 a, a, c; max.u16 b, b, c; cvt.u32.u16 Y, a; cvt.u32.u16 Z, b;",
    "mov.b32 {a, b}, X; neg.f16 a, a; abs.f16 b, b; cvt.f32.f16 Y, a; cvt.f32.f16 Z, b;",
    "mov.b32 {a, b}, X; mov.b32 u, {b, a}; add.f16x2 Y, u, T; mov.b32 u, {a, a}; mul.f16x2 Z, T, u;",
    "mov.b32 {a, b}, X; mov.b32 u, {b, b}; fma.rn.bf16x2 Y, u, T, T; mov.b32 u, {b, a}; max.bf16x2 Z, T, u;",
    "mov.b32 {a, b}, X; cvt.u64.u16 d, b; add.u64 d, d, %d0; ld.global.u32 Y, [d]; cvt.s64.s16 d, a; add.u64 d, d, %d0; ld.global.u32 Z, [d];",
    "mov.b64 d, {T, X}; mov.b64 {c, c, a, b}, d; cvt.f32.f16 Y, a; cvt.rn.f32.s16 Z, b;",
    "bfe.u32 u, X, 8, 8; cvt.rn.f32.u32 Y, u; bfe.s32 u, X, 24, 8; cvt.rn.f32.s32 Z, u;",
    "bfe.u32 Y, X, T, 8; bfe.s32 Z, T, X, 5;",
    "bfi.b32 Y, X, T, 8, 8; bfi.b32 Z, T, X, 4, 12;",
    "cvt.s32.s8 Y, X; cvt.s32.s16 Z, X;",
    "neg.f16x2 u, X; add.f16x2 Y, u, T; abs.bf16x2 u, X; fma.rn.bf16x2 Z, T, T, u;",
    "max.f16x2 Y, X, T; min.NaN.bf16x2 Z, T, X;",
    "add.u16x2 Y, X, T; max.s16x2 Z, T, X;",
    "cvt.rn.satfinite.e4m3x2.f16x2 a, X; cvt.u32.u16 Y, a; cvt.rn.satfinite.e5m2x2.f32 a, T, X; cvt.u32.u16 Z, a;",
    "prmt.b32 Y, X, T, 0x3254; prmt.b32 Z, T, X, 0x7610;",
    "prmt.b32 Y, T, T, X; prmt.b32 Z, X, T, 0x9421;",
    "dp4a.s32.s32 Y, X, T, T; dp4a.u32.s32 Z, T, X, X;",
    "dp2a.lo.s32.s32 Y, X, T, T; dp2a.hi.u32.s32 Z, T, X, X;",
    "vadd.s32.s32.s32 Y, X.h1, T; vadd.u32.u32.u32 Z, T, X.b2;",
    "shf.l.wrap.b32 Y, X, T, T; shf.r.clamp.b32 Z, T, X, T;",
    "shl.b32 Y, X, T; shr.u32 Z, T, X;",
    "lop3.b32 Y, X, T, T, 0x96; and.b32 Z, X, T; not.b32 Z, Z;",
    "mul.hi.u32 Y, T, X; mad.lo.s32 Z, X, T, X;",
    "mul.wide.u32 d, X, T; mov.b64 {Y, u}, d; mul.wide.s32 d, T, X; mov.b64 {u, Z}, d;",
    "cvt.u64.u32 d, X; shl.b64 d, d, T; mov.b64 {Y, u}, d; mov.b64 d, {X, T}; shr.s64 d, d, X; mov.b64 {u, Z}, d;",
    "sad.u32 Y, X, T, X; abs.s32 Z, X;",
    "min.s32 Y, X, T; max.u32 u, X, X; max.u32 Z, u, T;",
    "neg.f32 u, X; fma.rn.f32 Y, u, T, X; abs.f32 u, X; fma.rn.f32 Z, T, T, u;",
    "add.sat.f32 Y, X, T; neg.f32 u, X; max.NaN.f32 Z, u, T;",
    "neg.f32 u, X; ex2.approx.f32 Y, u; rsqrt.approx.f32 Z, X;",
    "cvt.rzi.s32.f32 Y, X; neg.f32 u, X; cvt.rni.u32.f32 Z, u;",
    "cvt.rn.f32.s32 Y, X; cvt.rz.f32.u32 Z, X;",
    "cvt.rn.f16x2.f32 Y, X, T; cvt.rn.relu.bf16x2.f32 Z, X, X;",
    "cvt.rna.tf32.f32 Y, X; cvt.rn.tf32.f32 Z, X;",
    "cvt.pack.sat.s16.s32 Y, X, T; cvt.pack.sat.u8.s32.b32 Z, T, X, T;",
    "setp.lt.s32 p, X, T; selp.b32 Y, X, T, p; setp.gt.f32 p, T, X; selp.b32 Z, T, X, p;",
    "slct.s32.s32 Y, T, 7, X; slct.f32.f32 Z, X, T, T;",
    "popc.b32 Y, X; clz.b32 Z, X;",
    "brev.b32 Y, X; bfind.s32 Z, X;",
    "div.u32 Y, T, X; rem.s32 Z, X, T;",
    "shfl.sync.idx.b32 Y, X, T, 31, -1; shfl.sync.bfly.b32 Z, T, X, 31, -1;",
    "setp.ne.u32 p, X, T; vote.sync.ballot.b32 Y, p, -1; match.any.sync.b32 Z, X, -1;",
    "add.cc.u32 Y, X, T; addc.u32 Z, T, X;")
# The assembler may leave any bits above the 16 that count in such.
SHORT = ("mov.b32 {a, b}, X; cvt.u16.u32 c, T; add.s16 a, a, c; sub.u16 b, c, b; cvt.u32.u16 Y, a; cvt.s32.s16 Z, b;",
         "mov.b32 {a, b}, X; shl.b16 a, a, T; shr.s16 b, b, T; cvt.u32.u16 Y, a; cvt.s32.s16 Z, b;")
WAYS = {"loads": "mov.b32 X, C; @%p1 ld.global.b32 X, [%d0];", "branch": "mov.b32 X, C; @!%p1 bra OVER; ld.global.b32 X, [%d0];\nOVER:", "at once": "mov.b32 X, C;"}


def entry(name: str, operation: str, way: str, rewritten: Callable[[str], str]) -> str:
    """A kernel that stores what an operation makes of each of two constants, which it learns by a load or a jump whose predicate is false."""
    steps = "".join(WAYS[way].replace("X", f"%r{n}").replace("C", f"{word:#x}").replace("OVER", f"{name}_{n}") for n, word in enumerate(WORDS, 2))
    for n in (0, 1):
        made = re.sub(r"\b[XYZT]\b", lambda x, n=n: {"X": f"%r{2 + n}", "Y": f"%r{4 + 2 * n}", "Z": f"%r{5 + 2 * n}", "T": "%r1"}[x[0]], operation)
        steps += f"{{ .reg .b16 a, b, c; .reg .b32 u; .reg .b64 d, e; .reg .pred p; {made} }}\n"
    return rewritten(f".visible .entry {name}(.param .u64 given) {{\n.reg .b32 %r<9>;\n.reg .b64 %d0;\n.reg .pred %p1;\nld.param.u64 %d0, [given];\n"
                     f"ld.global.b32 %r1, [%d0+64];\nmov.pred %p1, 0;\n{steps}\nst.global.v4.b32 [%d0], {{%r4, %r5, %r6, %r7}};\nret;\n}}\n")


@lru_cache(maxsize=2)
def machine_codes(operations: tuple[str, ...], target: str, rewritten: Callable[[str], str] = shifted_halves) -> dict[tuple[str, str], str]:
    """The instructions of each operation in each way, up to the store. They share a run of the disassembler, whose start takes 0.3 s."""
    every = [(operation, way) for operation in operations for way in WAYS]
    text = "".join(entry(f"k{n}", *each, rewritten) for n, each in enumerate(every))
    parts = re.split(r"\.text\.k(\d+):", disassembled(f".version 8.8\n.target {target}\n.address_size 64\n{text}", target))[1:]
    assert len(parts) == 2 * len(every)
    return {every[int(n)]: code.partition("STG.E.128")[0] for n, code in zip(parts[::2], parts[1::2])}


def numbers(code: str, bits: int = 32) -> set[tuple[str, int]]:
    """The immediate operands of instructions, as bits; under "MOV" those that all instructions move to registers."""
    found = set()
    for line in code.splitlines():
        name, _, operands = re.sub(r"/\*\w+\*/|@!?U?P\d", "", line).strip().rstrip(" ;").partition(" ")
        given = operands.split(", ")[1:]
        if re.match(r"HFMA2", name) and given[:2] == ["-RZ", "RZ"]:  # two constants in float16
            high, low = (int(np.float16(float(x)).view(np.uint16)) for x in given[2:])
            name, given = "MOV", [f"{high << 16 | low:#x}"]
        elif re.match(r"U?MOV|IMAD\.(MOV|U32)|CS2R", name):
            name, given = "MOV", ["0" if given[-1] in ("RZ", "SRZ") else given[-1]]
        for operand in given:
            if re.search(r"\w\+-?0x", operand):
                operand = re.sub(r".*\+|\]", "", operand)
            if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", operand):
                found.add((name, int(operand, 0) & (1 << bits) - 1))
            elif re.fullmatch(r"[-+]?(\d+\.?\d*(e[-+]?\d+)?|INF|QNAN)", operand):
                value = struct.unpack("I", struct.pack("f", float(operand.replace("QNAN", "nan"))))[0]
                found.add((name, value & (1 << bits) - 1))
    return found


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_instructions_have_the_same_numbers_where_a_constant_is_known_late(target):
    codes = machine_codes(OPERATIONS + SHORT, target)
    for operation in OPERATIONS + SHORT:
        first, second, right = (numbers(codes[operation, way], 16 if operation in SHORT else 32) for way in WAYS)
        assert first == right and second == right and right, operation


UNPACKED = {"e4m3": "f16", "e5m2": "f16", "e2m3": "f16", "e3m2": "f16", "ue8m0": "bf16"}
KINDS = {"sm_89": ("e4m3", "e5m2"), "sm_90a": ("e4m3", "e5m2"), "sm_100a": tuple(UNPACKED), "sm_120a": tuple(UNPACKED)}
HALVES = {word >> n & 0xFFFF for word in WORDS for n in (0, 16)}


def forms_of(kind: str) -> tuple[str, str]:
    """Two halves of a word are unpacked, and of the upper word of 64 bits."""
    cvt = f"cvt.rn.{UNPACKED[kind]}x2.{kind}x2"
    return f"mov.b32 {{a, b}}, X; {cvt} Y, a; {cvt} Z, b;", f"mov.b64 d, {{T, X}}; mov.b64 {{_, c, a, b}}, d; {cvt} Y, a; {cvt} Z, b;"


def unpacked_numbers(kind: str, target: str, rewritten: Callable[[str], str] = shifted_halves) -> list[set[int]]:
    """The pairs that each form unpacks in each way."""
    codes = machine_codes(tuple(form for each in KINDS[target] for form in forms_of(each)), target, rewritten)
    return [{number for name, number in numbers(codes[form, way], 16) if "UNPACK" in name} for form in forms_of(kind) for way in WAYS]


@pytest.mark.parametrize("kind, target", [(kind, target) for target, kinds in KINDS.items() for kind in kinds])
def test_halves_of_constants_that_are_known_late_are_unpacked(kind, target):
    assert unpacked_numbers(kind, target) == [HALVES] * 6


# Words that are made of a constant and a loaded number, or that pass through local memory; N makes names for one word only.
MIXED = ["mov.b32 {a, b}, X; mov.b16 c, b; CVT Y, a; CVT Z, c;",
         ".reg .b64 dN; .reg .b32 vN, wN; mov.b64 dN, {T, X}; mov.b64 {vN, wN}, dN; mov.b32 {a, b}, wN; CVT Y, a; CVT Z, b;",
         ".reg .b64 dN; .reg .b16 hN; mov.b64 dN, {T, X}; mov.b64 {hN, c, a, b}, dN; CVT Y, a; CVT Z, b;",
         ".reg .b32 vN; bfi.b32 vN, X, T, 0, 32; mov.b32 {a, b}, vN; CVT Y, a; CVT Z, b;",
         ".reg .b32 vN, wN; and.b32 vN, T, 0; or.b32 wN, vN, X; mov.b32 {a, b}, wN; CVT Y, a; CVT Z, b;",
         ".reg .b32 vN; .local .b32 room; st.local.b32 [room], X; ld.local.b32 vN, [room]; mov.b32 {a, b}, vN; CVT Y, a; CVT Z, b;"]


MIXED_OF_E4M3 = tuple(form.replace("CVT", "cvt.rn.f16x2.e4m3x2") for form in MIXED)


def named_and_shifted(ptx: str) -> str:
    """With N replaced by each block's number."""
    blocks = ptx.split("{ .reg .b16 a, b, c;")
    return shifted_halves("{ .reg .b16 a, b, c;".join(re.sub(r"\b([dhvw])N\b", rf"\g<1>_{n}", block) for n, block in enumerate(blocks)))


@pytest.mark.parametrize("form", MIXED_OF_E4M3, ids=MIXED)
def test_constants_that_loaded_numbers_are_mixed_with_are_unpacked(form):
    codes = machine_codes(MIXED_OF_E4M3, "sm_90a", named_and_shifted)
    for way in WAYS:
        assert {number for name, number in numbers(codes[form, way], 16) if "UNPACK" in name} == HALVES


def test_wrong_halves_are_seen_in_machine_code():
    def shifted_too_little(ptx: str) -> str:
        return shifted_halves(ptx).replace("tilejit_parts, %r3, 16;", "tilejit_parts, %r3, 8;")
    found = unpacked_numbers("e4m3", "sm_90a", shifted_too_little)
    assert found[:3] == [HALVES - {WORDS[1] >> 16} | {WORDS[1] >> 8 & 0xFFFF}] * 3


MOVE = "mov.b32 {a, b}, %r1; cvt.rn.f16x2.e4m3x2 %r2, a; cvt.rn.f16x2.e4m3x2 %r3, b;"
SHIFTED = ("{ .reg .b32 tilejit_parts; shr.u32 tilejit_parts, %r1, 0; cvt.u16.u32 a, tilejit_parts; "
           "shr.u32 tilejit_parts, %r1, 16; cvt.u16.u32 b, tilejit_parts; }")


@pytest.mark.parametrize("made, constant", [
    ("ld.shared.b32 %r1, [%r0];", False), ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r9}, [%r0];", False),
    ("ld.shared.b32 %r8, [%r0];\nprmt.b32 %r1, %r8, %r7, 0x5410;", False), ("@%p1 ld.shared.b32 %r1, [%r0];", True),
    ("mov.b32 %r1, 7;\n@%p1 ld.global.b32 %r1, [%d1];", True), ("prmt.b32 %r1, %r8, %r7, 0x5410;", True),
    ("ld.shared.b32 %r8, [%r0];\nselp.b32 %r1, %r8, 5, %p1;", True), ("", True),
    ("ld.shared.b32 %r8, [%r0];\nshr.u32 %r1, %r8, 0x8;", False), ("ld.shared.b32 %r8, [%r0];\nbfi.b32 %r1, %r7, %r8, 0, 32;", True),
    ("ld.shared.b32 %r8, [%r0];\nmov.b64 %d2, {%r8, %r7};\nmov.b64 {%r9, %r1}, %d2;", True), ("ld.local.b32 %r1, [%r0];", True)])
def test_words_that_are_surely_loaded_are_unpacked_by_one_instruction(made, constant):
    text = f"{made}\n{{ .reg .b16 a, b; {MOVE} }}\n"
    assert shifted_halves(text) == (text.replace("mov.b32 {a, b}, %r1;", SHIFTED) if constant else text)


def test_halves_that_are_not_unpacked_stay():
    text = "mov.b32 {%rs1, %rs2}, %r1;\ncvt.f32.f16 %r2, %rs2;\n"
    assert shifted_halves(text) == text
    assert shifted_halves(text + "cvt.rn.f16x2.e5m2x2 %r3, %rs1;\n") == text + "cvt.rn.f16x2.e5m2x2 %r3, %rs1;\n"


@pytest.mark.parametrize("predicate", ["@%p1 ", "@ %p1 ", "@! %p1\t"])
def test_parts_that_are_moved_under_a_predicate_are_shifted_under_it(predicate):
    unpacked = "cvt.rn.f16x2.e4m3x2 %r2, %h2;\n"
    text = shifted_halves(f"{predicate}mov.b32 {{_, %h2}}, %r1;\n{unpacked}")
    assert text == f"{{ .reg .b32 tilejit_parts; {predicate}shr.u32 tilejit_parts, %r1, 16; {predicate}cvt.u16.u32 %h2, tilejit_parts; }}\n{unpacked}"
