"""libdevice's math functions as small LLVM bitcode modules, one per function.

Linking the whole library costs 45 ms per kernel, a single function with its callees 1 ms. So each function is extracted
once and kept in the cache folder."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

from ..config import config
from ..errors import CacheError, ToolchainError
from . import pathfinder
from .files import read_sealed, write_sealed
from .packages import package

_WHEELS = ("nvidia-nvvm", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")
_CALL = re.compile(r"@(__nv_[A-Za-z0-9_]+)")


def called_by(ir: str) -> list[str]:
    """The libdevice functions that LLVM IR text names, sorted."""
    return sorted(set(_CALL.findall(ir))) if "@__nv_" in ir else []


@cache
def _locate(home: str) -> tuple[Path, str]:
    for wheel in _WHEELS:
        found = package(wheel)
        path = found.file("libdevice.10.bc") if found else None
        if found is not None and path is not None:
            return path, f"{wheel} {found.version}"
    places = [Path(home) / "nvvm" / "libdevice" / "libdevice.10.bc"] if home else []
    for path in (p for found in (lambda: places, lambda: [pathfinder.libdevice()]) for p in found()):
        if path is not None and path.is_file():
            status = path.stat()
            return path, f"{path} {status.st_size} {status.st_mtime_ns}"
    raise ToolchainError(
        "libdevice.10.bc was not found; it comes with the package nvidia-cuda-nvcc "
        "(pip install nvidia-cuda-nvcc), or with the CUDA toolkit that CUDA_HOME names")


def locate() -> tuple[Path, str]:
    """The path of libdevice, and a text that changes if the file does. ToolchainError if there is none."""
    return _locate(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "")


_memory: dict[tuple[str, str], bytes] = {}


def function_bitcode(name: str, cut, maker: str) -> bytes:
    """Bitcode in which `name` is the only visible definition; ``cut(library, name)`` makes it on the first use.

    `maker` is the version of llvmlite that makes it: bitcode that another version has left in the
    cache folder is not read.

    Raises ToolchainError if libdevice has no such function."""
    path, version = locate()
    known = _memory.get((version, name))
    if known is not None:
        return known
    stored, data = _place(f"{version} llvmlite {maker}", name), None
    if stored is not None:
        with suppress(OSError):
            data = read_sealed(stored, config().cache_path)
    if data is None:
        data = cut(path.read_bytes(), name)
        if stored is not None:
            with suppress(OSError):  # an unwritable cache costs 40 ms per process here; the kernels' store warns of it
                write_sealed(stored, data, config().cache_path)
    _memory[version, name] = data
    return data


def _place(made_by: str, name: str) -> Path | None:
    """The file of a function in the cache, in the same layout as the kernels' store; None if there is no cache."""
    settings = config()
    digest = hashlib.blake2b(made_by.encode(), digest_size=6).hexdigest()
    with suppress(CacheError):
        return None if settings.no_cache else settings.cache_path / "libdevice" / digest[:2] / f"{digest}{name}"
    return None
