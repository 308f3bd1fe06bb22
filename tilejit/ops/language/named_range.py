"""``named_range``: parts of a kernel whose time ``tile.profile`` measures."""

from __future__ import annotations

from ...ir.builder import Builder, describe
from ...ir.builtin import builtin
from ...ir.op import op


@op("syncs", attrs=("range_name", "begins"))  # stays where it is among accesses to memory
def range_mark(range_name, begins):
    """The beginning or the end of a named range."""


@range_mark.infer
def _(g, range_name, begins):
    return ()


@range_mark.simulate
def _(m, call):
    m.mark_range(call.attrs["range_name"], call.attrs["begins"])


@range_mark.emit
def _(e, call):
    e.ranges.mark(call.attrs["range_name"], call.attrs["begins"])


class NamedRange:
    """``with tile.named_range("load"):`` inside a kernel."""

    def __init__(self, name: str):
        self.name = name

    def tile_enter(self, g: Builder) -> None:
        if g.launch.profile:
            g.call(range_mark, range_name=self.name, begins=True)

    def tile_exit(self, g: Builder) -> None:
        if g.launch.profile:
            g.call(range_mark, range_name=self.name, begins=False)


@builtin
def named_range(g: Builder, name):
    """A block (``with``) whose time `tile.profile` measures, under a name: a string that is known while compiling.

    Each warp of the surrounding scope, or its one thread, notes the time of the GPU's clock when it enters the block
    and when it leaves it. Ranges may be nested and may stand in loops and branches. In a launch that is not profiled,
    they are no code. Instructions that are only issued, such as asynchronous copies, count until they are issued; a
    load counts until then too, unless its value is used in the block.
    """
    if not isinstance(name, str) or not name:
        found = "an empty one" if name == "" else describe(name)
        raise g.error(f"named_range takes the name of the range, a string such as \"load\", not {found}")
    return NamedRange(name)


__all__ = ["NamedRange", "named_range", "range_mark"]
