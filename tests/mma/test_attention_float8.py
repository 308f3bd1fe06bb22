"""`kernels.attention` of float8 on the simulator, compared with float64: options, factors, kernels and targets; what it becomes."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.attention.config import Config
from tilejit.kernels.attention.constants import Peeks
from tilejit.kernels.attention.float8 import COLUMNS, KEYS, LEAST, turn_values
from tilejit.kernels.attention.planning import plan_launch
from tilejit.kernels.attention.problem import Request
from tilejit.runtime.arrays import ArrayView, row_major

from tests.mma.attention_cases import BF16, inputs, reference
from tests.mma.test_attention_call import alibi, count, loops, same_document

E4M3 = ml_dtypes.float8_e4m3fn
PIPELINED = Config(roles=False, bm=64, bn=64)
CONFIGS = pytest.mark.parametrize("config", [None, PIPELINED], ids=["roles", "pipelined"])


def float8(*shape, **options):
    return inputs(*shape, dtype=E4M3, **options)


def scaled(x, factor):
    """`x` in float64, times the factors of its heads."""
    factor = np.asarray(1.0 if factor is None else factor, np.float64)
    return x.astype(np.float64) * (factor[..., None, None] if factor.ndim else factor)


def near(got, lse, q, k, v, q_scale=None, k_scale=None, v_scale=None, **options):
    """Assert closeness: a probability is rounded to 4 significant bits, below 2 ** -14 of the largest to a multiple of 2 ** -17, which is
    2 ** -18 at most; the result to its dtype."""
    q, k, v = (scaled(x, f) for x, f in ((q, q_scale), (k, k_scale), (v, v_scale)))
    want, sums = reference(q, k, v, **options)
    size, _ = reference(q, k, np.abs(v), **options)
    eps = float(ml_dtypes.finfo(got.dtype).eps)
    with np.errstate(invalid="ignore"):
        bound = 2.0 ** -4 * size + np.nanmax(np.abs(v), initial=0) * k.shape[-2] * 2.0 ** -18 + eps * np.abs(want) + 1e-6
        assert ((np.abs(got.astype(np.float64) - want) <= bound) | np.isnan(want) & np.isnan(got.astype(np.float64))).all()
        if lse is not None:
            same = (np.abs(lse - sums) <= 1e-5 * (1 + np.abs(sums))) | (lse == sums) | np.isnan(lse) & np.isnan(sums)
            assert lse.dtype == np.float32 and same.all()


def tried(q, k, v, config=None, **options):
    """Call `attention` and compare the result and the logarithms with the reference."""
    given = {name: x for name, x in options.items() if name not in ("seen", "change")}
    got, lse = kernels.attention(q, k, v, lse=True, config=config, **given)
    assert got.dtype == BF16
    near(got, lse, q, k, v, **{name: x for name, x in options.items() if name not in ("mask", "score", "arguments")})
    return got


FACTORS = dict(q_scale=np.array([[0.5, 2.0, 0.7, 1.0], [1.5, 0.1, 3.0, 1.0]], np.float32), k_scale=np.array([0.7, 1.2], np.float32), v_scale=3.0)


@CONFIGS
@pytest.mark.parametrize("rows, keys", [(200, 210), (257, 64)])
def test_any_numbers_of_rows_and_keys_are_right(rows, keys, config):
    """More rows than keys: the first rows see no key, and are 0 with a logarithm of -inf."""
    tried(*float8(2, 4, 2, rows, keys, 64), config, causal=True, **FACTORS)


@pytest.mark.parametrize("d, dv", [(128, 128), (256, 48), (80, 16)])
def test_every_number_of_columns_is_right(d, dv):
    """80 are not whole instructions, and take the kernel of every target."""
    tried(*float8(1, 2, 1, 140, 300, d, dv=dv), window=(200, None))


def test_factors_are_numbers_or_arrays_that_broadcast():
    q, k, v = float8(2, 4, 2, 70, 100, 64)
    tried(q, k, v, q_scale=np.full((), 0.5, np.float32), k_scale=np.array([0.5], np.float32), v_scale=np.array([[2.0], [0.5]], np.float32))
    tried(q, k, v, q_scale=np.broadcast_to(np.float32(0.5), (2, 4)), k_scale=np.float32(2.0), v_scale=np.array([[2.0, 4.0], [1.0, 0.5]], np.float32).T)


def test_a_head_of_zeros_with_a_factor_of_zero_weighs_all_keys_alike():
    q, k, v = float8(1, 2, 2, 70, 150, 64)
    q[:, 1], zero = 0, np.array([1.0, 0.0], np.float32)
    assert LEAST * 448 ** 2 * 256 < 1e-20
    tried(q, k, v, causal=True, q_scale=zero)


def test_softcaps_sinks_scores_and_masks_are_those_of_16_bits():
    q, k, v = float8(1, 2, 1, 100, 150, 64)
    slopes, ids = np.array([0.1, -0.4], np.float32), (np.arange(150) // 60).astype(np.int32)
    tried(q, k, v, causal=True, softcap=1.5, sinks=np.array([0.5, 9.0], np.float32), q_scale=np.array([2.0, 0.5], np.float32))
    tried(q, k, v, score=alibi, arguments=(slopes,), k_scale=0.5,
          change=lambda s: s + slopes[:, None, None] * (np.arange(150) - np.arange(100)[:, None]))
    mask = kernels.block_mask(same_document, q, k, arguments=(ids,), causal=True)
    tried(q, k, v, mask=mask, causal=True, seen=ids[:100, None] == ids)


def test_nan_spreads_as_in_the_reference():
    """In a row of Q, or a key that a row sees; of values to all rows of the blocks."""
    q, k, v = float8(1, 1, 1, 130, 130, 64)
    q[0, 0, 3, 5], k[0, 0, 100, 1] = np.nan, np.nan
    tried(q, k, v, causal=True)
    q, k, v = float8(1, 1, 1, 130, 130, 64)
    v[0, 0, 0, 5] = np.nan
    tried(q, k, v, causal=True)


@pytest.mark.parametrize("rows", [130, 1])
def test_what_lies_behind_lengths_is_not_used(rows):
    q, k, v = float8(4, 2, 1, rows, 300, 64)
    lengths, factors = np.array([300, 0, 77, 129], np.int64), np.array([[1.0], [2.0], [0.5], [3.0]], np.float32)
    for b, n in enumerate(lengths):
        k[b, :, n:] = v[b, :, n:] = np.nan
    got, lse = kernels.attention(q, k, v, lengths=lengths, causal=True, lse=True, k_scale=factors, v_scale=factors)
    for b, n in enumerate(lengths):
        near(got[b], lse[b], q[b], k[b, :, :n], v[b, :, :n], causal=True, k_scale=factors[b], v_scale=factors[b])


def test_packed_sequences_have_factors_and_blocks_of_their_own():
    """What one holds, NaN too, does not reach another; their values begin with a block of their own."""
    q, k, v = float8(None, 2, 1, 250, 260, 64)
    lengths, factors = np.array([150, 0, 63, 37], np.int32), np.arange(1, 9, dtype=np.float32).reshape(4, 2) / 4
    k[:, 150:213, 3] = v[:, 150:213, 5] = v[:, 250:] = np.nan
    got, ends = kernels.attention(q, k, v, lengths=lengths, causal=True, q_scale=factors), np.cumsum(lengths)
    for b, (n, end) in enumerate(zip(lengths, ends)):
        near(got[:, end - n:end], None, *(x[:, end - n:end] for x in (q, k, v)), causal=True, q_scale=factors[b])


def test_pages_and_latent_rows_are_right():
    rng = np.random.default_rng(1)
    k, v = rng.standard_normal((2, 9, 2, 16, 64)).astype(E4M3)
    table, lengths, q = np.array([[3, 0, 7], [8, 1, 4]], np.int32), np.array([40, 17], np.int32), rng.standard_normal((2, 4, 1, 64)).astype(E4M3)
    got = kernels.attention(q, k, v, block_table=table, lengths=lengths, **FACTORS)
    for b, n in enumerate(lengths):
        keys, values = (x[table[b]].swapaxes(0, 1).reshape(2, 48, 64)[:, :n] for x in (k, v))
        near(got[b], None, q[b], keys, values, q_scale=FACTORS["q_scale"][b], k_scale=FACTORS["k_scale"], v_scale=3.0)
    rows, q = rng.standard_normal((1, 1, 70, 576)).astype(E4M3), rng.standard_normal((1, 16, 1, 576)).astype(E4M3)
    tried(q, rows, rows[..., :512], scale=192 ** -0.5, k_scale=0.5)


def test_the_result_has_the_dtype_that_is_given():
    q, k, v = float8(1, 2, 2, 70, 100, 64)
    out = np.full((1, 70, 2, 64), 7, np.float32).swapaxes(1, 2)
    assert kernels.attention(q, k, v, out=out) is out
    near(out, None, q, k, v)


def test_views_are_right():
    """Rows of all heads beside each other, values that are contiguous along the keys."""
    q, k, v = float8(2, 2, 2, 70, 100, 64, by_rows=True)
    tried(q, k, np.ascontiguousarray(v.swapaxes(2, 3)).swapaxes(2, 3))
    assert kernels.attention(q, k[:, :, :0], v[:, :, :0]).dtype == BF16


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100a"])
def test_every_target_has_a_kernel(target, monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", target)
    q, k, v = float8(2, 4, 2, 70, 100, 64)
    tried(q, k, v, causal=True, **FACTORS)


SOURCES = dict(q=(1, 4, 70, 64), k=(1, 2, 100, 64))


@pytest.mark.parametrize("options, words", [
    (dict(q_scale=-1.0), "q_scale must be positive, not -1.0"),
    (dict(v_scale=float("nan")), "v_scale must be finite, not nan"),
    (dict(k_scale=np.ones((1, 4), np.float32)), r"k_scale is a number, or an array of float32 that broadcasts to \(1, 2\), a factor for each head, on host, "
                                                r"and it is float32 of shape \(1, 4\)"),
    (dict(q_scale=np.ones((1, 4))), "and it is float64"),
    (dict(q_scale="big"), "q_scale: str"),
    (dict(out=np.zeros(SOURCES["q"], E4M3)), "out must be bfloat16 or float16 or float32 of shape"),
    (dict(config=Config(bm=128, bn=80)), "takes rows and blocks of multiples of 32 elements of float8, and there are 64 and 80"),
], ids=lambda x: ",".join(x) if isinstance(x, dict) else "")
def test_a_bad_option_is_refused_with_what_to_pass(options, words):
    q, k = (np.ones(shape, E4M3) for shape in SOURCES.values())
    with pytest.raises(LaunchError, match=words):
        kernels.attention(q, k, k, **options)


def test_factors_of_16_bits_and_a_backward_of_float8_are_refused():
    q, k = (np.ones(shape, np.float16) for shape in SOURCES.values())
    for factor in (2.0, np.ones(1, np.float32)):
        with pytest.raises(LaunchError, match="for float8, and q is of float16"):
            kernels.attention(q, k, k, q_scale=factor)
    q, k = q.astype(E4M3), k.astype(E4M3)
    with pytest.raises(LaunchError, match="the backward takes bfloat16 or float16, and q is of float8_e4m3fn"):
        kernels.attention_backward(q, q, k, k, q, np.ones(q.shape[:-1], np.float32))


# -- parts, and what calls become -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("shape, lengths", [((2, 3, 200, 72), None), ((3, 130, 48), None), ((2, 1, 200, 96), np.array([150, 7], np.int32))])
def test_values_are_transposed_in_the_order_of_an_operand(shape, lengths):
    v = np.random.default_rng(0).standard_normal(shape).astype(E4M3)
    *batch, heads, keys, columns = shape
    made = np.full((*batch, heads, columns, 256), 9, E4M3)
    turn_values[256 // KEYS * -(-columns // COLUMNS), heads, batch[0] if batch else 1](
        v, made, 0 if lengths is None else lengths, DV=columns, KEYS=KEYS, COLUMNS=COLUMNS, CUT=lengths is not None)
    whole = np.zeros((*batch, heads, 256, columns), E4M3)
    whole[..., :keys, :] = v
    for b, n in enumerate(() if lengths is None else lengths):
        whole[b, :, n:] = 0
    order = np.arange(256).reshape(16, 2, 4, 2).transpose(0, 2, 1, 3).reshape(-1)
    np.testing.assert_array_equal(made.view(np.uint8), whole[..., order, :].swapaxes(-1, -2).view(np.uint8))


OPTIONS = dict(causal=False, window=(None, None), positive=True, softcap=False, mask=None, score=None, extras=0, lse=True)


def planned(d, rows, **options):
    """The launch of a call with large arrays on Hopper."""
    shape = (1, 32, rows, d)
    view, factors = ArrayView(0, shape, row_major(shape), "float8_e4m3fn", "host"), ArrayView(0, (1, 32), (32, 1), "float32", "host")
    return plan_launch(Request(view, view, view, None, None, **OPTIONS | options, factors=(factors,) * 3), None, "sm_90a")


def compiled(d=128, rows=4096, peeks=None, **options):
    """The kernel of a call with large arrays on Hopper; `peeks` instead of those of the model."""
    shape, x, values, launch = (1, 32, rows, d), "float8_e4m3fn", OPTIONS | options, planned(d, rows, **options)
    constants = launch.constants if peeks is None else launch.constants | {"PLAN": replace(launch.constants["PLAN"], peeks=peeks)}
    spec, factor = tile.ArraySpec(shape, x), tile.ArraySpec((1, 32), "float32")
    extra = (tile.ArraySpec((rows,), "float32"), 0, 0, 0) if values["extras"] else (0,) * 4
    return launch.kernel.compile(spec, spec, tile.ArraySpec(launch.turned, x), tile.ArraySpec(shape, "bfloat16"), tile.ArraySpec(shape[:-1], "float32"), 0,
                                 tile.ArraySpec((1,), "uint32"), 16, (0.1, 1.0, factor, factor, factor), 0, 0, 0.0, *extra, target="sm_90a", **constants)


def test_a_bound_takes_three_slots_of_wide_blocks_but_with_few_rows_narrow_ones():
    for rows, causal, found in ((4096, True, (192, 3, False)), (1024, True, (128, 2, True)), (1024, False, (192, 2, False))):
        plan = planned(128, rows, causal=causal).constants["PLAN"]
        assert (plan.bn, plan.stages, plan.turns) == found


@pytest.mark.parametrize("peeks, most", [(Peeks(), 610), (None, 622)], ids=["", "peeks"])
def test_the_loop_over_whole_blocks_on_hopper_has_no_instruction_too_many(peeks, most):
    """Probabilities become an operand by a conversion of two, and one permutation of four; nothing is spilled. Looks at the next slots
    are what it has more."""
    made, powers = compiled(128, peeks=peeks), 98
    bodies = loops(made, "QGMMA")
    assert " phi i16 " in made.llvm_ir and " phi i8 " not in made.llvm_ir
    assert len(bodies) == 2 and all(count(body, "STL") == count(body, "LDL") == count(body, "R2UR") == 0 for body in bodies)
    body, scores = min(bodies, key=len), (powers - 2)
    assert len(body) <= most and count(body, "MUFU") == powers and count(body, "F2FP") == scores // 2 and count(body, "PRMT") <= scores // 4 + 8


@pytest.mark.parametrize("d, options", [(128, dict(score=alibi, extras=1)), (256, dict(causal=True))],
                         ids=lambda x: "-".join(x) if isinstance(x, dict) else x)
def test_no_loop_over_blocks_on_hopper_spills(d, options):
    assert (bodies := loops(compiled(d, **options), "QGMMA")) and all(count(body, "STL") == count(body, "LDL") == 0 for body in bodies)
