"""`kernels.attention_backward` on the simulator, compared with float64: every option, every kernel and target; what it becomes."""

import re
import warnings
from functools import partial

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.attention.backward.config import BackwardConfig

from tests.mma.attention_cases import BF16, gradients, inputs, reference
from tests.mma.test_attention_call import count, loops, same_document

PIPELINED, SMALL = BackwardConfig(bm=64, bn=64), BackwardConfig(bm=32, bn=32, keys=32)


def near(got, want, v):
    """Assert that gradients are right: probabilities, their gradients and the results round to the dtype once each. The
    bound is what such roundings add up to, compared with the largest gradient."""
    eps = float(ml_dtypes.finfo(v.dtype).eps)
    for name, x, exact in zip(("dq", "dk", "dv", "dsinks")[:len(got)], got, want, strict=True):
        assert x.shape == exact.shape
        error = np.abs(np.asarray(x).astype(np.float64) - exact)
        assert np.isfinite(error).all() and error.max(initial=0) <= eps * (1 + 2 * np.abs(exact).max(initial=0)), (name, error.max())


def given(q, k, v, **options):
    """(gradient of the result, the result, the logarithms, their gradient) of a call."""
    rng = np.random.default_rng(7)
    out, lse = reference(q, k, v, **options)
    return (rng.standard_normal(out.shape).astype(q.dtype), out.astype(q.dtype), lse.astype(np.float32),
            rng.standard_normal(lse.shape).astype(np.float32))


def tried(q, k, v, config=None, deterministic=False, mask=None, score=None, arguments=(), seen=None, change=None, derivative=None, **options):
    """Call the backward, and compare the gradients. `options` are also those of the reference."""
    do, out, lse, dlse = given(q, k, v, seen=seen, change=change, **options)
    if isinstance(mask, kernels.BlockMask):
        options |= dict(causal=mask.causal, window=mask.window)
    got = kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, config=config, deterministic=deterministic, mask=mask, score=score,
                                     arguments=arguments, **options)
    near(got, gradients(do, dlse, q, k, v, seen=seen, change=change, derivative=derivative, **options), v)
    return got


IDS = (np.arange(130) // 50).astype(np.int32)


def rows_at_any_distance(deterministic):
    """TMA takes multiples of 16 bytes, cp.async of 4; and the gradient of a sum is one number, at one address."""
    q, k, v = (x[..., 1:] for x in inputs(1, 1, 1, 70, 100, 33))
    _, out, lse, dlse = given(q, k, v)
    do = np.broadcast_to(BF16(1), out.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, deterministic=deterministic, config=SMALL)
    near(got, gradients(do, dlse, q, k, v), v)


def lengths_of_keys(deterministic):
    """Gradients of keys behind the length are 0, whatever lies there."""
    lengths, (q, k, v) = np.array([33, 100, 0], np.int32), inputs(3, 2, 1, 70, 100, 32)
    do, out, lse, dlse = (np.stack(x) for x in zip(*(given(q[b], k[b][:, :n], v[b][:, :n], causal=True) for b, n in enumerate(lengths))))
    k[0, :, 40:], v[0, :, 40:] = np.nan, np.inf
    got = kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, causal=True, lengths=lengths, deterministic=deterministic, config=SMALL)
    for b, n in enumerate(lengths):
        near([got[0][b], *(x[b][:, :n] for x in got[1:])], gradients(do[b], dlse[b], q[b], k[b][:, :n], v[b][:, :n], causal=True), v)
        assert not got[1][b, :, n:].any() and not got[2][b, :, n:].any()


def packed_sequences(deterministic):
    """Rows beyond the last sequence have the gradient 0, and none on the sinks, whatever lies there."""
    rows, keys, sinks = np.array([40, 0, 3, 70], np.int64), np.array([60, 5, 70, 33], np.int32), np.array([0.5, -1], np.float32)
    q, k, v = inputs(None, 2, 1, 120, 180, 32)
    do, out, lse, dlse = np.ones_like(q), np.full_like(q, np.nan), np.full((2, 120), np.nan, np.float32), np.ones((2, 120), np.float32)
    starts, want, total = [], [], 0
    for r, c, n, m in zip(rows.cumsum() - rows, keys.cumsum() - keys, rows, keys):
        here, there = slice(r, r + n), slice(c, c + m)
        for x, part in zip((do, out, lse, dlse), given(q[:, here], k[:, there], v[:, there], causal=True, sinks=sinks)):
            x[:, here] = part
        *each, dsinks = gradients(do[:, here], dlse[:, here], q[:, here], k[:, there], v[:, there], causal=True, sinks=sinks)
        starts, want, total = [*starts, (here, there)], [*want, each], total + dsinks
    got = kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, deterministic=deterministic, causal=True, lengths=(rows, keys), sinks=sinks,
                                     config=SMALL)
    for (here, there), each in zip(starts, want):
        near([got[0][:, here], got[1][:, there], got[2][:, there]], each, v)
    assert np.allclose(got[3], total, rtol=1e-2, atol=1e-2)
    assert not got[0][:, rows.sum():].any() and not got[1][:, keys.sum():].any() and not got[2][:, keys.sum():].any()


def of_options(shape, **options):
    """Rows that see no key have the gradient 0; a head may have no sink, or one above all scores."""
    q, k, v = inputs(**shape)
    got = tried(q, k, v, **options)
    for x, g in zip((q, k, v), got):
        assert g.dtype == x.dtype and (g.strides == x.strides or shape["batch"] == 1)
    if options.get("causal") and shape["rows"] > shape["keys"]:
        assert not got[0][..., :shape["rows"] - shape["keys"], :].any()


