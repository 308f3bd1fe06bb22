"""Launches with a driver that records its calls: from Python, and from machine code."""

import enum
import struct
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import LaunchError
from tilejit.runtime.device_array import DeviceArray

from tests.runtime.fakes import MAP, FakeArray, FakeDriver, make_recipe, tensor


def test_parameters_are_packed_with_their_sizes(torch, launch):
    driver, make = launch
    launcher = make(make_recipe())
    assert launcher((3, 2, 1), None, (tensor(torch), -7, 1.5)) is True
    call, = driver.launches
    assert (call.grid, call.block, call.shared, call.stream, call.function) == ((3, 2, 1), (96, 1, 1), 1024, 5, 0x1234)
    assert call.params == [struct.pack("<Q", 4096), struct.pack("<i", 8), struct.pack("<q", 16), struct.pack("<i", -7), struct.pack("<f", 1.5)]
    assert call.params == launcher.parameters((tensor(torch), -7, 1.5))


def test_a_read_only_array_that_the_kernel_writes_is_not_launched():
    driver = FakeDriver()
    readonly = FakeArray(4096, (6, 8), (64, 4), readonly=True)
    assert driver.launcher(make_recipe())((1, 1, 1), None, (readonly, 1, 1.0)) is True
    assert driver.launcher(make_recipe(written=[0]))((1, 1, 1), None, (readonly, 1, 1.0)) is False
    assert len(driver.launches) == 1


@pytest.mark.parametrize("dtype, value, form", [
    ("int8", -128, "b"), ("uint8", 255, "B"), ("int16", -5, "h"), ("uint16", 65535, "H"), ("uint32", 2**32 - 1, "I"),
    ("int64", -2**63, "q"), ("uint64", 2**40, "Q"), ("float64", 1e300, "d"), ("bool", True, "?"), ("bool", False, "?"), ("float32", 1e-3, "f")])
def test_every_scalar_type_is_packed(torch, launch, dtype, value, form):
    driver, make = launch
    launcher = make(make_recipe(arguments=[["scalar", dtype]], params=[["scalar", 0, dtype]]))
    assert launcher((1, 1, 1), 3, (value,)) is True
    assert driver.launches[0].params == [struct.pack("<" + form, value)] and driver.launches[0].stream == 3


@pytest.mark.parametrize("dtype, value", [("float16", 1.5), ("bfloat16", 1.5), ("float8_e4m3fn", 1.5)])
def test_narrow_floats_are_packed_as_bits(torch, dtype, value):
    driver = FakeDriver()
    launcher = driver.launcher(make_recipe(arguments=[["scalar", dtype]], params=[["scalar", 0, dtype]]))
    assert launcher((1,), 3, (value,)) and not launcher.prepare()
    assert driver.launches[0].params == [np.dtype(getattr(ml_dtypes, dtype, dtype)).type(value).tobytes()]


def test_a_kernel_without_parameters_is_launched(torch, launch):
    driver, make = launch
    assert make(make_recipe(arguments=[], params=[]))((1, 1, 1), None, ()) and driver.launches[0].stream == 0


@pytest.mark.parametrize("args", [
    lambda t: (), lambda t: (tensor(t), 1), lambda t: (tensor(t), 1, 1.0, 2), lambda t: (tensor(t), 1.0, 1.0), lambda t: (tensor(t), 1, 1),
    lambda t: (tensor(t), True, 1.0), lambda t: (tensor(t), 2**31, 1.0), lambda t: (tensor(t), 2**80, 1.0), lambda t: (1, 1, 1.0),
    lambda t: (None, 1, 1.0), lambda t: (tensor(t, dtype="float16"), 1, 1.0), lambda t: (tensor(t, shape=(6,), strides=(1,)), 1, 1.0),
    lambda t: (tensor(t, device=1), 1, 1.0), lambda t: (tensor(t), tensor(t), 1.0), lambda t: (tensor(t, device=-1), 1, 1.0)])
def test_arguments_of_another_kind_are_not_launched(torch, launch, args):
    torch.Tensor.device = type("device", (), {"type": "cpu"})
    driver, make = launch
    launcher = make(make_recipe())
    given = args(torch)
    assert launcher((1, 1, 1), None, given) is False
    assert driver.launches == [] and launcher.mismatch(given)


