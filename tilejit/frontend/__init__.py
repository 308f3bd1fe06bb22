"""From a kernel's Python source to its typed graph."""

from .build import Built, ParamSpec, build
from .captures import Capture
from .ranges import LoopRange, StaticRange, range_, static_range
from .scopes import ScopeSpec, elect, thread, warp, warpgroup
from .source import Param, Source, constexpr
from .static import static_assert, static_print

__all__ = ["Built", "Capture", "LoopRange", "Param", "ParamSpec", "ScopeSpec", "Source", "StaticRange", "build",
           "constexpr", "elect", "range_", "static_assert", "static_print", "static_range", "thread", "warp", "warpgroup"]
