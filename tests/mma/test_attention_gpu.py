"""`kernels.attention` on a GPU: compared with float64, the same bits each time, in CUDA graphs, on two streams."""

import pytest

from tests.gpu import for_references, in_child, needs_gpu, needs_module, some

pytestmark = [needs_module("torch"), pytest.mark.misread_by_racecheck]  # tiles are passed between threads through a ring


def drawn(batch, heads, kv_heads, rows, keys, d, dtype="bfloat16", by_rows=False, amplitude=1.0):
    import torch
    torch.manual_seed(rows * 31 + keys)
    made = []
    for h, n in ((heads, rows), (kv_heads, keys), (kv_heads, keys)):
        x = torch.randn((batch, n, h, d) if by_rows else (batch, h, n, d), device="cuda").to(getattr(torch, dtype))
        made.append(x.transpose(1, 2) if by_rows else x)
    made[0] = made[0] * amplitude
    return made


def exact(q, k, v, causal=False, window=(None, None), softcap=None, change=None):
    """(Result, logarithms of the sums) in float64, head by head. `change` is what a function makes of the scores, by head."""
    import torch
    place, group = for_references(), q.shape[1] // k.shape[1]
    out, lse = torch.zeros((*q.shape[:3], v.shape[-1]), dtype=torch.float64), torch.zeros(q.shape[:3], dtype=torch.float64)
    rows, keys = q.shape[2], k.shape[2]
    at, columns = torch.arange(rows, device=place)[:, None] + keys - rows, torch.arange(keys, device=place)
    seen = torch.ones((rows, keys), dtype=torch.bool, device=place)
    left, right = window
    for bound, hides in ((0 if causal else None, lambda n: columns > at + n), (right, lambda n: columns > at + n), (left, lambda n: columns < at - n)):
        seen = seen if bound is None else seen & ~hides(bound)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            s = q[b, h].to(place).double() @ k[b, h // group].to(place).double().T * q.shape[-1] ** -0.5
            s = s if softcap is None else softcap * torch.tanh(s / softcap)
            s = s if change is None else change(s, h)
            s = torch.where(seen, s, -torch.inf)
            sums = torch.logsumexp(s, -1)
            out[b, h] = torch.where(seen.any(-1)[:, None], torch.softmax(s, -1), 0).cpu() @ v[b, h // group].double().cpu()
            lse[b, h] = sums.cpu()
    return out, lse


def checked(*shape, config=None, dtype="bfloat16", by_rows=False, amplitude=1.0, **options):
    """One call compared with float64, and again into a poisoned result with the same bits."""
    import torch
    from tilejit import kernels
    q, k, v = drawn(*shape, dtype, by_rows, amplitude)
    out, lse = kernels.attention(q, k, v, lse=True, config=config, **options)
    again = kernels.attention(q, k, v, out=torch.full_like(out, float("nan")), config=config, **options)
    assert torch.equal(out.view(torch.int16), again.view(torch.int16)), "other bits the second time"
    want, sums = exact(q, k, v, **options)
    bound = float(torch.finfo(out.dtype).eps) * (want.abs() + v.abs().max().item())
    assert bool(((out.double().cpu() - want).abs() <= bound).all()), (shape, options)
    lse = lse.double().cpu()
    assert bool((((lse - sums).abs() <= 1e-4 * (1 + sums.abs())) | (lse == sums)).all()), (shape, options)


SHAPES = ((1, 2, 1, 1, 1), (2, 4, 4, 64, 64), (1, 8, 2, 1000, 1000), (3, 4, 1, 257, 129), (1, 4, 4, 129, 1023), (2, 16, 16, 2000, 2000), (1, 2, 2, 1, 5000))


@needs_gpu("sm_90a")
@in_child(timeout=300)
@pytest.mark.parametrize("d", [64, 96, 128, 192, 256])
def test_attention_on_hopper_is_exact_to_its_rounding(d):
    """Ragged and long shapes, full, causal and windowed; large scores; both orders of rows and heads."""
    for shape in some(SHAPES, least=3):
        for options in (dict(), dict(causal=True), dict(window=(100, 17)), dict(causal=True, by_rows=True, amplitude=4.0, dtype="float16")):
            checked(*shape, d, **options)
    checked(1, 2, 2, 300, 300, d, softcap=3.0)


@needs_gpu("sm_90a")
@in_child(timeout=200)
@pytest.mark.parametrize("d", [64, 128])
def test_guesses_are_exact_to_their_rounding(d):
    from tilejit.kernels.attention.config import Config
    config = Config(held=False, guesses=True, width=64)
    for shape in some((*SHAPES, (2, 16, 16, 3000, 700)), least=3):
        for options in (dict(), dict(causal=True), dict(window=(100, 17))):
            checked(*shape, d, config=config, **options)


@needs_gpu()
@in_child(timeout=200)
@pytest.mark.parametrize("d", [64, 128, 256])
def test_the_kernel_of_every_target_is_exact_to_its_rounding(d):
    from tilejit.kernels.attention.config import Config
    for shape in some(SHAPES, least=3):
        for options in (dict(), dict(causal=True), dict(window=(100, 17))):
            checked(*shape, d, config=Config(roles=False, bm=64, bn=32, warps=4), **options)


@needs_gpu()
@in_child(timeout=120)
def test_attention_runs_in_graphs_and_on_streams():
    """A graph's launches have a counter of their own; launches on two streams do not share one."""
    import torch
    from tilejit import kernels
    q, k, v = drawn(2, 8, 8, 1000, 1000, 64)
    want, out = kernels.attention(q, k, v, causal=True), torch.empty_like(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            kernels.attention(q, k, v, causal=True, out=out)
    for _ in range(3):
        out.fill_(7)
        graph.replay()
        assert torch.equal(out, want)
    streams, made = [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for turn in range(20):
        with torch.cuda.stream(streams[turn % 2]):
            made.append(kernels.attention(q, k, v, causal=True))
    torch.cuda.synchronize()
    assert all(torch.equal(x, want) for x in made)


def near(out, q, k, v, **options):
    """Assert that a sequence's result [heads, rows, D] is the exact one to its rounding."""
    want = exact(q[None], k[None], v[None], **options)[0][0]
    bound = float(2.0 ** -7) * (want.abs() + (v.abs().max().item() if v.numel() else 0))
    assert bool(((out.double().cpu() - want).abs() <= bound).all()), (q.shape, k.shape, options)


def sequences_checked(page, heads, kv_heads, rows, lengths, d, **options):
    """One call with keys in pages, NaN behind the lengths, compared with each sequence by itself."""
    import torch
    from tilejit import kernels
    torch.manual_seed(page + rows)
    width = -(-max(lengths) // page)
    table = torch.randperm(len(lengths) * width + 3, device="cuda")[:len(lengths) * width].view(len(lengths), width)
    q = torch.randn(len(lengths), heads, rows, d, device="cuda").bfloat16()
    held = [torch.full((len(lengths) * width + 3, page, kv_heads, d), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    whole = [[torch.randn(kv_heads, n, d, device="cuda").bfloat16() for n in lengths] for _ in range(2)]
    for pages, each in zip(held, whole):
        for numbers, x in zip(table, each):
            count = -(-x.shape[1] // page)
            rows_of_pages = torch.full((count * page, kv_heads, d), float("nan"), device="cuda", dtype=torch.bfloat16)
            rows_of_pages[:x.shape[1]] = x.transpose(0, 1)
            pages[numbers[:count]] = rows_of_pages.view(count, page, kv_heads, d)
    out = kernels.attention(q, *(x.transpose(1, 2) for x in held), lengths=torch.tensor(lengths, device="cuda", dtype=torch.int32), block_table=table.int(), **options)
    for i in range(len(lengths)):
        near(out[i], q[i], whole[0][i], whole[1][i], **options)


@needs_gpu()
@in_child(timeout=200)
@pytest.mark.parametrize("page", [1, 8, 16, 64, 256])
def test_keys_in_pages_are_right_on_the_gpu(page):
    for heads, kv_heads, rows, d in some(((8, 1, 1, 128), (4, 4, 1, 64), (8, 2, 5, 128), (2, 1, 200, 128)), least=2):
        sequences_checked(page, heads, kv_heads, rows, [1, 777, 3000, 64], d, causal=True)
    sequences_checked(page, 8, 1, 1, [4000, 1, 0, 2049] * 40, 128)  # two warps and two slots


@needs_gpu()
@in_child(timeout=200)
@pytest.mark.parametrize("d", [64, 128, 256])
def test_packed_sequences_are_right_on_the_gpu(d):
    """One sequence of NaN stands between the others; rows behind the last are left alone."""
    import torch
    from tilejit import kernels
    rows, keys = [700, 0, 1, 129, 64, 2000, 33, 500], [700, 5, 300, 129, 64, 2100, 0, 20]
    q = torch.randn(4, sum(rows) + 9, d, device="cuda").bfloat16()
    k, v = (torch.randn(2, sum(keys) + 9, d, device="cuda").bfloat16() for _ in range(2))
    bad = sum(keys[:3])
    for x in (k, v):
        x[:, bad:bad + keys[3]], x[:, sum(keys):] = float("nan"), float("nan")
    lengths = [torch.tensor(n, device="cuda", dtype=torch.int32) for n in (rows, keys)]
    for options in some((dict(causal=True), dict(), dict(window=(100, 17))), least=2):
        out = torch.full_like(q, 7)
        kernels.attention(q, k, v, lengths=lengths, out=out, **options)
        first, start = 0, 0
        for i, (n, m) in enumerate(zip(rows, keys)):
            own, seen = slice(first, first + n), slice(start, start + m)
            if i != 3:
                near(out[:, own], q[:, own], k[:, seen], v[:, seen], **options)
            first, start = first + n, start + m
        assert bool((out[:, first:] == 7).all())


@needs_gpu()
@in_child(timeout=200)
@pytest.mark.parametrize("d", [64, 128, 256])
def test_a_block_mask_is_its_function_on_the_gpu(d):
    import torch
    from tilejit import kernels

    from tests.mma.test_attention_call import same_document
    q, k, v = drawn(2, 4, 2, 2000, 2000, d)
    ids = torch.arange(2000, device="cuda", dtype=torch.int32) // 370
    for options in (dict(causal=True), dict(window=(200, 50))):
        mask = kernels.block_mask(same_document, q, k, arguments=(ids,), by_batch=False, by_head=False, **options)
        out, again = (kernels.attention(q, k, v, mask=mask) for _ in range(2))
        want = kernels.attention(q, k, v, mask=same_document, arguments=(ids,), **options)
        assert torch.equal(out, again)
        error = (out.double() - want.double()).abs()
        assert bool((error <= 2.0 ** -7 * (want.double().abs() + v.abs().max())).all()), (d, options)


@needs_gpu("sm_90a")
@in_child(timeout=200)
@pytest.mark.parametrize("d", [64, 128, 256])
def test_what_functions_add_in_steps_is_exact_on_the_gpu(d):
    import torch
    from tilejit import kernels

    from tests.mma.test_attention_call import alibi, tilting
    slopes, place = torch.tensor([0.01, -0.2, 2.5, -7], device="cuda"), for_references()
    for rows, keys, function, options in some(((1000, 1000, alibi, dict(causal=True)), (300, 1500, tilting, {}), (700, 2000, alibi, dict(window=(300, 20))),
                                               (129, 5000, alibi, {})), least=2):
        q, k, v = drawn(2, 4, 2, rows, keys, d)
        i, j, each = torch.arange(rows, device=place)[:, None], torch.arange(keys, device=place), slopes.double().to(place)
        change = (lambda s, h: s + each[h] * (j - i)) if function is alibi else (lambda s, h: each[h] * (j - 3) + s - i % 5)
        out, again = (kernels.attention(q, k, v, score=function, arguments=(slopes,), **options) for _ in range(2))
        assert torch.equal(out, again)
        want = exact(q, k, v, change=change, **options)[0]
        # float32 holds scores of 2**14 to 2**-10
        bound = (2.0 ** -7 + 2.0 ** -8) * (want.abs() + v.abs().max().item())
        assert bool(((out.double().cpu() - want).abs() <= bound).all()), (rows, keys, options)


@needs_gpu()
@in_child(timeout=200)
@pytest.mark.parametrize("d", [64, 128])
def test_many_rows_of_batches_with_lengths_are_right_on_the_gpu(d):
    import torch
    from tilejit import kernels
    lengths = [0, 900, 513, 1]
    q = torch.randn(4, 4, 700, d, device="cuda").bfloat16()
    k, v = (torch.randn(4, 2, 1000, d, device="cuda").bfloat16() for _ in range(2))
    for i, n in enumerate(lengths):
        k[i, :, n:], v[i, :, n:] = float("nan"), float("nan")
    for causal in (False, True):
        out = kernels.attention(q, k, v, causal=causal, lengths=torch.tensor(lengths, device="cuda", dtype=torch.int32))
        for i, n in enumerate(lengths):
            near(out[i], q[i], k[i, :, :n], v[i, :, :n], causal=causal)


@needs_gpu()
@in_child(timeout=200)
@pytest.mark.parametrize("batch, heads, rows, keys, d, dv", [(1, 16, 1, 20000, 576, 512), (3, 128, 1, 700, 576, 512), (1, 24, 5, 300, 576, 512),
                                                             (1, 2, 130, 200, 576, 512), (1, 4, 3, 900, 272, 272)])
def test_latent_keys_are_right_on_the_gpu(batch, heads, rows, keys, d, dv):
    """With as many parts of the keys as this GPU's multiprocessors share, and with values in other memory too."""
    import torch
    from tilejit import kernels
    q = torch.randn(batch, heads, rows, d, device="cuda").bfloat16()
    k = torch.randn(batch, 1, keys, d, device="cuda").bfloat16()
    for v in (k[..., :dv], k[..., :dv].clone()):
        out = kernels.attention(q, k, v, causal=True)
        for i in range(batch):
            near(out[i], q[i], k[i], v[i], causal=True)
