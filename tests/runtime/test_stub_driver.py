"""The driver by cuda.bindings, with a libcuda that needs no GPU: `stub_driver.c`, and `stub_calls.py` runs on it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tilejit as tile

from tests.runtime import stub_calls

HERE = Path(__file__).parent


def test_the_kernels_of_the_calls_compile():
    for kernel, arrays in ((stub_calls.double, 2), (stub_calls.count_up, 1)):
        made = kernel.compile(*(tile.ArraySpec((64,), "float32"),) * arrays, BLOCK=32, target="sm_90a")
        assert "st.global" in made.ptx and made.cubin


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    """The folder of the stub."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("stub")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", HERE / "stub_driver.c", "-o", folder / "libcuda.so.1",
                    "-ldl"], check=True)
    return folder


def printed(stub, what: str, **environment) -> list[str]:
    done = subprocess.run([sys.executable, HERE / "stub_calls.py", what], capture_output=True, text=True, timeout=120,
                          cwd=HERE.parent.parent,
                          env={**os.environ, "PYTHONPATH": str(HERE.parent.parent), "PYTHONUNBUFFERED": "1",
                               "LD_LIBRARY_PATH": str(stub), **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_devices_have_their_names_numbers_and_contexts(stub):
    assert printed(stub, "devices") == ["13000 2 stub 1 sm_90a 132 232448 0x7700000000000078"]


def test_memory_is_allocated_filled_and_copied(stub):
    assert printed(stub, "memory") == []


def test_modules_functions_and_occupancy(stub):
    assert printed(stub, "modules") == ["load cubin", "clusters 2 1 3, 128, 7: 1 4 2 1 3",
                                        "0x4000000000000001 24 (0, 0, 0) 133 3", "attribute 8 100000", "attribute 14 1"]


def test_streams_events_and_graphs(stub):
    assert printed(stub, "streams") == [
        "wait for event", "0", "42 True", "destroy graph", "launch graph", "destroy executable graph", "destroy graph",
        "not captured", "synchronize 5000000000000001", "destroy stream 5000000000000001"]


def test_errors_have_the_action_and_the_driver_s_name(stub):
    assert printed(stub, "errors", LACKS="cuMemsetD8Async") == [
        "allocating 2199023255552 bytes on device 0 failed: CUDA_ERROR_OUT_OF_MEMORY (2)",
        "load text", "loading the cubin for device 0 (sm_90a) failed: CUDA_ERROR_INVALID_PTX (218)",
        "the driver has no cuMemsetD8Async: it is too old for this; install a newer one"]


def test_kernels_are_launched_by_the_entry_points_that_cuda_bindings_gives(stub, tmp_path):
    """On the default stream, on one by its protocol, and in a thread without a context."""
    function = "4000000000000001"
    assert printed(stub, "launches", TILEJIT_CACHE_DIR=str(tmp_path)) == [
        "synchronize 1", "load cubin", f"launch 2 1 1, 128, 0, {function}",
        f"launch 2 1 1, 128, 123456789abc, {function}", f"launch 2 1 1, 128, 7, {function}", "synchronize"]


def test_streams_buffers_and_devices_of_cuda_core_are_arguments(stub, tmp_path):
    pytest.importorskip("cuda.core")
    lines = printed(stub, "core", TILEJIT_CACHE_DIR=str(tmp_path))
    assert [line for line in lines if line.startswith("launch")] == [
        "launch 2 1 1, 128, 9, 4000000000000001", "launch 8 1 1, 128, 9, 4000000000000001"]


def test_without_the_package_the_error_says_what_to_install(stub):
    code = ("import sys; sys.modules['cuda.bindings'] = None\n"
            "from tilejit.runtime import driver\n"
            "print(driver.available())\n"
            "try: driver.version()\n"
            "except Exception as error: print(type(error).__name__, error)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "LD_LIBRARY_PATH": str(stub)})
    assert done.stdout.startswith("False\nLaunchError the CUDA driver is reached through cuda.bindings: "
                                  "pip install cuda-bindings"), done.stderr
