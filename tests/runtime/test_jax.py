"""Kernels inside jax.jit, with the real JAX on the CPU."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import LaunchError
from tilejit.runtime.arrays import ArrayView, describe
from tilejit.runtime.writer import view_of

from tests.gpu import in_child, needs_gpu, needs_module

pytestmark = needs_module("jax")


@tile.jit
def scaled_sum(x, y, bias, total, largest, factor, BLOCK: tile.constexpr):
    row = tile.program_id(0)
    v = tile.load(x[row, 0:BLOCK]) * factor
    if bias is not None:
        v += tile.load(bias[0:BLOCK])
    tile.store(y[row, 0:BLOCK], v)
    tile.store(total[row:row + 1], tile.sum(v, axis=0, keepdims=True))
    tile.store(largest[row:row + 1], tile.max(v, axis=0, keepdims=True))


@tile.jit
def twice(x, y):
    i = tile.program_id(0)
    tile.store(y[i, 0:8], tile.load(x[i, 0:8]) * 2)


@tile.jit
def faulty(x, y):
    i = tile.program_id(0)
    tile.device_assert(i < 2, "too many rows")
    tile.store(y[i, 0:8], tile.load(x[i, 0:8]))


def rows(given):
    return given["x"].shape[0]


@pytest.fixture(scope="module")
def jax():
    return pytest.importorskip("jax")


def test_a_kernel_with_several_results_runs_inside_jit(jax):
    """Arrays, numbers, None; results by function and by example; constants by function."""
    import tilejit.jax
    line = lambda given: jax.ShapeDtypeStruct(given["x"].shape[:1], np.float32)
    run = tilejit.jax.call(scaled_sum, rows, out={"y": "x", "total": line, "largest": line},
                           BLOCK=lambda given: given["x"].shape[1])
    x = np.random.default_rng(0).random((3, 16), np.float32)
    for bias in (None, np.arange(16, dtype=np.float32)):
        inside = jax.jit(lambda x: [z * 2 for z in run(x + 1, bias, 0.5)])
        want = (x + 1) * 0.5 + (0 if bias is None else bias)
        for got, expected in zip(inside(x), (want, want.sum(1), want.max(1))):
            assert np.allclose(got, 2 * expected, rtol=1e-6) and got.dtype == np.float32
    assert np.allclose(run(x, None, 2)[1], (2 * x).sum(1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32"])
def test_dtypes_and_vmap(jax, dtype):
    import tilejit.jax
    run = tilejit.jax.call(twice, rows, out={"y": "x"})
    x = jax.numpy.arange(48).reshape(2, 3, 8).astype(dtype)
    got = jax.jit(jax.vmap(run))(x)
    assert got.dtype == x.dtype and (got == x * 2).all()


def test_what_the_simulator_finds_is_an_error_of_jax(jax):
    import tilejit.jax
    run = jax.jit(tilejit.jax.call(faulty, rows, out={"y": "x"}))
    assert run(np.ones((2, 8), np.float32)).shape == (2, 8)
    with pytest.raises(Exception, match="too many rows"):
        run(np.ones((3, 8), np.float32)).block_until_ready()


def test_a_derivative_is_an_error_and_custom_vjp_gives_one(jax):
    import tilejit.jax
    run = tilejit.jax.call(twice, rows, out={"y": "x"})
    x = jax.numpy.ones((2, 8))
    with pytest.raises(Exception, match="differentiate"):
        jax.grad(lambda x: run(x).sum())(x)
    double = jax.custom_vjp(run)
    double.defvjp(lambda x: (run(x), None), lambda _, g: (run(g),))
    assert (jax.jit(jax.grad(lambda x: double(x).sum()))(x) == 2).all()


@pytest.mark.parametrize("says, call", {
    "name those that twice writes": lambda run: run(twice, 1, out={}),
    "out is a dict of the arrays": lambda run: run(twice, 1, out="y"),
    "no parameter 'z'": lambda run: run(twice, 1, out={"z": "x"}),
    "scaled_sum writes total, and JAX's arrays do not change":
        lambda run: run(scaled_sum, 1, out={"y": "x"}, BLOCK=8)(np.ones((2, 8)), None, np.ones(2), np.ones(2), 1),
    "twice does not write x": lambda run: run(twice, 1, out={name: lambda given: np.ones((2, 8)) for name in "xy"})(),
    "out= makes y like x, which is a result itself": lambda run: run(twice, 1, out={"y": "x", "x": lambda given: np.ones((2, 8))}),
    "needs the argument 'x'": lambda run: run(twice, 1, out={"y": lambda given: np.ones(3)})(),
    "called here with x, and 2 arguments are given": lambda run: run(twice, 1, out={"y": "x"})(np.ones((2, 8)), 1),
    "returns what has a shape and a dtype, not int": lambda run: run(twice, 1, out={"y": lambda given: 3})(np.ones((2, 8))),
    "'stream' is not for it": lambda run: run(twice, 1, out={"y": "x"}, stream=3)(np.ones((2, 8))),
}.items())
def test_a_wrong_call_is_an_error(jax, says, call):
    import tilejit.jax
    with pytest.raises(LaunchError, match=says):
        call(tilejit.jax.call)


def test_launchers_get_the_array_of_xla_itself(jax):
    """They take the owners of described arrays."""
    from tilejit.interop.xla import XlaArray
    array = XlaArray(ArrayView(64, (3,), (1,), "float32", 0))
    assert describe(array).owner is array and view_of(describe(array).owner) == describe(array)


@needs_gpu()
@needs_module("jax_cuda13_plugin")
@in_child(timeout=120)
def test_a_kernel_launches_inside_jit_on_the_gpu():
    import jax
    import tilejit.jax
    x = jax.numpy.arange(48.0).reshape(6, 8)
    assert x.device.platform == "gpu"
    assert (jax.jit(lambda x: tilejit.jax.call(twice, rows, out={"y": "x"})(x + 1) + 1)(x) == (x + 1) * 2 + 1).all()
