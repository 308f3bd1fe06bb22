"""Kernels as operators of torch, with the real torch."""

import pytest
import tilejit as tile
from tilejit.errors import LaunchError

from tests.gpu import in_child, needs_gpu, needs_module

pytestmark = needs_module("torch")


@tile.jit
def softmax(x, y, BLOCK: tile.constexpr):
    row = tile.program_id(0)
    v = tile.load(x[row, 0:BLOCK], other=-float("inf"))
    v = tile.exp(v - tile.max(v, axis=0))
    tile.store(y[row, 0:BLOCK], v / tile.sum(v, axis=0))


@tile.jit
def axpy(x, y, factor, bias=None, n: int = 2):
    """y += x * factor + n, and the bias."""
    i = tile.program_id(0) * 32
    v = tile.load(x[i:i + 32]) * factor + tile.load(y[i:i + 32]) + n
    if bias is not None:
        v += tile.load(bias[i:i + 32])
    tile.store(y[i:i + 32], v)


ROWS, LINE = tile.ArraySpec((4, 32), tile.float32), tile.ArraySpec((64,), tile.float32)


def blocks(given):
    return tile.cdiv(given["x"].shape[0], 32)


def of_softmax(given, gradient):
    y = given["y"]
    return y * (gradient - (gradient * y).sum(-1, keepdim=True))


def columns(given):
    return given["x"].shape[1]


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def operators(torch):
    """`softmax`, which returns its result and differentiates, and `axpy`, which writes an argument."""
    rows = softmax.as_torch_op("tilejit_tests::softmax", ROWS, grid=lambda given: given["x"].shape[0], out={"y": "x"},
                               backward=of_softmax, BLOCK=columns)
    return rows, axpy.as_torch_op("tilejit_tests::axpy", LINE, LINE, 0.5, grid=blocks)


def whole(torch, function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_the_schema_comes_from_the_signature_and_from_what_the_graph_writes(torch, operators):
    schemas = [str(op._opoverload._schema).partition("::")[2] for op in operators]
    assert schemas == ["softmax(Tensor x) -> Tensor",
                       "axpy(Tensor x, Tensor(y!) y, float factor, Tensor? bias=None, SymInt n=2) -> ()"]


def test_opcheck_finds_nothing(torch, operators):
    rows, add = operators
    x, y = torch.randn(50), torch.zeros(50)
    torch.library.opcheck(rows, (torch.randn(3, 40, requires_grad=True),))
    torch.library.opcheck(add, (x, y, 2.0, x, 5))


def test_an_operator_computes_and_differentiates_alone_and_in_a_whole_graph(torch, operators):
    op, _ = operators
    x = torch.randn(5, 40, requires_grad=True)
    for function in (op, whole(torch, lambda x: op(x * 2))):
        scale = 1 if function is op else 2
        got, = torch.autograd.grad(function(x).square().sum(), x)
        want, = torch.autograd.grad(torch.softmax(x * scale, -1).square().sum(), x)
        assert torch.allclose(got, want, atol=1e-6)


def test_a_written_argument_is_written_also_in_a_whole_graph(torch, operators):
    _, op = operators
    x = torch.arange(50.0)

    def add(x, factor):
        y = torch.ones_like(x)
        op(x, y, factor, bias=x)
        return y * 2

    compiled = whole(torch, add)
    for factor in (2.0, 3.0):
        assert torch.equal(compiled(x, factor), add(x, factor)) and torch.equal(add(x, factor), 2 * (1 + x * (factor + 1) + 2))


def test_no_gradient_is_dropped(torch, operators):
    """An operator without backward raises where torch would differentiate it."""
    _, op = operators
    x, y = torch.randn(50, requires_grad=True), torch.zeros(50)
    with pytest.raises(LaunchError, match=r"axpy writes its argument y, .* torch.no_grad\(\)"):
        op(x, y, 2.0)
    with torch.no_grad():
        op(x, y, 2.0)
    plain = softmax.as_torch_op("tilejit_tests::plain", ROWS, grid=columns, out={"y": lambda given: torch.empty_like(given["x"])},
                                BLOCK=64)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        plain(torch.randn(4, 4, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("says, call", {
    'a name with a namespace, as in "mine::axpy"': lambda: axpy.as_torch_op("axpy", LINE, LINE, 0.5, grid=1),
    "needs a spec of factor": lambda: axpy.as_torch_op("t::a", LINE, LINE, grid=1),
    "a spec for each of x, y, factor, bias, n": lambda: axpy.as_torch_op("t::a", *[LINE] * 6, grid=1),
    "factor is an argument of the operator": lambda: axpy.as_torch_op("t::a", LINE, LINE, grid=1, factor=0.5),
    "out is a dict of the arrays": lambda: axpy.as_torch_op("t::a", LINE, LINE, 0.5, grid=1, out="y"),
    r"no parameter 'z'": lambda: axpy.as_torch_op("t::a", LINE, LINE, 0.5, grid=1, out={"z": "x"}),
    "axpy does not write x": lambda: axpy.as_torch_op("t::a", LINE, 0.5, grid=1, out={"x": "y"}),
    "axpy writes its argument y, and torch differentiates": lambda: axpy.as_torch_op("t::a", LINE, LINE, 0.5, grid=1, backward=of_softmax),
    "backward= is a function": lambda: axpy.as_torch_op("t::a", LINE, LINE, 0.5, grid=1, backward=1),
    "arrays, numbers and None, and x is an argument that groups": lambda: axpy.as_torch_op("t::a", (LINE, LINE), LINE, 0.5, grid=1),
    "has no parameter 'BLOK'": lambda: softmax.as_torch_op("t::a", ROWS, ROWS, grid=1, BLOCK=32, BLOK=1),
}.items())
def test_a_wrong_description_of_an_operator_is_an_error(torch, says, call):
    with pytest.raises(tile.TileError, match=says):
        call()


@needs_gpu()
@in_child(timeout=120)
def test_an_operator_launches_on_the_gpu():
    import torch
    torch._dynamo.reset()  # under jitter this runs several times, and each makes an operator that dynamo compiles anew
    op = softmax.as_torch_op("tilejit_tests::gpu", ROWS, grid=lambda given: given["x"].shape[0], out={"y": "x"},
                             backward=of_softmax, BLOCK=columns)
    x = torch.randn(5, 40, requires_grad=True, device="cuda")
    for function in (op, torch.compile(op, fullgraph=True)):
        got, = torch.autograd.grad(function(x).square().sum(), x)
        want, = torch.autograd.grad(torch.softmax(x, -1).square().sum(), x)
        assert torch.allclose(got, want, atol=1e-5)
