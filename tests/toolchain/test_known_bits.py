"""What the assembler knows of bits: where it makes a bit of a result constant, since some bits of the operands are known, the constant is
right. ptxas 13.5 is wrong about products of registers, which are rewritten (`toolchain.assembler_faults.wide_products`)."""

import random
import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from tilejit.toolchain.assembler_faults import wide_products

from tests.toolchain.disassembled import disassembled

ONES = (1 << 32) - 1
# (bits of an operand that are not known, bits that are 1)
KNOWN = [(ONES, 0), (ONES, 1), (ONES, 3), (ONES, 1 << 31), (ONES - 1, 0), (ONES - 3, 1), (ONES - 3, 2), (ONES - 15, 0), (ONES - 15, 16),
         (ONES >> 1, 0), (0xFFFF0000, 0), (0xFF, 0), (0xFF, 0x80), (31, 1), (31, 4), (7, 0), (5, 1)]
BITS = (0, 1, 4, 31)
TOGETHER = 8  # operations


def signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


def high_signed(x: int) -> int:
    """The signed number of 16 bits."""
    return (x & 0xFFFF) - ((x & 0x8000) << 1)


def rotated(a: int, b: int, c: int) -> int:
    return ((b << 32 | a) << (c & 31)) >> 32


SHORT = "cvt.u16.u32 %h1, %r1;\ncvt.u16.u32 %h2, %r2;\n"
# PTX that makes %r4 of %r1, %r2 and %r3, and the same in Python
OPERATIONS: dict[str, tuple[str, Callable[[int, int, int], int]]] = {
    "mul.lo.u32": ("mul.lo.u32 %r4, %r1, %r2;", lambda a, b, c: a * b),
    "mul.lo.s32": ("mul.lo.s32 %r4, %r1, %r2;", lambda a, b, c: a * b),
    "mad.lo.u32": ("mad.lo.u32 %r4, %r1, %r2, %r3;", lambda a, b, c: a * b + c),
    "mad.lo.s32 of a constant": ("mad.lo.s32 %r4, %r1, %r2, -3;", lambda a, b, c: a * b - 3),
    "products": ("mul.lo.u32 %r5, %r1, %r2;\nmul.lo.u32 %r4, %r5, %r3;", lambda a, b, c: a * b * c),
    "mad.lo.cc": ("mad.lo.cc.u32 %r4, %r1, %r2, %r3;", lambda a, b, c: a * b + c),
    "addc behind mad.lo.cc": ("mad.lo.cc.u32 %r4, %r1, %r2, %r3;\naddc.u32 %r4, 0, 0;", lambda a, b, c: ((a * b & ONES) + c) >> 32),
    "madc.lo": ("add.cc.u32 %r5, %r1, %r2;\nmadc.lo.s32 %r4, %r1, %r2, %r3;", lambda a, b, c: a * b + c + (a + b >> 32)),
    "madc.lo.cc": ("add.cc.u32 %r5, 0, 0;\nmadc.lo.cc.u32 %r4, %r1, %r2, %r3;", lambda a, b, c: a * b + c),
    "mad.hi.cc": ("mad.hi.cc.u32 %r4, %r1, %r2, %r3;", lambda a, b, c: (a * b >> 32) + c),
    "mul.hi.u32": ("mul.hi.u32 %r4, %r1, %r2;", lambda a, b, c: a * b >> 32),
    "mul.hi.s32": ("mul.hi.s32 %r4, %r1, %r2;", lambda a, b, c: signed(a) * signed(b) >> 32),
    "mul.lo by 5": ("mul.lo.u32 %r4, %r1, 5;", lambda a, b, c: a * 5),
    "mad.lo by 12": ("mad.lo.u32 %r4, %r1, 12, %r2;", lambda a, b, c: a * 12 + b),
    "mul.wide.u32": ("mul.wide.u32 %d1, %r1, %r2;\ncvt.u32.u64 %r4, %d1;", lambda a, b, c: a * b),
    "mul.lo.u64": ("cvt.u64.u32 %d1, %r1;\ncvt.u64.u32 %d2, %r2;\nmul.lo.u64 %d1, %d1, %d2;\ncvt.u32.u64 %r4, %d1;", lambda a, b, c: a * b),
    "mul24": ("mul24.lo.u32 %r4, %r1, %r2;", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    "mul.lo.u16": (SHORT + "mul.lo.u16 %h3, %h1, %h2;\ncvt.u32.u16 %r4, %h3;", lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) & 0xFFFF),
    "mul.lo.s16": (SHORT + "mul.lo.s16 %h3, %h1, %h2;\ncvt.u32.u16 %r4, %h3;", lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) & 0xFFFF),
    "mul.wide.u16": (SHORT + "mul.wide.u16 %r4, %h1, %h2;", lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF)),
    "mul.wide.s16": (SHORT + "mul.wide.s16 %r4, %h1, %h2;", lambda a, b, c: high_signed(a) * high_signed(b)),
    "mad.wide.u16": (SHORT + "mad.wide.u16 %r4, %h1, %h2, %r3;", lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c),
    "dp4a": ("dp4a.u32.u32 %r4, %r1, %r2, %r3;", lambda a, b, c: c + sum((a >> n & 255) * (b >> n & 255) for n in (0, 8, 16, 24))),
    "add": ("add.u32 %r4, %r1, %r2;", lambda a, b, c: a + b),
    "sub": ("sub.u32 %r4, %r1, %r2;", lambda a, b, c: a - b),
    "neg": ("neg.s32 %r4, %r1;", lambda a, b, c: -a),
    "abs": ("abs.s32 %r4, %r1;", lambda a, b, c: abs(signed(a))),
    "sad": ("sad.u32 %r4, %r1, %r2, %r3;", lambda a, b, c: c + abs(a - b)),
    "min.u32": ("min.u32 %r4, %r1, %r2;", lambda a, b, c: min(a, b)),
    "max.s32": ("max.s32 %r4, %r1, %r2;", lambda a, b, c: max(signed(a), signed(b))),
    "rem": ("rem.u32 %r4, %r1, %r2;", lambda a, b, c: a % b if b else a),
    "shl": ("shl.b32 %r4, %r1, %r2;", lambda a, b, c: a << b if b < 32 else 0),
    "shr.u32": ("shr.u32 %r4, %r1, %r2;", lambda a, b, c: a >> min(b, 32)),
    "shr.s32": ("shr.s32 %r4, %r1, %r2;", lambda a, b, c: signed(a) >> min(b, 32)),
    "shf": ("shf.l.wrap.b32 %r4, %r1, %r2, %r3;", rotated),
    "shl, add": ("shl.b32 %r5, %r1, 3;\nadd.u32 %r4, %r5, %r2;", lambda a, b, c: (a << 3) + b),
    "popc": ("popc.b32 %r4, %r1;", lambda a, b, c: a.bit_count()),
    "clz": ("clz.b32 %r4, %r1;", lambda a, b, c: 32 - a.bit_length()),
    "brev": ("brev.b32 %r4, %r1;", lambda a, b, c: int(f"{a:032b}"[::-1], 2)),
    "lop3": ("lop3.b32 %r4, %r1, %r2, %r3, 0xe8;", lambda a, b, c: a & b | a & c | b & c),
    "selp": ("setp.ne.u32 %p1, %r3, 4;\nselp.b32 %r4, %r1, %r2, %p1;", lambda a, b, c: a if c != 4 else b),
    "cvt.s32.s16": ("cvt.u16.u32 %h1, %r1;\ncvt.s32.s16 %r4, %h1;", lambda a, b, c: high_signed(a)),
}


