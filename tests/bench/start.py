"""Time from process start to the first result of a cached vector add on the GPU, without torch, compared with a bare ctypes program.

    python tests/bench/start.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

OURS = """
import numpy as np
import tilejit as tile
from tilejit.demo import vector_add
x = tile.to_device(np.arange(4096, dtype="float32"))
out = tile.empty((4096,), "float32")
vector_add[(4,)](x, x, out, BLOCK=1024)
assert out.numpy()[7] == 14
"""

BARE = """
import ctypes
cu = ctypes.CDLL("libcuda.so.1")
context, device, memory = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
assert cu.cuInit(0) == 0 and cu.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and cu.cuCtxSetCurrent(context) == 0
assert cu.cuMemAlloc_v2(ctypes.byref(memory), 16384) == 0
host = (ctypes.c_float * 4096)()
assert cu.cuMemcpyHtoD_v2(memory, host, 16384) == 0 and cu.cuMemcpyDtoH_v2(host, memory, 16384) == 0
"""

IMPORTS = {"numpy": "import numpy", "tilejit": "import numpy, tilejit"}


def seconds(code: str, env: dict, runs: int = 9) -> float:
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=env)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TILEJIT_CACHE_DIR": folder}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode exists, as in an installed package
        numpy, ours = (seconds(code, env) for code in IMPORTS.values())
        print(f"import tilejit: {ours - numpy:.3f} s over NumPy's {numpy:.3f} s (process included)")
        print(f"process start to the first result, cached: tilejit {seconds(OURS, env):.3f} s, bare ctypes {seconds(BARE, env):.3f} s")


if __name__ == "__main__":
    main()
