"""Device arrays on fake device memory: views, exports, and copies from and to the host."""

import copy
import ctypes
import pickle
import sys

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, strategies as st
from tilejit.compiled import CompiledKernel
from tilejit.errors import LaunchError
from tilejit.runtime import dlpack, driver, libcuda
from tilejit.runtime.arrays import describe
from tilejit.runtime.device_array import DeviceArray, empty, to_device
from tilejit.runtime.launch import on_device


@pytest.fixture
def memory(monkeypatch):
    """Host memory in place of device memory; the dict holds the live allocations."""
    allocated = {}

    def allocate(nbytes, device=0):
        room = ctypes.create_string_buffer(nbytes)
        allocated[ctypes.addressof(room)] = room
        return ctypes.addressof(room)

    monkeypatch.setattr(driver, "allocate", allocate)
    monkeypatch.setattr(driver, "free", lambda address, device=0: allocated.pop(address))
    monkeypatch.setattr(driver, "synchronize", lambda device=0, stream=None: None)
    for name in ("copy_to_device", "copy_to_host"):
        monkeypatch.setattr(driver, name, lambda to, source, nbytes, device=0, stream=None: ctypes.memmove(to, source, nbytes))
    return allocated


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16", "float8_e4m3fn", "float16"])
def test_an_array_copied_to_the_device_and_back_is_unchanged(memory, dtype):
    host = np.arange(24).reshape(2, 3, 4).astype(getattr(ml_dtypes, dtype, dtype))
    array = to_device(host)
    back = array.numpy()
    assert back.dtype == host.dtype and np.array_equal(back.astype("float32"), host.astype("float32"))
    assert (array.shape, array.strides, array.nbytes, len(array), array.ndim) == ((2, 3, 4), (12, 4, 1), host.nbytes, 2, 3)


def test_a_transposed_packed_matrix_stays_transposed_and_packed_on_the_device(memory):
    x = tile.pack(np.arange(24).reshape(4, 6) % 6, "float4_e2m1fn")
    there = to_device(x.T)
    assert there.shape == (6, 4) and describe(there).strides == (1, 3)
    np.testing.assert_array_equal(there.unpack().astype(np.float32), x.unpack().T.astype(np.float32))


def test_strided_host_arrays_lists_and_numbers_are_copied_completely(memory):
    host = np.arange(24.0, dtype="float32").reshape(4, 6)[::-1, ::2].T
    assert np.array_equal(to_device(host).numpy(), host)
    assert to_device([[1.0, 2.0]]).numpy().dtype == "float32" and to_device(3).shape == ()


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copied_or_pickled_device_array_has_its_own_memory(memory, way):
    host = np.arange(24, dtype="float32").reshape(4, 6)
    array = to_device(host)
    other = way(array[1:, ::2].T)
    assert len(memory) == 2 and other.device == 0 and np.array_equal(other.numpy(), host[1:, ::2].T)
    packed = way(to_device(tile.pack(np.arange(24).reshape(4, 6) % 5, "float4_e2m1fn")))
    np.testing.assert_array_equal(packed.unpack().astype(int), np.arange(24).reshape(4, 6) % 5)
    del array
    assert np.array_equal(other.numpy(), host[1:, ::2].T)


def test_memory_is_freed_with_the_last_view(memory):
    array = to_device(np.zeros((4, 4)))
    view = array[1:, 2]
    assert len(memory) == 1
    del array
    assert len(memory) == 1
    del view
    assert memory == {}


def test_arrays_without_elements_allocate_nothing(memory):
    array = empty((0, 4), "float32")
    assert memory == {} and array.numpy().shape == (0, 4) and array[:, 1:].numpy().shape == (0, 3)
    assert to_device(np.zeros((3, 0))).numpy().shape == (3, 0)


INDEX = st.one_of(st.integers(-4, 3), st.slices(4), st.just(Ellipsis))


@given(st.lists(INDEX, max_size=3).filter(lambda index: index.count(Ellipsis) <= 1), st.booleans())
def test_slicing_follows_numpy(index, transposed):
    host = np.arange(64, dtype="int32").reshape(4, 4, 4)
    array = DeviceArray(host.ctypes.data, host.shape, (16, 4, 1), host.dtype, 0, host)
    host, array = (host.T, array.T) if transposed else (host, array)
    wanted, view = host[tuple(index)], array[tuple(index)]
    assert view.shape == np.shape(wanted)
    if wanted.size:
        at = ctypes.c_int32.from_address(view.pointer).value
        assert at == (wanted if np.ndim(wanted) == 0 else wanted.flat[0])
        for extent, ours, theirs in zip(view.shape, view.strides, np.asarray(wanted).strides):
            assert extent <= 1 or ours * 4 == theirs


