"""Simulates PTX instructions that exchange values among the lanes of a warp, and which lanes take part.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "elect.sync", "bar.warp.sync".

Each lane names the lanes that take part by its `membermask`: itself, and lanes that execute the same instruction with
the same mask. Anything else is undefined, and a finding.
"""

from __future__ import annotations

import numpy as np

from . import means

_LANE = np.arange(32)


def _lanes(m, x) -> np.ndarray:
    """A scalar's values by CTA, warp and lane, of shape (B or 1, warps, 32). Lanes outside of the scope have 0."""
    x = np.asarray(x)
    x = np.broadcast_to(x, (x.shape[0], m.threads))
    first, warps = m.low % 32, -(-(m.low % 32 + m.threads) // 32)
    if first or m.threads % 32:
        x = np.pad(x, ((0, 0), (first, 32 * warps - first - m.threads)))
    return x.reshape(x.shape[0], warps, 32)


def _threads(m, x: np.ndarray) -> np.ndarray:
    """The values (B or 1, warps, 32 or 1) of lanes as those of the scope's threads, (B or 1, T)."""
    x = np.broadcast_to(x, (*x.shape[:2], 32)).reshape(x.shape[0], -1)
    return x[:, m.low % 32:m.low % 32 + m.threads]


def _masks(m, x) -> tuple[np.ndarray, np.ndarray]:
    """The membermask of each lane, (B or 1, warps, 32), and which lanes execute the instruction."""
    return _lanes(m, x["membermask"].astype(np.uint32)), _lanes(m, m.active)


def _participating_lanes(m, form, x) -> np.ndarray:
    """Which lanes take part with each lane, (B or 1, warps, 32 or 1, 32): those that execute the instruction with its
    mask, and are in it. Reports masks with which the instruction is undefined."""
    mask, active = _masks(m, x)
    named = (mask[..., :, None] >> _LANE.astype(np.uint32) & np.uint32(1)).astype(bool)
    if (mask == mask[..., :1]).all():
        named, here = named[..., :1, :], active[..., None, :]
    else:
        here = active[..., None, :] & (mask[..., :, None] == mask[..., None, :])
    _check_members(m, form, mask, active, named, here)
    return named & here


def _check_members(m, form, mask, active, named, here) -> None:
    mnemonic = form.mnemonic
    itself = np.take_along_axis(np.broadcast_to(named, (*named.shape[:2], 32, 32)), _LANE[:, None][None, None],
                                axis=3)[..., 0]
    bad = active & ~itself
    if bad.any():
        at, (thread, *_) = _first_thread(m, bad)
        m.finding("divergent-collective", f"thread {thread} executes {mnemonic} with the membermask {_hex(mask, at)}, "
                  f"which does not name its own lane, {thread % 32}", threads=(thread,), ctas=_ctas(m, at))
        return
    missing = named & ~here & active[..., :, None]
    if not missing.any():
        return
    at, _ = _first_thread(m, missing.any(axis=3))
    absent = np.flatnonzero(_pick(missing, at))
    thread, warp = _thread(m, at), 32 * ((m.low + 32 * at[1]) // 32)
    gone = [int(n) for n in absent if not _pick(active, at[:2])[n]]
    if gone:
        verb = "does" if len(gone) == 1 else "do"
        threads = _count_in_words("thread", [warp + n for n in gone])
        why = f"which names {_count_in_words('lane', gone)}: {threads} {verb} not execute it"
    else:
        other = int(absent[0])
        why = f"and thread {warp + other}, which it names, with {_hex(mask, (*at[:2], other))}"
    m.finding("divergent-collective",
              f"thread {thread} executes {mnemonic} with the membermask {_hex(mask, at)}, {why}",
              threads=tuple(warp + n for n in (gone or absent.tolist())[:8]), ctas=_ctas(m, at))


def _first_thread(m, bad: np.ndarray) -> tuple[tuple[int, ...], list[int]]:
    """The first (CTA, warp, lane) where `bad` holds, and the threads of that warp where it does."""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return at, [_thread(m, (*at[:2], int(n))) for n in np.flatnonzero(bad[at[:2]])]


def _pick(x: np.ndarray, at: tuple[int, ...]) -> np.ndarray:
    """``x[at]``, where axes of extent 1 stand for any extent."""
    return x[tuple(min(i, n - 1) for i, n in zip(at, x.shape))]


def _thread(m, at: tuple[int, ...]) -> int:
    return (m.low // 32 + at[1]) * 32 + at[2]


def _ctas(m, at: tuple[int, ...]) -> np.ndarray:
    return m.ctas[at[0]:at[0] + 1]


def _hex(mask: np.ndarray, at: tuple[int, ...]) -> str:
    return f"0x{int(_pick(mask, at)):x}"


def _count_in_words(noun: str, numbers: list[int]) -> str:
    """Numbers in words: `lane 3`, `lanes 8 to 31`, `lanes 1, 5 and 7`."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{noun}s {numbers[0]} to {numbers[-1]}"
    shown = numbers if len(numbers) <= 8 else numbers[:7] + ["others"]
    return f"{noun}s {', '.join(map(str, shown[:-1]))} and {shown[-1]}"


# -- instructions ------------------------------------------------------------------------------------------------------

@means(r"shfl\.sync\.(up|down|bfly|idx)\.b32(\.pred)?")
def shuffle(m, form, x):
    """PTX ISA, ``shfl.sync``: the segment's mask and the clamp value are in `c`. A lane whose source is out of range
    keeps its own value."""
    together = _participating_lanes(m, form, x)
    mode = form.name.split(".")[2]
    a, b, c = (_lanes(m, x[n]).astype(np.int64) for n in "abc")
    segment = c >> 8 & 31
    clamp, low = c & 31, _LANE & segment
    most = low | (clamp & ~segment & 31)
    at = {"up": _LANE - (b & 31), "down": _LANE + (b & 31), "bfly": _LANE ^ (b & 31),
          "idx": low | (b & ~segment & 31)}[mode]
    inside = at >= most if mode == "up" else at <= most
    at = np.where(inside, at, _LANE) & 31
    batch = max(a.shape[0], at.shape[0], together.shape[0])
    at, a = (np.broadcast_to(v, (batch, *a.shape[1:])) for v in (at, a))
    _check_sources(m, form, x, at, together)
    value = _threads(m, np.take_along_axis(a, at, axis=2)).astype(np.uint32)
    return (value, _threads(m, np.broadcast_to(inside, a.shape))) if form.name.endswith(".pred") else value


def _check_sources(m, form, x, at: np.ndarray, together: np.ndarray) -> None:
    """Report lanes that read from a lane which does not take part: the value is undefined."""
    mask, active = _masks(m, x)
    taking = np.take_along_axis(np.broadcast_to(together, (at.shape[0], *together.shape[1:2], 32, 32)), at[..., None],
                                axis=3)[..., 0]
    bad = active & ~taking & (at != _LANE)
    if not bad.any():
        return
    where, threads = _first_thread(m, bad)
    source = int(_pick(at, where))
    outside = not int(_pick(mask, where)) >> source & 1
    why = "which does not execute it with that mask"
    if outside:
        why = f"which its membermask {_hex(mask, where)} does not name"
    m.finding("divergent-collective", f"thread {threads[0]} reads from lane {source} by {form.name}, {why}: the value "
                                      f"is undefined",
              threads=tuple(threads[:8]), ctas=_ctas(m, where))


@means(r"vote\.sync\.(all|any|uni)\.pred|vote\.sync\.ballot\.b32")
def vote(m, form, x):
    together, p = _participating_lanes(m, form, x), _lanes(m, x["p"]).astype(bool)[..., None, :]
    if ".ballot" in form.name:
        return _threads(m, ((p & together) << _LANE).sum(axis=3))
    every, some = (p | ~together).all(axis=3), (p & together).any(axis=3)
    return _threads(m, {"all": every, "any": some, "uni": every | ~some}[form.name.split(".")[2]])


@means(r"match\.(any|all)\.sync\.(b32|b64)(\.pred)?")
def match(m, form, x):
    """The lanes with an equal value; with .all, every lane that takes part, or none unless all values are equal."""
    together, a = _participating_lanes(m, form, x), _lanes(m, x["a"])
    equal = (a[..., :, None] == a[..., None, :]) & together
    if ".any" in form.name:
        return _threads(m, (equal << _LANE).sum(axis=3))
    agree = (equal | ~together).all(axis=3)
    found = _threads(m, np.where(agree, (np.broadcast_to(together, equal.shape) << _LANE).sum(axis=3), 0))
    return (found, _threads(m, agree)) if form.name.endswith(".pred") else found


@means(r"redux\.sync\.(add|min|max)\.(u32|s32)|redux\.sync\.(and|or|xor)\.b32")
def reduce_lanes(m, form, x):
    kind, a, together = form.name.split(".")[2], _lanes(m, x["a"]), _participating_lanes(m, form, x)
    ufunc, unit = {"add": (np.add, 0), "min": (np.minimum, np.iinfo(a.dtype).max),
                   "max": (np.maximum, np.iinfo(a.dtype).min),
                   "and": (np.bitwise_and, np.iinfo(a.dtype).max), "or": (np.bitwise_or, 0),
                   "xor": (np.bitwise_xor, 0)}[kind]
    with np.errstate(all="ignore"):
        return _threads(m, ufunc.reduce(np.where(together, a[..., None, :], a.dtype.type(unit)), axis=3, dtype=a.dtype))


@means(r"activemask\.b32")
def active_mask(m, form, x):
    return _threads(m, (_lanes(m, m.active).astype(np.int64) << _LANE).sum(axis=2, keepdims=True))


@means(r"elect\.sync")
def elect(m, form, x):
    leader = _participating_lanes(m, form, x).argmax(axis=3)
    return _threads(m, leader), _threads(m, leader == _LANE)


@means(r"bar\.warp\.sync")
def barrier_of_lanes(m, form, x):
    """A barrier of the lanes with the same mask, which orders their accesses to memory."""
    _participating_lanes(m, form, x)
    mask, active = _masks(m, x)
    warps = np.arange(mask.shape[1]).reshape(1, -1, 1) << 32
    m.sync.groups(_threads(m, np.where(active, warps | mask.astype(np.int64), -1)))
