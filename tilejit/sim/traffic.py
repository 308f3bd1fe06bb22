"""What accesses cost the memory system: requests by warps, the 32-byte sectors that they touch, and bank conflicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.builder import type_of
from ..layout import thread_table
from ..types import Region, Tile, domain_of, layout_of
from .component import Component

SECTOR, BANKS, WORD = 32, 32, 4


@dataclass
class Vectors:
    """The vectors of an access: for each, its thread, the number of its instruction among those of the thread, and
    its first byte; `nbytes` is the size of each vector."""

    threads: np.ndarray
    turns: np.ndarray
    offsets: np.ndarray
    nbytes: int

    def requests(self) -> tuple[int, np.ndarray]:
        """How many warp-level instructions move the vectors, and a number that identifies the
        instruction of each vector."""
        number = _pairs(self.threads // 32, self.turns)
        return len(_distinct_numbers(number)), number


def sectors(vectors: Vectors) -> tuple[int, int]:
    """(requests, sectors) of an access to global memory."""
    count, request = vectors.requests()
    bytes_ = np.array([*range(0, vectors.nbytes, SECTOR), vectors.nbytes - 1])  # at least one byte in each sector
    return count, len(_distinct_numbers(_pairs(request[:, None], (vectors.offsets[:, None] + bytes_) // SECTOR)))


def bank_conflicts(vectors: Vectors) -> tuple[int, int]:
    """(requests, extra passes) of an access to shared memory, with 32 banks of 4 bytes. Vectors of 8 and 16 bytes are
    moved by half and quarter warps at a time; lanes that access the same word share one access."""
    count, request = vectors.requests()
    together = 32 * WORD // max(vectors.nbytes, WORD)
    return count, _extra_passes(_pairs(request, vectors.threads % 32 // together), vectors.offsets, vectors.nbytes)


def _extra_passes(parts: np.ndarray, offsets: np.ndarray, nbytes: int) -> int:
    """The passes beyond the first of each part: a part takes as many as there are different words in its most used
    bank. `parts` gives the part that each vector is moved in."""
    words = (offsets[:, None] + np.arange(0, max(nbytes, 1), WORD)) // WORD
    words -= words.min(initial=0)  # only renames the banks
    span = words.max(initial=0) + 1
    part, word = np.divmod(_distinct_numbers((parts[:, None] - parts.min(initial=0)) * span + words), span)
    banks = np.bincount(part * BANKS + word % BANKS, minlength=(part.max(initial=0) + 1) * BANKS)
    passes = banks.reshape(-1, BANKS).max(axis=1)
    return int((passes[passes > 0] - 1).sum())


def matrix_conflicts(rows: list[np.ndarray], offsets: np.ndarray) -> tuple[int, int]:
    """(requests, extra passes) of ``ldmatrix`` or ``stmatrix``. A matrix, eight rows of 16 bytes, takes one pass if
    its rows cover all 32 banks. `rows` are the elements at which the rows begin, (matrices, 8) for each
    instruction."""
    elements = np.concatenate(rows)
    return (len(rows),
            _extra_passes(np.repeat(np.arange(len(elements)), elements.shape[1]), offsets[elements.reshape(-1)], 16))


def _pairs(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A number for each pair, equal only for equal pairs."""
    return one * (np.ptp(other) + 1) + other if other.size else one


def _distinct_numbers(numbers: np.ndarray) -> np.ndarray:
    """The different numbers, sorted. If they lie close together they are found by a table; NumPy's `unique` takes two
    to six times as long."""
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


class Traffic(Component):
    """The part of the machine that counts requests."""

    def count(self, space: str, threads, offsets, itemsize: int, keep: np.ndarray | None = None) -> None:
        """Count an access by the first CTA on behalf of the whole batch. `offsets()` returns byte offsets, `threads`
        says who moves each element, and `keep` which are accessed. An access of a tile to a region is measured once
        per alignment of its first element."""
        call = self.m.fiber.node
        at = offsets()
        if not len(at):
            return
        key: tuple = id(call), space, int(at[0]) % 1024, len(at)
        if keep is not None or not _is_regular(call):
            key = *key, hash(at.tobytes()), None if keep is None else hash(keep.tobytes())
        if key not in self.m.sim.traffic:
            measured = self._measure(call, np.broadcast_to(threads, at.shape).astype(np.int64), at, itemsize, keep)
            if not isinstance(measured, tuple):
                measured = sectors(measured) if space == "global" else bank_conflicts(measured)
            self.m.sim.traffic[key] = measured
        requests, cost = self.m.sim.traffic[key]
        stats = self.m.report.stats
        stats[f"{space} requests"] += requests * self.m.batch
        stats["global sectors" if space == "global" else "bank conflicts"] += cost * self.m.batch

    def _measure(self, call, threads: np.ndarray, offsets: np.ndarray, itemsize: int,
                 keep: np.ndarray | None) -> Vectors | tuple[int, int]:
        """The vectors of a call's access to the elements at `offsets`, or (requests,
        extra passes) if it moves matrices."""
        plan: Any = getattr(getattr(call, "choice", None), "plan", None)
        t = moved_tile(call)
        if hasattr(plan, "matrix_rows"):  # a load or store of a tile, all of whose elements are accessed
            return matrix_conflicts(plan.matrix_rows(t, self.m.threads), offsets)
        if hasattr(plan, "steps"):        # a copy, in vectors of consecutive bytes
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

    def _of_registers(self, call, plan, t: Tile, threads: np.ndarray, offsets: np.ndarray, itemsize: int,
                      keep: np.ndarray | None) -> Vectors:
        """The vectors of a tile's registers. A load fills all replicas; a store or an atomic uses only the first."""
        table = thread_table(layout_of(t), domain_of(t), self.m.threads)[:, [run[0] for run in plan.groups(t)]]
        number = np.full(domain_of(t), -1)
        number[tuple(slice(n) for n in t.shape)] = np.arange(t.size).reshape(t.shape)
        element = number.reshape(-1)[table]
        here = self.m.low + np.arange(self.m.threads)[:, None]
        active = element >= 0
        if keep is not None:
            active &= keep[element]
        if call.op.effect != "reads":
            active &= threads[element] == here
        thread, turn = np.nonzero(active)
        return Vectors(self.m.low + thread, turn, offsets[element[active]], itemsize * plan.vector)


def moved_tile(call) -> Tile | None:
    """The register tile that a call moves, or None."""
    types = [r.type for r in call.results] + [type_of(x) for x in call.args[1:] if x is not None]
    return next((t for t in types if isinstance(t, Tile) and t.layout is not None), None)


def _is_regular(call) -> bool:
    """Whether the call moves a region with all threads together,
    so that the offset of its first element determines all others."""
    return (isinstance(type_of(call.args[0]), Region)
            and (moved_tile(call) is not None or hasattr(getattr(call.choice, "plan", None), "steps")))