def test_views_are_copied_to_the_host_with_their_shape_and_order(memory):
    host = np.arange(60.0).reshape(3, 4, 5)
    array = to_device(host)
    assert np.array_equal(array[1:, ::-2, 3].numpy(), host[1:, ::-2, 3])
    assert np.array_equal(array.T.numpy(), host.T) and np.array_equal(array.reshape(4, -1).numpy(), host.reshape(4, 15))
    assert np.array_equal(array.transpose(1, 2, 0)[1:].numpy(), host.transpose(1, 2, 0)[1:]) and array.transpose((0, 2, 1)).shape == (3, 5, 4)
    with pytest.raises(LaunchError, match=r"an order of the axes of 3 dimensions is not \(0, 0, 1\)"):
        array.transpose(0, 0, 1)
    with pytest.raises(LaunchError, match="row-major"):
        array.T.reshape(60)
    with pytest.raises(LaunchError, match="60 elements"):
        array.reshape(7)
    for extents in ((-1, -1, 60), (-6, -10)):
        with pytest.raises(LaunchError, match="one extent of a shape may be -1"):
            array.reshape(extents)


def test_invalid_indices_raise_index_errors(memory):
    array = empty((4, 4))
    for index in (4, (0, 0, 0), (0, -5)):
        with pytest.raises(IndexError):
            array[index]
    with pytest.raises(TypeError):
        len(array[0, 0])


def test_repr_of_a_device_array_shows_its_properties(memory):
    view = describe(empty((3, 4), "bfloat16", 0)[:, 1:])
    assert (view.shape, view.strides, view.dtype, view.device, view.stream) == ((3, 3), (4, 1), "bfloat16", 0, None)


def test_the_cuda_array_interface_exists_only_for_dtypes_that_it_supports(memory):
    array = empty((3, 4), "float32")[:, ::2]
    interface = array.__cuda_array_interface__
    assert interface["shape"] == (3, 2) and interface["strides"] == (16, 8) and interface["typestr"] == "<f4"
    assert interface["data"] == (array.pointer, False) and interface["version"] == 3
    assert not hasattr(empty((3,), "bfloat16"), "__cuda_array_interface__")


def test_dlpack_exports_capsules_whatever_prototypes_others_give_to_python_s_functions(memory, monkeypatch):
    """JAX's `ffi.pycapsule` sets that of the process's PyCapsule_New to one with a function."""
    shared = ctypes.pythonapi.PyCapsule_New
    monkeypatch.setattr(shared, "argtypes", (ctypes.c_void_p, ctypes.c_char_p, ctypes.CFUNCTYPE(None, ctypes.py_object)))
    assert "dltensor" in repr(to_device(np.arange(4, dtype=np.float32)).__dlpack__())


def test_dlpack_exports_both_kinds_of_capsules(memory):
    array = empty((3, 4), "bfloat16")[1:]
    for options, versioned in (({}, False), ({"max_version": (1, 1)}, True), ({"max_version": (0, 8)}, False)):
        capsule = array.__dlpack__(stream=-1, **options)
        tensor, readonly = dlpack.read_capsule(capsule)
        assert (tensor.data, tuple(tensor.shape[:2]), tuple(tensor.strides[:2])) == (array.pointer, (2, 4), (4, 1))
        assert (tensor.device_type, tensor.device_id, dlpack.dtype_name(tensor), readonly) == (2, 0, "bfloat16", False)
        assert ("versioned" in repr(capsule)) == versioned
    with pytest.raises(BufferError):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(1, 0))


def test_an_export_keeps_the_memory_alive(memory):
    array = to_device(np.zeros(4))
    capsule = array.__dlpack__()
    del array
    assert len(memory) == 1
    del capsule
    assert memory == {}


def test_np_asarray_of_a_device_array_is_an_error_that_suggests_its_numpy_method(memory):
    with pytest.raises(TypeError, match=r"\.numpy\(\)"):
        np.asarray(empty((4,)))


def test_shapes_and_dtypes_are_checked(memory):
    assert empty(4, np.float16).dtype == np.float16 and empty((2,), np.dtype("int8")).nbytes == 2
    with pytest.raises(LaunchError, match="a shape is made of integers of at least 0, not .2, -1."):
        empty((2, -1))
    with pytest.raises(LaunchError, match="a shape is made of integers of at least 0, not .1.5,."):
        empty((1.5,))
    with pytest.raises(LaunchError, match="complex64"):
        empty((2,), "complex64")


@pytest.mark.parametrize("device", ["cuda:0", 1.5, True, None])
def test_a_device_that_is_not_an_integer_is_refused(monkeypatch, device):
    monkeypatch.setattr(driver, "device_count", lambda: 1)
    with pytest.raises(LaunchError, match=f"a device is a number from 0, not {device!r}"):
        driver.target(device)


