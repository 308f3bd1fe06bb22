"""Buffers, regions and points in emitted code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..types import Buffer
from .value import V


@dataclass
class EBuffer:
    """A buffer in emitted code: a global one's pointer, sizes and strides, or a shared one's byte offset."""

    type: Buffer
    pointer: V | None = None
    sizes: tuple = ()
    strides: tuple = ()
    offset: int = 0
    rank: Any = None  # rank in the cluster of the CTA whose shared memory holds the buffer; None for this CTA
    lows: tuple | None = None  # of a window: the coordinates of its first element; `sizes` are the window's


@dataclass
class ERegion:
    """A region in emitted code: one start per dimension of the buffer."""

    type: Any
    buffer: EBuffer
    starts: tuple


@dataclass
class EPoints:
    """Points in emitted code: for each dimension of the buffer an index,
    which is one value or a list with one value per register."""

    type: Any
    buffer: EBuffer
    indices: tuple
