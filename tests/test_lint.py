"""The package passes mypy, and all code passes ruff, as pyproject.toml configures them; what pre-commit runs is the same."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(tool: str, *arguments: str) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed; `pip install -e .[test]` brings it")
    result = subprocess.run([sys.executable, "-m", tool, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_package_passes_mypy():
    """With mypy's own cache, which pre-commit shares: it checks the files that changed and those that depend on them."""
    run("mypy")


def test_all_code_passes_ruff():
    run("ruff", "check", "--no-cache", "--quiet")


def test_ruff_and_mypy_are_configured_in_one_place():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    entries = [line.split(":", 1)[1].strip() for line in hooks.splitlines() if line.strip().startswith("entry:")]
    assert entries == ["python -m ruff check", "python -m mypy"]
