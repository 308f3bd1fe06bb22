"""`kernels.attention_backward` on the simulator, compared with float64: every option, every kernel and target; what it becomes."""

import re
import warnings

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.attention.backward.config import BackwardConfig

from tests.mma.attention_cases import BF16, gradients, inputs
from tests.mma.test_attention_call import count, every_third, loops, same_document

PIPELINED = BackwardConfig(bm=64, bn=64)
CONFIGS = pytest.mark.parametrize("config", [None, PIPELINED], ids=["roles", "pipelined"])
ORDERS = pytest.mark.parametrize("deterministic", [False, True], ids=["added", "in_order"])


def given(q, v, lse, seed=7):
    """Gradients of the results."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((*q.shape[:-1], v.shape[-1])).astype(q.dtype), rng.standard_normal(lse.shape).astype(np.float32)


def near(got, want, v):
    """Assert that gradients are right: probabilities, their gradients and the results round to the dtype once each. The
    bound is what such roundings add up to, compared with the largest gradient."""
    eps = float(ml_dtypes.finfo(v.dtype).eps)
    for name, x, exact in zip(("dq", "dk", "dv", "dsinks")[:len(got)], got, want, strict=True):
        assert x.shape == exact.shape
        error = np.abs(np.asarray(x).astype(np.float64) - exact)
        assert np.isfinite(error).all() and error.max(initial=0) <= eps * (1 + 2 * np.abs(exact).max(initial=0)), (name, error.max())


def tried(q, k, v, config=None, deterministic=False, mask=None, arguments=(), seen=None, **options):
    """Call `attention` and its backward, and compare the gradients."""
    out, lse = kernels.attention(q, k, v, lse=True, mask=mask, arguments=arguments, **options)
    do, dlse = given(q, v, lse)
    got = kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, config=config, deterministic=deterministic, mask=mask,
                                     arguments=arguments, **options)
    near(got, gradients(do, dlse, q, k, v, seen=seen, **options), v)
    return got


@CONFIGS
@pytest.mark.parametrize("rows, keys, causal", [(200, 300, True), (300, 200, True), (70, 1, False), (1, 130, True)])
def test_any_numbers_of_rows_and_keys_are_right(rows, keys, causal, config):
    """More rows than keys: the gradients of rows that see no key are 0."""
    dq = tried(*inputs(1, 2, 1, rows, keys, seed=rows), config, causal=causal)[0]
    if causal and rows > keys:
        assert not dq[:, :, :rows - keys].any()


@ORDERS
@pytest.mark.parametrize("rows, keys", [(0, 10), (10, 0)])
def test_no_rows_and_no_keys_are_right(rows, keys, deterministic):
    tried(*inputs(2, 2, 1, rows, keys), deterministic=deterministic, sinks=np.array([0.5, -1.0], np.float32))


@ORDERS
@pytest.mark.parametrize("d, dv, dtype", [(128, 128, np.float16), (96, 96, BF16), (192, 192, BF16), (256, 256, BF16), (80, 48, BF16)])
def test_every_number_of_columns_is_right(d, dv, dtype, deterministic):
    tried(*inputs(1, 1, 1, 70, 150, d, dv, dtype), deterministic=deterministic, causal=True)


@CONFIGS
def test_heads_share_keys_and_gradients_have_the_order_of_their_arrays(config):
    q, k, v = inputs(2, 4, 2, 70, 140, by_rows=True)
    for got, x in zip(tried(q, k, v, config), (q, k, v)):
        assert got.strides == x.strides and got.dtype == x.dtype


@CONFIGS
@pytest.mark.parametrize("options", [dict(window=(70, 20), softcap=1.5, scale=1.0), dict(scale=-0.3, window=(None, 30))], ids=str)
def test_windows_softcap_and_scale_are_right(options, config):
    for deterministic in (False, True):
        tried(*inputs(1, 1, 1, 260, 300), config, deterministic, **options)


def test_without_batches_and_with_sinks_is_right():
    """Of a head without a sink, of one whose sink is above all scores, and of rows that see the sink alone."""
    sinks = np.array([-np.inf, 9.0, 0.5], np.float32)
    for config in (None, PIPELINED):
        tried(*inputs(None, 3, 1, 150, 70), config, causal=True, sinks=sinks)


@ORDERS
def test_a_mask_is_the_users_function(deterministic):
    ids = (np.arange(130) // 50).astype(np.int32)
    tried(*inputs(1, 2, 1, 130, 130), deterministic=deterministic, causal=True, mask=same_document, arguments=(ids,), seen=ids[:, None] == ids[None, :])
    tried(*inputs(1, 2, 2, 70, 70), deterministic=deterministic, mask=every_third, seen=(np.arange(70) + np.arange(2)[:, None, None]) % 3 == 0)


@ORDERS
def test_lengths_bound_the_keys_of_each_batch(deterministic):
    """Gradients of keys behind the length are 0, whatever lies there."""
    lengths, (q, k, v) = np.array([33, 100, 0], np.int32), inputs(3, 2, 1, 70, 100)
    k[0, :, 40:], v[0, :, 40:] = np.nan, np.inf
    out, lse = kernels.attention(q, k, v, lse=True, causal=True, lengths=lengths)
    do, dlse = given(q, v, lse)
    got = kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, causal=True, lengths=lengths, deterministic=deterministic)
    for b, n in enumerate(lengths):
        near([got[0][b], *(x[b][:, :n] for x in got[1:])], gradients(do[b], dlse[b], q[b], k[b][:, :n], v[b][:, :n], causal=True), v)
        assert not got[1][b, :, n:].any() and not got[2][b, :, n:].any()


@ORDERS
def test_packed_sequences_have_the_gradients_of_each(deterministic):
    """Rows beyond the last sequence have the gradient 0, and none on the sinks, whatever lies there."""
    rows, keys, sinks = np.array([40, 0, 3, 70], np.int64), np.array([60, 5, 70, 33], np.int32), np.array([0.5, -1], np.float32)
    q, k, v = inputs(None, 2, 1, 120, 180)
    how = dict(causal=True, lengths=(rows, keys), sinks=sinks)
    out, lse = kernels.attention(q, k, v, lse=True, out=np.full_like(q, np.nan), **how)
    lse[:, rows.sum():] = np.nan
    do, dlse = given(q, v, lse)
    got = kernels.attention_backward(do, q, k, v, out, lse, dlse=dlse, deterministic=deterministic, **how)
    r, c, total = 0, 0, 0
    for n, m in zip(rows, keys):
        here, there = slice(r, r + n), slice(c, c + m)
        *want, dsinks = gradients(do[:, here], dlse[:, here], q[:, here], k[:, there], v[:, there], causal=True, sinks=sinks)
        near([got[0][:, here], got[1][:, there], got[2][:, there]], want, v)
        r, c, total = r + n, c + m, total + dsinks
    assert np.allclose(got[3], total, rtol=1e-2, atol=1e-2)
    assert not got[0][:, r:].any() and not got[1][:, c:].any() and not got[2][:, c:].any()


@pytest.mark.parametrize("target", ["sm_80", "sm_100a", "sm_120a"])
def test_every_target_has_kernels(target, monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", target)
    for d, deterministic in ((64, False), (128, True), (256, False)):
        tried(*inputs(1, 2, 1, 70, 100, d), deterministic=deterministic, causal=True, window=(40, None))


def test_rows_at_any_distance_are_right_without_warnings():
    """TMA takes multiples of 16 bytes, cp.async of 4; and the gradient of a sum is one number, at one address."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for pad in (1, 2):
            q, k, v = (x[..., pad - 1:][..., :64] for x in inputs(1, 2, 2, 70, 100, 64 + pad))
            tried(q, k, v, causal=True)
        q, k, v = inputs(1, 1, 1, 70, 100)
        out, lse = kernels.attention(q, k, v, lse=True)
        do = np.broadcast_to(BF16(1), out.shape)
        near(kernels.attention_backward(do, q, k, v, out, lse), gradients(do, 0 * lse, q, k, v), v)


