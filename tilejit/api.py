"""All names of the language. The module is loaded at the first use of one of them, which a process that finds its kernels in the
cache does not need."""

from .frontend.ranges import pipelined, range_ as range, static_range
from .frontend.scopes import each_warpgroup, elect, thread, warp, warpgroup
from .frontend.static import static_assert, static_print
from .ops.atomics import BUILTINS as _ATOMICS
from .ops.barriers import (bulk_commit, bulk_wait, cluster_arrive, cluster_sync, cluster_wait, cp_async_commit,
                           cp_async_wait, fence_mbarrier_init, fence_proxy_async, griddepcontrol_launch_dependents, griddepcontrol_wait,
                           mbarrier, threadfence)
from .ops.copy import copy
from .ops.copy_async import copy_async
from .ops.copy_async.prefetch import prefetch
from .ops.creation import arange, fragment_index, full, ones, zeros
from .ops.escape import asm, device_print
from .ops.expected import expect_variant
from .ops.ids import (cluster_id, cluster_size, cta_rank, lane_id, num_programs, program_id, thread_id, warp_id,
                      warpgroup_id)
from .ops.map_edits import fence_proxy_tensormap
from .ops.math import BUILTINS as _MATH
from .ops.memory import load, store
from .ops.window import window
from .ops.mma import mma_async, mma_commit, mma_wait
from .ops.mma.dot import dot, mma
from .ops.named_barriers import named_barrier, turns
from .ops.pointwise import (abs, assume, bitcast, cast, cdiv, clip, device_assert, fma, isfinite, isinf, isnan, maximum, minimum,
                            uniform, where)
from .ops.reductions import BUILTINS as _REDUCTIONS
from .ops.remote import reduce_async, store_async
from .ops.ring import ring
from .ops.scan import BUILTINS as _SCANS
from .ops.selected import im2col
from .ops.shape import broadcast_to, expand_dims, reshape, transpose
from .ops.shared import alloc, swizzled, sync
from .ops.stack import stack
from .ops.tensor_map import tensor_map
from .ops.mma.tcgen05_operands import scale_layout
from .ops.tmem.ldst import tcgen05_ld, tcgen05_st
from .ops.tmem.order import tcgen05_commit, tcgen05_fence, tcgen05_wait
from .plan import BufferSpec, plan_copy
from .schedule import next_tile, tile_at, tile_order
from .testing import verify
from .tuning import autotune

globals().update(_MATH | _REDUCTIONS | _SCANS | _ATOMICS)
