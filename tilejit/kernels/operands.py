"""Checks the operands, results and epilogues of matrix products; errors say what does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from math import gcd
from typing import Any

import numpy as np
import tilejit as tile

from ..errors import LaunchError
from ..frontend.source import MISSING
from ..runtime.arguments import plain_constant
from ..runtime.arrays import ArrayView, array_keys, describe
from ..runtime.element_types import fits_float32
from .matmul.blackwell.config import BlackwellConfig
from .matmul.config import Config
from .matmul.config_rules import check_fields
from .traced import needs_gradient, no_gradient

RESULTS = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float8_e4m3fn": "bfloat16",
           "float8_e5m2": "bfloat16", "int8": "int32", "uint8": "int32"}  # dtype of the operands -> dtype of the result
NOTHING = (0,) * 4  # placeholders for an epilogue's arguments, of which there are at most four
HOPPER, BLACKWELL = ("sm_90a",), ("sm_100a", "sm_103a")
# element sizes of A and of B that need not be K-major (A of 4 bytes then comes from registers)
EITHER_MAJOR = {"sm_90a": ((2, 4), (2,))}


def check_no_gradient(kernel: str, *arrays: Any, missing: str = "") -> None:
    """LaunchError if torch would have to compute gradients of the arrays, which the kernel would drop. `missing` says
    of which calls it has none."""
    if needs_gradient(*arrays):
        raise LaunchError(no_gradient(kernel, missing))


def result_dtype(operands: str, scaled: tuple) -> str:
    """The dtype of a new result. Sums of integers stay integers unless they are scaled."""
    dtype = RESULTS.get(operands, "bfloat16")
    return "float32" if scaled and dtype == "int32" else dtype


def stored_by_tma(z: ArrayView, width: int) -> bool:
    """Whether TMA can store `width` columns of the result at once."""
    size = z.nbytes_per_element
    return (z.strides[-1] == 1 and z.pointer % 16 == 0 and z.shape[-1] * size % 16 == 0
            and all(s > 0 and s * size % 16 == 0 for s in z.strides[:-1]) and width * size >= 32)


def comes_ahead(tile: ArrayView, z: ArrayView, width: int) -> bool:
    """Whether TMA can load `width` columns of an array of the result's shape to the staging buffer of the result's."""
    return tile.dtype == z.dtype and stored_by_tma(tile, width) and stored_by_tma(z, width)


def line_comes_ahead(line: ArrayView, width: int) -> bool:
    """Whether TMA can load `width` elements of a row at once to a contiguous buffer."""
    size = line.nbytes_per_element
    return (line.strides[-1] == 1 and line.pointer % 16 == 0
            and all(s > 0 and s * size % 16 == 0 for s in line.strides[:-1])
            and width <= 256 and width * size % 128 == 0)


def axes_of(tiles: list[ArrayView], z: ArrayView) -> tuple[str, ...]:
    """The axes of each of an epilogue's tiles, a letter each: "m" and "n" are rows and columns of the result, "z" all
    of its leading extents, "1" is an extent of 1 (in front, one for all leading extents). LaunchError for arrays that
    do not broadcast to the result."""
    for i, t in enumerate(tiles):
        if t.device != z.device:
            raise LaunchError(f"the result is on {z.device}, and tiles[{i}] on {t.device}")
    return tuple(_axes(f"tiles[{i}]", t.shape, z.shape) for i, t in enumerate(tiles))


def _axes(name: str, shape: tuple[int, ...], result: tuple[int, ...]) -> str:
    *before, m, n = result
    lead = tuple(before)
    rows = "zn" if lead and shape == (*lead, n) else ""
    as_numpy = _broadcast(shape, lead, m, n)
    if rows and as_numpy[-2:] == "mn" and m > 1:
        raise LaunchError(f"{name} of shape {shape} may be a row for each matrix of the result or one matrix for all "
                          f"of them: reshape it to {(*lead, 1, n)} or to {(*(1,) * len(lead), m, n)}")
    if not (rows or as_numpy):
        taken = dict.fromkeys((result, (*lead, 1, n), (*lead, m, 1), (m, n), (1, n), (m, 1), (n,), (*lead, n)))
        raise LaunchError(f"tiles must broadcast to the result's shape, as arrays of {', '.join(map(str, taken))} do, "
                          f"and {name} is of {shape}")
    return rows or as_numpy


def _broadcast(shape: tuple[int, ...], lead: tuple[int, ...], m: int, n: int) -> str:
    """The axes of an array that broadcasts in NumPy's way to matrices of m by n, one for each leading index or the
    same for all; "" if it does not."""
    *before, rows, columns = (1, *shape) if len(shape) == 1 else shape or (0, 0)
    first = "z" if tuple(before) == lead else "1"
    if (rows not in (1, m) or columns not in (1, n) or len(before) > len(lead)
        or first == "1" and any(e != 1 for e in before)):
        return ""
    axes = ("m" if rows == m else "1") + ("n" if columns == n else "1")
    return axes[-1] if len(shape) == 1 else first * bool(before) + axes


# -- errors that name an argument as the caller knows it ---------------------------------------------------------------

TILES = tuple(f"tiles[{i}]" for i in range(len(NOTHING)))


def describe_operand(name: str, x) -> ArrayView:
    """The view of an array. LaunchError, with its name, if it is none."""
    try:
        return describe(x)
    except LaunchError as error:
        raise LaunchError(f"{name}: {error}") from None


def seen_as(names: Iterable[str], arrays) -> tuple[tuple, list[int]]:
    """What `seen` returns for the arrays. LaunchError with the name of the first that is no array."""
    try:
        return array_keys(arrays)
    except LaunchError:
        for name, x in zip(names, arrays):
            describe_operand(name, x)
        raise


def check_number(name: str, x: float) -> None:
    """LaunchError for an int that does not fit in 64 bits, or a float that does not fit in float32."""
    if isinstance(x, float) and not fits_float32(x) or isinstance(x, int) and not -2 ** 63 <= x < 2 ** 63:
        raise LaunchError(f"{name} must be a number that {'float32' if isinstance(x, float) else 'int64'} holds, "
                          f"not {x}; otherwise pass an array of one element of a wider dtype")


def check_arguments(arguments, device) -> None:
    """LaunchError for an epilogue's argument that is neither a number nor an array on the operands' device."""
    for i, x in enumerate(arguments):
        name, x = f"arguments[{i}]", plain_constant(x)
        if isinstance(x, (int, float)):
            check_number(name, x)
        elif (there := describe_operand(name, x).device) != device:
            raise LaunchError(f"the operands are on {device}, and {name} on {there}")


# -- what does not fit -------------------------------------------------------------------------------------------------

def extents_of(x: ArrayView, y: ArrayView) -> tuple[tuple[int, ...], int, int, int]:
    """(leading extents, M, N, K). LaunchError if the shapes do not fit each other."""
    for name, v in (("a", x), ("b", y)):
        if len(v.shape) < 2:
            raise LaunchError(f"{name} must be a matrix, or a batch of matrices, not of shape {v.shape}")
    (*batch, m, k), (*other, k2, n) = x.shape, y.shape
    if k != k2:
        raise LaunchError(f"a is [{m}, {k}] and b is [{k2}, {n}]: their inner extents differ")
    if batch and other and batch != other:
        raise LaunchError(f"the leading extents of a are {tuple(batch)} and those of b are {tuple(other)}: "
                          "they must be equal, or one must have none")
    if x.device != y.device:
        raise LaunchError(f"a and b must be on one device, and a is on {x.device} and b on {y.device}")
    return tuple(batch or other), m, n, k


def check_target(target: str, x: ArrayView, config) -> None:
    if target not in HOPPER + BLACKWELL:
        raise LaunchError(f"matmul has kernels for {', '.join(HOPPER + BLACKWELL)}, and the target is {target}")
    if target == "sm_103a" and x.dtype in ("int8", "uint8"):
        raise LaunchError(f"the tensor cores of sm_103a multiply no integers, and a is of {x.dtype}")
    kind = Config if target in HOPPER else BlackwellConfig
    if not isinstance(config, (kind, type(None))):
        raise LaunchError(f"config is a {kind.__name__} for {target}, not {config!r}")
    if config is not None:
        check_fields(**vars(config))


def in_byte(x: ArrayView, y: ArrayView, target: str) -> int:
    """The elements of the operands in a byte: 2 for float4, which is packed along k, else 1."""
    four = [v.dtype == "float4_e2m1fn" for v in (x, y)]
    if not any(four):
        return 1
    if target not in BLACKWELL:
        raise LaunchError(f"float4 is multiplied by the tensor cores of {' and '.join(BLACKWELL)}, "
                          f"and the target is {target}")
    if not all(four):
        raise LaunchError(f"a is of {x.dtype} and b of {y.dtype}; the tensor cores take two operands of one kind")
    for name, v, k in (("a", x, -1), ("b", y, -2)):
        if len(v.shape) > 1 and v.strides[k] != 1:
            raise LaunchError(f"pairs of float4 must be contiguous along k: {name} has a stride of {v.strides[k]} "
                              "bytes there. Pass b as the transpose (.T) of packed [N, K]")
    return 2


def dtype_of_sums(x: ArrayView, y: ArrayView, precision: str | None):
    """The dtype in which products are summed. LaunchError for operands that the tensor cores do not multiply."""
    for name, v in (("a", x), ("b", y)):
        if v.dtype not in RESULTS:
            raise LaunchError(f"the tensor cores take {', '.join(RESULTS)}, and {name} is of {v.dtype}")
    kinds = [v.dtype.rstrip("0123456789_emfn") if v.nbytes_per_element == 1 else v.dtype for v in (x, y)]
    kinds = [k.removeprefix("u") for k in kinds]
    if kinds[0] != kinds[1]:
        raise LaunchError(f"a is of {x.dtype} and b of {y.dtype}; the tensor cores take two operands of one kind")
    if precision not in (None, "tf32") or precision and x.dtype != "float32":
        raise LaunchError(f"precision is None, or 'tf32' for operands of float32, not {precision!r} for {x.dtype}")
    if x.dtype == "float32" and precision is None:
        raise LaunchError("the tensor cores round float32 to TF32 (10 bits of mantissa); "
                          "pass precision='tf32' to accept that")
    return tile.int32 if kinds[0] == "int" else tile.float32


def check_out(z: ArrayView, shape: tuple[int, ...], sums, changed: bool) -> None:
    if z.shape != shape:
        raise LaunchError(f"out must be of shape {shape}, not {z.shape}")
    floats = z.dtype.startswith(("float", "bfloat"))
    if not changed and (z.dtype != "int32" if sums == tile.int32 else not floats):
        raise LaunchError(f"sums of {sums} are stored as {'int32' if sums == tile.int32 else 'floats'}, "
                          f"and out is of {z.dtype}")
    if 0 not in shape and overlaps(z):
        raise LaunchError("out has several elements at one address, as a broadcast view has: "
                          "pass an array without overlaps")
    if 0 not in shape and z.readonly:
        raise LaunchError("out is read-only: pass a writable array, or none to get a new one")


def overlaps(v: ArrayView) -> bool:
    """Whether two elements of a view may have one address: an axis has stride 0, or two axes meet."""
    steps = [(abs(s), e) for s, e in zip(v.strides, v.shape) if e > 1]
    return (any(s == 0 for s, _ in steps)
            or any(t // gcd(s, t) < e and s // gcd(s, t) < f for (s, e), (t, f) in combinations(steps, 2)))


def check_epilogue(epilogue, arguments, tiles) -> None:
    if epilogue is not None and not isinstance(epilogue, tile.Kernel):
        raise LaunchError("an epilogue is a function under @tile.jit")
    if epilogue is None and (arguments or tiles):
        raise LaunchError("arguments and tiles are passed to an epilogue, and none is given")
    if len(arguments) + len(tiles) > len(NOTHING):
        raise LaunchError(f"an epilogue takes up to {len(NOTHING)} arguments and tiles, "
                          f"not {len(arguments) + len(tiles)}; pass more values in one array")


def check_listed(**given) -> None:
    """LaunchError for arguments that are not a tuple or list."""
    for name, values in given.items():
        if not isinstance(values, (tuple, list)):
            raise LaunchError(f"{name} is a tuple, as in {name}=(bias,), not {type(values).__name__}")


def places_of(x: ArrayView, y: ArrayView) -> tuple[str, ...]:
    """In words, the parameters that a product's epilogue gets before its arguments."""
    return ("the sums", *(("the matrix's number",) if max(len(x.shape), len(y.shape)) > 2 else ()), "the row",
            "the column")


