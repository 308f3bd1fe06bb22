"""Matrix descriptors: derived from layouts, encoded, and decoded."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.layout import Swizzle, TileLayout
from tilejit.ops.mma.descriptor import PLAIN, Derived, Descriptor, derive_descriptor, encode_descriptor, offsets


def digits(layout, shape, itemsize):
    return [[(n, s * itemsize) for n, s, _ in part] for part in layout.dims(shape)]


def of(layout, shape, mn, itemsize=2, span=128, k_first=False):
    rows, ks = digits(layout, shape, itemsize)
    if k_first:
        rows, ks = ks, rows
    return derive_descriptor(offsets(rows), offsets(ks), mn, itemsize, span)


@pytest.mark.parametrize("span", [32, 64, 128])
def test_descriptors_of_swizzled_k_major_operands_are_right(span):
    """Groups of 8 rows are 8 spans apart, the other stride is unused, and k advances inside a row of the atom."""
    made = of(tile.swizzled(tile.float16, (128, 64), span).without_swizzle(), (128, 64), 64, span=span)
    assert made.descriptor == Descriptor("k", span, 16, 8 * span)
    assert made.rows == (0, 64 * span)
    assert made.ks == tuple(k * 32 % span + k * 32 // span * 128 * span for k in range(4))


def test_common_descriptors_have_the_known_bits():
    """The constants in hand-written kernels: 128-byte swizzle, K-major and MN-major with 64 rows of k."""
    k_major = of(tile.swizzled(tile.bfloat16, (256, 64), 128).without_swizzle(), (256, 64), 256)
    assert k_major.descriptor.bits == 1 << 62 | 64 << 32 | 1 << 16
    mn_major = of(tile.swizzled(tile.bfloat16, (64, 256), 128).without_swizzle(), (64, 256), 256, k_first=True)
    assert mn_major.descriptor.bits == 1 << 62 | 64 << 32 | 64 * 128 >> 4 << 16
    assert mn_major.ks == (0, 2048, 4096, 6144)


def test_descriptors_of_unswizzled_16_byte_columns_are_right():
    """8 rows of 16 bytes are a core matrix; the leading stride is along k, the other along the rows."""
    made = of(tile.swizzled(tile.int8, (64, 128), 0), (64, 128), 64, itemsize=1, span=0)
    assert made.descriptor == Descriptor("k", 0, 64 * 16, 128)


@pytest.mark.parametrize("layout,span", [
    (TileLayout.row_major((64, 64)), 0),                                                    # rows of 128 bytes, no swizzle
    (TileLayout.strided((64, 64), (72, 1)), 0),                                             # padded rows
    (Swizzle(3, 3, 3) @ TileLayout.strided((64, 64), (64, 2)), 128),                        # every other element
])
def test_layouts_that_no_descriptor_expresses_are_refused(layout, span):
    """With the reason."""
    assert of(layout.without_swizzle(), (64, 64), 64, span=span) is PLAIN


def test_the_rank_of_a_cta_is_not_part_of_the_descriptor():
    """Shared addresses in a cluster have the CTA's rank above bit 24."""
    d = Descriptor("mn", 128, 8192, 1024)
    assert encode_descriptor(d, 0x01000400) == encode_descriptor(d, 0x400)
    assert Descriptor.decode(encode_descriptor(d, 0x2400), "mn") == (d, 0x2400)


@pytest.mark.parametrize("span,major", [(s, m) for s in (0, 32, 64, 128) for m in ("k", "mn")])
def test_a_decoded_descriptor_names_the_bytes_of_the_layout(span, major):
    """The addresses that a descriptor expresses are those of the elements in the layout."""
    shape = (64, 128) if major == "k" else (128, 64)
    layout = tile.swizzled(tile.float16, shape, span)
    made = of(layout.without_swizzle(), shape, 64, span=span, k_first=major == "mn")
    assert isinstance(made, Derived) and made.descriptor.major == major
    for step, k in enumerate(made.ks):
        i, j = np.indices((64, 16), sparse=True)
        j = j + 16 * step
        at = layout.offset_of(i, j, shape=shape) if major == "k" else layout.offset_of(j, i, shape=shape)
        found, start = Descriptor.decode(encode_descriptor(made.descriptor, 4096 + k), major)
        np.testing.assert_array_equal(found.addresses(start, 64, 2), 4096 + 2 * np.broadcast_to(at, (64, 16)))
