"""``matmul``: the function that calls the matrix products' kernels on Hopper and Blackwell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tilejit as tile

from ...config import config as settings
from ...errors import CompilationError, LaunchError
from ...frames import hide_own_frames
from ...runtime import driver
from ...runtime.arrays import ArrayView, describe
from ..operands import (
    TILES,
    axes_of,
    check_apart,
    check_arguments,
    check_epilogue,
    check_listed,
    check_parameters,
    extents_of,
    places_of,
    result_dtype,
    seen_as,
)
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
from ..views import fold_batches, folded_row, new_array
from .blackwell.config import BlackwellConfig
from .config import Config
from .launch import Launch, earlier_plan, remember
from .narrow_epilogues import bind_dtype_taken
from .planning import plan_launch
from .problem import Request
from .register_fit import fit_registers
from .scales import scale

PLANS: dict[tuple, Launch] = {}  # keyed by all that `plan_launch` depends on


@hide_own_frames
def matmul(a: Any, b: Any, out: Any = None, epilogue: tile.Kernel[..., Any] | None = None,
           arguments: Sequence[Any] = (), *, tiles: Sequence[Any] = (), scale_a: Any = None, scale_b: Any = None,
           fast_accum: bool = False, precision: str | None = None,
           config: Config | BlackwellConfig | None = None) -> Any:
    """``a @ b`` on the tensor cores of a Hopper or Blackwell GPU (sm_90a, sm_100a, sm_103a); returns `out`, a new
    array if it is not given.

    `a` is [..., M, K] and `b` is [..., K, N], with any extents and strides; leading dimensions of both are equal, or
    one of them has none. Arrays are torch tensors, CuPy arrays, DeviceArrays (on the GPU) or NumPy arrays (on the
    simulator). Operands that TMA cannot read in place are copied first: rows not a multiple of 16 bytes apart; or not
    contiguous along k, for types of 1 byte, or in both operands of float32.

    float16, bfloat16, float8 (both kinds, also mixed) and, with ``precision="tf32"``, float32 (rounded to the nearest
    of 10 bits of mantissa) are summed in float32, int8 and uint8 in int32. The result has the operands' dtype, but
    bfloat16 for float8, int32 for integers, and float32 for scaled integers; an `out` of another float dtype is
    rounded to. In sums of float8, Hopper's tensor cores keep only 13 bits below the largest term. So threads add up
    the sums of each 128 along k in float32; `fast_accum` leaves all sums to the tensor cores, which is faster.

    `scale_a` and `scale_b` are factors of the result: numbers, or arrays of one float32, in any shape. For two
    matrices both may be arrays with a factor for each block along k. On Hopper these are float32, for blocks of 128
    along k of float8: `scale_a` is [M, K/128] or, with one for 128 rows, [M/128, K/128]; `scale_b` is [K/128, N] or
    [K/128, N/128]; extents are rounded up, and threads always add up the sums. On Blackwell they are float8_e8m0fnu
    for 32 along k of float8 or float4_e2m1fn, or float8_e4m3fn for 16 of float4, in the layout of cuBLAS and
    torch._scaled_mm: contiguous units of 512 bytes, with the factors of 128 rows of `a` (columns of `b`) and 4
    blocks, where that of row r and block j is at ``r % 32 * 16 + r // 32 * 4 + j``; units along k come first, then
    those of the next rows. Factors beyond K are numbers (no NaN). float4 operands are torch's pairs or
    ``tile.Packed``, two in a byte along k, in rows of a multiple of 16 bytes: `b` is the transpose of [N, K].

    `epilogue` is a function under ``@tile.jit`` through which the sums go before they are stored. It takes a tile of
    sums, the row and the column of its first element (before these the number of the matrix, in a product with
    leading dimensions), and the `arguments`, arrays or numbers; it returns a tile of the same shape. `tiles` are
    arrays that broadcast to the result as in NumPy, with all of its leading dimensions or none: a residual [..., M,
    N], a bias [N] or [..., 1, N], factors of rows [..., M, 1]. After the arguments the function gets the part of each
    that belongs to the sums; an extent of 1 stays 1. Rows [..., N], one for each matrix, are taken too, as [n]. On
    Hopper the first tile of [M, N] is loaded while the products still run, if it has the result's dtype and rows of a
    multiple of 16 bytes; and with it rows that are contiguous and begin at a multiple of 16 bytes. There are up to
    four arguments and tiles together. A TileWarning says where an epilogue has more values at once than there are
    registers. One that begins by casting its sums to 16 bits, and computes in that dtype, costs the least.

    In torch, plain products of float16, bfloat16 and float32 differentiate, also by numbers as scales; other calls with
    an operand that requires a gradient raise LaunchError. torch.compile takes a call whole.

    The same call gives the same bits each time. `out` may not overlap the operands; a tile may be the result itself,
    so that the sums are added to it. LaunchError says what does not fit.

    The kernel is that of the arrays' GPU; for NumPy arrays the setting ``TILEJIT_TARGET`` decides (sm_90a by
    default). The kernels for Blackwell have run on the simulator and been assembled, but not run on a GPU."""
    if is_traced(a, b, out) or needs_gradient(a, b, tiles, arguments, scale_a, scale_b):
        given = dict(a=a, b=b, out=out, epilogue=epilogue, arguments=arguments, tiles=tiles, scale_a=scale_a,
                     scale_b=scale_b, fast_accum=fast_accum, precision=precision, config=config)
        return _call_operator(given)
    return _multiply(a, b, out, epilogue, arguments, tiles, scale_a, scale_b, fast_accum, precision, config)


def _multiply(a, b, out, epilogue, arguments, tiles, scale_a, scale_b, fast_accum, precision, config):
    """`matmul`, by its parameters in their order."""
    scaled = () if scale_a is scale_b is None else (scale("scale_a", scale_a), scale("scale_b", scale_b))
    if epilogue is not None or arguments.__class__ is not tuple or tiles.__class__ is not tuple or arguments or tiles:
        check_listed(arguments=arguments, tiles=tiles)
        check_epilogue(epilogue, arguments, tiles)
    arrays = (a, b, *tiles) if out is None else (a, b, *tiles, out)
    forms, addresses = seen_as(("a", "b", *TILES[:len(tiles)], "out"), arrays)
    target = settings().target or "sm_90a" if forms[0][3] in ("host", -1) else None
    key = forms, out is None, precision, scaled, fast_accum, epilogue, len(arguments), config, target
    launch = known = _reusable_launch(earlier_plan(PLANS, key))
    if launch is None:
        x, y, z = describe(a), describe(b), None if out is None else describe(out)
        if max(len(x.shape), len(y.shape)) > 3:
            made = _folded_out(a, out, x, y, z, scaled)
            _multiply(fold_batches(a, "a"), fold_batches(b, "b"), fold_batches(made, "out", writable=True), epilogue,
                      arguments, folded_tiles(tiles, describe(made)), scale_a, scale_b, fast_accum, precision, config)
            return made
        if epilogue is not None:
            check_parameters(epilogue, places_of(x, y), len(arguments) + len(tiles))
        request = Request(x, y, z, precision, scaled, fast_accum, epilogue, len(arguments), tuple(map(describe, tiles)))
        launch = _plan_request(request, config, target or driver.target(x.device), tiles)
    made = new_array(a, launch.shape, launch.dtype) if out is None else out
    if launch.kernel is None:
        return made
    if out is not None:
        check_apart(launch.spans, addresses, arrays)
    given = launch.arguments(a, b, made, scale_a, scale_b, (*arguments, *tiles))
    try:
        if known is None:
            if epilogue is not None:
                launch = fit_registers(launch, given, target or driver.target(describe(a).device),
                                       simulated=target is not None, chosen=config is None)
            remember(PLANS, key, launch)
        launch.bound_kernel(*given)
    except (CompilationError, LaunchError):
        check_arguments(arguments, describe(a).device)
        raise
    return made


def _reusable_launch(launch: Launch | None) -> Launch | None:
    """A launch that is known, unless something that it depends on has changed."""
    if launch is not None and launch.watched and any(w.has_changed() for w in launch.watched):
        return None
    return launch


def _plan_request(request: Request, config: Config | BlackwellConfig | None, target: str, tiles) -> Launch:
    """The launch for a request. The sums of an epilogue with arguments do not wait in 16 bits, since the key of a
    plan lacks the dtypes of these."""
    return plan_launch(request, config, target,
                       taken=None if request.arguments else bind_dtype_taken(request.epilogue, tiles, target))


def _folded_out(a, out, x: ArrayView, y: ArrayView, z: ArrayView | None, scaled: tuple):
    """The result of a product with several leading dimensions: `out` if its shape fits, or a new array."""
    batch, m, n, _ = extents_of(x, y)
    if z is not None and z.shape != (*batch, m, n):
        raise LaunchError(f"out must be of shape {(*batch, m, n)}, not {z.shape}")
    return new_array(a, (*batch, m, n), result_dtype(x.dtype, scaled)) if out is None else out


def folded_tiles(tiles, z: ArrayView) -> tuple:
    """An epilogue's tiles for a result with several leading dimensions, with these folded into one. LaunchError for
    shapes that do not fit."""
    return tuple(folded_row(t) if axes == "zn" else fold_batches(t, "tiles")
                 for t, axes in zip(tiles, axes_of([describe(t) for t in tiles], z)))


# -- in torch ----------------------------------------------------------------------------------------------------------

FLOATS = "float16", "bfloat16", "float32"  # operands whose products differentiate
BESIDES = "epilogue", "arguments", "tiles"


def _call_operator(given: dict[str, Any]) -> Any:
    """`matmul` as an operator of torch, which traces it, maps it, or differentiates it."""
    if not is_traced(given["a"], given["b"], given["out"]):
        missing = _without_backward(given)
        if missing or not is_tensor(given["a"]):
            raise LaunchError(no_gradient("matmul", missing))
    return call_operator(OPERATORS["matmul"], given)


def _without_backward(given: dict[str, Any]) -> str:
    """Why a call has no backward, in words; "" if it has one."""
    a, b = given["a"], given["b"]
    if given.get("out") is not None:
        return "with out="
    for name in BESIDES:
        if given[name] is not None and given[name] != ():
            return f"with {name}="
    if not all(x is None or isinstance(x, (int, float)) for x in (given["scale_a"], given["scale_b"])):
        return "with arrays as scales"
    if getattr(a, "dtype", None) != getattr(b, "dtype", None) or name_of_dtype(a) not in FLOATS:
        return f"of {a.dtype} and {b.dtype}"
    return ""


def _new_result(given: dict[str, Any]) -> list[Any]:
    """The result's array, not computed yet."""
    a, b = given["a"], given["b"]
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise LaunchError(f"a and b are matrices, or batches of them, not of shapes {tuple(a.shape)} and "
                          f"{tuple(b.shape)}")
    if a.shape[-1] != b.shape[-2]:
        raise LaunchError(f"a is [{a.shape[-2]}, {a.shape[-1]}] and b is [{b.shape[-2]}, {b.shape[-1]}]: "
                          "their inner extents differ")
    scaled = tuple(x for x in (given["scale_a"], given["scale_b"]) if x is not None)
    dtype = result_dtype(name_of_dtype(a), scaled)
    return [new_tensor(a, (*(a.shape[:-2] or b.shape[:-2]), a.shape[-2], b.shape[-1]), dtype)]


