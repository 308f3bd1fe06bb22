"""Says how far tuning is: a bar of tqdm where that is installed, or with ``TILEJIT_LOG`` a line for each candidate."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from ..config import config


class Progress:
    """The progress over candidates, until it is closed."""

    def __init__(self, kernel: str, configs: dict[int, str]):
        self.kernel, self.configs = kernel, configs
        self.bar: Any = None
        if config().log:
            say(f"timing {len(configs)} configurations of {kernel}")
            return
        try:
            tqdm = import_module("tqdm.auto").tqdm
        except ImportError:
            return
        # a bar in terminals and notebooks, none in files
        self.bar = tqdm(total=len(configs), desc=f"tuning {kernel}", unit="configuration", leave=False,
                        disable=False if "ipykernel" in sys.modules else None)

    def step(self, number: int, ms: float | None) -> None:
        """One candidate has been timed, or has failed (`ms` is None)."""
        if self.bar is not None:
            self.bar.update()
        elif config().log:
            say(f"{self.kernel}({self.configs[number]}): {'failed' if ms is None else f'{1000 * ms:.2f} us'}")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def say(text: str) -> None:
    """A line of the log, which ``TILEJIT_LOG`` turns on."""
    if config().log:
        print(f"tilejit: {text}", file=sys.stderr)
