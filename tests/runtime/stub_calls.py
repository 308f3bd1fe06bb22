"""What `test_stub_driver` runs on a libcuda that is `stub_driver.c`: each function of the driver, and a launch."""

import sys
import threading

import numpy as np
import tilejit as tile
from tilejit.errors import LaunchError
from tilejit.runtime import driver


@tile.jit
def double(x, y, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    tile.store(y[i:i + BLOCK], 2 * tile.load(x[i:i + BLOCK]))


def devices():
    print(driver.version(), driver.device_count(), driver.name(1), driver.target(0), driver.multiprocessors(),
          driver.shared_limit(), hex(driver.context(1)))


def memory():
    x, y = np.arange(250, dtype=np.int32), np.zeros(250, np.int32)
    at = driver.allocate(x.nbytes)
    driver.copy_to_device(at, x.ctypes.data, x.nbytes)
    driver.copy_to_host(y.ctypes.data, at, x.nbytes)
    assert (x == y).all() and driver.device_of_pointer(at) == 1 and driver.device_of_pointer(0) == 0
    driver.fill(at, 1, x.nbytes)
    driver.copy_on_device(at + 8, at, 8)
    driver.copy_to_host(y.ctypes.data, at, x.nbytes, stream=5)
    assert (y == 0x01010101).all()
    driver.copy_to_device(at, x.ctypes.data, x.nbytes, stream=5)
    driver.free(at)


def modules():
    module = driver.load_module(b"\x7fELF" + bytes(60))
    function = driver.get_function(module, "k")
    assert driver.global_address(module, "variable") == 0x2000000000000008
    print(hex(function), driver.function_attribute(function, "NUM_REGS"), driver.required_cluster(function),
          driver.active_ctas(function, 128, 5), driver.active_clusters(function, 128, 7, (2, 1, 3)))
    driver.set_max_dynamic_shared(function, 100000)
    driver.allow_large_clusters(function)


def streams():
    stream = driver.create_stream()
    event = driver.Event().record(stream)
    assert event.wait().milliseconds_since(event) == 1.5
    driver.wait_stream(stream, 0)
    print(driver.capture_id(stream))
    driver.WorkGraph(lambda: print(driver.capture_id(stream), driver.GraphLife(stream).has_ended), stream).launch(0)
    try:
        driver.WorkGraph(lambda: 1 / 0, stream)
    except ZeroDivisionError:
        print("not captured")
    driver.synchronize(stream=stream)
    driver.destroy_stream(stream)


def errors():
    for action in (lambda: driver.allocate(1 << 41), lambda: driver.load_module(b"bad" + bytes(60)),
                   lambda: driver.fill(0, 0, 0)):
        try:
            action()
        except LaunchError as error:
            print(error)


def launches():
    x = tile.to_device(np.ones(256, np.float32))
    y = tile.empty((256,), np.float32)
    double[(2,)](x, y, BLOCK=128)
    double[(2,)](x, y, BLOCK=128, stream=Stream())
    thread = threading.Thread(target=lambda: double[(2,)](x, y, BLOCK=128, stream=7))
    thread.start()
    thread.join()
    x.numpy()


@tile.jit
def count_up(data, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    tile.store(data[i:i + BLOCK], tile.load(data[i:i + BLOCK]) + 1)


def core():
    """Objects of cuda.core as arguments: a buffer is an array of bytes."""
    from cuda.core import Buffer, Device, Stream as CoreStream
    x = tile.to_device(np.ones(256, np.float32), device=Device(1))
    assert x.device == 1 and tile.empty(4, device=Device(1)).device == 1
    double[(2,)](x, x, BLOCK=128, device=Device(1), stream=CoreStream.from_handle(9))
    buffer = Buffer.from_handle(x.pointer, 1024)
    count_up[(8,)](buffer, BLOCK=128, stream=CoreStream.from_handle(9))


class Stream:
    """A stream by CUDA's protocol, as those of cuda.core."""

    def __cuda_stream__(self):
        return 0, 0x123456789ABC


if __name__ == "__main__":
    globals()[sys.argv[1]]()