def check_parameters(epilogue, places: tuple[str, ...], more: int, role: str = "epilogue") -> None:
    """LaunchError if an epilogue, or a function with another role, cannot be called with `places`, and `more`
    arguments and tiles."""
    params = epilogue.source.params
    takes, count = sum(p.default is MISSING for p in params), len(places) + more
    if not takes <= count or count > len(params) and epilogue.source.rest is None:
        raise LaunchError(f"the {role} {epilogue.source.name} has the "
                          f"parameters ({', '.join(p.name for p in params)}), and it is called with {', '.join(places)}"
                          + (f" and {more} of the arguments{' and tiles' * (role == 'epilogue')}" if more else ""))


def span(v: ArrayView) -> tuple[int, int]:
    """The bytes that an array's elements occupy, relative to its address: (first, one past the last)."""
    if 0 in v.shape:
        return 0, 0
    ends = [(e - 1) * s * v.nbytes_per_element for e, s in zip(v.shape, v.strides)]
    return sum(n for n in ends if n < 0), sum(n for n in ends if n > 0) + v.nbytes_per_element


def check_apart(spans: tuple[tuple[int, int], ...], addresses: list[int], arrays: tuple,
                names: tuple[str, ...] = ("a", "b")) -> None:
    """LaunchError if the result, which is stored while operands are still read, overlaps one of them. `arrays` are
    the operands, called `names`, then the tiles and the result; `spans` are the bytes that they occupy relative to
    their `addresses`. A tile may be the same view as the result."""
    (first, last), at = spans[-1], addresses[-1]
    low, high = at + first, at + last
    for place, at in enumerate(addresses[:-1]):
        first, last = spans[place]
        if at + first < high and low < at + last:
            x, z, tile_of = describe(arrays[place]), describe(arrays[-1]), place - len(names)
            if tile_of < 0 or (x.pointer, x.shape, x.strides) != (z.pointer, z.shape, z.strides):
                _check_shared("out", z, f"tiles[{tile_of}]" if tile_of >= 0 else names[place], x)


