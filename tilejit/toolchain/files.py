"""Files that many processes share: written atomically, and checked for damage when they are read.

A file is a 48-byte header (magic, payload length, BLAKE2b digest of the payload) and the payload."""

from __future__ import annotations

import errno
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

from ..lazy import hashlib

_MAGIC = b"tilejit1"
_HEADER = struct.Struct("<8sQ32s")


def seal(data: bytes) -> bytes:
    """`data` behind a header by which `unseal` detects any damage."""
    return _HEADER.pack(_MAGIC, len(data), hashlib.blake2b(data, digest_size=32).digest()) + data


def unseal(text: bytes) -> bytes | None:
    """The payload of a text made by `seal`; None if it is truncated, damaged or something else."""
    if len(text) < _HEADER.size:
        return None
    magic, length, digest = _HEADER.unpack_from(text)
    data = text[_HEADER.size:]
    if magic != _MAGIC or len(data) != length or hashlib.blake2b(data, digest_size=32).digest() != digest:
        return None
    return data


def check_private(path: Path, status: os.stat_result) -> None:
    """PermissionError unless only this user, or root, can write a file or folder.
    What it holds is run as machine code."""
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, f"{path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, f"other users can write {path}")


def folders_to(path: Path, root: Path | None) -> list[Path]:
    """The folders from `root` down to the one that holds `path`; none without `root`."""
    if root is None:
        return []
    return [folder for folder in path.parents if folder == root or root in folder.parents]


def write_sealed(path: Path, data: bytes, root: Path | None = None) -> None:
    """Put `data` at `path` atomically: a reader sees the old file, the new one or none. Missing folders are made for
    this user alone to write. Raises OSError, also if a folder from `root` down is not private."""
    temporary, flags = path.parent / f".{os.urandom(8).hex()}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        handle = os.open(temporary, flags, 0o644)
    except FileNotFoundError:
        for folder in reversed(folders_to(path, root) or [path.parent]):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        handle = os.open(temporary, flags, 0o644)
    try:
        for folder in folders_to(path, root):
            check_private(folder, os.stat(folder))
        with os.fdopen(handle, "wb") as file:
            file.write(seal(data))
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def read_sealed(path: Path, root: Path | None = None) -> bytes | None:
    """The data that `write_sealed` put at `path`, or None. A damaged file is deleted. Raises OSError if `path` cannot
    be read, or if another user may have written it or can replace it: if it or a folder from `root` down to it is not
    private."""
    try:
        with open(path, "rb") as file:
            check_private(path, os.fstat(file.fileno()))
            for folder in folders_to(path, root):
                check_private(folder, os.stat(folder))
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    data = unseal(text)
    if data is None:
        with suppress(OSError):
            os.unlink(path)
    return data
