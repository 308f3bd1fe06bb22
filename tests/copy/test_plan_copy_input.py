"""Invalid input of `plan_copy` and `BufferSpec` is an error of the package with an explanation."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.plan import BufferSpec, plan_copy


def array(*shape, **more):
    return BufferSpec(shape or (128, 64), "float16", "global", **more)


def buffer(*shape, **more):
    return BufferSpec(shape or (128, 64), "float16", "shared", **more)


@pytest.mark.parametrize("call, words", [
    (lambda: plan_copy(buffer(), array(), target="sm_99"),                              "'sm_99' is not a target; the targets are sm_80"),
    (lambda: plan_copy(buffer(), array(), target=90),                                   "90 is not a target"),
    (lambda: plan_copy(buffer(), array(), scope="block"),                               "scope is thread, warp, warpgroup or cta, not 'block'"),
    (lambda: plan_copy(buffer(), array(), scope="cta", threads=0),                      "threads is a number from 1 to 1024, not 0"),
    (lambda: plan_copy(buffer(), array(), scope="cta", threads=-3),                     "not -3"),
    (lambda: plan_copy(buffer(), array(), scope="cta", threads=2048),                   "not 2048"),
    (lambda: plan_copy(buffer(), array(), scope="cta", threads="x"),                    "not 'x'"),
    (lambda: plan_copy("a", array()),                                                   "dst is a tile.BufferSpec, not 'a'"),
    (lambda: plan_copy(buffer(), np.zeros(3)),                                          "src is a tile.BufferSpec"),
    (lambda: plan_copy(buffer(), array(), op="move"),                                   "plan_copy knows copy, copy_async, not 'move'"),
    (lambda: plan_copy(buffer(), array(), cashe="cg"),                                  "a copy has no option 'cashe' (did you mean 'cache'?)"),
    (lambda: plan_copy(buffer(), array(), variant="tam"),                               "variant is one of ldgsts, tma"),
    (lambda: plan_copy(buffer(), array(), op="copy", reduce="add"),                     "copy has no option 'reduce': only copy_async has it"),
    (lambda: plan_copy(buffer(), array(), op="copy", mbar=True),                        "copy has no option 'mbar'"),
    (lambda: plan_copy(buffer(), array(), multicast=1.5),                               "a mask of the cluster's ranks, 1 to 65535, not 1.5"),
    (lambda: plan_copy(buffer(), array(), multicast=1 << 20),                           "a mask of the cluster's ranks, 1 to 65535"),
    (lambda: plan_copy(buffer(), array(), multicast="warpx4"),                          "multicast='warpx4' is for copies to tensor memory"),
    (lambda: plan_copy(array(), buffer(), peer=1),
     "a peer's memory is shared memory, and the destination is global memory"),
    (lambda: plan_copy(buffer(region=(slice(64, 192), slice(0, 64))), array()),
     "a region of shared memory is inside of it, and 64:192 of dimension 0 leaves its 128 elements"),
    (lambda: plan_copy(buffer(), array(region=(slice(0, 128, 2), slice(0, 64)))),       "a region has step 1"),
    (lambda: plan_copy(buffer(), array(region=(slice(0, 128),))),                       "one slice for each of the 2 dimensions, not 1"),
    (lambda: plan_copy(buffer(), array(region=("a", slice(0, 64)))),                    "indices are whole numbers, not ('a',)"),
    (lambda: plan_copy(buffer(), array(region=(slice(0.5, 128), slice(0, 64)))),        "the ends of a slice are whole numbers"),
    (lambda: plan_copy(buffer(), array(region=(slice(8, 8), slice(0, 64)))),            "a slice's stop is above its start, not 8:8"),
    (lambda: BufferSpec((4.5,), "float16", "global"),                                   "extents are whole numbers, not (4.5,)"),
    (lambda: BufferSpec((0,), "float16", "global"),                                     "extents are at least 1"),
    (lambda: BufferSpec((4,), "float17", "global"),                                     "'float17' is not an element type"),
    (lambda: BufferSpec((4,), "float16", "heap"),                                       "a BufferSpec's scope is 'global', 'shared', 'tmem'"),
    (lambda: BufferSpec((4, 4), "float16", "global", strides=("a", 1)),                 "strides are whole numbers"),
    (lambda: BufferSpec((4, 4), "float16", "global", strides=4),                        "2 extents and 1 strides do not go together"),
    (lambda: BufferSpec((4, 4), "float16", "shared", strides=(4, 1)),                   "strides are for a global buffer"),
    (lambda: BufferSpec((4, 4), "float16", "shared", layout="x"),                       "a layout is a tile.TileLayout, not 'x'"),
])
def test_invalid_input_is_an_error_that_explains_it(call, words):
    with pytest.raises(tile.CompilationError) as error:
        call()
    assert words in str(error.value)


def test_an_unknown_dtype_is_an_error_that_lists_the_known_ones():
    with pytest.raises(tile.CompilationError) as error:
        BufferSpec((4,), "float17", "global")
    listed = str(error.value).rpartition("the element types are ")[2].split(", ")
    assert {"bool", "int8", "float4_e2m1fn", "float64"} <= set(listed) and all(hasattr(tile, name) for name in listed if name != "bool")


def test_the_repr_of_a_dtype_evaluates_to_it():
    for dtype in (tile.bool_, tile.float16, tile.float4_e2m1fn, tile.padded(tile.float6_e2m3fn)):
        assert eval(repr(dtype)) == dtype


def test_a_region_of_an_array_may_exceed_it_on_either_side():
    for region in ((slice(100, 228), slice(0, 64)), (slice(-8, 120), slice(0, 64))):
        assert plan_copy(buffer(), array(region=region), variant="tma").plan.instructions == 1


def test_numpy_numbers_are_accepted():
    n = np.int64
    spec = BufferSpec((n(128), n(64)), "float16", "global", strides=(n(64), n(1)), region=(slice(n(0), n(128)), slice(0, n(64))))
    assert plan_copy(buffer(), spec, scope="cta", threads=n(128)).variant == "ldgsts"
