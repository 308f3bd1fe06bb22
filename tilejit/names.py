"""Names: suggestions for those that do not exist, and what tells an instruction's without loading the instruction table."""

from __future__ import annotations

import ast
import re
import sys

from .errors import Loc


def nearest(name: str, names) -> str:
    """`` (did you mean 'x'?)`` for the closest of `names`, or nothing."""
    from difflib import get_close_matches
    close = get_close_matches(name, list(names), n=1) if isinstance(name, str) else ()
    return f" (did you mean {close[0]!r}?)" if close else ""


def misspelt(given, names) -> str:
    """The closest of `names` to the first keyword of `given` that is none of them, or nothing."""
    unknown = next((name for name in given if name not in names), None)
    return nearest(unknown, names) if unknown is not None else ""


def assigned_name(loc: Loc) -> str:
    """The name that a line of source gives what stands at `loc`, as in ``full, empty = tile.mbarrier(), tile.mbarrier()``; else ''."""
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
        elif isinstance(target, ast.Name) and (before + value.col_offset, before + value.end_col_offset) == (loc.column, loc.end_column):
            return target.id
    return ""


def allocation_name(name: str, loc: Loc | None) -> str:
    """What a kernel calls the shared memory or the mbarriers that it makes at `loc`: ``s``, or ``r.A`` and ``r.full`` where `name` is
    that of a ring's buffer or barriers; '' where its source does not tell."""
    call = re.match(r"(?:\w+\.)*(alloc|mbarrier|ring)\(", loc.source_line[loc.column:]) if loc is not None else None
    own = assigned_name(loc) if call is not None else ""
    return f"{own}.{name}" if own and call[1] == "ring" else own


# What the emitter calls what stands beside a kernel, libdevice's functions, and what is no name of PTX (PTX ISA, "Identifiers").
_TAKEN = re.compile(r"_|smem|text\d+|vprintf|__nv_\w*|WARP_SZ")


def entry_name(kernel: str) -> str:
    """The name of a kernel's entry in its machine code: its own, if that can be one there."""
    if kernel.isascii() and not _TAKEN.fullmatch(kernel):
        return kernel
    return "kernel_" + re.sub(r"[^A-Za-z0-9_]", lambda other: f"_{ord(other[0]):x}", kernel)


# What NumPy and other languages of kernels call what stands here under another name.
ELSEWHERE = {
    "matmul":                 "tile.dot(a, b)",
    "power":                  "x ** y",
    "pow":                    "x ** y",
    "permute":                "tile.transpose(x, axes)",
    "trans":                  "tile.transpose(x)",
    "concatenate":            "tile.stack(tiles), and tile.reshape",
    "cat":                    "tile.stack(tiles), and tile.reshape",
    "join":                   "tile.stack((x, y), axis=-1)",
    "interleave":             "tile.stack((x, y), axis=-1), and tile.reshape",
    "ravel":                  "tile.reshape(x, -1)",
    "squeeze":                "tile.reshape(x, shape)",
    "sign":                   "tile.where(x > 0, 1, tile.where(x < 0, -1, 0))",
    "zeros_like":             "tile.zeros(x.shape, x.dtype)",
    "ones_like":              "tile.ones(x.shape, x.dtype)",
    "full_like":              "tile.full(x.shape, value, x.dtype)",
    "logical_and":            "x & y",
    "logical_or":             "x | y",
    "logical_not":            "~x",
    "associative_scan":       "tile.scan(x, axis, combine)",
    "atomic_sub":             "tile.atomic_add(place, -value)",
    "atomic_xchg":            "tile.atomic_exch(place, value)",
    "debug_barrier":          "tile.sync()",
    "inline_asm_elementwise": "tile.asm(text, result, *operands)",
    "pid":                    "tile.program_id(axis)",
    "multiple_of":            "tile.assume(x % n == 0)",
    "inf":                    'float("inf")',
    "nan":                    'float("nan")',
    "gather":                 "tile.load(buffer[index])",
    "softmax":                "tile.exp(x - tile.max(x)), divided by its tile.sum",
}


def counterpart(function) -> str:
    """``a function of numpy; in a kernel write tile.exp`` for one that the language has, or nothing."""
    library = (getattr(function, "__module__", None) or type(function).__module__).partition(".")[0]
    name = getattr(function, "__name__", "")
    if library not in ("numpy", "torch", "cupy", "jax", "scipy", "triton"):
        return ""
    here = f"tile.{name}" if hasattr(sys.modules["tilejit"], name) else ELSEWHERE.get(name)
    return f"a function of {library}; in a kernel write {here}" if here else ""


class InstructionName:
    """A name under ``tile.ptx``, which a kernel may call; ``.form`` is the row's form that it means."""
