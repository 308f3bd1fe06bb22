"""The on-disk cache: machine code and manifests of kernels by key, shared by any number of processes.

An entry is one sealed file, ``<folder>/<kind>/<first two letters of the key>/<key>``, written atomically. A damaged
entry is deleted and counts as absent. Entries hold machine code: a folder or an entry that another user owns or can
write is not used. If the folder cannot be used, there is one warning and no cache, but launches still work."""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import config
from ..errors import CacheError
from ..toolchain.files import read_sealed, write_sealed

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_warned: set[str] = set()


@dataclass(frozen=True)
class Entry:
    """One entry: `nbytes` on disk; `used`, when it was last written or read (seconds since 1970)."""

    kind: str
    key: str
    nbytes: int
    used: float


class Store:
    """A cache in a folder. `kind` is a short word such as "cubin", `key` a digest in letters and digits."""

    def __init__(self, path: Path | str):
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def _file(self, kind: str, key: str) -> Path:
        if not _NAME.fullmatch(kind) or not _NAME.fullmatch(key) or kind.startswith(".") or key.startswith("."):
            raise CacheError(f"{kind!r}, {key!r} are not names of a kind and a key")
        return self.path / kind / key[:2] / key

    def get(self, kind: str, key: str) -> bytes | None:
        """The entry's data, or None if there is no intact one."""
        file = self._file(kind, key)
        try:
            data = read_sealed(file, self.path)
            if data is not None:
                _touch(file)
            return data
        except OSError as error:
            self._warn(error)
            return None

    def get_json(self, kind: str, key: str) -> Any:
        """The entry's data as JSON; None if there is no entry, or one that is no JSON."""
        data = self.get(kind, key)
        try:
            return None if data is None else json.loads(data)
        except ValueError:
            return None

    def put(self, kind: str, key: str, data: bytes) -> bool:
        """Store `data`. Returns False, after one warning per folder, if the folder cannot be written."""
        file = self._file(kind, key)
        try:
            write_sealed(file, data, self.path)
            return True
        except OSError as error:
            self._warn(error)
            return False

    def _warn(self, error: OSError) -> None:
        _warn_once(str(self.path), f"tilejit's cache {self.path} cannot be used ({error.strerror or error}); "
                                   "kernels are compiled in every process. Set TILEJIT_CACHE_DIR to another folder")

    # -- for people and tools ----------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """All entries, the most recently used first."""
        found = []
        for kind, file in self._files():
            try:
                status = file.stat()
            except OSError:
                continue  # another process cleared it
            found.append(Entry(kind, file.name, status.st_size, max(status.st_mtime, status.st_atime)))
        return sorted(found, key=lambda entry: -entry.used)

    def peek(self, entry: Entry) -> bytes | None:
        """The data of a listed entry, or None if there is no intact one. This does not count as a use."""
        file = self._file(entry.kind, entry.key)
        try:
            status = file.stat()
            data = read_sealed(file, self.path)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # reading has changed the first of them
            return data
        except OSError:
            return None

    def remove(self, entry: Entry) -> bool:
        """Delete a listed entry; returns whether it was there. CacheError if the folder does not allow it."""
        return self._delete(self._file(entry.kind, entry.key))

    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(entry.nbytes for entry in self.entries())

    def clear(self, kind: str | None = None) -> int:
        """Delete all entries, or those of one kind; returns how many there were.
        CacheError if the folder does not allow it."""
        count = 0
        for found, file in list(self._files(temporary=True)):
            if kind in (None, found):
                count += self._delete(file) and not file.name.startswith(".")
        return count

    def prune(self, limit: int) -> int:
        """Delete the least recently used entries until at most `limit` bytes are left;
        returns how many were deleted."""
        entries, count = self.entries(), 0
        total = sum(entry.nbytes for entry in entries)
        for entry in reversed(entries):
            if total <= limit:
                break
            total -= entry.nbytes
            count += self._delete(self._file(entry.kind, entry.key))
        for _kind, file in list(self._files(temporary=True)):
            if file.name.startswith("."):  # a temporary file that a killed process has left
                try:
                    if time.time() - file.stat().st_mtime > 3600:
                        self._delete(file)
                except OSError:
                    pass
        return count

    def _files(self, temporary: bool = False):
        """(kind, path) of every entry's file, with unfinished ones if `temporary`."""
        try:
            kinds = sorted(child for child in self.path.iterdir() if child.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise CacheError(f"the cache {self.path} cannot be read: {error.strerror}") from None
        for kind in kinds:
            for file in sorted(kind.glob("??/*")) + (sorted(kind.glob("??/.*")) if temporary else []):
                if temporary or not file.name.startswith("."):
                    yield kind.name, file

    def _delete(self, file: Path) -> bool:
        try:
            file.unlink()
            return True
        except FileNotFoundError:
            return False
        except OSError as error:
            raise CacheError(f"{file} cannot be deleted: {error.strerror}") from None


def _touch(file: Path) -> None:
    """Record the use, for `prune`, at most once a day, since most file systems do not keep access times."""
    try:
        if time.time() - file.stat().st_mtime > 86400:
            os.utime(file)
    except OSError:
        pass


def _warn_once(of: str, text: str) -> None:
    if of not in _warned:
        _warned.add(of)
        warnings.warn(text, RuntimeWarning, stacklevel=5)


def open_store() -> Store | None:
    """The cache that the settings name; None if they turn it off, or if there is no home folder."""
    settings = config()
    try:
        return None if settings.no_cache else Store(settings.cache_path)
    except CacheError as error:
        _warn_once(str(error), f"{error}; kernels are compiled in every process")
        return None
