"""The simulator's fault checker for the kernels of this folder; failures inside it show both sides of their comparisons."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))
pytest.register_assert_rewrite("faulty")
