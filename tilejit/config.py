"""All settings (environment variables), with types. They are read at each use."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .errors import CacheError, CompilationError, read_columns

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")


def checked_target(target: str) -> str:
    """`target`; CompilationError if it is not one of `TARGETS`."""
    if target not in TARGETS:
        raise CompilationError(f"{target!r} is not a target; the targets are {', '.join(TARGETS)}")
    return target


def architecture(target: str) -> int:
    """The number of a target's architecture: 80, 86, 89, 90, 100, 103, 120."""
    return int(target.removeprefix("sm_").rstrip("af"))


def _flag(text: str, variable: str = "") -> bool:
    return text.strip().lower() not in ("", "0", "false", "no", "off")


def _seed(text: str, variable: str) -> int | None:
    if not text.strip():
        return None
    if not text.strip().isdecimal():
        raise CompilationError(f"{variable} is a seed, an integer of at least 0, not {text!r}")
    return int(text)


def _choice(text: str, variable: str = "") -> bool | None:
    return _flag(text) if text.strip() else None


# by a field's type; others are text
_READERS: dict[str, Callable[[str, str], Any]] = {"bool": _flag, "int | None": _seed, "bool | None": _choice,
                                           "int": lambda text, variable: read_columns(text)}


@dataclass(frozen=True)
class Config:
    """The settings. Each field's environment variable is ``TILEJIT_`` plus the field's name in capitals."""

    cache_dir: str = ""     # where compiled kernels are kept; default $XDG_CACHE_HOME/tilejit or ~/.cache/tilejit
    no_cache: bool = False  # neither read nor write the on-disk cache
    dump: str = ""          # a folder: the text of each stage is written there (.graph, .ll, .ptx)
    override: str = ""      # a folder: a .ll or .ptx found there replaces the compiler's
    ptxas: str = ""         # path of the assembler to use
    target: str = ""        # target to compile for when no device says (default sm_90a)
    backend: str = ""       # "sim" or "cuda": overrides where host arrays run
    log: bool = False       # one line on stderr for every compile, with its cause, and every candidate of `autotune`
    check: bool = False     # check the graph after every pass (always on under pytest)
    columns: int = 100      # width at which the lines of an error's message are folded; 0: nowhere
    numba: bool | None = None  # whether the simulator compiles its loops; default: where the work pays for it
    seed: int | None = None    # the seed of runs on the simulator that do not say seed= themselves; default 0
    jitter: int | None = None  # the option `jitter` of kernels that do not say jitter= themselves

    @staticmethod
    def load() -> Config:
        values: dict[str, Any] = {}
        for field in fields(Config):
            variable = "TILEJIT_" + field.name.upper()
            text = os.environ.get(variable)
            if text is not None:
                reader = _READERS.get(str(field.type))
                values[field.name] = text if reader is None else reader(text, variable)
        return Config(**values)

    @property
    def cache_path(self) -> Path:
        """The folder of the cache. CacheError if it is in the home folder, and that is unknown."""
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        path = Path(self.cache_dir or f"{base}/tilejit")
        try:
            return path.expanduser()
        except RuntimeError:
            raise CacheError(f"no home folder is known for the cache {path}; "
                             "set TILEJIT_CACHE_DIR to a folder") from None


def config() -> Config:
    """The settings in the current environment."""
    return Config.load()


def chosen_seed(seed: int | None) -> int:
    """The seed of a run on the simulator: the one that is given, that of the setting `seed`, or 0."""
    return (config().seed or 0) if seed is None else seed
