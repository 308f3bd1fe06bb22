"""The types of the language's parameters and results, which its functions, written over the compiler's values, lack.

A parameter of one name has one type in the whole language (`PARAMETERS`), unless a function says otherwise (`OF`). A
function that no entry mentions returns a tile. ``| None`` is added where the default is None.
"""

from __future__ import annotations

# Lines of the stub that define the types below.
ALIASES = """\
_P = ParamSpec("_P", default=...)
_R = TypeVar("_R", default=Any)
_T = TypeVar("_T")
_A = TypeVar("_A", bound="_Tile | _Buffer | _Region | None")
_Value: TypeAlias = "_Tile | float"
_Memory: TypeAlias = "_Buffer | _Region"
_Operand: TypeAlias = "_Value | _Memory"
_DTypeLike: TypeAlias = "DType | str | type[Any] | NumPyDType[Any]"
_Extents: TypeAlias = "int | Sequence[int]"
_Axes: TypeAlias = "int | Sequence[int]"
_At: TypeAlias = "_Value | slice[Any, Any, Any] | EllipsisType | _Region | None"
_Index: TypeAlias = "_At | tuple[_At, ...]"
_Threads: TypeAlias = "_Value | builtins.range | Iterable[int] | Iterable[_Tile]"
_Cache: TypeAlias = "str | tuple[Any, ...]"
_Size: TypeAlias = "SupportsIndex"
_Grid: TypeAlias = "_Size | Sequence[_Size] | Callable[[dict[str, Any]], _Size | Sequence[_Size]]"
_Cluster: TypeAlias = "int | tuple[int, ...]"
"""


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


PARAMETERS = {
    **dict.fromkeys(
        words(
            "x y z low high value a b compare condition fact mask other t tiles tiles_m tiles_n first stride "
            "i n rank phase array rows index"
        ),
        "_Value",
    ),
    **dict.fromkeys(words("place source target region counter scale_a scale_b"), "_Memory"),
    **dict.fromkeys(
        words(
            "keepdims read reverse descending commutative trans_a trans_b negate fast wait pack noinc prefetch_map "
            "warp_specialize behind"
        ),
        "bool",
    ),
    **dict.fromkeys(
        words(
            "group regs producer_regs consumer_regs cta_group unroll stages consumers count align prefetch "
            "l2_promotion bins block threads nbytes halo swizzle columns sub device seed"
        ),
        "int",
    ),
    **dict.fromkeys(
        words("variant sem scope precision name kind text message sep side what space along filled edit"), "str"
    ),
    "dtype": "_DTypeLike",
    "shape": "_Extents",
    "extents": "_Extents",
    "axis": "_Axes",
    "axes": "Sequence[int]",
    "layout": "TileLayout | Auto",
    "cache": "_Cache",
    "combine": "Callable[..., Any]",
    "simulate": "Callable[..., Any]",
    "over": "builtins.range | Iterable[Any]",
    "order": "str | Callable[..., Any]",
    "mbar": "_Barrier",
    "bar": "_Barrier",
    "m": "_TensorMap",
    "fill": "float | str",
    "dst": "_Operand",
    "src": "_Operand",
    "acc": "_Tile | _Memory",
    "reduce": "str",
    "strides": "Sequence[_Value]",
    "multicast": "_Value | str",
    "values": "Any",
    "operands": "_Value",
    "args": "_Value",
    "buffers": "tuple[Any, ...]",
    "changes": "Any",
    "slot": "_Region",
}

