"""Which configurations the kernels of matrix products take, and in words what does not fit.

What is not said here is not judged before the kernel is compiled: shared memory and registers depend on the user's epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from ..errors import LaunchError
from ..jit import Kernel
from ..ops.mma.tcgen05_kinds import columns_allowed
from ..schedule import LARGEST_GROUP, ORDERS

ALONG = 32       # bytes of k of one instruction of the tensor cores
CLUSTER = 16     # CTAs, at most
SHARED = 232448  # bytes of shared memory of a CTA on Hopper
REGISTERS = 65536
BESIDE = 26, 30  # registers that the assembler needs beside the sums of an instruction, with A in shared memory and in registers
HIGH = 256       # rows of a tile of two consumers that multiply 128 rows each


class Rule(NamedTuple):
    """What a field of a configuration may be."""

    words: str
    holds: Callable[[Any], bool]


def number(least: int = 1, most: int = 1 << 30, step: int = 1) -> Callable[[Any], bool]:
    return lambda x: is_integer(x) and least <= x <= most and x % step == 0


def is_integer(x: Any) -> bool:
    """Also one of NumPy's, as a loop over an array of widths has them."""
    return isinstance(x, Integral) and not isinstance(x, bool)


def is_order(x: Any) -> bool:
    return (isinstance(x, tuple) and len(x) == 2 and number(1, LARGEST_GROUP)(x[1])
            and (isinstance(x[0], Kernel) or isinstance(x[0], str) and x[0] in ORDERS))