def test_numpy_scalars_of_the_exact_type_are_accepted(torch):
    driver = FakeDriver()
    launcher = driver.launcher(make_recipe())
    assert launcher((1, 1, 1), None, (tensor(torch), np.int32(4), np.float32(2)))
    assert driver.launches[0].params[3:] == [struct.pack("<i", 4), struct.pack("<f", 2)]
    assert not launcher((1, 1, 1), None, (tensor(torch), np.int64(4), np.float32(2)))


class Level(enum.IntEnum):
    HIGH = 4


class Length(float):
    pass


def test_instances_of_subclasses_of_int_and_float_are_launched_by_value(torch, launch):
    """NumPy's float64 is a subclass of float, and an IntEnum member one of int."""
    driver, make = launch
    launcher = make(make_recipe())
    for n, x in ((Level.HIGH, np.float64(2)), (4, Length(2))):
        assert launcher((1, 1, 1), None, (tensor(torch), n, x)) is True
        assert driver.launches[-1].params[3:] == [struct.pack("<i", 4), struct.pack("<f", 2)]
    assert not launcher((1, 1, 1), None, (tensor(torch), 4, np.float64(1e300)))


def test_instances_of_subclasses_share_a_compiled_version_with_python_s_numbers():
    kernel = tile.jit(source="def k(y, n, x):\n    tile.store(y[0], n * x)\n")
    y = np.zeros(1, np.float32)
    bound, plain = (kernel.bind((y, *numbers), {})[0] for numbers in ((Level.HIGH, np.float64(2)), (4, 2.0)))
    assert bound.key == plain.key and [type(v) for v in bound.runtime[1:]] == [int, float]


@pytest.mark.parametrize("answer", [True, False])
def test_a_failed_guard_prevents_the_launch_and_is_described_in_words(torch, launch, answer):
    driver, make = launch
    launcher = make(make_recipe(guards=[[["size_multiple", 0, 1, 64], answer]]))
    good, bad = (tensor(torch, shape=(6, 128 if yes else 100)) for yes in (answer, not answer))
    assert launcher((1, 1, 1), None, (good, 1, 1.0)) is True
    assert launcher((1, 1, 1), None, (bad, 1, 1.0)) is False
    assert launcher((1, 1, 1), None, (good, 1, 1.0)) is True
    assert len(driver.launches) == 2
    assert launcher.mismatch((good, 1, 1.0)) == []
    assert "A.shape[1] is a multiple of 64" in launcher.mismatch((bad, 1, 1.0), ("A",))[0]


def test_an_empty_grid_launches_nothing_and_succeeds(torch, launch):
    driver, make = launch
    assert make(make_recipe())((4, 0, 1), None, (tensor(torch), 1, 1.0)) is True
    assert driver.launches == []


@pytest.mark.parametrize("grid", [(-1, 1, 1), (1, 65536, 1), (2**31, 1, 1), (1, 1, 2**40), (2**70, 1, 1), (1.5, 1, 1), "xyz", ()])
def test_a_grid_that_exceeds_the_device_limits_is_an_error(torch, launch, grid):
    driver, make = launch
    with pytest.raises(LaunchError, match="grid"):
        make(make_recipe())(grid, None, (tensor(torch), 1, 1.0))
    assert driver.launches == []


def test_grids_with_fewer_than_three_dimensions_are_extended_by_ones(torch, launch):
    driver, make = launch
    launcher = make(make_recipe())
    for grid in (5, (5,), [5, 1]):
        assert launcher(grid, None, (tensor(torch), 1, 1.0))
        assert driver.launches[-1].grid == (5, 1, 1)


def test_clusters_and_dependent_launches_are_passed_as_launch_attributes(torch, launch):
    driver, make = launch
    launcher = make(make_recipe(cluster=[2, 1, 1], pdl=True))
    assert launcher((4, 1, 1), None, (tensor(torch), 1, 1.0))
    cluster, pdl = driver.launches[0].attributes
    assert struct.unpack_from("<I4x3I", cluster) == (4, 2, 1, 1) and struct.unpack_from("<I4xi", pdl) == (6, 1)
    with pytest.raises(LaunchError, match="multiple"):
        launcher((3, 1, 1), None, (tensor(torch), 1, 1.0))


