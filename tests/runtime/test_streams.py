"""The stream of a launch."""

import sys
from types import SimpleNamespace

import pytest
from tilejit.errors import LaunchError
from tilejit.runtime.arrays import describe
from tilejit.runtime.streams import choose, current_stream, stream_handle

from tests.runtime.fakes import FakeArray, make_torch


def test_the_stream_of_the_array_interface_is_used():
    assert current_stream(describe(FakeArray(0, (1,), stream=9))) == 9
    assert current_stream(describe(FakeArray(0, (1,)))) == 0


def test_torch_s_current_stream_is_used(monkeypatch):
    torch = make_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    tensor = describe(torch.Tensor(4096, (1,), (1,), torch.float32))
    assert current_stream(tensor) == 5
    torch.stream = 11
    assert current_stream(tensor) == 11


def test_the_first_non_default_stream_is_used_and_waits_for_the_others():
    assert choose([0, 7, 1, 9, 7]) == (7, (0, 9))
    assert choose([]) == (0, ())
    assert choose([1, 0]) == (0, ())


def test_stream_objects_of_other_libraries_are_accepted():
    assert stream_handle(None) == 0 and stream_handle(12) == 12
    assert stream_handle(SimpleNamespace(cuda_stream=4)) == 4                       # torch
    assert stream_handle(SimpleNamespace(ptr=5)) == 5                               # CuPy
    assert stream_handle(SimpleNamespace(handle=SimpleNamespace(value=6))) == 6     # numba
    assert stream_handle(SimpleNamespace(__cuda_stream__=lambda: (0, 7))) == 7      # cuda.core
    with pytest.raises(LaunchError, match="not a CUDA stream"):
        stream_handle("fast")