def _check_shared(result: str, z: ArrayView, name: str, x: ArrayView) -> None:
    if np.shares_memory(_numpy_mirror(x), _numpy_mirror(z)):
        raise LaunchError(f"{result} overlaps {name}, which is read while results are stored: pass another array, "
                          f"or a copy of {name}")


def lines(v: ArrayView) -> tuple[int, int, int, int]:
    """Where a matrix is in memory, in bytes: its `span`, the length of the contiguous lines that cover it, and the
    distance between these."""
    (step, along), (pitch, _) = sorted((abs(s) * v.nbytes_per_element, e) for s, e in zip(v.strides, v.shape))
    return *span(v), (along - 1) * step + v.nbytes_per_element, max(pitch, 1)


def possible_overlaps(places: np.ndarray, addresses: np.ndarray) -> list[tuple[int, int]]:
    """Which results of a list may overlap an operand or an earlier result, as (number of the result, number among all
    arrays, with the results last). `places` holds the `lines` of two rows of operands and one of results, `addresses`
    where they begin."""
    first, last, width, pitch = places
    low, high, count = (addresses + first).ravel(), (addresses + last).ravel(), addresses.shape[1]
    begins, ends = low[-count:], high[-count:]
    # For each array, the number of results that overlap it: those that begin before it ends, minus those that end
    # before it begins. By sorting, since lists are long.
    met = np.searchsorted(np.sort(begins), high) - np.searchsorted(np.sort(ends), low, side="right")
    met[-count:] -= 1  # a result overlaps itself
    found = np.flatnonzero(met)
    if not len(found):
        return []
    at, result = np.nonzero((begins < high[found, None]) & (low[found, None] < ends))
    at, own = found[at], result + len(low) - count
    # disjoint columns of one matrix have the same pitch, and lines beside each other
    beyond = (low[at] - low[own]) % pitch.ravel()[own]
    beside = ((pitch.ravel()[at] == pitch.ravel()[own]) & (width.ravel()[own] <= beyond)
              & (beyond + width.ravel()[at] <= pitch.ravel()[own]))
    left = ~beside & ((at < len(low) - count) | (at < own))
    return list(zip(result[left].tolist(), at[left].tolist()))


