"""``attention``: the function that calls the attention kernels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tilejit as tile

from ...config import config as settings
from ...errors import LaunchError, SharedMemoryError
from ...frames import hide_own_frames
from ...runtime import driver
from ...runtime.arrays import describe
from ..matmul.launch import earlier_plan, remember
from ..operands import check_apart, check_arguments, check_listed, seen_as
from ..traced import (
    OPERATORS,
    Traced,
    call_operator,
    is_tensor,
    is_traced,
    name_of_dtype,
    needs_gradient,
    new_tensor,
    no_gradient,
)
from .backward.call import run_backward
from .block_mask import BlockMask, tables_of, taken_apart
from .checks import (
    check_number_of,
    checked_factor,
    checked_lengths,
    checked_scale,
    checked_softcap,
    checked_window,
)
from .config import Config
from .launch import Launch, ordered_by_rows
from .planning import plan_launch
from .problem import HALF, RESULTS, Request

# a scale by which the exponent of a row that sees nothing would be infinite, as a factor of it; over 1 / LARGE, what a
# function adds might be
LARGE = 2.0 ** 27
PLANS: dict[tuple, Launch] = {}  # keyed by all that `plan_launch` depends on


@hide_own_frames
def attention(q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None,
              window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
              mask: tile.Kernel[..., Any] | BlockMask | None = None, score: tile.Kernel[..., Any] | None = None,
              arguments: Sequence[Any] = (), sinks: Any = None, lse: bool = False,
              block_table: Any = None, lengths: Any = None, q_scale: Any = None, k_scale: Any = None,
              v_scale: Any = None, out: Any = None, config: Config | None = None) -> Any:
    """``softmax(q @ k.T * scale) @ v`` of each head, on the tensor cores of any target; returns `out`, a new array if
    it is not given, or with `lse` (out, the logarithms of the rows' sums).

    `q` is [batch, heads, rows, D], `k` is [batch, kv_heads, keys, D] and `v` is [batch, kv_heads, keys, DV]; or all
    have no batch. Each head of `k` and `v` serves the same number of heads of `q` in a row. D and DV are multiples of
    16 up to 576 and 512, of which 64, 96, 128, 192 and 256 are tuned. `v` may be a view of the first columns of `k`,
    as in latent attention (576 and 512): with over 256 columns or few rows, they are then read once. All are bfloat16,
    float16 or float8_e4m3fn, of any strides: arrays in the order [batch, rows, heads, D] are passed with their axes
    exchanged, and a new result then has this order too.
    Arrays are torch tensors, CuPy arrays, DeviceArrays (on the GPU) or NumPy arrays (on the simulator). Sums and
    the softmax are float32; probabilities are rounded to the dtype of `v`.

    `q_scale`, `k_scale` and `v_scale` are what `q`, `k` and `v` of float8 are multiplied by: positive numbers, or
    arrays of float32 that broadcast to [batch, heads of the array]. The result is bfloat16, or the bfloat16, float16 or
    float32 of `out`. Kernels that multiply values as float16 round probabilities to it. There is no backward of float8.

    The position of row i is ``i + keys - rows``, so that the last row is at the last key. With `causal`, a row sees no
    key after its position. `window` is (left, right): a row sees the keys from `left` before its position to `right`
    after it; None on a side is no bound. A row that sees no key is 0, and its logarithm -inf. Keys that no row of a
    block sees are not read; a NaN in a value that is read spreads to all rows of its block.

    `scale` is ``D ** -0.5`` by default. `softcap` bounds the scores: ``softcap * tanh(score / softcap)``. Then
    ``score(scores, batch, head, rows, columns, *arguments)``, a function under ``@tile.jit``, may change a tile of
    them; `rows` is an int32 tile [BM, 1] and `columns` one [1, BN], which count in q and k. Columns may lie beyond the
    last, rows too. ``mask(batch, head, rows, columns, *arguments)`` returns where rows see columns, as a tile of bools
    that broadcasts to [BM, BN]; with a `block_mask` of it, hidden blocks are not computed. `arguments` are up to four
    arrays or numbers. `sinks` has a float for each head, an additional score of each of its rows, without a value.

    `lengths` is an int32 or int64 array with the keys of each batch, of which `k` and `v` have at most that many; what
    lies behind is not used. If `q`, `k` and `v` have no batch, their rows are those of several sequences, one after the
    other, and `lengths` is the rows of each, or a pair of arrays: of `q`, and of `k` and `v`. The batch of `score` and
    `mask` is then the number of the sequence, in which rows and columns count. Results beyond the last sequence are not
    written. With `block_table`, an array [batch, pages of a sequence], `k` and `v` are pages [pages, kv_heads, rows,
    D], contiguous in this order or in [pages, rows, kv_heads, D], and `block_table` has the numbers of each sequence's.

    `lse` asks for a float32 array [batch, heads, rows]. `out` may have any strides, and may not overlap the other
    arrays. `config` replaces the choice of the model. Nothing waits for the GPU. The same call gives the same bits each
    time. Torch differentiates a call by `q`, `k`, `v` and `sinks`, but not one with `block_table` or `out`, and takes
    it whole in torch.compile. LaunchError says what does not fit."""
    blocks = None
    if isinstance(mask, BlockMask):
        blocks = tables_of(mask)
        mask, causal, window, arguments = taken_apart(mask, q, k, causal, window, arguments)
    given = dict(q=q, k=k, v=v, causal=causal, scale=scale, window=window, softcap=softcap, mask=mask, score=score,
                 arguments=arguments, sinks=sinks, lse=lse, block_table=block_table, lengths=lengths, q_scale=q_scale,
                 k_scale=k_scale, v_scale=v_scale, out=out, config=config, blocks=blocks)
    if is_traced(q, k, v, out) or needs_gradient(q, k, v, sinks, arguments, q_scale, k_scale, v_scale):
        return _call_operator(given)
    return _attention(given)


def _attention(given: dict[str, Any], sums: Any = None) -> Any:
    """`attention` of arrays with memory, for its arguments by name, and the tables of a block mask as `blocks`; `sums`
    may be the array for the logarithms."""
    arguments, q = given["arguments"], given["q"]
    if arguments.__class__ is not tuple or arguments:
        check_listed(arguments=arguments)
        check_number_of(arguments, given["mask"], given["score"])
    options = dict(causal=bool(given["causal"]), window=checked_window(given["window"]), mask=given["mask"],
                   score=given["score"], extras=len(arguments), lse=bool(given["lse"]))
    shape = tuple(getattr(q, "shape", ()))
    lengths = checked_lengths(given["lengths"], given["block_table"], len(shape))
    table, options["block"], _ = given["blocks"] or (None, None, None)
    numbers, factors = NO_FACTORS
    if any(given[name] is not None for name in FACTORS):
        numbers, factors = zip(*(checked_factor(name, given[name]) for name in FACTORS))
    return _attend((q, given["k"], given["v"], given["out"], given["sinks"], *lengths, table, *factors), options,
                   checked_scale(given["scale"], shape), checked_softcap(given["softcap"]), tuple(arguments),
                   given["config"], sums, numbers)


# for functions of the user's whose layouts need scratch memory, which only compiling tells
BESIDE_SCRATCH = Config(roles=False, bm=64, bn=64)
FACTORS = "q_scale", "k_scale", "v_scale"
NAMES = "q", "k", "v", "out", "sinks", "lengths of q", "lengths", "block_table", "mask.table", *FACTORS
NO_FACTORS: tuple[tuple, tuple] = ((1.0,) * 3, (None,) * 3)


def _attend(arrays: tuple, options: dict[str, Any], scale: float, softcap: float, arguments: tuple,
            config: Config | None, sums: Any, factors: tuple[float, ...]) -> Any:
    """What `attention` returns, for arrays as in `NAMES`, of which some are None, and the options of a `Request`;
    `factors` are those of float8 that are numbers."""
    given = [i for i, x in enumerate(arrays) if x is not None]
    forms, addresses = seen_as([NAMES[i] for i in given], [arrays[i] for i in given])
    target = settings().target or "sm_90a" if forms[0][3] in ("host", -1) else None
    positive = 1 / LARGE < scale < LARGE
    key = forms, addresses[1] == addresses[2], tuple(given), *options.values(), positive, softcap > 0, config, target
    launch = known = earlier_plan(PLANS, key)
    score_and_mask = options["score"], options["mask"]
    q, k, v, out, sinks, *sequences = arrays
    if launch is None:
        views: list[Any] = [None if x is None else describe(x) for x in arrays]
        request = Request(*views[:5], **options, positive=positive, softcap=softcap > 0, row_lengths=views[5],
                          key_lengths=views[6], pages=views[7], blocks=views[8],
                          factors=tuple(views[9:]))
        launch = plan_launch(request, config, target or driver.target(request.q.device))
    made = launch.new_result(q) if out is None else out
    if sums is None and options["lse"]:
        sums = launch.new_sums(q)
    if launch.kernel is not None:
        if out is not None:
            check_apart(launch.spans, addresses[:4], arrays[:4], NAMES[:3])
        scales = _with_factors(launch, scale, factors, arrays)
        values = q, k, v, made, sums, sinks, tuple(sequences[:4]), scales, softcap, arguments
        try:
            launch.run(*values)
        except SharedMemoryError:
            if known is not None or config is not None or score_and_mask == (None, None):
                raise
            launch = plan_launch(request, BESIDE_SCRATCH, target or driver.target(request.q.device))
            launch.run(*values)
        except LaunchError:
            check_arguments(arguments, describe(q).device)
            raise
    if known is None:
        remember(PLANS, key, launch)
    return (made, sums) if options["lse"] else made


def _with_factors(launch: Launch, scale: float, factors: tuple[float, ...], arrays: tuple) -> float | tuple:
    """The scale as the kernel of a launch takes it: with the factors of float8, in numbers and in arrays."""
    if launch.float8:
        return scale * factors[0] * factors[1], factors[2], *arrays[-len(FACTORS):]
    if factors != NO_FACTORS[0]:
        raise LaunchError(f"q_scale, k_scale and v_scale are for float8, and q is of {describe(arrays[0]).dtype}")
    return scale


# -- in torch ----------------------------------------------------------------------------------------------------------

def _new_results(given: dict[str, Any]) -> list[Any]:
    """The arrays of the result, in the memory order of Q, and with `lse` of the sums, not computed yet."""
    q, v = given["q"], given["v"]
    *batch, heads, rows, _ = q.shape
    dtype, columns = RESULTS[0] if q.dtype.itemsize == 1 else name_of_dtype(q), v.shape[-1]
    if ordered_by_rows(q.shape, q.stride()):
        made = [new_tensor(q, (*batch, rows, heads, columns), dtype).transpose(-2, -3)]
    else:
        made = [new_tensor(q, (*batch, heads, rows, columns), dtype)]
    return [*made, new_tensor(q, (*batch, heads, rows), "float32")] if given["lse"] else made


def _compute(into: Sequence[Any], given: dict[str, Any]) -> None:
    _attention({**given, "out": into[0]}, into[1] if given["lse"] else None)


def _call_operator(given: dict[str, Any]) -> Any:
    """`attention` as an operator of torch, which traces it, maps it, or differentiates it. It always has the sums,
    which the backward needs."""
    if not is_traced(given["q"], given["k"], given["v"], given["out"]):
        missing = "with out=" if given["out"] is not None else _without_backward(given)
        if missing or not is_tensor(given["q"]):
            raise LaunchError(no_gradient("attention", missing))
    if given["out"] is not None:
        return call_operator(OPERATORS["attention"], given)
    made = call_operator(OPERATORS["attention"], {**given, "lse": True})
    return made if given["lse"] else made[0]


def _without_backward(given: dict[str, Any]) -> str:
    """Why a call has no backward, in words; "" if it has one."""
    if max(given["q"].shape[-1], given["v"].shape[-1]) > HALF:
        return f"with rows of over {HALF} columns"
    if given["q"].dtype.itemsize == 1:
        return "with operands of float8"
    if given["block_table"] is not None:
        return "with block_table="
    return "by arguments=" if needs_gradient(given["arguments"]) else ""


KEPT = ("q", "k", "v", "causal", "scale", "window", "softcap", "mask", "score", "arguments", "sinks", "lengths",
        "blocks")  # arguments that the backward has too


def _gradients(given: dict[str, Any], gradients: Sequence[Any], made: Sequence[Any]) -> dict[str, Any]:
    """The gradients of Q, K, V and the sinks."""
    (do, dlse), (out, lse) = gradients, made
    torch = sys.modules["torch"]
    if do is None:
        do = torch.zeros_like(out)
    if do.stride(-1) != 1 or 0 in do.stride():  # such as the gradient of a sum
        do = do.contiguous()
    found = run_backward({**{name: given[name] for name in KEPT}, "do": do, "result": out, "lse": lse, "dlse": dlse,
                          "deterministic": torch.are_deterministic_algorithms_enabled(), "config": None})
    return dict(zip(("q", "k", "v", "sinks"), found))


def _map(given: dict[str, Any], axes: dict[str, int | None], size: int) -> dict[str, Any]:
    """The calls of heads [heads, rows, D] as one with a batch."""
    if set(axes) - {"q", "k", "v"} or len(given["q"].shape) - (axes["q"] is not None) != 3:
        raise LaunchError("attention has a batched form for torch.vmap of q, k and v without a batch of their own, and "
                          "without other arrays: write the leading dimension")
    mapped = dict(given)
    for name, axis in axes.items():
        x = given[name]
        mapped[name] = x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
    return mapped


OPERATORS["attention"] = Traced("attention", _new_results, _compute,
                                lambda made, given: tuple(made) if given["lse"] else made[0],
                                _without_backward, _gradients, _map, keeps=True, calls=("attention_backward",))

__all__ = ["attention"]
