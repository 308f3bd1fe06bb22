"""What copies issued by a single thread share: needs, the issuing thread, shared-memory addresses.

In a partial scope, every thread that reaches the call makes a copy of its own;
otherwise the first thread of the scope issues it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ....dispatch import Need
from .options import is_policy
from .site import CopySite

LOAD, STORE = ("global", "shared"), ("shared", "global")
MAX_BYTES = (1 << 20) - 1  # the largest pending tx-count of an mbarrier phase (PTX ISA, tx-count)


# -- needs -------------------------------------------------------------------------------------------------------------

def _has_one_issuer(s: CopySite) -> bool | str:
    """Whether one thread makes the call, or each of a partial scope, or the copy completes on a barrier, so that one
    can issue it for all."""
    elects = s.mbar is not None or s.by_token
    return (s.threads == 1 or s.partial is not None or elects
            or f"{s.threads} threads of a {s.scope}: use tile.elect(), or give mbar=")


def _completion(s: CopySite) -> bool | str:
    if s.scopes == STORE:
        return s.mbar is None or "mbar= on a store"
    return s.mbar is not None or s.by_token or s.planning or "no mbar="


def not_negative(s: CopySite) -> bool | str:
    for d, start in enumerate(s.starts(s.array)):
        low = s.g.bounds(start)[0]
        if low is None:
            return f"the start along dimension {d} is not known to be at least 0"
        if low < 0:
            return f"the start along dimension {d} is {low}"
    return True


GLOBAL_AND_SHARED = Need("one side in global and the other in shared memory",
                         lambda s: s.scopes in (LOAD, STORE) or f"{s.scopes[0]} to {s.scopes[1]}", gate=True)
ONE_THREAD = Need("one thread, or mbar= by which a wider scope elects its first", _has_one_issuer)
COMPLETION = Need("mbar= on a load, which completes by bytes, and none on a store, which completes by groups",
                  _completion)
COUNTED = Need("at least one element and at most 2^20 - 1 bytes, as a barrier counts",
               lambda s: 0 < s.nbytes <= MAX_BYTES or f"{s.nbytes} bytes", gate=True)
POLICY = Need("an L2 policy as the cache option", is_policy)
MULTICAST = Need("multicast= on loads only", lambda s: not s.options.get("multicast") or s.scopes == LOAD)


# -- emission ----------------------------------------------------------------------------------------------------------

def emit_issue(e, each_thread: bool, issue: Callable[[], None]) -> None:
    """Emit `issue()` for the threads that issue the copy: every thread, or the first of the scope."""
    if each_thread:
        issue()
    else:
        e.control.by_first_thread(issue)


def region_address(e, region) -> tuple:
    """(address, constant byte offset) of the first element of a shared region, before the swizzle."""
    layout, nbytes = region.buffer.type.layout.without_swizzle(), region.buffer.type.dtype.nbytes
    at = layout.offset_of(*region.starts, shape=region.buffer.type.shape) * nbytes
    if isinstance(at, int):
        return e.shared_base(), region.buffer.offset + at
    return e.shared_base() + e.word(at), region.buffer.offset


# -- simulation --------------------------------------------------------------------------------------------------------

def issuers(m, each_thread: bool) -> Iterator[tuple[int | np.intp, np.ndarray | None]]:
    """Yield the threads of the scope that issue the copy, each with the CTAs of the batch in which it
    does (None for all)."""
    if not each_thread:
        yield 0, None
        return
    for thread in np.flatnonzero(m.active.any(axis=0)):
        mine = np.broadcast_to(m.active[:, thread], (m.batch,))
        yield thread, None if mine.all() else np.flatnonzero(mine)


def of_thread(scalar: np.ndarray, thread: int | np.intp, positions: np.ndarray | None) -> np.ndarray:
    """A thread's value of a scalar: [B or 1, 1] (B: CTAs of the batch).

    CTAs outside `positions`, in which the thread does not issue, get the value of one in which it does.
    """
    column = scalar[:, thread if scalar.shape[1] > 1 else 0].astype(np.int64)[:, None]
    if positions is None or len(column) == 1:
        return column
    result = np.full_like(column, column[positions[0]])
    result[positions] = column[positions]
    return result


def region_bytes(m, region, thread: int | np.intp, positions: np.ndarray | None) -> np.ndarray | None:
    """The byte offset of a shared region in its buffer, before the swizzle, from the starts that `thread` holds:
    [B or 1, 1].

    Reports a finding and returns None if the region is not inside the buffer.
    """
    t, starts = region.type, tuple(of_thread(s, thread, positions) for s in region.starts)
    if not m.shared.in_buffer(region, starts):
        return None
    return (np.asarray(t.buffer.layout.without_swizzle().offset_of(*starts, shape=t.buffer.shape)).reshape(-1, 1)
            * t.dtype.nbytes)
