"""im2col copies of every rank, dtype and option: on the simulator, in PTX, and on the GPU."""

import numpy as np
import patch_kernels as kernels
import pytest
import tilejit as tile
from box_kernels import REDUCTIONS
from tilejit.errors import DispatchError

from tests.cases import compiled, on_gpu, on_simulator
from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
CLUSTERED = ("sm_90a", "sm_100a", "sm_103a")


def forms(made) -> set[str]:
    """The mnemonics of the tensor instructions in compiled kernels."""
    return {line.strip().split(" [")[0] for k in made for line in k.ptx.splitlines() if ".tensor." in line}


def test_im2col_loads_give_the_rows_that_a_convolution_multiplies():
    """Filters, strides, padding on either side, dilation; channels and pixels beyond the end are zero or NaN. Every rank, type and
    rounding; one instruction per filter position, and one to prefetch it to L2."""
    cases = list(kernels.every_patch())
    on_simulator(cases)
    made = list(map(compiled, cases))
    load = "cp.async.bulk.tensor.{}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes{}"
    prefetch = "cp.async.bulk.prefetch.tensor.{}d.L2.global.im2col.L2::cache_hint"
    assert forms(made) == {load.format(r, hint) for r in (3, 4, 5) for hint in ("", ".L2::cache_hint")} | {prefetch.format(r) for r in (3, 4, 5)}
    assert {c.variant for k in made for c in k.copies if c.op != "copy"} == {"tma"}
    assert len({(m.dtype, m.rank) for k in made for m in k.tensor_maps if not m.oob_fill}) == 3 * 11


def test_the_im2col_map_has_corners_and_strides_innermost_first():
    """In the form of cuTensorMapEncodeIm2col, derived from padding, filter and dilation."""
    k = compiled(kernels.patches_case(kernels.PATCHES[2]))
    m = k.tensor_maps[0]
    assert (m.global_dim, m.global_strides, m.box) == ((40, 7, 7, 2), (80, 560, 3920), ())
    assert (m.lower, m.upper, m.element_strides, m.channels, m.pixels) == ((-2, -1), (1, -4), (1, 2, 1, 1), 48, 64)
    assert k.recipe["maps"][0]["pixels"] == 64
    assert "tensor map of X: dimensions [40, 7, 7, 2] of bfloat16, 64 pixels of 48 channels between the corners [-2, -1] and [1, -4], swizzle 0" in k.explain()


@tile.jit
def counted(X, out, FILTER: tile.constexpr, ALONG: tile.constexpr, STRIDE: tile.constexpr, PADDING: tile.constexpr):
    matrix = tile.im2col(X, FILTER, stride=STRIDE, padding=PADDING, along=ALONG)
    for i, n in enumerate(matrix.shape):
        tile.store(out[i], n)
    tile.static_assert(matrix.dtype == X.dtype)


@pytest.mark.parametrize("shape, filter, along, stride, padding, want", [
    ((2, 9, 7, 16), (3, 2), None, 1, 0, (2 * 7 * 6, 3, 2, 16)), ((2, 9, 7, 16), (3, 3), None, 2, 1, (2 * 5 * 4, 3, 3, 16)),
    ((3, 20, 8), (4,), None, 1, 0, (3 * 17, 4, 8)), ((2, 9, 7, 16), (3, 2), "w", 1, 0, (2 * 6, 7, 3, 2, 16)),
    ((0, 9, 7, 16), (3, 2), None, 1, 0, (0, 3, 2, 16))])
def test_the_im2col_matrix_of_a_convolution_has_a_shape(shape, filter, along, stride, padding, want):
    """Pixels of the result (in W mode further coordinates), filter positions, channels."""
    out = np.zeros(8, np.int32)
    counted[1](np.zeros(shape, np.float16), out, FILTER=filter, ALONG=along, STRIDE=stride, PADDING=padding)
    assert tuple(out[:len(want)]) == want


def test_an_im2col_multicast_reaches_the_ctas_of_its_mask():
    cases = list(kernels.every_shared_patch())
    on_simulator(cases)
    assert forms(map(compiled, cases)) == {f"cp.async.bulk.tensor.{r}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster"
                                           for r in (3, 4, 5)}


def test_im2col_stores_and_reductions_write_the_pixels_that_the_filter_covers():
    """If all of them are inside the images: the filter position shifts the map's corners."""
    cases = list(kernels.every_store())
    on_simulator(cases)
    store = {f"cp.async.bulk.tensor.{r}d.global.shared::cta.im2col_no_offs.bulk_group" for r in (3, 4, 5)}
    assert forms(map(compiled, cases)) == store | {f"cp.reduce.async.bulk.tensor.{r}d.global.shared::cta.{kind}.im2col_no_offs.bulk_group"
                                                   for r in (3, 4, 5) for kind in REDUCTIONS}
    outside = kernels.stored_pixels_case("add", "float16", (3, 5, 6, 64), (3, 3), 4, padding=1)
    assert compiled(outside).tensor_maps[0].lower == (0, 0)
    outside.options["PLACE"] = 1
    with pytest.raises(DispatchError, match="at which all pixels are inside: along dimension 1 its places begin -1 elements after the first"):
        compiled(outside)


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_im2col_loads_give_the_rows_that_a_convolution_multiplies_on_the_gpu():
    on_gpu(kernels.every_patch())


@needs_gpu(*CLUSTERED)
@in_child(timeout=240)
def test_an_im2col_multicast_reaches_the_ctas_of_its_mask_on_the_gpu():
    on_gpu(kernels.every_shared_patch())


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_im2col_stores_and_reductions_write_the_pixels_that_the_filter_covers_on_the_gpu():
    on_gpu(kernels.every_store())
