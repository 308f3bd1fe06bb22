"""The simulated machine: runs a lowered graph on real bytes and names the line of each fault.

`simulate` is the entry; `Report` is what it returns. The other names are what `simulate` rules handle.
"""

from .launch import simulate
from .report import Finding, Report
from .values import SimBarrier, SimBuffer, SimPoints, SimRegion, SimTensorMap

__all__ = ["Finding", "Report", "SimBarrier", "SimBuffer", "SimPoints", "SimRegion", "SimTensorMap", "simulate"]
