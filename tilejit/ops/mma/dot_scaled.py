"""``dot_scaled``: a product of narrow elements with a scale factor for each block of them along k.

These are the OCP microscaling formats mxfp8, mxfp6 and mxfp4, and nvfp4. Elements are multiplied by their factors in
bfloat16, which holds these products exactly, and then as `dot` multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ...dispatch import names
from ...dtypes import DType, bfloat16, float4_e2m1fn, float8_e4m3fn, float8_e8m0fnu, float32
from ...ir.builder import Builder, ExecScope, as_value, describe, element_type, extents_of, type_of
from ...ir.builtin import builtin
from ...ir.graph import Value
from ...types import Buffer, Region, Tile
from ..language import shape as shapes
from ..language.expect_variant import asked_variant
from ..language.operators import binary
from ..language.promotion import collective, convert
from ..memory.packed import as_bytes, packed_bytes, shape_of
from ..memory.regions import whole_region
from ..moves.load_store import load
from ..tiles import slicing
from .batch import matrix_shapes
from .dot import VARIANTS, dot_, multiply
from .tcgen05_kinds import KINDS, PADDED, SCALES, TYPES, default_kind

ROWS, BLOCKS = 128, 4                      # factors of a tile of the blocked layout, which is stored as 32 rows of 16
UNIT = ROWS * BLOCKS
DEFAULT_BLOCKS = {float8_e8m0fnu: 32, float8_e4m3fn: 16}
WIDE = ("float16", "bfloat16")             # that an operand without factors may have


@builtin
def dot_scaled(g: Builder, a, scale_a, b, scale_b, acc=None, trans_a=False, trans_b=False, block=None,
               scale_layout="plain", variant=None):
    """The matrix product of `a` and `b`, whose elements are multiplied by a factor for each block of them along k, plus
    the tile `acc` if it is given: a tile [m, n] of float32.

    `a` is [m, k] and `b` is [k, n], as for `dot` (with `trans_a`, [k, m], and with `trans_b`, [n, k]): register tiles,
    or matrices in shared memory, of 4, 6 or 8 bits. `scale_a` is [m, blocks] and `scale_b` is [n, blocks], in registers
    or shared memory, whatever the order of the elements: float8_e8m0fnu for blocks of 32 (the formats mxfp8, mxfp6 and
    mxfp4), float8_e4m3fn for blocks of 16 of float4_e2m1fn (nvfp4). `block` names another size, 16 or 32. The last
    block may be a part. An operand without factors (None) may have 16 bits too.

    ``scale_layout="blocked"`` takes factors in the order of cuBLAS and torch: units of 512 bytes, each those of 128
    rows and 4 blocks, of which row r and block j are at ``r % 32 * 16 + r // 32 * 4 + j``. A tile of them has any
    shape with ``cdiv(m, 128) * cdiv(blocks, 4) * 512`` elements, in row-major order [units along the rows, units along
    k, 512].

    On sm_100a and sm_103a the tensor cores multiply by the factors (``tcgen05.mma`` with ``.block_scale``; those of
    nvfp4 are not negative there), where they have an instruction: operands of 4, 6 and 8 bits in any mix with e8m0
    factors for blocks of 32, or both of 4 bits; a multiple of 128 rows, and of 32 elements of k (64, if both have 4
    bits); 16 to 256 columns in steps of 16. Elements of 4 and 6 bits are padded to a byte each in shared memory, unless
    both operands have 4 bits: a matrix there may be of ``tile.padded(dtype)`` already. Otherwise each element times its
    factor is rounded to bfloat16, which is exact unless it is below 2**-133 or beyond the range, and the rest is `dot`
    of bfloat16, on the path `variant`. OCP Microscaling Formats (MX) Specification 1.0; PTX ISA, "tcgen05.mma".
    """
    collective(g, "dot_scaled")
    if not isinstance(scale_layout, str) or scale_layout not in ("plain", "blocked"):
        raise g.error(f"scale_layout is 'plain' or 'blocked', not {scale_layout!r}")
    given = Given(a, scale_a, b, scale_b, acc, trans_a, trans_b, block, scale_layout)
    options: dict[str, Any] = {"variant": variant}
    if asked_variant(g, variant, names(VARIANTS)) in (None, "tcgen05"):
        instruction = instruction_for(g, given)
        if isinstance(instruction, tuple):
            return scaled_product(g, given, *instruction)
        options |= {"without_factors": instruction} if instruction is not None else {}
    a, b = _in_registers(g, "a", a), _in_registers(g, "b", b)
    if len(extents_of(a)) > 1 and len(extents_of(b)) > 1:
        matrix_shapes(g, a, b, trans_a, trans_b)
    a = times_factors(g, "a", a, scale_a, trans_a, block, scale_layout)
    b = times_factors(g, "b", b, scale_b, not trans_b, block, scale_layout)
    return multiply(g, a, b, acc, trans_a, trans_b, float32 if acc is None else None, None, options)


@dataclass(frozen=True)
class Given:
    """The arguments of a call."""

    a: Any
    scale_a: Any
    b: Any
    scale_b: Any
    acc: Any
    trans_a: Any
    trans_b: Any
    block: Any
    layout: str

    @property
    def factors(self) -> tuple[Any, Any]:
        return self.scale_a, self.scale_b


def instruction_for(g: Builder, given: Given) -> tuple[str, tuple[str, str], int] | str | None:
    """(kind, element types, size of a block) of the ``tcgen05.mma`` that takes the scale factors; a string that says
    why there is none. None on targets without, and for calls that the other path refuses."""
    matrices = given.a, given.b, *(s for s in given.factors if s is not None)
    if g.target not in KINDS["mxf8f6f4"].targets or not all(map(_is_readable, matrices)):
        return None
    if None in given.factors:
        return "needs scale factors of both operands"
    if not _by_warpgroups(g.scope):
        return "needs whole warpgroups as the scope, with indices known at compile time"
    a, b, scale_a, scale_b = map(element_type, matrices)
    types = _type_name(a), _type_name(b)
    if "" in types or not {scale_a, scale_b} <= DEFAULT_BLOCKS.keys():
        return None
    block = DEFAULT_BLOCKS[scale_a] if given.block is None else given.block
    named = default_kind(*types, True, a == b == float4_e2m1fn, block == 16 or scale_a == float8_e4m3fn)
    by_block = KINDS[named].scales if named is not None else None
    if named is None or by_block is None:
        return f"needs elements of 4, 6 or 8 bits: {a} by {b}"
    if scale_a != scale_b:
        return f"needs factors of one dtype: {scale_a} and {scale_b}"
    if block not in by_block or SCALES[scale_a.name] not in by_block[block][2]:
        return f"needs factors that kind::{named} has: {scale_a} for blocks of {block}"
    if missing := _missing_extents(given, named, block):
        return missing
    sums = given.acc is None or isinstance(type_of(given.acc), Tile) and element_type(given.acc) == float32
    return (named, types, block) if sums else None


def _type_name(dtype: DType) -> str:
    """The PTX name of an element type that tensor cores multiply, padded or not; "" for another."""
    return next((name for name, d in PADDED.items() if d.element == dtype.element), TYPES.get(dtype.name, ""))


def _is_readable(x: Any) -> bool:
    """Whether an operand is a register tile or lies in shared memory of this CTA."""
    t = type_of(x)
    if isinstance(t, (Buffer, Region)):
        buffer = t if isinstance(t, Buffer) else t.buffer
        return t.scope == "shared" and not buffer.peer
    return isinstance(t, Tile)


def _by_warpgroups(scope: ExecScope | None) -> bool:
    """Whether the scope consists of whole warpgroups, whose indices are known."""
    if scope is None or scope.kind not in ("cta", "warpgroup") or scope.threads % 128:
        return False
    while scope is not None:
        if not isinstance(scope.first, int):
            return False
        scope = scope.parent
    return True


def _shape(x: Value, turned: bool) -> tuple[int, int]:
    """The extents of a matrix in elements, [rows, k]; it is [k, rows] if it is `turned`."""
    first, last = extents_of(x) if isinstance(type_of(x), Tile) else shape_of(element_type(x), extents_of(x))
    return (last, first) if turned else (first, last)


def _missing_extents(given: Given, kind: str, block: int) -> str:
    """What the extents of a product, or the places of its operands, lack for instructions with scale factors; "" if
    they have all."""
    if any(len(extents_of(x)) != 2 for x in (given.a, given.b)):
        return "needs matrices: operands with batch dimensions"
    operands = (("a", given.a, given.trans_a), ("b", given.b, not given.trans_b))
    (m, k), (n, other) = (_shape(x, turned) for _, x, turned in operands)
    for name, x, turned in operands:
        dtype = element_type(x)
        as_read = not isinstance(type_of(x), Tile) and (dtype.padded or dtype.packed and KINDS[kind].k == 64)
        if as_read and turned:
            return f"needs elements of {dtype} that are contiguous along k: {name}"
    step = KINDS[kind].k
    if m % ROWS or m == 0:
        return f"needs a multiple of {ROWS} rows: {m}"
    if n % 16 or not 0 < n <= 256:
        return f"needs 16 to 256 columns in steps of 16: {n}"
    if k % step or k == 0:
        return f"needs a multiple of {step} elements along k: {k}"
    factors = [(rows, -(-k // block)) for rows in (m, n)]
    if k != other or given.layout == "plain" and factors != [extents_of(s) for s in given.factors]:
        return "needs operands and factors of the same extents"
    return ""


def scaled_product(g: Builder, given: Given, kind: str, types: tuple[str, str], block: int) -> Value:
    """The product by instructions that multiply by the factors."""
    operands, turned = [], []
    for x, flag, k_last in ((given.a, given.trans_a, False), (given.b, given.trans_b, True)):
        dtype = element_type(x)
        if not isinstance(type_of(x), Tile):
            x = whole_region(g, x)
            g.require_uniform("this dot_scaled", *g.definitions[x].args[1:])
            if dtype.packed and not dtype.padded:  # what instructions read padded goes through registers
                x = as_bytes(g, x) if KINDS[kind].k == 64 else load.function(g, x)
        if isinstance(type_of(x), Tile) and dtype.packed:
            x, flag = packed_bytes(g, x if flag == k_last else shapes.transpose.function(g, x, (1, 0))), k_last
        operands.append(x)
        turned.append(flag)
    (m, k), (n, _) = _shape(given.a, given.trans_a), _shape(given.b, not given.trans_b)
    factors = []
    for name, rows, scale in zip("ab", (m, n), given.factors):
        scale = _in_registers(g, f"scale_{name}", scale)
        factors.append(_from_units(g, name, scale, (rows, -(-k // block))) if given.layout == "blocked" else scale)
    result: Value = g.call(dot_, given.acc, *operands, *factors, trans_a=turned[0], trans_b=turned[1], dtype=float32,
                           precision=None, options={"variant": "tcgen05", "kind": kind, "types": types, "block": block})
    return result


def times_factors(g: Builder, name: str, x: Value, scale, k_first: bool, block: int | None, layout: str) -> Value:
    """Operand `name` times its factors, in bfloat16."""
    dtype, shape = element_type(x), extents_of(x)
    if len(shape) < 2:
        raise g.error(f"{name} is a matrix, or a batch of them, and not of shape {list(shape)}")
    narrow = dtype.is_float and dtype.bits <= 8 and dtype != float8_e8m0fnu
    if scale is None:
        if not narrow and dtype.name not in WIDE:
            raise g.error(f"{name} holds floats of 4 to 8 bits, or of 16 bits without factors, not {dtype}")
        return x if dtype.name in WIDE else as_value(convert(g, x, bfloat16))
    if not narrow:
        raise g.error(f"{name} with factors has floats of 4, 6 or 8 bits, not {dtype}")
    scale = _in_registers(g, f"scale_{name}", scale)
    block = _block_of(g, name, dtype, element_type(scale), block)
    *batch, rows, k = last_two_swapped(shape) if k_first else shape
    factors = as_value(convert(g, scale, float32))
    blocks = -(-k // block)
    if layout == "blocked":
        factors = _from_units(g, name, factors, (*batch, rows, blocks))
    if extents_of(factors) != (*batch, rows, blocks):
        raise g.error(f"scale_{name} is {[*batch, rows, blocks]}, a factor for each {block} elements along k of each "
                      f"{'row' if name == 'a' else 'column'} of {name}, not {list(extents_of(factors))}")
    factors = _spread_along_k(g, factors, k, block, k_first)
    # float32 products are exact, and two of them are rounded to bfloat16 by one instruction
    return as_value(convert(g, binary(g, "*", convert(g, x, float32), factors), bfloat16))


def _in_registers(g: Builder, name: str, x) -> Value:
    """A register tile, loaded if it is a matrix in shared memory."""
    t = type_of(x)
    if isinstance(t, (Buffer, Region)) and t.scope == "shared":
        return load.function(g, x)
    if not isinstance(t, Tile):
        hint = "; load it, or copy it to shared memory" if isinstance(t, (Buffer, Region)) else ""
        raise g.error(f"{name} is a register tile or lies in shared memory, not {describe(x)}{hint}")
    return x


def _block_of(g: Builder, name: str, dtype: DType, factors: DType, block: Any) -> int:
    """How many elements along k share a factor. CompilationError for factors or a size that no format has."""
    if factors not in DEFAULT_BLOCKS or factors == float8_e4m3fn and dtype != float4_e2m1fn:
        wanted = "float8_e8m0fnu" + (" or float8_e4m3fn" if dtype == float4_e2m1fn else "")
        raise g.error(f"the factors of {dtype} are {wanted}, and scale_{name} is {factors}")
    if block is None:
        return DEFAULT_BLOCKS[factors]
    if block not in (16, 32) or isinstance(block, bool):
        raise g.error(f"a factor is for a block of 16 or 32 elements, not {describe(block)}")
    return int(block)


def _from_units(g: Builder, name: str, factors: Value, shape: tuple[int, ...]) -> Value:
    """Factors in the blocked layout as [rows, blocks]."""
    *batch, rows, blocks = shape
    down, along = -(-rows // ROWS), -(-blocks // BLOCKS)
    if prod(extents_of(factors)) != prod(batch) * down * along * UNIT:
        raise g.error(f"scale_{name} in the blocked layout has {down} by {along} units of {UNIT} factors"
                      f"{f' for each of {prod(batch)} matrices' if batch else ''}, not {list(extents_of(factors))}")
    n = len(batch)
    units = shapes.reshape.function(g, factors, *batch, down, along, 32, BLOCKS, BLOCKS)
    axes = (*range(n), n, n + 3, n + 2, n + 1, n + 4)
    matrix = shapes.reshape.function(g, shapes.transpose.function(g, units, axes), *batch, down * ROWS, along * BLOCKS)
    cut = (*(slice(None) for _ in batch), slice(0, rows), slice(0, blocks))
    return slicing.index(g, matrix, cut)


def _spread_along_k(g: Builder, factors: Value, k: int, block: int, k_first: bool) -> Value:
    """A factor for each element: [rows, blocks] as [rows, k], or as [k, rows] with `k_first`."""
    n = len(extents_of(factors))
    if k_first:
        factors = shapes.transpose.function(g, factors, (*range(n - 2), n - 1, n - 2))
    axis = n - 1 if k_first else n  # of the elements of a block
    shape = extents_of(factors)
    each = shapes.broadcast_to.function(g, shapes.expand_dims.function(g, factors, axis),
                                        (*shape[:axis], block, *shape[axis:]))
    whole = shapes.reshape.function(g, each, *shape[:axis - 1], shape[axis - 1] * block, *shape[axis:])
    if shape[axis - 1] * block == k:
        return whole
    return slicing.index(g, whole, (*(slice(None) for _ in shape[:axis - 1]), slice(0, k)))


def last_two_swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return *shape[:-2], shape[-1], shape[-2]


__all__ = ["dot_scaled"]
