"""The host's time for a warm launch with 4 tensors and 3 ints, compared with the bare C call and with Triton, and for a call of `matmul`,
compared with torch.mm, on the GPU.

    python tests/bench/launch.py
"""

from __future__ import annotations

import ctypes
import statistics
import time

import torch
from launch_kernels import tiny
from tilejit.kernels import matmul


def microseconds(call, batch: int = 200, batches: int = 60) -> float:
    """The host's median time per call; the device is synchronised between batches."""
    for _ in range(100):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(batch):
            call()
        times.append((time.perf_counter() - start) / batch * 1e6)
        torch.cuda.synchronize()
    return statistics.median(times)


def bare_call():
    """cuLaunchKernel through ctypes with everything prepared: the C call, plus some tenths of a microsecond for ctypes."""
    driver = ctypes.CDLL("libcuda.so.1")
    (launcher,) = next(iter(tiny.warm.launchers.values()))[:1]
    values = (ctypes.c_uint64 * 16)()
    params = (ctypes.c_void_p * 16)(*[ctypes.addressof(values) + 8 * n for n in range(16)])
    a = torch.zeros(64, device="cuda")
    for n in range(16):
        values[n] = a.data_ptr() if launcher.recipe.params[min(n, len(launcher.recipe.params) - 1)].form == "Q" else 1
    launch = driver.cuLaunchKernel
    launch.argtypes = [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p] * 3
    function, shared = launcher.function, launcher.recipe.shared
    return lambda keep=(values, params, a): launch(function, 1, 1, 1, 128, 1, 1, shared, None, params, None)


def main() -> None:
    tensors = [torch.randn(64, device="cuda") for _ in range(4)]
    launch = tiny[(1,)]
    ours = microseconds(lambda: launch(*tensors, 1, 2, 3))
    with_grid = microseconds(lambda: tiny[(1,)](*tensors, 1, 2, 3))
    print(f"tilejit: {ours:.2f} us, with the grid indexed each time {with_grid:.2f} us")
    print(f"cuLaunchKernel through ctypes, prepared: {microseconds(bare_call()):.2f} us")
    a, b, out = (torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    print(f"matmul: {microseconds(lambda: matmul(a, b, out)):.2f} us, torch.mm: {microseconds(lambda: torch.mm(a, b, out=out)):.2f} us")
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return

    @triton.jit
    def theirs(a, b, c, d, i, j, k):
        tl.store(a + i, tl.load(b + j) + tl.load(c + k) + tl.load(d))

    print(f"triton: {microseconds(lambda: theirs[(1,)](*tensors, 1, 2, 3)):.2f} us")


if __name__ == "__main__":
    main()
