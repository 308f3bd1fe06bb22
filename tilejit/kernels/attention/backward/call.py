"""``attention_backward``: the function that calls the kernels of the backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tilejit as tile

from ....config import config as settings
from ....errors import LaunchError, SharedMemoryError
from ....frames import hide_own_frames
from ....runtime import driver
from ....runtime.arrays import describe
from ...matmul.launch import earlier_plan, remember
from ...operands import check_arguments, check_listed, check_no_gradient, seen_as
from ...traced import OPERATORS, Traced, call_operator, is_traced, name_of_dtype, new_tensor
from ..block_mask import BlockMask, tables_of, taken_apart
from ..checks import check_number_of, checked_lengths, checked_scale, checked_softcap, checked_window
from ..launch import ordered_by_rows
from ..problem import Request
from .config import BackwardConfig
from .launch import BackwardLaunch
from .planning import choose_config, plan_backward, smaller
from .problem import BackwardRequest

PLANS: dict[tuple, BackwardLaunch] = {}  # keyed by all that `plan_backward` depends on
OWN = "of its own"  # has the backward no backward
NAMES = ("do", "q", "k", "v", "out", "lse", "dlse", "sinks", "lengths of q", "lengths", "mask.backward.by_keys",
         "mask.backward.by_rows")


@hide_own_frames
def attention_backward(do: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, causal: bool = False,
                       scale: float | None = None, window: tuple[int | None, int | None] | None = None,
                       softcap: float | None = None, mask: tile.Kernel[..., Any] | BlockMask | None = None,
                       score: tile.Kernel[..., Any] | None = None, arguments: Sequence[Any] = (),
                       sinks: Any = None, lengths: Any = None, dlse: Any = None, deterministic: bool = False,
                       config: BackwardConfig | None = None) -> Any:
    """The gradients (dq, dk, dv) of a call ``out, lse = attention(q, k, v, lse=True, ...)`` with these options, where
    `do` is the gradient of `out`; with `sinks` (dq, dk, dv, dsinks).

    `do` and `out` are arrays of one shape and dtype, of any strides, and `lse` is float32 [batch, heads, rows]; `dlse`,
    likewise, is the gradient of `lse`, or None. The gradients are new arrays of the shapes and dtypes of `q`, `k`, `v`
    and `sinks`, in the same order of rows and heads. Sums are float32; probabilities and the gradients of scores are
    rounded to the dtype of `q`. dK and dV are summed over the heads that share them. A row that sees no key has no
    influence, and its gradient is 0.

    The same call gives the same bits of dK and dV each time. CTAs add up dQ in any order, unless it is `deterministic`:
    then a kernel of its own computes it, in a fixed order, which takes about 40 % more operations.

    `score` is differentiated by the scores, element by element: it consists of elementwise functions of the language,
    also in branches and in loops over `tile.static_range`; CompilationError names the line of another one. There is no
    gradient of its `arguments`. Of a `block_mask`, hidden blocks are not computed.

    Under torch, `attention` calls this itself where a gradient is needed. There is no backward of pages. `config`
    replaces the choice of the model. LaunchError says what does not fit."""
    blocks = None
    if isinstance(mask, BlockMask):
        blocks = tables_of(mask)
        mask, causal, window, arguments = taken_apart(mask, q, k, causal, window, arguments)
    given = dict(do=do, q=q, k=k, v=v, result=out, lse=lse, causal=causal, scale=scale, window=window, softcap=softcap,
                 mask=mask, score=score, arguments=arguments, sinks=sinks, lengths=lengths, dlse=dlse,
                 deterministic=deterministic, config=config, blocks=blocks)
    return run_backward(given)


def run_backward(given: dict[str, Any]) -> Any:
    """`attention_backward` for its arguments by name, with `out` as "result", and the tables of a block mask as
    "blocks"."""
    if is_traced(*(given[name] for name in ("do", "q", "k", "v", "result", "lse"))):
        return call_operator(OPERATORS["attention_backward"], {**given, "out": None})
    return _backward(given)


def _backward(given: dict[str, Any], into: Sequence[Any] | None = None) -> tuple:
    """`run_backward` of arrays with memory. Gradients are stored to the arrays `into`, or new ones."""
    arguments, q, sinks = given["arguments"], given["q"], given["sinks"]
    if arguments.__class__ is not tuple or arguments:
        check_listed(arguments=arguments)
        check_number_of(arguments, given["mask"], given["score"])
    check_no_gradient("attention_backward", given["do"], q, given["k"], given["v"], sinks, arguments, missing=OWN)
    shape = tuple(getattr(q, "shape", ()))
    rows, keys, _ = checked_lengths(given["lengths"], None, len(shape))
    options = dict(causal=bool(given["causal"]), window=checked_window(given["window"]), mask=given["mask"],
                   score=given["score"], extras=len(arguments), deterministic=bool(given["deterministic"]))
    numbers = checked_scale(given["scale"], shape), checked_softcap(given["softcap"])
    *_, tables = given["blocks"] or (None,)
    by_keys, by_rows, options["block"] = tables or (None, None, None)
    arrays = (*(given[name] for name in ("do", "q", "k", "v", "result", "lse", "dlse", "sinks")), rows, keys, by_keys,
              by_rows)
    return _differentiate(arrays, options, numbers, tuple(arguments), given["config"], into)


def _differentiate(arrays: tuple, options: dict[str, Any], numbers: tuple[float, float], arguments: tuple,
                   config: BackwardConfig | None, into: Sequence[Any] | None) -> tuple:
    """What `attention_backward` returns, for arrays as in `NAMES`, of which some are None."""
    given = [i for i, x in enumerate(arrays) if x is not None]
    if given[:6] != [0, 1, 2, 3, 4, 5]:
        missing = next(name for name, x in zip(NAMES, arrays) if x is None)
        raise LaunchError(f"{missing} is an array, not None: attention returns the logarithms with lse=True")
    forms, _ = seen_as([NAMES[i] for i in given], [arrays[i] for i in given])
    target = settings().target or "sm_90a" if forms[0][3] in ("host", -1) else None
    scale, softcap = numbers
    key = forms, tuple(given), *options.values(), scale > 0, softcap > 0, config, target
    launch = earlier_plan(PLANS, key)
    values = arrays[:8], tuple(0 if x is None else x for x in arrays[8:]), numbers, arguments, into
    try:
        if launch is not None:
            return tuple(launch.run(*values))
        request = _request(arrays, options, scale, softcap)
        launch, made = _run_first(request, config, target or driver.target(request.forward.q.device), values)
    except LaunchError:
        check_arguments(arguments, describe(arrays[1]).device)
        raise
    remember(PLANS, key, launch)
    return tuple(made)


def _run_first(request: BackwardRequest, given: BackwardConfig | None, target: str,
               values: tuple) -> tuple[BackwardLaunch, list[Any]]:
    """The launches for a request, and the gradients. Functions of the user's may need scratch memory, which only
    compiling tells: then a smaller configuration is taken, if none was `given`."""
    config = choose_config(request, given, target)
    while True:
        launch = plan_backward(request, config, target)
        try:
            return launch, launch.run(*values)
        except SharedMemoryError:
            found = smaller(request, config, target) if given is None else None
            if found is None:
                raise
            config = found


def _request(arrays: tuple, options: dict[str, Any], scale: float, softcap: float) -> BackwardRequest:
    views: list[Any] = [None if x is None else describe(x) for x in arrays]
    do, q, k, v, out, lse, dlse, sinks, rows, keys, by_keys, by_rows = views
    forward = dict(options)
    deterministic, block = forward.pop("deterministic"), forward.pop("block")
    request = Request(q, k, v, None, sinks, **forward, positive=scale > 0, softcap=softcap > 0, lse=True,
                      row_lengths=rows, key_lengths=keys)
    tables = None if by_keys is None else (by_keys, by_rows)
    return BackwardRequest(request, do, out, lse, dlse, deterministic, tables, block)


# -- in torch ----------------------------------------------------------------------------------------------------------

def _new_results(given: dict[str, Any]) -> list[Any]:
    """The gradients' arrays, not computed yet."""
    made = []
    for x in (given["q"], given["k"], given["v"]):
        *batch, heads, rows, d = x.shape
        if ordered_by_rows(x.shape, x.stride()):
            made.append(new_tensor(x, (*batch, rows, heads, d), name_of_dtype(x)).transpose(-2, -3))
        else:
            made.append(new_tensor(x, (*batch, heads, rows, d), name_of_dtype(x)))
    sinks = given["sinks"]
    return made if sinks is None else [*made, new_tensor(sinks, sinks.shape, name_of_dtype(sinks))]


def _compute(into: Sequence[Any], given: dict[str, Any]) -> None:
    _backward(given, into)


OPERATORS["attention_backward"] = Traced("attention_backward", _new_results, _compute,
                                         lambda made, given: tuple(made), lambda given: OWN)

__all__ = ["attention_backward", "run_backward"]
