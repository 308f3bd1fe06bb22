"""``grouped_matmul``: several matrix products in one launch on Hopper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tilejit as tile

from ...config import config as settings
from ...dtypes import int32
from ...errors import CompilationError, LaunchError
from ...frames import hide_own_frames
from ...runtime import driver, streams
from ...runtime.arrays import ArrayView, describe, row_major
from ...runtime.element_types import ELEMENT_TYPES, numpy_dtype
from ..matmul.config import Config
from ..matmul.config_rules import HIGH, check_fields, check_halves, check_hopper, check_registers, check_shares
from ..matmul.constants import Epilogue, GroupedConstants
from ..matmul.launch import earlier_plan, remember
from ..operands import (
    EITHER_MAJOR,
    NOTHING,
    RESULTS,
    check_apart,
    check_arguments,
    check_epilogue,
    check_listed,
    check_lists_apart,
    check_no_gradient,
    check_out,
    check_parameters,
    dtype_of_sums,
    extents_of,
    lines,
    result_dtype,
    seen_as,
    span,
    stored_by_tma,
)
from ..pack import copy_readable, is_readable, pack
from ..traced import OPERATORS, Traced, call_operator, is_traced, name_of_dtype, new_tensor
from ..views import hold_if_captured, new_array, temporary, transpose
from . import kernel as hopper
from .choice import choose_grouped

FEW = 128  # rows up to which a product is memory-bound
MAJORS = EITHER_MAJOR["sm_90a"][1]  # element sizes of operands that need not be K-major
# rows of the table
ADDRESSES, STEPS = [hopper.A_AT, hopper.B_AT, hopper.C_AT], [hopper.A_ROW, hopper.B_ROW, hopper.C_ROW]
PLANS: dict = {}  # key of the arrays' properties and options -> Listed or Stacked


@hide_own_frames
def grouped_matmul(a: Any, b: Any, out: Any = None, epilogue: tile.Kernel[..., Any] | None = None,
                   arguments: Sequence[Any] = (), *, offs: Any = None, precision: str | None = None,
                   config: Config | None = None) -> Any:
    """``[x @ y for x, y in zip(a, b)]`` in one launch on a Hopper GPU (sm_90a); returns `out`,
    new arrays if it is not given.

    `a` and `b` are lists of equally many matrices, [M, K] and [K, N], with extents of their own for each product, all
    of one dtype, in any strides. `out` is a list of results [M, N], which may overlap neither an operand nor each
    other.

    Or, with `offs`, `a` is one matrix of stacked rows, `b` is [G, K, N], and the rows of `a` from ``offs[g - 1]`` (0
    for the first) up to ``offs[g]`` are multiplied by ``b[g]``. `offs` is an array of G int32 on the device of `a`,
    so a kernel launched before may compute the sizes of the groups. The values may not decrease; those beyond the
    last row of `a` count as that. Rows of the result from ``offs[G - 1]`` on are not written.

    `epilogue` is a function under ``@tile.jit`` through which the sums go before they are stored, as in `matmul`. It
    takes a tile of them, the number of the product, the row and the column of the tile's first element (of stacked
    rows, the row in `a`), and the `arguments`, up to four arrays or numbers.

    Arrays, dtypes, `precision` and what is copied first are as in `matmul`, except that float32 is copied if it is
    not contiguous along k, and that float8 is summed as with `fast_accum`. A `config` is one for `matmul` on Hopper
    that neither splits nor shares tiles, and leaves `late`, `alone`, `passing` and `dependent` at their defaults. New
    results have rows a multiple of 16 bytes apart. Given results, which may all be column-major, are copied
    afterwards if TMA cannot store to them in place. Nothing waits for the GPU. The same call gives the same bits each
    time. LaunchError says what does not fit."""
    first = a if offs is not None or not isinstance(a, (list, tuple)) or not a else a[0]
    if is_traced(first, offs):
        return call_operator(OPERATORS["grouped_matmul"], dict(
            a=a, b=b, out=out, epilogue=epilogue, arguments=arguments, offs=offs, precision=precision, config=config))
    if epilogue is not None or arguments.__class__ is not tuple or arguments:
        check_listed(arguments=arguments)
        check_epilogue(epilogue, arguments, ())
    if offs is not None:
        check_no_gradient("grouped_matmul", a, b, *arguments)
        return _multiply_stacked(a, b, out, offs, precision, config, epilogue, arguments)
    _check_lists(a, b, out)
    check_no_gradient("grouped_matmul", *a, *b, *arguments)
    found = [seen_as((f"{name}[{g}]" for g in range(len(some))),
                     some) for name, some in (("a", a), ("b", b), ("out", out or ()))]
    key = *(forms for forms, _ in found), precision, config, epilogue, len(arguments)
    plan = earlier_plan(PLANS, key)
    if plan is None:
        views = [[describe(x) for x in some] for some in (a, b, out or ())]
        plan = _plan_lists(views[0], views[1], views[2], precision, config, epilogue, len(arguments))
        remember(PLANS, key, plan, most=256)
    if out is None:
        out = _new_results(plan, a)
        found[2] = seen_as((), out)
    if plan.order:
        lists: tuple = a, b, out
        pointers = [pointers for _, pointers in found]
        if plan.swapped:
            lists = tuple([transpose(x) for x in some] for some in (b, a, out))  # of B, A and C
            pointers = [pointers[1], pointers[0], pointers[2]]
        _launch(plan, lists, pointers, arguments)
    return out


def _check_lists(a: Any, b: Any, out: Any) -> None:
    """LaunchError if these are not lists of equally many matrices; `out` may be None."""
    for name, x in (("a", a), ("b", b), ("out", out)):
        if not isinstance(x, (list, tuple)) and not (x is None and name == "out"):
            raise LaunchError(f"{name} must be a list of matrices unless offs= is given, not {type(x).__name__}")
    if len(a) != len(b) or out is not None and len(out) != len(a):
        lengths = f"{len(a)} and {len(b)}" if out is None else f"{len(a)}, {len(b)} and {len(out)}"
        raise LaunchError(f"a, b and out are lists of one matrix for each product, not of {lengths}")


def _new_results(plan: Listed, a: Sequence[Any]) -> list[Any]:
    """New arrays for the results, whose rows are a multiple of 16 bytes apart."""
    made = [new_array(a[g], (m, wide), plan.dtype) for g, (m, n, wide) in enumerate(plan.results)]
    made = [z if wide == n else z[:, :n] for z, (m, n, wide) in zip(made, plan.results)]
    return [transpose(z) for z in made] if plan.swapped else made


@dataclass(frozen=True)
class Listed:
    """The plan for lists with such shapes, strides and dtypes. `results`: (rows, columns, columns rounded up to 16
    bytes) of each product. `order`: the products that have elements, by falling K and M; the other fields are in this
    order. `table`: the kernel's table without addresses. `copies`: the matrices to copy, operands first and results
    last, as (0, 1, 2 for A, B, C; position in the order). `turned`: whether A and B are given as [k, rows].
    `swapped`: A and B have changed places, and all fields describe the transposed results. `places`: the `lines` of
    the arrays, [4, 3, products], if results are given."""

    results: tuple[tuple[int, int, int], ...]
    dtype: str
    order: tuple[int, ...] = ()
    table: np.ndarray | None = None
    copies: tuple[tuple[int, int], ...] = ()
    turned: tuple[bool, bool, bool] = (False, False, False)
    grid: int = 0
    constants: dict = field(default_factory=dict)
    swapped: bool = False
    places: np.ndarray | None = None


def _plan_lists(a: list[ArrayView], b: list[ArrayView], out: list[ArrayView], precision: str | None,
                config: Config | None, epilogue, extras: int) -> Listed:
    """The plan for such lists. LaunchError says what does not fit."""
    shapes, sums, (dtype, _, stored, device) = _check_products(a, b, out, precision, epilogue is not None)
    size = ELEMENT_TYPES[stored].nbytes
    config = _adapt_config(config, size)
    if config is not None:
        swapped = config.swapped
    else:
        swapped = bool(out) and all(z.strides[-1] != 1 and z.strides[-2] == 1 for z in out)
    if swapped:
        (a, b, out), shapes = ([x.transpose for x in some] for some in (b, a, out)), [(n, m, k) for m, n, k in shapes]
    itemsize, unit = ELEMENT_TYPES[dtype].nbytes, 16 // size
    results = tuple((m, n, -(-n // unit) * unit) for m, n, k in shapes)
    order = _sequence(shapes)
    if not order:
        return Listed(results, stored, swapped=swapped)
    processors = _processors(device)
    config = config or choose_grouped(tuple(shapes[g] for g in order), itemsize, size, processors, epilogue is not None)
    forms = [(a[g], b[g].transpose, out[g] if out else None) for g in order]
    across, copies = _majors(forms, config)
    table = _table(order, forms, shapes, results, across, config)
    grid = _grid(int(table[hopper.END, -1]), processors, config)
    check_registers(config, config.bn, across[0] and itemsize == 4)
    check_shares(config)
    check_hopper(config, itemsize, sums == int32, across[1], size)
    constants = _constants(config, across, sums, config.width, epilogue, extras, swapped)
    places = None
    if out:
        places = np.array([[lines(some[g]) for g in order] for some in (a, b, out)]).transpose(2, 0, 1)
    return Listed(results, stored, order, table, tuple(copies), (*across, False), grid, constants, swapped, places)


def _majors(forms: list[tuple], config: Config) -> tuple[tuple[bool, bool], list[tuple[int, int]]]:
    """Whether the kernel reads A, and B, as [k, rows], and what is then copied (see `Listed.copies`)."""
    # whether [k, rows]; None: to be copied
    lies = [tuple(v.strides[-1] != 1 if is_readable(v, MAJORS) else None for v in f[:2]) for f in forms]
    a_across, b_across = (any(found) and False not in found for found in zip(*lies))
    across = a_across, b_across
    copies = [(side, at) for side in (0, 1) for at, some in enumerate(lies) if some[side] != across[side]]
    copies += [(2, at) for at, (*_, z) in enumerate(forms) if z is not None and not stored_by_tma(z, config.width)]
    return across, copies


def _table(order: tuple[int, ...], forms: list[tuple], shapes: list, results: tuple, across: tuple[bool, ...],
           config: Config) -> np.ndarray:
    """The kernel's table, without addresses. LaunchError if there are too many tiles."""
    table = np.zeros((hopper.FIELDS, len(order)), np.int64)
    for at, (g, (x, y, z)) in enumerate(zip(order, forms)):
        m, n, k = shapes[g]
        table[[hopper.M, hopper.N, hopper.K, hopper.COLUMNS], at] = m, n, max(k, 1), results[g][2]
        table[hopper.NUMBER, at] = g
        table[STEPS, at] = (x.strides[-1 if across[0] else -2], y.strides[-1 if across[1] else -2],
                            results[g][2] if z is None else z.strides[0])
        table[hopper.END, at] = (table[hopper.END, at - 1] if at else 0) + pieces(config, m, n)
    if table[hopper.END, -1] >= hopper.NONE:
        raise LaunchError(f"the results have {table[hopper.END, -1]} tiles of {config.bm} by {config.bn}, "
                          "too many to count in 31 bits")
    return table


