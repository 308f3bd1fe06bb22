"""What a call of `attention` computes: the request, and the problem that it is once its arrays and options are
checked."""

from __future__ import annotations

from dataclasses import dataclass

import tilejit as tile

from ...errors import LaunchError
from ...runtime.arrays import ArrayView, row_major
from ..operands import check_parameters, overlaps
from .constants import Scores

DTYPES = ("bfloat16", "float16")
MOST = 1 << 30   # rows and columns up to which positions are counted in 32 bits
WIDEST = 256     # columns of Q, K and V
PLACES = ("the batch", "the head", "the rows", "the columns")


@dataclass(frozen=True)
class Request:
    """The arrays of a call, the result if one is given, and its options; `extras` are the arguments of its functions,
    `positive` says whether the scale is."""

    q: ArrayView
    k: ArrayView
    v: ArrayView
    out: ArrayView | None
    sinks: ArrayView | None
    causal: bool
    window: tuple[int | None, int | None]
    positive: bool
    softcap: bool
    mask: tile.Kernel | None
    score: tile.Kernel | None
    extras: int
    lse: bool


@dataclass(frozen=True)
class Attention:
    """A checked problem: `batches` of `heads` of Q, which are several for each of `kv_heads`, the `rows` of Q and the
    `keys`, the extents `d` of a key and `dv` of a value, and what happens to the scores. `out` is the result's view
    (its address is 0 if it is new), `shape` its shape."""

    request: Request
    batches: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    d: int
    dv: int
    shape: tuple[int, ...]
    out: ArrayView
    scores: Scores

    @property
    def left(self) -> int:
        """The columns that a row sees to the left of its position."""
        left = self.request.window[0]
        return min(left, MOST) if self.scores.left and left is not None else 0

    @property
    def right(self) -> int:
        if not self.scores.right:
            return 0
        bounds = [0] if self.request.causal else []
        return min([*bounds, *(n for n in self.request.window[1:] if n is not None)])


def check_attention(request: Request) -> Attention:
    """The problem that is asked for. LaunchError says what does not fit."""
    q, k, v = request.q, request.k, request.v
    for name, x in (("q", q), ("k", k), ("v", v)):
        if len(x.shape) not in (3, 4) or len(x.shape) != len(q.shape):
            raise LaunchError("q, k and v are all [batch, heads, rows, D] or all [heads, rows, D], "
                              f"and {name} is of shape {x.shape}")
        if x.dtype not in DTYPES or x.dtype != q.dtype:
            raise LaunchError(f"q, k and v must all be {' or all '.join(DTYPES)}, and q is of {q.dtype}"
                              + (f", {name} of {x.dtype}" if name != "q" else ""))
        if x.device != q.device:
            raise LaunchError(f"q, k and v must be on one device, and q is on {q.device} and {name} on {x.device}")
    batches = q.shape[0] if len(q.shape) == 4 else 1
    heads, rows, d = q.shape[-3:]
    kv_heads, keys, dv = v.shape[-3:]
    _check_shapes(q, k, v)
    shape = (*q.shape[:-1], dv)
    out = request.out
    if out is None:
        out = ArrayView(0, shape, row_major(shape), q.dtype, q.device)
    _check_out(out, shape, q)
    if request.sinks is not None:
        _check_sinks(request.sinks, heads, q.device)
    return Attention(request, batches, heads, kv_heads, rows, keys, d, dv, shape, out, _scores(request, rows, keys))


def _check_shapes(q: ArrayView, k: ArrayView, v: ArrayView) -> None:
    heads, rows, d = q.shape[-3:]
    kv_heads, keys, dv = v.shape[-3:]
    if k.shape[:-1] != v.shape[:-1] or k.shape[:-3] != q.shape[:-3]:
        raise LaunchError(f"k and v have the batches of q, and the same heads and rows, and q is of shape {q.shape}, "
                          f"k of {k.shape}, v of {v.shape}")
    if k.shape[-1] != d:
        raise LaunchError(f"the rows of q have {d} elements, and those of k {k.shape[-1]}")
    if heads and (not kv_heads or heads % kv_heads):
        raise LaunchError(f"each head of k and v serves the same number of heads of q, and q has {heads} heads and "
                          f"k {kv_heads}")
    for name, n in (("q and k", d), ("v", dv)):
        if not 16 <= n <= WIDEST or n % 16:
            raise LaunchError(f"rows have a multiple of 16 elements, from 16 to {WIDEST}, and those of {name} have {n}")
    if max(rows, keys) > MOST:
        raise LaunchError(f"positions are counted up to {MOST}, and there are {rows} rows in q and {keys} in k")


def _check_out(out: ArrayView, shape: tuple[int, ...], q: ArrayView) -> None:
    if out.shape != shape or out.dtype != q.dtype or out.device != q.device:
        raise LaunchError(f"out must be {q.dtype} of shape {shape} on {q.device}, not {out.dtype} of {out.shape} on "
                          f"{out.device}")
    if 0 not in shape and overlaps(out):
        raise LaunchError("out has several elements at one address, as a broadcast view has: "
                          "pass an array without overlaps")
    if 0 not in shape and out.readonly:
        raise LaunchError("out is read-only: pass a writable array, or none to get a new one")


def _check_sinks(sinks: ArrayView, heads: int, device) -> None:
    if sinks.shape != (heads,) or not sinks.dtype.startswith(("float", "bfloat")) or sinks.device != device:
        raise LaunchError(f"sinks has a float for each of the {heads} heads of q, on {device}, and it is {sinks.dtype} "
                          f"of shape {sinks.shape} on {sinks.device}")


def _scores(request: Request, rows: int, keys: int) -> Scores:
    """What happens to the scores. A bound that hides no column is none."""
    left, right = request.window
    if request.causal:
        right = 0 if right is None else min(right, 0)
    for name in ("mask", "score"):
        _check_function(name, getattr(request, name), request.extras)
    scaled = request.softcap or request.score is not None or not request.positive
    return Scores(left is not None and left < keys - 1, right is not None and right < rows - 1, request.softcap,
                  request.score, request.mask, request.extras, scaled, request.sinks is not None)


def _check_function(name: str, function, extras: int) -> None:
    if function is None:
        return
    if not isinstance(function, tile.Kernel):
        raise LaunchError(f"{name} is a function under @tile.jit, not {type(function).__name__}")
    check_parameters(function, PLACES if name == "mask" else ("the scores", *PLACES), extras, name)


__all__ = ["Attention", "MOST", "Request", "check_attention"]