def _gradients(given: dict[str, Any], gradients: Sequence[Any], _: Sequence[Any]) -> dict[str, Any]:
    """The gradients of a plain product: two products, summed over the leading extents that one operand lacks."""
    g, a, b = gradients[0], given["a"], given["b"]
    how = {name: given[name] for name in ("scale_a", "scale_b", "fast_accum", "precision")}
    found = {}
    if a.requires_grad:
        if len(a.shape) == 2 < len(g.shape):  # as one product over all columns
            found["a"] = matmul(_place_side_by_side(g), _place_side_by_side(b).transpose(0, 1), **how)
        else:
            found["a"] = matmul(g, b.transpose(-1, -2), **how)
    if b.requires_grad:
        if len(b.shape) == 2 < len(g.shape):
            found["b"] = matmul(a.reshape(-1, a.shape[-1]).transpose(0, 1), g.reshape(-1, g.shape[-1]), **how)
        else:
            found["b"] = matmul(a.transpose(-1, -2), g, **how)
    return found


def _place_side_by_side(x: Any) -> Any:
    """The matrices [..., M, N] of a batch beside each other, as one."""
    x = x.reshape(-1, *x.shape[-2:])
    return x.permute(1, 0, 2).reshape(x.shape[1], -1)


def _map(given: dict[str, Any], axes: dict[str, int | None], size: int) -> dict[str, Any]:
    """The call with a first axis of `size` in both operands, unless one is a matrix that all share."""
    if set(axes) - {"a", "b"} or given["epilogue"] is not None or given["arguments"] or given["tiles"]:
        raise LaunchError("matmul has no batched form of a call with an epilogue, arguments, tiles or arrays as scales "
                          "for torch.vmap: write the leading dimension")
    operands = {name: given[name] if axes[name] is None else given[name].movedim(axes[name], 0) for name in ("a", "b")}
    ranks = {name: len(x.shape) - (axes[name] is not None) for name, x in operands.items()}
    lead = next((operands[n].shape[int(axes[n] is not None):-2] for n in ranks if ranks[n] > 2), ())
    for name, x in operands.items():
        m, n = x.shape[-2:]
        if axes[name] is not None and ranks[name] == 2 and lead:
            operands[name] = x.reshape(size, *(1 for _ in lead), m, n).expand(size, *lead, m, n)
        elif axes[name] is None and ranks[name] > 2:
            operands[name] = x.expand(size, *lead, m, n)
    return {**given, **operands}


OPERATORS["matmul"] = Traced("matmul", _new_result, lambda into, given: matmul(**given, out=into[0]),
                             lambda made, given: made[0], _without_backward, _gradients, _map)

__all__ = ["matmul"]
