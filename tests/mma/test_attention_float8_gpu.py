"""`kernels.attention` of float8 on a GPU: compared with float64, the same bits each time, in a CUDA graph."""

import pytest

from tests.gpu import for_references, in_child, needs_gpu, needs_module, some

pytestmark = [needs_module("torch"), pytest.mark.misread_by_racecheck]  # tiles are passed between threads through a ring


def drawn(batch, heads, kv_heads, rows, keys, d):
    """q, k and v, and their factors."""
    import torch
    torch.manual_seed(rows * 31 + keys)
    made = [torch.randn(batch, h, n, d, device="cuda") for h, n in ((heads, rows), (kv_heads, keys), (kv_heads, keys))]
    factors = [x.abs().amax((2, 3)) / 448 for x in made]
    return [(x / f[..., None, None]).to(torch.float8_e4m3fn) for x, f in zip(made, factors)], factors


def near(out, lse, q, k, v, factors, causal):
    """Assert closeness for one head [rows, D]: probabilities are rounded to 4 significant bits, or to multiples of 2 ** -17, and the tensor
    cores keep 13 bits below the largest term of a sum, of which there is one for each 32 products."""
    import torch
    place = for_references()
    q, k, v = (x.to(place).double() * f.to(place).double() for x, f in zip((q, k, v), factors))
    (rows, d), keys = q.shape, k.shape[0]
    hidden = torch.arange(keys, device=place) > torch.arange(rows, device=place)[:, None] + keys - rows
    s = q @ k.T * d ** -0.5
    s = s.masked_fill(hidden, -torch.inf) if causal else s
    p = torch.softmax(s, -1).nan_to_num(0.0)
    want, size = p @ v, p @ v.abs()
    cut = 2.0 ** -12 * ((q.abs() @ k.abs().T).amax(-1, keepdim=True) * d ** -0.5 * d / 32 + keys / 32)
    bound = (2.0 ** -4 + cut) * size + 2.0 ** -8 * want.abs() + v.abs().max() * keys * 2.0 ** -18 + 1e-6
    assert bool(((out.to(place).double() - want).abs() <= bound).all())
    sums, lse = torch.logsumexp(s, -1), lse.to(place).double()
    assert bool((((lse - sums).abs() <= 2e-3 + cut[:, 0]) | (lse == sums)).all())


def checked(*shape, config=None, causal=False):
    import torch
    from tilejit import kernels
    arrays, factors = drawn(*shape)
    given = dict(zip(("q_scale", "k_scale", "v_scale"), factors), config=config, causal=causal)
    out, lse = kernels.attention(*arrays, lse=True, **given)
    again = kernels.attention(*arrays, out=torch.full_like(out, float("nan")), **given)
    assert out.dtype == torch.bfloat16 and torch.equal(out.view(torch.int16), again.view(torch.int16))
    group = shape[1] // shape[2]
    for b in range(shape[0]):
        for h in range(shape[1]):
            places = (b, h), (b, h // group), (b, h // group)
            near(out[b, h], lse[b, h], *(x[at] for x, at in zip(arrays, places)), [f[at] for f, at in zip(factors, places)], causal)


SHAPES = ((2, 4, 2, 257, 129), (1, 2, 1, 1, 3000), (1, 2, 2, 1000, 1000), (1, 2, 2, 129, 1023), (2, 40, 40, 520, 600))


@needs_gpu("sm_90a")
@in_child(timeout=300)
@pytest.mark.parametrize("d", [64, 96, 128, 192, 256])
def test_attention_of_float8_on_hopper_is_exact_to_its_rounding(d):
    for shape in some(SHAPES, least=3):
        for causal in (False, True):
            checked(*shape, d, causal=causal)


@needs_gpu()
@in_child(timeout=200)
def test_the_kernel_of_every_target_is_exact_to_its_rounding():
    from tilejit.kernels.attention.config import Config
    for shape in some(SHAPES, least=3):
        checked(*shape, 128, config=Config(roles=False, bm=64, bn=32, warps=4), causal=True)


@needs_gpu()
@in_child(timeout=120)
def test_a_graph_transposes_the_values_that_it_finds():
    """The transposed values are the graph's, and are made anew each time; what lies behind the lengths does not matter."""
    import torch
    from tilejit import kernels
    (q, k, v), _ = drawn(2, 8, 8, 1000, 1000, 64)
    lengths, out = torch.tensor([1000, 333], device="cuda", dtype=torch.int32), torch.empty(q.shape, device="cuda", dtype=torch.bfloat16)
    kernels.attention(q, k, v, lengths=lengths, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.attention(q, k, v, lengths=lengths, out=out)
    for turn in range(3):
        v.copy_(torch.randn(v.shape, device="cuda").to(v.dtype))
        v[1, :, 333:] = torch.full((), float("nan"), device="cuda").to(v.dtype)
        graph.replay()
        want = kernels.attention(q, k, v, lengths=lengths)
        assert torch.equal(out, want) and bool(want.isfinite().all())


@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_packed_sequences_of_float8_do_not_reach_each_other_on_the_gpu():
    import torch
    from tilejit import kernels
    lengths, (arrays, factors) = [700, 0, 63, 1237], drawn(1, 4, 2, 2000, 2000, 128)
    (q, k, v), factors = (x[0] for x in arrays), [f[0] for f in factors]
    nan = torch.full((), float("nan"), device="cuda").to(v.dtype)
    k[:, 700:763, 3], v[:, 700:763, 5] = nan, nan
    out, lse = kernels.attention(q, k, v, causal=True, lse=True, lengths=torch.tensor(lengths, device="cuda", dtype=torch.int32),
                                 **dict(zip(("q_scale", "k_scale", "v_scale"), factors)))
    assert bool(out[:, 700:763].isnan().all())
    for first, n in ((0, 700), (763, 1237)):
        own = slice(first, first + n)
        for h in range(4):
            near(out[h, own], lse[h, own], q[h, own], k[h // 2, own], v[h // 2, own], [f[h * len(f) // 4] for f in factors], True)


@needs_gpu("sm_90a")
@in_child(timeout=200)
def test_torch_compiles_a_call_of_float8_whole():
    import torch
    from tilejit import kernels
    arrays, factors = drawn(1, 4, 2, 300, 300, 64)
    call = lambda q, k, v, a, b, c: kernels.attention(q, k, v, causal=True, q_scale=a, k_scale=b, v_scale=c)
    made = torch.compile(call, fullgraph=True)(*arrays, *factors)
    assert made.dtype == torch.bfloat16 and torch.equal(made, call(*arrays, *factors))
