"""The public names of the language, collected from the modules that define them.

This module is loaded when one of them is first used: a process that finds its kernels in the cache does not need
it.
"""

from .frontend.ranges import pipelined, range_ as range, static_range
from .frontend.scopes import each_warp, each_warpgroup, elect, thread, warp, warpgroup
from .frontend.static import static_assert, static_print
from .ops.language.creation import arange, fragment_index, full, ones, zeros
from .ops.ptx.escape import asm
from .ops.language.expect_variant import expect_variant
from .ops.language.clocks import clock, globaltimer
from .ops.language.named_range import named_range
from .ops.language.concatenate import concatenate
from .ops.language.float_parts import copysign, frexp, ldexp, nextafter
from .ops.language.ids import (cluster_id, cluster_size, cta_rank, lane_id, num_programs, program_id, thread_id,
                               warp_id, warpgroup_id)
from .ops.language.math import BUILTINS as _MATH
from .ops.language.pointwise import (abs, assume, bitcast, cast, cdiv, clip, device_assert, fma, isfinite, isinf,
                                     isnan, maximum, minimum, uniform, where)
from .ops.language.random import philox, rand, randint, randn
from .ops.language.shape import broadcast_to, expand_dims, flip, gather, reshape, transpose
from .ops.language.stack import stack
from .ops.memory.atomics import BUILTINS as _ATOMICS
from .ops.memory.shared import swizzled, sync
from .ops.memory.window import window
from .ops.mma import mma_async, mma_commit, mma_wait
from .ops.mma.dot import dot, mma
from .ops.mma.dot_scaled import dot_scaled
from .ops.mma.tcgen05_operands import scale_layout
from .ops.moves.copy import copy
from .ops.moves.copy_async import copy_async
from .ops.moves.copy_async.prefetch import prefetch
from .ops.moves.copy_async.tma.map_edits import fence_proxy_tensormap
from .ops.moves.copy_async.tma.selections import im2col
from .ops.moves.copy_async.tma.tensor_map import tensor_map
from .ops.moves.load_store import load, store
from .ops.moves.remote import reduce_async, store_async
from .ops.order.histogram import histogram
from .ops.order.sort import argsort, sort, topk
from .ops.ptx.exchange import (ballot, match, shuffle, shuffle_down, shuffle_up, shuffle_xor, warp_all,
                                  warp_any, warp_reduce)
from .ops.ptx.printing import device_print
from .ops.reduce.reductions import BUILTINS as _REDUCTIONS
from .ops.reduce.scan import BUILTINS as _SCANS
from .ops.structure.alloc import alloc
from .ops.structure.array import array
from .ops.structure.ring import ring
from .ops.sync.barriers import (bulk_commit, bulk_wait, cluster_arrive, cluster_sync, cluster_wait, cp_async_commit,
                                cp_async_wait, fence_mbarrier_init, fence_proxy_async,
                                griddepcontrol_launch_dependents, griddepcontrol_wait, mbarrier, threadfence)
from .ops.sync.named_barriers import named_barrier, turns
from .ops.tmem.ldst import tcgen05_ld, tcgen05_st
from .ops.tmem.order import tcgen05_commit, tcgen05_fence, tcgen05_wait
from .profiling import profile
from .plan import BufferSpec, plan_copy
from .schedule import next_tile, tile_at, tile_order
from .testing import verify
from .timing import bench
from .tuning import autotune, choice

globals().update(_MATH | _REDUCTIONS | _SCANS | _ATOMICS)
