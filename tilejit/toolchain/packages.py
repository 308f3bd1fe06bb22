"""Versions and files of installed packages, read from the folders that pip has written.

`importlib.metadata` has the same information but takes 25 ms to import, and every new process needs the versions of its
tools."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from pathlib import Path

from ..classes import frozen


@frozen
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
    return _package(name, tuple(sys.path))


@lru_cache(maxsize=64)
def _package(name: str, path: tuple[str, ...]) -> Package | None:
    pattern = re.compile(re.sub(r"[-_.]+", "[-_.]+", name) + r"-([^-]+)\.dist-info", re.IGNORECASE)
    for folder in path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            match = pattern.fullmatch(entry)
            if match:
                return Package(name, match[1], Path(folder or "."), Path(folder or ".") / entry)
    return None
