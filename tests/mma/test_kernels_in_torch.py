"""The ready-made kernels inside torch: torch.compile without a graph break, gradients, vmap."""

import pytest
import tilejit as tile
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul.config import Config

from tests.gpu import for_references, in_child, needs_gpu, needs_module

pytestmark = needs_module("torch")


@tile.jit
def relu(acc, row, column, factor, bias):
    return tile.maximum(acc * factor + bias[None, :], 0)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def whole(torch, function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def halves(torch, *shapes):
    make = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=make).half() for shape in shapes]


SMALL = Config(bm=64, bn=64, bk=64, stages=2, width=64)


def test_matmul_compiles_whole_with_its_options(torch):
    """An epilogue with a number that changes, a tile and a configuration; the result in `out`; the sum of both calls."""
    a, b = halves(torch, (40, 24), (24, 32))
    bias = torch.linspace(-1, 1, 32)

    def call(a, b, out, factor):
        kernels.matmul(a, b, out=out, scale_a=2.0)
        return out + kernels.matmul(a, b, epilogue=relu, arguments=(factor,), tiles=(bias,), config=SMALL)

    compiled = whole(torch, call)
    for factor in (2.0, 3.0):
        got, want = torch.zeros(40, 32).half(), torch.zeros(40, 32).half()
        assert torch.equal(compiled(a, b, got, factor), call(a, b, want, factor)) and torch.equal(got, want)


@in_child()
def test_the_operators_that_gradients_call_are_known_with_their_function():
    """A new process that takes a compiled backward from torch's cache calls them without tracing them."""
    import torch
    x = torch.zeros(1, 1, 16, 64, dtype=torch.float16, requires_grad=True)
    kernels.attention(x, x, x)
    assert hasattr(torch.ops.tilejit, "attention_backward")


def test_attention_and_grouped_matmul_compile_whole(torch):
    q, k, v, a, b = halves(torch, (1, 64, 2, 64), (1, 2, 64, 64), (1, 2, 64, 64), (40, 24), (24, 30))
    offs, stacked = torch.tensor([10, 40], dtype=torch.int32), torch.stack([b, -b])

    def call(q, k, v, a, b, offs, stacked):
        out, sums = kernels.attention(q.transpose(1, 2), k, v, causal=True, lse=True, scale=0.2)
        return out, sums, *kernels.grouped_matmul([a, a[:7]], [b, b[:, :20]]), kernels.grouped_matmul(a, stacked, offs=offs)

    got, want = (f(q, k, v, a, b, offs, stacked) for f in (whole(torch, call), call))
    for x, y in zip(got, want):
        assert torch.equal(x, y) and x.stride() == y.stride()


@pytest.mark.parametrize("shapes, scale", [(((3, 40, 24), (24, 32)), 2.0), (((40, 24), (3, 24, 32)), None)])
def test_matmul_differentiates(torch, shapes, scale):
    """By both operands, of which one lacks the leading extents. The gradient that comes in has strides of 0."""
    a, b = (x.requires_grad_() for x in halves(torch, *shapes))
    got = torch.autograd.grad(kernels.matmul(a, b, scale_a=scale).sum(), (a, b))
    x, y = a.detach().float().requires_grad_(), b.detach().float().requires_grad_()
    want = torch.autograd.grad(((scale or 1) * (x @ y)).sum(), (x, y))
    for one, other in zip(got, want):
        assert one.dtype == torch.float16 and torch.allclose(one.float(), other, rtol=2e-3, atol=2e-2)


def test_matmul_differentiates_in_a_whole_graph_and_twice(torch):
    a, b = (x.requires_grad_() for x in halves(torch, (16, 24), (24, 32)))
    f = whole(torch, lambda a, b: kernels.matmul(a, b) * 2)
    got, = torch.autograd.grad(f(a, b).sum(), b)
    assert torch.allclose(got, torch.autograd.grad(kernels.matmul(a, b).sum(), b)[0] * 2)
    first, = torch.autograd.grad(kernels.matmul(a, b).square().sum(), b, create_graph=True)
    second, = torch.autograd.grad(first.sum(), b)
    want = 2 * a.detach().float().T @ (a.detach().float() @ torch.ones(24, 32))
    assert torch.allclose(second.float(), want, rtol=1e-2, atol=0.5)


