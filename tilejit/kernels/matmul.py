"""``matmul``: the function that calls the matrix products' kernels on Hopper and Blackwell."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import tilejit as tile

from ..concurrency import cached_property
from ..config import config as settings
from ..errors import LaunchError
from ..runtime import driver
from ..runtime.arrays import ArrayView, describe, row_major
from . import blackwell, hopper
from .blackwell_plan import BlackwellConfig, choose as choose_blackwell
from .config import SHARED, Config
from .cycles import LARGE, Problem, shared_rest
from .fitted import fitted
from .mainloop import BLOCK
from .narrowed import asked
from .operands import (
    BLACKWELL,
    EITHER_MAJOR,
    HOPPER,
    NOTHING,
    TILES,
    axes_of,
    check_apart,
    check_arguments,
    check_epilogue,
    check_listed,
    check_out,
    check_parameters,
    check_target,
    comes_ahead,
    dtype_of_sums,
    extents_of,
    in_byte,
    line_comes_ahead,
    places_of,
    result_dtype,
    seen_as,
    span,
    stored_by_tma,
)
from .overlap import most_late
from .pack import alignment, as_readable, copied_bytes, readable
from .plan import PART, choose, evenly
from .rules import (
    EITHER,
    HIGH,
    check_alone,
    check_blackwell,
    check_hopper,
    check_pair,
    check_registers,
    check_shared,
    check_shared_on_blackwell,
    check_shares,
    widths,
)
from .scales import block_of, by_rows, in_units, of_blocks, one_factor, scale
from .stream import CTAS, shares, stream, whole_groups, workspace
from .views import folded, folded_row, new, turned

ANY = 1 << 20       # bytes that a kernel with an epilogue may spill without the compiler's warning: `fitted` gives its own


def matmul(a, b, out=None, epilogue=None, arguments=(), *, tiles=(), scale_a=None, scale_b=None, fast_accum: bool = False,
           precision: str | None = None, config: Config | BlackwellConfig | None = None):
    """``a @ b`` on the tensor cores of a Hopper or Blackwell GPU (sm_90a, sm_100a, sm_103a); returns `out`, a new array if it is not given.

    `a` is [..., M, K] and `b` is [..., K, N], with any extents and strides; leading dimensions of both are equal, or one of them has none. Arrays
    are torch tensors, CuPy arrays, DeviceArrays (on the GPU) or NumPy arrays (on the simulator). Operands that TMA cannot read in place are
    copied first: rows not a multiple of 16 bytes apart; or not contiguous along k, for types of 1 byte, or in both operands of float32.

    float16, bfloat16, float8 (both kinds, also mixed) and, with ``precision="tf32"``, float32 (rounded to the nearest of 10 bits of mantissa) are
    summed in float32, int8 and uint8 in int32. The result has the operands' dtype, but bfloat16 for float8, int32 for integers, and float32 for
    scaled integers; an `out` of another float dtype is rounded to. In sums of float8, Hopper's tensor cores keep only 13 bits below the largest
    term. So threads add up the sums of each 128 along k in float32; `fast_accum` leaves all sums to the tensor cores, which is faster.

    `scale_a` and `scale_b` are factors of the result: numbers, or arrays of one float32, in any shape. For two matrices both may be arrays with a
    factor for each block along k. On Hopper these are float32, for blocks of 128 along k of float8: `scale_a` is [M, K/128] or, with one for 128
    rows, [M/128, K/128]; `scale_b` is [K/128, N] or [K/128, N/128]; extents are rounded up, and threads always add up the sums. On Blackwell they
    are float8_e8m0fnu for 32 along k of float8 or float4_e2m1fn, or float8_e4m3fn for 16 of float4, in the layout of cuBLAS and torch._scaled_mm:
    contiguous units of 512 bytes, with the factors of 128 rows of `a` (columns of `b`) and 4 blocks, where that of row r and block j is at
    ``r % 32 * 16 + r // 32 * 4 + j``; units along k come first, then those of the next rows. Factors beyond K are numbers (no NaN). float4 operands
    are torch's pairs or ``tile.Packed``, two in a byte along k, in rows of a multiple of 16 bytes: `b` is the transpose of [N, K].

    `epilogue` is a function under ``@tile.jit`` through which the sums go before they are stored. It takes a tile of sums, the row and the column
    of its first element (before these the number of the matrix, in a product with leading dimensions), and the `arguments`, arrays or numbers; it
    returns a tile of the same shape. `tiles` are arrays that broadcast to the result as in NumPy, with all of its leading dimensions or none: a
    residual [..., M, N], a bias [N] or [..., 1, N], factors of rows [..., M, 1]. After the arguments the function gets the part of each that
    belongs to the sums; an extent of 1 stays 1. Rows [..., N], one for each matrix, are taken too, as [n]. On Hopper the first tile of [M, N] is
    loaded while the products still run, if it has the result's dtype and rows of a multiple of 16 bytes; and with it rows that are contiguous and
    begin at a multiple of 16 bytes. There are up to four arguments and tiles together. A TileWarning says where an epilogue has more values at
    once than there are registers. One that begins by casting its sums to 16 bits, and computes in that dtype, costs the least.

    The same call gives the same bits each time. `out` may not overlap the operands; a tile may be the result itself, so that the sums are added
    to it. LaunchError says what does not fit.

    The kernel is that of the arrays' GPU; for NumPy arrays the setting ``TILEJIT_TARGET`` decides (sm_90a by default). The kernels for Blackwell
    have run on the simulator and been assembled, but not run on a GPU."""
    scaled = () if scale_a is scale_b is None else (scale("scale_a", scale_a), scale("scale_b", scale_b))
    if epilogue is not None or arguments.__class__ is not tuple or tiles.__class__ is not tuple or arguments or tiles:
        check_listed(arguments=arguments, tiles=tiles)
        check_epilogue(epilogue, arguments, tiles)
    arrays = (a, b, *tiles) if out is None else (a, b, *tiles, out)
    forms, addresses = seen_as(("a", "b", *TILES[:len(tiles)], "out"), arrays)
    target = settings().target or "sm_90a" if forms[0][3] in ("host", -1) else None
    key = forms, out is None, precision, scaled, fast_accum, epilogue, len(arguments), config, target
    launch = known = recalled(PLANS, key)
    if launch is not None and launch.watched and any(w.changed() for w in launch.watched):
        launch = known = None
    if launch is None:
        x, y, z = describe(a), describe(b), None if out is None else describe(out)
        if max(len(x.shape), len(y.shape)) > 3:
            made = _folded_out(a, out, x, y, z, scaled)
            matmul(folded(a, "a"), folded(b, "b"), folded(made, "out", writable=True), epilogue, arguments, tiles=folded_tiles(tiles, describe(made)),
                   scale_a=scale_a, scale_b=scale_b, fast_accum=fast_accum, precision=precision, config=config)
            return made
        if epilogue is not None:
            check_parameters(epilogue, places_of(x, y), len(arguments) + len(tiles))
        code = target or driver.target(x.device)
        launch = _planned(x, y, z, precision, scaled, fast_accum, epilogue, len(arguments), [describe(t) for t in tiles], config, code,
                          taken=None if arguments else asked(epilogue, tiles, code))  # the key does not have the arguments' dtypes
    made = new(a, launch.shape, launch.dtype) if out is None else out
    if launch.kernel is None:
        return made
    if out is not None:
        check_apart(launch.spans, addresses, arrays)
    given = launch.given(a, b, made, scale_a, scale_b, (*arguments, *tiles))
    try:
        if known is None:
            if epilogue is not None:
                launch = fitted(launch, given, code, simulated=target is not None, chosen=config is None)
            remember(PLANS, key, launch)
        launch.prepared(*given)
    except LaunchError:
        check_arguments(arguments, describe(a).device)
        raise
    return made


@dataclass(frozen=True)
class Launch:
    """What a call with such extents, strides and dtypes runs: the kernel (None: there is nothing to launch) with its grid and constants, and the
    result's shape and dtype. `swapped`: the operands change places. `turned`: which of A, B and C are then passed transposed. `copied`: which of
    A and B are copied first; `either`: the element sizes of A and of B that need not be contiguous along k. `rows`: the rows of all matrices of A
    together, where they share one B. `shares`: how CTAs share tiles; `room`: shape and dtype of the sums that they write for each other. `spans`:
    the bytes, relative to their addresses, that the operands, the tiles and the result occupy. `watched`: what must not change meanwhile."""

    shape: tuple[int, ...]
    dtype: str
    kernel: tile.Kernel | None = None
    grid: tuple[int, ...] = ()
    constants: dict = field(default_factory=dict)
    swapped: bool = False
    turned: tuple[bool, bool, bool] = (False, False, False)
    copied: tuple[bool, bool] = (False, False)
    either: tuple[tuple[int, ...], ...] = ()
    rows: int | None = None
    shares: tuple[int, ...] = ()
    room: tuple | None = None
    spans: tuple[tuple[int, int], ...] = ()
    watched: tuple = ()

    @cached_property
    def prepared(self):
        """The kernel on its grid with its constants: a function of what `given` returns."""
        return self.kernel.prepared(self.grid, **self.constants)

    def given(self, a, b, c, scale_a, scale_b, extra: tuple) -> tuple:
        """All arguments of the kernel; `extra` are the epilogue's arguments and tiles."""
        room = () if self.room is None else workspace(c, *self.room)
        return *self.operands(a, b, c), *self.scales(scale_a, scale_b), *extra, *NOTHING[len(extra):], *self.shares, *room

    def operands(self, a, b, c) -> tuple:
        """The arrays as the kernel takes them."""
        if self.rows is not None:
            a, c = a.reshape((self.rows, a.shape[-1])), c.reshape((self.rows, c.shape[-1]))
        if self.swapped:
            a, b = b, a
        if self.copied[0]:
            a = as_readable(turned(a) if self.swapped else a, self.either[0])
        if self.copied[1]:
            b = as_readable(b if self.swapped else turned(b), self.either[1])
        turn_a, turn_b, turn_c = self.turned
        return turned(a) if turn_a else a, turned(b) if turn_b else b, turned(c) if turn_c else c

    def scales(self, a, b) -> tuple:
        """The scales as the kernel takes them. Block scales are in the operands' places, as TMA loads them: [k, rows] if each row has its own,
        else [rows, k]; on Blackwell in units."""
        if blocks := self.constants.get("BLOCKS"):
            both = (turned(b), a) if self.swapped else (a, turned(b))
            return tuple(as_readable(turned(s) if by_row else s, ()) for s, by_row in zip(both, blocks))
        if self.constants.get("BLOCK"):
            rows = self.shape[::-1] if self.swapped else self.shape
            return tuple(in_units(s, n) for s, n in zip((b, a) if self.swapped else (a, b), rows))
        return one_factor(a), one_factor(b)