def test_tensor_maps_are_encoded_from_the_arrays_of_the_call(torch, launch):
    driver, make = launch
    launcher = make(make_recipe(maps=[MAP], params=[["map", 0], ["ptr", 0], ["map", 0]]))
    assert launcher((1, 1, 1), None, (tensor(torch, 4096, (6, 40), (48, 1)), 1, 1.0))
    assert driver.encoded == [(7, 2, 4160, (40, 6), (192,), (32, 8), (1, 1), (0, 3, 2, 1))] * 2
    call, = driver.launches
    assert call.params == [b"\1" * 128, struct.pack("<Q", 4096), b"\2" * 128]


def test_a_map_of_an_empty_array_points_to_valid_memory(torch, monkeypatch):
    """Not to the array's address, which may be 0, but to an address given by the launcher."""
    monkeypatch.setattr("tilejit.runtime.driver.unused_address", lambda device: 0x7000 + device)
    driver = FakeDriver()
    nothing = {**MAP, "dims": [16, 1], "strides": [16], "base_offset": 0, "nowhere": True}
    launcher = driver.launcher(make_recipe(maps=[nothing], params=[["map", 0], ["ptr", 0]]))
    assert launcher((1, 1, 1), None, (tensor(torch, 0, (0, 40), (40, 1)), 1, 1.0))
    assert driver.encoded == [(7, 2, 0x7000, (16, 1), (16,), (32, 8), (1, 1), (0, 3, 2, 1))]


def test_a_map_that_cannot_be_encoded_is_an_error_that_names_the_field(torch, launch):
    driver, make = launch
    launcher = make(make_recipe(maps=[MAP], params=[["map", 0]]))
    driver.encode_code = 1
    with pytest.raises(LaunchError, match=r"strides\[0\] is 196 bytes"):
        launcher((1, 1, 1), None, (tensor(torch, 4096, (6, 40), (49, 1)), 1, 1.0))
    with pytest.raises(LaunchError, match="CUDA error 1"):
        launcher((1, 1, 1), None, (tensor(torch), 1, 1.0))
    driver.encode_code = 0
    assert launcher((1, 1, 1), None, (tensor(torch), 1, 1.0)) and len(driver.launches) == 1


def test_a_size_that_does_not_fit_its_parameter_is_an_error(torch, launch):
    driver, make = launch
    launcher = make(make_recipe(params=[["size", 0, 1, "i32"]]))
    with pytest.raises(LaunchError, match="does not fit"):
        launcher((1, 1, 1), None, (tensor(torch, shape=(1, 2**31)), 1, 1.0))
    assert launcher((1, 1, 1), None, (tensor(torch, shape=(1, 2**31 - 1)), 1, 1.0))


def test_a_launch_refused_by_the_driver_is_an_error_with_its_name_and_the_launch(torch, launch):
    driver, make = launch
    launcher = make(make_recipe())
    driver.code = 701
    with pytest.raises(LaunchError, match=r"k: .*CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES \(701\).*grid \(3, 1, 1\), 96 threads, 1024 bytes"):
        launcher((3, 1, 1), None, (tensor(torch), 1, 1.0))
    driver.code = 700
    with pytest.raises(LaunchError, match="launched earlier"):
        launcher((3, 1, 1), None, (tensor(torch), 1, 1.0))
    driver.code = 0
    assert launcher((3, 1, 1), None, (tensor(torch), 1, 1.0))


def test_a_thread_with_another_current_context_launches_in_the_right_one_and_gets_its_own_back(torch, launch):
    driver, make = launch
    launcher = make(make_recipe())
    driver.context = 13
    assert launcher((3, 1, 1), None, (tensor(torch), 1, 1.0)) is True
    assert driver.context == 13 and driver.launches[-1].params[0] == struct.pack("<Q", 4096)


def test_a_thread_without_a_context_gets_one(torch, launch):
    driver, make = launch
    launcher = make(make_recipe())
    driver.context = 0
    assert launcher((3, 1, 1), None, (tensor(torch), 1, 1.0)) is True
    assert driver.context == 77


