"""Products captured by CUDA graphs, on arrays of a library whose allocator does not know about captures."""

import pytest

from tests.gpu import in_child, needs_gpu, needs_module

pytestmark = needs_module("cupy")


@needs_gpu("sm_90a")
@in_child(timeout=100)
@pytest.mark.parametrize("padded", [False, True])
def test_temporary_memory_of_a_captured_product_is_not_given_to_anyone_else(padded):
    """Partial sums exchanged between CTAs, and copies of operands whose rows TMA cannot read."""
    import cupy
    from tilejit import kernels
    from tilejit.kernels.matmul.config import Config
    m, n, k = 2300, 2312, 2048
    draw = lambda rows, columns: cupy.random.standard_normal((rows, columns + padded), dtype=cupy.float32).astype(cupy.float16)[:, :columns]
    a, b, config = draw(m, k), draw(k, n), None if padded else Config.of(128, 256, stages=3)
    if config is not None:
        from dataclasses import replace
        config = replace(config, stream=True)
    out, stream = cupy.empty((m, n), cupy.float16), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        kernels.matmul(a, b, out, config=config)  # compiled, with its memory in the stream's pool: during a capture, the driver cannot allocate
        want = out.copy()
        stream.begin_capture()
        kernels.matmul(a, b, out, config=config)
        graph = stream.end_capture()
        sizes = (132 * 2 * 64 * 256 * 4, 1024 * 3 * 8, (m * (k + 64)) * 2, (n + 64) * k * 2, m * k * 2, n * k * 2)
        others = [cupy.full(size, 7, cupy.uint8) for size in sizes for _ in range(3)]
        for _ in range(3):
            out.fill(0)
            graph.launch(stream)
            assert (out == want).all() and all((x == 7).all() for x in others)
