"""What a `for` statement can iterate over: ranges on the device and ranges unrolled by the frontend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from ..dtypes import promote, uint32, uint64
from ..ir.builder import Builder, describe, element_type, type_of, weak_dtype
from ..ir.builtin import builtin
from ..ir.graph import Const, Operand, Pipeline
from ..ops.language.ids import is_number_of_ctas
from ..ops.language.operators import binary, compare
from ..ops.language.pointwise import device_assert, where
from ..ops.language.promotion import as_index, convert, strong_cast
from ..ops.tiles import elementwise as ew
from ..types import Scalar

UNROLLED_AT_MOST = 4096
Item = Callable[[Builder, Any], Any]


@dataclass(frozen=True)
class LoopRange:
    """A loop on the device. `unroll` is the number of copies of the body per trip (0: all trips).

    `step` is a constant, or a run-time scalar known to be positive. `item(g, index)`, if given, makes the value of
    the loop's target from the index; schedules and other constructs define their iteration by it.
    """

    start: Any
    stop: Any
    step: Any = 1
    unroll: int = 1
    item: Item | None = None
    pipeline: Pipeline | None = None


@dataclass(frozen=True)
class StaticRange:
    """A loop unrolled by the frontend: its index is a compile-time number."""

    numbers: range


def _bounds(name: str, g: Builder, args: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    if not 1 <= len(args) <= 3:
        raise g.error(f"{name} takes a stop, or a start and a stop, or a start, a stop and a step")
    start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    plain = [x.value if isinstance(x, Const) else x for x in (start, stop, step)]
    for what, x in zip(("start", "stop", "step"), plain):
        t = type_of(x)
        if not isinstance(t, Scalar) or not t.dtype.is_int:
            hint = "; // divides integers" if isinstance(t, Scalar) and t.dtype.is_float else ""
            raise g.error(f"the {what} of {name} is an integer, not {describe(x)}{hint}")
    if plain[2] == 0:
        raise g.error(f"the step of {name} is not 0")
    start, stop, step = plain
    return start, stop, step

@builtin
def range_(g: Builder, *args: Any, unroll: Any = 1) -> LoopRange:
    """``range(stop)``, ``range(start, stop)`` or ``range(start, stop, step)``: a loop on the device.

    `unroll` is the number of copies of the body per trip, or True to unroll the loop fully (with bounds and step
    known at compile time). Bounds and step may be run-time values; a step of 0 fails a device_assert."""
    start, stop, step = _bounds("range", g, args)
    unroll = _copies(g, unroll, start, stop, step)
    return loop_over(g, start, stop, step, unroll)


def loop_over(g: Builder, start: Any, stop: Any, step: Any, unroll: int = 1, item: Item | None = None,
              rising: bool = False) -> LoopRange:
    """A device loop over any bounds and step: by its index if the step is a constant or a number of CTAs, otherwise
    by the numbers of its trips. `rising` says that the caller has checked a run-time step to be at least 1."""
    beyond = any(map(_unsigned_64, (start, stop)))
    if isinstance(step, int) and (step > 0 or not beyond):
        return LoopRange(start, stop, step, unroll, item)
    if unroll != 1 or beyond or not is_number_of_ctas(g, step):
        return by_number_of_trips(g, start, stop, step, unroll, item, rising)
    return LoopRange(as_index(g, start), as_index(g, stop), as_index(g, step), unroll, item)


def _unsigned_64(x: Any) -> bool:
    """Whether a bound is a uint64, which may exceed int64, the index type of loops with negative or run-time steps."""
    return element_type(x) == uint64


def _copies(g: Builder, unroll: Any, start: Any, stop: Any, step: Any) -> int:
    """The number of copies of the body that `unroll` asks for; 0 for all trips."""
    if not isinstance(unroll, bool) and (not isinstance(unroll, int) or unroll < 1):
        raise g.error(f"unroll is True or a positive number of copies, not {describe(unroll)}"
                      + g.declared_constant(unroll))
    if unroll is True and not all(isinstance(x, int) for x in (start, stop, step)):
        raise g.error("unroll=True unrolls all iterations, and their number is known at run time only; write unroll=4, "
                      "say, for a loop of four copies")
    copies = len(range(start, stop, step)) if unroll is True else int(unroll) or 1
    if copies > UNROLLED_AT_MOST:
        raise g.error(f"this loop would have {copies} copies of its body (at most {UNROLLED_AT_MOST})")
    return 0 if unroll is True else copies


def by_number_of_trips(g: Builder, start: Any, stop: Any, step: Any, unroll: int, item: Item | None,
                       rising: bool = False) -> LoopRange:
    """The loop of `loop_over` with the trip's number as its index; the trips are counted before it."""
    first, step = as_index(g, start), as_index(g, step)
    low, high = start if _unsigned_64(start) else first, stop if _unsigned_64(stop) else as_index(g, stop)
    falling = isinstance(step, int) and step < 0
    trips = _trips(g, high, low, -step) if falling else _trips(g, low, high, step)
    if not (rising or isinstance(step, int) or is_number_of_ctas(g, step)):
        zero = Const(0, element_type(step))
        device_assert.function(g, g.call(ew.ne, step, zero), "the step of a range is 0")
        down = where.function(g, g.call(ew.lt, step, zero), _trips(g, high, low, step, down=True), 0)
        trips = where.function(g, g.call(ew.gt, step, zero), trips, down)

    def target(g: Builder, trip: Any) -> Any:
        index = binary(g, "+", first, binary(g, "*", trip, step))
        return index if item is None else item(g, index)

    return LoopRange(0, trips, 1, unroll, target)


