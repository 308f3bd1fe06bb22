"""A fake driver and a fake torch: C functions that record their calls."""

from __future__ import annotations

import ctypes
import math
import struct
import types
from contextlib import nullcontext
from ctypes import CFUNCTYPE, POINTER, PYFUNCTYPE, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field, replace

from tilejit.errors import LaunchError
from tilejit.runtime import dlpack, driver
from tilejit.runtime.arrays import ArrayView, row_major
from tilejit.runtime.driver import EntryPoints
from tilejit.runtime.launcher import Launcher, Link
from tilejit.runtime.recipe import Recipe

KEPT: list = []  # the C functions of all drivers, of which launchers have the addresses only


def address(function) -> int:
    return ctypes.cast(function, c_void_p).value


@dataclass
class Launch:
    """One call of cuLaunchKernelEx."""

    grid: tuple
    block: tuple
    shared: int
    stream: int
    attributes: list
    function: int
    params: list  # each parameter's bytes


@dataclass
class FakeDriver:
    """Recording entry points of the driver. `sizes` are the bytes of each parameter of the kernel under test."""

    sizes: list = field(default_factory=list)
    code: int = 0             # result of the next launches
    encode_code: int = 0      # result of encoding a tensor map
    context: int = 77         # the current context
    launches: list = field(default_factory=list)
    encoded: list = field(default_factory=list)

    def __post_init__(self):
        driver = self

        @CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p)
        def launch(config, function, params, _extra):
            *numbers, stream, attributes, count = struct.unpack("<7I4xQQI4x", ctypes.string_at(config, 56))
            places = (c_uint64 * max(len(driver.sizes), 1)).from_address(params)
            driver.launches.append(Launch(
                tuple(numbers[:3]), tuple(numbers[3:6]), numbers[6], stream,
                [ctypes.string_at(attributes + 72 * i, 72) for i in range(count)], function,
                [ctypes.string_at(place, size) for place, size in zip(places, driver.sizes)]))
            return driver.code if driver.context == 77 else 201

        @CFUNCTYPE(c_int, c_void_p, c_int, c_uint32, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int)
        def encode(into, dtype, rank, base, dims, strides, box, steps, *modes):
            assert into % 64 == 0
            fields = (dtype, rank, base, tuple((c_uint64 * rank).from_address(dims)),
                      tuple((c_uint64 * (rank - 1)).from_address(strides)) if rank > 1 else (),
                      tuple((c_uint32 * rank).from_address(box)), tuple((c_uint32 * rank).from_address(steps)), modes)
            driver.encoded.append(fields)
            ctypes.memset(into, len(driver.encoded), 128)
            return driver.encode_code

        @CFUNCTYPE(c_int, POINTER(c_uint64))
        def get_context(into):
            into[0] = driver.context
            return 0

        @CFUNCTYPE(c_int, c_void_p)
        def set_context(value):
            driver.context = value or 0
            return 0

        KEPT.append((launch, encode, get_context, set_context))
        self.points = EntryPoints(address(launch), address(encode), 0, 0, address(get_context), address(set_context))

    def launcher(self, recipe: dict, device=0, **options) -> Launcher:
        made = Launcher(Recipe.of(recipe), 0x1234, Link(device, 77, self.points, multiprocessors=7), **options)
        self.sizes = [struct.calcsize("<" + param.form) if param.form else 128 for param in made.recipe.params]
        return made


class FakeArray:
    """An array with ``__cuda_array_interface__`` on a fake CUDA device."""

    def __init__(self, pointer, shape, strides=None, typestr="<f4", stream=None, device=0, readonly=False):
        self.device = types.SimpleNamespace(id=device)
        self.shape = tuple(shape)
        self.__cuda_array_interface__ = {"shape": self.shape, "typestr": typestr, "data": (pointer, readonly),
                                         "strides": strides, "version": 3, "stream": stream}


