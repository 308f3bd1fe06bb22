"""The site of a matrix product: the facts on which the needs of its variants are tested.

They are the operands, the execution scope and the target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...dispatch import Site
from ...dtypes import DType, count_elements, float32, uint8
from ...ir.builder import Builder, describe, element_type, extents_of, type_of
from ...ir.graph import Call, Operand, Value
from ...types import Region, Tile
from ..moves.copy_async.site import alignment
from .tcgen05_kinds import KINDS, PADDED


@dataclass(frozen=True)
class Factors:
    """The scale factors of a product, [rows, blocks] of a and of b, for blocks of `block` elements along k. Elements of
    `types` are multiplied by instructions of a `kind` (`tcgen05_kinds.KINDS`)."""

    kind: str
    types: tuple[str, str]
    block: int
    dtype: DType


def types_as_multiplied(call: Call) -> tuple[Tile | Region, Tile | Region]:
    """The types of the operands of a `dot` as its instructions read them (`as_multiplied`)."""
    options = call.attrs["options"]
    a, b = (as_multiplied(x, options, n) for n, x in enumerate(call.args[1:3]))
    return a, b


def as_multiplied(x: Operand, options: dict[str, Any], n: int) -> Tile | Region:
    """The type of operand `n` of a `dot` with these options as its instructions read it: bytes in which elements are
    packed are padded elements to those with scale factors, unless both operands have 4 bits."""
    t = type_of(x)
    assert isinstance(t, (Tile, Region))
    if "kind" not in options or t.dtype != uint8 or KINDS[options["kind"]].k == 64:
        return t
    dtype = PADDED[options["types"][n]]
    return Tile(dtype, (*t.shape[:-1], count_elements(dtype.element, t.shape[-1])))


@dataclass(frozen=True)
class MmaSite(Site):
    """One call of dot or mma_async: ``acc[m, n] (+)= a[m, k] @ b[k, n]``.

    `a` and `b` are types of tiles or regions, given as [k, m] with `trans_a` and as [n, k] with `trans_b`. With
    `negate`, the product is subtracted. A thread may have `registers`. `g` answers divisors and bounds of the starts.
    """

    a: Tile | Region
    b: Tile | Region
    a_starts: tuple
    b_starts: tuple
    trans_a: bool
    trans_b: bool
    dtype: DType
    precision: str | None
    scope: str
    threads: int
    target: str
    negate: bool = False
    a_align: int = 128
    b_align: int = 128
    registers: int = 256
    factors: Factors | None = None
    g: Any = field(default=None, repr=False, hash=False, compare=False)

    @staticmethod
    def of_call(g, call) -> MmaSite:
        _, a, b = call.args[:3]
        made = [g.definition(x) if isinstance(type_of(x), Region) else None for x in (a, b)]
        a_starts, b_starts = (c.args[1:] if c is not None else () for c in made)
        a_align, b_align = (alignment(g, c) if c is not None else 0 for c in made)
        a_type, b_type, t = type_of(a), type_of(b), call.attrs
        assert isinstance(a_type, (Tile, Region)) and isinstance(b_type, (Tile, Region))
        factors = None
        if "kind" in t["options"]:
            kind, types, block = (t["options"][name] for name in ("kind", "types", "block"))
            factors = Factors(kind, types, block, element_type(call.args[3]))
            a_type, b_type = types_as_multiplied(call)
        return MmaSite(a_type, b_type, a_starts, b_starts, t["trans_a"], t["trans_b"], t["dtype"], t["precision"],
                       g.scope.kind, g.scope.threads, g.target, t["options"].get("negate", False), a_align, b_align,
                       g.registers, factors, g)

    def __str__(self) -> str:
        return (f"{self.a.dtype}[{self.m}, {self.k}] in {_name_memory(self.a)} by {self.b.dtype}[{self.k}, "
                f"{self.n}] in {_name_memory(self.b)} to {self.dtype}, by one {self.scope} of {self.threads} threads, "
                f"for {self.target}")

    @property
    def m(self) -> int:
        return self.a.shape[1 if self.trans_a else 0]

    @property
    def k(self) -> int:
        return self.a.shape[0 if self.trans_a else 1]

    @property
    def n(self) -> int:
        return self.b.shape[0 if self.trans_b else 1]

    @property
    def warpgroups(self) -> int:
        return self.threads // 128

    @property
    def warpgroup_scope(self) -> bool:
        """Whether the scope consists of whole warpgroups."""
        return self.scope in ("cta", "warpgroup") and self.threads % 128 == 0


def checked_options(g: Builder, acc, a: Value, b: Value, dtype: DType, precision, trans_a, trans_b) -> None:
    """CompilationError for an accumulator or an option that no product into registers accepts."""
    if acc is not None and (not isinstance(type_of(acc), Tile) or acc.type.dtype != dtype):
        raise g.error(f"the accumulator is a tile of {dtype}, or None, not {describe(acc)}")
    checked_precision(g, precision, a, b)
    for name, flag in (("trans_a", trans_a), ("trans_b", trans_b)):
        if not isinstance(flag, bool):
            raise g.error(f"{name} is True or False, known at compile time, not {describe(flag)}")


def checked_precision(g: Builder, precision, a: Value, b: Value) -> None:
    """CompilationError for an unknown precision, or one that does not apply to the dtypes of the operands."""
    if precision not in (None, "tf32"):
        raise g.error(f"precision is None or 'tf32', not {precision!r}")
    for name, x in (("a", a), ("b", b)):
        if precision is not None and element_type(x) != float32:
            raise g.error("precision='tf32' rounds operands of float32 to 10 bits of mantissa, "
                          f"and {name} is {element_type(x)}: leave it out")


def product_shape(g: Builder, acc: Value | None, a: Value, b: Value, trans_a: bool,
                  trans_b: bool) -> tuple[int, int, int]:
    """(m, n, k) of ``acc + a @ b``. CompilationError if the shapes do not match."""
    m, k = extents_of(a)[::-1] if trans_a else extents_of(a)
    k2, n = extents_of(b)[::-1] if trans_b else extents_of(b)
    if k != k2:
        raise g.error(f"a is [{m}, {k}] and b is [{k2}, {n}]: their k differ (trans_a=True takes a as [k, m], "
                      "trans_b=True takes b as [n, k])")
    if acc is not None and extents_of(acc) != (m, n):
        raise g.error(f"a is [{m}, {k}] and b is [{k}, {n}], so the accumulator is [{m}, {n}], "
                      f"not {list(extents_of(acc))}")
    return m, n, k


def _name_memory(x: Tile | Region) -> str:
    return "registers" if isinstance(x, Tile) else f"{x.scope} memory"


def bare(form, bound: dict) -> str:
    """The text of an instruction for use within a larger asm statement; `bound` names its operands, whose `$n` refer
    to that statement."""
    def escape(x):
        if isinstance(x, list):
            return [escape(v) for v in x]
        return x.replace("$", "@@") if isinstance(x, str) else x

    return form.asm_text({k: escape(x) for k, x in bound.items()}).replace("@@", "$")
