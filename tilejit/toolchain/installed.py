"""The identity of the tools for cache keys, from installed packages and file times.

A process that finds all its kernels in the cache needs only this of the tools. It loads none of their modules and runs
nothing."""

from __future__ import annotations

import os
import sys
from functools import lru_cache

from ..config import config
from ..errors import ToolchainError
from ..lazy import Lazy
from .packages import Package, package

# loaded only if a tool is in an unusual place
_assembler = Lazy("tilejit.toolchain.assembler")
_libdevice = Lazy("tilejit.toolchain.libdevice")
_llvm = Lazy("tilejit.toolchain.llvm")

_ASSEMBLERS = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")
_LIBDEVICES = ("nvidia-nvvm", *_ASSEMBLERS)


def tools() -> str:
    """A text that changes if LLVM, libdevice or the assembler does."""
    wheels = None if config().ptxas else _wheels(tuple(sys.path))
    return wheels or _ask_modules()


@lru_cache(maxsize=4)
def _wheels(path: tuple[str, ...]) -> str | None:
    """The versions of the packages that contain the tools; None if a tool does not come from a package."""
    llvm = package("llvmlite")
    assembler = _holder(_ASSEMBLERS, "ptxas", os.X_OK)
    libdevice = _holder(_LIBDEVICES, "libdevice.10.bc", os.R_OK)
    found = [p for p in (llvm, assembler, libdevice) if p is not None]
    return None if len(found) < 3 else ", ".join(f"{p.name} {p.version}" for p in found)


def _holder(names: tuple[str, ...], file: str, mode: int) -> Package | None:
    for name in names:
        found = package(name)
        place = found.file(file) if found is not None else None
        if place is not None and os.access(place, mode):
            return found
    return None


def _ask_modules() -> str:
    """The same from the tools' own modules, which know all places where a tool may be."""
    parts = [f"llvmlite {_llvm.version()}"]
    for find in (_assembler.fingerprint, lambda: _libdevice.locate()[1]):
        try:
            parts.append(find())
        except ToolchainError:
            parts.append("none")
    return ", ".join(parts)
