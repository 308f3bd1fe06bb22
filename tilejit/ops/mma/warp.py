"""``mma.sync``: matrix products of register tiles, by the warps of a scope (sm_80 and later).

The tiles have the layouts of mma fragments.

Fragments may extend beyond the operands: along k they are filled with zeros there, and along m and n the surplus is
not part of the result. PTX ISA, "Matrix multiply-accumulate operation using mma instruction".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...dispatch import Need, Variant
from ...dtypes import DType, bfloat16, float16, float32
from ...ir.op import op
from ...ir.op_traits import Traits
from ...layout import TileLayout
from ...layout.fragments import mma_fragment
from ...types import Tile, domain_of
from .site import MmaSite

# bits of an operand's elements -> (shape of the instruction; its m, n and k)
SHAPES = {8: ("m16n8k32", 16, 8, 32), 16: ("m16n8k16", 16, 8, 16), 32: ("m16n8k8", 16, 8, 8), 64: ("m8n8k4", 8, 8, 4)}
NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32", "float64": "f64", "float8_e4m3fn": "e4m3",
         "float8_e5m2": "e5m2", "int8": "s8", "uint8": "u8", "int32": "s32"}
FLOATS8 = ("float8_e4m3fn", "float8_e5m2")
INTS8 = ("int8", "uint8")
MULTIPLY_FLOATS8 = (89, 120)  # architectures whose hardware executes mma.sync of float8


def results_of(a: str, b: str) -> tuple[str, ...]:
    """The dtypes of accumulators that instructions have for operands of these dtypes;
    empty if there is no instruction."""
    if a in FLOATS8 and b in FLOATS8:
        return "float32", "float16"
    if a in INTS8 and b in INTS8:
        return ("int32",)
    if a != b:
        return ()
    return {"float16": ("float32", "float16"), "bfloat16": ("float32",), "float32": ("float32",),
            "float64": ("float64",)}.get(a, ())


def multiplied_as(dtype: DType, other: DType, target: str) -> DType:
    """The dtype to which elements of `dtype` are converted, exactly, to be multiplied by those of `other` on `target`.

    float8 becomes the other dtype if that is a 16-bit float, and float16 before sm_89;
    float16 by bfloat16 are multiplied as tf32.
    """
    if dtype.name in FLOATS8:
        if other in (float16, bfloat16):
            return other
        early = target in ("sm_80", "sm_86")
        return float16 if early and other.name in FLOATS8 else dtype
    return float32 if {dtype, other} == {float16, bfloat16} else dtype


def instruction(a: str, b: str, result: str) -> str:
    """The mnemonic of the instruction for operands and accumulator of these dtypes."""
    kind = SHAPES[{"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}.get(a, 8)][0]
    d = {"float32": "f32"}.get(result, NAMES[result])
    return f"mma.sync.aligned.{kind}.row.col.{d}.{NAMES[a]}.{NAMES[b]}.{d}"


def words_of(bits: int, result_bits: int) -> dict[str, int]:
    """The number of registers per thread of each operand of an instruction;
    `bits` and `result_bits` are those of the elements."""
    _, m, n, k = SHAPES[bits]
    held = m * n * result_bits // (32 * max(32, result_bits))
    return {"d": held, "a": m * k * bits // (32 * max(32, bits)), "b": n * k * bits // (32 * max(32, bits)), "c": held}


# -- division among warps ----------------------------------------------------------------------------------------------

@lru_cache(maxsize=1024)
def arrangement(shape: tuple[int, int], warps: int, bits: int, rows: bool) -> tuple[int, int]:
    """(warps along the rows, warps along the columns) of the result: fewest instructions per warp,
    then fewest operand elements.

    `rows` prefers whole rows in a warp if that takes no more instructions.
    """
    _, m, n, _ = SHAPES[bits]
    best: tuple[tuple[int, bool, int, int], tuple[int, int]] | None = None
    for down in (w for w in range(1, warps + 1) if warps % w == 0):
        high, wide = -(-shape[0] // (m * down)), -(-shape[1] // (n * (warps // down)))
        cost = high * wide, rows and down != warps, high * m + wide * n, -down
        if best is None or cost < best[0]:
            best = cost, (down, warps // down)
    assert best is not None
    return best[1]


def fragment(t: Tile, operand: str, bits: int, warps: tuple[int, int], transposed: bool = False) -> Tile:
    """The tile type in the fragment layout of operand "a", "b" or "c";
    `transposed` if the tile's two dimensions are swapped."""
    kind = SHAPES[bits][0]
    layout, domain = mma_fragment(kind, operand, t.shape[::-1] if transposed else t.shape, warps)
    if transposed:
        rows, columns = layout.dims(domain)
        layout, domain = TileLayout([*columns, *rows], layout.replicas).canonicalize(), domain[::-1]
    return Tile(t.dtype, t.shape, layout, domain)


