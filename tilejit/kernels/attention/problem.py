"""What a call of `attention` computes: the request, and the checked problem made of it."""

from __future__ import annotations

from dataclasses import dataclass

import tilejit as tile

from ...errors import LaunchError
from ...runtime.arrays import ArrayView, row_major
from ..operands import check_parameters, overlaps
from .constants import NEAR, Scores

DTYPES = ("bfloat16", "float16", "float8_e4m3fn")
RESULTS = ("bfloat16", "float16", "float32")  # of float8, by default the first
MOST = 1 << 30   # rows and columns up to which positions are counted in 32 bits
WIDEST = {"q and k": 576, "v": 512}  # columns
HALF = 256       # columns up to which every kernel takes them; more are taken by `sequences` alone
PLACES = ("the batch", "the head", "the rows", "the columns")


@dataclass(frozen=True)
class Request:
    """The arrays of a call, the result if one is given, and its options; `extras` are the arguments of its functions,
    `positive` says whether the scale is, and neither huge nor tiny. `row_lengths` and `key_lengths`: the lengths of
    sequences; `pages`: the pages of each; `blocks`: the table of a mask's blocks, which have `block` rows and columns;
    `factors`: those of Q, K and V, each of which may be None."""

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
    row_lengths: ArrayView | None = None
    key_lengths: ArrayView | None = None
    pages: ArrayView | None = None
    blocks: ArrayView | None = None
    block: tuple[int, int] | None = None
    factors: tuple[ArrayView | None, ...] = ()

    @property
    def sequences(self) -> int:
        """How many sequences have lengths."""
        return self.key_lengths.shape[0] if self.key_lengths is not None else 0

    @property
    def packed(self) -> bool:
        """Whether the rows of all sequences lie one after the other."""
        return self.key_lengths is not None and len(self.q.shape) == 3


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
    def page(self) -> int:
        """The keys of a page, 0 without pages."""
        return self.request.k.shape[-2] if self.request.pages is not None else 0

    @property
    def group(self) -> int:
        """The heads of Q that have one head of K and V."""
        return self.heads // max(self.kv_heads, 1)

    @property
    def rows_of_each(self) -> int:
        """The rows of a sequence, of packed ones the mean."""
        return -(-self.rows // max(self.request.sequences, 1)) if self.request.packed else self.rows

    @property
    def keys_of_each(self) -> int:
        """The most keys of a sequence, of packed ones the mean."""
        return -(-self.keys // max(self.request.sequences, 1)) if self.request.packed else self.keys

    @property
    def itemsize(self) -> int:
        """The bytes of an element of Q, K and V."""
        return self.request.q.nbytes_per_element

    @property
    def is_wide(self) -> bool:
        """Whether only the kernel for sequences takes rows of so many columns."""
        return max(self.d, self.dv) > HALF

    @property
    def is_inner(self) -> bool:
        """Whether V is the first columns of K, in the same memory."""
        return lies_in(self.request.k, self.request.v)

    @property
    def left(self) -> int:
        """The columns that a row sees to the left of its position."""
        return self.request.window[0] or 0 if self.scores.left else 0

    @property
    def right(self) -> int:
        right = self.request.window[1]
        return 0 if self.request.causal or not self.scores.right else right or 0


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
    _check_shapes(q, k, v, request.pages is not None)
    keys = _check_sequences(request, batches)
    shape = (*q.shape[:-1], dv)
    out = request.out
    if out is None:
        out = ArrayView(0, shape, row_major(shape), RESULTS[0] if q.nbytes_per_element == 1 else q.dtype, q.device)
    _check_out(out, shape, q)
    if request.sinks is not None:
        _check_sinks(request.sinks, heads, q.device)
    for name, x, n in zip(("q_scale", "k_scale", "v_scale"), request.factors, (heads, kv_heads, kv_heads)):
        if x is not None:
            _check_factors(name, x, (request.sequences if request.packed else batches, n), q)
    if request.blocks is not None and request.blocks.device != q.device:
        raise LaunchError(f"the block mask is on {request.blocks.device}, and q on {q.device}")
    return Attention(request, batches, heads, kv_heads, rows, keys, d, dv, shape, out, _scores(request, rows, keys))


def _check_sequences(request: Request, batches: int) -> int:
    """The most keys that a sequence has."""
    q, k, v = request.q, request.k, request.v
    if request.pages is not None:
        _check_integers("block_table", request.pages, 2, q)
        if len(q.shape) != 4 or request.pages.shape[0] != batches:
            raise LaunchError("with block_table, q is [batch, heads, rows, D], k and v are [pages, kv_heads, rows of a "
                              "page, D], and block_table is [batch, pages of a sequence], not "
                              f"{q.shape}, {k.shape} and {request.pages.shape}")
        if request.key_lengths is None:
            raise LaunchError("block_table says which pages a sequence has: lengths must say how many keys")
        for name, x in (("k", k),) if lies_in(k, v) else (("k", k), ("v", v)):
            if page_order(x) is None:
                raise LaunchError(f"pages are contiguous in the order [pages, kv_heads, rows, D] or [pages, rows, "
                                  f"kv_heads, D], and {name} has the strides {x.strides}")
        if page_order(k) != page_order(v) and not lies_in(k, v):
            raise LaunchError("k and v have one order of heads and rows in their pages")
    for name, x in (("lengths", request.key_lengths), ("lengths of q", request.row_lengths)):
        if x is not None:
            _check_integers(name, x, 1, q)
    if request.key_lengths is not None:
        n = request.key_lengths.shape[0]
        if request.row_lengths is not None and (not request.packed or request.row_lengths.shape[0] != n):
            raise LaunchError("lengths of q are for packed sequences, [heads, rows of all, D], as many as lengths of k")
        if not request.packed and n != batches:
            raise LaunchError(f"lengths has the keys of each of the {batches} batches, not of {n}")
    return k.shape[-2] if request.pages is None else request.pages.shape[1] * k.shape[-2]


def lies_in(k: ArrayView, v: ArrayView) -> bool:
    """Whether `v` is a view of the first columns of `k`."""
    return k.pointer == v.pointer and k.strides == v.strides and v.shape[-1] <= k.shape[-1]


def page_order(x: ArrayView) -> bool | None:
    """Whether the heads of a key lie beside each other in pages [pages, heads, rows, columns], or its rows do; None if
    the pages are not contiguous in either order."""
    pages, heads, rows, columns = x.shape
    by_rows = ArrayView(x.pointer, (pages, rows, heads, columns), tuple(x.strides[i] for i in (0, 2, 1, 3)), x.dtype,
                        x.device)
    if x.is_contiguous:
        return False
    return True if by_rows.is_contiguous else None


def _check_integers(name: str, x: ArrayView, rank: int, q: ArrayView) -> None:
    if len(x.shape) != rank or x.dtype not in ("int32", "int64") or x.device != q.device:
        raise LaunchError(f"{name} is an array of int32 or int64 with {rank} dimension{'s' * (rank > 1)}, on "
                          f"{q.device}, and it is {x.dtype} of shape {x.shape} on {x.device}")


def _check_shapes(q: ArrayView, k: ArrayView, v: ArrayView, paged: bool) -> None:
    heads, rows, d = q.shape[-3:]
    kv_heads, keys, dv = v.shape[-3:]
    if k.shape[:-1] != v.shape[:-1] or not paged and k.shape[:-3] != q.shape[:-3]:
        raise LaunchError(f"k and v have the batches of q, and the same heads and rows, and q is of shape {q.shape}, "
                          f"k of {k.shape}, v of {v.shape}")
    if k.shape[-1] != d:
        raise LaunchError(f"the rows of q have {d} elements, and those of k {k.shape[-1]}")
    if heads and (not kv_heads or heads % kv_heads):
        raise LaunchError(f"each head of k and v serves the same number of heads of q, and q has {heads} heads and "
                          f"k {kv_heads}")
    for name, n in (("q and k", d), ("v", dv)):
        if not 16 <= n <= WIDEST[name] or n % 16:
            raise LaunchError(f"rows of {name} have a multiple of 16 elements, from 16 to {WIDEST[name]}, and not {n}")
    if max(rows, keys) > MOST:
        raise LaunchError(f"positions are counted up to {MOST}, and there are {rows} rows in q and {keys} in k")


def _check_out(out: ArrayView, shape: tuple[int, ...], q: ArrayView) -> None:
    dtypes = RESULTS if q.nbytes_per_element == 1 else (q.dtype,)
    if out.shape != shape or out.dtype not in dtypes or out.device != q.device:
        raise LaunchError(f"out must be {' or '.join(dtypes)} of shape {shape} on {q.device}, not {out.dtype} of "
                          f"{out.shape} on {out.device}")
    if 0 not in shape and overlaps(out):
        raise LaunchError("out has several elements at one address, as a broadcast view has: "
                          "pass an array without overlaps")
    if 0 not in shape and out.readonly:
        raise LaunchError("out is read-only: pass a writable array, or none to get a new one")


def _check_sinks(sinks: ArrayView, heads: int, device) -> None:
    if sinks.shape != (heads,) or not sinks.dtype.startswith(("float", "bfloat")) or sinks.device != device:
        raise LaunchError(f"sinks has a float for each of the {heads} heads of q, on {device}, and it is {sinks.dtype} "
                          f"of shape {sinks.shape} on {sinks.device}")


def _check_factors(name: str, x: ArrayView, shape: tuple[int, int], q: ArrayView) -> None:
    if q.nbytes_per_element > 1:
        raise LaunchError(f"{name} is for float8, and q is of {q.dtype}")
    fits = len(x.shape) <= 2 and all(n in (1, m) for n, m in zip(x.shape[::-1], shape[::-1]))
    if not fits or x.dtype != "float32" or x.device != q.device:
        raise LaunchError(f"{name} is a number, or an array of float32 that broadcasts to {shape}, a factor for each "
                          f"head, on {q.device}, and it is {x.dtype} of shape {x.shape} on {x.device}")


def _scores(request: Request, rows: int, keys: int) -> Scores:
    """What happens to the scores. A bound that hides no column is none."""
    left, right = request.window
    if request.causal:
        right = 0
    for name in ("mask", "score"):
        _check_function(name, getattr(request, name), request.extras)
    changed, float8 = request.score is not None, request.q.nbytes_per_element == 1
    scaled = request.softcap or changed or not request.positive
    near = changed and max(rows, keys) <= NEAR
    return Scores(left is not None and left < keys - 1, right is not None and right < rows - 1, request.softcap,
                  request.score, request.mask, request.extras, scaled, float8, request.sinks is not None, near,
                  stepped=near and request.positive and not request.softcap and not float8)


def _check_function(name: str, function, extras: int) -> None:
    if function is None:
        return
    if not isinstance(function, tile.Kernel):
        raise LaunchError(f"{name} is a function under @tile.jit, not {type(function).__name__}")
    check_parameters(function, PLACES if name == "mask" else ("the scores", *PLACES), extras, name)


__all__ = ["Attention", "HALF", "MOST", "Request", "check_attention", "page_order"]
