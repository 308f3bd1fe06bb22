"""The bytes of the tensor maps that a launch passes: the driver's encoding of the fields in the compiled kernel's records."""

import random

import pytest

from tests.gpu import in_child, needs_gpu
from tests.runtime.map_bytes import encoded

SIZES = {"uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "float32": 4, "tfloat32": 4,
         "float32_ftz": 4, "int64": 8, "uint64": 8, "float64": 8}
FLOATS = ("float16", "bfloat16", "float32", "tfloat32", "float32_ftz", "float64")


def common(dice: random.Random, rank: int) -> dict:
    """Fields common to both kinds of maps, drawn within the driver's limits."""
    dtype = dice.choice(list(SIZES))
    swizzle = dice.randrange(4)
    return dict(dtype=dtype, rank=rank, address=dice.randrange(1, 1 << 40) * 16, dims=[dice.choice((1, 7, 256, 4099, 1 << 32)) for _ in range(rank)],
                strides=[16 * dice.choice((0, 1, 40, 1 << 20, (1 << 36) - 1)) for _ in range(rank - 1)],
                element_strides=[1, *(dice.randint(1, 8) for _ in range(rank - 1))], swizzle=swizzle, l2_promotion=dice.randrange(4),
                oob_fill=int(dtype in FLOATS and dice.random() < 0.5))


def inner(dice: random.Random, fields: dict, most: int = 256) -> int:
    """An innermost extent that is a multiple of 16 bytes within the swizzle's span."""
    unit = 16 // SIZES[fields["dtype"]]
    span = (256 * 8, 32, 64, 128)[fields["swizzle"]] // SIZES[fields["dtype"]]
    return unit * dice.randint(1, max(min(span, most) // unit, 1))


def tiled(dice: random.Random) -> dict:
    fields = common(dice, dice.randint(1, 5))
    first = inner(dice, fields)
    room, box = 233_472 // (first * SIZES[fields["dtype"]]), [first]
    for _ in range(fields["rank"] - 1):
        box.append(dice.randint(1, min(256, room)))
        room //= box[-1]
    return {**fields, "box": box}


def im2col(dice: random.Random) -> dict:
    rank = dice.randint(3, 5)
    fields = common(dice, rank)
    limit = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}[rank]
    fields["element_strides"][-1] = 1
    dims = [min(n, 4099) for n in fields["dims"]]
    lower = [dice.randrange(-limit, 1) for _ in range(rank - 2)]
    # The upper corner is that far from the end of its dimension; the driver refuses a bounding box without pixels.
    upper = [dice.randrange(max(-limit, low - n + 1), 1) for low, n in zip(lower, dims[1:])]
    return {**fields, "dims": dims, "lower": lower, "upper": upper, "channels": inner(dice, fields), "pixels": dice.randint(1, 1024)}


@pytest.mark.parametrize("draw", [tiled, im2col])
def test_the_fields_of_a_map_use_disjoint_bits(draw):
    """Otherwise the comparison with the driver's encoding would be meaningless."""
    dice = random.Random(0)
    for _ in range(200):
        fields = draw(dice)
        bits = encoded(**fields)
        assert bits.agree(bits.value.to_bytes(128, "little"))
        other = {**fields, "l2_promotion": fields["l2_promotion"] ^ 1}
        assert not bits.agree(encoded(**other).value.to_bytes(128, "little"))


@pytest.mark.unsanitized
@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_random_maps_are_encoded_like_the_driver_encodes_them_on_the_gpu():
    from tilejit.errors import LaunchError
    from tilejit.runtime import driver
    dice = random.Random(1)
    for draw, encode, count in ((tiled, driver.encode_tensor_map, 400), (im2col, driver.encode_tensor_map, 200)):
        made = 0
        for _ in range(count):
            fields = draw(dice)
            try:
                bytes_ = encode(**fields)
            except LaunchError as error:  # the driver refuses more than its manual says, especially im2col maps
                assert "the driver refused" in str(error), fields
                continue
            assert encoded(**fields).agree(bytes_), fields
            made += 1
        assert made >= count // 2, f"the driver made {made} of {count} maps"


@pytest.mark.unsanitized
@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_a_launch_passes_the_maps_that_the_kernel_s_records_describe_on_the_gpu():
    import sys
    from pathlib import Path

    import tilejit as tile
    sys.path.insert(0, str(Path(__file__).parent.parent / "copy"))
    import box_kernels as boxes
    import patch_kernels

    cases = [patch_kernels.patches_case(case) for case in patch_kernels.PATCHES]
    cases += [boxes.box_case(rank, dtype) for rank, dtype in ((1, "int8"), (2, "float32"), (3, "bfloat16"), (4, "float8_e5m2"), (5, "float64"))]
    for kernel, arrays, options in ((c.kernel, c.args, c.options) for c in cases):
        arguments = [tile.to_device(a) if hasattr(a, "shape") else a for a in arrays]
        k = kernel.compile(*arguments, **options)
        passed = k.launcher(0).parameters(arguments)
        maps = [passed[n] for n, param in enumerate(k.recipe["params"]) if param[0] == "map"]
        order = [param[1] for param in k.recipe["params"] if param[0] == "map"]
        assert len(maps) == len(k.tensor_maps) > 0
        for n, data in zip(order, maps):
            m = k.tensor_maps[n]
            array = arguments[k.recipe["maps"][n]["argument"]]
            fields = dict(dtype=m.dtype, rank=m.rank, address=array.pointer + m.base_offset, dims=m.global_dim, strides=m.global_strides,
                          box=m.box, element_strides=m.element_strides, interleave=m.interleave, swizzle=m.swizzle,
                          l2_promotion=m.l2_promotion, oob_fill=m.oob_fill, lower=m.lower, upper=m.upper, channels=m.channels, pixels=m.pixels)
            assert encoded(**fields).agree(data), m
