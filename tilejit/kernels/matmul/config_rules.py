"""Checks that the matrix products' kernels can run a configuration; errors say what does not fit.

Shared memory and registers that depend on the user's epilogue are not checked here: they are known once the kernel
is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from ...errors import LaunchError
from ...jit import Kernel
from ...ops.mma.tcgen05_kinds import columns_allowed
from ...schedule import LARGEST_GROUP, ORDERS

ALONG = 32       # bytes of k in one tensor core instruction
CLUSTER = 16     # most CTAs in a cluster (the non-portable size)
SHARED = 232448  # bytes of shared memory that a CTA on Hopper can have
REGISTERS = 65536   # of an SM
# registers that the assembler needs in addition to an instruction's accumulator,
# with A in shared memory and in registers
BESIDE = 26, 30
HIGH = 256       # bm of the tiles whose two consumers multiply 128 rows each


class Rule(NamedTuple):
    """The values that a field of a configuration may have: in `words`, and as a predicate."""

    words: str
    holds: Callable[[Any], bool]


def number(least: int = 1, most: int = 1 << 30, step: int = 1) -> Callable[[Any], bool]:
    return lambda x: is_integer(x) and least <= x <= most and x % step == 0


def is_integer(x: Any) -> bool:
    """Whether it is an integer, Python's or NumPy's (as a loop over an array of widths gives them), and no bool."""
    return type(x) is int or isinstance(x, Integral) and not isinstance(x, bool)  # the former in a tenth of the time


def is_order(x: Any) -> bool:
    return (isinstance(x, tuple) and len(x) == 2 and number(1, LARGEST_GROUP)(x[1])
            and (isinstance(x[0], Kernel) or isinstance(x[0], str) and x[0] in ORDERS))


def is_pair_of_registers(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2 and all(count is None or number(24, 256, 8)(count) for count in x)


EITHER = Rule("True or False", lambda x: isinstance(x, (bool, np.bool_)))
RULES = {  # field -> its rule; fields that are not listed have EITHER
    "bm":      Rule("64, 128, 192 or 256 rows", number(64, 256, 64)),
    "bn":      Rule("8 to 256 columns in steps of 8", number(8, 256, 8)),
    "bk":      Rule("a number of elements, at least 1", number()),
    "stages":  Rule("a number of slots, at least 1", number()),
    "splits":  Rule("a number of CTAs, at least 1", number()),
    "width":   Rule("8 to 256 columns in steps of 8", number(8, 256, 8)),
    "buffers": Rule("a number of buffers, at least 1", number()),
    "itemsize": Rule("the bytes of an operand's element: 1, 2 or 4", lambda x: x in (1, 2, 4)),
    "stored":  Rule("the bytes of a result's element: 1, 2, 4 or 8", lambda x: x in (1, 2, 4, 8)),
    "block":   Rule("the elements along k that a factor counts for: 16 or 32, or 0 without factors",
                    lambda x: x in (0, 16, 32)),
    "late":    Rule("a number of columns", is_integer),
    "alone":   Rule("a number of slots, at least 0", number(0)),
    "order":   Rule(f"{', '.join(map(repr, ORDERS))} or a helper under @tile.jit, with the rows of a group, "
                    f"1 to {LARGEST_GROUP}, as in ('grouped', 16)",
                    is_order),
    "regs":    Rule("a pair of numbers, multiples of 8 from 24 to 256, or None, as in (40, 232)", is_pair_of_registers),
}


def check_fields(**fields) -> None:
    """LaunchError for a field of a configuration whose value no product takes."""
    for name, value in fields.items():
        check_field(name, RULES.get(name, EITHER), value)


def check_field(name: str, rule: Rule, value) -> None:
    """LaunchError if a field's value breaks its rule."""
    if not rule.holds(value):
        raise LaunchError(f"config.{name} must be {rule.words}, not {value!r}")


