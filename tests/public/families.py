"""The pages of the reference: for each its title, an introduction, and the public names that it describes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A page of the reference: names of `tilejit`, names in a module (with a dot), classes of values (with a ``_``)."""

    page: str
    title: str
    about: str
    listed: str

    @property
    def names(self) -> list[str]:
        return self.listed.split()


FAMILIES = (
    Family(
        "launch",
        "Kernels and launches",
        "`@tile.jit` makes a kernel of a function. A kernel is launched, simulated and compiled.",
        "jit Kernel constexpr Array CompiledKernel Report Finding ArraySpec to_device empty DeviceArray pack Packed "
        "load_kernel LoadedKernel address_of address_table",
    ),
    Family(
        "ids",
        "Where a thread is",
        "Indices of CTAs, warps and threads, and clocks.",
        "program_id num_programs thread_id lane_id warp_id warpgroup_id cta_rank cluster_id cluster_size clock "
        "globaltimer",
    ),
    Family(
        "scopes",
        "Scopes and loops",
        "A `with` block narrows the execution scope: the threads that execute an operation together. Python's `range` "
        "is a loop too.",
        "warpgroup each_warpgroup warp each_warp thread elect range static_range pipelined tile_order tile_at "
        "next_tile",
    ),
    Family(
        "values",
        "Values in kernels",
        "What the operations take and return. These classes have no public names: they exist for type checkers and "
        "editors only.",
        "_Tile _Buffer _Region _Boxes _Rows _ImageMatrix _Token _Barrier _NamedBarrier _Turns _Ring _Slot _TensorMap",
    ),
    Family(
        "creation",
        "Creation of tiles",
        "Tiles that are made from constants, indices and other tiles.",
        "zeros ones full arange fragment_index stack",
    ),
    Family(
        "random",
        "Random numbers",
        "They are functions of a seed and an offset, and nothing else.",
        "philox randint rand randn",
    ),
    Family(
        "elementwise",
        "Elementwise functions",
        "They take tiles and scalars, which broadcast by NumPy's rules. The operators `+ - * / // % ** @ << >> & | ^ ~`"
        ", comparisons and Python's `abs`, `min`, `max`, `pow`, `divmod`, `int`, `float` and `bool` do the same.",
        (
            "where maximum minimum clip abs fma cdiv cast bitcast isnan isinf isfinite exp exp2 exp10 expm1 log "
            "log2 log10 log1p sqrt rsqrt cbrt sin cos sincos tan asin acos atan atan2 sinh cosh tanh asinh acosh "
            "atanh sigmoid erf erfc erfinv lgamma tgamma floor ceil round trunc hypot fmod copysign nextafter "
            "frexp ldexp"
        ),
    ),
    Family(
        "shape",
        "Shapes",
        "The same elements in another shape. Tiles are also indexed, as in `x[0:8, None]`.",
        "reshape transpose broadcast_to expand_dims concatenate flip gather",
    ),
    Family(
        "reductions",
        "Reductions and scans",
        "They combine the elements of a tile along an axis.",
        "sum prod mean max min argmax argmin any all reduce cumsum cumprod scan",
    ),
    Family(
        "order",
        "Order",
        "They sort the elements of a tile along an axis, and count them. [Order](../guide/order.md) says what they cost.",
        "sort argsort topk histogram",
    ),
    Family(
        "warps",
        "Lanes of a warp",
        "They exchange scalars, one in each thread, among the 32 lanes of a warp.",
        "shuffle shuffle_xor shuffle_up shuffle_down ballot warp_any warp_all warp_reduce match",
    ),
    Family(
        "memory",
        "Memory",
        "Allocations, and accesses by threads. Arrays are indexed by slices (regions) and by integer tiles (points).",
        (
            "alloc array load store window atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor "
            "atomic_exch atomic_cas atomic_inc atomic_dec"
        ),
    ),
    Family(
        "copies",
        "Copies",
        "Copies between global, shared and tensor memory. [Copies](../guide/copies.md) describes how each is lowered.",
        (
            "copy copy_async prefetch cp_async_commit cp_async_wait bulk_commit bulk_wait store_async "
            "reduce_async im2col tensor_map fence_proxy_tensormap expect_variant plan_copy BufferSpec Choice"
        ),
    ),
    Family(
        "products",
        "Matrix products and tensor memory",
        "[Matrix products](../guide/products.md) and [tensor memory](../guide/tensor_memory.md) describe how they are "
        "lowered.",
        (
            "dot dot_scaled mma mma_async mma_commit mma_wait tcgen05_ld tcgen05_st tcgen05_wait tcgen05_commit "
            "tcgen05_fence scale_layout"
        ),
    ),
    Family(
        "synchronisation",
        "Synchronisation",
        "Barriers, fences, and structures made of them.",
        (
            "sync mbarrier ring named_barrier turns cluster_sync cluster_arrive cluster_wait threadfence "
            "fence_proxy_async fence_mbarrier_init griddepcontrol_wait griddepcontrol_launch_dependents"
        ),
    ),
    Family(
        "checks",
        "Assertions, promises and printing",
        "What is checked or printed while compiling, and at run time.",
        "static_assert static_print device_assert device_print assume uniform",
    ),
    Family(
        "ptx",
        "PTX",
        "Instructions by name, and inline text. [Instructions](../internals/instructions.md) lists the families of the "
        "table.",
        "ptx asm",
    ),
    Family(
        "dtypes",
        "Element types",
        "Where a dtype is expected, its name and NumPy's dtype are accepted too. In a kernel, a call casts: "
        "`tile.float32(x)`.",
        (
            "DType padded bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float64 float32 float16 "
            "bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn"
        ),
    ),
    Family(
        "layouts",
        "Layouts",
        "Where each element of a tile or a buffer is.",
        "TileLayout Swizzle S R axis auto swizzled tmem_datapath",
    ),
    Family(
        "tools",
        "Tools",
        "Verification, timing, profiling, tuning, and ready-made kernels.",
        (
            "testing verify testing.Verification testing.Difference testing.Tolerance testing.tolerance_of "
            "testing.assert_close testing.strategies testing.strategies.extents testing.strategies.shapes "
            "testing.strategies.dtypes testing.strategies.strides testing.strategies.arrays "
            "testing.strategies.elements testing.strategies.special_values testing.strategies.layouts "
            "timing bench timing.Comparison timing.Timing "
            "profile named_range timeline timeline.Timeline timeline.Span "
            "roofline roofline.Counts roofline.Roofline roofline.Gpu "
            "tuning autotune choice tuning.Tuned tuning.Resources tuning.Trial tuning.TuningReport tuning.TunedCall kernels "
            "kernels.matmul kernels.grouped_matmul kernels.tune kernels.attention kernels.attention_backward "
            "kernels.block_mask kernels.BlockMask jax jax.call"
        ),
    ),
    Family(
        "errors",
        "Errors",
        "What is raised for a user's mistake.",
        (
            "TileError CompilationError DispatchError LaunchError SimulationError VerificationError "
            "CacheError ToolchainError TileWarning"
        ),
    ),
)


def page_of() -> dict[str, Family]:
    """The page of each name."""
    return {name: family for family in FAMILIES for name in family.names}
