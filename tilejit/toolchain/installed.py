"""What identifies the tools in cache keys, from the names of installed packages and the times of files.

A process that finds all its kernels in the cache asks only this of the tools: it loads none, runs none, and does not
load ``importlib.metadata`` either, which takes longer than everything else on that way.
"""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache

from tilejit.config import config
from tilejit.errors import ToolchainError

_ASSEMBLERS = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")
_PTXAS = ("nvidia/cu13/bin/ptxas", "nvidia/cuda_nvcc/bin/ptxas")
_LIBDEVICE = ("nvidia/cu13/nvvm/libdevice/libdevice.10.bc", "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc")
_INFORMATION = re.compile(r"([A-Za-z0-9_.]+)-([^-]+)\.(?:dist|egg)-info")


def tools() -> str:
    """A text that changes when LLVM, libdevice or the assembler does."""
    packages, where = _packages(tuple(sys.path))
    wheel = next((name for name in _ASSEMBLERS if name in packages), None)
    usual = not config().ptxas and "llvmlite" in packages and wheel is not None
    if usual and _holds(where, _PTXAS, os.X_OK) and _holds(where, _LIBDEVICE, os.R_OK):
        return ", ".join(f"{name} {packages.get(name, '')}" for name in ("llvmlite", wheel, "nvidia-nvvm"))
    return _asked()


@lru_cache(maxsize=4)
def _packages(folders: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """{package: version} of what is installed, the first on the path first; and the folders that hold any."""
    found: dict[str, str] = {}
    where: dict[str, None] = {}
    for folder in folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            match = _INFORMATION.fullmatch(name)
            if match:
                where[folder or "."] = None
                found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
    return found, tuple(where)


def _holds(folders: tuple[str, ...], files: tuple[str, ...], mode: int) -> bool:
    return any(os.access(os.path.join(folder, file), mode) for folder in folders for file in files)


def _asked() -> str:
    """The same from the tools' own modules, which know every place where a tool may be."""
    from tilejit.toolchain import assembler, libdevice, llvm

    parts = [f"llvmlite {llvm.version()}"]
    for find in (assembler.fingerprint, lambda: libdevice.locate()[1]):
        try:
            parts.append(find())
        except ToolchainError:
            parts.append("none")
    return ", ".join(parts)
