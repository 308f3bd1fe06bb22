"""The matrix product on a GPU: compared with float64, the same bits each time, every kernel; many launches of changing shapes."""

import itertools
import math

import pytest

from tests.gpu import for_references, in_child, launches, needs_gpu, needs_module, some

pytestmark = needs_module("torch")


def checked(m, n, k, dtype="bfloat16", a_columns=False, b_columns=False, pad=0, **options):
    """One product compared with float64, launched twice."""
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
    x, y, got = (v.to(for_references()).double() for v in (a, b, out))
    exact, terms = x @ y, x.abs() @ y.abs()
    if out.dtype == torch.int32:
        assert torch.equal(got, exact)
        return
    places = {"bfloat16": 8, "float16": 11, "float32": 10}[str(out.dtype).removeprefix("torch.")]
    bound = exact.abs() * 2.0 ** -places + terms * (k + 2) * 2.0 ** -23 + 1e-6
    if dtype == "float32":      # operands lose 13 mantissa bits
        bound = bound + terms * 2.0 ** -9
    if dtype.startswith("float8"):  # accumulation keeps 13 bits below the largest term
        bound = bound + terms * 2.0 ** -12
    worst = ((got - exact).abs() / bound).max().item()
    assert worst <= 1, (m, n, k, dtype, worst)


@needs_gpu("sm_90a")
@in_child(timeout=200)
def test_products_of_many_extents_and_majors_are_right():
    """Chosen configurations, ragged extents, both majors of both operands, rows that TMA cannot read."""
    extents = ((1, 1, 1), (1, 4096, 4096), (16, 8192, 1024), (64, 4096, 4096), (130, 72, 200), (512, 512, 512), (1000, 1000, 1000),
               (257, 4099, 129), (2048, 2048, 2048), (64, 64, 65536), (4097, 4095, 260))
    for (m, n, k), a_columns, b_columns in some(itertools.product(extents, (False, True), (False, True)), least=6):
        checked(m, n, k, a_columns=a_columns, b_columns=b_columns)
    checked(300, 200, 100, pad=3)


@needs_gpu("sm_90a")
@in_child(timeout=200)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_products_of_every_dtype_are_right(dtype):
    extents = ((1, 8, 4), (100, 200, 300), (512, 512, 512), (64, 2048, 4096), (1024, 768, 2048))
    for (m, n, k), b_columns in some(itertools.product(extents, (False, True)), least=3):
        checked(m, n, k, dtype, b_columns=b_columns)


@needs_gpu("sm_90a")
@in_child(timeout=200)
def test_float32_is_multiplied_in_every_layout():
    """Either operand through registers, both copied first, in every kernel: one register set and two, a shared last wave, split k."""
    from dataclasses import replace

    from tilejit.kernels.matmul.choice import Config
    extents = ((1, 8, 4), (100, 200, 300), (64, 64, 20000), (3000, 1000, 64), (2304, 2304, 2048), (1001, 777, 500))
    for (m, n, k), a_columns, b_columns in some(itertools.product(extents, (False, True), (False, True)), least=6):
        checked(m, n, k, "float32", a_columns, b_columns)
    config = lambda *shape, **options: Config.of(*shape, itemsize=4, stored=4, **options)
    shapes = [config(*shape, splits=splits) for shape, splits in (((128, 256), 1), ((64, 64), 1), ((192, 128), 1), ((128, 64), 4))]
    for c in [*shapes, replace(shapes[0], behind=True), replace(shapes[1], behind=False), replace(shapes[0], stream=True), replace(shapes[1], stream=True)]:
        checked(900, 1200, 1100, "float32", True, True, config=c)
        checked(900, 1200, 1100, "float32", config=replace(c, swapped=True))


