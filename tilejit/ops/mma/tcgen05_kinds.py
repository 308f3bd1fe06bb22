"""The kinds of ``tcgen05.mma``: element types, what an instruction multiplies, and the instruction descriptor.

PTX ISA, "Matrix Shape" and "Instruction descriptor" (9.7.16.2.1, 9.7.16.4.2).
"""

from __future__ import annotations

from dataclasses import dataclass

K_BYTES = 32  # of a row of either operand that one instruction takes, as it lies in memory

# PTX's names of element types, with their number in the instruction descriptor, and the dtypes of buffers that hold them.
HALF = {"f16": 0, "bf16": 1}
EIGHT = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "s8", "uint8": "u8",
         "float4_e2m1fn": "e2m1", "float4_e2m1fn_p64": "e2m1", "float6_e2m3fn_p32": "e2m3", "float6_e3m2fn_p32": "e3m2"}
SCALES = {"float8_e8m0fnu": "ue8m0", "float8_e4m3fn": "ue4m3"}
ACCUMULATORS = {"float16": 0, "float32": 1, "int32": 2}


@dataclass(frozen=True)
class Kind:
    """`types`: number in the descriptor by name; `k` elements in an instruction; `accumulators` that it may have; whether it
    `transposes` operands and `negates` A, as those of floats do. Block-scaled kinds have `scales`: {block size: (scales along k in an instruction,
    qualifier, types of scale)}."""

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
    Kind("mxf4nvf4", {"e2m1": 1}, 64, ("float32",), scales={32: (2, "scale_vec::2X", ("ue8m0",)), 16: (4, "scale_vec::4X", ("ue8m0", "ue4m3"))},
         transposes=False),
)}


def natural(a: str, b: str, scaled: bool, packed: bool = False, fine: bool = False) -> str | None:
    """The kind that multiplies these types; None where there is none, or several. `packed` elements of 4 bits lie in pairs, and
    their factors are `fine`: for blocks of 16, or no powers of two."""
    if packed:
        return ("mxf4nvf4" if fine else "mxf4") if scaled else None
    for name in ("f16", "tf32", "i8") if not scaled else ():
        if a in KINDS[name].types and b in KINDS[name].types:
            return name if name != "f16" or a == b else None
    if a in EIGHT and b in EIGHT:
        return "mxf8f6f4" if scaled else "f8f6f4"
    return None


@dataclass(frozen=True)
class Instruction:
    """The fields of an instruction descriptor. A is `negated`; `scale_ids` say which byte of a word of scale factors the instruction begins at."""

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
        """The 32 bits."""
        kind = KINDS[self.kind]
        common = kind.types[self.a] << 7 | kind.types[self.b] << 10 | self.negated << 13 | self.trans_a << 15 | self.trans_b << 16 | self.n >> 3 << 17
        if kind.scales is None:
            return common | ACCUMULATORS[self.accumulator] << 4 | self.m >> 4 << 24
        return common | self.scale_ids[1] << 4 | (self.scale_type == "ue8m0") << 23 | self.m >> 7 << 27 | self.scale_ids[0] << 29

    @staticmethod
    def decoded(bits: int, kind: str) -> "Instruction | str":
        """What 32 bits say to an instruction of a kind; a string says what is illegal in them."""
        t = KINDS[kind]
        wide = 7 if kind not in ("mxf4", "mxf4nvf4") else 3
        names = [next((name for name, code in t.types.items() if code == number), None) for number in (bits >> 7 & 7, bits >> 10 & wide)]
        if None in names:
            return f"the types {bits >> 7 & 7} and {bits >> 10 & wide} of an instruction descriptor of kind::{kind}"
        if bits >> 13 & 3 and not (t.negates and not bits >> 14 & 1):
            return f"the bits 13 and 14 of an instruction descriptor of kind::{kind}, {bits >> 13 & 3}"
        majors, n, negated = (bool(bits >> 15 & 1), bool(bits >> 16 & 1)), (bits >> 17 & 63) << 3, bool(bits >> 13 & 1)
        if t.scales is None:
            accumulator = next((name for name, code in ACCUMULATORS.items() if code == bits >> 4 & 3), None)
            if accumulator not in t.accumulators:
                return f"the accumulator type {bits >> 4 & 3} of an instruction descriptor of kind::{kind}"
            return Instruction(kind, (bits >> 24 & 31) << 4, n, *names, accumulator, *majors, negated=negated)
        return Instruction(kind, (bits >> 27 & 3) << 7, n, *names, "float32", *majors, "ue8m0" if bits >> 23 & 1 else "ue4m3",
                           (bits >> 29 & 3, bits >> 4 & 3), negated)


def columns_allowed(kind: str, cta_group: int, n: int, byte_wide_transposed: bool) -> bool | str:
    """Whether an instruction has `n` columns (PTX ISA, tables 39 and 52)."""
    few = (8, 24) if kind == "i8" and cta_group == 1 and not byte_wide_transposed else ()
    step = 8 * cta_group * (2 if kind == "i8" else 1)
    if byte_wide_transposed:
        step = max(step, 16 * cta_group)
    if n in few or step <= n <= 256 and n % step == 0:
        return True
    return f"{n} columns, and there are {'8, 24 and ' if few else ''}{step} to 256 in steps of {step}"


def accumulator_lanes(m: int, cta_group: int) -> tuple[str, int]:
    """The datapath of an accumulator, and its rows in each CTA (PTX ISA, "Data Path Layout Organization")."""
    return {(128, 1): ("D", 128), (64, 1): ("F", 64), (256, 2): ("A", 128), (128, 2): ("B", 64)}[m, cta_group]
