"""Simulates PTX instructions that count or move bits, and integer products.

PTX ISA, "Integer Arithmetic Instructions", "Logic and Shift Instructions", "prmt".
"""

from __future__ import annotations

import numpy as np

from . import means


def _bits(a: np.ndarray) -> np.ndarray:
    """The bits of unsigned integers along an additional last dimension, least significant first."""
    return a[..., None] >> np.arange(8 * a.dtype.itemsize, dtype=a.dtype) & a.dtype.type(1)


@means(r"popc\.b(32|64)")
def count_of_ones(m, form, x):
    return _bits(x["a"]).sum(axis=-1).astype(np.uint32)


@means(r"clz\.b(32|64)")
def leading_zeros(m, form, x):
    bits = _bits(x["a"])[..., ::-1]
    return np.where(bits.any(axis=-1), bits.argmax(axis=-1), bits.shape[-1]).astype(np.uint32)


@means(r"brev\.b(32|64)")
def reversed_bits(m, form, x):
    a = x["a"]
    return (_bits(a)[..., ::-1] << np.arange(8 * a.dtype.itemsize, dtype=a.dtype)).sum(axis=-1, dtype=a.dtype)


@means(r"mul\.hi\.[us](32|64)")
def upper_half_of_product(m, form, x):
    a, b = x["a"], x["b"]
    return ((a.astype(object) * b.astype(object)) >> 8 * a.dtype.itemsize).astype(a.dtype)


def _field(x) -> tuple[np.ndarray, np.ndarray]:
    """The position and the length of a bit field: the lowest eight bits of each operand, with an axis for the bits."""
    return tuple((x[name].astype(np.int64) & 255)[..., None] for name in ("position", "length"))


@means(r"bfe\.[us](32|64)")
def extract_bits(m, form, x):
    """Bits beyond the field, or beyond the number, are the field's sign bit; for unsigned types zero."""
    a, (position, length) = x["a"], _field(x)
    own = np.dtype(f"u{a.dtype.itemsize}")
    bits = _bits(np.ascontiguousarray(a).view(own))
    width = bits.shape[-1]
    at = position + np.arange(width)
    bits = np.broadcast_to(bits, np.broadcast_shapes(bits.shape, position.shape, length.shape))

    def pick(n):
        n = np.broadcast_to(np.clip(n, 0, width - 1), (*bits.shape[:-1], np.shape(n)[-1]))
        return np.take_along_axis(bits, n, axis=-1)

    sign = np.where(length > 0, pick(position + length - 1), 0) if ".s" in form.name else own.type(0)
    found = np.where((np.arange(width) < length) & (at < width), pick(at), sign).astype(own)
    return (found << np.arange(width, dtype=own)).sum(axis=-1, dtype=own).view(a.dtype)


@means(r"bfi\.b(32|64)")
def insert_bits(m, form, x):
    """The lowest bits of `a` replace the field in `b`."""
    a, b, (position, length) = x["a"], x["b"], _field(x)
    own, width = a.dtype.type, 8 * a.dtype.itemsize
    at = np.arange(width)
    ones = ((at >= position) & (at < position + length)).astype(a.dtype)
    field = (ones << at.astype(a.dtype)).sum(axis=-1, dtype=a.dtype)
    shift = position[..., 0]
    moved = np.where(shift < width, a << np.minimum(shift, width - 1).astype(a.dtype), own(0))
    return b & ~field | moved & field


@means(r"bfind(\.shiftamt)?\.[us](32|64)")
def highest_bit(m, form, x):
    """The position of the highest one, or for a negative number of the highest zero; all ones if there is none."""
    a = x["a"]
    a = np.ascontiguousarray(np.where(a < 0, ~a, a)).view(f"u{a.dtype.itemsize}")
    bits = _bits(a)[..., ::-1]
    from_top = bits.argmax(axis=-1)
    at = from_top if ".shiftamt" in form.name else bits.shape[-1] - 1 - from_top
    return np.where(bits.any(axis=-1), at, 0xFFFFFFFF).astype(np.uint32)


@means(r"bmsk\.(clamp|wrap)\.b32")
def bit_mask(m, form, x):
    """Ones from `position` on, `length` of them."""
    position, length = (x[name].astype(np.uint64) for name in ("position", "length"))
    if ".wrap" in form.name:
        position, length = position & np.uint64(31), length & np.uint64(31)
    position, length = np.minimum(position, np.uint64(32)), np.minimum(length, np.uint64(32))
    return ((np.uint64(1) << length) - np.uint64(1) << position & np.uint64(0xFFFFFFFF)).astype(np.uint32)


@means(r"fns\.b32")
def nth_one(m, form, x):
    """The position of the `offset`-th one of `mask` from `base` on, upwards or, if `offset` is negative, downwards; 0
    means `base` itself."""
    mask, base, offset = (np.broadcast_arrays(x["mask"], x["base"], x["offset"])[i].astype(np.int64)[..., None]
                          for i in range(3))
    at = np.arange(32)
    ones = mask >> at & 1
    up, down = ones * (at >= base), ones * (at <= base)
    count = np.where(offset >= 0, np.cumsum(up, axis=-1), np.cumsum(down[..., ::-1], axis=-1)[..., ::-1])
    hit = np.where(offset > 0, up * (count == offset),
                   np.where(offset < 0, down * (count == -offset), ones * (at == base))).astype(bool)
    return np.where(hit.any(axis=-1), hit.argmax(axis=-1), 0xFFFFFFFF).astype(np.uint32)