def make_torch():
    """A module with the parts of torch that launching uses; its tensors support the C exchange API."""
    torch = types.ModuleType("torch")

    class Tensor:
        def __init__(self, pointer, shape, strides, dtype, device=0):
            self._pointer, self.shape, self._strides = pointer, tuple(shape), tuple(strides)
            self.dtype, self._device = dtype, device
            self.is_cuda = device >= 0
            self.negated = False
            self._c = (c_int64 * max(len(shape), 1))(*shape), (c_int64 * max(len(shape), 1))(*strides)

        def data_ptr(self):
            return self._pointer

        def stride(self):
            return self._strides

        def numel(self):
            return math.prod(self.shape)

        def get_device(self):
            return self._device

        def is_neg(self):
            return self.negated

    class Parameter(Tensor):
        pass

    class Dtype:
        def __init__(self, name):
            self.name = name

        def __repr__(self):
            return f"torch.{self.name}"

    @PYFUNCTYPE(c_int, ctypes.py_object, POINTER(dlpack.DLTensor))
    def borrow(tensor, into):
        if tensor._pointer is None:
            return -1
        code, bits = dlpack.ELEMENT_TYPES[tensor.dtype.name.removesuffix("_x2")].dlpack
        result = into[0]
        result.data, result.byte_offset, result.ndim = tensor._pointer, 0, len(tensor.shape)
        result.device_type, result.device_id = (2, tensor._device) if tensor._device >= 0 else (1, 0)
        result.code, result.bits, result.lanes = code, bits, 2 if tensor.dtype.name.endswith("_x2") else 1
        result.shape, result.strides = tensor._c
        return 0

    @PYFUNCTYPE(c_int, c_int, c_int32, POINTER(c_void_p))
    def stream_of(_kind, _ordinal, into):
        into[0] = torch.stream
        return 0

    table = (c_uint64 * 7)(1 | 3 << 32, 0, 0, 0, 0, address(borrow), address(stream_of))
    Tensor.__dlpack_c_exchange_api__ = dlpack._api.PyCapsule_New(ctypes.addressof(table), b"dlpack_exchange_api", None)
    torch.keep = table, borrow, stream_of
    torch.stream = 5
    torch.Tensor = Tensor
    torch.nn = types.SimpleNamespace(Parameter=Parameter)
    torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda _device: torch.stream)
    for name in ("float64", "float32", "float16", "bfloat16", "int32", "int64", "bool", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn_x2", "uint8"):
        setattr(torch, name, Dtype(name))
    return torch


# -- a recipe, and a tensor that fits it ---------------------------------------------------------------------------------

MAP = {"argument": 0, "base_offset": 64, "dtype": "float32", "rank": 2, "dims": [["size", 0, 1], ["size", 0, 0]],
       "strides": [["mul", ["stride", 0, 0], 4]], "box": [32, 8], "element_strides": [1, 1], "interleave": 0, "swizzle": 3,
       "l2_promotion": 2, "oob_fill": 1, "origin": "host"}


def make_recipe(**changes):
    return {"name": "k", "threads": 96, "cluster": None, "shared": 1024, "pdl": False,
            "arguments": [["array", "float32", 2], ["scalar", "int32"], ["scalar", "float32"]],
            "params": [["ptr", 0], ["size", 0, 1, "i32"], ["stride", 0, 0, "i64"], ["scalar", 1, "int32"], ["scalar", 2, "float32"]],
            "maps": [], "guards": [], **changes}


def tensor(torch, pointer=4096, shape=(6, 8), strides=(16, 1), dtype="float32", device=0):
    return torch.Tensor(pointer, shape, strides, getattr(torch, dtype), device)


# -- a GPU with a clock ------------------------------------------------------------------------------------------------------

class FakeGpu:
    """A driver whose work takes a stated time: streams, events, graphs, memory. `log` has what ran, as (stream, what), in order."""

    L2 = 1000

    def __init__(self, monkeypatch):
        self.now, self.log, self.live = 0.0, [], []
        self.capturing: int | None = None
        self.captured: list = []
        self.graphs: dict[int, list] = {}
        self.events: dict[int, float] = {}
        self.handles = iter(range(100, 1_000_000))
        monkeypatch.setattr(driver, "available", lambda: True)
        monkeypatch.setattr(driver, "name", lambda device=0: "Fake GPU")
        monkeypatch.setattr(driver, "attribute", lambda name, device=0: {"L2_CACHE_SIZE": self.L2}[name])
        monkeypatch.setattr(driver, "in_context", lambda device=0: nullcontext())
        monkeypatch.setattr(driver, "call", lambda name, *args, doing: getattr(self, name)(*args))

    def work(self, stream: int, what: str, milliseconds: float) -> None:
        """Put work on a stream."""
        if self.capturing is not None and stream == 0:
            raise LaunchError("a launch failed: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT (906)")
        if stream == self.capturing:
            self.captured.append((what, milliseconds))
        else:
            self.now += milliseconds
            self.log.append((stream, what))

    def _made(self, kind: str) -> int:
        self.live.append((kind, handle := next(self.handles)))
        return handle

    def cuStreamCreate(self, flags):
        assert flags == 0, "a blocking stream, on which a launch on the legacy default stream ends a capture"
        return self._made("stream")

    def cuStreamDestroy(self, stream):
        self.live.remove(("stream", stream))

    def cuStreamBeginCapture(self, stream, _mode):
        self.capturing, self.captured = stream, []

    def cuStreamEndCapture(self, _stream):
        self.capturing = None
        graph = self._made("graph")
        self.graphs[graph] = self.captured
        return graph

    def cuGraphGetNodes(self, graph):
        return [], len(self.graphs[graph])

    def cuGraphInstantiate(self, graph, _flags):
        made = self._made("executable")
        self.graphs[made] = self.graphs[graph]
        return made

    def cuGraphDestroy(self, graph):
        self.live.remove(("graph", graph))

    def cuGraphExecDestroy(self, graph):
        self.live.remove(("executable", graph))

    def cuGraphLaunch(self, graph, stream):
        for what, milliseconds in self.graphs[graph]:
            self.work(stream, what, milliseconds)

    def cuEventCreate(self, _flags):
        return self._made("event")

    def cuEventDestroy(self, event):
        self.live.remove(("event", event))

    def cuEventRecord(self, event, stream):
        self.events[event] = self.now
        self.log.append((stream, "event"))

    def cuEventSynchronize(self, event):
        assert event in self.events

    def cuEventElapsedTime(self, start, end):
        return self.events[end] - self.events[start]

    def cuMemAlloc(self, nbytes):
        self.allocated = nbytes
        return self._made("memory")

    def cuMemFree(self, address):
        self.live.remove(("memory", address))

    def cuMemsetD8Async(self, _address, _value, nbytes, stream):
        assert nbytes == self.allocated
        self.work(stream, "flush", 7.0)

    def cuCtxSynchronize(self):
        pass


# -- a GPU on which configurations are tuned ----------------------------------------------------------------------------------

class FakeTuning:
    """A GPU that compiles nothing less, and times configurations by a function: `milliseconds(config number, candidate)`, or an error.
    `timed` are the numbers of warps of the candidates that were timed, in order."""

    def __init__(self, monkeypatch, name="Fake GPU", target="sm_90a"):
        self.timed: list[int] = []
        self.milliseconds = lambda warps: float(warps)
        self.launched: list[tuple] = []
        self.shares: list[tuple] = []
        for function, result in (("available", True), ("name", name), ("target", target), ("synchronize", None), ("version", 13000),
                                 ("active_ctas", 2), ("free_memory", 1 << 40), ("copy_to_host", None)):
            monkeypatch.setattr(driver, function, lambda *args, result=result, **named: result)
        monkeypatch.setattr("tilejit.runtime.launcher.load", lambda recipe, image, device, **options: FakeLauncher(self, recipe))
        monkeypatch.setattr("tilejit.tuning.workers.time_share", self.time_share)

    def time_share(self, candidates, call, device, limit, seconds, tell=lambda number, first: None):
        self.shares.append((device, limit, seconds, call))
        times, failed = {}, {}
        for n, candidate in candidates.items():
            warps = candidate.recipe["threads"] // 32
            self.timed.append(warps)
            try:
                times[n] = self.milliseconds(warps)
            except LaunchError as error:
                failed[n] = error
            tell(n, times.get(n))
        return times, failed

    def array(self, shape, dtype="float32", pointer=1 << 20):
        """An array on the device; nothing reads its data."""
        return FakeDeviceArray(ArrayView(pointer, shape, row_major(shape), dtype, 0))


class FakeDeviceArray:
    def __init__(self, view):
        self.view, self.shape, self.strides, self.dtype = view, view.shape, view.strides, view.dtype

    def __tilejit_view__(self):
        return replace(self.view, owner=self)


class FakeLauncher:
    function = 1

    def __init__(self, gpu, recipe):
        self.gpu, self.recipe = gpu, recipe

    def __call__(self, grid, stream, args):
        self.gpu.launched.append((self.recipe["threads"] // 32, grid))
        return True
