"""Launches on a GPU. Each test runs in a child process."""

import pytest
import tilejit as tile  # of kernels that are given as text

from tests.gpu import in_child, needs_gpu, needs_module

HOPPER_AND_LATER = "sm_90a", "sm_100a", "sm_103a", "sm_120a"


@needs_gpu()
@in_child(timeout=120)
def test_a_kernel_runs_on_device_arrays():
    import numpy as np
    from tilejit.runtime import driver
    from tilejit.runtime.device_array import empty, to_device
    from tilejit.runtime.launcher import load

    from tests.runtime.device_kernels import TWICE, TWICE_RECIPE, cubin

    launcher = load(TWICE_RECIPE, cubin(TWICE, driver.target()))
    host = np.random.default_rng(0).normal(size=1000).astype("float32")
    x, y = to_device(host), empty((1000,))
    for factor in (2.0, 3.0, -1.5):
        assert launcher((8, 1, 1), None, (x, y, factor)) is True
        assert np.array_equal(y.numpy(), host * np.float32(factor))
    part = y[100:300]
    assert launcher((2, 1, 1), None, (x[500:700], part, 4.0)) is True
    assert np.array_equal(part.numpy(), host[500:700] * 4) and np.array_equal(y.numpy()[:100], host[:100] * np.float32(-1.5))
    assert launcher((8, 1, 1), None, (x[::2], y, 2.0)) is False  # the guard on the stride
    assert launcher((0, 1, 1), None, (x, y, 99.0)) is True
    driver.synchronize()
    assert y.numpy()[0] == host[0] * np.float32(-1.5)


@needs_gpu()
@in_child(timeout=120)
def test_numpy_and_enumeration_scalars_are_launched():
    """At the first call, which compiles the kernel, and at later ones."""
    import enum

    import numpy as np

    Level = enum.IntEnum("Level", "LOW HIGH")
    kernel = tile.jit(source="def k(y, n, x):\n    tile.store(y[0], n * x)\n")
    y = tile.to_device(np.zeros(1, np.float32))
    for n, x in ((Level.HIGH, np.float64(1.5)), (np.int64(2), np.float32(1.5)), (np.uint8(2), np.float16(1.5)), (2, 1.5)) * 4:
        kernel[1](y, n, x)
        assert y.numpy()[0] == 3.0
        kernel[1](y, 0, 0.0)


@needs_gpu()
@in_child(timeout=120)
def test_kernels_with_names_that_ptx_does_not_allow_are_launched():
    import numpy as np

    for i, name in enumerate(("_", "smem", "gr\u00f6\u00dfe")):
        y = tile.to_device(np.zeros(1, np.int32))
        tile.jit(source=f"def {name}(y):\n    tile.store(y[0], {i + 5})\n")[1](y)
        assert y.numpy()[0] == i + 5


@needs_gpu()
@pytest.mark.unsanitized
@in_child(timeout=120)
def test_a_copied_device_array_has_its_own_memory():
    import copy
    import pickle

    import numpy as np
    import tilejit as tile

    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = tile.to_device(host)
    for way in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        other = way(array.T)
        assert other.pointer != array.pointer and np.array_equal(other.numpy(), host.T)


@needs_gpu()
@in_child(timeout=120)
def test_the_driver_compiles_the_ptx_if_there_is_no_assembler():
    import numpy as np
    from tilejit.runtime import driver
    from tilejit.runtime.device_array import empty, to_device
    from tilejit.runtime.launcher import load
    from tilejit.toolchain import llvm

    from tests.runtime.device_kernels import TWICE, TWICE_RECIPE

    launcher = load(TWICE_RECIPE, llvm.to_ptx(TWICE, driver.target()))
    x, y = to_device(np.ones(128, "float32")), empty((128,))
    assert launcher(1, None, (x, y, 5.0)) and y.numpy().tolist() == [5.0] * 128