# -- logic and shifts --------------------------------------------------------------------------------------------------

@means(r"lop3\.b32")
def lop3(m, form, x):
    """Where the bits of a, b and c, read as a number of three bits, are k, the result is bit k of the table."""
    result = np.uint32(0)
    for k in range(8):
        if x["table"] >> k & 1:
            term = np.uint32(0xFFFFFFFF)
            for name, bit in (("a", 4), ("b", 2), ("c", 1)):
                term = term & (x[name] if k & bit else ~x[name])
            result = result | term
    return result + np.zeros_like(x["a"])


_MODES = {"f4e": lambda k, i: k + i, "b4e": lambda k, i: k - i & 7, "rc8": lambda k, i: k + 0 * i, "ecl": np.maximum,
          "ecr": np.minimum,
          "rc16": lambda k, i: 2 * (k & 1) + i % 2}  # the byte that byte i of the result is, where the selector is k


@means(r"prmt\.b32\.(f4e|b4e|rc8|ecl|ecr|rc16)")
def permute_bytes_by_mode(m, form, x):
    k = x["selector"][..., None].astype(np.int64) & 3
    chosen = _MODES[form.name.split(".")[2]](k, np.arange(4))
    pool = (x["b"].astype(np.uint64) << np.uint64(32) | x["a"].astype(np.uint64))[..., None]
    picked = pool >> (8 * chosen).astype(np.uint64) & np.uint64(255)
    return (picked << np.arange(0, 32, 8, dtype=np.uint64)).sum(axis=-1)


@means(r"prmt\.b32")
def permute_bytes(m, form, x):
    """Each nibble of the selector picks one of eight bytes; if its top bit is set, the byte's sign bit is replicated
    instead."""
    pool = x["b"].astype(np.uint64) << np.uint64(32) | x["a"].astype(np.uint64)
    result = np.uint32(0)
    for i in range(4):
        nibble = (x["selector"] >> np.uint32(4 * i)) & np.uint32(15)
        byte = (pool >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint32) & np.uint32(255)
        byte = np.where(nibble & np.uint32(8), np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0)), byte)
        result = result | byte << np.uint32(8 * i)
    return result


@means(r"shf\.(l|r)\.(clamp|wrap)\.b32")
def funnel_shift(m, form, x):
    count = x["count"] & np.uint32(31) if ".wrap" in form.name else np.minimum(x["count"], np.uint32(32))
    both, count = x["high"].astype(np.uint64) << np.uint64(32) | x["low"].astype(np.uint64), count.astype(np.uint64)
    return (both << count) >> np.uint64(32) if ".l." in form.name else both >> count


# -- products of parts -------------------------------------------------------------------------------------------------

@means(r"dp4a\.(u32|s32)\.(u32|s32)")
def dot_of_bytes(m, form, x):
    kinds = [np.int8 if word == "s32" else np.uint8 for word in form.name.split(".")[1:]]
    a, b = (np.ascontiguousarray(v)[..., None].view(kind).astype(np.int64)
            for v, kind in zip(np.broadcast_arrays(x["a"], x["b"]), kinds))
    return ((a * b).sum(axis=-1) + x["c"].astype(np.int64)).astype(np.uint32)


@means(r"dp2a\.(lo|hi)\.(u32|s32)\.(u32|s32)")
def dot_of_halves(m, form, x):
    """The two halves of `a` with the lower or the upper two bytes of `b`."""
    half, *kinds = form.name.split(".")[1:]
    a, b = np.broadcast_arrays(x["a"], x["b"])
    a = np.ascontiguousarray(a)[..., None].view(np.int16 if kinds[0] == "s32" else np.uint16).astype(np.int64)
    b = np.ascontiguousarray(b)[..., None].view(np.int8 if kinds[1] == "s32" else np.uint8).astype(np.int64)
    return ((a * (b[..., :2] if half == "lo" else b[..., 2:])).sum(axis=-1) + x["c"].astype(np.int64)).astype(np.uint32)


# -- extremes of integers ----------------------------------------------------------------------------------------------

@means(r"(min|max)(\.relu)?\.(s32|s16x2|u16x2)")
def extreme_of_integers(m, form, x):
    """The smaller or the larger of each pair, of halves or of whole numbers; with .relu at least 0."""
    words = form.name.split(".")
    kind = {"s32": np.int32, "s16x2": np.int16, "u16x2": np.uint16}[words[-1]]
    a, b = (np.ascontiguousarray(v).view(kind) for v in np.broadcast_arrays(x["a"], x["b"]))
    found = (np.minimum if words[0] == "min" else np.maximum)(a, b)
    return (np.maximum(found, 0) if "relu" in words else found).view(x["a"].dtype)
