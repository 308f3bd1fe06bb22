"""The matrix product on a GPU: against float64, the same bits each time, through every kernel; many launches of changing shape."""

import itertools
import math

import pytest

from tests.gpu import in_child, needs_gpu, needs_module, some

pytestmark = needs_module("torch")


def checked(m, n, k, dtype="bfloat16", a_columns=False, b_columns=False, pad=0, **options):
    """One product against float64, launched twice."""
    import torch
    from tilejit import kernels
    torch.manual_seed(m * 31 + n * 7 + k)

    def drawn(rows, columns, by_column):
        shape = (columns, rows + pad) if by_column else (rows, columns + pad)
        if dtype in ("int8", "uint8"):
            x = torch.randint(-128 if dtype == "int8" else 0, 128, shape, device="cuda").to(getattr(torch, dtype))
        else:
            x = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
        return (x[:, :rows].t() if by_column else x[:, :columns])

    a, b = drawn(m, k, a_columns), drawn(k, n, b_columns)
    precision = "tf32" if dtype == "float32" else None
    out = kernels.matmul(a, b, precision=precision, **options)
    again = kernels.matmul(a, b, torch.empty_like(out).fill_(1), precision=precision, **options)
    assert torch.equal(out.view(torch.uint8), again.view(torch.uint8)), "other bits the second time"
    exact = a.double() @ b.double()
    if out.dtype == torch.int32:
        assert torch.equal(out.double(), exact)
        return
    places = {"bfloat16": 8, "float16": 11, "float32": 10}[str(out.dtype).removeprefix("torch.")]
    bound = exact.abs() * 2.0 ** -places + (a.double().abs() @ b.double().abs()) * (k + 2) * 2.0 ** -23 + 1e-6
    if dtype == "float32":      # what enters loses 13 bits of each operand
        bound = bound + (a.double().abs() @ b.double().abs()) * 2.0 ** -9
    if dtype.startswith("float8"):  # their sums keep 13 bits below the largest term
        bound = bound + (a.double().abs() @ b.double().abs()) * 2.0 ** -12
    worst = ((out.double() - exact).abs() / bound).max().item()
    assert worst <= 1, (m, n, k, dtype, worst)


@needs_gpu("sm_90a")
@in_child(timeout=200)
def test_products_of_many_extents_and_orders():
    """Chosen configurations, ragged extents, both majors of both operands, rows that TMA cannot take."""
    extents = ((1, 1, 1), (1, 4096, 4096), (16, 8192, 1024), (64, 4096, 4096), (130, 72, 200), (512, 512, 512), (1000, 1000, 1000),
               (257, 4099, 129), (2048, 2048, 2048), (64, 64, 65536), (4097, 4095, 260))
    for (m, n, k), a_columns, b_columns in some(itertools.product(extents, (False, True), (False, True)), least=6):
        checked(m, n, k, a_columns=a_columns, b_columns=b_columns)
    checked(300, 200, 100, pad=3)


@needs_gpu("sm_90a")
@in_child(timeout=200)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_products_of_every_dtype(dtype):
    extents = ((1, 8, 4), (100, 200, 300), (512, 512, 512), (64, 2048, 4096), (1024, 768, 2048))
    for (m, n, k), b_columns in some(itertools.product(extents, (False, True)), least=3):
        checked(m, n, k, dtype, b_columns=b_columns)


@needs_gpu("sm_90a")
@in_child(timeout=200)
def test_every_tile_and_split():
    """Each tile of the choice, and every split that it can take, swapped or not."""
    from tilejit.kernels.plan import CLUSTERS, TILES, Config
    for (bm, bn), splits in some(itertools.product(TILES, CLUSTERS), least=18):
        config = Config.of(bm, bn, splits=splits)
        if bn // splits >= 8 and config.stages >= 2:
            checked(bm + 24, 2 * bn + 8, 1100, config=config)
            checked(bn + 8, 2 * bm + 24, 1100, config=Config.of(bm, bn, splits=splits, swapped=True))


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_batches_epilogues_and_scales():
    import torch
    import tilejit as tile
    from tilejit import kernels
    from tests.mma.test_matmul import bias_gelu_residual
    torch.manual_seed(0)
    a, b = (torch.randn(s, device="cuda").to(torch.bfloat16) for s in ((3, 2, 200, 320), (3, 2, 320, 264)))
    torch.testing.assert_close(kernels.matmul(a, b), a @ b, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(kernels.matmul(a, b[0, 0]), a @ b[0, 0], rtol=1e-2, atol=1e-2)
    x, y = a[0, 0].contiguous(), b[0, 0].contiguous()
    bias, residual = torch.randn(264, device="cuda"), torch.randn(200, 264, device="cuda").to(torch.bfloat16)
    want = torch.nn.functional.gelu(x.float() @ y.float() + bias) + residual
    got = kernels.matmul(x, y, torch.empty(200, 264, device="cuda"), bias_gelu_residual, (bias, residual))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    scale = torch.full((1,), 0.25, device="cuda")
    torch.testing.assert_close(kernels.matmul(x, y, scale_a=scale, scale_b=2.0), (x.float() @ y.float() * 0.5).bfloat16(), rtol=1e-2, atol=1e-2)
    assert isinstance(bias_gelu_residual, tile.Kernel)


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_ten_thousand_launches_of_changing_extents():
    """No hang, no wrong element: each result's checksum, taken on the GPU, is that of the exact product."""
    import numpy as np
    import torch
    from tilejit import kernels
    rng = np.random.default_rng(0)
    a = torch.randint(-2, 3, (1024, 1024), device="cuda").to(torch.bfloat16)
    b = torch.randint(-2, 3, (1024, 1024), device="cuda").to(torch.bfloat16)
    out = torch.empty((1024, 1024), device="cuda", dtype=torch.float32)
    wrong = torch.zeros((), device="cuda")
    extents = [tuple(int(8 * math.ceil(x)) for x in rng.uniform(0, 128, 3)) for _ in range(40)]
    exact = {e: a[:e[0], :e[2]].float() @ b[:e[2], :e[1]].float() for e in extents}
    for i in some(range(10_000)):
        m, n, k = e = extents[rng.integers(len(extents))]
        got = kernels.matmul(a[:m, :k], b[:k, :n], out[:m, :n])
        if i % 4 == 0:
            wrong += (got != exact[e]).sum()
            got.fill_(float("nan"))
    assert wrong.item() == 0