def entry(name: str, code: str, known, bit: int) -> str:
    """A kernel that stores a bit of a result."""
    operands = "".join(f"ld.global.u32 %r{n}, [%d0+{4 * n}];\nand.b32 %r{n}, %r{n}, {free:#x};\nor.b32 %r{n}, %r{n}, {ones:#x};\n"
                       for n, (free, ones) in enumerate(known, 1))
    return (f".visible .entry {name}(.param .u64 p) {{\n.reg .b32 %r<9>;\n.reg .b64 %d<9>;\n.reg .b16 %h<9>;\n.reg .pred %p<2>;\n"
            f"ld.param.u64 %d0, [p];\n{operands}{code}\nand.b32 %r4, %r4, {1 << bit:#x};\nst.global.u32 [%d0], %r4;\nret;\n}}\n")


def constant(code: str) -> int | None:
    """What a kernel's machine code stores, if it moves it there as a constant: it then loads no operand."""
    if "LDG" in code:
        return None
    register = re.search(r"STG\.E\S* .*?\], (\w+)", code)[1]
    if register == "RZ":
        return 0
    moved = re.findall(rf"(?:MOV\S*|HFMA2\S*|CS2R\S*) {register}, (.*?) ;", code)
    if not moved:
        return None
    value = moved[-1].replace(" ", "").split(",")
    if code.count("HFMA2") and "0x" not in value[-1]:  # two constants in float16
        high, low = (int(np.float16(float(x)).view(np.uint16)) for x in value[-2:])
        return high << 16 | low
    return int(value[-1], 16) & ONES if "0x" in value[-1] else 0


