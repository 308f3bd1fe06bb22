"""What an access costs the memory system: requests of warps, 32-byte sectors they touch, bank conflicts they meet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir.builder import type_of
from ..layout import thread_table
from ..types import Region, Tile

SECTOR, BANKS, WORD = 32, 32, 4


@dataclass
class Vectors:
    """What threads move at once: the thread of each vector, the turn among its thread's instructions, the byte at which it
    begins, and how many bytes it has."""

    threads: np.ndarray
    turns: np.ndarray
    offsets: np.ndarray
    nbytes: int

    def requests(self) -> tuple[int, np.ndarray]:
        """How many instructions of warps move the vectors, and a number for each one's."""
        number = _pairs(self.threads // 32, self.turns)
        return len(_different(number)), number


def sectors(vectors: Vectors) -> tuple[int, int]:
    """(requests, sectors) of an access to global memory."""
    count, request = vectors.requests()
    bytes_ = np.array([*range(0, vectors.nbytes, SECTOR), vectors.nbytes - 1])  # one in each sector
    return count, len(_different(_pairs(request[:, None], (vectors.offsets[:, None] + bytes_) // SECTOR)))


def bank_conflicts(vectors: Vectors) -> tuple[int, int]:
    """(requests, extra passes) of an access to shared memory: 32 banks of 4 bytes, vectors of 8 and 16 bytes by half and
    quarter warps, one word for all that read it."""
    count, request = vectors.requests()
    together = 32 * WORD // max(vectors.nbytes, WORD)
    return count, _extra_passes(_pairs(request, vectors.threads % 32 // together), vectors.offsets, vectors.nbytes)


def _extra_passes(parts: np.ndarray, offsets: np.ndarray, nbytes: int) -> int:
    """The passes beyond one of each part: the different words of the bank that has most of them. `parts` has the part that each
    vector is moved in."""
    words = (offsets[:, None] + np.arange(0, max(nbytes, 1), WORD)) // WORD
    words -= words.min(initial=0)  # banks change their names
    span = words.max(initial=0) + 1
    part, word = np.divmod(_different((parts[:, None] - parts.min(initial=0)) * span + words), span)
    banks = np.bincount(part * BANKS + word % BANKS, minlength=(part.max(initial=0) + 1) * BANKS)
    passes = banks.reshape(-1, BANKS).max(axis=1)
    return int((passes[passes > 0] - 1).sum())


def matrix_conflicts(rows: list[np.ndarray], offsets: np.ndarray) -> tuple[int, int]:
    """(requests, extra passes) of ``ldmatrix`` or ``stmatrix``: each matrix of eight rows of 16 bytes is one pass where they lie
    in 32 different banks. `rows` are the elements that begin them, for each instruction (matrices, 8)."""
    elements = np.concatenate(rows)
    return len(rows), _extra_passes(np.repeat(np.arange(len(elements)), elements.shape[1]), offsets[elements.reshape(-1)], 16)


def _pairs(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A number for each pair, the same for the same pair alone."""
    return one * (np.ptp(other) + 1) + other if other.size else one


def _different(numbers: np.ndarray) -> np.ndarray:
    """The numbers, each once, in order: by a table of them where they lie close to each other. (NumPy's `unique` takes two to six times as
    long.)"""
    if not numbers.size:
        return numbers.reshape(-1)
    low = numbers.min()
    span = int(numbers.max() - low) + 1
    if span <= 16 * numbers.size:
        seen = np.zeros(span, bool)
        seen[numbers - low] = True
        return np.flatnonzero(seen) + low
    found = np.sort(numbers, axis=None)
    return found[np.r_[True, found[1:] != found[:-1]]]


class Traffic:
    """The part of the machine that counts requests."""

    def count_traffic(self, space: str, threads, offsets, itemsize: int, keep: np.ndarray | None = None) -> None:
        """Count an access of the first CTA for all of the batch. `offsets()` gives byte offsets, `threads` who moves each, `keep`
        which of them are accessed. A region of a tile is measured once for each alignment of its first element."""
        call = self.fiber.node
        at = offsets()
        if not len(at):
            return
        key = id(call), space, int(at[0]) % 1024, len(at)
        if keep is not None or not _regular(call):
            key = *key, hash(at.tobytes()), None if keep is None else hash(keep.tobytes())
        if key not in self.sim.traffic:
            vectors = self._measured(call, np.broadcast_to(threads, at.shape).astype(np.int64), at, itemsize, keep)
            self.sim.traffic[key] = vectors if isinstance(vectors, tuple) else (sectors if space == "global" else bank_conflicts)(vectors)
        requests, cost = self.sim.traffic[key]
        stats = self.report.stats
        stats[f"{space} requests"] += requests * self.batch
        stats["global sectors" if space == "global" else "bank conflicts"] += cost * self.batch

    def _measured(self, call, threads: np.ndarray, offsets: np.ndarray, itemsize: int, keep: np.ndarray | None) -> Vectors | tuple[int, int]:
        """The vectors of a call's access to the elements at `offsets`, or the (requests, extra passes) of its matrices."""
        plan, t = getattr(getattr(call, "choice", None), "plan", None), moved(call)
        if hasattr(plan, "matrix_rows"):  # of a load or a store of a tile, whose elements all are accessed
            return matrix_conflicts(plan.matrix_rows(t, self.threads), offsets)
        if hasattr(plan, "steps"):        # a copy in vectors of consecutive bytes
            first = np.lexsort((offsets, threads, turns := plan.steps((len(offsets),))))[::plan.vec]
            return Vectors(threads[first], turns[first], offsets[first], plan.vec_bytes)
        plan = getattr(plan, "access", plan)
        if t is not None and hasattr(plan, "groups") and len(offsets) == t.size:
            return self._of_registers(call, plan, t, threads, offsets, itemsize, keep)
        order = np.argsort(threads, kind="stable")
        chosen = order if keep is None else order[keep[order]]
        first = np.r_[True, np.diff(threads[chosen]) != 0][:len(chosen)]
        turns = np.arange(len(chosen)) - np.maximum.accumulate(np.where(first, np.arange(len(chosen)), 0))
        return Vectors(threads[chosen], turns, offsets[chosen], itemsize)

    def _of_registers(self, call, plan, t: Tile, threads: np.ndarray, offsets: np.ndarray, itemsize: int, keep: np.ndarray | None) -> Vectors:
        """The vectors of a tile's registers: a load fills every replica, what writes is done by the first."""
        table = thread_table(t.layout, t.domain, self.threads)[:, [run[0] for run in plan.groups(t)]]
        number = np.full(t.domain, -1)
        number[tuple(slice(n) for n in t.shape)] = np.arange(t.size).reshape(t.shape)
        element = number.reshape(-1)[table]
        here = self.low + np.arange(self.threads)[:, None]
        active = element >= 0
        if keep is not None:
            active &= keep[element]
        if call.op.effect != "reads":
            active &= threads[element] == here
        thread, turn = np.nonzero(active)
        return Vectors(self.low + thread, turn, offsets[element[active]], itemsize * plan.vector)


def moved(call) -> Tile | None:
    """The register tile that a call moves."""
    types = [r.type for r in call.results] + [type_of(x) for x in call.args[1:] if x is not None]
    return next((t for t in types if isinstance(t, Tile) and t.layout is not None), None)


def _regular(call) -> bool:
    """Whether the call moves regions by all threads together, so that the place of the first element is that of all."""
    return isinstance(type_of(call.args[0]), Region) and (moved(call) is not None or hasattr(getattr(call.choice, "plan", None), "steps"))