@needs_gpu()
@needs_module("torch")
@pytest.mark.parametrize("native", [True, False])
@in_child(timeout=120)
def test_a_kernel_runs_on_torch_tensors_and_their_current_stream(native):
    import torch
    from tilejit.runtime import driver
    from tilejit.runtime.launcher import load

    from tests.runtime.device_kernels import SLOW, SLOW_RECIPE, TWICE, TWICE_RECIPE, cubin

    twice = load(TWICE_RECIPE, cubin(TWICE, driver.target()), native=native)
    slow = load(SLOW_RECIPE, cubin(SLOW, driver.target()), native=native)
    if native:
        assert twice.prepare() == slow.prepare() == hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    x = torch.randn(1000, device="cuda")
    y = torch.empty_like(x)
    for _ in range(5):
        assert twice((8, 1, 1), None, (x, y, 2.0)) is True
        assert torch.equal(y, x * 2)
    side = torch.cuda.Stream()
    flag, copy = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        assert slow((1, 1, 1), None, (flag,))
        assert twice((1, 1, 1), None, (flag, copy, 3.0))  # runs after `slow`, on the same stream
    side.synchronize()
    assert copy.item() == 3.0
    assert slow((1, 1, 1), side, (flag,)) and twice((1, 1, 1), side.cuda_stream, (flag, copy, 4.0))
    side.synchronize()
    assert copy.item() == 4.0
    assert twice((8, 1, 1), None, (x.cpu(), y, 2.0)) is False
    assert twice((8, 1, 1), None, (x.double(), y, 2.0)) is False


