"""Names: suggestions for misspelt ones, and valid names for allocations and kernels.

The base class of instruction names (``tile.ptx``) is here too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable
from difflib import SequenceMatcher, get_close_matches

from .errors import Loc


def suggest_nearest(name: str, names: Iterable[str]) -> str:
    """The text `` (did you mean 'x'?)`` for the closest of `names`; "" if none is close: of names that share letters
    only, such as `max` for ``sofmax``, none is."""
    close = get_close_matches(name, list(names), n=3) if isinstance(name, str) else ()
    near = [other for other in close if _is_near(name, other)]
    return f" (did you mean {near[0]!r}?)" if near else ""


def _is_near(name: str, other: str) -> bool:
    """Whether one name is the other with a few letters changed, or begins with it."""
    short = max(len(name), len(other)) <= 3
    begins = min(len(name), len(other)) >= 4 and (name.startswith(other) or other.startswith(name))
    return short or begins or SequenceMatcher(None, name, other).ratio() >= NEAR


NEAR = 0.7  # of the letters of two names, those that they share in order


def suggest_keyword(given: Iterable[str], names: Collection[str]) -> str:
    """A suggestion for the first keyword of `given` that is not in `names`: its counterpart in this language, or the
    closest of `names`; "" if there is none."""
    unknown = next((name for name in given if name not in names), None)
    if unknown is None:
        return ""
    return f"; write {KEYWORDS[unknown]}" if unknown in KEYWORDS else suggest_nearest(unknown, names)


def assigned_name(loc: Loc) -> str:
    """The variable to which a line of source assigns the expression at `loc`, also in ``full, empty =
    tile.mbarrier(), tile.mbarrier()``; '' if there is none."""
    text = loc.source_line
    if loc.end_line > loc.line:
        alone = re.fullmatch(r"\s*(\w+)\s*=\s*", text[:loc.column])
        return alone[1] if alone is not None else ""
    try:
        statements = ast.walk(ast.parse(text.strip()))
    except (SyntaxError, ValueError):
        return ""
    before = len(text) - len(text.lstrip())
    pairs = [(target, s.value) for s in statements if isinstance(s, ast.Assign) for target in s.targets]
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs += zip(target.elts, value.elts)
        elif (isinstance(target, ast.Name) and value.end_col_offset is not None
              and (before + value.col_offset, before + value.end_col_offset) == (loc.column, loc.end_column)):
            return target.id
    return ""


def _match_allocation(loc: Loc | None) -> re.Match[str] | None:
    if loc is None:
        return None
    return re.match(r"(?:\w+\.)*(alloc|mbarrier|ring)\(", loc.source_line[loc.column:])


def is_allocation(loc: Loc | None) -> bool:
    """Whether the source at `loc` allocates shared memory or mbarriers itself, so that the compiler did not."""
    return _match_allocation(loc) is not None


def allocation_name(name: str, loc: Loc | None) -> str:
    """The name in the kernel's source of the shared memory or mbarriers allocated at `loc`: ``s``, or for a ring
    ``r.A`` and ``r.full``, where `name` is that of the ring's buffer or barriers. '' if the source does not show a
    name."""
    call = _match_allocation(loc)
    if loc is None or call is None:
        return ""
    own = assigned_name(loc)
    return f"{own}.{name}" if own and call[1] == "ring" else own


# Names that a kernel's entry cannot have: the emitter's other symbols, libdevice's functions, and reserved names of PTX
# (PTX ISA, "Identifiers").
_TAKEN = re.compile(r"_|smem|text\d+|vprintf|__nv_\w*|WARP_SZ")


PROFILE_VARIABLE = "tilejit_profile"  # of a module: where a profiled kernel records, see emit/marks.py


def entry_name(kernel: str) -> str:
    """The name of a kernel's entry point in machine code: the kernel's name,
    or an encoding of it if PTX does not allow it."""
    if kernel.isascii() and not _TAKEN.fullmatch(kernel):
        return kernel
    return "kernel_" + re.sub(r"[^A-Za-z0-9_]", lambda other: f"_{ord(other[0]):x}", kernel)


# Names in NumPy and in other kernel languages -> what to write here.
ELSEWHERE = {
    **dict.fromkeys(("matmul", "gemm"), "tile.dot(a, b)"),
    **dict.fromkeys(("power", "pow"), "x ** y"),
    "square":                 "x * x",
    "add":                    "x + y",
    **dict.fromkeys(("sub", "subtract"), "x - y"),
    **dict.fromkeys(("mul", "multiply"), "x * y"),
    **dict.fromkeys(("divide", "true_divide"), "x / y"),
    "permute":                "tile.transpose(x, axes)",
    "trans":                  "tile.transpose(x)",
    "cat": "tile.concatenate(tiles, axis)",
    "join":                   "tile.stack((x, y), axis=-1)",
    "interleave":             "tile.stack((x, y), axis=-1), and tile.reshape",
    "split":                  "x[..., 0] and x[..., 1]",
    **dict.fromkeys(("ravel", "flatten"), "tile.reshape(x, -1)"),
    **dict.fromkeys(("swapaxes", "moveaxis"), "tile.transpose(x, axes)"),
    "stride":                 "x.strides[axis], in elements",
    **dict.fromkeys(("itemsize", "element_size"), "x.dtype.nbytes"),
    **dict.fromkeys(("finfo", "iinfo"),
                    "a number from outside of the kernel, as in LARGEST = float(np.finfo(np.float32).max)"),
    "squeeze":                "tile.reshape(x, shape)",
    "unsqueeze":              "tile.expand_dims(x, axis)",
    "broadcast":              "tile.broadcast_to(x, shape), or nothing: operands broadcast",
    "to_tensor":              "the number itself",
    "sign":                   "tile.where(x > 0, 1, tile.where(x < 0, -1, 0))",
    "empty":                  "tile.zeros(shape, dtype), or tile.alloc(shape, dtype) for shared memory",
    "zeros_like":             "tile.zeros(x.shape, x.dtype)",
    "ones_like":              "tile.ones(x.shape, x.dtype)",
    "full_like":              "tile.full(x.shape, value, x.dtype)",
    "logical_and":            "x & y",
    "logical_or":             "x | y",
    "logical_not":            "~x",
    **dict.fromkeys(("absolute", "fabs"), "tile.abs(x)"),
    **{f"arc{name}": f"tile.a{name}(x)" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "arctan2":                "tile.atan2(y, x)",
    "gammaln":                "tile.lgamma(x)",
    "gamma":                  "tile.tgamma(x)",
    "rint":                   "tile.round(x)",
    "amax":                   "tile.max(x, axis)",
    "amin":                   "tile.min(x, axis)",
    "associative_scan":       "tile.scan(x, axis, combine)",
    "bincount":               "tile.histogram(x, bins)",
    **{f"reduce_{name}": f"tile.{name}(x, axis)" for name in ("sum", "max", "min")},
    "reduce_absmax":          "tile.max(tile.abs(x), axis)",
    **dict.fromkeys(("xor_sum", "reduce_or"), "tile.reduce(x, axis, combine)"),
    "map_elementwise":        "a helper under @tile.jit, called with tiles",
    "bitonic_merge":          "tile.sort(x)",
    **dict.fromkeys(("if_then_else", "select"), "tile.where(condition, x, y)"),
    "clamp":                  "tile.clip(x, low, high)",
    "view":                   "tile.bitcast(x, dtype), or tile.reshape(x, shape)",
    **dict.fromkeys(("fdiv", "div_rn"), "x / y"),
    "sqrt_rn":                "tile.sqrt(x)",
    **dict.fromkeys(("umulhi", "mulhi", "mul_hi"), "(tile.uint64(x) * y) >> 32"),
    "randint4x":              "tile.philox(seed, offset)",
    "philox_impl":            "tile.philox(seed, (c0, c1, c2, c3))",
    **dict.fromkeys(("rand4x", "uint_to_uniform_float"),
                    "tile.where(x < 0, ~x, x) * 4.6566127342e-10 of x = tile.bitcast(word, tile.int32), for the words "
                    "of tile.philox"),
    **dict.fromkeys(("randn4x", "pair_uniform_to_normal"), "tile.randn(seed, offset)"),
    **dict.fromkeys(("math", "libdevice", "extra"), "the function itself, as in tile.exp(x)"),
    "atomic_sub":             "tile.atomic_add(place, -value)",
    **{f"atomic{name}": f"tile.atomic_{name.lower()}(place, value)"
       for name in ("Add", "Max", "Min", "And", "Or", "Xor", "Exch")},
    "atomic_xchg":            "tile.atomic_exch(place, value)",
    "atomicCAS":              "tile.atomic_cas(place, compare, value)",
    "atomic_load":            'tile.load(place, sem="acquire")',
    "atomic_store":           'tile.store(place, value, sem="release")',
    "atomic_poll":            'while tile.load(place, sem="acquire") != value: pass',
    **dict.fromkeys(("debug_barrier", "syncthreads", "sync_threads", "syncwarp", "sync_warp"), "tile.sync()"),
    "inline_asm_elementwise": "tile.asm(text, result, *operands)",
    "clock64":                "tile.clock()",
    **dict.fromkeys(("pid", "blockIdx", "block_idx"), "tile.program_id(axis)"),
    **dict.fromkeys(("gridDim", "grid_dim"), "tile.num_programs(axis)"),
    **dict.fromkeys(("threadIdx", "thread_idx"), "tile.thread_id()"),
    **dict.fromkeys(("blockDim", "block_dim"), "a constant: a CTA has 32 * num_warps threads"),
    **dict.fromkeys(("shared", "alloc_shared"), "tile.alloc(shape, dtype)"),
    **dict.fromkeys(("alloc_fragment", "alloc_local"), "tile.zeros(shape, dtype)"),
    "fill":                   "tile.store(buffer, value), or tile.full(shape, value, dtype)",
    **dict.fromkeys(("make_block_ptr", "make_tensor_descriptor", "tensor_descriptor", "advance"),
                    "x[i:i + BLOCK, j:j + BLOCK]"),
    "load_tensor_descriptor": "tile.load(x[i:i + BLOCK, j:j + BLOCK])",
    "store_tensor_descriptor": "tile.store(x[i:i + BLOCK, j:j + BLOCK], value)",
    **dict.fromkeys(("ds", "dslice"), "x[start:start + BLOCK]"),
    "multiple_of":            "tile.assume(x % n == 0)",
    "max_contiguous":         "nothing: tile.arange is known to be contiguous",
    "max_constancy":          "nothing: the compiler follows the arithmetic of indices",
    "expect_zero":            "tile.device_assert((x == 0) | ~mask)",
    "condition":              "the condition itself, as in while n > 0",
    "const":                  "nothing: the compiler sees which arrays a kernel writes",
    "async_task":             "with tile.warpgroup(i)",
    "next_power_of_2":        "any extent: it need not be a power of two",
    **dict.fromkeys(("ceildiv", "ceil_div"), "tile.cdiv(a, b)"),
    "Pipelined":              "tile.pipelined(range(...), stages=n)",
    "Parallel":               "what is done to whole tiles, as in x * 2",
    "fori_loop":              "for i in range(n)",
    "clear":                  "tile.store(buffer, 0), or tile.zeros(shape, dtype)",
    **dict.fromkeys(("swizzle2d", "use_swizzle"), 'tile.tile_order(tiles_m, tiles_n, order="grouped", group=n)'),
    "alloc_barrier":          "tile.mbarrier(count)",
    "alloc_tmem":             'tile.alloc(shape, dtype, scope="tmem")',
    **dict.fromkeys(("fp16", "half"), "tile.float16"),
    "bf16":                   "tile.bfloat16",
    "fp32":                   "tile.float32",
    "fp64":                   "tile.float64",
    **dict.fromkeys(("fp8", "float8", "float8e4nv", "e4m3"), "tile.float8_e4m3fn"),
    **dict.fromkeys(("float8e5", "e5m2"), "tile.float8_e5m2"),
    "int1":                   "tile.bool_",
    **dict.fromkeys(("int4", "uint4"), "two in a byte of tile.uint8, as in tile.stack((q & 15, q >> 4), -1)"),
    "inf":                    'float("inf")',
    "nan":                    'float("nan")',
    "take_along_axis":        "tile.gather(x, index, axis)",
    "take":                   "x[index], or tile.gather(x, index, axis)",
    **{f"flip{way}": f"tile.flip(x, {axis})" for way, axis in (("ud", 0), ("lr", 1))},
    "softmax":                "tile.exp(x - tile.max(x)), divided by its tile.sum",
    "log_softmax":            "y - tile.log(tile.sum(tile.exp(y))), where y = x - tile.max(x)",
    "logsumexp":              "most + tile.log(tile.sum(tile.exp(x - most))), where most = tile.max(x)",
    "relu":                   "tile.maximum(x, 0)",
    **dict.fromkeys(("silu", "swish"), "x * tile.sigmoid(x)"),
    "gelu":                   "0.5 * x * (1 + tile.erf(x * 0.70710678))",
    "var":                    "tile.mean((x - tile.mean(x)) ** 2)",
    "std":                    "tile.sqrt(tile.mean((x - tile.mean(x)) ** 2))",
    "norm":                   "tile.sqrt(tile.sum(x * x))",
    "outer":                  "x[:, None] * y[None, :]",
    "eye":                    "tile.where(i[:, None] == i[None, :], 1.0, 0.0), where i = tile.arange(N)",
    "tril":                   "tile.where(i[:, None] >= i[None, :], x, 0), where i = tile.arange(N)",
    "triu":                   "tile.where(i[:, None] <= i[None, :], x, 0), where i = tile.arange(N)",
    "repeat":                 "tile.broadcast_to(x[:, None], (N, n)), and tile.reshape",
    "tile":                   "tile.broadcast_to(x[None, :], (n, N)), and tile.reshape",
    "roll":                   "x[(tile.arange(N) - n) % N]",
    "pad":                    "nothing: what is loaded beyond an array is other=",
    **dict.fromkeys(("mod", "remainder"), "x % y"),
    "bitwise_and":            "x & y",
    "bitwise_or":             "x | y",
    "bitwise_xor":            "x ^ y",
    **dict.fromkeys(("bitwise_not", "invert"), "~x"),
    "reciprocal":             "1 / x",
    "cummax":                 "tile.scan(x, axis, tile.maximum)",
    "cummin":                 "tile.scan(x, axis, tile.minimum)",
    **dict.fromkeys(("nonzero", "compress"),
                    "tile.store(buffer[tile.cumsum(n) - n], x, mask=n > 0), where n = tile.int32(condition)"),
    **dict.fromkeys(("popc", "popcount"), "tile.ptx.popc.b32(x)"),
    "clz":                    "tile.ptx.clz.b32(x)",
    "brev":                   "tile.ptx.brev.b32(x)",
    **dict.fromkeys(("shfl", "shfl_sync"), "tile.shuffle(x, lane)"),
    **{name + sync: f"tile.shuffle_{name[5:]}(x, {operand})"
       for name, operand in (("shfl_xor", "mask"), ("shfl_up", "delta"), ("shfl_down", "delta"))
       for sync in ("", "_sync")},
    "ballot_sync":            "tile.ballot(condition)",
    **{f"{kind}_sync": f"tile.warp_{kind}(condition)" for kind in ("any", "all")},
    **dict.fromkeys(("match_any", "match_any_sync"), "tile.match(x)"),
}


# The same for names that are used outside of kernels.
OUTSIDE = {
    "Config":      "a dict of constants and launch options, as in tile.autotune([dict(BLOCK=128, num_warps=4)])",
    "heuristics":  "a constant of the launch, as in kernel[grid](x, BLOCK=block_of(x))",
    "pallas_call": "kernel[grid](*arrays)",
    **dict.fromkeys(("kernel", "prim_func", "macro"), "@tile.jit"),
}

# Keywords in other kernel languages -> what to write here.
KEYWORDS = {
    **dict.fromkeys(("allow_tf32", "input_precision"), 'precision="tf32", or nothing for exact float32'),
    **dict.fromkeys(("out_dtype", "preferred_element_type"), "dtype="),
    "transpose_A": "trans_a=", "transpose_B": "trans_b=",
    "num_stages": "tile.pipelined(range(...), stages=n)",
    "num_ctas": "cluster=",
    **dict.fromkeys(("maxnreg", "max_nreg"), "max_registers="),
    **dict.fromkeys(("cache_modifier", "eviction_policy"), 'cache=, as in cache="cg" and cache="evict_last"'),
    **dict.fromkeys(("boundary_check", "padding_option"), "other= for what lies out of bounds: all regions are tested"),
    **dict.fromkeys(("keep_dims", "keepdim"), "keepdims="),
    "dim": "axis=",
    "num_bins": "bins=",
    "return_indices": "tile.argmax(x, axis) beside it",
    "bitcast": "tile.bitcast(x, dtype)",
    "volatile": 'sem="relaxed"',
}


def find_counterpart(name: str) -> str:
    """What to write here for a name of NumPy or of another kernel language; "" if there is no counterpart."""
    return ELSEWHERE.get(name) or (f"tile.{name}" if hasattr(sys.modules["tilejit"], name) else "")


def suggest_name(name: str, names: Iterable[str]) -> str:
    """A suggestion for a name that the package does not have: its counterpart, or the closest of `names`;
    "" if there is none."""
    instead = OUTSIDE.get(name) or ELSEWHERE.get(name)
    return f"; write {instead}" if instead else suggest_nearest(name, names)


def counterpart(function: object) -> str:
    """The text ``a function of numpy; in a kernel write tile.exp`` for a library function with a counterpart;
    "" for others."""
    library = (getattr(function, "__module__", None) or type(function).__module__).partition(".")[0]
    name = getattr(function, "__name__", "")
    if library not in ("numpy", "torch", "cupy", "jax", "scipy", "triton"):
        return ""
    if not find_counterpart(name):
        return ""
    return f"a function of {library}; in a kernel write {find_counterpart(name)}"


class InstructionName:
    """Base class of names under ``tile.ptx``, which kernels call; ``.form`` is the instruction form. It is defined
    here so that calls can be recognised without loading the instruction table."""
