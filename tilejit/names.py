"""Names: suggestions for those that do not exist, and what tells an instruction's without loading the instruction table."""

from __future__ import annotations

import re
import sys


def nearest(name: str, names) -> str:
    """`` (did you mean 'x'?)`` for the closest of `names`, or nothing."""
    from difflib import get_close_matches
    close = get_close_matches(name, list(names), n=1) if isinstance(name, str) else ()
    return f" (did you mean {close[0]!r}?)" if close else ""


def misspelt(given, names) -> str:
    """The closest of `names` to the first keyword of `given` that is none of them, or nothing."""
    unknown = next((name for name in given if name not in names), None)
    return nearest(unknown, names) if unknown is not None else ""


# What the emitter calls what stands beside a kernel, libdevice's functions, and what is no name of PTX (PTX ISA, "Identifiers").
_TAKEN = re.compile(r"_|smem|text\d+|vprintf|__nv_\w*|WARP_SZ")


def entry_name(kernel: str) -> str:
    """The name of a kernel's entry in its machine code: its own, if that can be one there."""
    if kernel.isascii() and not _TAKEN.fullmatch(kernel):
        return kernel
    return "kernel_" + re.sub(r"[^A-Za-z0-9_]", lambda other: f"_{ord(other[0]):x}", kernel)


def counterpart(function) -> str:
    """``a function of numpy; in a kernel write tile.exp`` for one that the language has by the same name, or nothing."""
    library = (getattr(function, "__module__", None) or type(function).__module__).partition(".")[0]
    name = getattr(function, "__name__", "")
    known = library in ("numpy", "torch", "cupy", "jax", "scipy", "triton") and hasattr(sys.modules["tilejit"], name)
    return f"a function of {library}; in a kernel write tile.{name}" if known else ""


class InstructionName:
    """A name under ``tile.ptx``, which a kernel may call; ``.form`` is the row's form that it means."""
