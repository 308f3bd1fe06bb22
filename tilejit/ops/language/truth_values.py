"""Finds integers that ptxas may know to be 0 or 1, and would misread when a bitcast makes them a float."""

from __future__ import annotations

from ...dtypes import bool_
from ...ir.builder import Builder, type_of
from ...ir.graph import Const, Operand, Value
from ...types import Scalar, Tile
from ..tiles import elementwise as ew

BOUNDS = ew.maximum, ew.minimum  # LLVM makes min(x, 1) a comparison


def may_be_truth_values(g: Builder, x: Operand) -> bool:
    """Whether the integer `x` may be computed from truth values in registers: by a cast of a bool or a select, also
    in a branch or an earlier trip of a loop. What is loaded is not."""
    seen: set[Value] = set()
    waiting = [x]
    while waiting:
        value = waiting.pop()
        t = type_of(value)
        if (isinstance(value, Const) or not isinstance(value, Value) or value in seen
            or not isinstance(t, (Scalar, Tile))):
            continue
        seen.add(value)
        call = g.definitions.get(value)
        if t.dtype == bool_ or call is not None and call.op in BOUNDS:
            return True
        if call is None:
            if value not in g.arguments:  # carried by a loop, or the result of a branch
                return True
        elif call.op.effect == "pure":
            waiting += call.args
    return False
