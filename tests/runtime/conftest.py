"""Fixtures: a launcher of either kind, with a fake driver and a fake torch."""

import sys

import pytest
from tilejit.runtime.store import Store

from tests.runtime.fakes import FakeDriver, make_torch


@pytest.fixture
def torch(monkeypatch):
    torch = make_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


@pytest.fixture(params=["python", "native"])
def launch(request, torch, tmp_path):
    """A fake driver, and a function that makes a launcher for a recipe. For "native", launches must take the native path."""
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
