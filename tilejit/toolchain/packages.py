"""Versions and files of installed packages, read from the folders that pip has written.

`importlib.metadata` has the same information but takes 25 ms to import, and every new process needs the versions of its
tools."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """An installed package: its files are relative to `root`, `info` is its ``.dist-info`` folder."""

    name: str
    version: str
    root: Path
    info: Path

    def file(self, name: str) -> Path | None:
        """The path of the package's file called `name`, in any folder; None if there is none."""
        try:
            record = (self.info / "RECORD").read_text()
        except OSError:
            return None
        for match in re.finditer(rf"^((?:[^,\n]*/)?{re.escape(name)}),", record, re.MULTILINE):
            path = self.root / match[1]
            if path.is_file():
                return path
        return None


def package(name: str) -> Package | None:
    """The first package of that name on the import path, or None."""
    found = _infos(tuple(sys.path)).get(_normalise(name))
    if found is None:
        return None
    folder, entry, version = found
    return Package(name, version, Path(folder), Path(folder) / entry)


def _normalise(name: str) -> str:
    """A normal form of a package's name, which is the same for all of its spellings."""
    return re.sub(r"[-_.]+", "-", name).lower()


@lru_cache(maxsize=4)
def _infos(path: tuple[str, ...]) -> dict[str, tuple[str, str, str]]:
    """The folder, the ``.dist-info`` folder in it, and the version of each installed package,
    by the normal forms of their names."""
    found: dict[str, tuple[str, str, str]] = {}
    for folder in path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            if entry.endswith(".dist-info"):
                name, _, version = entry.removesuffix(".dist-info").rpartition("-")
                found.setdefault(_normalise(name), (folder or ".", entry, version))
    return found
