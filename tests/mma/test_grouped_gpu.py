"""Grouped products on a GPU: compared with float64, every form and dtype, the same bits each time, in CUDA graphs, on two streams."""

import time

import pytest

from tests.gpu import for_references, in_child, launches, needs_gpu, needs_module, some

pytestmark = [needs_module("torch"), pytest.mark.misread_by_racecheck]  # work is passed between threads through a ring


def matrix(rows, columns, dtype, by_column=False, pad=0):
    import torch
    shape = (columns, rows + pad) if by_column else (rows, columns + pad)
    x = torch.randint(-128, 128, shape, device="cuda").to(torch.int8) if dtype == "int8" else torch.randn(shape, device="cuda").to(getattr(torch, dtype))
    return x[:, :rows].t() if by_column else x[:, :columns]


def check(got, a, b, dtype):
    """Assert that floats are within the roundings of the arithmetic compared with float64, and integers exact."""
    import torch
    got, a, b = (x.to(for_references()) for x in (got, a, b))
    exact = a.double() @ b.double()
    if dtype == "int8":
        assert torch.equal(got.double(), exact)
        return
    size = a.double().abs() @ b.double().abs()
    places = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 10}[got.dtype]
    bound = exact.abs() * 2.0 ** -places + size * (a.shape[1] + 2) * 2.0 ** -23 + 1e-6
    bound = bound + size * {"float32": 2.0 ** -10 + 2.0 ** -22, "float8_e4m3fn": 2.0 ** -12}.get(dtype, 0.0)
    assert got.numel() == 0 or bool(((got.double() - exact).abs() <= bound).all()), (a.shape, b.shape, dtype)


def sizes(count, seed, top=700):
    import numpy as np
    rng = np.random.default_rng(seed)
    return [tuple(int(x) for x in np.exp(rng.uniform(0, np.log(top), 3)).astype(int) - (rng.random(3) < 0.05)) for _ in range(count)]


@needs_gpu("sm_90a")
@in_child(timeout=200)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3fn", "int8"])
def test_lists_of_many_extents_are_right(dtype):
    """Extents from 0 on, both majors, rows that TMA cannot read, results given and allocated, and pairs of CTAs."""
    from dataclasses import replace

    import torch
    from tilejit import kernels
    from tilejit.kernels.grouped.choice import REGISTERS
    from tilejit.kernels.matmul.choice import Config
    torch.manual_seed(0)
    precision = "tf32" if dtype == "float32" else None
    for seed, (a_columns, b_columns, pad) in enumerate(((False, True, 0), (True, False, 0), (False, False, 3))):
        groups = sizes(40, seed)
        a = [matrix(m, k, dtype, a_columns, pad) for m, n, k in groups]
        b = [matrix(k, n, dtype, b_columns, pad) for m, n, k in groups]
        made = kernels.grouped_matmul(a, b, precision=precision)
        given = [torch.full((m, n + 1), 3, device="cuda", dtype=made[0].dtype) for m, n, k in groups]
        config = Config.of(128, 128, itemsize=a[0].element_size(), stored=made[0].element_size())
        kernels.grouped_matmul(a, b, [x[:, :-1] for x in given], precision=precision)
        paired = kernels.grouped_matmul(a, b, precision=precision, config=replace(config, regs=REGISTERS[128], pair=True))
        for x, y, z, w, v in zip(a, b, made, given, paired):
            check(z, x, y, dtype)
            check(v, x, y, dtype)
            assert torch.equal(z, w[:, :-1]), "other bits the second time"
            assert (w[:, -1] == 3).all(), "written beyond the result"