def check_lists_apart(places: np.ndarray, addresses: np.ndarray, lists: tuple, names: tuple[str, ...],
                      order: tuple[int, ...]) -> None:
    """LaunchError if a result of a list, stored while operands of other products are read, overlaps an operand or
    another result. `lists` are two of operands and one of results, `order` the positions in them of what `places` and
    `addresses` describe (see `possible_overlaps`)."""
    for result, at in possible_overlaps(places, addresses):
        (side, other), g = divmod(at, len(order)), order[result]
        x, z, name = describe(lists[side][order[other]]), describe(lists[2][g]), f"{names[side]}[{order[other]}]"
        if side < 2:
            _check_shared(f"out[{g}]", z, name, x)
        elif np.shares_memory(_numpy_mirror(x), _numpy_mirror(z)):
            raise LaunchError(f"out[{g}] overlaps {name}: each product needs a result of its own")


def _numpy_mirror(v: ArrayView) -> np.ndarray:
    """A NumPy array at the same addresses, only for questions about its memory: it may not be read."""
    size = v.nbytes_per_element
    interface = dict(version=3, data=(v.pointer, True), shape=v.shape, strides=tuple(s * size for s in v.strides),
                     typestr=f"|V{size}")
    return np.asarray(type("Mirrored", (), {"__array_interface__": interface})())
