"""Launch recipes: their checks, and the driver structures that they fill."""

import ctypes
import json
import struct

import pytest
from tilejit.errors import LaunchError
from tilejit.runtime.element_types import integer_limits
from tilejit.runtime.recipe import CONFIG, Recipe, normal_grid

BASE = {"name": "k", "threads": 128, "cluster": None, "shared": 0, "pdl": False, "arguments": [["array", "float32", 2]],
        "params": [["ptr", 0]], "maps": [], "guards": []}
MAP = {"argument": 0, "base_offset": 0, "dtype": "float32", "rank": 2, "dims": [["size", 0, 1], ["size", 0, 0]],
       "strides": [["mul", ["stride", 0, 0], 4]], "box": [32, 8], "element_strides": [1, 1], "interleave": 0, "swizzle": 3,
       "l2_promotion": 2, "oob_fill": 0, "origin": "host"}


def recipe(**changes):
    return Recipe.of(json.loads(json.dumps({**BASE, **changes})))


@pytest.mark.parametrize("changes, words", [
    (dict(threads=0), "0 threads"), (dict(threads=1025), "1025 threads"), (dict(cluster=[4, 4, 2]), "cluster"),
    (dict(cluster=[2, 0, 1]), "cluster"), (dict(cluster=[2, 1]), "cluster"),
    (dict(params=[["pointer", 0]]), "parameter"), (dict(params=[["size", 0, 0, "i16"]]), "parameter"),
    (dict(params=[["scalar", 0, "quad"]]), "quad"), (dict(guards=[[["lucky", 0], True]]), "lucky"),
    (dict(maps=[{**MAP, "box": [3, 8]}]), "12 bytes"), (dict(maps=[{**MAP, "swizzle": 1}]), "32 bytes that swizzle 1 spans"),
])
def test_a_recipe_that_no_device_can_run_is_refused(changes, words):
    with pytest.raises(LaunchError, match=words):
        recipe(**changes)


def test_integers_have_the_limits_of_their_dtype():
    assert [integer_limits(name) for name in ("uint8", "int16", "uint64", "float32")] == [(0, 255), (-32768, 32767), (0, (1 << 64) - 1), None]


def test_a_cluster_of_one_cta_is_no_cluster():
    assert recipe(cluster=[1, 1, 1]).cluster is None


@pytest.mark.parametrize("grid, words", [((2**31, 1, 1), "grid.x"), ((1, 65536, 1), "grid.y"), ((1, 1, 65536), "grid.z"),
                                         ((-1, 1, 1), "grid.x is -1")])
def test_a_grid_beyond_the_limits_is_refused(grid, words):
    with pytest.raises(LaunchError, match=words):
        recipe().check_grid(*grid)


def test_a_grid_with_a_zero_is_empty_and_the_largest_grid_is_accepted():
    assert not recipe().check_grid(4, 0, 1)
    assert recipe().check_grid(2**31 - 1, 65535, 65535)


def test_a_grid_must_be_a_multiple_of_the_cluster():
    with pytest.raises(LaunchError, match="multiple of the cluster's 2"):
        recipe(cluster=[2, 1, 1]).check_grid(3, 1, 1)


def test_a_grid_is_one_to_three_integers():
    import numpy as np

    assert normal_grid(5) == (5, 1, 1) and normal_grid((5, 6)) == (5, 6, 1) and normal_grid([np.int64(2)]) == (2, 1, 1)
    for bad in ((), (1, 2, 3, 4), 1.5, "abc", None, (1.5,)):
        with pytest.raises(LaunchError, match="grid"):
            normal_grid(bad)


def test_the_launch_configuration_has_the_layout_of_the_driver_s_structure():
    driver = pytest.importorskip("cuda.bindings.driver")
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 1, 2, 3
    config.blockDimX, config.blockDimY, config.blockDimZ = 4, 5, 6
    config.sharedMemBytes, config.hStream = 7, driver.CUstream(8)
    assert CONFIG.pack(1, 2, 3, 4, 5, 6, 7, 8, 0, 0) == ctypes.string_at(config.getPtr(), CONFIG.size)


def test_launch_attributes_have_the_layout_of_the_driver_s_structure():
    driver = pytest.importorskip("cuda.bindings.driver")
    ids = driver.CUlaunchAttributeID
    cluster, pdl = driver.CUlaunchAttribute(), driver.CUlaunchAttribute()
    cluster.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = 2, 1, 3
    pdl.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    pdl.value.programmaticStreamSerializationAllowed = 1
    made = recipe(cluster=[2, 1, 3], pdl=True).attributes(False)
    assert len(made) == 144
    for ours, theirs in ((made[:72], cluster), (made[72:], pdl)):
        wanted = ctypes.string_at(theirs.getPtr(), 72)
        assert ours[:4] == wanted[:4] and ours[8:20] == wanted[8:20]
    config = driver.CUlaunchConfig()
    config.attrs, config.numAttrs = [cluster, pdl], 2
    raw = ctypes.string_at(config.getPtr(), CONFIG.size)
    at, count = struct.unpack_from("<QI", raw, 40)
    assert count == 2 and ctypes.string_at(at + 72, 4) == made[72:76]  # 72 bytes apart


def test_a_cluster_compiled_into_the_kernel_is_not_a_launch_attribute():
    assert recipe(cluster=[2, 1, 1]).attributes(True) == b""
    assert recipe().attributes(False) == b""