# {function: {parameter: its type there, "return": the type of the result}}
OF: dict[str, dict[str, str]] = {
    **{name: {"a": "_Operand", "b": "_Operand"} for name in ("dot", "mma")},
    "dot_scaled": {"a": "_Operand", "b": "_Operand", "scale_a": "_Operand | None", "scale_b": "_Operand | None",
                   "scale_layout": "str"},
    **{
        name: {"axis": "int"}
        for name in words(
            "program_id num_programs cluster_id cumsum cumprod fragment_index stack sort argsort gather"
        )
    },
    **{
        name: {"return": "None"}
        for name in words(
            "static_assert static_print device_assert device_print assume copy store prefetch store_async "
            "reduce_async sync threadfence cp_async_commit cp_async_wait bulk_commit bulk_wait mma_commit "
            "mma_wait cluster_sync cluster_arrive cluster_wait fence_proxy_async fence_proxy_tensormap "
            "fence_mbarrier_init griddepcontrol_wait griddepcontrol_launch_dependents tcgen05_st tcgen05_wait "
            "tcgen05_commit tcgen05_fence _Buffer.dealloc _Barrier.arrive _Barrier.arrive_expect_tx "
            "_Barrier.expect_tx _Barrier.arrive_on_copies _Barrier.wait _NamedBarrier.sync "
            "_NamedBarrier.arrive _Ring.release _Ring.skip _Slot.release _Token.wait _Turns.take "
            "_Turns.pass_on _TensorMap.fence_acquire _TensorMap.fence_release _TensorMap.prefetch "
            "_TensorMap.publish _TensorMap.rebind _TensorMap.seed"
        )
    },
    **{name: {"return": "_Scope[None]"} for name in words("warp thread elect expect_variant named_range")},
    "warpgroup": {"i": "_Threads", "return": "_Scope[None]"},
    **{
        name: {"over": "builtins.range | Iterable[int]", "return": "_Scope[_Tile]"}
        for name in words("each_warpgroup each_warp")
    },
    **{
        name: {"lane": "_Value", "mask": "_Value", "delta": "_Value"}
        for name in words("shuffle shuffle_xor shuffle_up shuffle_down")
    },
    "alloc": {"return": "_Buffer"},
    "array": {
        "address": "_Value",
        "shape": "Sequence[_Value] | _Value",
        "strides": "Sequence[_Value] | _Value | None",
        "align": "int | None",
        "return": "_Buffer",
    },
    "window": {
        "array": "_Buffer",
        "offsets": "Sequence[_Value] | _Value",
        "extents": "Sequence[_Value | None] | _Value | None",
        "return": "_Buffer",
    },
    "arange": {"start": "int", "stop": "int"},
    "full": {"shape": "_Extents"},
    **{name: {"return": "tuple[_Tile, _Tile]"} for name in words("frexp sincos")},
    "topk": {"axis": "int", "k": "int", "return": "tuple[_Tile, _Tile]"},
    **{name: {"axis": "int"} for name in words("_Tile.sort _Tile.argsort")},
    "stack": {"axis": "int", "tiles": "Sequence[_Value]"},
    "concatenate": {"axis": "int", "tiles": "Sequence[_Value]"},
    **{name: {"seed": "_Value", "offset": "Sequence[_Value] | _Value"} for name in ("randint", "rand", "randn")},
    "philox": {
        "seed": "_Value",
        "offset": "Sequence[_Value] | _Value",
        "return": "tuple[_Tile, _Tile, _Tile, _Tile]",
    },
    "reshape": {"shape": "_Extents"},
    "expand_dims": {"axis": "_Axes"},
    "atomic_cas": {},
    "mbarrier": {"n": "int", "return": "_Barrier"},
    "copy_async": {"prefetch": "int", "return": "_Token"},
    "named_barrier": {"n": "int", "return": "_NamedBarrier"},
    "turns": {"n": "int", "return": "_Turns"},
    "ring": {"multicast": "bool", "return": "_Ring"},
    "cluster_size": {"return": "int"},
    "range": {"return": "Iterable[_Tile]"},
    "static_range": {"args": "int", "return": "Iterable[int]"},
    "tile_order": {"return": "Iterable[tuple[_Tile, _Tile]]"},
    "tile_at": {"return": "tuple[_Tile, _Tile]"},
    "im2col": {
        "images": "_Buffer",
        "filter": "Sequence[int]",
        "stride": "_Extents",
        "padding": "int | Sequence[int | tuple[int, int]]",
        "dilation": "_Extents",
        "return": "_ImageMatrix",
    },
    "tensor_map": {"return": "_TensorMap"},
    "fence_proxy_tensormap": {"m": "_TensorMap | _Memory"},
    "mma_async": {"acc": "_A", "a": "_Operand", "b": "_Operand", "accumulate": "_Value"},
    "mma_wait": {"n": "int"},
    "cp_async_wait": {"n": "int"},
    "bulk_wait": {"n": "int"},
    "static_assert": {"condition": "Any", "return": "None"},
    "warp_reduce": {"op": "str"},
    "tcgen05_ld": {"shape": "str"},
    "tcgen05_st": {"shape": "str", "return": "None"},
    "thread": {"i": "_Threads", "return": "_Scope[None]"},
    "warp": {"i": "_Threads", "return": "_Scope[None]"},
    "fragment_index": {"t": "_Tile", "axis": "int"},
    "_Buffer.peer": {"return": "_Buffer"},
    "_Buffer.permute": {"dims": "_Extents", "more": "int", "return": "_Buffer"},
    "_Buffer.reshape": {"more": "int", "return": "_Buffer"},
    "_Buffer.view": {"return": "_Buffer"},
    "_Buffer.take": {"indices": "_Tile | tuple[_Value, ...] | _Memory", "return": "_Rows"},
    "_Buffer.tiles": {"return": "_Boxes"},
    "_Region.view": {"return": "_Buffer"},
    "_Barrier.peer": {"return": "_Barrier"},
    "_Barrier.arrive_expect_tx": {"nbytes": "_Value", "return": "None"},
    "_Barrier.expect_tx": {"nbytes": "_Value", "return": "None"},
    "_Tile.transpose": {"axes": "_Extents"},
    "_Ring.produce": {"return": "_Scope[_Slot]"},
    "_Ring.consume": {"return": "_Scope[_Slot]"},
    "_TensorMap.rebind": {"array": "_Operand", "shape": "Sequence[_Value] | _Value", "return": "None"},
    # Functions of plain Python.
    "swizzled": {"shape": "_Extents"},
    "padded": {"dtype": "_DTypeLike", "return": "DType"},
    "empty": {"shape": "_Extents", "dtype": "_DTypeLike"},
}

