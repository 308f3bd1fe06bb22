"""Times candidates in this process, on the call's own arrays, whose contents are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..errors import TileError
from ..runtime import driver
from ..timing import burst, time_bursts


class Kept:
    """A context that saves the contents of spans (address, bytes) of device memory and restores them at the end."""

    def __init__(self, spans: list[tuple[int, int]], device: int):
        self.spans, self.device = spans, device
        self.copies: list[Any] = []

    def __enter__(self) -> None:
        driver.synchronize(self.device)
        try:
            for address, nbytes in self.spans:
                self.copies.append(driver.allocate(nbytes, self.device))
                driver.copy_on_device(self.copies[-1], address, nbytes, self.device)
            driver.synchronize(self.device)
        except BaseException:  # for example, out of memory
            self._free()
            raise

    def __exit__(self, *error: object) -> None:
        driver.synchronize(self.device)
        for (address, nbytes), copy in zip(self.spans, self.copies):
            driver.copy_on_device(address, copy, nbytes, self.device)
        driver.synchronize(self.device)
        self._free()

    def _free(self) -> None:
        while self.copies:
            driver.free(self.copies.pop(), self.device)


def time_here(launches: Mapping[int, Callable[[int], Any]], written: list[tuple[int, int]], device: int,
              go_on: Callable[[int, float | None], bool]) -> tuple[dict[int, float], dict[int, TileError]]:
    """The milliseconds of each launch, a function of a stream, and the errors of those that fail. The spans `written`,
    (address, bytes), have their contents again afterwards."""
    with Kept(written, device):
        stream = driver.create_stream(device)
        try:
            def bursts(launch: Callable[[int], Any], count: int) -> float:
                return burst(partial(launch, stream), count, stream, device)
            return time_bursts({n: partial(bursts, launch) for n, launch in launches.items()}, go_on)
        finally:
            driver.synchronize(device)
            driver.destroy_stream(stream, device)
