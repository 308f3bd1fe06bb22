"""Kernels that run in production elsewhere, written in the language, give what NumPy gives on either machine."""

import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

HERE = Path(__file__).parent
FAMILIES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("ports", "test_ports"))
for family in FAMILIES:
    import_module(f"tests.ports.{family}")
PORTS = sys.modules["tests.ports.ports"].PORTS


def the_ports():
    return import_module("tests.ports.ports")


@pytest.mark.parametrize("name", PORTS)
def test_a_port_gives_what_numpy_gives_and_the_compiler_warns_of_nothing(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", tile.TileWarning)
        the_ports().run(name, the_ports().SIMULATOR)


@needs_gpu()
@pytest.mark.parametrize("name", PORTS)
@in_child(timeout=90)
def test_a_port_gives_what_numpy_gives_on_the_gpu(name):
    the_ports().run(name, the_ports().GPU)


def test_there_are_forty_ports_and_more():
    assert len(PORTS) >= 40
