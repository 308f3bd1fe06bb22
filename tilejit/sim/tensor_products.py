"""Simulates tcgen05.mma on the bytes that its descriptors name.

It decodes descriptors, reads swizzled bytes, applies scale factors, multiplies, and accumulates in tensor memory.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..dtypes import float16, float32, int32
from ..layout import axis
from ..lazy import Lazy
from ..ops.mma.descriptor import Descriptor
from ..ops.mma.tcgen05_kinds import K_BYTES, KINDS, Instruction, accumulator_lanes
from ..ops.mma.tcgen05_operands import accumulator_layout
from ..ops.tmem.descriptor import SharedDescriptor
from .component import Component
from .engines import Operation, Span
from .memory import TensorMemory
from .tensor_copies import ELEMENT_BYTES, decompress
from .tma_bytes import peer_rows

ml_dtypes = Lazy("ml_dtypes")

LANE, UNIT = TensorMemory.COLUMNS * 4, 16
SMALL = {"e2m1": "b4x16_p64", "e2m3": "b6x16_p32", "e3m2": "b6x16_p32"}  # types narrower than a byte, as padded
TF32 = np.uint32(0xFFFFE000)


@lru_cache(maxsize=16)
def _table(name: str) -> np.ndarray:
    """The value of each code of an element type, as float64."""
    made = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m3": "float6_e2m3fn", "e3m2": "float6_e3m2fn",
            "e2m1": "float4_e2m1fn", "ue8m0": "float8_e8m0fnu", "ue4m3": "float8_e4m3fn"}[name]
    count = {"e2m1": 16, "e2m3": 64, "e3m2": 64}.get(name, 256)
    numbers = np.arange(count, dtype=np.uint8).view(getattr(ml_dtypes, made)).astype(np.float64)
    return np.abs(numbers) if name == "ue4m3" else numbers


def numbers(data: np.ndarray, name: str, kind: str, contained: bool) -> np.ndarray:
    """Operand bytes (..., k bytes) as float64 values (..., k).

    Elements narrower than a byte come two to a byte for mxf4 and mxf4nvf4; in padded 16-byte units in shared memory
    otherwise; and if `contained`, one to a byte, as in tensor memory.
    """
    data = np.ascontiguousarray(data)
    if KINDS[kind].k == 64:
        return _table(name)[np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)]
    if name in ("s8", "u8"):
        return data.view(np.int8 if name == "s8" else np.uint8).astype(np.float64)
    if name in SMALL and contained:
        return _table(name)[data >> 2 & 15 if name == "e2m1" else data & 63]
    if name in SMALL:
        units = decompress(data.reshape(*data.shape[:-1], -1, UNIT), SMALL[name])
        return _table(name)[(units >> 2 if name == "e2m1" else units).reshape(data.shape)]
    if name in ("e4m3", "e5m2"):
        return _table(name)[data]
    if name == "tf32":
        return (data.view(np.uint32) & TF32).view(np.float32).astype(np.float64)
    if name == "f16":
        return data.view(np.float16).astype(np.float64)
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@lru_cache(maxsize=512)
def matrix_bytes(bits: int, major: str, mn: int, itemsize: int) -> np.ndarray:
    """The addresses of an operand's bytes, (mn, 32), that a 64-bit descriptor names for one instruction."""
    decoded = SharedDescriptor.decode(bits)
    assert not isinstance(decoded, str), decoded  # as has been checked
    (shared, start) = decoded
    named = Descriptor(major, shared.span, shared.leading, shared.stride).addresses(start, mn, itemsize)
    return (named[..., None] + np.arange(itemsize)).reshape(mn, K_BYTES)


@lru_cache(maxsize=256)
def operand_bytes(bits: tuple[int, ...], major: str, mn: int, itemsize: int) -> np.ndarray:
    """`matrix_bytes` for the descriptors of several instructions, (mn, 32 * steps)."""
    return np.concatenate([matrix_bytes(b, major, mn, itemsize) for b in bits], axis=1)


