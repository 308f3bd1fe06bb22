"""Saves and restores the builder's state, so that a loop's body can be walked again with other types."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

from ..ir.graph import Node
from .walker import Walker


@dataclass(frozen=True)
class Snapshot:
    """The builder's state at one moment. Restoring refills the same container objects, since other objects hold
    references to them."""

    blocks: tuple[list[Node], ...]
    warnings: list[Any]
    state: dict[str, Any]
    asked: dict[Any, Any]

    @classmethod
    def of(cls, w: Walker) -> Snapshot:
        g = w.g
        state = {key: (value, copy(value)) for key, value in g.state.items()}
        return cls(tuple(list(b) for b in g.blocks), list(g.warnings), state, dict(g.facts.asked))

    def restore(self, w: Walker) -> None:
        g = w.g
        for block, nodes in zip(g.blocks, self.blocks):
            block[:] = nodes
        g.warnings[:] = self.warnings
        g.facts.asked.clear()
        g.facts.asked.update(self.asked)
        g.state.clear()
        for key, (value, content) in self.state.items():
            g.state[key] = _refill(value, content)


def _refill(container: Any, content: Any) -> Any:
    """`container`, refilled with its former `content` if it is a list, dict or set; any other object as it is."""
    if isinstance(container, list):
        container[:] = content
    elif isinstance(container, (dict, set)):
        container.clear()
        container.update(content)
    return container