def _sequence(shapes: list[tuple[int, int, int]]) -> tuple[int, ...]:
    """The products that have elements, in the order in which they are computed: by falling K, then falling M, so that
    all CTAs end at about the same time. Products of few rows, which are memory-bound, are spread evenly among the
    others."""
    def key(g):
        return (-shapes[g][2], -shapes[g][0])
    some = sorted((g for g, (m, n, k) in enumerate(shapes) if m and n), key=key)
    place = {}
    for of in ([g for g in some if shapes[g][0] <= FEW], [g for g in some if shapes[g][0] > FEW]):
        work, done = [max(shapes[g][0], FEW) * shapes[g][1] * max(shapes[g][2], 1) for g in of], 0
        for g, w in zip(of, work):
            place[g], done = (done + w) / sum(work), done + w
    return tuple(sorted(some, key=lambda g: (place[g], *key(g))))


def _check_products(a: list, b: list, out: list, precision: str | None, changed: bool) -> tuple:
    """(M, N, K) of each product, the dtype of the sums, and the dtypes of operands and results with their device."""
    shapes, sums, kinds = [], None, set()
    for g, (x, y, z) in enumerate(zip(a, b, out or [None] * len(a))):
        try:
            for name, v in (("a", x), ("b", y)):
                if len(v.shape) != 2:
                    raise LaunchError(f"{name} is a matrix, not of shape {v.shape}")
            shapes.append(extents_of(x, y)[1:])
            sums = dtype_of_sums(x, y, precision)
            if z is not None:
                check_out(z, shapes[-1][:2], sums, changed)
                if z.device != x.device:
                    raise LaunchError(f"out must be where a and b are, on {x.device}, not on {z.device}")
        except LaunchError as error:
            raise LaunchError(f"product {g}: {error}") from None
        kinds.add((x.dtype, y.dtype, RESULTS[x.dtype] if z is None else z.dtype, x.device))
    if len(kinds) > 1:
        raise LaunchError("the products of a list must have the same dtypes on one device, "
                          f"and these have {' and '.join(sorted(map(str, kinds)))}")
    return shapes, sums, next(iter(kinds), ("float16", "float16", "float16", "host"))