@needs_gpu(*HOPPER_AND_LATER)
@pytest.mark.parametrize("native", [True, False])
@in_child(timeout=120)
def test_tensor_maps_refer_to_the_arrays_of_the_call(native):
    import numpy as np
    from tilejit.runtime import driver
    from tilejit.runtime.device_array import empty, to_device
    from tilejit.runtime.launcher import load

    from tests.runtime.device_kernels import TILE, TILE_RECIPE, cubin

    launcher = load(TILE_RECIPE, cubin(TILE, driver.target()), native=native)
    arrays = to_device, lambda array: array
    try:
        import torch

        arrays = (*arrays, lambda array: torch.from_numpy(array.copy()).cuda())
    except ImportError:
        pass
    for rows, columns, pitch in ((16, 64, 64), (13, 60, 100), (8, 32, 32), (1, 4, 4)):
        host = np.random.default_rng(rows).normal(size=(rows, pitch)).astype("float32")
        grid = -(-columns // 32), -(-rows // 8), 1
        wanted = np.zeros((grid[1] * 8, grid[0] * 32), "float32")
        wanted[:rows, :columns] = host[:, :columns]
        wanted = wanted.reshape(grid[1], 8, grid[0], 32).transpose(0, 2, 1, 3).reshape(-1)
        for place in (arrays[0], *arrays[2:]):
            array = place(host)[:, :columns]
            out = place(np.full(wanted.size, 7, "float32"))
            for _ in range(3):
                assert launcher(grid, None, (array, out)) is True
            driver.synchronize()
            back = out.numpy() if hasattr(out, "_memory") else out.cpu().numpy()
            assert np.array_equal(back, wanted), (rows, columns, place)
    assert launcher((1, 1, 1), None, (to_device(np.zeros((8, 33), "float32")), empty((256,)))) is False  # pitch of 132 bytes


@needs_gpu(*HOPPER_AND_LATER)
@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("in_code", [False, True])
@in_child(timeout=120)
def test_clusters_are_launched(size, in_code):
    from tilejit.errors import LaunchError
    from tilejit.runtime import driver
    from tilejit.runtime.device_array import empty
    from tilejit.runtime.launcher import load

    from tests.runtime.device_kernels import RANKS, cubin, ranks_recipe

    text = RANKS.replace("CLUSTER", f'"nvvm.cluster_dim"="{size},1,1"' if in_code else "")
    launcher = load(ranks_recipe(size), cubin(text, driver.target()))
    if size > 8 and driver.active_clusters(launcher.function, 32, 0, (size, 1, 1)) == 0:
        return
    out = empty((32,), "int32")
    assert launcher((32, 1, 1), None, (out,))
    assert out.numpy().tolist() == [i % size for i in range(32)]
    try:
        launcher((size + 1, 1, 1), None, (out,))
    except LaunchError as error:
        assert "multiple of the cluster" in str(error)
    else:
        raise AssertionError("a grid that is no multiple of the cluster was launched")


@needs_gpu(*HOPPER_AND_LATER)
@in_child(timeout=120)
def test_the_attribute_for_programmatic_dependent_launch_is_accepted():
    import numpy as np
    from tilejit.runtime import driver
    from tilejit.runtime.device_array import empty, to_device
    from tilejit.runtime.launcher import load

    from tests.runtime.device_kernels import TWICE, TWICE_RECIPE, cubin

    launcher = load({**TWICE_RECIPE, "pdl": True}, cubin(TWICE, driver.target()))
    x, y = to_device(np.ones(128, "float32")), empty((128,))
    assert launcher(1, None, (x, y, 5.0)) and y.numpy().tolist() == [5.0] * 128


@needs_gpu()
@in_child(timeout=120)
def test_any_thread_may_launch():
    import threading

    import numpy as np
    from tilejit.runtime import driver
    from tilejit.runtime.device_array import empty, to_device
    from tilejit.runtime.launcher import load

    from tests.runtime.device_kernels import TWICE, TWICE_RECIPE, cubin

    launcher = load(TWICE_RECIPE, cubin(TWICE, driver.target()))
    x = to_device(np.arange(128, dtype="float32"))
    results = [empty((128,)) for _ in range(8)]
    failures = []

    def work(i):
        try:
            for _ in range(50):
                assert launcher(1, None, (x, results[i], float(i)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for i, result in enumerate(results):
        assert np.array_equal(result.numpy(), np.arange(128) * np.float32(i))


@needs_gpu()
@in_child(timeout=120)
def test_streams_wait_for_each_other_and_events_measure_time():
    import numpy as np
    from tilejit.runtime import driver
    from tilejit.runtime.device_array import to_device
    from tilejit.runtime.launcher import load

    from tests.runtime.device_kernels import SLOW, SLOW_RECIPE, TWICE, TWICE_RECIPE, cubin

    slow, twice = (load(recipe, cubin(text, driver.target())) for recipe, text in ((SLOW_RECIPE, SLOW), (TWICE_RECIPE, TWICE)))
    first, second = driver.create_stream(), driver.create_stream()
    flag, copy = to_device(np.zeros(1, "float32")), to_device(np.zeros(1, "float32"))
    start = driver.Event().record(first)
    slow(1, first, (flag,))
    end = driver.Event().record(first)
    driver.wait_stream(second, first)
    twice(1, second, (flag, copy, 3.0))
    driver.synchronize(stream=second)
    assert copy.numpy()[0] == 3.0 and 1.0 < end.wait().milliseconds_since(start) < 1000
    driver.destroy_stream(first)
    driver.destroy_stream(second)


@needs_gpu()
@pytest.mark.unsanitized
@in_child(timeout=120)
def test_errors_of_the_driver_have_their_names():
    from tilejit.errors import LaunchError
    from tilejit.runtime import driver
    from tilejit.runtime.device_array import empty
    from tilejit.runtime.launcher import load

    from tests.runtime.device_kernels import TWICE, TWICE_RECIPE, cubin

    def message(work):
        try:
            work()
        except LaunchError as error:
            return str(error)
        raise AssertionError("no error")

    image = cubin(TWICE, driver.target())
    assert "CUDA_ERROR" in message(lambda: driver.load_module(b"\x7fELFnonsense"))
    assert "finding the kernel absent" in message(lambda: load({**TWICE_RECIPE, "name": "absent"}, image))
    assert "bytes of shared memory" in message(lambda: load({**TWICE_RECIPE, "shared": 10**6}, image))
    assert "no device 99" in message(lambda: driver.allocate(16, 99))
    assert "CUDA_ERROR_OUT_OF_MEMORY" in message(lambda: driver.allocate(2**50))
    launcher = load({**TWICE_RECIPE, "threads": 1024}, image)  # the code was compiled for at most 128
    words = message(lambda: launcher(1, None, (empty((128,)), empty((128,)), 1.0)))
    assert "the launch failed: CUDA_ERROR" in words and "1024 threads" in words
    assert "strides[0]" in message(lambda: driver.encode_tensor_map(dtype="float32", rank=2, address=0, dims=[8, 8], strides=[24],
                                                                box=[8, 8], element_strides=[1, 1]))
    assert len(driver.encode_tensor_map(dtype="float32", rank=2, address=4096, dims=[8, 8], strides=[32], box=[8, 8],
                                   element_strides=[1, 1])) == 128


@needs_gpu()
@pytest.mark.unsanitized
@pytest.mark.unperturbed  # it leaves its process without the GPU, and all seeds run in one
@in_child(timeout=120)
def test_an_illegal_access_is_reported_as_such():
    from tilejit.errors import LaunchError
    from tilejit.runtime import driver
    from tilejit.runtime.arrays import ArrayView
    from tilejit.runtime.launcher import load

    from tests.runtime.device_kernels import TWICE, TWICE_RECIPE, cubin

    class Wild:
        shape = (128,)

        def __tilejit_view__(self):
            return ArrayView(2**45, (128,), (1,), "float32", 0)

    launcher = load(TWICE_RECIPE, cubin(TWICE, driver.target()))
    launcher(1, None, (Wild(), Wild(), 1.0))
    try:
        driver.synchronize()
    except LaunchError as error:
        assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in str(error) and "launched earlier" in str(error)
    else:
        raise AssertionError("no error")


@needs_gpu(count=2)
@needs_module("torch")
@in_child(timeout=180)
def test_each_device_has_its_own_launcher_and_the_current_device_stays():
    import torch
    from tilejit.runtime import driver
    from tilejit.runtime.device_array import to_device
    from tilejit.runtime.launcher import load

    from tests.runtime.device_kernels import TWICE, TWICE_RECIPE, cubin

    image = cubin(TWICE, driver.target(1))
    launchers = [load(TWICE_RECIPE, image, device) for device in (0, 1)]
    for device in (1, 0, 1):
        x = torch.arange(128.0, device=f"cuda:{device}")
        y = torch.empty_like(x)
        for _ in range(3):
            assert launchers[device](1, None, (x, y, 2.0)) is True
            assert launchers[1 - device](1, None, (x, y, 2.0)) is False
        torch.cuda.synchronize(device)
        assert torch.equal(y, x * 2) and torch.cuda.current_device() == 0
    array = to_device([1.0, 2.0], 1)
    assert array.device == 1 and array.numpy().tolist() == [1, 2] and torch.cuda.current_device() == 0


@needs_gpu()
@needs_module("torch")
@pytest.mark.unsanitized
@in_child(timeout=120)
def test_arrays_are_passed_to_torch_and_back_without_a_copy():
    import ctypes

    import numpy as np
    import torch
    from tilejit.runtime.arrays import describe
    from tilejit.runtime.device_array import empty, to_device

    array = to_device(np.arange(12, dtype="float32").reshape(3, 4))
    for tensor in (torch.from_dlpack(array), torch.as_tensor(array, device="cuda"), torch.from_dlpack(array[1:, ::2])):
        assert tensor.is_cuda and describe(tensor).device == 0
    torch.from_dlpack(array)[0, 0] = 99
    assert array.numpy()[0, 0] == 99
    assert torch.from_dlpack(empty((4,), "bfloat16")).dtype == torch.bfloat16
    view = describe(torch.zeros(4, 4, device="cuda", dtype=torch.bfloat16)[:, 1])
    assert (view.dtype, view.shape, view.strides) == ("bfloat16", (4,), (4,))
    del array
    ctypes.pythonapi.PyGC_Collect()
    torch.cuda.synchronize()
