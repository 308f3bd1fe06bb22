"""The wish for a layout of the compiler's choice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Auto:
    """Stands for the layout that the compiler chooses: see ``tile.alloc``."""

    def __repr__(self) -> str:
        return "tile.auto"


auto = Auto()
