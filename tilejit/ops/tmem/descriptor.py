"""The 64-bit shared memory descriptor, through which tcgen05 reads a matrix.

PTX ISA, "Shared memory descriptor" (9.7.16.4.1).
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 0b001 << 46
CODES = {0: 0, 128: 2, 64: 4, 32: 6}  # span of the swizzle in bytes -> swizzle mode, bits 61 to 63
FIELD = 0x3FFF                        # the address and the offsets have 14 bits, in units of 16 bytes


@dataclass(frozen=True)
class SharedDescriptor:
    """A descriptor without its start address.

    `span` is the span of the swizzle (0, 32, 64 or 128 bytes); `leading` and `stride` are the leading and stride
    dimension byte offsets (LBO, SBO).
    """

    span: int
    leading: int
    stride: int

    @property
    def bits(self) -> int:
        """The 64 bits, with an address of 0."""
        return (self.leading >> 4 & FIELD) << 16 | (self.stride >> 4 & FIELD) << 32 | VERSION | CODES[self.span] << 61

    def encode(self, address: int) -> int:
        """The 64 bits for a matrix that starts at `address` in shared memory."""
        return self.bits | address >> 4 & FIELD

    @staticmethod
    def decode(bits: int) -> tuple[SharedDescriptor, int] | str:
        """Decode 64 bits to (descriptor, start address), or to a string that says which field is illegal."""
        if bits >> 46 & 7 != 1:
            return f"bits 46 to 48 of the descriptor are {bits >> 46 & 7:#b}, not 0b001"
        code = bits >> 61
        span = next((n for n, c in CODES.items() if c == code), None)
        if span is None:
            return f"the swizzle mode {code} of the descriptor"
        if bits >> 49 & 0xFFF:
            return "the descriptor's base offset and leading mode, which are 0"
        return SharedDescriptor(span, (bits >> 16 & FIELD) << 4, (bits >> 32 & FIELD) << 4), (bits & FIELD) << 4


def swizzle_address(at, span: int):
    """Apply the swizzle to a byte address or an array of them: XOR the bits from 4 on with the bits from 7 on."""
    return at ^ (at >> 3 & (span - 1 & ~15)) if span else at
