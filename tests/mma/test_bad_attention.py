"""Invalid calls of `attention` are errors that say what to pass instead, before anything is launched."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tilejit as tile
from tilejit import kernels
from tilejit.errors import CompilationError, LaunchError
from tilejit.kernels.attention.config import Config
from tilejit.kernels.operands import check_no_gradient

Q, K = np.ones((2, 4, 70, 64), np.float16), np.ones((2, 2, 100, 64), np.float16)


# They have the wrong parameters, so no test lowers them.
shifted = tile.jit(source="def shifted(s, batch, head, rows, columns, by):\n    return s + by\n")
plus = tile.jit(source="def plus(sums, row, column, tile_):\n    return sums + tile_\n")


@tile.jit
def of_rows(s, batch, head, rows, columns):
    return tile.sum(s, axis=1)


@pytest.mark.parametrize("options, words", [
    (dict(scale="big"), "scale is a number, not 'big'"),
    (dict(scale=float("nan")), "scale must be finite, not nan"),
    (dict(softcap=0), "softcap bounds the scores: it must be positive, not 0; None is no bound"),
    (dict(window=5), r"window is \(keys to the left of a row's position, keys to its right\), .* not 5"),
    (dict(window=(3, -1)), r"not \(3, -1\)"),
    (dict(window=(1, 2, 3)), r"not \(1, 2, 3\)"),
    (dict(mask=np.ones((70, 100), bool)), "mask is a function under @tile.jit, not ndarray"),
    (dict(score=shifted), r"the score shifted has the parameters \(s, batch, head, rows, columns, by\), and it is called with the scores, the batch, the head, "
                          "the rows, the columns$"),
    (dict(mask=shifted, arguments=(1, 2, 3)), "the columns and 3 of the arguments$"),
    (dict(arguments=(1.0,)), "arguments are passed to mask and score, and none of these is given"),
    (dict(score=shifted, arguments=3), r"arguments is a tuple"),
    (dict(score=shifted, arguments=(1,) * 5), "mask and score take up to 4 arguments, not 5"),
    (dict(sinks=np.ones(3, np.float32)), r"sinks has a float for each of the 4 heads of q, on host, and it is float32 of shape \(3,\)"),
    (dict(out=np.ones((2, 4, 70, 64), np.float32)), r"out must be float16 of shape \(2, 4, 70, 64\) on host, not float32"),
    (dict(out=np.broadcast_to(np.ones(64, np.float16), Q.shape)), "out has several elements at one address"),
    (dict(out=Q), "out overlaps q"),
    (dict(config=dict(bm=64)), "config is a tilejit.kernels.attention.config.Config"),
    (dict(config=Config(bm=100)), "config.bm must be 64, 128 or 192"),
    (dict(config=Config(bn=0)), "config.bn is a number of at least 1, not 0"),
    (dict(config=Config(guesses="yes")), "config.guesses is True or False, not 'yes'"),
    (dict(config=Config(bn=256, stages=9)), "lower config.bn or config.stages"),
    (dict(config=Config(width=48)), "config.width must be a multiple of 32 that divides them, not 48"),
], ids=lambda x: ",".join(x) if isinstance(x, dict) else "")
def test_a_bad_option_is_refused_with_what_to_pass(options, words):
    with pytest.raises(LaunchError, match=words):
        kernels.attention(Q, K, K, **options)


@pytest.mark.parametrize("q, k, v, words", [
    (Q[0, 0], K, K, r"q, k and v are all \[batch, heads, rows, D\] or all \[heads, rows, D\], and q is of shape"),
    (Q, K[0], K, "and k is of shape"),
    (Q, K[:1], K[:1], "k and v have the batches of q"),
    (Q, K, K[:, :, :50], "and the same heads and rows"),
    (Q, np.ones((2, 3, 100, 64), np.float16), np.ones((2, 3, 100, 64), np.float16), "q has 4 heads and k 3"),
    (Q, K[..., :32], K, "the rows of q have 64 elements, and those of k 32"),
    (Q[..., :8], K[..., :8], K, "rows of q and k have a multiple of 16 elements, from 16 to 576, and not 8"),
    (Q, K, K.astype(np.float32), "q, k and v must all be bfloat16 or all float16 or all float8_e4m3fn, and q is of float16, v of float32"),
    (Q.astype(np.float32), K, K, "and q is of float32"),
    (3, K, K, "q: int"),
])
def test_arrays_that_do_not_fit_are_refused(q, k, v, words):
    with pytest.raises(LaunchError, match=words):
        kernels.attention(q, k, v)


def test_a_score_of_another_shape_is_an_error_of_the_kernel():
    with pytest.raises(CompilationError, match="score must return a tile of the shape of the scores"):
        kernels.attention(Q, K, K, score=of_rows)


@pytest.mark.parametrize("name,call", [
    ("attention", lambda x: kernels.attention(x, K, K)),
    ("matmul", lambda x: kernels.matmul(Q[0, 0], x[0, 0].T)),
    ("matmul", lambda x: kernels.matmul(Q[0, 0], Q[0, 0].T, tiles=[x[0, 0, :, :1]], epilogue=plus)),
    ("grouped_matmul", lambda x: kernels.grouped_matmul([Q[0, 0]], [x[0, 0].T])),
    ("grouped_matmul", lambda x: kernels.grouped_matmul(x[0, 0], K[0, :, :, :70], offs=np.array([30, 70], np.int32)))])
def test_a_gradient_is_refused_instead_of_lost(monkeypatch, name, call):
    """Under torch.no_grad(), a tensor that requires a gradient is one like others."""
    class Tracked(np.ndarray):
        requires_grad = True
    grad = SimpleNamespace(is_grad_enabled=lambda: True, Tensor=(), nn=SimpleNamespace(Parameter=()))
    monkeypatch.setitem(sys.modules, "torch", grad)
    with pytest.raises(LaunchError, match=rf"^{name} has no backward, .* call it under torch.no_grad\(\), or with the operands' .detach\(\)"):
        call(Q.view(Tracked))
    grad.is_grad_enabled = lambda: False
    check_no_gradient(name, Q.view(Tracked), K, K)


def test_roles_are_for_hopper(monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", "sm_80")
    with pytest.raises(LaunchError, match="the kernel with roles is for sm_90a, and the target is sm_80: config.roles must be False"):
        kernels.attention(Q, K, K, config=Config())
