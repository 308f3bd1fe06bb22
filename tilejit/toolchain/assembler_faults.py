"""Rewrites PTX that ptxas translates wrongly to PTX of the same meaning that it translates rightly."""

from __future__ import annotations

import re
from collections import Counter


def avoid_faults(ptx: str) -> str:
    """PTX without the forms that versions 13.0 to 13.5 of the assembler are known to translate wrongly."""
    return shifted_halves(wide_products(kept_negations(ptx)))


_SIGNED_EXTREME = re.compile(r"\b(?:max|min)\.s(?:16|32)\b")
_NEGATION = re.compile(r"^([ \t]*)neg\.s(16|32)\s+(%\w+), (%\w+);", re.MULTILINE)


def kept_negations(ptx: str) -> str:
    """PTX whose negations of integers the assembler keeps.

    ptxas 13.0 makes one ``VIMNMX3`` of two ``max.s32`` (also ``min`` and ``.s16``) on sm_90a and sm_100a, and drops
    the ``neg`` of its second operand: ``max(max(a, -b), c)`` becomes ``max(a, b, c)``, a wrong number on the H200.
    ptxas 13.5 keeps it. Neither takes ``~b + 1``, one instruction more, for a negation.
    """
    if not _SIGNED_EXTREME.search(ptx):
        return ptx
    return _NEGATION.sub(r"\1not.b\2 \t\3, \4;\n\1add.s\2 \t\3, \3, 1;", ptx)


_PRODUCT = re.compile(r"m(ul|adc?)\.(lo\.(?:cc\.)?[su]32|lo\.u16|wide\.u16)\s+([%\w$]+)\s*,\s*([%A-Za-z_$][\w$]*)\s*,"
                      r"\s*([%A-Za-z_$][\w$]*)\s*(?:,\s*([^;/]+))?;")
_PREDICATED = r"(@\s*!?\s*[%\w$]+\s+)"
_PREDICATE = re.compile(_PREDICATED + r"\Z")


def wide_products(ptx: str) -> str:
    """PTX in which products of two registers of 32 bits, or two unsigned ones of 16, are the low bits of 64-bit ones.

    ptxas 13.5 takes the lowest bit of ``mul.lo.s32`` (also ``.u32``, ``.u16``, ``mul.wide.u16`` and ``mad``) for 0
    where it knows that both factors are odd, or the lowest that may be set if they end in known zeros.
    ``(a | 1) * (b | 1) & 1`` is 0, and ``| 1`` becomes ``+ 1``: wrong numbers on the H200, by each target's code. LLVM
    folds what it knows itself, but not what a shuffle passes on. ptxas 13.0 is right. Neither knows bits of 64-bit
    products, for which they emit the same IMAD.

    Others of the kind were looked for among 74 instructions and pairs, with operands of which 17 sets of bits are
    known: where a bit of the result became a constant, which one (`tests/toolchain/test_known_bits.py`).
    Users' inline PTX is rewritten too; there, ``mad.lo.cc`` and ``madc.lo`` are wrong too.
    """
    parts, end = [], 0
    for product in _PRODUCT.finditer(ptx):  # begins with a letter, which is found faster than a predicate that may be
        predicate = _PREDICATE.search(ptx, max(end, product.start() - 80), product.start())
        parts += [ptx[end:predicate.start() if predicate else product.start()], _widen(product, predicate)]
        end = product.end()
    return "".join([*parts, ptx[end:]])


def _widen(product: re.Match[str], predicated: re.Match[str] | None) -> str:
    name, form, result, x, y, addend = product.groups(default="")
    predicate = predicated[0] if predicated else ""
    low = "tilejit_low" if addend else result  # these names hide no register of users' inline PTX
    made, sign = "16" if form == "lo.u16" else "32", form[-3] if form.endswith("32") else "u"
    steps = [f"mul.wide.{sign}32 tilejit_wide, {x}, {y}", f"cvt.u{made}.u64 {low}, tilejit_wide"]
    registers = [".reg .b64 tilejit_wide;"]
    if form.endswith("16"):
        registers += [".reg .b32 tilejit_x, tilejit_y;"]
        steps = [f"cvt.u32.u16 tilejit_x, {x}", f"cvt.u32.u16 tilejit_y, {y}",
                 "mul.wide.u32 tilejit_wide, tilejit_x, tilejit_y", *steps[1:]]
    if addend:
        registers += [f".reg .b{made} tilejit_low;"]
        add = ("addc" if name == "adc" else "add") + (".cc" if ".cc." in form else "")
        steps += [f"{add}.s{made} {result}, tilejit_low, {addend}"]
    return f"{{ {' '.join(registers)} {' '.join(f'{predicate}{step};' for step in steps)} }}"


