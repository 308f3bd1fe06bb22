"""The operators and types of asynchronous reductions.

They go to global memory, to a peer's shared memory, or through a tensor map.

PTX ISA, "Data Movement and Conversion Instructions: cp.reduce.async.bulk".
The simulator and the emitter use this table.
"""

from __future__ import annotations

KINDS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")

_BITS = {"int32": "b32", "uint32": "b32", "int64": "b64", "uint64": "b64"}

# dtype -> element type of the tensor map. Bitwise operators, and sums of int64, use unsigned types, with equal results.
# The hardware faults on types other than these, although the driver and the assembler accept them.
_MAP_BITS = {"int32": "uint32", "uint32": "uint32", "int64": "uint64", "uint64": "uint64"}
_MAP_ORDER = {n: n for n in ("int32", "uint32", "int64", "uint64", "float16", "bfloat16")}

# (destination, operator) -> {dtype: type of the instruction or the map}. Sums of int64 use u64,
# which gives equal results.
TYPES = {
    ("global", "add"): {"int32": "s32", "uint32": "u32", "int64": "u64", "uint64": "u64", "float32": "f32",
                        "float64": "f64", "float16": "noftz.f16", "bfloat16": "noftz.bf16"},
    ("global", "min"): {"int32": "s32", "uint32": "u32", "int64": "s64", "uint64": "u64", "float16": "f16",
                        "bfloat16": "bf16"},
    ("global", "max"): {"int32": "s32", "uint32": "u32", "int64": "s64", "uint64": "u64", "float16": "f16",
                        "bfloat16": "bf16"},
    ("global", "inc"): {"uint32": "u32"},
    ("global", "dec"): {"uint32": "u32"},
    **{("global", kind): _BITS for kind in ("and", "or", "xor")},
    ("shared", "add"): {"int32": "s32", "uint32": "u32", "int64": "u64", "uint64": "u64"},
    ("shared", "min"): {"int32": "s32", "uint32": "u32"},
    ("shared", "max"): {"int32": "s32", "uint32": "u32"},
    ("shared", "inc"): {"uint32": "u32"},
    ("shared", "dec"): {"uint32": "u32"},
    **{("shared", kind): {"int32": "b32", "uint32": "b32"} for kind in ("and", "or", "xor")},
    ("tensor map",
     "add"): _MAP_ORDER | {"int32": "int32", "int64": "uint64", "float32": "float32", "float64": "float64"},
    ("tensor map", "min"): _MAP_ORDER,
    ("tensor map", "max"): _MAP_ORDER,
    ("tensor map", "inc"): {"uint32": "uint32"},
    ("tensor map", "dec"): {"uint32": "uint32"},
    **{("tensor map", kind): _MAP_BITS for kind in ("and", "or", "xor")},
}


def reduction(site, where: str | None = None) -> bool | str:
    """Whether the hardware has the reduction that a site asks for, in the scope of its destination or in `where` (a
    first component of the keys of `TYPES`). A string names the dtypes that it has instead."""
    kind = site.options.get("reduce")
    if kind is None:
        return True
    known = TYPES.get((where or site.dst.scope, kind), {})
    place = "through a tensor map" if where else f"in {site.dst.scope} memory"
    return site.src.dtype.name in known or f"reduce={kind!r} of {site.src.dtype}; {place} it takes {', '.join(known)}"