# -- the operation -----------------------------------------------------------------------------------------------------

@op("pure", attrs=("trans_a", "trans_b", "dtype", "k", "a_at", "b_at", "warps"), collective=True,
    traits=Traits(product=True, anchor=True))
def mma_(acc, a, b, trans_a, trans_b, dtype, k, a_at, b_at, warps):
    """``acc + a @ b`` of register tiles, over `k` elements along k from `a_at` on in a and from `b_at` on in b.

    `warps` is the number of warps along (m, n).
    """


@mma_.infer
def _(g, acc, a, b, *, trans_a, trans_b, dtype, k, a_at, b_at, warps):
    return Tile(dtype, (a.type.shape[1 if trans_a else 0], b.type.shape[0 if trans_b else 1]))


def _layout(assigner, call, types):
    acc, a, b = call.args
    t, bits = call.attrs, a.type.dtype.bits
    warps = t["warps"]
    made = fragment(call.result.type, "c", bits, warps)
    return (made if acc is not None else None, fragment(a.type, "a", bits, warps, t["trans_a"]),
            fragment(b.type, "b", bits, warps, t["trans_b"])), (made,)


mma_.rules.layout = _layout


@dataclass(frozen=True)
class Plan:
    """Each warp computes `m_tiles` by `n_tiles` results of the instruction, in `steps` steps along k.

    Tile a holds `a_steps` such steps, of which those from `a_first` on are used;
    `b_steps` and `b_first` are likewise for b.
    """

    instruction: str
    m_tiles: int
    n_tiles: int
    steps: int
    a_steps: int
    a_first: int
    b_steps: int
    b_first: int

    @property
    def instructions(self) -> int:
        return self.m_tiles * self.n_tiles * self.steps


