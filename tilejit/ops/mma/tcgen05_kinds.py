"""The kinds of ``tcgen05.mma``, their element types and extents, and the instruction descriptor.

PTX ISA, "Matrix Shape" and "Instruction descriptor" (9.7.16.2.1, 9.7.16.4.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...dtypes import DTYPES

K_BYTES = 32  # bytes in memory along k that one instruction takes of each operand

# PTX names of element types with their codes in the instruction descriptor,
# and (TYPES) the dtypes of buffers that hold them.
HALF = {"f16": 0, "bf16": 1}
EIGHT = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
         "int8": "s8", "uint8": "u8", "float4_e2m1fn": "e2m1", "float4_e2m1fn_p64": "e2m1", "float6_e2m3fn_p32": "e2m3",
         "float6_e3m2fn_p32": "e3m2"}
PADDED = {TYPES[d.name]: d for d in DTYPES.values() if d.padded}  # of narrow elements, as kinds of 8 bits take them
SCALES = {"float8_e8m0fnu": "ue8m0", "float8_e4m3fn": "ue4m3"}
ACCUMULATORS = {"float16": 0, "float32": 1, "int32": 2}


@dataclass(frozen=True)
class Kind:
    """A kind: the codes of its element `types` in the descriptor, the elements `k` that one instruction takes, its
    `accumulators`, and whether it can transpose operands (`transposes`) and negate A (`negates`).

    `scales`, for block-scaled kinds, is {block size: (scale factors along k per instruction, qualifier,
    types of the factors)}.
    """

    name: str
    types: dict[str, int]
    k: int
    accumulators: tuple[str, ...]
    targets: tuple[str, ...] = ("sm_100a", "sm_103a")
    scales: dict[int, tuple[int, str, tuple[str, ...]]] | None = None
    transposes: bool = True
    negates: bool = True


KINDS = {k.name: k for k in (
    Kind("f16", HALF, 16, ("float32", "float16")),
    Kind("tf32", {"tf32": 2}, 8, ("float32",), transposes=False),
    Kind("f8f6f4", EIGHT, 32, ("float32", "float16")),
    Kind("i8", {"u8": 0, "s8": 1}, 32, ("int32",), targets=("sm_100a",), negates=False),
    Kind("mxf8f6f4", EIGHT, 32, ("float32",), scales={32: (1, "scale_vec::1X", ("ue8m0",))}),
    Kind("mxf4", {"e2m1": 1}, 64, ("float32",), scales={32: (2, "scale_vec::2X", ("ue8m0",))}, transposes=False),
    Kind("mxf4nvf4", {"e2m1": 1}, 64, ("float32",),
         scales={32: (2, "scale_vec::2X", ("ue8m0",)), 16: (4, "scale_vec::4X", ("ue8m0", "ue4m3"))},
         transposes=False),
)}


def default_kind(a: str, b: str, scaled: bool, packed: bool = False, fine: bool = False) -> str | None:
    """The kind that multiplies these types by default; None if there is none.

    `scaled`: there are scale factors. `packed`: both operands are packed 4-bit elements. `fine`: the factors are for
    blocks of 16, or are not powers of two.
    """
    if packed:
        if not scaled:
            return None
        return "mxf4nvf4" if fine else "mxf4"
    for name in ("f16", "tf32", "i8") if not scaled else ():
        if a in KINDS[name].types and b in KINDS[name].types:
            return name if name != "f16" or a == b else None
    if a in EIGHT and b in EIGHT:
        return "mxf8f6f4" if scaled else "f8f6f4"
    return None


@dataclass(frozen=True)
class Instruction:
    """The fields of an instruction descriptor.

    `negated` negates A. `scale_ids` are, for (A, B), the byte within a 32-bit column at which the instruction's
    scale factors start.
    """

    kind: str
    m: int
    n: int
    a: str
    b: str
    accumulator: str
    trans_a: bool = False
    trans_b: bool = False
    scale_type: str | None = None
    scale_ids: tuple[int, int] = (0, 0)
    negated: bool = False

    @property
    def bits(self) -> int:
        """The descriptor's 32 bits."""
        kind = KINDS[self.kind]
        common = (kind.types[self.a] << 7 | kind.types[self.b] << 10 | self.negated << 13 | self.trans_a << 15
                  | self.trans_b << 16 | self.n >> 3 << 17)
        if kind.scales is None:
            return common | ACCUMULATORS[self.accumulator] << 4 | self.m >> 4 << 24
        return (common | self.scale_ids[1] << 4 | (self.scale_type == "ue8m0") << 23 | self.m >> 7 << 27
                | self.scale_ids[0] << 29)

    @staticmethod
    def decode(bits: int, kind: str) -> Instruction | str:
        """Decode the 32 bits for an instruction of `kind`, or return a string that says what is illegal in them."""
        t = KINDS[kind]
        wide = 7 if kind not in ("mxf4", "mxf4nvf4") else 3
        a, b = (next((name for name, code in t.types.items() if code == number), None)
                 for number in (bits >> 7 & 7, bits >> 10 & wide))
        if a is None or b is None:
            return f"the types {bits >> 7 & 7} and {bits >> 10 & wide} of an instruction descriptor of kind::{kind}"
        if bits >> 13 & 3 and not (t.negates and not bits >> 14 & 1):
            return f"the bits 13 and 14 of an instruction descriptor of kind::{kind}, {bits >> 13 & 3}"
        majors, n, negated = (bool(bits >> 15 & 1), bool(bits >> 16 & 1)), (bits >> 17 & 63) << 3, bool(bits >> 13 & 1)
        if t.scales is None:
            accumulator = next((name for name, code in ACCUMULATORS.items() if code == bits >> 4 & 3), None)
            if accumulator is None or accumulator not in t.accumulators:
                return f"the accumulator type {bits >> 4 & 3} of an instruction descriptor of kind::{kind}"
            return Instruction(kind, (bits >> 24 & 31) << 4, n, a, b, accumulator, *majors, negated=negated)
        return Instruction(kind, (bits >> 27 & 3) << 7, n, a, b, "float32", *majors,
                           "ue8m0" if bits >> 23 & 1 else "ue4m3", (bits >> 29 & 3, bits >> 4 & 3), negated)


def columns_allowed(kind: str, cta_group: int, n: int, byte_wide_transposed: bool) -> bool | str:
    """Whether an instruction can have `n` columns (PTX ISA, tables 39 and 52),
    else a string with those that it can have.

    `byte_wide_transposed`: B has 8-bit elements and is contiguous along n.
    """
    few = (8, 24) if kind == "i8" and cta_group == 1 and not byte_wide_transposed else ()
    step = 8 * cta_group * (2 if kind == "i8" else 1)
    if byte_wide_transposed:
        step = max(step, 16 * cta_group)
    if n in few or step <= n <= 256 and n % step == 0:
        return True
    return f"{n} columns, and there are {'8, 24 and ' if few else ''}{step} to 256 in steps of {step}"


def accumulator_lanes(m: int, cta_group: int) -> tuple[str, int]:
    """(datapath letter, rows in each CTA) of an accumulator of `m` rows (PTX ISA, "Data Path Layout Organization")."""
    return {(128, 1): ("D", 128), (64, 1): ("F", 64), (256, 2): ("A", 128), (128, 2): ("B", 64)}[m, cta_group]
