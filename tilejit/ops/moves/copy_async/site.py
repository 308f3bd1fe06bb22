"""The site of a copy: the facts on which the needs of its variants are tested.

They are both regions, the scope, the target and the options.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ....concurrency import cached_property
from ....config import architecture
from ....dispatch import Need, Site
from ....types import Patches, Region, Rows
from .options import SELECTIVE

SM90 = Need("sm_90 or later", lambda s: s.architecture() >= 90 or s.target)
OWN_MEMORY = Need("the CTA's own shared memory",
                  lambda s: not (s.dst.buffer.peer or s.src.buffer.peer) or "the shared memory of a peer", gate=True)


@dataclass(frozen=True)
class CopySite(Site):
    """One call of copy or copy_async. `g` answers facts about arguments, and divisors and bounds of the starts.

    `partial` names the condition on which the threads of the scope diverge, None if all take part. With `planning`,
    the question is asked without a kernel (``tile.plan_copy``), and a barrier may be left out. `base_offset` is the
    offset of an array's element (0, ..., 0) from its pointer, in elements. `dst_align` and `src_align` are the
    alignments of shared buffers, in bytes.
    """

    dst: Region
    src: Region
    dst_starts: tuple
    src_starts: tuple
    scope: str
    threads: int
    partial: str | None
    mbar: Any
    target: str
    options: dict = field(hash=False)
    g: Any = field(repr=False, hash=False, compare=False)
    planning: bool = False
    base_offset: int = 0
    dst_align: int = 128
    src_align: int = 128
    dst_buffer: Any = field(default=None, repr=False, hash=False, compare=False)

    selective = SELECTIVE

    @staticmethod
    def of_call(g, call) -> CopySite:
        dst, src, *rest = call.args
        made = g.definition(dst), g.definition(src)
        return CopySite(dst.type, src.type, made[0].args[1:], made[1].args[1:], g.scope.kind, g.scope.threads,
                        call.attrs.get("partial"), rest[0] if rest else None, g.target, call.attrs.get("options") or {},
                        g, dst_align=alignment(g, made[0]), src_align=alignment(g, made[1]), dst_buffer=made[0].args[0])

    def __str__(self) -> str:
        return (f"{self.src} to {self.dst}, by one {self.scope} of {self.threads} "
                f"thread{'s' if self.threads != 1 else ''}, for {self.target}")

    @cached_property
    def place(self) -> str:
        """What is copied: boxes of a "map" that the kernel names, selected "rows" or "patches", or a "region"."""
        if any(getattr(side.buffer, "map", None) is not None for side in (self.dst, self.src)):
            return "map"
        for kind, place in ((Rows, "rows"), (Patches, "patches")):
            if isinstance(self.dst, kind) or isinstance(self.src, kind):
                return place
        return "region"

    def one_dtype(self) -> bool | str:
        return self.src.dtype == self.dst.dtype or f"{self.src.dtype} to {self.dst.dtype}, which only tma pads"

    @property
    def scopes(self) -> tuple[str, str]:
        return self.src.scope, self.dst.scope

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The extents other than 1, the same on both sides."""
        return tuple(n for n in self.src.extents if n != 1)

    @cached_property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.src.dtype.nbytes

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def by_token(self) -> bool:
        """Whether the call's token is used: then the compiler provides the barrier and elects the issuing thread."""
        return bool(self.options.get("token"))

    @property
    def partial_reason(self) -> str:
        """The reason to report if not all threads of the scope take part."""
        return f"the condition on {self.partial} differs between the threads of the {self.scope}"

    @property
    def array(self) -> Region:
        """The side in global memory (the source if both are)."""
        return self.src if self.src.scope == "global" else self.dst

    @property
    def shared_side(self) -> Region:
        """The side in shared memory (the destination if both are)."""
        return self.dst if self.dst.scope == "shared" else self.src

    @property
    def shared_align(self) -> int:
        return self.dst_align if self.shared_side is self.dst else self.src_align

    def starts(self, region: Region) -> tuple:
        return self.dst_starts if region is self.dst else self.src_starts

    def dims(self, region: Region) -> tuple[int, ...]:
        """The buffer's dimensions along which the region's extent is not 1, in order: those of `shape`."""
        return tuple(d for d, n in enumerate(region.extents) if n != 1)

    def architecture(self) -> int:
        """The target's number: 80, 90, 100, 103, 120."""
        return architecture(self.target)

    def without_recording(self) -> AbstractContextManager[Any]:
        return self.g.facts.without_recording()


def finds(search):
    """The test of a need that holds if `search(site)` succeeds. A search that fails returns the reason as a string."""
    def test(site: CopySite) -> bool | str:
        found = search(site)
        return found if isinstance(found, str) else True
    return test


def alignment(g, region) -> int:
    """The alignment in bytes of the buffer behind a region (given by its defining call),
    from the buffer's allocation."""
    call = region
    while call is not None and "align" not in call.attrs:
        buffer = call.args[0] if call.args else None
        call = g.definitions.get(buffer) if buffer is not None else None
    return (call.attrs["align"] if call is not None else None) or 128
