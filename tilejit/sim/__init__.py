"""The simulator: runs a lowered graph on NumPy arrays and reports each fault with its source line.

`simulate` is the entry point and returns a `Report`. The other names are values that `simulate` rules handle.
"""

from .launch import simulate
from .report import Finding, Report
from .values import SimBarrier, SimBuffer, SimPoints, SimRegion, SimTensorMap

__all__ = ["Finding", "Report", "SimBarrier", "SimBuffer", "SimPoints", "SimRegion", "SimTensorMap", "simulate"]
