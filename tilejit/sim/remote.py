"""Simulates ``st.async`` and ``red.async``: stores and reductions to the shared memory of another CTA."""

from __future__ import annotations

import numpy as np

from .atomics import apply_atomic
from .component import Component
from .engines import Operation, Span, scatter_bytes
from .tma_bytes import peer_rows
from .values import SimBarrier, SimBuffer


class RemoteStores(Component):
    """The part of the machine that issues asynchronous stores and reductions of register values."""

    def store(self, buffer: SimBuffer, coords: tuple, values: np.ndarray, barrier: SimBarrier, *, owner=None,
              kind: str | None = None) -> None:
        """Write (or with a `kind`, combine) elements of a peer's shared memory. Each completes on the peer's
        `barrier` with its bytes.

        The arguments are those of `write`. The threads of an atom issue theirs as one operation, which accesses
        memory through the generic proxy, like an ordinary store.
        """
        dtype = buffer.type.dtype.np
        values = np.asarray(values).astype(dtype, copy=False)
        place = self.m.shared.place(buffer, coords, None, None, dtype.itemsize, values.shape[1:])
        values = np.broadcast_to(values, (values.shape[0], *place.shape)).reshape(values.shape[0], -1)
        threads = self._issuing_threads(place, owner)
        atoms = self.m.sim.atom_of[threads]
        for where, offsets, keep in self.m.shared.group_alike(place):
            for atom in np.unique(atoms):
                mine = atoms == atom if keep is None else (atoms == atom) & keep
                if mine.any():
                    self._remote_of(int(atom), threads[mine], buffer, offsets[mine],
                                    values[:, mine] if values.shape[1] > 1 else values, barrier, kind, where)

    def _issuing_threads(self, place, owner) -> np.ndarray:
        """The thread that stores each element."""
        count = place.offsets.shape[1]
        if owner is not None:
            return np.broadcast_to(self.m.low + np.asarray(owner).reshape(-1), (count,))
        return np.arange(self.m.low, self.m.high) if count == self.m.threads else np.full(count, self.m.low)

    def _remote_of(self, atom: int, threads: np.ndarray, buffer: SimBuffer, offsets: np.ndarray, values: np.ndarray,
                   barrier: SimBarrier, kind: str | None, where) -> None:
        """Issue the stores of the threads of one atom: for each element a thread, a byte offset and a value."""
        sim, memory, dtype = self.m.sim, buffer.memory, values.dtype
        nbytes = len(offsets) * dtype.itemsize
        params = {"values": values, "rank": buffer.peer}

        def land(rows, params):
            to = peer_rows(sim, rows, params["rank"])
            data = np.ascontiguousarray(np.broadcast_to(params["values"], (len(params["values"]), len(offsets))))
            if kind is None:
                scatter_bytes(memory.data, to, offsets[None],
                              data.view(np.uint8).reshape(len(data), len(offsets), dtype.itemsize), None)
                return
            flat = memory.view(dtype).reshape(-1)
            at = to[:, None] * (memory.nbytes // dtype.itemsize) + offsets // dtype.itemsize
            apply_atomic(flat, at.reshape(-1), kind, np.broadcast_to(data, at.shape).reshape(-1), None, need_old=False)

        span = Span("shared", np.zeros((1, 1), np.int64), offsets, dtype.itemsize, buffer.peer)
        cells = len(self.m.engines.span_cells(span, 0))
        per_cell = None
        if cells and cells % len(threads) == 0:
            per_cell = np.repeat(threads, cells // len(threads)).astype(np.int16)
        assert buffer.peer is not None
        self.m.global_memory.count("registers -> shared of a peer",
                                   nbytes * (self.m.batch if where is None else len(where)))
        self.m.engines.issue(Operation("store_async" if kind is None else "reduce_async", writes=[span], land=land,
                                       params=params,
                                       proxy=False, barriers=[(barrier.of_peer(buffer.peer), nbytes)], threads=per_cell,
                                       reducing=kind is not None), positions=where, atom=atom)


__all__ = ["RemoteStores"]