def test_without_a_driver_the_error_says_what_to_do():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        assert driver.available() is False
        with pytest.raises(LaunchError, match="simulator"):
            driver.allocate(16)
        assert libcuda.error_text(1) == "CUDA_ERROR_INVALID_VALUE (1)"


def test_errors_have_the_driver_s_names_and_a_note_if_they_outlive_the_call():
    assert libcuda.error_text(1) == "CUDA_ERROR_INVALID_VALUE (1)" and libcuda.error_text(99999) == "CUDA error (99999)"
    assert libcuda.error_text(3).startswith("CUDA_ERROR_NOT_INITIALIZED (3); a process that was forked after CUDA had started")
    assert libcuda.error_text(700).startswith("CUDA_ERROR_ILLEGAL_ADDRESS (700); a kernel launched earlier failed")


def test_a_launch_on_host_arrays_mentions_the_gpu_without_initialising_the_driver(monkeypatch, capsys):
    """A process forked after CUDA was initialised could not use it."""
    started = []
    for module in (driver, libcuda):
        monkeypatch.setattr(module, "library", lambda: started.append(1))
    monkeypatch.setattr(libcuda, "device_files", lambda: True)
    sys.modules["tilejit.jit"]._say_once_that_a_gpu_is_there.cache_clear()
    kernel, x = tile.jit(source="def k(x):\n    tile.store(x[0], 1)\n"), np.zeros(1, np.float32)
    kernel[1,](x)
    kernel[1,](x)
    assert x[0] == 1 and not started
    assert capsys.readouterr().err.count("host arrays run on the simulator") == 1


def test_device_arrays_of_packed_elements_hold_their_bytes():
    """tile.empty counts elements; a size that is not a whole number of bytes is refused before allocating."""
    with pytest.raises(LaunchError, match="multiples of 4 elements, and the shape is"):
        empty((4, 6), "float6_e2m3fn")


# -- host arrays of a launch ---------------------------------------------------------------------------------------------

@pytest.fixture
def device(memory, monkeypatch):
    """A device whose kernels write 7 to all arguments that they write."""
    def launcher(self, _device):
        def launch(_grid, _stream, arguments):
            for n in self.written:
                sevens = np.full(arguments[n].size, 7, np.float32)
                ctypes.memmove(arguments[n].pointer, sevens.ctypes.data, sevens.nbytes)
            return True
        return launch

    monkeypatch.setattr(driver, "available", lambda: True)
    monkeypatch.setattr(driver, "target", lambda device: "sm_90a")
    monkeypatch.setattr(CompiledKernel, "launcher", launcher)


@tile.jit
def both(x, y):
    tile.store(x[0:4], tile.load(y[0:4]))
    tile.store(y[0:4], tile.load(x[0:4]))


@tile.jit
def first(x, y):
    tile.store(x[0:4], tile.load(y[0:4]))


def launched(kernel, *arrays):
    kernel[1,](*arrays, backend="cuda")


def test_host_arrays_are_copied_to_the_device_and_back(device):
    x, y = np.zeros(4, np.float32), np.ones(4, np.float32)
    launched(first, x, y)
    assert (x == 7).all() and (y == 1).all()


def test_a_host_array_passed_twice_is_copied_once(device, memory):
    x, held = np.zeros(4, np.float32), len(memory)
    copies = on_device(both.bind((x, x), {})[0], 0)[1]
    assert copies["x"][1] is copies["y"][1] and len(memory) == held + 1
    launched(both, x, x)
    assert (x == 7).all()


def test_overlapping_host_arrays_are_refused_if_one_is_written(device):
    x = np.zeros(8, np.float32)
    with pytest.raises(LaunchError, match="the host arrays x and y overlap, the kernel writes x, and each has a copy of its own"):
        launched(first, x[0:4], x[2:6])
    with pytest.raises(LaunchError, match="overlap"):
        launched(first, x[::-1], x)
    assert not x.any()
    launched(first, x[0:4], x[4:8])
    columns = np.zeros((4, 2), np.float32)
    launched(first, columns[:, 0], columns[:, 1])
    assert (x == [7, 7, 7, 7, 0, 0, 0, 0]).all() and (columns == [7, 0]).all()


def test_a_read_only_host_array_that_a_kernel_writes_is_refused_before_the_launch(device):
    x, y = np.zeros(4, np.float32), np.ones(4, np.float32)
    x.flags.writeable = False
    with pytest.raises(LaunchError, match="the kernel writes x, and that array is read-only"):
        launched(first, x, y)
