"""Matrix descriptors of wgmma: derived from the layout of a matrix in shared memory, and decoded by the simulator.

A descriptor describes a matrix by a start address, two byte offsets and a swizzle. The matrix is one instruction's
operand: `mn` rows of A (or columns of B) by 32 bytes of k. PTX ISA, "Asynchronous warpgroup-level matrix shared
memory layout" and "Matrix descriptor"; which offset has which meaning in which layout was determined on hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dispatch import Miss

K_BYTES = 32                                  # bytes along k that one instruction takes, whatever the dtype
CODES = {0: 0, 128: 1, 64: 2, 32: 3}          # span of the swizzle in bytes -> bits 62 and 63
PLAIN = Miss("its elements are neither in columns of 16 bytes nor in atoms of 8 rows of the swizzle's span")
SIDEWAYS = Miss("it is contiguous along its rows, and must be contiguous along k")
LIMIT = 1 << 18                               # addresses and offsets must be less (14 bits, in units of 16 bytes)


@dataclass(frozen=True)
class Descriptor:
    """A descriptor without its start address.

    `major` is the direction in which elements are contiguous, "k" or "mn"; `span` is the span of the swizzle (32, 64
    or 128 bytes; 0 for none); `leading` and `stride` are the leading and stride dimension byte offsets (LBO and SBO).
    """

    major: str
    span: int
    leading: int
    stride: int

    @property
    def bits(self) -> int:
        """The 64 bits, with an address of 0."""
        return (self.leading >> 4) << 16 | (self.stride >> 4) << 32 | CODES[self.span] << 62

    @staticmethod
    def decode(bits: int, major: str) -> tuple[Descriptor, int]:
        """Decode 64 bits to (descriptor, start address)."""
        span = {code: n for n, code in CODES.items()}[bits >> 62]
        return Descriptor(major, span, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4), (bits & 0x3FFF) << 4

    def offsets(self, mn: int, itemsize: int) -> tuple[np.ndarray, np.ndarray]:
        """Two arrays, by row (of `mn`) and by k, whose sum is the byte offset of an element from the start,
        before the swizzle."""
        i, j = np.arange(mn), np.arange(K_BYTES // itemsize)
        width = (self.span or 16) // itemsize  # elements per row of the atom
        if self.major == "k":
            columns = j // width * self.leading if not self.span else 0
            return i % 8 * (self.span or 16) + i // 8 * self.stride, j % width * itemsize + columns
        across, down = (self.leading, self.stride) if self.span else (self.stride, self.leading)
        return i % width * itemsize + i // width * across, j % 8 * (self.span or 16) + j // 8 * down

    def addresses(self, start, mn: int, itemsize: int) -> np.ndarray:
        """The byte addresses [mn, k] of the elements of the matrix at `start`. The swizzle XORs the bits from 4 on
        with those from 7 on."""
        rows, ks = self.offsets(mn, itemsize)
        at = start + rows[:, None] + ks[None, :]
        return at ^ (at >> 3 & (self.span - 1 & ~15)) if self.span else at


def derive_descriptor(row_at: list[int], k_at: list[int], mn: int, itemsize: int, span: int) -> Derived | Miss:
    """The descriptor with which instructions of `mn` rows read a matrix, and the offset of each instruction's part;
    or the reason why no descriptor does (`PLAIN`, `SIDEWAYS`, or a `Miss` with numbers).

    `row_at` and `k_at` are the byte offsets of each row and of each k from the first element of the matrix.
    """
    k = K_BYTES // itemsize
    if len(row_at) % mn or len(k_at) % k:
        return Miss(f"{len(row_at)} by {len(k_at)} elements are no multiple of the instruction's {mn} by {k}")
    guesses = [_k_major(row_at, k_at, span, itemsize), _mn_major(row_at, k_at, mn, span, itemsize)]
    for guess in guesses:
        if guess is not None and _names(guess, row_at, k_at, mn, k, itemsize):
            if guess.leading >= LIMIT or guess.stride >= LIMIT or guess.leading % 16 or guess.stride % 16:
                return Miss(f"steps of {guess.leading} and {guess.stride} bytes do not fit in its fields")
            if guess.span and any(step % (8 * guess.span) for step in _repeats(guess, mn, itemsize)):
                return Miss(f"rows of the swizzle begin at a step of {guess.stride} bytes, "
                            f"which is no multiple of its period of {8 * guess.span}")
            return Derived(guess, tuple(row_at[::mn]), tuple(k_at[::k]))
    if len(row_at) > 1 and row_at[1] - row_at[0] == itemsize:
        if itemsize > 2:
            return SIDEWAYS
        if len(row_at) * itemsize < 16:
            return Miss(f"its {len(row_at)} rows lie side by side in {len(row_at) * itemsize} bytes, "
                        "and the columns of a matrix have 16")
    return PLAIN


@dataclass(frozen=True)
class Derived:
    """A descriptor with the byte offsets of each block of rows (`rows`) and of each instruction's
    step along k (`ks`)."""

    descriptor: Descriptor
    rows: tuple[int, ...]
    ks: tuple[int, ...]


def as_derived(found: Derived | Miss) -> Derived:
    """A descriptor that a need has already seen to exist."""
    assert isinstance(found, Derived), found
    return found


def offsets(digits: list[tuple[int, int]]) -> list[int]:
    """The byte offset of each element of a dimension, from its digits (extent, stride in bytes), outermost first."""
    at = [0]
    for extent, stride in digits:
        at = [a + n * stride for a in at for n in range(extent)]
    return at


def _step(at: list[int], n: int, default: int) -> int:
    return at[n] - at[0] if len(at) > n else default


def _k_major(row_at, k_at, span: int, itemsize: int) -> Descriptor | None:
    """The descriptor that the first offsets suggest for a matrix contiguous along k; None if it is not."""
    if len(k_at) > 1 and k_at[1] - k_at[0] != itemsize:
        return None
    stride = _step(row_at, 8, 8 * (span or 16))
    # the hardware ignores it under a swizzle; the field is 1 then
    leading = 16 if span else _step(k_at, 16 // itemsize, 16)
    return Descriptor("k", span, leading, stride) if stride >= 0 and leading >= 0 else None


def _mn_major(row_at, k_at, mn: int, span: int, itemsize: int) -> Descriptor | None:
    """The descriptor that the first offsets suggest for a matrix contiguous along its rows (16-bit and narrower
    elements); else None."""
    if itemsize > 2 or len(row_at) < 2 or row_at[1] - row_at[0] != itemsize:
        return None
    width = (span or 16) // itemsize
    across = _step(row_at, width, 0) if mn > width else 8 * (span or 16)
    down = _step(k_at, 8, 0)
    leading, stride = (across, down) if span else (down, across)
    return Descriptor("mn", span, leading, stride) if across >= 0 and down >= 0 else None


def _names(guess: Descriptor, row_at, k_at, mn: int, k: int, itemsize: int) -> bool:
    """Whether the part of every instruction has the offsets that the descriptor implies, relative to its own start."""
    rows, ks = guess.offsets(mn, itemsize)
    def repeats(at, n, want):
        return all(at[b + i] - at[b] == want[i] for b in range(0, len(at), n) for i in range(n))
    return repeats(row_at, mn, rows) and repeats(k_at, k, ks)


def _repeats(d: Descriptor, mn: int, itemsize: int) -> list[int]:
    """The offsets between swizzle atoms, which the hardware assumes to be multiples of the swizzle's period."""
    if d.major == "k":
        return [d.stride] if mn > 8 else []
    return [d.stride] + ([d.leading] if mn > d.span // itemsize else [])


def encode_descriptor(descriptor: Descriptor, address: int) -> int:
    """The 64 bits of a descriptor at an address. In a cluster, bits 24 and up of an address are the CTA's rank,
    and are dropped."""
    return descriptor.bits | (address & LIMIT - 1) >> 4
