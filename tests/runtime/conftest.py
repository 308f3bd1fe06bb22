"""A launcher of either kind, on a driver and a torch that are not there."""

import sys

import pytest

from tests.runtime.fakes import FakeDriver, make_torch
from tilejit.runtime.store import Store


@pytest.fixture
def torch(monkeypatch):
    torch = make_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


@pytest.fixture(params=["python", "native"])
def launch(request, torch, tmp_path):
    """A driver, and a function from a recipe to its launcher; with "native" it must take the native way."""
    driver = FakeDriver()

    def make(recipe, **options):
        launcher = driver.launcher(recipe, native=request.param == "native", store=Store(tmp_path), **options)
        if request.param == "native":
            assert launcher.prepare()
            native_call = launcher._native

            def only_native(grid, stream, args):
                launcher.answers.append(native_call(grid, stream, args))
                return launcher.answers[-1]

            launcher.answers = []
            launcher._native = only_native
        return launcher

    return driver, make
