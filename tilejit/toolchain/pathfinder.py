"""Tools of the CUDA toolkit that cuda.pathfinder finds: in environments of conda, and where else NVIDIA installs them.

It is asked last, where neither a setting nor a wheel nor CUDA_HOME nor PATH has a tool: loading it takes 0.05 s."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..lazy import Lazy

pathfinder = Lazy("cuda.pathfinder")


def program(name: str) -> str | None:
    """The path of a program of the toolkit, such as "ptxas"; None if it is not found."""
    return _ask("find_nvidia_binary_utility", name)


def libdevice() -> Path | None:
    """The path of libdevice.10.bc, or None."""
    path = _ask("find_bitcode_lib", "device")
    return None if path is None else Path(path)


def library(name: str) -> Path | None:
    """The path of a library, such as "nvJitLink", which is loaded; None if it is not found. "cuda" is the driver's."""
    found = _ask("load_nvidia_dynamic_lib", name)
    return None if found is None else Path(found.abs_path or name)


@lru_cache(maxsize=16)
def _ask(function: str, name: str) -> Any:
    """What a function of cuda.pathfinder returns; None where it fails, is missing, or the package is."""
    with suppress(ImportError, AttributeError, RuntimeError, ValueError):
        return getattr(pathfinder, function)(name)
    return None
