"""`kernels.attention_backward` on a GPU: compared with float64, through autograd, in CUDA graphs, the same bits in order."""

import pytest

from tests.gpu import for_references, in_child, needs_gpu, needs_module, some
from tests.mma.test_attention_gpu import drawn

pytestmark = [needs_module("torch"), pytest.mark.misread_by_racecheck]  # tiles are passed between threads through a ring
MEET = pytest.mark.misread_by_synccheck                                 # two consumers meet, after the producer's warps have ended


def exact(do, dlse, q, k, v, causal=False, window=(None, None), softcap=None, hidden=None, change=None):
    """The gradients of q, k and v in float64, head by head. `hidden` says where, `change(scores, head)` is (the scores, their
    derivative)."""
    import torch
    place, group = for_references(), q.shape[1] // k.shape[1]
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float64) for x in (q, k, v))
    rows, keys, scale = q.shape[2], k.shape[2], q.shape[-1] ** -0.5
    at, columns = torch.arange(rows, device=place)[:, None] + keys - rows, torch.arange(keys, device=place)
    seen, (left, right) = torch.ones((rows, keys), dtype=torch.bool, device=place), window
    right = 0 if causal else right
    seen = seen if right is None else seen & (columns <= at + right)
    seen = seen if left is None else seen & (columns >= at - left)
    seen = seen if hidden is None else seen & ~hidden.to(place)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            x, y, z, g = (t.to(place).double() for t in (q[b, h], k[b, h // group], v[b, h // group], do[b, h]))
            s, slope = x @ y.T * scale, 1.0
            if softcap is not None:
                slope = 1 - torch.tanh(s / softcap) ** 2
                s = softcap * torch.tanh(s / softcap)
            if change is not None:
                s, slope = change(s, h)
            p = torch.where(seen.any(-1)[:, None], torch.softmax(torch.where(seen, s, -torch.inf), -1), 0)
            dp = g @ z.T
            ds = p * (dp - (p * dp).sum(-1, keepdim=True) + dlse[b, h].to(place).double()[:, None]) * slope * scale
            dq[b, h] = (ds @ y).cpu()
            dk[b, h // group] += (ds.T @ x).cpu()
            dv[b, h // group] += (p.T @ g).cpu()
    return dq, dk, dv


def checked(*shape, config=None, dtype="bfloat16", by_rows=False, deterministic=False, **options):
    """One call compared with float64, and twice with the same bits of what is summed in order."""
    import torch
    from tilejit import kernels
    q, k, v = drawn(*shape, dtype, by_rows)
    out, lse = kernels.attention(q, k, v, lse=True, **options)
    do, dlse = torch.randn_like(out), torch.randn_like(lse)
    call = lambda: kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, config=config, deterministic=deterministic, **options)
    got, again = call(), call()
    for x, y in list(zip(got, again))[0 if deterministic else 1:]:
        assert torch.equal(x.view(torch.int16), y.view(torch.int16)), "other bits the second time"
    for name, x, want in zip(("dq", "dk", "dv"), got, exact(do, dlse, q, k, v, **options)):
        error, most = (x.double().cpu() - want).abs().max().item() if x.numel() else 0.0, want.abs().max().item() if x.numel() else 0.0
        assert error <= float(torch.finfo(x.dtype).eps) * (1 + 2 * most), (name, shape, options, error, most)


SHAPES = ((1, 2, 1, 1, 1), (2, 4, 4, 64, 64), (1, 8, 2, 1000, 1000), (3, 4, 1, 257, 129), (1, 4, 4, 129, 1023), (2, 16, 16, 2000, 2000), (1, 2, 2, 1, 5000))
OPTIONS = (dict(), dict(causal=True), dict(window=(100, 17), deterministic=True), dict(causal=True, by_rows=True, dtype="float16"))


@MEET
@needs_gpu("sm_90a")
@in_child(timeout=300)
@pytest.mark.parametrize("d", [64, 128, 192, 256])
def test_gradients_on_hopper_are_exact_to_their_rounding(d):
    """Ragged and long shapes, full, causal and windowed; both orders of rows and heads."""
    for shape in some(SHAPES, least=3):
        for options in OPTIONS:
            checked(*shape, d, **options)
    checked(1, 2, 2, 300, 300, d, softcap=3.0)


@needs_gpu()
@in_child(timeout=200)
@pytest.mark.parametrize("d", [64, 96, 128])
def test_the_kernels_of_every_target_are_exact_to_their_rounding(d):
    from tilejit.kernels.attention.backward.config import BackwardConfig
    for shape in some(SHAPES, least=3):
        for options in OPTIONS:
            checked(*shape, d, config=BackwardConfig(bm=64, bn=64, warps=8 if d > 64 else 4), **options)


@MEET
@needs_gpu()
@in_child(timeout=120)
def test_autograd_and_graphs_have_the_same_gradients():
    """A graph's launches have workspaces of their own, which they zero each time."""
    import torch
    import torch.nn.functional as F
    from tilejit import kernels
    q, k, v = (x.requires_grad_() for x in drawn(2, 8, 8, 500, 500, 64))
    there = [x.detach().to(for_references()).requires_grad_() for x in (q, k, v)]
    want = torch.autograd.grad(F.scaled_dot_product_attention(*there, is_causal=True).square().sum(), there)
    for call in (kernels.attention, torch.compile(kernels.attention, fullgraph=True)):
        got = torch.autograd.grad(call(q, k, v, causal=True).square().sum(), (q, k, v))
        for x, y in zip(got, want):
            assert torch.allclose(x.float().cpu(), y.float().cpu(), rtol=5e-2, atol=2e-2 * float(y.abs().max()))
    x, y, z = (t.detach() for t in (q, k, v))
    out, lse = kernels.attention(x, y, z, causal=True, lse=True)
    want = kernels.attention_backward(out, x, y, z, out, lse, causal=True, deterministic=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = [kernels.attention_backward(out, x, y, z, out, lse, causal=True, deterministic=d) for d in (True, False)]
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(made[0], want)) and all(torch.equal(a, b) for a, b in zip(made[1][1:], want[1:]))
        assert torch.allclose(made[1][0].float(), want[0].float(), rtol=2e-2, atol=2e-3)


@MEET
@needs_gpu()
@in_child(timeout=200)
@pytest.mark.parametrize("d", [64, 128, 192])
def test_scores_and_block_masks_have_exact_gradients(d):
    """ALiBi, a quotient with a cap, and documents by a block mask; ragged, causal, in any and in a fixed order; through autograd."""
    import torch
    from tilejit import kernels

    from tests.mma.test_attention_backward_functions import steeper
    from tests.mma.test_attention_call import alibi, same_document
    rows, place = 1100, for_references()
    q, k, v = drawn(2, 4, 2, rows, rows, d, "bfloat16", False)
    do, slopes = torch.randn_like(q), torch.tensor([0.1, -0.02, 0.03, 0.2], device="cuda")
    ids = torch.arange(rows, device="cuda", dtype=torch.int32) // 270
    weights = torch.linspace(0.5, 2, rows, device="cuda")
    apart = (torch.arange(rows, device=place) - torch.arange(rows, device=place)[:, None]).double()
    mask = kernels.block_mask(same_document, q, k, arguments=(ids,), causal=True, by_batch=False, by_head=False)

    def changed(s, h):
        each, hidden = weights.to(place).double()[:, None], torch.arange(rows, device=place) % 5 == 0
        slope = torch.where(s > 0, 1 / each, 1 - torch.tanh(s / 2) ** 2)
        return torch.where(s > 0, s / each, 2 * torch.tanh(s / 2)).masked_fill(hidden, -torch.inf), slope
    cases = ((dict(causal=True), dict(score=alibi, arguments=(slopes,)), dict(change=lambda s, h: (s + float(slopes[h]) * apart, 1.0))),
             (dict(window=(300, 20)), dict(score=steeper, arguments=(weights,)), dict(change=changed)),
             (dict(causal=True), dict(mask=mask), dict(hidden=ids[:, None] != ids)))
    for bounds, given, reference in cases:
        options = {**given, **({} if "mask" in given else bounds)}
        out, lse = kernels.attention(q, k, v, lse=True, **options)
        dlse = torch.randn_like(lse)
        want = exact(do, dlse, q, k, v, **bounds, **reference)
        for deterministic in (False, True):
            got = kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, deterministic=deterministic, **options)
            for name, x, y in zip(("dq", "dk", "dv"), got, want):
                error, most = (x.double().cpu() - y).abs().max().item(), y.abs().max().item()
                assert error <= float(torch.finfo(x.dtype).eps) * (1 + 2 * most), (name, given, deterministic, error, most)
    x, y, z = (t.detach().requires_grad_() for t in (q, k, v))
    made = torch.autograd.grad(kernels.attention(x, y, z, mask=mask), (x, y, z), do)
    for name, x, y in zip(("dq", "dk", "dv"), made, exact(do, torch.zeros_like(lse), q, k, v, causal=True, hidden=ids[:, None] != ids)):
        assert (x.double().cpu() - y).abs().max().item() <= 2.0 ** -7 * (1 + 2 * y.abs().max().item()), name
