"""What an access costs the memory system: requests of warps, 32-byte sectors they touch, bank conflicts they meet."""

from __future__ import annotations

import numpy as np

from ..ir.builder import type_of

SECTOR, BANKS, WORD = 32, 32, 4


def requests_of(threads: np.ndarray, offsets: np.ndarray, vector: int) -> list[np.ndarray]:
    """Byte offsets of the vectors in each request. A thread moves its elements in order of address, `vector` at a time;
    what the 32 threads of a warp move at once is a request. Grouped as (warp, turn)."""
    order = np.lexsort((offsets, threads))
    threads, offsets = threads[order], offsets[order]
    first = np.r_[True, threads[1:] != threads[:-1]]
    starts = np.flatnonzero(first)
    rank = np.arange(len(threads)) - np.repeat(starts, np.diff(np.r_[starts, len(threads)]))
    leading = rank % vector == 0
    turn, warp, at = rank[leading] // vector, threads[leading] // 32, offsets[leading]
    group = np.lexsort((threads[leading], turn, warp))
    turn, warp, at = turn[group], warp[group], at[group]
    cuts = np.flatnonzero((turn[1:] != turn[:-1]) | (warp[1:] != warp[:-1])) + 1
    return np.split(at, cuts)


def sectors(threads: np.ndarray, offsets: np.ndarray, itemsize: int, vector: int = 1) -> tuple[int, int]:
    """(requests, sectors) of an access to global memory."""
    groups = requests_of(threads, offsets, vector)
    nbytes = itemsize * vector
    count = 0
    for at in groups:
        touched = (at[:, None] + np.arange(0, max(nbytes, 1), min(nbytes, SECTOR))).reshape(-1) // SECTOR
        ends = (at + nbytes - 1) // SECTOR
        count += len(np.unique(np.concatenate([touched, ends])))
    return len(groups), count


def bank_conflicts(threads: np.ndarray, offsets: np.ndarray, itemsize: int, vector: int = 1) -> tuple[int, int]:
    """(requests, extra passes) of an access to shared memory: 32 banks of 4 bytes, vectors of 8 and 16 bytes by half and
    quarter warps, one word for all that read it."""
    groups = requests_of(threads, offsets, vector)
    nbytes = itemsize * vector
    together = 32 * WORD // max(nbytes, WORD)
    extra = 0
    for at in groups:
        for k in range(0, len(at), together):
            words = (at[k:k + together, None] + np.arange(0, max(nbytes, 1), WORD)).reshape(-1) // WORD
            words = np.unique(words)
            extra += int(np.bincount(words % BANKS, minlength=BANKS).max()) - 1
    return len(groups), extra


def matrix_conflicts(rows: list[np.ndarray], offsets: np.ndarray) -> tuple[int, int]:
    """(requests, extra passes) of ``ldmatrix`` or ``stmatrix``: each matrix of eight rows of 16 bytes is one pass where they lie
    in 32 different banks. `rows` are the elements that begin them, for each instruction (matrices, 8)."""
    extra = 0
    for elements in rows:
        words = (offsets[elements][..., None] // WORD + np.arange(16 // WORD)).reshape(len(elements), -1)
        extra += sum(int(np.bincount(np.unique(w) % BANKS, minlength=BANKS).max()) - 1 for w in words)
    return len(rows), extra


class Traffic:
    """The part of the machine that counts requests. Each call is measured once for each alignment of its first element."""

    def count_traffic(self, space: str, threads, offsets, itemsize: int) -> None:
        """Count an access of the first CTA for all of the batch. `offsets()` gives byte offsets, `threads` who moves each."""
        call = self.fiber.node
        at = offsets()
        if not len(at):
            return
        key = id(call), space, int(at[0]) % 128, len(at)
        if key not in self.sim.traffic:
            plan = call.choice.plan if getattr(call, "choice", None) is not None else None
            self.sim.traffic[key] = self._measured(call, plan, space, np.broadcast_to(threads, at.shape).astype(np.int64), at, itemsize)
        requests, cost = self.sim.traffic[key]
        stats = self.report.stats
        stats[f"{space} requests"] += requests * self.batch
        stats["global sectors" if space == "global" else "bank conflicts"] += cost * self.batch

    def _measured(self, call, plan, space: str, threads: np.ndarray, offsets: np.ndarray, itemsize: int) -> tuple[int, int]:
        """(requests, sectors or extra passes) of a call's access to the elements at `offsets`."""
        if hasattr(plan, "matrix_rows"):  # of a load or a store of a tile, whose elements all are accessed
            moved = call.result.type if call.results else type_of(call.args[1])
            return matrix_conflicts(plan.matrix_rows(moved, self.threads), offsets)
        vector = getattr(plan, "vector", None) or getattr(plan, "vec", 1)  # of an access, of a partition
        vector = max(1, min(int(vector), 16 // itemsize))
        return (sectors if space == "global" else bank_conflicts)(threads, offsets, itemsize, vector)