def check_hopper(config, itemsize: float, integers: bool, by_rows: bool, staged: int | None) -> None:
    """LaunchError if fields do not go together on Hopper, or not with `bn` and `bk`. `integers`: the operands are
    integers; the other parameters are those of `check_tile`."""
    if integers and config.bn > 32 and config.bn % 16:
        raise LaunchError("the tensor cores multiply 8, 16, 24, 32 and multiples of 16 columns of integers: "
                          f"config.bn must be one of these, not {config.bn}")
    for field in ("behind", "late", "alone"):
        if getattr(config, field) and config.stages < 2:
            raise LaunchError(f"config.{field} keeps a product in flight while the next slot is awaited: "
                              f"config.stages must be at least 2, not {config.stages}")
    if config.stream and config.splits > 1:
        raise LaunchError("config.stream shares leftover tiles among all CTAs, and config.splits shares each tile "
                          f"among that many: config.splits must be 1 with config.stream, not {config.splits}")
    if config.splits > 1 and config.clustered:
        check_cluster(config.splits)
    check_high(config)
    check_tile(config, itemsize, by_rows, staged)


def check_alone(config, added: bool, loaded: bool) -> None:
    """LaunchError if consumers cannot multiply the last slots one after the other. `added`: threads add up the sums
    of each slot; `loaded`: threads load an operand to registers."""
    if not config.alone:
        return
    if config.alone > config.stages:
        raise LaunchError(f"one consumer multiplies the last {config.alone} slots while the others still hold them: "
                          f"config.alone must be at most config.stages, which is {config.stages}")
    if config.bm == 64:
        raise LaunchError("tiles of 64 rows have one consumer, which has no other to take turns with: "
                          f"config.alone must be 0 with config.bm 64, not {config.alone}")
    for field, _ in fields_that_part_tiles(config):
        raise LaunchError("consumers take turns only if each stores its part of a tile at once, and by itself: "
                          f"config.alone must be 0 with config.{field} {getattr(config, field)}, not {config.alone}")
    if added or loaded:
        raise LaunchError(f"threads {'add up the sums' if added else 'load an operand'} of one slot at a time, "
                          f"in all consumers side by side: config.alone must be 0, not {config.alone}")


def fields_that_part_tiles(config) -> list[tuple[str, int]]:
    """The fields that keep a consumer from storing its whole part of a tile at once, each with its neutral value."""
    return [(field, plain) for field, plain in (("splits", 1), ("stream", False), ("kept", False), ("late", 0))
            if getattr(config, field) != plain]


def check_high(config) -> None:
    """LaunchError for tiles of 256 rows with an option that needs consumers of 64 rows: sharing,
    keeping or deferring sums."""
    for field, plain in fields_that_part_tiles(config) if config.bm == HIGH else ():
        raise LaunchError(f"the consumers of tiles of {HIGH} rows have the sums of 128 rows each, "
                          "and must store them at once and by themselves: "
                          f"config.{field} must be {plain} with config.bm {HIGH}, not {getattr(config, field)}")


def check_blackwell(config, itemsize: float, integers: bool, by_rows: bool, staged: int | None) -> None:
    """Like `check_hopper`, on Blackwell."""
    group = 2 if config.pair else 1
    allowed = columns_allowed("i8" if integers else "f16", group, config.bn, by_rows and itemsize == 1)
    if allowed is not True:
        raise LaunchError(f"the tensor cores{' of a pair of CTAs' if config.pair else ''} cannot multiply that many "
                          f"columns: config.bn is {allowed}")
    if config.splits > 1 and config.pair:
        raise LaunchError("each pair of CTAs has a tile of its own: config.splits must be 1 with config.pair, "
                          f"not {config.splits}")
    check_cluster(config.splits)
    if config.bn % config.splits:
        raise LaunchError("each CTA stores an equal share of a tile's columns: "
                          f"config.splits must be a divisor of config.bn, which is {config.bn}, not {config.splits}")
    check_tile(config, itemsize, by_rows, staged, group)