def test_the_same_call_gives_the_same_bits_in_order():
    q, k, v = inputs(1, 2, 2, 200, 300)
    first, second = (tried(q, k, v, None, True, causal=True) for _ in range(2))
    assert all(np.array_equal(x.view(np.int16), y.view(np.int16)) for x, y in zip(first, second))


Q = np.ones((2, 4, 70, 64), np.float16)
L = np.ones((2, 4, 70), np.float32)


@pytest.mark.parametrize("change, words", [
    (dict(do=Q[:1]), r"do must be float16 of shape \(2, 4, 70, 64\) on host, as the result of attention is"),
    (dict(out=Q.astype(np.float32)), "out must be float16"),
    (dict(lse=Q), r"lse must be float32 of shape \(2, 4, 70\) on host, as attention returns the logarithms with lse=True"),
    (dict(dlse=L[:1]), "dlse must be float32"),
    (dict(score=every_third), "attention_backward takes no score: the derivative of the user's function is not known"),
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
    from tilejit.kernels.attention.backward.hopper import hopper
    from tilejit.kernels.attention.backward.planning import REGISTERS
    from tilejit.kernels.attention.constants import Scores
    plan = HopperBackwardConstants(bm=8192 // d, bn=128, d=d, dv=d, stages=2, scores=Scores(right=causal), regs=REGISTERS)
    x, lines = tile.ArraySpec((1, 32, rows, d), "bfloat16"), tile.ArraySpec((1, 32, rows), "float32")
    summed = tile.ArraySpec((1, 32, rows * d // 4096, 16, 256), "float32")
    return hopper.compile(x, x, x, x, lines, lines, summed, x, x, tile.ArraySpec((1,), "uint32"), 4, 0.1, 0, 0, 0.0, 0, 0, 0, 0, PLAN=plan, num_warps=12,
                          spills=1 << 20, target="sm_90a")


@pytest.mark.parametrize("d, most", [(64, 620), (128, 435)])
def test_the_loop_over_whole_blocks_on_hopper_has_no_instruction_too_many(d, most):
    """For each score one power, and five operations beside; nothing for a mask, and no tile that changes its layout."""
    made = compiled(d)
    body, edges = sorted(loops(made), key=len)
    elements = 64 * 8192 // d // 128
    assert len(body) <= most and count(body, "FSEL") == count(body, "STL") == 0 and count(body, "MUFU") == elements
    assert count(body, "FFMA") == count(body, "FADD") == count(body, "FMUL") == elements and count(body, "LDL") <= 2
    assert "convert_layout" not in str(made.graph) and {c.variant for c in made.copies} == {"tma"}
    assert len(re.findall("cp.reduce.async", made.ptx)) == 2 and made.spills <= 320 and count(edges, "LDL") <= 6
