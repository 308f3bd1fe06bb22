"""The operations of the language, one declaration each with its rules beside it.

They are all loaded together, since one may bring another its lowering (`access` that of load and store, `mma.stmatrix` a
store's of accumulators, `atomics_emit` that of atomics).
"""

from . import (access, atomics, atomics_emit, barriers, buffer_views, casts, combine, copy, copy_async, creation, division,  # noqa: F401
               elementwise, escape, ids, layout_change, map_edits, math, memory, mma, named_barriers, ordered_emit, pipeline, pointwise,
               ptx_bit_meanings, ptx_copy_meanings, ptx_map_meanings, ptx_memory_meanings, reduce, reductions, regions, remote, ring, scan,
               selected, shape, shared, slicing, stack, tensor_map, tmem)
