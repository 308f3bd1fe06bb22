"""The base class of the emitter's components."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .emitter import Emitter


class Component:
    """A part of the emitter for one subject, such as TMA. The emitter `e` owns it: ``e.tma``."""

    def __init__(self, e: Emitter):
        self.e = e
