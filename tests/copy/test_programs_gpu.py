"""The example programs of each path on the GPU; and the bytes of the maps of the reference plans."""

import numpy as np
import pytest

from tests.gpu import in_child, needs_gpu

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


def _here(name: str):
    import sys
    from importlib import import_module
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parent))
    return import_module(name)


def _back(kernel, grid, shape, dtype, **options):
    x = (np.random.default_rng(0).random(shape) * 100).astype(dtype)
    y = np.zeros_like(x)
    kernel[grid](x, y, backend="cuda", **options)
    assert (x == y).all(), (dtype, options)


@needs_gpu()
@in_child(timeout=120)
def test_the_program_of_ldgsts_returns_its_tile_on_the_gpu():
    """Every width of cp.async: 16, 8 and 4 bytes."""
    staged = _here("programs").staged
    for dtype, columns in (("float16", 32), ("float32", 32), ("int8", 32), ("float64", 32), ("float16", 36), ("float16", 34)):
        _back(staged, (1,), (128, columns), dtype, ROWS=128, COLUMNS=columns)


@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_the_program_of_dsmem_returns_its_tile_on_the_gpu():
    """CTA 1 writes what CTA 0 read."""
    handed_over = _here("programs").handed_over
    for dtype in ("float16", "int8", "float32"):
        _back(handed_over, (2,), (128, 64), dtype)


@needs_gpu(*HOPPER)
@in_child(timeout=180)
@pytest.mark.parametrize("way", ["boxed", "boxed_out"])
def test_the_program_of_tma_returns_its_tile_on_the_gpu(way):
    """Copy first, then expect_tx; every swizzle, every element size, both directions."""
    kernel = getattr(_here("programs"), way)
    for mode in (0, 32, 64, 128):
        for dtype in ("int8", "float16", "float32", "float64"):
            _back(kernel, (1,), (8, 256), dtype, MODE=mode)


@pytest.mark.unsanitized
@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_the_maps_of_the_reference_plans_have_the_driver_s_encoding_on_the_gpu():
    """Each field at its bits, for every reference plan that the hardware supports."""
    from tilejit.errors import TileError
    from tilejit.runtime import driver

    from tests.runtime.map_bytes import encoded
    cases, reference = _here("copy_cases"), _here("test_copy_reference_plans")
    encodings = 0
    for case in cases.cases("tma"):
        try:
            m = reference.planned(case)[2]().plan.tensor_map
        except TileError:
            continue
        fields = {"dtype": m.dtype, "dims": list(m.global_dim), "strides": list(m.global_strides), "box": list(m.box), "rank": m.rank,
                  "element_strides": list(m.element_strides), "address": (1 << 30) + m.base_offset, "interleave": m.interleave,
                  "swizzle": m.swizzle, "l2_promotion": m.l2_promotion, "oob_fill": m.oob_fill}
        assert encoded(**fields).agree(driver.encode_tensor_map(**fields)), case["id"]
        encodings += 1
    assert encodings > 80
