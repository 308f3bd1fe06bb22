"""The operations of the language. Each is one declaration, followed by its rules.

All modules are imported together, because some of them register rules for operations that another module declares:
`memory.atomics_emit` those of atomics.
"""

from .language import clocks, creation, float_parts, ids, math, operators, pointwise, random, shape, stack  # noqa: F401
from .language.concatenate import concatenate_ as _concatenate  # noqa: F401
from .language.named_range import range_mark as _range_mark  # noqa: F401
from .memory import access, access_ops, atomics, atomics_emit, ordered_emit, regions, shared  # noqa: F401
from .mma import dot, dot_scaled  # noqa: F401
from .moves import copy, copy_async, load_store, remote  # noqa: F401
from .moves.copy_async.tma import map_edits, selections, tensor_map  # noqa: F401
from .order import histogram, sort  # noqa: F401
from .ptx import escape, exchange, on_simulator, printing  # noqa: F401
from .ptx.meanings import barriers as _barriers, bits, copies, floats, lanes, maps, memory as _memory  # noqa: F401
from .reduce import combine, reduce as _reduce, reductions, scan  # noqa: F401
from .structure import alloc, array, buffer_views, ring, subscripts  # noqa: F401
from .sync import barriers, named_barriers, pipeline  # noqa: F401
from .tiles import casts, division, elementwise, gather, layout_change, quotients, rescale, slicing  # noqa: F401
