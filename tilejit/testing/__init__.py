"""Tools for tests of kernels: `verify`, tolerances, and `strategies` for hypothesis, which load at their first use.

The pytest plugin, which needs none of them, is `_tilejit_pytest.py` beside the package.
"""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import Any as _Any

from .tolerances import Tolerance, assert_close, tolerance_of
from .verification import Difference, Verification, verify

__all__ = ["Difference", "Tolerance", "Verification", "assert_close", "strategies", "tolerance_of", "verify"]


def __getattr__(name: str) -> _Any:
    """`strategies`, which needs hypothesis."""
    if name == "strategies":
        if _find_spec("hypothesis") is None:
            raise ModuleNotFoundError("tile.testing.strategies needs hypothesis: pip install 'tilejit[testing]'",
                                      name="hypothesis")
        return _import_module(f"{__name__}.strategies")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
