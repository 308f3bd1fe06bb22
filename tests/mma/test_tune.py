"""Configurations of `matmul` ranked by the model, and the fastest of them by measurement."""

import os
import sys
import tempfile

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul import choice as plan
from tilejit.kernels.matmul.blackwell import config as blackwell_plan
from tilejit.kernels.matmul.choice import Problem

from tests.drawn import drawn
from tests.gpu import in_child, needs_gpu
from tests.mma.products import BF16, E4M3, added, assert_close, multiplying_on, product

EXTENT = st.one_of(st.integers(1, 300), st.sampled_from((512, 1000, 2048, 4096, 8192, 16384)))


@settings(max_examples=40, deadline=None)
@given(m=EXTENT, n=EXTENT, k=st.one_of(st.just(0), EXTENT), itemsize=st.sampled_from((1, 2, 4)), stored=st.sampled_from((2, 4)), epilogue=st.booleans(),
       columns_first=st.sampled_from((None, True, False)), module=st.sampled_from((plan, blackwell_plan)))
def test_the_first_ranked_configuration_is_the_choice_and_none_is_repeated(m, n, k, itemsize, stored, epilogue, columns_first, module):
    p = Problem(m, n, k, itemsize=itemsize, stored=stored, epilogue=epilogue)
    order = module.rank_configs(p, 132, columns_first)
    assert order[0] == module.choose(p, 132, columns_first) and len(set(order)) == len(order)
    assert columns_first is None or {c.swapped for c in order} == {columns_first}


@pytest.mark.parametrize("target,module", [("sm_90a", plan), ("sm_100a", blackwell_plan)])
@pytest.mark.parametrize("dtype,m,n,k", [(np.float16, 130, 200, 300), (np.int8, 70, 72, 1000), (np.float32, 200, 100, 65), (E4M3, 1, 300, 520)])
def test_each_of_the_first_configurations_gives_the_product(dtype, m, n, k, target, module):
    """So that any of them may be the fastest: with few rows, with split k, with swapped operands."""
    rng, size = np.random.default_rng(0), np.dtype(dtype).itemsize
    a, b = drawn(rng, (m, k), dtype), drawn(rng, (k, n), dtype)
    stored = 4 if size == 4 or dtype == np.int8 else 2
    with multiplying_on(target):
        for config in module.rank_configs(Problem(m, n, k, itemsize=size, stored=stored), 4)[:6]:
            assert_close(product(a, b, config=config, fast_accum=True), a, b)


@tile.jit
def doubled(sums, row, column):
    return sums * 2


def test_the_simulator_uses_the_model_s_choice_without_measuring():
    a, b = np.ones((3, 2, 70, 96), BF16), np.ones((96, 40), BF16)
    config = kernels.tune(a, b)
    assert config == plan.choose(Problem(6 * 70, 40, 96, itemsize=2, stored=2), 4)
    assert_close(kernels.matmul(a, b, config=config), a, b)
    assert_close(kernels.matmul(a[0, 0], b, epilogue=doubled, config=kernels.tune(a[0, 0], b, epilogue=doubled)), 2 * a[0, 0], b)
    assert kernels.tune(np.ones((0, 5), np.float16), np.ones((5, 7), np.float16)) is None
    with multiplying_on("sm_100a"):
        assert isinstance(kernels.tune(a[0, 0], b), blackwell_plan.BlackwellConfig)


@pytest.mark.parametrize("call,words", [
    (dict(most=0), "most is how many configurations are timed"), (dict(most=True), "most is how many"), (dict(epilogue=abs), "under @tile.jit"),
    (dict(arguments=3), "arguments is a tuple"), (dict(precision="tf32"), "precision is None"), (dict(scale_a="x"), "scale_a must be a number"),
    (dict(out=np.ones((4, 4), np.float16)), r"out must be of shape \(64, 40\)"), (dict(epilogue=added), "the epilogue added has the parameters"),
    (dict(epilogue=added, arguments=(1, 2)), "the column and 2 of the arguments and tiles"),
])
def test_tune_refuses_what_matmul_refuses(call, words):
    with pytest.raises(LaunchError, match=words):
        kernels.tune(np.ones((64, 96), np.float16), np.ones((96, 40), np.float16), **call)


@pytest.mark.unperturbed
@needs_gpu("sm_90a")
@in_child(timeout=110)
def test_the_fastest_configuration_is_found_on_the_gpu_and_cached():
    """It is one of the candidates and right, is at least as fast as the model's choice, and is not measured again; `out` is unchanged."""
    module = sys.modules[kernels.tune.__module__]
    os.environ["TILEJIT_CACHE_DIR"] = tempfile.mkdtemp()
    seen, real = [], module.time_launches

    def noted(launches, stream, device):
        times, failed = real(launches, stream, device)
        seen.append(times)
        assert not failed
        return times, failed

    module.time_launches = noted
    rng = np.random.default_rng(0)
    for (m, n, k), options in (((1500, 1400, 2000), {}), ((64, 4096, 4096), {}), ((1000, 1000, 1000), dict(epilogue=doubled))):
        a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (k, n)))
        x, y, out = tile.to_device(a), tile.to_device(b), tile.to_device(np.full((m, n), 7, np.float16))
        config = kernels.tune(x, y, out, most=4, **options)
        times = seen.pop()
        assert len(times) == 4 and min(times.values()) <= times[0] and (out.numpy() == 7).all()
        factor = 2 if options else 1
        assert_close(kernels.matmul(x, y, out, config=config, **options).numpy(), factor * a, b)
        assert kernels.tune(x, y, out, most=4, **options) == config and not seen
        print(m, n, k, config, times)
