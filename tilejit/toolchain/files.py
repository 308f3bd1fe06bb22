"""Files that many processes share: written atomically, and checked for damage when they are read.

A file is a 48-byte header (magic, payload length, BLAKE2b digest of the payload) and the payload."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

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


def write_sealed(path: Path, data: bytes) -> None:
    """Put `data` at `path` atomically: a reader sees the old file, the new one or none. Raises OSError."""
    temporary, flags = path.parent / f".{os.urandom(8).hex()}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        handle = os.open(temporary, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(temporary, flags, 0o644)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(seal(data))
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


def read_sealed(path: Path) -> bytes | None:
    """The data that `write_sealed` put at `path`, or None. A damaged file is deleted. Raises OSError if `path` cannot be
    read."""
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    data = unseal(text)
    if data is None:
        try:
            os.unlink(path)
        except OSError:
            pass
    return data