def _processors(device) -> int:
    """The number of CTAs that run at once. LaunchError if the target has no such kernel."""
    target = settings().target or "sm_90a" if device == "host" else driver.target(device)
    if target != "sm_90a":
        raise LaunchError(f"grouped_matmul has a kernel for sm_90a, and the target is {target}")
    return 4 if device == "host" else driver.multiprocessors(device)


def _adapt_config(config: Config | None, size: int) -> Config | None:
    """A given configuration, adapted to this kernel. LaunchError if it is not one that the kernel takes."""
    if config is None:
        return None
    if not isinstance(config, Config):
        raise LaunchError(f"config is a Config, not {config!r}")
    check_fields(**vars(config))
    if config.splits > 1 or config.stream:
        raise LaunchError(f"grouped_matmul takes no config.splits and no config.stream, and config is {config!r}")
    for name, plain in (("late", 0), ("alone", 0), ("passing", False), ("dependent", False)):
        if (value := getattr(config, name)) != plain:
            raise LaunchError(f"config.{name} is for matmul alone: it must be {plain} with grouped_matmul, not {value}")
    if config.width * size < 32:
        raise LaunchError("grouped_matmul stores at least 32 bytes of a row at once, "
                          f"and config.width is {config.width} elements of {size} bytes")
    if config.bm == HIGH:
        raise LaunchError("the consumers of grouped_matmul have 64 rows each: "
                          f"config.bm must be at most 192, not {HIGH}")
    if config.pair:
        check_halves(config)
    # Results wider than 2 bytes do not fit in registers. With more buffers than a tile has parts, TMA might not have
    # read a piece's results when it has read the next one's.
    return replace(config, kept=config.kept and size <= 2,
                   buffers=min(config.buffers, max(config.bn // config.width, 1)))


def pieces(config: Config, m: int, n: int) -> int:
    """The number of pieces of work in an M x N result. A piece is a tile; for pairs of CTAs it is two tiles, one
    above the other, or side by side in the last row of tiles if there is an odd number of rows."""
    down, across = -(-m // config.bm), -(-n // config.bn)
    return down // 2 * across + down % 2 * -(-across // 2) if config.pair else down * across


def _grid(count: int, processors: int, config: Config) -> int:
    """The number of CTAs for `count` pieces of work."""
    group = 2 if config.pair else 1
    return group * min(count, max(processors // group, 1))


def _constants(config: Config, across: tuple[bool, bool], sums, width: int, epilogue=None, extras: int = 0,
               swapped: bool = False) -> dict:
    """The kernel's constants."""
    if epilogue is not None:
        check_parameters(epilogue, ("the sums", "the product's number", "the row", "the column"), extras)
    plan = GroupedConstants(
        bm=config.bm, bn=config.bn, bk=config.bk, stages=config.stages, order=config.order, behind=config.behind,
        regs=config.regs, a_km=across[0], b_kn=across[1], sums=sums, width=width, buffers=config.buffers,
        epilogue=Epilogue((), epilogue, True, swapped, (), extras), kept=config.kept and width > 0 and epilogue is None,
        pair=config.pair)
    return dict(PLAN=plan, cluster=2 if config.pair else None, num_warps=config.num_warps)


def _launch(plan: Listed, lists, pointers: list[list[int]], arguments) -> None:
    """Complete the table by the addresses, copy what has to be copied, and launch."""
    assert plan.table is not None  # there is something to compute
    table = plan.table.copy()
    for row, some in zip(ADDRESSES, pointers):
        table[row] = [some[g] for g in plan.order]
    if plan.places is not None:
        check_lists_apart(plan.places, table[ADDRESSES], lists,
                          ("b", "a", "out") if plan.swapped else ("a", "b", "out"), plan.order)
    copies = {}
    for side, at in plan.copies:
        x, (m, n, wide) = lists[side][plan.order[at]], plan.results[plan.order[at]]
        if side == 2:
            copies[side, at] = temporary(x, (m, wide), plan.dtype)[:, :n]
        else:
            copies[side, at] = copy_readable(transpose(x) if side else x, plan.turned[side])

    def matrix_of(side: int, at: int):
        """The matrix that the kernel gets."""
        x = copies.get((side, at))
        if x is not None:
            return x
        given = lists[side][plan.order[at]]
        return transpose(given) if side == 1 else given

    for (side, at), x in copies.items():
        view = describe(x)
        table[ADDRESSES[side], at], table[STEPS[side], at] = view.pointer, view.strides[-1 if plan.turned[side] else -2]
    A, B, C = (transpose(matrix_of(side, 0)) if k_first else matrix_of(side, 0)
               for side, k_first in enumerate(plan.turned))
    first = describe(A)
    storage, results = _copy_into_one_storage(plan, matrix_of, table) if first.device == "host" else (0, ())
    _run(plan, A, B, C, _on_device(table, A, first), storage, arguments)
    for g, result in zip(plan.order, results):
        describe(lists[2][g]).numpy()[...] = result[:, :plan.results[g][1]]  # of torch too
    for (side, at), x in copies.items() if not results else ():
        if side == 2:
            pack(x, lists[2][plan.order[at]])


def _run(plan, A, B, C, table, storage, arguments) -> None:
    """Launch the kernel."""
    try:
        hopper.grouped[plan.grid](A, B, C, table, storage, _maps(A, plan.grid), *arguments, *NOTHING[len(arguments):],
                                  **plan.constants)
    except (CompilationError, LaunchError):
        check_arguments(arguments, describe(A).device)
        raise


def _on_device(table: np.ndarray, like, first: ArrayView):
    """The table on the arrays' device. Nothing waits: the driver reads its bytes at once, or, in a CUDA graph,
    whenever that runs."""
    if first.device == "host":
        return table
    made = temporary(like, table.shape, "int64")
    hold_if_captured(table, first)
    driver.copy_to_device(describe(made).pointer, table.ctypes.data, table.nbytes, first.ordinal,
                          streams.current_stream(first))
    return made


def _maps(like, ctas: int):
    """Memory for the tensor maps of `ctas` CTAs, each at a multiple of 128 bytes."""
    rows = ctas * hopper.SETS * 3
    made = temporary(like, (rows * 128 + 127,), "uint8")
    begin = -describe(made).pointer % 128
    return made[begin:begin + rows * 128].reshape(rows, 128)


def _copy_into_one_storage(plan: Listed, taken, table: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Copies host arrays into one storage, in which the simulator finds what an address points to: operands with the
    strides that they had, then the results. Returns the storage and the results in it."""
    views = [describe(taken(side, at)) for side in (0, 1) for at in range(len(plan.order))]
    for m, n, wide in (plan.results[g] for g in plan.order):
        views.append(ArrayView(0, (m, wide), (wide, 1), plan.dtype, "host"))
    sizes = [-(-(sum((n - 1) * s for n, s in zip(v.shape, v.strides)) + 1) * v.nbytes_per_element // 128) * 128
             for v in views]
    storage = np.zeros(sum(sizes) + 128, np.uint8)
    places = np.cumsum([-storage.ctypes.data % 128, *sizes[:-1]])
    there = [np.ndarray(v.shape, numpy_dtype(v.dtype), storage, at, [s * v.nbytes_per_element for s in v.strides])
             for v, at in zip(views, places)]
    for x, v in zip(there, views):
        if v.pointer:
            x[...] = v.numpy()
    table[ADDRESSES] = storage.ctypes.data + places.reshape(3, -1)
    table[hopper.C_ROW] = [v.strides[0] for v in views[-len(plan.order):]]
    return storage, there[-len(plan.order):]


# -- stacked rows ------------------------------------------------------------------------------------------------------

def _multiply_stacked(a, b, out, offs, precision: str | None, config: Config | None, epilogue, arguments):
    """The stacked rows of `a`, up to each of `offs`, times the matrices of `b`."""
    arrays = (a, b, offs) if out is None else (a, b, offs, out)
    forms, addresses = seen_as(("a", "b", "offs", "out"), arrays)
    key = ("stacked", forms, out is None, precision, config, epilogue, len(arguments),
           settings().target if forms[0][3] in ("host", -1) else None)
    plan = earlier_plan(PLANS, key)
    if plan is None:
        plan = _planned_stack(describe(a), describe(b), describe(offs), None if out is None else describe(out),
                              precision, config, epilogue, len(arguments))
        remember(PLANS, key, plan, most=256)
    made = new_array(a, plan.shape, plan.dtype) if out is None else out
    if not plan.grid:
        return made
    if out is not None:
        check_apart(plan.spans, addresses, arrays, ("a", "b", "offs"))
    A, B = copy_readable(a) if plan.copied[0] else a, copy_readable(transpose(b)) if plan.copied[1] else b
    _run(plan, A, B if plan.constants["PLAN"].b_kn or plan.copied[1] else transpose(B), made, offs, 0, arguments)
    return made


@dataclass(frozen=True)
class Stacked:
    """The plan for stacked rows with such shapes, strides and dtypes: the result, and the launch (grid 0: there is
    nothing to do). `spans`: the bytes, relative to their addresses, that the operands, the offsets and the result
    occupy."""

    shape: tuple[int, int]
    dtype: str
    grid: int = 0
    copied: tuple[bool, bool] = (False, False)
    constants: dict = field(default_factory=dict)
    spans: tuple[tuple[int, int], ...] = ()


def _planned_stack(x: ArrayView, y: ArrayView, ends: ArrayView, out: ArrayView | None, precision: str | None,
                   config: Config | None, epilogue, extras: int) -> Stacked:
    if len(x.shape) != 2 or len(y.shape) != 3:
        raise LaunchError(f"with offs=, a is [rows, K] and b is [G, K, N], not of shapes {x.shape} and {y.shape}")
    if ends.dtype != "int32" or ends.shape != y.shape[:1]:
        raise LaunchError(f"offs is an array of {y.shape[0]} int32, one for each matrix of b, "
                          f"not {ends.shape} of {ends.dtype}")
    if ends.device != x.device:
        raise LaunchError(f"offs must be where a is, on {x.device}, not on {ends.device}")
    _, rows, n, k = extents_of(x, ArrayView(0, y.shape[1:], y.strides[1:], y.dtype, y.device))
    sums, groups = dtype_of_sums(x, y, precision), y.shape[0]
    z = ArrayView(0, (rows, n), row_major((rows, n)), RESULTS[x.dtype], x.device) if out is None else out
    check_out(z, (rows, n), sums, epilogue is not None)
    if 0 in (rows, n, groups):
        return Stacked((rows, n), z.dtype)
    processors = _processors(x.device)
    sizes = x.nbytes_per_element, z.nbytes_per_element
    config = _adapt_config(config, sizes[1])
    if config is not None and config.swapped:
        raise LaunchError(f"grouped_matmul with offs= does not swap its operands, and config is {config!r}")
    config = config or choose_grouped(((-(-rows // groups), n, k),) * groups, *sizes, processors, epilogue is not None)
    spans = tuple(map(span, (x, y, ends, z)))
    y = y.transpose
    copies = not is_readable(x, MAJORS) or x.strides[-1] != 1, not is_readable(y, MAJORS)
    width = config.width if stored_by_tma(z, config.width) else 0
    grid = _grid((-(-rows // config.bm) + groups) * -(-n // config.bn), processors, config)
    across = False, not copies[1] and y.strides[-1] != 1
    check_registers(config, config.bn)
    check_shares(config)
    check_hopper(config, sizes[0], sums == int32, across[1], sizes[1] if width else None)
    constants = _constants(config, across, sums, width, epilogue, extras)
    return Stacked((rows, n), z.dtype, grid, copies, constants, spans)


# -- in torch ----------------------------------------------------------------------------------------------------------

def _new_arrays(given: dict[str, Any]) -> list[Any]:
    """The arrays of the results, not computed yet; rows of a list's are a multiple of 16 bytes apart."""
    a, b = given["a"], given["b"]
    if given["offs"] is not None:
        return [new_tensor(a, (a.shape[0], b.shape[-1]), result_dtype(name_of_dtype(a), ()))]
    made = []
    for x, y in zip(a, b):
        dtype, n = result_dtype(name_of_dtype(x), ()), y.shape[-1]
        unit = 16 // ELEMENT_TYPES[dtype].nbytes
        wide = -(-n // unit) * unit
        z = new_tensor(x, (x.shape[0], wide), dtype)
        made.append(z if wide == n else z[:, :n])
    return made


def _compute(into: Sequence[Any], given: dict[str, Any]) -> None:
    grouped_matmul(**given, out=list(into) if given["offs"] is None else into[0])


OPERATORS["grouped_matmul"] = Traced(
    "grouped_matmul", _new_arrays, _compute, lambda made, given: list(made) if given["offs"] is None else made[0],
    lambda given: "yet")

__all__ = ["grouped_matmul"]