@lru_cache(maxsize=256)
def operand_units(bits: tuple[int, ...], major: str, mn: int, itemsize: int) -> np.ndarray:
    """The sorted addresses of the 16-byte units that contain these bytes."""
    return np.unique(operand_bytes(bits, major, mn, itemsize) // UNIT) * UNIT


@lru_cache(maxsize=64)
def accumulator_words(m: int, n: int, cta_group: int) -> np.ndarray:
    """The byte offsets of an accumulator's elements in tensor memory, (rows of a CTA, n), relative to its first."""
    datapath, rows = accumulator_lanes(m, cta_group)
    layout = accumulator_layout(datapath, n, float32)
    at = layout.apply(*np.indices((rows, n)), shape=(rows, n))
    return np.broadcast_to(np.asarray(at.get(axis.TLane, 0)) * LANE + np.asarray(at.get(axis.TCol, 0)) * 4, (rows, n))


@lru_cache(maxsize=64)
def accumulator_pattern(m: int, n: int, cta_group: int) -> np.ndarray:
    """`accumulator_words`, sorted."""
    return np.unique(accumulator_words(m, n, cta_group))


class TensorProducts(Component):
    """The part of the machine that computes products into tensor memory."""

    def issue(self, plan, acc, a, b, accumulate, *scales) -> None:
        """Issue all instructions of a plan as one operation of the thread, on its CTA or its pair."""
        if not all(self.m.tmem.is_alive(r.buffer, "used")
                   for r in (acc, a, *scales) if r.buffer.memory.scope == "tmem"):
            return
        if not all(map(self.m.shared.in_buffer, (acc, a, b, *scales))):
            return
        decoded = [Instruction.decode(plan.idesc(step), plan.kind) for step in range(plan.steps)]
        steps = [step for step in decoded if isinstance(step, Instruction)]  # all, as has been checked
        group, n = plan.cta_group, steps[0].n
        ranks = (self.m.rank,) if group == 1 else (self.m.rank & ~1, self.m.rank | 1)
        if max(ranks) >= self.m.sim.ranks:
            self.m.finding("tmem", f"cta_group 2 works on pairs of CTAs, and rank {self.m.rank} has no partner")
            return
        work = _Product(self.m, plan, steps, acc, a, b, scales)
        if (lost := work.overwritten_operand()) is not None:
            self.m.finding("tmem", f"the accumulator lies in columns of tensor memory that hold {lost} of the same "
                                   "product, which overwrites what it still reads: give it columns of its own")
        self.m.sync.collective("tcgen05.mma")
        params = work.origins() | {"accumulate": np.asarray(accumulate).reshape(-1, 1)}
        adds = bool(params["accumulate"].any())
        sim, peers = self.m.sim, [np.full((1, 1), r) for r in ranks]

        def collect(rows, params):
            parts = [peer_rows(sim, rows, p) for p in peers]
            right = np.concatenate([work.read_b(r, params) for r in parts], axis=1)  # (CTAs, n, k), both halves
            return {f"product{i}": work.multiply(r, params, right) for i, r in enumerate(parts)}

        def land(rows, params):
            for i, p in enumerate(peers):
                work.add(peer_rows(sim, rows, p), params, params[f"product{i}"])

        own = [None] if group == 1 else peers
        self.m.global_memory.count("tensor products (tcgen05.mma)", self.m.batch * group * work.rows * n * plan.steps)
        self.m.engines.issue(Operation("the tcgen05.mma", reads=[s for p in own for s in work.reads(p, adds)],
                                       writes=[work.span_of_result(p) for p in own], land=land, collect=collect,
                                       params=params, queue="tcgen05", pipe="tcgen05"))


class _Product:
    """A product: where its operands are, and its arithmetic, for a set of rows (CTAs)."""

    def __init__(self, m, plan, steps: list[Instruction], acc, a, b, scales):
        self.m, self.plan, self.steps, self.acc, self.a, self.b, self.scales = m, plan, steps, acc, a, b, scales
        first = steps[0]
        self.rows = accumulator_lanes(first.m, plan.cta_group)[1]
        self.columns = first.n // plan.cta_group  # columns of B in each CTA
        self.words = accumulator_words(first.m, first.n, plan.cta_group)
        self.a_major, self.b_major = ("mn" if t else "k" for t in (first.trans_a, first.trans_b))

    def origins(self) -> dict:
        """The first byte of each operand in its memory, (B or 1, 1)."""
        m = self.m
        found = {"acc": m.tmem.fragment_base(self.acc), "b": m.shared.matrix_origin(self.b),
                 "a": m.shared.matrix_origin(self.a) if self.plan.a is not None else m.tmem.fragment_base(self.a)}
        return found | {f"scale{i}": m.tmem.fragment_base(s) for i, s in enumerate(self.scales)}

    # -- shared memory -------------------------------------------------------------------------------------------------

    def _operand_arguments(self, name: str, start: int) -> tuple:
        """The arguments of `operand_bytes` for an operand that begins at byte `start`."""
        if name == "a":
            made, mn, region, major = self.plan.a, self.rows, self.a, self.a_major
        else:
            made, mn, region, major = self.plan.b, self.columns, self.b, self.b_major
        bits = self.plan.descriptor(made)
        return tuple(bits.encode(start + k) for k in made.ks), major, mn, region.type.dtype.nbytes

    def _read_shared(self, name: str, region, rows: np.ndarray, params: dict) -> np.ndarray:
        starts = np.broadcast_to(params[name][:, 0], (len(rows),))
        at = np.stack([operand_bytes(*self._operand_arguments(name, int(s))) for s in starts])
        return region.buffer.memory.data[rows[:, None, None], at]

    def read_b(self, rows: np.ndarray, params: dict) -> np.ndarray:
        """B in these CTAs, (CTAs, columns, k)."""
        return numbers(self._read_shared("b", self.b, rows, params), self.steps[0].b, self.plan.kind, False)

    # -- tensor memory -------------------------------------------------------------------------------------------------

    def _lanes(self) -> np.ndarray:
        """The lanes of the accumulator's rows, relative to the first."""
        return self.words[:, 0] // LANE

    def read_a(self, rows: np.ndarray, params: dict) -> np.ndarray:
        """A in these CTAs, (CTAs, rows, k)."""
        kind = self.plan.kind
        if self.plan.a is not None:
            return numbers(self._read_shared("a", self.a, rows, params), self.steps[0].a, kind, False)
        at = np.broadcast_to(params["a"], (len(rows), 1))[..., None] + self._a_bytes()[None]
        return numbers(self.a.buffer.memory.data[rows[:, None, None], at], self.steps[0].a, kind, True)

    def _a_bytes(self) -> np.ndarray:
        return self._lanes()[:, None] * LANE + np.arange(K_BYTES * self.plan.steps)[None]

    def _scale_bytes(self, which: int) -> np.ndarray:
        """The bytes of tensor memory, (rows, factors along k), that hold the scale factors of the instructions."""
        count = self.rows if which == 0 else self.steps[0].n
        scales = KINDS[self.plan.kind].scales or {}
        per = next(n for n, qualifier, _ in scales.values() if qualifier == self.plan.qualifier)
        r, made = np.arange(count)[:, None], []
        for step, instruction in enumerate(self.steps):
            column = self.plan.scale_columns[step][which]
            made.append(r % 32 * LANE + (column + r // 32) * 4 + instruction.scale_ids[which] + np.arange(per)[None])
        return np.concatenate(made, axis=1)

    def _apply_scales(self, x: np.ndarray, which: int, rows: np.ndarray, params: dict) -> np.ndarray:
        at = np.broadcast_to(params[f"scale{which}"], (len(rows), 1))[..., None] + self._scale_bytes(which)[None]
        factors = _table(self.steps[0].scale_type)[self.scales[which].buffer.memory.data[rows[:, None, None], at]]
        return x * np.repeat(factors, x.shape[-1] // factors.shape[-1], axis=-1)

    def overwritten_operand(self) -> str | None:
        """The operand in tensor memory that the accumulator overlaps, or None. It suffices to compare columns: both
        occupy all lanes, or the same."""
        first, last = self._columns(self.acc, self.words)
        read = [("a", self.a, self._a_bytes())] if self.plan.a is None else []
        read += [(f"scale_{'ab'[i]}", s, self._scale_bytes(i)) for i, s in enumerate(self.scales)]
        for name, region, offsets in read:
            begin, end = self._columns(region, offsets)
            if ((begin <= last) & (first <= end)).any():
                return name
        return None

    def _columns(self, region, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The range of bytes within a lane that the elements at these offsets of a region occupy."""
        base, within = self.m.tmem.fragment_base(region) % LANE, offsets % LANE
        return base + within.min(), base + within.max()

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def multiply(self, rows: np.ndarray, params: dict, right: np.ndarray) -> np.ndarray:
        """A times B for these CTAs, float64 (CTAs, parts, rows, n). There is one part, or one for each instruction if
        its sum is rounded."""
        left = self.read_a(rows, params)
        if self.scales:
            left, right = self._apply_scales(left, 0, rows, params), self._apply_scales(right, 1, rows, params)
        parts = self.plan.steps if self.steps[0].accumulator == "float16" else 1
        left = -left if self.steps[0].negated else left
        pairs = zip(np.split(left, parts, axis=2), np.split(right, parts, axis=2))
        return np.stack([np.matmul(x, y.swapaxes(1, 2)) for x, y in pairs], axis=1)

    def add(self, rows: np.ndarray, params: dict, product: np.ndarray) -> None:
        """Add a product to the accumulators of these CTAs, or store it there where the instruction
        does not accumulate."""
        data = self.acc.buffer.memory.view(np.dtype(np.uint32))
        at = (np.broadcast_to(params["acc"], (len(rows), 1))[..., None] + self.words[None]) // 4
        place = rows[:, None, None], at
        words, dtype = (data[place],
                        {"float32": float32, "float16": float16, "int32": int32}[self.steps[0].accumulator].np)
        held = words.astype(np.uint16).view(dtype) if dtype.itemsize == 2 else words.view(dtype)
        adds = np.broadcast_to(params["accumulate"], (len(rows), 1))[..., None] != 0
        total = np.where(adds, held, np.zeros((), dtype))
        for part in product.swapaxes(0, 1):
            if dtype == np.int32:
                total = (total.astype(np.int64) + part.astype(np.int64)).astype(np.int32)
            else:
                total = (total.astype(np.float64) + part).astype(dtype)
        total = np.ascontiguousarray(total)
        data[place] = total.view(np.uint16).astype(np.uint32) if dtype.itemsize == 2 else total.view(np.uint32)

    # -- spans ---------------------------------------------------------------------------------------------------------

    def span_of_result(self, peer) -> Span:
        first = self.steps[0]
        return Span("tmem", self.m.tmem.fragment_base(self.acc),
                    accumulator_pattern(first.m, first.n, self.plan.cta_group), 4, peer)

    def reads(self, peer, adds: bool) -> list[Span]:
        """The bytes that the operation reads in the CTA of rank `peer`."""
        m = self.m
        def chunks(name):
            return lambda start: operand_units(*self._operand_arguments(name, int(start))) - int(start)
        def unit_bytes(name):
            return ELEMENT_BYTES[SMALL[name]] if name in SMALL and KINDS[self.plan.kind].k != 64 else UNIT
        spans = [Span("shared", m.shared.matrix_origin(self.b), chunks("b"), unit_bytes(self.steps[0].b), peer)]
        if self.plan.a is not None:
            spans.append(Span("shared", m.shared.matrix_origin(self.a), chunks("a"), unit_bytes(self.steps[0].a), peer))
        else:
            spans.append(Span("tmem", m.tmem.fragment_base(self.a), np.unique(self._a_bytes() // 4) * 4, 4, peer))
        for i, s in enumerate(self.scales):
            shifts = np.arange(4)[:, None] * 32 * LANE  # each quarter of 32 lanes has a copy
            spans.append(Span("tmem", m.tmem.fragment_base(s),
                              np.unique(self._scale_bytes(i).reshape(1, -1) // 4 * 4 + shifts), 4, peer))
        if adds:
            spans.append(self.span_of_result(peer))
        return spans
