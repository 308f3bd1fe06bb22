"""``print`` and ``breakpoint`` of a kernel, which run on the simulator only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import CompilationError
from ...ir.builder import type_of
from ...ir.op import op
from ...ir.op_traits import Reads, Traits
from ...types import Tile


@dataclass(frozen=True, slots=True)
class Shown:
    """The place of an operand in what is shown, which is else made of constants and tuples."""

    number: int

    def __repr__(self) -> str:
        return f"${self.number}"


def fill(shown: Any, values: tuple[Any, ...]) -> Any:
    """`shown` with the operands' values in their places."""
    if isinstance(shown, Shown):
        return values[shown.number]
    if isinstance(shown, tuple):
        return tuple(fill(part, values) for part in shown)
    return shown


def _text(x: Any) -> str:
    """What `print` shows of a value; a tuple's numbers as by themselves, without NumPy's names of their dtypes."""
    return "(" + ", ".join(map(_text, x)) + ")" if isinstance(x, tuple) else str(x)


@op("syncs", attrs=("parts", "sep"), traits=Traits(simulated=True))
def host_print(*values: Reads, parts, sep):
    """Python's `print` of scalars, tiles, buffers and constants, once for each CTA."""


@host_print.infer
def _(g, *values, parts, sep):
    return None


@host_print.simulate
def _(m, call, *values):
    m.host.print(call, values, lambda arrays: call.attrs["sep"].join(map(_text, fill(call.attrs["parts"], arrays))))


@host_print.emit
def _(e, call, *values):
    raise CompilationError("print what the kernel computes with tile.device_print(...), and what is known while "
                           "compiling with tile.static_print(...); print is for the simulator, by backend=\"sim\"",
                           call.loc)


@op("syncs", attrs=("names",), traits=Traits(simulated=True))
def breakpoint_(*values: Reads, names):
    """Python's `breakpoint` with the kernel's names, once for each CTA."""


@breakpoint_.infer
def _(g, *values, names):
    return None


@breakpoint_.simulate
def _(m, call, *values):
    m.host.stop(call, values, lambda arrays: {name: fill(shown, arrays) for name, shown in call.attrs["names"]})


@breakpoint_.emit
def _(e, call, *values):
    raise CompilationError("breakpoint stops on the simulator, by backend=\"sim\"; on a GPU print with "
                           "tile.device_print(...)", call.loc)


def _layout(assigner, call, types):
    """Tiles are shown in the layouts that they have."""
    known = list(types)
    for n, t in enumerate(map(type_of, call.args)):
        if isinstance(t, Tile) and known[n] is None:
            known[n] = assigner.default(t.shape, t.dtype)
    return tuple(known), ()


for _op in host_print, breakpoint_:
    _op.rules.layout = _layout
    _op.rules.by_threads = lambda call: ()  # the host looks at memory: no fence is needed, and none is added
