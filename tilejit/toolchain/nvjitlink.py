"""nvJitLink, the assembler of last resort.

It compiles PTX as relocatable code, and therefore ignores setmaxnreg (C7504).
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

from ..errors import ToolchainError
from . import pathfinder
from .packages import package

_WHEELS = ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12")
_PTX = 2  # nvJitLinkInputType


def locate() -> Path | None:
    """The library of the wheel, of CUDA_HOME, or that cuda.pathfinder finds; None if there is none."""
    for wheel in _WHEELS:
        found = package(wheel)
        for name in ("libnvJitLink.so.13", "libnvJitLink.so.12"):
            path = found.file(name) if found else None
            if path is not None:
                return path
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    for folder in ("lib64", "lib") if home else ():
        for path in sorted(Path(home or "", folder).glob("libnvJitLink.so.*")):
            return path
    return pathfinder.library("nvJitLink")


@lru_cache(maxsize=4)
def _library(path: str):
    """A function that calls nvJitLink<name>; exported symbols have the version that introduced them as a suffix."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ToolchainError(f"nvJitLink could not be loaded from {path}: {error}") from None
    for suffix in ("_13_0", "_12_0", ""):
        if hasattr(library, f"__nvJitLinkCreate{suffix}"):
            break
    else:
        raise ToolchainError(f"{path} has none of the nvJitLink interfaces of CUDA 12 and 13")

    def call(name: str, *arguments) -> int:
        return getattr(library, f"__nvJitLink{name}{suffix}")(*arguments)

    return call


def run(path: str, ptx: str, target: str, line_info: bool, options: tuple[str, ...]) -> tuple[int, bytes, str]:
    """(result code, 0 for success; cubin; log) of linking one PTX text; `options` are ptxas' own."""
    call = _library(path)
    flags = [f"-arch={target}", "-verbose", *(f"-Xptxas={option}" for option in options)]
    if line_info:
        flags.append("-lineinfo")
    encoded = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    handle = ctypes.c_void_p()
    code = call("Create", ctypes.byref(handle), ctypes.c_uint32(len(flags)), encoded)
    if code:
        return code, b"", f"error: nvJitLink refused the options {' '.join(flags)}"
    try:
        text = ptx.encode()
        code = call("AddData", handle, ctypes.c_int(_PTX), text, ctypes.c_size_t(len(text)), b"kernel")
        code = code or call("Complete", handle)
        log = _log(call, handle, "InfoLog") + _log(call, handle, "ErrorLog")
        if code:
            return code, b"", log
        size = ctypes.c_size_t()
        code = call("GetLinkedCubinSize", handle, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        code = code or call("GetLinkedCubin", handle, cubin)
        return code, cubin.raw, log
    finally:
        call("Destroy", ctypes.byref(handle))


def _log(call, handle, name: str) -> str:
    size = ctypes.c_size_t()
    if call(f"Get{name}Size", handle, ctypes.byref(size)) or size.value == 0:
        return ""
    text = ctypes.create_string_buffer(size.value)
    call(f"Get{name}", handle, text)
    return text.value.decode(errors="replace")