def test_opcheck_of_a_product_finds_nothing(torch):
    a, b = (x.requires_grad_() for x in halves(torch, (16, 24), (24, 32)))
    kernels.matmul(a, b)
    form = "(('a',('tensor',0)),('b',('tensor',1)),('epilogue',('constant',None)),('arguments',('list',())),('tiles',('list',()))," \
           "('scale_a',('constant',None)),('scale_b',('constant',None)),('fast_accum',('constant',False))," \
           "('precision',('constant',None)),('config',('constant',None)))"
    torch.library.opcheck(torch.ops.tilejit.matmul.default, ([a, b], [], [], form))


@pytest.mark.parametrize("says, call", {
    "with out=": lambda a, b: kernels.matmul(a, b, out=b.detach().new_empty(16, 32)),
    "with epilogue=": lambda a, b: kernels.matmul(a, b, epilogue=relu, arguments=(1.0,), tiles=(b.detach()[0],)),
    "with arrays as scales": lambda a, b: kernels.matmul(a.detach(), b, scale_a=a.detach().float().sum()),
    "and an operand": lambda a, b: kernels.grouped_matmul([a], [b]),
    "by arguments=": lambda a, b: kernels.attention(b[None, None], b[None, None], b[None, None], score=scaled_distance, arguments=(a,)),
    "of its own": lambda a, b: kernels.attention_backward(a, a, a, a, a, a),
}.items())
def test_a_call_without_a_backward_raises_instead_of_dropping_the_gradient(torch, says, call):
    a, b = (x.requires_grad_() for x in halves(torch, (16, 24), (24, 32)))
    with pytest.raises(LaunchError, match=f"no backward, {says}"):
        call(a, b)


def test_a_compiled_call_without_a_backward_raises_too(torch):
    a, b = (x.requires_grad_() for x in halves(torch, (16, 24), (24, 32)))
    with pytest.raises(Exception, match="grouped_matmul has no backward"):
        whole(torch, lambda a, b: kernels.grouped_matmul([a], [b])[0])(a, b)


def test_attention_differentiates_in_eager_mode_and_in_a_whole_graph(torch):
    """By heads that share keys, by sinks, and by the logarithms; the gradient of the plain sum has strides of 0."""
    q, k, v = (x.requires_grad_() for x in halves(torch, (1, 4, 70, 64), (1, 2, 100, 64), (1, 2, 100, 64)))
    sinks = torch.tensor([0.5, -1.0, 0.0, 2.0], requires_grad=True)

    def call(q, k, v, sinks):
        out, sums = kernels.attention(q, k, v, sinks=sinks, lse=True, causal=True)
        return out.sum() + sums.square().sum()

    x, y, z, w = (t.detach().float().requires_grad_() for t in (q, k, v, sinks))
    scores = x @ y.repeat_interleave(2, 1).mT / 8 + torch.full((70, 100), -torch.inf).triu(31)
    scores = torch.cat([scores, w[None, :, None, None].expand(1, 4, 70, 1)], -1)
    out = scores.softmax(-1)[..., :100] @ z.repeat_interleave(2, 1)
    want = torch.autograd.grad(out.sum() + scores.logsumexp(-1).square().sum(), (x, y, z, w))
    for f in (call, whole(torch, call)):
        for one, other in zip(torch.autograd.grad(f(q, k, v, sinks), (q, k, v, sinks)), want, strict=True):
            assert torch.allclose(one.float(), other, rtol=5e-3, atol=2e-2)


@tile.jit
def scaled_distance(s, batch, head, rows, columns, slopes):
    return s * 0.5 + tile.load(slopes[head]) * tile.cast(columns - rows, tile.float32)