def check_tile(config, itemsize: float, by_rows: bool, staged: int | None, group: int = 1) -> None:
    """LaunchError if the tensor cores do not take the slots (`itemsize` bytes an operand's element), or the staging
    buffers do not fit the tile's columns. `by_rows`: B is N-major, and a CTA loads one of `group` parts of a tile's
    columns; `staged`: bytes of an element of the result, if TMA stores it, else None."""
    unit = int(ALONG / itemsize)
    if config.bk % unit:
        raise LaunchError(f"the tensor cores multiply {ALONG} bytes of k at a time: "
                          f"config.bk must be a multiple of {unit} elements, not {config.bk}")
    piece = config.bn // group * itemsize
    if by_rows and piece != 16 and piece % 32:
        whose = "A is column-major, and has changed places with B" if config.swapped else "B is row-major"
        raise LaunchError(f"{whose}: the tensor cores take 16 bytes of such a row, or a multiple of 32, "
                          f"so config.bn must be {16 * group / itemsize:.0f} or a multiple of "
                          f"{32 * group / itemsize:.0f} columns, not {config.bn}")
    if config.bn % config.width:
        raise LaunchError("config.width columns are stored at a time: it must be a divisor of config.bn, which is "
                          f"{config.bn}, not {config.width}")
    if staged is not None and not stored_at_once(config.width * staged):
        raise LaunchError("TMA stores 32, 64 or a multiple of 128 bytes of a row: config.width must be "
                          f"{32 // staged}, {64 // staged} or a multiple of {128 // staged} columns, "
                          f"not {config.width}; divisors of config.bn = {config.bn} among these are "
                          f"{', '.join(map(str, widths(config.bn, staged)))}")


