"""From a kernel's Python source to its typed graph."""

from typing import TYPE_CHECKING, Any

from ..lazy import Lazy
from .captures import Capture
from .source import Array, Param, Source, constexpr

if TYPE_CHECKING:
    from .building import Built, ParamSpec, build

# loaded only to compile: a process that finds its kernels in the cache does not need them
LATE = ("Built", "ParamSpec", "build")
_building = Lazy("tilejit.frontend.building")


def __getattr__(name: str) -> Any:
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_building, name)


__all__ = ["Array", "Built", "Capture", "Param", "ParamSpec", "Source", "build", "constexpr"]
