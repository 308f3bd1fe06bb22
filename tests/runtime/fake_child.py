"""A child that times candidates on a fake GPU: what a candidate does depends on its number of warps, how long it takes on its arrays."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from types import SimpleNamespace

from tilejit.errors import LaunchError
from tilejit.runtime import driver, launcher
from tilejit.runtime.writer import view_of
from tilejit.tuning import measuring

from tests.runtime.fakes import FakeGpu

HANGS, FAULTS, CRASHES, REFUSED, HANGS_LATER = 2, 3, 5, 6, 7  # warps; the time of others is their number times the first array's first element
PROGRAM = "from tests.runtime.fake_child import main; main"


class FakeMemory(FakeGpu):
    """A fake GPU whose memory is the host's."""

    lost = False

    def cuStreamCreate(self, _flags):
        return next(self.handles)

    def cuStreamDestroy(self, stream):
        pass

    def cuMemAlloc(self, nbytes):
        self.live.append(ctypes.create_string_buffer(nbytes))
        return ctypes.addressof(self.live[-1])

    def cuMemcpyHtoD(self, to, source, nbytes):
        ctypes.memmove(to, source, nbytes)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuMemcpyDtoDAsync(self, to, source, nbytes, _stream):
        ctypes.memmove(to, source, nbytes)

    def cuMemFree(self, address):
        self.live = [made for made in self.live if isinstance(made, tuple) or ctypes.addressof(made) != address]

    def cuCtxSynchronize(self):
        if self.lost:
            raise LaunchError("a kernel failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)")

    def cuMemGetInfo(self):
        return 1 << 40, 1 << 40


def fake_launcher(gpu, recipe):
    warps, launches = recipe["threads"] // 32, []

    def launch(grid, stream, args):
        launches.append(grid)
        if warps == HANGS or warps == HANGS_LATER and len(launches) > 3:
            time.sleep(1000)
        if warps == CRASHES:
            os.kill(os.getpid(), signal.SIGSEGV)
        if warps == REFUSED:
            raise LaunchError(f"the launch failed: CUDA_ERROR_INVALID_VALUE (1); grid {grid}")
        if warps == FAULTS:
            gpu.lost = True
            gpu.cuCtxSynchronize()
        first = view_of(args[0])
        assert first.pointer % 16 == 8, "as aligned as the array of the call"
        gpu.work(stream, str(warps), (1 if warps == HANGS_LATER else warps) * ctypes.c_float.from_address(first.pointer + 4 * first.strides[0]).value)
        return True
    return launch


def main(channel, file, device):
    gpu = FakeMemory(SimpleNamespace(setattr=setattr))
    driver.context = lambda device: 1
    launcher.load = lambda recipe, image, device, **options: fake_launcher(gpu, recipe)
    if os.environ.get("FAKE_CHILD_STARTS") == "no":
        driver.context = refuse
    measuring.main(channel, file, device)


def refuse(device):
    raise LaunchError("the context of device 0 failed: CUDA_ERROR_OUT_OF_MEMORY (2)")
