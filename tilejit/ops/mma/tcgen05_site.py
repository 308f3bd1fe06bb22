"""The site of a tcgen05 product, on which its needs are tested: the operands, the execution scope, the target."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...dispatch import Site
from ...dtypes import float4_e2m1fn, uint8
from ...ir.builder import type_as
from ...types import Region
from ..moves.copy_async.site import alignment
from ..tmem.alloc import allocation
from .tcgen05_kinds import KINDS


def elements_of(t: Region, kind: str | None) -> Region:
    """The type of an operand, whose packed elements of 4 bits a `dot` gives as bytes."""
    packed = kind is not None and KINDS[kind].k == 64 and t.dtype == uint8
    return replace(t, buffer=replace(t.buffer, dtype=float4_e2m1fn)) if packed else t


@dataclass(frozen=True)
class TensorSite(Site):
    """One product, ``acc[m, n] (+)= a[m, k] @ b[k, n]``, with the operands of this CTA.

    The last dimension of regions of packed elements counts bytes, as everywhere. With `negate`, the product is
    subtracted. `starts` and `aligned` map the names of operands to their regions' starts and to the alignment of
    shared buffers in bytes.
    """

    acc: Region
    a: Region
    b: Region
    scales: tuple[Region | None, Region | None]
    starts: dict = field(hash=False)
    trans_a: bool
    trans_b: bool
    kind: str | None
    types: tuple[str, str]
    block: int | None
    scope: str
    threads: int
    target: str
    cta_group: int
    aligned: dict = field(hash=False)
    g: Any = field(repr=False, hash=False, compare=False)
    negate: bool = False

    @staticmethod
    def of_call(g, call) -> TensorSite:
        acc, a, b, _, *scales = call.args
        t = call.attrs
        regions = {"acc": acc, "a": a, "b": b} | {f"scale{i}": s for i, s in enumerate(scales) if s is not None}
        made = {name: g.definition(x) for name, x in regions.items()}
        group = allocation(g.definitions, made["acc"].args[0]).attrs["cta_group"]
        scale_a, scale_b = (type_as(s, Region) if s is not None else None for s in (*scales, None, None)[:2])
        x, y = (elements_of(type_as(v, Region), t["kind"]) for v in (a, b))
        return TensorSite(acc.type, x, y, (scale_a, scale_b), {n: c.args[1:] for n, c in made.items()},
                          t["trans_a"], t["trans_b"], t["kind"], t["types"], t["block"], g.scope.kind, g.scope.threads,
                          g.target, group,
                          {n: alignment(g, c) for n, c in made.items() if c.result.type.scope == "shared"}, g,
                          t["options"].get("negate", False))

    def __str__(self) -> str:
        return (f"{self.types[0]}[{self.m}, {self.k}] in {self.a.scope} memory by {self.types[1]}[{self.k}, "
                f"{self.n}] to {self.acc.dtype}[{self.m}, {self.columns}] in tensor memory, kind::{self.kind}, "
                f"cta_group {self.cta_group}, by one {self.scope} of {self.threads} "
                f"thread{'s' if self.threads != 1 else ''}, for {self.target}")

    @property
    def m(self) -> int:
        return self.a.shape[1 if self.trans_a else 0]

    @property
    def k_bytes(self) -> int:
        return self.a.shape[0 if self.trans_a else 1] * self.a.dtype.nbytes

    @property
    def k(self) -> int:
        assert self.kind is not None
        return self.k_bytes * 2 if KINDS[self.kind].k == 64 else self.k_bytes // self.a.dtype.nbytes

    @property
    def n(self) -> int:
        return self.b.shape[0 if self.trans_b else 1]

    @property
    def columns(self) -> int:
        """The columns of the whole product: those of B in both CTAs of a pair."""
        return self.n * self.cta_group

    @property
    def rows(self) -> int:
        """The rows of the whole product, in both CTAs of a pair."""
        return self.m * self.cta_group