def _folded_out(a, out, x: ArrayView, y: ArrayView, z: ArrayView | None, scaled: tuple):
    """The result of a product with several leading dimensions: `out` if its shape fits, or a new array."""
    batch, m, n, _ = extents_of(x, y)
    if z is not None and z.shape != (*batch, m, n):
        raise LaunchError(f"out must be of shape {(*batch, m, n)}, not {z.shape}")
    return new(a, (*batch, m, n), result_dtype(x.dtype, scaled)) if out is None else out


def folded_tiles(tiles, z: ArrayView) -> tuple:
    """An epilogue's tiles for a result with several leading dimensions, with these folded into one. LaunchError for shapes that do not fit."""
    return tuple(folded_row(t) if axes == "zn" else folded(t, "tiles") for t, axes in zip(tiles, axes_of([describe(t) for t in tiles], z)))


PLANS: dict[tuple, Launch] = {}  # keyed by all that `_planned` depends on


def recalled(plans: dict, key: tuple):
    """The plan of an earlier call with this key. None if there is none, or if the key cannot be hashed: planning then explains what is wrong with
    the options."""
    try:
        return plans.get(key)
    except TypeError:  # no hash
        return None


def remember(plans: dict, key: tuple, plan, most: int = 4096) -> None:
    """Keep a plan for later calls; beyond `most` plans the oldest is dropped."""
    if len(plans) >= most:
        plans.pop(next(iter(plans)), None)
    plans[key] = plan


