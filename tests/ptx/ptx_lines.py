"""Instruction forms that compute or exchange values: for each, a line of a kernel and the result expected by NumPy.

A line is an expression of `v` and `w`, one number per thread; `want` is a function of the arrays x and y of all threads' numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import tilejit as tile

THREADS = 64


@dataclass(frozen=True)
class Line:
    text: str             # the part after tile.ptx.
    of: str               # the dtype of v and w
    gives: str
    want: object          # of arrays of shape (THREADS,)
    within: float = 0.0   # allowed relative error, for approximate functions


def warps(x):
    return x.reshape(-1, 32)


def each_lane(found):
    """One number per warp, the same in all its lanes."""
    return np.repeat(found, 32)


def signed(x):
    return x.astype(np.uint32).view(np.int32).astype(np.int64)


def halves(x):
    return np.ascontiguousarray(x).view(np.uint16).reshape(-1, 2)


def prmt(x, y, order):
    """prmt: selects bytes of the pair (x, y), the lowest selector first."""
    pool = np.concatenate([x.view(np.uint8).reshape(-1, 4), y.view(np.uint8).reshape(-1, 4)], axis=1)
    return np.ascontiguousarray(np.take_along_axis(pool, np.broadcast_to(order, (len(x), 4)), axis=1)).view(np.uint32).ravel()


PRMT = {"f4e": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]], "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        "rc8": [[k] * 4 for k in range(4)], "ecl": [[max(k, i) for i in range(4)] for k in range(4)],
        "ecr": [[min(k, i) for i in range(4)] for k in range(4)], "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]]}


def bfe(x, position, length, top):
    """bfe of signed numbers: bits beyond the field or the number are filled with the sign."""
    return [((n >> position) & ((1 << length) - 1)) - ((1 << length) if n >> min(position + length - 1, top) & 1 else 0) for n in map(int, x)]


def bfind(x, bits=32):
    """bfind: the position of the highest 1; for a negative number, of the highest 0."""
    return np.array([n.bit_length() - 1 if n else 0xFFFFFFFF for n in (int(n) if n >= 0 else ~int(n) for n in x)], np.uint32)


def fns(x, base, offset):
    """fns: the position of the offset-th 1 from `base` on."""
    found = []
    for n in map(int, x):
        places = [k for k in (range(base, 32) if offset > 0 else range(base, -1, -1)) if n >> k & 1]
        found.append(places[abs(offset) - 1] if len(places) >= abs(offset) else 0xFFFFFFFF)
    return np.array(found, np.uint32)


def mask(position, length):
    return (((1 << min(length, 32)) - 1) << position) & 0xFFFFFFFF


def downwards(exact):
    """float64 to float32, rounded towards minus infinity."""
    near = exact.astype(np.float32)
    return np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)


def upwards(exact):
    return -downwards(-exact)


def truncated(exact):
    return np.where(exact > 0, downwards(exact), upwards(exact))


def added(x, y):
    """The sum of float32 numbers in float64, where it is exact if their exponents are close."""
    return x.astype(np.float64) + y


def pairs_of(kind):
    return lambda x, y: x.astype(kind).view(f"u{np.dtype(kind).itemsize}").astype(np.uint32) << (8 * np.dtype(kind).itemsize) | \
        y.astype(kind).view(f"u{np.dtype(kind).itemsize}")


def saturated(x, low, high):
    return np.clip(signed(x), low, high)


INTEGERS = [
    Line("prmt.b32(v, w, 0x0123)", "uint32", "uint32", lambda x, y: x.byteswap()),
    Line("prmt.b32(v, w, 0x7a41)", "uint32", "uint32", lambda x,
         y: prmt(x, y, [1, 4, 2, 7]) & ~np.uint32(0xff0000) | ((x >> 23 & 1) * 0xff0000).astype(np.uint32)),
    *(Line(f"prmt.b32.{m}(v, w, {k})", "uint32", "uint32", lambda x, y, o=order[k]: prmt(x, y, o)) for m,
      order in PRMT.items() for k in range(4)),
    Line("lop3.b32(v, w, 12, 0xE8)", "uint32", "uint32", lambda x, y: (x & y) | (x & 12) | (y & 12)),
    Line("lop3.b32(v, w, 12, 0x96)", "uint32", "uint32", lambda x, y: x ^ y ^ 12),
    *(Line(f"shf.l.{m}.b32(v, w, {n})", "uint32", "uint32", lambda x, y, s=s: (((y.astype("u8") << 32 | x) << s) >> 32).astype("u4"))
      for m, n, s in (("wrap", 8, 8), ("wrap", 40, 8), ("clamp", 31, 31))),
    *(Line(f"shf.r.{m}.b32(v, w, {n})", "uint32", "uint32", lambda x, y, s=s: ((y.astype("u8") << 32 | x) >> s).astype("u4"))
      for m, n, s in (("wrap", 8, 8), ("wrap", 40, 8), ("clamp", 40, 32))),
    Line("dp4a.u32.u32(v, w, 5)", "uint32", "uint32", lambda x,
         y: (x.view("u1").astype("i8").reshape(-1, 4) * y.view("u1").reshape(-1, 4)).sum(1) + 5),
    Line("dp4a.s32.u32(v, w, 5)", "uint32", "uint32", lambda x,
         y: (x.view("i1").astype("i8").reshape(-1, 4) * y.view("u1").reshape(-1, 4)).sum(1) + 5),
    Line("dp4a.s32.s32(v, w, 5)", "uint32", "uint32", lambda x,
         y: (x.view("i1").astype("i8").reshape(-1, 4) * y.view("i1").reshape(-1, 4)).sum(1) + 5),
    Line("dp2a.lo.s32.u32(v, w, 5)", "uint32", "uint32", lambda x,
         y: (x.view("i2").astype("i8").reshape(-1, 2) * y.view("u1").reshape(-1, 4)[:, :2]).sum(1) + 5),
    Line("dp2a.hi.u32.s32(v, w, 5)", "uint32", "uint32", lambda x,
         y: (x.view("u2").astype("i8").reshape(-1, 2) * y.view("i1").reshape(-1, 4)[:, 2:]).sum(1) + 5),
    Line("mov.b64.unpack(tile.ptx.mov.b64.pack((w, v)))[1]", "uint32", "uint32", lambda x, y: x),
    Line("mov.b32.pack(tile.ptx.mov.b32.unpack(v))", "uint32", "uint32", lambda x, y: x),
    Line("bfe.u32(v, 5, 11)", "uint32", "uint32", lambda x, y: x >> 5 & 0x7ff),
    Line("bfi.b32(v, w, 7, 9)", "uint32", "uint32", lambda x, y: y & ~np.uint32(0xff80) | (x & 0x1ff) << 7),
    Line("bfind.u32(v)", "uint32", "uint32", lambda x, y: bfind(x)),
    Line("bfind.shiftamt.u32(v)", "uint32", "uint32", lambda x, y: 31 - bfind(x)),
    Line("fns.b32(v, 3, 2)", "uint32", "uint32", lambda x, y: fns(x, 3, 2)),
    Line("fns.b32(v, 30, -4)", "uint32", "uint32", lambda x, y: fns(x, 30, -4)),
    Line("bmsk.clamp.b32(5, 40)", "uint32", "uint32", lambda x, y: np.full_like(x, mask(5, 40))),
    Line("bmsk.wrap.b32(37, 4)", "uint32", "uint32", lambda x, y: np.full_like(x, mask(5, 4))),
    Line("min.u16x2(v, w)", "uint32", "uint32", lambda x, y: np.minimum(halves(x), halves(y)).view("u4").ravel()),
    Line("max.s16x2(v, w)", "uint32", "uint32", lambda x,
         y: np.maximum(halves(x).view("i2"), halves(y).view("i2")).view("u4").ravel()),
    Line("min.relu.s16x2(v, w)", "uint32", "uint32", lambda x,
         y: np.maximum(np.minimum(halves(x).view("i2"), halves(y).view("i2")), 0).view("u4").ravel()),
    Line("cvt.pack.sat.u16.s32(tile.int32(v), tile.int32(w))", "uint32", "uint32",
         lambda x, y: saturated(x, 0, 65535) << 16 | saturated(y, 0, 65535)),
    Line("cvt.pack.sat.s8.s32.b32(tile.int32(v), tile.int32(w), v)", "uint32", "uint32",
         lambda x, y: (x.astype("i8") << 16 & 0xFFFF0000) | (saturated(x, -128, 127) & 255) << 8
         | saturated(y, -128, 127) & 255),
    Line("bfe.s32(v, 5, 11)", "int32", "int32", lambda x, y: bfe(x, 5, 11, 31)),
    Line("bfe.s32(v, 25, 11)", "int32", "int32", lambda x, y: x >> 25),
    Line("bfind.s32(v)", "int32", "uint32", lambda x, y: bfind(x)),
    Line("min.relu.s32(v, w)", "int32", "int32", lambda x, y: np.maximum(np.minimum(x, y), 0)),
    Line("max.relu.s32(v, w)", "int32", "int32", lambda x, y: np.maximum(np.maximum(x, y), 0)),
    Line("bfe.u64(v, 30, 17)", "uint64", "uint64", lambda x, y: x >> np.uint64(30) & np.uint64(0x1ffff)),
    Line("bfi.b64(v, w, 30, 17)", "uint64", "uint64",
         lambda x, y: y & ~np.uint64(0x1ffff << 30) | (x & np.uint64(0x1ffff)) << np.uint64(30)),
    Line("bfind.u64(v)", "uint64", "uint32", lambda x, y: bfind(x)),
    Line("mov.b64.pack(tile.ptx.mov.b64.unpack(v))", "uint64", "uint64", lambda x, y: x),
]

FLOATS = [
    Line("add.rn.f32(v, w)", "float32", "float32", lambda x, y: x + y),
    Line("add.rn.sat.f32(v, w)", "float32", "float32", lambda x, y: np.clip(x + y, 0, 1)),
    Line("add.rm.f32(v, w)", "float32", "float32", lambda x, y: downwards(added(x, y))),
    Line("add.rp.f32(v, w)", "float32", "float32", lambda x, y: upwards(added(x, y))),
    Line("sub.rz.f32(v, w)", "float32", "float32", lambda x, y: truncated(added(x, -y))),
    Line("mul.rz.f32(v, w)", "float32", "float32", lambda x, y: truncated(x.astype("f8") * y)),
    Line("mul.rp.ftz.f32(v, w)", "float32", "float32", lambda x, y: upwards(x.astype("f8") * y)),
    Line("fma.rn.f32(v, w, 1.0)", "float32", "float32", lambda x, y: (x.astype(np.longdouble) * y + 1).astype("f4")),
    Line("fma.rm.f32(v, 3.0, 0.25)", "float32", "float32", lambda x, y: downwards(x.astype("f8") * 3 + 0.25)),
    Line("min.NaN.f32(v, w)", "float32", "float32", lambda x, y: np.minimum(x, y)),
    Line("max.f32(v, w)", "float32", "float32", lambda x, y: np.maximum(x, y)),
    Line("max.xorsign.abs.f32(v, w)", "float32", "float32", lambda x,
         y: np.copysign(np.maximum(abs(x), abs(y)), x * y)),
    Line("div.full.f32(v, w)", "float32", "float32", lambda x, y: x / y, 5e-7),
    Line("div.approx.f32(v, w)", "float32", "float32", lambda x, y: x / y, 5e-7),
    Line("rcp.approx.f32(v)", "float32", "float32", lambda x, y: 1 / x, 3e-7),
    Line("rcp.rn.f32(v)", "float32", "float32", lambda x, y: np.float32(1) / x),
    Line("rcp.rz.f32(v)", "float32", "float32", lambda x, y: truncated(1 / x.astype("f8"))),
    Line("sqrt.rn.f32(tile.abs(v))", "float32", "float32", lambda x, y: np.sqrt(abs(x))),
    Line("sqrt.rp.f32(tile.abs(v))", "float32", "float32", lambda x, y: upwards(np.sqrt(abs(x).astype("f8")))),
    Line("sqrt.approx.f32(tile.abs(v))", "float32", "float32", lambda x, y: np.sqrt(abs(x)), 3e-7),
    Line("rsqrt.approx.f32(tile.abs(v))", "float32", "float32", lambda x, y: 1 / np.sqrt(abs(x)), 3e-7),
    Line("ex2.approx.f32(v)", "float32", "float32", lambda x, y: np.exp2(x), 3e-7),
    Line("lg2.approx.f32(tile.abs(v) + 2.0)", "float32", "float32", lambda x, y: np.log2(abs(x) + 2), 3e-7),
    Line("sin.approx.f32(v * 0.25)", "float32", "float32", lambda x, y: np.sin(x * np.float32(0.25)), 2e-5),
    Line("cos.approx.f32(v * 0.03125)", "float32", "float32", lambda x, y: np.cos(x * np.float32(0.03125)), 2e-5),
    Line("tanh.approx.f32(v)", "float32", "float32", lambda x, y: np.tanh(x), 6e-4),
    Line("cvt.rni.s32.f32(v * 100.0)", "float32", "int32", lambda x, y: np.rint(x * np.float32(100))),
    Line("cvt.rmi.s64.f32(v * 100.0)", "float32", "int64", lambda x, y: np.floor(x * np.float32(100))),
    Line("cvt.rzi.u32.f32(v)", "float32", "uint32", lambda x, y: np.where(x < 0, 0, x).astype("u4")),
    Line("cvt.rpi.f32.f32(v)", "float32", "float32", lambda x, y: np.ceil(x)),
    Line("cvt.rn.f16x2.f32(v, w)", "float32", "uint32", pairs_of(np.float16)),
    Line("cvt.rn.bf16x2.f32(v, w)", "float32", "uint32", pairs_of(ml_dtypes.bfloat16)),
    Line("cvt.rn.relu.bf16x2.f32(v, w)", "float32", "uint32", lambda x,
         y: pairs_of(ml_dtypes.bfloat16)(np.maximum(x, 0), np.maximum(y, 0))),
    Line("cvt.rn.satfinite.e4m3x2.f32(v, w)", "float32", "uint16", lambda x,
         y: pairs_of(ml_dtypes.float8_e4m3fn)(x, y).astype("u2")),
    Line("cvt.rn.satfinite.e5m2x2.f32(v, w)", "float32", "uint16", lambda x,
         y: pairs_of(ml_dtypes.float8_e5m2)(x, y).astype("u2")),
    Line("cvt.rn.f16x2.e4m3x2(tile.ptx.cvt.rn.satfinite.e4m3x2.f32(v, w))", "float32", "uint32",
         lambda x, y: pairs_of(np.float16)(*(a.astype(ml_dtypes.float8_e4m3fn).astype("f4") for a in (x, y)))),
    Line("cvt.rna.tf32.f32(v)", "float32", "uint32", lambda x, y: (x.view("u4") + 0x1000) & 0xFFFFE000),
    Line("cvt.rn.tf32.f32(v)", "float32", "uint32", lambda x,
         y: (x.view("u4") + 0xfff + (x.view("u4") >> 13 & 1)) & 0xFFFFE000),
    Line("cvt.f32.f16(tile.ptx.cvt.rn.f16.f32(v))", "float32", "float32", lambda x, y: x.astype("f2").astype("f4")),
    Line("cvt.f32.bf16(tile.ptx.cvt.rz.bf16.f32(v))", "float32", "float32", lambda x,
         y: (x.view("u4") & 0xFFFF0000).view("f4")),
    Line("rcp.rn.f64(v)", "float64", "float64", lambda x, y: 1 / x),
    Line("sqrt.rn.f64(tile.abs(v))", "float64", "float64", lambda x, y: np.sqrt(abs(x))),
    Line("add.rn.f16(v, w)", "float16", "float16", lambda x, y: x + y),
    Line("fma.rn.relu.f16(v, w, 1.0)", "float16", "float16", lambda x,
         y: np.maximum(x.astype("f8") * y + 1, 0).astype("f2")),
    Line("ex2.approx.f16(v)", "float16", "float16", lambda x, y: np.exp2(x.astype("f4")), 2e-3),
    Line("neg.f16(v)", "float16", "float16", lambda x, y: -x),
    Line("min.f16(v, w)", "float16", "float16", lambda x, y: np.minimum(x, y)),
    Line("mul.rn.bf16(v, w)", "bfloat16", "bfloat16", lambda x, y: x * y),
    Line("max.NaN.bf16(v, w)", "bfloat16", "bfloat16", lambda x, y: np.maximum(x, y)),
]

_LANE = np.arange(THREADS) % 32

WARPS = [
    Line("shfl.sync.up.b32(v, 3, 0, -1)", "uint32", "uint32", lambda x, y: np.stack([np.r_[a[:3], a[:-3]] for a in warps(x)]).ravel()),
    Line("shfl.sync.down.b32(v, 1, 0x1f, -1)", "uint32", "uint32", lambda x, y: np.stack([np.r_[a[1:], a[-1:]] for a in warps(x)]).ravel()),
    Line("shfl.sync.bfly.b32(v, 5, 0x1f, -1)", "uint32", "uint32", lambda x, y: warps(x)[:, np.arange(32) ^ 5].ravel()),
    Line("shfl.sync.idx.b32(v, 2, 0x181f, -1)", "uint32", "uint32", lambda x, y: np.repeat(x.reshape(-1, 8)[:, 2], 8)),
    Line("shfl.sync.idx.b32(v, w, 0x1f, -1)", "uint32", "uint32", lambda x,
         y: np.take_along_axis(warps(x), warps(y & 31).astype(int), axis=1).ravel()),
    Line("shfl.sync.up.b32.pred(v, 4, 0x1000, -1)[0]", "uint32", "uint32", lambda x, y: np.where(_LANE % 16 >= 4, np.roll(x, 4), x)),
    Line("vote.sync.ballot.b32(v > 0x80000000, -1)", "uint32", "uint32", lambda x,
         y: each_lane(np.packbits(warps(x) > 0x80000000, axis=1, bitorder="little").view("u4").ravel())),
    Line("redux.sync.add.u32(v, -1)", "uint32", "uint32", lambda x, y: each_lane(warps(x).sum(1, dtype="u4"))),
    Line("redux.sync.max.u32(v, -1)", "uint32", "uint32", lambda x, y: each_lane(warps(x).max(1))),
    Line("redux.sync.min.u32(v, -1)", "uint32", "uint32", lambda x, y: each_lane(warps(x).min(1))),
    Line("redux.sync.and_.b32(v, -1)", "uint32", "uint32", lambda x, y: each_lane(np.bitwise_and.reduce(warps(x), axis=1))),
    Line("redux.sync.or_.b32(v, -1)", "uint32", "uint32", lambda x, y: each_lane(np.bitwise_or.reduce(warps(x), axis=1))),
    Line("redux.sync.xor.b32(v, -1)", "uint32", "uint32", lambda x, y: each_lane(np.bitwise_xor.reduce(warps(x), axis=1))),
    Line("match.any.sync.b32(v >> 29, -1)", "uint32", "uint32",
         lambda x, y: np.concatenate([[sum(1 << k for k in range(32) if a[k] >> 29 == n >> 29) for n in a] for a in warps(x)])),
    Line("match.all.sync.b32(tile.ptx.mov.u32.warpid(), -1)", "uint32", "uint32", lambda x,
         y: np.full_like(x, 0xFFFFFFFF)),
    Line("match.all.sync.b32(v, -1)", "uint32", "uint32", lambda x, y: np.zeros_like(x)),
    Line("activemask.b32()", "uint32", "uint32", lambda x, y: np.full_like(x, 0xFFFFFFFF)),
    Line("elect.sync(-1)[0] + v", "uint32", "uint32", lambda x, y: x),
    Line("mov.u32.laneid() + tile.ptx.mov.u32.tid.x()", "uint32", "uint32", lambda x, y: _LANE + np.arange(THREADS)),
    # the place of a warp on its multiprocessor, any of 64
    Line("mov.u32.warpid() // 64 + tile.ptx.mov.u32.ntid.x()", "uint32", "uint32", lambda x, y: np.full_like(x, THREADS)),
    *(Line(f"mov.u32.lanemask_{name}()", "uint32", "uint32", lambda x, y, of=of: of(1 << _LANE)) for name, of in (
        ("eq", lambda n: n), ("lt", lambda n: n - 1), ("le", lambda n: 2 * n - 1), ("gt", lambda n: 0xFFFFFFFF - (2 * n - 1)),
        ("ge", lambda n: 0x100000000 - n))),
    Line("redux.sync.add.s32(v, -1)", "int32", "int32", lambda x, y: each_lane(warps(x).sum(1, dtype="i4"))),
    Line("redux.sync.max.s32(v, -1)", "int32", "int32", lambda x, y: each_lane(warps(x).max(1))),
    Line("redux.sync.min.s32(v, -1)", "int32", "int32", lambda x, y: each_lane(warps(x).min(1))),
    Line("match.any.sync.b64(v % 4, -1)", "uint64", "uint32",
         lambda x, y: np.concatenate([[sum(1 << k for k in range(32) if a[k] % 4 == n % 4) for n in a] for a in warps(x)])),
]
LINES = [*INTEGERS, *FLOATS, *WARPS]


def inputs(dtype: str):
    """Two numbers for each thread."""
    rng, made = np.random.default_rng(11), tile.dtypes.dtype_of(dtype).np
    if made.kind in "iu":
        return [rng.integers(np.iinfo(made).min, np.iinfo(made).max, THREADS, made, endpoint=True) for _ in range(2)]
    return [(rng.uniform(0.5, 6, THREADS) * rng.choice((-1, 1), THREADS)).astype(made) for _ in range(2)]


def kernel_of(lines):
    """A kernel that stores the result of each line to a row of its output, with one output per dtype."""
    outputs = sorted({line.gives for line in lines})
    body = ["i = tile.thread_id()", "v, w = tile.load(x[i]), tile.load(y[i])"]
    body += [f"tile.store(o_{line.gives}[{n}, i], tile.ptx.{line.text})" for n, line in enumerate(lines)]
    head = f"def lines(x, y, {', '.join('o_' + d for d in outputs)}):"
    arrays = [np.zeros((len(lines), THREADS), tile.dtypes.dtype_of(d).np) for d in outputs]
    return tile.jit(source="\n    ".join([head, *body]) + "\n", num_warps=THREADS // 32), arrays, outputs


def by_dtype():
    """The lines of each dtype."""
    for dtype in dict.fromkeys(line.of for line in LINES):
        yield dtype, [line for line in LINES if line.of == dtype]


def wrong(line, got, x, y) -> str:
    """What is wrong with a line's result; empty if it is right."""
    with np.errstate(all="ignore"):
        want = np.asarray(line.want(x, y))
        want = want.astype(np.uint64).astype(got.dtype) if got.dtype.kind == "u" and want.dtype.kind in "iu" else want.astype(got.dtype)
    if line.within:
        bad = ~(abs(got.astype("f8") - want.astype("f8")) <= line.within * abs(want.astype("f8")))
    else:
        bad = (np.ascontiguousarray(got).view(f"u{got.itemsize}") != np.ascontiguousarray(want).view(f"u{got.itemsize}"))
    k = int(bad.argmax())
    return f"{line.text}: of {x[k]!r} and {y[k]!r} it gives {got[k]!r}, not {want[k]!r} ({bad.sum()} threads)" if bad.any() else ""