def is_pair_of_registers(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2 and all(count is None or number(24, 256, 8)(count) for count in x)


EITHER = Rule("True or False", lambda x: isinstance(x, (bool, np.bool_)))
RULES = {  # by the field; the others are EITHER
    "bm":      Rule("64, 128, 192 or 256 rows", number(64, 256, 64)),
    "bn":      Rule("8 to 256 columns in steps of 8", number(8, 256, 8)),
    "bk":      Rule("a number of elements, at least 1", number()),
    "stages":  Rule("a number of slots, at least 1", number()),
    "splits":  Rule("a number of CTAs, at least 1", number()),
    "width":   Rule("8 to 256 columns in steps of 8", number(8, 256, 8)),
    "buffers": Rule("a number of buffers, at least 1", number()),
    "itemsize": Rule("the bytes of an operand's element: 1, 2 or 4", lambda x: x in (1, 2, 4)),
    "stored":  Rule("the bytes of a result's element: 1, 2, 4 or 8", lambda x: x in (1, 2, 4, 8)),
    "block":   Rule("the elements along k that a factor counts for: 16 or 32, or 0 without factors", lambda x: x in (0, 16, 32)),
    "late":    Rule("a number of columns", is_integer),
    "alone":   Rule("a number of slots, at least 0", number(0)),
    "order":   Rule(f"{', '.join(map(repr, ORDERS))} or a helper under @tile.jit, with the rows of a group, 1 to {LARGEST_GROUP}, as in "
                    "('grouped', 16)",
                    is_order),
    "regs":    Rule("a pair of numbers, multiples of 8 from 24 to 256, or None, as in (40, 232)", is_pair_of_registers),
}


def check_fields(**fields) -> None:
    """LaunchError for a field of a configuration that is nothing which any product takes."""
    for name, value in fields.items():
        check_field(name, RULES.get(name, EITHER), value)


def check_field(name: str, rule: Rule, value) -> None:
    """LaunchError for a field that is not what its rule says."""
    if not rule.holds(value):
        raise LaunchError(f"config.{name} must be {rule.words}, not {value!r}")


def check_hopper(config, itemsize: float, integers: bool, by_rows: bool, staged: int | None) -> None:
    """LaunchError where fields do not go together on Hopper, or the others not with `bn` and `bk`: `integers` says what is multiplied;
    the rest is as in `check_tile`."""
    if integers and config.bn > 32 and config.bn % 16:
        raise LaunchError("the tensor cores multiply 8, 16, 24, 32 and multiples of 16 columns of integers: config.bn must be one of these, "
                          f"not {config.bn}")
    for field in ("behind", "late", "alone"):
        if getattr(config, field) and config.stages < 2:
            raise LaunchError(f"config.{field} keeps a product in flight while the next slot is awaited: config.stages must be at least 2, not "
                              f"{config.stages}")
    if config.stream and config.splits > 1:
        raise LaunchError("config.stream shares leftover tiles among all CTAs, and config.splits shares each tile among that many: config.splits "
                          f"must be 1 with config.stream, not {config.splits}")
    if config.splits > 1 and config.clustered:
        check_cluster(config.splits)
    check_high(config)
    check_tile(config, itemsize, by_rows, staged)


def check_alone(config, added: bool, loaded: bool) -> None:
    """LaunchError where consumers cannot multiply the last slots one after the other: `added` says that threads add up the sums of each slot,
    `loaded` that they load an operand's."""
    if not config.alone:
        return
    if config.alone > config.stages:
        raise LaunchError(f"one consumer multiplies the last {config.alone} slots while the others still hold them: config.alone must be at "
                          f"most config.stages, which is {config.stages}")
    if config.bm == 64:
        raise LaunchError("tiles of 64 rows have one consumer, which has no other to take turns with: config.alone must be 0 with config.bm 64, "
                          f"not {config.alone}")
    for field, _ in divided(config):
        raise LaunchError("consumers take turns only if each stores its part of a tile at once, and by itself: config.alone must be 0 with "
                          f"config.{field} {getattr(config, field)}, not {config.alone}")
    if added or loaded:
        raise LaunchError(f"threads {'add up the sums' if added else 'load an operand'} of one slot at a time, in all consumers side by side: "
                          f"config.alone must be 0, not {config.alone}")


def divided(config) -> list[tuple[str, int]]:
    """The fields by which a tile's sums are not all stored at once by those that made them, each with what it is where they are."""
    return [(field, plain) for field, plain in (("splits", 1), ("stream", False), ("kept", False), ("late", 0)) if getattr(config, field) != plain]


def check_high(config) -> None:
    """LaunchError for tiles of 256 rows where consumers of 64 rows, of which there are no four, share, keep or finish sums."""
    for field, plain in divided(config) if config.bm == HIGH else ():
        raise LaunchError(f"the consumers of tiles of {HIGH} rows have the sums of 128 rows each, and must store them at once and by themselves: "
                          f"config.{field} must be {plain} with config.bm {HIGH}, not {getattr(config, field)}")


def check_blackwell(config, itemsize: float, integers: bool, by_rows: bool, staged: int | None) -> None:
    """The same on Blackwell."""
    group = 2 if config.pair else 1
    allowed = columns_allowed("i8" if integers else "f16", group, config.bn, by_rows and itemsize == 1)
    if allowed is not True:
        raise LaunchError(f"the tensor cores{' of a pair of CTAs' if config.pair else ''} cannot multiply that many columns: config.bn is {allowed}")
    if config.splits > 1 and config.pair:
        raise LaunchError(f"each pair of CTAs has a tile of its own: config.splits must be 1 with config.pair, not {config.splits}")
    check_cluster(config.splits)
    if config.bn % config.splits:
        raise LaunchError("each CTA stores an equal share of a tile's columns: config.splits must be a divisor of config.bn, which is "
                          f"{config.bn}, not {config.splits}")
    check_tile(config, itemsize, by_rows, staged, group)


def check_tile(config, itemsize: float, by_rows: bool, staged: int | None, group: int = 1) -> None:
    """LaunchError where the tensor cores do not take the slots, of operands of so many bytes an element, or the columns do not go to the result
    as they should: `by_rows` says that B lies by rows, of whose tile a CTA brings one part of `group`; `staged` of how many bytes the elements
    of the result are, if TMA stores its rows."""
    unit = int(ALONG / itemsize)
    if config.bk % unit:
        raise LaunchError(f"the tensor cores multiply {ALONG} bytes of k at a time: config.bk must be a multiple of {unit} elements, not {config.bk}")
    piece = config.bn // group * itemsize
    if by_rows and piece != 16 and piece % 32:
        whose = "A is column-major, and has changed places with B" if config.swapped else "B is row-major"
        raise LaunchError(f"{whose}: the tensor cores take 16 bytes of such a row, or a multiple of 32, so config.bn must be "
                          f"{16 * group / itemsize:.0f} or a multiple of {32 * group / itemsize:.0f} columns, not {config.bn}")
    if config.bn % config.width:
        raise LaunchError("config.width columns are stored at a time: it must be a divisor of config.bn, which is "
                          f"{config.bn}, not {config.width}")
    if staged is not None and not stored_at_once(config.width * staged):
        raise LaunchError(f"TMA stores 32, 64 or a multiple of 128 bytes of a row: config.width must be {32 // staged}, {64 // staged} or a multiple "
                          f"of {128 // staged} columns, not {config.width}; divisors of config.bn = {config.bn} among these are "
                          f"{', '.join(map(str, widths(config.bn, staged)))}")


def check_registers(config, columns: int, loaded: bool = False) -> None:
    """LaunchError where a thread on Hopper has too few registers for an instruction of so many `columns`, with elements of A that threads have
    `loaded` or without."""
    threads = 32 * config.num_warps
    each = min(REGISTERS // threads, 255) // 8 * 8
    most = min(2 * (each - BESIDE[loaded]) // 8 * 8, 256)
    if config.bm == HIGH:  # a consumer has the sums of two instructions, in what setmaxnreg gives it
        each = config.regs[1] or each
        most = (each - BESIDE[loaded]) // 8 * 8
    if columns > most:
        raise LaunchError(f"{threads} threads with {each} registers each compute a tile of {config.bm} rows, too few for the sums of {columns} "
                          f"columns: with config.bm={config.bm} config.bn must be at most {most}; 256 columns fit with 128 rows or fewer")


def check_shares(config) -> None:
    """LaunchError where the warpgroups of a CTA on Hopper would keep more registers together than it begins with."""
    own = min(REGISTERS // (32 * config.num_warps), 255) // 8 * 8
    producer, consumer = (count or own for count in config.regs)
    consumers = config.num_warps // 4 - 1
    left = (1 + consumers) * own - producer
    if consumers * consumer > left:
        raise LaunchError(f"config.regs gives a producer's threads {producer} registers and those of {consumers} consumers {consumer} each, and a "
                          f"CTA of config.bm={config.bm} rows begins with {1 + consumers} times {own}: with {producer} a consumer's may have at most "
                          f"{left // consumers // 8 * 8}")


def check_shared(config, along: int, stored: int) -> None:
    """LaunchError where slots, of `along` bytes of each row of A and column of B, do not fit in shared memory on Hopper beside buffers for results
    of `stored` bytes an element (0 without), or beside the sums that CTAs of a cluster send each other."""
    beside, what = 0, ""
    if config.splits == 1:
        beside = config.bm * config.width * config.buffers * stored
        what = f"config.buffers={config.buffers} buffers of config.width={config.width} columns of the result"
    elif config.clustered:
        beside, what = 4 * config.bm * (config.bn // config.splits) * (config.splits - 1), sent(config)
    check_room(config, (config.bm + config.bn) * along, beside, what)


def check_shared_on_blackwell(config, rows: int, slot: int, stored: int) -> None:
    """The same on Blackwell, of slots of so many bytes and sums of so many rows in each CTA."""
    if config.splits > 1:  # all that it sends and all that it gets
        check_room(config, slot, 2 * 4 * rows * config.bn, sent(config))
    else:
        buffers = min(config.bn // config.width, 2)
        check_room(config, slot, buffers * rows * config.width * stored, f"buffers of config.width={config.width} columns of the result")


def sent(config) -> str:
    return f"the sums that config.splits={config.splits} CTAs of a cluster send each other"


def check_room(config, slot: int, beside: int, what: str) -> None:
    """LaunchError where slots of so many bytes do not fit in shared memory beside what else is there."""
    slots = config.stages * slot
    if slots + beside > SHARED:
        words = f", and {what} take {beside}; together they" if what else "; they"
        raise LaunchError(f"config.bk={config.bk} and config.stages={config.stages}: slots take {slots} bytes of shared memory{words} may "
                          f"take at most {SHARED}. {type(config).__name__}.of chooses fields that fit the others from `itemsize` and "
                          "`stored`, the bytes of an operand's and of a result's element")


def slots_in(room: int, slot: int, most: int) -> int:
    """How many slots of so many bytes, up to `most`, have room beside all else. LaunchError where none has."""
    if room < slot:
        raise LaunchError(f"a slot takes {slot} bytes of shared memory, and the results' buffers, or the sums that CTAs send each other, leave "
                          f"{max(room, 0)}: use a smaller tile, fewer elements of k in a slot, or fewer splits")
    return min(room // slot, most)


def possible(of: Callable, *args, **options):
    """The configuration that ``of`` makes, None where shared memory has no two slots of it."""
    try:
        config = of(*args, **options)
    except LaunchError:
        return None
    return config if config.stages >= 2 else None


def widths(bn: int, stored: int) -> list[int]:
    """How many of `bn` columns, of so many bytes each, TMA can store at once."""
    return [width for width in range(8, bn + 1, 8) if bn % width == 0 and stored_at_once(width * stored)]


def stored_at_once(nbytes: int) -> bool:
    """Whether TMA stores so many bytes of a row at once, from a buffer swizzled by as many, or by 128."""
    return nbytes in (32, 64) or nbytes % 128 == 0


def check_cluster(splits: int) -> None:
    if splits > CLUSTER:
        raise LaunchError(f"the CTAs that share a tile's k form a cluster: config.splits must be at most {CLUSTER}, not {splits}")


def check_pair(config) -> None:
    """LaunchError for a configuration by which no pairs of CTAs can share columns of B on Hopper."""
    if config.stream:
        raise LaunchError("pairs of CTAs compute whole tiles, one above the other: config.pair cannot be combined with config.stream")
    if config.splits > 1 and config.clustered:
        raise LaunchError("the CTAs of a pair form the cluster: config.pair with config.splits needs config.clustered=False")
    order, group = config.order
    if config.splits == 1 and (order not in ("column", "grouped", "snake") or order != "column" and group % 2):
        raise LaunchError("pairs of CTAs take tiles that are neighbours in a column: config.order must be 'column', or 'grouped' or 'snake' by an "
                          f"even number of rows, not {config.order}")
    check_halves(config)


def check_halves(config) -> None:
    """LaunchError for a configuration by which a pair of CTAs cannot bring half of an operand each."""
    if config.bn % 16 or config.bk % 16:
        raise LaunchError("each CTA of a pair loads half of the columns of B, or of their k, in units of 8: the configuration's bn and bk must "
                          f"be multiples of 16, not {config.bn} and {config.bk}")


__all__ = ["EITHER", "HIGH", "SHARED", "check_alone", "check_blackwell", "check_field", "check_fields", "check_halves", "check_hopper", "check_pair",
           "check_registers", "check_shared", "check_shared_on_blackwell", "check_shares", "possible", "slots_in", "stored_at_once", "widths"]