@tile.jit
def same_half(batch, head, rows, columns, slopes):
    return rows // 50 == columns // 50


def test_attention_differentiates_with_a_score_and_a_block_mask(torch):
    """In eager mode and in a whole graph; the mask's lists go through the operator."""
    q, k, v = (x.requires_grad_() for x in halves(torch, (1, 4, 100, 64), (1, 2, 100, 64), (1, 2, 100, 64)))
    slopes, at = torch.tensor([0.1, -0.02, 0.03, 0.2]), torch.arange(100)
    mask = kernels.block_mask(same_half, q, k, arguments=(slopes,), causal=True, by_batch=False, by_head=False)

    def call(q, k, v):
        return kernels.attention(q, k, v, score=scaled_distance, mask=mask).float().square().sum()

    x, y, z = (t.detach().float().requires_grad_() for t in (q, k, v))
    scores = x @ y.repeat_interleave(2, 1).mT / 16 + slopes[:, None, None] * (at[None] - at[:, None])
    seen = (at[None] <= at[:, None]) & (at[None] // 50 == at[:, None] // 50)
    out = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ z.repeat_interleave(2, 1)
    want = torch.autograd.grad(out.square().sum(), (x, y, z))
    for f in (call, whole(torch, call)):
        for one, other in zip(torch.autograd.grad(f(q, k, v), (q, k, v)), want, strict=True):
            assert torch.allclose(one.float(), other, rtol=5e-3, atol=2e-2)


def test_a_second_derivative_of_attention_raises(torch):
    q, = (x.requires_grad_() for x in halves(torch, (1, 1, 16, 64)))
    with pytest.raises(LaunchError, match="attention_backward has no backward, of its own, and"):
        torch.autograd.grad(kernels.attention(q, q, q).sum(), q, create_graph=True)


@pytest.mark.parametrize("axes, shapes", [((None, 1), ((40, 24), (24, 3, 32))), ((0, None), ((3, 40, 24), (2, 24, 32))),
                                          ((2, 0), ((2, 40, 3, 24), (3, 2, 24, 32)))])
def test_matmul_maps_over_a_leading_dimension(torch, axes, shapes):
    a, b = halves(torch, *shapes)
    got, want = torch.vmap(kernels.matmul, axes)(a, b), torch.vmap(torch.matmul, axes)(a.float(), b.float())
    assert got.shape == want.shape and torch.allclose(got.float(), want, rtol=2e-3, atol=2e-2)


def test_vmap_of_attention_is_a_batch_and_of_other_calls_an_error(torch):
    q, k = halves(torch, (2, 2, 64, 64), (2, 64, 64))
    got = torch.vmap(lambda q: kernels.attention(q, k, k))(q)
    assert torch.equal(got, kernels.attention(q, k.expand(2, 2, 64, 64), k.expand(2, 2, 64, 64)))
    with pytest.raises(LaunchError, match="matmul has no batched form of a call with an epilogue"):
        torch.vmap(lambda x: kernels.matmul(x, k[0], epilogue=relu, arguments=(1.0,), tiles=(k[0, 0],)))(k)
    with pytest.raises(LaunchError, match="grouped_matmul has no batched form"):
        torch.vmap(lambda x: kernels.grouped_matmul([x], [k[0]])[0])(k)


@needs_gpu("sm_90a")
@in_child(timeout=180)
def test_matmul_compiles_and_differentiates_on_the_gpu():
    import torch
    a, b = (torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in ((256, 512), (512, 384)))
    for f in (kernels.matmul, torch.compile(kernels.matmul, fullgraph=True)):
        got = torch.autograd.grad(f(a, b).square().sum(), (a, b))
        x, y = (v.detach().to(for_references()).requires_grad_() for v in (a, b))
        want = torch.autograd.grad((x @ y).square().sum(), (x, y))
        for x, y in zip(got, want):
            assert torch.allclose(x.to(y.device).float(), y.float(), rtol=5e-2, atol=2e-2 * float(y.abs().max()))
