"""The host's cost of a launch. The measurements are printed (pytest -s)."""

import pytest

from tests.gpu import needs_gpu, needs_module, run_child


def measure():
    """Print microseconds per launch of an empty kernel with four tensors and three ints, in several ways."""
    import ctypes
    import gc
    import time

    import torch
    from tilejit.runtime import driver
    from tilejit.runtime.device_array import to_device
    from tilejit.runtime.launcher import load
    from tilejit.toolchain import llvm

    from tests.runtime.device_kernels import NOTHING, NOTHING_RECIPE, TILE, TILE_RECIPE, cubin

    target = driver.target()
    launcher = load(NOTHING_RECIPE, cubin(NOTHING, target))
    tensors = [torch.zeros(64, 64, device="cuda") for _ in range(4)]
    arrays = [to_device(tensor.cpu()) for tensor in tensors]
    grid, args, others = (1, 1, 1), (*tensors, 1, 2, 3), (*arrays, 1, 2, 3)

    def timed(call, batch=200, rounds=60):
        found = []
        gc.disable()
        for _ in range(rounds):
            start = time.perf_counter_ns()
            for _ in range(batch):
                call()
            found.append((time.perf_counter_ns() - start) / batch / 1000)
            driver.synchronize()
        gc.enable()
        return sorted(found)[rounds // 2]

    # The lower bound: cuLaunchKernelEx in a loop of machine code, `batch` times per call from Python.
    loop = llvm.compile_native("""
define i32 @loop(ptr %function, ptr %config, ptr %kernel, ptr %params, i32 %count) {
entry:
  br label %next
next:
  %i = phi i32 [ 0, %entry ], [ %more, %next ]
  %code = call i32 %function(ptr %config, ptr %kernel, ptr %params, ptr null)
  %more = add i32 %i, 1
  %again = icmp slt i32 %more, %count
  br i1 %again, label %next, label %done
done:
  ret i32 %code
}""", "loop")
    run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4, ctypes.c_int)(loop)
    from tilejit.runtime.recipe import CONFIG

    config = ctypes.create_string_buffer(CONFIG.pack(1, 1, 1, 32, 1, 1, 0, 0, 0, 0), CONFIG.size)
    value = ctypes.c_uint64(0)
    params = (ctypes.c_void_p * 7)(*[ctypes.addressof(value)] * 7)
    floor = timed(lambda: run(driver.entry_points().launch, ctypes.addressof(config), launcher.function, ctypes.addressof(params), 100),
                  batch=2) / 100

    figures = {"C call alone": floor}
    figures["Python function, torch"] = timed(lambda: launcher._python(grid, None, args))
    figures["Python function, device arrays"] = timed(lambda: launcher._python(grid, None, others))
    start = time.perf_counter()
    made = launcher.prepare()
    figures["making the native function (once)"] = 1e6 * (time.perf_counter() - start)
    if made:
        figures["native function, torch"] = timed(lambda: launcher._native(grid, None, args))
    figures["launcher(...), torch"] = timed(lambda: launcher(grid, None, args))
    if target != "sm_80":
        tile = load(TILE_RECIPE, cubin(TILE, target))
        pair = tensors[0], tensors[1].view(-1)[:256]
        figures["Python function, 1 tensor map"] = timed(lambda: tile._python(grid, None, pair))
        if tile.prepare():
            figures["native function, 1 tensor map"] = timed(lambda: tile._native(grid, None, pair))
    for name, figure in figures.items():
        print(f"{name:40s} {figure:9.3f} us")
    assert figures["Python function, torch"] < figures["C call alone"] + 8
    if made:
        assert figures["launcher(...), torch"] < figures["C call alone"] + 2


@pytest.mark.unperturbed
@pytest.mark.unsanitized
@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@needs_module("torch")
def test_a_launch_costs_little_more_than_the_c_call():
    print("\n" + run_child(measure, timeout=180))