@needs_gpu("sm_90a")
@in_child(timeout=200)
def test_every_tile_supports_lists_and_stacked_rows():
    from dataclasses import replace

    import torch
    from tilejit import kernels
    from tilejit.kernels.grouped.choice import REGISTERS
    from tilejit.kernels.matmul.choice import TILES
    from tilejit.kernels.matmul.config import Config, divisor_in_width
    torch.manual_seed(0)
    groups = [(300, 600, 520), (1, 40, 8), (0, 8, 8), (129, 264, 1100), (64, 64, 64)]
    a, b = [matrix(m, k, "bfloat16") for m, n, k in groups], [matrix(k, n, "bfloat16", True) for m, n, k in groups]
    rows, stack = matrix(500, 328, "bfloat16"), torch.randn(5, 328, 520, device="cuda").bfloat16()
    offs = torch.tensor([0, 131, 131, 400, 477], device="cuda", dtype=torch.int32)
    for (bm, bn), kept in some([(t, kept) for t in TILES if t[1] > 8 for kept in (False, True) if not kept or t[1] <= 64 or t[1] % 64 == 0], least=3):
        if kept and (bm, bn) == (192, 192):  # too many registers; 8 columns are less than the width of a store
            continue
        config = Config.of(bm, bn, width=divisor_in_width(bn, 64) if kept else 0, least=4 if kept else 3)
        config = replace(config, regs=REGISTERS[bm], kept=kept, pair=kept == (bm == 128))
        for x, y, z in zip(a, b, kernels.grouped_matmul(a, b, config=config)):
            check(z, x, y, "bfloat16")
        for n in (520, 515):
            got = kernels.grouped_matmul(rows, stack[:, :, :n], torch.full((500, n), 3.0, device="cuda").bfloat16(), offs=offs, config=config)
            start = 0
            for g, stop in enumerate(offs.tolist()):
                check(got[start:stop], rows[start:stop], stack[g, :, :n], "bfloat16")
                start = stop
            assert (got[start:] == 3).all()


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_graphs_and_streams_have_their_own_maps():
    """Captured, and replayed with other numbers in the operands and other offsets; two streams at the same time."""
    import torch
    from tilejit import kernels
    torch.manual_seed(0)
    groups = sizes(30, 7, 900)
    a, b = [matrix(m, k, "bfloat16") for m, n, k in groups], [matrix(k, n, "bfloat16", True) for m, n, k in groups]
    rows, stack = matrix(1000, 512, "bfloat16"), torch.randn(8, 256, 512, device="cuda").bfloat16().transpose(1, 2)
    offs = torch.tensor([100 * i for i in range(1, 9)], device="cuda", dtype=torch.int32)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kernels.grouped_matmul(a, b)
        kernels.grouped_matmul(rows, stack, offs=offs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made, stacked = kernels.grouped_matmul(a, b), kernels.grouped_matmul(rows, stack, offs=offs)
    for turn in range(3):
        for x in a:
            x.normal_()
        offs += 17
        graph.replay()
        for x, y, z in zip(a, b, made):
            check(z, x, y, "bfloat16")
        start = 0
        for g, stop in enumerate(offs.tolist()):
            check(stacked[start:stop], rows[start:stop], stack[g], "bfloat16")
            start = stop
    from tilejit.kernels import views
    kept = [(life, things) for life, things in views.HELD.values()]
    assert len(kept) == 1 and len(kept[0][1]) == 1 and not kept[0][0].has_ended   # the table of the first product, as long as the graph lives
    graph.reset()
    torch.cuda.synchronize()
    deadline = time.monotonic() + 10
    while not kept[0][0].has_ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kept[0][0].has_ended
    streams = [torch.cuda.Stream() for _ in range(3)]
    expected = kernels.grouped_matmul(a, b)
    assert not views.HELD
    torch.cuda.synchronize()
    results = []
    for turn in range(30):
        with torch.cuda.stream(streams[turn % 3]):
            results.append(kernels.grouped_matmul(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for made in results for x, y in zip(made, expected))


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_a_thousand_launches_of_changing_lists_are_right():
    """No hang, no wrong element: products of small integers are exact."""
    import numpy as np
    import torch
    from tilejit import kernels
    rng = np.random.default_rng(0)
    a, b = (torch.randint(-2, 3, (512, 512), device="cuda").to(torch.bfloat16) for _ in range(2))
    lists = [[tuple(int(8 * x) for x in rng.integers(0, 64, 3)) for _ in range(rng.integers(1, 40))] for _ in range(20)]
    operands = [([a[:m, :k] for m, n, k in groups], [b[:k, :n] for m, n, k in groups]) for groups in lists]
    exact = [[(x.to(for_references()).float() @ y.to(for_references()).float()).cuda() for x, y in zip(*pair)] for pair in operands]
    outs = [[torch.empty(x.shape, device="cuda") for x in one] for one in exact]
    wrong = torch.zeros((), device="cuda")
    for i in launches(1000):
        which = rng.integers(len(lists))
        got = kernels.grouped_matmul(*operands[which], outs[which])
        if i % 10 == 0:
            wrong += sum((x != y).sum() for x, y in zip(got, exact[which]))
            torch._foreach_zero_(outs[which])
    assert wrong.item() == 0


@needs_gpu("sm_90a")
@in_child(timeout=100)
@pytest.mark.parametrize("pair", [False, True])
def test_two_thousand_launches_with_kept_results_are_right(pair):
    """Groups with remainders of 64 rows and fewer, whose tiles a consumer skips, with few k-steps and many; small integers: the bits are those
    of the same tiles without kept results."""
    from dataclasses import replace

    import numpy as np
    import torch
    from tilejit import kernels
    from tilejit.kernels.grouped.call import PLANS
    from tilejit.kernels.grouped.choice import REGISTERS
    from tilejit.kernels.matmul.choice import Config
    rng = np.random.default_rng(0)
    a, b = (torch.randint(-2, 3, (1100, 2048), device="cuda").to(torch.bfloat16) for _ in range(2))
    lists = [[(int(rng.integers(1, 1100)), int(rng.integers(1, 138)) * 8, int(rng.integers(1, 2 if i % 3 == 0 else 256)) * 8) for _ in range(60)]
             for i in range(8)]
    operands = [([a[:m, :k] for m, n, k in groups], [b[:n, :k].t() for m, n, k in groups]) for groups in lists]
    outs = [[torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for m, n, k in groups] for groups in lists]
    kept = replace(Config.of(128, 256, width=64, least=4), regs=REGISTERS[128], kept=True, pair=pair)
    expected = [[x.clone() for x in kernels.grouped_matmul(*both, out, config=replace(kept, kept=False, pair=False))]
                for both, out in zip(operands, outs)]
    PLANS.clear()
    wrong = torch.zeros((), device="cuda")
    for i in launches(2000):
        which = rng.integers(len(lists))
        got = kernels.grouped_matmul(*operands[which], outs[which], config=kept)
        if i % 10 == 0:
            wrong += sum((x != y).sum() for x, y in zip(got, expected[which]))
            torch._foreach_zero_(outs[which])
    assert wrong.item() == 0 and all(plan.constants["PLAN"].kept for plan in PLANS.values())
