"""Arrays of any library, described by pointer, shape, strides, element type and device."""

import ctypes
import re
import subprocess
import sys
import textwrap
import warnings

import ml_dtypes
import numpy as np
import pytest
from tilejit.dtypes import DTYPES, float32
from tilejit.errors import LaunchError
from tilejit.runtime import arrays, dlpack
from tilejit.runtime.arrays import ArrayView, array_keys, describe, row_major
from tilejit.runtime.element_types import ELEMENT_TYPES, numpy_dtype, scalar_bytes
from tilejit.runtime.packed import Packed

from tests.runtime.fakes import FakeArray, make_torch


class Exporter:
    """An object that only supports DLPack, over a NumPy array's memory."""

    def __init__(self, array, dtype=None, versioned=False, device=(1, 0), old=False):
        self.array, self.dtype_name, self.versioned, self.device, self.old = array, dtype or array.dtype.name, versioned, device, old
        self.streams = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None, **options):
        if self.old and options:
            raise TypeError("unexpected keyword max_version")
        self.streams.append(stream)
        strides = [s // self.array.itemsize for s in self.array.strides]
        return dlpack.make_capsule(self.array, self.array.ctypes.data, self.array.shape, strides, self.dtype_name,
                                   self.device, self.versioned)


# -- NumPy -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_every_element_type_has_a_numpy_dtype_that_maps_back_to_it(name):
    array = np.zeros((3, 4), numpy_dtype(name))
    if DTYPES.get(name, float32).packed:  # NumPy has one byte per element; kernels see packed elements
        with pytest.raises(LaunchError, match="pass tile.pack"):
            describe(array)
        array = np.zeros((3, 3), np.uint8)
        view = describe(Packed(array, name))
        assert (view.dtype, view.shape, view.strides, view.pointer) == (name, (3, 3), (3, 1), array.ctypes.data) and view.numpy().dtype == np.uint8
        return
    view = describe(array)
    assert (view.dtype, view.shape, view.strides, view.device) == (name, (3, 4), (4, 1), "host")
    assert view.pointer == array.ctypes.data and view.owner is array and not view.readonly
    assert view.nbytes_per_element == array.itemsize


def test_slices_and_transposes_keep_their_strides():
    array = np.zeros((4, 6, 8), "float16")
    view = describe(array[1:, ::2, ::-1].transpose(2, 0, 1))
    assert view.shape == (8, 3, 3) and view.strides == (-1, 48, 16)
    assert view.pointer == array.ctypes.data + 2 * (48 + 7)


def test_arrays_without_dimensions_or_elements_are_accepted():
    assert describe(np.array(3.0)).shape == ()
    empty = describe(np.zeros((0, 5), "float32"))
    assert empty.shape == (0, 5) and empty.size == 0 and empty.is_contiguous


def test_arrays_of_jax_are_always_read_only():
    kind = type("Array", (FakeArray,), {"__module__": "jaxlib._jax"})
    assert describe(kind(4096, (3,), readonly=False)).readonly


def test_a_read_only_array_is_marked():
    array = np.zeros(3)
    array.flags.writeable = False
    assert describe(array).readonly
    assert describe(np.broadcast_to(np.zeros(3), (4, 3))).strides == (0, 1)


def test_a_stride_that_is_not_a_multiple_of_the_element_size_is_an_error():
    records = np.zeros(4, dtype=[("a", "f4"), ("b", "i1")])
    with pytest.raises(LaunchError, match="stride of axis 0 is 5 bytes"):
        describe(records["a"])
    assert describe(records["a"][:1]).shape == (1,)  # extent 1: the stride is never used


@pytest.mark.parametrize("dtype, words", [("complex64", "complex64"), ("U3", "<U3"), ([("a", "f4")], "a"), ("datetime64[s]", "datetime")])
def test_unsupported_dtypes_are_refused_by_name(dtype, words):
    with pytest.raises(LaunchError, match=words):
        describe(np.zeros(3, dtype))


def test_the_error_for_an_unsupported_dtype_lists_the_supported_ones():
    """Without the padded ones, which exist only in shared memory."""
    with pytest.raises(LaunchError) as refused:
        describe(np.zeros(3, np.complex64))
    listed = re.search("there are ([^;]*)", str(refused.value))[1].split(", ")
    assert "float4_e2m1fn" in listed and listed == [name for name in DTYPES if "_p" not in name]


def test_arrays_of_the_other_byte_order_are_refused_with_a_remedy():
    with pytest.raises(LaunchError, match="astype"):
        describe(np.zeros(3, ">f4"))


class Converted:
    """An object that NumPy converts to an array, to a new one each time if it `copies`."""

    def __init__(self, array, copies):
        self.array, self.copies = array, copies

    def __array__(self, dtype=None, copy=None):
        return self.array.copy() if self.copies else self.array


def test_an_object_that_converts_to_a_new_copy_each_time_cannot_be_written():
    """Nobody would see what a kernel stores in the copy."""
    array = np.zeros(3, np.float32)
    assert describe(Converted(array, True)).readonly and not describe(Converted(array[:0], True)).readonly
    view = describe(Converted(array, False))
    assert not view.readonly and view.pointer == array.ctypes.data


@pytest.mark.parametrize("value", [3, None, "x", [1, 2], object()])
def test_objects_that_are_not_arrays_are_refused(value):
    with pytest.raises(LaunchError, match="not an array"):
        describe(value)


def test_the_numpy_array_of_a_host_view_shares_its_memory():
    array = np.arange(24, dtype="float32").reshape(4, 6)[::-1, ::2]
    view = describe(Exporter(array))
    again = view.numpy()
    assert np.array_equal(again, array) and again.strides == array.strides
    again[0, 0] = 77
    assert array[0, 0] == 77
    assert describe(array).numpy() is array
    assert describe(Exporter(np.zeros((0, 3), "float32"))).numpy().shape == (0, 3)
    assert describe(Exporter(np.array(5.0))).numpy() == 5.0


def test_contiguity_ignores_dimensions_of_extent_one():
    assert ArrayView(0, (1, 4), (99, 1), "float32", 0).is_contiguous
    assert not ArrayView(0, (2, 4), (5, 1), "float32", 0).is_contiguous
    assert row_major((2, 0, 3)) == (3, 3, 1)


# -- __cuda_array_interface__ ----------------------------------------------------------------------------------------

def test_the_cuda_array_interface_is_read():
    view = describe(FakeArray(4096, (3, 4), (32, 8), "<f8", stream=7, device=2, readonly=True))
    assert (view.pointer, view.shape, view.strides, view.dtype) == (4096, (3, 4), (4, 1), "float64")
    assert (view.device, view.stream, view.readonly) == (2, 7, True)


def test_an_interface_without_strides_means_row_major():
    assert describe(FakeArray(0, (2, 3, 4))).strides == (12, 4, 1)
    assert describe(FakeArray(0, ())).shape == ()


def test_a_device_address_that_is_not_a_multiple_of_the_element_size_is_refused():
    """A load there would destroy the process's CUDA context; on the host it is allowed."""
    with pytest.raises(LaunchError, match="0x1002 is no multiple of the 4 bytes"):
        describe(FakeArray(4098, (2,)))
    between = np.zeros(9, np.uint8)[1:].view(np.float32)
    with pytest.raises(LaunchError, match="no multiple of the 4 bytes"):
        describe(Exporter(between, device=(2, 0)))
    assert describe(between).pointer % 4 == 1 and describe(Exporter(between)).device == "host"


def test_stream_0_of_the_interface_is_refused_as_ambiguous():
    with pytest.raises(LaunchError, match="stream 0"):
        describe(FakeArray(0, (2,), stream=0))


def test_types_that_numpy_lacks_are_identified_by_the_dtype_attribute():
    array = FakeArray(0, (2,), typestr="<V2")
    array.dtype = np.dtype(ml_dtypes.bfloat16)
    assert describe(array).dtype == "bfloat16"
    with pytest.raises(LaunchError, match="V2"):
        describe(FakeArray(0, (2,), typestr="<V2"))


def test_masked_and_byte_swapped_arrays_are_refused():
    array = FakeArray(0, (2,))
    array.__cuda_array_interface__["mask"] = object()
    with pytest.raises(LaunchError, match="masked"):
        describe(array)
    with pytest.raises(LaunchError, match="byte order"):
        describe(FakeArray(0, (2,), typestr=">f4"))


def test_if_the_array_interface_raises_dlpack_is_used():
    class Odd(Exporter):
        @property
        def __cuda_array_interface__(self):
            raise TypeError("no typestr for bfloat16")

    assert describe(Odd(np.zeros(3, ml_dtypes.bfloat16))).dtype == "bfloat16"

    class OnlyOdd:
        __cuda_array_interface__ = Odd.__cuda_array_interface__

    with pytest.raises(LaunchError, match="no typestr"):
        describe(OnlyOdd())


# -- DLPack ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "bool", "uint64"])
def test_both_kinds_of_dlpack_capsules_are_read(name, versioned):
    array = np.zeros((4, 6), numpy_dtype(name))[1:, ::2]
    exporter = Exporter(array, versioned=versioned, old=not versioned)
    view = describe(exporter)
    assert (view.dtype, view.shape, view.strides, view.pointer) == (name, (3, 3), (6, 2), array.ctypes.data)
    assert view.device == "host" and view.owner is exporter


def test_a_capsule_is_kept_alive_by_its_view_and_then_released():
    before = len(dlpack._exported)
    view = describe(Exporter(np.zeros(3)))
    assert len(dlpack._exported) == before + 1
    del view
    assert len(dlpack._exported) == before


def test_a_consumed_capsule_is_released_by_its_consumer():
    before = len(dlpack._exported)
    array = np.from_dlpack(Exporter(np.arange(5.0), versioned=True))
    assert array.tolist() == [0, 1, 2, 3, 4] and len(dlpack._exported) == before + 1
    del array
    assert len(dlpack._exported) == before


def test_byte_offsets_and_missing_strides_are_handled():
    array = np.arange(12, dtype="float32")

    class Offset(Exporter):
        def __dlpack__(self, **options):
            capsule = super().__dlpack__()
            tensor, _ = dlpack.read_capsule(capsule)
            tensor.byte_offset = 8
            tensor.strides = ctypes.POINTER(ctypes.c_int64)()
            return capsule

    view = describe(Offset(array[:10].reshape(2, 5)))
    assert view.pointer == array.ctypes.data + 8 and view.strides == (5, 1)


def test_the_read_only_flag_of_a_versioned_capsule_is_read():
    class Frozen(Exporter):
        def __dlpack__(self, **options):
            capsule = super().__dlpack__()
            pointer = dlpack._api.PyCapsule_GetPointer(id(capsule), b"dltensor_versioned")
            dlpack.ManagedVersioned.from_address(pointer).flags = dlpack.READ_ONLY
            return capsule

    view = describe(Frozen(np.zeros(3), versioned=True))
    assert view.readonly and not view.numpy().flags.writeable


def test_dlpack_is_asked_to_synchronise_device_arrays_with_the_default_stream():
    exporter = Exporter(np.zeros(3), device=(2, 1))
    view = describe(exporter)
    assert view.device == 1 and view.stream == arrays.LEGACY_STREAM and exporter.streams == [1]
    assert describe(Exporter(np.zeros(3), device=(13, 0))).device == 0  # managed memory
    assert describe(Exporter(np.zeros(3), device=(3, 0))).device == "host"  # pinned memory


def test_unsupported_devices_and_types_are_named():
    with pytest.raises(LaunchError, match="Metal"):
        describe(Exporter(np.zeros(3), device=(8, 0)))

    class Odd(Exporter):
        def __dlpack__(self, **options):
            capsule = super().__dlpack__()
            dlpack.read_capsule(capsule)[0].code = 5
            return capsule

    with pytest.raises(LaunchError, match="code 5"):
        describe(Odd(np.zeros(3)))


def test_an_exporter_that_fails_is_named():
    class Failing(Exporter):
        def __dlpack__(self, **options):
            raise BufferError("requires grad")

    with pytest.raises(LaunchError, match="requires grad"):
        describe(Failing(np.zeros(3)))


# -- torch and the rest ----------------------------------------------------------------------------------------------

def test_torch_tensors_are_read_without_importing_torch(monkeypatch):
    torch = make_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    view = describe(torch.Tensor(4096, (2, 3), (3, 1), torch.bfloat16, device=1))
    assert (view.pointer, view.shape, view.strides, view.dtype, view.device) == (4096, (2, 3), (3, 1), "bfloat16", 1)


def test_the_key_of_a_tensor_s_launch_plan_is_the_same_before_and_after_its_first_description(torch):
    """So that the second call finds the stored plan."""
    tensor = torch.Tensor(4096, (2, 3), (3, 1), torch.bfloat16, device=1)
    before = array_keys((tensor,))[0]
    describe(tensor)
    assert array_keys((tensor,))[0] == before != array_keys((torch.Tensor(4104, (2, 3), (3, 1), torch.bfloat16, device=1),))[0]


def test_real_torch_tensors_are_read():
    torch = pytest.importorskip("torch")
    base = torch.zeros(4, 6, dtype=torch.bfloat16)
    view = describe(base[1:, ::2].T)
    assert (view.shape, view.strides, view.dtype, view.device) == ((3, 3), (2, 6), "bfloat16", "host")
    assert view.pointer == base.data_ptr() + 12 and view.numpy().dtype == ml_dtypes.bfloat16
    assert describe(torch.nn.Parameter(base)).shape == (4, 6)
    for bad, words in ((torch.zeros(3, device="meta"), "meta"), (torch.zeros(3, dtype=torch.complex64), "complex64"),
                       (torch.zeros(3, 3).to_sparse(), "sparse"), (torch.zeros(3, dtype=torch.complex64).conj().imag, "negated"),
                       (fake(torch), "no memory .FakeTensor.")):
        with pytest.raises(LaunchError, match=words), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch raises for a fake tensor's address
            describe(bad)


def fake(torch):
    """A tensor as torch uses it in place of another while it compiles."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        return torch.zeros(3)


def test_describing_an_array_imports_no_library():
    program = """
        import sys
        import numpy as np
        from tilejit.runtime.arrays import describe
        describe(np.zeros(3))
        print([name for name in ("torch", "cupy", "jax", "numba", "cuda", "llvmlite", "ml_dtypes") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- scalars ---------------------------------------------------------------------------------------------------------

def test_scalars_are_packed_as_bytes_of_their_type():
    assert scalar_bytes(-2, "int32") == b"\xfe\xff\xff\xff"
    assert scalar_bytes(1.0, "float32") == b"\0\0\x80?"
    assert scalar_bytes(1.0, "bfloat16") == b"\x80?"
    assert scalar_bytes(True, "bool") == b"\1"
    assert scalar_bytes(1.0, "float16") == np.float16(1).tobytes()
    with pytest.raises(LaunchError, match="int32"):
        scalar_bytes(2**31, "int32")


def test_only_described_types_are_cached():
    class Remembered(Exporter):
        pass

    describe(Remembered(np.zeros(2)))
    with pytest.raises(LaunchError):
        describe(3)
    assert Remembered in arrays.DESCRIBERS and int not in arrays.DESCRIBERS