def _plan(g, call) -> Plan:
    acc, a, b = call.args
    t, result = call.attrs, call.result.type
    _, m, n, k = SHAPES[a.type.dtype.bits]
    warps = t["warps"]
    def extent(x, trans):
        return -(-x.type.shape[0 if trans else 1] // k)
    return Plan(instruction(a.type.dtype.name, b.type.dtype.name, result.dtype.name),
                result.domain[0] // (m * warps[0]),
                result.domain[1] // (n * warps[1]), -(-t["k"] // k), extent(a, t["trans_a"]), t["a_at"] // k,
                extent(b, not t["trans_b"]), t["b_at"] // k)


mma_.rules.plan = _plan


@mma_.simulate
def _(m, call, acc, a, b):
    m.sync.collective("mma")
    t = call.attrs
    a, b = (a.swapaxes(1, 2) if t["trans_a"] else a), (b.swapaxes(1, 2) if t["trans_b"] else b)
    a, b = a[:, :, t["a_at"]:t["a_at"] + t["k"]], b[:, t["b_at"]:t["b_at"] + t["k"]]
    return m.tensor_cores.multiply(acc, a, b, SHAPES[call.args[1].type.dtype.bits][3], call.result.type)


@mma_.emit
def _(e, call, acc, a, b):
    """Emit the instructions. k is the outer loop, so that consecutive instructions accumulate in different registers
    and do not wait for each other. The sums stay 32-bit words (64-bit for float64) until the last of them."""
    plan, t = call.choice.plan, call.result.type
    left = _words(e, call.args[1].type, _without_ghosts(e, call.args[1].type, a, 0 if call.attrs["trans_a"] else 1))
    right = _words(e, call.args[2].type, _without_ghosts(e, call.args[2].type, b, 1 if call.attrs["trans_b"] else 0))
    count = words_of(call.args[1].type.dtype.bits, t.dtype.bits)
    zero = e.const(0, t.dtype)
    words = list(_words(e, t, acc if acc is not None else [zero] * e.tiles.registers(t), operand=False))
    multiply = _multiplied_halves if _of_halves(e, call) else _emit_mma
    for step in range(plan.steps):
        for i in range(plan.m_tiles):
            x = (i * plan.a_steps + plan.a_first + step) * count["a"]
            for j in range(plan.n_tiles):
                y = (j * plan.b_steps + plan.b_first + step) * count["b"]
                d = (i * plan.n_tiles + j) * count["d"]
                words[d:d + count["d"]] = multiply(e, call, left[x:x + count["a"]], right[y:y + count["b"]],
                                                   words[d:d + count["d"]])
    return e.mma.unpacked_words(words, t.dtype) if t.dtype == float16 else words


def _emit_mma(e, call, a: list, b: list, c: list, mnemonic: str = "") -> list:
    """Emit one instruction, by default the plan's, on the words of its operands; returns the words of the result."""
    text, first = mnemonic or call.choice.plan.instruction, 0
    for words in (c, a, b, c):
        text += f"{',' if first else ''} {{{', '.join(f'${first + i}' for i in range(len(words)))}}}"
        first += len(words)
    return e.asm(text + ";", [w.dtype for w in c], [*a, *b, *c], pure=True, convergent=True)


def _of_halves(e, call) -> bool:
    """Whether float8 is multiplied by instructions of float16, to avoid an error of ptxas.

    On architectures such as sm_90 and sm_100, ptxas expands the float8 instructions to the same conversions and
    float16 products. But if it knows the upper half of a word (zeros beyond a ragged k), it may convert a wrong
    number: ptxas 13.0 and 13.5, ``F2FP.F16.E4M3.UNPACK_B`` of an immediate; 29 zeros along k gave 4096 on an H200.
    """
    return call.args[1].type.dtype.name in FLOATS8 and e.architecture not in MULTIPLY_FLOATS8


def _multiplied_halves(e, call, a: list, b: list, c: list) -> list:
    """Emit a float8 product as two float16 products (float16 holds every float8 exactly), each over half of k: that
    of the first two of the four elements of each word, and that of the last two."""
    mnemonic = instruction("float16", "float16", call.result.type.dtype.name)
    left, right = ([_float16_pairs(e, x, arg.type.dtype.name) for x in words]
                   for words, arg in ((a, call.args[1]), (b, call.args[2])))
    for half in range(2):
        c = _emit_mma(e, call, [x[half] for x in left], [y[half] for y in right], c, mnemonic)
    return c


def _float16_pairs(e, word, name: str) -> list:
    """Convert a word of four float8 to two words of float16. A shift of the upper half keeps ptxas from converting it
    in place, which is where the error of `_of_halves` is."""
    low = f"{{ .reg .b16 low; mov.b32 {{low, _}}, $1; cvt.rn.f16x2.{NAMES[name]}x2 $0, low; }}"
    high = low.replace("{ .reg", "{ .reg .b32 t; shr.b32 t, $1, 16; .reg").replace("_}, $1", "_}, t")
    return e.memoize_for_region(("float16 pairs", word.text, name),
                                lambda: [e.asm(text, [word.dtype], [word], pure=True)[0] for text in (low, high)])


def _words(e, t: Tile, values: list, operand: bool = True) -> list:
    """The registers of a tile as the instruction takes them: packed to 32-bit words, except float64 and 32-bit
    results, which stay."""
    return values if t.dtype.bits == 64 or not operand and t.dtype.bits == 32 else e.mma.packed_words(values)


def _without_ghosts(e, t: Tile, values: list, dim: int) -> list:
    """The registers of an operand, with zeros for elements beyond the tile's extent along k, its dimension `dim`."""
    if domain_of(t)[dim] == t.shape[dim]:
        return values
    zero, kept = e.const(0, t.dtype), []
    for r, v in enumerate(values):
        at = e.tiles.register_coordinates(t, r)[dim]
        inside = e.memoize_for_region(("along k", t, dim, at),
                                      lambda: e.in_bounds(e.tiles.thread_coordinate(t, dim) + at, t.shape[dim]))
        kept.append(e.select(inside, v, zero))
    return kept


# -- the variant of dot ------------------------------------------------------------------------------------------------

def _exists(s: MmaSite) -> bool | str:
    pairs = (s.a.dtype, s.b.dtype), (s.b.dtype, s.a.dtype)
    results = results_of(*(multiplied_as(x, y, s.target).name for x, y in pairs))
    if not results:
        return f"{s.a.dtype} by {s.b.dtype}"
    return s.dtype.name in results or f"{s.a.dtype} by {s.b.dtype} to {s.dtype}"


def _precision(s: MmaSite) -> bool | str:
    return s.a.dtype.name != "float32" or s.precision == "tf32" or "they would be rounded to 10 bits"


DOT = Variant("mma_sync", doc=__doc__, needs=(
    Need("whole warps as the scope", lambda s: s.threads % 32 == 0 or f"a {s.scope} of {s.threads} threads", gate=True),
    Need("types that an instruction multiplies, and an accumulator that it has for them", _exists, gate=True),
    Need("precision='tf32' for float32 operands", _precision),
))