def _planned(x: ArrayView, y: ArrayView, out: ArrayView | None, precision: str | None, scaled: tuple, fast_accum: bool, epilogue, arguments: int,
             tiles: list[ArrayView], config: Config | BlackwellConfig | None, target: str, choice=None, taken=None) -> Launch:
    """The launch for such operands, with `config`; without one, with what ``choice(problem, processors, columns_first)`` returns, or the model's
    choice. ``taken(finish, sums, width)`` returns the 16-bit dtype to which the epilogue casts its sums first, or None (see `narrowed.asked`).
    LaunchError says what does not fit."""
    check_target(target, x, config)
    if not EITHER.holds(fast_accum):
        raise LaunchError(f"fast_accum is {EITHER.words}, not {fast_accum!r}")
    per = in_byte(x, y, target)
    batch, m, n, k = extents_of(x, y)
    sums = dtype_of_sums(x, y, precision) if per == 1 else tile.float32
    k *= per
    scaled_blocks = of_blocks(scaled, x.device)
    blocks = by_rows(x, y, scaled) if scaled_blocks and target in HOPPER else ()
    block = block_of(x, y, scaled, k) if scaled_blocks and target in BLACKWELL else 0
    if per == 2 and not scaled_blocks:
        raise LaunchError("the tensor cores multiply float4 only with a scale factor for each block along k: give scale_a and scale_b")
    float8 = x.dtype.startswith("float8") and target in HOPPER
    promoted = blocks if blocks else None if fast_accum or not float8 else ()
    shape = (*batch, m, n)
    z = ArrayView(0, shape, row_major(shape), result_dtype(x.dtype, scaled), x.device) if out is None else out
    check_out(z, shape, tile.float32 if scaled else sums, epilogue is not None)
    axes = axes_of(tiles, z)
    if 0 in shape:
        return Launch(shape, z.dtype)
    spans = tuple(map(span, (x, y, *tiles, z)))
    rows = None
    if len(x.shape) == 3 and len(y.shape) == 2 and epilogue is None and x.contiguous and z.contiguous:
        m = rows = m * x.shape[0]
        x, z = (ArrayView(v.pointer, (rows, v.shape[-1]), (v.shape[-1], 1), v.dtype, v.device) for v in (x, z))
    processors = 4 if x.device == "host" else driver.multiprocessors(x.ordinal)
    matrices = z.shape[0] if len(z.shape) == 3 else 1
    waiting = None
    several = -(-m // LARGE[0]) * -(-n // LARGE[1]) * matrices > processors
    if taken is not None and target in HOPPER and z.nbytes_per_element == 2 and not scaled and (
            several if config is None else isinstance(config, Config) and bool(config.late)):
        waiting = taken(((), epilogue, len(z.shape) == 3, False, axes), sums, PART // z.nbytes_per_element if config is None else config.width)
    either, itemsize = EITHER_MAJOR.get(target, ((1, 2), (1, 2))), x.nbytes_per_element if per == 1 else 1 / per
    if config is None:
        ahead = any(_ahead(tiles, axes, z, 16)) or bool(epilogue) and not (arguments or tiles) and stored_by_tma(z, 16)
        across = (x.strides[-1] != 1, y.strides[-2] != 1) if x.nbytes_per_element in either[1] else (False, False)
        problem = Problem(m, n, k, matrices, itemsize, z.nbytes_per_element, epilogue is not None, ahead, promoted, block, across,
                          (copied_bytes(x, y.turned, either), copied_bytes(y.turned, x, either)),
                          (alignment(x, either[0]), alignment(y.turned, either[1])), waiting is not None)
        by_columns = True if z.strides[-1] != 1 and z.strides[-2] == 1 else None
        config = (choice or (choose if target in HOPPER else choose_blackwell))(problem, processors, by_columns)
    swapped = config.swapped
    x, y = (y.turned, x) if swapped else (x, y.turned)
    z = z.turned if swapped else z
    copied = not readable(x, either[0]), not readable(y, either[1])
    if per > 1 and any(copied):
        raise LaunchError("rows of float4 must begin at multiples of 16 bytes, a multiple of 32 elements apart: pass a copy whose rows do")
    a_km, b_kn = (not c and v.strides[-1] != 1 for c, v in zip(copied, (x, y)))
    loaded = a_km and x.dtype == "float32"
    if target in HOPPER and (k == 0 or epilogue is not None or z.nbytes_per_element > 2 or loaded):
        config = replace(config, kept=False)  # there are no slots to send results under, or no registers to keep them in
    staged = z.nbytes_per_element if config.splits == 1 and _by_tma(z, config) else None
    if isinstance(config, Config):
        check_registers(config, config.bn if promoted is None else min(config.bn, BLOCK), loaded)
        check_alone(config, promoted is not None, loaded)
        check_shares(config)
        if config.pair:
            check_pair(config)
        if config.bm == HIGH and loaded:
            raise LaunchError(f"column-major float32 is multiplied from registers, 64 rows per consumer: config.bm must be at most 192, not {HIGH}")
    (check_hopper if target in HOPPER else check_blackwell)(config, itemsize, sums == tile.int32, b_kn, staged)
    shares, room, steps = (), None, max(-(-k // config.bk), 1)
    if isinstance(config, Config) and config.stream:
        if promoted is not None:
            raise LaunchError("CTAs can share only sums that the tensor cores add up alone: config.stream cannot be combined with block scales or "
                              "fast_accum=False")
        kernel, grid, constants, shares, room = _streamed(config, z, (tiles, axes), matrices, steps, sums, processors, x.nbytes_per_element)
    elif isinstance(config, Config):
        by_row = promoted and promoted[::-1 if swapped else 1]
        kernel, grid, constants, shares, room = _on_hopper(config, z, (tiles, axes), by_row, matrices, steps, sums, processors,
                                                              x.nbytes_per_element)
    else:
        kernel, grid, constants = _on_blackwell(config, z, block, matrices, processors, itemsize)
    constants |= dict(BN=config.bn, BK=config.bk, STAGES=config.stages, A_KM=a_km, B_KN=b_kn, SUMS=sums, EXTRAS=arguments + len(tiles),
                      FINISH=(() if scaled_blocks else tuple(s is not None for s in scaled), epilogue, len(z.shape) == 3, swapped, axes))
    if waiting is not None and constants.get("LATE") and constants["WIDTH"] == waiting.width:
        constants["WAITING"] = waiting.dtype
    if epilogue is not None:
        constants["spills"] = ANY
    # The operands come as [.., M, K] and [.., K, N], or exchanged if swapped; copies are [.., rows, k].
    turn_a = a_km if copied[0] else a_km != swapped
    turn_b = b_kn if copied[1] else b_kn == swapped
    return Launch(shape, z.dtype, kernel, grid, constants, swapped, (turn_a, turn_b, swapped), copied, either, rows, shares, room, spans,
                  waiting.watched if waiting and "WAITING" in constants else ())


def _on_hopper(config: Config, z: ArrayView, beside: tuple, promoted: tuple | None, matrices: int, steps: int, sums,
               processors: int, itemsize: int) -> tuple:
    """The kernel, its grid, its own constants and options, and its further arguments. `steps`: slots of k of a tile; `itemsize`: bytes of an
    operand's element; `promoted`: None if the tensor cores make all sums, else for each operand whether it has block scales by row, or () without
    any."""
    if promoted is not None and config.bk != BLOCK:
        raise LaunchError(f"where threads add up the sums of each slot, the configuration's bk must be {BLOCK}, not {config.bk}")
    if promoted is not None and config.bn > BLOCK and config.bn % BLOCK:
        raise LaunchError(f"where threads add up the sums of each slot, the configuration's bn must be at most {BLOCK} or a multiple of it, not "
                          f"{config.bn}")
    if promoted and not promoted[1] and BLOCK % config.bn and config.bn < BLOCK < z.shape[-1]:
        raise LaunchError(f"a tile's columns must share the scale of one block of {BLOCK}: the configuration's bn must be a divisor of it, not "
                          f"{config.bn}")
    if promoted is not None and config.bm == HIGH:
        raise LaunchError(f"where threads add up the sums of each slot, a consumer has 64 rows: the configuration's bm must be at most 192, not "
                          f"{HIGH}")
    constants = dict(BM=config.bm, BEHIND=config.behind, REGS=config.regs, PROMOTED=promoted is not None, BLOCKS=promoted or (),
                     num_warps=config.num_warps, pdl=config.dependent, DEPENDENT=config.dependent)
    along = config.bk * itemsize + 4 * bool(promoted)
    if config.splits > 1:
        return _split(config, z, constants, matrices, sums, along)
    if promoted is not None and config.width > BLOCK:
        raise LaunchError(f"threads add up {BLOCK} columns of a tile at a time, and these are stored together: config.width must be at most {BLOCK}, "
                          f"not {config.width}")
    constants |= _results(config, z, beside, 0 if promoted is not None else steps, along)
    constants |= dict(ORDER=config.order, PASSING=config.passing, PAIR=config.pair, ALONE=config.alone, cluster=2 if config.pair else None)
    group = 2 if config.pair else 1
    return hopper.persistent, (group * evenly(config.tiles(*z.shape[-2:]) * matrices // group, max(processors // group, 1)),), constants, (), None


def _split(config: Config, z: ArrayView, constants: dict, matrices: int, sums, along: int) -> tuple:
    """The kernel in which CTAs share each tile's k, its grid and constants, and the room for sums that go through global memory. A row of A or
    column of B in a slot has `along` bytes."""
    tiles = config.tiles(*z.shape[-2:])
    check_shared(config, along, 0)
    constants |= dict(SPLITS=config.splits, SHARES=config.shares, CLUSTERED=config.clustered, PATIENCE=hopper.PATIENCE, PAIR=config.pair,
                      cluster=config.splits if config.clustered else 2 if config.pair else None)
    grid = tiles * config.splits, matrices
    if config.clustered:
        if config.bn % (8 * config.splits):
            raise LaunchError(f"each of {config.splits} CTAs stores a multiple of 8 columns of a tile: the configuration's bn must be a multiple of "
                              f"{8 * config.splits}, not {config.bn}")
        return hopper.split, grid, constants, NOTHING[:2], None
    if (count := tiles * matrices) > CTAS:
        raise LaunchError(f"without clusters, CTAs can share the k of at most {CTAS} tiles, and there are {count}: use larger tiles, or "
                          "clusters")
    return hopper.split, grid, constants, (), ((count, config.splits, config.bm // 64, 64 * config.bn), sums.name)


def _results(config: Config, z: ArrayView, beside: tuple, slots: int, along: int) -> dict:
    """The constants that say how results are stored, which of the tiles `beside` them (arrays, their axes) TMA loads, and how many columns are
    deferred to the next tile, of which a CTA has at least `slots` slots. A row of A or column of B in a slot has `along` bytes."""
    if not 0 <= config.late <= config.bn:
        raise LaunchError(f"the configuration's late must be at least 0 and at most its bn of {config.bn} columns, not {config.late}")
    width, across = _staged(z, config)
    check_shared(config, along, z.nbytes_per_element if width else 0)
    ahead: tuple[bool, ...] = ()
    late = 0
    if width and not config.swapped and width * config.buffers == config.bn:
        left = SHARED - config.stages * (config.bm + config.bn) * along - config.bm * config.bn * z.nbytes_per_element
        tiles, axes = beside
        ahead = _ahead(tiles, axes, z, width, config.bn, left // config.consumers)
        late = most_late(slots, width, config.late) if not config.behind else 0
    return dict(WIDTH=width, BUFFERS=config.buffers, ACROSS=across, AHEAD=ahead, LATE=late, KEPT=config.kept and width > 0 and slots > 0)


def _ahead(tiles: list[ArrayView], axes: tuple[str, ...], z: ArrayView, width: int, bn: int = 256, left: int = SHARED) -> tuple[bool, ...]:
    """Which of an epilogue's tiles TMA can load during the products: the first that has both of the result's axes, to buffers of `width` columns;
    and with it, or if there is none, rows, whose `bn` columns at a time take up to `left` bytes in total. () if there are none."""
    first, made = next((i for i, along in enumerate(axes) if along[-2:] == "mn"), None), []
    for i, (t, along) in enumerate(zip(tiles, axes)):
        row = along[-1] == "n" and "m" not in along and line_comes_ahead(t, bn) and bn * t.nbytes_per_element <= left
        left -= bn * t.nbytes_per_element if row else 0
        made.append(row or i == first)
    possible = stored_by_tma(z, width) if first is None else comes_ahead(tiles[first], z, width)
    return tuple(made) if possible and any(made) else ()


def _streamed(config: Config, z: ArrayView, beside: tuple, matrices: int, steps: int, sums, processors: int,
              itemsize: int) -> tuple:
    """The stream-K kernel, its grid and constants, how its CTAs share tiles, and the room for their sums. `steps`: slots of k of a tile."""
    tiles = config.tiles(*z.shape[-2:]) * matrices
    ctas = min(tiles * steps, processors)
    rest, helpers, parts = shared_rest(tiles % ctas, steps, ctas, config.bm, config.bn)[:3] if tiles % ctas else (0, 0, 0)
    least = min(steps - rest, rest // parts) if rest else steps
    order = (whole_groups, config.order[1]) if config.order[0] == "grouped" else config.order
    constants = _results(config, z, beside, least, config.bk * itemsize) | dict(BM=config.bm, REGS=config.regs, num_warps=config.num_warps,
                                                                                  ORDER=order, BEHIND=config.behind)
    return stream, (ctas,), constants, shares(tiles, ctas, rest, helpers, parts), ((ctas, config.bm // 64, 64 * config.bn), sums.name)


def _on_blackwell(config: BlackwellConfig, z: ArrayView, block: int, matrices: int, processors: int, itemsize: float) -> tuple:
    """The kernel, its grid, and its own constants and options. `block`: elements along k that a factor belongs to, 0 without factors."""
    if block and (config.bn % blackwell.ROWS or config.bk % (4 * block)):
        raise LaunchError(f"scale factors come in units of {blackwell.ROWS} columns and 4 blocks of {block} along k: the configuration's bn and bk "
                          f"must be multiples of {blackwell.ROWS} and {4 * block}, not {config.bn} and {config.bk}")
    by_tma = _by_tma(z, config)
    check_shared_on_blackwell(config, blackwell.ROWS, config.slot(itemsize, block), z.nbytes_per_element if by_tma else 0)
    constants = dict(BLOCK=block, num_warps=blackwell.NUM_WARPS)
    if config.splits > 1:
        constants |= dict(SPLITS=config.splits, pdl=True, cluster=config.splits)
        return blackwell.split, (config.tiles(*z.shape[-2:]) * config.splits, matrices), constants
    group = 2 if config.pair else 1
    grid = group * min(config.tiles(*z.shape[-2:]) * matrices, max(processors // group, 1))
    return blackwell.persistent, (grid,), constants | dict(
        PAIR=config.pair, ORDER=config.order, WIDTH=config.width, BY_TMA=by_tma, BUFFERS=2 if config.bn >= 2 * config.width else 1,
        PLACES=config.places(block), DEPENDENT=config.dependent, pdl=config.dependent, cluster=2 if config.pair else None)


def _by_tma(z: ArrayView, config: Config | BlackwellConfig) -> bool:
    """Whether TMA stores the result's columns: not if no divisor of a tile's columns has a number of bytes that it takes."""
    return stored_by_tma(z, config.width) and bool(widths(config.bn, z.nbytes_per_element))


def _staged(z: ArrayView, config: Config) -> tuple[int, bool]:
    """On Hopper, (columns that TMA stores at once, 0 if it cannot; whether the staging buffers are column-major). Elements of 16 bits get to
    column-major buffers by stmatrix."""
    across = z.nbytes_per_element > 1 and z.strides[-1] != 1 and z.shape[-1] > 1
    return config.width if (stored_by_tma(z.turned, 64) if across else _by_tma(z, config)) else 0, across


__all__ = ["BlackwellConfig", "Config", "choose", "matmul"]
