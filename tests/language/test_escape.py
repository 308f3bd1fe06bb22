"""Inline PTX."""

import numpy as np
import pytest
import tilejit as tile

pytestmark = pytest.mark.usefixtures("assembled_later")


def _plus(x, y):
    return x + y


@tile.jit(num_warps=1)
def with_asm(x, out, N: tile.constexpr):
    v = tile.load(x[0:N])
    tile.store(out[0:N], tile.asm("add.f32 $0, $1, $2;", tile.float32, v, 1.5, simulate=_plus))


@tile.jit(num_warps=1)
def without_meaning(x, out, N: tile.constexpr):
    tile.store(out[0:N], tile.asm("neg.f32 $0, $1;", tile.float32, tile.load(x[0:N])))


@tile.jit(num_warps=1)
def wrong_operand(x):
    tile.asm("mov.u32 $0, $2;", tile.int32, 1)


def test_inline_ptx_runs_its_python_substitute_on_the_simulator():
    x = np.arange(40, dtype=np.float32)
    out = np.empty_like(x)
    with_asm[(1,)](x, out, N=40)
    assert (out == x + 1.5).all()


def test_inline_ptx_appears_in_the_code():
    x = tile.ArraySpec((40,), "float32")
    assert "add.f32" in with_asm.compile(x, x, N=40).ptx


def test_inline_ptx_without_a_substitute_cannot_be_simulated():
    x = np.zeros(8, np.float32)
    with pytest.raises(tile.SimulationError, match="simulate="):
        without_meaning[(1,)](x, x.copy(), N=8)


@pytest.mark.parametrize("stand_in,words", [
    (lambda x: (x, x), "asm has 1 results, and simulate= returned 2"),
    (lambda x: None, "simulate= returns arrays of numbers, not of object"),
    (lambda x: x[..., :1], r"simulate= was given arrays of shape \(1, 64\), and returned one of shape \(1, 1\)"),
    (lambda x: x.reshape(-1), r"returned one of shape \(64,\)"),
])
def test_a_substitute_with_other_results_is_refused(stand_in, words):
    @tile.jit
    def kernel(x, out):
        tile.store(out[0:64], tile.asm("neg.f32 $0, $1;", tile.float32, tile.load(x[0:64]), simulate=stand_in))
    with pytest.raises(tile.SimulationError, match=words):
        kernel[1](np.zeros(64, np.float32), np.zeros(64, np.float32))


def test_a_substitute_may_return_one_number_or_a_list():
    for stand_in, want in ((lambda x: 3, 3), (lambda x: (x + 1).tolist(), 2)):
        @tile.jit
        def kernel(x, out):
            tile.store(out[0:64], tile.asm("neg.f32 $0, $1;", tile.float32, tile.load(x[0:64]), simulate=stand_in))
        out = np.zeros(64, np.float32)
        kernel[1](np.ones(64, np.float32), out)
        assert (out == want).all()


def test_an_unknown_operand_is_named():
    with pytest.raises(tile.CompilationError, match=r"\$2 names no operand"):
        wrong_operand.compile(tile.ArraySpec((8,), "float32"))
