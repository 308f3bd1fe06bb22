"""Tensor maps: every field is checked, and errors name it."""

import pytest
from tilejit.errors import LaunchError
from tilejit.runtime.element_types import ELEMENT_TYPES
from tilejit.runtime.tensormap import TensorMap, tensor_map_type

from tests.runtime.fakes import FakeDriver

GOOD = dict(dtype="float16", rank=3, address=1024, dims=[64, 8, 4], strides=[512, 128], box=[64, 8, 4],
            element_strides=[1, 1, 1], interleave=0, swizzle=3, l2_promotion=2, oob_fill=0)
IM2COL = dict(dtype="float16", rank=4, address=1024, dims=[64, 8, 8, 4], strides=[128, 1024, 8192], lower=[-1, -1], upper=[1, 1],
              channels=64, pixels=128, element_strides=[1, 1, 1, 1], interleave=0, swizzle=3, l2_promotion=2, oob_fill=0)


def test_a_valid_map_is_accepted():
    TensorMap(**GOOD).check()
    TensorMap(**IM2COL).check()


@pytest.mark.parametrize("field, value, words", [
    ("rank", 0, "rank is 0"), ("rank", 6, "rank is 6"), ("address", 8, "base address"), ("dims", [64, 0, 4], r"dims\[1\]"),
    ("dims", [64, 2**32 + 1, 4], r"dims\[1\]"), ("dims", [64, 8], "dims"), ("strides", [512, 24], r"strides\[1\] is 24 bytes"),
    ("strides", [512, -16], r"strides\[1\]"), ("strides", [2**40, 128], r"strides\[0\]"), ("strides", [512], "strides"),
    ("box", [64, 0, 4], r"box\[1\]"), ("box", [64, 257, 4], r"box\[1\]"), ("box", [4, 8, 4], r"box\[0\] is 8 bytes"),
    ("box", [128, 8, 4], r"box\[0\] is 256 bytes"), ("box", [64, 256, 64], "box is 2097152 bytes"), ("box", [64, 8], "box"),
    ("element_strides", [1, 9, 1], r"element_strides\[1\]"), ("element_strides", [2, 1, 1], "innermost"),
    ("element_strides", [1, 0, 1], r"element_strides\[1\]"), ("interleave", 3, "interleave"), ("swizzle", 7, "swizzle"),
    ("swizzle", 4, "sm_100a"), ("l2_promotion", 4, "l2_promotion"), ("oob_fill", 2, "oob_fill"), ("dtype", "complex64", "complex64"),
])
def test_an_invalid_field_is_named(field, value, words):
    with pytest.raises(LaunchError, match=words):
        TensorMap(**{**GOOD, field: value}).check()


def test_nan_fill_needs_a_float_dtype():
    TensorMap(**{**GOOD, "oob_fill": 1}).check()
    with pytest.raises(LaunchError, match="NaN"):
        TensorMap(**{**GOOD, "dtype": "int16", "oob_fill": 1}).check()


def test_interleave_needs_rank_3_and_32_byte_alignment():
    flat = dict(GOOD, rank=2, dims=[64, 8], strides=[128], box=[64, 8], element_strides=[1, 1], swizzle=0)
    with pytest.raises(LaunchError, match="3 or more"):
        TensorMap(**{**flat, "interleave": 1}).check()
    with pytest.raises(LaunchError, match="multiple of 32"):
        TensorMap(**{**GOOD, "interleave": 2, "swizzle": 1, "address": 16}).check()
    with pytest.raises(LaunchError, match="swizzle"):
        TensorMap(**{**GOOD, "interleave": 2}).check()


def test_broadcast_strides_and_boxes_larger_than_the_extent_are_valid():
    TensorMap(**{**GOOD, "strides": [0, 0], "dims": [8, 1, 1]}).check()


def test_blackwell_has_more_swizzles():
    TensorMap(**{**GOOD, "swizzle": 4, "blackwell": True}).check()


@pytest.mark.parametrize("field, value, words", [
    ("rank", 2, "im2col"), ("pixels", 0, "pixels"), ("pixels", 1025, "pixels"), ("channels", 257, "channels"),
    ("channels", 12, "24 bytes"), ("lower", [-129, 0], r"lower\[0\]"), ("upper", [0, 128], r"upper\[1\]"), ("upper", [0], "upper"),
])
def test_an_invalid_field_of_an_im2col_map_is_named(field, value, words):
    with pytest.raises(LaunchError, match=words):
        TensorMap(**{**IM2COL, field: value}).check()


def test_im2col_w_mode_has_one_corner_needs_a_swizzle_and_exists_on_blackwell_only():
    wide = dict(IM2COL, lower=[-1], upper=[1], wide=0, blackwell=True)
    TensorMap(**wide).check()
    for change, words in (({"blackwell": False}, "sm_100a"), ({"swizzle": 0}, "swizzle is 0"), ({"lower": [-1, -1]}, "lower is a list of 2")):
        with pytest.raises(LaunchError, match=words):
            TensorMap(**{**wide, **change}).check()
    with pytest.raises(LaunchError, match="CUDA 12.8"):
        TensorMap(**wide).encode(FakeDriver().points, 0)


def test_the_range_of_corners_shrinks_with_the_rank():
    rank3 = dict(IM2COL, rank=3, dims=[64, 8, 4], strides=[128, 1024], lower=[-32768], upper=[32767], element_strides=[1] * 3)
    TensorMap(**rank3).check()
    rank5 = dict(IM2COL, rank=5, dims=[64, 8, 8, 8, 4], strides=[128, 1024, 8192, 65536], lower=[-16] * 3, upper=[0] * 3,
                 element_strides=[1] * 5)
    TensorMap(**rank5).check()
    with pytest.raises(LaunchError, match="lower"):
        TensorMap(**{**rank5, "lower": [-17, 0, 0]}).check()


def test_the_enumerations_match_the_driver_s():
    driver = pytest.importorskip("cuda.bindings.driver")
    kinds = driver.CUtensorMapDataType
    for name in ELEMENT_TYPES:
        bits = 8 * ELEMENT_TYPES[name].nbytes
        wanted = {"bool": "UINT8", "bfloat16": "BFLOAT16", "int8": "UINT8", "int16": "UINT16"}.get(name) or (
            "UINT8" if bits == 8 else name.upper())
        assert tensor_map_type(name) == (getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{wanted}"), bits // 8)
    assert tensor_map_type("tfloat32")[0] == kinds.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
    assert tensor_map_type("float32_ftz")[0] == kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ
    assert driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B == 3
    assert driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B == 3
    assert driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA == 1
    assert driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_32B == 2


def test_the_driver_gets_the_checked_fields_and_its_refusal_is_reported_with_all_of_them():
    import ctypes

    driver = FakeDriver()
    room = ctypes.create_string_buffer(192)
    into = ctypes.addressof(room) + -ctypes.addressof(room) % 64
    TensorMap(**GOOD).encode(driver.points, into)
    assert driver.encoded == [(6, 3, 1024, (64, 8, 4), (512, 128), (64, 8, 4), (1, 1, 1), (0, 3, 2, 0))]
    driver.encode_code = 1
    with pytest.raises(LaunchError, match=r"CUDA error 1.*dims=\[64, 8, 4\]"):
        TensorMap(**GOOD).encode(driver.points, into)