_UNPACKING = re.compile(r"\bcvt\.[\w.:]*f16x2\.(?:e4m3|e5m2|e2m3|e3m2|ue8m0)x2\s+[%\w$]+,\s*([%\w$]+)")
_PARTS = re.compile(_PREDICATED + r"?\bmov\.b(32|64)\s*\{([^{}]*)\}\s*,\s*([%\w$]+)\s*;")
_COPY = re.compile(r"\bmov\.[bus]16\s+([%\w$]+)\s*,\s*([%\w$]+)\s*;")
_DEFINITION = re.compile(r"(?:^|(?<=[;{}:]))[ \t]*" + _PREDICATED + r"?([a-z][\w.:]*)\s+"
                         r"(\{[^{}]*\}|[%\w$|]+)\s*,([^;]*);", re.MULTILINE)
_REGISTER = re.compile(r"(?<![\w$])[%A-Za-z_$][\w$]*")
_UNKNOWN = ("ld.", "ldmatrix", "atom.", "mma.", "wgmma.", "tcgen05.ld")  # the assembler does not know their results


def shifted_halves(ptx: str) -> str:
    """PTX in which halves of words that may turn out to be constant are shifted down before they are unpacked to two
    floats of 16 bits.

    ptxas 13.0 and 13.5 unpack the upper half by ``F2FP.F16.E4M3.UNPACK_B R.H1`` (also of the other types of 6 and 8
    bits). If they learn later that R is a constant, such as ``other`` of a load whose predicate is false, they put in
    some other number for its upper half: a wrong number on the H200. A half that was shifted is right.

    Of more than 100 other instructions that read words, halves and bytes of such constants, none is wrong
    (`tests/toolchain/test_late_constants.py`).
    """
    if "f16x2.e" not in ptx and "f16x2.ue8m0x2" not in ptx:
        return ptx
    unpacked = set(_UNPACKING.findall(ptx))
    copies = _COPY.findall(ptx)
    while found := {source for copy, source in copies if copy in unpacked} - unpacked:
        unpacked |= found
    never_constant = _never_constant(ptx)

    def shift(moved: re.Match[str]) -> str:
        predicate, bits, text, word = moved.groups(default="")
        parts = [part.strip() for part in text.split(",")]
        if 16 * len(parts) != int(bits) or unpacked.isdisjoint(parts[1:]) or word in never_constant:
            return moved[0]
        steps = [f"shr.u{bits} tilejit_parts, {word}, {16 * n}; {predicate}cvt.u16.u{bits} {part}, tilejit_parts;"
                 for n, part in enumerate(parts) if part != "_"]
        return f"{{ .reg .b{bits} tilejit_parts; {' '.join(predicate + step for step in steps)} }}"

    return _PARTS.sub(shift, ptx)


def _never_constant(ptx: str) -> set[str]:
    """The registers that surely hold no constant: loaded ones, what is computed from such only, and words of bytes of
    such and others. The assembler knows what is loaded from local memory if it keeps that in registers."""
    made = [(predicate, name, _REGISTER.findall(results), operands)
            for predicate, name, results, operands in _DEFINITION.findall(ptx)]
    times = Counter(register for _, _, results, _ in made for register in results)
    found: set[str] = set()
    for predicate, name, results, operands in made:
        if predicate or name.startswith(("selp", "ld.local")) or any(times[register] > 1 for register in results):
            continue
        sources = set(_REGISTER.findall(operands))
        if name.startswith(_UNKNOWN) or sources and sources <= found or name == "prmt.b32" and sources & found:
            found.update(results)
    return found
