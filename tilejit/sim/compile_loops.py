"""Compiles the simulator's loops with numba, where it is installed and the work pays for it.

Loading numba takes 0.3 s, and compiling a loop as much again if numba's own cache on disk does not have it. So each
kind of work is done by NumPy until it has taken that long in a process, or will.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..concurrency import not_while_forking
from ..config import config
from ..errors import CacheError
from ..lazy import Lazy

numba = Lazy("numba")

PAYS = 0.5    # seconds of NumPy's time after which a loop is compiled
LEAST = 1e-4  # ... of a single piece of work for which a loop is compiled in any case

_spent: defaultdict[Callable, float] = defaultdict(float)
_made: dict[Callable, Callable] = {}


def compiled(loop: Callable, seconds: float) -> Callable | None:
    """The compiled form of a function of `element_loops`; None if NumPy is to do the work, in about `seconds`."""
    made = _made.get(loop)
    if made is not None:
        return made
    _spent[loop] += seconds
    if seconds < LEAST and _spent[loop] < PAYS:
        return None
    wanted = config().numba
    if wanted is False or wanted is None and _spent[loop] < PAYS:
        return None
    return _compile(loop)


@not_while_forking
def _compile(loop: Callable) -> Callable | None:
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        made = compiler(loop, error_model="numpy", cache=not config().no_cache)
    except RuntimeError:  # neither the function's folder nor the user's cache can be written
        made = compiler(loop, error_model="numpy")
    _made[loop] = not_while_forking(made)  # it is compiled for the types of each first call
    return _made[loop]


@cache
def _compiler() -> Any:
    """``numba.njit``, None if numba is not installed, or for another NumPy."""
    try:
        return numba.njit
    except ImportError:
        return None


@lru_cache(maxsize=1024)
def function_of(text: str, names: tuple[tuple[str, Any], ...]) -> Callable:
    """The function `loop` that a text defines in terms of `names`. The text is put into the cache on disk, so that
    numba keeps the compiled code beside it."""
    namespace = {**dict(names), "__name__": __name__}  # of a module that numba can import
    exec(compile(text, str(_place(text) or "<loop>"), "exec"), namespace)
    made: Callable = namespace["loop"]
    return made


def _place(text: str) -> Path | None:
    """A file with a text, in a folder that only this user can write (numba unpickles what it finds there); None if
    there is none."""
    settings = config()
    if settings.no_cache or settings.numba is False:
        return None
    with suppress(OSError, CacheError):
        folder = settings.cache_path / "loops"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix" and (folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022):
            return None
        path = folder / f"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}.py"
        if not path.exists():
            beside = path.with_suffix(f".{os.getpid()}")
            beside.write_text(text)
            os.replace(beside, path)
        return path
    return None


def as_loops_take_it(x: np.ndarray) -> np.ndarray:
    """`x` as the loops take arrays: contiguous and writeable."""
    return x if x.flags.c_contiguous and x.flags.writeable else np.array(x, order="C")
