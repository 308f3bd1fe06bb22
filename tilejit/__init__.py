"""tilejit: GPU kernels for Ampere, Hopper and Blackwell in Python, compiled per call site and testable without a GPU."""

from .autotune import autotune
from .errors import (CacheError, CompilationError, DispatchError, LaunchError, SimulationError, TileError,
                     TileWarning, ToolchainError, VerificationError)
from .frontend import (constexpr, each_warpgroup, elect, pipelined, range_ as range, static_assert, static_print, static_range,
                       thread, warp, warpgroup)
from .jit import Kernel, jit
from .layout import R, S, Swizzle, TileLayout, auto, axis, tmem_datapath
from .ops.atomics import BUILTINS as _ATOMICS
from .ops.barriers import (bulk_commit, bulk_wait, cluster_arrive, cluster_sync, cluster_wait, cp_async_commit,
                           cp_async_wait, fence_mbarrier_init, fence_proxy_async, griddepcontrol_launch_dependents, griddepcontrol_wait,
                           mbarrier, threadfence)
from .ops.copy import copy
from .ops.copy_async import copy_async
from .ops.copy_async.prefetch import prefetch
from .ops.creation import arange, fragment_index, full, ones, zeros
from .ops.escape import asm, device_print
from .ops.ids import (cluster_id, cluster_size, cta_rank, lane_id, num_programs, program_id, thread_id, warp_id,
                      warpgroup_id)
from .ops.map_edits import fence_proxy_tensormap
from .ops.math import BUILTINS as _MATH
from .ops.memory import load, store
from .ops.mma import mma_async, mma_commit, mma_wait
from .ops.mma.dot import dot, mma
from .ops.named_barriers import named_barrier, turns
from .ops.pointwise import (abs, assume, cast, cdiv, clip, device_assert, expect_variant, fma, isnan, maximum, minimum,
                            where)
from .ops.reductions import BUILTINS as _REDUCTIONS
from .ops.remote import reduce_async, store_async
from .ops.ring import ring
from .ops.scan import BUILTINS as _SCANS
from .ops.selected import im2col
from .ops.shape import broadcast_to, expand_dims, reshape, transpose
from .ops.shared import alloc, swizzled, sync
from .ops.mma.tcgen05_operands import scale_layout
from .ops.tmem.ldst import tcgen05_ld, tcgen05_st
from .ops.tmem.order import tcgen05_commit, tcgen05_fence, tcgen05_wait
from .ops.tensor_map import tensor_map
from .plan import BufferSpec, plan_copy
from .runtime.arguments import ArraySpec
from .runtime.device_array import DeviceArray, empty, to_device
from .schedule import next_tile, tile_at, tile_order
from .testing import verify
from .types import (DType, bfloat16, bool_, float8_e4m3fn, float8_e5m2, float16, float32, float64, int8, int16, int32,
                    int64, uint8, uint16, uint32, uint64)

globals().update(_MATH)
globals().update(_REDUCTIONS | _SCANS | _ATOMICS)

__version__ = "0.1.0"


def __getattr__(name: str):
    """`tile.ptx`, the instruction table, is loaded when it is first named: that takes tens of milliseconds."""
    if name == "ptx":
        from importlib import import_module
        return import_module(".ptx", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
