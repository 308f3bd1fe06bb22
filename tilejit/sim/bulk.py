"""Simulates bulk copies without a tensor map.

They move contiguous bytes between global and shared memory, and between the CTAs of a cluster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..types import Buffer
from .atomics import apply_atomic
from .component import Component
from .engines import Operation, Span
from .global_flight import LOAD, REDUCE, STORE
from .tma_bytes import peer_rows, put_run, run_bytes
from .values import SimBarrier, SimBuffer


class BulkCopies(Component):
    """The part of the machine that issues ``cp.async.bulk`` and ``cp.reduce.async.bulk``."""

    def peer_buffer(self, type_: Buffer, buffer: SimBuffer, rank: np.ndarray) -> SimBuffer:
        """The same buffer in CTA `rank` of the cluster."""
        rank = np.asarray(rank)[:, :1].astype(np.int64)
        if ((rank < 0) | (rank >= self.m.cluster_size)).any():
            self.m.finding("out-of-bounds",
                           f"rank {int(rank.flat[0])} does not exist in a cluster of {self.m.cluster_size}")
            rank = np.clip(rank, 0, self.m.cluster_size - 1)
        return replace(buffer, type=type_, peer=rank)

    def copy(self, dst: SimBuffer, dst_byte_offset: Any, src: SimBuffer, src_byte_offset: Any, nbytes: Any,
             barrier: SimBarrier | None = None, *, multicast: Any = None, kind: str | None = None,
             dtype: np.dtype | None = None, byte_mask: Any = None, positions: np.ndarray | None = None) -> None:
        """Copy `nbytes` contiguous bytes between global and shared memory, or to the shared memory of another CTA.

        A copy to shared memory completes on `barrier`, in the CTA that receives the bytes; a copy to global memory
        completes in the thread's bulk group. `multicast`, a mask of cluster ranks, sends the bytes to each of those
        CTAs. A `kind` (add, min, max, inc, dec, and, or, xor) combines them with the destination, as elements of
        `dtype` (by default the destination's). `byte_mask` selects which bytes of each 16 are written. With
        `positions`, only the CTAs at these positions in the batch issue it.
        """
        keys = [np.asarray(nbytes).reshape(-1, 1), None if byte_mask is None else np.asarray(byte_mask).reshape(-1, 1)]
        for where, (count, bits) in self.m.engines.cases_at(positions, keys):
            if count % 16:
                self.m.finding("misaligned",
                               f"a bulk copy must move a multiple of 16 bytes; {count} are silently rounded down")
                count -= count % 16
            if not count or not self._legal_run(dst, dst_byte_offset, src, src_byte_offset, count):
                continue
            chosen = None if bits is None else np.flatnonzero(bits >> np.arange(count) % 16 & 1)
            for at, ranks in self.m.tma.destinations(multicast, where):
                self._bulk(dst, dst_byte_offset, src, src_byte_offset, count, barrier, ranks, kind,
                           dtype or dst.type.dtype.np, chosen, at)

    def _legal_run(self, dst, to, src, source, count: int) -> bool:
        for name, buffer, offset in (("destination", dst, to), ("source", src, source)):
            memory, at = buffer.memory, self.m.tma.absolute(buffer, offset)
            address = memory.address + memory.origin * memory.itemsize if memory.scope == "global" else 0
            if ((at + address) % 16).any():
                self.m.finding("misaligned", f"the {name} of a bulk copy must be at a multiple of 16 bytes, and is not")
                return False
            if memory.scope == "global":
                low = at + memory.origin * memory.itemsize
                if (low < 0).any() or (low + count > memory.bytes.size).any():
                    self.m.finding("out-of-bounds", f"a bulk copy of {count} bytes leaves {memory.name}")
                    return False
            elif (np.asarray(offset) < 0).any() or (np.asarray(offset) + count > buffer.type.nbytes).any():
                self.m.finding("out-of-bounds",
                               f"a bulk copy of {count} bytes leaves the buffer of {buffer.type.nbytes} "
                               f"bytes that is its {name}")
                return False
        return True

    def _bulk(self, dst, to, src, source, count: int, barrier, ranks: list, kind: str | None, dtype: np.dtype,
              chosen: np.ndarray | None, where) -> None:
        sim = self.m.sim
        to, source = self.m.tma.absolute(dst, to), self.m.tma.absolute(src, source)
        params = {"to": to, "from": source, "rank": np.full((1, 1), self.m.rank) if dst.peer is None else dst.peer}
        self.m.global_memory.count(f"{src.memory.scope} -> {dst.memory.scope} (bulk)",
                                   count * (self.m.batch if where is None else len(where)))

        def collect(rows, params):
            return {"data": run_bytes(src.memory, rows, params["from"], count)}

        def land(rows, params):
            for rank in ranks:
                cluster = params["rank"] if rank is None else np.full((1, 1), rank)
                target = rows if dst.memory.scope == "global" else peer_rows(sim, rows, cluster)
                if kind is None:
                    put_run(dst.memory, target, params["to"], params["data"], chosen)
                else:
                    combine_run(dst.memory, target, params["to"], params["data"], kind, dtype)

        reads, writes, barriers = [], [], []
        if src.memory.scope != "global":
            reads.append(Span.of(src, source - np.asarray(src.base).reshape(-1, 1), count))
        for rank in ranks if dst.memory.scope != "global" else ():
            peer = dst.peer if rank is None else np.full((1, 1), rank)
            span = Span.of(dst, to - np.asarray(dst.base).reshape(-1, 1), count)
            writes.append(Span(span.space, span.start, span.pattern, span.nbytes, peer))
            # The bytes complete on the barrier of the destination's CTA, whatever CTA `barrier` names.
            barriers.append((barrier if peer is None else barrier.of_peer(peer), count))
        what, touches = "the bulk copy" if kind is None else "the bulk reduction", ()
        if self.m.checks:
            touches = (*self._touch_run(src.memory, source, count, what, LOAD, None, where),
                       *self._touch_run(dst.memory, to, count, what, STORE if kind is None else REDUCE, chosen, where))
        queue = "bulk" if dst.memory.scope == "global" else None
        self.m.engines.issue(Operation(what, reads=reads, writes=writes, land=land, collect=collect, params=params,
                                       barriers=barriers, queue=queue, reducing=kind is not None, touches=touches),
                             positions=where)

    def _touch_run(self, memory, at: np.ndarray, count: int, what: str, side: int, chosen: np.ndarray | None,
                   where) -> tuple:
        """Check the elements of global memory that a copy accesses: `count` bytes, or of these the `chosen` ones."""
        if memory.scope != "global" or (side == LOAD and not memory.maybe_written):
            return ()
        elements = np.arange(-(-count // memory.itemsize)) if chosen is None else np.unique(chosen // memory.itemsize)
        index = (at + memory.origin * memory.itemsize) // memory.itemsize + elements
        return self.m.global_memory.touch(memory, what, side, self.m.global_memory.cells(memory, index), None, where)


def combine_run(memory, rows: np.ndarray, start: np.ndarray, data: np.ndarray, kind: str, dtype: np.dtype) -> None:
    """Combine runs of bytes (B or 1, count) with the elements from byte `start` (B or 1, 1) of each row's memory on."""
    values = np.ascontiguousarray(data).view(dtype)
    steps = np.arange(values.shape[1])
    if memory.scope == "global":
        flat = memory.bytes[:memory.bytes.size // dtype.itemsize * dtype.itemsize].view(dtype)
        at = (memory.origin * memory.itemsize + start) // dtype.itemsize + steps
    else:
        flat = memory.view(dtype).reshape(-1)
        at = rows[:, None] * (memory.nbytes // dtype.itemsize) + start // dtype.itemsize + steps
    shape = (len(rows), values.shape[1])
    apply_atomic(flat, np.broadcast_to(at, shape).reshape(-1), kind, np.broadcast_to(values, shape).reshape(-1), None,
                 need_old=False)


__all__ = ["BulkCopies", "combine_run"]