def shaped(batch, heads, kv_heads, rows, keys, **others):
    return dict(batch=batch, heads=heads, kv_heads=kv_heads, rows=rows, keys=keys, **others)


CASES = {
    "every_target": ("sm_90a", partial(of_options, shaped(2, 2, 1, 100, 130, d=32), config=PIPELINED, causal=True)),
    "roles": ("sm_90a", partial(of_options, shaped(1, 4, 2, 150, 200, by_rows=True), causal=True)),
    "wide": ("sm_90a", partial(of_options, shaped(1, 1, 1, 300, 200, d=128, dtype=np.float16), causal=True)),
    "window": ("sm_90a", partial(of_options, shaped(1, 1, 1, 260, 300), window=(70, 20), softcap=1.5, scale=-1.0, deterministic=True)),
    "sinks": ("sm_80", partial(of_options, shaped(None, 3, 1, 150, 70, d=32), config=SMALL, causal=True, sinks=np.array([-np.inf, 9.0, 0.5], np.float32))),
    "mask": ("sm_80", partial(of_options, shaped(1, 2, 1, 130, 130, d=32), config=SMALL, mask=same_document, arguments=(IDS,),
                              seen=IDS[:, None] == IDS[None, :], deterministic=True)),
    "ampere": ("sm_80", partial(of_options, shaped(1, 1, 1, 70, 100, d=80, dv=48), config=SMALL, window=(40, 0), deterministic=True)),
    "blackwell": ("sm_100a", partial(of_options, shaped(1, 1, 1, 1, 100), deterministic=True)),
    "strides": ("sm_80", partial(rows_at_any_distance, False)),
    "lengths": ("sm_80", partial(lengths_of_keys, False)),
    "packed": ("sm_80", partial(packed_sequences, True)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_float64(name, monkeypatch):
    """Of a case for each kernel and option. They are one test, so that only the kernels of the first are assembled for
    every target."""
    target, case = CASES[name]
    monkeypatch.setenv("TILEJIT_TARGET", target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case()


@pytest.mark.parametrize("rows, keys", [(0, 10), (10, 0)])
def test_no_rows_and_no_keys_are_right(rows, keys):
    tried(*inputs(2, 2, 1, rows, keys), sinks=np.array([0.5, -1.0], np.float32))


Q = np.ones((2, 4, 70, 64), np.float16)
L = np.ones((2, 4, 70), np.float32)


@pytest.mark.parametrize("change, words", [
    (dict(do=Q[:1]), r"do must be float16 of shape \(2, 4, 70, 64\) on host, as the result of attention is"),
    (dict(out=Q.astype(np.float32)), "out must be float16"),
    (dict(lse=Q), r"lse must be float32 of shape \(2, 4, 70\) on host, as attention returns the logarithms with lse=True"),
    (dict(dlse=L[:1]), "dlse must be float32"),
    (dict(config=3), "config is a tilejit.kernels.attention.backward.config.BackwardConfig, not 3"),
    (dict(config=BackwardConfig(bm=40)), "config.bm, config.bn and config.keys must be some, not 40"),
    (dict(config=BackwardConfig(bm=256, stages=9)), "lower config.bm, config.bn or config.stages"),
    (dict(config=BackwardConfig(roles=True, bm=64, bn=128)), "config.roles must be False"),
    (dict(lse=None), "lse is"),
], ids=lambda x: ",".join(x) if isinstance(x, dict) else "")
def test_a_bad_call_is_refused_with_what_to_pass(change, words):
    options = dict(do=Q, q=Q, k=Q, v=Q, out=Q, lse=L) | change
    with pytest.raises(LaunchError, match=words):
        kernels.attention_backward(**options)


# -- what calls become ------------------------------------------------------------------------------------------------------

def compiled(d, causal=True, rows=4096):
    """The kernel for Hopper of a call with large arrays."""
    from tilejit.kernels.attention.backward.constants import HopperBackwardConstants
    from tilejit.kernels.attention.backward.gradients_hopper import gradients_hopper
    from tilejit.kernels.attention.backward.planning import REGISTERS
    from tilejit.kernels.attention.constants import Scores
    plan = HopperBackwardConstants(bm=8192 // d, bn=128, d=d, dv=d, stages=2, scores=Scores(right=causal), regs=REGISTERS)
    x, lines = tile.ArraySpec((1, 32, rows, d), "bfloat16"), tile.ArraySpec((1, 32, rows), "float32")
    summed = tile.ArraySpec((1, 32, rows * d // 4096, 16, 256), "float32")
    return gradients_hopper.compile(x, x, x, x, lines, lines, summed, x, x, tile.ArraySpec((1,), "uint32"), 4, 0.1, 0, 0, 0.0, 0, 0, 0, 0, PLAN=plan, num_warps=12,
                          spills=1 << 20, target="sm_90a")


def test_the_loop_over_whole_blocks_on_hopper_has_no_instruction_too_many():
    """For each score one power, and five operations beside; nothing for a mask, and no tile that changes its layout."""
    d, most = 128, 436
    made = compiled(d)
    body, edges = sorted(loops(made), key=len)
    elements = 64 * 8192 // d // 128
    assert len(body) <= most and count(body, "FSEL") == count(body, "STL") == 0 and count(body, "MUFU") == elements
    assert count(body, "FFMA") == count(body, "FADD") == count(body, "FMUL") == elements and count(body, "LDL") <= 2
    assert "convert_layout" not in str(made.graph) and {c.variant for c in made.copies} == {"tma"}
    assert len(re.findall("cp.reduce.async", made.ptx)) == 2 and made.spills <= 320 and count(edges, "LDL") <= 6
