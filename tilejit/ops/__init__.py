"""The operations of the language. Each is one declaration, followed by its rules.

All modules are imported together, because some of them register rules for operations that another module declares:
`access` those of load and store, `mma.stmatrix` the store of accumulators, `atomics_emit` those of atomics.
"""

from . import (access, atomics, atomics_emit, barriers, buffer_views, casts, combine, copy, copy_async, creation, division,  # noqa: F401
               elementwise, escape, ids, layout_change, map_edits, math, memory, mma, named_barriers, ordered_emit, pipeline, pointwise,
               ptx_barrier_meanings, ptx_bit_meanings, ptx_copy_meanings, ptx_float_meanings, ptx_map_meanings,
               ptx_memory_meanings, ptx_warp_meanings, reduce, reductions, regions, remote, ring, scan, selected, shape, shared, slicing,
               stack, tensor_map, tmem)
