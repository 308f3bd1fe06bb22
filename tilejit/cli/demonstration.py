"""``tilejit demo``."""

from __future__ import annotations

import argparse

from .. import demo


def run(arguments: argparse.Namespace) -> int:
    """Compile, explain, run and check four kernels."""
    code: int = demo.run()
    return code
