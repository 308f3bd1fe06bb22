"""Products on a second GPU: its own modules, tensor maps, temporary memory and flags, while another device is current."""

import pytest

from tests.gpu import in_child, needs_gpu, needs_module

pytestmark = [needs_module("torch"), pytest.mark.unsanitized]


def cases():
    """Extents and configurations: TMA operands, a shared last wave, split k in clusters, split k through memory, swapped operands,
    pairs, and by the model's choice a product whose rows are copied first."""
    from dataclasses import replace

    from tilejit.kernels.matmul.choice import Config
    return (((300, 200, 520), Config.of(128, 128)), ((1600, 2600, 512), replace(Config.of(128, 256), stream=True)),
            ((256, 1024, 8192), Config.of(64, 128, splits=4)), ((512, 512, 16384), in_memory()), ((3, 4096, 4096), Config.of(64, 8, swapped=True)),
            ((300, 200, 520), replace(Config.of(64, 64), pair=True)), ((130, 70, 33), None))


def in_memory():
    """Partial sums and flags of CTAs that share k are in global memory."""
    from tilejit.kernels.matmul.choice import Config
    return Config.of(64, 128, splits=5, clustered=False)


def operands(m, n, k, device):
    import torch
    torch.manual_seed(m + n + k)
    return [torch.randn(shape).to(torch.bfloat16).to(f"cuda:{device}") for shape in ((m, k), (k, n))]


def close(got, exact):
    """Assert closeness: the rounding of each element, plus those of float32 additions and of `tanh.approx` next to large terms."""
    assert ((got.double() - exact).abs() <= exact.abs() * 2.0 ** -7 + exact.abs().max() * 2.0 ** -14).all()


@needs_gpu("sm_90a", count=2)
@in_child(timeout=300)
@pytest.mark.parametrize("current", [0, 1])
def test_products_run_on_the_device_of_their_operands_with_the_same_bits(current):
    import torch
    from tilejit import kernels
    torch.cuda.set_device(current)
    for extents, config in cases():
        made = []
        for device in (1, 0):
            a, b = operands(*extents, device)
            out = kernels.matmul(a, b, config=config)
            assert out.device == a.device and torch.cuda.current_device() == current
            for _ in range(150):    # more launches than are needed to switch to the native launcher
                again = kernels.matmul(a, b, config=config)
            assert torch.equal(again, out)
            made.append(out.cpu())
        assert torch.equal(*made), (extents, str(config))
        close(out, a.double() @ b.double())


@needs_gpu("sm_90a", count=2)
@in_child(timeout=300)
def test_grouped_products_epilogues_graphs_and_tuned_products_run_on_a_second_device():
    import torch
    from tilejit import kernels

    from tests.mma.products import bias_gelu_added
    pairs = [operands(m, 256, 384, 1) for m in (5, 64, 700)]
    for _ in range(3):
        for (a, b), out in zip(pairs, kernels.grouped_matmul(*zip(*pairs))):
            close(out, a.double() @ b.double())
    a, b = operands(512, 512, 16384, 1)
    out, exact = torch.empty(512, 512, device=a.device, dtype=a.dtype), a.double() @ b.double()
    bias, residual = torch.zeros(512, device=a.device, dtype=a.dtype), torch.ones_like(out)
    finished = kernels.matmul(a, b, epilogue=bias_gelu_added, arguments=(bias,), tiles=(residual,))
    close(finished, torch.nn.functional.gelu(exact, approximate="tanh") + 1)
    kernels.matmul(a, b, out, config=in_memory())
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(device=1)
    torch.cuda.synchronize(1)
    with torch.cuda.device(1), torch.cuda.graph(graph, stream=side):
        kernels.matmul(a, b, out, config=in_memory())
    for _ in range(3):
        out.zero_()
        graph.replay()
        close(out, exact)
    config = kernels.tune(a, b, most=2)
    close(kernels.matmul(a, b, config=config), exact)
    assert torch.cuda.current_device() == 0


@needs_gpu("sm_90a", count=2)
@needs_module("cupy")
@in_child(timeout=240)
def test_allocated_results_are_on_the_device_of_their_operands():
    import cupy
    import numpy as np
    import tilejit as tile
    from tilejit import kernels
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((100, 33), (33, 72)))
    with cupy.cuda.Device(1):
        x, y = cupy.asarray(a), cupy.asarray(b)
    out = kernels.matmul(x, y)      # rows that are copied first: the copies too
    assert out.device.id == 1 and cupy.cuda.Device().id == 0
    exact = a.astype(np.float64) @ b
    assert np.abs(cupy.asnumpy(out) - exact).max() < 0.02
    made = kernels.matmul(tile.to_device(a, 1), tile.to_device(b, 1))
    assert made.device == 1 and np.array_equal(made.numpy(), cupy.asnumpy(out))
