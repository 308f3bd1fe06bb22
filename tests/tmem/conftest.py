"""Enables the simulator's fault checks for the kernels of this folder, and makes failed assertions in helpers show both sides."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))
pytest.register_assert_rewrite("faulty")
