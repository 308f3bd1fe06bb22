"""From a kernel's Python source to its typed graph."""

from .captures import Capture
from .ranges import LoopRange, StaticRange, pipelined, range_, static_range
from .scopes import ScopeSpec, each_warpgroup, elect, thread, warp, warpgroup
from .source import Param, Source, constexpr
from .static import static_assert, static_print

LATE = ("Built", "ParamSpec", "build")  # loaded when something is compiled: a process that finds its kernels does not


def __getattr__(name: str):
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import building
    return getattr(building, name)


__all__ = ["Built", "Capture", "LoopRange", "Param", "ParamSpec", "ScopeSpec", "Source", "StaticRange", "build",
           "constexpr", "each_warpgroup", "elect", "pipelined", "range_", "static_assert", "static_print", "static_range", "thread", "warp", "warpgroup"]
