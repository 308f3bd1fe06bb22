"""Kernels on arrays and views of torch, CuPy, numba and JAX: on the GPU, on the library's stream, compared with NumPy."""

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu, needs_module

TILE = 8, 32
SHAPE = 45, 70


@tile.jit
def shifted(x, y, add):
    """y = x + add, for two-dimensional arrays."""
    i, j = tile.program_id(0), tile.program_id(1)
    at = tile.load(x[i * 8:(i + 1) * 8, j * 32:(j + 1) * 32])
    tile.store(y[i * 8:(i + 1) * 8, j * 32:(j + 1) * 32], at + add)


@tile.jit(num_warps=1)
def late(x, y, N: tile.constexpr):
    """y = x + 1 for one element, after a long delay, so that a result that is read too early is noticed."""
    v = tile.load(x[0])
    n = 0.0
    for _ in range(N):
        n = n * 0.5 + v * 0.0 + 1e-30
    tile.store(y[0], v + 1.0 + n * 0.0)


def GRID(arguments):
    """One CTA for each tile of x."""
    return tuple(-(-n // t) for n, t in zip(arguments["x"].shape, TILE))


VIEWS = ((slice(None), slice(None)), (slice(3, 40), slice(5, 64)), (slice(1, None, 2), slice(0, None, 3)))
LATE = 1 << 21  # iterations of a few dozen clock cycles each


def check(make, host, views=VIEWS, dtypes=("float32", "float16", "int32", "int64", "uint8", "float64"), turns=(False, True)):
    """`make` converts a host array to an array of the library, and `host` converts back to NumPy. `turns`: whether views are transposed."""
    for dtype in dtypes:
        x = np.random.default_rng(0).integers(0, 100, SHAPE).astype(dtype)
        for index in views:
            for transposed in turns:
                a, b = make(x), make(np.full(SHAPE, 7, dtype))
                want = np.full(SHAPE, 7, dtype)
                turn = (lambda array: array.T) if transposed else lambda array: array
                turn(want[index])[...] = turn(x[index]) + np.asarray(3).astype(dtype)
                for _ in range(3):  # later launches take the fast path
                    shifted[GRID](turn(a[index]), turn(b[index]), 3)
                assert np.array_equal(host(b), want), (dtype, index, transposed)


@needs_gpu()
@needs_module("torch")
@in_child(timeout=180)
def test_tensors_of_torch_are_used_without_a_copy():
    import torch

    from tests.runtime.test_libraries_gpu import check
    check(lambda x: torch.from_numpy(x).cuda(), lambda x: x.cpu().numpy())


@needs_gpu()
@needs_module("torch")
@in_child(timeout=180)
def test_a_launch_on_tensors_uses_torch_s_current_stream():
    import torch

    from tests.runtime.test_libraries_gpu import LATE, late
    x, y, z = (torch.zeros(1, device="cuda") for _ in range(3))
    torch.cuda.synchronize()
    for _ in range(4):
        x.zero_(), y.zero_(), z.zero_()
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            late[1,](x, y, N=LATE)
            assert not side.query()      # the kernel runs on this stream
            z.copy_(y * 2)               # and later work on it comes after the kernel
        side.synchronize()
        assert (y.item(), z.item()) == (1.0, 2.0)


@needs_gpu()
@needs_module("cupy")
@in_child(timeout=180)
def test_arrays_of_cupy_are_used_without_a_copy():
    import cupy

    from tests.runtime.test_libraries_gpu import VIEWS, check
    check(cupy.asarray, cupy.asnumpy, (*VIEWS, (slice(None, None, -1), slice(None, None, -2))))


@needs_gpu()
@needs_module("cupy")
@in_child(timeout=180)
def test_a_launch_on_arrays_of_cupy_uses_its_current_stream():
    import cupy

    from tests.runtime.test_libraries_gpu import LATE, late
    x, y, z = (cupy.zeros(1, cupy.float32) for _ in range(3))
    for _ in range(4):
        x[:], y[:], z[:] = 0, 0, 0
        cupy.cuda.Device().synchronize()
        side = cupy.cuda.Stream(non_blocking=True)
        with side:
            late[1,](x, y, N=LATE)
            assert not side.done
            cupy.multiply(y, 2, out=z)
        side.synchronize()
        assert (float(y[0]), float(z[0])) == (1.0, 2.0)


@needs_gpu()
@needs_module("numba")
@in_child(timeout=180)
def test_arrays_of_numba_are_used_without_a_copy_and_on_their_stream():
    from numba import cuda

    from tests.runtime.test_libraries_gpu import LATE, VIEWS, check, late
    check(cuda.to_device, lambda x: x.copy_to_host(), [VIEWS[0], VIEWS[1]], turns=(False,))  # numba copies to transpose
    stream, after = cuda.stream(), cuda.event()
    x, y, z = (cuda.to_device(np.zeros(1, np.float32), stream=stream) for _ in range(3))  # arrays that name their stream
    stream.synchronize()
    late[1,](x, y, N=16)
    late[1,](x, y, N=LATE)
    after.record(stream)
    assert not after.query()
    late[1,](y, z, N=16)
    got = z.copy_to_host(stream=stream)
    stream.synchronize()
    assert got[0] == 2.0


@needs_gpu()
@needs_module("jax")
@in_child(timeout=300)
def test_arrays_of_jax_are_read_without_a_copy_and_never_written():
    """Results go to an array of another library, which JAX can import without a copy."""
    import os
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp

    from tests.runtime.test_libraries_gpu import GRID, SHAPE, shifted
    if jax.default_backend() != "gpu":
        print("JAX has no GPU here")
        return
    for dtype in ("float32", "int32", "float16", "bfloat16"):
        x = jnp.arange(SHAPE[0] * SHAPE[1], dtype=dtype).reshape(SHAPE) % 64
        want = np.asarray(x) + np.asarray(3).astype(np.asarray(x).dtype)
        y = tile.empty(SHAPE, dtype)
        for _ in range(3):
            shifted[GRID](x, y, 3)
        assert np.array_equal(y.numpy(), want), dtype
        assert np.array_equal(np.asarray(jax.dlpack.from_dlpack(y)), want), dtype
        for array in (x, jnp.zeros(SHAPE, dtype)):
            before = np.asarray(array).copy()
            with pytest.raises(tile.LaunchError, match="read-only"):
                shifted[GRID](y, array, 3)
            assert np.array_equal(np.asarray(array), before), dtype


@needs_gpu()
@needs_module("torch")
@needs_module("cupy")
@in_child(timeout=180)
def test_arrays_of_several_libraries_can_be_used_in_one_launch():
    import cupy
    import torch

    from tests.runtime.test_libraries_gpu import GRID, LATE, SHAPE, late, shifted
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    a, b = torch.from_numpy(x).cuda(), cupy.zeros(SHAPE, cupy.float32)
    shifted[GRID](a, b, 3)
    assert np.array_equal(cupy.asnumpy(b), x + np.float32(3))
    with pytest.raises(tile.LaunchError, match="one place"):
        shifted[GRID](a, x, 3)
    first, second, third = torch.zeros(1, device="cuda"), cupy.zeros(1, cupy.float32), torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    one, two = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    with torch.cuda.stream(one), two:
        late[1,](first, second, N=LATE)    # reads one library's array and writes the other's: ordered after both streams
        late[1,](second, third, N=16)
    torch.cuda.synchronize()
    assert third.item() == 2.0


@needs_gpu(count=2)
@in_child(timeout=240)
def test_a_launch_uses_the_device_of_its_arrays():
    from tests.runtime.test_libraries_gpu import GRID, SHAPE, shifted
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    there = [(tile.to_device(x, device), tile.empty(SHAPE, "float32", device)) for device in (0, 1)]
    for device in (1, 0, 1, 1, 0):
        a, b = there[device]
        shifted[GRID](a, b, device + 1)
        assert np.array_equal(b.numpy(), x + np.float32(device + 1)) and b.device == device
    for a, b in ((there[0][0], there[1][1]), (there[1][0], there[0][1])):
        with pytest.raises(tile.LaunchError, match="device 0.*device 1|device 1.*device 0|one place|one device"):
            shifted[GRID](a, b, 9)
    for device in (0, 1):
        assert np.array_equal(there[device][1].numpy(), x + np.float32(device + 1))
        y = np.zeros_like(x)
        shifted[GRID](x, y, 5, backend="cuda", device=device)  # host arrays: the device of the option device=
        assert np.array_equal(y, x + np.float32(5))
    with pytest.raises(tile.LaunchError, match="device=0"):
        shifted[GRID](*there[1], 1, device=0)


@needs_gpu(count=2)
@needs_module("torch")
@in_child(timeout=240)
def test_each_device_has_its_current_stream_and_the_current_device_is_unchanged():
    import torch

    from tests.runtime.test_libraries_gpu import LATE, late
    tensors = [[torch.zeros(1, device=f"cuda:{d}") for _ in range(3)] for d in (0, 1)]
    for d in (0, 1):
        late[1,](*tensors[d][:2], N=16)  # compiled and loaded
        torch.cuda.synchronize(d)
    sides = [torch.cuda.Stream(device=d) for d in (0, 1)]
    with torch.cuda.stream(sides[1]), torch.cuda.stream(sides[0]):  # each stream is current on its device; device 0 is current
        x, y, z = tensors[1]
        late[1,](x, y, N=LATE)
        assert torch.cuda.current_device() == 0
        assert not sides[1].query() and sides[0].query()
        late[1,](y, z, N=16)
    sides[1].synchronize()
    assert (y.item(), z.item()) == (1.0, 2.0)


def test_the_kernels_of_this_file_agree_with_numpy_on_the_simulator():
    check(np.array, np.copy)
    x, y = np.zeros(1, np.float32), np.zeros(1, np.float32)
    late[1,](x, y, N=16)
    assert y[0] == 1.0
