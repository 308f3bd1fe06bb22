"""The placeholder for a layout that the compiler chooses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Auto:
    """Placeholder for a layout that the compiler chooses: see ``tile.alloc``."""

    def __repr__(self) -> str:
        return "tile.auto"


auto = Auto()