@needs_gpu("sm_90a")
@in_child(timeout=200)
def test_every_tile_and_split_is_right():
    """Each tile of the choice, with every split that it supports, with and without swapped operands."""
    from tilejit.kernels.matmul.choice import CLUSTERS, TILES, Config
    for (bm, bn), splits in some(itertools.product(TILES, CLUSTERS), least=18):
        config = Config.of(bm, bn, splits=splits)
        if bn % (8 * splits) == 0 and config.stages >= 2:
            checked(bm + 24, 2 * bn + 8, 1100, config=config)
            checked(bn + 8, 2 * bm + 24, 1100, config=Config.of(bm, bn, splits=splits, swapped=True))


@needs_gpu("sm_90a")
@in_child(timeout=200)
def test_any_number_of_ctas_may_share_k():
    """Through memory, alternating with launches of other shapes and on several streams, and in a graph: the same bits each time."""
    import torch
    from tilejit import kernels
    from tilejit.kernels.matmul.choice import Config
    shapes = ((512, 512, 32768), (256, 256, 65536), (128, 3000, 4096), (100, 104, 20000))
    tiles, splits = ((128, 256), (128, 128), (192, 128), (64, 64)), (2, 3, 8, 16, 32, 33)
    chosen = [(shape, c) for shape, tile, count, swapped in itertools.product(shapes, tiles, splits, (False, True))
              if (c := Config.of(*tile, splits=count, swapped=swapped, clustered=False)).tiles(*shape[:2][::-1 if swapped else 1]) * count <= 132]
    for (m, n, k), config in some(chosen, least=12):
        checked(m, n, k, config=config)
    x = {shape: (torch.randn(shape[0], shape[2], device="cuda").bfloat16(), torch.randn(shape[2], shape[1], device="cuda").bfloat16())
         for shape in shapes}
    cases = some(chosen, least=6)[:12]
    first, streams, wrong = [kernels.matmul(*x[shape], config=c) for shape, c in cases], [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for i in launches(400):
        (shape, config), want = cases[i % len(cases)], first[i % len(cases)]
        with torch.cuda.stream(streams[i % 2]):
            out = torch.full_like(want, float("nan"))
            wrong.append((kernels.matmul(*x[shape], out, config=config).view(torch.int16) != want.view(torch.int16)).sum())
    torch.cuda.synchronize()
    assert sum(w.item() for w in wrong) == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = [kernels.matmul(*x[shape], config=config) for shape, config in cases]
    for _ in launches(20):
        for z in made:
            z.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(z, want) for z, want in zip(made, first))


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_batches_epilogues_and_scales_can_be_combined():
    import tilejit as tile
    import torch
    from tilejit import kernels

    from tests.mma.products import bias_gelu_residual
    torch.manual_seed(0)
    a, b = (torch.randn(s, device="cuda").to(torch.bfloat16) for s in ((3, 2, 200, 320), (3, 2, 320, 264)))
    place = for_references()

    def near(got, want, tolerance=1e-2):
        torch.testing.assert_close(got.to(place), want, rtol=tolerance, atol=tolerance)
    p, q = (v.to(place) for v in (a, b))
    near(kernels.matmul(a, b), p @ q)
    near(kernels.matmul(a, b[0, 0]), p @ q[0, 0])
    x, y = a[0, 0].contiguous(), b[0, 0].contiguous()
    bias, residual = torch.randn(264, device="cuda"), torch.randn(200, 264, device="cuda").to(torch.bfloat16)
    sums = p[0, 0].float() @ q[0, 0].float()
    got = kernels.matmul(x, y, torch.empty(200, 264, device="cuda"), bias_gelu_residual, (bias, residual))
    near(got, torch.nn.functional.gelu(sums + bias.to(place)) + residual.to(place), 1e-3)
    scale = torch.full((1,), 0.25, device="cuda")
    near(kernels.matmul(x, y, scale_a=scale, scale_b=2.0), (sums * 0.5).bfloat16())
    assert isinstance(bias_gelu_residual, tile.Kernel)


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_ten_thousand_launches_of_changing_extents_are_right():
    """No hang, no wrong element: each result, of small integers, is compared on the GPU with the exact product. Every second launch
    is the persistent kernel with more tiles than one wave; the others use the chosen kernel."""
    import numpy as np
    import torch
    from tilejit import kernels
    from tilejit.kernels.matmul.choice import Config
    rng = np.random.default_rng(0)
    a, b = (torch.randint(-2, 3, (1024, 1024), device="cuda").to(torch.bfloat16) for _ in range(2))
    out = torch.empty((1024, 1024), device="cuda", dtype=torch.float32)
    wrong = torch.zeros((), device="cuda")
    extents = [tuple(int(8 * math.ceil(x)) for x in rng.uniform(0, 128, 3)) for _ in range(40)]
    x, y = (v.to(for_references()).float() for v in (a, b))
    exact = {e: (x[:e[0], :e[2]] @ y[:e[2], :e[1]]).cuda() for e in extents}
    for i in launches(10_000):
        m, n, k = e = extents[rng.integers(len(extents))]
        got = kernels.matmul(a[:m, :k], b[:k, :n], out[:m, :n], config=Config.of(64, 32, stored=4) if i % 2 else None)
        wrong += (got != exact[e]).sum()
        got.fill_(float("nan"))
    assert wrong.item() == 0


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_two_thousand_launches_of_the_largest_tile_with_deferred_columns_are_right():
    """One or several tiles per CTA, few and many k-steps, with and without a shared last wave; a prefetched residual. Exact, as above."""
    from dataclasses import replace

    import numpy as np
    import torch
    from tilejit import kernels
    from tilejit.kernels.matmul.choice import Problem, choose

    from tests.mma.products import added
    rng = np.random.default_rng(1)
    a, b, beside = (torch.randint(-2, 3, shape, device="cuda").to(torch.bfloat16) for shape in ((2688, 1600), (1600, 2688), (2688, 2688)))
    out = torch.empty((2688, 2688), device="cuda", dtype=torch.bfloat16)
    wrong = torch.zeros((), device="cuda")
    config = choose(Problem(4096, 4096, 4096, epilogue=True, ahead=True, across=(False, True)), 132)
    assert config.late and (config.bm, config.bn) == (128, 256)
    extents = [tuple(int(8 * math.ceil(x)) for x in (*rng.uniform(160, 336, 2), rng.uniform(0, 200))) for _ in range(30)]
    x, y = (v.to(for_references()).float() for v in (a, b))
    exact = {(m, n, k): ((x[:m, :k] @ y[:k, :n]).cuda() + beside[:m, :n]).to(torch.bfloat16) for m, n, k in extents}
    for i in launches(2000):
        m, n, k = e = extents[rng.integers(len(extents))]
        got = kernels.matmul(a[:m, :k], b[:k, :n], out[:m, :n], added, tiles=(beside[:m, :n],), config=replace(config, stream=i % 2 == 1))
        wrong += (got != exact[e]).sum()
        got.fill_(float("nan"))
    assert wrong.item() == 0


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_block_scaled_products_are_right_on_the_gpu():
    """Both kinds of scales for both operands, ragged, with every tile that supports them, compared with float64."""
    import torch
    from tilejit import kernels
    from tilejit.kernels.matmul.choice import TILES, Config
    torch.manual_seed(1)
    up = lambda extent: -(-extent // 128)
    extents = (1, 8, 16), (130, 72, 200), (700, 331, 1100), (64, 2048, 4096), (1024, 776, 2048)
    for (m, n, k), by_row, by_column in some(itertools.product(extents, (True, False), (False, True)), least=6):
        rows, columns = m if by_row else up(m), n if by_column else up(n)
        a, b = torch.randn(m, k).to(torch.float8_e4m3fn), torch.randn(n, k).to(torch.float8_e4m3fn).t()
        sa, sb = torch.rand(rows, up(k)) + 0.5, torch.rand(up(k), columns) + 0.5
        x = a.double() * (sa if rows == m else sa.repeat_interleave(128, 0)[:m]).repeat_interleave(128, 1)[:, :k].double()
        y = b.double() * (sb if columns == n else sb.repeat_interleave(128, 1)[:, :n]).repeat_interleave(128, 0)[:k].double()
        exact, terms = (p.to(for_references()) @ q.to(for_references()) for p, q in ((x, y), (x.abs(), y.abs())))
        bound = exact.abs() * 2.0 ** -8 + terms * 2.0 ** -12 + 1e-6
        tiles = [t for t in TILES if m == 700 and 192 not in t and (t[1] <= 64 or columns != n and t[1] in (128, 256))]
        for config in [None] + some([Config.of(*t, 128, itemsize=1) for t in tiles], least=2):
            got = kernels.matmul(a.cuda(), b.cuda(), scale_a=sa.cuda(), scale_b=sb.cuda(), config=config).to(for_references())
            assert ((got.double() - exact).abs() <= bound).all(), (m, n, k, rows, columns, config)


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_small_terms_are_added_to_a_large_one_in_float32():
    """A large term first, then small ones: each is 20 bits below it, their sum is not. The default, without `fast_accum`, keeps
    them all."""
    import torch
    from tilejit import kernels
    m, n, k = 256, 256, 4096
    a, b = torch.full((m, k), 0.25, device="cuda"), torch.full((n, k), 0.25, device="cuda")
    a[:, 0], b[:, 0] = 256, 256
    a[:, 1:128] = 0
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    exact = 65536 + (k - 128) / 16
    out = torch.empty((m, n), device="cuda")
    assert (kernels.matmul(a, b, out) == exact).all()


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_tiles_for_one_wave_are_right_in_each_order():
    """Ragged in both extents, B of both majors; 9 rows of tiles and more, so that there are several groups."""
    from dataclasses import replace

    from tilejit.kernels.matmul.choice import Config
    from tilejit.kernels.matmul.model import FILLING, ORDERS
    for (bm, bn), order, b_columns in some(itertools.product(FILLING, ORDERS, (False, True)), least=5):
        checked(8 * bm + 9, 7 * bn - 16, 600, b_columns=b_columns, config=replace(Config.of(bm, bn), order=order))


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_tiles_fitted_to_the_matrix_width_and_row_orders_are_right():
    """One, two and more tiles for all rows of A, with swapped operands; ragged ones; B of both majors. Products of small
    integers are exact."""
    import torch
    from tilejit import kernels
    from tilejit.kernels.matmul.choice import TILES, Problem, choose
    met = set()
    for (m, n, k), by_rows in itertools.product(((160, 3072, 500), (200, 4096, 1000), (397, 4090, 600), (600, 2048, 800), (512, 2048, 2048)), (False, True)):
        config = choose(Problem(m, n, 4096, across=(False, by_rows)), 132)
        met |= {config.order[0]} | ({"wide"} if (config.bm, config.bn) not in TILES and config.bn > 128 else set())
        a, b = (torch.randint(-2, 3, shape).bfloat16() for shape in ((m, -(-k // 8) * 8), (k, -(-n // 8) * 8)))
        a, b = a[:, :k], b[:, :n] if by_rows else b[:, :n].t().contiguous().t()
        want = (a.to(for_references()).float() @ b.to(for_references()).float()).to(torch.bfloat16).cpu()
        for _ in range(3):
            got = kernels.matmul(a.cuda(), b.cuda(), torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16), config=config)
            assert torch.equal(got.cpu(), want), (m, n, k, str(config))
    assert {"row", "wide"} <= met


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_epilogue_tiles_are_prefetched():
    """A residual by TMA and by loads of threads, for many tiles per CTA; the last extents have a shared last wave."""
    import torch
    from tilejit import kernels
    from tilejit.kernels.matmul.choice import Problem, choose

    from tests.mma.products import bias_gelu_added
    torch.manual_seed(2)
    extents = (1000, 776, 130), (64, 8192, 64), (4096, 4096, 512), (5000, 5000, 1000), (2300, 2304, 8200)
    assert choose(Problem(*extents[-1], epilogue=True, ahead=True), 132).stream
    for (m, n, k), dtype in some(itertools.product(extents, (torch.bfloat16, torch.float32)), least=4):
        a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
        bias, residual = torch.randn(n), torch.randn(m, n).to(dtype)
        a, b, bias, residual = (x.to(for_references()) for x in (a, b, bias, residual))
        want = torch.nn.functional.gelu(a.float() @ b.float() + bias, approximate="tanh") + residual
        for _ in range(3):
            out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
            got = kernels.matmul(a.cuda(), b.cuda(), out, bias_gelu_added, (bias.cuda(),), tiles=(residual.cuda(),))
            torch.testing.assert_close(got.float().to(for_references()), want.float(), rtol=1e-2, atol=2e-2)


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_products_with_a_shared_last_wave_are_right():
    """Stream-K in launches of changing extents, on several streams and in a graph: products of small integers are exact."""
    from dataclasses import replace

    import numpy as np
    import torch
    from tilejit import kernels
    from tilejit.kernels.matmul.choice import Config
    rng = np.random.default_rng(0)
    configs = [replace(Config.of(*shape, stored=4), stream=True) for shape in ((128, 256), (192, 192), (64, 64))]
    a, b = (torch.randint(-2, 3, (3000, 3000), device="cuda").to(torch.bfloat16) for _ in range(2))
    extents = [tuple(int(8 * math.ceil(x)) for x in rng.uniform(0, 375, 3)) for _ in range(12)] + [(64, 64, 3000), (8, 8, 8), (2560, 2560, 64)]
    x, y = (v.to(for_references()).float() for v in (a, b))
    exact = {e: (x[:e[0], :e[2]] @ y[:e[2], :e[1]]).cuda() for e in extents}
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    wrong = []
    for i in launches(3000):
        m, n, k = e = extents[rng.integers(len(extents))]
        with torch.cuda.stream(streams[i % 3]):
            got = kernels.matmul(a[:m, :k], b[:k, :n], torch.full((m, n), float("nan"), device="cuda"), config=configs[rng.integers(3)])
            wrong.append((got != exact[e]).sum())
    torch.cuda.synchronize()
    assert sum(w.item() for w in wrong) == 0
    x, y = torch.randn(2000, 1500, device="cuda").bfloat16(), torch.randn(1500, 1800, device="cuda").bfloat16()
    first = kernels.matmul(x, y, config=configs[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = [kernels.matmul(x, y, config=configs[0]) for _ in range(3)]
    for _ in range(20):
        for z in made:
            z.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(z, first) for z in made)
    checked(2560, 2560, 2560, config=configs[0])
    checked(300, 500, 5000, dtype="float8_e4m3fn", fast_accum=True, config=replace(Config.of(128, 128, itemsize=1), stream=True))


@pytest.mark.unperturbed
@needs_gpu("sm_90a")
@in_child(timeout=100)
@pytest.mark.parametrize("stream", [False, True])
def test_an_epilogue_that_spills_warns_once_at_the_call(stream):
    import warnings
    from dataclasses import replace

    import tilejit
    import torch
    from tilejit import kernels
    from tilejit.kernels.matmul.choice import Config

    from tests.mma.products import of_many_values
    a = torch.randn((2304, 256), device="cuda", dtype=torch.bfloat16)
    config = replace(Config.of(128, 256, epilogue=True), stream=stream)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        first, second = (kernels.matmul(a, a.t(), epilogue=of_many_values, config=config) for _ in range(2))
    assert torch.equal(first, second)
    said = [str(w.message) for w in told if w.category is tilejit.TileWarning and w.filename == __file__]
    assert sum("bytes of registers" in text for text in said) == 1 and len(said) == len(set(said)), said
