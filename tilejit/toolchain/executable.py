"""Loads machine code into executable memory, without LLVM."""

from __future__ import annotations

import ctypes
import mmap
import platform

from ..errors import ToolchainError

_kept: list = []  # the memory of loaded code, which is never freed


def load(code: bytes) -> int:
    """Copy `code` (position-independent, for this host) to executable memory; returns its address.

    Raises ToolchainError if the system forbids making written memory executable."""
    size = -(-len(code) // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
        memory.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        # The pages are new, so the operating system makes the instruction cache coherent when they become
        # executable, also on aarch64.
        failed = libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size),
                               ctypes.c_int(mmap.PROT_READ | mmap.PROT_EXEC))
    except (OSError, ValueError) as error:
        raise ToolchainError(f"no memory for native code: {error}") from None
    if failed:
        raise ToolchainError(f"the system forbids executable memory (errno {ctypes.get_errno()})")
    _flush(address, len(code))
    _kept.append(memory)
    return address


def _flush(address: int, size: int) -> None:
    """Synchronise aarch64's instruction cache, if libgcc's helper is available."""
    if platform.machine() != "aarch64":
        return
    try:
        clear = ctypes.CDLL("libgcc_s.so.1").__clear_cache
    except (OSError, AttributeError):
        return
    clear(ctypes.c_void_p(address), ctypes.c_void_p(address + size))
