"""Calls that reuse the launcher of an earlier call, and what invalidates it; without a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import tilejit as tile
from tilejit.jit import Kernel
from tilejit.kernels.matmul.config import Config
from tilejit.kernels.matmul.hopper.persistent import persistent
from tilejit.kernels.matmul.planning import plan_launch
from tilejit.kernels.matmul.problem import Request
from tilejit.runtime.arrays import describe


@dataclass(frozen=True)
class Options:
    step: int


@tile.jit
def twice(x):
    return x * 2


@tile.jit
def thrice(x):
    return x * 3


FACTOR, PAIR, NUMBER, OPTIONS, HELPER = 2.0, (1, 2), np.float32(3.0), Options(4), twice


@tile.jit
def scaled(x, out, N: tile.constexpr, MORE: tile.constexpr = 1):
    v = tile.load(x[0:N]) * FACTOR * MORE + PAIR[0] + NUMBER + OPTIONS.step
    tile.store(out[0:N], HELPER(v))


@pytest.fixture
def launches(monkeypatch):
    """How `scaled` was launched: "cold" if the code had to be looked up, otherwise "warm"."""
    done = []

    def cold(self, grid, args, kwargs):
        bound, options, _ = self.bind(args, kwargs)
        version = self.version(bound, options, "sm_90a")
        self.warm.remember(self.names, lambda *call: done.append("warm") or True, bound, (args, kwargs), version.captured)
        done.append("cold")

    monkeypatch.setattr(Kernel, "launch", cold)
    yield done
    scaled.warm.clear()


@pytest.mark.parametrize("name, value", [("FACTOR", 2), ("PAIR", (True, 2)), ("NUMBER", np.float32(4.0)), ("OPTIONS", Options(5)),
                                         ("HELPER", thrice)])
def test_a_captured_value_that_changes_causes_a_lookup_and_an_equal_one_does_not(launches, monkeypatch, name, value):
    x, out = np.zeros(32, np.float32), np.zeros(32, np.float32)
    call = scaled.prepared((1,), N=32)
    call(x, out), call(x, out), scaled[1](x, out, N=32)
    assert launches == ["cold", "warm", "warm"]
    same = {"FACTOR": float("2.0"), "PAIR": tuple([1, 2]), "NUMBER": np.float32(3.0), "OPTIONS": Options(4), "HELPER": twice}[name]
    monkeypatch.setitem(globals(), name, same)
    call(x, out)
    assert launches[3:] == ["warm"]
    monkeypatch.setitem(globals(), name, value)
    call(x, out), call(x, out), scaled[1](x, out, N=32)
    assert launches[4:] == ["cold", "warm", "warm"]


def test_a_captured_value_that_was_deleted_is_an_error_at_the_next_call(launches, monkeypatch):
    x, out = np.zeros(32, np.float32), np.zeros(32, np.float32)
    call = scaled.prepared((1,), N=32)
    call(x, out)
    monkeypatch.delitem(globals(), "FACTOR")
    with pytest.raises(tile.CompilationError, match="FACTOR"):
        call(x, out)


def test_calls_with_keywords_of_different_types_are_distinguished(launches):
    x, out = np.zeros(32, np.float32), np.zeros(32, np.float32)
    for more in (1, True, 1.0):
        scaled.prepared((1,), N=32, MORE=more)(x, out)
    assert launches == ["cold"] * 3


def test_captured_values_of_kernels_in_this_package_are_not_checked_at_calls(launches):
    """They change only with the package's version."""
    spec = np.zeros((64, 64), np.float16)
    view = describe(spec)
    launch = plan_launch(Request(view, view, view, None, (), False, None, 0, ()), Config.of(64, 64, stages=2), "sm_90a")
    for _ in range(2):
        launch.bound_kernel(spec, spec, spec, 1.0, 1.0, 0, 0, 0, 0)
    assert launches == ["cold", "warm"] and persistent.warm.watched == []
    persistent.warm.clear()

