"""Simulates tcgen05.cp: copies the rows that a shared memory descriptor names to lanes of tensor memory.

Operations of CTA pairs are here too.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..ops.tmem.descriptor import SharedDescriptor, swizzle_address
from .component import Component
from .engines import Operation, Span
from .memory import TensorMemory
from .tma_bytes import peer_rows

UNIT, LANE = 16, TensorMemory.COLUMNS * 4
ELEMENT_BYTES = {"b4x16_p64": 8, "b6x16_p32": 12}  # in a unit of 16 padded elements; the rest may hold anything


@lru_cache(maxsize=256)
def source_units(bits: int, rows: int, width: int) -> np.ndarray:
    """The byte addresses of the 16-byte units, (rows, width / 16), that a 64-bit descriptor names."""
    decoded = SharedDescriptor.decode(bits)
    assert not isinstance(decoded, str), decoded  # as has been checked
    descriptor, start = decoded
    pitch = descriptor.span or UNIT
    r, u = np.arange(rows)[:, None], np.arange(width // UNIT)[None]
    across = UNIT if descriptor.span else descriptor.leading
    return swizzle_address(start + r % 8 * pitch + r // 8 * descriptor.stride + u * across, descriptor.span)


def target_units(form, address: int) -> np.ndarray:
    """The bytes of tensor memory, (replicas, rows, width / 16), where a copy to `address` writes its units."""
    lanes = np.array([form.lane(r) for r in range(form.rows)])
    shifts = [0]
    for n, stride in form.replica:
        shifts = [s + k * stride for k in range(n) for s in shifts]
    lanes = np.array(shifts)[:, None] + lanes[None] + (address >> 16)
    return lanes[..., None] * LANE + (address & 0xFFFF) * 4 + np.arange(form.width // UNIT) * UNIT


def decompress(units: np.ndarray, form: str | None) -> np.ndarray:
    """Units of 16 bytes (..., 16), unpacked: each holds 16 elements of 4 or 6 bits, then padding. `form` None:
    returned as they are.

    A 4-bit element goes to bits 2 to 5 of its byte, a 6-bit element to bits 0 to 5.
    """
    if form is None:
        return units
    if form == "b4x16_p64":
        packed = units[..., :ELEMENT_BYTES[form]]
        return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*units.shape) << 2
    packed = units[..., :ELEMENT_BYTES[form]].astype(np.uint32).reshape(*units.shape[:-1], 4, 3)
    words = packed[..., 0] | packed[..., 1] << 8 | packed[..., 2] << 16
    return np.stack([words >> 6 * k & 63 for k in range(4)], axis=-1).astype(np.uint8).reshape(*units.shape)


class PairOperations(Component):
    """The part of the machine that copies shared memory to tensor memory, and operates on pairs of CTAs."""

    def copy(self, plan, dst, src) -> None:
        """Issue all copies of a plan as one operation of the thread."""
        if not self.m.tmem.is_alive(dst.buffer, "written") or not all(map(self.m.shared.in_buffer, (dst, src))):
            return
        form, shared, tensor = plan.form, src.buffer.memory, dst.buffer.memory
        begin = self.m.shared.matrix_origin(src) if plan.moves[1] else np.asarray(src.buffer.base).reshape(-1, 1)
        into = self.m.tmem.fragment_base(dst) if plan.moves[0] else np.asarray(dst.buffer.base).reshape(-1, 1)
        # by copies, replicas, rows and units
        targets = np.stack([target_units(form, address) for address, _ in plan.places])
        descriptor = plan.descriptor

        def sources(start: int) -> np.ndarray:
            return np.stack([source_units(descriptor.encode(start + at), form.rows,
                                          form.width) for _, at in plan.places])

        def collect(rows, params):
            starts = np.broadcast_to(params["begin"][:, 0], (len(rows),))
            at = np.stack([sources(int(s)) for s in starts])
            return {"data": decompress(shared.data[rows.reshape(-1, 1, 1, 1, 1), at[..., None] + np.arange(UNIT)],
                                       plan.decompress)}

        def land(rows, params):
            to = (np.broadcast_to(params["into"], (len(rows), 1)).reshape(-1, 1, 1, 1, 1, 1) + targets[None, ..., None]
                  + np.arange(UNIT))
            tensor.data[rows.reshape(-1, 1, 1, 1, 1, 1), to] = params["data"][:, :, None]

        self.m.global_memory.count("shared -> tmem (tcgen05.cp)",
                                   self.m.batch * plan.cta_group * len(plan.places) * form.rows * form.width)
        self.issue("the tcgen05.cp", plan.cta_group, {"begin": begin, "into": into}, collect, land,
                   lambda peer: [Span("shared", begin, lambda s: np.unique(sources(s)) - s,
                                      ELEMENT_BYTES.get(plan.decompress, UNIT), peer)],
                   lambda peer: [Span("tmem", into, np.unique(targets), UNIT, peer)])

    def issue(self, what: str, cta_group: int, params: dict, collect, land, reads, writes) -> None:
        """Issue a tensor core operation by one thread: on this CTA, or with `cta_group` 2 on both CTAs of its pair,
        each with its own memories. ``collect(rows, params)`` and ``land(rows, params)`` act for the CTAs `rows`;
        ``reads(peer)`` and ``writes(peer)`` are the spans in the CTA of rank `peer` (None: this one)."""
        if cta_group == 1:
            self.m.engines.issue(Operation(what, reads=reads(None), writes=writes(None), land=land, collect=collect,
                                           params=params, queue="tcgen05", pipe="tcgen05"))
            return
        sim, ranks = self.m.sim, (self.m.rank, self.m.rank ^ 1)
        if max(ranks) >= sim.ranks:
            self.m.finding("tmem", f"cta_group 2 works on pairs of CTAs, and rank {self.m.rank} has no partner")
            return
        peers = [np.full((1, 1), r) for r in ranks]

        def collect_both(rows, params):
            return {f"{name}{r}": x for r, peer in zip(ranks, peers)
                    for name, x in collect(peer_rows(sim, rows, peer), params).items()}

        def land_both(rows, params):
            for r, peer in zip(ranks, peers):
                land(peer_rows(sim, rows, peer),
                     {**params, **{n[:-len(str(r))]: x for n, x in params.items() if n.endswith(str(r))}})

        self.m.engines.issue(Operation(what, reads=[s for p in peers for s in reads(p)],
                                       writes=[s for p in peers for s in writes(p)], land=land_both,
                                       collect=collect_both, params=params, queue="tcgen05", pipe="tcgen05"))