# Functions with several signatures: for each, the types that differ from those above.
OVERLOADS: dict[str, list[dict[str, str]]] = {
    "to_device": [{"array": "Packed", "return": "Packed"}, {"array": "Any", "return": "DeviceArray"}],
    "verify": [{}, dict.fromkeys(words("rtol atol seed target"), "Any")],  # of ``**blocks``, a dict of ints
    "plan_copy": [{}, dict.fromkeys(words("op scope threads target"), "Any")],
    "Kernel.compile": [{}, {"target": "Any"}],
    "Kernel.simulate": [{}, dict.fromkeys(words("seed checks target max_steps timeline"), "Any")],
    "cdiv": [
        {"a": "int", "b": "int", "return": "int"},
        {},
        {"a": "SupportsIndex", "b": "SupportsIndex", "return": "int"},
    ],
    "reduce": [{"x": "tuple[_Value, ...]", "return": "tuple[_Tile, ...]"}, {}],
    "scan": [{"x": "tuple[_Value, ...]", "return": "tuple[_Tile, ...]"}, {}],
    "asm": [
        {"result": "None", "return": "None"},
        {"result": "tuple[_DTypeLike, ...]", "return": "tuple[_Tile, ...]"},
        {"result": "_DTypeLike"},
    ],
    "mma_async": [{"acc": "None"}, {"acc": "_A", "return": "_A"}],
    "pipelined": [
        {"over": "builtins.range", "return": "Iterable[int]"},
        {"over": "Iterable[_T]", "return": "Iterable[_T]"},
    ],
}

# Attributes of values.
ATTRIBUTES = {
    "shape": "tuple[int, ...]",
    "strides": "tuple[int, ...]",
    "box": "tuple[int, ...]",
    "dtype": "DType",
    "nbytes": "int",
    "ndim": "int",
    "size": "int",
    "T": "_Tile",
}
