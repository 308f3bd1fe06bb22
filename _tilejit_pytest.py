"""The pytest plugin: ``--tile-backend=sim|cuda|both`` and ``--tile-seeds`` for tests that ask for `tile_backend`.

pytest loads this file in every run on a machine that has tilejit, so it imports nothing but pytest, and does nothing
for tests that do not ask for its fixtures.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

CHOICE = "_tile_choice"  # the fixture with the backend and the seed of a test
NO_GPU = "no CUDA driver or no GPU was found"


@dataclass(frozen=True)
class Choice:
    """Where a test's launches run, and the seed of the simulator there."""

    backend: str
    seed: int = 0

    def __str__(self) -> str:
        return self.backend if not self.seed else f"{self.backend}-seed{self.seed}"


def _seeds(text: str) -> list[int]:
    """The seeds that an option names: so many from 0 on, or a list."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts) or parts == ["0"] and "," not in text:
        raise pytest.UsageError(f"--tile-seeds is a number of seeds from 1, or a list as 3,5 (or 3,), not {text!r}")
    return [int(part) for part in parts] if "," in text else list(range(int(parts[0])))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tilejit", "kernels of tilejit")
    group.addoption("--tile-backend", choices=("sim", "cuda", "both"), default="sim",
                    help="where tests with the fixture tile_backend launch kernels (default: sim)")
    group.addoption("--tile-seeds", default="1", metavar="N",
                    help="run these tests on the simulator under seeds 0 to N-1, or under a list of seeds as 3,5")


def pytest_configure(config: pytest.Config) -> None:
    _seeds(config.getoption("--tile-seeds"))


def _has_gpu() -> bool:
    from tilejit.runtime import driver
    return bool(driver.available())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each seed on the simulator, and one on the GPU."""
    if CHOICE not in metafunc.fixturenames:
        return
    backend = metafunc.config.getoption("--tile-backend")
    choices: list[Any] = []
    if backend != "cuda":
        choices += [Choice("sim", seed) for seed in _seeds(metafunc.config.getoption("--tile-seeds"))]
    if backend != "sim":
        there = _has_gpu()
        if backend == "cuda" and not there:
            raise pytest.UsageError(f"--tile-backend=cuda: {NO_GPU}; --tile-backend=both skips what needs one")
        choices.append(pytest.param(Choice("cuda"), marks=pytest.mark.skipif(not there, reason=NO_GPU)))
    metafunc.parametrize(CHOICE, choices, indirect=True, scope="session", ids=str)


@pytest.fixture(scope="session")
def _tile_choice(request: pytest.FixtureRequest) -> Choice:
    chosen: Choice = request.param
    return chosen


@pytest.fixture(scope="session")
def tile_backend(_tile_choice: Choice) -> str:
    """Launches of this test run on the simulator ("sim") or on the GPU ("cuda"), host arrays too, as
    ``--tile-backend`` says."""
    return _tile_choice.backend


@pytest.fixture(scope="session")
def tile_seed(_tile_choice: Choice) -> int:
    """The seed under which this test's launches run on the simulator; ``--tile-seeds`` asks for several."""
    return _tile_choice.seed


@contextmanager
def _settings(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Launches of a test follow the settings of tilejit, which last as long as the test: the fixtures, which may live
    longer, only say what they are."""
    callspec = getattr(item, "callspec", None)
    chosen = None if callspec is None else callspec.params.get(CHOICE)
    if chosen is None:
        yield
        return
    with _settings({"TILEJIT_BACKEND": chosen.backend, "TILEJIT_SEED": str(chosen.seed)}):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failure by a finding of the simulator, which names the first, shows all findings of the launch with their
    lines of the kernel."""
    outcome: Any = yield
    errors = sys.modules.get("tilejit.errors")
    if errors is None or call.excinfo is None or not isinstance(call.excinfo.value, errors.SimulationError):
        return
    findings = call.excinfo.value.findings
    if len(findings) > 1:
        parts = [str(finding).partition("\n") for finding in findings]
        text = "\n".join(f"{errors.fold_lines(words)}\n{place}" for words, _, place in parts)
        outcome.get_result().sections.append((f"findings of the simulator: {len(findings)}", text))
