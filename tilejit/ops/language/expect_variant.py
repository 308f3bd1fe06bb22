"""``expect_variant``: blocks of a kernel whose calls must be lowered as a given variant."""

from __future__ import annotations

from ...ir.builder import Builder, describe
from ...ir.builtin import builtin
from ...ir.op import variant_names
from ...names import suggest_nearest


class ExpectVariant:
    """``with tile.expect_variant("tma"):`` inside a kernel. `holds` becomes true at the first call in the block that
    has this variant."""

    def __init__(self, name: str):
        self.name, self.holds = name, False

    def tile_enter(self, g: Builder) -> None:
        pass

    def tile_exit(self, g: Builder) -> None:
        if not self.holds:
            raise g.error(f"expect_variant({self.name!r}) has no effect: "
                          f"its block has no call that can be lowered as {self.name!r}")


@builtin
def expect_variant(g: Builder, name):
    """A block (``with``) in which every operation that has the variant `name` must be lowered as this variant;
    otherwise compilation fails.

    The operations are copies, prefetches and products. It is also an error if the block contains no such operation.
    Of nested blocks, the innermost applies.
    """
    if not isinstance(name, str):
        raise g.error(f"a variant is named by a string, not {describe(name)}")
    if name not in variant_names():
        raise g.error(f"nothing is lowered as {name!r}{suggest_nearest(name, variant_names())}; "
                      f"the variants are {', '.join(variant_names())}")
    return ExpectVariant(name)


def asked_variant(g: Builder, variant: str | None, names: tuple[str, ...]) -> str | None:
    """The variant that the call asks for, or the one of the innermost ``expect_variant`` block, if it is one of the
    operation's `names`.

    None if neither; an error if the two differ.
    """
    block = next((b for b in reversed(g.entered) if isinstance(b, ExpectVariant)), None)
    if block is None or block.name not in names:
        return variant
    if variant not in (None, block.name):
        raise g.error(f"the call asks for {variant!r}, and the expect_variant block around it for {block.name!r}: "
                      "remove one of them")
    block.holds = True
    return block.name


__all__ = ["ExpectVariant", "asked_variant", "expect_variant"]
