"""The escape hatch: inline PTX."""

from __future__ import annotations

import re

import numpy as np

from ...dtypes import DType, dtype_of
from ...errors import SimulationError
from ...ir.builder import Builder, describe
from ...ir.builtin import builtin
from ...ir.op import op
from ...ir.op_traits import Registers
from ...types import Scalar
from ..language.promotion import broadcast_shape, convert, number, spread
from ..sync.proxies import ANYWHERE
from ..tiles.elementwise import result_type

# PTX that accesses shared memory in the generic proxy
BY_THREADS = r"\b(ld|st|atom|red|cp\.async)\.(?!async|bulk)[\w.:]*shared|ldmatrix|stmatrix"
# PTX that accesses it in the async proxy
BY_ENGINES = r"\b(cp\.(reduce\.)?async\.bulk|wgmma\.mma|tcgen05\.(mma|cp))"


@op("syncs", attrs=("text", "dtypes", "simulate"))
def asm_(*operands: Registers, text, dtypes, simulate):
    """Inline PTX, executed once for each element."""


@asm_.infer
def _(g, *operands, text, dtypes, simulate):
    if not operands:
        return tuple(Scalar(d) for d in dtypes)
    return tuple(result_type(g, d, *operands) for d in dtypes)


asm_.rules.by_threads = lambda call: (ANYWHERE,) if re.search(BY_THREADS, call.attrs["text"]) else ()
asm_.rules.by_engines = lambda call: ((ANYWHERE,),) * 2 if re.search(BY_ENGINES, call.attrs["text"]) else ((), ())


@asm_.simulate
def _(m, call, *arrays):
    function = call.attrs["simulate"]
    if function is None:
        raise SimulationError("the simulator cannot run PTX text: give tile.asm a function of arrays as simulate=, "
                              "which returns what the text computes", call.loc)
    dtypes, results = call.attrs["dtypes"], function(*arrays)
    if not dtypes:
        return None
    results = results if isinstance(results, tuple) else (results,)
    if len(results) != len(dtypes):
        raise SimulationError(f"asm has {len(dtypes)} results, and simulate= returned {len(results)}", call.loc)
    return tuple(_result(call, x, d, arrays) for x, d in zip(results, dtypes))


def _result(call, x, dtype: DType, arrays: tuple) -> np.ndarray:
    """A result that `simulate` returned, as an array of the operands' shape; a single number is broadcast.
    SimulationError for others."""
    x = np.asarray(x)
    if x.dtype.kind in "OUSMm":
        raise SimulationError(f"simulate= returns arrays of numbers, not of {x.dtype}", call.loc)
    shape = np.broadcast_shapes(*(np.shape(a) for a in arrays)) if arrays else x.shape
    if x.shape not in (shape, ()):
        raise SimulationError(f"simulate= was given arrays of shape {shape}, and returned one of shape {x.shape}",
                              call.loc)
    return np.broadcast_to(x, shape).astype(dtype.np)


@asm_.emit
def _(e, call, *args):
    text, dtypes = call.attrs["text"].replace("\n", "\\0A"), list(call.attrs["dtypes"])
    if any(isinstance(a, list) for a in args):
        columns = [e.asm(text, dtypes, list(values), convergent=True) for values in zip(*args)]
        results = [list(column) for column in zip(*columns)]
    else:
        results = e.asm(text, dtypes, list(args), convergent=True)
    return results[0] if len(results) == 1 else tuple(results)


@builtin
def asm(g: Builder, text, result, *operands, simulate=None):
    """Execute inline PTX in every thread, once for each element of tile operands.

    In `text`, ``$0, $1, ...`` are the results and then the operands (write ``$$`` for a dollar sign). Enclose the
    text in ``{ }`` if it declares registers or labels. `result` is a dtype, a tuple of dtypes, or None. Results of
    scalar operands are as uniform as these; without operands, they differ by thread. The simulator calls `simulate`,
    a function of NumPy arrays, instead.
    """
    if not isinstance(text, str):
        raise g.error(f"the text of asm is a string, not {describe(text)}")
    several = isinstance(result, tuple)
    if several:
        asked = result
    else:
        asked = () if result is None else (result,)
    dtypes = tuple(map(dtype_of, asked))
    if simulate is not None and not callable(simulate):
        raise g.error(f"simulate is a function of NumPy arrays, not {describe(simulate)}")
    used = {int(n) for n in re.findall(r"(?<!\$)\$(\d+)", text.replace("$$", ""))}
    if used and max(used) >= len(dtypes) + len(operands):
        raise g.error(f"${max(used)} names no operand: there are {len(dtypes)} results and {len(operands)} operands")
    shape = broadcast_shape(g, *(number(g, x) for x in operands)) if operands else None
    values = [spread(g, convert(g, x, number(g, x).dtype), shape) for x in operands]
    results = g.call(asm_, *values, text=text, dtypes=dtypes, simulate=simulate)
    if several:
        return results
    return results[0] if dtypes else None
