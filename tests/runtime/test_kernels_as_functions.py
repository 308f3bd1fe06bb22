"""Kernels behave like functions in Python's tools: they are pickled and copied by module and name, and show their parameters."""

import copy
import inspect
import pickle

import numpy as np
import pytest
import tilejit as tile


@tile.jit
def doubled(x, BLOCK: tile.constexpr = 8):
    """Twice x."""
    tile.store(x[0:BLOCK], tile.load(x[0:BLOCK]) * 2)


@tile.autotune([dict(BLOCK=8), dict(BLOCK=16)])
@tile.jit
def tuned(x, BLOCK: tile.constexpr):
    tile.store(x[0:BLOCK], tile.load(x[0:BLOCK]) * 2)


class Layer:
    @tile.jit
    def inner(x):
        tile.store(x[0:8], tile.load(x[0:8]) * 2)


@pytest.mark.parametrize("kernel", [doubled, tuned, Layer.inner], ids=lambda k: k.__qualname__)
def test_a_pickled_kernel_is_found_again_by_its_name(kernel):
    x = np.ones(8, np.float32)
    found = pickle.loads(pickle.dumps({"kernel": kernel}))["kernel"]
    assert found is kernel and kernel.__module__ == __name__
    found[1](x)
    assert (x == 2).all()


def test_objects_that_contain_a_kernel_can_be_copied():
    held = {"kernel": doubled, "tuned": tuned}
    assert copy.deepcopy(held) == held and copy.copy(doubled) is doubled


@pytest.mark.parametrize("dtype", [tile.bfloat16, tile.bool_, tile.padded(tile.float4_e2m1fn)], ids=str)
def test_copies_of_a_dtype_are_the_same_object(dtype):
    assert pickle.loads(pickle.dumps(dtype)) is dtype and copy.deepcopy([dtype])[0] is dtype and copy.copy(dtype) is dtype


def test_a_kernel_that_cannot_be_found_by_its_module_and_name_is_not_pickled():
    local = tile.jit(source="def nowhere(x):\n    tile.store(x[0], 1)\n")
    with pytest.raises((pickle.PicklingError, AttributeError), match="nowhere"):
        pickle.dumps(local)


def test_kernels_and_builtins_show_their_parameters_in_signatures():
    assert str(inspect.signature(doubled)).replace(" ", "") == "(x,BLOCK=8)" and inspect.getdoc(doubled) == "Twice x."
    assert list(inspect.signature(tile.load).parameters)[1:] == ["other", "mask", "cache", "sem", "scope"]


@tile.jit
def numbered(y, seed=3, checks=1, target: tile.constexpr = 7, grid=5):
    tile.store(y[0], seed)
    tile.store(y[1], checks)
    tile.store(y[2], target)
    tile.store(y[3], grid)


def test_a_launch_passes_keywords_to_the_kernel_whatever_their_names():
    y = np.zeros(4, np.int32)
    for launch in (numbered[1], tile.autotune([dict(num_warps=2)])(numbered)[1], numbered[lambda meta: meta["grid"] // 10]):
        for given in (dict(seed=9), dict(checks=False), dict(target=9), {}):
            launch(y, **given, grid=10)
            assert y.tolist() == [*({"seed": 3, "checks": 1, "target": 7} | given).values(), 10]


def test_the_simulator_s_own_keywords_are_not_passed_to_the_kernel():
    y = np.zeros(4, np.int32)
    for given in (dict(seed=9), dict(checks=False), dict(target="sm_80")):
        with pytest.raises(tile.LaunchError, match=f"{next(iter(given))}= is the simulator's here, and numbered has a parameter of that name: give that by position"):
            numbered.simulate(1, y, **given)
    numbered.simulate(1, y, 4, 5, 6, grid=8, seed=9, checks=False, target="sm_80").raise_first()
    assert y.tolist() == [4, 5, 6, 8]
