"""Matrix descriptors of wgmma, derived from where a layout puts a matrix in shared memory, and read back by the simulator.

A descriptor names a matrix by a start address and two steps. The unit is one instruction's operand: `mn` rows of A (or
columns of B) by 32 bytes of k. PTX ISA, "Asynchronous warpgroup-level matrix shared memory layout" and "Matrix
descriptor"; which step is which in which layout was settled on hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dispatch import Miss

K_BYTES = 32                                  # of an instruction, whatever its type
CODES = {0: 0, 128: 1, 64: 2, 32: 3}          # bytes of the swizzle's span -> bits 62 and 63
PLAIN = Miss("its elements are neither in columns of 16 bytes nor in atoms of 8 rows of the swizzle's span")
SIDEWAYS = Miss("it is contiguous along its rows, and must be contiguous along k")
LIMIT = 1 << 18                               # bytes that an address or a step can name (14 bits of 16 bytes)


@dataclass(frozen=True)
class Descriptor:
    """A descriptor without its address. `span` is the swizzle's (32, 64, 128 bytes; 0 for none), `major` the direction
    whose elements are contiguous, "k" or "mn"; `leading` and `stride` are the two byte offsets (LBO and SBO)."""

    major: str
    span: int
    leading: int
    stride: int

    @property
    def bits(self) -> int:
        """The 64 bits, with the address left 0."""
        return (self.leading >> 4) << 16 | (self.stride >> 4) << 32 | CODES[self.span] << 62

    @staticmethod
    def decoded(bits: int, major: str) -> tuple["Descriptor", int]:
        """The descriptor that 64 bits hold, and its start address."""
        span = {code: n for n, code in CODES.items()}[bits >> 62]
        return Descriptor(major, span, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4), (bits & 0x3FFF) << 4

    def offsets(self, mn: int, itemsize: int) -> tuple[np.ndarray, np.ndarray]:
        """Bytes from the start, before the swizzle, that the row (of `mn`) and the k of an element add up to."""
        i, j = np.arange(mn), np.arange(K_BYTES // itemsize)
        width = (self.span or 16) // itemsize  # elements of a row of the atom
        if self.major == "k":
            columns = j // width * self.leading if not self.span else 0
            return i % 8 * (self.span or 16) + i // 8 * self.stride, j % width * itemsize + columns
        across, down = (self.leading, self.stride) if self.span else (self.stride, self.leading)
        return i % width * itemsize + i // width * across, j % 8 * (self.span or 16) + j // 8 * down

    def addresses(self, start, mn: int, itemsize: int) -> np.ndarray:
        """The byte addresses of the elements, (mn, k), of the matrix at `start`: address bits 4.. XORed with bits 7.."""
        rows, ks = self.offsets(mn, itemsize)
        at = start + rows[:, None] + ks[None, :]
        return at ^ (at >> 3 & (self.span - 1 & ~15)) if self.span else at


def derived(row_at: list[int], k_at: list[int], mn: int, itemsize: int, span: int) -> "Derived | Miss":
    """The descriptor by which instructions with `mn` rows read a matrix, and where each of them starts; or why none can:
    `PLAIN`, `SIDEWAYS`, or what the numbers are.

    `row_at` and `k_at` are the bytes from the matrix's first element to each of its rows, and to each of its k.
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
                return Miss(f"rows of the swizzle begin at a step of {guess.stride} bytes, which is no multiple of its period of {8 * guess.span}")
            return Derived(guess, tuple(row_at[::mn]), tuple(k_at[::k]))
    if len(row_at) > 1 and row_at[1] - row_at[0] == itemsize:
        if itemsize > 2:
            return SIDEWAYS
        if len(row_at) * itemsize < 16:
            return Miss(f"its {len(row_at)} rows lie side by side in {len(row_at) * itemsize} bytes, and the columns of a matrix have 16")
    return PLAIN


@dataclass(frozen=True)
class Derived:
    """A descriptor with the byte offset of each block of rows and of each step along k."""

    descriptor: Descriptor
    rows: tuple[int, ...]
    ks: tuple[int, ...]


def offsets(digits: list[tuple[int, int]]) -> list[int]:
    """The bytes to each element of a dimension whose (extent, stride in bytes) digits, outermost first, are these."""
    at = [0]
    for extent, stride in digits:
        at = [a + n * stride for a in at for n in range(extent)]
    return at


def _step(at: list[int], n: int, default: int) -> int:
    return at[n] - at[0] if len(at) > n else default


def _k_major(row_at, k_at, span: int, itemsize: int) -> Descriptor | None:
    if len(k_at) > 1 and k_at[1] - k_at[0] != itemsize:
        return None
    stride = _step(row_at, 8, 8 * (span or 16))
    leading = 16 if span else _step(k_at, 16 // itemsize, 16)  # ignored under a swizzle, where it is 1
    return Descriptor("k", span, leading, stride) if stride >= 0 and leading >= 0 else None


def _mn_major(row_at, k_at, mn: int, span: int, itemsize: int) -> Descriptor | None:
    if itemsize > 2 or len(row_at) < 2 or row_at[1] - row_at[0] != itemsize:
        return None
    width = (span or 16) // itemsize
    across = _step(row_at, width, 0) if mn > width else 8 * (span or 16)
    down = _step(k_at, 8, 0)
    leading, stride = (across, down) if span else (down, across)
    return Descriptor("mn", span, leading, stride) if across >= 0 and down >= 0 else None


def _names(guess: Descriptor, row_at, k_at, mn: int, k: int, itemsize: int) -> bool:
    """Whether every instruction's operand is what the descriptor says, but for where it starts."""
    rows, ks = guess.offsets(mn, itemsize)
    alike = lambda at, n, want: all(at[b + i] - at[b] == want[i] for b in range(0, len(at), n) for i in range(n))
    return alike(row_at, mn, rows) and alike(k_at, k, ks)


def _repeats(d: Descriptor, mn: int, itemsize: int) -> list[int]:
    """The steps between groups of 8 rows of atoms that the hardware takes for aligned to the swizzle's period."""
    if d.major == "k":
        return [d.stride] if mn > 8 else []
    return [d.stride] + ([d.leading] if mn > d.span // itemsize else [])


def encoded(descriptor: Descriptor, address: int) -> int:
    """The 64 bits of a descriptor at an address. In a cluster bits 24 and up of it hold the CTA's rank: they are cut off."""
    return descriptor.bits | (address & LIMIT - 1) >> 4