def _trips(g: Builder, low: Any, high: Any, step: Any, down: bool = False) -> Operand:
    """``ceil((high - low) / step)``, at least 0: the number of trips from `low` up to `high`. With `down`, `step` is
    negative and its magnitude counts. The distance is computed unsigned, since it may overflow a signed integer."""
    below = compare(g, "<", low, high)
    signed = reduce(promote, (weak_dtype(x) if isinstance(x, int) else element_type(x) for x in (low, high, step)))
    natural = uint64 if signed.bits == 64 else uint32
    low, high, step = (strong_cast(g, convert(g, x, signed), natural) for x in (low, high, step))
    apart, step = binary(g, "-", binary(g, "-", high, low), 1), g.call(ew.neg, step) if down else step
    count = binary(g, "+", strong_cast(g, binary(g, "//", apart, step), signed), 1)
    chosen: Operand = where.function(g, below, count, 0)
    return chosen


STAGES_AT_MOST = 64


@builtin
def pipelined(g: Builder, over: Any, stages: Any = 2, warp_specialize: Any = False, producer_regs: Any = None,
              consumer_regs: Any = None) -> LoopRange:
    """A loop over a range or ``tile.tile_order(...)`` whose loads of tiles, and copies from global to shared memory,
    run up to ``stages - 1`` trips ahead of the rest of its body.

    A tile that the body loads from an array that the kernel does not write is prefetched by ``copy_async`` to a
    buffer that the compiler allocates, if an asynchronous copy can move its rows and enough shared memory is left
    (otherwise it is loaded in its trip, with a warning). These buffers, and those that ``tile.copy_async`` fills in
    the body, become rings of `stages` slots each. The compiler adds the barriers or copy groups, the waits and the
    releases; in each trip, the body reads what that trip's copies brought. The regions of copies may depend on the
    index and on values from before the loop, through any arithmetic, branches and loops, and through plain loads of
    arrays that the kernel does not write.
    With `warp_specialize`, separate warps issue the copies (sm_90 and later, if all of the copies complete by bytes):
    the kernel gets one warpgroup more than `num_warps` says (one warp more if that is 1 or 2), of which one thread
    runs through the kernel's loops. `producer_regs` and `consumer_regs` are the registers per thread of the
    additional warps and of the others.
    """
    if not isinstance(over, LoopRange) or over.pipeline is not None:
        what = "a pipelined loop" if isinstance(over, LoopRange) else describe(over)
        raise g.error("pipelined takes a range, as in tile.pipelined(range(0, K, BLOCK), stages=4), "
                      f"or tile.tile_order(..), not {what}")
    if isinstance(stages, bool) or not isinstance(stages, int) or not 1 <= stages <= STAGES_AT_MOST:
        raise g.error(f"stages is a constant from 1 to {STAGES_AT_MOST}, not {describe(stages)}"
                      + g.declared_constant(stages))
    if over.unroll != 1:
        raise g.error("a pipelined loop cannot be unrolled: its slots rotate at run time")
    if not isinstance(over.step, int):  # the pass needs indices of trips that are a constant apart
        over = by_number_of_trips(g, over.start, over.stop, over.step, 1, over.item)
    if not isinstance(warp_specialize, bool):
        raise g.error(f"warp_specialize is True or False, known at compile time, not {describe(warp_specialize)}"
                      + g.declared_constant(warp_specialize))
    for regs in (producer_regs, consumer_regs):
        if regs is not None and (not warp_specialize or not isinstance(regs, int) or regs % 8 or not 24 <= regs <= 256):
            raise g.error("producer_regs and consumer_regs are multiples of 8 from 24 to 256, "
                          "with warp_specialize=True")
    loop: LoopRange = replace(over, pipeline=Pipeline(stages, warp_specialize, (producer_regs, consumer_regs)))
    return loop


@builtin
def static_range(g: Builder, *args: Any) -> StaticRange:
    """Like `range`, but unrolled while compiling: the index is a compile-time number."""
    start, stop, step = _bounds("static_range", g, args)
    for x in (start, stop, step):
        if not isinstance(x, int):
            raise g.error(f"static_range is unrolled while compiling, and {describe(x)} is known at run "
                          "time only; use range"
                          + g.declared_constant(x))
    numbers = range(start, stop, step)
    if len(numbers) > UNROLLED_AT_MOST:
        raise g.error(f"static_range would write {len(numbers)} copies of the loop's body (at most "
                      f"{UNROLLED_AT_MOST}); use range")
    return StaticRange(numbers)
