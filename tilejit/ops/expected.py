"""``expect_variant``: blocks of code whose calls are held to one way to be lowered."""

from __future__ import annotations

from ..ir.builder import Builder, describe
from ..ir.builtin import builtin
from ..ir.op import variant_names
from ..names import nearest


class ExpectVariant:
    """``with tile.expect_variant("tma"):`` inside a kernel; `holds` says whether a call in it was one that it holds."""

    def __init__(self, name: str):
        self.name, self.holds = name, False

    def tile_enter(self, g: Builder) -> None:
        pass

    def tile_exit(self, g: Builder) -> None:
        if not self.holds:
            raise g.error(f"expect_variant({self.name!r}) has no effect: its block has no call that can be lowered as {self.name!r}")


@builtin
def expect_variant(g: Builder, name):
    """A block in which every call that can be lowered as the variant `name`, a copy, a prefetch or a product, must be; a compile error
    otherwise, and where there is no such call. Of blocks in blocks the innermost counts."""
    if not isinstance(name, str):
        raise g.error(f"a variant is named by a string, not {describe(name)}")
    if name not in variant_names():
        raise g.error(f"nothing is lowered as {name!r}{nearest(name, variant_names())}; the variants are {', '.join(variant_names())}")
    return ExpectVariant(name)


def asked_variant(g: Builder, variant: str | None, names: tuple[str, ...]) -> str | None:
    """The variant that the call names, or that an ``expect_variant`` block around it does, if it is one of this operation's."""
    block = next((b for b in reversed(g.entered) if isinstance(b, ExpectVariant)), None)
    if block is None or block.name not in names:
        return variant
    if variant not in (None, block.name):
        raise g.error(f"the call asks for {variant!r}, and the expect_variant block around it for {block.name!r}: remove one of them")
    block.holds = True
    return block.name


__all__ = ["ExpectVariant", "asked_variant", "expect_variant"]