def check_registers(config, columns: int, loaded: bool = False) -> None:
    """LaunchError if a thread on Hopper has too few registers for an instruction with `columns` columns. `loaded`:
    its operand A is in registers."""
    threads = 32 * config.num_warps
    each = min(REGISTERS // threads, 255) // 8 * 8
    most = min(2 * (each - BESIDE[loaded]) // 8 * 8, 256)
    # a consumer has the accumulators of two instructions, in the registers that setmaxnreg gives it
    if config.bm == HIGH:
        each = config.regs[1] or each
        most = (each - BESIDE[loaded]) // 8 * 8
    if columns > most:
        raise LaunchError(f"{threads} threads with {each} registers each compute a tile of {config.bm} rows, "
                          f"too few for the sums of {columns} columns: with config.bm={config.bm} config.bn must be at "
                          f"most {most}; 256 columns fit with 128 rows or fewer")


def check_shares(config) -> None:
    """LaunchError if the warpgroups of a CTA on Hopper would ask, by setmaxnreg,
    for more registers in total than the CTA starts with."""
    own = min(REGISTERS // (32 * config.num_warps), 255) // 8 * 8
    producer, consumer = (count or own for count in config.regs)
    consumers = config.num_warps // 4 - 1
    left = (1 + consumers) * own - producer
    if consumers * consumer > left:
        raise LaunchError(f"config.regs gives a producer's threads {producer} registers and "
                          f"those of {consumers} consumers {consumer} each, "
                          f"and a CTA of config.bm={config.bm} rows begins with {1 + consumers} times {own}: "
                          f"with {producer} a consumer's may have at most {left // consumers // 8 * 8}")


def check_shared(config, along: int, stored: int) -> None:
    """LaunchError if the slots, of `along` bytes for each row of A and column of B, do not fit in Hopper's shared
    memory together with the staging buffers (`stored` bytes an element, 0 without any), or with the sums that CTAs of
    a cluster send each other."""
    beside, what = 0, ""
    if config.splits == 1:
        beside = config.bm * config.width * config.buffers * stored
        what = f"config.buffers={config.buffers} buffers of config.width={config.width} columns of the result"
    elif config.clustered:
        beside, what = 4 * config.bm * (config.bn // config.splits) * (config.splits - 1), name_partial_sums(config)
    check_room(config, (config.bm + config.bn) * along, beside, what)


def check_shared_on_blackwell(config, rows: int, slot: int, stored: int) -> None:
    """Like `check_shared`, on Blackwell: slots of `slot` bytes, and `rows` rows of sums in each CTA."""
    if config.splits > 1:  # room for all sums that it sends, and all that it receives
        check_room(config, slot, 2 * 4 * rows * config.bn, name_partial_sums(config))
    else:
        buffers = min(config.bn // config.width, 2)
        check_room(config, slot, buffers * rows * config.width * stored,
                   f"buffers of config.width={config.width} columns of the result")


def name_partial_sums(config) -> str:
    return f"the sums that config.splits={config.splits} CTAs of a cluster send each other"


def check_room(config, slot: int, beside: int, what: str) -> None:
    """LaunchError if the slots, of `slot` bytes each, do not fit in shared memory together with `beside` other bytes,
    which `what` describes."""
    slots = config.stages * slot
    if slots + beside > SHARED:
        words = f", and {what} take {beside}; together they" if what else "; they"
        raise LaunchError(f"config.bk={config.bk} and config.stages={config.stages}: "
                          f"slots take {slots} bytes of shared memory{words} may take at most {SHARED}. "
                          f"{type(config).__name__}.of chooses fields that fit the others from `itemsize` and "
                          "`stored`, the bytes of an operand's and of a result's element")


def slots_in(room: int, slot: int, most: int) -> int:
    """The number of slots of `slot` bytes, up to `most`, that fit in `room` bytes. LaunchError if none does."""
    if room < slot:
        raise LaunchError(f"a slot takes {slot} bytes of shared memory, and the results' buffers, "
                          f"or the sums that CTAs send each other, leave {max(room, 0)}: use a smaller tile, "
                          "fewer elements of k in a slot, or fewer splits")
    return min(room // slot, most)


@lru_cache(maxsize=1024)  # the candidates of a model differ mostly in what their configurations are made of later
def try_config(of: Callable, *args, **options):
    """The configuration that ``of`` makes; None if it raises LaunchError or fewer than two slots fit
    in shared memory."""
    try:
        config = of(*args, **options)
    except LaunchError:
        return None
    return config if config.stages >= 2 else None


def widths(bn: int, stored: int) -> list[int]:
    """The divisors of `bn`, in steps of 8 columns, that TMA can store at once; a column has `stored` bytes."""
    return [width for width in range(8, bn + 1, 8) if bn % width == 0 and stored_at_once(width * stored)]


def stored_at_once(nbytes: int) -> bool:
    """Whether TMA can store `nbytes` bytes of a row at once, from a buffer with a swizzle of 32, 64 or 128 bytes."""
    return nbytes in (32, 64) or nbytes % 128 == 0


def check_cluster(splits: int) -> None:
    if splits > CLUSTER:
        raise LaunchError("the CTAs that share a tile's k form a cluster: "
                          f"config.splits must be at most {CLUSTER}, not {splits}")


def check_pair(config) -> None:
    """LaunchError if pairs of CTAs cannot share columns of B with this configuration on Hopper."""
    if config.stream:
        raise LaunchError("pairs of CTAs compute whole tiles, one above the other: "
                          "config.pair cannot be combined with config.stream")
    if config.splits > 1 and config.clustered:
        raise LaunchError("the CTAs of a pair form the cluster: config.pair with config.splits needs "
                          "config.clustered=False")
    order, group = config.order
    if config.splits == 1 and (order not in ("column", "grouped", "snake") or order != "column" and group % 2):
        raise LaunchError("pairs of CTAs take tiles that are neighbours in a column: config.order must be 'column', "
                          f"or 'grouped' or 'snake' by an even number of rows, not {config.order}")
    check_halves(config)


def check_halves(config) -> None:
    """LaunchError if each CTA of a pair cannot load one half of an operand."""
    if config.bn % 16 or config.bk % 16:
        raise LaunchError("each CTA of a pair loads half of the columns of B, or of their k, in units of 8: "
                          f"the configuration's bn and bk must be multiples of 16, not {config.bn} and {config.bk}")


__all__ = ["EITHER", "HIGH", "SHARED", "check_alone", "check_blackwell", "check_field", "check_fields", "check_halves",
           "check_hopper", "check_pair", "check_registers", "check_shared", "check_shared_on_blackwell", "check_shares",
           "try_config", "slots_in", "stored_at_once", "widths"]