def cases_of(name: str) -> list[tuple[tuple, int]]:
    """What is known of the operands, and the bit of the result that is stored."""
    rng = random.Random(name)
    cases = [((one, rng.choice(KNOWN), rng.choice(KNOWN)), bit) for one in KNOWN for bit in BITS]
    return cases + [((one, one, one), bit) for one in KNOWN for bit in BITS]


@lru_cache(maxsize=2)
def machine_codes(names: tuple[str, ...], target: str, rewritten: Callable[[str], str]) -> dict[tuple[str, int], str]:
    """The machine code of each case of some operations, by the operation and the case's number. They share a run of the disassembler, whose
    start takes 0.3 s, and the kernels of one operation 0.02 s."""
    every = [(name, n) for name in names for n in range(len(cases_of(name)))]
    text = "".join(entry(f"k{i}", OPERATIONS[name][0], *cases_of(name)[n]) for i, (name, n) in enumerate(every))
    machine = disassembled(rewritten(f".version 8.8\n.target {target}\n.address_size 64\n{text}"), target)
    parts = re.split(r"\.text\.k(\d+):", machine)[1:]
    assert len(parts) == 2 * len(every)
    return {every[int(i)]: code for i, code in zip(parts[::2], parts[1::2])}


def wrong_constants(name: str, target: str, rewritten: Callable[[str], str] = wide_products, among: tuple[str, ...] = ()) -> list[str]:
    """The bits of an operation's results that the assembler makes a constant that they are not. `among` are operations that are assembled
    with it."""
    function, rng, found = OPERATIONS[name][1], random.Random(name), []
    codes = machine_codes(among or (name,), target, rewritten)
    for n, (known, bit) in enumerate(cases_of(name)):
        value = constant(codes[name, n])
        operands = [[rng.getrandbits(32) & free | ones for free, ones in known] for _ in range(40)]
        right = {function(*x) & 1 << bit for x in operands}
        if value is not None and right != {value}:
            found.append(f"bit {bit} of {name} with {[(hex(x), hex(y)) for x, y in known]} is {value}, not {right}")
    return found


@pytest.mark.parametrize("name", OPERATIONS)
def test_bits_that_the_assembler_knows_are_right(name):
    at = list(OPERATIONS).index(name) // TOGETHER * TOGETHER
    assert wrong_constants(name, "sm_90a", among=tuple(OPERATIONS)[at:at + TOGETHER]) == []


@pytest.mark.parametrize("target", ["sm_80", "sm_100a", "sm_120a"])
def test_bits_of_products_that_the_assembler_knows_are_right_on_other_targets(target):
    names = "mul.lo.s32", "mad.lo.u32", "mul.wide.u16"
    for name in names:
        assert wrong_constants(name, target, among=names) == []


def test_bits_that_the_assembler_knows_are_seen_in_machine_code():
    """Of a sum of known low bits, in the constants' forms of each operand of a store."""
    def sum_is_another(ptx: str) -> str:
        return ptx.replace("add.u32 %r4, %r1, %r2;", "add.u32 %r4, %r1, %r2;\nxor.b32 %r4, %r4, 0x80000117;")
    found = wrong_constants("add", "sm_90a", sum_is_another)
    assert {line.split()[1] for line in found} == {"0", "1", "4", "31"} and len(found) > 10
