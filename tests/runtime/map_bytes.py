"""The meaning of a tensor map's bits, as far as it was determined on Hopper: an encoder to compare the driver's with.

A map is opaque by contract; only tests rely on this.
"""

from __future__ import annotations

ELEMENTS = {"uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6, "float32": 7, "float32_ftz": 8,
            "float64": 9, "bfloat16": 10, "tfloat32": 7, "tfloat32_ftz": 8}
STORED_AS = {"bool": "uint8", "int8": "uint8", "int16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
CORNER_BITS = {3: 16, 4: 8}


class Bits:
    """128 bytes, and a mask of the bits that are known."""

    def __init__(self):
        self.value, self.known = 0, 0

    def put(self, byte: int, bit: int, width: int, value: int) -> None:
        mask = (1 << width) - 1 << 8 * byte + bit
        assert not self.known & mask, "two fields share bits"
        self.known |= mask
        self.value |= value << 8 * byte + bit & mask

    def agree(self, data: bytes) -> bool:
        """Whether 128 bytes agree with these bits where they are known."""
        return not (int.from_bytes(data, "little") ^ self.value) & self.known


def encoded(*, dtype, rank, address, dims, strides, element_strides, box=None, lower=None, upper=None, channels=None, pixels=None,
            interleave=0, swizzle=0, l2_promotion=0, oob_fill=0) -> Bits:
    """The bits of a map with these fields, as in `tensormap.TensorMap`."""
    bits = Bits()
    dtype = STORED_AS.get(dtype, dtype)
    bits.put(0, 0, 64, address)
    for bit, width, value in ((0, 1, not box), (4, 3, rank - 1), (7, 4, ELEMENTS[dtype]), (11, 2, interleave), (13, 2, swizzle),
                              (15, 1, oob_fill), (16, 1, dtype.startswith("tfloat32")), (17, 2, l2_promotion)):
        bits.put(8, bit, width, int(value))
    for i, stride in enumerate(strides):
        bits.put(12 + 4 * i, 0, 32, stride // 16 & 0xffffffff)
        bits.put(28, 4 * i, 4, stride // 16 >> 32)
    for i, n in enumerate(dims):
        bits.put(32 + 4 * i, 0, 32, n - 1)
    for i, n in enumerate(element_strides):
        bits.put(52, 3 * i, 3, n - 1)
    if box:
        for i, n in enumerate(box):
            bits.put(55 + i, 0, 8, n - 1)
        return bits
    bits.put(55, 0, 8, channels - 1)
    bits.put(60, 0, 16, pixels - 1)
    if rank in CORNER_BITS:
        width = CORNER_BITS[rank]
        for i, corner in enumerate((*lower, *upper)):
            bits.put(56, width * i, width, corner & (1 << width) - 1)
    return bits
