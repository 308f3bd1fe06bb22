"""``tilejit ptx``: the instruction table."""

from __future__ import annotations

import argparse

from ..lazy import Lazy

ptx = Lazy("tilejit.ptx")


def run(arguments: argparse.Namespace) -> int:
    """Print the table as a page, or as JSON."""
    print(ptx.to_json() if arguments.json else ptx.coverage_markdown())
    return 0
