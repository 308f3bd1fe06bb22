"""The pytest plugin, in pytest processes of its own."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import _tilejit_pytest as plugin
from tests.gpu import gpu_targets, needs_gpu

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
TESTS = '''
import os

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings
from tilejit.testing import strategies

@tile.jit
def doubled(x, y, N: tile.constexpr):
    i = tile.program_id(0) * N
    v = tile.load(x[i:i + N])
    tile.store(y[i:i + N], v + v)

@tile.jit
def swapped(x, y, z, N: tile.constexpr):
    buffer = tile.alloc((N,), x.dtype)
    tile.store(buffer, tile.load(x[0:N]))
    tile.store(y[0:N], tile.load(buffer[N - 1 - tile.arange(N)]))
    tile.sync()
    tile.store(buffer, tile.load(x[0:N]))
    tile.store(z[0:N], tile.load(buffer[N - 1 - tile.arange(N)]))

@settings(max_examples=5, deadline=None, database=None)
@given(x=strategies.arrays("float32", strategies.shapes(1), finite=True))
def test_drawn(tile_backend, x):
    y = np.empty_like(x)
    doubled[tile.cdiv(len(x), 32),](x, y, N=32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, x + x)

def test_place(tile_backend, tile_seed, capsys):
    with capsys.disabled():
        print("ran on", tile_backend, "with", tile_seed, os.environ["TILEJIT_BACKEND"], os.environ["TILEJIT_SEED"])

@pytest.mark.usefixtures("tile_backend")
def test_race():
    x = np.arange(64, dtype=np.float32)
    swapped[1](x, np.empty_like(x), np.empty_like(x), N=64)

def test_other():
    assert "TILEJIT_BACKEND" not in os.environ and "TILEJIT_SEED" not in os.environ
'''


@pytest.fixture
def child(pytester, monkeypatch):
    """Run pytest with the plugin on a file of tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("TILEJIT_COLUMNS", raising=False)

    def run(text: str, *options: str):
        pytester.makepyfile(test_of_user=text)
        return pytester.runpytest_subprocess("-p", "_tilejit_pytest", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider", *options)
    return run


def test_tests_run_on_backends_and_under_seeds_and_findings_fail_at_their_lines(child):
    result = child(TESTS, "-v", "--tile-backend=both", "--tile-seeds=3,0", "-k", "not (race and cuda)")
    gpu = bool(gpu_targets())
    result.assert_outcomes(passed=7 if gpu else 5, failed=2, skipped=0 if gpu else 2, deselected=1)
    text = result.stdout.str()
    for seed in (3, 0):
        assert f"ran on sim with {seed} sim {seed}" in text
    assert ("ran on cuda with 0 cuda 0" in text) == gpu
    assert gpu or "SKIPPED (no CUDA driver" in text
    failure = text[text.index("test_race[sim-seed3] __"):text.index("test_race[sim] __")]
    assert "E       tilejit.errors.SimulationError: race: thread" in failure
    assert "test_of_user.py:19:24, in swapped" in failure and "E           tile.store(y[0:N], tile.load(buffer[N - 1 - tile.arange(N)]))" in failure
    assert "findings of the simulator: 2" in failure and "test_of_user.py:22:24, in swapped" in failure
    assert str(ROOT / "tilejit") not in failure  # no line of the package


def test_a_run_without_its_fixtures_does_not_load_the_package(child):
    result = child("import sys\n\ndef test_plain():\n    assert not {'tilejit', 'numpy'} & set(sys.modules)\n", "--tile-backend=both", "--tile-seeds=2")
    result.assert_outcomes(passed=1)


def test_the_plugin_imports_only_pytest_and_the_standard_library_and_is_an_entry_point():
    tree = ast.parse(Path(plugin.__file__).read_text())
    names = {name.partition(".")[0] for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))
             for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])}
    assert names <= {"pytest", *sys.stdlib_module_names}
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'\[project.entry-points.pytest11\]\ntilejit = "_tilejit_pytest"\n', project)
    assert 'py-modules = ["_tilejit_pytest"]' in project


@pytest.mark.parametrize("text, seeds", [("1", [0]), ("3", [0, 1, 2]), ("5,7", [5, 7]), ("4,", [4]), ("0,", [0])])
def test_seeds_are_a_number_or_a_list(text, seeds):
    assert plugin._seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1,x", ","])
def test_other_seeds_are_refused(text):
    with pytest.raises(pytest.UsageError, match="--tile-seeds is a number of seeds from 1, or a list as 3,5"):
        plugin._seeds(text)


class Function:
    """What the plugin asks of a test function, with its options."""

    fixturenames = [plugin.CHOICE]

    def __init__(self, **options: str):
        self.options = options
        self.config = self

    def getoption(self, name: str) -> str:
        return self.options[name[2:].replace("-", "_")]

    def parametrize(self, name: str, choices: list, **how) -> None:
        self.choices = choices


def test_the_gpu_must_be_there_if_only_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(plugin, "_has_gpu", lambda: False)
    with pytest.raises(pytest.UsageError, match="--tile-backend=cuda: no CUDA driver or no GPU was found; --tile-backend=both skips"):
        plugin.pytest_generate_tests(Function(tile_backend="cuda", tile_seeds="1"))
    monkeypatch.setattr(plugin, "_has_gpu", lambda: True)
    asked = Function(tile_backend="cuda", tile_seeds="2")
    plugin.pytest_generate_tests(asked)
    (case,) = asked.choices
    assert case.values == (plugin.Choice("cuda"),) and not case.marks[0].args[0]


@needs_gpu()
def test_host_arrays_of_a_test_on_the_gpu_go_there(child):
    child(TESTS, "--tile-backend=cuda", "-k", "drawn or place").assert_outcomes(passed=2, deselected=2)