def test_a_stream_is_a_handle_an_object_or_the_library_s_current_stream(torch, launch):
    driver, make = launch
    launcher = make(make_recipe())
    args = tensor(torch), 1, 1.0
    torch.stream = 2**40 + 3
    for given, wanted in ((None, 2**40 + 3), (0, 0), (9, 9), (type("S", (), {"cuda_stream": 4})(), 4)):
        assert launcher((1, 1, 1), given, args) and driver.launches[-1].stream == wanted
    with pytest.raises(LaunchError, match="stream"):
        launcher((1, 1, 1), "fast", args)


def test_arrays_of_other_libraries_are_launched_on_their_stream(torch, monkeypatch):
    from tilejit.runtime import driver as real

    waits = []
    monkeypatch.setattr(real, "wait_stream", lambda *args: waits.append(args))
    driver = FakeDriver()
    launcher = driver.launcher(make_recipe(arguments=[["array", "float32", 2]] * 2, params=[["ptr", 1], ["stride", 1, 0, "i32"]]))
    other = FakeArray(8192, (6, 8), (64, 4), stream=7)
    assert launcher((1, 1, 1), None, (other, FakeArray(64, (6, 8)))) and driver.launches[-1].stream == 7
    assert driver.launches[-1].params == [struct.pack("<Q", 64), struct.pack("<i", 8)]
    assert waits == [(7, 0, 0)]
    assert launcher((1, 1, 1), None, (tensor(torch), other)) and driver.launches[-1].stream == 5
    assert driver.launches[-1].params == [struct.pack("<Q", 8192), struct.pack("<i", 16)] and waits[1:] == [(5, 7, 0)]


def test_arrays_of_this_package_are_launched_on_the_default_stream_or_ordered_after_it(torch, monkeypatch):
    from tilejit.runtime import driver as real
    waits = []
    monkeypatch.setattr(real, "wait_stream", lambda *args: waits.append(args))
    driver = FakeDriver()
    launcher = driver.launcher(make_recipe(arguments=[["array", "float32", 2]] * 2, params=[["ptr", 0], ["ptr", 1], ["stride", 0, 0, "i32"]],
                                           guards=[[["stride_is", 1, 1, 1], True]]))
    own = [DeviceArray(4096 * (i + 1), (6, 8), (16, 1), np.dtype(np.float32), 0, None) for i in range(2)]
    assert launcher((1, 1, 1), None, own)
    assert driver.launches[-1].stream == 0 and waits == []
    assert driver.launches[-1].params == [struct.pack("<Q", 4096), struct.pack("<Q", 8192), struct.pack("<i", 16)]
    torch.stream = 5
    assert launcher((1, 1, 1), None, (own[0], tensor(torch)))
    assert driver.launches[-1].stream == 5 and waits == [(5, 0, 0)]
    assert not launcher((1, 1, 1), None, (own[0], own[1].T))
    wrong = DeviceArray(4096, (6, 8), (16, 1), np.dtype(np.int32), 0, None), DeviceArray(4096, (6, 8), (16, 1), np.dtype(np.float32), 1, None)
    assert not any(launcher((1, 1, 1), None, (own[0], other)) for other in wrong)


def test_torch_parameters_are_accepted_as_tensors(torch, launch):
    driver, make = launch
    assert make(make_recipe())((1, 1, 1), None, (torch.nn.Parameter(64, (6, 8), (8, 1), torch.float32), 1, 1.0))


def test_launching_works_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    driver = FakeDriver()
    launcher = driver.launcher(make_recipe())
    assert launcher((1, 1, 1), None, (FakeArray(4096, (6, 8)), 1, 1.0)) and driver.launches[0].stream == 0
    assert not launcher.prepare()
    scalars = driver.launcher(make_recipe(arguments=[["scalar", "int32"]], params=[["scalar", 0, "int32"]]))
    assert scalars.prepare() and scalars((1, 1, 1), None, (3,)) and driver.launches[-1].params == [struct.pack("<i", 3)]


def test_many_threads_launch_at_once(torch, launch):
    driver, make = launch
    launcher = make(make_recipe())

    def work(number):
        for _ in range(200):
            assert launcher((1, 1, 1), number, (tensor(torch, 16 * number), number, 1.0))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launches) == 1600
    for call in driver.launches:
        assert call.params[0] == struct.pack("<Q", 16 * call.stream) and call.params[3] == struct.pack("<i", call.stream)
