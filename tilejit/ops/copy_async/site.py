"""What a copy's variants are asked about: both regions, the execution scope, the target and the call's options."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...types import Buffer, Region, Sym


@dataclass(frozen=True)
class CopySite:
    """One call of copy or copy_async. `g` answers facts, divisors and bounds of the starts."""

    dst: Region
    src: Region
    dst_starts: tuple
    src_starts: tuple
    scope: str
    threads: int
    partial: bool
    mbar: Any
    target: str
    options: dict = field(hash=False)
    g: Any = field(repr=False, hash=False, compare=False)

    @staticmethod
    def of_call(g, call) -> "CopySite":
        dst, src, mbar = call.args
        return CopySite(dst.type, src.type, g.definition(dst).args[1:], g.definition(src).args[1:], g.scope.kind, g.scope.threads,
                        g.scope.partial is not None, mbar, g.target, call.attrs["options"], g)

    def __str__(self) -> str:
        return f"{self.src} to {self.dst}, by one {self.scope} of {self.threads} thread{'s' if self.threads != 1 else ''}, for {self.target}"

    @property
    def scopes(self) -> tuple[str, str]:
        return self.src.scope, self.dst.scope

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The extents other than 1, the same on both sides."""
        return tuple(n for n in self.src.extents if n != 1)

    @cached_property
    def elements(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def itemsize(self) -> int:
        return self.src.dtype.nbytes

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    def dims(self, region: Region) -> tuple[int, ...]:
        """The buffer's dimensions that carry the extents of `shape`, in order."""
        return tuple(d for d, n in enumerate(region.extents) if n != 1)

    def architecture(self) -> int:
        """The target's number: 80, 90, 100, 103, 120."""
        return int("".join(c for c in self.target if c.isdigit()))


def provably(g, fact: tuple, value: int | Sym, multiple: int) -> bool:
    """Whether a size or stride is a multiple of `multiple`: a constant is computed, a Sym is asked of the launch."""
    return value % multiple == 0 if isinstance(value, int) else g.facts.ask(fact[0], value.arg, value.dim, multiple)


__all__ = ["Buffer", "CopySite", "provably"]
